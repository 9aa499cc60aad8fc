/* From injections and what was found of them to the fault table and the exit code. */
#ifndef KVCANARY_CLI_REPLAY_OUTCOME_H
#define KVCANARY_CLI_REPLAY_OUTCOME_H

#include "replay/faults.h"
#include "replay/options.h"
#include "replay/result.h"
#include "replay/taint.h"

/* Fill the fault rows, the lists of detections and the exit code. */
void outcome_fill(
        struct replay_result *out, const struct replay_options *options, const struct taint *taint);

/* The table of all faults, for --list-faults. */
void outcome_list_faults(FILE *out);

#endif
