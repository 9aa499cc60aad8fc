/*
 * A ring of violations as kernels take it, by value. Plain C for both halves.
 */
#ifndef KVC__CUDA_RING_PARAMS_H
#define KVC__CUDA_RING_PARAMS_H

#include "kvcanary.h"

/* All zero where the call has no ring. */
struct kvc__cuda_ring {
	int64_t *rows;
	int64_t capacity;
	int64_t *consumed;
	kvc_counters *counters;
	int64_t *slot_run_counter;
	int64_t *kernel_run_counter;
	int32_t *write_index;
	int32_t columns; /* 0: no ring */
	int32_t padding;
};

static inline struct kvc__cuda_ring kvc__cuda_ring_of(const kvc_ring *ring)
{
	struct kvc__cuda_ring out = { 0 };

	if (!ring)
		return out;
	out.rows = ring->rows;
	out.capacity = ring->capacity;
	out.consumed = ring->consumed;
	out.counters = ring->counters;
	out.slot_run_counter = ring->slot_run_counter;
	out.kernel_run_counter = ring->kernel_run_counter;
	out.write_index = ring->write_index;
	out.columns = ring->columns;
	return out;
}

#endif
