/*
 * Fingerprints of many slots at a time: what verify and write spend nearly all of their time on.
 *
 * Slots lie anywhere in their pool, so the rows of the next slots are asked for while one is hashed.
 * xxh3 takes the rows one by one; splitmix, a serial chain along a row, takes KVC__FOLD_ROWS rows
 * side by side. Bytes that do not lie together go the portable way, slot by slot. All give what
 * kvc__fingerprint_portable() gives.
 */
#include "cpu/dispatch.h"
#include "cpu/fingerprint.h"
#include "cpu/records.h"

#include <string.h>

/* ---- xxh3 ---- */

/* Bytes that should be on their way: what a memory of 10 GB/s that answers after 200 ns delivers. */
#define AHEAD_BYTES 2048

/* With rows as long as this, memory has time for their records too. */
#define LONG_ROW 512

/* How many rows ahead of the one being hashed. */
static int64_t rows_ahead(int64_t row_bytes)
{
	int64_t rows = row_bytes > 0 ? AHEAD_BYTES / row_bytes : 1;

	return rows < 1 ? 1 : rows > 32 ? 32 : rows;
}

/* Each caller turns to the slot's record next. */
KVC__ASKS static inline void ask_for_record_of(const kvc_group *group, int64_t slot)
{
	if (kvc__record_has(group, slot))
		__builtin_prefetch(kvc__record_at(group, slot));
}

static void add_xxh3(const struct kvc__cpu_variant *cpu, const kvc_group *group, int64_t s,
        const int64_t *slots, int64_t count, uint64_t *out)
{
	const kvc_source *source = &group->sources[s];
	int32_t coverage = group->coverage;
	int64_t bytes = kvc__xxh3_bytes(source, coverage), ahead = rows_ahead(bytes);

	for (int64_t i = 0; i < ahead && i < count; i++)
		if (slots[i] >= 0)
			kvc__ask_for(kvc__source_slot(source, slots[i]), bytes);
	for (int64_t i = 0; i < count; i++) {
		int64_t next = i + ahead < count ? slots[i + ahead] : -1;
		if (slots[i] < 0)
			continue;
		if (s == 0 && bytes >= LONG_ROW)
			ask_for_record_of(group, slots[i]);
		const uint8_t *row = kvc__source_slot(source, slots[i]);
		uint64_t hash = cpu->xxh3_ahead(
		        row, (size_t)bytes, next < 0 ? row : kvc__source_slot(source, next));
		out[i] += kvc__fingerprint_share(hash, source->id);
	}
}

/* ---- splitmix ---- */

/* The last word of a source whose length is no multiple of 8, padded with zeros. */
static uint64_t last_word(const uint8_t *bytes, int64_t count)
{
	uint64_t word = 0;

	for (int64_t i = count - 1; i >= 0; i--)
		word = word << 8 | bytes[i];
	return word;
}

/* Fold one source of KVC__FOLD_ROWS slots into all[]. */
static void fold_rows(const struct kvc__cpu_variant *cpu, const uint8_t *const *rows,
        const uint8_t *const *next, int64_t bytes, uint64_t all[KVC__FOLD_ROWS])
{
	uint64_t folds[KVC__FOLD_ROWS] = { 0 };

	cpu->splitmix_fold(folds, rows, next, bytes / 8);
	for (int i = 0; i < KVC__FOLD_ROWS; i++) {
		if (bytes % 8 != 0)
			folds[i] = kvc__splitmix64(
			        folds[i] ^ last_word(rows[i] + bytes / 8 * 8, bytes % 8));
		all[i] = kvc__splitmix64(all[i] ^ folds[i]);
	}
}

static void batch_rows(const kvc_source *source, const int64_t *slots, int64_t count,
        const uint8_t *rows[KVC__FOLD_ROWS])
{
	for (int64_t i = 0; i < KVC__FOLD_ROWS; i++) /* what is missing: the last one again */
		rows[i] = kvc__source_slot(source, slots[i < count ? i : count - 1]);
}

/* Up to KVC__FOLD_ROWS slots, none negative; as many of 'next' come after them. */
static void splitmix_some(const struct kvc__cpu_variant *cpu, const kvc_group *group,
        const int64_t *slots, int64_t count, int64_t next_count, uint64_t all[KVC__FOLD_ROWS])
{
	const uint8_t *rows[KVC__FOLD_ROWS], *next[KVC__FOLD_ROWS];
	int64_t last = group->source_count - 1;

	memset(all, 0, KVC__FOLD_ROWS * sizeof *all);
	for (int64_t s = 0; s <= last; s++) {
		const kvc_source *source = &group->sources[s];
		batch_rows(source, slots, count, rows);
		if (s < last)
			batch_rows(source + 1, slots, count, next);
		else if (next_count > 0)
			batch_rows(group->sources, slots + count, next_count, next);
		else
			memcpy(next, rows, sizeof next);
		fold_rows(cpu, rows, next, kvc__splitmix_bytes(source, group->coverage), all);
	}
}

static void splitmix_batch(const struct kvc__cpu_variant *cpu, const kvc_group *group,
        const int64_t *slots, int64_t count, uint64_t *out)
{
	uint64_t all[KVC__FOLD_ROWS];
	int64_t taken[KVC__BATCH_SLOTS], where[KVC__BATCH_SLOTS];
	int64_t used = 0;

	for (int64_t i = 0; i < count; i++) {
		taken[used] = slots[i];
		where[used] = i;
		used += slots[i] >= 0;
	}
	for (int64_t i = 0; i < used; i += KVC__FOLD_ROWS) {
		int64_t some = used - i < KVC__FOLD_ROWS ? used - i : KVC__FOLD_ROWS;
		int64_t after = used - i - some < KVC__FOLD_ROWS ? used - i - some : KVC__FOLD_ROWS;
		splitmix_some(cpu, group, taken + i, some, after, all);
		for (int64_t k = 0; k < some; k++) {
			ask_for_record_of(group, taken[i + k]);
			out[where[i + k]] = all[k];
		}
	}
}

/* ---- all ---- */

static int all_together(const kvc_group *group)
{
	for (int64_t i = 0; i < group->source_count; i++)
		if (group->fingerprint == KVC_FINGERPRINT_SPLITMIX
		                ? !kvc__source_together(&group->sources[i])
		                : !kvc__xxh3_together(&group->sources[i], group->coverage))
			return 0;
	return 1;
}

void kvc__fingerprint_batch(const struct kvc__cpu_variant *cpu, const kvc_group *group,
        const int64_t *slots, int64_t count, uint64_t *out)
{
	memset(out, 0, (size_t)count * sizeof *out);
	if (group->coverage == KVC_COVERAGE_NONE)
		return;
	if (!all_together(group)) {
		for (int64_t i = 0; i < count; i++)
			if (slots[i] >= 0)
				out[i] = kvc__fingerprint_portable(group, slots[i]);
		return;
	}
	if (group->fingerprint == KVC_FINGERPRINT_SPLITMIX) {
		splitmix_batch(cpu, group, slots, count, out);
		return;
	}
	for (int64_t s = 0; s < group->source_count; s++)
		add_xxh3(cpu, group, s, slots, count, out);
}
