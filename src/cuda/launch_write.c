/* Launching write.cu: one launch for a small step, else one for each of its parts. */
#include "cuda/cuda.h"

#if defined(KVC_WITH_CUDA)

#include "cuda/write_params.h"

#include "cuda/back_end.h"
#include "cuda/driver.h"
#include "cuda/fingerprint_launch.h"

_Static_assert(sizeof(struct kvc__write_params) <= KVC__PARAMS_BYTES_MAX, "one launch takes it");

/* Bytes of KV up to which a warp a slot is no slower than batches of slots. */
#define SMALL_BYTES (8 << 20)
#define SMALL_REQUESTS 8192 /* one block walks them all */
#define SETTLE_BLOCKS                                                                              \
	2 /* a multiprocessor: they wait beside the chains and what is hashed meanwhile */
#define CHAIN_BLOCKS_MAX 65535

static struct kvc__kernel step_kernel = { .name = "kvc_write_step" };
static struct kvc__kernel small_kernel = { .name = "kvc_write_small" };
static struct kvc__kernel mark_kernel = { .name = "kvc_write_mark" };
static struct kvc__kernel chain_kernel = { .name = "kvc_write_chain" };
static struct kvc__kernel settle_kernel = { .name = "kvc_write_settle" };

static void set_write_params(struct kvc__write_params *p, const struct kvc__cuda_write *call)
{
	const struct kvc__write *job = call->job;

	p->records = kvc__cuda_records_of(&job->group);
	p->batch = kvc__cuda_batch_of(&job->batch);
	p->ring = kvc__cuda_ring_of(job->ring);
	p->request_capacity = call->request_capacity;
	p->num_valid = call->num_valid;
	p->offsets = job->offsets;
	p->seeds = job->seeds;
	p->token_count = job->token_count;
	p->tokens = job->tokens;
	p->positions = job->positions;
	p->slots = job->slots;
	p->expected_tokens = job->expected_tokens;
	p->expected_positions = job->expected_positions;
	p->check_steps = call->check_steps;
	p->step = call->step;
	p->launch_tag = job->launch_tag;
	p->own_rules = job->rules == KVC_RULES_OWN;
	p->scratch = p->own_rules ? job->scratch : NULL;
	p->is_computed = job->group.stamping == KVC_STAMP_COMPUTE;
	p->bytes_hashed = p->is_computed ? p->sources.head.bytes_hashed : 0;
}

/* One launch: what a decode step is. splitmix rows are staged there 2 KiB at a time. */
static int is_small(const struct kvc__write_params *p)
{
	return kvc__strips_are_small(&p->sources) && p->token_count <= KVC__WRITE_SMALL_TOKENS &&
	       p->request_capacity <= SMALL_REQUESTS &&
	       p->token_count * p->bytes_hashed <= SMALL_BYTES;
}

static kvc_status launch_small(const struct kvc__write_params *p, void *stream)
{
	int64_t entries = p->is_computed && p->sources.head.hashed > 0 ? p->token_count : 0;
	const struct kvc__launch launch = {
		.grid_x = 1 + (unsigned)kvc__divide_up(entries,
		                      KVC__WRITE_SMALL_ENTRIES(p->sources.head.is_splitmix)),
		.block = KVC__WRITE_SMALL_THREADS,
		.programmatic = 1,
	};

	int is_step = !p->scratch && p->request_capacity <= KVC__WRITE_SMALL_THREADS;

	return kvc__cuda_launch(is_step ? &step_kernel : &small_kernel, &launch, p, stream);
}

static kvc_status launch_grid(
        struct kvc__kernel *kernel, const struct kvc__write_params *p, int64_t blocks, void *stream)
{
	struct kvc__launch launch = {
		.grid_x = (unsigned)(blocks > 0 ? blocks : 1),
		.block = 256,
		.programmatic = 1,
	};
	return kvc__cuda_launch(kernel, &launch, p, stream);
}

/* A block a request: there are no more of them with entries than there are entries. */
static int64_t chain_blocks(const struct kvc__write_params *p)
{
	int64_t blocks =
	        p->request_capacity < p->token_count ? p->request_capacity : p->token_count;

	return blocks < CHAIN_BLOCKS_MAX ? blocks : CHAIN_BLOCKS_MAX;
}

static kvc_status launch_hashes(
        const struct kvc__write_params *p, const kvc_group *group, void *stream)
{
	struct kvc__fingerprint_params hash;

	KVC__TRY(kvc__cuda_strips(&hash.sources, group));
	hash.slots = p->slots;
	hash.count = p->token_count;
	hash.slot_limit = p->records.count;
	hash.reserved_slot = p->own_rules ? p->records.reserved_slot : -1;
	hash.out = p->records.data + offsetof(kvc_record, fingerprint);
	hash.out_stride = p->records.stride;
	hash.out_by_slot = 1;
	hash.is_zero = !p->is_computed || p->sources.head.hashed == 0;
	hash.is_early = !hash.is_zero;
	hash.padding = 0;
	hash.offsets = p->offsets;
	hash.num_valid = p->num_valid;
	hash.request_capacity = p->request_capacity;
	hash.scan = NULL;
	return kvc__cuda_launch_fingerprints(&hash, stream);
}

static kvc_status launch_parts(const struct kvc__write_params *p, const struct kvc__chip *chip,
        const kvc_group *group, void *stream)
{
	int64_t entry_blocks = kvc__divide_up(p->token_count, 256);
	int64_t settle_blocks = (int64_t)chip->processors * SETTLE_BLOCKS;

	if (p->token_count > 0 && p->request_capacity > 0) {
		if (p->scratch)
			KVC__TRY(launch_grid(&mark_kernel, p, entry_blocks, stream));
		KVC__TRY(launch_grid(&chain_kernel, p, chain_blocks(p), stream));
	}
	KVC__TRY(launch_grid(&settle_kernel, p,
	        entry_blocks < settle_blocks ? entry_blocks : settle_blocks, stream));
	if (p->token_count == 0 || p->request_capacity == 0 || (p->scratch && !p->is_computed))
		return KVC_OK;
	return launch_hashes(p, group, stream);
}

kvc_status kvc__cuda_write(const struct kvc__cuda_write *call, void *stream)
{
	struct kvc__write_params p;
	struct kvc__chip chip;

	KVC__TRY(kvc__cuda_strips(&p.sources, &call->job->group));
	KVC__TRY(kvc__cuda_chip(&chip));
	set_write_params(&p, call);
	if (is_small(&p))
		return launch_small(&p, stream);
	kvc_status status = launch_parts(&p, &chip, &call->job->group, stream);
	return kvc__cuda_wipe_failed(
	        status, p.scratch, p.records.count * (int64_t)sizeof(*p.scratch), stream);
}

#endif
