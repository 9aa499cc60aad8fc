/*
 * A saved KV cache as the commands see it, whatever format it lies in.
 *
 * A reader (read_*.c) parses the headers of one format, checks every number of them against the
 * file, and describes where the rows lie; it reads no row. The commands (info, stamp, check, diff)
 * then read rows through saved_read_bytes() and saved_read_values() and know no format.
 *
 *	file.c          bytes of a file or of the contents of a .zst, by pread; never mmap, since a
 *	                file that shrinks under a mapping kills the process
 *	formats.c       the table of readers, detection, --as
 *	read_*.c        one format each
 *	cache.c         rows out of a described cache: bytes and values
 *	finding.h       what a command has to say about a row
 *
 * All counts in a described cache are checked: whoever reads rows need not fear an overflow or a
 * read past the end. Memory is bounded by the number of cells and layers, never by their bytes.
 */
#ifndef KVCANARY_SNAPSHOT_CACHE_H
#define KVCANARY_SNAPSHOT_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct saved_file; /* file.h */

/* Why something could not be read: one entry of the catalogue, with its place. Field and path are
 * copies: in safetensors a field has a name of the file's own ("layers.0.v.dtype"), and the file of
 * a layer is closed again before the error is printed. */
struct saved_error {
	const char *slug; /* static, "snapshot-..." */
	const char *kind; /* static word for --json: "truncated", "magic", "count_too_large", ... */
	char field[160];  /* name of the header field as the format's text has it; "" if none */
	char path[4096];  /* the file; of a directory the file in it, where one is to blame */
	int64_t offset;   /* first byte of that field in the file, -1 if it has none */
	char message[512]; /* one line with its numbers */
};

enum saved_type {
	SAVED_F32,
	SAVED_F16,
	SAVED_BF16,
	SAVED_F64,
	SAVED_F8_E4M3,
	SAVED_F8_E5M2,
	SAVED_Q8_0, /* ggml: 32 elements in 34 bytes */
	SAVED_Q4_0, /* ggml: 32 elements in 18 bytes */
	SAVED_AFFINE, /* mlx: words of 2, 4 or 8 bits, with scales and biases in planes of their own */
	SAVED_OPAQUE /* elements of unknown meaning: compared as bytes, never by value */
};

/* A plane of elements: element e of head h of row r begins at
 * offset + r * row_stride + h * head_stride + e * element_stride; strides may be 0. */
struct saved_plane {
	const struct saved_file *file;
	uint64_t offset;
	uint64_t row_stride;
	uint64_t head_stride;
	uint64_t element_stride; /* of a whole block where the type has blocks */
};

/* K or V of one layer: rows x heads x dim. */
struct saved_tensor {
	enum saved_type type;
	const char *type_name; /* as the format writes it: "F16", "q8_0", "BF16" */
	bool present;          /* false: this layer has no such tensor (MLA has no V) */
	bool hadamard_doubt; /* may be stored multiplied by a Hadamard matrix; the file cannot tell */
	int64_t heads;       /* 1 if the format does not tell; then dim is the whole row */
	int64_t dim;         /* elements of a head */
	uint32_t element_bits; /* of one element; blocks: see type */
	struct saved_plane plane;
	/* Rows in pages that lie apart (raw pages), shared by all tensors of a part: row r is row
	 * r % page_rows of page r / page_rows, which begins at pages[p].offset in pages[p].file; the
	 * plane's offset counts from there. NULL where rows lie in one piece. */
	const struct saved_plane *pages;
	int64_t page_rows;
	/* SAVED_AFFINE only. */
	struct saved_plane scales, biases;
	enum saved_type scale_type;
	int64_t group_size;
};

struct saved_layer {
	int64_t number; /* in the model; where not stored, in its part (number_is_known false) */
	bool number_is_known;
	const char *name;              /* as the file has it, or NULL */
	struct saved_tensor tensor[2]; /* SAVED_K, SAVED_V */
};
enum { SAVED_K = 0, SAVED_V = 1 };

/* Rows that share one list of cells: a stream, the base or the window cache of a model with sliding
 * windows, one element of a batch. */
struct saved_part {
	const char *name; /* "kv", "base", "window", "batch"; with stream it names the part */
	int64_t stream;
	int64_t row_count;
	const int64_t *positions;   /* [row_count], or NULL: not stored, then row r is position r */
	const int64_t *tokens;      /* [row_count], -1 where unknown; NULL: none known */
	const int64_t *cell_tokens; /* token ids that the cells hold themselves, or NULL */
	/* Sequences of row r: sequences[sequence_begin[r] .. sequence_begin[r + 1]); NULL: one, unnamed. */
	const int32_t *sequences;
	const uint64_t *sequence_begin;
	const uint64_t *cell_offsets; /* [row_count] where the record of a cell lies, or NULL */
	int64_t layer_count;
	const struct saved_layer *layers;
};

/* Rotation of K as far as the file tells (own schema); base 0: unknown. */
struct saved_rope {
	double base;
	bool interleaved;      /* pairs 2i, 2i+1; else halves i, i + rotary_dim / 2 */
	int64_t rotary_dim;    /* 0: the whole head */
	int64_t rotary_offset; /* first rotated element of a head or row (MLA) */
};

/* What a file says of its origin: "model", "tokenizer", "block_size". Caches whose values of a field
 * differ do not belong together, even if all their shapes agree. */
struct saved_identity {
	const char *field; /* static */
	const char *value;
};

/* Something a reader wants `info` or `check` to say beside the fields above. */
struct saved_note {
	const char
	        *kind; /* static: "spare_rows", "recurrent_state", "no_tokens", "ambiguous", ... */
	int64_t offset;
	bool damage; /* the structure loads, but is not that of a sound cache */
	char text[256];
};

struct saved_cache {
	const char *path;      /* what the user named: a file or a directory */
	const char *format;    /* static, as --as takes it: "llamacpp-seq", "mlx", ... */
	char version[64];      /* as people would say it: "ggsq 3 (Oct 2026)" */
	const char *writer;    /* static, NULL if not known */
	uint64_t file_bytes;   /* of all its files */
	int64_t token_count;   /* of the list in the file; 0 if it has none */
	const int64_t *tokens; /* that list */
	int64_t part_count;
	const struct saved_part *parts;
	struct saved_rope rope;
	int64_t identity_count;
	const struct saved_identity *identity;
	int64_t note_count;
	const struct saved_note *notes;
	void *owner; /* of all memory above; saved_close() frees it */
};

struct saved_options {
	const char *format;    /* --as, NULL: detect */
	const char *manifest;  /* --manifest of raw pages, or NULL */
	const char *layout;    /* --layout, where shapes are ambiguous, or NULL */
	const int64_t *tokens; /* --tokens: ids for formats without a list, or NULL */
	int64_t token_count;
	int64_t heads; /* --heads: KV heads, for formats that do not tell; 0: not given */
};

/*
 * Opens a file or directory and parses its headers. 0 and *out, to be closed with saved_close(); or
 * -1 and *error, with nothing to close. Threads: any, each cache its own.
 */
int saved_open(struct saved_cache **out, const char *path, const struct saved_options *options,
        struct saved_error *error);
void saved_close(struct saved_cache *cache); /* NULL is fine */

/* Bytes of one row of a tensor when packed: heads * dim elements in (head, element) order. */
size_t saved_row_bytes(const struct saved_tensor *tensor);

/*
 * Rows first .. first + count - 1, packed one after another in (head, element) order as stored
 * (blocks stay blocks; SAVED_AFFINE: words, then scales, then biases of a head). out holds
 * count * saved_row_bytes(). 0, or -1 and *error (the file changed or the disk failed). Any thread.
 */
int saved_read_bytes(const struct saved_tensor *tensor, int64_t first, int64_t count, void *out,
        struct saved_error *error);

/*
 * The same rows where a read puts them, without moving anything: head h of row r of a view begins at
 * bytes + r * row_stride + h * head_stride and is saved_row_bytes() / heads bytes long.
 */
struct saved_view {
	const unsigned char *bytes;
	size_t row_stride;
	size_t head_stride;
};

/* How many rows, and of how many heads (one or all), a view should take. */
struct saved_reach {
	int64_t rows;
	int64_t heads;
	bool together; /* the bytes of a row: all heads, one right after the other */
};

/* The reach for a buffer of *buffer_bytes, which become more if a row needs more. */
struct saved_reach saved_view_reach(const struct saved_tensor *tensor, size_t *buffer_bytes);

/* Reads heads head .. head + reach.heads - 1 of rows first .. first + reach.rows - 1: a reach of
 * saved_view_reach(), or fewer rows. The view lies in 'buffer'. 0, or -1 and *error. Any thread. */
int saved_view_read(struct saved_view *out, const struct saved_tensor *tensor, int64_t first,
        int64_t head, struct saved_reach reach, void *buffer, struct saved_error *error);

/* The same as float32 values [count][heads][dim]; not for SAVED_OPAQUE. */
int saved_read_values(const struct saved_tensor *tensor, int64_t first, int64_t count, float *out,
        struct saved_error *error);

/* Packed bytes of one or more rows to values: what saved_read_values() does after reading. */
void saved_values(const struct saved_tensor *tensor, const void *bytes, int64_t count, float *out);

/* Where an element lies in its file; for messages. */
uint64_t saved_offset(
        const struct saved_tensor *tensor, int64_t row, int64_t head, int64_t element);

/* The file that this offset is in, where a cache has many; NULL: the cache's own. */
const char *saved_offset_file(const struct saved_tensor *tensor, int64_t row);

/* The position of a row: as stored, or the row's number. */
int64_t saved_position(const struct saved_part *part, int64_t row);

/* Rows of all parts. */
int64_t saved_row_count(const struct saved_cache *cache);
/* Layers; parts of one name, the streams of a cache, have the same ones and count once. */
int64_t saved_layer_count(const struct saved_cache *cache);

#endif
