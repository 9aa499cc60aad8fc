/* Which layers and which rows of two caches belong together; by sequence and position, not by cell. */
#include "snapshot/diff/diff.h"

#include <stdlib.h>
#include <string.h>

/* One position of one sequence, and where it lies. A cell that several sequences share has several. */
struct align_key {
	int64_t sequence;
	int64_t position;
	struct diff_place place;
};

struct align_keys {
	struct align_key *list;
	int64_t count;
};

/* ---- stacks ---- */

static bool same_layers(const struct saved_part *a, const struct saved_part *b)
{
	if (a->layer_count != b->layer_count || strcmp(a->name, b->name) != 0)
		return false;
	for (int64_t i = 0; i < a->layer_count; i++)
		if (a->layers[i].number != b->layers[i].number)
			return false;
	return true;
}

/* Sets stack_of[part] and returns the number of stacks; first[s] is the first part of stack s. */
static int64_t group_parts(const struct saved_cache *cache, int32_t *stack_of, int32_t *first)
{
	int64_t stacks = 0;

	for (int64_t part = 0; part < cache->part_count; part++) {
		int64_t s = 0;
		while (s < stacks && !same_layers(&cache->parts[first[s]], &cache->parts[part]))
			s++;
		if (s == stacks)
			first[stacks++] = (int32_t)part;
		stack_of[part] = (int32_t)s;
	}
	return stacks;
}

/* The stack of B that goes with stack s of A: of the same name, else the only one left. */
static int64_t partner_of(const struct saved_cache *const *cache, int32_t *const *first, int64_t s,
        const bool *taken, int64_t stacks_b)
{
	const char *name = cache[DIFF_A]->parts[first[DIFF_A][s]].name;

	for (int64_t t = 0; t < stacks_b; t++)
		if (!taken[t] && strcmp(cache[DIFF_B]->parts[first[DIFF_B][t]].name, name) == 0)
			return t;
	return -1;
}

static void copy_parts(struct diff_stack *stack, int side, int32_t *list,
        const struct saved_cache *cache, const int32_t *stack_of, int64_t s)
{
	int64_t count = 0;

	for (int64_t part = 0; part < cache->part_count; part++)
		if (stack_of[part] == s)
			list[count++] = (int32_t)part;
	stack->parts[side] = list;
	stack->part_count[side] = count;
}

/* ---- layers ---- */

static bool numbers_known(const struct saved_part *part)
{
	for (int64_t i = 0; i < part->layer_count; i++)
		if (!part->layers[i].number_is_known ||
		        (i > 0 && part->layers[i].number <= part->layers[i - 1].number))
			return false;
	return true;
}

static bool note_missing_layer(struct diff_alignment *out, int side, const struct saved_part *part,
        int64_t layer, const char *stack)
{
	size_t bytes = sizeof(*out->missing_layers);
	void *grown = realloc(out->missing_layers, (size_t)(out->missing_layer_count + 1) * bytes);

	if (!grown)
		return false;
	out->missing_layers = grown;
	out->missing_layers[out->missing_layer_count++] =
	        (struct diff_missing_layer){ side, part->layers[layer].number, stack };
	return true;
}

/* By the model's numbers where both sides know them, else by order. */
static bool match_layers(struct diff_alignment *out, struct diff_stack *stack)
{
	const struct saved_part *part[2];
	int64_t at[2] = { 0, 0 };
	bool by_number;
	int64_t most;

	for (int side = 0; side < 2; side++)
		part[side] = &out->cache[side]->parts[stack->parts[side][0]];
	by_number = numbers_known(part[0]) && numbers_known(part[1]);
	most = part[0]->layer_count + part[1]->layer_count;
	for (int side = 0; side < 2; side++)
		if (!(stack->layer[side] = calloc((size_t)most + 1, sizeof(int64_t))))
			return false;
	while (at[0] < part[0]->layer_count || at[1] < part[1]->layer_count) {
		bool has[2] = { at[0] < part[0]->layer_count, at[1] < part[1]->layer_count };
		int only = !has[1] ? DIFF_A : !has[0] ? DIFF_B : -1;
		if (only < 0 && by_number) {
			int64_t a = part[0]->layers[at[0]].number,
			        b = part[1]->layers[at[1]].number;
			only = a < b ? DIFF_A : a > b ? DIFF_B : -1;
		}
		if (only >= 0) {
			if (!note_missing_layer(out, only, part[only], at[only]++, stack->name))
				return false;
			continue;
		}
		stack->layer[0][stack->layer_count] = at[0]++;
		stack->layer[1][stack->layer_count++] = at[1]++;
	}
	return true;
}

/* ---- rows ---- */

static int order_keys(const void *left, const void *right)
{
	const struct align_key *a = left, *b = right;
	const int64_t keys[][2] = { { a->sequence, b->sequence }, { a->position, b->position },
		{ a->place.part, b->place.part }, { a->place.row, b->place.row } };

	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
		if (keys[i][0] != keys[i][1])
			return keys[i][0] < keys[i][1] ? -1 : 1;
	return 0;
}

static int64_t count_keys(const struct saved_part *part)
{
	int64_t count = 0;

	if (!part->sequences || !part->sequence_begin)
		return part->row_count;
	for (int64_t row = 0; row < part->row_count; row++) {
		uint64_t own = part->sequence_begin[row + 1] - part->sequence_begin[row];
		count += own ? (int64_t)own : 1;
	}
	return count;
}

static void add_keys(struct align_keys *keys, const struct saved_part *part, int32_t index)
{
	/* Without names, a stream or an element of a batch is a sequence of its own. */
	int64_t unnamed = -1 - part->stream;

	for (int64_t row = 0; row < part->row_count; row++) {
		uint64_t at = 0, end = 0;
		if (part->sequences && part->sequence_begin) {
			at = part->sequence_begin[row];
			end = part->sequence_begin[row + 1];
		}
		do {
			keys->list[keys->count++] =
			        (struct align_key){ at < end ? part->sequences[at] : unnamed,
				        saved_position(part, row), { index, (int32_t)row } };
		} while (++at < end);
	}
}

static bool make_keys(struct align_keys *keys, const struct saved_cache *cache,
        const struct diff_stack *stack, int side)
{
	int64_t count = 0;

	for (int64_t i = 0; i < stack->part_count[side]; i++)
		count += count_keys(&cache->parts[stack->parts[side][i]]);
	keys->count = 0;
	keys->list = calloc((size_t)count + 1, sizeof(*keys->list));
	if (!keys->list)
		return false;
	for (int64_t i = 0; i < stack->part_count[side]; i++)
		add_keys(keys, &cache->parts[stack->parts[side][i]], stack->parts[side][i]);
	qsort(keys->list, (size_t)keys->count, sizeof(*keys->list), order_keys);
	return true;
}

static int64_t count_sequences(const struct align_keys *keys)
{
	int64_t count = 0;

	for (int64_t i = 0; i < keys->count; i++)
		count += i == 0 || keys->list[i].sequence != keys->list[i - 1].sequence;
	return count;
}

static bool has_sequence(const struct align_keys *keys, int64_t sequence)
{
	int64_t low = 0, high = keys->count;

	while (low < high) {
		int64_t middle = low + (high - low) / 2;
		if (keys->list[middle].sequence < sequence)
			low = middle + 1;
		else
			high = middle;
	}
	return low < keys->count && keys->list[low].sequence == sequence;
}

/* The ids of sequences are the engine's and may differ for the same text: where no id of one side
 * occurs on the other and there are as many, the n-th goes with the n-th. */
static void match_sequences(struct align_keys *a, struct align_keys *b)
{
	bool shared = false;

	for (int64_t i = 0; i < a->count && !shared; i++)
		shared = has_sequence(b, a->list[i].sequence);
	if (shared || count_sequences(a) != count_sequences(b))
		return;
	for (int side = 0; side < 2; side++) {
		struct align_keys *keys = side ? b : a;
		int64_t number = -1, before = 0;
		for (int64_t i = 0; i < keys->count; i++) {
			number += i == 0 || keys->list[i].sequence != before;
			before = keys->list[i].sequence;
			keys->list[i].sequence = number;
		}
	}
}

static int64_t end_of_group(const struct align_keys *keys, int64_t first)
{
	int64_t end = first + 1;

	while (end < keys->count && keys->list[end].sequence == keys->list[first].sequence &&
	        keys->list[end].position == keys->list[first].position)
		end++;
	return end;
}

static void pair_keys(struct diff_stack *stack, struct align_key *a, struct align_key *b)
{
	stack->pairs[stack->pair_count++] = (struct diff_pair){ { a->place, b->place } };
	a->place.row = b->place.row = -1;
}

/* Pairs rows of one position. Several of them are a fault or an image (M-RoPE): rows that have the
 * same number go together first, what is left by order. Linear, since a file may repeat one position
 * as often as it likes. */
static void pair_group(struct diff_stack *stack, struct align_key *a, int64_t a_count,
        struct align_key *b, int64_t b_count)
{
	if (a_count != 1 || b_count != 1)
		for (int64_t i = 0, j = 0; i < a_count && j < b_count;) {
			int32_t row[2] = { a[i].place.row, b[j].place.row };
			if (row[0] == row[1])
				pair_keys(stack, &a[i], &b[j]);
			i += row[0] <= row[1];
			j += row[1] <= row[0];
		}
	for (int64_t i = 0, j = 0;; i++, j++) {
		while (i < a_count && a[i].place.row < 0)
			i++;
		while (j < b_count && b[j].place.row < 0)
			j++;
		if (i >= a_count || j >= b_count)
			return;
		pair_keys(stack, &a[i], &b[j]);
	}
}

static void keep_rest(struct diff_places *only, const struct align_key *keys, int64_t count)
{
	for (int64_t i = 0; i < count; i++)
		if (keys[i].place.row >= 0)
			only->list[only->count++] = keys[i].place;
}

static void pair_rows(struct diff_stack *stack, struct align_keys *keys)
{
	struct align_key *list[2] = { keys[0].list, keys[1].list };
	int64_t at[2] = { 0, 0 };

	while (at[0] < keys[0].count || at[1] < keys[1].count) {
		int64_t end[2] = { at[0], at[1] };
		int order = 0;
		if (at[0] == keys[0].count || at[1] == keys[1].count)
			order = at[0] == keys[0].count ? 1 : -1;
		else if (list[0][at[0]].sequence != list[1][at[1]].sequence)
			order = list[0][at[0]].sequence < list[1][at[1]].sequence ? -1 : 1;
		else if (list[0][at[0]].position != list[1][at[1]].position)
			order = list[0][at[0]].position < list[1][at[1]].position ? -1 : 1;
		if (order <= 0)
			end[0] = end_of_group(&keys[0], at[0]);
		if (order >= 0)
			end[1] = end_of_group(&keys[1], at[1]);
		pair_group(stack, list[0] + at[0], end[0] - at[0], list[1] + at[1], end[1] - at[1]);
		for (int side = 0; side < 2; side++) {
			keep_rest(&stack->only[side], list[side] + at[side], end[side] - at[side]);
			at[side] = end[side];
		}
	}
}

static int order_by_places(const void *left, const void *right)
{
	const struct diff_pair *a = left, *b = right;

	for (int side = 0; side < 2; side++) {
		const struct diff_place *p = &a->side[side], *q = &b->side[side];
		if (p->part != q->part)
			return p->part < q->part ? -1 : 1;
		if (p->row != q->row)
			return p->row < q->row ? -1 : 1;
	}
	return 0;
}

static int order_by_row(const void *left, const void *right)
{
	const struct diff_place *p = left, *q = right;

	if (p->part != q->part)
		return p->part < q->part ? -1 : 1;
	return (p->row > q->row) - (p->row < q->row);
}

/* A row that sequences share is one pair. */
static void drop_repeated_pairs(struct diff_stack *stack)
{
	int64_t kept = 0;

	qsort(stack->pairs, (size_t)stack->pair_count, sizeof(*stack->pairs), order_by_places);
	for (int64_t i = 0; i < stack->pair_count; i++)
		if (kept == 0 || order_by_places(&stack->pairs[i], &stack->pairs[kept - 1]) != 0)
			stack->pairs[kept++] = stack->pairs[i];
	stack->pair_count = kept;
}

static void drop_repeated_places(struct diff_places *places)
{
	int64_t kept = 0;

	qsort(places->list, (size_t)places->count, sizeof(*places->list), order_by_row);
	for (int64_t i = 0; i < places->count; i++)
		if (kept == 0 || order_by_row(&places->list[i], &places->list[kept - 1]) != 0)
			places->list[kept++] = places->list[i];
	places->count = kept;
}

static bool has_partner(const bool *paired, struct diff_place place, const int64_t *first_row)
{
	return paired[first_row[place.part] + place.row];
}

/* A row that two sequences share is not missing if one of them has a partner for it. */
static bool drop_paired_places(const struct diff_alignment *out, struct diff_stack *stack, int side)
{
	const struct saved_cache *cache = out->cache[side];
	int64_t *first_row = calloc((size_t)cache->part_count + 1, sizeof(*first_row));
	struct diff_places *only = &stack->only[side];
	int64_t rows = 0, kept = 0;
	bool *paired = NULL;

	for (int64_t part = 0; first_row && part < cache->part_count; part++) {
		first_row[part] = rows;
		rows += cache->parts[part].row_count;
	}
	if (first_row)
		paired = calloc((size_t)rows + 1, sizeof(*paired));
	for (int64_t i = 0; paired && i < stack->pair_count; i++) {
		struct diff_place place = stack->pairs[i].side[side];
		paired[first_row[place.part] + place.row] = true;
	}
	for (int64_t i = 0; paired && i < only->count; i++)
		if (!has_partner(paired, only->list[i], first_row))
			only->list[kept++] = only->list[i];
	if (!paired) {
		free(first_row);
		return false;
	}
	only->count = kept;
	free(first_row);
	free(paired);
	return true;
}

/* A sliding window forgets, and builds differ in how soon they save room: rows before the first one
 * of the other side are no loss. */
static void set_aside_beyond_window(const struct diff_alignment *out, struct diff_stack *stack)
{
	int64_t first[2] = { INT64_MAX, INT64_MAX };

	if (strcmp(stack->name, "window") != 0)
		return;
	for (int side = 0; side < 2; side++)
		for (int64_t i = 0; i < stack->part_count[side]; i++) {
			const struct saved_part *part =
			        &out->cache[side]->parts[stack->parts[side][i]];
			for (int64_t row = 0; row < part->row_count; row++)
				if (saved_position(part, row) < first[side])
					first[side] = saved_position(part, row);
		}
	for (int side = 0; side < 2; side++) {
		struct diff_places *only = &stack->only[side], *beyond = &stack->beyond[side];
		int64_t kept = 0;
		for (int64_t i = 0; i < only->count; i++) {
			struct diff_place place = only->list[i];
			int64_t position =
			        saved_position(&out->cache[side]->parts[place.part], place.row);
			if (position < first[!side])
				beyond->list[beyond->count++] = place;
			else
				only->list[kept++] = place;
		}
		only->count = kept;
	}
}

static bool pair_stack(const struct diff_alignment *out, struct diff_stack *stack)
{
	struct align_keys keys[2] = { { NULL, 0 }, { NULL, 0 } };
	bool good = make_keys(&keys[0], out->cache[0], stack, 0) &&
	            make_keys(&keys[1], out->cache[1], stack, 1);

	if (good) {
		int64_t least = keys[0].count < keys[1].count ? keys[0].count : keys[1].count;
		stack->pairs = calloc((size_t)least + 1, sizeof(*stack->pairs));
		good = stack->pairs != NULL;
	}
	for (int side = 0; good && side < 2; side++) {
		size_t count = (size_t)keys[side].count + 1;
		stack->only[side].list = calloc(count, sizeof(struct diff_place));
		stack->beyond[side].list = calloc(count, sizeof(struct diff_place));
		good = stack->only[side].list && stack->beyond[side].list;
	}
	if (good) {
		match_sequences(&keys[0], &keys[1]);
		pair_rows(stack, keys);
		drop_repeated_pairs(stack);
		drop_repeated_places(&stack->only[0]);
		drop_repeated_places(&stack->only[1]);
		good = drop_paired_places(out, stack, DIFF_A) &&
		       drop_paired_places(out, stack, DIFF_B);
	}
	if (good) {
		set_aside_beyond_window(out, stack);
	}
	free(keys[0].list);
	free(keys[1].list);
	return good;
}

/* ---- all of it ---- */

/* Layers of a stack that has no partner. */
static bool note_missing_stack(struct diff_alignment *out, int side, const struct saved_part *part)
{
	for (int64_t i = 0; i < part->layer_count; i++)
		if (!note_missing_layer(out, side, part, i, part->name))
			return false;
	return true;
}

/* Pairs the stacks: by name, and then what is left by order. */
static void pair_stacks(const struct saved_cache *const *cache, int32_t *const *first,
        const int64_t *stacks, int64_t *partner, bool *taken)
{
	for (int64_t s = 0; s < stacks[0]; s++) {
		partner[s] = partner_of(cache, first, s, taken, stacks[1]);
		if (partner[s] >= 0)
			taken[partner[s]] = true;
	}
	for (int64_t s = 0, t = 0; s < stacks[0]; s++) {
		if (partner[s] >= 0)
			continue;
		while (t < stacks[1] && taken[t])
			t++;
		if (t == stacks[1])
			break;
		partner[s] = t;
		taken[t] = true;
	}
}

struct align_memory {
	int32_t *stack_of[2];
	int32_t *first[2];
	int64_t *partner;
	bool *taken;
};

static bool make_stacks(struct diff_alignment *out, struct align_memory *memory)
{
	int64_t stacks[2];
	int32_t *list = out->part_lists;

	for (int side = 0; side < 2; side++)
		stacks[side] =
		        group_parts(out->cache[side], memory->stack_of[side], memory->first[side]);
	pair_stacks(out->cache, memory->first, stacks, memory->partner, memory->taken);
	for (int64_t s = 0; s < stacks[0]; s++) {
		const struct saved_part *part = &out->cache[0]->parts[memory->first[0][s]];
		int64_t of_side[2] = { s, memory->partner[s] };
		struct diff_stack *stack = &out->stacks[out->stack_count];
		if (memory->partner[s] < 0) {
			if (!note_missing_stack(out, DIFF_A, part))
				return false;
			continue;
		}
		out->stack_count++;
		stack->name = part->name;
		for (int side = 0; side < 2; side++) {
			copy_parts(stack, side, list, out->cache[side], memory->stack_of[side],
			        of_side[side]);
			list += stack->part_count[side];
		}
		if (!match_layers(out, stack) || !pair_stack(out, stack))
			return false;
	}
	for (int64_t t = 0; t < stacks[1]; t++)
		if (!memory->taken[t] && !note_missing_stack(out, DIFF_B,
		                                 &out->cache[1]->parts[memory->first[1][t]]))
			return false;
	return true;
}

bool diff_align(
        struct diff_alignment *out, const struct saved_cache *a, const struct saved_cache *b)
{
	struct align_memory memory = { { NULL, NULL }, { NULL, NULL }, NULL, NULL };
	size_t parts[2] = { (size_t)a->part_count + 1, (size_t)b->part_count + 1 };
	bool good;

	memset(out, 0, sizeof(*out));
	out->cache[DIFF_A] = a;
	out->cache[DIFF_B] = b;
	out->stacks = calloc(parts[0], sizeof(*out->stacks));
	out->part_lists = calloc(parts[0] + parts[1], sizeof(*out->part_lists));
	memory.partner = calloc(parts[0], sizeof(*memory.partner));
	memory.taken = calloc(parts[1], sizeof(*memory.taken));
	good = out->stacks && out->part_lists && memory.partner && memory.taken;
	for (int side = 0; side < 2; side++) {
		memory.stack_of[side] = calloc(parts[side], sizeof(int32_t));
		memory.first[side] = calloc(parts[side], sizeof(int32_t));
		good = good && memory.stack_of[side] && memory.first[side];
	}
	good = good && make_stacks(out, &memory);
	for (int side = 0; side < 2; side++) {
		free(memory.stack_of[side]);
		free(memory.first[side]);
	}
	free(memory.partner);
	free(memory.taken);
	return good;
}

void diff_alignment_free(struct diff_alignment *alignment)
{
	for (int64_t s = 0; s < alignment->stack_count; s++) {
		struct diff_stack *stack = &alignment->stacks[s];
		for (int side = 0; side < 2; side++) {
			free(stack->layer[side]);
			free(stack->only[side].list);
			free(stack->beyond[side].list);
		}
		free(stack->pairs);
	}
	free(alignment->stacks);
	free(alignment->missing_layers);
	free(alignment->part_lists);
}
