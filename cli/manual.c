/* A command's description as --help, and as the tables that getopt_long() wants. */
#include "cli.h"

#include <getopt.h>
#include <string.h>

#define OPTIONS_MAX 64
#define NAME_COLUMNS 26

static bool is_end(const struct cli_option *option)
{
	return !option->name && !option->help;
}

/* ---- --help ---- */

/* Lines of 'text', the first after 'first', the others below it. */
static void print_lines(const char *first, const char *text)
{
	int indent = (int)strlen(first);

	while (*text) {
		int line = (int)strcspn(text, "\n");
		printf("%*s%.*s\n", indent, first, line, text);
		first = "";
		text += line;
		text += *text == '\n';
	}
}

static void print_option(const struct cli_option *option)
{
	char left[64];

	if (!option->name) {
		printf("\n%s:\n", option->help);
		return;
	}
	snprintf(left, sizeof(left), "  --%s%s%s", option->name, option->argument ? " " : "",
	        option->argument ? option->argument : "");
	snprintf(left + strlen(left), sizeof(left) - strlen(left), "%*s ",
	        (int)(NAME_COLUMNS + 2 > strlen(left) ? NAME_COLUMNS + 2 - strlen(left) : 1), "");
	print_lines(left, option->help);
}

static void print_options(const struct cli_option *options)
{
	for (; options && !is_end(options); options++)
		print_option(options);
}

void cli_print_manual(const struct cli_manual *manual)
{
	char left[64];

	snprintf(left, sizeof(left), "usage: kvcanary %s ", manual->name);
	print_lines(left, manual->usage);
	printf("\n%s\n", manual->text);
	if (manual->options && manual->options->name)
		printf("\noptions:\n");
	print_options(manual->options);
	print_options(manual->shared);
	printf("\n");
	print_lines("exit code: ", manual->exit_codes);
	print_lines(
	        strchr(manual->examples, '\n') ? "examples:  " : "example:   ", manual->examples);
}

/* ---- getopt ---- */

static size_t add_options(
        struct option *out, char *letters, size_t count, const struct cli_option *options)
{
	for (; options && !is_end(options) && count + 1 < OPTIONS_MAX; options++) {
		if (!options->name)
			continue;
		out[count++] = (struct option){ options->name,
			options->argument ? required_argument : no_argument, NULL, options->id };
		if (options->id > 255)
			continue;
		letters[strlen(letters)] = (char)options->id;
		if (options->argument)
			letters[strlen(letters)] = ':';
	}
	return count;
}

/* Says which option is unknown ('?'), or lacks its value (':'). */
static void fail_option(const char *name, char **argv, int result)
{
	char letter[3] = { '-', (char)optopt, '\0' }, command[64];
	int is_short = optopt != 0 && argv[optind - 1][0] == '-' && argv[optind - 1][1] != '-';
	const char *option = is_short ? letter : argv[optind - 1];

	snprintf(command, sizeof(command), "kvcanary %s", name);
	cli_fail(result == ':' ? "cli-option-needs-value" : "cli-unknown-option", "option", option,
	        "command", command, NULL);
}

int cli_next_option(const struct cli_manual *manual, int argc, char **argv, const char **value)
{
	struct option known[OPTIONS_MAX] = { { NULL, 0, NULL, 0 } };
	char letters[2 * OPTIONS_MAX + 2] = ":";
	size_t count = add_options(known, letters, 0, manual->options);
	int option;

	add_options(known, letters, count, manual->shared);
	opterr = 0;
	option = getopt_long(argc, argv, letters, known, NULL);
	*value = optarg;
	if (option != '?' && option != ':')
		return option < 0 ? CLI_NO_OPTION : option;
	fail_option(manual->name, argv, option);
	return CLI_BAD_OPTION;
}

const struct cli_option cli_json_options[] = {
	{ 'j', "json", NULL, "print one JSON object" },
	{ CLI_OPTION_HELP, "help", NULL, "this text" },
	CLI_OPTIONS_END,
};

bool cli_read_json_options(
        const struct cli_manual *manual, int argc, char **argv, bool *json, int *code)
{
	const char *value;
	int option;

	*json = false;
	*code = CLI_GOOD;
	while ((option = cli_next_option(manual, argc, argv, &value)) >= 0) {
		if (option == CLI_OPTION_HELP) {
			cli_print_manual(manual);
			return false;
		}
		*json = true;
	}
	if (option == CLI_BAD_OPTION)
		*code = CLI_CANNOT;
	return option != CLI_BAD_OPTION;
}
