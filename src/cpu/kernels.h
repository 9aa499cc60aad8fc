/*
 * The inner loops of the canary and of scatter, one function for each set of instructions; the table
 * of dispatch.h says which one runs. All versions of a function give the same result.
 */
#ifndef KVC__CPU_KERNELS_H
#define KVC__CPU_KERNELS_H

#include "cpu/xxh3.h"
#include "kvcanary.h"

/* Rows that splitmix folds side by side. */
#define KVC__FOLD_ROWS 16

/* Words of a cache line. */
#define KVC__LINE_WORDS 8

/*
 * folds[i] = the fold of folds[i] over the first word_count little-endian words of rows[i]
 * (kvc__splitmix64(fold ^ word)). Rows have any alignment. next: rows that will be read after these;
 * they are asked for (and not read).
 */
typedef void (*kvc__splitmix_fold_fn)(uint64_t folds[KVC__FOLD_ROWS],
        const uint8_t *const rows[KVC__FOLD_ROWS], const uint8_t *const next[KVC__FOLD_ROWS],
        int64_t word_count);

/*
 * Ask for what rows [first, past) have to fold KVC__FOLD_AHEAD words after word 'at', which is in their
 * next rows if they end before. That far 16 rows keep twice as much on its way as memory needs, and
 * do not fill the first-level cache.
 */
#define KVC__FOLD_AHEAD 64
static inline void kvc__fold_ask(const uint8_t *const rows[KVC__FOLD_ROWS],
        const uint8_t *const next[KVC__FOLD_ROWS], int64_t word_count, int64_t at, int first,
        int past)
{
	int64_t ahead = word_count < KVC__FOLD_AHEAD ? word_count : KVC__FOLD_AHEAD;
	const uint8_t *const *from = at + ahead < word_count ? rows : next;
	int64_t word = at + ahead < word_count ? at + ahead : at + ahead - word_count;

	for (int i = first; i < past; i++)
		__builtin_prefetch(from[i] + 8 * word);
}

/*
 * What shows a value that is not finite, repeated in all elements of a 64-bit word: adding the
 * lowest bit of the exponent to the exponent alone carries into the sign bit of an element exactly
 * if all its exponent bits (for float8_e4m3fn: and mantissa bits) are set, and never further.
 */
struct kvc__finite_masks {
	uint64_t exponent;
	uint64_t lowest;
	uint64_t carried; /* the sign bits */
};

/* Not 0 if one of the elements in these bytes is NaN or infinite. byte_count: a multiple of 8. next:
 * as many bytes that will be looked at after these. */
typedef uint64_t (*kvc__nonfinite_fn)(const uint8_t *bytes, const uint8_t *next, int64_t byte_count,
        const struct kvc__finite_masks *masks);

/* Not 0 if one of the tokens is not in 0 .. 2^31-1 (and not -1, if allow_placeholder). */
typedef uint64_t (*kvc__token_excess_fn)(
        const int64_t *tokens, int64_t count, int allow_placeholder);

/* Store the low 32 bits of each token. streams: with stores that pass the cache by. */
typedef void (*kvc__narrow_fn)(
        int32_t *restrict out, const int64_t *restrict in, int64_t count, int streams);

void kvc__splitmix_fold_portable(uint64_t folds[KVC__FOLD_ROWS],
        const uint8_t *const rows[KVC__FOLD_ROWS], const uint8_t *const next[KVC__FOLD_ROWS],
        int64_t word_count);
uint64_t kvc__nonfinite_words_portable(const uint8_t *bytes, const uint8_t *next,
        int64_t byte_count, const struct kvc__finite_masks *masks);
uint64_t kvc__token_excess_portable(const int64_t *tokens, int64_t count, int allow_placeholder);
void kvc__narrow_portable(
        int32_t *restrict out, const int64_t *restrict in, int64_t count, int streams);

#if defined(__x86_64__)
void kvc__splitmix_fold_avx2(uint64_t folds[KVC__FOLD_ROWS],
        const uint8_t *const rows[KVC__FOLD_ROWS], const uint8_t *const next[KVC__FOLD_ROWS],
        int64_t word_count);
uint64_t kvc__nonfinite_avx2(const uint8_t *bytes, const uint8_t *next, int64_t byte_count,
        const struct kvc__finite_masks *masks);
uint64_t kvc__token_excess_avx2(const int64_t *tokens, int64_t count, int allow_placeholder);
void kvc__narrow_avx2(
        int32_t *restrict out, const int64_t *restrict in, int64_t count, int streams);
void kvc__splitmix_fold_avx512(uint64_t folds[KVC__FOLD_ROWS],
        const uint8_t *const rows[KVC__FOLD_ROWS], const uint8_t *const next[KVC__FOLD_ROWS],
        int64_t word_count);
uint64_t kvc__nonfinite_avx512(const uint8_t *bytes, const uint8_t *next, int64_t byte_count,
        const struct kvc__finite_masks *masks);
uint64_t kvc__token_excess_avx512(const int64_t *tokens, int64_t count, int allow_placeholder);
void kvc__narrow_avx512(
        int32_t *restrict out, const int64_t *restrict in, int64_t count, int streams);
#elif defined(__aarch64__)
void kvc__splitmix_fold_neon(uint64_t folds[KVC__FOLD_ROWS],
        const uint8_t *const rows[KVC__FOLD_ROWS], const uint8_t *const next[KVC__FOLD_ROWS],
        int64_t word_count);
uint64_t kvc__nonfinite_neon(const uint8_t *bytes, const uint8_t *next, int64_t byte_count,
        const struct kvc__finite_masks *masks);
uint64_t kvc__token_excess_neon(const int64_t *tokens, int64_t count, int allow_placeholder);
#endif

#endif
