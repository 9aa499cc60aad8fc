/*
 * Some rows of one tensor as values, with the rotation undone: what content.c compares.
 */
#ifndef KVCANARY_SNAPSHOT_CONTENT_ROWS_H
#define KVCANARY_SNAPSHOT_CONTENT_ROWS_H

#include "snapshot/cache.h"
#include "snapshot/rope_given.h"

/* How stored values become those before the rotation. */
struct undoing {
	bool rotated;  /* false: as they are (V) */
	bool hadamard; /* multiplied by a Hadamard matrix, after the rotation */
	kvc_rope rope;
	int64_t rotary_offset;
};

/* Rows with the same token: members first .. first + count - 1. */
struct token_group {
	int64_t token;
	int64_t first;
	int64_t count;
};

struct content_rows {
	const struct saved_part *part;
	const struct saved_tensor *tensor;
	int64_t *rows; /* by group, then by row */
	int64_t row_count;
	struct token_group *groups;
	int64_t group_count;
	bool some_left_out; /* more than can be compared */
	float *values;      /* [row_count][heads][dim], as stored */
};

/* The rows whose token occurs more than once, with their values. 0, or -1 and *error. */
int content_rows_read(struct content_rows *out, const struct saved_part *part,
        const struct saved_tensor *tensor, struct saved_error *error);
void content_rows_free(struct content_rows *rows);

/* One head of one member, undone, as if it stood at 'position'. */
void content_head(float *out, const struct content_rows *rows, int64_t member, int64_t head,
        const struct undoing *undoing, int64_t position);
int64_t content_position(const struct content_rows *rows, int64_t member);

/* Whether two heads are equal but for the rounding of their type and of the rotation. */
bool content_agrees(
        const struct content_rows *rows, const float *a, const float *b, int64_t last_position);

#endif
