/*
 * Groups and sources: every refusal with its status, slug, message and place, and what a pool or a
 * group turns into.
 */
#include "expect.h"

#include <string.h>

#include "kvcanary.h"

static uint8_t memory[1024];
static kvc_record records[8];
static kvc_owner owners[8];
static kvc_source sources[3];
static kvc_group group;

/* Three sound sources of 8 slots, 16 bytes each, in rows of 64 bytes: pages of 4 slots. */
static int reset(void **state)
{
	(void)state;
	for (int i = 0; i < 3; i++) {
		memset(&sources[i], 0, sizeof(sources[i]));
		sources[i].base = memory;
		sources[i].row_count = 2;
		sources[i].row_stride_bytes = 64;
		sources[i].page_size = 4;
		sources[i].slot_stride_bytes = 16;
		sources[i].head_count = 2;
		sources[i].head_bytes = sources[i].head_stride_bytes = 8;
		sources[i].read_bytes = 16;
		sources[i].id = (uint64_t)i;
		sources[i].dtype = KVC_BFLOAT16;
	}
	group = (kvc_group)KVC_GROUP_INIT;
	group.records = records;
	group.record_count = 8;
	group.owners = owners;
	group.sources = sources;
	group.source_count = 3;
	return 0;
}

#define expect_group(status, slug, message, where)                                                 \
	expect_error(kvc_group_check(&group), (status), (slug), (message), (where))

static void sound_groups_pass(void **state)
{
	(void)state;
	expect_ok(kvc_group_check(&group));
	group.owners = NULL;
	group.record_stride_bytes = 40;
	group.device.device_type = KVC_DEVICE_CUDA_HOST;
	expect_ok(kvc_group_check(&group));
	group.records = NULL, group.record_count = 0;
	group.sources = NULL, group.source_count = 0;
	expect_ok(kvc_group_check(&group));
}

static void what_is_missing_is_named(void **state)
{
	(void)state;
	expect_error(kvc_group_check(NULL), KVC_E_INVALID_ARGUMENT, "null-argument",
	        "group is NULL", -1);
	group.records = NULL;
	expect_group(KVC_E_INVALID_ARGUMENT, "null-argument", "group.records is NULL", -1);
	reset(NULL);
	group.sources = NULL;
	expect_group(KVC_E_INVALID_ARGUMENT, "null-argument", "group.sources is NULL", -1);
	reset(NULL);
	sources[2].base = NULL;
	expect_group(KVC_E_INVALID_ARGUMENT, "null-argument", "base of a source is NULL", 2);
	reset(NULL);
	group.struct_bytes = 0;
	expect_group(KVC_E_INVALID_ARGUMENT, "struct-bytes-unknown", NULL, -1);
	reset(NULL);
	group.device.device_type = KVC_DEVICE_CUDA;
	expect_group(KVC_E_NO_CUDA, "no-cuda", NULL, -1);
	group.device.device_type = 99;
	expect_group(KVC_E_DEVICE, "device-unknown", NULL, -1);
}

static void records_out_of_shape_are_refused(void **state)
{
	static const int64_t strides[] = { 0, 4, 24, 36, -32, INT64_MAX - 7 };

	(void)state;
	for (size_t i = 0; i < sizeof(strides) / sizeof(strides[0]); i++) {
		group.record_stride_bytes = strides[i];
		expect_group(KVC_E_CONFIG, "group-record-stride", NULL, -1);
	}
	group.record_stride_bytes = 36;
	expect_group(KVC_E_CONFIG, "group-record-stride",
	        "group.record_stride_bytes is 36 for 8 records, must be a multiple of 8 and at "
	        "least 32",
	        -1);
	reset(NULL);
	group.records = (char *)records + 4;
	expect_group(KVC_E_CONFIG, "group-misaligned", NULL, -1);
	reset(NULL);
	group.owners = (void *)((char *)owners + 1);
	expect_group(KVC_E_CONFIG, "group-misaligned", NULL, -1);
	reset(NULL);
	group.record_count = -1;
	expect_group(KVC_E_CONFIG, "group-count-negative",
	        "the count of group.records is -1, must not be negative", -1);
	reset(NULL);
	group.source_count = -3;
	expect_group(KVC_E_CONFIG, "group-count-negative",
	        "the count of group.sources is -3, must not be negative", -1);
}

static void unknown_options_are_refused(void **state)
{
	(void)state;
	group.fingerprint = 2;
	expect_group(KVC_E_CONFIG, "group-option-unknown",
	        "group.fingerprint is 2, known are 0 to 1", -1);
	reset(NULL);
	group.coverage = -1;
	expect_group(
	        KVC_E_CONFIG, "group-option-unknown", "group.coverage is -1, known are 0 to 2", -1);
	reset(NULL);
	group.stamping = 2;
	expect_group(
	        KVC_E_CONFIG, "group-option-unknown", "group.stamping is 2, known are 0 to 1", -1);
	reset(NULL);
	group.stamping = KVC_STAMP_CLEAR;
	expect_ok(kvc_group_check(&group));
	group.fingerprint = KVC_FINGERPRINT_SPLITMIX;
	expect_group(KVC_E_CONFIG, "group-clear-needs-xxh3",
	        "group.stamping is KVC_STAMP_CLEAR and group.fingerprint is 1, must be "
	        "KVC_FINGERPRINT_XXH3 (0)",
	        -1);
	reset(NULL);
	group.stamping = KVC_STAMP_CLEAR;
	sources[1].read_bytes = 8;
	expect_group(KVC_E_CONFIG, "group-clear-partial-slot",
	        "source 1: read_bytes is 8 of 16, a CLEAR group covers whole slots", 1);
}

static void numbers_of_a_source_have_ranges(void **state)
{
	(void)state;
	sources[1].page_size = 0;
	expect_group(KVC_E_CONFIG, "source-number-range",
	        "source 1: page_size is 0, must be 1 to 2147483647", 1);
	reset(NULL);
	sources[0].row_count = -1;
	expect_group(KVC_E_CONFIG, "source-number-range", NULL, 0);
	reset(NULL);
	sources[0].row_count = INT64_MAX;
	expect_group(KVC_E_CONFIG, "source-number-range", NULL, 0);
	reset(NULL);
	sources[0].row_stride_bytes = INT64_MAX;
	expect_group(KVC_E_CONFIG, "source-number-range", NULL, 0);
	reset(NULL);
	sources[0].row_stride_bytes = -64;
	expect_group(KVC_E_CONFIG, "source-number-range", NULL, 0);
	reset(NULL);
	sources[2].head_count = 0;
	expect_group(KVC_E_CONFIG, "source-number-range", NULL, 2);
	reset(NULL);
	sources[2].head_bytes = 0;
	expect_group(KVC_E_CONFIG, "source-number-range", NULL, 2);
	reset(NULL);
	sources[2].head_count = sources[2].head_bytes = INT32_MAX;
	sources[2].read_bytes = INT64_MAX;
	expect_group(KVC_E_CONFIG, "source-number-range", NULL, 2);
	reset(NULL);
	sources[2].read_bytes = 17;
	expect_group(KVC_E_CONFIG, "source-number-range",
	        "source 2: read_bytes is 17, must be 1 to 16", 2);
	sources[2].read_bytes = 0;
	expect_group(KVC_E_CONFIG, "source-number-range",
	        "source 2: read_bytes is 0, must be 1 to 16", 2);
	reset(NULL);
	sources[2].slot_stride_bytes = -16;
	expect_group(KVC_E_CONFIG, "source-number-range", NULL, 2);
	reset(NULL);
	sources[2].head_stride_bytes = -8;
	expect_group(KVC_E_CONFIG, "source-number-range", NULL, 2);
}

static void a_slot_that_leaves_its_row_is_refused(void **state)
{
	(void)state;
	sources[0].row_stride_bytes = 63;
	expect_group(KVC_E_CONFIG, "source-slot-leaves-row",
	        "source 0: a page of 4 slots needs 64 bytes, its row has 63", 0);
	reset(NULL);
	sources[0].head_stride_bytes = 9;
	expect_group(KVC_E_CONFIG, "source-slot-leaves-row",
	        "source 0: a page of 4 slots needs 65 bytes, its row has 64", 0);
	reset(NULL);
	sources[0].slot_stride_bytes = INT64_MAX / 2; /* the product does not fit 64 bits */
	expect_group(KVC_E_CONFIG, "source-slot-leaves-row", NULL, 0);
	reset(NULL);
	sources[0].row_count = 1;
	expect_group(KVC_E_CONFIG, "source-too-few-slots",
	        "source 0: 4 slots (1 rows of 4), the group has 8 records", 0);
}

static void equal_ids_are_refused_at_registration(void **state)
{
	int64_t list[] = { 0 }, one[] = { 1 };
	uint64_t out;
	kvc_tensor slots = kvc_tensor_make(list, KVC_INT64, 1, one);

	(void)state;
	sources[2].id = sources[1].id;
	expect_group(KVC_E_CONFIG, "source-id-duplicate", "sources 1 and 2 have the same id 1", 2);
	/* Operations do not compare every id with every other. */
	expect_ok(kvc_fingerprint(&out, &group, &slots, NULL));
}

static void gather_tables_are_checked(void **state)
{
	static int32_t table[16];

	(void)state;
	for (int i = 0; i < 8; i++)
		table[i] = i * 8;
	sources[0].gather = table;
	sources[0].unit_bytes = 8;
	sources[0].slot_stride_bytes = sources[0].head_stride_bytes = -1; /* not read */
	expect_ok(kvc_group_check(&group));
	table[5] = 57;
	expect_group(KVC_E_CONFIG, "source-gather-leaves-row",
	        "source 0: gather entry 5 is offset 57, outside the row of 64 bytes", 0);
	table[5] = -1;
	expect_group(KVC_E_CONFIG, "source-gather-leaves-row",
	        "source 0: gather entry 5 is offset -1, outside the row of 64 bytes", 0);
	table[5] = 40;
	sources[0].unit_bytes = 3;
	expect_group(KVC_E_CONFIG, "source-gather-units",
	        "source 0: unit_bytes is 3 for slots of 16 bytes, must be 1, 2, 4, 8 or 16 and "
	        "divide that",
	        0);
	sources[0].unit_bytes = 16;
	sources[0].head_bytes = 12;
	expect_group(KVC_E_CONFIG, "source-gather-units", NULL, 0);
	/* A table that no memory could hold is refused before it is read. */
	sources[0].unit_bytes = 1;
	sources[0].page_size = sources[0].head_count = sources[0].head_bytes = INT32_MAX;
	expect_group(KVC_E_CONFIG, "source-number-range",
	        "source 0: page_size is 2147483647, must be 1 to 0", 0);
}

/* ---- a source from a pool ---- */

static void a_pool_becomes_a_source(void **state)
{
	int64_t shape[] = { 4, 2, 8 }, strides[] = { 64, 16, 1 };
	kvc_tensor pool = kvc_tensor_make(memory, KVC_BFLOAT16, 3, shape);
	kvc_source source;

	(void)state;
	pool.byte_offset = 32;
	expect_ok(kvc_source_from_pool(&source, &pool, 9));
	assert_ptr_equal(source.base, memory + 32);
	assert_int_equal(source.row_count, 4);
	assert_int_equal(source.row_stride_bytes, 32);
	assert_int_equal(source.page_size, 1);
	assert_int_equal(source.head_count, 2);
	assert_int_equal(source.head_bytes, 16);
	assert_int_equal(source.head_stride_bytes, 16);
	assert_int_equal(source.read_bytes, 32);
	assert_int_equal(source.id, 9);
	pool.strides = strides; /* K and V side by side in each head */
	expect_ok(kvc_source_from_pool(&source, &pool, 9));
	assert_int_equal(source.row_stride_bytes, 128);
	assert_int_equal(source.head_stride_bytes, 32);
	/* The stride of a dimension with one entry means nothing. */
	shape[0] = shape[1] = 1;
	strides[0] = strides[1] = -5;
	expect_ok(kvc_source_from_pool(&source, &pool, 9));
	assert_int_equal(source.row_stride_bytes, 16);
	assert_int_equal(source.head_stride_bytes, 16);
}

/* Strides of a pool without entries mean nothing; dimensions must still be possible ones. */
static void an_empty_pool_has_no_wild_numbers(void **state)
{
	static const struct {
		int64_t shape[3], strides[3];
		int sound;
	} rows[] = {
		{ { 0, 2, 8 }, { INT64_MAX, INT64_MIN, 1 }, 1 },
		{ { 2, 0, 8 }, { INT64_MAX, INT64_MAX, 1 }, 1 },
		{ { 0, INT64_C(1) << 40, INT64_C(1) << 40 }, { 1, 1, 1 }, 0 },
		{ { INT64_C(1) << 40, INT64_C(1) << 40, 0 }, { 1, 1, 1 }, 0 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		int64_t shape[3], strides[3];
		kvc_tensor pool = kvc_tensor_make(NULL, KVC_FLOAT32, 3, shape);
		kvc_source source;
		memcpy(shape, rows[i].shape, sizeof(shape));
		memcpy(strides, rows[i].strides, sizeof(strides));
		pool.strides = strides;
		if (!rows[i].sound) {
			expect_error(kvc_source_from_pool(&source, &pool, 0), KVC_E_SHAPE,
			        "tensor-shape-impossible", NULL, -1);
			continue;
		}
		expect_ok(kvc_source_from_pool(&source, &pool, 0));
		assert_int_equal(source.row_stride_bytes, shape[1] * shape[2] * 4);
		assert_int_equal(source.head_stride_bytes, 8 * 4);
	}
}

static void pools_that_are_no_source_are_refused(void **state)
{
	int64_t shape[] = { 4, 2, 8 }, strides[] = { 1, 32, 4 };
	kvc_tensor pool = kvc_tensor_make(memory, KVC_BFLOAT16, 3, shape);
	kvc_source source;

	(void)state;
	expect_error(kvc_source_from_pool(NULL, &pool, 0), KVC_E_INVALID_ARGUMENT, "null-argument",
	        "out is NULL", -1);
	expect_error(kvc_source_from_pool(&source, NULL, 0), KVC_E_INVALID_ARGUMENT,
	        "null-argument", "pool is NULL", -1);
	pool.ndim = 2;
	expect_error(kvc_source_from_pool(&source, &pool, 0), KVC_E_SHAPE,
	        "source-pool-must-be-3-d", "pool must be [slots, heads, dim], got shape (4, 2)",
	        -1);
	pool.ndim = 3;
	pool.dtype.bits = 4;
	expect_error(kvc_source_from_pool(&source, &pool, 0), KVC_E_DTYPE, "source-pool-dtype",
	        "pool has dtype bfloat4, whose elements are no whole bytes", -1);
	pool.dtype.bits = 16;
	pool.strides = strides;
	expect_error(kvc_source_from_pool(&source, &pool, 0), KVC_E_STRIDE, "source-pool-strides",
	        "pool has strides (1, 32, 4), must not be negative and the last must be 1", -1);
	strides[0] = -16, strides[1] = 8, strides[2] = 1;
	expect_error(kvc_source_from_pool(&source, &pool, 0), KVC_E_STRIDE, "source-pool-strides",
	        "pool has strides (-16, 8, 1), must not be negative and the last must be 1", -1);
}

/* ---- stamps ---- */

static void a_stamp_names_two_sources_of_a_clear_group(void **state)
{
	kvc_stamp stamp = KVC_STAMP_INIT;

	(void)state;
	expect_error(kvc_group_stamp(&stamp, &group, 0, 1), KVC_E_CONFIG, "stamp-needs-clear-group",
	        "group.stamping is 0, a stamp needs KVC_STAMP_CLEAR (1)", -1);
	group.stamping = KVC_STAMP_CLEAR;
	group.coverage = KVC_COVERAGE_PARTIAL;
	expect_ok(kvc_group_stamp(&stamp, &group, 0, 1));
	assert_ptr_equal(stamp.records, records);
	assert_int_equal(stamp.record_count, 8);
	assert_int_equal(stamp.record_stride_bytes, 32);
	assert_int_equal(stamp.k_id, 0);
	assert_int_equal(stamp.v_id, 1);
	assert_int_equal(stamp.coverage, KVC_COVERAGE_PARTIAL);
	assert_int_equal(stamp.head_bytes, 8);
	expect_ok(kvc_group_stamp(&stamp, &group, 2, 2)); /* a layer without V */
	expect_error(kvc_group_stamp(&stamp, &group, 2, 3), KVC_E_CONFIG, "stamp-source-missing",
	        "no source of the group has id 3 (3 sources)", -1);
	assert_int_equal(stamp.k_id, 2);
	sources[1].head_count = 1, sources[1].head_bytes = 16;
	expect_error(kvc_group_stamp(&stamp, &group, 0, 1), KVC_E_CONFIG, "stamp-heads-differ",
	        "source 0 has heads of 8 bytes, source 1 of 16, a stamp has one size for both", -1);
	expect_error(kvc_group_stamp(NULL, &group, 0, 1), KVC_E_INVALID_ARGUMENT, "null-argument",
	        "out is NULL", -1);
	expect_error(kvc_group_stamp(&stamp, NULL, 0, 1), KVC_E_INVALID_ARGUMENT, "null-argument",
	        "group is NULL", -1);
}

#define TEST(name) cmocka_unit_test_setup(name, reset)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(sound_groups_pass),
		TEST(what_is_missing_is_named),
		TEST(records_out_of_shape_are_refused),
		TEST(unknown_options_are_refused),
		TEST(numbers_of_a_source_have_ranges),
		TEST(a_slot_that_leaves_its_row_is_refused),
		TEST(equal_ids_are_refused_at_registration),
		TEST(gather_tables_are_checked),
		TEST(a_pool_becomes_a_source),
		TEST(an_empty_pool_has_no_wild_numbers),
		TEST(pools_that_are_no_source_are_refused),
		TEST(a_stamp_names_two_sources_of_a_clear_group),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
