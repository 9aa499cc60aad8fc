/*
 * Stamping slots, in portable C (SPEC section 4.3).
 *
 * The chain of a request is serial: each record stores the hash of all before it. Fingerprints do
 * not depend on each other and cost nearly all of the time, so they are made last, on all threads,
 * each stored straight into its record.
 *
 * What makes the serial part less than obvious is that a request starts from the record of its seed
 * slot, and another request of the call may write that very slot. Three rules:
 *
 *   write_in_order   SGLang's: requests one after the other, a seed sees what stands there by then
 *   write_unlinked   ours without scratch: seeds see the records as they were before the call;
 *                    write_from_starts, where the requests are few enough to remember that
 *   write_linked     ours with scratch: seeds see the records as they are after it
 *
 * None of them allocates: the fields of records that are about to be overwritten are the memory.
 */
#include "cpu/canary.h"

#include <string.h>

#include "base/threads.h"
#include "cpu/fingerprint.h"
#include "cpu/records.h"
#include "cpu/ring.h"

/* ---- entries and chains ---- */

/* Where a request's chain starts. */
struct start {
	uint64_t chain;
	int64_t position; /* of the slot before the first entry, if has_position */
	int has_position;
	int check_steps;
	int refused; /* the seed is no slot to start from: slot_range */
};

static int in_own_rules(const struct kvc__write *write)
{
	return write->rules == KVC_RULES_OWN;
}

/* Does this entry have a slot to write? */
static int entry_is_stored(const struct kvc__write *write, int64_t entry)
{
	int64_t slot = write->slots[entry];

	if (in_own_rules(write))
		return slot >= 0 && slot != write->group.reserved_slot;
	return kvc__record_has(&write->group, slot);
}

/* The entries of a request; SGLang's offsets may say anything. */
static int64_t first_entry(const struct kvc__write *write, int64_t r)
{
	return write->offsets[r] > 0 ? write->offsets[r] : 0;
}

static int64_t past_entry(const struct kvc__write *write, int64_t r)
{
	int64_t past = write->offsets[r + 1];

	return past < write->token_count ? past : write->token_count;
}

/* The first entry of request r that is stored, -1 if none. */
static int64_t first_stored(const struct kvc__write *write, int64_t r)
{
	for (int64_t e = first_entry(write, r); e < past_entry(write, r); e++)
		if (entry_is_stored(write, e))
			return e;
	return -1;
}

static uint64_t chain_in(const struct kvc__write *write, int64_t r)
{
	return (uint64_t)kvc__batch_value(&write->batch, write->batch.write_chain_in, r, 0);
}

/* Is the request's seed a slot whose record may be read? */
static int seed_is_slot(const struct kvc__write *write, int64_t seed)
{
	return kvc__record_has(&write->group, seed) &&
	       !(in_own_rules(write) && seed == write->group.reserved_slot);
}

static struct start start_anew(const struct kvc__write *write, int64_t r)
{
	struct start start = { 0 };

	start.chain = kvc__chain_start(
	        (uint64_t)kvc__batch_value(&write->batch, write->batch.namespaces, r, 0));
	return start;
}

/* The start of a request with the records as they are now. */
static struct start start_of(const struct kvc__write *write, int64_t r)
{
	struct start start = start_anew(write, r);
	int64_t seed = write->seeds[r];

	if (chain_in(write, r) != 0) {
		/* The seed is not read, so the step check has nothing to compare the first entry
		 * with and begins at the second. */
		start.chain = chain_in(write, r);
		start.check_steps = write->check_steps;
	} else if (seed_is_slot(write, seed)) {
		const kvc_record *record = kvc__record_at(&write->group, seed);
		start.chain = kvc__record_next(record);
		start.position = record->position;
		start.has_position = 1;
		start.check_steps = write->check_steps;
	} else if (in_own_rules(write)) {
		int64_t first = first_stored(write, r);
		start.refused = first >= 0 && (seed >= 0 || write->positions[first] > 0);
	}
	return start;
}

/* ---- violations ---- */

static void put_row(
        const struct kvc__write *write, int64_t r, int64_t owner_slot, kvc_violation *row)
{
	row->launch_tag = write->launch_tag;
	row->request_row = kvc__batch_value(&write->batch, write->batch.rows, r, -1);
	row->source_id = kvc__record_source_id(&write->group);
	row->owner_request = -1;
	row->owner_step = -1;
	if (kvc__record_has(&write->group, owner_slot))
		kvc__record_owner(&write->group, owner_slot, row);
	kvc__ring_put(write->ring, row);
}

/* The request cannot start from its seed. */
static void report_seed(const struct kvc__write *write, int64_t r)
{
	int64_t first = first_stored(write, r);
	kvc_violation row = { 0 };

	row.slot = write->seeds[r];
	row.position = write->positions[first];
	row.expected_position = row.position;
	row.expected_token = -1;
	row.reasons = KVC_REASON_SLOT_RANGE;
	put_row(write, r, row.slot, &row);
}

static void report_entry(const struct kvc__write *write, int64_t r, int64_t e, uint64_t chain,
        int64_t expected_token, int64_t expected_position, int64_t reasons)
{
	kvc_violation row = { 0 };

	row.slot = write->slots[e];
	row.position = write->positions[e];
	row.stored_token = write->tokens[e];
	row.expected_token = expected_token;
	row.stored_chain = chain;
	row.expected_aux = (uint64_t)expected_position;
	row.expected_position = expected_position;
	row.reasons = reasons;
	put_row(write, r, row.slot, &row);
}

static void check_input(const struct kvc__write *write, int64_t r, int64_t e, uint64_t chain)
{
	int64_t token = write->expected_tokens[e], position = write->expected_positions[e];
	int64_t reasons = 0;

	if (write->tokens[e] != token)
		reasons |= KVC_REASON_WRITE_TOKEN;
	if (write->positions[e] != position)
		reasons |= KVC_REASON_WRITE_POSITION;
	if (reasons)
		report_entry(write, r, e, chain, token, position, reasons);
}

static void check_step(const struct kvc__write *write, int64_t r, int64_t e, uint64_t chain,
        const struct start *before)
{
	int64_t expected = (int64_t)((uint64_t)before->position + 1);

	if (before->has_position && write->positions[e] != expected)
		report_entry(
		        write, r, e, chain, write->tokens[e], expected, KVC_REASON_WRITE_POSITION);
}

/* Both checks of one entry, input first. 'before' is the state of the request's walk. */
static void check_entry(const struct kvc__write *write, int64_t r, int64_t e, struct start *before)
{
	if (write->expected_tokens)
		check_input(write, r, e, before->chain);
	if (before->check_steps) {
		check_step(write, r, e, before->chain, before);
		before->position = write->positions[e];
		before->has_position = 1;
	}
}

/* ---- storing ---- */

static uint64_t next_chain(const struct kvc__write *write, int64_t e, uint64_t chain)
{
	return kvc__chain_next(chain, write->tokens[e], write->positions[e]);
}

static void store_chain(const struct kvc__write *write, int64_t e, uint64_t chain)
{
	kvc_record *record = kvc__record_at(&write->group, write->slots[e]);

	record->token = write->tokens[e];
	record->position = write->positions[e];
	record->prev_hash = chain;
}

static void store_owner(const struct kvc__write *write, int64_t r, int64_t e)
{
	if (!write->group.owners)
		return;
	kvc_owner *owner = &write->group.owners[write->slots[e]];
	owner->request = kvc__batch_value(&write->batch, write->batch.owner_request, r, -1);
	owner->step = write->step;
	owner->tag = (uint32_t)write->launch_tag;
}

/* Records are asked for so many entries before they are written: they lie anywhere. */
#define RECORDS_AHEAD 16

KVC__INLINED static inline void ask_for_record(
        const struct kvc__write *write, int64_t e, int64_t past)
{
	if (e < past && kvc__record_has(&write->group, write->slots[e]))
		__builtin_prefetch(kvc__record_at(&write->group, write->slots[e]), 1);
}

/*
 * Up to KVC__BATCH_SLOTS entries. A slot that two requests write is hashed twice, by two threads
 * perhaps: both store one value.
 */
static void fingerprint_some(const struct kvc__write *write, int64_t begin, int64_t end)
{
	int64_t slots[KVC__BATCH_SLOTS];
	uint64_t fingerprints[KVC__BATCH_SLOTS] = { 0 };

	for (int64_t e = begin; e < end; e++)
		slots[e - begin] = entry_is_stored(write, e) ? write->slots[e] : -1;
	if (write->group.stamping == KVC_STAMP_COMPUTE)
		kvc__fingerprint_batch(write->cpu, &write->group, slots, end - begin, fingerprints);
	for (int64_t i = 0; i < end - begin; i++) {
		ask_for_record(write, begin + i + RECORDS_AHEAD, end);
		if (slots[i] >= 0)
			__atomic_store_n(&kvc__record_at(&write->group, slots[i])->fingerprint,
			        fingerprints[i], __ATOMIC_RELAXED);
	}
}

static void fingerprint_entries(void *context, int64_t begin, int64_t end)
{
	for (int64_t e = begin; e < end; e += KVC__BATCH_SLOTS)
		fingerprint_some(
		        context, e, end - e > KVC__BATCH_SLOTS ? e + KVC__BATCH_SLOTS : end);
}

/* ---- SGLang's rules ---- */

static void write_in_order(const struct kvc__write *write)
{
	for (int64_t r = 0; r < write->request_count; r++) {
		struct start at = start_of(write, r);
		for (int64_t e = first_entry(write, r); e < past_entry(write, r); e++) {
			if (!entry_is_stored(write, e))
				continue;
			check_entry(write, r, e, &at);
			store_chain(write, e, at.chain);
			store_owner(write, r, e);
			at.chain = next_chain(write, e, at.chain);
		}
	}
}

/* ---- our rules, seeds as before the call ---- */

/* So many starts are kept on the stack. */
#define STARTS_MAX 512

/* With all starts known before anything is written, one walk over the entries does. */
static void write_from_starts(const struct kvc__write *write)
{
	struct start starts[STARTS_MAX];

	for (int64_t r = 0; r < write->request_count; r++)
		starts[r] = start_of(write, r);
	for (int64_t r = 0; r < write->request_count; r++) {
		if (starts[r].refused)
			report_seed(write, r);
		for (int64_t e = first_entry(write, r); e < past_entry(write, r); e++) {
			ask_for_record(write, e + RECORDS_AHEAD, write->token_count);
			if (!entry_is_stored(write, e))
				continue;
			check_entry(write, r, e, &starts[r]);
			store_chain(write, e, starts[r].chain);
			starts[r].chain = next_chain(write, e, starts[r].chain);
		}
	}
	/* Last, because the checks report who wrote a slot before. */
	for (int64_t r = 0; write->group.owners && r < write->request_count; r++)
		for (int64_t e = first_entry(write, r); e < past_entry(write, r); e++)
			if (entry_is_stored(write, e))
				store_owner(write, r, e);
}

/*
 * More requests: first all chains, kept in the fingerprint fields, which no chain reads; then everything is put in
 * its place. Of two entries on one slot the later one's chain stays, and so do its other fields.
 */
static void write_unlinked(const struct kvc__write *write)
{
	for (int64_t r = 0; r < write->request_count; r++) {
		struct start at = start_of(write, r);
		if (at.refused)
			report_seed(write, r);
		for (int64_t e = first_entry(write, r); e < past_entry(write, r); e++) {
			if (!entry_is_stored(write, e))
				continue;
			check_entry(write, r, e, &at);
			kvc__record_at(&write->group, write->slots[e])->fingerprint = at.chain;
			at.chain = next_chain(write, e, at.chain);
		}
	}
	for (int64_t r = 0; r < write->request_count; r++) {
		for (int64_t e = first_entry(write, r); e < past_entry(write, r); e++) {
			if (!entry_is_stored(write, e))
				continue;
			int64_t slot = write->slots[e];
			store_chain(write, e, kvc__record_at(&write->group, slot)->fingerprint);
			store_owner(write, r, e);
		}
	}
}

/* ---- our rules, seeds as after the call ---- */

/*
 * scratch[slot] = 1 + the last entry that writes the slot: the one that stays, its "winner". Once
 * the winner's record is final, the negative of that.
 *
 * Until then the fields of the record are free, and hold what links requests to each other:
 *
 *   token      the winner's request
 *   position   the request's home: the slot of its first winner
 *
 * and, in the home alone,
 *
 *   prev_hash     the request that waits for this one, while it is on the path
 *   fingerprint   one of the states below; it keeps until fingerprints are made
 */
enum { STATE_NEW = 0, STATE_ON_PATH = 1, STATE_IN_CYCLE = 2, STATE_DONE = 3 };

static int is_winner(const struct kvc__write *write, int64_t e)
{
	int64_t mark = write->scratch[write->slots[e]];

	return mark == e + 1 || mark == -(e + 1);
}

/* The first winner's slot of a request, -1 if it has none. Nobody waits for such a request. */
static int64_t home_of(const struct kvc__write *write, int64_t r)
{
	for (int64_t e = first_entry(write, r); e < past_entry(write, r); e++)
		if (entry_is_stored(write, e) && is_winner(write, e))
			return write->slots[e];
	return -1;
}

static uint64_t *state_of(const struct kvc__write *write, int64_t home)
{
	return &kvc__record_at(&write->group, home)->fingerprint;
}

static void link_requests(const struct kvc__write *write)
{
	for (int64_t e = first_entry(write, 0); e < past_entry(write, write->request_count - 1);
	        e++)
		if (entry_is_stored(write, e))
			write->scratch[write->slots[e]] = e + 1;
	for (int64_t r = 0; r < write->request_count; r++) {
		int64_t home = home_of(write, r);
		for (int64_t e = first_entry(write, r); e < past_entry(write, r); e++) {
			if (!entry_is_stored(write, e) || !is_winner(write, e))
				continue;
			kvc_record *record = kvc__record_at(&write->group, write->slots[e]);
			record->token = r;
			record->position = home;
		}
		if (home >= 0)
			*state_of(write, home) = STATE_NEW;
	}
}

/*
 * The request that writes r's seed and is not final yet, -1 if r can start. A mark is believed only
 * if the entry that it names does write the slot: the caller's scratch may not have been zero.
 */
static int64_t request_before(const struct kvc__write *write, int64_t r)
{
	int64_t seed = write->seeds[r];

	if (chain_in(write, r) != 0 || !seed_is_slot(write, seed))
		return -1;
	int64_t e = write->scratch[seed] - 1;
	if (e < first_entry(write, 0) || e >= past_entry(write, write->request_count - 1) ||
	        write->slots[e] != seed)
		return -1;
	return kvc__record_at(&write->group, seed)->token;
}

/* Make the winners of request r final. */
static void settle(const struct kvc__write *write, int64_t r, int64_t home)
{
	uint64_t *state = state_of(write, home);
	struct start at = *state == STATE_IN_CYCLE ? start_anew(write, r) : start_of(write, r);

	for (int64_t e = first_entry(write, r); e < past_entry(write, r); e++) {
		if (!entry_is_stored(write, e))
			continue;
		if (is_winner(write, e)) {
			store_chain(write, e, at.chain);
			write->scratch[write->slots[e]] = -(e + 1);
		}
		at.chain = next_chain(write, e, at.chain);
	}
	if (*state != STATE_IN_CYCLE)
		*state = STATE_DONE;
}

/* Mark the requests from r back to 'last', each of which waits for the one before. */
static void mark_cycle(const struct kvc__write *write, int64_t r, int64_t home, int64_t last)
{
	for (;;) {
		*state_of(write, home) = STATE_IN_CYCLE;
		if (r == last)
			return;
		r = (int64_t)kvc__record_at(&write->group, home)->prev_hash;
		home = home_of(write, r);
	}
}

/* Settle request r, after those that it waits for. */
static void settle_path(const struct kvc__write *write, int64_t r, int64_t home)
{
	int64_t waiting = -1;

	for (;;) {
		kvc_record *record = kvc__record_at(&write->group, home);
		record->fingerprint = STATE_ON_PATH;
		record->prev_hash = (uint64_t)waiting;
		int64_t before = request_before(write, r);
		if (before < 0)
			break;
		int64_t before_home = kvc__record_at(&write->group, write->seeds[r])->position;
		if (*state_of(write, before_home) == STATE_ON_PATH) {
			mark_cycle(write, r, home, before);
			break;
		}
		waiting = r;
		r = before;
		home = before_home;
	}
	while (r >= 0) {
		waiting = (int64_t)kvc__record_at(&write->group, home)->prev_hash;
		settle(write, r, home);
		r = waiting;
		home = r >= 0 ? home_of(write, r) : -1;
	}
}

/* All records are final: what is left is to check entries in order, and to say who wrote them. */
static void check_linked(const struct kvc__write *write)
{
	for (int64_t r = 0; r < write->request_count; r++) {
		int64_t home = home_of(write, r);
		struct start at = start_of(write, r);
		if (home >= 0 && *state_of(write, home) == STATE_IN_CYCLE) {
			at = start_anew(write, r);
			at.refused = 1;
		}
		if (at.refused)
			report_seed(write, r);
		for (int64_t e = first_entry(write, r); e < past_entry(write, r); e++) {
			if (!entry_is_stored(write, e))
				continue;
			check_entry(write, r, e, &at);
			at.chain = next_chain(write, e, at.chain);
		}
	}
}

static void write_linked(const struct kvc__write *write)
{
	link_requests(write);
	for (int64_t r = 0; r < write->request_count; r++) {
		int64_t home = home_of(write, r);
		if (home >= 0 && *state_of(write, home) == STATE_NEW)
			settle_path(write, r, home);
	}
	if (write->ring)
		check_linked(write);
	for (int64_t r = 0; r < write->request_count; r++) {
		for (int64_t e = first_entry(write, r); e < past_entry(write, r); e++) {
			if (!entry_is_stored(write, e))
				continue;
			store_owner(write, r, e);
			write->scratch[write->slots[e]] = 0;
		}
	}
}

/* ---- all together ---- */

static struct kvc__tally count_entries(const struct kvc__write *write)
{
	struct kvc__tally tally = { 0 };

	for (int64_t r = 0; r < write->request_count; r++) {
		for (int64_t e = first_entry(write, r); e < past_entry(write, r); e++) {
			int stored = entry_is_stored(write, e);
			tally.slots_run += stored;
			tally.slots_skipped += !stored;
		}
	}
	if (write->group.stamping == KVC_STAMP_COMPUTE)
		tally.bytes_hashed = tally.slots_run * kvc__fingerprint_bytes(&write->group);
	return tally;
}

/* Do the entries of all requests together make one range? Over our interface they always do. */
static int entries_are_one_range(const struct kvc__write *write)
{
	for (int64_t r = 0; r < write->request_count; r++)
		if (write->offsets[r] > write->offsets[r + 1])
			return 0;
	return 1;
}

static void stamp_range(const struct kvc__write *write, int64_t first, int64_t past)
{
	struct kvc__write task = *write;

	task.slots = write->slots + first;
	if (past > first)
		kvc__parallel_for(past - first, kvc__fingerprint_grain(&write->group),
		        fingerprint_entries, &task);
}

static void fingerprint_all(const struct kvc__write *write)
{
	int64_t last = write->request_count - 1;

	if (entries_are_one_range(write)) {
		stamp_range(write, first_entry(write, 0), past_entry(write, last));
		return;
	}
	for (int64_t r = 0; r <= last; r++)
		stamp_range(write, first_entry(write, r), past_entry(write, r));
}

void kvc__write_portable(const struct kvc__write *write)
{
	struct kvc__tally tally = count_entries(write);

	kvc__ring_count(write->ring, &tally);
	if (write->request_count == 0)
		return;
	if (!in_own_rules(write))
		write_in_order(write);
	else if (write->scratch)
		write_linked(write);
	else if (write->request_count <= STARTS_MAX)
		write_from_starts(write);
	else
		write_unlinked(write);
	fingerprint_all(write);
}
