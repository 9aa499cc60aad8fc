/*
 * Small inputs distilled from public bug reports of LLM engines, as plan, write and verify meet
 * them. Each test is named after what it shows; the numbers are those of cases.txt.
 *
 * CAN is its canary input: request A, tokens 11..16 on slots 4, 5, 6, 7, 12, 13.
 */
#include "canary_world.h"
#include "cpu/hash.h"

#define TOKEN KVC_REASON_VERIFY_TOKEN
#define POS KVC_REASON_VERIFY_POSITION
#define CHAIN KVC_REASON_VERIFY_CHAIN_HASH
#define KVHASH KVC_REASON_VERIFY_REAL_KV_HASH
#define NEVER KVC_REASON_NEVER_STAMPED
#define SLOT_COUNT 64
#define A 1 /* rows of the request table */
#define B 2

static const int64_t can_slots[] = { 4, 5, 6, 7, 12, 13 };
static const int64_t can_tokens[] = { 11, 12, 13, 14, 15, 16 };

static struct world w;

static int start(void **state)
{
	(void)state;
	world_start(&w, SLOT_COUNT);
	return 0;
}

static int end(void **state)
{
	(void)state;
	world_end(&w);
	return 0;
}

/* Write tokens on slots as one step of a request's first chunk; what should be there is noted too. */
static void stamp(int64_t row, const int64_t *slots, const int64_t *tokens, int64_t count)
{
	world_expect(&w, row, 0, tokens, count);
	world_write(&w, (struct world_step){ .row = row,
	                        .count = count,
	                        .slots = slots,
	                        .tokens = tokens,
	                        .owner = 100 + row });
	assert_int_equal(w.found_count, 0);
}

static void verify(int64_t row, int64_t prefix)
{
	world_verify(&w, (struct world_step){ .row = row, .prefix = prefix, .use_expected = 1 });
}

/* The reasons at positions 0, 1, ...; all others must be silent. */
#define expect_reasons(...)                                                                        \
	expect_reasons_at(__FILE__, __LINE__, (int64_t[]){ __VA_ARGS__ },                          \
	        (int64_t)(sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)))

static void expect_reasons_at(const char *file, int line, const int64_t *reasons, int64_t count)
{
	for (int64_t i = 0; i < WORLD_COLUMNS; i++)
		_assert_int_equal((unsigned long)world_reasons_at(&w, i),
		        (unsigned long)(i < count ? reasons[i] : 0), file, line);
}

static void can_is_clean_before_any_fault(void **state)
{
	(void)state;
	stamp(A, can_slots, can_tokens, 6);
	verify(A, 6);
	assert_int_equal(w.found_count, 0);
	assert_int_equal(w.counters.slots_run, 6 + 6);
	assert_int_equal(w.valid_prefix[0], 6);
}

/* ---- slots and their lifetime ---- */

static void b07_a_reserved_slot_in_a_live_request_is_slot_range(void **state)
{
	static const int64_t slots[] = { 0, 4, 5 };

	(void)state;
	w.group.reserved_slot = 0;
	world_expect(&w, A, 0, can_tokens, 3);
	world_write(&w,
	        (struct world_step){ .row = A, .count = 3, .slots = slots, .tokens = can_tokens });
	assert_int_equal(w.records[0].token, 0); /* dropped, as padding would be */
	verify(A, 3);
	expect_reasons(KVC_REASON_SLOT_RANGE);
	assert_int_equal(w.found[0].slot, 0);
	assert_int_equal(w.counters.chain_unchecked, 1);
}

static void b47_late_bytes_of_the_old_owner_are_kvhash_there_alone(void **state)
{
	(void)state;
	stamp(B, can_slots, can_tokens, 4);
	world_fill(&w, 5, 99); /* A's sender was still writing */
	verify(B, 4);
	expect_reasons(0, KVHASH);
	assert_int_equal(w.found[0].owner_request, 100 + B);
	assert_int_equal(w.valid_prefix[0], 1);
}

static void b48_a_stale_stamped_write_is_found_and_its_writer_named(void **state)
{
	static const int64_t slot[] = { 5 }, token[] = { 77 };

	(void)state;
	stamp(B, can_slots, can_tokens, 4);
	world_write(&w, (struct world_step){ .row = A,
	                        .prefix = 9,
	                        .count = 1,
	                        .slots = slot,
	                        .tokens = token,
	                        .owner = 100 + A,
	                        .chain_in = 4711 });
	verify(B, 4);
	expect_reasons(0, TOKEN | POS | CHAIN, CHAIN); /* bytes agree with A's stamp */
	assert_int_equal(w.found[0].owner_request, 100 + A);
	assert_int_equal(w.found[0].owner_step, 2);
}

static void b53_of_two_owners_of_a_page_the_victim_is_flagged(void **state)
{
	static const int64_t a_slots[] = { 4, 5, 6 }, b_slots[] = { 10, 5 };
	static const int64_t a_tokens[] = { 1, 2, 3 }, b_tokens[] = { 1, 9 };

	(void)state;
	stamp(A, a_slots, a_tokens, 3);
	stamp(B, b_slots, b_tokens, 2);
	verify(A, 3);
	expect_reasons(0, TOKEN, CHAIN);
	verify(B, 2);
	assert_int_equal(w.found_count, 0);
}

static void b56_a_slot_handed_on_without_being_written_was_never_stamped(void **state)
{
	(void)state;
	stamp(A, can_slots, can_tokens, 1);
	world_row(&w, B, 0, can_slots, 2); /* B is told that both are its prefix */
	world_expect(&w, B, 0, can_tokens, 2);
	verify(B, 2);
	expect_reasons(0, NEVER);
	assert_int_equal(w.valid_prefix[0], 1);
}

static void b67_a_load_that_failed_voids_its_slot(void **state)
{
	static int64_t failed[] = { 5 };
	int64_t one[] = { 1 };
	kvc_tensor slots = kvc_tensor_make(failed, KVC_INT64, 1, one);

	(void)state;
	stamp(B, can_slots, can_tokens, 3);
	stamp(A, can_slots, can_tokens, 3);
	expect_ok(kvc_canary_void(&w.group, &slots, NULL));
	verify(A, 3);
	expect_reasons(0, NEVER, CHAIN); /* what follows has no predecessor any more */
	assert_int_equal(w.found[0].owner_request, 100 + A);
}

static void b73_a_prefill_cut_short_gives_its_valid_prefix(void **state)
{
	static const int64_t slots[] = { 4, 5, 6, 7, 12, 13, 14, 15 };

	(void)state;
	stamp(A, slots, can_tokens, 5);
	world_row(&w, A, 0, slots, 8);
	verify(A, 8);
	expect_reasons(0, 0, 0, 0, 0, NEVER, NEVER, NEVER);
	assert_int_equal(w.valid_prefix[0], 5);
}

/* ---- identity ---- */

static void b59_a_chain_knows_its_namespace(void **state)
{
	static const int64_t slots[] = { 4, 5, 6 }, tokens[] = { 5, 6, 7 };
	const int64_t lora_x = 0x6C6F7261580001, salt_x = 0x73616C74580001;
	struct world_step step = { .row = A, .count = 3, .slots = slots, .tokens = tokens };

	(void)state;
	step.name_space = lora_x;
	world_write(&w, step);
	step.prefix = 3;
	world_verify(&w, step);
	assert_int_equal(w.found_count, 0);
	step.name_space = salt_x;
	world_verify(&w, step);
	expect_reasons(CHAIN);
	step.name_space = 0;
	world_verify(&w, step);
	expect_reasons(CHAIN);
	/* Out of reach: without a namespace on either side it looks sound. */
	step.prefix = 0;
	world_write(&w, step);
	step.prefix = 3;
	world_verify(&w, step);
	assert_int_equal(w.found_count, 0);
}

static void b60_images_with_equal_low_bits_differ(void **state)
{
	static const int64_t slots[] = { 4, 5, 6, 7, 12 },
	                     placeholder[] = { 1, 32000, 32000, 32000, 2 };
	static const int64_t first[] = { 1, 0x1ABCD, 0x1ABCD, 0x1ABCD, 2 };
	static const int64_t other[] = { 1, 0x2ABCD, 0x2ABCD, 0x2ABCD, 2 };
	struct world_step step = { .row = A, .count = 5, .slots = slots, .tokens = placeholder };

	(void)state;
	step.name_space = 0x0001ABCD;
	world_write(&w, step);
	step.prefix = 5;
	step.name_space = 0x0002ABCD;
	world_verify(&w, step);
	expect_reasons(CHAIN);
	/* Ids derived from the image at its positions let the text before it be shared. */
	stamp(A, slots, first, 5);
	world_expect(&w, A, 0, other, 5);
	verify(A, 5);
	expect_reasons(0, TOKEN, TOKEN, TOKEN);
}

static void b61_tokens_are_compared_although_the_chain_agrees(void **state)
{
	static const int64_t slots[] = { 4, 5 }, tokens[] = { 1, 2 };

	(void)state;
	stamp(A, slots, tokens, 2);
	/* Another sequence, with chains as if they had collided. */
	w.records[4].token = 3;
	w.records[5].token = 4;
	w.records[5].prev_hash = kvc__chain_next(w.records[4].prev_hash, 3, 0);
	verify(A, 2);
	expect_reasons(TOKEN, TOKEN);
}

/* ---- transfers ---- */

static void b68_every_registered_source_is_covered(void **state)
{
	enum { IDX_BYTES = 8 };
	static uint8_t idx[SLOT_COUNT * IDX_BYTES];
	static const int64_t from[] = { 4, 5, 6, 7 }, to[] = { 20, 21, 22, 23 };
	kvc_record idx_records[SLOT_COUNT] = { 0 };
	kvc_source alone = world_source(idx, SLOT_COUNT, UINT64_C(1) << 32);
	int64_t four = 4, room[4][6], shape[] = { 4, 6 };
	kvc_tensor f = world_vector(from, &four), t = world_vector(to, &four);
	kvc_tensor scratch = kvc_tensor_make(room, KVC_INT64, 2, shape);
	kvc_group kv = w.group, index_group = w.group, all = w.group;
	kvc_source three[3] = { w.sources[0], w.sources[1], alone };

	(void)state;
	three[2].row_stride_bytes = three[2].head_bytes = three[2].read_bytes = IDX_BYTES;
	three[2].head_count = 1;
	for (int i = 0; i < SLOT_COUNT * IDX_BYTES; i++)
		idx[i] = (uint8_t)(i % 251 + 1);
	index_group.records = idx_records, index_group.owners = NULL;
	index_group.sources = &three[2], index_group.source_count = 1;
	all.sources = three, all.source_count = 3;
	const kvc_group *groups[] = { &kv, &index_group, &all };
	const int64_t reasons[] = { 0, KVHASH, KVHASH };
	for (int g = 0; g < 3; g++) {
		w.group = *groups[g];
		stamp(A, from, can_tokens, 4);
		for (int i = 0; i < 4; i++) { /* K and V move, idx is forgotten */
			memcpy(w.k + to[i] * WORLD_ROW_BYTES, w.k + from[i] * WORLD_ROW_BYTES,
			        WORLD_ROW_BYTES);
			memcpy(w.v + to[i] * WORLD_ROW_BYTES, w.v + from[i] * WORLD_ROW_BYTES,
			        WORLD_ROW_BYTES);
		}
		expect_ok(kvc_canary_copy(&w.group, &f, &t, &scratch, NULL));
		world_row(&w, A, 0, to, 4);
		verify(A, 4);
		expect_reasons(reasons[g], reasons[g], reasons[g], reasons[g]);
		if (g > 0)
			assert_int_equal(w.found[0].source_id, g == 1 ? INT64_C(1) << 32 : -1);
	}
	w.group = kv;
}

/* ---- slot translation ---- */

static void b75_draft_slots_not_consecutive_are_never_stamped(void **state)
{
	static const int64_t a_slots[] = { 10, 11, 40, 41 }, b_slots[] = { 12, 13 };
	static const int64_t b_tokens[] = { 21, 22 };

	(void)state;
	stamp(A, a_slots, can_tokens, 2);
	stamp(B, b_slots, b_tokens, 2);
	world_write(&w, (struct world_step){ .row = A,
	                        .prefix = 2,
	                        .count = 2,
	                        .slots = b_slots,
	                        .tokens = can_tokens + 2 }); /* last slot + 1, + 2 */
	world_row(&w, A, 0, a_slots, 4);
	world_expect(&w, A, 0, can_tokens, 4);
	verify(A, 4);
	expect_reasons(0, 0, NEVER, NEVER);
	verify(B, 2);
	assert_true(world_reasons_at(&w, 0) == (TOKEN | POS | CHAIN));
}

static void b76_a_shifted_slot_map_is_found_and_a_short_one_refused(void **state)
{
	static const int64_t row[] = { 4, 5, 6, 7, 12, 13, 14, 15 }, shifted[] = { 14, 15, -1, -1 };
	static const int64_t tokens[] = { 11, 12, 13, 14, 15, 16, 17, 18 };
	int64_t four = 4, two = 2;
	kvc_tensor list = world_vector(tokens, &four), map = world_vector(shifted, &two);
	kvc_write_args args = KVC_WRITE_ARGS_INIT;

	(void)state;
	stamp(A, row, tokens, 4);
	world_write(&w, (struct world_step){ .row = A,
	                        .prefix = 4,
	                        .count = 4,
	                        .slots = shifted,
	                        .tokens = tokens + 4 });
	world_row(&w, A, 0, row, 8);
	world_expect(&w, A, 0, tokens, 8);
	verify(A, 8);
	expect_reasons(0, 0, 0, 0, NEVER, NEVER, TOKEN | POS | CHAIN, TOKEN | POS);
	args.group = &w.group, args.plan = &w.plan, args.tokens = &list, args.positions = &list;
	args.slots = &map;
	expect_error(kvc_canary_write(&args, NULL), KVC_E_LENGTH, "canary-tensor-length",
	        "kv-canary: slots length must be 4, got 2", -1);
}

static void b78_scheduler_blocks_taken_for_kernel_blocks_mismatch_at_once(void **state)
{
	enum { KERNEL_BLOCK = 4 }; /* half a scheduler block, as 64 is of 128 */
	int64_t right[4], wrong[4], before[8];
	static const int64_t others[] = { 21, 22, 23, 24, 25, 26, 27, 28 };

	(void)state;
	for (int64_t i = 0; i < 4; i++) {
		right[i] = 6 * KERNEL_BLOCK + i; /* logical block 3 = kernel blocks 6 and 7 */
		wrong[i] = 3 * KERNEL_BLOCK + i;
	}
	for (int64_t i = 0; i < 8; i++)
		before[i] = 2 * KERNEL_BLOCK + i; /* logical block 1 is somebody else's */
	stamp(B, before, others, 8);
	stamp(A, right, can_tokens, 4);
	verify(A, 4);
	assert_int_equal(w.found_count, 0);
	world_row(&w, A, 0, wrong, 4);
	verify(A, 4);
	assert_true(world_reasons_at(&w, 0) == (TOKEN | POS | CHAIN));
}

static void b80_a_chunk_in_the_first_pages_spoils_these_and_lacks_its_own(void **state)
{
	static const int64_t row[] = { 4, 5, 6, 7, 12, 13, 14, 15 };
	static const int64_t tokens[] = { 11, 12, 13, 14, 15, 16, 17, 18 };

	(void)state;
	stamp(A, row, tokens, 4);
	world_write(&w,
	        (struct world_step){
	                .row = A, .prefix = 4, .count = 4, .slots = row, .tokens = tokens + 4 });
	world_row(&w, A, 0, row, 8);
	world_expect(&w, A, 0, tokens, 8);
	verify(A, 8);
	assert_true(world_reasons_at(&w, 0) == (TOKEN | POS | CHAIN));
	for (int64_t i = 4; i < 8; i++)
		assert_int_equal(world_reasons_at(&w, i), NEVER);
}

/* ---- sliding windows ---- */

/* Token i at slot 4 + i mod 4, the window being 4. */
static void append_in_ring(int64_t *length, int64_t count)
{
	static const int64_t tokens[] = { 11, 12, 13, 14, 15, 16, 17, 18 };
	int64_t slots[8];

	for (int64_t i = 0; i < count; i++) {
		slots[i] = 4 + (*length + i) % 4;
		world_fill(&w, slots[i], (int)(50 + *length + i));
	}
	world_expect(&w, A, *length, tokens + *length, count);
	world_write(&w, (struct world_step){ .row = A,
	                        .prefix = *length,
	                        .count = count,
	                        .slots = slots,
	                        .tokens = tokens + *length });
	assert_int_equal(w.found_count, 0);
	*length += count;
	int64_t before = w.counters.slots_run;
	world_verify(&w,
	        (struct world_step){ .row = A, .prefix = *length, .window = 4, .use_expected = 1 });
	assert_int_equal(w.found_count, 0);
	assert_int_equal(w.counters.slots_run - before, *length < 4 ? *length : 4);
}

static void b84_a_ring_of_slots_is_clean_at_and_around_the_window(void **state)
{
	int64_t length = 0;

	(void)state;
	append_in_ring(&length, 3);
	append_in_ring(&length, 1);
	append_in_ring(&length, 1);
	length = 0;
	append_in_ring(&length, 3);
	append_in_ring(&length, 3);
}

static void b86_only_slots_inside_the_window_are_looked_at(void **state)
{
	static const int64_t inside[] = { 7 }, outside[] = { 4 }, token[] = { 31 };
	struct world_step step = { .row = A, .prefix = 6, .window = 4, .use_expected = 1 };

	(void)state;
	stamp(A, can_slots, can_tokens, 6);
	stamp(B, outside, token, 1); /* position 0 of A: evicted long ago */
	world_verify(&w, step);
	assert_int_equal(w.found_count, 0);
	stamp(B, inside, token, 1);
	world_verify(&w, step);
	assert_true(world_reasons_at(&w, 3) == (TOKEN | POS | CHAIN));
	assert_int_equal(world_reasons_at(&w, 4), CHAIN);
	assert_int_equal(w.valid_prefix[0], 3);
}

static void b87_released_window_slots_are_never_stamped_unless_started_after_them(void **state)
{
	static const int64_t row[] = { 4, 5, 6, 7, 12, 13, 14, 15 };
	static const int64_t tokens[] = { 11, 12, 13, 14, 15, 16, 17, 18 };
	static int64_t evicted[] = { 4, 5, 6, 7 }, four[] = { 4 };
	kvc_tensor slots = kvc_tensor_make(evicted, KVC_INT64, 1, four);
	struct world_step step = { .row = A, .prefix = 8, .use_expected = 1 };

	(void)state;
	stamp(A, row, tokens, 8);
	expect_ok(kvc_canary_void(&w.group, &slots, NULL));
	world_verify(&w, step);
	expect_reasons(NEVER, NEVER, NEVER, NEVER, CHAIN);
	step.start = 4;
	step.chain_in = (int64_t)kvc_chain_extend(kvc_chain_start(0), tokens, 0, 4);
	world_verify(&w, step);
	assert_int_equal(w.found_count, 0);
	assert_int_equal(w.counters.chain_unchecked, 0);
	step.chain_in++;
	world_verify(&w, step);
	expect_reasons(0, 0, 0, 0, CHAIN);
}

/* ---- positions ---- */

static void b32_draft_positions_one_too_far_are_pos_and_the_chain_is_silent(void **state)
{
	static const int64_t slots[] = { 4, 5, 6, 7, 8, 9, 10, 11, 12 }, late[] = { 8, 9 };
	static const int64_t tokens[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9 };

	(void)state;
	stamp(A, slots, tokens, 7);
	world_expect(&w, A, 7, tokens + 7, 2);
	world_write(&w, (struct world_step){ .row = A,
	                        .prefix = 7,
	                        .count = 2,
	                        .slots = slots + 7,
	                        .tokens = tokens + 7,
	                        .positions = late });
	verify(A, 9);
	expect_reasons(0, 0, 0, 0, 0, 0, 0, POS, POS);
}

static void b33_a_chunk_at_the_wrong_offset_is_pos_from_there_on(void **state)
{
	static const int64_t row[] = { 4, 5, 6, 7, 12, 13, 14, 15 };
	static const int64_t tokens[] = { 11, 12, 13, 14, 15, 16, 17, 18 };
	static const int64_t wrong[2][4] = { { 0, 1, 2, 3 }, { 8, 9, 10, 11 } };

	(void)state;
	for (int i = 0; i < 2; i++) {
		stamp(A, row, tokens, 4);
		world_expect(&w, A, 4, tokens + 4, 4);
		world_write(&w, (struct world_step){ .row = A,
		                        .prefix = 4,
		                        .count = 4,
		                        .slots = row + 4,
		                        .tokens = tokens + 4,
		                        .positions = wrong[i] });
		verify(A, 8);
		expect_reasons(0, 0, 0, 0, POS, POS, POS, POS);
	}
}

/* ---- tokens ---- */

static void b90_a_wrong_token_shows_only_against_an_independent_source(void **state)
{
	static const int64_t scheduled[] = { 11, 12, 13 }, consumed[] = { 11, 99, 13 };

	(void)state;
	stamp(A, can_slots, consumed, 3);
	world_expect(&w, A, 0, scheduled, 3);
	verify(A, 3);
	expect_reasons(0, TOKEN);
	world_expect(&w, A, 0, consumed, 3); /* from the same ring: of no use */
	verify(A, 3);
	assert_int_equal(w.found_count, 0);
	world_verify(&w, (struct world_step){ .row = A, .prefix = 3 });
	assert_int_equal(w.found_count, 0);
}

static void b91_a_stored_placeholder_is_token_and_an_expected_one_compares_nothing(void **state)
{
	static const int64_t stamped[] = { 101, -1, -1 }, resolved[] = { 101, 102, -1 };

	(void)state;
	stamp(A, can_slots, stamped, 3);
	world_expect(&w, A, 0, resolved, 3);
	verify(A, 3);
	expect_reasons(0, TOKEN);
	assert_int_equal(w.found[0].stored_token, -1);
	assert_int_equal(w.found[0].expected_token, 102);
}

static void b92_empty_batches_are_no_ops_that_touch_no_pointer(void **state)
{
	int64_t none[] = { 0 }, rows[] = { WORLD_ROWS, WORLD_COLUMNS };
	int64_t pairs[] = { 0, 6 }, claims[] = { 2, SLOT_COUNT };
	static int64_t scratch[2 * SLOT_COUNT];
	kvc_tensor empty = kvc_tensor_make(NULL, KVC_INT64, 1, none);
	kvc_tensor table = kvc_tensor_make(w.table, KVC_INT32, 2, rows);
	kvc_tensor room = kvc_tensor_make(NULL, KVC_INT64, 2, pairs);
	kvc_tensor seen = kvc_tensor_make(scratch, KVC_INT64, 2, claims);
	kvc_record before[SLOT_COUNT];
	kvc_requests requests = KVC_REQUESTS_INIT;
	kvc_plan_args plan = KVC_PLAN_ARGS_INIT;
	kvc_write_args write = KVC_WRITE_ARGS_INIT;
	kvc_verify_args check = KVC_VERIFY_ARGS_INIT;
	kvc_finite_scan scan;

	(void)state;
	stamp(A, can_slots, can_tokens, 6);
	memcpy(before, w.records, sizeof(before));
	requests.req_pool_indices = requests.prefix_lens = requests.extend_seq_lens = &empty;
	plan.requests = &requests, plan.req_to_token = &table;
	expect_ok(kvc_canary_plan(&w.plan, &plan, NULL));
	assert_int_equal(*w.plan.verify_num_valid, 0);
	assert_int_equal(*w.plan.write_num_valid_reqs, 0);
	expect_ok(kvc_canary_check_plan(&w.plan, &w.group, &empty, &seen, &w.ring, NULL));
	write.group = &w.group, write.plan = &w.plan, write.requests = &requests;
	write.tokens = write.positions = write.slots = &empty, write.ring = &w.ring;
	expect_ok(kvc_canary_write(&write, NULL));
	check.group = &w.group, check.plan = &w.plan, check.requests = &requests;
	check.valid_prefix = &empty, check.ring = &w.ring;
	expect_ok(kvc_canary_verify(&check, NULL));
	expect_ok(kvc_canary_void(&w.group, &empty, NULL));
	expect_ok(kvc_canary_copy(&w.group, &empty, &empty, &room, NULL));
	expect_ok(kvc_fingerprint(NULL, &w.group, &empty, NULL));
	expect_ok(kvc_canary_scan_finite(&scan, &w.group, &empty, NULL));
	assert_int_equal(scan.slots_scanned, 0);
	/* A request that writes nothing and has nothing cached, beside no tokens at all. */
	world_write(&w, (struct world_step){ .row = A });
	verify(A, 0);
	assert_int_equal(w.found_count, 0);
	assert_memory_equal(w.records, before, sizeof(before));
	assert_int_equal(w.counters.slots_run, 6);
}

/* ---- the detector itself ---- */

static void b26_two_tokens_packed_to_a_row_are_refused_at_registration(void **state)
{
	(void)state;
	w.sources[0].row_count = SLOT_COUNT / 2; /* physical rows hold two slots each */
	w.sources[0].row_stride_bytes = 2 * WORLD_ROW_BYTES;
	expect_error(kvc_group_check(&w.group), KVC_E_CONFIG, "source-too-few-slots",
	        "source 0: 32 slots (32 rows of 1), the group has 64 records", 0);
	w.sources[0].page_size = 2;
	w.sources[0].slot_stride_bytes = WORLD_ROW_BYTES;
	expect_ok(kvc_group_check(&w.group));
}

static void b99_a_row_narrower_than_its_page_is_refused_at_registration(void **state)
{
	(void)state;
	w.sources[0].row_stride_bytes = 100;
	w.sources[0].page_size = 4;
	w.sources[0].slot_stride_bytes = 32;
	w.group.record_count = 8;
	expect_error(kvc_group_check(&w.group), KVC_E_CONFIG, "source-slot-leaves-row",
	        "source 0: a page of 4 slots needs 128 bytes, its row has 100", 0);
}

static void b103_no_single_bit_flip_goes_unseen(void **state)
{
	enum { ROW = 128 };
	static uint8_t rows[SLOT_COUNT * ROW];
	static const int64_t reasons[] = { TOKEN, POS, CHAIN, KVHASH };
	kvc_source source = world_source(rows, SLOT_COUNT, 0);
	int64_t seen = 0;

	(void)state;
	source.row_stride_bytes = source.head_bytes = source.read_bytes = ROW;
	source.head_count = 1;
	w.group.sources = &source, w.group.source_count = 1;
	for (int i = 0; i < SLOT_COUNT * ROW; i++)
		rows[i] = (uint8_t)(i % 251);
	stamp(A, can_slots, can_tokens, 6);
	for (int bit = 0; bit < ROW * 8; bit++) {
		rows[6 * ROW + bit / 8] ^= (uint8_t)(1 << bit % 8);
		verify(A, 6);
		seen += w.found_count == 1 && world_reasons_at(&w, 2) == KVHASH;
		rows[6 * ROW + bit / 8] ^= (uint8_t)(1 << bit % 8);
	}
	assert_int_equal(seen, 1024);
	/* In the record: token, position and chain also break the chain of the next. */
	for (int bit = 0; bit < KVC_RECORD_BYTES * 8; bit++) {
		uint8_t *record = (uint8_t *)&w.records[6];
		record[bit / 8] ^= (uint8_t)(1 << bit % 8);
		verify(A, 6);
		expect_reasons(0, 0, reasons[bit / 64], bit / 64 < 3 ? CHAIN : 0);
		record[bit / 8] ^= (uint8_t)(1 << bit % 8);
	}
	/* Of the last slot a flipped token shows only if it is expected, or the chain's end is. */
	w.records[13].token ^= 4;
	struct world_step step = { .row = A, .prefix = 6 };
	world_verify(&w, step);
	assert_int_equal(w.found_count, 0);
	step.chain_end = (int64_t)kvc_chain_extend(kvc_chain_start(0), can_tokens, 0, 6);
	world_verify(&w, step);
	expect_reasons(0, 0, 0, 0, 0, KVC_REASON_CHAIN_END);
	assert_int_equal(w.found_count, 1);
}

static void b44_nonfinite_in_a_live_slot_is_a_reason_of_its_own(void **state)
{
	static int64_t rest[] = { 13, 14, 15 }, three[] = { 3 };
	static const int64_t slots[] = { 12 };
	kvc_tensor list = kvc_tensor_make(rest, KVC_INT64, 1, three);
	kvc_finite_scan scan;

	(void)state;
	memset(w.k + 13 * WORLD_ROW_BYTES, 0xFF, 3 * WORLD_ROW_BYTES);
	stamp(A, slots, can_tokens, 1);
	world_verify(&w, (struct world_step){ .row = A, .prefix = 1, .check_finite = 1 });
	assert_int_equal(w.found_count, 0); /* stale rows beside it are none of its business */
	expect_ok(kvc_canary_scan_finite(&scan, &w.group, &list, NULL));
	assert_int_equal(scan.nonfinite_count, 3 * WORLD_ROW_BYTES / 2);
	assert_int_equal(scan.first_slot, 13);
	memset(w.k + 12 * WORLD_ROW_BYTES + 2, 0xFF, 2);
	stamp(A, slots, can_tokens, 1); /* even stamped so */
	world_verify(&w, (struct world_step){ .row = A, .prefix = 1, .check_finite = 1 });
	expect_reasons(KVC_REASON_NONFINITE);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start, end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(can_is_clean_before_any_fault),
		TEST(b07_a_reserved_slot_in_a_live_request_is_slot_range),
		TEST(b26_two_tokens_packed_to_a_row_are_refused_at_registration),
		TEST(b32_draft_positions_one_too_far_are_pos_and_the_chain_is_silent),
		TEST(b33_a_chunk_at_the_wrong_offset_is_pos_from_there_on),
		TEST(b44_nonfinite_in_a_live_slot_is_a_reason_of_its_own),
		TEST(b47_late_bytes_of_the_old_owner_are_kvhash_there_alone),
		TEST(b48_a_stale_stamped_write_is_found_and_its_writer_named),
		TEST(b53_of_two_owners_of_a_page_the_victim_is_flagged),
		TEST(b56_a_slot_handed_on_without_being_written_was_never_stamped),
		TEST(b59_a_chain_knows_its_namespace),
		TEST(b60_images_with_equal_low_bits_differ),
		TEST(b61_tokens_are_compared_although_the_chain_agrees),
		TEST(b67_a_load_that_failed_voids_its_slot),
		TEST(b68_every_registered_source_is_covered),
		TEST(b73_a_prefill_cut_short_gives_its_valid_prefix),
		TEST(b75_draft_slots_not_consecutive_are_never_stamped),
		TEST(b76_a_shifted_slot_map_is_found_and_a_short_one_refused),
		TEST(b78_scheduler_blocks_taken_for_kernel_blocks_mismatch_at_once),
		TEST(b80_a_chunk_in_the_first_pages_spoils_these_and_lacks_its_own),
		TEST(b84_a_ring_of_slots_is_clean_at_and_around_the_window),
		TEST(b86_only_slots_inside_the_window_are_looked_at),
		TEST(b87_released_window_slots_are_never_stamped_unless_started_after_them),
		TEST(b90_a_wrong_token_shows_only_against_an_independent_source),
		TEST(b91_a_stored_placeholder_is_token_and_an_expected_one_compares_nothing),
		TEST(b92_empty_batches_are_no_ops_that_touch_no_pointer),
		TEST(b99_a_row_narrower_than_its_page_is_refused_at_registration),
		TEST(b103_no_single_bit_flip_goes_unseen),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
