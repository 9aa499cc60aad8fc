/* Marks of injected faults and the verdict on findings; taint.h says what each function promises. */
#include "replay/taint.h"

#include <stdlib.h>
#include <string.h>

bool taint_open(struct taint *out, struct engine *engine, int32_t injection_capacity)
{
	size_t slots = (size_t)engine->config.pool_slots;
	size_t pages = (size_t)engine->allocator.page_count;

	*out = (struct taint){ .engine = engine,
		.lenient = !engine->config.checks,
		.injection_capacity = injection_capacity };
	out->marks = calloc(slots, sizeof(*out->marks));
	out->spreads = calloc(slots, sizeof(*out->spreads));
	out->page_marks = calloc(pages, sizeof(*out->page_marks));
	out->holders = calloc(pages, sizeof(*out->holders));
	out->page_writer = calloc(pages, sizeof(*out->page_writer));
	out->sequences = calloc((size_t)engine->config.request_count, sizeof(*out->sequences));
	out->injections = calloc((size_t)injection_capacity + 1, sizeof(*out->injections));
	if (!out->marks || !out->spreads || !out->page_marks || !out->holders ||
	        !out->page_writer || !out->sequences || !out->injections)
		return false;
	for (size_t i = 0; i < pages; i++)
		out->page_writer[i] = -1;
	return true;
}

void taint_close(struct taint *taint)
{
	free(taint->marks);
	free(taint->spreads);
	free(taint->page_marks);
	free(taint->holders);
	free(taint->page_writer);
	free(taint->sequences);
	free(taint->injections);
	*taint = (struct taint){ 0 };
}

/* ---- marks ---- */

static void set_mark(struct taint *taint, int64_t slot, int32_t by, bool spread)
{
	struct injection *injection = &taint->injections[by - 1];
	int32_t old = taint->marks[slot];

	/* The first fault keeps its slots until it has been found and the other one has not. */
	if (old && (old == by || taint->spreading || injection->detected ||
	                   (!taint->lenient && !taint->injections[old - 1].detected)))
		return;
	if (old) {
		taint->injections[old - 1].marked--;
		taint->page_marks[slot / taint->engine->config.page_slots] -= taint->spreads[slot];
	} else {
		taint->marked++;
	}
	taint->marks[slot] = by;
	taint->spreads[slot] = spread;
	taint->page_marks[slot / taint->engine->config.page_slots] += spread;
	injection->marked++;
	injection->tainted_slots++;
	taint->dirty = true;
}

static void clear_page(struct taint *taint, int32_t page)
{
	int64_t page_slots = taint->engine->config.page_slots;

	if (taint->marked == 0)
		return;
	for (int64_t slot = page * page_slots; slot < (page + 1) * page_slots; slot++) {
		if (!taint->marks[slot])
			continue;
		taint->injections[taint->marks[slot] - 1].marked--;
		taint->marks[slot] = 0;
		taint->spreads[slot] = false;
		taint->marked--;
	}
	taint->page_marks[page] = 0;
}

/* ---- spreading ---- */

/* Positions that a sequence has written or is writing in this step. */
static int64_t written(const struct taint *taint, const struct sequence *sequence)
{
	const struct batch *batch = &taint->engine->batch;
	int64_t limit = sequence->page_count * (int64_t)taint->engine->config.page_slots;
	int64_t length = sequence->computed;

	for (int64_t r = 0; r < batch->count; r++)
		if (batch->sequences[r] == sequence)
			length = batch->prefix_lens[r] + batch->extend_lens[r];
	if (length < sequence->computed)
		length = sequence->computed;
	return length < limit ? length : limit;
}

/* The first position whose slot carries a mark that spreads, -1 if there is none. */
static int64_t first_marked(const struct taint *taint, const struct sequence *sequence)
{
	int64_t page_slots = taint->engine->config.page_slots;

	for (int32_t p = 0; p < sequence->page_count; p++) {
		int64_t slot = sequence->pages[p] * page_slots;
		if (!taint->page_marks[sequence->pages[p]])
			continue;
		for (int64_t i = 0; i < page_slots; i++)
			if (taint->spreads[slot + i])
				return p * page_slots + i;
	}
	return -1;
}

static void spread_sequence(struct taint *taint, const struct sequence *sequence)
{
	struct sequence_taint *held = &taint->sequences[sequence->index];
	int64_t from = first_marked(taint, sequence);
	int64_t length;

	if (from >= 0 && (!held->by || from < held->from)) {
		taint->tainted_sequences += !held->by;
		held->by = taint->marks[engine_slot(taint->engine, sequence, from)];
		held->from = from;
		/* The new owner of a page, and whoever shares its blocks, is sound. */
		if (!taint->injections[held->by - 1].retaken)
			held->harmed = true;
	}
	if (!held->by)
		return;
	length = written(taint, sequence);
	for (int64_t position = held->from; position < length; position++)
		set_mark(taint, engine_slot(taint->engine, sequence, position), held->by, true);
}

static int64_t node_slot(const struct taint *taint, int32_t node, int64_t offset)
{
	int64_t page_slots = taint->engine->config.page_slots;

	return prefix_tree_pages(&taint->engine->tree, node)[offset / page_slots] * page_slots +
	       offset % page_slots;
}

static void spread_node(struct taint *taint, int32_t node)
{
	const struct prefix_tree *tree = &taint->engine->tree;
	int64_t block_tokens = taint->engine->config.block_tokens, offset = 0;
	int32_t parent = tree->nodes[node].parent, by = 0, p = 0;

	if (parent > PREFIX_ROOT && taint->spreads[node_slot(taint, parent, block_tokens - 1)])
		by = taint->marks[node_slot(taint, parent, block_tokens - 1)];
	while (!by && p < tree->block_pages && !taint->page_marks[prefix_tree_pages(tree, node)[p]])
		p++;
	if (p == tree->block_pages)
		return;
	for (offset = by ? 0 : p * (int64_t)taint->engine->config.page_slots; offset < block_tokens;
	        offset++) {
		int64_t slot = node_slot(taint, node, offset);
		if (by)
			set_mark(taint, slot, by, true);
		else if (taint->spreads[slot])
			by = taint->marks[slot];
	}
}

/* Follow chains through all that is held, until nothing more is reached. */
static void spread(struct taint *taint)
{
	const struct engine *engine = taint->engine;

	taint->spreading = true;
	while (taint->dirty && (taint->marked > 0 || taint->tainted_sequences > 0)) {
		taint->dirty = false;
		for (int32_t i = 0; i < engine->running_count; i++)
			spread_sequence(taint, engine->running[i]);
		for (int32_t node = PREFIX_ROOT + 1; node < engine->tree.node_capacity; node++)
			if (engine->tree.nodes[node].parent >= 0)
				spread_node(taint, node);
	}
	taint->dirty = taint->spreading = false;
}

/* ---- what the injector says ---- */

struct injection *taint_begin(struct taint *taint, int32_t fault, int64_t declared)
{
	struct injection *injection = &taint->injections[taint->injection_count];

	if (taint->injection_count == taint->injection_capacity)
		return NULL;
	taint->injection_count++;
	*injection = (struct injection){ .fault = fault,
		.declared = declared,
		.step = taint->engine->step,
		.detected_step = -1,
		.damaging = true };
	return injection;
}

void taint_slot(struct taint *taint, int64_t slot, bool spread_too)
{
	set_mark(taint, slot, taint->injection_count, spread_too);
}

void taint_page(struct taint *taint, int32_t page)
{
	int64_t page_slots = taint->engine->config.page_slots;

	for (int64_t i = 0; i < page_slots; i++)
		taint_slot(taint, page * page_slots + i, true);
}

void taint_sequence(struct taint *taint, const struct sequence *sequence, int64_t from)
{
	struct sequence_taint *held = &taint->sequences[sequence->index];

	if (held->by && held->from <= from)
		return;
	taint->tainted_sequences += !held->by;
	held->by = taint->injection_count;
	held->from = from;
	held->harmed = true;
	taint->dirty = true;
}

void taint_hold(struct taint *taint, const struct sequence *sequence, int32_t page)
{
	taint->sequences[sequence->index].holds = true;
	taint->sequences[sequence->index].held_page = page;
	taint->holders[page]++;
}

void taint_culprit(struct injection *injection, int64_t id)
{
	for (int32_t i = 0; i < injection->culprit_count; i++)
		if (injection->culprits[i] == id)
			return;
	/* The latest two: whoever took the page before has lost it again. */
	if (injection->culprit_count == INJECTION_CULPRITS_MAX) {
		injection->culprits[0] = injection->culprits[1];
		injection->culprit_count--;
	}
	injection->culprits[injection->culprit_count++] = id;
}

bool taint_sequence_clean(const struct taint *taint, const struct sequence *sequence)
{
	if (taint->lenient)
		return true;
	if (taint->sequences[sequence->index].by)
		return false;
	for (int32_t p = 0; taint->marked > 0 && p < sequence->page_count; p++)
		if (!taint_page_clean(taint, sequence->pages[p]))
			return false;
	return true;
}

bool taint_page_clean(const struct taint *taint, int32_t page)
{
	int64_t page_slots = taint->engine->config.page_slots;

	for (int64_t i = 0; !taint->lenient && taint->marked > 0 && i < page_slots; i++)
		if (taint->marks[page * page_slots + i])
			return false;
	return true;
}

/* ---- what happens in the engine ---- */

static int32_t page_mark(const struct taint *taint, int32_t page)
{
	int64_t page_slots = taint->engine->config.page_slots;

	for (int64_t i = 0; i < page_slots; i++)
		if (taint->marks[page * page_slots + i])
			return taint->marks[page * page_slots + i];
	return 0;
}

/* One owner of a page changes it: whoever else has written there now reads something wrong. */
static void harm_others(struct taint *taint, int32_t page, const struct sequence *owner)
{
	struct injection *injection = &taint->injections[page_mark(taint, page) - 1];
	int64_t page_slots = taint->engine->config.page_slots;

	for (int32_t i = 0; i < taint->engine->running_count; i++) {
		const struct sequence *other = taint->engine->running[i];
		for (int32_t p = 0; other != owner && p * page_slots < other->computed; p++) {
			if (other->pages[p] != page)
				continue;
			taint->sequences[other->index].harmed = true;
			injection->damaging = true;
		}
	}
}

static void page_taken(struct taint *taint, int32_t page, const struct sequence *sequence)
{
	int32_t by;

	if (taint->holders[page]++ == 0) {
		if (page != 0)
			clear_page(taint, page); /* rightly free, whatever had been there */
		return;
	}
	by = page_mark(taint, page);
	if (!by)
		return;
	/* A page that somebody still holds has a new owner. */
	taint->injections[by - 1].retaken = true;
	if (taint->injections[by - 1].stale_node)
		taint->injections[by - 1].damaging = true;
	taint_culprit(&taint->injections[by - 1], sequence->id);
	harm_others(taint, page, sequence);
}

/* A request that has just been given a block whose pages were freed under it. */
static void note_stale_match(struct taint *taint, const struct sequence *sequence)
{
	const struct prefix_tree *tree = &taint->engine->tree;

	for (int32_t node = sequence->tree_node; node > PREFIX_ROOT;
	        node = tree->nodes[node].parent)
		for (int32_t i = 0; i < taint->injection_count; i++)
			if (taint->injections[i].stale_node == node &&
			        !taint_page_clean(taint, prefix_tree_pages(tree, node)[0]))
				taint->sequences[sequence->index].harmed = true;
}

static void page_dropped(struct taint *taint, int32_t page)
{
	if (--taint->holders[page] == 0)
		clear_page(taint, page);
}

static void released(struct taint *taint, const struct sequence *sequence)
{
	struct sequence_taint *held = &taint->sequences[sequence->index];

	if (held->holds)
		page_dropped(taint, held->held_page);
	taint->tainted_sequences -= held->by != 0;
	*held = (struct sequence_taint){ 0 };
}

/* A step is about to read the prefixes of its batch. */
static void note_reads(struct taint *taint)
{
	const struct batch *batch = &taint->engine->batch;

	for (int64_t r = 0; r < batch->count; r++) {
		const struct sequence_taint *held = &taint->sequences[batch->sequences[r]->index];
		if (held->by && held->harmed && batch->prefix_lens[r] > held->from &&
		        taint->injections[held->by - 1].damaging)
			taint->injections[held->by - 1].read = true;
	}
}

static void note_writers(struct taint *taint)
{
	const struct batch *batch = &taint->engine->batch;
	int64_t page_slots = taint->engine->config.page_slots;

	for (int64_t r = 0; r < batch->count; r++) {
		for (int64_t i = 0; i < batch->extend_lens[r]; i++) {
			int32_t page = (int32_t)(batch->slots[batch->first[r] + i] / page_slots);
			taint->page_writer[page] = batch->owners[r];
			if (taint->page_marks[page] && taint->holders[page] > 1)
				harm_others(taint, page, batch->sequences[r]);
		}
	}
}

/* ---- verdict ---- */

/* The guard names no culprit when the victim did it itself. */
static bool names_culprit(const struct injection *injection, const kvc_finding *finding)
{
	int64_t named =
	        finding->culprit_request >= 0 ? finding->culprit_request : finding->victim_request;

	for (int32_t i = 0; i < injection->culprit_count; i++)
		if (injection->culprits[i] == named)
			return true;
	return false;
}

static void judge(struct taint *taint, const kvc_finding *finding)
{
	int64_t slot = finding->violation.slot;
	int32_t by = 0;
	struct injection *injection;

	if (taint->dirty)
		spread(taint);
	if (slot >= 0 && slot < taint->engine->config.pool_slots)
		by = taint->marks[slot];
	if (!by) {
		if (taint->alarm_count <
		        (int32_t)(sizeof(taint->alarms) / sizeof(taint->alarms[0])))
			taint->alarms[taint->alarm_count++] = *finding;
		taint->false_alarms++;
		taint->step_alarms++;
		return;
	}
	injection = &taint->injections[by - 1];
	if (injection->detected)
		return;
	if (!(finding->violation.reasons & injection->declared)) {
		injection->other |= finding->violation.reasons;
		return;
	}
	injection->detected = true;
	injection->detected_step = taint->engine->step;
	injection->finding = *finding;
	injection->culprit_right = names_culprit(injection, finding);
	taint->step_detections++;
}

void taint_watch(
        void *context, struct engine *engine, enum engine_point point, struct engine_event *event)
{
	struct taint *taint = context;

	(void)engine;
	switch (point) {
	case POINT_ADMITTED:
		note_stale_match(taint, event->sequence);
		break;
	case POINT_PAGE_TAKEN:
		page_taken(taint, event->page, event->sequence);
		taint->dirty = true;
		break;
	case POINT_PAGE_SHARED:
		taint->holders[event->page]++;
		taint->dirty = true;
		break;
	case POINT_PAGE_DROPPED:
		page_dropped(taint, event->page);
		break;
	case POINT_RELEASED:
		released(taint, event->sequence);
		break;
	case POINT_BATCH:
		taint->dirty = true;
		spread(taint);
		note_reads(taint);
		note_writers(taint);
		break;
	case POINT_STEP_END:
		taint->dirty = true;
		spread(taint);
		break;
	case POINT_FINDING:
		judge(taint, event->finding);
		break;
	default:
		break;
	}
}
