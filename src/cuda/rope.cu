// rope_pool_fused on the device: the same bytes as src/cpu/rope_portable.c, row by row.
//
// Two kernels. The fast one takes what engines do: 16-bit elements, NeoX pairs over the whole head,
// contiguous heads of 64 or 128 elements, 16-byte alignment. A lane owns 8 elements of a
// head's lower half and their partners of the upper half, so that every access is 16 bytes and both
// halves of a pair meet in one thread. Cosines and sines come
// from the caller's table, or a block computes those of its tokens once, in doubles, into shared
// memory while its rows are on their way.
// The general one takes everything else, a block a token, element by element.
//
// Compiled with --fmad=false: products and sums are rounded one by one (base/sincos.h says why).
#include <cuda_fp16.h>
#include <stddef.h>

#include "base/float_formats.h"
#include "base/sincos.h"
#include "cpu/hash.h"
#include "cuda/device.cuh"
#include "cuda/rope_params.h"
#include "cuda/xxh3.cuh"

// The common kernels take the parameters without the frequencies beyond 64 pairs.
struct __align__(8) kvc__rope_params_small {
	char bytes[offsetof(kvc__rope_params, inv_freq_rest)];
};

// ---- indices ----

static __device__ __forceinline__ int64_t index_at(const kvc__indices &indices, int64_t i)
{
	const char *at = indices.data + i * indices.stride;
	return indices.is_64 ? *(const int64_t *)at : (int64_t)*(const int32_t *)at;
}

// What becomes of a token: the refusals of the front door, made row by row. An offending row is
// treated as one that skips its pool write; one that is also out of position is left alone wholly.
struct Verdict {
	bool skipped; // no pool row
	bool idle;    // nothing at all: q_out and k_out stay as they are
};

static __device__ __forceinline__ Verdict judge(
        const kvc__rope_params &p, int64_t token, int64_t position, int64_t slot)
{
	if (KVC__MOVES_ONLY)
		return { false, false };
	Verdict v;
	v.idle = position < 0 || position >= p.position_count;
	v.skipped = v.idle || slot < 0 || slot == p.reserved_slot || slot >= p.slot_count;
	if (!v.skipped && p.duplicate_scratch)
		v.skipped = p.duplicate_scratch[slot] != INT32_MAX - (int32_t)token;
	return v;
}

// ---- angles ----

static __device__ __forceinline__ void angle(
        const kvc__rope_params &p, int64_t position, double inv_freq, float *c, float *s)
{
	if (KVC__MOVES_ONLY) {
		*c = *s = (float)position;
		return;
	}
	double dc, ds;
	kvc__sincos((double)position * inv_freq, &dc, &ds);
	*c = (float)(p.attention_factor * dc);
	*s = (float)(p.attention_factor * ds);
}

// ---- elements ----

template <int ELEMENT>
static __device__ __forceinline__ float widen(uint16_t raw)
{
	if (ELEMENT == KVC__ELEMENT_BF16)
		return kvc__f32_from_bf16(raw);
	return __half2float(__ushort_as_half(raw));
}

// Two rotated values as two stored elements. The chip's conversions round to nearest even and keep
// subnormals; they make of a NaN 7FFF, where ours is the positive quiet one.
template <int ELEMENT>
static __device__ __forceinline__ uint32_t narrow2(float a, float b)
{
	uint32_t pair;
	if (ELEMENT == KVC__ELEMENT_BF16) {
		asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(b), "f"(a));
		if (a != a)
			pair = (pair & 0xFFFF0000u) | 0x7FC0u;
		if (b != b)
			pair = (pair & 0xFFFFu) | 0x7FC00000u;
	} else {
		asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(b), "f"(a));
		if (a != a)
			pair = (pair & 0xFFFF0000u) | 0x7E00u;
		if (b != b)
			pair = (pair & 0xFFFFu) | 0x7E000000u;
	}
	return pair;
}

// Two values as two bytes of a pool of 8-bit floats.
static __device__ __forceinline__ uint32_t quantise2(
        int pool_element, float a, float b, float scale)
{
	if (scale != 1.0f)
		a = kvc__divide_keep_sign(a, scale), b = kvc__divide_keep_sign(b, scale);
#if __CUDA_ARCH__ >= 890
	// The chip's conversions round and saturate as ours, but drop the sign of a NaN, which V keeps.
	uint16_t pair;
	if (pool_element == KVC__ELEMENT_E4M3)
		asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(b), "f"(a));
	else
		asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(b), "f"(a));
	uint32_t out = pair;
	if (a != a)
		out |= kvc__bits_of(a) >> 24 & 0x80u;
	if (b != b)
		out |= kvc__bits_of(b) >> 16 & 0x8000u;
	return out;
#else
	return pool_element == KVC__ELEMENT_E4M3
	               ? kvc__e4m3_from_f32(a) | (uint32_t)kvc__e4m3_from_f32(b) << 8
	               : kvc__e5m2_from_f32(a) | (uint32_t)kvc__e5m2_from_f32(b) << 8;
#endif
}

// 8 elements as words of 32 bits.
struct Words {
	uint32_t w[4];
};

template <bool STREAM>
static __device__ __forceinline__ Words load(const char *at)
{
	uint4 x = STREAM ? __ldcs((const uint4 *)at) : *(const uint4 *)at;
	return { { x.x, x.y, x.z, x.w } };
}

template <bool STREAM>
static __device__ __forceinline__ void store(char *at, const Words &r)
{
	uint4 x = make_uint4(r.w[0], r.w[1], r.w[2], r.w[3]);
	if (STREAM)
		__stcs((uint4 *)at, x);
	else
		*(uint4 *)at = x;
}

// 8 elements to a pool: as they are, or made into 8-bit floats from the stored bits.
template <int ELEMENT, bool FP8, bool STREAM>
static __device__ __forceinline__ void store_pool(
        char *at, const Words &r, int pool_element, float scale)
{
	if constexpr (!FP8) {
		store<STREAM>(at, r);
		return;
	} else if constexpr (KVC__MOVES_ONLY) {
		*(uint2 *)at = make_uint2(r.w[0] ^ r.w[1], r.w[2] ^ r.w[3]);
	} else {
		uint32_t out[4];
#pragma unroll
		for (int i = 0; i < 4; i++) {
			uint16_t low = (uint16_t)r.w[i], high = (uint16_t)(r.w[i] >> 16);
			// Not the chip's conversion from f16: it need not keep the sign of a NaN.
			float a = ELEMENT == KVC__ELEMENT_BF16 ? kvc__f32_from_bf16(low) : kvc__f32_from_f16(low);
			float b = ELEMENT == KVC__ELEMENT_BF16 ? kvc__f32_from_bf16(high) : kvc__f32_from_f16(high);
			out[i] = quantise2(pool_element, a, b, scale);
		}
		*(uint2 *)at = make_uint2(out[0] | out[1] << 16, out[2] | out[3] << 16);
	}
}

// ---- the fast kernels ----

// The next kernel's start is let go only after this one's wait: by then all work before is done, and
// its launch overlaps with this kernel's whole run.
static __device__ __forceinline__ void begin(const kvc__rope_params &p)
{
	if (p.programmatic) {
		kvc__wait_for_previous();
		kvc__release_next();
	}
}

// How a warp is laid over heads of D elements, 8 of each half a lane.
template <int D>
struct Layout {
	static constexpr int LANES = D / 16;     // a head
	static constexpr int HEADS = 32 / LANES; // a warp
};

// A block that computes angles holds whole tokens: which of them and which of its parts a warp has.
struct Place {
	uint32_t token;
	int part;
	int local; // token within the block
};

static __device__ __forceinline__ Place place_of(const kvc__rope_params &p)
{
	Place place;
	uint32_t warp = threadIdx.x / 32;
	place.local = p.block_tokens == 1 ? 0 : (int)(warp / (uint32_t)p.parts);
	place.part = (int)warp - place.local * p.parts;
	place.token = blockIdx.x * p.block_tokens + place.local;
	return place;
}

#define BLOCK_TOKENS_MAX 8

// The cosines and sines of a block's tokens, computed by all of its threads.
template <int D>
struct Shared {
	float c[BLOCK_TOKENS_MAX][D / 2], s[BLOCK_TOKENS_MAX][D / 2];

	__device__ __forceinline__ void compute(const kvc__rope_params &p)
	{
		for (int i = threadIdx.x; i < p.block_tokens * (D / 2); i += blockDim.x) {
			int local = i / (D / 2), pair = i % (D / 2);
			int64_t token = (int64_t)blockIdx.x * p.block_tokens + local;
			if (token < p.token_count)
				angle(p, index_at(p.positions, token), p.inv_freq[pair], &c[local][pair],
				        &s[local][pair]);
		}
		__syncthreads();
	}
};

// The 8 cosines and sines of this lane.
template <int D, bool TABLE>
static __device__ __forceinline__ void angles(const kvc__rope_params &p, int64_t position,
        bool idle, int l, const float *shared_c, const float *shared_s, float *c, float *s)
{
	const float *from_c = shared_c, *from_s = shared_s;
	if (TABLE) {
		from_c = p.cos_sin + (idle ? 0 : position) * p.cos_sin_row_stride;
		from_s = from_c + D / 2;
	}
#pragma unroll
	for (int i = 0; i < 8; i += 4) {
		float4 x = *(const float4 *)(from_c + l * 8 + i), y = *(const float4 *)(from_s + l * 8 + i);
		c[i] = x.x, c[i + 1] = x.y, c[i + 2] = x.z, c[i + 3] = x.w;
		s[i] = y.x, s[i + 1] = y.y, s[i + 2] = y.z, s[i + 3] = y.w;
	}
}

template <int ELEMENT>
static __device__ __forceinline__ void rotate(
        Words &lo, Words &hi, const float *c, const float *s)
{
	if (KVC__MOVES_ONLY) { // what is stored waits for the angles
		uint32_t all_c = 0, all_s = 0;
#pragma unroll
		for (int i = 0; i < 8; i++)
			all_c ^= __float_as_uint(c[i]), all_s ^= __float_as_uint(s[i]);
		if (kvc__never((uint64_t)all_s << 32 | all_c))
			lo.w[0] = hi.w[0] = 0;
		return;
	}
#pragma unroll
	for (int i = 0; i < 4; i++) {
		float a0 = widen<ELEMENT>((uint16_t)lo.w[i]), a1 = widen<ELEMENT>((uint16_t)(lo.w[i] >> 16));
		float b0 = widen<ELEMENT>((uint16_t)hi.w[i]), b1 = widen<ELEMENT>((uint16_t)(hi.w[i] >> 16));
		lo.w[i] = narrow2<ELEMENT>(a0 * c[2 * i] - b0 * s[2 * i],
		        a1 * c[2 * i + 1] - b1 * s[2 * i + 1]);
		hi.w[i] = narrow2<ELEMENT>(a0 * s[2 * i] + b0 * c[2 * i],
		        a1 * s[2 * i + 1] + b1 * c[2 * i + 1]);
	}
}

static __device__ __forceinline__ char *element_at(
        const kvc__rows &rows, int64_t row, int head, int bytes)
{
	return rows.data + row * rows.row_stride + head * rows.head_stride + bytes;
}

// Heads are numbered through q, k and v of a token. With a table they are numbered through all tokens,
// HEADS a warp, so that no lane is idle; a block that computes angles holds whole tokens.
template <int D, int ELEMENT, bool FP8, bool STREAM, bool TABLE>
static __device__ __forceinline__ void rope_fast(const kvc__rope_params &p)
{
	typedef Layout<D> L;
	constexpr int V = 8;
	int lane = threadIdx.x % 32, l = lane % L::LANES, sub = lane / L::LANES;
	int v_head = p.q_heads + p.kv_heads, heads = v_head + (p.v.data ? p.kv_heads : 0);
	Place at = { 0, 0, 0 };
	uint32_t token;
	int h;
	if (TABLE) {
		uint32_t head = (blockIdx.x * blockDim.x + threadIdx.x) / 32 * L::HEADS + sub;
		token = __umulhi(head, p.heads_magic);
		h = (int)(head - token * heads);
	} else {
		at = place_of(p);
		token = at.token;
		h = at.part * L::HEADS + sub;
	}
	bool valid = token < p.token_count && h < heads;

	begin(p);
	int64_t position = 0, slot = 0;
	Words lo, hi;
	if (valid) {
		position = index_at(p.positions, token);
		slot = index_at(p.slots, token);
		const char *in = h < p.q_heads ? element_at(p.q, token, h, 2 * V * l)
		        : h < v_head           ? element_at(p.k, token, h - p.q_heads, 2 * V * l)
		                               : element_at(p.v, token, h - v_head, 2 * V * l);
		lo = load<STREAM>(in);
		hi = load<STREAM>(in + D);
	}
	const float *shared_c = NULL, *shared_s = NULL;
	if constexpr (!TABLE) {
		__shared__ Shared<D> shared;
		shared.compute(p);
		shared_c = shared.c[at.local], shared_s = shared.s[at.local];
	}
	if (!valid)
		return;
	Verdict verdict = judge(p, token, position, slot);
	float c[V], s[V];
	if (h < v_head)
		angles<D, TABLE>(p, position, verdict.idle, l, shared_c, shared_s, c, s);
	if (verdict.idle)
		return;
	if (h < v_head) {
		rotate<ELEMENT>(lo, hi, c, s);
		bool is_q = h < p.q_heads;
		const kvc__rows &rows = is_q ? p.q_out : p.k_out;
		if (rows.data) {
			char *out = element_at(rows, token, is_q ? h : h - p.q_heads, 2 * V * l);
			store<STREAM>(out, lo);
			store<STREAM>(out + D, hi);
		}
		if (is_q)
			return;
	}
	if (verdict.skipped)
		return;
	constexpr int WIDTH = FP8 ? 1 : 2;
	bool is_v = h >= v_head;
	char *row = is_v ? element_at(p.v_pool, slot, h - v_head, WIDTH * V * l)
	                 : element_at(p.k_pool, slot, h - p.q_heads, WIDTH * V * l);
	float scale = is_v ? p.v_scale : p.k_scale;
	store_pool<ELEMENT, FP8, STREAM>(row, lo, p.pool_element, scale);
	store_pool<ELEMENT, FP8, STREAM>(row + WIDTH * D / 2, hi, p.pool_element, scale);
}

// ---- stamping while the rows are in registers ----

// Whole rows of K and V with adjacent heads, of more than 240 bytes. A unit is 1024 bytes of a row, what a
// warp holds at 32 bytes a lane, and exactly one block of XXH3; a shorter row takes p.row_lanes lanes, and
// a warp several of them. Groups of lanes come in sets for p.block_tokens tokens: the first has their K and
// V rows, the others their heads of q, numbered through. With a table a group is a block; a block that
// computes angles is a set of smaller groups.
struct Secret {
	uint64_t stripe[24], last[8], merge[8];

	// From the parameters, which are there without a wait. A barrier is needed after.
	__device__ __forceinline__ void load(const kvc__rope_params &p)
	{
		if (!KVC__MOVES_ONLY && threadIdx.x < sizeof(*this) / 8)
			stripe[threadIdx.x] = p.secret[threadIdx.x];
	}
};

// One lane's part in a row.
struct RowLane {
	uint32_t token;
	int64_t slot;
	int h, l; // head of the first unit, lane of the head
	bool is_v, live, stored;
};

template <int D, int ELEMENT, bool STREAM>
static __device__ __forceinline__ void load_unit(
        const kvc__rope_params &p, const RowLane &row, int u, Words *lo, Words *hi)
{
	int h = row.h + u * Layout<D>::HEADS;
	if (!row.live || h >= p.kv_heads)
		return;
	const char *in = element_at(row.is_v ? p.v : p.k, row.token, h, 16 * row.l);
	*lo = load<STREAM>(in);
	*hi = load<STREAM>(in + D);
}

// Rotate and store a unit; what it adds to the accumulators.
template <int D, int ELEMENT, bool STREAM>
static __device__ __forceinline__ kvc__xxh3_pair put_unit(const kvc__rope_params &p,
        const RowLane &row, int u, Words lo, Words hi, const float *c, const float *s,
        const Secret &secret)
{
	kvc__xxh3_pair part = { 0, 0 };
	int h = row.h + u * Layout<D>::HEADS;
	if (!row.live || h >= p.kv_heads)
		return part;
	if (!row.is_v) {
		rotate<ELEMENT>(lo, hi, c, s);
		if (p.k_out.data) {
			char *out = element_at(p.k_out, row.token, h, 16 * row.l);
			store<STREAM>(out, lo);
			store<STREAM>(out + D, hi);
		}
	}
	if (row.stored) {
		char *out = element_at(row.is_v ? p.v_pool : p.k_pool, row.slot, h, 16 * row.l);
		store<STREAM>(out, lo);
		store<STREAM>(out + D, hi);
	}
	if (KVC__MOVES_ONLY)
		return part;
	// The last stripe of the whole row has a key of its own.
	int stripe = (h * D * 2 + row.l * 16) / 64, end = p.kv_heads * D / 32 - 1, piece = row.l % 4 * 2;
	const uint64_t *key = stripe == end ? secret.last : secret.stripe + stripe % 16;
	part.add(make_uint4(lo.w[0], lo.w[1], lo.w[2], lo.w[3]), key + piece);
	stripe += D / 64;
	key = stripe == end ? secret.last : secret.stripe + stripe % 16;
	part.add(make_uint4(hi.w[0], hi.w[1], hi.w[2], hi.w[3]), key + piece);
	return part;
}

// Sum over the lanes of a row that have the same piece.
static __device__ __forceinline__ void gather_row(const kvc__rope_params &p, kvc__xxh3_pair &part)
{
#pragma unroll
	for (int step = 4; step < 32; step *= 2)
		if (!KVC__MOVES_ONLY && step < p.row_lanes) {
			part.a += __shfl_xor_sync(KVC__FULL_WARP, part.a, step);
			part.b += __shfl_xor_sync(KVC__FULL_WARP, part.b, step);
		}
}

static __device__ __forceinline__ void add_share(
        const kvc__rope_params &p, const RowLane &row, uint64_t share)
{
	if (row.stored && row.h == 0 && row.l == 0)
		atomicAdd((unsigned long long *)((char *)p.records + row.slot * p.record_stride + 24),
		        (unsigned long long)share);
}

// A row of any number of units, by whole warps.
template <int D, int ELEMENT, bool STREAM>
static __device__ __forceinline__ void stamp_row(const kvc__rope_params &p, const RowLane &row,
        Words (&lo)[2], Words (&hi)[2], const float *c, const float *s, const Secret &secret)
{
	int piece = row.l % 4 * 2;
	kvc__xxh3_pair sum;
	sum.start(row.l);
	for (int u = 0; u < p.row_units; u += 2) {
		if (u > 0) {
			load_unit<D, ELEMENT, STREAM>(p, row, u, &lo[0], &hi[0]);
			load_unit<D, ELEMENT, STREAM>(p, row, u + 1, &lo[1], &hi[1]);
		}
#pragma unroll
		for (int i = 0; i < 2; i++) {
			if (u + i >= p.row_units)
				break;
			kvc__xxh3_pair part = put_unit<D, ELEMENT, STREAM>(
			        p, row, u + i, lo[i], hi[i], c, s, secret);
			gather_row(p, part);
			if (u + i > 0)
				sum.scramble(secret.stripe + 16 + piece);
			sum.a += part.a, sum.b += part.b;
		}
	}
	uint64_t hash = sum.finish((int64_t)p.kv_heads * D * 2, secret.merge + piece);
	add_share(p, row, kvc__fingerprint_share(hash, row.is_v ? p.v_id : p.k_id));
}

// The K and the V row of a token, a unit each, by the same lanes: both are on their way at once.
template <int D, int ELEMENT, bool STREAM>
static __device__ __forceinline__ void stamp_both(const kvc__rope_params &p, RowLane row,
        Words (&lo)[2], Words (&hi)[2], const float *c, const float *s, const Secret &secret)
{
	uint64_t share = 0;
#pragma unroll
	for (int i = 0; i < 2; i++) {
		row.is_v = i == 1;
		kvc__xxh3_pair sum, part = put_unit<D, ELEMENT, STREAM>(
		                            p, row, 0, lo[i], hi[i], c, s, secret);
		gather_row(p, part);
		sum.start(row.l);
		sum.a += part.a, sum.b += part.b;
		share += kvc__fingerprint_share(sum.finish((int64_t)p.kv_heads * D * 2,
		                                        secret.merge + row.l % 4 * 2),
		        i == 0 ? p.k_id : p.v_id);
	}
	add_share(p, row, share);
}

template <int D, int ELEMENT, bool STREAM, bool TABLE>
static __device__ __forceinline__ void rope_stamp(const kvc__rope_params &p)
{
	typedef Layout<D> L;
	constexpr int GROUP = TABLE ? KVC__STAMP_GROUP : KVC__STAMP_GROUP_COMPUTED;
	constexpr int Q_HEADS = STREAM ? KVC__STAMP_Q_HEADS : 1; // of a lane, of one token
	__shared__ Secret secret;
	uint32_t set = TABLE && p.parts > 1 ? __umulhi(blockIdx.x, p.parts_magic) : blockIdx.x;
	int group = TABLE ? (int)(blockIdx.x - set * p.parts) : (int)(threadIdx.x / GROUP);
	int lane = threadIdx.x % GROUP;
	bool has_row = group == 0, is_v = false;
	int local, h, l = lane % L::LANES;
	if (has_row) {
		int row = lane / p.row_lanes;
		is_v = p.row_apart && row % 2;
		local = p.row_apart ? row / 2 : row;
		h = lane % p.row_lanes / L::LANES;
	} else {
		uint32_t heads = (uint32_t)((group - 1) * GROUP + lane) / L::LANES;
		local = p.q_parts == 1 ? (int)heads : (int)__umulhi(heads, p.heads_magic);
		h = (int)heads - local * p.q_parts;
	}
	uint32_t token = set * p.block_tokens + local;
	bool valid = local < p.block_tokens && token < p.token_count;

	if (has_row || !TABLE)
		secret.load(p);
	if (TABLE && has_row)
		__syncthreads();
	begin(p);
	int64_t position = 0, slot = 0;
	if (valid) {
		position = index_at(p.positions, token);
		slot = index_at(p.slots, token);
	}
	Words lo[2], hi[2];
	RowLane row = { token, slot, h, l, is_v, valid, false };
	bool both = STREAM && p.v.data && !p.row_apart;
	if (has_row) {
		load_unit<D, ELEMENT, STREAM>(p, row, 0, &lo[0], &hi[0]);
		row.is_v = is_v || both;
		load_unit<D, ELEMENT, STREAM>(p, row, both ? 0 : 1, &lo[1], &hi[1]);
		row.is_v = is_v;
	} else if (valid) {
#pragma unroll
		for (int i = 0; i < Q_HEADS; i++)
			if (h + i * p.q_parts < p.q_heads) {
				const char *in = element_at(p.q, token, h + i * p.q_parts, 16 * l);
				lo[i] = load<STREAM>(in);
				hi[i] = load<STREAM>(in + D);
			}
	}
	const float *shared_c = NULL, *shared_s = NULL;
	if constexpr (!TABLE) {
		__shared__ Shared<D> shared;
		shared.compute(p);
		shared_c = shared.c[valid ? local : 0], shared_s = shared.s[valid ? local : 0];
	}
	Verdict verdict = { true, true };
	if (valid)
		verdict = judge(p, token, position, slot);
	float c[8], s[8];
	if (!is_v)
		angles<D, TABLE>(p, position, verdict.idle, l, shared_c, shared_s, c, s);
	if (has_row) {
		row.live = !verdict.idle;
		row.stored = !verdict.skipped;
		if (both)
			stamp_both<D, ELEMENT, STREAM>(p, row, lo, hi, c, s, secret);
		else
			stamp_row<D, ELEMENT, STREAM>(p, row, lo, hi, c, s, secret);
	} else if (!verdict.idle) {
#pragma unroll
		for (int i = 0; i < Q_HEADS; i++)
			if (h + i * p.q_parts < p.q_heads) {
				rotate<ELEMENT>(lo[i], hi[i], c, s);
				char *out = element_at(p.q_out, token, h + i * p.q_parts, 16 * l);
				store<STREAM>(out, lo[i]);
				store<STREAM>(out + D, hi[i]);
			}
	}
}

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

KVC__KERNEL void __launch_bounds__(128) kvc_rope_general(const __grid_constant__ kvc__rope_params p)
{
	__shared__ float c[KVC__ROPE_PAIRS_LARGE], s[KVC__ROPE_PAIRS_LARGE];
	int64_t token = blockIdx.x;
	int64_t position = index_at(p.positions, token), slot = index_at(p.slots, token);
	Verdict verdict = judge(p, token, position, slot);
	if (verdict.idle)
		return;
	if (p.check_finite && !verdict.skipped) {
		bool bad = general_nonfinite(p, p.k, token) || general_nonfinite(p, p.v, token);
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
			if (!p.q_out.data)
				continue;
			target.out = element_at(p.q_out, token, h, 0);
			general_head(p, target, element_at(p.q, token, h, 0), p.q_dim, p.q_rotary_offset, c, s);
			continue;
		}
		bool is_v = h >= p.q_heads + p.kv_heads;
		int kv = h - p.q_heads - (is_v ? p.kv_heads : 0);
		const kvc__rows &in = is_v ? p.v : p.k, &pool = is_v ? p.v_pool : p.k_pool;
		if (!in.data)
			continue;
		target.pool_element = p.pool_element;
		target.scale = is_v ? p.v_scale : p.k_scale;
		if (!verdict.skipped)
			target.pool = element_at(pool, slot, kv, 0);
		if (!is_v && p.k_out.data)
			target.out = element_at(p.k_out, token, kv, 0);
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
		general_stamp(p, p.k_pool, slot, p.k_id);
	else if (warp == 1 && p.v.data)
		general_stamp(p, p.v_pool, slot, p.v_id);
}

// ---- around the main kernel: duplicates and the report ----

static __device__ bool claims(const kvc__rope_params &p, int64_t token, int64_t *slot)
{
	*slot = index_at(p.slots, token);
	int64_t position = index_at(p.positions, token);
	return *slot >= 0 && *slot != p.reserved_slot && *slot < p.slot_count && position >= 0 &&
	       position < p.position_count;
}

// The lowest token on each slot leaves the largest mark.
KVC__KERNEL void kvc_rope_claim(const __grid_constant__ kvc__rope_params_small small)
{
	const kvc__rope_params &p = (const kvc__rope_params &)small;
	int64_t token = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, slot;
	if (token < p.token_count && claims(p, token, &slot))
		atomicMax(&p.duplicate_scratch[slot], INT32_MAX - (int32_t)token);
}

KVC__KERNEL void kvc_rope_unclaim(const __grid_constant__ kvc__rope_params_small small)
{
	const kvc__rope_params &p = (const kvc__rope_params &)small;
	int64_t token = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, slot;
	if (token < p.token_count && claims(p, token, &slot))
		p.duplicate_scratch[slot] = 0;
}

KVC__KERNEL void kvc_rope_report(const __grid_constant__ kvc__rope_params_small small)
{
	const kvc__rope_params &p = (const kvc__rope_params &)small;
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

// ---- names that the host looks up ----

#define FAST(NAME, D, ELEMENT, FP8, STREAM, TABLE) \
	KVC__KERNEL void NAME(const __grid_constant__ kvc__rope_params_small p) \
	{ \
		rope_fast<D, ELEMENT, FP8, STREAM, TABLE>((const kvc__rope_params &)p); \
	}
#define STAMP(NAME, D, ELEMENT, STREAM, TABLE) \
	KVC__KERNEL void __launch_bounds__(TABLE ? KVC__STAMP_GROUP : 1024, TABLE ? KVC__STAMP_BLOCKS : 1) NAME( \
	        const __grid_constant__ kvc__rope_params_small p) \
	{ \
		rope_stamp<D, ELEMENT, STREAM, TABLE>((const kvc__rope_params &)p); \
	}

// s: bytes are streamed; t: with a table.
#define FAMILY(TAG, ELEMENT, D) \
	FAST(kvc_rope_##TAG##_##D##_t, D, ELEMENT, false, false, true) \
	FAST(kvc_rope_##TAG##_##D##_s_t, D, ELEMENT, false, true, true) \
	FAST(kvc_rope_##TAG##_##D, D, ELEMENT, false, false, false) \
	FAST(kvc_rope_##TAG##_##D##_s, D, ELEMENT, false, true, false) \
	FAST(kvc_rope_##TAG##_fp8_##D##_t, D, ELEMENT, true, false, true) \
	FAST(kvc_rope_##TAG##_fp8_##D##_s_t, D, ELEMENT, true, true, true) \
	FAST(kvc_rope_##TAG##_fp8_##D, D, ELEMENT, true, false, false) \
	FAST(kvc_rope_##TAG##_fp8_##D##_s, D, ELEMENT, true, true, false) \
	STAMP(kvc_rope_stamp_##TAG##_##D##_t, D, ELEMENT, false, true) \
	STAMP(kvc_rope_stamp_##TAG##_##D##_s_t, D, ELEMENT, true, true) \
	STAMP(kvc_rope_stamp_##TAG##_##D, D, ELEMENT, false, false) \
	STAMP(kvc_rope_stamp_##TAG##_##D##_s, D, ELEMENT, true, false)

FAMILY(bf16, KVC__ELEMENT_BF16, 64)
FAMILY(bf16, KVC__ELEMENT_BF16, 128)
FAMILY(f16, KVC__ELEMENT_F16, 64)
FAMILY(f16, KVC__ELEMENT_F16, 128)
