/*
 * Raw pages: files without header, described by a manifest in JSON (raw_manifest.h). Given is the
 * manifest itself, or a directory of pages with --manifest; names in it are relative to that
 * directory, or to the manifest.
 */
#include "snapshot/raw_manifest.h"
#include "snapshot/reader.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MANIFEST_KEY "\"kvc.pages\""

struct raw_job {
	struct saved_cache *cache;
	struct raw_manifest manifest;
	const char *manifest_path;
	const char *folder; /* what names are relative to: its first bytes */
	int folder_bytes;
	const struct saved_plane *pages;
	struct saved_error *error;
};

/* A directory with --manifest, which says nothing of a file beside it (diff); or a manifest, one object
 * whose first key is ours. */
bool read_raw_detect(const struct saved_probe *probe)
{
	const char *head = (const char *)probe->head;

	if (!probe->file)
		return probe->options->manifest != NULL;
	return probe->head_bytes > 0 && head[0] == '{' &&
	       memmem(head, probe->head_bytes, MANIFEST_KEY, sizeof(MANIFEST_KEY) - 1) != NULL;
}

static int refuse_raw(const struct raw_job *job, const char *path, const char *kind,
        const char *field, int64_t offset, const char *reason)
{
	return saved_fail(
	        job->error, "snapshot-malformed", kind, path, field, offset, "%s", reason);
}

/* ---- where things are in a page ---- */

struct raw_strides {
	uint64_t c, l, t, h, d;
	uint64_t bytes; /* of the group in one page, up to its last element */
};

/* Of a page of so many rows; false if the numbers go beyond 2^62. */
static bool strides_of(const struct raw_group *group, int64_t rows, struct raw_strides *out)
{
	uint64_t bytes = safetensors_dtype_bits(group->dtype) / 8;
	uint64_t last = 0; /* offset of the last element */
	const uint64_t element = bytes;

	*out = (struct raw_strides){ .d = element };
	for (size_t i = strlen(group->axes); i-- > 0;) {
		const char axis = group->axes[i];
		uint64_t *stride = axis == 'c'   ? &out->c
		                   : axis == 'l' ? &out->l
		                   : axis == 't' ? &out->t
		                   : axis == 'h' ? &out->h
		                                 : &out->d;
		uint64_t size = (uint64_t)(axis == 'c'   ? group->tensors
		                           : axis == 'l' ? group->layer_count
		                           : axis == 't' ? rows
		                           : axis == 'h' ? group->kv_heads
		                                         : group->head_dim);
		if (axis == 'l' && group->layer_bytes) {
			if ((uint64_t)group->layer_bytes < bytes)
				return false;
			bytes = (uint64_t)group->layer_bytes;
		}
		*stride = bytes;
		if (__builtin_mul_overflow(bytes, size, &bytes) || bytes > (uint64_t)1 << 62)
			return false;
		last += *stride * (size - 1);
	}
	out->bytes = last + element;
	return true;
}

/* ---- the files ---- */

static int open_page(struct raw_job *job, const struct raw_page *page, struct saved_plane *out)
{
	int folder_bytes = page->file[0] == '/' ? 0 : job->folder_bytes;
	bool slash = folder_bytes > 0 && job->folder[folder_bytes - 1] != '/';
	size_t bytes = (size_t)folder_bytes + strlen(page->file) + 2;
	char *path = malloc(bytes);
	struct saved_file *file;
	int failed;

	if (!path)
		return saved_fail_memory(job->error, page->file);
	snprintf(path, bytes, "%.*s%s%s", folder_bytes, job->folder, slash ? "/" : "", page->file);
	failed = saved_file_open_one_of_many(&file, path, job->error);
	free(path);
	if (failed)
		return -1;
	if (saved_take_file(job->cache, file))
		return saved_fail_memory(job->error, page->file);
	job->cache->file_bytes += saved_file_size(file);
	out->file = file;
	return 0;
}

static int open_pages(struct raw_job *job)
{
	const struct raw_manifest *manifest = &job->manifest;
	struct saved_plane *planes =
	        saved_alloc(job->cache, (uint64_t)manifest->page_count, sizeof(*planes));

	if (!planes)
		return saved_fail_memory(job->error, job->cache->path);
	job->cache->file_bytes = 0;
	for (int64_t i = 0; i < manifest->page_count; i++) {
		const struct raw_page *page = &manifest->pages[i];
		if (page->rows && i + 1 < manifest->page_count)
			return refuse_raw(job, job->manifest_path, "manifest", "pages.rows", -1,
			        "only the last page may have fewer rows");
		planes[i].offset = (uint64_t)page->offset;
		if (i > 0 && strcmp(page->file, manifest->pages[i - 1].file) == 0)
			planes[i].file = planes[i - 1].file;
		else if (open_page(job, page, &planes[i]))
			return -1;
	}
	job->pages = planes;
	return 0;
}

/* Every byte of the group is in every page. */
static int check_pages(struct raw_job *job, const struct raw_group *group, int64_t first,
        int64_t count, const struct raw_strides *strides)
{
	uint64_t needed;

	for (int64_t i = first; i < first + count; i++) {
		const struct saved_plane *page = &job->pages[i];
		uint64_t bytes = saved_file_size(page->file);
		char reason[160];
		if (!__builtin_add_overflow(
		            page->offset + (uint64_t)group->offset, strides->bytes, &needed) &&
		        needed <= bytes)
			continue;
		snprintf(reason, sizeof(reason),
		        "the page has %" PRIu64 " bytes from %" PRIu64 " on, %" PRIu64
		        " are needed",
		        page->offset < bytes ? bytes - page->offset : 0, page->offset,
		        (uint64_t)group->offset + strides->bytes);
		return refuse_raw(job, saved_file_path(page->file), "truncated", "page",
		        (int64_t)bytes, reason);
	}
	return 0;
}

/* ---- parts ---- */

static enum saved_type raw_type(enum safetensors_dtype dtype)
{
	return dtype == SAFETENSORS_F32       ? SAVED_F32
	       : dtype == SAFETENSORS_F16     ? SAVED_F16
	       : dtype == SAFETENSORS_BF16    ? SAVED_BF16
	       : dtype == SAFETENSORS_F64     ? SAVED_F64
	       : dtype == SAFETENSORS_F8_E4M3 ? SAVED_F8_E4M3
	       : dtype == SAFETENSORS_F8_E5M2 ? SAVED_F8_E5M2
	                                      : SAVED_OPAQUE;
}

static struct saved_tensor raw_tensor(const struct raw_group *group,
        const struct raw_strides *strides, int64_t layer, int64_t which)
{
	return (struct saved_tensor){
		.type = raw_type(group->dtype),
		.type_name = safetensors_dtype_name(group->dtype),
		.present = which < group->tensors,
		.heads = group->kv_heads,
		.dim = group->head_dim,
		.element_bits = safetensors_dtype_bits(group->dtype),
		.plane = { .offset = (uint64_t)group->offset + (uint64_t)layer * strides->l +
		                     (uint64_t)which * strides->c,
		        .row_stride = strides->t,
		        .head_stride = strides->h,
		        .element_stride = strides->d },
	};
}

/* Rows first .. of the manifest's lists: positions, tokens. */
static int give_lists(struct raw_job *job, struct saved_part *part, int64_t first)
{
	const struct raw_manifest *manifest = &job->manifest;
	int64_t end = first + part->row_count;

	if (manifest->position_count && end > manifest->position_count)
		return refuse_raw(job, job->manifest_path, "manifest", "positions", -1,
		        "fewer than the pages have rows");
	if (job->cache->tokens && end > job->cache->token_count)
		return refuse_raw(job, job->manifest_path, "manifest", "tokens", -1,
		        "fewer than the pages have rows");
	if (job->cache->tokens)
		part->tokens = job->cache->tokens + first;
	if (manifest->position_count)
		part->positions = manifest->positions + first;
	else if (first > 0) {
		int64_t *positions =
		        saved_alloc(job->cache, (uint64_t)part->row_count, sizeof(*positions));
		if (!positions)
			return saved_fail_memory(job->error, job->cache->path);
		for (int64_t i = 0; i < part->row_count; i++)
			positions[i] = first + i;
		part->positions = positions;
	}
	return 0;
}

/* Layers of one group in pages first .. first + count - 1, each of so many rows. */
static int fill_raw_layers(struct raw_job *job, struct saved_layer *layers,
        const struct raw_group *group, int64_t first, int64_t count, int64_t rows)
{
	struct raw_strides strides;

	if (!strides_of(group, rows, &strides))
		return refuse_raw(job, job->manifest_path, "manifest", "layout", -1,
		        "its numbers go beyond any file, or layer_bytes is less than a layer");
	if (rows > SAVED_CELLS_MAX || rows * count > SAVED_CELLS_MAX)
		return refuse_raw(job, job->manifest_path, "count_too_large", "pages", -1,
		        "more than 4,194,304 rows");
	if (check_pages(job, group, first, count, &strides))
		return -1;
	for (int64_t i = 0; i < group->layer_count; i++) {
		layers[i].number = group->layer_numbers ? group->layer_numbers[i] : i;
		layers[i].number_is_known = true;
		for (int which = 0; which < 2; which++) {
			layers[i].tensor[which] = raw_tensor(group, &strides, i, which);
			layers[i].tensor[which].plane.file = job->pages[first].file;
			layers[i].tensor[which].pages = job->pages + first;
			layers[i].tensor[which].page_rows = rows;
		}
	}
	return 0;
}

static int by_number(const void *a, const void *b)
{
	const struct saved_layer *left = a, *right = b;

	return (left->number > right->number) - (left->number < right->number);
}

/* The groups of one part, in the same pages. */
static int fill_part(struct raw_job *job, struct saved_part *part, const struct raw_group *groups,
        int group_count, int64_t first, int64_t count, int64_t rows)
{
	struct saved_layer *layers;
	int64_t layer_count = 0;

	for (int g = 0; g < group_count; g++)
		layer_count += groups[g].layer_count;
	layers = saved_alloc(job->cache, (uint64_t)layer_count, sizeof(*layers));
	if (!layers)
		return saved_fail_memory(job->error, job->cache->path);
	part->name = "pages";
	part->row_count = rows * count;
	part->layers = layers;
	for (int g = 0; g < group_count; g++) {
		if (fill_raw_layers(
		            job, layers + part->layer_count, &groups[g], first, count, rows))
			return -1;
		part->layer_count += groups[g].layer_count;
	}
	if (group_count > 1)
		qsort(layers, (size_t)layer_count, sizeof(*layers), by_number);
	return give_lists(job, part, first * groups[0].page_rows);
}

/* Whether all groups have the same rows, each of other layers: then they are one cache. */
static bool groups_share_rows(const struct raw_manifest *manifest)
{
	bool seen[SAVED_LAYERS_MAX] = { false };

	for (int g = 0; g < manifest->group_count; g++) {
		const struct raw_group *group = &manifest->groups[g];
		if (group->page_rows != manifest->groups[0].page_rows)
			return false;
		for (int64_t i = 0; i < group->layer_count; i++) {
			int64_t number = group->layer_numbers ? group->layer_numbers[i] : i;
			if (number >= SAVED_LAYERS_MAX || seen[number])
				return false;
			seen[number] = true;
		}
	}
	return true;
}

/* The groups are a part together, or each of them is; a short last page is one more, since its strides
 * may be others. */
static int fill_raw_parts(struct raw_job *job)
{
	const struct raw_manifest *manifest = &job->manifest;
	int64_t last = manifest->page_count - 1, tail = manifest->pages[last].rows;
	int64_t full = manifest->page_count - (tail != 0);
	int together = groups_share_rows(manifest) ? manifest->group_count : 1;
	struct saved_part *parts =
	        saved_alloc(job->cache, 2 * (uint64_t)manifest->group_count, sizeof(*parts));
	int64_t count = 0;

	if (!parts)
		return saved_fail_memory(job->error, job->cache->path);
	for (int g = 0; g < manifest->group_count; g += together) {
		const struct raw_group *groups = &manifest->groups[g];
		if (tail > groups->page_rows)
			return refuse_raw(job, job->manifest_path, "manifest", "pages.rows", -1,
			        "more than page_rows");
		parts[count].stream = g;
		if (full > 0 && fill_part(job, &parts[count++], groups, together, 0, full,
		                        groups->page_rows))
			return -1;
		parts[count].stream = g;
		if (tail > 0 && fill_part(job, &parts[count++], groups, together, last, 1, tail))
			return -1;
	}
	job->cache->parts = parts;
	job->cache->part_count = count;
	return 0;
}

/* ---- the whole ---- */

static int find_raw_tokens(struct raw_job *job, const struct saved_options *options)
{
	struct saved_cache *cache = job->cache;
	int64_t *tokens;

	cache->tokens = job->manifest.tokens;
	cache->token_count = job->manifest.token_count;
	if (cache->tokens || !options->tokens)
		return 0;
	tokens = saved_alloc(cache, (uint64_t)options->token_count, sizeof(*tokens));
	if (!tokens)
		return saved_fail_memory(job->error, cache->path);
	memcpy(tokens, options->tokens, (size_t)options->token_count * sizeof(*tokens));
	cache->tokens = tokens;
	cache->token_count = options->token_count;
	return 0;
}

static int add_identity(struct raw_job *job)
{
	const struct raw_manifest *manifest = &job->manifest;
	struct saved_identity *list = saved_alloc(job->cache, 3, sizeof(*list));
	char number[24];

	if (!list)
		return saved_fail_memory(job->error, job->cache->path);
	job->cache->identity = list;
	if (manifest->model)
		list[job->cache->identity_count++] =
		        (struct saved_identity){ "model", manifest->model };
	if (manifest->tokenizer)
		list[job->cache->identity_count++] =
		        (struct saved_identity){ "tokenizer", manifest->tokenizer };
	if (manifest->block_size) {
		snprintf(number, sizeof(number), "%" PRId64, manifest->block_size);
		list[job->cache->identity_count].field = "block_size";
		list[job->cache->identity_count].value = saved_strdup(job->cache, number);
		if (!list[job->cache->identity_count++].value)
			return saved_fail_memory(job->error, job->cache->path);
	}
	return 0;
}

/* The directory part of a path, or a directory itself. */
static void find_folder(struct raw_job *job, bool is_directory)
{
	const char *path = job->cache->path;
	const char *slash = strrchr(path, '/');

	job->folder = path;
	job->folder_bytes = is_directory ? (int)strlen(path) : slash ? (int)(slash - path) + 1 : 0;
}

static int describe_raw(struct raw_job *job, const struct saved_options *options)
{
	struct saved_cache *cache = job->cache;

	cache->writer = job->manifest.what;
	cache->rope = job->manifest.rope;
	snprintf(cache->version, sizeof(cache->version), "raw pages, manifest 1");
	return open_pages(job) || find_raw_tokens(job, options) || add_identity(job) ||
	                       fill_raw_parts(job)
	               ? -1
	               : 0;
}

int read_raw_open(struct saved_cache *cache, struct saved_file *file,
        const struct saved_options *options, struct saved_error *error)
{
	struct raw_job *job = calloc(1, sizeof(*job));
	struct saved_file *manifest = file;
	int failed = 0;

	if (!job)
		return saved_fail_memory(error, cache->path);
	job->cache = cache;
	job->error = error;
	find_folder(job, file == NULL);
	if (!file && options->manifest) {
		failed = saved_file_open(&manifest, options->manifest, error);
		if (!failed && saved_take_file(cache, manifest))
			failed = saved_fail_memory(error, cache->path);
	} else if (!file)
		failed = saved_fail(error, "snapshot-no-manifest", "no_manifest", cache->path, "",
		        -1, "a directory of pages");
	if (!failed) {
		job->manifest_path = saved_file_path(manifest);
		failed = raw_manifest_read(&job->manifest, cache, manifest, error) ||
		         describe_raw(job, options);
	}
	raw_manifest_free(&job->manifest);
	free(job);
	return failed ? -1 : 0;
}
