/* Checks that the operations share: arguments.h says what each one promises. */
#include "ops/arguments.h"

#include "cuda/cuda.h"

kvc_status kvc__check_placement(const kvc_tensor *tensor, const char *name)
{
	int64_t width = kvc__dtype_bytes(tensor->dtype);

	KVC__TRY(kvc__check_bounds(tensor, name));
	if (kvc__tensor_count(tensor) > 0 &&
	        (uintptr_t)kvc__tensor_data(tensor) % (uintptr_t)width != 0)
		return kvc__fail_tensor_misaligned(-1, name, width, tensor->dtype);
	return KVC_OK;
}

kvc_status kvc__check_vector(
        const kvc_tensor *tensor, const char *name, kvc_dtype dtype, int64_t length)
{
	KVC__TRY(kvc__check_present(tensor, name));
	if (tensor->ndim != 1)
		return kvc__fail_canary_tensor_must_be_1_d(-1, name, tensor);
	if (!kvc__dtype_equal(tensor->dtype, dtype))
		return kvc__fail_canary_tensor_dtype(-1, name, dtype, tensor->dtype);
	KVC__TRY(kvc__check_placement(tensor, name));
	if (!kvc__tensor_rows_contiguous(tensor))
		return kvc__fail_canary_tensor_must_be_contiguous(
		        -1, name, kvc__tensor_stride(tensor, 0));
	if (length != KVC__ANY_LENGTH && tensor->shape[0] != length)
		return kvc__fail_canary_tensor_length(-1, name, length, tensor->shape[0]);
	return KVC_OK;
}

kvc_status kvc__check_table(const kvc_tensor *tensor, const char *name, kvc_dtype dtype)
{
	KVC__TRY(kvc__check_present(tensor, name));
	if (tensor->ndim != 2)
		return kvc__fail_canary_tensor_must_be_2_d(-1, name, tensor);
	if (!kvc__dtype_equal(tensor->dtype, dtype))
		return kvc__fail_canary_tensor_dtype(-1, name, dtype, tensor->dtype);
	KVC__TRY(kvc__check_placement(tensor, name));
	if (!kvc__tensor_rows_contiguous(tensor))
		return kvc__fail_canary_tensor_must_be_contiguous(
		        -1, name, kvc__tensor_stride(tensor, 1));
	return KVC_OK;
}

kvc_status kvc__check_apart(
        const kvc_tensor *written, const char *name, const struct kvc__named *list, size_t count)
{
	struct kvc__extent extent = kvc__tensor_extent(written);

	for (size_t i = 0; i < count; i++)
		if (list[i].tensor && kvc__extents_meet(extent, kvc__tensor_extent(list[i].tensor)))
			return kvc__fail_output_overlap(-1, name, list[i].name);
	return KVC_OK;
}

kvc_status kvc__check_rules(int32_t rules)
{
	if (rules != KVC_RULES_OWN && rules != KVC_RULES_SGLANG)
		return kvc__fail_rules_unknown(-1, rules);
	return KVC_OK;
}

/* The arrays of a plan by name, with the capacity that makes each one needed. */
static kvc_status check_plan_pointers(const kvc_plan *plan)
{
	const struct {
		const void *array;
		const char *name;
		int64_t capacity;
	} needed[] = {
		{ plan->verify_slot_indices, "verify_slot_indices", plan->verify_capacity },
		{ plan->verify_expected_tokens, "verify_expected_tokens", plan->verify_capacity },
		{ plan->verify_expected_positions, "verify_expected_positions",
		        plan->verify_capacity },
		{ plan->verify_prev_slot_indices, "verify_prev_slot_indices",
		        plan->verify_capacity },
		{ plan->verify_num_valid, "verify_num_valid", 1 },
		{ plan->enable, "enable", 1 },
		{ plan->write_offsets, "write_offsets", 1 },
		{ plan->write_seed_slot_indices, "write_seed_slot_indices",
		        plan->write_req_capacity },
		{ plan->write_num_valid_reqs, "write_num_valid_reqs", 1 },
	};

	for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++)
		if (!needed[i].array && needed[i].capacity > 0)
			return kvc__fail_null_argument(-1, needed[i].name);
	return KVC_OK;
}

kvc_status kvc__check_capacity(const char *name, int64_t capacity)
{
	if (capacity < 0 || capacity > INT32_MAX)
		return kvc__fail_plan_capacity_out_of_range(-1, name, capacity);
	return KVC_OK;
}

kvc_status kvc__check_marked(int64_t count)
{
	return count > INT32_MAX ? kvc__fail_cuda_tokens_max(-1, count, INT32_MAX) : KVC_OK;
}

kvc_status kvc__check_usable_device(kvc_device device, const char *name)
{
	const struct kvc__cuda_ops *cuda;

	return kvc__is_cuda(device) ? kvc__cuda_find(&cuda, device, name)
	                            : kvc__check_device(device, name);
}

kvc_status kvc__take_plan(kvc_plan *out, const kvc_plan *given)
{
	KVC__TAKE(out, given, "plan");
	KVC__TRY(kvc__check_capacity("verify_capacity", out->verify_capacity));
	KVC__TRY(kvc__check_capacity("write_req_capacity", out->write_req_capacity));
	KVC__TRY(kvc__check_usable_device(out->device, "plan"));
	return check_plan_pointers(out);
}
