/*
 * kvc_canary_write(): check everything, then stamp. Once the first record is written nothing can be
 * refused any more.
 */
#include "cpu/canary.h"

#include "cpu/dispatch.h"
#include "cpu/ring.h"
#include "cuda/cuda.h"
#include "ops/arguments.h"
#include "ops/batch.h"
#include "ops/group.h"

static const int64_t *values_of(const kvc_tensor *tensor)
{
	return tensor ? (const void *)kvc__tensor_data(tensor) : NULL;
}

static kvc_status take_tokens(struct kvc__write *out, const kvc_write_args *args)
{
	const struct kvc__named list[] = { { args->tokens, "tokens" },
		{ args->positions, "positions" }, { args->slots, "slots" },
		{ args->expected_tokens, "expected_tokens" },
		{ args->expected_positions, "expected_positions" } };

	if (!args->expected_tokens != !args->expected_positions)
		return kvc__fail_write_expected_one_missing(-1,
		        args->expected_tokens ? "expected_tokens" : "expected_positions",
		        args->expected_tokens ? "expected_positions" : "expected_tokens");
	for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
		if (i >= 3 && !list[i].tensor)
			continue;
		KVC__TRY(kvc__check_vector(list[i].tensor, list[i].name, KVC_INT64,
		        i == 0 ? KVC__ANY_LENGTH : out->token_count));
		out->token_count = args->tokens->shape[0];
	}
	out->tokens = values_of(args->tokens);
	out->positions = values_of(args->positions);
	out->slots = values_of(args->slots);
	out->expected_tokens = values_of(args->expected_tokens);
	out->expected_positions = values_of(args->expected_positions);
	return kvc__group_check_same_device(&out->group, list, sizeof(list) / sizeof(list[0]));
}

static kvc_status take_scratch(struct kvc__write *out, const kvc_write_args *args)
{
	const kvc_tensor *scratch = args->scratch;
	const struct kvc__named list[] = { { scratch, "scratch" }, { args->tokens, "tokens" },
		{ args->positions, "positions" }, { args->slots, "slots" },
		{ args->expected_tokens, "expected_tokens" },
		{ args->expected_positions, "expected_positions" } };

	if (!scratch)
		return KVC_OK;
	KVC__TRY(kvc__check_vector(scratch, "scratch", KVC_INT64, out->group.record_count));
	KVC__TRY(kvc__group_check_same_device(&out->group, list, 1));
	KVC__TRY(kvc__check_apart(scratch, "scratch", list + 1, 5));
	out->scratch = (void *)kvc__tensor_data(scratch);
	return KVC_OK;
}

/* On a CUDA device the count lies there, too: request_count becomes the capacity. */
static kvc_status take_plan(
        struct kvc__write *out, const kvc_write_args *args, struct kvc__cuda_write *on_device)
{
	kvc_plan plan = { 0 };
	int is_cuda = kvc__is_cuda(out->group.device);

	KVC__TRY(kvc__batch_take_plan(&plan, args->plan, &out->group));
	if (is_cuda) {
		KVC__TRY(kvc__batch_check_count(plan.write_num_valid_reqs,
		        "plan.write_num_valid_reqs", plan.write_req_capacity));
		KVC__TRY(kvc__check_capacity("write_req_capacity", plan.write_req_capacity));
		out->request_count = plan.write_req_capacity;
		on_device->request_capacity = plan.write_req_capacity;
		on_device->num_valid = plan.write_num_valid_reqs;
	} else {
		KVC__TRY(kvc__batch_count(&out->request_count, plan.write_num_valid_reqs,
		        "plan.write_num_valid_reqs", plan.write_req_capacity, args->rules));
	}
	if (out->request_count > 0 && !plan.write_offsets)
		return kvc__fail_null_argument(-1, "plan.write_offsets");
	if (out->request_count > 0 && !plan.write_seed_slot_indices)
		return kvc__fail_null_argument(-1, "plan.write_seed_slot_indices");
	if (!is_cuda && args->requests && out->request_count > out->batch.count &&
	        args->rules == KVC_RULES_OWN)
		return kvc__fail_canary_tensor_length(
		        -1, "requests.req_pool_indices", out->request_count, out->batch.count);
	out->offsets = plan.write_offsets;
	out->seeds = plan.write_seed_slot_indices;
	return KVC_OK;
}

/* Our rules: offsets rise from 0 on and end within the tokens, and every slot has a record. */
static kvc_status check_entries(const struct kvc__write *write)
{
	int64_t before = 0;

	if (write->request_count == 0)
		return KVC_OK;
	for (int64_t r = 0; r <= write->request_count; r++) {
		if (write->offsets[r] < before)
			return kvc__fail_write_offsets_fall(r, r, write->offsets[r], before);
		before = write->offsets[r];
	}
	if (before > write->token_count)
		return kvc__fail_write_tokens_short(-1, before, write->token_count);
	for (int64_t i = write->offsets[0]; i < before; i++)
		if (write->slots[i] >= write->group.record_count)
			return kvc__fail_canary_slot_out_of_range(
			        i, "slots", i, write->slots[i], write->group.record_count);
	return KVC_OK;
}

static kvc_status write_on_cuda(
        struct kvc__cuda_write *call, const kvc_write_args *args, void *stream)
{
	const struct kvc__write *write = call->job;
	const struct kvc__cuda_ops *cuda;
	const struct {
		const void *pointer;
		const char *name;
	} all[] = {
		{ write->offsets, "plan.write_offsets" },
		{ write->seeds, "plan.write_seed_slot_indices" },
		{ call->num_valid, "plan.write_num_valid_reqs" },
		{ write->tokens, "tokens" },
		{ write->positions, "positions" },
		{ write->slots, "slots" },
		{ write->expected_tokens, "expected_tokens" },
		{ write->expected_positions, "expected_positions" },
		{ write->scratch, "scratch" },
		{ args->check_steps, "check_steps" },
		{ args->step, "step" },
	};

	KVC__TRY(kvc__cuda_find(&cuda, write->group.device, "group"));
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		KVC__TRY(kvc__cuda_check_pointer(all[i].pointer, all[i].name));
	KVC__TRY(kvc__group_check_pointers(&write->group));
	KVC__TRY(kvc__batch_check_pointers(&write->batch));
	KVC__TRY(kvc__ring_check_pointers(write->ring));
	KVC__TRY(kvc__check_marked(write->token_count));
	call->check_steps = args->check_steps;
	call->step = args->step;
	return cuda->write(call, stream);
}

kvc_status kvc_canary_write(const kvc_write_args *args, void *stream)
{
	kvc_write_args taken = KVC_WRITE_ARGS_INIT;
	struct kvc__write write = { .group = KVC_GROUP_INIT };
	struct kvc__cuda_write on_device = { .job = &write };

	KVC__TAKE(&taken, args, "args");
	KVC__TRY(kvc__check_rules(taken.rules));
	KVC__TRY(kvc__group_take(&write.group, taken.group));
	KVC__TRY(kvc__batch_check_sources(&write.group, taken.rules));
	KVC__TRY(kvc__batch_check_ring(taken.ring, &write.group));
	KVC__TRY(kvc__batch_take(&write.batch, taken.requests, &write.group));
	KVC__TRY(take_plan(&write, &taken, &on_device));
	KVC__TRY(take_tokens(&write, &taken));
	KVC__TRY(take_scratch(&write, &taken));
	write.launch_tag = taken.launch_tag;
	write.ring = taken.ring;
	write.rules = taken.rules;
	if (kvc__is_cuda(write.group.device))
		return write_on_cuda(&on_device, &taken, stream);
	KVC__TRY(kvc__cpu_choose(&write.cpu));
	if (taken.rules == KVC_RULES_OWN)
		KVC__TRY(check_entries(&write));
	write.check_steps = taken.check_steps && *taken.check_steps != 0;
	write.step = taken.step ? (uint32_t)*taken.step : 0;
	kvc__write_portable(&write);
	return KVC_OK;
}
