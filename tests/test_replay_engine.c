/*
 * The embedded engine at work on invented requests: after every step its books must balance, so
 * that what a clean run shows is the guard's judgement of a sound engine.
 */
#include "replay/engine.h"
#include "replay/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define REQUESTS 40

static struct engine_config small_config(void)
{
	return (struct engine_config){ .request_count = REQUESTS,
		.block_tokens = 32,
		.abort_every = 7,
		.layers = 2,
		.query_heads = 1,
		.kv_heads = 1,
		.head_dim = 32,
		.dtype = KVC_BFLOAT16,
		.pool_dtype = KVC_BFLOAT16,
		.pool_slots = 768,
		.page_slots = 8,
		.chunk_tokens = 64,
		.batch_rows = 6,
		.move_interval = 3,
		.checks = true,
		.coverage = KVC_COVERAGE_ALL,
		.verify_budget = 64,
		.sweep_interval = 5,
		.fingerprint = KVC_FINGERPRINT_XXH3,
		.stamping = true,
		.expected_tokens = true,
		.finite = true,
		.release_check = true,
		.seed = 3 };
}

/* Conversations of growing length: request i continues request i - 8. */
static void fill_trace(struct trace *trace, struct replay_request requests[REQUESTS],
        int64_t hash_ids[REQUESTS][16])
{
	for (int64_t i = 0; i < REQUESTS; i++) {
		int64_t turn = i / 8, blocks = 2 + 2 * turn;
		for (int64_t b = 0; b < blocks; b++)
			hash_ids[i][b] = b == 0 ? 0 : (i % 8) * 100 + b;
		requests[i] = (struct replay_request){ .timestamp_ms = 100 * i,
			.input_length = (blocks - 1) * TRACE_BLOCK_TOKENS + 160 + 16 * (i % 5),
			.output_length = 1500 + 500 * (i % 3),
			.hash_count = blocks,
			.hash_ids = hash_ids[i] };
	}
	*trace = (struct trace){ .requests = requests, .count = REQUESTS, .format = "mooncake" };
}

/* ---- the books ---- */

/* Each page is held by as many requests and blocks as its count says, or lies in the free list. */
static void check_pages(const struct engine *engine)
{
	const struct allocator *allocator = &engine->allocator;
	int32_t *held = calloc((size_t)allocator->page_count, sizeof(*held));
	int32_t free_count = 0;

	assert_non_null(held);
	for (int32_t i = 0; i < engine->running_count; i++)
		for (int32_t p = 0; p < engine->running[i]->page_count; p++)
			held[engine->running[i]->pages[p]]++;
	for (int32_t n = 1; n < engine->tree.node_capacity; n++)
		for (int32_t p = 0; engine->tree.nodes[n].parent >= 0 && p < 4; p++)
			held[prefix_tree_pages(&engine->tree, n)[p]]++;
	assert_int_equal(held[0], 0);
	for (int32_t page = 1; page < allocator->page_count; page++) {
		assert_int_equal(held[page], allocator->refs[page]);
		free_count += held[page] == 0;
	}
	assert_int_equal(free_count, allocator->free_count);
	for (int32_t i = 0; i < allocator->free_count; i++)
		assert_int_equal(held[allocator->free_pages[i]], 0);
	free(held);
}

/* A request's row names its pages, and every K row in them is that of its token. */
static void check_sequence(const struct engine *engine, const struct sequence *sequence)
{
	const int32_t *row = engine->req_to_token + sequence->row * engine->columns;
	const int32_t *tokens = engine->token_table + sequence->row * engine->columns;
	uint16_t v[32];

	assert_in_range(sequence->row, 1, engine->config.batch_rows);
	for (int64_t p = 0; p < sequence->computed; p++) {
		int64_t slot = engine_slot(engine, sequence, p);
		int64_t token = engine_token(engine, sequence, p);
		assert_int_equal(row[p], slot);
		assert_int_equal(tokens[p], token);
		model_rows(v, KVC_BFLOAT16, MODEL_V, 1, &token, &p, 1, 1, 32);
		assert_memory_equal(engine_row(engine, engine->v_pools[1], slot), v, sizeof(v));
	}
}

static void check_batch(const struct engine *engine)
{
	const struct batch *batch = &engine->batch;

	assert_in_range(batch->token_count, 0, engine->config.chunk_tokens);
	assert_in_range(batch->count, 0, engine->config.batch_rows);
	for (int64_t r = 0; r < batch->count; r++)
		for (int64_t i = 0; i < batch->extend_lens[r]; i++)
			assert_int_equal(
			        batch->positions[batch->first[r] + i], batch->prefix_lens[r] + i);
	for (int64_t t = 0; t < batch->token_count; t++)
		for (int64_t other = 0; other < t; other++)
			assert_int_not_equal(batch->slots[t], batch->slots[other]);
}

static void balance(
        void *context, struct engine *engine, enum engine_point point, struct engine_event *event)
{
	int64_t *findings = context;

	(void)event;
	if (point == POINT_FINDING)
		++*findings;
	if (point != POINT_STEP_DONE)
		return;
	check_pages(engine);
	check_batch(engine);
	assert_in_range(engine->running_count, 0, engine->config.batch_rows);
	for (int32_t i = 0; i < engine->running_count; i++)
		check_sequence(engine, engine->running[i]);
}

/* Run to the end with the books checked; returns what was counted. */
static struct engine_counts run_checked(const struct engine_config *config)
{
	static int64_t hash_ids[REQUESTS][16];
	struct replay_request requests[REQUESTS];
	struct trace trace;
	struct engine engine;
	int64_t findings = 0, finished = 0;

	fill_trace(&trace, requests, hash_ids);
	assert_int_equal(engine_open(&engine, config, &trace), 0);
	engine_add_hook(&engine, balance, &findings);
	while (!engine_done(&engine)) {
		assert_true(engine_step(&engine));
		assert_in_range(engine.step, 0, 20000);
	}
	assert_int_equal(findings, 0);
	for (int64_t i = 0; i < REQUESTS; i++)
		finished += engine.sequences[i].state == SEQUENCE_FINISHED;
	assert_int_equal(finished, engine.counts.finished);
	assert_int_equal(finished + engine.counts.aborts, REQUESTS);
	assert_int_equal(engine.running_count, 0);
	struct engine_counts counts = engine.counts;
	engine_close(&engine);
	return counts;
}

static void books_balance_after_every_step(void **state)
{
	struct engine_config config = small_config();
	struct engine_counts counts = run_checked(&config);

	(void)state;
	/* All that makes an engine's life hard has happened. */
	assert_true(counts.evictions > 0);
	assert_true(counts.preemptions > 0);
	assert_true(counts.aborts > 0);
	assert_true(counts.multi_chunk_requests > 0);
	assert_true(counts.prefix_hit_tokens > 0);
	assert_true(counts.pages_moved > 0);
	assert_true(counts.sweeps > 0);
	assert_int_equal(counts.restarts, 0);
}

static void books_balance_with_arrivals_by_the_clock(void **state)
{
	struct engine_config config = small_config();

	(void)state;
	config.speed = 3;
	run_checked(&config);
}

static void books_balance_one_request_at_a_time(void **state)
{
	struct engine_config config = small_config();

	(void)state;
	config.batch_rows = 1;
	config.page_slots = 1;
	config.block_tokens = 4; /* the check of pages counts four a block */
	config.chunk_tokens = 5;
	run_checked(&config);
}

static void every_written_token_is_counted_once(void **state)
{
	struct engine_config config = small_config();
	struct engine_counts counts;
	static int64_t hash_ids[REQUESTS][16];
	struct replay_request requests[REQUESTS];
	struct trace trace;
	int64_t expected = 0;

	(void)state;
	/* Room for all, nobody hangs up: each request computes what it did not find. */
	config.abort_every = 0;
	config.pool_slots = 65536;
	counts = run_checked(&config);
	fill_trace(&trace, requests, hash_ids);
	for (int64_t i = 0; i < REQUESTS; i++)
		expected += engine_input_tokens(&config, requests[i].input_length) +
		            engine_output_tokens(&config, requests[i].output_length) - 1;
	assert_int_equal(counts.tokens_written + counts.prefix_hit_tokens, expected);
	assert_int_equal(counts.tokens_written, counts.prefill_tokens + counts.decode_tokens);
	assert_int_equal(counts.preemptions, 0);
}

static void scaled_lengths_keep_the_number_of_blocks(void **state)
{
	struct engine_config config = small_config();

	(void)state;
	for (int64_t tokens = 1; tokens < 5000; tokens++) {
		int64_t scaled = engine_input_tokens(&config, tokens);
		assert_int_equal((scaled + 31) / 32, (tokens + 511) / 512);
		assert_true(engine_output_tokens(&config, tokens) >= 1);
	}
	config.block_tokens = TRACE_BLOCK_TOKENS;
	assert_int_equal(engine_input_tokens(&config, 6758), 6758);
	assert_int_equal(engine_output_tokens(&config, 500), 500);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(books_balance_after_every_step),
		cmocka_unit_test(books_balance_with_arrivals_by_the_clock),
		cmocka_unit_test(books_balance_one_request_at_a_time),
		cmocka_unit_test(every_written_token_is_counted_once),
		cmocka_unit_test(scaled_lengths_keep_the_number_of_blocks),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
