/*
 * Pages that a command writes: an HTML file of this tree that the build embeds (cmake/embed.cmake)
 * with page.css and page.js inside, and one JSON object from which its script draws. Nothing is
 * loaded from anywhere.
 */
#ifndef KVCANARY_CLI_PAGE_H
#define KVCANARY_CLI_PAGE_H

#include <jansson.h>
#include <stdio.h>

/* An embedded page: one place in it reads "KVCANARY_DATA", with the quotes, and takes the object. */
struct page {
	const unsigned char *bytes;
	size_t count;
};

/* Writes the page with 'data' in it, which may be NULL for lack of memory. 0, or -1 with errno. */
int page_write(FILE *out, struct page page, const json_t *data);

/*
 * Writes it to a file: a temporary one that is renamed, so that a page is whole or not there; a
 * device or pipe is written to. CLI_GOOD, or CLI_CANNOT with the error printed.
 */
int page_save(const char *path, struct page page, const json_t *data);

/* Whether a file can be written there; before a long run. CLI_GOOD, or CLI_CANNOT as above. */
int page_check(const char *path);

#endif
