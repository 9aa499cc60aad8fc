/* hash.jsonl: splitmix64, mix3, chains and fingerprints against what SGLang's kv-canary gives. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "cpu/hash.h"
#include "vectors_canary.h"

/* One row of "values": inputs, then the result. */
static int value_matches(const char *op, const int64_t *x, int64_t vocab)
{
	if (strcmp(op, "splitmix64") == 0)
		return kvc__splitmix64((uint64_t)x[0]) == (uint64_t)x[1];
	if (strcmp(op, "mix3") == 0)
		return kvc__mix3((uint64_t)x[0], (uint64_t)x[1], (uint64_t)x[2]) == (uint64_t)x[3];
	if (strcmp(op, "slot_hash") == 0)
		return (x[0] < 0 ? kvc_chain_start(0)
		                 : kvc__chain_next((uint64_t)x[3], x[1], x[2])) == (uint64_t)x[5];
	return kvc__splitmix64((uint64_t)(x[0] ^ x[1])) % (uint64_t)vocab == (uint64_t)x[2];
}

static int values_match(struct vectors *v, const char *op)
{
	const json_t *values = vectors_field(v->item, "values");
	int64_t vocab = strcmp(op, "oracle_token") == 0 ? vectors_int(v->item, "vocab") : 1;

	for (size_t i = 0; i < json_array_size(values); i++)
		if (!value_matches(op, vectors_int64s(v, json_array_get(values, i), NULL), vocab))
			return 0;
	return 1;
}

static int chain_matches(struct vectors *v)
{
	int64_t count;
	int64_t *tokens = vectors_int64s(v, vectors_field(v->item, "tokens"), &count);
	int64_t *positions = vectors_int64s(v, vectors_field(v->item, "positions"), NULL);
	int64_t *stored = vectors_int64s(v, vectors_field(v->item, "prev_hash"), NULL);
	uint64_t chain = kvc_chain_start(0);

	for (int64_t i = 0; i < count; i++) {
		if (chain != (uint64_t)stored[i])
			return 0;
		chain = kvc_chain_extend(chain, &tokens[i], positions[i], 1);
	}
	return chain == vectors_h64(vectors_field(v->item, "end"));
}

static int fingerprints_match(struct vectors *v)
{
	const json_t *want = vectors_field(v->item, "want");
	kvc_group group = vectors_group(v);
	int64_t one[] = { 1 };

	for (size_t m = 0; m < json_array_size(want); m++) {
		const json_t *mode = json_array_get(want, m);
		const json_t *slots = vectors_field(mode, "slots");
		group.coverage = (int32_t)vectors_int(mode, "mode");
		for (size_t i = 0; i < json_array_size(slots); i++) {
			const json_t *pair = json_array_get(slots, i);
			int64_t slot = json_integer_value(json_array_get(pair, 0));
			uint64_t got = 0;
			kvc_tensor tensor = kvc_tensor_make(&slot, KVC_INT64, 1, one);
			if (kvc_fingerprint(&got, &group, &tensor, NULL) != KVC_OK ||
			        got != vectors_h64(json_array_get(pair, 1)))
				return 0;
		}
	}
	return 1;
}

static void every_hash_equals_sglangs(void **state)
{
	struct vectors v;

	(void)state;
	vectors_open(&v, "hash.jsonl");
	while (vectors_next(&v)) {
		const char *op = vectors_text(v.item, "op");
		if (strcmp(op, "chain") == 0)
			vectors_passed(&v, chain_matches(&v));
		else if (strcmp(op, "fingerprint") == 0)
			vectors_passed(&v, fingerprints_match(&v));
		else
			vectors_passed(&v, values_match(&v, op));
	}
	assert_true(vectors_close(&v));
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(every_hash_equals_sglangs) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
