/*
 * Untrusted JSON out of a file, token by token: nothing is built, so memory is that of the longest
 * string, whatever the text holds. Nesting is limited, UTF-8 is checked, lone surrogates and NUL in
 * strings are refused, and so is whatever else is no JSON (RFC 8259).
 *
 *	struct json_reader reader;
 *	if (json_start(&reader, file, 8, 8 + bytes, "header", error))
 *		...
 *	while ((token = json_next(&reader)) > JSON_END)
 *		...
 *	json_stop(&reader);
 */
#ifndef KVCANARY_SNAPSHOT_JSON_READER_H
#define KVCANARY_SNAPSHOT_JSON_READER_H

#include "snapshot/file.h"

#define JSON_DEPTH_MAX 128

enum json_token {
	JSON_FAILED = -1, /* *error says why; every later call gives the same */
	JSON_END,         /* the text is complete and nothing but white space is left */
	JSON_OBJECT,
	JSON_OBJECT_END,
	JSON_ARRAY,
	JSON_ARRAY_END,
	JSON_KEY,    /* reader.text */
	JSON_STRING, /* reader.text */
	JSON_NUMBER, /* reader.text, and reader.number if it is one */
	JSON_TRUE,
	JSON_FALSE,
	JSON_NULL
};

enum json_expects { /* internal: where in the grammar the reader stands */
	JSON_EXPECTS_VALUE,
	JSON_EXPECTS_FIRST_VALUE, /* of an array: or its end */
	JSON_EXPECTS_FIRST_KEY,   /* of an object: or its end */
	JSON_EXPECTS_KEY,
	JSON_EXPECTS_COMMA, /* or an end */
	JSON_EXPECTS_NOTHING,
	JSON_EXPECTS_FAILED
};

struct json_reader {
	/* Of the token that json_next() gave last. */
	char *text; /* unescaped, ends in NUL; valid until the next call */
	size_t text_bytes;
	uint64_t number;
	bool is_unsigned; /* the number is a whole one below 2^64, without sign: 'number' */
	uint64_t at;      /* offset of its first byte in the file */
	unsigned depth;   /* of objects and arrays that are open behind it */
	/* Internal. */
	const struct saved_file *file;
	const char *field;
	struct saved_error *error;
	uint64_t next, end; /* bytes of the file still to be looked at */
	size_t text_capacity;
	unsigned char *window;
	size_t window_next, window_bytes;
	enum json_expects expects;
	bool is_object[JSON_DEPTH_MAX];
};

/* Bytes begin .. end - 1 of the file; 'field' is static and goes into errors, as does the file. 0,
 * or -1 and *error; 'error' is kept for json_next(). */
int json_start(struct json_reader *reader, const struct saved_file *file, uint64_t begin,
        uint64_t end, const char *field, struct saved_error *error);
void json_stop(struct json_reader *reader);

enum json_token json_next(struct json_reader *reader);

/* The rest of a value whose first token was 'token'. 0, or -1. */
int json_skip(struct json_reader *reader, enum json_token token);

/* The text of the last token, the caller's to free(); NULL: no memory. For long texts. */
char *json_take_text(struct json_reader *reader);

#endif
