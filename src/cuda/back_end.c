/* The back end's table, and how it is absent from a build without nvcc. */
#include "cuda/cuda.h"

#if defined(KVC_WITH_CUDA)

#include "cuda/back_end.h"

const struct kvc__cuda_ops kvc__cuda_table = {
	.rope = kvc__cuda_rope,
	.report_init = kvc__cuda_report_init,
	.scatter = kvc__cuda_scatter,
	.plan = kvc__cuda_plan,
	.check_plan = kvc__cuda_check_plan,
	.records = kvc__cuda_records,
	.ring_poll = kvc__cuda_ring_poll,
	.fingerprint = kvc__cuda_fingerprint,
	.scan_finite = kvc__cuda_scan_finite,
	.write = kvc__cuda_write,
	.verify = kvc__cuda_verify,
};

#else

kvc_status kvc__cuda_find(const struct kvc__cuda_ops **out, kvc_device device, const char *name)
{
	(void)out;
	(void)device;
	return kvc__fail_no_cuda(-1, name, "this build of kvcanary has no CUDA");
}

kvc_status kvc__cuda_check_pointer(const void *pointer, const char *name)
{
	(void)pointer;
	(void)name;
	return KVC_OK;
}

#endif
