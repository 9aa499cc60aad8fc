/*
 * Serving traces: who asked for what, when. Reads Mooncake's JSONL (prefix blocks of 512 tokens
 * known by a hash id) and Azure's CSV (lengths only); the format is told by the first line, not by
 * the file's name.
 */
#ifndef KVCANARY_CLI_REPLAY_TRACE_H
#define KVCANARY_CLI_REPLAY_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Tokens of one prefix block in a trace. */
#define TRACE_BLOCK_TOKENS 512

/*
 * One request of a trace.
 *
 *   timestamp_ms    since the trace's first request, never below the one before
 *   input_length    tokens of the prompt, 1 .. TRACE_LENGTH_MAX
 *   output_length   tokens of the answer, 1 .. TRACE_LENGTH_MAX
 *   hash_count      0 (nothing known of sharing) or ceil(input_length / TRACE_BLOCK_TOKENS)
 *   hash_ids        equal ids are equal blocks; >= 0; belongs to the trace
 */
struct replay_request {
	int64_t timestamp_ms;
	int64_t input_length;
	int64_t output_length;
	int64_t hash_count;
	const int64_t *hash_ids;
};

#define TRACE_LENGTH_MAX (1 << 23)

struct trace {
	const struct replay_request *requests;
	int64_t count;
	const char *format; /* "mooncake" or "azure"; static */
	void *memory;       /* the reader's own */
};

/*
 * Read a whole trace; "-" is the standard input. Returns 0; else one error with file, line and reason has been printed in the
 * command's way, *out is all zero, and the result is the command's exit code (2).
 */
int trace_open(struct trace *out, const char *path);

/* Why a trace was refused: a slug of the catalogue; 'line' is 0 where no line is to blame. */
struct trace_problem {
	const char *slug;
	int64_t line;
	char reason[256];
};

/* trace_open() without printing, for tests: false with *problem filled in and *out all zero. */
bool trace_read(struct trace *out, FILE *file, struct trace_problem *problem);

/* Free what trace_open() made. An all-zero trace is fine. */
void trace_close(struct trace *trace);

#endif
