/*
 * The single checks that check.c puts together. Each says what it finds about one part or one
 * tensor of a saved cache, and changes nothing else.
 */
#ifndef KVCANARY_SNAPSHOT_CHECK_PARTS_H
#define KVCANARY_SNAPSHOT_CHECK_PARTS_H

#include "snapshot/finding.h"

/* A blank finding with all that is known of the place of a row (-1: none) in a part. */
struct finding place_finding(const char *kind, enum finding_weight weight,
        const struct saved_cache *cache, const struct saved_part *part, int64_t row);
/* Adds the layer, K or V, the head (-1: all) and the offset of the element (-1: the first). */
void place_in_tensor(struct finding *finding, const struct saved_part *part, int64_t layer,
        int tensor, int64_t head, int64_t element);

/*
 * The list of cells: negative positions; a position twice in one sequence; positions left out (a
 * note: engines do that on purpose); a cell in the wrong sequence; a token of a cell that is not
 * the list's. 0, or -1 if memory is short.
 */
int check_cells(
        struct findings *findings, const struct saved_cache *cache, const struct saved_part *part);

/* Fingerprints of a whole tensor, of which equal ones are to be found. */
struct repeats {
	const struct saved_cache *cache;
	const struct saved_part *part;
	int64_t layer; /* index in the part */
	int tensor;
	const uint64_t *rows;  /* [row_count]; 0: not to be compared (all zero) */
	const uint64_t *heads; /* [heads][row_count], or NULL: only whole rows are compared */
};

/* Scratch memory of one thread. Start from {0}. */
struct repeat_memory {
	uint32_t *table;
	uint32_t *links;
	uint32_t *suspects;
	size_t rows;
};
size_t repeat_memory_bytes(int64_t row_count);
int repeat_memory_reserve(struct repeat_memory *memory, int64_t row_count); /* -1: no memory */
void repeat_memory_free(struct repeat_memory *memory);

/* Rows that hold the same bytes although neither their position nor their token explains it. The
 * memory must be reserved for all rows. */
void check_repeats(
        struct findings *findings, const struct repeats *repeats, struct repeat_memory *memory);

#endif
