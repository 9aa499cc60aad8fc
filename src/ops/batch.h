/*
 * What write and verify take besides the group: the arrays of the step's requests, and the plan.
 */
#ifndef KVC__OPS_BATCH_H
#define KVC__OPS_BATCH_H

#include "base/tensor.h"
#include "cpu/canary.h"

/*
 * The arrays of 'requests' that write and verify read, all as long as req_pool_indices, on the
 * group's device. NULL gives an empty batch of no known length.
 */
kvc_status kvc__batch_take(
        struct kvc__batch *out, const kvc_requests *requests, const kvc_group *group);

/* Copy the caller's plan and check that it lies on the group's device. */
kvc_status kvc__batch_take_plan(kvc_plan *out, const kvc_plan *plan, const kvc_group *group);

/* The count that a plan states: refused outside 0..capacity, or clamped by SGLang's rules. */
kvc_status kvc__batch_count(
        int64_t *out, const int32_t *count, const char *name, int64_t capacity, int32_t rules);

/* What of a count can be checked where it lies on a device. */
kvc_status kvc__batch_check_count(const int32_t *count, const char *name, int64_t capacity);

/* cuda-host-pointer if a batch on a CUDA device has memory that kernels cannot use. */
kvc_status kvc__batch_check_pointers(const struct kvc__batch *batch);

/* kvc__ring_check(), and the ring lies on the group's device. NULL is a sound ring. */
kvc_status kvc__batch_check_ring(const kvc_ring *ring, const kvc_group *group);

/* SGLang's rules: at most 4 sources. */
kvc_status kvc__batch_check_sources(const kvc_group *group, int32_t rules);

#endif
