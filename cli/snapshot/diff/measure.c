/* How far rows are apart. */
#include "snapshot/diff/diff.h"

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

/* Vectors of the language, since the compiler may not reorder sums of its own accord. */
typedef float float_lanes __attribute__((vector_size(4 * LANES)));
typedef int32_t int_lanes __attribute__((vector_size(4 * LANES)));

static void add_up_lanes(const float *a, const float *b, int64_t count, float (*lanes)[LANES])
{
	float_lanes error2 = { 0 }, a2 = { 0 }, b2 = { 0 };
	int_lanes most = { 0 }; /* bits of floats that are not negative: ordered as they are */

	for (int64_t i = 0; i < count; i += LANES) {
		float_lanes x, y, d;
		int_lanes size, larger;
		memcpy(&x, a + i, sizeof(x));
		memcpy(&y, b + i, sizeof(y));
		d = x - y;
		error2 += d * d;
		a2 += x * x;
		b2 += y * y;
		size = (int_lanes)d & 0x7fffffff;
		larger = size > most;
		most = (size & larger) | (most & ~larger);
	}
	memcpy(lanes[0], &error2, sizeof(error2));
	memcpy(lanes[1], &a2, sizeof(a2));
	memcpy(lanes[2], &b2, sizeof(b2));
	memcpy(lanes[3], &most, sizeof(most));
}

static struct unit_sums add_up(const float *a, const float *b, int64_t count)
{
	int64_t whole = count / LANES * LANES;
	float lanes[4][LANES];
	struct unit_sums sums = { 0, 0, 0, 0 };

	add_up_lanes(a, b, whole, lanes);
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

/* Units with values that are no numbers, or too large for sums of float32. */
static void measure_odd_unit(struct diff_cell *cell, struct diff_sums *sums, const float *a,
        const float *b, int64_t count, int64_t unit)
{
	double error2 = 0, a2 = 0, b2 = 0;
	float most = 0;
	bool nonfinite = false;

	for (int64_t i = 0; i < count; i++) {
		double d;
		if (!isfinite(a[i]) || !isfinite(b[i])) {
			bool same = a[i] == b[i] || (isnan(a[i]) && isnan(b[i]));
			nonfinite = nonfinite || !same;
			continue;
		}
		d = fabs((double)a[i] - b[i]);
		error2 += d * d;
		a2 += (double)a[i] * a[i];
		b2 += (double)b[i] * b[i];
		most = fmaxf(most, (float)fmin(d, (double)FLT_MAX));
	}
	if (nonfinite)
		cell->flags |= DIFF_NONFINITE;
	if (error2 > 0 || nonfinite) {
		double norm = sqrt((a2 + b2) / 2);
		double relative = norm > 0 ? sqrt(error2) / norm : 0;
		cell->flags &= (uint8_t)~DIFF_SAME;
		if (relative > (double)cell->relative || nonfinite) {
			cell->unit = (uint16_t)unit;
			cell->relative = (float)relative;
			cell->error =
			        (float)fmin(sqrt(error2 / fmax(norm, 1e-30)), (double)FLT_MAX);
		}
		if (relative >= (double)DIFF_UNRELATED_ERROR)
			cell->flags |= DIFF_UNRELATED;
		cell->spike = fmaxf(cell->spike, most / (float)sqrt(fmax(norm, 1e-30)));
	}
	sums->error2 += error2;
	sums->value2 += (a2 + b2) / 2;
	sums->largest = fmaxf(sums->largest, most);
}

void diff_measure_unit(struct diff_cell *cell, struct diff_sums *sums, const float *a,
        const float *b, int64_t count, int64_t unit, struct diff_precision precision)
{
	struct unit_sums s = add_up(a, b, count);
	float norm, error, relative;

	if (!isfinite(s.error2 + s.a2 + s.b2)) {
		measure_odd_unit(cell, sums, a, b, count, unit);
		return;
	}
	sums->error2 += (double)s.error2;
	sums->value2 += ((double)s.a2 + (double)s.b2) / 2;
	if (s.most == 0) /* not error2, which may have come to nothing */
		return;
	sums->largest = fmaxf(sums->largest, s.most);
	norm = sqrtf((s.a2 + s.b2) / 2);
	error = sqrtf(s.error2);
	relative = norm > 0 ? error / norm : 0;
	cell->flags &= (uint8_t)~DIFF_SAME;
	if (relative >= DIFF_UNRELATED_ERROR)
		cell->flags |= DIFF_UNRELATED;
	if (s.a2 == 0)
		cell->flags |= DIFF_ZERO_A;
	if (s.b2 == 0)
		cell->flags |= DIFF_ZERO_B;
	if (norm > 0 && s.most * s.most > .3f * s.error2 &&
	        only_few_differ(a, b, count, norm / sqrtf((float)count), precision))
		cell->flags |= DIFF_FEW;
	error = norm > 0 ? error / sqrtf(norm) : 0;
	if (error > cell->error) {
		cell->unit = (uint16_t)unit;
		cell->error = error;
		cell->relative = relative;
	}
	if (norm > 0)
		cell->spike = fmaxf(cell->spike, s.most / sqrtf(norm));
}

void diff_measure_row(struct diff_cell *cell, struct diff_sums *sums, const float *a,
        const float *b, int64_t width, int64_t unit, struct diff_precision precision)
{
	*cell = (struct diff_cell){ .flags = DIFF_SAME };
	for (int64_t first = 0, i = 0; first < width; first += unit, i++)
		diff_measure_unit(cell, sums, a + first, b + first,
		        first + unit <= width ? unit : width - first,
		        i < UINT16_MAX ? i : UINT16_MAX, precision);
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

/* What memory of a fixed size holds; all rows of one part on each side. */
static int64_t stretch_of_pairs(const struct diff_source *a, const struct diff_source *b,
        const struct diff_pair *pairs, int64_t count)
{
	const struct saved_tensor *p = diff_tensor(a, pairs->side[0].part);
	const struct saved_tensor *q = diff_tensor(b, pairs->side[1].part);
	size_t bytes =
	        saved_row_bytes(p) > saved_row_bytes(q) ? saved_row_bytes(p) : saved_row_bytes(q);
	int64_t most = (int64_t)DIFF_BUFFER_FLOATS / (p->heads * p->dim), end = 1;

	if ((int64_t)(DIFF_BUFFER_BYTES / bytes) < most)
		most = (int64_t)(DIFF_BUFFER_BYTES / bytes);
	while (end < count && end < most && pairs[end].side[0].part == pairs[0].side[0].part &&
	        pairs[end].side[1].part == pairs[0].side[1].part)
		end++;
	return end;
}

/* Opaque rows are the same or not; how far apart they are has no meaning. */
static void measure_opaque(struct diff_cell *cells, struct diff_sums *sums, const unsigned char *a,
        const unsigned char *b, int64_t count, size_t row_bytes)
{
	for (int64_t i = 0; i < count; i++) {
		bool same = memcmp(a + (size_t)i * row_bytes, b + (size_t)i * row_bytes,
		                    row_bytes) == 0;
		cells[i] = (struct diff_cell){ .flags = same ? DIFF_SAME : DIFF_UNRELATED,
			.error = same ? 0 : 1,
			.relative = same ? 0 : 1,
			.spike = same ? 0 : 1 };
		sums->different += !same;
	}
}

struct stretch {
	const struct diff_source *source[2];
	const struct diff_pair *pairs;
	int64_t count;
};

static void measure_values(struct diff_cell *cells, struct diff_sums *sums,
        const struct stretch *stretch, struct diff_buffers *buffers, bool bytes_tell)
{
	const struct saved_tensor *p =
	        diff_tensor(stretch->source[0], stretch->pairs->side[0].part);
	const struct saved_tensor *q =
	        diff_tensor(stretch->source[1], stretch->pairs->side[1].part);
	size_t row_bytes[2] = { saved_row_bytes(p), saved_row_bytes(q) };
	struct diff_precision precision = diff_precision(p, q);
	int64_t width = p->heads * p->dim, unit = diff_unit(p, q);

	for (int64_t i = 0, run; i < stretch->count; i += run) {
		const unsigned char *bytes[2];
		for (int side = 0; side < 2; side++)
			bytes[side] = buffers->bytes[side] + (size_t)i * row_bytes[side];
		run = 1;
		if (bytes_tell && memcmp(bytes[0], bytes[1], row_bytes[0]) == 0) {
			cells[i] = (struct diff_cell){ .flags = DIFF_SAME };
			continue;
		}
		if (!bytes_tell)
			run = stretch->count - i;
		for (int side = 0; side < 2; side++)
			diff_values(stretch->source[side], stretch->pairs[i].side[side].part,
			        bytes[side], run, buffers->values[side]);
		for (int64_t j = 0; j < run; j++)
			diff_measure_row(&cells[i + j], sums, buffers->values[0] + j * width,
			        buffers->values[1] + j * width, width, unit, precision);
	}
}

int diff_measure(struct diff_cell *cells, struct diff_sums *sums, const struct diff_source *a,
        const struct diff_source *b, const struct diff_pair *pairs, int64_t count,
        struct diff_buffers *buffers, struct saved_error *error)
{
	for (int64_t at = 0; at < count;) {
		struct stretch stretch = { { a, b }, pairs + at,
			stretch_of_pairs(a, b, pairs + at, count - at) };
		const struct saved_tensor *p = diff_tensor(a, pairs[at].side[0].part);
		const struct saved_tensor *q = diff_tensor(b, pairs[at].side[1].part);
		bool bytes_tell = same_bytes_same_values(a, b, p, q);
		for (int side = 0; side < 2; side++)
			if (diff_read_bytes(stretch.source[side], stretch.pairs, side,
			            stretch.count, buffers->bytes[side], buffers->span, error) != 0)
				return -1;
		if (bytes_tell && memcmp(buffers->bytes[0], buffers->bytes[1],
		                          (size_t)stretch.count * saved_row_bytes(p)) == 0)
			for (int64_t i = 0; i < stretch.count; i++)
				cells[at + i] = (struct diff_cell){ .flags = DIFF_SAME };
		else if (p->type == SAVED_OPAQUE)
			measure_opaque(cells + at, sums, buffers->bytes[0], buffers->bytes[1],
			        stretch.count, saved_row_bytes(p));
		else
			measure_values(cells + at, sums, &stretch, buffers, bytes_tell);
		at += stretch.count;
	}
	return 0;
}
