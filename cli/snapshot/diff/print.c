/* The result of a comparison for people: first what a hurried reader needs, then the detail. */
#include "snapshot/diff/print.h"
#include "cli.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LAYERS_SHOWN 24
#define FINDINGS_SHOWN 16

/* ---- shared with the other forms ---- */

static int order_found_places(const void *left, const void *right)
{
	const struct diff_finding *a = *(const struct diff_finding *const *)left;
	const struct diff_finding *b = *(const struct diff_finding *const *)right;
	const int64_t keys[][2] = { { b->place.weight, a->place.weight },
		{ a->place.layer, b->place.layer }, { a->place.tensor, b->place.tensor },
		{ a->place.position, b->place.position }, { a->place.head, b->place.head },
		{ a->place.row, b->place.row }, { a->row_a, b->row_a } };

	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
		if (keys[i][0] != keys[i][1])
			return keys[i][0] < keys[i][1] ? -1 : 1;
	return strcmp(a->place.kind, b->place.kind);
}

const struct diff_finding **diff_sorted(const struct diff_result *result)
{
	const struct diff_finding **list = calloc((size_t)result->finding_count + 1, sizeof(*list));

	for (int64_t i = 0; list && i < result->finding_count; i++)
		list[i] = &result->findings[i];
	if (list)
		qsort(list, (size_t)result->finding_count, sizeof(*list), order_found_places);
	return list;
}

const char *diff_type_text(
        char *out, size_t bytes, const struct diff_target *target, int side, int32_t part)
{
	const struct saved_tensor *t = diff_tensor(&target->source[side], part);

	snprintf(out, bytes, "%s%s", t->type_name ? t->type_name : "?",
	        target->source[side].hadamard ? " (Hadamard)" : "");
	return out;
}

/* ---- head ---- */

static const char *type_of_cache(const struct saved_cache *cache)
{
	for (int64_t i = 0; i < cache->part_count; i++)
		if (cache->parts[i].layer_count > 0 &&
		        cache->parts[i].layers[0].tensor[0].type_name)
			return cache->parts[i].layers[0].tensor[0].type_name;
	return "";
}

static void print_file(FILE *out, const struct diff_result *result, int side)
{
	const struct saved_cache *cache = result->alignment.cache[side];

	fprintf(out, "  %c  ", side == DIFF_A ? 'A' : 'B');
	cli_print_foreign(out, cache->path);
	fprintf(out, "\n     %s%s%s, %lld layers, %lld rows, %s%s\n", cache->format,
	        cache->version[0] ? ", " : "", cache->version, (long long)saved_layer_count(cache),
	        (long long)saved_row_count(cache), type_of_cache(cache),
	        result->hadamard[side] ? ", undone: a Hadamard rotation of its rows" : "");
}

static void print_alignment(FILE *out, const struct diff_result *result)
{
	int64_t only[2] = { 0, 0 }, beyond = 0;

	for (int64_t s = 0; s < result->alignment.stack_count; s++)
		for (int side = 0; side < 2; side++) {
			only[side] += result->alignment.stacks[s].only[side].count;
			beyond += result->alignment.stacks[s].beyond[side].count;
		}
	fprintf(out, "  compared: %lld rows at equal positions, %lld tensors",
	        (long long)result->rows, (long long)result->compared);
	if (only[0] || only[1])
		fprintf(out, "; rows only in A %lld, only in B %lld", (long long)only[0],
		        (long long)only[1]);
	if (beyond)
		fprintf(out, "; outside the window %lld", (long long)beyond);
	fputc('\n', out);
}

/* ---- by layer ---- */

static const char *number_text(char *out, size_t bytes, double value)
{
	if (isinf(value))
		snprintf(out, bytes, "inf");
	else
		snprintf(out, bytes, value == 0 ? "0" : "%.2g", value);
	return out;
}

static double rms_error(const struct diff_target *target)
{
	return target->sums.value2 > 0 ? sqrt(target->sums.error2 / target->sums.value2) : 0;
}

static void print_target(FILE *out, const struct diff_result *result,
        const struct diff_stack_result *stack, const struct diff_target *target)
{
	char largest[32], rms[32], worst[32], limit[32], rows[64];
	const struct diff_stack *s = stack->stack;
	const struct saved_cache *cache = result->alignment.cache[DIFF_A];
	const struct diff_pair *pair = &s->pairs[target->worst];
	struct diff_place a = pair->side[DIFF_A];
	const struct saved_part *part = &cache->parts[a.part];
	float relative =
	        target->worst_cell.flags & DIFF_NONFINITE ? INFINITY : target->worst_cell.relative;

	snprintf(rows, sizeof(rows), "%lld/%lld", (long long)target->different,
	        (long long)target->rows);
	fprintf(out, "  %5lld  %c  %11s  %8s %8s %8s %8s  position %lld%s\n",
	        (long long)part->layers[s->layer[DIFF_A][target->layer]].number,
	        target->tensor == SAVED_K ? 'K' : 'V', rows,
	        number_text(largest, sizeof(largest), (double)target->sums.largest),
	        number_text(rms, sizeof(rms), rms_error(target)),
	        number_text(worst, sizeof(worst), (double)relative),
	        number_text(limit, sizeof(limit), target->limit),
	        (long long)saved_position(part, a.row), target->changed ? "  <" : "");
}

static void print_layers(FILE *out, const struct diff_result *result)
{
	int64_t shown = 0, left_out = 0;

	for (int64_t s = 0; s < result->alignment.stack_count; s++) {
		const struct diff_stack_result *stack = &result->stacks[s];
		if (result->alignment.stack_count > 1)
			fprintf(out, "\n  %s cache\n", stack->stack->name);
		for (int64_t i = 0; i < 2 * stack->stack->layer_count; i++) {
			const struct diff_target *target = &stack->targets[i];
			/* The damaged ones, whatever their number; of the others the first. */
			if (!target->different)
				continue;
			if (shown >= LAYERS_SHOWN &&
			        !(target->changed && shown < 2 * LAYERS_SHOWN)) {
				left_out++;
				continue;
			}
			if (shown++ == 0)
				fprintf(out, "\n  layer     rows differ   largest      rms    worst"
				             "    limit  worst at\n");
			print_target(out, result, stack, target);
		}
	}
	if (left_out)
		fprintf(out, "  ... %lld more (--json has all)\n", (long long)left_out);
	if (shown)
		fprintf(out, "\n  largest: element of |A - B|; rms and worst: relative errors of "
		             "rows that"
		             " differ.\n  < damage: beyond the limit, which the other rows of the "
		             "layer set.\n");
}

/* ---- findings ---- */

static void print_found_one(FILE *out, const struct diff_finding *finding)
{
	char place[160];

	fprintf(out, "  %-14s %s", finding->place.kind,
	        diff_place_text(place, sizeof(place), finding));
	if (finding->count > 1)
		fprintf(out, ", %lld rows", (long long)finding->count);
	if (finding->has_was && strcmp(finding->place.kind, "shifted") != 0)
		fprintf(out, ": %lld -> %lld", (long long)finding->was, (long long)finding->now);
	if (finding->place.detail[0]) {
		fputs(place[0] ? ": " : "", out);
		cli_print_foreign(out, finding->place.detail); /* what files say is in it */
	}
	if (finding->bit >= 0)
		fprintf(out, " (bit %d)", finding->bit);
	if (finding->place.offset != UINT64_MAX)
		fprintf(out, ", at byte %llu of ", (unsigned long long)finding->place.offset);
	if (finding->place.offset != UINT64_MAX)
		cli_print_foreign(out, finding->place.file ? finding->place.file : "B");
	fputc('\n', out);
}

static void print_found(FILE *out, const struct diff_result *result)
{
	const struct diff_finding **list = diff_sorted(result);
	int64_t total = 0;

	for (int64_t i = 0; i < result->tally_count; i++)
		total += result->tallies[i].count;
	if (!list || total == 0) {
		free(list);
		return;
	}
	fputs("\nfound:\n", out);
	for (int64_t i = 0; i < result->finding_count && i < FINDINGS_SHOWN; i++)
		print_found_one(out, list[i]);
	if (total > FINDINGS_SHOWN)
		fprintf(out, "  ... %lld in all\n", (long long)total);
	free(list);
}

/* ---- what next ---- */

static const struct {
	const char *verdict, *slug;
} slugs[] = {
	{ "row_changed", "diff-row-changed" },
	{ "rows_permuted", "diff-rows-permuted" },
	{ "rotation", "diff-rotation" },
	{ "zeroed", "diff-zeroed" },
	{ "wrong_layout", "diff-swapped" },
	{ "kv_swapped", "diff-swapped" },
	{ "layers_swapped", "diff-swapped" },
	{ "shifted", "diff-shifted" },
	{ "sequence", "diff-cells" },
	{ "position", "diff-cells" },
	{ "other_tokens", "diff-tokens" },
	{ "token_changed", "diff-tokens" },
	{ "missing", "diff-missing" },
	{ "not_comparable", "diff-not-comparable" },
};

const char *diff_slug(const char *verdict)
{
	for (size_t i = 0; i < sizeof(slugs) / sizeof(slugs[0]); i++)
		if (strcmp(slugs[i].verdict, verdict) == 0)
			return slugs[i].slug;
	return NULL;
}

void diff_print_text(FILE *out, const struct diff_result *result, const char *html_path)
{
	const char *slug = diff_slug(result->verdict);

	fprintf(out, "%s: %s\n\n", result->verdict, result->headline);
	print_file(out, result, DIFF_A);
	print_file(out, result, DIFF_B);
	print_alignment(out, result);
	print_layers(out, result);
	print_found(out, result);
	if (slug || html_path)
		fputc('\n', out);
	if (html_path) {
		fprintf(out, "report: ");
		cli_print_foreign(out, html_path);
		fputc('\n', out);
	}
	if (slug)
		fprintf(out, "next:   kvcanary explain %s\n", slug);
}
