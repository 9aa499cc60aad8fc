/*
 * kvc_canary_check_plan() on plans made by hand: which two claims on a slot are sound, what a row of
 * the ring says, every refusal, and random plans against a comparison of all pairs. The scratch must
 * be zero after every call.
 */
#include <stdlib.h>
#include <string.h>

#include "cpu/hash.h"
#include "expect.h"
#include "seeded.h"

#define SLOTS 16
#define ENTRIES 64
#define RING_ROWS 256

struct check {
	kvc_record records[SLOTS];
	kvc_owner owners[SLOTS];
	kvc_group group;
	int64_t memory[512];
	kvc_plan plan;
	int64_t scratch[2 * SLOTS], scratch_shape[2];
	int64_t mapping[ENTRIES], mapping_shape[1];
	kvc_tensor scratch_tensor, mapping_tensor;
	int64_t rows[RING_ROWS * 16], consumed;
	kvc_counters counters;
	kvc_ring ring;
};

/* Slots 1 and 2 hold the same record, so that both imply the same chain. */
static void check_init(struct check *c)
{
	memset(c, 0, sizeof(*c));
	for (int64_t s = 0; s < SLOTS; s++)
		c->records[s] = (kvc_record){ 100 + s, s, 1000 + (uint64_t)s, 0 };
	c->records[2] = c->records[1];
	memset(c->owners, 0xFF, sizeof(c->owners));
	c->group = (kvc_group)KVC_GROUP_INIT;
	c->group.records = c->records, c->group.record_count = SLOTS;
	c->group.owners = c->owners;
	c->group.coverage = KVC_COVERAGE_NONE;
	expect_ok(kvc_plan_bind(&c->plan, c->memory, c->group.device, ENTRIES, 1));
	*c->plan.enable = 1;
	c->scratch_shape[0] = 2, c->scratch_shape[1] = SLOTS;
	c->scratch_tensor = kvc_tensor_make(c->scratch, KVC_INT64, 2, c->scratch_shape);
	c->mapping_shape[0] = ENTRIES;
	c->mapping_tensor = kvc_tensor_make(c->mapping, KVC_INT64, 1, c->mapping_shape);
	c->ring = (kvc_ring)KVC_RING_INIT;
	c->ring.rows = c->rows, c->ring.capacity = RING_ROWS;
	c->ring.consumed = &c->consumed, c->ring.counters = &c->counters;
}

static void add(struct check *c, int64_t slot, int64_t position, int64_t token, int64_t prev)
{
	int32_t at = (*c->plan.verify_num_valid)++;

	c->plan.verify_slot_indices[at] = slot;
	c->plan.verify_expected_positions[at] = position;
	c->plan.verify_expected_tokens[at] = token;
	c->plan.verify_prev_slot_indices[at] = prev;
	c->plan.verify_request[at] = at;
}

static void assert_scratch_zero(const struct check *c)
{
	for (int i = 0; i < 2 * SLOTS; i++)
		assert_int_equal(c->scratch[i], 0);
}

static kvc_status run_with(struct check *c, const kvc_tensor *mapping, const kvc_ring *ring)
{
	static struct check before;

	memcpy(before.records, c->records, sizeof(before.records));
	kvc_status status =
	        kvc_canary_check_plan(&c->plan, &c->group, mapping, &c->scratch_tensor, ring, NULL);
	assert_memory_equal(before.records, c->records, sizeof(before.records));
	return status;
}

/* How many violations the ring took. */
static int64_t violations(struct check *c, const kvc_tensor *mapping)
{
	int64_t before = c->counters.violations;

	expect_ok(run_with(c, mapping, &c->ring));
	assert_scratch_zero(c);
	return c->counters.violations - before;
}

/* ---- what is sound ---- */

static void two_claims_are_judged_by_position_token_and_past(void **state)
{
	static struct check c;
	static const struct {
		const char *what;
		int64_t position_a, token_a, prev_a, position_b, token_b, prev_b;
		int sound;
	} pairs[] = {
		{ "a shared prefix", 4, -1, 3, 4, -1, 3, 1 },
		{ "a shared prefix, tokens agree", 4, 7, 3, 4, 7, 3, 1 },
		{ "tokens differ", 4, 7, 3, 4, 8, 3, 0 },
		{ "only one token is known", 4, 7, 3, 4, -1, 3, 1 },
		{ "positions differ", 4, 7, 3, 5, 7, 3, 0 },
		{ "other past, tokens unknown", 4, -1, 1, 4, -1, 2, 0 },
		{ "other past, one token unknown", 4, 7, 1, 4, -1, 2, 0 },
		{ "two copies of one prefix", 4, 7, 1, 4, 7, 2, 1 },
		{ "two different prefixes", 4, 7, 1, 4, 7, 3, 0 },
		{ "a chain start against a past", 4, 7, -1, 4, 7, 3, 0 },
		{ "two first tokens", 0, 7, -1, 0, 7, -1, 1 },
		{ "two first tokens that differ", 0, 7, -1, 0, 8, -1, 0 },
		{ "a window that begins here", 4, -1, -2, 4, -1, 3, 1 },
		{ "the same with tokens that differ", 4, 7, -2, 4, 8, 3, 0 },
		{ "the same at another position", 4, 7, -2, 5, 7, 3, 0 },
		{ "a past that this step writes", 4, -1, 3, 4, -1, -3, 1 },
		{ "a past outside the records", 4, 7, SLOTS, 4, 7, 1, 0 },
		{ "the same past outside the records", 4, 7, SLOTS, 4, 7, SLOTS, 1 },
		{ "a reserved past", 4, -1, 15, 4, -1, 3, 1 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++)
		for (int turned = 0; turned < 2; turned++) {
			check_init(&c);
			c.group.reserved_slot = 15;
			if (!turned)
				add(&c, 5, pairs[i].position_a, pairs[i].token_a, pairs[i].prev_a);
			add(&c, 5, pairs[i].position_b, pairs[i].token_b, pairs[i].prev_b);
			if (turned)
				add(&c, 5, pairs[i].position_a, pairs[i].token_a, pairs[i].prev_a);
			int64_t found = violations(&c, NULL);
			if (found != !pairs[i].sound)
				print_error("%s\n", pairs[i].what);
			assert_int_equal(found, !pairs[i].sound);
			assert_int_equal(run_with(&c, NULL, NULL),
			        pairs[i].sound ? KVC_OK : KVC_E_SLOT_DUPLICATE);
			assert_scratch_zero(&c);
		}
}

/* A first claim that says little hides nothing that the later ones say. */
static void later_claims_are_compared_with_each_other(void **state)
{
	static struct check c;
	static const struct {
		const char *what;
		int64_t token[3], prev[3];
		int found;
	} triples[] = {
		{ "two tokens behind an unknown one", { -1, 7, 8 }, { 3, 3, 3 }, 1 },
		{ "one token behind an unknown one", { -1, 7, 7 }, { 3, 3, 3 }, 0 },
		{ "two pasts behind an open one", { -1, -1, -1 }, { -2, 3, 1 }, 1 },
		{ "two pasts behind one that this step writes", { 7, 7, 7 }, { -3, 3, 1 }, 1 },
		{ "two pasts behind a reserved one", { 7, -1, -1 }, { 15, 3, 1 }, 1 },
		{ "one past behind an open one", { -1, -1, -1 }, { -2, 3, 3 }, 0 },
		{ "two copies of one prefix behind an open past", { 7, 7, 7 }, { -2, 1, 2 }, 0 },
		{ "a copy against a past without a token", { 7, -1, 7 }, { 1, 1, 2 }, 1 },
		{ "open pasts, two tokens", { 7, -1, 8 }, { -2, 3, -3 }, 1 },
		{ "both later ones are wrong", { 7, 8, 8 }, { -2, 3, 3 }, 2 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(triples) / sizeof(triples[0]); i++) {
		check_init(&c);
		c.group.reserved_slot = 15;
		for (int k = 0; k < 3; k++)
			add(&c, 5, 4, triples[i].token[k], triples[i].prev[k]);
		int64_t found = violations(&c, NULL);
		if (found != triples[i].found)
			print_error("%s\n", triples[i].what);
		assert_int_equal(found, triples[i].found);
	}
}

static void negative_and_reserved_slots_are_nobodys(void **state)
{
	static struct check c;

	(void)state;
	check_init(&c);
	c.group.reserved_slot = 0;
	for (int64_t i = 0; i < 3; i++) {
		add(&c, -1, i, i, -1);
		add(&c, -7, i, i, -1);
		add(&c, 0, i, i, -1);
	}
	assert_int_equal(violations(&c, NULL), 0);
	c.group.reserved_slot = -1; /* then slot 0 is a slot like any other */
	assert_int_equal(violations(&c, NULL), 2);
}

static void a_disabled_plan_claims_nothing(void **state)
{
	static struct check c;

	(void)state;
	check_init(&c);
	add(&c, 5, 1, -1, -1);
	add(&c, 5, 2, -1, -1);
	add(&c, 99999, 2, -1, -1);
	*c.plan.enable = 0;
	assert_int_equal(violations(&c, NULL), 0);
	assert_int_equal(c.counters.kernel_runs, 1);
}

static void rows_stand_in_plan_order_and_name_the_later_claim(void **state)
{
	static struct check c;
	kvc_violation found[8];
	int64_t count;

	(void)state;
	check_init(&c);
	c.owners[5] = (kvc_owner){ 77, 12, KVC_TAG_STEP_WRITE };
	add(&c, 5, 4, 7, 3);
	add(&c, 6, 1, -1, -1);
	add(&c, 5, 9, 8, 1);
	add(&c, 6, 2, 3, -2);
	assert_int_equal(violations(&c, NULL), 2);
	expect_ok(kvc_ring_poll(&c.ring, found, 8, &count, NULL));
	assert_int_equal(count, 2);
	assert_int_equal(found[0].slot, 5);
	assert_int_equal(found[0].reasons, KVC_REASON_SLOT_ALIASED);
	assert_int_equal(found[0].launch_tag, KVC_TAG_STEP_READ);
	assert_int_equal(found[0].position, 5);
	assert_int_equal(found[0].stored_token, 105);
	assert_int_equal(found[0].stored_chain, 1005);
	assert_int_equal(found[0].expected_token, 8);
	assert_int_equal(found[0].expected_position, 9);
	assert_true(found[0].expected_aux == kvc__chain_next(1001, 101, 1));
	assert_int_equal(found[0].owner_request, 77);
	assert_int_equal(found[0].owner_step, 12);
	assert_int_equal(found[0].request_row, -1);
	assert_int_equal(found[1].slot, 6);
	assert_int_equal(found[1].expected_aux, 1006); /* not known: as stored */
	assert_int_equal(found[1].owner_request, -1);
	assert_int_equal(c.counters.reasons[10], 2);
	assert_int_equal(c.counters.kernel_runs, 1);
	assert_int_equal(c.counters.slots_run, 0); /* nothing was verified */
}

static void b54_a_stale_mapping_names_a_live_window_slot(void **state)
{
	static struct check c;
	kvc_violation found[4];
	int64_t count;

	(void)state;
	check_init(&c);
	c.mapping[9] = 3;  /* a tombstone that was not cleared */
	c.mapping[20] = 3; /* the live owner */
	c.mapping[21] = 4;
	expect_error(run_with(&c, &c.mapping_tensor, NULL), KVC_E_SLOT_DUPLICATE,
	        "check-plan-window-slot-claimed-twice",
	        "kv-canary: check_plan: window slot 3 belongs to full slots 9 and 20", 20);
	assert_scratch_zero(&c);
	assert_int_equal(violations(&c, &c.mapping_tensor), 1);
	expect_ok(kvc_ring_poll(&c.ring, found, 4, &count, NULL));
	assert_int_equal(found[0].slot, 20);
	assert_int_equal(found[0].expected_aux, 9);
	assert_int_equal(found[0].stored_token, 103);
	c.mapping[9] = 0; /* as it should be */
	assert_int_equal(violations(&c, &c.mapping_tensor), 0);
}

static void the_dummy_slots_of_a_mapping_may_be_shared(void **state)
{
	static struct check c;

	(void)state;
	check_init(&c);
	c.group.reserved_slot = 7;
	c.mapping[0] = 3, c.mapping[1] = 3; /* full slot 0 is no slot */
	c.mapping[2] = c.mapping[3] = 0;
	c.mapping[4] = c.mapping[5] = -1;
	c.mapping[6] = c.mapping[8] = 7;
	assert_int_equal(violations(&c, &c.mapping_tensor), 0);
	c.mapping[10] = c.mapping[11] = 3; /* both are higher than 1 */
	assert_int_equal(violations(&c, &c.mapping_tensor), 2);
}

/* ---- refusals ---- */

static void refused(struct check *c, const kvc_tensor *mapping, kvc_status status, const char *slug,
        const char *message, int64_t where)
{
	expect_error(run_with(c, mapping, &c->ring), status, slug, message, where);
	assert_int_equal(c->counters.kernel_runs, 0);
	assert_int_equal(c->counters.violations, 0);
}

static void without_a_ring_the_first_violation_is_the_error(void **state)
{
	static struct check c;

	(void)state;
	check_init(&c);
	add(&c, 6, 0, 1, -1);
	add(&c, 5, 4, 7, 3);
	add(&c, 5, 9, 8, 1);
	add(&c, 6, 3, 1, -1);
	c.mapping[9] = c.mapping[20] = 3;
	expect_error(run_with(&c, &c.mapping_tensor, NULL), KVC_E_SLOT_DUPLICATE,
	        "check-plan-slot-claimed-twice",
	        "kv-canary: check_plan: slot 5 is claimed by entry 1 at position 4 and by entry 2 "
	        "at position 9 with different contents",
	        2);
	assert_string_equal(kvc_last_error()->hint,
	        "Look at requests 1 and 2 of the batch: one of them was given a slot that was not "
	        "free.");
	c.plan.verify_request = NULL;
	assert_int_equal(run_with(&c, NULL, NULL), KVC_E_SLOT_DUPLICATE);
	assert_scratch_zero(&c);
}

static void slots_outside_the_records_are_refused(void **state)
{
	static struct check c;

	(void)state;
	check_init(&c);
	add(&c, 5, 1, -1, -1);
	add(&c, 5, 2, -1, -1);
	add(&c, SLOTS, 0, -1, -1);
	refused(&c, NULL, KVC_E_SLOT_RANGE, "check-plan-slot-out-of-range",
	        "kv-canary: check_plan: entry 2 has slot 16, the group has 16 records", 2);
	assert_scratch_zero(&c);
	*c.plan.verify_num_valid = 1;
	c.mapping[30] = INT64_MAX;
	refused(&c, &c.mapping_tensor, KVC_E_SLOT_RANGE, "check-plan-mapping-out-of-range",
	        "kv-canary: check_plan: full slot 30 is mapped to window slot 9223372036854775807, "
	        "the group has 16 records",
	        30);
	assert_scratch_zero(&c);
	*c.plan.verify_num_valid = ENTRIES + 1;
	refused(&c, NULL, KVC_E_LENGTH, "plan-count-range", NULL, -1);
}

static void scratch_that_does_not_fit_is_refused(void **state)
{
	static struct check c;
	int64_t strides[2] = { SLOTS - 1, 1 };

	(void)state;
	check_init(&c);
	c.scratch_shape[0] = 1;
	refused(&c, NULL, KVC_E_SHAPE, "check-plan-scratch-shape",
	        "kv-canary: check_plan: scratch must be [2, record_count], got shape (1, 16)", -1);
	c.scratch_shape[0] = 2, c.scratch_shape[1] = SLOTS - 1;
	refused(&c, NULL, KVC_E_LENGTH, "canary-tensor-length",
	        "kv-canary: a row of scratch length must be 16, got 15", -1);
	c.scratch_shape[1] = SLOTS;
	c.scratch_tensor.strides = strides;
	refused(&c, NULL, KVC_E_STRIDE, "check-plan-scratch-rows-overlap",
	        "kv-canary: check_plan: the rows of scratch are 15 elements apart but 16 wide", -1);
	c.scratch_tensor.strides = NULL;
	c.mapping_tensor.data = c.scratch;
	refused(&c, &c.mapping_tensor, KVC_E_OVERLAP, "output-overlap",
	        "scratch shares memory with mapping", -1);
	check_init(&c);
	c.scratch_tensor.ndim = 1;
	refused(&c, NULL, KVC_E_SHAPE, "canary-tensor-must-be-2-d", NULL, -1);
	c.scratch_tensor.ndim = 2;
	c.scratch_tensor.dtype = KVC_INT32;
	refused(&c, NULL, KVC_E_DTYPE, "canary-tensor-dtype", NULL, -1);
	check_init(&c);
	add(&c, 5, 1, -1, -1);
	c.scratch[5] = 1;
	refused(&c, NULL, KVC_E_STATE, "check-plan-scratch-not-zero",
	        "kv-canary: check_plan: scratch[0][5] is 1, not 0", 5);
	c.scratch[5] = 0, c.scratch[SLOTS + 3] = -4;
	c.mapping[9] = 3;
	refused(&c, &c.mapping_tensor, KVC_E_STATE, "check-plan-scratch-not-zero",
	        "kv-canary: check_plan: scratch[1][3] is -4, not 0", 3);
}

static void other_arguments_are_checked_too(void **state)
{
	static struct check c;

	(void)state;
	check_init(&c);
	expect_error(kvc_canary_check_plan(NULL, &c.group, NULL, &c.scratch_tensor, &c.ring, NULL),
	        KVC_E_INVALID_ARGUMENT, "null-argument", "plan is NULL", -1);
	expect_error(kvc_canary_check_plan(&c.plan, NULL, NULL, &c.scratch_tensor, &c.ring, NULL),
	        KVC_E_INVALID_ARGUMENT, "null-argument", NULL, -1);
	expect_error(kvc_canary_check_plan(&c.plan, &c.group, NULL, NULL, &c.ring, NULL),
	        KVC_E_INVALID_ARGUMENT, "null-argument", "scratch is NULL", -1);
	c.mapping_tensor.dtype = KVC_INT32;
	refused(&c, &c.mapping_tensor, KVC_E_DTYPE, "canary-tensor-dtype", NULL, -1);
	c.mapping_tensor.dtype = KVC_INT64;
	c.mapping_tensor.device.device_type = KVC_DEVICE_CUDA;
	refused(&c, &c.mapping_tensor, KVC_E_DEVICE, "device-mismatch", NULL, -1);
	c.ring.rows = NULL;
	assert_int_not_equal(run_with(&c, NULL, &c.ring), KVC_OK);
}

/* ---- random plans against a comparison of all pairs ---- */

static uint64_t naive_chain(const struct check *c, int64_t prev)
{
	const kvc_record *r = &c->records[prev];

	return kvc__chain_next(r->prev_hash, r->token, r->position);
}

static int naive_sound(const struct check *c, int64_t a, int64_t b)
{
	const kvc_plan *p = &c->plan;
	int64_t prev_a = p->verify_prev_slot_indices[a], prev_b = p->verify_prev_slot_indices[b];
	int64_t token_a = p->verify_expected_tokens[a], token_b = p->verify_expected_tokens[b];
	int both = token_a != -1 && token_b != -1;
	int open = prev_a < -1 || prev_b < -1 || prev_a == c->group.reserved_slot ||
	           prev_b == c->group.reserved_slot;

	if (p->verify_expected_positions[a] != p->verify_expected_positions[b])
		return 0;
	if (prev_a == prev_b || open)
		return !both || token_a == token_b;
	if (!both || token_a != token_b)
		return 0;
	return naive_chain(c, prev_a) == naive_chain(c, prev_b);
}

/* Is entry b the odd one of a pair with the first claim on its slot that says as much as it can? */
static int naive_alias(const struct check *c, int64_t b)
{
	const kvc_plan *p = &c->plan;
	int seen[4] = { 0 }, alias = 0;

	for (int64_t a = 0; a < b; a++) {
		int64_t prev = p->verify_prev_slot_indices[a];
		int token = p->verify_expected_tokens[a] != -1;
		int open = prev < -1 || prev == c->group.reserved_slot;
		const int kinds[4] = { 1, token, token && !open, !token && !open };
		if (p->verify_slot_indices[a] != p->verify_slot_indices[b])
			continue;
		for (int k = 0; k < 4; k++)
			if (kinds[k] && !seen[k]) {
				seen[k] = 1;
				alias |= !naive_sound(c, a, b);
			}
	}
	return alias;
}

static void random_plans_agree_with_a_naive_comparison(void **state)
{
	struct seeded random = seeded_start("random_plans_agree_with_a_naive_comparison");
	static struct check c;
	int64_t total = 0;

	(void)state;
	for (int i = 0; i < 5000; i++) {
		int64_t want = 0, count = seeded_in(&random, 0, ENTRIES);
		check_init(&c);
		c.group.reserved_slot = seeded_in(&random, 0, 1) ? 0 : -2;
		for (int64_t e = 0; e < count; e++)
			add(&c, seeded_in(&random, -1, SLOTS - 1), seeded_in(&random, 1, 2),
			        seeded_in(&random, -1, 1), seeded_in(&random, -4, 4) & ~INT64_C(1));
		for (int64_t b = 0; b < count; b++) {
			int64_t slot = c.plan.verify_slot_indices[b];
			if (slot >= 0 && slot != c.group.reserved_slot)
				want += naive_alias(&c, b);
		}
		for (int64_t f = 0; f < ENTRIES; f++)
			c.mapping[f] = seeded_in(&random, -1, SLOTS - 1);
		for (int64_t f = 1; f < ENTRIES; f++) {
			int64_t slot = c.mapping[f], lower = 1;
			while (c.mapping[lower] != slot)
				lower++;
			want += slot > 0 && lower < f;
		}
		assert_int_equal(violations(&c, &c.mapping_tensor), want);
		total += want;
	}
	assert_true(total > 1000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(two_claims_are_judged_by_position_token_and_past),
		cmocka_unit_test(later_claims_are_compared_with_each_other),
		cmocka_unit_test(negative_and_reserved_slots_are_nobodys),
		cmocka_unit_test(a_disabled_plan_claims_nothing),
		cmocka_unit_test(rows_stand_in_plan_order_and_name_the_later_claim),
		cmocka_unit_test(b54_a_stale_mapping_names_a_live_window_slot),
		cmocka_unit_test(the_dummy_slots_of_a_mapping_may_be_shared),
		cmocka_unit_test(without_a_ring_the_first_violation_is_the_error),
		cmocka_unit_test(slots_outside_the_records_are_refused),
		cmocka_unit_test(scratch_that_does_not_fit_is_refused),
		cmocka_unit_test(other_arguments_are_checked_too),
		cmocka_unit_test(random_plans_agree_with_a_naive_comparison),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
