/*
 * The driver API, loaded at run time: libcuda is not linked, so that one shared library serves
 * machines with and without a GPU. Only what the back end calls is listed.
 */
#ifndef KVC__CUDA_DRIVER_H
#define KVC__CUDA_DRIVER_H

#include "base/error.h"

#include <cuda.h>

struct kvc__driver {
	CUresult (*init)(unsigned flags);
	CUresult (*driver_version)(int *version);
	CUresult (*error_name)(CUresult error, const char **name);
	CUresult (*error_string)(CUresult error, const char **text);
	CUresult (*device_count)(int *count);
	CUresult (*device_get)(CUdevice *device, int ordinal);
	CUresult (*device_name)(char *name, int bytes, CUdevice device);
	CUresult (*device_attribute)(int *value, CUdevice_attribute attribute, CUdevice device);
	CUresult (*device_memory)(size_t *bytes, CUdevice device);
	CUresult (*context_current)(CUcontext *context);
	CUresult (*context_device)(CUdevice *device);
	CUresult (*capture_mode)(CUstreamCaptureMode *mode);
	CUresult (*library_load)(CUlibrary *library, const void *image, CUjit_option *jit_options,
	        void **jit_values, unsigned jit_count, CUlibraryOption *options, void **values,
	        unsigned count);
	CUresult (*library_kernel)(CUkernel *kernel, CUlibrary library, const char *name);
	CUresult (*kernel_attribute)(
	        CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device);
	CUresult (*launch)(
	        const CUlaunchConfig *config, CUfunction function, void **params, void **extra);
	CUresult (*active_clusters)(
	        int *clusters, CUfunction function, const CUlaunchConfig *config);
	CUresult (*pointer_attributes)(unsigned count, CUpointer_attribute *attributes,
	        void **values, CUdeviceptr pointer);
	CUresult (*memset_async)(
	        CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream);
	CUresult (*copy_to_host_async)(void *to, CUdeviceptr from, size_t bytes, CUstream stream);
	CUresult (*copy_to_device_async)(
	        CUdeviceptr to, const void *from, size_t bytes, CUstream stream);
	CUresult (*stream_synchronize)(CUstream stream);
};

/* The loaded driver, or NULL with the reason in *reason_out (static text). Thread-safe, once. */
const struct kvc__driver *kvc__driver(const char **reason_out);

/* cuda-call-failed for a result other than CUDA_SUCCESS; 'what' names the call for a person. */
kvc_status kvc__driver_check(CUresult result, const char *what);

/* ---- kernels ---- */

/* A launch of one kernel that takes one struct by value. */
struct kvc__launch {
	int64_t grid_x; /* more than a grid can have are refused */
	unsigned grid_y;
	unsigned block;
	unsigned shared_bytes;
	int programmatic; /* may start while the kernel before it ends; it waits by itself */
	unsigned cluster; /* blocks that run side by side, 0: any */
};

/* A kernel by name, looked up once. Static storage, zero at first: one per launch site. */
struct kvc__kernel {
	const char *name;
	_Atomic(CUkernel) handle;
};

/* How many blocks of b it takes for a. */
static inline int64_t kvc__divide_up(int64_t a, int64_t b)
{
	return (a + b - 1) / b;
}

kvc_status kvc__cuda_launch(struct kvc__kernel *kernel, const struct kvc__launch *launch,
        const void *params, void *stream);

/* Can the current device place a cluster of this size? More than eight blocks it need not. */
int kvc__cuda_can_place(struct kvc__kernel *kernel, const struct kvc__launch *launch);

/* The newest compute capability, times ten, that this build has code for: what kernels see as
 * __CUDA_ARCH__ is never more, whatever the chip can do. */
int kvc__cuda_newest(void);

/* After the launches of a call that marks scratch and wipes it itself: if one of them failed, all of it
 * (NULL: none) becomes zero here, as the next call needs it. Returns 'status'. */
kvc_status kvc__cuda_wipe_failed(kvc_status status, void *scratch, int64_t bytes, void *stream);

/* What the device of the current context is like, as far as launches depend on it. Asked for once a device. */
struct kvc__chip {
	int32_t shared_bytes; /* that a block can ask for */
	int16_t processors;
	int8_t has_clusters;
	int8_t starts_early; /* kernels of this build may start before their turn */
};
kvc_status kvc__cuda_chip(struct kvc__chip *out);

/* Load every image into the process once; cuda-call-failed if the driver refuses one. */
kvc_status kvc__cuda_load_images(const struct kvc__driver *driver);

#endif
