/* What the check_plan kernels are told. Filled by launch_check_plan.c, read by check_plan.cu. */
#ifndef KVC__CUDA_CHECK_PLAN_PARAMS_H
#define KVC__CUDA_CHECK_PLAN_PARAMS_H

#include "cuda/ring_params.h"

struct kvc__check_plan_params {
	const char *records;
	int64_t record_count;
	int64_t record_stride;
	const kvc_owner *owners; /* or NULL */
	int64_t reserved_slot;
	int64_t source_id; /* for violations */
	kvc_plan plan;
	const int64_t *mapping; /* or NULL */
	int64_t full_count;
	int64_t *scratch[2]; /* [record_count] each */
	struct kvc__cuda_ring ring;
	int32_t on_mapping; /* the full slots of the mapping, or the entries of the plan */
	int32_t padding;
};

#endif
