/*
 * Names and texts of violations: what is printed reads back, into any buffer, and hostile lines do
 * no harm. SGLang's texts are test_vectors_report.c's.
 */
#include "expect.h"

#include <stdlib.h>
#include <string.h>

#include "seeded.h"

static const int64_t known_tags[] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 32, 33, 34 };
#define TAG_COUNT ((int64_t)(sizeof(known_tags) / sizeof(known_tags[0])))

static kvc_violation sample(void)
{
	kvc_violation v = { KVC_TAG_STEP_READ, 5, 1, 99, 22, 0x1111111111111111u,
		0x2222222222222222u, KVC_REASON_VERIFY_TOKEN | KVC_REASON_VERIFY_REAL_KV_HASH, 1,
		0x3333333333333333u, 0x4444444444444444u, 2, 7, 3, 6, 12 };

	return v;
}

static void names_are_stable(void **state)
{
	static const char *const reasons[] = { "verify_chain_hash", "verify_position",
		"verify_real_kv_hash", "write_token", "write_position", "verify_token",
		"never_stamped", "nonfinite", "slot_range", "chain_end", "slot_aliased" };

	(void)state;
	for (int bit = 0; bit < KVC_REASON_COUNT; bit++)
		assert_string_equal(kvc_reason_name(INT64_C(1) << bit), reasons[bit]);
	assert_null(kvc_reason_name(0));
	assert_null(kvc_reason_name(3));
	assert_null(kvc_reason_name(2048));
	assert_string_equal(kvc_tag_name(KVC_TAG_HEAD_K_FULL), "HEAD_K_FULL");
	assert_string_equal(kvc_tag_name(KVC_TAG_SWEEP_V_SWA), "SWEEP_V_SWA");
	assert_string_equal(kvc_tag_name(KVC_TAG_STEP_READ), "STEP_READ");
	assert_string_equal(kvc_tag_name(KVC_TAG_STEP_WRITE), "STEP_WRITE");
	assert_string_equal(kvc_tag_name(KVC_TAG_SWEEP), "SWEEP");
	assert_null(kvc_tag_name(12));
	assert_null(kvc_tag_name(-1));
}

static void the_slug_is_that_of_the_lowest_cause(void **state)
{
	static const struct {
		int64_t reasons;
		const char *slug;
	} cases[] = {
		{ 2047, "violation-slot-range" },
		{ 2047 - 256, "violation-never-stamped" },
		{ 2047 - 256 - 64, "violation-nonfinite" },
		{ 1024 + 63, "violation-slot-aliased" },
		{ 8 + 16, "violation-write-token" },
		{ 63 - 8, "violation-verify-token" },
		{ 1 + 2 + 4, "violation-verify-position" },
		{ 1 + 4 + 16, "violation-write-position" },
		{ 1 + 4, "violation-verify-chain-hash" },
		{ 4 + 512, "violation-chain-end" },
		{ 4, "violation-verify-real-kv-hash" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		assert_string_equal(kvc_reason_slug(cases[i].reasons), cases[i].slug);
	for (int bit = 0; bit < KVC_REASON_COUNT; bit++)
		assert_non_null(kvc_catalog_find(kvc_reason_slug(INT64_C(1) << bit)));
	assert_null(kvc_reason_slug(0));
	assert_null(kvc_reason_slug(4096));
}

static void our_text_says_who_what_and_why(void **state)
{
	kvc_violation v = sample();
	kvc_violation_totals totals = { 12, 1, 40 };
	char text[2048];

	(void)state;
	kvc_violation_text(text, sizeof(text), &v, KVC_RULES_OWN, &totals);
	const char *hint = kvc_catalog_find("violation-verify-token")->hint;
	char want[4096];
	snprintf(want, sizeof(want),
	        "kv_canary violation: launch_tag=STEP_READ "
	        "fail_reason=verify_real_kv_hash+verify_token slot_idx=5 position=1 "
	        "stored_token=99 expected_token=22 stored_chain_hash=0x1111111111111111 "
	        "expected_aux=0x2222222222222222\n"
	        "  stored:   token 99 at position 1, bytes 0x3333333333333333\n"
	        "  expected: token 22 at position 1, bytes 0x4444444444444444\n"
	        "  request:  row 2 of the request table\n"
	        "  stamped:  last by request 7 in step 3\n"
	        "  source:   6\n"
	        "  advice:   %s\n"
	        "  explain:  kvcanary explain violation-verify-token\n"
	        "  so far:   12 violations by step 40, some of them dropped",
	        hint);
	assert_string_equal(text, want);
	v.owner_request = v.request_row = v.source_id = v.expected_token = -1;
	v.reasons = KVC_REASON_NEVER_STAMPED;
	kvc_violation_text(text, sizeof(text), &v, KVC_RULES_OWN, NULL);
	assert_non_null(strstr(text, "\n  expected: any token at position 1\n"));
	assert_non_null(strstr(text, "\n  request:  not known\n"));
	assert_non_null(strstr(text, "\n  stamped:  by whom is not known\n"));
	assert_null(strstr(text, "source:"));
	assert_null(strstr(text, "so far:"));
}

static void sglangs_text_knows_sglangs_names_only(void **state)
{
	kvc_violation v = sample();
	char text[2048];

	(void)state;
	v.reasons = KVC_REASON_SLOT_RANGE;
	size_t count = kvc_violation_text(text, sizeof(text), &v, KVC_RULES_SGLANG, NULL);
	assert_int_equal(count, strlen(text));
	assert_non_null(strstr(text, "launch_tag=unknown(32) fail_reason=none "));
	assert_null(strstr(text, "total_violations"));
}

static void every_buffer_holds_what_fits(void **state)
{
	kvc_violation v = sample();
	char whole[2048];
	size_t count = kvc_violation_text(whole, sizeof(whole), &v, KVC_RULES_OWN, NULL);

	(void)state;
	assert_int_equal(count, strlen(whole));
	assert_int_equal(kvc_violation_text(NULL, 0, &v, KVC_RULES_OWN, NULL), count);
	for (size_t room = 1; room <= count + 2; room++) {
		char *part = malloc(room); /* exactly, for the sanitizer */
		memset(part, 'x', room);
		assert_int_equal(kvc_violation_text(part, room, &v, KVC_RULES_OWN, NULL), count);
		size_t kept = room - 1 < count ? room - 1 : count;
		assert_int_equal(strlen(part), kept);
		assert_memory_equal(part, whole, kept);
		free(part);
	}
}

static void the_first_line_reads_back(void **state)
{
	struct seeded random = seeded_start(__func__);

	(void)state;
	for (int i = 0; i < 20000; i++) {
		kvc_violation v = { 0 }, got;
		char text[2048] = "2026-07-03 12:00:00 ERROR kv_canary violation: worker 3: ";
		size_t prefix = seeded_one_in(&random, 2) ? strlen(text) : 0;
		v.launch_tag = seeded_one_in(&random, 4)
		                       ? (int64_t)seeded_next(&random)
		                       : known_tags[seeded_in(&random, 0, TAG_COUNT - 1)];
		v.slot = (int64_t)seeded_next(&random) >> seeded_in(&random, 0, 63);
		v.position = (int64_t)seeded_next(&random) >> seeded_in(&random, 0, 63);
		v.stored_token = seeded_one_in(&random, 9) ? INT64_MIN : 5;
		v.expected_token = seeded_one_in(&random, 9) ? INT64_MAX : -1;
		v.stored_chain = seeded_next(&random);
		v.expected_aux = seeded_one_in(&random, 5) ? 0 : seeded_next(&random);
		v.reasons = seeded_in(&random, 0, 2047);
		v.expected_position = v.request_row = v.owner_request = -1;
		v.owner_step = v.source_id = v.sequence = -1;
		kvc_violation_text(text + prefix, sizeof(text) - prefix, &v, KVC_RULES_OWN, NULL);
		assert_int_equal(kvc_violation_parse(&got, text), 1);
		assert_memory_equal(&got, &v, sizeof(v));
	}
}

static void lines_that_are_none_leave_the_output_alone(void **state)
{
	static const char *const lines[] = {
		"",
		"kv_canary violation",
		"kv_canary violation: ",
		"kv_canary violation: launch_tag=HEAD_K_FULL",
		"kv_canary violation: launch_tag=HEAD_K_FUL fail_reason=none slot_idx=1 position=2 "
		"stored_token=3 expected_token=4 stored_chain_hash=0x1111111111111111 "
		"expected_aux=0x2222222222222222",
		"kv_canary violation: launch_tag=HEAD_K_FULL fail_reason=verify_tokens slot_idx=1 "
		"position=2 stored_token=3 expected_token=4 stored_chain_hash=0x1111111111111111 "
		"expected_aux=0x2222222222222222",
		"kv_canary violation: launch_tag=HEAD_K_FULL fail_reason=none slot_idx=1 "
		"position=2 "
		"stored_token=9223372036854775808 expected_token=4 "
		"stored_chain_hash=0x1111111111111111 expected_aux=0x2222222222222222",
		"kv_canary violation: launch_tag=HEAD_K_FULL fail_reason=none slot_idx=1 "
		"position=2 "
		"stored_token=3 expected_token=4 stored_chain_hash=0x111111111111111 "
		"expected_aux=0x2222222222222222",
		"kv_canary violation: launch_tag=HEAD_K_FULL fail_reason=none slot_idx=1 "
		"position=2 "
		"stored_token=3 expected_token=4 stored_chain_hash=0x1111111111111111 "
		"expected_aux=0x22222222222222223",
		"kv_canary violation: launch_tag=unknown( fail_reason=none",
	};
	kvc_violation v = sample(), want = sample();

	(void)state;
	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
		assert_int_equal(kvc_violation_parse(&v, lines[i]), 0);
		assert_memory_equal(&v, &want, sizeof(v));
	}
}

/* Cut at every byte and damaged at random, in an allocation of exactly its length. */
static void hostile_lines_do_no_harm(void **state)
{
	struct seeded random = seeded_start(__func__);
	kvc_violation v = sample(), got;
	char text[2048];
	size_t count = kvc_violation_text(text, sizeof(text), &v, KVC_RULES_OWN, NULL);

	(void)state;
	for (int i = 0; i < 20000; i++) {
		size_t length = (size_t)seeded_in(&random, 0, (int64_t)count);
		char *line = malloc(length + 1);
		memcpy(line, text, length);
		line[length] = '\0';
		for (int64_t n = seeded_in(&random, 0, 3); n > 0 && length > 0; n--)
			line[seeded_in(&random, 0, (int64_t)length - 1)] =
			        (char)seeded_in(&random, 1, 255);
		(void)kvc_violation_parse(&got, line);
		free(line);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names_are_stable),
		cmocka_unit_test(the_slug_is_that_of_the_lowest_cause),
		cmocka_unit_test(our_text_says_who_what_and_why),
		cmocka_unit_test(sglangs_text_knows_sglangs_names_only),
		cmocka_unit_test(every_buffer_holds_what_fits),
		cmocka_unit_test(the_first_line_reads_back),
		cmocka_unit_test(lines_that_are_none_leave_the_output_alone),
		cmocka_unit_test(hostile_lines_do_no_harm),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
