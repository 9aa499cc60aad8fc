/*
 * Comparing slots with their records. Goal: rows (all 16 columns, in order), counters and
 * valid_prefix equal those of an oracle written from SPEC section 4.4, for random plans over caches
 * damaged at random, by both rules and for any number of threads.
 */
#include "canary_world.h"
#include "cpu/hash.h"
#include "seeded.h"

#define ENTRIES_MAX 40
#define BATCH_MAX 4
#define SLOTS 20

struct call {
	int sglang;
	int64_t entry_count;
	int64_t slots[ENTRIES_MAX];
	int64_t tokens[ENTRIES_MAX];
	int64_t positions[ENTRIES_MAX];
	int64_t prev[ENTRIES_MAX];
	int32_t request[ENTRIES_MAX];
	int64_t batch;
	int64_t rows[BATCH_MAX];
	int64_t prefix[BATCH_MAX];
	int64_t namespaces[BATCH_MAX];
	int64_t chain_in[BATCH_MAX];
	int64_t chain_end[BATCH_MAX];
	int64_t left_out;
	int32_t enable;
	int with_requests;
	int check_bytes;
	int check_tokens;
	int check_finite;
	int coverage;
	int64_t reserved;
	int source_count;
};

static uint64_t after(kvc_record record)
{
	return kvc__mix3(record.prev_hash, (uint64_t)record.token, (uint64_t)record.position);
}

static uint64_t bytes_now(const kvc_group *group, int64_t slot)
{
	uint64_t out;
	int64_t one = 1;
	kvc_tensor slots = world_vector(&slot, &one);

	expect_ok(kvc_fingerprint(&out, group, &slots, NULL));
	return out;
}

/* ---- a random cache and a random plan over it ---- */

static void plan_request(struct seeded *random, struct call *c, struct world *w, int32_t r)
{
	int64_t position = seeded_one_in(random, 3) ? seeded_in(random, 1, 5) : 0;
	int64_t prev = position == 0 ? -1 : seeded_in(random, -3, -2);
	uint64_t chain = kvc_chain_start((uint64_t)c->namespaces[r]);

	if (position > 0)
		chain = c->chain_in[r] ? (uint64_t)c->chain_in[r] : seeded_next(random);
	for (int64_t n = seeded_in(random, 0, 8); n > 0 && c->entry_count < ENTRIES_MAX; n--) {
		int64_t i = c->entry_count++, slot = seeded_in(random, 1, SLOTS - 1);
		kvc_record *record = &w->records[slot];
		*record = (kvc_record){ seeded_in(random, 0, 9), position, chain, 0 };
		record->fingerprint = bytes_now(&w->group, slot);
		w->owners[slot] = (kvc_owner){ seeded_in(random, -1, 3), 8, 33 };
		c->slots[i] = slot;
		c->tokens[i] = seeded_one_in(random, 3) ? -1 : record->token;
		c->positions[i] = position++;
		c->prev[i] = prev;
		c->request[i] = r;
		prev = slot;
		chain = after(*record);
	}
	c->prefix[r] = position;
	if (seeded_one_in(random, 2))
		c->chain_end[r] = (int64_t)(seeded_one_in(random, 2) ? chain : chain + 1);
}

static void damage(struct seeded *random, struct call *c, struct world *w)
{
	int64_t slot = seeded_in(random, 0, SLOTS - 1), i = seeded_in(random, 0, ENTRIES_MAX - 1);

	switch (seeded_in(random, 0, 10)) {
	case 0:
		w->records[slot].token++;
		break;
	case 1:
		w->records[slot].position--;
		break;
	case 2:
		w->records[slot].prev_hash ^= 1;
		break;
	case 3:
		w->records[slot].fingerprint ^= 2;
		break;
	case 4:
		w->v[slot * WORLD_ROW_BYTES + 5] ^= 0xFF;
		break;
	case 5:
		memset(&w->records[slot], 0, sizeof(kvc_record));
		break;
	case 6:
		c->slots[i] = seeded_in(random, -2, 1) * (SLOTS + 3);
		break;
	case 7:
		c->prev[i] = seeded_in(random, -5, SLOTS + 4);
		break;
	case 8: /* an infinity, bfloat16 little-endian */
		w->k[slot * WORLD_ROW_BYTES + 30] = 0x80;
		w->k[slot * WORLD_ROW_BYTES + 31] = 0x7F;
		break;
	case 9:
		c->slots[i] = 0;
		break;
	default:
		c->request[i] = (int32_t)seeded_in(random, -1, BATCH_MAX + 1);
	}
}

static void random_call(struct seeded *random, struct call *c, struct world *w)
{
	memset(c, 0, sizeof(*c));
	c->sglang = seeded_one_in(random, 3);
	c->batch = seeded_in(random, 1, BATCH_MAX);
	c->with_requests = !seeded_one_in(random, 5);
	c->enable = !seeded_one_in(random, 20);
	c->check_bytes = !seeded_one_in(random, 4);
	c->check_tokens = !seeded_one_in(random, 4);
	c->check_finite = seeded_one_in(random, 2);
	c->coverage = (int)seeded_in(random, 0, 2);
	c->reserved = seeded_in(random, -1, 0);
	c->source_count = (int)seeded_in(random, 1, 2);
	c->left_out = seeded_in(random, 0, 3);
	w->group.coverage = c->coverage;
	w->group.reserved_slot = c->reserved;
	w->group.source_count = c->source_count;
	for (int32_t r = 0; r < c->batch; r++) {
		c->rows[r] = seeded_in(random, 0, 6);
		c->namespaces[r] = seeded_one_in(random, 3) ? (int64_t)seeded_next(random) : 0;
		c->chain_in[r] = seeded_one_in(random, 2) ? (int64_t)seeded_next(random) : 0;
		plan_request(random, c, w, r);
	}
	for (int64_t n = seeded_in(random, 0, 8); n > 0; n--)
		damage(random, c, w);
}

/* ---- the oracle ---- */

struct outcome {
	kvc_violation rows[2 * ENTRIES_MAX];
	int64_t row_count;
	int64_t skipped;
	int64_t unchecked;
	int64_t hashed;
	int64_t valid_prefix[BATCH_MAX];
};

static void emit(
        struct outcome *o, const kvc_violation *row, int64_t reasons, int64_t r, int64_t position)
{
	if (!reasons)
		return;
	o->rows[o->row_count] = *row;
	o->rows[o->row_count].reasons = reasons;
	o->rows[o->row_count].sequence = o->row_count + 1;
	o->row_count++;
	if (r >= 0 && position < o->valid_prefix[r])
		o->valid_prefix[r] = position;
}

/* The chain part: expected chain, or what else comes of the predecessor. */
static int64_t oracle_chain(const struct call *c, const struct world *w, struct outcome *o,
        int64_t i, int64_t r, uint64_t stored, uint64_t *expected)
{
	int64_t prev = c->prev[i];
	uint64_t name_space = r >= 0 ? (uint64_t)c->namespaces[r] : 0;
	uint64_t chain_in = r >= 0 ? (uint64_t)c->chain_in[r] : 0;

	*expected = stored;
	if (c->sglang ? prev < 0 : prev == -1) {
		if (!c->sglang && c->positions[i] > 0)
			return KVC_REASON_SLOT_RANGE;
		*expected = kvc_chain_start(name_space);
	} else if (prev == -2 && chain_in != 0) {
		*expected = chain_in;
	} else if (prev == -2 || prev == -3 || (c->sglang && (prev == 0 || prev >= SLOTS)) ||
	           (!c->sglang && prev >= 0 && prev == c->reserved)) {
		o->unchecked++;
		return 0;
	} else if (prev < 0 || prev >= SLOTS) {
		return KVC_REASON_SLOT_RANGE;
	} else {
		*expected = after(w->records[prev]);
	}
	return *expected != stored ? KVC_REASON_VERIFY_CHAIN_HASH : 0;
}

static int has_infinity(const struct call *c, const struct world *w, int64_t slot)
{
	for (int s = 0; s < c->source_count; s++)
		for (int b = 0; b < WORLD_ROW_BYTES; b += 2) {
			const uint8_t *at = (s ? w->v : w->k) + slot * WORLD_ROW_BYTES + b;
			if ((at[1] & 0x7F) == 0x7F && (at[0] & 0x80))
				return 1;
		}
	return 0;
}

static void oracle_entry(struct outcome *o, const struct call *c, const struct world *w, int64_t i)
{
	static const kvc_record nothing;
	int64_t slot = c->slots[i], reasons = 0;
	int64_t r = c->with_requests && c->request[i] >= 0 && c->request[i] < c->batch
	                    ? c->request[i]
	                    : -1;
	int64_t token = c->check_tokens ? c->tokens[i] : -1;
	kvc_violation row = { .launch_tag = KVC_TAG_STEP_READ,
		.slot = slot,
		.expected_token = token,
		.expected_position = c->positions[i],
		.request_row = r >= 0 ? c->rows[r] : -1,
		.owner_request = -1,
		.owner_step = -1,
		.source_id = c->source_count == 1 ? 0 : -1 };

	if (slot < 0 || (c->sglang && (slot == 0 || slot >= SLOTS)) ||
	        (!c->sglang && slot == c->reserved && r >= 0 && c->rows[r] == 0)) {
		o->skipped++;
		return;
	}
	if (slot < SLOTS && w->owners[slot].request != -1) {
		row.owner_request = w->owners[slot].request;
		row.owner_step = w->owners[slot].step;
	}
	if (slot >= SLOTS || (!c->sglang && slot == c->reserved)) {
		emit(o, &row, KVC_REASON_SLOT_RANGE, r, c->positions[i]);
		return;
	}
	kvc_record record = w->records[slot];
	if (!c->sglang && memcmp(&record, &nothing, sizeof(record)) == 0) {
		emit(o, &row, KVC_REASON_NEVER_STAMPED, r, c->positions[i]);
		return;
	}
	row.position = record.position;
	row.stored_token = record.token;
	row.stored_chain = record.prev_hash;
	row.stored_fingerprint = row.expected_fingerprint = record.fingerprint;
	reasons |= oracle_chain(c, w, o, i, r, record.prev_hash, &row.expected_aux);
	if (token != -1 && token != record.token)
		reasons |= KVC_REASON_VERIFY_TOKEN;
	if (record.position != c->positions[i])
		reasons |= KVC_REASON_VERIFY_POSITION;
	if (c->sglang || (c->check_bytes && c->coverage != KVC_COVERAGE_NONE)) {
		row.expected_fingerprint = bytes_now(&w->group, slot);
		o->hashed += c->source_count * (c->coverage ? WORLD_ROW_BYTES : 0);
		if (row.expected_fingerprint != record.fingerprint)
			reasons |= KVC_REASON_VERIFY_REAL_KV_HASH;
	}
	if (!c->sglang && c->check_finite && has_infinity(c, w, slot))
		reasons |= KVC_REASON_NONFINITE;
	emit(o, &row, reasons, r, c->positions[i]);
	if (!c->sglang && r >= 0 && c->chain_end[r] && c->positions[i] == c->prefix[r] - 1 &&
	        after(record) != (uint64_t)c->chain_end[r]) {
		row.stored_chain = after(record);
		row.expected_aux = (uint64_t)c->chain_end[r];
		emit(o, &row, KVC_REASON_CHAIN_END, r, c->positions[i]);
	}
}

/* ---- the call ---- */

struct bound {
	kvc_tensor tensors[6];
	int64_t batch;
	int32_t valid;
	kvc_plan plan;
	kvc_requests requests;
	kvc_verify_args args;
	int64_t valid_prefix[BATCH_MAX];
};

static void bind_call(struct bound *b, struct call *c, struct world *w)
{
	const int64_t *arrays[] = { c->rows, c->prefix, c->namespaces, c->chain_in, c->chain_end,
		b->valid_prefix };

	memset(b, 0, sizeof(*b));
	b->batch = c->batch;
	b->valid = (int32_t)c->entry_count;
	for (int i = 0; i < 6; i++)
		b->tensors[i] = world_vector(arrays[i], &b->batch);
	b->plan.struct_bytes = sizeof(b->plan);
	b->plan.device.device_type = KVC_DEVICE_CPU;
	b->plan.verify_capacity = ENTRIES_MAX;
	b->plan.verify_slot_indices = c->slots;
	b->plan.verify_expected_tokens = c->tokens;
	b->plan.verify_expected_positions = c->positions;
	b->plan.verify_prev_slot_indices = c->prev;
	b->plan.verify_request = c->request;
	b->plan.verify_num_valid = &b->valid;
	b->plan.enable = &c->enable;
	b->plan.left_out = &c->left_out;
	b->requests = (kvc_requests)KVC_REQUESTS_INIT;
	b->requests.req_pool_indices = &b->tensors[0];
	b->requests.prefix_lens = &b->tensors[1];
	b->requests.namespaces = &b->tensors[2];
	b->requests.verify_chain_in = &b->tensors[3];
	b->requests.chain_end = &b->tensors[4];
	b->args = (kvc_verify_args)KVC_VERIFY_ARGS_INIT;
	b->args.group = &w->group;
	b->args.plan = &b->plan;
	b->args.requests = c->with_requests ? &b->requests : NULL;
	b->args.valid_prefix = c->with_requests ? &b->tensors[5] : NULL;
	b->args.check_bytes = c->check_bytes;
	b->args.check_tokens = c->check_tokens;
	b->args.check_finite = c->check_finite;
	b->args.ring = &w->ring;
	b->args.rules = c->sglang ? KVC_RULES_SGLANG : KVC_RULES_OWN;
}

static void compare(struct call *c, struct world *w)
{
	struct outcome want = { 0 };
	struct bound b;
	int64_t entries = c->enable ? c->entry_count : 0;

	for (int r = 0; r < BATCH_MAX; r++)
		want.valid_prefix[r] = c->prefix[r] > 0 ? c->prefix[r] : 0;
	for (int64_t i = 0; i < entries; i++)
		oracle_entry(&want, c, w, i);
	bind_call(&b, c, w);
	expect_ok(kvc_canary_verify(&b.args, NULL));
	world_poll(w);
	assert_int_equal(w->found_count, want.row_count);
	for (int64_t i = 0; i < want.row_count; i++)
		assert_memory_equal(&w->found[i], &want.rows[i], sizeof(want.rows[i]));
	assert_int_equal(w->counters.kernel_runs, 1);
	assert_int_equal(w->counters.slots_run, entries);
	assert_int_equal(w->counters.slots_skipped, want.skipped);
	assert_int_equal(w->counters.chain_unchecked, want.unchecked);
	assert_int_equal(w->counters.bytes_hashed, want.hashed);
	assert_int_equal(w->counters.left_out, c->left_out);
	if (c->with_requests)
		assert_memory_equal(
		        b.valid_prefix, want.valid_prefix, (size_t)c->batch * sizeof(int64_t));
}

static void random_plans_equal_the_oracle(void **state)
{
	struct seeded random = seeded_start(__func__);

	(void)state;
	for (int i = 0; i < 8000; i++) {
		struct world w;
		struct call c;
		world_start(&w, SLOTS);
		random_call(&random, &c, &w);
		compare(&c, &w);
		world_end(&w);
	}
}

static void rows_stand_in_entry_order_for_any_number_of_threads(void **state)
{
	enum { MANY = 5000 };
	struct world w;
	int64_t *slots = calloc(MANY, 8), *tokens = calloc(MANY, 8), *positions = calloc(MANY, 8);
	int64_t *prev = calloc(MANY, 8), expected_slot[WORLD_FOUND_MAX], count = 0;
	int32_t valid = MANY, enable = 1;
	kvc_plan plan = { .struct_bytes = sizeof(plan), .device = { KVC_DEVICE_CPU, 0 } };
	kvc_verify_args args = KVC_VERIFY_ARGS_INIT;
	uint64_t chain = kvc_chain_start(0);

	(void)state;
	world_start(&w, MANY);
	for (int64_t i = 0; i < MANY; i++) {
		slots[i] = i * 7 % MANY;
		tokens[i] = i;
		positions[i] = i;
		prev[i] = i ? slots[i - 1] : -1;
		w.records[slots[i]] = (kvc_record){ i, i, chain, bytes_now(&w.group, slots[i]) };
		chain = after(w.records[slots[i]]);
	}
	for (int64_t i = 3; i < MANY; i += 41) { /* near and far apart, in many chunks */
		w.k[slots[i] * WORLD_ROW_BYTES + i % 32] ^= 1;
		expected_slot[count++] = slots[i];
	}
	plan.verify_capacity = MANY;
	plan.verify_slot_indices = slots, plan.verify_expected_tokens = tokens;
	plan.verify_expected_positions = positions, plan.verify_prev_slot_indices = prev;
	plan.verify_num_valid = &valid, plan.enable = &enable;
	args.group = &w.group, args.plan = &plan, args.ring = &w.ring;
	for (int32_t threads = 1; threads <= 5; threads++) {
		expect_ok(kvc_set_num_threads(threads));
		expect_ok(kvc_canary_verify(&args, NULL));
		world_poll(&w);
		assert_int_equal(w.found_count, count);
		for (int64_t i = 0; i < count; i++) {
			assert_int_equal(w.found[i].slot, expected_slot[i]);
			assert_int_equal(w.found[i].reasons, KVC_REASON_VERIFY_REAL_KV_HASH);
		}
		assert_int_equal(w.counters.bytes_hashed, threads * (int64_t)MANY * 64);
	}
	expect_ok(kvc_set_num_threads(0));
	world_end(&w);
	free(slots), free(tokens), free(positions), free(prev);
}

/* ---- single rules ---- */

static void a_check_that_looked_at_nothing_says_so(void **state)
{
	struct world w;
	struct call c = { .enable = 1, .with_requests = 1, .batch = 1, .check_bytes = 1 };

	(void)state;
	world_start(&w, SLOTS);
	c.source_count = 2, c.reserved = -1, c.coverage = KVC_COVERAGE_ALL;
	compare(&c, &w);
	assert_int_equal(w.counters.kernel_runs, 1);
	assert_int_equal(w.counters.slots_run, 0);
	assert_int_equal(w.counters.bytes_hashed, 0);
	world_end(&w);
}

static void without_a_ring_the_valid_prefix_tells(void **state)
{
	struct world w;
	static const int64_t slots[] = { 3, 4, 5, 6 }, tokens[] = { 1, 2, 3, 4 };
	struct world_step step = { .row = 1, .count = 4, .slots = slots, .tokens = tokens };
	struct world_requests requests;
	kvc_verify_args args = KVC_VERIFY_ARGS_INIT;

	(void)state;
	world_start(&w, SLOTS);
	world_write(&w, step);
	step.prefix = 4;
	world_fill(&w, 5, 99);
	world_requests(&requests, &step, 0, 0);
	world_plan(&w, &requests, &step);
	kvc_tensor valid_prefix = kvc_tensor_make(w.valid_prefix, KVC_INT64, 1, requests.one);
	args.group = &w.group, args.plan = &w.plan, args.requests = &requests.requests;
	args.valid_prefix = &valid_prefix;
	expect_ok(kvc_canary_verify(&args, NULL));
	assert_int_equal(w.valid_prefix[0], 2);
	world_end(&w);
}

/* A group stamped by its writer reads as one that was hashed afterwards. */
static void a_clear_group_verifies_once_its_shares_are_there(void **state)
{
	struct world w;
	static const int64_t slots[] = { 3 }, tokens[] = { 1 };
	struct world_step step = { .row = 1, .count = 1, .slots = slots, .tokens = tokens };

	(void)state;
	world_start(&w, SLOTS);
	w.group.stamping = KVC_STAMP_CLEAR;
	world_write(&w, step);
	assert_true(w.records[3].fingerprint == 0);
	step.prefix = 1;
	world_verify(&w, step); /* a step cut short */
	assert_int_equal(w.found_count, 1);
	assert_int_equal(w.found[0].reasons, KVC_REASON_VERIFY_REAL_KV_HASH);
	for (int s = 1; s >= 0; s--) /* shares in any order */
		w.records[3].fingerprint +=
		        bytes_now(&(kvc_group){ .struct_bytes = sizeof(kvc_group),
		                          .record_stride_bytes = 32,
		                          .sources = &w.sources[s],
		                          .source_count = 1,
		                          .coverage = KVC_COVERAGE_ALL,
		                          .device = { KVC_DEVICE_CPU, 0 } },
		                3);
	world_verify(&w, step);
	assert_int_equal(w.found_count, 0);
	world_end(&w);
}

/* ---- refusals ---- */

struct refusal {
	struct world w;
	struct call c;
	struct bound b;
};

static void refusal_start(struct refusal *f)
{
	static const int64_t slots[] = { 3, 4 };

	memset(f, 0, sizeof(*f));
	world_start(&f->w, SLOTS);
	f->c.enable = f->c.with_requests = 1;
	f->c.batch = 1;
	f->c.rows[0] = 1;
	f->c.prefix[0] = 2;
	f->c.entry_count = 2;
	memcpy(f->c.slots, slots, sizeof(slots));
	bind_call(&f->b, &f->c, &f->w);
	f->b.valid_prefix[0] = -7;
}

static void refusal_end(const char *file, int line, struct refusal *f, kvc_status status,
        const char *slug, const char *message)
{
	expect_error_at(file, line, kvc_canary_verify(&f->b.args, NULL), status, slug, message, -1);
	assert_int_equal(f->b.valid_prefix[0], -7);
	assert_int_equal(f->w.counters.kernel_runs, 0);
	world_end(&f->w);
}

#define refuse(change, status, slug, message)                                                      \
	do {                                                                                       \
		struct refusal f;                                                                  \
		refusal_start(&f);                                                                 \
		change;                                                                            \
		refusal_end(__FILE__, __LINE__, &f, (status), (slug), (message));                  \
	} while (0)

static void bad_arguments_are_refused_and_nothing_is_written(void **state)
{
	int64_t two[] = { 2 };

	(void)state;
	expect_error(kvc_canary_verify(NULL, NULL), KVC_E_INVALID_ARGUMENT, "null-argument",
	        "args is NULL", -1);
	refuse(f.b.args.struct_bytes = 8, KVC_E_INVALID_ARGUMENT, "struct-bytes-unknown", NULL);
	refuse(f.b.args.rules = -1, KVC_E_CONFIG, "rules-unknown", NULL);
	refuse(f.b.args.group = NULL, KVC_E_INVALID_ARGUMENT, "null-argument", "group is NULL");
	refuse(f.w.group.stamping = 5, KVC_E_CONFIG, "group-option-unknown", NULL);
	refuse(f.w.ring.capacity = -1, KVC_E_CONFIG, "ring-capacity-negative", NULL);
	refuse(f.b.args.plan = NULL, KVC_E_INVALID_ARGUMENT, "null-argument", "plan is NULL");
	refuse(f.b.plan.enable = NULL, KVC_E_INVALID_ARGUMENT, "null-argument",
	        "plan.enable is NULL");
	refuse(f.b.plan.verify_num_valid = NULL, KVC_E_INVALID_ARGUMENT, "null-argument",
	        "plan.verify_num_valid is NULL");
	refuse(f.b.plan.verify_slot_indices = NULL, KVC_E_INVALID_ARGUMENT, "null-argument",
	        "plan.verify_slot_indices is NULL");
	refuse(f.b.plan.verify_expected_tokens = NULL, KVC_E_INVALID_ARGUMENT, "null-argument",
	        "plan.verify_expected_tokens is NULL");
	refuse(f.b.plan.verify_expected_positions = NULL, KVC_E_INVALID_ARGUMENT, "null-argument",
	        "plan.verify_expected_positions is NULL");
	refuse(f.b.plan.verify_prev_slot_indices = NULL, KVC_E_INVALID_ARGUMENT, "null-argument",
	        "plan.verify_prev_slot_indices is NULL");
	refuse(f.b.plan.device.device_type = KVC_DEVICE_CUDA, KVC_E_DEVICE, "device-mismatch",
	        NULL);
	refuse(f.b.valid = 41, KVC_E_LENGTH, "plan-count-range",
	        "plan.verify_num_valid is 41, must be 0 to 40");
	refuse(f.b.valid = -1, KVC_E_LENGTH, "plan-count-range",
	        "plan.verify_num_valid is -1, must be 0 to 40");
	refuse(f.b.plan.verify_capacity = -1, KVC_E_LENGTH, "plan-count-range", NULL);
	refuse(f.b.tensors[4].shape = two, KVC_E_LENGTH, "canary-tensor-length",
	        "kv-canary: requests.chain_end length must be 1, got 2");
	refuse(f.b.tensors[5].shape = two, KVC_E_LENGTH, "canary-tensor-length",
	        "kv-canary: valid_prefix length must be 1, got 2");
	refuse(f.b.tensors[5].dtype = KVC_INT32, KVC_E_DTYPE, "canary-tensor-dtype", NULL);
	refuse(f.b.tensors[5].device.device_type = KVC_DEVICE_CUDA, KVC_E_DEVICE, "device-mismatch",
	        NULL);
	refuse(f.b.args.requests = NULL, KVC_E_INVALID_ARGUMENT, "null-argument",
	        "requests is NULL");
	refuse(f.b.requests.prefix_lens = NULL, KVC_E_INVALID_ARGUMENT, "null-argument",
	        "requests.prefix_lens is NULL");
	refuse(f.b.plan.verify_request = NULL, KVC_E_INVALID_ARGUMENT, "null-argument",
	        "plan.verify_request is NULL");
}

static void sglangs_rules_clamp_the_count(void **state)
{
	struct refusal f;

	(void)state;
	refusal_start(&f);
	f.b.args.rules = KVC_RULES_SGLANG;
	f.b.valid = 1000;
	expect_ok(kvc_canary_verify(&f.b.args, NULL));
	assert_int_equal(f.w.counters.slots_run, ENTRIES_MAX);
	f.b.valid = -5;
	expect_ok(kvc_canary_verify(&f.b.args, NULL));
	assert_int_equal(f.w.counters.slots_run, ENTRIES_MAX);
	world_end(&f.w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_plans_equal_the_oracle),
		cmocka_unit_test(rows_stand_in_entry_order_for_any_number_of_threads),
		cmocka_unit_test(a_check_that_looked_at_nothing_says_so),
		cmocka_unit_test(without_a_ring_the_valid_prefix_tells),
		cmocka_unit_test(a_clear_group_verifies_once_its_shares_are_there),
		cmocka_unit_test(bad_arguments_are_refused_and_nothing_is_written),
		cmocka_unit_test(sglangs_rules_clamp_the_count),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
