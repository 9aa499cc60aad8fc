// XXH3, 64 bits, seed 0, default secret: the algorithm as its specification (xxHash's
// doc/xxhash_spec.md) gives it, for one thread and for a warp. The same values as libxxhash.
//
// Input up to 240 bytes is a few 16-byte mixes: one thread does it. Longer input is cut into stripes
// of 64 bytes; within a block of 16 stripes every stripe only adds to eight accumulators, so a warp
// takes a block at once, 16 bytes a lane and step, and adds the lanes up; between blocks the
// accumulators are scrambled, one after the other.
#ifndef KVC__CUDA_XXH3_CUH
#define KVC__CUDA_XXH3_CUH

#include "cuda/moves.cuh"

#include <stdint.h>

#define KVC__XXH_BLOCK 1024
#define KVC__XXH_STRIPE 64
#define KVC__XXH_SHORT 240 // up to here one thread hashes

#define KVC__PRIME32_1 0x9E3779B1u
#define KVC__PRIME32_2 0x85EBCA77u
#define KVC__PRIME32_3 0xC2B2AE3Du
#define KVC__PRIME64_1 0x9E3779B185EBCA87ull
#define KVC__PRIME64_2 0xC2B2AE3D27D4EB4Full
#define KVC__PRIME64_3 0x165667B19E3779F9ull
#define KVC__PRIME64_4 0x85EBCA77C2B2AE63ull
#define KVC__PRIME64_5 0x27D4EB2F165667C5ull

// In little-endian words: the default secret, 192 bytes; then those parts of it that begin between words, for an
// input's last stripe (from byte 121) and for merging the accumulators (from byte 11); then what the
// accumulators start from.
#define KVC__XXH_LAST 24
#define KVC__XXH_MERGE 32
#define KVC__XXH_START 40
#define KVC__XXH_CONSTANTS 48
#define kvc__xxh_last (kvc__xxh_secret + KVC__XXH_LAST)
#define kvc__xxh_merge (kvc__xxh_secret + KVC__XXH_MERGE)
static __device__ const __align__(16) uint64_t kvc__xxh_secret[KVC__XXH_CONSTANTS] = {
	0xBE4BA423396CFEB8ull, 0x1CAD21F72C81017Cull, 0xDB979083E96DD4DEull, 0x1F67B3B7A4A44072ull,
	0x78E5C0CC4EE679CBull, 0x2172FFCC7DD05A82ull, 0x8E2443F7744608B8ull, 0x4C263A81E69035E0ull,
	0xCB00C391BB52283Cull, 0xA32E531B8B65D088ull, 0x4EF90DA297486471ull, 0xD8ACDEA946EF1938ull,
	0x3F349CE33F76FAA8ull, 0x1D4F0BC7C7BBDCF9ull, 0x3159B4CD4BE0518Aull, 0x647378D9C97E9FC8ull,
	0xC3EBD33483ACC5EAull, 0xEB6313FAFFA081C5ull, 0x49DAF0B751DD0D17ull, 0x9E68D429265516D3ull,
	0xFCA1477D58BE162Bull, 0xCE31D07AD1B8F88Full, 0x280416958F3ACB45ull, 0x7E404BBBCAFBD7AFull,
	0xEA647378D9C97E9Full, 0xC5C3EBD33483ACC5ull, 0x17EB6313FAFFA081ull, 0xD349DAF0B751DD0Dull,
	0x2B9E68D429265516ull, 0x8FFCA1477D58BE16ull, 0x45CE31D07AD1B8F8ull, 0xAF280416958F3ACBull,
	0x6DD4DE1CAD21F72Cull, 0xA44072DB979083E9ull, 0xE679CB1F67B3B7A4ull, 0xD05A8278E5C0CC4Eull,
	0x4608B82172FFCC7Dull, 0x9035E08E2443F774ull, 0x52283C4C263A81E6ull, 0x65D088CB00C391BBull,
	KVC__PRIME32_3, KVC__PRIME64_1, KVC__PRIME64_2, KVC__PRIME64_3,
	KVC__PRIME64_4, KVC__PRIME32_2, KVC__PRIME64_5, KVC__PRIME32_1,
};

// Eight bytes of the secret from any byte on.
static __device__ __forceinline__ uint64_t kvc__secret_at(int byte)
{
	int word = byte >> 3, shift = (byte & 7) * 8;
	uint64_t low = kvc__xxh_secret[word];
	return shift == 0 ? low : low >> shift | kvc__xxh_secret[word + 1] << (64 - shift);
}

static __device__ __forceinline__ uint64_t kvc__fold128(uint64_t a, uint64_t b)
{
	if (KVC__MOVES_ONLY)
		return a ^ b;
	return a * b ^ __umul64hi(a, b);
}

static __device__ __forceinline__ uint64_t kvc__xxh3_avalanche(uint64_t h)
{
	if (KVC__MOVES_ONLY)
		return h;
	h = (h ^ h >> 37) * 0x165667919E3779F9ull;
	return h ^ h >> 32;
}

static __device__ __forceinline__ uint64_t kvc__xxh64_avalanche(uint64_t h)
{
	h = (h ^ h >> 33) * KVC__PRIME64_2;
	h = (h ^ h >> 29) * KVC__PRIME64_3;
	return h ^ h >> 32;
}

static __device__ __forceinline__ uint64_t kvc__swap64(uint64_t x)
{
	return (uint64_t)__byte_perm((uint32_t)x, 0, 0x0123) << 32 |
	       __byte_perm((uint32_t)(x >> 32), 0, 0x0123);
}

// ---- one thread; Bytes: uint64_t word(at) gives 8 bytes from offset 'at', uint32_t byte(at) one ----

template <typename Bytes>
static __device__ uint64_t kvc__xxh3_up_to_16(const Bytes &in, int n)
{
	if (n > 8) {
		uint64_t lo = in.word(0) ^ (kvc__secret_at(24) ^ kvc__secret_at(32));
		uint64_t hi = in.word(n - 8) ^ (kvc__secret_at(40) ^ kvc__secret_at(48));
		return kvc__xxh3_avalanche(
		        (uint64_t)n + kvc__swap64(lo) + hi + kvc__fold128(lo, hi));
	}
	if (n >= 4) {
		uint64_t first = 0, last = 0;
		for (int i = 0; i < 4; i++) {
			first |= (uint64_t)in.byte(i) << 8 * i;
			last |= (uint64_t)in.byte(n - 4 + i) << 8 * i;
		}
		uint64_t h = (last + (first << 32)) ^ (kvc__secret_at(8) ^ kvc__secret_at(16));
		h ^= (h << 49 | h >> 15) ^ (h << 24 | h >> 40);
		h *= 0x9FB21C651E98DF25ull;
		h ^= (h >> 35) + (uint64_t)n;
		h *= 0x9FB21C651E98DF25ull;
		return h ^ h >> 28;
	}
	if (n > 0) {
		uint32_t mixed = in.byte(0) << 16 | in.byte(n >> 1) << 24 | in.byte(n - 1) |
		                 (uint32_t)n << 8;
		uint64_t secret = kvc__secret_at(0);
		return kvc__xxh64_avalanche(mixed ^ (uint64_t)((uint32_t)secret ^ (uint32_t)(secret >> 32)));
	}
	return kvc__xxh64_avalanche(kvc__secret_at(56) ^ kvc__secret_at(64));
}

template <typename Bytes>
static __device__ __forceinline__ uint64_t kvc__xxh3_mix(const Bytes &in, int at, int secret)
{
	return kvc__fold128(
	        in.word(at) ^ kvc__secret_at(secret), in.word(at + 8) ^ kvc__secret_at(secret + 8));
}

// n <= KVC__XXH_SHORT
template <typename Bytes>
static __device__ uint64_t kvc__xxh3_short(const Bytes &in, int n)
{
	if (n <= 16)
		return kvc__xxh3_up_to_16(in, n);
	uint64_t h = (uint64_t)n * KVC__PRIME64_1;
	if (n <= 128) {
		for (int i = (n - 1) / 32; i >= 0; i--) {
			h += kvc__xxh3_mix(in, 16 * i, 32 * i);
			h += kvc__xxh3_mix(in, n - 16 * (i + 1), 32 * i + 16);
		}
		return kvc__xxh3_avalanche(h);
	}
	for (int i = 0; i < 8; i++)
		h += kvc__xxh3_mix(in, 16 * i, 16 * i);
	h = kvc__xxh3_avalanche(h);
	for (int i = 8; i < n / 16; i++)
		h += kvc__xxh3_mix(in, 16 * i, 16 * (i - 8) + 3);
	h += kvc__xxh3_mix(in, n - 16, 136 - 17);
	return kvc__xxh3_avalanche(h);
}

// ---- a warp; n > KVC__XXH_SHORT ----

// What a lane keeps of the secret. Lane l works on 16-byte piece l % 4 of stripes l / 4 and
// l / 4 + 8 of every block, so its words never change.
struct kvc__xxh3_lane {
	uint64_t stripe[4]; // of its first and its second stripe
	uint64_t last[2];   // of the input's last stripe
	uint64_t scramble[2];
	uint64_t merge[2];

	__device__ __forceinline__ void load(int lane)
	{
		int piece = 2 * (lane % 4), row = lane / 4;
		for (int i = 0; i < 2; i++) {
			stripe[i] = kvc__xxh_secret[row + piece + i];
			stripe[2 + i] = kvc__xxh_secret[row + 8 + piece + i];
			last[i] = kvc__xxh_last[piece + i];
			scramble[i] = kvc__xxh_secret[16 + piece + i];
			merge[i] = kvc__xxh_merge[piece + i];
		}
	}
};

// Two of the eight accumulators: numbers 2p and 2p + 1 for piece p.
struct kvc__xxh3_pair {
	uint64_t a, b;

	__device__ __forceinline__ void start(int lane)
	{
		int p = lane % 4;
		a = p == 0 ? KVC__PRIME32_3 : p == 1 ? KVC__PRIME64_2 : p == 2 ? KVC__PRIME64_4 : KVC__PRIME64_5;
		b = p == 0 ? KVC__PRIME64_1 : p == 1 ? KVC__PRIME64_3 : p == 2 ? KVC__PRIME32_2 : KVC__PRIME32_1;
	}

	// Each word adds to its neighbour as it is, and its halves, keyed, multiply into its own.
	__device__ __forceinline__ void add(uint4 v, const uint64_t *secret)
	{
		uint64_t d0 = (uint64_t)v.y << 32 | v.x, d1 = (uint64_t)v.w << 32 | v.z;
		if (KVC__MOVES_ONLY) {
			a ^= d0 ^ d1;
			return;
		}
		uint64_t k0 = d0 ^ secret[0], k1 = d1 ^ secret[1];
		a += d1 + (uint64_t)(uint32_t)k0 * (uint32_t)(k0 >> 32);
		b += d0 + (uint64_t)(uint32_t)k1 * (uint32_t)(k1 >> 32);
	}

	// Sum over the lanes of the same piece; every lane gets it.
	__device__ __forceinline__ void gather()
	{
		for (int step = 4; step < 32 && !KVC__MOVES_ONLY; step *= 2) {
			a += __shfl_xor_sync(0xFFFFFFFFu, a, step);
			b += __shfl_xor_sync(0xFFFFFFFFu, b, step);
		}
	}

	__device__ __forceinline__ void scramble(const uint64_t *secret)
	{
		if (KVC__MOVES_ONLY)
			return;
		a = (a ^ a >> 47 ^ secret[0]) * KVC__PRIME32_1;
		b = (b ^ b >> 47 ^ secret[1]) * KVC__PRIME32_1;
	}

	// The hash of n bytes from the finished accumulators; the same in every lane.
	__device__ __forceinline__ uint64_t finish(int64_t n, const uint64_t *secret)
	{
		if (KVC__MOVES_ONLY)
			return a;
		uint64_t h = kvc__fold128(a ^ secret[0], b ^ secret[1]);
		h += __shfl_xor_sync(0xFFFFFFFFu, h, 1);
		h += __shfl_xor_sync(0xFFFFFFFFu, h, 2);
		return kvc__xxh3_avalanche(h + (uint64_t)n * KVC__PRIME64_1);
	}
};

// Pieces: uint4 piece(at) gives 16 bytes from offset 'at' < n; at is a multiple of 16, except
// that the last stripe of the input begins at n - 64.
template <typename Pieces>
static __device__ __forceinline__ uint64_t kvc__xxh3_long(
        const Pieces &in, int64_t n, const kvc__xxh3_lane &secret, int lane)
{
	kvc__xxh3_pair sum;
	sum.start(lane);
	int64_t full = (n - 1) / KVC__XXH_BLOCK, at = 0;
	int piece = 16 * (lane % 4), row = KVC__XXH_STRIPE * (lane / 4);
#pragma unroll 2
	for (; at < full * KVC__XXH_BLOCK; at += KVC__XXH_BLOCK) {
		kvc__xxh3_pair part = { 0, 0 };
		uint4 first = in.piece(at + row + piece), second = in.piece(at + row + 512 + piece);
		part.add(first, secret.stripe);
		part.add(second, secret.stripe + 2);
		part.gather();
		sum.a += part.a;
		sum.b += part.b;
		sum.scramble(secret.scramble);
	}
	// The rest, without the last stripe, which is counted from the end and keyed apart.
	int64_t stripes = (n - 1 - at) / KVC__XXH_STRIPE;
	kvc__xxh3_pair part = { 0, 0 };
	if (lane / 4 < stripes)
		part.add(in.piece(at + row + piece), secret.stripe);
	if (lane / 4 + 8 < stripes)
		part.add(in.piece(at + row + 512 + piece), secret.stripe + 2);
	if (lane < 4)
		part.add(in.piece(n - KVC__XXH_STRIPE + piece), secret.last);
	part.gather();
	sum.a += part.a;
	sum.b += part.b;
	return sum.finish(n, secret.merge);
}

#endif
