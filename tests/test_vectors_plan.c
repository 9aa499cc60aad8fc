/* Every case of data/sglang_vectors/plan.jsonl with KVC_RULES_SGLANG: all arrays start as -777, and
 * where -777 is wanted nothing may have been written. */
#include "expect.h"
#include "sglang_vectors.h"

#define UNTOUCHED (-777)

static kvc_tensor int64s(struct vectors *v, const char *key, int64_t *count_out)
{
	int64_t *data = vectors_int64s(v, vectors_field(v->item, key), count_out);

	return kvc_tensor_make(data, KVC_INT64, 1, count_out);
}

static kvc_tensor table(struct vectors *v, const char *key, int64_t *shape_out)
{
	int32_t *data = vectors_table(v, vectors_field(v->item, key), shape_out);

	return kvc_tensor_make(data, KVC_INT32, 2, shape_out);
}

static int same_array(struct vectors *v, const char *key, const int64_t *got, int64_t count)
{
	int64_t want_count;
	const json_t *want_field = vectors_field(vectors_field(v->item, "want"), key);
	int64_t *want = vectors_int64s(v, want_field, &want_count);

	return want_count == count && memcmp(got, want, (size_t)count * sizeof(*got)) == 0;
}

static int same_plan(struct vectors *v, const kvc_plan *plan)
{
	const json_t *want = vectors_field(v->item, "want");
	int64_t capacity = plan->verify_capacity, requests = plan->write_req_capacity;

	return same_array(v, "verify_slot_indices", plan->verify_slot_indices, capacity) &&
	       same_array(v, "verify_expected_tokens", plan->verify_expected_tokens, capacity) &&
	       same_array(
	               v, "verify_expected_positions", plan->verify_expected_positions, capacity) &&
	       same_array(
	               v, "verify_prev_slot_indices", plan->verify_prev_slot_indices, capacity) &&
	       same_array(v, "write_offsets", plan->write_offsets, requests + 1) &&
	       same_array(v, "write_seed_slot_indices", plan->write_seed_slot_indices, requests) &&
	       *plan->verify_num_valid == vectors_int(want, "verify_num_valid") &&
	       *plan->enable == vectors_int(want, "enable") &&
	       *plan->write_num_valid_reqs == vectors_int(want, "write_num_valid_reqs");
}

/* A plan whose memory holds -777 in every int64. */
static kvc_plan fresh_plan(struct vectors *v)
{
	int64_t capacity = vectors_int(v->item, "verify_capacity");
	int64_t requests = vectors_int(v->item, "write_req_capacity");
	size_t words = kvc_plan_bytes(capacity, requests) / sizeof(int64_t);
	int64_t *memory = vectors_block(v, words, sizeof(*memory));
	kvc_plan plan;

	for (size_t i = 0; i < words; i++)
		memory[i] = UNTOUCHED;
	expect_ok(kvc_plan_bind(
	        &plan, memory, (kvc_device){ KVC_DEVICE_CPU, 0 }, capacity, requests));
	return plan;
}

static int run_case(struct vectors *v)
{
	kvc_requests requests = KVC_REQUESTS_INIT;
	kvc_plan_args args = KVC_PLAN_ARGS_INIT;
	int64_t shapes[7][2];
	kvc_tensor rows = int64s(v, "req_pool_indices", shapes[0]);
	kvc_tensor prefix_lens = int64s(v, "prefix_lens", shapes[1]);
	kvc_tensor extend_lens = int64s(v, "extend_seq_lens", shapes[2]);
	kvc_tensor req_to_token = table(v, "req_to_token", shapes[3]);
	kvc_tensor mapping, tokens, valid_lens;

	requests.req_pool_indices = &rows;
	requests.prefix_lens = &prefix_lens;
	requests.extend_seq_lens = &extend_lens;
	args.requests = &requests;
	args.req_to_token = &req_to_token;
	args.rules = KVC_RULES_SGLANG;
	args.window = vectors_int(v->item, "swa_window_size");
	args.token_offset = vectors_int(v->item, "kv_token_id_vs_position_offset");
	if (!vectors_is_null(v->item, "full_to_swa_index_mapping")) {
		mapping = int64s(v, "full_to_swa_index_mapping", shapes[4]);
		args.full_to_swa_index_mapping = &mapping;
	}
	if (!vectors_is_null(v->item, "req_to_verify_expected_tokens")) {
		tokens = table(v, "req_to_verify_expected_tokens", shapes[5]);
		valid_lens = int64s(v, "req_to_verify_expected_tokens_valid_lens", shapes[6]);
		args.expected_tokens = &tokens;
		args.valid_lens = &valid_lens;
	}
	kvc_plan plan = fresh_plan(v);
	if (kvc_canary_plan(&plan, &args, NULL) != KVC_OK) {
		fprintf(stderr, "%s\n", kvc_last_error()->message);
		return 0;
	}
	return same_plan(v, &plan);
}

static void every_case_gives_sglangs_plan(void **state)
{
	struct vectors v;

	(void)state;
	vectors_open(&v, "plan.jsonl");
	while (vectors_next(&v))
		vectors_passed(&v, run_case(&v));
	assert_true(vectors_close(&v));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_case_gives_sglangs_plan),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
