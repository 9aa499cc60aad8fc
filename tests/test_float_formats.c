/*
 * Goal: the narrow float conversions are IEEE 754 round-to-nearest-even, with the library's rules
 * for NaN and saturation. Method: every value of a narrow type against arithmetic on its fields;
 * float32 inputs against a search of the two neighbours in exact double arithmetic, over all ties
 * and their neighbours, every subnormal edge and a stride through all bit patterns; and monotony,
 * over all 2^32 inputs with KVC_TEST_LONG=1.
 */
#include "base/float_formats.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* What a narrow type is: value of a pattern below 'infinity' from its fields. */
struct format {
	const char *name;
	int fraction_bits;
	int bias;
	uint32_t largest;  /* pattern of the largest finite value */
	uint32_t overflow; /* pattern that overflow goes to */
	uint32_t nan;      /* pattern of the NaN that is made */
	int nan_keeps_sign;
	int sign_shift;
	uint32_t (*encode)(float value);
	float (*decode)(uint32_t pattern);
};

static uint32_t encode_bf16(float v)
{
	return kvc__bf16_from_f32(v);
}
static uint32_t encode_f16(float v)
{
	return kvc__f16_from_f32(v);
}
static uint32_t encode_e4m3(float v)
{
	return kvc__e4m3_from_f32(v);
}
static uint32_t encode_e5m2(float v)
{
	return kvc__e5m2_from_f32(v);
}
static float decode_bf16(uint32_t p)
{
	return kvc__f32_from_bf16((uint16_t)p);
}
static float decode_f16(uint32_t p)
{
	return kvc__f32_from_f16((uint16_t)p);
}
static float decode_e4m3(uint32_t p)
{
	return kvc__f32_from_e4m3((uint8_t)p);
}
static float decode_e5m2(uint32_t p)
{
	return kvc__f32_from_e5m2((uint8_t)p);
}

static const struct format formats[] = {
	{ "bf16", 7, 127, 0x7F7F, 0x7F80, 0x7FC0, 0, 15, encode_bf16, decode_bf16 },
	{ "f16", 10, 15, 0x7BFF, 0x7C00, 0x7E00, 0, 15, encode_f16, decode_f16 },
	{ "e4m3fn", 3, 7, 0x7E, 0x7E, 0x7F, 1, 7, encode_e4m3, decode_e4m3 },
	{ "e5m2", 2, 15, 0x7B, 0x7B, 0x7F, 1, 7, encode_e5m2, decode_e5m2 },
};
#define FORMAT_COUNT (sizeof formats / sizeof *formats)

/* Value of a positive pattern by definition; patterns past the largest go on as if the format had
 * more exponents, which is what rounding near overflow compares with. */
static double value_of(const struct format *f, uint32_t pattern)
{
	uint32_t exponent = pattern >> f->fraction_bits;
	double fraction = (double)(pattern & ((1u << f->fraction_bits) - 1u));
	double unit = ldexp(1.0, -f->fraction_bits);
	if (exponent == 0)
		return ldexp(fraction * unit, 1 - f->bias);
	return ldexp(1.0 + fraction * unit, (int)exponent - f->bias);
}

/* The nearest pattern by bisection over the values, ties to the even pattern. */
static uint32_t oracle(const struct format *f, float value)
{
	uint32_t sign = (kvc__bits_of(value) >> 31) << f->sign_shift;
	if (isnan(value))
		return f->nan | (f->nan_keeps_sign ? sign : 0);
	double magnitude = fabs((double)value);
	if (magnitude >= value_of(f, f->largest + 1))
		return sign | f->overflow;
	uint32_t low = 0;
	uint32_t high = f->largest + 1;
	while (high - low > 1) {
		uint32_t middle = (low + high) / 2;
		if (value_of(f, middle) <= magnitude)
			low = middle;
		else
			high = middle;
	}
	double below = magnitude - value_of(f, low);
	double above = value_of(f, high) - magnitude;
	uint32_t nearest = below < above || (below == above && low % 2 == 0) ? low : high;
	return sign | (nearest > f->largest ? f->overflow : nearest);
}

static void check(const struct format *f, uint32_t bits)
{
	uint32_t got = f->encode(kvc__float_of(bits));
	uint32_t want = oracle(f, kvc__float_of(bits));
	if (got != want)
		fail_msg("%s of %08X: got %04X, want %04X", f->name, bits, got, want);
}

static void every_narrow_value_decodes_to_its_definition(void **state)
{
	(void)state;
	for (size_t i = 0; i < FORMAT_COUNT; i++) {
		const struct format *f = &formats[i];
		for (uint32_t pattern = 0; pattern < 2u << f->sign_shift; pattern++) {
			uint32_t magnitude = pattern & ((1u << f->sign_shift) - 1u);
			float got = f->decode(pattern);
			if (magnitude <= f->largest) {
				double sign = pattern >> f->sign_shift ? -1.0 : 1.0;
				double want = sign * value_of(f, magnitude);
				assert_true((double)got == want);
				assert_int_equal(signbit(got) != 0, pattern >> f->sign_shift);
			} else if (f->overflow > f->largest && magnitude == f->overflow) {
				assert_true(isinf(got));
			} else if (f->sign_shift == 7 && f->fraction_bits == 2 &&
			           magnitude == 0x7C) {
				assert_true(
				        isinf(got)); /* e5m2 has infinities, we never make one */
			} else {
				assert_true(isnan(got));
			}
		}
	}
}

static void every_narrow_value_survives_the_round_trip(void **state)
{
	(void)state;
	for (size_t i = 0; i < FORMAT_COUNT; i++) {
		const struct format *f = &formats[i];
		for (uint32_t pattern = 0; pattern < 2u << f->sign_shift; pattern++)
			if ((pattern & ((1u << f->sign_shift) - 1u)) <= f->largest)
				assert_int_equal(f->encode(f->decode(pattern)), pattern);
	}
}

static void ties_and_their_neighbours_round_to_nearest_even(void **state)
{
	(void)state;
	for (size_t i = 0; i < FORMAT_COUNT; i++) {
		const struct format *f = &formats[i];
		for (uint32_t pattern = 0; pattern <= f->largest; pattern++) {
			double middle = (value_of(f, pattern) + value_of(f, pattern + 1)) / 2;
			uint32_t bits = kvc__bits_of((float)middle);
			for (uint32_t step = 0; step < 5; step++) {
				uint32_t near = bits + step - 2;
				if (bits + step < 2)
					continue;
				check(f, near);
				check(f, near | KVC__F32_SIGN);
			}
		}
	}
}

static void float32_inputs_of_every_class_match_the_oracle(void **state)
{
	(void)state;
	static const uint32_t edges[] = { 0, 1, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0x7F800000,
		0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0x00008000, 0x00008001, 0x00018000 };
	const uint64_t stride = 9973; /* prime */
	for (size_t i = 0; i < FORMAT_COUNT; i++) {
		for (size_t e = 0; e < sizeof edges / sizeof *edges; e++) {
			check(&formats[i], edges[e]);
			check(&formats[i], edges[e] | KVC__F32_SIGN);
		}
		for (uint64_t bits = 0; bits < UINT64_C(1) << 32; bits += stride)
			check(&formats[i], (uint32_t)bits);
	}
}

/*
 * Every boundary between two results is checked above, two inputs on either side. What lies between
 * boundaries is right if results never fall while the input rises; so this covers all 2^32 inputs.
 */
static void results_rise_with_the_input_and_signs_are_symmetric(void **state)
{
	(void)state;
	uint32_t step = getenv("KVC_TEST_LONG") ? 1 : 1009;
	for (size_t i = 0; i < FORMAT_COUNT; i++) {
		const struct format *f = &formats[i];
		uint32_t sign = 1u << f->sign_shift;
		uint32_t last = 0;
		for (uint32_t bits = 0; bits <= KVC__F32_INFINITY; bits += step) {
			uint32_t got = f->encode(kvc__float_of(bits));
			uint32_t mirrored = f->encode(kvc__float_of(bits | KVC__F32_SIGN));
			if (got < last || mirrored != (got | sign))
				fail_msg("%s of %08X: %04X after %04X, mirrored %04X", f->name,
				        bits, got, last, mirrored);
			last = got;
		}
		for (uint32_t bits = KVC__F32_INFINITY + 1; bits <= 0x7FFFFFFF; bits += step) {
			uint32_t negative = f->encode(kvc__float_of(bits | KVC__F32_SIGN));
			if (f->encode(kvc__float_of(bits)) != f->nan ||
			        negative != (f->nan | (f->nan_keeps_sign ? sign : 0)))
				fail_msg("%s of NaN %08X", f->name, bits);
		}
	}
}

static void b30_fp8_saturates_and_keeps_nan_and_signs(void **state)
{
	(void)state;
	assert_int_equal(kvc__e4m3_from_f32(NAN), 0x7F);
	assert_int_equal(kvc__e4m3_from_f32(kvc__float_of(0xFFC00000)), 0xFF);
	assert_int_equal(kvc__e4m3_from_f32(INFINITY), 0x7E);
	assert_int_equal(kvc__e4m3_from_f32(-INFINITY), 0xFE);
	assert_int_equal(kvc__e4m3_from_f32(448.0f), 0x7E);
	assert_int_equal(kvc__e4m3_from_f32(464.0f), 0x7E);
	assert_int_equal(kvc__e4m3_from_f32(465.0f), 0x7E);
	assert_int_equal(kvc__e4m3_from_f32(-0.0f), 0x80);
	assert_int_equal(kvc__e4m3_from_f32(0x1p-10f), 0x00); /* tie between 0 and 2^-9 */
	assert_int_equal(kvc__e4m3_from_f32(0x1p-9f), 0x01);
	assert_int_equal(kvc__e4m3_from_f32(0x1.8p-9f), 0x02); /* tie, to even */
	assert_true(isnan(kvc__f32_from_e4m3(0x7F)));
	assert_int_equal(kvc__e5m2_from_f32(INFINITY), 0x7B);
	assert_int_equal(kvc__e5m2_from_f32(-1e30f), 0xFB);
	assert_int_equal(kvc__e5m2_from_f32(kvc__float_of(0xFF800001)), 0xFF);
	assert_int_equal(kvc__e5m2_from_f32(-0.0f), 0x80);
}

static void scaled_fp8_divides_truly_and_keeps_the_sign_of_nan(void **state)
{
	(void)state;
	/* 10 / 3 is not 10 * (1/3) for some operands; compare with the division for many. */
	uint32_t bits = 12345;
	for (int i = 0; i < 200000; i++) {
		bits = bits * 1664525u + 1013904223u;
		float value = kvc__float_of((bits & 0x83FFFFFFu) + 0x3C000000u);
		float scale = 0.001f + (float)(i % 1000) * 0.017f;
		assert_int_equal(
		        kvc__e4m3_scaled(value, scale), oracle(&formats[2], value / scale));
		assert_int_equal(
		        kvc__e5m2_scaled(value, scale), oracle(&formats[3], value / scale));
	}
	assert_int_equal(kvc__e4m3_scaled(kvc__float_of(0xFFC12345), 2.0f), 0xFF);
	assert_int_equal(kvc__e4m3_scaled(kvc__float_of(0x7F812345), 2.0f), 0x7F);
	assert_int_equal(kvc__e4m3_scaled(-0x1p-149f, 1e30f), 0x80);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_narrow_value_decodes_to_its_definition),
		cmocka_unit_test(every_narrow_value_survives_the_round_trip),
		cmocka_unit_test(ties_and_their_neighbours_round_to_nearest_even),
		cmocka_unit_test(float32_inputs_of_every_class_match_the_oracle),
		cmocka_unit_test(results_rise_with_the_input_and_signs_are_symmetric),
		cmocka_unit_test(b30_fp8_saturates_and_keeps_nan_and_signs),
		cmocka_unit_test(scaled_fp8_divides_truly_and_keeps_the_sign_of_nan),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
