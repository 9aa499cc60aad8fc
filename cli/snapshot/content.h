/*
 * What the values of layer 0 tell. There V, and K before its rotation, are functions of the token
 * alone, so rows of equal tokens must be equal, but for rounding. Of three rows that do not agree
 * the odd one is named, with the position that its rotation fits, if it fits another; of two nobody
 * can tell.
 */
#ifndef KVCANARY_SNAPSHOT_CONTENT_H
#define KVCANARY_SNAPSHOT_CONTENT_H

#include "snapshot/finding.h"
#include "snapshot/rope_given.h"

/* Rows that are compared at most, and their bytes as float32. */
#define CONTENT_ROWS_MAX 16384
#define CONTENT_BYTES_MAX ((size_t)48 << 20)

/* Sets *incomplete where something could not be compared at all; a finding says why. 0, or -1 and
 * *error. */
int check_content(struct findings *findings, bool *incomplete, const struct saved_cache *cache,
        const struct rope_given *given, struct saved_error *error);

#endif
