/*
 * libcuda.so.1 for machines without a GPU: it runs nothing, notes each launch, and refuses one that no
 * chip would take, or the chip that it stands for. Built as that file name in a folder of its own, which
 * test_cuda_launches finds first.
 */
#include "fake_cuda.h"

#include <cuda.h>
#include <limits.h>
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

extern EXPORT struct fake_cuda fake_cuda;
struct fake_cuda fake_cuda = { .capability = 90, .placeable = 16 };

/* ---- the device ---- */

EXPORT CUresult cuInit(unsigned flags)
{
	(void)flags;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDriverGetVersion(int *version)
{
	*version = CUDA_VERSION;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuGetErrorName(CUresult error, const char **name)
{
	*name = error == CUDA_ERROR_NOT_SUPPORTED ? "not supported" : "refused";
	return CUDA_SUCCESS;
}

EXPORT CUresult cuGetErrorString(CUresult error, const char **text)
{
	(void)error;
	*text = "by the fake driver";
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int *count)
{
	*count = 16;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	*device = ordinal;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetName(char *name, int bytes, CUdevice device)
{
	(void)device;
	memset(name, 0, (size_t)bytes);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
	if (device != fake_cuda.capability / 10)
		return CUDA_ERROR_INVALID_DEVICE;
	fake_cuda.questions++;
	switch (attribute) {
	case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
		*value = 132;
		return CUDA_SUCCESS;
	case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
		*value = fake_cuda.capability >= 90 ? 227 << 10 : 163 << 10;
		return CUDA_SUCCESS;
	case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH:
		*value = fake_cuda.capability >= 90;
		return CUDA_SUCCESS;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
		*value = fake_cuda.capability / 10;
		return CUDA_SUCCESS;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
		*value = fake_cuda.capability % 10;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

EXPORT CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device)
{
	(void)device;
	*bytes = (size_t)1 << 37;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *context)
{
	*context = (CUcontext)&fake_cuda;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
	*device = fake_cuda.capability / 10;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	(void)mode;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuPointerGetAttributes(
        unsigned count, CUpointer_attribute *attributes, void **values, CUdeviceptr pointer)
{
	(void)count;
	(void)attributes;
	(void)pointer;
	*(unsigned *)values[0] = CU_MEMORYTYPE_DEVICE;
	return CUDA_SUCCESS;
}

/* ---- kernels ---- */

struct kernel {
	char name[64];
	int any_cluster; /* more than eight blocks are allowed */
	unsigned shared; /* of dynamic shared memory, at most */
};

static struct kernel kernels[256];

EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit_options,
        void **jit_values, unsigned jit_count, CUlibraryOption *options, void **values,
        unsigned count)
{
	(void)jit_options;
	(void)jit_values;
	(void)jit_count;
	(void)options;
	(void)values;
	(void)count;
	*library = (CUlibrary)(uintptr_t)code;
	return CUDA_SUCCESS;
}

/* One handle a name, however often it is asked for. */
EXPORT CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
	(void)library;
	for (size_t i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++) {
		if (!kernels[i].name[0]) {
			strncpy(kernels[i].name, name, sizeof(kernels[i].name) - 1);
			kernels[i].shared = 48 << 10;
		}
		*kernel = (CUkernel)&kernels[i];
		if (strcmp(kernels[i].name, name) == 0)
			return CUDA_SUCCESS;
	}
	return CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult cuKernelSetAttribute(
        CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device)
{
	struct kernel *of = (struct kernel *)kernel;

	(void)device;
	if (attribute == CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED)
		of->any_cluster = value;
	else if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && value <= 227 << 10)
		of->shared = (unsigned)value;
	else
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

/* What a launch would be, or why it cannot. */
static CUresult read_config(
        struct fake_launch *out, const struct kernel *kernel, const CUlaunchConfig *config)
{
	static const struct fake_launch none;

	*out = none;
	memcpy(out->name, kernel->name, sizeof(out->name));
	out->grid = config->gridDimX;
	out->block = config->blockDimX;
	out->shared = config->sharedMemBytes;
	for (unsigned i = 0; i < config->numAttrs; i++) {
		const CUlaunchAttribute *attribute = &config->attrs[i];
		if (fake_cuda.capability < 90)
			return CUDA_ERROR_NOT_SUPPORTED;
		if (attribute->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
			out->early = attribute->value.programmaticStreamSerializationAllowed;
		else if (attribute->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION &&
		         attribute->value.clusterDim.y == 1 && attribute->value.clusterDim.z == 1)
			out->cluster = attribute->value.clusterDim.x;
		else
			return CUDA_ERROR_INVALID_VALUE;
	}
	if (out->grid < 1 || out->grid > INT_MAX || config->gridDimY != 1 ||
	        config->gridDimZ != 1 || out->block < 1 || out->block > 1024 ||
	        out->block % 32 != 0 || config->blockDimY != 1 || config->blockDimZ != 1 ||
	        out->shared > kernel->shared)
		return CUDA_ERROR_INVALID_VALUE;
	if (out->cluster && (out->grid % out->cluster != 0 || out->cluster > 16 ||
	                            (out->cluster > 8 && !kernel->any_cluster)))
		return CUDA_ERROR_INVALID_CLUSTER_SIZE;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuLaunchKernelEx(
        const CUlaunchConfig *config, CUfunction function, void **params, void **extra)
{
	const struct kernel *kernel = (const struct kernel *)function;
	struct fake_launch launch;
	CUresult result = read_config(&launch, kernel, config);

	if (result != CUDA_SUCCESS || !params || !params[0] || extra)
		return result == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : result;
	if (fake_cuda.refused && strcmp(fake_cuda.refused, kernel->name) == 0)
		return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
	if (launch.cluster > (fake_cuda.placeable > 8 ? fake_cuda.placeable : 8))
		return CUDA_ERROR_INVALID_CLUSTER_SIZE;
	fake_cuda.launches[fake_cuda.count++ % 16] = launch;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuOccupancyMaxActiveClusters(
        int *clusters, CUfunction function, const CUlaunchConfig *config)
{
	struct fake_launch launch;
	CUresult result = read_config(&launch, (const struct kernel *)function, config);

	if (result != CUDA_SUCCESS || launch.cluster == 0 || fake_cuda.placeable == 0)
		return CUDA_ERROR_INVALID_VALUE;
	*clusters = launch.cluster <= fake_cuda.placeable ? 4 : 0;
	return CUDA_SUCCESS;
}

/* ---- memory and streams ---- */

EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream)
{
	(void)to;
	(void)stream;
	fake_cuda.zeroed += value == 0 ? bytes : 0;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	(void)to;
	(void)from;
	(void)bytes;
	(void)stream;
	fake_cuda.waits++;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
	(void)to;
	(void)from;
	(void)bytes;
	(void)stream;
	fake_cuda.waits++;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamSynchronize(CUstream stream)
{
	(void)stream;
	fake_cuda.waits++;
	return CUDA_SUCCESS;
}
