/* One pass over all rows of a cache, a tensor at a time on each thread. */
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
/* Beyond this many rows one thread's memory is all that is allowed. */
#define ROWS_FOR_ONE_THREAD ((int64_t)1 << 20)

/* What one thread needs; reused from tensor to tensor. */
struct scratch {
	struct scan_memory scan;
	struct repeat_memory repeats;
	uint64_t *rows;  /* fingerprints of whole rows */
	uint64_t *heads; /* and of heads */
};

struct item {
	int64_t part;
	int64_t layer;
	int tensor;
	struct findings *findings;
};

struct check {
	const struct saved_cache *cache;
	const struct check_options *options;
	struct side_match *match; /* NULL: no side file */
	struct item *items;
	int64_t item_count;
	struct scratch *scratches;
	int threads;
	pthread_mutex_t lock; /* of the error */
	struct saved_error *error;
	bool failed;
};

/* A tensor being looked at. */
struct pass {
	struct check *check;
	struct item *item;
	const struct saved_part *part;
	const struct saved_tensor *tensor;
	struct scratch *scratch;
	struct changes changes;
	bool heads_kept;
	/* Where the number of heads is not known a head of zeros is a stretch of zeros in a row; unless
	 * most rows have one, for then it is padding. */
	struct findings *stretches;
};

/* ---- rows that are wrong by themselves ---- */

static void say_flagged(struct pass *pass, unsigned flag, int64_t row, int64_t head,
        const unsigned char *bytes, const char *detail)
{
	struct scan_nonfinite found = { -1, 0, "" };
	struct finding finding = place_finding(flag == SCAN_ZERO ? "zero_row" : "nonfinite",
	        FINDING_DAMAGE, pass->check->cache, pass->part, row);

	if (flag == SCAN_NONFINITE) {
		found = scan_find_nonfinite(pass->tensor, bytes);
		snprintf(finding.detail, sizeof(finding.detail), "%s%s", found.what,
		        found.count > 1 ? ", and more in this row" : "");
	} else {
		snprintf(finding.detail, sizeof(finding.detail), "%s", detail);
	}
	/* Of one head there is nothing to say which. */
	place_in_tensor(&finding, pass->part, pass->item->layer, pass->item->tensor,
	        pass->tensor->heads > 1 ? head : -1, found.element);
	findings_add(pass->item->findings, &finding);
}

static void say_stretch(struct pass *pass, int64_t row, const unsigned char *bytes)
{
	struct finding finding =
	        place_finding("zero_row", FINDING_DAMAGE, pass->check->cache, pass->part, row);
	int64_t element = scan_find_zero_stretch(pass->tensor, bytes);

	place_in_tensor(&finding, pass->part, pass->item->layer, pass->item->tensor, -1, element);
	snprintf(finding.detail, sizeof(finding.detail),
	        "%d values and maybe more from here are 0, as if of one head", SCAN_STRETCH);
	findings_add(pass->stretches, &finding);
}

static void say_flags(struct pass *pass, const struct scan_rows *rows, int64_t i)
{
	int64_t heads = pass->tensor->heads;
	const unsigned char *flags = rows->flags + i * heads;
	const unsigned char *bytes = rows->bytes + (size_t)(i * heads) * rows->head_bytes;
	int64_t zero = 0;

	for (int64_t head = 0; head < heads; head++) {
		zero += (flags[head] & SCAN_ZERO) != 0;
		if (flags[head] & SCAN_NONFINITE)
			say_flagged(pass, SCAN_NONFINITE, rows->first + i, head,
			        bytes + (size_t)head * rows->head_bytes, "");
	}
	if (heads == 1 && zero == 0 && flags[0] & SCAN_ZERO_STRETCH)
		say_stretch(pass, rows->first + i, bytes);
	if (zero == heads)
		say_flagged(pass, SCAN_ZERO, rows->first + i, -1, NULL, "every value is 0");
	else
		for (int64_t head = 0; zero > 0 && head < heads; head++)
			if (flags[head] & SCAN_ZERO)
				say_flagged(pass, SCAN_ZERO, rows->first + i, head, NULL,
				        "every value of this head is 0");
}

/* ---- fingerprints kept for comparison ---- */

/* One number for a row out of those of its heads; 0 if it is all zero. */
static uint64_t row_print(const uint64_t *heads, const unsigned char *flags, int64_t count)
{
	uint64_t print = 0;
	unsigned zero = SCAN_ZERO;

	for (int64_t i = 0; i < count; i++) {
		print = (print ^ heads[i]) * UINT64_C(0x9E3779B97F4A7C15);
		print ^= print >> 29;
		zero &= flags[i];
	}
	return zero ? 0 : print | 1;
}

static void keep_prints(struct pass *pass, const struct scan_rows *rows)
{
	int64_t heads = pass->tensor->heads;

	for (int64_t i = 0; i < rows->count; i++)
		pass->scratch->rows[rows->first + i] =
		        row_print(rows->fingerprints + i * heads, rows->flags + i * heads, heads);
	for (int64_t i = 0; pass->heads_kept && i < rows->count * heads; i++)
		pass->scratch->heads[rows->first * heads + i] =
		        rows->flags[i] & SCAN_ZERO ? 0 : rows->fingerprints[i];
}

static int look_at_rows(void *context, const struct scan_rows *rows, struct saved_error *error)
{
	struct pass *pass = context;
	int64_t heads = pass->tensor->heads;

	for (int64_t i = 0; i < rows->count; i++) {
		unsigned any = 0;
		for (int64_t head = 0; head < heads; head++)
			any |= rows->flags[i * heads + head];
		if (any & (SCAN_ZERO | SCAN_NONFINITE) || (heads == 1 && any))
			say_flags(pass, rows, i);
	}
	keep_prints(pass, rows);
	return pass->check->match ? changes_add(&pass->changes, rows, error) : 0;
}

/* ---- one tensor ---- */

static int pass_begin(struct pass *pass, struct saved_error *error)
{
	struct check *check = pass->check;
	int64_t rows = pass->part->row_count, heads = pass->tensor->heads;

	pass->heads_kept = heads > 1 && rows <= HEAD_PRINTS_BYTES / 8 / heads;
	pass->item->findings = findings_new(FINDINGS_PER_TENSOR);
	pass->stretches = findings_new(FINDINGS_PER_TENSOR);
	if (!pass->item->findings || !pass->stretches ||
	        repeat_memory_reserve(&pass->scratch->repeats, rows) != 0)
		return saved_fail_memory(error, check->cache->path);
	pass->changes = (struct changes){ .cache = check->cache,
		.match = check->match,
		.part = pass->item->part,
		.layer = pass->item->layer,
		.tensor = pass->item->tensor };
	if (check->match && changes_begin(&pass->changes) != 0)
		return saved_fail_memory(error, check->cache->path);
	return 0;
}

static int pass_end(struct pass *pass, struct saved_error *error)
{
	struct repeats repeats = { pass->check->cache, pass->part, pass->item->layer,
		pass->item->tensor, pass->scratch->rows,
		pass->heads_kept ? pass->scratch->heads : NULL };

	check_repeats(pass->item->findings, &repeats, &pass->scratch->repeats);
	if (findings_count(pass->stretches, FINDING_DAMAGE) * 2 <= (size_t)pass->part->row_count)
		findings_merge(pass->item->findings, pass->stretches);
	return pass->check->match ? changes_end(&pass->changes, pass->item->findings, error) : 0;
}

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

static bool check_item(void *context, int64_t number, int thread)
{
	struct check *check = context;
	struct item *item = &check->items[number];
	const struct saved_part *part = &check->cache->parts[item->part];
	const struct saved_tensor *tensor = &part->layers[item->layer].tensor[item->tensor];
	struct pass pass = { .check = check,
		.item = item,
		.part = part,
		.tensor = tensor,
		.scratch = &check->scratches[thread] };
	struct saved_error error;
	bool good = pass_begin(&pass, &error) == 0 &&
	            scan_tensor(tensor, part->row_count, &pass.scratch->scan, look_at_rows, &pass,
	                    &error) == 0 &&
	            pass_end(&pass, &error) == 0;

	changes_free(&pass.changes);
	findings_free(pass.stretches);
	return good ? true : check_failed(check, &error);
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
					        (struct item){ p, layer, tensor, NULL };
	return 0;
}

/* Memory by the largest part, for each thread. */
static int make_scratches(struct check *check)
{
	int64_t rows = 1;
	int wanted = check->options->threads > 0 ? check->options->threads : 1;

	for (int64_t p = 0; p < check->cache->part_count; p++)
		if (check->cache->parts[p].row_count > rows)
			rows = check->cache->parts[p].row_count;
	check->threads = rows > ROWS_FOR_ONE_THREAD ? 1
	                 : wanted > check->item_count
	                         ? (check->item_count > 0 ? (int)check->item_count : 1)
	                         : wanted;
	check->scratches = calloc((size_t)check->threads, sizeof(*check->scratches));
	if (!check->scratches)
		return -1;
	for (int i = 0; i < check->threads; i++) {
		check->scratches[i].rows = malloc((size_t)rows * sizeof(uint64_t));
		check->scratches[i].heads = malloc((size_t)HEAD_PRINTS_BYTES);
		if (!check->scratches[i].rows || !check->scratches[i].heads)
			return -1;
	}
	return 0;
}

static void check_free(struct check *check)
{
	for (int i = 0; check->scratches && i < check->threads; i++) {
		scan_memory_free(&check->scratches[i].scan);
		repeat_memory_free(&check->scratches[i].repeats);
		free(check->scratches[i].rows);
		free(check->scratches[i].heads);
	}
	for (int64_t i = 0; i < check->item_count; i++)
		findings_free(check->items[i].findings);
	free(check->scratches);
	free(check->items);
	side_match_free(check->match);
	pthread_mutex_destroy(&check->lock);
}

static int check_all(struct check *check, struct check_result *result)
{
	const struct saved_cache *cache = check->cache;
	const struct check_options *options = check->options;
	bool good = list_items(check) == 0 && make_scratches(check) == 0;

	for (int64_t p = 0; good && p < cache->part_count; p++)
		good = check_cells(result->findings, cache, &cache->parts[p]) == 0;
	if (!good)
		return saved_fail_memory(check->error, cache->path);
	say_notes(result->findings, cache);
	if (options->side && side_match_new(&check->match, options->side, cache, result->findings,
	                             check->error) != 0)
		return -1;
	if (!work_run(check->item_count, check->threads, check_item, check))
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
