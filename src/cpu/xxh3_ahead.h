/*
 * XXH3 of a row that comes from memory, for one set of instructions: a template, included after
 * xxhash.h in the file of that set, which defines KVC__NAME(base).
 *
 * The library's own loop asks for bytes a fixed distance ahead, past the end of a row as well; rows
 * lie anywhere, so that is the wrong row half of the time. This one is the same algorithm (hashLong
 * of XXH3 with the default secret) over the library's own steps, and asks for the next row line by
 * line while it hashes this one: measured on a Zen 3, rows of 2 KiB in random order come in at 6.9
 * GB/s like this, at 5.2 when a row is asked for all at once, at 4.5 when it is not.
 */
/* How far ahead: what a memory of 10 GB/s that answers after 200 ns has on its way. */
#define KVC__AHEAD ((size_t)2048)

#define KVC__STRIPE 64 /* bytes, as XXH_STRIPE_LEN */
#define KVC__BLOCK_STRIPES ((XXH_SECRET_DEFAULT_SIZE - KVC__STRIPE) / XXH_SECRET_CONSUME_RATE)

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
		__builtin_prefetch(KVC__NAME(ahead_of)(in, at + s * KVC__STRIPE, count, next));
		XXH3_accumulate_512(
		        acc, in + at + s * KVC__STRIPE, XXH3_kSecret + s * XXH_SECRET_CONSUME_RATE);
	}
}

uint64_t KVC__NAME(xxh3_ahead)(const void *bytes, size_t count, const void *next)
{
	XXH_ALIGN(XXH_ACC_ALIGN) xxh_u64 acc[XXH_ACC_NB] = XXH3_INIT_ACC;
	const size_t block = KVC__BLOCK_STRIPES * KVC__STRIPE;
	const xxh_u8 *in = bytes;
	size_t at = 0;

	if (count <= XXH3_MIDSIZE_MAX) {
		for (size_t line = 0; line < count; line += KVC__STRIPE)
			__builtin_prefetch((const xxh_u8 *)next + line);
		return XXH3_64bits(bytes, count);
	}
	for (; at + block < count; at += block) {
		KVC__NAME(stripes)(acc, in, at, KVC__BLOCK_STRIPES, count, next);
		XXH3_scrambleAcc(acc, XXH3_kSecret + XXH_SECRET_DEFAULT_SIZE - KVC__STRIPE);
	}
	KVC__NAME(stripes)(acc, in, at, (count - 1 - at) / KVC__STRIPE, count, next);
	__builtin_prefetch(
	        KVC__NAME(ahead_of)(in, (count - 1) / KVC__STRIPE * KVC__STRIPE, count, next));
	XXH3_accumulate_512(acc, in + count - KVC__STRIPE,
	        XXH3_kSecret + XXH_SECRET_DEFAULT_SIZE - KVC__STRIPE - XXH_SECRET_LASTACC_START);
	return XXH3_mergeAccs(
	        acc, XXH3_kSecret + XXH_SECRET_MERGEACCS_START, (xxh_u64)count * XXH_PRIME64_1);
}
