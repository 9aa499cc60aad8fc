/*
 * What happened to single rows: zeroed, holding a NaN, exchanged with or copied from another row,
 * rotated for another position, or just changed. Looks at the changed cells that compare.c kept.
 */
#include "snapshot/diff/diff.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCH_FLOATS ((int64_t)1 << 20)
#define BATCH_MAX 32
#define HEADS_LISTED 64
#define ZEROS_LEAST 8 /* elements that are zero together before that is called a zeroed row */
#define QUICK_ELEMENTS 16
#define MATCH_MOST 0.3
#define FARTHER_POSITIONS 4096 /* that a row may be rotated for, beyond the number of rows */

struct segment {
	int64_t begin, end;
};

/* A changed row at which we look. */
struct row_case {
	const struct diff_changed *changed;
	float *values[2];
	struct segment segments[HEADS_LISTED]; /* what differs: runs of heads, or of elements */
	int segment_count;
	int64_t heads;     /* that differ, 0 if not known */
	int64_t differing; /* elements */
	int64_t element;   /* first of them */
	int64_t match;     /* pair whose A holds what B holds here, -1 */
	double match_error;
	bool is_settled; /* reported already */
};

struct row_batch {
	struct diff_context *context;
	struct diff_stack_result *stack;
	struct diff_target *target;
	struct row_case cases[BATCH_MAX];
	int count;
	int64_t width;
	int64_t head_dim; /* 0: not known */
	struct diff_precision precision;
	double element_limit; /* error of a single element, relative to the row */
};

/* ---- what differs ---- */

static bool differs(
        const struct row_batch *batch, const struct row_case *one, int64_t i, double rms)
{
	double x = (double)one->values[0][i], y = (double)one->values[1][i], d = fabs(x - y);
	double value = fmax(fabs(x), fabs(y));

	if (!isfinite(x) || !isfinite(y))
		return !(isnan(x) && isnan(y)) && x != y;
	return d > (double)batch->precision.relative * (2 * value + rms) &&
	       d > batch->element_limit * rms && d > (double)batch->precision.of_most * rms;
}

/* Of a tensor that drifts, single elements are off by several times what the row is. */
static double element_limit(const struct diff_target *target)
{
	return (target->typical > 1.5 * (double)target->floor ? 8 : 2) * target->typical;
}

static double rms_of(const float *a, const float *b, int64_t count)
{
	double sum = 0;

	for (int64_t i = 0; i < count; i++) {
		double least = fmin(fabs((double)a[i]), fabs((double)b[i]));
		sum += isfinite(least) ? least * least : 0; /* the lesser: one may be damaged */
	}
	return sqrt(sum / (double)count);
}

static void add_segment(struct row_case *one, int64_t begin, int64_t end)
{
	struct segment *last = one->segment_count ? &one->segments[one->segment_count - 1] : NULL;

	if (last && (last->end == begin || one->segment_count == HEADS_LISTED))
		last->end = end;
	else
		one->segments[one->segment_count++] = (struct segment){ begin, end };
}

static void find_segments(const struct row_batch *batch, struct row_case *one)
{
	double rms = rms_of(one->values[0], one->values[1], batch->width);
	int64_t first = -1, last = -1;

	for (int64_t i = 0; i < batch->width; i++) {
		if (!differs(batch, one, i, rms))
			continue;
		if (one->differing++ == 0)
			first = i;
		last = i;
		if (batch->head_dim && (one->segment_count == 0 ||
		                               one->segments[one->segment_count - 1].end <= i)) {
			int64_t head = i / batch->head_dim;
			add_segment(one, head * batch->head_dim, (head + 1) * batch->head_dim);
			one->heads++;
		}
	}
	one->element = first;
	for (int64_t head = 0;
	        first < 0 && batch->head_dim && head < batch->width / batch->head_dim; head++)
		if (diff_relative(one->values[0] + head * batch->head_dim,
		            one->values[1] + head * batch->head_dim,
		            batch->head_dim) > batch->target->limit / 2) {
			add_segment(one, head * batch->head_dim, (head + 1) * batch->head_dim);
			one->heads++;
		}
	if (first < 0 && one->segment_count == 0)
		add_segment(one, 0, batch->width);
	else if (!batch->head_dim)
		add_segment(one, first, last + 1);
}

/* ---- reports ---- */

static struct diff_finding *report_row(const struct row_batch *batch, struct row_case *one,
        const char *kind, enum finding_weight weight)
{
	struct diff_finding *finding = diff_add(batch->context->result, kind, weight);

	one->is_settled = true;
	if (!finding)
		return NULL;
	diff_set_place(finding, batch->stack, batch->target,
	        &batch->stack->stack->pairs[one->changed->pair]);
	if (batch->head_dim && one->heads == 1 && batch->width > batch->head_dim)
		finding->place.head = one->segments[0].begin / batch->head_dim;
	return finding;
}

/* Moves the place to an element, or to the first one of a head. */
static void set_element(const struct row_batch *batch, const struct row_case *one,
        struct diff_finding *finding, int64_t element)
{
	struct diff_pair pair = batch->stack->stack->pairs[one->changed->pair];
	uint64_t *offsets[2] = { &finding->offset_a, &finding->place.offset };

	for (int side = 0; side < 2; side++) {
		struct diff_place place = pair.side[side];
		const struct saved_tensor *t =
		        diff_tensor(&batch->target->source[side], place.part);
		*offsets[side] = saved_offset(t, place.row, element / t->dim, element % t->dim);
	}
	if (batch->head_dim)
		finding->place.head = element / batch->head_dim;
}

/* ---- bits ---- */

static size_t unit_bytes_of(const struct saved_tensor *t, int64_t *elements)
{
	*elements = t->type == SAVED_Q8_0 || t->type == SAVED_Q4_0 ? 32 : 1;
	return t->type == SAVED_Q8_0 ? 34 : t->type == SAVED_Q4_0 ? 18 : t->element_bits / 8;
}

/* If just one bit of the stored row differs: its byte in the file and its number in it. */
static void find_bit(
        const struct row_batch *batch, const struct row_case *one, struct diff_finding *finding)
{
	struct diff_buffers *buffers = &batch->context->buffers[0];
	struct diff_pair pair = batch->stack->stack->pairs[one->changed->pair];
	const struct saved_tensor *t[2];
	size_t bytes, found = 0, at = 0, unit;
	int64_t elements, element;

	for (int side = 0; side < 2; side++) {
		t[side] = diff_tensor(&batch->target->source[side], pair.side[side].part);
		if (diff_read_bytes(&batch->target->source[side], &pair, side, 1,
		            buffers->bytes[side], buffers->span, batch->context->error) != 0)
			return;
	}
	bytes = saved_row_bytes(t[0]);
	if (t[0]->type != t[1]->type || bytes != saved_row_bytes(t[1]) ||
	        t[0]->type == SAVED_AFFINE || t[0]->type == SAVED_OPAQUE)
		return;
	for (size_t i = 0; i < bytes; i++)
		if (buffers->bytes[0][i] != buffers->bytes[1][i]) {
			at = i;
			found++;
		}
	if (found != 1)
		return;
	unit = unit_bytes_of(t[1], &elements);
	element = (int64_t)(at / unit) * elements;
	set_element(batch, one, finding, element);
	finding->place.offset += at % unit;
	finding->offset_a += at % unit;
	for (int bit = 0; bit < 8; bit++)
		if ((buffers->bytes[0][at] ^ buffers->bytes[1][at]) == 1 << bit)
			finding->bit = bit;
}

static void set_values(const struct row_batch *batch, const struct row_case *one,
        struct diff_finding *finding, int64_t element)
{
	for (int side = 0; side < 2; side++)
		finding->value[side] = one->values[side][element];
	finding->has_value = true;
	finding->place.element = batch->head_dim ? element % batch->head_dim : element;
	snprintf(finding->place.detail, sizeof(finding->place.detail), "%g -> %g",
	        (double)finding->value[0], (double)finding->value[1]);
}

/* ---- one row ---- */

static bool changed_part_is_zero(const struct row_case *one, int side)
{
	int64_t count = 0;

	for (int s = 0; s < one->segment_count; s++)
		for (int64_t i = one->segments[s].begin; i < one->segments[s].end; i++, count++)
			if (one->values[side][i] != 0)
				return false;
	return count >= ZEROS_LEAST;
}

static void settle_plain(const struct row_batch *batch, struct row_case *one)
{
	struct diff_finding *finding;

	if (one->changed->cell.flags & DIFF_NONFINITE) {
		int64_t at = 0;
		while (at < batch->width - 1 &&
		        !(isfinite(one->values[0][at]) != isfinite(one->values[1][at])))
			at++;
		finding = report_row(batch, one, "nonfinite", FINDING_DAMAGE);
		if (finding) {
			set_element(batch, one, finding, at);
			set_values(batch, one, finding, at);
		}
	} else if (changed_part_is_zero(one, DIFF_B) || changed_part_is_zero(one, DIFF_A)) {
		finding = report_row(batch, one, "zero_row", FINDING_DAMAGE);
		if (finding) {
			snprintf(finding->place.detail, sizeof(finding->place.detail), "zero in %s",
			        changed_part_is_zero(one, DIFF_B) ? "B" : "A");
			if (finding->place.head >= 0)
				set_element(batch, one, finding, one->segments[0].begin);
		}
	}
}

static double segments_error(const struct row_case *one, const float *other)
{
	double error2 = 0, value2 = 0;

	for (int s = 0; s < one->segment_count; s++) {
		const struct segment *at = &one->segments[s];
		for (int64_t i = at->begin; i < at->end; i++) {
			double x = (double)other[i], y = (double)one->values[DIFF_B][i];
			error2 += (x - y) * (x - y);
			value2 += (x * x + y * y) / 2;
			if (i - at->begin == QUICK_ELEMENTS && s == 0 &&
			        error2 > 4 * MATCH_MOST * MATCH_MOST * value2)
				return 1;
		}
	}
	return value2 > 0 ? sqrt(error2 / value2) : 1;
}

static bool is_case(const struct row_batch *batch, int64_t pair)
{
	for (int i = 0; i < batch->count; i++)
		if (batch->cases[i].changed->pair == pair && !batch->cases[i].is_settled)
			return true;
	return false;
}

/* ---- rows that are somewhere else ---- */

static void match_row(struct row_batch *batch, int64_t pair, const float *values)
{
	double most =
	        fmin(MATCH_MOST, fmax(batch->target->limit, 3 * (double)batch->target->floor));

	for (int i = 0; i < batch->count; i++) {
		struct row_case *one = &batch->cases[i];
		double error;
		/* A piece of a few elements is found anywhere. */
		if (one->is_settled || one->changed->pair == pair || one->differing < ZEROS_LEAST)
			continue;
		error = segments_error(one, values);
		if (error > most || error > one->match_error)
			continue;
		/* Equal tokens have equal V in layer 0: of equals take the one that changed, too. */
		if (error == one->match_error && !is_case(batch, pair))
			continue;
		one->match = pair;
		one->match_error = error;
	}
}

static bool search_tensor(struct row_batch *batch)
{
	const struct diff_stack *stack = batch->stack->stack;
	struct diff_buffers *buffers = &batch->context->buffers[0];
	const struct diff_source *source = &batch->target->source[DIFF_A];
	int64_t stretch = (int64_t)DIFF_BUFFER_FLOATS / batch->width;

	for (int64_t first = 0; first < stack->pair_count;) {
		int32_t part = stack->pairs[first].side[DIFF_A].part;
		int64_t count = 1;
		size_t bytes = saved_row_bytes(diff_tensor(source, part));
		while (count < stretch && first + count < stack->pair_count &&
		        stack->pairs[first + count].side[DIFF_A].part == part &&
		        (size_t)(count + 1) * bytes <= DIFF_BUFFER_BYTES)
			count++;
		if (diff_read_bytes(source, stack->pairs + first, DIFF_A, count, buffers->bytes[0],
		            buffers->span, batch->context->error) != 0)
			return false;
		diff_values(source, part, buffers->bytes[0], count, buffers->values[0]);
		for (int64_t i = 0; i < count; i++)
			match_row(batch, first + i, buffers->values[0] + i * batch->width);
		first += count;
	}
	return true;
}

static int order_changed(const void *left, const void *right)
{
	const struct diff_changed *a = left, *b = right;

	return (a->pair > b->pair) - (a->pair < b->pair);
}

/* The kept cells are in the order of the pairs. */
static bool is_changed_here(const struct row_batch *batch, int64_t pair)
{
	struct diff_changed wanted = { .pair = pair };

	return bsearch(&wanted, batch->target->kept, (size_t)batch->target->kept_count,
	               sizeof(wanted), order_changed) != NULL;
}

static void settle_matches(struct row_batch *batch)
{
	for (int i = 0; i < batch->count; i++) {
		struct row_case *one = &batch->cases[i];
		struct diff_finding *finding;
		struct diff_place from;
		bool permuted;
		if (one->is_settled || one->match < 0)
			continue;
		permuted = is_changed_here(batch, one->match);
		finding = report_row(
		        batch, one, permuted ? "rows_permuted" : "row_changed", FINDING_DAMAGE);
		if (!finding)
			continue;
		from = batch->stack->stack->pairs[one->match].side[DIFF_A];
		finding->other = from.row;
		finding->has_other = true;
		snprintf(finding->place.detail, sizeof(finding->place.detail),
		        "holds what A has in cell %d", (int)from.row);
		if (finding->place.head >= 0)
			set_element(batch, one, finding, one->segments[0].begin);
	}
}

/* ---- rotation ---- */

static bool sibling_changed(const struct row_batch *batch, const struct row_case *one)
{
	return batch->target->tensor == SAVED_K &&
	       batch->stack->changed_layers[SAVED_V][one->changed->pair] > 0;
}

/* All changed heads of a row, taken as heads of dim elements, rotated by the same number. */
static bool fit_heads(const struct row_batch *batch, const struct row_case *one, int64_t dim,
        struct diff_rotation *out)
{
	double tolerance = fmax(2 * (double)batch->target->floor, batch->target->limit);
	struct diff_place a = batch->stack->stack->pairs[one->changed->pair].side[DIFF_A];
	const struct saved_part *part =
	        &batch->context->result->alignment.cache[DIFF_A]->parts[a.part];
	int64_t most = part->row_count + FARTHER_POSITIONS, fitted = 0;

	for (int64_t head = 0; head < batch->width / dim; head++) {
		const float *x = one->values[0] + head * dim, *y = one->values[1] + head * dim;
		struct diff_rotation found;
		if (diff_relative(x, y, dim) <= tolerance / 2)
			continue;
		if (!diff_fit_rotation(
		            &found, x, y, dim, most, tolerance, batch->context->options) ||
		        (fitted && found.by != out->by))
			return false;
		*out = found;
		fitted++;
	}
	return fitted > 0;
}

static bool fit_row(const struct row_batch *batch, const struct row_case *one, int64_t *dim,
        struct diff_rotation *out)
{
	if (batch->head_dim) {
		*dim = batch->head_dim;
		return fit_heads(batch, one, *dim, out);
	}
	for (int64_t heads = 1; heads <= batch->width / 16; heads++) {
		*dim = batch->width / heads;
		if (batch->width % heads == 0 && *dim % 2 == 0 && fit_heads(batch, one, *dim, out))
			return true;
	}
	return false;
}

static void report_rotation(const struct row_batch *batch, struct row_case *one,
        const struct diff_rotation *fit, int64_t head)
{
	struct diff_finding *finding = report_row(batch, one, "rotation", FINDING_DAMAGE);

	if (!finding)
		return;
	if (head >= 0)
		set_element(batch, one, finding, head * batch->head_dim);
	finding->other = finding->place.position + fit->by;
	finding->has_other = true;
	snprintf(finding->place.detail, sizeof(finding->place.detail),
	        "rotated for position %lld (base %g, %s)", (long long)finding->other, fit->base,
	        fit->interleaved ? "adjacent pairs" : "halves");
}

static void settle_rotation(const struct row_batch *batch, struct row_case *one)
{
	struct diff_rotation fit = { 0, 0, false };
	int64_t dim;

	if (batch->target->tensor != SAVED_K || sibling_changed(batch, one) ||
	        !fit_row(batch, one, &dim, &fit))
		return;
	if (!batch->head_dim) {
		report_rotation(batch, one, &fit, -1);
		return;
	}
	for (int s = 0; s < one->segment_count; s++)
		for (int64_t i = one->segments[s].begin; i < one->segments[s].end; i += dim)
			report_rotation(batch, one, &fit, i / dim);
}

/* ---- the rest ---- */

static void settle_change(const struct row_batch *batch, struct row_case *one)
{
	struct diff_finding *finding = report_row(batch, one, "row_changed", FINDING_DAMAGE);

	if (!finding)
		return;
	if (one->differing > 0)
		set_element(batch, one, finding, one->element);
	if (one->heads > 1 && one->differing > 1)
		finding->place.head = -1;
	if (one->differing == 1)
		set_values(batch, one, finding, one->element);
	else
		snprintf(finding->place.detail, sizeof(finding->place.detail),
		        "%lld of %lld elements differ, relative error %.3g",
		        (long long)one->differing, (long long)batch->width,
		        (double)one->changed->cell.relative);
	find_bit(batch, one, finding);
}

/* ---- batches ---- */

static bool load_batch(struct row_batch *batch, float *memory, int64_t first, int64_t most)
{
	struct diff_target *target = batch->target;

	batch->count = 0;
	for (int64_t i = first; i < target->kept_count && i < first + most; i++) {
		struct row_case *one = &batch->cases[batch->count++];
		memset(one, 0, sizeof(*one));
		one->changed = &target->kept[i];
		one->match = -1;
		one->match_error = 1;
		for (int side = 0; side < 2; side++) {
			one->values[side] = memory;
			memory += batch->width;
			if (diff_read_values(&target->source[side],
			            &batch->stack->stack->pairs[one->changed->pair], side, 1,
			            &batch->context->buffers[0], one->values[side],
			            batch->context->error) != 0)
				return false;
		}
		find_segments(batch, one);
	}
	return true;
}

static bool explain_batch(struct row_batch *batch)
{
	bool open = false;

	for (int i = 0; i < batch->count; i++) {
		settle_plain(batch, &batch->cases[i]);
		open = open || !batch->cases[i].is_settled;
	}
	if (open && !search_tensor(batch))
		return false;
	settle_matches(batch);
	for (int i = 0; i < batch->count; i++) {
		if (!batch->cases[i].is_settled)
			settle_rotation(batch, &batch->cases[i]);
		if (!batch->cases[i].is_settled)
			settle_change(batch, &batch->cases[i]);
	}
	return true;
}

/* Bytes of no known meaning: a few rows that differ are damage; whether many are, nobody can say. */
static void explain_opaque(
        struct diff_context *context, struct diff_stack_result *stack, struct diff_target *target)
{
	bool few = 4 * target->changed <= target->rows;

	for (int64_t i = 0; i < target->kept_count; i++) {
		struct diff_finding *finding = diff_add(context->result,
		        few ? "row_changed" : "bytes_differ", few ? FINDING_DAMAGE : FINDING_DOUBT);
		if (finding)
			diff_set_place(
			        finding, stack, target, &stack->stack->pairs[target->kept[i].pair]);
	}
}

static bool explain_target(
        struct diff_context *context, struct diff_stack_result *stack, struct diff_target *target)
{
	const struct saved_tensor *t = diff_tensor(&target->source[0], stack->stack->parts[0][0]);
	const struct saved_tensor *u = diff_tensor(&target->source[1], stack->stack->parts[1][0]);
	struct row_batch batch = { .context = context, .stack = stack, .target = target };
	int64_t most;
	float *memory;
	bool good = true;

	if (t->type == SAVED_OPAQUE) {
		explain_opaque(context, stack, target);
		return true;
	}
	batch.width = t->heads * t->dim;
	batch.head_dim = t->heads > 1 ? t->dim : u->heads > 1 ? u->dim : 0;
	batch.precision = diff_precision(t, u);
	batch.element_limit = element_limit(target);
	most = BATCH_FLOATS / batch.width / 2;
	most = most < 2 ? 2 : most > BATCH_MAX ? BATCH_MAX : most;
	memory = calloc((size_t)(2 * most * batch.width), sizeof(*memory));
	for (int64_t first = 0; good && memory && first < target->kept_count; first += most)
		good = load_batch(&batch, memory, first, most) && explain_batch(&batch);
	free(memory);
	return good && memory;
}

bool diff_explain_rows(struct diff_context *context, struct diff_stack_result *stack)
{
	for (int64_t i = 0; i < 2 * stack->stack->layer_count; i++) {
		struct diff_target *target = &stack->targets[i];
		if (!target->kept_count)
			continue;
		if (!explain_target(context, stack, target))
			return false;
		/* Beyond those that were kept. */
		for (int64_t j = target->kept_count; j < target->changed; j++)
			diff_add(context->result, "row_changed", FINDING_DAMAGE);
	}
	return true;
}
