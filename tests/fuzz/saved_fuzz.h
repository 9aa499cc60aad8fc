/* Bytes as a saved cache: refused with all that an error needs, or every row of it can be read. */
#ifndef SAVED_FUZZ_H
#define SAVED_FUZZ_H

#include "snapshot/cache.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t data_bytes);

/* More than any input has; rows of nothing must have been refused. */
#define SAVED_FUZZ_BYTES_MAX ((int64_t)1 << 28)

static inline void read_tensor(const struct saved_tensor *tensor, int64_t rows)
{
	static struct saved_error error;
	size_t row_bytes = saved_row_bytes(tensor);
	size_t values = (size_t)(tensor->heads * tensor->dim);
	int64_t step = rows > 64 ? rows / 64 : 1;
	unsigned char *bytes;
	float *floats;

	if (row_bytes == 0 || rows < 1 || (int64_t)row_bytes > SAVED_FUZZ_BYTES_MAX)
		abort();
	bytes = malloc(row_bytes);
	floats = malloc(values * sizeof(float));
	if (!bytes || !floats)
		abort();
	for (int64_t row = 0; row < rows; row += step) {
		/* The last row too, which ends where the tensor ends. */
		int64_t last = row + step >= rows ? rows - 1 : row;
		if (saved_read_bytes(tensor, last, 1, bytes, &error))
			abort();
		if (tensor->type != SAVED_OPAQUE)
			saved_values(tensor, bytes, 1, floats);
	}
	free(bytes);
	free(floats);
}

static inline void read_cache(const struct saved_cache *cache)
{
	for (int64_t p = 0; p < cache->part_count; p++) {
		const struct saved_part *part = &cache->parts[p];
		int64_t sum = 0;
		for (int64_t row = 0; row < part->row_count && (part->positions || part->tokens);
		        row++)
			sum |= saved_position(part, row) | (part->tokens ? part->tokens[row] : 0);
		if (sum == INT64_MAX)
			abort();
		for (int64_t l = 0; l < part->layer_count && l < 64; l++)
			for (int which = 0; which < 2; which++)
				if (part->layers[l].tensor[which].present)
					read_tensor(
					        &part->layers[l].tensor[which], part->row_count);
	}
}

static inline void check_refusal(const struct saved_error *error)
{
	if (!error->slug || !error->kind || !error->message[0] || !error->path[0])
		abort();
}

/* A file of these bytes without a name; the path to it goes to 'path'. */
static inline int file_of_bytes(const uint8_t *data, size_t data_bytes, char path[static 64])
{
	int descriptor = memfd_create("fuzz", MFD_CLOEXEC);

	if (descriptor < 0 || pwrite(descriptor, data, data_bytes, 0) != (ssize_t)data_bytes)
		abort();
	snprintf(path, 64, "/proc/self/fd/%d", descriptor);
	return descriptor;
}

static inline void open_bytes(
        const uint8_t *data, size_t data_bytes, const struct saved_options *options)
{
	static struct saved_error error;
	struct saved_cache *cache;
	char path[64];
	int descriptor = file_of_bytes(data, data_bytes, path);

	if (saved_open(&cache, path, options, &error))
		check_refusal(&error);
	else {
		read_cache(cache);
		saved_close(cache);
	}
	close(descriptor);
}

#endif
