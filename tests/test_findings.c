/* The list of findings of check and diff, and the threads that fill it. */
#include "expect.h"
#include "snapshot/finding.h"
#include "snapshot/work.h"

#include <stdatomic.h>
#include <stdlib.h>

static struct finding at(const char *kind, enum finding_weight weight, int64_t layer, int64_t row)
{
	struct finding finding = finding_blank(kind, weight);

	finding.layer = layer;
	finding.row = row;
	return finding;
}

static void add(struct findings *findings, struct finding finding)
{
	findings_add(findings, &finding);
}

static void test_blank_has_no_place(void **state)
{
	struct finding finding = finding_blank("zero_row", FINDING_DAMAGE);

	(void)state;
	assert_string_equal(finding.kind, "zero_row");
	assert_null(finding.part);
	assert_int_equal(finding.stream, -1);
	assert_int_equal(finding.layer, -1);
	assert_int_equal(finding.tensor, -1);
	assert_int_equal(finding.head, -1);
	assert_int_equal(finding.row, -1);
	assert_int_equal(finding.position, -1);
	assert_int_equal(finding.token, -1);
	assert_int_equal(finding.element, -1);
	assert_true(finding.offset == UINT64_MAX);
	assert_string_equal(finding.detail, "");
}

static void test_sorted_by_place(void **state)
{
	struct findings *findings = findings_new(10);
	const struct finding *list;
	size_t count;

	(void)state;
	add(findings, at("a", FINDING_DAMAGE, 2, 0));
	add(findings, at("b", FINDING_DAMAGE, 0, 7));
	add(findings, at("c", FINDING_NOTE, 0, 3));
	list = findings_list(findings, &count);
	assert_int_equal(count, 3);
	assert_string_equal(list[0].kind, "c");
	assert_string_equal(list[1].kind, "b");
	assert_string_equal(list[2].kind, "a");
	add(findings, at("d", FINDING_NOTE, 1, 0)); /* after a listing it is sorted anew */
	list = findings_list(findings, &count);
	assert_int_equal(count, 4);
	assert_string_equal(list[2].kind, "d");
	findings_free(findings);
}

static void test_keeps_few_and_counts_all(void **state)
{
	struct findings *findings = findings_new(3);
	size_t count;

	(void)state;
	for (int i = 0; i < 1000; i++)
		add(findings, at("zero_row", FINDING_DAMAGE, 0, i));
	add(findings, at("position_gap", FINDING_NOTE, -1, 5));
	findings_list(findings, &count);
	assert_int_equal(count, 4);
	assert_int_equal(findings_count_kind(findings, "zero_row"), 1000);
	assert_int_equal(findings_count_kind(findings, "nonfinite"), 0);
	assert_int_equal(findings_count(findings, FINDING_DAMAGE), 1000);
	assert_int_equal(findings_count(findings, FINDING_DOUBT), 1000);
	assert_int_equal(findings_count(findings, FINDING_NOTE), 1001);
	findings_free(findings);
}

static void test_merge_moves(void **state)
{
	struct findings *to = findings_new(4), *from = findings_new(3);
	size_t count;

	(void)state;
	add(to, at("zero_row", FINDING_DAMAGE, 0, 0));
	add(to, at("zero_row", FINDING_DAMAGE, 0, 1));
	for (int i = 0; i < 10; i++)
		add(from, at("zero_row", FINDING_DAMAGE, 1, i));
	findings_merge(to, from);
	findings_list(to, &count);
	assert_int_equal(count, 4);
	assert_int_equal(findings_count(to, FINDING_DAMAGE), 12);
	findings_list(from, &count);
	assert_int_equal(count, 0);
	assert_int_equal(findings_count(from, FINDING_NOTE), 0);
	findings_free(from);
	findings_free(to);
}

/* ---- threads ---- */

#define ITEMS 1000

struct tally {
	_Atomic int done[ITEMS];
	_Atomic int64_t total;
	int64_t stop_at;
	int threads;
};

static bool tally_item(void *context, int64_t item, int thread)
{
	struct tally *tally = context;

	assert_true(thread >= 0 && thread < tally->threads);
	atomic_fetch_add(&tally->done[item], 1);
	atomic_fetch_add(&tally->total, 1);
	return item != tally->stop_at;
}

static void test_each_item_once(void **state)
{
	static struct tally tally;

	(void)state;
	for (int threads = 1; threads <= 9; threads += 4) {
		tally = (struct tally){ .stop_at = -1, .threads = threads };
		assert_true(work_run(ITEMS, threads, tally_item, &tally));
		for (int i = 0; i < ITEMS; i++)
			assert_int_equal(atomic_load(&tally.done[i]), 1);
	}
	assert_true(work_run(0, 4, tally_item, &tally));
	assert_true(work_default_threads() >= 1);
}

static void test_stops_early(void **state)
{
	static struct tally tally;

	(void)state;
	tally = (struct tally){ .stop_at = 3, .threads = 1 };
	assert_false(work_run(ITEMS, 1, tally_item, &tally));
	assert_int_equal(atomic_load(&tally.total), 4);
}

/* Items of 1, 2, ... parts. */
#define PARTED_ITEMS 40

struct parted {
	_Atomic int done[PARTED_ITEMS];
	_Atomic int64_t owner[WORK_THREADS_MAX]; /* item + 1 that a slot belongs to */
	_Atomic int in_hand, most_in_hand, ended;
	int64_t stop_at;
};

static int64_t parts_of_item(void *context, int64_t item)
{
	(void)context;
	return 1 + item % 7;
}

static bool begin_parted(void *context, int64_t item, int slot)
{
	struct parted *parted = context;
	int in_hand = atomic_fetch_add(&parted->in_hand, 1) + 1;

	assert_int_equal(atomic_exchange(&parted->owner[slot], item + 1), 0);
	if (in_hand > atomic_load(&parted->most_in_hand))
		atomic_store(&parted->most_in_hand, in_hand);
	return true;
}

static bool do_parted(void *context, int64_t item, int slot, int64_t part, int thread)
{
	struct parted *parted = context;

	(void)thread;
	assert_int_equal(atomic_load(&parted->owner[slot]), item + 1);
	assert_int_equal(atomic_fetch_add(&parted->done[item], 1 << part) >> part & 1, 0);
	return item != parted->stop_at;
}

static bool end_parted(void *context, int64_t item, int slot, int thread)
{
	struct parted *parted = context;

	(void)thread;
	assert_int_equal(atomic_load(&parted->done[item]), (1 << parts_of_item(NULL, item)) - 1);
	assert_int_equal(atomic_exchange(&parted->owner[slot], 0), item + 1);
	atomic_fetch_sub(&parted->in_hand, 1);
	atomic_fetch_add(&parted->ended, 1);
	return true;
}

static void test_parts_then_the_end(void **state)
{
	(void)state;
	for (int at_once = 1; at_once <= 9; at_once += 4)
		for (int threads = 1; threads <= 8; threads++) {
			struct parted parted = { .stop_at = -1 };
			const struct work_in_parts work = { PARTED_ITEMS, parts_of_item, at_once,
				begin_parted, do_parted, end_parted, &parted };
			assert_true(work_run_in_parts(&work, threads));
			assert_int_equal(parted.ended, PARTED_ITEMS);
			assert_in_range(parted.most_in_hand, 1, at_once);
			parted = (struct parted){ .stop_at = 20 };
			assert_false(work_run_in_parts(&work, threads));
			assert_in_range(parted.ended, 0, PARTED_ITEMS - 1);
			assert_int_equal(parted.done[20] != 0, 1);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_blank_has_no_place),
		cmocka_unit_test(test_sorted_by_place),
		cmocka_unit_test(test_keeps_few_and_counts_all),
		cmocka_unit_test(test_merge_moves),
		cmocka_unit_test(test_each_item_once),
		cmocka_unit_test(test_stops_early),
		cmocka_unit_test(test_parts_then_the_end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
