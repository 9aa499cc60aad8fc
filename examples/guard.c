/*
 * The guard in the smallest engine there is: one layer, one request of four tokens, two steps.
 * Between the steps one bit of a K row flips; the second step says which slot, whose, and why.
 */
#include <kvcanary.h>
#include <stdio.h>

enum { SLOT_COUNT = 32, HEAD_DIM = 64, TOKEN_COUNT = 4, REQUEST_ROW = 1, REQUEST_ID = 1001 };

static float k_pool[SLOT_COUNT][1][HEAD_DIM], v_pool[SLOT_COUNT][1][HEAD_DIM];
static int32_t table[2][8] = { { 0 }, { 4, 5, 6, 7 } }; /* slots of each request row */

static int64_t one[] = { 1 };
static int64_t pool_shape[] = { SLOT_COUNT, 1, HEAD_DIM }, table_shape[] = { 2, 8 };

static kvc_tensor vector(int64_t *entries, int64_t *count)
{
	return kvc_tensor_make(entries, KVC_INT64, 1, count);
}

/* Says what the library says if a call failed. */
static int failed(kvc_status status)
{
	if (status != KVC_OK)
		fprintf(stderr, "%s [%s]\n", kvc_last_error()->message, kvc_last_error()->slug);
	return status != KVC_OK;
}

static int attach_pools(kvc_guard *guard)
{
	kvc_tensor k = kvc_tensor_make(k_pool, KVC_FLOAT32, 3, pool_shape);
	kvc_tensor v = kvc_tensor_make(v_pool, KVC_FLOAT32, 3, pool_shape);
	kvc_source sources[2];
	kvc_guard_group group = KVC_GUARD_GROUP_INIT;
	int32_t group_number;

	if (failed(kvc_source_from_pool(&sources[0], &k, 0)) ||
	        failed(kvc_source_from_pool(&sources[1], &v, 1)))
		return 1;
	group.slot_count = SLOT_COUNT;
	group.sources = sources;
	group.source_count = 2;
	group.stamping = KVC_STAMP_COMPUTE; /* this engine has a write path of its own */
	return failed(kvc_guard_attach_group(guard, &group, &group_number));
}

/* One step that reads 'prefix' tokens of the request and writes 'extend' after them. */
static int run_step(kvc_guard *guard, int64_t number, int64_t prefix, int64_t extend)
{
	int64_t row = REQUEST_ROW, id = REQUEST_ID;
	int64_t tokens[] = { 11, 22, 33, 44 }, positions[] = { 0, 1, 2, 3 };
	int64_t slots[] = { 4, 5, 6, 7 }, written[] = { extend };
	kvc_tensor rows = vector(&row, one), ids = vector(&id, one);
	kvc_tensor prefixes = vector(&prefix, one), extends = vector(&extend, one);
	kvc_tensor token_vector = vector(tokens, written), slot_vector = vector(slots, written);
	kvc_tensor position_vector = vector(positions, written);
	kvc_tensor table_tensor = kvc_tensor_make(table, KVC_INT32, 2, table_shape);
	kvc_requests requests = KVC_REQUESTS_INIT;
	kvc_guard_step step = KVC_GUARD_STEP_INIT;

	requests.req_pool_indices = &rows;
	requests.prefix_lens = &prefixes;
	requests.extend_seq_lens = &extends;
	requests.owner_request = &ids;
	step.step = number;
	step.requests = &requests;
	step.req_to_token = &table_tensor;
	step.tokens = &token_vector;
	step.positions = &position_vector;
	step.slots = &slot_vector;
	if (failed(kvc_guard_step_begin(guard, &step, NULL)))
		return 1;
	for (int64_t i = 0; i < extend; i++) /* the forward pass of a real engine */
		for (int64_t dim = 0; dim < HEAD_DIM; dim++)
			k_pool[slots[i]][0][dim] = v_pool[slots[i]][0][dim] = (float)(i + dim);
	return failed(kvc_guard_step_end(guard, NULL));
}

int main(void)
{
	kvc_guard_options options = KVC_GUARD_OPTIONS_INIT;
	kvc_guard *guard = NULL;
	kvc_finding finding;
	int64_t count = 0;
	char text[2048];
	int exit_code = 2;

	options.request_rows = 2;
	if (failed(kvc_guard_create(&guard, &options)) || attach_pools(guard) ||
	        run_step(guard, 1, 0, TOKEN_COUNT))
		goto out;
	((unsigned char *)k_pool[6])[17] ^= 1; /* the fault */
	if (run_step(guard, 2, TOKEN_COUNT, 0) ||
	        failed(kvc_guard_poll(guard, &finding, 1, &count, NULL)))
		goto out;
	exit_code = count == 1 ? 0 : 1;
	if (count == 1) {
		kvc_finding_text(text, sizeof text, &finding);
		printf("%s\n", text);
	}
out:
	kvc_guard_destroy(guard);
	return exit_code;
}
