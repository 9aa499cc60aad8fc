/*
 * Operations on records alone: making them never stamped, and copying them beside their KV.
 */
#include "cpu/records.h"

#include <string.h>

#include "cuda/cuda.h"
#include "ops/arguments.h"
#include "ops/group.h"

static kvc_status records_on_cuda(const struct kvc__cuda_records_call *call, void *stream)
{
	const struct kvc__cuda_ops *cuda;

	KVC__TRY(kvc__cuda_find(&cuda, call->group->device, "group"));
	KVC__TRY(kvc__cuda_check_pointer(call->group->records, "group.records"));
	KVC__TRY(kvc__cuda_check_pointer(call->group->owners, "group.owners"));
	KVC__TRY(kvc__cuda_check_pointer(call->from, call->to ? "from" : "slots"));
	KVC__TRY(kvc__cuda_check_pointer(call->to, "to"));
	KVC__TRY(kvc__cuda_check_pointer(call->scratch, "scratch"));
	return cuda->records(call, stream);
}

kvc_status kvc_canary_void(const kvc_group *group, const kvc_tensor *slots, void *stream)
{
	kvc_group taken = KVC_GROUP_INIT;

	KVC__TRY(kvc__group_take(&taken, group));
	KVC__TRY(kvc__group_check_slot_vector(&taken, slots, "slots"));
	const int64_t *values = (const void *)kvc__tensor_data(slots);
	if (kvc__is_cuda(taken.device)) {
		const struct kvc__cuda_records_call call = {
			.group = &taken,
			.count = slots->shape[0],
			.from = values,
		};
		return call.count > 0 ? records_on_cuda(&call, stream) : KVC_OK;
	}
	KVC__TRY(
	        kvc__group_check_slot_values(values, slots->shape[0], "slots", taken.record_count));
	for (int64_t i = 0; i < slots->shape[0]; i++)
		if (values[i] >= 0)
			memset(kvc__record_at(&taken, values[i]), 0, KVC_RECORD_BYTES);
	return KVC_OK;
}

/* ---- copy ---- */

/* Columns of the scratch: a record and an owner; before that, a slot and its index. */
#define SCRATCH_COLUMNS 6

struct copy {
	kvc_group group;
	const int64_t *from;
	const int64_t *to;
	int64_t count;
	char *scratch;
	int64_t scratch_stride_bytes;
};

static int64_t *scratch_row(const struct copy *copy, int64_t i)
{
	return (int64_t *)(void *)(copy->scratch + i * copy->scratch_stride_bytes);
}

static int row_before(const struct copy *copy, int64_t a, int64_t b)
{
	const int64_t *x = scratch_row(copy, a), *y = scratch_row(copy, b);

	return x[0] != y[0] ? x[0] < y[0] : x[1] < y[1];
}

static void swap_rows(const struct copy *copy, int64_t a, int64_t b)
{
	int64_t *x = scratch_row(copy, a), *y = scratch_row(copy, b);

	for (int i = 0; i < 2; i++) {
		int64_t kept = x[i];
		x[i] = y[i];
		y[i] = kept;
	}
}

static void sift_down(const struct copy *copy, int64_t root, int64_t count)
{
	for (;;) {
		int64_t child = 2 * root + 1;
		if (child >= count)
			return;
		if (child + 1 < count && row_before(copy, child, child + 1))
			child++;
		if (!row_before(copy, root, child))
			return;
		swap_rows(copy, root, child);
		root = child;
	}
}

/*
 * Refuse two equal destinations. A heap sort of (slot, index) in the scratch: qsort() of the C
 * library may allocate.
 */
static kvc_status check_destinations(const struct copy *copy)
{
	int64_t used = 0, second = -1, first = -1;

	for (int64_t i = 0; i < copy->count; i++) {
		if (copy->from[i] < 0 || copy->to[i] < 0)
			continue;
		scratch_row(copy, used)[0] = copy->to[i];
		scratch_row(copy, used)[1] = i;
		used++;
	}
	for (int64_t root = used / 2 - 1; root >= 0; root--)
		sift_down(copy, root, used);
	for (int64_t end = used - 1; end > 0; end--) {
		swap_rows(copy, 0, end);
		sift_down(copy, 0, end);
	}
	for (int64_t i = 1; i < used; i++) {
		const int64_t *a = scratch_row(copy, i - 1), *b = scratch_row(copy, i);
		if (a[0] == b[0] && (second < 0 || b[1] < second)) {
			first = a[1];
			second = b[1];
		}
	}
	if (second >= 0)
		return kvc__fail_copy_slot_duplicate(second, first, second, copy->to[second]);
	return KVC_OK;
}

static void read_all(const struct copy *copy)
{
	for (int64_t i = 0; i < copy->count; i++) {
		int64_t from = copy->from[i];
		if (from < 0 || copy->to[i] < 0)
			continue;
		memcpy(scratch_row(copy, i), kvc__record_at(&copy->group, from), KVC_RECORD_BYTES);
		if (copy->group.owners)
			memcpy(scratch_row(copy, i) + 4, &copy->group.owners[from],
			        sizeof(kvc_owner));
	}
}

static void write_all(const struct copy *copy)
{
	for (int64_t i = 0; i < copy->count; i++) {
		int64_t to = copy->to[i];
		if (copy->from[i] < 0 || to < 0)
			continue;
		memcpy(kvc__record_at(&copy->group, to), scratch_row(copy, i), KVC_RECORD_BYTES);
		if (copy->group.owners)
			memcpy(&copy->group.owners[to], scratch_row(copy, i) + 4,
			        sizeof(kvc_owner));
	}
}

static kvc_status take_copy(struct copy *copy, const kvc_group *group, const kvc_tensor *from,
        const kvc_tensor *to, const kvc_tensor *scratch)
{
	struct kvc__named list[] = { { from, "from" }, { to, "to" }, { scratch, "scratch" } };

	KVC__TRY(kvc__group_take(&copy->group, group));
	KVC__TRY(kvc__check_vector(from, "from", KVC_INT64, KVC__ANY_LENGTH));
	copy->count = from->shape[0];
	KVC__TRY(kvc__check_vector(to, "to", KVC_INT64, copy->count));
	KVC__TRY(kvc__check_table(scratch, "scratch", KVC_INT64));
	if (scratch->shape[1] != SCRATCH_COLUMNS)
		return kvc__fail_copy_scratch_columns(-1, scratch);
	if (scratch->shape[0] != copy->count)
		return kvc__fail_canary_tensor_length(
		        -1, "scratch", copy->count, scratch->shape[0]);
	if (copy->count > 1 && kvc__tensor_stride(scratch, 0) < SCRATCH_COLUMNS)
		return kvc__fail_copy_scratch_rows_overlap(-1, kvc__tensor_stride(scratch, 0));
	KVC__TRY(kvc__check_apart(scratch, "scratch", list, 2));
	KVC__TRY(kvc__group_check_same_device(&copy->group, list, 3));

	copy->from = (const void *)kvc__tensor_data(from);
	copy->to = (const void *)kvc__tensor_data(to);
	copy->scratch = kvc__tensor_data(scratch);
	copy->scratch_stride_bytes = kvc__tensor_stride(scratch, 0) * (int64_t)sizeof(int64_t);
	return KVC_OK;
}

kvc_status kvc_canary_copy(const kvc_group *group, const kvc_tensor *from, const kvc_tensor *to,
        const kvc_tensor *scratch, void *stream)
{
	struct copy copy = { .group = KVC_GROUP_INIT };

	KVC__TRY(take_copy(&copy, group, from, to, scratch));
	if (kvc__is_cuda(copy.group.device)) {
		const struct kvc__cuda_records_call call = {
			.group = &copy.group,
			.count = copy.count,
			.from = copy.from,
			.to = copy.to,
			.scratch = (int64_t *)(void *)copy.scratch,
			.scratch_stride = kvc__tensor_stride(scratch, 0),
		};
		return call.count > 0 ? records_on_cuda(&call, stream) : KVC_OK;
	}
	int64_t limit = copy.group.record_count;
	KVC__TRY(kvc__group_check_slot_values(copy.from, copy.count, "from", limit));
	KVC__TRY(kvc__group_check_slot_values(copy.to, copy.count, "to", limit));
	KVC__TRY(check_destinations(&copy));
	read_all(&copy);
	write_all(&copy);
	return KVC_OK;
}
