/* Any file that begins like a state of llama.cpp: it is refused with a complete error, or every row
 * that it describes can be read. */
#include "snapshot/cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ROW_BYTES_READ ((size_t)1 << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t data_bytes);

static void read_tensor(const struct saved_tensor *tensor, int64_t rows)
{
	struct saved_error error;
	size_t bytes = saved_row_bytes(tensor);
	void *row;
	float *values;

	if (rows == 0 || bytes > ROW_BYTES_READ)
		return;
	row = malloc(bytes);
	values = malloc((size_t)(tensor->heads * tensor->dim) * sizeof(*values));
	/* Nothing was opened that lies outside the file. */
	if (!row || !values || saved_read_bytes(tensor, rows - 1, 1, row, &error) != 0 ||
	        (tensor->type != SAVED_OPAQUE &&
	                saved_read_values(tensor, 0, 1, values, &error) != 0))
		abort();
	free(row);
	free(values);
}

static void read_part(const struct saved_part *part)
{
	for (int64_t row = 0; row < part->row_count; row++)
		if (part->sequences && part->sequence_begin[row] > part->sequence_begin[row + 1])
			abort();
	for (int64_t i = 0; i < part->layer_count; i++)
		for (int t = SAVED_K; t <= SAVED_V; t++)
			if (part->layers[i].tensor[t].present)
				read_tensor(&part->layers[i].tensor[t], part->row_count);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t data_bytes)
{
	static const struct saved_options options = { .format = "llamacpp" };
	struct saved_cache *cache;
	struct saved_error error;
	char path[64];
	int descriptor = memfd_create("fuzz", MFD_CLOEXEC);

	if (descriptor < 0 || write(descriptor, data, data_bytes) != (ssize_t)data_bytes)
		abort();
	snprintf(path, sizeof(path), "/proc/self/fd/%d", descriptor);
	if (saved_open(&cache, path, &options, &error) == 0) {
		for (int64_t i = 0; i < cache->part_count; i++)
			read_part(&cache->parts[i]);
		saved_close(cache);
	} else if (!error.kind || !error.message[0] || error.offset > (int64_t)data_bytes) {
		abort();
	}
	close(descriptor);
	return 0;
}
