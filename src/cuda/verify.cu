// kvc_canary_verify on the device: src/cpu/verify_portable.c, entry by entry, rows in any order.
//
// Two kinds of kernels. Light ones have no long rows to hash: a thread an entry, few registers, so that
// many entries' dependent loads (entry, then record) overlap. They ask only whether all is as it
// nearly always is; whatever is not goes through judge(), which does everything by the rules. The
// others ('rows' for xxh3, 'tiles' for splitmix) take a batch of entries a warp: a lane an entry
// looks at everything but the bytes, then the warp hashes the batch's slots, then each lane compares.
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

// Read once: the cache is for the records.
static __device__ __forceinline__ Entry load_entry(const kvc__verify_params &p, int64_t i)
{
	Entry e;
	e.slot = __ldcs(p.slots + i);
	e.prev = __ldcs(p.prev_slots + i);
	e.token = p.check_tokens ? __ldcs(p.expected_tokens + i) : -1;
	e.position = __ldcs(p.expected_positions + i);
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
	int count = min(max(*p.num_valid, 0), (int)p.capacity); // an int32, as the front door sees to
	return *p.enable == 0 ? 0 : count;
}

// ---- counting ----

// In shared memory, by block. Entries without a record are counted, not those with: they are few.
struct Tally {
	unsigned skipped, unchecked, unhashed;
};

static __device__ __forceinline__ void tally_look(Tally &tally, int look)
{
	if (look & LOOK_SKIPPED)
		atomicAdd(&tally.skipped, 1u);
	if (look & LOOK_UNCHECKED)
		atomicAdd(&tally.unchecked, 1u);
	if (!(look & LOOK_LIVE))
		atomicAdd(&tally.unhashed, 1u);
}

static __device__ __forceinline__ int64_t hashed_bytes(const kvc__verify_params &p, int64_t entries)
{
	return p.compare_bytes ? entries * p.sources.head.bytes_hashed : 0;
}

// What the call did in all, as if every entry had a record; one row says what the plan stated
// wrongly. By one thread of the last block, which has nothing else to do.
static __device__ __noinline__ void count_call(const kvc__verify_params &p)
{
	int64_t count = entry_count(p), stated = *p.num_valid;
	kvc__cuda_tally tally = { count, 0, 0, hashed_bytes(p, count), p.left_out ? *p.left_out : 0 };
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

// Blocks that look at entries, and whether this one is the other.
static __device__ __forceinline__ int64_t worker_blocks()
{
	return (int64_t)gridDim.x - 1;
}

static __device__ __forceinline__ bool counts_only(const kvc__verify_params &p)
{
	if (blockIdx.x != gridDim.x - 1)
		return false;
	if (threadIdx.x == 0)
		count_call(p);
	return true;
}

static __device__ __forceinline__ void begin_count(Tally &tally)
{
	if (threadIdx.x == 0)
		tally = { 0, 0, 0 };
	__syncthreads();
}

static __device__ __forceinline__ void end_count(const kvc__verify_params &p, const Tally &tally)
{
	__syncthreads();
	if (threadIdx.x != 0 || (tally.skipped | tally.unchecked | tally.unhashed) == 0)
		return;
	kvc__cuda_tally all = { 0, tally.skipped, tally.unchecked,
		-hashed_bytes(p, tally.unhashed), 0 };
	kvc__ring_count(p.ring, all, 0);
}

// ---- light: a thread an entry ----

// What the bytes need: nothing, one piece of 16 bytes, or some short rows.
enum { BYTES_NONE, BYTES_PIECE, BYTES_SHORT };

// One entry by all the rules.
static __device__ __noinline__ void judge(const kvc__verify_params &p, int64_t i, Tally &tally)
{
	Entry e = load_entry(p, i);
	kvc_record record = { 0, 0, 0, 0 }, before = { 0, 0, 0, 0 };
	int kind = entry_kind(p, e, i);
	if (kind == ENTRY_LIVE) {
		record = kvc__load_record(p.records, e.slot);
		if (reads_before(p, e))
			before = kvc__load_record(p.records, e.prev);
	}
	int look = look_at(p, e, i, kind, record, before);
	uint64_t found = 0;
	if ((look & LOOK_LIVE) && p.compare_bytes) {
		found = kvc__hash_thread(p.sources.head, strips_of(p), e.slot);
		if (found != record.fingerprint)
			look |= KVC_REASON_VERIFY_REAL_KV_HASH;
	}
	tally_look(tally, look);
	if (look & (LOOK_REASONS | LOOK_END))
		report_entry(p, i, look, found);
}

// What looking at an entry loads, for the build that only moves.
template <int BYTES>
static __device__ __forceinline__ void move_entry(
        const kvc__verify_params &p, const Entry &e, bool with_before)
{
	kvc_record record = kvc__load_record(p.records, e.slot), before = { 0, 0, 0, 0 };
	uint64_t bytes = 0;
	if (BYTES == BYTES_PIECE)
		bytes = kvc__xor_words(__ldg((const uint4 *)kvc__place_of(strips_of(p)[0], e.slot).at));
	if (BYTES == BYTES_SHORT)
		bytes = kvc__hash_thread(p.sources.head, strips_of(p), e.slot);
	if (with_before && e.prev >= 0)
		before = kvc__load_record(p.records, e.prev);
	kvc__keep(bytes ^ (uint64_t)(e.token ^ e.position) ^
	          (uint64_t)(record.token ^ record.position) ^ record.prev_hash ^
	          record.fingerprint ^ (uint64_t)(before.token ^ before.position) ^ before.prev_hash);
}

// Is there a record to look at, or to come from? PLAIN, here and below: what p.is_plain says.
template <bool PLAIN>
static __device__ __forceinline__ bool is_read(const kvc__verify_params &p, int64_t slot)
{
	if (PLAIN)
		return (uint64_t)slot < (uint32_t)p.records.count && (uint32_t)slot != (uint32_t)p.unread_slot;
	return kvc__has_record(p.records, slot) && slot != p.unread_slot;
}

template <bool PLAIN>
static __device__ __forceinline__ kvc_record read_record(const kvc__cuda_records &records, int64_t slot)
{
	if (!PLAIN)
		return kvc__load_record(records, slot);
	const longlong2 *from =
	        (const longlong2 *)(records.data + (uint64_t)(uint32_t)slot * (uint32_t)records.stride);
	longlong2 a = from[0], b = from[1];
	return { a.x, a.y, (uint64_t)b.x, (uint64_t)b.y };
}

template <bool PLAIN>
static __device__ __forceinline__ uint4 read_piece(const kvc__strip &strip, int64_t slot)
{
	const char *at = PLAIN ? strip.base + (uint64_t)(uint32_t)slot * (uint32_t)strip.row_stride
	                       : kvc__place_of(strip, slot).at;
	return __ldg((const uint4 *)at);
}

// What the lane before has; its own in lane 0.
template <bool PLAIN>
static __device__ __forceinline__ uint64_t slot_before(int64_t slot)
{
	return PLAIN ? __shfl_up_sync(KVC__FULL_WARP, (uint32_t)slot, 1)
	             : __shfl_up_sync(KVC__FULL_WARP, (uint64_t)slot, 1);
}

static __device__ __forceinline__ Entry no_entry()
{
	return { -1, -1, -1, 0 };
}

// Which of this thread's entries are not plainly sound: a bit for every 32nd of them. 'i' and 'e': the
// first one. By whole warps: a predecessor is mostly the entry before, whose record the neighbour has. Where
// that one has no record, it has zeros, whose next is zero, which is never sound: judge() knows better.
template <int BYTES, bool PLAIN>
static __device__ __forceinline__ unsigned find_unsound(
        const kvc__verify_params &p, unsigned i, Entry e, unsigned n, unsigned step)
{
	const kvc__strip &strip = strips_of(p)[0];
	const unsigned lane = threadIdx.x % 32;
	unsigned unsound = 0;
	for (int k = 0; i - lane < n; k++, i += step) {
		if (KVC__MOVES_ONLY) {
			if (i < n) // the neighbour has the predecessor's record
				move_entry<BYTES>(p, e, lane == 0);
			if (i + step < n)
				e = load_entry(p, i + step);
			continue;
		}
		kvc_record record = { 0, 0, 0, 0 }, before = { 0, 0, 0, 0 };
		uint4 piece = make_uint4(0, 0, 0, 0);
		if (i < n && is_read<PLAIN>(p, e.slot)) {
			if (BYTES == BYTES_PIECE)
				piece = read_piece<PLAIN>(strip, e.slot);
			record = read_record<PLAIN>(p.records, e.slot);
		}
		bool linked = (uint64_t)e.prev == slot_before<PLAIN>(e.slot);
		bool fetch = !linked && i < n && is_read<PLAIN>(p, e.prev);
		if (fetch)
			before = read_record<PLAIN>(p.records, e.prev);
		int64_t token = __shfl_up_sync(KVC__FULL_WARP, record.token, 1);
		int64_t position = __shfl_up_sync(KVC__FULL_WARP, record.position, 1);
		uint64_t hash = __shfl_up_sync(KVC__FULL_WARP, record.prev_hash, 1);
		if (!fetch)
			before = { token, position, hash, 0 };
		uint64_t chain = kvc__next_of(before);
		bool starts = !fetch && !linked;
		if (starts)
			chain = kvc__chain_start(0);
		// A chain that is not zero is also not that of a record never stamped; judge() knows about one that is.
		bool sound = (record.prev_hash == chain) & (chain != 0) & (record.position == e.position) &
		             ((e.token == -1) | (record.token == e.token));
		if (starts)
			sound = sound && e.prev == PREV_START && !p.batch.namespaces &&
			        !(p.own_rules && e.position > 0);
		if (BYTES == BYTES_PIECE)
			sound &= kvc__hash_piece(p.sources.head, strip, piece) == record.fingerprint;
		if (BYTES == BYTES_SHORT && sound)
			sound = kvc__hash_thread(p.sources.head, &strip, e.slot) == record.fingerprint;
		if (p.batch.chain_end)
			sound = sound && !ends_badly(p, e, i, record);
		unsound |= (unsigned)(i < n && !sound) << k % 32;
		if (i + step - lane < n)
			e = i + step < n ? load_entry(p, i + step) : no_entry();
	}
	return unsound;
}

// All that find_unsound() found, of a whole block. Apart from it: what it holds in registers would go to memory if
// calls were made beside it.
static __device__ __noinline__ void judge_unsound(
        const kvc__verify_params &p, unsigned unsound, unsigned i, unsigned n, unsigned step)
{
	__shared__ Tally tally;
	begin_count(tally);
	for (int k = 0; unsound && i < n; k++, i += step)
		if (unsound >> k % 32 & 1)
			judge(p, i, tally);
	end_count(p, tally);
}

template <int BYTES>
static __device__ __forceinline__ void verify_light(const kvc__verify_params &p)
{
	kvc__wait_for_previous();
	kvc__release_next();
	if (counts_only(p))
		return;
	// Counts are int32, so numbers of entries fit, and a step past them too.
	unsigned step = (unsigned)worker_blocks() * blockDim.x;
	unsigned first = blockIdx.x * blockDim.x + threadIdx.x;
	// The first entry is asked for before it is known how many there are.
	Entry e = first < (unsigned)p.capacity ? load_entry(p, first) : no_entry();
	unsigned n = (unsigned)entry_count(p);
	unsigned unsound = p.is_plain ? find_unsound<BYTES, true>(p, first, e, n, step)
	                              : find_unsound<BYTES, false>(p, first, e, n, step);
	if (!KVC__MOVES_ONLY && __syncthreads_or(unsound != 0))
		judge_unsound(p, unsound, first, n, step);
}

// ---- rows and tiles: a lane an entry, a warp a batch ----

// Lanes whose entry holds a value that is not finite, as a mask. By a whole warp.
static __device__ __noinline__ unsigned find_nonfinite(const kvc__verify_params &p, int64_t slot)
{
	const kvc__strips_head &head = p.sources.head;
	unsigned found = 0;
	for (int e = 0; e < 32; e++) {
		int64_t other = __shfl_sync(KVC__FULL_WARP, slot, e);
		for (int s = 0; other >= 0 && s < head.count; s++)
			if (__any_sync(KVC__FULL_WARP, kvc__nonfinite_lane(strips_of(p)[s], other)))
				found |= 1u << e;
	}
	return found;
}

// Everything about this lane's entry but its bytes: what looking gave, *live its slot if the bytes
// count, or -1, *stored their fingerprint.
static __device__ __forceinline__ int look_whole(const kvc__verify_params &p, int64_t i, bool mine,
        int64_t *live, uint64_t *stored)
{
	*live = -1;
	*stored = 0;
	if (!mine)
		return LOOK_LIVE;
	Entry e = load_entry(p, i);
	if (KVC__MOVES_ONLY) {
		move_entry<BYTES_NONE>(p, e, true);
		*live = e.slot;
		return LOOK_LIVE;
	}
	kvc_record record = { 0, 0, 0, 0 }, before = { 0, 0, 0, 0 };
	int kind = entry_kind(p, e, i);
	if (kind == ENTRY_LIVE) {
		record = kvc__load_record(p.records, e.slot);
		if (reads_before(p, e))
			before = kvc__load_record(p.records, e.prev);
	}
	int look = look_at(p, e, i, kind, record, before);
	*live = look & LOOK_LIVE ? e.slot : -1;
	*stored = record.fingerprint;
	return look;
}

// Entry i of each lane that has one, by all the rules.
template <bool TILES>
static __device__ __forceinline__ void judge_batch(
        const kvc__verify_params &p, int64_t i, bool mine, char *stage, Tally &tally)
{
	int64_t live;
	uint64_t stored, found = 0;
	int look = look_whole(p, i, mine, &live, &stored);
	__syncwarp();
	if (p.compare_bytes) {
		const kvc__strips_head &head = p.sources.head;
		found = TILES ? kvc__fold_warp(head, strips_of(p), live, stage)
		              : kvc__xxh3_warp(head, strips_of(p), live, (uint64_t *)stage);
		if (KVC__MOVES_ONLY) {
			kvc__keep(found);
			return;
		}
		if (live >= 0 && found != stored)
			look |= KVC_REASON_VERIFY_REAL_KV_HASH;
	}
	if (p.check_finite && (find_nonfinite(p, live) >> threadIdx.x % 32 & 1))
		look |= KVC_REASON_NONFINITE;
	if (mine && look != LOOK_LIVE) {
		tally_look(tally, look);
		if (look & (LOOK_REASONS | LOOK_END))
			report_entry(p, i, look, found);
	}
	__syncwarp();
}

enum { ROWS_ANY, ROWS_PLAIN, ROWS_TILES };

// Plain rows go in two loops, as with the light kernels.
template <int KIND>
static __device__ __forceinline__ void verify_batches(const kvc__verify_params &p)
{
	__shared__ Tally tally;
	extern __shared__ __align__(16) char stages[];

	kvc__row_keys keys; // no memory that an earlier kernel writes
	if (KIND == ROWS_PLAIN)
		keys.load();
	kvc__wait_for_previous();
	kvc__release_next();
	if (counts_only(p))
		return;
	int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
	char *stage = stages + warp * (KIND == ROWS_TILES ? KVC__TILE_WARP_BYTES : KVC__SUMS_WARP * 8);
	int64_t n = entry_count(p), all_warps = worker_blocks() * warps;
	int batch = kvc__batch_size(n, all_warps);
	int64_t first = ((int64_t)blockIdx.x * warps + warp) * batch, step = all_warps * batch;

	begin_count(tally);
	unsigned unsound = KIND == ROWS_PLAIN ? 0 : ~0u;
	int k = 0;
	for (int64_t i = first + lane; KIND == ROWS_PLAIN && i - lane < n; i += step, k++) {
		int64_t live;
		uint64_t stored;
		int look = look_whole(p, i, lane < batch && i < n, &live, &stored);
		uint64_t found = kvc__xxh3_plain(
		        p.sources.head, strips_of(p), keys, live, (uint64_t *)stage);
		if (KVC__MOVES_ONLY) {
			kvc__keep(found);
			continue;
		}
		unsound |= (unsigned)(look != LOOK_LIVE || (live >= 0 && found != stored)) << k % 32;
	}
	unsound = __reduce_or_sync(KVC__FULL_WARP, unsound);
	k = 0;
	for (int64_t i = first + lane; unsound && i - lane < n; i += step, k++)
		if (unsound >> k % 32 & 1)
			judge_batch<KIND == ROWS_TILES>(p, i, lane < batch && i < n, stage, tally);
	end_count(p, tally);
}

// ---- names that the host looks up ----

#define LIGHT(NAME, PARAMS, BYTES) \
	KVC__KERNEL void __launch_bounds__(KVC__LIGHT_THREADS, BYTES == BYTES_NONE ? KVC__LIGHT_BLOCKS : KVC__PIECE_BLOCKS) NAME(const __grid_constant__ PARAMS p) \
	{ \
		verify_light<BYTES>((const kvc__verify_params &)p); \
	}
#define KERNELS(SUFFIX, PARAMS) \
	LIGHT(kvc_verify_short##SUFFIX, PARAMS, BYTES_SHORT) \
	KVC__KERNEL void __launch_bounds__(KVC__ROW_THREADS, KVC__ROW_BLOCKS) \
	        kvc_verify_plain##SUFFIX(const __grid_constant__ PARAMS p) \
	{ \
		verify_batches<ROWS_PLAIN>((const kvc__verify_params &)p); \
	} \
	KVC__KERNEL void __launch_bounds__(KVC__ROW_THREADS, KVC__ROW_BLOCKS) \
	        kvc_verify_rows##SUFFIX(const __grid_constant__ PARAMS p) \
	{ \
		verify_batches<ROWS_ANY>((const kvc__verify_params &)p); \
	} \
	KVC__KERNEL void __launch_bounds__(KVC__TILE_THREADS, KVC__TILE_BLOCKS) \
	        kvc_verify_tiles##SUFFIX(const __grid_constant__ PARAMS p) \
	{ \
		verify_batches<ROWS_TILES>((const kvc__verify_params &)p); \
	}

LIGHT(kvc_verify_light, kvc__verify_params_small, BYTES_NONE)
LIGHT(kvc_verify_piece, kvc__verify_params_small, BYTES_PIECE)
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
