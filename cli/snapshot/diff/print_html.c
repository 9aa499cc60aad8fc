/* The page of kvcanary diff --html: report_diff.html with the result and its maps as data. */
#include "page.h"
#include "snapshot/diff/print.h"

#include <math.h>
#include <stdlib.h>

/* report_diff.html, by cmake/embed.cmake. */
extern const unsigned char diff_page[];
extern const size_t diff_page_bytes;

/* 0 no row, 1 the same, then the logarithm of the relative error from 1e-8 to 3; as in the page. */
static int error_code(const struct diff_map_cell *cell)
{
	double log = log10((double)cell->relative + 1e-300);
	int code;

	if (cell->pair < 0)
		return 0;
	if (cell->flags & DIFF_SAME)
		return 1;
	if (isinf(cell->relative))
		return 255;
	code = 2 + (int)lround((fmax(log, -8) + 8) / 8.5 * 253);
	return code > 255 ? 255 : code;
}

static json_t *row_of_map(
        const struct diff_result *result, const struct diff_stack_result *stack, int64_t item)
{
	const struct diff_target *target = &stack->targets[item];
	int32_t part = stack->stack->parts[DIFF_A][0];
	const struct saved_tensor *tensor = diff_tensor(&target->source[DIFF_A], part);
	json_t *values = json_array(), *units = json_array(), *damaged = json_array();

	for (int64_t i = 0; i < stack->columns; i++) {
		const struct diff_map_cell *cell = &stack->map[item * stack->columns + i];
		json_array_append_new(values, json_integer(error_code(cell)));
		json_array_append_new(units, json_integer(cell->unit));
		if (cell->flags & DIFF_CHANGED)
			json_array_append_new(damaged, json_integer(i));
	}
	return json_pack("{s:I,s:s,s:I,s:o,s:o,s:o}", "layer",
	        (json_int_t)result->alignment.cache[DIFF_A]
	                ->parts[part]
	                .layers[stack->stack->layer[DIFF_A][target->layer]]
	                .number,
	        "tensor", target->tensor == SAVED_K ? "K" : "V", "heads", (json_int_t)tensor->heads,
	        "values", values, "units", units, "damaged", damaged);
}

/* Positions and tokens of the columns. */
static bool label_columns(
        const struct diff_result *result, const struct diff_stack_result *stack, json_t *map)
{
	int64_t pairs = stack->stack->pair_count;
	int32_t *by_rank = calloc((size_t)pairs + 1, sizeof(*by_rank));
	json_t *first = json_array(), *last = json_array(), *token = json_array();

	for (int64_t i = 0; by_rank && i < pairs; i++)
		by_rank[stack->order[i]] = (int32_t)i;
	for (int64_t i = 0, rank = 0; by_rank && pairs && i < stack->columns; i++) {
		int64_t end = rank;
		while (end < pairs && end * stack->columns / pairs == i)
			end++;
		for (int which = 0; which < 2; which++) {
			int32_t pair = by_rank[which ? end - 1 : rank];
			struct diff_place a = stack->stack->pairs[pair].side[DIFF_A];
			const struct saved_part *part =
			        &result->alignment.cache[DIFF_A]->parts[a.part];
			json_array_append_new(
			        which ? last : first, json_integer(saved_position(part, a.row)));
			if (!which)
				json_array_append_new(token,
				        json_integer(part->tokens ? part->tokens[a.row] : -1));
		}
		rank = end;
	}
	json_object_set_new(map, "first", first);
	json_object_set_new(map, "last", last);
	json_object_set_new(map, "token", token);
	free(by_rank);
	return by_rank != NULL;
}

static json_t *map_object(const struct diff_result *result, const struct diff_stack_result *stack)
{
	json_t *map = json_object(), *rows = json_array();

	for (int tensor = 0; tensor < 2; tensor++) /* all K, then all V */
		for (int64_t i = tensor; i < 2 * stack->stack->layer_count; i += 2)
			if (stack->targets[i].compared)
				json_array_append_new(rows, row_of_map(result, stack, i));
	json_object_set_new(map, "name", json_string(stack->stack->name));
	json_object_set_new(map, "pairs", json_integer(stack->stack->pair_count));
	json_object_set_new(map, "rows", rows);
	if (!label_columns(result, stack, map)) {
		json_decref(map);
		return NULL;
	}
	return map;
}

int diff_save_html(const char *path, const struct diff_result *result)
{
	json_t *data = diff_object(result), *maps = json_array();
	int code;

	for (int64_t s = 0; s < result->alignment.stack_count; s++)
		if (json_array_append_new(maps, map_object(result, &result->stacks[s])) != 0) {
			json_decref(data);
			data = NULL;
			break;
		}
	json_object_set_new(data, "maps", maps);
	code = page_save(path, (struct page){ diff_page, diff_page_bytes }, data);
	json_decref(data);
	return code;
}
