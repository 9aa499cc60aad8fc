/*
 * Random numbers for property tests. The seed comes from KVC_TEST_SEED, or from the clock, and is
 * printed, so that every failure can be had again.
 */
#ifndef SEEDED_H
#define SEEDED_H

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct seeded {
	uint64_t state;
};

static inline struct seeded seeded_start(const char *test)
{
	const char *given = getenv("KVC_TEST_SEED");
	struct seeded random = { given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL) };

	printf("%s: KVC_TEST_SEED=%" PRIu64 "\n", test, random.state);
	fflush(stdout);
	return random;
}

static inline uint64_t seeded_next(struct seeded *random)
{
	uint64_t x = random->state += 0x9E3779B97F4A7C15u;

	x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
	x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
	return x ^ (x >> 31);
}

/* low .. high, both included. */
static inline int64_t seeded_in(struct seeded *random, int64_t low, int64_t high)
{
	return low + (int64_t)(seeded_next(random) % (uint64_t)(high - low + 1));
}

/* 1 in 'n' times. */
static inline int seeded_one_in(struct seeded *random, int64_t n)
{
	return seeded_in(random, 1, n) == 1;
}

#endif
