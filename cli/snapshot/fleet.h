/*
 * Many saved caches: which files they are, and what an earlier run already said about them.
 */
#ifndef KVCANARY_SNAPSHOT_FLEET_H
#define KVCANARY_SNAPSHOT_FLEET_H

#include "snapshot/cache.h"

#include <jansson.h>
#include <stdio.h>

struct fleet {
	char **paths;
	int64_t count;
	int64_t capacity;
	bool expanded; /* a directory or a list was given: there may be any number of files */
};

/*
 * Adds a path. A directory that a reader takes for one cache is one; of any other directory all
 * files in it and below, sorted by name, without hidden ones and without stamps that have a stamp's
 * name (SIDE_SUFFIX); links to directories are not followed. What cannot be read is in the list, so that
 * whoever opens it says so. 0, or CLI_CANNOT with the error
 * printed (memory, or a directory that cannot be read).
 */
int fleet_add(struct fleet *fleet, const char *path, const struct saved_options *options);
/* Adds the lines of a file, "-" for standard input. */
int fleet_add_list(struct fleet *fleet, const char *path, const struct saved_options *options);
/* The paths of a command line, then those of the list if there is one; as fleet_add(). */
int fleet_gather(struct fleet *fleet, int count, char **paths, const char *list_path,
        const struct saved_options *options);

/* CLI_GOOD; with no file at all CLI_CANNOT, and why is printed. 'command': as people type it. */
int fleet_refuse_empty(const struct fleet *fleet, const char *command);

/* Drops a file from the list, under whatever name it is there: a stamp or a log beside the caches. */
void fleet_leave_out(struct fleet *fleet, const char *path);
void fleet_free(struct fleet *fleet);

/*
 * A run over all files, some of them side by side.
 *
 *	job            does one file, prints to 'out', and returns an exit code; any thread
 *	failed_word    what a file of CLI_CANNOT is, for the line of progress: "not checked"
 *	torn           what was printed before ends within a line: begin with a new one
 */
struct fleet_run {
	const struct fleet *fleet;
	int jobs; /* at a time; 0: one per CPU */
	int (*job)(void *context, const char *path, int threads, FILE *out);
	void *context;
	const char *failed_word;
	bool torn;
	int64_t damaged, failed; /* result: files of CLI_DAMAGE and of CLI_CANNOT */
};

/*
 * What the files print comes out in the order in which they were given, so that the output does not
 * depend on jobs. Returns the exit code of all: CLI_DAMAGE if any is damaged, else CLI_CANNOT if any
 * failed; CLI_CANNOT with the error printed if memory is short, and unprinted if nothing more can be
 * printed.
 */
int fleet_run(struct fleet_run *run);

/* Size and time of last change, as logs have them; of a directory those of all files in it. 0 and -1
 * if there is no such file. */
struct fleet_state {
	int64_t bytes;
	double modified; /* seconds since 1970 */
};
struct fleet_state fleet_state_of(const char *path);

/* What --resume LOG knows: by path the lines of an earlier run. */
struct fleet_log;

/* 0 and *out, or CLI_CANNOT with the error printed. A log that is not there yet is an empty one; lines
 * that are none of ours, as the last one of an interrupted run, are passed over. */
int fleet_log_open(struct fleet_log **out, const char *path);
void fleet_log_close(struct fleet_log *log); /* NULL is fine */
/* The exit code that the log has for this very file (same size and time); -1: look at it again. */
int fleet_log_find(const struct fleet_log *log, const char *path);
/* Whether the log ends within a line: what is appended must begin a new one. */
bool fleet_log_is_torn(const struct fleet_log *log);

#endif
