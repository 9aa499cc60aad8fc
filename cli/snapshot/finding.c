/* The list of findings; finding.h says what each function promises. */
#include "snapshot/finding.h"

#include <stdlib.h>
#include <string.h>

#define KINDS_MAX 64

struct tally {
	const char *kind;
	enum finding_weight weight;
	size_t count;
	size_t kept;
};

struct findings {
	size_t limit;
	struct finding *list;
	size_t count;
	size_t capacity;
	bool sorted;
	/* One for each kind and weight; kinds are words of our own, so there are few. */
	struct tally tallies[KINDS_MAX];
	size_t tally_count;
};

struct findings *findings_new(size_t limit_per_kind)
{
	struct findings *findings = calloc(1, sizeof(*findings));

	if (findings)
		findings->limit = limit_per_kind;
	return findings;
}

void findings_free(struct findings *findings)
{
	if (findings)
		free(findings->list);
	free(findings);
}

struct finding finding_blank(const char *kind, enum finding_weight weight)
{
	return (struct finding){ .kind = kind,
		.weight = weight,
		.stream = -1,
		.layer = -1,
		.tensor = -1,
		.head = -1,
		.row = -1,
		.position = -1,
		.token = -1,
		.element = -1,
		.offset = UINT64_MAX };
}

/* The tally of a kind; NULL if it is new and there is no room, which KINDS_MAX rules out. */
static struct tally *tally_of(
        struct findings *findings, const char *kind, enum finding_weight weight)
{
	for (size_t i = 0; i < findings->tally_count; i++) {
		struct tally *tally = &findings->tallies[i];
		if (tally->weight == weight && strcmp(tally->kind, kind) == 0)
			return tally;
	}
	if (findings->tally_count == KINDS_MAX)
		return NULL;
	findings->tallies[findings->tally_count] = (struct tally){ kind, weight, 0, 0 };
	return &findings->tallies[findings->tally_count++];
}

/* Without memory the finding is counted and not kept. */
static void keep_finding(struct findings *findings, const struct finding *finding)
{
	struct tally *tally = tally_of(findings, finding->kind, finding->weight);

	if (!tally || tally->kept == findings->limit)
		return;
	if (findings->count == findings->capacity) {
		size_t capacity = findings->capacity ? 2 * findings->capacity : 16;
		struct finding *list = realloc(findings->list, capacity * sizeof(*list));
		if (!list)
			return;
		findings->list = list;
		findings->capacity = capacity;
	}
	findings->list[findings->count++] = *finding;
	findings->sorted = false;
	tally->kept++;
}

void findings_add_count(
        struct findings *findings, const char *kind, enum finding_weight weight, size_t times)
{
	struct tally *tally = tally_of(findings, kind, weight);

	if (tally)
		tally->count += times;
}

bool findings_has_room(
        const struct findings *findings, const char *kind, enum finding_weight weight)
{
	for (size_t i = 0; i < findings->tally_count; i++)
		if (findings->tallies[i].weight == weight &&
		        strcmp(findings->tallies[i].kind, kind) == 0)
			return findings->tallies[i].kept < findings->limit;
	return true;
}

void findings_add(struct findings *findings, const struct finding *finding)
{
	findings_add_count(findings, finding->kind, finding->weight, 1);
	keep_finding(findings, finding);
}

void findings_merge(struct findings *to, struct findings *from)
{
	for (size_t i = 0; i < from->tally_count; i++)
		findings_add_count(
		        to, from->tallies[i].kind, from->tallies[i].weight, from->tallies[i].count);
	for (size_t i = 0; i < from->count; i++)
		keep_finding(to, &from->list[i]);
	from->count = 0;
	from->tally_count = 0;
}

size_t findings_count(const struct findings *findings, enum finding_weight least)
{
	size_t total = 0;

	for (size_t i = 0; i < findings->tally_count; i++)
		if (findings->tallies[i].weight >= least)
			total += findings->tallies[i].count;
	return total;
}

size_t findings_count_kind(const struct findings *findings, const char *kind)
{
	size_t total = 0;

	for (size_t i = 0; i < findings->tally_count; i++)
		if (strcmp(findings->tallies[i].kind, kind) == 0)
			total += findings->tallies[i].count;
	return total;
}

static int order_numbers(int64_t a, int64_t b)
{
	return (a > b) - (a < b);
}

static int order_findings(const void *left, const void *right)
{
	const struct finding *a = left, *b = right;
	int order = strcmp(a->part ? a->part : "", b->part ? b->part : "");
	const int64_t keys[][2] = { { a->stream, b->stream }, { a->layer, b->layer },
		{ a->tensor, b->tensor }, { a->row, b->row }, { a->head, b->head },
		{ a->element, b->element }, { b->weight, a->weight } };

	for (size_t i = 0; order == 0 && i < sizeof(keys) / sizeof(keys[0]); i++)
		order = order_numbers(keys[i][0], keys[i][1]);
	return order ? order : strcmp(a->kind, b->kind);
}

const struct finding *findings_list(struct findings *findings, size_t *count_out)
{
	if (!findings->sorted && findings->count > 1)
		qsort(findings->list, findings->count, sizeof(*findings->list), order_findings);
	findings->sorted = true;
	*count_out = findings->count;
	return findings->list;
}
