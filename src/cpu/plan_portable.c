/*
 * The plan of a step on the CPU. Same bytes as the plan of src/cuda.
 *
 * A request's entries are consecutive columns of its row, so all loops run along rows, one per
 * output array; columns that no entry reads are never touched, however long the rows are.
 */
#include "cpu/plan.h"

#include "base/threads.h"

#include <string.h>

/* Entries that a thread is worth waking for: writing them takes some 50 us. */
#define GRAIN 16384

/* Predecessor codes of kvc_plan.verify_prev_slot_indices. */
enum { PREV_CHAIN_START = -1, PREV_CHAIN_IN = -2, PREV_UNKNOWN = -3 };

static inline int64_t translate(const struct kvc__plan *plan, int64_t slot)
{
	return plan->mapping && slot >= 0 ? plan->mapping[slot] : slot;
}

static const int32_t *table_row(
        const struct kvc__plan *plan, const struct kvc__plan_table *table, int64_t r)
{
	return table->data + plan->rows[r] * table->row_stride;
}

/* a - b, held at the ends of the range: a wild offset or length then matches nothing, or all. */
static int64_t minus(int64_t a, int64_t b)
{
	int64_t difference;

	if (__builtin_sub_overflow(a, b, &difference))
		return a < 0 ? INT64_MIN : INT64_MAX;
	return difference;
}

struct kvc__span kvc__plan_token_positions(
        const struct kvc__plan *plan, int64_t r, struct kvc__span span)
{
	int64_t low = minus(0, plan->token_offset);
	int64_t past = minus(plan->valid_lens[r], plan->token_offset);

	if (span.begin < low)
		span.begin = low;
	if (span.end > past)
		span.end = past;
	if (span.end < span.begin)
		span.end = span.begin;
	return span;
}

/* ---- which entries of a request are emitted ---- */

/*
 * Entries [from, to) of the full list taken twice in a row (so that going round needs no modulo),
 * cut down to those of one request, whose first entry is number 'base' in the list and stands at
 * positions.begin. round = 0 or 1: the first or the second copy of the list. Returns the positions;
 * *at_out is the place of the first of them in the plan. Totals are below 2^62: nothing overflows.
 */
static struct kvc__span part_of(const struct kvc__plan *plan, struct kvc__span positions,
        int64_t base, int round, int64_t from, int64_t to, int64_t *at_out)
{
	int64_t begin = base, end = base + (positions.end - positions.begin);
	int64_t shift = round ? plan->total : 0;
	struct kvc__span part;

	if (begin < from - shift)
		begin = from - shift;
	if (end > to - shift)
		end = to - shift;
	if (end < begin)
		end = begin;
	part.begin = positions.begin + (begin - base);
	part.end = positions.begin + (end - base);
	*at_out = begin + shift - plan->first;
	return part;
}

/* ---- mapping indices ---- */

/* First column of [begin, end) whose slot the mapping does not reach, or 'end'. */
static int64_t unmapped_column(
        const struct kvc__plan *plan, const int32_t *row, int64_t begin, int64_t end)
{
	while (begin < end && row[begin] < plan->mapping_count)
		begin++;
	return begin;
}

/* Look at the columns that one request's emitted entries and its seed read, by our own rules. */
static int request_unmapped(const struct kvc__plan *plan, int64_t r, int64_t base,
        struct kvc__span positions, struct kvc__plan_fault *out)
{
	const int32_t *row = table_row(plan, &plan->slots, r);
	int64_t found = INT64_MAX, at;

	for (int round = 1; round >= 0; round--) {
		struct kvc__span part = part_of(plan, positions, base, round, plan->first,
		        plan->first + plan->emit_count, &at);
		if (part.begin == part.end)
			continue;
		/* The predecessor is read as well, except at the very first. */
		if (part.begin > positions.begin)
			part.begin--;
		int64_t column = unmapped_column(plan, row, part.begin, part.end);
		if (column < part.end && column < found)
			found = column;
	}
	if (found == INT64_MAX && r < plan->out->write_req_capacity &&
	        kvc__plan_has_seed(plan, r) && row[plan->prefix_lens[r] - 1] >= plan->mapping_count)
		found = plan->prefix_lens[r] - 1;
	if (found == INT64_MAX)
		return 0;
	*out = (struct kvc__plan_fault){ r, found, row[found] };
	return 1;
}

/*
 * SGLang's reference translates every entry, whether they all fit or not, and after them the seeds;
 * of one entry the slot first, then its predecessor. What it names is what we name.
 */
static int find_unmapped_in_order(const struct kvc__plan *plan, struct kvc__plan_fault *out)
{
	for (int64_t r = 0; r < plan->request_count; r++) {
		struct kvc__span positions = kvc__plan_positions(plan, r);
		int64_t first = positions.begin;
		if (plan->rows[r] == 0 || first == positions.end)
			continue;
		const int32_t *row = table_row(plan, &plan->slots, r);
		int64_t column = unmapped_column(plan, row, first, positions.end);
		/* All other predecessors are entries themselves. */
		if (column > first && first > 0 && row[first - 1] >= plan->mapping_count)
			column = first - 1;
		if (column < positions.end) {
			*out = (struct kvc__plan_fault){ r, column, row[column] };
			return 1;
		}
	}
	for (int64_t r = 0; r < plan->request_count && r < plan->out->write_req_capacity; r++) {
		if (plan->rows[r] == 0 || !kvc__plan_has_seed(plan, r))
			continue;
		int64_t last = plan->prefix_lens[r] - 1;
		int32_t slot = table_row(plan, &plan->slots, r)[last];
		if (slot >= plan->mapping_count) {
			*out = (struct kvc__plan_fault){ r, last, slot };
			return 1;
		}
	}
	return 0;
}

int kvc__plan_find_unmapped(const struct kvc__plan *plan, struct kvc__plan_fault *out)
{
	int64_t base = 0;

	if (plan->sglang)
		return find_unmapped_in_order(plan, out);
	for (int64_t r = 0; r < plan->request_count; r++) {
		struct kvc__span positions = kvc__plan_positions(plan, r);
		if (plan->rows[r] != 0 && request_unmapped(plan, r, base, positions, out))
			return 1;
		base += positions.end - positions.begin;
	}
	return 0;
}

/* ---- entries ---- */

/* The predecessor of the first entry of a part. */
static int64_t first_prev(
        const struct kvc__plan *plan, const int32_t *row, int64_t position, int is_head)
{
	if (position == 0)
		return PREV_CHAIN_START;
	/* What lies before a window may have been given away: our rules never look at it. */
	if (is_head && !plan->sglang)
		return PREV_CHAIN_IN;
	return translate(plan, row[position - 1]);
}

/*
 * The slots of a part, of which there is at least one, and the predecessor of each: the slot before.
 * By our rules a negative slot comes out as the predecessor -1, since -2 and -3 are codes that would
 * silence the chain check. One walk, because what is stored takes longer to store than to work out.
 */
static void emit_slots(const struct kvc__plan *plan, const int32_t *restrict row, int64_t first,
        int64_t count, int64_t *restrict slots, int64_t *restrict prevs)
{
	int32_t lowest = plan->sglang ? INT32_MIN : -1; /* of a slot as it stands in the table */

	prevs[0] = first;
	if (plan->mapping) {
		for (int64_t i = 0; i < count; i++)
			slots[i] = translate(plan, row[i]);
		for (int64_t i = 1; i < count; i++)
			prevs[i] = !plan->sglang && slots[i - 1] < -1 ? -1 : slots[i - 1];
		return;
	}
	for (int64_t i = 0; i + 1 < count; i++) {
		slots[i] = row[i];
		prevs[i + 1] = row[i] < lowest ? lowest : row[i];
	}
	slots[count - 1] = row[count - 1];
}

static void emit_tokens(
        const struct kvc__plan *plan, int64_t r, struct kvc__span part, int64_t *tokens)
{
	struct kvc__span known = { part.begin, part.begin };

	if (plan->tokens.data)
		known = kvc__plan_token_positions(plan, r, part);
	if (known.begin == known.end) { /* also keeps wild offsets out of the arithmetic below */
		for (int64_t i = 0; i < part.end - part.begin; i++)
			tokens[i] = -1;
		return;
	}
	const int32_t *row = table_row(plan, &plan->tokens, r);
	for (int64_t p = part.begin; p < known.begin; p++)
		tokens[p - part.begin] = -1;
	for (int64_t p = known.begin; p < known.end; p++)
		tokens[p - part.begin] = row[p + plan->token_offset];
	for (int64_t p = known.end; p < part.end; p++)
		tokens[p - part.begin] = -1;
}

static inline int is_excluded(const struct kvc__plan *plan, int64_t slot)
{
	return slot >= 0 && slot / 8 < plan->exclude_bytes &&
	       (plan->exclude[slot / 8] >> slot % 8 & 1);
}

/* Slots that this very step writes: nothing about them, or that follows from them, is known yet. */
static void exclude_written(
        const struct kvc__plan *plan, int64_t *slots, int64_t *prevs, int64_t count)
{
	int prev_excluded = is_excluded(plan, prevs[0]);

	for (int64_t i = 0; i < count; i++) {
		if (prev_excluded)
			prevs[i] = PREV_UNKNOWN;
		prev_excluded = is_excluded(plan, slots[i]);
		if (prev_excluded)
			slots[i] = -1;
	}
}

/* Emit the positions 'part' of request r, which has 'positions', from place 'at' on. */
static void emit_part(const struct kvc__plan *plan, int64_t r, struct kvc__span positions,
        struct kvc__span part, int64_t at)
{
	const kvc_plan *out = plan->out;
	const int32_t *row = table_row(plan, &plan->slots, r);
	int64_t count = part.end - part.begin;
	int64_t *slots = out->verify_slot_indices + at;
	int64_t *prevs = out->verify_prev_slot_indices + at;
	int64_t first = first_prev(plan, row, part.begin, part.begin == positions.begin);

	if (!plan->sglang && first < -1 && part.begin > positions.begin)
		first = -1;
	emit_slots(plan, row + part.begin, first, count, slots, prevs);
	if (plan->exclude)
		exclude_written(plan, slots, prevs, count);
	emit_tokens(plan, r, part, out->verify_expected_tokens + at);
	for (int64_t i = 0; i < count; i++)
		out->verify_expected_positions[at + i] = part.begin + i;
	if (out->verify_request)
		for (int64_t i = 0; i < count; i++)
			out->verify_request[at + i] = (int32_t)r;
}

/* Fill places [begin, end) of the plan. Walking over all requests is cheap beside a grain. */
static void emit_piece(void *task, int64_t begin, int64_t end)
{
	const struct kvc__plan *plan = task;
	int64_t base = 0, at;

	for (int64_t r = 0; r < plan->request_count; r++) {
		struct kvc__span positions = kvc__plan_positions(plan, r);
		if (positions.begin == positions.end)
			continue;
		for (int round = 0; round < 2; round++) {
			struct kvc__span part = part_of(plan, positions, base, round,
			        plan->first + begin, plan->first + end, &at);
			if (part.begin < part.end)
				emit_part(plan, r, positions, part, at);
		}
		base += positions.end - positions.begin;
	}
}

void kvc__plan_emit(const struct kvc__plan *plan)
{
	kvc__parallel_for(plan->emit_count, GRAIN, emit_piece, (void *)(uintptr_t)plan);
}

/* ---- writes ---- */

void kvc__plan_writes(const struct kvc__plan *plan)
{
	const kvc_plan *out = plan->out;
	int64_t capacity = out->write_req_capacity;
	int64_t count = plan->request_count < capacity ? plan->request_count : capacity;
	int64_t sum = 0;

	out->write_offsets[0] = 0;
	for (int64_t r = 0; r < count; r++) {
		sum += kvc__plan_write_count(plan, r);
		out->write_offsets[r + 1] = sum;
		out->write_seed_slot_indices[r] = -1;
		if (kvc__plan_has_seed(plan, r))
			out->write_seed_slot_indices[r] = translate(
			        plan, table_row(plan, &plan->slots, r)[plan->prefix_lens[r] - 1]);
	}
	memset(out->write_offsets + count + 1, 0, (size_t)(capacity - count) * sizeof(int64_t));
}
