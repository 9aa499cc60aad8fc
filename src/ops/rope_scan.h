/*
 * Looking at the values of a rope_pool_fused call on the CPU before anything is written: positions,
 * slots, duplicates, non-finite elements. Linear in the tokens, and allocates nothing.
 */
#ifndef KVC__OPS_ROPE_SCAN_H
#define KVC__OPS_ROPE_SCAN_H

#include "base/error.h"
#include "cpu/rope.h"

/* Rows that do not skip their pool write, among the job's tokens. */
int64_t kvc__rope_count_stored(const struct kvc__rope_job *job);

/* position-out-of-range of the first token that is to be stored and has one. */
kvc_status kvc__rope_check_positions(const struct kvc__rope_job *job);

/* pool-slot-out-of-range of the first token with slot >= slot_count. */
kvc_status kvc__rope_check_slots(const struct kvc__rope_job *job, int64_t slot_count);

/* pool-slot-duplicate of the first token whose slot an earlier one has. Slots are in range. */
kvc_status kvc__rope_check_duplicates(const struct kvc__rope_job *job, int64_t slot_count);

/* nonfinite-value of the first element of k, else v, of the first token to be stored with one. */
kvc_status kvc__rope_check_finite(const struct kvc__rope_job *job);

#endif
