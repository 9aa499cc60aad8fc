/* A pull parser; json_reader.h says what it promises. */
#include "snapshot/json_reader.h"

#include "snapshot/reader.h"

#include <stdlib.h>
#include <string.h>

#define WINDOW_BYTES ((size_t)1 << 16)
#define END_OF_TEXT (-1)
#define READ_FAILED (-2)

int json_start(struct json_reader *reader, const struct saved_file *file, uint64_t begin,
        uint64_t end, const char *field, struct saved_error *error)
{
	memset(reader, 0, sizeof(*reader));
	reader->file = file;
	reader->field = field;
	reader->error = error;
	reader->next = begin;
	reader->end = end;
	reader->text_capacity = 256;
	reader->text = malloc(reader->text_capacity);
	reader->window = malloc(WINDOW_BYTES);
	if (reader->text && reader->window)
		return 0;
	json_stop(reader);
	return saved_fail_memory(error, saved_file_path(file));
}

void json_stop(struct json_reader *reader)
{
	free(reader->text);
	free(reader->window);
	reader->text = NULL;
	reader->window = NULL;
}

/* ---- errors ---- */

static enum json_token refuse_token(
        struct json_reader *reader, const char *kind, uint64_t offset, const char *reason)
{
	if (reader->expects != JSON_EXPECTS_FAILED)
		saved_fail(reader->error, "snapshot-malformed", kind, saved_file_path(reader->file),
		        reader->field, (int64_t)offset, "%s", reason);
	reader->expects = JSON_EXPECTS_FAILED;
	return JSON_FAILED;
}

static enum json_token refuse(struct json_reader *reader, const char *reason)
{
	return refuse_token(reader, "json", reader->next, reason);
}

static enum json_token refuse_token_memory(struct json_reader *reader)
{
	if (reader->expects != JSON_EXPECTS_FAILED)
		saved_fail_memory(reader->error, saved_file_path(reader->file));
	reader->expects = JSON_EXPECTS_FAILED;
	return JSON_FAILED;
}

/* ---- bytes ---- */

static int fill_window(struct json_reader *reader)
{
	uint64_t left = reader->end - reader->next;
	size_t bytes = left < WINDOW_BYTES ? (size_t)left : WINDOW_BYTES;

	if (bytes == 0)
		return END_OF_TEXT;
	if (saved_file_read(reader->file, reader->next, bytes, reader->window, reader->field,
	            reader->error)) {
		reader->expects = JSON_EXPECTS_FAILED;
		return READ_FAILED;
	}
	reader->window_next = 0;
	reader->window_bytes = bytes;
	return 0;
}

/* The next byte, left where it is; or END_OF_TEXT, READ_FAILED. */
static inline int peek_byte(struct json_reader *reader)
{
	if (reader->window_next == reader->window_bytes) {
		int result = fill_window(reader);
		if (result < 0)
			return result;
	}
	return reader->window[reader->window_next];
}

static inline void skip_byte(struct json_reader *reader)
{
	reader->window_next++;
	reader->next++;
}

static int skip_spaces(struct json_reader *reader)
{
	int byte;

	while ((byte = peek_byte(reader)) == ' ' || byte == '\n' || byte == '\r' || byte == '\t')
		skip_byte(reader);
	return byte;
}

/* ---- text ---- */

static bool put(struct json_reader *reader, int byte)
{
	if (reader->text_bytes + 1 >= reader->text_capacity) {
		size_t capacity = reader->text_capacity + reader->text_capacity / 2;
		char *text = realloc(reader->text, capacity);
		if (!text) {
			refuse_token_memory(reader);
			return false;
		}
		reader->text = text;
		reader->text_capacity = capacity;
	}
	reader->text[reader->text_bytes++] = (char)byte;
	return true;
}

char *json_take_text(struct json_reader *reader)
{
	char *fresh = malloc(256);
	char *taken;

	if (!fresh)
		return NULL;
	taken = realloc(reader->text, reader->text_bytes + 1);
	if (!taken)
		taken = reader->text;
	reader->text = fresh;
	reader->text_capacity = 256;
	reader->text[0] = '\0';
	reader->text_bytes = 0;
	return taken;
}

static bool put_code_point(struct json_reader *reader, unsigned code)
{
	if (code < 0x80)
		return put(reader, (int)code);
	if (code < 0x800)
		return put(reader, (int)(0xc0 | code >> 6)) &&
		       put(reader, (int)(0x80 | (code & 0x3f)));
	if (code < 0x10000)
		return put(reader, (int)(0xe0 | code >> 12)) &&
		       put(reader, (int)(0x80 | (code >> 6 & 0x3f))) &&
		       put(reader, (int)(0x80 | (code & 0x3f)));
	return put(reader, (int)(0xf0 | code >> 18)) &&
	       put(reader, (int)(0x80 | (code >> 12 & 0x3f))) &&
	       put(reader, (int)(0x80 | (code >> 6 & 0x3f))) &&
	       put(reader, (int)(0x80 | (code & 0x3f)));
}

/* A sequence of UTF-8 of two bytes or more, whose first is 'lead'. */
static bool read_utf8(struct json_reader *reader, int lead)
{
	uint64_t offset = reader->next;
	int least = 0x80, most = 0xbf; /* of the second byte: no overlong form, no surrogate, no
	                                  code point above 0x10ffff */
	int following = lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : 3;

	if (lead < 0xc2 || lead > 0xf4)
		goto invalid;
	if (lead == 0xe0)
		least = 0xa0;
	else if (lead == 0xed)
		most = 0x9f;
	else if (lead == 0xf0)
		least = 0x90;
	else if (lead == 0xf4)
		most = 0x8f;
	for (int i = 0; i <= following; i++) {
		int byte = peek_byte(reader);
		if (byte == READ_FAILED)
			return false;
		if (i > 0 && (byte < least || byte > most))
			goto invalid;
		if (i > 0) {
			least = 0x80;
			most = 0xbf;
		}
		if (!put(reader, byte))
			return false;
		skip_byte(reader);
	}
	return true;
invalid:
	refuse_token(reader, "utf8", offset, "no UTF-8 text");
	return false;
}

/* Four hexadecimal digits; -1 with the error set. */
static int read_hex4(struct json_reader *reader)
{
	int value = 0;

	for (int i = 0; i < 4; i++) {
		int byte = peek_byte(reader);
		int digit = byte >= '0' && byte <= '9'   ? byte - '0'
		            : byte >= 'a' && byte <= 'f' ? byte - 'a' + 10
		            : byte >= 'A' && byte <= 'F' ? byte - 'A' + 10
		                                         : -1;
		if (digit < 0) {
			refuse(reader, "\\u without four hexadecimal digits");
			return -1;
		}
		value = value * 16 + digit;
		skip_byte(reader);
	}
	return value;
}

/* What follows \u. */
static bool read_unicode_escape(struct json_reader *reader)
{
	int code = read_hex4(reader);

	if (code < 0)
		return false;
	if (code == 0) {
		refuse(reader, "\\u0000 in a string");
		return false;
	}
	if (code >= 0xd800 && code < 0xdc00) {
		int low = peek_byte(reader);
		if (low == '\\') {
			skip_byte(reader);
			low = peek_byte(reader);
			if (low == 'u') {
				skip_byte(reader);
				low = read_hex4(reader);
				if (low < 0)
					return false;
				if (low >= 0xdc00 && low < 0xe000)
					return put_code_point(reader,
					        0x10000U + ((unsigned)(code - 0xd800) << 10) +
					                (unsigned)(low - 0xdc00));
			}
		}
	}
	if (code >= 0xd800 && code < 0xe000) {
		refuse(reader, "an escaped surrogate without its other half");
		return false;
	}
	return put_code_point(reader, (unsigned)code);
}

static bool read_escape(struct json_reader *reader)
{
	static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
	int byte = peek_byte(reader);
	const char *letter;

	if (byte == 'u') {
		skip_byte(reader);
		return read_unicode_escape(reader);
	}
	letter = byte > 0 ? strchr(letters, byte) : NULL;
	if (!letter) {
		refuse(reader, "an unknown escape in a string");
		return false;
	}
	skip_byte(reader);
	return put(reader, meanings[letter - letters]);
}

static bool read_string(struct json_reader *reader)
{
	reader->text_bytes = 0;
	skip_byte(reader); /* the quote */
	for (;;) {
		int byte = peek_byte(reader);
		if (byte < 0x20) { /* also the end */
			refuse(reader, byte == END_OF_TEXT ? "the text ends in a string"
			                                   : "a control character in a string");
			return false;
		}
		if (byte >= 0x80) {
			if (!read_utf8(reader, byte))
				return false;
			continue;
		}
		skip_byte(reader);
		if (byte == '"')
			break;
		if (!(byte == '\\' ? read_escape(reader) : put(reader, byte)))
			return false;
	}
	reader->text[reader->text_bytes] = '\0';
	return true;
}

/* ---- numbers and words ---- */

/* Digits into the text; how many, -1 with the error set. */
static int64_t read_digits(struct json_reader *reader)
{
	int64_t count = 0;
	int byte;

	while ((byte = peek_byte(reader)) >= '0' && byte <= '9') {
		if (!put(reader, byte))
			return -1;
		skip_byte(reader);
		count++;
	}
	if (count == 0) {
		refuse(reader, "a number without a digit");
		return -1;
	}
	return count;
}

static void evaluate(struct json_reader *reader)
{
	uint64_t number = 0;

	reader->is_unsigned = false;
	for (size_t i = 0; i < reader->text_bytes; i++) {
		uint64_t digit = (uint64_t)(reader->text[i] - '0');
		if (number > (UINT64_MAX - digit) / 10)
			return;
		number = number * 10 + digit;
	}
	reader->number = number;
	reader->is_unsigned = true;
}

static bool read_number(struct json_reader *reader)
{
	bool whole = true;
	int first = peek_byte(reader);

	reader->text_bytes = 0;
	if (first == '-') {
		whole = false; /* not an unsigned one */
		if (!put(reader, first))
			return false;
		skip_byte(reader);
		first = peek_byte(reader);
	}
	int64_t digits = read_digits(reader);
	if (digits < 0)
		return false;
	if (first == '0' && digits > 1) {
		refuse(reader, "a number that begins with 0");
		return false;
	}
	if (peek_byte(reader) == '.') {
		whole = false;
		skip_byte(reader);
		if (!put(reader, '.') || read_digits(reader) < 0)
			return false;
	}
	int letter = peek_byte(reader);
	if (letter == 'e' || letter == 'E') {
		whole = false;
		skip_byte(reader);
		int sign = peek_byte(reader);
		if (!put(reader, 'e') || ((sign == '-' || sign == '+') && !put(reader, sign)))
			return false;
		if (sign == '-' || sign == '+')
			skip_byte(reader);
		if (read_digits(reader) < 0)
			return false;
	}
	reader->text[reader->text_bytes] = '\0';
	reader->is_unsigned = false;
	if (whole)
		evaluate(reader);
	return reader->expects != JSON_EXPECTS_FAILED;
}

static bool read_word(struct json_reader *reader, const char *word)
{
	for (; *word; word++) {
		if (peek_byte(reader) != *word) {
			refuse(reader, "a word that is not true, false or null");
			return false;
		}
		skip_byte(reader);
	}
	return true;
}

/* ---- grammar ---- */

static enum json_token open_bracket(struct json_reader *reader, bool is_object)
{
	if (reader->depth == JSON_DEPTH_MAX)
		return refuse(reader, "nested too deeply");
	skip_byte(reader);
	reader->is_object[reader->depth++] = is_object;
	reader->expects = is_object ? JSON_EXPECTS_FIRST_KEY : JSON_EXPECTS_FIRST_VALUE;
	return is_object ? JSON_OBJECT : JSON_ARRAY;
}

static void value_ends(struct json_reader *reader)
{
	reader->expects = reader->depth ? JSON_EXPECTS_COMMA : JSON_EXPECTS_NOTHING;
}

static enum json_token close_bracket(struct json_reader *reader)
{
	bool is_object = reader->is_object[--reader->depth];

	skip_byte(reader);
	value_ends(reader);
	return is_object ? JSON_OBJECT_END : JSON_ARRAY_END;
}

static enum json_token read_value(struct json_reader *reader, int byte)
{
	enum json_token token;
	bool good;

	if (byte == '{' || byte == '[')
		return open_bracket(reader, byte == '{');
	if (byte == '"') {
		token = JSON_STRING;
		good = read_string(reader);
	} else if (byte == '-' || (byte >= '0' && byte <= '9')) {
		token = JSON_NUMBER;
		good = read_number(reader);
	} else if (byte == 't') {
		token = JSON_TRUE;
		good = read_word(reader, "true");
	} else if (byte == 'f') {
		token = JSON_FALSE;
		good = read_word(reader, "false");
	} else if (byte == 'n') {
		token = JSON_NULL;
		good = read_word(reader, "null");
	} else
		return refuse(reader,
		        byte == END_OF_TEXT ? "the text ends where a value must come" : "no value");
	if (!good)
		return JSON_FAILED;
	value_ends(reader);
	return token;
}

static enum json_token read_key(struct json_reader *reader, int byte)
{
	if (byte != '"')
		return refuse(reader,
		        byte == END_OF_TEXT ? "the text ends in an object" : "no key in quotes");
	if (!read_string(reader))
		return JSON_FAILED;
	if (skip_spaces(reader) != ':')
		return refuse(reader, "no colon behind a key");
	skip_byte(reader);
	reader->expects = JSON_EXPECTS_VALUE;
	return JSON_KEY;
}

enum json_token json_next(struct json_reader *reader)
{
	int byte;
	bool in_object;

	if (reader->expects == JSON_EXPECTS_FAILED)
		return JSON_FAILED;
	byte = skip_spaces(reader);
	if (byte == READ_FAILED)
		return JSON_FAILED;
	if (reader->expects == JSON_EXPECTS_NOTHING)
		return byte == END_OF_TEXT ? JSON_END : refuse(reader, "text behind the end");
	in_object = reader->depth && reader->is_object[reader->depth - 1];
	if (reader->expects == JSON_EXPECTS_COMMA) {
		if (byte != ',' && byte != (in_object ? '}' : ']'))
			return refuse(reader, byte == END_OF_TEXT ? "the text ends too early"
			                                          : "neither a comma nor an end");
		if (byte != ',') {
			reader->at = reader->next;
			return close_bracket(reader);
		}
		skip_byte(reader);
		reader->expects = in_object ? JSON_EXPECTS_KEY : JSON_EXPECTS_VALUE;
		byte = skip_spaces(reader);
	}
	reader->at = reader->next;
	if ((reader->expects == JSON_EXPECTS_FIRST_KEY && byte == '}') ||
	        (reader->expects == JSON_EXPECTS_FIRST_VALUE && byte == ']'))
		return close_bracket(reader);
	if (reader->expects == JSON_EXPECTS_FIRST_KEY || reader->expects == JSON_EXPECTS_KEY)
		return read_key(reader, byte);
	return read_value(reader, byte);
}

int json_skip(struct json_reader *reader, enum json_token token)
{
	unsigned depth = reader->depth - (token == JSON_OBJECT || token == JSON_ARRAY);

	while (token > JSON_END && reader->depth > depth)
		token = json_next(reader);
	return token > JSON_END ? 0 : -1;
}
