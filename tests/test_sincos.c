/*
 * Goal: kvc__sincos is accurate over its whole domain and gives one fixed set of bits. Method:
 * against glibc's sincosl (64-bit mantissa, exact argument reduction), over random angles, angles
 * next to multiples of pi/2, and position * frequency products at large positions; bits against
 * values recorded once, which every compiler and every variant must reproduce.
 */
#include "base/sincos.h"

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static uint64_t random_state = 1;

static uint64_t next_random(void)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state;
}

/* In [0, 1). */
static double next_unit(void)
{
	return (double)(next_random() >> 11) * 0x1p-53;
}

static double worst;

static void check(double angle)
{
	double c;
	double s;
	kvc__sincos(angle, &c, &s);
	long double error_c = fabsl((long double)c - cosl((long double)angle));
	long double error_s = fabsl((long double)s - sinl((long double)angle));
	double error = (double)(error_c > error_s ? error_c : error_s);
	if (error > worst)
		worst = error;
	if (!(error < 0x1p-51))
		fail_msg("angle %a: cos %a sin %a, error %a", angle, c, s, error);
}

static long sample_count(void)
{
	return getenv("KVC_TEST_LONG") ? 100000000 : 1000000;
}

static void random_angles_are_within_2_to_the_minus_51(void **state)
{
	(void)state;
	for (long i = 0; i < sample_count(); i++) {
		int exponent = (int)(next_random() % 59) - 30; /* angles up to 2^28 */
		check(ldexp(next_unit(), exponent));
	}
	check(0.0);
	check(0x1p28);
	print_message("worst error 2^%.2f\n", log2(worst));
}

static void angles_next_to_multiples_of_half_pi_are_too(void **state)
{
	(void)state;
	const double half_pi = 0x1.921fb54442d18p+0;
	for (long i = 0; i < sample_count() / 4; i++) {
		double n = floor(next_unit() * 0x1.45f306dc9c882p+27);
		double angle = n * half_pi;
		check(angle);
		check(nextafter(angle, INFINITY));
		check((n + 0.5) * half_pi); /* where n's rounding flips */
	}
	print_message("worst error 2^%.2f\n", log2(worst));
}

static void rotary_angles_at_large_positions_are_too(void **state)
{
	(void)state;
	static const double positions[] = { 0, 1, 255, 257, 4095, 15962, 131071, 1048575, 16777215,
		16777216 };
	for (size_t p = 0; p < sizeof positions / sizeof *positions; p++) {
		for (int i = 0; i < 64; i++) {
			check(positions[p] * pow(10000.0, -2.0 * i / 128));
			check(positions[p] * pow(500000.0, -2.0 * i / 128));
			check(positions[p] * 16.0);
		}
	}
}

/* FNV-1a over the bits of both results, order as computed. */
static uint64_t digest(uint64_t hash, double value)
{
	uint64_t bits;
	memcpy(&bits, &value, sizeof bits);
	for (int i = 0; i < 8; i++)
		hash = (hash ^ ((bits >> (8 * i)) & 0xFF)) * 0x100000001B3u;
	return hash;
}

static void bits_are_the_same_from_every_compiler(void **state)
{
	(void)state;
	uint64_t hash = 0xCBF29CE484222325u;
	for (int position = 0; position < 1 << 24; position = position * 3 / 2 + 1) {
		for (int i = 0; i < 256; i++) {
			double c;
			double s;
			kvc__sincos(position * (16.0 / (1 + i * 3)), &c, &s);
			hash = digest(digest(hash, c), s);
		}
	}
	if (hash != UINT64_C(0xC560009CAE0EF598))
		fail_msg("digest %016" PRIX64, hash);
}

static void angle_zero_is_exact(void **state)
{
	(void)state;
	double c;
	double s;
	kvc__sincos(0.0, &c, &s);
	assert_true(c == 1.0);
	assert_true(s == 0.0 && !signbit(s));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_angles_are_within_2_to_the_minus_51),
		cmocka_unit_test(angles_next_to_multiples_of_half_pi_are_too),
		cmocka_unit_test(rotary_angles_at_large_positions_are_too),
		cmocka_unit_test(bits_are_the_same_from_every_compiler),
		cmocka_unit_test(angle_zero_is_exact),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
