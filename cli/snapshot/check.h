/*
 * kvcanary check, one cache: all that can be said about it, as findings.
 */
#ifndef KVCANARY_SNAPSHOT_CHECK_H
#define KVCANARY_SNAPSHOT_CHECK_H

#include "snapshot/finding.h"

struct side;       /* side.h */
struct rope_given; /* rope_given.h */

struct check_options {
	int threads;
	const struct rope_given *rope; /* NULL: contents are not compared */
	const struct side *side;       /* NULL: none */
};

struct check_result {
	struct findings *findings;
	bool incomplete; /* something that was asked for could not be checked; a doubt says what */
	int64_t row_count; /* rows of all tensors */
	int64_t byte_count;
};

/* 0 and *result, whose findings are the caller's; -1 and *error, with nothing to free. */
int check_cache(struct check_result *result, const struct saved_cache *cache,
        const struct check_options *options, struct saved_error *error);

#endif
