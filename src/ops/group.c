/*
 * Groups and their sources: making a source from a pool, and checking at registration all that the
 * back ends later rely on without looking, so that no later call reads outside a pool.
 */
#include "ops/group.h"

#include "cpu/hash.h"
#include "cuda/cuda.h"
#include "ops/arguments.h"

/* ---- a source from a pool tensor ---- */

/* The stride of dimension d in elements. Of a dimension with one entry, and in a pool without any, it
 * means nothing and may be any number: then what a contiguous pool would have. */
static int64_t stride_of(const kvc_tensor *pool, int32_t d)
{
	int64_t contiguous = d == 0 ? pool->shape[1] * pool->shape[2] : pool->shape[2];

	return pool->shape[d] > 1 && kvc__tensor_count(pool) > 0 ? kvc__tensor_stride(pool, d)
	                                                         : contiguous;
}

static kvc_status check_pool(const kvc_tensor *pool)
{
	KVC__TRY(kvc__check_present(pool, "pool"));
	if (pool->ndim != 3)
		return kvc__fail_source_pool_must_be_3_d(-1, pool);
	if (kvc__dtype_bytes(pool->dtype) == 0)
		return kvc__fail_source_pool_dtype(-1, pool->dtype);
	KVC__TRY(kvc__check_bounds(pool, "pool"));
	int64_t slot = stride_of(pool, 0), head = stride_of(pool, 1);
	if (slot < 0 || head < 0 || !kvc__tensor_rows_contiguous(pool))
		return kvc__fail_source_pool_strides(-1, slot, head, kvc__tensor_stride(pool, 2));
	return KVC_OK;
}

kvc_status kvc_source_from_pool(kvc_source *out, const kvc_tensor *pool, uint64_t id)
{
	if (!out)
		return kvc__fail_null_argument(-1, "out");
	KVC__TRY(check_pool(pool));

	int64_t width = kvc__dtype_bytes(pool->dtype);
	kvc_source source = {
		.base = kvc__tensor_data(pool),
		.row_count = pool->shape[0],
		.row_stride_bytes = stride_of(pool, 0) * width,
		.page_size = 1,
		.slot_stride_bytes = 0,
		.head_count = pool->shape[1],
		.head_bytes = pool->shape[2] * width,
		.head_stride_bytes = stride_of(pool, 1) * width,
		.read_bytes = pool->shape[1] * pool->shape[2] * width,
		.id = id,
		.dtype = pool->dtype,
	};
	struct kvc__extent extent = kvc__tensor_extent(pool);
	int64_t slot_bytes = (source.head_count - 1) * source.head_stride_bytes + source.head_bytes;
	if (slot_bytes > source.row_stride_bytes && source.row_count > 0) {
		/* Heads lie outside slots ([heads, slots, dim], seen from the side), so a slot does
		 * not fit between it and the next: the whole pool becomes one row. */
		source.page_size = source.row_count;
		source.row_count = 1;
		source.slot_stride_bytes = source.row_stride_bytes;
		source.row_stride_bytes = (int64_t)(extent.past - extent.first);
	}
	*out = source;
	return KVC_OK;
}

/* ---- checks of a source ---- */

static kvc_status check_range(
        int64_t index, const char *name, int64_t value, int64_t first, int64_t last)
{
	if (value < first || value > last)
		return kvc__fail_source_number_range(index, index, name, value, first, last);
	return KVC_OK;
}

/* Every number on its own, and products that must not overflow. */
static kvc_status check_numbers(const kvc_source *source, int64_t index)
{
	KVC__TRY(check_range(index, "row_count", source->row_count, 0, INT64_MAX));
	KVC__TRY(check_range(index, "page_size", source->page_size, 1, INT32_MAX));
	if (source->row_count > INT64_MAX / source->page_size)
		return check_range(
		        index, "row_count", source->row_count, 0, INT64_MAX / source->page_size);
	int64_t rows = source->row_count > 0 ? source->row_count : 1;
	KVC__TRY(check_range(
	        index, "row_stride_bytes", source->row_stride_bytes, 0, INT64_MAX / rows));
	KVC__TRY(check_range(index, "head_count", source->head_count, 1, INT32_MAX));
	KVC__TRY(check_range(index, "head_bytes", source->head_bytes, 1, INT32_MAX));
	return check_range(index, "read_bytes", source->read_bytes, 1,
	        source->head_count * source->head_bytes);
}

/* The slots of one page lie inside its row: 'needed' may saturate. */
static kvc_status check_strides_in_row(const kvc_source *source, int64_t index)
{
	int64_t slots, heads, needed;

	KVC__TRY(check_range(index, "slot_stride_bytes", source->slot_stride_bytes, 0, INT64_MAX));
	KVC__TRY(check_range(index, "head_stride_bytes", source->head_stride_bytes, 0, INT64_MAX));
	if (__builtin_mul_overflow(source->page_size - 1, source->slot_stride_bytes, &slots) ||
	        __builtin_mul_overflow(source->head_count - 1, source->head_stride_bytes, &heads) ||
	        __builtin_add_overflow(slots, heads, &needed) ||
	        __builtin_add_overflow(needed, source->head_bytes, &needed))
		needed = INT64_MAX;
	if (needed > source->row_stride_bytes)
		return kvc__fail_source_slot_leaves_row(
		        index, index, source->page_size, needed, source->row_stride_bytes);
	return KVC_OK;
}

/* The table's offsets are looked at only where they lie in host memory; the device bounds them. */
static kvc_status check_gather(const kvc_source *source, int64_t index, int on_host)
{
	int64_t slot_bytes = source->head_count * source->head_bytes;
	int64_t unit = source->unit_bytes;

	if ((unit != 1 && unit != 2 && unit != 4 && unit != 8 && unit != 16) ||
	        slot_bytes % unit != 0)
		return kvc__fail_source_gather_units(index, index, unit, slot_bytes);
	/* The table itself must fit the address space. */
	int64_t slots_max = INT64_MAX / (int64_t)sizeof(*source->gather) / (slot_bytes / unit);
	KVC__TRY(check_range(index, "page_size", source->page_size, 1, slots_max));
	int64_t entries = source->page_size * (slot_bytes / unit);
	for (int64_t i = 0; on_host && i < entries; i++) {
		int64_t offset = source->gather[i];
		if (offset < 0 || offset > source->row_stride_bytes - unit)
			return kvc__fail_source_gather_leaves_row(
			        index, index, i, offset, source->row_stride_bytes);
	}
	return KVC_OK;
}

static kvc_status check_source(const kvc_group *group, int64_t index)
{
	const kvc_source *source = &group->sources[index];

	KVC__TRY(check_numbers(source, index));
	if (source->row_count > 0 && !source->base)
		return kvc__fail_null_argument(index, "base of a source");
	KVC__TRY(source->gather ? check_gather(source, index, !kvc__is_cuda(group->device))
	                        : check_strides_in_row(source, index));
	int64_t slot_count = source->row_count * source->page_size;
	if (slot_count < group->record_count)
		return kvc__fail_source_too_few_slots(index, index, slot_count, source->row_count,
		        source->page_size, group->record_count);
	int64_t slot_bytes = source->head_count * source->head_bytes;
	if (group->stamping == KVC_STAMP_CLEAR && source->read_bytes != slot_bytes)
		return kvc__fail_group_clear_partial_slot(
		        index, index, source->read_bytes, slot_bytes);
	return KVC_OK;
}

/* ---- checks of a group ---- */

static kvc_status check_option(const char *name, int64_t value, int64_t last)
{
	if (value < 0 || value > last)
		return kvc__fail_group_option_unknown(-1, name, value, last);
	return KVC_OK;
}

static kvc_status check_count(const char *name, int64_t count, const void *entries)
{
	if (count < 0)
		return kvc__fail_group_count_negative(-1, name, count);
	if (count > 0 && !entries)
		return kvc__fail_null_argument(-1, name);
	return KVC_OK;
}

static kvc_status check_alignment(const char *name, const void *entries)
{
	if ((uintptr_t)entries % 8 != 0)
		return kvc__fail_group_misaligned(-1, name, (uint64_t)(uintptr_t)entries);
	return KVC_OK;
}

static kvc_status check_options(const kvc_group *group)
{
	KVC__TRY(check_option("fingerprint", group->fingerprint, KVC_FINGERPRINT_SPLITMIX));
	KVC__TRY(check_option("coverage", group->coverage, KVC_COVERAGE_ALL));
	KVC__TRY(check_option("stamping", group->stamping, KVC_STAMP_CLEAR));
	if (group->stamping == KVC_STAMP_CLEAR && group->fingerprint != KVC_FINGERPRINT_XXH3)
		return kvc__fail_group_clear_needs_xxh3(-1, group->fingerprint);
	return KVC_OK;
}

static kvc_status check_records(const kvc_group *group)
{
	KVC__TRY(check_count("group.records", group->record_count, group->records));
	int64_t stride = group->record_stride_bytes;
	int64_t records = group->record_count > 0 ? group->record_count : 1;
	if (stride < KVC_RECORD_BYTES || stride % 8 != 0 || stride > INT64_MAX / records)
		return kvc__fail_group_record_stride(-1, stride, group->record_count);
	KVC__TRY(check_alignment("group.records", group->records));
	return check_alignment("group.owners", group->owners);
}

kvc_status kvc__group_take(kvc_group *out, const kvc_group *given)
{
	KVC__TAKE(out, given, "group");
	KVC__TRY(kvc__check_usable_device(out->device, "group"));
	KVC__TRY(check_options(out));
	KVC__TRY(check_records(out));
	KVC__TRY(check_count("group.sources", out->source_count, out->sources));
	for (int64_t i = 0; i < out->source_count; i++)
		KVC__TRY(check_source(out, i));
	return KVC_OK;
}

kvc_status kvc_group_check(const kvc_group *group)
{
	kvc_group taken = KVC_GROUP_INIT;

	KVC__TRY(kvc__group_take(&taken, group));
	for (int64_t second = 1; second < taken.source_count; second++)
		for (int64_t first = 0; first < second; first++)
			if (taken.sources[first].id == taken.sources[second].id)
				return kvc__fail_source_id_duplicate(
				        second, first, second, (int64_t)taken.sources[second].id);
	return KVC_OK;
}

int64_t kvc__group_slot_limit(const kvc_group *group, int in_records)
{
	int64_t limit = in_records ? group->record_count : INT64_MAX;

	for (int64_t i = 0; i < group->source_count; i++) {
		const kvc_source *source = &group->sources[i];
		if (source->row_count * source->page_size < limit)
			limit = source->row_count * source->page_size;
	}
	return limit;
}

kvc_status kvc__group_check_slot_values(
        const int64_t *slots, int64_t count, const char *name, int64_t limit)
{
	for (int64_t i = 0; i < count; i++)
		if (slots[i] >= limit)
			return kvc__fail_canary_slot_out_of_range(i, name, i, slots[i], limit);
	return KVC_OK;
}

kvc_status kvc__group_check_same_device(
        const kvc_group *group, const struct kvc__named *list, size_t count)
{
	/* A tensor that stands for the group's device, so that the others can be compared. */
	int64_t none[1] = { 0 };
	kvc_tensor records = kvc_tensor_make(NULL, KVC_INT64, 1, none);
	struct kvc__named all[KVC__GROUP_TENSORS_MAX + 1] = { { &records, "group" } };
	kvc_device device;

	records.device = group->device;
	for (size_t i = 0; i < count; i++)
		all[i + 1] = list[i];
	return kvc__check_same_device(&device, all, count + 1);
}

kvc_status kvc__group_check_devices(
        const kvc_group *group, const struct kvc__named *list, size_t count)
{
	KVC__TRY(kvc__group_check_same_device(group, list, count));
	return kvc__check_device(group->device, "group");
}

kvc_status kvc__group_check_slot_vector(
        const kvc_group *group, const kvc_tensor *slots, const char *name)
{
	struct kvc__named list[] = { { slots, name } };

	KVC__TRY(kvc__check_vector(slots, name, KVC_INT64, KVC__ANY_LENGTH));
	return kvc__group_check_same_device(group, list, 1);
}

kvc_status kvc__group_check_stated(const kvc_group *group, kvc_device device, const char *name)
{
	int64_t none[1] = { 0 };
	kvc_tensor stand_in = kvc_tensor_make(NULL, KVC_INT64, 1, none);
	struct kvc__named list[] = { { &stand_in, name } };

	stand_in.device = device;
	return kvc__group_check_same_device(group, list, 1);
}

kvc_status kvc__group_check_pointers(const kvc_group *group)
{
	KVC__TRY(kvc__cuda_check_pointer(group->records, "group.records"));
	KVC__TRY(kvc__cuda_check_pointer(group->owners, "group.owners"));
	for (int64_t i = 0; i < group->source_count; i++) {
		KVC__TRY(kvc__cuda_check_pointer(group->sources[i].base, "base of a source"));
		KVC__TRY(kvc__cuda_check_pointer(group->sources[i].gather, "gather of a source"));
	}
	return KVC_OK;
}

kvc_status kvc__group_check_slots(
        const kvc_group *group, const kvc_tensor *slots, const char *name, int64_t limit)
{
	struct kvc__named list[] = { { slots, name } };

	KVC__TRY(kvc__check_vector(slots, name, KVC_INT64, KVC__ANY_LENGTH));
	KVC__TRY(kvc__group_check_devices(group, list, 1));
	const int64_t *values = (const void *)kvc__tensor_data(slots);
	return kvc__group_check_slot_values(values, slots->shape[0], name, limit);
}

/* ---- stamps ---- */

static const kvc_source *find_source(const kvc_group *group, uint64_t id)
{
	for (int64_t i = 0; i < group->source_count; i++)
		if (group->sources[i].id == id)
			return &group->sources[i];
	return NULL;
}

kvc_status kvc_group_stamp(kvc_stamp *out, const kvc_group *group, uint64_t k_id, uint64_t v_id)
{
	kvc_group taken = KVC_GROUP_INIT;
	kvc_stamp stamp = KVC_STAMP_INIT;

	if (!out)
		return kvc__fail_null_argument(-1, "out");
	KVC__TRY(kvc__group_take(&taken, group));
	if (taken.stamping != KVC_STAMP_CLEAR)
		return kvc__fail_stamp_needs_clear_group(-1, taken.stamping);
	const kvc_source *k = find_source(&taken, k_id), *v = find_source(&taken, v_id);
	if (!k || !v)
		return kvc__fail_stamp_source_missing(
		        -1, (int64_t)(k ? v_id : k_id), taken.source_count);
	if (k->head_bytes != v->head_bytes)
		return kvc__fail_stamp_heads_differ(
		        -1, (int64_t)k_id, k->head_bytes, (int64_t)v_id, v->head_bytes);

	stamp.records = taken.records;
	stamp.record_stride_bytes = taken.record_stride_bytes;
	stamp.record_count = taken.record_count;
	stamp.k_id = k_id;
	stamp.v_id = v_id;
	stamp.coverage = taken.coverage;
	stamp.head_bytes = k->head_bytes;
	*out = stamp;
	return KVC_OK;
}

/* ---- chains ---- */

uint64_t kvc_chain_start(uint64_t name_space)
{
	return kvc__chain_start(name_space);
}

uint64_t kvc_chain_extend(
        uint64_t chain, const int64_t *tokens, int64_t first_position, int64_t count)
{
	for (int64_t i = 0; i < count; i++) {
		/* Unsigned, because positions near the end of int64 must wrap, not be undefined. */
		uint64_t position = (uint64_t)first_position + (uint64_t)i;
		chain = kvc__mix3(chain, (uint64_t)tokens[i], position);
	}
	return chain;
}
