// Records, owners and a step's requests on the device: src/cpu/records.h and cpu/canary.h.
#ifndef KVC__CUDA_RECORDS_CUH
#define KVC__CUDA_RECORDS_CUH

#include "cpu/hash.h"
#include "cuda/canary_params.h"
#include "cuda/device.cuh"

static __device__ __forceinline__ kvc_record *kvc__record_of(
        const kvc__cuda_records &records, int64_t slot)
{
	return (kvc_record *)(records.data + slot * records.stride);
}

static __device__ __forceinline__ bool kvc__has_record(
        const kvc__cuda_records &records, int64_t slot)
{
	return slot >= 0 && slot < records.count;
}

static __device__ __forceinline__ kvc_record kvc__load_record(
        const kvc__cuda_records &records, int64_t slot)
{
	const kvc_record *from = kvc__record_of(records, slot);
	if (!records.is_wide)
		return *from;
	longlong2 a = *(const longlong2 *)from, b = *((const longlong2 *)from + 1);
	kvc_record record = { a.x, a.y, (uint64_t)b.x, (uint64_t)b.y };
	return record;
}

static __device__ __forceinline__ uint64_t kvc__next_of(const kvc_record &record)
{
	return kvc__chain_next(record.prev_hash, record.token, record.position);
}

// Entry r of an array of the batch, or 'otherwise' if there is none.
static __device__ __forceinline__ int64_t kvc__value_of(
        const kvc__cuda_batch &batch, const int64_t *values, int64_t r, int64_t otherwise)
{
	return values && r >= 0 && r < batch.count ? values[r] : otherwise;
}

// The columns of a violation that every row has.
static __device__ __forceinline__ void kvc__row_context(kvc_violation &row,
        const kvc__cuda_records &records, const kvc__cuda_batch &batch, int64_t r,
        int64_t owner_slot)
{
	row.request_row = kvc__value_of(batch, batch.rows, r, -1);
	row.source_id = records.source_id;
	row.owner_request = row.owner_step = -1;
	if (records.owners && kvc__has_record(records, owner_slot) &&
	        records.owners[owner_slot].request != -1) {
		row.owner_request = records.owners[owner_slot].request;
		row.owner_step = records.owners[owner_slot].step;
	}
}

// The sum over a block, in thread 0; 'shared' is one word a counter, zeroed before.
static __device__ __forceinline__ void kvc__add_to_block(unsigned long long *shared, int64_t mine)
{
	long long sum = mine;
	for (int step = 16; step > 0; step /= 2)
		sum += __shfl_xor_sync(KVC__FULL_WARP, sum, step);
	if (threadIdx.x % 32 == 0 && sum != 0)
		atomicAdd(shared, (unsigned long long)sum);
}

#endif
