/*
 * Writing text into a buffer of fixed size: never allocates, never overruns, always ends with a
 * NUL. Text that does not fit ends with "...".
 */
#ifndef KVC__TEXT_H
#define KVC__TEXT_H

#include "kvcanary.h"

struct kvc__text {
	char *out;
	size_t used_bytes;     /* without the NUL */
	size_t capacity_bytes; /* with the NUL; at least 4 */
	int cut;               /* something did not fit; the rest is dropped */
};

/* Start an empty text over 'out', which has 'capacity_bytes' >= 4. */
struct kvc__text kvc__text_over(char *out, size_t capacity_bytes);

/* Append a string as it is; NULL prints as "NULL". */
void kvc__text_literal(struct kvc__text *text, const char *literal);

/* Append a string of foreign origin: control characters become '?', so the line stays one line. */
void kvc__text_word(struct kvc__text *text, const char *word);

void kvc__text_int(struct kvc__text *text, int64_t value);

/* As "%g" does, with a point whatever the locale. */
void kvc__text_double(struct kvc__text *text, double value);

/* As 0x and sixteen digits. */
void kvc__text_hex(struct kvc__text *text, uint64_t value);

/* As Python prints a tuple: "(4, 8, 128)", "(64,)", "()". */
void kvc__text_shape(struct kvc__text *text, const kvc_tensor *tensor);

/* "bfloat16", "float8_e4m3fn", "int64"; types without a name as "code9_bits4". */
void kvc__text_dtype(struct kvc__text *text, kvc_dtype dtype);

#endif
