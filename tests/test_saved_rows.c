/*
 * Goal: rows of any tensor come out packed, whatever its strides, pages and type, and where they lie a
 * view and a scan find the same bytes. Method: random geometries over a file of random bytes, each
 * row against a copy element by element; values of the quantised types against the formula, of every
 * float16 and float8 against ldexp().
 */
#include "saved_world.h"
#include "seeded.h"
#include "snapshot/scan.h"

#include <math.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define FILE_BYTES ((size_t)1 << 20)

static unsigned char *random_bytes(struct seeded *state, size_t count)
{
	unsigned char *bytes = malloc(count);

	assert_non_null(bytes);
	for (size_t i = 0; i < count; i++)
		bytes[i] = (unsigned char)seeded_next(state);
	return bytes;
}

static struct saved_file *open_bytes(const struct bytes_file *bytes)
{
	static struct saved_error error;
	struct saved_file *file;

	assert_int_equal(saved_file_open(&file, bytes->path, &error), 0);
	return file;
}

static uint64_t below(struct seeded *state, uint64_t limit)
{
	return seeded_next(state) % limit;
}

/* Axes in a random order of nesting, with random gaps between. */
static void random_strides(
        struct seeded *state, struct saved_plane *plane, const int64_t counts[3], uint64_t unit)
{
	static const int orders[6][3] = { { 0, 1, 2 }, { 0, 2, 1 }, { 1, 0, 2 }, { 1, 2, 0 },
		{ 2, 0, 1 }, { 2, 1, 0 } };
	const int *order = orders[below(state, 6)];
	uint64_t strides[3], next = unit;

	for (int i = 2; i >= 0; i--) {
		uint64_t gap = below(state, 3) == 0 ? unit * below(state, 5) : 0;
		strides[order[i]] = next + gap;
		next = (next + gap) * (uint64_t)counts[order[i]];
	}
	plane->row_stride = strides[0];
	plane->head_stride = strides[1];
	plane->element_stride = strides[2];
}

static void check_rows(const struct saved_tensor *tensor, const unsigned char *bytes, size_t unit,
        int64_t units, int64_t first, int64_t count)
{
	struct saved_error error;
	size_t row_bytes = saved_row_bytes(tensor);
	unsigned char *got = malloc(row_bytes * (size_t)count + 1);
	size_t at = 0;

	assert_int_equal(row_bytes, (size_t)(tensor->heads * units) * unit);
	assert_int_equal(saved_read_bytes(tensor, first, count, got, &error), 0);
	for (int64_t row = first; row < first + count; row++)
		for (int64_t head = 0; head < tensor->heads; head++)
			for (int64_t i = 0; i < units; i++, at += unit)
				assert_memory_equal(got + at,
				        bytes + saved_offset(tensor, row, head,
				                        i * (tensor->dim / units)),
				        unit);
	free(got);
}

/* Rows first .. end - 1 by views of a small buffer, against packed ones. */
static void check_views(
        struct seeded *state, const struct saved_tensor *tensor, int64_t first, int64_t end)
{
	struct saved_error error;
	size_t row_bytes = saved_row_bytes(tensor), head_bytes = row_bytes / (size_t)tensor->heads;
	size_t buffer_bytes = 1 + below(state, 4000);
	struct saved_reach reach = saved_view_reach(tensor, &buffer_bytes);
	unsigned char *packed = malloc(row_bytes), *buffer = malloc(buffer_bytes);

	assert_true(reach.rows >= 1 && (reach.heads == 1 || reach.heads == tensor->heads));
	for (int64_t row = first; row < end; row += reach.rows) {
		reach.rows = end - row < reach.rows ? end - row : reach.rows;
		for (int64_t head = 0; head < tensor->heads; head += reach.heads) {
			struct saved_view view;
			assert_int_equal(
			        saved_view_read(&view, tensor, row, head, reach, buffer, &error),
			        0);
			for (int64_t i = 0; i < reach.rows; i++) {
				assert_int_equal(
				        saved_read_bytes(tensor, row + i, 1, packed, &error), 0);
				for (int64_t h = 0; h < reach.heads; h++) {
					const unsigned char *at = view.bytes +
					                          (size_t)i * view.row_stride +
					                          (size_t)h * view.head_stride;
					assert_true(at + head_bytes <= buffer + buffer_bytes);
					assert_memory_equal(at,
					        packed + (size_t)(head + h) * head_bytes,
					        head_bytes);
				}
			}
		}
	}
	free(packed);
	free(buffer);
}

/* What a scan must say of the rows: fingerprints by the definition in scan.h, flags of packed heads. */
struct scanned {
	const struct saved_tensor *tensor;
	int64_t next;
};

static uint64_t fingerprint_of(const void *head, size_t bytes)
{
	uint64_t x = XXH3_64bits(head, bytes) + UINT64_C(0x9E3779B97F4A7C15);

	x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
	x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
	return x ^ x >> 31;
}

static int compare_scanned(void *context, const struct scan_rows *rows, struct saved_error *error)
{
	struct scanned *scanned = context;
	const struct saved_tensor *tensor = scanned->tensor;
	size_t row_bytes = saved_row_bytes(tensor), head_bytes = row_bytes / (size_t)tensor->heads;
	unsigned char *packed = malloc(row_bytes);
	bool flagged = false;

	assert_int_equal(rows->first, scanned->next);
	for (int64_t i = 0; i < rows->count * tensor->heads; i++) {
		const unsigned char *head = packed + (size_t)(i % tensor->heads) * head_bytes;
		int64_t at = scan_at(rows, i / tensor->heads, i % tensor->heads);
		unsigned flags;
		if (i % tensor->heads == 0)
			assert_int_equal(saved_read_bytes(tensor, rows->first + i / tensor->heads,
			                         1, packed, error),
			        0);
		flags = scan_flags(tensor, head, head_bytes);
		if (tensor->heads > 1) /* stretches are for rows whose heads are not known */
			flags &= ~(unsigned)SCAN_ZERO_STRETCH;
		assert_int_equal(rows->fingerprints[at], fingerprint_of(head, head_bytes));
		assert_int_equal(
		        rows->flags[at] & ~(tensor->heads > 1 ? SCAN_ZERO_STRETCH : 0), flags);
		flagged = flagged || rows->flags[at];
	}
	assert_int_equal(rows->flagged, flagged);
	scanned->next += rows->count;
	free(packed);
	return 0;
}

static void check_scan(const struct saved_tensor *tensor, int64_t first, int64_t end)
{
	struct scan_memory memory = { 0 };
	struct scanned scanned = { tensor, first };
	struct saved_error error;

	assert_int_equal(
	        scan_tensor(tensor, first, end, &memory, compare_scanned, &scanned, &error), 0);
	assert_int_equal(scanned.next, end);
	scan_memory_free(&memory);
}

static void rows_of_any_geometry(void **state)
{
	(void)state;
	static const struct {
		enum saved_type type;
		uint32_t bits;
		int64_t elements;
		size_t bytes;
	} types[] = { { SAVED_F32, 32, 1, 4 }, { SAVED_F16, 16, 1, 2 }, { SAVED_F8_E4M3, 8, 1, 1 },
		{ SAVED_Q8_0, 8, 32, 34 }, { SAVED_Q4_0, 4, 32, 18 }, { SAVED_OPAQUE, 24, 1, 3 } };
	struct seeded seed = seeded_start("rows");
	unsigned char *bytes = random_bytes(&seed, FILE_BYTES);
	struct bytes_file memory = bytes_file_new(bytes, FILE_BYTES);
	struct saved_file *file = open_bytes(&memory);

	for (int i = 0; i < 200; i++) /* for the flags */
		memset(bytes + below(&seed, FILE_BYTES - 600), i % 4 ? 0 : 0xff, 500);
	assert_int_equal(pwrite(memory.descriptor, bytes, FILE_BYTES, 0), FILE_BYTES);
	for (int round = 0; round < 600; round++) {
		size_t t = below(&seed, sizeof(types) / sizeof(types[0]));
		int64_t counts[3] = { 1 + (int64_t)below(&seed, 40), 1 + (int64_t)below(&seed, 4),
			1 + (int64_t)below(&seed, round % 9 ? 12 : 90) };
		struct saved_tensor tensor = { .type = types[t].type,
			.type_name = "x",
			.present = true,
			.heads = counts[1],
			.dim = counts[2] * types[t].elements,
			.element_bits = types[t].bits };
		struct saved_plane pages[40];
		int64_t first = (int64_t)below(&seed, (uint64_t)counts[0]);
		int64_t count = 1 + (int64_t)below(&seed, (uint64_t)(counts[0] - first));
		tensor.plane.file = file;
		tensor.plane.offset = below(&seed, 100);
		random_strides(&seed, &tensor.plane, counts, types[t].bytes);
		uint64_t last = saved_offset(&tensor, counts[0] - 1, counts[1] - 1, tensor.dim - 1);
		if (last + types[t].bytes > FILE_BYTES - 200000)
			continue; /* the gaps made it too long */
		if (round % 3 == 0) {
			tensor.pages = pages;
			tensor.page_rows = 1 + (int64_t)below(&seed, 7);
			for (size_t p = 0; p < 40; p++)
				pages[p] = (struct saved_plane){ .file = file,
					.offset = below(&seed, 200000) };
		}
		check_rows(&tensor, bytes, types[t].bytes, counts[2], first, count);
		check_views(&seed, &tensor, first, first + count);
		check_scan(&tensor, first, first + count);
	}
	saved_file_close(file);
	close(memory.descriptor);
	free(bytes);
}

/* One that is longer than any buffer, in both directions. */
static void a_wide_transposed_plane(void **state)
{
	(void)state;
	struct seeded seed = { 7 };
	unsigned char *bytes = random_bytes(&seed, FILE_BYTES);
	struct bytes_file memory = bytes_file_new(bytes, FILE_BYTES);
	struct saved_file *file = open_bytes(&memory);
	struct saved_tensor tensor = { .type = SAVED_F16,
		.type_name = "f16",
		.present = true,
		.heads = 1,
		.dim = 3,
		.element_bits = 16,
		.plane = { file, 0, 2, 0, 2 * (FILE_BYTES / 6) } };
	check_rows(&tensor, bytes, 2, 3, 5, (int64_t)(FILE_BYTES / 6) - 5);
	tensor.dim = (int64_t)FILE_BYTES / 6;
	tensor.plane = (struct saved_plane){ file, 0, 2 * (FILE_BYTES / 6), 0, 2 };
	check_rows(&tensor, bytes, 2, tensor.dim, 0, 3);
	tensor.dim = (int64_t)FILE_BYTES / 8;
	tensor.plane =
	        (struct saved_plane){ file, 0, 2, 0, 8 }; /* every fourth, rows interleaved */
	check_rows(&tensor, bytes, 2, tensor.dim, 0, 3);
	saved_file_close(file);
	close(memory.descriptor);
	free(bytes);
}

/* Heads far apart, so that each is read by itself, in several pieces. */
static void scans_of_large_tensors(void **state)
{
	(void)state;
	struct seeded seed = { 11 };
	unsigned char *bytes = random_bytes(&seed, FILE_BYTES);
	struct bytes_file memory = bytes_file_new(bytes, FILE_BYTES);
	struct saved_file *file = open_bytes(&memory);
	struct saved_tensor tensor = { .type = SAVED_BF16,
		.type_name = "BF16",
		.present = true,
		.heads = 2,
		.dim = 128,
		.element_bits = 16,
		.plane = { file, 8, 256, FILE_BYTES / 2, 2 } };
	int64_t rows = (int64_t)(FILE_BYTES / 2 / 256) - 1;
	check_scan(&tensor, 0, rows);
	check_scan(&tensor, 700, rows - 3);
	tensor.plane = (struct saved_plane){ file, 8, 512, 256, 2 }; /* rows of all heads */
	check_scan(&tensor, 1, rows);
	tensor.plane = (struct saved_plane){ file, 8, 768, 256, 2 }; /* with a gap */
	check_scan(&tensor, 0, 1300);
	tensor.plane = (struct saved_plane){ file, 8, 512, 256, 2 }; /* one head of two */
	tensor.heads = 1;
	check_scan(&tensor, 0, rows);
	saved_file_close(file);
	close(memory.descriptor);
	free(bytes);
}

static void blocks_cover_all_rows(void **state)
{
	(void)state;
	struct saved_tensor tensor = { .type = SAVED_F16, .heads = 8, .dim = 128 };
	tensor.element_bits = 16;
	for (int64_t rows = 0; rows < 5000000; rows = rows * 3 + 1) {
		int64_t count = scan_block_count(&tensor, rows);
		assert_in_range(count, 1, SCAN_BLOCKS_MAX);
		assert_int_equal(scan_block_first(rows, count, 0), 0);
		assert_int_equal(scan_block_first(rows, count, count), rows);
		for (int64_t i = 0; i < count && rows > 0; i++)
			assert_true(scan_block_first(rows, count, i) <
			            scan_block_first(rows, count, i + 1));
	}
}

/* ---- values ---- */

static float value_of(enum saved_type type, const void *bytes)
{
	const struct saved_tensor tensor = { .type = type, .heads = 1, .dim = 1 };
	float value;

	saved_values(&tensor, bytes, 1, &value);
	return value;
}

/* By the definition: sign, exponent, fraction. */
static float by_definition(uint32_t bits, int exponent_bits, int fraction_bits, bool has_infinity)
{
	int exponent = (int)(bits >> fraction_bits & ((1u << exponent_bits) - 1));
	uint32_t fraction = bits & ((1u << fraction_bits) - 1);
	int bias = (1 << (exponent_bits - 1)) - 1;
	float sign = bits >> (exponent_bits + fraction_bits) & 1 ? -1.0f : 1.0f;

	if (has_infinity && exponent == (1 << exponent_bits) - 1)
		return fraction ? NAN : sign * INFINITY;
	if (exponent == 0)
		return sign * ldexpf((float)fraction, 1 - bias - fraction_bits);
	return sign *
	       ldexpf((float)(fraction | 1u << fraction_bits), exponent - bias - fraction_bits);
}

static void assert_same_float(float got, float want, uint32_t bits)
{
	if (isnan(want) ? !isnan(got) : memcmp(&got, &want, sizeof(got)) != 0)
		fail_msg("%x: got %g, want %g", bits, (double)got, (double)want);
}

static void every_small_float(void **state)
{
	(void)state;
	for (uint32_t bits = 0; bits < 65536; bits++) {
		const unsigned char bytes[2] = { bits & 255, (unsigned char)(bits >> 8) };
		assert_same_float(
		        value_of(SAVED_F16, bytes), by_definition(bits, 5, 10, true), bits);
		assert_same_float(
		        value_of(SAVED_BF16, bytes), by_definition(bits, 8, 7, true), bits);
	}
	for (uint32_t bits = 0; bits < 256; bits++) {
		const unsigned char byte = (unsigned char)bits;
		float e4m3 = (bits & 127) == 127 ? NAN : by_definition(bits, 4, 3, false);
		assert_same_float(value_of(SAVED_F8_E4M3, &byte), e4m3, bits);
		assert_same_float(
		        value_of(SAVED_F8_E5M2, &byte), by_definition(bits, 5, 2, true), bits);
	}
}

static void quantised_blocks(void **state)
{
	(void)state;
	unsigned char q8[34] = { 0x00, 0x38 }, q4[18] = { 0x00, 0xc0 }; /* scales 0.5 and -2 */
	const struct saved_tensor of_q8 = { .type = SAVED_Q8_0, .heads = 1, .dim = 32 };
	const struct saved_tensor of_q4 = { .type = SAVED_Q4_0, .heads = 1, .dim = 32 };
	float values[32];
	for (int i = 0; i < 32; i++)
		q8[2 + i] = (unsigned char)(i * 8 - 128);
	for (int i = 0; i < 16; i++)
		q4[2 + i] = (unsigned char)(i | (15 - i) << 4);
	saved_values(&of_q8, q8, 1, values);
	for (int i = 0; i < 32; i++)
		assert_float_equal(values[i], 0.5f * (float)(i * 8 - 128), 0);
	saved_values(&of_q4, q4, 1, values);
	for (int i = 0; i < 16; i++) {
		assert_float_equal(values[i], -2.0f * (float)(i - 8), 0);
		assert_float_equal(values[16 + i], -2.0f * (float)(7 - i), 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rows_of_any_geometry),
		cmocka_unit_test(a_wide_transposed_plane),
		cmocka_unit_test(scans_of_large_tensors),
		cmocka_unit_test(blocks_cover_all_rows),
		cmocka_unit_test(every_small_float),
		cmocka_unit_test(quantised_blocks),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
