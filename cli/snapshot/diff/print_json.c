/* The result of a comparison as one JSON object; docs/diff.md describes its fields. */
#include "json_line.h"
#include "snapshot/diff/print.h"
#include "snapshot/finding_text.h"
#include "snapshot/saved_options.h"

#include <math.h>
#include <stdlib.h>

static json_t *number_or_none(int64_t value, bool known)
{
	return known ? json_integer(value) : json_null();
}

static json_t *finite_or_text(double value)
{
	return isfinite(value) ? json_real(value)
	                       : json_string(isnan(value) ? "nan"
	                                     : value < 0  ? "-inf"
	                                                  : "inf");
}

static void set(json_t *object, const char *name, json_t *value)
{
	json_object_set_new(object, name, value);
}

static json_t *side_object(const struct diff_result *result, int side)
{
	const struct saved_cache *cache = result->alignment.cache[side];
	json_t *object = json_object();
	int64_t only = 0, beyond = 0;

	for (int64_t s = 0; s < result->alignment.stack_count; s++) {
		only += result->alignment.stacks[s].only[side].count;
		beyond += result->alignment.stacks[s].beyond[side].count;
	}
	set(object, "path", saved_json_text(cache->path));
	set(object, "format", saved_json_text(cache->format));
	set(object, "version", saved_json_text(cache->version));
	set(object, "rows", json_integer(saved_row_count(cache)));
	set(object, "rows_without_partner", json_integer(only));
	set(object, "rows_outside_window", json_integer(beyond));
	set(object, "hadamard_undone", json_boolean(result->hadamard[side]));
	return object;
}

static json_t *found_object(const struct diff_finding *finding)
{
	const struct finding *place = &finding->place;
	json_t *object = json_object();

	set(object, "kind", json_string(place->kind));
	set(object, "weight", json_string(finding_weight_name(place->weight)));
	set(object, "part", place->part ? saved_json_text(place->part) : json_null());
	set(object, "stream", number_or_none(place->stream, place->stream >= 0));
	set(object, "layer", number_or_none(place->layer, place->layer >= 0));
	set(object, "tensor",
	        place->tensor < 0 ? json_null()
	                          : json_string(place->tensor == SAVED_K ? "K" : "V"));
	set(object, "head", number_or_none(place->head, place->head >= 0));
	set(object, "row", number_or_none(place->row, place->row >= 0));
	set(object, "row_a", number_or_none(finding->row_a, finding->row_a >= 0));
	set(object, "position",
	        number_or_none(place->position, place->row >= 0 || finding->row_a >= 0));
	set(object, "token", number_or_none(place->token, place->token >= 0));
	set(object, "element", number_or_none(place->element, place->element >= 0));
	set(object, "offset", number_or_none((int64_t)place->offset, place->offset != UINT64_MAX));
	set(object, "offset_a",
	        number_or_none((int64_t)finding->offset_a, finding->offset_a != UINT64_MAX));
	if (place->file)
		set(object, "file", saved_json_text(place->file));
	if (finding->file_a)
		set(object, "file_a", saved_json_text(finding->file_a));
	set(object, "bit", number_or_none(finding->bit, finding->bit >= 0));
	set(object, "count", json_integer(finding->count));
	set(object, "other", number_or_none(finding->other, finding->has_other));
	set(object, "was", number_or_none(finding->was, finding->has_was));
	set(object, "now", number_or_none(finding->now, finding->has_was));
	if (finding->has_value) {
		set(object, "value_a", finite_or_text((double)finding->value[DIFF_A]));
		set(object, "value", finite_or_text((double)finding->value[DIFF_B]));
	}
	set(object, "detail", saved_json_text(place->detail));
	return object;
}

static json_t *worst_object(const struct diff_result *result, const struct diff_stack_result *stack,
        const struct diff_target *target)
{
	struct diff_place a, b;
	const struct saved_part *part;
	json_t *object;

	if (target->worst < 0)
		return json_null();
	a = stack->stack->pairs[target->worst].side[DIFF_A];
	b = stack->stack->pairs[target->worst].side[DIFF_B];
	part = &result->alignment.cache[DIFF_A]->parts[a.part];
	object = json_object();
	set(object, "position", json_integer(saved_position(part, a.row)));
	set(object, "row_a", json_integer(a.row));
	set(object, "row", json_integer(b.row));
	set(object, "first_element", json_integer(target->worst_cell.unit * target->unit));
	set(object, "relative", finite_or_text((double)target->worst_cell.relative));
	return object;
}

static json_t *target_object(const struct diff_result *result,
        const struct diff_stack_result *stack, const struct diff_target *target)
{
	const struct diff_stack *s = stack->stack;
	json_t *object = json_object();

	for (int side = 0; side < 2; side++) {
		char type[96];
		int32_t part = s->parts[side][0];
		const struct saved_part *p = &result->alignment.cache[side]->parts[part];
		set(object, side ? "layer_b" : "layer",
		        json_integer(p->layers[s->layer[side][target->layer]].number));
		set(object, side ? "type_b" : "type_a",
		        saved_json_text(diff_type_text(type, sizeof(type), target, side, part)));
	}
	set(object, "part", saved_json_text(s->name));
	set(object, "tensor", json_string(target->tensor == SAVED_K ? "K" : "V"));
	set(object, "compared", json_boolean(target->compared));
	set(object, "why_not", target->why_not ? json_string(target->why_not) : json_null());
	set(object, "rows", json_integer(target->rows));
	set(object, "rows_differ", json_integer(target->different));
	set(object, "rows_damaged", json_integer(target->changed));
	set(object, "largest", finite_or_text((double)target->sums.largest));
	set(object, "rms_error",
	        finite_or_text(target->sums.value2 > 0
	                               ? sqrt(target->sums.error2 / target->sums.value2)
	                               : 0));
	set(object, "typical", finite_or_text(target->typical));
	set(object, "limit", finite_or_text(target->limit));
	set(object, "worst", worst_object(result, stack, target));
	return object;
}

json_t *diff_object(const struct diff_result *result)
{
	json_t *object = json_object(), *layers = json_array(), *findings = json_array();
	json_t *counts = json_object();
	const struct diff_finding **list = diff_sorted(result);

	set(object, "verdict", json_string(result->verdict));
	set(object, "exit", json_integer(result->exit_code));
	set(object, "headline", saved_json_text(result->headline));
	set(object, "a", side_object(result, DIFF_A));
	set(object, "b", side_object(result, DIFF_B));
	set(object, "rows_compared", json_integer(result->rows));
	for (int64_t s = 0; s < result->alignment.stack_count; s++)
		for (int64_t i = 0; i < 2 * result->stacks[s].stack->layer_count; i++)
			json_array_append_new(layers, target_object(result, &result->stacks[s],
			                                      &result->stacks[s].targets[i]));
	for (int64_t i = 0; list && i < result->finding_count; i++)
		json_array_append_new(findings, found_object(list[i]));
	for (int64_t i = 0; i < result->tally_count; i++)
		set(counts, result->tallies[i].kind, json_integer(result->tallies[i].count));
	set(object, "counts", counts);
	set(object, "findings", findings);
	set(object, "layers", layers);
	free(list);
	return object;
}

int diff_print_json(FILE *out, const struct diff_result *result)
{
	return cli_write_json(out, diff_object(result), JSON_INDENT(2) | JSON_REAL_PRECISION(7));
}
