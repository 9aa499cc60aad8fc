/*
 * Whole tensors that do not fit: stored rotated by a Hadamard matrix, exchanged with another layer or
 * K with V, or written in another layout. Told from a few rows; where an explanation fits, the
 * comparison goes on through it, so that damage besides is still found.
 */
#include "snapshot/diff/diff.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLES 12
#define RELATED 0.5 /* relative error below which two samples show the same data */
#define SKETCH_ROWS 8
#define SKETCH_ELEMENTS 32
#define SKETCH_FLOATS (SKETCH_ROWS * SKETCH_ELEMENTS)
#define UNRELATED_MAX 1024 /* more tensors than these are not compared each with each */

double diff_relative(const float *a, const float *b, int64_t count)
{
	double error2 = 0, value2 = 0;

	for (int64_t i = 0; i < count; i++) {
		double x = (double)a[i], y = (double)b[i];
		if (!isfinite(a[i]) || !isfinite(b[i]))
			continue;
		error2 += (x - y) * (x - y);
		value2 += (x * x + y * y) / 2;
	}
	return value2 > 0 ? sqrt(error2 / value2) : 0;
}

/* ---- samples ---- */

static int order_floats(const void *left, const void *right)
{
	double a = *(const double *)left, b = *(const double *)right;

	return (a > b) - (a < b);
}

/* Pairs spread evenly. */
static int64_t sample_pairs(const struct diff_stack *stack, struct diff_pair *out, int64_t most)
{
	int64_t count = stack->pair_count < most ? stack->pair_count : most;

	for (int64_t i = 0; i < count; i++)
		out[i] = stack->pairs[(2 * i + 1) * stack->pair_count / (2 * count)];
	return count;
}

/* The median relative error of sampled rows; -1 if they could not be read. */
static double sample_error(struct diff_context *context, const struct diff_stack *stack,
        const struct diff_source *a, const struct diff_source *b)
{
	struct diff_buffers *buffers = &context->buffers[0];
	struct diff_pair pairs[SAMPLES];
	double errors[SAMPLES] = { 0 };
	int64_t count = sample_pairs(stack, pairs, SAMPLES);

	for (int64_t i = 0; i < count; i++) {
		const struct saved_tensor *t = diff_tensor(a, pairs[i].side[0].part);
		if (diff_read_values(
		            a, &pairs[i], 0, 1, buffers, buffers->values[0], context->error) != 0 ||
		        diff_read_values(b, &pairs[i], 1, 1, buffers, buffers->values[1],
		                context->error) != 0)
			return -1;
		errors[i] =
		        diff_relative(buffers->values[0], buffers->values[1], t->heads * t->dim);
	}
	qsort(errors, (size_t)count, sizeof(*errors), order_floats);
	return count ? errors[count / 2] : 0;
}

static bool is_opaque(const struct diff_stack *stack, const struct diff_target *target)
{
	return diff_tensor(&target->source[0], stack->parts[0][0])->type == SAVED_OPAQUE;
}

/* ---- Hadamard ---- */

static int64_t next_block(int64_t block, int64_t width)
{
	block = block ? 2 * block : 64;
	return width % block == 0 && block <= 4096 ? block : 0;
}

/* Tries to multiply one side back; keeps the block that fits. False if a row cannot be read. */
static bool try_hadamard(struct diff_context *context, const struct diff_stack *stack,
        struct diff_target *target, double *plain)
{
	for (int side = 0; side < 2; side++) {
		const struct saved_tensor *t =
		        diff_tensor(&target->source[side], stack->parts[side][0]);
		struct diff_source trial[2] = { target->source[0], target->source[1] };
		int64_t width = t->heads > 1 ? t->dim : t->heads * t->dim;
		if (!t->hadamard_doubt)
			continue;
		for (int64_t block = next_block(0, width); block;
		        block = next_block(block, width)) {
			double error;
			trial[side].hadamard = block;
			error = sample_error(context, stack, &trial[0], &trial[1]);
			if (error < 0)
				return false;
			if (error >= RELATED || error >= *plain / 2)
				continue;
			*plain = error;
			target->source[side].hadamard = block;
			context->result->hadamard[side] = true;
		}
	}
	return true;
}

static void report_hadamard(struct diff_context *context, const struct diff_stack_result *stack)
{
	for (int side = 0; side < 2; side++)
		for (int64_t i = 0; i < 2 * stack->stack->layer_count; i++) {
			int64_t block = stack->targets[i].source[side].hadamard;
			struct diff_finding *finding;
			if (!block)
				continue;
			finding = diff_add(context->result, "hadamard", FINDING_NOTE);
			if (finding) {
				finding->place.part = stack->stack->name;
				finding->other = block;
				finding->has_other = true;
				snprintf(finding->place.detail, sizeof(finding->place.detail),
				        "%s is stored multiplied by a Hadamard matrix in blocks of "
				        "%d",
				        side == DIFF_A ? "A" : "B", (int)block);
			}
			break;
		}
}

/* ---- exchanged tensors ---- */

struct sketches {
	float *values[2]; /* [targets][SKETCH_FLOATS] */
	int64_t rows;
};

static bool sketch_target(struct diff_context *context, const struct diff_stack *stack,
        const struct diff_target *target, int side, float *out, int64_t *rows)
{
	struct diff_buffers *buffers = &context->buffers[0];
	struct diff_pair pairs[SKETCH_ROWS];

	*rows = sample_pairs(stack, pairs, SKETCH_ROWS);
	for (int64_t i = 0; i < *rows; i++) {
		const struct saved_tensor *t =
		        diff_tensor(&target->source[side], pairs[i].side[side].part);
		int64_t width = t->heads * t->dim;
		if (diff_read_values(&target->source[side], &pairs[i], side, 1, buffers,
		            buffers->values[0], context->error) != 0)
			return false;
		for (int64_t j = 0; j < SKETCH_ELEMENTS; j++)
			*out++ = buffers->values[0][j * width / SKETCH_ELEMENTS];
	}
	return true;
}

static bool same_shape(
        const struct diff_stack *stack, const struct diff_target *a, const struct diff_target *b)
{
	const struct saved_tensor *p = diff_tensor(&a->source[DIFF_A], stack->parts[DIFF_A][0]);
	const struct saved_tensor *q = diff_tensor(&b->source[DIFF_B], stack->parts[DIFF_B][0]);

	return a->compared && diff_comparable(p, q);
}

/* The target whose A is what B of 'at' holds; -1: none. */
static int64_t find_origin(const struct diff_stack_result *stack, const struct sketches *sketches,
        const bool *unrelated, int64_t at)
{
	int64_t targets = 2 * stack->stack->layer_count, best = -1;
	double least = RELATED;

	for (int64_t i = 0; i < targets; i++) {
		double error;
		if (i == at || !unrelated[i] ||
		        !same_shape(stack->stack, &stack->targets[i], &stack->targets[at]))
			continue;
		error = diff_relative(sketches->values[DIFF_A] + i * SKETCH_FLOATS,
		        sketches->values[DIFF_B] + at * SKETCH_FLOATS,
		        sketches->rows * SKETCH_ELEMENTS);
		if (error < least) {
			least = error;
			best = i;
		}
	}
	return best;
}

static int64_t number_of_target(
        const struct diff_stack_result *stack, const struct diff_context *context, int64_t target)
{
	const struct diff_stack *s = stack->stack;
	const struct saved_cache *cache = context->result->alignment.cache[DIFF_B];

	return cache->parts[s->parts[DIFF_B][0]].layers[s->layer[DIFF_B][target / 2]].number;
}

static void report_exchange(struct diff_context *context, struct diff_stack_result *stack,
        int64_t at, int64_t origin, const char *kind)
{
	struct diff_finding *finding = diff_add(context->result, kind, FINDING_DAMAGE);
	const struct diff_target *target = &stack->targets[at], *from = &stack->targets[origin];
	const struct saved_tensor *tensor[2];

	if (!finding)
		return;
	diff_set_place(finding, stack, target, &stack->stack->pairs[0]);
	tensor[0] = diff_tensor(&from->source[DIFF_A], stack->stack->parts[0][0]);
	tensor[1] = diff_tensor(&target->source[DIFF_B], stack->stack->parts[1][0]);
	finding->offset_a = saved_offset(tensor[0], 0, 0, 0);
	finding->file_a = saved_offset_file(tensor[0], 0);
	finding->place.offset = saved_offset(tensor[1], 0, 0, 0);
	finding->place.file = saved_offset_file(tensor[1], 0);
	finding->place.row = finding->row_a = finding->place.position = finding->place.token = -1;
	if (strcmp(kind, "kv_swapped") == 0)
		finding->place.tensor = -1;
	finding->other = number_of_target(stack, context, origin);
	finding->has_other = true;
	snprintf(finding->place.detail, sizeof(finding->place.detail),
	        "B holds %c of layer %d here", from->tensor == SAVED_K ? 'K' : 'V',
	        (int)finding->other);
}

static void apply_exchanges(
        struct diff_context *context, struct diff_stack_result *stack, const int64_t *origin)
{
	int64_t targets = 2 * stack->stack->layer_count;
	struct diff_source *sources = calloc((size_t)targets + 1, sizeof(*sources));

	if (!sources)
		return;
	for (int64_t i = 0; i < targets; i++)
		sources[i] = stack->targets[i].source[DIFF_A];
	for (int64_t i = 0; i < targets; i++) {
		int64_t from = origin[i];
		bool mutual = from >= 0 && origin[from] == i;
		const char *kind = !mutual             ? "layer_repeated"
		                   : from / 2 == i / 2 ? "kv_swapped"
		                                       : "layers_swapped";
		if (from < 0)
			continue;
		if (!mutual || i < from)
			report_exchange(context, stack, i, from, kind);
		stack->targets[i].source[DIFF_A] = sources[from];
	}
	free(sources);
}

static bool find_exchanges(struct diff_context *context, struct diff_stack_result *stack,
        const bool *unrelated, int64_t *origin)
{
	int64_t targets = 2 * stack->stack->layer_count;
	struct sketches sketches = { { NULL, NULL }, 0 };
	bool good = true;

	for (int side = 0; side < 2; side++) {
		sketches.values[side] =
		        calloc((size_t)(targets * SKETCH_FLOATS) + 1, sizeof(float));
		good = good && sketches.values[side];
		for (int64_t i = 0; good && i < targets; i++)
			if (unrelated[i])
				good = sketch_target(context, stack->stack, &stack->targets[i],
				        side, sketches.values[side] + i * SKETCH_FLOATS,
				        &sketches.rows);
	}
	for (int64_t i = 0; i < targets; i++)
		origin[i] = good && unrelated[i] ? find_origin(stack, &sketches, unrelated, i) : -1;
	if (good)
		apply_exchanges(context, stack, origin);
	free(sketches.values[0]);
	free(sketches.values[1]);
	return good;
}

/* ---- other layouts ---- */

/*
 * The bytes of the two tensors of all layers of one part, or of one layer, as a box: K and V, layers,
 * tokens, heads, elements, from the outermost. Axes that a layout does not mix have count 1.
 */
enum { AXIS_KV, AXIS_LAYER, AXIS_TOKEN, AXIS_HEAD, AXIS_ELEMENT, AXIS_COUNT };

static const struct layout {
	const char *name;
	int axes[AXIS_COUNT]; /* from the outermost */
} layouts[] = {
	{ "[2, layers, tokens, heads, dim]",
	        { AXIS_KV, AXIS_LAYER, AXIS_TOKEN, AXIS_HEAD, AXIS_ELEMENT } },
	{ "[2, tokens, layers, heads, dim]",
	        { AXIS_KV, AXIS_TOKEN, AXIS_LAYER, AXIS_HEAD, AXIS_ELEMENT } },
	{ "[2, heads, tokens, layers, dim]",
	        { AXIS_KV, AXIS_HEAD, AXIS_TOKEN, AXIS_LAYER, AXIS_ELEMENT } },
	{ "[2, layers, heads, tokens, dim]",
	        { AXIS_KV, AXIS_LAYER, AXIS_HEAD, AXIS_TOKEN, AXIS_ELEMENT } },
	{ "[2, layers, heads, dim, tokens]",
	        { AXIS_KV, AXIS_LAYER, AXIS_HEAD, AXIS_ELEMENT, AXIS_TOKEN } },
	{ "[layers, 2, tokens, heads, dim]",
	        { AXIS_LAYER, AXIS_KV, AXIS_TOKEN, AXIS_HEAD, AXIS_ELEMENT } },
	{ "[layers, 2, heads, tokens, dim]",
	        { AXIS_LAYER, AXIS_KV, AXIS_HEAD, AXIS_TOKEN, AXIS_ELEMENT } },
	{ "[layers, tokens, heads, 2 dim]",
	        { AXIS_LAYER, AXIS_TOKEN, AXIS_HEAD, AXIS_KV, AXIS_ELEMENT } },
	{ "[layers, heads, tokens, 2 dim]",
	        { AXIS_LAYER, AXIS_HEAD, AXIS_TOKEN, AXIS_KV, AXIS_ELEMENT } },
	{ "[layers, tokens, 2, heads, dim]",
	        { AXIS_LAYER, AXIS_TOKEN, AXIS_KV, AXIS_HEAD, AXIS_ELEMENT } },
};
#define LAYOUT_COUNT (sizeof(layouts) / sizeof(layouts[0]))

struct layout_box {
	uint64_t count[AXIS_COUNT];
	uint64_t begin; /* of the first byte; of each page: relative to the page */
	uint64_t element_bytes;
};

static bool is_plain_element(const struct saved_tensor *t)
{
	return t->present && t->type != SAVED_Q8_0 && t->type != SAVED_Q4_0 &&
	       t->type != SAVED_AFFINE && t->type != SAVED_OPAQUE;
}

/* The box that the tensors of layers first .. first + layers - 1 of a part fill without gaps; heads
 * from 'heads', where the format does not tell. False if they do not. */
static bool find_box(struct layout_box *box, const struct saved_part *part, int64_t first,
        int64_t layers, int tensors, int64_t heads)
{
	const struct saved_tensor *t = &part->layers[first].tensor[tensors == 1];
	uint64_t end = 0, total;
	int64_t width = t->heads * t->dim;

	if (!is_plain_element(t) || (heads = t->heads > 1 ? t->heads : heads) < 1 || width % heads)
		return false;
	*box = (struct layout_box){ { tensors == 2 ? 2 : 1, (uint64_t)layers,
		                            (uint64_t)(t->pages ? t->page_rows : part->row_count),
		                            (uint64_t)heads, (uint64_t)(width / heads) },
		UINT64_MAX, t->element_bits / 8 };
	for (int64_t i = first; i < first + layers; i++)
		for (int j = 0; j < 2; j++) {
			const struct saved_tensor *u = &part->layers[i].tensor[j];
			uint64_t last;
			if (tensors != 2 && j != tensors)
				continue;
			if (!is_plain_element(u) || u->plane.file != t->plane.file ||
			        u->heads != t->heads || u->dim != t->dim || u->type != t->type ||
			        u->pages != t->pages || u->page_rows != t->page_rows)
				return false;
			last = u->plane.offset +
			       (box->count[AXIS_TOKEN] - 1) * u->plane.row_stride +
			       (uint64_t)(u->heads - 1) * u->plane.head_stride +
			       (uint64_t)(u->dim - 1) * u->plane.element_stride +
			       box->element_bytes;
			end = last > end ? last : end;
			box->begin = u->plane.offset < box->begin ? u->plane.offset : box->begin;
		}
	total = box->element_bytes;
	for (int i = 0; i < AXIS_COUNT; i++)
		total *= box->count[i];
	return end - box->begin == total;
}

/* Describes a tensor by another layout of its box. */
static struct saved_tensor lay_out(const struct saved_tensor *plain, const struct layout_box *box,
        const struct layout *layout, int64_t layer, int tensor)
{
	uint64_t stride[AXIS_COUNT], next = box->element_bytes;
	struct saved_tensor t = *plain;

	for (int i = AXIS_COUNT - 1; i >= 0; i--) {
		stride[layout->axes[i]] = next;
		next *= box->count[layout->axes[i]];
	}
	t.heads = (int64_t)box->count[AXIS_HEAD];
	t.dim = (int64_t)box->count[AXIS_ELEMENT];
	t.plane.offset = box->begin + (uint64_t)layer * stride[AXIS_LAYER] +
	                 (box->count[AXIS_KV] == 2 ? (uint64_t)tensor * stride[AXIS_KV] : 0);
	t.plane.row_stride = stride[AXIS_TOKEN];
	t.plane.head_stride = stride[AXIS_HEAD];
	t.plane.element_stride = stride[AXIS_ELEMENT];
	return t;
}

struct layout_trial {
	struct diff_stack_result *stack;
	int side;
	int64_t first, layers; /* of the stack */
	int tensors;           /* 0 K, 1 V, 2 both */
	struct layout_box box;
	const struct layout *layout;
};

static struct saved_tensor *trial_tensors(
        const struct layout_trial *trial, int64_t layer, int tensor)
{
	const struct diff_stack *stack = trial->stack->stack;
	const struct diff_source *source =
	        &trial->stack->targets[2 * layer + tensor].source[trial->side];
	const struct saved_cache *cache = source->cache;
	struct saved_tensor *list = calloc((size_t)cache->part_count, sizeof(*list));
	int32_t part = stack->parts[trial->side][0];

	if (list)
		list[part] = lay_out(&cache->parts[part].layers[source->layer].tensor[tensor],
		        &trial->box, trial->layout, layer - trial->first, tensor);
	return list;
}

/* Whether the trial's layout makes its tensors fit; keeps it if so. -1: cannot read. */
static int try_layout(struct diff_context *context, const struct layout_trial *trial)
{
	struct diff_stack_result *stack = trial->stack;
	double worst = 0;

	for (int64_t i = 2 * trial->first; i < 2 * (trial->first + trial->layers); i++) {
		struct diff_target *target = &stack->targets[i];
		struct diff_source source[2] = { target->source[0], target->source[1] };
		struct saved_tensor *list;
		double error;
		if (!target->compared || (trial->tensors != 2 && target->tensor != trial->tensors))
			continue;
		list = trial_tensors(trial, i / 2, target->tensor);
		if (!list)
			return -1;
		source[trial->side].other_layout = list;
		error = sample_error(context, stack->stack, &source[0], &source[1]);
		free(list);
		if (error < 0)
			return -1;
		worst = fmax(worst, error);
		if (worst >= RELATED)
			return 0;
	}
	for (int64_t i = 2 * trial->first; i < 2 * (trial->first + trial->layers); i++) {
		struct diff_target *target = &stack->targets[i];
		if (!target->compared || (trial->tensors != 2 && target->tensor != trial->tensors))
			continue;
		free(target->owned_layout[trial->side]);
		target->owned_layout[trial->side] = trial_tensors(trial, i / 2, target->tensor);
		if (!target->owned_layout[trial->side])
			return -1;
		target->source[trial->side].other_layout = target->owned_layout[trial->side];
	}
	return 1;
}

static void report_layout(struct diff_context *context, const struct layout_trial *trial)
{
	struct diff_finding *finding = diff_add(context->result, "wrong_layout", FINDING_DAMAGE);
	const char *name = trial->layout->name;

	if (!finding)
		return;
	finding->place.part = trial->stack->stack->name;
	if (trial->layers < trial->stack->stack->layer_count || trial->tensors != 2)
		finding->place.layer = number_of_target(trial->stack, context, 2 * trial->first);
	finding->place.tensor = trial->tensors == 2 ? -1 : trial->tensors;
	finding->place.offset = trial->box.begin;
	/* Of one tensor, or one layer, the outer axes have no meaning. */
	snprintf(finding->place.detail, sizeof(finding->place.detail),
	        "the bytes of %s fit when they are read as %s", trial->side ? "B" : "A", name);
}

/* One box: every layout of both sides. 1 explained, 0 not, -1 cannot read. */
static int try_box(struct diff_context *context, struct diff_stack_result *stack, int64_t first,
        int64_t layers, int tensors)
{
	const struct diff_stack *s = stack->stack;
	int64_t heads = 0;

	for (int side = 0; side < 2; side++) {
		int64_t own =
		        diff_tensor(&stack->targets[2 * first].source[side], s->parts[side][0])
		                ->heads;
		heads = own > heads ? own : heads;
	}
	for (int side = 1; side >= 0; side--) {
		struct layout_trial trial = { stack, side, first, layers, tensors, { { 0 }, 0, 0 },
			NULL };
		const struct saved_cache *cache = context->result->alignment.cache[side];
		if (s->part_count[side] != 1 ||
		        s->layer[side][first + layers - 1] != s->layer[side][first] + layers - 1 ||
		        !find_box(&trial.box, &cache->parts[s->parts[side][0]],
		                s->layer[side][first], layers, tensors, heads))
			continue;
		for (size_t i = 0; i < LAYOUT_COUNT; i++) {
			int fits;
			trial.layout = &layouts[i];
			fits = try_layout(context, &trial);
			if (fits > 0)
				report_layout(context, &trial);
			if (fits != 0)
				return fits;
		}
	}
	return 0;
}

static bool try_layouts(
        struct diff_context *context, struct diff_stack_result *stack, const bool *unrelated)
{
	int64_t layers = stack->stack->layer_count, bad = 0;
	int fits;

	for (int64_t i = 0; i < 2 * layers; i++)
		bad += unrelated[i];
	if (bad == 0)
		return true;
	fits = 2 * bad > layers ? try_box(context, stack, 0, layers, 2) : 0;
	for (int64_t i = 0; fits == 0 && i < layers; i++) {
		int of_layer = unrelated[2 * i] && unrelated[2 * i + 1]
		                       ? try_box(context, stack, i, 1, 2)
		                       : 0;
		for (int tensor = 0; of_layer == 0 && tensor < 2; tensor++)
			if (unrelated[2 * i + tensor])
				of_layer = try_box(context, stack, i, 1, tensor) < 0 ? -1 : 0;
		if (of_layer < 0)
			return false;
	}
	return fits >= 0;
}

/* ---- all of it ---- */

static bool find_unrelated(struct diff_context *context, struct diff_stack_result *stack,
        bool *unrelated, int64_t *count)
{
	*count = 0;
	for (int64_t i = 0; i < 2 * stack->stack->layer_count; i++) {
		struct diff_target *target = &stack->targets[i];
		double error;
		unrelated[i] = false;
		if (!target->compared || is_opaque(stack->stack, target))
			continue;
		error = sample_error(context, stack->stack, &target->source[0], &target->source[1]);
		if (error < 0 || !try_hadamard(context, stack->stack, target, &error))
			return false;
		unrelated[i] = error >= RELATED;
		*count += unrelated[i];
	}
	return true;
}

bool diff_explain_tensors(struct diff_context *context, struct diff_stack_result *stack)
{
	size_t targets = (size_t)(2 * stack->stack->layer_count) + 1;
	bool *unrelated = calloc(targets, sizeof(*unrelated));
	int64_t *origin = calloc(targets, sizeof(*origin)), count = 0;
	bool good = unrelated && origin && find_unrelated(context, stack, unrelated, &count);

	if (good && count > 0 && count <= UNRELATED_MAX) {
		good = find_exchanges(context, stack, unrelated, origin);
		for (size_t i = 0; i + 1 < targets; i++)
			unrelated[i] = unrelated[i] && origin[i] < 0;
	}
	if (good)
		report_hadamard(context, stack);
	good = good && try_layouts(context, stack, unrelated);
	free(unrelated);
	free(origin);
	return good;
}
