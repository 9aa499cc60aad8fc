/*
 * Stamping by the writer (SPEC section 4.3): after a row is stored, its share is added to the
 * record of its slot. Only a stamp made here can tell later that a write was lost; a fingerprint of
 * what lies in the pool agrees with whatever lies there.
 *
 * Must agree with the fingerprint that canary verify computes over the same bytes.
 */
#define XXH_INLINE_ALL
#include "cpu/fingerprint.h"
#include "cpu/hash.h"
#include "cpu/rope.h"

#include <string.h>
#include <xxhash.h>

/* Gathered rows up to this size are hashed in one go; larger ones through a streaming state. */
#define GATHER_BYTES 4096

/* A pool row as the bytes of its heads, one after the other. */
struct row {
	const char *first;
	int64_t head_stride; /* bytes */
	int64_t dim_bytes;   /* bytes of one head of the pool */
	int64_t row_bytes;   /* of all heads */
};

/* Hashing in pieces: a small buffer, flushed into a streaming state only if it overflows. */
struct gather {
	XXH3_state_t state;
	int streaming;
	size_t used;
	char bytes[GATHER_BYTES];
};

static void gather_flush(struct gather *gather)
{
	if (!gather->streaming)
		XXH3_64bits_reset(&gather->state);
	gather->streaming = 1;
	XXH3_64bits_update(&gather->state, gather->bytes, gather->used);
	gather->used = 0;
}

static void gather_add(struct gather *gather, const char *from, int64_t count)
{
	while (count > 0) {
		if (gather->used == GATHER_BYTES)
			gather_flush(gather);
		int64_t room = (int64_t)(GATHER_BYTES - gather->used);
		int64_t part = count < room ? count : room;
		memcpy(gather->bytes + gather->used, from, (size_t)part);
		gather->used += (size_t)part;
		from += part;
		count -= part;
	}
}

static uint64_t gather_digest(struct gather *gather)
{
	if (!gather->streaming)
		return XXH3_64bits(gather->bytes, gather->used);
	gather_flush(gather);
	return XXH3_64bits_digest(&gather->state);
}

/* Bytes [at, at + count) of the row; a run may cross from one head of the pool into the next. */
static void gather_run(struct gather *gather, const struct row *row, int64_t at, int64_t count)
{
	while (count > 0) {
		int64_t head = at / row->dim_bytes;
		int64_t within = at % row->dim_bytes;
		int64_t part = row->dim_bytes - within < count ? row->dim_bytes - within : count;
		gather_add(gather, row->first + head * row->head_stride + within, part);
		at += part;
		count -= part;
	}
}

static uint64_t hash_row(const struct row *row, const kvc_stamp *stamp, kvc__xxh3_fn xxh3)
{
	int contiguous = row->head_stride == row->dim_bytes || row->row_bytes == row->dim_bytes;
	if (stamp->coverage == KVC_COVERAGE_ALL && contiguous)
		return xxh3(row->first, (size_t)row->row_bytes);

	struct gather gather;
	gather.streaming = 0;
	gather.used = 0;
	if (stamp->coverage == KVC_COVERAGE_ALL) {
		gather_run(&gather, row, 0, row->row_bytes);
	} else {
		/* Heads as the group's source declares them, which may differ from the pool's. */
		int64_t head = stamp->head_bytes;
		int64_t part = head < KVC__PARTIAL_BYTES ? head : KVC__PARTIAL_BYTES;
		for (int64_t at = 0; at < row->row_bytes; at += head)
			gather_run(&gather, row, at, part);
	}
	return gather_digest(&gather);
}

static uint64_t share_of(const struct kvc__rope_job *job, const char *first, int64_t head_stride,
        uint64_t id, kvc__xxh3_fn xxh3)
{
	struct row row;
	row.first = first;
	row.head_stride = head_stride;
	row.dim_bytes = job->kv_dim * kvc__element_bytes(job->pool_element);
	row.row_bytes = job->kv_heads * row.dim_bytes;
	return kvc__fingerprint_share(hash_row(&row, job->stamp, xxh3), id);
}

uint64_t kvc__stamp_share(const struct kvc__rope_job *job, const char *k, int64_t k_stride,
        const char *v, int64_t v_stride, kvc__xxh3_fn xxh3)
{
	const kvc_stamp *stamp = job->stamp;
	uint64_t sum = share_of(job, k, k_stride, stamp->k_id, xxh3);
	if (job->v.data)
		sum += share_of(job, v, v_stride, stamp->v_id, xxh3);
	return sum;
}

static uint64_t *fingerprint_at(const kvc_stamp *stamp, int64_t slot)
{
	char *record = (char *)stamp->records + slot * stamp->record_stride_bytes;
	return &((kvc_record *)(void *)record)->fingerprint;
}

void kvc__stamp_flush(const kvc_stamp *stamp, struct kvc__shares *shares)
{
	/* Atomic, because two layers may be written at the same time by two threads of the engine, and
	 * two tokens of this call may name one slot. */
	for (int i = 0; i < shares->count; i++)
		__atomic_fetch_add(
		        fingerprint_at(stamp, shares->slots[i]), shares->sums[i], __ATOMIC_RELAXED);
	shares->count = 0;
}

void kvc__stamp_later(
        const kvc_stamp *stamp, struct kvc__shares *shares, int64_t slot, uint64_t share)
{
	if (shares->count == KVC__SHARES_MAX)
		kvc__stamp_flush(stamp, shares);
	__builtin_prefetch(fingerprint_at(stamp, slot), 1);
	shares->slots[shares->count] = slot;
	shares->sums[shares->count++] = share;
}
