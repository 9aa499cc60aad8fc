// scatter_req_token_ids on the device: the same bytes as src/cpu/scatter_portable.c, in one launch.
//
// A block has a chunk of one request in registers, or a team of blocks (a cluster) its first chunks; what
// is longer is read twice. So nobody needs to know where other requests begin. A request is judged as a
// whole, before a word of it is stored, without any memory to pass verdicts around in:
//
//   its offsets and row   by each of its blocks
//   its row is taken      each of its blocks compares its row with those of earlier requests. A row
//                         belongs to the first request with tokens and sound offsets on it, whatever
//                         its tokens are; by SGLang's rules the later one wins, column by column
//   its tokens            each block looks at its own, and the team trades what they saw
//
// Where blocks are few, latency counts, and every instruction of a warp is some 3 ns of it: the way
// through this kernel is short.
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

// Does this thread find one that row r loses to? '*covered': columns that later requests write.
static __device__ __forceinline__ bool is_taken(
        const kvc__scatter_params &p, int64_t r, int64_t row, unsigned long long *covered)
{
	const kvc__scatter &job = p.job;
	int64_t from = p.sglang ? r + 1 : 0, to = p.sglang ? job.request_count : r;
	bool taken = false;
#pragma unroll 4
	for (int64_t i = from + threadIdx.x; i < to; i += blockDim.x) {
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

// Four tokens from number 'at' of the request on; zeros past its end.
static __device__ __forceinline__ void load_quad(
        const int64_t *tokens, int64_t at, int64_t length, bool wide, int64_t *token)
{
	if (at + 4 <= length && wide) {
		longlong2 x = __ldcs((const longlong2 *)(tokens + at));
		longlong2 y = __ldcs((const longlong2 *)(tokens + at) + 1);
		token[0] = x.x, token[1] = x.y, token[2] = y.x, token[3] = y.y;
		return;
	}
#pragma unroll
	for (int j = 0; j < 4; j++)
		token[j] = at + j < length ? __ldcs(tokens + at + j) : 0;
}

static __device__ __forceinline__ bool has_bad(const kvc__scatter_params &p, const int64_t *token)
{
	uint64_t all = 0;
#pragma unroll
	for (int j = 0; j < 4; j++)
		all |= (uint64_t)(p.allow_placeholder && token[j] == -1 ? 0 : token[j]);
	return all >> 31 != 0;
}

static __device__ __forceinline__ void store_quad(int32_t *to, int64_t at, int64_t begin, int64_t end,
        bool wide, const int64_t *token)
{
	if (at >= begin && at + 4 <= end && wide) {
		*(int4 *)(to + at) = make_int4((int)token[0], (int)token[1], (int)token[2], (int)token[3]);
		return;
	}
#pragma unroll
	for (int j = 0; j < 4; j++)
		if (at + j >= begin && at + j < end)
			to[at + j] = (int32_t)(uint64_t)token[j];
}

// ---- teams ----

[[maybe_unused]] static __device__ __forceinline__ void team_arrive()
{
#if __CUDA_ARCH__ >= 900
	asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
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
		asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(there), "r"(1) : "memory");
	}
	__syncwarp();
	team_arrive();
	team_wait();
	return *heard != 0;
#else
	return mine;
#endif
}

// ---- a request ----

// One thread of the request's blocks says what became of it.
static __device__ __noinline__ void account(const kvc__scatter_params &p, int64_t r, int64_t first,
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
	else {
		kvc__report_add(&p.report->rows_written, 1);
		if (past - first > p.job.column_count)
			kvc__report_add(&p.report->tokens_truncated, past - first - p.job.column_count);
	}
}

template <int THREADS, int QUADS>
static __device__ __forceinline__ void scatter(const kvc__scatter_params &p)
{
	constexpr int CHUNK = THREADS * QUADS * 4;
	constexpr bool CHECKS = !KVC__MOVES_ONLY;
	__shared__ unsigned long long covered;
	__shared__ int lost, heard;
	const kvc__scatter &job = p.job;
	unsigned rank = blockIdx.x % (unsigned)p.team;
	int64_t r = blockIdx.x / (unsigned)p.team, mine = (int64_t)rank * CHUNK + 4 * threadIdx.x;
	int64_t step = (int64_t)p.team * CHUNK;
	bool trades = CHECKS && p.check_tokens && p.team > 1;

	if (CHECKS) {
		if (threadIdx.x == 0)
			covered = 0, lost = heard = 0;
		__syncthreads();
	}
	if (trades)
		team_arrive();
	kvc__wait_for_previous();
	kvc__release_next();
	int64_t first = __ldg(job.offsets + r), past = __ldg(job.offsets + r + 1);
	int64_t row = __ldg(job.rows + r);
	bool has_row = !CHECKS || (uint64_t)row < (uint64_t)job.row_count;
	int64_t length = is_sound(p, first, past) && has_row ? past - first : 0;

	const int64_t *tokens = job.flat + first;
	bool wide = ((uintptr_t)tokens & 15) == 0, bad = false;
	int64_t token[QUADS * 4];
#pragma unroll
	for (int q = 0; q < QUADS; q++)
		load_quad(tokens, mine + q * THREADS * 4, length, wide, token + q * 4);
	if (CHECKS && length > 0 && is_taken(p, r, row, &covered))
		lost = 1;
	if (CHECKS && p.check_tokens) {
#pragma unroll
		for (int q = 0; q < QUADS; q++)
			bad |= has_bad(p, token + q * 4);
		for (int64_t at = mine + step; at - 4 * threadIdx.x < length; at += step)
			for (int q = 0; q < QUADS; q++) {
				int64_t other[4];
				load_quad(tokens, at + q * THREADS * 4, length, wide, other);
				bad |= has_bad(p, other);
			}
	}
	if (CHECKS)
		bad = __syncthreads_or(bad) != 0;
	if (trades)
		bad = team_or(bad, &heard, p.team);
	if (CHECKS && p.report && rank == 0 && threadIdx.x == 0)
		account(p, r, first, past, has_row, lost != 0, bad);
	if (CHECKS && (bad || lost))
		return;

	int32_t *to = job.table + row * job.row_stride;
	int64_t begin = CHECKS ? (int64_t)covered : 0, end = min64(length, job.column_count);
	wide = ((uintptr_t)to & 15) == 0;
#pragma unroll
	for (int q = 0; q < QUADS; q++)
		store_quad(to, mine + q * THREADS * 4, begin, end, wide, token + q * 4);
	for (int64_t at = mine + step; at - 4 * threadIdx.x < end; at += step)
		for (int q = 0; q < QUADS; q++) {
			int64_t other[4];
			load_quad(tokens, at + q * THREADS * 4, length, ((uintptr_t)tokens & 15) == 0, other);
			store_quad(to, at + q * THREADS * 4, begin, end, wide, other);
		}
}

// ---- names that the host looks up ----

// Registers decide how many loads are in flight on a chip: BLOCKS of them at least.
#define SCATTER(THREADS, QUADS, BLOCKS) \
	KVC__KERNEL void __launch_bounds__(THREADS, BLOCKS) kvc_scatter_##THREADS##_##QUADS( \
	        const __grid_constant__ kvc__scatter_params p) \
	{ \
		scatter<THREADS, QUADS>(p); \
	}

SCATTER(256, 1, 4)
SCATTER(512, 1, 2)
SCATTER(512, 4, 2)
