/*
 * Goal: a safetensors file is read by every rule of the format or refused with the kind of the
 * fault, its field and its place; no bytes make the reader crash or read past what it has. Method:
 * every file of data/safetensors with what its manifest says, those files cut at every byte and with
 * every byte of the header damaged, headers of 100 MB in bounded memory.
 */
#include "snapshot/safetensors.h"

#include "saved_world.h"

#include <sys/resource.h>
#include <sys/wait.h>

/* ---- the manifest ---- */

static void expect_refusal(const char *name, json_t *finding, const struct saved_error *error)
{
	const char *kind = json_string_value(json_object_get(finding, "kind"));
	json_t *field = json_object_get(finding, "field"),
	       *offset = json_object_get(finding, "offset");

	if (strcmp(error->kind, kind) != 0 ||
	        (field && strcmp(error->field, json_string_value(field)) != 0) ||
	        (offset && error->offset != json_integer_value(offset)))
		fail_msg("%s: %s at '%s', %lld; expected %s: %s", name, error->kind, error->field,
		        (long long)error->offset, json_dumps(finding, 0), error->message);
	assert_non_null(strstr(error->path, name));
	assert_int_equal(strncmp(error->slug, "snapshot-", 9), 0);
}

static const struct saved_note *find_note(const struct saved_cache *cache, const char *kind)
{
	for (int64_t i = 0; i < cache->note_count; i++)
		if (strcmp(cache->notes[i].kind, kind) == 0)
			return &cache->notes[i];
	return NULL;
}

/* What the manifest knows of a sound file. */
static void expect_rows(const char *name, json_t *file, const struct saved_cache *cache)
{
	const struct saved_part *part = &cache->parts[0];
	json_t *rows = json_object_get(file, "valid_rows");
	json_t *positions = json_object_get(file, "position_of_row");
	json_t *tokens = json_object_get(file, "tokens");

	if (cache->part_count < 1 || (rows && part->row_count != json_integer_value(rows)))
		fail_msg("%s: %lld parts, %lld rows", name, (long long)cache->part_count,
		        (long long)part->row_count);
	for (size_t i = 0; i < json_array_size(positions); i++)
		assert_int_equal(saved_position(part, (int64_t)i),
		        json_integer_value(json_array_get(positions, i)));
	if (strncmp(name, "tr-hf", 5) != 0 || !tokens)
		return; /* mlx-lm does not store tokens */
	assert_int_equal(cache->token_count, json_array_size(tokens));
	for (size_t i = 0; i < json_array_size(tokens); i++)
		assert_int_equal(part->tokens[i], json_integer_value(json_array_get(tokens, i)));
}

static void check_file(json_t *file)
{
	const char *name = json_string_value(json_object_get(file, "file"));
	json_t *check = json_object_get(json_object_get(file, "expect"), "check");
	json_t *finding = json_array_get(json_object_get(check, "findings"), 0);
	json_int_t exit_code = json_integer_value(json_object_get(check, "exit"));
	bool is_fault = strcmp(json_string_value(json_object_get(file, "role")), "fault") == 0;
	static struct saved_error error;
	struct saved_cache *cache;
	char path[256];
	int64_t damage = 0;

	snprintf(path, sizeof(path), SAFETENSORS_DATA "%s", name);
	if (saved_open(&cache, path, NULL, &error)) {
		if (exit_code != 2)
			fail_msg("%s: refused: %s", name, error.message);
		expect_refusal(name, finding, &error);
		return;
	}
	if (exit_code == 2)
		fail_msg("%s: read, but %s", name, json_dumps(finding, 0));
	for (int64_t i = 0; i < cache->note_count; i++)
		damage += cache->notes[i].damage;
	if (!is_fault) {
		assert_int_equal(damage, exit_code == 1);
		assert_true(!damage ||
		            find_note(cache, json_string_value(json_object_get(finding, "kind"))));
	}
	expect_rows(name, file, cache);
	read_every_row(cache);
	saved_close(cache);
}

static void every_file_is_as_the_manifest_says(void **state)
{
	json_t *manifest = load_manifest(SAFETENSORS_DATA "manifest.json");
	json_t *files = json_object_get(manifest, "files"), *file;
	size_t i;

	(void)state;
	assert_int_equal(json_array_size(files), 88);
	json_array_foreach(files, i, file) check_file(file);
	json_decref(manifest);
}

/* ---- places ---- */

/* "layers.1.k" or "1.0" to the tensor. */
static const struct saved_tensor *named_tensor(const struct saved_cache *cache, const char *name)
{
	const char *dot = strrchr(name, '.');
	int which = strcmp(dot, ".v") == 0 || strcmp(dot, ".1") == 0;
	long layer = strtol(name + strcspn(name, "0123456789"), NULL, 10);

	return &cache->parts[0].layers[layer].tensor[which];
}

/* Of the element; the manifest's offset is that of the byte of it that was changed. */
static void offsets_are_those_of_the_manifest(void **state)
{
	json_t *manifest = load_manifest(SAFETENSORS_DATA "manifest.json"), *file;
	size_t i, places = 0;

	(void)state;
	json_array_foreach(json_object_get(manifest, "files"), i, file)
	{
		json_t *diff = json_object_get(json_object_get(file, "expect"), "diff");
		json_t *finding = json_array_get(json_object_get(diff, "findings"), 0);
		const char *tensor = json_string_value(json_object_get(finding, "tensor"));
		json_t *token = json_object_get(finding, "token");
		json_int_t byte = json_integer_value(json_object_get(finding, "bit")) / 8;
		if (!tensor || !token)
			continue;
		struct saved_cache *cache =
		        open_data(json_string_value(json_object_get(file, "file")));
		assert_int_equal(
		        saved_offset(named_tensor(cache, tensor), json_integer_value(token),
		                json_integer_value(json_object_get(finding, "head")),
		                json_integer_value(json_object_get(finding, "dim"))),
		        json_integer_value(json_object_get(finding, "offset")) - byte);
		saved_close(cache);
		places++;
	}
	assert_int_equal(places, 6);
	json_decref(manifest);
}

/* ---- damage ---- */

static const char *const whole_files[] = { "st-ok.safetensors", "st-ok-escape.safetensors",
	"st-ok-zero-size.safetensors", "st-ok-rank0.safetensors", "tr-hf.safetensors",
	"mlx-0.28.4-q8.safetensors", "mlx-0.28.4-rotating.safetensors",
	"mlx-0.32.2-rotating.safetensors",
	"st-vllm-new-model.layers.0.self_attn.attn.safetensors" };
#define WHOLE_COUNT (sizeof(whole_files) / sizeof(whole_files[0]))

static const struct saved_options as_safetensors = { .format = "safetensors" };

/* Refused with all that an error needs, or read with every row. */
static bool open_or_refuse(const char *path)
{
	static struct saved_error error;
	struct saved_cache *cache;

	if (saved_open(&cache, path, &as_safetensors, &error) == 0) {
		read_every_row(cache);
		saved_close(cache);
		return true;
	}
	assert_non_null(error.kind);
	assert_true(error.slug[0] && error.message[0] && error.path[0]);
	return false;
}

static void a_file_cut_at_any_byte_is_refused(void **state)
{
	(void)state;
	for (size_t f = 0; f < WHOLE_COUNT; f++) {
		char path[256];
		size_t bytes;
		snprintf(path, sizeof(path), SAFETENSORS_DATA "%s", whole_files[f]);
		unsigned char *data = read_whole(path, &bytes);
		struct bytes_file file = bytes_file_new(data, bytes);
		assert_true(open_or_refuse(file.path));
		for (size_t cut = bytes; cut-- > 0;) {
			assert_int_equal(ftruncate(file.descriptor, (off_t)cut), 0);
			if (open_or_refuse(file.path))
				fail_msg("%s cut to %zu bytes was read", path, cut);
		}
		close(file.descriptor);
		free(data);
	}
}

static void a_damaged_header_byte_is_refused_or_harmless(void **state)
{
	static const unsigned char masks[] = { 0x01, 0x02, 0x04, 0x10, 0x20, 0x80, 0xff };
	size_t refused = 0, tried = 0;

	(void)state;
	for (size_t f = 0; f < WHOLE_COUNT; f++) {
		char path[256];
		size_t bytes;
		snprintf(path, sizeof(path), SAFETENSORS_DATA "%s", whole_files[f]);
		unsigned char *data = read_whole(path, &bytes);
		struct bytes_file file = bytes_file_new(data, bytes);
		size_t header = 8 + data[0] + 256U * data[1];
		for (size_t i = 0; i < header; i++)
			for (size_t m = 0; m < sizeof(masks); m++) {
				unsigned char damaged = data[i] ^ masks[m];
				assert_int_equal(pwrite(file.descriptor, &damaged, 1, (off_t)i), 1);
				refused += !open_or_refuse(file.path);
				tried++;
				assert_int_equal(pwrite(file.descriptor, &data[i], 1, (off_t)i), 1);
			}
		assert_true(open_or_refuse(file.path));
		close(file.descriptor);
		free(data);
	}
	/* A letter of a name or of a string may change and leave a file that is sound. */
	assert_true(refused > tried / 2 && refused < tried);
}

/* ---- rules that no file of the data shows ---- */

struct text_case {
	const char *header;
	size_t data_bytes;
	const char *kind; /* NULL: it is read */
	const char *field;
};

#define TENSOR(name, rest) "\"" name "\":{\"dtype\":\"U8\"," rest "}"
#define K TENSOR("layers.0.k", "\"shape\":[1,1,1,2],\"data_offsets\":[0,2]")

static const struct text_case text_cases[] = {
	{ "{" K "}\n\t ", 2, NULL, NULL },
	{ "{" K ",\"__metadata__\":{}}", 2, NULL, NULL },
	{ "{" K ",\"__metadata__\":null}", 2, "metadata", "__metadata__" },
	{ "{" K ",\"__metadata__\":{\"a\":\"1\",\"\\u0061\":\"1\"}}", 2, "duplicate_key",
	        "__metadata__.a" },
	{ "{" K ",\"a\\u0000b\":{}}", 2, "json", "header" },
	{ "{" K "}{", 2, "json", "header" },
	{ "{" TENSOR("layers.0.k",
	          "\"shape\":[1,1,1,2],\"data_offsets\":[0,2],\"more\":[{\"x\":[1.5e3,"
	          "-2,true,false,null,\"y\"]}]") "}",
	        2, NULL, NULL },
	{ "{" TENSOR("layers.0.k", "\"shape\":[01,1,1,2],\"data_offsets\":[0,2]") "}", 2, "json",
	        "header" },
	{ "{" TENSOR("layers.0.k", "\"shape\":[1,1,1,-0],\"data_offsets\":[0,2]") "}", 2, "shape",
	        "layers.0.k.shape" },
	{ "{" TENSOR("layers.0.k", "\"shape\":[[1]],\"data_offsets\":[0,2]") "}", 2, "shape",
	        "layers.0.k.shape" },
	{ "{" TENSOR("layers.0.k", "\"shape\":2,\"data_offsets\":[0,2]") "}", 2, "shape",
	        "layers.0.k.shape" },
	{ "{" TENSOR("layers.0.k", "\"shape\":[1,1,1,2],\"data_offsets\":[0,2.0]") "}", 2,
	        "offsets", "layers.0.k.data_offsets" },
	{ "{" TENSOR("layers.0.k", "\"shape\":[1,1,1,2],\"data_offsets\":[0]") "}", 2, "offsets",
	        "layers.0.k.data_offsets" },
	{ "{" TENSOR("layers.0.k", "\"data_offsets\":[0,2]") "}", 2, "field_missing",
	        "layers.0.k.shape" },
	/* A product that overflows before a zero: the reference refuses that too. */
	{ "{" TENSOR(
	          "layers.0.k", "\"shape\":[4294967296,4294967296,0],\"data_offsets\":[0,0]") "}",
	        0, "shape_overflow", "layers.0.k.shape" },
	/* A tensor without bytes inside another one. */
	{ "{" K "," TENSOR("layers.0.v", "\"shape\":[1,1,0,2],\"data_offsets\":[1,1]") "}", 2,
	        "overlap", "layers.0.v.data_offsets" },
	{ "{\"\\uD83D\\uDE00\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2,
	        "no_cache", "" },
	/* No cache: rows without bytes, ranks, layers. */
	{ "{" TENSOR(
	          "layers.0.k", "\"shape\":[1,0,9000000000000000000,2],\"data_offsets\":[0,0]") "}",
	        0, "cache_shape", "layers.0.k" },
	{ "{" TENSOR("layers.4096.k", "\"shape\":[1,1,1,2],\"data_offsets\":[0,2]") "}", 2,
	        "cache_shape", "layers.4096.k" },
	{ "{" TENSOR("layers.0.k", "\"shape\":[1,1,2],\"data_offsets\":[0,2]") "}", 2, "ambiguous",
	        "layers.0.k" },
	{ "{" TENSOR("layers.0.v", "\"shape\":[1,1,1,2],\"data_offsets\":[0,2]") "}", 2,
	        "cache_shape", "layers.0.v" },
	{ "{" K ",\"__metadata__\":{\"kvc.schema\":\"cache 2\"}}", 2, "metadata",
	        "__metadata__.kvc.schema" },
	{ "{" K ",\"__metadata__\":{\"kvc.schema\":\"stamp 1\"}}", 2, "no_cache", "" },
	{ "{" K ",\"__metadata__\":{\"tokens\":\"1 2x\"}}", 2, "metadata", "__metadata__.tokens" },
	{ "{" K ",\"__metadata__\":{\"kvc.rope.base\":\"-1\"}}", 2, "metadata",
	        "__metadata__.kvc.rope.base" },
	{ "{" K ",\"__metadata__\":{\"rope_layout\":\"other\"}}", 2, "metadata",
	        "__metadata__.rope_layout" },
	{ "{" K ",\"__metadata__\":{\"kvc.block_size\":\"0\"}}", 2, "metadata",
	        "__metadata__.kvc.block_size" },
	{ "{" K ",\"__metadata__\":{\"kvc.layout\":\"dthb\"}}", 2, "metadata",
	        "__metadata__.kvc.layout" },
};

static struct bytes_file header_file(const char *header, size_t data_bytes)
{
	size_t bytes = strlen(header);
	unsigned char *data = calloc(1, 8 + bytes + data_bytes);

	assert_non_null(data);
	for (int i = 0; i < 8; i++)
		data[i] = (unsigned char)(bytes >> 8 * i);
	memcpy(data + 8, header, bytes);
	struct bytes_file file = bytes_file_new(data, 8 + bytes + data_bytes);
	free(data);
	return file;
}

static void rules_hold(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(text_cases) / sizeof(text_cases[0]); i++) {
		const struct text_case *c = &text_cases[i];
		struct bytes_file file = header_file(c->header, c->data_bytes);
		struct saved_error error = { .kind = "read" };
		struct saved_cache *cache;
		if (saved_open(&cache, file.path, &as_safetensors, &error) == 0) {
			saved_close(cache);
			if (c->kind)
				fail_msg("read, not %s: %s", c->kind, c->header);
		} else if (!c->kind || strcmp(error.kind, c->kind) != 0 ||
		           strcmp(error.field, c->field) != 0)
			fail_msg("%s '%s' (%s), not %s '%s': %s", error.kind, error.field,
			        error.message, c->kind ? c->kind : "read", c->field, c->header);
		close(file.descriptor);
	}
}

/* Objects and arrays may be 128 deep, as in the reference; the header's own two count. */
static void nesting_is_limited(void **state)
{
	(void)state;
	for (int deep = 125; deep <= 127; deep++) {
		char header[1024] = "{" K ",\"b\":{\"dtype\":\"U8\",\"shape\":[0],"
		                    "\"data_offsets\":[2,2],\"more\":";
		struct saved_error error;
		struct saved_cache *cache;
		for (int i = 0; i < deep; i++)
			strcat(header, "[");
		for (int i = 0; i < deep; i++)
			strcat(header, "]");
		strcat(header, "}}");
		struct bytes_file file = header_file(header, 2);
		int failed = saved_open(&cache, file.path, &as_safetensors, &error);
		assert_int_equal(failed, deep == 127 ? -1 : 0);
		if (failed)
			assert_string_equal(error.kind, "json");
		else
			saved_close(cache);
		close(file.descriptor);
	}
}

/* ---- memory ---- */

struct large_case {
	const char *what;
	const char *begin, *unit, *end; /* the unit repeated, with a number for %08zu */
};

static const struct large_case large_cases[] = {
	{ "names", "{", "\"%08zu\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},",
	        "\"z\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}" },
	{ "metadata", "{\"__metadata__\":{", "\"%08zu\":\"\",", "\"z\":\"\"}}" },
	{ "one string", "{\"__metadata__\":{\"a\":\"", "%08zu  ", "\"}}" },
	{ "tokens", "{\"__metadata__\":{\"tokens\":\"", "1 %6zu ",
	        "\"}," TENSOR("layers.0.k", "\"shape\":[1,1,0,2],\"data_offsets\":[0,0]") "}" },
	{ "a list", "{\"a\":{\"x\":[", "%zu,{},[],", "0]}}" },
};

/* A header of nearly 100 MB; the caller removes the file. */
static void write_large(const struct large_case *large, char *path)
{
	const uint64_t most = SAFETENSORS_HEADER_MAX - 256;
	FILE *file = fdopen(mkstemp(path), "wb");
	uint64_t used;

	assert_non_null(file);
	fseek(file, 8, SEEK_SET);
	used = (uint64_t)fprintf(file, "%s", large->begin);
	for (size_t i = 0; used < most - 200; i++)
		used += (uint64_t)fprintf(file, large->unit, i % 1000000);
	used += (uint64_t)fprintf(file, "%s", large->end);
	rewind(file);
	for (int i = 0; i < 8; i++)
		fputc((int)(used >> 8 * i & 0xff), file);
	assert_int_equal(fclose(file), 0);
}

/* Peak memory of a process that reads the file, in KiB. */
static long peak_of_reading(const char *path)
{
	struct rusage usage;
	int status;
	pid_t child = fork();

	if (child == 0) {
		execl("/proc/self/exe", "test_safetensors", "--open", path, (char *)NULL);
		_exit(127);
	}
	assert_true(child > 0);
	assert_int_equal(wait4(child, &status, 0, &usage), child);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	return usage.ru_maxrss;
}

static void a_header_of_100_mb_takes_bounded_memory(void **state)
{
	(void)state;
	for (size_t c = 0; c < sizeof(large_cases) / sizeof(large_cases[0]); c++) {
		char path[] = "/tmp/kvcanary-large-XXXXXX";
		write_large(&large_cases[c], path);
		long peak = peak_of_reading(path);
		unlink(path);
		print_message("%s: %ld MiB\n", large_cases[c].what, peak / 1024);
#ifndef KVC_SANITIZED
		assert_in_range(peak, 1, 256 * 1000);
#endif
	}
}

static int open_and_leave(const char *path)
{
	static struct saved_error error;
	struct saved_cache *cache;

	if (saved_open(&cache, path, &as_safetensors, &error) == 0)
		saved_close(cache);
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_file_is_as_the_manifest_says),
		cmocka_unit_test(offsets_are_those_of_the_manifest),
		cmocka_unit_test(a_file_cut_at_any_byte_is_refused),
		cmocka_unit_test(a_damaged_header_byte_is_refused_or_harmless),
		cmocka_unit_test(rules_hold),
		cmocka_unit_test(nesting_is_limited),
		cmocka_unit_test(a_header_of_100_mb_takes_bounded_memory),
	};

	if (argc == 3 && strcmp(argv[1], "--open") == 0)
		return open_and_leave(argv[2]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
