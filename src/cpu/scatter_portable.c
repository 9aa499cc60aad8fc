/*
 * Scatter of token histories on the CPU: one pass that looks for bad tokens, one that narrows.
 * Same bytes as the scatter of src/cuda.
 *
 * Both passes split the tokens, not the requests, so that one long history next to many short ones
 * still keeps all threads busy. The inner loops are kernels of the CPU variant (cpu/kernels.h).
 */
#include "cpu/scatter.h"

#include "base/threads.h"
#include "cpu/dispatch.h"
#include "cpu/fingerprint.h"

#include <stdatomic.h>

/* Tokens that a thread is worth waking for, twice a call: reading them takes some 50 us. */
#define GRAIN 65536

/* From this many tokens on the table is written past the cache: what is read twice would otherwise
 * have to share it with what is not read again soon. */
#define STREAM_TOKENS ((int64_t)1 << 20)

/* Tokens that are looked at before the next chance to stop. */
#define BLOCK 4096

/* Tokens that are narrowed before those in front of them: a part of a second-level cache. */
#define WALK 16384

/* ---- the checking pass ---- */

struct token_search {
	const struct kvc__cpu_variant *cpu;
	const int64_t *flat;
	int64_t begin;
	int allow_placeholder;
	_Atomic int64_t first_bad; /* index in flat; INT64_MAX = none yet */
};

/* First bad token of a range, or 'end'. */
static int64_t search_range(const struct token_search *search, int64_t begin, int64_t end)
{
	const int64_t *flat = search->flat;
	int64_t i = begin;

	while (i < end) {
		int64_t count = end - i < BLOCK ? end - i : BLOCK;
		if (search->cpu->token_excess(flat + i, count, search->allow_placeholder))
			break;
		i += count;
	}
	while (i < end && !kvc__token_excess_portable(flat + i, 1, search->allow_placeholder))
		i++;
	return i;
}

static void search_piece(void *task, int64_t begin, int64_t end)
{
	struct token_search *search = task;
	int64_t past = search->begin + end;
	int64_t found = search_range(search, search->begin + begin, past);
	int64_t lowest = atomic_load(&search->first_bad);

	/* The lowest index wins, so that the answer does not depend on who was first. */
	while (found < past && found < lowest &&
	        !atomic_compare_exchange_weak(&search->first_bad, &lowest, found))
		continue;
}

int64_t kvc__scatter_first_bad_token(const struct kvc__cpu_variant *cpu, const int64_t *flat,
        int64_t begin, int64_t end, int allow_placeholder)
{
	struct token_search search = { cpu, flat, begin, allow_placeholder, INT64_MAX };

	kvc__parallel_for(end - begin, GRAIN, search_piece, &search);
	int64_t found = atomic_load(&search.first_bad);
	return found == INT64_MAX ? -1 : found;
}

/* ---- the narrowing pass ---- */

/* Words of a row that are asked for ahead, and of a cache line. */
#define ROW_AHEAD 256
#define LINE 16

/* Ask for the beginning of the row that is written next: no hardware guesses where it is. */
KVC__INLINED static inline void ask_for_row(const struct kvc__scatter *task, int64_t r)
{
	if (task->offsets[r + 1] <= task->offsets[r])
		return; /* without tokens it may name any row */
	const int32_t *row = task->table + task->rows[r] * task->row_stride;
	int64_t count = task->column_count < ROW_AHEAD ? task->column_count : ROW_AHEAD;

	for (int64_t i = 0; i < count; i += LINE)
		__builtin_prefetch(row + i, 1);
}

/* Store what requests [r, past_r) have of flat[begin .. end), as far as their rows reach. */
static void store_parts(
        const struct kvc__scatter *scatter, int64_t r, int64_t past_r, int64_t begin, int64_t end)
{
	const struct kvc__scatter task = *scatter; /* which no store can change */
	int streams = task.flat_count >= STREAM_TOKENS;

	for (; r < past_r; r++) {
		int64_t first = task.offsets[r];
		int64_t past = task.offsets[r + 1];
		if (past <= first)
			continue;
		if (!streams && r + 1 < past_r)
			ask_for_row(&task, r + 1);
		if (past - first > task.column_count)
			past = first + task.column_count;
		past = past < end ? past : end;
		int64_t from = begin < first ? first : begin;
		if (from < past)
			task.cpu->narrow(
			        task.table + task.rows[r] * task.row_stride + (from - first),
			        task.flat + from, past - from, streams);
	}
}

/* The last request whose tokens begin at or before 'at'; offsets ascend, offsets[0] <= at. */
static int64_t request_at(const struct kvc__scatter *scatter, int64_t at)
{
	int64_t low = 0, past = scatter->request_count;

	while (past - low > 1) {
		int64_t middle = low + (past - low) / 2;
		if (scatter->offsets[middle] <= at)
			low = middle;
		else
			past = middle;
	}
	return low;
}

/*
 * From the end to the beginning, WALK tokens at a time: the checking pass has left the end in the
 * cache.
 */
static void store_piece(void *task, int64_t begin, int64_t end)
{
	const struct kvc__scatter *scatter = task;

	begin += scatter->offsets[0];
	end += scatter->offsets[0];
	while (end > begin) {
		int64_t from = end - begin > WALK ? end - WALK : begin;
		int64_t r = request_at(scatter, from), past_r = request_at(scatter, end - 1) + 1;
		store_parts(scatter, r, past_r, from, end);
		end = from;
	}
}

void kvc__scatter_store(const struct kvc__scatter *scatter)
{
	int64_t count = scatter->request_count;

	if (scatter->in_order)
		store_parts(scatter, 0, count, 0, scatter->flat_count);
	else
		kvc__parallel_for(scatter->offsets[count] - scatter->offsets[0], GRAIN, store_piece,
		        (void *)(uintptr_t)scatter);
}
