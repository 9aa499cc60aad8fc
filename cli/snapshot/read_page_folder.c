/*
 * Directories of raw pages without a manifest: what names and sizes tell, and nothing about rows.
 *
 *	SGLang HiCache, file backend    <key>[.<component>]_<model>[_<rank>_<size>].bin, one page each
 *	vLLM offloading, "fs" tier      <hhh>/<hh>_g<group>/<hash>.bin, beside or below a config.json
 *
 * The files of a group have one size, since each is exactly one page or block; a hash begins with
 * the names of its directories; a temporary file is a write that did not end.
 */
#include "snapshot/reader.h"

#include <ctype.h>
#include <dirent.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define SUFFIX ".bin"
#define KEY_LEAST 16 /* hexadecimal digits of a page's key */
#define GROUPS_MAX 64
#define SIZES_MAX 4
#define BELOW_BYTES (PATH_MAX + 258) /* any path that opens, and a name in it */

/* Files of one size, and the first of their names. */
struct folder_size {
	uint64_t bytes;
	uint64_t files;
	char name[160];
};

/* What belongs together and should have one size. */
struct folder_group {
	char name[192]; /* what follows the key in HiCache; "g0" of vLLM */
	uint64_t files;
	uint64_t other_files; /* of sizes beyond these */
	int size_count;
	struct folder_size sizes[SIZES_MAX];
};

struct folder_scan {
	struct saved_cache *cache;
	int group_count;
	uint64_t ungrouped; /* more groups than are counted */
	struct folder_group groups[GROUPS_MAX];
	uint64_t leftovers, misplaced;
	char misplaced_name[160];
};

/* ---- names ---- */

static size_t hex_digits(const char *text)
{
	size_t count = 0;

	while (isdigit((unsigned char)text[count]) || (text[count] >= 'a' && text[count] <= 'f'))
		count++;
	return count;
}

static bool has_suffix(const char *name, const char *suffix)
{
	size_t bytes = strlen(name), suffix_bytes = strlen(suffix);

	return bytes > suffix_bytes && strcmp(name + bytes - suffix_bytes, suffix) == 0;
}

/* "<key>_<model>.bin" or "<key>.<component>_<model>.bin". */
static bool is_hicache_page(const char *name)
{
	size_t digits = hex_digits(name);

	return digits >= KEY_LEAST && (name[digits] == '_' || name[digits] == '.') &&
	       has_suffix(name, SUFFIX) && strlen(name) > digits + sizeof(SUFFIX);
}

/* "3fa" of "<hhh>"; "1b_g0" of "<hh>_g<group>". */
static bool is_shard(const char *name)
{
	return hex_digits(name) == 3 && name[3] == '\0';
}

static bool is_group_folder(const char *name)
{
	return hex_digits(name) == 2 && strncmp(name + 2, "_g", 2) == 0 &&
	       isdigit((unsigned char)name[4]);
}

/* ---- counting ---- */

static struct folder_group *group_named(struct folder_scan *scan, const char *name)
{
	for (int i = 0; i < scan->group_count; i++)
		if (strcmp(scan->groups[i].name, name) == 0)
			return &scan->groups[i];
	if (scan->group_count == GROUPS_MAX)
		return NULL;
	snprintf(scan->groups[scan->group_count].name, sizeof(scan->groups[0].name), "%s", name);
	return &scan->groups[scan->group_count++];
}

static void count_size(struct folder_group *group, const char *name, uint64_t bytes)
{
	struct folder_size *size = group->sizes;

	group->files++;
	while (size < group->sizes + group->size_count && size->bytes != bytes)
		size++;
	if (size == group->sizes + SIZES_MAX) {
		group->other_files++;
		return;
	}
	if (size == group->sizes + group->size_count) {
		group->size_count++;
		size->bytes = bytes;
	}
	/* Directories come in any order: the report must not. */
	if (size->files++ == 0 || strcmp(name, size->name) < 0)
		snprintf(size->name, sizeof(size->name), "%.159s", name);
}

static void count_page(
        struct folder_scan *scan, const char *group_name, const char *name, uint64_t bytes)
{
	char short_name[sizeof(scan->groups[0].name)];
	struct folder_group *group;

	snprintf(short_name, sizeof(short_name), "%.150s", group_name);
	group = group_named(scan, short_name);
	scan->cache->file_bytes += bytes;
	if (group)
		count_size(group, name, bytes);
	else
		scan->ungrouped++;
}

/* Every name of a directory to a function, with its size; false if it cannot be read. */
static bool for_each_entry(struct folder_scan *scan, const char *path, const char *context,
        void (*visit)(struct folder_scan *, const char *path, const char *context, const char *name,
                const struct stat *status))
{
	DIR *folder = opendir(path);

	if (!folder)
		return false;
	for (struct dirent *entry; (entry = readdir(folder));) {
		struct stat status;
		if (entry->d_name[0] != '.' &&
		        fstatat(dirfd(folder), entry->d_name, &status, 0) == 0)
			visit(scan, path, context, entry->d_name, &status);
	}
	closedir(folder);
	return true;
}

/* ---- HiCache ---- */

static void visit_hicache(struct folder_scan *scan, const char *path, const char *context,
        const char *name, const struct stat *status)
{
	(void)path;
	(void)context;
	if (!S_ISREG(status->st_mode))
		return;
	if (strstr(name, ".tmp.") || has_suffix(name, ".tmp"))
		scan->leftovers++;
	else if (is_hicache_page(name))
		count_page(scan, name + hex_digits(name), name, (uint64_t)status->st_size);
}

/* ---- vLLM's fs tier ---- */

/* <hash>.bin in <hhh>/<hh>_g<group>; the hash begins with both. */
static void visit_blocks(struct folder_scan *scan, const char *path, const char *context,
        const char *name, const struct stat *status)
{
	const char *folder = strrchr(path, '/') + 1;

	if (!S_ISREG(status->st_mode))
		return;
	if (strstr(name, ".tmp")) {
		scan->leftovers++;
		return;
	}
	if (!has_suffix(name, SUFFIX))
		return;
	if (strncmp(name, context, 3) != 0 || strncmp(name + 3, folder, 2) != 0) {
		char place[sizeof(scan->misplaced_name)];
		snprintf(place, sizeof(place), "%.8s/%.16s/%.120s", context, folder, name);
		if (scan->misplaced++ == 0 || strcmp(place, scan->misplaced_name) < 0)
			memcpy(scan->misplaced_name, place, sizeof(place));
	}
	count_page(scan, folder + 3, name, (uint64_t)status->st_size);
}

static void visit_group_folders(struct folder_scan *scan, const char *path, const char *context,
        const char *name, const struct stat *status)
{
	char below[BELOW_BYTES];

	(void)context;
	if (!S_ISDIR(status->st_mode) || !is_group_folder(name))
		return;
	snprintf(below, sizeof(below), "%.*s/%.255s", PATH_MAX, path, name);
	for_each_entry(scan, below, strrchr(path, '/') + 1, visit_blocks);
}

static void visit_shards(struct folder_scan *scan, const char *path, const char *context,
        const char *name, const struct stat *status)
{
	char below[BELOW_BYTES];

	(void)context;
	if (!S_ISDIR(status->st_mode) || !is_shard(name))
		return;
	snprintf(below, sizeof(below), "%.*s/%.255s", PATH_MAX, path, name);
	for_each_entry(scan, below, "", visit_group_folders);
}

/* ---- detection ---- */

/* An entry of a directory that a function takes; it is given the directory's path, too. */
static bool holds_entry(const char *path, bool (*is_it)(const char *path, const char *name))
{
	DIR *folder = opendir(path);
	bool found = false;

	for (struct dirent *entry; folder && !found && (entry = readdir(folder));)
		found = is_it(path, entry->d_name);
	if (folder)
		closedir(folder);
	return found;
}

/* Files of other formats may be named by a hash, too: they say at their beginning what they are. */
static bool is_raw_page(const char *path, const char *name)
{
	char below[BELOW_BYTES];
	struct saved_file *file;
	struct saved_error error;
	struct saved_probe probe = { .path = below };
	bool raw;

	if (!is_hicache_page(name))
		return false;
	snprintf(below, sizeof(below), "%.*s/%.255s", PATH_MAX, path, name);
	if (saved_file_open(&file, below, &error))
		return true;
	probe.file = file;
	probe.head_bytes = saved_file_size(file) < SAVED_HEAD_BYTES ? (size_t)saved_file_size(file)
	                                                            : SAVED_HEAD_BYTES;
	raw = saved_file_read(file, 0, probe.head_bytes, probe.head, "magic", &error) != 0 ||
	      !(llamacpp_seq_detect(&probe) || llamacpp_ctx_detect(&probe) ||
	              llamacpp_blob_detect(&probe) || read_safetensors_detect(&probe) ||
	              read_pickle_detect(&probe));
	saved_file_close(file);
	return raw;
}

static bool is_block_folder(const char *path, const char *name)
{
	(void)path;
	return is_group_folder(name);
}

/* A number of three digits is a common name of a directory: it must hold groups. */
static bool is_shard_of_groups(const char *path, const char *name)
{
	char below[BELOW_BYTES];

	snprintf(below, sizeof(below), "%.*s/%.255s", PATH_MAX, path, name);
	return is_shard(name) && holds_entry(below, is_block_folder);
}

bool read_hicache_detect(const struct saved_probe *probe)
{
	return !probe->file && holds_entry(probe->path, is_raw_page);
}

bool read_vllm_fs_detect(const struct saved_probe *probe)
{
	return !probe->file && holds_entry(probe->path, is_shard_of_groups);
}

/* ---- saying it ---- */

/* The commonest size first; of two as common, the larger one. */
static int by_files(const void *a, const void *b)
{
	const struct folder_size *left = a, *right = b;

	if (left->files != right->files)
		return left->files > right->files ? -1 : 1;
	return left->bytes > right->bytes ? -1 : left->bytes < right->bytes;
}

static int by_group_name(const void *a, const void *b)
{
	return strcmp(
	        ((const struct folder_group *)a)->name, ((const struct folder_group *)b)->name);
}

static void note_group(struct folder_scan *scan, struct folder_group *group)
{
	const struct folder_size *size = group->sizes;

	qsort(group->sizes, (size_t)group->size_count, sizeof(*size), by_files);
	saved_add_note(scan->cache, "pages", -1, false,
	        "%" PRIu64 " pages of %" PRIu64 " bytes: %s", group->files, size->bytes,
	        group->name);
	if (size->files < group->files)
		saved_add_note(scan->cache, "page_size", -1, true,
		        "%" PRIu64 " of %" PRIu64 " pages have another size, such as %.120s",
		        group->files - size->files, group->files, group->sizes[1].name);
	else if (size->bytes == 0)
		saved_add_note(scan->cache, "page_size", -1, true, "pages without a byte: %s",
		        group->name);
}

static void note_folder(struct folder_scan *scan)
{
	saved_add_note(scan->cache, "no_manifest", -1, false,
	        "dtype, heads, layers and layout are not in the files: --manifest tells them");
	qsort(scan->groups, (size_t)scan->group_count, sizeof(scan->groups[0]), by_group_name);
	for (int i = 0; i < scan->group_count; i++)
		note_group(scan, &scan->groups[i]);
	if (scan->ungrouped)
		saved_add_note(scan->cache, "pages", -1, false,
		        "%" PRIu64 " pages of further groups were not looked at", scan->ungrouped);
	if (scan->leftovers)
		saved_add_note(scan->cache, "leftover", -1, false,
		        "temporary files of writes that did not end: %" PRIu64, scan->leftovers);
	if (scan->misplaced)
		saved_add_note(scan->cache, "misplaced", -1, true,
		        "files in a directory that is not their hash's: %" PRIu64 ", such as %s",
		        scan->misplaced, scan->misplaced_name);
}

/* Both, by the name of the format. */
int read_page_folder_open(struct saved_cache *cache, struct saved_file *file,
        const struct saved_options *options, struct saved_error *error)
{
	bool is_hicache = strcmp(cache->format, "hicache") == 0;
	struct folder_scan *scan;
	bool good;

	(void)options;
	if (file)
		return saved_fail(error, "snapshot-no-manifest", "no_manifest", cache->path, "", -1,
		        "a page alone");
	scan = calloc(1, sizeof(*scan));
	if (!scan)
		return saved_fail_memory(error, cache->path);
	scan->cache = cache;
	good = for_each_entry(scan, cache->path, "", is_hicache ? visit_hicache : visit_shards);
	if (good) {
		cache->writer =
		        is_hicache ? "SGLang HiCache, file backend" : "vLLM offloading, fs tier";
		snprintf(cache->version, sizeof(cache->version), "pages without manifest");
		note_folder(scan);
	}
	free(scan);
	return good ? 0
	            : saved_fail(error, "cli-input-unreadable", "unreadable", cache->path, "", -1,
	                      "it is no directory that can be read");
}
