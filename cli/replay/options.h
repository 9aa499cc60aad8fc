/* The options of kvcanary replay: one table of what there is, its limits and its help. */
#ifndef KVCANARY_CLI_REPLAY_OPTIONS_H
#define KVCANARY_CLI_REPLAY_OPTIONS_H

#include "replay/engine.h"
#include "replay/faults.h"
#include "replay/result.h"

struct replay_options {
	struct engine_config engine; /* request_count is settled when the trace is known */
	int64_t requests;            /* -1 = all */
	int64_t threads;             /* 0 = one per CPU */
	int64_t injections;          /* of each fault */
	const char *trace_path;
	const char *html_path;
	bool json;
	bool faults[FAULT_KINDS_MAX];
	int32_t fault_count;
};

/* What options_read() asks of the caller. */
enum options_answer { OPTIONS_RUN, OPTIONS_HELP, OPTIONS_LIST, OPTIONS_WRONG };

/* Read the command line; OPTIONS_WRONG: one error has been printed. */
enum options_answer options_read(struct replay_options *out, int argc, char **argv);

void options_help(void);

/* The options in force, for the summary and the page. */
void options_describe(struct replay_result *out, const struct replay_options *options);

/* "off", "none", "partial" or "all": what the guard looks at. */
const char *options_mode(const struct engine_config *config);

/* The option that would let a fault be seen, "" if what it needs is on. */
const char *options_missing(const struct engine_config *config, int32_t needs);

/* A whole number with commas. Returns 'out'. */
#define NUMBER_BYTES 32
const char *options_number(char out[NUMBER_BYTES], int64_t number);

#endif
