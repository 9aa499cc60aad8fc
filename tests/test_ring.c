/*
 * The ring of violations: what is stored, dropped and counted, against a list that holds everything;
 * 16 columns round and round, 8 columns once.
 */
#include "expect.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/ring.h"
#include "seeded.h"

static kvc_violation sample(int64_t n)
{
	kvc_violation v = { n, n + 1, n + 2, n + 3, n + 4, (uint64_t)n + 5, (uint64_t)n + 6,
		1 << n % 11, n + 8, (uint64_t)n + 9, (uint64_t)n + 10, n + 11, n + 12, n + 13,
		n + 14, 0 };

	return v;
}

struct circle {
	kvc_ring ring;
	int64_t consumed;
	kvc_counters counters;
};

static void circle_start(struct circle *c, int64_t capacity)
{
	memset(c, 0, sizeof(*c));
	c->ring = (kvc_ring)KVC_RING_INIT;
	c->ring.rows = calloc((size_t)capacity * 16 + 1, sizeof(int64_t));
	c->ring.capacity = capacity;
	c->ring.consumed = &c->consumed;
	c->ring.counters = &c->counters;
}

/* Puts and polls at random; the model remembers which numbers had room when they came. */
static void what_has_room_comes_out_in_order(void **state)
{
	enum { PUTS = 3000 };
	struct seeded random = seeded_start(__func__);
	static unsigned char kept[PUTS + 1];

	(void)state;
	for (int round = 0; round < 20; round++) {
		struct circle c;
		int64_t capacity = seeded_in(&random, 0, 9), put = 0, dropped = 0;
		kvc_violation out[16];
		circle_start(&c, capacity);
		while (put < PUTS) {
			int64_t batch = seeded_in(&random, 0, 2 * capacity + 1);
			for (int64_t i = 0; i < batch && put < PUTS; i++) {
				kvc_violation v = sample(++put);
				kept[put] = put - 1 - c.consumed < capacity;
				dropped += !kept[put];
				kvc__ring_put(&c.ring, &v);
				assert_int_equal(v.sequence, put);
			}
			int64_t room = seeded_in(&random, 0, 16), count = -1;
			int64_t before = c.consumed;
			expect_ok(kvc_ring_poll(&c.ring, out, room, &count, NULL));
			assert_true(count >= 0 && count <= room);
			int64_t taken = 0;
			for (int64_t n = before + 1; n <= c.consumed; n++) {
				if (!kept[n])
					continue;
				kvc_violation want = sample(n);
				want.sequence = n;
				assert_memory_equal(&out[taken++], &want, sizeof(want));
			}
			assert_int_equal(taken, count);
			if (count < room)
				assert_int_equal(c.consumed, put);
		}
		assert_int_equal(c.counters.violations, PUTS);
		assert_int_equal(c.counters.dropped, dropped);
		for (int bit = 0; bit < 16; bit++)
			assert_int_equal(c.counters.reasons[bit],
			        bit < 11 ? PUTS / 11 + (bit <= PUTS % 11 && bit > 0) : 0);
		free(c.ring.rows);
	}
}

static void a_flood_of_dropped_ones_is_passed_over_at_once(void **state)
{
	struct circle c;
	kvc_violation out[2], v = sample(1);
	int64_t count;

	(void)state;
	circle_start(&c, 2);
	kvc__ring_put(&c.ring, &v);
	c.counters.violations = INT64_C(1) << 60; /* as if a long time had passed */
	expect_ok(kvc_ring_poll(&c.ring, out, 2, &count, NULL));
	assert_int_equal(count, 1);
	assert_int_equal(c.consumed, INT64_C(1) << 60);
	kvc__ring_put(&c.ring, &v);
	expect_ok(kvc_ring_poll(&c.ring, out, 2, &count, NULL));
	assert_int_equal(count, 1);
	assert_int_equal(out[0].sequence, (INT64_C(1) << 60) + 1);
	free(c.ring.rows);
}

static void eight_columns_fill_once(void **state)
{
	int64_t rows[3 * 8] = { 0 };
	int32_t index = 1;
	kvc_counters counters = { 0 };
	kvc_ring ring = KVC_RING_INIT;

	(void)state;
	ring.rows = rows, ring.capacity = 3, ring.columns = 8, ring.write_index = &index;
	for (int64_t n = 1; n <= 4; n++) {
		kvc_violation v = sample(n);
		kvc__ring_put(&ring, &v);
		if (n <= 2)
			assert_memory_equal(rows + n * 8, &v, 64);
	}
	assert_int_equal(index, 5);
	assert_int_equal(rows[0], 0);
	/* The counter of SGLang is 32 bits wide and wraps: negative numbers store nothing. */
	kvc_violation v = sample(7);
	index = INT32_MAX;
	ring.counters = &counters;
	kvc__ring_put(&ring, &v);
	assert_int_equal(index, INT32_MIN);
	kvc__ring_put(&ring, &v);
	assert_int_equal(index, INT32_MIN + 1);
	assert_int_equal(counters.violations, 2);
	assert_int_equal(counters.dropped, 2);
	assert_int_equal(counters.reasons[7], 2);
}

static void runs_are_counted_twice_over(void **state)
{
	struct circle c;
	int64_t slots = 5, kernels = 7;
	struct kvc__tally tally = { 1, 2, 3, 4, 5 };

	(void)state;
	circle_start(&c, 1);
	c.ring.slot_run_counter = &slots;
	c.ring.kernel_run_counter = &kernels;
	kvc__ring_count(&c.ring, &tally);
	kvc__ring_count(&c.ring, &tally);
	kvc__ring_count(NULL, &tally);
	assert_int_equal(slots, 7);
	assert_int_equal(kernels, 9);
	assert_int_equal(c.counters.kernel_runs, 2);
	assert_int_equal(c.counters.slots_run, 2);
	assert_int_equal(c.counters.slots_skipped, 4);
	assert_int_equal(c.counters.chain_unchecked, 6);
	assert_int_equal(c.counters.bytes_hashed, 8);
	assert_int_equal(c.counters.left_out, 10);
	free(c.ring.rows);
}

/* ---- several threads ---- */

enum { PRODUCERS = 3, EACH = 4000 };

static void *produce(void *context)
{
	struct circle *c = context;

	for (int64_t n = 0; n < EACH; n++) {
		kvc_violation v = sample(n);
		kvc__ring_put(&c->ring, &v);
	}
	return NULL;
}

static void calls_may_share_a_ring_and_a_poll_may_read_beside_them(void **state)
{
	struct circle c;
	pthread_t threads[PRODUCERS];
	kvc_violation out[64];
	int64_t count, polled = 0, last = 0;

	(void)state;
	circle_start(&c, 64);
	for (int i = 0; i < PRODUCERS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, produce, &c), 0);
	while (__atomic_load_n(&c.counters.violations, __ATOMIC_ACQUIRE) < PRODUCERS * EACH ||
	        c.consumed < PRODUCERS * EACH) {
		expect_ok(kvc_ring_poll(&c.ring, out, 64, &count, NULL));
		for (int64_t i = 0; i < count; i++) {
			assert_true(out[i].sequence > last);
			assert_int_equal(out[i].slot, out[i].launch_tag + 1);
			assert_int_equal(out[i].source_id, out[i].launch_tag + 14);
			last = out[i].sequence;
		}
		polled += count;
	}
	for (int i = 0; i < PRODUCERS; i++)
		pthread_join(threads[i], NULL);
	/* None was lost between being stored and being polled. */
	assert_int_equal(polled + c.counters.dropped, PRODUCERS * EACH);
	free(c.ring.rows);
}

/* ---- refusals ---- */

static void rings_that_cannot_be_used_are_refused(void **state)
{
	struct circle c;
	kvc_violation out[1];
	int64_t count = 77;
	int32_t index = 0;

	(void)state;
	circle_start(&c, 1);
#define expect_poll(status, slug, message)                                                         \
	expect_error(kvc_ring_poll(&c.ring, out, 1, &count, NULL), (status), (slug), (message), -1)
	expect_error(kvc_ring_poll(NULL, out, 1, &count, NULL), KVC_E_INVALID_ARGUMENT,
	        "null-argument", "ring is NULL", -1);
	expect_error(kvc_ring_poll(&c.ring, NULL, 1, &count, NULL), KVC_E_INVALID_ARGUMENT,
	        "null-argument", "out is NULL", -1);
	expect_error(kvc_ring_poll(&c.ring, out, 1, NULL, NULL), KVC_E_INVALID_ARGUMENT,
	        "null-argument", "count_out is NULL", -1);
	c.ring.columns = 9;
	expect_poll(KVC_E_CONFIG, "ring-columns-unknown", "ring.columns is 9, must be 16 or 8");
	c.ring.columns = 8;
	expect_poll(KVC_E_INVALID_ARGUMENT, "null-argument", "ring.write_index is NULL");
	c.ring.write_index = &index;
	expect_poll(KVC_E_CONFIG, "ring-not-circular",
	        "ring.columns is 8, only a ring of 16 columns can be polled");
	c.ring.columns = 16;
	c.ring.capacity = -1;
	expect_poll(KVC_E_CONFIG, "ring-capacity-negative",
	        "ring.capacity is -1, must not be negative");
	c.ring.capacity = 1;
	c.ring.consumed = NULL;
	expect_poll(KVC_E_INVALID_ARGUMENT, "null-argument", "ring.consumed is NULL");
	c.ring.consumed = &c.consumed;
	c.ring.counters = NULL;
	expect_poll(KVC_E_INVALID_ARGUMENT, "null-argument", "ring.counters is NULL");
	c.ring.counters = &c.counters;
	int64_t *rows = c.ring.rows;
	c.ring.rows = NULL;
	expect_poll(KVC_E_INVALID_ARGUMENT, "null-argument", "ring.rows is NULL");
	c.ring.rows = rows;
	c.ring.device.device_type = KVC_DEVICE_CUDA;
	expect_poll(KVC_E_NO_CUDA, "no-cuda", NULL);
	c.ring.device.device_type = 99;
	expect_poll(KVC_E_DEVICE, "device-unknown",
	        "ring has device type 99, which kvcanary does not know");
	c.ring.device.device_type = KVC_DEVICE_CPU;
	c.ring.struct_bytes = 3;
	expect_poll(KVC_E_INVALID_ARGUMENT, "struct-bytes-unknown", NULL);
	assert_int_equal(count, 77);
	assert_int_equal(kvc__ring_check(NULL), KVC_OK);
	free(rows);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_has_room_comes_out_in_order),
		cmocka_unit_test(a_flood_of_dropped_ones_is_passed_over_at_once),
		cmocka_unit_test(eight_columns_fill_once),
		cmocka_unit_test(runs_are_counted_twice_over),
		cmocka_unit_test(calls_may_share_a_ring_and_a_poll_may_read_beside_them),
		cmocka_unit_test(rings_that_cannot_be_used_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
