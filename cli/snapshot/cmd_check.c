/*
 * kvcanary check: one file with all that is found, or many with a line each.
 */
#include "cli.h"
#include "json_line.h"
#include "snapshot/check.h"
#include "snapshot/finding_text.h"
#include "snapshot/fleet.h"
#include "snapshot/reader.h"
#include "snapshot/rope_given.h"
#include "snapshot/saved_options.h"
#include "snapshot/side.h"
#include "snapshot/work.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TABLE_LINES 40   /* findings shown to a person */
#define LINE_FINDINGS 20 /* and in one line of --jsonl */
#define KINDS_IN_LINE 4

enum {
	OPTION_SIDE = SAVED_OPTION_OWN,
	OPTION_BESIDE,
	OPTION_FROM_FILE,
	OPTION_JSONL,
	OPTION_RESUME
};

static const struct cli_option own_options[] = {
	{ SAVED_OPTION_ROPE, "rope", "BASE,STYLE[,DIM[,OFFSET]]",
	        "also compare contents: rows of equal tokens in layer 0.\n"
	        "STYLE: interleaved (norm), half (neox), or auto" },
	{ SAVED_OPTION_ROPE_FROM, "rope-from", "FILE",
	        "the same, with base, scaling and heads out of\na model's GGUF or config.json" },
	{ OPTION_SIDE, "side", "SIDE", "compare with this stamp (kvcanary stamp)" },
	{ OPTION_BESIDE, "beside", NULL,
	        "compare each with the stamp that lies beside it,\n"
	        "FILE" SIDE_SUFFIX },
	{ OPTION_FROM_FILE, "from-file", "LIST",
	        "also check the files named in it; - = standard input" },
	{ OPTION_JSONL, "jsonl", NULL, "one line of JSON for each file" },
	{ OPTION_RESUME, "resume", "LOG",
	        "leave out files that this log of --jsonl has\nwith the same size and time" },
	CLI_OPTIONS_END,
};

static const struct cli_manual manual = { "check",
	"FILE|DIR [SIDE] [OPTION]...\nFILE|DIR... [--side SIDE|--beside] [OPTION]...",
	"Look for damage in saved KV caches: values that are not finite, rows that are zero\n"
	"or repeat, positions and sequences that contradict each other; with a stamp every\n"
	"changed row; with --rope rows of layer 0 that do not fit their token or position.\n"
	"A directory is one cache if its files are the layers or pages of one, else it stands\n"
	"for the files in it and below. Two files are both checked, not compared, unless the\n"
	"second is a stamp: see kvcanary diff.",
	own_options, saved_option_rows,
	"0 sound, 1 damaged, 2 could not be checked, as a file that is cut;\n"
	"of several files: 1 if any is damaged, else 2 if any could not be checked",
	"kvcanary check prompt.bin --rope 100000,norm --heads 3\n"
	"kvcanary check /caches --jsonl --resume log.jsonl >> log.jsonl" };

struct session {
	struct saved_settings settings;
	const char *side_path;
	struct side *side;
	bool beside; /* each file has a side file of its own */
	const char *list_path;
	const char *log_path;
	struct fleet_log *log;
	bool jsonl;
	struct fleet fleet;
};

/* What came of one file. */
struct outcome {
	const char *path;
	int exit_code;
	struct saved_cache *cache;  /* NULL: it could not be opened */
	struct check_result result; /* findings NULL: it could not be read */
	bool has_stamp;
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
	switch (option) {
	case OPTION_SIDE:
		session->side_path = value;
		return 0;
	case OPTION_BESIDE:
		session->beside = true;
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

	if (session->beside && session->side_path)
		return fail_value("--beside", "given with --side", "the only one of the two");
	if (count == 2 && !session->side_path && !session->beside && side_is(paths[1])) {
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
static struct saved_options options_for(
        const struct session *session, const struct side *side, const char *path)
{
	struct saved_options options = session->settings.saved;

	if (options.heads == 0 && session->settings.has_rope)
		options.heads = session->settings.rope.heads;
	if (options.heads == 0 && side)
		options.heads = side_heads(side, path);
	return options;
}

/* The stamp that lies beside a file. 0 and *out, NULL if none is there; or -1 and *error. */
static int open_beside(struct side **out, const char *path, struct saved_error *error)
{
	char *name = side_beside(path);
	int failed = 0;

	*out = NULL;
	if (!name)
		return saved_fail_memory(error, path);
	if (access(name, F_OK) == 0)
		failed = side_open(out, name, error);
	free(name);
	return failed;
}

/* A stamp was asked for, and there is none: what it would have told is not known. */
static void add_missing_stamp(struct check_result *result)
{
	struct finding finding = finding_blank("stamp_missing", FINDING_DOUBT);

	snprintf(finding.detail, sizeof(finding.detail),
	        "no stamp lies beside it; rows were not compared");
	findings_add(result->findings, &finding);
	result->incomplete = true;
}

/* False, and outcome->error, if it could not be read. */
static bool read_file(const struct session *session, const struct side *side, int threads,
        struct outcome *outcome)
{
	struct saved_options saved = options_for(session, side, outcome->path);
	struct rope_given rope = session->settings.rope;
	struct check_options options = { threads, session->settings.has_rope ? &rope : NULL, side };

	if (saved_open(&outcome->cache, outcome->path, &saved, &outcome->error) != 0) {
		outcome->cache = NULL;
		return false;
	}
	if (saved.heads > 0)
		rope.heads = saved.heads;
	return check_cache(&outcome->result, outcome->cache, &options, &outcome->error) == 0;
}

static void check_file(
        const struct session *session, struct outcome *outcome, const char *path, int threads)
{
	struct side *own = NULL;

	*outcome = (struct outcome){ .path = path, .exit_code = CLI_CANNOT };
	if (session->beside && open_beside(&own, path, &outcome->error) != 0)
		return;
	if (read_file(session, own ? own : session->side, threads, outcome)) {
		outcome->has_stamp = own || session->side;
		if (session->beside && !own)
			add_missing_stamp(&outcome->result);
		if (findings_count(outcome->result.findings, FINDING_DAMAGE) > 0)
			outcome->exit_code = CLI_DAMAGE;
		else if (!outcome->result.incomplete && outcome->cache->part_count > 0)
			outcome->exit_code = CLI_GOOD;
	}
	side_close(own);
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

static json_t *outcome_object(const struct outcome *outcome, size_t most_findings)
{
	struct fleet_state state = fleet_state_of(outcome->path);
	json_t *object = json_pack("{s:o, s:s, s:i, s:I, s:f}", "file",
	        saved_json_text(outcome->path), "verdict", verdict_of(outcome), "exit",
	        outcome->exit_code, "bytes", (json_int_t)state.bytes, "modified", state.modified);

	if (outcome->cache)
		json_object_set_new(object, "format", json_string(outcome->cache->format));
	if (!outcome->result.findings) {
		json_object_set_new(object, "error", saved_error_object(&outcome->error));
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
	fprintf(out, "%-11s ", verdict_of(outcome));
	cli_print_foreign(out, outcome->path);
	if (!outcome->result.findings)
		fprintf(out, ": %s [%s]", outcome->error.message, outcome->error.slug);
	else if (findings_count(outcome->result.findings, FINDING_NOTE) > 0) {
		fprintf(out, ": ");
		print_counts(out, outcome->result.findings);
	}
	fputc('\n', out);
}

static void print_report(FILE *out, const struct session *session, const struct outcome *outcome)
{
	struct findings *findings = outcome->result.findings;
	int64_t layers = saved_layer_count(outcome->cache);
	size_t damage = findings_count(findings, FINDING_DAMAGE);

	fprintf(out, "%s: ",
	        outcome->exit_code == CLI_DAMAGE ? "damaged"
	        : outcome->exit_code == CLI_GOOD ? "sound"
	                                         : "could not be checked");
	cli_print_foreign(out, outcome->path);
	fprintf(out, " (%s)\n",
	        outcome->cache->version[0] ? outcome->cache->version : outcome->cache->format);
	if (damage)
		fprintf(out, "  %zu finding%s in ", damage, damage == 1 ? "" : "s");
	else
		fprintf(out, "  nothing wrong found in ");
	fprintf(out, "%lld rows of %lld layer%s%s%s\n", (long long)outcome->result.row_count,
	        (long long)layers, layers == 1 ? "" : "s",
	        outcome->has_stamp ? "; compared with its stamp" : "",
	        session->settings.has_rope && !outcome->result.incomplete
	                ? "; layer 0 compared by value"
	                : "");
	if (!damage && !outcome->has_stamp && outcome->exit_code == CLI_GOOD)
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

	check_file(session, &outcome, session->fleet.paths[0],
	        session->settings.jobs > 0 ? (int)session->settings.jobs : work_default_threads());
	if (!outcome.result.findings && !json) {
		saved_print_error(&outcome.error, outcome.path, false);
	} else if (json) {
		cli_write_json(stdout,
		        outcome_object(&outcome, session->jsonl ? LINE_FINDINGS : SIZE_MAX),
		        session->jsonl ? JSON_COMPACT : JSON_INDENT(2));
	} else {
		print_report(stdout, session, &outcome);
	}
	code = outcome.exit_code;
	outcome_free(&outcome);
	return code;
}

/* ---- many ---- */

static int check_one_of_many(void *context, const char *path, int threads, FILE *out)
{
	const struct session *session = context;
	int exit_code = fleet_log_find(session->log, path);
	struct outcome outcome;

	if (exit_code >= 0)
		return exit_code;
	check_file(session, &outcome, path, threads);
	if (session->jsonl || session->settings.json) {
		cli_write_json(out, outcome_object(&outcome, LINE_FINDINGS), JSON_COMPACT);
	} else {
		print_line(out, &outcome);
	}
	exit_code = outcome.exit_code;
	outcome_free(&outcome);
	return exit_code;
}

static int check_many(struct session *session)
{
	struct fleet_run run = { .fleet = &session->fleet,
		.jobs = (int)session->settings.jobs,
		.job = check_one_of_many,
		.context = session,
		.failed_word = "not checked",
		.torn = fleet_log_is_torn(session->log) };
	int code = fleet_run(&run);

	if (!session->jsonl && !session->settings.json)
		printf("%lld file%s: %lld sound, %lld damaged, %lld not checked\n",
		        (long long)session->fleet.count, session->fleet.count == 1 ? "" : "s",
		        (long long)(session->fleet.count - run.damaged - run.failed),
		        (long long)run.damaged, (long long)run.failed);
	return code;
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
	if (session->fleet.count == 1 && !session->fleet.expanded && !session->log)
		return check_one(session);
	return check_many(session);
}

int cli_check(int argc, char **argv)
{
	struct session session = { .settings = SAVED_SETTINGS };
	int code;

	work_keep_library_single();
	code = run_check(&session, argc, argv);
	fleet_log_close(session.log);
	fleet_free(&session.fleet);
	side_close(session.side);
	saved_settings_free(&session.settings);
	return code;
}
