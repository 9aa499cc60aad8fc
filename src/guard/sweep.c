/*
 * Slots that no request reads: cached ones that lie idle, listed by the engine, and the unwritten
 * rest of each request's last page.
 */
#include "guard/guard.h"

#include <string.h>

/* ---- cached, idle slots ---- */

/* Memory of one call of the callback. */
struct sweep_room {
	kvc_sweep_slot listed[KVC__SWEEP_CAPACITY];
	int64_t rows[KVC__SWEEP_CAPACITY];
	int64_t namespaces[KVC__SWEEP_CAPACITY];
	int64_t lengths[KVC__SWEEP_CAPACITY];
};

int64_t kvc__sweep_bytes(void)
{
	return (int64_t)sizeof(struct sweep_room);
}

/* Each slot is a request of its own, so that each has its namespace. Row -1: nobody's. */
static void fill_sweep(kvc_plan *plan, struct sweep_room *room, int64_t count)
{
	for (int64_t i = 0; i < count; i++) {
		const kvc_sweep_slot *listed = &room->listed[i];
		plan->verify_slot_indices[i] = listed->slot;
		plan->verify_expected_tokens[i] = listed->expected_token;
		plan->verify_expected_positions[i] = listed->position;
		plan->verify_prev_slot_indices[i] = listed->prev_slot;
		plan->verify_request[i] = (int32_t)i;
		room->namespaces[i] = listed->name_space;
		room->rows[i] = -1;
		room->lengths[i] = 0;
	}
	*plan->verify_num_valid = (int32_t)count;
	*plan->enable = 1;
	*plan->left_out = 0;
}

static int64_t account_sweep(
        kvc_guard *guard, struct kvc__guard_group *group, const kvc_plan *plan, int64_t count)
{
	int64_t looked_at = 0;

	for (int64_t i = 0; i < count; i++) {
		int64_t slot = plan->verify_slot_indices[i];
		if (slot < 0 || slot >= group->group.record_count)
			continue;
		looked_at++;
		if (guard->last_step >= 0)
			group->seen[slot] = (uint32_t)guard->last_step;
	}
	guard->statistics.slots_swept += looked_at;
	guard->statistics.slots_verified += looked_at;
	return looked_at;
}

static kvc_status sweep_piece(kvc_guard *guard, struct kvc__guard_group *group,
        const kvc_plan *plan, int64_t count, void *stream)
{
	struct sweep_room *room = guard->sweep_memory.data;
	kvc_requests requests = KVC_REQUESTS_INIT;
	int64_t length = count;

	kvc_tensor rows = kvc__vector_of(room->rows, &length);
	kvc_tensor namespaces = kvc__vector_of(room->namespaces, &length);
	kvc_tensor lengths = kvc__vector_of(room->lengths, &length);
	requests.req_pool_indices = &rows;
	requests.prefix_lens = &lengths;
	requests.extend_seq_lens = &lengths;
	requests.namespaces = &namespaces;
	return kvc__guard_verify(guard, group, plan, &requests, NULL, KVC_TAG_SWEEP, stream);
}

int64_t kvc_sweep_listed(void *list, kvc_sweep_slot *out, int64_t capacity)
{
	kvc_sweep_list *rest = list;
	int64_t count = rest->count < capacity ? rest->count : capacity;

	for (int64_t i = 0; i < count; i++)
		out[i] = rest->slots[i];
	rest->slots += count;
	rest->count -= count;
	return count;
}

static kvc_status run_sweep(kvc_guard *guard, struct kvc__guard_group *group, kvc_sweep_fn next,
        void *context, int64_t *swept, void *stream)
{
	struct sweep_room *room = guard->sweep_memory.data;
	kvc_plan plan;

	KVC__TRY(kvc_plan_bind(
	        &plan, group->plan_memory.data, group->group.device, KVC__SWEEP_CAPACITY, 0));
	for (;;) {
		/* Zeroed: an engine that knows nothing of namespaces need not set them. */
		memset(room->listed, 0, sizeof(room->listed));
		int64_t count = next(context, room->listed, KVC__SWEEP_CAPACITY);
		if (count < 0 || count > KVC__SWEEP_CAPACITY)
			return kvc__fail_guard_sweep_count(-1, count, KVC__SWEEP_CAPACITY);
		if (count == 0)
			return KVC_OK;
		fill_sweep(&plan, room, count);
		KVC__TRY(sweep_piece(guard, group, &plan, count, stream));
		*swept += account_sweep(guard, group, &plan, count);
	}
}

kvc_status kvc_guard_sweep(kvc_guard *guard, int32_t group, kvc_sweep_fn next, void *context,
        int64_t *swept_out, void *stream)
{
	int64_t swept = 0;

	KVC__TRY(kvc__guard_find_group(guard, group));
	if (!next)
		return kvc__fail_null_argument(-1, "next");
	if (guard->step_open)
		return kvc__fail_guard_step_open(-1, guard->last_step);
	kvc_status status = KVC_OK;
	if (guard->options.checks)
		status = run_sweep(guard, guard->groups[group], next, context, &swept, stream);
	if (swept_out)
		*swept_out = swept;
	return status;
}

/* ---- the rest of the last page ---- */

/* The slot of the last position that request r reads or writes in this step, -1 if none. */
static int64_t last_slot_of(
        const struct kvc__step *step, const struct kvc__guard_group *group, int64_t r)
{
	if (step->offsets[r + 1] > step->offsets[r])
		return group->slots[step->offsets[r + 1] - 1];
	return step->entries[r].prefix > 0
	               ? kvc__guard_slot_at(step, group, r, step->entries[r].prefix - 1)
	               : -1;
}

/*
 * Attention kernels multiply the unwritten slots of a sequence's last page by a probability of 0,
 * and 0 times NaN is NaN. Nobody has stamped these slots, so this is a count and no violation.
 */
kvc_status kvc__sweep_tails(kvc_guard *guard, struct kvc__guard_group *group, void *stream)
{
	const struct kvc__step *step = &guard->step;
	kvc_finite_scan scan;
	int64_t count = 0, page_size;

	if (group->group.source_count == 0 || group->sources[0].page_size <= 1)
		return KVC_OK;
	page_size = group->sources[0].page_size;
	KVC__TRY(kvc__guard_grow(guard, &guard->tail_memory,
	        step->request_count * page_size * (int64_t)sizeof(int64_t)));
	int64_t *slots = guard->tail_memory.data;
	for (int64_t r = 0; r < step->request_count; r++) {
		int64_t slot = step->entries[r].live ? last_slot_of(step, group, r) : -1;
		if (slot < 0 || slot >= group->group.record_count)
			continue;
		int64_t past = (slot / page_size + 1) * page_size;
		for (slot++; slot < past && slot < group->group.record_count; slot++)
			slots[count++] = slot;
	}
	kvc_tensor tail = kvc__vector_of(slots, &count);
	KVC__TRY(kvc_canary_scan_finite(&scan, &group->group, &tail, stream));
	guard->statistics.stale_nonfinite += scan.nonfinite_count;
	if (guard->statistics.stale_nonfinite_slot < 0)
		guard->statistics.stale_nonfinite_slot = scan.first_slot;
	return KVC_OK;
}
