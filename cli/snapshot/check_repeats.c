/*
 * Rows with the same bytes at different places.
 *
 * In layer 0, K (before its rotation) and V depend on the token alone, so rows may be equal there:
 * content.c looks at them. In deeper layers a row depends on all tokens before it: equal rows are a copy,
 * unless all tokens up to there are the same, for then attention averages equal values.
 */
#include "snapshot/check_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INNER UINT32_C(0x80000000) /* in a link: the row is not the first of its chain */

/* One comparison: fingerprints of whole rows, or of one head. */
struct comparison {
	const struct repeats *repeats;
	struct findings *findings;
	const uint64_t *prints; /* [row_count] */
	int64_t head;           /* -1: whole rows */
	struct repeat_memory *memory;
};

void repeat_memory_free(struct repeat_memory *memory)
{
	free(memory->table);
	free(memory->links);
	free(memory->suspects);
	*memory = (struct repeat_memory){ 0 };
}

/* A power of two: at most half of the table is used. */
static size_t table_size(size_t rows)
{
	size_t size = 16;

	while (size < 2 * rows)
		size *= 2;
	return size;
}

size_t repeat_memory_bytes(int64_t row_count)
{
	return (table_size((size_t)row_count) + 2 * (size_t)row_count) * sizeof(uint32_t);
}

int repeat_memory_reserve(struct repeat_memory *memory, int64_t row_count)
{
	size_t rows = (size_t)row_count;

	if (memory->rows >= rows)
		return 0;
	repeat_memory_free(memory);
	memory->table = malloc(table_size(rows) * sizeof(*memory->table));
	memory->links = malloc(rows * sizeof(*memory->links));
	memory->suspects = malloc(rows * sizeof(*memory->suspects));
	memory->rows = rows;
	if (memory->table && memory->links && memory->suspects)
		return 0;
	repeat_memory_free(memory);
	return -1;
}

/*
 * Lists the rows that may have an equal one: those whose bit of a map is set twice. The map has 16
 * bits for a row, so they are few, and it stays in cache where a table of rows does not. Returns how
 * many there are.
 */
static int64_t list_suspects(const struct comparison *comparison)
{
	const int64_t rows = comparison->repeats->part->row_count;
	const uint64_t *prints = comparison->prints;
	const size_t words = table_size((size_t)rows) / 8, mask = words * 64 - 1;
	uint64_t *once = (void *)comparison->memory->table, *twice = once + words;
	int64_t count = 0;
	bool hits = false;

	memset(once, 0, 2 * words * sizeof(*once));
	for (int64_t row = 0; row < rows; row++) {
		size_t at = prints[row] >> 32 & mask;
		uint64_t bit = (uint64_t)(prints[row] != 0) << (at & 63);
		uint64_t seen = once[at / 64];
		once[at / 64] = seen | bit;
		if (seen & bit) {
			twice[at / 64] |= bit;
			hits = true;
		}
	}
	for (int64_t row = 0; hits && row < rows; row++) {
		size_t at = prints[row] >> 32 & mask;
		comparison->memory->suspects[count] = (uint32_t)row;
		count += prints[row] != 0 && twice[at / 64] >> (at & 63) & 1;
	}
	return count;
}

/* Chains suspects of equal fingerprints, each chain in rising order: links[row] is the next row + 1. */
static void link_rows(const struct comparison *comparison, int64_t suspect_count)
{
	struct repeat_memory *memory = comparison->memory;
	const uint64_t *prints = comparison->prints;
	const size_t size = table_size((size_t)suspect_count), mask = size - 1;

	memset(memory->table, 0, size * sizeof(*memory->table));
	for (int64_t i = suspect_count - 1; i >= 0; i--) {
		uint32_t row = memory->suspects[i];
		uint64_t print = prints[row];
		size_t at = print & mask;
		memory->links[row] = 0;
		while (memory->table[at] && prints[memory->table[at] - 1] != print)
			at = (at + 1) & mask;
		if (memory->table[at]) {
			memory->links[row] = memory->table[at];
			memory->links[memory->table[at] - 1] |= INNER;
		}
		memory->table[at] = row + 1;
	}
}

/* The row behind this one in its chain; -1 at the end. */
static int64_t next_row(const struct comparison *comparison, int64_t row)
{
	return (int64_t)(comparison->memory->links[row] & ~INNER) - 1;
}

static int64_t repeat_token(const struct saved_part *part, int64_t row)
{
	return part->tokens ? part->tokens[row] : -1;
}

/* Types of so few bits that unlike values may be stored alike. */
static bool is_coarse(enum saved_type type)
{
	switch (type) {
	case SAVED_F8_E4M3:
	case SAVED_F8_E5M2:
	case SAVED_Q8_0:
	case SAVED_Q4_0:
	case SAVED_AFFINE:
	case SAVED_OPAQUE:
		return true;
	default:
		return false;
	}
}

/* Whether row 'copy' may hold what row 'original' holds. */
static bool judge_copy(const struct repeats *repeats, int64_t original, int64_t copy,
        bool whole_row, enum finding_weight *weight)
{
	const struct saved_part *part = repeats->part;
	const struct saved_layer *layer = &part->layers[repeats->layer];
	int64_t a = repeat_token(part, original), b = repeat_token(part, copy);
	bool known = a >= 0 && b >= 0;
	bool coarse = is_coarse(layer->tensor[repeats->tensor].type);

	*weight = coarse && (!whole_row || !known || a == b) ? FINDING_DOUBT : FINDING_DAMAGE;
	if (known && a != b)
		return true;
	return saved_position(part, original) != saved_position(part, copy);
}

/* A chain that is the beginning of the text, one token over and over, as far as can be told. */
static bool is_constant_beginning(const struct comparison *comparison, int64_t first_row)
{
	const struct saved_part *part = comparison->repeats->part;
	int64_t last = -1, first = INT64_MAX, count = 0;

	for (int64_t row = first_row; row >= 0; row = next_row(comparison, row), count++) {
		int64_t position = saved_position(part, row);
		last = position > last ? position : last;
		first = position < first ? position : first;
		if (repeat_token(part, row) != repeat_token(part, first_row))
			return false;
	}
	return first == 0 && last - first + 1 == count;
}

static void say_copy(const struct comparison *comparison, int64_t original, int64_t copy)
{
	const struct repeats *repeats = comparison->repeats;
	enum finding_weight weight;
	struct finding finding;

	/* Of a head only where the rows as a whole differ. */
	if (comparison->head >= 0 && repeats->rows[original] == repeats->rows[copy])
		return;
	if (!judge_copy(repeats, original, copy, comparison->head < 0, &weight))
		return;
	finding = place_finding("repeated_row", weight, repeats->cache, repeats->part, copy);
	place_in_tensor(
	        &finding, repeats->part, repeats->layer, repeats->tensor, comparison->head, -1);
	snprintf(finding.detail, sizeof(finding.detail), "same bytes as cell %lld at position %lld",
	        (long long)original, (long long)saved_position(repeats->part, original));
	findings_add(comparison->findings, &finding);
}

static void compare_rows(const struct comparison *comparison)
{
	int64_t suspect_count = list_suspects(comparison);

	link_rows(comparison, suspect_count);
	for (int64_t i = 0; i < suspect_count; i++) {
		int64_t first = comparison->memory->suspects[i];
		uint32_t link = comparison->memory->links[first];
		if (link == 0 || link & INNER || is_constant_beginning(comparison, first))
			continue;
		for (int64_t row = next_row(comparison, first); row >= 0;
		        row = next_row(comparison, row))
			say_copy(comparison, first, row);
	}
}

void check_repeats(
        struct findings *findings, const struct repeats *repeats, struct repeat_memory *memory)
{
	const struct saved_layer *layer = &repeats->part->layers[repeats->layer];
	int64_t heads = layer->tensor[repeats->tensor].heads;
	struct comparison comparison = { repeats, findings, repeats->rows, -1, memory };

	if (layer->number == 0 || (!layer->number_is_known && repeats->layer == 0))
		return;
	compare_rows(&comparison);
	if (!repeats->heads || heads < 2)
		return;
	for (int64_t head = 0; head < heads; head++) {
		comparison.prints = repeats->heads + head * repeats->part->row_count;
		comparison.head = head;
		compare_rows(&comparison);
	}
}
