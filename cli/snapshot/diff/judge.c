/*
 * Drift or damage, told from the cells alone.
 *
 * Two sound caches of the same text differ by what arithmetic does: rounding, another kernel, another
 * storage type. That grows from layer to layer and differs from row to row by a factor that is
 * nearly log-normal. So each tensor is judged by its own rows: median and median absolute deviation
 * of the logarithm of the error. No row of a tensor knows how many bits may differ; its neighbours
 * do.
 *
 * Where most rows are equal and some are not, those may have been computed another way (the tail of a
 * prompt in another batch). Then the whole row drifts: K and V, from some layer to the last. Damage in
 * a file does not look like that.
 */
#include "snapshot/diff/diff.h"

#include <math.h>
#include <stdlib.h>

#define SPREAD_LEAST 0.25
#define SPREAD_MOST 0.6
#define SPREAD_OF_FEW 0.35
#define MAD_TO_SIGMA 1.4826
#define ROWS_TO_JUDGE_ALONE 6 /* fewer are judged together with those of the layers around */
#define LAYERS_AROUND 2
#define ROWS_FOR_OWN_SPREAD 32

double diff_limit(const struct diff_drift *drift)
{
	if (!(drift->scale > 0))
		return 0;
	return exp(drift->error_center + DIFF_SPREADS * drift->error_spread) / drift->scale;
}

/* ---- order statistics ---- */

static void swap_doubles(double *a, double *b)
{
	double kept = *a;

	*a = *b;
	*b = kept;
}

/* Brings the element of this rank to its place, no larger one before it and no smaller one behind
 * (quickselect). The pivot is drawn: a fixed one would invite a crafted file. */
static double select_rank(double *list, int64_t count, int64_t rank)
{
	int64_t low = 0, high = count - 1;
	uint64_t draw = 0x9e3779b97f4a7c15u;

	while (low < high) {
		int64_t i = low - 1, j = high + 1;
		double pivot;
		draw = draw * 6364136223846793005u + 1442695040888963407u;
		swap_doubles(&list[low],
		        &list[low + (int64_t)((draw >> 33) % (uint64_t)(high - low + 1))]);
		pivot = list[low]; /* here, so that both sides get shorter */
		for (;;) {
			while (list[++i] < pivot)
				;
			while (list[--j] > pivot)
				;
			if (i >= j)
				break;
			swap_doubles(&list[i], &list[j]);
		}
		if (rank <= j)
			high = j;
		else
			low = j + 1;
	}
	return list[rank];
}

static double median(double *list, int64_t count)
{
	double upper = select_rank(list, count, count / 2), lower;

	if (count % 2)
		return upper;
	lower = list[0];
	for (int64_t i = 1; i < count / 2; i++)
		lower = fmax(lower, list[i]);
	return (lower + upper) / 2;
}

static double spread_around(double *list, int64_t count, double center)
{
	double sigma;

	if (count < 5)
		return SPREAD_OF_FEW;
	for (int64_t i = 0; i < count; i++)
		list[i] = fabs(list[i] - center);
	sigma = MAD_TO_SIGMA * median(list, count);
	return sigma < SPREAD_LEAST ? SPREAD_LEAST : sigma > SPREAD_MOST ? SPREAD_MOST : sigma;
}

/* ---- the drift of a tensor ---- */

static bool counts(const struct diff_cell *cell)
{
	return !(cell->flags & (DIFF_EXPLAINED | DIFF_NONFINITE | DIFF_UNRELATED));
}

/* Beyond what rounding alone does. */
static bool is_loud(const struct diff_cell *cell, float floor)
{
	return counts(cell) && cell->relative > floor;
}

static double scale_of(const struct diff_cell *cells, int64_t rows, double *scratch)
{
	int64_t count = 0;

	for (int64_t i = 0; i < rows; i++)
		if (cells[i].relative > 0 && cells[i].error > 0 &&
		        !(cells[i].flags & (DIFF_EXPLAINED | DIFF_NONFINITE)))
			scratch[count++] = (double)cells[i].error / (double)cells[i].relative;
	return count ? median(scratch, count) : 0;
}

/* The logarithms of one measure of loud rows, relative to the scale of their tensor. */
struct loud_rows {
	double *logs;
	int64_t count;
	int64_t rows; /* loud or not */
};

static void collect_loud(struct loud_rows *loud, const struct diff_layer_cells *layer, int tensor,
        int64_t rows, bool spike)
{
	const struct diff_cell *cells = layer->cell[tensor];

	for (int64_t i = 0; cells && i < rows; i++) {
		double value = (double)(spike ? cells[i].spike : cells[i].error);
		loud->rows += counts(&cells[i]);
		if (is_loud(&cells[i], layer->floor[tensor]) && layer->drift[tensor].scale > 0)
			loud->logs[loud->count++] = log(value / layer->drift[tensor].scale);
	}
}

/* Where most rows are quiet the center is the floor: a loud row then has to explain itself. */
static void set_center(double *center, double *spread, struct loud_rows *loud, double floor)
{
	double middle = loud->count ? median(loud->logs, loud->count) : floor;
	bool ordinary = loud->count >= 3 && 3 * loud->count >= loud->rows;

	*center = ordinary && middle > floor ? middle : floor;
	*spread = spread_around(loud->logs, loud->count, middle);
}

static void find_drift(struct diff_layer_cells *layers, int64_t layer_count, int64_t row_count,
        int64_t at, int tensor, double *scratch)
{
	struct diff_layer_cells *layer = &layers[at];
	struct diff_drift *drift = &layer->drift[tensor];
	int64_t around = row_count < ROWS_TO_JUDGE_ALONE ? LAYERS_AROUND : 0;
	double floor = log((double)layer->floor[tensor] + 1e-30);

	for (int spike = 0; spike < 2; spike++) {
		struct loud_rows loud = { scratch, 0, 0 };
		for (int64_t i = at - around; i <= at + around; i++)
			if (i >= 0 && i < layer_count)
				collect_loud(&loud, &layers[i], tensor, row_count, spike);
		if (spike) /* the largest of many even errors is some four times their mean */
			floor += log(4 / sqrt((double)layer->unit[tensor]));
		set_center(spike ? &drift->spike_center : &drift->error_center,
		        spike ? &drift->spike_spread : &drift->error_spread, &loud, floor);
	}
	drift->error_center += log(drift->scale);
	drift->spike_center += log(drift->scale);
}

/* The deviation of few rows is a poor estimate; that of all layers together is a good one. */
static void pool_spreads(
        struct diff_layer_cells *layers, int64_t layer_count, int tensor, double *scratch)
{
	for (int spike = 0; spike < 2; spike++) {
		double pooled;
		int64_t count = 0;
		for (int64_t i = 0; i < layer_count; i++) {
			const struct diff_drift *drift = &layers[i].drift[tensor];
			if (layers[i].cell[tensor] && drift->scale > 0)
				scratch[count++] =
				        spike ? drift->spike_spread : drift->error_spread;
		}
		if (count == 0)
			return;
		pooled = median(scratch, count);
		for (int64_t i = 0; i < layer_count; i++)
			*(spike ? &layers[i].drift[tensor].spike_spread
			        : &layers[i].drift[tensor].error_spread) = pooled;
	}
}

/* ---- single cells ---- */

/* The cell is damage whatever its row does elsewhere. */
static bool is_plain_damage(const struct diff_cell *cell, const struct diff_drift *drift)
{
	double limit = exp(drift->error_center + DIFF_SPREADS * drift->error_spread);

	if (cell->flags & DIFF_NONFINITE)
		return true;
	/* A head of next to nothing may be unrelated and still no damage. */
	if ((cell->flags & DIFF_UNRELATED) && (double)cell->error > fmin(limit, drift->scale / 2))
		return true;
	return (cell->flags & DIFF_FEW) && (double)cell->spike > exp(drift->spike_center) / 4;
}

static bool is_outlier(const struct diff_cell *cell, const struct diff_drift *drift, double spreads)
{
	double error = log((double)cell->error), spike = log((double)cell->spike);

	return error > drift->error_center + spreads * drift->error_spread ||
	       spike > drift->spike_center + spreads * drift->spike_spread;
}

static const struct diff_cell *cell_at(
        const struct diff_layer_cells *layers, int64_t layer, int tensor, int64_t row)
{
	const struct diff_cell *cells = layers[layer].cell[tensor];

	return cells && !(cells[row].flags & DIFF_EXPLAINED) ? &cells[row] : NULL;
}

/* ---- rows that drift as a whole ---- */

struct row_drift {
	int64_t first;       /* layer where it begins, -1: nowhere */
	int64_t cells[2];    /* K, V from there to the end */
	int64_t outliers[2]; /* of them, by half the usual measure */
	bool reaches_end;
};

static struct row_drift follow_row(
        const struct diff_layer_cells *layers, int64_t layer_count, int64_t row)
{
	struct row_drift found = { -1, { 0, 0 }, { 0, 0 }, false };

	for (int64_t layer = 0; layer < layer_count; layer++) {
		found.reaches_end = false;
		for (int tensor = 0; tensor < 2; tensor++) {
			const struct diff_cell *cell = cell_at(layers, layer, tensor, row);
			const struct diff_drift *drift = &layers[layer].drift[tensor];
			if (!cell || !(drift->scale > 0) || is_plain_damage(cell, drift))
				continue;
			if (found.first < 0 && is_outlier(cell, drift, DIFF_SPREADS))
				found.first = layer;
			if (found.first < 0)
				continue;
			found.cells[tensor]++;
			if (is_outlier(cell, drift, DIFF_SPREADS / 2)) {
				found.outliers[tensor]++;
				found.reaches_end = true;
			}
		}
	}
	return found;
}

static bool drifts_as_a_whole(const struct row_drift *found, const struct diff_layer_cells *layers)
{
	int64_t cells = found->cells[0] + found->cells[1];
	int64_t outliers = found->outliers[0] + found->outliers[1];

	if (found->first < 0 || !layers[found->first].may_begin_drift || !found->reaches_end)
		return false;
	for (int tensor = 0; tensor < 2; tensor++) /* both take part */
		if (found->cells[tensor] && 2 * found->outliers[tensor] < found->cells[tensor])
			return false;
	return 5 * outliers >= 4 * cells;
}

/* Within a row that drifts as a whole: no more than its neighbours above and below lead to expect. */
static bool fits_its_row(const struct diff_layer_cells *layers, int64_t layer_count, int64_t layer,
        int tensor, int64_t row)
{
	const struct diff_cell *cell = cell_at(layers, layer, tensor, row);
	double around = 0;

	for (int64_t i = layer - 1; i <= layer + 1; i++)
		for (int t = 0; t < 2; t++) {
			const struct diff_cell *other =
			        i < 0 || i >= layer_count ? NULL : cell_at(layers, i, t, row);
			if (other && other != cell && counts(other))
				around = fmax(around, (double)other->relative);
		}
	return (double)cell->relative <= around * exp(DIFF_SPREADS * SPREAD_LEAST);
}

static void judge_row(struct diff_layer_cells *layers, int64_t layer_count, int64_t row)
{
	struct row_drift found = follow_row(layers, layer_count, row);
	bool whole = drifts_as_a_whole(&found, layers);

	for (int64_t layer = 0; layer < layer_count; layer++)
		for (int tensor = 0; tensor < 2; tensor++) {
			const struct diff_cell *cell = cell_at(layers, layer, tensor, row);
			const struct diff_drift *drift = &layers[layer].drift[tensor];
			bool damage;
			if (!cell || (cell->flags & DIFF_SAME))
				continue;
			damage = is_plain_damage(cell, drift);
			if (!damage && is_outlier(cell, drift, DIFF_SPREADS))
				damage = !whole ||
				         !fits_its_row(layers, layer_count, layer, tensor, row);
			if (damage)
				layers[layer].cell[tensor][row].flags |= DIFF_CHANGED;
		}
}

bool diff_judge(struct diff_layer_cells *layers, int64_t layer_count, int64_t row_count)
{
	double *scratch = calloc(
	        (size_t)(row_count + layer_count) + ROWS_TO_JUDGE_ALONE * (2 * LAYERS_AROUND + 1),
	        sizeof(*scratch));

	if (!scratch)
		return false;
	for (int tensor = 0; tensor < 2; tensor++) {
		for (int64_t layer = 0; layer < layer_count; layer++)
			layers[layer].drift[tensor].scale =
			        layers[layer].cell[tensor]
			                ? scale_of(layers[layer].cell[tensor], row_count, scratch)
			                : 0;
		for (int64_t layer = 0; layer < layer_count; layer++)
			if (layers[layer].cell[tensor])
				find_drift(layers, layer_count, row_count, layer, tensor, scratch);
		if (row_count < ROWS_FOR_OWN_SPREAD)
			pool_spreads(layers, layer_count, tensor, scratch);
	}
	for (int64_t row = 0; row < row_count; row++)
		judge_row(layers, layer_count, row);
	free(scratch);
	return true;
}
