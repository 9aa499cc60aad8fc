// kvc_canary_void() and kvc_canary_copy() on the device. Eight threads a slot, a word of 8 bytes each:
// four of the record, two of the owner. A slot outside the records is left alone, and its pair with
// it; of two pairs with one destination the row holds one or a mix.
#include "cuda/device.cuh"
#include "cuda/records_params.h"

#define WORDS_OF_RECORD 4
#define WORDS 6 // and of the owner

static __device__ __forceinline__ int64_t *word_of(
        const kvc__records_params &p, int64_t slot, int word)
{
	if (word < WORDS_OF_RECORD)
		return (int64_t *)(p.records + slot * p.record_stride) + word;
	return (int64_t *)(p.owners + slot) + (word - WORDS_OF_RECORD);
}

static __device__ __forceinline__ bool has(const kvc__records_params &p, int64_t slot)
{
	return slot >= 0 && slot < p.record_count;
}

KVC__KERNEL void kvc_records_void(const __grid_constant__ kvc__records_params p)
{
	int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, i = at / WORDS_OF_RECORD;
	kvc__wait_for_previous();
	kvc__release_next();
	if (i < p.count && has(p, p.from[i]))
		*word_of(p, p.from[i], (int)(at % WORDS_OF_RECORD)) = 0;
}

// Which word of which pair is this thread's? False if it has none.
static __device__ __forceinline__ bool pick(const kvc__records_params &p, int64_t *pair, int *word)
{
	int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
	*pair = at / 8, *word = (int)(at % 8);
	return *pair < p.count && *word < (p.owners ? WORDS : WORDS_OF_RECORD) &&
	       has(p, p.from[*pair]) && has(p, p.to[*pair]);
}

KVC__KERNEL void kvc_records_read(const __grid_constant__ kvc__records_params p)
{
	int64_t pair;
	int word;
	kvc__wait_for_previous();
	kvc__release_next();
	if (pick(p, &pair, &word))
		p.scratch[pair * p.scratch_stride + word] = *word_of(p, p.from[pair], word);
}

KVC__KERNEL void kvc_records_write(const __grid_constant__ kvc__records_params p)
{
	int64_t pair;
	int word;
	kvc__wait_for_previous();
	kvc__release_next();
	if (pick(p, &pair, &word))
		*word_of(p, p.to[pair], word) = p.scratch[pair * p.scratch_stride + word];
}
