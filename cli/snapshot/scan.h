/*
 * One pass over the rows of a tensor: a fingerprint of each head of each row, and whether it is all
 * zero or holds a value that is not finite. Bytes are looked at once, while they are in cache, where
 * the read has put them.
 *
 * A fingerprint is what kvc_fingerprint() gives for a source with id 0 of the packed bytes of one head
 * of one row (as saved_read_bytes() packs them): s(XXH3-64(bytes) + 0x9E3779B97F4A7C15) mod 2^64, XXH3
 * with seed 0, s the finaliser of splitmix64. So any program that has XXH3 can compute it again.
 */
#ifndef KVCANARY_SNAPSHOT_SCAN_H
#define KVCANARY_SNAPSHOT_SCAN_H

#include "snapshot/cache.h"

/* Rows of more bytes are refused, so that memory has a bound. */
#define SCAN_ROW_BYTES_MAX ((size_t)16 << 20)

enum {
	SCAN_ZERO = 1,        /* every value is 0 or -0 */
	SCAN_NONFINITE = 2,   /* NaN or infinity, in a value or in the scale of a block */
	SCAN_ZERO_STRETCH = 4 /* SCAN_STRETCH elements from a multiple of that on are 0 */
};
#define SCAN_STRETCH 32 /* elements: a head of the usual sizes is some of them */

/* Rows first .. first + count - 1 of a tensor. What is known of head h of the i-th of them stands at
 * scan_at(rows, i, h) of both arrays: rows by rows or heads by heads, as they lie in the file. */
struct scan_rows {
	int64_t first;
	int64_t count;
	int64_t row_stride;
	int64_t head_stride;
	const uint64_t *fingerprints;
	const unsigned char *flags; /* SCAN_* */
	bool flagged;               /* any of them is not 0 */
};

static inline int64_t scan_at(const struct scan_rows *rows, int64_t i, int64_t head)
{
	return i * rows->row_stride + head * rows->head_stride;
}

/* Memory of one thread; reused from tensor to tensor. Start from {0}. */
struct scan_memory {
	void *bytes;
	size_t bytes_capacity;
	uint64_t *fingerprints;
	unsigned char *flags;
	size_t heads_capacity; /* rows * heads */
	int64_t *slots;        /* 0, 1, 2, ... */
};

void scan_memory_free(struct scan_memory *memory);

/* Called for each piece, in the order of rows. 0, or -1 and *error to end the pass. */
typedef int (*scan_sink)(void *context, const struct scan_rows *rows, struct saved_error *error);

/* Rows first .. end - 1 of a tensor; 0, or -1 and *error. Any thread, each its own memory. */
int scan_tensor(const struct saved_tensor *tensor, int64_t first, int64_t end,
        struct scan_memory *memory, scan_sink sink, void *context, struct saved_error *error);

/* In how many blocks of rows a tensor is best looked at on several threads, at most
 * SCAN_BLOCKS_MAX, and the first row of one of them (of the last + 1: row_count). */
#define SCAN_BLOCKS_MAX 64
int64_t scan_block_count(const struct saved_tensor *tensor, int64_t row_count);
int64_t scan_block_first(int64_t row_count, int64_t block_count, int64_t block);

/* What is not finite in the packed bytes of one head: the first element (of a block or group its
 * first; -1 if nothing), how many, and a word: "NaN", "infinity", "scale". */
struct scan_nonfinite {
	int64_t element;
	int64_t count;
	const char *what;
};
struct scan_nonfinite scan_find_nonfinite(
        const struct saved_tensor *tensor, const unsigned char *head);

/* The first element of the first stretch of zeros; -1: none. */
int64_t scan_find_zero_stretch(const struct saved_tensor *tensor, const unsigned char *head);

/* Of the packed bytes of one head (for tests). */
unsigned scan_flags(const struct saved_tensor *tensor, const unsigned char *head, size_t bytes);

#endif
