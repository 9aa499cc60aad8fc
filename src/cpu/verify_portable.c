/*
 * Comparing planned slots with their records, predecessors and bytes, in portable C (SPEC section
 * 4.4). Reads records and KV, writes only the ring, its counters and valid_prefix.
 *
 * Entries do not depend on each other, so they are looked at on all threads. Rows nevertheless
 * stand in entry order: the threads only find out which chunks of entries hold a violation, and
 * those chunks, in a sound cache none, are looked at once more in order. That costs nothing where
 * it matters and needs no memory but a flag per chunk.
 */
#include "cpu/canary.h"

#include <string.h>

#include "base/threads.h"
#include "cpu/fingerprint.h"
#include "cpu/records.h"
#include "cpu/ring.h"

#define CHUNKS_MAX 2048

/* Fewer entries than this are not worth a thread of their own. */
#define CHUNK_ENTRIES_MIN 32

/* Predecessors that are no slots; over SGLang's interface every negative one is the first. */
enum { PREV_START = -1, PREV_CHAIN_IN = -2, PREV_UNKNOWN = -3 };

/* What looking at one entry gave. */
struct finding {
	int64_t reasons;
	int64_t end_reasons; /* of the row about the end of the chain */
	int skipped;
	int chain_unchecked;
	int hashed;
	uint64_t expected_chain;
	uint64_t expected_fingerprint;
};

static int by_own_rules(const struct kvc__verify *verify)
{
	return verify->rules == KVC_RULES_OWN;
}

/* The request of an entry, -1 if it is not known. */
static int64_t request_of(const struct kvc__verify *verify, int64_t i)
{
	int64_t r = verify->request ? verify->request[i] : -1;

	return r >= 0 && r < verify->batch.count ? r : -1;
}

static int64_t expected_token_of(const struct kvc__verify *verify, int64_t i)
{
	return verify->check_tokens ? verify->expected_tokens[i] : -1;
}

/* ---- the single checks ---- */

enum { ENTRY_LIVE, ENTRY_SKIPPED, ENTRY_OUTSIDE };

/* Is the planned slot one to look at? */
static int entry_kind(const struct kvc__verify *verify, int64_t i)
{
	int64_t slot = verify->slots[i];

	if (slot < 0)
		return ENTRY_SKIPPED;
	if (!by_own_rules(verify))
		return slot == 0 || slot >= verify->group.record_count ? ENTRY_SKIPPED : ENTRY_LIVE;
	if (slot == verify->group.reserved_slot) {
		/* Padding may point there; a request's own token must not. A row that is not
		 * known counts as a request's: what cannot be checked is not called clean. */
		int64_t r = request_of(verify, i);
		int64_t row = kvc__batch_value(&verify->batch, verify->batch.rows, r, -1);
		return row == 0 ? ENTRY_SKIPPED : ENTRY_OUTSIDE;
	}
	return slot >= verify->group.record_count ? ENTRY_OUTSIDE : ENTRY_LIVE;
}

static uint64_t chain_start_of(const struct kvc__verify *verify, int64_t i)
{
	return kvc__chain_start((uint64_t)kvc__batch_value(
	        &verify->batch, verify->batch.namespaces, request_of(verify, i), 0));
}

/* The chain that the entry must store: 1 if it is known, 0 if it cannot be checked, -1 if the
 * predecessor makes no sense. */
static int expect_chain_own(const struct kvc__verify *verify, int64_t i, uint64_t *chain)
{
	int64_t prev = verify->prev_slots[i];

	if (prev == PREV_START) {
		*chain = chain_start_of(verify, i);
		return verify->expected_positions[i] > 0 ? -1 : 1;
	}
	if (prev == PREV_CHAIN_IN) {
		*chain = (uint64_t)kvc__batch_value(
		        &verify->batch, verify->batch.verify_chain_in, request_of(verify, i), 0);
		return *chain != 0;
	}
	if (prev == PREV_UNKNOWN || (prev >= 0 && prev == verify->group.reserved_slot))
		return 0;
	if (!kvc__record_has(&verify->group, prev))
		return -1;
	*chain = kvc__record_next(kvc__record_at(&verify->group, prev));
	return 1;
}

static int expect_chain_sglang(const struct kvc__verify *verify, int64_t i, uint64_t *chain)
{
	int64_t prev = verify->prev_slots[i];

	if (prev < 0) {
		*chain = chain_start_of(verify, i);
		return 1;
	}
	/* Slot 0 is what the window mapping gives for an evicted predecessor. */
	if (prev == 0 || !kvc__record_has(&verify->group, prev))
		return 0;
	*chain = kvc__record_next(kvc__record_at(&verify->group, prev));
	return 1;
}

static void check_chain(const struct kvc__verify *verify, int64_t i, const kvc_record *record,
        struct finding *finding)
{
	uint64_t chain = 0;
	int known = by_own_rules(verify) ? expect_chain_own(verify, i, &chain)
	                                 : expect_chain_sglang(verify, i, &chain);

	finding->expected_chain = known > 0 ? chain : record->prev_hash;
	if (known < 0)
		finding->reasons |= KVC_REASON_SLOT_RANGE;
	else if (known == 0)
		finding->chain_unchecked = 1;
	else if (record->prev_hash != chain)
		finding->reasons |= KVC_REASON_VERIFY_CHAIN_HASH;
}

/* Are the bytes looked at? */
static int hashes_bytes(const struct kvc__verify *verify)
{
	return !by_own_rules(verify) ||
	       (verify->check_bytes && verify->group.coverage != KVC_COVERAGE_NONE);
}

/* now: the fingerprint of the bytes as they are. */
static void check_bytes(const struct kvc__verify *verify, uint64_t now, const kvc_record *record,
        struct finding *finding)
{
	finding->expected_fingerprint = record->fingerprint;
	if (!hashes_bytes(verify))
		return;
	finding->hashed = 1;
	finding->expected_fingerprint = now;
	if (finding->expected_fingerprint != record->fingerprint)
		finding->reasons |= KVC_REASON_VERIFY_REAL_KV_HASH;
}

/* The chain after the request's last cached token, where the caller knows what it must be. */
static void check_end(const struct kvc__verify *verify, int64_t i, const kvc_record *record,
        struct finding *finding)
{
	int64_t r = request_of(verify, i);
	uint64_t end = (uint64_t)kvc__batch_value(&verify->batch, verify->batch.chain_end, r, 0);

	if (end == 0 || !by_own_rules(verify))
		return;
	/* Unsigned, because a foreign number may be the lowest of all. */
	uint64_t last = (uint64_t)verify->batch.prefix_lens[r] - 1;
	if ((uint64_t)verify->expected_positions[i] != last)
		return;
	if (kvc__record_next(record) != end)
		finding->end_reasons = KVC_REASON_CHAIN_END;
}

/* All checks of one entry, whose bytes have the fingerprint 'now'; none cuts another short, except
 * that a slot without a record, or with one that nobody stamped, has nothing to compare. */
static struct finding look_at(const struct kvc__verify *verify, int64_t i, uint64_t now)
{
	struct finding finding = { 0 };
	int kind = entry_kind(verify, i);

	if (kind != ENTRY_LIVE) {
		finding.skipped = kind == ENTRY_SKIPPED;
		finding.reasons = kind == ENTRY_OUTSIDE ? KVC_REASON_SLOT_RANGE : 0;
		return finding;
	}
	int64_t slot = verify->slots[i], token = expected_token_of(verify, i);
	const kvc_record *record = kvc__record_at(&verify->group, slot);
	if (by_own_rules(verify) && kvc__record_is_void(record)) {
		finding.reasons = KVC_REASON_NEVER_STAMPED;
		return finding;
	}
	check_chain(verify, i, record, &finding);
	if (token != -1 && record->token != token)
		finding.reasons |= KVC_REASON_VERIFY_TOKEN;
	if (record->position != verify->expected_positions[i])
		finding.reasons |= KVC_REASON_VERIFY_POSITION;
	check_bytes(verify, now, record, &finding);
	if (by_own_rules(verify) && verify->check_finite &&
	        kvc__slot_nonfinite(verify->cpu, &verify->group, slot, slot))
		finding.reasons |= KVC_REASON_NONFINITE;
	check_end(verify, i, record, &finding);
	return finding;
}

/*
 * The fingerprints of 'count' entries from number 'first' on, at most KVC__BATCH_SLOTS; 0 where
 * there is nothing to look at.
 */
static void fingerprint_entries_from(
        const struct kvc__verify *verify, int64_t first, int64_t count, uint64_t *out)
{
	int64_t slots[KVC__BATCH_SLOTS];

	for (int64_t i = 0; i < count; i++) {
		int64_t slot = verify->slots[first + i];
		slots[i] = entry_kind(verify, first + i) == ENTRY_LIVE ? slot : -1;
	}
	if (hashes_bytes(verify))
		kvc__fingerprint_batch(verify->cpu, &verify->group, slots, count, out);
	else
		memset(out, 0, (size_t)count * sizeof(*out));
}

/* ---- rows ---- */

static void put_entry(const struct kvc__verify *verify, int64_t i, const struct finding *finding)
{
	int64_t slot = verify->slots[i], r = request_of(verify, i);
	kvc_violation row = { 0 };

	row.launch_tag = verify->launch_tag;
	row.slot = slot;
	row.expected_token = expected_token_of(verify, i);
	row.expected_position = verify->expected_positions[i];
	row.expected_aux = finding->expected_chain;
	row.expected_fingerprint = finding->expected_fingerprint;
	row.request_row = kvc__batch_value(&verify->batch, verify->batch.rows, r, -1);
	row.owner_request = -1;
	row.owner_step = -1;
	row.source_id = kvc__record_source_id(&verify->group);
	if (kvc__record_has(&verify->group, slot))
		kvc__record_owner(&verify->group, slot, &row);
	if (entry_kind(verify, i) == ENTRY_LIVE) {
		const kvc_record *record = kvc__record_at(&verify->group, slot);
		row.position = record->position;
		row.stored_token = record->token;
		row.stored_chain = record->prev_hash;
		row.stored_fingerprint = record->fingerprint;
	}
	if (finding->reasons) {
		row.reasons = finding->reasons;
		kvc__ring_put(verify->ring, &row);
	}
	if (finding->end_reasons) {
		row.reasons = finding->end_reasons;
		row.stored_chain = kvc__record_next(kvc__record_at(&verify->group, slot));
		row.expected_aux = (uint64_t)verify->batch.chain_end[r];
		kvc__ring_put(verify->ring, &row);
	}
}

static void lower_valid_prefix(const struct kvc__verify *verify, int64_t i)
{
	int64_t r = request_of(verify, i), position = verify->expected_positions[i];

	if (verify->valid_prefix && r >= 0 && position < verify->valid_prefix[r])
		verify->valid_prefix[r] = position < 0 ? 0 : position;
}

static void report_chunk(const struct kvc__verify *verify, int64_t first, int64_t past)
{
	for (int64_t i = first; i < past; i++) {
		uint64_t now;
		fingerprint_entries_from(verify, i, 1, &now);
		struct finding finding = look_at(verify, i, now);
		if (!finding.reasons && !finding.end_reasons)
			continue;
		put_entry(verify, i, &finding);
		lower_valid_prefix(verify, i);
	}
}

/* ---- chunks of entries, on all threads ---- */

struct scan {
	const struct kvc__verify *verify;
	int64_t chunk_entries;
	int64_t slot_bytes;      /* hashed, of each slot */
	int hashes;              /* are bytes compared? */
	int simple;              /* may is_sound() be asked? */
	struct kvc__tally tally; /* added to by all threads */
	uint8_t flagged[CHUNKS_MAX];
};

static int64_t chunk_past(const struct scan *scan, int64_t chunk)
{
	int64_t past = (chunk + 1) * scan->chunk_entries;

	return past < scan->verify->entry_count ? past : scan->verify->entry_count;
}

static void add_tally(struct kvc__tally *to, const struct kvc__tally *from)
{
	__atomic_fetch_add(&to->slots_skipped, from->slots_skipped, __ATOMIC_RELAXED);
	__atomic_fetch_add(&to->chain_unchecked, from->chain_unchecked, __ATOMIC_RELAXED);
	__atomic_fetch_add(&to->bytes_hashed, from->bytes_hashed, __ATOMIC_RELAXED);
}

/* Records that are asked for ahead of the one being looked at. */
#define RECORDS_AHEAD 32

KVC__INLINED static inline void ask_for_record(
        const struct kvc__verify *verify, int64_t i, int64_t past)
{
	if (i < past && kvc__record_has(&verify->group, verify->slots[i]))
		__builtin_prefetch(kvc__record_at(&verify->group, verify->slots[i]));
}

/*
 * The common case in few instructions: nothing is wrong with entry i, whose bytes have the fingerprint
 * 'now', and nothing is to be counted but that they were hashed. A no says nothing: look_at() decides.
 */
KVC__INLINED static inline int is_sound(
        const struct kvc__verify *verify, int hashes, int64_t i, uint64_t now)
{
	const kvc_group *group = &verify->group;
	int64_t slot = verify->slots[i], prev = verify->prev_slots[i];
	int64_t token = expected_token_of(verify, i);

	if (!kvc__record_has(group, slot) || !kvc__record_has(group, prev) ||
	        slot == group->reserved_slot || prev == group->reserved_slot)
		return 0;
	const kvc_record *record = kvc__record_at(group, slot);
	return record->prev_hash == kvc__record_next(kvc__record_at(group, prev)) &&
	       record->prev_hash != 0 && /* not void */
	       (token == -1 || token == record->token) &&
	       record->position == verify->expected_positions[i] &&
	       (!hashes || record->fingerprint == now);
}

/* Entries from 'first' on, at most KVC__BATCH_SLOTS; more follow up to 'past'. Flags the chunks of
 * those that are found to be wrong, and returns the first entry after them. */
static int64_t scan_some(struct scan *scan, int64_t first, int64_t past, struct kvc__tally *tally)
{
	const struct kvc__verify *verify = scan->verify;
	/* A copy whose address nobody has: no store can change it, so it stays in registers. */
	const struct kvc__verify same = *verify;
	const int simple = scan->simple, hashes = scan->hashes;
	uint64_t now[KVC__BATCH_SLOTS];
	int64_t next = past - first > KVC__BATCH_SLOTS ? first + KVC__BATCH_SLOTS : past;
	int64_t sound = 0;

	fingerprint_entries_from(verify, first, next - first, now);
	for (int64_t i = first; i < first + RECORDS_AHEAD; i++)
		ask_for_record(&same, i, next);
	for (int64_t i = first; i < next; i++) {
		ask_for_record(&same, i + RECORDS_AHEAD, next);
		if (simple && is_sound(&same, hashes, i, now[i - first])) {
			sound++;
			continue;
		}
		struct finding finding = look_at(verify, i, now[i - first]);
		if (finding.reasons | finding.end_reasons)
			scan->flagged[i / scan->chunk_entries] = 1;
		tally->slots_skipped += finding.skipped;
		tally->chain_unchecked += finding.chain_unchecked;
		tally->bytes_hashed += finding.hashed ? scan->slot_bytes : 0;
	}
	tally->bytes_hashed += hashes ? sound * scan->slot_bytes : 0;
	return next;
}

static void scan_chunks(void *context, int64_t begin, int64_t end)
{
	struct scan *scan = context;
	int64_t past = chunk_past(scan, end - 1);
	struct kvc__tally tally = { 0 };

	for (int64_t i = begin * scan->chunk_entries; i < past;)
		i = scan_some(scan, i, past, &tally);
	add_tally(&scan->tally, &tally);
}

void kvc__verify_portable(const struct kvc__verify *verify)
{
	struct scan scan = {
		.verify = verify,
		.slot_bytes = kvc__fingerprint_bytes(&verify->group),
		.hashes = hashes_bytes(verify),
		.simple = by_own_rules(verify) && !verify->check_finite && !verify->batch.chain_end,
	};
	int64_t chunks = 0;

	for (int64_t r = 0; verify->valid_prefix && r < verify->batch.count; r++) {
		int64_t prefix = verify->batch.prefix_lens[r];
		verify->valid_prefix[r] = prefix > 0 ? prefix : 0;
	}
	if (verify->entry_count > 0) {
		scan.chunk_entries = (verify->entry_count - 1) / CHUNKS_MAX + 1;
		if (scan.chunk_entries < CHUNK_ENTRIES_MIN)
			scan.chunk_entries = CHUNK_ENTRIES_MIN;
		chunks = (verify->entry_count - 1) / scan.chunk_entries + 1;
		int64_t grain = kvc__fingerprint_grain(&verify->group) / scan.chunk_entries;
		kvc__parallel_for(chunks, grain > 0 ? grain : 1, scan_chunks, &scan);
	}
	scan.tally.slots_run = verify->entry_count;
	scan.tally.left_out = verify->left_out;
	kvc__ring_count(verify->ring, &scan.tally);
	for (int64_t chunk = 0; chunk < chunks; chunk++)
		if (scan.flagged[chunk])
			report_chunk(verify, chunk * scan.chunk_entries, chunk_past(&scan, chunk));
}
