/*
 * The ring of violations in host memory. Must agree with the ring of src/cuda.
 *
 * Order of a record with 16 columns: columns 0 to 14, then column 15 (the sequence number), then
 * counters.violations. Whoever sees the new count therefore sees the whole row, and whoever finds
 * the number that it looks for in column 15 may trust the columns before it.
 */
#include "cpu/ring.h"

#include <sched.h>
#include <stdatomic.h>
#include <string.h>

/*
 * Calls that share a ring must not take one sequence number twice, and a poll must not meet a
 * number whose row is still being written: it would take the row for a dropped one. So a record is
 * made under a lock. The caller's structs have no room for one; a few static ones, picked by the
 * address of the counters, do. They are held for the time of a few stores, and violations are rare.
 */
#define LOCK_COUNT 16
static atomic_flag ring_locks[LOCK_COUNT] = {
	ATOMIC_FLAG_INIT,
	ATOMIC_FLAG_INIT,
	ATOMIC_FLAG_INIT,
	ATOMIC_FLAG_INIT,
	ATOMIC_FLAG_INIT,
	ATOMIC_FLAG_INIT,
	ATOMIC_FLAG_INIT,
	ATOMIC_FLAG_INIT,
	ATOMIC_FLAG_INIT,
	ATOMIC_FLAG_INIT,
	ATOMIC_FLAG_INIT,
	ATOMIC_FLAG_INIT,
	ATOMIC_FLAG_INIT,
	ATOMIC_FLAG_INIT,
	ATOMIC_FLAG_INIT,
	ATOMIC_FLAG_INIT,
};

static atomic_flag *lock_of(const kvc_ring *ring)
{
	uintptr_t key = ring->counters ? (uintptr_t)ring->counters : (uintptr_t)ring->write_index;

	return &ring_locks[(key / sizeof(kvc_counters)) % LOCK_COUNT];
}

static void lock_ring(atomic_flag *lock)
{
	while (atomic_flag_test_and_set_explicit(lock, memory_order_acquire))
		sched_yield();
}

static void add_relaxed(int64_t *counter, int64_t amount)
{
	if (counter && amount != 0)
		__atomic_fetch_add(counter, amount, __ATOMIC_RELAXED);
}

_Static_assert(sizeof(kvc_violation) == KVC__RING_COLUMNS * sizeof(int64_t),
        "a violation is one row of the ring");

/* One row of a 16-column ring; returns 0 if there was no room. */
static int put_circular(const kvc_ring *ring, const kvc_violation *violation)
{
	int64_t sequence = violation->sequence;
	int64_t consumed = __atomic_load_n(ring->consumed, __ATOMIC_ACQUIRE);

	if (sequence - 1 - consumed >= ring->capacity)
		return 0;
	int64_t *row = ring->rows + (sequence - 1) % ring->capacity * KVC__RING_COLUMNS;
	memcpy(row, violation, (KVC__RING_COLUMNS - 1) * sizeof(*row));
	__atomic_store_n(&row[KVC__RING_COLUMNS - 1], sequence, __ATOMIC_RELEASE);
	return 1;
}

/*
 * One row of an 8-column ring, filled once. The counter is SGLang's int32, which counts on when the
 * ring is full and in the end wraps to negative numbers: those store nothing.
 */
static int put_once(const kvc_ring *ring, const kvc_violation *violation)
{
	int32_t index = *ring->write_index;
	int32_t next = (int32_t)((uint32_t)index + 1u);

	if (index >= 0 && index < ring->capacity)
		memcpy(ring->rows + (int64_t)index * KVC__RING_COLUMNS_SGLANG, violation,
		        KVC__RING_COLUMNS_SGLANG * sizeof(int64_t));
	__atomic_store_n(ring->write_index, next, __ATOMIC_RELEASE);
	return index >= 0 && index < ring->capacity;
}

static void count_reasons(kvc_counters *counters, int64_t reasons)
{
	for (int bit = 0; bit < 16; bit++)
		add_relaxed(&counters->reasons[bit], reasons >> bit & 1);
}

void kvc__ring_put(const kvc_ring *ring, kvc_violation *violation)
{
	int stored;

	if (!ring)
		return;
	atomic_flag *lock = lock_of(ring);
	lock_ring(lock);
	violation->sequence = ring->counters ? ring->counters->violations + 1 : 0;
	if (ring->columns == KVC__RING_COLUMNS)
		stored = put_circular(ring, violation);
	else
		stored = put_once(ring, violation);
	if (ring->counters) {
		add_relaxed(&ring->counters->dropped, !stored);
		count_reasons(ring->counters, violation->reasons);
		__atomic_store_n(
		        &ring->counters->violations, violation->sequence, __ATOMIC_RELEASE);
	}
	atomic_flag_clear_explicit(lock, memory_order_release);
}

void kvc__ring_count(const kvc_ring *ring, const struct kvc__tally *tally)
{
	if (!ring)
		return;
	add_relaxed(ring->kernel_run_counter, 1);
	add_relaxed(ring->slot_run_counter, tally->slots_run);
	if (!ring->counters)
		return;
	add_relaxed(&ring->counters->kernel_runs, 1);
	add_relaxed(&ring->counters->slots_run, tally->slots_run);
	add_relaxed(&ring->counters->slots_skipped, tally->slots_skipped);
	add_relaxed(&ring->counters->chain_unchecked, tally->chain_unchecked);
	add_relaxed(&ring->counters->bytes_hashed, tally->bytes_hashed);
	add_relaxed(&ring->counters->left_out, tally->left_out);
}
