/*
 * Goal: diff names what was done to a cache, and claims nothing of one that only drifts. Method:
 * caches of random numbers with one thing changed; real drifting pairs (data/llamacpp) with one row
 * damaged by a multiple of its drift; pairs of unlike geometry, which must only not crash.
 */
#include "diff_world.h"

#define DRIFT 0.01 /* relative, for each layer */

static void expect_verdict(
        const struct made_cache *a, const struct made_cache *b, const char *verdict)
{
	assert_string_equal(diff_of(&a->cache, &b->cache)->verdict, verdict);
	assert_string_equal(diff_of(&b->cache, &a->cache)->verdict, verdict);
}

/* Runs 'change' on b, a copy of a that drifts or not, and expects the verdict both ways. */
static void expect_after(void (*change)(struct made_cache *b), const char *verdict)
{
	static const double drifts[] = { 0, DRIFT };

	for (size_t i = 0; i < 2; i++) {
		struct made_cache a, b;
		make_cache(&a, 4, 40, 2, 32);
		copy_cache(&b, &a, drifts[i]);
		change(&b);
		finish_cache(&a);
		finish_cache(&b);
		expect_verdict(&a, &b, verdict);
		diff_of(NULL, NULL);
		free_cache(&a);
		free_cache(&b);
	}
}

static void swap_floats(float *x, float *y, int64_t count)
{
	for (int64_t i = 0; i < count; i++) {
		float kept = x[i];
		x[i] = y[i];
		y[i] = kept;
	}
}

static void zero_one_head(struct made_cache *b)
{
	memset(made_row(b, 2, SAVED_V, 7) + b->dim, 0, sizeof(float) * (size_t)b->dim);
}

static void exchange_rows(struct made_cache *b)
{
	swap_floats(made_row(b, 1, SAVED_K, 5), made_row(b, 1, SAVED_K, 30), b->heads * b->dim);
}

static void exchange_cells_in_all_layers(struct made_cache *b)
{
	for (int64_t layer = 0; layer < b->part.layer_count; layer++)
		for (int tensor = 0; tensor < 2; tensor++)
			swap_floats(made_row(b, layer, tensor, 5), made_row(b, layer, tensor, 30),
			        b->heads * b->dim);
}

static void exchange_layers(struct made_cache *b)
{
	swap_floats(made_row(b, 1, SAVED_V, 0), made_row(b, 3, SAVED_V, 0),
	        b->rows * b->heads * b->dim);
}

static void exchange_k_and_v(struct made_cache *b)
{
	swap_floats(made_row(b, 2, SAVED_K, 0), made_row(b, 2, SAVED_V, 0),
	        b->rows * b->heads * b->dim);
}

static void change_position(struct made_cache *b)
{
	b->positions[39] = 77;
}

static void change_token(struct made_cache *b)
{
	b->tokens[11]++;
}

static void put_nan(struct made_cache *b)
{
	made_row(b, 3, SAVED_K, 9)[40] = NAN;
}

static void replace_row(struct made_cache *b)
{
	for (int64_t i = 0; i < b->dim; i++)
		made_row(b, 3, SAVED_K, 20)[i] = made_normal();
}

static void drop_last_rows(struct made_cache *b)
{
	b->part.row_count = 33;
}

/* Halves, base 10000. */
static void rotate_row(struct made_cache *b)
{
	for (int64_t layer = 0; layer < b->part.layer_count; layer++)
		for (int64_t head = 0; head < b->heads; head++)
			for (int64_t i = 0; i < b->dim / 2; i++) {
				float *x = made_row(b, layer, SAVED_K, 12) + head * b->dim + i;
				float *y = x + b->dim / 2, kept = *x;
				double angle = 3 * pow(10000, -2.0 * (double)i / (double)b->dim);
				*x = (float)(cos(angle) * (double)kept - sin(angle) * (double)*y);
				*y = (float)(sin(angle) * (double)kept + cos(angle) * (double)*y);
			}
}

/* Rows from 20 on lie four positions earlier; what was there is gone. */
static void shift_rows(struct made_cache *b)
{
	for (int64_t layer = 0; layer < b->part.layer_count; layer++)
		for (int tensor = 0; tensor < 2; tensor++)
			memmove(made_row(b, layer, tensor, 16), made_row(b, layer, tensor, 20),
			        sizeof(float) * (size_t)(20 * b->heads * b->dim));
	memmove(b->tokens + 16, b->tokens + 20, 20 * sizeof(*b->tokens));
	b->part.row_count = 36;
}

/* The bytes hold [heads, tokens, dim] and are read as [tokens, heads, dim]. */
static void transpose_heads(struct made_cache *b)
{
	size_t floats = (size_t)(b->rows * b->heads * b->dim);
	float *kept = malloc(floats * sizeof(*kept));

	assert_non_null(kept);
	for (int64_t layer = 0; layer < b->part.layer_count; layer++)
		for (int tensor = 0; tensor < 2; tensor++) {
			float *values = made_row(b, layer, tensor, 0);
			memcpy(kept, values, floats * sizeof(*kept));
			for (int64_t row = 0; row < b->rows; row++)
				for (int64_t head = 0; head < b->heads; head++)
					memcpy(values + (head * b->rows + row) * b->dim,
					        kept + (row * b->heads + head) * b->dim,
					        sizeof(float) * (size_t)b->dim);
		}
	free(kept);
}

/* The bytes hold [2, tokens, layers, heads, dim], HiCache's page_first, and are read as
 * [layers, 2, tokens, heads, dim]. */
static void write_page_first(struct made_cache *b)
{
	size_t width = (size_t)(b->heads * b->dim), layers = (size_t)b->part.layer_count;
	size_t rows = (size_t)b->rows, floats = layers * 2 * rows * width;
	float *kept = malloc(floats * sizeof(*kept));

	assert_non_null(kept);
	memcpy(kept, b->values, floats * sizeof(*kept));
	for (size_t layer = 0; layer < layers; layer++)
		for (size_t tensor = 0; tensor < 2; tensor++)
			for (size_t row = 0; row < rows; row++)
				memcpy(b->values + ((tensor * rows + row) * layers + layer) * width,
				        kept + ((layer * 2 + tensor) * rows + row) * width,
				        width * sizeof(*kept));
	free(kept);
}

static void what_was_done_is_named(void **state)
{
	(void)state;
	expect_after(zero_one_head, "zeroed");
	expect_after(exchange_rows, "rows_permuted");
	expect_after(exchange_cells_in_all_layers, "rows_permuted");
	expect_after(exchange_layers, "layers_swapped");
	expect_after(exchange_k_and_v, "kv_swapped");
	expect_after(change_position, "position");
	expect_after(change_token, "token_changed");
	expect_after(put_nan, "row_changed");
	expect_after(replace_row, "row_changed");
	expect_after(drop_last_rows, "missing");
	expect_after(rotate_row, "rotation");
	expect_after(shift_rows, "shifted");
	expect_after(transpose_heads, "wrong_layout");
	expect_after(write_page_first, "wrong_layout");
}

static void cells_may_lie_in_any_order(void **state)
{
	struct made_cache a, b;

	(void)state;
	make_cache(&a, 3, 50, 2, 16);
	copy_cache(&b, &a, 0);
	for (int64_t i = 49; i > 0; i--) { /* shuffle rows with their positions */
		int64_t j = made_below(i + 1), kept = b.positions[i];
		b.positions[i] = b.positions[j];
		b.positions[j] = kept;
		kept = b.tokens[i];
		b.tokens[i] = b.tokens[j];
		b.tokens[j] = kept;
		for (int64_t layer = 0; i != j && layer < 3; layer++)
			for (int tensor = 0; tensor < 2; tensor++)
				swap_floats(made_row(&b, layer, tensor, i),
				        made_row(&b, layer, tensor, j), 32);
	}
	finish_cache(&a);
	finish_cache(&b);
	expect_verdict(&a, &b, "identical");
	diff_of(NULL, NULL);
	free_cache(&a);
	free_cache(&b);
}

/* A whole row that drifts from some layer on was computed another way; in one layer it was not. */
static void a_row_may_drift_as_a_whole(void **state)
{
	(void)state;
	for (int damaged = 0; damaged < 2; damaged++) {
		struct made_cache a, b;
		make_cache(&a, 6, 60, 2, 32);
		copy_cache(&b, &a, 0);
		for (int64_t layer = damaged ? 3 : 1; layer < (damaged ? 4 : 6); layer++)
			for (int tensor = 0; tensor < 2; tensor++)
				for (int64_t i = 0; i < 64; i++)
					made_row(&b, layer, tensor, 59)[i] += 0.02f * made_normal();
		finish_cache(&a);
		finish_cache(&b);
		expect_verdict(&a, &b, damaged ? "row_changed" : "drift");
		diff_of(NULL, NULL);
		free_cache(&a);
		free_cache(&b);
	}
}

/* ---- pairs of unlike geometry ---- */

static void make_random(struct made_cache *made)
{
	static const int64_t dims[] = { 8, 16, 32, 64 };

	make_cache(
	        made, 1 + made_below(4), 1 + made_below(9), 1 + made_below(3), dims[made_below(4)]);
	if (made_below(3) == 0)
		for (int64_t i = 0; i < made->rows; i++)
			made->positions[i] = made_below(12) - 2;
	if (made_below(3) == 0)
		made->part.tokens = NULL;
	if (made_below(4) == 0)
		made->part.name = "window";
	for (int64_t i = 0; i < made->part.layer_count; i++) {
		struct saved_tensor *v = &made->layers[i].tensor[SAVED_V];
		made->layers[i].number_is_known = made_below(2);
		v->present = made_below(5) > 0;
		if (made_below(6) == 0) /* another reading of the same bytes */
			*v = (struct saved_tensor){ .type = SAVED_OPAQUE,
				.type_name = "?",
				.present = true,
				.heads = 1,
				.dim = v->heads * v->dim,
				.element_bits = 32,
				.plane = v->plane };
	}
	if (made_below(8) == 0)
		made->values[made_below(made->heads * made->dim)] = INFINITY;
	finish_cache(made);
}

static void unlike_caches_do_no_harm(void **state)
{
	int64_t not_comparable = 0;

	(void)state;
	for (int i = 0; i < 400; i++) {
		struct made_cache a, b;
		const char *verdict;
		int code;
		make_random(&a);
		make_random(&b);
		verdict = diff_of(&a.cache, &b.cache)->verdict;
		code = diff_of(&b.cache, &a.cache)->exit_code;
		assert_int_equal(diff_of(&a.cache, &b.cache)->exit_code, code);
		not_comparable += strcmp(verdict, "not_comparable") == 0;
		assert_int_equal(diff_of(&a.cache, &a.cache)->exit_code == 1, 0);
		diff_of(NULL, NULL);
		free_cache(&a);
		free_cache(&b);
	}
	assert_in_range(not_comparable, 1, 399);
}

/* ---- the smallest damage that is found in real drifting pairs ---- */

#define MODEL_LAYERS 30
#define MODEL_WIDTH 192
#ifdef KVC_SANITIZED
#define TRIALS 4
#else
#define TRIALS 60
#endif

static uint16_t half_of(float value)
{
	uint32_t bits, sign, magnitude;

	memcpy(&bits, &value, sizeof(bits));
	sign = bits >> 16 & 0x8000u;
	magnitude = bits & 0x7fffffffu;
	if (magnitude < 0x38800000u)
		return (uint16_t)(sign | (uint32_t)lrintf(fabsf(value) * 0x1p24f));
	return (uint16_t)(sign | (magnitude - 0x38000000u + 0x1000u) >> 13);
}

static struct saved_cache *open_model(const char *name)
{
	const struct saved_options options = { .heads = 3 };
	char path[128];

	snprintf(path, sizeof(path), "data/llamacpp/%s", name);
	return open_with(path, &options);
}

/* Adds noise to one row of the f16 file: 'times' as large as the row's own drift against 'other'. */
static void damage_row(unsigned char *bytes, const struct saved_tensor *tensor,
        const struct saved_tensor *other, int64_t row, double times)
{
	float x[MODEL_WIDTH], y[MODEL_WIDTH];
	static struct saved_error error;
	double drift = 0;

	assert_int_equal(saved_read_values(tensor, row, 1, x, &error), 0);
	assert_int_equal(saved_read_values(other, row, 1, y, &error), 0);
	for (int i = 0; i < MODEL_WIDTH; i++)
		drift += (double)(x[i] - y[i]) * (double)(x[i] - y[i]);
	drift = sqrt(drift / MODEL_WIDTH);
	for (int i = 0; i < MODEL_WIDTH; i++) {
		uint64_t at = saved_offset(tensor, row, i / 64, i % 64);
		uint16_t half = half_of(x[i] + (float)(times * drift) * made_normal());
		memcpy(bytes + at, &half, sizeof(half));
	}
}

static double share_found(const char *other_name, double times, int trials)
{
	static struct saved_error error;
	const struct saved_options options = { .heads = 3 };
	struct saved_cache *plain = open_model("smol-seq-f16.bin");
	struct saved_cache *other = open_model(other_name);
	size_t count;
	unsigned char *bytes = read_whole("data/llamacpp/smol-seq-f16.bin", &count);
	unsigned char *kept = malloc(count);
	int found = 0;

	assert_non_null(kept);
	memcpy(kept, bytes, count);
	for (int i = 0; i < trials; i++) {
		int64_t layer = 1 + made_below(MODEL_LAYERS - 1), row = 1 + made_below(7);
		int which = (int)made_below(2);
		struct saved_cache *damaged;
		struct bytes_file file;
		memcpy(bytes, kept, count);
		damage_row(bytes, &plain->parts[0].layers[layer].tensor[which],
		        &other->parts[0].layers[layer].tensor[which], row, times);
		file = bytes_file_new(bytes, count);
		assert_int_equal(saved_open(&damaged, file.path, &options, &error), 0);
		found += strcmp(diff_of(damaged, other)->verdict, "row_changed") == 0;
		diff_of(NULL, NULL);
		saved_close(damaged);
		close(file.descriptor);
	}
	saved_close(plain);
	saved_close(other);
	free(bytes);
	free(kept);
	return (double)found / trials;
}

/* docs/diff.md quotes these shares. */
static void a_damaged_row_stands_out_of_drift(void **state)
{
	static const char *const others[] = { "smol-seq-f16-vt.bin", "smol-seq-q8.bin" };
	static const double times[] = { 0, 2, 4, 6, 8, 12, 20 };

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		printf("%s: found", others[i]);
		for (size_t j = 0; j < sizeof(times) / sizeof(times[0]); j++) {
			double share = share_found(others[i], times[j], times[j] == 0 ? 1 : TRIALS);
			printf(" %g: %.0f %%", times[j], 100 * share);
			if (times[j] == 0)
				assert_true(share == 0);
			if (times[j] >= 20)
				assert_true(share >= 0.95);
		}
		printf("\n");
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_was_done_is_named),
		cmocka_unit_test(cells_may_lie_in_any_order),
		cmocka_unit_test(a_row_may_drift_as_a_whole),
		cmocka_unit_test(unlike_caches_do_no_harm),
		cmocka_unit_test(a_damaged_row_stands_out_of_drift),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
