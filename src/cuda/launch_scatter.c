/* Launching scatter.cu: which kernel a call gets, by rule. */
#include "cuda/cuda.h"

#if defined(KVC_WITH_CUDA)

#include "cuda/back_end.h"
#include "cuda/driver.h"
#include "cuda/scatter_params.h"

/* Blocks that share a request, at most; and how many blocks there may be for that. */
#define TEAM_MAX 16
#define TEAMS_BLOCKS_MAX 2048

/* Names as scatter.cu spells them: threads of a block, quads of a thread. */
static struct scatter_shape {
	struct kvc__kernel alone,
	        team; /* one kernel: what a launch may have is set once a handle */
	unsigned threads;
	int64_t chunk;
} scatter_shapes[] = {
#define SHAPE(THREADS, QUADS)                                                                      \
	{                                                                                          \
		{ "kvc_scatter_" #THREADS "_" #QUADS, 0 },                                         \
		        { "kvc_scatter_" #THREADS "_" #QUADS, 0 }, THREADS, THREADS *QUADS * 4     \
	}
	SHAPE(256, 1),
	SHAPE(512, 1),
	SHAPE(512, 4),
};

kvc_status kvc__cuda_scatter(const struct kvc__cuda_scatter *call, void *stream)
{
	const struct kvc__scatter *job = call->job;
	/* How long a request may well be: no longer than its row, or all there is. */
	int64_t reach = job->column_count < job->flat_count ? job->column_count : job->flat_count;
	struct scatter_shape *shape = scatter_shapes;
	struct kvc__scatter_params p = {
		.job = *job,
		.report = call->report,
		.sglang = call->sglang,
		.check_tokens = call->check_tokens,
		.allow_placeholder = call->allow_placeholder,
		.team = 1,
	};
	struct kvc__chip chip;

	KVC__TRY(kvc__cuda_chip(&chip));
	while (shape->chunk < reach && shape + 1 < scatter_shapes + 3)
		shape++;
	while (p.team < TEAM_MAX && p.team * shape->chunk < reach &&
	        2 * p.team * job->request_count <= TEAMS_BLOCKS_MAX &&
	        (chip.has_clusters || !p.check_tokens))
		p.team *= 2;
	const struct kvc__launch launch = {
		.grid_x = (unsigned)(job->request_count * p.team),
		.block = shape->threads,
		.programmatic = 1,
		.cluster = p.check_tokens && p.team > 1 ? (unsigned)p.team : 0,
	};

	return kvc__cuda_launch(launch.cluster ? &shape->team : &shape->alone, &launch, &p, stream);
}

#endif
