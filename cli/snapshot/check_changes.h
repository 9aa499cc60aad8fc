/*
 * One tensor against its stamp: which heads of which rows changed, and what became of them. Blocks of
 * its rows may be compared on several threads, each with its own struct changes, then merged.
 */
#ifndef KVCANARY_SNAPSHOT_CHECK_CHANGES_H
#define KVCANARY_SNAPSHOT_CHECK_CHANGES_H

#include "snapshot/check_parts.h"
#include "snapshot/scan.h"
#include "snapshot/side.h"

struct changes {
	const struct saved_cache *cache;
	const struct side_match *match;
	int64_t part;
	int64_t layer;
	int tensor;
	struct findings *findings; /* row_changed, until changes_end() has looked at them */
	/* Fingerprints of the first changed heads, as they are now. */
	struct changed_head *kept;
	int64_t kept_count;
	int64_t rows_changed;
	int64_t rows_known;
	/* Scratch memory. */
	uint64_t *stamped;
	unsigned char *known;
	size_t capacity;
};

int changes_begin(struct changes *changes); /* with the first five fields set; -1: no memory */
int changes_add(struct changes *changes, const struct scan_rows *rows, struct saved_error *error);
/* No more rows will be added: lets go of scratch memory. */
void changes_rest(struct changes *changes);
/* Appends those of the rows that follow, which empties 'from'. */
void changes_merge(struct changes *to, struct changes *from);
/* Names rows that moved and layers that were exchanged, and hands all over. 0, or -1 and *error. */
int changes_end(struct changes *changes, struct findings *findings, struct saved_error *error);
void changes_free(struct changes *changes);

#endif
