/*
 * Looking things up in the catalogue: by slug, by index, by the text of a message.
 *
 * Matching. A template is literals with placeholders between them, each of which stands for one or
 * more bytes of one line. If a line fits at all, then it also fits when every literal is taken at
 * the first place it can be, since that leaves most room for the rest; so one pass over the line is
 * enough and there is no backtracking, whatever the text is.
 */
#include "catalog/catalog.h"

#include <string.h>

struct span {
	const char *begin;
	const char *end;
};

/* Where the caller wants the values; 'found_count' also counts those that do not fit. */
struct captures {
	const char *text;
	size_t *start_out;
	size_t *length_out;
	size_t capacity;
	size_t found_count;
};

size_t kvc_catalog_count(void)
{
	return kvc__catalog_row_count;
}

const kvc_catalog_entry *kvc_catalog_at(size_t index)
{
	return index < kvc__catalog_row_count ? &kvc__catalog_rows[index].entry : NULL;
}

const kvc_catalog_entry *kvc_catalog_find(const char *slug)
{
	size_t low = 0, high = kvc__catalog_row_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		int order = strcmp(slug, kvc__catalog_rows[middle].entry.slug);
		if (order == 0)
			return &kvc__catalog_rows[middle].entry;
		if (order < 0)
			high = middle;
		else
			low = middle + 1;
	}
	return NULL;
}

/* Cuts the next literal off a template; *template_at moves past the placeholder after it. */
static struct span next_literal(const char **template_at, int *placeholder_follows)
{
	struct span literal = { *template_at, strchr(*template_at, '{') };

	*placeholder_follows = literal.end != NULL;
	if (!literal.end)
		literal.end = literal.begin + strlen(literal.begin);
	*template_at = literal.end;
	if (*placeholder_follows)
		*template_at =
		        strchr(literal.end, '}') + 1; /* the generator checked that it is there */
	return literal;
}

static const char *find_span(const char *begin, const char *end, struct span what)
{
	if (begin > end)
		return NULL;
	return memmem(begin, (size_t)(end - begin), what.begin, (size_t)(what.end - what.begin));
}

static int is_word_char(char c)
{
	return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
	       c == '_' || c == '.' || c == '+' || c == '-';
}

/* The first byte of a value that ends right before 'end': a template may begin with a value, and
 * what stands before it in the line ("ValueError: ") is not part of it. Never empty: end > line. */
static const char *value_begin(const char *line, const char *end, char type)
{
	const char *at = end;

	if (type == 'h')
		while (at > line && at[-1] != '(')
			at--;
	if (type == 'h' && at > line)
		return at - 1;
	for (at = end - 1; at > line && at[-1] != ' ' && at[-1] != '\t';)
		at--;
	return at;
}

static const char *end_of_shape(const char *begin, const char *end)
{
	int depth = 0;

	for (const char *at = begin; at < end; at++) {
		if (*at == '(')
			depth++;
		if (*at == ')' && --depth <= 0)
			return at + 1;
	}
	return end;
}

/* Drops the " [slug]" with which the command ends its messages. */
static const char *without_slug(const char *begin, const char *end)
{
	const char *at = end;

	if (end == begin || end[-1] != ']')
		return end;
	while (at > begin && at[-1] != '[')
		at--;
	return at - begin > 2 && at[-2] == ' ' ? at - 2 : end;
}

/* The end of a value that nothing follows in the template. Never empty if begin < end. */
static const char *value_end(const char *begin, const char *end, char type)
{
	const char *at = begin;

	if (type == 'h')
		return end_of_shape(begin, end);
	if (type == 's')
		return without_slug(begin, end);
	while (at < end && is_word_char(*at))
		at++;
	/* "int32." at the end of a sentence: the full stop is not part of the value. */
	while (at > begin + 1 && at[-1] == '.')
		at--;
	return at > begin ? at : begin + 1;
}

static void keep(struct captures *captures, const char *begin, const char *end)
{
	size_t i = captures->found_count++;

	if (i >= captures->capacity)
		return;
	if (captures->start_out)
		captures->start_out[i] = (size_t)(begin - captures->text);
	if (captures->length_out)
		captures->length_out[i] = (size_t)(end - begin);
}

/* Does the template stand in the line? 'literal_count_out' gets its number of fixed bytes. */
static int match_line(const struct kvc__catalog_row *row, struct span line,
        struct captures *captures, size_t *literal_count_out)
{
	const char *template_at = row->entry.message;
	const char *type = row->types;
	int more;
	struct span literal = next_literal(&template_at, &more);
	const char *at = line.begin; /* end of what is matched so far */

	*literal_count_out = (size_t)(literal.end - literal.begin);
	if (*literal_count_out > 0) {
		at = find_span(line.begin, line.end, literal);
		if (!at)
			return 0;
		at += *literal_count_out;
	}
	for (int first = *literal_count_out == 0; more; first = 0, type++) {
		const char *value = at, *found;
		if (value >= line.end)
			return 0;
		literal = next_literal(&template_at, &more);
		*literal_count_out += (size_t)(literal.end - literal.begin);
		if (literal.begin == literal.end) {
			at = value_end(value, line.end, *type);
			keep(captures, value, at);
			continue;
		}
		found = find_span(value + 1, line.end, literal);
		if (!found)
			return 0;
		keep(captures, first ? value_begin(value, found, *type) : value, found);
		at = found + (literal.end - literal.begin);
	}
	return 1;
}

static const char *end_of_line(const char *at)
{
	return at + strcspn(at, "\r\n");
}

const kvc_catalog_entry *kvc_catalog_match(
        const char *text, size_t *start_out, size_t *length_out, size_t capacity, size_t *count_out)
{
	const struct kvc__catalog_row *best = NULL;
	struct span best_line = { text, text };
	struct captures captures = { text, start_out, length_out, capacity, 0 };
	struct captures none = { text, NULL, NULL, 0, 0 };
	size_t best_literals = 0, literals;
	struct span line = { text, end_of_line(text) };

	for (;; line.begin = line.end + 1, line.end = end_of_line(line.begin)) {
		for (size_t i = 0; i < kvc__catalog_row_count; i++) {
			const struct kvc__catalog_row *row = &kvc__catalog_rows[i];
			if (match_line(row, line, &none, &literals) && literals > best_literals) {
				best = row;
				best_line = line;
				best_literals = literals;
			}
		}
		if (*line.end == '\0')
			break;
	}
	if (best)
		match_line(best, best_line, &captures, &literals);
	if (count_out)
		*count_out = captures.found_count;
	return best ? &best->entry : NULL;
}
