/*
 * Files of vLLM's example connector (SharedStorageConnector before): one file per layer, named after
 * it, with one tensor "kv_cache". Up to 0.25 it is [2, T, heads * dim], K and V one after the other;
 * from 0.26 on [T, heads, 2 * dim], K and V side by side; MLA is [T, C], K alone. Tokens, heads (up to
 * 0.25) and the rotation are not in the file.
 */
#include "snapshot/schema.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TENSOR "kv_cache"
#define SUFFIX ".safetensors"
#define BLOCK_LEAST 8 /* tokens of vLLM's smallest block but for 1 */
#define HEADS_LIKELY 64
#define DETECTION_TRIES 16 /* files of a directory that are looked into */

/* ---- what the dimensions are ---- */

enum vllm_shape { VLLM_SPLIT, VLLM_PACKED, VLLM_MLA, VLLM_SHAPES };

static const struct {
	const char *layout; /* as --layout takes it */
	const char *version;
	uint32_t rank;
} shapes[VLLM_SHAPES] = {
	[VLLM_SPLIT] = { "split", "[2, tokens, heads x dim], vLLM up to 0.25", 3 },
	[VLLM_PACKED] = { "packed", "[tokens, heads, 2 x dim], vLLM from 0.26 on", 3 },
	[VLLM_MLA] = { "mla", "[tokens, elements], MLA", 2 },
};

bool schema_vllm_fits(const struct safetensors *container)
{
	return container->tensor_count == 1 && strcmp(container->tensors[0].name, TENSOR) == 0;
}

static bool can_be(const struct safetensors_tensor *tensor, enum vllm_shape shape)
{
	if (tensor->rank != shapes[shape].rank)
		return false;
	if (shape == VLLM_SPLIT)
		return tensor->shape[0] == 2;
	return shape != VLLM_PACKED || tensor->shape[2] % 2 == 0;
}

static int refuse_layout(
        const struct schema_job *job, const struct safetensors_tensor *tensor, const char *reason)
{
	return saved_fail(job->error, "snapshot-layout-needed", "ambiguous", job->path,
	        tensor->name, (int64_t)tensor->offset, "[%" PRIu64 ", %" PRIu64 ", %" PRIu64 "] %s",
	        tensor->shape[0], tensor->shape[1], tensor->shape[2], reason);
}

/*
 * Where the first dimension is 2, both layouts may fit: 2 tensors, or 2 tokens. The connector saves
 * whole blocks, and those of 2 tokens do not exist; blocks of 1 do.
 */
static int choose_vllm_shape(
        const struct schema_job *job, const struct safetensors_tensor *tensor, enum vllm_shape *out)
{
	const char *layout = job->options->layout;
	bool split = can_be(tensor, VLLM_SPLIT), packed = can_be(tensor, VLLM_PACKED);

	if (tensor->rank != 2 && tensor->rank != 3)
		return schema_refuse(job, tensor, "%u dimensions, not 2 or 3", tensor->rank);
	for (int shape = 0; layout && shape < VLLM_SHAPES; shape++)
		if (strcmp(layout, shapes[shape].layout) == 0) {
			*out = (enum vllm_shape)shape;
			return can_be(tensor, *out)
			               ? 0
			               : refuse_layout(job, tensor, "is not that --layout");
		}
	if (tensor->rank == 2)
		*out = VLLM_MLA;
	else if (split && packed && tensor->shape[1] % BLOCK_LEAST != 0)
		return refuse_layout(job, tensor,
		        "is 2 x tokens or 2 tokens: --layout split or packed says which");
	else if (split)
		*out = VLLM_SPLIT;
	else if (packed)
		*out = VLLM_PACKED;
	else
		return schema_refuse(job, tensor, "neither [2, T, X] nor [T, heads, 2 x dim]");
	if (split && packed && tensor->shape[1] <= HEADS_LIKELY && !layout &&
	        job->cache->note_count == 0)
		saved_add_note(job->cache, "ambiguous", (int64_t)tensor->offset, false,
		        "read as [2, tokens, ...]; for [tokens, heads, ...] of two tokens say "
		        "--layout packed");
	return 0;
}

/* ---- a layer ---- */

static void split_kv(struct schema_layer *layer, const struct schema_job *job)
{
	struct schema_tensor *k = &layer->tensor[SAVED_K], *v = &layer->tensor[SAVED_V];
	uint64_t row = k->source->shape[2];

	k->axes = "-td";
	if (job->options->heads > 1 && row % (uint64_t)job->options->heads == 0) {
		k->heads = job->options->heads;
		k->dim = (int64_t)row / k->heads;
	}
	*v = *k;
	v->skip = k->source->bytes / 2;
}

static void split_pairs(struct schema_layer *layer)
{
	struct schema_tensor *k = &layer->tensor[SAVED_K], *v = &layer->tensor[SAVED_V];

	k->axes = "thd";
	k->dim = (int64_t)k->source->shape[2] / 2;
	*v = *k;
	v->skip = (uint64_t)k->dim * safetensors_dtype_bits(k->source->dtype) / 8;
}

static void fill_layer(const struct schema_job *job, struct schema_layer *layer,
        const struct safetensors *container, enum vllm_shape shape)
{
	struct schema_tensor *k = &layer->tensor[SAVED_K];

	layer->rows.valid = -1;
	k->container = container;
	k->source = &container->tensors[0];
	if (shape == VLLM_SPLIT)
		split_kv(layer, job);
	else if (shape == VLLM_PACKED)
		split_pairs(layer);
	else
		k->axes = "td";
}

/* The layer's number: that of its name which stands between dots, as in "model.layers.7.self_attn";
 * -1 if there is none. */
static int64_t layer_number(const char *name)
{
	const char *part = strstr(name, "layers.");

	for (part = part ? part : name; part; part = strchr(part, '.')) {
		size_t digits;
		part += *part == '.';
		digits = strspn(part, "0123456789");
		if (digits > 0 && digits < 9 && (part[digits] == '.' || !part[digits]))
			return strtoll(part, NULL, 10);
	}
	return -1;
}

/* "model.layers.0.self_attn.attn" out of a path. */
static char *layer_name(const struct schema_job *job, const char *path)
{
	const char *slash = strrchr(path, '/');
	char *name = saved_strdup(job->cache, slash ? slash + 1 : path);
	char *suffix = name ? strstr(name, SUFFIX) : NULL;

	if (suffix)
		*suffix = '\0';
	return name;
}

static void note_opaque(const struct schema_job *job, const struct safetensors_tensor *tensor)
{
	if (tensor->dtype == SAFETENSORS_U8)
		saved_add_note(job->cache, "opaque", (int64_t)tensor->offset, false,
		        "U8 is an fp8 cache of a kind that the file does not tell: compared as "
		        "bytes");
}

static int describe_vllm(const struct schema_job *job_of_all, struct schema_layer *layers,
        const struct safetensors *const *containers, int64_t count)
{
	struct schema_job own_job = *job_of_all, *job = &own_job;
	enum vllm_shape shape = VLLM_MLA;

	for (int64_t i = 0; i < count; i++) {
		const struct safetensors_tensor *tensor = &containers[i]->tensors[0];
		enum vllm_shape own = shape;
		job->path = saved_file_path(containers[i]->file);
		if (choose_vllm_shape(job, tensor, &own))
			return -1;
		if (i > 0 && own != shape)
			return schema_refuse(job, tensor, "its layout is not that of the others");
		shape = own;
		fill_layer(job, &layers[i], containers[i], shape);
		if (schema_axis(&layers[i].tensor[0], 't') !=
		        schema_axis(&layers[0].tensor[0], 't'))
			return schema_refuse(job, tensor,
			        "%" PRIu64 " tokens, where %s has %" PRIu64,
			        schema_axis(&layers[i].tensor[0], 't'), layers[0].name,
			        schema_axis(&layers[0].tensor[0], 't'));
	}
	job->path = job_of_all->path;
	note_opaque(job, layers[0].tensor[0].source);
	snprintf(job->cache->version, sizeof(job->cache->version), "%s", shapes[shape].version);
	job->cache->writer = "vLLM example connector";
	return schema_describe(job, layers, count, NULL);
}

int schema_vllm_describe(const struct schema_job *job)
{
	struct schema_layer layer = { 0 };

	if (!schema_vllm_fits(job->container)) /* read so because --as says so */
		return saved_fail(job->error, "snapshot-no-cache", "no_cache", job->path, "", -1,
		        "its only tensor must be " TENSOR);
	layer.name = layer_name(job, saved_file_path(job->container->file));
	if (!layer.name)
		return saved_fail_memory(job->error, job->path);
	layer.number = layer_number(layer.name);
	return describe_vllm(job, &layer, &job->container, 1);
}

/* ---- a directory ---- */

static bool is_layer_file(const char *name)
{
	size_t bytes = strlen(name), suffix = strlen(SUFFIX);
	const char *end = name + bytes;

	if (bytes > 4 && strcmp(end - 4, ".zst") == 0)
		end -= 4;
	return (size_t)(end - name) > suffix && strncmp(end - suffix, SUFFIX, suffix) == 0 &&
	       name[0] != '.';
}

/* One of its files is a layer: a directory may hold anything else that ends in .safetensors. */
static bool holds_layer(const char *folder, const char *name)
{
	struct saved_error error;
	struct safetensors *container = NULL;
	struct saved_file *file;
	char path[sizeof(error.path)];
	bool fits;

	snprintf(path, sizeof(path), "%.3600s/%s", folder, name);
	if (saved_file_open(&file, path, &error))
		return false;
	fits = safetensors_open(&container, file, &error) == 0 && schema_vllm_fits(container);
	safetensors_close(container);
	saved_file_close(file);
	return fits;
}

bool schema_vllm_detect_directory(const struct saved_probe *probe)
{
	DIR *folder = probe->file ? NULL : opendir(probe->path);
	bool found = false;
	int tries = 0;

	for (struct dirent *entry; folder && !found && (entry = readdir(folder));)
		if (is_layer_file(entry->d_name) && tries++ < DETECTION_TRIES)
			found = holds_layer(probe->path, entry->d_name);
	if (folder)
		closedir(folder);
	return found;
}

struct layer_files {
	char **paths;
	int64_t count;
	const struct safetensors **containers;
	struct schema_layer *layers;
};

static int by_layer(const void *a, const void *b)
{
	const char *left = *(char *const *)a, *right = *(char *const *)b;
	const char *left_name = strrchr(left, '/'), *right_name = strrchr(right, '/');
	int64_t left_number = layer_number(left_name ? left_name : left);
	int64_t right_number = layer_number(right_name ? right_name : right);

	if (left_number != right_number)
		return left_number < right_number ? -1 : 1;
	return strcmp(left, right);
}

static int list_files(const struct schema_job *job, struct layer_files *files)
{
	const char *folder_path = job->path;
	DIR *folder = opendir(folder_path);
	int leftovers = 0;

	if (!folder)
		return saved_fail(job->error, "cli-input-unreadable", "unreadable", folder_path, "",
		        -1, "it is no directory that can be read");
	for (struct dirent *entry; (entry = readdir(folder));) {
		char path[sizeof(job->error->path)];
		leftovers += strstr(entry->d_name, ".tmp") != NULL;
		if (!is_layer_file(entry->d_name) || files->count == SAVED_LAYERS_MAX)
			continue;
		snprintf(path, sizeof(path), "%.3600s/%s", folder_path, entry->d_name);
		files->paths[files->count++] = saved_strdup(job->cache, path);
		if (!files->paths[files->count - 1]) {
			closedir(folder);
			return saved_fail_memory(job->error, folder_path);
		}
	}
	closedir(folder);
	if (files->count == 0)
		return saved_fail(job->error, "snapshot-no-cache", "no_cache", folder_path, "", -1,
		        "it has no file <layer>.safetensors");
	qsort(files->paths, (size_t)files->count, sizeof(*files->paths), by_layer);
	if (leftovers)
		saved_add_note(job->cache, "leftover", -1, false,
		        "%d temporary files lie beside the layers: a write was interrupted",
		        leftovers);
	return 0;
}

static int open_layer(const struct schema_job *job, struct layer_files *files, int64_t i)
{
	struct saved_file *file;
	struct safetensors *container;

	if (saved_file_open_one_of_many(&file, files->paths[i], job->error))
		return -1;
	if (saved_take_file(job->cache, file))
		return saved_fail_memory(job->error, files->paths[i]);
	job->cache->file_bytes += saved_file_size(file);
	if (safetensors_open(&container, file, job->error))
		return -1;
	files->containers[i] = container;
	if (!schema_vllm_fits(container))
		return saved_fail(job->error, "snapshot-no-cache", "no_cache", files->paths[i], "",
		        -1, "its only tensor must be " TENSOR);
	files->layers[i].name = layer_name(job, files->paths[i]);
	if (!files->layers[i].name)
		return saved_fail_memory(job->error, files->paths[i]);
	files->layers[i].number = layer_number(files->layers[i].name);
	return 0;
}

static void note_gaps(const struct schema_job *job, const struct layer_files *files)
{
	for (int64_t i = 0; i < files->count; i++) {
		int64_t number = files->layers[i].number;
		int64_t before = i > 0 ? files->layers[i - 1].number : -1;
		if (number <= before + 1 || number < 0)
			continue;
		saved_add_note(job->cache, "layer_gap", -1, false,
		        "no file for layer %" PRId64 ", though for layer %" PRId64
		        ": lost, or a layer without attention",
		        before + 1, number);
		return;
	}
}

int schema_vllm_open_directory(
        struct saved_cache *cache, const struct saved_options *options, struct saved_error *error)
{
	struct schema_job job = { cache, cache->path, NULL, options, error };
	struct layer_files files = {
		.paths = saved_alloc(cache, SAVED_LAYERS_MAX, sizeof(char *)),
		.containers = calloc(SAVED_LAYERS_MAX, sizeof(*files.containers)),
		.layers = saved_alloc(cache, SAVED_LAYERS_MAX, sizeof(*files.layers)),
	};
	int failed = 0;

	if (!files.paths || !files.containers || !files.layers)
		failed = saved_fail_memory(error, cache->path);
	if (!failed)
		failed = list_files(&job, &files);
	for (int64_t i = 0; i < files.count && !failed; i++)
		failed = open_layer(&job, &files, i);
	if (!failed) {
		note_gaps(&job, &files);
		job.container = files.containers[0];
		failed = describe_vllm(&job, files.layers, files.containers, files.count);
	}
	for (int64_t i = 0; i < files.count && files.containers; i++)
		safetensors_close((struct safetensors *)(uintptr_t)files.containers[i]);
	free(files.containers);
	return failed;
}
