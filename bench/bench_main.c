/*
 * kvcanary-bench: what each operation takes, by variant, against the memory's limit.
 *
 * The library chooses its variant once per process, so every variant runs in a child of its own:
 * this program again, with KVC_CPU set. Rows come back through a pipe.
 */
#include "bench.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char help[] =
        "usage: kvcanary-bench [OPTION]...\n\n"
        "Time every operation of the library, in each CPU variant that this machine can run, "
        "beside\n"
        "plain copies and reads of as many bytes. Best of N; N is printed.\n\n"
        "  --quick            fewer shapes, less than 40 seconds\n"
        "  --tiny             hardly anything, some seconds: for tests\n"
        "  --op NAME,...      only operations that begin with one of the NAMEs "
        "(rope_pool_fused,\n"
        "                     scatter, plan, write, verify, scan_finite)\n"
        "  --variant NAME     only this CPU variant (see 'kvcanary cpu')\n"
        "  --threads N        only 1 or only 2 threads\n"
        "  --tokens N         only cases of N tokens (slots, entries)\n"
        "  --seconds S        time for each case\n"
        "  --reference C,R    GB/s of a copy and of reading, one thread, that this machine is "
        "known\n"
        "                     to reach (8,10); when it does not, ratios are marked\n"
        "  --json             one JSON object instead of the table\n"
        "  --help             this text\n\n"
        "exit code: 0, or 2 if it could not run or nothing passes the filters\n"
        "example:   kvcanary-bench --quick --op scatter,verify --threads 1\n\n"
        "docs/benchmarks.md says what the numbers mean.\n";

enum {
	OPTION_QUICK = 256,
	OPTION_TINY,
	OPTION_OP,
	OPTION_VARIANT,
	OPTION_THREADS,
	OPTION_TOKENS,
	OPTION_SECONDS,
	OPTION_REFERENCE,
	OPTION_JSON,
	OPTION_HELP,
	OPTION_CHILD,
	OPTION_DEADLINE
};

static const struct option options[] = {
	{ "quick", no_argument, NULL, OPTION_QUICK },
	{ "tiny", no_argument, NULL, OPTION_TINY },
	{ "op", required_argument, NULL, OPTION_OP },
	{ "variant", required_argument, NULL, OPTION_VARIANT },
	{ "threads", required_argument, NULL, OPTION_THREADS },
	{ "tokens", required_argument, NULL, OPTION_TOKENS },
	{ "seconds", required_argument, NULL, OPTION_SECONDS },
	{ "reference", required_argument, NULL, OPTION_REFERENCE },
	{ "json", no_argument, NULL, OPTION_JSON },
	{ "help", no_argument, NULL, OPTION_HELP },
	{ "child", required_argument, NULL, OPTION_CHILD }, /* from the parent: where rows go */
	{ "deadline", required_argument, NULL, OPTION_DEADLINE },
	{ NULL, 0, NULL, 0 },
};

struct command {
	struct bench_settings settings;
	int json;
	int child_pipe; /* -1: this is the parent */
	char **arguments;
};

/* ---- the command line ---- */

static int bad_value(const char *option, const char *value)
{
	fprintf(stderr, "kvcanary-bench: bad value '%s' for --%s; see --help\n", value, option);
	return 0;
}

static int take_number(const char *option, double least, double most, double *out)
{
	char *end;
	*out = strtod(optarg, &end);
	return *end == '\0' && end != optarg && *out >= least && *out <= most
	               ? 1
	               : bad_value(option, optarg);
}

static int take_reference(struct bench_settings *settings)
{
	char after;
	return sscanf(optarg, "%lf,%lf%c", &settings->reference_copy, &settings->reference_read,
	               &after) == 2 &&
	                       settings->reference_copy > 0 && settings->reference_read > 0
	               ? 1
	               : bad_value("reference", optarg);
}

static int take_count(const char *option, double most, int64_t *out)
{
	double number = 0;
	if (!take_number(option, 1, most, &number))
		return 0;
	*out = (int64_t)number;
	return (double)*out == number ? 1 : bad_value(option, optarg);
}

/* Which names there are is known later. */
static int take_op(struct bench_settings *settings)
{
	settings->op = optarg;
	for (const char *at = optarg;; at++) {
		size_t length = strcspn(at, ",");
		if (length == 0)
			return bad_value("op", optarg);
		at += length;
		if (*at == '\0')
			return 1;
	}
}

static int take_option(struct command *command, int option)
{
	struct bench_settings *settings = &command->settings;
	double number = 0;
	int64_t count = 0;

	switch (option) {
	case OPTION_QUICK:
		settings->effort = BENCH_QUICK;
		return 1;
	case OPTION_TINY:
		settings->effort = BENCH_TINY;
		return 1;
	case OPTION_OP:
		return take_op(settings);
	case OPTION_VARIANT:
		settings->variant = optarg;
		return 1;
	case OPTION_THREADS:
		if (!take_count("threads", 2, &count))
			return 0;
		settings->threads = (int32_t)count;
		return 1;
	case OPTION_TOKENS:
		return take_count("tokens", 1e9, &settings->tokens);
	case OPTION_SECONDS:
		return take_number("seconds", 0.0001, 3600, &settings->case_seconds);
	case OPTION_REFERENCE:
		return take_reference(settings);
	case OPTION_JSON:
		command->json = 1;
		return 1;
	case OPTION_CHILD:
		command->child_pipe = take_number("child", 3, 1e6, &number) ? (int)number : -1;
		return command->child_pipe >= 0;
	case OPTION_DEADLINE:
		return take_number("deadline", 0, 1e12, &settings->deadline);
	default:
		return 0; /* getopt has said what is wrong */
	}
}

/* 1 go on, 0 nothing more to do, -1 wrong. */
static int parse(struct command *command, int argc, char **argv)
{
	int option;

	command->arguments = argv;
	command->child_pipe = -1;
	command->settings.reference_copy = 8.0;
	command->settings.reference_read = 10.0;
	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (option == OPTION_HELP) {
			printf("%s", help);
			return 0;
		}
		if (!take_option(command, option))
			return -1;
	}
	if (optind < argc) {
		fprintf(stderr, "kvcanary-bench: '%s' is no option; see --help\n", argv[optind]);
		return -1;
	}
	return 1;
}

/* Buffers that are "cold" when it is their turn: twice the last level, within reason. */
static void complete_settings(struct bench_settings *settings, int64_t llc_bytes)
{
	static const double seconds[] = { 0.4, 0.08, 0.001 };

	settings->llc_bytes = llc_bytes;
	settings->cold_bytes = 2 * llc_bytes;
	if (settings->cold_bytes < (int64_t)64 << 20)
		settings->cold_bytes = (int64_t)64 << 20;
	if (settings->cold_bytes > (int64_t)1 << 30)
		settings->cold_bytes = (int64_t)1 << 30;
	if (settings->effort == BENCH_TINY)
		settings->cold_bytes = (int64_t)1 << 20; /* not cold, but quick */
	if (settings->case_seconds == 0)
		settings->case_seconds = seconds[settings->effort];
}

static void run_operations(struct bench *bench)
{
	bench_rope(bench);
	bench_scatter(bench);
	bench_plan(bench);
	bench_canary(bench);
}

/* ---- the child ---- */

static void send_row(void *context, const struct bench_row *row)
{
	const char *bytes = (const char *)row;
	size_t sent = 0;
	while (sent < sizeof *row) {
		ssize_t count = write(*(const int *)context, bytes + sent, sizeof *row - sent);
		if (count < 0 && errno != EINTR)
			exit(2);
		sent += count > 0 ? (size_t)count : 0;
	}
}

static int run_child(struct command *command)
{
	struct bench bench = { command->settings, NULL, 0, send_row, &command->child_pipe };
	size_t chosen;

	bench_check(kvc_cpu_chosen(&chosen));
	bench.variant = kvc_cpu_variant_at(chosen).name;
	run_operations(&bench);
	return 0;
}

/* ---- the parent ---- */

static void keep_row(void *context, const struct bench_row *row)
{
	struct bench_result *result = context;

	if (result->row_count % 64 == 0) {
		void *rows = realloc(result->rows, (result->row_count + 64) * sizeof *row);
		if (!rows) {
			fprintf(stderr, "kvcanary-bench: no memory\n");
			exit(2);
		}
		result->rows = rows;
	}
	result->rows[result->row_count++] = *row;
}

/* Replaces this process, which is a fresh fork. */
static void become_child(
        const struct command *command, const char *variant, double deadline, int pipe_end)
{
	char *arguments[64];
	char number[16], seconds[32];
	int count = 0;

	while (count < 58 && command->arguments[count]) {
		arguments[count] = command->arguments[count];
		count++;
	}
	(void)snprintf(number, sizeof number, "%d", pipe_end);
	char child_option[] = "--child";
	arguments[count++] = child_option;
	arguments[count++] = number;
	(void)snprintf(seconds, sizeof seconds, "%.3f", deadline);
	char deadline_option[] = "--deadline";
	arguments[count++] = deadline_option;
	arguments[count++] = seconds;
	arguments[count] = NULL;
	if (setenv("KVC_CPU", variant, 1) == 0)
		execv("/proc/self/exe", arguments);
	perror("kvcanary-bench: cannot run itself");
	_exit(2);
}

/* Returns 0 if the child could not do its work. */
static int run_variant(const struct command *command, const char *variant, double deadline,
        struct bench_result *result)
{
	int ends[2], status = 0;
	struct bench_row row;
	size_t have = 0;

	(void)fflush(NULL);
	if (pipe(ends) != 0)
		return 0;
	pid_t child = fork();
	if (child < 0)
		return 0;
	if (child == 0) {
		close(ends[0]);
		become_child(command, variant, deadline, ends[1]);
	}
	close(ends[1]);
	for (;;) {
		ssize_t count = read(ends[0], (char *)&row + have, sizeof row - have);
		if (count == 0 || (count < 0 && errno != EINTR))
			break;
		have += count > 0 ? (size_t)count : 0;
		if (have == sizeof row) {
			keep_row(result, &row);
			have = 0;
		}
	}
	close(ends[0]);
	return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void append(char *list, size_t list_bytes, const char *word, const char *more)
{
	size_t used = strlen(list);
	(void)snprintf(list + used, list_bytes - used, "%s%s%s", used ? ", " : "", word, more);
}

static void keep_case(void *context, const struct bench_row *row)
{
	if (strcmp(row->variant, "bare") != 0)
		keep_row(context, row);
}

static int filters_match(const struct bench *asked)
{
	struct bench_result cases;
	struct bench bench = { asked->settings, NULL, 1, keep_case, &cases };

	memset(&cases, 0, sizeof cases);
	bench.settings.op = bench.settings.variant = NULL;
	bench.settings.threads = 0;
	bench.settings.tokens = 0;
	for (size_t i = 0; i < kvc_cpu_variant_count(); i++) {
		bench.variant = kvc_cpu_variant_at(i).name;
		if (kvc_cpu_variant_at(i).supported)
			run_operations(&bench);
	}
	int match = bench_filters_match(asked, &cases);
	free(cases.rows);
	return match;
}

static void list_variants(struct bench_result *result, const struct bench *bench)
{
	for (size_t i = 0; i < kvc_cpu_variant_count(); i++) {
		kvc_cpu_variant variant = kvc_cpu_variant_at(i);
		if (!variant.supported)
			append(result->not_run, sizeof result->not_run, variant.name,
			        " (this machine cannot)");
		else if (!bench_wants_variant(bench, variant.name))
			append(result->not_run, sizeof result->not_run, variant.name,
			        " (not asked for)");
		else
			append(result->variants, sizeof result->variants, variant.name,
			        variant.chosen ? " (chosen)" : "");
	}
	append(result->not_run, sizeof result->not_run, "peers", " (make bench-peers)");
}

static void measure_ceilings(const struct command *command, struct bench_result *result)
{
	struct bench bench = { command->settings, NULL, 0, NULL, NULL };
	const struct bench_settings *settings = &command->settings;

	result->ceiling_count = bench_ceilings(&bench, result->ceilings);
	double copy = bench_ceiling_best(result->ceilings, result->ceiling_count, 1, 1);
	double read = bench_ceiling_best(result->ceilings, result->ceiling_count, 0, 1);
	result->reference_copy = settings->reference_copy;
	result->reference_read = settings->reference_read;
	result->counts =
	        copy >= 0.9 * settings->reference_copy && read >= 0.9 * settings->reference_read;
}

/* Variants share what is left of QUICK_SECONDS. */
#define QUICK_SECONDS 24.0

static double deadline_of(const struct command *command, double begin, size_t index)
{
	size_t left = 0;
	if (command->settings.effort == BENCH_FULL)
		return 0;
	for (size_t i = index; i < kvc_cpu_variant_count(); i++)
		left += kvc_cpu_variant_at(i).supported != 0;
	double now = bench_now();
	return now + (begin + QUICK_SECONDS - now) / (double)(left ? left : 1);
}

static int run_parent(const struct command *command, struct bench_result *result)
{
	struct bench bench = { command->settings, NULL, 0, NULL, NULL };
	int good = 1;
	double begin = bench_now();

	if (!filters_match(&bench))
		return 2;
	list_variants(result, &bench);
	if (!command->json)
		bench_print_head(stdout, result);
	measure_ceilings(command, result);
	for (size_t i = 0; i < kvc_cpu_variant_count() && good; i++) {
		kvc_cpu_variant variant = kvc_cpu_variant_at(i);
		if (variant.supported && bench_wants_variant(&bench, variant.name))
			good = run_variant(
			        command, variant.name, deadline_of(command, begin, i), result);
	}
	if (!good)
		return 2;
	measure_ceilings(command, result); /* again: noise may have passed */
	if (command->json)
		bench_print_json(stdout, result);
	else
		bench_print_table(stdout, result);
	return 0;
}

int main(int argc, char **argv)
{
	static struct bench_result result;
	struct command command;

	memset(&command, 0, sizeof command);
	int go_on = parse(&command, argc, argv);
	if (go_on <= 0)
		return go_on < 0 ? 2 : 0;
	bench_machine_read(&result.machine);
	complete_settings(&command.settings, result.machine.llc_bytes);
	if (command.child_pipe >= 0)
		return run_child(&command);
	int code = run_parent(&command, &result);
	free(result.rows);
	return code;
}
