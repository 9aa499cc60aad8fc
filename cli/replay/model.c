/* The model's stand-in; model.h says what each function promises. */
#include "replay/model.h"

#include <string.h>

#define GOLDEN 0x9E3779B97F4A7C15u

uint64_t model_mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
	x = (x ^ x >> 27) * 0x94D049BB133111EBu;
	return x ^ x >> 31;
}

int64_t model_element_bytes(kvc_dtype dtype)
{
	return dtype.bits / 8;
}

/*
 * What to keep of eight random bytes and what to set, so that every element is finite and near 1:
 * sign and mantissa stay random, the exponent is held to a few values.
 */
struct pattern {
	uint64_t keep;
	uint64_t set;
};

static struct pattern pattern_of(kvc_dtype dtype)
{
	if (dtype.bits == 32) /* exponent 126: [0.5, 1) */
		return (struct pattern){ 0x807FFFFF807FFFFFu, 0x3F0000003F000000u };
	if (dtype.code == KVC_CODE_FLOAT) /* exponent 14: [0.5, 1) */
		return (struct pattern){ 0x83FF83FF83FF83FFu, 0x3800380038003800u };
	return (struct pattern){ 0x83FF83FF83FF83FFu, 0x3C003C003C003C00u }; /* 120 to 127 */
}

void model_rows(void *out, kvc_dtype dtype, int kind, int64_t layer, const int64_t *tokens,
        const int64_t *positions, int64_t count, int64_t heads, int64_t head_dim)
{
	struct pattern pattern = pattern_of(dtype);
	int64_t words = head_dim * model_element_bytes(dtype) / 8;
	uint64_t place = (uint64_t)layer << 2 | (uint64_t)kind;
	unsigned char *row = out;

	for (int64_t t = 0; t < count; t++) {
		/* One word per (token, position), both below 2^32: no two share it. */
		uint64_t who = model_mix((uint64_t)tokens[t] << 32 | (uint64_t)positions[t]);
		for (int64_t h = 0; h < heads; h++) {
			uint64_t state = model_mix(who ^ (place << 16 | (uint64_t)h) * GOLDEN);
			for (int64_t w = 0; w < words; w++) {
				uint64_t word = (state += GOLDEN);
				word = (word ^ word >> 32) * 0xD6E8FEB86659FD93u;
				word = ((word ^ word >> 29) & pattern.keep) | pattern.set;
				memcpy(row, &word, sizeof(word));
				row += sizeof(word);
			}
		}
	}
}

static int64_t token_of(uint64_t x)
{
	return 1 + (int64_t)(model_mix(x) % (MODEL_VOCABULARY - 1));
}

int64_t model_block_token(int64_t hash_id, int64_t offset)
{
	return token_of(model_mix((uint64_t)hash_id + GOLDEN) + (uint64_t)offset);
}

int64_t model_sample(uint64_t seed, int64_t request, int64_t position)
{
	return token_of(model_mix(seed ^ (uint64_t)request * GOLDEN) ^ (uint64_t)position);
}
