/*
 * The bytes of a saved cache: a plain file, or the contents of a .zst (unpacked once to an unlinked
 * temporary file in TMPDIR, since rows are wanted in any order). Reads are by pread, so that any
 * thread may read and a file that shrinks gives an error, not a signal.
 */
#ifndef KVCANARY_SNAPSHOT_FILE_H
#define KVCANARY_SNAPSHOT_FILE_H

#include "cache.h"

/* 0 and *out, or -1 and *error (not there, no permission, a directory, a pipe, bad compression). */
int saved_file_open(struct saved_file **out, const char *path, struct saved_error *error);
/* The same for a file that is one of many: it is opened again for each read, since a process may
 * have 1024 of them open at once and a directory of pages has more. */
int saved_file_open_one_of_many(
        struct saved_file **out, const char *path, struct saved_error *error);
bool saved_file_is_one_of_many(const struct saved_file *file);
void saved_file_close(struct saved_file *file); /* NULL is fine */

/* Of the contents, fixed when opened. */
uint64_t saved_file_size(const struct saved_file *file);
const char *saved_file_path(const struct saved_file *file);

/* Exactly 'bytes' bytes at 'offset'; 0, or -1 and *error with 'field' as the place. */
int saved_file_read(const struct saved_file *file, uint64_t offset, size_t bytes, void *out,
        const char *field, struct saved_error *error);

#endif
