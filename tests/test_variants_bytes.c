/*
 * Goal: the kernels for fingerprints, finite values and tokens give in every variant what plain C
 * and libxxhash give. Method: each row of the table that this machine can run, over all lengths and
 * alignments that a vector loop can stumble on, with buffers that end at a guard page; a row that
 * cannot run prints SKIP and its name.
 */
#include "cpu/dispatch.h"
#include "cpu/fingerprint.h"
#include "cpu/hash.h"
#include "expect.h"
#include "seeded.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#define PAGE ((size_t)4096)

/* 'bytes' random bytes right before a page that must not be touched. */
struct guarded {
	uint8_t *memory;
	size_t mapped;
	uint8_t *end;
};

static struct guarded make_guarded(size_t bytes, struct seeded *seed)
{
	struct guarded guarded;
	guarded.mapped = (bytes + PAGE - 1) / PAGE * PAGE + PAGE;
	guarded.memory = mmap(
	        NULL, guarded.mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(guarded.memory != MAP_FAILED);
	guarded.end = guarded.memory + guarded.mapped - PAGE;
	assert_int_equal(mprotect(guarded.end, PAGE, PROT_NONE), 0);
	for (uint8_t *at = guarded.memory; at < guarded.end; at++)
		*at = (uint8_t)seeded_next(seed);
	return guarded;
}

static void free_guarded(struct guarded *guarded)
{
	munmap(guarded->memory, guarded->mapped);
}

/* Call 'check' with each variant that can run here. */
static void each_variant(void (*check)(const struct kvc__cpu_variant *cpu, struct seeded *seed))
{
	struct seeded seed = seeded_start("variants_bytes");
	for (size_t i = 0; i < kvc__cpu_variant_count; i++) {
		const struct kvc__cpu_variant *cpu = &kvc__cpu_variants[i];
		if (kvc__cpu_supported(cpu))
			check(cpu, &seed);
		else
			printf("SKIP %s\n", cpu->name);
	}
}

/* ---- xxh3 ---- */

/* All rows of one length, of all alignments: the first ends where the memory does. */
static void check_xxh3_of(const struct kvc__cpu_variant *cpu, const uint8_t *end, size_t bytes)
{
	enum { ROWS = 67 }; /* more than are asked for ahead */
	const uint8_t *rows[ROWS];
	uint64_t hashes[ROWS + 1];
	int64_t count = bytes < 300 ? ROWS : 1 + (int64_t)bytes % 5;

	for (int64_t i = 0; i < count; i++)
		rows[i] = end - i - bytes;
	hashes[count] = 77;
	cpu->xxh3_rows(hashes, rows, count, (int64_t)bytes);
	for (int64_t i = 0; i < count; i++)
		if (hashes[i] != XXH3_64bits(rows[i], bytes))
			fail_msg("%s: %zu bytes, %d before the end", cpu->name, bytes, (int)i);
	assert_int_equal(hashes[count], 77);
	cpu->xxh3_rows(hashes, rows, 0, (int64_t)bytes);
}

static void check_xxh3(const struct kvc__cpu_variant *cpu, struct seeded *seed)
{
	struct guarded rows = make_guarded(20100, seed);
	for (size_t bytes = 0; bytes <= 20000; bytes += bytes < 2200 ? 1 : 173)
		check_xxh3_of(cpu, rows.end, bytes);
	free_guarded(&rows);
}

static void xxh3_is_that_of_the_library(void **state)
{
	(void)state;
	each_variant(check_xxh3);
}

/* ---- splitmix ---- */

static void check_splitmix(const struct kvc__cpu_variant *cpu, struct seeded *seed)
{
	struct guarded memory = make_guarded(8192, seed);
	for (int64_t words = 0; words <= 130; words++) {
		const uint8_t *rows[KVC__FOLD_ROWS];
		uint64_t folds[KVC__FOLD_ROWS], wanted[KVC__FOLD_ROWS];
		for (int i = 0; i < KVC__FOLD_ROWS; i++) {
			/* Any alignment; one row ends where the memory does. */
			size_t before = i == 5 ? 0 : seeded_next(seed) % (8192 - 1040);
			rows[i] = memory.end - before - 8 * words;
			folds[i] = wanted[i] = seeded_next(seed);
			for (int64_t at = 0; at < words; at++) {
				uint64_t word = 0;
				for (int b = 7; b >= 0; b--)
					word = word << 8 | rows[i][8 * at + b];
				wanted[i] = kvc__splitmix64(wanted[i] ^ word);
			}
		}
		cpu->splitmix_fold(folds, rows, rows, words);
		if (memcmp(folds, wanted, sizeof folds) != 0)
			fail_msg("%s: %d words", cpu->name, (int)words);
	}
	free_guarded(&memory);
}

static void splitmix_folds_every_row_as_plain_code(void **state)
{
	(void)state;
	each_variant(check_splitmix);
}

/* ---- NaN and infinity ---- */

static const struct kvc__finite_masks bf16_masks = { 0x7F807F807F807F80u, 0x0080008000800080u,
	0x8000800080008000u };

static void check_finite(const struct kvc__cpu_variant *cpu, struct seeded *seed)
{
	struct guarded memory = make_guarded(1024, seed);
	for (int64_t bytes = 8; bytes <= 1024; bytes += 8) {
		uint8_t *at = memory.end - bytes;
		for (int64_t i = 1; i < bytes; i += 2)
			at[i] &= 0xBF; /* exponents below all ones */
		if (cpu->nonfinite(at, at, bytes, &bf16_masks))
			fail_msg("%s: %d bytes, all finite", cpu->name, (int)bytes);
		for (int64_t i = 0; i<bytes; i += bytes> 200 ? 62 : 2) {
			uint8_t kept[2] = { at[i], at[i + 1] };
			at[i] = 0x80, at[i + 1] = 0x7F; /* infinity */
			if (!cpu->nonfinite(at, at, bytes, &bf16_masks))
				fail_msg("%s: infinity at %d of %d", cpu->name, (int)i, (int)bytes);
			at[i] = kept[0], at[i + 1] = kept[1];
		}
	}
	free_guarded(&memory);
}

static void one_value_that_is_not_finite_is_seen_anywhere(void **state)
{
	(void)state;
	each_variant(check_finite);
}

/* ---- tokens ---- */

static void check_tokens(const struct kvc__cpu_variant *cpu, struct seeded *seed)
{
	static const int64_t odd[] = { -1, -2, INT64_MIN, INT64_MAX, INT64_C(1) << 31,
		INT64_C(1) << 32, (INT64_C(1) << 32) - 1, -(INT64_C(1) << 31) };
	struct guarded memory = make_guarded(200 * 8, seed);
	for (int64_t count = 0; count <= 200; count++) {
		int64_t *tokens = (int64_t *)(void *)memory.end - count;
		for (int64_t i = 0; i < count; i++)
			tokens[i] = (int64_t)(seeded_next(seed) & 0x7FFFFFFF);
		if (count > 0)
			tokens[0] = INT32_MAX;
		assert_int_equal(cpu->token_excess(tokens, count, 0), 0);
		assert_int_equal(cpu->token_excess(tokens, count, 1), 0);
		for (int64_t i = 0; i < count; i += 7) {
			int64_t kept = tokens[i];
			tokens[i] = odd[seeded_next(seed) % 8];
			if (!cpu->token_excess(tokens, count, 0) ||
			        !cpu->token_excess(tokens, count, 1) != (tokens[i] == -1))
				fail_msg("%s: token %lld at %d of %d", cpu->name,
				        (long long)tokens[i], (int)i, (int)count);
			tokens[i] = kept;
		}
	}
	free_guarded(&memory);
}

static void one_bad_token_is_seen_anywhere(void **state)
{
	(void)state;
	each_variant(check_tokens);
}

static void check_narrow(const struct kvc__cpu_variant *cpu, struct seeded *seed)
{
	struct guarded in = make_guarded(300 * 8, seed), out = make_guarded(300 * 4 + 64, seed);
	for (int64_t count = 0; count <= 260; count++)
		for (int streams = 0; streams <= 1; streams++)
			for (int64_t before = 0; before < 9; before++) {
				const int64_t *from = (const int64_t *)(void *)in.end - count;
				int32_t *to = (int32_t *)(void *)out.end - before - count;
				to[-1] = 77;
				if (before > 0)
					to[count] = 78;
				cpu->narrow(to, from, count, streams);
				assert_int_equal(to[-1], 77);
				assert_true(before == 0 || to[count] == 78);
				for (int64_t i = 0; i < count; i++)
					assert_int_equal(to[i], (int32_t)(uint32_t)from[i]);
			}
	free_guarded(&in);
	free_guarded(&out);
}

static void narrowing_keeps_low_halves_and_neighbours(void **state)
{
	(void)state;
	each_variant(check_narrow);
}

/* ---- whole batches ---- */

static void check_batch(const struct kvc__cpu_variant *cpu, struct seeded *seed)
{
	enum { SLOTS = 97 };
	struct guarded pool = make_guarded(SLOTS * 500 * 2, seed);
	for (int round = 0; round < 400; round++) {
		int64_t bytes = 1 + (int64_t)(seeded_next(seed) % 500);
		int64_t count = (int64_t)(seeded_next(seed) % (KVC__BATCH_SLOTS + 1));
		int64_t slots[KVC__BATCH_SLOTS];
		uint64_t got[KVC__BATCH_SLOTS];
		kvc_source sources[2];
		kvc_group group = KVC_GROUP_INIT;
		memset(sources, 0, sizeof sources);
		for (int i = 0; i < 2; i++) {
			sources[i].base = pool.end - (i + 1) * SLOTS * bytes;
			sources[i].row_count = SLOTS, sources[i].page_size = 1;
			sources[i].row_stride_bytes = sources[i].slot_stride_bytes = bytes;
			sources[i].head_count = 1, sources[i].head_bytes = bytes;
			sources[i].head_stride_bytes = bytes, sources[i].read_bytes = bytes;
			if (round % 3 == 0 && bytes >= 8) { /* heads with gaps between them */
				sources[i].head_count = 1 + (int64_t)(seeded_next(seed) % 4);
				sources[i].head_stride_bytes = bytes / sources[i].head_count;
				sources[i].head_bytes =
				        1 + (int64_t)(seeded_next(seed) %
				                      (uint64_t)sources[i].head_stride_bytes);
				sources[i].read_bytes =
				        sources[i].head_count * sources[i].head_bytes;
			}
			sources[i].id = (uint64_t)i, sources[i].dtype = KVC_UINT8;
		}
		group.sources = sources;
		group.source_count = 1 + round % 2;
		group.fingerprint = (int32_t)(seeded_next(seed) % 2);
		group.coverage = (int32_t)(seeded_next(seed) % 3);
		for (int64_t i = 0; i < count; i++)
			slots[i] = (int64_t)(seeded_next(seed) % (SLOTS + 1)) - 1;
		kvc__fingerprint_batch(cpu, &group, slots, count, got);
		for (int64_t i = 0; i < count; i++) {
			uint64_t wanted =
			        slots[i] < 0 ? 0 : kvc__fingerprint_portable(&group, slots[i]);
			if (got[i] != wanted)
				fail_msg("%s: round %d, entry %d of %d, %d bytes", cpu->name, round,
				        (int)i, (int)count, (int)bytes);
		}
	}
	free_guarded(&pool);
}

static void a_batch_is_its_slots_one_by_one(void **state)
{
	(void)state;
	each_variant(check_batch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(xxh3_is_that_of_the_library),
		cmocka_unit_test(splitmix_folds_every_row_as_plain_code),
		cmocka_unit_test(one_value_that_is_not_finite_is_seen_anywhere),
		cmocka_unit_test(one_bad_token_is_seen_anywhere),
		cmocka_unit_test(narrowing_keeps_low_halves_and_neighbours),
		cmocka_unit_test(a_batch_is_its_slots_one_by_one),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
