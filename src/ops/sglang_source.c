/*
 * RealKvSource of SGLang: the checks of its constructor and of a launch, in their order, and the
 * kvc_source that it is.
 */
#include "ops/arguments.h"
#include "ops/sglang.h"

#define UNIT_BYTES 16 /* what SGLang's kernels load at once */

int kvc__sglang_is_contiguous(const kvc_tensor *tensor)
{
	int64_t expected = 1;

	for (int32_t d = 0; d < tensor->ndim; d++)
		if (tensor->shape[d] == 0)
			return 1;
	for (int32_t d = tensor->ndim - 1; d >= 0; d--) {
		if (tensor->shape[d] == 1)
			continue;
		if (kvc__tensor_stride(tensor, d) != expected)
			return 0;
		expected *= tensor->shape[d];
	}
	return 1;
}

kvc_status kvc__sglang_check_contiguous(const struct kvc__named *list, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (list[i].tensor && !kvc__sglang_is_contiguous(list[i].tensor))
			return kvc__fail_sglang_tensor_must_be_contiguous(-1, list[i].name);
	return KVC_OK;
}

kvc_status kvc__sglang_check_all_present(const struct kvc__named *list, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		KVC__TRY(kvc__check_present(list[i].tensor, list[i].name));
		KVC__TRY(kvc__check_shape(list[i].tensor, list[i].name));
	}
	return KVC_OK;
}

/* A tensor whose shape is the strides of another one, to print them. 'strides' is room for them. */
static kvc_tensor strides_as_shape(const kvc_tensor *tensor, int64_t strides[KVC__NDIM_MAX])
{
	for (int32_t d = 0; d < tensor->ndim; d++)
		strides[d] = kvc__tensor_stride(tensor, d);
	return kvc_tensor_make(NULL, tensor->dtype, tensor->ndim, strides);
}

/* Held at the end of the range: strides of a tensor of one row, or of none, may be anything. */
static int64_t times(int64_t a, int64_t b)
{
	int64_t product;

	if (__builtin_mul_overflow(a, b, &product))
		return (a < 0) == (b < 0) ? INT64_MAX : INT64_MIN;
	return product;
}

static kvc_status check_numbers_of(const kvc_sglang_source *source)
{
	int64_t token_bytes = source->num_bytes_per_token, read_bytes = source->read_bytes;

	if (source->page_size < 1)
		return kvc__fail_sglang_source_page_size(-1, source->page_size);
	if (token_bytes <= 0 || token_bytes % UNIT_BYTES != 0)
		return kvc__fail_sglang_source_token_bytes(-1, token_bytes);
	if (read_bytes <= 0 || read_bytes > token_bytes || read_bytes % UNIT_BYTES != 0)
		return kvc__fail_sglang_source_read_bytes(-1, token_bytes, read_bytes);
	return KVC_OK;
}

kvc_status kvc_sglang_source_check(const kvc_sglang_source *source)
{
	int64_t strides[KVC__NDIM_MAX], stride_bytes, needed, row_bytes;

	if (!source)
		return kvc__fail_null_argument(-1, "source");
	const kvc_tensor *tensor = source->tensor;
	KVC__TRY(kvc__sglang_check_all_present(&(struct kvc__named){ tensor, "tensor" }, 1));
	KVC__TRY(check_numbers_of(source));
	if (tensor->ndim < 2)
		return kvc__fail_sglang_source_must_be_2_d(-1, tensor);
	int64_t width = kvc__dtype_bytes(tensor->dtype);
	if (width == 0)
		return kvc__fail_source_pool_dtype(-1, tensor->dtype);
	/* Strides of an empty tensor may be anything. */
	stride_bytes = times(kvc__tensor_stride(tensor, 0), width);
	if (stride_bytes % UNIT_BYTES != 0) {
		kvc_tensor as_shape = strides_as_shape(tensor, strides);
		return kvc__fail_sglang_source_row_stride(
		        -1, stride_bytes, tensor, &as_shape, tensor->dtype);
	}
	needed = times(source->page_size, source->num_bytes_per_token);
	row_bytes = times(tensor->shape[1], width);
	if (row_bytes < needed)
		return kvc__fail_sglang_source_row_width(-1, row_bytes, source->page_size,
		        source->num_bytes_per_token, needed, tensor, tensor->dtype);
	return KVC_OK;
}

kvc_status kvc_sglang_source_check_launch(const kvc_sglang_source *source, int64_t index)
{
	int64_t strides[KVC__NDIM_MAX];

	if (!source)
		return kvc__fail_null_argument(index, "source");
	const kvc_tensor *tensor = source->tensor;
	KVC__TRY(kvc__sglang_check_all_present(&(struct kvc__named){ tensor, "tensor" }, 1));
	if (tensor->ndim > 0 && kvc__tensor_stride(tensor, tensor->ndim - 1) != 1) {
		kvc_tensor as_shape = strides_as_shape(tensor, strides);
		return kvc__fail_sglang_source_rows_packed(index, index, &as_shape);
	}
	if (tensor->ndim != 2)
		return kvc__fail_sglang_source_view_must_be_2_d(index, index, tensor->ndim);
	return KVC_OK;
}

/*
 * Bytes of a row that are not packed, which SGLang's reference reads element by element, are heads
 * of one element each. What is left to be refused then finds kvc__group_take().
 */
static kvc_status take_source(kvc_source *out, const kvc_sglang_source *source, int64_t index)
{
	const kvc_tensor *tensor = source->tensor;

	KVC__TRY(kvc_sglang_source_check(source));
	if (tensor->ndim != 2)
		return kvc__fail_sglang_source_view_must_be_2_d(index, index, tensor->ndim);
	KVC__TRY(kvc__check_bounds(tensor, "real_kv_sources"));
	int64_t width = kvc__dtype_bytes(tensor->dtype);
	int64_t elements = source->num_bytes_per_token / width;
	int64_t inner = kvc__tensor_stride(tensor, 1);
	kvc_source taken = {
		.base = kvc__tensor_data(tensor),
		.row_count = tensor->shape[0],
		.row_stride_bytes = times(kvc__tensor_stride(tensor, 0), width),
		.page_size = source->page_size,
		.slot_stride_bytes = source->num_bytes_per_token,
		.head_count = 1,
		.head_bytes = source->num_bytes_per_token,
		.read_bytes = source->read_bytes,
		.id = (uint64_t)index,
		.dtype = KVC_UINT8,
	};
	if (tensor->shape[0] <= 1) /* then the stride says nothing about the row */
		taken.row_stride_bytes =
		        times(times(tensor->shape[1], inner > 0 ? inner : 1), width);
	if (inner != 1) {
		taken.slot_stride_bytes = times(times(elements, inner), width);
		taken.head_count = elements;
		taken.head_bytes = width;
		taken.head_stride_bytes = times(inner, width);
	}
	*out = taken;
	return KVC_OK;
}

kvc_status kvc__sglang_take_sources(kvc_source out[KVC_SGLANG_SOURCES_MAX], int64_t *count_out,
        int64_t *slot_limit_out, const kvc_sglang_context *context)
{
	int64_t count = context->real_kv_source_count, limit = INT64_MAX;

	for (int64_t i = 0; i < count; i++) {
		KVC__TRY(take_source(&out[i], &context->real_kv_sources[i], i));
		int64_t slots;
		if (__builtin_mul_overflow(out[i].row_count, out[i].page_size, &slots))
			slots = INT64_MAX;
		if (slots < limit)
			limit = slots;
	}
	if (context->real_kv_hash_mode == KVC_COVERAGE_NONE) {
		count = 0;
		limit = INT64_MAX;
	}
	*count_out = count;
	*slot_limit_out = limit;
	return KVC_OK;
}
