/* The kvcanary command: one table of commands, and what holds for all of them. */
#include "cli.h"

#include <fcntl.h>
#include <string.h>

static const struct cli_command commands[] = {
	{ "info", "say what a saved KV cache is", cli_info },
	{ "check", "look for damage in saved KV caches", cli_check },
	{ "stamp", "fingerprint saved KV caches, to name later what changed", cli_stamp },
	{ "diff", "say in what two saved KV caches differ", cli_diff },
	{ "replay", "run a serving trace through an engine, with faults to find", cli_replay },
	{ "explain", "say what an error or a violation means and what to do", cli_explain },
	{ "cpu", "list the CPU variants, and which kernels run here", cli_cpu },
	{ "cuda", "list the CUDA devices, and what the kernels were built for", cli_cuda },
};
#define COMMAND_COUNT (sizeof(commands) / sizeof(commands[0]))

static const struct cli_command *find_command(const char *name)
{
	for (size_t i = 0; i < COMMAND_COUNT; i++)
		if (strcmp(commands[i].name, name) == 0)
			return &commands[i];
	return NULL;
}

static const char *command_name(size_t index)
{
	return index < COMMAND_COUNT ? commands[index].name : NULL;
}

static int print_help(void)
{
	printf("kvcanary %s: keeps the KV cache of an LLM engine right\n\n"
	       "usage: kvcanary COMMAND [OPTION]... [ARGUMENT]...\n\ncommands:\n",
	        kvc_version());
	for (size_t i = 0; i < COMMAND_COUNT; i++)
		printf("  %-10s %s\n", commands[i].name, commands[i].summary);
	printf("  %-10s %s\n\n", "help", "the options of a command, with an example");
	printf("  --version  print the version\n"
	       "  --help     this text; after a command, its own\n\n"
	       "exit code: 0 all good, 1 damage found, 2 could not check\n"
	       "example:   kvcanary explain violation-verify-chain-hash\n");
	return CLI_GOOD;
}

static int run_named(const char *name, int argc, char **argv)
{
	const struct cli_command *command = find_command(name);
	char nearest[64];

	if (command)
		return command->run(argc, argv);
	if (name[0] == '-')
		return cli_fail("cli-unknown-option", "option", name, "command", "kvcanary", NULL);
	return cli_fail("cli-unknown-command", "command", name, "nearest",
	        cli_suggest(nearest, sizeof(nearest), name, command_name), NULL);
}

/* "kvcanary help CMD" is "kvcanary CMD --help". */
static int run_help(int argc, char **argv)
{
	char option[] = "--help";
	char *arguments[] = { argc > 1 ? argv[1] : NULL, option, NULL };

	return argc > 1 ? run_named(argv[1], 2, arguments) : print_help();
}

static int run(int argc, char **argv)
{
	if (argc < 2)
		return cli_fail("cli-no-command", NULL);
	if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
		return print_help();
	if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0) {
		printf("kvcanary %s\n", kvc_version());
		return CLI_GOOD;
	}
	if (strcmp(argv[1], "help") == 0)
		return run_help(argc - 1, argv + 1);
	return run_named(argv[1], argc - 1, argv + 1);
}

/* A closed standard stream would give its descriptor to the next file that is opened, and what is printed
 * would go into a stamp. On these reads and writes fail. */
static void keep_standard_descriptors(void)
{
	for (int descriptor = 0; descriptor <= 2; descriptor++)
		if (fcntl(descriptor, F_GETFD) < 0)
			open("/", O_PATH); /* takes the lowest that is free */
}

int main(int argc, char **argv)
{
	keep_standard_descriptors();
	int code = run(argc, argv);

	/* A full disk must not look like success. */
	if (!cli_flush())
		return cli_fail("cli-output-failed", "reason", strerror(cli_output_error()), NULL);
	return code;
}
