/*
 * What the fingerprint and finite-scan kernels are told, by value. Filled by fingerprint.c.
 */
#ifndef KVC__CUDA_FINGERPRINT_PARAMS_H
#define KVC__CUDA_FINGERPRINT_PARAMS_H

#include "cuda/canary_params.h"

struct kvc__fingerprint_params {
	const int64_t *slots;
	int64_t count;
	int64_t slot_limit;    /* slots from here on are left out */
	int64_t reserved_slot; /* so is this one */
	char *out;             /* fingerprints, out_stride bytes apart: */
	int64_t out_stride;
	int32_t out_by_slot; /* one a slot, those left out stay as they are; 0: one an entry, 0 for those */
	int32_t is_zero; /* store 0 without looking at bytes */
	/* What is read is older than the launches before, only what is written is not: hash first, wait then. */
	int32_t is_early;
	int32_t padding;
	/* Where not NULL: only the entries that a plan's requests have. */
	const int64_t *offsets;
	const int32_t *num_valid;
	int64_t request_capacity;
	kvc_finite_scan *scan;           /* of the finite scan */
	struct kvc__strips_call sources; /* last: the common kernels take its beginning only */
};

#endif
