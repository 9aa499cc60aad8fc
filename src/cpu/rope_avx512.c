/*
 * rope_pool_fused with AVX-512 F, BW, DQ and VL; attributes as in rope_avx2.c, and no result comes
 * from FMA. The instruction that converts to bfloat16 (AVX512-BF16) is left out on purpose: it takes
 * subnormals for zero, and so differs from round to nearest even on 16,711,678 of the 2^32 float32
 * values.
 */
#if defined(__x86_64__)
#include <immintrin.h>

#define ROPE_BYTES 64
#define ROPE_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c")))
#include "cpu/rope_vectors.h"

/* The two halves of each lane change places. */
ROPE_INLINE __m512i swapped_halves(void)
{
	return _mm512_set4_epi32(0x0D0C0F0E, 0x09080B0A, 0x05040706, 0x01000302);
}

ROPE_INLINE halves upper_halves(words even, words odd)
{
	return (halves)_mm512_mask_shuffle_epi8(
	        (__m512i)odd, 0x3333333333333333u, (__m512i)even, swapped_halves());
}

ROPE_INLINE halves lower_halves(words even, words odd)
{
	return (halves)_mm512_mask_shuffle_epi8(
	        (__m512i)even, 0xCCCCCCCCCCCCCCCCu, (__m512i)odd, swapped_halves());
}

ROPE_INLINE halves round_halves(halves high, halves low)
{
	/* Up from 8000h if high is odd, from 8001h if it is even. */
	__m512i from = _mm512_ternarylogic_epi32(
	        (__m512i)high, _mm512_set1_epi16(1), _mm512_set1_epi16(-0x8000), 0xAE);
	__mmask32 up = _mm512_cmpge_epu16_mask((__m512i)low, from);
	return (halves)_mm512_mask_sub_epi16(
	        (__m512i)high, up, (__m512i)high, _mm512_set1_epi16(-1));
}

ROPE_INLINE words lesser(words a, words b)
{
	return (words)_mm512_min_epu32((__m512i)a, (__m512i)b);
}

ROPE_INLINE words choose(words mask, words set, words clear)
{
	return (words)_mm512_mask_mov_epi32(
	        (__m512i)clear, _mm512_movepi32_mask((__m512i)mask), (__m512i)set);
}

ROPE_INLINE floats gather_nonfinite(floats so_far, floats a, floats b)
{
	return (floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)so_far);
}

ROPE_INLINE int any_set(words mask)
{
	return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
}

ROPE_INLINE floats swap_neighbours(floats v)
{
	return (floats)_mm512_permute_ps((__m512)v, 0xB1);
}

ROPE_INLINE void twice_each(floats v, floats *low, floats *high)
{
	const __m512i first = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
	const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
	*low = (floats)_mm512_permutexvar_ps(first, (__m512)v);
	*high = (floats)_mm512_permutexvar_ps(second, (__m512)v);
}

ROPE_INLINE void part_places(floats a, floats b, floats *even, floats *odd)
{
	const __m512i first =
	        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
	const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(1));
	*even = (floats)_mm512_permutex2var_ps((__m512)a, first, (__m512)b);
	*odd = (floats)_mm512_permutex2var_ps((__m512)a, second, (__m512)b);
}

ROPE_INLINE void widen_f16(const char *at, floats *low, floats *high)
{
	*low = (floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)at));
	*high = (floats)_mm512_cvtph_ps(
	        _mm256_loadu_si256((const __m256i *)(const void *)(at + 32)));
}

ROPE_INLINE halves narrow_f16(floats low, floats high)
{
	__m256i a = _mm512_cvtps_ph((__m512)low, _MM_FROUND_TO_NEAREST_INT);
	__m256i b = _mm512_cvtps_ph((__m512)high, _MM_FROUND_TO_NEAREST_INT);
	return (halves)_mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
}

ROPE_INLINE halves pack_words(words low, words high)
{
	__m256i a = _mm512_cvtepi32_epi16((__m512i)low);
	__m256i b = _mm512_cvtepi32_epi16((__m512i)high);
	return (halves)_mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
}

ROPE_INLINE octets pack_halves(halves low, halves high)
{
	__m256i a = _mm512_cvtepi16_epi8((__m512i)low);
	__m256i b = _mm512_cvtepi16_epi8((__m512i)high);
	return (octets)_mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
}

ROPE_INLINE void store_past(char *at, words v)
{
	_mm512_stream_si512((void *)at, (__m512i)v);
}

#define ROPE_ROWS kvc__rope_rows_avx512
#define ROPE_SINCOS kvc__sincos_avx512
#define ROPE_XXH3 kvc__xxh3_avx512
#define ROPE_FENCE _mm_sfence
#include "cpu/rope_template.h"

#else
typedef int kvc__nothing_here; /* an empty file is no C */
#endif
