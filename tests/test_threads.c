/*
 * Goal: every item is worked on exactly once, whatever the thread count, nesting, concurrency or
 * fork; small calls stay on the caller's thread; floating-point modes are the plain one inside and
 * the caller's again outside. Method: counters per item; run under ThreadSanitizer as well.
 */
#include "base/threads.h"

#include <fenv.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define ITEM_COUNT 10007

struct counters {
	_Atomic int seen[ITEM_COUNT];
	_Atomic int64_t calls;
	_Atomic int64_t short_pieces;
	_Atomic int64_t other_threads;
	pthread_t caller;
	int64_t grain;
	int64_t count;
};

static void count_items(void *task, int64_t begin, int64_t end)
{
	struct counters *c = task;
	atomic_fetch_add(&c->calls, 1);
	if (end - begin < c->grain && end != c->count)
		atomic_fetch_add(&c->short_pieces, 1);
	if (!pthread_equal(pthread_self(), c->caller))
		atomic_fetch_add(&c->other_threads, 1);
	for (int64_t i = begin; i < end; i++)
		atomic_fetch_add_explicit(&c->seen[i], 1, memory_order_relaxed);
}

static int run_and_check(int64_t count, int64_t grain, struct counters *c)
{
	memset(c, 0, sizeof *c);
	c->caller = pthread_self();
	c->grain = grain;
	c->count = count;
	kvc__parallel_for(count, grain, count_items, c);
	for (int64_t i = 0; i < ITEM_COUNT; i++)
		if (c->seen[i] != (i < count))
			return 0;
	return c->short_pieces == 0;
}

static void every_item_is_done_once(void **state)
{
	(void)state;
	static struct counters c;
	static const int32_t thread_counts[] = { 1, 2, 3, 8, 0 };
	static const int64_t counts[] = { 0, 1, 2, 3, 7, 8, 100, 1000, ITEM_COUNT };
	static const int64_t grains[] = { 1, 2, 7, 64, 5000, 1 << 30 };
	for (size_t t = 0; t < sizeof thread_counts / sizeof *thread_counts; t++) {
		assert_int_equal(kvc_set_num_threads(thread_counts[t]), KVC_OK);
		for (size_t n = 0; n < sizeof counts / sizeof *counts; n++)
			for (size_t g = 0; g < sizeof grains / sizeof *grains; g++)
				assert_true(run_and_check(counts[n], grains[g], &c));
	}
}

static void small_calls_stay_on_the_callers_thread(void **state)
{
	(void)state;
	static struct counters c;
	assert_int_equal(kvc_set_num_threads(4), KVC_OK);
	for (int i = 0; i < 200; i++) {
		assert_true(run_and_check(127, 64, &c));
		assert_int_equal(c.calls, 1);
		assert_int_equal(c.other_threads, 0);
	}
}

static void large_calls_reach_other_threads(void **state)
{
	(void)state;
	static struct counters c;
	assert_int_equal(kvc_set_num_threads(4), KVC_OK);
	int64_t other = 0;
	for (int i = 0; i < 2000 && other == 0; i++) {
		assert_true(run_and_check(ITEM_COUNT, 16, &c));
		other += c.other_threads;
	}
	assert_true(other > 0);
}

static void number_of_threads_is_checked_and_reported(void **state)
{
	(void)state;
	assert_int_equal(kvc_set_num_threads(3), KVC_OK);
	assert_int_equal(kvc_set_num_threads(-1), KVC_E_CONFIG);
	assert_string_equal(kvc_last_error()->slug, "thread-count-out-of-range");
	assert_string_equal(kvc_last_error()->message, "thread count -1 is not in 0..1024");
	assert_int_equal(kvc_set_num_threads(1025), KVC_E_CONFIG);
	assert_int_equal(kvc_get_num_threads(), 3);
	assert_int_equal(kvc_set_num_threads(0), KVC_OK);
	assert_true(kvc_get_num_threads() >= 1);
}

/* In a child without address space for stacks. The sanitizers do not survive that. */
static void threads_that_cannot_start_leave_the_former_number(void **state)
{
	(void)state;
#ifndef KVC_SANITIZED
	pid_t child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		struct rlimit limit = { 1 << 20, 1 << 20 };
		int good = kvc_set_num_threads(1) == KVC_OK && setrlimit(RLIMIT_AS, &limit) == 0 &&
		           kvc_set_num_threads(64) == KVC_E_NO_MEMORY &&
		           strcmp(kvc_last_error()->slug, "threads-not-started") == 0 &&
		           kvc_get_num_threads() == 1;
		_exit(good ? 0 : 1);
	}
	int status = 0;
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
#endif
}

struct nested {
	_Atomic int64_t sum;
};

static void inner(void *task, int64_t begin, int64_t end)
{
	struct nested *n = task;
	atomic_fetch_add(&n->sum, end - begin);
}

static void outer(void *task, int64_t begin, int64_t end)
{
	for (int64_t i = begin; i < end; i++)
		kvc__parallel_for(10, 1, inner, task);
}

static void nested_calls_run_inline(void **state)
{
	(void)state;
	assert_int_equal(kvc_set_num_threads(4), KVC_OK);
	struct nested n = { 0 };
	kvc__parallel_for(1000, 1, outer, &n);
	assert_int_equal(n.sum, 10000);
}

static void *concurrent_caller(void *result)
{
	struct counters *c = malloc(sizeof *c);
	int good = c != NULL;
	for (int i = 0; good && i < 100; i++)
		good = run_and_check(ITEM_COUNT - i, 16, c);
	free(c);
	*(int *)result = good;
	return NULL;
}

static void several_threads_may_call_at_once(void **state)
{
	(void)state;
	assert_int_equal(kvc_set_num_threads(3), KVC_OK);
	pthread_t threads[4];
	int results[4];
	for (int i = 0; i < 4; i++)
		assert_int_equal(
		        pthread_create(&threads[i], NULL, concurrent_caller, &results[i]), 0);
	for (int i = 0; i < 4; i++) {
		pthread_join(threads[i], NULL);
		assert_true(results[i]);
	}
}

/* ThreadSanitizer refuses to start threads in the child of a threaded fork. */
static void a_forked_child_starts_its_own_workers(void **state)
{
	(void)state;
#if !defined(__SANITIZE_THREAD__)
	static struct counters c;
	assert_int_equal(kvc_set_num_threads(4), KVC_OK);
	assert_true(run_and_check(ITEM_COUNT, 16, &c));
	pid_t child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		int good = 1;
		for (int i = 0; i < 50; i++)
			good &= run_and_check(ITEM_COUNT, 16, &c);
		good &= kvc_set_num_threads(2) == KVC_OK && run_and_check(ITEM_COUNT, 16, &c);
		_exit(good ? 0 : 1);
	}
	int status = 0;
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	assert_true(run_and_check(ITEM_COUNT, 16, &c));
#endif
}

static int64_t engine_calls;

/* An engine that splits into three and runs the pieces backwards. */
static void engine(void *context, int64_t count, int64_t grain, kvc_range_fn run, void *task)
{
	assert_ptr_equal(context, &engine_calls);
	engine_calls++;
	int64_t third = count / 3 > grain ? count / 3 : grain;
	int64_t cut1 = third < count ? third : count;
	int64_t cut2 = 2 * third < count ? 2 * third : count;
	if (cut2 < count)
		run(task, cut2, count);
	if (cut1 < cut2)
		run(task, cut1, cut2);
	run(task, 0, cut1);
}

static void the_engines_parallel_for_is_used_instead(void **state)
{
	(void)state;
	static struct counters c;
	kvc_set_parallel_for(engine, &engine_calls);
	assert_true(run_and_check(ITEM_COUNT, 16, &c));
	assert_int_equal(engine_calls, 1);
	assert_true(run_and_check(20, 16, &c)); /* too small to split */
	assert_int_equal(engine_calls, 1);
	kvc_set_parallel_for(NULL, NULL);
	assert_true(run_and_check(ITEM_COUNT, 16, &c));
	assert_int_equal(engine_calls, 1);
}

static void check_plain_mode(void *task, int64_t begin, int64_t end)
{
	(void)begin;
	(void)end;
	volatile float tiny = 0x1p-140f; /* flushed to zero unless subnormals are on */
	volatile double one = 1.0;
	volatile double up = one + 0x1.8p-53;   /* 1 if rounded down, 1 + 2^-52 to nearest */
	volatile double down = one + 0x1.0p-54; /* 1 + 2^-52 if rounded up, 1 to nearest */
	/* Not fegetround(): on x86 that asks the x87 unit, which the library does not use. */
	if (tiny * 2.0f == 0.0f || up == 1.0 || down != 1.0)
		atomic_fetch_add((_Atomic int *)task, 1);
}

static void modes_are_plain_inside_and_restored_outside(void **state)
{
	(void)state;
	_Atomic int wrong = 0;
	fesetround(FE_DOWNWARD);
#if defined(__x86_64__)
	uint32_t odd = _mm_getcsr() | 0x8040u; /* flush to zero, denormals are zero */
	_mm_setcsr(odd);
#endif
	/* Workers are started from a thread in an odd mode, and inherit it. */
	int started = kvc_set_num_threads(1) == KVC_OK && kvc_set_num_threads(4) == KVC_OK;
	struct kvc__fp_mode mode = kvc__fp_enter();
	for (int i = 0; i < 100; i++)
		kvc__parallel_for(1000, 1, check_plain_mode, &wrong);
	kvc__fp_leave(mode);

	kvc_set_parallel_for(engine, &engine_calls); /* the engine's threads are in odd modes too */
	kvc__parallel_for(1000, 1, check_plain_mode, &wrong);
	kvc_set_parallel_for(NULL, NULL);

	int rounding = fegetround();
#if defined(__x86_64__)
	int restored = (_mm_getcsr() & ~0x3Fu) == (odd & ~0x3Fu);
	_mm_setcsr(0x1F80);
#else
	int restored = 1;
#endif
	fesetround(FE_TONEAREST);
	assert_true(started);
	assert_int_equal(wrong, 0);
	assert_int_equal(rounding, FE_DOWNWARD);
	assert_true(restored);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_item_is_done_once),
		cmocka_unit_test(small_calls_stay_on_the_callers_thread),
		cmocka_unit_test(large_calls_reach_other_threads),
		cmocka_unit_test(number_of_threads_is_checked_and_reported),
		cmocka_unit_test(threads_that_cannot_start_leave_the_former_number),
		cmocka_unit_test(nested_calls_run_inline),
		cmocka_unit_test(several_threads_may_call_at_once),
		cmocka_unit_test(a_forked_child_starts_its_own_workers),
		cmocka_unit_test(the_engines_parallel_for_is_used_instead),
		cmocka_unit_test(modes_are_plain_inside_and_restored_outside),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
