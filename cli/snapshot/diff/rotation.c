/* Whether one row is another one rotated for another position, without knowing the model. */
#include "snapshot/diff/diff.h"

#include <math.h>
#include <string.h>

#define PI 3.14159265358979323846
#define MOST_WITHOUT_FIRST_PAIR 4096

/* Bases of models that people run; where the user or the file knows better, that alone. */
#define BASE_COUNT 10
static const double bases[BASE_COUNT] = { 1e4, 5e5, 1e6, 1e5, 5e6, 1e7, 1.5e5, 2.5e5, 8e6, 1e8 };

/* The rotated part of a head. */
struct rotated_part {
	int64_t offset, dim;
	bool interleaved;
};

/* Radians a position of each pair, and the base that they come from. */
struct frequencies {
	double base;
	double of_pair[KVC_ROTARY_DIM_MAX / 2];
};

static void of_base(struct frequencies *out, double base, int64_t dim)
{
	out->base = base;
	for (int64_t i = 0; i < dim / 2; i++)
		out->of_pair[i] = pow(base, -2.0 * (double)i / (double)dim);
}

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
        const struct frequencies *frequencies, double most2)
{
	double off = 0;

	for (int64_t i = 0; i < part->dim / 2 && off <= most2; i++) {
		double angle = (double)by * frequencies->of_pair[i];
		double c = cos(angle), s = sin(angle);
		int64_t x, y;
		pair_at(part, i, &x, &y);
		off += square((double)a[x] * c - (double)a[y] * s - (double)b[x]) +
		       square((double)a[x] * s + (double)a[y] * c - (double)b[y]);
	}
	return off;
}

/* What the first pair has turned by, which no base changes, leaves few candidates. */
static bool first_pair_allows(double turned, double slack, double angle)
{
	return fabs(remainder(angle - turned, 2 * PI)) <= slack;
}

/* One of 'count' frequencies; their first pairs turn alike. */
static bool search_positions(struct diff_rotation *out, const struct rotated_part *part,
        const float *a, const float *b, int64_t most, double most2,
        const struct frequencies *frequencies, int count)
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
		if (!first_pair_allows(turned, slack, (double)by * frequencies[0].of_pair[0]))
			continue;
		for (int i = 0; i < count; i++) {
			double off = misfit(part, a, b, by, &frequencies[i], best);
			if (off > best || (found && off == best))
				continue;
			best = off;
			found = true;
			*out = (struct diff_rotation){ by, frequencies[i].base, part->interleaved };
		}
	}
	return found;
}

/* ---- what is known of the rotation ---- */

/* Two heads, and how far apart they may be. */
struct rotated_pair {
	const float *a, *b;
	int64_t dim, most;
	double most2;
};

static bool can_be_rotated(const struct rotated_pair *pair, const struct rotated_part *part)
{
	return part->offset >= 0 && part->dim % 2 == 0 && part->dim > 0 &&
	       part->dim <= KVC_ROTARY_DIM_MAX && part->offset + part->dim <= pair->dim &&
	       keeps_norms(part, pair->a, pair->b, pair->dim, pair->most2);
}

/* As the user tells: his frequencies, in his style or, if he leaves that open, in both. */
static bool fit_given(
        struct diff_rotation *out, const struct rotated_pair *pair, const struct rope_given *given)
{
	static const int styles[] = { KVC_ROPE_NEOX, KVC_ROPE_INTERLEAVED };

	for (int i = 0; i < 2; i++) {
		struct rotated_part part = { given->rotary_offset, 0,
			styles[i] == KVC_ROPE_INTERLEAVED };
		struct frequencies frequencies;
		kvc_rope rope;
		if ((given->style_known && styles[i] != given->options.style) ||
		        !rope_given_init(&rope, given, pair->dim, 0, styles[i]))
			continue;
		part.dim = rope.rotary_dim;
		frequencies.base = given->options.rope_base;
		memcpy(frequencies.of_pair, rope.inv_freq, sizeof(frequencies.of_pair));
		if (can_be_rotated(pair, &part) &&
		        search_positions(out, &part, pair->a, pair->b, pair->most, pair->most2,
		                &frequencies, 1))
			return true;
	}
	return false;
}

static bool fit_file(
        struct diff_rotation *out, const struct rotated_pair *pair, const struct saved_rope *rope)
{
	struct rotated_part part = { rope->rotary_offset,
		rope->rotary_dim ? rope->rotary_dim : pair->dim - rope->rotary_offset,
		rope->interleaved };
	struct frequencies frequencies;

	if (!can_be_rotated(pair, &part))
		return false;
	of_base(&frequencies, rope->base, part.dim);
	return search_positions(
	        out, &part, pair->a, pair->b, pair->most, pair->most2, &frequencies, 1);
}

/* Fewer rotated elements than this fit by chance. */
#define GUESSED_DIM_LEAST 8

static bool fit_usual(struct diff_rotation *out, const struct rotated_pair *pair)
{
	const int64_t dim = pair->dim, dims[] = { dim, dim / 2, dim / 4, dim / 3, 64, 32 };
	struct frequencies frequencies[BASE_COUNT];

	for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++)
		for (int way = 0; way < 4; way++) {
			bool at_end = way % 2;
			struct rotated_part part = { at_end ? dim - dims[i] : 0, dims[i], way / 2 };
			if (dims[i] < GUESSED_DIM_LEAST || (at_end && part.offset <= 0) ||
			        !can_be_rotated(pair, &part))
				continue;
			for (int b = 0; b < BASE_COUNT; b++)
				of_base(&frequencies[b], bases[b], part.dim);
			if (search_positions(out, &part, pair->a, pair->b, pair->most, pair->most2,
			            frequencies, BASE_COUNT))
				return true;
		}
	return false;
}

bool diff_fit_rotation(struct diff_rotation *out, const float *a, const float *b, int64_t dim,
        int64_t most, double tolerance, const struct diff_options *options)
{
	const struct rotated_pair pair = { a, b, dim, most, square(tolerance) * norm2(a, dim) };

	if (options->given)
		return fit_given(out, &pair, options->given);
	if (options->rope.base > 0)
		return fit_file(out, &pair, &options->rope);
	return fit_usual(out, &pair);
}
