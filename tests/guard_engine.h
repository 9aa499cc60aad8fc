/*
 * A tiny engine that holds a guard: a request table, pools of two layers (and, where asked for, a
 * window pool with one), and steps whose K and V depend on token, position and layer alone. Tests
 * say which requests a step has; faults are made by changing the engine's memory between calls.
 */
#ifndef GUARD_ENGINE_H
#define GUARD_ENGINE_H

#include <stdlib.h>
#include <string.h>

#include "expect.h"

enum {
	ENGINE_ROWS = 24,
	ENGINE_COLUMNS = 64,
	ENGINE_SLOTS = 256,
	ENGINE_HEADS = 2,
	ENGINE_DIM = 8,
	ENGINE_LAYERS = 3, /* the last one is the window pool's */
	ENGINE_BATCH = 24,
	ENGINE_TOKENS = 256,
	ENGINE_FINDINGS = 64
};

/* What an engine is made with. */
struct engine_options {
	int stamping;
	int coverage;
	int64_t budget;
	int no_checks;
	int check_finite;
	int expected; /* give expected tokens */
	int k_only;
	int64_t window; /* > 0: a second group with a mapping */
	int64_t page_size;
	int64_t reserved_slot;
	int64_t ring_capacity;
};

static inline struct engine_options engine_defaults(void)
{
	struct engine_options options = { .stamping = KVC_STAMP_CLEAR,
		.coverage = KVC_COVERAGE_ALL,
		.budget = 4096,
		.expected = 1,
		.page_size = 1,
		.reserved_slot = 0,
		.ring_capacity = 256 };
	return options;
}

struct engine {
	struct engine_options options;
	kvc_guard *guard;
	int32_t full; /* group numbers; window is -1 without one */
	int32_t window;
	kvc_rope rope;
	float k[ENGINE_LAYERS][ENGINE_SLOTS][ENGINE_HEADS][ENGINE_DIM];
	float v[ENGINE_LAYERS][ENGINE_SLOTS][ENGINE_HEADS][ENGINE_DIM];
	int32_t table[ENGINE_ROWS][ENGINE_COLUMNS];
	int32_t history[ENGINE_ROWS][ENGINE_COLUMNS]; /* the tokens that each row holds */
	int64_t mapping[ENGINE_SLOTS];

	/* The step that is being made. */
	int64_t step;
	int64_t request_count;
	int64_t token_count;
	int64_t rows[ENGINE_BATCH], prefix[ENGINE_BATCH], extend[ENGINE_BATCH];
	int64_t ids[ENGINE_BATCH], namespaces[ENGINE_BATCH], valid_lens[ENGINE_BATCH];
	int64_t valid_prefix[ENGINE_BATCH];
	int64_t tokens[ENGINE_TOKENS], positions[ENGINE_TOKENS], slots[ENGINE_TOKENS];
	int64_t input_tokens[ENGINE_TOKENS], input_positions[ENGINE_TOKENS];
	int give_input;     /* pass expected_input_* */
	int64_t skip_layer; /* the forward pass leaves this layer out; -1 = none */
	int64_t skip_token; /* and this token's rows */

	/* What poll gave last. */
	int64_t finding_count;
	kvc_finding findings[ENGINE_FINDINGS];

	int64_t table_shape[2], pool_shape[3], mapping_shape[1];
	kvc_tensor t_table, t_history, t_valid, t_rows, t_prefix, t_extend, t_ids, t_namespaces;
	kvc_tensor t_tokens, t_positions, t_slots, t_input_tokens, t_input_positions,
	        t_valid_prefix;
	kvc_requests requests;
	kvc_guard_step args;
};

/* Slots of the window pool: the full slot's number, moved, so that mixing them up shows. */
static inline int64_t engine_window_slot(int64_t slot)
{
	return slot <= 0 ? slot : 1 + (slot * 7 + 3) % (ENGINE_SLOTS - 1);
}

static inline int32_t engine_token(int64_t seed, int64_t position)
{
	return (int32_t)((seed * 1009 + position * 31 + 7) % 30011);
}

/* ---- making one ---- */

static inline void engine_sources(
        struct engine *engine, kvc_source *sources, int first_layer, int past_layer)
{
	for (int layer = first_layer; layer < past_layer; layer++) {
		kvc_source *k = &sources[2 * (layer - first_layer)], *v = k + 1;
		kvc_tensor pool =
		        kvc_tensor_make(engine->k[layer], KVC_FLOAT32, 3, engine->pool_shape);
		expect_ok(kvc_source_from_pool(k, &pool, 2 * (uint64_t)layer));
		pool.data = engine->v[layer];
		expect_ok(kvc_source_from_pool(v, &pool, 2 * (uint64_t)layer + 1));
		for (kvc_source *s = k; s <= v && engine->options.page_size > 1; s++) {
			s->page_size = engine->options.page_size;
			s->slot_stride_bytes = s->row_stride_bytes;
			s->row_stride_bytes *= s->page_size;
			s->row_count /= s->page_size;
		}
	}
}

static inline void engine_attach(struct engine *engine)
{
	kvc_source sources[2 * ENGINE_LAYERS];
	kvc_guard_group group = KVC_GUARD_GROUP_INIT;
	kvc_tensor mapping = kvc_tensor_make(engine->mapping, KVC_INT64, 1, engine->mapping_shape);

	engine_sources(engine, sources, 0, ENGINE_LAYERS - 1);
	if (engine->options.k_only)
		for (int i = 0; i < ENGINE_LAYERS - 1; i++)
			sources[i] = sources[2 * i];
	group.slot_count = ENGINE_SLOTS;
	group.sources = sources;
	group.source_count = (engine->options.k_only ? 1 : 2) * (ENGINE_LAYERS - 1);
	group.stamping = engine->options.stamping;
	group.coverage = engine->options.coverage;
	group.reserved_slot = engine->options.reserved_slot;
	expect_ok(kvc_guard_attach_group(engine->guard, &group, &engine->full));
	engine->window = -1;
	if (engine->options.window == 0)
		return;
	engine_sources(engine, sources, ENGINE_LAYERS - 1, ENGINE_LAYERS);
	group.name = "window";
	group.source_count = engine->options.k_only ? 1 : 2;
	group.window = engine->options.window;
	group.mapping = &mapping;
	expect_ok(kvc_guard_attach_group(engine->guard, &group, &engine->window));
}

static inline kvc_tensor engine_vector(int64_t *data, int64_t *count)
{
	return kvc_tensor_make(data, KVC_INT64, 1, count);
}

static inline void engine_tensors(struct engine *e)
{
	e->t_table = kvc_tensor_make(e->table, KVC_INT32, 2, e->table_shape);
	e->t_history = kvc_tensor_make(e->history, KVC_INT32, 2, e->table_shape);
	e->t_rows = engine_vector(e->rows, &e->request_count);
	e->t_prefix = engine_vector(e->prefix, &e->request_count);
	e->t_extend = engine_vector(e->extend, &e->request_count);
	e->t_ids = engine_vector(e->ids, &e->request_count);
	e->t_namespaces = engine_vector(e->namespaces, &e->request_count);
	e->t_valid = engine_vector(e->valid_lens, &e->request_count);
	e->t_valid_prefix = engine_vector(e->valid_prefix, &e->request_count);
	e->t_tokens = engine_vector(e->tokens, &e->token_count);
	e->t_positions = engine_vector(e->positions, &e->token_count);
	e->t_slots = engine_vector(e->slots, &e->token_count);
	e->t_input_tokens = engine_vector(e->input_tokens, &e->token_count);
	e->t_input_positions = engine_vector(e->input_positions, &e->token_count);
	kvc_requests requests = KVC_REQUESTS_INIT;
	requests.req_pool_indices = &e->t_rows;
	requests.prefix_lens = &e->t_prefix;
	requests.extend_seq_lens = &e->t_extend;
	requests.owner_request = &e->t_ids;
	requests.namespaces = &e->t_namespaces;
	e->requests = requests;
	kvc_guard_step args = KVC_GUARD_STEP_INIT;
	args.requests = &e->requests;
	args.req_to_token = &e->t_table;
	args.tokens = &e->t_tokens;
	args.positions = &e->t_positions;
	args.slots = &e->t_slots;
	args.valid_prefix = &e->t_valid_prefix;
	e->args = args;
}

static inline struct engine *engine_open(struct engine_options options)
{
	struct engine *e = calloc(1, sizeof(*e));
	kvc_guard_options guard = KVC_GUARD_OPTIONS_INIT;
	kvc_rope_options rope = KVC_ROPE_OPTIONS_INIT;

	assert_non_null(e);
	e->options = options;
	e->skip_layer = -1;
	e->skip_token = -1;
	e->table_shape[0] = ENGINE_ROWS, e->table_shape[1] = ENGINE_COLUMNS;
	e->pool_shape[0] = ENGINE_SLOTS, e->pool_shape[1] = ENGINE_HEADS;
	e->pool_shape[2] = ENGINE_DIM;
	e->mapping_shape[0] = ENGINE_SLOTS;
	memset(e->table, 0xFF, sizeof(e->table));
	for (int64_t slot = 0; slot < ENGINE_SLOTS; slot++)
		e->mapping[slot] = engine_window_slot(slot);
	rope.rotary_dim = ENGINE_DIM;
	expect_ok(kvc_rope_init(&e->rope, &rope));
	guard.request_rows = ENGINE_ROWS;
	guard.verify_budget = options.budget;
	guard.checks = !options.no_checks;
	guard.check_finite = options.check_finite;
	guard.ring_capacity = options.ring_capacity;
	expect_ok(kvc_guard_create(&e->guard, &guard));
	engine_attach(e);
	engine_tensors(e);
	return e;
}

static inline void engine_close(struct engine *e)
{
	kvc_guard_destroy(e->guard);
	free(e);
}

/* ---- a step ---- */

/* Row 'row' holds positions first .. past-1 at slots slot, slot + 1, ... */
static inline void engine_place(
        struct engine *e, int64_t row, int64_t first, int64_t past, int64_t slot)
{
	for (int64_t p = first; p < past; p++)
		e->table[row][p] = (int32_t)(slot + p - first);
}

/* The tokens that the row should hold, all of its columns. */
static inline void engine_tokens(struct engine *e, int64_t row, int64_t seed)
{
	for (int64_t p = 0; p < ENGINE_COLUMNS; p++)
		e->history[row][p] = engine_token(seed, p);
}

/* One more request of the next step. Its input comes from the row's history and table. */
static inline void engine_add(
        struct engine *e, int64_t row, int64_t id, int64_t prefix, int64_t extend)
{
	int64_t r = e->request_count++;

	e->rows[r] = row;
	e->ids[r] = id;
	e->prefix[r] = prefix;
	e->extend[r] = extend;
	e->namespaces[r] = 0;
	e->valid_lens[r] = prefix + extend;
	for (int64_t p = prefix; row != 0 && p < prefix + extend; p++) {
		int64_t i = e->token_count++;
		e->tokens[i] = e->input_tokens[i] = e->history[row][p];
		e->positions[i] = e->input_positions[i] = p;
		e->slots[i] = e->table[row][p];
	}
}

static inline kvc_status engine_begin(struct engine *e)
{
	e->args.step = e->step;
	e->args.expected_tokens = e->options.expected ? &e->t_history : NULL;
	e->args.valid_lens = e->options.expected ? &e->t_valid : NULL;
	e->args.expected_input_tokens = e->give_input ? &e->t_input_tokens : NULL;
	e->args.expected_input_positions = e->give_input ? &e->t_input_positions : NULL;
	return kvc_guard_step_begin(e->guard, &e->args, NULL);
}

/* K or V of a token in a layer, before rotation. */
static inline float engine_value(int64_t token, int64_t position, int64_t layer, int64_t i)
{
	return (float)((token * 13 + position * 7 + layer * 5 + i * 3) % 251) / 16.0f - 7.0f;
}

/* Write one layer of the step's tokens, each at its slot in the layer's pool. */
static inline void engine_layer(struct engine *e, int64_t layer)
{
	static float rows[2][ENGINE_TOKENS][ENGINE_HEADS][ENGINE_DIM];
	int is_window = layer == ENGINE_LAYERS - 1;
	int64_t slots[ENGINE_TOKENS];
	int64_t shape[3] = { e->token_count, ENGINE_HEADS, ENGINE_DIM };
	kvc_rope_pool_args args = KVC_ROPE_POOL_ARGS_INIT;
	kvc_stamp stamp = KVC_STAMP_INIT;

	for (int64_t t = 0; t < e->token_count; t++) {
		slots[t] = is_window && e->slots[t] >= 0 ? e->mapping[e->slots[t]] : e->slots[t];
		if (t == e->skip_token)
			slots[t] = -1;
		for (int64_t i = 0; i < ENGINE_HEADS * ENGINE_DIM; i++) {
			int64_t head = i / ENGINE_DIM, dim = i % ENGINE_DIM;
			rows[0][t][head][dim] =
			        engine_value(e->tokens[t], e->positions[t], layer, i);
			rows[1][t][head][dim] =
			        engine_value(e->tokens[t], e->positions[t], layer + 50, i);
		}
	}
	kvc_tensor k = kvc_tensor_make(rows[0], KVC_FLOAT32, 3, shape);
	kvc_tensor v = kvc_tensor_make(rows[1], KVC_FLOAT32, 3, shape);
	kvc_tensor k_pool = kvc_tensor_make(e->k[layer], KVC_FLOAT32, 3, e->pool_shape);
	kvc_tensor v_pool = kvc_tensor_make(e->v[layer], KVC_FLOAT32, 3, e->pool_shape);
	kvc_tensor t_slots = engine_vector(slots, &e->token_count);
	args.q = &k, args.k = &k, args.v = e->options.k_only ? NULL : &v;
	args.k_pool = &k_pool, args.v_pool = e->options.k_only ? NULL : &v_pool;
	args.positions = &e->t_positions, args.slots = &t_slots, args.rope = &e->rope;
	args.reserved_slot = e->options.reserved_slot;
	if (e->options.stamping == KVC_STAMP_CLEAR) {
		uint64_t k_id = 2 * (uint64_t)layer;
		expect_ok(kvc_guard_stamp(&stamp, e->guard, is_window ? e->window : e->full, k_id,
		        e->options.k_only ? k_id : k_id + 1));
		args.stamp = &stamp;
	}
	expect_ok(kvc_rope_pool_fused(&args, NULL));
}

static inline void engine_forward(struct engine *e)
{
	for (int64_t layer = 0; layer < ENGINE_LAYERS - (e->window < 0); layer++)
		if (layer != e->skip_layer)
			engine_layer(e, layer);
}

static inline void engine_end(struct engine *e)
{
	expect_ok(kvc_guard_step_end(e->guard, NULL));
	e->step++;
	e->request_count = 0;
	e->token_count = 0;
	e->skip_layer = -1;
	e->skip_token = -1;
}

static inline void engine_poll(struct engine *e)
{
	expect_ok(kvc_guard_poll(e->guard, e->findings, ENGINE_FINDINGS, &e->finding_count, NULL));
}

/* The whole step of the requests added so far; its findings are polled. */
static inline void engine_step(struct engine *e)
{
	expect_ok(engine_begin(e));
	engine_forward(e);
	engine_end(e);
	engine_poll(e);
}

/* ---- what came ---- */

static inline void engine_print(const struct engine *e)
{
	char text[4096];

	for (int64_t i = 0; i < e->finding_count; i++) {
		kvc_finding_text(text, sizeof(text), &e->findings[i]);
		print_error("%s\n", text);
	}
}

static inline void engine_expect_clean_at(const struct engine *e, const char *file, int line)
{
	if (e->finding_count != 0)
		engine_print(e);
	_assert_int_equal((unsigned long)e->finding_count, 0, file, line);
}

#define engine_expect_clean(e) engine_expect_clean_at((e), __FILE__, __LINE__)

/* A finding as a test states it. culprit -1 = none. */
struct engine_expected {
	int64_t slot;
	int64_t reasons;
	int64_t victim;
	int64_t position;
	int64_t culprit;
	int32_t cause;
};

static inline void engine_expect_at(const struct engine *e, int64_t i,
        struct engine_expected expected, const char *file, int line)
{
	const kvc_finding *f = &e->findings[i];
	int same = i < e->finding_count && f->violation.slot == expected.slot &&
	           f->violation.reasons == expected.reasons &&
	           f->victim_request == expected.victim &&
	           f->victim_position == expected.position &&
	           f->culprit_request == expected.culprit && f->cause == expected.cause;

	if (!same) {
		print_error("finding %d of %d; expected slot %d reasons %d victim %d position %d "
		            "culprit %d cause %s; have reasons %d victim %d culprit %d\n",
		        (int)i, (int)e->finding_count, (int)expected.slot, (int)expected.reasons,
		        (int)expected.victim, (int)expected.position, (int)expected.culprit,
		        kvc_cause_name(expected.cause), (int)f->violation.reasons,
		        (int)f->victim_request, (int)f->culprit_request);
		engine_print(e);
	}
	_assert_true((unsigned long)same, "the finding is as expected", file, line);
}

#define engine_expect(e, i, ...)                                                                   \
	engine_expect_at((e), (i), (struct engine_expected){ __VA_ARGS__ }, __FILE__, __LINE__)

static inline kvc_guard_statistics engine_stats(const struct engine *e)
{
	kvc_guard_statistics statistics = { .struct_bytes = sizeof(statistics) };

	expect_ok(kvc_guard_stats(e->guard, &statistics));
	return statistics;
}

#endif
