/* A safetensors file as a cache: the container, then the schema that its names fit. And what looks
 * like one of the files that people mistake for it: pickles, which are refused unread. */
#include "snapshot/reader.h"
#include "snapshot/schema.h"
#include "snapshot/side_names.h"

#include <string.h>

#define LENGTH_BYTES 8

static const struct {
	const char *format;
	bool (*fits)(const struct safetensors *container);
	int (*describe)(const struct schema_job *job);
} schemas[] = {
	{ "safetensors-kvc", schema_kvc_fits, schema_kvc_describe },
	{ "safetensors-mlx", schema_mlx_fits, schema_mlx_describe },
	{ "safetensors-vllm", schema_vllm_fits, schema_vllm_describe },
};
#define SCHEMA_COUNT (sizeof(schemas) / sizeof(schemas[0]))

/* ---- detection ---- */

static bool ends_in(const char *path, const char *suffix)
{
	size_t bytes = strlen(path), suffix_bytes = strlen(suffix);

	return bytes >= suffix_bytes && strcmp(path + bytes - suffix_bytes, suffix) == 0;
}

/* By its name too, so that a file whose first bytes are damaged is told what is wrong with them. */
bool read_safetensors_detect(const struct saved_probe *probe)
{
	if (!probe->file)
		return false;
	if (probe->head_bytes > LENGTH_BYTES && probe->head[LENGTH_BYTES] == '{' &&
	        saved_u64(probe->head) <= SAFETENSORS_HEADER_MAX)
		return true;
	return ends_in(probe->path, ".safetensors") || ends_in(probe->path, ".safetensors.zst");
}

bool read_safetensors_detect_none(const struct saved_probe *probe)
{
	(void)probe;
	return false; /* "safetensors" detects, and then chooses the schema */
}

/* ---- opening ---- */

static size_t choose_schema(const struct schema_job *job)
{
	size_t chosen = 0;

	for (size_t i = 0; i < SCHEMA_COUNT; i++)
		if (strcmp(job->cache->format, schemas[i].format) == 0)
			return i;
	while (chosen < SCHEMA_COUNT && !schemas[chosen].fits(job->container))
		chosen++;
	return chosen;
}

static int describe_container(const struct schema_job *job)
{
	size_t chosen = choose_schema(job);
	const char *schema = safetensors_metadata(job->container, "kvc.schema");

	if (schema && strcmp(schema, SIDE_SCHEMA) == 0)
		return saved_fail(
		        job->error, "snapshot-is-stamp", "stamp", job->path, "", -1, "a stamp");
	if (chosen == SCHEMA_COUNT)
		return saved_fail(job->error, "snapshot-no-cache", "no_cache", job->path, "", -1,
		        schema ? "its schema \"%.32s\" is not known"
		               : "no tensor has a name of a cache%s",
		        schema ? schema : "");
	job->cache->format = schemas[chosen].format;
	return schemas[chosen].describe(job);
}

int read_safetensors_open(struct saved_cache *cache, struct saved_file *file,
        const struct saved_options *options, struct saved_error *error)
{
	struct schema_job job = { cache, cache->path, NULL, options, error };
	struct safetensors *container;
	int failed;

	if (!file && strcmp(cache->format, "safetensors-vllm") == 0)
		return schema_vllm_open_directory(cache, options, error);
	if (!file)
		return saved_fail(error, "cli-input-unreadable", "unreadable", cache->path, "", -1,
		        "it is a directory");
	if (safetensors_open(&container, file, error))
		return -1;
	job.container = container;
	failed = describe_container(&job);
	safetensors_close(container);
	return failed;
}

/* ---- pickles ---- */

/* A zip, as torch.save writes it, or a bare pickle of protocol 2 to 5. */
bool read_pickle_detect(const struct saved_probe *probe)
{
	const unsigned char *head = probe->head;

	return probe->head_bytes >= 4 &&
	       (memcmp(head, "PK\003\004", 4) == 0 ||
	               (head[0] == 0x80 && head[1] >= 2 && head[1] <= 5 &&
	                       (head[2] == '}' || head[2] == ']' || head[2] == 'c' ||
	                               head[2] == 0x95 || head[2] == 0x8a)));
}

int read_pickle_open(struct saved_cache *cache, struct saved_file *file,
        const struct saved_options *options, struct saved_error *error)
{
	(void)file;
	(void)options;
	return saved_fail(error, "snapshot-pickle", "pickle", cache->path, "", 0,
	        "a pickle runs code when it is loaded");
}
