/* Writing text into a buffer of fixed size; text.h says how. */
#include "base/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* A tensor with more dimensions than this is broken; its shape may not be readable to the end. */
#define SHAPE_NDIM_MAX 16

struct kvc__text kvc__text_over(char *out, size_t capacity_bytes)
{
	struct kvc__text text = { out, 0, capacity_bytes, 0 };
	out[0] = '\0';
	return text;
}

/* Drops half a UTF-8 character at the end, then marks the cut. */
static void cut_text(struct kvc__text *text)
{
	size_t end = text->capacity_bytes - 4;

	if (end > text->used_bytes)
		end = text->used_bytes;
	while (end > 0 && ((unsigned char)text->out[end] & 0xC0) == 0x80)
		end--;
	memcpy(text->out + end, "...", 4);
	text->used_bytes = end + 3;
	text->cut = 1;
}

static void append(struct kvc__text *text, const char *bytes, size_t count)
{
	size_t room = text->capacity_bytes - text->used_bytes - 1;
	size_t taken = count < room ? count : room;

	if (text->cut)
		return;
	memcpy(text->out + text->used_bytes, bytes, taken);
	text->used_bytes += taken;
	text->out[text->used_bytes] = '\0';
	if (taken < count)
		cut_text(text);
}

void kvc__text_literal(struct kvc__text *text, const char *literal)
{
	if (!literal)
		literal = "NULL";
	append(text, literal, strlen(literal));
}

void kvc__text_word(struct kvc__text *text, const char *word)
{
	size_t begin = text->used_bytes;

	/* strnlen: what lies past the capacity would be dropped anyway. */
	if (!word)
		word = "NULL";
	append(text, word, strnlen(word, text->capacity_bytes));
	for (size_t i = begin; i < text->used_bytes; i++) {
		unsigned char c = (unsigned char)text->out[i];
		if (c < 32 || c == 127)
			text->out[i] = '?';
	}
}

void kvc__text_int(struct kvc__text *text, int64_t value)
{
	char digits[24];

	snprintf(digits, sizeof(digits), "%" PRId64, value);
	kvc__text_literal(text, digits);
}

void kvc__text_double(struct kvc__text *text, double value)
{
	char digits[32];

	snprintf(digits, sizeof(digits), "%g", value);
	for (char *c = digits; *c; c++)
		if (!strchr("0123456789+-einfa", *c))
			*c = '.';
	kvc__text_literal(text, digits);
}

void kvc__text_hex(struct kvc__text *text, uint64_t value)
{
	char digits[24];

	snprintf(digits, sizeof(digits), "0x%016" PRIx64, value);
	kvc__text_literal(text, digits);
}

void kvc__text_shape(struct kvc__text *text, const kvc_tensor *tensor)
{
	int32_t ndim = tensor && tensor->shape ? tensor->ndim : 0;

	kvc__text_literal(text, "(");
	for (int32_t d = 0; d < ndim && d < SHAPE_NDIM_MAX; d++) {
		if (d > 0)
			kvc__text_literal(text, ", ");
		kvc__text_int(text, tensor->shape[d]);
	}
	if (ndim > SHAPE_NDIM_MAX)
		kvc__text_literal(text, ", ...");
	kvc__text_literal(text, ndim == 1 ? ",)" : ")");
}

/* The name of a type code, followed by its width unless the name holds it already. */
static const char *code_name(kvc_dtype dtype, int *with_bits)
{
	*with_bits = 0;
	if (dtype.code == KVC_CODE_FLOAT8_E4M3FN && dtype.bits == 8)
		return "float8_e4m3fn";
	if (dtype.code == KVC_CODE_FLOAT8_E5M2 && dtype.bits == 8)
		return "float8_e5m2";
	if (dtype.code == KVC_CODE_BOOL && dtype.bits == 8)
		return "bool";
	*with_bits = 1;
	switch (dtype.code) {
	case KVC_CODE_INT:
		return "int";
	case KVC_CODE_UINT:
		return "uint";
	case KVC_CODE_FLOAT:
		return "float";
	case KVC_CODE_BFLOAT:
		return "bfloat";
	default:
		return NULL;
	}
}

void kvc__text_dtype(struct kvc__text *text, kvc_dtype dtype)
{
	int with_bits;
	const char *name = code_name(dtype, &with_bits);

	if (name) {
		kvc__text_literal(text, name);
	} else {
		kvc__text_literal(text, "code");
		kvc__text_int(text, dtype.code);
		kvc__text_literal(text, "_bits");
	}
	if (with_bits)
		kvc__text_int(text, dtype.bits);
	if (dtype.lanes != 1) {
		kvc__text_literal(text, "x");
		kvc__text_int(text, dtype.lanes);
	}
}
