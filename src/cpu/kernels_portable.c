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

/* Eight rows at a time, so that their chains of multiplications overlap; each access to one of them
 * goes on in the same cache line until the line is used up. */
static void fold_eight(uint64_t *folds, const uint8_t *const *rows, int64_t begin, int64_t end)
{
	uint64_t a = folds[0], b = folds[1], c = folds[2], d = folds[3];
	uint64_t e = folds[4], f = folds[5], g = folds[6], h = folds[7];

	for (int64_t at = 8 * begin; at < 8 * end; at += 8) {
		a = kvc__splitmix64(a ^ little_endian_word(rows[0] + at));
		b = kvc__splitmix64(b ^ little_endian_word(rows[1] + at));
		c = kvc__splitmix64(c ^ little_endian_word(rows[2] + at));
		d = kvc__splitmix64(d ^ little_endian_word(rows[3] + at));
		e = kvc__splitmix64(e ^ little_endian_word(rows[4] + at));
		f = kvc__splitmix64(f ^ little_endian_word(rows[5] + at));
		g = kvc__splitmix64(g ^ little_endian_word(rows[6] + at));
		h = kvc__splitmix64(h ^ little_endian_word(rows[7] + at));
	}
	folds[0] = a, folds[1] = b, folds[2] = c, folds[3] = d;
	folds[4] = e, folds[5] = f, folds[6] = g, folds[7] = h;
}

void kvc__splitmix_fold_portable(uint64_t folds[KVC__FOLD_ROWS],
        const uint8_t *const rows[KVC__FOLD_ROWS], const uint8_t *const next[KVC__FOLD_ROWS],
        int64_t word_count)
{
	for (int first = 0; first < KVC__FOLD_ROWS; first += 8)
		for (int64_t at = 0; at < word_count; at += KVC__LINE_WORDS) {
			int64_t left = word_count - at;
			int64_t some = left < KVC__LINE_WORDS ? left : KVC__LINE_WORDS;
			kvc__fold_ask(rows, next, word_count, at, first, first + 8);
			fold_eight(folds + first, rows + first, at, at + some);
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
