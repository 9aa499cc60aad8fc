/* kvc_cuda_devices(): what it refuses, and that it either lists devices or says why there are none. */
#include "expect.h"

#include <string.h>

static void it_refuses_null(void **state)
{
	size_t count = 7;

	(void)state;
	expect_error(kvc_cuda_devices(NULL, 0, NULL, NULL), KVC_E_INVALID_ARGUMENT, "null-argument",
	        NULL, -1);
	expect_error(kvc_cuda_devices(NULL, 1, &count, NULL), KVC_E_INVALID_ARGUMENT,
	        "null-argument", NULL, -1);
	assert_int_equal(count, 7);
}

static void it_lists_devices_or_says_why_not(void **state)
{
	kvc_cuda_device device;
	size_t count = 7;
	int32_t driver = 7;

	(void)state;
	memset(&device, 0, sizeof(device));
	kvc_status status = kvc_cuda_devices(&device, 1, &count, &driver);
	if (status == KVC_OK) {
		assert_true(count >= 1 && driver >= 12000);
		assert_true(device.name[0] && device.compute_major > 0 && device.memory_bytes > 0);
		assert_true(strstr(kvc_cuda_architectures(), "sm_") != NULL);
		return;
	}
	expect_error(status, KVC_E_NO_CUDA, "cuda-unavailable", NULL, -1);
	assert_int_equal(count, 7);
	assert_int_equal(driver, 7);
	if (kvc_cuda_architectures()[0] == '\0')
		assert_string_equal(kvc_last_error()->message,
		        "no CUDA device can be used: this build of kvcanary has no CUDA");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(it_refuses_null),
		cmocka_unit_test(it_lists_devices_or_says_why_not),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
