/* Threads that take the next item from a counter; work.h says what each function promises. */
#include "snapshot/work.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#define THREADS_MAX 64
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
	struct worker workers[THREADS_MAX];
	int started = 1;

	if (threads > THREADS_MAX)
		threads = THREADS_MAX;
	if (threads > count)
		threads = (int)count;
	for (int i = 0; i < THREADS_MAX; i++)
		workers[i] = (struct worker){ &crew, i, 0 };
	while (started < threads &&
	        pthread_create(&workers[started].id, NULL, take_items, &workers[started]) == 0)
		started++;
	take_items(&workers[0]);
	while (--started > 0)
		pthread_join(workers[started].id, NULL);
	return !atomic_load(&crew.stopped);
}
