/* Whether one row is another one rotated for another position, without knowing the model. */
#include "snapshot/diff/diff.h"

#include <math.h>

#define PI 3.14159265358979323846
#define MOST_WITHOUT_FIRST_PAIR 4096

/* Bases of models that people run; where the file or the user knows better, that alone. */
static const double bases[] = { 1e4, 5e5, 1e6, 1e5, 5e6, 1e7, 1.5e5, 2.5e5, 8e6, 1e8 };
#define BASE_COUNT ((int)(sizeof(bases) / sizeof(bases[0])))

/* The rotated part of a head. */
struct rotated_part {
	int64_t offset, dim;
	bool interleaved;
};

static void pair_at(const struct rotated_part *part, int64_t i, int64_t *x, int64_t *y)
{
	*x = part->offset + (part->interleaved ? 2 * i : i);
	*y = part->interleaved ? *x + 1 : *x + part->dim / 2;
}

static double square(double x)
{
	return x * x;
}

static double norm2(const float *values, int64_t count)
{
	double sum = 0;

	for (int64_t i = 0; i < count; i++)
		sum += square((double)values[i]);
	return sum;
}

/* A rotation keeps the norm of each pair, and the rest of the head as it is. */
static bool keeps_norms(
        const struct rotated_part *part, const float *a, const float *b, int64_t dim, double most2)
{
	double off = 0;

	for (int64_t i = 0; i < dim; i++)
		if (i < part->offset || i >= part->offset + part->dim)
			off += square((double)a[i] - (double)b[i]);
	for (int64_t i = 0; i < part->dim / 2; i++) {
		int64_t x, y;
		pair_at(part, i, &x, &y);
		off += square(
		        hypot((double)a[x], (double)a[y]) - hypot((double)b[x], (double)b[y]));
	}
	return off <= most2;
}

/* Squared distance of b from a rotated by 'by' positions; stops beyond 'most2'. */
static double misfit(const struct rotated_part *part, const float *a, const float *b, int64_t by,
        double base, double most2)
{
	double off = 0;

	for (int64_t i = 0; i < part->dim / 2 && off <= most2; i++) {
		double angle = (double)by * pow(base, -2.0 * (double)i / (double)part->dim);
		double c = cos(angle), s = sin(angle);
		int64_t x, y;
		pair_at(part, i, &x, &y);
		off += square((double)a[x] * c - (double)a[y] * s - (double)b[x]) +
		       square((double)a[x] * s + (double)a[y] * c - (double)b[y]);
	}
	return off;
}

/* The first pair turns by 1 radian a position whatever the base: that leaves few candidates. */
static bool first_pair_allows(double turned, double slack, int64_t by)
{
	return fabs(remainder((double)by - turned, 2 * PI)) <= slack;
}

static bool search_positions(struct diff_rotation *out, const struct rotated_part *part,
        const float *a, const float *b, int64_t most, double most2, const struct saved_rope *rope)
{
	double best = most2, turned, slack, first;
	bool found = false;
	int64_t x, y;

	pair_at(part, 0, &x, &y);
	turned = atan2((double)b[y], (double)b[x]) - atan2((double)a[y], (double)a[x]);
	first = hypot((double)a[x], (double)a[y]);
	slack = first > 0 ? fmin(PI, 2 * sqrt(most2) / first) : PI;
	if (slack >= PI / 2 && most > MOST_WITHOUT_FIRST_PAIR)
		most = MOST_WITHOUT_FIRST_PAIR;
	for (int64_t step = 1; step <= 2 * most; step++) {
		int64_t by = step % 2 ? (step + 1) / 2 : -step / 2;
		if (!first_pair_allows(turned, slack, by))
			continue;
		for (int i = 0; i < (rope && rope->base > 0 ? 1 : BASE_COUNT); i++) {
			double base = rope && rope->base > 0 ? rope->base : bases[i];
			double off = misfit(part, a, b, by, base, best);
			if (off > best || (found && off == best))
				continue;
			best = off;
			found = true;
			*out = (struct diff_rotation){ by, base, part->interleaved };
		}
	}
	return found;
}

static bool try_part(struct diff_rotation *out, const struct rotated_part *part, const float *a,
        const float *b, int64_t dim, int64_t most, double most2, const struct saved_rope *rope)
{
	if (part->dim < 8 || part->dim % 2 || part->offset + part->dim > dim ||
	        !keeps_norms(part, a, b, dim, most2))
		return false;
	return search_positions(out, part, a, b, most, most2, rope);
}

bool diff_fit_rotation(struct diff_rotation *out, const float *a, const float *b, int64_t dim,
        int64_t most, double tolerance, const struct saved_rope *rope)
{
	const int64_t dims[] = { dim, dim / 2, dim / 4, dim / 3, 64, 32 };
	double most2 = square(tolerance) * norm2(a, dim);

	if (rope && rope->base > 0) {
		struct rotated_part part = { rope->rotary_offset,
			rope->rotary_dim ? rope->rotary_dim : dim - rope->rotary_offset,
			rope->interleaved };
		return try_part(out, &part, a, b, dim, most, most2, rope);
	}
	for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++)
		for (int style = 0; style < 2; style++)
			for (int at_end = 0; at_end < 2; at_end++) {
				struct rotated_part part = { at_end ? dim - dims[i] : 0, dims[i],
					style == 1 };
				if (part.offset >= 0 && (!at_end || part.offset > 0) &&
				        try_part(out, &part, a, b, dim, most, most2, rope))
					return true;
			}
	return false;
}
