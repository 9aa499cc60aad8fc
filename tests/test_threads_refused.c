/*
 * A machine that refuses threads. The linker sends the library's pthread_create to the one below
 * (--wrap), which lets as many through as a test says.
 */
#include "expect.h"

#include <errno.h>
#include <pthread.h>

static int create_left; /* threads that may still start */

int __real_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
int __wrap_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

int __wrap_pthread_create(
        pthread_t *out, const pthread_attr_t *attributes, void *(*run)(void *), void *argument)
{
	if (create_left == 0)
		return EAGAIN;
	create_left--;
	return __real_pthread_create(out, attributes, run, argument);
}

static void the_former_number_stays_if_threads_are_refused(void **state)
{
	(void)state;
	expect_ok(kvc_set_num_threads(1));
	create_left = 2;
	expect_error(kvc_set_num_threads(5), KVC_E_NO_MEMORY, "threads-not-started",
	        "2 of 4 worker threads could be started", -1);
	assert_int_equal(kvc_get_num_threads(), 1);
	create_left = 4;
	expect_ok(kvc_set_num_threads(5));
	assert_int_equal(kvc_get_num_threads(), 5);
	expect_ok(kvc_set_num_threads(1));
}

static void operations_work_without_any_thread(void **state)
{
	int64_t tokens[] = { 1, 2, 3 }, offsets[] = { 0, 3 }, rows[] = { 0 };
	int64_t three[] = { 3 }, two[] = { 2 }, one[] = { 1 }, table_shape[] = { 1, 4 };
	int32_t table[4] = { 0 };
	kvc_tensor token_tensor = kvc_tensor_make(tokens, KVC_INT64, 1, three);
	kvc_tensor offset_tensor = kvc_tensor_make(offsets, KVC_INT64, 1, two);
	kvc_tensor row_tensor = kvc_tensor_make(rows, KVC_INT64, 1, one);
	kvc_tensor table_tensor = kvc_tensor_make(table, KVC_INT32, 2, table_shape);
	kvc_scatter_args args = KVC_SCATTER_ARGS_INIT;

	(void)state;
	create_left = 0;
	args.flat_in = &token_tensor;
	args.offsets = &offset_tensor;
	args.req_pool_indices = &row_tensor;
	args.pool_out = &table_tensor;
	expect_ok(kvc_scatter_req_token_ids(&args, NULL));
	assert_int_equal(table[2], 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_former_number_stays_if_threads_are_refused),
		cmocka_unit_test(operations_work_without_any_thread),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
