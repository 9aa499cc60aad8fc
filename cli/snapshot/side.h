/*
 * The side file of 'stamp': fingerprints of each head of each row, and the cells they belong to.
 *
 * A safetensors file, so that any tool can open it. Metadata: "kvc.schema" = "kvcanary.stamp 1",
 * "hash" = "kvc xxh3", and for file n "f<n>.path", "f<n>.format", "f<n>.bytes", "f<n>.parts", and
 * "f<n>.identity.<field>" for what the file says of its model, tokenizer and block size. For its
 * part p, "f<n>.p<p>" = "<name> <stream> <layers>" and the tensors
 *
 *	f<n>.p<p>.positions       I64 [rows]
 *	f<n>.p<p>.tokens          I64 [rows], -1 = unknown; only if some are known
 *	f<n>.p<p>.sequences       I32, and
 *	f<n>.p<p>.sequence_begin  U64 [rows + 1]: where those of a row begin; only if cells have any
 *	f<n>.p<p>.l<l>.k, .v      U64 [rows, heads]; the metadata entry of this name is
 *	                          "<number> <type> <dim>"
 *
 * A fingerprint of a head is the library's: see scan.h. "fingerprint", U64 [1], is
 * one of the side file itself: of names, dtypes, shapes and contents of all other tensors and of the
 * metadata, so that damage to the side file is not taken for damage to the cache. It is of what was read
 * back: what a file system does to the bytes before that is not told apart.
 */
#ifndef KVCANARY_SNAPSHOT_SIDE_H
#define KVCANARY_SNAPSHOT_SIDE_H

#include "snapshot/finding.h"

/* ---- writing ---- */

/* A file to stamp; opened again for each pass, so that any number fit into memory. */
struct side_source {
	const char *path;
	struct saved_options options;
};

/* Stamps the files into one side file, written atomically: that one replaces a stamp, or an empty file, and
 * nothing else. 0, or -1 and *error. */
int side_write(const char *path, const struct side_source *sources, int64_t count, int threads,
        struct saved_error *error);

/* ---- the stamp of one cache beside it ---- */

#define SIDE_SUFFIX ".stamp.safetensors"

/* "FILE.stamp.safetensors" of a file or directory, to be freed; NULL if memory is short. */
char *side_beside(const char *path);
/* Whether a name ends in SIDE_SUFFIX. */
bool side_has_name(const char *path);

/* ---- reading ---- */

struct side;

/* Opens a side file and checks it against its own fingerprint. 0 and *out, or -1 and *error. */
int side_open(struct side **out, const char *path, struct saved_error *error);
void side_close(struct side *side); /* NULL is fine */

/* Is this file a stamp, damaged or not? Reads its header alone. */
bool side_is(const char *path);

/* KV heads that the stamp of this file was made with; 0 if it does not tell. */
int64_t side_heads(const struct side *side, const char *path);

/* The cells of a cache beside those of its stamp. */
struct side_match;

/*
 * Finds the stamp of this file (by its path, else by its name; the only one fits any) and which
 * stamped row each row is: by position and sequences, not by cell. Says what is missing, more, or
 * has another position, token or sequence. 0, or -1 and *error: no stamp of this file, or one of
 * another geometry.
 */
int side_match_new(struct side_match **out, const struct side *side,
        const struct saved_cache *cache, struct findings *findings, struct saved_error *error);
void side_match_free(struct side_match *match); /* NULL is fine */

/* Stamped fingerprints of rows first .. first + count - 1 to out [count][heads]; known[i] is false
 * for a row that was not stamped. Any thread. */
int side_match_read(const struct side_match *match, int64_t part, int64_t layer, int tensor,
        int64_t first, int64_t count, uint64_t *out, unsigned char *known,
        struct saved_error *error);

/* Rows in the stamp of a part. */
int64_t side_match_rows(const struct side_match *match, int64_t part);
/* The same in the order of the stamp, whatever rows they are now. */
int side_match_read_stamped(const struct side_match *match, int64_t part, int64_t layer, int tensor,
        int64_t first, int64_t count, uint64_t *out, struct saved_error *error);

#endif
