/*
 * What the commands of kvcanary share: exit codes, errors with a catalogue slug, text for people.
 *
 * A new command: a function like cli_explain() in a file of its own, and a row in main.c.
 */
#ifndef KVCANARY_CLI_H
#define KVCANARY_CLI_H

#include "kvcanary.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Exit codes of every command. */
enum {
	CLI_GOOD = 0,
	CLI_DAMAGE = 1, /* something was checked and is wrong */
	CLI_CANNOT = 2  /* could not check: bad usage, unreadable file */
};

struct cli_command {
	const char *name;
	const char *summary;               /* one line for kvcanary --help */
	int (*run)(int argc, char **argv); /* argv[0] is the name; returns an exit code */
};

/* ---- what a command takes: one description for getopt, --help, man page and completions ---- */

/* An option. A row without a name is a heading of --help; one without anything ends the list. */
struct cli_option {
	int id; /* what cli_next_option() returns: CLI_OPTION_HELP, 'x' of a short form, or 256 and on */
	const char *name; /* without dashes */
	const char *
	        argument; /* "N", "FILE", "on|off" (the shell then offers both); NULL: takes none */
	const char *help; /* one sentence without a full stop; lines break where it has \n */
};
#define CLI_OPTION_HELP 'h'
#define CLI_OPTIONS_END                                                                            \
	{                                                                                          \
		0, NULL, NULL, NULL                                                                \
	}

struct cli_manual {
	const char *name;  /* "info" */
	const char *usage; /* "FILE|DIR... [OPTION]..."; more ways of calling after \n */
	const char *text;  /* what it does; lines as they are to be printed */
	const struct cli_option *options;
	const struct cli_option *shared; /* options that several commands have, or NULL */
	const char *exit_codes;          /* lines "0 sound", "1 damaged", ... */
	const char *examples;            /* a line each */
};

/* Prints what --help prints. */
void cli_print_manual(const struct cli_manual *manual);

enum { CLI_NO_OPTION = -1, CLI_BAD_OPTION = -2 };

/*
 * The id of the next option, its value in *value (NULL if it takes none). CLI_NO_OPTION at the end,
 * optind then is the first argument; CLI_BAD_OPTION if it is unknown or lacks its value, with the
 * error printed. The table of 'manual' must stay where it is. Like getopt_long(), one run at a time.
 */
int cli_next_option(const struct cli_manual *manual, int argc, char **argv, const char **value);

/* For commands that take --json and --help only: their options, and all of the loop over them. True to go
 * on; else *code is what to return, the manual or the error printed. */
extern const struct cli_option cli_json_options[];
bool cli_read_json_options(
        const struct cli_manual *manual, int argc, char **argv, bool *json, int *code);

/* Each in its own file. */
int cli_check(int argc, char **argv);
int cli_cpu(int argc, char **argv);
int cli_cuda(int argc, char **argv);
int cli_diff(int argc, char **argv);
int cli_explain(int argc, char **argv);
int cli_info(int argc, char **argv);
int cli_replay(int argc, char **argv);
int cli_stamp(int argc, char **argv);

/* ---- errors; all of these print to stderr and return CLI_CANNOT ---- */

/*
 * "kvcanary: <message> [<slug>]" and the hint. After the slug of a kind="cli" entry come pairs of
 * strings, placeholder name and value, and then NULL:
 *
 *	return cli_fail("cli-input-unreadable", "path", path, "reason", strerror(errno), NULL);
 */
int cli_fail(const char *slug, ...) __attribute__((sentinel));

/* The same with the message made already. */
int cli_fail_text(const char *message, const char *slug);

/* The same for kvc_last_error(), after a call of the library failed. */
int cli_fail_library(void);

/* Writes out what was printed so far; false if that failed, which main() will say with the reason of the
 * first time. */
bool cli_flush(void);
/* That reason, an errno; 0: all was written. */
int cli_output_error(void);

/* CLI_GOOD, or cli-output-is-input printed: 'output' is the file 'input' under whatever name, and
 * writing it would destroy what is read. Files that do not exist are not the same. */
int cli_refuse_overwrite(const char *output, const char *input);
/* Are both paths there, and one file? */
int cli_same_file(const char *a, const char *b);

/* Reads a whole number for an option; 0 if good, else CLI_CANNOT with the error printed. */
int cli_read_int(int64_t *out, const char *option, const char *value, int64_t least, int64_t most);

/* ---- text ---- */

/* Columns to wrap at: those of the terminal, between 40 and 100; 80 if stdout is none. */
int cli_columns(void);

/* From now on wrap at this many columns. */
void cli_set_columns(int columns);

/* Print text wrapped at spaces, every line indented; the first one starts after 'first'. */
void cli_wrap(FILE *file, int indent, const char *first, const char *text);

/* Print text (code) as it is, every line indented. */
void cli_indented(FILE *file, int indent, const char *text);

/* Prints text out of a file or of the command line: control characters become '?', so that a name can
 * neither break a line in two nor speak to the terminal. */
void cli_print_foreign(FILE *file, const char *text);

/* The edit distance of two words, at most 'limit'. */
size_t cli_distance(const char *a, const char *b, size_t limit);

/* How far a word may be from a name that is suggested for it: a mistake in four letters, and one. */
size_t cli_near(const char *word);

/* What a hint says of the name that is meant instead of 'word': "; the nearest is NAME", or "" if none
 * of them is near. name_at(i) is NULL past the last one. Returns 'out'. */
char *cli_suggest(char *out, size_t out_bytes, const char *word, const char *(*name_at)(size_t));
/* The same of a name that is known. */
char *cli_suggest_name(char *out, size_t out_bytes, const char *name);

/* ---- templates of the catalogue ---- */

/* What a placeholder stands for. */
struct cli_value {
	const char *name; /* name_bytes long, need not end there */
	size_t name_bytes;
	const char *text;
	size_t text_bytes;
};

/* Writes a template with the values that are known; other placeholders stay as they are. Returns
 * 'out', which has out_bytes; longer text is cut. Control characters become '?'. */
char *cli_fill(char *out, size_t out_bytes, const char *template, const struct cli_value *values,
        size_t count);

/* The name of placeholder 'index' of a template; 0 if there are not so many. */
int cli_placeholder(struct cli_value *out, const char *template, size_t index);

#endif
