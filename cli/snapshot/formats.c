/* The table of readers, detection by content, and the memory of what they describe. */
#include "snapshot/reader.h"

#include "cli.h"

#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define NOTES_MAX 64

/* In the order of detection: those that are sure first. */
static const struct saved_format formats[] = {
	{ "pages", "raw pages that a manifest describes: HiCache, vLLM, LMCache, one's own",
	        read_raw_detect, read_raw_open },
	{ "llamacpp-seq", "llama.cpp, one sequence (llama_state_seq_save_file, server slots)",
	        llamacpp_seq_detect, llamacpp_open },
	{ "llamacpp-ctx", "llama.cpp, a whole context (llama_state_save_file, --prompt-cache)",
	        llamacpp_ctx_detect, llamacpp_open },
	{ "llamacpp-blob", "llama.cpp, one sequence in memory (llama_state_seq_get_data)",
	        llamacpp_blob_detect, llamacpp_open },
	{ "safetensors", "safetensors, of a schema that its names tell", read_safetensors_detect,
	        read_safetensors_open },
	{ "safetensors-kvc", "our own schema, and exports of transformers: layers.<i>.k and .v",
	        read_safetensors_detect_none, read_safetensors_open },
	{ "safetensors-mlx", "prompt caches of mlx-lm", read_safetensors_detect_none,
	        read_safetensors_open },
	{ "safetensors-vllm", "vLLM's example connector: a file or directory of layers",
	        schema_vllm_detect_directory, read_safetensors_open },
	{ "pickle", "torch.save and the like: refused, since a pickle is a program",
	        read_pickle_detect, read_pickle_open },
	{ "hicache", "a directory of SGLang's HiCache, without manifest: names and sizes",
	        read_hicache_detect, read_page_folder_open },
	{ "vllm-fs", "a directory of vLLM's fs tier, without manifest: names and sizes",
	        read_vllm_fs_detect, read_page_folder_open },
	{ NULL, NULL, NULL, NULL },
};

const struct saved_format *saved_format_at(size_t index)
{
	for (size_t i = 0; i < index; i++)
		if (!formats[i].name)
			return NULL;
	return formats[index].name ? &formats[index] : NULL;
}

/* ---- memory ---- */

struct saved_block {
	struct saved_block *next;
	struct saved_file *file; /* a file to close, or memory that follows */
	max_align_t memory[];
};

struct saved_owner {
	struct saved_block *blocks;
	struct saved_note notes[NOTES_MAX];
};

static struct saved_block *add_owned(struct saved_cache *cache, size_t bytes)
{
	struct saved_owner *owner = cache->owner;
	struct saved_block *block = calloc(1, sizeof(*block) + bytes);

	if (!block)
		return NULL;
	block->next = owner->blocks;
	owner->blocks = block;
	return block;
}

void *saved_alloc(struct saved_cache *cache, uint64_t count, size_t bytes)
{
	struct saved_block *block;

	if (bytes != 0 && count > (SIZE_MAX / 2 - sizeof(*block)) / bytes)
		return NULL;
	block = add_owned(cache, (size_t)count * bytes);
	return block ? block->memory : NULL;
}

char *saved_strdup(struct saved_cache *cache, const char *text)
{
	size_t bytes = strlen(text) + 1;
	char *copy = saved_alloc(cache, bytes, 1);

	if (copy)
		memcpy(copy, text, bytes);
	return copy;
}

int saved_take_file(struct saved_cache *cache, struct saved_file *file)
{
	struct saved_block *block = add_owned(cache, 0);

	if (!block) {
		saved_file_close(file);
		return -1;
	}
	block->file = file;
	return 0;
}

void saved_add_note(struct saved_cache *cache, const char *kind, int64_t offset, bool damage,
        const char *format, ...)
{
	struct saved_owner *owner = cache->owner;
	struct saved_note *note;
	va_list arguments;

	if (cache->note_count >= NOTES_MAX)
		return;
	note = &owner->notes[cache->note_count++];
	note->kind = kind;
	note->offset = offset;
	note->damage = damage;
	va_start(arguments, format);
	vsnprintf(note->text, sizeof(note->text), format, arguments);
	va_end(arguments);
	for (char *at = note->text; *at; at++) /* names of the file are in it */
		if ((unsigned char)*at < ' ' || *at == 0x7f)
			*at = '?';
	cache->notes = owner->notes;
}

static struct saved_cache *new_cache(const char *path)
{
	struct saved_cache *cache = calloc(1, sizeof(*cache));

	if (!cache)
		return NULL;
	cache->owner = calloc(1, sizeof(struct saved_owner));
	if (cache->owner)
		cache->path = saved_strdup(cache, path);
	if (!cache->owner || !cache->path) {
		saved_close(cache);
		return NULL;
	}
	return cache;
}

void saved_close(struct saved_cache *cache)
{
	struct saved_owner *owner = cache ? cache->owner : NULL;

	while (owner && owner->blocks) {
		struct saved_block *block = owner->blocks;
		owner->blocks = block->next;
		saved_file_close(block->file);
		free(block);
	}
	free(owner);
	free(cache);
}

/* ---- refusals ---- */

int saved_fail(struct saved_error *error, const char *slug, const char *kind, const char *path,
        const char *field, int64_t offset, const char *reason, ...)
{
	const kvc_catalog_entry *entry = kvc_catalog_find(slug);
	char number[24] = "-", place[200], text[320];
	va_list arguments;

	va_start(arguments, reason);
	vsnprintf(text, sizeof(text), reason, arguments);
	va_end(arguments);
	if (offset >= 0)
		snprintf(number, sizeof(number), "%lld", (long long)offset);
	snprintf(place, sizeof(place), "%.160s%s%s", field, offset >= 0 ? " at " : "",
	        offset >= 0 ? number : "");
	error->slug = slug;
	error->kind = kind;
	error->offset = offset;
	snprintf(error->field, sizeof(error->field), "%s", field);
	snprintf(error->path, sizeof(error->path), "%s", path);
	const struct cli_value values[] = {
		{ "path", 4, path, strlen(path) },
		{ "field", 5, field, strlen(field) },
		{ "offset", 6, number, strlen(number) },
		{ "place", 5, place, strlen(place) },
		{ "reason", 6, text, strlen(text) },
	};
	cli_fill(error->message, sizeof(error->message), entry ? entry->message : "{reason}",
	        values, sizeof(values) / sizeof(values[0]));
	return -1;
}

int saved_fail_memory(struct saved_error *error, const char *path)
{
	return saved_fail(
	        error, "cli-input-unreadable", "no_memory", path, "", -1, "%s", strerror(ENOMEM));
}

/* ---- fields ---- */

uint32_t saved_u32(const void *bytes)
{
	const unsigned char *b = bytes;

	return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

uint64_t saved_u64(const void *bytes)
{
	const unsigned char *b = bytes;

	return (uint64_t)saved_u32(b) | (uint64_t)saved_u32(b + 4) << 32;
}

/* ---- detection ---- */

/* "llamacpp" selects all of llamacpp-*. */
static bool selects(const char *as, const char *name)
{
	size_t bytes = strlen(as);

	return strncmp(as, name, bytes) == 0 && (name[bytes] == '\0' || name[bytes] == '-');
}

/* With --as naming one format, that one, whatever the content; else the first that detects. */
static const struct saved_format *choose(const struct saved_probe *probe, struct saved_error *error)
{
	const char *as = probe->options->format;

	for (size_t i = 0; formats[i].name; i++) {
		if (as && !selects(as, formats[i].name))
			continue;
		if ((as && strcmp(as, formats[i].name) == 0) || formats[i].detect(probe))
			return &formats[i];
	}
	if (as)
		saved_fail(error, "snapshot-format-unknown", "magic", probe->path, "magic", 0,
		        "its first bytes are those of no '%.32s'", as);
	else if (!probe->file)
		saved_fail(error, "snapshot-format-unknown", "directory", probe->path, "directory",
		        -1, "a directory whose files are not the layers or pages of one cache");
	else if (probe->head_bytes == 0)
		saved_fail(error, "snapshot-format-unknown", "truncated", probe->path, "magic", 0,
		        "the file is empty");
	else
		saved_fail(error, "snapshot-format-unknown", "magic", probe->path, "magic", 0,
		        "it begins with %02x %02x %02x %02x", probe->head[0], probe->head[1],
		        probe->head[2], probe->head[3]);
	return NULL;
}

/* Whether its names can be read. */
static int probe_directory(const char *path, struct saved_error *error)
{
	DIR *folder = opendir(path);

	if (!folder)
		return saved_fail(error, "cli-input-unreadable", "unreadable", path, "", -1, "%s",
		        strerror(errno));
	closedir(folder);
	return 0;
}

/* Opens what is no directory and reads its first bytes. */
static int probe_file(struct saved_cache *cache, struct saved_file **file,
        struct saved_probe *probe, struct saved_error *error)
{
	struct stat status;
	uint64_t bytes;

	if (stat(cache->path, &status) == 0 && S_ISDIR(status.st_mode))
		return probe_directory(cache->path, error);
	if (saved_file_open(file, cache->path, error))
		return -1;
	if (saved_take_file(cache, *file))
		return saved_fail_memory(error, cache->path);
	bytes = saved_file_size(*file);
	cache->file_bytes = bytes;
	probe->file = *file;
	probe->head_bytes = bytes < SAVED_HEAD_BYTES ? (size_t)bytes : SAVED_HEAD_BYTES;
	return saved_file_read(*file, 0, probe->head_bytes, probe->head, "magic", error);
}

static int open_into(
        struct saved_cache *cache, const struct saved_options *options, struct saved_error *error)
{
	struct saved_probe probe = { .path = cache->path, .options = options };
	const struct saved_format *format;
	struct saved_file *file = NULL;

	if (probe_file(cache, &file, &probe, error))
		return -1;
	format = choose(&probe, error);
	if (!format)
		return -1;
	cache->format = format->name;
	return format->open(cache, file, options, error);
}

int saved_open(struct saved_cache **out, const char *path, const struct saved_options *options,
        struct saved_error *error)
{
	static const struct saved_options none = { 0 };
	struct saved_cache *cache = new_cache(path);

	if (!cache)
		return saved_fail_memory(error, path);
	if (open_into(cache, options ? options : &none, error)) {
		saved_close(cache);
		return -1;
	}
	*out = cache;
	return 0;
}
