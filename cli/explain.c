/*
 * kvcanary explain: from a slug, a message or the line of a violation to the catalogue's entry.
 *
 * Text is looked at line by line. A line may hold one message, or a violation with several
 * reasons; what the line says in numbers is shown with the entry.
 */
#include "cli.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#define VALUES_MAX 24
#define TEXT_BYTES 1024
#define FIRST_LINE_BYTES 256
#define VIOLATION_PREFIX "kv_canary violation:"
#define REASON_KEY "fail_reason="

struct options {
	int json;
	int list;
};

/* A line, what was recognised in it, and what its placeholders stand for. */
struct finding {
	const kvc_catalog_entry *entry;
	const char *line; /* NULL: asked for by its slug */
	struct cli_value values[VALUES_MAX];
	size_t value_count;
};

/* One run of the command. */
struct session {
	struct options options;
	unsigned char *seen; /* by index in the catalogue: explain each entry once */
	size_t found_count;
};

static const struct cli_option own_options[] = {
	{ 'l', "list", NULL, "list the entries, or those that mention WORD" },
	{ 'j', "json", NULL, "print the records as JSON, one a line" },
	{ 'w', "width", "N", "wrap at this column, from 40 to 1000 (the terminal's, or 80)" },
	{ CLI_OPTION_HELP, "help", NULL, "this text" },
	CLI_OPTIONS_END,
};

static const struct cli_manual manual = {
	"explain",
	"SLUG | MESSAGE | -\n--list [WORD]",
	"Say what an error or a violation means, what to do, and show the mended code.\n\n"
	"  SLUG      the name in brackets at the end of a message\n"
	"  MESSAGE   a pasted message or violation line, with its numbers\n"
	"  -         read text (a log) from standard input; every entry in it is explained once",
	own_options,
	NULL,
	"0 explained, 2 nothing fits",
	"kvcanary explain 'v_pool shape must match k_pool shape, got (31, 1, 8) vs (32, 1, 8)'",
};

/* ---- printing ---- */

static void print_section(const char *title, const char *text)
{
	printf("\n%s\n", title);
	cli_wrap(stdout, 2, "", text);
}

static void print_code(const char *title, const char *code)
{
	printf("\n%s\n", title);
	cli_indented(stdout, 4, code);
}

static void print_bullets(const char *title, const char *const *items)
{
	printf("\n%s\n", title);
	for (; *items; items++)
		cli_wrap(stdout, 2, "- ", *items);
}

static void print_values(const struct finding *finding)
{
	if (finding->value_count > 0)
		printf("\nIn this case\n");
	for (size_t i = 0; i < finding->value_count; i++) {
		const struct cli_value *value = &finding->values[i];
		char text[TEXT_BYTES];
		cli_fill(text, sizeof(text), "{v}",
		        &(struct cli_value){ "v", 1, value->text, value->text_bytes }, 1);
		printf("  %.*s = %s\n", (int)value->name_bytes, value->name, text);
	}
}

static void print_entry(const struct finding *finding)
{
	const kvc_catalog_entry *entry = finding->entry;
	char text[TEXT_BYTES];

	printf("%s (%s)\n\n", entry->slug,
	        entry->status != KVC_OK               ? kvc_status_name(entry->status)
	        : strcmp(entry->kind, "cli") == 0     ? "error of the command"
	        : strcmp(entry->kind, "finding") == 0 ? "finding in a saved cache"
	                                              : entry->kind);
	cli_fill(text, sizeof(text), entry->message, finding->values, finding->value_count);
	cli_wrap(stdout, 2, "", text);
	print_values(finding);
	print_section("What it means", entry->documentation);
	print_section("What triggers it", entry->trigger_scenarios);
	print_section("Where people meet it", entry->common_situations);
	if (entry->hint[0])
		print_section("Hint", cli_fill(text, sizeof(text), entry->hint, finding->values,
		                              finding->value_count));
	print_bullets("What to do", entry->solutions);
	print_code("Before", entry->fix_before);
	print_code("After", entry->fix_after);
	print_code("Check beforehand", entry->validation_code);
	print_bullets("How not to get here again", entry->prevention_tips);
	printf("\nPython: %s   severity: %s   id: %s\n", entry->error_class, entry->severity,
	        entry->id);
}

static size_t index_of(const kvc_catalog_entry *entry)
{
	size_t index = 0;

	while (kvc_catalog_at(index) != entry)
		index++;
	return index;
}

static void report(struct session *session, const struct finding *finding)
{
	size_t index = index_of(finding->entry);

	session->found_count++;
	if (session->seen[index])
		return;
	session->seen[index] = 1;
	if (session->options.json) {
		printf("%s\n", finding->entry->record_json);
		return;
	}
	if (session->found_count > 1)
		printf("\n----------------------------------------\n\n");
	print_entry(finding);
}

/* ---- recognising ---- */

/* The values of "name=value name=value ..." */
static void take_fields(struct finding *finding, const char *at)
{
	while (*at && finding->value_count < VALUES_MAX) {
		size_t word, name;
		at += strspn(at, " \t\r");
		word = strcspn(at, " \t\r");
		name = strcspn(at, "= \t\r");
		if (name > 0 && name < word)
			finding->values[finding->value_count++] =
			        (struct cli_value){ at, name, at + name + 1, word - name - 1 };
		at += word;
	}
}

/* Explains each reason of a violation's line. Returns how many are known. */
static size_t explain_violation(struct session *session, const char *line)
{
	const char *start = strstr(line, VIOLATION_PREFIX);
	const char *reason = start ? strstr(start, REASON_KEY) : NULL;
	struct finding finding = { NULL, line, { { NULL, 0, NULL, 0 } }, 0 };
	size_t known = 0;

	if (!reason)
		return 0;
	take_fields(&finding, start + strlen(VIOLATION_PREFIX));
	reason += strlen(REASON_KEY);
	for (;;) {
		size_t bytes = strcspn(reason, "+ \t\r");
		char slug[64];
		snprintf(slug, sizeof(slug), "violation-%.*s", (int)(bytes < 50 ? bytes : 50),
		        reason);
		for (char *c = slug; *c; c++)
			*c = *c == '_' ? '-' : *c;
		finding.entry = kvc_catalog_find(slug);
		if (finding.entry) {
			report(session, &finding);
			known++;
		}
		if (reason[bytes] != '+')
			return known;
		reason += bytes + 1;
	}
}

/* The entry whose slug stands in brackets: how the command ends its messages. */
static const kvc_catalog_entry *entry_in_brackets(const char *line)
{
	const kvc_catalog_entry *found = NULL;

	for (const char *at = strchr(line, '['); at && !found; at = strchr(at + 1, '[')) {
		char slug[128];
		size_t bytes = strcspn(at + 1, "]");
		if (at[1 + bytes] != ']' || bytes >= sizeof(slug))
			continue;
		memcpy(slug, at + 1, bytes);
		slug[bytes] = '\0';
		found = kvc_catalog_find(slug);
	}
	return found;
}

static size_t explain_line(struct session *session, const char *line)
{
	size_t starts[VALUES_MAX], lengths[VALUES_MAX], count;
	struct finding finding = { NULL, line, { { NULL, 0, NULL, 0 } }, 0 };
	const kvc_catalog_entry *named;

	if (explain_violation(session, line))
		return 1;
	named = kvc_catalog_find(line);
	if (!named)
		named = entry_in_brackets(line);
	finding.entry = kvc_catalog_match(line, starts, lengths, VALUES_MAX, &count);
	if (finding.entry && (!named || named == finding.entry)) {
		for (size_t i = 0; i < count && i < VALUES_MAX; i++) {
			struct cli_value *value = &finding.values[finding.value_count];
			if (!cli_placeholder(value, finding.entry->message, i))
				break;
			value->text = line + starts[i];
			value->text_bytes = lengths[i];
			finding.value_count++;
		}
	} else {
		finding.entry = named;
	}
	if (finding.entry)
		report(session, &finding);
	return finding.entry != NULL;
}

/* ---- a miss ---- */

/* How many words of at least four letters the two texts share. */
static size_t shared_words(const char *text, const char *other)
{
	size_t shared = 0;

	while (*text) {
		char word[48];
		size_t bytes = 0;
		while (*text && !isalnum((unsigned char)*text) && *text != '_')
			text++;
		while (text[bytes] && (isalnum((unsigned char)text[bytes]) || text[bytes] == '_'))
			bytes++;
		if (bytes >= 4 && bytes < sizeof(word)) {
			memcpy(word, text, bytes);
			word[bytes] = '\0';
			shared += strcasestr(other, word) != NULL;
		}
		text += bytes;
	}
	return shared;
}

/* By spelling for what looks like a slug, by shared words for what looks like a message; NULL if it
 * has neither with any entry. */
static const char *nearest_slug(const char *text)
{
	const char *best = NULL;
	long best_score = 0;

	for (size_t i = 0; i < kvc_catalog_count(); i++) {
		const kvc_catalog_entry *entry = kvc_catalog_at(i);
		size_t distance = cli_distance(text, entry->slug, 100);
		long score = (long)(shared_words(text, entry->slug) +
		                    shared_words(text, entry->message));
		bool is_near = score > 0;
		if (!strchr(text, ' ')) {
			is_near = is_near || distance <= cli_near(text);
			score = 6 * score - (long)distance;
		}
		if (is_near && (!best || score > best_score)) {
			best = entry->slug;
			best_score = score;
		}
	}
	return best;
}

static int fail_no_match(const char *text)
{
	char shown[100], nearest[128];

	snprintf(shown, sizeof(shown), "%s", text);
	if (strlen(text) >= sizeof(shown))
		memcpy(shown + sizeof(shown) - 4, "...", 4);
	cli_suggest_name(nearest, sizeof(nearest), nearest_slug(text));
	return cli_fail("cli-explain-no-match", "text", shown, "nearest", nearest, NULL);
}

/* ---- the command ---- */

static int entry_mentions(const kvc_catalog_entry *entry, const char *word)
{
	int found = strcasestr(entry->slug, word) || strcasestr(entry->message, word) ||
	            strcasestr(entry->documentation, word);

	for (const char *const *tag = entry->tags; *tag && !found; tag++)
		found = strcasestr(*tag, word) != NULL;
	return found;
}

static int list_entries(const struct options *options, const char *word)
{
	size_t shown = 0;

	for (size_t i = 0; i < kvc_catalog_count(); i++) {
		const kvc_catalog_entry *entry = kvc_catalog_at(i);
		if (!entry_mentions(entry, word))
			continue;
		shown++;
		if (options->json)
			printf("%s\n", entry->record_json);
		else
			printf("%-46s %s\n", entry->slug,
			        entry->status != KVC_OK ? kvc_status_name(entry->status)
			                                : entry->kind);
	}
	return shown > 0 ? CLI_GOOD : fail_no_match(word);
}

/* The arguments as one text: a message that was pasted without quotes comes in pieces. */
static char *joined(int count, char **words)
{
	size_t bytes = 1;
	char *text, *at;

	for (int i = 0; i < count; i++)
		bytes += strlen(words[i]) + 1;
	at = text = malloc(bytes);
	if (!text)
		return NULL;
	for (int i = 0; i < count; i++)
		at += sprintf(at, "%s%s", i > 0 ? " " : "", words[i]);
	return text;
}

static int explain_text(struct session *session, char *text)
{
	char *rest = NULL;

	for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		size_t end;
		line += strspn(line, " \t\r");
		for (end = strlen(line); end > 0 && isspace((unsigned char)line[end - 1]); end--)
			line[end - 1] = '\0';
		explain_line(session, line);
	}
	return session->found_count > 0 ? CLI_GOOD : CLI_CANNOT;
}

static int is_blank(const char *text)
{
	return text[strspn(text, " \t\r\n")] == '\0';
}

static int explain_stdin(struct session *session)
{
	char *line = NULL;
	char first[FIRST_LINE_BYTES] = ""; /* first line with text, to show if nothing fits */
	size_t capacity = 0;

	errno = 0;
	while (getline(&line, &capacity, stdin) >= 0) {
		if (!first[0] && !is_blank(line))
			snprintf(first, sizeof(first), "%.*s", (int)strcspn(line, "\r\n"), line);
		explain_text(session, line);
	}
	free(line);
	if (ferror(stdin) || errno == ENOMEM)
		return cli_fail("cli-input-unreadable", "path", "standard input", "reason",
		        strerror(errno), NULL);
	if (session->found_count > 0)
		return CLI_GOOD;
	return first[0] ? fail_no_match(first) : cli_fail("cli-explain-nothing-given", NULL);
}

static int fail_no_memory(void)
{
	return cli_fail(
	        "cli-input-unreadable", "path", "the argument", "reason", strerror(ENOMEM), NULL);
}

static int explain_words(struct session *session, int count, char **words)
{
	char *text, *copy;
	int code;

	if (count == 0 || (count == 1 && is_blank(words[0])))
		return cli_fail("cli-explain-nothing-given", NULL);
	if (count == 1 && strcmp(words[0], "-") == 0)
		return explain_stdin(session);
	text = joined(count, words);
	copy = joined(count, words);
	if (!text || !copy)
		code = fail_no_memory();
	else if ((code = explain_text(session, copy)) != CLI_GOOD)
		code = fail_no_match(text);
	free(text);
	free(copy);
	return code;
}

static int read_options(struct options *out, int argc, char **argv)
{
	const char *value;
	int64_t width;
	int option;

	while ((option = cli_next_option(&manual, argc, argv, &value)) >= 0) {
		switch (option) {
		case 'j':
			out->json = 1;
			break;
		case 'l':
			out->list = 1;
			break;
		case 'w':
			if (cli_read_int(&width, "--width", value, 40, 1000))
				return CLI_CANNOT;
			cli_set_columns((int)width);
			break;
		default:
			cli_print_manual(&manual);
			return -1;
		}
	}
	return option == CLI_BAD_OPTION ? CLI_CANNOT : CLI_GOOD;
}

int cli_explain(int argc, char **argv)
{
	struct session session = { { 0, 0 }, NULL, 0 };
	int code = read_options(&session.options, argc, argv);

	if (code != CLI_GOOD)
		return code < 0 ? CLI_GOOD : code; /* below 0: the help was printed */
	if (session.options.list)
		return list_entries(&session.options, optind < argc ? argv[optind] : "");
	session.seen = calloc(kvc_catalog_count(), 1);
	if (!session.seen)
		return fail_no_memory();
	code = explain_words(&session, argc - optind, argv + optind);
	free(session.seen);
	return code;
}
