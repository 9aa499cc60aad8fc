// What the kernels share: programmatic launches, streaming accesses, the report.
#ifndef KVC__CUDA_DEVICE_CUH
#define KVC__CUDA_DEVICE_CUH

#include "cuda/moves.cuh"
#include "kvcanary.h"

#define KVC__KERNEL extern "C" __global__
#define KVC__FULL_WARP 0xFFFFFFFFu

// A kernel launched programmatically may start while the one before it still runs: nothing of
// device memory may be touched before the wait. Chips before Hopper launch in order and need none.
static __device__ __forceinline__ void kvc__wait_for_previous()
{
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

static __device__ __forceinline__ void kvc__release_next()
{
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Ask for a line that will be read soon.
static __device__ __forceinline__ void kvc__prefetch(const void *at)
{
	asm volatile("prefetch.global.L1 [%0];" ::"l"(at));
}

// Count one offending row. 'first' holds -1 if there is none yet, which is the largest unsigned.
static __device__ __forceinline__ void kvc__report_row(kvc_report *report, int reason, int64_t row)
{
	if (!report)
		return;
	atomicAdd((unsigned long long *)&report->count[reason], 1ull);
	atomicMin((unsigned long long *)&report->first[reason], (unsigned long long)row);
}

static __device__ __forceinline__ void kvc__report_add(int64_t *field, int64_t count)
{
	atomicAdd((unsigned long long *)field, (unsigned long long)count);
}

#endif
