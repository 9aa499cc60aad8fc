/* How far rows are apart. */
#include "snapshot/diff/diff.h"
#include "snapshot/wide.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define LANES 16
#define UNIT_WHERE_HEADS_ARE_UNKNOWN 64

/* ---- what rounding may do ---- */

static struct diff_precision type_precision(const struct saved_tensor *tensor)
{
	switch (tensor->type) {
	case SAVED_F64:
	case SAVED_F32:
		return (struct diff_precision){ 0x1p-23f, 0 };
	case SAVED_F16:
		return (struct diff_precision){ 0x1p-10f, 0 };
	case SAVED_BF16:
		return (struct diff_precision){ 0x1p-7f, 0 };
	case SAVED_F8_E4M3:
		return (struct diff_precision){ 0x1p-3f, 0 };
	case SAVED_F8_E5M2:
		return (struct diff_precision){ 0x1p-2f, 0 };
	case SAVED_Q8_0:
		return (struct diff_precision){ 0, 1 / 127.f };
	case SAVED_Q4_0:
		return (struct diff_precision){ 0, 1 / 8.f };
	case SAVED_AFFINE: /* from the least to the largest value in 2^bits - 1 steps */
		return (struct diff_precision){ 0, 2 / (float)((1u << tensor->element_bits) - 1) };
	case SAVED_OPAQUE:
		break;
	}
	return (struct diff_precision){ 0, 0 };
}

struct diff_precision diff_precision(const struct saved_tensor *a, const struct saved_tensor *b)
{
	struct diff_precision p = type_precision(a), q = type_precision(b);

	return (struct diff_precision){ fmaxf(p.relative, q.relative),
		fmaxf(p.of_most, q.of_most) };
}

float diff_floor(struct diff_precision precision)
{
	/* The largest of 32 values is 2.5 times their root mean square or less; errors are spread
	 * evenly over a step. */
	return precision.relative + 1.5f * precision.of_most;
}

/* ---- one unit ---- */

int64_t diff_unit(const struct saved_tensor *a, const struct saved_tensor *b)
{
	int64_t width = a->heads * a->dim;

	if (a->heads > 1)
		return a->dim;
	if (b->heads > 1)
		return b->dim;
	return width % UNIT_WHERE_HEADS_ARE_UNKNOWN == 0 ? UNIT_WHERE_HEADS_ARE_UNKNOWN : width;
}

struct unit_sums {
	float error2, a2, b2, most;
};

/* Vectors of the language, since the compiler may not reorder sums of its own accord; no longer than
 * registers are, since longer ones are kept in memory. */
#define VECTOR 8
typedef float floats __attribute__((vector_size(4 * VECTOR)));
typedef int32_t ints __attribute__((vector_size(4 * VECTOR)));

/* Sums of every LANES-th element from some VECTOR neighbours on. */
struct lane_sums {
	floats error2, a2, b2;
	ints most; /* bits of floats that are not negative: ordered as they are */
};

static inline __attribute__((always_inline)) void add_vector(
        struct lane_sums *sums, const float *a, const float *b)
{
	floats x, y, d;
	ints size, larger;

	memcpy(&x, a, sizeof(x));
	memcpy(&y, b, sizeof(y));
	d = x - y;
	sums->error2 += d * d;
	sums->a2 += x * x;
	sums->b2 += y * y;
	size = (ints)d & 0x7fffffff;
	larger = size > sums->most;
	sums->most = (size & larger) | (sums->most & ~larger);
}

static inline __attribute__((always_inline)) void keep_lanes(
        const struct lane_sums *sums, int64_t first, float (*lanes)[LANES])
{
	memcpy(lanes[0] + first, &sums->error2, sizeof(sums->error2));
	memcpy(lanes[1] + first, &sums->a2, sizeof(sums->a2));
	memcpy(lanes[2] + first, &sums->b2, sizeof(sums->b2));
	memcpy(lanes[3] + first, &sums->most, sizeof(sums->most));
}

static inline __attribute__((always_inline)) void add_up_lanes(
        const float *a, const float *b, int64_t count, float (*lanes)[LANES])
{
	struct lane_sums low = { { 0 }, { 0 }, { 0 }, { 0 } }, high = low;

	for (int64_t i = 0; i < count; i += LANES) {
		add_vector(&low, a + i, b + i);
		add_vector(&high, a + i + VECTOR, b + i + VECTOR);
	}
	keep_lanes(&low, 0, lanes);
	keep_lanes(&high, VECTOR, lanes);
}

static void add_up_lanes_anywhere(
        const float *a, const float *b, int64_t count, float (*lanes)[LANES])
{
	add_up_lanes(a, b, count, lanes);
}

static WIDE void add_up_lanes_wide(
        const float *a, const float *b, int64_t count, float (*lanes)[LANES])
{
	add_up_lanes(a, b, count, lanes);
}

static void add_up_whole(const float *a, const float *b, int64_t count, float (*lanes)[LANES])
{
	if (has_wide())
		add_up_lanes_wide(a, b, count, lanes);
	else
		add_up_lanes_anywhere(a, b, count, lanes);
}

static struct unit_sums add_up(const float *a, const float *b, int64_t count)
{
	int64_t whole = count / LANES * LANES;
	float lanes[4][LANES];
	struct unit_sums sums = { 0, 0, 0, 0 };

	add_up_whole(a, b, whole, lanes);
	for (int64_t i = whole; i < count; i++) {
		float d = a[i] - b[i];
		sums.error2 += d * d;
		sums.a2 += a[i] * a[i];
		sums.b2 += b[i] * b[i];
		sums.most = fmaxf(sums.most, fabsf(d));
	}
	for (int j = 0; j < LANES; j++) {
		sums.error2 += lanes[0][j];
		sums.a2 += lanes[1][j];
		sums.b2 += lanes[2][j];
		sums.most = sums.most < lanes[3][j] ? lanes[3][j] : sums.most;
	}
	return sums;
}

/* Whether a few elements differ by more than rounding and the rest not at all: drift is never so. */
static bool only_few_differ(
        const float *a, const float *b, int64_t count, float scale, struct diff_precision precision)
{
	int64_t beyond = 0, different = 0;
	float most = 0;

	for (int64_t i = 0; i < count; i++)
		most = fmaxf(most, fmaxf(fabsf(a[i]), fabsf(b[i])));
	for (int64_t i = 0; i < count; i++) {
		float value = fmaxf(fabsf(a[i]), fabsf(b[i])), d = fabsf(a[i] - b[i]);
		different += d > 0;
		beyond += d > precision.relative * (4 * fminf(value, most) + scale) +
		                      2.5f * precision.of_most * most;
	}
	return beyond > 0 && different <= (count + 7) / 8;
}

/* How far one unit is from another. */
struct diff_distance {
	double error2, a2, b2;
	float most;     /* element of |a - b| */
	bool odd;       /* has values that are no numbers, or too large for sums of float32 */
	bool nonfinite; /* on one side only */
	bool few;       /* DIFF_FEW */
};

static struct diff_distance odd_distance(const float *a, const float *b, int64_t count)
{
	struct diff_distance out = { .odd = true };

	for (int64_t i = 0; i < count; i++) {
		double d;
		if (!isfinite(a[i]) || !isfinite(b[i])) {
			bool same = a[i] == b[i] || (isnan(a[i]) && isnan(b[i]));
			out.nonfinite = out.nonfinite || !same;
			continue;
		}
		d = fabs((double)a[i] - b[i]);
		out.error2 += d * d;
		out.a2 += (double)a[i] * a[i];
		out.b2 += (double)b[i] * b[i];
		out.most = fmaxf(out.most, (float)fmin(d, (double)FLT_MAX));
	}
	return out;
}

static struct diff_distance distance_of(
        const float *a, const float *b, int64_t count, struct diff_precision precision)
{
	struct unit_sums s = add_up(a, b, count);
	struct diff_distance out = {
		.error2 = (double)s.error2, .a2 = (double)s.a2, .b2 = (double)s.b2, .most = s.most
	};
	float norm;

	if (!isfinite(s.error2 + s.a2 + s.b2))
		return odd_distance(a, b, count);
	if (s.most * s.most <= .3f * s.error2)
		return out;
	norm = sqrtf((s.a2 + s.b2) / 2);
	out.few = norm > 0 && only_few_differ(a, b, count, norm / sqrtf((float)count), precision);
	return out;
}

static void merge_odd_unit(
        struct diff_cell *cell, const struct diff_distance *distance, int64_t unit)
{
	double norm = sqrt((distance->a2 + distance->b2) / 2);
	double relative = norm > 0 ? sqrt(distance->error2) / norm : 0;

	if (distance->nonfinite)
		cell->flags |= DIFF_NONFINITE;
	if (!(distance->error2 > 0) && !distance->nonfinite)
		return;
	cell->flags &= (uint8_t)~DIFF_SAME;
	if (relative > (double)cell->relative || distance->nonfinite) {
		cell->unit = (uint16_t)unit;
		cell->relative = (float)relative;
		cell->error =
		        (float)fmin(sqrt(distance->error2 / fmax(norm, 1e-30)), (double)FLT_MAX);
	}
	if (relative >= (double)DIFF_UNRELATED_ERROR)
		cell->flags |= DIFF_UNRELATED;
	cell->spike = fmaxf(cell->spike, distance->most / (float)sqrt(fmax(norm, 1e-30)));
}

static void merge_unit(struct diff_cell *cell, const struct diff_distance *distance, int64_t unit)
{
	float norm = sqrtf(((float)distance->a2 + (float)distance->b2) / 2), root;
	float error = sqrtf((float)distance->error2);
	float relative = norm > 0 ? error / norm : 0;

	cell->flags &= (uint8_t)~DIFF_SAME;
	if (relative >= DIFF_UNRELATED_ERROR)
		cell->flags |= DIFF_UNRELATED;
	if (distance->a2 == 0)
		cell->flags |= DIFF_ZERO_A;
	if (distance->b2 == 0)
		cell->flags |= DIFF_ZERO_B;
	if (distance->few)
		cell->flags |= DIFF_FEW;
	root = sqrtf(norm);
	error = norm > 0 ? error / root : 0;
	if (error > cell->error) {
		cell->unit = (uint16_t)unit;
		cell->error = error;
		cell->relative = relative;
	}
	if (norm > 0)
		cell->spike = fmaxf(cell->spike, distance->most / root);
}

/* In the order of rows, then of units: sums depend on it. */
static void merge_distance(struct diff_cell *cell, struct diff_sums *sums,
        const struct diff_distance *distance, int64_t unit)
{
	unit = unit < UINT16_MAX ? unit : UINT16_MAX;
	if (distance->odd)
		merge_odd_unit(cell, distance, unit);
	else if (distance->most > 0) /* not error2, which may have come to nothing */
		merge_unit(cell, distance, unit);
	sums->error2 += distance->error2;
	sums->value2 += (distance->a2 + distance->b2) / 2;
	sums->largest = fmaxf(sums->largest, distance->most);
}

void diff_measure_row(struct diff_cell *cell, struct diff_sums *sums, const float *a,
        const float *b, int64_t width, int64_t unit, struct diff_precision precision)
{
	*cell = (struct diff_cell){ .flags = DIFF_SAME };
	for (int64_t first = 0, i = 0; first < width; first += unit, i++) {
		int64_t count = first + unit <= width ? unit : width - first;
		struct diff_distance distance = distance_of(a + first, b + first, count, precision);
		merge_distance(cell, sums, &distance, i);
	}
	sums->different += !(cell->flags & DIFF_SAME);
}

/* ---- a tensor ---- */

bool diff_comparable(const struct saved_tensor *a, const struct saved_tensor *b)
{
	if (!a->present || !b->present)
		return false;
	if (a->heads < 1 || a->dim < 1 || b->heads < 1 || b->dim < 1 || a->dim > DIFF_ROW_MAX ||
	        b->dim > DIFF_ROW_MAX || a->heads > DIFF_ROW_MAX / a->dim ||
	        b->heads > DIFF_ROW_MAX / b->dim || a->heads * a->dim != b->heads * b->dim)
		return false;
	if (saved_row_bytes(a) > DIFF_BUFFER_BYTES || saved_row_bytes(b) > DIFF_BUFFER_BYTES)
		return false;
	if (a->type != SAVED_OPAQUE && b->type != SAVED_OPAQUE)
		return true;
	return a->type == b->type && saved_row_bytes(a) == saved_row_bytes(b) &&
	       strcmp(a->type_name, b->type_name) == 0;
}

/* Whether equal bytes mean equal values. */
static bool same_bytes_same_values(const struct diff_source *a, const struct diff_source *b,
        const struct saved_tensor *p, const struct saved_tensor *q)
{
	return p->type == q->type && p->element_bits == q->element_bits &&
	       p->scale_type == q->scale_type && p->group_size == q->group_size &&
	       (p->heads == q->heads || p->type != SAVED_AFFINE) && a->hadamard == b->hadamard &&
	       saved_row_bytes(p) == saved_row_bytes(q);
}

/* ---- pieces of rows ---- */

/* What one read of views takes: both sides and their distances stay in the second level of cache. */
#define VIEW_BYTES ((size_t)64 << 10)

size_t diff_distance_bytes(void)
{
	return sizeof(struct diff_distance);
}

/* Some pairs, all rows of one part on each side. */
struct stretch {
	const struct diff_source *source[2];
	const struct diff_pair *pairs;
	int64_t count;
	const struct saved_tensor *tensor[2];
	struct diff_buffers *buffers;
	struct diff_precision precision;
	int64_t unit, unit_count; /* of a row */
	bool bytes_tell;
};

/* A piece of each row, whole rows or one head, as it lies in memory. */
struct piece {
	const unsigned char *at[2];
	size_t stride[2];              /* from row to row */
	struct saved_tensor tensor[2]; /* as if there were no more than the piece */
	int64_t first_unit;
};

static bool same_bytes(const struct piece *piece, int64_t rows)
{
	size_t bytes = saved_row_bytes(&piece->tensor[0]);

	if (piece->stride[0] == bytes && piece->stride[1] == bytes)
		return memcmp(piece->at[0], piece->at[1], (size_t)rows * bytes) == 0;
	for (int64_t i = 0; i < rows; i++)
		if (memcmp(piece->at[0] + (size_t)i * piece->stride[0],
		            piece->at[1] + (size_t)i * piece->stride[1], bytes) != 0)
			return false;
	return true;
}

static void mark_differing(const struct stretch *stretch, const struct piece *piece)
{
	size_t bytes = saved_row_bytes(&piece->tensor[0]);

	for (int64_t i = 0; i < stretch->count; i++)
		stretch->buffers->differs[i] |=
		        !stretch->bytes_tell ||
		        memcmp(piece->at[0] + (size_t)i * piece->stride[0],
		                piece->at[1] + (size_t)i * piece->stride[1], bytes) != 0;
}

static void measure_piece(const struct stretch *stretch, const struct piece *piece)
{
	const struct saved_tensor *tensor = &piece->tensor[0];
	int64_t width = tensor->heads * tensor->dim, unit = stretch->unit;

	for (int64_t i = 0; i < stretch->count; i++) {
		struct diff_distance *out =
		        stretch->buffers->distances + i * stretch->unit_count + piece->first_unit;
		float *const *values = stretch->buffers->values;
		for (int side = 0; side < 2; side++) {
			saved_values(&piece->tensor[side],
			        piece->at[side] + (size_t)i * piece->stride[side], 1, values[side]);
			if (stretch->source[side]->hadamard)
				diff_hadamard(values[side], width, stretch->source[side]->hadamard);
		}
		for (int64_t first = 0; first < width; first += unit)
			*out++ = distance_of(values[0] + first, values[1] + first,
			        first + unit <= width ? unit : width - first, stretch->precision);
	}
}

/* Opaque rows are the same or not; how far apart they are has no meaning. */
static bool is_opaque_stretch(const struct stretch *stretch)
{
	return stretch->tensor[0]->type == SAVED_OPAQUE;
}

/* False if all its bytes are the same, and nothing was measured. */
static bool look_at_pieces(const struct stretch *stretch, const struct piece *piece)
{
	if (stretch->bytes_tell && same_bytes(piece, stretch->count))
		return false;
	mark_differing(stretch, piece);
	if (!is_opaque_stretch(stretch))
		measure_piece(stretch, piece);
	return true;
}

/* ---- reading ---- */

static size_t view_bytes(const struct saved_tensor *tensor)
{
	return tensor->plane.element_stride > tensor->plane.row_stride ? DIFF_BUFFER_BYTES
	                                                               : VIEW_BYTES;
}

/* How many pairs from the first on are rows that follow each other on both sides and can be looked at
 * where they lie; 0: they are to be packed. */
static int64_t view_reach(const struct stretch *stretch, struct saved_reach *reach)
{
	const struct saved_tensor *p = stretch->tensor[0], *q = stretch->tensor[1];
	int64_t count = (int64_t)DIFF_DISTANCES_MAX / stretch->unit_count;

	for (int side = 0; side < 2; side++) {
		const struct saved_tensor *tensor = stretch->tensor[side];
		size_t bytes = view_bytes(tensor);
		int64_t run;
		reach[side] = saved_view_reach(tensor, &bytes);
		run = diff_run_of_rows(stretch->pairs, side, 0,
		        stretch->count < reach[side].rows ? stretch->count : reach[side].rows);
		count = run < count ? run : count;
	}
	reach[0].rows = reach[1].rows = count;
	if (reach[0].together && reach[1].together)
		return count;
	return reach[0].heads == 1 && reach[1].heads == 1 && p->heads == q->heads &&
	                       p->dim == q->dim
	               ? count
	               : 0;
}

static int read_view(const struct stretch *stretch, struct piece *piece, int side, int64_t head,
        struct saved_reach reach, struct saved_error *error)
{
	const struct saved_tensor *tensor = stretch->tensor[side];
	struct saved_view view;

	if (saved_view_read(&view, tensor, stretch->pairs[0].side[side].row, head, reach,
	            stretch->buffers->bytes[side], error) != 0)
		return -1;
	piece->at[side] = view.bytes;
	piece->stride[side] = view.row_stride;
	piece->tensor[side] = *tensor;
	piece->tensor[side].heads = reach.heads;
	return 0;
}

static bool any_differs(const struct stretch *stretch)
{
	for (int64_t i = 0; i < stretch->count; i++)
		if (stretch->buffers->differs[i])
			return true;
	return false;
}

/* Heads that are the same in all rows, of rows that are not: their norm counts. */
static int measure_skipped(
        const struct stretch *stretch, struct saved_reach reach, struct saved_error *error)
{
	for (int64_t head = 0; head < stretch->tensor[0]->heads; head++) {
		struct piece piece = { .first_unit = head };
		if (stretch->buffers->distances[head].most >= 0)
			continue;
		if (read_view(stretch, &piece, DIFF_A, head, reach, error) != 0)
			return -1;
		piece.at[1] = piece.at[0];
		piece.stride[1] = piece.stride[0];
		piece.tensor[1] = piece.tensor[0];
		measure_piece(stretch, &piece);
	}
	return 0;
}

/* Rows where they lie: whole ones, or head by head. */
static int measure_views(
        const struct stretch *stretch, const struct saved_reach *reach, struct saved_error *error)
{
	bool whole = reach[0].together && reach[1].together, skipped = false;

	for (int64_t head = 0; head < (whole ? 1 : stretch->tensor[0]->heads); head++) {
		struct piece piece = { .first_unit = head };
		for (int side = 0; side < 2; side++)
			if (read_view(stretch, &piece, side, head, reach[side], error) != 0)
				return -1;
		stretch->buffers->distances[head].most = 0;
		if (look_at_pieces(stretch, &piece))
			continue;
		stretch->buffers->distances[head].most = -1; /* see measure_skipped() */
		skipped = true;
	}
	if (whole || !skipped || is_opaque_stretch(stretch) || !any_differs(stretch))
		return 0;
	return measure_skipped(stretch, reach[0], error);
}

/* What memory of a fixed size holds. */
static int64_t packed_reach(const struct stretch *stretch)
{
	size_t p = saved_row_bytes(stretch->tensor[0]), q = saved_row_bytes(stretch->tensor[1]);
	int64_t most =
	        (int64_t)DIFF_BUFFER_FLOATS / (stretch->tensor[0]->heads * stretch->tensor[0]->dim);

	if ((int64_t)(DIFF_BUFFER_BYTES / (p > q ? p : q)) < most)
		most = (int64_t)(DIFF_BUFFER_BYTES / (p > q ? p : q));
	return most < 1 ? 1 : most < stretch->count ? most : stretch->count;
}

static int measure_packed(const struct stretch *stretch, struct saved_error *error)
{
	struct piece piece = { .first_unit = 0 };

	for (int side = 0; side < 2; side++) {
		unsigned char *bytes = stretch->buffers->bytes[side];
		if (diff_read_bytes(stretch->source[side], stretch->pairs, side, stretch->count,
		            bytes, stretch->buffers->span, error) != 0)
			return -1;
		piece.at[side] = bytes;
		piece.stride[side] = saved_row_bytes(stretch->tensor[side]);
		piece.tensor[side] = *stretch->tensor[side];
	}
	look_at_pieces(stretch, &piece);
	return 0;
}

/* ---- cells ---- */

static void make_cells(
        const struct stretch *stretch, struct diff_cell *cells, struct diff_sums *sums)
{
	const struct diff_distance *distances = stretch->buffers->distances;

	for (int64_t i = 0; i < stretch->count; i++, distances += stretch->unit_count) {
		struct diff_cell *cell = &cells[i];
		*cell = (struct diff_cell){ .flags = DIFF_SAME };
		if (!stretch->buffers->differs[i])
			continue;
		if (is_opaque_stretch(stretch))
			*cell = (struct diff_cell){ 1, 1, 1, 0, DIFF_UNRELATED };
		for (int64_t unit = 0; !is_opaque_stretch(stretch) && unit < stretch->unit_count;
		        unit++)
			merge_distance(cell, sums, &distances[unit], unit);
		sums->different += !(cell->flags & DIFF_SAME);
	}
}

/* Pairs from the first on whose rows are in the same parts. */
static int64_t pairs_of_parts(const struct diff_pair *pairs, int64_t count)
{
	int64_t end = 1;

	while (end < count && pairs[end].side[0].part == pairs[0].side[0].part &&
	        pairs[end].side[1].part == pairs[0].side[1].part)
		end++;
	return end;
}

/* Of some pairs from the first on; how many, or -1. */
static int64_t measure_stretch_of(const struct stretch *all, struct diff_cell *cells,
        struct diff_sums *sums, struct saved_error *error)
{
	struct stretch stretch = *all;
	struct saved_reach reach[2];
	int64_t count = view_reach(&stretch, reach);
	int failed;

	stretch.count = count > 0 ? count : packed_reach(&stretch);
	memset(stretch.buffers->differs, 0, (size_t)stretch.count * sizeof(bool));
	failed =
	        count > 0 ? measure_views(&stretch, reach, error) : measure_packed(&stretch, error);
	if (failed)
		return -1;
	make_cells(&stretch, cells, sums);
	return stretch.count;
}

int diff_measure(struct diff_cell *cells, struct diff_sums *sums, const struct diff_source *a,
        const struct diff_source *b, const struct diff_pair *pairs, int64_t count,
        struct diff_buffers *buffers, struct saved_error *error)
{
	for (int64_t at = 0, end; at < count;) {
		const struct saved_tensor *p = diff_tensor(a, pairs[at].side[0].part);
		const struct saved_tensor *q = diff_tensor(b, pairs[at].side[1].part);
		int64_t width = p->heads * p->dim, unit = diff_unit(p, q);
		struct stretch stretch = { { a, b }, pairs, 0, { p, q }, buffers,
			diff_precision(p, q), unit, (width + unit - 1) / unit,
			same_bytes_same_values(a, b, p, q) };
		for (end = at + pairs_of_parts(pairs + at, count - at); at < end;) {
			int64_t done;
			stretch.pairs = pairs + at;
			stretch.count = end - at;
			done = measure_stretch_of(&stretch, cells + at, sums, error);
			if (done < 0)
				return -1;
			at += done;
		}
	}
	return 0;
}
