/*
 * Lines of Mooncake's JSONL and of Azure's CSV. Both are untrusted: every number is checked for its
 * type and range, and nothing of a line reaches a message unless it is printable.
 */
#include "replay/trace_line.h"

#include "replay/trace.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct reason {
	char *text;
	size_t bytes;
};

__attribute__((format(printf, 2, 3))) static bool wrong(
        const struct reason *reason, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(reason->text, reason->bytes, format, arguments);
	va_end(arguments);
	return false;
}

void trace_printable(char *out, size_t out_bytes, const char *text, size_t bytes)
{
	size_t count = bytes < out_bytes - 1 ? bytes : out_bytes - 1;
	for (size_t i = 0; i < count; ++i)
		out[i] = text[i] >= 0x20 && text[i] < 0x7f ? text[i] : '?';
	out[count] = 0;
}

static bool in_range(
        const struct reason *reason, const char *name, int64_t value, int64_t low, int64_t high)
{
	if (value < low)
		return wrong(reason, "%s is %" PRId64 ", below %" PRId64, name, value, low);
	if (value > high)
		return wrong(reason, "%s is %" PRId64 ", above %" PRId64, name, value, high);
	return true;
}

/* ---- Mooncake ------------------------------------------------------------------------------ */

static bool json_count(const struct reason *reason, int64_t *out, const json_t *object,
        const char *name, int64_t low, int64_t high)
{
	const json_t *value = json_object_get(object, name);
	if (!value)
		return wrong(reason, "%s is missing", name);
	if (!json_is_integer(value))
		return wrong(reason, "%s is not an integer", name);
	*out = (int64_t)json_integer_value(value);
	return in_range(reason, name, *out, low, high);
}

static bool json_blocks(const struct reason *reason, struct trace_line *out, const json_t *object)
{
	const json_t *ids = json_object_get(object, "hash_ids");
	if (!ids)
		return wrong(reason, "hash_ids is missing");
	if (!json_is_array(ids))
		return wrong(reason, "hash_ids is not a list");
	/* The last, partial block has an id too. */
	int64_t expected = (out->input_tokens + TRACE_BLOCK_TOKENS - 1) / TRACE_BLOCK_TOKENS;
	if ((int64_t)json_array_size(ids) != expected)
		return wrong(reason,
		        "hash_ids has %zu entries, input_length %" PRId64 " needs %" PRId64
		        " (one for each %d tokens)",
		        json_array_size(ids), out->input_tokens, expected, TRACE_BLOCK_TOKENS);
	if (expected > out->block_capacity) {
		int64_t *blocks = realloc(out->blocks, (size_t)expected * sizeof(*blocks));
		if (!blocks) {
			out->no_memory = true;
			return wrong(reason, "out of memory");
		}
		out->blocks = blocks;
		out->block_capacity = expected;
	}
	for (int64_t i = 0; i < expected; ++i) {
		const json_t *id = json_array_get(ids, (size_t)i);
		if (!json_is_integer(id) || json_integer_value(id) < 0)
			return wrong(reason, "hash_ids[%" PRId64 "] is not an integer >= 0", i);
		out->blocks[i] = (int64_t)json_integer_value(id);
	}
	out->block_count = expected;
	return true;
}

static bool read_mooncake(
        const struct reason *reason, struct trace_line *out, const char *line, size_t bytes)
{
	json_error_t error;
	json_t *object = json_loadb(line, bytes, JSON_REJECT_DUPLICATES, &error);
	if (!object) {
		char text[JSON_ERROR_TEXT_LENGTH];
		trace_printable(text, sizeof(text), error.text, strlen(error.text));
		out->no_memory = json_error_code(&error) == json_error_out_of_memory;
		return wrong(reason, "not JSON: column %d: %s", error.column, text);
	}
	bool good = json_is_object(object) || wrong(reason, "not a JSON object");
	good = good && json_count(reason, &out->time_ms, object, "timestamp", 0, TRACE_MS_MAX) &&
	       json_count(
	               reason, &out->input_tokens, object, "input_length", 1, TRACE_LENGTH_MAX) &&
	       json_count(
	               reason, &out->output_tokens, object, "output_length", 1, TRACE_LENGTH_MAX) &&
	       json_blocks(reason, out, object);
	json_decref(object);
	return good;
}

/* ---- Azure --------------------------------------------------------------------------------- */

#define AZURE_FIELDS 3
static const char *const azure_names[AZURE_FIELDS] = { "TIMESTAMP", "ContextTokens",
	"GeneratedTokens" };

struct field {
	const char *text;
	size_t bytes;
};

/*
 * Cut a line at its commas and take the quotes off. No value of this format holds a comma or a
 * quote, so that a quote anywhere but around a field is an error. Returns the number of fields, at
 * most AZURE_FIELDS + 1; -1 for a stray quote.
 */
static int split_fields(struct field *out, const char *line, size_t bytes)
{
	const char *end = line + bytes;
	for (int count = 0; count <= AZURE_FIELDS; ++count) {
		const char *comma = memchr(line, ',', (size_t)(end - line));
		struct field field = { line, (size_t)((comma ? comma : end) - line) };
		if (field.bytes >= 2 && field.text[0] == '"' &&
		        field.text[field.bytes - 1] == '"') {
			field.text += 1;
			field.bytes -= 2;
		}
		if (memchr(field.text, '"', field.bytes))
			return -1;
		if (count < AZURE_FIELDS)
			out[count] = field;
		if (!comma)
			return count + 1;
		line = comma + 1;
	}
	return AZURE_FIELDS + 1;
}

/* Reads exactly 'digits' digits at *at and moves on. */
static bool digits_at(const char **at, const char *end, int digits, int *out)
{
	*out = 0;
	for (int i = 0; i < digits; ++i, ++*at) {
		if (*at == end || **at < '0' || **at > '9')
			return false;
		*out = *out * 10 + (**at - '0');
	}
	return true;
}

static bool skip_one_of(const char **at, const char *end, const char *choices)
{
	if (*at == end || !strchr(choices, **at) || !**at)
		return false;
	++*at;
	return true;
}

/* Days from 1970-01-01 in the Gregorian calendar; counts years from March so that leap days end. */
static int64_t days_since_1970(int year, int month, int day)
{
	int64_t y = month <= 2 ? year - 1 : year;
	int64_t era = (y >= 0 ? y : y - 399) / 400;
	int64_t year_of_era = y - era * 400;
	int64_t day_of_year = (153 * (month > 2 ? month - 3 : month + 9) + 2) / 5 + day - 1;
	int64_t day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
	return era * 146097 + day_of_era - 719468;
}

static int days_in_month(int year, int month)
{
	static const int days[12] = { 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 };
	bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
	return days[month - 1] + (month == 2 && leap);
}

/* "Z" or "+hh:mm" after the time: minutes east of UTC. Later years of the data set have it. */
static bool read_zone(const char *at, const char *end, int *minutes_out)
{
	int hour = 0, minute = 0;
	*minutes_out = 0;
	if (at == end || (end - at == 1 && *at == 'Z'))
		return true;
	int sign = *at == '-' ? -1 : 1;
	if (!skip_one_of(&at, end, "+-") || !digits_at(&at, end, 2, &hour) ||
	        !skip_one_of(&at, end, ":") || !digits_at(&at, end, 2, &minute) || at != end ||
	        hour > 23 || minute > 59)
		return false;
	*minutes_out = sign * (hour * 60 + minute);
	return true;
}

/* "2023-11-16 18:15:46.6805900", up to nine decimals, to ms; what is finer is cut off. */
static bool read_time(struct field field, int64_t *ms_out)
{
	const char *at = field.text, *end = field.text + field.bytes;
	int year, month, day, hour, minute, second, zone, ms = 0;
	if (!digits_at(&at, end, 4, &year) || !skip_one_of(&at, end, "-") ||
	        !digits_at(&at, end, 2, &month) || !skip_one_of(&at, end, "-") ||
	        !digits_at(&at, end, 2, &day) || !skip_one_of(&at, end, " T") ||
	        !digits_at(&at, end, 2, &hour) || !skip_one_of(&at, end, ":") ||
	        !digits_at(&at, end, 2, &minute) || !skip_one_of(&at, end, ":") ||
	        !digits_at(&at, end, 2, &second))
		return false;
	if (month < 1 || month > 12 || day < 1 || day > days_in_month(year, month) || hour > 23 ||
	        minute > 59 || second > 59)
		return false;
	if (skip_one_of(&at, end, ".")) {
		int decimals = 0, scale = 100;
		for (; at != end && *at >= '0' && *at <= '9' && decimals < 9; ++at, ++decimals) {
			ms += (*at - '0') * scale;
			scale /= 10;
		}
		if (!decimals)
			return false;
	}
	if (!read_zone(at, end, &zone))
		return false;
	int64_t seconds =
	        ((days_since_1970(year, month, day) * 24 + hour) * 60 + minute - zone) * 60;
	*ms_out = (seconds + second) * 1000 + ms;
	return true;
}

static bool csv_count(
        const struct reason *reason, int64_t *out, const char *name, struct field field)
{
	char shown[24];
	int64_t value = 0;
	trace_printable(shown, sizeof(shown), field.text, field.bytes);
	for (size_t i = 0; i < field.bytes; ++i) {
		if (field.text[i] < '0' || field.text[i] > '9')
			return wrong(reason, "%s is not a positive integer, got '%s'", name, shown);
		value = value * 10 + (field.text[i] - '0');
		if (value > TRACE_LENGTH_MAX) /* before it can overflow */
			return wrong(reason, "%s is %s, above %d", name, shown, TRACE_LENGTH_MAX);
	}
	if (!field.bytes)
		return wrong(reason, "%s is empty", name);
	*out = value;
	return in_range(reason, name, value, 1, TRACE_LENGTH_MAX);
}

static bool read_azure(
        const struct reason *reason, struct trace_line *out, const char *line, size_t bytes)
{
	struct field fields[AZURE_FIELDS];
	int count = split_fields(fields, line, bytes);
	if (count < 0)
		return wrong(reason, "a quote inside a field");
	if (count != AZURE_FIELDS)
		return wrong(reason, "%s%d fields, %d are needed",
		        count > AZURE_FIELDS ? "over " : "",
		        count > AZURE_FIELDS ? AZURE_FIELDS : count, AZURE_FIELDS);
	if (!read_time(fields[0], &out->time_ms)) {
		char shown[40];
		trace_printable(shown, sizeof(shown), fields[0].text, fields[0].bytes);
		return wrong(reason, "TIMESTAMP is not a time (YYYY-MM-DD hh:mm:ss.fff), got '%s'",
		        shown);
	}
	out->block_count = 0;
	return csv_count(reason, &out->input_tokens, azure_names[1], fields[1]) &&
	       csv_count(reason, &out->output_tokens, azure_names[2], fields[2]);
}

/* ---- Either -------------------------------------------------------------------------------- */

enum trace_format trace_line_format(const char *line, size_t bytes)
{
	struct field fields[AZURE_FIELDS];
	size_t at = 0;
	while (at < bytes && (line[at] == ' ' || line[at] == '\t'))
		++at;
	if (at < bytes && line[at] == '{')
		return TRACE_MOONCAKE;
	if (split_fields(fields, line, bytes) != AZURE_FIELDS)
		return TRACE_UNKNOWN;
	for (int i = 0; i < AZURE_FIELDS; ++i)
		if (fields[i].bytes != strlen(azure_names[i]) ||
		        memcmp(fields[i].text, azure_names[i], fields[i].bytes) != 0)
			return TRACE_UNKNOWN;
	return TRACE_AZURE;
}

bool trace_line_read(struct trace_line *out, enum trace_format format, const char *line,
        size_t bytes, char *reason_text, size_t reason_bytes)
{
	struct reason reason = { reason_text, reason_bytes };
	out->no_memory = false;
	out->block_count = 0;
	const char *nul = memchr(line, 0, bytes);
	if (nul)
		return wrong(&reason, "a NUL byte at column %zu", (size_t)(nul - line) + 1);
	if (format == TRACE_AZURE)
		return read_azure(&reason, out, line, bytes);
	return read_mooncake(&reason, out, line, bytes);
}
