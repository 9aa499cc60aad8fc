/*
 * Rows whose content lies elsewhere in the other file: after a context shift, with a changed position
 * or sequence, or exchanged in all layers. V tells, since it is not rotated; K then says whether the
 * rotation went along.
 */
#include "snapshot/diff/diff.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEARCHED_MAX 128 /* rows of A that are looked for one by one; of more, so many samples */
#define SKETCH 48        /* elements of a row that are compared first */
#define SKETCHED_AT_ONCE 128
#define SAME_DATA 0.3 /* relative error of rows that hold the same */

struct mover {
	struct diff_context *context;
	struct diff_stack_result *stack;
	struct diff_place *rows[2]; /* suspects: changed in most layers, or without partner */
	int64_t count[2];
	const struct diff_target *reference[2]; /* two tensors to tell rows by */
	const struct diff_target *key;          /* K of the first layer that has it, or NULL */
	/* Searched rows of A, and where each was found. */
	int64_t *searched;
	int64_t *found; /* index into rows[DIFF_B], -1 */
	int64_t searched_count;
};

static const struct saved_part *part_at(
        const struct mover *mover, int side, struct diff_place place)
{
	return &mover->context->result->alignment.cache[side]->parts[place.part];
}

static int64_t suspect_position(const struct mover *mover, int side, int64_t row)
{
	struct diff_place place = mover->rows[side][row];

	return saved_position(part_at(mover, side, place), place.row);
}

/* ---- suspects ---- */

/* V where there is one. */
static int tell_tale_tensor(const struct diff_stack_result *stack)
{
	for (int64_t i = 0; i < stack->stack->layer_count; i++)
		if (stack->targets[2 * i + SAVED_V].compared)
			return SAVED_V;
	return SAVED_K;
}

static bool find_suspects(struct mover *mover)
{
	const struct diff_stack_result *stack = mover->stack;
	int64_t layers = stack->stack->layer_count, pairs = stack->stack->pair_count;
	int tensor = tell_tale_tensor(stack);

	for (int side = 0; side < 2; side++) {
		const struct diff_places *only = &stack->stack->only[side];
		struct diff_place *list = calloc((size_t)(pairs + only->count) + 1, sizeof(*list));
		int64_t count = 0;
		if (!list)
			return false;
		mover->rows[side] = list;
		for (int64_t i = 0; i < pairs; i++)
			if (2 * stack->changed_layers[tensor][i] > layers)
				list[count++] = stack->stack->pairs[i].side[side];
		memcpy(list + count, only->list, (size_t)only->count * sizeof(*list));
		mover->count[side] = count + only->count;
	}
	return true;
}

static bool has_values(const struct mover *mover, const struct diff_target *target)
{
	int32_t part = mover->stack->stack->parts[DIFF_A][0];

	return target->compared && diff_tensor(&target->source[0], part)->type != SAVED_OPAQUE;
}

/* Late layers: there rows of equal tokens differ, since they have seen other text. */
static void choose_references(struct mover *mover)
{
	int64_t layers = mover->stack->stack->layer_count;
	int tensor = tell_tale_tensor(mover->stack);
	const struct diff_target *targets = mover->stack->targets;

	for (int64_t i = 0; i < layers; i++) {
		const struct diff_target *target = &targets[2 * i + tensor];
		if (has_values(mover, target) && 2 * i <= layers)
			mover->reference[1] = target;
		if (has_values(mover, target))
			mover->reference[0] = target;
		if (!mover->key && tensor == SAVED_V && has_values(mover, &targets[2 * i]))
			mover->key = &targets[2 * i];
	}
	if (!mover->reference[1])
		mover->reference[1] = mover->reference[0];
}

/* ---- searching ---- */

/* One row of one side of a target, as a pair whose other side is not read. */
static bool read_row(const struct mover *mover, const struct diff_target *target, int side,
        struct diff_place place, float *out)
{
	struct diff_pair pair = { { place, place } };

	return diff_read_values(&target->source[side], &pair, side, 1, &mover->context->buffers[0],
	               out, mover->context->error) == 0;
}

static int64_t row_width(const struct diff_target *target, struct diff_place place)
{
	const struct saved_tensor *t = diff_tensor(&target->source[DIFF_A], place.part);

	return t->heads * t->dim;
}

/* Sketches of 'count' suspects of one side from 'first' on, [count][SKETCH]. */
static bool sketch_rows(
        const struct mover *mover, int side, const int64_t *which, int64_t count, float *out)
{
	struct diff_buffers *buffers = &mover->context->buffers[0];
	const struct diff_source *source = &mover->reference[0]->source[side];
	struct diff_pair pairs[SKETCHED_AT_ONCE];

	for (int64_t i = 0, run; i < count; i += run) {
		struct diff_place place = mover->rows[side][which[i]];
		const struct saved_tensor *t = diff_tensor(source, place.part);
		int64_t width = t->heads * t->dim;
		int64_t most = (int64_t)(DIFF_BUFFER_BYTES / saved_row_bytes(t));
		if (most > (int64_t)DIFF_BUFFER_FLOATS / width)
			most = (int64_t)DIFF_BUFFER_FLOATS / width;
		for (run = 0; run < most && i + run < count; run++) {
			struct diff_place next = mover->rows[side][which[i + run]];
			if (next.part != place.part)
				break;
			pairs[run] = (struct diff_pair){ { next, next } };
		}
		if (diff_read_bytes(source, pairs, side, run, buffers->bytes[side], buffers->span,
		            mover->context->error) != 0)
			return false;
		diff_values(source, place.part, buffers->bytes[side], run, buffers->values[side]);
		for (int64_t k = 0; k < run; k++)
			for (int64_t e = 0; e < SKETCH; e++)
				*out++ = buffers->values[side][k * width + e * width / SKETCH];
	}
	return true;
}

/* Relative error of two whole rows, -1 if they cannot be read. */
static double error_of_rows(const struct mover *mover, const struct diff_target *target,
        struct diff_place a, struct diff_place b)
{
	struct diff_buffers *buffers = &mover->context->buffers[0];

	if (!read_row(mover, target, DIFF_A, a, buffers->values[0]) ||
	        !read_row(mover, target, DIFF_B, b, buffers->values[1]))
		return -1;
	return diff_relative(buffers->values[0], buffers->values[1], row_width(target, a));
}

/* Whether rows that a sketch found alike are so in both references. */
static int confirm(const struct mover *mover, struct diff_place a, struct diff_place b)
{
	for (int i = 0; i < 2; i++) {
		double error = error_of_rows(mover, mover->reference[i], a, b);
		if (error < 0)
			return -1;
		if (error > SAME_DATA)
			return 0;
	}
	return 1;
}

/* The suspects of A to look for: all, or some spread evenly. */
static bool choose_searched(struct mover *mover, float *sketches)
{
	int64_t most = mover->searched_count;

	for (int64_t i = 0; i < most; i++) {
		mover->searched[i] = (2 * i + 1) * mover->count[0] / (2 * most);
		mover->found[i] = -1;
	}
	return sketch_rows(mover, DIFF_A, mover->searched, most, sketches);
}

/* Compares suspects first .. first + count - 1 of B with all that are looked for. */
static bool compare_sketches(
        struct mover *mover, int64_t first, int64_t count, const float *sketches, double *least)
{
	float of_b[SKETCHED_AT_ONCE * SKETCH];
	int64_t which[SKETCHED_AT_ONCE];

	for (int64_t j = 0; j < count; j++)
		which[j] = first + j;
	if (!sketch_rows(mover, DIFF_B, which, count, of_b))
		return false;
	for (int64_t j = 0; j < count; j++)
		for (int64_t i = 0; i < mover->searched_count; i++) {
			double error =
			        diff_relative(sketches + i * SKETCH, of_b + j * SKETCH, SKETCH);
			if (error < least[i]) {
				least[i] = error;
				mover->found[i] = first + j;
			}
		}
	return true;
}

static bool search(struct mover *mover)
{
	int64_t most = mover->count[0] < SEARCHED_MAX ? mover->count[0] : SEARCHED_MAX;
	float *sketches = calloc((size_t)most * SKETCH + 1, sizeof(*sketches));
	double *least = calloc((size_t)most + 1, sizeof(*least));
	bool good;

	mover->searched_count = most;
	mover->searched = calloc((size_t)most + 1, sizeof(*mover->searched));
	mover->found = calloc((size_t)most + 1, sizeof(*mover->found));
	good = sketches && least && mover->searched && mover->found &&
	       choose_searched(mover, sketches);
	for (int64_t i = 0; good && i < most; i++)
		least[i] = SAME_DATA;
	for (int64_t j = 0; good && j < mover->count[1]; j += SKETCHED_AT_ONCE) {
		int64_t rest = mover->count[1] - j;
		good = compare_sketches(mover, j, rest < SKETCHED_AT_ONCE ? rest : SKETCHED_AT_ONCE,
		        sketches, least);
	}
	for (int64_t i = 0; good && i < most; i++) {
		int sure = mover->found[i] < 0 ? 0
		                               : confirm(mover, mover->rows[0][mover->searched[i]],
		                                         mover->rows[1][mover->found[i]]);
		good = sure >= 0;
		if (sure == 0)
			mover->found[i] = -1;
	}
	free(sketches);
	free(least);
	return good;
}

/* ---- conclusions ---- */

static void drop_place(struct diff_places *places, struct diff_place place)
{
	int64_t kept = 0;

	for (int64_t i = 0; i < places->count; i++)
		if (places->list[i].part != place.part || places->list[i].row != place.row)
			places->list[kept++] = places->list[i];
	places->count = kept;
}

/* Rows of either side are accounted for. */
static void explain_places(struct mover *mover, struct diff_place a, struct diff_place b)
{
	struct diff_stack_result *stack = mover->stack;
	struct diff_place place[2] = { a, b };

	for (int64_t i = 0; i < stack->stack->pair_count; i++)
		for (int side = 0; side < 2; side++) {
			struct diff_place at = stack->stack->pairs[i].side[side];
			if (at.part == place[side].part && at.row == place[side].row)
				stack->explained[i] = 1;
		}
	for (int side = 0; side < 2; side++)
		drop_place(&stack->stack->only[side], place[side]);
}

/* Whether K of two rows is the same although their positions are not; false without K. */
static bool is_unrotated(const struct mover *mover, struct diff_place a, struct diff_place b)
{
	double error;

	if (!mover->key)
		return false;
	error = error_of_rows(mover, mover->key, a, b);
	return error >= 0 && error < fmax(4 * (double)mover->key->floor, 0.02);
}

static void fill_place(const struct mover *mover, struct diff_finding *finding, struct diff_place a,
        struct diff_place b)
{
	const struct saved_part *part = part_at(mover, DIFF_B, b);

	finding->place.part = mover->stack->stack->name;
	finding->place.stream = part->stream;
	finding->place.row = b.row;
	finding->row_a = a.row;
	finding->place.position = saved_position(part_at(mover, DIFF_A, a), a.row);
	finding->place.token = part->tokens ? part->tokens[b.row] : -1;
	if (part->cell_offsets)
		finding->place.offset = part->cell_offsets[b.row];
	if (part_at(mover, DIFF_A, a)->cell_offsets)
		finding->offset_a = part_at(mover, DIFF_A, a)->cell_offsets[a.row];
	finding->was = finding->place.position;
	finding->now = saved_position(part, b.row);
	finding->has_was = true;
}

static int64_t first_sequence(const struct saved_part *part, int64_t row)
{
	if (!part->sequences || !part->sequence_begin ||
	        part->sequence_begin[row] == part->sequence_begin[row + 1])
		return -1;
	return part->sequences[part->sequence_begin[row]];
}

/* The change of position that nearly all found rows share; 0 if there is none. */
static int64_t common_shift(const struct mover *mover)
{
	int64_t found = 0, best = 0, best_count = 0;

	for (int64_t i = 0; i < mover->searched_count; i++) {
		int64_t by, same = 0;
		if (mover->found[i] < 0)
			continue;
		found++;
		by = suspect_position(mover, DIFF_B, mover->found[i]) -
		     suspect_position(mover, DIFF_A, mover->searched[i]);
		for (int64_t j = 0; j < mover->searched_count; j++)
			same += mover->found[j] >= 0 &&
			        suspect_position(mover, DIFF_B, mover->found[j]) -
			                        suspect_position(
			                                mover, DIFF_A, mover->searched[j]) ==
			                by;
		if (same > best_count) {
			best_count = same;
			best = by;
		}
	}
	return best_count >= 2 && 5 * best_count >= 4 * found && 2 * found >= mover->searched_count
	               ? best
	               : 0;
}

struct found_position {
	int64_t position;
	int64_t row;
};

static int order_found(const void *left, const void *right)
{
	const struct found_position *a = left, *b = right;

	return (a->position > b->position) - (a->position < b->position);
}

/* Marks all suspects that the shift takes to each other; returns how many. */
static int64_t explain_shift(struct mover *mover, int64_t by, int64_t from)
{
	struct diff_stack *stack = mover->stack->stack;
	struct found_position *of_b = calloc((size_t)mover->count[1] + 1, sizeof(*of_b));
	int64_t count = 0;

	if (!of_b)
		return 0;
	for (int64_t i = 0; i < mover->count[1]; i++)
		of_b[i] = (struct found_position){ suspect_position(mover, DIFF_B, i), i };
	qsort(of_b, (size_t)mover->count[1], sizeof(*of_b), order_found);
	for (int64_t i = 0; i < mover->count[0]; i++) {
		struct found_position wanted = { suspect_position(mover, DIFF_A, i) + by, 0 };
		if (wanted.position < from + by || !bsearch(&wanted, of_b, (size_t)mover->count[1],
		                                           sizeof(*of_b), order_found))
			continue;
		count++;
	}
	free(of_b);
	/* Pairs by position are meaningless from there on. */
	for (int64_t i = 0; i < stack->pair_count; i++) {
		struct diff_place a = stack->pairs[i].side[DIFF_A];
		int64_t position = saved_position(part_at(mover, DIFF_A, a), a.row);
		if (position >= from || position >= from + by)
			mover->stack->explained[i] = 1;
	}
	for (int side = 0; side < 2; side++) {
		struct diff_places *only = &stack->only[side];
		int64_t kept = 0, begin = side == DIFF_A ? from : from + by;
		for (int64_t i = 0; i < only->count; i++)
			if (saved_position(part_at(mover, side, only->list[i]), only->list[i].row) <
			        begin)
				only->list[kept++] = only->list[i];
		only->count = kept;
	}
	return count;
}

static void report_shift(struct mover *mover, int64_t by)
{
	struct diff_finding *finding = diff_add(mover->context->result, "shifted", FINDING_DAMAGE);
	int64_t first = -1, from = INT64_MAX, count;

	for (int64_t i = 0; i < mover->searched_count; i++)
		if (mover->found[i] >= 0 &&
		        (first < 0 || suspect_position(mover, DIFF_A, mover->searched[i]) < from)) {
			from = suspect_position(mover, DIFF_A, mover->searched[i]);
			first = i;
		}
	/* Between samples there may be earlier ones. */
	for (int64_t i = 0; i < mover->count[0]; i++)
		if (suspect_position(mover, DIFF_A, i) < from &&
		        mover->count[0] > mover->searched_count)
			from = suspect_position(mover, DIFF_A, i);
	if (finding) {
		struct diff_place a = mover->rows[0][mover->searched[first]];
		struct diff_place b = mover->rows[1][mover->found[first]];
		fill_place(mover, finding, a, b);
		finding->place.position = finding->was = from;
		finding->now = from + by;
		finding->other = by;
		finding->has_other = true;
		snprintf(finding->place.detail, sizeof(finding->place.detail),
		        "rows from position %lld on lie %lld %s in B, K %s", (long long)from,
		        llabs(by), by > 0 ? "later" : "earlier",
		        !mover->key                 ? "not compared"
		        : is_unrotated(mover, a, b) ? "not rotated for it"
		                                    : "rotated along");
	}
	count = explain_shift(mover, by, from);
	if (finding)
		finding->count = count;
}

static bool is_paired(const struct mover *mover, int side, struct diff_place place)
{
	for (int64_t i = 0; i < mover->stack->stack->only[side].count; i++) {
		struct diff_place at = mover->stack->stack->only[side].list[i];
		if (at.part == place.part && at.row == place.row)
			return false;
	}
	return true;
}

/* One row that was found elsewhere. */
static void report_moved(struct mover *mover, int64_t i)
{
	struct diff_place a = mover->rows[0][mover->searched[i]];
	struct diff_place b = mover->rows[1][mover->found[i]];
	int64_t was = suspect_position(mover, DIFF_A, mover->searched[i]);
	int64_t now = suspect_position(mover, DIFF_B, mover->found[i]);
	bool exchanged = is_paired(mover, DIFF_A, a) && is_paired(mover, DIFF_B, b);
	const char *kind = was == now ? "sequence" : exchanged ? "rows_permuted" : "position";
	struct diff_finding *finding = diff_add(mover->context->result, kind, FINDING_DAMAGE);

	if (!finding)
		return;
	fill_place(mover, finding, a, b);
	if (was == now) {
		finding->was = first_sequence(part_at(mover, DIFF_A, a), a.row);
		finding->now = first_sequence(part_at(mover, DIFF_B, b), b.row);
	} else if (exchanged) {
		finding->other = now;
		finding->has_other = true;
		finding->has_was = false;
		snprintf(finding->place.detail, sizeof(finding->place.detail),
		        "in all layers; B has it at position %lld", (long long)now);
	}
}

static void explain_single_rows(struct mover *mover, bool *found)
{
	for (int64_t i = 0; i < mover->searched_count; i++)
		if (mover->found[i] >= 0)
			report_moved(mover, i);
	for (int64_t i = 0; i < mover->searched_count; i++)
		if (mover->found[i] >= 0) {
			*found = true;
			explain_places(mover, mover->rows[0][mover->searched[i]],
			        mover->rows[1][mover->found[i]]);
		}
}

bool diff_explain_moved(struct diff_context *context, struct diff_stack_result *stack, bool *found)
{
	struct mover mover = { .context = context, .stack = stack };
	bool good = find_suspects(&mover);

	*found = false;
	choose_references(&mover);
	if (good && mover.count[0] && mover.count[1] && mover.reference[0]) {
		good = search(&mover);
		if (good) {
			int64_t by = common_shift(&mover);
			*found = by != 0;
			if (by)
				report_shift(&mover, by);
			else
				explain_single_rows(&mover, found);
		}
	}
	for (int side = 0; side < 2; side++)
		free(mover.rows[side]);
	free(mover.searched);
	free(mover.found);
	return good;
}
