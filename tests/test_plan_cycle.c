/*
 * Cases from the field that plan, write and verify only show together: what is planned decides what
 * is found. Records without sources: the chain, positions and tokens alone are at stake.
 */
#include <string.h>

#include "expect.h"

#define SLOTS 32
#define ROWS 4
#define COLUMNS 16
#define RING_ROWS 64

enum {
	TOKEN = KVC_REASON_VERIFY_TOKEN,
	POS = KVC_REASON_VERIFY_POSITION,
	CHAIN = KVC_REASON_VERIFY_CHAIN_HASH,
	NEVER = KVC_REASON_NEVER_STAMPED
};

struct world {
	kvc_record records[SLOTS];
	kvc_group group;
	int64_t memory[512], plan_shape[2];
	kvc_plan plan;
	int32_t table[ROWS * COLUMNS], tokens[ROWS * COLUMNS];
	int64_t scratch[2 * SLOTS], scratch_shape[2];
	int64_t rows[RING_ROWS * 16], consumed;
	kvc_counters counters;
	kvc_ring ring;
};

static void world_init(struct world *w)
{
	memset(w, 0, sizeof(*w));
	w->group = (kvc_group)KVC_GROUP_INIT;
	w->group.records = w->records, w->group.record_count = SLOTS;
	w->group.coverage = KVC_COVERAGE_NONE;
	w->plan_shape[0] = ROWS, w->plan_shape[1] = COLUMNS;
	w->scratch_shape[0] = 2, w->scratch_shape[1] = SLOTS;
	w->ring = (kvc_ring)KVC_RING_INIT;
	w->ring.rows = w->rows, w->ring.capacity = RING_ROWS;
	w->ring.consumed = &w->consumed, w->ring.counters = &w->counters;
	expect_ok(kvc_plan_bind(&w->plan, w->memory, w->group.device, 64, ROWS));
}

static void set_row(struct world *w, int row, const int32_t *slots, int count)
{
	memcpy(w->table + row * COLUMNS, slots, (size_t)count * sizeof(*slots));
}

/* One request of a step. */
struct request {
	int64_t row, prefix, extend, window, start, chain_in, valid;
};

/* Plan one request; its expected tokens are those of w->tokens up to 'valid'. */
static void plan_one(struct world *w, struct request *r)
{
	static int64_t one = 1;
	kvc_tensor row = kvc_tensor_make(&r->row, KVC_INT64, 1, &one);
	kvc_tensor prefix = kvc_tensor_make(&r->prefix, KVC_INT64, 1, &one);
	kvc_tensor extend = kvc_tensor_make(&r->extend, KVC_INT64, 1, &one);
	kvc_tensor start = kvc_tensor_make(&r->start, KVC_INT64, 1, &one);
	kvc_tensor valid = kvc_tensor_make(&r->valid, KVC_INT64, 1, &one);
	kvc_tensor table = kvc_tensor_make(w->table, KVC_INT32, 2, w->plan_shape);
	kvc_tensor tokens = kvc_tensor_make(w->tokens, KVC_INT32, 2, w->plan_shape);
	kvc_requests requests = KVC_REQUESTS_INIT;
	kvc_plan_args args = KVC_PLAN_ARGS_INIT;

	requests.req_pool_indices = &row, requests.prefix_lens = &prefix;
	requests.extend_seq_lens = &extend, requests.start = &start;
	args.requests = &requests, args.req_to_token = &table, args.window = r->window;
	args.expected_tokens = &tokens, args.valid_lens = &valid;
	expect_ok(kvc_canary_plan(&w->plan, &args, NULL));
}

/* Stamp 'count' tokens of a request, positions from 'prefix' on, at the slots of its row. */
static kvc_status write_slots(
        struct world *w, struct request r, const int64_t *tokens, int64_t count, int64_t slot_count)
{
	int64_t positions[COLUMNS], slots[COLUMNS];
	kvc_write_args args = KVC_WRITE_ARGS_INIT;

	for (int64_t i = 0; i < count; i++) {
		positions[i] = r.prefix + i;
		slots[i] = w->table[r.row * COLUMNS + r.prefix + i];
	}
	r.extend = count;
	plan_one(w, &r);
	kvc_tensor token_tensor = kvc_tensor_make((void *)(uintptr_t)tokens, KVC_INT64, 1, &count);
	kvc_tensor position_tensor = kvc_tensor_make(positions, KVC_INT64, 1, &count);
	kvc_tensor slot_tensor = kvc_tensor_make(slots, KVC_INT64, 1, &slot_count);
	args.group = &w->group, args.plan = &w->plan, args.ring = &w->ring;
	args.tokens = &token_tensor, args.positions = &position_tensor, args.slots = &slot_tensor;
	return kvc_canary_write(&args, NULL);
}

static void stamp(struct world *w, struct request r, const int64_t *tokens, int64_t count)
{
	expect_ok(write_slots(w, r, tokens, count, count));
}

/* Verify a request; reasons_out has the reasons at each position, 0 where there is none. */
static void verify(struct world *w, struct request r, int64_t *reasons_out)
{
	static int64_t one = 1;
	kvc_tensor prefix = kvc_tensor_make(&r.prefix, KVC_INT64, 1, &one);
	kvc_tensor row = kvc_tensor_make(&r.row, KVC_INT64, 1, &one);
	kvc_tensor chain_in = kvc_tensor_make(&r.chain_in, KVC_INT64, 1, &one);
	kvc_requests requests = KVC_REQUESTS_INIT;
	kvc_verify_args args = KVC_VERIFY_ARGS_INIT;
	kvc_violation found[RING_ROWS];
	int64_t count;

	plan_one(w, &r);
	requests.req_pool_indices = &row, requests.prefix_lens = &prefix;
	requests.extend_seq_lens = &chain_in; /* not read */
	requests.verify_chain_in = &chain_in;
	args.group = &w->group, args.plan = &w->plan, args.requests = &requests;
	args.ring = &w->ring;
	expect_ok(kvc_canary_verify(&args, NULL));
	memset(reasons_out, 0, COLUMNS * sizeof(*reasons_out));
	expect_ok(kvc_ring_poll(&w->ring, found, RING_ROWS, &count, NULL));
	for (int64_t i = 0; i < count; i++)
		reasons_out[found[i].expected_position] |= found[i].reasons;
}

static void assert_reasons(const int64_t *got, const int64_t *want, int count)
{
	for (int i = 0; i < count; i++)
		assert_int_equal(got[i], want[i]);
}

#define REASONS(got, ...)                                                                          \
	assert_reasons((got), (const int64_t[]){ __VA_ARGS__ },                                    \
	        sizeof((const int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t))

static const int64_t abc[8] = { 11, 12, 13, 14, 15, 16, 17, 18 };

/* What a request that claims all of its rows' slots twice looks like to check_plan. */
static void b53_one_page_with_two_owners(void **state)
{
	static struct world w;
	int64_t a[] = { 1, 2, 3 }, b[] = { 1, 9 }, got[COLUMNS];
	int64_t rows[2] = { 1, 2 }, prefixes[2] = { 3, 2 }, none[2] = { 0 }, two = 2;

	(void)state;
	world_init(&w);
	set_row(&w, 1, (int32_t[]){ 4, 5, 6 }, 3);
	set_row(&w, 2, (int32_t[]){ 10, 5 }, 2);
	memcpy(w.tokens + COLUMNS, (int32_t[]){ 1, 2, 3 }, 3 * sizeof(int32_t));
	memcpy(w.tokens + 2 * COLUMNS, (int32_t[]){ 1, 9 }, 2 * sizeof(int32_t));
	stamp(&w, (struct request){ .row = 1 }, a, 3);
	stamp(&w, (struct request){ .row = 2 }, b, 2);
	verify(&w, (struct request){ .row = 1, .prefix = 3, .valid = 3 }, got);
	REASONS(got, 0, TOKEN, CHAIN);
	verify(&w, (struct request){ .row = 2, .prefix = 2, .valid = 2 }, got);
	REASONS(got, 0, 0); /* the victim is flagged, not the culprit */

	kvc_tensor row_tensor = kvc_tensor_make(rows, KVC_INT64, 1, &two);
	kvc_tensor prefix_tensor = kvc_tensor_make(prefixes, KVC_INT64, 1, &two);
	kvc_tensor extend_tensor = kvc_tensor_make(none, KVC_INT64, 1, &two);
	kvc_tensor table = kvc_tensor_make(w.table, KVC_INT32, 2, w.plan_shape);
	kvc_tensor tokens = kvc_tensor_make(w.tokens, KVC_INT32, 2, w.plan_shape);
	kvc_tensor scratch = kvc_tensor_make(w.scratch, KVC_INT64, 2, w.scratch_shape);
	kvc_requests requests = KVC_REQUESTS_INIT;
	kvc_plan_args args = KVC_PLAN_ARGS_INIT;
	requests.req_pool_indices = &row_tensor, requests.prefix_lens = &prefix_tensor;
	requests.extend_seq_lens = &extend_tensor;
	args.requests = &requests, args.req_to_token = &table;
	args.expected_tokens = &tokens, args.valid_lens = &prefix_tensor;
	expect_ok(kvc_canary_plan(&w.plan, &args, NULL));
	expect_error(kvc_canary_check_plan(&w.plan, &w.group, NULL, &scratch, NULL, NULL),
	        KVC_E_SLOT_DUPLICATE, "check-plan-slot-claimed-twice", NULL, 4);
	w.tokens[2 * COLUMNS + 1] = 2; /* the same tokens: a page that both may read */
	expect_ok(kvc_canary_plan(&w.plan, &args, NULL));
	expect_ok(kvc_canary_check_plan(&w.plan, &w.group, NULL, &scratch, NULL, NULL));
}

static void b54_reuse_through_a_stale_mapping_shows_at_the_live_owner(void **state)
{
	static struct world w;
	int64_t got[COLUMNS];

	(void)state;
	world_init(&w);
	set_row(&w, 1, (int32_t[]){ 2, 3, 5, 6 }, 4); /* window slots; 3 is full slot 20's */
	stamp(&w, (struct request){ .row = 1 }, abc, 4);
	set_row(&w, 2, (int32_t[]){ 8, 9, 3 }, 3); /* 3 was freed through full slot 9 */
	stamp(&w, (struct request){ .row = 2 }, (int64_t[]){ 71, 72, 73 }, 3);
	verify(&w, (struct request){ .row = 1, .prefix = 4 }, got);
	REASONS(got, 0, CHAIN | POS, CHAIN, 0);
}

static void b76_a_map_of_a_part_has_the_length_of_the_part(void **state)
{
	static struct world w;
	int64_t got[COLUMNS];

	(void)state;
	world_init(&w);
	set_row(&w, 1, (int32_t[]){ 4, 5, 6, 7, 12, 13, 14, 15 }, 8);
	expect_error(write_slots(&w, (struct request){ .row = 1 }, abc, 8, 4), KVC_E_LENGTH,
	        "canary-tensor-length", NULL, -1);
	for (int i = 0; i < SLOTS; i++)
		assert_int_equal(w.records[i].token, 0);

	/* The part from token 4 on, every token two places late. */
	stamp(&w, (struct request){ .row = 1 }, abc, 4);
	set_row(&w, 1, (int32_t[]){ 4, 5, 6, 7, 14, 15, 20, 21 }, 8);
	stamp(&w, (struct request){ .row = 1, .prefix = 4 }, abc + 4, 4);
	set_row(&w, 1, (int32_t[]){ 4, 5, 6, 7, 12, 13, 14, 15 }, 8);
	verify(&w, (struct request){ .row = 1, .prefix = 8 }, got);
	REASONS(got, 0, 0, 0, 0, NEVER, NEVER, CHAIN | POS, POS);
}

static void b84_a_ring_of_the_window_stays_clean(void **state)
{
	static struct world w;
	int64_t got[COLUMNS], length = 0;
	const int64_t appended[] = { 3, 1, 1, 3, 4, 2 }; /* several tokens at once as well */

	(void)state;
	world_init(&w);
	for (int32_t p = 0; p < COLUMNS; p++)
		w.table[COLUMNS + p] = 4 + p % 4;
	for (size_t step = 0; step < sizeof(appended) / sizeof(appended[0]); step++) {
		int64_t tokens[4];
		for (int64_t i = 0; i < 4; i++)
			tokens[i] = 100 + length + i;
		stamp(&w, (struct request){ .row = 1, .prefix = length }, tokens, appended[step]);
		length += appended[step];
		verify(&w, (struct request){ .row = 1, .prefix = length, .window = 4 }, got);
		assert_int_equal(*w.plan.verify_num_valid, length < 4 ? length : 4);
		for (int p = 0; p < COLUMNS; p++)
			assert_int_equal(got[p], 0);
	}
	verify(&w, (struct request){ .row = 1, .prefix = length }, got);
	assert_int_not_equal(got[length - 5], 0); /* without the window: overwritten long ago */
}

static void b86_slots_inside_the_window_count_and_others_do_not(void **state)
{
	static struct world w;
	int64_t got[COLUMNS];
	const int64_t stolen[] = { 0, 3 };

	(void)state;
	for (int i = 0; i < 2; i++) {
		world_init(&w);
		set_row(&w, 1, (int32_t[]){ 4, 5, 6, 7, 8, 9 }, 6);
		stamp(&w, (struct request){ .row = 1 }, abc, 6);
		set_row(&w, 2, (int32_t[]){ 20, 4 + (int32_t)stolen[i] }, 2);
		stamp(&w, (struct request){ .row = 2 }, (int64_t[]){ 71, 72 }, 2);
		verify(&w, (struct request){ .row = 1, .prefix = 6, .window = 4 }, got);
		assert_int_equal(*w.plan.verify_num_valid, 4);
		if (stolen[i] == 3)
			REASONS(got, 0, 0, 0, CHAIN | POS, CHAIN, 0);
		else
			REASONS(got, 0, 0, 0, 0, 0, 0);
	}
}

static void b87_start_leaves_out_what_the_window_group_never_had(void **state)
{
	static struct world w;
	int64_t got[COLUMNS];
	struct request published = { .row = 1, .prefix = 8 };
	uint64_t before_4 = kvc_chain_extend(kvc_chain_start(0), abc, 0, 4);

	(void)state;
	world_init(&w);
	set_row(&w, 1, (int32_t[]){ 4, 5, 6, 7, 12, 13, 14, 15 }, 8);
	stamp(&w, (struct request){ .row = 1 }, abc, 8);
	memset(w.records + 4, 0, 4 * sizeof(*w.records)); /* evicted from the window group */
	verify(&w, published, got);
	REASONS(got, NEVER, NEVER, NEVER, NEVER, CHAIN, 0, 0, 0);
	published.start = 4;
	published.chain_in = (int64_t)before_4;
	verify(&w, published, got);
	REASONS(got, 0, 0, 0, 0, 0, 0, 0, 0);
	assert_int_equal(w.counters.chain_unchecked, 0);
	published.chain_in++; /* another prefix */
	verify(&w, published, got);
	REASONS(got, 0, 0, 0, 0, CHAIN, 0, 0, 0);
	published.chain_in = 0; /* not given: not compared, and counted as such */
	verify(&w, published, got);
	REASONS(got, 0, 0, 0, 0, 0, 0, 0, 0);
	assert_int_equal(w.counters.chain_unchecked, 1);
}

static void b90_tokens_from_another_source_show_what_the_ring_swapped(void **state)
{
	static struct world w;
	int64_t got[COLUMNS];

	(void)state;
	world_init(&w);
	set_row(&w, 1, (int32_t[]){ 4, 5, 6 }, 3);
	stamp(&w, (struct request){ .row = 1 }, (int64_t[]){ 11, 99, 13 }, 3);
	memcpy(w.tokens + COLUMNS, (int32_t[]){ 11, 12, 13 }, 3 * sizeof(int32_t));
	verify(&w, (struct request){ .row = 1, .prefix = 3, .valid = 3 }, got);
	REASONS(got, 0, TOKEN, 0);
	w.tokens[COLUMNS + 1] = 99; /* from the same ring: agrees with the fault */
	verify(&w, (struct request){ .row = 1, .prefix = 3, .valid = 3 }, got);
	REASONS(got, 0, 0, 0);
}

static void b91_stored_placeholders_are_found_and_expected_ones_not_compared(void **state)
{
	static struct world w;
	int64_t got[COLUMNS];

	(void)state;
	world_init(&w);
	set_row(&w, 1, (int32_t[]){ 4, 5, 6 }, 3);
	stamp(&w, (struct request){ .row = 1 }, (int64_t[]){ 101, -1, -1 }, 3);
	memcpy(w.tokens + COLUMNS, (int32_t[]){ 101, -1, 103 }, 3 * sizeof(int32_t));
	verify(&w, (struct request){ .row = 1, .prefix = 3, .valid = 3 }, got);
	REASONS(got, 0, 0, TOKEN);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(b53_one_page_with_two_owners),
		cmocka_unit_test(b54_reuse_through_a_stale_mapping_shows_at_the_live_owner),
		cmocka_unit_test(b76_a_map_of_a_part_has_the_length_of_the_part),
		cmocka_unit_test(b84_a_ring_of_the_window_stays_clean),
		cmocka_unit_test(b86_slots_inside_the_window_count_and_others_do_not),
		cmocka_unit_test(b87_start_leaves_out_what_the_window_group_never_had),
		cmocka_unit_test(b90_tokens_from_another_source_show_what_the_ring_swapped),
		cmocka_unit_test(b91_stored_placeholders_are_found_and_expected_ones_not_compared),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
