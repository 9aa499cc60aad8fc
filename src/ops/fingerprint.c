/*
 * The operations that only look at KV bytes: fingerprints of slots, and the search for NaN and
 * infinity. Front doors: check, then split over threads.
 */
#include "cpu/fingerprint.h"
#include "base/threads.h"
#include "cpu/dispatch.h"
#include "cuda/cuda.h"
#include "ops/arguments.h"
#include "ops/group.h"

#include <stdatomic.h>

struct fingerprint_task {
	const struct kvc__cpu_variant *cpu;
	const kvc_group *group;
	const int64_t *slots;
	uint64_t *out;
};

static void fingerprint_range(void *context, int64_t begin, int64_t end)
{
	const struct fingerprint_task *task = context;

	for (int64_t i = begin; i < end; i += KVC__BATCH_SLOTS)
		kvc__fingerprint_batch(task->cpu, task->group, task->slots + i,
		        end - i < KVC__BATCH_SLOTS ? end - i : KVC__BATCH_SLOTS, task->out + i);
}

/* The back end for a call on device memory, with its addresses checked. */
static kvc_status find_cuda(const struct kvc__cuda_ops **cuda, const void *out,
        const kvc_group *group, const kvc_tensor *slots)
{
	const struct kvc__named list[] = { { slots, "slots" } };

	KVC__TRY(kvc__check_vector(slots, "slots", KVC_INT64, KVC__ANY_LENGTH));
	KVC__TRY(kvc__group_check_same_device(group, list, 1));
	if (slots->shape[0] > 0 && !out)
		return kvc__fail_null_argument(-1, "out");
	KVC__TRY(kvc__cuda_find(cuda, group->device, "group"));
	KVC__TRY(kvc__group_check_pointers(group));
	KVC__TRY(kvc__cuda_check_pointer(out, "out"));
	return kvc__cuda_check_pointer(kvc__tensor_data(slots), "slots");
}

kvc_status kvc_fingerprint(
        uint64_t *out, const kvc_group *group, const kvc_tensor *slots, void *stream)
{
	const struct kvc__cpu_variant *cpu;
	kvc_group taken = KVC_GROUP_INIT;
	const struct kvc__cuda_ops *cuda;

	KVC__TRY(kvc__group_take(&taken, group));
	if (kvc__is_cuda(taken.device)) {
		KVC__TRY(find_cuda(&cuda, out, &taken, slots));
		return cuda->fingerprint(out, &taken, (const void *)kvc__tensor_data(slots),
		        slots->shape[0], stream);
	}
	KVC__TRY(kvc__cpu_choose(&cpu));
	int64_t limit = kvc__group_slot_limit(&taken, 0);
	KVC__TRY(kvc__group_check_slots(&taken, slots, "slots", limit));
	if (slots->shape[0] > 0 && !out)
		return kvc__fail_null_argument(-1, "out");

	struct fingerprint_task task = { cpu, &taken, (const void *)kvc__tensor_data(slots), out };
	kvc__parallel_for(
	        slots->shape[0], kvc__fingerprint_grain(&taken), fingerprint_range, &task);
	return KVC_OK;
}

/* ---- NaN and infinity ---- */

struct finite_task {
	const struct kvc__cpu_variant *cpu;
	const kvc_group *group;
	const int64_t *slots;
	int64_t slot_count;
	_Atomic int64_t scanned;
	_Atomic int64_t found;
	_Atomic int64_t first; /* lowest index in 'slots' of a slot with such a value */
};

/* Elements of a slot that are not finite. Most slots have none, and that is quick to see. */
static int64_t count_in_slot(const struct finite_task *task, int64_t slot, int64_t next)
{
	int64_t count = 0, unused;

	if (!kvc__slot_nonfinite(task->cpu, task->group, slot, next))
		return 0;
	for (int64_t s = 0; s < task->group->source_count; s++)
		count += kvc__nonfinite_portable(&task->group->sources[s], slot, &unused);
	return count;
}

static void finite_range(void *context, int64_t begin, int64_t end)
{
	struct finite_task *task = context;
	int64_t scanned = 0, found = 0, first = INT64_MAX;

	for (int64_t i = begin; i < end; i++) {
		if (task->slots[i] < 0)
			continue;
		scanned++;
		int64_t next = i + 1 < end && task->slots[i + 1] >= 0 ? task->slots[i + 1]
		                                                      : task->slots[i];
		int64_t count = count_in_slot(task, task->slots[i], next);
		found += count;
		if (count > 0 && first == INT64_MAX)
			first = i;
	}
	atomic_fetch_add(&task->scanned, scanned);
	atomic_fetch_add(&task->found, found);
	int64_t lowest = atomic_load(&task->first);
	while (first < lowest && !atomic_compare_exchange_weak(&task->first, &lowest, first))
		continue;
}

/* Where the first such value stands; byte positions become heads and dims only here. */
static void locate_first(kvc_finite_scan *scan, const kvc_group *group, int64_t slot)
{
	for (int64_t s = 0; s < group->source_count; s++) {
		const kvc_source *source = &group->sources[s];
		int64_t first = 0;
		if (kvc__nonfinite_portable(source, slot, &first) == 0)
			continue;
		scan->first_slot = slot;
		scan->first_source_id = (int64_t)source->id;
		scan->first_head = first / source->head_bytes;
		scan->first_dim = first % source->head_bytes / kvc__dtype_bytes(source->dtype);
		return;
	}
}

/* How many slots make a piece of work worth handing to another thread. */
static int64_t finite_grain(const kvc_group *group)
{
	int64_t bytes = 64;

	for (int64_t s = 0; s < group->source_count; s++)
		bytes += group->sources[s].read_bytes < 131072 ? group->sources[s].read_bytes
		                                               : 131072;
	return bytes >= 131072 ? 1 : 131072 / bytes;
}

kvc_status kvc_canary_scan_finite(
        kvc_finite_scan *out, const kvc_group *group, const kvc_tensor *slots, void *stream)
{
	const struct kvc__cpu_variant *cpu;
	kvc_group taken = KVC_GROUP_INIT;
	kvc_finite_scan scan = { 0, 0, -1, -1, -1, -1 };
	const struct kvc__cuda_ops *cuda;

	if (!out)
		return kvc__fail_null_argument(-1, "out");
	KVC__TRY(kvc__group_take(&taken, group));
	if (kvc__is_cuda(taken.device)) {
		KVC__TRY(find_cuda(&cuda, out, &taken, slots));
		return cuda->scan_finite(out, &taken, (const void *)kvc__tensor_data(slots),
		        slots->shape[0], stream);
	}
	KVC__TRY(kvc__cpu_choose(&cpu));
	int64_t limit = kvc__group_slot_limit(&taken, 0);
	KVC__TRY(kvc__group_check_slots(&taken, slots, "slots", limit));

	struct finite_task task = { cpu, &taken, (const void *)kvc__tensor_data(slots),
		slots->shape[0], 0, 0, INT64_MAX };
	kvc__parallel_for(task.slot_count, finite_grain(&taken), finite_range, &task);
	scan.slots_scanned = atomic_load(&task.scanned);
	scan.nonfinite_count = atomic_load(&task.found);
	if (scan.nonfinite_count > 0)
		locate_first(&scan, &taken, task.slots[atomic_load(&task.first)]);
	*out = scan;
	return KVC_OK;
}
