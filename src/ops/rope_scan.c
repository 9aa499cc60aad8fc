/* The values of a rope_pool_fused call; rope_scan.h says what is looked for. */
#include "ops/rope_scan.h"

#include <string.h>

int64_t kvc__rope_count_stored(const struct kvc__rope_job *job)
{
	int64_t stored = 0;
	for (int64_t i = 0; i < job->token_count; i++)
		stored += !kvc__slot_skipped(job, kvc__index_read(&job->slots, i));
	return stored;
}

kvc_status kvc__rope_check_positions(const struct kvc__rope_job *job)
{
	for (int64_t i = 0; i < job->token_count; i++) {
		int64_t position = kvc__index_read(&job->positions, i);
		if (position >= 0 && position < job->position_count)
			continue;
		int64_t slot = kvc__index_read(&job->slots, i);
		if (!kvc__slot_skipped(job, slot))
			return kvc__fail_position_out_of_range(
			        i, position, i, job->position_count - 1);
	}
	return KVC_OK;
}

kvc_status kvc__rope_check_slots(const struct kvc__rope_job *job, int64_t slot_count)
{
	for (int64_t i = 0; i < job->token_count; i++) {
		int64_t slot = kvc__index_read(&job->slots, i);
		if (slot >= slot_count && !kvc__slot_skipped(job, slot))
			return kvc__fail_pool_slot_out_of_range(i, slot, i, slot_count);
	}
	return KVC_OK;
}

/* ---- duplicates ---- */

/* Up to this many tokens a hash set on the stack finds duplicates in one pass. */
#define SET_TOKENS 1024
#define SET_ENTRIES 4096

/* More tokens: one bit a slot, WINDOW_SLOTS slots at a time, so that the stack stays small. */
#define WINDOW_SLOTS ((int64_t)1 << 19) /* 64 KiB */

#define NO_TOKEN INT64_MAX

/* Lowest token whose slot an earlier token has, or NO_TOKEN. */
static int64_t duplicate_by_set(const struct kvc__rope_job *job)
{
	int64_t set[SET_ENTRIES];
	memset(set, 0xFF, sizeof set); /* -1: free */
	for (int64_t i = 0; i < job->token_count; i++) {
		int64_t slot = kvc__index_read(&job->slots, i);
		if (kvc__slot_skipped(job, slot))
			continue;
		/* Fibonacci hashing: the product's upper bits spread runs of slots evenly. */
		uint64_t at = ((uint64_t)slot * 0x9E3779B97F4A7C15u) >> 52;
		while (set[at] >= 0 && set[at] != slot)
			at = (at + 1) % SET_ENTRIES;
		if (set[at] == slot)
			return i;
		set[at] = slot;
	}
	return NO_TOKEN;
}

/* The same among the slots of one window, for tokens below 'before'. */
static int64_t duplicate_in_window(
        const struct kvc__rope_job *job, int64_t window_first, int64_t before)
{
	uint64_t seen[WINDOW_SLOTS / 64];
	memset(seen, 0, sizeof seen);
	for (int64_t i = 0; i < job->token_count && i < before; i++) {
		int64_t slot = kvc__index_read(&job->slots, i);
		int64_t at = slot - window_first;
		if (kvc__slot_skipped(job, slot) || at < 0 || at >= WINDOW_SLOTS)
			continue;
		uint64_t bit = (uint64_t)1 << (at % 64);
		if (seen[at / 64] & bit)
			return i;
		seen[at / 64] |= bit;
	}
	return before;
}

kvc_status kvc__rope_check_duplicates(const struct kvc__rope_job *job, int64_t slot_count)
{
	int64_t later = NO_TOKEN;
	if (job->token_count <= SET_TOKENS)
		later = duplicate_by_set(job);
	else
		for (int64_t first = 0; first < slot_count; first += WINDOW_SLOTS)
			later = duplicate_in_window(job, first, later);
	if (later == NO_TOKEN)
		return KVC_OK;
	int64_t slot = kvc__index_read(&job->slots, later);
	int64_t earlier = 0;
	while (kvc__index_read(&job->slots, earlier) != slot)
		earlier++;
	return kvc__fail_pool_slot_duplicate(later, earlier, later, slot);
}

/* ---- non-finite values ---- */

/* First of 'dim' elements whose exponent is all ones, or -1. */
static int64_t first_nonfinite(enum kvc__element element, const char *head, int64_t dim)
{
	for (int64_t d = 0; d < dim; d++) {
		uint32_t single;
		uint16_t half;
		int bad;
		if (element == KVC__ELEMENT_F32) {
			memcpy(&single, head + 4 * d, sizeof single);
			bad = (single & 0x7F800000u) == 0x7F800000u;
		} else {
			uint32_t ones = element == KVC__ELEMENT_BF16 ? 0x7F80u : 0x7C00u;
			memcpy(&half, head + 2 * d, sizeof half);
			bad = (half & ones) == ones;
		}
		if (bad)
			return d;
	}
	return -1;
}

static kvc_status check_row_finite(const struct kvc__rope_job *job, const struct kvc__rows *rows,
        const char *name, int64_t token)
{
	for (int64_t h = 0; rows->data && h < job->kv_heads; h++) {
		const char *head = rows->data + token * rows->row_stride + h * rows->head_stride;
		int64_t d = first_nonfinite(job->element, head, job->kv_dim);
		if (d >= 0)
			return kvc__fail_nonfinite_value(token, name, token, h, d);
	}
	return KVC_OK;
}

kvc_status kvc__rope_check_finite(const struct kvc__rope_job *job)
{
	for (int64_t i = 0; i < job->token_count; i++) {
		if (kvc__slot_skipped(job, kvc__index_read(&job->slots, i)))
			continue;
		KVC__TRY(check_row_finite(job, &job->k, "k", i));
		KVC__TRY(check_row_finite(job, &job->v, "v", i));
	}
	return KVC_OK;
}
