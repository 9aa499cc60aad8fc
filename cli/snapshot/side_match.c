/* Which row of a stamp each row of a cache is: by position and sequences, not by cell. */
#include "snapshot/check_parts.h"
#include "snapshot/reader.h"
#include "snapshot/side_names.h"
#include "snapshot/side_parts.h"

#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

/* One part: cells as stamped, and which stamped row each row of the cache is. */
struct matched_part {
	int64_t stamped_count;
	int64_t *positions;
	int64_t *tokens;      /* NULL: unknown */
	uint64_t *sequences;  /* a fingerprint of the sequences of each row */
	int32_t *stamped_row; /* [rows of the cache], -1: not stamped */
	bool in_order;        /* stamped_row[r] = r for all */
};

struct side_match {
	const struct side *side;
	const struct saved_cache *cache;
	int64_t number; /* of the file in the side file */
	struct matched_part *parts;
};

static const struct safetensors_tensor *cells_tensor(const struct side_match *match, int64_t part,
        const char *what, enum safetensors_dtype dtype)
{
	char name[SIDE_NAME_BYTES];
	const struct safetensors_tensor *tensor;

	side_part_name(name, match->number, part, what);
	tensor = safetensors_find(match->side->container, name);
	return tensor && tensor->dtype == dtype && tensor->rank == 1 ? tensor : NULL;
}

static const struct safetensors_tensor *rows_tensor(
        const struct side_match *match, int64_t part, int64_t layer, int tensor)
{
	char name[SIDE_NAME_BYTES];

	side_layer_name(name, match->number, part, layer, tensor);
	return safetensors_find(match->side->container, name);
}

/* ---- geometry ---- */

static int fail_unfit(struct saved_error *error, const struct side_match *match, const char *field)
{
	return saved_fail(error, "snapshot-side-unfit", "geometry", match->side->path, field, -1,
	        "%.200s is not of the geometry that was stamped", match->cache->path);
}

static int check_rows_fit(const struct side_match *match, int64_t number, int64_t layer, int kv,
        struct saved_error *error)
{
	const struct saved_layer *now = &match->cache->parts[number].layers[layer];
	const struct safetensors_tensor *then = rows_tensor(match, number, layer, kv);
	char name[SIDE_NAME_BYTES], value[128];
	const char *stamped;

	side_layer_name(name, match->number, number, layer, kv);
	if (!now->tensor[kv].present)
		return then ? fail_unfit(error, match, name) : 0;
	snprintf(value, sizeof(value), "%" PRId64 " %.32s %" PRId64, now->number,
	        now->tensor[kv].type_name, now->tensor[kv].dim);
	stamped = safetensors_metadata(match->side->container, name);
	if (!then || then->rank != 2 || then->dtype != SAFETENSORS_U64 ||
	        then->shape[0] != (uint64_t)match->parts[number].stamped_count ||
	        then->shape[1] != (uint64_t)now->tensor[kv].heads || !stamped ||
	        strcmp(stamped, value) != 0)
		return fail_unfit(error, match, name);
	return 0;
}

static int check_part_fits(
        const struct side_match *match, int64_t number, struct saved_error *error)
{
	const struct saved_part *part = &match->cache->parts[number];
	char name[SIDE_NAME_BYTES], value[128];
	const char *stamped;

	side_part_name(name, match->number, number, "");
	snprintf(value, sizeof(value), "%.64s %" PRId64 " %" PRId64, part->name ? part->name : "kv",
	        part->stream, part->layer_count);
	stamped = safetensors_metadata(match->side->container, name);
	if (!stamped || strcmp(stamped, value) != 0)
		return fail_unfit(error, match, name);
	for (int64_t layer = 0; layer < part->layer_count; layer++)
		for (int kv = SAVED_K; kv <= SAVED_V; kv++)
			if (check_rows_fit(match, number, layer, kv, error) != 0)
				return -1;
	return 0;
}

/* ---- cells as stamped ---- */

/* A whole tensor of cells into memory; NULL and *error, or NULL alone if there is none. */
static void *read_cells_tensor(const struct side_match *match,
        const struct safetensors_tensor *tensor, struct saved_error *error)
{
	void *out = malloc((size_t)tensor->bytes + 8);

	if (!out) {
		saved_fail_memory(error, match->side->path);
		return NULL;
	}
	if (saved_file_read(match->side->file, tensor->offset, (size_t)tensor->bytes, out,
	            tensor->name, error) == 0)
		return out;
	free(out);
	return NULL;
}

/* One number for the sequences of a row. */
static uint64_t sequence_print(const int32_t *sequences, uint64_t count)
{
	return count ? XXH3_64bits(sequences, (size_t)count * sizeof(*sequences)) : 0;
}

static int digest_sequences(struct matched_part *matched, const int32_t *sequences,
        const uint64_t *begin, uint64_t sequence_count)
{
	for (int64_t row = 0; row < matched->stamped_count; row++) {
		if (begin[row] > begin[row + 1] || begin[row + 1] > sequence_count)
			return -1;
		matched->sequences[row] =
		        sequence_print(sequences + begin[row], begin[row + 1] - begin[row]);
	}
	return 0;
}

static int read_sequences(const struct side_match *match, int64_t number,
        struct matched_part *matched, struct saved_error *error)
{
	const struct safetensors_tensor *list =
	        cells_tensor(match, number, "sequences", SAFETENSORS_I32);
	const struct safetensors_tensor *begins =
	        cells_tensor(match, number, "sequence_begin", SAFETENSORS_U64);
	int32_t *sequences;
	uint64_t *begin;
	int failed = -1;

	matched->sequences = calloc((size_t)matched->stamped_count + 1, sizeof(uint64_t));
	if (!matched->sequences)
		return saved_fail_memory(error, match->side->path);
	if (!list || !begins)
		return 0;
	if (begins->shape[0] != (uint64_t)matched->stamped_count + 1)
		return fail_unfit(error, match, begins->name);
	sequences = read_cells_tensor(match, list, error);
	begin = sequences ? read_cells_tensor(match, begins, error) : NULL;
	if (begin)
		failed = digest_sequences(matched, sequences, begin, list->shape[0]) == 0
		                 ? 0
		                 : fail_unfit(error, match, begins->name);
	free(sequences);
	free(begin);
	return failed;
}

static int read_part(struct side_match *match, int64_t number, struct saved_error *error)
{
	struct matched_part *matched = &match->parts[number];
	const struct safetensors_tensor *positions =
	        cells_tensor(match, number, "positions", SAFETENSORS_I64);
	const struct safetensors_tensor *tokens =
	        cells_tensor(match, number, "tokens", SAFETENSORS_I64);

	if (!positions || positions->shape[0] > (uint64_t)SAVED_CELLS_MAX ||
	        (tokens && tokens->shape[0] != positions->shape[0]))
		return fail_unfit(error, match, "positions");
	matched->stamped_count = (int64_t)positions->shape[0];
	matched->positions = read_cells_tensor(match, positions, error);
	if (!matched->positions)
		return -1;
	if (tokens) {
		matched->tokens = read_cells_tensor(match, tokens, error);
		if (!matched->tokens)
			return -1;
	}
	return read_sequences(match, number, matched, error);
}

/* ---- which row is which ---- */

/* A row on either side. */
struct keyed {
	uint64_t sequences;
	int64_t position;
	int64_t row;
};

/* Matching one part. */
struct matching {
	struct side_match *match;
	const struct saved_part *part;
	struct matched_part *matched;
	struct findings *findings;
	unsigned char *taken;     /* [stamped rows]: which are matched */
	struct keyed *now, *then; /* the rows left over */
	int64_t now_count, then_count;
};

static struct keyed key_now(const struct matching *matching, int64_t row)
{
	const struct saved_part *part = matching->part;
	struct keyed key = { 0, saved_position(part, row), row };

	if (part->sequences)
		key.sequences = sequence_print(part->sequences + part->sequence_begin[row],
		        part->sequence_begin[row + 1] - part->sequence_begin[row]);
	return key;
}

static struct keyed key_then(const struct matching *matching, int64_t row)
{
	return (struct keyed){ matching->matched->sequences[row], matching->matched->positions[row],
		row };
}

static int order_places(const struct keyed *a, const struct keyed *b)
{
	if (a->sequences != b->sequences)
		return a->sequences < b->sequences ? -1 : 1;
	return (a->position > b->position) - (a->position < b->position);
}

static int order_keyed(const void *left, const void *right)
{
	const struct keyed *a = left, *b = right;
	int order = order_places(a, b);

	return order ? order : (a->row > b->row) - (a->row < b->row);
}

static void take(struct matching *matching, int64_t row, int64_t stamped)
{
	matching->matched->stamped_row[row] = (int32_t)stamped;
	matching->taken[stamped] = 1;
}

/* Cells where they were; the others into now and then. */
static void match_in_place(struct matching *matching)
{
	int64_t rows = matching->part->row_count, stamped = matching->matched->stamped_count;

	for (int64_t row = 0; row < rows || row < stamped; row++) {
		struct keyed now = { 0 }, then = { 0 };
		if (row < rows)
			now = key_now(matching, row);
		if (row < stamped)
			then = key_then(matching, row);
		if (row < rows && row < stamped && order_places(&now, &then) == 0) {
			take(matching, row, row);
			continue;
		}
		if (row < rows)
			matching->now[matching->now_count++] = now;
		if (row < stamped)
			matching->then[matching->then_count++] = then;
	}
	matching->matched->in_order = matching->now_count == 0;
}

static void match_by_place(struct matching *matching)
{
	int64_t i = 0, j = 0;

	qsort(matching->now, (size_t)matching->now_count, sizeof(*matching->now), order_keyed);
	qsort(matching->then, (size_t)matching->then_count, sizeof(*matching->then), order_keyed);
	while (i < matching->now_count && j < matching->then_count) {
		int order = order_places(&matching->now[i], &matching->then[j]);
		if (order == 0)
			take(matching, matching->now[i].row, matching->then[j].row);
		i += order <= 0;
		j += order >= 0;
	}
}

static void say_cell(const struct matching *matching, const char *kind, int64_t row,
        const char *format, int64_t then, int64_t now)
{
	struct finding finding =
	        place_finding(kind, FINDING_DAMAGE, matching->match->cache, matching->part, row);

	snprintf(finding.detail, sizeof(finding.detail), format, (long long)then, (long long)now);
	findings_add(matching->findings, &finding);
}

/* A row without a partner, in the cell of a stamped row without one: its number was changed. */
static void match_by_cell(struct matching *matching)
{
	for (int64_t i = 0; i < matching->now_count; i++) {
		int64_t row = matching->now[i].row;
		struct keyed then;
		if (matching->matched->stamped_row[row] >= 0 ||
		        row >= matching->matched->stamped_count || matching->taken[row])
			continue;
		then = key_then(matching, row);
		take(matching, row, row);
		if (then.position != matching->now[i].position)
			say_cell(matching, "position", row,
			        "position %lld when it was stamped, now %lld", then.position,
			        matching->now[i].position);
		if (then.sequences != matching->now[i].sequences)
			say_cell(matching, "sequence", row,
			        "not in the sequences it was in when stamped (position %lld, now "
			        "%lld)",
			        then.position, matching->now[i].position);
	}
}

static void say_unmatched(const struct matching *matching)
{
	int64_t last = -1;

	for (int64_t row = 0; row < matching->matched->stamped_count; row++) {
		struct finding finding = place_finding(
		        "row_missing", FINDING_DAMAGE, matching->match->cache, matching->part, -1);
		int64_t position = matching->matched->positions[row];
		last = position > last ? position : last;
		if (matching->taken[row])
			continue;
		finding.position = position;
		finding.token = matching->matched->tokens ? matching->matched->tokens[row] : -1;
		snprintf(finding.detail, sizeof(finding.detail),
		        "stamped as cell %lld, no longer there", (long long)row);
		findings_add(matching->findings, &finding);
	}
	for (int64_t row = 0; row < matching->part->row_count; row++) {
		bool appended = saved_position(matching->part, row) > last;
		struct finding finding;
		if (matching->matched->stamped_row[row] >= 0)
			continue;
		finding = place_finding("row_extra", appended ? FINDING_NOTE : FINDING_DAMAGE,
		        matching->match->cache, matching->part, row);
		snprintf(finding.detail, sizeof(finding.detail), "%s",
		        appended ? "later than all that was stamped" : "was not stamped");
		findings_add(matching->findings, &finding);
	}
}

static void say_tokens(const struct matching *matching)
{
	const int64_t *now = matching->part->tokens, *then = matching->matched->tokens;

	for (int64_t row = 0; now && then && row < matching->part->row_count; row++) {
		int64_t stamped = matching->matched->stamped_row[row];
		/* One that got another position has the token of that position. */
		if (stamped < 0 || now[row] < 0 || then[stamped] < 0 || now[row] == then[stamped] ||
		        matching->matched->positions[stamped] !=
		                saved_position(matching->part, row))
			continue;
		say_cell(matching, "token_changed", row, "token %lld when it was stamped, now %lld",
		        then[stamped], now[row]);
	}
}

static void match_rows(struct matching *matching)
{
	match_in_place(matching);
	if (!matching->matched->in_order ||
	        matching->part->row_count != matching->matched->stamped_count) {
		match_by_place(matching);
		match_by_cell(matching);
		say_unmatched(matching);
	}
	say_tokens(matching);
}

static int match_part(struct side_match *match, int64_t number, struct findings *findings,
        struct saved_error *error)
{
	struct matching matching = { .match = match,
		.part = &match->cache->parts[number],
		.matched = &match->parts[number],
		.findings = findings };
	size_t rows = (size_t)matching.part->row_count + 1;
	size_t stamped = (size_t)matching.matched->stamped_count + 1;
	bool good;

	matching.matched->stamped_row = malloc(rows * sizeof(int32_t));
	matching.taken = calloc(stamped, 1);
	matching.now = malloc(rows * sizeof(*matching.now));
	matching.then = malloc(stamped * sizeof(*matching.then));
	good = matching.matched->stamped_row && matching.taken && matching.now && matching.then;
	if (good) {
		memset(matching.matched->stamped_row, 0xff, rows * sizeof(int32_t));
		match_rows(&matching);
	}
	free(matching.taken);
	free(matching.now);
	free(matching.then);
	return good ? 0 : saved_fail_memory(error, match->cache->path);
}

/* Rows of another model, or addressed by blocks of another size, are not what was stamped. */
static int check_identity(const struct side_match *match, struct saved_error *error)
{
	const struct saved_cache *cache = match->cache;

	for (int64_t i = 0; i < cache->identity_count; i++) {
		char key[SIDE_NAME_BYTES];
		const char *stamped, *now = cache->identity[i].value;
		side_identity_name(key, match->number, cache->identity[i].field);
		stamped = safetensors_metadata(match->side->container, key);
		if (stamped && strcmp(stamped, now) != 0)
			return saved_fail(error, "snapshot-side-unfit", "identity",
			        match->side->path, cache->identity[i].field, -1,
			        "%.32s is %.60s there and %.60s in %.200s",
			        cache->identity[i].field, stamped, now,
			        side_base_name(cache->path));
	}
	return 0;
}

static int match_all(struct side_match *match, struct findings *findings, struct saved_error *error)
{
	const struct saved_cache *cache = match->cache;
	char key[SIDE_NAME_BYTES];
	const char *parts;

	match->number = side_find_file(match->side, cache->path);
	if (match->number < 0)
		return saved_fail(error, "snapshot-side-unfit", "side", match->side->path, "path",
		        -1,
		        match->number == -1 ? "it has no stamp of %.200s"
		                            : "it has stamps of several files like %.200s",
		        side_base_name(cache->path));
	snprintf(key, sizeof(key), "f%" PRId64 ".parts", match->number);
	parts = safetensors_metadata(match->side->container, key);
	if (!parts || atoll(parts) != cache->part_count)
		return fail_unfit(error, match, key);
	if (check_identity(match, error) != 0)
		return -1;
	for (int64_t part = 0; part < cache->part_count; part++)
		if (read_part(match, part, error) != 0 ||
		        check_part_fits(match, part, error) != 0 ||
		        match_part(match, part, findings, error) != 0)
			return -1;
	return 0;
}

int side_match_new(struct side_match **out, const struct side *side,
        const struct saved_cache *cache, struct findings *findings, struct saved_error *error)
{
	struct side_match *match = calloc(1, sizeof(*match));

	if (match) {
		match->side = side;
		match->cache = cache;
		match->parts = calloc((size_t)cache->part_count + 1, sizeof(*match->parts));
	}
	if (!match || !match->parts) {
		free(match);
		return saved_fail_memory(error, cache->path);
	}
	if (match_all(match, findings, error) != 0) {
		side_match_free(match);
		return -1;
	}
	*out = match;
	return 0;
}

void side_match_free(struct side_match *match)
{
	if (!match)
		return;
	for (int64_t part = 0; part < match->cache->part_count; part++) {
		free(match->parts[part].positions);
		free(match->parts[part].tokens);
		free(match->parts[part].sequences);
		free(match->parts[part].stamped_row);
	}
	free(match->parts);
	free(match);
}

/* ---- stamped rows ---- */

int64_t side_match_rows(const struct side_match *match, int64_t part)
{
	return match->parts[part].stamped_count;
}

int side_match_read_stamped(const struct side_match *match, int64_t part, int64_t layer, int tensor,
        int64_t first, int64_t count, uint64_t *out, struct saved_error *error)
{
	const struct safetensors_tensor *rows = rows_tensor(match, part, layer, tensor);
	uint64_t row_bytes = rows->shape[1] * sizeof(uint64_t);

	return saved_file_read(match->side->file, rows->offset + (uint64_t)first * row_bytes,
	        (size_t)((uint64_t)count * row_bytes), out, rows->name, error);
}

int side_match_read(const struct side_match *match, int64_t part, int64_t layer, int tensor,
        int64_t first, int64_t count, uint64_t *out, unsigned char *known,
        struct saved_error *error)
{
	const int32_t *stamped = match->parts[part].stamped_row + first;
	int64_t heads = match->cache->parts[part].layers[layer].tensor[tensor].heads;

	for (int64_t i = 0, end; i < count; i = end) {
		end = i + 1;
		known[i] = stamped[i] >= 0;
		while (known[i] && end < count && stamped[end] == stamped[i] + (end - i))
			known[end++] = 1;
		if (known[i] && side_match_read_stamped(match, part, layer, tensor, stamped[i],
		                        end - i, out + i * heads, error) != 0)
			return -1;
	}
	return 0;
}
