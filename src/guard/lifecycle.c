/*
 * The life of a guard: made, given groups, asked for stamps, told of slots that change hands or
 * move, freed. The step itself is in step.c.
 */
#include "guard/guard.h"

#include <string.h>

#include "base/alloc.h"
#include "cpu/records.h"
#include "ops/arguments.h"
#include "ops/group.h"

/* Rows of the request table and of the ring: far beyond any engine, far from overflow. */
#define COUNT_MAX (INT64_C(1) << 31)

/* ---- memory ---- */

kvc_status kvc__guard_alloc(kvc_guard *guard, void **out, int64_t count, size_t item_bytes)
{
	void *memory = kvc__alloc(count, item_bytes);

	*out = memory;
	if (!memory)
		return kvc__fail_no_memory(-1, count, (int64_t)item_bytes);
	guard->memory_bytes += count * (int64_t)item_bytes;
	return KVC_OK;
}

void kvc__guard_free(kvc_guard *guard, void *memory, int64_t count, size_t item_bytes)
{
	if (!memory)
		return;
	guard->memory_bytes -= count * (int64_t)item_bytes;
	kvc__free(memory);
}

kvc_status kvc__guard_grow(kvc_guard *guard, struct kvc__growing *memory, int64_t bytes)
{
	void *larger;

	/* Never NULL, not even for 0 bytes: callers lay out arrays in it. */
	if (bytes < (int64_t)sizeof(int64_t))
		bytes = (int64_t)sizeof(int64_t);
	if (bytes <= memory->bytes)
		return KVC_OK;
	if (bytes < 2 * memory->bytes)
		bytes = 2 * memory->bytes;
	KVC__TRY(kvc__guard_alloc(guard, &larger, bytes, 1));
	kvc__guard_free(guard, memory->data, memory->bytes, 1);
	memory->data = larger;
	memory->bytes = bytes;
	return KVC_OK;
}

kvc_tensor kvc__vector_of(const int64_t *data, int64_t *count)
{
	return kvc_tensor_make((void *)(uintptr_t)data, KVC_INT64, 1, count);
}

/* ---- create and destroy ---- */

static kvc_status check_guard_options(const kvc_guard_options *options)
{
	if (options->request_rows < 1 || options->request_rows > COUNT_MAX)
		return kvc__fail_guard_value_out_of_range(
		        -1, "request_rows", options->request_rows, 1, COUNT_MAX);
	if (options->verify_budget < -1 || options->verify_budget > INT32_MAX)
		return kvc__fail_guard_value_out_of_range(
		        -1, "verify_budget", options->verify_budget, -1, INT32_MAX);
	if (options->ring_capacity < 1 || options->ring_capacity > COUNT_MAX)
		return kvc__fail_guard_value_out_of_range(
		        -1, "ring_capacity", options->ring_capacity, 1, COUNT_MAX);
	return KVC_OK;
}

static kvc_status alloc_guard_parts(kvc_guard *guard)
{
	int64_t capacity = guard->options.ring_capacity, row_count = guard->options.request_rows;
	void *memory;

	KVC__TRY(kvc__guard_alloc(guard, &memory, capacity, sizeof(kvc_violation)));
	guard->ring.rows = memory;
	KVC__TRY(kvc__guard_alloc(guard, &memory, capacity, sizeof(*guard->contexts)));
	guard->contexts = memory;
	KVC__TRY(kvc__guard_alloc(guard, &memory, row_count, sizeof(*guard->rows)));
	guard->rows = memory;
	for (int64_t i = 0; i < row_count; i++)
		guard->rows[i].request = -1;
	return KVC_OK;
}

kvc_status kvc_guard_create(kvc_guard **out, const kvc_guard_options *options)
{
	kvc_guard_options known = KVC_GUARD_OPTIONS_INIT;
	kvc_ring ring = KVC_RING_INIT;
	kvc_guard *guard;

	if (!out)
		return kvc__fail_null_argument(-1, "out");
	KVC__TAKE(&known, options, "options");
	KVC__TRY(check_guard_options(&known));
	guard = kvc__alloc(1, sizeof(*guard));
	if (!guard)
		return kvc__fail_no_memory(-1, 1, (int64_t)sizeof(*guard));
	guard->memory_bytes = (int64_t)sizeof(*guard);
	guard->options = known;
	guard->last_step = -1;
	guard->statistics.stale_nonfinite_slot = -1;
	guard->ring = ring;
	guard->ring.capacity = known.ring_capacity;
	guard->ring.consumed = &guard->consumed;
	guard->ring.counters = &guard->counters;
	kvc_status status = alloc_guard_parts(guard);
	if (status != KVC_OK) {
		kvc_guard_destroy(guard);
		return status;
	}
	*out = guard;
	return KVC_OK;
}

static void free_guard_group(struct kvc__guard_group *group)
{
	if (!group)
		return;
	kvc__free(group->group.records);
	kvc__free(group->group.owners);
	kvc__free(group->sources);
	kvc__free(group->seen);
	kvc__free(group->exclude);
	kvc__free(group->at_prefix);
	kvc__free(group->at_window);
	kvc__free(group->plan_memory.data);
	kvc__free(group->numbers_memory.data);
	kvc__free(group);
}

void kvc_guard_destroy(kvc_guard *guard)
{
	if (!guard)
		return;
	for (int32_t i = 0; i < guard->group_count; i++)
		free_guard_group(guard->groups[i]);
	kvc__free(guard->groups);
	kvc__free(guard->ring.rows);
	kvc__free(guard->contexts);
	kvc__free(guard->rows);
	kvc__free(guard->snapshot);
	kvc__free(guard->scratch);
	kvc__free(guard->step_memory.data);
	kvc__free(guard->view_memory.data);
	kvc__free(guard->copy_memory.data);
	kvc__free(guard->sweep_memory.data);
	kvc__free(guard->tail_memory.data);
	kvc__free(guard);
}

/* ---- groups ---- */

static void copy_group_name(char *out, const char *name)
{
	size_t length = strnlen(name, KVC__GUARD_NAME_BYTES - 1);

	memcpy(out, name, length);
	out[length] = '\0';
	for (size_t i = 0; i < length; i++)
		if ((unsigned char)out[i] < 0x20 || out[i] == 0x7F)
			out[i] = '?';
}

static kvc_status take_group_mapping(struct kvc__guard_group *group, const kvc_tensor *mapping)
{
	if (!mapping)
		return KVC_OK;
	KVC__TRY(kvc__check_vector(mapping, "mapping", KVC_INT64, KVC__ANY_LENGTH));
	const struct kvc__named list[] = { { mapping, "mapping" } };
	KVC__TRY(kvc__check_devices(list, 1));
	group->mapping = *mapping;
	group->mapping_count = mapping->shape[0];
	group->mapping.shape = &group->mapping_count;
	group->mapping.strides = NULL;
	return KVC_OK;
}

/* All arrays of a group that depend on nothing but its size. */
static kvc_status alloc_group_parts(kvc_guard *guard, struct kvc__guard_group *group)
{
	int64_t count = group->group.record_count, row_count = guard->options.request_rows;
	void *memory;

	KVC__TRY(kvc__guard_alloc(guard, &memory, count, KVC_RECORD_BYTES));
	group->group.records = memory;
	KVC__TRY(kvc__guard_alloc(guard, &memory, count, sizeof(kvc_owner)));
	group->group.owners = memory;
	KVC__TRY(kvc__guard_alloc(guard, &memory, count, sizeof(*group->seen)));
	group->seen = memory;
	group->exclude_bytes = (count + 7) / 8;
	KVC__TRY(kvc__guard_alloc(guard, &memory, group->exclude_bytes, 1));
	group->exclude = memory;
	KVC__TRY(kvc__guard_alloc(guard, &memory, row_count, sizeof(*group->at_prefix)));
	group->at_prefix = memory;
	if (group->window > 0) {
		KVC__TRY(kvc__guard_alloc(guard, &memory, row_count, sizeof(*group->at_window)));
		group->at_window = memory;
	}
	for (int64_t i = 0; i < count; i++) {
		group->group.owners[i].request = -1;
		group->seen[i] = KVC__NEVER_SEEN;
	}
	for (int64_t i = 0; i < row_count; i++) {
		group->at_prefix[i].request = -1;
		if (group->at_window)
			group->at_window[i].request = -1;
	}
	return KVC_OK;
}

static kvc_status check_guard_group(const kvc_guard_group *given)
{
	if (!given->name)
		return kvc__fail_null_argument(-1, "name");
	if (!given->sources && given->source_count != 0)
		return kvc__fail_null_argument(-1, "sources");
	if (given->slot_count < 1 || given->slot_count > COUNT_MAX)
		return kvc__fail_guard_value_out_of_range(
		        -1, "slot_count", given->slot_count, 1, COUNT_MAX);
	if (given->source_count < 0 || given->source_count > COUNT_MAX)
		return kvc__fail_guard_value_out_of_range(
		        -1, "source_count", given->source_count, 0, COUNT_MAX);
	if (given->window < 0)
		return kvc__fail_guard_value_out_of_range(
		        -1, "window", given->window, 0, INT64_MAX);
	return KVC_OK;
}

static kvc_status fill_guard_group(
        kvc_guard *guard, struct kvc__guard_group *group, const kvc_guard_group *given)
{
	kvc_group fresh = KVC_GROUP_INIT;
	size_t source_bytes = (size_t)given->source_count * sizeof(*group->sources);
	void *memory;

	KVC__TRY(kvc__guard_alloc(guard, &memory, given->source_count, sizeof(*group->sources)));
	group->sources = memory;
	if (source_bytes)
		memcpy(group->sources, given->sources, source_bytes);
	copy_group_name(group->name, given->name);
	group->window = given->window;
	group->token_offset = given->token_offset;
	group->group = fresh;
	group->group.record_count = given->slot_count;
	group->group.sources = given->source_count ? group->sources : NULL;
	group->group.source_count = given->source_count;
	group->group.fingerprint = given->fingerprint;
	group->group.coverage = given->coverage;
	group->group.stamping = given->stamping;
	group->group.reserved_slot = given->reserved_slot;
	KVC__TRY(take_group_mapping(group, given->mapping));
	KVC__TRY(alloc_group_parts(guard, group));
	return kvc_group_check(&group->group);
}

/* Room for one more group, and scratch for as many slots as it has. */
static kvc_status make_room_for_group(kvc_guard *guard, int64_t slot_count)
{
	struct kvc__guard_group **groups;
	int32_t count = guard->group_count, capacity = guard->group_capacity;
	void *memory;

	if (slot_count > guard->scratch_slots) {
		KVC__TRY(kvc__guard_alloc(guard, &memory, 2 * slot_count, sizeof(int64_t)));
		kvc__guard_free(guard, guard->scratch, 2 * guard->scratch_slots, sizeof(int64_t));
		guard->scratch = memory;
		guard->scratch_slots = slot_count;
	}
	if (count < capacity)
		return KVC_OK;
	KVC__TRY(kvc__guard_alloc(guard, &memory, count + 1, sizeof(*groups)));
	groups = memory;
	if (count)
		memcpy(groups, guard->groups, (size_t)count * sizeof(*groups));
	kvc__guard_free(guard, guard->groups, capacity, sizeof(*groups));
	guard->groups = groups;
	guard->group_capacity = count + 1;
	return KVC_OK;
}

/* A sweep can then run without asking for memory. */
static kvc_status make_room_for_sweep(kvc_guard *guard, struct kvc__guard_group *group)
{
	int64_t bytes = (int64_t)kvc_plan_bytes(KVC__SWEEP_CAPACITY, 0);

	KVC__TRY(kvc__guard_grow(guard, &guard->sweep_memory, kvc__sweep_bytes()));
	return kvc__guard_grow(guard, &group->plan_memory, bytes);
}

kvc_status kvc_guard_attach_group(
        kvc_guard *guard, const kvc_guard_group *group, int32_t *group_out)
{
	kvc_guard_group given = KVC_GUARD_GROUP_INIT;
	int64_t bytes_before;
	void *memory;

	if (!guard)
		return kvc__fail_null_argument(-1, "guard");
	if (!group_out)
		return kvc__fail_null_argument(-1, "group_out");
	KVC__TAKE(&given, group, "group");
	if (guard->last_step >= 0)
		return kvc__fail_guard_attach_late(-1, guard->last_step);
	KVC__TRY(check_guard_group(&given));
	KVC__TRY(make_room_for_group(guard, given.slot_count));
	bytes_before = guard->memory_bytes;
	KVC__TRY(kvc__guard_alloc(guard, &memory, 1, sizeof(struct kvc__guard_group)));
	struct kvc__guard_group *fresh = memory;
	fresh->number = guard->group_count;
	kvc_status status = fill_guard_group(guard, fresh, &given);
	if (status == KVC_OK)
		status = make_room_for_sweep(guard, fresh);
	if (status != KVC_OK) {
		free_guard_group(fresh);
		guard->memory_bytes = bytes_before;
		return status;
	}
	guard->groups[guard->group_count] = fresh;
	*group_out = guard->group_count++;
	return KVC_OK;
}

kvc_status kvc__guard_find_group(const kvc_guard *guard, int32_t number)
{
	if (!guard)
		return kvc__fail_null_argument(-1, "guard");
	if (number < 0 || number >= guard->group_count)
		return kvc__fail_guard_group_unknown(-1, number, guard->group_count);
	return KVC_OK;
}

kvc_status kvc_guard_stamp(
        kvc_stamp *out, const kvc_guard *guard, int32_t group, uint64_t k_id, uint64_t v_id)
{
	if (!out)
		return kvc__fail_null_argument(-1, "out");
	KVC__TRY(kvc__guard_find_group(guard, group));
	return kvc_group_stamp(out, &guard->groups[group]->group, k_id, v_id);
}

kvc_status kvc_guard_group_view(kvc_group *out, const kvc_guard *guard, int32_t group)
{
	if (!out)
		return kvc__fail_null_argument(-1, "out");
	KVC__TRY(kvc__guard_find_group(guard, group));
	*out = guard->groups[group]->group;
	return KVC_OK;
}

/* ---- records that change without a step ---- */

kvc_status kvc_guard_void(kvc_guard *guard, int32_t group, const kvc_tensor *slots, void *stream)
{
	KVC__TRY(kvc__guard_find_group(guard, group));
	struct kvc__guard_group *known = guard->groups[group];
	KVC__TRY(kvc_canary_void(&known->group, slots, stream));
	for (int64_t i = 0; i < slots->shape[0]; i++) {
		int64_t slot = kvc__index_at(slots, i);
		if (slot >= 0)
			known->seen[slot] = KVC__NEVER_SEEN;
	}
	return KVC_OK;
}

/* The age of a copy is that of its original. 'kept' has room for one entry a pair. */
static void copy_seen(
        struct kvc__guard_group *group, const kvc_tensor *from, const kvc_tensor *to, int64_t *kept)
{
	for (int64_t i = 0; i < from->shape[0]; i++) {
		int64_t slot = kvc__index_at(from, i);
		kept[i] = slot >= 0 ? group->seen[slot] : KVC__NEVER_SEEN;
	}
	for (int64_t i = 0; i < from->shape[0]; i++) {
		int64_t slot = kvc__index_at(to, i);
		if (slot >= 0 && kvc__index_at(from, i) >= 0)
			group->seen[slot] = (uint32_t)kept[i];
	}
}

kvc_status kvc_guard_copy(
        kvc_guard *guard, int32_t group, const kvc_tensor *from, const kvc_tensor *to, void *stream)
{
	int64_t shape[2] = { 0, 6 };

	KVC__TRY(kvc__guard_find_group(guard, group));
	struct kvc__guard_group *known = guard->groups[group];
	KVC__TRY(kvc__check_vector(from, "from", KVC_INT64, KVC__ANY_LENGTH));
	shape[0] = from->shape[0];
	KVC__TRY(kvc__guard_grow(
	        guard, &guard->copy_memory, shape[0] * shape[1] * (int64_t)sizeof(int64_t)));
	kvc_tensor scratch = kvc_tensor_make(guard->copy_memory.data, KVC_INT64, 2, shape);
	KVC__TRY(kvc_canary_copy(&known->group, from, to, &scratch, stream));
	copy_seen(known, from, to, guard->copy_memory.data);
	return KVC_OK;
}
