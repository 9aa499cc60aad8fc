/*
 * A group's records and owners in host memory, one by one. Slots given here lie inside the records;
 * the operations have seen to that.
 */
#ifndef KVC__CPU_RECORDS_H
#define KVC__CPU_RECORDS_H

#include "cpu/hash.h"
#include "kvcanary.h"

static inline kvc_record *kvc__record_at(const kvc_group *group, int64_t slot)
{
	return (kvc_record *)(void *)((char *)group->records + slot * group->record_stride_bytes);
}

static inline int kvc__record_has(const kvc_group *group, int64_t slot)
{
	return slot >= 0 && slot < group->record_count;
}

/* All zero: nobody has stamped the slot since it was handed out. */
static inline int kvc__record_is_void(const kvc_record *record)
{
	return (record->token | record->position) == 0 &&
	       (record->prev_hash | record->fingerprint) == 0;
}

/* The chain that the slot after this one must store. */
static inline uint64_t kvc__record_next(const kvc_record *record)
{
	return kvc__chain_next(record->prev_hash, record->token, record->position);
}

/* The columns of a violation that say who stamped 'slot' last. */
static inline void kvc__record_owner(const kvc_group *group, int64_t slot, kvc_violation *violation)
{
	violation->owner_request = -1;
	violation->owner_step = -1;
	if (group->owners && group->owners[slot].request != -1) {
		violation->owner_request = group->owners[slot].request;
		violation->owner_step = group->owners[slot].step;
	}
}

/* The source column of a violation: the id of the group's only source, else -1. */
static inline int64_t kvc__record_source_id(const kvc_group *group)
{
	return group->source_count == 1 ? (int64_t)group->sources[0].id : -1;
}

#endif
