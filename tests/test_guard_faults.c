/*
 * Every kind of fault, made in an engine that a guard watches: found at the step that first meets
 * it, with the reasons, the victim, the culprit and the cause that tell a person where to look.
 */
#include "guard_engine.h"

#include <math.h>

#define CHAIN KVC_REASON_VERIFY_CHAIN_HASH
#define POSITION KVC_REASON_VERIFY_POSITION
#define BYTES KVC_REASON_VERIFY_REAL_KV_HASH
#define TOKEN KVC_REASON_VERIFY_TOKEN

/* Requests 7 on row 1 (slots from 20) and 8 on row 2 (slots from 100), 12 tokens each, stamped and
 * read once. */
static struct engine *two_requests(struct engine_options options)
{
	struct engine *e = engine_open(options);

	for (int64_t row = 1; row <= 2; row++) {
		engine_tokens(e, row, row);
		engine_place(e, row, 0, 60, row * 80 - 60);
		engine_add(e, row, 6 + row, 0, 12);
	}
	engine_step(e);
	engine_expect_clean(e);
	return e;
}

/* Both decode one more token. */
static void decode(struct engine *e, int64_t prefix)
{
	engine_add(e, 1, 7, prefix, 1);
	engine_add(e, 2, 8, prefix, 1);
	engine_step(e);
}

static struct engine_options all_reads(void)
{
	struct engine_options options = engine_defaults();

	options.budget = -1;
	return options;
}

/* ---- bytes ---- */

static void flipped_bits_are_found_in_every_source(void **state)
{
	(void)state;
	for (int stamping = 0; stamping < 2; stamping++) {
		struct engine_options options = engine_defaults();
		options.stamping = stamping;
		struct engine *e = two_requests(options);
		decode(e, 12);
		engine_expect_clean(e);
		for (int layer = 0; layer < ENGINE_LAYERS - 1; layer++) {
			uint8_t *byte = (uint8_t *)&e->k[layer][25][1][7];
			byte[3] ^= 0x10;
			decode(e, 13 + 4 * layer);
			assert_int_equal(e->finding_count, 1);
			engine_expect(e, 0, 25, BYTES, 7, 5, -1, KVC_CAUSE_BYTES_DAMAGED);
			assert_string_equal(e->findings[0].slug, "violation-verify-real-kv-hash");
			assert_int_equal(e->valid_prefix[0], 5);
			assert_int_equal(e->valid_prefix[1], 13 + 4 * layer);
			byte[3] ^= 0x10;
			decode(e, 14 + 4 * layer);
			engine_expect_clean(e);
			uint8_t *v_byte = (uint8_t *)&e->v[layer][106][0][0];
			v_byte[0] ^= 1;
			decode(e, 15 + 4 * layer);
			assert_int_equal(e->finding_count, 1);
			engine_expect(e, 0, 106, BYTES, 8, 6, -1, KVC_CAUSE_BYTES_DAMAGED);
			v_byte[0] ^= 1;
			decode(e, 16 + 4 * layer);
			engine_expect_clean(e);
		}
		engine_close(e);
	}
}

static void damage_in_the_window_pool_names_its_group(void **state)
{
	struct engine_options options = engine_defaults();

	(void)state;
	options.window = 6;
	struct engine *e = two_requests(options);
	int64_t inside = e->mapping[20 + 10], outside = e->mapping[20 + 3];
	e->k[ENGINE_LAYERS - 1][outside][0][0] += 1.0f;
	e->k[ENGINE_LAYERS - 1][inside][0][0] += 1.0f;
	decode(e, 12);
	assert_int_equal(e->finding_count, 1);
	engine_expect(e, 0, inside, BYTES, 7, 10, -1, KVC_CAUSE_BYTES_DAMAGED);
	assert_int_equal(e->findings[0].group, e->window);
	assert_string_equal(e->findings[0].group_name, "window");
	engine_close(e);
}

/* A write that never happened, and a layer that was left out. */
static void lost_writes_are_found(void **state)
{
	(void)state;
	for (int layers = 0; layers < 2; layers++) {
		struct engine *e = two_requests(engine_defaults());
		engine_add(e, 1, 7, 12, 1);
		engine_add(e, 2, 8, 12, 1);
		if (layers)
			e->skip_layer = 1;
		else
			e->skip_token = 1;
		engine_step(e);
		engine_expect_clean(e);
		decode(e, 13);
		assert_int_equal(e->finding_count, layers ? 2 : 1);
		if (layers)
			engine_expect(e, 0, 32, BYTES, 7, 12, -1, KVC_CAUSE_BYTES_DAMAGED);
		engine_expect(e, layers, 112, BYTES, 8, 12, -1, KVC_CAUSE_BYTES_DAMAGED);
		engine_close(e);
	}
}

/* What SPEC section 5 says: COMPUTE hashes what lies there, so it cannot know. */
static void computed_stamps_cannot_see_a_lost_write(void **state)
{
	struct engine_options options = engine_defaults();

	(void)state;
	options.stamping = KVC_STAMP_COMPUTE;
	struct engine *e = two_requests(options);
	engine_add(e, 1, 7, 12, 1);
	engine_add(e, 2, 8, 12, 1);
	e->skip_token = 0;
	engine_step(e);
	decode(e, 13);
	engine_expect_clean(e);
	engine_close(e);
}

static void non_finite_values_are_located(void **state)
{
	struct engine_options options = engine_defaults();
	char text[4096];

	(void)state;
	options.check_finite = 1;
	options.stamping = KVC_STAMP_COMPUTE;
	struct engine *e = two_requests(options);
	engine_add(e, 1, 7, 12, 1);
	expect_ok(engine_begin(e));
	engine_forward(e);
	e->v[1][32][1][5] = NAN; /* computed and stamped: the record is sound */
	engine_end(e);
	engine_poll(e);
	engine_expect_clean(e);
	decode(e, 13);
	assert_int_equal(e->finding_count, 2); /* and request 8's slot that nobody wrote */
	engine_expect(e, 0, 32, KVC_REASON_NONFINITE, 7, 12, -1, KVC_CAUSE_NONFINITE);
	assert_int_equal(e->findings[0].nonfinite_source_id, 3);
	assert_int_equal(e->findings[0].nonfinite_head, 1);
	assert_int_equal(e->findings[0].nonfinite_dim, 5);
	kvc_finding_text(text, sizeof(text), &e->findings[0]);
	assert_non_null(strstr(text, "first non-finite value: source 3, head 1, dim 5"));
	engine_expect(e, 1, 112, KVC_REASON_NEVER_STAMPED, 8, 12, -1, KVC_CAUSE_NEVER_WRITTEN);
	engine_close(e);
}

static void stale_values_of_the_last_page_are_counted(void **state)
{
	struct engine_options options = engine_defaults();

	(void)state;
	options.check_finite = 1;
	options.page_size = 4;
	struct engine *e = two_requests(options);
	assert_int_equal(engine_stats(e).stale_nonfinite, 0);
	assert_int_equal(engine_stats(e).stale_nonfinite_slot, -1);
	e->k[0][34][0][1] = e->k[0][35][0][1] = INFINITY; /* slot 32 is being written */
	e->k[0][36][0][1] = INFINITY;                     /* of another page */
	decode(e, 12);
	engine_expect_clean(e);
	assert_int_equal(engine_stats(e).stale_nonfinite, 2);
	assert_int_equal(engine_stats(e).stale_nonfinite_slot, 34);
	engine_close(e);
}

/* ---- wrong slots ---- */

static void stale_table_entry_is_found_at_once(void **state)
{
	struct engine_options options = engine_defaults();

	(void)state;
	options.budget = 0; /* only first reads: a changed entry is one */
	struct engine *e = two_requests(options);
	decode(e, 12);
	e->table[1][4] = 104; /* position 4 of the other request */
	decode(e, 13);
	engine_expect(e, 0, 104, CHAIN | TOKEN, 7, 4, 8, KVC_CAUSE_WRONG_SLOT);
	engine_expect(e, 1, 25, CHAIN, 7, 5, -1, KVC_CAUSE_WRONG_SLOT);
	assert_int_equal(e->finding_count, 2);
	assert_int_equal(e->valid_prefix[0], 4);
	engine_close(e);
}

static void swapped_entries_are_found(void **state)
{
	struct engine *e = two_requests(engine_defaults());

	(void)state;
	decode(e, 12);
	e->table[1][4] = 27, e->table[1][7] = 24;
	decode(e, 13);
	engine_expect(e, 0, 27, CHAIN | POSITION | TOKEN, 7, 4, -1, KVC_CAUSE_WRONG_SLOT);
	assert_int_equal(e->finding_count, 4); /* and 5, 7, 8 */
	engine_close(e);
}

static void unwritten_entry_is_never_stamped(void **state)
{
	struct engine *e = two_requests(engine_defaults());

	(void)state;
	e->table[1][11] = 60;
	decode(e, 12);
	engine_expect(e, 0, 60, KVC_REASON_NEVER_STAMPED, 7, 11, -1, KVC_CAUSE_NEVER_WRITTEN);
	engine_close(e);
}

/* A row that is sound in itself but another request's: chains alone do not see it, tokens do. */
static void foreign_prefix_needs_expected_tokens(void **state)
{
	(void)state;
	for (int expected = 0; expected < 2; expected++) {
		struct engine_options options = engine_defaults();
		options.expected = expected;
		struct engine *e = two_requests(options);
		engine_tokens(e, 3, 3);
		memcpy(e->table[3], e->table[2], 8 * sizeof(int32_t));
		engine_place(e, 3, 8, 40, 180);
		engine_add(e, 3, 9, 8, 2);
		engine_step(e);
		if (!expected)
			engine_expect_clean(e);
		for (int64_t i = 0; expected && i < 8; i++)
			engine_expect(e, i, 100 + i, TOKEN, 9, i, 8, KVC_CAUSE_WRONG_SLOT);
		if (expected)
			engine_expect(
			        e, 8, 107, KVC_REASON_CHAIN_END, 9, 7, 8, KVC_CAUSE_WRONG_SLOT);
		assert_int_equal(e->finding_count, expected ? 9 : 0);
		engine_close(e);
	}
}

/* The right tokens, computed under another adapter. */
static void foreign_namespace_is_found(void **state)
{
	struct engine *e = two_requests(engine_defaults());

	(void)state;
	engine_tokens(e, 3, 2);
	memcpy(e->table[3], e->table[2], 8 * sizeof(int32_t));
	engine_place(e, 3, 8, 40, 180);
	engine_add(e, 3, 9, 8, 2);
	e->namespaces[0] = 5;
	engine_step(e);
	engine_expect(e, 0, 100, CHAIN, 9, 0, 8, KVC_CAUSE_WRONG_SLOT);
	engine_expect(e, 1, 107, KVC_REASON_CHAIN_END, 9, 7, 8, KVC_CAUSE_WRONG_SLOT);
	assert_int_equal(e->finding_count, 2);
	engine_close(e);
}

static void slots_outside_the_pool_are_violations(void **state)
{
	struct engine *e = two_requests(engine_defaults());

	(void)state;
	e->table[1][3] = ENGINE_SLOTS;
	e->table[2][6] = 0; /* the reserved slot, in a live request */
	decode(e, 12);
	engine_expect(e, 0, ENGINE_SLOTS, KVC_REASON_SLOT_RANGE, 7, 3, -1, KVC_CAUSE_OUT_OF_RANGE);
	engine_expect(e, 1, 24, KVC_REASON_SLOT_RANGE, 7, 4, -1, KVC_CAUSE_OUT_OF_RANGE);
	engine_expect(e, 2, 0, KVC_REASON_SLOT_RANGE, 8, 6, -1, KVC_CAUSE_OUT_OF_RANGE);
	assert_int_equal(e->finding_count, 3);
	engine_close(e);
}

/* ---- slots that change hands ---- */

/* Freed while live, given to another request, which writes in a later step. */
static void reused_slot_is_overwritten(void **state)
{
	struct engine *e = two_requests(engine_defaults());
	int64_t freed[] = { 25 }, one = 1;
	kvc_tensor slots = engine_vector(freed, &one);

	(void)state;
	decode(e, 12);
	expect_ok(kvc_guard_void(e->guard, e->full, &slots, NULL));
	engine_tokens(e, 3, 3);
	engine_place(e, 3, 0, 1, 25);
	engine_place(e, 3, 1, 40, 180);
	engine_add(e, 3, 9, 0, 3); /* request 7 sits this step out */
	engine_step(e);
	engine_expect_clean(e);
	decode(e, 13);
	engine_expect(e, 0, 25, CHAIN | POSITION | TOKEN, 7, 5, 9, KVC_CAUSE_OVERWRITTEN);
	assert_int_equal(e->findings[0].culprit_step, 2);
	engine_expect(e, 1, 26, CHAIN, 7, 6, -1, KVC_CAUSE_WRONG_SLOT);
	assert_int_equal(e->finding_count, 2);
	engine_close(e);
}

/* The same, but the new owner writes while the old one reads: seen before anything is lost. */
static void reuse_within_the_step_is_aliased(void **state)
{
	(void)state;
	for (int64_t budget = -1; budget < 1; budget++) {
		struct engine_options options = engine_defaults();
		options.budget = budget;
		struct engine *e = two_requests(options);
		decode(e, 12);
		engine_tokens(e, 3, 3);
		engine_place(e, 3, 0, 1, 25);
		engine_place(e, 3, 1, 40, 180);
		engine_add(e, 1, 7, 13, 1);
		engine_add(e, 3, 9, 0, 3);
		engine_step(e);
		assert_int_equal(e->finding_count, 1);
		engine_expect(e, 0, 25, KVC_REASON_SLOT_ALIASED, 7, 5, 9, KVC_CAUSE_ALIASED);
		assert_int_equal(e->findings[0].culprit_step, 2);
		assert_int_equal(e->valid_prefix[0], 5);
		engine_close(e);
	}
}

/* Equal positions are not enough: another sequence, told apart by the slot before. */
static void equal_positions_of_two_sequences_are_aliased(void **state)
{
	(void)state;
	for (int expected = 0; expected < 2; expected++) {
		struct engine_options options = engine_defaults();
		options.expected = expected;
		struct engine *e = two_requests(options);
		decode(e, 12);
		e->table[2][13] = 24 + 8; /* request 7's slot of position 12 */
		e->table[2][12] = 32;
		engine_add(e, 1, 7, 13, 1);
		engine_add(e, 2, 8, 12, 1);
		engine_step(e);
		assert_int_equal(e->finding_count, 1);
		engine_expect(e, 0, 32, KVC_REASON_SLOT_ALIASED, 7, 12, 8, KVC_CAUSE_ALIASED);
		engine_close(e);
	}
}

static void double_allocation_is_aliased(void **state)
{
	struct engine *e = two_requests(engine_defaults());

	(void)state;
	e->table[2][12] = 32; /* both write slot 32 */
	decode(e, 12);
	assert_int_equal(e->finding_count, 1);
	engine_expect(e, 0, 32, KVC_REASON_SLOT_ALIASED, 8, 12, 7, KVC_CAUSE_ALIASED);
	assert_int_equal(e->findings[0].violation.launch_tag, KVC_TAG_STEP_WRITE);
	engine_close(e);
}

/* A chunk that goes to the request's own first slots. */
static void chunk_over_own_slots_is_aliased(void **state)
{
	struct engine *e = two_requests(engine_defaults());

	(void)state;
	engine_add(e, 1, 7, 12, 2);
	e->slots[0] = 20, e->slots[1] = 21;
	engine_step(e);
	assert_int_equal(e->finding_count, 2);
	engine_expect(e, 0, 20, KVC_REASON_SLOT_ALIASED, 7, 0, -1, KVC_CAUSE_ALIASED);
	engine_expect(e, 1, 21, KVC_REASON_SLOT_ALIASED, 7, 1, -1, KVC_CAUSE_ALIASED);
	engine_close(e);
}

/* Two requests read one slot and mean different things. */
static void conflicting_reads_are_aliased(void **state)
{
	(void)state;
	for (int64_t budget = -1; budget < 1; budget++) {
		struct engine_options options = engine_defaults();
		options.budget = budget;
		struct engine *e = two_requests(options);
		e->table[2][9] = 22;
		decode(e, 12);
		assert_true(e->finding_count >= 2);
		engine_expect(e, 0, 22, KVC_REASON_SLOT_ALIASED, 8, 9, 7, KVC_CAUSE_ALIASED);
		assert_int_equal(e->findings[0].violation.request_row, 2);
		engine_expect(e, 1, 22, CHAIN | POSITION | TOKEN, 8, 9, 7, KVC_CAUSE_WRONG_SLOT);
		assert_int_equal(e->valid_prefix[1], 9);
		engine_close(e);
	}
}

/* Two full slots on one window slot. */
static void window_slot_with_two_owners_is_aliased(void **state)
{
	struct engine_options options = engine_defaults();

	(void)state;
	options.window = 6;
	struct engine *e = two_requests(options);
	e->mapping[200] = e->mapping[31];
	decode(e, 12);
	assert_int_equal(e->finding_count, 1);
	engine_expect(e, 0, 200, KVC_REASON_SLOT_ALIASED, -1, -1, 7, KVC_CAUSE_ALIASED);
	engine_close(e);
}

/* ---- wrong input ---- */

static void wrong_positions_are_found_when_written(void **state)
{
	(void)state;
	for (int give_input = 0; give_input < 2; give_input++) {
		for (int first_chunk = 0; first_chunk < 2; first_chunk++) {
			struct engine *e = two_requests(engine_defaults());
			int64_t prefix = first_chunk ? 0 : 12;
			engine_tokens(e, 3, 3);
			engine_place(e, 3, 0, 40, 180);
			e->give_input = give_input;
			engine_add(e, first_chunk ? 3 : 1, first_chunk ? 9 : 7, prefix, 3);
			int64_t id = e->ids[0], slot = e->slots[0];
			for (int64_t i = 0; i < 3; i++)
				e->positions[i] = first_chunk ? i + 2 : i;
			engine_step(e);
			assert_int_equal(e->finding_count, 3);
			for (int64_t i = 0; i < 3; i++)
				engine_expect(e, i, slot + i, KVC_REASON_WRITE_POSITION, id,
				        prefix + i, -1, KVC_CAUSE_WRONG_POSITION);
			/* And once more when they are read. */
			e->give_input = 0;
			engine_add(e, first_chunk ? 3 : 1, id, prefix + 3, 1);
			engine_step(e);
			engine_expect(
			        e, 0, slot, POSITION, id, prefix, -1, KVC_CAUSE_WRONG_POSITION);
			engine_close(e);
		}
	}
}

static void swapped_tokens_are_found_when_written(void **state)
{
	struct engine *e = two_requests(engine_defaults());

	(void)state;
	engine_add(e, 1, 7, 12, 1);
	engine_add(e, 2, 8, 12, 1);
	int64_t token = e->tokens[0];
	e->tokens[0] = e->tokens[1], e->tokens[1] = token;
	engine_step(e);
	assert_int_equal(e->finding_count, 2);
	engine_expect(e, 0, 32, KVC_REASON_WRITE_TOKEN, 7, 12, -1, KVC_CAUSE_WRONG_TOKEN);
	engine_expect(e, 1, 112, KVC_REASON_WRITE_TOKEN, 8, 12, -1, KVC_CAUSE_WRONG_TOKEN);
	decode(e, 13);
	engine_expect(e, 0, 32, TOKEN, 7, 12, -1, KVC_CAUSE_WRONG_TOKEN);
	engine_close(e);
}

/* Where only the engine's own arrays say what the input should be. */
static void given_input_is_compared(void **state)
{
	struct engine_options options = engine_defaults();

	(void)state;
	options.expected = 0;
	struct engine *e = two_requests(options);
	e->give_input = 1;
	engine_add(e, 1, 7, 12, 1);
	e->tokens[0] = 5;
	engine_step(e);
	engine_expect(e, 0, 32, KVC_REASON_WRITE_TOKEN, 7, 12, -1, KVC_CAUSE_WRONG_TOKEN);
	assert_int_equal(e->finding_count, 1);
	engine_close(e);
}

static void write_to_another_slot_is_found_when_read(void **state)
{
	struct engine *e = two_requests(engine_defaults());

	(void)state;
	engine_add(e, 1, 7, 12, 1);
	e->slots[0] = 33; /* the table says 32 */
	engine_step(e);
	engine_expect_clean(e);
	decode(e, 13);
	engine_expect(e, 0, 32, KVC_REASON_NEVER_STAMPED, 7, 12, -1, KVC_CAUSE_NEVER_WRITTEN);
	engine_close(e);
}

/* ---- records that were moved ---- */

static void truncated_copy_is_found(void **state)
{
	struct engine *e = two_requests(engine_defaults());
	int64_t from[] = { 20, 21, 22, 23 }, to[] = { 200, 201, 202, 203 }, four = 4;
	kvc_tensor t_from = engine_vector(from, &four), t_to = engine_vector(to, &four);

	(void)state;
	expect_ok(kvc_guard_copy(e->guard, e->full, &t_from, &t_to, NULL));
	for (int64_t layer = 0; layer < ENGINE_LAYERS; layer++) {
		memcpy(e->k[layer][200], e->k[layer][20], 3 * sizeof(e->k[layer][20]));
		memcpy(e->v[layer][200], e->v[layer][20], 4 * sizeof(e->v[layer][20]));
	}
	engine_place(e, 1, 0, 4, 200);
	decode(e, 12);
	assert_int_equal(e->finding_count, 1);
	engine_expect(e, 0, 203, BYTES, 7, 3, -1, KVC_CAUSE_BYTES_DAMAGED);
	engine_close(e);
}

static void voided_slot_is_never_stamped(void **state)
{
	struct engine *e = two_requests(all_reads());
	int64_t gone[] = { 24, -1 }, two = 2;
	kvc_tensor slots = engine_vector(gone, &two);

	(void)state;
	expect_ok(kvc_guard_void(e->guard, e->full, &slots, NULL));
	decode(e, 12);
	engine_expect(e, 0, 24, KVC_REASON_NEVER_STAMPED, 7, 4, -1, KVC_CAUSE_NEVER_WRITTEN);
	engine_close(e);
}

/* ---- sweep ---- */

/* Slots in pieces smaller than the callback's room. */
struct list {
	kvc_sweep_list rest;
	int64_t piece;
};

static int64_t list_next(void *context, kvc_sweep_slot *out, int64_t capacity)
{
	struct list *list = context;

	assert_true(list->piece <= capacity);
	return kvc_sweep_listed(&list->rest, out, list->piece);
}

static void sweep_looks_at_idle_slots(void **state)
{
	struct engine *e = two_requests(engine_defaults());
	kvc_sweep_slot slots[13];
	int64_t swept = -1;

	(void)state;
	for (int64_t p = 0; p < 12; p++)
		slots[p] = (kvc_sweep_slot){ 100 + p, p, e->history[2][p], p ? 99 + p : -1, 0 };
	slots[12] = (kvc_sweep_slot){ -1, 0, -1, -1, 0 };
	struct list clean = { { slots, 13 }, 5 };
	expect_ok(kvc_guard_sweep(e->guard, e->full, list_next, &clean, &swept, NULL));
	engine_poll(e);
	engine_expect_clean(e);
	assert_int_equal(swept, 12);
	assert_int_equal(engine_stats(e).slots_swept, 12);
	assert_int_equal(engine_stats(e).slots_verified, 12);

	e->v[0][103][0][0] += 1.0f;
	slots[6].expected_token++;
	slots[8].position++;
	slots[8].prev_slot = -3;
	kvc_sweep_list bad = { slots, 13 };
	expect_ok(kvc_guard_sweep(e->guard, e->full, kvc_sweep_listed, &bad, NULL, NULL));
	engine_poll(e);
	assert_int_equal(e->finding_count, 3);
	engine_expect(e, 0, 103, BYTES, -1, 3, -1, KVC_CAUSE_BYTES_DAMAGED);
	engine_expect(e, 1, 106, TOKEN, -1, 6, 8, KVC_CAUSE_WRONG_TOKEN);
	engine_expect(e, 2, 108, POSITION, -1, 9, 8, KVC_CAUSE_WRONG_POSITION);
	assert_int_equal(e->findings[0].violation.launch_tag, KVC_TAG_SWEEP);
	engine_close(e);
}

static void sweep_knows_namespaces(void **state)
{
	struct engine *e = engine_open(engine_defaults());

	(void)state;
	engine_tokens(e, 1, 1);
	engine_place(e, 1, 0, 60, 20);
	engine_add(e, 1, 7, 0, 2);
	e->namespaces[0] = 3;
	engine_step(e);
	kvc_sweep_slot slots[] = { { 20, 0, -1, -1, 3 }, { 21, 1, -1, 20, 3 } };
	kvc_sweep_list list = { slots, 2 };
	expect_ok(kvc_guard_sweep(e->guard, e->full, kvc_sweep_listed, &list, NULL, NULL));
	engine_poll(e);
	engine_expect_clean(e);
	slots[0].name_space = 4;
	list = (kvc_sweep_list){ slots, 2 };
	expect_ok(kvc_guard_sweep(e->guard, e->full, kvc_sweep_listed, &list, NULL, NULL));
	engine_poll(e);
	assert_int_equal(e->finding_count, 1);
	engine_expect(e, 0, 20, CHAIN, -1, 0, 7, KVC_CAUSE_WRONG_SLOT);
	engine_close(e);
}

/* ---- poll and text ---- */

static void ring_overflow_is_counted(void **state)
{
	struct engine_options options = all_reads();

	(void)state;
	options.ring_capacity = 5;
	struct engine *e = two_requests(options);
	for (int64_t slot = 20; slot < 28; slot++)
		e->k[0][slot][0][0] += 1.0f;
	decode(e, 12);
	assert_int_equal(e->finding_count, 5);
	assert_int_equal(engine_stats(e).violations, 8);
	assert_int_equal(engine_stats(e).violations_dropped, 3);
	decode(e, 13);
	assert_int_equal(e->finding_count, 5);
	for (int64_t i = 0; i < 5; i++) {
		engine_expect(e, i, 20 + i, BYTES, 7, i, -1, KVC_CAUSE_BYTES_DAMAGED);
		assert_int_equal(e->findings[i].step, 2);
		assert_int_equal(e->findings[i].violation.sequence, 9 + i);
	}
	engine_close(e);
}

static void poll_hands_out_pieces_in_order(void **state)
{
	struct engine *e = two_requests(all_reads());
	kvc_finding finding;
	int64_t count;

	(void)state;
	for (int64_t slot = 20; slot < 24; slot++)
		e->k[0][slot][0][0] += 1.0f;
	engine_add(e, 1, 7, 12, 1);
	expect_ok(engine_begin(e)); /* findings are there before the forward pass */
	expect_ok(kvc_guard_poll(e->guard, NULL, 0, &count, NULL));
	assert_int_equal(count, 0);
	for (int64_t i = 0; i < 4; i++) {
		expect_ok(kvc_guard_poll(e->guard, &finding, 1, &count, NULL));
		assert_int_equal(count, 1);
		assert_int_equal(finding.violation.slot, 20 + i);
		assert_int_equal(finding.step, 1);
	}
	expect_ok(kvc_guard_poll(e->guard, &finding, 1, &count, NULL));
	assert_int_equal(count, 0);
	engine_forward(e);
	engine_end(e);
	engine_close(e);
}

static void text_of_a_finding_is_stable(void **state)
{
	struct engine *e = two_requests(engine_defaults());
	char text[4096], cut[32];
	kvc_violation parsed;

	(void)state;
	e->table[1][4] = 104;
	decode(e, 12);
	/* Row 2 is read later than row 1, so its claim on slot 104 is the one that is reported. */
	engine_expect(e, 0, 104, KVC_REASON_SLOT_ALIASED, 8, 4, 7, KVC_CAUSE_ALIASED);
	size_t length = kvc_finding_text(text, sizeof(text), &e->findings[1]);
	assert_int_equal(length, strlen(text));
	assert_int_equal(kvc_violation_parse(&parsed, text), 1);
	assert_int_equal(parsed.slot, 104);
	const char *rest = strchr(text, '\n');
	assert_non_null(rest);
	assert_string_equal(rest,
	        "\n  where: group full, step 1: request 7 (row 1) reads slot 104 as position 4"
	        "\n  last stamped: by request 8 at step 0"
	        "\n  likely cause: wrong_slot: the request table or the prefix cache points at a "
	        "slot "
	        "that was made for something else"
	        "\n  what to do: look at the table entry of this position, at the prefix match "
	        "that "
	        "gave it, and at the first violation of this request: later ones may follow from it"
	        "\n  explain: kvcanary explain violation-verify-token\n");
	assert_int_equal(kvc_finding_text(NULL, 0, &e->findings[1]), length);
	assert_int_equal(kvc_finding_text(cut, sizeof(cut), &e->findings[1]), length);
	assert_int_equal(strlen(cut), sizeof(cut) - 1);
	assert_memory_equal(cut, text, sizeof(cut) - 1);
	assert_int_equal(kvc_finding_text(text, sizeof(text), NULL), 0);
	assert_string_equal(text, "");
	assert_string_equal(kvc_cause_name(KVC_CAUSE_BYTES_DAMAGED), "bytes_damaged");
	assert_string_equal(kvc_cause_name(-1), "unknown");
	assert_string_equal(kvc_cause_name(99), "unknown");
	engine_close(e);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(flipped_bits_are_found_in_every_source),
		cmocka_unit_test(damage_in_the_window_pool_names_its_group),
		cmocka_unit_test(lost_writes_are_found),
		cmocka_unit_test(computed_stamps_cannot_see_a_lost_write),
		cmocka_unit_test(non_finite_values_are_located),
		cmocka_unit_test(stale_values_of_the_last_page_are_counted),
		cmocka_unit_test(stale_table_entry_is_found_at_once),
		cmocka_unit_test(swapped_entries_are_found),
		cmocka_unit_test(unwritten_entry_is_never_stamped),
		cmocka_unit_test(foreign_prefix_needs_expected_tokens),
		cmocka_unit_test(foreign_namespace_is_found),
		cmocka_unit_test(slots_outside_the_pool_are_violations),
		cmocka_unit_test(reused_slot_is_overwritten),
		cmocka_unit_test(reuse_within_the_step_is_aliased),
		cmocka_unit_test(equal_positions_of_two_sequences_are_aliased),
		cmocka_unit_test(double_allocation_is_aliased),
		cmocka_unit_test(chunk_over_own_slots_is_aliased),
		cmocka_unit_test(conflicting_reads_are_aliased),
		cmocka_unit_test(window_slot_with_two_owners_is_aliased),
		cmocka_unit_test(wrong_positions_are_found_when_written),
		cmocka_unit_test(swapped_tokens_are_found_when_written),
		cmocka_unit_test(given_input_is_compared),
		cmocka_unit_test(write_to_another_slot_is_found_when_read),
		cmocka_unit_test(truncated_copy_is_found),
		cmocka_unit_test(voided_slot_is_never_stamped),
		cmocka_unit_test(sweep_looks_at_idle_slots),
		cmocka_unit_test(sweep_knows_namespaces),
		cmocka_unit_test(ring_overflow_is_counted),
		cmocka_unit_test(poll_hands_out_pieces_in_order),
		cmocka_unit_test(text_of_a_finding_is_stable),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
