/* Saved caches made in memory for tests of diff: float32, K and V of random numbers that drift. */
#ifndef DIFF_WORLD_H
#define DIFF_WORLD_H

#include "saved_world.h"
#include "snapshot/diff/diff.h"

#include <math.h>

#define LAYERS_MOST 6
#define ROWS_MOST 256

/* One cache with one part; values [layer][K, V][row][heads * dim] as the test wants them. */
struct made_cache {
	struct saved_cache cache;
	struct saved_part part;
	struct saved_layer layers[LAYERS_MOST];
	int64_t positions[ROWS_MOST], tokens[ROWS_MOST];
	float *values;
	int64_t rows, heads, dim;
	struct saved_file *file;
	int descriptor;
};

static uint64_t made_seed = 1;

static inline uint64_t made_draw(void)
{
	made_seed ^= made_seed << 13;
	made_seed ^= made_seed >> 7;
	made_seed ^= made_seed << 17;
	return made_seed;
}

static inline int64_t made_below(int64_t count)
{
	return (int64_t)((made_draw() >> 20) % (uint64_t)count);
}

/* Nearly normal, variance 1. */
static inline float made_normal(void)
{
	double sum = 0;

	for (int i = 0; i < 12; i++)
		sum += (double)(made_draw() >> 11) * 0x1p-53;
	return (float)(sum - 6);
}

static inline float *made_row(const struct made_cache *made, int64_t layer, int tensor, int64_t row)
{
	int64_t width = made->heads * made->dim;

	return made->values + ((layer * 2 + tensor) * made->rows + row) * width;
}

static inline void make_cache(
        struct made_cache *made, int64_t layers, int64_t rows, int64_t heads, int64_t dim)
{
	size_t count = (size_t)(layers * 2 * rows * heads * dim);

	memset(made, 0, sizeof(*made));
	made->rows = rows;
	made->heads = heads;
	made->dim = dim;
	made->values = calloc(count + 1, sizeof(float));
	made->descriptor = -1;
	for (size_t i = 0; i < count; i++)
		made->values[i] = made_normal();
	for (int64_t i = 0; i < rows; i++) {
		made->positions[i] = i;
		made->tokens[i] = 3 + made_below(900);
	}
	made->part = (struct saved_part){ .name = "kv",
		.row_count = rows,
		.positions = made->positions,
		.tokens = made->tokens,
		.layer_count = layers,
		.layers = made->layers };
	made->cache = (struct saved_cache){
		.path = "made", .format = "made", .part_count = 1, .parts = &made->part
	};
	for (int64_t i = 0; i < layers; i++) {
		made->layers[i] = (struct saved_layer){ .number = i, .number_is_known = true };
		for (int tensor = 0; tensor < 2; tensor++) {
			uint64_t head = 4 * (uint64_t)dim, row = head * (uint64_t)heads;
			made->layers[i].tensor[tensor] = (struct saved_tensor){ .type = SAVED_F32,
				.type_name = "F32",
				.present = true,
				.heads = heads,
				.dim = dim,
				.element_bits = 32,
				.plane = { NULL, (uint64_t)(2 * i + tensor) * (uint64_t)rows * row,
				        row, head, 4 } };
		}
	}
}

/* The same values, tokens and positions; off by relative drift times the layer's number. */
static inline void copy_cache(struct made_cache *out, const struct made_cache *from, double drift)
{
	size_t layer_floats = (size_t)(2 * from->rows * from->heads * from->dim);

	make_cache(out, from->part.layer_count, from->rows, from->heads, from->dim);
	memcpy(out->positions, from->positions, sizeof(out->positions));
	memcpy(out->tokens, from->tokens, sizeof(out->tokens));
	for (size_t i = 0; i < layer_floats * (size_t)from->part.layer_count; i++)
		out->values[i] = from->values[i] +
		                 (float)(drift * (double)(i / layer_floats)) * made_normal();
}

/* Writes the values to where the layers say that they lie: row-major, one tensor after another. */
static inline void finish_cache(struct made_cache *made)
{
	static struct saved_error error;
	size_t bytes = sizeof(float) *
	               (size_t)(made->part.layer_count * 2 * made->rows * made->heads * made->dim);
	struct bytes_file file = bytes_file_new(made->values, bytes);

	assert_int_equal(saved_file_open(&made->file, file.path, &error), 0);
	made->descriptor = file.descriptor;
	for (int64_t i = 0; i < made->part.layer_count; i++)
		for (int tensor = 0; tensor < 2; tensor++)
			made->layers[i].tensor[tensor].plane.file = made->file;
}

static inline void free_cache(struct made_cache *made)
{
	saved_file_close(made->file);
	if (made->descriptor >= 0)
		close(made->descriptor);
	free(made->values);
}

/* The verdict of a against b; the result is kept for the test to look at, until the next call. */
static inline const struct diff_result *diff_of(
        const struct saved_cache *a, const struct saved_cache *b)
{
	static struct diff_result result;
	static struct saved_error error;
	static bool kept;
	struct diff_options options = { .threads = 2 };

	if (kept)
		diff_result_free(&result);
	kept = true;
	if (a)
		assert_int_equal(diff_compare(&result, a, b, &options, &error), 0);
	else {
		memset(&result, 0, sizeof(result));
		kept = false;
	}
	return &result;
}

#endif
