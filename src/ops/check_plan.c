/*
 * kvc_canary_check_plan(): checks of its arguments, and its result as an error where there is no
 * ring to put violations into.
 */
#include "cpu/check_plan.h"
#include "cpu/ring.h"
#include "cuda/cuda.h"
#include "ops/arguments.h"
#include "ops/batch.h"
#include "ops/group.h"

static kvc_status check_scratch(const kvc_tensor *scratch, int64_t record_count)
{
	KVC__TRY(kvc__check_table(scratch, "scratch", KVC_INT64));
	if (scratch->shape[0] != 2)
		return kvc__fail_check_plan_scratch_shape(-1, scratch);
	if (scratch->shape[1] != record_count)
		return kvc__fail_canary_tensor_length(
		        -1, "a row of scratch", record_count, scratch->shape[1]);
	if (record_count > 0 && kvc__tensor_stride(scratch, 0) < record_count)
		return kvc__fail_check_plan_scratch_rows_overlap(
		        -1, kvc__tensor_stride(scratch, 0), record_count);
	return KVC_OK;
}

static kvc_status check_claim_tensors(const kvc_plan *plan, const kvc_group *group,
        const kvc_tensor *mapping, const kvc_tensor *scratch)
{
	const kvc_tensor stand_in = { .device = plan->device };
	const struct kvc__named tensors[] = {
		{ &stand_in, "plan" },
		{ scratch, "scratch" },
		{ mapping, "mapping" },
	};

	KVC__TRY(check_scratch(scratch, group->record_count));
	if (mapping)
		KVC__TRY(kvc__check_vector(mapping, "mapping", KVC_INT64, KVC__ANY_LENGTH));
	KVC__TRY(
	        kvc__group_check_same_device(group, tensors, sizeof(tensors) / sizeof(tensors[0])));
	return kvc__check_apart(scratch, "scratch", tensors + 2, 1);
}

/* Scratch that is not zero would be taken for entries that are not there. */
static kvc_status check_entry_slots(const struct kvc__check_plan *check)
{
	for (int64_t i = 0; i < check->entry_count; i++) {
		int64_t slot = check->slots[i];
		if (!kvc__check_plan_claims(check, slot))
			continue;
		if (slot >= check->group.record_count)
			return kvc__fail_check_plan_slot_out_of_range(
			        i, i, slot, check->group.record_count);
		for (int row = 0; row < 2; row++)
			if (check->scratch[row][slot] != 0)
				return kvc__fail_check_plan_scratch_not_zero(
				        slot, row, slot, check->scratch[row][slot]);
	}
	return KVC_OK;
}

static kvc_status check_mapped_slots(const struct kvc__check_plan *check)
{
	for (int64_t full = 1; full < check->full_count; full++) {
		if (!kvc__check_plan_maps(check, full))
			continue;
		int64_t slot = check->mapping[full];
		if (slot >= check->group.record_count)
			return kvc__fail_check_plan_mapping_out_of_range(
			        full, full, slot, check->group.record_count);
		if (check->scratch[1][slot] != 0)
			return kvc__fail_check_plan_scratch_not_zero(
			        slot, 1, slot, check->scratch[1][slot]);
	}
	return KVC_OK;
}

static int64_t claim_request(const kvc_plan *plan, int64_t entry)
{
	return plan->verify_request ? plan->verify_request[entry] : -1;
}

/* Without a ring the first violation is the error; slots of the plan come before the mapping. */
static kvc_status fail_with(const struct kvc__aliases *found, const kvc_plan *plan)
{
	const struct kvc__alias *entries = &found->entries, *fulls = &found->fulls;

	if (found->entry_count > 0)
		return kvc__fail_check_plan_slot_claimed_twice(entries->second, entries->slot,
		        entries->first, plan->verify_expected_positions[entries->first],
		        entries->second, plan->verify_expected_positions[entries->second],
		        claim_request(plan, entries->first), claim_request(plan, entries->second));
	if (found->full_count > 0)
		return kvc__fail_check_plan_window_slot_claimed_twice(
		        fulls->second, fulls->slot, fulls->first, fulls->second);
	return KVC_OK;
}

static kvc_status check_plan_on_cuda(
        const kvc_plan *plan, const struct kvc__check_plan *check, void *stream)
{
	const struct kvc__cuda_check_plan call = { check, plan };
	const struct kvc__cuda_ops *cuda;
	const struct {
		const void *pointer;
		const char *name;
	} memory[] = {
		{ plan->verify_num_valid, "verify_num_valid" },
		{ plan->enable, "enable" },
		{ plan->verify_capacity > 0 ? plan->verify_slot_indices : NULL, "plan" },
		{ check->group.records, "group.records" },
		{ check->group.owners, "group.owners" },
		{ check->scratch[0], "scratch" },
		{ check->mapping, "mapping" },
	};

	if (!check->ring) /* nothing else could take what is found */
		return kvc__fail_null_argument(-1, "ring");
	KVC__TRY(kvc__cuda_find(&cuda, plan->device, "plan"));
	for (size_t i = 0; i < sizeof(memory) / sizeof(memory[0]); i++)
		KVC__TRY(kvc__cuda_check_pointer(memory[i].pointer, memory[i].name));
	KVC__TRY(kvc__ring_check_pointers(check->ring));
	return cuda->check_plan(&call, stream);
}

kvc_status kvc_canary_check_plan(const kvc_plan *given, const kvc_group *given_group,
        const kvc_tensor *mapping, const kvc_tensor *scratch, const kvc_ring *ring, void *stream)
{
	kvc_plan plan = { 0 };
	kvc_group group = KVC_GROUP_INIT;
	int64_t entry_count = 0;

	KVC__TRY(kvc__take_plan(&plan, given));
	KVC__TRY(kvc__group_take(&group, given_group));
	KVC__TRY(check_claim_tensors(&plan, &group, mapping, scratch));
	KVC__TRY(kvc__batch_check_ring(ring, &group));
	int on_cuda = kvc__is_cuda(group.device);
	if (!on_cuda)
		KVC__TRY(kvc__batch_count(&entry_count, plan.verify_num_valid, "verify_num_valid",
		        plan.verify_capacity, KVC_RULES_OWN));

	int64_t *rows = (int64_t *)(void *)kvc__tensor_data(scratch);
	const struct kvc__check_plan check = {
		.group = group,
		.entry_count = !on_cuda && *plan.enable ? entry_count : 0,
		.slots = plan.verify_slot_indices,
		.expected_tokens = plan.verify_expected_tokens,
		.expected_positions = plan.verify_expected_positions,
		.prev_slots = plan.verify_prev_slot_indices,
		.mapping = mapping ? (const int64_t *)(void *)kvc__tensor_data(mapping) : NULL,
		.full_count = mapping ? mapping->shape[0] : 0,
		.scratch = { rows,
		        group.record_count > 0 ? rows + kvc__tensor_stride(scratch, 0) : NULL },
		.ring = ring,
	};
	if (on_cuda)
		return check_plan_on_cuda(&plan, &check, stream);
	KVC__TRY(check_entry_slots(&check));
	if (check.mapping)
		KVC__TRY(check_mapped_slots(&check));
	struct kvc__aliases found = kvc__check_plan_portable(&check);
	return ring ? KVC_OK : fail_with(&found, &plan);
}
