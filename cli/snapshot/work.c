/* Threads that take the next item from a counter; work.h says what each function promises. */
#include "snapshot/work.h"

#include "kvcanary.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#define DEFAULT_MAX 16

struct crew {
	work_item work;
	void *context;
	int64_t count;
	_Atomic int64_t next;
	atomic_bool stopped;
};

struct worker {
	struct crew *crew;
	int thread;
	pthread_t id;
};

int work_default_threads(void)
{
	cpu_set_t set;
	int count;

	if (sched_getaffinity(0, sizeof(set), &set) != 0)
		return 1;
	count = CPU_COUNT(&set);
	return count > DEFAULT_MAX ? DEFAULT_MAX : count;
}

void work_keep_library_single(void)
{
	/* One thread takes no memory, and results do not depend on their number. */
	kvc_status ignored = kvc_set_num_threads(1);

	(void)ignored;
}

static void *take_items(void *argument)
{
	struct worker *worker = argument;
	struct crew *crew = worker->crew;

	while (!atomic_load(&crew->stopped)) {
		int64_t item = atomic_fetch_add(&crew->next, 1);
		if (item >= crew->count)
			break;
		if (!crew->work(crew->context, item, worker->thread))
			atomic_store(&crew->stopped, true);
	}
	return NULL;
}

bool work_run(int64_t count, int threads, work_item work, void *context)
{
	struct crew crew = { work, context, count, 0, false };
	struct worker workers[WORK_THREADS_MAX];
	int started = 1;

	if (threads > WORK_THREADS_MAX)
		threads = WORK_THREADS_MAX;
	if (threads > count)
		threads = (int)count;
	for (int i = 0; i < WORK_THREADS_MAX; i++)
		workers[i] = (struct worker){ &crew, i, 0 };
	while (started < threads &&
	        pthread_create(&workers[started].id, NULL, take_items, &workers[started]) == 0)
		started++;
	take_items(&workers[0]);
	while (--started > 0)
		pthread_join(workers[started].id, NULL);
	return !atomic_load(&crew.stopped);
}

/* ---- items in parts ---- */

/* An item in hand. */
struct in_hand {
	int64_t item;
	int64_t left; /* parts that are not done; 0: the slot is free */
};

struct parts_crew {
	const struct work_in_parts *work;
	pthread_mutex_t lock;
	pthread_cond_t slot_is_free;
	struct in_hand slots[WORK_THREADS_MAX];
	/* The item whose parts are being given out. */
	int64_t next_item; /* the one after it */
	int slot;
	int64_t next_part, part_count;
	bool stopped;
};

static int free_slot(const struct parts_crew *crew)
{
	for (int i = 0; i < crew->work->at_once; i++)
		if (crew->slots[i].left == 0)
			return i;
	return -1;
}

/* With the lock held. A thread that waits here has no part, and all parts of the items in hand are
 * given out: so slots become free. */
static bool begin_next_item(struct parts_crew *crew)
{
	const struct work_in_parts *work = crew->work;
	int slot;

	while ((slot = free_slot(crew)) < 0 && !crew->stopped)
		pthread_cond_wait(&crew->slot_is_free, &crew->lock);
	if (crew->stopped || crew->next_part < crew->part_count || crew->next_item == work->count)
		return !crew->stopped; /* another thread was quicker */
	crew->slot = slot;
	crew->next_part = 0;
	crew->part_count = work->part_count(work->context, crew->next_item);
	crew->slots[slot] = (struct in_hand){ crew->next_item, crew->part_count };
	crew->next_item++;
	return !work->begin || work->begin(work->context, crew->next_item - 1, slot);
}

/* A part, with the lock held; false: there are no more. */
static bool next_part(struct parts_crew *crew, int *slot, int64_t *part)
{
	while (!crew->stopped && crew->next_part == crew->part_count &&
	        crew->next_item < crew->work->count)
		if (!begin_next_item(crew))
			crew->stopped = true;
	if (crew->stopped || crew->next_part == crew->part_count)
		return false;
	*slot = crew->slot;
	*part = crew->next_part++;
	return true;
}

/* Whether that was the last part of its item. The slot stays in use until the end is done, too. */
static bool part_is_done(struct parts_crew *crew, int slot, bool good)
{
	bool last;

	pthread_mutex_lock(&crew->lock);
	crew->stopped |= !good;
	last = crew->slots[slot].left == 1 && !crew->stopped;
	if (!last)
		crew->slots[slot].left--;
	pthread_mutex_unlock(&crew->lock);
	return last;
}

static bool take_parts(void *context, int64_t number, int thread)
{
	struct parts_crew *crew = context;
	const struct work_in_parts *work = crew->work;
	int64_t part;
	int slot;

	(void)number;
	pthread_mutex_lock(&crew->lock);
	while (next_part(crew, &slot, &part)) {
		int64_t item = crew->slots[slot].item;
		bool good = true;
		pthread_mutex_unlock(&crew->lock);
		if (part_is_done(crew, slot, work->part(work->context, item, slot, part, thread)))
			good = work->end(work->context, item, slot, thread);
		else
			slot = -1;
		pthread_mutex_lock(&crew->lock);
		crew->stopped |= !good;
		if (slot >= 0)
			crew->slots[slot].left = 0;
		pthread_cond_broadcast(&crew->slot_is_free);
	}
	pthread_mutex_unlock(&crew->lock);
	return true;
}

bool work_run_in_parts(const struct work_in_parts *work, int threads)
{
	struct parts_crew crew = { .work = work };

	pthread_mutex_init(&crew.lock, NULL);
	pthread_cond_init(&crew.slot_is_free, NULL);
	work_run(threads, threads, take_parts, &crew);
	pthread_cond_destroy(&crew.slot_is_free);
	pthread_mutex_destroy(&crew.lock);
	return !crew.stopped;
}
