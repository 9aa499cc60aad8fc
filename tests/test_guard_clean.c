/*
 * The guard in engines that do nothing wrong: no violation, and exact counts of what was looked at.
 * Each engine-like situation runs in every combination of stamping, expected tokens and budget that
 * matters to it.
 */
#include "base/alloc.h"
#include "guard_engine.h"

/* Run a situation with COMPUTE and CLEAR, with and without expected tokens, budget -1, 0, 3, 4096,
 * one pool or two, K only. */
static void in_all_ways(void (*situation)(struct engine *e), int with_window)
{
	static const int64_t budgets[] = { -1, 0, 3, 4096 };

	for (int ways = 0; ways < 64; ways++) {
		struct engine_options options = engine_defaults();
		options.stamping = ways & 1 ? KVC_STAMP_COMPUTE : KVC_STAMP_CLEAR;
		options.expected = ways >> 1 & 1;
		options.budget = budgets[ways >> 2 & 3];
		options.window = with_window && (ways >> 4 & 1) ? 6 : 0;
		options.k_only = ways >> 5 & 1;
		struct engine *e = engine_open(options);
		situation(e);
		engine_close(e);
	}
}

static void run_clean(struct engine *e)
{
	engine_step(e);
	engine_expect_clean(e);
}

/* ---- prefill, chunks, decode ---- */

static void prefill_then_decode(struct engine *e)
{
	for (int64_t row = 1; row <= 3; row++) {
		engine_tokens(e, row, row);
		engine_place(e, row, 0, 40, 10 + row * 45);
		engine_add(e, row, 100 + row, 0, 8 + row);
	}
	run_clean(e);
	for (int64_t n = 0; n < 12; n++) {
		for (int64_t row = 1; row <= 3; row++)
			engine_add(e, row, 100 + row, 8 + row + n, 1);
		run_clean(e);
	}
}

static void prefill_and_decode_are_clean(void **state)
{
	(void)state;
	in_all_ways(prefill_then_decode, 1);
}

static void chunked_prefill_beside_decode(struct engine *e)
{
	engine_tokens(e, 1, 1);
	engine_place(e, 1, 0, 40, 20);
	engine_tokens(e, 2, 2);
	engine_place(e, 2, 0, 40, 80);
	engine_add(e, 1, 7, 0, 5);
	run_clean(e);
	for (int64_t chunk = 0; chunk < 5; chunk++) {
		engine_add(e, 2, 8, chunk * 6, 6);
		if (chunk % 2 == 0) /* the decoding request sits every other step out */
			engine_add(e, 1, 7, 5 + chunk / 2, 1);
		run_clean(e);
	}
}

static void chunks_beside_decode_are_clean(void **state)
{
	(void)state;
	in_all_ways(chunked_prefill_beside_decode, 1);
}

/* ---- shared prefixes ---- */

static void share_a_prefix(struct engine *e)
{
	engine_tokens(e, 1, 1);
	engine_tokens(e, 2, 1);
	engine_place(e, 1, 0, 40, 20);
	engine_add(e, 1, 7, 0, 10);
	run_clean(e);
	/* Row 2 takes 8 of the 10 tokens from the cache and goes on at slots of its own. */
	memcpy(e->table[2], e->table[1], 8 * sizeof(int32_t));
	engine_place(e, 2, 8, 40, 120);
	engine_add(e, 1, 7, 10, 1);
	engine_add(e, 2, 8, 8, 4);
	run_clean(e);
	for (int64_t n = 0; n < 4; n++) {
		engine_add(e, 2, 8, 12 + n, 1);
		engine_add(e, 1, 7, 11 + n, 1);
		run_clean(e);
	}
}

static void shared_prefix_is_clean(void **state)
{
	(void)state;
	in_all_ways(share_a_prefix, 1);
}

/* The reader may stand before the writer in the batch, and a third reads through both. */
static void share_within_the_step(struct engine *e)
{
	for (int64_t row = 1; row <= 3; row++)
		engine_tokens(e, row, 1);
	engine_place(e, 1, 0, 40, 20);
	memcpy(e->table[2], e->table[1], 8 * sizeof(int32_t));
	engine_place(e, 2, 8, 40, 100);
	memcpy(e->table[3], e->table[2], 12 * sizeof(int32_t));
	engine_place(e, 3, 12, 40, 160);
	engine_add(e, 3, 9, 12, 3);
	engine_add(e, 2, 8, 8, 4);
	engine_add(e, 1, 7, 0, 8);
	run_clean(e);
	assert_int_equal(engine_stats(e).slots_excluded,
	        20 + (e->window < 0 ? 0 : 12)); /* with a window of 6 each reads 6 of them */
	for (int64_t n = 0; n < 3; n++) {
		engine_add(e, 1, 7, 8 + n, 1);
		engine_add(e, 3, 9, 15 + n, 1);
		engine_add(e, 2, 8, 12 + n, 1);
		run_clean(e);
	}
}

static void prefix_sharing_within_a_step_is_clean(void **state)
{
	(void)state;
	in_all_ways(share_within_the_step, 1);
}

/* Two copies of one prefix lead to one slot: engines do not de-duplicate all pages. */
static void copies_of_a_prefix_may_share_what_follows(void **state)
{
	struct engine *e = engine_open(engine_defaults());

	(void)state;
	for (int64_t row = 1; row <= 2; row++) {
		engine_tokens(e, row, 1);
		engine_place(e, row, 0, 40, 60 * row);
		engine_add(e, row, 10 + row, 0, 4);
	}
	run_clean(e);
	engine_place(e, 2, 4, 8, 64); /* row 2 hits what row 1 writes now */
	engine_add(e, 1, 11, 4, 4);
	engine_add(e, 2, 12, 8, 2);
	run_clean(e);
	engine_add(e, 1, 11, 8, 1);
	engine_add(e, 2, 12, 10, 1);
	run_clean(e);
	engine_close(e);
}

/* ---- requests that come, go and come back ---- */

static void preempt_and_resume(struct engine *e)
{
	engine_tokens(e, 1, 1);
	engine_tokens(e, 2, 2);
	engine_place(e, 1, 0, 40, 20);
	engine_place(e, 2, 0, 40, 80);
	engine_add(e, 1, 7, 0, 12);
	engine_add(e, 2, 8, 0, 6);
	run_clean(e);
	engine_add(e, 1, 7, 12, 1);
	engine_add(e, 2, 8, 6, 1);
	run_clean(e);
	/* Request 7 loses its slots but the first 4; request 9 gets some of them. */
	int64_t lost[] = { 24, 25, 26, 27, 28, 29, 30, 31, 32 }, count = 9;
	kvc_tensor slots = engine_vector(lost, &count);
	expect_ok(kvc_guard_void(e->guard, e->full, &slots, NULL));
	engine_tokens(e, 3, 3);
	engine_place(e, 3, 0, 9, 24);
	engine_add(e, 3, 9, 0, 9);
	engine_add(e, 2, 8, 7, 1);
	run_clean(e);
	/* It comes back on another row, then is preempted once more and comes back on this one. */
	engine_tokens(e, 4, 1);
	memcpy(e->table[4], e->table[1], 4 * sizeof(int32_t));
	engine_place(e, 4, 4, 40, 140);
	engine_add(e, 4, 7, 4, 8);
	run_clean(e);
	engine_place(e, 4, 4, 40, 190);
	engine_add(e, 4, 7, 4, 9);
	run_clean(e);
	engine_add(e, 4, 7, 13, 1);
	engine_add(e, 2, 8, 8, 1);
	run_clean(e);
}

static void preemption_is_clean(void **state)
{
	(void)state;
	in_all_ways(preempt_and_resume, 0);
}

/* A row goes to another request without notice; ids never come twice. */
static void reuse_a_row(struct engine *e)
{
	for (int64_t id = 1; id <= 6; id++) {
		engine_tokens(e, 5, id);
		engine_place(e, 5, 0, 30, 10 + (id % 3) * 40);
		engine_add(e, 5, id, 0, 9);
		run_clean(e);
		engine_add(e, 5, id, 9, 1);
		run_clean(e);
	}
}

static void row_reuse_is_clean(void **state)
{
	(void)state;
	in_all_ways(reuse_a_row, 1);
}

/* Four drafted tokens a step, of which some are rejected and written over. */
static void reject_drafts(struct engine *e)
{
	int64_t prefix = 6;

	engine_tokens(e, 1, 1);
	engine_place(e, 1, 0, 60, 20);
	engine_add(e, 1, 7, 0, 6);
	run_clean(e);
	for (int64_t n = 0; n < 6; n++) {
		int64_t accepted = 1 + n % 4;
		engine_add(e, 1, 7, prefix, 4);
		e->valid_lens[0] = prefix + 1;
		for (int64_t i = accepted; i < 4; i++)
			e->tokens[i] = 29000 + i; /* these are not the request's */
		run_clean(e);
		prefix += accepted;
	}
	assert_true(prefix < 40);
}

static void rejected_drafts_are_clean(void **state)
{
	(void)state;
	in_all_ways(reject_drafts, 1);
}

static void namespaces(struct engine *e)
{
	for (int64_t row = 1; row <= 2; row++) {
		engine_tokens(e, row, 1);
		engine_place(e, row, 0, 40, 20 + 60 * row);
	}
	memcpy(e->table[3], e->table[2], 6 * sizeof(int32_t));
	engine_tokens(e, 3, 1);
	engine_place(e, 3, 6, 40, 200);
	engine_add(e, 1, 7, 0, 6);
	engine_add(e, 2, 8, 0, 6);
	e->namespaces[1] = 77;
	run_clean(e);
	for (int64_t n = 0; n < 4; n++) {
		engine_add(e, 1, 7, 6 + n, 1);
		engine_add(e, 2, 8, 6 + n, 1);
		engine_add(e, 3, 9, 6 + n, 1); /* shares the prefix of the same namespace */
		e->namespaces[1] = e->namespaces[2] = 77;
		run_clean(e);
	}
}

static void namespaces_are_clean(void **state)
{
	(void)state;
	in_all_ways(namespaces, 1);
}

/* A window pool as small as its ring: what is written over has just left the window. */
static void ring_of_window_slots_is_clean(void **state)
{
	struct engine_options options = engine_defaults();

	(void)state;
	for (int budget = -1; budget < 3; budget++) {
		options.window = 3; /* four tokens with the new one */
		options.budget = budget;
		struct engine *e = engine_open(options);
		for (int64_t slot = 0; slot < ENGINE_SLOTS; slot++)
			e->mapping[slot] = slot == 0 ? 0 : 1 + (slot - 1) % 4;
		engine_tokens(e, 1, 1);
		engine_place(e, 1, 0, 60, 1);
		/* The mapping follows: only the last four full slots have one. */
		for (int64_t n = 0; n < 20; n++) {
			for (int64_t slot = 0; slot < ENGINE_SLOTS; slot++)
				e->mapping[slot] = slot >= n - 2 && slot > 0 && slot <= n + 1
				                           ? 1 + (slot - 1) % 4
				                           : 0;
			engine_add(e, 1, 7, n, 1);
			run_clean(e);
		}
		engine_close(e);
	}
}

static void padding_and_empty_steps_are_clean(void **state)
{
	struct engine *e = engine_open(engine_defaults());

	(void)state;
	run_clean(e); /* no request at all */
	engine_tokens(e, 1, 1);
	engine_place(e, 1, 0, 40, 20);
	engine_add(e, 0, -1, 5, 1);
	engine_add(e, 1, 7, 0, 6);
	engine_add(e, 0, -1, 5, 1);
	e->slots[e->token_count] = 0; /* tokens after the last request: padding of a graph */
	e->tokens[e->token_count++] = 0;
	run_clean(e);
	engine_add(e, 1, 7, 6, 0); /* reads, writes nothing */
	run_clean(e);
	engine_add(e, 1, 7, 6, 1);
	run_clean(e);
	assert_int_equal(engine_stats(e).slots_stamped, 7);
	engine_close(e);
}

/* ---- what is looked at ---- */

static void first_reads_are_exactly_those(void **state)
{
	struct engine_options options = engine_defaults();

	(void)state;
	options.budget = 0;
	struct engine *e = engine_open(options);
	engine_tokens(e, 1, 1);
	engine_place(e, 1, 0, 40, 20);
	engine_add(e, 1, 7, 0, 10);
	run_clean(e);
	assert_int_equal(engine_stats(e).slots_first_read, 0);
	engine_add(e, 1, 7, 10, 1);
	run_clean(e);
	assert_int_equal(engine_stats(e).slots_first_read, 10); /* the previous chunk */
	assert_int_equal(engine_stats(e).slots_left_out, 0);
	engine_add(e, 1, 7, 11, 1);
	run_clean(e);
	assert_int_equal(engine_stats(e).slots_first_read, 11); /* the last written slot */
	assert_int_equal(engine_stats(e).slots_left_out, 10);
	engine_tokens(e, 2, 1);
	memcpy(e->table[2], e->table[1], 8 * sizeof(int32_t));
	engine_place(e, 2, 8, 40, 120);
	engine_add(e, 2, 8, 8, 1);
	run_clean(e);
	assert_int_equal(engine_stats(e).slots_first_read, 19); /* the reused prefix */
	/* An entry of the table that changes under a live request, here to a copy. */
	int64_t from[] = { 23 }, to[] = { 99 }, one = 1;
	kvc_tensor t_from = engine_vector(from, &one), t_to = engine_vector(to, &one);
	expect_ok(kvc_guard_copy(e->guard, e->full, &t_from, &t_to, NULL));
	for (int64_t layer = 0; layer < ENGINE_LAYERS; layer++) {
		memcpy(e->k[layer][99], e->k[layer][23], sizeof(e->k[layer][23]));
		memcpy(e->v[layer][99], e->v[layer][23], sizeof(e->v[layer][23]));
	}
	e->table[1][3] = 99;
	engine_add(e, 1, 7, 12, 1);
	run_clean(e);
	assert_int_equal(engine_stats(e).slots_first_read, 19 + 9); /* positions 3 .. 11 */
	engine_close(e);
}

static void rotation_covers_every_read(void **state)
{
	struct engine_options options = engine_defaults();
	enum { TOKENS = 50, BUDGET = 7 };

	(void)state;
	options.budget = BUDGET;
	struct engine *e = engine_open(options);
	engine_tokens(e, 1, 1);
	engine_place(e, 1, 0, 60, 20);
	engine_add(e, 1, 7, 0, TOKENS);
	run_clean(e);
	engine_add(e, 1, 7, TOKENS, 0);
	run_clean(e); /* first reads */
	/* Now nothing is new: after ceil(50 / 7) steps each slot was seen again. */
	int64_t steps = (TOKENS + BUDGET - 1) / BUDGET;
	for (int64_t slot = 20; slot < 20 + TOKENS; slot++)
		e->k[1][slot][1][3] += 1.0f;
	uint8_t seen[TOKENS] = { 0 };
	for (int64_t n = 0; n < steps; n++) {
		engine_add(e, 1, 7, TOKENS, 0);
		engine_step(e);
		assert_int_equal(e->finding_count, BUDGET);
		for (int64_t i = 0; i < e->finding_count; i++)
			seen[e->findings[i].violation.slot - 20]++;
	}
	for (int64_t i = 0; i < TOKENS; i++)
		assert_in_range(seen[i], 1, 2);
	kvc_guard_statistics statistics = engine_stats(e);
	assert_int_equal(statistics.slots_rotated, steps * BUDGET);
	assert_int_equal(statistics.slots_left_out, steps * (TOKENS - BUDGET));
	engine_close(e);
}

static void every_read_on_request(void **state)
{
	struct engine_options options = engine_defaults();

	(void)state;
	options.budget = -1;
	struct engine *e = engine_open(options);
	engine_tokens(e, 1, 1);
	engine_place(e, 1, 0, 60, 20);
	engine_add(e, 1, 7, 0, 20);
	run_clean(e);
	for (int64_t n = 0; n < 5; n++) {
		engine_add(e, 1, 7, 20 + n, 1);
		run_clean(e);
	}
	kvc_guard_statistics statistics = engine_stats(e);
	assert_int_equal(statistics.slots_verified, 20 + 21 + 22 + 23 + 24);
	assert_int_equal(statistics.slots_first_read, 24);
	assert_int_equal(statistics.slots_rotated, 20 + 21 + 22 + 23);
	assert_int_equal(statistics.slots_left_out, 0);
	assert_int_equal(statistics.chain_unchecked, 0);
	engine_close(e);
}

static void without_checks_it_only_stamps(void **state)
{
	struct engine_options options = engine_defaults();

	(void)state;
	options.no_checks = 1;
	options.window = 6;
	struct engine *e = engine_open(options);
	engine_tokens(e, 1, 1);
	engine_place(e, 1, 0, 60, 20);
	engine_add(e, 1, 7, 0, 20);
	run_clean(e);
	e->k[0][22][0][0] += 1.0f;
	e->table[1][7] = 90;
	engine_add(e, 1, 7, 20, 2);
	e->slots[1] = 21;
	e->positions[0] = 4;
	e->args.valid_prefix = &e->t_valid_prefix;
	run_clean(e);
	assert_int_equal(e->valid_prefix[0], 20);
	kvc_guard_statistics statistics = engine_stats(e);
	assert_int_equal(statistics.slots_verified, 0);
	assert_int_equal(statistics.slots_stamped, 2 * 22);
	assert_int_equal(statistics.bytes_verified, 0);
	engine_close(e);
}

/* ---- statistics ---- */

static void statistics_are_exact(void **state)
{
	struct engine_options options = engine_defaults();
	const int64_t slot_bytes = (ENGINE_LAYERS - 1) * 2 * ENGINE_HEADS * ENGINE_DIM * 4;

	(void)state;
	options.budget = 2;
	struct engine *e = engine_open(options);
	kvc_guard_statistics statistics = engine_stats(e);
	assert_int_equal(statistics.steps, 0);
	assert_int_equal(statistics.oldest_unchecked_slot, -1);
	assert_true(statistics.memory_bytes > ENGINE_SLOTS * (32 + 16 + 4));
	assert_int_equal(statistics.sources, 2 * (ENGINE_LAYERS - 1));
	e->step = 100;
	engine_tokens(e, 1, 1);
	engine_place(e, 1, 0, 60, 20);
	engine_tokens(e, 2, 2);
	engine_place(e, 2, 0, 60, 120);
	engine_add(e, 1, 7, 0, 10);
	engine_add(e, 2, 8, 0, 3);
	run_clean(e);
	statistics = engine_stats(e);
	assert_int_equal(statistics.slots_stamped, 13);
	assert_int_equal(statistics.oldest_unchecked_slot, -1); /* all stamped in this step */
	for (int64_t n = 0; n < 3; n++) {
		engine_add(e, 1, 7, 10 + n, 1);
		run_clean(e);
	}
	statistics = engine_stats(e);
	assert_int_equal(statistics.steps, 4);
	assert_int_equal(statistics.slots_stamped, 16);
	assert_int_equal(statistics.slots_first_read, 12);
	assert_int_equal(statistics.slots_rotated, 4);
	assert_int_equal(statistics.slots_verified, 16);
	assert_int_equal(statistics.slots_swept, 0);
	assert_int_equal(statistics.slots_left_out, 8 + 9);
	assert_int_equal(statistics.bytes_verified, 16 * slot_bytes);
	/* Request 8 left: its slots were stamped at step 100 and never checked. */
	assert_int_equal(statistics.oldest_unchecked_slot, 120);
	assert_int_equal(statistics.oldest_unchecked_steps, 3);
	assert_int_equal(statistics.oldest_unchecked_group, 0);
	/* Given away: nobody's any more. */
	int64_t gone[] = { 120, 121, 122 }, count = 3;
	kvc_tensor slots = engine_vector(gone, &count);
	expect_ok(kvc_guard_void(e->guard, e->full, &slots, NULL));
	statistics = engine_stats(e);
	/* Of request 7's ten slots of step 100 all were read at 101; two more went round at 102. */
	assert_int_equal(statistics.oldest_unchecked_steps, 2);
	assert_int_equal(statistics.oldest_unchecked_slot, 24);
	engine_close(e);
}

static void a_steady_step_allocates_nothing(void **state)
{
	static const int64_t budgets[] = { -1, 4 };

	(void)state;
	for (int i = 0; i < 4; i++) {
		struct engine_options options = engine_defaults();
		options.budget = budgets[i / 2];
		options.window = i % 2 ? 6 : 0;
		options.check_finite = 1;
		options.page_size = 4;
		struct engine *e = engine_open(options);
		engine_tokens(e, 1, 1);
		engine_place(e, 1, 0, 60, 20);
		engine_add(e, 1, 7, 0, 30);
		run_clean(e);
		for (int64_t n = 0; n < 3; n++) {
			engine_add(e, 1, 7, 30 + n, 1);
			run_clean(e);
		}
		int64_t calls = kvc__alloc_calls();
		size_t memory = engine_stats(e).memory_bytes;
		for (int64_t n = 3; n < 20; n++) {
			engine_add(e, 1, 7, 30 + n, 1);
			run_clean(e);
		}
		assert_int_equal(kvc__alloc_calls(), calls);
		assert_int_equal(engine_stats(e).memory_bytes, memory);
		engine_close(e);
	}
}

static void results_do_not_depend_on_threads(void **state)
{
	kvc_finding findings[2][ENGINE_FINDINGS];
	kvc_guard_statistics statistics[2];

	(void)state;
	for (int run = 0; run < 2; run++) {
		expect_ok(kvc_set_num_threads(run ? 4 : 1));
		struct engine_options options = engine_defaults();
		options.budget = -1;
		struct engine *e = engine_open(options);
		for (int64_t row = 1; row <= 4; row++) {
			engine_tokens(e, row, row);
			engine_place(e, row, 0, 60, row * 60 - 50);
			engine_add(e, row, row, 0, 50);
		}
		run_clean(e);
		for (int64_t slot = 10; slot < 240; slot += 9)
			e->v[0][slot][1][2] += 1.0f;
		for (int64_t row = 1; row <= 4; row++)
			engine_add(e, row, row, 50, 1);
		engine_step(e);
		assert_in_range(e->finding_count, 20, ENGINE_FINDINGS - 1);
		memcpy(findings[run], e->findings, sizeof(findings[run]));
		for (int64_t i = 0; i < ENGINE_FINDINGS; i++) {
			findings[run][i].slug = NULL; /* addresses */
			findings[run][i].group_name = NULL;
		}
		statistics[run] = engine_stats(e);
		engine_close(e);
	}
	expect_ok(kvc_set_num_threads(0));
	assert_memory_equal(findings[0], findings[1], sizeof(findings[0]));
	assert_memory_equal(&statistics[0], &statistics[1], sizeof(statistics[0]));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(prefill_and_decode_are_clean),
		cmocka_unit_test(chunks_beside_decode_are_clean),
		cmocka_unit_test(shared_prefix_is_clean),
		cmocka_unit_test(prefix_sharing_within_a_step_is_clean),
		cmocka_unit_test(copies_of_a_prefix_may_share_what_follows),
		cmocka_unit_test(preemption_is_clean),
		cmocka_unit_test(row_reuse_is_clean),
		cmocka_unit_test(rejected_drafts_are_clean),
		cmocka_unit_test(namespaces_are_clean),
		cmocka_unit_test(ring_of_window_slots_is_clean),
		cmocka_unit_test(padding_and_empty_steps_are_clean),
		cmocka_unit_test(first_reads_are_exactly_those),
		cmocka_unit_test(rotation_covers_every_read),
		cmocka_unit_test(every_read_on_request),
		cmocka_unit_test(without_checks_it_only_stamps),
		cmocka_unit_test(statistics_are_exact),
		cmocka_unit_test(a_steady_step_allocates_nothing),
		cmocka_unit_test(results_do_not_depend_on_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
