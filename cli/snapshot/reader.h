/*
 * What readers share: the table of formats, the memory of a described cache, and refusals.
 *
 * A new format: a file read_<name>.c with a detect and an open function, declared below, and a row
 * in formats.c.
 */
#ifndef KVCANARY_SNAPSHOT_READER_H
#define KVCANARY_SNAPSHOT_READER_H

#include "snapshot/cache.h"
#include "snapshot/file.h"

/* Limits of what is described in memory, whatever a header says; docs/snapshots.md has them. */
#define SAVED_CELLS_MAX ((int64_t)1 << 22)
#define SAVED_LAYERS_MAX ((int64_t)4096)

#define SAVED_HEAD_BYTES 64

/* What detection may look at. */
struct saved_probe {
	const char *path;
	const struct saved_file *file; /* NULL: a directory */
	unsigned char head[SAVED_HEAD_BYTES];
	size_t head_bytes; /* how many of them the file has; 0 for a directory */
	const struct saved_options *options;
};

struct saved_format {
	const char *name;    /* as --as takes it; "a" also selects among "a-b" and "a-c" */
	const char *summary; /* one line for people */
	bool (*detect)(const struct saved_probe *probe);
	/*
	 * Fills *cache, which is blank but for path and file_bytes. 'file' is NULL for a directory
	 * and belongs to the cache already. 0, or -1 and *error; the caller closes the cache.
	 */
	int (*open)(struct saved_cache *cache, struct saved_file *file,
	        const struct saved_options *options, struct saved_error *error);
};

/* The table; NULL past its end. */
const struct saved_format *saved_format_at(size_t index);

/* ---- memory of a described cache; freed by saved_close() ---- */

/* Zeroed; NULL if count * bytes overflows or memory is short. Never NULL for count 0. */
void *saved_alloc(struct saved_cache *cache, uint64_t count, size_t bytes);
char *saved_strdup(struct saved_cache *cache, const char *text);

/* From now on the cache closes this file. -1 (and the file closed) if memory is short. */
int saved_take_file(struct saved_cache *cache, struct saved_file *file);

/* A note with printf-like text; silently dropped if memory is short or there are 64 already. */
void saved_add_note(struct saved_cache *cache, const char *kind, int64_t offset, bool damage,
        const char *format, ...) __attribute__((format(printf, 5, 6)));

/* ---- refusals ---- */

/*
 * Fills *error and returns -1. slug: an entry of the catalogue, whose message may have the
 * placeholders path, field, offset, place ("FIELD at OFFSET") and reason; the reason is printf-like.
 * offset -1: none.
 */
int saved_fail(struct saved_error *error, const char *slug, const char *kind, const char *path,
        const char *field, int64_t offset, const char *reason, ...)
        __attribute__((format(printf, 7, 8)));

/* The same for memory that is short. */
int saved_fail_memory(struct saved_error *error, const char *path);

/* ---- little-endian fields ---- */

uint32_t saved_u32(const void *bytes);
uint64_t saved_u64(const void *bytes);

/* ---- readers ---- */

bool llamacpp_seq_detect(const struct saved_probe *probe);
bool llamacpp_ctx_detect(const struct saved_probe *probe);
bool llamacpp_blob_detect(const struct saved_probe *probe);
int llamacpp_open(struct saved_cache *cache, struct saved_file *file,
        const struct saved_options *options, struct saved_error *error);
bool read_safetensors_detect(const struct saved_probe *probe);
bool read_safetensors_detect_none(const struct saved_probe *probe);
bool schema_vllm_detect_directory(const struct saved_probe *probe);
int read_safetensors_open(struct saved_cache *cache, struct saved_file *file,
        const struct saved_options *options, struct saved_error *error);
bool read_raw_detect(const struct saved_probe *probe);
int read_raw_open(struct saved_cache *cache, struct saved_file *file,
        const struct saved_options *options, struct saved_error *error);
bool read_hicache_detect(const struct saved_probe *probe);
bool read_vllm_fs_detect(const struct saved_probe *probe);
int read_page_folder_open(struct saved_cache *cache, struct saved_file *file,
        const struct saved_options *options, struct saved_error *error);
bool read_pickle_detect(const struct saved_probe *probe);
int read_pickle_open(struct saved_cache *cache, struct saved_file *file,
        const struct saved_options *options, struct saved_error *error);

#endif
