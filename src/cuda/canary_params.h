/*
 * Groups, their sources and a step's requests as the canary's kernels take them, by value. Plain C
 * for both halves; filled by canary_params.c.
 *
 * Sources lie in host memory, so they travel in the parameters of a launch. The common kernels take
 * KVC__STRIPS_SMALL of them; a second build of each kernel takes KVC__STRIPS_MAX, which is what the
 * 32,764 bytes hold that CUDA 12.1 allows. A fingerprint has to be complete before it can be
 * compared, and no call may allocate: a group with more sources is refused (cuda-sources-max).
 */
#ifndef KVC__CUDA_CANARY_PARAMS_H
#define KVC__CUDA_CANARY_PARAMS_H

#include "kvcanary.h"

#define KVC__STRIPS_SMALL 8
#define KVC__STRIPS_MAX 384

/* Elements that can be NaN or infinite: enough to know their mask. */
enum kvc__finite_kind {
	KVC__FINITE_NONE, /* integers: not looked at */
	KVC__FINITE_F64,
	KVC__FINITE_F32,
	KVC__FINITE_F16,
	KVC__FINITE_BF16,
	KVC__FINITE_E4M3,
	KVC__FINITE_E5M2
};

/*
 * A source. Byte i of what is hashed, i < bytes, is byte (i / run) * run_stride + i % run of the
 * slot: of its memory from 'slot address' on, or, with a gather table, of its (head, dim) order.
 */
struct kvc__strip {
	const char *base;
	int64_t row_stride;
	int64_t slot_stride;
	int64_t run_stride;
	const int32_t *gather;
	uint64_t id;
	int32_t page_size;
	uint32_t bytes; /* that the coverage takes */
	uint32_t run;
	uint32_t finite_bytes; /* all of read_bytes, in whole elements; 0: nothing to look at */
	uint32_t finite_run;
	uint32_t units;      /* entries of the gather table a slot */
	uint8_t is_wide;     /* 16 bytes at once: everything is a multiple of 16, no table */
	uint8_t unit_shift;  /* log2 of unit_bytes */
	uint8_t page_shift;  /* log2 of page_size, 255 if that is no power of two */
	uint8_t finite_kind; /* enum kvc__finite_kind */
	uint32_t head_bytes;
};

/* The sources of a group, apart from the strips themselves. */
struct kvc__strips_head {
	int32_t count;
	int32_t hashed; /* 'count', or 0 where the coverage is none */
	int32_t is_splitmix;
	int32_t all_short; /* a thread can take a whole slot */
	int32_t all_plain; /* rows of whole KiB in one piece, xxh3 */
	int32_t padding;
	int64_t slot_limit;   /* slots from here on lie outside a source */
	int64_t bytes_hashed; /* of one slot, all strips */
};

/* Shared memory that the splitmix kernels need: a few tiles of 32 rows a warp (slot_bytes.cuh). */
#define KVC__TILE_BYTES 256
#define KVC__TILE_STAGES 2
#define KVC__TILE_PITCH (KVC__TILE_BYTES + 16) /* so that lanes at one offset meet no bank twice */
#define KVC__TILE_WARP_BYTES (KVC__TILE_STAGES * 32 * KVC__TILE_PITCH)
#define KVC__TILE_THREADS 64
#define KVC__TILE_SHARED (KVC__TILE_THREADS / 32 * KVC__TILE_WARP_BYTES)

/* The xxh3 kernels: eight accumulators a row, padded so that banks meet twice at most, 32 rows a warp. */
#define KVC__SUMS_PITCH 9
#define KVC__SUMS_WARP (32 * KVC__SUMS_PITCH)
#define KVC__ROW_THREADS 128
#define KVC__ROW_SHARED (KVC__ROW_THREADS / 32 * KVC__SUMS_WARP * 8)

/* Blocks a multiprocessor that are resident at once; the grid is no larger, and each block loops. */
#define KVC__ROW_BLOCKS 4
#define KVC__TILE_BLOCKS 6

struct kvc__strips_call {
	struct kvc__strips_head head;
	struct kvc__strip strips[KVC__STRIPS_MAX];
};

/* What a launch can take by value. */
#define KVC__PARAMS_BYTES_MAX 32764

/* The records of a group. */
struct kvc__cuda_records {
	char *data;
	int64_t count;
	int64_t stride;
	kvc_owner *owners;
	int64_t reserved_slot;
	int64_t source_id; /* for violations */
	int32_t is_wide;   /* 16 bytes at once */
	int32_t padding;
};

/* struct kvc__batch of the CPU: 'count' entries each, NULL where not given. */
struct kvc__cuda_batch {
	int64_t count;
	const int64_t *rows;
	const int64_t *prefix_lens;
	const int64_t *namespaces;
	const int64_t *verify_chain_in;
	const int64_t *write_chain_in;
	const int64_t *chain_end;
	const int64_t *owner_request;
};

/* ---- host half ---- */

#if !defined(__CUDACC__)
struct kvc__batch;

struct kvc__cuda_batch kvc__cuda_batch_of(const struct kvc__batch *batch);

/* The strips of a group. cuda-sources-max, source-number-range. */
kvc_status kvc__cuda_strips(struct kvc__strips_call *out, const kvc_group *group);

struct kvc__cuda_records kvc__cuda_records_of(const kvc_group *group);

/* Will the common kernels do, or does it take the large ones? */
static inline int kvc__strips_are_small(const struct kvc__strips_call *sources)
{
	return sources->head.count <= KVC__STRIPS_SMALL;
}
#endif

#endif
