/*
 * What the verify kernels are told, by value. Filled by verify.c, read by verify.cu.
 */
#ifndef KVC__CUDA_VERIFY_PARAMS_H
#define KVC__CUDA_VERIFY_PARAMS_H

#include "cuda/canary_params.h"
#include "cuda/ring_params.h"

/* Threads of a block of a light kernel, and blocks that are resident at once on a multiprocessor: where no bytes
 * are hashed, and where some are. */
#define KVC__LIGHT_THREADS 512
#define KVC__LIGHT_BLOCKS 2
#define KVC__PIECE_BLOCKS 2

struct kvc__verify_params {
	struct kvc__cuda_records records;
	struct kvc__cuda_batch batch;
	struct kvc__cuda_ring ring;
	int64_t capacity;
	const int64_t *slots;
	const int64_t *expected_tokens;
	const int64_t *expected_positions;
	const int64_t *prev_slots;
	const int32_t *request; /* or NULL */
	const int32_t *num_valid;
	const int32_t *enable;
	const int64_t *left_out; /* or NULL */
	int64_t *valid_prefix;   /* or NULL */
	int64_t launch_tag;
	int32_t own_rules;
	int32_t compare_bytes;
	int32_t check_tokens;
	int32_t check_finite;
	int32_t is_plain; /* light kernels: 32 bits do for slots, records and rows are read 16 bytes at once */
	int32_t padding;
	int64_t unread_slot;             /* of the records, not looked at or linked to; -1: none */
	struct kvc__strips_call sources; /* last: the common kernels take its beginning only */
};

#endif
