/*
 * What the engine does about a violation: it drops what the finding names, that is the slot's
 * block in the prefix tree with all below it, and every request that holds the slot's page or is
 * the victim. It knows nothing else of what is wrong.
 */
#include "replay/engine.h"

#include <string.h>

/* A request that is named again and again is given up, so that the run ends. */
#define RESTARTS_MAX 16

void recover_note(struct engine *engine, const kvc_finding *finding)
{
	int64_t slot = finding->violation.slot;
	int64_t page = slot / engine->config.page_slots;

	/* The reserved page belongs to nobody: there the victim alone is named. */
	if (slot >= 0 && page > 0 && page < engine->allocator.page_count)
		engine->named_pages[page] = 1;
	for (int32_t i = 0; i < engine->running_count; i++)
		if (engine->running[i]->id == finding->victim_request)
			engine->running[i]->named = true;
	engine->any_named = true;
}

void recover_mark(struct engine *engine)
{
	if (!engine->any_named)
		return;
	for (int32_t i = 0; i < engine->running_count; i++) {
		struct sequence *sequence = engine->running[i];
		for (int32_t p = 0; p < sequence->page_count && !sequence->named; p++)
			sequence->named = engine->named_pages[sequence->pages[p]];
	}
}

static void remove_blocks(struct engine *engine)
{
	struct prefix_tree *tree = &engine->tree;

	for (int32_t node = PREFIX_ROOT + 1; node < tree->node_capacity; node++) {
		bool named = false;
		if (tree->nodes[node].parent < 0)
			continue;
		for (int32_t p = 0; p < tree->block_pages && !named; p++)
			named = engine->named_pages[prefix_tree_pages(tree, node)[p]];
		if (named)
			prefix_tree_remove(tree, node);
	}
}

static bool restart(struct engine *engine, struct sequence *sequence)
{
	if (!scheduler_release(engine, sequence))
		return false;
	if (sequence->restarts++ < RESTARTS_MAX) {
		engine->counts.restarts++;
		scheduler_requeue(engine, sequence);
		return true;
	}
	sequence->state = SEQUENCE_ABORTED;
	engine->counts.aborts++;
	engine->done++;
	return true;
}

bool recover_run(struct engine *engine)
{
	while (engine->any_named) {
		struct sequence *sequence = NULL;
		recover_mark(engine);
		remove_blocks(engine);
		/* The youngest first, so that the oldest ends up at the front of the queue. */
		for (int32_t i = engine->running_count; i > 0 && !sequence; i--)
			if (engine->running[i - 1]->named)
				sequence = engine->running[i - 1];
		if (sequence && !restart(engine, sequence))
			return false;
		/* Releasing may have found more; only a round without a request ends it. */
		if (!sequence) {
			memset(engine->named_pages, 0, (size_t)engine->allocator.page_count);
			engine->any_named = false;
		}
	}
	return true;
}
