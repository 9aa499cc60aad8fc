/*
 * Goal: the trace readers take the real traces as they are and refuse anything else with the line
 * and the reason. Method: whole files against counts made elsewhere; a table of bad files, each
 * with its exact slug, line and reason; the printed error once for each slug.
 */
#include "cli.h"
#include "replay/trace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define M(time, input, output, ids)                                                                \
	"{\"timestamp\": " time ", \"input_length\": " input ", \"output_length\": " output        \
	", \"hash_ids\": " ids "}\n"
#define GOOD_M M("5", "600", "2", "[1, 2]")
#define HEADER "TIMESTAMP,ContextTokens,GeneratedTokens\n"
#define A(fields) HEADER "2023-11-16 18:15:46.6805900,374,44\n" fields "\n"

static bool read_text(
        struct trace *out, const char *text, size_t bytes, struct trace_problem *problem)
{
	FILE *file = tmpfile();
	assert_non_null(file);
	assert_int_equal(fwrite(text, 1, bytes, file), bytes);
	rewind(file);
	bool good = trace_read(out, file, problem);
	fclose(file);
	return good;
}

static struct trace read_good(const char *text)
{
	struct trace trace;
	struct trace_problem problem;
	if (!read_text(&trace, text, strlen(text), &problem))
		fail_msg("[%s] line %lld: %s", problem.slug, (long long)problem.line,
		        problem.reason);
	return trace;
}

static void real_mooncake_trace_is_read_whole(void **state)
{
	(void)state;
	struct trace trace;
	int64_t input = 0, output = 0, blocks = 0, largest = 0;
	assert_int_equal(trace_open(&trace, "data/mooncake_conversation_trace.jsonl"), 0);
	assert_int_equal(trace.count, 12031);
	assert_string_equal(trace.format, "mooncake");
	for (int64_t i = 0; i < trace.count; ++i) {
		const struct replay_request *request = &trace.requests[i];
		input += request->input_length;
		output += request->output_length;
		blocks += request->hash_count;
		for (int64_t j = 0; j < request->hash_count; ++j)
			if (request->hash_ids[j] > largest)
				largest = request->hash_ids[j];
	}
	assert_int_equal(input, 144793823);
	assert_int_equal(output, 4122048);
	assert_int_equal(blocks, 288500);
	assert_int_equal(largest, 182789);
	assert_int_equal(trace.requests[12030].timestamp_ms, 3536999);
	trace_close(&trace);
	assert_null(trace.requests);
}

static void real_azure_trace_is_read_whole(void **state)
{
	(void)state;
	struct trace trace;
	assert_int_equal(trace_open(&trace, "data/azure_llm_2023_conv.csv"), 0);
	assert_int_equal(trace.count, 19366);
	assert_string_equal(trace.format, "azure");
	assert_int_equal(trace.requests[0].timestamp_ms, 0);
	assert_int_equal(trace.requests[0].input_length, 374);
	assert_int_equal(trace.requests[0].output_length, 44);
	assert_int_equal(trace.requests[0].hash_count, 0);
	/* 18:15:46.680 to 19:14:08.402 */
	assert_int_equal(trace.requests[19365].timestamp_ms, 3501722);
	assert_int_equal(trace.requests[19365].input_length, 197);
	trace_close(&trace);
}

static void mooncake_in_odd_forms_is_read(void **state)
{
	(void)state;
	/* A byte order mark, blank lines, CR LF, spaces, other keys, no end of the last line. */
	struct trace trace = read_good("\xef\xbb\xbf\r\n  \t\r\n"
	                               " {\"more\": [null, {}], \"timestamp\": 7, \"hash_ids\": "
	                               "[9], \"output_length\": 1, \"input_length\": 512}\r\n"
	                               "{\"timestamp\":9,\"input_length\":513,\"output_length\":1,"
	                               "\"hash_ids\":[9,9223372036854775807]}");
	assert_int_equal(trace.count, 2);
	assert_int_equal(trace.requests[0].timestamp_ms, 0);
	assert_int_equal(trace.requests[1].timestamp_ms, 2);
	assert_int_equal(trace.requests[0].hash_count, 1);
	assert_int_equal(trace.requests[0].hash_ids[0], 9);
	assert_int_equal(trace.requests[1].hash_ids[1], INT64_MAX);
	trace_close(&trace);
}

static void azure_in_odd_forms_is_read(void **state)
{
	(void)state;
	/* Quotes, a leap day, a zone, a time without decimals, "T", trailing blank lines. */
	struct trace trace = read_good("\"TIMESTAMP\",\"ContextTokens\",\"GeneratedTokens\"\r\n"
	                               "\"2024-02-29 23:59:59.999\",\"1\",\"2\"\r\n"
	                               "2024-03-01 00:00:00.0099999,3,4\n"
	                               "2024-03-01T01:00:01+01:00,8388608,008388608\n\r\n\n");
	assert_int_equal(trace.count, 3);
	assert_int_equal(trace.requests[1].timestamp_ms, 10);
	assert_int_equal(trace.requests[2].timestamp_ms, 1001);
	assert_int_equal(trace.requests[2].output_length, TRACE_LENGTH_MAX);
	assert_int_equal(trace.requests[2].hash_count, 0);
	trace_close(&trace);
}

struct bad {
	const char *text;
	size_t bytes; /* 0 = strlen(text) */
	const char *slug;
	int64_t line;
	const char *reason;
};

#define MALFORMED "trace-line-malformed"
#define NO_TIME "TIMESTAMP is not a time (YYYY-MM-DD hh:mm:ss.fff), got "

static const struct bad bad_files[] = {
	{ "", 0, "trace-empty", 0, "" },
	{ "\xef\xbb\xbf", 0, "trace-empty", 0, "" },
	{ "\n \r\n\t\n", 0, "trace-empty", 0, "" },
	{ HEADER, 0, "trace-empty", 0, "" },
	{ "hello\n", 0, "trace-format-unknown", 1, "hello" },
	{ "\n[{}]\n", 0, "trace-format-unknown", 2, "[{}]" },
	{ "timestamp,a,b\n", 0, "trace-format-unknown", 1, "timestamp,a,b" },
	{ "TIMESTAMP,ContextTokens\n", 0, "trace-format-unknown", 1, "TIMESTAMP,ContextTokens" },
	{ "\x1b[31m\0red\n", 10, "trace-format-unknown", 1, "?[31m?red" },
	{ "\xff\xfe{\0\"\0", 6, "trace-format-unknown", 1, "??{?\"?" },

	{ GOOD_M "{\"timestamp\": 5, \"input_le", 0, MALFORMED, 2,
	        "not JSON: column 26: premature end of input near '\"input_le'" },
	{ GOOD_M "[1]\n", 0, MALFORMED, 2, "not a JSON object" },
	{ GOOD_M "\x1b[2J\n", 0, MALFORMED, 2, "not JSON: column 1: '[' or '{' expected near '?'" },
	{ "{}\n", 0, MALFORMED, 1, "timestamp is missing" },
	{ GOOD_M "\n{} {}\n", 0, MALFORMED, 3,
	        "not JSON: column 4: end of file expected near '{'" },
	{ "{\"timestamp\": 1, \"timestamp\": 2}\n", 0, MALFORMED, 1,
	        "not JSON: column 28: duplicate object key near '\"timestamp\"'" },
	{ "{\"timestamp\": \"\xff\"}\n", 0, MALFORMED, 1,
	        "not JSON: column 15: unable to decode byte 0xff near '\"'" },
	{ "{\0}\n", 4, MALFORMED, 1, "a NUL byte at column 2" },
	{ "{\"timestamp\": 1, \"a\\u0000b\": 2}\n", 0, MALFORMED, 1,
	        "not JSON: column 27: NUL byte in object key not supported near '\"a\\u0000b\"'" },
	{ M("1.0", "1", "1", "[1]"), 0, MALFORMED, 1, "timestamp is not an integer" },
	{ M("true", "1", "1", "[1]"), 0, MALFORMED, 1, "timestamp is not an integer" },
	{ M("\"1\"", "1", "1", "[1]"), 0, MALFORMED, 1, "timestamp is not an integer" },
	{ M("-1", "1", "1", "[1]"), 0, MALFORMED, 1, "timestamp is -1, below 0" },
	{ M("9007199254740993", "1", "1", "[1]"), 0, MALFORMED, 1,
	        "timestamp is 9007199254740993, above 9007199254740992" },
	{ M("99999999999999999999", "1", "1", "[1]"), 0, MALFORMED, 1,
	        "not JSON: column 34: too big integer near '99999999999999999999'" },
	{ M("1e999", "1", "1", "[1]"), 0, MALFORMED, 1,
	        "not JSON: column 19: real number overflow near '1e999'" },
	{ M("1", "null", "1", "[1]"), 0, MALFORMED, 1, "input_length is not an integer" },
	{ M("1", "0", "1", "[]"), 0, MALFORMED, 1, "input_length is 0, below 1" },
	{ M("1", "8388609", "1", "[]"), 0, MALFORMED, 1, "input_length is 8388609, above 8388608" },
	{ M("1", "1", "-5", "[1]"), 0, MALFORMED, 1, "output_length is -5, below 1" },
	{ M("1", "1", "8388609", "[1]"), 0, MALFORMED, 1,
	        "output_length is 8388609, above 8388608" },
	{ "{\"timestamp\": 1, \"input_length\": 2, \"output_length\": 3}\n", 0, MALFORMED, 1,
	        "hash_ids is missing" },
	{ M("1", "1", "1", "{}"), 0, MALFORMED, 1, "hash_ids is not a list" },
	{ M("1", "512", "1", "[1, 2]"), 0, MALFORMED, 1,
	        "hash_ids has 2 entries, input_length 512 needs 1 (one for each 512 tokens)" },
	{ M("1", "513", "1", "[1]"), 0, MALFORMED, 1,
	        "hash_ids has 1 entries, input_length 513 needs 2 (one for each 512 tokens)" },
	{ M("1", "513", "1", "[1, -2]"), 0, MALFORMED, 1, "hash_ids[1] is not an integer >= 0" },
	{ M("1", "513", "1", "[0.5, 2]"), 0, MALFORMED, 1, "hash_ids[0] is not an integer >= 0" },
	{ GOOD_M M("4", "1", "1", "[1]"), 0, MALFORMED, 2,
	        "its time is 1 ms before that of the request above it" },

	{ A("2023-11-16 18:15:47,197"), 0, MALFORMED, 3, "2 fields, 3 are needed" },
	{ A("2023-11-16 18:15:47,1,2,3,4"), 0, MALFORMED, 3, "over 3 fields, 3 are needed" },
	{ A("2023-11-16 18:15:47,1,\"2"), 0, MALFORMED, 3, "a quote inside a field" },
	{ A("2023-11-16 18:15:47,,2"), 0, MALFORMED, 3, "ContextTokens is empty" },
	{ A("2023-11-16 18:15:47,0,2"), 0, MALFORMED, 3, "ContextTokens is 0, below 1" },
	{ A("2023-11-16 18:15:47,-1,2"), 0, MALFORMED, 3,
	        "ContextTokens is not a positive integer, got '-1'" },
	{ A("2023-11-16 18:15:47,1, 2"), 0, MALFORMED, 3,
	        "GeneratedTokens is not a positive integer, got ' 2'" },
	{ A("2023-11-16 18:15:47,99999999999999999999999999,2"), 0, MALFORMED, 3,
	        "ContextTokens is 99999999999999999999999, above 8388608" },
	{ A("2023-11-16 18:15:47,1,8388609"), 0, MALFORMED, 3,
	        "GeneratedTokens is 8388609, above 8388608" },
	{ A("2023-02-29 18:15:47,1,2"), 0, MALFORMED, 3, NO_TIME "'2023-02-29 18:15:47'" },
	{ A("2023-13-01 18:15:47,1,2"), 0, MALFORMED, 3, NO_TIME "'2023-13-01 18:15:47'" },
	{ A("2023-11-16 24:15:47,1,2"), 0, MALFORMED, 3, NO_TIME "'2023-11-16 24:15:47'" },
	{ A("2023-11-16 18:15:47.,1,2"), 0, MALFORMED, 3, NO_TIME "'2023-11-16 18:15:47.'" },
	{ A("2023-11-16 18:15:47.1234567890,1,2"), 0, MALFORMED, 3,
	        NO_TIME "'2023-11-16 18:15:47.1234567890'" },
	{ A("2023-11-16 18:15:47+1,1,2"), 0, MALFORMED, 3, NO_TIME "'2023-11-16 18:15:47+1'" },
	{ A("1700158547,1,2"), 0, MALFORMED, 3, NO_TIME "'1700158547'" },
	{ A(",1,2"), 0, MALFORMED, 3, NO_TIME "''" },
	{ A("2023-11-16 18:15:46.680,1,2\n2023-11-16 18:15:46.679,1,2"), 0, MALFORMED, 4,
	        "its time is 1 ms before that of the request above it" },
	{ A("2023-11-16 18:15:46.680,1\0,2"), sizeof(A("2023-11-16 18:15:46.680,1.,2")) - 1,
	        MALFORMED, 3, "a NUL byte at column 26" },
};

static void bad_lines_are_refused_with_line_and_reason(void **state)
{
	(void)state;
	int wrong = 0;
	for (size_t i = 0; i < sizeof(bad_files) / sizeof(bad_files[0]); ++i) {
		const struct bad *bad = &bad_files[i];
		struct trace trace;
		struct trace_problem problem;
		if (read_text(&trace, bad->text, bad->bytes ? bad->bytes : strlen(bad->text),
		            &problem)) {
			print_error("file %zu was taken: %s\n", i, bad->text);
			trace_close(&trace);
			++wrong;
		} else if (strcmp(problem.slug, bad->slug) != 0 || problem.line != bad->line ||
		           strcmp(problem.reason, bad->reason) != 0) {
			print_error("file %zu: [%s] line %lld: %s\n", i, problem.slug,
			        (long long)problem.line, problem.reason);
			++wrong;
		}
		assert_null(trace.requests);
		assert_null(trace.memory);
	}
	assert_int_equal(wrong, 0);
}

static void lines_over_one_mebibyte_are_refused_and_none_below(void **state)
{
	(void)state;
	size_t limit = (size_t)1 << 20;
	char *text = malloc(limit + 64);
	struct trace trace;
	struct trace_problem problem;
	assert_non_null(text);
	for (size_t extra = 0; extra < 2; ++extra) {
		memset(text, ' ', limit + extra);
		memcpy(text, GOOD_M, strlen(GOOD_M) - 1);
		text[limit + extra] = '\n';
		assert_int_equal(read_text(&trace, text, limit + extra + 1, &problem), extra == 0);
		trace_close(&trace);
	}
	assert_string_equal(problem.slug, MALFORMED);
	assert_int_equal(problem.line, 1);
	assert_string_equal(problem.reason, "longer than 1048576 bytes");
	/* However long it goes on, and with no end at all. */
	memset(text, '{', limit + 64);
	assert_false(read_text(&trace, text, limit + 64, &problem));
	assert_string_equal(problem.reason, "longer than 1048576 bytes");
	free(text);
}

/* A file without an end, made as it is read. */
static ssize_t endless(void *cookie, char *out, size_t bytes)
{
	static const char line[] = "2023-11-16 18:15:46,9,2\n";
	size_t *at = cookie;
	for (size_t i = 0; i < bytes; ++i, ++*at)
		out[i] = *at < strlen(HEADER) ? HEADER[*at]
		                              : line[(*at - strlen(HEADER)) % (sizeof(line) - 1)];
	return (ssize_t)bytes;
}

static void more_requests_than_supported_are_refused(void **state)
{
	(void)state;
	size_t at = 0;
	FILE *file = fopencookie(&at, "r", (cookie_io_functions_t){ .read = endless });
	struct trace trace;
	struct trace_problem problem;
	assert_non_null(file);
	assert_false(trace_read(&trace, file, &problem));
	fclose(file);
	assert_string_equal(problem.slug, "trace-too-large");
	assert_int_equal(problem.line, 4194306);
	assert_string_equal(problem.reason, "more requests or blocks than are supported");
}

/* ---- What is printed ----------------------------------------------------------------------- */

/* trace_open() of 'path' with stderr caught in 'out'. */
static int open_printed(const char *path, char *out, size_t out_bytes)
{
	struct trace trace;
	FILE *caught = tmpfile();
	int before = dup(STDERR_FILENO);
	assert_non_null(caught);
	dup2(fileno(caught), STDERR_FILENO);
	int code = trace_open(&trace, path);
	fflush(stderr);
	dup2(before, STDERR_FILENO);
	close(before);
	rewind(caught);
	out[fread(out, 1, out_bytes - 1, caught)] = '\0';
	fclose(caught);
	assert_null(trace.requests);
	return code;
}

static void assert_printed(const char *path, const char *first_line)
{
	char text[2048];
	assert_int_equal(open_printed(path, text, sizeof(text)), CLI_CANNOT);
	text[strcspn(text, "\n")] = '\0';
	assert_string_equal(text, first_line);
}

static void write_file(const char *path, const char *text)
{
	FILE *file = fopen(path, "w");
	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

static void errors_are_printed_with_file_line_and_slug(void **state)
{
	(void)state;
	char folder[] = "/tmp/kvc_trace_XXXXXX";
	char back[4096];
	assert_non_null(getcwd(back, sizeof(back)));
	assert_non_null(mkdtemp(folder));
	assert_int_equal(chdir(folder), 0);
	write_file("bad.jsonl", GOOD_M M("5", "600", "2", "[1]"));
	write_file("odd.csv", "a,b\n");
	write_file("empty", "");
	assert_printed("bad.jsonl",
	        "kvcanary: trace bad.jsonl:2: not a request: hash_ids has 1 entries, "
	        "input_length 600 needs 2 (one for each 512 tokens) [trace-line-malformed]");
	assert_printed("odd.csv", "kvcanary: trace odd.csv:1: neither Mooncake's JSONL nor Azure's "
	                          "CSV, the line begins "
	                          "with 'a,b' [trace-format-unknown]");
	assert_printed("empty",
	        "kvcanary: trace empty holds no request: every line is blank or the header "
	        "[trace-empty]");
	assert_printed(".", "kvcanary: . cannot be read: Is a directory [cli-input-unreadable]");
	assert_printed("nowhere", "kvcanary: nowhere cannot be read: No such file or directory "
	                          "[cli-input-unreadable]");
	unlink("bad.jsonl");
	unlink("odd.csv");
	unlink("empty");
	assert_int_equal(chdir(back), 0);
	assert_int_equal(rmdir(folder), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(real_mooncake_trace_is_read_whole),
		cmocka_unit_test(real_azure_trace_is_read_whole),
		cmocka_unit_test(mooncake_in_odd_forms_is_read),
		cmocka_unit_test(azure_in_odd_forms_is_read),
		cmocka_unit_test(bad_lines_are_refused_with_line_and_reason),
		cmocka_unit_test(lines_over_one_mebibyte_are_refused_and_none_below),
		cmocka_unit_test(more_requests_than_supported_are_refused),
		cmocka_unit_test(errors_are_printed_with_file_line_and_slug),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
