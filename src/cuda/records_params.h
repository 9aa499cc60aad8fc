/* What the kernels on records are told, by value. Filled by launch_records.c, read by records.cu. */
#ifndef KVC__CUDA_RECORDS_PARAMS_H
#define KVC__CUDA_RECORDS_PARAMS_H

#include "kvcanary.h"

struct kvc__records_params {
	char *records;
	int64_t record_count;
	int64_t record_stride;
	kvc_owner *owners; /* or NULL */
	const int64_t *from;
	const int64_t *to; /* NULL: void the slots of 'from' */
	int64_t count;
	int64_t *scratch;
	int64_t scratch_stride; /* in words */
};

#endif
