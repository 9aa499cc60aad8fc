/* Timeline and pool maps; recorder.h says what each function promises. */
#include "replay/recorder.h"

#include <stdlib.h>
#include <string.h>

/* Steps between two questions to the guard. */
#define STATS_STEPS 32

bool recorder_open(struct recorder *out, const struct engine *engine, const struct taint *taint,
        struct replay_result *result)
{
	int64_t page_slots = engine->config.page_slots, pages = engine->allocator.page_count;
	int64_t pages_per_cell = (pages + REPLAY_CELLS_MAX - 1) / REPLAY_CELLS_MAX;

	*out = (struct recorder){ .result = result, .taint = taint, .snapshot_interval = 16 };
	result->pool_slots = engine->config.pool_slots;
	result->page_slots = page_slots;
	result->slots_per_cell = pages_per_cell * page_slots;
	result->cell_count = (int32_t)((pages + pages_per_cell - 1) / pages_per_cell);
	result->steps_per_stretch = 1;
	result->stretches = calloc(REPLAY_STRETCHES_MAX, sizeof(*result->stretches));
	out->cell_violations = calloc((size_t)result->cell_count, sizeof(*out->cell_violations));
	out->owners = calloc((size_t)pages, sizeof(*out->owners));
	return result->stretches && out->cell_violations && out->owners;
}

void recorder_close(struct recorder *recorder)
{
	free(recorder->cell_violations);
	free(recorder->owners);
	*recorder = (struct recorder){ 0 };
}

void replay_result_close(struct replay_result *result)
{
	free(result->stretches);
	for (int32_t i = 0; i < result->snapshot_count; i++)
		free(result->snapshots[i].cells);
	*result = (struct replay_result){ 0 };
}

/* ---- the timeline ---- */

/* Two neighbours become one: states of the later, sums of both. */
static void merge(struct replay_stretch *into, const struct replay_stretch *later)
{
	struct replay_stretch sum = *later;

	sum.first_step = into->first_step;
	sum.step_count += into->step_count;
	sum.prefill_tokens += into->prefill_tokens;
	sum.decode_tokens += into->decode_tokens;
	sum.prefix_hit_tokens += into->prefix_hit_tokens;
	sum.slots_verified += into->slots_verified;
	sum.injections += into->injections;
	sum.detections += into->detections;
	sum.violations += into->violations;
	sum.false_alarms += into->false_alarms;
	sum.evictions += into->evictions;
	sum.preemptions += into->preemptions;
	sum.aborts += into->aborts;
	sum.restarts += into->restarts;
	*into = sum;
}

/* Room for one more stretch: halve their number once they fill the array. */
static void make_stretch_room(struct replay_result *result)
{
	if (result->stretch_count < REPLAY_STRETCHES_MAX)
		return;
	for (int32_t i = 0; i < REPLAY_STRETCHES_MAX / 2; i++) {
		result->stretches[i] = result->stretches[2 * i];
		merge(&result->stretches[i], &result->stretches[2 * i + 1]);
	}
	result->stretch_count = REPLAY_STRETCHES_MAX / 2;
	result->steps_per_stretch *= 2;
}

static void fill_states(struct replay_stretch *out, struct engine *engine)
{
	int64_t page_slots = engine->config.page_slots;

	out->running = engine->running_count;
	out->waiting = engine->config.request_count - engine->done - engine->running_count;
	out->slots_free = engine->allocator.free_count * page_slots;
	out->slots_cached = prefix_tree_idle_count(&engine->tree) * engine->config.block_tokens;
	out->slots_live =
	        engine->config.pool_slots - page_slots - out->slots_free - out->slots_cached;
	if (out->slots_live < 0) /* pages that a fault has freed twice */
		out->slots_live = 0;
}

/* What happened since the last stretch was filled. */
static void fill_sums(
        struct replay_stretch *out, struct recorder *recorder, const struct engine *engine)
{
	const struct engine_counts *now = &engine->counts, *then = &recorder->counted;
	const struct taint *taint = recorder->taint;
	kvc_guard_statistics statistics = { .struct_bytes = sizeof(statistics) };
	int64_t detections = 0;

	/* Looks at every slot, so not in each step; a stretch without it leaves its share to the
	 * next one. */
	statistics.slots_verified = recorder->verified;
	if (engine->step - recorder->asked_step >= STATS_STEPS) {
		recorder->asked_step = engine->step;
		if (kvc_guard_stats(engine->guard, &statistics) != KVC_OK)
			statistics.slots_verified = recorder->verified;
	}
	for (int32_t i = 0; i < taint->injection_count; i++)
		detections += taint->injections[i].detected;
	out->prefill_tokens = now->prefill_tokens - then->prefill_tokens;
	out->decode_tokens = now->decode_tokens - then->decode_tokens;
	out->prefix_hit_tokens = now->prefix_hit_tokens - then->prefix_hit_tokens;
	out->evictions = now->evictions - then->evictions;
	out->preemptions = now->preemptions - then->preemptions;
	out->aborts = now->aborts - then->aborts;
	out->restarts = now->restarts - then->restarts;
	out->slots_verified = statistics.slots_verified - recorder->verified;
	out->injections = taint->injection_count - recorder->injections;
	out->detections = detections - recorder->detections;
	out->false_alarms = taint->false_alarms - recorder->alarms;
	out->violations = recorder->violations - recorder->violations_counted;
	recorder->counted = *now;
	recorder->verified = statistics.slots_verified;
	recorder->injections = taint->injection_count;
	recorder->detections = detections;
	recorder->alarms = taint->false_alarms;
	recorder->violations_counted = recorder->violations;
}

/* Close the stretch that ends with this step, of however many steps it has. */
static void end_stretch(struct recorder *recorder, struct engine *engine)
{
	struct replay_result *result = recorder->result;
	struct replay_stretch *stretch = &result->stretches[result->stretch_count - 1];

	fill_states(stretch, engine);
	fill_sums(stretch, recorder, engine);
}

static void add_step(struct recorder *recorder, struct engine *engine)
{
	struct replay_result *result = recorder->result;
	struct replay_stretch *last;

	if (engine->step % result->steps_per_stretch == 0) {
		make_stretch_room(result);
		last = &result->stretches[result->stretch_count++];
		*last = (struct replay_stretch){ .first_step = engine->step };
	}
	last = &result->stretches[result->stretch_count - 1];
	last->step_count++;
	if (last->step_count >= result->steps_per_stretch)
		end_stretch(recorder, engine);
}

/* ---- pool maps ---- */

/* Who holds each page: index of a running request, -1 nobody, -2 the prefix tree alone. */
static void fill_owners(struct recorder *recorder, const struct engine *engine)
{
	const struct prefix_tree *tree = &engine->tree;

	for (int32_t page = 0; page < engine->allocator.page_count; page++)
		recorder->owners[page] = -1;
	for (int32_t node = PREFIX_ROOT + 1; node < tree->node_capacity; node++)
		for (int32_t p = 0; tree->nodes[node].parent >= 0 && p < tree->block_pages; p++)
			recorder->owners[prefix_tree_pages(tree, node)[p]] = -2;
	for (int32_t i = 0; i < engine->running_count; i++)
		for (int32_t p = 0; p < engine->running[i]->page_count; p++)
			recorder->owners[engine->running[i]->pages[p]] = engine->running[i]->index;
}

static void fill_cell(struct replay_cell *cell, const struct recorder *recorder,
        const struct engine *engine, int32_t first, int32_t end)
{
	int32_t page_slots = engine->config.page_slots, most = 0;

	cell->owner = -1;
	for (int32_t page = first; page < end; page++) {
		int64_t owner = recorder->owners[page];
		int32_t same = 0;
		cell->reserved += page == 0 ? page_slots : 0;
		cell->live += page > 0 && owner >= 0 ? page_slots : 0;
		cell->cached += page > 0 && owner == -2 ? page_slots : 0;
		cell->free += page > 0 && owner == -1 ? page_slots : 0;
		for (int32_t s = 0; recorder->taint->marked > 0 && s < page_slots; s++)
			cell->tainted +=
			        recorder->taint->marks[page * (int64_t)page_slots + s] != 0;
		for (int32_t other = first; owner >= 0 && other < end; other++)
			same += recorder->owners[other] == owner;
		if (same > most) {
			most = same;
			cell->owner = owner;
		}
	}
}

/* Room for one more map: drop every other one and take them half as often. */
static void thin_snapshots(struct recorder *recorder)
{
	struct replay_result *result = recorder->result;

	for (int32_t i = 0; i < result->snapshot_count; i++) {
		if (i % 2)
			free(result->snapshots[i].cells);
		else
			result->snapshots[i / 2] = result->snapshots[i];
	}
	result->snapshot_count = (result->snapshot_count + 1) / 2;
	recorder->snapshot_interval *= 2;
}

static void add_snapshot(struct recorder *recorder, const struct engine *engine, int64_t step)
{
	struct replay_result *result = recorder->result;
	int32_t pages_per_cell = (int32_t)(result->slots_per_cell / result->page_slots);
	struct replay_cell *cells;

	if (result->snapshot_count == REPLAY_SNAPSHOTS_MAX)
		thin_snapshots(recorder);
	cells = calloc((size_t)result->cell_count, sizeof(*cells));
	if (!cells)
		return; /* one map less */
	fill_owners(recorder, engine);
	for (int32_t i = 0; i < result->cell_count; i++) {
		int32_t first = i * pages_per_cell, end = first + pages_per_cell;
		if (end > engine->allocator.page_count)
			end = engine->allocator.page_count;
		fill_cell(&cells[i], recorder, engine, first, end);
		cells[i].violations = recorder->cell_violations[i];
		recorder->cell_violations[i] = 0;
	}
	result->snapshots[result->snapshot_count++] = (struct replay_snapshot){ step, cells };
}

void recorder_watch(
        void *context, struct engine *engine, enum engine_point point, struct engine_event *event)
{
	struct recorder *recorder = context;
	const struct replay_result *result = recorder->result;

	if (point == POINT_FINDING) {
		int64_t slot = event->finding->violation.slot;
		recorder->violations++;
		if (slot >= 0 && slot < result->pool_slots)
			recorder->cell_violations[slot / result->slots_per_cell]++;
	}
	if (point != POINT_STEP_DONE)
		return;
	add_step(recorder, engine);
	if ((engine->step + 1) % recorder->snapshot_interval == 0)
		add_snapshot(recorder, engine, engine->step);
}

void recorder_finish(struct recorder *recorder, struct engine *engine)
{
	struct replay_result *result = recorder->result;
	const struct replay_stretch *last;

	if (result->stretch_count == 0)
		return;
	last = &result->stretches[result->stretch_count - 1];
	if (last->step_count < result->steps_per_stretch)
		end_stretch(recorder, engine);
	if (result->snapshot_count == 0 ||
	        result->snapshots[result->snapshot_count - 1].step != engine->step - 1)
		add_snapshot(recorder, engine, engine->step - 1);
}
