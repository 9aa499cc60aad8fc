/* Any file: the trace readers refuse it with a reason, or every request they hand out is sound. */
#include "replay/trace.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t data_bytes);

static void check_request(const struct replay_request *request, int64_t before_ms)
{
	int64_t blocks = (request->input_length + TRACE_BLOCK_TOKENS - 1) / TRACE_BLOCK_TOKENS;
	if (request->timestamp_ms < before_ms || request->input_length < 1 ||
	        request->output_length < 1 || request->input_length > TRACE_LENGTH_MAX ||
	        request->output_length > TRACE_LENGTH_MAX)
		abort();
	if (request->hash_count != 0 && request->hash_count != blocks)
		abort();
	for (int64_t i = 0; i < request->hash_count; ++i)
		if (request->hash_ids[i] < 0)
			abort();
}

static void check_problem(const struct trace_problem *problem)
{
	size_t bytes = strlen(problem->reason);
	if (strncmp(problem->slug, "trace-", 6) != 0 || problem->line < 0)
		abort();
	for (size_t i = 0; i < bytes; ++i)
		if (problem->reason[i] < 0x20 || problem->reason[i] > 0x7e)
			abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t data_bytes)
{
	struct trace trace;
	struct trace_problem problem;
	/* fmemopen() does not take an empty buffer; it never writes to one opened for reading. */
	FILE *file = data_bytes ? fmemopen((void *)(uintptr_t)data, data_bytes, "rb")
	                        : fopen("/dev/null", "rb");
	if (!file)
		abort();
	if (trace_read(&trace, file, &problem)) {
		if (trace.count < 1)
			abort();
		for (int64_t i = 0; i < trace.count; ++i)
			check_request(
			        &trace.requests[i], i ? trace.requests[i - 1].timestamp_ms : 0);
		trace_close(&trace);
	} else
		check_problem(&problem);
	fclose(file);
	return 0;
}
