/*
 * Stamping slots. Goal: records, owners, rows and counters equal those of an oracle that is written
 * from SPEC section 4.3 without regard to memory, for random batches of requests that share seeds
 * and slots in every way; and nothing is written when a call is refused.
 */
#include "canary_world.h"
#include "cpu/hash.h"
#include "seeded.h"

#define REQUESTS_MAX 7
#define REQUESTS_MANY 520 /* more than write remembers the starts of */
#define TOKENS_MAX 24
#define SLOTS 12
#define RESERVED 0

enum { IN_ORDER, UNLINKED, LINKED }; /* SGLang's, ours without and with scratch */

/* ---- a random call ---- */

struct call {
	int kind;
	int64_t request_count;
	int64_t token_count;
	int64_t offsets[REQUESTS_MANY + 1];
	int64_t seeds[REQUESTS_MANY];
	int64_t rows[REQUESTS_MANY];
	int64_t namespaces[REQUESTS_MANY];
	int64_t chain_in[REQUESTS_MANY];
	int64_t owner[REQUESTS_MANY];
	int64_t tokens[TOKENS_MAX];
	int64_t positions[TOKENS_MAX];
	int64_t slots[TOKENS_MAX];
	int64_t expected_tokens[TOKENS_MAX];
	int64_t expected_positions[TOKENS_MAX];
	int check_input;
	int32_t check_steps;
	kvc_record records[SLOTS]; /* before the call */
	kvc_owner owners[SLOTS];
	int stamping;
};

static void random_tokens(struct seeded *random, struct call *c)
{
	/* 'distinct' gives every entry a slot of its own, as a sound engine does. */
	int distinct = seeded_one_in(random, 2);
	int64_t lowest = c->kind == IN_ORDER ? 0 : 1;

	for (int64_t r = 0; r < c->request_count; r++) {
		int64_t position = seeded_one_in(random, 2) ? 0 : seeded_in(random, 1, 50);
		for (int64_t e = c->offsets[r]; e < c->offsets[r + 1]; e++) {
			c->tokens[e] = seeded_in(random, 0, 100000);
			c->positions[e] =
			        seeded_one_in(random, 9) ? seeded_in(random, -3, 60) : position;
			position++;
			c->slots[e] = distinct ? lowest + e : seeded_in(random, lowest, SLOTS - 1);
			if (c->slots[e] >= SLOTS || seeded_one_in(random, 8))
				c->slots[e] = seeded_one_in(random, 3) ? RESERVED : -1;
			c->expected_tokens[e] =
			        seeded_one_in(random, 4) ? seeded_in(random, 0, 9) : c->tokens[e];
			c->expected_positions[e] = seeded_one_in(random, 4)
			                                   ? seeded_in(random, 0, 9)
			                                   : c->positions[e];
		}
	}
}

static void random_call(struct seeded *random, struct call *c, int kind)
{
	memset(c, 0, sizeof(*c));
	c->kind = kind;
	c->request_count = seeded_in(random, 0, REQUESTS_MAX);
	for (int64_t r = 0; r < c->request_count; r++) {
		int64_t left = TOKENS_MAX - c->offsets[r];
		int64_t length = seeded_in(random, 0, 4);
		c->offsets[r + 1] = c->offsets[r] + (length < left ? length : left);
		c->seeds[r] = seeded_one_in(random, 3) ? -1 : seeded_in(random, 0, SLOTS - 1);
		if (seeded_one_in(random, 12))
			c->seeds[r] = SLOTS + 5;
		c->rows[r] = r + 1;
		c->namespaces[r] = seeded_one_in(random, 3) ? (int64_t)seeded_next(random) : 0;
		c->chain_in[r] = seeded_one_in(random, 5) ? (int64_t)seeded_next(random) : 0;
		c->owner[r] = 500 + r;
	}
	c->token_count = c->offsets[c->request_count];
	random_tokens(random, c);
	c->check_input = seeded_one_in(random, 2);
	c->check_steps = seeded_one_in(random, 2);
	c->stamping = kind != IN_ORDER && seeded_one_in(random, 2);
	for (int64_t i = 0; i < SLOTS; i++) {
		c->records[i] = (kvc_record){ seeded_in(random, 0, 99), seeded_in(random, 0, 50),
			seeded_next(random), seeded_next(random) };
		c->owners[i] = (kvc_owner){ seeded_in(random, -1, 9), 3, 32 };
	}
}

/* ---- the oracle ---- */

struct outcome {
	kvc_record records[SLOTS];
	kvc_owner owners[SLOTS];
	kvc_violation rows[256];
	int64_t row_count;
	int64_t stored;
	int64_t skipped;
};

static int stores(const struct call *c, int64_t e)
{
	if (c->kind == IN_ORDER)
		return c->slots[e] >= 0;
	return c->slots[e] >= 0 && c->slots[e] != RESERVED;
}

static int64_t request_of_entry(const struct call *c, int64_t e)
{
	for (int64_t r = 0;; r++)
		if (e >= c->offsets[r] && e < c->offsets[r + 1])
			return r;
}

static int64_t last_entry_on(const struct call *c, int64_t slot)
{
	for (int64_t e = c->token_count - 1; e >= 0; e--)
		if (stores(c, e) && c->slots[e] == slot)
			return e;
	return -1;
}

static int seed_usable(const struct call *c, int64_t r)
{
	return c->chain_in[r] == 0 && c->seeds[r] >= 0 && c->seeds[r] < SLOTS &&
	       (c->kind == IN_ORDER || c->seeds[r] != RESERVED);
}

/* The request that r's start depends on, in the linked kind; -1 if none. */
static int64_t depends_on(const struct call *c, int64_t r)
{
	int64_t e = seed_usable(c, r) ? last_entry_on(c, c->seeds[r]) : -1;

	return e < 0 ? -1 : request_of_entry(c, e);
}

static int in_cycle(const struct call *c, int64_t r)
{
	int64_t at = depends_on(c, r);

	for (int64_t i = 0; i < c->request_count && at >= 0; i++) {
		if (at == r)
			return 1;
		at = depends_on(c, at);
	}
	return 0;
}

static uint64_t after(kvc_record record)
{
	return kvc__mix3(record.prev_hash, (uint64_t)record.token, (uint64_t)record.position);
}

/* The chain that entry e of request r stores, in the linked kind, by recursion. */
static uint64_t linked_chain(const struct call *c, int64_t r, int64_t e)
{
	uint64_t chain = kvc_chain_start((uint64_t)c->namespaces[r]);

	if (c->chain_in[r] != 0) {
		chain = (uint64_t)c->chain_in[r];
	} else if (seed_usable(c, r) && !in_cycle(c, r)) {
		int64_t other = last_entry_on(c, c->seeds[r]);
		kvc_record seed = c->records[c->seeds[r]];
		if (other >= 0) {
			seed.token = c->tokens[other];
			seed.position = c->positions[other];
			seed.prev_hash = linked_chain(c, request_of_entry(c, other), other);
		}
		chain = after(seed);
	}
	for (int64_t i = c->offsets[r]; i < e; i++)
		if (stores(c, i))
			chain = kvc__mix3(chain, (uint64_t)c->tokens[i], (uint64_t)c->positions[i]);
	return chain;
}

/* The record that r's seed is read from. */
static kvc_record seed_record(const struct call *c, const struct outcome *o, int64_t r)
{
	int64_t other = last_entry_on(c, c->seeds[r]);
	kvc_record seed = c->records[c->seeds[r]];

	if (c->kind == IN_ORDER)
		return o->records[c->seeds[r]];
	if (c->kind == LINKED && other >= 0) {
		seed.token = c->tokens[other];
		seed.position = c->positions[other];
		seed.prev_hash = linked_chain(c, request_of_entry(c, other), other);
	}
	return seed;
}

static kvc_violation *add_row(struct outcome *o, const struct call *c, int64_t r, int64_t slot)
{
	kvc_violation *row = &o->rows[o->row_count++];
	const kvc_owner *owners = c->kind == IN_ORDER ? o->owners : c->owners;

	memset(row, 0, sizeof(*row));
	row->launch_tag = KVC_TAG_STEP_WRITE;
	row->slot = slot;
	row->request_row = c->rows[r];
	row->owner_request = row->owner_step = -1;
	if (slot >= 0 && slot < SLOTS && owners[slot].request != -1) {
		row->owner_request = owners[slot].request;
		row->owner_step = owners[slot].step;
	}
	row->source_id = -1;
	row->sequence = o->row_count;
	return row;
}

static void entry_row(struct outcome *o, const struct call *c, int64_t r, int64_t e, uint64_t chain,
        int64_t token, int64_t position, int64_t reasons)
{
	kvc_violation *row = add_row(o, c, r, c->slots[e]);

	row->position = c->positions[e];
	row->stored_token = c->tokens[e];
	row->expected_token = token;
	row->stored_chain = chain;
	row->expected_aux = (uint64_t)position;
	row->expected_position = position;
	row->reasons = reasons;
}

static void oracle_request(struct outcome *o, const struct call *c, int64_t r)
{
	uint64_t chain = kvc_chain_start((uint64_t)c->namespaces[r]);
	int cycle = c->kind == LINKED && in_cycle(c, r);
	int has_previous = 0, first = 1, steps = 0;
	int64_t previous = 0;

	if (c->chain_in[r] != 0) {
		chain = (uint64_t)c->chain_in[r];
		steps = c->check_steps;
	} else if (seed_usable(c, r) && !cycle) {
		kvc_record seed = seed_record(c, o, r);
		chain = after(seed);
		previous = seed.position;
		has_previous = 1;
		steps = c->check_steps;
	}
	for (int64_t e = c->offsets[r]; e < c->offsets[r + 1]; e++) {
		if (!stores(c, e))
			continue;
		if (first && c->kind != IN_ORDER && c->chain_in[r] == 0 &&
		        (cycle || (!seed_usable(c, r) &&
		                          (c->seeds[r] >= 0 || c->positions[e] > 0)))) {
			kvc_violation *row = add_row(o, c, r, c->seeds[r]);
			row->position = row->expected_position = c->positions[e];
			row->expected_token = -1;
			row->reasons = KVC_REASON_SLOT_RANGE;
		}
		first = 0;
		int64_t reasons = (c->tokens[e] != c->expected_tokens[e] ? 8 : 0) |
		                  (c->positions[e] != c->expected_positions[e] ? 16 : 0);
		if (c->check_input && reasons)
			entry_row(o, c, r, e, chain, c->expected_tokens[e],
			        c->expected_positions[e], reasons);
		if (steps && has_previous && c->positions[e] != previous + 1)
			entry_row(o, c, r, e, chain, c->tokens[e], previous + 1, 16);
		previous = c->positions[e];
		has_previous = 1;
		kvc_record *record = &o->records[c->slots[e]];
		record->token = c->tokens[e];
		record->position = c->positions[e];
		record->prev_hash = chain;
		o->owners[c->slots[e]] = (kvc_owner){ c->owner[r], 77, KVC_TAG_STEP_WRITE };
		chain = kvc__mix3(chain, (uint64_t)c->tokens[e], (uint64_t)c->positions[e]);
	}
}

static void oracle(struct outcome *o, const struct call *c, const kvc_group *group)
{
	memset(o, 0, sizeof(*o));
	memcpy(o->records, c->records, sizeof(o->records));
	memcpy(o->owners, c->owners, sizeof(o->owners));
	for (int64_t r = 0; r < c->request_count; r++)
		oracle_request(o, c, r);
	for (int64_t e = 0; e < c->token_count; e++) {
		int64_t one = 1;
		o->stored += stores(c, e);
		o->skipped += !stores(c, e);
		if (!stores(c, e))
			continue;
		kvc_tensor slot = world_vector(&c->slots[e], &one);
		o->records[c->slots[e]].fingerprint = 0;
		if (c->stamping == KVC_STAMP_COMPUTE)
			expect_ok(kvc_fingerprint(
			        &o->records[c->slots[e]].fingerprint, group, &slot, NULL));
	}
}

/* ---- the call itself ---- */

struct bound {
	kvc_tensor tensors[16];
	int64_t count, requests, slots;
	int32_t valid;
	int64_t step;
	kvc_plan plan;
	kvc_requests batch;
	kvc_write_args args;
};

static void bind_call(struct bound *b, struct call *c, struct world *w, int64_t *scratch)
{
	const int64_t *lists[] = { c->tokens, c->positions, c->slots, c->expected_tokens,
		c->expected_positions };
	const int64_t *arrays[] = { c->rows, c->namespaces, c->chain_in, c->owner };

	memset(b, 0, sizeof(*b));
	b->count = c->token_count, b->requests = c->request_count, b->slots = SLOTS;
	b->valid = (int32_t)c->request_count;
	b->step = 77;
	for (int i = 0; i < 5; i++)
		b->tensors[i] = world_vector(lists[i], &b->count);
	for (int i = 0; i < 4; i++)
		b->tensors[5 + i] = world_vector(arrays[i], &b->requests);
	b->tensors[9] = world_vector(scratch, &b->slots);
	b->plan.struct_bytes = sizeof(b->plan);
	b->plan.device.device_type = KVC_DEVICE_CPU;
	b->plan.write_req_capacity = c->request_count > REQUESTS_MAX ? REQUESTS_MANY : REQUESTS_MAX;
	b->plan.write_offsets = c->offsets;
	b->plan.write_seed_slot_indices = c->seeds;
	b->plan.write_num_valid_reqs = &b->valid;
	b->batch = (kvc_requests)KVC_REQUESTS_INIT;
	b->batch.req_pool_indices = &b->tensors[5];
	b->batch.namespaces = &b->tensors[6];
	b->batch.write_chain_in = &b->tensors[7];
	b->batch.owner_request = &b->tensors[8];
	b->args = (kvc_write_args)KVC_WRITE_ARGS_INIT;
	b->args.group = &w->group;
	b->args.plan = &b->plan;
	b->args.requests = &b->batch;
	b->args.tokens = &b->tensors[0];
	b->args.positions = &b->tensors[1];
	b->args.slots = &b->tensors[2];
	if (c->check_input) {
		b->args.expected_tokens = &b->tensors[3];
		b->args.expected_positions = &b->tensors[4];
	}
	b->args.check_steps = &c->check_steps;
	b->args.step = &b->step;
	b->args.ring = &w->ring;
	b->args.scratch = c->kind == LINKED ? &b->tensors[9] : NULL;
	b->args.rules = c->kind == IN_ORDER ? KVC_RULES_SGLANG : KVC_RULES_OWN;
}

static void world_of_call(struct world *w, const struct call *c)
{
	world_start(w, SLOTS);
	memcpy(w->records, c->records, sizeof(c->records));
	memcpy(w->owners, c->owners, sizeof(c->owners));
	w->group.reserved_slot = RESERVED;
	w->group.stamping = c->stamping;
}

static void compare(struct call *c)
{
	static struct outcome want;
	struct world w;
	struct bound b;
	int64_t scratch[SLOTS] = { 0 };

	world_of_call(&w, c);
	oracle(&want, c, &w.group);
	bind_call(&b, c, &w, scratch);
	expect_ok(kvc_canary_write(&b.args, NULL));
	world_poll(&w);
	assert_memory_equal(w.records, want.records, sizeof(want.records));
	assert_memory_equal(w.owners, want.owners, sizeof(want.owners));
	assert_int_equal(w.found_count, want.row_count);
	assert_memory_equal(w.found, want.rows, (size_t)want.row_count * sizeof(kvc_violation));
	assert_int_equal(w.counters.kernel_runs, 1);
	assert_int_equal(w.counters.slots_run, want.stored);
	assert_int_equal(w.counters.slots_skipped, want.skipped);
	assert_int_equal(w.counters.bytes_hashed,
	        c->stamping == KVC_STAMP_COMPUTE ? want.stored * 2 * WORLD_ROW_BYTES : 0);
	for (int i = 0; i < SLOTS; i++)
		assert_int_equal(scratch[i], 0);
	world_end(&w);
}

/* Requests of no tokens behind the others change nothing but their number. */
static void add_empty_requests(struct call *c)
{
	for (int64_t r = c->request_count; r < REQUESTS_MANY; r++) {
		c->offsets[r + 1] = c->token_count;
		c->seeds[r] = -1;
		c->rows[r] = c->namespaces[r] = c->chain_in[r] = c->owner[r] = 0;
	}
	c->request_count = REQUESTS_MANY;
}

static void random_writes_equal_the_oracle(void **state)
{
	struct seeded random = seeded_start(__func__);
	struct call c;

	(void)state;
	for (int i = 0; i < 12000; i++) {
		random_call(&random, &c, i % 3);
		/* A row in the wrong place would not show without one. */
		if (c.kind == IN_ORDER)
			for (int64_t e = 0; e < c.token_count; e++)
				if (c.slots[e] == RESERVED && seeded_one_in(&random, 2))
					c.slots[e] = SLOTS - 1;
		if (seeded_one_in(&random, 8))
			add_empty_requests(&c);
		compare(&c);
	}
}

/* ---- single cases ---- */

static void start_plain(struct call *c, int kind, int64_t requests, int64_t each)
{
	memset(c, 0, sizeof(*c));
	c->kind = kind;
	c->request_count = requests;
	for (int64_t r = 0; r < requests; r++) {
		c->offsets[r + 1] = c->offsets[r] + each;
		c->seeds[r] = -1;
		c->rows[r] = r + 1;
		c->owner[r] = r;
	}
	c->token_count = requests * each;
	for (int64_t e = 0; e < c->token_count; e++) {
		c->tokens[e] = c->expected_tokens[e] = 11 * (e + 1);
		c->positions[e] = c->expected_positions[e] = e % each;
		c->slots[e] = e + 1;
	}
	memset(c->owners, 0xFF, sizeof(c->owners));
}

static void a_chain_has_its_golden_values(void **state)
{
	static const uint64_t stored[] = { 0xDE7FAE23A9A1B716u, 0x89CD2ABFBEBC0649u,
		0x5782FFC5B5D6409Bu, 0xF53E51CD772BB95Cu, 0x5FAE4135D917CB64u };
	struct world w;
	struct call c;
	struct bound b;

	(void)state;
	for (int kind = IN_ORDER; kind <= LINKED; kind++) {
		int64_t scratch[SLOTS] = { 0 };
		start_plain(&c, kind, 1, 5);
		world_of_call(&w, &c);
		bind_call(&b, &c, &w, scratch);
		expect_ok(kvc_canary_write(&b.args, NULL));
		for (int i = 0; i < 5; i++) {
			assert_true(w.records[1 + i].prev_hash == stored[i]);
			assert_int_equal(w.records[1 + i].token, 11 * (i + 1));
			assert_int_equal(w.records[1 + i].position, i);
		}
		world_end(&w);
	}
}

/* Request 1 starts from what request 0 writes in the same step: a shared prefix. */
static void requests_of_one_step_may_share_a_prefix_with_scratch(void **state)
{
	struct world w;
	struct call c;
	struct bound b;
	int64_t scratch[SLOTS] = { 0 };

	(void)state;
	for (int first = 0; first < 2; first++) { /* in both orders of the requests */
		start_plain(&c, LINKED, 2, 3);
		c.seeds[first] = c.slots[c.offsets[1 - first] + 2];
		for (int i = 0; i < 3; i++)
			c.positions[c.offsets[first] + i] = 3 + i;
		world_of_call(&w, &c);
		bind_call(&b, &c, &w, scratch);
		expect_ok(kvc_canary_write(&b.args, NULL));
		world_poll(&w);
		assert_int_equal(w.found_count, 0);
		kvc_record seed = w.records[c.seeds[first]];
		assert_true(w.records[c.slots[c.offsets[first]]].prev_hash == after(seed));
		assert_true(seed.prev_hash != 0);
		world_end(&w);
	}
}

static void seeds_in_a_cycle_start_anew_and_are_reported(void **state)
{
	struct world w;
	struct call c;
	struct bound b;
	int64_t scratch[SLOTS] = { 0 };

	(void)state;
	start_plain(&c, LINKED, 3, 2); /* 0 and 1 wait for each other, 2 waits for 0 */
	c.seeds[0] = c.slots[3];
	c.seeds[1] = c.slots[1];
	c.seeds[2] = c.slots[0];
	world_of_call(&w, &c);
	bind_call(&b, &c, &w, scratch);
	expect_ok(kvc_canary_write(&b.args, NULL));
	world_poll(&w);
	assert_int_equal(w.found_count, 2);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(w.found[i].reasons, KVC_REASON_SLOT_RANGE);
		assert_int_equal(w.found[i].slot, c.seeds[i]);
		assert_int_equal(w.found[i].request_row, i + 1);
		assert_true(w.records[c.slots[2 * i]].prev_hash == kvc_chain_start(0));
	}
	assert_true(w.records[c.slots[4]].prev_hash == after(w.records[c.slots[0]]));
	world_end(&w);
}

/* Long waits: each request starts from the one after it, so the last must come first. */
static void a_long_line_of_requests_is_settled_from_its_end(void **state)
{
	enum { MANY = 3000 };
	struct world w;
	int64_t *offsets = calloc(MANY + 1, 8), *seeds = calloc(MANY, 8), *slots = calloc(MANY, 8);
	int64_t *tokens = calloc(MANY, 8), *positions = calloc(MANY, 8), *scratch = calloc(MANY, 8);
	int64_t count = MANY;
	int32_t valid = MANY;
	kvc_plan plan = { .struct_bytes = sizeof(plan), .device = { KVC_DEVICE_CPU, 0 } };
	kvc_write_args args = KVC_WRITE_ARGS_INIT;

	(void)state;
	world_start(&w, MANY);
	for (int64_t r = 0; r < MANY; r++) {
		offsets[r + 1] = r + 1;
		slots[r] = r;
		seeds[r] = r + 1 < MANY ? r + 1 : -1;
		tokens[r] = r;
		positions[r] = MANY - 1 - r;
	}
	kvc_tensor t = world_vector(tokens, &count), p = world_vector(positions, &count);
	kvc_tensor s = world_vector(slots, &count), room = world_vector(scratch, &count);
	plan.write_req_capacity = MANY;
	plan.write_offsets = offsets;
	plan.write_seed_slot_indices = seeds;
	plan.write_num_valid_reqs = &valid;
	args.group = &w.group, args.plan = &plan, args.tokens = &t, args.positions = &p;
	args.slots = &s, args.scratch = &room, args.ring = &w.ring;
	expect_ok(kvc_canary_write(&args, NULL));
	assert_int_equal(w.counters.violations, 0);
	assert_true(w.records[MANY - 1].prev_hash == kvc_chain_start(0));
	for (int64_t r = 0; r + 1 < MANY; r++)
		assert_true(w.records[r].prev_hash == after(w.records[r + 1]));
	seeds[MANY - 1] = 0; /* now all of them are one cycle */
	expect_ok(kvc_canary_write(&args, NULL));
	assert_int_equal(w.counters.violations, MANY);
	world_end(&w);
	free(offsets), free(seeds), free(slots), free(tokens), free(positions), free(scratch);
}

static void a_scratch_that_is_not_zero_does_no_harm(void **state)
{
	struct seeded random = seeded_start(__func__);
	struct call c;

	(void)state;
	for (int i = 0; i < 2000; i++) {
		struct world w;
		struct bound b;
		int64_t scratch[SLOTS];
		random_call(&random, &c, LINKED);
		for (int k = 0; k < SLOTS; k++)
			scratch[k] = seeded_one_in(&random, 2) ? seeded_in(&random, -30, 30)
			                                       : (int64_t)seeded_next(&random);
		world_of_call(&w, &c);
		bind_call(&b, &c, &w, scratch);
		expect_ok(kvc_canary_write(&b.args, NULL));
		world_end(&w);
	}
}

static void results_do_not_depend_on_threads(void **state)
{
	enum { MANY = 6000 };
	struct world w[2];
	int64_t *slots = calloc(MANY, 8), *tokens = calloc(MANY, 8), *positions = calloc(MANY, 8);
	int64_t offsets[] = { 0, MANY / 2, MANY }, seeds[] = { -1, -1 }, count = MANY;
	int32_t valid = 2;
	kvc_plan plan = { .struct_bytes = sizeof(plan), .device = { KVC_DEVICE_CPU, 0 } };

	(void)state;
	for (int64_t e = 0; e < MANY; e++) {
		slots[e] = (e * 17) % (MANY - 100); /* some are written twice */
		tokens[e] = e;
		positions[e] = e % (MANY / 2) + (e % 50 == 49);
	}
	kvc_tensor t = world_vector(tokens, &count), p = world_vector(positions, &count);
	kvc_tensor s = world_vector(slots, &count);
	plan.write_req_capacity = 2;
	plan.write_offsets = offsets;
	plan.write_seed_slot_indices = seeds;
	plan.write_num_valid_reqs = &valid;
	for (int i = 0; i < 2; i++) {
		kvc_write_args args = KVC_WRITE_ARGS_INIT;
		world_start(&w[i], MANY);
		expect_ok(kvc_set_num_threads(i == 0 ? 1 : 4));
		args.group = &w[i].group, args.plan = &plan, args.tokens = &t, args.positions = &p;
		args.slots = &s, args.ring = &w[i].ring;
		args.expected_tokens = &t, args.expected_positions = &t;
		expect_ok(kvc_canary_write(&args, NULL));
		world_poll(&w[i]);
	}
	expect_ok(kvc_set_num_threads(0));
	assert_memory_equal(w[0].records, w[1].records, MANY * sizeof(kvc_record));
	assert_int_equal(w[0].found_count, WORLD_FOUND_MAX);
	assert_memory_equal(w[0].found, w[1].found, sizeof(w[0].found));
	world_end(&w[0]);
	world_end(&w[1]);
	free(slots), free(tokens), free(positions);
}

static void sglangs_rules_clamp_and_skip(void **state)
{
	struct world w;
	struct call c;
	struct bound b;

	(void)state;
	start_plain(&c, IN_ORDER, 2, 3);
	c.slots[1] = SLOTS;     /* no record: skipped and counted, without a row */
	c.seeds[1] = SLOTS + 9; /* starts anew, without a row */
	c.offsets[2] = 1000;
	world_of_call(&w, &c);
	bind_call(&b, &c, &w, NULL);
	b.valid = 100;
	b.plan.write_req_capacity = 2;
	expect_ok(kvc_canary_write(&b.args, NULL));
	assert_int_equal(w.counters.slots_run, 5);
	assert_int_equal(w.counters.slots_skipped, 1);
	assert_int_equal(w.counters.violations, 0);
	assert_true(w.records[c.slots[3]].prev_hash == kvc_chain_start(0));
	b.valid = -1;
	expect_ok(kvc_canary_write(&b.args, NULL));
	assert_int_equal(w.counters.slots_run, 5);
	assert_int_equal(w.counters.kernel_runs, 2);
	world_end(&w);
}

/* ---- refusals ---- */

struct refusal {
	struct world w;
	struct call c;
	struct bound b;
	int64_t scratch[SLOTS];
	kvc_record before[SLOTS];
};

static void refusal_start(struct refusal *f)
{
	memset(f, 0, sizeof(*f));
	start_plain(&f->c, LINKED, 2, 3);
	f->c.check_input = 1;
	for (int i = 0; i < SLOTS; i++)
		f->c.records[i].token = i;
	world_of_call(&f->w, &f->c);
	bind_call(&f->b, &f->c, &f->w, f->scratch);
	memcpy(f->before, f->w.records, sizeof(f->before));
}

static void refusal_end(const char *file, int line, struct refusal *f, kvc_status status,
        const char *slug, const char *message, int64_t where)
{
	expect_error_at(
	        file, line, kvc_canary_write(&f->b.args, NULL), status, slug, message, where);
	assert_memory_equal(f->w.records, f->before, sizeof(f->before));
	assert_int_equal(f->w.counters.kernel_runs, 0);
	world_end(&f->w);
}

#define refuse(change, status, slug, message, where)                                               \
	do {                                                                                       \
		struct refusal f;                                                                  \
		refusal_start(&f);                                                                 \
		change;                                                                            \
		refusal_end(__FILE__, __LINE__, &f, (status), (slug), (message), (where));         \
	} while (0)

static void bad_arguments_are_refused_and_nothing_is_written(void **state)
{
	int64_t five[] = { 5 }, three[] = { 3 }, one[] = { 1 }, strides[] = { 2 };

	(void)state;
	expect_error(kvc_canary_write(NULL, NULL), KVC_E_INVALID_ARGUMENT, "null-argument",
	        "args is NULL", -1);
	refuse(f.b.args.struct_bytes = 8, KVC_E_INVALID_ARGUMENT, "struct-bytes-unknown", NULL, -1);
	refuse(f.b.args.rules = 2, KVC_E_CONFIG, "rules-unknown", NULL, -1);
	refuse(f.b.args.group = NULL, KVC_E_INVALID_ARGUMENT, "null-argument", "group is NULL", -1);
	refuse(f.w.group.coverage = 9, KVC_E_CONFIG, "group-option-unknown", NULL, -1);
	refuse(f.w.ring.columns = 7, KVC_E_CONFIG, "ring-columns-unknown", NULL, -1);
	refuse(f.w.ring.device.device_type = KVC_DEVICE_CUDA, KVC_E_DEVICE, "device-mismatch",
	        "ring is on device 2:0, but group is on 1:0", -1);
	for (int i = 0; i < 3; i++)
		refuse(f.b.tensors[9].data = f.b.tensors[i].data, KVC_E_OVERLAP, "output-overlap",
		        NULL, -1);
	refuse(f.b.args.plan = NULL, KVC_E_INVALID_ARGUMENT, "null-argument", "plan is NULL", -1);
	refuse(f.b.plan.write_offsets = NULL, KVC_E_INVALID_ARGUMENT, "null-argument",
	        "plan.write_offsets is NULL", -1);
	refuse(f.b.plan.write_seed_slot_indices = NULL, KVC_E_INVALID_ARGUMENT, "null-argument",
	        "plan.write_seed_slot_indices is NULL", -1);
	refuse(f.b.plan.write_num_valid_reqs = NULL, KVC_E_INVALID_ARGUMENT, "null-argument",
	        "plan.write_num_valid_reqs is NULL", -1);
	refuse(f.b.plan.device.device_type = KVC_DEVICE_CUDA, KVC_E_DEVICE, "device-mismatch", NULL,
	        -1);
	refuse(f.b.valid = -1, KVC_E_LENGTH, "plan-count-range",
	        "plan.write_num_valid_reqs is -1, must be 0 to 7", -1);
	refuse(f.b.valid = 8, KVC_E_LENGTH, "plan-count-range",
	        "plan.write_num_valid_reqs is 8, must be 0 to 7", -1);
	refuse(f.b.tensors[5].shape = one, KVC_E_LENGTH, "canary-tensor-length", NULL, -1);
	refuse(f.b.valid = 3, KVC_E_LENGTH, "canary-tensor-length",
	        "kv-canary: requests.req_pool_indices length must be 3, got 2", -1);
	refuse(f.b.tensors[8].shape = three, KVC_E_LENGTH, "canary-tensor-length",
	        "kv-canary: requests.owner_request length must be 2, got 3", -1);
	refuse(f.b.batch.req_pool_indices = NULL, KVC_E_INVALID_ARGUMENT, "null-argument",
	        "requests.req_pool_indices is NULL", -1);
	refuse(f.c.offsets[0] = -1, KVC_E_LENGTH, "write-offsets-fall",
	        "plan.write_offsets[0] is -1, must be at least 0", 0);
	refuse(f.c.offsets[1] = 7, KVC_E_LENGTH, "write-offsets-fall",
	        "plan.write_offsets[2] is 6, must be at least 7", 2);
	refuse(f.c.offsets[2] = 7, KVC_E_LENGTH, "write-tokens-short",
	        "the plan writes 7 tokens, tokens has 6", -1);
	refuse(f.b.args.tokens = NULL, KVC_E_INVALID_ARGUMENT, "null-argument", "tokens is NULL",
	        -1);
	refuse(f.b.tensors[1].shape = five, KVC_E_LENGTH, "canary-tensor-length",
	        "kv-canary: positions length must be 6, got 5", -1);
	refuse(f.b.tensors[2].dtype = KVC_INT32, KVC_E_DTYPE, "canary-tensor-dtype",
	        "kv-canary: slots must have dtype int64, got int32", -1);
	refuse(f.b.tensors[2].strides = strides, KVC_E_STRIDE, "canary-tensor-must-be-contiguous",
	        NULL, -1);
	refuse(f.b.tensors[2].ndim = 0, KVC_E_SHAPE, "canary-tensor-must-be-1-d", NULL, -1);
	refuse(f.b.tensors[2].device.device_type = KVC_DEVICE_CUDA, KVC_E_DEVICE, "device-mismatch",
	        NULL, -1);
	refuse(f.b.args.expected_positions = NULL, KVC_E_CONFIG, "write-expected-one-missing",
	        "expected_tokens is given without expected_positions", -1);
	refuse(f.b.args.expected_tokens = NULL, KVC_E_CONFIG, "write-expected-one-missing",
	        "expected_positions is given without expected_tokens", -1);
	refuse(f.b.slots = SLOTS - 1, KVC_E_LENGTH, "canary-tensor-length",
	        "kv-canary: scratch length must be 12, got 11", -1);
	refuse(f.c.slots[4] = SLOTS, KVC_E_SLOT_RANGE, "canary-slot-out-of-range",
	        "slots[4] is slot 12, must be below 12", 4);
}

static void sglangs_rules_take_four_sources_at_most(void **state)
{
	kvc_source five[5];

	(void)state;
	refuse(
	        {
		        for (int i = 0; i < 5; i++) {
			        five[i] = f.w.sources[0];
			        five[i].id = (uint64_t)i;
		        }
		        f.w.group.sources = five;
		        f.w.group.source_count = 5;
		        f.b.args.rules = KVC_RULES_SGLANG;
	        },
	        KVC_E_CONFIG, "sglang-sources-max",
	        "kv-canary: at most 4 RealKvSource entries supported by the CUDA ABI, got 5", -1);
}

/* What lies past the plan's tokens is padding and may hold anything. */
static void padding_past_the_plan_is_not_looked_at(void **state)
{
	struct refusal f;

	(void)state;
	refusal_start(&f);
	f.c.slots[5] = INT64_MAX;
	f.c.offsets[2] = 5;
	expect_ok(kvc_canary_write(&f.b.args, NULL));
	assert_int_equal(f.w.counters.slots_run, 5);
	world_end(&f.w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_writes_equal_the_oracle),
		cmocka_unit_test(a_chain_has_its_golden_values),
		cmocka_unit_test(requests_of_one_step_may_share_a_prefix_with_scratch),
		cmocka_unit_test(seeds_in_a_cycle_start_anew_and_are_reported),
		cmocka_unit_test(a_long_line_of_requests_is_settled_from_its_end),
		cmocka_unit_test(a_scratch_that_is_not_zero_does_no_harm),
		cmocka_unit_test(results_do_not_depend_on_threads),
		cmocka_unit_test(sglangs_rules_clamp_and_skip),
		cmocka_unit_test(bad_arguments_are_refused_and_nothing_is_written),
		cmocka_unit_test(sglangs_rules_take_four_sources_at_most),
		cmocka_unit_test(padding_past_the_plan_is_not_looked_at),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
