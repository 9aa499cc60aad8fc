/* What the build has kernels for, and which devices the driver finds. */
#include "cuda/cuda.h"

#include <string.h>

#if defined(KVC_WITH_CUDA)

#include "cuda/driver.h"

/* Compute capabilities with machine code, times ten, ascending; the newest is there as PTX too. */
static const int architectures[] = { KVC_CUDA_CAPABILITIES };
#define ARCHITECTURE_COUNT (sizeof(architectures) / sizeof(architectures[0]))

int kvc__cuda_newest(void)
{
	return architectures[ARCHITECTURE_COUNT - 1];
}

const char *kvc_cuda_architectures(void)
{
	return KVC_CUDA_ARCHITECTURE_NAMES;
}

/* Machine code runs on later minors of its major; PTX on everything from its own on. */
static int has_kernels(int major, int minor)
{
	int capability = 10 * major + minor;

	for (size_t i = 0; i < ARCHITECTURE_COUNT; i++)
		if (architectures[i] / 10 == major && architectures[i] <= capability)
			return 1;
	return architectures[ARCHITECTURE_COUNT - 1] <= capability;
}

static kvc_status device_number(kvc_cuda_device *out, const struct kvc__driver *driver, int ordinal)
{
	const struct {
		CUdevice_attribute attribute;
		int32_t *value;
	} numbers[] = {
		{ CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &out->compute_major },
		{ CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &out->compute_minor },
		{ CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &out->multiprocessors },
	};
	CUdevice device = 0;
	size_t bytes = 0;

	memset(out, 0, sizeof(*out));
	KVC__TRY(kvc__driver_check(driver->device_get(&device, ordinal), "device"));
	KVC__TRY(kvc__driver_check(
	        driver->device_name(out->name, sizeof(out->name), device), "device name"));
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		KVC__TRY(kvc__driver_check(
		        driver->device_attribute(numbers[i].value, numbers[i].attribute, device),
		        "device attribute"));
	KVC__TRY(kvc__driver_check(driver->device_memory(&bytes, device), "device memory"));
	out->memory_bytes = (int64_t)bytes;
	out->supported = has_kernels(out->compute_major, out->compute_minor);
	return KVC_OK;
}

static kvc_status list_devices(
        kvc_cuda_device *out, size_t capacity, size_t *count_out, int32_t *driver_out)
{
	const char *reason;
	const struct kvc__driver *driver = kvc__driver(&reason);
	int count = 0, version = 0;

	if (!driver)
		return kvc__fail_cuda_unavailable(-1, reason);
	KVC__TRY(kvc__driver_check(driver->device_count(&count), "device count"));
	KVC__TRY(kvc__driver_check(driver->driver_version(&version), "driver version"));
	for (int i = 0; i < count && (size_t)i < capacity; i++)
		KVC__TRY(device_number(&out[i], driver, i));
	*count_out = (size_t)count;
	if (driver_out)
		*driver_out = version;
	return KVC_OK;
}

#else

const char *kvc_cuda_architectures(void)
{
	return "";
}

static kvc_status list_devices(
        kvc_cuda_device *out, size_t capacity, size_t *count_out, int32_t *driver_out)
{
	(void)out;
	(void)capacity;
	(void)count_out;
	(void)driver_out;
	return kvc__fail_cuda_unavailable(-1, "this build of kvcanary has no CUDA");
}

#endif

kvc_status kvc_cuda_devices(
        kvc_cuda_device *out, size_t capacity, size_t *count_out, int32_t *driver_out)
{
	if (!count_out)
		return kvc__fail_null_argument(-1, "count_out");
	if (!out && capacity > 0)
		return kvc__fail_null_argument(-1, "out");
	return list_devices(out, capacity, count_out, driver_out);
}
