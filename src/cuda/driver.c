/*
 * Loading libcuda, loading the kernels, launching. The caller's current context is used as it is;
 * kernels are loaded as libraries, which belong to no context.
 */
#include "cuda/cuda.h"

#if defined(KVC_WITH_CUDA)

#include "cuda/driver.h"

#include "cuda/back_end.h"
#include "cuda/images.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

static struct kvc__driver driver;
static const char *driver_missing = "the driver has not been loaded";
static pthread_once_t driver_once = PTHREAD_ONCE_INIT;

/* Names as libcuda exports them; cuda.h maps the plain ones to these by macros. */
static const struct {
	const char *name;
	size_t offset;
} driver_symbols[] = {
	{ "cuInit", offsetof(struct kvc__driver, init) },
	{ "cuDriverGetVersion", offsetof(struct kvc__driver, driver_version) },
	{ "cuGetErrorName", offsetof(struct kvc__driver, error_name) },
	{ "cuGetErrorString", offsetof(struct kvc__driver, error_string) },
	{ "cuDeviceGetCount", offsetof(struct kvc__driver, device_count) },
	{ "cuDeviceGet", offsetof(struct kvc__driver, device_get) },
	{ "cuDeviceGetName", offsetof(struct kvc__driver, device_name) },
	{ "cuDeviceGetAttribute", offsetof(struct kvc__driver, device_attribute) },
	{ "cuDeviceTotalMem_v2", offsetof(struct kvc__driver, device_memory) },
	{ "cuCtxGetCurrent", offsetof(struct kvc__driver, context_current) },
	{ "cuCtxGetDevice", offsetof(struct kvc__driver, context_device) },
	{ "cuThreadExchangeStreamCaptureMode", offsetof(struct kvc__driver, capture_mode) },
	{ "cuLibraryLoadData", offsetof(struct kvc__driver, library_load) },
	{ "cuLibraryGetKernel", offsetof(struct kvc__driver, library_kernel) },
	{ "cuKernelSetAttribute", offsetof(struct kvc__driver, kernel_attribute) },
	{ "cuLaunchKernelEx", offsetof(struct kvc__driver, launch) },
	{ "cuOccupancyMaxActiveClusters", offsetof(struct kvc__driver, active_clusters) },
	{ "cuPointerGetAttributes", offsetof(struct kvc__driver, pointer_attributes) },
	{ "cuMemsetD8Async", offsetof(struct kvc__driver, memset_async) },
	{ "cuMemcpyDtoHAsync_v2", offsetof(struct kvc__driver, copy_to_host_async) },
	{ "cuMemcpyHtoDAsync_v2", offsetof(struct kvc__driver, copy_to_device_async) },
	{ "cuStreamSynchronize", offsetof(struct kvc__driver, stream_synchronize) },
};

static void load_driver(void)
{
	int count = 0;
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!library) {
		driver_missing = "there is no NVIDIA driver (libcuda.so.1) on this machine";
		return;
	}
	for (size_t i = 0; i < sizeof(driver_symbols) / sizeof(*driver_symbols); i++) {
		void *symbol = dlsym(library, driver_symbols[i].name);
		if (!symbol) {
			driver_missing = "the NVIDIA driver is older than CUDA 12.0";
			return; /* The library stays loaded: its exit handlers may be running. */
		}
		memcpy((char *)&driver + driver_symbols[i].offset, &symbol, sizeof(symbol));
	}
	if (driver.init(0) != CUDA_SUCCESS || driver.device_count(&count) != CUDA_SUCCESS ||
	        count == 0) {
		driver_missing = "the NVIDIA driver finds no GPU";
		return;
	}
	driver_missing = NULL;
}

const struct kvc__driver *kvc__driver(const char **reason_out)
{
	pthread_once(&driver_once, load_driver);
	if (reason_out)
		*reason_out = driver_missing ? driver_missing : "";
	return driver_missing ? NULL : &driver;
}

kvc_status kvc__driver_check(CUresult result, const char *what)
{
	const char *name = NULL, *text = NULL;

	if (result == CUDA_SUCCESS)
		return KVC_OK;
	if (driver.error_name(result, &name) != CUDA_SUCCESS || !name)
		name = "unknown error";
	if (driver.error_string(result, &text) != CUDA_SUCCESS || !text)
		text = "";
	return kvc__fail_cuda_call_failed(-1, what, name, text);
}

/* ---- kernels ---- */

#define IMAGE_MAX 16
#define SHARED_BYTES_FREE 40000 /* of dynamic shared memory, that a launch need not ask for */
static CUlibrary libraries[IMAGE_MAX];
static kvc_error load_error; /* status KVC_OK: all images are loaded */
static pthread_once_t images_once = PTHREAD_ONCE_INIT;

/* Loading allocates, which a global or thread-local capture of this thread would not allow. */
static void load_images(void)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	kvc_status status = kvc__driver_check(driver.capture_mode(&mode), "capture mode");

	for (int i = 0; status == KVC_OK && i < kvc__image_count; i++) {
		status = kvc__driver_check(driver.library_load(&libraries[i], kvc__images[i].data,
		                                   NULL, NULL, 0, NULL, NULL, 0),
		        "loading the kernels");
	}
	if (status != KVC_OK)
		load_error = *kvc_last_error();
	(void)driver.capture_mode(&mode);
}

kvc_status kvc__cuda_load_images(const struct kvc__driver *loaded)
{
	(void)loaded;
	pthread_once(&images_once, load_images);
	return load_error.status == KVC_OK ? KVC_OK : kvc__error_store(&load_error);
}

/* The image that a kernel lies in: its name begins with kvc_ and the image's. */
static int image_of(const char *kernel)
{
	const char *name = kernel + strlen("kvc_");

	for (int i = 0; i < kvc__image_count; i++) {
		size_t length = strlen(kvc__images[i].name);
		if (strncmp(name, kvc__images[i].name, length) == 0 && name[length] == '_')
			return i;
	}
	return 0;
}

/* On every device: the handle serves all of them. One that cannot do it refuses the launch. */
static void allow(CUkernel kernel, CUfunction_attribute what, int value)
{
	int count = 0;

	(void)driver.device_count(&count);
	for (int i = 0; i < count; i++) {
		CUdevice device = 0;
		if (driver.device_get(&device, i) == CUDA_SUCCESS)
			(void)driver.kernel_attribute(what, value, kernel, device);
	}
}

/* A kernel is launched with the same shared memory each time, and always or never with clusters. */
static kvc_status find_kernel(
        struct kvc__kernel *kernel, const struct kvc__launch *launch, CUkernel *out)
{
	const char *name = kernel->name;

	*out = atomic_load_explicit(&kernel->handle, memory_order_acquire);
	if (*out)
		return KVC_OK;
	KVC__TRY(kvc__driver_check(
	        driver.library_kernel(out, libraries[image_of(name)], name), name));
	if (launch->cluster)
		allow(*out, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1);
	if (launch->shared_bytes > SHARED_BYTES_FREE)
		allow(*out, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
		        (int)launch->shared_bytes);
	atomic_store_explicit(&kernel->handle, *out, memory_order_release);
	return KVC_OK;
}

static int starts_early(void)
{
	struct kvc__chip chip;

	return kvc__cuda_chip(&chip) == KVC_OK && chip.starts_early;
}

/* Fills 'attributes', at least two of them, which the result points to. */
static CUlaunchConfig config_of(
        const struct kvc__launch *launch, CUlaunchAttribute *attributes, void *stream)
{
	CUlaunchConfig config = {
		.gridDimX = (unsigned)launch->grid_x,
		.gridDimY = launch->grid_y ? launch->grid_y : 1,
		.gridDimZ = 1,
		.blockDimX = launch->block,
		.blockDimY = 1,
		.blockDimZ = 1,
		.sharedMemBytes = launch->shared_bytes,
		.hStream = (CUstream)stream,
		.attrs = attributes,
	};
	unsigned count = 0;

	memset(attributes, 0, 2 * sizeof(*attributes));
	if (launch->programmatic && starts_early()) {
		attributes[count].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
		attributes[count++].value.programmaticStreamSerializationAllowed = 1;
	}
	if (launch->cluster) {
		attributes[count].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
		attributes[count].value.clusterDim.x = launch->cluster;
		attributes[count].value.clusterDim.y = 1;
		attributes[count++].value.clusterDim.z = 1;
	}
	config.numAttrs = count;
	return config;
}

kvc_status kvc__cuda_launch(struct kvc__kernel *kernel, const struct kvc__launch *launch,
        const void *params, void *stream)
{
	CUlaunchAttribute attributes[2];
	const CUlaunchConfig config = config_of(launch, attributes, stream);
	void *arguments[1] = { (void *)(uintptr_t)params };
	CUkernel handle;

	if (launch->grid_x > INT32_MAX)
		return kvc__driver_check(CUDA_ERROR_INVALID_VALUE, kernel->name);
	KVC__TRY(find_kernel(kernel, launch, &handle));
	/* A CUkernel may stand where a CUfunction is asked for: the driver takes the current context's. */
	return kvc__driver_check(
	        driver.launch(&config, (CUfunction)handle, arguments, NULL), kernel->name);
}

int kvc__cuda_can_place(struct kvc__kernel *kernel, const struct kvc__launch *launch)
{
	struct kvc__launch asked = *launch;
	CUlaunchAttribute attributes[2];
	CUkernel handle;
	int clusters = 0;

	asked.programmatic = 0; /* when it starts is not the question */
	const CUlaunchConfig config = config_of(&asked, attributes, NULL);
	return find_kernel(kernel, launch, &handle) == KVC_OK &&
	       driver.active_clusters(&clusters, (CUfunction)handle, &config) == CUDA_SUCCESS &&
	       clusters > 0;
}

kvc_status kvc__cuda_wipe_failed(kvc_status status, void *scratch, int64_t bytes, void *stream)
{
	/* Where this fails too, the context is past help. */
	if (status != KVC_OK && scratch)
		(void)driver.memset_async(
		        (CUdeviceptr)(uintptr_t)scratch, 0, (size_t)bytes, (CUstream)stream);
	return status;
}

/* ---- chips ---- */

#define CHIPS_KEPT 64
static _Atomic(struct kvc__chip)
        chips[CHIPS_KEPT]; /* by device; no processors: not asked for yet */

static kvc_status ask_chip(struct kvc__chip *out, CUdevice device)
{
	static const CUdevice_attribute asked[] = { CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
		CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
		CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN };
	enum { PROCESSORS, CLUSTERS, MAJOR, SHARED, ASKED };
	int answer[ASKED] = { 0 };

	for (int i = 0; i < ASKED; i++)
		KVC__TRY(kvc__driver_check(
		        driver.device_attribute(&answer[i], asked[i], device), "device attribute"));
	out->shared_bytes = answer[SHARED];
	out->processors = (int16_t)answer[PROCESSORS];
	out->has_clusters = answer[CLUSTERS] && kvc__cuda_newest() >= 90;
	/* Chips before Hopper are not promised to pass over an attribute that they do not know. */
	out->starts_early = answer[MAJOR] >= 9 && kvc__cuda_newest() >= 90;
	return KVC_OK;
}

kvc_status kvc__cuda_chip(struct kvc__chip *out)
{
	CUdevice device = 0;

	KVC__TRY(kvc__driver_check(driver.context_device(&device), "device of the context"));
	if (device < 0 || device >= CHIPS_KEPT)
		return ask_chip(out, device);
	*out = atomic_load_explicit(&chips[device], memory_order_relaxed);
	if (out->processors != 0)
		return KVC_OK;
	KVC__TRY(ask_chip(out, device));
	atomic_store_explicit(&chips[device], *out, memory_order_relaxed);
	return KVC_OK;
}

/* ---- what the front doors call ---- */

kvc_status kvc__cuda_check_pointer(const void *pointer, const char *name)
{
	/* Asked this way, a pointer that CUDA does not know is no error: its type stays 0. */
	CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
	unsigned type = 0;
	void *value = &type;

	if (!pointer)
		return KVC_OK;
	if (driver.pointer_attributes(1, &attribute, &value, (CUdeviceptr)(uintptr_t)pointer) !=
	                CUDA_SUCCESS ||
	        type == 0)
		return kvc__fail_cuda_host_pointer(-1, name);
	return KVC_OK; /* device, managed, or pinned host memory: kernels reach all of them */
}

kvc_status kvc__cuda_find(const struct kvc__cuda_ops **out, kvc_device device, const char *name)
{
	const char *reason;
	const struct kvc__driver *loaded = kvc__driver(&reason);
	CUcontext context = NULL;
	CUdevice current = -1;

	if (!loaded)
		return kvc__fail_no_cuda(-1, name, reason);
	KVC__TRY(kvc__driver_check(loaded->context_current(&context), "current context"));
	if (!context)
		return kvc__fail_cuda_context(-1, name, device.device_id, -1);
	KVC__TRY(kvc__driver_check(loaded->context_device(&current), "device of the context"));
	if (current != device.device_id && device.device_type == KVC_DEVICE_CUDA)
		return kvc__fail_cuda_context(-1, name, device.device_id, current);
	KVC__TRY(kvc__cuda_load_images(loaded));
	*out = &kvc__cuda_table;
	return KVC_OK;
}

#endif /* KVC_WITH_CUDA */
