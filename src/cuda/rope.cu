// rope_pool_fused on the device, what engines do: 16-bit elements, NeoX pairs over the whole head, contiguous
// heads of 64 or 128 elements, 16-byte alignment, counts and strides that fit in 32 bits (launch_rope.c says
// when; general.cu takes the rest). The same bytes as src/cpu/rope_portable.c, row by row.
//
// A lane owns 8 elements of a head's lower half and their partners of the upper half, so that every access is
// 16 bytes and both halves of a pair meet in one thread. Cosines and sines come from the caller's table, or a
// block computes those of its tokens once, in doubles, into shared memory while its rows are on their way.
//
// Short calls last as long as one lane's chain of instructions, long ones as the memory takes, unless there are
// too many of them: addresses are made before the wait for the kernel before, checks compare 32 bits, and q, k
// and v go through the same instructions.
//
// Compiled with --fmad=false: products and sums are rounded one by one (base/sincos.h says why).
#include <cuda_fp16.h>

#include "base/float_formats.h"
#include "cpu/hash.h"
#include "cuda/rope.cuh"
#include "cuda/xxh3.cuh"

// ---- elements ----

template <int ELEMENT>
static __device__ __forceinline__ float widen(uint32_t raw)
{
	if (ELEMENT == KVC__ELEMENT_BF16)
		return __uint_as_float(raw << 16);
	return __half2float(__ushort_as_half((uint16_t)raw));
}

template <int ELEMENT>
static __device__ __forceinline__ float widen_high(uint32_t pair)
{
	if (ELEMENT == KVC__ELEMENT_BF16)
		return __uint_as_float(pair & 0xFFFF0000u);
	return widen<ELEMENT>(pair >> 16);
}

// Two values as two stored elements, to nearest even with subnormals. A NaN becomes 7FFF.
template <int ELEMENT>
static __device__ __forceinline__ uint32_t narrow2(float a, float b)
{
	uint32_t pair;
	if (ELEMENT == KVC__ELEMENT_BF16)
		asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(b), "f"(a));
	else
		asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(b), "f"(a));
	return pair;
}

// 8 elements as words of 32 bits.
struct Words {
	uint32_t w[4];
};

// Issued where it is written, though its value may not be needed: what waits for it comes later.
template <bool STREAM>
static __device__ __forceinline__ Words load(const char *at)
{
	Words r;
	if (STREAM)
		asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];"
		             : "=r"(r.w[0]), "=r"(r.w[1]), "=r"(r.w[2]), "=r"(r.w[3]) : "l"(at));
	else
		asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
		             : "=r"(r.w[0]), "=r"(r.w[1]), "=r"(r.w[2]), "=r"(r.w[3]) : "l"(at));
	return r;
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

template <int ELEMENT>
static __device__ __forceinline__ uint32_t add2(uint32_t a, uint32_t b)
{
	uint32_t sum; // by a multiplication with ones, which chips before Hopper have for bf16 too
	if (ELEMENT == KVC__ELEMENT_BF16)
		asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(0x3F803F80), "r"(b));
	else
		asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(0x3C003C00), "r"(b));
	return sum;
}

// May there be a NaN among these? A sum of all of them tells; now and then infinities say so too.
template <int ELEMENT>
static __device__ __forceinline__ bool suspicious(const Words &x, const Words &y)
{
	constexpr uint32_t TO_SIGN = ELEMENT == KVC__ELEMENT_BF16 ? 0x007F007Fu : 0x03FF03FFu;
	uint32_t a = add2<ELEMENT>(x.w[0], x.w[1]), b = add2<ELEMENT>(x.w[2], x.w[3]);
	uint32_t c = add2<ELEMENT>(y.w[0], y.w[1]), d = add2<ELEMENT>(y.w[2], y.w[3]);
	uint32_t sum = add2<ELEMENT>(add2<ELEMENT>(a, b), add2<ELEMENT>(c, d));
	return (((sum & 0x7FFF7FFFu) + TO_SIGN) & 0x80008000u) != 0;
}

// The chip's NaN made ours, the positive quiet one.
template <int ELEMENT>
static __device__ __forceinline__ void canonical(Words &x)
{
	constexpr uint32_t NAN_BITS = ELEMENT == KVC__ELEMENT_BF16 ? 0x7FC0u : 0x7E00u;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		if ((x.w[i] & 0xFFFFu) == 0x7FFFu)
			x.w[i] = (x.w[i] & 0xFFFF0000u) | NAN_BITS;
		if (x.w[i] >> 16 == 0x7FFFu)
			x.w[i] = (x.w[i] & 0xFFFFu) | NAN_BITS << 16;
	}
}

template <int ELEMENT>
static __device__ __forceinline__ void rotate(Words &lo, Words &hi, const float *c, const float *s)
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
		float a0 = widen<ELEMENT>(lo.w[i]), a1 = widen_high<ELEMENT>(lo.w[i]);
		float b0 = widen<ELEMENT>(hi.w[i]), b1 = widen_high<ELEMENT>(hi.w[i]);
		lo.w[i] = narrow2<ELEMENT>(a0 * c[2 * i] - b0 * s[2 * i], a1 * c[2 * i + 1] - b1 * s[2 * i + 1]);
		hi.w[i] = narrow2<ELEMENT>(a0 * s[2 * i] + b0 * c[2 * i], a1 * s[2 * i + 1] + b1 * c[2 * i + 1]);
	}
	if (__builtin_expect(suspicious<ELEMENT>(lo, hi), 0)) {
		canonical<ELEMENT>(lo);
		canonical<ELEMENT>(hi);
	}
}

// ---- pools of 8-bit floats ----

template <bool E4M3>
static __device__ __forceinline__ uint32_t quantise2(float a, float b)
{
#if __CUDA_ARCH__ >= 890
	uint16_t pair; // rounded and saturated as ours
	if (E4M3)
		asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(b), "f"(a));
	else
		asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(b), "f"(a));
	return pair;
#else
	return E4M3 ? kvc__e4m3_from_f32(a) | (uint32_t)kvc__e4m3_from_f32(b) << 8
	            : kvc__e5m2_from_f32(a) | (uint32_t)kvc__e5m2_from_f32(b) << 8;
#endif
}

template <bool E4M3>
static __device__ __forceinline__ uint2 quantise8(const float *v)
{
	return make_uint2(quantise2<E4M3>(v[0], v[1]) | quantise2<E4M3>(v[2], v[3]) << 16,
	        quantise2<E4M3>(v[4], v[5]) | quantise2<E4M3>(v[6], v[7]) << 16);
}

// 8 stored elements of which some may be NaN: the chip would drop their signs, which V keeps.
template <int ELEMENT>
static __device__ __noinline__ uint2 quantise_exactly(uint4 r, int pool_element, float scale)
{
	const uint32_t words[4] = { r.x, r.y, r.z, r.w };
	uint32_t out[2] = { 0, 0 };
	for (int i = 0; i < 8; i++) {
		uint16_t raw = (uint16_t)(words[i / 2] >> i % 2 * 16);
		float value = ELEMENT == KVC__ELEMENT_BF16 ? kvc__f32_from_bf16(raw) : kvc__f32_from_f16(raw);
		uint32_t byte = pool_element == KVC__ELEMENT_E4M3 ? kvc__e4m3_scaled(value, scale)
		                                                   : kvc__e5m2_scaled(value, scale);
		out[i / 4] |= byte << i % 4 * 8;
	}
	return make_uint2(out[0], out[1]);
}

template <int ELEMENT>
static __device__ __forceinline__ uint2 quantise(const Words &r, int pool_element, float scale)
{
	float v[8];
#pragma unroll
	for (int i = 0; i < 4; i++)
		v[2 * i] = widen<ELEMENT>(r.w[i]), v[2 * i + 1] = widen_high<ELEMENT>(r.w[i]);
	if (scale != 1.0f) {
#pragma unroll
		for (int i = 0; i < 8; i++)
			v[i] = v[i] / scale;
	}
	return pool_element == KVC__ELEMENT_E4M3 ? quantise8<true>(v) : quantise8<false>(v);
}

// Both halves to a pool row: as they are, or made into 8-bit floats from the stored bits.
template <int D, int ELEMENT, bool FP8, bool STREAM>
static __device__ __forceinline__ void store_pool(
        char *at, const Words &lo, const Words &hi, bool is_v, int pool_element, float scale)
{
	if constexpr (!FP8) {
		store<STREAM>(at, lo);
		store<STREAM>(at + D, hi);
	} else {
		uint2 a, b;
		if (KVC__MOVES_ONLY) {
			a = make_uint2(lo.w[0] ^ lo.w[1], lo.w[2] ^ lo.w[3]);
			b = make_uint2(hi.w[0] ^ hi.w[1], hi.w[2] ^ hi.w[3]);
		} else if (is_v && suspicious<ELEMENT>(lo, hi)) { // in K every NaN is ours, without a sign
			a = quantise_exactly<ELEMENT>(
			        make_uint4(lo.w[0], lo.w[1], lo.w[2], lo.w[3]), pool_element, scale);
			b = quantise_exactly<ELEMENT>(
			        make_uint4(hi.w[0], hi.w[1], hi.w[2], hi.w[3]), pool_element, scale);
		} else {
			a = quantise<ELEMENT>(lo, pool_element, scale);
			b = quantise<ELEMENT>(hi, pool_element, scale);
		}
		*(uint2 *)at = a;
		*(uint2 *)(at + D / 2) = b;
	}
}

// ---- which lane has what ----

// Lanes of a head of D elements, and heads of a warp.
template <int D>
struct Layout {
	static constexpr int LANES = D / 16;
	static constexpr int HEADS = 32 / LANES;
};

// A lane's share of a token: 8 elements of each half of one head, in the l-th place.
struct Piece {
	uint32_t token;
	int kind; // KVC__Q, KVC__K or KVC__V
	int head, l;
	int local; // where a block holds whole tokens: which of them
	bool valid;
};

// A lane without a share reads what the first has, so that nothing before its stores needs a branch.
static __device__ __forceinline__ Piece or_the_first(Piece at)
{
	if (!at.valid)
		at.token = 0, at.kind = KVC__K, at.head = 0, at.local = 0;
	return at;
}

static __device__ __forceinline__ Piece piece_of(
        const kvc__rope_params &p, uint32_t token, int h, int l, int local)
{
	int v_head = p.q_heads + p.kv_heads, heads = v_head + (p.rows[KVC__V].data ? p.kv_heads : 0);
	int kind = (h >= p.q_heads) + (h >= v_head);
	int head = h - (h >= p.q_heads ? p.q_heads : 0) - (h >= v_head ? p.kv_heads : 0);
	return { token, kind, head, l, local, token < (uint32_t)p.token_count && h < heads };
}

// Heads are numbered through q, k and v of a token and through all tokens, so that no lane is idle.
template <int D>
static __device__ __forceinline__ Piece piece_by_number(const kvc__rope_params &p)
{
	uint32_t number = (blockIdx.x * blockDim.x + threadIdx.x) / Layout<D>::LANES;
	uint32_t token = __umulhi(number, p.heads_magic);
	int heads = p.q_heads + p.kv_heads + (p.rows[KVC__V].data ? p.kv_heads : 0);
	return piece_of(p, token, (int)(number - token * heads), threadIdx.x % Layout<D>::LANES, 0);
}

// A block that computes angles holds whole tokens, p.parts warps each.
template <int D>
static __device__ __forceinline__ Piece piece_of_token(const kvc__rope_params &p)
{
	int warp = threadIdx.x / 32, local = p.block_tokens == 1 ? 0 : warp / p.parts;
	int h = (warp - local * p.parts) * Layout<D>::HEADS + threadIdx.x % 32 / Layout<D>::LANES;
	return piece_of(
	        p, blockIdx.x * p.block_tokens + local, h, threadIdx.x % Layout<D>::LANES, local);
}

// Stamping: p.row_threads lanes have the rows of K and then of V of p.block_tokens tokens, a set; others have heads
// of q, numbered through. With a table they are blocks: of every p.chunk_tokens tokens first those with rows, which
// take longer, then those with q. A block that computes angles has a set and its heads of q.
template <int D, bool TABLE>
static __device__ __forceinline__ Piece piece_of_set(const kvc__rope_params &p, bool *in_row)
{
	constexpr int LANES = Layout<D>::LANES;
	uint32_t x = threadIdx.x, block = blockIdx.x, first = blockIdx.x * p.block_tokens, tokens = p.block_tokens;
	if (TABLE) {
		uint32_t chunk = block / p.chunk_blocks;
		block -= chunk * p.chunk_blocks;
		first = chunk * p.chunk_tokens;
	}
	*in_row = TABLE ? block < p.chunk_row_blocks : x < p.row_threads;
	Piece at;
	at.l = x % LANES;
	if (*in_row) {
		bool is_v = x >= p.kind_lanes;
		uint32_t y = is_v ? x - p.kind_lanes : x;
		at.kind = is_v ? KVC__V : KVC__K;
		at.local = (int)(y >> p.row_shift);
		at.head = (int)(y - at.local * p.row_lanes) / LANES;
		at.valid = at.head < p.kv_heads && y < p.kind_lanes && (!is_v || p.rows[KVC__V].data);
		first += TABLE ? block * p.block_tokens : 0;
	} else {
		uint32_t number = TABLE ? (block - p.chunk_row_blocks) * blockDim.x + x : x - p.row_threads;
		number /= LANES;
		at.kind = KVC__Q;
		at.local = p.q_heads == 1 ? (int)number : (int)__umulhi(number, p.heads_magic);
		at.head = (int)number - at.local * p.q_heads;
		at.valid = true;
		tokens = TABLE ? p.chunk_tokens : tokens;
	}
	at.token = first + at.local;
	at.valid = at.valid && at.local < tokens && at.token < (uint32_t)p.token_count;
	return at;
}

static __device__ __forceinline__ const char *plus(const char *base, uint32_t number, uint32_t stride)
{
	uint64_t at;
	asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(at) : "r"(number), "r"(stride), "l"(base));
	return (const char *)at;
}

// 'bytes' into a head. The host has made sure that numbers of rows and strides fit in 32 bits.
static __device__ __forceinline__ char *at_row(
        const kvc__rows &rows, uint32_t row, int head, int bytes)
{
	const char *at = plus(rows.data + bytes, (uint32_t)head, (uint32_t)rows.head_stride);
	return (char *)plus(at, row, (uint32_t)rows.row_stride);
}

// A position or slot; it is in range only if 'high' is zero. (A negative one of 32 bits is past every count.)
struct Index {
	uint32_t low, high;
};

static __device__ __forceinline__ Index load_index(const char *at, int is_64)
{
	Index index;
	asm volatile("ld.global.u32 %0, [%1];" : "=r"(index.low) : "l"(at));
	asm volatile("{ .reg .pred wide; setp.ne.s32 wide, %2, 0; mov.u32 %0, 0;\n\t"
	             "@wide ld.global.u32 %0, [%1 + 4]; }"
	             : "=r"(index.high) : "l"(at), "r"(is_64));
	return index;
}

// ---- angles ----

// The cosines and sines of a block's tokens, computed by all of its threads.
template <int D>
struct Angles {
	float c[KVC__ROPE_TOKENS][D / 2], s[KVC__ROPE_TOKENS][D / 2];

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

	__device__ __forceinline__ void get(const Piece &at, float *to_c, float *to_s) const
	{
#pragma unroll
		for (int i = 0; i < 8; i += 4) {
			float4 x = *(const float4 *)&c[at.local][at.l * 8 + i];
			float4 y = *(const float4 *)&s[at.local][at.l * 8 + i];
			to_c[i] = x.x, to_c[i + 1] = x.y, to_c[i + 2] = x.z, to_c[i + 3] = x.w;
			to_s[i] = y.x, to_s[i + 1] = y.y, to_s[i + 2] = y.z, to_s[i + 3] = y.w;
		}
	}
};

static __device__ __forceinline__ void load4(const char *at, float *to)
{
	asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
	             : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3]) : "l"(at));
}

// 8 cosines and sines from a row of a table.
template <int D>
static __device__ __forceinline__ void load_angles(const char *at, float *c, float *s)
{
	load4(at, c), load4(at + 16, c + 4);
	load4(at + D * 2, s), load4(at + D * 2 + 16, s + 4);
	__syncwarp(__activemask()); // all are under way before the first is waited for
}

// ---- stamping while the rows are in registers ----

// Whole rows of K and V with adjacent heads, of more than 240 bytes. Every lane adds its two pieces of 16 bytes
// to zero accumulators and leaves them in shared memory; eight lanes a row, an accumulator each, sum them block
// after block of XXH3 (1024 bytes, 32 lanes) and end the hash.

// What a lane's pieces are keyed with.
struct Keys {
	uint64_t lo[2], hi[2];
};

// One of the eight lanes that end a row's hash: the last warps of those with rows, which had V and no angles to
// wait for.
struct Ender {
	bool is_one;
	int row, a;    // accumulator
	uint32_t from; // bytes into Stamp.parts
	uint64_t term; // of the row's id

	__device__ __forceinline__ void find(const kvc__rope_params &p)
	{
		int i = (int)threadIdx.x - (int)(p.row_threads - ((p.stamp_rows * 8 + 31) & ~31));
		is_one = i >= 0;
		row = i / 8, a = i % 8;
		bool is_v = row >= p.block_tokens, real = row < p.stamp_rows;
		uint32_t first = is_v ? p.kind_lanes + (row - p.block_tokens) * p.row_lanes : row * p.row_lanes;
		from = (real ? first : 0) * 16 + (is_one ? a : 0) * 8;
		row = real ? row : KVC__STAMP_ROWS; // of none
		term = is_v ? p.v_term : p.k_term;
	}
};

struct Stamp {
	char *records[KVC__STAMP_ROWS + 2]; // of the rows of K and then of V; NULL: the row is not stored
	uint64_t secret[KVC__XXH_CONSTANTS];
	ulonglong2 parts[1]; // of every lane with a row

	// Needs end_start(), and a barrier after that.
	__device__ __forceinline__ void start()
	{
		int i = threadIdx.x;
		if (i < KVC__XXH_CONSTANTS / 2)
			asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(
			                     (uint32_t)__cvta_generic_to_shared(secret + 2 * i)),
			             "l"(kvc__xxh_secret + 2 * i)
			             : "memory");
		if (i <= KVC__STAMP_ROWS)
			records[i] = NULL;
	}

	static __device__ __forceinline__ void end_start()
	{
		asm volatile("cp.async.wait_all;" ::: "memory");
	}

	template <int D>
	__device__ __forceinline__ Keys keys(const kvc__rope_params &p, const Piece &at) const
	{
		// Only the upper half of a head can have the row's last stripe, which is keyed apart.
		constexpr uint32_t HALF = D / 64; // stripes
		uint32_t stripe = at.head * (2 * HALF) + at.l / 4, piece = at.l % 4 * 2;
		bool last = stripe + HALF == p.kv_heads * (2 * HALF) - 1;
		const uint64_t *lo = secret + stripe % 16 + piece;
		const uint64_t *hi = secret + (last ? KVC__XXH_LAST : (stripe + HALF) % 16) + piece;
		return { { lo[0], lo[1] }, { hi[0], hi[1] } };
	}

	// The row of 'at' is stored at 'slot'; its record is asked for now.
	__device__ __forceinline__ void take(const kvc__rope_params &p, const Piece &at, uint32_t slot)
	{
		char *record = (char *)p.records + (uint64_t)slot * (uint64_t)p.record_stride;
		if (KVC__MOVES_ONLY) { // no hash to wait for
			asm volatile("red.global.add.u64 [%0], %1;" ::"l"(record + 24), "l"(1ull) : "memory");
			return;
		}
		records[at.kind == KVC__V ? p.block_tokens + at.local : at.local] = record;
		if (at.kind == KVC__K)
			asm volatile("prefetch.global.L2 [%0];" ::"l"(record + 24));
	}

	// x: the lane, counted through the rows of K and then of V.
	__device__ __forceinline__ void add(
	        int x, bool stored, const Words &lo, const Words &hi, const Keys &keys)
	{
		kvc__xxh3_pair part = { 0, 0 };
		if (stored) {
			part.add(make_uint4(lo.w[0], lo.w[1], lo.w[2], lo.w[3]), keys.lo);
			part.add(make_uint4(hi.w[0], hi.w[1], hi.w[2], hi.w[3]), keys.hi);
		}
		parts[x] = make_ulonglong2(part.a, part.b);
	}

	// The sum of up to 32 lanes, of those that have accumulator a; at: the a-th word of the first.
	static __device__ __forceinline__ uint64_t sum(const kvc__rope_params &p, const uint64_t *at)
	{
		uint64_t sum = at[0] + at[8];
		if (p.row_lanes > 8)
			sum += at[16] + at[24];
		if (p.row_lanes > 16)
			sum += (at[32] + at[40]) + (at[48] + at[56]);
		return sum;
	}

	// Add the hash of one row to its record, by eight lanes, of whole warps.
	__device__ __forceinline__ void finish(const kvc__rope_params &p, const Ender &ender) const
	{
		int a = ender.a;
		const uint64_t *at = (const uint64_t *)((const char *)parts + ender.from);
		uint64_t acc = sum(p, at), next = 0;
		if (p.row_lanes > 32)
			next = sum(p, at + 64);
		acc += secret[KVC__XXH_START + a];
#pragma unroll 1
		for (uint32_t lane = 64; lane < p.row_lanes + 32; lane += 32) {
			acc = (acc ^ acc >> 47 ^ secret[16 + a]) * KVC__PRIME32_1 + next;
			if (lane < p.row_lanes)
				next = sum(p, at + lane * 2);
		}
		acc ^= secret[KVC__XXH_MERGE + a];
		uint64_t h = kvc__fold128(acc, __shfl_xor_sync(KVC__FULL_WARP, acc, 1));
		h += __shfl_xor_sync(KVC__FULL_WARP, h, 2);
		h += __shfl_xor_sync(KVC__FULL_WARP, h, 4);
		h = kvc__xxh3_avalanche(h + p.length_term);
		char *record = a == 0 ? records[ender.row] : NULL;
		if (record)
			asm volatile("red.global.add.u64 [%0], %1;" ::"l"(record + 24),
			             "l"(kvc__splitmix64(h + ender.term)) : "memory");
	}
};

// Those who end the hashes wait here for the others, who go on.
static __device__ __forceinline__ void row_barrier(const kvc__rope_params &p, bool waits)
{
	if (waits)
		asm volatile("bar.sync 1, %0;" ::"r"(p.row_threads) : "memory");
	else
		asm volatile("bar.arrive 1, %0;" ::"r"(p.row_threads) : "memory");
}

// ---- the kernel ----

template <int D, int ELEMENT, bool FP8, bool STREAM, bool TABLE, bool STAMP>
static __device__ __forceinline__ void rope_fast(const kvc__rope_params &p, Stamp *stamp)
{
	constexpr int WIDTH = FP8 ? 1 : 2; // bytes of a pool's element
	bool in_row = false;
	Piece at;
	if constexpr (STAMP)
		at = piece_of_set<D, TABLE>(p, &in_row);
	else
		at = TABLE ? piece_by_number<D>(p) : piece_of_token<D>(p);
	if (TABLE && !in_row && !at.valid)
		return;
	at = or_the_first(at);
	const kvc__rows &outs = p.rows[KVC__Q_OUT + at.kind], &pools = p.rows[KVC__K_OUT + at.kind];
	const char *in = at_row(p.rows[at.kind], at.token, at.head, 16 * at.l);
	char *out = at_row(outs, at.token, at.head, 16 * at.l);
	char *pool = at_row(pools, 0, at.head, WIDTH * 8 * at.l);
	const char *position_at = plus(p.positions.data, at.token, (uint32_t)p.positions.stride);
	const char *slot_at = plus(p.slots.data, at.token, (uint32_t)p.slots.stride);
	const char *table = (const char *)(p.cos_sin + at.l * 8);
	bool has_out = at.valid && at.kind != KVC__V && outs.data;
	bool has_pool = at.valid && at.kind != KVC__Q;
	// No address has its topmost bit set: so all of them are made here, and not after the wait.
	if ((int64_t)((uint64_t)in ^ (uint64_t)out ^ (uint64_t)pool ^ (uint64_t)position_at ^
	              (uint64_t)slot_at ^ (uint64_t)table) < 0)
		return;
	const bool hashes = in_row && !KVC__MOVES_ONLY;
	Ender ender = { false, 0, 0, 0, 0 };
	if constexpr (STAMP && !STREAM) {
		ender.find(p);
		if (ender.is_one && (int)ender.from < 0) // never: so it is found here, and not after the wait
			return;
	}
	const bool starts = STAMP && !KVC__MOVES_ONLY && (in_row || !TABLE); // whole blocks
	if (starts)
		stamp->start();
	kvc__wait_for_previous();
	kvc__release_next(); // its launch overlaps with this kernel's run: all work before is done
	Words lo = load<STREAM>(in), hi = load<STREAM>(in + D);
	Index position = load_index(position_at, p.positions.is_64);
	Index slot = load_index(slot_at, p.slots.is_64);
	__syncwarp(); // all loads are under way before the first is waited for
	Keys keys;
	if (starts) {
		Stamp::end_start();
		__syncthreads();
		if (!STREAM && hashes)
			keys = stamp->keys<D>(p, at);
	}
	float c[8], s[8];
	if constexpr (!TABLE) {
		__shared__ Angles<D> angles;
		angles.compute(p);
		angles.get(at, c, s);
	}

	bool live = KVC__MOVES_ONLY || (position.high == 0) & (position.low < (uint32_t)p.position_count);
	bool stored = has_pool & live;
	if (!KVC__MOVES_ONLY)
		stored &= (slot.high == 0) & (slot.low < (uint32_t)p.slot_count) &
		          (slot.low != (uint32_t)p.reserved_slot);
	if (p.duplicate_scratch && stored)
		stored = p.duplicate_scratch[slot.low] == INT32_MAX - (int32_t)at.token;
	if (in_row && (stored & (at.head == 0) & (at.l == 0)))
		stamp->take(p, at, slot.low);
	if (live & (at.kind != KVC__V)) {
		if constexpr (TABLE)
			load_angles<D>(plus(table, position.low, (uint32_t)p.cos_sin_row_stride * 4), c, s);
		rotate<ELEMENT>(lo, hi, c, s);
	}
	if (hashes) {
		if (STREAM) { // later: fewer registers
			keys = stamp->keys<D>(p, at);
			ender.find(p);
		}
		stamp->add(threadIdx.x, stored, lo, hi, keys);
		if (!ender.is_one)
			row_barrier(p, false);
	}
	if (has_out & live) {
		store<STREAM>(out, lo);
		store<STREAM>(out + D, hi);
	}
	if (stored)
		store_pool<D, ELEMENT, FP8, STREAM>((char *)plus(pool, slot.low, (uint32_t)pools.row_stride),
		        lo, hi, at.kind == KVC__V, p.pool_element, at.kind == KVC__V ? p.v_scale : p.k_scale);
	if (hashes && ender.is_one) {
		row_barrier(p, true);
		stamp->finish(p, ender);
	}
}

// Where bytes are streamed, stamping kernels are to have as many lanes resident as plain ones.
#define STAMP_REGISTERS(STREAM, TABLE) (STREAM && TABLE ? 40 : 64)

// ---- names that the host looks up ----

#define PLAIN(NAME, D, ELEMENT, FP8, STREAM, TABLE, LAST) \
	KVC__KERNEL void __launch_bounds__(TABLE ? KVC__ROPE_THREADS : 1024, TABLE ? KVC__ROPE_BLOCKS : 1) NAME( \
	        const __grid_constant__ kvc__rope_params_head<offsetof(kvc__rope_params, LAST)> p) \
	{ \
		rope_fast<D, ELEMENT, FP8, STREAM, TABLE, false>(p.all(), NULL); \
	}
#define STAMPED(NAME, D, ELEMENT, STREAM, TABLE, LAST) \
	KVC__KERNEL void __maxnreg__(STAMP_REGISTERS(STREAM, TABLE)) NAME( \
	        const __grid_constant__ kvc__rope_params_head<offsetof(kvc__rope_params, LAST)> p) \
	{ \
		extern __shared__ char shared[]; \
		rope_fast<D, ELEMENT, false, STREAM, TABLE, true>(p.all(), (Stamp *)shared); \
	}

// s: bytes are streamed; t: with a table.
#define FAMILY(TAG, ELEMENT, D) \
	PLAIN(kvc_rope_##TAG##_##D##_t, D, ELEMENT, false, false, true, inv_freq) \
	PLAIN(kvc_rope_##TAG##_##D##_s_t, D, ELEMENT, false, true, true, inv_freq) \
	PLAIN(kvc_rope_##TAG##_##D, D, ELEMENT, false, false, false, inv_freq_rest) \
	PLAIN(kvc_rope_##TAG##_##D##_s, D, ELEMENT, false, true, false, inv_freq_rest) \
	PLAIN(kvc_rope_##TAG##_fp8_##D##_t, D, ELEMENT, true, false, true, inv_freq) \
	PLAIN(kvc_rope_##TAG##_fp8_##D##_s_t, D, ELEMENT, true, true, true, inv_freq) \
	PLAIN(kvc_rope_##TAG##_fp8_##D, D, ELEMENT, true, false, false, inv_freq_rest) \
	PLAIN(kvc_rope_##TAG##_fp8_##D##_s, D, ELEMENT, true, true, false, inv_freq_rest) \
	STAMPED(kvc_rope_stamp_##TAG##_##D##_t, D, ELEMENT, false, true, inv_freq) \
	STAMPED(kvc_rope_stamp_##TAG##_##D##_s_t, D, ELEMENT, true, true, inv_freq) \
	STAMPED(kvc_rope_stamp_##TAG##_##D, D, ELEMENT, false, false, inv_freq_rest) \
	STAMPED(kvc_rope_stamp_##TAG##_##D##_s, D, ELEMENT, true, false, inv_freq_rest)

FAMILY(bf16, KVC__ELEMENT_BF16, 64)
FAMILY(bf16, KVC__ELEMENT_BF16, 128)
FAMILY(f16, KVC__ELEMENT_F16, 64)
FAMILY(f16, KVC__ELEMENT_F16, 128)
