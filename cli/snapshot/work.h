/*
 * Work over many independent items (layers of a file, files of a fleet) on a few threads.
 */
#ifndef KVCANARY_SNAPSHOT_WORK_H
#define KVCANARY_SNAPSHOT_WORK_H

#include <stdbool.h>
#include <stdint.h>

#define WORK_THREADS_MAX 64

/* Does one item. 'thread' is 0 .. threads - 1: the index of scratch memory that is this thread's
 * alone. Returns false to stop: items that have not begun are then left out. */
typedef bool (*work_item)(void *context, int64_t item, int thread);

/* Threads to use when --jobs is not given: the processors this process may run on, at most 16. */
int work_default_threads(void);

/* For commands that split their own work: the library's threads would only get in its way. To be
 * called before any work. */
void work_keep_library_single(void);

/*
 * Calls work(context, i, thread) for i = 0 .. count - 1, in that order as far as they begin, on up
 * to 'threads' threads, of which the caller's is one (so it also works where none can be started).
 * Returns when all are done; false if one returned false. Results belong into an array by item: so
 * that they are the same however many threads there are.
 */
bool work_run(int64_t count, int threads, work_item work, void *context);

/*
 * Items that consist of parts (tensors of blocks of rows), so that one large item also uses all
 * threads. Parts of an item are done on any threads in any order; its end follows the last of them.
 * 'slot' is 0 .. at_once - 1: the index of memory that is this item's alone from its begin to its
 * end. Each returns false to stop.
 */
struct work_in_parts {
	int64_t count;
	int64_t (*part_count)(void *context, int64_t item); /* at least 1 */
	int at_once; /* items in hand, at most WORK_THREADS_MAX */
	bool (*begin)(void *context, int64_t item, int slot); /* NULL: nothing to do */
	bool (*part)(void *context, int64_t item, int slot, int64_t part, int thread);
	bool (*end)(void *context, int64_t item, int slot, int thread);
	void *context;
};

/* Items begin in order, as do the parts of one. Returns when all are done; false if one returned
 * false (an item that has begun may then never end). */
bool work_run_in_parts(const struct work_in_parts *work, int threads);

#endif
