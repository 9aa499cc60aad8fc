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
#define KVC__BLOCK_STRIPES ((XXH_SECRET_DEFAULT_SIZE - KVC__STRIPE) / XXH_SECRET_CONSUME_RATE)

/* A row is read once, so it need not push anything else out of the outer caches. */
#define KVC__ASK(address) __builtin_prefetch((address), 0, 0)

/* Where the line 'at' bytes further on stands: in this row, or in the next one. */
static inline const xxh_u8 *KVC__NAME(ahead_of)(
        const xxh_u8 *in, size_t at, size_t count, const xxh_u8 *next)
{
	/* A long row is asked for within itself, until its last KVC__AHEAD bytes. */
	size_t ahead = count < KVC__AHEAD ? count : KVC__AHEAD;
	return at + ahead < count ? in + at + ahead : next + (at + ahead - count);
}

static inline void KVC__NAME(stripes)(
        xxh_u64 *acc, const xxh_u8 *in, size_t at, size_t stripes, size_t count, const xxh_u8 *next)
{
	for (size_t s = 0; s < stripes; s++) {
		KVC__ASK(KVC__NAME(ahead_of)(in, at + s * KVC__STRIPE, count, next));
		XXH3_accumulate_512(
		        acc, in + at + s * KVC__STRIPE, XXH3_kSecret + s * XXH_SECRET_CONSUME_RATE);
	}
}

#if defined(__x86_64__) && XXH_VECTOR == XXH_AVX2
#define KVC__ONE_BLOCK
/* Half a stripe: the library's step with the sums in a register. */
static inline __m256i KVC__NAME(half_stripe)(__m256i sums, const xxh_u8 *in, const xxh_u8 *secret)
{
	__m256i data = _mm256_loadu_si256((const __m256i *)in);
	__m256i key = _mm256_xor_si256(data, _mm256_loadu_si256((const __m256i *)secret));
	__m256i product = _mm256_mul_epu32(key, _mm256_srli_epi64(key, 32));
	__m256i swapped = _mm256_shuffle_epi32(data, _MM_SHUFFLE(1, 0, 3, 2));

	return _mm256_add_epi64(sums, _mm256_add_epi64(product, swapped));
}

/*
 * A row of one block, 241 to 1024 bytes: a head of most models. Its set-up weighs as much as its
 * bytes, and the library's steps keep the sums in memory: 256 bytes take 60 % longer with them.
 */
static inline uint64_t KVC__NAME(one_block)(const xxh_u8 *in, size_t count, const xxh_u8 *next)
{
	static const XXH_ALIGN(32) xxh_u64 start[XXH_ACC_NB] = XXH3_INIT_ACC;
	const xxh_u8 *secret = XXH3_kSecret, *last = in + count - KVC__STRIPE;
	const xxh_u8 *merge = XXH3_kSecret + XXH_SECRET_MERGEACCS_START;
	__m256i low = _mm256_load_si256((const __m256i *)start);
	__m256i high = _mm256_load_si256((const __m256i *)(start + 4));
	xxh_u64 result = (xxh_u64)count * XXH_PRIME64_1;
	XXH_ALIGN(32) xxh_u64 keyed[XXH_ACC_NB];

	for (size_t stripes = (count - 1) / KVC__STRIPE; stripes > 0; stripes--) {
		KVC__ASK(next);
		low = KVC__NAME(half_stripe)(low, in, secret);
		high = KVC__NAME(half_stripe)(high, in + 32, secret + 32);
		in += KVC__STRIPE;
		next += KVC__STRIPE;
		secret += XXH_SECRET_CONSUME_RATE;
	}
	KVC__ASK(next);
	secret = XXH3_kSecret + XXH_SECRET_DEFAULT_SIZE - KVC__STRIPE - XXH_SECRET_LASTACC_START;
	low = KVC__NAME(half_stripe)(low, last, secret);
	high = KVC__NAME(half_stripe)(high, last + 32, secret + 32);
	_mm256_store_si256((__m256i *)keyed,
	        _mm256_xor_si256(low, _mm256_loadu_si256((const __m256i *)merge)));
	_mm256_store_si256((__m256i *)(keyed + 4),
	        _mm256_xor_si256(high, _mm256_loadu_si256((const __m256i *)(merge + 32))));
	for (size_t i = 0; i < XXH_ACC_NB; i += 2)
		result += XXH3_mul128_fold64(keyed[i], keyed[i + 1]);
	return XXH3_avalanche(result);
}
#endif

/* count: above XXH3_MIDSIZE_MAX. */
static inline uint64_t KVC__NAME(long_row)(const xxh_u8 *in, size_t count, const xxh_u8 *next)
{
	const size_t block = KVC__BLOCK_STRIPES * KVC__STRIPE;
#if defined(KVC__ONE_BLOCK)
	if (count <= block)
		return KVC__NAME(one_block)(in, count, next);
#endif
	XXH_ALIGN(XXH_ACC_ALIGN) xxh_u64 acc[XXH_ACC_NB] = XXH3_INIT_ACC;
	size_t at = 0;

	for (; at + block < count; at += block) {
		KVC__NAME(stripes)(acc, in, at, KVC__BLOCK_STRIPES, count, next);
		XXH3_scrambleAcc(acc, XXH3_kSecret + XXH_SECRET_DEFAULT_SIZE - KVC__STRIPE);
	}
	KVC__NAME(stripes)(acc, in, at, (count - 1 - at) / KVC__STRIPE, count, next);
	KVC__ASK(KVC__NAME(ahead_of)(in, (count - 1) / KVC__STRIPE * KVC__STRIPE, count, next));
	XXH3_accumulate_512(acc, in + count - KVC__STRIPE,
	        XXH3_kSecret + XXH_SECRET_DEFAULT_SIZE - KVC__STRIPE - XXH_SECRET_LASTACC_START);
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
void KVC__NAME(xxh3_rows)(
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
