/*
 * launch_canary_plan_kernels and launch_scatter_req_token_ids_kernel of SGLang: their checks in
 * their order, then kvc_canary_plan() and kvc_scatter_req_token_ids() by SGLang's rules.
 */
#include <stdio.h>

#include "ops/arguments.h"
#include "ops/sglang.h"

/* The arguments, copied from the caller's structs; every tensor but the optional ones is there. */
struct plan_call {
	kvc_sglang_plan_args args;
	kvc_sglang_verify_plan verify;
	kvc_sglang_write_plan write;
	const kvc_tensor *scratch; /* of kvc_sglang_plan_check(), else NULL */
};

static kvc_status check_call_present(const struct plan_call *call)
{
	const kvc_sglang_plan_args *args = &call->args;
	const struct kvc__named required[] = {
		{ call->verify.verify_slot_indices, "verify_plan_out.verify_slot_indices" },
		{ call->verify.verify_expected_tokens, "verify_plan_out.verify_expected_tokens" },
		{ call->verify.verify_expected_positions,
		        "verify_plan_out.verify_expected_positions" },
		{ call->verify.verify_prev_slot_indices,
		        "verify_plan_out.verify_prev_slot_indices" },
		{ call->verify.verify_num_valid, "verify_plan_out.verify_num_valid" },
		{ call->verify.enable, "verify_plan_out.enable" },
		{ call->write.write_offsets, "write_plan_out.write_offsets" },
		{ call->write.write_seed_slot_indices, "write_plan_out.write_seed_slot_indices" },
		{ call->write.write_num_valid_reqs, "write_plan_out.write_num_valid_reqs" },
		{ args->req_pool_indices, "req_pool_indices" },
		{ args->prefix_lens, "prefix_lens" },
		{ args->extend_seq_lens, "extend_seq_lens" },
		{ args->req_to_token, "req_to_token" },
	};
	const struct kvc__named optional[] = {
		{ args->full_to_swa_index_mapping, "full_to_swa_index_mapping" },
		{ args->req_to_verify_expected_tokens, "req_to_verify_expected_tokens" },
		{ args->req_to_verify_expected_tokens_valid_lens,
		        "req_to_verify_expected_tokens_valid_lens" },
		{ call->scratch, "out_verify_offsets_scratch" },
	};

	KVC__TRY(kvc__sglang_check_all_present(required, sizeof(required) / sizeof(required[0])));
	for (size_t i = 0; i < sizeof(optional) / sizeof(optional[0]); i++)
		if (optional[i].tensor)
			KVC__TRY(kvc__sglang_check_all_present(&optional[i], 1));
	return KVC_OK;
}

static kvc_status take_call(struct plan_call *out, const kvc_sglang_plan_args *args)
{
	out->args = (kvc_sglang_plan_args)KVC_SGLANG_PLAN_ARGS_INIT;
	out->verify = (kvc_sglang_verify_plan)KVC_SGLANG_VERIFY_PLAN_INIT;
	out->write = (kvc_sglang_write_plan)KVC_SGLANG_WRITE_PLAN_INIT;
	KVC__TAKE(&out->args, args, "args");
	KVC__TAKE(&out->verify, out->args.verify_plan_out, "verify_plan_out");
	KVC__TAKE(&out->write, out->args.write_plan_out, "write_plan_out");
	return check_call_present(out);
}

static int64_t length_of(const kvc_tensor *tensor)
{
	return tensor->ndim > 0 ? tensor->shape[0] : 0;
}

/* ---- what SGLang's offsets kernel is asked before its launch ---- */

/* Its tensors under the names that its texts have. */
enum {
	ROWS,
	PREFIX_LENS,
	EXTEND_LENS,
	TABLE,
	MAPPING,
	SCRATCH,
	OFFSETS,
	SEEDS,
	NUM_VALID,
	ENABLE,
	NUM_VALID_REQS,
	KERNEL_TENSORS
};

static void name_kernel_tensors(struct kvc__named out[KERNEL_TENSORS], const struct plan_call *call)
{
	const kvc_sglang_plan_args *args = &call->args;

	out[ROWS] = (struct kvc__named){ args->req_pool_indices, "req_pool_indices" };
	out[PREFIX_LENS] = (struct kvc__named){ args->prefix_lens, "prefix_lens" };
	out[EXTEND_LENS] = (struct kvc__named){ args->extend_seq_lens, "extend_seq_lens" };
	out[TABLE] = (struct kvc__named){ args->req_to_token, "req_to_token" };
	out[MAPPING] = (struct kvc__named){ args->full_to_swa_index_mapping, "lut_tensor" };
	out[SCRATCH] = (struct kvc__named){ call->scratch, "out_verify_offsets_scratch" };
	out[OFFSETS] = (struct kvc__named){ call->write.write_offsets, "out_write_offsets" };
	out[SEEDS] = (struct kvc__named){ call->write.write_seed_slot_indices,
		"out_write_seed_slot_indices" };
	out[NUM_VALID] =
	        (struct kvc__named){ call->verify.verify_num_valid, "out_verify_num_valid" };
	out[ENABLE] = (struct kvc__named){ call->verify.enable, "out_verify_enable" };
	out[NUM_VALID_REQS] =
	        (struct kvc__named){ call->write.write_num_valid_reqs, "out_write_num_valid_reqs" };
}

static kvc_status check_kernel_types(const struct kvc__named tensors[KERNEL_TENSORS])
{
	for (int i = 0; i < KERNEL_TENSORS; i++) {
		int narrow = i == TABLE || i >= NUM_VALID;
		kvc_dtype wanted = narrow ? KVC_INT32 : KVC_INT64;
		if (tensors[i].tensor && !kvc__dtype_equal(tensors[i].tensor->dtype, wanted))
			return kvc__fail_sglang_tensor_dtype(
			        -1, tensors[i].name, wanted, tensors[i].tensor->dtype);
	}
	return KVC_OK;
}

static kvc_status check_kernel_numbers(
        const struct plan_call *call, const struct kvc__named tensors[KERNEL_TENSORS])
{
	int64_t bs = length_of(tensors[ROWS].tensor);
	const kvc_tensor *table = tensors[TABLE].tensor;

	if (bs > KVC_SGLANG_PLAN_REQUESTS_MAX)
		return kvc__fail_sglang_offsets_batch_range(-1, bs);
	if (length_of(tensors[OFFSETS].tensor) <= 0)
		return kvc__fail_sglang_number_must_be_positive(-1, "write_offsets_len", 0);
	if (call->args.verify_capacity < 0)
		return kvc__fail_sglang_number_must_not_be_negative(
		        -1, "verify_capacity", call->args.verify_capacity);
	/* A table without columns has stride 0 by its shape; torch, and so SGLang, calls it 1. */
	if (table->ndim > 0 && table->strides && table->strides[0] <= 0)
		return kvc__fail_sglang_number_must_be_positive(
		        -1, "req_to_token_stride0", table->strides[0]);
	if (tensors[MAPPING].tensor && length_of(tensors[MAPPING].tensor) == 0)
		return kvc__fail_sglang_mapping_empty(-1);
	return KVC_OK;
}

static kvc_status check_1_d(const struct kvc__named *named)
{
	if (named->tensor->ndim != 1)
		return kvc__fail_canary_tensor_must_be_1_d(-1, named->name, named->tensor);
	return KVC_OK;
}

static kvc_status check_length(const struct kvc__named *named, int64_t length)
{
	KVC__TRY(check_1_d(named));
	if (named->tensor->shape[0] != length)
		return kvc__fail_canary_tensor_length(
		        -1, named->name, length, named->tensor->shape[0]);
	return KVC_OK;
}

static kvc_status check_kernel_shapes(const struct kvc__named tensors[KERNEL_TENSORS])
{
	int64_t bs = length_of(tensors[ROWS].tensor);
	int64_t offset_count = length_of(tensors[OFFSETS].tensor);
	int64_t capacity = length_of(tensors[SEEDS].tensor);
	int64_t scratch_min = KVC_SGLANG_PLAN_REQUESTS_MAX + 1;

	KVC__TRY(check_1_d(&tensors[ROWS]));
	KVC__TRY(check_length(&tensors[PREFIX_LENS], bs));
	KVC__TRY(check_length(&tensors[EXTEND_LENS], bs));
	if (tensors[TABLE].tensor->ndim != 2)
		return kvc__fail_canary_tensor_must_be_2_d(
		        -1, tensors[TABLE].name, tensors[TABLE].tensor);
	if (tensors[MAPPING].tensor)
		KVC__TRY(check_1_d(&tensors[MAPPING]));
	if (tensors[SCRATCH].tensor) {
		KVC__TRY(check_1_d(&tensors[SCRATCH]));
		if (tensors[SCRATCH].tensor->shape[0] < scratch_min)
			return kvc__fail_sglang_tensor_min_length(-1, tensors[SCRATCH].name,
			        scratch_min, tensors[SCRATCH].tensor->shape[0]);
	}
	KVC__TRY(check_1_d(&tensors[OFFSETS]));
	KVC__TRY(check_1_d(&tensors[SEEDS]));
	for (int i = NUM_VALID; i <= NUM_VALID_REQS; i++)
		KVC__TRY(check_length(&tensors[i], 1));
	if (offset_count != capacity + 1)
		return kvc__fail_sglang_write_offsets_length(-1, offset_count, capacity);
	if (bs > capacity)
		return kvc__fail_plan_batch_exceeds_capacity(-1, bs, capacity);
	return KVC_OK;
}

/* A device as torch prints it. */
static void print_device(char out[32], kvc_device device)
{
	const char *kind = kvc__is_cuda(device) ? "cuda" : "cpu";

	if (kvc__is_cuda(device))
		snprintf(out, 32, "%s:%d", kind, (int)device.device_id);
	else
		snprintf(out, 32, "%s", kind);
}

static kvc_status check_kernel_devices(
        const struct plan_call *call, const struct kvc__named tensors[KERNEL_TENSORS])
{
	/* Where SGLang makes its scratch, if it is not given. */
	const kvc_tensor *home = call->scratch ? call->scratch : call->verify.verify_slot_indices;
	char wanted[32], got[32];

	for (int i = 0; i < KERNEL_TENSORS; i++) {
		const kvc_tensor *tensor = tensors[i].tensor;
		if (!tensor || (kvc__is_cuda(tensor->device) == kvc__is_cuda(home->device) &&
		                       tensor->device.device_id == home->device.device_id))
			continue;
		print_device(wanted, home->device);
		print_device(got, tensor->device);
		return kvc__fail_sglang_tensor_device(-1, tensors[i].name, wanted, got);
	}
	return KVC_OK;
}

static kvc_status check_kernel_call(const struct plan_call *call)
{
	struct kvc__named tensors[KERNEL_TENSORS];

	name_kernel_tensors(tensors, call);
	KVC__TRY(kvc__sglang_check_contiguous(tensors, KERNEL_TENSORS));
	KVC__TRY(check_kernel_types(tensors));
	KVC__TRY(check_kernel_numbers(call, tensors));
	KVC__TRY(check_kernel_shapes(tensors));
	return check_kernel_devices(call, tensors);
}

kvc_status kvc_sglang_plan_check(const kvc_sglang_plan_args *args, const kvc_tensor *scratch)
{
	struct plan_call call = { .scratch = scratch };

	KVC__TRY(take_call(&call, args));
	return check_kernel_call(&call);
}

/* ---- the launcher ---- */

static kvc_status check_capacity_argument(const struct plan_call *call, const char *function)
{
	int64_t allocated = length_of(call->verify.verify_slot_indices);

	if (call->args.verify_capacity != allocated)
		return kvc__fail_sglang_verify_capacity_differs(
		        -1, function, call->args.verify_capacity, allocated);
	return KVC_OK;
}

static kvc_status check_valid_lens(const struct plan_call *call, const char *function)
{
	if (call->args.req_to_verify_expected_tokens &&
	        !call->args.req_to_verify_expected_tokens_valid_lens)
		return kvc__fail_sglang_valid_lens_missing(-1, function);
	return KVC_OK;
}

static kvc_status check_reference_call(const struct plan_call *call)
{
	const char *function = "launch_canary_plan_kernels_torch_reference";

	KVC__TRY(check_capacity_argument(call, function));
	return check_valid_lens(call, function);
}

static kvc_status check_launch(const struct plan_call *call)
{
	int64_t bs = length_of(call->args.req_pool_indices);

	if (bs > KVC_SGLANG_PLAN_REQUESTS_MAX)
		return kvc__fail_sglang_plan_batch_max(-1, bs);
	KVC__TRY(check_capacity_argument(call, "launch_canary_plan_kernels"));
	KVC__TRY(check_kernel_call(call));
	return check_valid_lens(call, "launch_plan_entries_kernel");
}

/* The arrays of the plans, which kvc_canary_plan() sees as pointers only. */
static kvc_status bind_plan(kvc_plan *out, const struct plan_call *call)
{
	const struct kvc__named wide[] = {
		{ call->verify.verify_slot_indices, "verify_plan_out.verify_slot_indices" },
		{ call->verify.verify_expected_tokens, "verify_plan_out.verify_expected_tokens" },
		{ call->verify.verify_expected_positions,
		        "verify_plan_out.verify_expected_positions" },
		{ call->verify.verify_prev_slot_indices,
		        "verify_plan_out.verify_prev_slot_indices" },
		{ call->write.write_offsets, "write_plan_out.write_offsets" },
		{ call->write.write_seed_slot_indices, "write_plan_out.write_seed_slot_indices" },
	};
	const struct kvc__named narrow[] = {
		{ call->verify.verify_num_valid, "verify_plan_out.verify_num_valid" },
		{ call->verify.enable, "verify_plan_out.enable" },
		{ call->write.write_num_valid_reqs, "write_plan_out.write_num_valid_reqs" },
	};
	int64_t capacity = call->args.verify_capacity;
	int64_t requests = length_of(call->write.write_seed_slot_indices);
	kvc_device device;

	KVC__TRY(kvc__check_vector(wide[5].tensor, wide[5].name, KVC_INT64, KVC__ANY_LENGTH));
	if (length_of(wide[4].tensor) != requests + 1)
		return kvc__fail_sglang_write_offsets_length(
		        -1, length_of(wide[4].tensor), requests);
	for (int i = 0; i < 5; i++)
		KVC__TRY(kvc__check_vector(
		        wide[i].tensor, wide[i].name, KVC_INT64, i < 4 ? capacity : requests + 1));
	for (int i = 0; i < 3; i++)
		KVC__TRY(kvc__check_vector(narrow[i].tensor, narrow[i].name, KVC_INT32, 1));
	KVC__TRY(kvc__check_same_device(&device, wide, 6));
	KVC__TRY(kvc__check_same_device(&device, narrow, 3));
	KVC__TRY(kvc__check_same_device(
	        &device, (const struct kvc__named[]){ wide[0], narrow[0] }, 2));
	*out = (kvc_plan){
		.struct_bytes = sizeof(*out),
		.device = wide[0].tensor->device,
		.verify_capacity = capacity,
		.verify_slot_indices = (void *)kvc__tensor_data(wide[0].tensor),
		.verify_expected_tokens = (void *)kvc__tensor_data(wide[1].tensor),
		.verify_expected_positions = (void *)kvc__tensor_data(wide[2].tensor),
		.verify_prev_slot_indices = (void *)kvc__tensor_data(wide[3].tensor),
		.verify_num_valid = (void *)kvc__tensor_data(narrow[0].tensor),
		.enable = (void *)kvc__tensor_data(narrow[1].tensor),
		.write_req_capacity = requests,
		.write_offsets = (void *)kvc__tensor_data(wide[4].tensor),
		.write_seed_slot_indices = (void *)kvc__tensor_data(wide[5].tensor),
		.write_num_valid_reqs = (void *)kvc__tensor_data(narrow[2].tensor),
	};
	return KVC_OK;
}

kvc_status kvc_sglang_plan(const kvc_sglang_plan_args *given, void *stream)
{
	struct plan_call call = { 0 };
	kvc_requests requests = KVC_REQUESTS_INIT;
	kvc_plan_args args = KVC_PLAN_ARGS_INIT;
	kvc_plan plan;

	KVC__TRY(take_call(&call, given));
	if (call.args.swa_window_size > 0 && !call.args.full_to_swa_index_mapping)
		return kvc__fail_sglang_window_needs_mapping(-1);
	KVC__TRY(kvc__is_cuda(call.verify.verify_slot_indices->device)
	                 ? check_launch(&call)
	                 : check_reference_call(&call));
	KVC__TRY(bind_plan(&plan, &call));
	requests.req_pool_indices = call.args.req_pool_indices;
	requests.prefix_lens = call.args.prefix_lens;
	requests.extend_seq_lens = call.args.extend_seq_lens;
	args.requests = &requests;
	args.req_to_token = call.args.req_to_token;
	args.expected_tokens = call.args.req_to_verify_expected_tokens;
	args.valid_lens = call.args.req_to_verify_expected_tokens_valid_lens;
	args.token_offset = call.args.kv_token_id_vs_position_offset;
	args.window = call.args.swa_window_size > 0 ? call.args.swa_window_size : 0;
	args.full_to_swa_index_mapping = call.args.full_to_swa_index_mapping;
	args.rules = KVC_RULES_SGLANG;
	return kvc_canary_plan(&plan, &args, stream);
}

kvc_status kvc_sglang_check_capacity(const char *name, int64_t capacity)
{
	if (!name)
		return kvc__fail_null_argument(-1, "name");
	if (capacity <= 0)
		return kvc__fail_sglang_number_must_be_positive(-1, name, capacity);
	return KVC_OK;
}

/* ---- scatter ---- */

/* Dimensions, then dtypes, then lengths; kvc_scatter_req_token_ids() has the same texts but for the
 * dtypes, which torch prints otherwise. */
static kvc_status check_scatter_types(const struct kvc__named tensors[4])
{
	for (int i = 0; i < 4; i++) {
		kvc_dtype wanted = i < 3 ? KVC_INT64 : KVC_INT32;
		if (!kvc__dtype_equal(tensors[i].tensor->dtype, wanted))
			return kvc__fail_sglang_scatter_dtype(
			        -1, tensors[i].name, wanted, tensors[i].tensor->dtype);
	}
	return KVC_OK;
}

kvc_status kvc_sglang_scatter(const kvc_tensor *flat_in, const kvc_tensor *offsets,
        const kvc_tensor *req_pool_indices, const kvc_tensor *pool_out, void *stream)
{
	const struct kvc__named tensors[4] = {
		{ flat_in, "flat_in" },
		{ offsets, "offsets" },
		{ req_pool_indices, "req_pool_indices" },
		{ pool_out, "pool_out" },
	};
	kvc_scatter_args args = KVC_SCATTER_ARGS_INIT;

	KVC__TRY(kvc__sglang_check_all_present(tensors, 4));
	int flat = 1;
	for (int i = 0; i < 4; i++)
		flat = flat && tensors[i].tensor->ndim == (i < 3 ? 1 : 2);
	if (flat) {
		KVC__TRY(check_scatter_types(tensors));
		int64_t bs = req_pool_indices->shape[0];
		if (offsets->shape[0] == bs + 1 && bs > KVC_SGLANG_SCATTER_REQUESTS_MAX)
			return kvc__fail_sglang_scatter_batch_max(-1, bs + 1);
	}
	args.flat_in = flat_in;
	args.offsets = offsets;
	args.req_pool_indices = req_pool_indices;
	args.pool_out = pool_out;
	args.rules = KVC_RULES_SGLANG;
	return kvc_scatter_req_token_ids(&args, stream);
}
