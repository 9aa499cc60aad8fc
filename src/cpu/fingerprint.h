/*
 * The KV bytes behind a slot: reading them in (head, dim) order whatever the layout, hashing them
 * (SPEC section 4.1), looking for values that are not finite. Host memory. The group has passed
 * kvc__group_check() and the slot lies inside every source.
 */
#ifndef KVC__CPU_FINGERPRINT_H
#define KVC__CPU_FINGERPRINT_H

#include "kvcanary.h"

/* Bytes that are gathered at a time where a slot's bytes do not lie together: what the functions
 * here need of the stack, whatever the size of a slot. */
#define KVC__GATHER_BYTES 4096

/* The group's fingerprint of the bytes that lie behind the slot now. */
uint64_t kvc__fingerprint_portable(const kvc_group *group, int64_t slot);

/* How many bytes of each slot the fingerprint covers. */
int64_t kvc__fingerprint_bytes(const kvc_group *group);

/* How many slots make a piece of work worth handing to another thread. */
int64_t kvc__fingerprint_grain(const kvc_group *group);

/* Copy 'count' bytes of a slot to 'out', from byte 'first' of its (head, dim) order on. */
void kvc__source_copy(
        const kvc_source *source, int64_t slot, int64_t first, int64_t count, uint8_t *out);

/*
 * How many elements in the source's read_bytes of this slot are NaN or infinite. first_out: byte,
 * in (head, dim) order, of the first one; untouched if there is none.
 */
int64_t kvc__nonfinite_portable(const kvc_source *source, int64_t slot, int64_t *first_out);

/* Is any element in any source of the slot NaN or infinite? */
int kvc__slot_nonfinite(const kvc_group *group, int64_t slot);

#endif
