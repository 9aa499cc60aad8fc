/*
 * The work of kvc_rope_pool_fused() after all checks: what the front door (ops/rope_pool.c) hands
 * to a CPU back end. A back end trusts every field and can not fail.
 */
#ifndef KVC__CPU_ROPE_H
#define KVC__CPU_ROPE_H

#include "cpu/xxh3.h"
#include "kvcanary.h"

#include <string.h>

/* Element types that q, k, v and the pools can have. */
enum kvc__element {
	KVC__ELEMENT_F32,
	KVC__ELEMENT_F16,
	KVC__ELEMENT_BF16,
	KVC__ELEMENT_E4M3,
	KVC__ELEMENT_E5M2
};

/* Bytes of one element. */
static inline int64_t kvc__element_bytes(enum kvc__element element)
{
	return element == KVC__ELEMENT_F32 ? 4 : element < KVC__ELEMENT_E4M3 ? 2 : 1;
}

/* [rows][heads][dim]: element (r, h, d) is at data + r*row_stride + h*head_stride + d elements.
 * Strides are bytes, 64-bit, of any sign for an input. data is NULL if the tensor was left out. */
struct kvc__rows {
	char *data;
	int64_t row_stride;
	int64_t head_stride;
};

/* int32 or int64 entries, 'stride' bytes apart, perhaps not aligned. */
struct kvc__indices {
	const char *data;
	int64_t stride;
	int is_64;
};

struct kvc__rope_job {
	int64_t token_count; /* rows to process */
	int64_t q_heads;
	int64_t kv_heads;
	int64_t q_dim;
	int64_t kv_dim;
	enum kvc__element element; /* of q, k, v, q_out, k_out */
	enum kvc__element pool_element;
	struct kvc__rows q, k, v;
	struct kvc__rows q_out, k_out;
	struct kvc__rows k_pool, v_pool;
	struct kvc__indices positions, slots;
	int64_t reserved_slot; /* negative: none */
	int64_t rotary_offset;
	int64_t q_rotary_offset;
	int64_t position_count; /* the first position that is out of range */
	float k_scale, v_scale;
	const kvc_rope *rope;
	const kvc_stamp *stamp; /* NULL: none, or coverage none */
	int streams; /* so large that stores past the caches pay: kvc__rope_stream_bytes */
};

/* Calls that write at least this many bytes stream. A variable for the tests alone. */
extern int64_t kvc__rope_stream_bytes;

static inline int64_t kvc__index_read(const struct kvc__indices *indices, int64_t i)
{
	const char *at = indices->data + i * indices->stride;
	int64_t wide;
	int32_t narrow;
	if (indices->is_64) {
		memcpy(&wide, at, sizeof wide);
		return wide;
	}
	memcpy(&narrow, at, sizeof narrow);
	return narrow;
}

/* Does a token with this slot write no pool row? */
static inline int kvc__slot_skipped(const struct kvc__rope_job *job, int64_t slot)
{
	return slot < 0 || slot == job->reserved_slot;
}

/* Cosines and sines of one in-range position, attention factor included: rotary_dim/2 each. */
void kvc__rope_angles(const kvc_rope *rope, int64_t position, float *cos_out, float *sin_out);

/* Tokens [begin, end) of the job; 'job' is a const struct kvc__rope_job. A kvc_range_fn. */
void kvc__rope_rows_portable(void *job, int64_t begin, int64_t end);

/* The same bytes by vector instructions; which processors run which: dispatch.c. */
#if defined(__x86_64__)
void kvc__rope_rows_avx2(void *job, int64_t begin, int64_t end);
void kvc__rope_rows_avx512(void *job, int64_t begin, int64_t end);
#elif defined(__aarch64__)
void kvc__rope_rows_neon(void *job, int64_t begin, int64_t end);
#endif

/* kvc__sincos() of 'count' angles, a multiple of 16: what the kernels compute, to the last bit. */
typedef void (*kvc__sincos_fn)(
        const double *angles, double *cos_out, double *sin_out, int64_t count);
void kvc__sincos_portable(const double *angles, double *cos_out, double *sin_out, int64_t count);
#if defined(__x86_64__)
void kvc__sincos_avx2(const double *angles, double *cos_out, double *sin_out, int64_t count);
void kvc__sincos_avx512(const double *angles, double *cos_out, double *sin_out, int64_t count);
#elif defined(__aarch64__)
void kvc__sincos_neon(const double *angles, double *cos_out, double *sin_out, int64_t count);
#endif

/*
 * The share of the rows just stored (stamp.c). k and v: the pool's bytes, from the pool or from
 * wherever else they still are in cache; heads 'k_stride' and 'v_stride' bytes apart. v is not read if
 * the job has none.
 */
uint64_t kvc__stamp_share(const struct kvc__rope_job *job, const char *k, int64_t k_stride,
        const char *v, int64_t v_stride, kvc__xxh3_fn xxh3);

/* Shares that are yet to be added to the records of their slots. */
#define KVC__SHARES_MAX 64
struct kvc__shares {
	int count;
	int64_t slots[KVC__SHARES_MAX];
	uint64_t sums[KVC__SHARES_MAX];
};

/* Keep one more share, whose record is asked for; add all if there is no room. */
void kvc__stamp_later(
        const kvc_stamp *stamp, struct kvc__shares *shares, int64_t slot, uint64_t share);

/* Add all that are kept. stamp may be NULL if there are none. */
void kvc__stamp_flush(const kvc_stamp *stamp, struct kvc__shares *shares);

#endif /* KVC__CPU_ROPE_H */
