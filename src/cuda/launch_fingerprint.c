/* Launching fingerprint.cu: fingerprints of lists of slots, and the finite scan. */
#include "cuda/cuda.h"

#if defined(KVC_WITH_CUDA)

#include "cuda/fingerprint_launch.h"

#include "cuda/back_end.h"
#include "cuda/driver.h"

#include <stddef.h>

_Static_assert(
        sizeof(struct kvc__fingerprint_params) <= KVC__PARAMS_BYTES_MAX, "one launch takes it");

#define SCAN_BLOCKS 8 /* a multiprocessor, resident at once */

static struct kvc__kernel rows_kernels[2] = {
	{ .name = "kvc_fingerprint_rows" },
	{ .name = "kvc_fingerprint_rows_large" },
};
static struct kvc__kernel plain_kernels[2] = {
	{ .name = "kvc_fingerprint_plain" },
	{ .name = "kvc_fingerprint_plain_large" },
};
static struct kvc__kernel tiles_kernels[2] = {
	{ .name = "kvc_fingerprint_tiles" },
	{ .name = "kvc_fingerprint_tiles_large" },
};
static struct kvc__kernel scan_kernels[2] = {
	{ .name = "kvc_fingerprint_scan" },
	{ .name = "kvc_fingerprint_scan_large" },
};
static struct kvc__kernel first_kernels[2] = {
	{ .name = "kvc_fingerprint_first" },
	{ .name = "kvc_fingerprint_first_large" },
};

static unsigned blocks_for(int64_t wanted, int64_t most)
{
	return (unsigned)(wanted < 1 ? 1 : wanted < most ? wanted : most);
}

kvc_status kvc__cuda_launch_fingerprints(const struct kvc__fingerprint_params *p, void *stream)
{
	int large = !kvc__strips_are_small(&p->sources);
	int tiles = p->sources.head.is_splitmix && !p->is_zero;
	int plain = p->sources.head.all_plain && !p->is_zero;
	struct kvc__kernel *kernel = tiles ? tiles_kernels : plain ? plain_kernels : rows_kernels;
	struct kvc__launch launch = { .programmatic = 1 };
	struct kvc__chip chip;

	KVC__TRY(kvc__cuda_chip(&chip));
	if (p->is_zero) /* nothing to wait for: as many as a block holds */
		launch.grid_x = blocks_for((p->count + 63) / 64, 65535);
	else
		launch.grid_x = blocks_for(p->count,
		        (int64_t)chip.processors * (tiles ? KVC__TILE_BLOCKS : KVC__ROW_BLOCKS));
	launch.block = tiles ? KVC__TILE_THREADS : KVC__ROW_THREADS;
	launch.shared_bytes = tiles ? KVC__TILE_SHARED : KVC__ROW_SHARED;
	return kvc__cuda_launch(&kernel[large], &launch, p, stream);
}

static void set_slots(struct kvc__fingerprint_params *p, const int64_t *slots, int64_t count)
{
	p->slots = slots;
	p->count = count;
	p->slot_limit = p->sources.head.slot_limit;
	p->reserved_slot = -1;
	p->out = NULL;
	p->out_stride = 0;
	p->out_by_slot = 0;
	p->is_zero = 0;
	p->is_early = 0;
	p->padding = 0;
	p->offsets = NULL;
	p->num_valid = NULL;
	p->request_capacity = 0;
	p->scan = NULL;
}

kvc_status kvc__cuda_fingerprint(
        uint64_t *out, const kvc_group *group, const int64_t *slots, int64_t count, void *stream)
{
	struct kvc__fingerprint_params p;

	KVC__TRY(kvc__cuda_strips(&p.sources, group));
	if (count == 0)
		return KVC_OK;
	set_slots(&p, slots, count);
	p.out = (char *)out;
	p.out_stride = sizeof(*out);
	return kvc__cuda_launch_fingerprints(&p, stream);
}

kvc_status kvc__cuda_scan_finite(kvc_finite_scan *out, const kvc_group *group, const int64_t *slots,
        int64_t count, void *stream)
{
	const struct kvc__driver *driver = kvc__driver(NULL);
	const size_t named = offsetof(kvc_finite_scan, first_slot);
	CUdeviceptr at = (CUdeviceptr)(uintptr_t)out;
	struct kvc__fingerprint_params p;
	struct kvc__chip chip;

	KVC__TRY(kvc__cuda_strips(&p.sources, group));
	KVC__TRY(kvc__cuda_chip(&chip));
	/* All zero, but for the names of the first one, which are -1. */
	KVC__TRY(kvc__driver_check(
	        driver->memset_async(at, 0, named, (CUstream)stream), "scan_finite"));
	KVC__TRY(kvc__driver_check(
	        driver->memset_async(at + named, 0xFF, sizeof(*out) - named, (CUstream)stream),
	        "scan_finite"));
	if (count == 0)
		return KVC_OK;
	set_slots(&p, slots, count);
	p.scan = out;
	int large = !kvc__strips_are_small(&p.sources);
	struct kvc__launch all = {
		.grid_x = blocks_for((count + 7) / 8, (int64_t)chip.processors * SCAN_BLOCKS),
		.block = 256,
	};
	struct kvc__launch first = { .grid_x = 1, .block = 32, .programmatic = 1 };
	KVC__TRY(kvc__cuda_launch(&scan_kernels[large], &all, &p, stream));
	return kvc__cuda_launch(&first_kernels[large], &first, &p, stream);
}

#endif
