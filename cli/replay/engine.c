/* Life of the engine and its step loop; engine.h says what each function promises. */
#include "replay/engine.h"
#include "cli.h"
#include "replay/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Virtual time that a step takes when arrivals follow the trace's clock. */
#define STEP_MS 25.0

double engine_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

bool engine_fail(struct engine *engine)
{
	if (!engine->failed)
		cli_fail_library();
	engine->failed = true;
	return false;
}

/* In double, since what was asked for need not fit 64 bits. */
static double pool_bytes(const struct engine_config *config)
{
	return 2.0 * (double)config->pool_slots * config->layers * (double)config->kv_heads *
	       (double)config->head_dim * (double)model_element_bytes(config->pool_dtype);
}

/* Linux promises memory that it does not have, and ends the process when it is used. */
static bool memory_suffices(const struct engine_config *config)
{
	double bytes = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);

	return bytes <= 0 || pool_bytes(config) < bytes;
}

int engine_fail_memory(const struct engine_config *config)
{
	char text[32];

	snprintf(text, sizeof(text), "%.0f", pool_bytes(config));
	return cli_fail("replay-no-memory", "bytes", text, NULL);
}

void engine_add_hook(struct engine *engine, engine_hook_fn call, void *context)
{
	engine->hooks[engine->hook_count++] = (struct engine_hook){ call, context };
}

void engine_point(struct engine *engine, enum engine_point point, struct engine_event *event)
{
	for (int32_t i = 0; i < engine->hook_count; i++)
		engine->hooks[i].call(engine->hooks[i].context, engine, point, event);
}

/* ---- what the trace says ---- */

int64_t engine_input_tokens(const struct engine_config *config, int64_t trace_tokens)
{
	/* Rounded up, so that a request has as many blocks as in the trace. */
	return (trace_tokens * config->block_tokens + TRACE_BLOCK_TOKENS - 1) / TRACE_BLOCK_TOKENS;
}

int64_t engine_output_tokens(const struct engine_config *config, int64_t trace_tokens)
{
	int64_t tokens = trace_tokens * config->block_tokens / TRACE_BLOCK_TOKENS;

	return tokens > 0 ? tokens : 1;
}

int64_t engine_hash_id(const struct engine *engine, const struct sequence *sequence, int64_t block)
{
	const struct replay_request *request = &engine->trace->requests[sequence->index];

	/* Without hash ids no two requests share a block. */
	return request->hash_count > 0 ? request->hash_ids[block]
	                               : (int64_t)1 << 62 | sequence->index << 24 | block;
}

int64_t engine_token(const struct engine *engine, const struct sequence *sequence, int64_t position)
{
	int64_t block = position / engine->config.block_tokens;

	if (position >= sequence->input_tokens)
		return model_sample(engine->config.seed, sequence->index, position);
	return model_block_token(
	        engine_hash_id(engine, sequence, block), position % engine->config.block_tokens);
}

int64_t engine_slot(const struct engine *engine, const struct sequence *sequence, int64_t position)
{
	int64_t page_slots = engine->config.page_slots;

	return sequence->pages[position / page_slots] * page_slots + position % page_slots;
}

void *engine_row(const struct engine *engine, void *pool, int64_t slot)
{
	return (unsigned char *)pool + slot * engine->row_bytes;
}

/* ---- opening and closing ---- */

/* Reads as an array of nothing when memory is short; 'ok' remembers that. */
static void *array(size_t count, size_t element_bytes, bool *ok)
{
	void *memory = calloc(count ? count : 1, element_bytes);

	*ok = *ok && memory;
	return memory;
}

static void open_sequences(struct engine *engine, bool *ok)
{
	const struct engine_config *config = &engine->config;

	engine->sequences = array((size_t)config->request_count, sizeof(*engine->sequences), ok);
	if (!engine->sequences)
		return;
	for (int64_t i = 0; i < config->request_count; i++) {
		const struct replay_request *request = &engine->trace->requests[i];
		struct sequence *sequence = &engine->sequences[i];
		uint64_t draw = model_mix(config->seed + 77 + (uint64_t)i * 2654435761u);
		sequence->index = sequence->id = i;
		sequence->input_tokens = engine_input_tokens(config, request->input_length);
		sequence->output_tokens = engine_output_tokens(config, request->output_length);
		int64_t length = sequence->input_tokens + sequence->output_tokens;
		sequence->abort_at = -1;
		if (config->abort_every > 0 && draw % (uint64_t)config->abort_every == 0)
			sequence->abort_at =
			        (int64_t)(draw / (uint64_t)config->abort_every % (uint64_t)length);
		if (length > engine->columns)
			engine->columns = length;
	}
}

static void open_batch(struct batch *batch, int64_t requests, int64_t tokens, bool *ok)
{
	int64_t **per_request[] = { &batch->rows, &batch->prefix_lens, &batch->extend_lens,
		&batch->owners, &batch->valid_lens, &batch->first };
	int64_t **per_token[] = { &batch->tokens, &batch->positions, &batch->slots,
		&batch->true_tokens, &batch->true_positions };

	batch->sequences = array((size_t)requests, sizeof(struct sequence *), ok);
	for (size_t i = 0; i < sizeof(per_request) / sizeof(per_request[0]); i++)
		*per_request[i] = array((size_t)requests, sizeof(int64_t), ok);
	for (size_t i = 0; i < sizeof(per_token) / sizeof(per_token[0]); i++)
		*per_token[i] = array((size_t)tokens, sizeof(int64_t), ok);
}

static void close_batch(struct batch *batch)
{
	free(batch->sequences);
	free(batch->rows);
	free(batch->prefix_lens);
	free(batch->extend_lens);
	free(batch->owners);
	free(batch->valid_lens);
	free(batch->first);
	free(batch->tokens);
	free(batch->positions);
	free(batch->slots);
	free(batch->true_tokens);
	free(batch->true_positions);
}

static void open_pools(struct engine *engine, bool *ok)
{
	const struct engine_config *config = &engine->config;

	engine->row_bytes =
	        config->kv_heads * config->head_dim * model_element_bytes(config->pool_dtype);
	for (int32_t layer = 0; layer < config->layers && *ok; layer++) {
		engine->k_pools[layer] =
		        array((size_t)config->pool_slots, (size_t)engine->row_bytes, ok);
		engine->v_pools[layer] =
		        array((size_t)config->pool_slots, (size_t)engine->row_bytes, ok);
	}
}

static void tree_page(void *context, int32_t page, int change)
{
	struct engine_event event = { .page = page };

	engine_point(context, change > 0 ? POINT_PAGE_SHARED : POINT_PAGE_DROPPED, &event);
}

static void open_tables(struct engine *engine, bool *ok)
{
	const struct engine_config *config = &engine->config;
	size_t rows = (size_t)config->batch_rows + 1;
	size_t tokens = (size_t)config->chunk_tokens;
	size_t row_elements = (size_t)(config->kv_heads * config->head_dim);
	size_t element_bytes = (size_t)model_element_bytes(config->dtype);

	engine->req_to_token = array(rows * (size_t)engine->columns, sizeof(int32_t), ok);
	engine->token_table = array(rows * (size_t)engine->columns, sizeof(int32_t), ok);
	engine->row_used = array(rows, sizeof(bool), ok);
	engine->running = array(rows, sizeof(struct sequence *), ok);
	engine->waiting = array((size_t)config->request_count, sizeof(int32_t), ok);
	engine->history = array((size_t)engine->columns, sizeof(int64_t), ok);
	engine->new_slots = array(tokens + 4 * (size_t)config->page_slots, sizeof(int64_t), ok);
	engine->named_pages = array((size_t)engine->allocator.page_count, 1, ok);
	engine->used_nodes = array((size_t)engine->tree.node_capacity, 1, ok);
	engine->k = array(tokens * row_elements, element_bytes, ok);
	engine->v = array(tokens * row_elements, element_bytes, ok);
	engine->q =
	        array(tokens * (size_t)(config->query_heads * config->head_dim), element_bytes, ok);
	open_batch(&engine->batch, (int64_t)rows, config->chunk_tokens, ok);
}

/* The longest request, with the page it writes ahead, must fit an empty pool. */
static int check_size(const struct engine *engine)
{
	const struct engine_config *config = &engine->config;
	int64_t pages = (engine->columns + config->page_slots - 1) / config->page_slots + 2;
	int64_t need = pages * config->page_slots;
	char slots[24], least[24];

	if (need <= config->pool_slots)
		return 0;
	snprintf(slots, sizeof(slots), "%lld", (long long)config->pool_slots);
	snprintf(least, sizeof(least), "%lld", (long long)need);
	return cli_fail("replay-pool-too-small", "slots", slots, "needed", least, NULL);
}

int engine_open(struct engine *out, const struct engine_config *config, const struct trace *trace)
{
	kvc_rope_options rope = KVC_ROPE_OPTIONS_INIT;
	int32_t page_count = (int32_t)(config->pool_slots / config->page_slots);
	bool ok = true;
	int code;

	*out = (struct engine){ .config = *config, .trace = trace };
	open_sequences(out, &ok);
	code = check_size(out);
	if (code)
		return code;
	ok = ok && memory_suffices(config);
	ok = ok && allocator_open(&out->allocator, page_count);
	ok = ok && prefix_tree_open(&out->tree, &out->allocator,
	                   (int32_t)(config->block_tokens / config->page_slots));
	out->tree.watch = tree_page;
	out->tree.watch_context = out;
	if (ok)
		open_pools(out, &ok);
	if (ok)
		open_tables(out, &ok);
	if (!ok)
		return engine_fail_memory(config);
	rope.rotary_dim = (int32_t)config->head_dim;
	if (kvc_rope_init(&out->rope, &rope) != KVC_OK || !canary_open(out))
		return out->failed ? CLI_CANNOT : cli_fail_library();
	return 0;
}

void engine_close(struct engine *engine)
{
	kvc_guard_destroy(engine->guard);
	for (int64_t i = 0; engine->sequences && i < engine->config.request_count; i++)
		free(engine->sequences[i].pages);
	for (int32_t layer = 0; layer < engine->config.layers; layer++) {
		free(engine->k_pools[layer]);
		free(engine->v_pools[layer]);
	}
	close_batch(&engine->batch);
	prefix_tree_close(&engine->tree);
	allocator_close(&engine->allocator);
	free(engine->sequences);
	free(engine->running);
	free(engine->waiting);
	free(engine->row_used);
	free(engine->req_to_token);
	free(engine->token_table);
	free(engine->history);
	free(engine->new_slots);
	free(engine->named_pages);
	free(engine->used_nodes);
	free(engine->q);
	free(engine->k);
	free(engine->v);
	*engine = (struct engine){ 0 };
}

bool engine_done(const struct engine *engine)
{
	return engine->done == engine->config.request_count;
}

/* ---- one step ---- */

/* Rotate and store one layer of the batch. */
static bool write_layer(struct engine *engine, struct layer_call *call)
{
	const struct engine_config *config = &engine->config;
	int64_t count[] = { engine->batch.token_count };
	int64_t q_shape[] = { count[0], config->query_heads, config->head_dim };
	int64_t k_shape[] = { count[0], config->kv_heads, config->head_dim };
	int64_t pool_shape[] = { config->pool_slots, config->kv_heads, config->head_dim };
	kvc_tensor q = kvc_tensor_make(engine->q, config->dtype, 3, q_shape);
	kvc_tensor k = kvc_tensor_make(call->k, config->dtype, 3, k_shape);
	kvc_tensor v = kvc_tensor_make(call->v, config->dtype, 3, k_shape);
	kvc_tensor positions = kvc_tensor_make(engine->batch.positions, KVC_INT64, 1, count);
	kvc_tensor slots = kvc_tensor_make(call->slots, KVC_INT64, 1, count);
	kvc_tensor k_pool =
	        kvc_tensor_make(engine->k_pools[call->layer], config->pool_dtype, 3, pool_shape);
	kvc_tensor v_pool =
	        kvc_tensor_make(engine->v_pools[call->layer], config->pool_dtype, 3, pool_shape);
	kvc_rope_pool_args args = KVC_ROPE_POOL_ARGS_INIT;

	args.q = args.q_out = &q;
	args.k = &k;
	args.v = &v;
	args.positions = &positions;
	args.slots = &slots;
	args.k_pool = &k_pool;
	args.v_pool = &v_pool;
	args.rope = &engine->rope;
	args.n_valid = call->n_valid;
	args.reserved_slot = ENGINE_RESERVED_SLOT;
	args.check_finite = call->check_finite;
	args.stamp = config->stamping ? &engine->stamps[call->layer] : NULL;
	return kvc_rope_pool_fused(&args, NULL) == KVC_OK || engine_fail(engine);
}

static bool run_layer(struct engine *engine, int32_t layer)
{
	const struct engine_config *config = &engine->config;
	const struct batch *batch = &engine->batch;
	struct layer_call call = { .layer = layer,
		.slots = batch->slots,
		.n_valid = -1,
		.check_finite = config->finite,
		.k = engine->k,
		.v = engine->v };
	struct engine_event event = { .call = &call };
	double begin = engine_now(), made;

	model_rows(engine->q, config->dtype, MODEL_Q, layer, batch->tokens, batch->positions,
	        batch->token_count, config->query_heads, config->head_dim);
	model_rows(engine->k, config->dtype, MODEL_K, layer, batch->tokens, batch->positions,
	        batch->token_count, config->kv_heads, config->head_dim);
	model_rows(engine->v, config->dtype, MODEL_V, layer, batch->tokens, batch->positions,
	        batch->token_count, config->kv_heads, config->head_dim);
	made = engine_now();
	engine->model_seconds += made - begin;
	engine_point(engine, POINT_LAYER, &event);
	if (!write_layer(engine, &call))
		return false;
	engine->rope_seconds += engine_now() - made;
	return true;
}

static bool run_batch(struct engine *engine)
{
	struct engine_event event = { 0 };

	engine_point(engine, POINT_BATCH, &event);
	if (!canary_step_begin(engine))
		return false;
	for (int32_t layer = 0; layer < engine->config.layers; layer++)
		if (!run_layer(engine, layer))
			return false;
	return canary_step_end(engine);
}

bool engine_step(struct engine *engine)
{
	const struct engine_config *config = &engine->config;
	struct engine_event event = { 0 };

	if (!scheduler_plan(engine))
		return false;
	if (engine->batch.count > 0 && !run_batch(engine))
		return false;
	if (config->sweep_interval > 0 && (engine->step + 1) % config->sweep_interval == 0 &&
	        !canary_sweep_idle(engine))
		return false;
	engine_point(engine, POINT_STEP_END, &event);
	if (!canary_poll(engine) || !scheduler_commit(engine) || !recover_run(engine))
		return false;
	engine_point(engine, POINT_STEP_DONE, &event);
	engine->step++;
	engine->clock_ms += STEP_MS * config->speed;
	return true;
}
