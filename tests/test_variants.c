/*
 * Goal: every CPU variant that this machine can run stores the bytes of the portable one, and the
 * choice among them is what the header says. Method: the table row by row; a row that cannot run
 * here prints SKIP and its name.
 *
 * test_variants --runs NAME: exit 0 if this machine runs that variant, else 77.
 */
#include "cpu/dispatch.h"
#include "expect.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the choice ---- */

static void the_last_row_is_portable_and_runs_anywhere(void **state)
{
	(void)state;
	kvc_cpu_variant last = kvc_cpu_variant_at(kvc_cpu_variant_count() - 1);
	assert_string_equal(last.name, "portable");
	assert_true(last.supported);
	assert_null(kvc_cpu_variant_at(kvc_cpu_variant_count()).name);
}

static void exactly_one_supported_row_is_chosen(void **state)
{
	(void)state;
	size_t chosen;
	int count = 0;
	kvc__cpu_force(NULL);
	expect_ok(kvc_cpu_chosen(&chosen));
	for (size_t i = 0; i < kvc_cpu_variant_count(); i++) {
		kvc_cpu_variant variant = kvc_cpu_variant_at(i);
		count += variant.chosen;
		assert_true(variant.supported || !variant.chosen);
		if (!variant.supported)
			printf("SKIP %s\n", variant.name);
	}
	assert_int_equal(count, 1);
	assert_true(kvc_cpu_variant_at(chosen).chosen);
	expect_error(kvc_cpu_chosen(NULL), KVC_E_INVALID_ARGUMENT, "null-argument", NULL, -1);
}

static void every_operation_has_a_kernel_in_every_row(void **state)
{
	(void)state;
	size_t operation = 0;
	for (; kvc_cpu_operation_at(operation); operation++)
		for (size_t i = 0; i < kvc_cpu_variant_count(); i++)
			assert_non_null(kvc_cpu_kernel_at(i, operation));
	assert_true(operation > 0);
	assert_string_equal(kvc_cpu_operation_at(0), "rope_pool_fused");
	assert_string_equal(kvc_cpu_kernel_at(kvc_cpu_variant_count() - 1, 0), "portable");
	assert_null(kvc_cpu_kernel_at(0, operation));
	assert_null(kvc_cpu_kernel_at(kvc_cpu_variant_count(), 0));
}

static void the_environment_forces_a_variant_or_fails(void **state)
{
	(void)state;
	size_t chosen;
	const char *before = getenv("KVC_CPU");
	char kept[32] = "";
	if (before)
		snprintf(kept, sizeof kept, "%s", before);
	for (size_t i = 0; i < kvc_cpu_variant_count(); i++) {
		kvc_cpu_variant variant = kvc_cpu_variant_at(i);
		setenv("KVC_CPU", variant.name, 1);
		kvc__cpu_force(NULL);
		chosen = 99;
		if (variant.supported) {
			expect_ok(kvc_cpu_chosen(&chosen));
			assert_int_equal(chosen, i);
		} else {
			expect_error(kvc_cpu_chosen(&chosen), KVC_E_CONFIG,
			        "cpu-variant-unavailable", NULL, -1);
			assert_int_equal(chosen, 99);
		}
	}
	setenv("KVC_CPU", "abacus", 1);
	kvc__cpu_force(NULL);
	expect_error(kvc_cpu_chosen(&chosen), KVC_E_CONFIG, "cpu-variant-unavailable",
	        "KVC_CPU asks for the CPU variant 'abacus', which this machine cannot run", -1);
	assert_int_equal(kvc_cpu_variant_at(kvc_cpu_variant_count() - 1).chosen, 0);
	kvc_rope_pool_args args = KVC_ROPE_POOL_ARGS_INIT;
	expect_error(kvc_rope_pool_fused(&args, NULL), KVC_E_CONFIG, "cpu-variant-unavailable",
	        NULL, -1);
	setenv("KVC_CPU", "", 1); /* as if not set */
	expect_ok(kvc_cpu_chosen(&chosen));
	setenv("KVC_CPU", kept, 1);
	kvc__cpu_force(NULL);
}

/* For CTest: may the whole suite run under this variant here? */
static int runs(const char *name)
{
	for (size_t i = 0; i < kvc_cpu_variant_count(); i++)
		if (strcmp(kvc_cpu_variant_at(i).name, name) == 0 &&
		        kvc_cpu_variant_at(i).supported)
			return 0;
	printf("SKIP %s\n", name);
	return 77;
}

int main(int argc, char **argv)
{
	if (argc == 3 && strcmp(argv[1], "--runs") == 0)
		return runs(argv[2]);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_last_row_is_portable_and_runs_anywhere),
		cmocka_unit_test(exactly_one_supported_row_is_chosen),
		cmocka_unit_test(every_operation_has_a_kernel_in_every_row),
		cmocka_unit_test(the_environment_forces_a_variant_or_fails),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
