/* errors.jsonl: what SGLang refuses, in which order and in which words, through SGLang's interface in
 * C; and that the refusals belong to the same Python classes. */
#include "expect.h"
#include "sglang_vectors.h"

#define DIMS_MAX 4

/* A tensor of a case: shape, strides and zeroed memory live until the next one. */
static kvc_tensor zeros(struct vectors *v, kvc_dtype dtype, int32_t ndim, const int64_t *shape,
        const int64_t *strides)
{
	int64_t *own_shape = vectors_block(v, DIMS_MAX, sizeof(int64_t));
	int64_t *own_strides = vectors_block(v, DIMS_MAX, sizeof(int64_t));
	int64_t reach = 1;

	for (int32_t d = 0; d < ndim; d++) {
		own_shape[d] = shape[d];
		own_strides[d] = strides ? strides[d] : 0;
		reach += (strides ? strides[d] : 1) * (shape[d] > 0 ? shape[d] : 1);
		if (!strides)
			reach *= shape[d] > 0 ? shape[d] : 1;
	}
	void *data = vectors_block(v, (size_t)reach, dtype.bits / 8u);
	kvc_tensor tensor = kvc_tensor_make(data, dtype, ndim, own_shape);
	if (strides)
		tensor.strides = own_strides;
	return tensor;
}

static kvc_tensor vector(struct vectors *v, kvc_dtype dtype, int64_t length)
{
	return zeros(v, dtype, 1, &length, NULL);
}

static kvc_dtype dtype_named(const char *name)
{
	const struct {
		const char *name;
		kvc_dtype dtype;
	} all[] = { { "uint8", KVC_UINT8 }, { "int32", KVC_INT32 }, { "int64", KVC_INT64 },
		{ "float16", KVC_FLOAT16 }, { "float32", KVC_FLOAT32 } };

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (strcmp(all[i].name, name) == 0)
			return all[i].dtype;
	fail_msg("no dtype %s", name);
	return KVC_UINT8;
}

/* "shape", "dtype" and, where there are any, "strides" of a JSON object. */
static kvc_tensor described(struct vectors *v, const json_t *item)
{
	int64_t ndim;
	const int64_t *shape = vectors_int64s(v, vectors_field(item, "shape"), &ndim);
	const json_t *strides = json_object_get(item, "strides");

	return zeros(v, dtype_named(vectors_text(item, "dtype")), (int32_t)ndim, shape,
	        strides && !json_is_null(strides) ? vectors_int64s(v, strides, NULL) : NULL);
}

static kvc_status make_source(struct vectors *v, const json_t *in)
{
	kvc_tensor tensor = described(v, in);
	kvc_sglang_source source = { &tensor, vectors_int(in, "page_size"),
		vectors_int(in, "num_bytes_per_token"), vectors_int(in, "read_bytes") };

	return kvc_sglang_source_check(&source);
}

static kvc_status launch_source(struct vectors *v, const json_t *in)
{
	kvc_tensor tensor = described(v, in);
	kvc_sglang_source source = { &tensor, 1, 16, 16 };

	return kvc_sglang_source_check_launch(&source, 0);
}

static kvc_status scatter(struct vectors *v, const json_t *in)
{
	kvc_tensor flat_in = described(v, vectors_field(in, "flat_in"));
	kvc_tensor offsets = described(v, vectors_field(in, "offsets"));
	kvc_tensor rows = described(v, vectors_field(in, "req_pool_indices"));
	kvc_tensor pool_out = described(v, vectors_field(in, "pool_out"));

	return kvc_sglang_scatter(&flat_in, &offsets, &rows, &pool_out, NULL);
}

/* ---- plans ---- */

struct plans {
	kvc_tensor slots, tokens, positions, prevs, num_valid, enable, offsets, seeds, num_reqs;
	kvc_sglang_verify_plan verify;
	kvc_sglang_write_plan write;
};

static void make_plans(struct vectors *v, struct plans *out, int64_t capacity, int64_t offset_count,
        int64_t requests)
{
	out->slots = vector(v, KVC_INT64, capacity);
	out->tokens = vector(v, KVC_INT64, capacity);
	out->positions = vector(v, KVC_INT64, capacity);
	out->prevs = vector(v, KVC_INT64, capacity);
	out->num_valid = vector(v, KVC_INT32, 1);
	out->enable = vector(v, KVC_INT32, 1);
	out->offsets = vector(v, KVC_INT64, offset_count);
	out->seeds = vector(v, KVC_INT64, requests);
	out->num_reqs = vector(v, KVC_INT32, 1);
	out->verify = (kvc_sglang_verify_plan){ sizeof(out->verify), &out->slots, &out->tokens,
		&out->positions, &out->prevs, &out->num_valid, &out->enable };
	out->write = (kvc_sglang_write_plan){ sizeof(out->write), &out->offsets, &out->seeds,
		&out->num_reqs };
}

static void fill(kvc_tensor *tensor, int64_t value)
{
	for (int64_t i = 0; i < tensor->shape[0]; i++)
		((int64_t *)tensor->data)[i] = value;
}

static kvc_tensor counting(struct vectors *v, int64_t length)
{
	kvc_tensor out = vector(v, KVC_INT64, length);

	for (int64_t i = 0; i < length; i++)
		((int64_t *)out.data)[i] = i;
	return out;
}

static kvc_status plan(struct vectors *v, const json_t *in)
{
	struct plans plans;
	kvc_sglang_plan_args args = KVC_SGLANG_PLAN_ARGS_INIT;
	int64_t bs = vectors_int(in, "bs"), columns;
	const int64_t *slots = vectors_int64s(v, vectors_field(in, "slots"), &columns);
	kvc_tensor rows = vector(v, KVC_INT64, bs), prefixes = vector(v, KVC_INT64, bs);
	kvc_tensor extends = vector(v, KVC_INT64, bs), mapping;
	kvc_tensor table = zeros(v, KVC_INT32, 2, (const int64_t[]){ 2, columns }, NULL);
	kvc_tensor tokens = zeros(v, KVC_INT32, 2, (const int64_t[]){ 2, 8 }, NULL);
	kvc_tensor valid_lens = vector(v, KVC_INT64, bs);

	make_plans(v, &plans, vectors_int(in, "allocated_verify_capacity"),
	        vectors_int(in, "write_req_capacity") + 1, vectors_int(in, "write_req_capacity"));
	fill(&rows, 1);
	fill(&prefixes, vectors_int(in, "prefix"));
	fill(&extends, 1);
	fill(&valid_lens, 2);
	for (int64_t i = 0; i < columns; i++)
		((int32_t *)table.data)[columns + i] = (int32_t)slots[i];
	args.verify_plan_out = &plans.verify;
	args.write_plan_out = &plans.write;
	args.req_pool_indices = &rows;
	args.prefix_lens = &prefixes;
	args.extend_seq_lens = &extends;
	args.req_to_token = &table;
	args.swa_window_size = vectors_int(in, "swa_window_size");
	args.verify_capacity = vectors_int(in, "verify_capacity");
	if (!vectors_is_null(in, "mapping_len")) {
		mapping = counting(v, vectors_int(in, "mapping_len"));
		args.full_to_swa_index_mapping = &mapping;
	}
	if (vectors_bool(in, "expected_tokens"))
		args.req_to_verify_expected_tokens = &tokens;
	if (vectors_bool(in, "valid_lens"))
		args.req_to_verify_expected_tokens_valid_lens = &valid_lens;
	return kvc_sglang_plan(&args, NULL);
}

/* Give one tensor, if it has this name, the form that the case wants. */
static void change(struct vectors *v, const json_t *in, kvc_tensor *tensor, const char *name)
{
	if (!vectors_is_null(in, "non_contiguous") &&
	        strcmp(vectors_text(in, "non_contiguous"), name) == 0) {
		int64_t strides[2] = { 2 * (tensor->ndim == 2 ? tensor->shape[1] : 1), 2 };
		*tensor = zeros(v, tensor->dtype, tensor->ndim, tensor->shape, strides);
	}
	if (!vectors_is_null(in, "dtype_of") && strcmp(vectors_text(in, "dtype_of"), name) == 0)
		tensor->dtype = dtype_named(vectors_text(in, "dtype"));
	if (!vectors_is_null(in, "shape_of") && strcmp(vectors_text(in, "shape_of"), name) == 0) {
		int64_t ndim;
		int64_t *shape = vectors_int64s(v, vectors_field(in, "shape"), &ndim);
		*tensor = zeros(v, tensor->dtype, (int32_t)ndim, shape, NULL);
	}
}

static kvc_status check_plan(struct vectors *v, const json_t *in)
{
	struct plans plans;
	kvc_sglang_plan_args args = KVC_SGLANG_PLAN_ARGS_INIT;
	int64_t bs = vectors_int(in, "bs");
	const int64_t *table_shape = vectors_int64s(v, vectors_field(in, "table_shape"), NULL);
	kvc_tensor rows = vector(v, KVC_INT64, bs), prefixes = vector(v, KVC_INT64, bs);
	kvc_tensor extends = vector(v, KVC_INT64, bs), mapping;
	kvc_tensor table = zeros(v, KVC_INT32, 2, table_shape, NULL);
	kvc_tensor scratch = vector(v, KVC_INT64, vectors_int(in, "scratch_len"));

	make_plans(
	        v, &plans, 4, vectors_int(in, "write_offsets_len"), vectors_int(in, "seeds_len"));
	if (!vectors_is_null(in, "mapping_len")) {
		mapping = vector(v, KVC_INT64, vectors_int(in, "mapping_len"));
		change(v, in, &mapping, "lut_tensor");
		args.full_to_swa_index_mapping = &mapping;
	}
	change(v, in, &rows, "req_pool_indices");
	change(v, in, &prefixes, "prefix_lens");
	change(v, in, &extends, "extend_seq_lens");
	change(v, in, &table, "req_to_token");
	change(v, in, &scratch, "out_verify_offsets_scratch");
	change(v, in, &plans.offsets, "out_write_offsets");
	change(v, in, &plans.seeds, "out_write_seed_slot_indices");
	change(v, in, &plans.num_valid, "out_verify_num_valid");
	change(v, in, &plans.enable, "out_verify_enable");
	change(v, in, &plans.num_reqs, "out_write_num_valid_reqs");
	args.verify_plan_out = &plans.verify;
	args.write_plan_out = &plans.write;
	args.req_pool_indices = &rows;
	args.prefix_lens = &prefixes;
	args.extend_seq_lens = &extends;
	args.req_to_token = &table;
	args.verify_capacity = vectors_int(in, "verify_capacity");
	return kvc_sglang_plan_check(&args, &scratch);
}

/* ---- verify and write ---- */

struct canary {
	kvc_tensor records, ring, write_index, slot_runs, kernel_runs, check_steps, strip;
	kvc_sglang_source sources[8];
	kvc_sglang_context context;
};

static void make_canary(struct vectors *v, struct canary *out, const json_t *in)
{
	int64_t stride = vectors_int(in, "slot_stride");

	out->records = zeros(v, KVC_UINT8, 2, (const int64_t[]){ 4, stride }, NULL);
	out->ring = zeros(v, KVC_INT64, 2, (const int64_t[]){ 4, 8 }, NULL);
	out->write_index = vector(v, KVC_INT32, 1);
	out->slot_runs = vector(v, KVC_INT64, 1);
	out->kernel_runs = vector(v, KVC_INT64, 1);
	out->check_steps = vector(v, KVC_INT32, 1);
	out->strip = zeros(v, KVC_UINT8, 2, (const int64_t[]){ 4, 16 }, NULL);
	for (int i = 0; i < 8; i++)
		out->sources[i] = (kvc_sglang_source){ &out->strip, 1, 16, 16 };
	out->context = (kvc_sglang_context)KVC_SGLANG_CONTEXT_INIT;
	out->context.canary_buf = &out->records;
	out->context.violation_ring = &out->ring;
	out->context.violation_write_index = &out->write_index;
	out->context.slot_run_counter = &out->slot_runs;
	out->context.kernel_run_counter = &out->kernel_runs;
	out->context.enable_chain_position_assert = &out->check_steps;
	out->context.real_kv_sources = out->sources;
	out->context.real_kv_source_count = vectors_int(in, "sources");
	out->context.real_kv_hash_mode = KVC_COVERAGE_ALL;
}

static kvc_status write(struct vectors *v, const json_t *in)
{
	struct canary canary;
	struct plans plans;
	kvc_sglang_write_args args = KVC_SGLANG_WRITE_ARGS_INIT;
	kvc_tensor tokens = vector(v, KVC_INT64, 1), positions = vector(v, KVC_INT64, 1);
	kvc_tensor slots = vector(v, KVC_INT64, 1), expected = vector(v, KVC_INT64, 1);

	make_canary(v, &canary, in);
	make_plans(v, &plans, 1, 2, 1);
	((int64_t *)plans.offsets.data)[1] = 1;
	fill(&plans.seeds, -1);
	*(int32_t *)plans.num_reqs.data = (int32_t)vectors_int(in, "requests");
	fill(&slots, 1);
	args.context = &canary.context;
	args.plan = &plans.write;
	args.input_ids = &tokens;
	args.positions = &positions;
	args.out_cache_loc = &slots;
	args.enable_write_input_assert = vectors_bool(in, "enable_write_input_assert");
	if (vectors_bool(in, "expected_input_tokens"))
		args.expected_input_tokens = &expected;
	if (vectors_bool(in, "expected_input_positions"))
		args.expected_input_positions = &expected;
	return kvc_sglang_write(&args, NULL);
}

static kvc_status verify(struct vectors *v, const json_t *in)
{
	struct canary canary;
	struct plans plans;
	kvc_sglang_verify_args args = KVC_SGLANG_VERIFY_ARGS_INIT;

	make_canary(v, &canary, in);
	make_plans(v, &plans, 1, 2, 1);
	fill(&plans.slots, 1);
	*(int32_t *)plans.num_valid.data = *(int32_t *)plans.enable.data = 1;
	args.context = &canary.context;
	args.plan = &plans.verify;
	return kvc_sglang_verify(&args, NULL);
}

/* ---- all ---- */

static kvc_status run_call(struct vectors *v)
{
	const json_t *in = vectors_field(v->item, "inputs");
	const struct {
		const char *call;
		kvc_status (*run)(struct vectors *v, const json_t *in);
	} calls[] = {
		{ "RealKvSource", make_source },
		{ "real_kv_source_abi", launch_source },
		{ "scatter_req_token_ids", scatter },
		{ "launch_canary_plan_kernels", plan },
		{ "launch_plan_offsets_kernel", check_plan },
		{ "launch_canary_write_kernel", write },
		{ "launch_canary_verify_kernel", verify },
	};
	const char *call = vectors_text(v->item, "call");

	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
		if (strcmp(calls[i].call, call) == 0)
			return calls[i].run(v, in);
	if (strcmp(call, "VerifyPlan.allocate") == 0)
		return kvc_sglang_check_capacity(
		        "VerifyPlan verify_capacity", vectors_int(in, "verify_capacity"));
	assert_string_equal(call, "WritePlan.allocate");
	return kvc_sglang_check_capacity(
	        "WritePlan write_req_capacity", vectors_int(in, "write_req_capacity"));
}

static int refused_alike(struct vectors *v)
{
	kvc_status status = run_call(v);
	const char *message = status == KVC_OK ? "" : kvc_last_error()->message;
	int is_null = vectors_is_null(v->item, "error");
	const char *want = is_null ? "" : vectors_text(v->item, "message");

	if (strcmp(message, want) != 0) {
		fprintf(stderr, "  wanted: %s\n  got:    %s\n", want, message);
		return 0;
	}
	if (is_null)
		return status == KVC_OK;
	const kvc_catalog_entry *entry = kvc_catalog_find(kvc_last_error()->slug);
	return entry && strcmp(entry->error_class, vectors_text(v->item, "error")) == 0;
}

static void every_refusal_is_sglangs(void **state)
{
	struct vectors v;

	(void)state;
	vectors_open(&v, "errors.jsonl");
	while (vectors_next(&v))
		vectors_passed(&v, refused_alike(&v));
	assert_true(vectors_close(&v));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_refusal_is_sglangs),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
