/*
 * Slots that two entries of a plan claim with different contents. An entry need not say everything: its
 * token may be unknown, or its predecessor. So every later claim is compared with the first one on its
 * slot, and with the first ones that say more; the scratch remembers their numbers, two in a word.
 * Same violations as src/cuda.
 */
#include "cpu/check_plan.h"

#include "cpu/records.h"
#include "cpu/ring.h"

/* The chain that an entry with this predecessor must have stored; 0 if that is not known. */
static int implied_chain(const kvc_group *group, int64_t prev, uint64_t *chain_out)
{
	if (prev == -1)
		*chain_out = kvc__chain_start(0);
	else if (kvc__record_has(group, prev) && prev != group->reserved_slot)
		*chain_out = kvc__record_next(kvc__record_at(group, prev));
	else
		return 0;
	return 1;
}

/*
 * Predecessors that nobody knows: -2 and -3, and the reserved slot. verify leaves the chain of such an
 * entry unchecked, and so does this: they fit any other, because requests that share a prefix may
 * begin to read it at different places (windows, 'start') and would else be reported at every step.
 */
static int prev_is_open(const kvc_group *group, int64_t prev)
{
	return prev < -1 || (prev >= 0 && prev == group->reserved_slot);
}

/* May entries a and b, on one slot, both be right? */
static int is_sound(const struct kvc__check_plan *check, int64_t a, int64_t b)
{
	const kvc_group *group = &check->group;
	int64_t prev_a = check->prev_slots[a], prev_b = check->prev_slots[b];
	int64_t token_a = check->expected_tokens[a], token_b = check->expected_tokens[b];
	int tokens_known = token_a != -1 && token_b != -1;
	uint64_t chain_a, chain_b;

	if (check->expected_positions[a] != check->expected_positions[b])
		return 0;
	if (tokens_known && token_a != token_b)
		return 0;
	if (prev_a == prev_b || prev_is_open(group, prev_a) || prev_is_open(group, prev_b))
		return 1;
	/* Engines do not share all cached pages: two copies of one prefix may lead to one slot. */
	return tokens_known && implied_chain(group, prev_a, &chain_a) &&
	       implied_chain(group, prev_b, &chain_b) && chain_a == chain_b;
}

/* A violation with what the record of 'slot' holds, and who stamped it. */
static kvc_violation alias_row(const kvc_group *group, int64_t slot)
{
	const kvc_record *record = kvc__record_at(group, slot);
	kvc_violation row = {
		.launch_tag = KVC_TAG_STEP_READ,
		.slot = slot,
		.position = record->position,
		.stored_token = record->token,
		.expected_token = -1,
		.stored_chain = record->prev_hash,
		.expected_aux = record->prev_hash,
		.reasons = KVC_REASON_SLOT_ALIASED,
		.expected_position = -1,
		.stored_fingerprint = record->fingerprint,
		.expected_fingerprint = record->fingerprint,
		.request_row = -1,
		.source_id = kvc__record_source_id(group),
	};

	kvc__record_owner(group, slot, &row);
	return row;
}

static void put_claim(const struct kvc__check_plan *check, int64_t entry)
{
	kvc_violation row = alias_row(&check->group, check->slots[entry]);
	uint64_t chain;

	row.expected_token = check->expected_tokens[entry];
	row.expected_position = check->expected_positions[entry];
	if (implied_chain(&check->group, check->prev_slots[entry], &chain))
		row.expected_aux = chain;
	kvc__ring_put(check->ring, &row);
}

/* The record is the window slot's; the slot named is the full one, expected_aux its rival. */
static void put_mapped(const struct kvc__check_plan *check, int64_t full, int64_t rival)
{
	kvc_violation row = alias_row(&check->group, check->mapping[full]);

	row.slot = full;
	row.expected_aux = (uint64_t)rival;
	kvc__ring_put(check->ring, &row);
}

/* The claims on a slot that later ones are compared with: the first of each kind. */
enum {
	CLAIM_ANY,
	CLAIM_WITH_TOKEN,
	CLAIM_LINKED,       /* with a token and a known predecessor */
	CLAIM_LINKED_ALONE, /* with a known predecessor, but no token */
	CLAIM_KINDS
};

static int is_of_kind(const struct kvc__check_plan *check, int64_t entry, int kind)
{
	int has_token = check->expected_tokens[entry] != -1;
	int is_linked = !prev_is_open(&check->group, check->prev_slots[entry]);

	switch (kind) {
	case CLAIM_ANY:
		return 1;
	case CLAIM_WITH_TOKEN:
		return has_token;
	case CLAIM_LINKED:
		return has_token && is_linked;
	default:
		return !has_token && is_linked;
	}
}

/* Entries are numbered by int32: two of them, plus one each, share a word of the scratch. */
static int64_t earliest_claim(const struct kvc__check_plan *check, int64_t slot, int kind)
{
	uint64_t word = (uint64_t)check->scratch[kind / 2][slot];

	return (int64_t)(word >> 32 * (kind % 2) & UINT32_MAX) - 1;
}

static void set_earliest_claim(
        const struct kvc__check_plan *check, int64_t slot, int kind, int64_t entry)
{
	uint64_t word = (uint64_t)check->scratch[kind / 2][slot];

	check->scratch[kind / 2][slot] = (int64_t)(word | (uint64_t)(entry + 1) << 32 * (kind % 2));
}

/* An earlier claim that entry contradicts, or -1. */
static int64_t take_claim(const struct kvc__check_plan *check, int64_t entry)
{
	int64_t slot = check->slots[entry], rival = -1;

	for (int kind = 0; kind < CLAIM_KINDS; kind++) {
		int64_t first = earliest_claim(check, slot, kind);
		if (first < 0 && is_of_kind(check, entry, kind))
			set_earliest_claim(check, slot, kind, entry);
		else if (first >= 0 && rival < 0 && !is_sound(check, first, entry))
			rival = first;
	}
	return rival;
}

static void check_claims(const struct kvc__check_plan *check, struct kvc__aliases *found)
{
	for (int64_t i = 0; i < check->entry_count; i++) {
		int64_t slot = check->slots[i];
		int64_t rival = kvc__check_plan_claims(check, slot) ? take_claim(check, i) : -1;
		if (rival < 0)
			continue;
		if (found->entry_count++ == 0)
			found->entries = (struct kvc__alias){ slot, rival, i };
		put_claim(check, i);
	}
	for (int64_t i = 0; i < check->entry_count; i++)
		if (kvc__check_plan_claims(check, check->slots[i]))
			check->scratch[0][check->slots[i]] = check->scratch[1][check->slots[i]] = 0;
}

/* Full slots come in ascending order, so that the one found later is the higher one. */
static void check_mapping(const struct kvc__check_plan *check, struct kvc__aliases *found)
{
	for (int64_t full = 1; full < check->full_count; full++) {
		if (!kvc__check_plan_maps(check, full))
			continue;
		int64_t *first = &check->scratch[1][check->mapping[full]];
		if (*first == 0) {
			*first = full;
			continue;
		}
		if (found->full_count++ == 0)
			found->fulls = (struct kvc__alias){ check->mapping[full], *first, full };
		put_mapped(check, full, *first);
	}
	for (int64_t full = 1; full < check->full_count; full++)
		if (kvc__check_plan_maps(check, full))
			check->scratch[1][check->mapping[full]] = 0;
}

struct kvc__aliases kvc__check_plan_portable(const struct kvc__check_plan *check)
{
	struct kvc__aliases found = { 0 };

	check_claims(check, &found);
	if (check->mapping)
		check_mapping(check, &found);
	kvc__ring_count(check->ring, &(struct kvc__tally){ 0 });
	return found;
}
