/*
 * launch_canary_verify_kernel and launch_canary_write_kernel of SGLang: their checks in their order,
 * then kvc_canary_verify() and kvc_canary_write() by SGLang's rules.
 *
 * On host tensors SGLang runs its reference, which returns early where there is nothing to do, so
 * that some faults of the arguments do not show then: the same here.
 */
#include "ops/arguments.h"
#include "ops/sglang.h"

/* A context as a group and a ring. */
struct canary_call {
	kvc_sglang_context context;
	kvc_source sources[KVC_SGLANG_SOURCES_MAX];
	kvc_group group;
	kvc_ring ring;
	int is_cuda;
};

static int64_t record_bytes_of(const kvc_tensor *canary_buf)
{
	return canary_buf->shape[1] * kvc__dtype_bytes(canary_buf->dtype);
}

/* ---- the context ---- */

static kvc_status take_context(struct canary_call *call, const kvc_sglang_context *given)
{
	kvc_sglang_context *context = &call->context;

	*context = (kvc_sglang_context)KVC_SGLANG_CONTEXT_INIT;
	KVC__TAKE(context, given, "context");
	const struct kvc__named tensors[] = {
		{ context->canary_buf, "canary_buf" },
		{ context->violation_ring, "violation_ring" },
		{ context->violation_write_index, "violation_write_index" },
		{ context->slot_run_counter, "slot_run_counter" },
		{ context->kernel_run_counter, "kernel_run_counter" },
	};
	KVC__TRY(kvc__sglang_check_all_present(tensors, 5));
	if (context->real_kv_source_count > KVC_SGLANG_SOURCES_MAX)
		return kvc__fail_sglang_sources_max(-1, context->real_kv_source_count);
	if (context->real_kv_source_count < 0)
		return kvc__fail_group_count_negative(
		        -1, "real_kv_sources", context->real_kv_source_count);
	if (context->real_kv_source_count > 0 && !context->real_kv_sources)
		return kvc__fail_null_argument(-1, "real_kv_sources");
	call->is_cuda = kvc__is_cuda(context->canary_buf->device);
	return KVC_OK;
}

/* The end of SGLang's contiguity checks on CUDA, and what it asks of the sources. */
static kvc_status check_context_launch(const struct canary_call *call, int is_write)
{
	const kvc_sglang_context *context = &call->context;
	const struct kvc__named tensors[] = {
		{ context->violation_ring, "violation_ring" },
		{ context->violation_write_index, "violation_write_index" },
		{ context->slot_run_counter, "slot_run_counter" },
		{ context->kernel_run_counter, "kernel_run_counter" },
		{ context->enable_chain_position_assert, "enable_chain_position_assert" },
	};

	KVC__TRY(kvc__sglang_check_contiguous(tensors, is_write ? 5 : 4));
	for (int64_t i = 0; i < context->real_kv_source_count; i++)
		KVC__TRY(kvc_sglang_source_check_launch(&context->real_kv_sources[i], i));
	return KVC_OK;
}

/* canary_buf as records. 'is_idle': nothing will be read or written, so too short ones pass. */
static kvc_status take_records(struct canary_call *call, const char *function, int is_idle)
{
	const kvc_tensor *records = call->context.canary_buf;

	if (records->ndim != 2)
		return kvc__fail_canary_tensor_must_be_2_d(-1, "canary_buf", records);
	KVC__TRY(kvc__check_placement(records, "canary_buf"));
	int64_t bytes = record_bytes_of(records);
	if (bytes < KVC_RECORD_BYTES && call->is_cuda)
		return kvc__fail_sglang_record_bytes(-1, function, bytes);
	if (bytes < KVC_RECORD_BYTES && !is_idle)
		return kvc__fail_sglang_record_words(-1, bytes / 8);
	if (!kvc__tensor_rows_contiguous(records))
		return kvc__fail_canary_tensor_must_be_contiguous(
		        -1, "canary_buf", kvc__tensor_stride(records, 1));
	if (bytes < KVC_RECORD_BYTES)
		return KVC_OK; /* no records */
	call->group.records = kvc__tensor_data(records);
	call->group.record_count = records->shape[0];
	call->group.record_stride_bytes = bytes;
	if (records->shape[0] > 1)
		call->group.record_stride_bytes =
		        kvc__tensor_stride(records, 0) * kvc__dtype_bytes(records->dtype);
	/* Records that run backwards or into each other are no records. */
	if (call->group.record_stride_bytes < bytes)
		return kvc__fail_group_record_stride(
		        -1, call->group.record_stride_bytes, call->group.record_count);
	return KVC_OK;
}

static kvc_status take_group(struct canary_call *call, const char *function, int is_idle)
{
	const kvc_sglang_context *context = &call->context;
	struct kvc__named tensors[KVC_SGLANG_SOURCES_MAX + 1] = { { context->canary_buf,
		"canary_buf" } };
	int64_t slot_limit;
	kvc_device device;

	call->group = (kvc_group)KVC_GROUP_INIT;
	KVC__TRY(take_records(call, function, is_idle));
	KVC__TRY(kvc__sglang_take_sources(
	        call->sources, &call->group.source_count, &slot_limit, context));
	if (slot_limit < call->group.record_count)
		call->group.record_count = slot_limit;
	for (int64_t i = 0; i < call->group.source_count; i++)
		tensors[i + 1] = (struct kvc__named){ context->real_kv_sources[i].tensor,
			"real_kv_sources" };
	KVC__TRY(kvc__check_same_device(&device, tensors, (size_t)call->group.source_count + 1));
	call->group.sources = call->sources;
	call->group.fingerprint = KVC_FINGERPRINT_SPLITMIX;
	if (context->real_kv_hash_mode < 0 || context->real_kv_hash_mode > KVC_COVERAGE_ALL)
		return kvc__fail_group_option_unknown(
		        -1, "real_kv_hash_mode", context->real_kv_hash_mode, KVC_COVERAGE_ALL);
	call->group.coverage = (int32_t)context->real_kv_hash_mode;
	call->group.device = context->canary_buf->device;
	return KVC_OK;
}

static kvc_status take_ring(struct canary_call *call)
{
	const kvc_sglang_context *context = &call->context;
	const kvc_tensor *rows = context->violation_ring;
	const struct kvc__named tensors[] = {
		{ context->canary_buf, "canary_buf" },
		{ rows, "violation_ring" },
		{ context->violation_write_index, "violation_write_index" },
		{ context->slot_run_counter, "slot_run_counter" },
		{ context->kernel_run_counter, "kernel_run_counter" },
	};
	kvc_device device;

	KVC__TRY(kvc__check_table(rows, "violation_ring", KVC_INT64));
	if (rows->shape[1] != 8 || !kvc__sglang_is_contiguous(rows))
		return kvc__fail_sglang_ring_rows(-1, rows);
	KVC__TRY(kvc__check_vector(tensors[2].tensor, tensors[2].name, KVC_INT32, 1));
	KVC__TRY(kvc__check_vector(tensors[3].tensor, tensors[3].name, KVC_INT64, 1));
	KVC__TRY(kvc__check_vector(tensors[4].tensor, tensors[4].name, KVC_INT64, 1));
	KVC__TRY(kvc__check_same_device(&device, tensors, 5));
	call->ring = (kvc_ring)KVC_RING_INIT;
	call->ring.rows = (void *)kvc__tensor_data(rows);
	call->ring.capacity = rows->shape[0];
	call->ring.columns = 8;
	call->ring.write_index = (void *)kvc__tensor_data(context->violation_write_index);
	call->ring.slot_run_counter = (void *)kvc__tensor_data(context->slot_run_counter);
	call->ring.kernel_run_counter = (void *)kvc__tensor_data(context->kernel_run_counter);
	call->ring.device = context->canary_buf->device;
	return KVC_OK;
}

/* ---- verify ---- */

enum { VERIFY_ARRAYS = 6 };

static void name_verify_arrays(
        struct kvc__named out[VERIFY_ARRAYS], const kvc_sglang_verify_plan *plan)
{
	out[0] = (struct kvc__named){ plan->verify_slot_indices, "plan.verify_slot_indices" };
	out[1] = (struct kvc__named){ plan->verify_expected_tokens, "plan.verify_expected_tokens" };
	out[2] = (struct kvc__named){ plan->verify_expected_positions,
		"plan.verify_expected_positions" };
	out[3] = (struct kvc__named){ plan->verify_prev_slot_indices,
		"plan.verify_prev_slot_indices" };
	out[4] = (struct kvc__named){ plan->verify_num_valid, "plan.verify_num_valid" };
	out[5] = (struct kvc__named){ plan->enable, "plan.enable" };
}

static kvc_status take_verify_plan(
        kvc_plan *out, const struct kvc__named arrays[VERIFY_ARRAYS], const kvc_tensor *records)
{
	struct kvc__named all[VERIFY_ARRAYS + 1] = { { records, "canary_buf" } };
	kvc_device device;

	KVC__TRY(kvc__check_vector(arrays[0].tensor, arrays[0].name, KVC_INT64, KVC__ANY_LENGTH));
	for (int i = 1; i < 4; i++)
		KVC__TRY(kvc__check_vector(
		        arrays[i].tensor, arrays[i].name, KVC_INT64, arrays[0].tensor->shape[0]));
	for (int i = 4; i < VERIFY_ARRAYS; i++)
		KVC__TRY(kvc__check_vector(arrays[i].tensor, arrays[i].name, KVC_INT32, 1));
	for (int i = 0; i < VERIFY_ARRAYS; i++)
		all[i + 1] = arrays[i];
	KVC__TRY(kvc__check_same_device(&device, all, VERIFY_ARRAYS + 1));
	*out = (kvc_plan){
		.struct_bytes = sizeof(*out),
		.device = records->device,
		.verify_capacity = arrays[0].tensor->shape[0],
		.verify_slot_indices = (void *)kvc__tensor_data(arrays[0].tensor),
		.verify_expected_tokens = (void *)kvc__tensor_data(arrays[1].tensor),
		.verify_expected_positions = (void *)kvc__tensor_data(arrays[2].tensor),
		.verify_prev_slot_indices = (void *)kvc__tensor_data(arrays[3].tensor),
		.verify_num_valid = (void *)kvc__tensor_data(arrays[4].tensor),
		.enable = (void *)kvc__tensor_data(arrays[5].tensor),
	};
	return KVC_OK;
}

/* Has this plan, on the host, no entry to look at but the dummy slot's? */
static int verify_is_idle(const kvc_plan *plan)
{
	int64_t count = *plan->verify_num_valid;

	if (*plan->enable == 0)
		return 1;
	if (count > plan->verify_capacity)
		count = plan->verify_capacity;
	for (int64_t i = 0; i < count; i++)
		if (plan->verify_slot_indices[i] != 0)
			return 0;
	return 1;
}

kvc_status kvc_sglang_verify(const kvc_sglang_verify_args *given, void *stream)
{
	kvc_sglang_verify_args taken = KVC_SGLANG_VERIFY_ARGS_INIT;
	kvc_sglang_verify_plan given_plan = KVC_SGLANG_VERIFY_PLAN_INIT;
	struct canary_call call = { 0 };
	struct kvc__named arrays[VERIFY_ARRAYS];
	kvc_verify_args args = KVC_VERIFY_ARGS_INIT;
	kvc_plan plan;

	KVC__TAKE(&taken, given, "args");
	KVC__TRY(take_context(&call, taken.context));
	KVC__TAKE(&given_plan, taken.plan, "plan");
	name_verify_arrays(arrays, &given_plan);
	KVC__TRY(kvc__sglang_check_all_present(arrays, VERIFY_ARRAYS));
	if (call.is_cuda) {
		const struct kvc__named records = { call.context.canary_buf, "canary_buf" };
		KVC__TRY(kvc__sglang_check_contiguous(&records, 1));
		KVC__TRY(kvc__sglang_check_contiguous(arrays, VERIFY_ARRAYS));
		KVC__TRY(check_context_launch(&call, 0));
	}
	KVC__TRY(take_verify_plan(&plan, arrays, call.context.canary_buf));
	KVC__TRY(take_group(&call, "canary_verify", !call.is_cuda && verify_is_idle(&plan)));
	KVC__TRY(take_ring(&call));
	args.group = &call.group;
	args.plan = &plan;
	args.check_tokens = taken.check_verify_expected_token != 0;
	args.launch_tag = call.context.kernel_kind;
	args.ring = &call.ring;
	args.rules = KVC_RULES_SGLANG;
	return kvc_canary_verify(&args, stream);
}

/* ---- write ---- */

struct write_call {
	kvc_sglang_write_args args;
	kvc_sglang_write_plan plan;
};

static kvc_status take_write_call(struct write_call *out, const kvc_sglang_write_args *given)
{
	KVC__TAKE(&out->plan, given->plan, "plan");
	const struct kvc__named tensors[] = {
		{ out->plan.write_offsets, "plan.write_offsets" },
		{ out->plan.write_seed_slot_indices, "plan.write_seed_slot_indices" },
		{ out->plan.write_num_valid_reqs, "plan.write_num_valid_reqs" },
		{ given->input_ids, "input_ids" },
		{ given->positions, "positions" },
		{ given->out_cache_loc, "out_cache_loc" },
	};
	const struct kvc__named expected[] = {
		{ given->expected_input_tokens, "expected_input_tokens" },
		{ given->expected_input_positions, "expected_input_positions" },
	};

	KVC__TRY(kvc__sglang_check_all_present(tensors, 6));
	for (int i = 0; i < 2; i++)
		if (expected[i].tensor)
			KVC__TRY(kvc__sglang_check_all_present(&expected[i], 1));
	out->args = *given;
	return KVC_OK;
}

static kvc_status check_expected_inputs(const kvc_sglang_write_args *args)
{
	int count = !!args->expected_input_tokens + !!args->expected_input_positions;

	if (args->enable_write_input_assert && count < 2)
		return kvc__fail_sglang_expected_inputs_missing(-1);
	if (!args->enable_write_input_assert && count > 0)
		return kvc__fail_sglang_expected_inputs_unwanted(-1);
	return KVC_OK;
}

static kvc_status check_write_launch(const struct canary_call *call, const struct write_call *write)
{
	const struct kvc__named tensors[] = {
		{ call->context.canary_buf, "canary_buf" },
		{ write->plan.write_offsets, "plan.write_offsets" },
		{ write->plan.write_seed_slot_indices, "plan.write_seed_slot_indices" },
		{ write->plan.write_num_valid_reqs, "plan.write_num_valid_reqs" },
		{ write->args.input_ids, "input_ids" },
		{ write->args.positions, "positions" },
		{ write->args.out_cache_loc, "out_cache_loc" },
	};
	const struct kvc__named expected[] = {
		{ write->args.expected_input_tokens, "expected_input_tokens" },
		{ write->args.expected_input_positions, "expected_input_positions" },
	};

	KVC__TRY(kvc__sglang_check_contiguous(tensors, 7));
	KVC__TRY(check_expected_inputs(&write->args));
	KVC__TRY(kvc__sglang_check_contiguous(expected, 2));
	return check_context_launch(call, 1);
}

static kvc_status take_write_plan(
        kvc_plan *out, const struct write_call *write, const struct canary_call *call)
{
	const kvc_tensor *offsets = write->plan.write_offsets;
	const kvc_tensor *seeds = write->plan.write_seed_slot_indices;
	const struct kvc__named tensors[] = {
		{ call->context.canary_buf, "canary_buf" },
		{ offsets, "plan.write_offsets" },
		{ seeds, "plan.write_seed_slot_indices" },
		{ write->plan.write_num_valid_reqs, "plan.write_num_valid_reqs" },
		{ call->context.enable_chain_position_assert, "enable_chain_position_assert" },
	};
	kvc_device device;

	KVC__TRY(kvc__check_vector(offsets, tensors[1].name, KVC_INT64, KVC__ANY_LENGTH));
	KVC__TRY(kvc__check_vector(seeds, tensors[2].name, KVC_INT64, KVC__ANY_LENGTH));
	if (offsets->shape[0] != seeds->shape[0] + 1)
		return kvc__fail_sglang_write_offsets_size(
		        -1, seeds->shape[0] + 1, offsets->shape[0]);
	KVC__TRY(kvc__check_vector(tensors[3].tensor, tensors[3].name, KVC_INT32, 1));
	KVC__TRY(kvc__check_vector(tensors[4].tensor, tensors[4].name, KVC_INT32, 1));
	KVC__TRY(kvc__check_same_device(&device, tensors, 5));
	*out = (kvc_plan){
		.struct_bytes = sizeof(*out),
		.device = call->context.canary_buf->device,
		.write_req_capacity = seeds->shape[0],
		.write_offsets = (void *)kvc__tensor_data(offsets),
		.write_seed_slot_indices = (void *)kvc__tensor_data(seeds),
		.write_num_valid_reqs = (void *)kvc__tensor_data(write->plan.write_num_valid_reqs),
	};
	return KVC_OK;
}

/* Does SGLang's reference return before it looks at tokens? Then also *no_requests replaces the
 * count, since single requests of such a plan could still have entries. */
static int write_is_idle(kvc_plan *plan, int32_t *no_requests)
{
	int64_t count = *plan->write_num_valid_reqs;

	if (count > plan->write_req_capacity)
		count = plan->write_req_capacity;
	if (count > 0 && plan->write_offsets[count] > 0)
		return 0;
	plan->write_num_valid_reqs = no_requests;
	return 1;
}

kvc_status kvc_sglang_write(const kvc_sglang_write_args *given, void *stream)
{
	kvc_sglang_write_args taken = KVC_SGLANG_WRITE_ARGS_INIT;
	struct write_call write = { .plan = KVC_SGLANG_WRITE_PLAN_INIT };
	struct canary_call call = { 0 };
	kvc_write_args args = KVC_WRITE_ARGS_INIT;
	kvc_plan plan;
	int32_t no_requests = 0;
	int is_idle = 0;

	KVC__TAKE(&taken, given, "args");
	KVC__TRY(take_context(&call, taken.context));
	KVC__TRY(take_write_call(&write, &taken));
	if (call.is_cuda)
		KVC__TRY(check_write_launch(&call, &write));
	KVC__TRY(take_write_plan(&plan, &write, &call));
	if (!call.is_cuda)
		is_idle = write_is_idle(&plan, &no_requests);
	KVC__TRY(take_group(&call, "canary_write", is_idle));
	KVC__TRY(take_ring(&call));
	if (!is_idle) {
		KVC__TRY(check_expected_inputs(&taken));
		args.expected_tokens = taken.expected_input_tokens;
		args.expected_positions = taken.expected_input_positions;
	}
	args.group = &call.group;
	args.plan = &plan;
	args.tokens = taken.input_ids;
	args.positions = taken.positions;
	args.slots = taken.out_cache_loc;
	args.check_steps = (void *)kvc__tensor_data(call.context.enable_chain_position_assert);
	args.launch_tag = call.context.kernel_kind;
	args.ring = &call.ring;
	args.rules = KVC_RULES_SGLANG;
	return kvc_canary_write(&args, stream);
}
