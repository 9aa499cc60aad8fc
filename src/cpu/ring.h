/*
 * Recording violations and counts in a kvc_ring that lies in host memory (SPEC section 4.4).
 *
 * Several calls may record into one ring at the same time, and kvc_ring_poll() may read beside
 * them; rows of one call stand in the order in which it put them.
 */
#ifndef KVC__CPU_RING_H
#define KVC__CPU_RING_H

#include "kvcanary.h"

/* Columns of the two kinds of ring. */
#define KVC__RING_COLUMNS 16
#define KVC__RING_COLUMNS_SGLANG 8

/*
 * Record one violation, or count it as dropped if the ring is full. Sets violation->sequence.
 * ring: checked by kvc__ring_check(), or NULL: nothing is recorded.
 */
void kvc__ring_put(const kvc_ring *ring, kvc_violation *violation);

/* What one call did, for the counters. */
struct kvc__tally {
	int64_t slots_run;
	int64_t slots_skipped;
	int64_t chain_unchecked;
	int64_t bytes_hashed;
	int64_t left_out;
};

/* Add one run and its counts to the ring's counters. ring: as in kvc__ring_put(). */
void kvc__ring_count(const kvc_ring *ring, const struct kvc__tally *tally);

/* Refuse a ring that cannot be recorded into. NULL is fine: no ring. */
kvc_status kvc__ring_check(const kvc_ring *ring);

/* cuda-host-pointer if a ring on a CUDA device has memory that kernels cannot use. */
kvc_status kvc__ring_check_pointers(const kvc_ring *ring);

#endif
