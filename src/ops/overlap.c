/* Proofs that memory does not overlap; overlap.h says which. */
#include "ops/overlap.h"

/* Bytes [first, first + bytes) of row 0 (depth 1) or of head 0 of row 0 (depth 2). */
struct span {
	uintptr_t first;
	uint64_t bytes;
};

static struct span span_below(const kvc_tensor *tensor, int32_t depth)
{
	int64_t width = kvc__dtype_bytes(tensor->dtype);
	int64_t lowest = 0;
	int64_t highest = 0; /* element offsets */
	for (int32_t d = depth; d < tensor->ndim; d++) {
		int64_t reach = (tensor->shape[d] - 1) * kvc__tensor_stride(tensor, d);
		*(reach < 0 ? &lowest : &highest) += reach;
	}
	struct span span;
	span.first = (uintptr_t)kvc__tensor_data(tensor) + (uintptr_t)(lowest * width);
	span.bytes = (uint64_t)((highest - lowest + 1) * width);
	return span;
}

/* Do the spans, repeated every 'period' bytes up and down for ever, stay apart? */
static int apart_modulo(struct span a, struct span b, uint64_t period)
{
	/* Once round the circle from the start of a: a must end before b starts, and b before a comes
	 * again. The difference is taken the way it is not negative, because the period need not
	 * divide 2^64. */
	uint64_t distance = b.first >= a.first
	                            ? (uint64_t)(b.first - a.first) % period
	                            : (period - (uint64_t)(a.first - b.first) % period) % period;
	return distance >= a.bytes && b.bytes <= period - distance;
}

/* Unsigned, because the stride of a dimension with one entry is not bounded by anything; that it
 * may wrap does no harm, since nothing then lies a stride away. */
static uint64_t stride_bytes(const kvc_tensor *tensor, int32_t d)
{
	int64_t stride = kvc__tensor_stride(tensor, d);
	uint64_t magnitude = stride < 0 ? 0 - (uint64_t)stride : (uint64_t)stride;
	return magnitude * (uint64_t)kvc__dtype_bytes(tensor->dtype);
}

int kvc__tensors_disjoint(const kvc_tensor *a, const kvc_tensor *b)
{
	if (kvc__tensor_count(a) == 0 || kvc__tensor_count(b) == 0)
		return 1;
	if (!kvc__extents_meet(kvc__tensor_extent(a), kvc__tensor_extent(b)))
		return 1;
	if (a->ndim < 1 || b->ndim < 1)
		return 0;
	uint64_t row_stride = stride_bytes(a, 0);
	if (row_stride == 0 || row_stride != stride_bytes(b, 0))
		return 0;
	if (apart_modulo(span_below(a, 1), span_below(b, 1), row_stride))
		return 1;
	if (a->ndim < 2 || b->ndim < 2)
		return 0;
	uint64_t head_stride = stride_bytes(a, 1);
	if (head_stride == 0 || head_stride != stride_bytes(b, 1) || row_stride % head_stride != 0)
		return 0;
	return apart_modulo(span_below(a, 2), span_below(b, 2), head_stride);
}

int kvc__tensors_same(const kvc_tensor *a, const kvc_tensor *b)
{
	if (a->ndim != b->ndim || kvc__tensor_data(a) != kvc__tensor_data(b) ||
	        !kvc__dtype_equal(a->dtype, b->dtype))
		return 0;
	for (int32_t d = 0; d < a->ndim; d++)
		if (a->shape[d] != b->shape[d] ||
		        (a->shape[d] > 1 && kvc__tensor_stride(a, d) != kvc__tensor_stride(b, d)))
			return 0;
	return 1;
}

int kvc__rows_lie_apart(const kvc_tensor *tensor)
{
	if (kvc__tensor_count(tensor) == 0)
		return 1;
	/* Dimensions with one entry have no stride to speak of. */
	int64_t stride[2];
	int64_t count[2];
	int used = 0;
	for (int32_t d = 0; d < tensor->ndim - 1 && used < 2; d++) {
		if (tensor->shape[d] <= 1)
			continue;
		stride[used] = kvc__tensor_stride(tensor, d);
		count[used] = tensor->shape[d];
		if (stride[used] <= 0)
			return 0;
		used++;
	}
	int64_t run = tensor->ndim > 0 ? tensor->shape[tensor->ndim - 1] : 1;
	if (used == 0)
		return 1;
	if (used == 1)
		return stride[0] >= run;
	int inner =
	        stride[1] <= stride[0] ? 1 : 0; /* tokens may be the inner ones: [heads, slots] */
	return stride[inner] >= run &&
	       stride[1 - inner] >= (count[inner] - 1) * stride[inner] + run;
}
