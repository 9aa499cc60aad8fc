/*
 * Goal: raw pages are read as their manifest says, in every layout of the engines, and a manifest or
 * page that is wrong is refused with its field. Method: one set of values written out in each layout
 * by the test's own loops must read back as the same rows; damaged manifests; directories without.
 */
#include "saved_world.h"

#include <ftw.h>
#include <sys/stat.h>

enum { LAYERS = 3, ROWS = 4, HEADS = 2, DIM = 4, PAGES = 3 };

static struct saved_error error;
static char folder[] = "/tmp/kvcanary-pages-XXXXXX";

static void write_file(const char *name, const void *bytes, size_t count)
{
	char path[256];

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	FILE *file = fopen(path, "wb");
	if (!file)
		fail_msg("%s is not written", path);
	assert_int_equal(fwrite(bytes, 1, count, file), count);
	fclose(file);
}

static const char *write_manifest(const char *text)
{
	static char path[256];

	write_file("pages.json", text, strlen(text));
	snprintf(path, sizeof(path), "%s/pages.json", folder);
	return path;
}

/* The value of an element, the same in every layout; exact in float32. */
static float element(int64_t which, int64_t layer, int64_t row, int64_t head, int64_t dim)
{
	return (float)((((which * 10 + layer) * 100 + row) * 10 + head) * 10 + dim);
}

/* Page 'page' with the axes from the outermost on. */
static size_t fill_page(float *out, const char *axes, int64_t page, int64_t rows)
{
	int64_t sizes[5], index[5] = { 0 };
	size_t count = 1;

	for (int i = 0; i < 5; i++) {
		sizes[i] = axes[i] == 'c'   ? 2
		           : axes[i] == 'l' ? LAYERS
		           : axes[i] == 't' ? rows
		           : axes[i] == 'h' ? HEADS
		                            : DIM;
		count *= (size_t)sizes[i];
	}
	for (size_t at = 0; at < count; at++) {
		int64_t of[128] = { 0 };
		for (int i = 0; i < 5; i++)
			of[(int)axes[i]] = index[i];
		out[at] = element(of['c'], of['l'], page * ROWS + of['t'], of['h'], of['d']);
		for (int i = 4; i >= 0 && ++index[i] == sizes[i]; i--)
			index[i] = 0;
	}
	return count * sizeof(float);
}

/* Row by row, all rows of a part, from position 'first' on. */
static void expect_part(const struct saved_part *part, int64_t first)
{
	assert_int_equal(part->layer_count, LAYERS);
	for (int64_t l = 0; l < LAYERS; l++)
		for (int which = 0; which < 2; which++) {
			const struct saved_tensor *tensor = &part->layers[l].tensor[which];
			float values[PAGES * ROWS * HEADS * DIM];
			assert_int_equal(
			        saved_read_values(tensor, 0, part->row_count, values, &error), 0);
			for (int64_t r = 0; r < part->row_count; r++)
				for (int64_t h = 0; h < HEADS; h++)
					for (int64_t d = 0; d < DIM; d++)
						assert_true(values[(r * HEADS + h) * DIM + d] ==
						            element(which, l, first + r, h, d));
			assert_int_equal(saved_position(part, 0), first);
		}
}

#define SMALL "\"kvc.pages\":1,\"dtype\":\"F32\",\"layers\":3,\"kv_heads\":2,\"head_dim\":4"
#define GEOMETRY SMALL ",\"page_rows\":4"

static void every_layout_reads_the_same(void **state)
{
	static const char *const layouts[][2] = {
		{ "layer_first", "clthd" },
		{ "page_first", "ctlhd" },
		{ "page_first_direct", "clthd" },
		{ "page_head", "chtld" },
		{ "split_nhd", "lcthd" },
		{ "split_hnd", "lchtd" },
		{ "packed_nhd", "lthcd" },
		{ "packed_hnd", "lhtcd" },
		{ "KV_2LTD", "clthd" },
		{ "dhltc", "dhltc" },
	};
	float page[1024];

	(void)state;
	for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++) {
		char text[512], name[16];
		for (int64_t p = 0; p < PAGES; p++) {
			size_t bytes = fill_page(page, layouts[i][1], p, ROWS);
			snprintf(name, sizeof(name), "%c.bin", (char)('a' + p));
			write_file(name, page, bytes);
		}
		snprintf(text, sizeof(text),
		        "{" GEOMETRY ",\"layout\":\"%s\",\"pages\":[\"a.bin\",\"b.bin\",\"c.bin\"],"
		        "\"tokens\":[9,8,7,6,5,4,3,2,1,0,1,2]}",
		        layouts[i][0]);
		struct saved_cache *cache = open_with(write_manifest(text), NULL);
		const struct saved_tensor *v = &cache->parts[0].layers[1].tensor[SAVED_V];
		assert_string_equal(cache->format, "pages");
		assert_int_equal(cache->part_count, 1);
		assert_int_equal(cache->parts[0].row_count, PAGES * ROWS);
		assert_int_equal(cache->parts[0].tokens[3], 6);
		assert_int_equal(cache->file_bytes, 3 * 2 * LAYERS * ROWS * HEADS * DIM * 4);
		expect_part(&cache->parts[0], 0);
		if (i == 0) /* [2, L, P, H, D]: V of layer 1, row 5 (row 1 of page 1), head 1 */
			assert_int_equal(saved_offset(v, 5, 1, 2),
			        4 * ((((1 * LAYERS + 1) * ROWS + 1) * HEADS + 1) * DIM + 2));
		saved_close(cache);
	}
}

/* Blocks of one file, padding between layers, slack behind them, a short last page. */
static void offsets_padding_and_a_short_page(void **state)
{
	enum {
		LAYER = ROWS * HEADS * 2 * DIM,
		PADDED = LAYER + 8,
		BLOCK = 16 + LAYERS * PADDED + 5
	};
	static float file[2 * BLOCK + 1024], page[1024];
	char text[768];
	size_t tail;

	(void)state;
	for (int64_t p = 0; p < 2; p++) {
		fill_page(page, "lthcd", p, ROWS);
		for (int64_t l = 0; l < LAYERS; l++)
			memcpy(file + p * BLOCK + 16 + l * PADDED, page + l * LAYER,
			        LAYER * sizeof(float));
	}
	write_file("blocks.bin", file, 2 * BLOCK * sizeof(float));
	snprintf(text, sizeof(text),
	        "{" GEOMETRY ",\"layout\":\"packed_nhd\",\"offset\":64,\"layer_bytes\":%d,"
	        "\"pages\":[\"blocks.bin\",{\"file\":\"blocks.bin\",\"offset\":%d}]}",
	        4 * PADDED, 4 * BLOCK);
	struct saved_cache *cache = open_with(write_manifest(text), NULL);
	expect_part(&cache->parts[0], 0);
	assert_int_equal(cache->file_bytes, 2 * BLOCK * sizeof(float));
	saved_close(cache);

	fill_page(page, "clthd", 0, ROWS);
	write_file("a.bin", page, fill_page(page, "clthd", 0, ROWS));
	tail = fill_page(page, "clthd", 1, 3);
	write_file("b.bin", page, tail);
	cache = open_with(
	        write_manifest("{" GEOMETRY ",\"layout\":\"KV_2LTD\",\"pages\":[\"a.bin\","
	                       "{\"file\":\"b.bin\",\"rows\":3}]}"),
	        NULL);
	assert_int_equal(cache->part_count, 2);
	assert_string_equal(cache->parts[1].name, "pages");
	assert_int_equal(cache->parts[1].row_count, 3);
	expect_part(&cache->parts[0], 0);
	expect_part(&cache->parts[1], ROWS);
	saved_close(cache);
}

/* Groups with the same rows are one cache, so that it can be compared with one that has no groups. */
static void groups_are_layers_of_one_cache(void **state)
{
	static float page[1024];
	size_t bytes = fill_page(page, "lcthd", 0, ROWS);

	(void)state;
	write_file("a.bin", page, bytes);
	struct saved_cache *cache = open_with(
	        write_manifest("{\"kvc.pages\":1,\"dtype\":\"F32\",\"kv_heads\":2,\"head_dim\":4,"
	                       "\"layout\":\"split_nhd\",\"page_rows\":4,\"pages\":[\"a.bin\"],"
	                       "\"rope\":{\"base\":1e4,\"style\":\"interleaved\"},\"model\":\"m\","
	                       "\"groups\":[{\"layers\":[0,5]},{\"layers\":[2],\"offset\":512}]}"),
	        NULL);
	assert_int_equal(cache->part_count, 1);
	assert_int_equal(cache->parts[0].layer_count, 3);
	assert_int_equal(cache->parts[0].layers[1].number, 2);
	assert_int_equal(cache->parts[0].layers[2].number, 5);
	assert_true(cache->rope.base == 1e4 && cache->rope.interleaved);
	assert_string_equal(cache->identity[0].value, "m");
	assert_int_equal(
	        saved_offset(&cache->parts[0].layers[1].tensor[1], 1, 0, 0), 512 + 128 + 32);
	assert_int_equal(
	        saved_offset(&cache->parts[0].layers[2].tensor[1], 1, 0, 0), 256 + 128 + 32);
	saved_close(cache);
}

/* Not where their pages have other numbers of rows, or both have a layer 0. */
static void groups_of_other_rows_are_parts(void **state)
{
	static const char *const seconds[] = { "{\"layers\":[2],\"page_rows\":2}",
		"{\"layers\":1,\"offset\":512}" };
	static float page[1024];
	size_t bytes = fill_page(page, "lcthd", 0, ROWS);
	char text[512];

	(void)state;
	write_file("a.bin", page, bytes);
	for (int i = 0; i < 2; i++) {
		struct saved_cache *cache;
		snprintf(text, sizeof(text),
		        "{\"kvc.pages\":1,\"dtype\":\"F32\",\"kv_heads\":2,\"head_dim\":4,"
		        "\"layout\":\"split_nhd\",\"page_rows\":4,\"pages\":[\"a.bin\"],"
		        "\"groups\":[{\"layers\":[0]},%s]}",
		        seconds[i]);
		cache = open_with(write_manifest(text), NULL);
		assert_int_equal(cache->part_count, 2);
		assert_int_equal(cache->parts[1].stream, 1);
		assert_int_equal(cache->parts[1].row_count, i == 0 ? 2 : 4);
		saved_close(cache);
	}
}

static void a_wrong_manifest_is_refused(void **state)
{
	const struct saved_options as_pages = { .format = "pages" };
	static const struct {
		const char *text, *kind, *field;
	} cases[] = {
		{ "{\"kvc.pages\":2}", "manifest", "kvc.pages" },
		{ "{\"kvc.pages\":1}", "manifest", "head_dim" },
		{ "{" GEOMETRY "}", "manifest", "layout" },
		{ "{" GEOMETRY ",\"layout\":\"layer_first\"}", "manifest", "pages" },
		{ "{" GEOMETRY ",\"page_rows\":4}", "manifest", "page_rows" },
		{ "{" GEOMETRY ",\"layers\":3}", "manifest", "layers" },
		{ "{" GEOMETRY ",\"dtype\":\"F32\"}", "manifest", "dtype" },
		{ "{\"dtype\":\"F4\"}", "manifest", "dtype" },
		{ "{\"page_rows\":-1}", "manifest", "page_rows" },
		{ "{\"page_rows\":2000000000000}", "manifest", "page_rows" },
		{ "{\"layers\":4097}", "manifest", "layers" },
		{ "{\"layers\":[]}", "manifest", "layers" },
		{ "{" GEOMETRY ",\"layout\":\"ctd\",\"pages\":[\"a.bin\"]}", "manifest", "layout" },
		{ "{" GEOMETRY ",\"layout\":\"cclthd\"}", "manifest", "layout" },
		{ "{" GEOMETRY ",\"layout\":\"other\"}", "manifest", "layout" },
		{ "{" GEOMETRY ",\"colour\":1}", "manifest", "manifest" },
		{ "{\"page_rows\":1099511627776,\"layout\":\"clthd\",\"dtype\":\"U8\","
		  "\"head_dim\":1099511627776,\"pages\":[\"a.bin\"]}",
		        "manifest", "layout" },
		{ "{" SMALL ",\"page_rows\":5000000,\"layout\":\"clthd\",\"pages\":[\"a.bin\"]}",
		        "count_too_large", "pages" },
		{ "{" SMALL ",\"layout\":\"clthd\",\"pages\":[\"a.bin\"],\"page_rows\":5}",
		        "truncated", "page" },
		{ "{" GEOMETRY
		  ",\"layout\":\"clthd\",\"pages\":[{\"file\":\"a.bin\",\"offset\":1}]}",
		        "truncated", "page" },
		{ "{" GEOMETRY ",\"layout\":\"clthd\","
		  "\"pages\":[{\"file\":\"a.bin\",\"offset\":9223372036854775807}]}",
		        "truncated", "page" },
		{ "{" GEOMETRY ",\"layout\":\"clthd\",\"pages\":[{\"file\":\"a.bin\",\"rows\":2},"
		  "\"a.bin\"]}",
		        "manifest", "pages.rows" },
		{ "{" GEOMETRY ",\"layout\":\"clthd\",\"pages\":[{\"offset\":0}]}", "manifest",
		        "pages.file" },
		{ "{" GEOMETRY ",\"layout\":\"clthd\",\"pages\":[\"a.bin\"],\"tokens\":[1,2,3]}",
		        "manifest", "tokens" },
		{ "{" GEOMETRY ",\"layout\":\"clthd\",\"pages\":[\"a.bin\"],\"positions\":[1]}",
		        "manifest", "positions" },
		{ "{" GEOMETRY ",\"layout\":\"clthd\",\"pages\":[\"a.bin\"],\"layer_bytes\":8}",
		        "manifest", "layout" },
		{ "{" GEOMETRY ",\"layout\":\"clthd\",\"pages\":[\"none.bin\"]}", "unreadable",
		        "" },
		{ "{" GEOMETRY ",\"rope\":{\"base\":0}}", "manifest", "rope.base" },
		{ "{" GEOMETRY ",\"rope\":{\"style\":\"x\"}}", "manifest", "rope.style" },
		{ "{" GEOMETRY ",\"groups\":[{\"colour\":1}]}", "manifest", "groups" },
		{ "{" GEOMETRY ",\"what\":\"a\",\"what\":\"a\"}", "manifest", "what" },
		{ "{" GEOMETRY ",}", "json", "manifest" },
	};
	float page[1024];

	(void)state;
	write_file("a.bin", page, fill_page(page, "clthd", 0, ROWS));
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct saved_cache *cache;
		if (saved_open(&cache, write_manifest(cases[i].text), &as_pages, &error) == 0)
			fail_msg("read: %s", cases[i].text);
		if (strcmp(error.kind, cases[i].kind) != 0 ||
		        strcmp(error.field, cases[i].field) != 0)
			fail_msg("%s '%s' (%s): %s", error.kind, error.field, error.message,
			        cases[i].text);
	}
}

/* ---- directories ---- */

static const struct saved_note *note_of(const struct saved_cache *cache, const char *kind)
{
	for (int64_t i = 0; i < cache->note_count; i++)
		if (strcmp(cache->notes[i].kind, kind) == 0)
			return &cache->notes[i];
	fail_msg("no note '%s'", kind);
	return NULL;
}

#define KEY "0123456789abcdef0123456789abcde"

static void a_hicache_directory_tells_sizes(void **state)
{
	char below[512];
	struct saved_options options = { 0 };
	float page[1024];
	size_t bytes = fill_page(page, "chtld", 0, ROWS);
	struct saved_cache *cache;

	(void)state;
	snprintf(below, sizeof(below), "%s/hicache", folder);
	mkdir(below, 0777);
	write_file("hicache/" KEY "1_org-model_0_2.bin", page, bytes);
	write_file("hicache/" KEY "2_org-model_0_2.bin", page, bytes);
	cache = open_with(below, NULL);
	assert_string_equal(cache->format, "hicache");
	assert_int_equal(cache->part_count, 0);
	assert_int_equal(cache->file_bytes, 2 * bytes);
	assert_false(note_of(cache, "no_manifest")->damage);
	assert_string_equal(
	        note_of(cache, "pages")->text, "2 pages of 768 bytes: _org-model_0_2.bin");
	assert_int_equal(cache->note_count, 2);
	saved_close(cache);

	write_file("hicache/" KEY "3_org-model_0_2.bin", page, bytes - 4);
	write_file("hicache/" KEY "4_org-model_0_2.bin.tmp.1.2.3", page, 8);
	cache = open_with(below, NULL);
	assert_true(note_of(cache, "page_size")->damage);
	assert_false(note_of(cache, "leftover")->damage);
	saved_close(cache);

	char manifest[256];
	snprintf(manifest, sizeof(manifest), "%s",
	        write_manifest("{" GEOMETRY ",\"layout\":\"page_head\",\"pages\":[\"" KEY
	                       "1_org-model_0_2.bin\"]}"));
	options.manifest = manifest;
	cache = open_with(below, &options);
	assert_string_equal(cache->format, "pages");
	expect_part(&cache->parts[0], 0);
	saved_close(cache);
}

static void a_vllm_directory_tells_places(void **state)
{
	static const char *const folders[] = { "fs", "fs/0a1", "fs/0a1/b2_g0", "fs/0a1/b2_g1" };
	char below[512];
	struct saved_cache *cache;

	(void)state;
	for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++) {
		snprintf(below, sizeof(below), "%s/%s", folder, folders[i]);
		mkdir(below, 0777);
	}
	write_file("fs/0a1/b2_g0/0a1b2ccc.bin", "12345678", 8);
	write_file("fs/0a1/b2_g0/0a1b2ddd.bin", "12345678", 8);
	write_file("fs/0a1/b2_g1/0a1b2ccc.bin", "1234", 4);
	snprintf(below, sizeof(below), "%s/fs", folder);
	cache = open_with(below, NULL);
	assert_string_equal(cache->format, "vllm-fs");
	assert_int_equal(cache->file_bytes, 20);
	assert_int_equal(cache->note_count, 3);
	saved_close(cache);
	write_file("fs/0a1/b2_g1/0a1b3ccc.bin", "1234", 4);
	write_file("fs/0a1/b2_g1/0a1b2eee.bin", "", 0);
	cache = open_with(below, NULL);
	assert_true(note_of(cache, "misplaced")->damage);
	assert_true(note_of(cache, "page_size")->damage);
	saved_close(cache);
}

static int make_folder(void **state)
{
	(void)state;
	return mkdtemp(folder) ? 0 : -1;
}

static int remove_entry(const char *path, const struct stat *status, int type, struct FTW *walk)
{
	(void)status;
	(void)type;
	(void)walk;
	return remove(path);
}

static int remove_folder(void **state)
{
	(void)state;
	return nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_layout_reads_the_same),
		cmocka_unit_test(offsets_padding_and_a_short_page),
		cmocka_unit_test(groups_are_layers_of_one_cache),
		cmocka_unit_test(groups_of_other_rows_are_parts),
		cmocka_unit_test(a_wrong_manifest_is_refused),
		cmocka_unit_test(a_hicache_directory_tells_sizes),
		cmocka_unit_test(a_vllm_directory_tells_places),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
