/*
 * Rows that changed since the stamp. A fingerprint cannot tell what changed in a row, but whether
 * the stamp has the new one at another place: then rows were exchanged, or layers, or K and V.
 */
#include "snapshot/check_changes.h"
#include "snapshot/reader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FINDINGS_MAX 100
#define KEPT_MAX 1024      /* changed heads that are looked for elsewhere */
#define ROWS_AT_A_TIME 512 /* of the stamp, while looking */
#define SAMPLES 16         /* rows that tell whether this is another layer */

struct changed_head {
	int64_t row;
	int64_t head;
	uint64_t print;
	int64_t found; /* stamped row that had it, -1: none */
};

static const struct saved_part *changed_part(const struct changes *changes)
{
	return &changes->cache->parts[changes->part];
}

static int64_t changed_heads(const struct changes *changes)
{
	return changed_part(changes)->layers[changes->layer].tensor[changes->tensor].heads;
}

int changes_begin(struct changes *changes)
{
	changes->findings = findings_new(FINDINGS_MAX);
	return changes->findings ? 0 : -1;
}

void changes_rest(struct changes *changes)
{
	free(changes->stamped);
	free(changes->known);
	changes->stamped = NULL;
	changes->known = NULL;
	changes->capacity = 0;
}

void changes_free(struct changes *changes)
{
	findings_free(changes->findings);
	free(changes->kept);
	changes_rest(changes);
	*changes = (struct changes){ 0 };
}

static int reserve_rows(struct changes *changes, int64_t rows)
{
	size_t wanted = (size_t)(rows * changed_heads(changes));

	if (changes->capacity >= wanted && changes->known)
		return 0;
	free(changes->stamped);
	free(changes->known);
	changes->stamped = malloc(wanted * sizeof(*changes->stamped));
	changes->known = malloc(wanted);
	changes->capacity = changes->stamped && changes->known ? wanted : 0;
	return changes->capacity ? 0 : -1;
}

/* Without memory for them rows are named as changed, not as moved. */
static void keep_head(struct changes *changes, const struct changed_head *head)
{
	if (!changes->kept)
		changes->kept = malloc(KEPT_MAX * sizeof(*changes->kept));
	if (changes->kept && changes->kept_count < KEPT_MAX)
		changes->kept[changes->kept_count++] = *head;
}

void changes_merge(struct changes *to, struct changes *from)
{
	for (int64_t i = 0; i < from->kept_count && to->kept_count < KEPT_MAX; i++)
		keep_head(to, &from->kept[i]);
	to->rows_changed += from->rows_changed;
	to->rows_known += from->rows_known;
	findings_merge(to->findings, from->findings);
	changes_free(from);
}

static void say_changed(struct changes *changes, int64_t row, int64_t head)
{
	struct finding finding = place_finding(
	        "row_changed", FINDING_DAMAGE, changes->cache, changed_part(changes), row);

	place_in_tensor(&finding, changed_part(changes), changes->layer, changes->tensor, head, -1);
	snprintf(finding.detail, sizeof(finding.detail), "not the bytes that were stamped");
	findings_add(changes->findings, &finding);
}

/* A row that is all zero or not finite is in the report already. */
static bool is_said(unsigned char flags)
{
	return (flags & (SCAN_ZERO | SCAN_NONFINITE)) != 0;
}

static void compare_row(struct changes *changes, const struct scan_rows *rows, int64_t i)
{
	int64_t heads = changed_heads(changes), count = 0, said = 0;
	const uint64_t *then = changes->stamped + i * heads;

	for (int64_t head = 0; head < heads; head++) {
		int64_t at = scan_at(rows, i, head);
		uint64_t now = rows->fingerprints[at];
		if (now == then[head])
			continue;
		count++;
		said += is_said(rows->flags[at]);
		keep_head(changes, &(struct changed_head){ rows->first + i, head, now, -1 });
	}
	changes->rows_changed += count > 0;
	if (count == heads && said == 0) {
		say_changed(changes, rows->first + i, -1);
		return;
	}
	for (int64_t head = 0; count > said && head < heads; head++) {
		int64_t at = scan_at(rows, i, head);
		if (rows->fingerprints[at] != then[head] && !is_said(rows->flags[at]))
			say_changed(changes, rows->first + i, head);
	}
}

int changes_add(struct changes *changes, const struct scan_rows *rows, struct saved_error *error)
{
	if (reserve_rows(changes, rows->count) != 0)
		return saved_fail_memory(error, changes->cache->path);
	if (side_match_read(changes->match, changes->part, changes->layer, changes->tensor,
	            rows->first, rows->count, changes->stamped, changes->known, error) != 0)
		return -1;
	for (int64_t i = 0; i < rows->count; i++) {
		if (!changes->known[i])
			continue;
		changes->rows_known++;
		compare_row(changes, rows, i);
	}
	return 0;
}

/* ---- exchanged layers ---- */

/* Whether the changed rows are what the stamp has for another layer or for V instead of K. */
static int is_other_tensor(bool *same, const struct changes *changes, int64_t layer, int tensor,
        struct saved_error *error)
{
	int64_t heads = changed_heads(changes);
	uint64_t *stamped = changes->stamped;

	*same = false;
	if (changed_part(changes)->layers[layer].tensor[tensor].heads != heads)
		return 0;
	for (int64_t i = 0; i < changes->kept_count && i < SAMPLES * heads; i++) {
		const struct changed_head *head = &changes->kept[i];
		unsigned char known;
		if ((i == 0 || head->row != head[-1].row) &&
		        side_match_read(changes->match, changes->part, layer, tensor, head->row, 1,
		                stamped, &known, error) != 0)
			return -1;
		if (stamped[head->head] != head->print)
			return 0;
	}
	*same = true;
	return 0;
}

static void say_exchanged(
        const struct changes *changes, struct findings *findings, int64_t layer, int tensor)
{
	static const char *const names = "KV";
	const struct saved_tensor *of =
	        &changed_part(changes)->layers[changes->layer].tensor[changes->tensor];
	struct finding finding =
	        place_finding(tensor == changes->tensor ? "layers_swapped" : "kv_swapped",
	                FINDING_DAMAGE, changes->cache, changed_part(changes), -1);

	place_in_tensor(&finding, changed_part(changes), changes->layer, changes->tensor, -1, -1);
	finding.offset = saved_offset(of, 0, 0, 0);
	finding.file = saved_offset_file(of, 0);
	snprintf(finding.detail, sizeof(finding.detail),
	        "all rows are those that were stamped as %c of layer %lld", names[tensor],
	        (long long)changed_part(changes)->layers[layer].number);
	findings_add(findings, &finding);
}

/* *found: said it. Only if every row changed, and there are two of them. */
static int find_other_tensor(const struct changes *changes, struct findings *findings, bool *found,
        struct saved_error *error)
{
	const struct saved_part *part = changed_part(changes);

	*found = false;
	if (changes->rows_changed < 2 || changes->rows_changed < changes->rows_known)
		return 0;
	for (int64_t layer = 0; layer < part->layer_count; layer++)
		for (int tensor = SAVED_K; tensor <= SAVED_V; tensor++) {
			if (!part->layers[layer].tensor[tensor].present ||
			        (layer == changes->layer && tensor == changes->tensor))
				continue;
			if (is_other_tensor(found, changes, layer, tensor, error) != 0)
				return -1;
			if (!*found)
				continue;
			say_exchanged(changes, findings, layer, tensor);
			return 0;
		}
	return 0;
}

/* ---- exchanged rows ---- */

static void look_in_rows(struct changes *changes, int64_t first, int64_t count)
{
	int64_t heads = changed_heads(changes);

	for (int64_t k = 0; k < changes->kept_count; k++) {
		struct changed_head *kept = &changes->kept[k];
		for (int64_t i = 0; kept->found < 0 && i < count; i++)
			if (changes->stamped[i * heads + kept->head] == kept->print)
				kept->found = first + i;
	}
}

static int find_moved_rows(struct changes *changes, struct saved_error *error)
{
	int64_t rows = side_match_rows(changes->match, changes->part);

	for (int64_t first = 0; first < rows; first += ROWS_AT_A_TIME) {
		int64_t count = rows - first < ROWS_AT_A_TIME ? rows - first : ROWS_AT_A_TIME;
		if (side_match_read_stamped(changes->match, changes->part, changes->layer,
		            changes->tensor, first, count, changes->stamped, error) != 0)
			return -1;
		look_in_rows(changes, first, count);
	}
	return 0;
}

static int64_t moved_from(const struct changes *changes, const struct finding *finding)
{
	for (int64_t k = 0; k < changes->kept_count; k++)
		if (changes->kept[k].row == finding->row &&
		        (finding->head < 0 || changes->kept[k].head == finding->head))
			return changes->kept[k].found;
	return -1;
}

/* What was counted and not kept keeps its kind. */
static int hand_over(struct changes *changes, struct findings *findings)
{
	struct findings *named = findings_new(FINDINGS_MAX);
	size_t count;
	const struct finding *list = findings_list(changes->findings, &count);

	if (!named)
		return -1;
	for (size_t i = 0; i < count; i++) {
		struct finding finding = list[i];
		int64_t from = moved_from(changes, &finding);
		if (from >= 0) {
			finding.kind = "rows_permuted";
			snprintf(finding.detail, sizeof(finding.detail),
			        "holds what was stamped for cell %lld", (long long)from);
		}
		findings_add(named, &finding);
	}
	findings_add_count(named, "row_changed", FINDING_DAMAGE,
	        findings_count(changes->findings, FINDING_NOTE) - count);
	findings_merge(findings, named);
	findings_free(named);
	return 0;
}

int changes_end(struct changes *changes, struct findings *findings, struct saved_error *error)
{
	bool exchanged = false;

	if (findings_count(changes->findings, FINDING_NOTE) == 0)
		return 0;
	if (reserve_rows(changes, ROWS_AT_A_TIME) != 0)
		return saved_fail_memory(error, changes->cache->path);
	if (find_other_tensor(changes, findings, &exchanged, error) != 0)
		return -1;
	if (exchanged)
		return 0;
	if (find_moved_rows(changes, error) != 0)
		return -1;
	if (hand_over(changes, findings) != 0)
		return saved_fail_memory(error, changes->cache->path);
	return 0;
}
