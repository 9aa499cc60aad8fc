/* Launching check_plan.cu: mark, judge, wipe, of the mapping and of the plan. */
#include "cuda/cuda.h"

#if defined(KVC_WITH_CUDA)

#include "cuda/back_end.h"
#include "cuda/check_plan_params.h"
#include "cuda/driver.h"

#define CLAIM_THREADS 256
#define CLAIM_BLOCKS_MAX 2048

static struct kvc__kernel mark_kernel = { .name = "kvc_check_plan_mark" };
static struct kvc__kernel judge_kernel = { .name = "kvc_check_plan_judge" };
static struct kvc__kernel wipe_kernel = { .name = "kvc_check_plan_wipe" };

static struct kvc__check_plan_params check_params_of(const struct kvc__cuda_check_plan *call)
{
	const struct kvc__check_plan *job = call->job;
	const kvc_group *group = &job->group;
	const struct kvc__check_plan_params p = {
		.records = group->records,
		.record_count = group->record_count,
		.record_stride = group->record_stride_bytes,
		.owners = group->owners,
		.reserved_slot = group->reserved_slot,
		.source_id = group->source_count == 1 ? (int64_t)group->sources[0].id : -1,
		.plan = *call->plan,
		.mapping = job->mapping,
		.full_count = job->full_count,
		.scratch = { job->scratch[0], job->scratch[1] },
		.ring = kvc__cuda_ring_of(job->ring),
	};

	return p;
}

/* One after the other, because they share the scratch. */
static kvc_status launch_claims(
        struct kvc__check_plan_params *p, int on_mapping, int64_t claims, void *stream)
{
	int64_t blocks = kvc__divide_up(claims, CLAIM_THREADS);
	struct kvc__launch launch = { .block = CLAIM_THREADS, .programmatic = 1 };

	p->on_mapping = on_mapping;
	blocks = blocks < 1 ? 1 : blocks > CLAIM_BLOCKS_MAX ? CLAIM_BLOCKS_MAX : blocks;
	launch.grid_x = (unsigned)blocks;
	KVC__TRY(kvc__cuda_launch(&mark_kernel, &launch, p, stream));
	KVC__TRY(kvc__cuda_launch(&judge_kernel, &launch, p, stream));
	return kvc__cuda_launch(&wipe_kernel, &launch, p, stream);
}

kvc_status kvc__cuda_check_plan(const struct kvc__cuda_check_plan *call, void *stream)
{
	struct kvc__check_plan_params p = check_params_of(call);
	int64_t bytes = p.record_count * (int64_t)sizeof(*p.scratch[0]);
	kvc_status status = p.mapping ? launch_claims(&p, 1, p.full_count, stream) : KVC_OK;

	if (status == KVC_OK)
		status = launch_claims(&p, 0, p.plan.verify_capacity, stream);
	status = kvc__cuda_wipe_failed(status, p.scratch[0], bytes, stream);
	return kvc__cuda_wipe_failed(status, p.scratch[1], bytes, stream);
}

#endif
