/*
 * Contents of a zstd file, unpacked to a temporary file without a name: rows are wanted in any
 * order, and memory is bounded. Any number of frames, skippable ones too.
 */
#ifndef KVCANARY_SNAPSHOT_FILE_ZSTD_H
#define KVCANARY_SNAPSHOT_FILE_ZSTD_H

#include "snapshot/cache.h"

/* Begins with a frame of zstd. */
bool saved_zstd_detect(int descriptor);

/*
 * Unpacks the whole file into one in TMPDIR (/tmp) that is gone when *contents_out is closed. At
 * most nine tenths of the free space there are filled. 0, or -1 and *error.
 */
int saved_zstd_unpack(int descriptor, const char *path, int *contents_out, uint64_t *bytes_out,
        struct saved_error *error);

#endif
