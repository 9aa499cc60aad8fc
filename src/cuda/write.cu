// kvc_canary_write on the device: src/cpu/write_portable.c, requests in parallel.
//
// A chain is serial, fingerprints are not, and the two do not need each other. What orders the work
// is that a request starts from the record of its seed, which another request of the call may write:
//
//   mark    (with scratch) each slot's winner, the last entry that writes it: scratch[slot] is its
//           request and entry, by atomicMax
//   chain   every request's chain. Each link waits in the fingerprint field of its record, which no
//           chain reads, so seeds are still as before the call
//   settle  links, tokens, positions and owners go where they belong; scratch is zero again
//   hash    fingerprint.cu: fingerprints over whatever lay in their fields
//
// With scratch a seed that this call writes is not read at all: the request walks the chain of the
// one before, from its own start, up to the seed. That costs what waiting for it would cost, and
// nobody waits, so nothing can deadlock whatever blocks are resident.
//
// Up to a thousand tokens the launches would be the time, so there is one: a block marks, walks and
// settles, with links in its shared memory and barriers between the steps, while a warp of other
// blocks hashes each slot (kvc_write_small). They need no barrier among them: no chain reads
// fingerprints, and whoever writes a slot, its bytes are the same.
//
// A decode step is smaller still: without scratch, and with a thread for every request, records are settled as
// chains are walked (kvc_write_step, apart from the other so that the way through its code is short).
//
// In larger calls fingerprints are worked out while chains are walked, and stored behind 'settle',
// which for that lets the next launch begin before its own turn has come.
//
// Over SGLang's interface seeds are as before the call; its reference works in request order.
#include <stddef.h>

#include "cuda/records.cuh"
#include "cuda/ring.cuh"
#include "cuda/slot_bytes.cuh"
#include "cuda/write_params.h"

// The steps take the parameters without the strips, the one-launch forms with the first few.
struct __align__(8) kvc__write_params_head {
	char bytes[offsetof(kvc__write_params, sources)];
};
struct __align__(8) kvc__write_params_small {
	char bytes[offsetof(kvc__write_params, sources) + offsetof(kvc__strips_call, strips) +
	           KVC__STRIPS_SMALL * sizeof(kvc__strip)];
};

// ---- entries and requests ----

static __device__ __forceinline__ int64_t clamp_count(const kvc__write_params &p, int64_t stated)
{
	return stated < 0 ? 0 : stated > p.request_capacity ? p.request_capacity : stated;
}

static __device__ __forceinline__ int64_t request_count(const kvc__write_params &p)
{
	return clamp_count(p, *p.num_valid);
}

// What offsets say may be anything, so they are kept within the tokens: no sum or difference of
// them can overflow.
static __device__ __forceinline__ int64_t within_tokens(const kvc__write_params &p, int64_t offset)
{
	return offset < 0 ? 0 : offset > p.token_count ? p.token_count : offset;
}

static __device__ __forceinline__ int64_t offset_at(const kvc__write_params &p, int64_t r)
{
	return within_tokens(p, p.offsets[r]);
}

static __device__ __forceinline__ int64_t first_entry(const kvc__write_params &p, int64_t r)
{
	return offset_at(p, r);
}

static __device__ __forceinline__ int64_t past_entry(const kvc__write_params &p, int64_t r)
{
	return offset_at(p, r + 1);
}

// The entries of a request, and what its offsets say.
struct Span {
	int64_t first, past;
	int64_t stated_first, stated_past;
};

static __device__ __forceinline__ Span span_of(const kvc__write_params &p, int64_t r)
{
	int64_t first = p.offsets[r], past = p.offsets[r + 1];
	return { within_tokens(p, first), within_tokens(p, past), first, past };
}

// Does this slot get a record?
static __device__ __forceinline__ bool is_stored(const kvc__write_params &p, int64_t slot)
{
	if (KVC__MOVES_ONLY)
		return slot >= 0; // -1: a request without a seed
	return kvc__has_record(p.records, slot) &&
	       !(p.own_rules && slot == p.records.reserved_slot);
}

// The last of n requests that begins at or before entry e; n > 0.
static __device__ __forceinline__ int64_t request_at(
        const kvc__write_params &p, int64_t n, int64_t e)
{
	int64_t low = 0, high = n;
	while (high - low > 1) {
		int64_t middle = (low + high) / 2;
		if (p.offsets[middle] <= e)
			low = middle;
		else
			high = middle;
	}
	return low;
}

static __device__ __forceinline__ int64_t mark_of(int64_t r, int64_t e)
{
	return r << 32 | (e + 1);
}

// Without scratch every entry writes.
static __device__ __forceinline__ bool is_winner(
        const kvc__write_params &p, int64_t slot, int64_t e)
{
	return !p.scratch || (uint32_t)p.scratch[slot] == (uint32_t)(e + 1);
}

static __device__ __forceinline__ void mark_entry(
        const kvc__write_params &p, int64_t n, int64_t e)
{
	int64_t slot = p.slots[e];
	if (is_stored(p, slot))
		atomicMax((unsigned long long *)&p.scratch[slot],
		        (unsigned long long)mark_of(request_at(p, n, e), e));
}

// Does what the offsets say make no sense? Then an entry may be several requests': it is request_at()'s.
static __device__ __forceinline__ bool is_wild(const kvc__write_params &p, const Span &span)
{
	return span.stated_first < 0 || span.stated_past < span.stated_first ||
	       span.stated_past > p.token_count;
}

// ---- where a chain starts ----

struct Start {
	uint64_t chain;
	int64_t position; // of the slot before the first entry, if has_position
	int has_position;
	int check_steps;
	int refused; // the seed is no slot to start from: slot_range
};

static __device__ __forceinline__ int64_t chain_in(const kvc__write_params &p, int64_t r)
{
	return kvc__value_of(p.batch, p.batch.write_chain_in, r, 0);
}

static __device__ __forceinline__ bool checks_steps(const kvc__write_params &p)
{
	return p.check_steps && *p.check_steps != 0;
}

// The first entry of request r that is stored, -1 if none.
static __device__ int64_t first_stored(const kvc__write_params &p, int64_t r)
{
	for (int64_t e = first_entry(p, r); e < past_entry(p, r); e++)
		if (is_stored(p, p.slots[e]))
			return e;
	return -1;
}

static __device__ __forceinline__ Start start_anew(const kvc__write_params &p, int64_t r)
{
	Start start = { 0, 0, 0, 0, 0 };
	start.chain = kvc__chain_start((uint64_t)kvc__value_of(p.batch, p.batch.namespaces, r, 0));
	return start;
}

// The start of a request with the records as they are now.
static __device__ __forceinline__ Start start_of(const kvc__write_params &p, int64_t r)
{
	Start start = start_anew(p, r);
	int64_t seed = p.seeds[r];
	if (chain_in(p, r) != 0) {
		start.chain = (uint64_t)chain_in(p, r);
		start.check_steps = checks_steps(p);
	} else if (is_stored(p, seed)) {
		kvc_record record = kvc__load_record(p.records, seed);
		start.chain = kvc__next_of(record);
		start.position = record.position;
		start.has_position = 1;
		start.check_steps = checks_steps(p);
	} else if (p.own_rules) {
		int64_t first = first_stored(p, r);
		start.refused = first >= 0 && (seed >= 0 || p.positions[first] > 0);
	}
	return start;
}

// ---- requests that start from each other ----

// The request that writes r's seed, and the entry that does; -1 if r can start by itself. A mark is
// believed only if the entry that it names does write the slot: the scratch may not have been zero.
static __device__ __forceinline__ int64_t request_before(
        const kvc__write_params &p, int64_t n, int64_t r, int64_t *entry)
{
	int64_t seed = p.seeds[r];
	if (!p.scratch || chain_in(p, r) != 0 || !is_stored(p, seed))
		return -1;
	int64_t mark = *(volatile int64_t *)&p.scratch[seed];
	int64_t q = mark >> 32, e = (int64_t)(uint32_t)mark - 1;
	if (q < 0 || q >= n || e < first_entry(p, q) || e >= past_entry(p, q) || p.slots[e] != seed)
		return -1;
	*entry = e;
	return q;
}

// How request r's chain comes about: from the request 'depth' steps before it on, each walked up to
// the entry that the next one starts from. 'cycle': that one starts anew, because the requests
// before it form a cycle that it is part of.
struct Path {
	int64_t depth;
	int cycle;
};

static __device__ Path find_path(const kvc__write_params &p, int64_t n, int64_t r)
{
	// Brent's search: the slow one jumps to where the fast one is, at powers of two.
	int64_t slow = r, entry, fast = request_before(p, n, r, &entry);
	int64_t steps = 1, length = 1, power = 1;
	while (fast >= 0 && fast != slow) {
		if (power == length) {
			slow = fast;
			power *= 2;
			length = 0;
		}
		fast = request_before(p, n, fast, &entry);
		length++;
		steps++;
	}
	if (fast < 0)
		return { steps - 1, 0 };
	fast = slow = r;
	for (int64_t i = 0; i < length; i++)
		fast = request_before(p, n, fast, &entry);
	int64_t depth = 0;
	for (; slow != fast; depth++) {
		slow = request_before(p, n, slow, &entry);
		fast = request_before(p, n, fast, &entry);
	}
	return { depth, 1 };
}

// The requests of a path from its far end, a few at a time: they are only known backwards.
struct Ancestors {
	enum { KEPT = 16 };
	int64_t request[KEPT], past[KEPT]; // of steps base + 1, base + 2, ... before r
	int64_t base;

	// 'k' steps before r, k >= 1: the request, and the entry behind the one that it is left at.
	__device__ void find(const kvc__write_params &p, int64_t n, int64_t r, int64_t k)
	{
		int64_t entry = 0;
		base = (k - 1) / KEPT * KEPT;
		for (int64_t i = 1; i <= k; i++) {
			r = request_before(p, n, r, &entry);
			if (r < 0)
				return;
			if (i > base) {
				request[i - base - 1] = r;
				past[i - base - 1] = entry + 1;
			}
		}
	}
};

// ---- violations ----

static __device__ __noinline__ void report_seed(const kvc__write_params &p, int64_t r)
{
	kvc_violation row = {};
	row.launch_tag = p.launch_tag;
	row.slot = p.seeds[r];
	row.position = row.expected_position = p.positions[first_stored(p, r)];
	row.expected_token = -1;
	row.reasons = KVC_REASON_SLOT_RANGE;
	kvc__row_context(row, p.records, p.batch, r, row.slot);
	kvc__ring_put(p.ring, row);
}

// What the CPU refuses and only the device sees: a count, an offset (slot -1, 'position' is it), or
// the slot of an entry.
static __device__ __noinline__ void report_range(
        const kvc__write_params &p, int64_t r, int64_t slot, int64_t position)
{
	kvc_violation row = {};
	row.launch_tag = p.launch_tag;
	row.slot = slot;
	row.position = row.expected_position = position;
	row.expected_token = -1;
	row.reasons = KVC_REASON_SLOT_RANGE;
	kvc__row_context(row, p.records, p.batch, r, -1);
	kvc__ring_put(p.ring, row);
}

static __device__ __noinline__ void report_entry(const kvc__write_params &p, int64_t r, int64_t e,
        uint64_t chain, int64_t expected_token, int64_t expected_position, int64_t reasons)
{
	kvc_violation row = {};
	row.launch_tag = p.launch_tag;
	row.slot = p.slots[e];
	row.position = p.positions[e];
	row.stored_token = p.tokens[e];
	row.expected_token = expected_token;
	row.stored_chain = chain;
	row.expected_aux = (uint64_t)expected_position;
	row.expected_position = expected_position;
	row.reasons = reasons;
	kvc__row_context(row, p.records, p.batch, r, row.slot);
	kvc__ring_put(p.ring, row);
}

static __device__ __forceinline__ void check_input(
        const kvc__write_params &p, int64_t r, int64_t e, uint64_t chain)
{
	if (!p.expected_tokens)
		return;
	int64_t token = p.expected_tokens[e], position = p.expected_positions[e];
	int64_t reasons = (p.tokens[e] != token ? KVC_REASON_WRITE_TOKEN : 0) |
	                  (p.positions[e] != position ? KVC_REASON_WRITE_POSITION : 0);
	if (reasons)
		report_entry(p, r, e, chain, token, position, reasons);
}

static __device__ __forceinline__ void check_step(
        const kvc__write_params &p, int64_t r, int64_t e, uint64_t chain, int64_t before)
{
	int64_t expected = (int64_t)((uint64_t)before + 1);
	if (p.positions[e] != expected)
		report_entry(p, r, e, chain, p.tokens[e], expected, KVC_REASON_WRITE_POSITION);
}

static __device__ __forceinline__ void check_slot(
        const kvc__write_params &p, int64_t r, int64_t e, int64_t slot)
{
	if (p.own_rules && slot >= p.records.count && slot != p.records.reserved_slot)
		report_range(p, r, slot, p.positions[e]);
}

static __device__ __forceinline__ void check_offsets(
        const kvc__write_params &p, int64_t r, const Span &span)
{
	if (p.own_rules && is_wild(p, span))
		report_range(p, r, -1, span.stated_past);
}

// The link waits in the fingerprint field until all chains are walked.
static __device__ __forceinline__ void park(
        const kvc__write_params &p, int64_t slot, int64_t e, uint64_t chain)
{
	if (is_winner(p, slot, e))
		kvc__record_of(p.records, slot)->fingerprint = chain;
}

// ---- chains by one thread ----

// Where a call's entries are read from: the arrays of the call, or a copy in shared memory.
struct Entries {
	const int64_t *slots, *tokens, *positions;
};

static __device__ __forceinline__ Entries entries_of(const kvc__write_params &p)
{
	return { p.slots, p.tokens, p.positions };
}

// Walk entries first .. past without storing; the chain behind them.
static __device__ uint64_t follow_thread(
        const kvc__write_params &p, int64_t first, int64_t past, uint64_t chain)
{
	for (int64_t e = first; e < past; e++)
		if (is_stored(p, p.slots[e]))
			chain = kvc__chain_next(chain, p.tokens[e], p.positions[e]);
	return chain;
}

static __device__ Start start_thread(const kvc__write_params &p, int64_t n, int64_t r)
{
	Path path = { 0, 0 };
	int64_t entry;
	if (request_before(p, n, r, &entry) >= 0)
		path = find_path(p, n, r);
	if (path.depth == 0) {
		Start start = path.cycle ? start_anew(p, r) : start_of(p, r);
		if (path.cycle)
			start.refused = first_stored(p, r) >= 0;
		return start;
	}
	Ancestors ancestors;
	Start start = { 0, 0, 0, 0, 0 };
	for (int64_t k = path.depth; k > 0; k--) {
		if (k == path.depth || k <= ancestors.base)
			ancestors.find(p, n, r, k);
		int64_t q = ancestors.request[k - ancestors.base - 1];
		int64_t past = ancestors.past[k - ancestors.base - 1];
		if (k == path.depth)
			start.chain = path.cycle ? start_anew(p, q).chain : start_of(p, q).chain;
		start.chain = follow_thread(p, first_entry(p, q), past, start.chain);
		start.position = p.positions[past - 1];
	}
	start.has_position = 1;
	start.check_steps = checks_steps(p);
	return start;
}

// Walk request r from its start on; put(entry, slot, link) for every entry that is stored. How many those are.
template <typename Put>
static __device__ __forceinline__ int walk_thread(const kvc__write_params &p, const Entries &in,
        int64_t r, const Span &span, Start at, Put put)
{
	int64_t e = span.first, past = span.past;
	int stored = 0;
	check_offsets(p, r, span);
	if (e >= past)
		return 0;
	// The next entry is under way while this one is hashed.
	int64_t slot = in.slots[e], token = in.tokens[e], position = in.positions[e];
	if (at.refused)
		report_seed(p, r);
	for (; e < past; e++) {
		int64_t next_slot = 0, next_token = 0, next_position = 0;
		bool is_last = e + 1 == past;
		if (!is_last) {
			next_slot = in.slots[e + 1];
			next_token = in.tokens[e + 1];
			next_position = in.positions[e + 1];
		}
		if (is_stored(p, slot)) {
			check_input(p, r, e, at.chain);
			if (at.check_steps) {
				if (at.has_position)
					check_step(p, r, e, at.chain, at.position);
				at.position = position;
				at.has_position = 1;
			}
			put(e, slot, at.chain);
			stored++;
			if (!is_last)
				at.chain = kvc__chain_next(at.chain, token, position);
		} else {
			check_slot(p, r, e, slot);
		}
		slot = next_slot, token = next_token, position = next_position;
	}
	return stored;
}

// ---- chains by a block ----

#define TILE 256
#define WALK_THREADS 256
#define WALK_SHORT 32 // entries up to which a thread does it

// Warp 0 walks tile t - 1 while the other warps fetch tile t and put away tile t - 2.
struct Walk {
	ulonglong2 word[2][TILE]; // token, position
	uint64_t link[2][TILE];
	uint8_t stored[2][TILE];
	int any_skipped[2];
	int64_t carry_position[2]; // of the last stored entry before the tile
	int carry_has[2];
	Start start;
	Path path;
	int64_t request, first, past;
	uint64_t chain;
};

static __device__ __forceinline__ void fetch_tile(
        const kvc__write_params &p, Walk &w, int64_t begin, int count, int b)
{
	for (int i = threadIdx.x - 32; i < count; i += WALK_THREADS - 32) {
		bool stored = is_stored(p, p.slots[begin + i]);
		w.word[b][i] = make_ulonglong2((unsigned long long)p.tokens[begin + i],
		        (unsigned long long)p.positions[begin + i]);
		w.stored[b][i] = stored;
		if (!stored)
			w.any_skipped[b] = 1;
	}
}

// The serial part; thread 0.
static __device__ __forceinline__ uint64_t walk_tile(Walk &w, int count, int b, uint64_t chain)
{
	const ulonglong2 *word = w.word[b];
	uint64_t *link = w.link[b];
	if (!w.any_skipped[b]) {
#pragma unroll 8
		for (int i = 0; i < count; i++) {
			ulonglong2 now = word[i];
			link[i] = chain;
			chain = kvc__mix3(chain, now.x, now.y);
		}
		return chain;
	}
	for (int i = 0; i < count; i++) {
		link[i] = chain;
		if (w.stored[b][i])
			chain = kvc__mix3(chain, word[i].x, word[i].y);
	}
	w.any_skipped[b] = 0;
	return chain;
}

static __device__ __forceinline__ void put_tile(
        const kvc__write_params &p, Walk &w, int64_t r, int64_t begin, int count, int b)
{
	for (int i = threadIdx.x - 32; i < count; i += WALK_THREADS - 32) {
		int64_t e = begin + i, slot = p.slots[e];
		if (!is_stored(p, slot)) {
			check_slot(p, r, e, slot);
			continue;
		}
		uint64_t chain = w.link[b][i];
		check_input(p, r, e, chain);
		if (w.start.check_steps) {
			int j = i - 1;
			while (j >= 0 && !is_stored(p, p.slots[begin + j]))
				j--;
			if (j >= 0)
				check_step(p, r, e, chain, p.positions[begin + j]);
			else if (w.carry_has[b])
				check_step(p, r, e, chain, w.carry_position[b]);
		}
		park(p, slot, e, chain);
	}
}

// Walk entries first .. past from w.chain on, which then is the chain behind them; with 'put' they
// are checked and their links parked. By the whole block; w.start is set.
static __device__ __forceinline__ void walk_block(const kvc__write_params &p, Walk &w, int64_t r,
        int64_t first, int64_t past, bool put)
{
	int64_t tiles = (past - first + TILE - 1) / TILE;
	uint64_t chain = w.chain;
	int64_t position = w.start.position;
	int has = w.start.has_position;
	__syncthreads();
	for (int64_t t = 0; t <= tiles + 1; t++) {
		int b = (int)(t & 1);
		int64_t begin = first + t * TILE;
		if (threadIdx.x >= 32) {
			if (put && t >= 2) {
				int64_t left = past - (begin - 2 * TILE);
				put_tile(p, w, r, begin - 2 * TILE, left < TILE ? (int)left : TILE, b);
			}
			if (t < tiles) {
				int64_t left = past - begin;
				fetch_tile(p, w, begin, left < TILE ? (int)left : TILE, b);
			}
		} else if (threadIdx.x == 0 && t >= 1 && t <= tiles) {
			int64_t left = past - (begin - TILE);
			int count = left < TILE ? (int)left : TILE;
			w.carry_position[b ^ 1] = position;
			w.carry_has[b ^ 1] = has;
			for (int i = count - 1; i >= 0; i--)
				if (w.stored[b ^ 1][i]) {
					position = (int64_t)w.word[b ^ 1][i].y;
					has = 1;
					break;
				}
			chain = walk_tile(w, count, b ^ 1, chain);
		}
		__syncthreads();
	}
	if (threadIdx.x == 0)
		w.chain = chain;
	__syncthreads();
}

static __device__ __forceinline__ void request_block(
        const kvc__write_params &p, Walk &w, int64_t n, int64_t r)
{
	Ancestors ancestors; // of thread 0
	if (threadIdx.x == 0) {
		int64_t entry;
		check_offsets(p, r, span_of(p, r));
		w.path = { 0, 0 };
		if (request_before(p, n, r, &entry) >= 0)
			w.path = find_path(p, n, r);
		w.start = { 0, 0, 0, 0, 0 };
		w.any_skipped[0] = w.any_skipped[1] = 0;
	}
	__syncthreads();
	int64_t depth = w.path.depth;
	for (int64_t k = depth; k > 0; k--) {
		if (threadIdx.x == 0) {
			if (k == depth || k <= ancestors.base)
				ancestors.find(p, n, r, k);
			w.request = ancestors.request[k - ancestors.base - 1];
			w.past = ancestors.past[k - ancestors.base - 1];
			w.first = first_entry(p, w.request);
			if (k == depth)
				w.chain = w.path.cycle ? start_anew(p, w.request).chain
				                       : start_of(p, w.request).chain;
		}
		__syncthreads();
		walk_block(p, w, r, w.first, w.past, false);
	}
	if (threadIdx.x == 0) {
		if (depth == 0) {
			w.start = w.path.cycle ? start_anew(p, r) : start_of(p, r);
			if (w.path.cycle)
				w.start.refused = first_stored(p, r) >= 0;
			w.chain = w.start.chain;
		} else {
			w.start.position = p.positions[w.past - 1];
			w.start.has_position = 1;
			w.start.check_steps = checks_steps(p);
		}
		if (w.start.refused)
			report_seed(p, r);
	}
	__syncthreads();
	walk_block(p, w, r, first_entry(p, r), past_entry(p, r), true);
}

// ---- settling ----

struct Tally {
	int run, skipped;
};

// Does a later entry of the same request, up to 'past', name this slot too? Without scratch nothing else
// tells; only small calls can afford to look.
static __device__ __forceinline__ bool is_overtaken(
        const kvc__write_params &p, const Entries &in, int64_t e, int64_t past)
{
	for (int64_t later = e + 1; !p.scratch && later < past; later++)
		if (in.slots[later] == in.slots[e])
			return true;
	return false;
}

// All of a record but the fingerprint. 'zero': that becomes 0.
static __device__ __forceinline__ void settle_record(const kvc__write_params &p, const Entries &in,
        int64_t e, int64_t slot, uint64_t chain, bool zero)
{
	kvc_record *record = kvc__record_of(p.records, slot);
	record->prev_hash = chain;
	record->token = in.tokens[e];
	record->position = in.positions[e];
	if (zero)
		record->fingerprint = 0;
}

static __device__ __forceinline__ void settle_owner(
        const kvc__write_params &p, int64_t r, int64_t slot)
{
	kvc_owner owner = { -1, p.step ? (uint32_t)*p.step : 0, (uint32_t)p.launch_tag };
	owner.request = kvc__value_of(p.batch, p.batch.owner_request, r, -1);
	p.records.owners[slot] = owner;
}

// 'zero': only where no other entry can still want the link that lies in the fingerprint's place. 'links': they
// are there, and not in that place. 'past': as is_overtaken() asks.
static __device__ __forceinline__ void settle_entry(const kvc__write_params &p, const Entries &in,
        const uint64_t *links, int64_t n, int64_t e, int64_t past, bool zero, Tally &tally)
{
	int64_t slot = in.slots[e];
	if (!is_stored(p, slot)) {
		tally.skipped++;
		return;
	}
	tally.run++;
	if (!is_winner(p, slot, e) || is_overtaken(p, in, e, past))
		return;
	settle_record(p, in, e, slot,
	        links ? links[e] : kvc__record_of(p.records, slot)->fingerprint, zero);
	if (p.records.owners)
		settle_owner(p, request_at(p, n, e), slot);
	if (p.scratch)
		p.scratch[slot] = 0;
}

static __device__ __forceinline__ void count_entries(
        const kvc__write_params &p, unsigned long long run, unsigned long long skipped)
{
	kvc__cuda_tally all = { (int64_t)run, (int64_t)skipped, 0, (int64_t)run * p.bytes_hashed, 0 };
	kvc__ring_count(p.ring, all, blockIdx.x == 0 && threadIdx.x == 0);
}

// By the whole warp, of few.
static __device__ __forceinline__ void count_warp(const kvc__write_params &p, const Tally &tally)
{
	unsigned run = __reduce_add_sync(KVC__FULL_WARP, (unsigned)tally.run);
	unsigned skipped = __reduce_add_sync(KVC__FULL_WARP, (unsigned)tally.skipped);
	if (threadIdx.x % 32 == 0)
		count_entries(p, run, skipped);
}

// By the whole block.
static __device__ __forceinline__ void count_block(const kvc__write_params &p, const Tally &tally)
{
	__shared__ unsigned long long sums[2];
	if (p.ring.columns == 0)
		return;
	if (threadIdx.x < 2)
		sums[threadIdx.x] = 0;
	__syncthreads();
	unsigned run = __reduce_add_sync(KVC__FULL_WARP, (unsigned)tally.run);
	unsigned skipped = __reduce_add_sync(KVC__FULL_WARP, (unsigned)tally.skipped);
	if (threadIdx.x % 32 == 0 && (run | skipped)) {
		atomicAdd(&sums[0], (unsigned long long)run);
		atomicAdd(&sums[1], (unsigned long long)skipped);
	}
	__syncthreads();
	if (threadIdx.x == 0)
		count_entries(p, sums[0], sums[1]);
}

static __device__ __forceinline__ void check_count(const kvc__write_params &p)
{
	int64_t stated = *p.num_valid;
	if (p.own_rules && (stated < 0 || stated > p.request_capacity))
		report_range(p, -1, -1, stated);
}

// ---- the steps, a launch each ----

KVC__KERNEL void __launch_bounds__(256) kvc_write_mark(
        const __grid_constant__ kvc__write_params_head head)
{
	const kvc__write_params &p = (const kvc__write_params &)head;
	kvc__wait_for_previous();
	kvc__release_next();
	int64_t n = request_count(p);
	if (n == 0)
		return;
	int64_t e = first_entry(p, 0) + (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
	if (e < past_entry(p, n - 1))
		mark_entry(p, n, e);
}

// Short requests by a thread each, all others by a block each.
KVC__KERNEL void __launch_bounds__(WALK_THREADS) kvc_write_chain(
        const __grid_constant__ kvc__write_params_head head)
{
	__shared__ Walk walk;
	const kvc__write_params &p = (const kvc__write_params &)head;
	kvc__wait_for_previous();
	kvc__release_next();
	int64_t n = request_count(p), entry;
	for (int64_t r = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; r < n;
	        r += (int64_t)gridDim.x * blockDim.x)
		if (past_entry(p, r) - first_entry(p, r) <= WALK_SHORT &&
		        request_before(p, n, r, &entry) < 0)
			walk_thread(p, entries_of(p), r, span_of(p, r), start_thread(p, n, r),
			        [&](int64_t e, int64_t slot, uint64_t chain) { park(p, slot, e, chain); });
	for (int64_t r = blockIdx.x; r < n; r += gridDim.x) {
		int64_t length = past_entry(p, r) - first_entry(p, r);
		if (length > WALK_SHORT || (length > 0 && request_before(p, n, r, &entry) >= 0))
			request_block(p, walk, n, r);
		__syncthreads();
	}
}

// The next launch may begin at once: what it reads before its wait is older than this call.
KVC__KERNEL void __launch_bounds__(256) kvc_write_settle(
        const __grid_constant__ kvc__write_params_head head)
{
	const kvc__write_params &p = (const kvc__write_params &)head;
	Tally tally = { 0, 0 };
	kvc__release_next();
	kvc__wait_for_previous();
	int64_t n = request_count(p), end = n > 0 ? past_entry(p, n - 1) : 0;
	int64_t e = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
	if (n > 0)
		for (e += first_entry(p, 0); e < end; e += (int64_t)gridDim.x * blockDim.x)
			settle_entry(p, entries_of(p), nullptr, n, e, e,
			        p.scratch && !p.is_computed, tally);
	if (blockIdx.x == 0 && threadIdx.x == 0)
		check_count(p);
	count_block(p, tally);
}

// ---- all steps in one launch ----

#define SMALL_WARPS (KVC__WRITE_SMALL_THREADS / 32)

[[maybe_unused]] static __device__ __forceinline__ const kvc__strip *strips_of(const kvc__write_params &p)
{
	return (const kvc__strip *)((const char *)&p + offsetof(kvc__write_params, sources) +
	                            offsetof(kvc__strips_call, strips));
}

// Whether records get their fingerprints from other blocks of this launch.
static __device__ __forceinline__ bool is_hashed(const kvc__write_params &p)
{
	return p.is_computed && p.sources.head.hashed > 0;
}

// The entries of a call, where the block that walks its chains reads them.
struct Staged {
	int64_t slots[KVC__WRITE_SMALL_TOKENS], tokens[KVC__WRITE_SMALL_TOKENS];
	int64_t positions[KVC__WRITE_SMALL_TOKENS];

	__device__ __forceinline__ Entries entries() const
	{
		return { slots, tokens, positions };
	}

	__device__ __forceinline__ void put(int64_t e, int64_t slot, int64_t token, int64_t position)
	{
		slots[e] = slot, tokens[e] = token, positions[e] = position;
	}

	// 'meanwhile' is called while the first loads are under way.
	template <typename Meanwhile>
	__device__ __forceinline__ void fetch(const kvc__write_params &p, Meanwhile meanwhile)
	{
		int64_t e = threadIdx.x, slot = 0, token = 0, position = 0;
		if (e < p.token_count)
			slot = p.slots[e], token = p.tokens[e], position = p.positions[e];
		meanwhile();
		if (e < p.token_count)
			put(e, slot, token, position);
		for (e += blockDim.x; e < p.token_count; e += blockDim.x)
			put(e, p.slots[e], p.tokens[e], p.positions[e]);
	}
};

// A decode step, by one block: no scratch, and a thread for every request. Every load is asked for as soon as it
// can be: such a call is a few of them, one after the other.
static __device__ __forceinline__ void write_step(const kvc__write_params &p, Staged &staged)
{
	const Entries in = staged.entries();
	const bool zero = !is_hashed(p);
	const int64_t r = threadIdx.x, stated = *p.num_valid;
	Start start = { 0, 0, 0, 0, 0 };
	Span span = { 0, 0, 0, 0 };
	Tally tally = { 0, 0 };
	staged.fetch(p, [&] {
		if (r < p.request_capacity) {
			span = span_of(p, r);
			start = start_of(p, r);
		}
	});
	const int64_t n = clamp_count(p, stated);
	// Entries are staged, and seeds were read as they are before the call.
	const bool wild = __syncthreads_or(r < n && is_wild(p, span)) != 0;
	if (r < n) {
		tally.run = walk_thread(
		        p, in, r, span, start, [&](int64_t e, int64_t slot, uint64_t chain) {
			        if (wild && request_at(p, n, e) != r)
				        return;
			        settle_record(p, in, e, slot, chain, zero);
			        if (p.records.owners)
				        settle_owner(p, r, slot);
		        });
		tally.skipped = span.past > span.first ? (int)(span.past - span.first) - tally.run : 0;
	}
	if (r == 0)
		check_count(p);
	count_warp(p, tally);
}

// What the block that walks the chains of any small call keeps.
struct Small {
	Staged staged;
	uint64_t links[KVC__WRITE_SMALL_TOKENS];
	uint16_t past[KVC__WRITE_SMALL_TOKENS]; // of the request of each entry
};

// All but the fingerprints, by one block.
static __device__ __forceinline__ void write_chains(const kvc__write_params &p, Small &small)
{
	const Entries in = small.staged.entries();
	const int64_t mine = threadIdx.x, n = request_count(p);
	Tally tally = { 0, 0 };
	small.staged.fetch(p, [] {});
	int64_t begin = n > 0 ? first_entry(p, 0) : 0, end = n > 0 ? past_entry(p, n - 1) : 0;
	bool wild = false;
	for (int64_t r = mine; r < n; r += blockDim.x)
		wild |= is_wild(p, span_of(p, r));
	wild = __syncthreads_or(wild) != 0;
	for (int64_t e = begin + mine; p.scratch && e < end; e += blockDim.x)
		mark_entry(p, n, e);
	if (p.scratch)
		__syncthreads();
	for (int64_t r = mine; r < n; r += blockDim.x) {
		const Span span = span_of(p, r);
		walk_thread(p, in, r, span, start_thread(p, n, r), [&](int64_t e, int64_t, uint64_t chain) {
			if (!wild || request_at(p, n, e) == r)
				small.links[e] = chain;
		});
		for (int64_t e = span.first; e < span.past; e++)
			if (!wild || request_at(p, n, e) == r)
				small.past[e] = (uint16_t)span.past;
	}
	__syncthreads();
	for (int64_t e = begin + mine; e < end; e += blockDim.x)
		settle_entry(p, in, small.links, n, e, small.past[e], !is_hashed(p), tally);
	if (threadIdx.x == 0)
		check_count(p);
	count_block(p, tally);
}

// The fingerprint of entry e, by one warp. Whether a request has the entry is seen meanwhile.
static __device__ __forceinline__ void write_fingerprint(
        const kvc__write_params &p, const kvc__row_keys &keys, int64_t e, char *stage)
{
	int64_t slot = p.slots[e], n = request_count(p), first = p.request_capacity > 0 ? first_entry(p, 0) : 0;
	if (!is_stored(p, slot))
		return;
	uint64_t fingerprint = kvc__hash_alone(p.sources.head, strips_of(p), keys, slot, stage);
	if (threadIdx.x % 32 == 0 && n > 0 && e >= first && e < past_entry(p, n - 1))
		kvc__record_of(p.records, slot)->fingerprint = fingerprint;
}

// The first block has the chains; of the others warps have an entry each, if there is anything to hash.
template <typename Chains, typename Walk>
static __device__ __forceinline__ void write_small(const kvc__write_params &p, Walk walk)
{
	__shared__ __align__(16) union {
		Chains chains;
		char stages[SMALL_WARPS][KVC__ALONE_BYTES];
	} shared;
	int warp = threadIdx.x / 32, entries = KVC__WRITE_SMALL_ENTRIES(p.sources.head.is_splitmix);
	int64_t e = ((int64_t)blockIdx.x - 1) * entries + warp;
	kvc__row_keys keys; // no memory that an earlier kernel writes
	keys.load();
	kvc__wait_for_previous();
	kvc__release_next();
	if (blockIdx.x == 0)
		walk(shared.chains);
	else if (warp < entries && e < p.token_count)
		write_fingerprint(p, keys, e, shared.stages[warp]);
}

KVC__KERNEL void __launch_bounds__(KVC__WRITE_SMALL_THREADS) kvc_write_step(
        const __grid_constant__ kvc__write_params_small head)
{
	const kvc__write_params &p = (const kvc__write_params &)head;
	write_small<Staged>(p, [&](Staged &staged) { write_step(p, staged); });
}

KVC__KERNEL void __launch_bounds__(KVC__WRITE_SMALL_THREADS) kvc_write_small(
        const __grid_constant__ kvc__write_params_small head)
{
	const kvc__write_params &p = (const kvc__write_params &)head;
	write_small<Small>(p, [&](Small &small) { write_chains(p, small); });
}
