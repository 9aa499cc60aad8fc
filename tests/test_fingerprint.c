/*
 * Hashes and fingerprints: the golden values of SPEC section 4.1, layouts that hold the same bytes,
 * an oracle that indexes byte by byte; and the search for values that are not finite.
 */
#include "expect.h"

#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "cpu/hash.h"
#include "seeded.h"

static uint64_t fingerprint_of(const kvc_group *group, int64_t slot)
{
	uint64_t out = 0;
	int64_t one[] = { 1 };
	kvc_tensor slots = kvc_tensor_make(&slot, KVC_INT64, 1, one);

	expect_ok(kvc_fingerprint(&out, group, &slots, NULL));
	return out;
}

static kvc_source plain_source(const void *base, int64_t bytes, uint64_t id)
{
	kvc_source source = { 0 };

	source.base = base;
	source.row_count = 1;
	source.row_stride_bytes = source.head_bytes = source.read_bytes = bytes;
	source.page_size = source.head_count = 1;
	source.id = id;
	source.dtype = KVC_UINT8;
	return source;
}

static kvc_group group_of(const kvc_source *sources, int64_t count, int fingerprint, int coverage)
{
	kvc_group group = KVC_GROUP_INIT;

	group.sources = sources;
	group.source_count = count;
	group.fingerprint = fingerprint;
	group.coverage = coverage;
	return group;
}

/* ---- golden values ---- */

static void hashes_have_their_golden_values(void **state)
{
	static const uint64_t stored[] = { 0xDE7FAE23A9A1B716u, 0x89CD2ABFBEBC0649u,
		0x5782FFC5B5D6409Bu, 0xF53E51CD772BB95Cu, 0x5FAE4135D917CB64u,
		0xAE76343810F54045u };
	static const int64_t tokens[] = { 11, 22, 33, 44, 55 };

	(void)state;
	assert_true(kvc__splitmix64(1) == 0x5692161D100B05E5u);
	assert_true(kvc__splitmix64(0xDEADBEEFCAFEBABEu) == 0x7AD6664F09FFE52Cu);
	assert_true(kvc__splitmix64(0) == 0 && kvc__mix3(0, 0, 0) == 0);
	assert_true(kvc_chain_start(0) == stored[0]);
	assert_true(kvc_chain_start(1) == 0x2006E5E8A9B8A1C5u);
	for (int64_t count = 0; count <= 5; count++)
		assert_true(
		        kvc_chain_extend(kvc_chain_start(0), tokens, 0, count) == stored[count]);
	assert_true(kvc_chain_extend(stored[2], tokens + 2, 2, 3) == stored[5]);
	assert_true(kvc_chain_extend(7, NULL, 0, 0) == 7 && kvc_chain_extend(7, NULL, 0, -1) == 7);
}

static void splitmix_has_its_golden_values(void **state)
{
	uint8_t bytes[32];

	(void)state;
	for (int i = 0; i < 32; i++)
		bytes[i] = (uint8_t)i;
	kvc_source half = plain_source(bytes, 16, 0), whole = plain_source(bytes, 32, 0);
	kvc_source both[] = { plain_source(bytes, 16, 0), plain_source(bytes + 16, 16, 1) };
	kvc_group group = group_of(&half, 1, KVC_FINGERPRINT_SPLITMIX, KVC_COVERAGE_ALL);
	assert_true(fingerprint_of(&group, 0) == 0xD6D75024DFD6C30Cu);
	group = group_of(&whole, 1, KVC_FINGERPRINT_SPLITMIX, KVC_COVERAGE_ALL);
	assert_true(fingerprint_of(&group, 0) == 0xB44181DFE9420039u);
	group.coverage = KVC_COVERAGE_PARTIAL;
	assert_true(fingerprint_of(&group, 0) == 0xD6D75024DFD6C30Cu);
	group.coverage = KVC_COVERAGE_NONE;
	assert_true(fingerprint_of(&group, 0) == 0);
	group = group_of(both, 2, KVC_FINGERPRINT_SPLITMIX, KVC_COVERAGE_ALL);
	assert_true(fingerprint_of(&group, 0) == 0xB6209A488C3F52B0u);
	for (int coverage = 0; coverage <= 2; coverage++) {
		group = group_of(NULL, 0, KVC_FINGERPRINT_SPLITMIX, coverage);
		assert_true(fingerprint_of(&group, 0) == 0);
	}
}

static void xxh3_has_its_golden_values(void **state)
{
	static uint8_t zero[2048], pattern[2048];
	uint8_t bytes[32];

	(void)state;
	for (int i = 0; i < 32; i++)
		bytes[i] = (uint8_t)i;
	for (int i = 0; i < 2048; i++)
		pattern[i] = (uint8_t)(i % 251);
	kvc_source one = plain_source(bytes, 16, 0), other = plain_source(bytes, 16, 1);
	kvc_source both[] = { plain_source(bytes, 16, 0), plain_source(bytes + 16, 16, 1) };
	kvc_source reversed[] = { both[1], both[0] };
	kvc_source zeros = plain_source(zero, 2048, 0), long_one = plain_source(pattern, 2048, 0);
	kvc_group group = group_of(&one, 1, KVC_FINGERPRINT_XXH3, KVC_COVERAGE_ALL);
	assert_true(fingerprint_of(&group, 0) == 0x88C226DFBCD69555u);
	group.sources = &other;
	assert_true(fingerprint_of(&group, 0) == 0x751E7A573F6BA616u);
	group = group_of(both, 2, KVC_FINGERPRINT_XXH3, KVC_COVERAGE_ALL);
	assert_true(fingerprint_of(&group, 0) == 0x056CB6ACFFD078A1u);
	group.sources = reversed; /* a sum: the order of sources does not matter */
	assert_true(fingerprint_of(&group, 0) == 0x056CB6ACFFD078A1u);
	group = group_of(&zeros, 1, KVC_FINGERPRINT_XXH3, KVC_COVERAGE_ALL);
	assert_true(fingerprint_of(&group, 0) == 0xB2E82352B8AB932Fu);
	long_one.head_count = 8;
	long_one.head_bytes = long_one.head_stride_bytes = 256;
	group = group_of(&long_one, 1, KVC_FINGERPRINT_XXH3, KVC_COVERAGE_ALL);
	assert_true(fingerprint_of(&group, 0) == 0xF1FD2B38A4270EC3u);
	group.coverage = KVC_COVERAGE_PARTIAL;
	assert_true(fingerprint_of(&group, 0) == 0x97E314E69EEC73BDu);
}

/* ---- layouts ---- */

enum { NHD, NHD_PAGES, HND_PAGES, PACKED_KV, GATHER, LAYOUT_COUNT };

struct layout {
	uint8_t *memory;
	int32_t *table;
	kvc_source source;
};

/* The same [slots, heads, head_bytes] bytes in one of the layouts. */
static struct layout lay_out(int kind, const uint8_t *bytes, int64_t pages, int64_t page_size,
        int64_t heads, int64_t head_bytes, struct seeded *random)
{
	int64_t slots = pages * page_size, slot_bytes = heads * head_bytes;
	struct layout layout = { malloc((size_t)(slots * slot_bytes * 2)), NULL, { 0 } };
	kvc_source *s = &layout.source;

	memset(layout.memory, 0xA5, (size_t)(slots * slot_bytes * 2));
	s->base = layout.memory;
	s->row_count = pages;
	s->page_size = page_size;
	s->head_count = heads;
	s->head_bytes = head_bytes;
	s->read_bytes = slot_bytes;
	s->dtype = KVC_UINT8;
	s->row_stride_bytes = page_size * slot_bytes;
	s->slot_stride_bytes = slot_bytes;
	s->head_stride_bytes = head_bytes;
	if (kind == NHD) {
		s->row_count = slots;
		s->page_size = 1;
		s->row_stride_bytes = slot_bytes;
		s->slot_stride_bytes = 0;
	} else if (kind == HND_PAGES) {
		s->slot_stride_bytes = head_bytes;
		s->head_stride_bytes = page_size * head_bytes;
	} else if (kind == PACKED_KV) { /* K and V side by side in each head */
		s->head_stride_bytes = 2 * head_bytes;
		s->slot_stride_bytes = 2 * slot_bytes;
		s->row_stride_bytes = 2 * page_size * slot_bytes;
	} else if (kind == GATHER) { /* units anywhere in the page, the page in any order */
		int64_t units = slot_bytes / 4, all = page_size * units;
		s->unit_bytes = 4;
		layout.table = malloc((size_t)all * sizeof(int32_t));
		for (int64_t i = 0; i < all; i++)
			layout.table[i] = (int32_t)(i * 4);
		for (int64_t i = all - 1; i > 0; i--) {
			int64_t j = seeded_in(random, 0, i);
			int32_t kept = layout.table[i];
			layout.table[i] = layout.table[j];
			layout.table[j] = kept;
		}
		s->gather = layout.table;
		for (int64_t x = 0; x < slots; x++)
			for (int64_t b = 0; b < slot_bytes; b++)
				layout.memory[x / page_size * s->row_stride_bytes +
				              layout.table[x % page_size * units + b / 4] + b % 4] =
				        bytes[x * slot_bytes + b];
		return layout;
	}
	for (int64_t x = 0; x < slots; x++)
		for (int64_t b = 0; b < slot_bytes; b++)
			layout.memory[x / s->page_size * s->row_stride_bytes +
			              x % s->page_size * s->slot_stride_bytes +
			              b / head_bytes * s->head_stride_bytes + b % head_bytes] =
			        bytes[x * slot_bytes + b];
	return layout;
}

/* The definition, byte by byte, over the plain bytes of a slot. */
static uint64_t naive(const uint8_t *slot, int64_t head_bytes, int64_t read_bytes, int fingerprint,
        int coverage, uint64_t id)
{
	uint8_t *taken = calloc((size_t)read_bytes + 4096, 1);
	int64_t count = 0;
	uint64_t result = 0, fold = 0;

	for (int64_t b = 0; b < read_bytes; b++) {
		int64_t in_part = fingerprint == KVC_FINGERPRINT_XXH3 ? b % head_bytes : b;
		if (coverage == KVC_COVERAGE_ALL || in_part < 16)
			taken[count++] = slot[b];
	}
	/* xxh3's partial coverage takes the beginning of a head whole, even if read_bytes ends
	 * inside it. */
	if (coverage == KVC_COVERAGE_PARTIAL && fingerprint == KVC_FINGERPRINT_XXH3)
		for (int64_t b = read_bytes; b % head_bytes != 0 && b % head_bytes < 16; b++)
			taken[count++] = slot[b];
	if (fingerprint == KVC_FINGERPRINT_XXH3) {
		result = kvc__splitmix64(
		        XXH3_64bits(taken, (size_t)count) + (id + 1) * 0x9E3779B97F4A7C15u);
	} else {
		for (int64_t b = 0; b < count; b += 8) {
			uint64_t word = 0;
			memcpy(&word, taken + b, 8); /* zero past 'count' */
			fold = kvc__splitmix64(fold ^ word);
		}
		result = kvc__splitmix64(fold);
	}
	free(taken);
	return coverage == KVC_COVERAGE_NONE ? 0 : result;
}

static void compare_layouts(struct seeded *random)
{
	int64_t pages = seeded_in(random, 1, 3), page_size = seeded_in(random, 1, 5);
	int64_t heads = seeded_in(random, 1, 9), head_bytes = 4 * seeded_in(random, 1, 40);
	if (seeded_one_in(random, 8))
		head_bytes = 4 * seeded_in(random, 500, 1500); /* slots above the gather buffer */
	int64_t slot_bytes = heads * head_bytes;
	int64_t read_bytes =
	        seeded_one_in(random, 2) ? slot_bytes : seeded_in(random, 1, slot_bytes);
	int64_t slots = pages * page_size;
	uint64_t id = seeded_next(random);
	uint8_t *bytes = malloc((size_t)(slots * slot_bytes));

	for (int64_t i = 0; i < slots * slot_bytes; i++)
		bytes[i] = (uint8_t)seeded_next(random);
	for (int kind = 0; kind < LAYOUT_COUNT; kind++) {
		struct layout layout =
		        lay_out(kind, bytes, pages, page_size, heads, head_bytes, random);
		layout.source.read_bytes = read_bytes;
		layout.source.id = id;
		for (int choice = 0; choice < 6; choice++) {
			kvc_group group = group_of(&layout.source, 1, choice / 3, choice % 3);
			for (int64_t x = 0; x < slots; x++) {
				uint64_t want = naive(bytes + x * slot_bytes, head_bytes,
				        read_bytes, choice / 3, choice % 3, id);
				if (fingerprint_of(&group, x) != want)
					fail_msg("layout %d, fingerprint %d, coverage %d, slot "
					         "%d: pages %d x %d, heads %d x %d, read %d",
					        kind, choice / 3, choice % 3, (int)x, (int)pages,
					        (int)page_size, (int)heads, (int)head_bytes,
					        (int)read_bytes);
			}
		}
		free(layout.memory);
		free(layout.table);
	}
	free(bytes);
}

static void layouts_with_the_same_bytes_have_one_fingerprint(void **state)
{
	struct seeded random = seeded_start(__func__);

	(void)state;
	for (int i = 0; i < 150; i++)
		compare_layouts(&random);
}

static void pools_seen_from_the_side_are_one_row(void **state)
{
	enum { SLOTS = 6, HEADS = 3, DIM = 20 };
	static uint16_t across[HEADS][SLOTS][DIM], plain[SLOTS][HEADS][DIM];
	int64_t shape[] = { SLOTS, HEADS, DIM }, strides[] = { DIM, SLOTS * DIM, 1 };
	kvc_tensor pool = kvc_tensor_make(across, KVC_BFLOAT16, 3, shape);
	kvc_tensor same = kvc_tensor_make(plain, KVC_BFLOAT16, 3, shape);
	kvc_source source, other;

	(void)state;
	for (int x = 0; x < SLOTS; x++)
		for (int h = 0; h < HEADS; h++)
			for (int d = 0; d < DIM; d++)
				plain[x][h][d] = across[h][x][d] =
				        (uint16_t)((x * 131 + h * 17 + d) % 251);
	pool.strides = strides;
	expect_ok(kvc_source_from_pool(&source, &pool, 4));
	expect_ok(kvc_source_from_pool(&other, &same, 4));
	assert_int_equal(source.page_size, SLOTS);
	assert_int_equal(other.page_size, 1);
	kvc_group a = group_of(&source, 1, KVC_FINGERPRINT_XXH3, KVC_COVERAGE_ALL);
	kvc_group b = group_of(&other, 1, KVC_FINGERPRINT_XXH3, KVC_COVERAGE_ALL);
	for (int64_t x = 0; x < SLOTS; x++)
		assert_true(fingerprint_of(&a, x) == fingerprint_of(&b, x));
}

/* ---- the operation ---- */

static void fingerprints_do_not_depend_on_threads(void **state)
{
	enum { SLOTS = 4000, BYTES = 512 };
	uint8_t *bytes = malloc(SLOTS * BYTES);
	int64_t *list = malloc(SLOTS * sizeof(int64_t)), count[] = { SLOTS };
	uint64_t *one = malloc(SLOTS * sizeof(uint64_t)), *many = malloc(SLOTS * sizeof(uint64_t));

	(void)state;
	for (int i = 0; i < SLOTS * BYTES; i++)
		bytes[i] = (uint8_t)(i % 251);
	for (int i = 0; i < SLOTS; i++)
		list[i] = i % 7 == 0 ? -1 : SLOTS - 1 - i;
	kvc_source source = plain_source(bytes, BYTES, 3);
	source.row_count = SLOTS;
	kvc_group group = group_of(&source, 1, KVC_FINGERPRINT_XXH3, KVC_COVERAGE_ALL);
	kvc_tensor slots = kvc_tensor_make(list, KVC_INT64, 1, count);
	expect_ok(kvc_set_num_threads(1));
	expect_ok(kvc_fingerprint(one, &group, &slots, NULL));
	expect_ok(kvc_set_num_threads(4));
	expect_ok(kvc_fingerprint(many, &group, &slots, NULL));
	expect_ok(kvc_set_num_threads(0));
	assert_memory_equal(one, many, SLOTS * sizeof(uint64_t));
	assert_true(one[0] == 0 && one[1] != 0);
	free(bytes);
	free(list);
	free(one);
	free(many);
}

static void a_slot_outside_a_source_is_refused(void **state)
{
	uint8_t bytes[64] = { 0 };
	int64_t list[] = { 3, -1, 4 }, three[] = { 3 }, none[] = { 0 };
	uint64_t out[3] = { 7, 7, 7 };
	kvc_source source = plain_source(bytes, 16, 0);
	kvc_tensor slots = kvc_tensor_make(list, KVC_INT64, 1, three);
	kvc_tensor empty = kvc_tensor_make(NULL, KVC_INT64, 1, none);
	kvc_finite_scan scan = { 9, 9, 9, 9, 9, 9 };

	(void)state;
	source.row_count = 4;
	kvc_group group = group_of(&source, 1, KVC_FINGERPRINT_XXH3, KVC_COVERAGE_ALL);
	expect_error(kvc_fingerprint(out, &group, &slots, NULL), KVC_E_SLOT_RANGE,
	        "canary-slot-out-of-range", "slots[2] is slot 4, must be below 4", 2);
	assert_true(out[0] == 7 && out[1] == 7 && out[2] == 7);
	expect_error(kvc_canary_scan_finite(&scan, &group, &slots, NULL), KVC_E_SLOT_RANGE,
	        "canary-slot-out-of-range", "slots[2] is slot 4, must be below 4", 2);
	assert_int_equal(scan.slots_scanned, 9);
	list[2] = 0;
	expect_error(kvc_fingerprint(NULL, &group, &slots, NULL), KVC_E_INVALID_ARGUMENT,
	        "null-argument", "out is NULL", -1);
	expect_error(kvc_fingerprint(out, NULL, &slots, NULL), KVC_E_INVALID_ARGUMENT,
	        "null-argument", "group is NULL", -1);
	expect_error(kvc_fingerprint(out, &group, NULL, NULL), KVC_E_INVALID_ARGUMENT,
	        "null-argument", "slots is NULL", -1);
	slots.dtype = KVC_INT32;
	expect_error(kvc_fingerprint(out, &group, &slots, NULL), KVC_E_DTYPE, "canary-tensor-dtype",
	        "kv-canary: slots must have dtype int64, got int32", -1);
	slots.dtype = KVC_INT64;
	slots.device.device_type = KVC_DEVICE_CUDA;
	expect_error(kvc_fingerprint(out, &group, &slots, NULL), KVC_E_DEVICE, "device-mismatch",
	        "slots is on device 2:0, but group is on 1:0", -1);
	expect_ok(kvc_fingerprint(NULL, &group, &empty, NULL));
}

/* ---- values that are not finite ---- */

static void check_kind(kvc_dtype dtype, int width, uint64_t finite, uint64_t infinite, uint64_t nan)
{
	enum { SLOTS = 3, HEADS = 2, DIM = 5 };
	uint8_t pool[SLOTS * HEADS * DIM * 8];
	int64_t shape[] = { SLOTS, HEADS, DIM }, list[] = { 2, -1, 1, 0 }, four[] = { 4 };
	kvc_tensor tensor = kvc_tensor_make(pool, dtype, 3, shape);
	kvc_tensor slots = kvc_tensor_make(list, KVC_INT64, 1, four);
	kvc_source source;
	kvc_finite_scan scan;

	for (int i = 0; i < SLOTS * HEADS * DIM; i++)
		memcpy(pool + i * width, &finite, (size_t)width);
	expect_ok(kvc_source_from_pool(&source, &tensor, 6));
	kvc_group group = group_of(&source, 1, KVC_FINGERPRINT_XXH3, KVC_COVERAGE_PARTIAL);
	expect_ok(kvc_canary_scan_finite(&scan, &group, &slots, NULL));
	assert_int_equal(scan.slots_scanned, 3);
	assert_int_equal(scan.nonfinite_count, 0);
	assert_int_equal(scan.first_slot, -1);
	memcpy(pool + (1 * HEADS * DIM + 1 * DIM + 3) * width, &infinite, (size_t)width);
	memcpy(pool + (0 * HEADS * DIM + 0 * DIM + 2) * width, &nan, (size_t)width);
	expect_ok(kvc_canary_scan_finite(&scan, &group, &slots, NULL));
	assert_int_equal(scan.nonfinite_count, infinite == finite ? 1 : 2);
	assert_int_equal(scan.first_slot, infinite == finite ? 0 : 1);
	assert_int_equal(scan.first_head, infinite == finite ? 0 : 1);
	assert_int_equal(scan.first_dim, infinite == finite ? 2 : 3);
	assert_int_equal(scan.first_source_id, 6);
}

static void nonfinite_values_are_found_in_every_type(void **state)
{
	uint8_t bytes[16];
	kvc_source source = plain_source(memset(bytes, 0xFF, 16), 16, 0);
	kvc_group group = group_of(&source, 1, KVC_FINGERPRINT_XXH3, KVC_COVERAGE_ALL);
	int64_t zero[] = { 0 }, one[] = { 1 };
	kvc_tensor slots = kvc_tensor_make(zero, KVC_INT64, 1, one);
	kvc_finite_scan scan;

	(void)state;
	check_kind(KVC_FLOAT64, 8, 0x7FEFFFFFFFFFFFFFu, 0xFFF0000000000000u, 0x7FF0000000000001u);
	check_kind(KVC_FLOAT32, 4, 0x7F7FFFFFu, 0xFF800000u, 0x7F800001u);
	check_kind(KVC_FLOAT16, 2, 0x7BFFu, 0xFC00u, 0x7C01u);
	check_kind(KVC_BFLOAT16, 2, 0x7F7Fu, 0xFF80u, 0x7F81u);
	check_kind(KVC_FLOAT8_E5M2, 1, 0x7Bu, 0xFCu, 0x7Du);
	check_kind(KVC_FLOAT8_E4M3FN, 1, 0x7Eu, 0x7Eu, 0xFFu);          /* no infinity */
	expect_ok(kvc_canary_scan_finite(&scan, &group, &slots, NULL)); /* uint8: none at all */
	assert_int_equal(scan.nonfinite_count, 0);
	assert_int_equal(scan.slots_scanned, 1);
}

static void long_slots_are_searched_to_their_end(void **state)
{
	enum { DIM = 5000 };
	float *pool = calloc(2 * DIM, sizeof(float));
	int64_t shape[] = { 2, 1, DIM }, list[] = { 1 }, one[] = { 1 };
	kvc_tensor tensor = kvc_tensor_make(pool, KVC_FLOAT32, 3, shape);
	kvc_tensor slots = kvc_tensor_make(list, KVC_INT64, 1, one);
	kvc_source source;
	kvc_finite_scan scan;

	(void)state;
	pool[2 * DIM - 1] = -1.0f / 0.0f;
	expect_ok(kvc_source_from_pool(&source, &tensor, 0));
	kvc_group group = group_of(&source, 1, KVC_FINGERPRINT_XXH3, KVC_COVERAGE_ALL);
	expect_ok(kvc_canary_scan_finite(&scan, &group, &slots, NULL));
	assert_int_equal(scan.first_dim, DIM - 1);
	source.read_bytes -= 4; /* what is not covered is not looked at */
	expect_ok(kvc_canary_scan_finite(&scan, &group, &slots, NULL));
	assert_int_equal(scan.nonfinite_count, 0);
	free(pool);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hashes_have_their_golden_values),
		cmocka_unit_test(splitmix_has_its_golden_values),
		cmocka_unit_test(xxh3_has_its_golden_values),
		cmocka_unit_test(layouts_with_the_same_bytes_have_one_fingerprint),
		cmocka_unit_test(pools_seen_from_the_side_are_one_row),
		cmocka_unit_test(fingerprints_do_not_depend_on_threads),
		cmocka_unit_test(a_slot_outside_a_source_is_refused),
		cmocka_unit_test(nonfinite_values_are_found_in_every_type),
		cmocka_unit_test(long_slots_are_searched_to_their_end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
