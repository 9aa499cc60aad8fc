/* report.jsonl: the text of a violation is SGLang's, byte for byte, and its first line reads back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "kvcanary.h"
#include "sglang_vectors.h"

#define KNOWN_TO_SGLANG 63

static int reads_back(const char *text, const kvc_violation *v)
{
	kvc_violation got;

	/* A tag that SGLang does not name is printed as a number, so it survives too. */
	return kvc_violation_parse(&got, text) == 1 && got.launch_tag == v->launch_tag &&
	       got.slot == v->slot && got.position == v->position &&
	       got.stored_token == v->stored_token && got.expected_token == v->expected_token &&
	       got.stored_chain == v->stored_chain && got.expected_aux == v->expected_aux &&
	       got.reasons == (v->reasons & KNOWN_TO_SGLANG);
}

static int report_matches(struct vectors *v)
{
	const char *want = vectors_text(v->item, "text");
	kvc_violation violation = { 0 };
	kvc_violation_totals totals = {
		.violations = vectors_int(v->item, "total_violations"),
		.ring_overflow = vectors_bool(v->item, "ring_overflow"),
		.step = vectors_int(v->item, "step_when_pumped"),
	};
	char text[4096];

	memcpy(&violation, vectors_int64s(v, vectors_field(v->item, "row"), NULL),
	        8 * sizeof(int64_t));
	size_t count =
	        kvc_violation_text(text, sizeof(text), &violation, KVC_RULES_SGLANG, &totals);
	return count == strlen(want) && strcmp(text, want) == 0 && reads_back(text, &violation);
}

static void every_report_equals_sglangs(void **state)
{
	struct vectors v;

	(void)state;
	vectors_open(&v, "report.jsonl");
	while (vectors_next(&v))
		vectors_passed(&v, report_matches(&v));
	assert_true(vectors_close(&v));
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(every_report_equals_sglangs) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
