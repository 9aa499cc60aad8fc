/*
 * Goal: llama.cpp state files that are cut or damaged are refused with one clear error, and never
 * read past their end or believed in a count. Method: real files of every kind cut at every byte,
 * and each field of their headers set to 0, 1, the largest value, one more, one less and with a
 * flipped bit; the rows of what still opens are all read. What whole files must give is compared by
 * check_llamacpp_files.py.
 */
#include "saved_world.h"
#include "snapshot/llamacpp_scan.h"

#include <sys/resource.h>

#define DATA "data/llamacpp/"

/* Of each build and kind one: the smallest. */
static const char *const kinds[] = { "tl-seq-q4.bin", "tl-seq-mla.bin", "tl-seq-2stream-s1.bin",
	"tl-b9538-seq-mrope.bin", "tl-b5129-ctx-vt.bin", "tl-ctx-swa.bin", "tl-seq-jamba.bin",
	"tl-seq-mamba.bin", "tl-blob-f16.bin", "tl-seq-f16-vt.bin" };
#define KIND_COUNT (sizeof(kinds) / sizeof(kinds[0]))

static unsigned char *read_kind(size_t kind, size_t *bytes_out)
{
	char path[128];

	snprintf(path, sizeof(path), DATA "%s", kinds[kind]);
	return read_whole(path, bytes_out);
}

/* Opens these bytes and reads all rows. NULL if they were taken, else the error. */
static const struct saved_error *refusal(const unsigned char *bytes, size_t count)
{
	static struct saved_error error;
	struct bytes_file file = bytes_file_new(bytes, count);
	struct saved_cache *cache;

	memset(&error, 0, sizeof(error));
	if (saved_open(&cache, file.path, NULL, &error)) {
		close(file.descriptor);
		return &error;
	}
	read_every_row(cache);
	saved_close(cache);
	close(file.descriptor);
	return NULL;
}

/* Where an error must be complete: slug with an entry, kind, field, a place inside the file. */
static void assert_complete(const struct saved_error *error, size_t file_bytes)
{
	assert_non_null(error->slug);
	assert_non_null(error->kind);
	assert_int_not_equal(error->field[0], '\0');
	assert_true(error->offset >= 0 && (size_t)error->offset <= file_bytes);
	assert_null(strchr(error->message, '\n'));
	assert_null(strchr(error->message, '{'));
}

/* At every byte of the first two, and of the first headers of some; else here and there. */
static void a_file_cut_anywhere_is_refused(void **state)
{
	(void)state;
	for (size_t kind = 0; kind < KIND_COUNT; kind++) {
		size_t count, taken = 0;
		unsigned char *bytes = read_kind(kind, &count);
		assert_null(refusal(bytes, count));
		for (size_t cut = 0; cut < count;
		        cut += kind < 2 || (kind < 6 && cut < 300) ? 1 : 61) {
			const struct saved_error *error = refusal(bytes, cut);
			if (error)
				assert_complete(error, cut);
			else
				taken++;
		}
		/* Between two sections a file is whole: after all K (then there is no V), after the
		 * base cache, after the KV cache of a hybrid, between records of recurrent state. */
		if (taken > 3)
			fail_msg("%s: %zu cuts were taken for whole files", kinds[kind], taken);
		free(bytes);
	}
}

static void a_cut_in_the_rows_is_called_that(void **state)
{
	(void)state;
	size_t count;
	unsigned char *bytes = read_kind(9, &count);
	const struct saved_error *error = refusal(bytes, 3500);
	assert_non_null(error);
	assert_string_equal(error->slug, "snapshot-truncated");
	assert_string_equal(error->field, "V");
	assert_int_equal(error->offset, 3500);
	assert_string_equal(strstr(error->message, "1024"),
	        "1024 bytes of layer 1 are needed at 3276, 224 are left");
	free(bytes);
}

/* ---- fields ---- */

static size_t list_fields(struct llama_scan *scan, const char *path)
{
	struct saved_error error;
	struct saved_file *file;
	struct llama_shape shape;
	unsigned char head[8];

	assert_int_equal(saved_file_open(&file, path, &error), 0);
	assert_int_equal(saved_file_read(file, 0, 8, head, "head", &error), 0);
	scan->file = file;
	scan->container = head[0] == 0xd8 ? LLAMA_BLOB : head[0] == 'n' ? LLAMA_CTX : LLAMA_SEQ;
	scan->version = head[4];
	for (size_t i = 0; llama_shape_at(&shape, scan->container, scan->version, i); i++)
		if (llama_scan_shape(scan, &shape))
			break;
	saved_file_close(file);
	llama_layout_free(&scan->layout);
	return scan->field_count;
}

static void put_field(unsigned char *bytes, const struct llama_field *field, uint64_t value)
{
	for (uint32_t i = 0; i < field->width; i++)
		bytes[field->offset + i] = (unsigned char)(value >> 8 * i);
}

static bool is_count(const char *name)
{
	return strstr(name, "n_") == name || strcmp(name, "cell_count") == 0;
}

/* Damage that must not go unseen: any other value of a count, a type or a size. */
static void damage_field(
        unsigned char *bytes, size_t count, const struct llama_field *field, const char *file)
{
	const uint64_t values[] = { 0, 1, field->width == 8 ? UINT64_MAX : UINT32_MAX,
		field->value + 1, field->value - 1, field->value ^ 0x10000 };
	/* Two layers without V cannot be told from one with V, nor how many records of recurrent state
	 * there must be or of what type they are, nor the type of an only layer. */
	bool is_recurrent =
	        strcmp(file, "tl-seq-jamba.bin") == 0 || strcmp(file, "tl-seq-mamba.bin") == 0;
	bool is_exempt = strcmp(field->name, "n_layer") == 0
	                         ? is_recurrent || strcmp(file, "tl-seq-mla.bin") == 0
	                         : is_recurrent && strstr(field->name, ".type");
	bool must_be_seen = !is_exempt && (is_count(field->name) || strchr(field->name, '.'));

	for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
		const struct saved_error *error;
		if (values[i] == field->value)
			continue;
		put_field(bytes, field, values[i]);
		error = refusal(bytes, count);
		if (error)
			assert_complete(error, count);
		else if (must_be_seen)
			fail_msg("%s: %s at %llu was %llu, %llu is taken", file, field->name,
			        (unsigned long long)field->offset, (unsigned long long)field->value,
			        (unsigned long long)values[i]);
	}
	put_field(bytes, field, field->value);
}

static void each_field_damaged_is_refused(void **state)
{
	(void)state;
	for (size_t kind = 0; kind < KIND_COUNT; kind += kind < 3 ? 1 : 2) {
		struct llama_scan *scan = calloc(1, sizeof(*scan));
		size_t count, fields;
		unsigned char *bytes = read_kind(kind, &count);
		char path[128];
		snprintf(path, sizeof(path), DATA "%s", kinds[kind]);
		assert_non_null(scan);
		fields = list_fields(scan, path);
		assert_true(fields > 10);
		for (size_t i = 0; i < fields; i++)
			damage_field(bytes, count, &scan->fields[i], kinds[kind]);
		free(bytes);
		free(scan);
	}
}

/* The address space of what the damaged files above made us allocate. */
static void memory_stays_small(void **state)
{
	(void)state;
	struct rusage usage;
	assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
#ifndef __SANITIZE_ADDRESS__
	assert_in_range(usage.ru_maxrss, 1, 64 * 1024); /* KiB */
#endif
}

/* ---- whole files ---- */

static struct saved_cache *open_file(const char *name, const struct saved_options *options)
{
	char path[128];

	snprintf(path, sizeof(path), DATA "%s", name);
	return open_with(path, options);
}

static void transposed_v_has_the_values_of_plain_v(void **state)
{
	(void)state;
	struct saved_cache *plain = open_file("tl-seq-f16.bin", NULL);
	struct saved_cache *turned = open_file("tl-seq-f16-vt.bin", NULL);
	struct saved_error error;
	float a[8 * 64], b[8 * 64], part[3 * 64];
	const struct saved_tensor *v = &turned->parts[0].layers[0].tensor[SAVED_V];
	assert_int_equal(v->plane.element_stride, 16);
	assert_int_equal(
	        saved_read_values(&plain->parts[0].layers[0].tensor[SAVED_V], 0, 8, a, &error), 0);
	assert_int_equal(saved_read_values(v, 0, 8, b, &error), 0);
	assert_memory_equal(a, b, sizeof(a)); /* layer 0 does not depend on flash attention */
	assert_int_equal(saved_read_values(v, 4, 3, part, &error), 0);
	assert_memory_equal(part, a + 4 * 64, sizeof(part));
	saved_close(plain);
	saved_close(turned);
}

static void heads_split_the_rows(void **state)
{
	(void)state;
	const struct saved_options options = { .heads = 2 };
	struct saved_cache *whole = open_file("tl-seq-q8.bin", NULL);
	struct saved_cache *split = open_file("tl-seq-q8.bin", &options);
	const struct saved_tensor *k = &split->parts[0].layers[1].tensor[SAVED_K];
	struct saved_error error;
	float a[8 * 64], b[8 * 64];
	assert_int_equal(k->heads, 2);
	assert_int_equal(k->dim, 32);
	assert_int_equal(saved_row_bytes(k), 68);
	assert_int_equal(saved_offset(k, 0, 1, 0) - saved_offset(k, 0, 0, 0), 34);
	assert_int_equal(
	        saved_read_values(&whole->parts[0].layers[1].tensor[SAVED_K], 0, 8, a, &error), 0);
	assert_int_equal(saved_read_values(k, 0, 8, b, &error), 0);
	assert_memory_equal(a, b, sizeof(a));
	saved_close(whole);
	saved_close(split);
}

/* Positions are indexes of the token list, or ranks in it where some were removed. */
static void tokens_belong_to_their_cells(void **state)
{
	(void)state;
	static const struct {
		const char *file;
		int64_t tokens[11];
	} cases[] = {
		{ "tl-seq-f16.bin", { 5, 17, 5, 42, 9, 17, 5, 63 } },
		{ "tl-seq-hole.bin", { 5, 17, 9, 17, 5, 63 } },
		{ "tl-seq-reordered.bin", { 17, 5, 63, 5, 17, 5, 42, 9 } },
		{ "tl-seq-shift.bin", { 5, 17, 17, 9, 17, 5, 63 } },
		{ "tl-seq-onemore.bin", { 5, 17, 5, 42, 9, 17, 5, 63 } },
		{ "tl-ctx-2seq.bin", { 5, 17, 5, 42, 9, 17, 5, 63, -1, -1, -1 } },
		{ "tl-seq-f16.pos.bin", { 5, 17, 5, 42, 17, 17, 5, 63 } },
		{ "tl-seq-f16.pos-last.bin", { 5, 17, 5, 42, 9, 17, 5, 63 } },
		{ "tl-b5129-seq.bin", { 5, 17, 5, 42, 9, 17, 5, 63 } },
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct saved_cache *cache = open_file(cases[i].file, NULL);
		for (int64_t row = 0; row < cache->parts[0].row_count; row++)
			if (cache->parts[0].tokens[row] != cases[i].tokens[row])
				fail_msg("%s: row %lld has token %lld", cases[i].file,
				        (long long)row, (long long)cache->parts[0].tokens[row]);
		saved_close(cache);
	}
	struct saved_cache *window = open_file("tl-seq-swa.bin", NULL);
	assert_int_equal(window->parts[1].positions[0], 6);
	assert_int_equal(window->parts[1].tokens[0], 5);
	saved_close(window);
}

static void layers_of_windows_have_the_models_numbers(void **state)
{
	(void)state;
	struct saved_cache *context = open_file("tl-ctx-swa.bin", NULL);
	struct saved_cache *sequence = open_file("tl-seq-swa.bin", NULL);
	assert_true(context->parts[0].layers[1].number_is_known);
	assert_int_equal(context->parts[0].layers[1].number, 3);
	assert_int_equal(context->parts[1].layers[1].number, 2);
	assert_false(sequence->parts[0].layers[1].number_is_known);
	assert_int_equal(sequence->parts[0].layers[1].number, 1);
	saved_close(context);
	saved_close(sequence);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_file_cut_anywhere_is_refused),
		cmocka_unit_test(a_cut_in_the_rows_is_called_that),
		cmocka_unit_test(each_field_damaged_is_refused),
		cmocka_unit_test(memory_stays_small),
		cmocka_unit_test(transposed_v_has_the_values_of_plain_v),
		cmocka_unit_test(heads_split_the_rows),
		cmocka_unit_test(tokens_belong_to_their_cells),
		cmocka_unit_test(layers_of_windows_have_the_models_numbers),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
