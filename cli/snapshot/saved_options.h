/*
 * Options that info, check, stamp and diff share, and how they say that a file cannot be read.
 *
 *	static const struct cli_manual manual = { "info", ..., own_options, saved_option_rows, ... };
 *	struct saved_settings settings = SAVED_SETTINGS;
 *	while ((option = cli_next_option(&manual, argc, argv, &value)) >= 0)
 *		if (option == OWN) ...
 *		else if (saved_option(&settings, option, value)) return CLI_CANNOT;
 *	...
 *	saved_settings_free(&settings);
 */
#ifndef KVCANARY_SNAPSHOT_SAVED_OPTIONS_H
#define KVCANARY_SNAPSHOT_SAVED_OPTIONS_H

#include "cli.h"
#include "snapshot/cache.h"
#include "snapshot/rope_given.h"

#include <jansson.h>

/* Options that some of them have, in their own tables; saved_option() takes them all the same. */
enum { SAVED_OPTION_ROPE = 500, SAVED_OPTION_ROPE_FROM };
/* Ids of a command's own options begin here. */
enum { SAVED_OPTION_OWN = 512 };

struct saved_settings {
	struct saved_options saved; /* for saved_open() */
	bool json;
	bool help;    /* --help: print the manual and be done */
	int64_t jobs; /* threads; 0: one per CPU */
	int64_t *tokens;
	bool has_rope; /* --rope or --rope-from */
	struct rope_given rope;
};
#define SAVED_SETTINGS ((struct saved_settings){ .jobs = 0 })

/* --as, --heads, --layout, --manifest, --tokens, --jobs, --json, --help; for cli_manual.shared. */
extern const struct cli_option saved_option_rows[];

/* Takes one of them. 0, or CLI_CANNOT with the error printed. */
int saved_option(struct saved_settings *settings, int option, const char *value);
void saved_settings_free(struct saved_settings *settings);

/* Any bytes as UTF-8, to be freed: in a text that is none, each byte beyond ASCII becomes U+FFFD. NULL if
 * memory is short. */
char *saved_utf8(const char *text);
/* The same as a JSON string. */
json_t *saved_json_text(const char *text);

/* {"slug", "kind", "field", "offset", "message"}; NULL if memory is short. */
json_t *saved_error_object(const struct saved_error *error);

/* Prints *error: a line and its hint on standard error; with json an object on standard output as
 * well, {"file", "error": {...}}. Returns CLI_CANNOT. */
int saved_print_error(const struct saved_error *error, const char *path, bool json);

#endif
