/* Launching plan.cu: a plan, and where *rotation moves on after it. */
#include "cuda/cuda.h"

#if defined(KVC_WITH_CUDA)

#include "cuda/back_end.h"
#include "cuda/driver.h"
#include "cuda/plan_params.h"

#define PLAN_THREADS 256 /* as in plan.cu */
#define PLAN_TILE 1024
/* Entries of a plan for which another block is worth its start. */
#define ENTRIES_PER_BLOCK 512
/* Five blocks on each multiprocessor of the largest chips: all of them at once. */
#define PLAN_BLOCKS_MAX 660
/* Sums of lengths stay below this. */
#define LENGTHS_MAX (INT64_C(1) << 62)

static struct kvc__kernel plan_kernel = { "kvc_plan_emit", 0 };
static struct kvc__kernel turn_kernel = { "kvc_plan_turn", 0 };

kvc_status kvc__cuda_plan(const struct kvc__cuda_plan *call, void *stream)
{
	int64_t bs = call->job->request_count;
	const struct kvc__plan_params p = {
		.job = *call->job,
		.out = *call->job->out,
		.rotation = call->rotation,
		.report = call->report,
		.length_max = LENGTHS_MAX / (bs > 0 ? bs : 1),
	};
	int64_t blocks = (p.out.verify_capacity + ENTRIES_PER_BLOCK - 1) / ENTRIES_PER_BLOCK;
	struct kvc__launch launch = { .block = PLAN_THREADS, .programmatic = 1 };

	if (blocks < (bs + PLAN_TILE - 1) / PLAN_TILE)
		blocks = (bs + PLAN_TILE - 1) / PLAN_TILE;
	blocks = blocks < 1 ? 1 : blocks > PLAN_BLOCKS_MAX ? PLAN_BLOCKS_MAX : blocks;
	launch.grid_x = (unsigned)blocks;
	KVC__TRY(kvc__cuda_launch(&plan_kernel, &launch, &p, stream));
	if (blocks == 1 || !p.rotation || p.job.sglang)
		return KVC_OK;
	launch.grid_x = 1;
	return kvc__cuda_launch(&turn_kernel, &launch, &p, stream);
}

#endif
