/*
 * rope_pool_fused with AVX2 and F16C. No build flags: each function carries the instruction set as
 * an attribute, and dispatch.c calls them only where it is there. FMA is left out on purpose, because
 * a fused multiply-add rounds once where the specification rounds twice.
 */
#if defined(__x86_64__)
#include <immintrin.h>

#define ROPE_BYTES 32
#define ROPE_TARGET __attribute__((target("avx2,f16c")))
#include "cpu/rope_vectors.h"

ROPE_INLINE halves upper_halves(words even, words odd)
{
	return (halves)_mm256_blend_epi16((__m256i)(even >> 16), (__m256i)odd, 0xAA);
}

ROPE_INLINE halves lower_halves(words even, words odd)
{
	return (halves)_mm256_blend_epi16((__m256i)even, (__m256i)(odd << 16), 0xAA);
}

ROPE_INLINE halves round_halves(halves high, halves low)
{
	/* Up if low - (high even ? 1 : 0), the subtraction saturating at 0, has its top bit. */
	__m256i rest = _mm256_subs_epu16((__m256i)low, (__m256i)(~high & 1));
	return high - (halves)_mm256_cmpgt_epi16(_mm256_setzero_si256(), rest);
}

ROPE_INLINE words lesser(words a, words b)
{
	return (words)_mm256_min_epu32((__m256i)a, (__m256i)b);
}

ROPE_INLINE words choose(words mask, words set, words clear)
{
	return (words)_mm256_blendv_epi8((__m256i)clear, (__m256i)set, (__m256i)mask);
}

ROPE_INLINE floats gather_nonfinite(floats so_far, floats a, floats b)
{
	return so_far + (a + b); /* so that each waits for one addition of the block before */
}

ROPE_INLINE int any_set(words mask)
{
	return _mm256_movemask_ps((__m256)mask) != 0;
}

ROPE_INLINE floats swap_neighbours(floats v)
{
	return (floats)_mm256_permute_ps((__m256)v, 0xB1);
}

ROPE_INLINE void twice_each(floats v, floats *low, floats *high)
{
	__m256 a = _mm256_unpacklo_ps((__m256)v, (__m256)v);
	__m256 b = _mm256_unpackhi_ps((__m256)v, (__m256)v);
	*low = (floats)_mm256_permute2f128_ps(a, b, 0x20);
	*high = (floats)_mm256_permute2f128_ps(a, b, 0x31);
}

ROPE_INLINE void part_places(floats a, floats b, floats *even, floats *odd)
{
	__m256d e = (__m256d)_mm256_shuffle_ps((__m256)a, (__m256)b, 0x88);
	__m256d o = (__m256d)_mm256_shuffle_ps((__m256)a, (__m256)b, 0xDD);
	*even = (floats)_mm256_permute4x64_pd(e, 0xD8);
	*odd = (floats)_mm256_permute4x64_pd(o, 0xD8);
}

ROPE_INLINE void widen_f16(const char *at, floats *low, floats *high)
{
	*low = (floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)at));
	*high = (floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(at + 16)));
}

ROPE_INLINE halves narrow_f16(floats low, floats high)
{
	__m128i a = _mm256_cvtps_ph((__m256)low, _MM_FROUND_TO_NEAREST_INT);
	__m128i b = _mm256_cvtps_ph((__m256)high, _MM_FROUND_TO_NEAREST_INT);
	return (halves)_mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1);
}

ROPE_INLINE halves pack_words(words low, words high)
{
	__m256i mixed = _mm256_packus_epi32((__m256i)low, (__m256i)high);
	return (halves)_mm256_permute4x64_epi64(mixed, 0xD8);
}

ROPE_INLINE octets pack_halves(halves low, halves high)
{
	__m256i mixed = _mm256_packus_epi16((__m256i)low, (__m256i)high);
	return (octets)_mm256_permute4x64_epi64(mixed, 0xD8);
}

ROPE_INLINE void store_past(char *at, words v)
{
	_mm256_stream_si256((__m256i *)(void *)at, (__m256i)v);
}

#define ROPE_ROWS kvc__rope_rows_avx2
#define ROPE_SINCOS kvc__sincos_avx2
#define ROPE_XXH3 kvc__xxh3_avx2
#define ROPE_FENCE _mm_sfence
#include "cpu/rope_template.h"

#else
typedef int kvc__nothing_here; /* an empty file is no C */
#endif
