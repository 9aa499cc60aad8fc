/*
 * Prompt caches of mlx-lm (save_prompt_cache), in two generations that the metadata tells apart.
 *
 *	0.28 to 0.31    "0.<layer>[.<n>]" numbers of the layer as text, "1.*" the user's, "2.<layer>" its
 *	                class; tensors hold the valid rows
 *	from 0.32 on    "0.*" the user's, "1.<layer>" its class, "2.*" which tensors are numbers; tensors
 *	                "<layer>.2" and on hold the numbers, and keys and values are the whole buffer
 *
 * Rows beyond the offset are room to grow, or left over by a trim: no data. A rotating cache is a
 * ring behind its first 'keep' rows. Token ids are not in the file.
 */
#include "snapshot/schema.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OFFSET_MAX ((int64_t)1 << 48)

enum mlx_class { MLX_PLAIN, MLX_QUANTIZED, MLX_ROTATING, MLX_CHUNKED, MLX_RECURRENT, MLX_OTHER };

static const struct {
	const char *name;
	enum mlx_class class;
} classes[] = {
	{ "KVCache", MLX_PLAIN },
	{ "ConcatenateKVCache", MLX_PLAIN },
	{ "QuantizedKVCache", MLX_QUANTIZED },
	{ "RotatingKVCache", MLX_ROTATING },
	{ "ChunkedKVCache", MLX_CHUNKED },
	{ "ArraysCache", MLX_RECURRENT },
	{ "MambaCache", MLX_RECURRENT },
	{ "CacheList", MLX_OTHER },
	{ "BatchKVCache", MLX_OTHER },
	{ "BatchRotatingKVCache", MLX_OTHER },
};

/* A number of a layer: where each generation keeps it; -1: not at all. */
struct mlx_number {
	const char *what;
	int in_text;
	int in_tensor;
};

static const struct mlx_number plain_offset = { "offset", -1, 2 };
static const struct mlx_number quantized_numbers[] = {
	{ "offset", 0, 2 },
	{ "group_size", 1, 3 },
	{ "bits", 2, 4 },
};
static const struct mlx_number rotating_numbers[] = {
	{ "offset", 2, 2 },
	{ "keep", 0, 3 },
	{ "max_size", 1, 4 },
	{ "_idx", 3, 5 },
};
static const struct mlx_number chunked_numbers[] = {
	{ "offset", -1, 2 },
	{ "chunk_size", 0, 3 },
	{ "start_position", 1, 4 },
};

/* ---- names ---- */

static const char *class_name(const struct safetensors *container, int generation, int64_t layer)
{
	char key[32];

	snprintf(key, sizeof(key), "%d.%" PRId64, generation == 0 ? 2 : 1, layer);
	return safetensors_metadata(container, key);
}

static bool is_class(const char *name)
{
	size_t bytes = name ? strlen(name) : 0;

	return (bytes > 5 && strcmp(name + bytes - 5, "Cache") == 0) ||
	       (name && strcmp(name, "CacheList") == 0);
}

/* 0: 0.28 to 0.31, 1: from 0.32 on; -1: no prompt cache. */
static int generation_of(const struct safetensors *container)
{
	const char *scalars = safetensors_metadata(container, "2.0");

	if (is_class(class_name(container, 0, 0)))
		return 0;
	return scalars && scalars[0] == '\0' && is_class(class_name(container, 1, 0)) ? 1 : -1;
}

bool schema_mlx_fits(const struct safetensors *container)
{
	return generation_of(container) >= 0;
}

static enum mlx_class class_of(const char *name)
{
	for (size_t i = 0; i < sizeof(classes) / sizeof(classes[0]); i++)
		if (strcmp(name, classes[i].name) == 0)
			return classes[i].class;
	return MLX_OTHER;
}

/* ---- one layer ---- */

struct mlx_layer {
	const struct schema_job *job;
	struct schema_layer *layer;
	int generation;
	bool is_empty;
};

static int refuse_number(const struct mlx_layer *mlx, const char *what, const char *reason)
{
	char field[64];

	snprintf(field, sizeof(field), "%" PRId64 ".%s", mlx->layer->number, what);
	return saved_fail(mlx->job->error, "snapshot-malformed", "cache_shape", mlx->job->path,
	        field, -1, "%s", reason);
}

static const struct safetensors_tensor *find_tensor(
        const struct mlx_layer *mlx, const char *format, int index)
{
	char name[48], number[32];

	snprintf(number, sizeof(number), "%" PRId64, mlx->layer->number);
	snprintf(name, sizeof(name), format, number, index);
	return safetensors_find(mlx->job->container, name);
}

static int read_mlx_text(const struct mlx_layer *mlx, const struct mlx_number *number, int64_t *out)
{
	char key[48], *end;
	const char *text;

	snprintf(key, sizeof(key), "0.%" PRId64 ".%d", mlx->layer->number, number->in_text);
	text = safetensors_metadata(mlx->job->container, key);
	if (!text)
		return refuse_number(mlx, number->what, "missing");
	errno = 0;
	*out = strtoll(text, &end, 10);
	if (end == text || *end || errno)
		return refuse_number(mlx, number->what, "no whole number");
	return 0;
}

/* From 0 to 2^48. */
static int read_mlx_number(
        const struct mlx_layer *mlx, const struct mlx_number *number, int64_t *out)
{
	const struct safetensors_tensor *tensor;

	if (mlx->generation == 0) {
		if (read_mlx_text(mlx, number, out))
			return -1;
	} else {
		tensor = find_tensor(mlx, "%s.%d", number->in_tensor);
		if (!tensor)
			return refuse_number(mlx, number->what, "missing");
		if (tensor->rank != 0)
			return refuse_number(mlx, number->what, "no single number");
		if (safetensors_read_integers(
		            mlx->job->container, tensor, 0, 1, out, mlx->job->error))
			return -1;
	}
	return *out >= 0 && *out <= OFFSET_MAX ? 0
	                                       : refuse_number(mlx, number->what, "out of range");
}

/* Keys and values: one tensor each, or words, scales and biases. */
static int find_rows(struct mlx_layer *mlx, bool is_quantized)
{
	for (int which = 0; which < 2; which++) {
		struct schema_tensor *tensor = &mlx->layer->tensor[which];
		tensor->container = mlx->job->container;
		tensor->axes = "bhtd";
		tensor->source = find_tensor(mlx, is_quantized ? "%s.%d.0" : "%s.%d", which);
		if (!tensor->source && is_quantized) /* "none" has no parts */
			tensor->source = find_tensor(mlx, "%s.%d", which);
		if (!tensor->source)
			return refuse_number(mlx, which ? "1" : "0", "no tensor of this name");
		if (tensor->source->rank == 1 && tensor->source->bytes == 0)
			mlx->is_empty = true; /* as None is written */
		else if (tensor->source->rank != 4)
			return schema_refuse(mlx->job, tensor->source, "%u dimensions, not 4",
			        tensor->source->rank);
		if (!is_quantized || mlx->is_empty)
			continue;
		tensor->scales = find_tensor(mlx, "%s.%d.1", which);
		tensor->biases = find_tensor(mlx, "%s.%d.2", which);
		if (!tensor->scales || !tensor->biases)
			return schema_refuse(mlx->job, tensor->source, "no scales or no biases");
	}
	return 0;
}

static int64_t stored_rows(const struct mlx_layer *mlx)
{
	return (int64_t)schema_axis(&mlx->layer->tensor[SAVED_K], 't');
}

static int take_valid(struct mlx_layer *mlx, int64_t valid)
{
	if (valid < 0 || valid > stored_rows(mlx))
		return refuse_number(mlx, "offset", "more rows than the buffer has");
	mlx->layer->rows.valid = valid;
	return 0;
}

static int read_plain(struct mlx_layer *mlx, bool has_offset)
{
	int64_t offset = stored_rows(mlx);

	if (has_offset && mlx->generation == 1 && read_mlx_number(mlx, &plain_offset, &offset))
		return -1;
	return take_valid(mlx, offset);
}

static int read_quantized(struct mlx_layer *mlx)
{
	int64_t numbers[3];

	for (int i = 0; i < 3; i++)
		if (read_mlx_number(mlx, &quantized_numbers[i], &numbers[i]))
			return -1;
	for (int which = 0; which < 2; which++) {
		mlx->layer->tensor[which].group_size = numbers[1];
		mlx->layer->tensor[which].bits = numbers[2];
	}
	return take_valid(mlx, numbers[0]);
}

static int read_rotating(struct mlx_layer *mlx)
{
	struct schema_rows *rows = &mlx->layer->rows;
	int64_t stored = stored_rows(mlx), numbers[4], offset, keep, index;

	for (int i = 0; i < 4; i++)
		if (read_mlx_number(mlx, &rotating_numbers[i], &numbers[i]))
			return -1;
	offset = numbers[0];
	keep = numbers[1];
	index = numbers[3];
	if (offset <= stored) /* not full yet */
		return take_valid(mlx, offset);
	if (keep >= stored || index > stored)
		return refuse_number(
		        mlx, keep >= stored ? "keep" : "_idx", "beyond the rows of the buffer");
	rows->valid = stored;
	rows->keep = keep;
	rows->oldest = index <= keep || index == stored ? keep : index;
	rows->end = offset;
	return 0;
}

static int read_chunked(struct mlx_layer *mlx)
{
	int64_t offset = 0, start;

	if (read_mlx_number(mlx, &chunked_numbers[2], &start))
		return -1;
	mlx->layer->rows.start = start;
	if (mlx->generation == 0)
		return take_valid(mlx, stored_rows(mlx));
	return read_mlx_number(mlx, &chunked_numbers[0], &offset) ? -1
	                                                          : take_valid(mlx, offset - start);
}

/* Fills mlx->layer. *describes_out: it has rows that are to be described. */
static int read_layer(struct mlx_layer *mlx, const char *name, bool *describes_out)
{
	enum mlx_class class = class_of(name);
	int failed;

	*describes_out = false;
	if (class == MLX_RECURRENT || class == MLX_OTHER) {
		saved_add_note(mlx->job->cache,
		        class == MLX_RECURRENT ? "recurrent_state" : "unknown_cache", -1, false,
		        "layer %" PRId64 " is of class %.64s: it is not looked at",
		        mlx->layer->number, name);
		return 0;
	}
	if (find_rows(mlx, class == MLX_QUANTIZED))
		return -1;
	if (mlx->is_empty)
		return 0;
	failed = class == MLX_QUANTIZED  ? read_quantized(mlx)
	         : class == MLX_ROTATING ? read_rotating(mlx)
	         : class == MLX_CHUNKED  ? read_chunked(mlx)
	                                 : read_plain(mlx, strcmp(name, "ConcatenateKVCache") != 0);
	*describes_out = !failed;
	return failed;
}

/* ---- all layers ---- */

static void note_spare(
        const struct schema_job *job, const struct schema_layer *layers, int64_t count)
{
	for (int64_t i = 0; i < count; i++) {
		int64_t stored = (int64_t)schema_axis(&layers[i].tensor[SAVED_K], 't');
		if (layers[i].rows.valid == stored)
			continue;
		saved_add_note(job->cache, "spare_rows", -1, false,
		        "rows %" PRId64 " to %" PRId64 " of layer %" PRId64
		        " are room to grow, no data",
		        layers[i].rows.valid, stored - 1, layers[i].number);
		return; /* the others have room as well */
	}
}

static int read_layers(const struct schema_job *job, int generation, struct schema_layer *layers)
{
	int64_t count = 0;
	const char *name;

	for (int64_t number = 0; (name = class_name(job->container, generation, number));
	        number++) {
		struct mlx_layer mlx = { job, &layers[count], generation, false };
		bool describes;
		if (number == SAVED_LAYERS_MAX)
			return schema_refuse(
			        job, NULL, "layers up to %" PRId64 " are read", number - 1);
		layers[count] = (struct schema_layer){ .number = number };
		if (read_layer(&mlx, name, &describes))
			return -1;
		count += describes;
	}
	note_spare(job, layers, count);
	return schema_describe(job, layers, count, NULL);
}

int schema_mlx_describe(const struct schema_job *job)
{
	struct saved_cache *cache = job->cache;
	int generation = generation_of(job->container);
	struct schema_layer *layers;
	const char *model;

	if (generation < 0)
		return saved_fail(job->error, "snapshot-no-cache", "no_cache", job->path, "", -1,
		        "its metadata names no class of an mlx-lm cache");
	snprintf(cache->version, sizeof(cache->version), "%s",
	        generation == 0 ? "mlx-lm 0.28 to 0.31" : "mlx-lm from 0.32 on");
	cache->writer = "mlx-lm";
	model = safetensors_metadata(job->container, generation == 0 ? "1.model" : "0.model");
	if (model && schema_add_identity(job, "model", model))
		return -1;
	layers = saved_alloc(cache, SAVED_LAYERS_MAX + 1, sizeof(*layers));
	if (!layers)
		return saved_fail_memory(job->error, job->path);
	return read_layers(job, generation, layers);
}
