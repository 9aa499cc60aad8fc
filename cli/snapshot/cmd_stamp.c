/*
 * kvcanary stamp: fingerprints of all rows of some saved caches, into one side file, or into one
 * beside each of them. The latter can be interrupted and resumed.
 */
#include "cli.h"
#include "json_line.h"
#include "snapshot/fleet.h"
#include "snapshot/reader.h"
#include "snapshot/saved_options.h"
#include "snapshot/side.h"
#include "snapshot/work.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>

enum {
	OPTION_OUTPUT = 'o',
	OPTION_BESIDE = SAVED_OPTION_OWN,
	OPTION_FROM_FILE,
	OPTION_JSONL,
	OPTION_RESUME
};

static const struct cli_option own_options[] = {
	{ OPTION_OUTPUT, "output", "SIDE",
	        "the side file to write (-o); of what is there only a\nstamp or an empty file is "
	        "replaced" },
	{ OPTION_BESIDE, "beside", NULL,
	        "or: a side file beside each cache, FILE" SIDE_SUFFIX
	        "\nit replaces what -o would" },
	{ OPTION_FROM_FILE, "from-file", "LIST",
	        "also stamp the files named in it; - = standard input" },
	{ OPTION_JSONL, "jsonl", NULL, "one line of JSON for each file" },
	{ OPTION_RESUME, "resume", "LOG",
	        "with --beside: leave out files that this log of --jsonl\n"
	        "has with the same size and time, and whose stamp is there" },
	CLI_OPTIONS_END,
};

static const struct cli_manual manual = { "stamp",
	"FILE|DIR... -o SIDE.safetensors [OPTION]...\nFILE|DIR... --beside [OPTION]...",
	"Fingerprint every head of every row, with its token and position, while the caches are\n"
	"known to be sound. 'kvcanary check FILE SIDE' later names each row that changed. A side\n"
	"file is there whole or not at all, and carries a fingerprint of itself. With -o one has\n"
	"the stamps of all caches, and if one cache cannot be read nothing is written; with\n"
	"--beside the others are stamped.",
	own_options, saved_option_rows, "0 written, 2 could not be written, or not all",
	"kvcanary stamp prompt.bin -o prompt.stamp.safetensors\n"
	"kvcanary stamp /caches --beside --jsonl --resume log >> log" };

struct session {
	struct saved_settings settings;
	struct fleet fleet;
	const char *output;
	bool beside;
	const char *list_path;
	const char *log_path;
	struct fleet_log *log;
	bool jsonl;
};

static int fail_saved(const struct session *session, const struct saved_error *error)
{
	return saved_print_error(error, error->path[0] ? error->path : session->output,
	        session->settings.json || session->jsonl);
}

/* What came of one cache; error: NULL if it was stamped. */
static void say_stamped(const struct session *session, const char *path, const char *side,
        const struct saved_error *error, FILE *out)
{
	struct fleet_state state = fleet_state_of(path);
	json_t *object;

	if (!session->jsonl && !session->settings.json) {
		fprintf(out, error ? "not stamped " : "stamped ");
		cli_print_foreign(out, path);
		if (error)
			fprintf(out, ": %s [%s]", error->message, error->slug);
		fputc('\n', out);
		return;
	}
	object = json_pack("{s:o, s:o, s:i, s:I, s:f}", "file", saved_json_text(path), "side",
	        saved_json_text(side), "exit", error ? CLI_CANNOT : CLI_GOOD, "bytes",
	        (json_int_t)state.bytes, "modified", state.modified);
	if (error)
		json_object_set_new(object, "error", saved_error_object(error));
	cli_write_json(out, object, JSON_COMPACT);
}

/* ---- one side file for all ---- */

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
		say_stamped(session, session->fleet.paths[i], session->output, NULL, stdout);
	if (session->jsonl || session->settings.json)
		return CLI_GOOD;
	printf("written: ");
	cli_print_foreign(stdout, session->output);
	printf("\nnext:    kvcanary check ");
	cli_print_foreign(stdout, count == 1 ? session->fleet.paths[0] : "FILE");
	printf(" ");
	cli_print_foreign(stdout, session->output);
	printf("\n");
	return CLI_GOOD;
}

/* ---- one beside each ---- */

static int stamp_one_of_many(void *context, const char *path, int threads, FILE *out)
{
	const struct session *session = context;
	struct side_source source = { path, session->settings.saved };
	char *side = side_beside(path);
	struct saved_error error;
	int failed;

	if (side && fleet_log_find(session->log, path) == CLI_GOOD && side_is(side)) {
		free(side);
		return CLI_GOOD;
	}
	failed = side ? side_write(side, &source, 1, threads, &error)
	              : saved_fail_memory(&error, path);
	say_stamped(session, path, side ? side : "", failed ? &error : NULL, out);
	free(side);
	return failed ? CLI_CANNOT : CLI_GOOD;
}

static int stamp_each_beside(struct session *session)
{
	struct fleet_run run = { .fleet = &session->fleet,
		.jobs = (int)session->settings.jobs,
		.job = stamp_one_of_many,
		.context = session,
		.failed_word = "not stamped",
		.torn = fleet_log_is_torn(session->log) };
	int code = fleet_run(&run);

	if (!session->jsonl && !session->settings.json)
		printf("%lld file%s: %lld stamped, %lld not\n", (long long)session->fleet.count,
		        session->fleet.count == 1 ? "" : "s",
		        (long long)(session->fleet.count - run.failed), (long long)run.failed);
	return code;
}

/* ---- the command ---- */

static int take_option(struct session *session, int option, const char *value)
{
	switch (option) {
	case OPTION_OUTPUT:
		session->output = value;
		return 0;
	case OPTION_BESIDE:
		session->beside = true;
		return 0;
	case OPTION_RESUME:
		session->log_path = value;
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

static int fail_together(const char *option, const char *value, const char *expected)
{
	return cli_fail("cli-option-bad-value", "option", option, "value", value, "expected",
	        expected, NULL);
}

/* What -o, --beside and --resume say together. */
static int check_stamp_outputs(const struct session *session)
{
	if (!session->output && !session->beside)
		return cli_fail("stamp-no-output", NULL);
	if (session->output && session->beside)
		return fail_together("--beside", "given with -o", "the only one of the two");
	if (session->log_path && !session->beside)
		return fail_together("--resume", "given with -o", "given with --beside");
	for (int64_t i = 0; session->output && i < session->fleet.count; i++)
		if (cli_refuse_overwrite(session->output, session->fleet.paths[i]) != 0)
			return CLI_CANNOT;
	return 0;
}

/* The caches, without what an earlier run has written among them. */
static int list_stamp_inputs(struct session *session, int count, char **paths)
{
	struct fleet *fleet = &session->fleet;
	int code = fleet_gather(fleet, count, paths, session->list_path, &session->settings.saved);

	if (code)
		return code;
	if (fleet->expanded && session->output && side_is(session->output))
		fleet_leave_out(fleet, session->output);
	if (fleet->expanded && session->log_path)
		fleet_leave_out(fleet, session->log_path);
	return fleet_refuse_empty(fleet, "kvcanary stamp");
}

static int run_stamp(struct session *session, int argc, char **argv)
{
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
	code = list_stamp_inputs(session, argc - optind, argv + optind);
	if (code == 0)
		code = check_stamp_outputs(session);
	if (code == 0 && session->log_path)
		code = fleet_log_open(&session->log, session->log_path);
	if (code)
		return code;
	return session->beside ? stamp_each_beside(session) : stamp_files(session);
}

int cli_stamp(int argc, char **argv)
{
	struct session session = { .settings = SAVED_SETTINGS };
	int code;

	work_keep_library_single();
	code = run_stamp(&session, argc, argv);

	fleet_log_close(session.log);
	fleet_free(&session.fleet);
	saved_settings_free(&session.settings);
	return code;
}
