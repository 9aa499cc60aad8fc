/* Every case of data/sglang_vectors/scatter.jsonl with KVC_RULES_SGLANG, the whole buffer compared:
 * columns behind the row's width must stay as they were. */
#include "expect.h"
#include "sglang_vectors.h"

static int run_case(struct vectors *v)
{
	int64_t token_count, offset_count, request_count, word_count;
	int64_t *flat = vectors_int64s(v, vectors_field(v->item, "flat_in"), &token_count);
	int64_t *offsets = vectors_int64s(v, vectors_field(v->item, "offsets"), &offset_count);
	int64_t *rows =
	        vectors_int64s(v, vectors_field(v->item, "req_pool_indices"), &request_count);
	int32_t *pool = vectors_int32s(v, vectors_field(v->item, "pool_before"), &word_count);
	const json_t *want_pool = vectors_field(vectors_field(v->item, "want"), "pool");
	int32_t *want = vectors_int32s(v, want_pool, NULL);
	int64_t shape[2] = { vectors_int(v->item, "pool_rows"), vectors_int(v->item, "pool_cols") };
	int64_t strides[2] = { vectors_int(v->item, "pool_row_stride"), 1 };
	kvc_tensor flat_in = kvc_tensor_make(flat, KVC_INT64, 1, &token_count);
	kvc_tensor offset_tensor = kvc_tensor_make(offsets, KVC_INT64, 1, &offset_count);
	kvc_tensor row_tensor = kvc_tensor_make(rows, KVC_INT64, 1, &request_count);
	kvc_tensor pool_out = kvc_tensor_make(pool, KVC_INT32, 2, shape);
	kvc_scatter_args args = KVC_SCATTER_ARGS_INIT;

	pool_out.strides = strides;
	args.flat_in = &flat_in;
	args.offsets = &offset_tensor;
	args.req_pool_indices = &row_tensor;
	args.pool_out = &pool_out;
	args.rules = KVC_RULES_SGLANG;
	if (kvc_scatter_req_token_ids(&args, NULL) != KVC_OK) {
		fprintf(stderr, "%s\n", kvc_last_error()->message);
		return 0;
	}
	return memcmp(pool, want, (size_t)word_count * sizeof(*pool)) == 0;
}

static void every_case_gives_sglangs_bytes(void **state)
{
	struct vectors v;

	(void)state;
	vectors_open(&v, "scatter.jsonl");
	while (vectors_next(&v))
		vectors_passed(&v, run_case(&v));
	assert_true(vectors_close(&v));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_case_gives_sglangs_bytes),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
