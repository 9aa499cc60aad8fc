/*
 * rope_pool_fused with NEON, which every 64-bit ARM has. -ffp-contract=off keeps the compiler from
 * fusing products and sums. In round-to-nearest without flushing (base/fp_mode.h) NEON rounds as the
 * specification does; only NaN differ, and those are made canonical.
 */
#if defined(__aarch64__)
#include <arm_neon.h>

#define ROPE_BYTES 16
#define ROPE_TARGET
#include "cpu/rope_vectors.h"

ROPE_INLINE halves upper_halves(words even, words odd)
{
	return (halves)vtrn2q_u16((uint16x8_t)even, (uint16x8_t)odd);
}

ROPE_INLINE halves lower_halves(words even, words odd)
{
	return (halves)vtrn1q_u16((uint16x8_t)even, (uint16x8_t)odd);
}

ROPE_INLINE halves round_halves(halves high, halves low)
{
	/* As in rope_avx2.c. */
	uint16x8_t rest = vqsubq_u16((uint16x8_t)low, (uint16x8_t)(~high & 1));
	return (halves)vsraq_n_u16((uint16x8_t)high, rest, 15);
}

ROPE_INLINE words lesser(words a, words b)
{
	return (words)vminq_u32((uint32x4_t)a, (uint32x4_t)b);
}

ROPE_INLINE words choose(words mask, words set, words clear)
{
	return (words)vbslq_u32((uint32x4_t)mask, (uint32x4_t)set, (uint32x4_t)clear);
}

ROPE_INLINE floats gather_nonfinite(floats so_far, floats a, floats b)
{
	return (floats)vfmaq_f32((float32x4_t)so_far, (float32x4_t)a, (float32x4_t)b);
}

ROPE_INLINE int any_set(words mask)
{
	return vmaxvq_u32((uint32x4_t)mask) != 0;
}

ROPE_INLINE floats swap_neighbours(floats v)
{
	return (floats)vrev64q_f32((float32x4_t)v);
}

ROPE_INLINE void twice_each(floats v, floats *low, floats *high)
{
	*low = (floats)vzip1q_f32((float32x4_t)v, (float32x4_t)v);
	*high = (floats)vzip2q_f32((float32x4_t)v, (float32x4_t)v);
}

ROPE_INLINE void part_places(floats a, floats b, floats *even, floats *odd)
{
	*even = (floats)vuzp1q_f32((float32x4_t)a, (float32x4_t)b);
	*odd = (floats)vuzp2q_f32((float32x4_t)a, (float32x4_t)b);
}

ROPE_INLINE void widen_f16(const char *at, floats *low, floats *high)
{
	float16x8_t all = vreinterpretq_f16_u8(vld1q_u8((const uint8_t *)at));
	*low = (floats)vcvt_f32_f16(vget_low_f16(all));
	*high = (floats)vcvt_high_f32_f16(all);
}

ROPE_INLINE halves narrow_f16(floats low, floats high)
{
	return (halves)vcvt_high_f16_f32(vcvt_f16_f32((float32x4_t)low), (float32x4_t)high);
}

ROPE_INLINE halves pack_words(words low, words high)
{
	return (halves)vuzp1q_u16((uint16x8_t)low, (uint16x8_t)high);
}

ROPE_INLINE octets pack_halves(halves low, halves high)
{
	return (octets)vuzp1q_u8((uint8x16_t)low, (uint8x16_t)high);
}

/* C has no stores past the caches here. */
ROPE_INLINE void store_past(char *at, words v)
{
	vst1q_u8((uint8_t *)at, (uint8x16_t)v);
}

#define ROPE_ROWS kvc__rope_rows_neon
#define ROPE_SINCOS kvc__sincos_neon
#define ROPE_XXH3 kvc__xxh3_portable /* which is NEON here */
#define ROPE_FENCE() (void)0
#include "cpu/rope_template.h"

#else
typedef int kvc__nothing_here; /* an empty file is no C */
#endif
