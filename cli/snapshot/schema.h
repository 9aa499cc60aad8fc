/*
 * What the names of a safetensors file mean: one schema each. And what schemas share: from a tensor
 * with named axes to planes, from layers to parts.
 */
#ifndef KVCANARY_SNAPSHOT_SCHEMA_H
#define KVCANARY_SNAPSHOT_SCHEMA_H

#include "snapshot/reader.h"
#include "snapshot/safetensors.h"

/* An open cache on its way to be described. */
struct schema_job {
	struct saved_cache *cache;
	const char *path; /* of the file to name in errors: of a directory, the one in it */
	const struct safetensors *container;
	const struct saved_options *options;
	struct saved_error *error;
};

/* A tensor with named axes: 'b' batch, 'h' heads, 't' tokens, 'd' elements of a head, '-' one that
 * 'skip' has chosen from (K or V). */
struct schema_tensor {
	const struct safetensors *container;     /* its file */
	const struct safetensors_tensor *source; /* NULL: this layer has none */
	const char *axes;                        /* one letter for each dimension: "bhtd" */
	uint64_t skip;                           /* bytes in front of the first element */
	int64_t dim;                             /* elements of a head; 0: the size of 'd' */
	int64_t heads; /* where there is no 'h': heads beside each other in 'd'; 0: one */
	/* SAVED_AFFINE, when there are scales: */
	const struct safetensors_tensor *scales, *biases;
	int64_t bits, group_size;
};

/* Where the rows of a layer lie in time; layers that agree in all of it share a part. */
struct schema_rows {
	int64_t valid; /* the first so many rows are data; -1: all */
	int64_t start; /* position of the first row */
	/* Rows that are overwritten in turn: rows 0 .. keep - 1 stay, the oldest of the others is
	 * 'oldest'. 0 and 0: in order. */
	int64_t keep, oldest;
	int64_t end; /* position behind the newest row; used where rows rotate */
};

struct schema_layer {
	int64_t number; /* -1: not known */
	const char *name;
	struct schema_tensor tensor[2]; /* SAVED_K, SAVED_V */
	struct schema_rows rows;
};

/* The size of an axis, 1 if the tensor has none of this letter. */
uint64_t schema_axis(const struct schema_tensor *tensor, char axis);

/* -1: "cache_shape", with the tensor as its place. */
int schema_refuse(const struct schema_job *job, const struct safetensors_tensor *tensor,
        const char *format, ...) __attribute__((format(printf, 3, 4)));

/*
 * Parts out of layers: layers whose rows agree make a part, for each element of the batch. Layers
 * without rows are left out. Checks what a cache needs: K and V with equal batch and rows, V in all
 * layers or in none, rows of some bytes. Then tokens (those of the file, else of the options) and
 * positions (tensor "positions", if positions is not NULL) are given to the parts.
 */
int schema_describe(const struct schema_job *job, const struct schema_layer *layers,
        int64_t layer_count, const struct safetensors_tensor *positions);

/* "5 17 5" as the cache's token list. 0, or -1 and the error: field "__metadata__.<key>". */
int schema_read_token_text(const struct schema_job *job, const char *key, const char *text);

int schema_add_identity(const struct schema_job *job, const char *field, const char *value);

/* ---- the schemas; each 'fits' by names and metadata alone ---- */

bool schema_kvc_fits(const struct safetensors *container);
int schema_kvc_describe(const struct schema_job *job);
bool schema_mlx_fits(const struct safetensors *container);
int schema_mlx_describe(const struct schema_job *job);
bool schema_vllm_fits(const struct safetensors *container);
int schema_vllm_describe(const struct schema_job *job);
/* A directory with one file per layer. */
int schema_vllm_open_directory(
        struct saved_cache *cache, const struct saved_options *options, struct saved_error *error);

#endif
