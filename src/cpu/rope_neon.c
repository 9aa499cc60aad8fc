/*
 * rope_pool_fused with NEON, which every 64-bit ARM has. -ffp-contract=off keeps the compiler from
 * fusing the products and sums below. In round-to-nearest without flushing (base/fp_mode.h) NEON
 * rounds as the specification does; only NaN differ, and those are made canonical.
 */
#if defined(__aarch64__)
#include "base/sincos.h"
#include "cpu/rope.h"

#include <arm_neon.h>

#define NEON_INLINE static inline __attribute__((always_inline))

/* ---- cosines and sines: kvc__sincos(), two at a time ---- */

/* a + z*p, two roundings. */
NEON_INLINE float64x2_t horner_neon(double a, float64x2_t z, float64x2_t p)
{
	return vaddq_f64(vdupq_n_f64(a), vmulq_f64(z, p));
}

/* Both bits of 'value' at bit 1, moved to the sign, turned over in 'a' where they are set. */
NEON_INLINE float64x2_t negate_neon(float64x2_t a, uint64x2_t value)
{
	uint64x2_t sign = vandq_u64(vshlq_n_u64(value, 62), vdupq_n_u64((uint64_t)1 << 63));
	return vreinterpretq_f64_u64(veorq_u64(vreinterpretq_u64_f64(a), sign));
}

NEON_INLINE float64x2x2_t sincos2_neon(float64x2_t angle)
{
	const float64x2_t magic = vdupq_n_f64(KVC__ROUND_MAGIC);
	const uint64x2_t one = vdupq_n_u64(1);
	float64x2_t shifted = vaddq_f64(vmulq_f64(angle, vdupq_n_f64(KVC__TWO_OVER_PI)), magic);
	float64x2_t n = vsubq_f64(shifted, magic);
	uint64x2_t quadrant = vreinterpretq_u64_f64(shifted);

	float64x2_t r = vsubq_f64(angle, vmulq_f64(n, vdupq_n_f64(KVC__HALF_PI_1)));
	r = vsubq_f64(r, vmulq_f64(n, vdupq_n_f64(KVC__HALF_PI_2)));
	r = vsubq_f64(r, vmulq_f64(n, vdupq_n_f64(KVC__HALF_PI_3)));
	float64x2_t z = vmulq_f64(r, r);

	float64x2_t p = vdupq_n_f64(KVC__SIN_6);
	p = horner_neon(KVC__SIN_5, z, p);
	p = horner_neon(KVC__SIN_4, z, p);
	p = horner_neon(KVC__SIN_3, z, p);
	p = horner_neon(KVC__SIN_2, z, p);
	p = horner_neon(KVC__SIN_1, z, p);
	float64x2_t sin_r = vaddq_f64(r, vmulq_f64(vmulq_f64(r, z), p));

	float64x2_t q = vdupq_n_f64(KVC__COS_6);
	q = horner_neon(KVC__COS_5, z, q);
	q = horner_neon(KVC__COS_4, z, q);
	q = horner_neon(KVC__COS_3, z, q);
	q = horner_neon(KVC__COS_2, z, q);
	q = horner_neon(KVC__COS_1, z, q);
	float64x2_t cos_r = vaddq_f64(vsubq_f64(vdupq_n_f64(1.0), vmulq_f64(vdupq_n_f64(0.5), z)),
	        vmulq_f64(vmulq_f64(z, z), q));

	uint64x2_t swap = vtstq_u64(quadrant, one);
	float64x2x2_t result;
	result.val[0] = negate_neon(vbslq_f64(swap, sin_r, cos_r), vaddq_u64(quadrant, one));
	result.val[1] = negate_neon(vbslq_f64(swap, cos_r, sin_r), quadrant);
	return result;
}

void kvc__sincos_neon(const double *angles, double *cos_out, double *sin_out, int64_t count)
{
	for (int64_t i = 0; i < count; i += 2) {
		float64x2x2_t both = sincos2_neon(vld1q_f64(angles + i));
		vst1q_f64(cos_out + i, both.val[0]);
		vst1q_f64(sin_out + i, both.val[1]);
	}
}

/* See ROPE_ANGLES; the frequencies' array is a multiple of 2 long. */
static void angles_neon(
        const double *freq, double position, double factor, float *c, float *s, int64_t count)
{
	float64x2_t scale = vdupq_n_f64(factor);
	for (int64_t i = 0; i < count; i += 2) {
		float64x2x2_t both =
		        sincos2_neon(vmulq_f64(vdupq_n_f64(position), vld1q_f64(freq + i)));
		vst1_f32(c + i, vcvt_f32_f64(vmulq_f64(scale, both.val[0])));
		vst1_f32(s + i, vcvt_f32_f64(vmulq_f64(scale, both.val[1])));
	}
}

/* ---- rotation ---- */

NEON_INLINE float32x4_t canonical_neon(float32x4_t r)
{
	return vbslq_f32(vceqq_f32(r, r), r, vreinterpretq_f32_u32(vdupq_n_u32(0x7FC00000)));
}

/* x1, x2 become r1, r2; any NaN the positive quiet one. */
NEON_INLINE void turn_neon(float32x4_t *x1, float32x4_t *x2, const float *c_at, const float *s_at)
{
	float32x4_t c = vld1q_f32(c_at);
	float32x4_t s = vld1q_f32(s_at);
	float32x4_t r1 = vsubq_f32(vmulq_f32(*x1, c), vmulq_f32(*x2, s));
	float32x4_t r2 = vaddq_f32(vmulq_f32(*x1, s), vmulq_f32(*x2, c));
	*x1 = canonical_neon(r1);
	*x2 = canonical_neon(r2);
}

/* Eight 16-bit elements as two vectors of four float32. */
NEON_INLINE float32x4x2_t widen8_neon(enum kvc__element element, uint16x8_t raw)
{
	float32x4x2_t wide;
	if (element == KVC__ELEMENT_F16) {
		wide.val[0] = vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(raw)));
		wide.val[1] = vcvt_f32_f16(vreinterpret_f16_u16(vget_high_u16(raw)));
	} else {
		wide.val[0] = vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(raw), 16));
		wide.val[1] = vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(raw), 16));
	}
	return wide;
}

/* To nearest even. No NaN but the canonical one. */
NEON_INLINE uint16x4_t narrow4_neon(enum kvc__element element, float32x4_t value)
{
	if (element == KVC__ELEMENT_F16)
		return vreinterpret_u16_f16(vcvt_f16_f32(value));
	uint32x4_t bits = vreinterpretq_u32_f32(value);
	uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
	return vshrn_n_u32(vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7FFF))), 16);
}

NEON_INLINE uint16x8_t narrow8_neon(enum kvc__element element, float32x4x2_t wide)
{
	return vcombine_u16(narrow4_neon(element, wide.val[0]), narrow4_neon(element, wide.val[1]));
}

/* Eight pairs of 16-bit elements. */
NEON_INLINE void turn8_neon(enum kvc__element element, uint16x8_t *raw1, uint16x8_t *raw2,
        const float *c, const float *s)
{
	float32x4x2_t x1 = widen8_neon(element, *raw1);
	float32x4x2_t x2 = widen8_neon(element, *raw2);
	turn_neon(&x1.val[0], &x2.val[0], c, s);
	turn_neon(&x1.val[1], &x2.val[1], c + 4, s + 4);
	*raw1 = narrow8_neon(element, x1);
	*raw2 = narrow8_neon(element, x2);
}

/* Any address: elements need not be aligned, which the loads of bytes say. */
NEON_INLINE uint16x8_t load8_neon(const char *at)
{
	return vreinterpretq_u16_u8(vld1q_u8((const uint8_t *)at));
}

NEON_INLINE void store8_neon(char *at, uint16x8_t value)
{
	vst1q_u8((uint8_t *)at, vreinterpretq_u8_u16(value));
}

NEON_INLINE float32x4_t load4_neon(const char *at)
{
	return vreinterpretq_f32_u8(vld1q_u8((const uint8_t *)at));
}

NEON_INLINE void store4_neon(char *at, float32x4_t value)
{
	vst1q_u8((uint8_t *)at, vreinterpretq_u8_f32(value));
}

NEON_INLINE void block16_neon(enum kvc__element element, int style, const char *first,
        const char *second, char *out_first, char *out_second, const float *c, const float *s)
{
	for (int i = 0; i < 16; i += 8) {
		if (style == KVC_ROPE_NEOX) {
			uint16x8_t a = load8_neon(first + 2 * i);
			uint16x8_t b = load8_neon(second + 2 * i);
			turn8_neon(element, &a, &b, c + i, s + i);
			store8_neon(out_first + 2 * i, a);
			store8_neon(out_second + 2 * i, b);
		} else {
			uint16x8_t low = load8_neon(first + 4 * i);
			uint16x8_t high = load8_neon(first + 4 * i + 16);
			uint16x8_t a = vuzp1q_u16(low, high);
			uint16x8_t b = vuzp2q_u16(low, high);
			turn8_neon(element, &a, &b, c + i, s + i);
			store8_neon(out_first + 4 * i, vzip1q_u16(a, b));
			store8_neon(out_first + 4 * i + 16, vzip2q_u16(a, b));
		}
	}
}

NEON_INLINE void block32_neon(int style, const char *first, const char *second, char *out_first,
        char *out_second, const float *c, const float *s)
{
	for (int i = 0; i < 16; i += 4) {
		if (style == KVC_ROPE_NEOX) {
			float32x4_t a = load4_neon(first + 4 * i);
			float32x4_t b = load4_neon(second + 4 * i);
			turn_neon(&a, &b, c + i, s + i);
			store4_neon(out_first + 4 * i, a);
			store4_neon(out_second + 4 * i, b);
		} else {
			float32x4_t low = load4_neon(first + 8 * i);
			float32x4_t high = load4_neon(first + 8 * i + 16);
			float32x4_t a = vuzp1q_f32(low, high);
			float32x4_t b = vuzp2q_f32(low, high);
			turn_neon(&a, &b, c + i, s + i);
			store4_neon(out_first + 8 * i, vzip1q_f32(a, b));
			store4_neon(out_first + 8 * i + 16, vzip2q_f32(a, b));
		}
	}
}

NEON_INLINE void block_neon(enum kvc__element element, int style, int stream, const char *first,
        const char *second, char *out_first, char *out_second, const float *c, const float *s)
{
	(void)stream; /* C has no stores past the caches here */
	if (element == KVC__ELEMENT_F32)
		block32_neon(style, first, second, out_first, out_second, c, s);
	else
		block16_neon(element, style, first, second, out_first, out_second, c, s);
}

#define ROPE_TARGET
#define ROPE_ROWS kvc__rope_rows_neon
#define ROPE_XXH3 kvc__xxh3_portable /* which is NEON here */
#define ROPE_ANGLES angles_neon
#define ROPE_ARRANGE(element, style, c, s, pairs) (void)(pairs)
#define ROPE_SPREAD(element, style) 1
#define ROPE_BLOCK block_neon
#define ROPE_STREAM memcpy
#define ROPE_FENCE() (void)0
#include "cpu/rope_template.h"

#else
typedef int kvc__nothing_here; /* an empty file is no C */
#endif
