/* The options that the commands on saved caches share. */
#include "snapshot/saved_options.h"
#include "json_line.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define TOKENS_MAX ((size_t)1 << 22)
#define HEADS_MAX 65536
#define JOBS_MAX 1024
#define ONE_OF "one of" /* the values of an option, in its help; completions look for it, too */

enum {
	OPTION_AS = 256,
	OPTION_HEADS,
	OPTION_LAYOUT,
	OPTION_MANIFEST,
	OPTION_TOKENS,
	OPTION_JOBS,
	OPTION_JSON
};

const struct cli_option saved_option_rows[] = {
	{ 0, NULL, NULL, "reading" },
	{ OPTION_AS, "as", "FORMAT",
	        "read it as this format, whatever it looks like; one of\n"
	        "llamacpp, llamacpp-seq, llamacpp-ctx, llamacpp-blob,\n"
	        "safetensors, safetensors-kvc, safetensors-mlx,\n"
	        "safetensors-vllm, pages, hicache, vllm-fs, pickle" },
	{ OPTION_HEADS, "heads", "N", "KV heads, where the format does not tell" },
	{ OPTION_LAYOUT, "layout", "NAME",
	        "how rows lie, where a shape can be read in two ways: of\n"
	        "vLLM the first three, else the axes; one of\n"
	        "split, packed, mla, bhtd, bthd, htd, thd, btd, td" },
	{ OPTION_MANIFEST, "manifest", "FILE", "JSON that describes raw pages of a directory" },
	{ OPTION_TOKENS, "tokens", "IDS|FILE",
	        "token ids where the format has none: 1,2,3, or a file of numbers" },
	{ OPTION_JOBS, "jobs", "N", "threads; 0 = one per CPU (0)" },
	{ OPTION_JSON, "json", NULL, "JSON on standard output, nothing else" },
	{ CLI_OPTION_HELP, "help", NULL, "this text" },
	CLI_OPTIONS_END,
};

/* ---- token ids ---- */

static int fail_tokens(const char *value)
{
	return cli_fail("cli-option-bad-value", "option", "--tokens", "value", value, "expected",
	        "token ids from 0 to 2147483647, or a file of them", NULL);
}

/* Numbers with anything but digits and a minus between them. */
static int parse_tokens(struct saved_settings *settings, const char *text, const char *value)
{
	size_t count = 0, capacity = 0;

	while (*text) {
		char *end;
		long long number;
		if (!isdigit((unsigned char)*text)) {
			if (!strchr(" \t\r\n,;[]", *text))
				return fail_tokens(value);
			text++;
			continue;
		}
		errno = 0;
		number = strtoll(text, &end, 10);
		if (errno != 0 || number > INT32_MAX || count == TOKENS_MAX)
			return fail_tokens(value);
		if (count == capacity) {
			int64_t *more;
			capacity = capacity ? 2 * capacity : 256;
			more = realloc(settings->tokens, capacity * sizeof(*more));
			if (!more)
				return cli_fail("cli-input-unreadable", "path", "--tokens",
				        "reason", strerror(ENOMEM), NULL);
			settings->tokens = more;
		}
		settings->tokens[count++] = number;
		text = end;
	}
	settings->saved.tokens = settings->tokens;
	settings->saved.token_count = (int64_t)count;
	return count > 0 ? 0 : fail_tokens(value);
}

static int read_token_file(struct saved_settings *settings, const char *path)
{
	FILE *file = fopen(path, "re");
	char *text = NULL;
	size_t capacity = 0;
	ssize_t bytes;
	int code;

	if (!file)
		return cli_fail(
		        "cli-input-unreadable", "path", path, "reason", strerror(errno), NULL);
	errno = 0;
	bytes = getdelim(&text, &capacity, '\0', file);
	if (bytes < 0 && ferror(file))
		code = cli_fail(
		        "cli-input-unreadable", "path", path, "reason", strerror(errno), NULL);
	else if (bytes > 0 && text[bytes - 1] == '\0') /* it goes on behind that */
		code = fail_tokens(path);
	else
		code = parse_tokens(settings, bytes < 0 ? "" : text, path);
	free(text);
	fclose(file);
	return code;
}

static int read_tokens(struct saved_settings *settings, const char *value)
{
	bool is_list = value[strspn(value, "0123456789,; []")] == '\0';

	return is_list ? parse_tokens(settings, value, value) : read_token_file(settings, value);
}

/* ---- options ---- */

/* Whether the words behind "one of" have this one. */
static bool lists(const char *words, const char *value)
{
	for (words += strlen(ONE_OF); *words;) {
		size_t bytes;
		words += strspn(words, ", \n");
		bytes = strcspn(words, ", \n");
		if (bytes > 0 && bytes == strlen(value) && strncmp(words, value, bytes) == 0)
			return true;
		words += bytes;
	}
	return false;
}

/* A value that must be one of those in the option's help, which is the one list of them. */
static int take_listed(const char **out, int option, const char *value)
{
	const struct cli_option *row = saved_option_rows;
	char dashed[32], expected[256];
	size_t used = 0;
	const char *words;

	while (row->id != option)
		row++;
	words = strstr(row->help, ONE_OF);
	if (lists(words, value)) {
		*out = value;
		return 0;
	}
	for (; *words && used + 1 < sizeof(expected); words++)
		expected[used++] = *words == '\n' ? ' ' : *words;
	expected[used] = '\0';
	snprintf(dashed, sizeof(dashed), "--%s", row->name);
	return cli_fail("cli-option-bad-value", "option", dashed, "value", value, "expected",
	        expected, NULL);
}

int saved_option(struct saved_settings *settings, int option, const char *value)
{
	struct saved_error error;

	switch (option) {
	case OPTION_AS:
		return take_listed(&settings->saved.format, option, value);
	case OPTION_HEADS:
		return cli_read_int(&settings->saved.heads, "--heads", value, 1, HEADS_MAX);
	case OPTION_LAYOUT:
		return take_listed(&settings->saved.layout, option, value);
	case OPTION_MANIFEST:
		settings->saved.manifest = value;
		return 0;
	case OPTION_TOKENS:
		return read_tokens(settings, value);
	case SAVED_OPTION_ROPE:
		settings->has_rope = true;
		if (rope_given_parse(&settings->rope, value))
			return 0;
		return cli_fail("cli-option-bad-value", "option", "--rope", "value", value,
		        "expected", "BASE,STYLE[,DIM[,OFFSET]], as 10000,half or 10000,norm,64",
		        NULL);
	case SAVED_OPTION_ROPE_FROM:
		settings->has_rope = true;
		return rope_given_read(&settings->rope, value, &error) == 0
		               ? 0
		               : saved_print_error(&error, value, settings->json);
	case OPTION_JOBS:
		return cli_read_int(&settings->jobs, "--jobs", value, 0, JOBS_MAX);
	case OPTION_JSON:
		settings->json = true;
		return 0;
	default:
		settings->help = true;
		return 0;
	}
}

void saved_settings_free(struct saved_settings *settings)
{
	free(settings->tokens);
	*settings = SAVED_SETTINGS;
}

/* ---- JSON ---- */

char *saved_utf8(const char *text)
{
	json_t *string = json_string(text); /* NULL if it is no UTF-8 */
	char *mended = malloc(3 * strlen(text) + 1);
	size_t used = 0;

	for (const char *at = text; mended && *at; at++) {
		bool plain = string || (unsigned char)*at < 128;
		memcpy(mended + used, plain ? at : "\xef\xbf\xbd", plain ? 1 : 3);
		used += plain ? 1 : 3;
	}
	if (mended)
		mended[used] = '\0';
	json_decref(string);
	return mended;
}

json_t *saved_json_text(const char *text)
{
	char *mended = saved_utf8(text);
	json_t *string = mended ? json_string(mended) : NULL;

	free(mended);
	return string;
}

json_t *saved_error_object(const struct saved_error *error)
{
	return json_pack("{s:s, s:s, s:o, s:I, s:o}", "slug", error->slug, "kind", error->kind,
	        "field", saved_json_text(error->field), "offset", (json_int_t)error->offset,
	        "message", saved_json_text(error->message));
}

int saved_print_error(const struct saved_error *error, const char *path, bool json)
{
	if (json)
		cli_write_json(stdout,
		        json_pack("{s:o, s:o}", "file", saved_json_text(path), "error",
		                saved_error_object(error)),
		        JSON_COMPACT);
	return cli_fail_text(error->message, error->slug);
}
