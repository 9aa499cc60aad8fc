/* What the plan kernels are told, by value. Filled by launch_plan.c, read by plan.cu. */
#ifndef KVC__CUDA_PLAN_PARAMS_H
#define KVC__CUDA_PLAN_PARAMS_H

#include "cpu/plan.h"

struct kvc__plan_params {
	struct kvc__plan
	        job; /* pointers on the device; total, first, emit_count, out are not read */
	kvc_plan out;
	int64_t *rotation;     /* or NULL */
	kvc_report *report;    /* or NULL */
	int32_t writer_blocks; /* the first of the grid; 0: its one block does everything */
	int64_t length_max;    /* longer requests are cut to it, so that no sum overflows */
};

#endif
