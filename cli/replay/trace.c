/*
 * Reads a trace of requests: lines from a file in bounded memory, each turned into a request by
 * trace_line.c and checked against the one before it.
 */
#include "replay/trace.h"

#include "cli.h"
#include "replay/trace_line.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- Lines --------------------------------------------------------------------------------- */

/* The longest line of the real traces has 2,700 bytes; a prompt of 2^24 tokens needs 400,000. */
#define LINE_BYTES_MAX ((size_t)1 << 20)
#define CHUNK_BYTES ((size_t)1 << 16)

struct lines {
	FILE *file;
	char *buffer; /* [begin, end) was read and is not yet handed out */
	size_t capacity;
	size_t begin;
	size_t end;
	bool ended;
	int64_t number; /* of the line handed out last, from 1 */
};

enum line_result { LINE_GOOD, LINE_END, LINE_TOO_LONG, LINE_READ_ERROR, LINE_NO_MEMORY };

/* Make room and read more behind 'end'. */
static enum line_result fill(struct lines *lines)
{
	memmove(lines->buffer, lines->buffer + lines->begin, lines->end - lines->begin);
	lines->end -= lines->begin;
	lines->begin = 0;
	if (lines->end > LINE_BYTES_MAX)
		return LINE_TOO_LONG;
	if (lines->capacity - lines->end < CHUNK_BYTES) {
		char *buffer = realloc(lines->buffer, lines->capacity * 2);
		if (!buffer)
			return LINE_NO_MEMORY;
		lines->buffer = buffer;
		lines->capacity *= 2;
	}
	size_t got = fread(lines->buffer + lines->end, 1, CHUNK_BYTES, lines->file);
	lines->end += got;
	lines->ended = got < CHUNK_BYTES;
	return lines->ended && ferror(lines->file) ? LINE_READ_ERROR : LINE_GOOD;
}

/* The next line without its end (LF or CR LF); valid until the next call. */
static enum line_result next_line(struct lines *lines, const char **line_out, size_t *bytes_out)
{
	size_t searched = 0;
	for (;;) {
		char *line = lines->buffer + lines->begin;
		size_t there = lines->end - lines->begin;
		char *newline = memchr(line + searched, '\n', there - searched);
		if (newline || lines->ended) {
			if (!newline && !there)
				return LINE_END;
			size_t bytes = newline ? (size_t)(newline - line) : there;
			lines->begin += bytes + (newline != NULL);
			++lines->number;
			if (bytes > LINE_BYTES_MAX)
				return LINE_TOO_LONG;
			*line_out = line;
			*bytes_out = bytes && line[bytes - 1] == '\r' ? bytes - 1 : bytes;
			return LINE_GOOD;
		}
		searched = there;
		enum line_result result = fill(lines);
		if (result != LINE_GOOD) {
			++lines->number;
			return result;
		}
	}
}

/* A line worth reading: skips those of spaces and tabs alone. */
static enum line_result next_full_line(
        struct lines *lines, const char **line_out, size_t *bytes_out)
{
	for (;;) {
		enum line_result result = next_line(lines, line_out, bytes_out);
		if (result != LINE_GOOD)
			return result;
		if (lines->number == 1 && *bytes_out >= 3 &&
		        memcmp(*line_out, "\xef\xbb\xbf", 3) == 0) { /* UTF-8's mark */
			*line_out += 3;
			*bytes_out -= 3;
		}
		for (size_t i = 0; i < *bytes_out; ++i)
			if ((*line_out)[i] != ' ' && (*line_out)[i] != '\t')
				return LINE_GOOD;
	}
}

/* ---- Problems ------------------------------------------------------------------------------ */

static bool fail(struct trace_problem *problem, const char *slug, int64_t line, const char *reason)
{
	problem->slug = slug;
	problem->line = line;
	snprintf(problem->reason, sizeof(problem->reason), "%s", reason);
	return false;
}

static bool fail_line(
        struct trace_problem *problem, const struct lines *lines, enum line_result result)
{
	char reason[64];
	if (result == LINE_READ_ERROR)
		return fail(problem, "cli-input-unreadable", 0, strerror(errno));
	if (result == LINE_NO_MEMORY)
		return fail(problem, "trace-too-large", lines->number, "out of memory");
	snprintf(reason, sizeof(reason), "longer than %zu bytes", LINE_BYTES_MAX);
	return fail(problem, "trace-line-malformed", lines->number, reason);
}

/* ---- Requests ------------------------------------------------------------------------------ */

/* What a trace may take: 349 times the requests of the real hour, and 1 GiB of ids. */
#define REQUESTS_MAX (INT64_C(1) << 22)
#define BLOCKS_MAX (INT64_C(1) << 27)

/* Behind trace.memory. Requests point into 'blocks' once all are read: until then it may move. */
struct store {
	struct replay_request *requests;
	int64_t request_count;
	int64_t request_capacity;
	int64_t *blocks;
	int64_t block_count;
	int64_t block_capacity;
};

struct reading {
	struct store *store;
	struct trace_problem *problem;
	struct lines lines;
	struct trace_line line;
	enum trace_format format;
	int64_t first_ms;
	int64_t last_ms;
};

static void free_store(struct store *store)
{
	if (!store)
		return;
	free(store->requests);
	free(store->blocks);
	free(store);
}

/* 'array' made larger until 'needed' elements fit, or NULL and the array is as it was. */
static void *grow(void *array, int64_t *capacity, int64_t needed, size_t element_bytes)
{
	int64_t wanted = *capacity ? *capacity : 1024;
	while (wanted < needed)
		wanted *= 2;
	if (wanted == *capacity)
		return array;
	void *bigger = realloc(array, (size_t)wanted * element_bytes);
	if (bigger)
		*capacity = wanted;
	return bigger;
}

static bool make_room(struct store *store, int64_t block_count)
{
	struct replay_request *requests = grow(store->requests, &store->request_capacity,
	        store->request_count + 1, sizeof(*requests));
	if (requests)
		store->requests = requests;
	int64_t *blocks = grow(store->blocks, &store->block_capacity,
	        store->block_count + block_count, sizeof(*blocks));
	if (blocks)
		store->blocks = blocks;
	return requests && blocks;
}

static bool store_request(struct reading *reading)
{
	struct store *store = reading->store;
	const struct trace_line *line = &reading->line;
	if (store->request_count == REQUESTS_MAX ||
	        store->block_count + line->block_count > BLOCKS_MAX)
		return fail(reading->problem, "trace-too-large", reading->lines.number,
		        "more requests or blocks than are supported");
	if (!make_room(store, line->block_count))
		return fail(reading->problem, "trace-too-large", reading->lines.number,
		        "out of memory");
	store->requests[store->request_count++] = (struct replay_request){
		line->time_ms - reading->first_ms,
		line->input_tokens,
		line->output_tokens,
		line->block_count,
		NULL,
	};
	if (line->block_count)
		memcpy(store->blocks + store->block_count, line->blocks,
		        (size_t)line->block_count * sizeof(*line->blocks));
	store->block_count += line->block_count;
	return true;
}

static bool read_request(struct reading *reading, const char *text, size_t bytes)
{
	char reason[sizeof(reading->problem->reason)];
	const struct trace_line *line = &reading->line;
	int64_t number = reading->lines.number;
	if (!trace_line_read(&reading->line, reading->format, text, bytes, reason, sizeof(reason)))
		return fail(reading->problem,
		        line->no_memory ? "trace-too-large" : "trace-line-malformed", number,
		        reason);
	if (!reading->store->request_count)
		reading->first_ms = reading->last_ms = line->time_ms;
	if (line->time_ms < reading->last_ms) {
		snprintf(reason, sizeof(reason),
		        "its time is %" PRId64 " ms before that of the request above it",
		        reading->last_ms - line->time_ms);
		return fail(reading->problem, "trace-line-malformed", number, reason);
	}
	reading->last_ms = line->time_ms;
	return store_request(reading);
}

/* The first line tells the format; Azure's is a header and no request. */
static bool read_first(struct reading *reading, const char *text, size_t bytes)
{
	char shown[41];
	reading->format = trace_line_format(text, bytes);
	if (reading->format == TRACE_MOONCAKE)
		return read_request(reading, text, bytes);
	if (reading->format == TRACE_AZURE)
		return true;
	trace_printable(shown, sizeof(shown), text, bytes);
	return fail(reading->problem, "trace-format-unknown", reading->lines.number, shown);
}

static bool read_lines(struct reading *reading)
{
	const char *text;
	size_t bytes;
	enum line_result result;
	while ((result = next_full_line(&reading->lines, &text, &bytes)) == LINE_GOOD) {
		bool good = reading->format == TRACE_UNKNOWN ? read_first(reading, text, bytes)
		                                             : read_request(reading, text, bytes);
		if (!good)
			return false;
	}
	if (result != LINE_END)
		return fail_line(reading->problem, &reading->lines, result);
	if (!reading->store->request_count)
		return fail(reading->problem, "trace-empty", 0, "");
	return true;
}

static void hand_out(struct trace *out, const struct reading *reading)
{
	struct store *store = reading->store;
	const int64_t *blocks = store->blocks;
	for (int64_t i = 0; i < store->request_count; ++i) {
		store->requests[i].hash_ids = blocks;
		blocks += store->requests[i].hash_count;
	}
	out->requests = store->requests;
	out->count = store->request_count;
	out->format = reading->format == TRACE_AZURE ? "azure" : "mooncake";
	out->memory = store;
}

bool trace_read(struct trace *out, FILE *file, struct trace_problem *problem)
{
	struct reading reading = { .problem = problem };
	bool good;
	memset(out, 0, sizeof(*out));
	memset(problem, 0, sizeof(*problem));
	reading.store = calloc(1, sizeof(*reading.store));
	reading.lines.file = file;
	reading.lines.capacity = 2 * CHUNK_BYTES;
	reading.lines.buffer = malloc(reading.lines.capacity);
	if (reading.store && reading.lines.buffer)
		good = read_lines(&reading);
	else
		good = fail(problem, "trace-too-large", 0, "out of memory");
	if (good)
		hand_out(out, &reading);
	else
		free_store(reading.store);
	free(reading.lines.buffer);
	free(reading.line.blocks);
	return good;
}

int trace_open(struct trace *out, const char *path)
{
	struct trace_problem problem;
	char line[24];
	FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
	memset(out, 0, sizeof(*out));
	if (!file)
		return cli_fail(
		        "cli-input-unreadable", "path", path, "reason", strerror(errno), NULL);
	bool good = trace_read(out, file, &problem);
	if (file != stdin)
		fclose(file);
	if (good)
		return CLI_GOOD;
	snprintf(line, sizeof(line), "%" PRId64, problem.line);
	return cli_fail(problem.slug, "path", path, "line", line, "reason", problem.reason, NULL);
}

void trace_close(struct trace *trace)
{
	free_store(trace->memory);
	memset(trace, 0, sizeof(*trace));
}
