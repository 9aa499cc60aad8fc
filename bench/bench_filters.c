/*
 * What is asked for: --op, --variant, --threads, --tokens. A filter that nothing passes is an error,
 * found before anything is timed.
 */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

/* Does the first of the comma-separated beginnings in 'list' begin 'op'? */
static int first_begins(const char *list, const char *op)
{
	return strncmp(op, list, strcspn(list, ",")) == 0;
}

/* What follows the first of them, or NULL. */
static const char *after_first(const char *list)
{
	const char *comma = strchr(list, ',');
	return comma ? comma + 1 : NULL;
}

static int one_begins(const char *list, const char *op)
{
	for (; list; list = after_first(list))
		if (first_begins(list, op))
			return 1;
	return 0;
}

int bench_wants_op(const struct bench *bench, const char *op)
{
	return !bench->settings.op || one_begins(bench->settings.op, op);
}

int bench_wants_variant(const struct bench *bench, const char *variant)
{
	return !bench->settings.variant || strcmp(bench->settings.variant, variant) == 0;
}

int bench_wants_threads(const struct bench *bench, int32_t threads)
{
	return !bench->settings.threads || bench->settings.threads == threads;
}

int bench_wants_tokens(const struct bench *bench, int64_t tokens)
{
	return !bench->settings.tokens || bench->settings.tokens == tokens;
}

int bench_has_kernel(const struct bench *bench, const char *operation)
{
	const char *kernel = "portable";
	for (size_t i = 0; i < kvc_cpu_variant_count(); i++)
		for (size_t k = 0; kvc_cpu_operation_at(k); k++)
			if (strcmp(kvc_cpu_variant_at(i).name, bench->variant) == 0 &&
			        strcmp(kvc_cpu_operation_at(k), operation) == 0)
				kernel = kvc_cpu_kernel_at(i, k);
	return strcmp(kernel, bench->variant) == 0;
}

/* ---- filters that nothing passes ---- */

enum filter { BY_OP, BY_VARIANT, BY_THREADS, BY_TOKENS, FILTER_COUNT };

static const char *const filter_names[] = { "op", "variant", "threads", "tokens" };

#define TEXT_BYTES 24

static const char *number_text(int64_t number, char room[TEXT_BYTES])
{
	(void)snprintf(room, TEXT_BYTES, "%lld", (long long)number);
	return room;
}

/* What a row has for the filter to look at. */
static const char *row_text(const struct bench_row *row, enum filter filter, char room[TEXT_BYTES])
{
	switch (filter) {
	case BY_OP:
		return row->op;
	case BY_VARIANT:
		return row->variant;
	case BY_THREADS:
		return number_text(row->threads, room);
	default:
		return number_text(row->tokens, room);
	}
}

/* What was asked for, or NULL. */
static const char *wanted_text(
        const struct bench_settings *settings, enum filter filter, char room[TEXT_BYTES])
{
	switch (filter) {
	case BY_OP:
		return settings->op;
	case BY_VARIANT:
		return settings->variant;
	case BY_THREADS:
		return settings->threads ? number_text(settings->threads, room) : NULL;
	default:
		return settings->tokens ? number_text(settings->tokens, room) : NULL;
	}
}

static int passes(const struct bench *bench, enum filter filter, const struct bench_row *row)
{
	switch (filter) {
	case BY_OP:
		return bench_wants_op(bench, row->op);
	case BY_VARIANT:
		return bench_wants_variant(bench, row->variant);
	case BY_THREADS:
		return bench_wants_threads(bench, row->threads);
	default:
		return bench_wants_tokens(bench, row->tokens);
	}
}

/* How many of the cases pass; those are moved to the front. */
static size_t keep_passing(
        const struct bench *bench, struct bench_result *cases, enum filter filter)
{
	size_t kept = 0;

	for (size_t i = 0; i < cases->row_count; i++)
		if (passes(bench, filter, &cases->rows[i]))
			cases->rows[kept++] = cases->rows[i];
	return kept;
}

/* The first beginning that no operation has, or NULL. */
static const char *op_of_none(const struct bench_result *cases, const char *list)
{
	for (; list; list = after_first(list)) {
		size_t i = 0;
		while (i < cases->row_count && !first_begins(list, cases->rows[i].op))
			i++;
		if (i == cases->row_count)
			return list;
	}
	return NULL;
}

/* No row before number i has the same text. */
static int is_new(const struct bench_result *cases, size_t i, enum filter filter)
{
	char room[TEXT_BYTES], other[TEXT_BYTES];
	const char *text = row_text(&cases->rows[i], filter, room);

	for (size_t k = 0; k < i; k++)
		if (strcmp(row_text(&cases->rows[k], filter, other), text) == 0)
			return 0;
	return 1;
}

static int by_op(const void *a, const void *b)
{
	return strcmp(((const struct bench_row *)a)->op, ((const struct bench_row *)b)->op);
}

static int by_tokens(const void *a, const void *b)
{
	const struct bench_row *one = a, *other = b;
	return (one->tokens > other->tokens) - (one->tokens < other->tokens);
}

/* 'cases' pass the filters before this one, and none passes it. */
static void say_no_match(const struct bench_settings *settings, struct bench_result *cases,
        enum filter filter, const char *wanted)
{
	static const char *const efforts[] = { "", " --quick", " --tiny" };
	int length = (int)(filter == BY_OP ? strcspn(wanted, ",") : strlen(wanted));
	int with = settings->effort != BENCH_FULL, count = 0;
	char room[TEXT_BYTES];

	fprintf(stderr, "kvcanary-bench: --%s '%.*s' matches nothing; ", filter_names[filter],
	        length, wanted);
	for (int before = 0; before < (int)filter; before++)
		with |= wanted_text(settings, (enum filter)before, room) != NULL;
	fprintf(stderr, "%s%s", with ? "with" : "", efforts[settings->effort]);
	for (int before = 0; before < (int)filter; before++) {
		const char *text = wanted_text(settings, (enum filter)before, room);
		if (text)
			fprintf(stderr, " --%s '%s'", filter_names[before], text);
	}
	fprintf(stderr, "%sthere are: ", with ? " " : "");
	qsort(cases->rows, cases->row_count, sizeof *cases->rows,
	        filter == BY_TOKENS ? by_tokens : by_op);
	for (size_t i = 0; i < cases->row_count; i++)
		if (is_new(cases, i, filter))
			fprintf(stderr, "%s%s", count++ ? ", " : "",
			        row_text(&cases->rows[i], filter, room));
	fputc('\n', stderr);
}

int bench_filters_match(const struct bench *bench, struct bench_result *cases)
{
	const struct bench_settings *settings = &bench->settings;
	char room[TEXT_BYTES];

	for (int i = 0; i < FILTER_COUNT; i++) {
		enum filter filter = (enum filter)i;
		const char *wanted = wanted_text(settings, filter, room), *wrong = NULL;
		if (!wanted)
			continue;
		if (filter == BY_OP)
			wrong = op_of_none(cases, wanted);
		size_t kept = wrong ? 0 : keep_passing(bench, cases, filter);
		if (kept == 0) {
			say_no_match(settings, cases, filter, wrong ? wrong : wanted);
			return 0;
		}
		cases->row_count = kept;
	}
	return 1;
}
