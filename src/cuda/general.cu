// rope_pool_fused for all that the fast kernels (rope.cu) do not take, a block a token, element by element;
// and what runs around either: the claims of duplicate slots, and the report.
//
// Compiled with --fmad=false: products and sums are rounded one by one (base/sincos.h says why).
#include "base/float_formats.h"
#include "cpu/hash.h"
#include "cuda/rope.cuh"
#include "cuda/xxh3.cuh"

// ---- the general kernel: a block a token, an element a thread and step ----

static __device__ float general_load(int element, const char *at)
{
	if (element == KVC__ELEMENT_F32) {
		float value;
		memcpy(&value, at, sizeof value);
		return value;
	}
	uint16_t raw;
	memcpy(&raw, at, sizeof raw);
	return element == KVC__ELEMENT_BF16 ? kvc__f32_from_bf16(raw) : kvc__f32_from_f16(raw);
}

// Element 'at' of a head: the rotated value, rounded once.
static __device__ uint32_t general_round(int element, float value)
{
	return element == KVC__ELEMENT_F32    ? kvc__f32_canonical(value)
	        : element == KVC__ELEMENT_BF16 ? kvc__bf16_from_f32(value)
	                                       : kvc__f16_from_f32(value);
}

static __device__ uint32_t general_raw(int element, const char *at)
{
	uint32_t raw = 0;
	memcpy(&raw, at, element == KVC__ELEMENT_F32 ? 4 : 2);
	return raw;
}

static __device__ float general_widen(int element, uint32_t raw)
{
	return element == KVC__ELEMENT_F32     ? kvc__float_of(raw)
	        : element == KVC__ELEMENT_BF16 ? kvc__f32_from_bf16((uint16_t)raw)
	                                       : kvc__f32_from_f16((uint16_t)raw);
}

// Where the elements of one head go, and as what.
struct Target {
	char *out, *pool;
	int element, pool_element;
	float scale;
};

static __device__ void general_store(const Target &target, int at, uint32_t raw)
{
	int width = target.element == KVC__ELEMENT_F32 ? 4 : 2;
	if (target.out)
		memcpy(target.out + (int64_t)at * width, &raw, width);
	if (!target.pool)
		return;
	if (target.pool_element == target.element)
		memcpy(target.pool + (int64_t)at * width, &raw, width);
	else if (target.pool_element == KVC__ELEMENT_E4M3)
		target.pool[at] = (char)kvc__e4m3_scaled(general_widen(target.element, raw), target.scale);
	else
		target.pool[at] = (char)kvc__e5m2_scaled(general_widen(target.element, raw), target.scale);
}

// One head by one warp. c, s: shared memory.
static __device__ void general_head(const kvc__rope_params &p, const Target &target, const char *in,
        int dim, int offset, const float *c, const float *s)
{
	int half = p.rotary_dim / 2, width = target.element == KVC__ELEMENT_F32 ? 4 : 2;
	for (int i = threadIdx.x % 32; i < half; i += 32) {
		int first = offset + (p.interleaved ? 2 * i : i);
		int second = p.interleaved ? first + 1 : first + half;
		float x1 = general_load(target.element, in + (int64_t)first * width);
		float x2 = general_load(target.element, in + (int64_t)second * width);
		general_store(target, first, general_round(target.element, x1 * c[i] - x2 * s[i]));
		general_store(target, second, general_round(target.element, x1 * s[i] + x2 * c[i]));
	}
	for (int at = threadIdx.x % 32; at < dim; at += 32)
		if (at < offset || at >= offset + p.rotary_dim)
			general_store(target, at, general_raw(target.element, in + (int64_t)at * width));
}

// Does this thread see a NaN or infinity in its share of the rows?
static __device__ bool general_nonfinite(
        const kvc__rope_params &p, const kvc__rows &rows, int64_t token)
{
	int width = p.element == KVC__ELEMENT_F32 ? 4 : 2;
	bool found = false;
	for (int i = threadIdx.x; rows.data && i < p.kv_heads * p.kv_dim; i += blockDim.x) {
		const char *at = element_at(rows, token, i / p.kv_dim, i % p.kv_dim * width);
		found = found || !isfinite(general_load(p.element, at));
	}
	return found;
}

// The covered bytes of one pool row, one after the other.
struct RowBytes {
	const char *first;
	int64_t head_stride;
	int dim_bytes, head_bytes, part_bytes; // part_bytes = head_bytes with full coverage

	__device__ uint8_t byte(int at) const
	{
		int64_t i = (int64_t)(at / part_bytes) * head_bytes + at % part_bytes;
		return (uint8_t)first[i / dim_bytes * head_stride + i % dim_bytes];
	}
	__device__ uint64_t word(int at) const
	{
		uint64_t word = 0;
		for (int i = 0; i < 8; i++)
			word |= (uint64_t)byte(at + i) << 8 * i;
		return word;
	}
	__device__ uint4 piece(int64_t at) const
	{
		uint64_t a = word((int)at), b = word((int)at + 8);
		return make_uint4((uint32_t)a, (uint32_t)(a >> 32), (uint32_t)b, (uint32_t)(b >> 32));
	}
};

// Add the share of the row at 'slot'. A whole warp.
static __device__ void general_stamp(
        const kvc__rope_params &p, const kvc__rows &pool, int64_t slot, uint64_t id)
{
	int width = p.pool_element == KVC__ELEMENT_F32 ? 4 : p.pool_element < KVC__ELEMENT_E4M3 ? 2 : 1;
	int dim_bytes = p.kv_dim * width, row_bytes = p.kv_heads * dim_bytes;
	int head = (int)p.stamp_head_bytes;
	int part = p.coverage == KVC_COVERAGE_ALL ? head : head < 16 ? head : 16;
	RowBytes bytes = { pool.data + slot * pool.row_stride, pool.head_stride, dim_bytes, head, part };
	int n = row_bytes / head * part, lane = threadIdx.x % 32;
	uint64_t hash;
	if (n <= KVC__XXH_SHORT) {
		hash = lane == 0 ? kvc__xxh3_short(bytes, n) : 0;
	} else {
		kvc__xxh3_lane secret;
		secret.load(lane);
		hash = kvc__xxh3_long(bytes, n, secret, lane);
	}
	if (lane == 0)
		atomicAdd((unsigned long long *)((char *)p.records + slot * p.record_stride + 24),
		        (unsigned long long)kvc__fingerprint_share(hash, id));
}

static __device__ void general_angles(
        const kvc__rope_params &p, const double *inv_freq, int64_t position, float *c, float *s)
{
	int half = p.rotary_dim / 2;
	for (int i = threadIdx.x; i < half; i += blockDim.x) {
		if (p.cos_sin) {
			c[i] = p.cos_sin[position * p.cos_sin_row_stride + i];
			s[i] = p.cos_sin[position * p.cos_sin_row_stride + half + i];
		} else {
			angle(p, position, inv_freq[i], &c[i], &s[i]);
		}
	}
}

KVC__KERNEL void __launch_bounds__(128) kvc_general_rope(const __grid_constant__ kvc__rope_params p)
{
	__shared__ float c[KVC__ROPE_PAIRS_LARGE], s[KVC__ROPE_PAIRS_LARGE];
	int64_t token = blockIdx.x;
	int64_t position = index_at(p.positions, token), slot = index_at(p.slots, token);
	Verdict verdict = judge(p, token, position, slot);
	if (verdict.idle)
		return;
	if (p.check_finite && !verdict.skipped) {
		bool bad = general_nonfinite(p, p.rows[KVC__K], token) ||
		           general_nonfinite(p, p.rows[KVC__V], token);
		if (__syncthreads_or(bad)) {
			verdict.skipped = true;
			if (threadIdx.x == 0) {
				kvc__report_row(p.report, KVC_REPORT_NONFINITE, token);
				if (p.report) // the report kernel counts it as written
					kvc__report_add(&p.report->rows_written, -1);
			}
		}
	}
	general_angles(p, (const double *)((const char *)&p + offsetof(kvc__rope_params, inv_freq)),
	        position, c, s);
	__syncthreads();
	int heads = p.q_heads + 2 * p.kv_heads, warp = threadIdx.x / 32, warps = blockDim.x / 32;
	for (int h = warp; h < heads; h += warps) {
		Target target = { NULL, NULL, p.element, p.element, 1.0f };
		if (h < p.q_heads) {
			if (!p.rows[KVC__Q_OUT].data)
				continue;
			target.out = element_at(p.rows[KVC__Q_OUT], token, h, 0);
			general_head(p, target, element_at(p.rows[KVC__Q], token, h, 0), p.q_dim, p.q_rotary_offset, c, s);
			continue;
		}
		bool is_v = h >= p.q_heads + p.kv_heads;
		int kv = h - p.q_heads - (is_v ? p.kv_heads : 0);
		const kvc__rows &in = p.rows[is_v ? KVC__V : KVC__K];
		const kvc__rows &pool = p.rows[is_v ? KVC__V_POOL : KVC__K_POOL];
		if (!in.data)
			continue;
		target.pool_element = p.pool_element;
		target.scale = is_v ? p.v_scale : p.k_scale;
		if (!verdict.skipped)
			target.pool = element_at(pool, slot, kv, 0);
		if (!is_v && p.rows[KVC__K_OUT].data)
			target.out = element_at(p.rows[KVC__K_OUT], token, kv, 0);
		if (!target.out && !target.pool)
			continue;
		const char *from = element_at(in, token, kv, 0);
		if (is_v) {
			for (int at = threadIdx.x % 32; at < p.kv_dim; at += 32)
				general_store(target, at, general_raw(p.element,
				        from + (int64_t)at * (p.element == KVC__ELEMENT_F32 ? 4 : 2)));
		} else {
			general_head(p, target, from, p.kv_dim, p.rotary_offset, c, s);
		}
	}
	if (!p.records || verdict.skipped)
		return;
	__syncthreads();
	if (warp == 0)
		general_stamp(p, p.rows[KVC__K_POOL], slot, p.k_id);
	else if (warp == 1 && p.rows[KVC__V].data)
		general_stamp(p, p.rows[KVC__V_POOL], slot, p.v_id);
}

// ---- around the main kernel: duplicates and the report ----

static __device__ bool claims(const kvc__rope_params &p, int64_t token, int64_t *slot)
{
	*slot = index_at(p.slots, token);
	int64_t position = index_at(p.positions, token);
	return *slot >= 0 && *slot != p.reserved_slot && *slot < p.slot_count && position >= 0 &&
	       position < p.position_count;
}

typedef kvc__rope_params_head<offsetof(kvc__rope_params, inv_freq)> Around;

// The lowest token on each slot leaves the largest mark.
KVC__KERNEL void kvc_general_claim(const __grid_constant__ Around around)
{
	const kvc__rope_params &p = around.all();
	int64_t token = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, slot;
	if (token < p.token_count && claims(p, token, &slot))
		atomicMax(&p.duplicate_scratch[slot], INT32_MAX - (int32_t)token);
}

KVC__KERNEL void kvc_general_unclaim(const __grid_constant__ Around around)
{
	const kvc__rope_params &p = around.all();
	int64_t token = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, slot;
	if (token < p.token_count && claims(p, token, &slot))
		p.duplicate_scratch[slot] = 0;
}

KVC__KERNEL void kvc_general_report(const __grid_constant__ Around around)
{
	const kvc__rope_params &p = around.all();
	int64_t token = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, slot;
	bool written = false, skipped = false;
	if (token < p.token_count) {
		int64_t position = index_at(p.positions, token);
		written = claims(p, token, &slot);
		skipped = slot < 0 || slot == p.reserved_slot;
		if (!skipped && slot >= p.slot_count)
			kvc__report_row(p.report, KVC_REPORT_SLOT_RANGE, token);
		if (!skipped && (position < 0 || position >= p.position_count))
			kvc__report_row(p.report, KVC_REPORT_POSITION_RANGE, token);
		if (written && p.duplicate_scratch &&
		        p.duplicate_scratch[slot] != INT32_MAX - (int32_t)token) {
			written = false;
			kvc__report_row(p.report, KVC_REPORT_SLOT_DUPLICATE, token);
		}
	}
	int64_t rows = __popc(__ballot_sync(KVC__FULL_WARP, written));
	int64_t skips = __popc(__ballot_sync(KVC__FULL_WARP, skipped));
	if (threadIdx.x % 32 == 0) {
		if (rows)
			kvc__report_add(&p.report->rows_written, rows);
		if (skips)
			kvc__report_add(&p.report->rows_skipped, skips);
	}
}

