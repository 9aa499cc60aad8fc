/*
 * The plan of a step on the CPU (SPEC section 4.2), for ops/plan.c. Everything here trusts its
 * task: rows, columns, capacities and totals have been checked, mapping indices by
 * kvc__plan_find_unmapped().
 */
#ifndef KVC__CPU_PLAN_H
#define KVC__CPU_PLAN_H

#include "kvcanary.h"

/* A table [row_count][column_count] of int32, rows row_stride elements apart. */
struct kvc__plan_table {
	const int32_t *data;
	int64_t row_count;
	int64_t column_count;
	int64_t row_stride;
};

struct kvc__plan {
	int64_t request_count;
	const int64_t *rows; /* 0 = padding */
	const int64_t *prefix_lens;
	const int64_t *extend_lens;
	const int64_t *start; /* or NULL */
	struct kvc__plan_table slots;
	struct kvc__plan_table tokens; /* data NULL: no expected tokens */
	const int64_t *valid_lens;
	int64_t token_offset;
	int64_t window;
	const int64_t *mapping; /* or NULL */
	int64_t mapping_count;
	const uint8_t *exclude; /* or NULL */
	int64_t exclude_bytes;
	int sglang;

	/*
	 * All entries that the requests have, one request after the other, are the full list.
	 * Entries first .. first + emit_count - 1 of it, going round at its end, are the plan.
	 */
	int64_t total;
	int64_t first;
	int64_t emit_count;
	const kvc_plan *out;
};

/* Positions [begin, end) of a request; begin = end if there is none. */
struct kvc__span {
	int64_t begin;
	int64_t end;
};

/* The positions of request r that are in the full list. */
static inline struct kvc__span kvc__plan_positions(const struct kvc__plan *plan, int64_t r)
{
	struct kvc__span span = { 0, plan->rows[r] == 0 ? 0 : plan->prefix_lens[r] };

	if (span.end < 0)
		span.end = 0;
	if (plan->window > 0 && span.end > plan->window)
		span.begin = span.end - plan->window;
	if (plan->start && plan->start[r] > span.begin)
		span.begin = plan->start[r];
	if (span.begin > span.end)
		span.begin = span.end;
	return span;
}

/* Tokens that request r writes. */
static inline int64_t kvc__plan_write_count(const struct kvc__plan *plan, int64_t r)
{
	return plan->rows[r] == 0 || plan->extend_lens[r] < 0 ? 0 : plan->extend_lens[r];
}

/* Is the last cached slot of request r the seed of its writes? */
static inline int kvc__plan_has_seed(const struct kvc__plan *plan, int64_t r)
{
	return plan->prefix_lens[r] > 0 && kvc__plan_write_count(plan, r) > 0;
}

/*
 * The positions of 'span' (one request's) whose expected token stands in the token table:
 * 0 <= position + token_offset < valid length.
 */
struct kvc__span kvc__plan_token_positions(
        const struct kvc__plan *plan, int64_t r, struct kvc__span span);

/* A slot that the mapping does not reach. */
struct kvc__plan_fault {
	int64_t request;
	int64_t position;
	int64_t slot;
};

/* Is there a slot in what the plan will read that lies outside the mapping? The first one, by
 * request, goes to *out. Only with a mapping. */
int kvc__plan_find_unmapped(const struct kvc__plan *plan, struct kvc__plan_fault *out);

/* Write the verify_* arrays' first emit_count entries. */
void kvc__plan_emit(const struct kvc__plan *plan);

/* Write write_offsets and write_seed_slot_indices. */
void kvc__plan_writes(const struct kvc__plan *plan);

#endif
