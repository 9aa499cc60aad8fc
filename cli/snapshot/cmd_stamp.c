/* kvcanary stamp: fingerprints of all rows of some saved caches, into one side file. */
#include "cli.h"
#include "snapshot/fleet.h"
#include "snapshot/rope_given.h"
#include "snapshot/saved_options.h"
#include "snapshot/side.h"
#include "snapshot/work.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>

enum { OPTION_OUTPUT = 'o', OPTION_FROM_FILE = SAVED_OPTION_OWN, OPTION_JSONL };

static const struct cli_option own_options[] = {
	{ OPTION_OUTPUT, "output", "SIDE", "the side file to write (-o); needed" },
	{ OPTION_FROM_FILE, "from-file", "LIST",
	        "also stamp the files named in it; - = standard input" },
	{ OPTION_JSONL, "jsonl", NULL, "one line of JSON for each file" },
	CLI_OPTIONS_END,
};

static const struct cli_manual manual = { "stamp",
	"FILE|DIRECTORY... -o SIDE.safetensors [OPTION]...",
	"Fingerprint every head of every row, with its token and position, while the caches are\n"
	"known to be sound. 'kvcanary check FILE SIDE' later names each row that changed. The\n"
	"side file is there whole or not at all, and carries a fingerprint of itself. If one\n"
	"cache cannot be read, nothing is written.",
	own_options, saved_option_rows, "0 written, 2 could not be written",
	"kvcanary stamp prompt.bin -o prompt.stamp.safetensors" };

struct session {
	struct saved_settings settings;
	struct fleet fleet;
	const char *output;
	const char *list_path;
	bool jsonl;
};

static int fail_saved(const struct session *session, const struct saved_error *error)
{
	return saved_print_error(error, error->path[0] ? error->path : session->output,
	        session->settings.json || session->jsonl);
}

static void say_stamped(const struct session *session, const char *path)
{
	struct fleet_state state = fleet_state_of(path);
	json_t *object;

	if (!session->jsonl && !session->settings.json) {
		printf("stamped %s\n", path);
		return;
	}
	object = json_pack("{s:o, s:o, s:I, s:f}", "file", saved_json_text(path), "side",
	        saved_json_text(session->output), "bytes", (json_int_t)state.bytes, "modified",
	        state.modified);
	json_dumpf(object, stdout, JSON_COMPACT);
	putchar('\n');
	json_decref(object);
}

static int stamp_files(struct session *session)
{
	int64_t count = session->fleet.count;
	struct side_source *sources = calloc((size_t)count, sizeof(*sources));
	int threads =
	        session->settings.jobs > 0 ? (int)session->settings.jobs : work_default_threads();
	struct saved_error error;
	int failed;

	if (!sources)
		return cli_fail("cli-input-unreadable", "path", "list of files", "reason",
		        "Cannot allocate memory", NULL);
	for (int64_t i = 0; i < count; i++)
		sources[i] =
		        (struct side_source){ session->fleet.paths[i], session->settings.saved };
	failed = side_write(session->output, sources, count, threads, &error);
	free(sources);
	if (failed)
		return fail_saved(session, &error);
	for (int64_t i = 0; i < count; i++)
		say_stamped(session, session->fleet.paths[i]);
	if (!session->jsonl && !session->settings.json)
		printf("written: %s\nnext:    kvcanary check %s %s\n", session->output,
		        count == 1 ? session->fleet.paths[0] : "FILE", session->output);
	return CLI_GOOD;
}

static int take_option(struct session *session, int option, const char *value)
{
	switch (option) {
	case OPTION_OUTPUT:
		session->output = value;
		return 0;
	case OPTION_FROM_FILE:
		session->list_path = value;
		return 0;
	case OPTION_JSONL:
		session->jsonl = true;
		return 0;
	default:
		return saved_option(&session->settings, option, value);
	}
}

static int run_stamp(struct session *session, int argc, char **argv)
{
	const struct saved_options *options = &session->settings.saved;
	const char *value;
	int option, code;

	while ((option = cli_next_option(&manual, argc, argv, &value)) >= 0)
		if (take_option(session, option, value) != 0)
			return CLI_CANNOT;
	if (option == CLI_BAD_OPTION)
		return CLI_CANNOT;
	if (session->settings.help) {
		cli_print_manual(&manual);
		return CLI_GOOD;
	}
	code = fleet_gather(
	        &session->fleet, argc - optind, argv + optind, session->list_path, options);
	if (code)
		return code;
	if (session->output && session->fleet.expanded && side_is(session->output))
		fleet_leave_out(&session->fleet, session->output); /* of the last time */
	code = fleet_refuse_empty(&session->fleet, "kvcanary stamp");
	if (code)
		return code;
	if (!session->output)
		return cli_fail("stamp-no-output", NULL);
	for (int64_t i = 0; i < session->fleet.count; i++)
		if (cli_refuse_overwrite(session->output, session->fleet.paths[i]) != 0)
			return CLI_CANNOT;
	return stamp_files(session);
}

int cli_stamp(int argc, char **argv)
{
	struct session session = { .settings = SAVED_SETTINGS };
	int code = run_stamp(&session, argc, argv);

	fleet_free(&session.fleet);
	saved_settings_free(&session.settings);
	return code;
}
