/* kvcanary replay: a serving trace through the embedded engine, with or without faults. */
#include "cli.h"
#include "replay/engine.h"
#include "replay/faults.h"
#include "replay/options.h"
#include "replay/outcome.h"
#include "replay/recorder.h"
#include "replay/result.h"
#include "replay/taint.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXIT_INTERRUPTED 130

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number)
{
	(void)signal_number;
	interrupted = 1;
}

/* All that one replay holds. */
struct replay {
	struct replay_options options;
	struct trace trace;
	struct engine engine;
	struct taint taint;
	struct injector injector;
	struct recorder recorder;
	struct replay_result result;
};

/* ---- what is said while it runs ---- */

static void print_first_line(const struct replay *replay)
{
	const struct engine_config *config = &replay->options.engine;
	char a[NUMBER_BYTES], b[NUMBER_BYTES], c[NUMBER_BYTES];

	printf("%s of %s requests, %lld tokens a block of 512, %d layers, K row %lld bytes, %s "
	       "slots",
	        options_number(a, replay->result.requests),
	        options_number(b, replay->result.requests_in_trace),
	        (long long)config->block_tokens, (int)config->layers,
	        (long long)replay->engine.row_bytes, options_number(c, config->pool_slots));
	if (replay->options.fault_count > 0)
		printf(", %d faults %lld times each", (int)replay->options.fault_count,
		        (long long)replay->options.injections);
	printf("\n");
	fflush(stdout);
}

/* One line that is written over and over, on a terminal only. */
static void print_progress(const struct replay *replay, double begin, bool last)
{
	static double shown;
	const struct engine *engine = &replay->engine;
	double now = engine_now();
	char a[NUMBER_BYTES], b[NUMBER_BYTES];

	if (!isatty(STDERR_FILENO) || (!last && now - shown < 0.2))
		return;
	shown = now;
	if (last) {
		fprintf(stderr, "\r\033[K");
		return;
	}
	fprintf(stderr, "\r\033[K%lld of %lld requests, step %s, %s tokens, %d faults, %.0f s",
	        (long long)engine->done, (long long)engine->config.request_count,
	        options_number(a, engine->step), options_number(b, engine->counts.tokens_written),
	        (int)replay->taint.injection_count, now - begin);
	fflush(stderr);
}

/* ---- opening and running ---- */

static int open_replay(struct replay *replay)
{
	struct replay_options *options = &replay->options;
	int32_t injections = options->fault_count * (int32_t)options->injections;
	int code;

	if (kvc_set_num_threads((int32_t)options->threads) != KVC_OK)
		return cli_fail_library();
	if (options->html_path &&
	        ((code = cli_refuse_overwrite(options->html_path, options->trace_path)) != 0 ||
	                (code = replay_html_check(options->html_path)) != 0))
		return code;
	code = trace_open(&replay->trace, options->trace_path);
	if (code)
		return code;
	options->engine.request_count =
	        options->requests < 0 || options->requests > replay->trace.count
	                ? replay->trace.count
	                : options->requests;
	code = engine_open(&replay->engine, &options->engine, &replay->trace);
	if (code)
		return code;
	if (!taint_open(&replay->taint, &replay->engine, injections) ||
	        !injector_open(&replay->injector, &replay->engine, &replay->taint, options->faults,
	                (int32_t)options->injections, options->engine.seed) ||
	        !recorder_open(&replay->recorder, &replay->engine, &replay->taint, &replay->result))
		return engine_fail_memory(&options->engine);
	engine_add_hook(&replay->engine, taint_watch, &replay->taint);
	if (options->fault_count > 0)
		engine_add_hook(&replay->engine, injector_watch, &replay->injector);
	engine_add_hook(&replay->engine, recorder_watch, &replay->recorder);
	return 0;
}

static void close_replay(struct replay *replay)
{
	replay_result_close(&replay->result);
	recorder_close(&replay->recorder);
	injector_close(&replay->injector);
	taint_close(&replay->taint);
	engine_close(&replay->engine);
	trace_close(&replay->trace);
}

static void describe(struct replay *replay)
{
	struct replay_result *result = &replay->result;
	const struct engine_config *config = &replay->options.engine;

	result->trace_path = replay->options.trace_path;
	result->html_path = replay->options.html_path;
	result->requests = config->request_count;
	result->requests_in_trace = replay->trace.count;
	result->mode = options_mode(config);
	result->fingerprint = config->fingerprint == KVC_FINGERPRINT_XXH3 ? "xxh3" : "splitmix";
	result->seed = config->seed;
	result->threads = kvc_get_num_threads();
	result->layers = config->layers;
	result->k_row_bytes = replay->engine.row_bytes;
	result->slot_bytes = 2 * config->layers * replay->engine.row_bytes;
	options_describe(result, &replay->options);
}

static void collect(struct replay *replay)
{
	struct replay_result *result = &replay->result;
	const struct engine *engine = &replay->engine;
	const struct engine_counts *counts = &engine->counts;

	result->steps = engine->step;
	result->requests_finished = counts->finished;
	result->tokens_written = counts->tokens_written;
	result->bytes_written = counts->tokens_written * result->slot_bytes;
	result->prefill_tokens = counts->prefill_tokens;
	result->decode_tokens = counts->decode_tokens;
	result->evictions = counts->evictions;
	result->preemptions = counts->preemptions;
	result->aborts = counts->aborts;
	result->restarts = counts->restarts;
	result->prefill_chunks = counts->prefill_chunks;
	result->multi_chunk_requests = counts->multi_chunk_requests;
	result->prefix_hit_tokens = counts->prefix_hit_tokens;
	result->pages_moved = counts->pages_moved;
	result->sweeps = counts->sweeps;
	result->canary_seconds = engine->canary_seconds;
	result->rope_seconds = engine->rope_seconds;
	result->model_seconds = engine->model_seconds;
	result->statistics.struct_bytes = sizeof(result->statistics);
	if (kvc_guard_stats(engine->guard, &result->statistics) != KVC_OK)
		result->statistics = (kvc_guard_statistics){ 0 };
	result->violations = result->statistics.violations;
}

static void run_steps(struct replay *replay)
{
	struct engine *engine = &replay->engine;
	double begin = engine_now();

	while (!interrupted && !engine_done(engine) && engine_step(engine))
		print_progress(replay, begin, false);
	print_progress(replay, begin, true);
	replay->result.seconds = engine_now() - begin;
	replay->result.interrupted = interrupted;
	replay->result.failed = engine->failed;
	recorder_finish(&replay->recorder, engine);
}

static int print_result(struct replay *replay)
{
	struct replay_result *result = &replay->result;
	int code = 0;

	if (result->html_path)
		code = replay_html_save(result->html_path, result);
	if (replay->options.json) {
		if (replay_json_write(stdout, result) != 0)
			return cli_fail("cli-output-failed", "reason", strerror(errno), NULL);
	} else {
		replay_table_print(stdout, result, isatty(STDOUT_FILENO));
	}
	if (code || result->failed)
		return CLI_CANNOT;
	return result->interrupted ? EXIT_INTERRUPTED : result->exit_code;
}

static int run_replay(struct replay *replay)
{
	struct sigaction action = { .sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND };
	struct sigaction before;
	int code = open_replay(replay);

	if (code)
		return code;
	describe(replay);
	if (!replay->options.json)
		print_first_line(replay);
	interrupted = 0;
	/* The second Ctrl-C ends the process at once. */
	sigaction(SIGINT, &action, &before);
	run_steps(replay);
	sigaction(SIGINT, &before, NULL);
	collect(replay);
	outcome_fill(&replay->result, &replay->options, &replay->taint);
	return print_result(replay);
}

int cli_replay(int argc, char **argv)
{
	struct replay *replay;
	enum options_answer answer;
	int code = CLI_GOOD;

	replay = calloc(1, sizeof(*replay));
	if (!replay)
		return engine_fail_memory(&(struct engine_config){ 0 });
	answer = options_read(&replay->options, argc, argv);
	if (answer == OPTIONS_HELP)
		options_help();
	else if (answer == OPTIONS_LIST)
		outcome_list_faults(stdout);
	else if (answer == OPTIONS_WRONG)
		code = CLI_CANNOT;
	else
		code = run_replay(replay);
	close_replay(replay);
	free(replay);
	return code;
}
