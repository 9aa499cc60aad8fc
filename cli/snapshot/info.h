/* What kvcanary info says of a cache: info.c for people, info_json.c for programs. */
#ifndef KVCANARY_SNAPSHOT_INFO_H
#define KVCANARY_SNAPSHOT_INFO_H

#include "snapshot/saved_options.h"

/* Consecutive positions of consecutive rows, or of a sorted list. */
struct position_run {
	int64_t first, last;
};

/* What cannot be known from the file; printed by both. */
struct missing {
	const char *what;   /* "token ids" */
	const char *remedy; /* "--tokens", or "" */
};
#define MISSING_MAX 8

/* Fills 'out' and returns how many there are. */
size_t info_missing(
        struct missing *out, const struct saved_cache *cache, const struct saved_options *options);

/* Bytes of K and V of all rows of a part. */
uint64_t info_part_bytes(const struct saved_part *part);

/* {"file", "format", ...} as one line; false: memory is short. */
bool info_print_json(const struct saved_cache *cache, const struct saved_options *options);

#endif
