/* Every refusal of kvc_canary_plan(). Each must leave plan, rotation and report as they were. */
#include "plan_call.h"

static void refused(
        struct call *call, kvc_status status, const char *slug, const char *message, int64_t where)
{
	static int64_t before[WORDS_MAX];

	call->args.report = &call->report;
	call->args.rotation = &call->rotation;
	call->rotation = 2;
	memcpy(before, call->memory, sizeof(before));
	expect_error(kvc_canary_plan(&call->plan, &call->args, NULL), status, slug, message, where);
	assert_memory_equal(before, call->memory, sizeof(before));
	assert_int_equal(call->rotation, 2);
	assert_int_equal(call->report.rows_written, 0);
}

static void pointers_and_structs_are_refused(void **state)
{
	static struct call call;

	(void)state;
	call_init(&call);
	expect_error(kvc_canary_plan(NULL, &call.args, NULL), KVC_E_INVALID_ARGUMENT,
	        "null-argument", "plan is NULL", -1);
	expect_error(kvc_canary_plan(&call.plan, NULL, NULL), KVC_E_INVALID_ARGUMENT,
	        "null-argument", "args is NULL", -1);
	call.args.requests = NULL;
	refused(&call, KVC_E_INVALID_ARGUMENT, "null-argument", "requests is NULL", -1);
	call_init(&call);
	call.requests.struct_bytes = 1;
	refused(&call, KVC_E_INVALID_ARGUMENT, "struct-bytes-unknown", NULL, -1);
	call_init(&call);
	call.plan.struct_bytes = 0;
	refused(&call, KVC_E_INVALID_ARGUMENT, "struct-bytes-unknown", NULL, -1);

	const kvc_tensor **tensors[] = { &call.requests.req_pool_indices,
		&call.requests.prefix_lens, &call.requests.extend_seq_lens,
		&call.args.req_to_token };
	const char *names[] = { "req_pool_indices is NULL", "prefix_lens is NULL",
		"extend_seq_lens is NULL", "req_to_token is NULL" };
	for (int i = 0; i < 4; i++) {
		call_init(&call);
		*tensors[i] = NULL;
		refused(&call, KVC_E_INVALID_ARGUMENT, "null-argument", names[i], -1);
	}
	call_init(&call);
	call.prefix_tensor.data = NULL;
	refused(&call, KVC_E_INVALID_ARGUMENT, "tensor-data-null", NULL, -1);
	void *arrays[] = { &call.plan.verify_slot_indices, &call.plan.verify_expected_tokens,
		&call.plan.verify_expected_positions, &call.plan.verify_prev_slot_indices,
		&call.plan.verify_num_valid, &call.plan.enable, &call.plan.write_offsets,
		&call.plan.write_seed_slot_indices, &call.plan.write_num_valid_reqs };
	for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
		call_init(&call);
		memset(arrays[i], 0, sizeof(void *));
		refused(&call, KVC_E_INVALID_ARGUMENT, "null-argument", NULL, -1);
	}
}

static void tensors_of_the_wrong_kind_are_refused(void **state)
{
	static struct call call;
	int64_t strides[2] = { 1, 4 };

	(void)state;
	call_init(&call);
	call.prefix_tensor.ndim = 0;
	refused(&call, KVC_E_SHAPE, "canary-tensor-must-be-1-d",
	        "kv-canary: prefix_lens must be 1-D, got shape ()", -1);
	call_init(&call);
	call.table_tensor.ndim = 1;
	refused(&call, KVC_E_SHAPE, "canary-tensor-must-be-2-d",
	        "kv-canary: req_to_token must be 2-D, got shape (4,)", -1);
	call_init(&call);
	call.table_tensor.dtype = KVC_INT64;
	refused(&call, KVC_E_DTYPE, "canary-tensor-dtype",
	        "kv-canary: req_to_token must have dtype int32, got int64", -1);
	call_init(&call);
	call.row_tensor.dtype = KVC_INT32;
	refused(&call, KVC_E_DTYPE, "canary-tensor-dtype",
	        "kv-canary: req_pool_indices must have dtype int64, got int32", -1);
	call_init(&call);
	call.exclude_tensor.dtype = kvc_dtype_make(KVC_CODE_BOOL, 8);
	call.args.exclude = &call.exclude_tensor;
	refused(&call, KVC_E_DTYPE, "canary-tensor-dtype", NULL, -1);
	call_init(&call);
	call.table_tensor.strides = strides;
	refused(&call, KVC_E_STRIDE, "canary-tensor-must-be-contiguous",
	        "kv-canary: req_to_token must be contiguous, its last stride is 4", -1);
	call_init(&call);
	call.extend_tensor.strides = &strides[1];
	refused(&call, KVC_E_STRIDE, "canary-tensor-must-be-contiguous", NULL, -1);
	call_init(&call);
	call.prefix_tensor.byte_offset = 4;
	refused(&call, KVC_E_STRIDE, "tensor-misaligned", NULL, -1);
	call_init(&call);
	call.table_shape[0] = -1;
	refused(&call, KVC_E_SHAPE, "tensor-shape-impossible", NULL, -1);
	call_init(&call);
	call.table_tensor.device.device_type = 0;
	refused(&call, KVC_E_DEVICE, "device-unknown", NULL, -1);
	call_init(&call);
	call.args.full_to_swa_index_mapping = &call.mapping_tensor;
	call.mapping_tensor.device.device_type = KVC_DEVICE_CUDA;
	refused(&call, KVC_E_DEVICE, "device-mismatch", NULL, -1);
	call_init(&call);
	call.plan.device.device_type = KVC_DEVICE_CUDA;
	refused(&call, KVC_E_NO_CUDA, "no-cuda", NULL, -1);
}

/* Also the list that a loader hands over for a part of a request (B76): as many as there are. */
static void b76_arrays_of_another_length_are_refused(void **state)
{
	static struct call call;
	int64_t three[1] = { 3 };

	(void)state;
	call_init(&call);
	const kvc_tensor **optional[] = { &call.requests.namespaces, &call.requests.verify_chain_in,
		&call.requests.write_chain_in, &call.requests.chain_end, &call.requests.start,
		&call.requests.owner_request };
	for (int i = 0; i < 6; i++) {
		call_init(&call);
		call.start_tensor.shape = three;
		*optional[i] = &call.start_tensor;
		refused(&call, KVC_E_LENGTH, "canary-tensor-length", NULL, -1);
	}
	call_init(&call);
	call.extend_tensor.shape = three;
	refused(&call, KVC_E_LENGTH, "canary-tensor-length",
	        "kv-canary: extend_seq_lens length must be 2, got 3", -1);
	call_init(&call);
	call.valid_tensor.shape = three;
	call.args.expected_tokens = &call.tokens_tensor;
	call.args.valid_lens = &call.valid_tensor;
	refused(&call, KVC_E_LENGTH, "canary-tensor-length",
	        "kv-canary: valid_lens length must be 2, got 3", -1);
	call_init(&call);
	bind_plan(&call, 16, 1);
	refused(&call, KVC_E_LENGTH, "plan-batch-exceeds-capacity",
	        "kv-canary: bs=2 exceeds write_req_capacity=1", -1);
}

static void options_that_make_no_sense_are_refused(void **state)
{
	static struct call call;

	(void)state;
	call_init(&call);
	call.args.rules = -1;
	refused(&call, KVC_E_CONFIG, "rules-unknown", NULL, -1);
	call_init(&call);
	call.args.window = -1;
	refused(&call, KVC_E_CONFIG, "plan-window-negative",
	        "kv-canary: canary_plan window must be 0 (none) or more, got -1", -1);
	call_init(&call);
	call.args.window = 4;
	call.args.rules = KVC_RULES_SGLANG;
	refused(&call, KVC_E_CONFIG, "plan-window-needs-mapping", NULL, -1);
	call.args.full_to_swa_index_mapping = &call.mapping_tensor;
	call.args.exclude = &call.exclude_tensor;
	refused(&call, KVC_E_CONFIG, "plan-option-needs-own-rules",
	        "kv-canary: canary_plan exclude has no meaning with KVC_RULES_SGLANG", -1);
	call.args.exclude = NULL;
	call.requests.start = &call.start_tensor;
	refused(&call, KVC_E_CONFIG, "plan-option-needs-own-rules", NULL, -1);
	call_init(&call);
	call.args.expected_tokens = &call.tokens_tensor;
	refused(&call, KVC_E_CONFIG, "plan-expected-tokens-need-valid-lens",
	        "kv-canary: canary_plan requires valid_lens when expected_tokens is set", -1);
	call_init(&call);
	call.plan.verify_capacity = (int64_t)INT32_MAX + 1;
	refused(&call, KVC_E_CONFIG, "plan-capacity-out-of-range", NULL, -1);
}

static void rows_columns_and_mapping_indices_are_refused(void **state)
{
	static struct call call;

	(void)state;
	call_init(&call);
	call.rows[1] = ROWS;
	refused(&call, KVC_E_ROW_RANGE, "plan-row-out-of-range",
	        "kv-canary: canary_plan request 1 names row 4, req_to_token has rows 0 to 4 - 1",
	        1);
	call.rows[1] = -1;
	refused(&call, KVC_E_ROW_RANGE, "plan-row-out-of-range", NULL, 1);
	call_init(&call);
	call.prefix[0] = COLUMNS + 1;
	refused(&call, KVC_E_ROW_RANGE, "plan-column-out-of-range",
	        "kv-canary: canary_plan request 0 reads column 8 of row 1, req_to_token has 8 "
	        "columns",
	        0);
	call.prefix[0] = INT64_MAX;
	refused(&call, KVC_E_ROW_RANGE, "plan-column-out-of-range", NULL, 0);

	call_init(&call);
	call.args.expected_tokens = &call.tokens_tensor;
	call.args.valid_lens = &call.valid_tensor;
	call.valid[0] = call.valid[1] = 8;
	call.tokens_shape[1] = 2;
	refused(&call, KVC_E_ROW_RANGE, "plan-column-out-of-range",
	        "kv-canary: canary_plan request 0 reads column 2 of row 1, expected_tokens has 2 "
	        "columns",
	        0);
	call.tokens_shape[1] = 8, call.tokens_shape[0] = 2;
	refused(&call, KVC_E_ROW_RANGE, "plan-row-out-of-range",
	        "kv-canary: canary_plan request 1 names row 2, expected_tokens has rows 0 to 2 - 1",
	        1);
	call.valid[1] = 0; /* then row 2 is not read */
	run(&call);

	call_init(&call);
	call.args.full_to_swa_index_mapping = &call.mapping_tensor;
	call.mapping_shape[0] = 25;
	refused(&call, KVC_E_ROW_RANGE, "plan-mapping-out-of-range",
	        "kv-canary: canary_plan request 1 has slot 25 at position 1, "
	        "full_to_swa_index_mapping has 25 entries",
	        1);
	call.prefix[1] = 1, call.table[2 * COLUMNS + 1] = -1;
	run(&call); /* negative slots are not looked up */
}

static void sums_that_cannot_be_are_refused(void **state)
{
	static struct call call;

	(void)state;
	call_init(&call);
	call.extend[0] = call.extend[1] = (INT64_C(1) << 61) + 1;
	refused(&call, KVC_E_LENGTH, "plan-lengths-too-large",
	        "kv-canary: canary_plan request 1 brings the sum of extend_seq_lens above "
	        "4611686018427387904",
	        1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pointers_and_structs_are_refused),
		cmocka_unit_test(tensors_of_the_wrong_kind_are_refused),
		cmocka_unit_test(b76_arrays_of_another_length_are_refused),
		cmocka_unit_test(options_that_make_no_sense_are_refused),
		cmocka_unit_test(rows_columns_and_mapping_indices_are_refused),
		cmocka_unit_test(sums_that_cannot_be_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
