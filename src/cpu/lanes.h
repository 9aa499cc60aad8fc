/*
 * Loops over KV bytes and tokens in vector lanes, for one set of instructions: a template. The file
 * that includes it defines
 *
 *   KVC__LANES        64-bit lanes of a vector
 *   KVC__TARGET       the attribute of every function (its set of instructions)
 *   KVC__NAME(base)   the name with the suffix of the set
 *   KVC__OWN_LINES    if it defines a lines() of its own, after the inclusion
 *
 * and gets splitmix_fold, nonfinite and token_excess as cpu/kernels.h declares them. The compiler's
 * vector types say what is meant without a word of any one machine; where there is no 64-bit
 * multiplication it puts one together from 32-bit ones. All arithmetic is on integers, so the
 * results are those of the portable loops by construction.
 */
#include "cpu/kernels.h"

#include <string.h>

typedef uint64_t KVC__NAME(vector) __attribute__((vector_size(8 * KVC__LANES)));
#define KVC__VECTOR KVC__NAME(vector)

/* ---- splitmix: one row a lane ---- */

KVC__TARGET static inline KVC__VECTOR KVC__NAME(mix)(KVC__VECTOR x)
{
	x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
	x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
	return x ^ (x >> 31);
}

/* Word number 'at' of the rows from rows[0] on, one in each lane. */
KVC__TARGET static inline KVC__VECTOR KVC__NAME(words)(const uint8_t *const *rows, int64_t at)
{
	KVC__VECTOR words = { 0 };
	for (int lane = 0; lane < KVC__LANES; lane++) {
		uint64_t word;
		memcpy(&word, rows[lane] + 8 * at, sizeof word);
		words[lane] = word;
	}
	return words;
}

/* The KVC__LINE_WORDS words from number 'at' on. */
KVC__TARGET static inline void KVC__NAME(lines)(
        KVC__VECTOR out[KVC__LINE_WORDS], const uint8_t *const *rows, int64_t at);

#if !defined(KVC__OWN_LINES)
KVC__TARGET static inline void KVC__NAME(lines)(
        KVC__VECTOR out[KVC__LINE_WORDS], const uint8_t *const *rows, int64_t at)
{
	for (int64_t i = 0; i < KVC__LINE_WORDS; i++)
		out[i] = KVC__NAME(words)(rows, at + i);
}
#endif

/*
 * A row's fold is one long chain of dependent multiplications, so what counts is how many rows are
 * under way at a time: all KVC__FOLD_ROWS. Rows that lie a multiple of 4096 bytes apart share the few
 * ways of one set of the first-level cache; so a line of each row is taken at a time and never again.
 */
KVC__TARGET void KVC__NAME(splitmix_fold)(uint64_t folds[KVC__FOLD_ROWS],
        const uint8_t *const rows[KVC__FOLD_ROWS], const uint8_t *const next[KVC__FOLD_ROWS],
        int64_t word_count)
{
	enum { VECTORS = KVC__FOLD_ROWS / KVC__LANES };
	KVC__VECTOR state[VECTORS], lines[VECTORS][KVC__LINE_WORDS];
	int64_t at = 0;

	for (int i = 0; i < VECTORS; i++)
		memcpy(&state[i], folds + i * KVC__LANES, sizeof state[i]);
	for (; word_count - at >= KVC__LINE_WORDS; at += KVC__LINE_WORDS) {
		for (int i = 0; i < VECTORS; i++)
			KVC__NAME(lines)(lines[i], rows + i * KVC__LANES, at);
		for (int w = 0; w < KVC__LINE_WORDS; w++) {
			kvc__fold_ask(rows, next, word_count, at, 2 * w, 2 * w + 2);
			for (int i = 0; i < VECTORS; i++)
				state[i] = KVC__NAME(mix)(state[i] ^ lines[i][w]);
		}
	}
	for (; at < word_count; at++)
		for (int i = 0; i < VECTORS; i++)
			state[i] = KVC__NAME(mix)(
			        state[i] ^ KVC__NAME(words)(rows + i * KVC__LANES, at));
	for (int i = 0; i < VECTORS; i++)
		memcpy(folds + i * KVC__LANES, &state[i], sizeof state[i]);
}

/* ---- NaN and infinity ---- */

KVC__TARGET static inline KVC__VECTOR KVC__NAME(load)(const void *from)
{
	KVC__VECTOR vector;
	memcpy(&vector, from, sizeof vector);
	return vector;
}

KVC__TARGET static inline uint64_t KVC__NAME(any)(KVC__VECTOR vector)
{
	uint64_t all = 0;
	for (int lane = 0; lane < KVC__LANES; lane++)
		all |= vector[lane];
	return all;
}

KVC__TARGET uint64_t KVC__NAME(nonfinite)(const uint8_t *bytes, const uint8_t *next,
        int64_t byte_count, const struct kvc__finite_masks *masks)
{
	const int64_t lane_bytes = 8 * KVC__LANES, step = 4 * lane_bytes;
	KVC__VECTOR exponent = masks->exponent - (KVC__VECTOR){ 0 };
	KVC__VECTOR lowest = masks->lowest - (KVC__VECTOR){ 0 };
	KVC__VECTOR found[4] = { { 0 }, { 0 }, { 0 }, { 0 } };
	int64_t at = 0;

	for (; byte_count - at >= step; at += step) {
		for (int64_t line = at; line < at + step; line += 64)
			__builtin_prefetch(next + line);
		for (int i = 0; i < 4; i++) {
			KVC__VECTOR values = KVC__NAME(load)(bytes + at + i * lane_bytes);
			found[i] |= (values & exponent) + lowest;
		}
	}
	uint64_t all = KVC__NAME(any)(found[0] | found[1] | found[2] | found[3]) & masks->carried;
	return all | kvc__nonfinite_words_portable(bytes + at, next, byte_count - at, masks);
}

/* ---- tokens ---- */

/* Tokens are asked for this many ahead, or a single stream does not keep memory busy. */
#define KVC__TOKENS_AHEAD 512

KVC__TARGET uint64_t KVC__NAME(token_excess)(
        const int64_t *tokens, int64_t count, int allow_placeholder)
{
	const int64_t step = 4 * KVC__LANES;
	KVC__VECTOR all[4] = { { 0 }, { 0 }, { 0 }, { 0 } };
	int64_t at = 0;

	for (; !allow_placeholder && count - at >= step; at += step) {
		for (int64_t line = at; line < at + step; line += KVC__LINE_WORDS)
			__builtin_prefetch(tokens + line + KVC__TOKENS_AHEAD);
		for (int i = 0; i < 4; i++)
			all[i] |= KVC__NAME(load)(tokens + at + i * KVC__LANES);
	}
	for (; allow_placeholder && count - at >= step; at += step) {
		for (int64_t line = at; line < at + step; line += KVC__LINE_WORDS)
			__builtin_prefetch(tokens + line + KVC__TOKENS_AHEAD);
		for (int i = 0; i < 4; i++) {
			KVC__VECTOR moved = KVC__NAME(load)(tokens + at + i * KVC__LANES) + 1;
			all[i] |= moved - (moved >> 31);
		}
	}
	return KVC__NAME(any)(all[0] | all[1] | all[2] | all[3]) >> 31 |
	       kvc__token_excess_portable(tokens + at, count - at, allow_placeholder);
}

#undef KVC__VECTOR
