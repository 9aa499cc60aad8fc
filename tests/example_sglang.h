/*
 * The examples' canary once more through SGLang's interface: the same records, one source over the
 * K pool, plans of 16 entries and 4 requests, and the arguments of each launcher over them.
 */
#ifndef EXAMPLE_SGLANG_H
#define EXAMPLE_SGLANG_H

static int64_t sg_wide_data[5][17], sg_ring_data[8][8], sg_counts_data[2];
static int32_t sg_narrow_data[5];
static int64_t sg_strip_shape[2], sg_records_shape[2], sg_ring_shape[2];
static int64_t sg_capacity_shape[1], sg_offsets_shape[1], sg_seeds_shape[1], sg_one_shape[1];

/* ---- in scope ---- */

static kvc_tensor strip, canary_buf, violation_ring, write_index, slot_runs, kernel_runs;
static kvc_tensor position_assert, entry_slots, entry_tokens, entry_positions, entry_prevs;
static kvc_tensor entry_count, enable, write_offsets, seeds, request_count;
static kvc_sglang_source source;
static kvc_sglang_context context;
static kvc_sglang_verify_plan sg_verify_plan;
static kvc_sglang_write_plan sg_write_plan;
static kvc_sglang_plan_args sg_plan_args;
static kvc_sglang_verify_args sg_verify_args;
static kvc_sglang_write_args sg_write_args;

static inline void reset_sglang_context(void)
{
	memcpy(sg_strip_shape, (int64_t[]){ SLOTS, DIM }, sizeof(sg_strip_shape));
	memcpy(sg_records_shape, (int64_t[]){ SLOTS, KVC_RECORD_BYTES }, sizeof(sg_records_shape));
	memcpy(sg_ring_shape, (int64_t[]){ 8, 8 }, sizeof(sg_ring_shape));
	sg_one_shape[0] = 1;
	memset(sg_ring_data, 0, sizeof(sg_ring_data));
	memset(sg_counts_data, 0, sizeof(sg_counts_data));
	memset(sg_narrow_data, 0, sizeof(sg_narrow_data));
	strip = kvc_tensor_make(k_pool_data, KVC_BFLOAT16, 2, sg_strip_shape);
	canary_buf = kvc_tensor_make(records_data, KVC_UINT8, 2, sg_records_shape);
	violation_ring = kvc_tensor_make(sg_ring_data, KVC_INT64, 2, sg_ring_shape);
	slot_runs = kvc_tensor_make(&sg_counts_data[0], KVC_INT64, 1, sg_one_shape);
	kernel_runs = kvc_tensor_make(&sg_counts_data[1], KVC_INT64, 1, sg_one_shape);
	write_index = kvc_tensor_make(&sg_narrow_data[0], KVC_INT32, 1, sg_one_shape);
	position_assert = kvc_tensor_make(&sg_narrow_data[1], KVC_INT32, 1, sg_one_shape);
	source = (kvc_sglang_source){ &strip, 1, DIM * 2, DIM * 2 };
	context = (kvc_sglang_context)KVC_SGLANG_CONTEXT_INIT;
	context.canary_buf = &canary_buf, context.violation_ring = &violation_ring;
	context.violation_write_index = &write_index, context.slot_run_counter = &slot_runs;
	context.kernel_run_counter = &kernel_runs;
	context.enable_chain_position_assert = &position_assert;
	context.real_kv_sources = &source, context.real_kv_source_count = 1;
	context.real_kv_hash_mode = KVC_COVERAGE_ALL;
}

static inline void reset_sglang_plans(void)
{
	sg_capacity_shape[0] = 16, sg_offsets_shape[0] = 5, sg_seeds_shape[0] = 4;
	memset(sg_wide_data, 0, sizeof(sg_wide_data));
	entry_slots = kvc_tensor_make(sg_wide_data[0], KVC_INT64, 1, sg_capacity_shape);
	entry_tokens = kvc_tensor_make(sg_wide_data[1], KVC_INT64, 1, sg_capacity_shape);
	entry_positions = kvc_tensor_make(sg_wide_data[2], KVC_INT64, 1, sg_capacity_shape);
	entry_prevs = kvc_tensor_make(sg_wide_data[3], KVC_INT64, 1, sg_capacity_shape);
	write_offsets = kvc_tensor_make(sg_wide_data[4], KVC_INT64, 1, sg_offsets_shape);
	seeds = kvc_tensor_make(sg_wide_data[4] + 5, KVC_INT64, 1, sg_seeds_shape);
	entry_count = kvc_tensor_make(&sg_narrow_data[2], KVC_INT32, 1, sg_one_shape);
	enable = kvc_tensor_make(&sg_narrow_data[3], KVC_INT32, 1, sg_one_shape);
	request_count = kvc_tensor_make(&sg_narrow_data[4], KVC_INT32, 1, sg_one_shape);
	sg_verify_plan = (kvc_sglang_verify_plan){ sizeof(sg_verify_plan), &entry_slots,
		&entry_tokens, &entry_positions, &entry_prevs, &entry_count, &enable };
	sg_write_plan = (kvc_sglang_write_plan){ sizeof(sg_write_plan), &write_offsets, &seeds,
		&request_count };
}

static inline void reset_sglang(void)
{
	reset_sglang_context();
	reset_sglang_plans();
	sg_plan_args = (kvc_sglang_plan_args)KVC_SGLANG_PLAN_ARGS_INIT;
	sg_plan_args.verify_plan_out = &sg_verify_plan;
	sg_plan_args.write_plan_out = &sg_write_plan;
	sg_plan_args.req_pool_indices = &req_pool_indices;
	sg_plan_args.prefix_lens = &prefix_lens;
	sg_plan_args.extend_seq_lens = &extend_seq_lens;
	sg_plan_args.req_to_token = &req_to_token;
	sg_plan_args.verify_capacity = 16;
	sg_verify_args = (kvc_sglang_verify_args)KVC_SGLANG_VERIFY_ARGS_INIT;
	sg_verify_args.context = &context, sg_verify_args.plan = &sg_verify_plan;
	sg_write_args = (kvc_sglang_write_args)KVC_SGLANG_WRITE_ARGS_INIT;
	sg_write_args.context = &context, sg_write_args.plan = &sg_write_plan;
	sg_write_args.input_ids = &tokens, sg_write_args.positions = &positions;
	sg_write_args.out_cache_loc = &slots;
}

/* The step that writes the request's four tokens, and the next one, which reads them. */
static inline kvc_status sg_stamp(void)
{
	kvc_status status = kvc_sglang_plan(&sg_plan_args, NULL);

	return status != KVC_OK ? status : kvc_sglang_write(&sg_write_args, NULL);
}

static inline kvc_status sg_check(void)
{
	kvc_status status;

	prefix_lens_data[0] = TOKENS, extend_seq_lens_data[0] = 0;
	status = kvc_sglang_plan(&sg_plan_args, NULL);
	return status != KVC_OK ? status : kvc_sglang_verify(&sg_verify_args, NULL);
}

#endif
