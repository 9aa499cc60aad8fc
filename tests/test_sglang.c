/* SGLang's interface beyond its vectors: a step through all launchers, what CUDA tensors are asked
 * for (seen on host memory that says it lies on a device: checks come before any access), what the
 * host lets pass as SGLang's reference does, and arguments that nobody should pass. */
#include <string.h>

#include "expect.h"

#define SLOTS 16
#define CAPACITY 8
#define REQUESTS 2
#define RING 4

/* One request on row 1 that wrote four tokens to slots 4..7, and one source. */
static struct world {
	int64_t wide[6][CAPACITY + 1], ring_rows[RING][8], counts[2], requests[3][1];
	int64_t token_values[4], position_values[4], slot_values[4];
	int32_t narrow[6], table_values[2][8], expected_values[2][8];
	uint8_t record_bytes[SLOTS][48], kv[SLOTS][32];
	int64_t capacity[1], offset_count[1], seed_count[1], one[1], four[1];
	int64_t table_shape[2], record_shape[2], ring_shape[2], strip_shape[2];
	kvc_tensor slots, tokens, positions, prevs, num_valid, enable, offsets, seeds, num_reqs;
	kvc_tensor records, ring, write_index, slot_runs, kernel_runs, check_steps, strip;
	kvc_tensor rows, prefix_lens, extend_lens, table, expected, valid_lens;
	kvc_tensor input_ids, input_positions, out_cache_loc;
	kvc_sglang_source source;
	kvc_sglang_context context;
	kvc_sglang_verify_plan verify_plan;
	kvc_sglang_write_plan write_plan;
	kvc_sglang_plan_args plan;
	kvc_sglang_verify_args verify;
	kvc_sglang_write_args write;
} w;

static kvc_tensor wide(void *data, int64_t *shape)
{
	return kvc_tensor_make(data, KVC_INT64, 1, shape);
}

static kvc_tensor narrow(int32_t *data)
{
	return kvc_tensor_make(data, KVC_INT32, 1, w.one);
}

static void make_tensors(void)
{
	w.slots = wide(w.wide[0], w.capacity);
	w.tokens = wide(w.wide[1], w.capacity);
	w.positions = wide(w.wide[2], w.capacity);
	w.prevs = wide(w.wide[3], w.capacity);
	w.offsets = wide(w.wide[4], w.offset_count);
	w.seeds = wide(w.wide[5], w.seed_count);
	w.num_valid = narrow(&w.narrow[0]);
	w.enable = narrow(&w.narrow[1]);
	w.num_reqs = narrow(&w.narrow[2]);
	w.write_index = narrow(&w.narrow[3]);
	w.check_steps = narrow(&w.narrow[4]);
	w.slot_runs = wide(&w.counts[0], w.one);
	w.kernel_runs = wide(&w.counts[1], w.one);
	w.records = kvc_tensor_make(w.record_bytes, KVC_UINT8, 2, w.record_shape);
	w.ring = kvc_tensor_make(w.ring_rows, KVC_INT64, 2, w.ring_shape);
	w.strip = kvc_tensor_make(w.kv, KVC_UINT8, 2, w.strip_shape);
	w.rows = wide(w.requests[0], w.one);
	w.prefix_lens = wide(w.requests[1], w.one);
	w.extend_lens = wide(w.requests[2], w.one);
	w.table = kvc_tensor_make(w.table_values, KVC_INT32, 2, w.table_shape);
	w.expected = kvc_tensor_make(w.expected_values, KVC_INT32, 2, w.table_shape);
	w.valid_lens = wide(w.four, w.one);
	w.input_ids = wide(w.token_values, w.four);
	w.input_positions = wide(w.position_values, w.four);
	w.out_cache_loc = wide(w.slot_values, w.four);
}

static void make_arguments(void)
{
	w.source = (kvc_sglang_source){ &w.strip, 1, 32, 32 };
	w.context = (kvc_sglang_context){ sizeof(w.context), &w.records, KVC_TAG_TAIL_K_FULL,
		&w.ring, &w.write_index, &w.slot_runs, &w.kernel_runs, &w.source, 1,
		KVC_COVERAGE_ALL, &w.check_steps };
	w.verify_plan = (kvc_sglang_verify_plan){ sizeof(w.verify_plan), &w.slots, &w.tokens,
		&w.positions, &w.prevs, &w.num_valid, &w.enable };
	w.write_plan =
	        (kvc_sglang_write_plan){ sizeof(w.write_plan), &w.offsets, &w.seeds, &w.num_reqs };
	w.plan = (kvc_sglang_plan_args){ sizeof(w.plan), &w.verify_plan, &w.write_plan, &w.rows,
		&w.prefix_lens, &w.extend_lens, &w.table, 0, NULL, CAPACITY, &w.expected,
		&w.valid_lens, 0 };
	w.verify = (kvc_sglang_verify_args){ sizeof(w.verify), &w.context, &w.verify_plan, 1 };
	w.write = (kvc_sglang_write_args){ sizeof(w.write), &w.context, &w.write_plan, &w.input_ids,
		&w.input_positions, &w.out_cache_loc, 0, NULL, NULL };
}

static int make_world(void **state)
{
	(void)state;
	memset(&w, 0, sizeof(w));
	w.capacity[0] = CAPACITY, w.offset_count[0] = REQUESTS + 1, w.seed_count[0] = REQUESTS;
	w.one[0] = 1, w.four[0] = 4;
	w.table_shape[0] = 2, w.table_shape[1] = 8;
	w.record_shape[0] = SLOTS, w.record_shape[1] = 48;
	w.ring_shape[0] = RING, w.ring_shape[1] = 8;
	w.strip_shape[0] = SLOTS, w.strip_shape[1] = 32;
	w.requests[0][0] = 1, w.requests[2][0] = 4;
	for (int i = 0; i < 4; i++) {
		w.token_values[i] = w.expected_values[1][i] = 11 * (i + 1);
		w.position_values[i] = i;
		w.slot_values[i] = w.table_values[1][i] = 4 + i;
	}
	for (size_t i = 0; i < sizeof(w.kv); i++)
		((uint8_t *)w.kv)[i] = (uint8_t)(i % 251);
	make_tensors();
	make_arguments();
	return 0;
}

static void stamp(void)
{
	expect_ok(kvc_sglang_plan(&w.plan, NULL));
	expect_ok(kvc_sglang_write(&w.write, NULL));
	w.requests[1][0] = 4, w.requests[2][0] = 0;
	expect_ok(kvc_sglang_plan(&w.plan, NULL));
}

static void to_device(kvc_tensor *tensor)
{
	tensor->device = kvc_device_make(KVC_DEVICE_CUDA, 0);
}

/* All tensors of a launcher's arguments say that they lie on the first GPU. */
static void all_to_device(void)
{
	kvc_tensor *first = &w.slots, *past = &w.out_cache_loc + 1;

	for (kvc_tensor *tensor = first; tensor < past; tensor++)
		to_device(tensor);
}

/* ---- steps ---- */

static void a_step_stamps_and_the_next_one_finds_damage(void **state)
{
	(void)state;
	stamp();
	assert_int_equal(w.narrow[0], 4);
	assert_int_equal(w.narrow[1], 1);
	expect_ok(kvc_sglang_verify(&w.verify, NULL));
	assert_int_equal(w.narrow[3], 0);
	assert_int_equal(w.counts[0], 8); /* 4 written, 4 verified */
	assert_int_equal(w.counts[1], 2);
	w.kv[6][31] ^= 1;
	expect_ok(kvc_sglang_verify(&w.verify, NULL));
	assert_int_equal(w.narrow[3], 1);
	assert_int_equal(w.ring_rows[0][0], KVC_TAG_TAIL_K_FULL);
	assert_int_equal(w.ring_rows[0][1], 6);
	assert_int_equal(w.ring_rows[0][7], KVC_REASON_VERIFY_REAL_KV_HASH);
}

static void bytes_that_the_mode_leaves_out_do_not_count(void **state)
{
	(void)state;
	w.context.real_kv_hash_mode = KVC_COVERAGE_PARTIAL;
	stamp();
	w.kv[6][16] ^= 1;
	expect_ok(kvc_sglang_verify(&w.verify, NULL));
	assert_int_equal(w.narrow[3], 0);
	w.kv[6][15] ^= 1;
	expect_ok(kvc_sglang_verify(&w.verify, NULL));
	assert_int_equal(w.narrow[3], 1);
}

/* The same bytes in rows that are packed, and as every second byte of wider ones. */
static void rows_that_are_not_packed_are_read_on_the_host(void **state)
{
	static uint8_t apart[SLOTS][64];
	int64_t strides[2] = { 64, 2 };

	(void)state;
	stamp();
	for (int i = 0; i < SLOTS; i++)
		for (int j = 0; j < 32; j++)
			apart[i][2 * j] = w.kv[i][j];
	w.strip.data = apart;
	w.strip.strides = strides;
	expect_ok(kvc_sglang_verify(&w.verify, NULL));
	assert_int_equal(w.narrow[3], 0);
	apart[5][62] ^= 4;
	expect_ok(kvc_sglang_verify(&w.verify, NULL));
	assert_int_equal(w.narrow[3], 1);
}

/* Strides of a tensor without rows may be anything: no product of them overflows, which UBSan tells.
 * With a row, one that leaves memory is refused. */
static void strides_of_an_empty_source_may_be_anything(void **state)
{
	const int64_t wild[] = { INT64_MAX / 16 * 16, INT64_MAX / 2 + 1, -(INT64_MAX / 16 * 16) };

	(void)state;
	stamp();
	for (size_t i = 0; i < sizeof(wild) / sizeof(wild[0]); i++)
		for (int64_t rows = 0; rows < 2; rows++) {
			int64_t strides[2] = { 64, wild[i] }, shape[2] = { rows, 64 };
			w.strip.shape = shape;
			w.strip.strides = strides;
			kvc_status across = kvc_sglang_verify(&w.verify, NULL);
			assert_true(rows == 0 || across != KVC_OK);
			strides[0] = wild[i], strides[1] = 1;
			kvc_status along = kvc_sglang_verify(&w.verify, NULL);
			assert_true(wild[i] < 0 || along == KVC_OK);
		}
}

/* Records may lie apart, in rows wider than what is theirs. */
static void records_may_be_rows_of_a_wider_buffer(void **state)
{
	int64_t strides[2] = { 48, 1 };

	(void)state;
	memset(w.record_bytes, 0xAB, sizeof(w.record_bytes));
	w.record_shape[1] = 32;
	w.records.strides = strides;
	stamp();
	expect_ok(kvc_sglang_verify(&w.verify, NULL));
	assert_int_equal(w.narrow[3], 0);
	assert_int_equal(w.record_bytes[5][32], 0xAB);
	assert_int_equal(w.record_bytes[5][0], 22);
}

static void slots_outside_records_or_sources_are_skipped_and_counted(void **state)
{
	(void)state;
	w.strip_shape[0] = 6; /* slots 6 and 7 have records, but no bytes */
	stamp();
	assert_int_equal(w.counts[0], 2);
	expect_ok(kvc_sglang_verify(&w.verify, NULL));
	assert_int_equal(w.counts[0], 6);
	assert_int_equal(w.narrow[3], 0);
	w.context.real_kv_hash_mode = KVC_COVERAGE_NONE; /* then the source is not looked at */
	w.requests[1][0] = 0, w.requests[2][0] = 4;
	stamp();
	assert_int_equal(w.counts[0], 10);
}

/* ---- early returns of the reference ---- */

static void a_verify_of_nothing_does_not_look_at_records(void **state)
{
	(void)state;
	w.record_shape[1] = 24;
	w.narrow[0] = 3, w.narrow[1] = 1; /* three entries, all at slot 0 */
	expect_ok(kvc_sglang_verify(&w.verify, NULL));
	assert_int_equal(w.counts[0], 3);
	w.wide[0][2] = 1;
	expect_error(kvc_sglang_verify(&w.verify, NULL), KVC_E_CONFIG, "sglang-record-words",
	        "kv-canary: canary_buf slot stride must hold at least 4 int64 fields, got 3", -1);
	assert_int_equal(w.counts[1], 1); /* refused calls do not count */
	w.narrow[1] = 0;
	expect_ok(kvc_sglang_verify(&w.verify, NULL));
	assert_int_equal(w.counts[0], 3);
	assert_int_equal(w.counts[1], 2);
}

static void a_write_of_nothing_does_not_look_at_expected_inputs(void **state)
{
	(void)state;
	w.write.enable_write_input_assert = 1;
	w.narrow[2] = 1; /* one request without tokens */
	expect_ok(kvc_sglang_write(&w.write, NULL));
	/* The last offset counts, whatever lies between. */
	w.wide[4][1] = 2, w.narrow[2] = 2;
	expect_ok(kvc_sglang_write(&w.write, NULL));
	assert_int_equal(w.counts[0], 0);
	w.wide[4][2] = 2;
	expect_error(kvc_sglang_write(&w.write, NULL), KVC_E_CONFIG,
	        "sglang-expected-inputs-missing", NULL, -1);
	w.write.enable_write_input_assert = 0;
	w.write.expected_input_positions = &w.input_positions;
	expect_error(kvc_sglang_write(&w.write, NULL), KVC_E_CONFIG,
	        "sglang-expected-inputs-unwanted", NULL, -1);
}

/* ---- CUDA tensors: what is asked, in SGLang's order ---- */

struct contiguity {
	kvc_tensor *tensor;
	const char *message;
};

/* Each tensor, when it alone is not contiguous, is the one that is named; of several the first. */
static void expect_contiguous(
        const struct contiguity *list, size_t count, kvc_status (*launch)(void))
{
	static int64_t apart[2] = { 16, 2 }; /* the tensors keep it */

	for (size_t i = count; i-- > 0;) {
		list[i].tensor->strides = apart; /* those before are still in order */
		expect_error(launch(), KVC_E_STRIDE, "sglang-tensor-must-be-contiguous",
		        list[i].message, -1);
	}
}

static kvc_status launch_verify(void)
{
	return kvc_sglang_verify(&w.verify, NULL);
}

static kvc_status launch_write(void)
{
	return kvc_sglang_write(&w.write, NULL);
}

static void a_verify_on_cuda_asks_for_contiguous_tensors(void **state)
{
	const struct contiguity list[] = {
		{ &w.records, "kv-canary: canary_buf must be contiguous" },
		{ &w.slots, "kv-canary: plan.verify_slot_indices must be contiguous" },
		{ &w.tokens, "kv-canary: plan.verify_expected_tokens must be contiguous" },
		{ &w.positions, "kv-canary: plan.verify_expected_positions must be contiguous" },
		{ &w.prevs, "kv-canary: plan.verify_prev_slot_indices must be contiguous" },
		{ &w.num_valid, "kv-canary: plan.verify_num_valid must be contiguous" },
		{ &w.enable, "kv-canary: plan.enable must be contiguous" },
		{ &w.ring, "kv-canary: violation_ring must be contiguous" },
		{ &w.write_index, "kv-canary: violation_write_index must be contiguous" },
		{ &w.slot_runs, "kv-canary: slot_run_counter must be contiguous" },
		{ &w.kernel_runs, "kv-canary: kernel_run_counter must be contiguous" },
	};

	(void)state;
	all_to_device();
	w.one[0] = 2; /* the stride of a single entry would not count */
	expect_contiguous(list, sizeof(list) / sizeof(list[0]), launch_verify);
}

static void a_write_on_cuda_asks_for_contiguous_tensors(void **state)
{
	const struct contiguity list[] = {
		{ &w.records, "kv-canary: canary_buf must be contiguous" },
		{ &w.offsets, "kv-canary: plan.write_offsets must be contiguous" },
		{ &w.seeds, "kv-canary: plan.write_seed_slot_indices must be contiguous" },
		{ &w.num_reqs, "kv-canary: plan.write_num_valid_reqs must be contiguous" },
		{ &w.input_ids, "kv-canary: input_ids must be contiguous" },
		{ &w.input_positions, "kv-canary: positions must be contiguous" },
		{ &w.out_cache_loc, "kv-canary: out_cache_loc must be contiguous" },
		{ &w.tokens, "kv-canary: expected_input_tokens must be contiguous" },
		{ &w.positions, "kv-canary: expected_input_positions must be contiguous" },
		{ &w.ring, "kv-canary: violation_ring must be contiguous" },
		{ &w.write_index, "kv-canary: violation_write_index must be contiguous" },
		{ &w.slot_runs, "kv-canary: slot_run_counter must be contiguous" },
		{ &w.kernel_runs, "kv-canary: kernel_run_counter must be contiguous" },
		{ &w.check_steps, "kv-canary: enable_chain_position_assert must be contiguous" },
	};

	(void)state;
	all_to_device();
	w.one[0] = 2;
	w.write.enable_write_input_assert = 1;
	w.write.expected_input_tokens = &w.tokens;
	w.write.expected_input_positions = &w.positions;
	expect_contiguous(list, sizeof(list) / sizeof(list[0]), launch_write);
	w.write.expected_input_tokens = NULL;
	w.records.strides = w.offsets.strides = w.seeds.strides = w.num_reqs.strides = NULL;
	w.input_ids.strides = w.input_positions.strides = w.out_cache_loc.strides = NULL;
	expect_error(launch_write(), KVC_E_CONFIG, "sglang-expected-inputs-missing", NULL, -1);
}

static void a_launch_on_cuda_asks_for_flat_packed_sources(void **state)
{
	int64_t apart[2] = { 64, 2 }, three[3] = { SLOTS, 32, 1 };

	(void)state;
	all_to_device();
	w.strip.strides = apart;
	expect_error(launch_verify(), KVC_E_STRIDE, "sglang-source-rows-packed",
	        "kv-canary: real_kv_sources[0].tensor rows must be packed (stride(-1) == 1), got "
	        "strides (64, 2)",
	        0);
	expect_error(launch_write(), KVC_E_STRIDE, "sglang-source-rows-packed", NULL, 0);
	w.strip.strides = NULL;
	w.strip.ndim = 3, w.strip.shape = three;
	expect_error(launch_verify(), KVC_E_SHAPE, "sglang-source-view-must-be-2-d",
	        "kv-canary: real_kv_sources[0].tensor (viewed as uint8) must be 2-D, got 3-D", 0);
}

static void a_launch_on_cuda_names_itself_where_records_are_short(void **state)
{
	(void)state;
	all_to_device();
	w.record_shape[1] = 24;
	expect_error(launch_verify(), KVC_E_CONFIG, "sglang-record-bytes",
	        "canary_verify: slot_stride_bytes must hold at least 32 bytes per slot, got 24",
	        -1);
	expect_error(launch_write(), KVC_E_CONFIG, "sglang-record-bytes",
	        "canary_write: slot_stride_bytes must hold at least 32 bytes per slot, got 24", -1);
	w.offset_count[0] = REQUESTS;
	expect_error(launch_write(), KVC_E_LENGTH, "sglang-write-offsets-size",
	        "canary_write: write_offsets.size(0) must equal write_req_capacity + 1 (3), got 2",
	        -1);
}

static void a_plan_on_cuda_is_checked_before_its_tensors_are_read(void **state)
{
	static int64_t many[4097];
	int64_t count[1] = { 4097 };
	kvc_tensor rows = kvc_tensor_make(many, KVC_INT64, 1, count);

	(void)state;
	all_to_device();
	w.plan.verify_capacity = 9;
	expect_error(kvc_sglang_plan(&w.plan, NULL), KVC_E_LENGTH, "sglang-verify-capacity-differs",
	        "kv-canary: launch_canary_plan_kernels verify_capacity=9 does not match "
	        "verify_plan_out.verify_slot_indices.shape[0]=8",
	        -1);
	w.plan.req_pool_indices = &rows;
	expect_error(kvc_sglang_plan(&w.plan, NULL), KVC_E_LENGTH, "sglang-plan-batch-max",
	        "kv-canary: launch_canary_plan_kernels supports at most bs=4096 reqs per launch, "
	        "got bs=4097. Bump _PLAN_BS_BLOCK_SIZE if real workloads need this.",
	        -1);
	w.plan.swa_window_size = 1;
	expect_error(kvc_sglang_plan(&w.plan, NULL), KVC_E_CONFIG, "sglang-window-needs-mapping",
	        NULL, -1);
	make_world(NULL);
	all_to_device();
	w.plan.req_to_verify_expected_tokens_valid_lens = NULL;
	expect_error(kvc_sglang_plan(&w.plan, NULL), KVC_E_CONFIG, "sglang-valid-lens-missing",
	        "kv-canary: launch_plan_entries_kernel requires "
	        "req_to_verify_expected_tokens_valid_lens when req_to_verify_expected_tokens is "
	        "set",
	        -1);
	w.extend_lens.device = KVC_HOST;
	expect_error(kvc_sglang_plan(&w.plan, NULL), KVC_E_DEVICE, "sglang-tensor-device",
	        "kv-canary: extend_seq_lens must be on out_verify_offsets_scratch's device cuda:0, "
	        "got cpu",
	        -1);
}

static void the_checks_of_a_plan_say_which_tensor(void **state)
{
	int64_t backwards[2] = { -8, 1 }, none[1] = { 0 }, one_row[2] = { 1, 8 };
	kvc_tensor empty = kvc_tensor_make(NULL, KVC_INT64, 1, none);

	(void)state;
	expect_ok(kvc_sglang_plan_check(&w.plan, NULL));
	expect_error(kvc_sglang_plan_check(&w.plan, &w.seeds), KVC_E_LENGTH,
	        "sglang-tensor-min-length", NULL, -1);
	w.table.strides = backwards;
	w.table_shape[0] = 1; /* one row: contiguous whatever its stride */
	expect_error(kvc_sglang_plan_check(&w.plan, NULL), KVC_E_CONFIG,
	        "sglang-number-must-be-positive",
	        "kv-canary: req_to_token_stride0 must be positive, got -8", -1);
	w.table.strides = NULL;
	w.table.shape = one_row;
	w.plan.full_to_swa_index_mapping = &empty;
	expect_error(kvc_sglang_plan_check(&w.plan, NULL), KVC_E_LENGTH, "sglang-mapping-empty",
	        NULL, -1);
	w.plan.verify_capacity = -1;
	expect_error(kvc_sglang_plan_check(&w.plan, NULL), KVC_E_CONFIG,
	        "sglang-number-must-not-be-negative", NULL, -1);
	w.num_reqs.dtype = KVC_INT64;
	expect_error(kvc_sglang_plan_check(&w.plan, NULL), KVC_E_DTYPE, "sglang-tensor-dtype",
	        "kv-canary: out_write_num_valid_reqs must have dtype torch.int32, got torch.int64",
	        -1);
	int64_t many[1] = { 4097 };
	static int64_t zeros[4097];
	make_world(NULL);
	w.rows = kvc_tensor_make(zeros, KVC_INT64, 1, many);
	expect_error(kvc_sglang_plan_check(&w.plan, NULL), KVC_E_LENGTH,
	        "sglang-offsets-batch-range", NULL, -1);
	w.rows.shape = w.one;
	w.offset_count[0] = REQUESTS;
	expect_error(kvc_sglang_plan_check(&w.plan, NULL), KVC_E_LENGTH,
	        "sglang-write-offsets-length", NULL, -1);
}

/* Where this machine or build has no CUDA, that is the last thing that a sound call is told. */
static void sound_calls_on_cuda_end_at_the_device(void **state)
{
	int64_t offsets_shape[1] = { 2 };
	kvc_status statuses[4];

	(void)state;
	all_to_device();
	w.offsets.shape = w.offset_count;
	statuses[0] = kvc_sglang_plan(&w.plan, NULL);
	statuses[1] = launch_verify();
	statuses[2] = launch_write();
	w.offsets.shape = offsets_shape;
	statuses[3] = kvc_sglang_scatter(&w.input_ids, &w.offsets, &w.rows, &w.table, NULL);
	for (int i = 0; i < 4; i++) /* with CUDA: host memory is refused, KVC_E_DEVICE */
		assert_true(statuses[i] == KVC_E_NO_CUDA || statuses[i] == KVC_E_DEVICE ||
		            statuses[i] == KVC_E_CUDA);
}

/* ---- the host ---- */

static void a_slot_outside_the_mapping_is_refused_in_sglangs_words(void **state)
{
	int64_t map[6] = { 0, 1, 2, 3, 4, 5 }, six[1] = { 6 };
	kvc_tensor mapping = kvc_tensor_make(map, KVC_INT64, 1, six);

	(void)state;
	w.plan.full_to_swa_index_mapping = &mapping;
	w.plan.swa_window_size = 1;
	w.requests[1][0] = 4;
	w.narrow[1] = 77;
	expect_error(kvc_sglang_plan(&w.plan, NULL), KVC_E_ROW_RANGE, "sglang-slot-outside-mapping",
	        "kv-canary: SWA slot 7 is outside full_to_swa_index_mapping length 6", 0);
	assert_int_equal(w.narrow[1], 77);
}

static void a_plan_on_the_host_cuts_what_does_not_fit(void **state)
{
	int64_t rows[3] = { 1, 0, 1 }, zeros[3] = { 0, 0, 0 }, ones[3] = { 1, 1, 1 };
	int64_t three[1] = { 3 };
	kvc_tensor rows_of = kvc_tensor_make(rows, KVC_INT64, 1, three);
	kvc_tensor prefixes = kvc_tensor_make(zeros, KVC_INT64, 1, three);
	kvc_tensor extends = kvc_tensor_make(ones, KVC_INT64, 1, three);
	kvc_tensor valid = kvc_tensor_make(zeros, KVC_INT64, 1, three);

	(void)state;
	w.plan.req_pool_indices = &rows_of;
	w.plan.prefix_lens = &prefixes;
	w.plan.extend_seq_lens = &extends;
	w.plan.req_to_verify_expected_tokens_valid_lens = &valid;
	w.plan.swa_window_size = -5; /* no window */
	expect_ok(kvc_sglang_plan(&w.plan, NULL));
	assert_int_equal(w.narrow[2], 3); /* as many as there were */
	assert_int_equal(w.wide[4][2], 1);
	expect_error(kvc_sglang_plan_check(&w.plan, NULL), KVC_E_LENGTH,
	        "plan-batch-exceeds-capacity", NULL, -1);
}

static void sources_are_checked_again_at_each_launch(void **state)
{
	kvc_sglang_source five[5];

	(void)state;
	w.source.page_size = 0;
	expect_error(launch_verify(), KVC_E_CONFIG, "sglang-source-page-size", NULL, -1);
	w.source.page_size = 1, w.source.num_bytes_per_token = 24;
	expect_error(launch_write(), KVC_E_CONFIG, "sglang-source-token-bytes", NULL, -1);
	w.source.num_bytes_per_token = 32, w.source.read_bytes = 48;
	expect_error(launch_write(), KVC_E_CONFIG, "sglang-source-read-bytes", NULL, -1);
	w.source.read_bytes = 32, w.source.page_size = 2;
	expect_error(launch_verify(), KVC_E_SHAPE, "sglang-source-row-width", NULL, -1);
	w.source.page_size = INT64_MAX; /* a product that does not fit */
	expect_error(launch_verify(), KVC_E_SHAPE, "sglang-source-row-width", NULL, -1);
	w.source.page_size = 1, w.strip_shape[1] = 40;
	expect_error(launch_verify(), KVC_E_STRIDE, "sglang-source-row-stride", NULL, -1);
	w.strip.ndim = 1;
	expect_error(launch_verify(), KVC_E_SHAPE, "sglang-source-must-be-2-d", NULL, -1);
	for (int i = 0; i < 5; i++)
		five[i] = w.source;
	w.context.real_kv_sources = five, w.context.real_kv_source_count = 5;
	expect_error(launch_verify(), KVC_E_CONFIG, "sglang-sources-max", NULL, -1);
	w.context.real_kv_source_count = -1;
	expect_error(launch_verify(), KVC_E_CONFIG, "group-count-negative", NULL, -1);
	w.context.real_kv_source_count = 1, w.context.real_kv_sources = NULL;
	expect_error(launch_verify(), KVC_E_INVALID_ARGUMENT, "null-argument", NULL, -1);
}

/* Rows that lie across each other: SGLang's reference reads them, here they are refused. */
static void rows_that_lie_across_each_other_are_refused(void **state)
{
	int64_t across[2] = { 16, 16 };

	(void)state;
	stamp();
	w.strip.strides = across;
	expect_error(launch_verify(), KVC_E_CONFIG, "source-slot-leaves-row", NULL, 0);
}

static void a_ring_has_eight_columns(void **state)
{
	(void)state;
	w.ring_shape[0] = 2, w.ring_shape[1] = 16;
	expect_error(launch_verify(), KVC_E_SHAPE, "sglang-ring-rows",
	        "kv-canary: violation_ring must be contiguous [capacity, 8], got shape (2, 16)",
	        -1);
	w.context.real_kv_hash_mode = 3;
	expect_error(launch_verify(), KVC_E_CONFIG, "group-option-unknown", NULL, -1);
}

static void a_scatter_prints_dtypes_as_torch_does(void **state)
{
	int64_t two[1] = { 2 }, many[1] = { 513 }, less[1] = { 512 };
	static int64_t zeros[513];
	kvc_tensor offsets = kvc_tensor_make(w.wide[4], KVC_INT64, 1, two);

	(void)state;
	w.wide[4][1] = 4;
	expect_ok(kvc_sglang_scatter(&w.input_ids, &offsets, &w.rows, &w.expected, NULL));
	assert_int_equal(w.expected_values[1][3], 44);
	w.expected.dtype = KVC_INT64;
	expect_error(kvc_sglang_scatter(&w.input_ids, &offsets, &w.rows, &w.expected, NULL),
	        KVC_E_DTYPE, "sglang-scatter-dtype",
	        "kv-canary: scatter_req_token_ids pool_out must be int32, got torch.int64", -1);
	offsets = kvc_tensor_make(zeros, KVC_INT64, 1, many);
	kvc_tensor rows = kvc_tensor_make(zeros, KVC_INT64, 1, less);
	w.expected.dtype = KVC_INT32;
	expect_error(kvc_sglang_scatter(&w.input_ids, &offsets, &rows, &w.expected, NULL),
	        KVC_E_LENGTH, "sglang-scatter-batch-max", NULL, -1);
}

/* ---- arguments that nobody should pass ---- */

static void missing_arguments_are_named(void **state)
{
	(void)state;
	expect_error(
	        kvc_sglang_plan(NULL, NULL), KVC_E_INVALID_ARGUMENT, "null-argument", NULL, -1);
	expect_error(
	        kvc_sglang_verify(NULL, NULL), KVC_E_INVALID_ARGUMENT, "null-argument", NULL, -1);
	expect_error(
	        kvc_sglang_write(NULL, NULL), KVC_E_INVALID_ARGUMENT, "null-argument", NULL, -1);
	expect_error(kvc_sglang_scatter(NULL, NULL, NULL, NULL, NULL), KVC_E_INVALID_ARGUMENT,
	        "null-argument", NULL, -1);
	expect_error(
	        kvc_sglang_source_check(NULL), KVC_E_INVALID_ARGUMENT, "null-argument", NULL, -1);
	expect_error(kvc_sglang_source_check_launch(NULL, 3), KVC_E_INVALID_ARGUMENT,
	        "null-argument", NULL, 3);
	expect_error(kvc_sglang_check_capacity(NULL, 1), KVC_E_INVALID_ARGUMENT, "null-argument",
	        NULL, -1);
	w.context.enable_chain_position_assert = NULL; /* a verify does not read it */
	expect_ok(launch_verify());
	w.wide[4][1] = 1, w.narrow[2] = 1;
	expect_error(launch_write(), KVC_E_INVALID_ARGUMENT, "null-argument", NULL, -1);
	w.verify_plan.enable = NULL;
	expect_error(launch_verify(), KVC_E_INVALID_ARGUMENT, "null-argument", NULL, -1);
	expect_error(
	        kvc_sglang_plan(&w.plan, NULL), KVC_E_INVALID_ARGUMENT, "null-argument", NULL, -1);
	w.write.struct_bytes = 1;
	expect_error(launch_write(), KVC_E_INVALID_ARGUMENT, "struct-bytes-unknown", NULL, -1);
}

/* Every tensor in turn without dimensions, with a shape that cannot be, without memory. */
static void tensors_that_cannot_be_are_refused(void **state)
{
	int64_t impossible[2] = { INT64_MAX, INT64_MAX };

	(void)state;
	for (kvc_tensor *tensor = &w.slots; tensor <= &w.out_cache_loc; tensor++) {
		kvc_tensor forms[3] = { *tensor, *tensor, *tensor };
		forms[0].ndim = 0;
		forms[1].ndim = 2, forms[1].shape = impossible;
		forms[2].data = NULL;
		for (int i = 0; i < 3; i++) {
			kvc_tensor kept = *tensor;
			w.narrow[0] = w.narrow[1] = w.narrow[2] = 1;
			w.wide[4][1] = w.wide[4][2] = 1;
			w.wide[0][0] = 5;
			*tensor = forms[i];
			int refused = (kvc_sglang_plan(&w.plan, NULL) != KVC_OK) +
			              (launch_verify() != KVC_OK) + (launch_write() != KVC_OK);
			assert_true(refused > 0);
			*tensor = kept;
		}
	}
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup(name, make_world)
	const struct CMUnitTest tests[] = {
		TEST(a_step_stamps_and_the_next_one_finds_damage),
		TEST(bytes_that_the_mode_leaves_out_do_not_count),
		TEST(rows_that_are_not_packed_are_read_on_the_host),
		TEST(strides_of_an_empty_source_may_be_anything),
		TEST(records_may_be_rows_of_a_wider_buffer),
		TEST(slots_outside_records_or_sources_are_skipped_and_counted),
		TEST(a_verify_of_nothing_does_not_look_at_records),
		TEST(a_write_of_nothing_does_not_look_at_expected_inputs),
		TEST(a_verify_on_cuda_asks_for_contiguous_tensors),
		TEST(a_write_on_cuda_asks_for_contiguous_tensors),
		TEST(a_launch_on_cuda_asks_for_flat_packed_sources),
		TEST(a_launch_on_cuda_names_itself_where_records_are_short),
		TEST(a_plan_on_cuda_is_checked_before_its_tensors_are_read),
		TEST(the_checks_of_a_plan_say_which_tensor),
		TEST(sound_calls_on_cuda_end_at_the_device),
		TEST(a_slot_outside_the_mapping_is_refused_in_sglangs_words),
		TEST(a_plan_on_the_host_cuts_what_does_not_fit),
		TEST(sources_are_checked_again_at_each_launch),
		TEST(rows_that_lie_across_each_other_are_refused),
		TEST(a_ring_has_eight_columns),
		TEST(a_scatter_prints_dtypes_as_torch_does),
		TEST(missing_arguments_are_named),
		TEST(tensors_that_cannot_be_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
