/* kvc_report_init() on the device. */
#include "cuda/cuda.h"

#if defined(KVC_WITH_CUDA)

#include "cuda/back_end.h"
#include "cuda/driver.h"

#include <stddef.h>

kvc_status kvc__cuda_report_init(kvc_report *out, void *stream)
{
	const struct kvc__driver *driver = kvc__driver(NULL);
	CUdeviceptr at = (CUdeviceptr)(uintptr_t)out;

	/* All zero, but for 'first', which is -1 in every byte. */
	KVC__TRY(kvc__driver_check(
	        driver->memset_async(at, 0, sizeof(*out), (CUstream)stream), "report_init"));
	return kvc__driver_check(driver->memset_async(at + offsetof(kvc_report, first), 0xFF,
	                                 sizeof(out->first), (CUstream)stream),
	        "report_init");
}

#endif
