/* Every call that the engine makes of the guard, and the clock around it. */
#include "replay/engine.h"
#include "replay/model.h"

#include <string.h>

#define POLL_COUNT 256
#define RING_CAPACITY 16384

/* Add the time since 'begin' to the canary's share; passes a failed status on. */
static bool finish_call(struct engine *engine, double begin, kvc_status status)
{
	engine->canary_seconds += engine_now() - begin;
	return status == KVC_OK || engine_fail(engine);
}

/* ---- opening ---- */

static bool attach(struct engine *engine)
{
	const struct engine_config *config = &engine->config;
	int64_t shape[] = { config->pool_slots, config->kv_heads, config->head_dim };
	kvc_source sources[2 * ENGINE_LAYERS_MAX];
	kvc_guard_group group = KVC_GUARD_GROUP_INIT;

	for (int32_t layer = 0; layer < config->layers; layer++) {
		void *pools[] = { engine->k_pools[layer], engine->v_pools[layer] };
		for (int kind = 0; kind < 2; kind++) {
			kvc_tensor pool =
			        kvc_tensor_make(pools[kind], config->pool_dtype, 3, shape);
			uint64_t id = 2 * (uint64_t)layer + (uint64_t)kind;
			if (kvc_source_from_pool(&sources[id], &pool, id) != KVC_OK)
				return false;
		}
	}
	group.slot_count = config->pool_slots;
	group.sources = sources;
	group.source_count = 2 * config->layers;
	group.fingerprint = config->fingerprint;
	group.coverage = config->coverage;
	group.stamping = config->stamping ? KVC_STAMP_CLEAR : KVC_STAMP_COMPUTE;
	group.reserved_slot = ENGINE_RESERVED_SLOT;
	return kvc_guard_attach_group(engine->guard, &group, &engine->group) == KVC_OK;
}

bool canary_open(struct engine *engine)
{
	const struct engine_config *config = &engine->config;
	kvc_guard_options options = KVC_GUARD_OPTIONS_INIT;

	options.request_rows = config->batch_rows + 1;
	options.verify_budget = config->verify_budget;
	options.checks = config->checks;
	options.check_finite = config->finite;
	options.ring_capacity = RING_CAPACITY;
	if (kvc_guard_create(&engine->guard, &options) != KVC_OK || !attach(engine))
		return engine_fail(engine);
	for (int32_t layer = 0; config->stamping && layer < config->layers; layer++) {
		uint64_t id = 2 * (uint64_t)layer;
		if (kvc_guard_stamp(&engine->stamps[layer], engine->guard, engine->group, id,
		            id + 1) != KVC_OK)
			return engine_fail(engine);
	}
	return true;
}

/* ---- slots that change hands ---- */

bool canary_void(struct engine *engine, int64_t *slots, int64_t count)
{
	kvc_tensor tensor = kvc_tensor_make(slots, KVC_INT64, 1, &count);
	double begin = engine_now();

	return finish_call(
	        engine, begin, kvc_guard_void(engine->guard, engine->group, &tensor, NULL));
}

bool canary_copy_page(struct engine *engine, int32_t from, int32_t to)
{
	int64_t count = engine->config.page_slots;
	int64_t *from_slots = engine->new_slots, *to_slots = engine->new_slots + count;
	kvc_tensor from_tensor = kvc_tensor_make(from_slots, KVC_INT64, 1, &count);
	kvc_tensor to_tensor = kvc_tensor_make(to_slots, KVC_INT64, 1, &count);
	double begin = engine_now();

	for (int64_t i = 0; i < count; i++) {
		from_slots[i] = from * count + i;
		to_slots[i] = to * count + i;
	}
	return finish_call(engine, begin,
	        kvc_guard_copy(engine->guard, engine->group, &from_tensor, &to_tensor, NULL));
}

bool canary_scatter(struct engine *engine, const struct sequence *sequence)
{
	int64_t length = sequence->input_tokens + sequence->output_tokens;
	int64_t offsets[] = { 0, length }, offset_count = 2, one = 1, row = sequence->row;
	int64_t table_shape[] = { engine->config.batch_rows + 1, engine->columns };
	kvc_tensor flat_tensor = kvc_tensor_make(engine->history, KVC_INT64, 1, &length);
	kvc_tensor offset_tensor = kvc_tensor_make(offsets, KVC_INT64, 1, &offset_count);
	kvc_tensor row_tensor = kvc_tensor_make(&row, KVC_INT64, 1, &one);
	kvc_tensor table = kvc_tensor_make(engine->token_table, KVC_INT32, 2, table_shape);
	kvc_scatter_args args = KVC_SCATTER_ARGS_INIT;
	double begin = engine_now();

	for (int64_t i = 0; i < length; i++)
		engine->history[i] = engine_token(engine, sequence, i);
	args.flat_in = &flat_tensor;
	args.offsets = &offset_tensor;
	args.req_pool_indices = &row_tensor;
	args.pool_out = &table;
	return finish_call(engine, begin, kvc_scatter_req_token_ids(&args, NULL));
}

/* ---- the step ---- */

static kvc_tensor per_request(const struct batch *batch, int64_t *data)
{
	/* The shape is read and never written: the operations only look at their inputs. */
	return kvc_tensor_make(data, KVC_INT64, 1, (int64_t *)&batch->count);
}

static kvc_tensor per_token(const struct batch *batch, int64_t *data)
{
	return kvc_tensor_make(data, KVC_INT64, 1, (int64_t *)&batch->token_count);
}

static void lend_tensors(struct engine *engine, struct step_tensors *lent)
{
	const struct batch *batch = &engine->batch;

	lent->table_shape[0] = engine->config.batch_rows + 1;
	lent->table_shape[1] = engine->columns;
	lent->rows = per_request(batch, batch->rows);
	lent->prefix_lens = per_request(batch, batch->prefix_lens);
	lent->extend_lens = per_request(batch, batch->extend_lens);
	lent->owners = per_request(batch, batch->owners);
	lent->valid_lens = per_request(batch, batch->valid_lens);
	lent->tokens = per_token(batch, batch->tokens);
	lent->positions = per_token(batch, batch->positions);
	lent->slots = per_token(batch, batch->slots);
	lent->true_tokens = per_token(batch, batch->true_tokens);
	lent->true_positions = per_token(batch, batch->true_positions);
	lent->req_to_token = kvc_tensor_make(engine->req_to_token, KVC_INT32, 2, lent->table_shape);
	lent->token_table = kvc_tensor_make(engine->token_table, KVC_INT32, 2, lent->table_shape);
}

bool canary_step_begin(struct engine *engine)
{
	const struct engine_config *config = &engine->config;
	struct step_tensors *lent = &engine->borrowed;
	kvc_requests requests = KVC_REQUESTS_INIT;
	kvc_guard_step step = KVC_GUARD_STEP_INIT;
	double begin = engine_now();

	lend_tensors(engine, lent);
	requests.req_pool_indices = &lent->rows;
	requests.prefix_lens = &lent->prefix_lens;
	requests.extend_seq_lens = &lent->extend_lens;
	requests.owner_request = &lent->owners;
	step.step = engine->step;
	step.requests = &lent->requests;
	step.req_to_token = &lent->req_to_token;
	step.expected_tokens = config->expected_tokens ? &lent->token_table : NULL;
	step.valid_lens = config->expected_tokens ? &lent->valid_lens : NULL;
	step.tokens = &lent->tokens;
	step.positions = &lent->positions;
	step.slots = &lent->slots;
	step.expected_input_tokens = config->input_check ? &lent->true_tokens : NULL;
	step.expected_input_positions = config->input_check ? &lent->true_positions : NULL;
	lent->requests = requests;
	lent->step = step;
	return finish_call(engine, begin, kvc_guard_step_begin(engine->guard, &lent->step, NULL));
}

bool canary_step_end(struct engine *engine)
{
	double begin = engine_now();

	return finish_call(engine, begin, kvc_guard_step_end(engine->guard, NULL));
}

bool canary_poll(struct engine *engine)
{
	kvc_finding findings[POLL_COUNT];
	int64_t count;

	do {
		double begin = engine_now();
		count = 0;
		if (!finish_call(engine, begin,
		            kvc_guard_poll(engine->guard, findings, POLL_COUNT, &count, NULL)))
			return false;
		for (int64_t i = 0; i < count; i++) {
			struct engine_event event = { .finding = &findings[i] };
			engine_point(engine, POINT_FINDING, &event);
			recover_note(engine, &findings[i]);
		}
	} while (count > 0);
	return true;
}

/* ---- sweeps ---- */

struct idle_walk {
	const struct engine *engine;
	int32_t node;
	int64_t offset; /* in the node's block */
};

static int64_t block_slot(const struct engine *engine, int32_t node, int64_t offset)
{
	int64_t page_slots = engine->config.page_slots;

	return prefix_tree_pages(&engine->tree, node)[offset / page_slots] * page_slots +
	       offset % page_slots;
}

static void fill_idle(
        kvc_sweep_slot *out, const struct engine *engine, int32_t node, int64_t offset)
{
	const struct prefix_node *block = &engine->tree.nodes[node];
	int64_t block_tokens = engine->config.block_tokens;

	out->slot = block_slot(engine, node, offset);
	out->position = (block->depth - 1) * block_tokens + offset;
	out->expected_token =
	        engine->config.expected_tokens ? model_block_token(block->hash_id, offset) : -1;
	if (offset > 0)
		out->prev_slot = block_slot(engine, node, offset - 1);
	else if (block->parent == PREFIX_ROOT)
		out->prev_slot = -1;
	else
		out->prev_slot = block_slot(engine, block->parent, block_tokens - 1);
}

static int64_t next_idle(void *context, kvc_sweep_slot *out, int64_t capacity)
{
	struct idle_walk *walk = context;
	const struct prefix_tree *tree = &walk->engine->tree;
	int64_t count = 0;

	while (count < capacity && walk->node < tree->node_capacity) {
		if (walk->offset == walk->engine->config.block_tokens ||
		        tree->nodes[walk->node].parent < 0 || !prefix_tree_idle(tree, walk->node)) {
			walk->node++;
			walk->offset = 0;
			continue;
		}
		fill_idle(&out[count++], walk->engine, walk->node, walk->offset++);
	}
	return count;
}

/* By the paths of the requests, not by reference counts: these may be what is wrong. */
static void mark_used(struct engine *engine)
{
	const struct prefix_tree *tree = &engine->tree;

	memset(engine->used_nodes, 0, (size_t)tree->node_capacity);
	for (int32_t i = 0; i < engine->running_count; i++)
		for (int32_t node = engine->running[i]->tree_node; node > PREFIX_ROOT;
		        node = tree->nodes[node].parent)
			engine->used_nodes[node] = 1;
}

bool canary_sweep_idle(struct engine *engine)
{
	struct idle_walk walk = { engine, PREFIX_ROOT + 1, 0 };
	double begin = engine_now();

	mark_used(engine);
	engine->counts.sweeps++;
	return finish_call(engine, begin,
	        kvc_guard_sweep(engine->guard, engine->group, next_idle, &walk, NULL, NULL));
}

struct sequence_walk {
	const struct engine *engine;
	const struct sequence *sequence;
	int64_t position;
};

static int64_t next_held(void *context, kvc_sweep_slot *out, int64_t capacity)
{
	struct sequence_walk *walk = context;
	const struct engine *engine = walk->engine;
	const struct sequence *sequence = walk->sequence;
	const int32_t *slots = engine->req_to_token + sequence->row * engine->columns;
	const int32_t *tokens = engine->token_table + sequence->row * engine->columns;
	int64_t count = 0;

	while (count < capacity && walk->position < sequence->computed) {
		int64_t position = walk->position++;
		out[count++] = (kvc_sweep_slot){ .slot = slots[position],
			.position = position,
			.expected_token = engine->config.expected_tokens ? tokens[position] : -1,
			.prev_slot = position > 0 ? slots[position - 1] : -1 };
	}
	return count;
}

bool canary_sweep_sequence(struct engine *engine, const struct sequence *sequence)
{
	struct sequence_walk walk = { engine, sequence, 0 };
	double begin = engine_now();

	return finish_call(engine, begin,
	        kvc_guard_sweep(engine->guard, engine->group, next_held, &walk, NULL, NULL));
}
