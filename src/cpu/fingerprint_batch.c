/*
 * Fingerprints of many slots at a time: what verify and write spend nearly all of their time on.
 *
 * Slots lie anywhere in their pool, so the kernels ask for the next rows while they hash one. xxh3
 * takes the rows one by one; splitmix, a serial chain along a row, takes KVC__FOLD_ROWS rows
 * side by side. Bytes that do not lie together are put together first (xxh3), or go the portable
 * way, slot by slot. All give what kvc__fingerprint_portable() gives.
 */
#include "cpu/dispatch.h"
#include "cpu/fingerprint.h"
#include "cpu/records.h"

#include <string.h>

/* The slots of a batch that are not negative, and which entries of the batch they are. */
struct live {
	int64_t count;
	int64_t slots[KVC__BATCH_SLOTS];
	int64_t entries[KVC__BATCH_SLOTS];
};

/* ---- xxh3 ---- */

static void add_xxh3(const struct kvc__cpu_variant *cpu, const kvc_group *group,
        const kvc_source *source, const struct live *live, uint64_t *out)
{
	const uint8_t *rows[KVC__BATCH_SLOTS];
	uint64_t hashes[KVC__BATCH_SLOTS];

	for (int64_t i = 0; i < live->count; i++)
		rows[i] = kvc__source_slot(source, live->slots[i]);
	cpu->xxh3_rows(hashes, rows, live->count, kvc__xxh3_bytes(source, group->coverage));
	for (int64_t i = 0; i < live->count; i++)
		out[live->entries[i]] += kvc__fingerprint_share(hashes[i], source->id);
}

/* One source, whose slots lie in one piece each, and no slot is left out: heads of a saved cache. */
static int slots_are_plain(const kvc_group *group, const int64_t *slots, int64_t count)
{
	int64_t signs = 0;

	if (group->source_count != 1 || group->fingerprint != KVC_FINGERPRINT_XXH3 ||
	        group->coverage != KVC_COVERAGE_ALL || !kvc__source_together(group->sources))
		return 0;
	for (int64_t i = 0; i < count; i++)
		signs |= slots[i];
	return signs >= 0;
}

/* As add_xxh3(), with nothing between the hashes and their place. */
static void plain_xxh3(const struct kvc__cpu_variant *cpu, const kvc_source *source,
        const int64_t *slots, int64_t count, uint64_t *out)
{
	const uint8_t *rows[KVC__BATCH_SLOTS];

	for (int64_t i = 0; i < count; i++)
		rows[i] = kvc__source_slot(source, slots[i]);
	cpu->xxh3_rows(out, rows, count, kvc__xxh3_bytes(source, KVC_COVERAGE_ALL));
	for (int64_t i = 0; i < count; i++)
		out[i] = kvc__fingerprint_share(out[i], source->id);
}

/* Slots whose bytes are asked for ahead of the one that is gathered, and how many lines of each. */
#define GATHER_AHEAD 8
#define GATHER_LINES 4

/* Ask for the heads of a slot: for the first few, since each may be far from the others. */
KVC__INLINED static inline void ask_for_heads(const kvc_source *source, int64_t slot)
{
	const uint8_t *bytes = kvc__source_slot(source, slot);
	int64_t count = source->head_count < GATHER_LINES ? source->head_count : GATHER_LINES;

	for (int64_t head = 0; head < count; head++)
		__builtin_prefetch(bytes + head * source->head_stride_bytes);
}

/* As add_xxh3(), of a source whose covered bytes do not lie together: at most KVC__GATHER_BYTES of each
 * slot. */
static void add_xxh3_gathered(const struct kvc__cpu_variant *cpu, const kvc_group *group,
        const kvc_source *source, const struct live *live, uint64_t *out)
{
	uint8_t gathered[KVC__GATHER_BYTES];
	const uint8_t *rows[KVC__BATCH_SLOTS];
	uint64_t hashes[KVC__BATCH_SLOTS];
	int64_t bytes = kvc__xxh3_bytes(source, group->coverage);
	int64_t fit = bytes > 0 ? KVC__GATHER_BYTES / bytes : KVC__BATCH_SLOTS, count;

	for (int64_t first = 0; first < live->count; first += count) {
		count = live->count - first < fit ? live->count - first : fit;
		for (int64_t i = 0; i < count; i++) {
			if (first + i + GATHER_AHEAD < live->count)
				ask_for_heads(source, live->slots[first + i + GATHER_AHEAD]);
			rows[i] = gathered + i * bytes;
			kvc__xxh3_gather(source, live->slots[first + i], group->coverage,
			        gathered + i * bytes);
		}
		cpu->xxh3_rows(hashes, rows, count, bytes);
		for (int64_t i = 0; i < count; i++)
			out[live->entries[first + i]] +=
			        kvc__fingerprint_share(hashes[i], source->id);
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
        const struct live *live, uint64_t *out)
{
	uint64_t all[KVC__FOLD_ROWS];

	for (int64_t i = 0; i < live->count; i += KVC__FOLD_ROWS) {
		int64_t left = live->count - i;
		int64_t some = left < KVC__FOLD_ROWS ? left : KVC__FOLD_ROWS;
		int64_t after = left - some < KVC__FOLD_ROWS ? left - some : KVC__FOLD_ROWS;
		splitmix_some(cpu, group, live->slots + i, some, after, all);
		for (int64_t k = 0; k < some; k++)
			out[live->entries[i + k]] = all[k];
	}
}

/* ---- all ---- */

/* Are there kernels for all sources of the group? */
static int kernels_cover(const kvc_group *group)
{
	for (int64_t i = 0; i < group->source_count; i++) {
		const kvc_source *source = &group->sources[i];
		if (group->fingerprint == KVC_FINGERPRINT_SPLITMIX) {
			if (!kvc__source_together(source))
				return 0;
		} else if (!kvc__xxh3_together(source, group->coverage) &&
		           kvc__xxh3_bytes(source, group->coverage) > KVC__GATHER_BYTES) {
			return 0;
		}
	}
	return 1;
}

void kvc__fingerprint_batch(const struct kvc__cpu_variant *cpu, const kvc_group *group,
        const int64_t *slots, int64_t count, uint64_t *out)
{
	struct live live;

	if (slots_are_plain(group, slots, count)) {
		plain_xxh3(cpu, group->sources, slots, count, out);
		return;
	}
	memset(out, 0, (size_t)count * sizeof *out);
	if (group->coverage == KVC_COVERAGE_NONE)
		return;
	if (!kernels_cover(group)) {
		for (int64_t i = 0; i < count; i++)
			if (slots[i] >= 0)
				out[i] = kvc__fingerprint_portable(group, slots[i]);
		return;
	}
	live.count = 0;
	for (int64_t i = 0; i < count; i++) {
		live.slots[live.count] = slots[i];
		live.entries[live.count] = i;
		live.count += slots[i] >= 0;
	}
	if (group->fingerprint == KVC_FINGERPRINT_SPLITMIX)
		splitmix_batch(cpu, group, &live, out);
	for (int64_t s = 0; group->fingerprint == KVC_FINGERPRINT_XXH3 && s < group->source_count;
	        s++) {
		const kvc_source *source = &group->sources[s];
		if (kvc__xxh3_together(source, group->coverage))
			add_xxh3(cpu, group, source, &live, out);
		else
			add_xxh3_gathered(cpu, group, source, &live, out);
	}
}
