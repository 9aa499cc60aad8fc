/*
 * rope_pool_fused with AVX-512 F, BW, DQ and VL; attributes and FMA as in rope_avx2.c. The
 * instruction that converts to bfloat16 (AVX512-BF16) is left out on purpose: it takes subnormals
 * for zero, and so differs from round to nearest even on 16,711,678 of the 2^32 float32 values.
 */
#if defined(__x86_64__)
#include "base/sincos.h"
#include "cpu/rope.h"

#include <immintrin.h>

#define AVX512_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c")))
#define AVX512_INLINE static inline __attribute__((always_inline)) AVX512_TARGET

/* ---- cosines and sines: kvc__sincos(), eight at a time ---- */

struct sincos_avx512 {
	__m512d c;
	__m512d s;
};

/* a + z*p, two roundings. */
AVX512_INLINE __m512d horner_avx512(double a, __m512d z, __m512d p)
{
	return _mm512_add_pd(_mm512_set1_pd(a), _mm512_mul_pd(z, p));
}

AVX512_INLINE struct sincos_avx512 sincos8_avx512(__m512d angle)
{
	const __m512d magic = _mm512_set1_pd(KVC__ROUND_MAGIC);
	const __m512i one = _mm512_set1_epi64(1);
	const __m512i two = _mm512_set1_epi64(2);
	const __m512d minus = _mm512_castsi512_pd(_mm512_set1_epi64(INT64_MIN));
	__m512d shifted =
	        _mm512_add_pd(_mm512_mul_pd(angle, _mm512_set1_pd(KVC__TWO_OVER_PI)), magic);
	__m512d n = _mm512_sub_pd(shifted, magic);
	__m512i quadrant = _mm512_castpd_si512(shifted);

	__m512d r = _mm512_sub_pd(angle, _mm512_mul_pd(n, _mm512_set1_pd(KVC__HALF_PI_1)));
	r = _mm512_sub_pd(r, _mm512_mul_pd(n, _mm512_set1_pd(KVC__HALF_PI_2)));
	r = _mm512_sub_pd(r, _mm512_mul_pd(n, _mm512_set1_pd(KVC__HALF_PI_3)));
	__m512d z = _mm512_mul_pd(r, r);

	__m512d p = _mm512_set1_pd(KVC__SIN_6);
	p = horner_avx512(KVC__SIN_5, z, p);
	p = horner_avx512(KVC__SIN_4, z, p);
	p = horner_avx512(KVC__SIN_3, z, p);
	p = horner_avx512(KVC__SIN_2, z, p);
	p = horner_avx512(KVC__SIN_1, z, p);
	__m512d sin_r = _mm512_add_pd(r, _mm512_mul_pd(_mm512_mul_pd(r, z), p));

	__m512d q = _mm512_set1_pd(KVC__COS_6);
	q = horner_avx512(KVC__COS_5, z, q);
	q = horner_avx512(KVC__COS_4, z, q);
	q = horner_avx512(KVC__COS_3, z, q);
	q = horner_avx512(KVC__COS_2, z, q);
	q = horner_avx512(KVC__COS_1, z, q);
	__m512d cos_r = _mm512_add_pd(
	        _mm512_sub_pd(_mm512_set1_pd(1.0), _mm512_mul_pd(_mm512_set1_pd(0.5), z)),
	        _mm512_mul_pd(_mm512_mul_pd(z, z), q));

	__mmask8 swap = _mm512_test_epi64_mask(quadrant, one);
	__mmask8 c_minus = _mm512_test_epi64_mask(_mm512_add_epi64(quadrant, one), two);
	__mmask8 s_minus = _mm512_test_epi64_mask(quadrant, two);
	__m512d c = _mm512_mask_blend_pd(swap, cos_r, sin_r);
	__m512d s = _mm512_mask_blend_pd(swap, sin_r, cos_r);
	struct sincos_avx512 result;
	result.c = _mm512_mask_xor_pd(c, c_minus, c, minus);
	result.s = _mm512_mask_xor_pd(s, s_minus, s, minus);
	return result;
}

AVX512_TARGET void kvc__sincos_avx512(
        const double *angles, double *cos_out, double *sin_out, int64_t count)
{
	for (int64_t i = 0; i < count; i += 8) {
		struct sincos_avx512 both = sincos8_avx512(_mm512_loadu_pd(angles + i));
		_mm512_storeu_pd(cos_out + i, both.c);
		_mm512_storeu_pd(sin_out + i, both.s);
	}
}

/* See ROPE_ANGLES; the frequencies' array is a multiple of 8 long. */
AVX512_TARGET static void angles_avx512(
        const double *freq, double position, double factor, float *c, float *s, int64_t count)
{
	__m512d scale = _mm512_set1_pd(factor);
	for (int64_t i = 0; i < count; i += 8) {
		struct sincos_avx512 both = sincos8_avx512(
		        _mm512_mul_pd(_mm512_set1_pd(position), _mm512_loadu_pd(freq + i)));
		_mm256_storeu_ps(c + i, _mm512_cvtpd_ps(_mm512_mul_pd(scale, both.c)));
		_mm256_storeu_ps(s + i, _mm512_cvtpd_ps(_mm512_mul_pd(scale, both.s)));
	}
}

/* ---- rotation ---- */

AVX512_INLINE __m512 canonical_avx512(__m512 r)
{
	__m512 quiet = _mm512_castsi512_ps(_mm512_set1_epi32(0x7FC00000));
	return _mm512_mask_mov_ps(r, _mm512_cmp_ps_mask(r, r, _CMP_UNORD_Q), quiet);
}

/* x1, x2 become r1, r2; any NaN the positive quiet one. */
AVX512_INLINE void turn_avx512(__m512 *x1, __m512 *x2, const float *c_at, const float *s_at)
{
	__m512 c = _mm512_loadu_ps(c_at);
	__m512 s = _mm512_loadu_ps(s_at);
	__m512 r1 = _mm512_sub_ps(_mm512_mul_ps(*x1, c), _mm512_mul_ps(*x2, s));
	__m512 r2 = _mm512_add_ps(_mm512_mul_ps(*x1, s), _mm512_mul_ps(*x2, c));
	/* One comparison sees a NaN in either; healthy data never has any. */
	if (__builtin_expect(_mm512_cmp_ps_mask(r1, r2, _CMP_UNORD_Q), 0)) {
		r1 = canonical_avx512(r1);
		r2 = canonical_avx512(r2);
	}
	*x1 = r1;
	*x2 = r2;
}

/* Interleaved x1, x2, x1, x2, ...; each c and s is there twice. Odd lanes add x2*c to x1*s, where
 * the specification adds x1*s to x2*c: the same sum. */
AVX512_INLINE __m512 turn_interleaved_avx512(__m512 x, const float *c_at, const float *s_at)
{
	__m512 with_c = _mm512_mul_ps(x, _mm512_loadu_ps(c_at));
	__m512 with_s = _mm512_mul_ps(_mm512_permute_ps(x, 0xB1), _mm512_loadu_ps(s_at));
	__m512 r = _mm512_mask_sub_ps(_mm512_add_ps(with_c, with_s), 0x5555, with_c, with_s);
	return canonical_avx512(r);
}

/* To nearest even: the upper half of each lane is the bfloat16. No NaN but the canonical one. */
AVX512_INLINE __m512i bf16_round_avx512(__m512 value)
{
	__m512i bits = _mm512_castps_si512(value);
	__m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
	return _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
}

/* stream: past the caches; 'at' is aligned then. */
AVX512_INLINE void store_avx512(int stream, char *at, __m512i value)
{
	if (stream)
		_mm512_stream_si512((void *)at, value);
	else
		_mm512_storeu_si512(at, value);
}

AVX512_INLINE void store_half_avx512(int stream, char *at, __m256i value)
{
	if (stream)
		_mm256_stream_si256((__m256i *)(void *)at, value);
	else
		_mm256_storeu_si256((__m256i *)(void *)at, value);
}

/* 16 pairs of interleaved bfloat16: a pair is an even and an odd place. */
AVX512_INLINE void bf16_interleaved_avx512(
        int stream, const char *in, char *out, const float *c, const float *s)
{
	__m512i raw = _mm512_loadu_si512(in);
	__m512 x1 = _mm512_castsi512_ps(_mm512_slli_epi32(raw, 16));
	__m512 x2 = _mm512_castsi512_ps(_mm512_and_si512(raw, _mm512_set1_epi32((int)0xFFFF0000u)));
	turn_avx512(&x1, &x2, c, s);
	__m512i even = _mm512_srli_epi32(bf16_round_avx512(x1), 16);
	store_avx512(
	        stream, out, _mm512_mask_blend_epi16(0xAAAAAAAAu, even, bf16_round_avx512(x2)));
}

AVX512_INLINE __m512 widen16_avx512(enum kvc__element element, const char *at)
{
	if (element == KVC__ELEMENT_F32)
		return _mm512_loadu_ps(at);
	__m256i half = _mm256_loadu_si256((const __m256i *)(const void *)at);
	if (element == KVC__ELEMENT_F16)
		return _mm512_cvtph_ps(half);
	return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

AVX512_INLINE void narrow16_avx512(enum kvc__element element, int stream, __m512 value, char *at)
{
	__m256i half;
	if (element == KVC__ELEMENT_F32) {
		store_avx512(stream, at, _mm512_castps_si512(value));
		return;
	}
	if (element == KVC__ELEMENT_F16)
		half = _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT);
	else
		half = _mm512_cvtepi32_epi16(_mm512_srli_epi32(bf16_round_avx512(value), 16));
	store_half_avx512(stream, at, half);
}

AVX512_INLINE void block_avx512(enum kvc__element element, int style, int stream, const char *first,
        const char *second, char *out_first, char *out_second, const float *c, const float *s)
{
	const int64_t sixteen = 16 * kvc__element_bytes(element);
	if (style == KVC_ROPE_NEOX) {
		__m512 x1 = widen16_avx512(element, first);
		__m512 x2 = widen16_avx512(element, second);
		turn_avx512(&x1, &x2, c, s);
		narrow16_avx512(element, stream, x1, out_first);
		narrow16_avx512(element, stream, x2, out_second);
	} else if (element == KVC__ELEMENT_BF16) {
		bf16_interleaved_avx512(stream, first, out_first, c, s);
	} else {
		__m512 low = widen16_avx512(element, first);
		__m512 high = widen16_avx512(element, first + sixteen);
		low = turn_interleaved_avx512(low, c, s);
		high = turn_interleaved_avx512(high, c + 16, s + 16);
		narrow16_avx512(element, stream, low, out_first);
		narrow16_avx512(element, stream, high, out_first + sixteen);
	}
}

/* 16 values at 'from' become 32 at 'to', each twice. */
AVX512_INLINE void double_each_avx512(const float *from, float *to)
{
	const __m512i low = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
	const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
	__m512 a = _mm512_loadu_ps(from);
	_mm512_storeu_ps(to, _mm512_permutexvar_ps(low, a));
	_mm512_storeu_ps(to + 16, _mm512_permutexvar_ps(high, a));
}

AVX512_TARGET static void arrange_avx512(
        enum kvc__element element, int style, float *c, float *s, int64_t pairs)
{
	if (element == KVC__ELEMENT_BF16 || style == KVC_ROPE_NEOX)
		return;
	for (int64_t i = pairs - 16; i >= 0; i -= 16) { /* from the end: in place */
		double_each_avx512(c + i, c + 2 * i);
		double_each_avx512(s + i, s + 2 * i);
	}
}

/* ---- stores past the caches ---- */

/* Whole lines of 64 bytes; what is before and after them goes the usual way. */
AVX512_TARGET static void stream_avx512(char *to, const char *from, size_t bytes)
{
	size_t at = (64 - (uintptr_t)to % 64) % 64;
	if (bytes < at + 64) {
		memcpy(to, from, bytes);
		return;
	}
	memcpy(to, from, at);
	for (; at + 64 <= bytes; at += 64)
		_mm512_stream_si512((void *)(to + at), _mm512_loadu_si512(from + at));
	memcpy(to + at, from + at, bytes - at);
}

#define ROPE_TARGET AVX512_TARGET
#define ROPE_ROWS kvc__rope_rows_avx512
#define ROPE_XXH3 kvc__xxh3_avx512
#define ROPE_ANGLES angles_avx512
#define ROPE_ARRANGE arrange_avx512
#define ROPE_SPREAD(element, style)                                                                \
	((element) != KVC__ELEMENT_BF16 && (style) == KVC_ROPE_INTERLEAVED ? 2 : 1)
#define ROPE_BLOCK block_avx512
#define ROPE_STREAM stream_avx512
#define ROPE_FENCE _mm_sfence
#include "cpu/rope_template.h"

#else
typedef int kvc__nothing_here; /* an empty file is no C */
#endif
