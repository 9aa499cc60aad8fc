/* Findings as a table and as JSON; finding_text.h says what each function promises. */
#include "snapshot/finding_text.h"
#include "cli.h"
#include "snapshot/saved_options.h"

#include <inttypes.h>
#include <string.h>

#define PLACE_BYTES 512 /* eight numbers with their names fit */

/* ---- kinds ---- */

static const struct {
	const char *kind;
	const char *slug;
} slugs[] = {
	{ "nonfinite", "snapshot-values-damaged" },
	{ "zero_row", "snapshot-values-damaged" },
	{ "repeated_row", "snapshot-rows-repeated" },
	{ "position", "snapshot-cells-inconsistent" },
	{ "position_gap", "snapshot-cells-inconsistent" },
	{ "sequence", "snapshot-cells-inconsistent" },
	{ "token_mismatch", "snapshot-cells-inconsistent" },
	{ "token_count", "snapshot-cells-inconsistent" },
	{ "token_rows_differ", "snapshot-content-disagrees" },
	{ "rotation", "snapshot-content-disagrees" },
	{ "rope_parameters", "snapshot-not-compared" },
	{ "heads_unknown", "snapshot-not-compared" },
	{ "tokens_unknown", "snapshot-not-compared" },
	{ "content_unknown", "snapshot-not-compared" },
	{ "stamp_missing", "snapshot-not-compared" },
	{ "row_changed", "snapshot-changed-since-stamp" },
	{ "rows_permuted", "snapshot-changed-since-stamp" },
	{ "layers_swapped", "snapshot-changed-since-stamp" },
	{ "kv_swapped", "snapshot-changed-since-stamp" },
	{ "row_missing", "snapshot-changed-since-stamp" },
	{ "row_extra", "snapshot-changed-since-stamp" },
	{ "token_changed", "snapshot-changed-since-stamp" },
};
#define SLUG_COUNT (sizeof(slugs) / sizeof(slugs[0]))

const char *finding_slug(const char *kind)
{
	for (size_t i = 0; i < SLUG_COUNT; i++)
		if (strcmp(slugs[i].kind, kind) == 0)
			return slugs[i].slug;
	return NULL;
}

const char *finding_weight_name(enum finding_weight weight)
{
	switch (weight) {
	case FINDING_NOTE:
		return "note";
	case FINDING_DOUBT:
		return "doubt";
	case FINDING_DAMAGE:
		break;
	}
	return "damage";
}

/* ---- for people ---- */

struct place {
	char text[PLACE_BYTES];
	size_t used;
};

/* "name number" and what comes after it; nothing if there is no number. */
static void add_place(struct place *place, const char *name, int64_t number, const char *after)
{
	if (number >= 0)
		place->used += (size_t)snprintf(place->text + place->used,
		        sizeof(place->text) - place->used, "%s%.32s %" PRId64 "%s",
		        place->used ? ", " : "", name, number, after);
}

static void describe_place(struct place *place, const struct finding *finding)
{
	*place = (struct place){ "", 0 };
	if (finding->part)
		add_place(place, finding->part, finding->stream, "");
	add_place(place, "layer", finding->layer,
	        finding->tensor < 0          ? ""
	        : finding->tensor == SAVED_K ? " K"
	                                     : " V");
	add_place(place, "head", finding->head, "");
	add_place(place, "element", finding->element, "");
	add_place(place, "cell", finding->row, "");
	add_place(place, "position", finding->position, "");
	add_place(place, "token", finding->token, "");
	if (finding->offset != UINT64_MAX)
		add_place(place, "offset", (int64_t)finding->offset, "");
}

static void print_finding(FILE *out, const struct finding *finding)
{
	struct place place;

	describe_place(&place, finding);
	fprintf(out, "  %-17s %s%s", finding->kind,
	        finding->weight == FINDING_DAMAGE ? "" : finding_weight_name(finding->weight),
	        finding->weight == FINDING_DAMAGE ? "" : ": ");
	fprintf(out, "%s%s", place.used ? place.text : "the file as a whole",
	        finding->file ? " of " : "");
	cli_print_foreign(out, finding->file ? finding->file : "");
	fputc('\n', out);
	if (finding->detail[0])
		cli_wrap(out, 20, "", finding->detail);
}

/* "kvcanary explain SLUG" for each slug once. */
static void print_advice(FILE *out, struct findings *findings)
{
	bool said[SLUG_COUNT] = { false };

	for (size_t i = 0; i < SLUG_COUNT; i++) {
		bool again = false;
		if (findings_count_kind(findings, slugs[i].kind) == 0)
			continue;
		for (size_t k = 0; k < i; k++)
			again |= said[k] && slugs[k].slug == slugs[i].slug;
		said[i] = true;
		if (!again)
			fprintf(out, "\nwhat to do: kvcanary explain %s", slugs[i].slug);
	}
	fputc('\n', out);
}

void findings_print(FILE *out, struct findings *findings, size_t most)
{
	size_t count, total = findings_count(findings, FINDING_NOTE);
	const struct finding *list = findings_list(findings, &count);

	if (count == 0)
		return;
	fputc('\n', out);
	for (size_t i = 0; i < count && i < most; i++)
		print_finding(out, &list[i]);
	if (total > most)
		fprintf(out, "  and %zu more; --json lists them\n", total - most);
	print_advice(out, findings);
}

/* ---- for programs ---- */

static void set_known(json_t *object, const char *name, int64_t number)
{
	if (number >= 0)
		json_object_set_new(object, name, json_integer(number));
}

json_t *finding_object(const struct finding *finding)
{
	json_t *object = json_object();

	json_object_set_new(object, "kind", json_string(finding->kind));
	json_object_set_new(object, "weight", json_string(finding_weight_name(finding->weight)));
	if (finding->part) {
		json_object_set_new(object, "part", saved_json_text(finding->part));
		set_known(object, "stream", finding->stream);
	}
	set_known(object, "layer", finding->layer);
	if (finding->tensor >= 0)
		json_object_set_new(
		        object, "tensor", json_string(finding->tensor == SAVED_K ? "K" : "V"));
	set_known(object, "head", finding->head);
	set_known(object, "cell", finding->row);
	if (finding->row >= 0 || finding->position >= 0)
		json_object_set_new(object, "position", json_integer(finding->position));
	set_known(object, "token", finding->token);
	set_known(object, "element", finding->element);
	if (finding->offset != UINT64_MAX)
		set_known(object, "offset", (int64_t)finding->offset);
	if (finding->file)
		json_object_set_new(object, "file", saved_json_text(finding->file));
	json_object_set_new(object, "detail", saved_json_text(finding->detail));
	if (finding_slug(finding->kind))
		json_object_set_new(object, "slug", json_string(finding_slug(finding->kind)));
	return object;
}

json_t *findings_counts(struct findings *findings)
{
	json_t *object = json_object();
	size_t count;
	const struct finding *list = findings_list(findings, &count);

	for (size_t i = 0; i < count; i++)
		if (!json_object_get(object, list[i].kind))
			json_object_set_new(object, list[i].kind,
			        json_integer(
			                (json_int_t)findings_count_kind(findings, list[i].kind)));
	return object;
}

json_t *findings_array(struct findings *findings, size_t most)
{
	json_t *array = json_array();
	size_t count;
	const struct finding *list = findings_list(findings, &count);

	for (size_t i = 0; i < count && i < most; i++)
		json_array_append_new(array, finding_object(&list[i]));
	return array;
}
