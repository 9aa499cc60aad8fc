// kvc_canary_plan() on the device: the same bytes as src/cpu/plan_portable.c, in one launch.
//
// All entries of all requests, one request after the other, are the full list. Every block adds up
// the requests' lengths for itself, 1024 requests (a tile) at a time, and so knows where each one
// begins in the list and how long that is; then it writes its own piece of the plan, an equal share
// of what is emitted, whatever the lengths of the requests. Reading the requests again in each block
// costs less than a second launch, and no memory. A warp writes runs of neighbouring entries, 32 in
// each of a few steps whose loads are all under way together. The first blocks of the grid ('writers')
// do the half of the plan that is about writes, and the counts.
//
// What the CPU refuses keeps its place here: a slot that cannot be read, or is not to be found in the
// mapping, is -1, and so is the slot of an entry whose expected token cannot be read.
//
// *rotation may only move on when every block has read it: a single block does that itself, after
// more of them a second kernel does (kvc_plan_turn).
#include "cuda/device.cuh"
#include "cuda/plan_params.h"

#define THREADS 256
#define WARPS (THREADS / 32)
#define ITEMS_MAX 4 // requests of a thread, in a tile; where there are few requests, one
#define TILE (THREADS * ITEMS_MAX)
#define FEW_STEPS 4 // of a warp, 32 entries each, whose loads are under way at once
#define MANY_STEPS 8

// Predecessor codes, as in cpu/plan_portable.c.
enum { PREV_CHAIN_START = -1, PREV_CHAIN_IN = -2, PREV_UNKNOWN = -3 };

// ---- requests ----

struct Span {
	int64_t begin, end;
	bool cut; // longer than any sum can bear
};

static __device__ __forceinline__ Span positions_of(
        const kvc__plan_params &p, int64_t r, int64_t row, int64_t prefix)
{
	const kvc__plan &job = p.job;
	Span span = { 0, prefix, false };
	if (span.end < 0 || row == 0)
		span.end = 0;
	if (job.window > 0 && span.end > job.window)
		span.begin = span.end - job.window;
	if (job.start && job.start[r] > span.begin)
		span.begin = job.start[r];
	if (span.begin > span.end)
		span.begin = span.end;
	span.cut = span.end - span.begin > p.length_max;
	if (span.cut)
		span.end = span.begin + p.length_max;
	return span;
}

static __device__ __forceinline__ int64_t write_count(
        const kvc__plan_params &p, int64_t r, int64_t row)
{
	int64_t count = p.job.extend_lens[r];
	if (count < 0 || row == 0)
		return 0;
	return count > p.length_max ? p.length_max : count;
}

// ---- reading with bounds ----

static __device__ __forceinline__ bool table_has(
        const kvc__plan_table &table, int64_t row, int64_t column)
{
	return KVC__MOVES_ONLY || ((uint64_t)row < (uint64_t)table.row_count &&
	                                  (uint64_t)column < (uint64_t)table.column_count);
}

static __device__ __forceinline__ int64_t slot_at(
        const kvc__plan_params &p, int64_t row, int64_t position)
{
	const kvc__plan_table &table = p.job.slots;
	return table_has(table, row, position) ? table.data[row * table.row_stride + position] : -1;
}

// The slot as the plan's group numbers it; -1 and *unmapped if the mapping does not reach it.
static __device__ __forceinline__ int64_t translate(
        const kvc__plan_params &p, int64_t slot, bool *unmapped)
{
	*unmapped = false;
	if (!p.job.mapping || slot < 0)
		return slot;
	*unmapped = slot >= p.job.mapping_count;
	return *unmapped ? -1 : p.job.mapping[slot];
}

static __device__ __forceinline__ bool is_excluded(const kvc__plan_params &p, int64_t slot)
{
	return p.job.exclude && slot >= 0 && slot / 8 < p.job.exclude_bytes &&
	       (p.job.exclude[slot / 8] >> slot % 8 & 1);
}

// Column of the token table for a position >= 0; negative if none is known there. A sum that
// overflows comes out negative too, and no valid length reaches that far.
static __device__ __forceinline__ int64_t token_column(
        const kvc__plan_params &p, int64_t r, int64_t position)
{
	int64_t column = (int64_t)((uint64_t)position + (uint64_t)p.job.token_offset);
	return column >= 0 && column < p.job.valid_lens[r] ? column : -1;
}

// ---- sums over the block ----

// Sum over the threads before this one, *total over all. sums: [WARPS]. Barriers inside.
static __device__ __forceinline__ int64_t sum_before(int64_t value, int64_t *sums, int64_t *total)
{
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	int64_t sum = value, before = 0, all = 0;
#pragma unroll
	for (int step = 1; step < 32; step *= 2) {
		int64_t lower = __shfl_up_sync(KVC__FULL_WARP, sum, step);
		if (lane >= step)
			sum += lower;
	}
	__syncthreads(); // the last sums have been read
	if (lane == 31)
		sums[warp] = sum;
	__syncthreads();
#pragma unroll
	for (int i = 0; i < WARPS; i++) {
		int64_t other = sums[i];
		before += i < warp ? other : 0;
		all += other;
	}
	*total = all;
	return before + sum - value;
}

// Where a thread has several requests, it asks for what they need without a branch between them, for the last one
// instead of those that are not there.
static __device__ __forceinline__ int64_t request_or_last(const kvc__plan_params &p, int64_t r)
{
	return r < p.job.request_count ? r : p.job.request_count - 1;
}

// One tile of requests: where each begins in the full list, and from which position on.
struct Tile {
	int64_t base[TILE + 1]; // [count]: the end of the tile
	int64_t shift[TILE];    // position = number in the list + shift
	int64_t row[TILE];
};

static __device__ __forceinline__ int64_t lengths_of_all(const kvc__plan_params &p, int64_t *sums)
{
	int64_t sum = 0, total;
	for (int64_t r = threadIdx.x; r < p.job.request_count; r += THREADS) {
		Span span = positions_of(p, r, p.job.rows[r], p.job.prefix_lens[r]);
		sum += span.end - span.begin;
	}
	sum_before(sum, sums, &total);
	return total;
}

// Fill the tile that begins with request 'first'; its entries are number 'carry' and on of the
// list. Returns the number after its last one.
template <int ITEMS>
static __device__ __forceinline__ int64_t load_tile(
        const kvc__plan_params &p, Tile &tile, int64_t *sums, int64_t first, int64_t carry)
{
	int64_t length[ITEMS] = {}, begin[ITEMS], row[ITEMS], prefix[ITEMS], sum = 0, total;
	int at = threadIdx.x * ITEMS;
	if (first + at < p.job.request_count) {
#pragma unroll
		for (int i = 0; i < ITEMS; i++) {
			int64_t r = request_or_last(p, first + at + i);
			row[i] = p.job.rows[r];
			prefix[i] = p.job.prefix_lens[r];
		}
#pragma unroll
		for (int i = 0; i < ITEMS; i++) {
			Span span = positions_of(p, request_or_last(p, first + at + i), row[i], prefix[i]);
			begin[i] = span.begin;
			length[i] = first + at + i < p.job.request_count ? span.end - span.begin : 0;
			sum += length[i];
		}
	}
	int64_t base;
	if (KVC__MOVES_ONLY) { // see request_at()
		int64_t each = p.job.prefix_lens[0];
		base = carry + at * each;
		total = p.job.request_count * each;
	} else {
		base = carry + sum_before(sum, sums, &total);
	}
#pragma unroll
	for (int i = 0; i < ITEMS; i++) {
		if (first + at + i < p.job.request_count) {
			tile.base[at + i] = base;
			tile.shift[at + i] = begin[i] - base;
			tile.row[at + i] = row[i];
		}
		base += length[i];
	}
	// Behind the last one, wherever that is.
	int64_t rest = p.job.request_count - first;
	if (threadIdx.x == THREADS - 1)
		tile.base[rest < TILE ? rest : TILE] = base;
	__syncthreads();
	return carry + total;
}

// ---- entries ----

// The last of requests [low, high) that begins at number g or before. base[low] <= g.
static __device__ __forceinline__ int request_at(const int64_t *base, int low, int high, int64_t g)
{
	if (KVC__MOVES_ONLY)
		return (int)(g >> (__ffsll((long long)base[1]) - 1)); // requests of one length, a power of two
	while (high - low > 1) {
		int middle = (low + high) / 2;
		if (base[middle] <= g)
			low = middle;
		else
			high = middle;
	}
	return low;
}

// The same by a whole warp that looks for one g: a step of 32 at a time.
static __device__ __forceinline__ int request_of_warp(const int64_t *base, int low, int high, int64_t g)
{
	if (KVC__MOVES_ONLY)
		return request_at(base, low, high, g);
	int lane = threadIdx.x % 32;
	while (high - low > 1) {
		int step = (high - low + 31) / 32, at = low + lane * step;
		unsigned begun = __ballot_sync(KVC__FULL_WARP, at < high && base[at] <= g);
		low += (__popc(begun) - 1) * step;
		high = low + step < high ? low + step : high;
	}
	return low;
}

// One entry a lane, numbers start .. of the list up to 'to', by all the rules. By a whole warp.
static __device__ __forceinline__ void emit_32(const kvc__plan_params &p, const Tile &tile,
        int64_t tile_first, int k, int high, int64_t start, int64_t to, int64_t shift)
{
	const kvc__plan &job = p.job;
	int lane = threadIdx.x % 32;
	int64_t g = start + lane;
	bool active = g < to;
	if (active)
		k = request_at(tile.base, k, high, g);
	int64_t row = tile.row[k], position = active ? g + tile.shift[k] : 0;
	bool head = g == tile.base[k], unmapped = false;
	int64_t slot = active ? translate(p, slot_at(p, row, position), &unmapped) : -1;

	// The neighbour has just translated the predecessor, unless it is another request's.
	int64_t prev = __shfl_up_sync(KVC__FULL_WARP, slot, 1);
	if (!active)
		return;
	int64_t r = tile_first + k, j = g + shift;
	if (position == 0) {
		prev = PREV_CHAIN_START;
	} else if (head && !job.sglang) {
		prev = PREV_CHAIN_IN;
	} else {
		bool prev_unmapped = false;
		if (lane == 0 || head)
			prev = translate(p, slot_at(p, row, position - 1), &prev_unmapped);
		// Where no entry of its own says so.
		if (prev_unmapped && (head || j == 0))
			kvc__report_row(p.report, KVC_REPORT_MAPPING_RANGE, r);
		// -2 and -3 are codes that would silence the chain check.
		if (!job.sglang && prev < -1)
			prev = -1;
		if (is_excluded(p, prev))
			prev = PREV_UNKNOWN;
	}
	if (unmapped)
		kvc__report_row(p.report, KVC_REPORT_MAPPING_RANGE, r);
	if (is_excluded(p, slot))
		slot = -1;
	int64_t token = -1;
	if (job.tokens.data) {
		int64_t column = token_column(p, r, position);
		if (column >= 0 && table_has(job.tokens, row, column))
			token = job.tokens.data[row * job.tokens.row_stride + column];
		else if (column >= 0)
			slot = -1;
	}
	p.out.verify_slot_indices[j] = slot;
	p.out.verify_prev_slot_indices[j] = prev;
	p.out.verify_expected_positions[j] = position;
	p.out.verify_expected_tokens[j] = token;
	if (p.out.verify_request)
		p.out.verify_request[j] = (int32_t)r;
}

// 32 * STEPS entries of request k, number 'start' and on, which begin inside it and whose slots and
// tokens lie inside their tables: no lane has anything to ask, and all loads are under way at once.
// false, with nothing done, if it is not so.
template <int STEPS>
static __device__ __forceinline__ bool emit_run(const kvc__plan_params &p, const Tile &tile,
        int64_t tile_first, int k, int64_t start, int64_t shift)
{
	const kvc__plan &job = p.job;
	int lane = threadIdx.x % 32;
	int64_t row = tile.row[k], first = start + tile.shift[k], r = tile_first + k;
	int64_t column = (int64_t)((uint64_t)first + (uint64_t)job.token_offset);
	int32_t slot[STEPS], token[STEPS], before = -1;
	int64_t known = 0; // positions of the run with a known token
	if (start == tile.base[k] && !job.sglang && first > 0)
		return false;
	if (!table_has(job.slots, row, first) || !table_has(job.slots, row, first + 32 * STEPS - 1))
		return false;
	if (job.tokens.data) {
		if (!table_has(job.tokens, row, column) ||
		        !table_has(job.tokens, row, column + 32 * STEPS - 1))
			return false;
		int64_t valid = job.valid_lens[r];
		known = valid > column ? valid - column : 0; // a difference might overflow
	}
	const int32_t *slots = job.slots.data + row * job.slots.row_stride + first + lane;
	const int32_t *tokens = job.tokens.data + row * job.tokens.row_stride + column + lane;
#pragma unroll
	for (int i = 0; i < STEPS; i++)
		slot[i] = __ldg(slots + 32 * i);
	if (lane == 0 && first > 0)
		before = __ldg(slots - 1);
#pragma unroll
	for (int i = 0; i < STEPS; i++)
		token[i] = job.tokens.data ? __ldg(tokens + 32 * i) : 0;
	int64_t j = start + shift + lane;
#pragma unroll
	for (int i = 0; i < STEPS; i++) {
		int32_t prev = __shfl_up_sync(KVC__FULL_WARP, slot[i], 1);
		prev = lane == 0 ? before : prev;
		before = __shfl_sync(KVC__FULL_WARP, slot[i], 31);
		if (!job.sglang && prev < -1)
			prev = -1;
		p.out.verify_slot_indices[j + 32 * i] = slot[i];
		p.out.verify_prev_slot_indices[j + 32 * i] = prev;
		p.out.verify_expected_positions[j + 32 * i] = first + 32 * i + lane;
		p.out.verify_expected_tokens[j + 32 * i] = 32 * i + lane < known ? token[i] : -1;
		if (p.out.verify_request)
			p.out.verify_request[j + 32 * i] = (int32_t)r;
	}
	return true;
}

// Write numbers [from, to) of the list, which all lie in this tile, to places from + shift and on. Chunks
// of places go round the blocks, so that all of them write near each other.
template <int STEPS>
static __device__ __forceinline__ void emit(const kvc__plan_params &p, const Tile &tile,
        int64_t tile_first, int64_t from, int64_t to, int64_t shift, int block, int blocks)
{
	constexpr int CHUNK = THREADS * STEPS;
	bool plain = !p.job.mapping && !p.job.exclude;
	int64_t rest = p.job.request_count - tile_first;
	int k = 0, high = rest < TILE ? (int)rest : TILE;
	int64_t chunk = block;
	if (from + shift >= CHUNK) { // the first of this block's that reaches so far
		int64_t rounds = ((from + shift) / CHUNK - block + blocks - 1) / blocks;
		chunk += rounds > 0 ? rounds * blocks : 0;
	}
	for (; chunk * CHUNK - shift < to; chunk += blocks) {
		int64_t start = chunk * CHUNK - shift + threadIdx.x / 32 * (32 * STEPS);
		int64_t past = start + 32 * STEPS < to ? start + 32 * STEPS : to;
		if (start < from)
			start = from;
		if (start >= past)
			continue;
		k = request_of_warp(tile.base, k, high, start);
		if (plain && start + 32 * STEPS <= past && past <= tile.base[k + 1] &&
		        emit_run<STEPS>(p, tile, tile_first, k, start, shift))
			continue;
		for (int64_t at = start; at < past; at += 32 * FEW_STEPS) {
			int64_t end = at + 32 * FEW_STEPS;
			if (STEPS > FEW_STEPS && plain && end <= past) {
				k = request_of_warp(tile.base, k, high, at);
				if (end <= tile.base[k + 1] &&
				        emit_run<FEW_STEPS>(p, tile, tile_first, k, at, shift))
					continue;
			}
			for (int64_t few = at; few < end && few < past; few += 32)
				emit_32(p, tile, tile_first, k, high, few, past, shift);
		}
	}
}

// ---- writes, and what is out of range ----

// What the CPU would refuse request r for, as its front door finds it, or -1.
static __device__ __forceinline__ int refusal_of(
        const kvc__plan_params &p, int64_t r, int64_t row, bool has_seed)
{
	const kvc__plan &job = p.job;
	if (row == 0)
		return -1;
	if ((uint64_t)row >= (uint64_t)job.slots.row_count)
		return KVC_REPORT_ROW_RANGE;
	Span span = positions_of(p, r, row, job.prefix_lens[r]);
	if (span.cut)
		return KVC_REPORT_LENGTH;
	if (span.begin == span.end && !has_seed)
		return -1;
	if (job.prefix_lens[r] > job.slots.column_count)
		return KVC_REPORT_COLUMN_RANGE;
	if (!job.tokens.data || span.begin == span.end)
		return -1;
	// The last position with a known token: its column is the largest.
	int64_t last = span.end - 1, column = token_column(p, r, last);
	if (column < 0) {
		int64_t past = job.valid_lens[r];
		last = (int64_t)((uint64_t)past - 1 - (uint64_t)job.token_offset);
		if (past <= 0 || last < span.begin || last >= span.end ||
		        token_column(p, r, last) < 0)
			return -1;
		column = past - 1;
	}
	if (row >= job.tokens.row_count)
		return KVC_REPORT_ROW_RANGE;
	return column >= job.tokens.column_count ? KVC_REPORT_COLUMN_RANGE : -1;
}

// Offsets and seeds of the requests of one tile. Returns the sum after it.
template <int ITEMS>
static __device__ __forceinline__ int64_t write_tile(
        const kvc__plan_params &p, int64_t *sums, int64_t first, int64_t carry)
{
	int64_t count[ITEMS] = {}, row[ITEMS], prefix[ITEMS], seed[ITEMS], sum = 0, total = 0;
	bool unmapped[ITEMS];
	int at = threadIdx.x * ITEMS;
	if (first + at < p.job.request_count) {
#pragma unroll
		for (int i = 0; i < ITEMS; i++) {
			int64_t r = request_or_last(p, first + at + i);
			row[i] = p.job.rows[r];
			prefix[i] = p.job.prefix_lens[r];
			count[i] = write_count(p, r, row[i]);
		}
#pragma unroll
		for (int i = 0; i < ITEMS; i++) {
			count[i] = first + at + i < p.job.request_count ? count[i] : 0;
			sum += count[i];
			seed[i] = prefix[i] > 0 && count[i] > 0 ? slot_at(p, row[i], prefix[i] - 1) : -1;
		}
#pragma unroll
		for (int i = 0; i < ITEMS; i++)
			seed[i] = translate(p, seed[i], &unmapped[i]);
	}
	int64_t offset = carry;
	if (KVC__MOVES_ONLY)
		offset += at * count[0];
	else
		offset += sum_before(sum, sums, &total);
#pragma unroll
	for (int i = 0; i < ITEMS; i++) {
		int64_t r = first + at + i;
		if (r >= p.job.request_count)
			break;
		offset += count[i];
		p.out.write_offsets[r + 1] = offset;
		p.out.write_seed_slot_indices[r] = seed[i];
		if (!p.report)
			continue;
		if (unmapped[i])
			kvc__report_row(p.report, KVC_REPORT_MAPPING_RANGE, r);
		if (row[i] != 0 && p.job.extend_lens[r] > p.length_max)
			kvc__report_row(p.report, KVC_REPORT_LENGTH, r);
		int reason = refusal_of(p, r, row[i], prefix[i] > 0 && count[i] > 0);
		if (reason >= 0)
			kvc__report_row(p.report, reason, r);
	}
	return carry + total;
}

static __device__ __forceinline__ int64_t writes_of_all_before(
        const kvc__plan_params &p, int64_t *sums, int64_t end)
{
	int64_t sum = 0, total;
	for (int64_t r = threadIdx.x; r < end; r += THREADS)
		sum += write_count(p, r, p.job.rows[r]);
	sum_before(sum, sums, &total);
	return total;
}

// Tile number 'first', and each 'step' further.
static __device__ __forceinline__ void write_tiles(
        const kvc__plan_params &p, int64_t *sums, int first, int step)
{
	int64_t count = p.job.request_count;
	if (count <= THREADS && first == 0)
		write_tile<1>(p, sums, 0, 0);
	for (int64_t at = (int64_t)first * TILE; count > THREADS && at < count; at += (int64_t)step * TILE)
		write_tile<ITEMS_MAX>(p, sums, at, at == 0 ? 0 : writes_of_all_before(p, sums, at));
	if (first == 0 && threadIdx.x == 0)
		p.out.write_offsets[0] = 0;
	for (int64_t r = count + 1 + (int64_t)first * THREADS + threadIdx.x;
	        r <= p.out.write_req_capacity; r += (int64_t)step * THREADS)
		p.out.write_offsets[r] = 0;
}

// ---- the whole ----

static __device__ __forceinline__ int64_t modulo(int64_t value, int64_t divisor)
{
	int64_t rest = value % divisor;
	return rest < 0 ? rest + divisor : rest;
}

// Where *rotation goes from 'before'.
static __device__ __forceinline__ int64_t turned(int64_t before, int64_t total, int64_t capacity)
{
	if (total == 0)
		return before;
	return total <= capacity ? 0 : modulo(modulo(before, total) + capacity, total);
}

// What there is to say of the plan in all. By one thread, when its block has read *rotation.
static __device__ __forceinline__ void conclude(
        const kvc__plan_params &p, int64_t total, int64_t emit_count, int64_t rotation)
{
	int64_t capacity = p.out.verify_capacity;
	*p.out.verify_num_valid = (int32_t)(total < capacity ? total : capacity);
	*p.out.enable = !p.job.sglang || total <= capacity;
	if (p.out.left_out)
		*p.out.left_out = total - emit_count;
	*p.out.write_num_valid_reqs = (int32_t)p.job.request_count;
	if (p.report)
		kvc__report_add(&p.report->rows_written, emit_count);
	if (gridDim.x == 1 && p.rotation && !p.job.sglang)
		*p.rotation = turned(rotation, total, capacity);
}

template <int STEPS>
static __device__ __forceinline__ void make_plan(const kvc__plan_params &p)
{
	__shared__ Tile tile;
	__shared__ int64_t sums[WARPS];
	int64_t count = p.job.request_count, capacity = p.out.verify_capacity;
	int writers = p.writer_blocks, block = (int)blockIdx.x - writers;

	kvc__wait_for_previous();
	kvc__release_next();
	if (block < 0) {
		write_tiles(p, sums, blockIdx.x, writers);
		return;
	}
	int64_t rotation = p.rotation ? *(volatile int64_t *)p.rotation : 0;
	int64_t total = count > TILE      ? lengths_of_all(p, sums)
	                : count > THREADS ? load_tile<ITEMS_MAX>(p, tile, sums, 0, 0)
	                                  : load_tile<1>(p, tile, sums, 0, 0);
	int64_t first = 0, emit_count = total;
	if (total > capacity) {
		emit_count = p.job.sglang ? 0 : capacity;
		first = p.job.sglang ? 0 : modulo(rotation, total);
	}
	int64_t carry = 0;
	for (int64_t t = 0; t < count; t += TILE) {
		int64_t past = count > TILE ? load_tile<ITEMS_MAX>(p, tile, sums, t, carry) : total;
		// The list, and once more after its end.
		for (int lap = 0; lap < 2; lap++) {
			int64_t shift = lap * total - first, from = -shift, to = emit_count - shift;
			from = from > carry ? from : carry;
			to = to < past ? to : past;
			if (from < to)
				emit<STEPS>(p, tile, t, from, to, shift, block, (int)gridDim.x - writers);
		}
		carry = past;
	}
	if (writers == 0)
		write_tiles(p, sums, 0, 1);
	if (block == 0) {
		if (gridDim.x == 1)
			__syncthreads(); // all have read *rotation
		if (threadIdx.x == 0)
			conclude(p, total, emit_count, rotation);
	}
}

KVC__KERNEL void __launch_bounds__(THREADS, 2) kvc_plan_entries(
        const __grid_constant__ kvc__plan_params p)
{
	make_plan<FEW_STEPS>(p);
}

// Where each block has several pieces to write: they are larger.
KVC__KERNEL void __launch_bounds__(THREADS, 2) kvc_plan_many(
        const __grid_constant__ kvc__plan_params p)
{
	make_plan<MANY_STEPS>(p);
}

// After a plan of several blocks.
KVC__KERNEL void __launch_bounds__(THREADS) kvc_plan_turn(
        const __grid_constant__ kvc__plan_params p)
{
	__shared__ int64_t sums[WARPS];
	kvc__wait_for_previous();
	int64_t total = p.out.left_out ? *p.out.left_out + *p.out.verify_num_valid
	                               : lengths_of_all(p, sums);
	if (threadIdx.x == 0)
		*p.rotation = turned(*p.rotation, total, p.out.verify_capacity);
}
