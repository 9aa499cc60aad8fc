/*
 * Scatter of token histories on the CPU: one pass that looks for bad tokens, one that narrows.
 * Same bytes as the scatter of src/cuda.
 *
 * Both passes split the tokens, not the requests, so that one long history next to many short ones
 * still keeps all threads busy. Inner loops run over blocks of constant length, which compilers
 * turn into vector code without being told more about the machine.
 */
#include "cpu/scatter.h"

#include "base/threads.h"

#include <stdatomic.h>

/* Tokens that a thread is worth waking for: reading them takes some 10 us. */
#define GRAIN 16384

#define BLOCK 32

/* ---- the checking pass ---- */

struct token_search {
	const int64_t *flat;
	int64_t begin;
	int allow_placeholder;
	_Atomic int64_t first_bad; /* index in flat; INT64_MAX = none yet */
};

/*
 * A value whose bits from 31 on are zero exactly if the token is good. With the placeholder the
 * good tokens, moved up by one, are 0 .. 2^31; taking bit 31 off again maps 2^31 to 2^31-1 and
 * leaves everything larger at 2^31 or above.
 */
static inline uint64_t excess_of(int64_t token, int allow_placeholder)
{
	uint64_t moved = (uint64_t)token + 1;

	return allow_placeholder ? moved - (moved >> 31) : (uint64_t)token;
}

static inline uint64_t block_excess(const int64_t *tokens, int allow_placeholder)
{
	uint64_t all = 0;

	for (int i = 0; i < BLOCK; i++)
		all |= excess_of(tokens[i], allow_placeholder);
	return all >> 31;
}

/* First bad token of a range, or 'end'. */
static int64_t search_range(const int64_t *flat, int64_t begin, int64_t end, int allow_placeholder)
{
	int64_t i = begin;

	if (allow_placeholder)
		while (end - i >= BLOCK && !block_excess(flat + i, 1))
			i += BLOCK;
	else
		while (end - i >= BLOCK && !block_excess(flat + i, 0))
			i += BLOCK;
	while (i < end && !(excess_of(flat[i], allow_placeholder) >> 31))
		i++;
	return i;
}

static void search_piece(void *task, int64_t begin, int64_t end)
{
	struct token_search *search = task;
	int64_t past = search->begin + end;
	int64_t found =
	        search_range(search->flat, search->begin + begin, past, search->allow_placeholder);
	int64_t lowest = atomic_load(&search->first_bad);

	/* The lowest index wins, so that the answer does not depend on who was first. */
	while (found < past && found < lowest &&
	        !atomic_compare_exchange_weak(&search->first_bad, &lowest, found))
		continue;
}

int64_t kvc__scatter_first_bad_token(
        const int64_t *flat, int64_t begin, int64_t end, int allow_placeholder)
{
	struct token_search search = { flat, begin, allow_placeholder, INT64_MAX };

	kvc__parallel_for(end - begin, GRAIN, search_piece, &search);
	int64_t found = atomic_load(&search.first_bad);
	return found == INT64_MAX ? -1 : found;
}

/* ---- the narrowing pass ---- */

static void narrow_tokens(int32_t *restrict out, const int64_t *restrict in, int64_t count)
{
	int64_t i = 0;

	for (; count - i >= BLOCK; i += BLOCK)
		for (int j = 0; j < BLOCK; j++)
			out[i + j] = (int32_t)(uint32_t)(uint64_t)in[i + j];
	for (; i < count; i++)
		out[i] = (int32_t)(uint32_t)(uint64_t)in[i];
}

/* Store what request r has of flat[begin .. end), as far as its row reaches. */
static void store_part(const struct kvc__scatter *scatter, int64_t r, int64_t begin, int64_t end)
{
	int64_t first = scatter->offsets[r];
	int64_t past = scatter->offsets[r + 1];

	if (past <= first)
		return;
	if (past - first > scatter->column_count)
		past = first + scatter->column_count;
	if (past > end)
		past = end;
	if (begin < first)
		begin = first;
	if (begin < past)
		narrow_tokens(
		        scatter->table + scatter->rows[r] * scatter->row_stride + (begin - first),
		        scatter->flat + begin, past - begin);
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

static void store_piece(void *task, int64_t begin, int64_t end)
{
	const struct kvc__scatter *scatter = task;

	begin += scatter->offsets[0];
	end += scatter->offsets[0];
	for (int64_t r = request_at(scatter, begin);
	        r < scatter->request_count && scatter->offsets[r] < end; r++)
		store_part(scatter, r, begin, end);
}

void kvc__scatter_store(const struct kvc__scatter *scatter)
{
	int64_t count = scatter->request_count;

	if (scatter->in_order)
		for (int64_t r = 0; r < count; r++)
			store_part(scatter, r, 0, scatter->flat_count);
	else
		kvc__parallel_for(scatter->offsets[count] - scatter->offsets[0], GRAIN, store_piece,
		        (void *)(uintptr_t)scatter);
}
