/*
 * Who, why, and what to do: from a violation to a finding.
 *
 * Most of it must be written down while the step is at hand, since rows of the table get other
 * requests. So the guard keeps one context beside each row of its ring, filled right after the
 * operation that put the row there.
 */
#include "guard/guard.h"

#include <string.h>

#include "base/tensor.h"
#include "base/text.h"
#include "cpu/ring.h"

/* Violations taken out of the ring at once. */
#define POLL_PIECE 16

/* Column of the ring that names the request's row. */
#define REQUEST_ROW_COLUMN 11

#define IDENTITY                                                                                   \
	(KVC_REASON_VERIFY_CHAIN_HASH | KVC_REASON_VERIFY_POSITION | KVC_REASON_VERIFY_TOKEN |     \
	        KVC_REASON_CHAIN_END)

/* ---- causes ---- */

/* Had the victim this very slot before, and did somebody else stamp it since? */
static int is_overwritten(const kvc_guard *guard, int64_t r, const kvc_violation *violation)
{
	const struct kvc__step *step = &guard->step;
	int64_t position = violation->expected_position;

	if (r < 0 || violation->owner_request < 0 ||
	        violation->owner_request == step->owner_request[r])
		return 0;
	const struct kvc__entry *entry = &step->entries[r];
	if (position < 0 || position >= entry->known || position >= step->column_count)
		return 0;
	int64_t number = step->rows[r];
	return step->table[number * step->table_stride + position] ==
	               guard->snapshot[number * guard->snapshot_columns + position] &&
	       violation->owner_step >= entry->since;
}

/* The slot holds what was meant for another place. */
static int32_t cause_of_identity(const kvc_guard *guard, int64_t r, const kvc_violation *violation)
{
	int64_t identity = violation->reasons & IDENTITY;
	int own = r >= 0 && violation->owner_request == guard->step.owner_request[r];

	if (is_overwritten(guard, r, violation))
		return KVC_CAUSE_OVERWRITTEN;
	/* Nothing but the position is wrong: the right token was stored under a wrong number. */
	if (identity == KVC_REASON_VERIFY_POSITION && (own || violation->expected_token >= 0))
		return KVC_CAUSE_WRONG_POSITION;
	/* Somebody else's token in the right place of a sound chain: a foreign prefix. Had its owner
	 * computed a wrong token, the check of its input would have said so first. */
	if (identity == KVC_REASON_VERIFY_TOKEN && (own || r < 0))
		return KVC_CAUSE_WRONG_TOKEN;
	return KVC_CAUSE_WRONG_SLOT;
}

static int32_t cause_of(const kvc_guard *guard, int64_t r, const kvc_violation *violation)
{
	static const struct {
		int64_t reason;
		int32_t cause;
	} plain[] = {
		{ KVC_REASON_SLOT_RANGE, KVC_CAUSE_OUT_OF_RANGE },
		{ KVC_REASON_NEVER_STAMPED, KVC_CAUSE_NEVER_WRITTEN },
		{ KVC_REASON_SLOT_ALIASED, KVC_CAUSE_ALIASED },
		{ KVC_REASON_WRITE_TOKEN, KVC_CAUSE_WRONG_TOKEN },
		{ KVC_REASON_WRITE_POSITION, KVC_CAUSE_WRONG_POSITION },
	};

	for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++)
		if (violation->reasons & plain[i].reason)
			return plain[i].cause;
	if (violation->reasons & IDENTITY)
		return cause_of_identity(guard, r, violation);
	if (violation->reasons & KVC_REASON_VERIFY_REAL_KV_HASH)
		return KVC_CAUSE_BYTES_DAMAGED;
	if (violation->reasons & KVC_REASON_NONFINITE)
		return KVC_CAUSE_NONFINITE;
	return KVC_CAUSE_UNKNOWN;
}

/* Does whoever stamped the slot last have to do with this cause? */
static int blames_owner(int32_t cause)
{
	return cause == KVC_CAUSE_OVERWRITTEN || cause == KVC_CAUSE_WRONG_SLOT ||
	       cause == KVC_CAUSE_WRONG_POSITION || cause == KVC_CAUSE_WRONG_TOKEN ||
	       cause == KVC_CAUSE_ALIASED;
}

/* ---- contexts ---- */

/* Where in the slot the first NaN or infinity stands. A slot outside the pool has none. */
static void locate_nonfinite(
        const struct kvc__guard_group *group, int64_t slot, struct kvc__context *out)
{
	kvc_finite_scan scan;
	int64_t count = 1;
	kvc_tensor slots = kvc__vector_of(&slot, &count);

	if (kvc_canary_scan_finite(&scan, &group->group, &slots, NULL) != KVC_OK)
		return;
	out->nonfinite_source_id = scan.first_source_id;
	out->nonfinite_head = scan.first_head;
	out->nonfinite_dim = scan.first_dim;
}

static void fill_context(kvc_guard *guard, struct kvc__guard_group *group,
        const kvc_violation *violation, int64_t culprit, struct kvc__context *out)
{
	int in_step = violation->launch_tag != KVC_TAG_SWEEP;
	int64_t r = in_step ? kvc__step_entry_of_row(guard, violation->request_row) : -1;
	int is_write =
	        (violation->reasons & (KVC_REASON_WRITE_TOKEN | KVC_REASON_WRITE_POSITION)) != 0;

	out->step = in_step ? guard->step.number : guard->last_step;
	out->group = group->number;
	out->victim_request = r >= 0 ? guard->step.owner_request[r] : -1;
	out->victim_position = violation->expected_position;
	out->cause = cause_of(guard, r, violation);
	out->culprit_request = culprit;
	out->culprit_step = guard->step.number;
	if (culprit < 0 && !is_write && blames_owner(out->cause)) {
		out->culprit_request = violation->owner_request;
		out->culprit_step = violation->owner_step;
	}
	if (out->culprit_request < 0 || out->culprit_request == out->victim_request) {
		out->culprit_request = -1;
		out->culprit_step = -1;
	}
	out->nonfinite_source_id = -1;
	out->nonfinite_head = -1;
	out->nonfinite_dim = -1;
	if (violation->reasons & KVC_REASON_NONFINITE)
		locate_nonfinite(group, violation->slot, out);
	if (r >= 0 && (violation->reasons & KVC_REASON_SLOT_ALIASED) &&
	        violation->launch_tag == KVC_TAG_STEP_READ &&
	        violation->expected_position < guard->step.valid[r])
		guard->step.valid[r] = violation->expected_position;
}

/* The next violation that has no context yet and was not dropped (the place of a dropped one still
 * belongs to an older one). *at_out: its row of the ring. 0 if there is none. */
static int next_unnoted(kvc_guard *guard, kvc_violation *out, int64_t *at_out)
{
	while (guard->noted < guard->counters.violations) {
		*at_out = guard->noted++ % guard->ring.capacity;
		memcpy(out, guard->ring.rows + *at_out * KVC__RING_COLUMNS, sizeof(*out));
		if (out->sequence == guard->noted)
			return 1;
	}
	return 0;
}

void kvc__guard_note(kvc_guard *guard, struct kvc__guard_group *group, int64_t culprit)
{
	kvc_violation violation;
	int64_t at;

	while (next_unnoted(guard, &violation, &at))
		fill_context(guard, group, &violation, culprit, &guard->contexts[at]);
}

/* The first entry from 'from' on that claims the slot as the violation says. */
static int64_t find_claim(const kvc_plan *plan, int64_t from, const kvc_violation *violation)
{
	while (from < plan->verify_capacity &&
	        (plan->verify_slot_indices[from] != violation->slot ||
	                plan->verify_expected_positions[from] != violation->expected_position ||
	                plan->verify_expected_tokens[from] != violation->expected_token))
		from++;
	return from;
}

/* The first entry that claims the slot. */
static int64_t first_claim(const kvc_plan *plan, int64_t slot)
{
	int64_t i = 0;

	while (i < plan->verify_capacity && plan->verify_slot_indices[i] != slot)
		i++;
	return i;
}

/* Violations stand in the order of entries, and the first claim on a slot never is one. */
void kvc__guard_note_claims(kvc_guard *guard, struct kvc__guard_group *group, const kvc_plan *plan)
{
	const struct kvc__step *step = &guard->step;
	kvc_violation violation;
	int64_t at, i = -1;

	while (next_unnoted(guard, &violation, &at)) {
		int64_t culprit = -1;
		int64_t first = first_claim(plan, violation.slot);
		int64_t found = find_claim(plan, (i > first ? i : first) + 1, &violation);
		if (violation.expected_position >= 0 && found < plan->verify_capacity) {
			i = found;
			violation.request_row = step->rows[plan->verify_request[i]];
			culprit = step->owner_request[plan->verify_request[first]];
			guard->ring.rows[at * KVC__RING_COLUMNS + REQUEST_ROW_COLUMN] =
			        violation.request_row;
		}
		fill_context(guard, group, &violation, culprit, &guard->contexts[at]);
	}
}

/* ---- poll ---- */

static void fill_finding(const kvc_guard *guard, const kvc_violation *violation, kvc_finding *out)
{
	const struct kvc__context *context =
	        &guard->contexts[(violation->sequence - 1) % guard->ring.capacity];

	out->violation = *violation;
	out->step = context->step;
	out->victim_request = context->victim_request;
	out->victim_position = context->victim_position;
	out->culprit_request = context->culprit_request;
	out->culprit_step = context->culprit_step;
	out->group = context->group;
	out->cause = context->cause;
	out->slug = kvc_reason_slug(violation->reasons);
	out->group_name = guard->groups[context->group]->name;
	out->nonfinite_source_id = context->nonfinite_source_id;
	out->nonfinite_head = context->nonfinite_head;
	out->nonfinite_dim = context->nonfinite_dim;
}

kvc_status kvc_guard_poll(
        kvc_guard *guard, kvc_finding *out, int64_t capacity, int64_t *count_out, void *stream)
{
	kvc_violation piece[POLL_PIECE];
	int64_t total = 0, count;

	if (!guard)
		return kvc__fail_null_argument(-1, "guard");
	if (!count_out)
		return kvc__fail_null_argument(-1, "count_out");
	if (!out && capacity > 0)
		return kvc__fail_null_argument(-1, "out");
	if (capacity < 0)
		return kvc__fail_guard_poll_capacity(-1, capacity);
	while (total < capacity) {
		int64_t room = capacity - total < POLL_PIECE ? capacity - total : POLL_PIECE;
		KVC__TRY(kvc_ring_poll(&guard->ring, piece, room, &count, stream));
		for (int64_t i = 0; i < count; i++)
			fill_finding(guard, &piece[i], &out[total + i]);
		total += count;
		if (count < room)
			break;
	}
	*count_out = total;
	return KVC_OK;
}

/* ---- text ---- */

struct cause_text {
	const char *name;
	const char *why;
	const char *what;
};

static const struct cause_text cause_texts[] = {
	[KVC_CAUSE_UNKNOWN] = { "unknown", "the record alone does not say",
	        "keep the record and the bytes of this slot before it is reused" },
	[KVC_CAUSE_BYTES_DAMAGED] = { "bytes_damaged",
	        "the record is sound but the bytes are not those that were stamped: a lost or "
	        "incomplete write, a write past the guard, or a flipped bit",
	        "drop the slot and compute it again; if the same page or source comes back, look "
	        "for "
	        "what writes to it besides rope_pool_fused" },
	[KVC_CAUSE_OVERWRITTEN] = { "overwritten",
	        "another request stamped the slot while this one still relied on it",
	        "look at where the slot was freed: a reference count, an abort or an eviction that "
	        "gave it away too early" },
	[KVC_CAUSE_WRONG_SLOT] = { "wrong_slot",
	        "the request table or the prefix cache points at a slot that was made for "
	        "something "
	        "else",
	        "look at the table entry of this position, at the prefix match that gave it, and "
	        "at "
	        "the first violation of this request: later ones may follow from it" },
	[KVC_CAUSE_NEVER_WRITTEN] = { "never_written",
	        "nothing was stamped since the slot was handed out: a write that got lost or went "
	        "elsewhere, or a prefix that is longer than what was computed",
	        "look at the slots given to the step that should have written it" },
	[KVC_CAUSE_WRONG_POSITION] = { "wrong_position",
	        "the token was stored under a position that it does not have",
	        "look at how positions of a later chunk or a draft are counted" },
	[KVC_CAUSE_WRONG_TOKEN] = { "wrong_token",
	        "another token was computed than the request holds",
	        "look at the order of the batch and at input buffers that are reused" },
	[KVC_CAUSE_NONFINITE] = { "nonfinite", "NaN or infinity was computed and stored",
	        "look at the layer named above, before it spreads through attention" },
	[KVC_CAUSE_OUT_OF_RANGE] = { "out_of_range",
	        "the slot lies outside the pool, or is the reserved one, or there is no slot "
	        "before "
	        "it",
	        "look at the table entry of this position" },
	[KVC_CAUSE_ALIASED] = { "aliased", "two live requests own one slot",
	        "look for a slot that was freed twice, or handed out while still in use" },
};

static const struct cause_text *text_of_cause(int32_t cause)
{
	int32_t count = (int32_t)(sizeof(cause_texts) / sizeof(cause_texts[0]));

	return &cause_texts[cause >= 0 && cause < count ? cause : KVC_CAUSE_UNKNOWN];
}

const char *kvc_cause_name(int32_t cause)
{
	return text_of_cause(cause)->name;
}

/* "  group full, step 12: request 7 reads slot 17 as position 42" */
static void put_where(struct kvc__text *text, const kvc_finding *finding)
{
	const kvc_violation *violation = &finding->violation;
	int is_write = violation->launch_tag == KVC_TAG_STEP_WRITE;

	kvc__text_literal(text, "\n  where: group ");
	if (finding->group_name)
		kvc__text_word(text, finding->group_name);
	else
		kvc__text_int(text, finding->group);
	kvc__text_literal(text, ", step ");
	kvc__text_int(text, finding->step);
	kvc__text_literal(text, ": ");
	if (finding->victim_request >= 0) {
		kvc__text_literal(text, "request ");
		kvc__text_int(text, finding->victim_request);
		kvc__text_literal(text, " (row ");
		kvc__text_int(text, violation->request_row);
		kvc__text_literal(text, is_write ? ") writes slot " : ") reads slot ");
	} else {
		kvc__text_literal(text, "the sweep looks at slot ");
	}
	kvc__text_int(text, violation->slot);
	kvc__text_literal(text, " as position ");
	kvc__text_int(text, finding->victim_position);
}

static void put_owner(struct kvc__text *text, const kvc_finding *finding)
{
	const kvc_violation *violation = &finding->violation;
	const char *whose = violation->owner_request == finding->victim_request ? " (itself)" : "";

	kvc__text_literal(text, "\n  last stamped: ");
	if (violation->owner_request < 0) {
		kvc__text_literal(text, "by nobody known");
	} else {
		kvc__text_literal(text, "by request ");
		kvc__text_int(text, violation->owner_request);
		kvc__text_literal(text, whose);
		kvc__text_literal(text, " at step ");
		kvc__text_int(text, violation->owner_step);
	}
	if (finding->culprit_request < 0 || finding->culprit_request == violation->owner_request)
		return;
	kvc__text_literal(text, "\n  also claimed: by request ");
	kvc__text_int(text, finding->culprit_request);
	kvc__text_literal(text, " at step ");
	kvc__text_int(text, finding->culprit_step);
}

static void put_nonfinite(struct kvc__text *text, const kvc_finding *finding)
{
	if (!(finding->violation.reasons & KVC_REASON_NONFINITE) || finding->nonfinite_head < 0)
		return;
	kvc__text_literal(text, "\n  first non-finite value: source ");
	kvc__text_int(text, finding->nonfinite_source_id);
	kvc__text_literal(text, ", head ");
	kvc__text_int(text, finding->nonfinite_head);
	kvc__text_literal(text, ", dim ");
	kvc__text_int(text, finding->nonfinite_dim);
}

/* The violation's own first line, which others parse. */
static void put_first_line(struct kvc__text *text, const kvc_violation *violation)
{
	char whole[1024];

	kvc_violation_text(whole, sizeof(whole), violation, KVC_RULES_OWN, NULL);
	whole[strcspn(whole, "\n")] = '\0';
	kvc__text_literal(text, whole);
}

size_t kvc_finding_text(char *out, size_t out_bytes, const kvc_finding *finding)
{
	char whole[4096];
	struct kvc__text text = kvc__text_over(whole, sizeof(whole));
	const struct cause_text *cause;

	if (out && out_bytes > 0)
		out[0] = '\0';
	if (!finding)
		return 0;
	cause = text_of_cause(finding->cause);
	put_first_line(&text, &finding->violation);
	put_where(&text, finding);
	put_owner(&text, finding);
	put_nonfinite(&text, finding);
	kvc__text_literal(&text, "\n  likely cause: ");
	kvc__text_literal(&text, cause->name);
	kvc__text_literal(&text, ": ");
	kvc__text_literal(&text, cause->why);
	kvc__text_literal(&text, "\n  what to do: ");
	kvc__text_literal(&text, cause->what);
	kvc__text_literal(&text, "\n  explain: kvcanary explain ");
	kvc__text_literal(&text, finding->slug ? finding->slug : "");
	kvc__text_literal(&text, "\n");
	if (out && out_bytes > 0) {
		size_t copied = text.used_bytes < out_bytes ? text.used_bytes : out_bytes - 1;
		memcpy(out, whole, copied);
		out[copied] = '\0';
	}
	return text.used_bytes;
}
