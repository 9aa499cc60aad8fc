/* Looking at arguments: tensor.h says what each function promises. */
#include "base/tensor.h"

#include <string.h>

/* How much longer than known a struct may be; a wild size must not make us read far. */
#define STRUCT_TAIL_MAX 256

int kvc__dtype_among(kvc_dtype dtype, const kvc_dtype *list, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (kvc__dtype_equal(dtype, list[i]))
			return 1;
	return 0;
}

int kvc__tensor_rows_contiguous(const kvc_tensor *tensor)
{
	int32_t last = tensor->ndim - 1;

	return last < 0 || tensor->shape[last] <= 1 || kvc__tensor_stride(tensor, last) == 1;
}

struct kvc__extent kvc__tensor_extent(const kvc_tensor *tensor)
{
	struct kvc__extent extent = { 0, 0 };
	int64_t lowest = 0, highest = 0; /* element offsets */
	int64_t width = kvc__dtype_bytes(tensor->dtype);

	int64_t count = kvc__tensor_count(tensor);
	if (count == 0)
		return extent;
	if (!tensor->strides)
		highest = count - 1;
	for (int32_t d = 0; tensor->strides && d < tensor->ndim; d++) {
		int64_t reach = (tensor->shape[d] - 1) * kvc__tensor_stride(tensor, d);
		*(reach < 0 ? &lowest : &highest) += reach;
	}
	extent.first = (uintptr_t)kvc__tensor_data(tensor) + (uintptr_t)(lowest * width);
	extent.past = (uintptr_t)kvc__tensor_data(tensor) + (uintptr_t)((highest + 1) * width);
	return extent;
}

/* memcpy, because a tensor's byte_offset may leave its elements unaligned. */
int64_t kvc__index_at(const kvc_tensor *tensor, int64_t i)
{
	int64_t width = kvc__dtype_bytes(tensor->dtype);
	const char *at = kvc__tensor_data(tensor) + i * kvc__tensor_stride(tensor, 0) * width;
	int64_t wide;
	int32_t narrow;

	if (width == 8) {
		memcpy(&wide, at, sizeof(wide));
		return wide;
	}
	memcpy(&narrow, at, sizeof(narrow));
	return narrow;
}

kvc_status kvc__check_present(const kvc_tensor *tensor, const char *name)
{
	if (!tensor)
		return kvc__fail_null_argument(-1, name);
	if (tensor->ndim > 0 && !tensor->shape)
		return kvc__fail_null_argument(-1, name);
	return KVC_OK;
}

#define SPAN_MAX (INT64_C(1) << 62)

static int64_t width_of(const kvc_tensor *tensor)
{
	return kvc__dtype_bytes(tensor->dtype) ? kvc__dtype_bytes(tensor->dtype) : 1;
}

/* Is the product of the shape, in bytes, at most 2^62, whatever of it is multiplied first? A 0 does
 * not make up for the others: strides and rows are products of some of them. */
static int count_fits(const kvc_tensor *tensor)
{
	int64_t count = width_of(tensor);

	for (int32_t d = 0; d < tensor->ndim; d++) {
		int64_t entries = tensor->shape[d];
		if (entries < 0 ||
		        __builtin_mul_overflow(count, entries > 0 ? entries : 1, &count) ||
		        count > SPAN_MAX)
			return 0;
	}
	return 1;
}

/* And what the strides span? Nothing is ever addressed in an empty tensor: its strides may be
 * anything. */
static int span_fits(const kvc_tensor *tensor)
{
	int64_t span = width_of(tensor), reach;

	if (!tensor->strides || kvc__tensor_count(tensor) == 0)
		return 1; /* a contiguous array spans what it counts: count_fits() has looked */
	for (int32_t d = 0; d < tensor->ndim; d++) {
		int64_t stride = kvc__tensor_stride(tensor, d);
		if (stride == INT64_MIN ||
		        __builtin_mul_overflow(
		                tensor->shape[d] - 1, stride < 0 ? -stride : stride, &reach) ||
		        __builtin_mul_overflow(reach, width_of(tensor), &reach) ||
		        __builtin_add_overflow(span, reach, &span) || span > SPAN_MAX)
			return 0;
	}
	return 1;
}

kvc_status kvc__check_shape(const kvc_tensor *tensor, const char *name)
{
	if (tensor->ndim < 0 || tensor->ndim > KVC__NDIM_MAX || !count_fits(tensor) ||
	        !span_fits(tensor))
		return kvc__fail_tensor_shape_impossible(-1, name, tensor);
	return KVC_OK;
}

kvc_status kvc__check_bounds(const kvc_tensor *tensor, const char *name)
{
	KVC__TRY(kvc__check_shape(tensor, name));
	return kvc__check_data(tensor, name);
}

kvc_status kvc__check_data(const kvc_tensor *tensor, const char *name)
{
	if (!tensor->data && kvc__tensor_count(tensor) > 0)
		return kvc__fail_tensor_data_null(-1, name, tensor);
	return KVC_OK;
}

/* The kind of memory: KVC_DEVICE_CPU, KVC_DEVICE_CUDA, or 0 if unknown. */
static int device_kind(kvc_device device)
{
	switch (device.device_type) {
	case KVC_DEVICE_CPU:
	case KVC_DEVICE_CUDA_HOST:
		return KVC_DEVICE_CPU;
	case KVC_DEVICE_CUDA:
	case KVC_DEVICE_CUDA_MANAGED:
		return KVC_DEVICE_CUDA;
	default:
		return 0;
	}
}

/* Host memory is one device, whatever its id says. */
static int same_device(kvc_device a, kvc_device b)
{
	return device_kind(a) == device_kind(b) &&
	       (device_kind(a) == KVC_DEVICE_CPU || a.device_id == b.device_id);
}

kvc_status kvc__check_device(kvc_device device, const char *name)
{
	if (device_kind(device) == 0)
		return kvc__fail_device_unknown(-1, name, device.device_type);
	if (device_kind(device) == KVC_DEVICE_CUDA)
		return kvc__fail_no_cuda(-1, name, "this operation works on host memory only");
	return KVC_OK;
}

kvc_status kvc__check_same_device(kvc_device *out, const struct kvc__named *list, size_t count)
{
	const struct kvc__named *first = NULL;

	for (size_t i = 0; i < count; i++) {
		if (!list[i].tensor)
			continue;
		if (device_kind(list[i].tensor->device) == 0)
			return kvc__fail_device_unknown(
			        -1, list[i].name, list[i].tensor->device.device_type);
		if (!first)
			first = &list[i];
	}
	for (size_t i = 0; i < count; i++) {
		kvc_device a, b;
		if (!list[i].tensor)
			continue;
		a = list[i].tensor->device, b = first->tensor->device;
		if (!same_device(a, b))
			return kvc__fail_device_mismatch(-1, list[i].name, a.device_type,
			        a.device_id, first->name, b.device_type, b.device_id);
	}
	if (first)
		*out = first->tensor->device;
	return KVC_OK;
}

kvc_status kvc__check_devices(const struct kvc__named *list, size_t count)
{
	kvc_device device = { KVC_DEVICE_CPU, 0 };

	KVC__TRY(kvc__check_same_device(&device, list, count));
	for (size_t i = 0; i < count; i++)
		if (list[i].tensor)
			return kvc__check_device(device, list[i].name);
	return KVC_OK;
}

int kvc__is_cuda(kvc_device device)
{
	return device_kind(device) == KVC_DEVICE_CUDA;
}

static int all_zero(const char *bytes, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (bytes[i])
			return 0;
	return 1;
}

kvc_status kvc__check_struct(
        const void *given, size_t known_bytes, size_t smallest_bytes, const char *name)
{
	size_t given_bytes;

	if (!given)
		return kvc__fail_null_argument(-1, name);
	memcpy(&given_bytes, given, sizeof(given_bytes));
	if (given_bytes >= smallest_bytes && given_bytes <= known_bytes)
		return KVC_OK;
	if (given_bytes > known_bytes && given_bytes - known_bytes <= STRUCT_TAIL_MAX &&
	        all_zero((const char *)given + known_bytes, given_bytes - known_bytes))
		return KVC_OK;
	return kvc__fail_struct_bytes_unknown(
	        -1, name, (int64_t)given_bytes, (int64_t)known_bytes, kvc_version());
}

kvc_status kvc__take_struct(
        void *out, const void *given, size_t known_bytes, size_t smallest_bytes, const char *name)
{
	size_t given_bytes;

	KVC__TRY(kvc__check_struct(given, known_bytes, smallest_bytes, name));
	memcpy(&given_bytes, given, sizeof(given_bytes));
	memcpy(out, given, given_bytes < known_bytes ? given_bytes : known_bytes);
	memcpy(out, &known_bytes, sizeof(known_bytes)); /* struct_bytes of the copy */
	return KVC_OK;
}
