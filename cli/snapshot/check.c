/* One pass over all rows of a cache, a block of a tensor at a time on each thread. */
#include "snapshot/check.h"
#include "snapshot/check_changes.h"
#include "snapshot/check_parts.h"
#include "snapshot/content.h"
#include "snapshot/reader.h"
#include "snapshot/scan.h"
#include "snapshot/side.h"
#include "snapshot/work.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FINDINGS_PER_KIND 1000
#define FINDINGS_PER_TENSOR 100
/* Fingerprints of single heads are kept, to compare them, if they take no more memory than this. */
#define HEAD_PRINTS_BYTES ((int64_t)16 << 20)
/* Memory for the tensors in hand, unless one needs more. */
#define SLOTS_BYTES ((size_t)128 << 20)

/* What one thread needs; reused from block to block. */
struct scratch {
	struct scan_memory scan;
	unsigned char *row; /* packed, to say what is wrong in it */
	size_t row_bytes;
};

/* What is found in a block of rows. */
struct block {
	struct findings *findings;
	/* Where the number of heads is not known a head of zeros is a stretch of zeros in a row; unless
	 * most rows have one, for then it is padding. */
	struct findings *stretches;
	struct changes changes;
};

/* What one tensor needs; reused from tensor to tensor. */
struct slot {
	struct repeat_memory repeats;
	uint64_t *rows;  /* fingerprints of whole rows */
	uint64_t *heads; /* [heads][row_count] and of heads, if they are kept */
	bool heads_kept;
	struct block blocks[SCAN_BLOCKS_MAX];
};

struct item {
	int64_t part;
	int64_t layer;
	int tensor;
	int64_t block_count;
	struct findings *findings;
};

struct check {
	const struct saved_cache *cache;
	const struct check_options *options;
	struct side_match *match; /* NULL: no side file */
	struct item *items;
	int64_t item_count;
	struct scratch *scratches; /* [threads] */
	int threads;
	struct slot *slots; /* [slot_count] */
	int slot_count;
	pthread_mutex_t lock; /* of the error */
	struct saved_error *error;
	bool failed;
};

/* A tensor being looked at, or a block of it. */
struct pass {
	struct check *check;
	struct item *item;
	const struct saved_part *part;
	const struct saved_tensor *tensor;
	struct slot *slot;
	struct block *block; /* NULL: the tensor as a whole */
	struct scratch *scratch;
};

static struct pass pass_of(struct check *check, int64_t number, int slot)
{
	struct item *item = &check->items[number];
	const struct saved_part *part = &check->cache->parts[item->part];

	return (struct pass){ .check = check,
		.item = item,
		.part = part,
		.tensor = &part->layers[item->layer].tensor[item->tensor],
		.slot = &check->slots[slot] };
}

/* ---- rows that are wrong by themselves ---- */

/* The packed bytes of a row; NULL if it cannot be read any more, which other reads will say. */
static const unsigned char *row_of(const struct pass *pass, int64_t row)
{
	struct scratch *scratch = pass->scratch;
	size_t bytes = saved_row_bytes(pass->tensor);
	struct saved_error error;

	if (scratch->row_bytes < bytes) {
		free(scratch->row);
		scratch->row = malloc(bytes);
		scratch->row_bytes = scratch->row ? bytes : 0;
	}
	return scratch->row && saved_read_bytes(pass->tensor, row, 1, scratch->row, &error) == 0
	               ? scratch->row
	               : NULL;
}

static void say_flagged(
        struct pass *pass, unsigned flag, int64_t row, int64_t head, const char *detail)
{
	const char *kind = flag == SCAN_ZERO ? "zero_row" : "nonfinite";
	struct scan_nonfinite found = { -1, 0, "" };
	struct finding finding;

	if (!findings_has_room(pass->block->findings, kind, FINDING_DAMAGE)) {
		findings_add_count(pass->block->findings, kind, FINDING_DAMAGE, 1);
		return;
	}
	finding = place_finding(kind, FINDING_DAMAGE, pass->check->cache, pass->part, row);
	if (flag == SCAN_NONFINITE) {
		const unsigned char *bytes = row_of(pass, row);
		size_t head_bytes = saved_row_bytes(pass->tensor) / (size_t)pass->tensor->heads;
		if (bytes)
			found = scan_find_nonfinite(
			        pass->tensor, bytes + (size_t)head * head_bytes);
		snprintf(finding.detail, sizeof(finding.detail), "%s%s", found.what,
		        found.count > 1 ? ", and more in this row" : "");
	} else {
		snprintf(finding.detail, sizeof(finding.detail), "%s", detail);
	}
	/* Of one head there is nothing to say which. */
	place_in_tensor(&finding, pass->part, pass->item->layer, pass->item->tensor,
	        pass->tensor->heads > 1 ? head : -1, found.element);
	findings_add(pass->block->findings, &finding);
}

static void say_stretch(struct pass *pass, int64_t row)
{
	const unsigned char *bytes;
	struct finding finding;

	if (!findings_has_room(pass->block->stretches, "zero_row", FINDING_DAMAGE)) {
		findings_add_count(pass->block->stretches, "zero_row", FINDING_DAMAGE, 1);
		return;
	}
	bytes = row_of(pass, row);
	finding = place_finding("zero_row", FINDING_DAMAGE, pass->check->cache, pass->part, row);
	place_in_tensor(&finding, pass->part, pass->item->layer, pass->item->tensor, -1,
	        bytes ? scan_find_zero_stretch(pass->tensor, bytes) : -1);
	snprintf(finding.detail, sizeof(finding.detail),
	        "%d values and maybe more from here are 0, as if of one head", SCAN_STRETCH);
	findings_add(pass->block->stretches, &finding);
}

static void say_flags(struct pass *pass, const struct scan_rows *rows, int64_t i)
{
	int64_t heads = pass->tensor->heads, row = rows->first + i, zero = 0;

	for (int64_t head = 0; head < heads; head++) {
		unsigned flags = rows->flags[scan_at(rows, i, head)];
		zero += (flags & SCAN_ZERO) != 0;
		if (flags & SCAN_NONFINITE)
			say_flagged(pass, SCAN_NONFINITE, row, head, "");
	}
	if (heads == 1 && zero == 0 && rows->flags[scan_at(rows, i, 0)] & SCAN_ZERO_STRETCH)
		say_stretch(pass, row);
	if (zero == heads)
		say_flagged(pass, SCAN_ZERO, row, -1, "every value is 0");
	else
		for (int64_t head = 0; zero > 0 && head < heads; head++)
			if (rows->flags[scan_at(rows, i, head)] & SCAN_ZERO)
				say_flagged(pass, SCAN_ZERO, row, head,
				        "every value of this head is 0");
}

/* ---- fingerprints kept for comparison ---- */

static bool keeps_heads(int64_t rows, int64_t heads)
{
	return heads > 1 && rows <= HEAD_PRINTS_BYTES / 8 / heads;
}

/* One number for a row out of those of its heads; 0 if it is all zero. */
static uint64_t row_print(const struct scan_rows *rows, int64_t i, int64_t heads)
{
	uint64_t print = 0;
	unsigned zero = rows->flagged ? SCAN_ZERO : 0;

	for (int64_t head = 0; head < heads; head++) {
		print ^= rows->fingerprints[scan_at(rows, i, head)];
		print *= UINT64_C(0x9E3779B97F4A7C15);
		print ^= print >> 29;
	}
	for (int64_t head = 0; zero && head < heads; head++)
		zero &= rows->flags[scan_at(rows, i, head)];
	return zero ? 0 : print | 1;
}

static void keep_prints_of_head(uint64_t *kept, const struct scan_rows *rows, int64_t head)
{
	const uint64_t *prints = rows->fingerprints + scan_at(rows, 0, head);

	if (rows->row_stride == 1)
		memcpy(kept, prints, (size_t)rows->count * sizeof(*kept));
	else
		for (int64_t i = 0; i < rows->count; i++)
			kept[i] = prints[i * rows->row_stride];
	for (int64_t i = 0; rows->flagged && i < rows->count; i++)
		if (rows->flags[scan_at(rows, i, head)] & SCAN_ZERO)
			kept[i] = 0;
}

static void keep_prints(const struct pass *pass, const struct scan_rows *rows)
{
	int64_t heads = pass->tensor->heads;

	for (int64_t i = 0; i < rows->count; i++)
		pass->slot->rows[rows->first + i] = row_print(rows, i, heads);
	for (int64_t head = 0; pass->slot->heads_kept && head < heads; head++)
		keep_prints_of_head(
		        pass->slot->heads + head * pass->part->row_count + rows->first, rows, head);
}

static int look_at_found(void *context, const struct scan_rows *rows, struct saved_error *error)
{
	struct pass *pass = context;
	int64_t heads = pass->tensor->heads;

	for (int64_t i = 0; rows->flagged && i < rows->count; i++) {
		unsigned any = 0;
		for (int64_t head = 0; head < heads; head++)
			any |= rows->flags[scan_at(rows, i, head)];
		if (any & (SCAN_ZERO | SCAN_NONFINITE) || (heads == 1 && any))
			say_flags(pass, rows, i);
	}
	keep_prints(pass, rows);
	return pass->check->match ? changes_add(&pass->block->changes, rows, error) : 0;
}

/* ---- one tensor ---- */

/* Only the first error is kept. */
static bool check_failed(struct check *check, const struct saved_error *error)
{
	pthread_mutex_lock(&check->lock);
	if (!check->failed)
		*check->error = *error;
	check->failed = true;
	pthread_mutex_unlock(&check->lock);
	return false;
}

static bool fail_memory(struct check *check)
{
	struct saved_error error;

	saved_fail_memory(&error, check->cache->path);
	return check_failed(check, &error);
}

static int64_t count_tensor_blocks(void *context, int64_t number)
{
	const struct check *check = context;

	return check->items[number].block_count;
}

static bool begin_tensor(void *context, int64_t number, int slot_number)
{
	struct check *check = context;
	struct pass pass = pass_of(check, number, slot_number);

	pass.slot->heads_kept = keeps_heads(pass.part->row_count, pass.tensor->heads);
	pass.item->findings = findings_new(FINDINGS_PER_TENSOR);
	return pass.item->findings || fail_memory(check);
}

static int begin_block(const struct pass *pass)
{
	struct check *check = pass->check;
	struct block *block = pass->block;

	block->findings = findings_new(FINDINGS_PER_TENSOR);
	block->stretches = findings_new(FINDINGS_PER_TENSOR);
	block->changes = (struct changes){ .cache = check->cache,
		.match = check->match,
		.part = pass->item->part,
		.layer = pass->item->layer,
		.tensor = pass->item->tensor };
	return block->findings && block->stretches &&
	                       (!check->match || changes_begin(&block->changes) == 0)
	               ? 0
	               : -1;
}

static bool check_block(void *context, int64_t number, int slot, int64_t block, int thread)
{
	struct check *check = context;
	struct pass pass = pass_of(check, number, slot);
	int64_t rows = pass.part->row_count, count = pass.item->block_count;
	struct saved_error error;
	int failed;

	pass.block = &pass.slot->blocks[block];
	pass.scratch = &check->scratches[thread];
	if (begin_block(&pass) != 0)
		return fail_memory(check);
	failed = scan_tensor(pass.tensor, scan_block_first(rows, count, block),
	        scan_block_first(rows, count, block + 1), &pass.scratch->scan, look_at_found, &pass,
	        &error);
	changes_rest(&pass.block->changes);
	return failed ? check_failed(check, &error) : true;
}

static void block_free(struct block *block)
{
	findings_free(block->findings);
	findings_free(block->stretches);
	changes_free(&block->changes);
	*block = (struct block){ 0 };
}

/* All blocks into the first. */
static void merge_blocks(const struct pass *pass)
{
	struct block *first = &pass->slot->blocks[0];

	for (int64_t i = 1; i < pass->item->block_count; i++) {
		struct block *block = &pass->slot->blocks[i];
		findings_merge(first->findings, block->findings);
		findings_merge(first->stretches, block->stretches);
		if (pass->check->match)
			changes_merge(&first->changes, &block->changes);
		block_free(block);
	}
}

static bool end_tensor(void *context, int64_t number, int slot, int thread)
{
	struct check *check = context;
	struct pass pass = pass_of(check, number, slot);
	struct block *all = &pass.slot->blocks[0];
	struct findings *findings = pass.item->findings;
	struct repeats repeats = { check->cache, pass.part, pass.item->layer, pass.item->tensor,
		pass.slot->rows, pass.slot->heads_kept ? pass.slot->heads : NULL };
	struct saved_error error;
	int failed = 0;

	(void)thread;
	merge_blocks(&pass);
	findings_merge(findings, all->findings);
	check_repeats(findings, &repeats, &pass.slot->repeats);
	if (findings_count(all->stretches, FINDING_DAMAGE) * 2 <= (size_t)pass.part->row_count)
		findings_merge(findings, all->stretches);
	if (check->match)
		failed = changes_end(&all->changes, findings, &error);
	block_free(all);
	return failed ? check_failed(check, &error) : true;
}

/* ---- the whole cache ---- */

/* Most notes are facts for 'info'; here only what limits the check. */
static bool is_worth_saying(const struct saved_cache *cache, const struct saved_note *note)
{
	return note->damage || cache->part_count == 0 || strcmp(note->kind, "recurrent_state") == 0;
}

static void say_notes(struct findings *findings, const struct saved_cache *cache)
{
	for (int64_t i = 0; i < cache->note_count; i++) {
		const struct saved_note *note = &cache->notes[i];
		struct finding finding =
		        finding_blank(note->kind, note->damage ? FINDING_DAMAGE : FINDING_NOTE);
		if (!is_worth_saying(cache, note))
			continue;
		if (note->offset >= 0)
			finding.offset = (uint64_t)note->offset;
		snprintf(finding.detail, sizeof(finding.detail), "%.*s",
		        (int)sizeof(finding.detail) - 1, note->text);
		findings_add(findings, &finding);
	}
}

static struct item item_at(const struct saved_part *part, int64_t number, int64_t layer, int tensor)
{
	return (struct item){ .part = number,
		.layer = layer,
		.tensor = tensor,
		.block_count =
		        scan_block_count(&part->layers[layer].tensor[tensor], part->row_count) };
}

static int list_items(struct check *check)
{
	const struct saved_cache *cache = check->cache;
	int64_t most = 1;

	for (int64_t p = 0; p < cache->part_count; p++)
		most += 2 * cache->parts[p].layer_count;
	check->items = calloc((size_t)most, sizeof(*check->items));
	if (!check->items)
		return -1;
	for (int64_t p = 0; p < cache->part_count; p++)
		for (int64_t layer = 0; layer < cache->parts[p].layer_count; layer++)
			for (int tensor = SAVED_K; tensor <= SAVED_V; tensor++)
				if (cache->parts[p].layers[layer].tensor[tensor].present)
					check->items[check->item_count++] =
					        item_at(&cache->parts[p], p, layer, tensor);
	return 0;
}

/* What a tensor in hand needs at most. */
struct needs {
	int64_t rows;
	size_t head_bytes; /* of the fingerprints of heads */
};

static struct needs needs_of(const struct check *check)
{
	struct needs needs = { 1, 1 };

	for (int64_t i = 0; i < check->item_count; i++) {
		const struct item *item = &check->items[i];
		const struct saved_part *part = &check->cache->parts[item->part];
		int64_t heads = part->layers[item->layer].tensor[item->tensor].heads;
		if (part->row_count > needs.rows)
			needs.rows = part->row_count;
		if (keeps_heads(part->row_count, heads) &&
		        (size_t)(part->row_count * heads * 8) > needs.head_bytes)
			needs.head_bytes = (size_t)(part->row_count * heads * 8);
	}
	return needs;
}

static int make_slot(struct slot *slot, const struct needs *needs)
{
	slot->rows = malloc((size_t)needs->rows * sizeof(uint64_t));
	slot->heads = malloc(needs->head_bytes);
	if (!slot->rows || !slot->heads)
		return -1;
	return repeat_memory_reserve(&slot->repeats, needs->rows);
}

/* Tensors in hand: one more than threads, so that none waits for the end of another tensor, as far
 * as memory allows. */
static int count_slots(const struct check *check, const struct needs *needs)
{
	size_t bytes = needs->head_bytes + (size_t)needs->rows * sizeof(uint64_t) +
	               repeat_memory_bytes(needs->rows);
	int count = check->threads < WORK_THREADS_MAX ? check->threads + 1 : WORK_THREADS_MAX;

	if (count > check->item_count)
		count = (int)check->item_count;
	while (count > 1 && (size_t)count * bytes > SLOTS_BYTES)
		count--;
	return count < 1 ? 1 : count;
}

static int make_memory(struct check *check)
{
	struct needs needs = needs_of(check);
	int wanted = check->options->threads;

	check->threads = wanted < 1 ? 1 : wanted > WORK_THREADS_MAX ? WORK_THREADS_MAX : wanted;
	check->scratches = calloc((size_t)check->threads, sizeof(*check->scratches));
	check->slot_count = count_slots(check, &needs);
	check->slots = calloc((size_t)check->slot_count, sizeof(*check->slots));
	if (!check->scratches || !check->slots)
		return -1;
	for (int i = 0; i < check->slot_count; i++)
		if (make_slot(&check->slots[i], &needs) != 0)
			return -1;
	return 0;
}

static void check_free(struct check *check)
{
	for (int i = 0; check->scratches && i < check->threads; i++) {
		scan_memory_free(&check->scratches[i].scan);
		free(check->scratches[i].row);
	}
	for (int i = 0; check->slots && i < check->slot_count; i++) {
		repeat_memory_free(&check->slots[i].repeats);
		free(check->slots[i].rows);
		free(check->slots[i].heads);
		for (int block = 0; block < SCAN_BLOCKS_MAX; block++)
			block_free(&check->slots[i].blocks[block]);
	}
	for (int64_t i = 0; i < check->item_count; i++)
		findings_free(check->items[i].findings);
	free(check->scratches);
	free(check->slots);
	free(check->items);
	side_match_free(check->match);
	pthread_mutex_destroy(&check->lock);
}

static bool check_items(struct check *check)
{
	const struct work_in_parts work = { check->item_count, count_tensor_blocks,
		check->slot_count, begin_tensor, check_block, end_tensor, check };

	return work_run_in_parts(&work, check->threads);
}

static int check_all(struct check *check, struct check_result *result)
{
	const struct saved_cache *cache = check->cache;
	const struct check_options *options = check->options;
	bool good = list_items(check) == 0 && make_memory(check) == 0;

	for (int64_t p = 0; good && p < cache->part_count; p++)
		good = check_cells(result->findings, cache, &cache->parts[p]) == 0;
	if (!good)
		return saved_fail_memory(check->error, cache->path);
	say_notes(result->findings, cache);
	if (options->side && side_match_new(&check->match, options->side, cache, result->findings,
	                             check->error) != 0)
		return -1;
	if (!check_items(check))
		return -1;
	for (int64_t i = 0; i < check->item_count; i++)
		findings_merge(result->findings, check->items[i].findings);
	if (options->rope)
		return check_content(
		        result->findings, &result->incomplete, cache, options->rope, check->error);
	return 0;
}

int check_cache(struct check_result *result, const struct saved_cache *cache,
        const struct check_options *options, struct saved_error *error)
{
	struct check check = { .cache = cache, .options = options, .error = error };
	int failed;

	*result = (struct check_result){ .findings = findings_new(FINDINGS_PER_KIND) };
	if (!result->findings)
		return saved_fail_memory(error, cache->path);
	pthread_mutex_init(&check.lock, NULL);
	failed = check_all(&check, result);
	for (int64_t i = 0; i < check.item_count; i++) {
		const struct saved_part *part = &cache->parts[check.items[i].part];
		const struct saved_tensor *tensor =
		        &part->layers[check.items[i].layer].tensor[check.items[i].tensor];
		result->row_count += part->row_count;
		result->byte_count += part->row_count * (int64_t)saved_row_bytes(tensor);
	}
	check_free(&check);
	if (failed) {
		findings_free(result->findings);
		result->findings = NULL;
	}
	return failed;
}
