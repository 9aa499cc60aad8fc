/*
 * bfloat16, float16 and the two 8-bit floats, to and from float32, in portable C.
 *
 * Rounding is to nearest, ties to even; subnormals are kept in both directions. Written on the bit
 * patterns (with two float additions that round for us) rather than with branches on classes, so
 * that a compiler can turn a loop over any of these into vector code. The additions need the
 * round-to-nearest mode: see fp_mode.h.
 *
 * NaN. A float32 NaN becomes the positive quiet NaN of a 16-bit type (SPEC section 2: only rotated
 * elements are ever converted; copied ones keep their bits). In an 8-bit type it becomes 7F with
 * its sign.
 * Overflow. 16-bit types overflow to infinity as IEEE does. 8-bit types saturate at the largest
 * finite value, infinities included: 448 (e4m3fn has no infinity) and 57344 (e5m2).
 *
 * Must agree with the conversions of src/cuda and of every CPU variant.
 */
#ifndef KVC__BASE_FLOAT_FORMATS_H
#define KVC__BASE_FLOAT_FORMATS_H

#include "base/host_device.h"

#include <stdint.h>
#include <string.h>

static inline KVC__HD uint32_t kvc__bits_of(float value)
{
	uint32_t bits;
	memcpy(&bits, &value, sizeof bits);
	return bits;
}

static inline KVC__HD float kvc__float_of(uint32_t bits)
{
	float value;
	memcpy(&value, &bits, sizeof value);
	return value;
}

#define KVC__F32_INFINITY 0x7F800000u
#define KVC__F32_QUIET_NAN 0x7FC00000u
#define KVC__F32_SIGN 0x80000000u

/* What a rotated float32 element is stored as: NaN loses sign and payload, which are otherwise
 * up to the processor. */
static inline KVC__HD uint32_t kvc__f32_canonical(float value)
{
	uint32_t bits = kvc__bits_of(value);
	return (bits & ~KVC__F32_SIGN) > KVC__F32_INFINITY ? KVC__F32_QUIET_NAN : bits;
}

/* ---- bfloat16: the upper half of a float32 ---- */

static inline KVC__HD float kvc__f32_from_bf16(uint16_t half)
{
	return kvc__float_of((uint32_t)half << 16);
}

static inline KVC__HD uint16_t kvc__bf16_from_f32(float value)
{
	uint32_t bits = kvc__bits_of(value);
	/* Half a unit less one, plus one if the kept part is odd: a tie then goes to even. */
	uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
	return (uint16_t)((bits & ~KVC__F32_SIGN) > KVC__F32_INFINITY ? 0x7FC0u : rounded);
}

/* ---- float16: 5 bits of exponent (bias 15), 10 of fraction ---- */

static inline KVC__HD float kvc__f32_from_f16(uint16_t half)
{
	uint32_t magnitude = half & 0x7FFFu;
	uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
	/* Exponent 31 (infinity, NaN) must become 255; the others move by the biases' difference.
	 */
	uint32_t rebias = (magnitude >= 0x7C00u ? 255u - 31u : 127u - 15u) << 23;
	uint32_t normal = (magnitude << 13) + rebias;
	uint32_t subnormal = kvc__bits_of((float)(int32_t)magnitude * 0x1p-24f);
	return kvc__float_of(sign | (magnitude < 0x0400u ? subnormal : normal));
}

static inline KVC__HD uint16_t kvc__f16_from_f32(float value)
{
	uint32_t bits = kvc__bits_of(value);
	uint32_t magnitude = bits & ~KVC__F32_SIGN;
	uint32_t sign = (bits >> 16) & 0x8000u;
	uint32_t normal = (magnitude - (112u << 23) + 0x0FFFu + ((magnitude >> 13) & 1u)) >> 13;
	/* One unit of 0.5f is 2^-24, float16's smallest step: the addition rounds to it. */
	uint32_t subnormal = kvc__bits_of(kvc__float_of(magnitude) + 0.5f) - 0x3F000000u;
	uint32_t half = magnitude < 0x38800000u ? subnormal : normal; /* below 2^-14 */
	half = magnitude >= 0x47800000u ? 0x7C00u : half;             /* from 2^16 on */
	return (uint16_t)(magnitude > KVC__F32_INFINITY ? 0x7E00u : (half | sign));
}

/* ---- float8 e4m3fn: 4 bits of exponent (bias 7), 3 of fraction, no infinity, 7F is NaN ---- */

static inline KVC__HD float kvc__f32_from_e4m3(uint8_t byte)
{
	uint32_t magnitude = byte & 0x7Fu;
	uint32_t sign = (uint32_t)(byte & 0x80u) << 24;
	uint32_t normal = (magnitude << 20) + (120u << 23);
	uint32_t subnormal = kvc__bits_of((float)(int32_t)magnitude * 0x1p-9f);
	uint32_t bits = magnitude < 0x08u ? subnormal : normal;
	return kvc__float_of(sign | (magnitude == 0x7Fu ? KVC__F32_QUIET_NAN : bits));
}

static inline KVC__HD uint8_t kvc__e4m3_from_f32(float value)
{
	uint32_t bits = kvc__bits_of(value);
	uint32_t magnitude = bits & ~KVC__F32_SIGN;
	uint32_t sign = (bits >> 24) & 0x80u;
	uint32_t normal = (magnitude - (120u << 23) + 0x7FFFFu + ((magnitude >> 20) & 1u)) >> 20;
	/* One unit of 2^14 is 2^-9, the smallest step. */
	uint32_t subnormal = kvc__bits_of(kvc__float_of(magnitude) + 0x1p14f) - 0x46800000u;
	uint32_t byte = magnitude < 0x3C800000u ? subnormal : normal; /* below 2^-6 */
	byte = magnitude > 0x43E00000u ? 0x7Eu : byte;                /* above 448 */
	return (uint8_t)((magnitude > KVC__F32_INFINITY ? 0x7Fu : byte) | sign);
}

/* ---- float8 e5m2: 5 bits of exponent (bias 15), 2 of fraction ---- */

static inline KVC__HD float kvc__f32_from_e5m2(uint8_t byte)
{
	/* The upper byte of a float16. */
	return kvc__f32_from_f16((uint16_t)((uint32_t)byte << 8));
}

static inline KVC__HD uint8_t kvc__e5m2_from_f32(float value)
{
	uint32_t bits = kvc__bits_of(value);
	uint32_t magnitude = bits & ~KVC__F32_SIGN;
	uint32_t sign = (bits >> 24) & 0x80u;
	uint32_t normal = (magnitude - (112u << 23) + 0xFFFFFu + ((magnitude >> 21) & 1u)) >> 21;
	/* One unit of 2^7 is 2^-16, the smallest step. */
	uint32_t subnormal = kvc__bits_of(kvc__float_of(magnitude) + 0x1p7f) - 0x43000000u;
	uint32_t byte = magnitude < 0x38800000u ? subnormal : normal; /* below 2^-14 */
	byte = magnitude > 0x47600000u ? 0x7Bu : byte;                /* above 57344 */
	return (uint8_t)((magnitude > KVC__F32_INFINITY ? 0x7Fu : byte) | sign);
}

/*
 * value / scale, sign and NaN kept apart from the division: IEEE leaves the sign of a NaN result to
 * the processor, and the pool must not depend on it. scale is positive and finite.
 */
static inline KVC__HD float kvc__divide_keep_sign(float value, float scale)
{
	uint32_t quotient = kvc__bits_of(value / scale) & ~KVC__F32_SIGN;
	return kvc__float_of(quotient | (kvc__bits_of(value) & KVC__F32_SIGN));
}

static inline KVC__HD uint8_t kvc__e4m3_scaled(float value, float scale)
{
	return kvc__e4m3_from_f32(kvc__divide_keep_sign(value, scale));
}

static inline KVC__HD uint8_t kvc__e5m2_scaled(float value, float scale)
{
	return kvc__e5m2_from_f32(kvc__divide_keep_sign(value, scale));
}

#endif /* KVC__BASE_FLOAT_FORMATS_H */
