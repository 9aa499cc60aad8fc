/* The kernels of cpu/kernels.h in plain C: what the others must agree with. */
#include "cpu/hash.h"
#include "cpu/kernels.h"

#include <string.h>

/* Compilers make one load of it. */
static uint64_t little_endian_word(const uint8_t *b)
{
	return (uint64_t)b[0] | (uint64_t)b[1] << 8 | (uint64_t)b[2] << 16 | (uint64_t)b[3] << 24 |
	       (uint64_t)b[4] << 32 | (uint64_t)b[5] << 40 | (uint64_t)b[6] << 48 |
	       (uint64_t)b[7] << 56;
}

void kvc__splitmix_fold_portable(uint64_t folds[KVC__FOLD_ROWS],
        const uint8_t *const rows[KVC__FOLD_ROWS], const uint8_t *const next[KVC__FOLD_ROWS],
        int64_t word_count)
{
	(void)next; /* only what needs nothing of the compiler */
	/* Four rows at a time, so that their chains of multiplications overlap. */
	for (int row = 0; row < KVC__FOLD_ROWS; row += 4) {
		uint64_t a = folds[row], b = folds[row + 1], c = folds[row + 2], d = folds[row + 3];
		for (int64_t at = 0; at < 8 * word_count; at += 8) {
			a = kvc__splitmix64(a ^ little_endian_word(rows[row] + at));
			b = kvc__splitmix64(b ^ little_endian_word(rows[row + 1] + at));
			c = kvc__splitmix64(c ^ little_endian_word(rows[row + 2] + at));
			d = kvc__splitmix64(d ^ little_endian_word(rows[row + 3] + at));
		}
		folds[row] = a, folds[row + 1] = b, folds[row + 2] = c, folds[row + 3] = d;
	}
}

uint64_t kvc__nonfinite_words_portable(const uint8_t *bytes, const uint8_t *next,
        int64_t byte_count, const struct kvc__finite_masks *masks)
{
	(void)next;
	uint64_t found = 0, word;

	for (int64_t at = 0; at + 8 <= byte_count; at += 8) {
		memcpy(&word, bytes + at, sizeof(word));
		found |= ((word & masks->exponent) + masks->lowest) & masks->carried;
	}
	return found;
}

/*
 * With the placeholder the good tokens, moved up by one, are 0 .. 2^31; taking bit 31 off again maps
 * 2^31 to 2^31-1 and leaves everything larger at 2^31 or above.
 */
uint64_t kvc__token_excess_portable(const int64_t *tokens, int64_t count, int allow_placeholder)
{
	uint64_t all = 0;

	for (int64_t i = 0; i < count; i++) {
		uint64_t moved = (uint64_t)tokens[i] + 1;
		all |= allow_placeholder ? moved - (moved >> 31) : (uint64_t)tokens[i];
	}
	return all >> 31;
}

void kvc__narrow_portable(
        int32_t *restrict out, const int64_t *restrict in, int64_t count, int streams)
{
	(void)streams;
	for (int64_t i = 0; i < count; i++)
		out[i] = (int32_t)(uint32_t)(uint64_t)in[i];
}
