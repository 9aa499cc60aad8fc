/*
 * Our own schema, docs/snapshots-schema.md, and what people export from transformers: a tensor for K
 * and one for V of each layer, [batch, heads, tokens, dim].
 */
#include "snapshot/schema.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCHEMA "cache 1"

/* Names of K and V, the layer's number between the two halves; an empty second one: at the end. */
static const struct {
	const char *prefix;
	const char *suffix[2];
	const char *prefix_of_v; /* NULL: as for K */
	const char *what;
} names[] = {
	{ "layers.", { ".k", ".v" }, NULL, "layers.<i>.k and .v" },
	{ "layers.", { ".keys", ".values" }, NULL, "transformers, DynamicCache.layers" },
	{ "layers.", { ".key", ".value" }, NULL, "layers.<i>.key and .value" },
	{ "past_key_values.", { ".key", ".value" }, NULL, "past_key_values.<i>.key and .value" },
	{ "key_cache.", { "", "" }, "value_cache.", "transformers, DynamicCache.key_cache" },
};
#define NAMING_COUNT (sizeof(names) / sizeof(names[0]))

/* ---- names ---- */

/* The number between prefix and suffix; -1 if the name is another. Ids of 10 digits and more, and
 * those with a zero in front, are other names. */
static int64_t number_between(const char *name, const char *prefix, const char *suffix)
{
	size_t prefix_bytes = strlen(prefix), digits;
	const char *number = name + prefix_bytes;

	if (strncmp(name, prefix, prefix_bytes) != 0)
		return -1;
	digits = strspn(number, "0123456789");
	if (digits == 0 || digits > 9 || (digits > 1 && number[0] == '0') ||
	        strcmp(number + digits, suffix) != 0)
		return -1;
	return strtoll(number, NULL, 10);
}

/* The layer that a tensor is K (*which_out 0) or V (1) of; -1: of none. */
static int64_t layer_of(size_t naming, const char *name, int *which_out)
{
	const char *prefix_of_v =
	        names[naming].prefix_of_v ? names[naming].prefix_of_v : names[naming].prefix;
	int64_t layer = number_between(name, names[naming].prefix, names[naming].suffix[0]);

	*which_out = SAVED_K;
	if (layer >= 0)
		return layer;
	*which_out = SAVED_V;
	return number_between(name, prefix_of_v, names[naming].suffix[1]);
}

/* NAMING_COUNT: none. */
static size_t naming_of(const struct safetensors *container)
{
	int which;

	for (size_t naming = 0; naming < NAMING_COUNT; naming++)
		for (size_t i = 0; i < container->tensor_count; i++)
			if (layer_of(naming, container->tensors[i].name, &which) >= 0)
				return naming;
	return NAMING_COUNT;
}

bool schema_kvc_fits(const struct safetensors *container)
{
	const char *schema = safetensors_metadata(container, "kvc.schema");

	if (schema && strncmp(schema, "cache ", 6) != 0)
		return false; /* a side file */
	return schema || naming_of(container) < NAMING_COUNT;
}

/* ---- metadata ---- */

static int refuse_metadata(const struct schema_job *job, const char *key, const char *reason)
{
	char field[96];

	snprintf(field, sizeof(field), "__metadata__.%s", key);
	return saved_fail(
	        job->error, "snapshot-malformed", "metadata", job->path, field, -1, "%s", reason);
}

/* 0, or -1 if the text is no number from least to most; an absent one stays as it is. */
static int read_integer(
        const struct schema_job *job, const char *key, int64_t *out, int64_t least, int64_t most)
{
	const char *text = safetensors_metadata(job->container, key);
	char *end;

	if (!text)
		return 0;
	errno = 0;
	*out = strtoll(text, &end, 10);
	if (end == text || *end || errno || *out < least || *out > most)
		return refuse_metadata(job, key, "no whole number in its range");
	return 0;
}

/* The first of two keys that is there, NULL if none; *key_out says which. */
static const char *either(
        const struct schema_job *job, const char *own, const char *other, const char **key_out)
{
	const char *text = safetensors_metadata(job->container, own);

	*key_out = text ? own : other;
	return text ? text : safetensors_metadata(job->container, other);
}

static int read_rope(const struct schema_job *job)
{
	struct saved_rope *rope = &job->cache->rope;
	const char *key, *text = either(job, "kvc.rope.base", "rope_theta", &key);
	char *end;

	if (text) {
		rope->base = strtod(text, &end);
		if (end == text || *end || !isfinite(rope->base) || rope->base <= 0)
			return refuse_metadata(job, key, "no positive number");
		if (schema_add_identity(job, "rope.base", text))
			return -1;
	}
	text = either(job, "kvc.rope.style", "rope_layout", &key);
	if (text) {
		rope->interleaved = strcmp(text, "interleaved") == 0;
		if (!rope->interleaved && strcmp(text, "neox") != 0)
			return refuse_metadata(job, key, "neither neox nor interleaved");
		if (schema_add_identity(job, "rope.style", text))
			return -1;
	}
	return read_integer(job, "kvc.rope.dim", &rope->rotary_dim, 0, INT32_MAX) ||
	                       read_integer(
	                               job, "kvc.rope.offset", &rope->rotary_offset, 0, INT32_MAX)
	               ? -1
	               : 0;
}

static int read_identity(const struct schema_job *job)
{
	static const char *const fields[][2] = {
		{ "model", "kvc.model" },
		{ "tokenizer", "kvc.tokenizer" },
		{ "block_size", "kvc.block_size" },
	};
	int64_t block_size = 0;

	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
		const char *value = safetensors_metadata(job->container, fields[i][1]);
		if (value && schema_add_identity(job, fields[i][0], value))
			return -1;
	}
	return read_integer(job, "kvc.block_size", &block_size, 1, INT32_MAX);
}

static int read_metadata_of_cache(const struct schema_job *job)
{
	const char *key, *text;

	text = either(job, "kvc.writer", "source", &key);
	if (text && !(job->cache->writer = saved_strdup(job->cache, text)))
		return saved_fail_memory(job->error, job->path);
	text = either(job, "kvc.tokens", "tokens", &key);
	if (text && schema_read_token_text(job, key, text))
		return -1;
	return read_identity(job) || read_rope(job) ? -1 : 0;
}

/* ---- axes ---- */

static const char *known_axes(const char *text)
{
	static const char *const known[] = { "bhtd", "bthd", "htd", "thd", "btd", "td" };

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (strcmp(text, known[i]) == 0)
			return known[i];
	return NULL;
}

/* What the dimensions of all tensors are; NULL with the error set. */
static const char *find_axes(const struct schema_job *job, const struct safetensors_tensor *first)
{
	const char *text = safetensors_metadata(job->container, "kvc.layout");
	const char *axes = text ? known_axes(text) : NULL;

	if (text && !axes)
		refuse_metadata(job, "kvc.layout", "none of bhtd, bthd, htd, thd, btd, td");
	if (text)
		return axes;
	if (job->options->layout && (axes = known_axes(job->options->layout)))
		return axes;
	if (first->rank == 4)
		return "bhtd";
	if (first->rank == 2)
		return "td";
	saved_fail(job->error, "snapshot-layout-needed", "ambiguous", job->path, first->name,
	        (int64_t)first->offset,
	        "%u dimensions; --layout htd, thd or btd says which they are", first->rank);
	return NULL;
}

/* ---- layers ---- */

static int find_layers(const struct schema_job *job, size_t naming, struct schema_layer *layers,
        int64_t *count_out)
{
	const struct safetensors *container = job->container;

	for (size_t i = 0; i < container->tensor_count; i++) {
		const struct safetensors_tensor *tensor = &container->tensors[i];
		int which;
		int64_t number = layer_of(naming, tensor->name, &which);
		if (number < 0)
			continue;
		if (number >= SAVED_LAYERS_MAX)
			return schema_refuse(job, tensor, "layers up to %" PRId64 " are read",
			        SAVED_LAYERS_MAX - 1);
		layers[number].tensor[which].source = tensor;
		if (number >= *count_out)
			*count_out = number + 1;
	}
	for (int64_t i = 0; i < *count_out; i++)
		if (!layers[i].tensor[0].source && !layers[i].tensor[1].source)
			return schema_refuse(
			        job, NULL, "no layer %" PRId64 ", though there are later ones", i);
	return 0;
}

/* Rows of sliding layers are the last ones: there may be one shorter length. */
/* A tensor without bytes may state any number of rows. */
static uint64_t rows_with_data(const struct schema_tensor *k)
{
	return k->source && k->source->bytes > 0 ? schema_axis(k, 't') : 0;
}

static int find_windows(const struct schema_job *job, struct schema_layer *layers, int64_t count)
{
	uint64_t longest = 0, shorter = 0;

	for (int64_t i = 0; i < count; i++) {
		const struct schema_tensor *k = &layers[i].tensor[SAVED_K];
		uint64_t rows = rows_with_data(k);
		longest = rows > longest ? rows : longest;
	}
	for (int64_t i = 0; i < count; i++) {
		const struct schema_tensor *k = &layers[i].tensor[SAVED_K];
		uint64_t rows = rows_with_data(k);
		if (rows == 0 || rows == longest)
			continue;
		if (shorter != 0 && rows != shorter)
			return schema_refuse(job, k->source,
			        "%" PRIu64 " rows, where other layers have %" PRIu64
			        " and %" PRIu64,
			        rows, longest, shorter);
		shorter = rows;
		layers[i].rows.start = (int64_t)(longest - rows);
	}
	if (shorter)
		saved_add_note(job->cache, "window", -1, false,
		        "layers of %" PRIu64 " rows beside layers of %" PRIu64
		        ": taken for the last ones, of a sliding window",
		        shorter, longest);
	return 0;
}

static int describe_kvc_layers(
        const struct schema_job *job, size_t naming, struct schema_layer *layers)
{
	const char *axes;
	int64_t count = 0;

	for (int64_t i = 0; i < SAVED_LAYERS_MAX; i++) {
		layers[i].number = i;
		layers[i].rows.valid = -1;
		layers[i].tensor[0].container = layers[i].tensor[1].container = job->container;
	}
	if (find_layers(job, naming, layers, &count))
		return -1;
	axes = find_axes(job, layers[0].tensor[0].source ? layers[0].tensor[0].source
	                                                 : layers[0].tensor[1].source);
	if (!axes)
		return -1;
	for (int64_t i = 0; i < count; i++)
		for (int t = 0; t < 2; t++) {
			struct schema_tensor *tensor = &layers[i].tensor[t];
			tensor->axes = axes;
			if (tensor->source && tensor->source->rank != strlen(axes))
				return schema_refuse(job, tensor->source,
				        "%u dimensions, not those of %s", tensor->source->rank,
				        axes);
		}
	if (find_windows(job, layers, count))
		return -1;
	return schema_describe(job, layers, count, safetensors_find(job->container, "positions"));
}

int schema_kvc_describe(const struct schema_job *job)
{
	const char *schema = safetensors_metadata(job->container, "kvc.schema");
	size_t naming = naming_of(job->container);
	struct schema_layer *layers;

	if (schema && strcmp(schema, SCHEMA) != 0)
		return refuse_metadata(job, "kvc.schema", "a schema that is not \"" SCHEMA "\"");
	if (naming == NAMING_COUNT)
		return saved_fail(job->error, "snapshot-no-cache", "no_cache", job->path, "", -1,
		        "it has no tensor layers.0.k");
	snprintf(job->cache->version, sizeof(job->cache->version), "%s",
	        schema ? "schema " SCHEMA : names[naming].what);
	if (read_metadata_of_cache(job))
		return -1;
	layers = saved_alloc(job->cache, SAVED_LAYERS_MAX, sizeof(*layers));
	if (!layers)
		return saved_fail_memory(job->error, job->path);
	return describe_kvc_layers(job, naming, layers);
}
