/*
 * The thread pool. One job at a time: whoever finds the pool busy does its work alone, which is
 * right for an engine that already calls us from many threads, and makes nesting harmless.
 *
 * A job lives in 'pool' under 'pool.lock', except for 'next', which threads take pieces from
 * without the lock. A worker joins a job under the lock (while it is open) and leaves under the
 * lock; the caller closes the job, then waits until everyone who joined has left. A worker that
 * wakes too late finds the job closed and never sees the caller's task.
 */
#include "base/threads.h"

#include "base/error.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>

#define THREAD_COUNT_MAX 1024

/* Pieces per thread: enough to even out threads of unequal speed, few enough to stay cheap. */
#define PIECES_PER_THREAD 4

static struct {
	pthread_mutex_t lock;
	pthread_cond_t work; /* a job opened, or stop */
	pthread_cond_t idle; /* the last worker left the job */
	int32_t worker_count;
	bool stop;

	bool open; /* the job may be joined */
	uint64_t job_number;
	int32_t joined;
	kvc_range_fn run;
	void *task;
	int64_t count;
	int64_t piece;
	_Atomic int64_t next; /* first item that nobody has taken */
} pool = { .lock = PTHREAD_MUTEX_INITIALIZER,
	.work = PTHREAD_COND_INITIALIZER,
	.idle = PTHREAD_COND_INITIALIZER };

static pthread_t workers[THREAD_COUNT_MAX]; /* used from 0 to pool.worker_count - 1 */
static atomic_bool pool_busy;               /* some thread is inside a job, or resizing */
static _Atomic int32_t wanted_threads;      /* as set; 0 = one per CPU */
static atomic_bool pool_started;            /* the workers for wanted_threads run (or failed to) */

static kvc_parallel_for_fn engine_parallel_for;
static void *engine_context;

static int32_t cpu_count(void)
{
	cpu_set_t set;
	if (sched_getaffinity(0, sizeof set, &set) != 0)
		return 1; /* more CPUs than the set has bits: the engine can say how many to use */
	int count = CPU_COUNT(&set);
	return count < THREAD_COUNT_MAX ? count : THREAD_COUNT_MAX;
}

int32_t kvc_get_num_threads(void)
{
	/* The affinity mask is asked once: the call costs more than a small operation. */
	static _Atomic int32_t cpus;
	int32_t wanted = atomic_load_explicit(&wanted_threads, memory_order_relaxed);
	if (wanted > 0)
		return wanted;
	int32_t count = atomic_load_explicit(&cpus, memory_order_relaxed);
	if (count == 0) {
		count = cpu_count();
		atomic_store_explicit(&cpus, count, memory_order_relaxed);
	}
	return count;
}

/* Take pieces until none is left. */
static void work_off(kvc_range_fn run, void *task, int64_t count, int64_t piece)
{
	for (;;) {
		int64_t begin = atomic_fetch_add_explicit(&pool.next, piece, memory_order_relaxed);
		if (begin >= count)
			return;
		run(task, begin, count - begin > piece ? begin + piece : count);
	}
}

static void *worker_main(void *unused)
{
	(void)unused;
	kvc__fp_enter();
	uint64_t seen = 0;
	pthread_mutex_lock(&pool.lock);
	for (;;) {
		while (!pool.stop && !(pool.open && pool.job_number != seen))
			pthread_cond_wait(&pool.work, &pool.lock);
		if (pool.stop)
			break;
		seen = pool.job_number;
		pool.joined++;
		kvc_range_fn run = pool.run;
		void *task = pool.task;
		int64_t count = pool.count;
		int64_t piece = pool.piece;
		pthread_mutex_unlock(&pool.lock);
		work_off(run, task, count, piece);
		pthread_mutex_lock(&pool.lock);
		if (--pool.joined == 0)
			pthread_cond_signal(&pool.idle);
	}
	pthread_mutex_unlock(&pool.lock);
	return NULL;
}

static bool take_pool(void)
{
	return !atomic_exchange_explicit(&pool_busy, true, memory_order_acquire);
}

static void release_pool(void)
{
	atomic_store_explicit(&pool_busy, false, memory_order_release);
}

/* Workers stay behind in the parent of a fork; the child starts its own when it needs them. */
static void forget_workers(void)
{
	pthread_mutex_init(&pool.lock, NULL);
	pthread_cond_init(&pool.work, NULL);
	pthread_cond_init(&pool.idle, NULL);
	pool.worker_count = 0;
	pool.stop = false;
	pool.open = false;
	pool.joined = 0;
	atomic_store(&pool_started, false);
	atomic_store(&pool_busy, false);
}

static void register_fork_handler(void)
{
	(void)pthread_atfork(NULL, NULL, forget_workers);
}

/* Holds the pool. Returns false if not all could be started; those that were stay. */
static bool start_workers(int32_t count)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, register_fork_handler);

	/* The engine's signal handlers must not run on threads it does not know. */
	sigset_t all;
	sigset_t before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int failed = 0;
	while (pool.worker_count < count && !failed) {
		failed = pthread_create(&workers[pool.worker_count], NULL, worker_main, NULL);
		if (!failed)
			pool.worker_count++;
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return !failed;
}

/* Holds the pool; no job is open. */
static void stop_workers(void)
{
	pthread_mutex_lock(&pool.lock);
	pool.stop = true;
	pthread_cond_broadcast(&pool.work);
	pthread_mutex_unlock(&pool.lock);
	for (int32_t i = 0; i < pool.worker_count; i++)
		pthread_join(workers[i], NULL);
	pool.worker_count = 0;
	pool.stop = false;
}

kvc_status kvc_set_num_threads(int32_t thread_count)
{
	if (thread_count < 0 || thread_count > THREAD_COUNT_MAX)
		return kvc__fail_thread_count_out_of_range(-1, thread_count);

	while (!take_pool()) /* another thread sets the number; a job cannot be running, by contract
	                      */
		sched_yield();
	int32_t before = atomic_load(&wanted_threads);
	atomic_store(&wanted_threads, thread_count);
	int32_t worker_target = kvc_get_num_threads() - 1;
	if (pool.worker_count > worker_target)
		stop_workers();
	kvc_status status = KVC_OK;
	if (!start_workers(worker_target)) {
		status = kvc__fail_threads_not_started(-1, pool.worker_count, worker_target);
		atomic_store(&wanted_threads, before);
	}
	atomic_store(&pool_started, true);
	release_pool();
	return status;
}

void kvc_set_parallel_for(kvc_parallel_for_fn parallel_for, void *context)
{
	engine_parallel_for = parallel_for;
	engine_context = context;
}

/* A piece on a thread of the engine, whose floating-point mode is the engine's. */
struct engine_task {
	kvc_range_fn run;
	void *task;
};

static void run_engine_piece(void *task, int64_t begin, int64_t end)
{
	const struct engine_task *wrapped = task;
	struct kvc__fp_mode mode = kvc__fp_enter();
	wrapped->run(wrapped->task, begin, end);
	kvc__fp_leave(mode);
}

/* Holds the pool, which has at least one worker. */
static void run_job(int64_t count, int64_t piece, kvc_range_fn run, void *task)
{
	pthread_mutex_lock(&pool.lock);
	pool.run = run;
	pool.task = task;
	pool.count = count;
	pool.piece = piece;
	atomic_store_explicit(&pool.next, 0, memory_order_relaxed);
	pool.job_number++;
	pool.open = true;
	int64_t helpers = (count - 1) / piece; /* the caller takes one piece itself */
	if (helpers >= pool.worker_count)
		pthread_cond_broadcast(&pool.work);
	else
		for (int64_t i = 0; i < helpers; i++)
			pthread_cond_signal(&pool.work);
	pthread_mutex_unlock(&pool.lock);

	work_off(run, task, count, piece);

	pthread_mutex_lock(&pool.lock);
	pool.open = false;
	while (pool.joined > 0)
		pthread_cond_wait(&pool.idle, &pool.lock);
	pthread_mutex_unlock(&pool.lock);
}

void kvc__parallel_for(int64_t count, int64_t grain, kvc_range_fn run, void *task)
{
	if (count <= 0)
		return;
	if (count / 2 < grain) {
		run(task, 0, count);
		return;
	}
	if (engine_parallel_for) {
		struct engine_task wrapped = { run, task };
		engine_parallel_for(engine_context, count, grain, run_engine_piece, &wrapped);
		return;
	}
	int32_t thread_count = kvc_get_num_threads();
	if (thread_count == 1 || !take_pool()) {
		run(task, 0, count);
		return;
	}
	if (!atomic_load(&pool_started)) {
		/* If not all start, those that did are what there is; results are the same. */
		(void)start_workers(thread_count - 1);
		atomic_store(&pool_started, true);
	}
	int64_t even = count / ((int64_t)thread_count * PIECES_PER_THREAD) + 1;
	if (pool.worker_count > 0)
		run_job(count, even > grain ? even : grain, run, task);
	else
		run(task, 0, count);
	release_pool();
}
