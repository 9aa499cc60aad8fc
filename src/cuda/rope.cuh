// What the rope kernels share: how they are told, what becomes of a token, its angles.
#ifndef KVC__CUDA_ROPE_CUH
#define KVC__CUDA_ROPE_CUH

#include <stddef.h>

#include "base/sincos.h"
#include "cuda/device.cuh"
#include "cuda/rope_params.h"

// The first so many bytes of the parameters: what a kernel is not told costs its launch nothing.
template <size_t BYTES>
struct __align__(8) kvc__rope_params_head {
	char bytes[BYTES];

	__device__ __forceinline__ const kvc__rope_params &all() const
	{
		return (const kvc__rope_params &)*this;
	}
};

// ---- indices ----

static __device__ __forceinline__ int64_t index_at(const kvc__indices &indices, int64_t i)
{
	const char *at = indices.data + i * indices.stride;
	return indices.is_64 ? *(const int64_t *)at : (int64_t)*(const int32_t *)at;
}

// What becomes of a token: the refusals of the front door, made row by row. An offending row is
// treated as one that skips its pool write; one that is also out of position is left alone wholly.
struct Verdict {
	bool skipped; // no pool row
	bool idle;    // nothing at all: q_out and k_out stay as they are
};

static __device__ __forceinline__ Verdict judge(
        const kvc__rope_params &p, int64_t token, int64_t position, int64_t slot)
{
	if (KVC__MOVES_ONLY)
		return { false, false };
	Verdict v;
	v.idle = position < 0 || position >= p.position_count;
	v.skipped = v.idle || slot < 0 || slot == p.reserved_slot || slot >= p.slot_count;
	if (!v.skipped && p.duplicate_scratch)
		v.skipped = p.duplicate_scratch[slot] != INT32_MAX - (int32_t)token;
	return v;
}

// ---- angles ----

static __device__ __forceinline__ void angle(
        const kvc__rope_params &p, int64_t position, double inv_freq, float *c, float *s)
{
	if (KVC__MOVES_ONLY) {
		*c = *s = (float)position;
		return;
	}
	double dc, ds;
	kvc__sincos((double)position * inv_freq, &dc, &ds);
	*c = (float)(p.attention_factor * dc);
	*s = (float)(p.attention_factor * ds);
}

static __device__ __forceinline__ char *element_at(
        const kvc__rows &rows, int64_t row, int head, int bytes)
{
	return rows.data + row * rows.row_stride + head * rows.head_stride + bytes;
}

#endif
