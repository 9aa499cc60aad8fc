/* JSON as commands print it. */
#ifndef KVCANARY_JSON_LINE_H
#define KVCANARY_JSON_LINE_H

#include <jansson.h>
#include <stdio.h>

/* Writes an object as 'flags' of json_dumpf() say, ends the line, and releases the object. 0, or -1 if that
 * failed or there is no object (NULL: no memory). */
static inline int cli_write_json(FILE *out, json_t *object, size_t flags)
{
	int failed = json_dumpf(object, out, flags);

	json_decref(object);
	return failed || fputc('\n', out) == EOF ? -1 : 0;
}

#endif
