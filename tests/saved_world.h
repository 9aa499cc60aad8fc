/* Saved caches for tests: the data folders with their manifests, files of a few bytes, and what a
 * reader must say. */
#ifndef SAVED_WORLD_H
#define SAVED_WORLD_H

#include "snapshot/cache.h"
#include "snapshot/file.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define SAFETENSORS_DATA "data/safetensors/"

/* A file of these bytes without a name on disk, and the path to open it by. */
struct bytes_file {
	int descriptor;
	char path[64];
};

static inline struct bytes_file bytes_file_new(const void *bytes, size_t count)
{
	struct bytes_file file = { memfd_create("bytes", MFD_CLOEXEC), "" };

	assert_true(file.descriptor >= 0);
	assert_int_equal(pwrite(file.descriptor, bytes, count, 0), count);
	snprintf(file.path, sizeof(file.path), "/proc/self/fd/%d", file.descriptor);
	return file;
}

/* A whole file; the caller frees it. */
static inline unsigned char *read_whole(const char *path, size_t *bytes_out)
{
	FILE *file = fopen(path, "rb");
	unsigned char *bytes;
	long end;

	if (!file)
		fail_msg("%s is not there", path);
	fseek(file, 0, SEEK_END);
	end = ftell(file);
	rewind(file);
	bytes = malloc((size_t)end + 1);
	assert_non_null(bytes);
	assert_int_equal(fread(bytes, 1, (size_t)end, file), end);
	fclose(file);
	*bytes_out = (size_t)end;
	return bytes;
}

static inline struct saved_cache *open_with(const char *path, const struct saved_options *options)
{
	static struct saved_error error;
	struct saved_cache *cache;

	if (saved_open(&cache, path, options, &error))
		fail_msg("%s: %s (%s, field '%s', offset %lld)", path, error.message, error.kind,
		        error.field, (long long)error.offset);
	return cache;
}

static inline struct saved_cache *open_data(const char *name)
{
	char path[256];

	snprintf(path, sizeof(path), SAFETENSORS_DATA "%s", name);
	return open_with(path, NULL);
}

/* Every row of every tensor, by bytes and by value where it has one; how many bytes they were. */
static inline uint64_t read_every_row(const struct saved_cache *cache)
{
	static struct saved_error error;
	uint64_t total = 0;

	for (int64_t p = 0; p < cache->part_count; p++)
		for (int64_t l = 0; l < cache->parts[p].layer_count; l++)
			for (int t = 0; t < 2; t++) {
				const struct saved_part *part = &cache->parts[p];
				const struct saved_tensor *tensor = &part->layers[l].tensor[t];
				size_t row = tensor->present ? saved_row_bytes(tensor) : 0;
				size_t values = (size_t)(tensor->heads * tensor->dim);
				unsigned char *bytes = malloc(row + 1);
				float *floats = malloc(values * sizeof(float) + 1);
				for (int64_t r = 0; tensor->present && r < part->row_count; r++) {
					assert_int_equal(
					        saved_read_bytes(tensor, r, 1, bytes, &error), 0);
					if (tensor->type != SAVED_OPAQUE)
						assert_int_equal(saved_read_values(tensor, r, 1,
						                         floats, &error),
						        0);
					total += row;
				}
				free(bytes);
				free(floats);
			}
	return total;
}

/* All values of K or V of a layer of the first part; the caller frees them. */
static inline float *values_of(const struct saved_cache *cache, int64_t layer, int which)
{
	const struct saved_part *part = &cache->parts[0];
	const struct saved_tensor *tensor = &part->layers[layer].tensor[which];
	size_t count = (size_t)(part->row_count * tensor->heads * tensor->dim);
	float *values = malloc(count * sizeof(float));
	struct saved_error error;

	assert_non_null(values);
	assert_int_equal(saved_read_values(tensor, 0, part->row_count, values, &error), 0);
	return values;
}

static inline json_t *load_manifest(const char *path)
{
	json_error_t error;
	json_t *manifest = json_load_file(path, JSON_REJECT_DUPLICATES, &error);

	if (!manifest)
		fail_msg("%s: %s", path, error.text);
	return manifest;
}

#endif
