/*
 * What a step reads: two plans a group, checked for double ownership together and then verified.
 *
 *   (a) what each request reads for the first time, from entry.start (or its window) on
 *   (b) of all before that, verify_budget entries, where the group's rotation stands
 *
 * (b) is planned into the places after (a), so that both are one plan for check_plan.
 */
#include <string.h>

#include "guard/guard.h"

/* ---- planning ---- */

static kvc_plan_args plan_args_of(
        struct kvc__guard_group *group, const struct kvc__step *step, const kvc_requests *requests)
{
	kvc_plan_args args = KVC_PLAN_ARGS_INIT;

	args.requests = requests;
	args.req_to_token = step->given.req_to_token;
	args.expected_tokens = step->given.expected_tokens;
	args.valid_lens = step->given.expected_tokens ? step->given.valid_lens : NULL;
	args.token_offset = group->token_offset;
	args.window = group->window;
	args.full_to_swa_index_mapping = group->mapping.shape ? &group->mapping : NULL;
	return args;
}

static kvc_status bind_group_plan(
        kvc_guard *guard, struct kvc__guard_group *group, int64_t verify_capacity)
{
	int64_t count = guard->step.request_count;
	size_t bytes = kvc_plan_bytes(verify_capacity, count);

	if (bytes == 0 || bytes > INT64_MAX)
		return kvc__fail_no_memory(-1, verify_capacity, 1);
	KVC__TRY(kvc__guard_grow(guard, &group->plan_memory, (int64_t)bytes));
	return kvc_plan_bind(
	        &group->plan, group->plan_memory.data, group->group.device, verify_capacity, count);
}

kvc_status kvc__reads_plan_writes(kvc_guard *guard, struct kvc__guard_group *group, void *stream)
{
	struct kvc__step *step = &guard->step;

	KVC__TRY(bind_group_plan(guard, group, 0));
	kvc_plan_args args = plan_args_of(group, step, &step->requests);
	return kvc_canary_plan(&group->plan, &args, stream);
}

/* How many entries (a) and (b) have. */
static void count_reads(kvc_guard *guard, struct kvc__guard_group *group, int64_t *again_out)
{
	const struct kvc__step *step = &guard->step;

	group->first_count = 0;
	*again_out = 0;
	for (int64_t r = 0; r < step->request_count; r++) {
		const struct kvc__entry *entry = &step->entries[r];
		int64_t window_start = kvc__guard_window_start(group, entry->prefix);
		int64_t first = step->start_first[r];
		if (!entry->live)
			continue;
		if (first < window_start)
			first = window_start;
		group->first_count += entry->prefix - first;
		if (entry->start > window_start)
			*again_out += entry->start - window_start;
	}
}

/* Split the bound plan: (a) keeps the first places, (b) has those after them. */
static void split_plan(struct kvc__guard_group *group)
{
	int64_t first = group->first_count;
	kvc_plan *again = &group->plan_again;

	*again = group->plan;
	group->plan.verify_capacity = first;
	again->verify_capacity = group->again_count;
	again->verify_slot_indices += first;
	again->verify_expected_tokens += first;
	again->verify_expected_positions += first;
	again->verify_prev_slot_indices += first;
	again->verify_request += first;
	again->verify_num_valid = &group->again_valid;
	again->enable = &group->again_enable;
	again->left_out = &group->again_left_out;
}

/* The requests of (b): as if each had cached no more than it has read before. */
static kvc_requests requests_again(
        kvc_guard *guard, struct kvc__guard_group *group, kvc_tensor *tensors)
{
	struct kvc__step *step = &guard->step;
	kvc_requests requests = step->requests;

	tensors[0] = kvc__vector_of(step->prefix_again, &step->request_count);
	tensors[1] = kvc__vector_of(group->start_again, &step->request_count);
	tensors[2] = kvc__vector_of(group->chain_again, &step->request_count);
	requests.prefix_lens = &tensors[0];
	requests.start = &tensors[1];
	requests.verify_chain_in = &tensors[2];
	requests.chain_end = NULL;
	return requests;
}

static kvc_requests requests_first(
        kvc_guard *guard, struct kvc__guard_group *group, kvc_tensor *tensors)
{
	struct kvc__step *step = &guard->step;
	kvc_requests requests = step->requests;

	tensors[0] = kvc__vector_of(step->start_first, &step->request_count);
	tensors[1] = kvc__vector_of(group->chain_first, &step->request_count);
	tensors[2] = kvc__vector_of(group->chain_last, &step->request_count);
	requests.start = &tensors[0];
	requests.verify_chain_in = &tensors[1];
	requests.chain_end = &tensors[2];
	return requests;
}

/* The slot before a position that is not the first of its window, as a predecessor in a plan. */
static int64_t predecessor_of(const struct kvc__step *step, const struct kvc__guard_group *group,
        int64_t r, int64_t position)
{
	int64_t slot = kvc__guard_slot_at(step, group, r, position - 1);

	if (kvc__guard_is_written(group, slot))
		return -3;
	return slot < 0 ? -1 : slot;
}

/* May the plan's entry at this position of request r look at the slot before? */
static int has_predecessor(const struct kvc__step *step, const struct kvc__guard_group *group,
        int64_t r, int64_t position)
{
	return position > kvc__guard_window_start(group, step->entries[r].prefix);
}

/*
 * Without expected tokens (a) does not know the chain before its first entry. The slot before it is
 * still there to be read, unless it lies before the window.
 */
static void connect_first(kvc_guard *guard, struct kvc__guard_group *group)
{
	const struct kvc__step *step = &guard->step;
	const kvc_plan *plan = &group->plan;

	for (int64_t i = 0; i < group->first_count; i++) {
		int64_t r = plan->verify_request[i], position = plan->verify_expected_positions[i];
		if (plan->verify_prev_slot_indices[i] == -2 && group->chain_first[r] == 0 &&
		        has_predecessor(step, group, r, position))
			plan->verify_prev_slot_indices[i] =
			        predecessor_of(step, group, r, position);
	}
}

kvc_status kvc__reads_plan(kvc_guard *guard, struct kvc__guard_group *group, void *stream)
{
	struct kvc__step *step = &guard->step;
	kvc_tensor exclude = kvc_tensor_make(group->exclude, KVC_UINT8, 1, &group->exclude_bytes);
	kvc_tensor tensors[3];
	kvc_requests requests;
	int64_t again, budget = guard->options.verify_budget;

	count_reads(guard, group, &again);
	/* With every read wanted, (a) is everything. */
	group->again_count = budget < 0 ? 0 : again < budget ? again : budget;
	KVC__TRY(bind_group_plan(guard, group, group->first_count + group->again_count));
	split_plan(group);

	/* (a) comes second, because what both write about the writes is right in (a) alone. */
	requests = requests_again(guard, group, tensors);
	kvc_plan_args args = plan_args_of(group, step, &requests);
	args.exclude = &exclude;
	args.rotation = &group->rotation;
	group->again_valid = 0;
	if (group->again_count > 0)
		KVC__TRY(kvc_canary_plan(&group->plan_again, &args, stream));
	group->again_left_out = budget < 0 ? 0 : again - group->again_count;
	requests = requests_first(guard, group, tensors);
	args.rotation = NULL;
	KVC__TRY(kvc_canary_plan(&group->plan, &args, stream));
	connect_first(guard, group);
	return KVC_OK;
}

/* ---- double ownership ---- */

/*
 * What check_plan is shown of entry i. It compares predecessors by slot and takes codes for unknown,
 * so codes are put back into slots where the slot before is still the request's. Slots outside the
 * pool it would refuse; they are verify's to report.
 */
static void view_entry(const struct kvc__step *step, const struct kvc__guard_group *group,
        int64_t i, int64_t *slot_out, int64_t *prev_out)
{
	const kvc_plan *plan = &group->plan;
	int64_t slot = plan->verify_slot_indices[i], prev = plan->verify_prev_slot_indices[i];
	int64_t r = plan->verify_request[i], position = plan->verify_expected_positions[i];
	int64_t count = group->group.record_count;

	if (prev == -2)
		prev = has_predecessor(step, group, r, position)
		               ? predecessor_of(step, group, r, position)
		               : -3;
	*slot_out = slot < count ? slot : -1;
	*prev_out = prev < count ? prev : -3;
}

static kvc_status check_double_owners(
        kvc_guard *guard, struct kvc__guard_group *group, void *stream)
{
	int64_t count = group->first_count + group->again_count;
	int64_t shape[2] = { 2, group->group.record_count };
	int32_t valid = (int32_t)count;
	kvc_plan view = group->plan;

	KVC__TRY(kvc__guard_grow(guard, &guard->view_memory, 2 * count * (int64_t)sizeof(int64_t)));
	view.verify_capacity = count;
	view.verify_num_valid = &valid;
	view.verify_slot_indices = guard->view_memory.data;
	view.verify_prev_slot_indices = view.verify_slot_indices + count;
	for (int64_t i = 0; i < count; i++)
		view_entry(&guard->step, group, i, &view.verify_slot_indices[i],
		        &view.verify_prev_slot_indices[i]);
	kvc_tensor scratch = kvc_tensor_make(guard->scratch, KVC_INT64, 2, shape);
	KVC__TRY(kvc_canary_check_plan(&view, &group->group,
	        group->mapping.shape ? &group->mapping : NULL, &scratch, &guard->ring, stream));
	kvc__guard_note_claims(guard, group, &view);
	return KVC_OK;
}

/* ---- verifying ---- */

kvc_status kvc__guard_verify(kvc_guard *guard, struct kvc__guard_group *group, const kvc_plan *plan,
        const kvc_requests *requests, int64_t *valid, int64_t launch_tag, void *stream)
{
	kvc_verify_args args = KVC_VERIFY_ARGS_INIT;
	int64_t bytes = guard->counters.bytes_hashed, unchecked = guard->counters.chain_unchecked;
	kvc_tensor valid_prefix = kvc__vector_of(valid, &guard->step.request_count);

	args.group = &group->group;
	args.plan = plan;
	args.requests = requests;
	args.check_finite = guard->options.check_finite != 0;
	args.valid_prefix = valid ? &valid_prefix : NULL;
	args.launch_tag = launch_tag;
	args.ring = &guard->ring;
	KVC__TRY(kvc_canary_verify(&args, stream));
	guard->statistics.bytes_verified += guard->counters.bytes_hashed - bytes;
	guard->statistics.chain_unchecked += guard->counters.chain_unchecked - unchecked;
	kvc__guard_note(guard, group, -1);
	return KVC_OK;
}

/* Count what was looked at, slot by slot, and remember when. */
static void account_reads(kvc_guard *guard, struct kvc__guard_group *group)
{
	const struct kvc__step *step = &guard->step;
	const kvc_plan *plan = &group->plan;
	kvc_guard_statistics *statistics = &guard->statistics;

	for (int64_t i = 0; i < group->first_count + group->again_count; i++) {
		int64_t slot = plan->verify_slot_indices[i];
		int64_t r = plan->verify_request[i], position = plan->verify_expected_positions[i];
		if (slot < 0 &&
		        kvc__guard_is_written(group, kvc__guard_slot_at(step, group, r, position)))
			statistics->slots_excluded++;
		if (slot < 0 || slot >= group->group.record_count)
			continue;
		group->seen[slot] = (uint32_t)step->number;
		if (position >= step->entries[r].start)
			statistics->slots_first_read++;
		else
			statistics->slots_rotated++;
		statistics->slots_verified++;
	}
	statistics->slots_left_out += group->again_left_out;
}

/* valid = the lower of the two, where a part without a violation says 'whole'. */
static void merge_valid(struct kvc__step *step, const int64_t *whole)
{
	for (int64_t r = 0; r < step->request_count; r++)
		if (step->valid_part[r] < whole[r] && step->valid_part[r] < step->valid[r])
			step->valid[r] = step->valid_part[r];
}

kvc_status kvc__reads_check(kvc_guard *guard, struct kvc__guard_group *group, void *stream)
{
	struct kvc__step *step = &guard->step;
	kvc_tensor tensors[3];
	kvc_requests requests;

	KVC__TRY(check_double_owners(guard, group, stream));
	requests = requests_first(guard, group, tensors);
	KVC__TRY(kvc__guard_verify(guard, group, &group->plan, &requests, step->valid_part,
	        KVC_TAG_STEP_READ, stream));
	merge_valid(step, step->prefix_lens);
	if (group->again_count > 0) {
		requests = requests_again(guard, group, tensors);
		KVC__TRY(kvc__guard_verify(guard, group, &group->plan_again, &requests,
		        step->valid_part, KVC_TAG_STEP_READ, stream));
		merge_valid(step, step->prefix_again);
	}
	account_reads(guard, group);
	return KVC_OK;
}
