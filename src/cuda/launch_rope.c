/* Launching rope.cu: which kernel a call gets, by rule, and what it is told. */
#include "cuda/cuda.h"

#if defined(KVC_WITH_CUDA)

#include "cuda/back_end.h"
#include "cuda/driver.h"
#include "cuda/rope_params.h"

#include <stddef.h>
#include <string.h>

/* Bytes read from which on a call's data do not stay in the cache: they are marked as used once. */
#define STREAM_BYTES (12 << 20)

/* Names as rope.cu spells them; per row plain, streaming, the same for fp8 pools. */
#define ROW(TAG, D, T)                                                                             \
	{                                                                                          \
		{ "kvc_rope_" TAG "_" D T, 0 }, { "kvc_rope_" TAG "_" D "_s" T, 0 },               \
		        { "kvc_rope_" TAG "_fp8_" D T, 0 },                                        \
		        { "kvc_rope_" TAG "_fp8_" D "_s" T, 0 },                                   \
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
		{ { "kvc_rope_stamp_" TAG "_" D, 0 }, { "kvc_rope_stamp_" TAG "_" D "_s", 0 } },   \
		        { { "kvc_rope_stamp_" TAG "_" D "_t", 0 },                                 \
			        { "kvc_rope_stamp_" TAG "_" D "_s_t", 0 } },                       \
	}
/* By element, head dim, with a table, streaming. */
static struct kvc__kernel stamp_kernels[2][2][2][2] = {
	{ STAMPS("bf16", "64"), STAMPS("bf16", "128") },
	{ STAMPS("f16", "64"), STAMPS("f16", "128") },
};

static struct kvc__kernel general_kernel = { "kvc_rope_general", 0 };
static struct kvc__kernel claim_kernel = { "kvc_rope_claim", 0 };
static struct kvc__kernel unclaim_kernel = { "kvc_rope_unclaim", 0 };
static struct kvc__kernel report_kernel = { "kvc_rope_report", 0 };

static struct kvc__rope_params params_of(const struct kvc__cuda_rope *call)
{
	const struct kvc__rope_job *job = call->job;
	struct kvc__rope_params p = {
		.q = job->q,
		.k = job->k,
		.v = job->v,
		.q_out = job->q_out,
		.k_out = job->k_out,
		.k_pool = job->k_pool,
		.v_pool = job->v_pool,
		.positions = job->positions,
		.slots = job->slots,
		.token_count = job->token_count,
		.position_count = job->position_count,
		.slot_count = call->slot_count,
		.reserved_slot = job->reserved_slot,
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

static int is_fast(const struct kvc__cuda_rope *call)
{
	const struct kvc__rope_job *job = call->job;
	const struct kvc__rows *rows[] = { &job->q, &job->k, &job->v, &job->q_out, &job->k_out,
		&job->k_pool, &job->v_pool };

	if (job->element == KVC__ELEMENT_F32 || (job->kv_dim != 64 && job->kv_dim != 128) ||
	        job->q_dim != job->kv_dim || job->rope->rotary_dim != job->kv_dim ||
	        job->rope->style != KVC_ROPE_NEOX || call->check_finite ||
	        job->q_heads + 2 * job->kv_heads > 120)
		return 0;
	/* Beyond these the numbering of heads by a multiplication is not exact. */
	if (job->token_count * (job->q_heads + 2 * job->kv_heads) >=
	        (INT64_C(1) << 32) / (job->q_heads + 2 * job->kv_heads))
		return 0;
	if (job->rope->cos_sin &&
	        ((uintptr_t)job->rope->cos_sin % 16 != 0 || job->rope->cos_sin_row_stride % 4 != 0))
		return 0;
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++)
		if (!rows_aligned(rows[i], 16))
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

/* Warps of a block that computes angles, about; and whole tokens in it, at most. */
#define BLOCK_WARPS 12
#define BLOCK_TOKENS_MAX 8

static uint32_t magic_of(int64_t divisor)
{
	return (uint32_t)(((UINT64_C(1) << 32) + (uint64_t)divisor - 1) / (uint64_t)divisor);
}

static int64_t divide_up(int64_t a, int64_t b)
{
	return (a + b - 1) / b;
}

static int64_t heads_of(const struct kvc__rope_params *p)
{
	return p->q_heads + p->kv_heads * (p->v.data ? 2 : 1);
}

static int streams(const struct kvc__rope_params *p)
{
	return p->token_count * heads_of(p) * p->kv_dim * 2 >= STREAM_BYTES;
}

/* The next kernel may start once this one has waited for the one before it. */
static kvc_status launch_blocks(struct kvc__kernel *kernel, struct kvc__rope_params *p,
        int64_t warps, int64_t block_warps, void *stream)
{
	struct kvc__launch launch = {
		.grid_x = (unsigned)divide_up(warps, block_warps),
		.block = (unsigned)(32 * block_warps),
		.programmatic = 1,
	};
	p->programmatic = 1;
	return kvc__cuda_launch(kernel, &launch, p, stream);
}

/* 'parts' warps a token. With a table warps are numbered through; without, a block holds whole
 * tokens, whose angles it computes once. */
static kvc_status launch_parts(
        struct kvc__kernel *kernel, struct kvc__rope_params *p, int64_t parts, void *stream)
{
	int64_t tokens = BLOCK_WARPS / parts, block_warps = 4;

	p->parts = (int32_t)parts;
	p->parts_magic = magic_of(parts);
	if (!p->cos_sin) {
		tokens = tokens < 1 ? 1 : tokens > BLOCK_TOKENS_MAX ? BLOCK_TOKENS_MAX : tokens;
		tokens = tokens > p->token_count ? p->token_count : tokens;
		p->block_tokens = (int32_t)tokens;
		block_warps = tokens * parts;
	}
	return launch_blocks(kernel, p, p->token_count * parts, block_warps, stream);
}

static kvc_status launch_fast(struct kvc__rope_params *p, void *stream)
{
	int fp8 = p->pool_element != p->element;
	int64_t heads = heads_of(p), heads_a_warp = 512 / p->kv_dim;
	struct kvc__kernel *kernel = &fast_kernels[p->element == KVC__ELEMENT_F16][p->kv_dim == 128]
	                                          [p->cos_sin != NULL][2 * fp8 + streams(p)];

	p->heads_magic = magic_of(heads);
	if (p->cos_sin)
		return launch_blocks(
		        kernel, p, divide_up(heads * p->token_count, heads_a_warp), 4, stream);
	return launch_parts(kernel, p, divide_up(heads, heads_a_warp), stream);
}

static kvc_status launch_stamp(struct kvc__rope_params *p, void *stream)
{
	/* K, V, and q two units a warp. */
	int64_t parts = 2 + divide_up(p->q_heads, 2 * (512 / p->kv_dim));

	return launch_parts(&stamp_kernels[p->element == KVC__ELEMENT_F16][p->kv_dim == 128]
	                                  [p->cos_sin != NULL][streams(p)],
	        p, parts, stream);
}

static kvc_status launch_general(struct kvc__rope_params *p, void *stream)
{
	struct kvc__launch launch = { .grid_x = (unsigned)p->token_count, .block = 128 };

	return kvc__cuda_launch(&general_kernel, &launch, p, stream);
}

static kvc_status launch_tokens(
        struct kvc__kernel *kernel, const struct kvc__rope_params *p, void *stream)
{
	struct kvc__launch launch = {
		.grid_x = (unsigned)((p->token_count + 255) / 256),
		.block = 256,
	};
	return kvc__cuda_launch(kernel, &launch, p, stream);
}

kvc_status kvc__cuda_rope(const struct kvc__cuda_rope *call, void *stream)
{
	struct kvc__rope_params p = params_of(call);
	int fast = is_fast(call);

	if (p.duplicate_scratch)
		KVC__TRY(launch_tokens(&claim_kernel, &p, stream));
	if (fast && !p.records)
		KVC__TRY(launch_fast(&p, stream));
	else if (fast && is_fast_stamp(call->job))
		KVC__TRY(launch_stamp(&p, stream));
	else
		KVC__TRY(launch_general(&p, stream));
	if (p.report)
		KVC__TRY(launch_tokens(&report_kernel, &p, stream));
	if (p.duplicate_scratch)
		KVC__TRY(launch_tokens(&unclaim_kernel, &p, stream));
	return KVC_OK;
}

#endif /* KVC_WITH_CUDA */
