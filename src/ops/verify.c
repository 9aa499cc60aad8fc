/*
 * kvc_canary_verify(): check the arguments, then compare. What is wrong with the cache itself is a
 * violation, not an error of the call.
 */
#include "cpu/canary.h"
#include "cpu/dispatch.h"
#include "cpu/ring.h"
#include "cuda/cuda.h"
#include "ops/arguments.h"
#include "ops/batch.h"
#include "ops/group.h"

static kvc_status check_array(const void *array, const char *name)
{
	return array ? KVC_OK : kvc__fail_null_argument(-1, name);
}

/* On a CUDA device the counts lie there, too: entry_count becomes the capacity. */
static kvc_status take_entries(
        struct kvc__verify *out, const kvc_verify_args *args, struct kvc__cuda_verify *on_device)
{
	kvc_plan plan = { 0 };
	int is_cuda = kvc__is_cuda(out->group.device);

	KVC__TRY(kvc__batch_take_plan(&plan, args->plan, &out->group));
	if (is_cuda) {
		KVC__TRY(kvc__batch_check_count(
		        plan.verify_num_valid, "plan.verify_num_valid", plan.verify_capacity));
		out->entry_count = plan.verify_capacity;
	} else {
		KVC__TRY(kvc__batch_count(&out->entry_count, plan.verify_num_valid,
		        "plan.verify_num_valid", plan.verify_capacity, args->rules));
	}
	KVC__TRY(check_array(plan.enable, "plan.enable"));
	if (out->entry_count > 0) {
		KVC__TRY(check_array(plan.verify_slot_indices, "plan.verify_slot_indices"));
		KVC__TRY(check_array(plan.verify_expected_tokens, "plan.verify_expected_tokens"));
		KVC__TRY(check_array(
		        plan.verify_expected_positions, "plan.verify_expected_positions"));
		KVC__TRY(check_array(
		        plan.verify_prev_slot_indices, "plan.verify_prev_slot_indices"));
	}
	if (!is_cuda && *plan.enable == 0)
		out->entry_count = 0;
	out->slots = plan.verify_slot_indices;
	out->expected_tokens = plan.verify_expected_tokens;
	out->expected_positions = plan.verify_expected_positions;
	out->prev_slots = plan.verify_prev_slot_indices;
	out->request = plan.verify_request;
	out->left_out = !is_cuda && plan.left_out ? *plan.left_out : 0;
	on_device->capacity = plan.verify_capacity;
	on_device->num_valid = plan.verify_num_valid;
	on_device->enable = plan.enable;
	on_device->left_out = plan.left_out;
	return KVC_OK;
}

/* valid_prefix is per request, so it needs to know the requests and which entry is whose. */
static kvc_status take_valid_prefix(struct kvc__verify *out, const kvc_verify_args *args)
{
	const kvc_tensor *valid_prefix = args->valid_prefix;
	const struct kvc__named list[] = { { valid_prefix, "valid_prefix" } };

	if (!valid_prefix)
		return KVC_OK;
	KVC__TRY(check_array(args->requests, "requests"));
	if (out->batch.count > 0) /* arrays of an empty batch may have no address */
		KVC__TRY(check_array(out->batch.prefix_lens, "requests.prefix_lens"));
	if (out->entry_count > 0 || kvc__is_cuda(out->group.device))
		KVC__TRY(check_array(out->request, "plan.verify_request"));
	KVC__TRY(kvc__check_vector(valid_prefix, "valid_prefix", KVC_INT64, out->batch.count));
	KVC__TRY(kvc__group_check_same_device(&out->group, list, 1));
	out->valid_prefix = (void *)kvc__tensor_data(valid_prefix);
	return KVC_OK;
}

static kvc_status verify_on_cuda(const struct kvc__cuda_verify *call, void *stream)
{
	const struct kvc__verify *verify = call->job;
	const struct kvc__cuda_ops *cuda;
	const struct {
		const void *pointer;
		const char *name;
	} all[] = {
		{ verify->slots, "plan.verify_slot_indices" },
		{ verify->expected_tokens, "plan.verify_expected_tokens" },
		{ verify->expected_positions, "plan.verify_expected_positions" },
		{ verify->prev_slots, "plan.verify_prev_slot_indices" },
		{ verify->request, "plan.verify_request" },
		{ call->num_valid, "plan.verify_num_valid" },
		{ call->enable, "plan.enable" },
		{ call->left_out, "plan.left_out" },
		{ verify->valid_prefix, "valid_prefix" },
	};

	KVC__TRY(kvc__cuda_find(&cuda, verify->group.device, "group"));
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		KVC__TRY(kvc__cuda_check_pointer(all[i].pointer, all[i].name));
	KVC__TRY(kvc__group_check_pointers(&verify->group));
	KVC__TRY(kvc__batch_check_pointers(&verify->batch));
	KVC__TRY(kvc__ring_check_pointers(verify->ring));
	return cuda->verify(call, stream);
}

kvc_status kvc_canary_verify(const kvc_verify_args *args, void *stream)
{
	kvc_verify_args taken = KVC_VERIFY_ARGS_INIT;
	struct kvc__verify verify = { .group = KVC_GROUP_INIT };
	struct kvc__cuda_verify on_device = { .job = &verify };

	KVC__TAKE(&taken, args, "args");
	KVC__TRY(kvc__check_rules(taken.rules));
	KVC__TRY(kvc__group_take(&verify.group, taken.group));
	KVC__TRY(kvc__batch_check_sources(&verify.group, taken.rules));
	KVC__TRY(kvc__batch_check_ring(taken.ring, &verify.group));
	KVC__TRY(kvc__batch_take(&verify.batch, taken.requests, &verify.group));
	KVC__TRY(take_entries(&verify, &taken, &on_device));
	KVC__TRY(take_valid_prefix(&verify, &taken));
	verify.check_bytes = taken.check_bytes != 0;
	verify.check_tokens = taken.check_tokens != 0;
	verify.check_finite = taken.check_finite != 0;
	verify.launch_tag = taken.launch_tag;
	verify.ring = taken.ring;
	verify.rules = taken.rules;
	if (kvc__is_cuda(verify.group.device))
		return verify_on_cuda(&on_device, stream);
	KVC__TRY(kvc__cpu_choose(&verify.cpu));
	kvc__verify_portable(&verify);
	return KVC_OK;
}
