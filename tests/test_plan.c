/* kvc_canary_plan() and the memory of a plan: cases worked out by hand. */
#include <stdlib.h>

#include "plan_call.h"

/* ---- memory ---- */

static void plan_bytes_grow_with_the_capacities(void **state)
{
	(void)state;
	assert_int_equal(kvc_plan_bytes(0, 0) % 8, 0);
	assert_true(kvc_plan_bytes(0, 0) >= 2 * 8 + 3 * 4);
	assert_true(kvc_plan_bytes(100, 10) >= 100 * 36 + 22 * 8 + 12);
	assert_int_equal(kvc_plan_bytes(-1, 0), 0);
	assert_int_equal(kvc_plan_bytes(0, -1), 0);
	assert_int_equal(kvc_plan_bytes(INT64_MAX, 0), 0);
	assert_int_equal(kvc_plan_bytes(0, INT64_MAX), 0);
	assert_int_equal(kvc_plan_bytes(INT64_MAX / 36, INT64_MAX / 16) % 8, 0);
}

/* Every array ends where the next one begins, and the last one inside the memory. */
static void bound_arrays_do_not_overlap(void **state)
{
	(void)state;
	for (int64_t v = 0; v < 9; v++)
		for (int64_t w = 0; w < 5; w++) {
			size_t bytes = kvc_plan_bytes(v, w);
			char *memory = malloc(bytes);
			kvc_plan plan;
			expect_ok(kvc_plan_bind(&plan, memory, cpu, v, w));
			const struct {
				void *at;
				int64_t bytes;
			} arrays[] = {
				{ plan.verify_slot_indices, v * 8 },
				{ plan.verify_expected_tokens, v * 8 },
				{ plan.verify_expected_positions, v * 8 },
				{ plan.verify_prev_slot_indices, v * 8 },
				{ plan.verify_request, v * 4 },
				{ plan.verify_num_valid, 4 },
				{ plan.enable, 4 },
				{ plan.left_out, 8 },
				{ plan.write_offsets, (w + 1) * 8 },
				{ plan.write_seed_slot_indices, w * 8 },
				{ plan.write_num_valid_reqs, 4 },
			};
			memset(memory, 0, bytes);
			for (size_t a = 0; a < sizeof(arrays) / sizeof(arrays[0]); a++)
				for (int64_t i = 0; i < arrays[a].bytes; i++)
					assert_int_equal(((char *)arrays[a].at)[i]++, 0);
			free(memory);
		}
}

static void bind_refuses_what_no_plan_can_be(void **state)
{
	int64_t memory[64];
	kvc_plan plan;

	(void)state;
	memset(&plan, FILL, sizeof(plan));
	kvc_plan before = plan;
	expect_error(kvc_plan_bind(NULL, memory, cpu, 1, 1), KVC_E_INVALID_ARGUMENT,
	        "null-argument", "out is NULL", -1);
	expect_error(kvc_plan_bind(&plan, NULL, cpu, 1, 1), KVC_E_INVALID_ARGUMENT, "null-argument",
	        "memory is NULL", -1);
	expect_error(kvc_plan_bind(&plan, memory, cpu, -1, 1), KVC_E_CONFIG,
	        "plan-capacity-out-of-range",
	        "kv-canary: verify_capacity must be 0 to 2147483647, got -1", -1);
	expect_error(kvc_plan_bind(&plan, memory, cpu, 1, (int64_t)INT32_MAX + 1), KVC_E_CONFIG,
	        "plan-capacity-out-of-range",
	        "kv-canary: write_req_capacity must be 0 to 2147483647, got 2147483648", -1);
	expect_error(kvc_plan_bind(&plan, (char *)memory + 4, cpu, 1, 1), KVC_E_CONFIG,
	        "plan-memory-misaligned",
	        "kv-canary: the memory of a plan must be 8-byte aligned, its address modulo 8 is 4",
	        -1);
	assert_memory_equal(&plan, &before, sizeof(plan));
}

/* ---- what is planned ---- */

static void entries_and_writes_come_request_by_request(void **state)
{
	static struct call call;

	(void)state;
	call_init(&call);
	call.args.report = &call.report;
	run(&call);
	assert_int_equal(*call.plan.verify_num_valid, 5);
	assert_int_equal(*call.plan.enable, 1);
	assert_int_equal(*call.plan.left_out, 0);
	assert_int_equal(*call.plan.write_num_valid_reqs, 2);
	assert_int64s(call.plan.verify_slot_indices, LIST(16, 17, 18, 24, 25), 5);
	assert_int64s(call.plan.verify_prev_slot_indices, LIST(-1, 16, 17, -1, 24), 5);
	assert_int64s(call.plan.verify_expected_positions, LIST(0, 1, 2, 0, 1), 5);
	assert_int64s(call.plan.verify_expected_tokens, LIST(-1, -1, -1, -1, -1), 5);
	assert_int64s(call.plan.write_offsets, LIST(0, 2, 3, 0, 0), 5);
	assert_int64s(call.plan.write_seed_slot_indices, LIST(18, 25), 2);
	for (int i = 0; i < 5; i++)
		assert_int_equal(call.plan.verify_request[i], i >= 3);
	assert_int_equal(call.report.rows_written, 5);
	int64_t untouched;
	memset(&untouched, FILL, sizeof(untouched));
	assert_int_equal(call.plan.verify_slot_indices[5], untouched);
	assert_int_equal(call.plan.write_seed_slot_indices[2], untouched);
}

static void padding_rows_contribute_nothing_whatever_their_lengths(void **state)
{
	static struct call call;

	(void)state;
	call_init(&call);
	call.bs[0] = 3;
	memcpy(call.rows, (int64_t[]){ 0, 1, 0 }, 3 * sizeof(int64_t));
	memcpy(call.prefix, (int64_t[]){ INT64_MAX, 1, 5 }, 3 * sizeof(int64_t));
	memcpy(call.extend, (int64_t[]){ INT64_MAX, 4, INT64_MIN }, 3 * sizeof(int64_t));
	run(&call);
	assert_int_equal(*call.plan.verify_num_valid, 1);
	assert_int_equal(*call.plan.write_num_valid_reqs, 3);
	assert_int64s(call.plan.write_offsets, LIST(0, 0, 4, 4, 0), 5);
	assert_int64s(call.plan.write_seed_slot_indices, LIST(-1, 16, -1), 3);
}

static void a_request_without_entries_or_seed_reads_nothing(void **state)
{
	static struct call call;

	(void)state;
	call_init(&call);
	memcpy(call.prefix, (int64_t[]){ 1000, -5 }, 2 * sizeof(int64_t));
	memcpy(call.start, (int64_t[]){ 1000, 0 }, 2 * sizeof(int64_t));
	memcpy(call.extend, (int64_t[]){ -1, 3 }, 2 * sizeof(int64_t));
	call.requests.start = &call.start_tensor;
	call.table_shape[0] = 3;
	run(&call);
	assert_int_equal(*call.plan.verify_num_valid, 0);
	assert_int64s(call.plan.write_offsets, LIST(0, 0, 3), 3);
	assert_int64s(call.plan.write_seed_slot_indices, LIST(-1, -1), 2);
}

static void b84_and_b86_only_the_window_is_planned(void **state)
{
	static struct call call;
	const int64_t lengths[] = { 3, 4, 5, 6 };

	/* A ring of 4 slots: position p lives in slot 20 + p % 4. */
	(void)state;
	for (int i = 0; i < 4; i++) {
		int64_t length = lengths[i], first = length > 4 ? length - 4 : 0;
		call_init(&call);
		call.bs[0] = 1;
		call.args.window = 4;
		call.prefix[0] = length;
		for (int32_t p = 0; p < COLUMNS; p++)
			call.table[COLUMNS + p] = 20 + p % 4;
		run(&call);
		assert_int_equal(*call.plan.verify_num_valid, length - first);
		for (int64_t p = first; p < length; p++) {
			int64_t prev = p > first ? 20 + (p - 1) % 4 : p == 0 ? -1 : -2;
			assert_int_equal(call.plan.verify_slot_indices[p - first], 20 + p % 4);
			assert_int_equal(call.plan.verify_expected_positions[p - first], p);
			assert_int_equal(call.plan.verify_prev_slot_indices[p - first], prev);
		}
		assert_int_equal(call.plan.write_seed_slot_indices[0], 20 + (length - 1) % 4);
	}
}

static void b87_entries_begin_at_start(void **state)
{
	static struct call call;

	(void)state;
	call_init(&call);
	memcpy(call.prefix, (int64_t[]){ 8, 8 }, 2 * sizeof(int64_t));
	memcpy(call.start, (int64_t[]){ 4, -3 }, 2 * sizeof(int64_t));
	call.requests.start = &call.start_tensor;
	call.args.window = 6;
	run(&call);
	assert_int_equal(*call.plan.verify_num_valid, 4 + 6); /* start beats window, and not */
	assert_int64s(call.plan.verify_expected_positions, LIST(4, 5, 6, 7, 2, 3), 6);
	assert_int64s(call.plan.verify_prev_slot_indices, LIST(-2, 20, 21, 22, -2, 26), 6);
}

static void expected_tokens_stand_where_the_history_reaches(void **state)
{
	static struct call call;

	(void)state;
	call_init(&call);
	call.args.expected_tokens = &call.tokens_tensor;
	call.args.valid_lens = &call.valid_tensor;
	memcpy(call.valid, (int64_t[]){ 2, 100 }, 2 * sizeof(int64_t));
	call.prefix[1] = 1;
	run(&call);
	assert_int64s(call.plan.verify_expected_tokens, LIST(1008, 1009, -1, 1016), 4);
	call.args.token_offset = 1;
	run(&call);
	assert_int64s(call.plan.verify_expected_tokens, LIST(1009, -1, -1, 1017), 4);
	call.args.token_offset = -1;
	run(&call);
	assert_int64s(call.plan.verify_expected_tokens, LIST(-1, 1008, 1009, -1), 4);
	const int64_t wild[] = { INT64_MIN, INT64_MIN + 1, INT64_MAX, -100, 100 };
	for (int i = 0; i < 5; i++) {
		call.args.token_offset = wild[i];
		call.valid[1] = -1;
		run(&call);
		assert_int64s(call.plan.verify_expected_tokens, LIST(-1, -1, -1, -1), 4);
	}
}

static void b91_a_placeholder_is_not_compared(void **state)
{
	static struct call call;

	(void)state;
	call_init(&call);
	call.args.expected_tokens = &call.tokens_tensor;
	call.args.valid_lens = &call.valid_tensor;
	memcpy(call.valid, (int64_t[]){ 3, 2 }, 2 * sizeof(int64_t));
	memcpy(call.tokens + COLUMNS, (int32_t[]){ 101, -1, -1 }, 3 * sizeof(int32_t));
	run(&call);
	assert_int64s(call.plan.verify_expected_tokens, LIST(101, -1, -1, 1016, 1017), 5);
}

static void excluded_slots_keep_their_place(void **state)
{
	static struct call call;

	(void)state;
	call_init(&call);
	call.exclude[17 / 8] |= 1 << 17 % 8;
	call.exclude[25 / 8] |= 1 << 25 % 8;
	call.args.exclude = &call.exclude_tensor;
	call.bs[0] = 3;
	call.rows[2] = 3, call.prefix[2] = 1; /* slot 32, past a bitmap of 4 bytes */
	call.exclude_shape[0] = 4;
	run(&call);
	assert_int64s(call.plan.verify_slot_indices, LIST(16, -1, 18, 24, -1, 32), 6);
	assert_int64s(call.plan.verify_prev_slot_indices, LIST(-1, 16, -3, -1, 24, -1), 6);
	assert_int64s(call.plan.verify_expected_positions, LIST(0, 1, 2, 0, 1, 0), 6);
	assert_int64s(call.plan.write_seed_slot_indices, LIST(18, 25), 2);
}

/* -2 and -3 in a table would else pass for the codes that switch the chain check off. */
static void negative_predecessors_come_out_as_minus_one(void **state)
{
	static struct call call;

	(void)state;
	call_init(&call);
	call.table[COLUMNS] = -2, call.table[COLUMNS + 1] = -3;
	run(&call);
	assert_int64s(call.plan.verify_slot_indices, LIST(-2, -3, 18), 3);
	assert_int64s(call.plan.verify_prev_slot_indices, LIST(-1, -1, -1), 3);
	call.args.rules = KVC_RULES_SGLANG;
	run(&call);
	assert_int64s(call.plan.verify_prev_slot_indices, LIST(-1, -2, -3), 3);
}

static void the_mapping_is_read_only_where_something_is_planned(void **state)
{
	static struct call call;

	(void)state;
	call_init(&call);
	call.args.full_to_swa_index_mapping = &call.mapping_tensor;
	for (int i = 0; i < ROWS * COLUMNS; i++)
		if (i != 10 && i != 11 && i != 16 && i != 17)
			call.table[i] = 1 << 30;
	call.prefix[0] = 4; /* positions 2, 3; position 1 is not even a predecessor */
	call.args.window = 2;
	run(&call);
	assert_int64s(call.plan.verify_slot_indices, LIST(63 - 18, 63 - 19, 63 - 24, 63 - 25), 4);
	assert_int64s(call.plan.verify_prev_slot_indices, LIST(-2, 63 - 18, -1, 63 - 24), 4);
	assert_int64s(call.plan.write_seed_slot_indices, LIST(63 - 19, 63 - 25), 2);
}

/* ---- more entries than places ---- */

static void rotation_shows_every_entry_in_turn(void **state)
{
	static struct call call;
	int seen[9] = { 0 };

	(void)state;
	call_init(&call);
	memcpy(call.prefix, (int64_t[]){ 5, 4 }, 2 * sizeof(int64_t));
	bind_plan(&call, 4, BS_MAX);
	call.args.rotation = &call.rotation;
	for (int step = 0; step < 9; step++) {
		int64_t first = step * 4 % 9;
		assert_int_equal(call.rotation, first);
		run(&call);
		assert_int_equal(*call.plan.verify_num_valid, 4);
		assert_int_equal(*call.plan.enable, 1);
		assert_int_equal(*call.plan.left_out, 5);
		for (int64_t j = 0; j < 4; j++) {
			int64_t entry = (first + j) % 9;
			int64_t position = entry < 5 ? entry : entry - 5;
			int64_t slot = (entry < 5 ? 16 : 24) + position;
			assert_int_equal(call.plan.verify_slot_indices[j], slot);
			assert_int_equal(
			        call.plan.verify_prev_slot_indices[j], position ? slot - 1 : -1);
			assert_int_equal(call.plan.verify_request[j], entry >= 5);
			seen[entry]++;
		}
	}
	for (int i = 0; i < 9; i++)
		assert_int_equal(seen[i], 4);
}

static void rotation_may_hold_anything(void **state)
{
	static struct call call;
	const int64_t starts[] = { -1, -9, 9, 22, INT64_MIN, INT64_MAX };

	(void)state;
	call_init(&call);
	memcpy(call.prefix, (int64_t[]){ 5, 4 }, 2 * sizeof(int64_t));
	bind_plan(&call, 4, BS_MAX);
	call.args.rotation = &call.rotation;
	for (int i = 0; i < 6; i++) {
		int64_t first = ((starts[i] % 9) + 9) % 9;
		call.rotation = starts[i];
		run(&call);
		assert_int_equal(
		        call.plan.verify_slot_indices[0], first < 5 ? 16 + first : 24 + first - 5);
		assert_int_equal(call.rotation, (first + 4) % 9);
	}
	bind_plan(&call, 9, BS_MAX); /* all fit: from the start, and 0 again */
	call.rotation = 5;
	run(&call);
	assert_int_equal(call.plan.verify_slot_indices[0], 16);
	assert_int_equal(call.rotation, 0);
	call.rotation = 5;
	call.prefix[0] = call.prefix[1] = 0; /* nothing to show: left alone */
	run(&call);
	assert_int_equal(call.rotation, 5);
	call.prefix[0] = 5;
	bind_plan(&call, 0, BS_MAX); /* no place at all */
	run(&call);
	assert_int_equal(*call.plan.verify_num_valid, 0);
	assert_int_equal(*call.plan.left_out, 5);
	assert_int_equal(call.rotation, 0);
	bind_plan(&call, 2, BS_MAX);
	call.args.rotation = NULL;
	run(&call);
	assert_int64s(call.plan.verify_slot_indices, LIST(16, 17), 2);
}

static void sglangs_rules_switch_the_step_off_instead(void **state)
{
	static struct call call;
	int64_t untouched;

	(void)state;
	call_init(&call);
	memset(&untouched, FILL, sizeof(untouched));
	bind_plan(&call, 4, 1);
	call.args.rules = KVC_RULES_SGLANG;
	call.args.rotation = &call.rotation;
	call.rotation = 3;
	run(&call);
	assert_int_equal(*call.plan.enable, 0);
	assert_int_equal(*call.plan.verify_num_valid, 4);
	assert_int_equal(*call.plan.left_out, 5);
	assert_int_equal(call.plan.verify_slot_indices[0], untouched);
	assert_int_equal(call.rotation, 3);
	assert_int_equal(*call.plan.write_num_valid_reqs, 2); /* cut to one, the count is not */
	assert_int64s(call.plan.write_offsets, LIST(0, 2), 2);
	assert_int_equal(call.plan.write_seed_slot_indices[0], 18);
}

static void optional_outputs_may_be_null(void **state)
{
	static struct call call;

	(void)state;
	call_init(&call);
	call.plan.left_out = NULL;
	call.plan.verify_request = NULL;
	run(&call);
	assert_int_equal(*call.plan.verify_num_valid, 5);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(plan_bytes_grow_with_the_capacities),
		cmocka_unit_test(bound_arrays_do_not_overlap),
		cmocka_unit_test(bind_refuses_what_no_plan_can_be),
		cmocka_unit_test(entries_and_writes_come_request_by_request),
		cmocka_unit_test(padding_rows_contribute_nothing_whatever_their_lengths),
		cmocka_unit_test(a_request_without_entries_or_seed_reads_nothing),
		cmocka_unit_test(b84_and_b86_only_the_window_is_planned),
		cmocka_unit_test(b87_entries_begin_at_start),
		cmocka_unit_test(expected_tokens_stand_where_the_history_reaches),
		cmocka_unit_test(b91_a_placeholder_is_not_compared),
		cmocka_unit_test(excluded_slots_keep_their_place),
		cmocka_unit_test(negative_predecessors_come_out_as_minus_one),
		cmocka_unit_test(the_mapping_is_read_only_where_something_is_planned),
		cmocka_unit_test(rotation_shows_every_entry_in_turn),
		cmocka_unit_test(rotation_may_hold_anything),
		cmocka_unit_test(sglangs_rules_switch_the_step_off_instead),
		cmocka_unit_test(optional_outputs_may_be_null),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
