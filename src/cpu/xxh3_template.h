/*
 * XXH3 for one set of instructions: a template. The file that includes it defines
 *
 *   KVC__NAME(base)     the name with the suffix of the set
 *   KVC__XXH3_TARGET    its name for the compiler; not defined: the compiler's baseline
 *   XXH_VECTOR          its name for libxxhash, if there is a KVC__XXH3_TARGET
 *
 * and gets xxh3 and xxh3_rows as cpu/xxh3.h declares them.
 *
 * The library's own loop asks for bytes a fixed distance ahead, past the end of a row as well; rows
 * lie anywhere, so that is the wrong row half of the time. long_row() is the same algorithm (hashLong
 * of XXH3 with the default secret) over the library's own steps, and asks for the next row line by
 * line while it hashes this one.
 */
#include "cpu/xxh3.h"

#include <stdlib.h>
#include <string.h>
#if defined(KVC__XXH3_TARGET)
#include <immintrin.h>
/* The library has no attribute of its own for a set of instructions, so the whole of it is compiled
 * for one here: gcc and clang spell that differently. */
#define KVC__PRAGMA(...) KVC__PRAGMA_OF(__VA_ARGS__)
#define KVC__PRAGMA_OF(...) _Pragma(#__VA_ARGS__)
#if defined(__clang__)
KVC__PRAGMA(clang attribute push(__attribute__((target(KVC__XXH3_TARGET))), apply_to = function))
#else
#pragma GCC push_options
KVC__PRAGMA(GCC target(KVC__XXH3_TARGET))
#endif
#endif

#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t KVC__NAME(xxh3)(const void *bytes, size_t count)
{
	return XXH3_64bits(bytes, count);
}

/* ---- rows from memory ---- */

/* How far ahead: what a memory of 10 GB/s that answers after 200 ns has on its way. */
#define KVC__AHEAD ((size_t)2048)

#define KVC__LINE 64
#define KVC__STRIPE 64 /* bytes, as XXH_STRIPE_LEN */
#define KVC__BLOCK     /* bytes */                                                                 \
	((XXH_SECRET_DEFAULT_SIZE - KVC__STRIPE) / XXH_SECRET_CONSUME_RATE * KVC__STRIPE)

/* Into all caches: the hint for what is read once takes 5 % longer on a Xeon. */
#define KVC__ASK(address) __builtin_prefetch((address), 0, 3)

/*
 * The eight sums of a row under way, and what one stripe does to them. The library's steps leave the
 * sums in memory, where each stripe waits until the one before is stored: rows in cache take 60 %
 * longer with them. Vectors of the compiler stay in registers.
 */
#if defined(KVC__XXH3_TARGET)
#if XXH_VECTOR == XXH_AVX512
#define KVC__VECTOR_BYTES 64
#define KVC__MULTIPLY_LOW(a, b) _mm512_mul_epu32((__m512i)(a), (__m512i)(b))
#define KVC__SWAP_WORDS(a)                                                                         \
	_mm512_shuffle_epi32((__m512i)(a), (_MM_PERM_ENUM)_MM_SHUFFLE(1, 0, 3, 2))
#else
#define KVC__VECTOR_BYTES 32
#define KVC__MULTIPLY_LOW(a, b) _mm256_mul_epu32((__m256i)(a), (__m256i)(b))
#define KVC__SWAP_WORDS(a) _mm256_shuffle_epi32((__m256i)(a), _MM_SHUFFLE(1, 0, 3, 2))
#endif
#define KVC__VECTOR KVC__NAME(xxh3_vector)
#define KVC__VECTORS (KVC__STRIPE / KVC__VECTOR_BYTES)

typedef uint64_t KVC__VECTOR __attribute__((vector_size(KVC__VECTOR_BYTES)));

struct KVC__NAME(sums) {
	KVC__VECTOR part[KVC__VECTORS];
};

static inline KVC__VECTOR KVC__NAME(part)(const void *from, size_t index)
{
	KVC__VECTOR vector;
	memcpy(&vector, (const char *)from + index * KVC__VECTOR_BYTES, sizeof vector);
	return vector;
}

static inline void KVC__NAME(stripe)(
        struct KVC__NAME(sums) * sums, const xxh_u8 *in, const xxh_u8 *secret)
{
	for (size_t i = 0; i < KVC__VECTORS; i++) {
		KVC__VECTOR data = KVC__NAME(part)(in, i);
		KVC__VECTOR key = data ^ KVC__NAME(part)(secret, i);
		sums->part[i] += (KVC__VECTOR)KVC__SWAP_WORDS(data) +
		                 (KVC__VECTOR)KVC__MULTIPLY_LOW(key, key >> 32);
	}
}

static inline void KVC__NAME(scramble)(struct KVC__NAME(sums) * sums, const xxh_u8 *secret)
{
	const KVC__VECTOR prime = XXH_PRIME32_1 - (KVC__VECTOR){ 0 };

	for (size_t i = 0; i < KVC__VECTORS; i++) {
		KVC__VECTOR key = sums->part[i];
		key ^= key >> 47 ^ KVC__NAME(part)(secret, i);
		sums->part[i] = (KVC__VECTOR)KVC__MULTIPLY_LOW(key, prime) +
		                ((KVC__VECTOR)KVC__MULTIPLY_LOW(key >> 32, prime) << 32);
	}
}
#else
struct KVC__NAME(sums) {
	_Alignas(XXH_ACC_ALIGN) xxh_u64 part[XXH_ACC_NB];
};

static inline void KVC__NAME(stripe)(
        struct KVC__NAME(sums) * sums, const xxh_u8 *in, const xxh_u8 *secret)
{
	XXH3_accumulate_512(sums->part, in, secret);
}

static inline void KVC__NAME(scramble)(struct KVC__NAME(sums) * sums, const xxh_u8 *secret)
{
	XXH3_scrambleAcc(sums->part, secret);
}
#endif

/* Stripes of one block; 'ask': the first of as many lines that will be read later. */
static inline void KVC__NAME(stripes)(
        struct KVC__NAME(sums) * sums, const xxh_u8 *in, size_t count, const xxh_u8 *ask)
{
	for (size_t s = 0; s < count; s++) {
		KVC__ASK(ask + s * KVC__STRIPE);
		KVC__NAME(stripe)
		(sums, in + s * KVC__STRIPE, XXH3_kSecret + s * XXH_SECRET_CONSUME_RATE);
	}
}

/*
 * count: above XXH3_MIDSIZE_MAX. A long row is asked for within itself, block by block, until what is
 * left of it is about KVC__AHEAD bytes; then the next row is.
 */
static inline uint64_t KVC__NAME(long_row)(const xxh_u8 *in, size_t count, const xxh_u8 *next)
{
	static const XXH_ALIGN(64) xxh_u64 start[XXH_ACC_NB] = XXH3_INIT_ACC;
	const xxh_u8 *secret_end = XXH3_kSecret + XXH_SECRET_DEFAULT_SIZE - KVC__STRIPE;
	size_t ahead = count < 2 * KVC__AHEAD ? count : KVC__AHEAD + count % KVC__BLOCK;
	const xxh_u8 *end = in + count, *ask = ahead < count ? in + ahead : next;
	XXH_ALIGN(64) xxh_u64 acc[XXH_ACC_NB];
	struct KVC__NAME(sums) sums;

	memcpy(&sums, start, sizeof sums);
	for (; (size_t)(end - in) > KVC__BLOCK; in += KVC__BLOCK) {
		KVC__NAME(stripes)(&sums, in, KVC__BLOCK / KVC__STRIPE, ask);
		KVC__NAME(scramble)(&sums, secret_end);
		ask = ask + KVC__BLOCK == end ? next : ask + KVC__BLOCK;
	}
	size_t left = (size_t)(end - in - 1) / KVC__STRIPE;
	KVC__NAME(stripes)(&sums, in, left, ask);
	KVC__ASK(ask + left * KVC__STRIPE);
	KVC__NAME(stripe)(&sums, end - KVC__STRIPE, secret_end - XXH_SECRET_LASTACC_START);
	memcpy(acc, &sums, sizeof sums);
	return XXH3_mergeAccs(
	        acc, XXH3_kSecret + XXH_SECRET_MERGEACCS_START, (xxh_u64)count * XXH_PRIME64_1);
}

/* Ask for the first bytes of a row, as far as a row before it cannot have asked for them. */
static inline void KVC__NAME(ask_row)(const uint8_t *row, size_t count)
{
	const uint8_t *past = row + (count < KVC__AHEAD ? count : KVC__AHEAD);
	const uint8_t *line = (const uint8_t *)((uintptr_t)row & ~(uintptr_t)(KVC__LINE - 1));

	for (; line < past; line += KVC__LINE)
		KVC__ASK(line);
}

/*
 * Rows KVC__AHEAD bytes ahead are asked for as a whole; of those twice as far a single line, because
 * the first access to a page waits for its address to be translated, and while it does, all that are
 * asked for after it wait with it.
 */
__attribute__((flatten)) void KVC__NAME(xxh3_rows)(
        uint64_t *out, const uint8_t *const *rows, int64_t count, int64_t row_bytes)
{
	size_t bytes = (size_t)row_bytes;
	int64_t ahead = bytes == 0 || bytes >= KVC__AHEAD ? 1 : (int64_t)(KVC__AHEAD / bytes);
	ahead = ahead < 32 ? ahead : 32; /* as many lines as a core can wait for */

	for (int64_t i = 0; i < ahead && i < count; i++)
		KVC__NAME(ask_row)(rows[i], bytes);
	for (int64_t i = 0; i < count; i++) {
		const uint8_t *next = rows[i + ahead < count ? i + ahead : count - 1];
		KVC__ASK(rows[i + 2 * ahead < count ? i + 2 * ahead : count - 1]);
		if (bytes > XXH3_MIDSIZE_MAX) {
			out[i] = KVC__NAME(long_row)(rows[i], bytes, next);
			continue;
		}
		KVC__NAME(ask_row)(next, bytes);
		out[i] = XXH3_64bits(rows[i], bytes);
	}
}

#if defined(KVC__XXH3_TARGET)
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
