/*
 * Reads the files of data/sglang_vectors: what SGLang's kv-canary gives, case by case. The README
 * there says what the fields mean. Everything that these functions return belongs to the reader and
 * lives until the next case; malformed files end the test program, since they are our own.
 *
 *   struct vectors v;
 *   vectors_open(&v, "scatter.jsonl");
 *   while (vectors_next(&v)) { ... vectors_int(v.item, "bs") ... vectors_passed(&v, ok); }
 *   assert_true(vectors_close(&v));      prints "scatter.jsonl: 43 of 43"
 */
#ifndef SGLANG_VECTORS_H
#define SGLANG_VECTORS_H

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VECTORS_BLOCKS_MAX 4096 /* arrays that one case may take apart */

struct vectors {
	const char *name;
	FILE *file;
	char *line;
	size_t line_capacity;
	json_t *item; /* the case at hand */
	int64_t cases_promised;
	int64_t cases_seen;
	int64_t cases_passed;
	void *blocks[VECTORS_BLOCKS_MAX];
	size_t block_count;
};

static inline void vectors__die(const struct vectors *v, const char *what)
{
	fprintf(stderr, "%s: case %lld: %s\n", v->name, (long long)v->cases_seen, what);
	exit(2);
}

/* Zeroed memory that lives until the next case. */
static inline void *vectors_block(struct vectors *v, size_t count, size_t item_bytes)
{
	if (v->block_count == VECTORS_BLOCKS_MAX)
		vectors__die(v, "too many arrays");
	/* One more, so that an empty array is not NULL. */
	void *block = calloc(count + 1, item_bytes);
	if (!block)
		vectors__die(v, "out of memory");
	v->blocks[v->block_count++] = block;
	return block;
}

static inline int vectors__read_line(struct vectors *v)
{
	for (size_t i = 0; i < v->block_count; i++)
		free(v->blocks[i]);
	v->block_count = 0;
	json_decref(v->item);
	v->item = NULL;
	ssize_t line_bytes = getline(&v->line, &v->line_capacity, v->file);
	if (line_bytes <= 0)
		return 0;
	v->item = json_loadb(v->line, (size_t)line_bytes, JSON_REJECT_DUPLICATES, NULL);
	if (!v->item)
		vectors__die(v, "not a JSON object");
	return 1;
}

/* The field 'key' of 'item'; it must be there. */
static inline json_t *vectors_field(const json_t *item, const char *key)
{
	json_t *field = json_object_get(item, key);
	if (!field) {
		fprintf(stderr, "vectors: no field '%s'\n", key);
		exit(2);
	}
	return field;
}

static inline int vectors_is_null(const json_t *item, const char *key)
{
	return json_is_null(vectors_field(item, key));
}

static inline int64_t vectors_int(const json_t *item, const char *key)
{
	return json_integer_value(vectors_field(item, key));
}

static inline int vectors_bool(const json_t *item, const char *key)
{
	return json_is_true(vectors_field(item, key));
}

static inline const char *vectors_text(const json_t *item, const char *key)
{
	return json_string_value(vectors_field(item, key));
}

static inline const char *vectors_id(const struct vectors *v)
{
	return vectors_text(v->item, "id");
}

/* 16 hex digits: 64 bits, most significant digit first. */
static inline uint64_t vectors_h64(const json_t *value)
{
	const char *text = json_string_value(value);
	return text ? strtoull(text, NULL, 16) : 0;
}

/* An array of numbers or of h64, mixed freely, as int64; count_out may be NULL. */
static inline int64_t *vectors_int64s(struct vectors *v, const json_t *array, int64_t *count_out)
{
	size_t count = json_array_size(array);
	int64_t *out = vectors_block(v, count, sizeof(*out));
	for (size_t i = 0; i < count; i++) {
		json_t *value = json_array_get(array, i);
		out[i] = json_is_string(value) ? (int64_t)vectors_h64(value)
		                               : json_integer_value(value);
	}
	if (count_out)
		*count_out = (int64_t)count;
	return out;
}

static inline int32_t *vectors_int32s(struct vectors *v, const json_t *array, int64_t *count_out)
{
	size_t count = json_array_size(array);
	int32_t *out = vectors_block(v, count, sizeof(*out));
	for (size_t i = 0; i < count; i++)
		out[i] = (int32_t)json_integer_value(json_array_get(array, i));
	if (count_out)
		*count_out = (int64_t)count;
	return out;
}

/* Hex pairs in memory order; 16-byte aligned, as calloc gives it. */
static inline uint8_t *vectors_bytes(struct vectors *v, const json_t *value, int64_t *count_out)
{
	const char *text = json_string_value(value);
	size_t count = text ? strlen(text) / 2 : 0;
	uint8_t *out = vectors_block(v, count, 1);
	for (size_t i = 0; i < count; i++) {
		char pair[3] = { text[2 * i], text[2 * i + 1], '\0' };
		out[i] = (uint8_t)strtoul(pair, NULL, 16);
	}
	if (count_out)
		*count_out = (int64_t)count;
	return out;
}

/* A table {"rows", "cols", "data"}: row-major int32, rows and columns in shape_out[2]. */
static inline int32_t *vectors_table(struct vectors *v, const json_t *table, int64_t *shape_out)
{
	shape_out[0] = vectors_int(table, "rows");
	shape_out[1] = vectors_int(table, "cols");
	return vectors_int32s(v, vectors_field(table, "data"), NULL);
}

/* Open data/sglang_vectors/NAME below the current folder, or below $KVC_VECTORS if that is set. */
static inline void vectors_open(struct vectors *v, const char *name)
{
	memset(v, 0, sizeof(*v));
	v->name = name;
	const char *folder = getenv("KVC_VECTORS");
	char path[1024];
	snprintf(path, sizeof(path), "%s/%s", folder ? folder : "data/sglang_vectors", name);
	v->file = fopen(path, "r");
	if (!v->file || !vectors__read_line(v)) {
		fprintf(stderr, "%s: cannot be read\n", path);
		exit(2);
	}
	v->cases_promised = vectors_int(v->item, "cases");
}

/* On to the next case, in v->item; 0 after the last. */
static inline int vectors_next(struct vectors *v)
{
	if (!vectors__read_line(v))
		return 0;
	v->cases_seen++;
	return 1;
}

/* Count the case at hand; a failed one is named. */
static inline void vectors_passed(struct vectors *v, int passed)
{
	if (passed) {
		v->cases_passed++;
		return;
	}
	const json_t *note = json_object_get(v->item, "note");
	fprintf(stderr, "%s: %s FAILED (%s)\n", v->name, vectors_id(v),
	        note && json_is_string(note) ? json_string_value(note) : "");
}

/* Print "NAME: PASSED of PROMISED"; 1 if every promised case was there and passed. */
static inline int vectors_close(struct vectors *v)
{
	printf("%s: %lld of %lld\n", v->name, (long long)v->cases_passed,
	        (long long)v->cases_promised);
	fflush(stdout);
	fclose(v->file);
	free(v->line);
	json_decref(v->item);
	return v->cases_seen == v->cases_promised && v->cases_passed == v->cases_promised;
}

#endif
