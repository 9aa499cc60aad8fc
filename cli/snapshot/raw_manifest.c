/* Parses the manifest of raw pages; raw_manifest.h says what it holds. */
#include "snapshot/raw_manifest.h"

#include "snapshot/json_reader.h"
#include "snapshot/reader.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MANIFEST_BYTES_MAX ((uint64_t)1 << 26)
#define SIZE_MOST ((uint64_t)1 << 40) /* any number of a geometry, so that products stay checked */

/* Layouts by the names that engines give them. */
static const struct {
	const char *name;
	const char *axes;
} layouts[] = {
	{ "layer_first", "clthd" },       /* SGLang HiCache, --hicache-mem-layout */
	{ "page_first", "ctlhd" },        /* the same */
	{ "page_first_direct", "clthd" }, /* the same: in one page it is layer_first */
	{ "page_head", "chtld" },         /* the same */
	{ "split_nhd", "lcthd" },         /* vLLM: a layer is [2, block, heads, dim] */
	{ "split_hnd", "lchtd" },         /* [2, heads, block, dim] */
	{ "packed_nhd", "lthcd" },        /* [block, heads, 2 x dim] */
	{ "packed_hnd", "lhtcd" },        /* [heads, block, 2 x dim] */
	{ "KV_2LTD", "clthd" },           /* LMCache */
	{ "KV_MLA_FMT", "cltd" },         /* the same */
};

struct parsing {
	struct raw_manifest *manifest;
	struct saved_cache *cache;
	const char *path;
	struct json_reader json;
	struct saved_error *error;
};

static int refuse_manifest(const struct parsing *parsing, const char *field, const char *reason)
{
	return saved_fail(parsing->error, "snapshot-malformed", "manifest", parsing->path, field,
	        (int64_t)parsing->json.at, "%s", reason);
}

/* ---- values ---- */

/* A whole number from least to most. */
static int take_raw_number(
        struct parsing *parsing, const char *field, uint64_t least, uint64_t most, int64_t *out)
{
	enum json_token token = json_next(&parsing->json);

	if (token == JSON_FAILED)
		return -1;
	if (token != JSON_NUMBER || !parsing->json.is_unsigned || parsing->json.number < least ||
	        parsing->json.number > most)
		return refuse_manifest(parsing, field, "no whole number in its range");
	*out = (int64_t)parsing->json.number;
	return 0;
}

/* A string, kept as long as the cache. */
static int take_raw_text(struct parsing *parsing, const char *field, const char **out)
{
	enum json_token token = json_next(&parsing->json);

	if (token == JSON_FAILED)
		return -1;
	if (*out)
		return refuse_manifest(parsing, field, "given twice");
	if (token != JSON_STRING)
		return refuse_manifest(parsing, field, "no string");
	*out = saved_strdup(parsing->cache, parsing->json.text);
	return *out ? 0 : saved_fail_memory(parsing->error, parsing->path);
}

/* A list of whole numbers; the caller frees *out. */
static int take_raw_numbers(struct parsing *parsing, const char *field, uint64_t most,
        int64_t count_most, int64_t **out, int64_t *count_out)
{
	int64_t count = 0, capacity = 0;
	enum json_token token;

	if (*out)
		return refuse_manifest(parsing, field, "given twice");
	while ((token = json_next(&parsing->json)) == JSON_NUMBER) {
		if (!parsing->json.is_unsigned || parsing->json.number > most ||
		        count == count_most)
			return refuse_manifest(parsing, field, "a number or a count out of range");
		if (count == capacity) {
			int64_t *longer;
			capacity = capacity ? capacity * 2 : 64;
			longer = realloc(*out, (size_t)capacity * sizeof(*longer));
			if (!longer)
				return saved_fail_memory(parsing->error, parsing->path);
			*out = longer;
		}
		(*out)[count++] = (int64_t)parsing->json.number;
	}
	*count_out = count;
	if (token == JSON_FAILED)
		return -1;
	return token == JSON_ARRAY_END && count > 0
	               ? 0
	               : refuse_manifest(parsing, field, "no list of whole numbers");
}

/* The same, kept as long as the cache. */
static int take_raw_list(struct parsing *parsing, const char *field, uint64_t most,
        int64_t count_most, int64_t **out, int64_t *count_out)
{
	int64_t *numbers = NULL, *kept;
	int failed;

	if (*out)
		return refuse_manifest(parsing, field, "given twice");
	failed = take_raw_numbers(parsing, field, most, count_most, &numbers, count_out);
	if (!failed) {
		kept = saved_alloc(parsing->cache, (uint64_t)*count_out, sizeof(*kept));
		if (kept)
			memcpy(kept, numbers, (size_t)*count_out * sizeof(*kept));
		else
			failed = saved_fail_memory(parsing->error, parsing->path);
		*out = kept;
	}
	free(numbers);
	return failed;
}

static int take_raw_array(struct parsing *parsing, const char *field)
{
	enum json_token token = json_next(&parsing->json);

	if (token == JSON_FAILED || token == JSON_ARRAY)
		return token == JSON_ARRAY ? 0 : -1;
	return refuse_manifest(parsing, field, "no list");
}

/* ---- a group ---- */

static int take_raw_layout(struct parsing *parsing, struct raw_group *group)
{
	const char *text = NULL, *axes;
	bool seen[RAW_AXES] = { false };

	if (take_raw_text(parsing, "layout", &text))
		return -1;
	axes = text;
	for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++)
		if (strcmp(text, layouts[i].name) == 0)
			axes = layouts[i].axes;
	for (const char *axis = axes; *axis; axis++) {
		const char *known = strchr("clthd", *axis);
		if (!known || seen[known - "clthd"])
			return refuse_manifest(parsing, "layout",
			        "neither the name of one nor axes out of c, l, t, h, d");
		seen[known - "clthd"] = true;
	}
	if (!strchr(axes, 't') || !strchr(axes, 'd'))
		return refuse_manifest(parsing, "layout", "it has no axis t or no d");
	snprintf(group->axes, sizeof(group->axes), "%s", axes);
	group->has_axes = true;
	return 0;
}

static int take_raw_dtype(struct parsing *parsing, struct raw_group *group)
{
	const char *text = NULL;

	if (take_raw_text(parsing, "dtype", &text))
		return -1;
	for (int i = 0; i < SAFETENSORS_DTYPE_COUNT; i++)
		if (strcmp(text, safetensors_dtype_name((enum safetensors_dtype)i)) == 0 &&
		        safetensors_dtype_bits((enum safetensors_dtype)i) % 8 == 0) {
			group->dtype = (enum safetensors_dtype)i;
			group->has_dtype = true;
			return 0;
		}
	return refuse_manifest(parsing, "dtype", "none of safetensors' with whole bytes");
}

/* 32, or the numbers of the layers. */
static int take_raw_layers(struct parsing *parsing, struct raw_group *group)
{
	enum json_token token = json_next(&parsing->json);
	int64_t *numbers = NULL;

	if (token == JSON_FAILED)
		return -1;
	if (token == JSON_ARRAY) {
		if (take_raw_list(parsing, "layers", INT32_MAX, SAVED_LAYERS_MAX, &numbers,
		            &group->layer_count))
			return -1;
		group->layer_numbers = numbers;
		return 0;
	}
	if (token != JSON_NUMBER || !parsing->json.is_unsigned || parsing->json.number < 1 ||
	        parsing->json.number > (uint64_t)SAVED_LAYERS_MAX)
		return refuse_manifest(parsing, "layers", "neither a number nor a list of them");
	group->layer_count = (int64_t)parsing->json.number;
	group->layer_numbers = NULL;
	return 0;
}

/* 1: it is a field of a group; 0: not; -1: failed. */
static int take_group_field(struct parsing *parsing, struct raw_group *group)
{
	const struct {
		const char *name;
		int64_t *out;
		uint64_t least;
	} numbers[] = {
		{ "kv_heads", &group->kv_heads, 1 },
		{ "head_dim", &group->head_dim, 1 },
		{ "page_rows", &group->page_rows, 1 },
		{ "offset", &group->offset, 0 },
		{ "layer_bytes", &group->layer_bytes, 1 },
		{ "tensors", &group->tensors, 1 },
	};
	const char *key = parsing->json.text;

	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		if (strcmp(key, numbers[i].name) == 0)
			return *numbers[i].out >= 0
			               ? refuse_manifest(parsing, numbers[i].name, "given twice")
			       : take_raw_number(parsing, numbers[i].name, numbers[i].least,
			                 numbers[i].out == &group->tensors ? 2 : SIZE_MOST,
			                 numbers[i].out)
			               ? -1
			               : 1;
	if ((group->has_axes && strcmp(key, "layout") == 0) ||
	        (group->has_dtype && strcmp(key, "dtype") == 0) ||
	        (group->layer_count >= 0 && strcmp(key, "layers") == 0))
		return refuse_manifest(parsing, key, "given twice");
	if (strcmp(key, "layout") == 0)
		return take_raw_layout(parsing, group) ? -1 : 1;
	if (strcmp(key, "dtype") == 0)
		return take_raw_dtype(parsing, group) ? -1 : 1;
	if (strcmp(key, "layers") == 0)
		return take_raw_layers(parsing, group) ? -1 : 1;
	return 0;
}

static const struct raw_group blank_group = { .layer_count = -1,
	.kv_heads = -1,
	.head_dim = -1,
	.page_rows = -1,
	.offset = -1,
	.layer_bytes = -1,
	.tensors = -1 };

static int take_raw_groups(struct parsing *parsing)
{
	struct raw_manifest *manifest = parsing->manifest;
	enum json_token token;

	if (manifest->group_count)
		return refuse_manifest(parsing, "groups", "given twice");
	if (take_raw_array(parsing, "groups"))
		return -1;
	while ((token = json_next(&parsing->json)) == JSON_OBJECT) {
		struct raw_group *group = &manifest->groups[manifest->group_count];
		if (manifest->group_count == RAW_GROUPS_MAX)
			return refuse_manifest(parsing, "groups", "more than 64 of them");
		*group = blank_group;
		while ((token = json_next(&parsing->json)) == JSON_KEY) {
			int taken = take_group_field(parsing, group);
			if (taken <= 0)
				return taken < 0 ? -1
				                 : refuse_manifest(parsing, "groups",
				                           "a field that no group has");
		}
		if (token != JSON_OBJECT_END)
			return -1;
		manifest->group_count++;
	}
	if (token == JSON_FAILED)
		return -1;
	return token == JSON_ARRAY_END ? 0 : refuse_manifest(parsing, "groups", "no object");
}

/* ---- pages ---- */

static int take_raw_page(struct parsing *parsing, struct raw_page *page)
{
	enum json_token token;

	while ((token = json_next(&parsing->json)) == JSON_KEY) {
		const char *key = parsing->json.text;
		int failed =
		        strcmp(key, "file") == 0 ? take_raw_text(parsing, "pages.file", &page->file)
		        : strcmp(key, "offset") == 0 ? take_raw_number(parsing, "pages.offset", 0,
		                                               INT64_MAX, &page->offset)
		        : strcmp(key, "rows") == 0
		                ? take_raw_number(parsing, "pages.rows", 1, SIZE_MOST, &page->rows)
		                : refuse_manifest(parsing, "pages", "a field that no page has");
		if (failed)
			return -1;
	}
	if (token != JSON_OBJECT_END)
		return -1;
	return page->file ? 0 : refuse_manifest(parsing, "pages.file", "missing");
}

static int add_page(struct parsing *parsing, const struct raw_page *page, int64_t *capacity)
{
	struct raw_manifest *manifest = parsing->manifest;

	if (manifest->page_count == RAW_PAGES_MAX)
		return refuse_manifest(parsing, "pages", "more than 262,144 of them");
	if (manifest->page_count == *capacity) {
		struct raw_page *longer;
		*capacity = *capacity ? *capacity * 2 : 64;
		longer = realloc(manifest->pages, (size_t)*capacity * sizeof(*longer));
		if (!longer)
			return saved_fail_memory(parsing->error, parsing->path);
		manifest->pages = longer;
	}
	manifest->pages[manifest->page_count++] = *page;
	return 0;
}

static int take_pages(struct parsing *parsing)
{
	int64_t capacity = 0;
	enum json_token token;

	if (parsing->manifest->pages)
		return refuse_manifest(parsing, "pages", "given twice");
	if (take_raw_array(parsing, "pages"))
		return -1;
	while ((token = json_next(&parsing->json)) == JSON_OBJECT || token == JSON_STRING) {
		struct raw_page page = { 0 };
		if (token == JSON_OBJECT && take_raw_page(parsing, &page))
			return -1;
		if (token == JSON_STRING &&
		        !(page.file = saved_strdup(parsing->cache, parsing->json.text)))
			return saved_fail_memory(parsing->error, parsing->path);
		if (add_page(parsing, &page, &capacity))
			return -1;
	}
	if (token == JSON_FAILED)
		return -1;
	return token == JSON_ARRAY_END
	               ? 0
	               : refuse_manifest(parsing, "pages", "neither a name nor an object");
}

/* ---- the rest ---- */

static int take_raw_rope(struct parsing *parsing)
{
	struct saved_rope *rope = &parsing->manifest->rope;
	enum json_token token = json_next(&parsing->json);

	if (token != JSON_OBJECT)
		return token == JSON_FAILED ? -1 : refuse_manifest(parsing, "rope", "no object");
	while ((token = json_next(&parsing->json)) == JSON_KEY) {
		const char *key = parsing->json.text, *style = NULL;
		int failed = 0;
		if (rope->base != 0 && strcmp(key, "base") == 0)
			return refuse_manifest(parsing, "rope.base", "given twice");
		if (strcmp(key, "base") == 0) {
			if (json_next(&parsing->json) != JSON_NUMBER)
				return refuse_manifest(parsing, "rope.base", "no number");
			rope->base = strtod(parsing->json.text, NULL);
			if (!isfinite(rope->base) || rope->base <= 0)
				return refuse_manifest(parsing, "rope.base", "no positive number");
		} else if (strcmp(key, "style") == 0) {
			failed = take_raw_text(parsing, "rope.style", &style);
			rope->interleaved = style && strcmp(style, "interleaved") == 0;
			if (style && !rope->interleaved && strcmp(style, "neox") != 0)
				return refuse_manifest(
				        parsing, "rope.style", "neither neox nor interleaved");
		} else if (strcmp(key, "dim") == 0)
			failed = take_raw_number(
			        parsing, "rope.dim", 0, INT32_MAX, &rope->rotary_dim);
		else if (strcmp(key, "offset") == 0)
			failed = take_raw_number(
			        parsing, "rope.offset", 0, INT32_MAX, &rope->rotary_offset);
		else
			return refuse_manifest(parsing, "rope", "a field that it does not have");
		if (failed)
			return -1;
	}
	return token == JSON_OBJECT_END ? 0 : -1;
}

static int take_manifest_field(struct parsing *parsing, struct raw_group *defaults)
{
	struct raw_manifest *manifest = parsing->manifest;
	const char *key = parsing->json.text;
	int taken = take_group_field(parsing, defaults);
	int64_t version;

	if (taken != 0)
		return taken < 0 ? -1 : 0;
	if (strcmp(key, "kvc.pages") == 0)
		return take_raw_number(parsing, "kvc.pages", 1, 1, &version);
	if (strcmp(key, "what") == 0)
		return take_raw_text(parsing, "what", &manifest->what);
	if (strcmp(key, "model") == 0)
		return take_raw_text(parsing, "model", &manifest->model);
	if (strcmp(key, "tokenizer") == 0)
		return take_raw_text(parsing, "tokenizer", &manifest->tokenizer);
	if (strcmp(key, "block_size") == 0)
		return take_raw_number(parsing, "block_size", 1, INT32_MAX, &manifest->block_size);
	if (strcmp(key, "rope") == 0)
		return take_raw_rope(parsing);
	if (strcmp(key, "groups") == 0)
		return take_raw_groups(parsing);
	if (strcmp(key, "pages") == 0)
		return take_pages(parsing);
	if (strcmp(key, "tokens") == 0)
		return take_raw_array(parsing, "tokens")
		               ? -1
		               : take_raw_list(parsing, "tokens", INT32_MAX, SAVED_CELLS_MAX,
		                         &manifest->tokens, &manifest->token_count);
	if (strcmp(key, "positions") == 0)
		return take_raw_array(parsing, "positions")
		               ? -1
		               : take_raw_list(parsing, "positions", INT32_MAX, SAVED_CELLS_MAX,
		                         &manifest->positions, &manifest->position_count);
	return refuse_manifest(parsing, "manifest", "a field that it does not have");
}

/* What a group does not say is as at the top; what must be said is there. */
static int complete_group(
        struct parsing *parsing, struct raw_group *group, const struct raw_group *defaults)
{
	int64_t *const own[] = { &group->layer_count, &group->kv_heads, &group->head_dim,
		&group->page_rows, &group->offset, &group->layer_bytes, &group->tensors };
	const int64_t top[] = { defaults->layer_count, defaults->kv_heads, defaults->head_dim,
		defaults->page_rows, defaults->offset, defaults->layer_bytes, defaults->tensors };
	static const int64_t otherwise[] = { 1, 1, -1, -1, 0, 0, 2 };
	static const char *const names[] = { "layers", "kv_heads", "head_dim", "page_rows",
		"offset", "layer_bytes", "tensors" };

	if (group->layer_count < 0)
		group->layer_numbers = defaults->layer_numbers;
	for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++) {
		if (*own[i] < 0)
			*own[i] = top[i] < 0 ? otherwise[i] : top[i];
		if (*own[i] < 0)
			return refuse_manifest(parsing, names[i], "missing");
	}
	if (!group->has_axes)
		memcpy(group->axes, defaults->axes, sizeof(group->axes));
	if (!group->has_dtype)
		group->dtype = defaults->dtype;
	if (!group->axes[0])
		return refuse_manifest(parsing, "layout", "missing");
	if (!group->has_dtype && !defaults->has_dtype)
		return refuse_manifest(parsing, "dtype", "missing");
	if ((group->tensors == 2 && !strchr(group->axes, 'c')) ||
	        (group->layer_count > 1 && !strchr(group->axes, 'l')) ||
	        (group->kv_heads > 1 && !strchr(group->axes, 'h')))
		return refuse_manifest(
		        parsing, "layout", "it has no axis for K and V, layers or heads");
	return 0;
}

static int parse_manifest(struct parsing *parsing)
{
	struct raw_manifest *manifest = parsing->manifest;
	struct raw_group defaults = blank_group;
	enum json_token token = json_next(&parsing->json);

	if (token != JSON_OBJECT)
		return token == JSON_FAILED ? -1
		                            : refuse_manifest(parsing, "manifest", "no object");
	while ((token = json_next(&parsing->json)) == JSON_KEY)
		if (take_manifest_field(parsing, &defaults))
			return -1;
	if (token != JSON_OBJECT_END || json_next(&parsing->json) != JSON_END)
		return -1;
	if (manifest->group_count == 0)
		manifest->groups[manifest->group_count++] = blank_group;
	for (int i = 0; i < manifest->group_count; i++)
		if (complete_group(parsing, &manifest->groups[i], &defaults))
			return -1;
	return manifest->page_count ? 0 : refuse_manifest(parsing, "pages", "missing or empty");
}

int raw_manifest_read(struct raw_manifest *out, struct saved_cache *cache,
        const struct saved_file *file, struct saved_error *error)
{
	struct parsing parsing = {
		.manifest = out, .cache = cache, .path = saved_file_path(file), .error = error
	};
	int failed;

	memset(out, 0, sizeof(*out));
	if (saved_file_size(file) > MANIFEST_BYTES_MAX)
		return saved_fail(error, "snapshot-malformed", "count_too_large", parsing.path,
		        "manifest", 0, "it has more than 64 MiB");
	if (json_start(&parsing.json, file, 0, saved_file_size(file), "manifest", error))
		return -1;
	failed = parse_manifest(&parsing);
	json_stop(&parsing.json);
	if (failed)
		raw_manifest_free(out);
	return failed;
}

void raw_manifest_free(struct raw_manifest *manifest)
{
	free(manifest->pages);
	manifest->pages = NULL;
}
