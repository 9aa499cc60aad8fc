/* What the commands share; cli.h says what each function is for. */
#include "cli.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define FAIL_VALUES_MAX 8
#define DISTANCE_WORD_MAX 96

/* ---- errors ---- */

static int print_error(const char *message, const char *slug, const char *hint)
{
	fflush(stdout);
	fprintf(stderr, "kvcanary: %s [%s]\n", message, slug);
	if (hint[0])
		fprintf(stderr, "  hint: %s\n", hint);
	return CLI_CANNOT;
}

int cli_fail(const char *slug, ...)
{
	const kvc_catalog_entry *entry = kvc_catalog_find(slug);
	struct cli_value values[FAIL_VALUES_MAX];
	char message[1024], hint[1024];
	size_t count = 0;
	const char *name;
	va_list pairs;

	va_start(pairs, slug);
	while (count < FAIL_VALUES_MAX && (name = va_arg(pairs, const char *)) != NULL) {
		const char *text = va_arg(pairs, const char *);
		values[count++] = (struct cli_value){ name, strlen(name), text, strlen(text) };
	}
	va_end(pairs);
	if (!entry) /* a test makes sure that every slug in cli/ has its entry */
		return print_error("error without an entry in the catalogue", slug, "");
	cli_fill(message, sizeof(message), entry->message, values, count);
	cli_fill(hint, sizeof(hint), entry->hint, values, count);
	return print_error(message, slug, hint);
}

int cli_fail_text(const char *message, const char *slug)
{
	const kvc_catalog_entry *entry = kvc_catalog_find(slug);

	return print_error(message, slug, entry ? entry->hint : "");
}

int cli_fail_library(void)
{
	const kvc_error *error = kvc_last_error();

	return print_error(error->message, error->slug, error->hint);
}

static int output_error;

bool cli_flush(void)
{
	errno = 0;
	if (fflush(stdout) != 0 || ferror(stdout))
		output_error = output_error ? output_error : errno ? errno : EIO;
	return output_error == 0;
}

int cli_output_error(void)
{
	return output_error;
}

int cli_same_file(const char *a, const char *b)
{
	struct stat one, other;

	return stat(a, &one) == 0 && stat(b, &other) == 0 && one.st_dev == other.st_dev &&
	       one.st_ino == other.st_ino;
}

int cli_refuse_overwrite(const char *output, const char *input)
{
	return cli_same_file(output, input)
	               ? cli_fail("cli-output-is-input", "output", output, "input", input, NULL)
	               : CLI_GOOD;
}

int cli_read_int(int64_t *out, const char *option, const char *value, int64_t least, int64_t most)
{
	char expected[96], *end;
	long long number;

	errno = 0;
	number = strtoll(value, &end, 10);
	if (end != value && *end == '\0' && errno == 0 && number >= least && number <= most) {
		*out = number;
		return 0;
	}
	snprintf(expected, sizeof(expected), "a whole number from %lld to %lld", (long long)least,
	        (long long)most);
	return cli_fail("cli-option-bad-value", "option", option, "value", value, "expected",
	        expected, NULL);
}

/* ---- text ---- */

static int columns_set; /* 0 = not */

void cli_set_columns(int columns)
{
	columns_set = columns;
}

int cli_columns(void)
{
	struct winsize size;

	if (columns_set)
		return columns_set;
	if (!isatty(STDOUT_FILENO) || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0)
		return 80;
	return size.ws_col < 40 ? 40 : size.ws_col > 100 ? 100 : size.ws_col;
}

void cli_wrap(FILE *file, int indent, const char *first, const char *text)
{
	int columns = cli_columns();
	int at = fprintf(file, "%*s%s", indent, "", first);
	int begin = at;

	for (;;) {
		int word;
		text += strspn(text, " \n\t");
		word = (int)strcspn(text, " \n\t");
		if (word == 0)
			break;
		if (at > begin && at + 1 + word > columns) {
			fprintf(file, "\n%*s", begin, "");
			at = begin;
		}
		at += fprintf(file, "%s%.*s", at > begin ? " " : "", word, text);
		text += word;
	}
	fputc('\n', file);
}

void cli_indented(FILE *file, int indent, const char *text)
{
	while (*text) {
		int line = (int)strcspn(text, "\n");
		fprintf(file, "%*s%.*s\n", line ? indent : 0, "", line, text);
		text += line;
		text += *text == '\n';
	}
}

void cli_print_foreign(FILE *file, const char *text)
{
	for (; *text; text++)
		fputc((unsigned char)*text < 32 || *text == 127 ? '?' : *text, file);
}

size_t cli_distance(const char *a, const char *b, size_t limit)
{
	size_t row[DISTANCE_WORD_MAX + 1];
	size_t a_bytes = strlen(a), b_bytes = strlen(b);

	if (a_bytes > DISTANCE_WORD_MAX || b_bytes > DISTANCE_WORD_MAX)
		return limit;
	for (size_t j = 0; j <= b_bytes; j++)
		row[j] = j;
	for (size_t i = 1; i <= a_bytes; i++) {
		size_t diagonal = row[0];
		row[0] = i;
		for (size_t j = 1; j <= b_bytes; j++) {
			size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
			size_t shorter = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
			diagonal = row[j];
			row[j] = replaced < shorter ? replaced : shorter;
		}
	}
	return row[b_bytes] < limit ? row[b_bytes] : limit;
}

size_t cli_near(const char *word)
{
	return 1 + strlen(word) / 4;
}

char *cli_suggest_name(char *out, size_t out_bytes, const char *name)
{
	snprintf(out, out_bytes, "%s%s", name ? "; the nearest is " : "", name ? name : "");
	return out;
}

char *cli_suggest(char *out, size_t out_bytes, const char *word, const char *(*name_at)(size_t))
{
	size_t least = cli_near(word) + 1;
	const char *name, *nearest = NULL;

	for (size_t i = 0; (name = name_at(i)) != NULL; i++) {
		size_t distance = cli_distance(word, name, least);
		if (distance < least) {
			least = distance;
			nearest = name;
		}
	}
	return cli_suggest_name(out, out_bytes, nearest);
}

/* ---- templates ---- */

int cli_placeholder(struct cli_value *out, const char *template, size_t index)
{
	for (const char *at = strchr(template, '{'); at; at = strchr(at + 1, '{')) {
		if (index-- > 0)
			continue;
		*out = (struct cli_value){ at + 1, strcspn(at + 1, "}"), NULL, 0 };
		return 1;
	}
	return 0;
}

static const struct cli_value *value_named(
        const struct cli_value *values, size_t count, const char *name, size_t name_bytes)
{
	for (size_t i = 0; i < count; i++)
		if (values[i].text && values[i].name_bytes == name_bytes &&
		        memcmp(values[i].name, name, name_bytes) == 0)
			return &values[i];
	return NULL;
}

/* Appends as much as there is room for, and always a NUL. */
static void append_text(char *out, size_t out_bytes, size_t *used, const char *text, size_t bytes)
{
	for (size_t i = 0; i < bytes && *used + 1 < out_bytes; i++) {
		unsigned char c = (unsigned char)text[i];
		out[(*used)++] = c < 32 || c == 127 ? '?' : text[i];
	}
	out[*used] = '\0';
}

char *cli_fill(char *out, size_t out_bytes, const char *template, const struct cli_value *values,
        size_t count)
{
	size_t used = 0;

	out[0] = '\0';
	while (*template) {
		size_t literal = strcspn(template, "{");
		size_t name;
		const struct cli_value *value;
		append_text(out, out_bytes, &used, template, literal);
		template += literal;
		if (*template == '\0')
			break;
		name = strcspn(template + 1, "}");
		value = value_named(values, count, template + 1, name);
		if (value)
			append_text(out, out_bytes, &used, value->text, value->text_bytes);
		else
			append_text(out, out_bytes, &used, template, name + 2);
		template += name + 2;
	}
	return out;
}
