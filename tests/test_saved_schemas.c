/*
 * Goal: the schemas of safetensors files mean the same rows whatever they are called and however
 * they lie. Method: the same cache in two formats must have the same values (vLLM old and new, mlx-lm
 * before and after 0.32, bfloat16 and float32 of transformers); exact descriptions; shapes that can
 * be read in two ways.
 */
#include "saved_world.h"

#include <math.h>
#include <sys/stat.h>

#include "snapshot/reader.h"
#include "snapshot/safetensors.h"
#include "snapshot/saved_options.h"
#include "snapshot/write_safetensors.h"

static struct saved_error error;

/* ---- exact descriptions ---- */

static void a_transformers_cache_is_described(void **state)
{
	struct saved_cache *cache = open_data("tr-hf.safetensors");
	const struct saved_part *part = &cache->parts[0];

	(void)state;
	assert_string_equal(cache->format, "safetensors-kvc");
	assert_string_equal(cache->version, "layers.<i>.k and .v");
	assert_string_equal(cache->writer, "transformers 5.24.0");
	assert_int_equal(cache->file_bytes, 1192);
	assert_int_equal(cache->part_count, 1);
	assert_string_equal(part->name, "kv");
	assert_int_equal(part->row_count, 6);
	assert_null(part->positions);
	assert_int_equal(part->layer_count, 2);
	assert_true(cache->rope.base == 10000.0);
	assert_false(cache->rope.interleaved);
	assert_int_equal(cache->identity_count, 2);
	assert_string_equal(cache->identity[0].field, "rope.base");
	for (int64_t i = 0; i < 2; i++) {
		const struct saved_tensor *k = &part->layers[i].tensor[SAVED_K];
		assert_int_equal(part->layers[i].number, i);
		assert_true(part->layers[i].number_is_known && k->present);
		assert_string_equal(k->type_name, "BF16");
		assert_int_equal(k->heads, 2);
		assert_int_equal(k->dim, 8);
		assert_int_equal(saved_row_bytes(k), 32);
		assert_int_equal(k->plane.row_stride, 16);
		assert_int_equal(k->plane.head_stride, 96);
	}
	saved_close(cache);
}

static void an_mlx_cache_is_described(void **state)
{
	static const struct {
		const char *file, *version;
		int64_t rows, notes;
	} cases[] = {
		{ "mlx-0.28.4-kv.safetensors", "mlx-lm 0.28 to 0.31", 6, 0 },
		{ "mlx-0.32.2-kv.safetensors", "mlx-lm from 0.32 on", 6, 1 },
		{ "mlx-0.28.4-trimmed.safetensors", "mlx-lm 0.28 to 0.31", 4, 0 },
		{ "mlx-0.32.2-trimmed.safetensors", "mlx-lm from 0.32 on", 4, 1 },
		{ "mlx-0.28.4-q8.safetensors", "mlx-lm 0.28 to 0.31", 6, 0 },
		{ "mlx-0.32.2-q8.safetensors", "mlx-lm from 0.32 on", 6, 1 },
		{ "mlx-0.28.4-rotating.safetensors", "mlx-lm 0.28 to 0.31", 4, 0 },
		{ "mlx-0.32.2-rotating.safetensors", "mlx-lm from 0.32 on", 4, 0 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct saved_cache *cache = open_data(cases[i].file);
		const struct saved_tensor *k = &cache->parts[0].layers[1].tensor[SAVED_K];
		bool is_quantised = strstr(cases[i].file, "q8") != NULL;
		assert_string_equal(cache->format, "safetensors-mlx");
		assert_string_equal(cache->version, cases[i].version);
		assert_int_equal(cache->part_count, 1);
		assert_int_equal(cache->parts[0].row_count, cases[i].rows);
		assert_int_equal(cache->parts[0].layer_count, 2);
		assert_int_equal(cache->note_count, cases[i].notes);
		assert_string_equal(cache->identity[0].value, "tiny-random-llama");
		assert_int_equal(k->type, is_quantised ? SAVED_AFFINE : SAVED_F16);
		assert_int_equal(k->heads, 1);
		assert_int_equal(k->dim, is_quantised ? 32 : 8);
		saved_close(cache);
	}
}

/* ---- the same rows in two files ---- */

/* The largest difference over all layers of the first parts. */
static double difference(const struct saved_cache *a, const struct saved_cache *b, double *largest)
{
	double most = 0;

	*largest = 0;
	assert_int_equal(a->parts[0].layer_count, b->parts[0].layer_count);
	assert_int_equal(a->parts[0].row_count, b->parts[0].row_count);
	for (int64_t l = 0; l < a->parts[0].layer_count; l++)
		for (int which = 0; which < 2; which++) {
			const struct saved_tensor *tensor = &a->parts[0].layers[l].tensor[which];
			size_t count =
			        (size_t)(a->parts[0].row_count * tensor->heads * tensor->dim);
			float *left = values_of(a, l, which), *right = values_of(b, l, which);
			for (size_t i = 0; i < count; i++) {
				most = fmax(most, fabs((double)left[i] - (double)right[i]));
				*largest = fmax(*largest, fabs((double)left[i]));
			}
			free(left);
			free(right);
		}
	return most;
}

static void formats_agree_by_value(void **state)
{
	static const struct {
		const char *a, *b;
		double least, most;
	} pairs[] = {
		{ "mlx-0.28.4-kv.safetensors", "mlx-0.32.2-kv.safetensors", 0, 0 },
		{ "mlx-0.28.4-q8.safetensors", "mlx-0.32.2-q8.safetensors", 0, 0 },
		{ "mlx-0.28.4-trimmed.safetensors", "mlx-0.32.2-trimmed.safetensors", 0, 0 },
		{ "mlx-0.28.4-rotating.safetensors", "mlx-0.32.2-rotating.safetensors", 0, 0 },
		{ "mlx-0.32.2-kv.safetensors", "mlx-0.32.2-kv.flip-unused.safetensors", 0, 0 },
		{ "mlx-0.32.2-kv.safetensors", "mlx-0.32.2-kv.flip.safetensors", 1e-4, 10 },
		/* The manifest's measure of this pair. */
		{ "tr-hf.safetensors", "tr-hf-f32.safetensors", 0.019740, 0.019741 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
		struct saved_cache *a = open_data(pairs[i].a), *b = open_data(pairs[i].b);
		double largest, most = difference(a, b, &largest);
		if (most < pairs[i].least || most > pairs[i].most || largest < 0.1)
			fail_msg("%s and %s: %g", pairs[i].a, pairs[i].b, most);
		saved_close(a);
		saved_close(b);
	}
}

#define VLLM(which, layer) "st-vllm-" which "-model.layers." layer ".self_attn.attn.safetensors"

static void vllm_old_and_new_are_the_same(void **state)
{
	const struct saved_options heads = { .heads = 2 };
	static const char *const files[][2] = {
		{ VLLM("old", "0"), VLLM("new", "0") },
		{ VLLM("old", "1"), VLLM("new", "1") },
	};

	(void)state;
	for (int64_t i = 0; i < 2; i++) {
		char path[256];
		double largest;
		snprintf(path, sizeof(path), SAFETENSORS_DATA "%s", files[i][0]);
		struct saved_cache *old = open_with(path, &heads), *new = open_data(files[i][1]);
		assert_string_equal(old->format, "safetensors-vllm");
		assert_int_equal(old->parts[0].layers[0].number, i);
		assert_int_equal(old->parts[0].row_count, 8);
		for (int which = 0; which < 2; which++) {
			const struct saved_tensor *a = &old->parts[0].layers[0].tensor[which];
			const struct saved_tensor *b = &new->parts[0].layers[0].tensor[which];
			assert_int_equal(a->heads, 2);
			assert_int_equal(b->heads, 2);
			assert_int_equal(a->dim, 8);
			assert_int_equal(b->dim, 8);
		}
		assert_true(difference(old, new, &largest) == 0);
		assert_true(largest > 0.1);
		saved_close(old);
		saved_close(new);
	}
}

/* ---- a directory of layers ---- */

static void copy_file(const char *from, const char *to)
{
	size_t bytes;
	unsigned char *data = read_whole(from, &bytes);
	FILE *file = fopen(to, "wb");

	assert_non_null(file);
	assert_int_equal(fwrite(data, 1, bytes, file), bytes);
	fclose(file);
	free(data);
}

static void a_directory_is_one_cache(void **state)
{
	static const char *const names[] = { "model.layers.1.self_attn.attn.safetensors",
		"model.layers.0.self_attn.attn.safetensors" };
	static const char *const sources[] = { SAFETENSORS_DATA VLLM("new", "1"),
		SAFETENSORS_DATA VLLM("new", "0") };
	int64_t tokens[9] = { 1, 2, 3, 4, 5, 6, 7, 8, 9 };
	const struct saved_options options = { .tokens = tokens, .token_count = 9 };
	char folder[] = "/tmp/kvcanary-layers-XXXXXX", path[128], far[128];
	struct saved_cache *cache;

	(void)state;
	assert_non_null(mkdtemp(folder));
	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
		copy_file(sources[i], path);
	}
	cache = open_with(folder, &options);
	assert_int_equal(cache->parts[0].layer_count, 2);
	assert_int_equal(cache->parts[0].layers[0].number, 0);
	assert_int_equal(cache->parts[0].layers[1].number, 1);
	assert_string_equal(cache->parts[0].layers[1].name, "model.layers.1.self_attn.attn");
	assert_int_equal(cache->parts[0].tokens[7], 8); /* a prompt is longer than its blocks */
	assert_int_equal(cache->note_count, 0);
	assert_int_equal(cache->file_bytes, 2 * 588);
	read_every_row(cache);
	saved_close(cache);

	/* Layer 1 of another layout, then cut: the file in the directory is named. */
	copy_file(SAFETENSORS_DATA VLLM("old", "1"), path);
	snprintf(path, sizeof(path), "%s/%s", folder, names[0]);
	copy_file(SAFETENSORS_DATA VLLM("old", "1"), path);
	snprintf(far, sizeof(far), "%s/%s", folder, names[1]);
	copy_file(sources[1], far);
	assert_int_equal(saved_open(&cache, folder, NULL, &error), -1);
	assert_string_equal(error.kind, "cache_shape");
	assert_string_equal(error.path, path);
	assert_int_equal(truncate(path, 500), 0);
	assert_int_equal(saved_open(&cache, folder, NULL, &error), -1);
	assert_string_equal(error.kind, "truncated");
	assert_string_equal(error.path, path);
	unlink(path);

	/* A layer far away, and a write that did not end. */
	snprintf(path, sizeof(path), "%s/model.layers.3.self_attn.attn.safetensors", folder);
	rename(far, path);
	snprintf(far, sizeof(far), "%s/x.tmp", folder);
	copy_file(sources[1], far);
	cache = open_with(folder, NULL);
	assert_int_equal(cache->note_count, 2);
	assert_string_equal(cache->notes[0].kind, "leftover");
	assert_string_equal(cache->notes[1].kind, "layer_gap");
	saved_close(cache);
	unlink(far);
	unlink(path);
	assert_int_equal(rmdir(folder), 0);
}

/* ---- files made here ---- */

struct made_tensor {
	const char *name;
	enum safetensors_dtype dtype;
	uint32_t rank;
	uint64_t shape[6];
};

static char made_path[] = "/tmp/kvcanary-made-XXXXXX.safetensors";

/* Tensors of F32 or I64 that count upwards; metadata pairs end in NULL. */
static const char *make(const struct made_tensor *tensors, const char *const *pairs)
{
	struct safetensors_writer *writer;

	if (strstr(made_path, "XXXXXX")) {
		int descriptor = mkstemps(made_path, 12);
		assert_true(descriptor >= 0);
		close(descriptor);
	}
	assert_int_equal(safetensors_writer_new(&writer, made_path, &error), 0);
	for (; pairs && *pairs; pairs += 2)
		safetensors_writer_metadata(writer, pairs[0], pairs[1]);
	for (size_t i = 0; tensors[i].name; i++)
		safetensors_writer_tensor(writer, tensors[i].name, tensors[i].dtype,
		        tensors[i].rank, tensors[i].shape);
	assert_int_equal(safetensors_writer_begin(writer, &error), 0);
	for (size_t i = 0; tensors[i].name; i++) {
		size_t count = 1, width = safetensors_dtype_bits(tensors[i].dtype) / 8;
		for (uint32_t d = 0; d < tensors[i].rank; d++)
			count *= tensors[i].shape[d];
		unsigned char *data = calloc(count + 1, width);
		for (size_t e = 0; e < count; e++)
			if (tensors[i].dtype == SAFETENSORS_F32)
				((float *)data)[e] = (float)(e + 1000 * i);
			else if (tensors[i].dtype == SAFETENSORS_I64)
				((int64_t *)data)[e] = (int64_t)e + 100;
		assert_int_equal(
		        safetensors_writer_write(writer, i, 0, data, count * width, &error), 0);
		free(data);
	}
	assert_int_equal(safetensors_writer_finish(writer, &error), 0);
	return made_path;
}

/* One layer of K and V of a shape. */
#define KV(type, rank, ...)                                                                        \
	(const struct made_tensor[])                                                               \
	{                                                                                          \
		{ "layers.0.k", type, rank, { __VA_ARGS__ } },                                     \
		        { "layers.0.v", type, rank, { __VA_ARGS__ } },                             \
		{                                                                                  \
			NULL, 0, 0,                                                                \
			{                                                                          \
				0                                                                  \
			}                                                                          \
		}                                                                                  \
	}
#define PAIRS(...)                                                                                 \
	(const char *const[])                                                                      \
	{                                                                                          \
		__VA_ARGS__, NULL                                                                  \
	}

static float value_at(const struct saved_cache *cache, int64_t part, int which, int64_t row,
        int64_t head, int64_t element)
{
	const struct saved_tensor *tensor = &cache->parts[part].layers[0].tensor[which];
	float values[64];

	assert_true(tensor->heads * tensor->dim <= 64);
	assert_int_equal(saved_read_values(tensor, row, 1, values, &error), 0);
	return values[head * tensor->dim + element];
}

static void layouts_name_the_axes(void **state)
{
	static const struct {
		const char *layout;
		uint32_t rank;
		uint64_t shape[4];
		float value; /* of row 2, head 1, element 3, in the last of the batch */
	} cases[] = {
		{ "bhtd", 4, { 2, 2, 5, 4 }, 1 * 40 + 1 * 20 + 2 * 4 + 3 },
		{ "bthd", 4, { 2, 5, 2, 4 }, 1 * 40 + 2 * 8 + 1 * 4 + 3 },
		{ "htd", 3, { 2, 5, 4 }, 1 * 20 + 2 * 4 + 3 },
		{ "thd", 3, { 5, 2, 4 }, 2 * 8 + 1 * 4 + 3 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const struct made_tensor tensors[] = {
			{ "layers.0.k", SAFETENSORS_F32, cases[i].rank,
			        { cases[i].shape[0], cases[i].shape[1], cases[i].shape[2],
			                cases[i].shape[3] } },
			{ NULL, 0, 0, { 0 } },
		};
		const char *path = make(
		        tensors, PAIRS("kvc.schema", "cache 1", "kvc.layout", cases[i].layout));
		struct saved_cache *cache = open_with(path, NULL);
		assert_int_equal(cache->part_count, cases[i].rank == 4 ? 2 : 1);
		assert_int_equal(cache->parts[0].row_count, 5);
		assert_true(
		        value_at(cache, cache->part_count - 1, SAVED_K, 2, 1, 3) == cases[i].value);
		saved_close(cache);
	}
}

static void our_schema_says_what_it_is(void **state)
{
	const struct made_tensor tensors[] = {
		{ "layers.0.k", SAFETENSORS_F32, 4, { 1, 2, 3, 4 } },
		{ "layers.0.v", SAFETENSORS_F32, 4, { 1, 2, 3, 2 } },
		{ "positions", SAFETENSORS_I64, 1, { 3 } },
		{ "tokens", SAFETENSORS_I64, 1, { 3 } },
		{ NULL, 0, 0, { 0 } },
	};
	const char *path =
	        make(tensors, PAIRS("kvc.schema", "cache 1", "kvc.model", "m@1", "kvc.tokenizer",
	                              "t@1", "kvc.block_size", "16", "kvc.writer", "me",
	                              "kvc.rope.base", "5e5", "kvc.rope.style", "interleaved",
	                              "kvc.rope.dim", "2", "kvc.rope.offset", "1"));
	struct saved_cache *cache = open_with(path, NULL);

	(void)state;
	assert_string_equal(cache->version, "schema cache 1");
	assert_string_equal(cache->writer, "me");
	assert_true(cache->rope.base == 5e5 && cache->rope.interleaved);
	assert_int_equal(cache->rope.rotary_dim, 2);
	assert_int_equal(cache->rope.rotary_offset, 1);
	assert_int_equal(cache->identity_count, 5);
	assert_string_equal(cache->identity[2].field, "block_size");
	assert_string_equal(cache->identity[2].value, "16");
	assert_int_equal(saved_position(&cache->parts[0], 2), 102);
	assert_int_equal(cache->parts[0].tokens[1], 101);
	assert_int_equal(cache->note_count, 0);
	assert_int_equal(cache->parts[0].layers[0].tensor[SAVED_V].dim, 2);
	saved_close(cache);
}

/* Layers of a sliding window hold the last rows. */
static void a_window_is_a_part(void **state)
{
	const struct made_tensor tensors[] = {
		{ "key_cache.0", SAFETENSORS_F32, 4, { 1, 1, 6, 2 } },
		{ "key_cache.1", SAFETENSORS_F32, 4, { 1, 1, 4, 2 } },
		{ "value_cache.0", SAFETENSORS_F32, 4, { 1, 1, 6, 2 } },
		{ "value_cache.1", SAFETENSORS_F32, 4, { 1, 1, 4, 2 } },
		{ NULL, 0, 0, { 0 } },
	};
	struct saved_cache *cache =
	        open_with(make(tensors, PAIRS("tokens", "10 11 12 13 14 15")), NULL);

	(void)state;
	assert_int_equal(cache->part_count, 2);
	assert_string_equal(cache->parts[0].name, "full");
	assert_string_equal(cache->parts[1].name, "window");
	assert_int_equal(cache->parts[1].layers[0].number, 1);
	assert_int_equal(saved_position(&cache->parts[1], 0), 2);
	assert_int_equal(cache->parts[1].tokens[0], 12);
	assert_int_equal(cache->parts[0].tokens[0], 10);
	saved_close(cache);
}

static void expect_vllm(const struct made_tensor *tensors, const char *layout, const char *kind,
        int64_t rows, int64_t heads, int64_t dim)
{
	const struct saved_options options = { .layout = layout };
	struct saved_cache *cache;

	if (saved_open(&cache, make(tensors, NULL), &options, &error)) {
		if (!kind)
			fail_msg("%s: %s", error.kind, error.message);
		assert_string_equal(error.kind, kind);
		return;
	}
	assert_null(kind);
	assert_int_equal(cache->parts[0].row_count, rows);
	assert_int_equal(cache->parts[0].layers[0].tensor[SAVED_K].heads, heads);
	assert_int_equal(cache->parts[0].layers[0].tensor[SAVED_K].dim, dim);
	read_every_row(cache);
	saved_close(cache);
}

#define ONE(rank, ...)                                                                             \
	(const struct made_tensor[])                                                               \
	{                                                                                          \
		{ "kv_cache", SAFETENSORS_F32, rank, { __VA_ARGS__ } },                            \
		{                                                                                  \
			NULL, 0, 0,                                                                \
			{                                                                          \
				0                                                                  \
			}                                                                          \
		}                                                                                  \
	}

static void a_vllm_shape_of_two_meanings_needs_a_word(void **state)
{
	(void)state;
	expect_vllm(ONE(3, 2, 16, 8), NULL, NULL, 16, 1, 8);
	expect_vllm(ONE(3, 2, 16, 8), "packed", NULL, 2, 16, 4);
	expect_vllm(ONE(3, 2, 3, 8), NULL, "ambiguous", 0, 0, 0);
	expect_vllm(ONE(3, 2, 3, 8), "split", NULL, 3, 1, 8);
	expect_vllm(ONE(3, 2, 3, 8), "packed", NULL, 2, 3, 4);
	expect_vllm(ONE(3, 2, 3, 7), NULL, NULL, 3, 1, 7);
	expect_vllm(ONE(3, 16, 3, 8), NULL, NULL, 16, 3, 4);
	expect_vllm(ONE(3, 16, 3, 8), "split", "ambiguous", 0, 0, 0);
	expect_vllm(ONE(3, 16, 3, 7), NULL, "cache_shape", 0, 0, 0);
	expect_vllm(ONE(2, 16, 576), NULL, NULL, 16, 1, 576);
	expect_vllm(ONE(4, 2, 2, 2, 2), NULL, "cache_shape", 0, 0, 0);
}

static void shapes_that_are_no_cache_are_refused(void **state)
{
	const struct saved_options thd = { .layout = "thd" };
	struct saved_cache *cache;

	(void)state;
	assert_int_equal(
	        saved_open(&cache, make(KV(SAFETENSORS_F32, 3, 2, 3, 4), NULL), NULL, &error), -1);
	assert_string_equal(error.slug, "snapshot-layout-needed");
	cache = open_with(made_path, &thd);
	assert_int_equal(cache->parts[0].row_count, 2);
	saved_close(cache);
	assert_int_equal(saved_open(&cache, make(ONE(1, 4), NULL), NULL, &error), -1);
	assert_string_equal(error.kind, "cache_shape");
	/* 2^17 sequences of one row would need a description each. */
	assert_int_equal(saved_open(&cache, make(KV(SAFETENSORS_U8, 4, 131072, 1, 1, 1), NULL),
	                         NULL, &error),
	        -1);
	assert_string_equal(error.kind, "count_too_large");
	/* Nor are more rows described than a table of them may have. */
	cache = open_with(make(KV(SAFETENSORS_U8, 4, 1, 1, 4194304, 1), NULL), NULL);
	assert_int_equal(cache->parts[0].row_count, 4194304);
	saved_close(cache);
	assert_int_equal(saved_open(&cache, make(KV(SAFETENSORS_U8, 4, 1, 1, 4194305, 1), NULL),
	                         NULL, &error),
	        -1);
	assert_string_equal(error.kind, "count_too_large");
}

/* mlx-lm: numbers of a layer that cannot be. */
static void mlx_numbers_are_checked(void **state)
{
	static const struct {
		const char *text[4]; /* keep, max_size, offset, _idx */
		const char *field;   /* NULL: it is read */
		int64_t positions[4];
	} cases[] = {
		{ { "1", "4", "6", "3" }, NULL, { 0, 4, 5, 3 } },
		{ { "1", "4", "6", "1" }, NULL, { 0, 3, 4, 5 } },
		{ { "0", "4", "9", "2" }, NULL, { 7, 8, 5, 6 } },
		{ { "1", "4", "6", "4" }, NULL, { 0, 3, 4, 5 } },
		{ { "0", "4", "4", "4" }, NULL, { 0, 1, 2, 3 } },
		{ { "1", "4", "6", "5" }, "0._idx", { 0 } },
		{ { "4", "4", "6", "3" }, "0.keep", { 0 } },
		{ { "1", "4", "-6", "3" }, "0.offset", { 0 } },
		{ { "1", "4", "6x", "3" }, "0.offset", { 0 } },
		{ { "1", "4", "99999999999999999999", "3" }, "0.offset", { 0 } },
		{ { "1", "", "6", "3" }, "0.max_size", { 0 } },
	};
	const struct made_tensor tensors[] = {
		{ "0.0", SAFETENSORS_F32, 4, { 1, 1, 4, 2 } },
		{ "0.1", SAFETENSORS_F32, 4, { 1, 1, 4, 2 } },
		{ NULL, 0, 0, { 0 } },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const char *const *text = cases[i].text;
		const char *path =
		        make(tensors, PAIRS("2.0", "RotatingKVCache", "0.0.0", text[0], "0.0.1",
		                              text[1], "0.0.2", text[2], "0.0.3", text[3]));
		struct saved_cache *cache;
		if (saved_open(&cache, path, NULL, &error)) {
			assert_non_null(cases[i].field);
			assert_string_equal(error.field, cases[i].field);
			continue;
		}
		assert_null(cases[i].field);
		for (int64_t row = 0; row < 4; row++)
			assert_int_equal(
			        saved_position(&cache->parts[0], row), cases[i].positions[row]);
		saved_close(cache);
	}
}

static int remove_made(void **state)
{
	(void)state;
	unlink(made_path);
	return 0;
}

/* The list behind --as is in the help, from which --as is checked and the completions are made. */
static void every_format_can_be_named(void **state)
{
	struct saved_settings settings = SAVED_SETTINGS;
	const struct cli_option *as = saved_option_rows, *layout;

	(void)state;
	while (!as->name || strcmp(as->name, "as") != 0)
		as++;
	for (layout = as; strcmp(layout->name, "layout") != 0;)
		layout++;
	for (size_t i = 0; saved_format_at(i); i++) {
		assert_int_equal(saved_option(&settings, as->id, saved_format_at(i)->name), 0);
		assert_string_equal(settings.saved.format, saved_format_at(i)->name);
	}
	assert_int_equal(saved_option(&settings, as->id, "llamacpp"), 0);
	assert_int_equal(saved_option(&settings, as->id, "llamacpp, pages"), CLI_CANNOT);
	assert_int_equal(saved_option(&settings, as->id, "of"), CLI_CANNOT);
	assert_int_equal(saved_option(&settings, as->id, ""), CLI_CANNOT);
	assert_int_equal(saved_option(&settings, layout->id, "packed"), 0);
	assert_int_equal(saved_option(&settings, layout->id, "td"), 0);
	assert_int_equal(saved_option(&settings, layout->id, "page_first"), CLI_CANNOT);
	saved_settings_free(&settings);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_format_can_be_named),
		cmocka_unit_test(a_transformers_cache_is_described),
		cmocka_unit_test(an_mlx_cache_is_described),
		cmocka_unit_test(formats_agree_by_value),
		cmocka_unit_test(vllm_old_and_new_are_the_same),
		cmocka_unit_test(a_directory_is_one_cache),
		cmocka_unit_test(layouts_name_the_axes),
		cmocka_unit_test(our_schema_says_what_it_is),
		cmocka_unit_test(a_window_is_a_part),
		cmocka_unit_test(a_vllm_shape_of_two_meanings_needs_a_word),
		cmocka_unit_test(shapes_that_are_no_cache_are_refused),
		cmocka_unit_test(mlx_numbers_are_checked),
	};

	return cmocka_run_group_tests(tests, NULL, remove_made);
}
