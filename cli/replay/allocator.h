/* Pages of slots with reference counts. A page is free when nobody holds it. */
#ifndef KVCANARY_CLI_REPLAY_ALLOCATOR_H
#define KVCANARY_CLI_REPLAY_ALLOCATOR_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Page 0 is reserved: it holds the dummy slot of padding tokens and is never handed out.
 *
 *   refs        [page_count] holders of each page
 *   free_pages  stack of free pages, the last one is handed out next
 */
struct allocator {
	int32_t page_count;
	int32_t *refs;
	int32_t *free_pages;
	int32_t free_count;
	int32_t free_capacity;
};

/* Returns false if memory is short; then *out needs no close. */
bool allocator_open(struct allocator *out, int32_t page_count);
void allocator_close(struct allocator *allocator);

/* Hand a page out, held once; -1 if none is free. */
int32_t allocator_take(struct allocator *allocator);

/* One more holder of a page. */
void allocator_hold(struct allocator *allocator, int32_t page);

/* One holder less; the last one frees the page. A page that nobody holds is left alone. */
void allocator_release(struct allocator *allocator, int32_t page);

#endif
