/* write.jsonl: records, ring and counters after a write, byte for byte what SGLang's kv-canary
 * gives, with one thread and with several. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "vectors_canary.h"

static int write_matches(struct vectors *v)
{
	const json_t *item = v->item, *plan_item = vectors_field(item, "plan");
	kvc_write_args args = KVC_WRITE_ARGS_INIT;
	kvc_group group = vectors_group_with_records(v);
	struct vectors_ring ring;
	kvc_plan plan = { .struct_bytes = sizeof(plan), .device = { KVC_DEVICE_CPU, 0 } };
	int64_t shapes[5][1];
	int32_t requests = (int32_t)vectors_int(plan_item, "write_num_valid_reqs");
	int32_t check_steps = (int32_t)vectors_int(item, "enable_chain_position_assert");

	plan.write_offsets = vectors_int64s(v, vectors_field(plan_item, "write_offsets"), NULL);
	plan.write_seed_slot_indices = vectors_int64s(
	        v, vectors_field(plan_item, "write_seed_slot_indices"), &plan.write_req_capacity);
	plan.write_num_valid_reqs = &requests;
	kvc_tensor tokens = vectors_tensor(v, vectors_field(item, "input_ids"), shapes[0]);
	kvc_tensor positions = vectors_tensor(v, vectors_field(item, "positions"), shapes[1]);
	kvc_tensor slots = vectors_tensor(v, vectors_field(item, "out_cache_loc"), shapes[2]);
	kvc_tensor expected_tokens, expected_positions;
	if (vectors_bool(item, "enable_write_input_assert")) {
		expected_tokens =
		        vectors_tensor(v, vectors_field(item, "expected_input_tokens"), shapes[3]);
		expected_positions = vectors_tensor(
		        v, vectors_field(item, "expected_input_positions"), shapes[4]);
		args.expected_tokens = &expected_tokens;
		args.expected_positions = &expected_positions;
	}
	vectors_ring_start(v, &ring);
	args.group = &group;
	args.plan = &plan;
	args.tokens = &tokens;
	args.positions = &positions;
	args.slots = &slots;
	args.check_steps = &check_steps;
	args.launch_tag = vectors_int(item, "kernel_kind");
	args.ring = &ring.ring;
	args.rules = KVC_RULES_SGLANG;
	if (kvc_canary_write(&args, NULL) != KVC_OK) {
		fprintf(stderr, "%s: %s\n", vectors_id(v), kvc_last_error()->message);
		return 0;
	}
	int64_t bytes;
	const json_t *want = vectors_field(item, "want");
	uint8_t *canary = vectors_bytes(v, vectors_field(want, "canary"), &bytes);
	return memcmp(group.records, canary, (size_t)bytes) == 0 && vectors_ring_matches(v, &ring);
}

static void run_all(int32_t threads)
{
	struct vectors v;

	assert_int_equal(kvc_set_num_threads(threads), KVC_OK);
	vectors_open(&v, "write.jsonl");
	while (vectors_next(&v))
		vectors_passed(&v, write_matches(&v));
	assert_true(vectors_close(&v));
}

static void every_write_equals_sglangs(void **state)
{
	(void)state;
	run_all(1);
	run_all(3);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(every_write_equals_sglangs) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
