/* What the positions, sequences and tokens of cells say by themselves. */
#include "snapshot/check_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NO_SEQUENCE (-1)
#define EXPLAINED_MAX 64

/* A cell as a member of one sequence. */
struct member {
	int64_t position;
	int64_t row;
	int32_t sequence;
};

struct cells {
	struct findings *findings;
	const struct saved_cache *cache;
	const struct saved_part *part;
	struct member *members; /* by sequence, position, row */
	int64_t count;
	/* Positions that are missing because a cell of another number holds them. */
	struct member explained[EXPLAINED_MAX];
	int explained_count;
};

/* ---- places ---- */

struct finding place_finding(const char *kind, enum finding_weight weight,
        const struct saved_cache *cache, const struct saved_part *part, int64_t row)
{
	struct finding finding = finding_blank(kind, weight);

	if (cache->part_count > 1) {
		finding.part = part->name;
		finding.stream = part->stream;
	}
	if (row < 0)
		return finding;
	finding.row = row;
	finding.position = saved_position(part, row);
	if (part->tokens)
		finding.token = part->tokens[row];
	if (part->cell_offsets)
		finding.offset = part->cell_offsets[row];
	return finding;
}

void place_in_tensor(struct finding *finding, const struct saved_part *part, int64_t layer,
        int tensor, int64_t head, int64_t element)
{
	const struct saved_layer *of = &part->layers[layer];

	finding->layer = of->number;
	finding->tensor = tensor;
	finding->head = head;
	finding->element = element;
	if (finding->row < 0)
		return;
	finding->offset = saved_offset(
	        &of->tensor[tensor], finding->row, head < 0 ? 0 : head, element < 0 ? 0 : element);
	finding->file = saved_offset_file(&of->tensor[tensor], finding->row);
}

/* ---- members ---- */

static int order_members(const void *left, const void *right)
{
	const struct member *a = left, *b = right;

	if (a->sequence != b->sequence)
		return a->sequence < b->sequence ? -1 : 1;
	if (a->position != b->position)
		return a->position < b->position ? -1 : 1;
	return (a->row > b->row) - (a->row < b->row);
}

static uint64_t sequences_of(const struct saved_part *part, int64_t row)
{
	return part->sequences ? part->sequence_begin[row + 1] - part->sequence_begin[row] : 0;
}

static int64_t member_count(const struct saved_part *part)
{
	int64_t count = 0;

	for (int64_t row = 0; row < part->row_count; row++)
		count += sequences_of(part, row) ? (int64_t)sequences_of(part, row) : 1;
	return count;
}

/* A cell of no sequence (old builds write none) is one of an unnamed sequence. */
static void list_members(struct cells *cells)
{
	const struct saved_part *part = cells->part;

	for (int64_t row = 0; row < part->row_count; row++) {
		struct member member = { saved_position(part, row), row, NO_SEQUENCE };
		uint64_t sequences = sequences_of(part, row);
		for (uint64_t i = 0; i < sequences; i++) {
			member.sequence = part->sequences[part->sequence_begin[row] + i];
			cells->members[cells->count++] = member;
		}
		if (sequences == 0)
			cells->members[cells->count++] = member;
	}
	qsort(cells->members, (size_t)cells->count, sizeof(*cells->members), order_members);
}

static bool has_position(const struct cells *cells, int32_t sequence, int64_t position)
{
	int64_t low = 0, high = cells->count;
	const struct member wanted = { position, -1, sequence };

	while (low < high) {
		int64_t middle = low + (high - low) / 2;
		if (order_members(&cells->members[middle], &wanted) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low < cells->count && cells->members[low].sequence == sequence &&
	       cells->members[low].position == position;
}

static bool in_sequence(const struct saved_part *part, int64_t row, int32_t sequence)
{
	uint64_t count = sequences_of(part, row);

	for (uint64_t i = 0; i < count; i++)
		if (part->sequences[part->sequence_begin[row] + i] == sequence)
			return true;
	return count == 0 && sequence == NO_SEQUENCE;
}

/* ---- a position twice in one sequence ---- */

/* Bytes between the counts of a cell and its sequences: M-RoPE. 0 where offsets do not tell. */
static uint64_t extension_bytes(const struct saved_part *part, int64_t row)
{
	int64_t at = row + 1 < part->row_count ? row : row - 1;
	uint64_t bytes;

	if (!part->cell_offsets || at < 0)
		return 0;
	bytes = part->cell_offsets[at + 1] - part->cell_offsets[at];
	return bytes >= 8 + 4 * sequences_of(part, at) ? bytes - 8 - 4 * sequences_of(part, at) : 0;
}

/* All patches of an image stand at one position; x and y tell them apart. */
static bool may_be_image(const struct saved_part *part, int64_t row)
{
	return part->cell_tokens ? part->cell_tokens[row] < 0 : extension_bytes(part, row) >= 8;
}

static void explain(struct cells *cells, int32_t sequence, int64_t position)
{
	if (cells->explained_count < EXPLAINED_MAX)
		cells->explained[cells->explained_count++] =
		        (struct member){ position, -1, sequence };
}

static bool is_explained(const struct cells *cells, int32_t sequence, int64_t position)
{
	for (int i = 0; i < cells->explained_count; i++)
		if (cells->explained[i].sequence == sequence &&
		        cells->explained[i].position == position)
			return true;
	return false;
}

/* The sequence that lacks this cell: the one that its neighbour in the list goes on with. */
static bool find_sequence(const struct cells *cells, const struct member *member, int32_t *out)
{
	const struct saved_part *part = cells->part;

	for (int64_t step = 1; step >= -1; step -= 2) {
		int64_t other = member->row + step;
		if (other < 0 || other >= part->row_count ||
		        saved_position(part, other) != member->position + step)
			continue;
		for (uint64_t i = 0; i < sequences_of(part, other); i++) {
			int32_t sequence = part->sequences[part->sequence_begin[other] + i];
			if (sequence == member->sequence ||
			        in_sequence(part, member->row, sequence) ||
			        in_sequence(part, other, member->sequence) ||
			        has_position(cells, sequence, member->position))
				continue;
			*out = sequence;
			return true;
		}
	}
	return false;
}

/* The position between those of the neighbours in the list, if nobody holds it. */
static bool find_position(const struct cells *cells, const struct member *member, int64_t *out)
{
	for (int64_t step = -1; step <= 1; step += 2) {
		int64_t other = member->row + step, guess;
		if (other < 0 || other >= cells->part->row_count)
			continue;
		guess = saved_position(cells->part, other) - step;
		if (guess == member->position || guess < 0 ||
		        has_position(cells, member->sequence, guess))
			continue;
		*out = guess;
		return true;
	}
	return false;
}

static bool say_sequence(
        struct cells *cells, const struct member *member, const struct member *other)
{
	int32_t sequence;
	struct finding finding;

	if (!find_sequence(cells, member, &sequence))
		return false;
	finding = place_finding("sequence", FINDING_DAMAGE, cells->cache, cells->part, member->row);
	if (finding.offset != UINT64_MAX)
		finding.offset += 8 + extension_bytes(cells->part, member->row);
	snprintf(finding.detail, sizeof(finding.detail),
	        "sequence %d has position %lld twice (also in cell %lld) and sequence %d lacks it",
	        (int)member->sequence, (long long)member->position, (long long)other->row,
	        (int)sequence);
	explain(cells, sequence, member->position);
	findings_add(cells->findings, &finding);
	return true;
}

static void say_repeat(struct cells *cells, const struct member *a, const struct member *b)
{
	const struct member *pair[] = { b, a };
	const struct member *blamed = b, *other = a;
	int64_t guess = -1;
	struct finding finding;
	int used;

	if (may_be_image(cells->part, a->row) && may_be_image(cells->part, b->row))
		return;
	if (say_sequence(cells, b, a) || say_sequence(cells, a, b))
		return;
	for (int i = 0; i < 2 && guess < 0; i++)
		if (find_position(cells, pair[i], &guess)) {
			blamed = pair[i];
			other = pair[1 - i];
		}
	finding = place_finding("position", FINDING_DAMAGE, cells->cache, cells->part, blamed->row);
	used = snprintf(finding.detail, sizeof(finding.detail),
	        "position %lld is also that of cell %lld", (long long)blamed->position,
	        (long long)other->row);
	if (guess >= 0) {
		snprintf(finding.detail + used, sizeof(finding.detail) - (size_t)used,
		        "; between its neighbours %lld is missing", (long long)guess);
		explain(cells, blamed->sequence, guess);
	}
	findings_add(cells->findings, &finding);
}

/* ---- positions left out ---- */

/* Nothing was removed between the last token and the one before it, if both are past the list. */
static bool is_lone_end(const struct cells *cells, int64_t at, bool first_gap)
{
	const struct member *member = &cells->members[at];

	return first_gap && cells->cache->token_count > 0 &&
	       member->position >= cells->cache->token_count &&
	       (at + 1 == cells->count || cells->members[at + 1].sequence != member->sequence);
}

static void say_gap(struct cells *cells, int64_t at, bool first_gap)
{
	const struct member *before = &cells->members[at - 1], *after = &cells->members[at];
	bool damage = is_lone_end(cells, at, first_gap);
	struct finding finding = place_finding(damage ? "position" : "position_gap",
	        damage ? FINDING_DAMAGE : FINDING_NOTE, cells->cache, cells->part, after->row);

	if (after->position == before->position + 2 &&
	        is_explained(cells, after->sequence, before->position + 1))
		return;
	if (damage)
		snprintf(finding.detail, sizeof(finding.detail),
		        "the last position jumps from %lld to %lld, past the list of %lld tokens",
		        (long long)before->position, (long long)after->position,
		        (long long)cells->cache->token_count);
	else
		snprintf(finding.detail, sizeof(finding.detail),
		        "no position between %lld and %lld", (long long)before->position,
		        (long long)after->position);
	findings_add(cells->findings, &finding);
}

static void say_negative(struct cells *cells, int64_t row)
{
	struct finding finding =
	        place_finding("position", FINDING_DAMAGE, cells->cache, cells->part, row);

	snprintf(finding.detail, sizeof(finding.detail), "position %lld is negative",
	        (long long)finding.position);
	findings_add(cells->findings, &finding);
}

/* Repeats first: they explain some of the gaps. */
static void walk_members(struct cells *cells)
{
	bool first_gap = true;

	for (int64_t i = 1; i < cells->count; i++) {
		const struct member *a = &cells->members[i - 1], *b = &cells->members[i];
		if (a->sequence == b->sequence && a->position == b->position && a->position >= 0)
			say_repeat(cells, a, b);
	}
	for (int64_t i = 1; i < cells->count; i++) {
		const struct member *a = &cells->members[i - 1], *b = &cells->members[i];
		if (a->sequence != b->sequence) {
			first_gap = true;
		} else if (a->position >= 0 && b->position - a->position > 1) {
			say_gap(cells, i, first_gap);
			first_gap = false;
		}
	}
}

static void check_cell_tokens(struct cells *cells)
{
	const struct saved_part *part = cells->part;

	for (int64_t row = 0; part->tokens && part->cell_tokens && row < part->row_count; row++) {
		struct finding finding;
		if (part->tokens[row] < 0 || part->cell_tokens[row] < 0 ||
		        part->tokens[row] == part->cell_tokens[row])
			continue;
		finding = place_finding("token_mismatch", FINDING_DAMAGE, cells->cache, part, row);
		if (finding.offset != UINT64_MAX)
			finding.offset += 16; /* behind the counts, x and y */
		snprintf(finding.detail, sizeof(finding.detail),
		        "the cell says token %lld, the list %lld",
		        (long long)part->cell_tokens[row], (long long)part->tokens[row]);
		findings_add(cells->findings, &finding);
	}
}

int check_cells(
        struct findings *findings, const struct saved_cache *cache, const struct saved_part *part)
{
	struct cells cells = { .findings = findings, .cache = cache, .part = part };

	check_cell_tokens(&cells);
	if (!part->positions)
		return 0;
	cells.members = malloc(((size_t)member_count(part) + 1) * sizeof(*cells.members));
	if (!cells.members)
		return -1;
	list_members(&cells);
	for (int64_t row = 0; row < part->row_count; row++)
		if (part->positions[row] < 0)
			say_negative(&cells, row);
	walk_members(&cells);
	free(cells.members);
	return 0;
}
