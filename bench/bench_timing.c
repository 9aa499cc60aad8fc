/*
 * How contenders are timed: in alternation, one short sample each, so that whatever disturbs the
 * machine disturbs all of them alike; the best sample counts, because noise only ever adds.
 */
#include "bench.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A sample shorter than this says more about the clock. */
#define SAMPLE_SECONDS 30e-6

/* Before each sample of a hot case, unless a call takes long. */
#define WARM_CALLS 4

#define ROUNDS_MIN 9
#define ROUNDS_MAX 2000

double bench_now(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* ---- contenders ---- */

void bench_add(struct bench_case *bench_case, const char *op, enum bench_role role, bench_call call,
        void *context, int64_t bytes)
{
	if (bench_case->count == CONTENDERS_MAX)
		return;
	bench_case->contenders[bench_case->count++] =
	        (struct contender){ op, role, call, context, bytes, 1, 1e30 };
}

static void take_sample(struct contender *contender, int cold, int64_t *turn)
{
	/* Whoever was timed before has left its own bytes in the cache, and where a call's bytes just fit,
	 * one call does not drive them out. */
	int64_t warm = cold ? 0 : contender->best_ns < 1e6 ? WARM_CALLS : 1;
	for (int64_t i = 0; i < warm; i++)
		contender->call(contender->context, *turn);
	double begin = bench_now();
	for (int64_t i = 0; i < contender->repeats; i++) {
		contender->call(contender->context, *turn);
		*turn += cold;
	}
	double ns = (bench_now() - begin) * 1e9 / (double)contender->repeats;
	if (ns < contender->best_ns)
		contender->best_ns = ns;
}

/* One call warms up (threads, page tables, branch predictors), the next sets the repeats. */
static void calibrate(struct contender *contender, int cold, int64_t *turn)
{
	take_sample(contender, cold, turn);
	if (contender->best_ns > 5e6)
		return; /* what warming up saves is little beside such a call */
	contender->best_ns = 1e30;
	take_sample(contender, cold, turn);
	contender->repeats = 1 + (int64_t)(SAMPLE_SECONDS * 1e9 / contender->best_ns);
	contender->best_ns = 1e30;
}

static double best_of_role(const struct bench_case *bench_case, enum bench_role role)
{
	double best = 1e30;
	for (int i = 0; i < bench_case->count; i++)
		if (bench_case->contenders[i].role == role &&
		        bench_case->contenders[i].best_ns < best)
			best = bench_case->contenders[i].best_ns;
	return best < 1e30 ? best : 0.0;
}

static void hand_over(struct bench *bench, const struct bench_case *bench_case,
        const struct contender *of, int rounds)
{
	struct bench_row row;
	memset(&row, 0, sizeof row);
	int bare = of->role == ROLE_BARE;
	(void)snprintf(row.op, sizeof row.op, "%s", of->op);
	(void)snprintf(row.variant, sizeof row.variant, "%s", bare ? "bare" : bench->variant);
	(void)snprintf(row.beside, sizeof row.beside, "%s", bare ? bench->variant : "-");
	(void)snprintf(row.dtype, sizeof row.dtype, "%s", bench_case->dtype);
	(void)snprintf(row.shape, sizeof row.shape, "%s", bench_case->shape);
	(void)snprintf(row.cache, sizeof row.cache, "%s", bench_case->cold ? "cold" : "hot");
	row.tokens = bench_case->tokens;
	row.bytes = of->bytes;
	row.threads = bench_case->threads;
	row.best_of = rounds;
	row.ns = bare ? best_of_role(bench_case, ROLE_BARE) : of->best_ns;
	row.ceiling_ns = best_of_role(bench_case, ROLE_CEILING);
	row.bare_ns = best_of_role(bench_case, ROLE_BARE);
	bench->sink(bench->sink_context, &row);
}

static int time_contenders(const struct bench *bench, struct bench_case *bench_case)
{
	int64_t turn = 0;
	int rounds = 0;
	int late = bench->settings.deadline > 0 && bench_now() > bench->settings.deadline;
	int rounds_min = bench->settings.effort == BENCH_FULL ? ROUNDS_MIN : late ? 1 : 3;

	for (int i = 0; i < bench_case->count; i++)
		calibrate(&bench_case->contenders[i], bench_case->cold, &turn);
	double end = bench_now() + (late ? 0 : bench->settings.case_seconds);
	while ((rounds < rounds_min || bench_now() < end) && rounds < ROUNDS_MAX) {
		for (int i = 0; i < bench_case->count; i++)
			take_sample(&bench_case->contenders[i], bench_case->cold, &turn);
		rounds++;
	}
	return rounds;
}

void bench_run(struct bench *bench, struct bench_case *bench_case)
{
	bench_check(kvc_set_num_threads(bench_case->threads));
	int rounds = bench->names_only ? 0 : time_contenders(bench, bench_case);
	int bare_shown = 0;
	for (int i = 0; i < bench_case->count; i++) {
		const struct contender *contender = &bench_case->contenders[i];
		if (contender->role == ROLE_CEILING || (contender->role == ROLE_BARE && bare_shown))
			continue;
		bare_shown |= contender->role == ROLE_BARE;
		hand_over(bench, bench_case, contender, rounds);
	}
	bench_case->count = 0;
}

/* ---- threads of the ceilings ---- */

#define HELPERS_MAX 63

/* Helpers sleep between jobs: spinning, they would take the CPU from what is timed next. */
static struct helper {
	pthread_t thread;
	sem_t go, done;
	bench_part part;
	void *context;
	int32_t index;
	int started;
} helpers[HELPERS_MAX];

static void *helper_main(void *self)
{
	struct helper *helper = self;
	for (;;) {
		while (sem_wait(&helper->go) != 0)
			continue;
		helper->part(helper->context, helper->index);
		sem_post(&helper->done);
	}
	return NULL;
}

static void start_helper(struct helper *helper)
{
	if (helper->started)
		return;
	helper->started = 1;
	if (sem_init(&helper->go, 0, 0) || sem_init(&helper->done, 0, 0) ||
	        pthread_create(&helper->thread, NULL, helper_main, helper) ||
	        pthread_detach(helper->thread)) {
		fprintf(stderr, "kvcanary-bench: cannot start a thread\n");
		exit(2);
	}
}

void bench_parallel(int32_t count, bench_part part, void *context)
{
	if (count > HELPERS_MAX + 1)
		count = HELPERS_MAX + 1;
	for (int32_t i = 1; i < count; i++) {
		struct helper *helper = &helpers[i - 1];
		start_helper(helper);
		helper->part = part;
		helper->context = context;
		helper->index = i;
		sem_post(&helper->go);
	}
	part(context, 0);
	for (int32_t i = 1; i < count; i++)
		while (sem_wait(&helpers[i - 1].done) != 0)
			continue;
}

int64_t bench_piece(int64_t length, int32_t index, int32_t count)
{
	return length / count * index + length % count * index / count;
}
