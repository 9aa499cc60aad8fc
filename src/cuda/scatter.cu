// scatter_req_token_ids on the device: the same bytes as src/cpu/scatter_portable.c, in one launch.
//
// A block has a chunk of one request, narrowed, in registers or shared memory, or a team of blocks (a
// cluster) its first chunks; what is longer is read twice. So nobody needs to know where other requests
// begin. A request is judged as a whole, before a word of it is stored, without any memory to pass
// verdicts around in:
//
//   its offsets and row   by each of its blocks
//   its row is taken      each of its blocks compares its row with those of earlier requests. A row
//                         belongs to the first request with tokens and sound offsets on it, whatever
//                         its tokens are; by SGLang's rules the later one wins, column by column
//   its tokens            each block looks at its own, and the team trades what they saw
//
// Where blocks are few, latency counts, and every instruction of a warp is some 3 ns of it: the way
// of a sound request through this kernel is short. One that shares its row, or has a bad token, or
// none at all, goes another way, from memory (judge).
#include "cuda/device.cuh"
#include "cuda/scatter_params.h"

static __device__ __forceinline__ int64_t min64(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static __device__ __forceinline__ bool is_sound(
        const kvc__scatter_params &p, int64_t first, int64_t past)
{
	return KVC__MOVES_ONLY || (past > first && first >= 0 && past <= p.job.flat_count);
}

// ---- rows that several requests claim ----

// Requests that could have the row of request r instead: [from, to).
static __device__ __forceinline__ int64_t rivals_from(const kvc__scatter_params &p, int64_t r)
{
	return p.sglang ? r + 1 : 0;
}

static __device__ __forceinline__ int64_t rivals_to(const kvc__scatter_params &p, int64_t r)
{
	return p.sglang ? p.job.request_count : r;
}

// Does this thread find one that the row is lost to? '*covered': columns that later requests write.
static __device__ __forceinline__ bool is_taken(
        const kvc__scatter_params &p, int64_t r, int64_t row, unsigned long long *covered)
{
	const kvc__scatter &job = p.job;
	int64_t to = rivals_to(p, r);
	bool taken = false;
	for (int64_t i = rivals_from(p, r) + threadIdx.x; i < to; i += blockDim.x) {
		if (__ldg(job.rows + i) != row)
			continue;
		int64_t first = __ldg(job.offsets + i), past = __ldg(job.offsets + i + 1);
		if (!is_sound(p, first, past))
			continue;
		taken = true;
		if (p.sglang)
			atomicMax(covered, (unsigned long long)min64(past - first, job.column_count));
	}
	return taken && !p.sglang;
}

// ---- tokens ----

// What has been seen of tokens. 'wrong' is zero and 'low' at most the largest int32 if all are in range;
// where -1 passes, a high half must repeat its low half's sign, and 'low' is the largest of the low
// halves plus one.
struct Seen {
	uint32_t wrong, low;

	template <int COUNT>
	__device__ __forceinline__ void look(const kvc__scatter_params &p, const int64_t (&token)[COUNT])
	{
		if (!p.allow_placeholder) {
#pragma unroll
			for (int i = 0; i < COUNT; i++) {
				wrong |= (uint32_t)((uint64_t)token[i] >> 32);
				low |= (uint32_t)token[i];
			}
			return;
		}
#pragma unroll
		for (int i = 0; i < COUNT; i++) {
			uint32_t half = (uint32_t)token[i] + 1;
			wrong |= (uint32_t)((uint64_t)token[i] >> 32) ^ (uint32_t)((int32_t)token[i] >> 31);
			low = low > half ? low : half;
		}
	}

	__device__ __forceinline__ bool is_bad(const kvc__scatter_params &p) const
	{
		return wrong != 0 || low > (uint32_t)INT32_MAX + (uint32_t)p.allow_placeholder;
	}
};

// A thread's tokens of a chunk, some at a time, whose loads are all under way before the first is looked
// at: quads, wherever 16-byte accesses can be used throughout, else single tokens, neighbours in
// neighbouring threads. 'left' tokens are there.
template <int THREADS, int COUNT, bool QUADS>
struct Batch {
	static constexpr int APART = THREADS * (QUADS ? 4 : 1);
	int32_t token[COUNT];

	static __device__ __forceinline__ int first()
	{
		return (int)threadIdx.x * (QUADS ? 4 : 1);
	}

	// 'shifted': quads begin 8 bytes off.
	__device__ __forceinline__ void take(const kvc__scatter_params &p, const int64_t *from, int at,
	        int left, Seen &seen, bool shifted = false)
	{
		int64_t wide[COUNT];
		at += first();
		if (QUADS && shifted) {
#pragma unroll
			for (int i = 0; i < COUNT; i += 4) {
				const int64_t *quad = from + at + i / 4 * APART;
				longlong2 inner = { 0, 0 };
				wide[i] = wide[i + 3] = 0;
				if (at + i / 4 * APART < left) {
					wide[i] = __ldcs(quad);
					inner = __ldcs((const longlong2 *)(quad + 1));
					wide[i + 3] = __ldcs(quad + 3);
				}
				wide[i + 1] = inner.x, wide[i + 2] = inner.y;
			}
		} else if (QUADS) {
#pragma unroll
			for (int i = 0; i < COUNT; i += 4) {
				longlong2 a = { 0, 0 }, b = { 0, 0 };
				if (at + i / 4 * APART < left) {
					a = __ldcs((const longlong2 *)(from + at + i / 4 * APART));
					b = __ldcs((const longlong2 *)(from + at + i / 4 * APART) + 1);
				}
				wide[i] = a.x, wide[i + 1] = a.y, wide[i + 2] = b.x, wide[i + 3] = b.y;
			}
		} else {
#pragma unroll
			for (int i = 0; i < COUNT; i++)
				wide[i] = at + i * APART < left ? __ldcs(from + at + i * APART) : 0;
		}
		if (!KVC__MOVES_ONLY)
			seen.look(p, wide);
#pragma unroll
		for (int i = 0; i < COUNT; i++)
			token[i] = (int32_t)wide[i];
	}

	__device__ __forceinline__ void put(int32_t *to, int at, int left) const
	{
		at += first();
		if (QUADS) {
#pragma unroll
			for (int i = 0; i < COUNT; i += 4)
				if (at + i / 4 * APART < left) // left as it is, this would become four stores
					asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(
					                     to + at + i / 4 * APART),
					             "r"(token[i]), "r"(token[i + 1]), "r"(token[i + 2]),
					             "r"(token[i + 3])
					             : "memory");
		} else {
#pragma unroll
			for (int i = 0; i < COUNT; i++)
				if (at + i * APART < left)
					to[at + i * APART] = token[i];
		}
	}

	// In shared memory, for the same thread.
	__device__ __forceinline__ void stage(int4 *at) const
	{
#pragma unroll
		for (int i = 0; i < COUNT; i += 4)
			at[i / 4 * THREADS + threadIdx.x] =
			        make_int4(token[i], token[i + 1], token[i + 2], token[i + 3]);
	}

	__device__ __forceinline__ void fetch(const int4 *at)
	{
#pragma unroll
		for (int i = 0; i < COUNT; i += 4) {
			int4 quad = at[i / 4 * THREADS + threadIdx.x];
			token[i] = quad.x, token[i + 1] = quad.y, token[i + 2] = quad.z, token[i + 3] = quad.w;
		}
	}
};

static __device__ __forceinline__ bool is_wide(const void *at)
{
	return ((uintptr_t)at & 15) == 0;
}

// ---- teams ----

[[maybe_unused]] static __device__ __forceinline__ void team_arrive()
{
#if __CUDA_ARCH__ >= 900
	asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
#endif
}

// Orders nothing: it takes a fence where something was written before.
[[maybe_unused]] static __device__ __forceinline__ void team_arrive_relaxed()
{
#if __CUDA_ARCH__ >= 900
	asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}

[[maybe_unused]] static __device__ __forceinline__ void team_wait()
{
#if __CUDA_ARCH__ >= 900
	asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}

// Is it true for one of the team? 'heard': a word of shared memory, zero when all have arrived once.
static __device__ __forceinline__ bool team_or(bool mine, int *heard, int team)
{
#if __CUDA_ARCH__ >= 900
	team_wait();
	if (mine && (int)threadIdx.x < team) {
		unsigned here = (unsigned)__cvta_generic_to_shared(heard), there;
		asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
		             : "=r"(there)
		             : "r"(here), "r"(threadIdx.x));
		asm volatile("st.shared::cluster.u32 [%0], %1;\n\tfence.acq_rel.cluster;" ::"r"(there),
		             "r"(1)
		             : "memory");
	}
	__syncwarp();
	team_arrive_relaxed();
	team_wait();
	return *heard != 0;
#else
	return mine;
#endif
}

// ---- a request ----

static __device__ __forceinline__ void account_written(const kvc__scatter_params &p, int64_t length)
{
	kvc__report_add(&p.report->rows_written, 1);
	if (length > p.job.column_count)
		kvc__report_add(&p.report->tokens_truncated, length - p.job.column_count);
}

// One thread of the request's blocks says what became of it.
static __device__ __forceinline__ void account(const kvc__scatter_params &p, int64_t r, int64_t first,
        int64_t past, bool has_row, bool taken, bool bad)
{
	bool outside = first < 0 || past > p.job.flat_count;
	if (p.sglang ? past > first && outside : past < first || outside)
		kvc__report_row(p.report, KVC_REPORT_OFFSETS, r);
	else if (past <= first)
		kvc__report_add(&p.report->rows_skipped, 1);
	else if (!has_row)
		kvc__report_row(p.report, KVC_REPORT_ROW_RANGE, r);
	else if (taken)
		kvc__report_row(p.report, KVC_REPORT_ROW_DUPLICATE, r);
	else if (bad)
		kvc__report_row(p.report, KVC_REPORT_TOKEN_RANGE, r);
	else
		account_written(p, past - first);
}

// A request that is not plainly sound, by all the rules. 'bad': a token of this thread is; 'heard': a
// word of shared memory as team_or wants it, if the team trades.
static __device__ __noinline__ void judge(const kvc__scatter_params &p, int64_t r, unsigned rank,
        bool bad, int *heard, bool trades)
{
	__shared__ unsigned long long covered;
	const kvc__scatter &job = p.job;
	int64_t first = __ldg(job.offsets + r), past = __ldg(job.offsets + r + 1);
	int64_t row = __ldg(job.rows + r);
	bool has_row = (uint64_t)row < (uint64_t)job.row_count, lost = false;
	bool empty = !is_sound(p, first, past) || !has_row;

	if (threadIdx.x == 0)
		covered = 0;
	__syncthreads();
	if (!empty)
		lost = is_taken(p, r, row, &covered);
	lost = __syncthreads_or(lost) != 0;
	bad = __syncthreads_or(bad) != 0;
	if (trades) {
		team_arrive();
		bad = team_or(bad, heard, p.team);
	}
	if (p.report && rank == 0 && threadIdx.x == 0)
		account(p, r, first, past, has_row, lost, bad);
	if (empty || lost || bad)
		return;
	int64_t end = min64(past - first, job.column_count);
	int32_t *to = job.table + row * job.row_stride;
	for (int64_t at = (int64_t)covered + (int64_t)rank * blockDim.x + threadIdx.x; at < end;
	        at += (int64_t)p.team * blockDim.x)
		to[at] = (int32_t)(uint64_t)__ldg(job.flat + first + at);
}

// Of the tokens [begin, ...) of a request, as many as a chunk can have.
static __device__ __forceinline__ int left_of(int64_t length, int64_t begin, int chunk)
{
	return length <= begin ? 0 : length - begin < chunk ? (int)(length - begin) : chunk;
}

// One request, whose offsets are sound unless it has no length, by its team.
struct Request {
	int64_t r, first, length, row;
	unsigned rank;
	int *heard;
};

static __device__ __forceinline__ bool is_traded(const kvc__scatter_params &p)
{
	return !KVC__MOVES_ONLY && p.check_tokens && p.team > 1;
}

// Does this thread find another that could have the row? The first of them has been asked for.
template <int THREADS>
static __device__ __forceinline__ bool is_shared(
        const kvc__scatter_params &p, const Request &q, int64_t rival)
{
	int64_t i = rivals_from(p, q.r) + threadIdx.x + THREADS, end = rivals_to(p, q.r);
	bool shared = rival == q.row;
#pragma unroll 1
	for (; i < end; i += 4 * THREADS)
#pragma unroll
		for (int k = 0; k < 4; k++)
			if (i + k * THREADS < end)
				shared |= __ldg(p.job.rows + i + k * THREADS) == q.row;
	return shared;
}

// Where tokens wait to be judged: in registers, in shared memory, or, of the most that a multiprocessor has room for,
// in both.
enum { HELD, STAGED, SPREAD };

// Take, judge, put. 'odd': what this thread has found so far.
template <int THREADS, int QUADS, int KEPT, bool WHOLE>
static __device__ __forceinline__ void scatter_request(
        const kvc__scatter_params &p, const Request &q, int64_t rival)
{
	constexpr int CHUNK = THREADS * QUADS * 4, COUNT = 4 * (KEPT != HELD && QUADS > 4 ? 4 : QUADS);
	constexpr bool CHECKS = !KVC__MOVES_ONLY, ANYWHERE = WHOLE && KEPT == SPREAD;
	typedef Batch<THREADS, COUNT, WHOLE> Tokens;
	constexpr int STEP = THREADS * COUNT; // tokens of a batch of all threads
	constexpr int PUT_BY = KEPT == HELD ? 0 : KEPT == STAGED ? CHUNK : CHUNK - STEP; // what is not held
	extern __shared__ int4 staged[];
	int64_t begin = (int64_t)q.rank * CHUNK, step = (int64_t)CHUNK << p.team_shift;
	const int64_t *tokens = p.job.flat + q.first;
	int left = left_of(q.length, begin, CHUNK), rest = 0;
	int64_t last[1] = { 0 }; // of those behind the last quad
	Seen seen = { 0, 0 };
	Tokens held;
	if (ANYWHERE) {
		rest = left % 4;
		left -= rest;
		if ((int)threadIdx.x < rest)
			last[0] = __ldcs(tokens + begin + left + threadIdx.x);
	}
#pragma unroll
	for (int at = 0; at < CHUNK; at += STEP) {
		held.take(p, tokens + begin, at, left, seen, ANYWHERE && !is_wide(tokens));
		if (at < PUT_BY)
			held.stage(staged + at / 4);
	}
	if (ANYWHERE && CHECKS)
		seen.look(p, last);
	bool odd = CHECKS && is_shared<THREADS>(p, q, rival);
	// What lies beyond the team's chunks is read twice.
	if (!WHOLE && CHECKS && p.check_tokens)
		for (int64_t far = begin + step; far < q.length; far += step)
			for (int at = 0; at < CHUNK; at += STEP) {
				Tokens other;
				other.take(p, tokens + far, at, left_of(q.length, far, CHUNK), seen);
			}
	bool bad = CHECKS && p.check_tokens && seen.is_bad(p);
	odd |= bad || q.length == 0 || (uint64_t)q.row >= (uint64_t)p.job.row_count;
	if (CHECKS)
		odd = __syncthreads_or(odd) != 0;
	if (is_traded(p))
		odd = team_or(odd, &q.heard[0], p.team);
	if (CHECKS && odd) {
		judge(p, q.r, q.rank, bad, &q.heard[1], is_traded(p));
		return;
	}
	if (p.report && q.rank == 0 && threadIdx.x == 0)
		account_written(p, q.length);

	int32_t *to = p.job.table + q.row * p.job.row_stride;
	int64_t end = min64(q.length, p.job.column_count);
	if (ANYWHERE) {
		if ((int)threadIdx.x < rest)
			to[begin + left + threadIdx.x] = (int32_t)last[0];
	} else {
		left = left_of(end, begin, CHUNK);
	}
#pragma unroll
	for (int at = PUT_BY; at < CHUNK; at += STEP)
		held.put(to + begin, at, left);
#pragma unroll
	for (int at = 0; at < PUT_BY; at += STEP) {
		held.fetch(staged + at / 4);
		held.put(to + begin, at, left);
	}
	for (int64_t far = begin + step; !WHOLE && far < end; far += step)
		for (int at = 0; at < CHUNK; at += STEP) {
			Tokens other;
			other.take(p, tokens + far, at, left_of(end, far, CHUNK), seen);
			other.put(to + far, at, left_of(end, far, CHUNK));
		}
}

// Apart from the other one, so that the way of most requests through this kernel is short in memory too.
template <int THREADS, int QUADS, int KEPT>
static __device__ __noinline__ void scatter_ragged(const kvc__scatter_params &p, int64_t r, int64_t first,
        int64_t length, int64_t row, int64_t rival, unsigned rank, int *heard)
{
	scatter_request<THREADS, QUADS, KEPT, false>(p, { r, first, length, row, rank, heard }, rival);
}

template <int THREADS, int QUADS, int KEPT>
static __device__ __forceinline__ void scatter(const kvc__scatter_params &p)
{
	constexpr int CHUNK = THREADS * QUADS * 4;
	constexpr bool CHECKS = !KVC__MOVES_ONLY;
	__shared__ int heard[2];
	const kvc__scatter &job = p.job;
	Request q;
	q.rank = blockIdx.x & ((unsigned)p.team - 1);
	q.r = blockIdx.x >> p.team_shift;
	q.heard = heard;

	if (is_traded(p)) {
		if (threadIdx.x == 0)
			heard[0] = heard[1] = 0;
		__syncwarp();
		team_arrive();
	}
	int line = threadIdx.x * (128 / (int)sizeof(*job.flat)), guess = (int)q.rank * CHUNK + line;
	const int64_t *guessed = job.flat + q.r * p.typical + guess;
	bool guesses = line < CHUNK && guess < p.typical;
	kvc__release_next(); // it waits by itself, and where blocks are few it is late already
	kvc__wait_for_previous();
	// A step of a decoder has one token a request: no need to wait for what the offsets say.
	if (guesses)
		kvc__prefetch(guessed);
	q.first = __ldg(job.offsets + q.r);
	int64_t past = __ldg(job.offsets + q.r + 1);
	q.row = __ldg(job.rows + q.r);
	int64_t rivals = rivals_from(p, q.r) + threadIdx.x, rival = ~q.row;
	if (CHECKS && rivals < rivals_to(p, q.r))
		rival = __ldg(job.rows + rivals);
	// The way from offsets to tokens is short; whether there is such a row is asked later.
	q.length = is_sound(p, q.first, past) ? past - q.first : 0;
	bool whole = p.wide_rows && (KEPT == SPREAD || (is_wide(job.flat + q.first) && q.length % 4 == 0)) &&
	             q.length <= job.column_count && q.length <= (int64_t)CHUNK << p.team_shift;
	if (whole)
		scatter_request<THREADS, QUADS, KEPT, true>(p, q, rival);
	else
		scatter_ragged<THREADS, QUADS, KEPT>(p, q.r, q.first, q.length, q.row, rival, q.rank, heard);
}

// ---- names that the host looks up ----

// Registers decide how many loads are in flight on a chip: BLOCKS of them at least.
#define SCATTER(THREADS, QUADS, KEPT, BLOCKS) \
	KVC__KERNEL void __launch_bounds__(THREADS, BLOCKS) kvc_scatter_##THREADS##_##QUADS( \
	        const __grid_constant__ kvc__scatter_params p) \
	{ \
		scatter<THREADS, QUADS, KEPT>(p); \
	}

SCATTER(128, 1, HELD, 12)
SCATTER(128, 4, HELD, 8)
SCATTER(256, 4, HELD, 4)
SCATTER(256, 8, STAGED, 5)
SCATTER(1024, 16, SPREAD, 1)
