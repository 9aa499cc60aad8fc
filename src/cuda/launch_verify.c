/* Launching verify.cu: which kernel a call gets, by rule, and what it is told. */
#include "cuda/cuda.h"

#if defined(KVC_WITH_CUDA)

#include "cuda/back_end.h"
#include "cuda/driver.h"
#include "cuda/verify_params.h"

_Static_assert(sizeof(struct kvc__verify_params) <= KVC__PARAMS_BYTES_MAX, "one launch takes it");

/* Light: no bytes, one piece of 16 bytes, or short rows. The first two ignore all other sources. */
enum {
	VERIFY_NONE,
	VERIFY_PIECE,
	VERIFY_SHORT,
	VERIFY_PLAIN,
	VERIFY_ROWS,
	VERIFY_TILES,
	VERIFY_KINDS
};

static struct kvc__kernel verify_kernels[VERIFY_KINDS][2] = {
	{ { .name = "kvc_verify_light" }, { .name = "kvc_verify_light" } },
	{ { .name = "kvc_verify_piece" }, { .name = "kvc_verify_piece" } },
	{ { .name = "kvc_verify_short" }, { .name = "kvc_verify_short_large" } },
	{ { .name = "kvc_verify_plain" }, { .name = "kvc_verify_plain_large" } },
	{ { .name = "kvc_verify_rows" }, { .name = "kvc_verify_rows_large" } },
	{ { .name = "kvc_verify_tiles" }, { .name = "kvc_verify_tiles_large" } },
};
static struct kvc__kernel prefix_kernel = { .name = "kvc_verify_prefix" };

static void set_verify_params(struct kvc__verify_params *p, const struct kvc__cuda_verify *call)
{
	const struct kvc__verify *job = call->job;
	int own = job->rules == KVC_RULES_OWN;

	p->records = kvc__cuda_records_of(&job->group);
	p->batch = kvc__cuda_batch_of(&job->batch);
	p->ring = kvc__cuda_ring_of(job->ring);
	p->capacity = call->capacity;
	p->slots = job->slots;
	p->expected_tokens = job->expected_tokens;
	p->expected_positions = job->expected_positions;
	p->prev_slots = job->prev_slots;
	p->request = job->request;
	p->num_valid = call->num_valid;
	p->enable = call->enable;
	p->left_out = call->left_out;
	p->valid_prefix = job->valid_prefix;
	p->launch_tag = job->launch_tag;
	p->own_rules = own;
	p->compare_bytes = !own || (job->check_bytes && job->group.coverage != KVC_COVERAGE_NONE);
	p->check_tokens = job->check_tokens;
	p->check_finite = own && job->check_finite;
	if (!own)
		p->batch.chain_end = NULL;
	/* Below 0 and past the records no slot is looked at anyhow. */
	int64_t unread = own ? p->records.reserved_slot : 0;
	p->unread_slot = unread >= 0 && unread < p->records.count ? unread : -1;
}

/* Records as nearly everyone has them, and rows of the one source that is looked at. */
static int reads_plainly(const struct kvc__verify_params *p, int kind)
{
	const struct kvc__strip *strip = &p->sources.strips[0];

	return p->records.is_wide && p->records.count <= UINT32_MAX &&
	       p->records.stride <= UINT32_MAX &&
	       (kind != VERIFY_PIECE ||
	               (strip->page_shift == 0 && strip->row_stride <= UINT32_MAX));
}

/* A thread an entry where no rows are long; else by what the fingerprint needs. */
static int pick_kernel(const struct kvc__verify_params *p)
{
	const struct kvc__strips_head *head = &p->sources.head;
	const struct kvc__strip *first = p->sources.strips;

	if (p->compare_bytes && head->all_plain && !p->check_finite)
		return VERIFY_PLAIN;
	if (p->check_finite || (p->compare_bytes && !head->all_short))
		return head->is_splitmix && p->compare_bytes ? VERIFY_TILES : VERIFY_ROWS;
	if (!p->compare_bytes)
		return VERIFY_NONE;
	return head->hashed == 1 && first->is_wide && first->bytes == 16 && first->run == 16
	               ? VERIFY_PIECE
	               : VERIFY_SHORT;
}

static kvc_status launch_verify(const struct kvc__verify_params *p, int kind, void *stream)
{
	static const struct {
		int blocks;
		unsigned threads, shared;
	} shapes[] = {
		{ KVC__LIGHT_BLOCKS, KVC__LIGHT_THREADS, 0 },
		{ KVC__PIECE_BLOCKS, KVC__LIGHT_THREADS, 0 },
		{ KVC__PIECE_BLOCKS, KVC__LIGHT_THREADS, 0 },
		{ KVC__ROW_BLOCKS, KVC__ROW_THREADS, KVC__ROW_SHARED },
		{ KVC__ROW_BLOCKS, KVC__ROW_THREADS, KVC__ROW_SHARED },
		{ KVC__TILE_BLOCKS, KVC__TILE_THREADS, KVC__TILE_SHARED },
	};
	int64_t each = kind < VERIFY_PLAIN ? KVC__LIGHT_THREADS : 1;
	int64_t wanted = (p->capacity + each - 1) / each;
	struct kvc__chip chip;

	KVC__TRY(kvc__cuda_chip(&chip));
	int64_t most = (int64_t)chip.processors * shapes[kind].blocks;
	struct kvc__launch launch = {
		/* One block more counts. */
		.grid_x = (unsigned)(wanted < 1      ? 1
		                     : wanted < most ? wanted
		                                     : most) +
		          1,
		.block = shapes[kind].threads,
		.shared_bytes = shapes[kind].shared,
		.programmatic = 1,
	};
	return kvc__cuda_launch(
	        &verify_kernels[kind][!kvc__strips_are_small(&p->sources)], &launch, p, stream);
}

kvc_status kvc__cuda_verify(const struct kvc__cuda_verify *call, void *stream)
{
	struct kvc__verify_params p;

	set_verify_params(&p, call);
	KVC__TRY(kvc__cuda_strips(&p.sources, &call->job->group));
	int kind = pick_kernel(&p);
	p.is_plain = reads_plainly(&p, kind);
	p.padding = 0;
	if (p.valid_prefix && p.batch.count > 0) {
		struct kvc__launch launch = {
			.grid_x = (unsigned)((p.batch.count + 255) / 256),
			.block = 256,
			.programmatic = 1,
		};
		KVC__TRY(kvc__cuda_launch(&prefix_kernel, &launch, &p, stream));
	}
	return launch_verify(&p, kind, stream);
}

#endif
