/*
 * rope_pool_fused: out of place and in place, with stamping, into fp8 pools, and an MLA row; beside
 * it the same access pattern without arithmetic and checks.
 *
 * The tokens of all cold calls lie one after the other in one piece of memory; call number n takes
 * the n-th slice of it. Slots are a random permutation of the pool.
 */
#include "bench.h"

#include <string.h>

struct rope_shape {
	const char *name;
	int64_t q_heads, kv_heads, q_dim, kv_dim;
	int64_t rotary_dim, k_offset;
	int has_v;
};

static const struct rope_shape shapes[] = {
	{ "32,8,128", 32, 8, 128, 128, 128, 0, 1 }, /* Llama-3-8B */
	{ "8,1,128", 8, 1, 128, 128, 128, 0, 1 },   /* Llama-3-70B, TP 8 */
	{ "16,8,128", 16, 8, 128, 128, 128, 0, 1 }, /* Qwen3-0.6B */
	{ "16,1,576", 16, 1, 64, 576, 64, 512, 0 }, /* an MLA row: K only, 64 of 576 rotate */
};
#define SHAPE_COUNT (sizeof shapes / sizeof shapes[0])

/* Everything that calls of one shape and dtype need. Rows of q and k are contiguous. */
struct rope_world {
	const struct rope_shape *shape;
	kvc_dtype dtype;
	int64_t token_count;             /* of all slices; slots too */
	int64_t q_row, kv_row, pool_row; /* bytes */
	unsigned char *q, *k, *v, *q_out, *k_out, *k_pool, *v_pool;
	int64_t *positions, *slots;
	kvc_record *records;
	kvc_rope rope;
	kvc_group group;
	kvc_source sources[2];
	kvc_stamp stamp;
};

/* One contender: how the call is made. */
struct rope_call {
	struct rope_world *world;
	int64_t tokens;
	int64_t slices;
	int32_t threads;
	kvc_dtype pool_dtype;
	int in_place, stamped, streamed;
	int64_t slice; /* of a bare call */
};

/* ---- the library ---- */

static void rope_call_run(void *context, int64_t turn)
{
	struct rope_call *call = context;
	struct rope_world *w = call->world;
	const struct rope_shape *s = w->shape;
	int64_t first = bench_slice(turn, call->slices) * call->tokens;
	int64_t q_shape[] = { call->tokens, s->q_heads, s->q_dim };
	int64_t k_shape[] = { call->tokens, s->kv_heads, s->kv_dim };
	int64_t pool_shape[] = { w->token_count, s->kv_heads, s->kv_dim };
	kvc_tensor q = kvc_tensor_make(w->q + first * w->q_row, w->dtype, 3, q_shape);
	kvc_tensor k = kvc_tensor_make(w->k + first * w->kv_row, w->dtype, 3, k_shape);
	kvc_tensor v = kvc_tensor_make(w->v + first * w->kv_row, w->dtype, 3, k_shape);
	kvc_tensor q_out = kvc_tensor_make(w->q_out + first * w->q_row, w->dtype, 3, q_shape);
	kvc_tensor k_out = kvc_tensor_make(w->k_out + first * w->kv_row, w->dtype, 3, k_shape);
	kvc_tensor positions = kvc_tensor_make(w->positions + first, KVC_INT64, 1, q_shape);
	kvc_tensor slots = kvc_tensor_make(w->slots + first, KVC_INT64, 1, q_shape);
	kvc_tensor k_pool = kvc_tensor_make(w->k_pool, call->pool_dtype, 3, pool_shape);
	kvc_tensor v_pool = kvc_tensor_make(w->v_pool, call->pool_dtype, 3, pool_shape);
	kvc_rope_pool_args args = KVC_ROPE_POOL_ARGS_INIT;

	args.q = &q, args.k = &k, args.v = s->has_v ? &v : NULL;
	args.positions = &positions, args.slots = &slots;
	args.k_pool = &k_pool, args.v_pool = s->has_v ? &v_pool : NULL;
	args.q_out = call->in_place ? &q : &q_out;
	args.k_out = call->in_place ? &k : &k_out;
	args.rope = &w->rope;
	args.rotary_offset = s->k_offset;
	args.stamp = call->stamped ? &w->stamp : NULL;
	bench_check(kvc_rope_pool_fused(&args, NULL));
}

/* ---- the same bytes without arithmetic and checks ---- */

static void move_row(const struct rope_call *call, void *out, const void *in, int64_t bytes)
{
	if (call->streamed)
		bench_copy_stream(out, in, (size_t)bytes);
	else
		bench_copy_plain(out, in, (size_t)bytes);
}

static void rope_bare_part(void *context, int32_t index)
{
	const struct rope_call *call = context;
	const struct rope_world *w = call->world;
	int64_t begin = bench_piece(call->tokens, index, call->threads);
	int64_t end = bench_piece(call->tokens, index + 1, call->threads);

	for (int64_t i = call->slice + begin; i < call->slice + end; i++) {
		int64_t slot = w->slots[i];
		move_row(call, w->q_out + i * w->q_row, w->q + i * w->q_row, w->q_row);
		move_row(call, w->k_out + i * w->kv_row, w->k + i * w->kv_row, w->kv_row);
		move_row(call, w->k_pool + slot * w->pool_row, w->k + i * w->kv_row, w->pool_row);
		if (w->shape->has_v)
			move_row(call, w->v_pool + slot * w->pool_row, w->v + i * w->kv_row,
			        w->pool_row);
	}
	if (call->streamed)
		bench_stream_end();
}

static void rope_bare_run(void *context, int64_t turn)
{
	struct rope_call *call = context;
	call->slice = bench_slice(turn, call->slices) * call->tokens;
	if (call->threads > 1)
		bench_parallel(call->threads, rope_bare_part, call);
	else
		rope_bare_part(call, 0);
}

/* ---- the world ---- */

static int64_t bytes_per_token(const struct rope_world *w, int64_t pool_row)
{
	int64_t rows = 2 * w->q_row + 2 * w->kv_row + pool_row;
	return w->shape->has_v ? rows + w->kv_row + pool_row : rows;
}

/* The records that stamping adds to: a group of this one layer. */
static void make_group(struct rope_world *w)
{
	int64_t pool_shape[] = { w->token_count, w->shape->kv_heads, w->shape->kv_dim };
	kvc_tensor k_pool = kvc_tensor_make(w->k_pool, w->dtype, 3, pool_shape);
	kvc_tensor v_pool = kvc_tensor_make(w->v_pool, w->dtype, 3, pool_shape);
	kvc_group group = KVC_GROUP_INIT;

	bench_check(kvc_source_from_pool(&w->sources[0], &k_pool, 0));
	bench_check(kvc_source_from_pool(&w->sources[1], &v_pool, 1));
	group.records = w->records;
	group.record_count = w->token_count;
	group.sources = w->sources;
	group.source_count = w->shape->has_v ? 2 : 1;
	group.stamping = KVC_STAMP_CLEAR;
	w->group = group;
	bench_check(kvc_group_stamp(&w->stamp, &w->group, 0, w->shape->has_v ? 1 : 0));
}

static unsigned char *make_rows(int64_t count, int64_t row, kvc_dtype dtype, uint64_t seed)
{
	unsigned char *rows = bench_alloc((size_t)(count * row) + 64);
	if (seed)
		bench_fill(rows, (size_t)(count * row), dtype, seed);
	return rows;
}

static void make_world(const struct bench *bench, struct rope_world *w,
        const struct rope_shape *shape, kvc_dtype dtype, int64_t token_count)
{
	kvc_rope_options options = KVC_ROPE_OPTIONS_INIT;
	uint64_t seed = 251;
	int64_t n = token_count;

	memset(w, 0, sizeof *w);
	w->shape = shape;
	w->dtype = dtype;
	w->token_count = n;
	w->q_row = shape->q_heads * shape->q_dim * bench_dtype_bytes(dtype);
	w->kv_row = shape->kv_heads * shape->kv_dim * bench_dtype_bytes(dtype);
	w->pool_row = w->kv_row;
	if (bench->names_only)
		return;
	w->q = make_rows(n, w->q_row, dtype, 1);
	w->k = make_rows(n, w->kv_row, dtype, 2);
	w->v = make_rows(n, w->kv_row, dtype, 3);
	w->q_out = make_rows(n, w->q_row, dtype, 0);
	w->k_out = make_rows(n, w->kv_row, dtype, 0);
	w->k_pool = make_rows(n, w->kv_row, dtype, 0);
	w->v_pool = make_rows(n, w->kv_row, dtype, 0);
	w->records = bench_alloc((size_t)n * sizeof *w->records);
	w->positions = bench_alloc((size_t)n * sizeof *w->positions);
	w->slots = bench_alloc((size_t)n * sizeof *w->slots);
	bench_permutation(w->slots, n, seed);
	for (int64_t i = 0; i < n; i++)
		w->positions[i] = (int64_t)(bench_random(&seed) % 131072);
	options.rotary_dim = (int32_t)shape->rotary_dim;
	options.rope_base = 500000.0;
	bench_check(kvc_rope_init(&w->rope, &options));
	make_group(w);
}

static void free_world(struct rope_world *w)
{
	size_t n = (size_t)w->token_count, q_row = (size_t)w->q_row, kv_row = (size_t)w->kv_row;

	bench_free(w->q, n * q_row + 64);
	bench_free(w->q_out, n * q_row + 64);
	bench_free(w->k, n * kv_row + 64);
	bench_free(w->v, n * kv_row + 64);
	bench_free(w->k_out, n * kv_row + 64);
	bench_free(w->k_pool, n * kv_row + 64);
	bench_free(w->v_pool, n * kv_row + 64);
	bench_free(w->records, n * sizeof *w->records);
	bench_free(w->positions, n * sizeof *w->positions);
	bench_free(w->slots, n * sizeof *w->slots);
}

/* ---- what is run ---- */

static const char *dtype_name(kvc_dtype dtype)
{
	if (dtype.code == KVC_CODE_BFLOAT)
		return "bf16";
	return dtype.bits == 16 ? "f16" : "f32";
}

/* The op names that have a kernel of this variant, with and without what is timed beside. */
static void run_case(
        struct bench *bench, struct rope_world *w, int64_t tokens, int32_t threads, int cold)
{
	struct rope_call calls[6];
	struct bench_case c = { 0 };
	int64_t bytes = tokens * bytes_per_token(w, w->pool_row);
	int count = 0, streams = w->q_row % 128 == 0 && w->pool_row % 128 == 0;

	c.dtype = dtype_name(w->dtype), c.shape = w->shape->name;
	c.tokens = tokens, c.threads = threads, c.cold = cold;
	struct rope_call plain = { w, tokens, w->token_count / tokens, threads, w->dtype, 0, 0, 0,
		0 };
	for (int i = 0; i < 6; i++)
		calls[i] = plain;
	struct {
		const char *op;
		int in_place, stamped;
	} const ops[] = {
		{ "rope_pool_fused", 0, 0 },
		{ "rope_pool_fused+stamp", 0, 1 },
		{ "rope_pool_fused in place", 1, 0 },
	};
	for (int i = 0; i < 3; i++) {
		if (!bench_wants_op(bench, ops[i].op))
			continue;
		calls[count].in_place = ops[i].in_place;
		calls[count].stamped = ops[i].stamped;
		bench_add(&c, ops[i].op, ROLE_ROW, rope_call_run, &calls[count++], bytes);
	}
	if (count == 0)
		return;
	for (int streamed = 0; streamed <= streams; streamed++) {
		calls[count].streamed = streamed;
		bench_add(&c, "rope_pool_fused", ROLE_BARE, rope_bare_run, &calls[count++], bytes);
	}
	bench_add_copies(bench, &c, bytes);
	bench_run(bench, &c);
}

/* fp8 pools: fewer bytes, so ceilings of their own. */
static void run_fp8_case(
        struct bench *bench, struct rope_world *w, int64_t tokens, int32_t threads, int cold)
{
	struct bench_case c = { 0 };
	int64_t pool_row = w->shape->kv_heads * w->shape->kv_dim;
	int64_t bytes = tokens * bytes_per_token(w, pool_row);
	struct rope_call call = { w, tokens, w->token_count / tokens, threads, KVC_FLOAT8_E4M3FN, 0,
		0, 0, 0 };
	struct rope_call bare = call;

	if (!bench_wants_op(bench, "rope_pool_fused fp8"))
		return;
	c.dtype = "bf16>e4m3", c.shape = w->shape->name;
	c.tokens = tokens, c.threads = threads, c.cold = cold;
	bench_add(&c, "rope_pool_fused fp8", ROLE_ROW, rope_call_run, &call, bytes);
	w->pool_row = pool_row;
	bare.streamed = 1;
	bench_add(&c, "rope_pool_fused fp8", ROLE_BARE, rope_bare_run, &bare, bytes);
	bench_add_copies(bench, &c, bytes);
	bench_run(bench, &c);
	w->pool_row = w->kv_row;
}

static const int64_t full_tokens[] = { 1, 16, 64, 512, 4096, 16384, 0 };
static const int64_t quick_tokens[] = { 1, 64, 4096, 0 };
static const int64_t tiny_tokens[] = { 1, 16, 0 };

static const int64_t *token_list(const struct bench *bench)
{
	switch (bench->settings.effort) {
	case BENCH_FULL:
		return full_tokens;
	case BENCH_QUICK:
		return quick_tokens;
	default:
		return tiny_tokens;
	}
}

/* Tokens that all slices need: as many as the longest call, and enough to be cold. */
static int64_t tokens_needed(
        const struct bench *bench, const struct rope_shape *shape, kvc_dtype dtype)
{
	int64_t most = 1,
	        row = (2 * shape->q_heads * shape->q_dim + 5 * shape->kv_heads * shape->kv_dim) *
	              bench_dtype_bytes(dtype);
	for (const int64_t *tokens = token_list(bench); *tokens; tokens++)
		if (bench_wants_tokens(bench, *tokens))
			most = *tokens;
	int64_t cold = bench->settings.cold_bytes / row;
	return (cold + most) / most * most;
}

static void run_threads(struct bench *bench, struct rope_world *w, int64_t tokens, int32_t threads)
{
	int64_t bytes = tokens * bytes_per_token(w, w->pool_row);
	int is_main = w->dtype.code == KVC_CODE_BFLOAT && w->shape == &shapes[0];
	for (int cold = 0; cold <= 1; cold++) {
		if (!cold && bytes > bench->settings.llc_bytes)
			continue; /* such a call finds nothing of the call before in the cache */
		run_case(bench, w, tokens, threads, cold);
		if (is_main && bench->settings.effort != BENCH_TINY)
			run_fp8_case(bench, w, tokens, threads, cold);
	}
}

static void run_world(struct bench *bench, const struct rope_shape *shape, kvc_dtype dtype)
{
	struct rope_world world;
	make_world(bench, &world, shape, dtype, tokens_needed(bench, shape, dtype));
	for (const int64_t *tokens = token_list(bench); *tokens; tokens++)
		for (int32_t threads = 1; threads <= 2; threads++)
			if (bench_wants_tokens(bench, *tokens) &&
			        bench_wants_threads(bench, threads) &&
			        (threads == 1 || *tokens > 16))
				run_threads(bench, &world, *tokens, threads);
	free_world(&world);
}

void bench_rope(struct bench *bench)
{
	if (!bench_wants_op(bench, "rope_pool_fused") &&
	        !bench_wants_op(bench, "rope_pool_fused fp8") &&
	        !bench_wants_op(bench, "rope_pool_fused+stamp") &&
	        !bench_wants_op(bench, "rope_pool_fused in place"))
		return;
	if (!bench_has_kernel(bench, "rope_pool_fused"))
		return;
	for (size_t i = 0; i < (bench->settings.effort == BENCH_FULL ? SHAPE_COUNT : 1); i++)
		run_world(bench, &shapes[i], KVC_BFLOAT16);
	if (bench->settings.effort != BENCH_FULL)
		return;
	run_world(bench, &shapes[0], KVC_FLOAT16);
	run_world(bench, &shapes[0], KVC_FLOAT32);
}
