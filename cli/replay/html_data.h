/* A replay's result as the JSON object that the page draws itself from. */
#ifndef KVCANARY_CLI_REPLAY_HTML_DATA_H
#define KVCANARY_CLI_REPLAY_HTML_DATA_H

#include "replay/result.h"

#include <jansson.h>

/* The object that report.html's script reads, or NULL if memory ran out. Free it by json_decref(). */
json_t *replay_page_data(const struct replay_result *result);

#endif
