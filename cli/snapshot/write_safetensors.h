/*
 * Writes a safetensors file so that it is there whole or not at all: into a temporary file in the
 * same directory, then fsync and rename. A run that is interrupted leaves an older file of that
 * name as it was.
 *
 *	safetensors_writer_new(&writer, "side.safetensors", &error)
 *	safetensors_writer_metadata(writer, "kvc.schema", "stamp 1")     any number
 *	layer = safetensors_writer_tensor(writer, "layers.0.k.hash", SAFETENSORS_U64, 2, shape)
 *	safetensors_writer_begin(writer, &error)                         the header is complete
 *	safetensors_writer_write(writer, layer, 0, hashes, bytes, &error)  any order, any thread
 *	safetensors_writer_finish(writer, &error)                        and the file is there
 *
 * Memory: names and metadata only. The header is padded with spaces so that the data begins at a
 * multiple of 64, and tensors are laid out in the order of decreasing element size, then of
 * declaration, as the reference writer does; so every element is aligned.
 */
#ifndef KVCANARY_SNAPSHOT_WRITE_SAFETENSORS_H
#define KVCANARY_SNAPSHOT_WRITE_SAFETENSORS_H

#include "snapshot/safetensors.h"

struct safetensors_writer;

/* Creates the temporary file, so that a directory where nothing can be written is refused before
 * hours of work. 0, or -1 and *error ("snapshot-not-written"). */
int safetensors_writer_new(
        struct safetensors_writer **out, const char *path, struct saved_error *error);

/* Keys and names are given once each; text is UTF-8 and copied. */
void safetensors_writer_metadata(
        struct safetensors_writer *writer, const char *key, const char *value);

/* Returns the tensor's number for safetensors_writer_write(). Rank at most SAFETENSORS_RANK_MAX. */
size_t safetensors_writer_tensor(struct safetensors_writer *writer, const char *name,
        enum safetensors_dtype dtype, uint32_t rank, const uint64_t *shape);

/* Writes the header. Fails also for what the two calls above could not say (no memory, sizes beyond
 * 2^63). */
int safetensors_writer_begin(struct safetensors_writer *writer, struct saved_error *error);

/* Bytes 'offset' and on of a tensor. Any thread, any order, no byte twice. */
int safetensors_writer_write(struct safetensors_writer *writer, size_t tensor, uint64_t offset,
        const void *data, size_t bytes, struct saved_error *error);

/* Reads back what has been written. Any thread. */
int safetensors_writer_read(struct safetensors_writer *writer, size_t tensor, uint64_t offset,
        void *out, size_t bytes, struct saved_error *error);

/* All bytes must have been written. The file appears under its name, and the writer is gone, also
 * when this fails. */
int safetensors_writer_finish(struct safetensors_writer *writer, struct saved_error *error);

/* Gives up: removes the temporary file. NULL is fine. */
void safetensors_writer_abandon(struct safetensors_writer *writer);

#endif
