/*
 * Parts of the embedded engine by themselves: pages with reference counts, the prefix tree, the
 * model's stand-in, and the marks of injected faults are what the verdict rests on.
 */
#include "replay/allocator.h"
#include "replay/model.h"
#include "replay/options.h"
#include "replay/prefix_tree.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- pages ---- */

static void pages_are_handed_out_once(void **state)
{
	struct allocator allocator;
	bool seen[8] = { false };

	(void)state;
	assert_true(allocator_open(&allocator, 8));
	for (int i = 0; i < 7; i++) {
		int32_t page = allocator_take(&allocator);
		assert_in_range(page, 1, 7); /* page 0 is reserved */
		assert_false(seen[page]);
		seen[page] = true;
	}
	assert_int_equal(allocator_take(&allocator), -1);
	allocator_close(&allocator);
}

static void page_is_free_when_its_last_holder_goes(void **state)
{
	struct allocator allocator;

	(void)state;
	assert_true(allocator_open(&allocator, 2));
	assert_int_equal(allocator_take(&allocator), 1);
	allocator_hold(&allocator, 1);
	allocator_release(&allocator, 1);
	assert_int_equal(allocator_take(&allocator), -1);
	allocator_release(&allocator, 1);
	allocator_release(&allocator, 1); /* once too often: left alone */
	assert_int_equal(allocator.free_count, 1);
	assert_int_equal(allocator_take(&allocator), 1);
	allocator_close(&allocator);
}

static void reserved_page_never_becomes_free(void **state)
{
	struct allocator allocator;

	(void)state;
	assert_true(allocator_open(&allocator, 2));
	allocator_hold(&allocator, 0);
	allocator_release(&allocator, 0);
	assert_int_equal(allocator_take(&allocator), 1);
	assert_int_equal(allocator_take(&allocator), -1);
	allocator_close(&allocator);
}

/* ---- the tree ---- */

struct forest {
	struct allocator allocator;
	struct prefix_tree tree;
};

static int plant(void **state)
{
	struct forest *forest = calloc(1, sizeof(*forest));

	*state = forest;
	return forest && allocator_open(&forest->allocator, 33) &&
	                       prefix_tree_open(&forest->tree, &forest->allocator, 2)
	               ? 0
	               : -1;
}

static int fell(void **state)
{
	struct forest *forest = *state;

	prefix_tree_close(&forest->tree);
	allocator_close(&forest->allocator);
	free(forest);
	return 0;
}

/* A block with two new pages that only the tree holds. */
static int32_t grow_leaf(struct forest *forest, int32_t parent, int64_t hash_id)
{
	int32_t pages[] = { allocator_take(&forest->allocator),
		allocator_take(&forest->allocator) };
	int32_t node = prefix_tree_insert(&forest->tree, parent, hash_id, pages);

	allocator_release(&forest->allocator, pages[0]);
	allocator_release(&forest->allocator, pages[1]);
	return node;
}

static void tree_finds_a_block_only_under_its_parent(void **state)
{
	struct forest *forest = *state;
	int32_t a = grow_leaf(forest, PREFIX_ROOT, 1), b = grow_leaf(forest, a, 2);

	assert_int_equal(prefix_tree_find(&forest->tree, PREFIX_ROOT, 1), a);
	assert_int_equal(prefix_tree_find(&forest->tree, a, 2), b);
	assert_int_equal(prefix_tree_find(&forest->tree, PREFIX_ROOT, 2), -1);
	assert_int_equal(prefix_tree_find(&forest->tree, b, 2), -1);
	assert_int_equal(forest->tree.nodes[b].depth, 2);
}

static void eviction_takes_the_oldest_idle_leaf(void **state)
{
	struct forest *forest = *state;
	int32_t a = grow_leaf(forest, PREFIX_ROOT, 1), b = grow_leaf(forest, a, 2);
	int32_t c = grow_leaf(forest, PREFIX_ROOT, 3), d = grow_leaf(forest, PREFIX_ROOT, 4);
	int32_t held = prefix_tree_pages(&forest->tree, c)[0];

	allocator_hold(&forest->allocator, held); /* a request reads c */
	prefix_tree_touch(&forest->tree, b);
	assert_int_equal(prefix_tree_idle_count(&forest->tree), 3);
	allocator_hold(&forest->allocator, prefix_tree_pages(&forest->tree, b)[0]);
	assert_int_equal(prefix_tree_idle_count(&forest->tree), 1); /* b in use keeps a */
	allocator_release(&forest->allocator, prefix_tree_pages(&forest->tree, b)[0]);
	/* a has a child, c is held: d is older than b by now. */
	assert_int_equal(prefix_tree_evict(&forest->tree), d);
	assert_int_equal(prefix_tree_evict(&forest->tree), b);
	assert_int_equal(prefix_tree_evict(&forest->tree), a);
	assert_int_equal(prefix_tree_evict(&forest->tree), -1);
	allocator_release(&forest->allocator, held);
	assert_int_equal(prefix_tree_evict(&forest->tree), c);
	assert_int_equal(forest->allocator.free_count, 32);
}

static void removing_a_block_removes_all_below_it(void **state)
{
	struct forest *forest = *state;
	int32_t a = grow_leaf(forest, PREFIX_ROOT, 1), b = grow_leaf(forest, a, 2);
	int32_t c = grow_leaf(forest, PREFIX_ROOT, 3);

	grow_leaf(forest, b, 4);
	grow_leaf(forest, a, 5);
	assert_int_equal(prefix_tree_remove(&forest->tree, a), 4);
	assert_int_equal(prefix_tree_find(&forest->tree, PREFIX_ROOT, 1), -1);
	assert_int_equal(prefix_tree_find(&forest->tree, PREFIX_ROOT, 3), c);
	assert_int_equal(forest->tree.node_count, 2);
	assert_int_equal(forest->allocator.free_count, 30);
}

static void a_full_tree_takes_no_more(void **state)
{
	struct forest *forest = *state;
	int32_t pages[] = { 1, 2 }, id = 0;

	/* More blocks than pages only exist when the same pages are inserted again. */
	while (prefix_tree_insert(&forest->tree, PREFIX_ROOT, id, pages) >= 0)
		id++;
	assert_int_equal(id, forest->tree.node_capacity - 1);
}

/* ---- the model ---- */

/* Every row of a small world, to be compared with every other. */
static void rows_differ_for_any_two_places(void **state)
{
	enum { TOKENS = 6, POSITIONS = 6, LAYERS = 3, HEADS = 2, DIM = 64 };
	static uint64_t rows[2][LAYERS][TOKENS][POSITIONS][HEADS][DIM / 4];
	uint64_t(*flat)[DIM / 4] = &rows[0][0][0][0][0];
	int64_t count = sizeof(rows) / sizeof(flat[0]);

	(void)state;
	for (int kind = 0; kind < 2; kind++)
		for (int64_t layer = 0; layer < LAYERS; layer++)
			for (int64_t token = 0; token < TOKENS; token++)
				for (int64_t position = 0; position < POSITIONS; position++)
					model_rows(rows[kind][layer][token][position], KVC_BFLOAT16,
					        kind, layer, &token, &position, 1, HEADS, DIM);
	for (int64_t i = 0; i < count; i++)
		for (int64_t j = 0; j < i; j++)
			assert_memory_not_equal(flat[i], flat[j], sizeof(flat[0]));
}

static void rows_are_finite_in_every_type(void **state)
{
	const kvc_dtype dtypes[] = { KVC_FLOAT32, KVC_FLOAT16, KVC_BFLOAT16 };
	const uint32_t masks[] = { 0x7F800000, 0x7C00, 0x7F80 };
	int64_t tokens[] = { 5 }, positions[] = { 9 };
	uint32_t wide[256];

	(void)state;
	for (int i = 0; i < 3; i++) {
		model_rows(wide, dtypes[i], MODEL_V, 1, tokens, positions, 1, 4, 64);
		for (int e = 0; e < 256; e++) {
			uint16_t narrow;
			memcpy(&narrow, (unsigned char *)wide + 2 * e, sizeof(narrow));
			uint32_t bits = dtypes[i].bits == 32 ? wide[e] : narrow;
			assert_int_not_equal(bits & masks[i], masks[i]);
		}
	}
}

static void equal_blocks_hold_equal_tokens(void **state)
{
	int differ = 0;

	(void)state;
	for (int64_t i = 0; i < 512; i++) {
		int64_t token = model_block_token(17, i);
		assert_int_equal(token, model_block_token(17, i));
		assert_in_range(token, 1, MODEL_VOCABULARY - 1);
		differ += token != model_block_token(18, i);
	}
	assert_in_range(differ, 500, 512);
}

/* ---- what a fault needs ---- */

static void missing_option_is_named(void **state)
{
	struct engine_config config = { .layers = 2,
		.checks = true,
		.coverage = KVC_COVERAGE_ALL,
		.stamping = true,
		.expected_tokens = true,
		.finite = true,
		.release_check = true };

	(void)state;
	assert_string_equal(options_missing(&config, 127), "");
	config.coverage = KVC_COVERAGE_PARTIAL;
	assert_string_equal(options_missing(&config, NEED_BYTES), "");
	assert_string_equal(options_missing(&config, NEED_ALL_BYTES), "--verify all");
	config.coverage = KVC_COVERAGE_NONE;
	assert_string_equal(options_missing(&config, NEED_BYTES), "--verify partial");
	config.stamping = config.expected_tokens = config.finite = config.release_check = false;
	assert_string_equal(options_missing(&config, NEED_STAMPING), "--stamping on");
	config.fingerprint = KVC_FINGERPRINT_SPLITMIX;
	assert_string_equal(options_missing(&config, NEED_STAMPING), "--fingerprint xxh3");
	assert_string_equal(options_missing(&config, NEED_TOKENS), "--expected-tokens on");
	assert_string_equal(options_missing(&config, NEED_FINITE), "--finite on");
	assert_string_equal(options_missing(&config, NEED_REREADS), "--release-check on");
	config.layers = 1;
	assert_string_equal(options_missing(&config, NEED_LAYERS), "--layers 2");
	config.checks = false;
	assert_string_equal(options_missing(&config, 0), "--canary on");
}

static void numbers_get_commas(void **state)
{
	char text[NUMBER_BYTES];

	(void)state;
	assert_string_equal(options_number(text, 0), "0");
	assert_string_equal(options_number(text, 999), "999");
	assert_string_equal(options_number(text, 12031), "12,031");
	assert_string_equal(options_number(text, -1234567), "-1,234,567");
	assert_string_equal(options_number(text, INT64_MIN), "-9,223,372,036,854,775,808");
}

static void reasons_are_joined(void **state)
{
	char text[REPLAY_REASONS_BYTES];

	(void)state;
	assert_string_equal(replay_reasons_text(text, 0), "none");
	assert_string_equal(replay_reasons_text(text, KVC_REASON_VERIFY_TOKEN), "verify_token");
	assert_string_equal(replay_reasons_text(text, 3), "verify_chain_hash+verify_position");
	/* All at once fit. */
	assert_non_null(strstr(replay_reasons_text(text, 2047), "+slot_aliased"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pages_are_handed_out_once),
		cmocka_unit_test(page_is_free_when_its_last_holder_goes),
		cmocka_unit_test(reserved_page_never_becomes_free),
		cmocka_unit_test_setup_teardown(
		        tree_finds_a_block_only_under_its_parent, plant, fell),
		cmocka_unit_test_setup_teardown(eviction_takes_the_oldest_idle_leaf, plant, fell),
		cmocka_unit_test_setup_teardown(removing_a_block_removes_all_below_it, plant, fell),
		cmocka_unit_test_setup_teardown(a_full_tree_takes_no_more, plant, fell),
		cmocka_unit_test(rows_differ_for_any_two_places),
		cmocka_unit_test(rows_are_finite_in_every_type),
		cmocka_unit_test(equal_blocks_hold_equal_tokens),
		cmocka_unit_test(missing_option_is_named),
		cmocka_unit_test(numbers_get_commas),
		cmocka_unit_test(reasons_are_joined),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
