/* Launching rope.cu: which kernel a call gets, by rule, and what it is told. */
#include "cuda/cuda.h"

#if defined(KVC_WITH_CUDA)

#include "cpu/hash.h"
#include "cuda/back_end.h"
#include "cuda/driver.h"
#include "cuda/rope_params.h"

#include <stddef.h>
#include <string.h>

/* Bytes read from which on a call's data do not stay in the cache: they are marked as used once. */
#define STREAM_BYTES (12 << 20)
#define STAMP_STREAM_BYTES (8 << 20)

/* Names as rope.cu spells them; per row plain, streaming, the same for fp8 pools. */
#define ROW(TAG, D, T)                                                                             \
	{                                                                                          \
		{ .name = "kvc_rope_" TAG "_" D T }, { .name = "kvc_rope_" TAG "_" D "_s" T },     \
		        { .name = "kvc_rope_" TAG "_fp8_" D T },                                   \
		        { .name = "kvc_rope_" TAG "_fp8_" D "_s" T },                              \
	}
/* By element, head dim, with a table, shape. */
static struct kvc__kernel fast_kernels[2][2][2][4] = {
	{ { ROW("bf16", "64", ""), ROW("bf16", "64", "_t") },
	        { ROW("bf16", "128", ""), ROW("bf16", "128", "_t") } },
	{ { ROW("f16", "64", ""), ROW("f16", "64", "_t") },
	        { ROW("f16", "128", ""), ROW("f16", "128", "_t") } },
};

#define STAMPS(TAG, D)                                                                             \
	{                                                                                          \
		{ { .name = "kvc_rope_stamp_" TAG "_" D },                                         \
			{ .name = "kvc_rope_stamp_" TAG "_" D "_s" } },                            \
		        { { .name = "kvc_rope_stamp_" TAG "_" D "_t" },                            \
			        { .name = "kvc_rope_stamp_" TAG "_" D "_s_t" } },                  \
	}
/* By element, head dim, with a table, streaming. */
static struct kvc__kernel stamp_kernels[2][2][2][2] = {
	{ STAMPS("bf16", "64"), STAMPS("bf16", "128") },
	{ STAMPS("f16", "64"), STAMPS("f16", "128") },
};

static struct kvc__kernel general_kernel = { .name = "kvc_general_rope" };
static struct kvc__kernel claim_kernel = { .name = "kvc_general_claim" };
static struct kvc__kernel unclaim_kernel = { .name = "kvc_general_unclaim" };
static struct kvc__kernel report_kernel = { .name = "kvc_general_report" };

static struct kvc__rope_params params_of(const struct kvc__cuda_rope *call)
{
	const struct kvc__rope_job *job = call->job;
	struct kvc__rope_params p = {
		.rows = { job->q, job->k, job->v, job->q_out, job->k_out, job->k_pool,
		        job->v_pool },
		.positions = job->positions,
		.slots = job->slots,
		.token_count = job->token_count,
		.position_count = job->position_count,
		.slot_count = call->slot_count,
		.reserved_slot = job->reserved_slot < 0 ? -1 : job->reserved_slot,
		.cos_sin = job->rope->cos_sin,
		.cos_sin_row_stride = job->rope->cos_sin_row_stride,
		.attention_factor = job->rope->attention_factor,
		.report = call->report,
		.duplicate_scratch = call->duplicate_scratch,
		.check_finite = call->check_finite,
		.q_heads = (int32_t)job->q_heads,
		.kv_heads = (int32_t)job->kv_heads,
		.q_dim = (int32_t)job->q_dim,
		.kv_dim = (int32_t)job->kv_dim,
		.rotary_dim = job->rope->rotary_dim,
		.interleaved = job->rope->style == KVC_ROPE_INTERLEAVED,
		.q_rotary_offset = (int32_t)job->q_rotary_offset,
		.rotary_offset = (int32_t)job->rotary_offset,
		.element = (int32_t)job->element,
		.pool_element = (int32_t)job->pool_element,
		.k_scale = job->k_scale,
		.v_scale = job->v_scale,
	};
	if (job->stamp) {
		p.records = job->stamp->records;
		p.record_stride = job->stamp->record_stride_bytes;
		p.stamp_head_bytes = job->stamp->head_bytes;
		p.k_id = job->stamp->k_id;
		p.v_id = job->stamp->v_id;
		p.coverage = job->stamp->coverage;
	}
	/* Over both arrays: they are one (rope_params.h). */
	memcpy((char *)&p + offsetof(struct kvc__rope_params, inv_freq), job->rope->inv_freq,
	        sizeof(job->rope->inv_freq));
	return p;
}

/* ---- what the fast kernels can take ---- */

static int rows_aligned(const struct kvc__rows *rows, int64_t bytes)
{
	return (((uintptr_t)rows->data | (uintptr_t)rows->row_stride |
	                (uintptr_t)rows->head_stride) &
	               (uintptr_t)(bytes - 1)) == 0;
}

/* Row numbers and strides go into 32 bits, and offsets into a head do not wrap. */
static int rows_narrow(const struct kvc__rows *rows)
{
	return rows->row_stride >= 0 && rows->row_stride <= INT32_MAX && rows->head_stride >= 0 &&
	       rows->head_stride <= INT32_MAX;
}

static int indices_narrow(const struct kvc__indices *indices)
{
	return indices->stride >= 0 && indices->stride <= INT32_MAX;
}

static int is_fast(const struct kvc__cuda_rope *call, const struct kvc__rope_params *p)
{
	const struct kvc__rope_job *job = call->job;

	if (job->element == KVC__ELEMENT_F32 || (job->kv_dim != 64 && job->kv_dim != 128) ||
	        job->q_dim != job->kv_dim || job->rope->rotary_dim != job->kv_dim ||
	        job->rope->style != KVC_ROPE_NEOX || call->check_finite || job->q_heads < 1 ||
	        job->kv_heads < 1 || job->q_heads + 2 * job->kv_heads > 120)
		return 0;
	/* Beyond these the numbering of heads by a multiplication is not exact. */
	if (job->token_count * (job->q_heads + 2 * job->kv_heads) >=
	        (INT64_C(1) << 32) / (job->q_heads + 2 * job->kv_heads))
		return 0;
	if (job->rope->cos_sin && ((uintptr_t)job->rope->cos_sin % 16 != 0 ||
	                                  job->rope->cos_sin_row_stride % 4 != 0 ||
	                                  job->rope->cos_sin_row_stride < 0 ||
	                                  job->rope->cos_sin_row_stride > INT32_MAX / 4))
		return 0;
	/* They compare 32 bits. */
	if (call->slot_count > INT32_MAX || job->position_count > INT32_MAX ||
	        job->reserved_slot > INT32_MAX || !indices_narrow(&job->positions) ||
	        !indices_narrow(&job->slots))
		return 0;
	for (size_t i = 0; i < KVC__TENSORS; i++)
		if (!rows_aligned(&p->rows[i], 16) || !rows_narrow(&p->rows[i]))
			return 0;
	return 1;
}

/* Stamping in registers wants adjacent heads of 16-bit elements and rows that XXH3 calls long. */
static int is_fast_stamp(const struct kvc__rope_job *job)
{
	int64_t dim_bytes = job->kv_dim * 2;

	return job->pool_element == job->element && job->stamp->coverage == KVC_COVERAGE_ALL &&
	       job->kv_heads * dim_bytes > 240 && job->k_pool.head_stride == dim_bytes &&
	       (!job->v.data || job->v_pool.head_stride == dim_bytes);
}

/* ---- launches ---- */

/* Warps of a block that computes angles, about. */
#define BLOCK_WARPS 12

static int64_t at_most(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static uint32_t magic_of(int64_t divisor)
{
	return (uint32_t)(((UINT64_C(1) << 32) + (uint64_t)divisor - 1) / (uint64_t)divisor);
}

static int64_t heads_of(const struct kvc__rope_params *p)
{
	return p->q_heads + p->kv_heads * (p->rows[KVC__V].data ? 2 : 1);
}

static int streams(const struct kvc__rope_params *p, int64_t from)
{
	return p->token_count * heads_of(p) * p->kv_dim * 2 >= from;
}

/* The next kernel may start once this one has waited for the one before it. */
static kvc_status launch_blocks(struct kvc__kernel *kernel, struct kvc__rope_params *p,
        int64_t warps, int64_t block_warps, void *stream)
{
	struct kvc__launch launch = {
		.grid_x = (unsigned)kvc__divide_up(warps, block_warps),
		.block = (unsigned)(32 * block_warps),
		.programmatic = 1,
	};
	return kvc__cuda_launch(kernel, &launch, p, stream);
}

/* 'parts' warps a token; a block holds whole tokens, whose angles it computes once. */
static kvc_status launch_computed(
        struct kvc__kernel *kernel, struct kvc__rope_params *p, int64_t parts, void *stream)
{
	int64_t tokens = BLOCK_WARPS / parts;

	p->parts = (int32_t)parts;
	tokens = at_most(at_most(tokens < 1 ? 1 : tokens, KVC__ROPE_TOKENS), p->token_count);
	p->block_tokens = (int32_t)tokens;
	return launch_blocks(kernel, p, p->token_count * parts, tokens * parts, stream);
}

static kvc_status launch_fast(struct kvc__rope_params *p, void *stream)
{
	int fp8 = p->pool_element != p->element;
	int64_t heads = heads_of(p), heads_a_warp = 512 / p->kv_dim;
	struct kvc__kernel *kernel =
	        &fast_kernels[p->element == KVC__ELEMENT_F16][p->kv_dim == 128][p->cos_sin != NULL]
	                     [2 * fp8 + streams(p, STREAM_BYTES)];

	p->heads_magic = magic_of(heads);
	if (p->cos_sin)
		return launch_blocks(kernel, p,
		        kvc__divide_up(heads * p->token_count, heads_a_warp),
		        KVC__ROPE_THREADS / 32, stream);
	return launch_computed(kernel, p, kvc__divide_up(heads, heads_a_warp), stream);
}

/* Bytes of struct Stamp (rope.cu) where so many threads have rows. */
static unsigned stamp_bytes(int64_t threads)
{
	return (unsigned)(KVC__STAMP_ROWS * 8 + 16 + 48 * 8 + 16 * threads);
}

/* Lanes of a row of K or V: a power of two up to a warp, then whole warps. */
static uint32_t row_lanes(int64_t lanes)
{
	uint32_t power = 1;

	while (power < lanes && power < 32)
		power *= 2;
	return lanes <= 32 ? power : (uint32_t)((lanes + 31) / 32 * 32);
}

/* The rows of K and V of so many tokens are a set (rope.cu). */
static void set_rows(struct kvc__rope_params *p, uint32_t tokens)
{
	uint32_t kinds = p->rows[KVC__V].data ? 2 : 1;

	p->row_shift = 31;
	for (uint32_t i = 0; tokens > 1 && i < 31; i++)
		if (1u << i == p->row_lanes)
			p->row_shift = i;
	p->block_tokens = (int32_t)tokens;
	p->stamp_rows = (int32_t)(tokens * kinds);
	p->kind_lanes = tokens * p->row_lanes;
	p->row_threads = (kinds * p->kind_lanes + 31) / 32 * 32;
}

/* Blocks with rows, which take longer, come first, so many at a time: a token's rows and its heads of q are read at
 * about the same time, and the last blocks of all are short ones. */
#define CHUNK_ROW_BLOCKS 256

static kvc_status launch_stamp(struct kvc__rope_params *p, void *stream)
{
	int wide = streams(p, STAMP_STREAM_BYTES);
	int64_t head_lanes = p->kv_dim / 16, kinds = p->rows[KVC__V].data ? 2 : 1, tokens;
	int64_t q_lanes = p->rows[KVC__Q_OUT].data ? p->q_heads * head_lanes : 0; /* of a token */
	struct kvc__launch launch = { .programmatic = 1 };

	p->row_lanes = row_lanes(p->kv_heads * head_lanes);
	p->heads_magic = magic_of(p->q_heads);
	p->length_term = (uint64_t)(p->kv_heads * p->kv_dim * 2) * 0x9E3779B185EBCA87;
	p->k_term = (p->k_id + 1) * KVC__SOURCE_STEP;
	p->v_term = (p->v_id + 1) * KVC__SOURCE_STEP;
	tokens = KVC__STAMP_THREADS / kinds / p->row_lanes;
	if (!p->cos_sin)
		tokens = at_most(
		        tokens, at_most(KVC__ROPE_TOKENS,
		                        32 * BLOCK_WARPS / (kinds * p->row_lanes + q_lanes)));
	set_rows(p, tokens < 1 ? 1 : (uint32_t)tokens);
	launch.block = p->row_threads;
	launch.shared_bytes = stamp_bytes(p->row_threads);
	if (p->cos_sin) {
		p->chunk_row_blocks = (uint32_t)at_most(
		        CHUNK_ROW_BLOCKS, kvc__divide_up(p->token_count, p->block_tokens));
		p->chunk_tokens = p->chunk_row_blocks * (uint32_t)p->block_tokens;
		p->chunk_blocks =
		        p->chunk_row_blocks +
		        (uint32_t)kvc__divide_up(p->chunk_tokens * q_lanes, p->row_threads);
		launch.grid_x =
		        (unsigned)kvc__divide_up(p->token_count, p->chunk_tokens) * p->chunk_blocks;
	} else {
		launch.grid_x = (unsigned)kvc__divide_up(p->token_count, p->block_tokens);
		launch.block += (unsigned)kvc__divide_up(p->block_tokens * q_lanes, 32) * 32;
	}
	return kvc__cuda_launch(&stamp_kernels[p->element == KVC__ELEMENT_F16][p->kv_dim == 128]
	                                      [p->cos_sin != NULL][wide],
	        &launch, p, stream);
}

static kvc_status launch_general(struct kvc__rope_params *p, void *stream)
{
	struct kvc__launch launch = { .grid_x = p->token_count, .block = 128 };

	return kvc__cuda_launch(&general_kernel, &launch, p, stream);
}

static kvc_status launch_tokens(
        struct kvc__kernel *kernel, const struct kvc__rope_params *p, void *stream)
{
	struct kvc__launch launch = {
		.grid_x = kvc__divide_up(p->token_count, 256),
		.block = 256,
	};
	return kvc__cuda_launch(kernel, &launch, p, stream);
}

static kvc_status launch_rows(
        const struct kvc__cuda_rope *call, struct kvc__rope_params *p, void *stream)
{
	int fast = is_fast(call, p);

	if (fast && !p->records)
		KVC__TRY(launch_fast(p, stream));
	else if (fast && is_fast_stamp(call->job))
		KVC__TRY(launch_stamp(p, stream));
	else
		KVC__TRY(launch_general(p, stream));
	return p->report ? launch_tokens(&report_kernel, p, stream) : KVC_OK;
}

kvc_status kvc__cuda_rope(const struct kvc__cuda_rope *call, void *stream)
{
	struct kvc__rope_params p = params_of(call);

	if (!p.duplicate_scratch)
		return launch_rows(call, &p, stream);
	KVC__TRY(launch_tokens(&claim_kernel, &p, stream));
	kvc_status status = launch_rows(call, &p, stream);
	if (status == KVC_OK)
		status = launch_tokens(&unclaim_kernel, &p, stream);
	return kvc__cuda_wipe_failed(status, p.duplicate_scratch,
	        call->slot_count * (int64_t)sizeof(*p.duplicate_scratch), stream);
}

#endif /* KVC_WITH_CUDA */
