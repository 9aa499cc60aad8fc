/*
 * What a replay found: everything that the table, the JSON object and the HTML page print. The
 * engine fills it; printing reads it and changes nothing. All memory belongs to the result and is
 * bounded whatever the length of the run: timeline and snapshots are thinned as they grow.
 */
#ifndef KVCANARY_CLI_REPLAY_RESULT_H
#define KVCANARY_CLI_REPLAY_RESULT_H

#include "kvcanary.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* One line of the options in force, for a person: "pool slots" -> "196,608". */
struct replay_setting {
	const char *name;
	char value[96];
};
#define REPLAY_SETTINGS_MAX 32

/*
 * One stretch of the timeline: 'step_count' consecutive steps beginning at 'first_step'. The first
 * block are states at the stretch's last step, the second are sums over the stretch.
 */
struct replay_stretch {
	int64_t first_step;
	int64_t step_count;

	int64_t running; /* requests that hold a row */
	int64_t waiting;
	int64_t slots_live;   /* held by a running request */
	int64_t slots_cached; /* held by the prefix tree alone */
	int64_t slots_free;

	int64_t prefill_tokens;
	int64_t decode_tokens;
	int64_t prefix_hit_tokens;
	int64_t slots_verified;
	int64_t injections;
	int64_t detections;
	int64_t violations;
	int64_t false_alarms;
	int64_t evictions;
	int64_t preemptions;
	int64_t aborts;
	int64_t restarts;
};
#define REPLAY_STRETCHES_MAX 1024 /* a power of two */

/*
 * One cell of a pool map: slots_per_cell consecutive slots, how many of them are in which state.
 * The counts add up to the slots of the cell. 'tainted' counts besides.
 *
 *   owner   the request that holds most of the live slots (its index in the trace), -1 = none
 */
struct replay_cell {
	int32_t live;
	int32_t cached;
	int32_t free;
	int32_t reserved;
	int32_t tainted;
	int32_t violations; /* found in these slots since the map before */
	int64_t owner;
};
#define REPLAY_CELLS_MAX 2048

/* The whole pool at the end of one step. */
struct replay_snapshot {
	int64_t step;
	struct replay_cell *cells; /* result.cell_count of them */
};
#define REPLAY_SNAPSHOTS_MAX 16

/* One row of the fault table. injected = detected + missed + expired. */
struct replay_fault_row {
	const char *name;    /* for --fault; static */
	const char *summary; /* what it does to the engine, one line; static */
	int64_t declared;    /* KVC_REASON_* bits that must see it, fixed before the run */
	bool check_on;       /* the check that can see it was on */
	const char *needs;   /* option that would have switched it on, "" if check_on; static */
	int64_t injected;
	int64_t detected;
	int64_t missed;
	int64_t seen_otherwise; /* of missed: only other bits were reported */
	int64_t expired;
	int64_t tainted_slots;
	int64_t reasons;         /* the most frequent set of bits among the detections, 0 = none */
	int64_t steps_to_detect; /* median, -1 = nothing detected */
	int64_t culprit_right;   /* -1 = this fault has no culprit */
	bool passed;             /* by the rule of the exit code; true if the check was off */
};
#define REPLAY_FAULTS_MAX 32

/* One injection that was detected. */
struct replay_detection {
	const char *fault; /* static */
	int64_t injected_step;
	int64_t detected_step;
	int64_t culprit_request; /* the true one, -1 = none */
	char layer_text[64];     /* what was hit: "layer 2 K bit 371", may be "" */
	kvc_finding finding;
};
#define REPLAY_SLOWEST_MAX 16
#define REPLAY_EXAMPLES_MAX 8

struct replay_result {
	const char *trace_path;
	const char *html_path; /* NULL = none */
	bool interrupted;      /* Ctrl-C: numbers are of the part that ran */
	bool failed;           /* the engine could not go on; the error has been printed */

	struct replay_setting settings[REPLAY_SETTINGS_MAX];
	int32_t setting_count;

	int64_t requests; /* that the replay took from the trace */
	int64_t requests_in_trace;
	int64_t requests_finished;
	int64_t steps;
	int64_t tokens_written;
	int64_t bytes_written;
	int64_t prefill_tokens;
	int64_t decode_tokens;
	int64_t evictions;
	int64_t preemptions;
	int64_t aborts;
	int64_t restarts; /* requests started anew after a violation */
	int64_t prefill_chunks;
	int64_t multi_chunk_requests;
	int64_t prefix_hit_tokens;
	int64_t pages_moved;
	int64_t sweeps;
	double seconds;
	double canary_seconds; /* inside kvc_guard_* calls; stamping is part of the write */
	double rope_seconds;
	double model_seconds; /* making K, V and q */

	const char *mode;        /* "off", "none", "partial", "all"; static */
	const char *fingerprint; /* "xxh3" or "splitmix"; static */
	uint64_t seed;
	int32_t threads;
	int32_t layers;
	int64_t slot_bytes;  /* K and V of all layers */
	int64_t k_row_bytes; /* K of one layer */
	kvc_guard_statistics statistics;
	int64_t violations;
	int64_t false_alarms;

	struct replay_fault_row faults[REPLAY_FAULTS_MAX]; /* those asked for */
	int32_t fault_count;

	struct replay_stretch *stretches;
	int32_t stretch_count;
	int64_t steps_per_stretch;

	struct replay_snapshot snapshots[REPLAY_SNAPSHOTS_MAX]; /* in order of steps */
	int32_t snapshot_count;
	int64_t pool_slots;
	int64_t page_slots;
	int64_t slots_per_cell; /* the last cell may have fewer */
	int32_t cell_count;

	struct replay_detection slowest[REPLAY_SLOWEST_MAX]; /* slowest first */
	int32_t slowest_count;
	struct replay_detection examples[REPLAY_EXAMPLES_MAX]; /* of different faults, in order */
	int32_t example_count;
	kvc_finding alarms[REPLAY_EXAMPLES_MAX]; /* the first findings on nothing tainted */
	int32_t alarm_count;
	int exit_code;
};

/* Room for reason bits as text, with its terminator. */
#define REPLAY_REASONS_BYTES 256

/* "verify_token+verify_position" for a set of bits, "none" for 0. Returns 'out'. */
const char *replay_reasons_text(char out[REPLAY_REASONS_BYTES], int64_t reasons);

/*
 * Write the page: timeline of steps with violations, pool maps, fault table, slowest detections,
 * options. Self-contained. Returns 0, or -1 if a write failed (errno says why); does not close.
 */
int replay_html_write(FILE *out, const struct replay_result *result);

/*
 * The same into the file at 'path', which keeps its former content until the page is whole. Returns
 * CLI_GOOD, or CLI_CANNOT with the error printed. replay_html_check() says before a long run
 * whether that will work, in the same way, and leaves nothing behind.
 */
int replay_html_save(const char *path, const struct replay_result *result);
int replay_html_check(const char *path);

/* Exactly the fields that scripts rely on, one JSON object. Returns as replay_html_write(). */
int replay_json_write(FILE *out, const struct replay_result *result);

/* The summary for a person. 'color' allows escape sequences. */
void replay_table_print(FILE *out, const struct replay_result *result, bool color);

#endif
