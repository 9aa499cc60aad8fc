/*
 * The operations that only look at KV bytes: fingerprints of slots, and the search for NaN and
 * infinity. Front doors: check, then split over threads.
 */
#include "cpu/fingerprint.h"
#include "base/threads.h"
#include "cuda/cuda.h"
#include "ops/arguments.h"
#include "ops/group.h"

struct fingerprint_task {
	const kvc_group *group;
	const int64_t *slots;
	uint64_t *out;
};

static void fingerprint_range(void *context, int64_t begin, int64_t end)
{
	const struct fingerprint_task *task = context;

	for (int64_t i = begin; i < end; i++)
		task->out[i] = task->slots[i] < 0
		                       ? 0
		                       : kvc__fingerprint_portable(task->group, task->slots[i]);
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
	kvc_group taken = KVC_GROUP_INIT;
	const struct kvc__cuda_ops *cuda;

	KVC__TRY(kvc__group_take(&taken, group));
	if (kvc__is_cuda(taken.device)) {
		KVC__TRY(find_cuda(&cuda, out, &taken, slots));
		return cuda->fingerprint(out, &taken, (const void *)kvc__tensor_data(slots),
		        slots->shape[0], stream);
	}
	int64_t limit = kvc__group_slot_limit(&taken, 0);
	KVC__TRY(kvc__group_check_slots(&taken, slots, "slots", limit));
	if (slots->shape[0] > 0 && !out)
		return kvc__fail_null_argument(-1, "out");

	struct fingerprint_task task = { &taken, (const void *)kvc__tensor_data(slots), out };
	kvc__parallel_for(
	        slots->shape[0], kvc__fingerprint_grain(&taken), fingerprint_range, &task);
	return KVC_OK;
}

/* Add what one source holds at one slot; byte positions become heads and dims only here. */
static void scan_source(kvc_finite_scan *scan, const kvc_source *source, int64_t slot)
{
	int64_t first = 0;
	int64_t found = kvc__nonfinite_portable(source, slot, &first);

	if (found > 0 && scan->nonfinite_count == 0) {
		scan->first_slot = slot;
		scan->first_source_id = (int64_t)source->id;
		scan->first_head = first / source->head_bytes;
		scan->first_dim = first % source->head_bytes / kvc__dtype_bytes(source->dtype);
	}
	scan->nonfinite_count += found;
}

kvc_status kvc_canary_scan_finite(
        kvc_finite_scan *out, const kvc_group *group, const kvc_tensor *slots, void *stream)
{
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
	int64_t limit = kvc__group_slot_limit(&taken, 0);
	KVC__TRY(kvc__group_check_slots(&taken, slots, "slots", limit));

	const int64_t *values = (const void *)kvc__tensor_data(slots);
	for (int64_t i = 0; i < slots->shape[0]; i++) {
		if (values[i] < 0)
			continue;
		scan.slots_scanned++;
		for (int64_t s = 0; s < taken.source_count; s++)
			scan_source(&scan, &taken.sources[s], values[i]);
	}
	*out = scan;
	return KVC_OK;
}
