// kvc_canary_verify on the device: src/cpu/verify_portable.c, entry by entry, rows in any order.
//
// Three kernels. 'light' has no long rows to hash: a thread an entry, two at once, so that the
// dependent loads (entry, then record and predecessor) of many entries overlap. 'rows' (xxh3) and
// 'tiles' (splitmix) take a batch of entries a block: a thread an entry looks at everything but the
// bytes, then all warps hash the batch's slots, then each thread compares.
//
// A violation is rare: an entry that has one is looked at once more, from memory, to write its row.
#include <stddef.h>

#include "cuda/records.cuh"
#include "cuda/ring.cuh"
#include "cuda/slot_bytes.cuh"
#include "cuda/verify_params.h"

// The common kernels take the parameters with the first few strips only.
struct __align__(8) kvc__verify_params_small {
	char bytes[offsetof(kvc__verify_params, sources) + offsetof(kvc__strips_call, strips) +
	           KVC__STRIPS_SMALL * sizeof(kvc__strip)];
};

static __device__ __forceinline__ const kvc__strip *strips_of(const kvc__verify_params &p)
{
	return (const kvc__strip *)((const char *)&p + offsetof(kvc__verify_params, sources) +
	                            offsetof(kvc__strips_call, strips));
}

// Predecessors that are no slots; over SGLang's interface every negative one is the first.
enum { PREV_START = -1, PREV_CHAIN_IN = -2, PREV_UNKNOWN = -3 };

// What looking at an entry gave: its reasons in the low 16 bits, besides
enum {
	LOOK_LIVE = 1 << 16,      // there is a record, and its bytes count
	LOOK_SKIPPED = 1 << 17,
	LOOK_UNCHECKED = 1 << 18, // its chain
	LOOK_END = 1 << 19,       // the chain does not end as it must
	LOOK_REASONS = 0xFFFF
};

struct Entry {
	int64_t slot, prev, token, position;
};

static __device__ __forceinline__ Entry load_entry(const kvc__verify_params &p, int64_t i)
{
	Entry e;
	e.slot = __ldg(p.slots + i);
	e.prev = __ldg(p.prev_slots + i);
	e.token = p.check_tokens ? __ldg(p.expected_tokens + i) : -1;
	e.position = __ldg(p.expected_positions + i);
	return e;
}

// The request of an entry, -1 if it is not known.
static __device__ __forceinline__ int64_t request_of(const kvc__verify_params &p, int64_t i)
{
	int64_t r = p.request ? __ldg(p.request + i) : -1;
	return r >= 0 && r < p.batch.count ? r : -1;
}

enum { ENTRY_LIVE, ENTRY_SKIPPED, ENTRY_OUTSIDE };

// Is the planned slot one to look at?
static __device__ __forceinline__ int entry_kind(
        const kvc__verify_params &p, const Entry &e, int64_t i)
{
	if (e.slot < 0)
		return ENTRY_SKIPPED;
	if (!p.own_rules)
		return e.slot == 0 || e.slot >= p.records.count ? ENTRY_SKIPPED : ENTRY_LIVE;
	if (e.slot == p.records.reserved_slot) {
		int64_t row = kvc__value_of(p.batch, p.batch.rows, request_of(p, i), -1);
		return row == 0 ? ENTRY_SKIPPED : ENTRY_OUTSIDE;
	}
	return e.slot >= p.records.count ? ENTRY_OUTSIDE : ENTRY_LIVE;
}

// Does the chain come from the predecessor's record?
static __device__ __forceinline__ bool reads_before(const kvc__verify_params &p, const Entry &e)
{
	if (!kvc__has_record(p.records, e.prev))
		return false;
	return p.own_rules ? e.prev != p.records.reserved_slot : e.prev != 0;
}

static __device__ __forceinline__ uint64_t chain_start_of(const kvc__verify_params &p, int64_t i)
{
	if (!p.batch.namespaces)
		return kvc__chain_start(0);
	return kvc__chain_start(
	        (uint64_t)kvc__value_of(p.batch, p.batch.namespaces, request_of(p, i), 0));
}

// The chain that the entry must store: 1 if it is known, 0 if it cannot be checked, -1 if the
// predecessor makes no sense. 'before': the predecessor's record if reads_before().
static __device__ __forceinline__ int expect_chain(const kvc__verify_params &p, const Entry &e,
        int64_t i, const kvc_record &before, uint64_t *chain)
{
	*chain = 0;
	if (reads_before(p, e)) {
		*chain = kvc__next_of(before);
		return 1;
	}
	if (!p.own_rules) {
		if (e.prev >= 0)
			return 0;
		*chain = chain_start_of(p, i);
		return 1;
	}
	if (e.prev == PREV_START) {
		*chain = chain_start_of(p, i);
		return e.position > 0 ? -1 : 1;
	}
	if (e.prev == PREV_CHAIN_IN) {
		*chain = (uint64_t)kvc__value_of(
		        p.batch, p.batch.verify_chain_in, request_of(p, i), 0);
		return *chain != 0;
	}
	if (e.prev == PREV_UNKNOWN || (e.prev >= 0 && e.prev == p.records.reserved_slot))
		return 0;
	return -1;
}

static __device__ __forceinline__ bool ends_badly(
        const kvc__verify_params &p, const Entry &e, int64_t i, const kvc_record &record)
{
	if (!p.batch.chain_end || !p.own_rules)
		return false;
	int64_t r = request_of(p, i);
	uint64_t end = (uint64_t)kvc__value_of(p.batch, p.batch.chain_end, r, 0);
	if (end == 0 || (uint64_t)e.position != (uint64_t)p.batch.prefix_lens[r] - 1)
		return false;
	return kvc__next_of(record) != end;
}

// All checks of one entry but those of its bytes.
static __device__ __forceinline__ int look_at(const kvc__verify_params &p, const Entry &e,
        int64_t i, int kind, const kvc_record &record, const kvc_record &before)
{
	if (kind != ENTRY_LIVE)
		return kind == ENTRY_SKIPPED ? LOOK_SKIPPED : KVC_REASON_SLOT_RANGE;
	if (p.own_rules && (record.token | record.position) == 0 &&
	        (record.prev_hash | record.fingerprint) == 0)
		return KVC_REASON_NEVER_STAMPED;
	uint64_t chain;
	int look = LOOK_LIVE, known = expect_chain(p, e, i, before, &chain);
	if (known < 0)
		look |= KVC_REASON_SLOT_RANGE;
	else if (known == 0)
		look |= LOOK_UNCHECKED;
	else if (record.prev_hash != chain)
		look |= KVC_REASON_VERIFY_CHAIN_HASH;
	if (e.token != -1 && record.token != e.token)
		look |= KVC_REASON_VERIFY_TOKEN;
	if (record.position != e.position)
		look |= KVC_REASON_VERIFY_POSITION;
	if (ends_badly(p, e, i, record))
		look |= LOOK_END;
	return look;
}

// ---- rows ----

static __device__ void lower_valid_prefix(
        const kvc__verify_params &p, int64_t r, int64_t position)
{
	if (p.valid_prefix && r >= 0)
		atomicMin((long long *)&p.valid_prefix[r], (long long)(position < 0 ? 0 : position));
}

// The rows of entry i. 'fingerprint' is what its bytes give now, if they were hashed.
static __device__ __noinline__ void report_entry(
        const kvc__verify_params &p, int64_t i, int look, uint64_t fingerprint)
{
	Entry e = load_entry(p, i);
	int64_t r = request_of(p, i);
	kvc_record record = { 0, 0, 0, 0 };
	kvc_violation row = {};
	uint64_t expected = 0;

	if (entry_kind(p, e, i) == ENTRY_LIVE)
		record = kvc__load_record(p.records, e.slot);
	if (look & LOOK_LIVE) {
		kvc_record before = { 0, 0, 0, 0 };
		if (reads_before(p, e))
			before = kvc__load_record(p.records, e.prev);
		if (expect_chain(p, e, i, before, &expected) <= 0)
			expected = record.prev_hash;
		row.expected_fingerprint = p.compare_bytes ? fingerprint : record.fingerprint;
	}
	row.launch_tag = p.launch_tag;
	row.slot = e.slot;
	row.position = record.position;
	row.stored_token = record.token;
	row.expected_token = e.token;
	row.stored_chain = record.prev_hash;
	row.expected_aux = expected;
	row.expected_position = e.position;
	row.stored_fingerprint = record.fingerprint;
	kvc__row_context(row, p.records, p.batch, r, e.slot);
	row.reasons = look & LOOK_REASONS;
	if (row.reasons)
		kvc__ring_put(p.ring, row);
	if (look & LOOK_END) {
		row.reasons = KVC_REASON_CHAIN_END;
		row.stored_chain = kvc__next_of(record);
		row.expected_aux = (uint64_t)p.batch.chain_end[r];
		kvc__ring_put(p.ring, row);
	}
	lower_valid_prefix(p, r, e.position);
}

// How many entries there are. What the plan says may be anything: it is clamped, and one row says so.
static __device__ __forceinline__ int64_t entry_count(const kvc__verify_params &p)
{
	int64_t count = *p.num_valid;
	count = count < 0 ? 0 : count > p.capacity ? p.capacity : count;
	return *p.enable == 0 ? 0 : count;
}

static __device__ __noinline__ void count_call(const kvc__verify_params &p, int64_t count)
{
	kvc__cuda_tally tally = { count, 0, 0, 0, p.left_out ? *p.left_out : 0 };
	int64_t stated = *p.num_valid;
	kvc__ring_count(p.ring, tally, 1);
	if (!p.own_rules || (stated >= 0 && stated <= p.capacity))
		return;
	kvc_violation row = {};
	row.launch_tag = p.launch_tag;
	row.slot = -1;
	row.position = stated;
	row.expected_token = -1;
	row.expected_position = p.capacity;
	row.reasons = KVC_REASON_SLOT_RANGE;
	kvc__row_context(row, p.records, p.batch, -1, -1);
	kvc__ring_put(p.ring, row);
}

// ---- counting ----

struct Tally {
	int skipped, unchecked, hashed;
};

static __device__ __forceinline__ void tally_look(Tally &tally, int look)
{
	tally.skipped += (look & LOOK_SKIPPED) != 0;
	tally.unchecked += (look & LOOK_UNCHECKED) != 0;
	tally.hashed += (look & LOOK_LIVE) != 0;
}

// By the whole block.
static __device__ __forceinline__ void count_block(const kvc__verify_params &p, const Tally &tally)
{
	__shared__ unsigned long long sums[3];
	if (p.ring.columns == 0)
		return;
	__syncthreads();
	if (threadIdx.x < 3)
		sums[threadIdx.x] = 0;
	__syncthreads();
	kvc__add_to_block(&sums[0], tally.skipped);
	kvc__add_to_block(&sums[1], tally.unchecked);
	kvc__add_to_block(&sums[2], tally.hashed);
	__syncthreads();
	if (threadIdx.x == 0) {
		int64_t bytes = p.compare_bytes ? (int64_t)sums[2] * p.sources.head.bytes_hashed : 0;
		kvc__cuda_tally all = { 0, (int64_t)sums[0], (int64_t)sums[1], bytes, 0 };
		kvc__ring_count(p.ring, all, 0);
	}
}

// ---- light: a thread an entry ----

#define LIGHT_AT_ONCE 2

static __device__ __forceinline__ void verify_light(const kvc__verify_params &p)
{
	kvc__wait_for_previous();
	kvc__release_next();
	const kvc__strips_head &head = p.sources.head;
	const kvc__strip *strips = strips_of(p);
	int64_t n = entry_count(p), step = (int64_t)gridDim.x * blockDim.x;
	bool piece = p.compare_bytes && head.hashed == 1 && strips[0].is_wide &&
	             strips[0].bytes == 16 && strips[0].run == 16;
	Tally tally = { 0, 0, 0 };

	if (blockIdx.x == 0 && threadIdx.x == 0)
		count_call(p, n);
	for (int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; first < n;
	        first += LIGHT_AT_ONCE * step) {
		Entry e[LIGHT_AT_ONCE];
		int kind[LIGHT_AT_ONCE];
		kvc_record record[LIGHT_AT_ONCE], before[LIGHT_AT_ONCE];
		uint4 bytes[LIGHT_AT_ONCE];
#pragma unroll
		for (int u = 0; u < LIGHT_AT_ONCE; u++) {
			e[u] = { -1, -1, -1, 0 };
			if (first + u * step < n)
				e[u] = load_entry(p, first + u * step);
		}
#pragma unroll
		for (int u = 0; u < LIGHT_AT_ONCE; u++) {
			kind[u] = entry_kind(p, e[u], first + u * step);
			record[u] = before[u] = { 0, 0, 0, 0 };
			bytes[u] = make_uint4(0, 0, 0, 0);
			if (kind[u] != ENTRY_LIVE)
				continue;
			record[u] = kvc__load_record(p.records, e[u].slot);
			if (reads_before(p, e[u]))
				before[u] = kvc__load_record(p.records, e[u].prev);
			if (piece)
				bytes[u] = __ldg((const uint4 *)kvc__place_of(strips[0], e[u].slot).at);
		}
		int look[LIGHT_AT_ONCE];
		uint64_t stored[LIGHT_AT_ONCE], found[LIGHT_AT_ONCE];
#pragma unroll
		for (int u = 0; u < LIGHT_AT_ONCE; u++) {
			look[u] = look_at(p, e[u], first + u * step, kind[u], record[u], before[u]);
			stored[u] = record[u].fingerprint;
			found[u] = piece ? kvc__hash_piece(head, strips[0], bytes[u]) : 0;
		}
		// Calls only from here on, where little is held in registers.
#pragma unroll
		for (int u = 0; u < LIGHT_AT_ONCE; u++) {
			if (first + u * step >= n)
				continue;
			if ((look[u] & LOOK_LIVE) && p.compare_bytes) {
				if (!piece)
					found[u] = kvc__hash_thread(head, strips, e[u].slot);
				if (found[u] != stored[u])
					look[u] |= KVC_REASON_VERIFY_REAL_KV_HASH;
			}
			tally_look(tally, look[u]);
			if (look[u] & (LOOK_REASONS | LOOK_END))
				report_entry(p, first + u * step, look[u], found[u]);
		}
	}
	count_block(p, tally);
}

// ---- rows and tiles: a block a batch ----

#define BATCH KVC__TILE_THREADS

template <bool TILES>
static __device__ __forceinline__ void verify_batches(const kvc__verify_params &p)
{
	__shared__ int64_t slots[BATCH];
	__shared__ unsigned long long sums[BATCH];
	__shared__ int nonfinite[BATCH];
	extern __shared__ __align__(16) char stages[];

	kvc__wait_for_previous();
	kvc__release_next();
	const kvc__strips_head &head = p.sources.head;
	const kvc__strip *strips = strips_of(p);
	int64_t n = entry_count(p);
	int batch = kvc__batch_size(n, BATCH);
	Tally tally = { 0, 0, 0 };

	if (blockIdx.x == 0 && threadIdx.x == 0)
		count_call(p, n);
	for (int64_t first = (int64_t)blockIdx.x * batch; first < n;
	        first += (int64_t)gridDim.x * batch) {
		int count = n - first < batch ? (int)(n - first) : batch;
		int64_t i = first + threadIdx.x;
		int look = 0;
		if (threadIdx.x < BATCH) {
			int64_t live = -1;
			if ((int)threadIdx.x < count) {
				Entry e = load_entry(p, i);
				kvc_record record = { 0, 0, 0, 0 }, before = { 0, 0, 0, 0 };
				int kind = entry_kind(p, e, i);
				if (kind == ENTRY_LIVE) {
					record = kvc__load_record(p.records, e.slot);
					if (reads_before(p, e))
						before = kvc__load_record(p.records, e.prev);
				}
				look = look_at(p, e, i, kind, record, before);
				live = look & LOOK_LIVE ? e.slot : -1;
			}
			slots[threadIdx.x] = live;
			sums[threadIdx.x] = 0;
			nonfinite[threadIdx.x] = 0;
		}
		__syncthreads();
		if (p.compare_bytes) {
			if (TILES)
				sums[threadIdx.x] = kvc__fold_warp(head, strips, slots[threadIdx.x],
				        stages + threadIdx.x / 32 * KVC__TILE_WARP_BYTES);
			else
				kvc__hash_block(head, strips, slots, sums, count);
		}
		if (p.check_finite)
			for (int e = threadIdx.x / 32; e < count; e += blockDim.x / 32)
				for (int s = 0; slots[e] >= 0 && s < head.count; s++)
					if (kvc__nonfinite_lane(strips[s], slots[e]))
						nonfinite[e] = 1;
		__syncthreads();
		if ((int)threadIdx.x < count) {
			uint64_t fingerprint = sums[threadIdx.x];
			if ((look & LOOK_LIVE) && p.compare_bytes &&
			        kvc__record_of(p.records, slots[threadIdx.x])->fingerprint != fingerprint)
				look |= KVC_REASON_VERIFY_REAL_KV_HASH;
			if (nonfinite[threadIdx.x])
				look |= KVC_REASON_NONFINITE;
			tally_look(tally, look);
			if (look & (LOOK_REASONS | LOOK_END))
				report_entry(p, i, look, fingerprint);
		}
		__syncthreads();
	}
	count_block(p, tally);
}

// ---- names that the host looks up ----

#define KERNELS(SUFFIX, PARAMS) \
	KVC__KERNEL void __launch_bounds__(256, 3) kvc_verify_light##SUFFIX( \
	        const __grid_constant__ PARAMS p) \
	{ \
		verify_light((const kvc__verify_params &)p); \
	} \
	KVC__KERNEL void __launch_bounds__(KVC__ROW_THREADS, 5) kvc_verify_rows##SUFFIX( \
	        const __grid_constant__ PARAMS p) \
	{ \
		verify_batches<false>((const kvc__verify_params &)p); \
	} \
	KVC__KERNEL void __launch_bounds__(KVC__TILE_THREADS) kvc_verify_tiles##SUFFIX( \
	        const __grid_constant__ PARAMS p) \
	{ \
		verify_batches<true>((const kvc__verify_params &)p); \
	}

KERNELS(, kvc__verify_params_small)
KERNELS(_large, kvc__verify_params)

// valid_prefix before the first violation lowers it.
KVC__KERNEL void kvc_verify_prefix(const __grid_constant__ kvc__verify_params_small small)
{
	const kvc__verify_params &p = (const kvc__verify_params &)small;
	kvc__wait_for_previous();
	kvc__release_next();
	int64_t r = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
	if (r < p.batch.count)
		p.valid_prefix[r] = p.batch.prefix_lens[r] > 0 ? p.batch.prefix_lens[r] : 0;
}
