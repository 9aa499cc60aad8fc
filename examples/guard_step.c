/*
 * An engine's step around a guard, complete: K and V are written by rope_pool_fused, which stamps
 * them on the way, and the scheduler's tokens say what each request should hold.
 *
 * Two requests run. Before step 3 the allocator's mistake hands a slot of the first to the second;
 * step 3 says so before the slot is lost.
 */
#include <kvcanary.h>
#include <stdio.h>

enum { ROWS = 3, COLUMNS = 16, SLOTS = 64, LAYERS = 2, HEADS = 2, DIM = 64, TOKENS = 8 };

static float k_pool[LAYERS][SLOTS][HEADS][DIM], v_pool[LAYERS][SLOTS][HEADS][DIM];
static int32_t table[ROWS][COLUMNS];   /* req_to_token: slots; row 0 is padding */
static int32_t history[ROWS][COLUMNS]; /* what the scheduler knows each request to hold */
static int64_t pool_shape[] = { SLOTS, HEADS, DIM }, table_shape[] = { ROWS, COLUMNS };

static kvc_guard *guard;
static kvc_stamp stamps[LAYERS];
static kvc_rope rope;

/* A batch: its requests, and what they write. */
static int64_t request_count, token_count;
static int64_t rows[2], ids[2], prefix[2], extend[2], known[2], valid_prefix[2];
static int64_t tokens[TOKENS], positions[TOKENS], slots[TOKENS];

static kvc_tensor vector(int64_t *data, int64_t *count)
{
	return kvc_tensor_make(data, KVC_INT64, 1, count);
}

static int failed(kvc_status status)
{
	if (status != KVC_OK)
		fprintf(stderr, "%s [%s]\n", kvc_last_error()->message, kvc_last_error()->slug);
	return status != KVC_OK;
}

/* Once: the guard, its group over all layers, and each layer's stamp. */
static int start(void)
{
	kvc_guard_options options = KVC_GUARD_OPTIONS_INIT;
	kvc_guard_group group = KVC_GUARD_GROUP_INIT;
	kvc_rope_options rope_options = KVC_ROPE_OPTIONS_INIT;
	kvc_source sources[2 * LAYERS];
	int32_t number = -1;

	for (int layer = 0; layer < LAYERS; layer++) {
		uint64_t id = 2 * (uint64_t)layer;
		kvc_tensor k = kvc_tensor_make(k_pool[layer], KVC_FLOAT32, 3, pool_shape);
		kvc_tensor v = kvc_tensor_make(v_pool[layer], KVC_FLOAT32, 3, pool_shape);
		if (failed(kvc_source_from_pool(&sources[2 * layer], &k, id)) ||
		        failed(kvc_source_from_pool(&sources[2 * layer + 1], &v, id + 1)))
			return 1;
	}
	options.request_rows = ROWS;
	group.slot_count = SLOTS;
	group.sources = sources;
	group.source_count = 2 * LAYERS;
	group.reserved_slot = 0;
	rope_options.rotary_dim = DIM;
	if (failed(kvc_rope_init(&rope, &rope_options)) ||
	        failed(kvc_guard_create(&guard, &options)) ||
	        failed(kvc_guard_attach_group(guard, &group, &number)))
		return 1;
	for (uint64_t layer = 0; layer < LAYERS; layer++)
		if (failed(kvc_guard_stamp(
		            &stamps[layer], guard, number, 2 * layer, 2 * layer + 1)))
			return 1;
	return 0;
}

/* One more request of the next step: it has 'cached' tokens and computes 'count' more. */
static void add(int64_t row, int64_t id, int64_t cached, int64_t count)
{
	int64_t r = request_count++;

	rows[r] = row, ids[r] = id, prefix[r] = cached, extend[r] = count;
	known[r] = cached + count;
	for (int64_t p = cached; p < cached + count; p++) {
		tokens[token_count] = history[row][p];
		positions[token_count] = p;
		slots[token_count++] = table[row][p];
	}
}

/* The forward pass, as far as the cache is concerned. */
static int forward(const kvc_tensor *position_vector, const kvc_tensor *slot_vector)
{
	static float k_rows[TOKENS][HEADS][DIM], v_rows[TOKENS][HEADS][DIM];
	int64_t shape[] = { token_count, HEADS, DIM };
	kvc_tensor k = kvc_tensor_make(k_rows, KVC_FLOAT32, 3, shape);
	kvc_tensor v = kvc_tensor_make(v_rows, KVC_FLOAT32, 3, shape);

	for (int layer = 0; layer < LAYERS; layer++) {
		kvc_rope_pool_args args = KVC_ROPE_POOL_ARGS_INIT;
		kvc_tensor k_out = kvc_tensor_make(k_pool[layer], KVC_FLOAT32, 3, pool_shape);
		kvc_tensor v_out = kvc_tensor_make(v_pool[layer], KVC_FLOAT32, 3, pool_shape);
		for (int64_t t = 0; t < token_count; t++)
			for (int64_t i = 0; i < DIM; i++)
				for (int head = 0; head < HEADS; head++)
					k_rows[t][head][i] = v_rows[t][head][i] =
					        (float)(tokens[t] + i + head + layer);
		args.q = &k, args.k = &k, args.v = &v;
		args.positions = position_vector, args.slots = slot_vector;
		args.k_pool = &k_out, args.v_pool = &v_out;
		args.rope = &rope;
		args.reserved_slot = 0;
		args.stamp = &stamps[layer]; /* the one line that makes a lost write visible */
		if (failed(kvc_rope_pool_fused(&args, NULL)))
			return 1;
	}
	return 0;
}

static int run_step(int64_t number)
{
	kvc_tensor t_rows = vector(rows, &request_count), t_ids = vector(ids, &request_count);
	kvc_tensor t_prefix = vector(prefix, &request_count);
	kvc_tensor t_extend = vector(extend, &request_count);
	kvc_tensor t_known = vector(known, &request_count);
	kvc_tensor t_valid = vector(valid_prefix, &request_count);
	kvc_tensor t_tokens = vector(tokens, &token_count);
	kvc_tensor t_positions = vector(positions, &token_count);
	kvc_tensor t_slots = vector(slots, &token_count);
	kvc_tensor t_table = kvc_tensor_make(table, KVC_INT32, 2, table_shape);
	kvc_tensor t_history = kvc_tensor_make(history, KVC_INT32, 2, table_shape);
	kvc_requests requests = KVC_REQUESTS_INIT;
	kvc_guard_step step = KVC_GUARD_STEP_INIT;

	requests.req_pool_indices = &t_rows, requests.owner_request = &t_ids;
	requests.prefix_lens = &t_prefix, requests.extend_seq_lens = &t_extend;
	step.step = number;
	step.requests = &requests;
	step.req_to_token = &t_table;
	step.expected_tokens = &t_history, step.valid_lens = &t_known;
	step.tokens = &t_tokens, step.positions = &t_positions, step.slots = &t_slots;
	step.valid_prefix = &t_valid;
	if (failed(kvc_guard_step_begin(guard, &step, NULL)))
		return 1;
	int bad = forward(&t_positions, &t_slots);
	bad |= failed(kvc_guard_step_end(guard, NULL)); /* also when the pass failed */
	request_count = token_count = 0;
	return bad;
}

int main(void)
{
	kvc_finding findings[8];
	int64_t count = -1;
	char text[2048];

	for (int p = 0; p < COLUMNS; p++) {
		history[1][p] = 100 + p, history[2][p] = 200 + p;
		table[1][p] = 1 + p, table[2][p] = 32 + p;
	}
	if (start())
		return 2;
	add(1, 1001, 0, 4); /* both prefill */
	add(2, 1002, 0, 4);
	if (run_step(1))
		return 2;
	add(1, 1001, 4, 1); /* both decode */
	add(2, 1002, 4, 1);
	if (run_step(2))
		return 2;
	table[2][5] = table[1][2]; /* the mistake */
	add(1, 1001, 5, 1);
	add(2, 1002, 5, 1);
	if (run_step(3) || failed(kvc_guard_poll(guard, findings, 8, &count, NULL)))
		return 2;
	for (int64_t i = 0; i < count; i++) {
		kvc_finding_text(text, sizeof text, &findings[i]);
		fputs(text, stdout);
	}
	printf("request 1001 can trust %lld of its 5 tokens\n", (long long)valid_prefix[0]);
	kvc_guard_destroy(guard);
	return count == 1 && findings[0].cause == KVC_CAUSE_ALIASED ? 0 : 1;
}
