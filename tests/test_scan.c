/* What one pass over packed bytes sees: against plain arithmetic, for every value of 8 and 16 bits. */
#include "expect.h"
#include "snapshot/scan.h"

#include <math.h>
#include <string.h>

#define ELEMENTS 96

/* A head of this type with all elements 'fill' but one. */
struct head {
	struct saved_tensor tensor;
	unsigned char bytes[ELEMENTS * 8];
	size_t element_bytes;
};

static struct head head_of(enum saved_type type, size_t element_bytes, uint64_t fill)
{
	struct head head = { .tensor = { .type = type,
		                     .present = true,
		                     .heads = 1,
		                     .dim = ELEMENTS,
		                     .element_bits = (uint32_t)element_bytes * 8 },
		.element_bytes = element_bytes };

	for (size_t i = 0; i < ELEMENTS; i++)
		memcpy(head.bytes + i * element_bytes, &fill, element_bytes);
	return head;
}

static void set_element(struct head *head, size_t element, uint64_t value)
{
	memcpy(head->bytes + element * head->element_bytes, &value, head->element_bytes);
}

static unsigned flags_of(const struct head *head)
{
	return scan_flags(&head->tensor, head->bytes, ELEMENTS * head->element_bytes);
}

static float value_of(const struct head *head, size_t element)
{
	float values[ELEMENTS];

	saved_values(&head->tensor, head->bytes, 1, values);
	return values[element];
}

static void try_value(enum saved_type type, size_t bytes, uint64_t value, size_t element)
{
	/* Beside ones, and beside zeros. */
	uint64_t one = type == SAVED_BF16 ? 0x3F80 : type == SAVED_F16 ? 0x3C00 : 0x38;
	struct head head = head_of(type, bytes, one);
	float number;
	struct scan_nonfinite found;

	set_element(&head, element, value);
	number = value_of(&head, element);
	found = scan_find_nonfinite(&head.tensor, head.bytes);
	assert_int_equal(flags_of(&head) & SCAN_NONFINITE, isfinite(number) ? 0 : SCAN_NONFINITE);
	assert_false(flags_of(&head) & (SCAN_ZERO | SCAN_ZERO_STRETCH));
	assert_int_equal(found.element, isfinite(number) ? -1 : (int64_t)element);
	assert_int_equal(found.count, !isfinite(number));
	if (!isfinite(number))
		assert_string_equal(found.what, isnan(number) ? "NaN" : "infinity");
	head = head_of(type, bytes, 0);
	set_element(&head, element, value);
	assert_int_equal(flags_of(&head) & SCAN_ZERO, number == 0 ? SCAN_ZERO : 0);
}

static void test_every_small_float(void **state)
{
	(void)state;
	for (uint64_t value = 0; value < 65536; value++) {
		try_value(SAVED_F16, 2, value, value % ELEMENTS);
		try_value(SAVED_BF16, 2, value, value % ELEMENTS);
	}
	for (uint64_t value = 0; value < 256; value++)
		for (size_t element = 0; element < 9; element++) {
			try_value(SAVED_F8_E4M3, 1, value, element);
			try_value(SAVED_F8_E5M2, 1, value, element);
		}
}

static void test_wide_floats(void **state)
{
	static const float values[] = { 0.0f, -0.0f, 1e-45f, 3.4e38f, INFINITY, -INFINITY, NAN };

	(void)state;
	for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
		struct head single = head_of(SAVED_F32, 4, 0), wide = head_of(SAVED_F64, 8, 0);
		double number = (double)values[i];
		unsigned expected = isfinite(number) ? 0 : SCAN_NONFINITE;
		uint64_t bits = 0;
		memcpy(&bits, &values[i], 4);
		set_element(&single, 95, bits);
		memcpy(&bits, &number, 8);
		set_element(&wide, 95, bits);
		expected |= number == 0 ? SCAN_ZERO : 0u;
		assert_int_equal(flags_of(&single) & (SCAN_ZERO | SCAN_NONFINITE), expected);
		assert_int_equal(flags_of(&wide) & (SCAN_ZERO | SCAN_NONFINITE), expected);
	}
}

static void test_stretch_of_zeros(void **state)
{
	struct head head = head_of(SAVED_F16, 2, 0x3C00);

	(void)state;
	for (size_t i = 32; i < 64; i++)
		set_element(&head, i, i % 2 ? 0x8000 : 0);
	assert_int_equal(flags_of(&head), SCAN_ZERO_STRETCH);
	assert_int_equal(scan_find_zero_stretch(&head.tensor, head.bytes), 32);
	set_element(&head, 50, 1);
	assert_int_equal(flags_of(&head), 0);
	assert_int_equal(scan_find_zero_stretch(&head.tensor, head.bytes), -1);
}

/* Blocks of ggml: a scale of 16 bits, then numbers. */
static void fill_blocks(
        unsigned char *bytes, size_t block_bytes, uint16_t scale, unsigned char number)
{
	for (size_t block = 0; block < ELEMENTS / 32; block++) {
		memcpy(bytes + block * block_bytes, &scale, 2);
		memset(bytes + block * block_bytes + 2, number, block_bytes - 2);
	}
}

static unsigned flags_of_blocks_of(
        enum saved_type type, size_t block_bytes, uint16_t scale, unsigned char number)
{
	struct saved_tensor tensor = { .type = type, .heads = 1, .dim = ELEMENTS };
	unsigned char bytes[3 * 34];

	fill_blocks(bytes, block_bytes, scale, number);
	return scan_flags(&tensor, bytes, 3 * block_bytes);
}

static void test_blocks(void **state)
{
	struct saved_tensor tensor = { .type = SAVED_Q8_0, .heads = 1, .dim = ELEMENTS };
	unsigned char bytes[3 * 34];
	const uint16_t infinity = 0x7C00;
	struct scan_nonfinite found;

	(void)state;
	assert_int_equal(flags_of_blocks_of(SAVED_Q8_0, 34, 0x3C00, 1), 0);
	assert_true(flags_of_blocks_of(SAVED_Q8_0, 34, 0x3C00, 0) & SCAN_ZERO);
	assert_true(flags_of_blocks_of(SAVED_Q8_0, 34, 0x8000, 1) & SCAN_ZERO);
	assert_int_equal(flags_of_blocks_of(SAVED_Q8_0, 34, 0x7C01, 1), SCAN_NONFINITE);
	assert_int_equal(flags_of_blocks_of(SAVED_Q4_0, 18, 0x3C00, 0), 0);
	assert_true(flags_of_blocks_of(SAVED_Q4_0, 18, 0x3C00, 0x88) & SCAN_ZERO);
	assert_true(flags_of_blocks_of(SAVED_Q4_0, 18, 0, 0x12) & SCAN_ZERO);
	fill_blocks(bytes, 34, 0x3C00, 1);
	memcpy(bytes + 34, &infinity, 2);
	found = scan_find_nonfinite(&tensor, bytes);
	assert_int_equal(found.element, 32);
	assert_string_equal(found.what, "scale");
	memset(bytes + 36, 0, 32); /* a block of zeros in the middle */
	memset(bytes + 34, 1, 1);
	assert_int_equal(scan_flags(&tensor, bytes, sizeof(bytes)) & SCAN_ZERO, 0);
	assert_int_equal(scan_find_zero_stretch(&tensor, bytes), 32);
}

static void test_groups(void **state)
{
	/* 96 numbers of 4 bits, two groups of 48 (f16 scales, then biases). */
	struct saved_tensor tensor = { .type = SAVED_AFFINE,
		.heads = 1,
		.dim = ELEMENTS,
		.element_bits = 4,
		.group_size = 48,
		.scale_type = SAVED_F16 };
	unsigned char bytes[48 + 8] = { 0 };
	const uint16_t one = 0x3C00, nan = 0x7E00;

	(void)state;
	memset(bytes, 0x5A, 48);
	assert_int_equal(scan_flags(&tensor, bytes, sizeof(bytes)), SCAN_ZERO);
	memcpy(bytes + 48, &one, 2);
	assert_int_equal(scan_flags(&tensor, bytes, sizeof(bytes)), 0);
	memcpy(bytes + 54, &nan, 2); /* the bias of the second group */
	assert_int_equal(scan_flags(&tensor, bytes, sizeof(bytes)), SCAN_NONFINITE);
	assert_int_equal(scan_find_nonfinite(&tensor, bytes).element, 48);
}

static void test_unknown_elements(void **state)
{
	struct head head = head_of(SAVED_OPAQUE, 2, 0xFFFF);

	(void)state;
	assert_int_equal(flags_of(&head), 0);
	assert_int_equal(scan_find_nonfinite(&head.tensor, head.bytes).element, -1);
	head = head_of(SAVED_OPAQUE, 2, 0);
	assert_true(flags_of(&head) & SCAN_ZERO);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_small_float),
		cmocka_unit_test(test_wide_floats),
		cmocka_unit_test(test_stretch_of_zeros),
		cmocka_unit_test(test_blocks),
		cmocka_unit_test(test_groups),
		cmocka_unit_test(test_unknown_elements),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
