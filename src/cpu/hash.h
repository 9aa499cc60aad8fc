/*
 * The hashes of the canary (SPEC section 4.1): the chain over tokens and positions, and the share
 * that one source adds to a slot's fingerprint. All arithmetic is mod 2^64; signed fields of a
 * record hold the same bits.
 *
 * Byte for byte SGLang's kv-canary (0.5.23), the namespace aside, and what src/cuda computes.
 */
#ifndef KVC__CPU_HASH_H
#define KVC__CPU_HASH_H

#include "base/host_device.h"

#include <stdint.h>

/* Where every chain without a namespace starts from. */
#define KVC__CHAIN_ANCHOR 0xC0FFEE1234567890u

/* The odd constant nearest 2^64 over the golden ratio: multiples of it are far apart. */
#define KVC__SOURCE_STEP 0x9E3779B97F4A7C15u

/* The finaliser of splitmix64 (Stafford's variant 13): a bijection, 0 goes to 0. */
static inline KVC__HD uint64_t kvc__splitmix64(uint64_t x)
{
#if !defined(KVC_MOVES_ONLY) /* src/cuda/moves.cuh: kernels without their arithmetic */
	x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
	x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
	x = x ^ (x >> 31);
#endif
	return x;
}

static inline KVC__HD uint64_t kvc__mix3(uint64_t a, uint64_t b, uint64_t c)
{
	uint64_t h = kvc__splitmix64(a);
	h = kvc__splitmix64(h ^ b);
	return kvc__splitmix64(h ^ c);
}

/* prev_hash of the first token of a sequence. name_space: the caller's identity of everything
 * besides tokens that makes KV differ (adapter, weights, image); 0 = none. */
static inline KVC__HD uint64_t kvc__chain_start(uint64_t name_space)
{
	if (name_space == 0)
		return kvc__splitmix64(KVC__CHAIN_ANCHOR);
	return kvc__splitmix64(KVC__CHAIN_ANCHOR ^ kvc__splitmix64(name_space));
}

/* prev_hash of the slot after the one that holds (prev_hash, token, position). */
static inline KVC__HD uint64_t kvc__chain_next(uint64_t prev_hash, int64_t token, int64_t position)
{
	return kvc__mix3(prev_hash, (uint64_t)token, (uint64_t)position);
}

/*
 * What a source adds to the xxh3 fingerprint of a slot: xxh3 is XXH3_64bits of the covered bytes.
 * The id goes in before the mixing, so K and V swapped, or two layers swapped, do not cancel out.
 * A sum over sources, so that each layer's write can add its share whenever it happens.
 */
static inline KVC__HD uint64_t kvc__fingerprint_share(uint64_t xxh3, uint64_t source_id)
{
	return kvc__splitmix64(xxh3 + (source_id + 1) * KVC__SOURCE_STEP);
}

#endif /* KVC__CPU_HASH_H */
