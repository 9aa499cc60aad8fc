/*
 * Double ownership in a plan, on the CPU (SPEC section 4.2, last point), for ops/check_plan.c.
 * Trusts its task: slots and mapped slots lie inside the records, the scratch is zero.
 */
#ifndef KVC__CPU_CHECK_PLAN_H
#define KVC__CPU_CHECK_PLAN_H

#include "kvcanary.h"

struct kvc__check_plan {
	kvc_group group;
	int64_t entry_count; /* 0 if the plan is disabled */
	const int64_t *slots;
	const int64_t *expected_tokens;
	const int64_t *expected_positions;
	const int64_t *prev_slots;
	const int64_t *mapping; /* or NULL */
	int64_t full_count;
	int64_t *scratch[2];  /* [record_count] each */
	const kvc_ring *ring; /* or NULL */
};

/* Two claims on one slot. Entries of the plan, or full slots that are mapped to the slot. */
struct kvc__alias {
	int64_t slot;
	int64_t first;
	int64_t second;
};

/* What was found: how many of each kind, and the first ones. */
struct kvc__aliases {
	int64_t entry_count;
	int64_t full_count;
	struct kvc__alias entries;
	struct kvc__alias fulls;
};

/* Can a claim on this slot be an alias? Negative and reserved slots belong to nobody. */
static inline int kvc__check_plan_claims(const struct kvc__check_plan *check, int64_t slot)
{
	return slot >= 0 && slot != check->group.reserved_slot;
}

/* Is full slot 'full' on a window slot that it may have to share? Slot 0 of either is the dummy. */
static inline int kvc__check_plan_maps(const struct kvc__check_plan *check, int64_t full)
{
	return full > 0 && check->mapping[full] > 0 &&
	       check->mapping[full] != check->group.reserved_slot;
}

/* Compare, record in the ring, leave the scratch zero. */
struct kvc__aliases kvc__check_plan_portable(const struct kvc__check_plan *check);

#endif
