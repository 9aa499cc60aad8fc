/*
 * Errors: what they say and where they are kept. Goal: every text comes out as documented, is cut
 * safely, and belongs to the thread that failed. Method: call the generated functions and the text
 * writer directly and compare strings.
 */
#include "base/error.h"
#include "base/tensor.h"
#include "base/text.h"

#include <float.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const char *shape_text(char *out, size_t bytes, int32_t ndim, int64_t *shape)
{
	kvc_tensor tensor = kvc_tensor_make(NULL, KVC_FLOAT32, ndim, shape);
	struct kvc__text text = kvc__text_over(out, bytes);

	kvc__text_shape(&text, &tensor);
	return out;
}

static void shapes_print_as_python_tuples(void **state)
{
	int64_t shape[] = { 4, 8, 128, INT64_MAX, INT64_MIN };
	int64_t many[100] = { 0 };
	char out[512], small[16];
	struct kvc__text text = kvc__text_over(out, sizeof(out));

	(void)state;
	assert_string_equal(shape_text(out, sizeof(out), 0, shape), "()");
	assert_string_equal(shape_text(out, sizeof(out), 1, shape), "(4,)");
	assert_string_equal(shape_text(out, sizeof(out), 3, shape), "(4, 8, 128)");
	assert_string_equal(shape_text(out, sizeof(out), 5, shape),
	        "(4, 8, 128, 9223372036854775807, -9223372036854775808)");
	assert_string_equal(shape_text(out, sizeof(out), -1, shape), "()");
	assert_string_equal(shape_text(out, sizeof(out), 3, NULL), "()");
	assert_non_null(strstr(shape_text(out, sizeof(out), 100, many), ", ...)"));
	assert_string_equal(shape_text(small, sizeof(small), 5, shape), "(4, 8, 128, ...");
	text = kvc__text_over(out, sizeof(out));
	kvc__text_shape(&text, NULL);
	assert_string_equal(out, "()");
}

static void dtypes_have_their_usual_names(void **state)
{
	static const struct {
		int code, bits, lanes;
		const char *name;
	} rows[] = {
		{ KVC_CODE_BFLOAT, 16, 1, "bfloat16" },
		{ KVC_CODE_FLOAT, 16, 1, "float16" },
		{ KVC_CODE_FLOAT, 32, 1, "float32" },
		{ KVC_CODE_FLOAT, 64, 1, "float64" },
		{ KVC_CODE_FLOAT8_E4M3FN, 8, 1, "float8_e4m3fn" },
		{ KVC_CODE_FLOAT8_E5M2, 8, 1, "float8_e5m2" },
		{ KVC_CODE_INT, 32, 1, "int32" },
		{ KVC_CODE_INT, 64, 1, "int64" },
		{ KVC_CODE_UINT, 8, 1, "uint8" },
		{ KVC_CODE_BOOL, 8, 1, "bool" },
		{ KVC_CODE_FLOAT, 32, 4, "float32x4" },
		{ 9, 4, 1, "code9_bits4" },
		{ 255, 255, 0, "code255_bits255x0" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		char out[64];
		kvc_dtype dtype = kvc_dtype_make(rows[i].code, rows[i].bits);
		struct kvc__text text = kvc__text_over(out, sizeof(out));
		dtype.lanes = (uint16_t)rows[i].lanes;
		kvc__text_dtype(&text, dtype);
		assert_string_equal(out, rows[i].name);
	}
}

static void numbers_print_the_same_in_every_locale(void **state)
{
	char out[128];
	struct kvc__text text = kvc__text_over(out, sizeof(out));

	(void)state;
	setlocale(LC_ALL, "de_DE.UTF-8"); /* where it is installed */
	kvc__text_double(&text, 0.5);
	kvc__text_literal(&text, " ");
	kvc__text_double(&text, -INFINITY);
	kvc__text_literal(&text, " ");
	kvc__text_double(&text, 1e300);
	kvc__text_literal(&text, " ");
	kvc__text_hex(&text, 0xC0FFEE);
	kvc__text_literal(&text, " ");
	kvc__text_int(&text, INT64_MIN);
	setlocale(LC_ALL, "C");
	assert_string_equal(out, "0.5 -inf 1e+300 0x0000000000c0ffee -9223372036854775808");
}

static void text_is_cut_at_the_end_of_a_character(void **state)
{
	/* Filling each capacity, with two-byte characters on odd and even offsets. */
	(void)state;
	for (size_t capacity = 4; capacity < 40; capacity++) {
		char out[64];
		struct kvc__text text;
		memset(out, 'X', sizeof(out));
		text = kvc__text_over(out, capacity);
		for (int i = 0; i < 20; i++)
			kvc__text_word(&text, "\xC3\xA9");
		assert_true(strlen(out) < capacity);
		assert_int_equal(out[capacity], 'X');
		assert_int_equal((strlen(out) - 3) % 2, 0);
		assert_string_equal(out + strlen(out) - 3, "...");
	}
}

static void foreign_text_stays_one_line(void **state)
{
	(void)state;
	assert_int_equal(kvc__fail_null_argument(7, "q\n\x1B[31mred\x7F"), KVC_E_INVALID_ARGUMENT);
	assert_string_equal(kvc_last_error()->message, "q??[31mred? is NULL");
	assert_int_equal(kvc_last_error()->where, 7);
	assert_string_equal(kvc_last_error()->slug, "null-argument");
}

static void long_arguments_are_cut(void **state)
{
	static char name[5000];

	(void)state;
	memset(name, 'n', sizeof(name) - 1);
	assert_int_equal(kvc__fail_null_argument(-1, name), KVC_E_INVALID_ARGUMENT);
	assert_int_equal(strlen(kvc_last_error()->message), sizeof(kvc_last_error()->message) - 1);
	assert_string_equal(kvc_last_error()->message + 508, "...");
}

static void an_error_may_quote_the_one_before(void **state)
{
	(void)state;
	assert_int_equal(kvc__fail_null_argument(-1, "q"), KVC_E_INVALID_ARGUMENT);
	assert_int_equal(
	        kvc__fail_null_argument(-1, kvc_last_error()->message), KVC_E_INVALID_ARGUMENT);
	assert_string_equal(kvc_last_error()->message, "q is NULL is NULL");
}

static void seeds_have_the_documented_texts(void **state)
{
	int64_t small[] = { 31, 1, 8 }, large[] = { 32, 1, 8 };
	kvc_tensor v_pool = kvc_tensor_make(NULL, KVC_BFLOAT16, 3, small);
	kvc_tensor k_pool = kvc_tensor_make(NULL, KVC_BFLOAT16, 3, large);

	(void)state;
	assert_int_equal(
	        kvc__fail_v_pool_shape_must_match_k_pool_shape(-1, &v_pool, &k_pool), KVC_E_SHAPE);
	assert_string_equal(kvc_last_error()->slug, "v-pool-shape-must-match-k-pool-shape");
	assert_string_equal(kvc_last_error()->message,
	        "v_pool shape must match k_pool shape, got (31, 1, 8) vs (32, 1, 8)");
	assert_int_equal(kvc__fail_scatter_pool_out_must_be_int32(-1, KVC_INT64), KVC_E_DTYPE);
	assert_string_equal(kvc_last_error()->slug, "scatter-pool-out-must-be-int32");
	assert_string_equal(kvc_last_error()->message,
	        "kv-canary: scatter_req_token_ids pool_out must be int32, got int64");
}

static void *in_another_thread(void *out)
{
	const kvc_error *error = kvc_last_error();

	*(int *)out = error->status == KVC_OK && strcmp(error->slug, "ok") == 0 &&
	              error->where == -1 && error->message[0] == '\0' && error->hint[0] == '\0';
	(void)kvc__fail_no_cuda(3, "k_pool", "it is on the moon");
	return NULL;
}

static void each_thread_has_its_own_error(void **state)
{
	pthread_t thread;
	int starts_clean = 0;

	(void)state;
	assert_int_equal(kvc__fail_null_argument(-1, "q"), KVC_E_INVALID_ARGUMENT);
	assert_int_equal(pthread_create(&thread, NULL, in_another_thread, &starts_clean), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_true(starts_clean);
	assert_string_equal(kvc_last_error()->message, "q is NULL");
}

static void every_status_has_its_name(void **state)
{
	(void)state;
	assert_string_equal(kvc_status_name(KVC_OK), "KVC_OK");
	assert_string_equal(kvc_status_name(KVC_E_SHAPE), "KVC_E_SHAPE");
	assert_string_equal(kvc_status_name(KVC_E_STATE), "KVC_E_STATE");
	assert_string_equal(kvc_status_name((kvc_status)7), "KVC_E_?");
}

static void the_version_is_that_of_the_header(void **state)
{
	char expected[32];

	(void)state;
	snprintf(expected, sizeof(expected), "%d.%d.%d", KVC_VERSION_MAJOR, KVC_VERSION_MINOR,
	        KVC_VERSION_PATCH);
	assert_string_equal(kvc_version(), expected);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(shapes_print_as_python_tuples),
		cmocka_unit_test(dtypes_have_their_usual_names),
		cmocka_unit_test(numbers_print_the_same_in_every_locale),
		cmocka_unit_test(text_is_cut_at_the_end_of_a_character),
		cmocka_unit_test(foreign_text_stays_one_line),
		cmocka_unit_test(long_arguments_are_cut),
		cmocka_unit_test(an_error_may_quote_the_one_before),
		cmocka_unit_test(seeds_have_the_documented_texts),
		cmocka_unit_test(each_thread_has_its_own_error),
		cmocka_unit_test(every_status_has_its_name),
		cmocka_unit_test(the_version_is_that_of_the_header),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
