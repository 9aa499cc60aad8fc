/*
 * What the write kernels are told, by value. Filled by write.c, read by write.cu.
 */
#ifndef KVC__CUDA_WRITE_PARAMS_H
#define KVC__CUDA_WRITE_PARAMS_H

#include "cuda/canary_params.h"
#include "cuda/ring_params.h"

/* The one-launch forms: a block that has all entries in shared memory, and warps of others. */
#define KVC__WRITE_SMALL_THREADS 256
/* Entries that such a block hashes: a warp each, but of splitmix, whose dependent steps fill a scheduler, only
 * as many as there are schedulers. */
#define KVC__WRITE_SMALL_ENTRIES(is_splitmix) ((is_splitmix) ? 4 : KVC__WRITE_SMALL_THREADS / 32)
#define KVC__WRITE_SMALL_TOKENS 1024

struct kvc__write_params {
	struct kvc__cuda_records records;
	struct kvc__cuda_batch batch;
	struct kvc__cuda_ring ring;
	int64_t request_capacity;
	const int32_t *num_valid;
	const int64_t *offsets;
	const int64_t *seeds;
	int64_t token_count;
	const int64_t *tokens;
	const int64_t *positions;
	const int64_t *slots;
	const int64_t *expected_tokens; /* both or none */
	const int64_t *expected_positions;
	const int32_t *check_steps; /* or NULL */
	const int64_t *step;        /* or NULL */
	int64_t launch_tag;
	int64_t *scratch;     /* or NULL: seeds read the records as before the call */
	int64_t bytes_hashed; /* of one slot, 0 where the fingerprint is left to stamps */
	int32_t own_rules;
	int32_t is_computed;             /* 0: the fingerprint becomes 0 */
	struct kvc__strips_call sources; /* last: only the one-launch forms take its beginning */
};

#endif
