/*
 * A step of the engine: step_begin before the forward pass, step_end after it.
 *
 * The order is what makes "refused, and nothing stamped" true. All that can be refused is refused
 * while only plans have been made; then reads are checked, while the records still say what was
 * before the step; the last thing is to stamp.
 */
#include "guard/guard.h"

#include <string.h>

#include "ops/arguments.h"
#include "ops/group.h"

/* ---- what the step writes ---- */

/* The slots that the step writes in this group's numbering, each a record of it or negative. */
static kvc_status take_group_slots(kvc_guard *guard, struct kvc__guard_group *group)
{
	const struct kvc__step *step = &guard->step;
	int64_t count = step->token_count;

	group->slots = step->slots;
	if (group->mapping.shape) {
		for (int64_t i = 0; i < count; i++) {
			if (step->slots[i] >= group->mapping_count)
				return kvc__fail_guard_slot_unmapped(
				        i, i, step->slots[i], group->mapping_count);
			group->slots_memory[i] = kvc__guard_translate(group, step->slots[i]);
		}
		group->slots = group->slots_memory;
	}
	return kvc__group_check_slot_values(
	        group->slots, count, "slots", group->group.record_count);
}

/* What the input check compares with: the caller's two arrays, else the guard's own. */
static void choose_expected_input(
        kvc_guard *guard, struct kvc__guard_group *group, kvc_write_args *args, kvc_tensor *tensors)
{
	struct kvc__step *step = &guard->step;

	if (!guard->options.checks)
		return;
	args->expected_tokens = step->given.expected_input_tokens;
	args->expected_positions = step->given.expected_input_positions;
	if (args->expected_tokens)
		return;
	tensors[0] = kvc__vector_of(group->write_tokens, &step->token_count);
	tensors[1] = kvc__vector_of(step->expected_positions, &step->token_count);
	args->expected_tokens = &tensors[0];
	args->expected_positions = &tensors[1];
}

/* Stamped now: too young to be called unchecked, whatever was there before. */
static void account_writes(kvc_guard *guard, struct kvc__guard_group *group)
{
	const struct kvc__step *step = &guard->step;

	for (int64_t i = 0; i < step->offsets[step->request_count]; i++)
		if (group->slots[i] >= 0 && group->slots[i] != group->group.reserved_slot)
			group->seen[group->slots[i]] = (uint32_t)step->number;
}

static kvc_status stamp_group(kvc_guard *guard, struct kvc__guard_group *group, void *stream)
{
	struct kvc__step *step = &guard->step;
	kvc_write_args args = KVC_WRITE_ARGS_INIT;
	kvc_requests requests = step->requests;
	int64_t scratch_count = group->group.record_count;
	int64_t stamped = guard->counters.slots_run;
	kvc_tensor expected[2];

	kvc_tensor chains = kvc__vector_of(group->chain_write, &step->request_count);
	kvc_tensor slots = kvc__vector_of(group->slots, &step->token_count);
	kvc_tensor scratch = kvc__vector_of(guard->scratch, &scratch_count);
	requests.write_chain_in = &chains;
	args.group = &group->group;
	args.plan = &group->plan;
	args.requests = &requests;
	args.tokens = step->given.tokens;
	args.positions = step->given.positions;
	args.slots = &slots;
	args.step = &step->number;
	args.scratch = &scratch;
	args.ring = &guard->ring;
	choose_expected_input(guard, group, &args, expected);
	KVC__TRY(kvc_canary_write(&args, stream));
	guard->statistics.slots_stamped += guard->counters.slots_run - stamped;
	account_writes(guard, group);
	kvc__guard_note(guard, group, -1);
	return KVC_OK;
}

/* ---- begin ---- */

static kvc_status plan_step(kvc_guard *guard, const kvc_guard_step *given, void *stream)
{
	KVC__TRY(kvc__step_take(guard, given));
	for (int32_t g = 0; g < guard->group_count; g++)
		KVC__TRY(kvc__reads_plan_writes(guard, guard->groups[g], stream));
	KVC__TRY(kvc__step_look(guard));
	for (int32_t g = 0; g < guard->group_count; g++) {
		KVC__TRY(take_group_slots(guard, guard->groups[g]));
		kvc__step_expect(guard, guard->groups[g]);
	}
	for (int32_t g = 0; guard->options.checks && g < guard->group_count; g++) {
		kvc__alias_mark(guard, guard->groups[g]);
		KVC__TRY(kvc__reads_plan(guard, guard->groups[g], stream));
	}
	return KVC_OK;
}

static kvc_status check_step_reads(kvc_guard *guard, void *stream)
{
	for (int32_t g = 0; guard->options.checks && g < guard->group_count; g++) {
		kvc__alias_check(guard, guard->groups[g]);
		KVC__TRY(kvc__reads_check(guard, guard->groups[g], stream));
		if (guard->options.check_finite)
			KVC__TRY(kvc__sweep_tails(guard, guard->groups[g], stream));
	}
	return KVC_OK;
}

static kvc_status stamp_groups(kvc_guard *guard, int32_t stamping, void *stream)
{
	for (int32_t g = 0; g < guard->group_count; g++)
		if (guard->groups[g]->group.stamping == stamping)
			KVC__TRY(stamp_group(guard, guard->groups[g], stream));
	return KVC_OK;
}

static void give_valid_prefix(const struct kvc__step *step)
{
	if (step->given.valid_prefix && step->request_count > 0)
		memcpy(kvc__tensor_data(step->given.valid_prefix), step->valid,
		        (size_t)step->request_count * sizeof(*step->valid));
}

/* Whatever became of the step, no mark of it stays. */
static void unmark_step(kvc_guard *guard)
{
	for (int32_t g = 0; g < guard->group_count; g++)
		kvc__alias_unmark(guard, guard->groups[g]);
}

static kvc_status run_step(kvc_guard *guard, const kvc_guard_step *given, void *stream)
{
	guard->statistics.stale_nonfinite = 0;
	guard->statistics.stale_nonfinite_slot = -1;
	KVC__TRY(plan_step(guard, given, stream));
	KVC__TRY(check_step_reads(guard, stream));
	return stamp_groups(guard, KVC_STAMP_CLEAR, stream);
}

kvc_status kvc_guard_step_begin(kvc_guard *guard, const kvc_guard_step *step, void *stream)
{
	if (!guard)
		return kvc__fail_null_argument(-1, "guard");
	if (guard->group_count == 0)
		return kvc__fail_guard_without_group(-1);
	if (guard->step_open)
		return kvc__fail_guard_step_open(-1, guard->last_step);
	for (int32_t g = 0; g < guard->group_count; g++)
		guard->groups[g]->rotation_before = guard->groups[g]->rotation;
	kvc_status status = run_step(guard, step, stream);
	unmark_step(guard);
	if (status != KVC_OK) {
		for (int32_t g = 0; g < guard->group_count; g++)
			guard->groups[g]->rotation = guard->groups[g]->rotation_before;
		return status;
	}
	give_valid_prefix(&guard->step);
	kvc__step_remember(guard);
	guard->last_step = guard->step.number;
	guard->statistics.steps++;
	guard->step_open = 1;
	return KVC_OK;
}

kvc_status kvc_guard_step_end(kvc_guard *guard, void *stream)
{
	if (!guard)
		return kvc__fail_null_argument(-1, "guard");
	if (!guard->step_open)
		return kvc__fail_guard_step_not_open(-1);
	KVC__TRY(stamp_groups(guard, KVC_STAMP_COMPUTE, stream));
	guard->step_open = 0;
	return KVC_OK;
}
