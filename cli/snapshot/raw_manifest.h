/*
 * The JSON text that says how raw pages lie: which files, in which order, and what is where in one.
 * docs/snapshots-schema.md describes it with examples.
 */
#ifndef KVCANARY_SNAPSHOT_RAW_MANIFEST_H
#define KVCANARY_SNAPSHOT_RAW_MANIFEST_H

#include "snapshot/safetensors.h"

#define RAW_GROUPS_MAX 64
#define RAW_PAGES_MAX (1 << 18)
#define RAW_AXES 5 /* "clthd": K or V, layer, token, head, dim */

/* Layers that lie together in a page. */
struct raw_group {
	char axes[RAW_AXES + 1];  /* from the outermost to the innermost */
	bool has_axes, has_dtype; /* given */
	enum safetensors_dtype dtype;
	int64_t layer_count;          /* -1 below: not given */
	const int64_t *layer_numbers; /* NULL: 0, 1, 2, ... */
	int64_t kv_heads, head_dim, page_rows;
	int64_t offset;      /* of the group in a page */
	int64_t layer_bytes; /* from one layer to the next where there is padding; 0: no padding */
	int64_t tensors;     /* 2: K and V; 1: K alone */
};

struct raw_page {
	const char *file;
	int64_t offset;
	int64_t rows; /* of the last page, which may be short; 0: a full one */
};

struct raw_manifest {
	const char *what; /* NULL where not given, also below */
	const char *model, *tokenizer;
	int64_t block_size; /* 0: not given */
	struct saved_rope rope;
	int group_count;
	struct raw_group groups[RAW_GROUPS_MAX];
	int64_t page_count;
	struct raw_page *pages;
	int64_t token_count, position_count;
	int64_t *tokens, *positions;
};

/* 0, or -1 and *error. What the manifest points to belongs to the cache, except that
 * raw_manifest_free() frees its list of pages. */
int raw_manifest_read(struct raw_manifest *out, struct saved_cache *cache,
        const struct saved_file *file, struct saved_error *error);
void raw_manifest_free(struct raw_manifest *manifest);

#endif
