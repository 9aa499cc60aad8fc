/* Groups as the canary's kernels take them: what the host works out once per call. */
#include "cuda/cuda.h"

#if defined(KVC_WITH_CUDA)

#include "cuda/canary_params.h"

#include "base/error.h"
#include "cpu/canary.h"

/* Bytes that partial coverage takes: of each head (xxh3), of each source (splitmix). */
#define PARTIAL_BYTES 16

static int64_t lesser(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static uint8_t log2_of(int64_t value)
{
	uint8_t shift = 0;

	while (value > 1 && value % 2 == 0) {
		value /= 2;
		shift++;
	}
	return value == 1 ? shift : 255;
}

static uint8_t finite_kind_of(kvc_dtype dtype)
{
	static const struct {
		uint8_t code, bits, kind;
	} kinds[] = {
		{ KVC_CODE_FLOAT, 64, KVC__FINITE_F64 },
		{ KVC_CODE_FLOAT, 32, KVC__FINITE_F32 },
		{ KVC_CODE_FLOAT, 16, KVC__FINITE_F16 },
		{ KVC_CODE_BFLOAT, 16, KVC__FINITE_BF16 },
		{ KVC_CODE_FLOAT8_E4M3FN, 8, KVC__FINITE_E4M3 },
		{ KVC_CODE_FLOAT8_E5M2, 8, KVC__FINITE_E5M2 },
	};

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (kinds[i].code == dtype.code && kinds[i].bits == dtype.bits && dtype.lanes == 1)
			return kinds[i].kind;
	return KVC__FINITE_NONE;
}

/* Do the bytes of a slot lie together? Of a table: in the order in which it is asked. */
static int lies_together(const kvc_source *source)
{
	return source->gather || source->head_count == 1 ||
	       source->head_stride_bytes == source->head_bytes;
}

/* What the coverage takes of a source: 'bytes' in runs of 'run'. */
static void set_runs(struct kvc__strip *out, const kvc_source *source, const kvc_group *group)
{
	int64_t bytes = source->read_bytes;
	int64_t run = lies_together(source) ? bytes : source->head_bytes;

	out->run_stride = source->gather ? source->head_bytes : source->head_stride_bytes;
	out->finite_run = (uint32_t)run;
	if (group->coverage == KVC_COVERAGE_PARTIAL) {
		if (group->fingerprint == KVC_FINGERPRINT_SPLITMIX) {
			bytes = lesser(PARTIAL_BYTES, bytes);
			run = lesser(run, bytes);
		} else {
			int64_t heads = (bytes - 1) / source->head_bytes + 1;
			run = lesser(PARTIAL_BYTES, source->head_bytes);
			bytes = heads * run;
		}
	}
	/* A run that is cut short is the last one. */
	out->bytes = group->coverage == KVC_COVERAGE_NONE ? 0 : (uint32_t)bytes;
	out->run = (uint32_t)lesser(run, bytes);
}

static uint8_t can_be_wide(const struct kvc__strip *strip, const kvc_source *source)
{
	uint64_t all = (uint64_t)(uintptr_t)strip->base | strip->bytes;

	if (source->row_count > 1)
		all |= (uint64_t)strip->row_stride;
	if (source->page_size > 1)
		all |= (uint64_t)strip->slot_stride;
	if (strip->run < strip->bytes)
		all |= strip->run | (uint64_t)strip->run_stride;
	return !source->gather && all % 16 == 0;
}

static kvc_status set_strip(struct kvc__strip *out, const kvc_group *group, int64_t index)
{
	static const struct kvc__strip empty = { 0 };
	const kvc_source *source = &group->sources[index];

	/* Partial coverage in runs of 16 bytes may round up to one head more. */
	if (source->read_bytes > INT32_MAX - PARTIAL_BYTES)
		return kvc__fail_source_number_range(index, index, "read_bytes", source->read_bytes,
		        1, INT32_MAX - PARTIAL_BYTES);
	*out = empty;
	out->base = source->base;
	out->row_stride = source->row_stride_bytes;
	out->slot_stride = source->gather ? 0 : source->slot_stride_bytes;
	out->gather = source->gather;
	out->id = source->id;
	out->head_bytes = (uint32_t)source->head_bytes;
	out->page_size = (int32_t)source->page_size;
	out->page_shift = log2_of(source->page_size);
	set_runs(out, source, group);
	if (source->gather) {
		out->unit_shift = log2_of(source->unit_bytes);
		out->units =
		        (uint32_t)(source->head_count * source->head_bytes / source->unit_bytes);
	}
	out->is_wide = can_be_wide(out, source);
	out->finite_kind = finite_kind_of(source->dtype);
	if (out->finite_kind != KVC__FINITE_NONE) {
		int64_t width = source->dtype.bits / 8;
		out->finite_bytes = (uint32_t)(source->read_bytes / width * width);
	}
	return KVC_OK;
}

/* Whole blocks of XXH3 in one piece. */
static int is_plain(const struct kvc__strip *strip)
{
	return strip->is_wide && strip->run == strip->bytes && strip->bytes % 1024 == 0;
}

kvc_status kvc__cuda_strips(struct kvc__strips_call *out, const kvc_group *group)
{
	struct kvc__strips_head head = { .slot_limit = INT64_MAX, .all_short = 1 };

	if (group->source_count > KVC__STRIPS_MAX)
		return kvc__fail_cuda_sources_max(-1, group->source_count, KVC__STRIPS_MAX);
	head.count = (int32_t)group->source_count;
	head.hashed = group->coverage == KVC_COVERAGE_NONE ? 0 : head.count;
	head.is_splitmix = group->fingerprint == KVC_FINGERPRINT_SPLITMIX;
	head.all_plain = !head.is_splitmix && head.hashed > 0;
	for (int64_t i = 0; i < group->source_count; i++) {
		const kvc_source *source = &group->sources[i];
		KVC__TRY(set_strip(&out->strips[i], group, i));
		head.slot_limit = lesser(head.slot_limit, source->row_count * source->page_size);
		head.bytes_hashed += out->strips[i].bytes;
		if (out->strips[i].bytes > (head.is_splitmix ? PARTIAL_BYTES : 240))
			head.all_short = 0;
		if (!is_plain(&out->strips[i]))
			head.all_plain = 0;
	}
	out->head = head;
	return KVC_OK;
}

struct kvc__cuda_batch kvc__cuda_batch_of(const struct kvc__batch *batch)
{
	struct kvc__cuda_batch out = {
		.count = batch->count,
		.rows = batch->rows,
		.prefix_lens = batch->prefix_lens,
		.namespaces = batch->namespaces,
		.verify_chain_in = batch->verify_chain_in,
		.write_chain_in = batch->write_chain_in,
		.chain_end = batch->chain_end,
		.owner_request = batch->owner_request,
	};
	return out;
}

struct kvc__cuda_records kvc__cuda_records_of(const kvc_group *group)
{
	struct kvc__cuda_records records = {
		.data = group->records,
		.count = group->record_count,
		.stride = group->record_stride_bytes,
		.owners = group->owners,
		.reserved_slot = group->reserved_slot,
		.is_wide = ((uint64_t)(uintptr_t)group->records |
		                   (uint64_t)group->record_stride_bytes) %
		                   16 ==
		           0,
		.source_id = group->source_count == 1 ? (int64_t)group->sources[0].id : -1,
	};
	return records;
}

#endif
