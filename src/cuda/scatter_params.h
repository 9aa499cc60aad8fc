/* What the scatter kernels are told, by value. Filled by launch_scatter.c, read by scatter.cu. */
#ifndef KVC__CUDA_SCATTER_PARAMS_H
#define KVC__CUDA_SCATTER_PARAMS_H

#include "cpu/scatter.h"

struct kvc__scatter_params {
	struct kvc__scatter job; /* pointers on the device; in_order is not read */
	kvc_report *report;      /* or NULL */
	int32_t sglang;
	int32_t check_tokens;
	int32_t allow_placeholder;
	int32_t team; /* blocks a request, a power of two: */
	int32_t team_shift;
	int32_t wide_rows; /* rows of the table begin at multiples of 16 bytes */
	int32_t typical;   /* tokens of each request if all have as many; 0: not worth a guess */
};

#endif
