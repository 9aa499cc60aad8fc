/* verify.jsonl: rows and counters of a verify, byte for byte what SGLang's kv-canary gives; records
 * stay as they are. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "vectors_canary.h"

static int verify_matches(struct vectors *v)
{
	const json_t *item = v->item, *plan_item = vectors_field(item, "plan");
	kvc_verify_args args = KVC_VERIFY_ARGS_INIT;
	kvc_group group = vectors_group_with_records(v);
	struct vectors_ring ring;
	kvc_plan plan = { .struct_bytes = sizeof(plan), .device = { KVC_DEVICE_CPU, 0 } };
	int32_t valid = (int32_t)vectors_int(plan_item, "verify_num_valid");
	int32_t enable = (int32_t)vectors_int(plan_item, "enable");
	int64_t bytes;
	uint8_t *before = vectors_bytes(v, vectors_field(item, "canary"), &bytes);

	plan.verify_slot_indices = vectors_int64s(
	        v, vectors_field(plan_item, "verify_slot_indices"), &plan.verify_capacity);
	plan.verify_expected_tokens =
	        vectors_int64s(v, vectors_field(plan_item, "verify_expected_tokens"), NULL);
	plan.verify_expected_positions =
	        vectors_int64s(v, vectors_field(plan_item, "verify_expected_positions"), NULL);
	plan.verify_prev_slot_indices =
	        vectors_int64s(v, vectors_field(plan_item, "verify_prev_slot_indices"), NULL);
	plan.verify_num_valid = &valid;
	plan.enable = &enable;
	vectors_ring_start(v, &ring);
	args.group = &group;
	args.plan = &plan;
	args.check_tokens = vectors_bool(item, "check_verify_expected_token");
	args.launch_tag = vectors_int(item, "kernel_kind");
	args.ring = &ring.ring;
	args.rules = KVC_RULES_SGLANG;
	if (kvc_canary_verify(&args, NULL) != KVC_OK) {
		fprintf(stderr, "%s: %s\n", vectors_id(v), kvc_last_error()->message);
		return 0;
	}
	return memcmp(group.records, before, (size_t)bytes) == 0 && vectors_ring_matches(v, &ring);
}

static void run_all(int32_t threads)
{
	struct vectors v;

	assert_int_equal(kvc_set_num_threads(threads), KVC_OK);
	vectors_open(&v, "verify.jsonl");
	while (vectors_next(&v))
		vectors_passed(&v, verify_matches(&v));
	assert_true(vectors_close(&v));
}

static void every_verify_equals_sglangs(void **state)
{
	(void)state;
	run_all(1);
	run_all(3);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(every_verify_equals_sglangs) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
