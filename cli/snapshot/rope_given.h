/*
 * What the user says about the rotation of K: --rope, or --rope-from a model's GGUF or config.json.
 */
#ifndef KVCANARY_SNAPSHOT_ROPE_GIVEN_H
#define KVCANARY_SNAPSHOT_ROPE_GIVEN_H

#include "kvcanary.h"
#include "snapshot/cache.h"

struct rope_given {
	kvc_rope_options options; /* base, style and scaling; rotary_dim is set for each cache */
	bool style_known;         /* else the one that fits the cache is taken */
	int64_t rotary_dim;       /* 0: the whole head, behind the offset */
	int64_t rotary_offset;    /* first rotated element of a head, or of an MLA row */
	int64_t heads;            /* KV heads as the model says; 0: not known */
	int64_t factor_count;     /* the model's own divisors of the frequencies (GGUF), or 0 */
	double factors[KVC_ROTARY_DIM_MAX / 2];
};

/* BASE,STYLE[,ROTARY_DIM[,OFFSET]]. False if it is no such thing. */
bool rope_given_parse(struct rope_given *out, const char *text);

/* The header of a GGUF, or a config.json as Hugging Face writes it. 0, or -1 and *error. */
int rope_given_read(struct rope_given *out, const char *path, struct saved_error *error);

/* Parts of it, for the fuzzer; rope_given_read() calls one of them. */
struct saved_file;
int rope_from_gguf(
        struct rope_given *out, const struct saved_file *file, struct saved_error *error);
int rope_from_config(struct rope_given *out, const char *text, size_t bytes, const char *path,
        struct saved_error *error);

/* Frequencies for heads of 'dim' elements, with another base and style if base is not 0. False if
 * these parameters do not fit such a head. */
bool rope_given_init(
        kvc_rope *out, const struct rope_given *given, int64_t dim, double base, int style);

#endif
