/* Launching scatter.cu: which kernel a call gets, by rule. */
#include "cuda/cuda.h"

#if defined(KVC_WITH_CUDA)

#include "cuda/back_end.h"
#include "cuda/driver.h"
#include "cuda/scatter_params.h"

/* Tokens from which on a thread takes two and four quads: before, blocks are few and latency counts. */
#define TWO_QUADS_TOKENS (INT64_C(3) << 18)
#define FOUR_QUADS_TOKENS (INT64_C(1) << 22)
/* Chunks that a request may meet before it takes a team to read it. */
#define CHUNKS_ALONE 2

/* Names as scatter.cu spells them: threads of a block, quads of a thread. */
struct scatter_shape {
	struct kvc__kernel kernel;
	unsigned threads;
	int64_t chunk;
	unsigned team;
};
#define SHAPE(NAME, THREADS, QUADS, TEAM)                                                          \
	{                                                                                          \
		{ "kvc_scatter_" NAME "_" #THREADS "_" #QUADS, 0 }, THREADS, THREADS *QUADS * 4,   \
		        TEAM                                                                       \
	}
static struct scatter_shape narrow_shapes[] = {
	SHAPE("narrow", 256, 1, 1),
	SHAPE("narrow", 256, 2, 1),
	SHAPE("narrow", 256, 4, 1),
};
static struct scatter_shape checked_shapes[] = {
	SHAPE("checked", 256, 1, 1),
	SHAPE("checked", 256, 2, 1),
	SHAPE("checked", 256, 4, 1),
};
static struct scatter_shape team_shapes[] = {
	SHAPE("team", 256, 1, 8),
	SHAPE("team", 256, 2, 8),
	SHAPE("team", 512, 4, 8),
	SHAPE("team", 1024, 4, 8),
};

static struct scatter_shape *pick_scatter(const struct kvc__scatter *job, int check_tokens)
{
	int64_t tokens = job->flat_count;
	/* How long a request may well be: no longer than its row, or all there is. */
	int64_t reach = job->column_count < tokens ? job->column_count : tokens;
	int size = tokens < TWO_QUADS_TOKENS ? 0 : tokens < FOUR_QUADS_TOKENS ? 1 : 2;

	if (!check_tokens)
		return &narrow_shapes[size];
	if (reach <= CHUNKS_ALONE * checked_shapes[size].chunk)
		return &checked_shapes[size];
	if (size == 2 && reach > team_shapes[2].chunk * team_shapes[2].team)
		size = 3;
	return &team_shapes[size];
}

kvc_status kvc__cuda_scatter(const struct kvc__cuda_scatter *call, void *stream)
{
	struct scatter_shape *shape = pick_scatter(call->job, call->check_tokens);
	int64_t blocks = (call->job->flat_count + shape->chunk - 1) / shape->chunk;
	const struct kvc__scatter_params p = {
		.job = *call->job,
		.report = call->report,
		.sglang = call->sglang,
		.allow_placeholder = call->allow_placeholder,
	};
	const struct kvc__launch launch = {
		.grid_x = (unsigned)((blocks + shape->team - 1) / shape->team * shape->team),
		.block = shape->threads,
		.programmatic = 1,
	};

	return kvc__cuda_launch(&shape->kernel, &launch, &p, stream);
}

#endif
