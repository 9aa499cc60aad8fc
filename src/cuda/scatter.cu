// scatter_req_token_ids on the device: the same bytes as src/cpu/scatter_portable.c, in one launch.
//
// The tokens are split, not the requests: block i takes tokens [i * CHUNK, (i + 1) * CHUNK) of
// flat_in, so that one long history among many short ones is no slower than equal ones, and the
// tokens are on their way before anything is known of the requests. Meanwhile each block reads all
// offsets: how many lie before its chunk tells which requests it meets, and whether one falls. Where
// one does, offsets are not in order and nothing can be looked up by them: then all blocks go through
// the requests one by one, which is slow and right (scatter_slowly).
//
// A request is judged as a whole, before a word of it is stored, without any memory to pass verdicts
// around in:
//   its offsets and row   by everyone who meets it
//   its row is taken      everyone reads all rows (a filter of bits makes that one test a row). A row
//                         belongs to the first request with tokens and sound offsets on it, whatever
//                         its tokens are; by SGLang's rules the later one wins, column by column
//   its tokens            a chunk's own in registers. Of a request that goes on beyond the chunk the
//                         rest must be read too: eight blocks are a team (a cluster), trade what
//                         they saw, and share the reading of what lies outside the team. So the
//                         tokens are read once and, where a request is longer than a team's stretch,
//                         again from the cache.
// Chips before Hopper have no clusters: there a team is one block, and long requests cost more.
#include "cuda/device.cuh"
#include "cuda/scatter_params.h"

#define FILTER_BITS 32768
#define MAX_TEAM 8

// Why a request is left out; 0 = it is not. Reasons of the report, moved up by one.
#define WHY(REASON) ((REASON) + 1)

static __device__ __forceinline__ int64_t max64(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

static __device__ __forceinline__ int64_t min64(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

// value, held inside [low, high], as an int
static __device__ __forceinline__ int clamp(int64_t value, int64_t low, int64_t high)
{
	return (int)min64(max64(value, low), high);
}

// ---- one request ----

struct Request {
	int64_t first, past, row;

	__device__ __forceinline__ void load(const kvc__scatter &job, int64_t r)
	{
		first = __ldg(job.offsets + r);
		past = __ldg(job.offsets + r + 1);
		row = __ldg(job.rows + r);
	}

	// Tokens, all of them inside flat_in.
	__device__ __forceinline__ bool has_tokens(const kvc__scatter &job) const
	{
		return past > first && first >= 0 && past <= job.flat_count;
	}

	__device__ __forceinline__ bool has_row(const kvc__scatter &job) const
	{
		return (uint64_t)row < (uint64_t)job.row_count;
	}
};

// Does request i claim its row? The row itself is known to be in range.
static __device__ __forceinline__ bool claims(const kvc__scatter &job, int64_t i, int64_t *count)
{
	int64_t first = __ldg(job.offsets + i), past = __ldg(job.offsets + i + 1);
	*count = min64(past - first, job.column_count);
	return past > first && first >= 0 && past <= job.flat_count;
}

static __device__ __forceinline__ bool is_bad(const kvc__scatter_params &p, int64_t token)
{
	return (uint64_t)token >> 31 != 0 && !(p.allow_placeholder && token == -1);
}

// Offsets that the CPU refuses, and requests without tokens: one thread of the grid a request.
static __device__ __forceinline__ void account_offsets(
        const kvc__scatter_params &p, int64_t r, int64_t first, int64_t past)
{
	bool outside = first < 0 || past > p.job.flat_count;
	if (p.sglang ? past > first && outside : past < first || outside)
		kvc__report_row(p.report, KVC_REPORT_OFFSETS, r);
	else if (past <= first)
		kvc__report_add(&p.report->rows_skipped, 1);
}

// ---- offsets out of order ----

// Request by request, a block each.
template <bool CHECK>
static __device__ __noinline__ void scatter_slowly(const kvc__scatter_params &p)
{
	const kvc__scatter &job = p.job;
	__shared__ unsigned long long covered; // columns that a later request of SGLang's writes
	__shared__ int twice, bad;
	for (int64_t r = blockIdx.x; r < job.request_count; r += gridDim.x) {
		Request request;
		request.load(job, r);
		if (!request.has_tokens(job))
			continue; // the whole block: accounted for by account_offsets
		__syncthreads();
		if (threadIdx.x == 0)
			covered = 0, twice = bad = 0;
		__syncthreads();
		bool usable = request.has_row(job);
		for (int64_t i = (p.sglang ? r + 1 : 0) + threadIdx.x;
		        usable && i < (p.sglang ? job.request_count : r); i += blockDim.x) {
			int64_t count;
			if (__ldg(job.rows + i) != request.row || !claims(job, i, &count))
				continue;
			if (p.sglang)
				atomicMax(&covered, (unsigned long long)count);
			else
				twice = 1;
		}
		for (int64_t t = request.first + threadIdx.x; CHECK && usable && t < request.past;
		        t += blockDim.x)
			if (is_bad(p, __ldg(job.flat + t)))
				bad = 1;
		__syncthreads();
		int64_t count = min64(request.past - request.first, job.column_count);
		if (usable && !twice && !bad)
			for (int64_t c = (int64_t)covered + threadIdx.x; c < count; c += blockDim.x)
				job.table[request.row * job.row_stride + c] =
				        (int32_t)(uint64_t)__ldg(job.flat + request.first + c);
		if (threadIdx.x != 0 || !p.report)
			continue;
		if (!usable)
			kvc__report_row(p.report, KVC_REPORT_ROW_RANGE, r);
		else if (twice)
			kvc__report_row(p.report, KVC_REPORT_ROW_DUPLICATE, r);
		else if (bad)
			kvc__report_row(p.report, KVC_REPORT_TOKEN_RANGE, r);
		else {
			kvc__report_add(&p.report->rows_written, 1);
			kvc__report_add(&p.report->tokens_truncated,
			        request.past - request.first - count);
		}
	}
}

// ---- teams ----

// What a block tells its team.
enum {
	BAD_LEFT = 1,     // a bad token of the request that comes in from the left
	BAD_RIGHT = 2,    // of the one that goes on to the right
	BAD_BEFORE = 4,   // in its part of what lies left of the team
	BAD_BEHIND = 8    // right of it
};

template <int TEAM>
static __device__ __forceinline__ void team_arrive()
{
#if __CUDA_ARCH__ >= 900
	if (TEAM > 1)
		asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
#endif
}

template <int TEAM>
static __device__ __forceinline__ void team_wait()
{
#if __CUDA_ARCH__ >= 900
	if (TEAM > 1)
		asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}

// Give every member's 'seen' to all of them. All have arrived once before. 'own' and 'seen' lie in
// shared memory; ends with a barrier.
template <int TEAM>
static __device__ __forceinline__ void team_trade(const int *own, int *seen, int rank)
{
	__syncthreads();
	if (TEAM == 1) {
		if (threadIdx.x == 0)
			seen[0] = *own;
		__syncthreads();
		return;
	}
#if __CUDA_ARCH__ >= 900
	team_wait<TEAM>(); // the others' shared memory is there
	if (threadIdx.x < TEAM) {
		unsigned here = (unsigned)__cvta_generic_to_shared(seen + rank), there;
		asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
		             : "=r"(there)
		             : "r"(here), "r"(threadIdx.x));
		asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(there), "r"(*own) : "memory");
	}
	__syncwarp();
	team_arrive<TEAM>();
	team_wait<TEAM>();
#endif
}

// ---- a chunk ----

// Which requests a chunk [a, b) and its team [A, B) meet: how many offsets are <= a, < b, <= A, < B.
struct Counts {
	int64_t to_chunk, in_chunk, to_team, in_team;
};

template <int THREADS>
struct Shared {
	int64_t sums[4][32];
	int64_t totals[4];
	int64_t place[THREADS]; // index in the table of the chunk's first token, were it the request's
	int64_t row[THREADS];   // -1: it claims none
	int start[THREADS];     // the requests, in order: first position in the chunk
	int low[THREADS];       // positions to store
	int high[THREADS];
	int why[THREADS];
	unsigned filter[FILTER_BITS / 32];
	int own, seen[MAX_TEAM];
};

static __device__ __forceinline__ unsigned filter_bit(int64_t row)
{
	return (unsigned)row * 2654435761u >> 17;
}

// Sums over the block; every thread gets them. Per thread fewer than 2^31 are counted.
template <int THREADS, bool ALL>
static __device__ __forceinline__ Counts block_counts(
        Shared<THREADS> &s, const unsigned *mine, bool falls, bool *any_falls)
{
	int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
	for (int i = 0; i < (ALL ? 4 : 2); i++) {
		unsigned sum = __reduce_add_sync(KVC__FULL_WARP, mine[i]);
		if (lane == 0)
			s.sums[i][warp] = sum;
	}
	*any_falls = __syncthreads_or(falls) != 0;
	if (warp < (ALL ? 4 : 2)) {
		int64_t sum = lane < THREADS / 32 ? s.sums[warp][lane] : 0;
#pragma unroll
		for (int step = 16; step > 0; step /= 2)
			sum += __shfl_xor_sync(KVC__FULL_WARP, sum, step);
		if (lane == 0)
			s.totals[warp] = sum;
	}
	__syncthreads();
	Counts counts = { s.totals[0], s.totals[1], s.totals[ALL ? 2 : 0], s.totals[ALL ? 3 : 1] };
	return counts;
}

// Is there a bad token in this member's share of [from, to)?
template <int THREADS, int TEAM>
static __device__ __noinline__ bool look_outside(
        const kvc__scatter_params &p, int64_t from, int64_t to, int rank)
{
	int64_t share = (to - from + TEAM - 1) / TEAM;
	int64_t begin = from + rank * share, end = min64(begin + share, to);
	bool bad = false;
	int64_t t = begin + threadIdx.x;
	for (; t + 3 * THREADS < end; t += 4 * THREADS) {
		int64_t a = __ldg(p.job.flat + t), b = __ldg(p.job.flat + t + THREADS);
		int64_t c = __ldg(p.job.flat + t + 2 * THREADS);
		int64_t d = __ldg(p.job.flat + t + 3 * THREADS);
		bad |= is_bad(p, a) | is_bad(p, b) | is_bad(p, c) | is_bad(p, d);
	}
	for (; t < end; t += THREADS)
		bad |= is_bad(p, __ldg(p.job.flat + t));
	return bad;
}

// Is a token bad of the request [first, past), which reaches beyond this member's chunk? 'own': of
// its tokens in this chunk.
template <int TEAM>
static __device__ __forceinline__ bool team_verdict(const int *seen, int64_t first, int64_t past,
        int64_t team_begin, int64_t team_end, int64_t chunk, int rank, bool own)
{
	bool bad = own;
#pragma unroll
	for (int j = 0; j < TEAM; j++) {
		int said = seen[j];
		if (j < rank && team_begin + (j + 1) * chunk > first)
			bad |= (said & BAD_RIGHT) != 0;
		if (j > rank && team_begin + j * chunk < past)
			bad |= (said & BAD_LEFT) != 0;
		if (first < team_begin)
			bad |= (said & BAD_BEFORE) != 0;
		if (past > team_end)
			bad |= (said & BAD_BEHIND) != 0;
	}
	return bad;
}

// The last of 'count' requests that begins at or before this position of the chunk.
static __device__ __forceinline__ int request_at(const int *start, int count, int at)
{
	int low = 0;
	while (count - low > 1) {
		int middle = (low + count) / 2;
		if (start[middle] <= at)
			low = middle;
		else
			count = middle;
	}
	return low;
}

// Find the rows that requests 'base' .. of this round share with others, and what follows from it.
template <int THREADS>
static __device__ __forceinline__ void find_duplicates(const kvc__scatter_params &p,
        Shared<THREADS> &s, int64_t base, int count, int64_t chunk_begin, int chunk)
{
	const kvc__scatter &job = p.job;
	int64_t from = p.sglang ? base + 1 : 0, to = p.sglang ? job.request_count : base + count - 1;
#pragma unroll 4
	for (int64_t i = from + threadIdx.x; i < to; i += THREADS) {
		int64_t row = __ldg(job.rows + i), length;
		if (count == 1) {
			if (row != s.row[0])
				continue;
		} else {
			unsigned bit = filter_bit(row);
			if (!(s.filter[bit / 32] >> bit % 32 & 1))
				continue;
		}
		if (row < 0 || !claims(job, i, &length))
			continue;
		for (int k = 0; k < count; k++) {
			if (s.row[k] != row || (p.sglang ? i <= base + k : i >= base + k))
				continue;
			if (p.sglang) {
				int64_t first = __ldg(job.offsets + base + k);
				atomicMax(&s.low[k], clamp(first + length - chunk_begin, 0, chunk));
			} else {
				s.why[k] = WHY(KVC_REPORT_ROW_DUPLICATE);
			}
		}
	}
}

// Four tokens from flat[at] on; those past the end are 0.
static __device__ __forceinline__ void load_quad(
        const kvc__scatter &job, int64_t at, bool aligned, bool stream, int64_t *token)
{
	const int64_t *from = job.flat + at;
	if (aligned && at + 4 <= job.flat_count) {
		const longlong2 *pair = (const longlong2 *)from;
		longlong2 x = stream ? __ldcs(pair) : __ldg(pair);
		longlong2 y = stream ? __ldcs(pair + 1) : __ldg(pair + 1);
		token[0] = x.x, token[1] = x.y, token[2] = y.x, token[3] = y.y;
		return;
	}
#pragma unroll
	for (int i = 0; i < 4; i++)
		token[i] = at + i < job.flat_count ? __ldg(from + i) : 0;
}

template <int THREADS, int QUADS, bool CHECK, int TEAM_WANTED>
static __device__ __forceinline__ void scatter(const kvc__scatter_params &p)
{
#if __CUDA_ARCH__ >= 900
	constexpr int TEAM = TEAM_WANTED;
#else
	constexpr int TEAM = 1;
#endif
	constexpr int CHUNK = THREADS * QUADS * 4;
	const kvc__scatter &job = p.job;
	__shared__ Shared<THREADS> s;
	int lane = threadIdx.x % 32, rank = blockIdx.x % TEAM;
	int64_t a = (int64_t)blockIdx.x * CHUNK, b = max64(min64(a + CHUNK, job.flat_count), a);
	int64_t team_begin = a - (int64_t)rank * CHUNK;
	int64_t team_end = min64(team_begin + (int64_t)TEAM * CHUNK, job.flat_count);

	kvc__wait_for_previous();
	kvc__release_next();
	if (CHECK)
		team_arrive<TEAM>();

	// Position of quad q of this thread: (q * THREADS + threadIdx.x) * 4.
	int64_t token[QUADS * 4];
	bool aligned = ((uintptr_t)job.flat & 15) == 0;
#pragma unroll
	for (int q = 0; q < QUADS; q++)
		load_quad(job, a + (q * THREADS + threadIdx.x) * 4, aligned, !CHECK, token + q * 4);

	// All offsets: the requests of this chunk, and whether they are in order.
	unsigned before[4] = { 0, 0, 0, 0 };
	bool falls = false;
	int64_t round = 0;
	for (int64_t i = threadIdx.x; i < job.request_count; i += THREADS, round++) {
		int64_t first = __ldg(job.offsets + i), past = __ldg(job.offsets + i + 1);
		asm volatile("prefetch.global.L1 [%0];" ::"l"(job.rows + i)); // asked for soon
		falls |= past < first;
		before[0] += first <= a;
		before[1] += first < b;
		if (TEAM > 1) {
			before[2] += first <= team_begin;
			before[3] += first < team_end;
		}
		if (p.report && round % gridDim.x == blockIdx.x)
			account_offsets(p, i, first, past);
	}
	for (int i = threadIdx.x; i < FILTER_BITS / 32; i += THREADS)
		s.filter[i] = 0;
	if (threadIdx.x == 0)
		s.own = 0;
	Counts counts = block_counts<THREADS, (TEAM > 1)>(s, before, falls, &falls);
	if (falls) {
		if (CHECK)
			team_wait<TEAM>();
		scatter_slowly<CHECK>(p);
		return;
	}
	int64_t begin = max64(counts.to_chunk - 1, 0), end = b > a ? counts.in_chunk : begin;

	unsigned bad = 0; // a bit a token
	int value[QUADS * 4];
#pragma unroll
	for (int i = 0; i < QUADS * 4; i++) {
		value[i] = (int)token[i];
		if (CHECK)
			bad |= (unsigned)is_bad(p, token[i]) << i;
	}

	// The tokens of requests that reach beyond the chunk.
	int64_t left_first = 0, left_past = 0, right_first = 0, right_past = 0;
	bool left_bad = false, right_bad = false;
	if (CHECK) {
		if (end > begin) {
			left_first = __ldg(job.offsets + begin);
			left_past = __ldg(job.offsets + begin + 1);
			right_first = __ldg(job.offsets + end - 1);
			right_past = __ldg(job.offsets + end);
		}
		for (unsigned rest = bad; rest; rest &= rest - 1) {
			int i = __ffs(rest) - 1;
			int64_t at = a + (i / 4 * THREADS + threadIdx.x) * 4 + i % 4;
			int said = left_first < a && at < left_past ? BAD_LEFT : 0;
			said |= right_past > b && at >= right_first ? BAD_RIGHT : 0;
			atomicOr(&s.own, said);
		}
		int64_t r = counts.to_team - 1;
		if (r >= 0) {
			int64_t first = __ldg(job.offsets + r), past = __ldg(job.offsets + r + 1);
			if (first < team_begin && past > team_begin && first >= 0 &&
			        past <= job.flat_count &&
			        look_outside<THREADS, TEAM>(p, first, team_begin, rank))
				atomicOr(&s.own, BAD_BEFORE);
		}
		r = counts.in_team - 1;
		if (r >= 0) {
			int64_t first = __ldg(job.offsets + r), past = __ldg(job.offsets + r + 1);
			if (past > team_end && first >= 0 && past <= job.flat_count &&
			        look_outside<THREADS, TEAM>(p, team_end, past, rank))
				atomicOr(&s.own, BAD_BEHIND);
		}
		team_trade<TEAM>(&s.own, s.seen, rank);
		int own = s.own;
		left_bad = left_first < a && team_verdict<TEAM>(s.seen, left_first, left_past,
		        team_begin, team_end, CHUNK, rank, (own & BAD_LEFT) != 0);
		right_bad = right_past > b && team_verdict<TEAM>(s.seen, right_first, right_past,
		        team_begin, team_end, CHUNK, rank, (own & BAD_RIGHT) != 0);
	}

	int64_t written = 0, truncated = 0;
	for (int64_t base = begin; base < end; base += THREADS) {
		int count = (int)min64(end - base, THREADS);
		int k = threadIdx.x;
		Request request = { 0, 0, 0 };
		bool is_live = false; // has tokens, and is accounted for here: it begins in this chunk
		if (k < count) {
			request.load(job, base + k);
			bool has_tokens = request.has_tokens(job), has_row = request.has_row(job);
			bool usable = has_tokens && has_row;
			int64_t past = min64(request.past, request.first + job.column_count);
			is_live = has_tokens && request.first >= a && request.first < b;
			s.start[k] = clamp(request.first - a, 0, CHUNK);
			s.low[k] = clamp(request.first - a, 0, CHUNK);
			s.high[k] = usable ? clamp(past - a, 0, CHUNK) : 0;
			s.place[k] = request.row * job.row_stride + (a - request.first);
			s.row[k] = usable ? request.row : -1;
			s.why[k] = has_row ? 0 : WHY(KVC_REPORT_ROW_RANGE);
			if (usable) {
				unsigned bit = filter_bit(request.row);
				atomicOr(&s.filter[bit / 32], 1u << bit % 32);
			}
		}
		__syncthreads();
		if (job.request_count > 1) {
			find_duplicates<THREADS>(p, s, base, count, a, CHUNK);
			__syncthreads();
		}
		if (CHECK) { // a bad token is what counts last
			for (unsigned rest = bad; rest; rest &= rest - 1) {
				int i = __ffs(rest) - 1;
				int at = (i / 4 * THREADS + threadIdx.x) * 4 + i % 4;
				int hit = request_at(s.start, count, at);
				// Its own request, and not one of another round.
				if (a + at >= __ldg(job.offsets + base + hit) &&
				        a + at < __ldg(job.offsets + base + hit + 1))
					atomicCAS(&s.why[hit], 0, WHY(KVC_REPORT_TOKEN_RANGE));
			}
			if (k == 0 && left_bad && base == begin)
				atomicCAS(&s.why[0], 0, WHY(KVC_REPORT_TOKEN_RANGE));
			if (k == 0 && right_bad && base + count == end)
				atomicCAS(&s.why[count - 1], 0, WHY(KVC_REPORT_TOKEN_RANGE));
			__syncthreads();
		}
		if (p.report && is_live) {
			int why = s.why[k];
			int64_t length = request.past - request.first;
			if (why)
				kvc__report_row(p.report, why - 1, base + k);
			written += !why;
			truncated += why ? 0 : max64(length - job.column_count, 0);
		}

		// One request has the whole chunk: as wide stores as its row allows.
		if (count == 1 && s.low[0] == 0 && s.high[0] == CHUNK && !s.why[0] &&
		        ((uintptr_t)(job.table + s.place[0]) & 15) == 0) {
			int4 *to = (int4 *)(job.table + s.place[0]);
#pragma unroll
			for (int q = 0; q < QUADS; q++)
				to[q * THREADS + threadIdx.x] = make_int4(value[q * 4],
				        value[q * 4 + 1], value[q * 4 + 2], value[q * 4 + 3]);
		} else {
			// A warp's 128 tokens, 32 neighbours a store: rows begin anywhere.
#pragma unroll
			for (int q = 0; q < QUADS; q++)
#pragma unroll 2
				for (int part = 0; part < 4; part++) {
					int from = part * 8 + lane / 4, mine = 0;
#pragma unroll
					for (int i = 0; i < 4; i++) {
						int x = __shfl_sync(
						        KVC__FULL_WARP, value[q * 4 + i], from);
						mine = lane % 4 == i ? x : mine;
					}
					int at = (q * THREADS + (threadIdx.x & ~31)) * 4 +
					         part * 32 + lane;
					int hit = request_at(s.start, count, at);
					if (at >= s.low[hit] && at < s.high[hit] && !s.why[hit])
						job.table[s.place[hit] + at] = mine;
				}
		}
		if (base + THREADS < end) { // another round uses the same memory
			__syncthreads();
			for (int i = threadIdx.x; i < FILTER_BITS / 32; i += THREADS)
				s.filter[i] = 0;
			__syncthreads();
		}
	}
	if (p.report) {
#pragma unroll
		for (int step = 16; step > 0; step /= 2) {
			written += __shfl_xor_sync(KVC__FULL_WARP, written, step);
			truncated += __shfl_xor_sync(KVC__FULL_WARP, truncated, step);
		}
		if (lane == 0 && written)
			kvc__report_add(&p.report->rows_written, written);
		if (lane == 0 && truncated)
			kvc__report_add(&p.report->tokens_truncated, truncated);
	}
}

// ---- names that the host looks up ----

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define TEAM_OF_8
#else
#define TEAM_OF_8 __cluster_dims__(8, 1, 1)
#endif

// Registers decide how many loads are in flight on a chip: BLOCKS of them at least.
#define NARROW(THREADS, QUADS, BLOCKS) \
	KVC__KERNEL void __launch_bounds__(THREADS, BLOCKS) kvc_scatter_narrow_##THREADS##_##QUADS( \
	        const __grid_constant__ kvc__scatter_params p) \
	{ \
		scatter<THREADS, QUADS, false, 1>(p); \
	}
#define CHECKED(THREADS, QUADS, BLOCKS) \
	KVC__KERNEL void __launch_bounds__(THREADS, BLOCKS) kvc_scatter_checked_##THREADS##_##QUADS( \
	        const __grid_constant__ kvc__scatter_params p) \
	{ \
		scatter<THREADS, QUADS, true, 1>(p); \
	}
#define TEAM(THREADS, QUADS, BLOCKS) \
	KVC__KERNEL void TEAM_OF_8 __launch_bounds__(THREADS, BLOCKS) kvc_scatter_team_##THREADS##_##QUADS( \
	        const __grid_constant__ kvc__scatter_params p) \
	{ \
		scatter<THREADS, QUADS, true, 8>(p); \
	}

NARROW(256, 1, 5)
NARROW(256, 2, 5)
NARROW(256, 4, 4)
CHECKED(256, 1, 5)
CHECKED(256, 2, 5)
CHECKED(256, 4, 4)
TEAM(256, 1, 5)
TEAM(256, 2, 5)
TEAM(512, 4, 2)
TEAM(1024, 4, 1)
