/*
 * kvcanary check: one file with all that is found, or many with a line each.
 *
 * Files of a fleet are taken side by side; what they say is printed in the order in which they were
 * given, so that the output does not depend on --jobs.
 */
#include "cli.h"
#include "snapshot/check.h"
#include "snapshot/finding_text.h"
#include "snapshot/fleet.h"
#include "snapshot/rope_given.h"
#include "snapshot/saved_options.h"
#include "snapshot/side.h"
#include "snapshot/work.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TABLE_LINES 40   /* findings shown to a person */
#define LINE_FINDINGS 20 /* and in one line of --jsonl */
#define KINDS_IN_LINE 4

enum {
	OPTION_ROPE = SAVED_OPTION_OWN,
	OPTION_ROPE_FROM,
	OPTION_SIDE,
	OPTION_FROM_FILE,
	OPTION_JSONL,
	OPTION_RESUME
};

static const struct cli_option own_options[] = {
	{ OPTION_ROPE, "rope", "BASE,STYLE[,DIM[,OFFSET]]",
	        "also compare contents: rows of equal tokens in layer 0.\n"
	        "STYLE: interleaved (norm), half (neox), or auto" },
	{ OPTION_ROPE_FROM, "rope-from", "FILE",
	        "the same, with base, scaling and heads out of\na model's GGUF or config.json" },
	{ OPTION_SIDE, "side", "SIDE", "compare with this stamp (kvcanary stamp)" },
	{ OPTION_FROM_FILE, "from-file", "LIST",
	        "also check the files named in it; - = standard input" },
	{ OPTION_JSONL, "jsonl", NULL, "one line of JSON for each file" },
	{ OPTION_RESUME, "resume", "LOG",
	        "leave out files that this log of --jsonl has\nwith the same size and time" },
	CLI_OPTIONS_END,
};

static const struct cli_manual manual = { "check",
	"FILE [SIDE] [OPTION]...\nFILE|DIRECTORY... [--side SIDE] [OPTION]...",
	"Look for damage in saved KV caches: values that are not finite, rows that are zero\n"
	"or repeat, positions and sequences that contradict each other; with a stamp every\n"
	"changed row; with --rope rows of layer 0 that do not fit their token or position.\n"
	"A directory stands for the files in it, unless it is one cache itself. Two files are\n"
	"both checked, not compared, unless the second is a stamp: see kvcanary diff.",
	own_options, saved_option_rows,
	"0 sound, 1 damaged, 2 could not be checked, as a file that is cut;\n"
	"of several files: 1 if any is damaged, else 2 if any could not be checked",
	"kvcanary check prompt.bin --rope 100000,norm --heads 3\n"
	"kvcanary check /caches --jsonl --resume log.jsonl >> log.jsonl" };

struct session {
	struct saved_settings settings;
	struct rope_given rope;
	bool has_rope;
	const char *side_path;
	struct side *side;
	const char *list_path;
	const char *log_path;
	struct fleet_log *log;
	bool jsonl;
	struct fleet fleet;
	/* Output in the order of files. */
	pthread_mutex_t lock;
	char **texts; /* of files that are done and not printed */
	int64_t printed;
	int64_t done, damaged, failed, resumed;
	int threads_per_file;
};

/* What came of one file. */
struct outcome {
	const char *path;
	int exit_code;
	struct saved_cache *cache;  /* NULL: it could not be opened */
	struct check_result result; /* findings NULL: it could not be read */
	struct saved_error error;
};

/* ---- options ---- */

static int fail_value(const char *option, const char *value, const char *expected)
{
	return cli_fail("cli-option-bad-value", "option", option, "value", value, "expected",
	        expected, NULL);
}

static int take_own_option(struct session *session, int option, const char *value)
{
	struct saved_error error;

	switch (option) {
	case OPTION_ROPE:
		session->has_rope = true;
		if (!rope_given_parse(&session->rope, value))
			return fail_value("--rope", value,
			        "BASE,STYLE[,DIM[,OFFSET]], as 10000,half or 10000,norm,64");
		return 0;
	case OPTION_ROPE_FROM:
		session->has_rope = true;
		return rope_given_read(&session->rope, value, &error) == 0
		               ? 0
		               : saved_print_error(&error, value, session->settings.json);
	case OPTION_SIDE:
		session->side_path = value;
		return 0;
	case OPTION_FROM_FILE:
		session->list_path = value;
		return 0;
	case OPTION_JSONL:
		session->jsonl = true;
		return 0;
	default:
		session->log_path = value;
		return 0;
	}
}

static int list_inputs(struct session *session, int count, char **paths)
{
	const struct saved_options *options = &session->settings.saved;
	int code;

	if (count == 2 && !session->side_path && side_is(paths[1])) {
		session->side_path = paths[1];
		count = 1;
	}
	code = fleet_gather(&session->fleet, count, paths, session->list_path, options);
	/* Beside caches of a directory may lie their stamp, and the log of this run. */
	if (session->fleet.expanded && session->side_path)
		fleet_leave_out(&session->fleet, session->side_path);
	if (session->fleet.expanded && session->log_path)
		fleet_leave_out(&session->fleet, session->log_path);
	return code ? code : fleet_refuse_empty(&session->fleet, "kvcanary check");
}

/* ---- one file ---- */

/* KV heads: as given, else as the model says, else as the stamp was made. */
static struct saved_options options_for(const struct session *session, const char *path)
{
	struct saved_options options = session->settings.saved;

	if (options.heads == 0 && session->has_rope)
		options.heads = session->rope.heads;
	if (options.heads == 0 && session->side)
		options.heads = side_heads(session->side, path);
	return options;
}

static void check_file(const struct session *session, struct outcome *outcome, const char *path)
{
	struct saved_options saved = options_for(session, path);
	struct rope_given rope = session->rope;
	struct check_options options = { session->threads_per_file,
		session->has_rope ? &rope : NULL, session->side };

	*outcome = (struct outcome){ .path = path, .exit_code = CLI_CANNOT };
	if (saved_open(&outcome->cache, path, &saved, &outcome->error) != 0) {
		outcome->cache = NULL;
		return;
	}
	if (saved.heads > 0)
		rope.heads = saved.heads;
	if (check_cache(&outcome->result, outcome->cache, &options, &outcome->error) != 0)
		return;
	if (findings_count(outcome->result.findings, FINDING_DAMAGE) > 0)
		outcome->exit_code = CLI_DAMAGE;
	else if (!outcome->result.incomplete && outcome->cache->part_count > 0)
		outcome->exit_code = CLI_GOOD;
}

static void outcome_free(struct outcome *outcome)
{
	findings_free(outcome->result.findings);
	saved_close(outcome->cache);
}

static const char *verdict_of(const struct outcome *outcome)
{
	if (!outcome->result.findings)
		return "unreadable";
	switch (outcome->exit_code) {
	case CLI_GOOD:
		return "sound";
	case CLI_DAMAGE:
		return "damaged";
	default:
		return "not checked";
	}
}

/* ---- for programs ---- */

static json_t *error_object(const struct saved_error *error)
{
	return json_pack("{s:s, s:s, s:o, s:I, s:o}", "slug", error->slug, "kind", error->kind,
	        "field", saved_json_text(error->field), "offset", (json_int_t)error->offset,
	        "message", saved_json_text(error->message));
}

static json_t *outcome_object(const struct outcome *outcome, size_t most_findings)
{
	struct fleet_state state = fleet_state_of(outcome->path);
	json_t *object = json_pack("{s:o, s:s, s:i, s:I, s:f}", "file",
	        saved_json_text(outcome->path), "verdict", verdict_of(outcome), "exit",
	        outcome->exit_code, "bytes", (json_int_t)state.bytes, "modified", state.modified);

	if (outcome->cache)
		json_object_set_new(object, "format", json_string(outcome->cache->format));
	if (!outcome->result.findings) {
		json_object_set_new(object, "error", error_object(&outcome->error));
		return object;
	}
	json_object_set_new(object, "rows", json_integer(outcome->result.row_count));
	json_object_set_new(object, "counts", findings_counts(outcome->result.findings));
	json_object_set_new(
	        object, "findings", findings_array(outcome->result.findings, most_findings));
	return object;
}

/* ---- for people ---- */

/* "3 findings: zero_row 2, nonfinite 1" */
static void print_counts(FILE *out, struct findings *findings)
{
	json_t *counts = findings_counts(findings), *number;
	const char *kind;
	int listed = 0;

	json_object_foreach(counts, kind, number) if (listed++ < KINDS_IN_LINE) fprintf(out,
	        "%s%s %lld", listed > 1 ? ", " : "", kind, (long long)json_integer_value(number));
	if (listed > KINDS_IN_LINE)
		fprintf(out, ", ...");
	json_decref(counts);
}

static void print_line(FILE *out, const struct outcome *outcome)
{
	fprintf(out, "%-11s %s", verdict_of(outcome), outcome->path);
	if (!outcome->result.findings)
		fprintf(out, ": %s [%s]", outcome->error.message, outcome->error.slug);
	else if (findings_count(outcome->result.findings, FINDING_NOTE) > 0) {
		fprintf(out, ": ");
		print_counts(out, outcome->result.findings);
	}
	fputc('\n', out);
}

static int64_t layers_of(const struct saved_cache *cache)
{
	int64_t layers = 0;

	for (int64_t p = 0; p < cache->part_count; p++)
		if (p == 0 ||
		        strcmp(cache->parts[p].name ? cache->parts[p].name : "",
		                cache->parts[p - 1].name ? cache->parts[p - 1].name : "") != 0)
			layers += cache->parts[p].layer_count;
	return layers;
}

static void print_report(FILE *out, const struct session *session, const struct outcome *outcome)
{
	struct findings *findings = outcome->result.findings;
	size_t damage = findings_count(findings, FINDING_DAMAGE);

	fprintf(out, "%s: %s (%s)\n",
	        outcome->exit_code == CLI_DAMAGE ? "damaged"
	        : outcome->exit_code == CLI_GOOD ? "sound"
	                                         : "could not be checked",
	        outcome->path,
	        outcome->cache->version[0] ? outcome->cache->version : outcome->cache->format);
	if (damage)
		fprintf(out, "  %zu finding%s in ", damage, damage == 1 ? "" : "s");
	else
		fprintf(out, "  nothing wrong found in ");
	fprintf(out, "%lld rows of %lld layer%s%s%s\n", (long long)outcome->result.row_count,
	        (long long)layers_of(outcome->cache), layers_of(outcome->cache) == 1 ? "" : "s",
	        session->side ? "; compared with its stamp" : "",
	        session->has_rope && !outcome->result.incomplete ? "; layer 0 compared by value"
	                                                         : "");
	if (!damage && !session->side && outcome->exit_code == CLI_GOOD)
		fprintf(out, "  a change of ordinary values is only seen with a stamp: kvcanary "
		             "stamp\n");
	findings_print(out, findings, TABLE_LINES);
}

/* ---- one ---- */

static int check_one(struct session *session)
{
	struct outcome outcome;
	bool json = session->settings.json || session->jsonl;
	int code;

	check_file(session, &outcome, session->fleet.paths[0]);
	if (!outcome.result.findings && !json) {
		saved_print_error(&outcome.error, outcome.path, false);
	} else if (json) {
		json_t *object =
		        outcome_object(&outcome, session->jsonl ? LINE_FINDINGS : SIZE_MAX);
		json_dumpf(object, stdout, session->jsonl ? JSON_COMPACT : JSON_INDENT(2));
		putchar('\n');
		json_decref(object);
	} else {
		print_report(stdout, session, &outcome);
	}
	code = outcome.exit_code;
	outcome_free(&outcome);
	return code;
}

/* ---- many ---- */

static void print_fleet_progress(const struct session *session)
{
	if (isatty(STDERR_FILENO) && !isatty(STDOUT_FILENO))
		fprintf(stderr, "\r%lld of %lld files, %lld damaged, %lld not checked%s",
		        (long long)session->done, (long long)session->fleet.count,
		        (long long)session->damaged, (long long)session->failed,
		        session->done == session->fleet.count ? "\n" : "");
}

/* Prints what is done, as far as all before it is done, too. */
static void hand_in(struct session *session, int64_t number, char *text, int exit_code)
{
	pthread_mutex_lock(&session->lock);
	session->texts[number] = text;
	session->done++;
	session->damaged += exit_code == CLI_DAMAGE;
	session->failed += exit_code == CLI_CANNOT;
	while (session->printed < session->fleet.count && session->texts[session->printed]) {
		fputs(session->texts[session->printed], stdout);
		free(session->texts[session->printed]);
		session->texts[session->printed++] = NULL;
	}
	fflush(stdout); /* a log must have what was done when the machine goes down */
	print_fleet_progress(session);
	pthread_mutex_unlock(&session->lock);
}

static char *outcome_text(const struct session *session, const struct outcome *outcome)
{
	char *text = NULL;
	size_t bytes;
	FILE *out = open_memstream(&text, &bytes);

	if (!out)
		return NULL;
	if (session->jsonl || session->settings.json) {
		json_t *object = outcome_object(outcome, LINE_FINDINGS);
		json_dumpf(object, out, JSON_COMPACT);
		fputc('\n', out);
		json_decref(object);
	} else {
		print_line(out, outcome);
	}
	return fclose(out) == 0 ? text : NULL;
}

static bool check_item_of_fleet(void *context, int64_t number, int thread)
{
	struct session *session = context;
	const char *path = session->fleet.paths[number];
	int known = fleet_log_find(session->log, path);
	struct outcome outcome;
	char *text;

	(void)thread;
	if (known >= 0) {
		pthread_mutex_lock(&session->lock);
		session->resumed++;
		pthread_mutex_unlock(&session->lock);
		text = strdup("");
		if (text)
			hand_in(session, number, text, known);
		return text != NULL;
	}
	check_file(session, &outcome, path);
	text = outcome_text(session, &outcome);
	if (text)
		hand_in(session, number, text, outcome.exit_code);
	outcome_free(&outcome);
	return text != NULL;
}

static int check_many(struct session *session)
{
	int64_t count = session->fleet.count;
	int jobs =
	        session->settings.jobs > 0 ? (int)session->settings.jobs : work_default_threads();
	bool good;

	session->threads_per_file = count > 0 && jobs > count ? (int)(jobs / count) : 1;
	session->texts = calloc((size_t)count + 1, sizeof(*session->texts));
	if (!session->texts)
		return cli_fail("cli-input-unreadable", "path", "list of files", "reason",
		        "Cannot allocate memory", NULL);
	if (fleet_log_is_torn(session->log))
		putchar('\n');
	good = work_run(count, jobs, check_item_of_fleet, session);
	free(session->texts);
	if (!good)
		return cli_fail("cli-input-unreadable", "path", "list of files", "reason",
		        "Cannot allocate memory", NULL);
	if (!session->jsonl && !session->settings.json)
		printf("%lld files: %lld sound, %lld damaged, %lld not checked\n", (long long)count,
		        (long long)(count - session->damaged - session->failed),
		        (long long)session->damaged, (long long)session->failed);
	return session->damaged ? CLI_DAMAGE : session->failed ? CLI_CANNOT : CLI_GOOD;
}

/* ---- the command ---- */

static int open_inputs(struct session *session, int count, char **paths)
{
	struct saved_error error;
	int code = list_inputs(session, count, paths);

	if (code == 0 && session->log_path)
		code = fleet_log_open(&session->log, session->log_path);
	if (code == 0 && session->side_path &&
	        side_open(&session->side, session->side_path, &error) != 0)
		code = saved_print_error(&error, session->side_path, session->settings.json);
	return code;
}

static int run_check(struct session *session, int argc, char **argv)
{
	const char *value;
	int option, code;

	while ((option = cli_next_option(&manual, argc, argv, &value)) >= 0) {
		code = option >= SAVED_OPTION_OWN ? take_own_option(session, option, value)
		                                  : saved_option(&session->settings, option, value);
		if (code)
			return code;
	}
	if (option == CLI_BAD_OPTION)
		return CLI_CANNOT;
	if (session->settings.help) {
		cli_print_manual(&manual);
		return CLI_GOOD;
	}
	code = open_inputs(session, argc - optind, argv + optind);
	if (code)
		return code;
	if (session->fleet.count == 1 && !session->fleet.expanded && !session->log) {
		session->threads_per_file = session->settings.jobs > 0 ? (int)session->settings.jobs
		                                                       : work_default_threads();
		return check_one(session);
	}
	return check_many(session);
}

int cli_check(int argc, char **argv)
{
	struct session session = { .settings = SAVED_SETTINGS };
	int code;

	pthread_mutex_init(&session.lock, NULL);
	code = run_check(&session, argc, argv);
	pthread_mutex_destroy(&session.lock);
	fleet_log_close(session.log);
	fleet_free(&session.fleet);
	side_close(session.side);
	saved_settings_free(&session.settings);
	return code;
}
