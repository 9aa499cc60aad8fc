/*
 * The catalogue and its matcher. Goal: every entry is found by slug and by its own message with
 * any values in it, and no text whatever makes the matcher read outside it or take long. Method:
 * each template is filled with sample values and matched; hostile texts live in exact allocations,
 * so that the sanitizers see a byte too many.
 */
#include "catalog/catalog.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define VALUES_MAX 16

static const char *sample(char type)
{
	switch (type) {
	case 'd':
		return "-42";
	case 'g':
		return "1e+300";
	case 'x':
		return "0x00000000deadbeef";
	case 'h':
		return "(4, 8, 128)";
	case 't':
		return "float8_e4m3fn";
	default:
		return "k_pool";
	}
}

/* The template with a sample for each placeholder. */
static void render(char *out, size_t bytes, const struct kvc__catalog_row *row)
{
	const char *at = row->entry.message, *type = row->types;
	size_t used = 0;

	while (*at && used + 1 < bytes) {
		if (*at != '{') {
			out[used++] = *at++;
			continue;
		}
		used += (size_t)snprintf(out + used, bytes - used, "%s", sample(*type++));
		at = strchr(at, '}') + 1;
	}
	out[used] = '\0';
}

static void assert_matches(const char *text, const struct kvc__catalog_row *row)
{
	size_t starts[VALUES_MAX], lengths[VALUES_MAX], count = 99;
	const kvc_catalog_entry *found =
	        kvc_catalog_match(text, starts, lengths, VALUES_MAX, &count);

	if (!found || found != &row->entry)
		fail_msg("'%s' is taken for %s, not for %s", text, found ? found->slug : "nothing",
		        row->entry.slug);
	assert_int_equal(count, strlen(row->types));
	for (size_t i = 0; i < count && i < VALUES_MAX; i++) {
		const char *value = sample(row->types[i]);
		if (lengths[i] != strlen(value) || memcmp(text + starts[i], value, lengths[i]) != 0)
			fail_msg("'%s': value %zu is '%.*s', not '%s'", text, i, (int)lengths[i],
			        text + starts[i], value);
	}
}

static void entries_are_sorted_and_found(void **state)
{
	(void)state;
	assert_true(kvc_catalog_count() > 10);
	for (size_t i = 0; i < kvc_catalog_count(); i++) {
		const kvc_catalog_entry *entry = kvc_catalog_at(i);
		assert_ptr_equal(kvc_catalog_find(entry->slug), entry);
		if (i > 0)
			assert_true(strcmp(kvc_catalog_at(i - 1)->slug, entry->slug) < 0);
	}
	assert_null(kvc_catalog_at(kvc_catalog_count()));
	assert_null(kvc_catalog_at(SIZE_MAX));
	assert_null(kvc_catalog_find(""));
	assert_null(kvc_catalog_find("zzz"));
	assert_null(kvc_catalog_find("null-argumen"));
	assert_null(kvc_catalog_find("null-argument "));
}

static void every_message_is_recognised_with_its_values(void **state)
{
	static const char *const around[][2] = { { "", "" }, { "ValueError: ", "" },
		{ "2026-01-02 03:04:05 E ", "\n" }, { "first line\n\n", "\r\nlast line" } };
	char message[1024], text[1200];

	(void)state;
	for (size_t i = 0; i < kvc__catalog_row_count; i++) {
		const struct kvc__catalog_row *row = &kvc__catalog_rows[i];
		render(message, sizeof(message), row);
		for (size_t a = 0; a < sizeof(around) / sizeof(around[0]); a++) {
			snprintf(text, sizeof(text), "%s%s%s", around[a][0], message, around[a][1]);
			assert_matches(text, row);
		}
		snprintf(text, sizeof(text), "kvcanary: %s [%s]", message, row->entry.slug);
		assert_matches(text, row);
	}
}

static void values_are_those_of_the_line(void **state)
{
	const char *text = "ValueError: v_pool shape must match k_pool shape, got (31, 1, 8) vs "
	                   "torch.Size([32, 1, 8]), see above";
	size_t starts[1], lengths[1], count;
	const kvc_catalog_entry *entry = kvc_catalog_match(text, starts, lengths, 1, &count);

	(void)state;
	assert_non_null(entry);
	assert_string_equal(entry->slug, "v-pool-shape-must-match-k-pool-shape");
	assert_int_equal(count, 2); /* the second one found and, for want of room, not stored */
	assert_memory_equal(text + starts[0], "(31, 1, 8)", lengths[0]);
	assert_ptr_equal(kvc_catalog_match(text, NULL, NULL, 9, NULL), entry);
	assert_ptr_equal(kvc_catalog_match(text, NULL, lengths, 1, NULL), entry);
}

static void a_message_does_not_go_over_two_lines(void **state)
{
	(void)state;
	assert_null(kvc_catalog_match(
	        "v_pool shape must match k_pool shape, got (1,)\n vs (2,)", NULL, NULL, 0, NULL));
	assert_null(kvc_catalog_match(
	        "v_pool shape must match k_pool shape, got (1,) vs ", NULL, NULL, 0, NULL));
}

/* Matches a copy that ends where its allocation does; returns the seconds. */
static double match_exact(const char *bytes, size_t count)
{
	char *text = malloc(count + 1);
	size_t starts[VALUES_MAX], lengths[VALUES_MAX], found = 0;
	clock_t begin = clock();
	double seconds;

	assert_non_null(text);
	memcpy(text, bytes, count);
	text[count] = '\0';
	if (kvc_catalog_match(text, starts, lengths, VALUES_MAX, &found))
		for (size_t i = 0; i < found && i < VALUES_MAX; i++)
			assert_true(lengths[i] > 0 && starts[i] + lengths[i] <= count);
	seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
	free(text);
	return seconds;
}

static void repeat(char *out, size_t bytes, const char *piece)
{
	size_t length = strlen(piece);

	for (size_t i = 0; i < bytes; i++)
		out[i] = piece[i % length];
}

static void hostile_text_costs_one_pass(void **state)
{
	static const char *const pieces[] = { "a", "\n", "(", ")", "[", "is NUL", " ", "{", "}",
		"v_pool shape must match k_pool shape, got ", "\xC3",
		"kv_canary violation: ", "launch_tag= fail_reason=", "got (", " is NULL" };
#ifdef KVC_SANITIZED
	const size_t bytes =
	        1 << 17; /* ThreadSanitizer makes each step some hundred times slower */
#else
	const size_t bytes = 1 << 20;
#endif
	char *text = malloc(bytes);

	(void)state;
	assert_non_null(text);
	for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++) {
		double seconds;
		repeat(text, bytes, pieces[i]);
		seconds = match_exact(text, bytes);
		/* 0.1 s here; a matcher that backtracks would take hours. */
		if (seconds > 20)
			fail_msg("'%s' repeated takes %g s", pieces[i], seconds);
	}
	free(text);
}

static void damaged_messages_are_safe(void **state)
{
	/* Every message cut at every length, and with one byte changed, from a fixed seed. */
	uint64_t random = 1;
	char message[1024];

	(void)state;
	for (size_t i = 0; i < kvc__catalog_row_count; i++) {
		size_t length;
		render(message, sizeof(message), &kvc__catalog_rows[i]);
		length = strlen(message);
		for (size_t cut = 0; cut <= length; cut++)
			match_exact(message, cut);
		for (int change = 0; change < 50; change++) {
			size_t at;
			char was;
			random = random * 6364136223846793005u + 1442695040888963407u;
			at = (size_t)(random >> 33) % length;
			was = message[at];
			message[at] = (char)(random >> 24);
			match_exact(message, strlen(message));
			message[at] = was;
		}
	}
}

static void records_have_the_fields_of_the_public_ones(void **state)
{
	static const char *const fields[] = { "id", "repo", "slug", "errorCode", "errorMessage",
		"messagePattern", "errorType", "errorClass", "httpStatus", "severity", "filePath",
		"lineNumber", "sourceCode", "sourceCodeStart", "sourceCodeEnd", "githubUrl",
		"documentation", "triggerScenarios", "commonSituations", "solutions", "exampleFix",
		"handlingStrategy", "validationCode", "typeGuard", "tryCatchPattern",
		"preventionTips", "tags", "backgroundTag", "analyzedSha", "analyzedAt",
		"schemaVersion" };
	const size_t field_count = sizeof(fields) / sizeof(fields[0]);

	(void)state;
	for (size_t i = 0; i < kvc_catalog_count(); i++) {
		const kvc_catalog_entry *entry = kvc_catalog_at(i);
		json_t *root = json_loads(entry->record_json, JSON_REJECT_DUPLICATES, NULL);
		json_t *record = json_object_get(root, "record");
		assert_non_null(record);
		assert_int_equal(json_object_size(record), field_count);
		for (size_t f = 0; f < field_count; f++)
			assert_non_null(json_object_get(record, fields[f]));
		assert_string_equal(
		        json_string_value(json_object_get(record, "slug")), entry->slug);
		assert_string_equal(
		        json_string_value(json_object_get(root, "datasetVersion")), kvc_version());
		json_decref(root);
	}
}

static void every_reason_has_an_entry(void **state)
{
	static const char *const slugs[] = { "violation-verify-chain-hash",
		"violation-verify-position", "violation-verify-real-kv-hash",
		"violation-write-token", "violation-write-position", "violation-verify-token",
		"violation-never-stamped", "violation-nonfinite", "violation-slot-range",
		"violation-chain-end", "violation-slot-aliased" };

	(void)state;
	assert_int_equal(sizeof(slugs) / sizeof(slugs[0]), KVC_REASON_COUNT);
	for (size_t i = 0; i < KVC_REASON_COUNT; i++) {
		const kvc_catalog_entry *entry = kvc_catalog_find(slugs[i]);
		assert_non_null(entry);
		assert_string_equal(entry->kind, "violation");
		assert_int_equal(entry->status, KVC_OK);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(entries_are_sorted_and_found),
		cmocka_unit_test(every_message_is_recognised_with_its_values),
		cmocka_unit_test(values_are_those_of_the_line),
		cmocka_unit_test(a_message_does_not_go_over_two_lines),
		cmocka_unit_test(hostile_text_costs_one_pass),
		cmocka_unit_test(damaged_messages_are_safe),
		cmocka_unit_test(records_have_the_fields_of_the_public_ones),
		cmocka_unit_test(every_reason_has_an_entry),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
