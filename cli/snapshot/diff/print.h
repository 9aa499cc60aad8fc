/* The result of kvcanary diff in its three forms. */
#ifndef KVCANARY_SNAPSHOT_DIFF_PRINT_H
#define KVCANARY_SNAPSHOT_DIFF_PRINT_H

#include "snapshot/diff/diff.h"

#include <jansson.h>
#include <stdio.h>

/* For people: verdict, the two files, drift by layer, what was found, what next. */
/* html_path: the report that was written, NULL for none. */
void diff_print_text(FILE *out, const struct diff_result *result, const char *html_path);

/* For programs: everything. -1 if it could not be written. */
int diff_print_json(FILE *out, const struct diff_result *result);

/* The same object, or NULL if memory is short. Free it by json_decref(). */
json_t *diff_object(const struct diff_result *result);

/* A self-contained page with the map; CLI_GOOD, or CLI_CANNOT with the error printed. */
int diff_save_html(const char *path, const struct diff_result *result);

/* Finding number i by layer, tensor, position; memory of the list is the caller's: free(). */
const struct diff_finding **diff_sorted(const struct diff_result *result);

/* "F16", "q8_0 (Hadamard)": of one side of a target. */
const char *diff_type_text(
        char *out, size_t bytes, const struct diff_target *target, int side, int32_t part);

/* The slug of the page that explains a verdict; NULL if it needs none. */
const char *diff_slug(const char *verdict);

#endif
