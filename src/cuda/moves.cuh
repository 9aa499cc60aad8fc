// The build that only moves: with KVC_MOVES_ONLY the same kernels, grids, loads and stores, dependent ones
// included, but without the arithmetic and the checks. The benchmark runs it beside the library (bench/
// README.md) and asks what the work costs; the library is never built so. Barriers that order memory
// stay, those that pass a verdict on go.
//
// It believes its inputs: slots, rows and offsets in range, requests of one length that is a power of two.
#ifndef KVC__CUDA_MOVES_CUH
#define KVC__CUDA_MOVES_CUH

#include <stdint.h>

#if defined(KVC_MOVES_ONLY)
static constexpr bool KVC__MOVES_ONLY = true;
#else
static constexpr bool KVC__MOVES_ONLY = false;
#endif

// false, which the compiler cannot know: what depends on it has to wait for x.
static __device__ __forceinline__ bool kvc__never(uint64_t x)
{
	return x == 0xD1B54A32D192ED03ull;
}

// What was loaded stays loaded, though nothing is made of it.
static __device__ __forceinline__ void kvc__keep(uint64_t x)
{
	if (kvc__never(x))
		__trap();
}

static __device__ __forceinline__ uint64_t kvc__xor_words(uint4 v)
{
	return (uint64_t)(v.y ^ v.w) << 32 | (v.x ^ v.z);
}

#endif
