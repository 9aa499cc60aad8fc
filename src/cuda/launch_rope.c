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
#define STAMP_STREAM_BYTES (8 << 20)

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
	        job->rope->style != KVC_ROPE_NEOX || call->check_finite || job->q_heads < 1 ||
	        job->kv_heads < 1 || job->q_heads + 2 * job->kv_heads > 120)
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

static int64_t heads_of(const struct kvc__rope_params *p)
{
	return p->q_heads + p->kv_heads * (p->v.data ? 2 : 1);
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
	p->programmatic = 1;
	return kvc__cuda_launch(kernel, &launch, p, stream);
}

/* 'parts' warps a token; a block holds whole tokens, whose angles it computes once. */
static kvc_status launch_computed(
        struct kvc__kernel *kernel, struct kvc__rope_params *p, int64_t parts, void *stream)
{
	int64_t tokens = BLOCK_WARPS / parts;

	p->parts = (int32_t)parts;
	tokens = tokens < 1 ? 1 : tokens > BLOCK_TOKENS_MAX ? BLOCK_TOKENS_MAX : tokens;
	tokens = tokens > p->token_count ? p->token_count : tokens;
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
		return launch_blocks(
		        kernel, p, kvc__divide_up(heads * p->token_count, heads_a_warp), 4, stream);
	return launch_computed(kernel, p, kvc__divide_up(heads, heads_a_warp), stream);
}

/* The default secret of XXH3, as xxh3.cuh: in words, what its last stripe takes, what merging takes. */
static const uint64_t stamp_secret[40] = {
	0xBE4BA423396CFEB8,
	0x1CAD21F72C81017C,
	0xDB979083E96DD4DE,
	0x1F67B3B7A4A44072,
	0x78E5C0CC4EE679CB,
	0x2172FFCC7DD05A82,
	0x8E2443F7744608B8,
	0x4C263A81E69035E0,
	0xCB00C391BB52283C,
	0xA32E531B8B65D088,
	0x4EF90DA297486471,
	0xD8ACDEA946EF1938,
	0x3F349CE33F76FAA8,
	0x1D4F0BC7C7BBDCF9,
	0x3159B4CD4BE0518A,
	0x647378D9C97E9FC8,
	0xC3EBD33483ACC5EA,
	0xEB6313FAFFA081C5,
	0x49DAF0B751DD0D17,
	0x9E68D429265516D3,
	0xFCA1477D58BE162B,
	0xCE31D07AD1B8F88F,
	0x280416958F3ACB45,
	0x7E404BBBCAFBD7AF,
	0xEA647378D9C97E9F,
	0xC5C3EBD33483ACC5,
	0x17EB6313FAFFA081,
	0xD349DAF0B751DD0D,
	0x2B9E68D429265516,
	0x8FFCA1477D58BE16,
	0x45CE31D07AD1B8F8,
	0xAF280416958F3ACB,
	0x6DD4DE1CAD21F72C,
	0xA44072DB979083E9,
	0xE679CB1F67B3B7A4,
	0xD05A8278E5C0CC4E,
	0x4608B82172FFCC7D,
	0x9035E08E2443F774,
	0x52283C4C263A81E6,
	0x65D088CB00C391BB,
};

/* Lanes of a row of K or V: a power of two, a warp at most. */
static int32_t row_lanes(int64_t lanes)
{
	int32_t power = 1;

	while (power < lanes && power < 32)
		power *= 2;
	return power;
}

static kvc_status launch_stamp(struct kvc__rope_params *p, void *stream)
{
	int64_t group = p->cos_sin ? KVC__STAMP_GROUP : KVC__STAMP_GROUP_COMPUTED;
	int64_t head_lanes = p->kv_dim / 16, lanes = p->kv_heads * head_lanes;
	int wide = streams(p, STAMP_STREAM_BYTES);
	int64_t q_parts = kvc__divide_up(p->q_heads, wide ? KVC__STAMP_Q_HEADS : 1);
	int64_t q_heads = p->q_out.data ? q_parts : 0;

	p->row_lanes = row_lanes(lanes);
	p->row_units = (int32_t)kvc__divide_up(lanes, 32);
	/* Tokens whose K and V rows make a group, and no more q than a block holds. */
	p->row_apart = p->v.data && !(wide && p->row_units == 1);
	int64_t tokens = group / p->row_lanes / (p->row_apart ? 2 : 1);
	while (tokens > 1 && !p->cos_sin &&
	        group * (1 + kvc__divide_up(tokens * q_heads * head_lanes, group)) > 1024)
		tokens--;
	int64_t sets = kvc__divide_up(p->token_count, tokens);
	int64_t groups = 1 + kvc__divide_up(tokens * q_heads * head_lanes, group);
	p->block_tokens = (int32_t)tokens;
	p->parts = (int32_t)groups;
	p->parts_magic = magic_of(groups);
	p->q_parts = (int32_t)q_parts;
	p->heads_magic = magic_of(q_parts);
	memcpy(p->secret, stamp_secret, sizeof(stamp_secret));
	return launch_blocks(&stamp_kernels[p->element == KVC__ELEMENT_F16][p->kv_dim == 128]
	                                   [p->cos_sin != NULL][wide],
	        p, sets * groups * group / 32, (p->cos_sin ? 1 : groups) * group / 32, stream);
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
