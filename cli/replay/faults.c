/*
 * The faults, one function each; faults.h says what they may do. Each chooses a victim that no
 * fault has touched yet, does its damage, and tells the taint what it changed.
 */
#include "replay/faults.h"
#include "replay/model.h"

#include <stdio.h>
#include <string.h>

/* ---- helpers ---- */

static int64_t page_slots_of(const struct injector *injector)
{
	return injector->engine->config.page_slots;
}

/* Row bytes of a slot in K (0) or V (1) of a layer. */
static unsigned char *pool_row(struct injector *injector, int32_t layer, int kind, int64_t slot)
{
	struct engine *engine = injector->engine;
	void *pool = kind == 0 ? engine->k_pools[layer] : engine->v_pools[layer];

	return engine_row(engine, pool, slot);
}

static int32_t draw_layer(struct injector *injector, int32_t count)
{
	return (int32_t)injector_draw(injector, count);
}

/* An engine hands the page on top of its stack out next. */
static void push_free(struct engine *engine, int32_t page)
{
	struct allocator *allocator = &engine->allocator;

	if (allocator->free_count < allocator->free_capacity)
		allocator->free_pages[allocator->free_count++] = page;
}

/* A request of the batch that nothing has touched and that writes at least 'least' tokens; -1. */
static int64_t pick_batch(struct injector *injector, int64_t least, bool later_chunk)
{
	const struct batch *batch = &injector->engine->batch;
	int64_t first = batch->count > 0 ? injector_draw(injector, batch->count) : 0;

	for (int64_t i = 0; i < batch->count; i++) {
		int64_t r = (first + i) % batch->count;
		if (batch->extend_lens[r] < least ||
		        (later_chunk &&
		                (batch->prefix_lens[r] == 0 || batch->sequences[r]->chunks == 0)))
			continue;
		if (taint_sequence_clean(injector->taint, batch->sequences[r]))
			return r;
	}
	return -1;
}

static int64_t position_of(const struct batch *batch, int64_t r, int64_t t)
{
	return batch->prefix_lens[r] + t - batch->first[r];
}

/* A full page of an untouched request that holds it alone: for damage at rest. -1 if none. */
static int32_t pick_page(struct injector *injector, struct sequence **sequence_out)
{
	struct sequence *sequence = injector_pick(injector, 3 * page_slots_of(injector), 2, NULL);
	int32_t index = sequence ? injector_own_page(injector, sequence) : -1;

	*sequence_out = sequence;
	return index < 0 ? -1 : sequence->pages[index];
}

/* ---- who owns which page ---- */

/* A live page goes to the free list; its owner knows nothing of it. */
static bool free_live_page(struct injector *injector, struct engine_event *event)
{
	struct engine *engine = injector->engine;
	struct sequence *sequence;
	int32_t page = pick_page(injector, &sequence);
	struct injection *injection;

	(void)event;
	if (page < 0 || !(injection = injector_begin(injector)))
		return false;
	engine->allocator.refs[page] = 0;
	push_free(engine, page);
	taint_page(injector->taint, page);
	injection->damaging = false; /* until somebody gets it */
	snprintf(injection->what, sizeof(injection->what), "page %d of request %lld", (int)page,
	        (long long)sequence->id);
	return true;
}

/* The page that an answer is about to grow into is handed out once more. */
static bool double_alloc(struct injector *injector, struct engine_event *event)
{
	struct engine *engine = injector->engine;
	int64_t page_slots = page_slots_of(injector);
	struct sequence *sequence =
	        injector_pick(injector, page_slots, 2 * page_slots, event->sequence);
	struct injection *injection;
	int64_t first;
	int32_t page;

	if (!sequence || sequence->generated == 0 ||
	        !taint_sequence_clean(injector->taint, event->sequence))
		return false;
	page = sequence->pages[sequence->page_count - 1];
	first = (sequence->page_count - 1) * page_slots;
	/*
	 * Not in this very step: two writes of one slot at once have no defined result. And the new
	 * owner has to be there still when the page is written a second time.
	 */
	if (sequence->computed + 3 > first || injector->taint->holders[page] != 1 ||
	        event->sequence->abort_at >= 0 ||
	        event->sequence->output_tokens - event->sequence->generated < page_slots + 4 ||
	        !(injection = injector_begin(injector)))
		return false;
	push_free(engine, page);
	taint_page(injector->taint, page);
	taint_culprit(injection, sequence->id);
	injection->damaging = false;
	snprintf(injection->what, sizeof(injection->what), "page %d of request %lld", (int)page,
	        (long long)sequence->id);
	return true;
}

/* The allocator hands out the page of the dummy slot. */
static bool reserved_page(struct injector *injector, struct engine_event *event)
{
	struct engine *engine = injector->engine;
	struct injection *injection;

	if (injector->taint->holders[0] > 0 || event->sequence->generated > 0 ||
	        event->sequence->output_tokens < 4 ||
	        !taint_sequence_clean(injector->taint, event->sequence) ||
	        !taint_page_clean(injector->taint, 0) || !(injection = injector_begin(injector)))
		return false;
	push_free(engine, 0);
	taint_slot(injector->taint, ENGINE_RESERVED_SLOT, true);
	snprintf(injection->what, sizeof(injection->what), "page 0 to request %lld",
	        (long long)event->sequence->id);
	return true;
}

/* An entry of the request table still names a slot that is another request's by now. */
static bool stale_table_entry(struct injector *injector, struct engine_event *event)
{
	struct engine *engine = injector->engine;
	int64_t page_slots = page_slots_of(injector), position, slot;
	struct sequence *victim = injector_pick(injector, 4 * page_slots, 2, NULL);
	struct sequence *other = victim ? injector_pick(injector, 3 * page_slots, 0, victim) : NULL;
	int32_t own = other ? injector_own_page(injector, other) : -1;
	struct injection *injection;

	(void)event;
	if (own < 0 || !(injection = injector_begin(injector)))
		return false;
	slot = other->pages[own] * page_slots + injector_draw(injector, page_slots);
	position = page_slots + injector_draw(injector, victim->computed - 3 * page_slots);
	engine->req_to_token[victim->row * engine->columns + position] = (int32_t)slot;
	taint_slot(injector->taint, slot, false);
	taint_sequence(injector->taint, victim, position);
	taint_hold(injector->taint, victim, other->pages[own]);
	taint_culprit(injection, injector->taint->page_writer[slot / page_slots]);
	snprintf(injection->what, sizeof(injection->what), "position %lld of request %lld",
	        (long long)position, (long long)victim->id);
	return true;
}

/* ---- the prefix cache ---- */

/* A leaf that nobody but the tree holds, and that no fault has touched. */
static bool is_idle_leaf(const struct injector *injector, int32_t node)
{
	const struct prefix_tree *tree = &injector->engine->tree;

	if (tree->nodes[node].children > 0)
		return false;
	for (int32_t p = 0; p < tree->block_pages; p++) {
		int32_t page = prefix_tree_pages(tree, node)[p];
		if (injector->engine->allocator.refs[page] != 1 ||
		        injector->taint->holders[page] != 1 ||
		        !taint_page_clean(injector->taint, page))
			return false;
	}
	return true;
}

/* A block is evicted, but the tree goes on naming it. */
static bool stale_prefix(struct injector *injector, struct engine_event *event)
{
	struct engine *engine = injector->engine;
	struct prefix_tree *tree = &engine->tree;
	struct injection *injection;
	int32_t node = tree->newest;

	(void)event;
	/* The youngest one, which would be evicted last. */
	while (node >= 0 && !is_idle_leaf(injector, node))
		node = tree->nodes[node].older;
	if (node < 0 || !(injection = injector_begin(injector)))
		return false;
	for (int32_t p = 0; p < tree->block_pages; p++) {
		int32_t page = prefix_tree_pages(tree, node)[p];
		engine->allocator.refs[page] = 0;
		push_free(engine, page);
		taint_page(injector->taint, page);
	}
	injection->damaging = false;
	injection->stale_node = node;
	snprintf(injection->what, sizeof(injection->what), "block %lld",
	        (long long)tree->nodes[node].hash_id);
	return true;
}

/* First depth (from 1) at which the path to 'node' is not the request's; 0 if it never parts. */
static int32_t parting_depth(
        const struct engine *engine, const struct sequence *sequence, int32_t node)
{
	int32_t parting = 0;

	for (; node != PREFIX_ROOT; node = engine->tree.nodes[node].parent) {
		const struct prefix_node *block = &engine->tree.nodes[node];
		if (engine_hash_id(engine, sequence, block->depth - 1) != block->hash_id)
			parting = block->depth;
	}
	return parting;
}

/* Pages of the path to 'node', in place of what the sequence had found. */
static void take_path(struct engine *engine, struct sequence *sequence, int32_t node)
{
	int32_t block_pages = engine->tree.block_pages;
	int32_t depth = engine->tree.nodes[node].depth;
	struct engine_event event = { 0 };

	sequence->tree_node = node;
	for (int32_t i = depth - 1; i >= 0; i--, node = engine->tree.nodes[node].parent) {
		for (int32_t p = 0; p < block_pages; p++) {
			event.page = prefix_tree_pages(&engine->tree, node)[p];
			allocator_hold(&engine->allocator, event.page);
			engine_point(engine, POINT_PAGE_SHARED, &event);
			if (i * block_pages + p < sequence->page_count) {
				event.page = sequence->pages[i * block_pages + p];
				allocator_release(&engine->allocator, event.page);
				engine_point(engine, POINT_PAGE_DROPPED, &event);
			}
			sequence->pages[i * block_pages + p] =
			        prefix_tree_pages(&engine->tree, node)[p];
		}
	}
	sequence->page_count = depth * block_pages;
	sequence->computed = depth * engine->config.block_tokens;
}

/* The prefix lookup answers with another conversation's blocks, sound in themselves. */
static bool foreign_prefix(struct injector *injector, struct engine_event *event)
{
	struct engine *engine = injector->engine;
	struct sequence *sequence = event->sequence;
	const struct prefix_tree *tree = &engine->tree;
	int64_t block_tokens = engine->config.block_tokens;
	int32_t first = (int32_t)injector_draw(injector, tree->node_capacity);

	if (!taint_sequence_clean(injector->taint, sequence))
		return false;
	for (int32_t i = 0; i < tree->node_capacity; i++) {
		int32_t node = (first + i) % tree->node_capacity, parting, page;
		const struct prefix_node *block = &tree->nodes[node];
		struct injection *injection;
		if (node == PREFIX_ROOT || block->parent < 0 ||
		        block->depth * tree->block_pages < sequence->page_count ||
		        block->depth * block_tokens >= sequence->input_tokens)
			continue;
		parting = parting_depth(engine, sequence, node);
		page = prefix_tree_pages(tree, node)[0];
		if (parting == 0 || block->depth - parting > 1 ||
		        !taint_page_clean(injector->taint, page) ||
		        !(injection = injector_begin(injector)))
			continue;
		take_path(engine, sequence, node);
		taint_sequence(injector->taint, sequence, (parting - 1) * block_tokens);
		for (int64_t p = (parting - 1) * block_tokens; p < sequence->computed; p++)
			taint_slot(injector->taint, engine_slot(engine, sequence, p), false);
		taint_culprit(injection, injector->taint->page_writer[page]);
		snprintf(injection->what, sizeof(injection->what),
		        "blocks %d to %d of request %lld", (int)parting, (int)block->depth,
		        (long long)sequence->id);
		return true;
	}
	return false;
}

/* ---- the input of a step ---- */

/* At a page boundary the next token goes to the slot after the last one, in whatever page that is. */
static bool page_off_by_one(struct injector *injector, struct engine_event *event)
{
	struct engine *engine = injector->engine;
	struct batch *batch = &engine->batch;
	int64_t page_slots = page_slots_of(injector);
	int64_t r = pick_batch(injector, 1, false), t, wrong;
	struct injection *injection;

	(void)event;
	if (r < 0)
		return false;
	t = batch->first[r] + (page_slots - batch->prefix_lens[r] % page_slots) % page_slots;
	if (batch->prefix_lens[r] == 0)
		t += page_slots;
	if (t >= batch->first[r] + batch->extend_lens[r])
		return false;
	wrong = engine_slot(engine, batch->sequences[r], position_of(batch, r, t) - 1) + 1;
	if (wrong == batch->slots[t] || wrong >= engine->config.pool_slots ||
	        injector->taint->holders[wrong / page_slots] != 1 ||
	        !taint_page_clean(injector->taint, (int32_t)(wrong / page_slots)))
		return false;
	for (int64_t i = 0; i < batch->token_count; i++)
		if (batch->slots[i] == wrong)
			return false;
	injection = injector_begin(injector);
	if (!injection)
		return false;
	batch->slots[t] = wrong;
	taint_sequence(injector->taint, batch->sequences[r], position_of(batch, r, t));
	taint_slot(injector->taint, wrong, true);
	taint_culprit(injection, batch->owners[r]);
	snprintf(injection->what, sizeof(injection->what), "slot %lld by request %lld",
	        (long long)wrong, (long long)batch->owners[r]);
	return true;
}

/* A later chunk of a prompt counts its positions from 0. */
static bool wrong_chunk_position(struct injector *injector, struct engine_event *event)
{
	struct batch *batch = &injector->engine->batch;
	int64_t r = pick_batch(injector, 2, true);
	struct injection *injection;

	(void)event;
	if (r < 0 || !(injection = injector_begin(injector)))
		return false;
	for (int64_t i = 0; i < batch->extend_lens[r]; i++)
		batch->positions[batch->first[r] + i] -= batch->prefix_lens[r];
	taint_sequence(injector->taint, batch->sequences[r], batch->prefix_lens[r]);
	snprintf(injection->what, sizeof(injection->what), "%lld tokens of request %lld",
	        (long long)batch->extend_lens[r], (long long)batch->owners[r]);
	return true;
}

/* Two neighbours of the input trade places. */
static bool token_swap(struct injector *injector, struct engine_event *event)
{
	struct batch *batch = &injector->engine->batch;
	int64_t r = pick_batch(injector, 2, false), t, token;
	struct injection *injection;

	(void)event;
	if (r < 0)
		return false;
	t = batch->first[r] + injector_draw(injector, batch->extend_lens[r] - 1);
	if (batch->tokens[t] == batch->tokens[t + 1] || !(injection = injector_begin(injector)))
		return false;
	token = batch->tokens[t];
	batch->tokens[t] = batch->tokens[t + 1];
	batch->tokens[t + 1] = token;
	taint_sequence(injector->taint, batch->sequences[r], position_of(batch, r, t));
	snprintf(injection->what, sizeof(injection->what), "positions %lld and %lld",
	        (long long)position_of(batch, r, t), (long long)position_of(batch, r, t) + 1);
	return true;
}

/* ---- a layer's write ---- */

/* Whoever chooses the layer first: all layers get their turn. */
static bool right_layer(struct injector *injector, const struct layer_call *call)
{
	int32_t layers = injector->engine->config.layers;

	return call->layer == injector->injected[injector->kind] % layers;
}

/* One token's K and V of one layer never reach the pool. */
static bool lost_write(struct injector *injector, struct engine_event *event)
{
	struct layer_call *call = event->call;
	const struct batch *batch = &injector->engine->batch;
	int64_t r = right_layer(injector, call) ? pick_batch(injector, 1, false) : -1, t;
	struct injection *injection;

	if (r < 0 || !(injection = injector_begin(injector)))
		return false;
	t = batch->first[r] + injector_draw(injector, batch->extend_lens[r]);
	memcpy(injector->slots, call->slots, (size_t)batch->token_count * sizeof(int64_t));
	injector->slots[t] = -1;
	call->slots = injector->slots;
	taint_sequence(injector->taint, batch->sequences[r], position_of(batch, r, t));
	snprintf(injection->what, sizeof(injection->what), "layer %d slot %lld", (int)call->layer,
	        (long long)batch->slots[t]);
	return true;
}

/* A NaN in the model's V, on a call whose own check for it is off. */
static bool nan_written(struct injector *injector, struct engine_event *event)
{
	const struct engine_config *config = &injector->engine->config;
	const struct batch *batch = &injector->engine->batch;
	struct layer_call *call = event->call;
	int64_t r = right_layer(injector, call) ? pick_batch(injector, 1, false) : -1, t, element;
	int64_t row_elements = config->kv_heads * config->head_dim;
	struct injection *injection;

	if (r < 0 || !(injection = injector_begin(injector)))
		return false;
	t = batch->first[r] + injector_draw(injector, batch->extend_lens[r]);
	element = t * row_elements + injector_draw(injector, row_elements);
	if (config->dtype.bits == 32)
		((uint32_t *)call->v)[element] = 0x7FC00000u;
	else
		((uint16_t *)call->v)[element] =
		        config->dtype.code == KVC_CODE_FLOAT ? 0x7E00 : 0x7FC0;
	call->check_finite = 0;
	taint_sequence(injector->taint, batch->sequences[r], position_of(batch, r, t));
	snprintf(injection->what, sizeof(injection->what), "layer %d V slot %lld", (int)call->layer,
	        (long long)batch->slots[t]);
	return true;
}

/* The last layer stops before the last request of the batch. */
static bool step_cut_short(struct injector *injector, struct engine_event *event)
{
	struct layer_call *call = event->call;
	const struct batch *batch = &injector->engine->batch;
	int64_t r = batch->count - 1;
	struct injection *injection;

	if (call->layer != injector->engine->config.layers - 1 ||
	        !taint_sequence_clean(injector->taint, batch->sequences[r]) ||
	        !(injection = injector_begin(injector)))
		return false;
	call->n_valid = batch->first[r];
	taint_sequence(injector->taint, batch->sequences[r], batch->prefix_lens[r]);
	snprintf(injection->what, sizeof(injection->what), "layer %d, %lld tokens",
	        (int)call->layer, (long long)batch->extend_lens[r]);
	return true;
}

/* ---- bytes at rest ---- */

static bool flip_bit(struct injector *injector, int kind)
{
	struct engine *engine = injector->engine;
	int64_t slot = injector_pick_slot(injector), bit;
	int32_t layer = draw_layer(injector, engine->config.layers);
	struct injection *injection;

	if (slot < 0 || !(injection = injector_begin(injector)))
		return false;
	bit = injector_draw(injector, 8 * engine->row_bytes);
	pool_row(injector, layer, kind, slot)[bit / 8] ^= (unsigned char)(1u << bit % 8);
	taint_slot(injector->taint, slot, true);
	snprintf(injection->what, sizeof(injection->what), "layer %d %c slot %lld bit %lld",
	        (int)layer, kind == 0 ? 'K' : 'V', (long long)slot, (long long)bit);
	return true;
}

static bool bit_flip_k(struct injector *injector, struct engine_event *event)
{
	(void)event;
	return flip_bit(injector, 0);
}

static bool bit_flip_v(struct injector *injector, struct engine_event *event)
{
	(void)event;
	return flip_bit(injector, 1);
}

/* A request that has gone writes its rows once more, where another one lives now. */
static bool late_raw_write(struct injector *injector, struct engine_event *event)
{
	struct engine *engine = injector->engine;
	const struct engine_config *config = &engine->config;
	int64_t page_slots = config->page_slots, tokens[1], positions[1];
	int32_t layer = draw_layer(injector, config->layers);
	struct sequence *sequence, *former;
	struct injection *injection;
	int32_t page = pick_page(injector, &sequence);

	(void)event;
	if (page < 0 || injector->former_holder[page] < 0)
		return false;
	former = &engine->sequences[injector->former_holder[page]];
	if (former == sequence || former->state == SEQUENCE_RUNNING ||
	        !(injection = injector_begin(injector)))
		return false;
	for (int64_t i = 0; i < page_slots; i++) {
		positions[0] = injector->former_position[page] + i;
		tokens[0] = engine_token(engine, former, positions[0]);
		for (int kind = MODEL_K; kind <= MODEL_V; kind++) {
			model_rows(injector->rows, config->dtype, kind, layer, tokens, positions, 1,
			        config->kv_heads, config->head_dim);
			memcpy(pool_row(injector, layer, kind, page * page_slots + i),
			        injector->rows, (size_t)engine->row_bytes);
		}
	}
	taint_page(injector->taint, page);
	taint_culprit(injection, former->id);
	snprintf(injection->what, sizeof(injection->what), "layer %d page %d by request %lld",
	        (int)layer, (int)page, (long long)former->id);
	return true;
}

/* A page of every layer becomes zero. */
static bool zeroed_page(struct injector *injector, struct engine_event *event)
{
	struct engine *engine = injector->engine;
	struct sequence *sequence;
	int32_t page = pick_page(injector, &sequence);
	int64_t page_slots = page_slots_of(injector);
	struct injection *injection;

	(void)event;
	if (page < 0 || !(injection = injector_begin(injector)))
		return false;
	for (int32_t layer = 0; layer < engine->config.layers; layer++)
		for (int kind = 0; kind < 2; kind++)
			memset(pool_row(injector, layer, kind, page * page_slots), 0,
			        (size_t)(page_slots * engine->row_bytes));
	taint_page(injector->taint, page);
	snprintf(injection->what, sizeof(injection->what), "page %d", (int)page);
	return true;
}

static void swap_bytes(unsigned char *a, unsigned char *b, int64_t bytes)
{
	for (int64_t i = 0; i < bytes; i++) {
		unsigned char held = a[i];
		a[i] = b[i];
		b[i] = held;
	}
}

/* K and V of two layers trade places in one page. */
static bool swapped_layers(struct injector *injector, struct engine_event *event)
{
	struct engine *engine = injector->engine;
	struct sequence *sequence;
	int32_t page, layer;
	int64_t page_slots = page_slots_of(injector);
	struct injection *injection;

	(void)event;
	if (engine->config.layers < 2)
		return false;
	page = pick_page(injector, &sequence);
	layer = draw_layer(injector, engine->config.layers - 1);
	if (page < 0 || !(injection = injector_begin(injector)))
		return false;
	for (int kind = 0; kind < 2; kind++)
		swap_bytes(pool_row(injector, layer, kind, page * page_slots),
		        pool_row(injector, layer + 1, kind, page * page_slots),
		        page_slots * engine->row_bytes);
	taint_page(injector->taint, page);
	snprintf(injection->what, sizeof(injection->what), "layers %d and %d, page %d", (int)layer,
	        (int)layer + 1, (int)page);
	return true;
}

/* K and V of two slots trade places, their records do not. */
static bool swapped_slots(struct injector *injector, struct engine_event *event)
{
	struct engine *engine = injector->engine;
	struct sequence *sequence;
	int32_t page = pick_page(injector, &sequence);
	int64_t page_slots = page_slots_of(injector), a, b;
	struct injection *injection;

	(void)event;
	if (page < 0 || page_slots < 2 || !(injection = injector_begin(injector)))
		return false;
	a = page * page_slots + injector_draw(injector, page_slots - 1);
	b = a + 1;
	for (int32_t layer = 0; layer < engine->config.layers; layer++)
		for (int kind = 0; kind < 2; kind++)
			swap_bytes(pool_row(injector, layer, kind, a),
			        pool_row(injector, layer, kind, b), engine->row_bytes);
	taint_slot(injector->taint, a, true);
	taint_slot(injector->taint, b, true);
	snprintf(injection->what, sizeof(injection->what), "slots %lld and %lld", (long long)a,
	        (long long)b);
	return true;
}

/* A page that moves arrives without the end of its last layer. */
static bool truncated_copy(struct injector *injector, struct engine_event *event)
{
	struct page_move *move = event->move;
	int64_t page_slots = page_slots_of(injector);
	int32_t last = injector->engine->config.layers - 1;
	struct injection *injection;

	/* A page that has just come from there would arrive whole in any case. */
	if (!taint_sequence_clean(injector->taint, move->sequence) || page_slots < 2 ||
	        memcmp(pool_row(injector, last, 0, (move->from + 1) * page_slots - 1),
	                pool_row(injector, last, 0, (move->to + 1) * page_slots - 1),
	                (size_t)injector->engine->row_bytes) == 0 ||
	        !(injection = injector_begin(injector)))
		return false;
	move->full_layers = injector->engine->config.layers - 1;
	move->last_slots = page_slots / 2;
	taint_sequence(
	        injector->taint, move->sequence, move->page_index * page_slots + move->last_slots);
	snprintf(injection->what, sizeof(injection->what), "page %d to %d, layer %d",
	        (int)move->from, (int)move->to, (int)move->full_layers);
	return true;
}

/* ---- the table ---- */

#define CHAIN KVC_REASON_VERIFY_CHAIN_HASH
#define POSITION KVC_REASON_VERIFY_POSITION
#define BYTES KVC_REASON_VERIFY_REAL_KV_HASH
#define TOKEN KVC_REASON_VERIFY_TOKEN
#define NEVER KVC_REASON_NEVER_STAMPED
#define END KVC_REASON_CHAIN_END
#define ALIASED KVC_REASON_SLOT_ALIASED

const struct fault_kind fault_kinds[] = {
	{ "free-live-page", "a page is freed and reused while its request lives",
	        CHAIN | POSITION | TOKEN | NEVER | END | ALIASED, 0, true, POINT_STEP_END,
	        free_live_page },
	{ "double-alloc", "a free page is handed to two requests",
	        CHAIN | POSITION | TOKEN | NEVER | END | ALIASED, 0, true, POINT_BEFORE_ALLOC,
	        double_alloc },
	{ "reserved-page", "the page of the dummy slot is handed to a request",
	        KVC_REASON_SLOT_RANGE, 0, false, POINT_BEFORE_ALLOC, reserved_page },
	{ "stale-table-entry", "a request table entry names another request's slot",
	        CHAIN | POSITION | TOKEN | END | ALIASED, 0, true, POINT_STEP_END,
	        stale_table_entry },
	{ "page-off-by-one", "a token is written one slot past the end of its page",
	        CHAIN | POSITION | TOKEN | NEVER | END | ALIASED, 0, true, POINT_BATCH,
	        page_off_by_one },
	{ "stale-prefix", "a block is evicted and reused, the prefix cache still names it",
	        CHAIN | POSITION | TOKEN | NEVER | END | ALIASED, 0, true, POINT_STEP_END,
	        stale_prefix },
	{ "foreign-prefix", "the prefix lookup answers with another conversation's blocks",
	        TOKEN | END, NEED_TOKENS, true, POINT_ADMITTED, foreign_prefix },
	{ "wrong-chunk-position", "a later chunk counts its positions from 0",
	        POSITION | KVC_REASON_WRITE_POSITION, 0, false, POINT_BATCH, wrong_chunk_position },
	{ "token-swap", "two tokens of the batch trade places", TOKEN | KVC_REASON_WRITE_TOKEN,
	        NEED_TOKENS, false, POINT_BATCH, token_swap },
	{ "bit-flip-k", "one bit of K flips at rest", BYTES, NEED_ALL_BYTES | NEED_REREADS, false,
	        POINT_STEP_END, bit_flip_k },
	{ "bit-flip-v", "one bit of V flips at rest", BYTES, NEED_ALL_BYTES | NEED_REREADS, false,
	        POINT_STEP_END, bit_flip_v },
	{ "late-raw-write", "a finished request's raw write lands in a reused page", BYTES,
	        NEED_BYTES | NEED_REREADS, true, POINT_STEP_END, late_raw_write },
	{ "lost-write", "one token's write of one layer is lost", BYTES, NEED_BYTES | NEED_STAMPING,
	        false, POINT_LAYER, lost_write },
	{ "zeroed-page", "a page of every layer becomes zero", BYTES, NEED_BYTES | NEED_REREADS,
	        false, POINT_STEP_END, zeroed_page },
	{ "swapped-layers", "two layers trade a page", BYTES,
	        NEED_BYTES | NEED_REREADS | NEED_LAYERS, false, POINT_STEP_END, swapped_layers },
	{ "swapped-slots", "two slots trade their K and V", BYTES, NEED_BYTES | NEED_REREADS, false,
	        POINT_STEP_END, swapped_slots },
	{ "truncated-copy", "a page that moves arrives without its last rows", BYTES,
	        NEED_BYTES | NEED_REREADS, false, POINT_MOVE, truncated_copy },
	{ "nan-written", "a NaN is written past the writer's own check", KVC_REASON_NONFINITE,
	        NEED_FINITE, false, POINT_LAYER, nan_written },
	{ "step-cut-short", "the last layer stops before the end of the batch", BYTES,
	        NEED_BYTES | NEED_STAMPING, false, POINT_LAYER, step_cut_short },
};
const int32_t fault_kind_count = (int32_t)(sizeof(fault_kinds) / sizeof(fault_kinds[0]));

int32_t fault_find(const char *name, size_t name_bytes)
{
	for (int32_t i = 0; i < fault_kind_count; i++)
		if (strlen(fault_kinds[i].name) == name_bytes &&
		        memcmp(fault_kinds[i].name, name, name_bytes) == 0)
			return i;
	return -1;
}
