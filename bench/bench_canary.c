/*
 * write, verify, scan_finite and fingerprints: one pool of one source whose rows lie in random slot
 * order, stamped by requests of equal length. A pass over the pool is one call; passes go on until
 * the case's time is over, so that a pool of bounded size stands for many more slots.
 */
#include "bench.h"

#include <string.h>

struct canary_world {
	int64_t slots, row_bytes;
	int64_t requests; /* each slots / requests tokens long; rows 1 .. requests of the table */
	unsigned char *pool;
	kvc_record *records;
	int64_t *order, *tokens, *positions;
	int64_t *request_rows, *zeros, *lengths;
	int32_t *table;
	void *memory; /* of the two plans */
	size_t write_bytes, verify_bytes;
	kvc_plan write_plan, verify_plan;
	kvc_source source;
	kvc_group group;
	int64_t *ring_rows, consumed;
	kvc_counters counters;
	kvc_ring ring;
	int32_t threads;
	uint64_t sums[64];
};

/* ---- the calls ---- */

static void requests_of(const struct canary_world *w, kvc_tensor tensors[3], int64_t *count,
        const int64_t *prefix, const int64_t *extend, kvc_requests *out)
{
	kvc_requests requests = KVC_REQUESTS_INIT;

	tensors[0] = kvc_tensor_make(w->request_rows, KVC_INT64, 1, count);
	tensors[1] = kvc_tensor_make((void *)(uintptr_t)prefix, KVC_INT64, 1, count);
	tensors[2] = kvc_tensor_make((void *)(uintptr_t)extend, KVC_INT64, 1, count);
	requests.req_pool_indices = &tensors[0];
	requests.prefix_lens = &tensors[1];
	requests.extend_seq_lens = &tensors[2];
	*out = requests;
}

static void plan_run(
        struct canary_world *w, kvc_plan *plan, const int64_t *prefix, const int64_t *extend)
{
	kvc_tensor tensors[3];
	kvc_requests requests;
	int64_t count = w->requests;
	int64_t table_shape[] = { w->requests + 1, w->slots / w->requests };
	kvc_tensor table = kvc_tensor_make(w->table, KVC_INT32, 2, table_shape);
	kvc_plan_args args = KVC_PLAN_ARGS_INIT;

	requests_of(w, tensors, &count, prefix, extend, &requests);
	args.requests = &requests;
	args.req_to_token = &table;
	bench_check(kvc_canary_plan(plan, &args, NULL));
}

static void plan_call(void *context, int64_t turn)
{
	struct canary_world *w = context;
	(void)turn;
	plan_run(w, &w->verify_plan, w->lengths, w->zeros);
}

static void write_call(void *context, int64_t turn)
{
	struct canary_world *w = context;
	int64_t count = w->slots;
	kvc_tensor tokens = kvc_tensor_make(w->tokens, KVC_INT64, 1, &count);
	kvc_tensor positions = kvc_tensor_make(w->positions, KVC_INT64, 1, &count);
	kvc_tensor slots = kvc_tensor_make(w->order, KVC_INT64, 1, &count);
	kvc_write_args args = KVC_WRITE_ARGS_INIT;

	(void)turn;
	args.group = &w->group, args.plan = &w->write_plan;
	args.tokens = &tokens, args.positions = &positions, args.slots = &slots;
	args.ring = &w->ring;
	bench_check(kvc_canary_write(&args, NULL));
}

static void verify_call(void *context, int64_t turn)
{
	struct canary_world *w = context;
	kvc_verify_args args = KVC_VERIFY_ARGS_INIT;

	(void)turn;
	args.group = &w->group, args.plan = &w->verify_plan;
	args.ring = &w->ring;
	bench_check(kvc_canary_verify(&args, NULL));
	if (w->counters.violations != 0) {
		fprintf(stderr, "kvcanary-bench: verify found damage in a sound pool\n");
		bench_check(KVC_E_STATE);
	}
}

static void scan_call(void *context, int64_t turn)
{
	struct canary_world *w = context;
	int64_t count = w->slots;
	kvc_tensor slots = kvc_tensor_make(w->order, KVC_INT64, 1, &count);
	kvc_finite_scan scan;

	(void)turn;
	bench_check(kvc_canary_scan_finite(&scan, &w->group, &slots, NULL));
}

/* The rows in the same order, summed up instead of hashed. */
static void rows_part(void *context, int32_t index)
{
	struct canary_world *w = context;
	int64_t begin = bench_piece(w->slots, index, w->threads);
	int64_t end = bench_piece(w->slots, index + 1, w->threads);
	uint64_t sum = 0;

	for (int64_t i = begin; i < end; i++) {
		int64_t ahead = w->row_bytes < 1024 ? 2048 / w->row_bytes : 1;
		int64_t next = i + ahead < end ? i + ahead : i;
		int64_t touched = i + 2 * ahead < end ? i + 2 * ahead : i;
		/* A first access to a page waits for its address to be translated. */
		__builtin_prefetch(w->pool + w->order[touched] * w->row_bytes);
		sum += bench_sum(w->pool + w->order[i] * w->row_bytes, (size_t)w->row_bytes,
		        w->pool + w->order[next] * w->row_bytes);
	}
	w->sums[index] += sum;
}

/* The same with what else verify must read: the record of each slot and the arrays of the plan. */
static void entries_part(void *context, int32_t index)
{
	struct canary_world *w = context;
	const kvc_plan *plan = &w->verify_plan;
	int64_t begin = bench_piece(w->slots, index, w->threads);
	int64_t end = bench_piece(w->slots, index + 1, w->threads);
	uint64_t sum = 0; /* may wrap */

	rows_part(w, index);
	for (int64_t i = begin; i < end; i++) {
		const kvc_record *record = &w->records[plan->verify_slot_indices[i]];
		__builtin_prefetch(
		        &w->records[plan->verify_slot_indices[i + 32 < end ? i + 32 : i]]);
		sum += (uint64_t)plan->verify_expected_tokens[i] +
		       (uint64_t)plan->verify_expected_positions[i] +
		       (uint64_t)plan->verify_prev_slot_indices[i] +
		       (uint64_t)plan->verify_request[i];
		sum += (uint64_t)record->token + (uint64_t)record->position +
		       (record->prev_hash ^ record->fingerprint);
	}
	w->sums[index] += sum;
}

static void entries_call(void *context, int64_t turn)
{
	struct canary_world *w = context;
	(void)turn;
	if (w->threads > 1)
		bench_parallel(w->threads, entries_part, w);
	else
		entries_part(w, 0);
}

static void rows_call(void *context, int64_t turn)
{
	struct canary_world *w = context;
	(void)turn;
	if (w->threads > 1)
		bench_parallel(w->threads, rows_part, w);
	else
		rows_part(w, 0);
}

/* What the plan writes, without its checks. */
static void plan_bare_call(void *context, int64_t turn)
{
	struct canary_world *w = context;
	kvc_plan *plan = &w->verify_plan;
	int64_t length = w->slots / w->requests;

	(void)turn;
	for (int64_t r = 0; r < w->requests; r++) {
		const int32_t *row = w->table + (r + 1) * length;
		for (int64_t p = 0, i = r * length; p < length; p++, i++) {
			plan->verify_slot_indices[i] = row[p];
			plan->verify_expected_tokens[i] = -1;
			plan->verify_expected_positions[i] = p;
			plan->verify_prev_slot_indices[i] = p > 0 ? row[p - 1] : -1;
			plan->verify_request[i] = (int32_t)r;
		}
	}
}

/* ---- the world ---- */

static void make_requests(struct canary_world *w)
{
	int64_t length = w->slots / w->requests;

	for (int64_t r = 0; r < w->requests; r++) {
		w->request_rows[r] = r + 1;
		w->zeros[r] = 0;
		w->lengths[r] = length;
	}
	for (int64_t i = 0; i < w->slots; i++) {
		w->positions[i] = i % length;
		w->table[length + i] = (int32_t)w->order[i];
	}
	plan_run(w, &w->write_plan, w->zeros, w->lengths);
	plan_run(w, &w->verify_plan, w->lengths, w->zeros);
}

static void make_plans(struct canary_world *w)
{
	w->write_bytes = (kvc_plan_bytes(0, w->requests) + 63) / 64 * 64;
	w->verify_bytes = kvc_plan_bytes(w->slots, w->requests);
	w->memory = bench_alloc(w->write_bytes + w->verify_bytes);
	bench_check(kvc_plan_bind(&w->write_plan, w->memory, KVC_HOST, 0, w->requests));
	bench_check(kvc_plan_bind(&w->verify_plan, (char *)w->memory + w->write_bytes, KVC_HOST,
	        w->slots, w->requests));
}

#define RING_ROWS 16

static void make_pool(struct canary_world *w)
{
	int64_t pool_shape[] = { w->slots, 1, w->row_bytes / 2 };
	kvc_group group = KVC_GROUP_INIT;
	kvc_ring ring = KVC_RING_INIT;

	w->pool = bench_alloc((size_t)(w->slots * w->row_bytes));
	bench_fill(w->pool, (size_t)(w->slots * w->row_bytes), KVC_BFLOAT16, 3);
	kvc_tensor pool = kvc_tensor_make(w->pool, KVC_BFLOAT16, 3, pool_shape);
	bench_check(kvc_source_from_pool(&w->source, &pool, 0));
	w->records = bench_alloc((size_t)w->slots * sizeof *w->records);
	memset(w->records, 0, (size_t)w->slots * sizeof *w->records);
	group.records = w->records;
	group.record_count = w->slots;
	group.sources = &w->source;
	group.source_count = 1;
	w->group = group;
	w->ring_rows = bench_alloc(RING_ROWS * 16 * 8);
	memset(w->ring_rows, 0, RING_ROWS * 16 * 8);
	ring.rows = w->ring_rows;
	ring.capacity = RING_ROWS;
	ring.consumed = &w->consumed;
	ring.counters = &w->counters;
	w->ring = ring;
}

static void make_canary(const struct bench *bench, struct canary_world *w, int64_t slots,
        int64_t row_bytes, int64_t requests)
{
	uint64_t seed = 5;

	memset(w, 0, sizeof *w);
	w->slots = slots;
	w->row_bytes = row_bytes;
	w->requests = requests;
	if (bench->names_only)
		return;
	w->order = bench_alloc((size_t)slots * 8);
	w->tokens = bench_alloc((size_t)slots * 8);
	w->positions = bench_alloc((size_t)slots * 8);
	w->request_rows = bench_alloc((size_t)requests * 8);
	w->zeros = bench_alloc((size_t)requests * 8);
	w->lengths = bench_alloc((size_t)requests * 8);
	w->table = bench_alloc((size_t)(slots + slots / requests) * 4);
	bench_permutation(w->order, slots, 9);
	for (int64_t i = 0; i < slots; i++)
		w->tokens[i] = (int64_t)(bench_random(&seed) % 128256);
	make_pool(w);
	make_plans(w);
	make_requests(w);
}

static void free_canary(struct canary_world *w)
{
	size_t slots = (size_t)w->slots, requests = (size_t)w->requests;

	bench_free(w->pool, slots * (size_t)w->row_bytes);
	bench_free(w->records, slots * sizeof *w->records);
	bench_free(w->order, slots * 8);
	bench_free(w->tokens, slots * 8);
	bench_free(w->positions, slots * 8);
	bench_free(w->request_rows, requests * 8);
	bench_free(w->zeros, requests * 8);
	bench_free(w->lengths, requests * 8);
	bench_free(w->table, (slots + slots / requests) * 4);
	bench_free(w->memory, w->write_bytes + w->verify_bytes);
	bench_free(w->ring_rows, RING_ROWS * 16 * 8);
}

/* ---- what is run ---- */

#define PLAN_ENTRY_BYTES 36

struct coverage {
	const char *name;
	const char *operation; /* of the library's table of kernels */
	int32_t coverage, fingerprint;
};

static const struct coverage coverages[] = {
	{ "xxh3 all", "xxh3", KVC_COVERAGE_ALL, KVC_FINGERPRINT_XXH3 },
	{ "splitmix all", "splitmix", KVC_COVERAGE_ALL, KVC_FINGERPRINT_SPLITMIX },
	{ "xxh3 partial", "xxh3", KVC_COVERAGE_PARTIAL, KVC_FINGERPRINT_XXH3 },
	{ "splitmix partial", "splitmix", KVC_COVERAGE_PARTIAL, KVC_FINGERPRINT_SPLITMIX },
	{ "none", "none", KVC_COVERAGE_NONE, KVC_FINGERPRINT_XXH3 },
};

static int64_t covered_bytes(const struct canary_world *w, const struct coverage *coverage)
{
	if (coverage->coverage == KVC_COVERAGE_NONE)
		return 0;
	return coverage->coverage == KVC_COVERAGE_ALL ? w->row_bytes : 64; /* a cache line */
}

/* One operation of the canary as it is now. */
static void run_op(struct bench *bench, struct canary_world *w, const char *op, const char *what,
        bench_call call, bench_call bare, int64_t bytes)
{
	char shape[32];
	struct bench_case c = { 0 };

	if (!bench_wants_op(bench, op))
		return;
	(void)snprintf(shape, sizeof shape, "%lldB x%lld", (long long)w->row_bytes,
	        (long long)w->requests);
	c.dtype = what, c.shape = shape;
	c.tokens = w->slots, c.threads = w->threads, c.cold = 1;
	bench_add(&c, op, ROLE_ROW, call, w, bytes);
	if (bare)
		bench_add(&c, op, ROLE_BARE, bare, w, bytes);
	bench_add_reads(bench, &c, bytes);
	bench_run(bench, &c);
}

static void run_coverage(struct bench *bench, struct canary_world *w, const struct coverage *of)
{
	int64_t bytes = w->slots * (covered_bytes(w, of) + KVC_RECORD_BYTES + PLAN_ENTRY_BYTES);

	if (!bench_has_kernel(bench, of->operation))
		return;
	w->group.coverage = of->coverage;
	w->group.fingerprint = of->fingerprint;
	for (w->threads = 1; w->threads <= 2; w->threads++) {
		if (!bench_wants_threads(bench, w->threads))
			continue;
		if (!bench->names_only)
			write_call(w, 0); /* the records that verify compares with */
		int all = of->coverage == KVC_COVERAGE_ALL;
		run_op(bench, w, "verify", of->name, verify_call, all ? entries_call : NULL, bytes);
		run_op(bench, w, "write", of->name, write_call, all ? rows_call : NULL, bytes);
	}
}

static void run_finite(struct bench *bench, struct canary_world *w)
{
	if (!bench_has_kernel(bench, "scan_finite"))
		return;
	for (w->threads = 1; w->threads <= 2; w->threads++)
		if (bench_wants_threads(bench, w->threads))
			run_op(bench, w, "scan_finite", "bf16", scan_call, rows_call,
			        w->slots * w->row_bytes);
}

static int wants_canary(const struct bench *bench)
{
	return bench_wants_op(bench, "verify") || bench_wants_op(bench, "write") ||
	       bench_wants_op(bench, "scan_finite");
}

void bench_canary(struct bench *bench)
{
	static const struct {
		int64_t row_bytes, full, quick, tiny, requests;
	} pools[] = {
		{ 2048, 131072, 32768, 512, 64 }, { 16384, 32768, 4096, 64, 16 },
		{ 128, 1048576, 262144, 4096, 256 },
		{ 2048, 131072, 0, 0, 1 }, /* one long request: the chain is serial */
	};
	int effort = bench->settings.effort;

	for (size_t i = 0; i < sizeof pools / sizeof pools[0] && wants_canary(bench); i++) {
		struct canary_world world;
		int64_t slots = effort == BENCH_FULL    ? pools[i].full
		                : effort == BENCH_QUICK ? pools[i].quick
		                                        : pools[i].tiny;
		if (slots == 0 || !bench_wants_tokens(bench, slots))
			continue;
		make_canary(bench, &world, slots, pools[i].row_bytes, pools[i].requests);
		size_t count = effort == BENCH_QUICK ? 2 : sizeof coverages / sizeof coverages[0];
		for (size_t k = 0; k < count; k++)
			run_coverage(bench, &world, &coverages[k]);
		run_finite(bench, &world);
		free_canary(&world);
	}
}

/* Prefixes of 2048 tokens. The pool behind them is not touched. */
void bench_plan(struct bench *bench)
{
	static const int64_t batches[] = { 64, 256, 1024 };
	size_t count = bench->settings.effort == BENCH_TINY    ? 1
	               : bench->settings.effort == BENCH_QUICK ? 2
	                                                       : 3;
	int64_t length = bench->settings.effort == BENCH_TINY ? 64 : 2048;

	if (!bench_wants_op(bench, "plan") || !bench_has_kernel(bench, "plan"))
		return;
	for (size_t i = 0; i < count; i++) {
		struct canary_world world;
		if (!bench_wants_tokens(bench, batches[i] * length))
			continue;
		make_canary(bench, &world, batches[i] * length, 2, batches[i]);
		for (world.threads = 1; world.threads <= 2; world.threads++)
			if (bench_wants_threads(bench, world.threads))
				run_op(bench, &world, "plan", "int32", plan_call,
				        world.threads == 1 ? plan_bare_call : NULL,
				        world.slots * (4 + PLAN_ENTRY_BYTES));
		free_canary(&world);
	}
}
