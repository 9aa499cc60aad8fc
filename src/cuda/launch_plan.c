/* Launching plan.cu: a plan, and where *rotation moves on after it. */
#include "cuda/cuda.h"

#if defined(KVC_WITH_CUDA)

#include "cuda/back_end.h"
#include "cuda/driver.h"
#include "cuda/plan_params.h"

#define PLAN_THREADS 256 /* as in plan.cu */
#define PLAN_TILE 1024
#define CHUNK_ENTRIES 1024 /* that a block takes at a time; kvc_plan_many twice as many */
/* Two on each multiprocessor of the largest chips: each adds up all lengths for itself. */
#define BLOCKS_MAX (2 * 132)
/* Sums of lengths stay below this. */
#define LENGTHS_MAX (INT64_C(1) << 62)

static struct kvc__kernel entries_kernel = { .name = "kvc_plan_entries" };
static struct kvc__kernel many_kernel = { .name = "kvc_plan_many" };
static struct kvc__kernel turn_kernel = { .name = "kvc_plan_turn" };

static int64_t clamp(int64_t value, int64_t most)
{
	return value < 1 ? 1 : value < most ? value : most;
}

kvc_status kvc__cuda_plan(const struct kvc__cuda_plan *call, void *stream)
{
	int64_t bs = call->job->request_count;
	struct kvc__plan_params p = {
		.job = *call->job,
		.out = *call->job->out,
		.rotation = call->rotation,
		.report = call->report,
		.length_max = LENGTHS_MAX / (bs > 0 ? bs : 1),
	};
	int64_t chunks = kvc__divide_up(p.out.verify_capacity, CHUNK_ENTRIES);
	int many = chunks > BLOCKS_MAX;
	int64_t emitters = clamp(many ? kvc__divide_up(chunks, 2) : chunks, BLOCKS_MAX);
	struct kvc__launch launch = { .block = PLAN_THREADS, .programmatic = 1 };

	/* A single block can move *rotation on by itself. */
	if (emitters > 1 || bs > PLAN_TILE)
		p.writer_blocks = (int32_t)clamp(kvc__divide_up(bs, PLAN_TILE), BLOCKS_MAX);
	launch.grid_x = (unsigned)(emitters + p.writer_blocks);
	KVC__TRY(kvc__cuda_launch(many ? &many_kernel : &entries_kernel, &launch, &p, stream));
	if (launch.grid_x == 1 || !p.rotation || p.job.sglang)
		return KVC_OK;
	launch.grid_x = 1;
	return kvc__cuda_launch(&turn_kernel, &launch, &p, stream);
}

#endif
