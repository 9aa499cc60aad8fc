/*
 * Cosine and sine of a rotary angle, the same bits from gcc, clang and nvcc.
 *
 * libm's results differ between libraries and versions, and CUDA's from all of them; a cache that
 * is byte-identical on every back end needs a routine of its own. This one uses only +, -, * and
 * comparisons on doubles, each of which IEEE 754 defines to the last bit, PROVIDED that each is
 * rounded on its own: compile with -ffp-contract=off, and nvcc with --fmad=false. A vector variant
 * must repeat these operations in this order.
 *
 * Method (Cody and Waite): n = rint(angle * 2/pi); r = angle - n*pi/2 with pi/2 in three pieces of
 * 25 bits, so that each n*piece is exact in 53 bits while n < 2^28; then one polynomial each for
 * sin(r) and cos(r), swapped and negated by the quadrant n mod 4.
 *
 * Domain: 0 <= angle <= 2^28 (position <= 2^24 times a frequency <= 16), so n < 2^28. What the
 * pieces leave out of pi/2 is below 2^-80, hence below 2^-52 after times n. The first two
 * subtractions are exact (every term is a multiple of the last bit of the angle or of the piece,
 * and the difference is small), the third rounds once. Together |error| < 2^-51 relative to 1.
 *
 * Every constant comes out of sincos_derive.py beside this file.
 */
#ifndef KVC__BASE_SINCOS_H
#define KVC__BASE_SINCOS_H

#include "base/host_device.h"

#include <float.h>
#include <stdint.h>
#include <string.h>

#if defined(FLT_EVAL_METHOD) && FLT_EVAL_METHOD != 0
#error "sincos.h needs doubles that are rounded to double (on 32-bit x86: -msse2 -mfpmath=sse)"
#endif

#define KVC__TWO_OVER_PI 0x1.45f306dc9c883p-1

#define KVC__HALF_PI_1 0x1.921fb50000000p+0
#define KVC__HALF_PI_2 0x1.110b460000000p-26
#define KVC__HALF_PI_3 0x1.1a62630000000p-54

/* Adding and subtracting 1.5 * 2^52 rounds to an integer, ties to even; while it is added, the low
 * bits of the sum are the integer itself. */
#define KVC__ROUND_MAGIC 0x1.8p52

/* sin(r) = r + r*z*(SIN_1 + z*(SIN_2 + ...)), z = r*r; off by less than 2^-59. */
#define KVC__SIN_1 -0x1.555555555553dp-3
#define KVC__SIN_2 0x1.111111110eb1fp-7
#define KVC__SIN_3 -0x1.a01a019ab4ac1p-13
#define KVC__SIN_4 0x1.71de347563096p-19
#define KVC__SIN_5 -0x1.ae5db47754c3fp-26
#define KVC__SIN_6 0x1.5d64c8e02d291p-33

/* cos(r) = 1 - z/2 + z*z*(COS_1 + z*(COS_2 + ...)); off by less than 2^-64. */
#define KVC__COS_1 0x1.555555555554cp-5
#define KVC__COS_2 -0x1.6c16c16c15184p-10
#define KVC__COS_3 0x1.a01a019cb26dbp-16
#define KVC__COS_4 -0x1.27e4f80a756c3p-22
#define KVC__COS_5 0x1.1ee9ec470feafp-29
#define KVC__COS_6 -0x1.8faeced9bbfc6p-37

static inline KVC__HD void kvc__sincos(double angle, double *cos_out, double *sin_out)
{
	double shifted = angle * KVC__TWO_OVER_PI + KVC__ROUND_MAGIC;
	double n = shifted - KVC__ROUND_MAGIC;
	uint64_t quadrant;
	memcpy(&quadrant, &shifted, sizeof quadrant);

	double r = angle - n * KVC__HALF_PI_1;
	r = r - n * KVC__HALF_PI_2;
	r = r - n * KVC__HALF_PI_3;
	double z = r * r;

	double p = KVC__SIN_6;
	p = KVC__SIN_5 + z * p;
	p = KVC__SIN_4 + z * p;
	p = KVC__SIN_3 + z * p;
	p = KVC__SIN_2 + z * p;
	p = KVC__SIN_1 + z * p;
	double sin_r = r + (r * z) * p;

	double q = KVC__COS_6;
	q = KVC__COS_5 + z * q;
	q = KVC__COS_4 + z * q;
	q = KVC__COS_3 + z * q;
	q = KVC__COS_2 + z * q;
	q = KVC__COS_1 + z * q;
	double cos_r = (1.0 - 0.5 * z) + (z * z) * q;

	/* cos(r + n*pi/2): cos, -sin, -cos, sin for n mod 4 = 0..3; sin: sin, cos, -sin, -cos. */
	double c = (quadrant & 1) ? sin_r : cos_r;
	double s = (quadrant & 1) ? cos_r : sin_r;
	*cos_out = ((quadrant + 1) & 2) ? -c : c;
	*sin_out = (quadrant & 2) ? -s : s;
}

#endif /* KVC__BASE_SINCOS_H */
