/* The functions of struct kvc__cuda_ops, each in its own file. */
#ifndef KVC__CUDA_BACK_END_H
#define KVC__CUDA_BACK_END_H

#include "cuda/cuda.h"

extern const struct kvc__cuda_ops kvc__cuda_table;

kvc_status kvc__cuda_rope(const struct kvc__cuda_rope *call, void *stream);
kvc_status kvc__cuda_report_init(kvc_report *out, void *stream);
kvc_status kvc__cuda_scatter(const struct kvc__cuda_scatter *call, void *stream);
kvc_status kvc__cuda_plan(const struct kvc__cuda_plan *call, void *stream);
kvc_status kvc__cuda_check_plan(const struct kvc__cuda_check_plan *call, void *stream);
kvc_status kvc__cuda_records(const struct kvc__cuda_records_call *call, void *stream);
kvc_status kvc__cuda_ring_poll(const kvc_ring *ring, kvc_violation *out, int64_t capacity,
        int64_t *count_out, void *stream);
kvc_status kvc__cuda_fingerprint(
        uint64_t *out, const kvc_group *group, const int64_t *slots, int64_t count, void *stream);
kvc_status kvc__cuda_scan_finite(kvc_finite_scan *out, const kvc_group *group, const int64_t *slots,
        int64_t count, void *stream);
kvc_status kvc__cuda_write(const struct kvc__cuda_write *call, void *stream);
kvc_status kvc__cuda_verify(const struct kvc__cuda_verify *call, void *stream);

#endif
