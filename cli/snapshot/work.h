/*
 * Work over many independent items (layers of a file, files of a fleet) on a few threads.
 */
#ifndef KVCANARY_SNAPSHOT_WORK_H
#define KVCANARY_SNAPSHOT_WORK_H

#include <stdbool.h>
#include <stdint.h>

/* Does one item. 'thread' is 0 .. threads - 1: the index of scratch memory that is this thread's
 * alone. Returns false to stop: items that have not begun are then left out. */
typedef bool (*work_item)(void *context, int64_t item, int thread);

/* Threads to use when --jobs is not given: the processors this process may run on, at most 16. */
int work_default_threads(void);

/*
 * Calls work(context, i, thread) for i = 0 .. count - 1, in that order as far as they begin, on up
 * to 'threads' threads, of which the caller's is one (so it also works where none can be started).
 * Returns when all are done; false if one returned false. Results belong into an array by item: so
 * that they are the same however many threads there are.
 */
bool work_run(int64_t count, int threads, work_item work, void *context);

#endif
