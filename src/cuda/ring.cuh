// Recording violations in a ring on the device; must agree with src/cpu/ring.c.
//
// Threads of a warp that report together take their sequence numbers with one atomic and add to
// each counter once: where a whole pool is damaged, every slot reports.
#ifndef KVC__CUDA_RING_CUH
#define KVC__CUDA_RING_CUH

#include "cuda/device.cuh"
#include "cuda/ring_params.h"

#define KVC__RING_WIDE 16 // columns of our ring
#define KVC__RING_NARROW 8 // columns of SGLang's

static __device__ __forceinline__ void kvc__count(int64_t *counter, int64_t amount)
{
	if (counter && amount != 0)
		atomicAdd((unsigned long long *)counter, (unsigned long long)amount);
}

// Threads that arrived here together: who they are, and which of them the caller is.
struct kvc__party {
	unsigned mask;
	int count, rank, leader;

	__device__ __forceinline__ kvc__party()
	{
		mask = __activemask();
		count = __popc(mask);
		rank = __popc(mask & ((1u << (threadIdx.x % 32)) - 1));
		leader = __ffs(mask) - 1;
	}
};

// How many of the party say yes; counted by its leader.
static __device__ __forceinline__ void kvc__count_party(
        const kvc__party &party, int64_t *counter, bool yes)
{
	int count = __popc(__ballot_sync(party.mask, yes));
	if (party.rank == 0)
		kvc__count(counter, count);
}

// One row of a 16-column ring; false if there was no room. Column 15 goes last, behind a fence:
// whoever finds the number that he looks for there may trust the columns before it.
static __device__ __forceinline__ bool kvc__ring_put_wide(
        const kvc__cuda_ring &ring, const kvc_violation &violation, int64_t sequence)
{
	int64_t consumed = *(volatile int64_t *)ring.consumed;
	if (sequence - 1 - consumed >= ring.capacity)
		return false;
	int64_t *row = ring.rows + (sequence - 1) % ring.capacity * KVC__RING_WIDE;
	const int64_t *from = (const int64_t *)&violation;
#pragma unroll
	for (int i = 0; i < KVC__RING_WIDE - 1; i++)
		row[i] = from[i];
	__threadfence();
	*(volatile int64_t *)(row + KVC__RING_WIDE - 1) = sequence;
	return true;
}

// One row of an 8-column ring, filled once. The counter counts on when the ring is full and in the
// end wraps to negative numbers: those store nothing.
static __device__ __forceinline__ bool kvc__ring_put_narrow(
        const kvc__cuda_ring &ring, const kvc_violation &violation, int32_t index)
{
	if (index < 0 || index >= ring.capacity)
		return false;
	int64_t *row = ring.rows + (int64_t)index * KVC__RING_NARROW;
	const int64_t *from = (const int64_t *)&violation;
#pragma unroll
	for (int i = 0; i < KVC__RING_NARROW; i++)
		row[i] = from[i];
	return true;
}

// Record one violation, or count it as dropped. Any threads may call this, in any company;
// violation.sequence is set here.
static __device__ __noinline__ void kvc__ring_put(
        const kvc__cuda_ring &ring, const kvc_violation &violation)
{
	if (ring.columns == 0)
		return;
	kvc__party party;
	unsigned long long first = 0;
	int first_index = 0;
	if (party.rank == 0) {
		if (ring.counters)
			first = atomicAdd((unsigned long long *)&ring.counters->violations,
			        (unsigned long long)party.count);
		if (ring.columns == KVC__RING_NARROW)
			first_index = (int)atomicAdd((unsigned *)ring.write_index, (unsigned)party.count);
	}
	first = __shfl_sync(party.mask, first, party.leader);
	first_index = __shfl_sync(party.mask, first_index, party.leader);
	int64_t sequence = (int64_t)first + party.rank + 1;
	int32_t index = (int32_t)((unsigned)first_index + (unsigned)party.rank);

	bool stored = ring.columns == KVC__RING_WIDE ? kvc__ring_put_wide(ring, violation, sequence)
	                                             : kvc__ring_put_narrow(ring, violation, index);
	__syncwarp(party.mask);
	if (!ring.counters)
		return;
	kvc__count_party(party, &ring.counters->dropped, !stored);
	for (int bit = 0; bit < 16; bit++)
		kvc__count_party(party, &ring.counters->reasons[bit], violation.reasons >> bit & 1);
}

// What a call did, for the counters. 'runs': 1 from one thread of the call, 0 from all others.
struct kvc__cuda_tally {
	int64_t slots_run, slots_skipped, chain_unchecked, bytes_hashed, left_out;
};

static __device__ __forceinline__ void kvc__ring_count(
        const kvc__cuda_ring &ring, const kvc__cuda_tally &tally, int runs)
{
	if (ring.columns == 0)
		return;
	kvc__count(ring.kernel_run_counter, runs);
	kvc__count(ring.slot_run_counter, tally.slots_run);
	if (!ring.counters)
		return;
	kvc__count(&ring.counters->kernel_runs, runs);
	kvc__count(&ring.counters->slots_run, tally.slots_run);
	kvc__count(&ring.counters->slots_skipped, tally.slots_skipped);
	kvc__count(&ring.counters->chain_unchecked, tally.chain_unchecked);
	kvc__count(&ring.counters->bytes_hashed, tally.bytes_hashed);
	kvc__count(&ring.counters->left_out, tally.left_out);
}

#endif
