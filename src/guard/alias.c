/*
 * Slots that a step writes while somebody else reads or writes them: two live requests own one
 * slot, and after this step at least one of them is wrong. Only reads that the step really does are
 * looked at, but all of those, whatever the budget: one bit per read.
 *
 * One case is sound. An engine that shares a prefix as soon as it is scheduled lets a request read
 * slots that another one writes in the same step. Then both mean the same position of the same
 * sequence: equal positions, equal tokens, and slots before it that are one slot or say the same.
 */
#include "guard/guard.h"

#include "cpu/records.h"
#include "cpu/ring.h"

/* Does token i of the step store a record in this group? */
static int is_stored_here(const struct kvc__guard_group *group, int64_t slot)
{
	return slot >= 0 && slot != group->group.reserved_slot;
}

void kvc__alias_mark(const kvc_guard *guard, struct kvc__guard_group *group)
{
	const struct kvc__step *step = &guard->step;

	group->is_marked = 1;
	for (int64_t i = 0; i < step->offsets[step->request_count]; i++) {
		int64_t slot = group->slots[i];
		if (is_stored_here(group, slot))
			group->exclude[slot / 8] |= (uint8_t)(1u << slot % 8);
	}
}

void kvc__alias_unmark(const kvc_guard *guard, struct kvc__guard_group *group)
{
	const struct kvc__step *step = &guard->step;

	if (!group->is_marked)
		return;
	group->is_marked = 0;
	for (int64_t i = 0; i < step->offsets[step->request_count]; i++) {
		int64_t slot = group->slots[i];
		if (is_stored_here(group, slot))
			group->exclude[slot / 8] = 0;
	}
}

/* A row of the ring for request r at a position of 'slot', with what the record says now. */
static void put_aliased(kvc_guard *guard, struct kvc__guard_group *group, int64_t r, int64_t slot,
        int64_t position, int64_t tag, int64_t culprit)
{
	const struct kvc__step *step = &guard->step;
	const kvc_record *record = kvc__record_at(&group->group, slot);
	kvc_violation row = { 0 };
	int64_t token;

	row.launch_tag = tag;
	row.slot = slot;
	row.position = record->position;
	row.stored_token = record->token;
	row.expected_token = kvc__step_token(step, group, r, position, &token) ? token : -1;
	row.stored_chain = record->prev_hash;
	row.expected_aux = tag == KVC_TAG_STEP_WRITE ? (uint64_t)position : record->prev_hash;
	row.reasons = KVC_REASON_SLOT_ALIASED;
	row.expected_position = position;
	row.stored_fingerprint = record->fingerprint;
	row.expected_fingerprint = record->fingerprint;
	row.request_row = step->rows[r];
	row.source_id = kvc__record_source_id(&group->group);
	kvc__record_owner(&group->group, slot, &row);
	kvc__ring_put(&guard->ring, &row);
	kvc__guard_note(guard, group, culprit);
}

/* writer[slot] = 1 + the first token of the step that writes it; later ones are reported. */
static void check_writers(kvc_guard *guard, struct kvc__guard_group *group, int64_t *writer)
{
	const struct kvc__step *step = &guard->step;

	for (int64_t r = 0; r < step->request_count; r++) {
		for (int64_t i = step->offsets[r]; i < step->offsets[r + 1]; i++) {
			int64_t slot = group->slots[i];
			if (!is_stored_here(group, slot))
				continue;
			if (writer[slot] == 0) {
				writer[slot] = i + 1;
				continue;
			}
			int64_t other = kvc__step_entry_of_token(step, writer[slot] - 1);
			put_aliased(guard, group, r, slot, step->expected_positions[i],
			        KVC_TAG_STEP_WRITE, step->owner_request[other]);
		}
	}
}

/* The slot before token i, which request w writes; -1 = none. */
static int64_t slot_before_write(
        const struct kvc__step *step, const struct kvc__guard_group *group, int64_t w, int64_t i)
{
	if (i > step->offsets[w])
		return group->slots[i - 1];
	return step->entries[w].prefix > 0
	               ? kvc__guard_slot_at(step, group, w, step->entries[w].prefix - 1)
	               : -1;
}

/* Do two slots end the same chain? Slots that this step writes answer for themselves. */
static int same_chain(const struct kvc__guard_group *group, int64_t a, int64_t b)
{
	const kvc_group *known = &group->group;

	if (a == b || kvc__guard_is_written(group, a) || kvc__guard_is_written(group, b))
		return 1;
	return kvc__record_has(known, a) && kvc__record_has(known, b) &&
	       kvc__record_next(kvc__record_at(known, a)) ==
	               kvc__record_next(kvc__record_at(known, b));
}

/* May request r read, as its position, what token i is about to write? */
static int may_share(const struct kvc__step *step, const struct kvc__guard_group *group, int64_t r,
        int64_t position, int64_t i)
{
	int64_t w = kvc__step_entry_of_token(step, i);
	int64_t written = step->expected_positions[i], token, before;

	/* A ring of slots: what is written over has left the request's own window. */
	if (w == r)
		return group->window > 0 && written - position > group->window;
	if (written != position)
		return 0;
	int known = kvc__step_token(step, group, r, position, &token);
	if (known && token != step->tokens[i])
		return 0;
	if (position == kvc__guard_window_start(group, step->entries[r].prefix))
		return 1;
	before = kvc__guard_slot_at(step, group, r, position - 1);
	if (before == slot_before_write(step, group, w, i))
		return 1;
	return known && same_chain(group, before, slot_before_write(step, group, w, i));
}

/* The first position of [position, past) of request r whose slot the step writes, or past. Runs over
 * every read of every step: one table entry and one bit each. */
static int64_t next_written(const struct kvc__step *step, const struct kvc__guard_group *group,
        int64_t r, int64_t position, int64_t past)
{
	const int32_t *table = step->table + step->rows[r] * step->table_stride;
	const uint8_t *written = group->exclude;
	uint64_t count = (uint64_t)group->group.record_count;

	if (group->mapping.shape) {
		while (position < past &&
		        !kvc__guard_is_written(group, kvc__guard_translate(group, table[position])))
			position++;
		return position;
	}
	for (; position < past; position++) {
		uint64_t slot = (uint64_t)(int64_t)table[position]; /* negative ones become large */
		if (slot < count && (written[slot / 8] >> slot % 8 & 1))
			break;
	}
	return position;
}

static void check_readers(kvc_guard *guard, struct kvc__guard_group *group, const int64_t *writer)
{
	struct kvc__step *step = &guard->step;

	for (int64_t r = 0; r < step->request_count; r++) {
		struct kvc__entry *entry = &step->entries[r];
		int64_t position = kvc__guard_window_start(group, entry->prefix);
		for (;; position++) {
			position = next_written(step, group, r, position, entry->prefix);
			if (position >= entry->prefix)
				break;
			int64_t slot = kvc__guard_slot_at(step, group, r, position);
			/* What stands there is read for the first time in the next step. */
			if (position < entry->read_to)
				entry->read_to = position;
			int64_t i = writer[slot] - 1;
			if (may_share(step, group, r, position, i))
				continue;
			int64_t w = kvc__step_entry_of_token(step, i);
			put_aliased(guard, group, r, slot, position, KVC_TAG_STEP_READ,
			        step->owner_request[w]);
		}
	}
}

void kvc__alias_check(kvc_guard *guard, struct kvc__guard_group *group)
{
	const struct kvc__step *step = &guard->step;
	int64_t total = step->offsets[step->request_count];
	int64_t *writer = guard->scratch;

	if (total == 0)
		return;
	check_writers(guard, group, writer);
	check_readers(guard, group, writer);
	for (int64_t i = 0; i < total; i++)
		if (is_stored_here(group, group->slots[i]))
			writer[group->slots[i]] = 0;
}
