/* When faults are injected, and what they choose from; faults.h says what each function promises. */
#include "replay/faults.h"
#include "replay/model.h"

#include <stdlib.h>
#include <string.h>

bool injector_open(struct injector *out, struct engine *engine, struct taint *taint,
        const bool *chosen, int32_t per_fault, uint64_t seed)
{
	size_t pages = (size_t)engine->allocator.page_count;

	*out = (struct injector){ .engine = engine,
		.taint = taint,
		.random = model_mix(seed ^ 0xFA017),
		.per_fault = per_fault,
		.last_step = -1 };
	memcpy(out->chosen, chosen, sizeof(out->chosen));
	out->slots = calloc((size_t)engine->config.chunk_tokens, sizeof(*out->slots));
	out->rows = calloc((size_t)engine->config.page_slots * 2, (size_t)engine->row_bytes * 4);
	out->former_holder = calloc(pages, sizeof(*out->former_holder));
	out->former_position = calloc(pages, sizeof(*out->former_position));
	if (!out->slots || !out->rows || !out->former_holder || !out->former_position)
		return false;
	for (size_t i = 0; i < pages; i++)
		out->former_holder[i] = -1;
	return true;
}

void injector_close(struct injector *injector)
{
	free(injector->slots);
	free(injector->rows);
	free(injector->former_holder);
	free(injector->former_position);
	*injector = (struct injector){ 0 };
}

int64_t injector_draw(struct injector *injector, int64_t count)
{
	injector->random += 0x9E3779B97F4A7C15u;
	return (int64_t)(model_mix(injector->random) % (uint64_t)count);
}

struct injection *injector_begin(struct injector *injector)
{
	struct injection *injection =
	        taint_begin(injector->taint, injector->kind, fault_kinds[injector->kind].declared);

	if (injection)
		injector->last_step = injector->engine->step;
	return injection;
}

/* ---- choosing ---- */

struct sequence *injector_pick(
        struct injector *injector, int64_t computed, int64_t left, const struct sequence *other)
{
	struct engine *engine = injector->engine;
	int32_t count = engine->running_count;
	int32_t first = count > 0 ? (int32_t)injector_draw(injector, count) : 0;

	for (int32_t i = 0; i < count; i++) {
		struct sequence *sequence = engine->running[(first + i) % count];
		/* Not one that its client gives up soon: nothing would come of the fault. */
		if (sequence == other || sequence->named || sequence->abort_at >= 0 ||
		        sequence->computed < computed ||
		        sequence->output_tokens - sequence->generated < left)
			continue;
		if (taint_sequence_clean(injector->taint, sequence))
			return sequence;
	}
	return NULL;
}

int32_t injector_own_page(struct injector *injector, const struct sequence *sequence)
{
	const struct engine *engine = injector->engine;
	/* The last full page may be on its way elsewhere, so it is left out. */
	int32_t count = (int32_t)(sequence->computed / engine->config.page_slots) - 1;
	int32_t first = count > 0 ? (int32_t)injector_draw(injector, count) : 0;

	for (int32_t i = 0; i < count; i++) {
		int32_t index = (first + i) % count, page = sequence->pages[index];
		if (engine->allocator.refs[page] == 1 && injector->taint->holders[page] == 1 &&
		        taint_page_clean(injector->taint, page))
			return index;
	}
	return -1;
}

/* Of the idle blocks the youngest, which would be evicted last. */
static int64_t pick_idle_slot(struct injector *injector)
{
	const struct engine *engine = injector->engine;
	const struct prefix_tree *tree = &engine->tree;
	int64_t page_slots = engine->config.page_slots;
	int32_t node = tree->newest, page;

	while (node >= 0 && (tree->nodes[node].children > 0 || !prefix_tree_idle(tree, node)))
		node = tree->nodes[node].older;
	if (node < 0)
		return -1;
	page = prefix_tree_pages(tree, node)[injector_draw(injector, tree->block_pages)];
	if (injector->taint->holders[page] != 1 || !taint_page_clean(injector->taint, page))
		return -1;
	return page * page_slots + injector_draw(injector, page_slots);
}

int64_t injector_pick_slot(struct injector *injector)
{
	int64_t page_slots = injector->engine->config.page_slots;
	struct sequence *sequence;
	int32_t index;

	/* Now and then where nobody looks until it is swept or shared; most of it never is. */
	if (injector->injected[injector->kind] % 4 == 3) {
		int64_t slot = pick_idle_slot(injector);
		if (slot >= 0)
			return slot;
	}
	sequence = injector_pick(injector, 2 * page_slots, 2, NULL);
	index = sequence ? injector_own_page(injector, sequence) : -1;
	if (index < 0)
		return -1;
	return sequence->pages[index] * page_slots + injector_draw(injector, page_slots);
}

/* ---- timing ---- */

/* Requests admitted before injection 'n' of a fault is due; each fault at other moments. */
static int64_t due_at(const struct injector *injector, int32_t kind, int32_t n)
{
	double requests = (double)injector->engine->config.request_count;
	double jitter = (double)(model_mix((uint64_t)kind * 977 + (uint64_t)n) % 1000) / 1000.0;

	return (int64_t)(0.95 * requests * (n + jitter) / injector->per_fault);
}

static void try_faults(
        struct injector *injector, enum engine_point point, struct engine_event *event)
{
	struct engine *engine = injector->engine;

	for (int32_t i = 0; i < fault_kind_count; i++) {
		int32_t kind = (i + (int32_t)(engine->step % fault_kind_count)) % fault_kind_count;
		if (!injector->chosen[kind] || fault_kinds[kind].point != point ||
		        injector->injected[kind] == injector->per_fault ||
		        engine->next_arrival < due_at(injector, kind, injector->injected[kind]))
			continue;
		injector->kind = kind;
		if (!fault_kinds[kind].inject(injector, event))
			continue;
		injector->injected[kind]++;
		return;
	}
}

static void note_former(struct injector *injector, const struct sequence *sequence)
{
	int64_t page_slots = injector->engine->config.page_slots;

	for (int32_t p = 0; p < sequence->page_count; p++) {
		injector->former_holder[sequence->pages[p]] = sequence->index;
		injector->former_position[sequence->pages[p]] = p * page_slots;
	}
}

void injector_watch(
        void *context, struct engine *engine, enum engine_point point, struct engine_event *event)
{
	struct injector *injector = context;

	if (point == POINT_RELEASING)
		note_former(injector, event->sequence);
	/* One fault a step, so that each can be told from the others. */
	if (injector->last_step != engine->step)
		try_faults(injector, point, event);
}
