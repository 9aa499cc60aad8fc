/* kvc_ring_poll() on the device: rows come straight into the caller's array. The one call that waits. */
#include "cuda/cuda.h"

#if defined(KVC_WITH_CUDA)

#include "cuda/back_end.h"
#include "cuda/driver.h"

#include <stddef.h>

_Static_assert(sizeof(kvc_violation) == 16 * sizeof(int64_t), "a violation is one row of the ring");

static kvc_status fetch(
        const struct kvc__driver *driver, void *to, const void *from, size_t bytes, void *stream)
{
	return kvc__driver_check(driver->copy_to_host_async(
	                                 to, (CUdeviceptr)(uintptr_t)from, bytes, (CUstream)stream),
	        "ring_poll: copy");
}

static kvc_status wait(const struct kvc__driver *driver, void *stream)
{
	return kvc__driver_check(
	        driver->stream_synchronize((CUstream)stream), "ring_poll: synchronize");
}

/* Rows of numbers first+1 .. first+count, which may go round the end of the ring once. */
static kvc_status fetch_rows(const struct kvc__driver *driver, const kvc_ring *ring, int64_t first,
        int64_t count, kvc_violation *out, void *stream)
{
	const kvc_violation *rows = (const void *)ring->rows;
	int64_t begin = first % ring->capacity;
	int64_t here = ring->capacity - begin < count ? ring->capacity - begin : count;

	KVC__TRY(fetch(driver, out, rows + begin, (size_t)here * sizeof(*out), stream));
	if (here < count)
		KVC__TRY(fetch(
		        driver, out + here, rows, (size_t)(count - here) * sizeof(*out), stream));
	return wait(driver, stream);
}

kvc_status kvc__cuda_ring_poll(const kvc_ring *ring, kvc_violation *out, int64_t capacity,
        int64_t *count_out, void *stream)
{
	const struct kvc__driver *driver = kvc__driver(NULL);
	int64_t found = 0, consumed = 0, count = 0;

	KVC__TRY(fetch(driver, &found, &ring->counters->violations, sizeof(found), stream));
	KVC__TRY(fetch(driver, &consumed, ring->consumed, sizeof(consumed), stream));
	KVC__TRY(wait(driver, stream));
	int64_t before = consumed;
	/* No row can hold a later number than this: when it was found, the ring was full. */
	int64_t last = found - consumed > ring->capacity ? consumed + ring->capacity : found;
	while (consumed < last && count < capacity) {
		int64_t left = last - consumed, room = capacity - count;
		int64_t asked = left < room ? left : room, taken = 0;
		KVC__TRY(fetch_rows(driver, ring, consumed, asked, out + count, stream));
		for (int64_t i = 0; i < asked; i++) /* a dropped violation left no row */
			if (out[count + i].sequence == consumed + i + 1)
				out[count + taken++] = out[count + i];
		consumed += asked;
		count += taken;
	}
	if (consumed == last && count < capacity)
		consumed = found;
	if (consumed != before) {
		KVC__TRY(kvc__driver_check(
		        driver->copy_to_device_async((CUdeviceptr)(uintptr_t)ring->consumed,
		                &consumed, sizeof(consumed), (CUstream)stream),
		        "ring_poll: consumed"));
		KVC__TRY(wait(driver, stream));
	}
	*count_out = count;
	return KVC_OK;
}

#endif
