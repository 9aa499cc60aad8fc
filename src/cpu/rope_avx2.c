/*
 * rope_pool_fused with AVX2 and F16C. No build flags: each function carries the instruction set as
 * an attribute, and dispatch.c calls them only where it is there. FMA is left out on purpose, because
 * a fused multiply-add rounds once where the specification rounds twice.
 */
#if defined(__x86_64__)
#include "base/sincos.h"
#include "cpu/rope.h"

#include <immintrin.h>

#define AVX2_TARGET __attribute__((target("avx2,f16c")))
#define AVX2_INLINE static inline __attribute__((always_inline)) AVX2_TARGET

/* ---- cosines and sines: kvc__sincos(), four at a time ---- */

struct sincos_avx2 {
	__m256d c;
	__m256d s;
};

/* a + z*p, two roundings. */
AVX2_INLINE __m256d horner_avx2(double a, __m256d z, __m256d p)
{
	return _mm256_add_pd(_mm256_set1_pd(a), _mm256_mul_pd(z, p));
}

AVX2_INLINE struct sincos_avx2 sincos4_avx2(__m256d angle)
{
	const __m256d magic = _mm256_set1_pd(KVC__ROUND_MAGIC);
	const __m256i sign = _mm256_set1_epi64x(INT64_MIN);
	__m256d shifted =
	        _mm256_add_pd(_mm256_mul_pd(angle, _mm256_set1_pd(KVC__TWO_OVER_PI)), magic);
	__m256d n = _mm256_sub_pd(shifted, magic);
	__m256i quadrant = _mm256_castpd_si256(shifted);

	__m256d r = _mm256_sub_pd(angle, _mm256_mul_pd(n, _mm256_set1_pd(KVC__HALF_PI_1)));
	r = _mm256_sub_pd(r, _mm256_mul_pd(n, _mm256_set1_pd(KVC__HALF_PI_2)));
	r = _mm256_sub_pd(r, _mm256_mul_pd(n, _mm256_set1_pd(KVC__HALF_PI_3)));
	__m256d z = _mm256_mul_pd(r, r);

	__m256d p = _mm256_set1_pd(KVC__SIN_6);
	p = horner_avx2(KVC__SIN_5, z, p);
	p = horner_avx2(KVC__SIN_4, z, p);
	p = horner_avx2(KVC__SIN_3, z, p);
	p = horner_avx2(KVC__SIN_2, z, p);
	p = horner_avx2(KVC__SIN_1, z, p);
	__m256d sin_r = _mm256_add_pd(r, _mm256_mul_pd(_mm256_mul_pd(r, z), p));

	__m256d q = _mm256_set1_pd(KVC__COS_6);
	q = horner_avx2(KVC__COS_5, z, q);
	q = horner_avx2(KVC__COS_4, z, q);
	q = horner_avx2(KVC__COS_3, z, q);
	q = horner_avx2(KVC__COS_2, z, q);
	q = horner_avx2(KVC__COS_1, z, q);
	__m256d cos_r = _mm256_add_pd(
	        _mm256_sub_pd(_mm256_set1_pd(1.0), _mm256_mul_pd(_mm256_set1_pd(0.5), z)),
	        _mm256_mul_pd(_mm256_mul_pd(z, z), q));

	/* Bit 0 of the quadrant swaps, moved to the sign bit where blendv looks; bit 1 of quadrant + 1
	 * and of quadrant negates. */
	__m256d swap = _mm256_castsi256_pd(_mm256_slli_epi64(quadrant, 63));
	__m256i next = _mm256_add_epi64(quadrant, _mm256_set1_epi64x(1));
	__m256i c_sign = _mm256_and_si256(_mm256_slli_epi64(next, 62), sign);
	__m256i s_sign = _mm256_and_si256(_mm256_slli_epi64(quadrant, 62), sign);
	struct sincos_avx2 result;
	result.c = _mm256_xor_pd(_mm256_blendv_pd(cos_r, sin_r, swap), _mm256_castsi256_pd(c_sign));
	result.s = _mm256_xor_pd(_mm256_blendv_pd(sin_r, cos_r, swap), _mm256_castsi256_pd(s_sign));
	return result;
}

AVX2_TARGET void kvc__sincos_avx2(
        const double *angles, double *cos_out, double *sin_out, int64_t count)
{
	for (int64_t i = 0; i < count; i += 4) {
		struct sincos_avx2 both = sincos4_avx2(_mm256_loadu_pd(angles + i));
		_mm256_storeu_pd(cos_out + i, both.c);
		_mm256_storeu_pd(sin_out + i, both.s);
	}
}

/* See ROPE_ANGLES; the frequencies' array is a multiple of 4 long. */
AVX2_TARGET static void angles_avx2(
        const double *freq, double position, double factor, float *c, float *s, int64_t count)
{
	__m256d scale = _mm256_set1_pd(factor);
	for (int64_t i = 0; i < count; i += 4) {
		struct sincos_avx2 both = sincos4_avx2(
		        _mm256_mul_pd(_mm256_set1_pd(position), _mm256_loadu_pd(freq + i)));
		_mm_storeu_ps(c + i, _mm256_cvtpd_ps(_mm256_mul_pd(scale, both.c)));
		_mm_storeu_ps(s + i, _mm256_cvtpd_ps(_mm256_mul_pd(scale, both.s)));
	}
}

/* ---- rotation ---- */

AVX2_INLINE __m256 canonical_avx2(__m256 r)
{
	__m256 quiet = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC00000));
	return _mm256_blendv_ps(r, quiet, _mm256_cmp_ps(r, r, _CMP_UNORD_Q));
}

/* x1, x2 become r1, r2; any NaN the positive quiet one. */
AVX2_INLINE void turn_avx2(__m256 *x1, __m256 *x2, const float *c_at, const float *s_at)
{
	__m256 c = _mm256_loadu_ps(c_at);
	__m256 s = _mm256_loadu_ps(s_at);
	__m256 r1 = _mm256_sub_ps(_mm256_mul_ps(*x1, c), _mm256_mul_ps(*x2, s));
	__m256 r2 = _mm256_add_ps(_mm256_mul_ps(*x1, s), _mm256_mul_ps(*x2, c));
	/* One comparison sees a NaN in either; healthy data never has any. */
	if (__builtin_expect(_mm256_movemask_ps(_mm256_cmp_ps(r1, r2, _CMP_UNORD_Q)), 0)) {
		r1 = canonical_avx2(r1);
		r2 = canonical_avx2(r2);
	}
	*x1 = r1;
	*x2 = r2;
}

/* Interleaved x1, x2, x1, x2, ...; each c and s is there twice. Odd lanes add x2*c to x1*s, where
 * the specification adds x1*s to x2*c: the same sum. */
AVX2_INLINE __m256 turn_interleaved_avx2(__m256 x, const float *c_at, const float *s_at)
{
	__m256 swapped = _mm256_permute_ps(x, 0xB1);
	__m256 r = _mm256_addsub_ps(_mm256_mul_ps(x, _mm256_loadu_ps(c_at)),
	        _mm256_mul_ps(swapped, _mm256_loadu_ps(s_at)));
	if (__builtin_expect(_mm256_movemask_ps(_mm256_cmp_ps(r, r, _CMP_UNORD_Q)), 0))
		r = canonical_avx2(r);
	return r;
}

/* ---- bfloat16: elements in even and in odd places apart, which needs no shuffle ---- */

AVX2_INLINE __m256 bf16_even_avx2(__m256i raw)
{
	return _mm256_castsi256_ps(_mm256_slli_epi32(raw, 16));
}

AVX2_INLINE __m256 bf16_odd_avx2(__m256i raw)
{
	return _mm256_castsi256_ps(_mm256_and_si256(raw, _mm256_set1_epi32((int)0xFFFF0000u)));
}

/*
 * Round to nearest even and put even and odd places together again. On 16-bit lanes: 'high' is what
 * stays, 'low' what goes. It rounds up if low > 8000h, or low = 8000h and high is odd: that is the
 * top bit of low - (high even ? 1 : 0), the subtraction saturating at 0. No NaN but the canonical
 * one comes here; its low half is 0.
 */
AVX2_INLINE __m256i bf16_join_avx2(__m256 even, __m256 odd)
{
	__m256i e = _mm256_castps_si256(even);
	__m256i o = _mm256_castps_si256(odd);
	__m256i high = _mm256_blend_epi16(_mm256_srli_epi32(e, 16), o, 0xAA);
	__m256i low = _mm256_blend_epi16(e, _mm256_slli_epi32(o, 16), 0xAA);
	__m256i is_even = _mm256_andnot_si256(high, _mm256_set1_epi16(1));
	__m256i up = _mm256_srli_epi16(_mm256_subs_epu16(low, is_even), 15);
	return _mm256_add_epi16(high, up);
}

AVX2_INLINE __m256i load_avx2(const char *at)
{
	return _mm256_loadu_si256((const __m256i *)(const void *)at);
}

/* stream: past the caches; 'at' is aligned then. */
AVX2_INLINE void store_avx2(int stream, char *at, __m256i value)
{
	if (stream)
		_mm256_stream_si256((__m256i *)(void *)at, value);
	else
		_mm256_storeu_si256((__m256i *)(void *)at, value);
}

/* 16 pairs. c and s: those of even places, then those of odd places. */
AVX2_INLINE void bf16_neox_avx2(int stream, const char *first, const char *second, char *out_first,
        char *out_second, const float *c, const float *s)
{
	__m256i raw1 = load_avx2(first);
	__m256i raw2 = load_avx2(second);
	__m256 even1 = bf16_even_avx2(raw1);
	__m256 even2 = bf16_even_avx2(raw2);
	__m256 odd1 = bf16_odd_avx2(raw1);
	__m256 odd2 = bf16_odd_avx2(raw2);
	turn_avx2(&even1, &even2, c, s);
	turn_avx2(&odd1, &odd2, c + 8, s + 8);
	store_avx2(stream, out_first, bf16_join_avx2(even1, odd1));
	store_avx2(stream, out_second, bf16_join_avx2(even2, odd2));
}

/* 8 pairs: a pair is an even and an odd place. */
AVX2_INLINE void bf16_interleaved_avx2(
        int stream, const char *in, char *out, const float *c, const float *s)
{
	__m256i raw = load_avx2(in);
	__m256 x1 = bf16_even_avx2(raw);
	__m256 x2 = bf16_odd_avx2(raw);
	turn_avx2(&x1, &x2, c, s);
	store_avx2(stream, out, bf16_join_avx2(x1, x2));
}

/* ---- float16 and float32: 8 elements in their order ---- */

AVX2_INLINE __m256 widen8_avx2(enum kvc__element element, const char *at)
{
	if (element == KVC__ELEMENT_F32)
		return _mm256_loadu_ps((const float *)(const void *)at);
	return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)at));
}

AVX2_INLINE void narrow8_avx2(enum kvc__element element, int stream, __m256 value, char *at)
{
	if (element == KVC__ELEMENT_F32) {
		store_avx2(stream, at, _mm256_castps_si256(value));
		return;
	}
	__m128i half = _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT);
	if (stream)
		_mm_stream_si128((__m128i *)(void *)at, half);
	else
		_mm_storeu_si128((__m128i *)(void *)at, half);
}

AVX2_INLINE void block_avx2(enum kvc__element element, int style, int stream, const char *first,
        const char *second, char *out_first, char *out_second, const float *c, const float *s)
{
	const int64_t eight = 8 * kvc__element_bytes(element);
	if (element == KVC__ELEMENT_BF16 && style == KVC_ROPE_NEOX) {
		bf16_neox_avx2(stream, first, second, out_first, out_second, c, s);
	} else if (element == KVC__ELEMENT_BF16) {
		bf16_interleaved_avx2(stream, first, out_first, c, s);
		bf16_interleaved_avx2(stream, first + 32, out_first + 32, c + 8, s + 8);
	} else if (style == KVC_ROPE_NEOX) {
		for (int i = 0; i < 2; i++) {
			__m256 x1 = widen8_avx2(element, first + i * eight);
			__m256 x2 = widen8_avx2(element, second + i * eight);
			turn_avx2(&x1, &x2, c + 8 * i, s + 8 * i);
			narrow8_avx2(element, stream, x1, out_first + i * eight);
			narrow8_avx2(element, stream, x2, out_second + i * eight);
		}
	} else {
		for (int i = 0; i < 4; i++) {
			__m256 x = widen8_avx2(element, first + i * eight);
			x = turn_interleaved_avx2(x, c + 8 * i, s + 8 * i);
			narrow8_avx2(element, stream, x, out_first + i * eight);
		}
	}
}

/* 16 values a to p become a c e ... o, b d f ... p. */
AVX2_INLINE void part_even_odd_avx2(float *at)
{
	__m256 a = _mm256_loadu_ps(at);
	__m256 b = _mm256_loadu_ps(at + 8);
	__m256d even = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88));
	__m256d odd = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0xDD));
	_mm256_storeu_ps(at, _mm256_castpd_ps(_mm256_permute4x64_pd(even, 0xD8)));
	_mm256_storeu_ps(at + 8, _mm256_castpd_ps(_mm256_permute4x64_pd(odd, 0xD8)));
}

/* 8 values at 'from' become 16 at 'to', each twice. */
AVX2_INLINE void double_each_avx2(const float *from, float *to)
{
	__m256 a = _mm256_loadu_ps(from);
	__m256 low = _mm256_unpacklo_ps(a, a);
	__m256 high = _mm256_unpackhi_ps(a, a);
	_mm256_storeu_ps(to, _mm256_permute2f128_ps(low, high, 0x20));
	_mm256_storeu_ps(to + 8, _mm256_permute2f128_ps(low, high, 0x31));
}

AVX2_TARGET static void arrange_avx2(
        enum kvc__element element, int style, float *c, float *s, int64_t pairs)
{
	if (element == KVC__ELEMENT_BF16 && style == KVC_ROPE_NEOX) {
		for (int64_t i = 0; i < pairs; i += 16) {
			part_even_odd_avx2(c + i);
			part_even_odd_avx2(s + i);
		}
	} else if (element != KVC__ELEMENT_BF16 && style == KVC_ROPE_INTERLEAVED) {
		for (int64_t i = pairs - 8; i >= 0; i -= 8) { /* from the end: in place */
			double_each_avx2(c + i, c + 2 * i);
			double_each_avx2(s + i, s + 2 * i);
		}
	}
}

/* ---- stores past the caches ---- */

/* Whole lines of 64 bytes go out in one piece; what is before and after them goes the usual way. */
AVX2_TARGET static void stream_avx2(char *to, const char *from, size_t bytes)
{
	size_t before = (64 - (uintptr_t)to % 64) % 64;
	if (bytes < before + 64) {
		memcpy(to, from, bytes);
		return;
	}
	memcpy(to, from, before);
	size_t at = before;
	for (; at + 64 <= bytes; at += 64) {
		__m256i a = load_avx2(from + at);
		__m256i b = load_avx2(from + at + 32);
		_mm256_stream_si256((__m256i *)(void *)(to + at), a);
		_mm256_stream_si256((__m256i *)(void *)(to + at + 32), b);
	}
	memcpy(to + at, from + at, bytes - at);
}

#define ROPE_TARGET AVX2_TARGET
#define ROPE_ROWS kvc__rope_rows_avx2
#define ROPE_XXH3 kvc__xxh3_avx2
#define ROPE_ANGLES angles_avx2
#define ROPE_ARRANGE arrange_avx2
#define ROPE_SPREAD(element, style)                                                                \
	((element) != KVC__ELEMENT_BF16 && (style) == KVC_ROPE_INTERLEAVED ? 2 : 1)
#define ROPE_BLOCK block_avx2
#define ROPE_STREAM stream_avx2
#define ROPE_FENCE _mm_sfence
#include "cpu/rope_template.h"

#else
typedef int kvc__nothing_here; /* an empty file is no C */
#endif
