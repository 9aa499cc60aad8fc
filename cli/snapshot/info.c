/*
 * kvcanary info: what a saved cache is, without reading a row. For people a line that says what it
 * is, a table with a row for each part, and what is not in the file.
 */
#include "snapshot/info.h"
#include "snapshot/fleet.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#define PARTS_SHOWN 12
#define RUNS_SHOWN 3
#define TOKENS_SHOWN 12

const struct cli_manual info_manual = {
	.name = "info",
	.usage = "FILE|DIR... [OPTION]...",
	.text = "Say what a saved KV cache is: format and version, layers, heads, dtype, rows, "
	        "positions,\n"
	        "sequences, tokens, sizes, and what the file does not tell. Only headers are read. "
	        "What\n"
	        "is wrong with its rows says kvcanary check. A directory is one cache if its files "
	        "are\n"
	        "the layers or pages of one, else it stands for the files in it and below.",
	.options = NULL,
	.shared = saved_option_rows,
	.exit_codes = "0 all could be read\n2 some could not",
	.examples = "kvcanary info session.bin",
};

/* ---- facts ---- */

uint64_t info_part_bytes(const struct saved_part *part)
{
	uint64_t bytes = 0;

	for (int64_t i = 0; i < part->layer_count; i++)
		for (int t = SAVED_K; t <= SAVED_V; t++)
			if (part->layers[i].tensor[t].present)
				bytes += (uint64_t)part->row_count *
				         saved_row_bytes(&part->layers[i].tensor[t]);
	return bytes;
}

static bool some_heads_known(const struct saved_cache *cache)
{
	for (int64_t p = 0; p < cache->part_count; p++)
		for (int64_t i = 0; i < cache->parts[p].layer_count; i++)
			if (cache->parts[p].layers[i].tensor[SAVED_K].heads > 1)
				return true;
	return false;
}

size_t info_missing(
        struct missing *out, const struct saved_cache *cache, const struct saved_options *options)
{
	size_t count = 0;
	bool tokens = cache->token_count > 0, positions = true, sequences = true, numbers = true;

	for (int64_t p = 0; p < cache->part_count; p++) {
		const struct saved_part *part = &cache->parts[p];
		tokens = tokens || part->tokens;
		positions = positions && (part->positions || part->row_count == 0);
		sequences = sequences && (part->sequences || part->row_count == 0);
		for (int64_t i = 0; i < part->layer_count; i++)
			numbers = numbers && part->layers[i].number_is_known;
	}
	if (!tokens)
		out[count++] = (struct missing){ "token ids", "--tokens" };
	if (cache->part_count > 0 && options->heads == 0 && !some_heads_known(cache))
		out[count++] = (struct missing){ "heads", "--heads" };
	if (!positions)
		out[count++] = (struct missing){ "positions", "" };
	if (!sequences)
		out[count++] = (struct missing){ "sequences", "" };
	if (!numbers)
		out[count++] = (struct missing){ "numbers of the model's layers", "" };
	if (cache->rope.base <= 0)
		out[count++] = (struct missing){ "rope parameters", "" };
	out[count++] = (struct missing){ "checksums", "kvcanary stamp" };
	return count;
}

/* ---- cells of the table ---- */

static void text_bytes(char *out, size_t out_bytes, uint64_t bytes)
{
	static const char *const units[] = { "KiB", "MiB", "GiB", "TiB" };
	double value = (double)bytes / 1024;
	size_t unit = 0;

	if (bytes < 1024) {
		snprintf(out, out_bytes, "%llu B", (unsigned long long)bytes);
		return;
	}
	for (; value >= 1000 && unit + 1 < sizeof(units) / sizeof(units[0]); unit++)
		value /= 1024;
	snprintf(out, out_bytes, "%.*f %s",
	        value < 9.995   ? 2
	        : value < 99.95 ? 1
	                        : 0,
	        value, units[unit]);
}

static bool same_kind(const struct saved_tensor *a, const struct saved_tensor *b)
{
	return a->present == b->present &&
	       (!a->present || (a->type == b->type && a->heads == b->heads && a->dim == b->dim &&
	                               strcmp(a->type_name, b->type_name) == 0));
}

/* "f16 3 x 64", "f16 64" where heads are not known, "none", "mixed". */
static void text_tensor(char *out, size_t out_bytes, const struct saved_part *part, int t)
{
	const struct saved_tensor *tensor;

	snprintf(out, out_bytes, "-");
	if (part->layer_count == 0)
		return;
	tensor = &part->layers[0].tensor[t];
	for (int64_t i = 1; i < part->layer_count; i++)
		if (!same_kind(tensor, &part->layers[i].tensor[t])) {
			snprintf(out, out_bytes, "mixed");
			return;
		}
	if (!tensor->present)
		snprintf(out, out_bytes, "none");
	else if (tensor->heads == 1)
		snprintf(out, out_bytes, "%.16s %lld", tensor->type_name, (long long)tensor->dim);
	else
		snprintf(out, out_bytes, "%.16s %lld x %lld", tensor->type_name,
		        (long long)tensor->heads, (long long)tensor->dim);
}

static int compare_numbers(const void *a, const void *b)
{
	int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;

	return (left > right) - (left < right);
}

/* "0-7", "0-1, 4-7", "0-9, 12, 14-17, ... 120-130 (9 gaps)" of sorted numbers; doubles count once. */
static void text_ranges(char *out, size_t out_bytes, const int64_t *sorted, int64_t count)
{
	size_t used = 0;
	int64_t first = 0, runs = 0;

	out[0] = '\0';
	for (int64_t i = 1; i <= count; i++) {
		bool ends = i == count || sorted[i] > sorted[i - 1] + 1;
		if (!ends)
			continue;
		if ((runs < RUNS_SHOWN || i == count) && used < out_bytes) {
			used += (size_t)snprintf(out + used, out_bytes - used, "%s%lld",
			        runs == 0           ? ""
			        : runs > RUNS_SHOWN ? ", ... "
			                            : ", ",
			        (long long)sorted[first]);
			if (sorted[i - 1] > sorted[first] && used < out_bytes)
				used += (size_t)snprintf(out + used, out_bytes - used, "%s%lld",
				        sorted[first] < 0 ? " to " : "-", (long long)sorted[i - 1]);
		}
		runs++;
		first = i;
	}
	if (runs > RUNS_SHOWN + 1 && used < out_bytes)
		snprintf(out + used, out_bytes - used, " (%lld gaps)", (long long)(runs - 1));
}

static void text_sorted(char *out, size_t out_bytes, int64_t *numbers, int64_t count)
{
	qsort(numbers, (size_t)count, sizeof(*numbers), compare_numbers);
	text_ranges(out, out_bytes, numbers, count);
}

static void text_positions(char *out, size_t out_bytes, const struct saved_part *part)
{
	int64_t *numbers =
	        part->row_count ? malloc((size_t)part->row_count * sizeof(*numbers)) : NULL;
	bool rises = true;

	snprintf(out, out_bytes, "-");
	if (!numbers)
		return;
	for (int64_t row = 0; row < part->row_count; row++) {
		numbers[row] = saved_position(part, row);
		rises = rises && (row == 0 || numbers[row] >= numbers[row - 1]);
	}
	text_sorted(out, out_bytes, numbers, part->row_count);
	if (!rises)
		snprintf(out + strlen(out), out_bytes - strlen(out), " (not in order)");
	free(numbers);
}

static void text_sequences(char *out, size_t out_bytes, const struct saved_part *part)
{
	uint64_t total = part->sequences ? part->sequence_begin[part->row_count] : 0;
	int64_t *numbers = total ? malloc(total * sizeof(*numbers)) : NULL;

	snprintf(out, out_bytes, "-");
	if (!numbers)
		return;
	for (uint64_t i = 0; i < total; i++)
		numbers[i] = part->sequences[i];
	text_sorted(out, out_bytes, numbers, (int64_t)total);
	free(numbers);
}

/* "2", or with numbers "2 (1, 3)" where they are not just counted from 0. */
static void text_layers(char *out, size_t out_bytes, const struct saved_part *part)
{
	int64_t numbers[512] = { 0 };
	int64_t count = part->layer_count;
	size_t used = (size_t)snprintf(out, out_bytes, "%lld", (long long)count);
	bool plain = count > 512;

	for (int64_t i = 0; i < count && !plain; i++) {
		numbers[i] = part->layers[i].number;
		plain = !part->layers[i].number_is_known;
	}
	if (count == 0 || plain || numbers[count - 1] == count - 1)
		return;
	used += (size_t)snprintf(out + used, out_bytes - used, " (");
	text_ranges(out + used, out_bytes - used, numbers, count);
	snprintf(out + strlen(out), out_bytes - strlen(out), ")");
}

/* ---- the table ---- */

enum {
	COLUMN_PART,
	COLUMN_ROWS,
	COLUMN_LAYERS,
	COLUMN_K,
	COLUMN_V,
	COLUMN_SIZE,
	COLUMN_POSITIONS,
	COLUMN_SEQUENCES,
	COLUMNS
};
static const char *const column_names[COLUMNS] = { "part", "rows", "layers", "K", "V", "K and V",
	"positions", "sequences" };

struct table_line {
	char cells[COLUMNS][96];
};

static void fill_line(struct table_line *line, const struct saved_part *part, bool has_streams)
{
	char(*cells)[96] = line->cells;

	if (has_streams)
		snprintf(cells[COLUMN_PART], 96, "%.40s %lld", part->name, (long long)part->stream);
	else
		snprintf(cells[COLUMN_PART], 96, "%.40s", part->name);
	snprintf(cells[COLUMN_ROWS], 96, "%lld", (long long)part->row_count);
	text_layers(cells[COLUMN_LAYERS], 96, part);
	text_tensor(cells[COLUMN_K], 96, part, SAVED_K);
	text_tensor(cells[COLUMN_V], 96, part, SAVED_V);
	text_bytes(cells[COLUMN_SIZE], 96, info_part_bytes(part));
	text_positions(cells[COLUMN_POSITIONS], 96, part);
	text_sequences(cells[COLUMN_SEQUENCES], 96, part);
}

/* Columns as wide as what is in them; numbers to the right. */
static void print_table(const struct table_line *lines, size_t count)
{
	int widths[COLUMNS];

	for (int c = 0; c < COLUMNS; c++) {
		widths[c] = (int)strlen(column_names[c]);
		for (size_t i = 0; i < count; i++) {
			int width = (int)strlen(lines[i].cells[c]);
			widths[c] = width > widths[c] ? width : widths[c];
		}
	}
	for (size_t i = 0; i <= count; i++) {
		printf(" ");
		for (int c = 0; c < COLUMNS; c++) {
			const char *cell = i == 0 ? column_names[c] : lines[i - 1].cells[c];
			if (c == COLUMN_ROWS || c == COLUMN_SIZE)
				printf(" %*s ", widths[c], cell);
			else if (c == COLUMNS - 1)
				printf(" %s", cell);
			else
				printf(" %-*s ", widths[c], cell);
		}
		printf("\n");
	}
}

static void print_parts(const struct saved_cache *cache)
{
	struct table_line lines[PARTS_SHOWN];
	size_t count = 0;
	int64_t empty = 0, more = 0;
	bool has_streams = false;

	for (int64_t p = 0; p < cache->part_count; p++)
		has_streams = has_streams || cache->parts[p].stream > 0;
	for (int64_t p = 0; p < cache->part_count; p++) {
		if (cache->parts[p].row_count == 0)
			empty++;
		else if (count == PARTS_SHOWN)
			more++;
		else
			fill_line(&lines[count++], &cache->parts[p], has_streams);
	}
	if (count > 0) {
		printf("\n");
		print_table(lines, count);
	}
	if (more > 0)
		printf("  and %lld more, see --json\n", (long long)more);
	if (empty > 0)
		printf("  %lld %s without rows\n", (long long)empty, empty == 1 ? "part" : "parts");
}

/* ---- the rest ---- */

static void print_tokens(const struct saved_cache *cache)
{
	char text[32 + 21 * TOKENS_SHOWN]; /* the longest number has 20 characters */
	size_t used = 0;

	if (cache->token_count == 0)
		return;
	used = (size_t)snprintf(text, sizeof(text), "%lld:", (long long)cache->token_count);
	for (int64_t i = 0; i < cache->token_count && i < TOKENS_SHOWN; i++)
		used += (size_t)snprintf(
		        text + used, sizeof(text) - used, " %lld", (long long)cache->tokens[i]);
	if (cache->token_count > TOKENS_SHOWN)
		snprintf(text + used, sizeof(text) - used, " ...");
	cli_wrap(stdout, 2, "tokens   ", text);
}

static void print_notes(const struct saved_cache *cache)
{
	for (int64_t i = 0; i < cache->note_count; i++) {
		const struct saved_note *note = &cache->notes[i];
		if (strcmp(note->kind, "arch") == 0)
			cli_wrap(stdout, 2, "model    ", note->text);
		else if (strcmp(note->kind, "no_tokens") != 0)
			cli_wrap(stdout, 2, note->damage ? "damage   " : "note     ", note->text);
	}
}

/* What a cache says of its origin, in one line. */
static void print_identity(const struct saved_cache *cache)
{
	char text[1024] = "", clean[1024];
	size_t used = 0;

	for (int64_t i = 0; i < cache->identity_count && used < sizeof(text); i++)
		used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s %.200s",
		        i > 0 ? ", " : "", cache->identity[i].field, cache->identity[i].value);
	const struct cli_value value = { "text", 4, text, strlen(text) };
	if (cache->identity_count > 0)
		cli_wrap(stdout, 2, "origin   ",
		        cli_fill(clean, sizeof(clean), "{text}", &value, 1));
}

static void print_missing(const struct saved_cache *cache, const struct saved_options *options)
{
	struct missing missing[MISSING_MAX];
	size_t count = info_missing(missing, cache, options), used = 0;
	char text[512] = "";

	for (size_t i = 0; i < count && used < sizeof(text); i++)
		used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s%s%s%s",
		        i > 0 ? ", " : "", missing[i].what, missing[i].remedy[0] ? " (" : "",
		        missing[i].remedy, missing[i].remedy[0] ? ")" : "");
	if (count > 0)
		cli_wrap(stdout, 2, "missing  ", text);
}

static void print_cache(const struct saved_cache *cache, const struct saved_options *options)
{
	char size[32];

	text_bytes(size, sizeof(size), cache->file_bytes);
	cli_print_foreign(stdout, cache->path);
	printf(": %s (%s)%s", cache->format, cache->version, cache->writer ? ", written by " : "");
	cli_print_foreign(stdout, cache->writer ? cache->writer : "");
	printf(", %s\n", size);
	print_parts(cache);
	printf("\n");
	print_tokens(cache);
	print_notes(cache);
	print_identity(cache);
	print_missing(cache, options);
}

/* ---- the command ---- */

static int show_file(const char *path, const struct saved_settings *settings, bool first)
{
	struct saved_cache *cache;
	struct saved_error *error = malloc(sizeof(*error));
	int code = CLI_GOOD;

	if (!error)
		return cli_fail(
		        "cli-input-unreadable", "path", path, "reason", strerror(ENOMEM), NULL);
	if (saved_open(&cache, path, &settings->saved, error)) {
		code = saved_print_error(error, path, settings->json);
		free(error);
		return code;
	}
	free(error);
	if (settings->json) {
		if (!info_print_json(cache, &settings->saved))
			code = cli_fail("cli-input-unreadable", "path", path, "reason",
			        strerror(ENOMEM), NULL);
	} else {
		printf("%s", first ? "" : "\n");
		print_cache(cache, &settings->saved);
	}
	saved_close(cache);
	return code;
}

static int show_files(const struct saved_settings *settings, int count, char **paths)
{
	struct fleet fleet = { 0 };
	int code = fleet_gather(&fleet, count, paths, NULL, &settings->saved);

	if (code == CLI_GOOD)
		code = fleet_refuse_empty(&fleet, "kvcanary info");
	if (code == CLI_GOOD)
		for (int64_t i = 0; i < fleet.count && cli_flush(); i++)
			if (show_file(fleet.paths[i], settings, i == 0) != CLI_GOOD)
				code = CLI_CANNOT;
	fleet_free(&fleet);
	return code;
}

int cli_info(int argc, char **argv)
{
	struct saved_settings settings = SAVED_SETTINGS;
	const char *value;
	int option, code = CLI_GOOD;

	while ((option = cli_next_option(&info_manual, argc, argv, &value)) >= 0 &&
	        code == CLI_GOOD)
		code = saved_option(&settings, option, value);
	if (option == CLI_BAD_OPTION)
		code = CLI_CANNOT;
	if (code == CLI_GOOD && settings.help)
		cli_print_manual(&info_manual);
	else if (code == CLI_GOOD)
		code = show_files(&settings, argc - optind, argv + optind);
	saved_settings_free(&settings);
	return code;
}
