/*
 * The KV bytes behind a slot: reading them in (head, dim) order whatever the layout, hashing them
 * (SPEC section 4.1), looking for values that are not finite. Host memory. The group has passed
 * kvc__group_check() and the slot lies inside every source.
 */
#ifndef KVC__CPU_FINGERPRINT_H
#define KVC__CPU_FINGERPRINT_H

#include "kvcanary.h"

struct kvc__cpu_variant;

/* Bytes that are gathered at a time where a slot's bytes do not lie together: what the functions
 * here need of the stack, whatever the size of a slot. */
#define KVC__GATHER_BYTES 4096

/* Bytes that partial coverage takes: of each head (xxh3), of each source (splitmix). */
#define KVC__PARTIAL_BYTES 16

/* Slots that are fingerprinted at a time. */
#define KVC__BATCH_SLOTS 256

static inline const uint8_t *kvc__source_row(const kvc_source *source, int64_t slot)
{
	return (const uint8_t *)source->base + slot / source->page_size * source->row_stride_bytes;
}

/* Do the bytes of a slot lie together? */
static inline int kvc__source_together(const kvc_source *source)
{
	return !source->gather &&
	       (source->head_count == 1 || source->head_stride_bytes == source->head_bytes);
}

/* The first byte of a slot, if they do. */
static inline const uint8_t *kvc__source_slot(const kvc_source *source, int64_t slot)
{
	if (source->page_size == 1) /* spares two divisions */
		return (const uint8_t *)source->base + slot * source->row_stride_bytes;
	return kvc__source_row(source, slot) + slot % source->page_size * source->slot_stride_bytes;
}

/* A function that does nothing but prefetch: gcc 12 takes it for one without effects and drops calls
 * of it, unless it is inlined first. */
#if defined(__GNUC__)
#define KVC__INLINED __attribute__((always_inline))
#else
#define KVC__INLINED
#endif

/* Do the bytes that xxh3 covers lie together? */
static inline int kvc__xxh3_together(const kvc_source *source, int32_t coverage)
{
	return kvc__source_together(source) &&
	       (coverage == KVC_COVERAGE_ALL || source->head_count == 1);
}

/* How many bytes of a slot of this source a fingerprint covers. */
int64_t kvc__splitmix_bytes(const kvc_source *source, int32_t coverage);
int64_t kvc__xxh3_bytes(const kvc_source *source, int32_t coverage);

/* The group's fingerprint of the bytes that lie behind the slot now. */
uint64_t kvc__fingerprint_portable(const kvc_group *group, int64_t slot);

/*
 * The fingerprints of up to KVC__BATCH_SLOTS slots, with the kernels of a variant: out[i] is that of
 * slots[i], 0 if the slot is negative. Rows are asked for ahead of time, so that memory is busy all the while.
 */
void kvc__fingerprint_batch(const struct kvc__cpu_variant *cpu, const kvc_group *group,
        const int64_t *slots, int64_t count, uint64_t *out);

/* How many bytes of each slot the fingerprint covers. */
int64_t kvc__fingerprint_bytes(const kvc_group *group);

/* How many slots make a piece of work worth handing to another thread. */
int64_t kvc__fingerprint_grain(const kvc_group *group);

/* Put the kvc__xxh3_bytes() bytes of a slot that xxh3 covers together at 'out'. */
void kvc__xxh3_gather(const kvc_source *source, int64_t slot, int32_t coverage, uint8_t *out);

/* Copy 'count' bytes of a slot to 'out', from byte 'first' of its (head, dim) order on. */
void kvc__source_copy(
        const kvc_source *source, int64_t slot, int64_t first, int64_t count, uint8_t *out);

/*
 * How many elements in the source's read_bytes of this slot are NaN or infinite. first_out: byte,
 * in (head, dim) order, of the first one; untouched if there is none.
 */
int64_t kvc__nonfinite_portable(const kvc_source *source, int64_t slot, int64_t *first_out);

/* Is any element in any source of the slot NaN or infinite? next: the slot to be looked at after
 * this one, or this one. */
int kvc__slot_nonfinite(
        const struct kvc__cpu_variant *cpu, const kvc_group *group, int64_t slot, int64_t next);

/* The same of one source. */
int kvc__source_nonfinite(
        const struct kvc__cpu_variant *cpu, const kvc_source *source, int64_t slot, int64_t next);

#endif
