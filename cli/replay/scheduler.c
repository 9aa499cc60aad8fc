/*
 * Continuous batching: who runs in a step, with which slots. Requests are admitted in order while
 * their prompt fits; answers grow one token a step; when the pool is full, idle blocks of the
 * prefix tree go first and then the youngest request, which starts anew later.
 */
#include "replay/engine.h"

#include <stdlib.h>
#include <string.h>

/* ---- lengths ---- */

static int64_t known_tokens(const struct sequence *sequence)
{
	return sequence->input_tokens + sequence->generated;
}

static bool is_decoding(const struct sequence *sequence)
{
	return sequence->generated > 0 && known_tokens(sequence) - sequence->computed == 1;
}

/* Positions that are ever written: the last sampled token needs no K/V. */
static int64_t last_length(const struct sequence *sequence)
{
	return sequence->input_tokens + sequence->output_tokens - 1;
}

static int32_t pages_for(const struct engine *engine, int64_t tokens)
{
	return (int32_t)((tokens + engine->config.page_slots - 1) / engine->config.page_slots);
}

/* ---- pages ---- */

static void tell_page(
        struct engine *engine, enum engine_point point, struct sequence *sequence, int32_t page)
{
	struct engine_event event = { .sequence = sequence, .page = page };

	engine_point(engine, point, &event);
}

static void fill_row(struct engine *engine, const struct sequence *sequence, int32_t page_index)
{
	int64_t page_slots = engine->config.page_slots;
	int64_t first = page_index * page_slots;
	int32_t *row = engine->req_to_token + sequence->row * engine->columns;

	for (int64_t i = 0; i < page_slots && first + i < engine->columns; i++)
		row[first + i] = (int32_t)(sequence->pages[page_index] * page_slots + i);
}

/* A free page, at the cost of an idle block if need be; -1 if there is none. */
static int32_t take_page(struct engine *engine)
{
	int32_t page = allocator_take(&engine->allocator);

	while (page < 0) {
		if (prefix_tree_evict(&engine->tree) < 0)
			return -1;
		engine->counts.evictions++;
		page = allocator_take(&engine->allocator);
	}
	return page;
}

/* Give a sequence pages up to page_count. False: the pool has no more, it has what there was. */
static bool grow_pages(struct engine *engine, struct sequence *sequence, int32_t page_count)
{
	int64_t page_slots = engine->config.page_slots, new_count = 0;
	struct engine_event event = { .sequence = sequence };

	if (sequence->page_count < page_count)
		engine_point(engine, POINT_BEFORE_ALLOC, &event);
	while (sequence->page_count < page_count) {
		int32_t page = take_page(engine);
		if (page < 0)
			break;
		sequence->pages[sequence->page_count] = page;
		fill_row(engine, sequence, sequence->page_count++);
		for (int64_t i = 0; i < page_slots; i++)
			engine->new_slots[new_count++] = page * page_slots + i;
		tell_page(engine, POINT_PAGE_TAKEN, sequence, page);
	}
	if (new_count > 0 && !canary_void(engine, engine->new_slots, new_count))
		return false;
	return sequence->page_count >= page_count;
}

/* ---- giving up ---- */

static void leave_running(struct engine *engine, const struct sequence *sequence)
{
	int32_t kept = 0;

	for (int32_t i = 0; i < engine->running_count; i++)
		if (engine->running[i] != sequence)
			engine->running[kept++] = engine->running[i];
	engine->running_count = kept;
}

/* Look at all that a sequence holds before it is given up. */
static bool check_held(struct engine *engine, const struct sequence *sequence)
{
	return !engine->config.release_check ||
	       (canary_sweep_sequence(engine, sequence) && canary_poll(engine));
}

static void release(struct engine *engine, struct sequence *sequence)
{
	struct engine_event event = { .sequence = sequence };

	engine_point(engine, POINT_RELEASING, &event);
	for (int32_t i = 0; i < sequence->page_count; i++) {
		allocator_release(&engine->allocator, sequence->pages[i]);
		tell_page(engine, POINT_PAGE_DROPPED, sequence, sequence->pages[i]);
	}
	free(sequence->pages);
	sequence->pages = NULL;
	sequence->page_count = 0;
	sequence->named = false;
	engine->row_used[sequence->row] = false;
	sequence->row = 0;
	leave_running(engine, sequence);
	engine_point(engine, POINT_RELEASED, &event);
}

bool scheduler_release(struct engine *engine, struct sequence *sequence)
{
	if (!check_held(engine, sequence))
		return false;
	release(engine, sequence);
	return true;
}

void scheduler_requeue(struct engine *engine, struct sequence *sequence)
{
	sequence->state = SEQUENCE_WAITING;
	sequence->life++;
	sequence->id = sequence->index + sequence->life * (int64_t)ENGINE_LIFE;
	sequence->computed = 0;
	sequence->chunks = 0;
	engine->waiting[engine->waiting_count++] = (int32_t)sequence->index;
}

static bool abort_sequence(struct engine *engine, struct sequence *sequence)
{
	if (!scheduler_release(engine, sequence))
		return false;
	sequence->state = SEQUENCE_ABORTED;
	engine->counts.aborts++;
	engine->done++;
	return true;
}

static bool preempt_youngest(struct engine *engine)
{
	struct sequence *sequence = engine->running[engine->running_count - 1];

	/* Alone and still too large: only a damaged allocator brings this about. */
	if (engine->running_count == 1)
		return abort_sequence(engine, sequence);
	if (!scheduler_release(engine, sequence))
		return false;
	engine->counts.preemptions++;
	scheduler_requeue(engine, sequence);
	return true;
}

static bool abort_some(struct engine *engine)
{
	for (int32_t i = engine->running_count; i > 0; i--) {
		struct sequence *sequence = engine->running[i - 1];
		if (sequence->abort_at < 0 || sequence->computed < sequence->abort_at)
			continue;
		if (!abort_sequence(engine, sequence))
			return false;
	}
	return true;
}

/* ---- admission ---- */

/* The next request to admit, NULL if none has arrived. */
static struct sequence *next_waiting(struct engine *engine)
{
	const struct engine_config *config = &engine->config;
	const struct replay_request *request;

	if (engine->waiting_count > 0)
		return &engine->sequences[engine->waiting[engine->waiting_count - 1]];
	if (engine->next_arrival == config->request_count)
		return NULL;
	request = &engine->trace->requests[engine->next_arrival];
	if (config->speed > 0 && (double)request->timestamp_ms > engine->clock_ms) {
		if (engine->running_count > 0)
			return NULL;
		engine->clock_ms = (double)request->timestamp_ms; /* nothing to wait with */
	}
	return &engine->sequences[engine->next_arrival];
}

/*
 * Pages that can be had, less those that running prompts have yet to take. That answers grow is not
 * provided for, which preemption pays for now and then; but while a request waits that was sent
 * away once, all their growth is, or it would come back only to be sent away again.
 */
static int64_t pages_to_spare(struct engine *engine)
{
	int64_t pages = engine->allocator.free_count +
	                (int64_t)prefix_tree_idle_count(&engine->tree) * engine->tree.block_pages;

	for (int32_t i = 0; i < engine->running_count; i++) {
		const struct sequence *sequence = engine->running[i];
		int64_t missing = pages_for(engine, known_tokens(sequence)) - sequence->page_count;
		pages -= missing > 0 ? missing : 0;
		if (engine->waiting_count > 0)
			pages -= pages_for(
			        engine, last_length(sequence) + 1 - known_tokens(sequence));
	}
	return pages;
}

/* Take the blocks of the prompt that the tree has, at least one token being left to compute. */
static void match_prefix(struct engine *engine, struct sequence *sequence)
{
	int64_t block_tokens = engine->config.block_tokens;
	int64_t whole = known_tokens(sequence) - 1 < sequence->input_tokens
	                        ? known_tokens(sequence) - 1
	                        : sequence->input_tokens;
	int64_t block_count = whole / block_tokens;
	int32_t block_pages = engine->tree.block_pages;

	sequence->tree_node = PREFIX_ROOT;
	sequence->tree_open = true;
	for (int64_t block = 0; block < block_count; block++) {
		int32_t node = prefix_tree_find(&engine->tree, sequence->tree_node,
		        engine_hash_id(engine, sequence, block));
		if (node < 0)
			break;
		sequence->tree_node = node;
		prefix_tree_touch(&engine->tree, node);
		for (int32_t p = 0; p < block_pages; p++) {
			int32_t page = prefix_tree_pages(&engine->tree, node)[p];
			sequence->pages[sequence->page_count++] = page;
			allocator_hold(&engine->allocator, page);
			tell_page(engine, POINT_PAGE_SHARED, sequence, page);
		}
		sequence->computed += block_tokens;
	}
}

static bool admit(struct engine *engine, struct sequence *sequence)
{
	struct engine_event event = { .sequence = sequence };
	size_t page_capacity = (size_t)pages_for(engine, last_length(sequence) + 1) + 2;

	sequence->pages = calloc(page_capacity, sizeof(*sequence->pages));
	if (!sequence->pages) {
		engine->failed = true;
		return false;
	}
	if (engine->waiting_count > 0)
		engine->waiting_count--;
	else
		engine->next_arrival++;
	sequence->row = 1;
	while (engine->row_used[sequence->row])
		sequence->row++;
	engine->row_used[sequence->row] = true;
	sequence->state = SEQUENCE_RUNNING;
	sequence->admission = engine->admissions++;
	engine->running[engine->running_count++] = sequence;
	match_prefix(engine, sequence);
	engine_point(engine, POINT_ADMITTED, &event);
	for (int32_t p = 0; p < sequence->page_count; p++)
		fill_row(engine, sequence, p);
	engine->counts.prefix_hit_tokens += sequence->computed;
	return !engine->config.expected_tokens || canary_scatter(engine, sequence);
}

/* ---- the batch ---- */

static void add_token(struct engine *engine, const struct sequence *sequence, int64_t position)
{
	struct batch *batch = &engine->batch;
	int64_t t = batch->token_count++;

	batch->tokens[t] = batch->true_tokens[t] = engine_token(engine, sequence, position);
	batch->positions[t] = batch->true_positions[t] = position;
	batch->slots[t] = engine_slot(engine, sequence, position);
}

static void add_to_batch(struct engine *engine, struct sequence *sequence, int64_t extend)
{
	struct batch *batch = &engine->batch;
	int64_t r = batch->count++;

	batch->sequences[r] = sequence;
	batch->rows[r] = sequence->row;
	batch->prefix_lens[r] = sequence->computed;
	batch->extend_lens[r] = extend;
	batch->owners[r] = sequence->id;
	batch->valid_lens[r] = known_tokens(sequence);
	batch->first[r] = batch->token_count;
	for (int64_t i = 0; i < extend; i++)
		add_token(engine, sequence, sequence->computed + i);
}

/* Pages for the next 'extend' tokens, and one ahead so that an answer's step never waits. */
static int32_t pages_wanted(
        const struct engine *engine, const struct sequence *sequence, int64_t extend)
{
	int32_t most = pages_for(engine, last_length(sequence));
	int32_t wanted = pages_for(engine, sequence->computed + extend) + 1;

	return wanted < most ? wanted : most;
}

/*
 * Add one running sequence to the batch. When the pool is full the youngest go until it fits; then
 * the sequence itself may be gone, and is not added.
 */
static bool schedule(struct engine *engine, struct sequence *sequence, int64_t extend)
{
	while (!grow_pages(engine, sequence, pages_wanted(engine, sequence, extend))) {
		if (engine->failed || !preempt_youngest(engine))
			return false;
		if (sequence->state != SEQUENCE_RUNNING)
			return true;
	}
	add_to_batch(engine, sequence, extend);
	return true;
}

static bool schedule_running(struct engine *engine, int64_t *prefill_budget)
{
	for (int32_t i = 0; i < engine->running_count; i++) {
		struct sequence *sequence = engine->running[i];
		int64_t left = known_tokens(sequence) - sequence->computed;
		int64_t extend = left < *prefill_budget ? left : *prefill_budget;
		if (is_decoding(sequence))
			extend = 1;
		else
			*prefill_budget -= extend;
		if (extend > 0 && !schedule(engine, sequence, extend))
			return false;
	}
	return true;
}

static bool schedule_waiting(struct engine *engine, int64_t *prefill_budget)
{
	struct sequence *sequence;

	while (*prefill_budget > 0 && engine->running_count < engine->config.batch_rows &&
	        (sequence = next_waiting(engine)) != NULL) {
		int64_t needed = pages_for(engine, known_tokens(sequence)) + 2, left, extend;
		if (engine->running_count > 0 && pages_to_spare(engine) < needed)
			break;
		if (!admit(engine, sequence))
			return false;
		left = known_tokens(sequence) - sequence->computed;
		extend = left < *prefill_budget ? left : *prefill_budget;
		*prefill_budget -= extend;
		if (!schedule(engine, sequence, extend))
			return false;
	}
	return true;
}

/* ---- moving a page ---- */

static void copy_rows(struct engine *engine, const struct page_move *move)
{
	int64_t page_slots = engine->config.page_slots;

	for (int32_t layer = 0; layer < engine->config.layers; layer++) {
		void *pools[] = { engine->k_pools[layer], engine->v_pools[layer] };
		int64_t slots = layer < move->full_layers    ? page_slots
		                : layer == move->full_layers ? move->last_slots
		                                             : 0;
		for (int kind = 0; kind < 2; kind++)
			memcpy(engine_row(engine, pools[kind], move->to * page_slots),
			        engine_row(engine, pools[kind], move->from * page_slots),
			        (size_t)(slots * engine->row_bytes));
	}
}

/* Move a sequence's last full page elsewhere, as an engine does that closes gaps in its pool. */
static bool move_page(struct engine *engine, struct sequence *sequence)
{
	struct page_move move = { .sequence = sequence, .full_layers = engine->config.layers };
	struct engine_event event = { .sequence = sequence, .move = &move };

	move.page_index = (int32_t)(sequence->computed / engine->config.page_slots) - 1;
	if (move.page_index < 0)
		return true;
	move.from = sequence->pages[move.page_index];
	/* A page that others hold stays where it is. */
	if (engine->allocator.refs[move.from] != 1 || engine->allocator.free_count == 0)
		return true;
	move.to = allocator_take(&engine->allocator);
	event.page = move.to;
	engine_point(engine, POINT_PAGE_TAKEN, &event);
	engine_point(engine, POINT_MOVE, &event);
	copy_rows(engine, &move);
	if (!canary_copy_page(engine, move.from, move.to))
		return false;
	sequence->pages[move.page_index] = move.to;
	fill_row(engine, sequence, move.page_index);
	allocator_release(&engine->allocator, move.from);
	tell_page(engine, POINT_PAGE_DROPPED, sequence, move.from);
	engine->counts.pages_moved++;
	return true;
}

static bool move_some(struct engine *engine)
{
	int64_t interval = engine->config.move_interval;

	if (interval == 0 || engine->step % interval != 0 || engine->running_count == 0)
		return true;
	return move_page(engine, engine->running[engine->step / interval % engine->running_count]);
}

/* ---- the two halves of a step ---- */

bool scheduler_plan(struct engine *engine)
{
	int64_t prefill_budget = engine->config.chunk_tokens;

	engine->batch.count = engine->batch.token_count = 0;
	if (!abort_some(engine) || !move_some(engine))
		return false;
	/* Every answer that grows gets its token; prompts share the rest. */
	for (int32_t i = 0; i < engine->running_count; i++)
		prefill_budget -= is_decoding(engine->running[i]);
	return schedule_running(engine, &prefill_budget) &&
	       schedule_waiting(engine, &prefill_budget);
}

/* The node that the sequence's blocks so far lead to is still what it was. */
static bool node_stands(const struct engine *engine, const struct sequence *sequence)
{
	const struct prefix_node *node = &engine->tree.nodes[sequence->tree_node];
	const int32_t *pages = prefix_tree_pages(&engine->tree, sequence->tree_node);

	if (sequence->tree_node == PREFIX_ROOT)
		return true;
	return node->parent >= 0 &&
	       node->depth * engine->tree.block_pages <= sequence->page_count &&
	       pages[0] == sequence->pages[(node->depth - 1) * engine->tree.block_pages];
}

/*
 * Let the blocks that are complete join the tree. If another request's copy is there already, this
 * one keeps its own pages and stays out of the tree from here on, so that a path of the tree always
 * is the path of whoever holds its end.
 */
static void join_tree(struct engine *engine, struct sequence *sequence)
{
	struct prefix_tree *tree = &engine->tree;
	int64_t block_tokens = engine->config.block_tokens;
	int64_t whole = sequence->computed < sequence->input_tokens ? sequence->computed
	                                                            : sequence->input_tokens;

	if (!sequence->tree_open)
		return;
	for (int64_t block = tree->nodes[sequence->tree_node].depth;
	        (block + 1) * block_tokens <= whole; block++) {
		int64_t hash_id = engine_hash_id(engine, sequence, block);
		int32_t node = -1;
		if (node_stands(engine, sequence) &&
		        prefix_tree_find(tree, sequence->tree_node, hash_id) < 0)
			node = prefix_tree_insert(tree, sequence->tree_node, hash_id,
			        sequence->pages + block * tree->block_pages);
		if (node < 0) {
			sequence->tree_open = false;
			return;
		}
		sequence->tree_node = node;
	}
}

static void count_tokens(struct engine *engine, struct sequence *sequence, int64_t extend)
{
	struct engine_counts *counts = &engine->counts;

	counts->tokens_written += extend;
	if (is_decoding(sequence)) {
		counts->decode_tokens += extend;
		return;
	}
	counts->prefill_tokens += extend;
	counts->prefill_chunks++;
	if (++sequence->chunks == 2)
		counts->multi_chunk_requests++;
}

/* An answer is given only when all that it was made from is sound; else it starts anew. */
static bool finish_sequence(struct engine *engine, struct sequence *sequence)
{
	if (!check_held(engine, sequence))
		return false;
	recover_mark(engine);
	if (sequence->named) {
		sequence->generated--;
		return true;
	}
	release(engine, sequence);
	sequence->state = SEQUENCE_FINISHED;
	engine->counts.finished++;
	engine->done++;
	return true;
}

static bool commit_sequence(struct engine *engine, struct sequence *sequence, int64_t extend)
{
	count_tokens(engine, sequence, extend);
	sequence->computed += extend;
	if (sequence->named) /* it starts anew, nobody shall share what it wrote */
		return true;
	join_tree(engine, sequence);
	if (sequence->computed < known_tokens(sequence))
		return true;
	sequence->generated++;
	if (sequence->generated < sequence->output_tokens)
		return true;
	return finish_sequence(engine, sequence);
}

bool scheduler_commit(struct engine *engine)
{
	struct batch *batch = &engine->batch;

	recover_mark(engine);
	for (int64_t r = 0; r < batch->count; r++)
		if (!commit_sequence(engine, batch->sequences[r], batch->extend_lens[r]))
			return false;
	return true;
}
