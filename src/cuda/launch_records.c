/* Launching records.cu: one launch to void, two to copy (all reads before all writes). */
#include "cuda/cuda.h"

#if defined(KVC_WITH_CUDA)

#include "cuda/back_end.h"
#include "cuda/driver.h"
#include "cuda/records_params.h"

#define RECORD_THREADS 256

static struct kvc__kernel void_kernel = { .name = "kvc_records_void" };
static struct kvc__kernel read_kernel = { .name = "kvc_records_read" };
static struct kvc__kernel write_kernel = { .name = "kvc_records_write" };

kvc_status kvc__cuda_records(const struct kvc__cuda_records_call *call, void *stream)
{
	const struct kvc__records_params p = {
		.records = call->group->records,
		.record_count = call->group->record_count,
		.record_stride = call->group->record_stride_bytes,
		.owners = call->group->owners,
		.from = call->from,
		.to = call->to,
		.count = call->count,
		.scratch = call->scratch,
		.scratch_stride = call->scratch_stride,
	};
	int64_t words = call->count * (call->to ? 8 : 4);
	const struct kvc__launch launch = {
		.grid_x = (unsigned)((words + RECORD_THREADS - 1) / RECORD_THREADS),
		.block = RECORD_THREADS,
		.programmatic = 1,
	};

	if (!call->to)
		return kvc__cuda_launch(&void_kernel, &launch, &p, stream);
	KVC__TRY(kvc__cuda_launch(&read_kernel, &launch, &p, stream));
	return kvc__cuda_launch(&write_kernel, &launch, &p, stream);
}

#endif
