/* What side_write.c, side_read.c and side_match.c know of a side file; side.h describes it. */
#ifndef KVCANARY_SNAPSHOT_SIDE_NAMES_H
#define KVCANARY_SNAPSHOT_SIDE_NAMES_H

#include "snapshot/safetensors.h"

#include <inttypes.h>
#include <stdio.h>

#define SIDE_SCHEMA "kvcanary.stamp 1"
#define SIDE_SELF "fingerprint" /* of the side file itself */
#define SIDE_NAME_BYTES 80

static inline void side_part_name(char *out, int64_t file, int64_t part, const char *what)
{
	snprintf(out, SIDE_NAME_BYTES, "f%" PRId64 ".p%" PRId64 "%s%s", file, part,
	        what[0] ? "." : "", what);
}

static inline void side_layer_name(char *out, int64_t file, int64_t part, int64_t layer, int tensor)
{
	snprintf(out, SIDE_NAME_BYTES, "f%" PRId64 ".p%" PRId64 ".l%" PRId64 ".%c", file, part,
	        layer, tensor == SAVED_K ? 'k' : 'v');
}

static inline void side_identity_name(char *out, int64_t file, const char *field)
{
	snprintf(out, SIDE_NAME_BYTES, "f%" PRId64 ".identity.%s", file, field);
}

/* ---- the fingerprint of the side file ---- */

struct side_sum;

struct side_sum *side_sum_new(void); /* NULL: no memory */
/* Each tensor but SIDE_SELF in the order of names (strcmp), with XXH3-64 of its bytes; then each
 * pair of the metadata in the order of keys. */
void side_sum_tensor(struct side_sum *sum, const char *name, enum safetensors_dtype dtype,
        uint32_t rank, const uint64_t *shape, uint64_t print);
void side_sum_metadata(struct side_sum *sum, const char *key, const char *value);
/* The result; frees it. */
uint64_t side_sum_end(struct side_sum *sum);

/* XXH3-64 of a stream of bytes. */
struct side_stream;
struct side_stream *side_stream_new(void); /* NULL: no memory */
void side_stream_restart(struct side_stream *stream);
void side_stream_add(struct side_stream *stream, const void *bytes, size_t count);
uint64_t side_stream_print(const struct side_stream *stream);
void side_stream_free(struct side_stream *stream); /* NULL is fine */

#endif
