/* Launching scatter.cu: which kernel a call gets, by rule. */
#include "cuda/cuda.h"

#if defined(KVC_WITH_CUDA)

#include "cuda/back_end.h"
#include "cuda/driver.h"
#include "cuda/scatter_params.h"

/* Blocks that share a request, at most: any chip that has clusters places eight, some place more. */
#define TEAM_MAX 16
#define TEAM_ANYWHERE 8
/* Blocks of a call, where teams are made for speed alone, and at most. */
#define FEW_BLOCKS 1024
#define TEAMS_BLOCKS_MAX 2048
/* Up to so many tokens, latency counts: a wrong guess where they lie costs nothing else. */
#define GUESSED_TOKENS (1 << 17)

/* Names as scatter.cu spells them: threads of a block, quads of a thread. */
static struct scatter_shape {
	struct kvc__kernel alone,
	        team; /* one kernel: what a launch may have is set once a handle */
	unsigned threads;
	int64_t chunk;
	unsigned shared; /* where a chunk is staged */
} scatter_shapes[] = {
#define SHAPE(THREADS, QUADS, STAGED_QUADS)                                                        \
	{                                                                                          \
		{ .name = "kvc_scatter_" #THREADS "_" #QUADS },                                    \
		        { .name = "kvc_scatter_" #THREADS "_" #QUADS }, THREADS,                   \
		        THREADS *QUADS * 4, THREADS *STAGED_QUADS * 16                             \
	}
	SHAPE(128, 1, 0),
	SHAPE(128, 4, 0),
	SHAPE(256, 4, 0),
	SHAPE(256, 8, 8),
	SHAPE(1024, 16, 12),
};

/* Do blocks of the largest shape, one a multiprocessor, take the whole call at once, and most of them fully? Then
 * every token is under way before the first is stored. */
static int is_one_wave(const struct kvc__scatter *job, int64_t reach, const struct kvc__chip *chip)
{
	const struct scatter_shape *shape = &scatter_shapes[4];
	int64_t team = 1;

	while (team < TEAM_ANYWHERE && team * shape->chunk < reach)
		team *= 2;
	return chip->has_clusters && chip->shared_bytes >= (int)shape->shared &&
	       team * shape->chunk >= reach && job->request_count * team <= chip->processors &&
	       job->flat_count >= chip->processors * shape->chunk / 4 * 3;
}

/* 'reach': how long a request may well be. */
static struct scatter_shape *pick_shape(
        const struct kvc__scatter *job, int64_t reach, const struct kvc__chip *chip)
{
	int64_t request_count = job->request_count;

	if (reach <= scatter_shapes[0].chunk)
		return &scatter_shapes[0];
	if (reach <= scatter_shapes[1].chunk)
		return &scatter_shapes[1];
	if (is_one_wave(job, reach, chip))
		return &scatter_shapes[4];
	/* Two blocks a request, or one of twice the size. */
	if (reach <= 2 * scatter_shapes[2].chunk && 2 * request_count <= FEW_BLOCKS)
		return &scatter_shapes[2];
	return &scatter_shapes[3];
}

static struct kvc__launch launch_of(
        const struct scatter_shape *shape, const struct kvc__scatter_params *p)
{
	struct kvc__launch launch = {
		.grid_x = p->job.request_count * p->team,
		.block = shape->threads,
		.shared_bytes = shape->shared,
		.programmatic = 1,
		.cluster = p->check_tokens && p->team > 1 ? (unsigned)p->team : 0,
	};

	return launch;
}

kvc_status kvc__cuda_scatter(const struct kvc__cuda_scatter *call, void *stream)
{
	const struct kvc__scatter *job = call->job;
	int64_t reach = job->column_count < job->flat_count ? job->column_count : job->flat_count;
	struct kvc__chip chip;

	KVC__TRY(kvc__cuda_chip(&chip));
	struct scatter_shape *shape = pick_shape(job, reach, &chip);
	struct kvc__scatter_params p = {
		.job = *job,
		.report = call->report,
		.sglang = call->sglang,
		.check_tokens = call->check_tokens,
		.allow_placeholder = call->allow_placeholder,
		.team = 1,
		.wide_rows =
		        ((uint64_t)(uintptr_t)job->table | (uint64_t)job->row_stride * 4) % 16 == 0,
	};

	if (job->flat_count <= GUESSED_TOKENS)
		p.typical = (int32_t)(job->flat_count / job->request_count);
	while (p.team < TEAM_MAX && p.team * shape->chunk < reach &&
	        2 * p.team * job->request_count <= TEAMS_BLOCKS_MAX &&
	        (chip.has_clusters || !p.check_tokens))
		p.team *= 2, p.team_shift++;
	struct kvc__launch launch = launch_of(shape, &p);
	if (launch.cluster > TEAM_ANYWHERE && !kvc__cuda_can_place(&shape->team, &launch)) {
		p.team /= 2, p.team_shift--;
		launch = launch_of(shape, &p);
	}
	return kvc__cuda_launch(launch.cluster ? &shape->team : &shape->alone, &launch, &p, stream);
}

#endif
