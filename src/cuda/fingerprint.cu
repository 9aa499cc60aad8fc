// Fingerprints of lists of slots, for kvc_fingerprint and for the records of a write, and the search
// for values that are not finite. A warp takes a batch of slots; slot_bytes.cuh does the rest.
#include <stddef.h>

#include "cuda/fingerprint_params.h"
#include "cuda/records.cuh"
#include "cuda/slot_bytes.cuh"

// The common kernels take the parameters with the first few strips only.
struct __align__(8) kvc__fingerprint_params_small {
	char bytes[offsetof(kvc__fingerprint_params, sources) + offsetof(kvc__strips_call, strips) +
	           KVC__STRIPS_SMALL * sizeof(kvc__strip)];
};

static __device__ __forceinline__ const kvc__strip *strips_of(const kvc__fingerprint_params &p)
{
	return (const kvc__strip *)((const char *)&p + offsetof(kvc__fingerprint_params, sources) +
	                            offsetof(kvc__strips_call, strips));
}

// The entries to look at: all, or those of a plan's requests.
static __device__ __forceinline__ void range_of(
        const kvc__fingerprint_params &p, int64_t *first, int64_t *past)
{
	*first = 0, *past = p.count;
	if (!p.offsets)
		return;
	int64_t requests = *p.num_valid;
	requests = requests > p.request_capacity ? p.request_capacity : requests;
	*past = 0;
	if (requests <= 0)
		return;
	int64_t low = p.offsets[0], high = p.offsets[requests];
	*first = low < 0 ? 0 : low > p.count ? p.count : low;
	*past = high < 0 ? 0 : high > p.count ? p.count : high;
}

static __device__ __forceinline__ bool is_wanted(const kvc__fingerprint_params &p, int64_t slot)
{
	return KVC__MOVES_ONLY || (slot >= 0 && slot < p.slot_limit && slot != p.reserved_slot);
}

enum { ROWS_ANY, ROWS_PLAIN, ROWS_TILES };

// Rounds of a warp whose results can wait in shared memory for the launch before.
#define EARLY_ROUNDS 4

static __device__ __forceinline__ int64_t wanted_slot(
        const kvc__fingerprint_params &p, int64_t i, bool mine)
{
	int64_t slot = mine ? p.slots[i] : -1;
	return is_wanted(p, slot) ? slot : -1;
}

static __device__ __forceinline__ void put(
        const kvc__fingerprint_params &p, int64_t i, bool mine, int64_t slot, uint64_t fingerprint)
{
	if (mine && !p.out_by_slot)
		*(uint64_t *)(p.out + i * p.out_stride) = fingerprint;
	else if (slot >= 0)
		*(uint64_t *)(p.out + slot * p.out_stride) = fingerprint;
}

// A lane an entry; each warp goes its own way.
template <int KIND>
static __device__ __forceinline__ void fingerprint_batches(const kvc__fingerprint_params &p)
{
	constexpr int WARPS = (KIND == ROWS_TILES ? KVC__TILE_THREADS : KVC__ROW_THREADS) / 32;
	extern __shared__ __align__(16) char stages[];
	__shared__ uint64_t early[WARPS][EARLY_ROUNDS * 32];

	kvc__row_keys keys; // no memory that an earlier kernel writes
	if (KIND == ROWS_PLAIN)
		keys.load();
	bool waits = p.is_early;
	if (!waits)
		kvc__wait_for_previous();
	kvc__release_next();
	const kvc__strips_head &head = p.sources.head;
	const kvc__strip *strips = strips_of(p);
	int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	int64_t begin, end;
	range_of(p, &begin, &end);
	int64_t n = end > begin ? end - begin : 0;
	int64_t all_warps = (int64_t)gridDim.x * WARPS;
	int batch = kvc__batch_size(n, all_warps);
	int64_t first = ((int64_t)blockIdx.x * WARPS + warp) * batch + lane, step = all_warps * batch;

	for (int round = 0;; round++) {
		int64_t at = first + round * step;
		bool over = at - lane >= n, mine = lane < batch && at < n;
		if (waits && (over || round == EARLY_ROUNDS)) {
			kvc__wait_for_previous();
			waits = false;
			for (int i = 0; i < round; i++) {
				int64_t kept = begin + first + i * step;
				bool has = lane < batch && kept < end;
				put(p, kept, has, wanted_slot(p, kept, has), early[warp][32 * i + lane]);
			}
		}
		if (over)
			break;
		int64_t slot = wanted_slot(p, begin + at, mine);
		uint64_t fingerprint = 0;
		uint64_t *sums = (uint64_t *)stages + warp * KVC__SUMS_WARP;
		if (KIND == ROWS_TILES)
			fingerprint = kvc__fold_warp(
			        head, strips, slot, stages + warp * KVC__TILE_WARP_BYTES);
		else if (KIND == ROWS_PLAIN)
			fingerprint = kvc__xxh3_plain(head, strips, keys, slot, sums);
		else if (!p.is_zero)
			fingerprint = kvc__xxh3_warp(head, strips, slot, sums);
		if (waits)
			early[warp][32 * round + lane] = fingerprint;
		else
			put(p, begin + at, mine, slot, fingerprint);
	}
}

// ---- values that are not finite ----

// A warp a slot. first_slot holds the lowest (entry, strip) so far, as one number.
static __device__ __forceinline__ void scan_finite(const kvc__fingerprint_params &p)
{
	__shared__ unsigned long long sums[2];
	const kvc__strips_head &head = p.sources.head;
	const kvc__strip *strips = strips_of(p);
	int lane = threadIdx.x % 32;
	int64_t scanned = 0, found = 0;

	kvc__wait_for_previous();
	kvc__release_next();
	if (threadIdx.x < 2)
		sums[threadIdx.x] = 0;
	__syncthreads();
	int64_t warps = (int64_t)gridDim.x * blockDim.x / 32;
	for (int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32; i < p.count;
	        i += warps) {
		int64_t slot = p.slots[i];
		if (slot < 0 || slot >= p.slot_limit)
			continue;
		scanned += lane == 0;
		for (int s = 0; s < head.count; s++) {
			kvc__place place = kvc__place_of(strips[s], slot);
			int here = 0;
			for (uint32_t at = 8 * lane; at < strips[s].finite_bytes; at += 256)
				here += __popcll(kvc__nonfinite_in(
				        kvc__finite_word(strips[s], place, at), strips[s].finite_kind));
			found += here;
			if (__any_sync(KVC__FULL_WARP, here != 0) && lane == 0)
				atomicMin((unsigned long long *)&p.scan->first_slot,
				        (unsigned long long)(i * head.count + s));
		}
	}
	kvc__add_to_block(&sums[0], scanned);
	kvc__add_to_block(&sums[1], found);
	__syncthreads();
	if (threadIdx.x == 0 && sums[0])
		atomicAdd((unsigned long long *)&p.scan->slots_scanned, sums[0]);
	if (threadIdx.x == 0 && sums[1])
		atomicAdd((unsigned long long *)&p.scan->nonfinite_count, sums[1]);
}

static __device__ __forceinline__ int element_bytes(int kind)
{
	return kind == KVC__FINITE_F64 ? 8 : kind == KVC__FINITE_F32 ? 4
	       : kind == KVC__FINITE_F16 || kind == KVC__FINITE_BF16 ? 2
	                                                             : 1;
}

// One warp: make of the lowest (entry, strip) the names of its first element that is not finite.
static __device__ __forceinline__ void name_first(const kvc__fingerprint_params &p)
{
	int lane = threadIdx.x % 32;

	kvc__wait_for_previous();
	kvc__release_next();
	int64_t key = p.scan->first_slot;
	if (key < 0)
		return;
	int64_t slot = p.slots[key / p.sources.head.count];
	const kvc__strip &strip = strips_of(p)[key % p.sources.head.count];
	kvc__place place = kvc__place_of(strip, slot);
	for (uint32_t row = 0; row < strip.finite_bytes; row += 256) {
		uint32_t at = row + 8 * lane;
		uint64_t bits = at < strip.finite_bytes
		                        ? kvc__nonfinite_in(
		                                  kvc__finite_word(strip, place, at), strip.finite_kind)
		                        : 0;
		unsigned lanes = __ballot_sync(KVC__FULL_WARP, bits != 0);
		if (!lanes)
			continue;
		if (lane == __ffs(lanes) - 1) {
			uint32_t byte = at + (uint32_t)(__ffsll((long long)bits) - 1) / 8;
			p.scan->first_slot = slot;
			p.scan->first_source_id = (int64_t)strip.id;
			p.scan->first_head = byte / strip.head_bytes;
			p.scan->first_dim = byte % strip.head_bytes / element_bytes(strip.finite_kind);
		}
		return;
	}
}

// ---- names that the host looks up ----

#define KERNELS(SUFFIX, PARAMS) \
	KVC__KERNEL void __launch_bounds__(KVC__ROW_THREADS, KVC__ROW_BLOCKS) kvc_fingerprint_rows##SUFFIX( \
	        const __grid_constant__ PARAMS p) \
	{ \
		fingerprint_batches<ROWS_ANY>((const kvc__fingerprint_params &)p); \
	} \
	KVC__KERNEL void __launch_bounds__(KVC__ROW_THREADS, KVC__ROW_BLOCKS) kvc_fingerprint_plain##SUFFIX( \
	        const __grid_constant__ PARAMS p) \
	{ \
		fingerprint_batches<ROWS_PLAIN>((const kvc__fingerprint_params &)p); \
	} \
	KVC__KERNEL void __launch_bounds__(KVC__TILE_THREADS, KVC__TILE_BLOCKS) kvc_fingerprint_tiles##SUFFIX( \
	        const __grid_constant__ PARAMS p) \
	{ \
		fingerprint_batches<ROWS_TILES>((const kvc__fingerprint_params &)p); \
	} \
	KVC__KERNEL void __launch_bounds__(256) kvc_fingerprint_scan##SUFFIX( \
	        const __grid_constant__ PARAMS p) \
	{ \
		scan_finite((const kvc__fingerprint_params &)p); \
	} \
	KVC__KERNEL void __launch_bounds__(32) kvc_fingerprint_first##SUFFIX( \
	        const __grid_constant__ PARAMS p) \
	{ \
		name_first((const kvc__fingerprint_params &)p); \
	}

KERNELS(, kvc__fingerprint_params_small)
KERNELS(_large, kvc__fingerprint_params)
