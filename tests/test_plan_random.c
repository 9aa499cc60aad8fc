/*
 * Random plans against one that is written entry by entry as SPEC section 4.2 words it, and a large
 * one on different numbers of threads.
 */
#include <stdlib.h>

#include "plan_call.h"
#include "seeded.h"

/* ---- random plans against a naive one ---- */

struct naive_entry {
	int64_t slot, token, position, prev, request;
	int unmapped; /* it reads a slot that the mapping does not reach */
};

struct naive {
	struct naive_entry entries[BS_MAX * COLUMNS];
	int64_t count;
	int64_t seeds[BS_MAX], offsets[BS_MAX + 1];
	int unmapped, unmapped_seed;
	kvc_status status;
};

static int64_t naive_translate(struct naive *n, const struct call *c, int64_t slot)
{
	if (!c->args.full_to_swa_index_mapping || slot < 0)
		return slot;
	if (slot >= c->mapping_shape[0]) {
		n->unmapped = 1;
		return 0;
	}
	return c->mapping[slot];
}

static int naive_excluded(const struct call *c, int64_t slot)
{
	if (!c->args.exclude || slot < 0 || slot >= 8 * c->exclude_shape[0])
		return 0;
	return c->exclude[slot / 8] >> slot % 8 & 1;
}

static struct naive_entry naive_entry_at(
        struct naive *n, const struct call *c, int64_t r, int64_t p, int64_t p0)
{
	const int32_t *row = c->table + c->rows[r] * COLUMNS;
	int own = c->args.rules == KVC_RULES_OWN;
	struct naive_entry e = { .token = -1, .position = p, .request = r };

	e.slot = naive_translate(n, c, row[p]);
	if (p == 0)
		e.prev = -1;
	else if (own && p == p0)
		e.prev = -2;
	else {
		e.prev = naive_translate(n, c, row[p - 1]);
		if (own && e.prev < 0)
			e.prev = -1;
		if (naive_excluded(c, e.prev))
			e.prev = -3;
	}
	if (naive_excluded(c, e.slot))
		e.slot = -1;
	int64_t column = p + c->args.token_offset;
	if (c->args.expected_tokens && column >= 0 && column < c->valid[r]) {
		if (column >= c->tokens_shape[1])
			n->status = KVC_E_ROW_RANGE;
		else
			e.token = c->tokens[c->rows[r] * c->tokens_shape[1] + column];
	}
	return e;
}

static void naive_plan(struct naive *n, const struct call *c)
{
	memset(n, 0, sizeof(*n));
	for (int64_t r = 0; r < c->bs[0]; r++) {
		int64_t prefix = c->rows[r] == 0 ? 0 : c->prefix[r];
		int64_t extend = c->rows[r] == 0 || c->extend[r] < 0 ? 0 : c->extend[r];
		int64_t p0 =
		        c->args.window > 0 && prefix > c->args.window ? prefix - c->args.window : 0;
		if (c->requests.start && c->start[r] > p0)
			p0 = c->start[r];
		n->offsets[r + 1] = n->offsets[r] + extend;
		n->seeds[r] = -1;
		if (c->rows[r] < 0 || c->rows[r] >= ROWS)
			n->status = KVC_E_ROW_RANGE;
		if (prefix > COLUMNS && (p0 < prefix || extend > 0))
			n->status = KVC_E_ROW_RANGE;
		if (n->status != KVC_OK)
			return;
		for (int64_t p = p0; p < prefix; p++) {
			n->unmapped = 0;
			n->entries[n->count] = naive_entry_at(n, c, r, p, p0);
			n->entries[n->count++].unmapped = n->unmapped;
		}
		n->unmapped = 0;
		if (prefix > 0 && extend > 0)
			n->seeds[r] =
			        naive_translate(n, c, c->table[c->rows[r] * COLUMNS + prefix - 1]);
		n->unmapped_seed |= n->unmapped;
	}
}

/* The first entry of the full list that is emitted, and how many are. */
static void naive_choose(const struct naive *n, const struct call *c, int64_t rotation,
        int64_t *first, int64_t *count)
{
	int64_t v = c->plan.verify_capacity, total = n->count;

	*first = 0;
	*count = total;
	if (total <= v)
		return;
	*count = c->args.rules == KVC_RULES_SGLANG ? 0 : v;
	if (c->args.rules == KVC_RULES_OWN && c->args.rotation)
		*first = ((rotation % total) + total) % total;
}

/* Mapping indices matter where they are read: in entries that are emitted, and in seeds. By SGLang's
 * rules in all entries, as its reference translates them before it knows whether they fit. */
static kvc_status naive_status(const struct naive *n, const struct call *c, int64_t rotation)
{
	int64_t first, count;
	int unmapped = n->unmapped_seed;

	if (n->status != KVC_OK)
		return n->status;
	naive_choose(n, c, rotation, &first, &count);
	if (c->args.rules == KVC_RULES_SGLANG)
		count = n->count;
	for (int64_t j = 0; j < count; j++)
		unmapped |= n->entries[(first + j) % n->count].unmapped;
	return unmapped ? KVC_E_ROW_RANGE : KVC_OK;
}

static void random_call_make(struct call *c, struct seeded *random)
{
	call_init(c);
	c->bs[0] = seeded_in(random, 0, BS_MAX);
	c->args.rules = seeded_one_in(random, 3) ? KVC_RULES_SGLANG : KVC_RULES_OWN;
	int own = c->args.rules == KVC_RULES_OWN;
	for (int r = 0; r < BS_MAX; r++) {
		c->rows[r] = seeded_in(random, 0, ROWS - 1);
		c->prefix[r] = seeded_in(random, -1, COLUMNS);
		c->extend[r] = seeded_in(random, -1, 3);
		c->start[r] = seeded_in(random, -1, 6);
		c->valid[r] = seeded_in(random, -1, COLUMNS);
	}
	for (int i = 0; i < ROWS * COLUMNS; i++)
		c->table[i] = (int32_t)seeded_in(random, -3, 63);
	for (int i = 0; i < 64; i++)
		c->mapping[i] = seeded_in(random, -2, 40);
	for (int i = 0; i < 8; i++)
		c->exclude[i] = (uint8_t)seeded_next(random);
	c->exclude_shape[0] = seeded_in(random, 0, 8);
	if (seeded_one_in(random, 2)) {
		c->args.full_to_swa_index_mapping = &c->mapping_tensor;
		c->args.window = seeded_in(random, 0, 5);
	}
	if (own && seeded_one_in(random, 3))
		c->args.window = seeded_in(random, 0, 5);
	if (own && seeded_one_in(random, 3))
		c->requests.start = &c->start_tensor;
	if (own && seeded_one_in(random, 3))
		c->args.exclude = &c->exclude_tensor;
	if (seeded_one_in(random, 2)) {
		c->args.expected_tokens = &c->tokens_tensor;
		c->args.valid_lens = &c->valid_tensor;
		c->args.token_offset = seeded_in(random, -2, 2);
	}
	if (seeded_one_in(random, 10))
		c->rows[seeded_in(random, 0, 3)] = seeded_in(random, -1, ROWS);
	if (seeded_one_in(random, 10))
		c->prefix[seeded_in(random, 0, 3)] = COLUMNS + 1;
	if (seeded_one_in(random, 10))
		c->mapping_shape[0] = seeded_in(random, 50, 64);
	if (seeded_one_in(random, 10))
		c->tokens_shape[1] = 6;
	bind_plan(c, seeded_in(random, 0, 34), BS_MAX);
	c->rotation = seeded_in(random, -40, 80);
	c->args.rotation = seeded_one_in(random, 4) ? NULL : &c->rotation;
}

static void compare_with_naive(const struct call *c, const struct naive *n, int64_t rotation)
{
	int64_t v = c->plan.verify_capacity, total = n->count, first, emitted;
	int sglang = c->args.rules == KVC_RULES_SGLANG;

	naive_choose(n, c, rotation, &first, &emitted);
	assert_int_equal(*c->plan.verify_num_valid, total < v ? total : v);
	assert_int_equal(*c->plan.enable, !(sglang && total > v));
	assert_int_equal(*c->plan.left_out, total - emitted);
	for (int64_t j = 0; j < emitted; j++) {
		const struct naive_entry *e = &n->entries[(first + j) % total];
		assert_int_equal(c->plan.verify_slot_indices[j], e->slot);
		assert_int_equal(c->plan.verify_expected_tokens[j], e->token);
		assert_int_equal(c->plan.verify_expected_positions[j], e->position);
		assert_int_equal(c->plan.verify_prev_slot_indices[j], e->prev);
		assert_int_equal(c->plan.verify_request[j], e->request);
	}
	int64_t untouched;
	memset(&untouched, FILL, sizeof(untouched));
	for (int64_t j = emitted; j < v; j++)
		assert_int_equal(c->plan.verify_slot_indices[j], untouched);
	assert_int_equal(*c->plan.write_num_valid_reqs, c->bs[0]);
	assert_int64s(c->plan.write_offsets, n->offsets, c->bs[0] + 1);
	assert_int64s(c->plan.write_seed_slot_indices, n->seeds, c->bs[0]);
	for (int64_t r = c->bs[0]; r < BS_MAX; r++) {
		assert_int_equal(c->plan.write_offsets[r + 1], 0);
		assert_int_equal(c->plan.write_seed_slot_indices[r], untouched);
	}
	if (sglang || total == 0)
		assert_int_equal(c->rotation, rotation);
	else if (c->args.rotation)
		assert_int_equal(c->rotation, total <= v ? 0 : (first + v) % total);
}

static void random_plans_agree_with_a_naive_one(void **state)
{
	struct seeded random = seeded_start("random_plans_agree_with_a_naive_one");
	static struct call call;
	static struct naive naive;
	int refusals = 0;

	(void)state;
	for (int i = 0; i < 30000; i++) {
		random_call_make(&call, &random);
		int64_t rotation = call.rotation;
		naive_plan(&naive, &call);
		kvc_status status = kvc_canary_plan(&call.plan, &call.args, NULL);
		assert_int_equal(status, naive_status(&naive, &call, rotation));
		refusals += status != KVC_OK;
		if (status == KVC_OK)
			compare_with_naive(&call, &naive, rotation);
	}
	assert_in_range(refusals, 100, 29000);
}

/* ---- threads ---- */

static void plans_do_not_depend_on_the_thread_count(void **state)
{
	enum { BS = 7, WIDTH = 40000, V = 200000 };
	int64_t bs = BS, shape[2] = { BS + 1, WIDTH }, rows[BS], prefix[BS], extend[BS];
	int32_t *table = malloc((BS + 1) * WIDTH * sizeof(*table));
	int64_t exclude_bytes = 12000, rotation;
	uint8_t *exclude = malloc((size_t)exclude_bytes);
	size_t bytes = kvc_plan_bytes(V, BS);
	char *memory[2] = { malloc(bytes), malloc(bytes) };
	kvc_tensor tensors[5] = {
		kvc_tensor_make(rows, KVC_INT64, 1, &bs),
		kvc_tensor_make(prefix, KVC_INT64, 1, &bs),
		kvc_tensor_make(extend, KVC_INT64, 1, &bs),
		kvc_tensor_make(table, KVC_INT32, 2, shape),
		kvc_tensor_make(exclude, KVC_UINT8, 1, &exclude_bytes),
	};
	kvc_requests requests = KVC_REQUESTS_INIT;
	kvc_plan_args args = KVC_PLAN_ARGS_INIT;

	(void)state;
	for (int r = 0; r < BS; r++)
		rows[r] = BS - r, prefix[r] = WIDTH - 100 * r, extend[r] = r;
	for (int i = 0; i < (BS + 1) * WIDTH; i++)
		table[i] = (int32_t)((int64_t)i * 7919 % 100003);
	for (int64_t i = 0; i < exclude_bytes; i++)
		exclude[i] = (uint8_t)(i * 251);
	requests.req_pool_indices = &tensors[0], requests.prefix_lens = &tensors[1];
	requests.extend_seq_lens = &tensors[2];
	args.requests = &requests, args.req_to_token = &tensors[3], args.exclude = &tensors[4];
	args.rotation = &rotation;
	for (int t = 0; t < 2; t++) {
		kvc_plan plan;
		rotation = 123456; /* in the middle of a request, and round the end */
		memset(memory[t], 0, bytes);
		expect_ok(kvc_plan_bind(&plan, memory[t], cpu, V, BS));
		expect_ok(kvc_set_num_threads(t == 0 ? 1 : 3));
		expect_ok(kvc_canary_plan(&plan, &args, NULL));
		assert_int_equal(*plan.verify_num_valid, V);
	}
	assert_memory_equal(memory[0], memory[1], bytes);
	expect_ok(kvc_set_num_threads(0));
	free(table), free(exclude), free(memory[0]), free(memory[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_plans_agree_with_a_naive_one),
		cmocka_unit_test(plans_do_not_depend_on_the_thread_count),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
