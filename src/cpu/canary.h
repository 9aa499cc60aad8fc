/*
 * Write and verify on host memory: what the front doors (src/ops/write.c, src/ops/verify.c) hand to
 * the back end. All of it is checked; nothing here is the caller's struct any more.
 */
#ifndef KVC__CPU_CANARY_H
#define KVC__CPU_CANARY_H

#include "kvcanary.h"

struct kvc__cpu_variant;

/* The requests of a step as plain arrays, 'count' long; NULL where not given. */
struct kvc__batch {
	int64_t count;
	const int64_t *rows;
	const int64_t *prefix_lens;
	const int64_t *namespaces;
	const int64_t *verify_chain_in;
	const int64_t *write_chain_in;
	const int64_t *chain_end;
	const int64_t *owner_request;
};

/* Entry r of an array of the batch, or 'otherwise' if there is none. */
static inline int64_t kvc__batch_value(
        const struct kvc__batch *batch, const int64_t *values, int64_t r, int64_t otherwise)
{
	return values && r >= 0 && r < batch->count ? values[r] : otherwise;
}

/*
 * request_count   requests to write; offsets has one entry more, offsets[r+1] >= offsets[r] and
 *                 within token_count where rules are OWN; anything where they are SGLANG
 * slots           below group.record_count where rules are OWN
 * scratch         or NULL: as in kvc_write_args
 */
struct kvc__write {
	const struct kvc__cpu_variant *cpu;
	kvc_group group;
	struct kvc__batch batch;
	int64_t request_count;
	const int64_t *offsets;
	const int64_t *seeds;
	int64_t token_count;
	const int64_t *tokens;
	const int64_t *positions;
	const int64_t *slots;
	const int64_t *expected_tokens;
	const int64_t *expected_positions;
	int check_steps;
	uint32_t step;
	int64_t launch_tag;
	int64_t *scratch;
	const kvc_ring *ring;
	int32_t rules;
};

void kvc__write_portable(const struct kvc__write *write);

/* entry_count: entries of the plan to look at, 0 if it is disabled. request: or NULL. */
struct kvc__verify {
	const struct kvc__cpu_variant *cpu;
	kvc_group group;
	struct kvc__batch batch;
	int64_t entry_count;
	const int64_t *slots;
	const int64_t *expected_tokens;
	const int64_t *expected_positions;
	const int64_t *prev_slots;
	const int32_t *request;
	int64_t left_out;
	int check_bytes;
	int check_tokens;
	int check_finite;
	int64_t *valid_prefix; /* batch.count entries, or NULL */
	int64_t launch_tag;
	const kvc_ring *ring;
	int32_t rules;
};

void kvc__verify_portable(const struct kvc__verify *verify);

#endif
