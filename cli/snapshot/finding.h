/*
 * What check and diff have to say: findings, each a kind with its place, and the verdict. One list
 * per file or pair; printed for people, as JSON, or as marks on the map of --html.
 */
#ifndef KVCANARY_SNAPSHOT_FINDING_H
#define KVCANARY_SNAPSHOT_FINDING_H

#include "cache.h"

enum finding_weight {
	FINDING_NOTE,  /* worth saying, no damage: "position_gap" */
	FINDING_DOUBT, /* cannot be told from the file */
	FINDING_DAMAGE
};

/* Fields that do not apply are -1 (offset: UINT64_MAX). */
struct finding {
	const char *
	        kind; /* static: "nonfinite", "zero_row", "repeated_row", "position", "row_changed" */
	enum finding_weight weight;
	const char *part; /* name of the part, NULL where there is only one */
	int64_t stream;
	int64_t layer;
	int tensor; /* SAVED_K, SAVED_V or -1 */
	int64_t head;
	int64_t row; /* cell */
	int64_t position;
	int64_t token;
	int64_t element;
	uint64_t offset;  /* first byte in the file */
	const char *file; /* that this byte is in, where a cache has many; NULL: the cache's own */
	char detail[192]; /* one line for people: "-1.17578 -> -1.23828 (bit 6)" */
};

/* Grows; keeps the first 'limit' findings of each kind and counts all, so that a ruined file of
 * 100 GB gives a short report. Not for several threads at once: each has its own, then merge. */
struct findings;

struct findings *findings_new(size_t limit_per_kind); /* NULL: no memory */
void findings_free(struct findings *findings);
struct finding finding_blank(const char *kind, enum finding_weight weight);
void findings_add(struct findings *findings, const struct finding *finding);
/* Counts some more of a kind without keeping them. */
void findings_add_count(
        struct findings *findings, const char *kind, enum finding_weight weight, size_t times);
/* Whether one more of a kind would be kept: else its detail need not be worked out. */
bool findings_has_room(
        const struct findings *findings, const char *kind, enum finding_weight weight);
/* Moves all of 'from' into 'to', which leaves it empty; sorted by part, layer, tensor, row, head when printed. */
void findings_merge(struct findings *to, struct findings *from);
size_t findings_count(const struct findings *findings, enum finding_weight least);
/* How many were added of a kind, kept or not. */
size_t findings_count_kind(const struct findings *findings, const char *kind);
/* The kept ones, sorted; valid until the next add or merge. */
const struct finding *findings_list(struct findings *findings, size_t *count);

#endif
