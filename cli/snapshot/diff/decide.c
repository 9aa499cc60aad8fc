/* The verdict: one word, an exit code, and a line that a person can act on. */
#include "cli.h"
#include "snapshot/diff/diff.h"

#include <math.h>
#include <string.h>

/* Kinds of findings and the verdict that each leads to, the more comprehensive first: what is wrong
 * with whole tensors or with the order of rows explains single rows, not the other way round. */
static const struct verdict_rule {
	const char *kind;
	const char *verdict;
	bool is_row_kind; /* of these the most frequent one decides */
	const char *text; /* before the count */
} rules[] = {
	{ "wrong_layout", "wrong_layout", false, "written in another layout than it is read in" },
	{ "kv_swapped", "kv_swapped", false, "layers whose K and V are exchanged" },
	{ "layers_swapped", "layers_swapped", false, "tensors exchanged with another layer" },
	{ "layer_repeated", "layers_swapped", false,
	        "tensors that hold the data of another layer" },
	{ "shifted", "shifted", false, "rows lie at other positions" },
	{ "sequence", "sequence", false, "cells that belong to another sequence" },
	{ "position", "position", false, "cells that say another position, with the same K and V" },
	{ "other_tokens", "other_tokens", false,
	        "the texts differ, so no row from there on can be compared" },
	{ "rotation", "rotation", true, "K rows rotated for another position" },
	{ "rows_permuted", "rows_permuted", true, "rows exchanged with one another" },
	{ "zero_row", "zeroed", true, "rows that are zero in one file" },
	{ "nonfinite", "row_changed", true, "rows with a NaN or an infinity in one file" },
	{ "row_changed", "row_changed", true, "rows that differ by more than their layer drifts" },
	{ "token_changed", "token_changed", false, "token ids that differ while K and V do not" },
	{ "token_mismatch", "token_changed", false,
	        "token ids of cells that differ while K and V do not" },
	{ "missing_row", "missing", false, "runs of rows that one file lacks" },
	{ "missing_layer", "missing", false, "layers that one file lacks" },
};
#define RULE_COUNT (sizeof(rules) / sizeof(rules[0]))

static const struct verdict_rule *leading_rule(const struct diff_result *result)
{
	const struct verdict_rule *best = NULL;

	for (size_t i = 0; i < RULE_COUNT; i++) {
		int64_t count = diff_count(result, rules[i].kind);
		if (count == 0)
			continue;
		if (!rules[i].is_row_kind && !best)
			return &rules[i];
		if (rules[i].is_row_kind && (!best || count > diff_count(result, best->kind)))
			best = &rules[i];
	}
	return best;
}

static const struct diff_finding *first_of(const struct diff_result *result, const char *kind)
{
	const struct diff_finding *first = NULL;

	for (int64_t i = 0; i < result->finding_count; i++) {
		const struct diff_finding *finding = &result->findings[i];
		if (strcmp(finding->place.kind, kind) == 0 &&
		        (!first || finding->place.layer < first->place.layer))
			first = finding;
	}
	return first;
}

/* "layer 3 K, head 1, position 7": what of it applies. */
const char *diff_place_text(char *out, size_t bytes, const struct diff_finding *finding)
{
	const struct finding *place = &finding->place;
	size_t used = 0;
	struct {
		const char *name;
		int64_t value;
	} parts[] = { { "layer", place->layer }, { "head", place->head },
		{ "position", place->position }, { "token", place->token } };

	out[0] = '\0';
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		int count = 0;
		/* A position may be negative where it is the fault. */
		if (parts[i].value < 0 && !(i == 2 && place->row >= 0))
			continue;
		count = snprintf(out + used, bytes - used, "%s%s %lld%s", used ? ", " : "",
		        parts[i].name, (long long)parts[i].value,
		        i == 0 && place->tensor >= 0 ? place->tensor == SAVED_K ? " K" : " V" : "");
		if (count < 0 || (size_t)count >= bytes - used)
			break;
		used += (size_t)count;
	}
	return out;
}

static double worst_relative(const struct diff_result *result)
{
	double worst = 0;

	for (int64_t s = 0; s < result->alignment.stack_count; s++)
		for (int64_t i = 0; i < 2 * result->stacks[s].stack->layer_count; i++)
			if (result->stacks[s].targets[i].different)
				worst = fmax(worst,
				        (double)result->stacks[s].targets[i].worst_cell.relative);
	return worst;
}

static bool any_different(const struct diff_result *result)
{
	for (int64_t s = 0; s < result->alignment.stack_count; s++)
		for (int64_t i = 0; i < 2 * result->stacks[s].stack->layer_count; i++)
			if (result->stacks[s].targets[i].different)
				return true;
	return false;
}

static void decide_sound(struct diff_result *result)
{
	size_t bytes = sizeof(result->headline);

	if (result->compared == 0 || result->rows == 0) {
		result->verdict = "not_comparable";
		result->exit_code = CLI_CANNOT;
		snprintf(result->headline, bytes, "nothing in the two files can be compared");
	} else if (result->not_compared || diff_count(result, "bytes_differ")) {
		result->verdict = "not_comparable";
		result->exit_code = CLI_CANNOT;
		snprintf(result->headline, bytes, "%s",
		        result->not_compared
		                ? "part of the two files cannot be compared"
		                : "values of this type cannot be told from their bytes");
	} else if (any_different(result)) {
		result->verdict = "drift";
		snprintf(result->headline, bytes,
		        "only numeric drift: no row is off by more than its layer (at most %.2g)",
		        worst_relative(result));
	} else {
		result->verdict = "identical";
		snprintf(result->headline, bytes, "K and V of all %lld rows are the same",
		        (long long)result->rows);
	}
	if (result->exit_code == CLI_GOOD && diff_count(result, "identity") > 0)
		snprintf(result->headline + strlen(result->headline),
		        bytes - strlen(result->headline),
		        "; but by what the files say they do not belong together");
}

void diff_decide(struct diff_result *result)
{
	const struct verdict_rule *rule = leading_rule(result);
	const struct diff_finding *first;
	char place[128] = "";

	result->exit_code = CLI_GOOD;
	/* Rows or layers that are missing need others that are there. */
	if (!rule || ((result->rows == 0 || result->compared == 0) &&
	                     strcmp(rule->verdict, "missing") == 0)) {
		decide_sound(result);
		return;
	}
	result->verdict = rule->verdict;
	result->exit_code = CLI_DAMAGE;
	first = first_of(result, rule->kind);
	if (first)
		diff_place_text(place, sizeof(place), first);
	if (strcmp(rule->kind, "shifted") == 0 || strcmp(rule->kind, "other_tokens") == 0)
		snprintf(result->headline, sizeof(result->headline), "%s; first: %s", rule->text,
		        place);
	else
		snprintf(result->headline, sizeof(result->headline), "%s: %lld%s%s", rule->text,
		        (long long)diff_count(result, rule->kind), place[0] ? "; first: " : "",
		        place);
}
