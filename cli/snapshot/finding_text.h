/* Findings for people and for programs. */
#ifndef KVCANARY_SNAPSHOT_FINDING_TEXT_H
#define KVCANARY_SNAPSHOT_FINDING_TEXT_H

#include "snapshot/finding.h"

#include <jansson.h>
#include <stdio.h>

/* The catalogue's entry for a kind of finding, as 'kvcanary explain' takes it; NULL if it needs none. */
const char *finding_slug(const char *kind);

/* "note", "doubt" or "damage". */
const char *finding_weight_name(enum finding_weight weight);

/* A table: kind, place, what; at most 'most' lines, and how many more there are. Then what to do. */
void findings_print(FILE *out, struct findings *findings, size_t most);

/* One finding: fields that do not apply are left out. */
json_t *finding_object(const struct finding *finding);
/* {"zero_row": 3, ...}: all that were counted. */
json_t *findings_counts(struct findings *findings);
/* The first 'most' as an array. */
json_t *findings_array(struct findings *findings, size_t most);

#endif
