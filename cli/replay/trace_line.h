/*
 * One line of a trace: what a request is in each of the formats, and what is wrong with it if it is
 * none. Knows nothing of files.
 */
#ifndef KVCANARY_CLI_REPLAY_TRACE_LINE_H
#define KVCANARY_CLI_REPLAY_TRACE_LINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Exact in a double, so that a replay may scale it; 285,000 years. */
#define TRACE_MS_MAX (INT64_C(1) << 53)

enum trace_format {
	TRACE_UNKNOWN = 0,
	TRACE_MOONCAKE = 1, /* JSON lines with hash_ids */
	TRACE_AZURE = 2     /* CSV: TIMESTAMP,ContextTokens,GeneratedTokens */
};

/* What a line says, before it is stored. 'blocks' is reused from line to line; free it once. */
struct trace_line {
	int64_t time_ms; /* Mooncake: since the first request; Azure: since 1970 */
	int64_t input_tokens;
	int64_t output_tokens;
	int64_t *blocks;
	int64_t block_count;
	int64_t block_capacity;
	bool no_memory; /* why the last read failed, if it was not the line's fault */
};

/* Which format the first line that is not blank belongs to. For Azure it is the header. */
enum trace_format trace_line_format(const char *line, size_t bytes);

/*
 * Read one line (without its end) into *out. On failure false, and 'reason' (not NULL) says what is
 * wrong with the line in printable ASCII.
 */
bool trace_line_read(struct trace_line *out, enum trace_format format, const char *line,
        size_t bytes, char *reason, size_t reason_bytes);

/* 'bytes' of 'text' as printable ASCII, cut to what 'out' holds, for a message. */
void trace_printable(char *out, size_t out_bytes, const char *text, size_t bytes);

#endif
