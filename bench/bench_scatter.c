/* scatter_req_token_ids: bs requests of L tokens each into random rows of the int32 table. */
#include "bench.h"

#include <string.h>

struct scatter_shape {
	const char *name;
	int64_t requests, length;
};

static const struct scatter_shape scatter_shapes[] = {
	{ "64x128", 64, 128 },
	{ "64x2048", 64, 2048 },
	{ "256x8192", 256, 8192 },
};

/* flat and table hold 'slices' calls side by side. */
struct scatter_world {
	const struct scatter_shape *shape;
	int64_t slices;
	int64_t *flat, *offsets, *rows;
	int32_t *table;
	int32_t threads;
	int64_t slice;
};

static void scatter_run(void *context, int64_t turn)
{
	struct scatter_world *w = context;
	int64_t slice = bench_slice(turn, w->slices), bs = w->shape->requests,
	        length = w->shape->length;
	int64_t flat_shape[] = { bs * length }, offsets_shape[] = { bs + 1 };
	int64_t rows_shape[] = { bs }, table_shape[] = { bs, length };
	kvc_tensor flat = kvc_tensor_make(w->flat + slice * bs * length, KVC_INT64, 1, flat_shape);
	kvc_tensor offsets = kvc_tensor_make(w->offsets, KVC_INT64, 1, offsets_shape);
	kvc_tensor rows = kvc_tensor_make(w->rows, KVC_INT64, 1, rows_shape);
	kvc_tensor table =
	        kvc_tensor_make(w->table + slice * bs * length, KVC_INT32, 2, table_shape);
	kvc_scatter_args args = KVC_SCATTER_ARGS_INIT;

	args.flat_in = &flat, args.offsets = &offsets;
	args.req_pool_indices = &rows, args.pool_out = &table;
	bench_check(kvc_scatter_req_token_ids(&args, NULL));
}

/* Narrowing alone. */
static void scatter_bare_part(void *context, int32_t index)
{
	const struct scatter_world *w = context;
	int64_t length = w->shape->length, base = w->slice * w->shape->requests * length;
	int64_t begin = bench_piece(w->shape->requests, index, w->threads);
	int64_t end = bench_piece(w->shape->requests, index + 1, w->threads);

	for (int64_t r = begin; r < end; r++) {
		const int64_t *restrict in = w->flat + base + r * length;
		int32_t *restrict out = w->table + base + w->rows[r] * length;
		for (int64_t i = 0; i < length; i++)
			out[i] = (int32_t)(uint32_t)(uint64_t)in[i];
	}
}

static void scatter_bare_run(void *context, int64_t turn)
{
	struct scatter_world *w = context;
	w->slice = bench_slice(turn, w->slices);
	if (w->threads > 1)
		bench_parallel(w->threads, scatter_bare_part, w);
	else
		scatter_bare_part(w, 0);
}

static void make_scatter(
        const struct bench *bench, struct scatter_world *w, const struct scatter_shape *shape)
{
	int64_t tokens = shape->requests * shape->length;
	uint64_t seed = 7;

	memset(w, 0, sizeof *w);
	w->shape = shape;
	if (bench->names_only)
		return;
	w->slices = 1 + bench->settings.cold_bytes / (tokens * 12);
	w->flat = bench_alloc((size_t)(w->slices * tokens * 8));
	w->table = bench_alloc((size_t)(w->slices * tokens * 4));
	w->offsets = bench_alloc((size_t)(shape->requests + 1) * 8);
	w->rows = bench_alloc((size_t)shape->requests * 8);
	for (int64_t i = 0; i < w->slices * tokens; i++)
		w->flat[i] = (int64_t)(bench_random(&seed) % 128256);
	for (int64_t r = 0; r <= shape->requests; r++)
		w->offsets[r] = r * shape->length;
	bench_permutation(w->rows, shape->requests, 11);
}

static void free_scatter(struct scatter_world *w)
{
	int64_t tokens = w->shape->requests * w->shape->length;

	bench_free(w->flat, (size_t)(w->slices * tokens * 8));
	bench_free(w->table, (size_t)(w->slices * tokens * 4));
	bench_free(w->offsets, (size_t)(w->shape->requests + 1) * 8);
	bench_free(w->rows, (size_t)w->shape->requests * 8);
}

static void run_scatter(struct bench *bench, struct scatter_world *w, int32_t threads, int cold)
{
	struct bench_case c = { 0 };
	int64_t tokens = w->shape->requests * w->shape->length;

	w->threads = threads;
	c.dtype = "i64>i32", c.shape = w->shape->name;
	c.tokens = tokens, c.threads = threads, c.cold = cold;
	bench_add(&c, "scatter", ROLE_ROW, scatter_run, w, tokens * 12);
	bench_add(&c, "scatter", ROLE_BARE, scatter_bare_run, w, tokens * 12);
	bench_add_copies(bench, &c, tokens * 12);
	bench_run(bench, &c);
}

void bench_scatter(struct bench *bench)
{
	size_t count = bench->settings.effort == BENCH_TINY ? 1 : 3;

	if (!bench_wants_op(bench, "scatter") || !bench_has_kernel(bench, "scatter"))
		return;
	for (size_t i = 0; i < count; i++) {
		struct scatter_world world;
		int64_t bytes = scatter_shapes[i].requests * scatter_shapes[i].length * 12;
		if (!bench_wants_tokens(bench, bytes / 12))
			continue;
		make_scatter(bench, &world, &scatter_shapes[i]);
		for (int32_t threads = 1; threads <= 2; threads++)
			for (int cold = 0; cold <= 1; cold++)
				if (bench_wants_threads(bench, threads) &&
				        (cold || bytes <= bench->settings.llc_bytes))
					run_scatter(bench, &world, threads, cold);
		free_scatter(&world);
	}
}
