/*
 * The model's stand-in: K, V and q of a token, made from (token, position, layer, head) alone. Any
 * two of these differ in their rows, so that a wrong row is never right by accident. Cheap on
 * purpose: the replay's time should go into writing and checking.
 */
#ifndef KVCANARY_CLI_REPLAY_MODEL_H
#define KVCANARY_CLI_REPLAY_MODEL_H

#include "kvcanary.h"

#include <stdint.h>

/* Ids are below this, as in a model with 128 Ki entries; 0 is never used. */
#define MODEL_VOCABULARY 131072

enum { MODEL_K = 0, MODEL_V = 1, MODEL_Q = 2 };

/* Bytes of one element of the model's own type. */
int64_t model_element_bytes(kvc_dtype dtype);

/*
 * Rows [count][heads][head_dim] of one kind and layer. All values are finite and of either sign,
 * their size in [2^-7, 2). dtype: float32, float16 or bfloat16; head_dim * element bytes is a
 * multiple of 8.
 */
void model_rows(void *out, kvc_dtype dtype, int kind, int64_t layer, const int64_t *tokens,
        const int64_t *positions, int64_t count, int64_t heads, int64_t head_dim);

/* The token at 'offset' of a block of the trace: equal ids give equal tokens. */
int64_t model_block_token(int64_t hash_id, int64_t offset);

/* What the sampler answers for a request at a position. */
int64_t model_sample(uint64_t seed, int64_t request, int64_t position);

/* splitmix64's finaliser, for whoever needs a deterministic choice. */
uint64_t model_mix(uint64_t x);

#endif
