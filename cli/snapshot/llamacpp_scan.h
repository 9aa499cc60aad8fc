/*
 * The grammar of llama.cpp's state files: headers only, no cell is kept and no row is read.
 *
 * The format says too little about itself. Versions 9 and 2 were written by builds with and without
 * a block of outputs, a count of streams, and extended cells; whether there is a V, a second cache
 * (sliding window) or recurrent state shows only by where the file ends. So a file is read once for
 * each shape that its version may have, and a shape is right if it ends exactly at the end of the
 * file.
 */
#ifndef KVCANARY_SNAPSHOT_LLAMACPP_SCAN_H
#define KVCANARY_SNAPSHOT_LLAMACPP_SCAN_H

#include "snapshot/reader.h"

enum llama_container { LLAMA_SEQ, LLAMA_CTX, LLAMA_BLOB };

/* What the file does not say itself. */
struct llama_shape {
	bool outputs;       /* a block of outputs before the caches */
	bool stream_count;  /* n_stream before each cache */
	uint32_t ext_bytes; /* of a cell: 0; 8 (x, y); 12 (x, y, token) */
	bool has_v;
	int cache_count; /* 0 to 2 */
	bool recurrent;  /* recurrent state after them */
};

/* Shape 'index' of a container and version, the usual ones first; false past the last. */
bool llama_shape_at(
        struct llama_shape *out, enum llama_container container, uint32_t version, size_t index);
/* The first shape that fits is right: this version always has n_stream before a cache. */
bool llama_version_is_sure(enum llama_container container, uint32_t version);

/* A block of rows: K or V of one layer, or a record of recurrent state. */
struct llama_block {
	uint64_t header; /* offset of its type */
	uint64_t data;   /* offset of its bytes */
	uint64_t row_bytes;
	uint32_t type;  /* index in the table of ggml types */
	uint32_t width; /* transposed V: channels; else 0 */
};

/* Cells that share their blocks: one stream of one cache. */
struct llama_part {
	int cache; /* 0, or 1: the second one */
	uint32_t stream;
	uint64_t cells; /* offset of the first cell */
	uint32_t cell_count;
	uint32_t sequence_count; /* of all cells together */
	uint32_t v_trans;
	uint32_t layer_count;
	size_t first_block; /* layer_count of K, then as many of V if the shape has V */
};

/* What was found: valid after a scan that succeeded. */
struct llama_layout {
	uint64_t tokens; /* offset of the list */
	uint32_t token_count;
	uint64_t arch; /* offset of the name */
	uint32_t arch_bytes;
	int32_t sequence_id; /* of a blob */
	size_t part_count, part_capacity;
	struct llama_part *parts;
	size_t block_count, block_capacity;
	struct llama_block *blocks;
	uint64_t recurrent; /* offset of that section */
	uint32_t recurrent_cells, recurrent_layers;
	size_t recurrent_block, recurrent_count; /* its records in 'blocks' */
};
void llama_layout_free(struct llama_layout *layout);

/* Why a scan failed. */
struct llama_fault {
	const char *kind; /* of saved_error */
	const char *slug;
	char field[48];
	uint64_t offset;
	uint64_t progress; /* up to here all was plausible */
	bool is_sure;      /* the file is cut; no field can be to blame */
	char reason[192];
};

/* A field of the header, for llamacpp_repair.c. */
struct llama_field {
	uint64_t offset;
	uint64_t value;
	uint32_t width; /* bytes */
	char name[32];
};
#define LLAMA_FIELDS_MAX 512

struct llama_scan {
	const struct saved_file *file;
	enum llama_container container;
	uint32_t version;
	struct llama_layout layout;
	struct llama_fault fault;
	struct saved_error error; /* set where reading failed: then nothing else counts */
	bool unreadable;

	/* One field may be read as if it held another value. */
	bool has_override;
	uint64_t override_offset, override_value;

	/* Fields read by the last scan, the first LLAMA_FIELDS_MAX of them. */
	size_t field_count;
	struct llama_field fields[LLAMA_FIELDS_MAX];
	uint64_t fields_read; /* of all scans: what they cost */

	uint64_t at;          /* cursor */
	uint32_t ids_of_cell; /* how many each cell of a sequence's file has */
	uint32_t previous_id; /* sequence of the cell before */
	bool id_repeats;      /* two cells in a row of the same one */
	uint64_t window_at;
	size_t window_bytes;
	unsigned char window[4096];
};

/* Reads the whole file in one shape. true: scan->layout holds; false: scan->fault, or
 * scan->unreadable with scan->error. */
bool llama_scan_shape(struct llama_scan *scan, const struct llama_shape *shape);

/* A scan that no shape fitted: the field that is to blame, in scan->fault. */
void llama_find_fault(struct llama_scan *scan);

/* ---- ggml types that a cache may have ---- */

struct ggml_type_row {
	uint32_t id;
	const char *name;
	uint32_t elements, bytes; /* of a block */
	enum saved_type type;
};
const struct ggml_type_row *ggml_type_find(uint32_t id); /* NULL: none of a cache */

#endif
