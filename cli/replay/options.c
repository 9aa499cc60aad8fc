/* Reading, explaining and describing options; options.h says what each function promises. */
#include "replay/options.h"
#include "cli.h"
#include "replay/model.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum {
	OPT_REQUESTS = 256,
	OPT_SPEED,
	OPT_BLOCK_TOKENS,
	OPT_ABORT_EVERY,
	OPT_LAYERS,
	OPT_HEADS,
	OPT_QUERY_HEADS,
	OPT_HEAD_DIM,
	OPT_DTYPE,
	OPT_POOL_SLOTS,
	OPT_PAGE_SIZE,
	OPT_CHUNK,
	OPT_BATCH,
	OPT_MOVE_INTERVAL,
	OPT_CANARY,
	OPT_VERIFY,
	OPT_VERIFY_BUDGET,
	OPT_SWEEP_INTERVAL,
	OPT_RELEASE_CHECK,
	OPT_FINGERPRINT,
	OPT_STAMPING,
	OPT_EXPECTED_TOKENS,
	OPT_INPUT_CHECK,
	OPT_FINITE,
	OPT_FAULT,
	OPT_INJECTIONS,
	OPT_LIST_FAULTS,
	OPT_SEED,
	OPT_THREADS,
	OPT_JSON,
	OPT_HTML
};

static const struct cli_option own_options[] = {
	{ 0, NULL, NULL, "workload" },
	{ OPT_REQUESTS, "requests", "N|all", "requests taken from the trace (240)" },
	{ OPT_SPEED, "speed", "X",
	        "arrivals by the trace's clock, X times as fast; 0 = all at once (0)" },
	{ OPT_BLOCK_TOKENS, "block-tokens", "N",
	        "tokens of a trace block of 512; lengths scale with it (512)" },
	{ OPT_ABORT_EVERY, "abort-every", "N", "one client in N hangs up early; 0 = none (16)" },
	{ 0, NULL, NULL, "model" },
	{ OPT_LAYERS, "layers", "N", "layers with a K and a V pool each (4)" },
	{ OPT_HEADS, "heads", "N", "KV heads (2)" },
	{ OPT_QUERY_HEADS, "query-heads", "N", "query heads (2)" },
	{ OPT_HEAD_DIM, "head-dim", "N", "elements of a head, a multiple of 8 (64)" },
	{ OPT_DTYPE, "dtype", "TYPE", "f32, f16, bf16, or fp8_e4m3, fp8_e5m2 pools (bf16)" },
	{ 0, NULL, NULL, "engine" },
	{ OPT_POOL_SLOTS, "pool-slots", "N", "slots of the pool (163840)" },
	{ OPT_PAGE_SIZE, "page-size", "N", "slots of a page (16)" },
	{ OPT_CHUNK, "chunk", "N", "most tokens of a step (2048)" },
	{ OPT_BATCH, "batch", "N", "most requests that run at a time (16)" },
	{ OPT_MOVE_INTERVAL, "move-interval", "N", "steps between moves of a page; 0 = none (16)" },
	{ 0, NULL, NULL, "canary" },
	{ OPT_CANARY, "canary", "on|off", "off: stamp, but check nothing (the control run)" },
	{ OPT_VERIFY, "verify", "WHAT",
	        "bytes covered: none, partial (16 of each head), all (all)" },
	{ OPT_VERIFY_BUDGET, "verify-budget", "N|all",
	        "repeated reads checked in a step; first reads always are (2048)" },
	{ OPT_SWEEP_INTERVAL, "sweep-interval", "N",
	        "steps between sweeps of idle cached slots; 0 = none (32)" },
	{ OPT_RELEASE_CHECK, "release-check", "on|off",
	        "check all that a request holds before it goes (on)" },
	{ OPT_FINGERPRINT, "fingerprint", "NAME",
	        "xxh3 or splitmix, which is never stamped (xxh3)" },
	{ OPT_STAMPING, "stamping", "on|off", "fingerprints are made by the writer (on)" },
	{ OPT_EXPECTED_TOKENS, "expected-tokens", "on|off",
	        "compare with the trace's tokens (on)" },
	{ OPT_INPUT_CHECK, "input-check", "on|off", "compare each step's input as well (off)" },
	{ OPT_FINITE, "finite", "on|off", "look for NaN and infinity (on)" },
	{ 0, NULL, NULL, "faults" },
	{ OPT_FAULT, "fault", "NAMES|all", "inject these, separated by commas; may be repeated" },
	{ OPT_INJECTIONS, "injections", "N", "times that each is injected (8)" },
	{ OPT_LIST_FAULTS, "list-faults", NULL, "what there is, and what must see it" },
	{ 0, NULL, NULL, "run" },
	{ OPT_SEED, "seed", "N", "same seed, same result (1)" },
	{ OPT_THREADS, "threads", "N", "threads of the library; 0 = one per CPU (0)" },
	{ OPT_JSON, "json", NULL, "one JSON object on standard output, nothing else" },
	{ OPT_HTML, "html", "FILE", "write a page with timeline, pool maps and faults" },
	{ CLI_OPTION_HELP, "help", NULL, "this text" },
	CLI_OPTIONS_END,
};

static const struct cli_manual manual = {
	"replay",
	"TRACE [OPTION]...",
	"Run a serving trace (Mooncake JSONL or Azure CSV; - = standard input) through a small\n"
	"engine that writes its KV cache with kvc_rope_pool_fused and keeps a guard around every\n"
	"step; with --fault damage it on purpose and say what was found.",
	own_options,
	NULL,
	"0 clean, or every fault whose check is on was found at least 3 times,\n"
	"  missed never, expired in at most a quarter, and nothing else was reported\n"
	"1 violations without faults, or faults that were not found so\n"
	"2 could not run; 130 interrupted",
	"kvcanary replay data/mooncake_conversation_trace.jsonl\n"
	"kvcanary replay data/mooncake_conversation_trace.jsonl --fault all --html report.html\n"
	"kvcanary replay TRACE --fault bit-flip-k,lost-write --verify partial\n"
	"kvcanary replay TRACE --fault all --canary off",
};

void options_help(void)
{
	cli_print_manual(&manual);
}

/* ---- values ---- */

static int bad_value(const char *option, const char *value, const char *expected)
{
	return cli_fail("cli-option-bad-value", "option", option, "value", value, "expected",
	        expected, NULL);
}

static int read_switch(bool *out, const char *option, const char *value)
{
	bool on = strcmp(value, "on") == 0;

	if (!on && strcmp(value, "off") != 0)
		return bad_value(option, value, "on or off");
	*out = on;
	return 0;
}

static int read_count_or_all(int64_t *out, const char *option, const char *value, int64_t least)
{
	char expected[96], *end;
	long long number;

	if (strcmp(value, "all") == 0) {
		*out = -1;
		return 0;
	}
	errno = 0;
	number = strtoll(value, &end, 10);
	if (end != value && *end == '\0' && errno == 0 && number >= least && number <= 1 << 30) {
		*out = number;
		return 0;
	}
	snprintf(expected, sizeof(expected), "a whole number from %lld to %d, or all",
	        (long long)least, 1 << 30);
	return bad_value(option, value, expected);
}

static int read_int32(
        int32_t *out, const char *option, const char *value, int64_t least, int64_t most)
{
	int64_t number = 0;
	int code = cli_read_int(&number, option, value, least, most);

	if (!code)
		*out = (int32_t)number;
	return code;
}

static int read_speed(double *out, const char *value)
{
	char *end;
	double number = strtod(value, &end);

	if (end == value || *end != '\0' || !isfinite(number) || number < 0 || number > 1e9)
		return bad_value("--speed", value, "a number from 0 to 1e9");
	*out = number;
	return 0;
}

static int read_dtype(struct engine_config *config, const char *value)
{
	static const char *const names[] = { "f32", "f16", "bf16", "fp8_e4m3", "fp8_e5m2" };
	const kvc_dtype dtypes[] = { KVC_FLOAT32, KVC_FLOAT16, KVC_BFLOAT16, KVC_FLOAT8_E4M3FN,
		KVC_FLOAT8_E5M2 };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (strcmp(value, names[i]) != 0)
			continue;
		config->pool_dtype = dtypes[i];
		config->dtype = dtypes[i].bits == 8 ? KVC_BFLOAT16 : dtypes[i];
		return 0;
	}
	return bad_value("--dtype", value, "f32, f16, bf16, fp8_e4m3 or fp8_e5m2");
}

static int read_coverage(struct engine_config *config, const char *value)
{
	static const char *const names[] = { "none", "partial", "all" };

	for (int32_t i = KVC_COVERAGE_NONE; i <= KVC_COVERAGE_ALL; i++) {
		if (strcmp(value, names[i]) != 0)
			continue;
		config->coverage = i;
		return 0;
	}
	return bad_value("--verify", value, "none, partial or all");
}

static int read_fingerprint(struct engine_config *config, const char *value)
{
	if (strcmp(value, "xxh3") == 0)
		config->fingerprint = KVC_FINGERPRINT_XXH3;
	else if (strcmp(value, "splitmix") == 0)
		config->fingerprint = KVC_FINGERPRINT_SPLITMIX;
	else
		return bad_value("--fingerprint", value, "xxh3 or splitmix");
	return 0;
}

/* ---- faults ---- */

static const char *fault_name(size_t index)
{
	return index < (size_t)fault_kind_count ? fault_kinds[index].name : NULL;
}

static int fail_fault(const char *name, size_t name_bytes)
{
	char word[64], nearest[64];

	snprintf(word, sizeof(word), "%.*s", (int)(name_bytes < 60 ? name_bytes : 60), name);
	return cli_fail("replay-unknown-fault", "name", word, "nearest",
	        cli_suggest(nearest, sizeof(nearest), word, fault_name), NULL);
}

static int read_faults(struct replay_options *out, const char *names)
{
	while (*names) {
		size_t name_bytes = strcspn(names, ",");
		int32_t found = fault_find(names, name_bytes);
		bool all = name_bytes == 3 && memcmp(names, "all", 3) == 0;
		if (found < 0 && !all)
			return fail_fault(names, name_bytes);
		for (int32_t i = 0; i < fault_kind_count; i++)
			if (all || i == found)
				out->faults[i] = true;
		names += name_bytes;
		names += *names == ',';
	}
	return 0;
}

/* ---- the command line ---- */

static int read_workload(struct replay_options *out, int id, const char *name, const char *value)
{
	struct engine_config *config = &out->engine;

	switch (id) {
	case OPT_REQUESTS:
		return read_count_or_all(&out->requests, name, value, 1);
	case OPT_SPEED:
		return read_speed(&config->speed, value);
	case OPT_BLOCK_TOKENS:
		return cli_read_int(&config->block_tokens, name, value, 1, TRACE_BLOCK_TOKENS);
	case OPT_ABORT_EVERY:
		return cli_read_int(&config->abort_every, name, value, 0, 1 << 30);
	case OPT_LAYERS:
		return read_int32(&config->layers, name, value, 1, ENGINE_LAYERS_MAX);
	case OPT_HEADS:
		return cli_read_int(&config->kv_heads, name, value, 1, 1024);
	case OPT_QUERY_HEADS:
		return cli_read_int(&config->query_heads, name, value, 1, 1024);
	case OPT_HEAD_DIM:
		return cli_read_int(&config->head_dim, name, value, 8, KVC_ROTARY_DIM_MAX);
	case OPT_DTYPE:
		return read_dtype(config, value);
	case OPT_POOL_SLOTS:
		return cli_read_int(&config->pool_slots, name, value, 1, 1 << 30);
	case OPT_PAGE_SIZE:
		return read_int32(&config->page_slots, name, value, 1, TRACE_BLOCK_TOKENS);
	case OPT_CHUNK:
		return cli_read_int(&config->chunk_tokens, name, value, 1, 1 << 20);
	case OPT_BATCH:
		return read_int32(&config->batch_rows, name, value, 1, 4096);
	default:
		return cli_read_int(&config->move_interval, name, value, 0, 1 << 30);
	}
}

static int read_canary(struct replay_options *out, int id, const char *name, const char *value)
{
	struct engine_config *config = &out->engine;

	switch (id) {
	case OPT_CANARY:
		return read_switch(&config->checks, name, value);
	case OPT_VERIFY:
		return read_coverage(config, value);
	case OPT_VERIFY_BUDGET:
		return read_count_or_all(&config->verify_budget, name, value, 0);
	case OPT_SWEEP_INTERVAL:
		return cli_read_int(&config->sweep_interval, name, value, 0, 1 << 30);
	case OPT_RELEASE_CHECK:
		return read_switch(&config->release_check, name, value);
	case OPT_FINGERPRINT:
		return read_fingerprint(config, value);
	case OPT_STAMPING:
		return read_switch(&config->stamping, name, value);
	case OPT_EXPECTED_TOKENS:
		return read_switch(&config->expected_tokens, name, value);
	case OPT_INPUT_CHECK:
		return read_switch(&config->input_check, name, value);
	default:
		return read_switch(&config->finite, name, value);
	}
}

static int read_run(struct replay_options *out, int id, const char *name, const char *value)
{
	int64_t number = 0;
	int code = 0;

	switch (id) {
	case OPT_FAULT:
		return read_faults(out, value);
	case OPT_INJECTIONS:
		return cli_read_int(&out->injections, name, value, 1, 1000);
	case OPT_SEED:
		code = cli_read_int(&number, name, value, 0, INT64_MAX);
		out->engine.seed = (uint64_t)number;
		return code;
	case OPT_THREADS:
		return cli_read_int(&out->threads, name, value, 0, 1024);
	case OPT_JSON:
		out->json = true;
		return 0;
	default:
		out->html_path = value;
		return 0;
	}
}

static int read_option(struct replay_options *out, int id, const char *value)
{
	char name[48] = "--";

	for (const struct cli_option *row = own_options; row->help; row++)
		if (row->id == id)
			snprintf(name, sizeof(name), "--%s", row->name);
	if (id < OPT_CANARY)
		return read_workload(out, id, name, value);
	if (id < OPT_FAULT)
		return read_canary(out, id, name, value);
	return read_run(out, id, name, value);
}

static void set_defaults(struct replay_options *out)
{
	*out = (struct replay_options){ .requests = 240, .injections = 8 };
	out->engine = (struct engine_config){ .block_tokens = TRACE_BLOCK_TOKENS,
		.abort_every = 16,
		.layers = 4,
		.query_heads = 2,
		.kv_heads = 2,
		.head_dim = 64,
		.dtype = KVC_BFLOAT16,
		.pool_dtype = KVC_BFLOAT16,
		.pool_slots = 163840,
		.page_slots = 16,
		.chunk_tokens = 2048,
		.batch_rows = 16,
		.move_interval = 16,
		.checks = true,
		.coverage = KVC_COVERAGE_ALL,
		.verify_budget = 2048,
		.sweep_interval = 32,
		.fingerprint = KVC_FINGERPRINT_XXH3,
		.stamping = true,
		.expected_tokens = true,
		.finite = true,
		.release_check = true,
		.seed = 1 };
}

/* Options that have to fit each other. */
static int check_together(struct replay_options *out)
{
	struct engine_config *config = &out->engine;
	char value[32], expected[64];

	if (config->head_dim % 8) {
		snprintf(value, sizeof(value), "%lld", (long long)config->head_dim);
		return bad_value("--head-dim", value, "a multiple of 8");
	}
	if (config->block_tokens % config->page_slots) {
		snprintf(value, sizeof(value), "%lld", (long long)config->block_tokens);
		snprintf(expected, sizeof(expected), "a multiple of the page size, %d",
		        (int)config->page_slots);
		return bad_value("--block-tokens", value, expected);
	}
	if (config->pool_slots % config->page_slots) {
		snprintf(value, sizeof(value), "%lld", (long long)config->pool_slots);
		snprintf(expected, sizeof(expected), "a multiple of the page size, %d",
		        (int)config->page_slots);
		return bad_value("--pool-slots", value, expected);
	}
	if (config->chunk_tokens < config->batch_rows) {
		snprintf(value, sizeof(value), "%lld", (long long)config->chunk_tokens);
		snprintf(expected, sizeof(expected), "at least the batch, %d",
		        (int)config->batch_rows);
		return bad_value("--chunk", value, expected);
	}
	/* Only xxh3 is a sum that each layer's write can add to. */
	if (config->fingerprint == KVC_FINGERPRINT_SPLITMIX)
		config->stamping = false;
	for (int32_t i = 0; i < fault_kind_count; i++)
		out->fault_count += out->faults[i];
	return 0;
}

enum options_answer options_read(struct replay_options *out, int argc, char **argv)
{
	const char *value;
	int id;

	set_defaults(out);
	while ((id = cli_next_option(&manual, argc, argv, &value)) >= 0) {
		if (id == CLI_OPTION_HELP)
			return OPTIONS_HELP;
		if (id == OPT_LIST_FAULTS)
			return OPTIONS_LIST;
		if (read_option(out, id, value))
			return OPTIONS_WRONG;
	}
	if (id == CLI_BAD_OPTION)
		return OPTIONS_WRONG;
	if (optind != argc - 1) {
		char count[16];
		snprintf(count, sizeof(count), "%d", argc - optind);
		cli_fail("replay-one-trace", "count", count, NULL);
		return OPTIONS_WRONG;
	}
	out->trace_path = argv[optind];
	return check_together(out) ? OPTIONS_WRONG : OPTIONS_RUN;
}

/* ---- describing ---- */

const char *options_mode(const struct engine_config *config)
{
	if (!config->checks)
		return "off";
	return config->coverage == KVC_COVERAGE_ALL       ? "all"
	       : config->coverage == KVC_COVERAGE_PARTIAL ? "partial"
	                                                  : "none";
}

const char *options_missing(const struct engine_config *config, int32_t needs)
{
	if (!config->checks)
		return "--canary on";
	if ((needs & NEED_ALL_BYTES) && config->coverage != KVC_COVERAGE_ALL)
		return "--verify all";
	if ((needs & NEED_BYTES) && config->coverage == KVC_COVERAGE_NONE)
		return "--verify partial";
	if ((needs & NEED_STAMPING) && !config->stamping)
		return config->fingerprint == KVC_FINGERPRINT_SPLITMIX ? "--fingerprint xxh3"
		                                                       : "--stamping on";
	if ((needs & NEED_TOKENS) && !config->expected_tokens)
		return "--expected-tokens on";
	if ((needs & NEED_FINITE) && !config->finite)
		return "--finite on";
	if ((needs & NEED_REREADS) && !config->release_check && config->verify_budget == 0)
		return "--release-check on";
	if ((needs & NEED_LAYERS) && config->layers < 2)
		return "--layers 2";
	return "";
}

const char *options_number(char out[NUMBER_BYTES], int64_t number)
{
	char digits[24];
	int count = snprintf(digits, sizeof(digits), "%lld", (long long)number), used = 0;

	for (int i = 0; i < count; i++) {
		if (i > 0 && digits[i - 1] != '-' && (count - i) % 3 == 0)
			out[used++] = ',';
		out[used++] = digits[i];
	}
	out[used] = '\0';
	return out;
}

static void add_setting(struct replay_result *out, const char *name, const char *format, ...)
        __attribute__((format(printf, 3, 4)));

static void add_setting(struct replay_result *out, const char *name, const char *format, ...)
{
	struct replay_setting *setting = &out->settings[out->setting_count++];
	va_list values;

	setting->name = name;
	va_start(values, format);
	vsnprintf(setting->value, sizeof(setting->value), format, values);
	va_end(values);
}

static const char *dtype_name(kvc_dtype dtype)
{
	switch (dtype.code) {
	case KVC_CODE_BFLOAT:
		return "bfloat16";
	case KVC_CODE_FLOAT8_E4M3FN:
		return "fp8 e4m3 (model in bfloat16)";
	case KVC_CODE_FLOAT8_E5M2:
		return "fp8 e5m2 (model in bfloat16)";
	default:
		return dtype.bits == 32 ? "float32" : "float16";
	}
}

void options_describe(struct replay_result *out, const struct replay_options *options)
{
	const struct engine_config *c = &options->engine;
	char a[NUMBER_BYTES];

	add_setting(out, "trace", "%s", options->trace_path);
	add_setting(out, "requests", "%s", options_number(a, c->request_count));
	if (c->speed > 0)
		add_setting(out, "arrivals", "by the trace's clock, %g times as fast", c->speed);
	else
		add_setting(out, "arrivals", "all at once");
	add_setting(out, "tokens of a trace block", "%lld%s", (long long)c->block_tokens,
	        c->block_tokens == TRACE_BLOCK_TOKENS ? " (real lengths)" : " (scaled from 512)");
	add_setting(out, "layers", "%d", (int)c->layers);
	add_setting(out, "KV heads, query heads, head dim", "%lld, %lld, %lld",
	        (long long)c->kv_heads, (long long)c->query_heads, (long long)c->head_dim);
	add_setting(out, "dtype", "%s", dtype_name(c->pool_dtype));
	add_setting(out, "pool slots", "%s", options_number(a, c->pool_slots));
	add_setting(out, "page size", "%d", (int)c->page_slots);
	add_setting(out, "chunk", "%lld tokens", (long long)c->chunk_tokens);
	add_setting(out, "batch", "%d requests", (int)c->batch_rows);
	add_setting(out, "page moves", "every %lld steps", (long long)c->move_interval);
	add_setting(out, "canary", "%s", c->checks ? "on" : "off (stamps only)");
	add_setting(out, "bytes verified", "%s", options_mode(c));
	if (c->verify_budget < 0)
		add_setting(out, "verify budget", "every read");
	else
		add_setting(out, "verify budget", "%s repeated reads a step",
		        options_number(a, c->verify_budget));
	add_setting(out, "sweep of idle slots", "every %lld steps", (long long)c->sweep_interval);
	add_setting(out, "check at release", "%s", c->release_check ? "on" : "off");
	add_setting(out, "fingerprint", "%s, %s",
	        c->fingerprint == KVC_FINGERPRINT_XXH3 ? "xxh3" : "splitmix",
	        c->stamping ? "stamped by the writer" : "made after the step");
	add_setting(out, "expected tokens", "%s", c->expected_tokens ? "on" : "off");
	add_setting(out, "input check", "%s", c->input_check ? "on" : "off");
	add_setting(out, "finite check", "%s", c->finite ? "on" : "off");
	add_setting(out, "seed", "%llu", (unsigned long long)c->seed);
	add_setting(out, "threads", "%d", (int)kvc_get_num_threads());
}
