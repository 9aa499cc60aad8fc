/* The order of a comparison: align, explain tensors, measure, judge, explain rows, decide. */
#include "snapshot/diff/diff.h"
#include "snapshot/reader.h"
#include "snapshot/work.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Cells that are measured before they are judged: 16 bytes each. */
#define CELLS_MAX ((int64_t)3 << 20)
#define MAP_CELLS_MAX ((int64_t)1 << 17)
#define MAP_COLUMNS_MAX 2048
#define KINDS_MAX 32

/* ---- findings ---- */

static struct diff_tally *tally_of_kind(struct diff_result *result, const char *kind)
{
	for (int64_t i = 0; i < result->tally_count; i++)
		if (strcmp(result->tallies[i].kind, kind) == 0)
			return &result->tallies[i];
	if (!result->tallies)
		result->tallies = calloc(KINDS_MAX, sizeof(*result->tallies));
	if (!result->tallies || result->tally_count == KINDS_MAX)
		return NULL;
	result->tallies[result->tally_count].kind = kind;
	return &result->tallies[result->tally_count++];
}

struct diff_finding *diff_add(
        struct diff_result *result, const char *kind, enum finding_weight weight)
{
	struct diff_tally *tally = tally_of_kind(result, kind);
	struct diff_finding *finding;

	if (!tally || tally->count++ >= DIFF_FINDINGS_PER_KIND)
		return NULL;
	if (result->finding_count % 64 == 0) {
		void *grown = realloc(result->findings,
		        (size_t)(result->finding_count + 64) * sizeof(*result->findings));
		if (!grown)
			return NULL;
		result->findings = grown;
	}
	finding = &result->findings[result->finding_count++];
	*finding = (struct diff_finding){ .place = finding_blank(kind, weight),
		.row_a = -1,
		.offset_a = UINT64_MAX,
		.count = 1,
		.bit = -1 };
	return finding;
}

int64_t diff_count(const struct diff_result *result, const char *kind)
{
	for (int64_t i = 0; i < result->tally_count; i++)
		if (strcmp(result->tallies[i].kind, kind) == 0)
			return result->tallies[i].count;
	return 0;
}

void diff_set_place(struct diff_finding *finding, const struct diff_stack_result *stack,
        const struct diff_target *target, const struct diff_pair *pair)
{
	struct diff_place a = pair->side[DIFF_A], b = pair->side[DIFF_B];
	const struct saved_cache *cache[2] = { target->source[0].cache, target->source[1].cache };
	const struct saved_part *part = &cache[DIFF_B]->parts[b.part];
	const struct saved_part *part_a = &cache[DIFF_A]->parts[a.part];
	const struct saved_tensor *tensor_a = diff_tensor(&target->source[DIFF_A], a.part);
	const struct saved_tensor *tensor_b = diff_tensor(&target->source[DIFF_B], b.part);

	finding->place.part = stack->stack->name;
	finding->place.stream = part->stream;
	finding->place.layer = part->layers[stack->stack->layer[DIFF_B][target->layer]].number;
	finding->place.tensor = target->tensor;
	finding->place.row = b.row;
	finding->row_a = a.row;
	finding->place.position = saved_position(part, b.row);
	finding->place.token = part->tokens ? part->tokens[b.row] : -1;
	if (finding->place.token < 0 && part_a->tokens)
		finding->place.token = part_a->tokens[a.row];
	finding->place.offset = saved_offset(tensor_b, b.row, 0, 0);
	finding->place.file = saved_offset_file(tensor_b, b.row);
	finding->offset_a = saved_offset(tensor_a, a.row, 0, 0);
	finding->file_a = saved_offset_file(tensor_a, a.row);
}

/* ---- targets ---- */

static const char *why_not_comparable(const struct saved_tensor *a, const struct saved_tensor *b)
{
	if (!a->present && !b->present)
		return NULL;
	if (!a->present || !b->present)
		return "one file has none";
	if (a->heads * a->dim != b->heads * b->dim)
		return "rows have other sizes";
	if (a->type == SAVED_OPAQUE || b->type == SAVED_OPAQUE)
		return "the meaning of its bytes is not known";
	return "rows are too large";
}

/* All parts of a stack must agree, since rows of any of them are read into one buffer. */
static void set_up_target(struct diff_target *target, const struct diff_stack *stack)
{
	target->compared = stack->pair_count > 0;
	for (int64_t i = 0; target->compared && i < stack->part_count[0]; i++)
		/* All of A with one of B, and one of A with all of B: like is like with the rest. */
		for (int64_t j = 0; target->compared && j < (i > 0 ? 1 : stack->part_count[1]);
		        j++) {
			const struct saved_tensor *a =
			        diff_tensor(&target->source[0], stack->parts[0][i]);
			const struct saved_tensor *b =
			        diff_tensor(&target->source[1], stack->parts[1][j]);
			if (!diff_comparable(a, b)) {
				target->compared = false;
				target->why_not = why_not_comparable(a, b);
				continue;
			}
			target->floor = fmaxf(target->floor, diff_floor(diff_precision(a, b)));
			target->unit = diff_unit(a, b);
		}
}

static bool same_width_in_parts(const struct diff_target *target, const struct diff_stack *stack)
{
	int64_t width = -1;

	for (int side = 0; side < 2; side++)
		for (int64_t i = 0; i < stack->part_count[side]; i++) {
			const struct saved_tensor *t =
			        diff_tensor(&target->source[side], stack->parts[side][i]);
			if (width >= 0 && t->heads * t->dim != width)
				return false;
			width = t->heads * t->dim;
		}
	return true;
}

static bool make_targets(struct diff_result *result, struct diff_stack_result *out)
{
	const struct diff_stack *stack = out->stack;

	out->targets = calloc((size_t)(2 * stack->layer_count) + 1, sizeof(*out->targets));
	if (!out->targets)
		return false;
	for (int64_t i = 0; i < 2 * stack->layer_count; i++) {
		struct diff_target *target = &out->targets[i];
		target->layer = i / 2;
		target->tensor = (int)(i % 2);
		for (int side = 0; side < 2; side++)
			target->source[side] = (struct diff_source){ result->alignment.cache[side],
				stack->layer[side][i / 2], target->tensor, 0, NULL };
		set_up_target(target, stack);
		if (target->compared && !same_width_in_parts(target, stack)) {
			target->compared = false;
			target->why_not = "rows have other sizes";
		}
		result->compared += target->compared;
		result->not_compared += target->why_not != NULL;
	}
	return true;
}

struct ranked {
	int64_t part, position;
	int32_t pair;
};

static int order_ranked(const void *left, const void *right)
{
	const struct ranked *a = left, *b = right;

	if (a->part != b->part)
		return a->part < b->part ? -1 : 1;
	if (a->position != b->position)
		return a->position < b->position ? -1 : 1;
	return (a->pair > b->pair) - (a->pair < b->pair);
}

/* Columns of the map follow positions, not cells. */
static bool rank_pairs(const struct diff_result *result, struct diff_stack_result *out)
{
	int64_t count = out->stack->pair_count;
	struct ranked *list = calloc((size_t)count + 1, sizeof(*list));

	out->order = calloc((size_t)count + 1, sizeof(*out->order));
	if (list && out->order) {
		for (int64_t i = 0; i < count; i++) {
			struct diff_place a = out->stack->pairs[i].side[DIFF_A];
			const struct saved_part *part =
			        &result->alignment.cache[DIFF_A]->parts[a.part];
			list[i] =
			        (struct ranked){ a.part, saved_position(part, a.row), (int32_t)i };
		}
		qsort(list, (size_t)count, sizeof(*list), order_ranked);
		for (int64_t i = 0; i < count; i++)
			out->order[list[i].pair] = (int32_t)i;
	}
	free(list);
	return list && out->order;
}

static bool make_stack_result(struct diff_result *result, struct diff_stack_result *out)
{
	int64_t count = out->stack->pair_count, targets = 2 * out->stack->layer_count;
	size_t rows = (size_t)count + 1;

	out->columns = targets ? MAP_CELLS_MAX / targets : 1;
	out->columns = out->columns > MAP_COLUMNS_MAX ? MAP_COLUMNS_MAX : out->columns;
	out->columns = out->columns > count ? count : out->columns;
	out->columns = out->columns > 0 ? out->columns : 1;
	out->map = calloc((size_t)(targets * out->columns) + 1, sizeof(*out->map));
	out->explained = calloc(rows, 1);
	for (int tensor = 0; tensor < 2; tensor++)
		out->changed_layers[tensor] = calloc(rows, sizeof(uint16_t));
	return out->map && out->explained && out->changed_layers[0] && out->changed_layers[1] &&
	       make_targets(result, out) && rank_pairs(result, out);
}

/* ---- measuring and judging a stretch of rows ---- */

struct stretch_of_rows {
	struct diff_context *context;
	struct diff_stack_result *stack;
	struct diff_layer_cells *layers;
	struct diff_cell *cells; /* [targets][rows] */
	int64_t first, rows;
	struct saved_error *errors; /* one for each thread */
	bool *failed;
};

static bool measure_target(void *context, int64_t item, int thread)
{
	struct stretch_of_rows *stretch = context;
	struct diff_target *target = &stretch->stack->targets[item];
	const struct diff_pair *pairs = stretch->stack->stack->pairs + stretch->first;
	struct diff_cell *cells = stretch->cells + item * stretch->rows;

	if (!target->compared)
		return true;
	if (diff_measure(cells, &target->sums, &target->source[0], &target->source[1], pairs,
	            stretch->rows, &stretch->context->buffers[thread],
	            &stretch->errors[thread]) != 0) {
		stretch->failed[thread] = true;
		return false;
	}
	for (int64_t i = 0; i < stretch->rows; i++)
		if (stretch->stack->explained[stretch->first + i])
			cells[i].flags |= DIFF_EXPLAINED;
	return true;
}

static bool measure_stretch(struct stretch_of_rows *stretch)
{
	int threads = stretch->context->options->threads;
	bool good;

	stretch->errors = calloc((size_t)threads, sizeof(*stretch->errors));
	stretch->failed = calloc((size_t)threads, sizeof(*stretch->failed));
	good = stretch->errors && stretch->failed;
	good = good &&
	       work_run(2 * stretch->stack->stack->layer_count, threads, measure_target, stretch);
	for (int i = 0; stretch->failed && i < threads; i++)
		if (stretch->failed[i])
			*stretch->context->error = stretch->errors[i];
	free(stretch->errors);
	free(stretch->failed);
	return good;
}

static void add_to_map(
        struct diff_stack_result *stack, int64_t target, int64_t pair, const struct diff_cell *cell)
{
	int64_t column = (int64_t)stack->order[pair] * stack->columns / stack->stack->pair_count;
	struct diff_map_cell *at = &stack->map[target * stack->columns + column];
	bool same = !at->flags || (at->flags == cell->flags && at->flags == DIFF_SAME);

	/* "Same" only if all of them are. */
	at->flags = same ? cell->flags : (uint8_t)((at->flags | cell->flags) & ~DIFF_SAME);
	if (at->pair < 0 || cell->relative > at->relative || (cell->flags & DIFF_NONFINITE)) {
		at->relative = cell->flags & DIFF_NONFINITE ? INFINITY : cell->relative;
		at->unit = cell->unit;
		at->pair = (int32_t)pair;
	}
}

static void keep_changed(struct diff_stack_result *stack, struct diff_target *target, int64_t pair,
        const struct diff_cell *cell)
{
	uint16_t *layers = &stack->changed_layers[target->tensor][pair];

	target->changed++;
	if (*layers < UINT16_MAX)
		++*layers;
	if (!target->kept)
		target->kept = calloc(DIFF_KEPT, sizeof(*target->kept));
	if (target->kept && target->kept_count < DIFF_KEPT)
		target->kept[target->kept_count++] = (struct diff_changed){ pair, *cell };
}

static void gather_cells(struct stretch_of_rows *stretch, int64_t item)
{
	struct diff_stack_result *stack = stretch->stack;
	struct diff_target *target = &stack->targets[item];
	const struct diff_drift *drift = &stretch->layers[item / 2].drift[item % 2];

	for (int64_t i = 0; i < stretch->rows; i++) {
		const struct diff_cell *cell = &stretch->cells[item * stretch->rows + i];
		int64_t pair = stretch->first + i;
		add_to_map(stack, item, pair, cell);
		target->rows++;
		if ((cell->flags & (DIFF_SAME | DIFF_EXPLAINED)))
			continue;
		target->different++;
		if (target->first_different < 0 ||
		        stack->order[pair] < stack->order[target->first_different])
			target->first_different = pair;
		if (target->worst < 0 || cell->relative > target->worst_cell.relative ||
		        (cell->flags & DIFF_NONFINITE)) {
			target->worst = pair;
			target->worst_cell = *cell;
		}
		if (cell->flags & DIFF_CHANGED)
			keep_changed(stack, target, pair, cell);
	}
	if (drift->scale > 0) {
		target->typical = fmax(target->typical, exp(drift->error_center) / drift->scale);
		target->limit = fmax(target->limit, diff_limit(drift));
	}
}

static bool judge_stretch(struct stretch_of_rows *stretch)
{
	int64_t layer_count = stretch->stack->stack->layer_count;
	const char *name = stretch->stack->stack->name;
	/* The base and window caches of a model begin at whatever layer of it. */
	bool is_part = strcmp(name, "base") == 0 || strcmp(name, "window") == 0;

	if (!measure_stretch(stretch))
		return false;
	for (int64_t i = 0; i < layer_count; i++) {
		struct diff_layer_cells *layer = &stretch->layers[i];
		memset(layer, 0, sizeof(*layer));
		layer->may_begin_drift = i > 0 || is_part;
		for (int tensor = 0; tensor < 2; tensor++) {
			const struct diff_target *target = &stretch->stack->targets[2 * i + tensor];
			if (!target->compared)
				continue;
			layer->cell[tensor] = stretch->cells + (2 * i + tensor) * stretch->rows;
			layer->floor[tensor] = target->floor;
			layer->unit[tensor] = target->unit;
		}
	}
	if (!diff_judge(stretch->layers, layer_count, stretch->rows))
		return false;
	for (int64_t item = 0; item < 2 * layer_count; item++)
		if (stretch->stack->targets[item].compared)
			gather_cells(stretch, item);
	return true;
}

static void reset_stack(struct diff_stack_result *stack)
{
	int64_t targets = 2 * stack->stack->layer_count;

	for (int64_t i = 0; i < targets; i++) {
		struct diff_target *target = &stack->targets[i];
		memset(&target->sums, 0, sizeof(target->sums));
		target->rows = target->different = target->changed = target->kept_count = 0;
		target->first_different = target->worst = -1;
		target->typical = target->limit = 0;
	}
	for (int64_t i = 0; i < targets * stack->columns; i++)
		stack->map[i] = (struct diff_map_cell){ .pair = -1 };
	for (int tensor = 0; tensor < 2; tensor++)
		memset(stack->changed_layers[tensor], 0,
		        (size_t)stack->stack->pair_count * sizeof(uint16_t));
}

static bool judge_stack(struct diff_context *context, struct diff_stack_result *stack)
{
	int64_t targets = 2 * stack->stack->layer_count, rows = stack->stack->pair_count;
	struct stretch_of_rows stretch = { .context = context, .stack = stack };
	int64_t most = targets ? CELLS_MAX / targets : rows;
	bool good;

	reset_stack(stack);
	if (!targets || !rows)
		return true;
	most = most < 1 ? 1 : most > rows ? rows : most;
	stretch.cells = calloc((size_t)(targets * most), sizeof(*stretch.cells));
	stretch.layers = calloc((size_t)stack->stack->layer_count, sizeof(*stretch.layers));
	good = stretch.cells && stretch.layers;
	for (int64_t first = 0; good && first < rows; first += most) {
		stretch.first = first;
		stretch.rows = rows - first < most ? rows - first : most;
		good = judge_stretch(&stretch);
	}
	free(stretch.cells);
	free(stretch.layers);
	return good;
}

/* ---- what the lists of cells say ---- */

static bool is_changed_row(const struct diff_stack_result *stack, int64_t pair)
{
	return stack->changed_layers[0][pair] || stack->changed_layers[1][pair];
}

static void add_token_finding(struct diff_context *context, struct diff_stack_result *stack,
        int64_t pair, const char *kind, int64_t was, int64_t now)
{
	struct diff_finding *finding = diff_add(context->result, kind, FINDING_DAMAGE);
	const struct saved_part *part;

	if (!finding || stack->stack->layer_count == 0)
		return;
	diff_set_place(finding, stack, &stack->targets[0], &stack->stack->pairs[pair]);
	finding->place.layer = finding->place.tensor = -1;
	finding->place.offset = finding->offset_a = UINT64_MAX;
	finding->place.file = finding->file_a = NULL;
	part = &context->result->alignment.cache[DIFF_B]
	                ->parts[stack->stack->pairs[pair].side[DIFF_B].part];
	if (strcmp(kind, "token_mismatch") == 0 && part->cell_offsets)
		finding->place.offset = part->cell_offsets[finding->place.row];
	finding->was = was;
	finding->now = now;
	finding->has_was = true;
}

static int64_t token_of_pair(const struct diff_context *context,
        const struct diff_stack_result *stack, int64_t pair, int side, bool of_cell)
{
	struct diff_place place = stack->stack->pairs[pair].side[side];
	const struct saved_part *part = &context->result->alignment.cache[side]->parts[place.part];
	const int64_t *list = of_cell ? part->cell_tokens : part->tokens;

	return list ? list[place.row] : -1;
}

static bool tokens_differ(const struct diff_context *context, const struct diff_stack_result *stack,
        int64_t pair, bool of_cell)
{
	int64_t a = token_of_pair(context, stack, pair, DIFF_A, of_cell);
	int64_t b = token_of_pair(context, stack, pair, DIFF_B, of_cell);

	return a >= 0 && b >= 0 && a != b;
}

/*
 * Rows whose tokens differ. Where K or V differ as well the texts are different from there on, and
 * no later row of that part can be judged; else only the list was changed.
 */
static void compare_tokens(
        struct diff_context *context, struct diff_stack_result *stack, bool *found)
{
	int64_t count = stack->stack->pair_count, first = -1;

	for (int64_t pair = 0; pair < count; pair++) {
		bool list = tokens_differ(context, stack, pair, false);
		bool cell = tokens_differ(context, stack, pair, true);
		if (stack->explained[pair] || (!list && !cell))
			continue;
		if (list && is_changed_row(stack, pair)) {
			if (first < 0 || stack->order[pair] < stack->order[first])
				first = pair;
			continue;
		}
		add_token_finding(context, stack, pair, list ? "token_changed" : "token_mismatch",
		        token_of_pair(context, stack, pair, DIFF_A, !list),
		        token_of_pair(context, stack, pair, DIFF_B, !list));
	}
	if (first < 0)
		return;
	*found = true;
	add_token_finding(context, stack, first, "other_tokens",
	        token_of_pair(context, stack, first, DIFF_A, false),
	        token_of_pair(context, stack, first, DIFF_B, false));
	for (int64_t pair = 0; pair < count; pair++)
		if (stack->stack->pairs[pair].side[0].part ==
		                stack->stack->pairs[first].side[0].part &&
		        stack->order[pair] >= stack->order[first])
			stack->explained[pair] = 1;
}

/* Rows that only one side has, as one finding for each run of positions. */
static void report_missing_rows(
        struct diff_context *context, const struct diff_stack *stack, int side)
{
	const struct diff_places *only = &stack->only[side];

	for (int64_t i = 0, end; i < only->count; i = end) {
		struct diff_place place = only->list[i];
		const struct saved_part *part =
		        &context->result->alignment.cache[side]->parts[place.part];
		int64_t position = saved_position(part, place.row);
		struct diff_finding *finding;
		for (end = i + 1; end < only->count && only->list[end].part == place.part; end++)
			if (saved_position(part, only->list[end].row) != position + end - i)
				break;
		finding = diff_add(context->result, "missing_row", FINDING_DAMAGE);
		if (!finding)
			continue;
		finding->place.part = stack->name;
		finding->place.stream = part->stream;
		finding->place.position = position;
		finding->place.token = part->tokens ? part->tokens[place.row] : -1;
		*(side == DIFF_A ? &finding->row_a : &finding->place.row) = place.row;
		finding->count = end - i;
		snprintf(finding->place.detail, sizeof(finding->place.detail), "only in %s",
		        side == DIFF_A ? "A" : "B");
	}
}

static void report_missing_layers(struct diff_context *context)
{
	const struct diff_alignment *alignment = &context->result->alignment;

	for (int64_t i = 0; i < alignment->missing_layer_count; i++) {
		const struct diff_missing_layer *missing = &alignment->missing_layers[i];
		struct diff_finding *finding =
		        diff_add(context->result, "missing_layer", FINDING_DAMAGE);
		if (!finding)
			continue;
		finding->place.part = missing->stack;
		finding->place.layer = missing->number;
		snprintf(finding->place.detail, sizeof(finding->place.detail), "only in %s",
		        missing->side == DIFF_A ? "A" : "B");
	}
	for (int64_t s = 0; s < alignment->stack_count; s++)
		for (int64_t i = 0; i < 2 * alignment->stacks[s].layer_count; i++) {
			const struct diff_target *target = &context->result->stacks[s].targets[i];
			struct diff_finding *finding;
			if (!target->why_not)
				continue;
			finding = diff_add(context->result, "not_comparable", FINDING_DOUBT);
			if (!finding)
				continue;
			finding->place.part = alignment->stacks[s].name;
			finding->place.layer =
			        alignment->cache[DIFF_A]
			                ->parts[alignment->stacks[s].parts[0][0]]
			                .layers[alignment->stacks[s].layer[0][target->layer]]
			                .number;
			finding->place.tensor = target->tensor;
			snprintf(finding->place.detail, sizeof(finding->place.detail), "%s",
			        target->why_not);
		}
}

/* What the files say of their origin: of other models or tokenizers nothing is to be compared. */
static void compare_identity(struct diff_context *context)
{
	const struct saved_cache *const *cache = context->result->alignment.cache;

	for (int64_t i = 0; i < cache[DIFF_A]->identity_count; i++)
		for (int64_t j = 0; j < cache[DIFF_B]->identity_count; j++) {
			const struct saved_identity *a = &cache[DIFF_A]->identity[i];
			const struct saved_identity *b = &cache[DIFF_B]->identity[j];
			struct diff_finding *finding;
			if (strcmp(a->field, b->field) != 0 || strcmp(a->value, b->value) == 0)
				continue;
			finding = diff_add(context->result, "identity", FINDING_DOUBT);
			if (finding)
				snprintf(finding->place.detail, sizeof(finding->place.detail),
				        "%s is %.60s in A and %.60s in B", a->field, a->value,
				        b->value);
		}
}

/* ---- all of it ---- */

static bool compare_stack(struct diff_context *context, struct diff_stack_result *stack)
{
	bool moved = false, tokens = false;

	if (!make_stack_result(context->result, stack) || !diff_explain_tensors(context, stack) ||
	        !judge_stack(context, stack) || !diff_explain_moved(context, stack, &moved))
		return false;
	if (moved && !judge_stack(context, stack))
		return false;
	compare_tokens(context, stack, &tokens);
	if (tokens && !judge_stack(context, stack))
		return false;
	if (!diff_explain_rows(context, stack))
		return false;
	for (int side = 0; side < 2; side++)
		report_missing_rows(context, stack->stack, side);
	context->result->rows += stack->stack->pair_count;
	return true;
}

static bool compare_stacks(struct diff_context *context)
{
	struct diff_result *result = context->result;
	int threads = context->options->threads;
	bool good;

	context->buffers = calloc((size_t)threads, sizeof(*context->buffers));
	result->stacks = calloc((size_t)result->alignment.stack_count + 1, sizeof(*result->stacks));
	good = context->buffers && result->stacks;
	for (int i = 0; good && i < threads; i++)
		good = diff_buffers_make(&context->buffers[i]);
	for (int64_t s = 0; good && s < result->alignment.stack_count; s++) {
		result->stacks[s].stack = &result->alignment.stacks[s];
		good = compare_stack(context, &result->stacks[s]);
	}
	if (good) {
		report_missing_layers(context);
		compare_identity(context);
	}
	for (int i = 0; context->buffers && i < threads; i++)
		diff_buffers_free(&context->buffers[i]);
	free(context->buffers);
	return good;
}

int diff_compare(struct diff_result *out, const struct saved_cache *a, const struct saved_cache *b,
        const struct diff_options *options, struct saved_error *error)
{
	struct diff_context context = { out, options, NULL, error };

	memset(out, 0, sizeof(*out));
	saved_fail_memory(error, a->path); /* what a failure means that sets no error of its own */
	if (!diff_align(&out->alignment, a, b) || !compare_stacks(&context))
		return -1;
	diff_decide(out);
	return 0;
}

void diff_result_free(struct diff_result *result)
{
	for (int64_t s = 0; result->stacks && s < result->alignment.stack_count; s++) {
		struct diff_stack_result *stack = &result->stacks[s];
		for (int64_t i = 0; stack->targets && i < 2 * stack->stack->layer_count; i++) {
			free(stack->targets[i].kept);
			for (int side = 0; side < 2; side++)
				free(stack->targets[i].owned_layout[side]);
		}
		free(stack->targets);
		free(stack->order);
		free(stack->explained);
		free(stack->changed_layers[0]);
		free(stack->changed_layers[1]);
		free(stack->map);
	}
	free(result->stacks);
	free(result->findings);
	free(result->tallies);
	diff_alignment_free(&result->alignment);
}
