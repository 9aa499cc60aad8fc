/*
 * Rings of violations from the caller's side: checking one that an operation is given, and taking
 * violations out. Recording is src/cpu/ring.c.
 */
#include "cpu/ring.h"

#include <string.h>

#include "base/tensor.h"
#include "cuda/cuda.h"

static kvc_status check_pointer(const void *pointer, const char *name)
{
	return pointer ? KVC_OK : kvc__fail_null_argument(-1, name);
}

kvc_status kvc__ring_check(const kvc_ring *ring)
{
	if (!ring)
		return KVC_OK;
	KVC__TRY(kvc__check_struct(ring, sizeof(*ring), sizeof(*ring), "ring"));
	if (ring->columns != KVC__RING_COLUMNS && ring->columns != KVC__RING_COLUMNS_SGLANG)
		return kvc__fail_ring_columns_unknown(-1, ring->columns);
	if (ring->capacity < 0)
		return kvc__fail_ring_capacity_negative(-1, ring->capacity);
	if (ring->capacity > 0)
		KVC__TRY(check_pointer(ring->rows, "ring.rows"));
	if (ring->columns == KVC__RING_COLUMNS_SGLANG)
		return check_pointer(ring->write_index, "ring.write_index");
	KVC__TRY(check_pointer(ring->consumed, "ring.consumed"));
	return check_pointer(ring->counters, "ring.counters");
}

kvc_status kvc__ring_check_pointers(const kvc_ring *ring)
{
	if (!ring)
		return KVC_OK;
	KVC__TRY(kvc__cuda_check_pointer(ring->rows, "ring.rows"));
	KVC__TRY(kvc__cuda_check_pointer(ring->consumed, "ring.consumed"));
	KVC__TRY(kvc__cuda_check_pointer(ring->write_index, "ring.write_index"));
	KVC__TRY(kvc__cuda_check_pointer(ring->counters, "ring.counters"));
	KVC__TRY(kvc__cuda_check_pointer(ring->slot_run_counter, "ring.slot_run_counter"));
	return kvc__cuda_check_pointer(ring->kernel_run_counter, "ring.kernel_run_counter");
}

/* Copy the row of 'sequence' to 'out', if it is there: it is not if the violation was dropped. */
static int take_row(const kvc_ring *ring, int64_t sequence, kvc_violation *out)
{
	const int64_t *row = ring->rows + (sequence - 1) % ring->capacity * KVC__RING_COLUMNS;

	if (__atomic_load_n(&row[KVC__RING_COLUMNS - 1], __ATOMIC_ACQUIRE) != sequence)
		return 0;
	memcpy(out, row, sizeof(*out));
	return 1;
}

static kvc_status poll_on_cuda(const kvc_ring *ring, kvc_violation *out, int64_t capacity,
        int64_t *count_out, void *stream)
{
	const struct kvc__cuda_ops *cuda;

	KVC__TRY(kvc__cuda_find(&cuda, ring->device, "ring"));
	KVC__TRY(kvc__ring_check_pointers(ring));
	return cuda->ring_poll(ring, out, capacity, count_out, stream);
}

kvc_status kvc_ring_poll(const kvc_ring *ring, kvc_violation *out, int64_t capacity,
        int64_t *count_out, void *stream)
{
	int64_t count = 0;

	KVC__TRY(check_pointer(ring, "ring"));
	KVC__TRY(check_pointer(count_out, "count_out"));
	KVC__TRY(kvc__ring_check(ring));
	if (!kvc__is_cuda(ring->device))
		KVC__TRY(kvc__check_device(ring->device, "ring"));
	if (ring->columns != KVC__RING_COLUMNS)
		return kvc__fail_ring_not_circular(-1, ring->columns);
	if (capacity > 0)
		KVC__TRY(check_pointer(out, "out"));
	if (kvc__is_cuda(ring->device))
		return poll_on_cuda(ring, out, capacity, count_out, stream);

	int64_t found = __atomic_load_n(&ring->counters->violations, __ATOMIC_ACQUIRE);
	int64_t consumed = *ring->consumed;
	/* No row can hold a later number than this: when it was found, the ring was full. */
	int64_t last = found - consumed > ring->capacity ? consumed + ring->capacity : found;
	while (consumed < last && count < capacity)
		count += take_row(ring, ++consumed, &out[count]);
	if (consumed == last && count < capacity)
		consumed = found;
	__atomic_store_n(ring->consumed, consumed, __ATOMIC_RELEASE);
	*count_out = count;
	return KVC_OK;
}
