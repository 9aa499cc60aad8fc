/*
 * What the operations share when they look at their arguments: presence, struct sizes, devices,
 * strides, extents. Everything here works on untrusted tensors; what only holds after a check says
 * so. Checks return the status of the kvc__fail_*() that they called.
 *
 * The usual order in an operation: kvc__take_struct, kvc__check_present for each tensor, the
 * operation's own checks of dimensions and types, then kvc__check_bounds and kvc__check_devices.
 */
#ifndef KVC__TENSOR_H
#define KVC__TENSOR_H

#include "base/error.h"

#include <string.h>

/* More dimensions than this are refused by kvc__check_bounds(). */
#define KVC__NDIM_MAX 8

/* A tensor and the name under which its caller knows it. */
struct kvc__named {
	const kvc_tensor *tensor; /* NULL: left out of the check */
	const char *name;
};

/* Bytes [first, past) that the elements of a tensor lie in; equal if it has none. */
struct kvc__extent {
	uintptr_t first;
	uintptr_t past;
};

/* ---- element types ---- */

/* Bytes of one element; 0 if that is no whole number, or if lanes is not 1. */
static inline int64_t kvc__dtype_bytes(kvc_dtype dtype)
{
	return dtype.lanes == 1 && dtype.bits % 8 == 0 ? dtype.bits / 8 : 0;
}

static inline int kvc__dtype_equal(kvc_dtype a, kvc_dtype b)
{
	_Static_assert(sizeof a == 4, "it has no padding, so one comparison will do");
	return memcmp(&a, &b, sizeof a) == 0;
}

/* Is 'dtype' one of the 'count' in 'list'? */
int kvc__dtype_among(kvc_dtype dtype, const kvc_dtype *list, size_t count);

/* ---- access, for tensors that kvc__check_bounds() has passed ---- */

/* First byte of element (0, 0, ...). */
static inline char *kvc__tensor_data(const kvc_tensor *tensor)
{
	return (char *)tensor->data + tensor->byte_offset;
}

/* Stride of dimension d in elements; without strides, that of the contiguous array. */
static inline int64_t kvc__tensor_stride(const kvc_tensor *tensor, int32_t d)
{
	int64_t stride = 1;

	if (tensor->strides)
		return tensor->strides[d];
	for (int32_t i = tensor->ndim - 1; i > d; i--)
		stride *= tensor->shape[i];
	return stride;
}

/* Number of elements. */
static inline int64_t kvc__tensor_count(const kvc_tensor *tensor)
{
	int64_t count = 1;

	for (int32_t d = 0; d < tensor->ndim; d++)
		count *= tensor->shape[d];
	return count;
}

/* Is the last dimension contiguous (or too short for its stride to matter)? */
int kvc__tensor_rows_contiguous(const kvc_tensor *tensor);

struct kvc__extent kvc__tensor_extent(const kvc_tensor *tensor);

/* Do the two extents share a byte? */
static inline int kvc__extents_meet(struct kvc__extent a, struct kvc__extent b)
{
	return a.first < b.past && b.first < a.past;
}

/* Element i of a 1-D tensor of int32 or int64; any stride and alignment. */
int64_t kvc__index_at(const kvc_tensor *tensor, int64_t i);

/* ---- checks ---- */

/* null-argument if the tensor or its shape is NULL. After it, ndim and shape can be read. */
kvc_status kvc__check_present(const kvc_tensor *tensor, const char *name);

/*
 * tensor-shape-impossible if a dimension is negative, there are too many, or the elements span more
 * than the address space. After it no product of dimensions overflows, and none of dimensions and
 * strides either, unless the tensor is empty: its strides may be anything. An operation that
 * multiplies dimensions before it has looked at the memory calls this first.
 */
kvc_status kvc__check_shape(const kvc_tensor *tensor, const char *name);

/* tensor-data-null if there are elements and no data, in a tensor that kvc__check_shape() passed. */
kvc_status kvc__check_data(const kvc_tensor *tensor, const char *name);

/* kvc__check_shape(), then kvc__check_data(). */
kvc_status kvc__check_bounds(const kvc_tensor *tensor, const char *name);

/*
 * All on one device of a known kind, which goes to *out (left alone if there is no tensor).
 * device-unknown, device-mismatch.
 */
kvc_status kvc__check_same_device(kvc_device *out, const struct kvc__named *list, size_t count);

/* Does this device say CUDA memory, managed memory included? */
int kvc__is_cuda(kvc_device device);

/*
 * All on one device that this build works on. In this order: device-unknown, device-mismatch,
 * no-cuda. Pinned host memory counts as CPU, managed memory as CUDA.
 */
kvc_status kvc__check_devices(const struct kvc__named *list, size_t count);

/* The same for the device that a struct states instead of a tensor. */
kvc_status kvc__check_device(kvc_device device, const char *name);

/*
 * struct-bytes-unknown unless 'given' (whose first member is struct_bytes) is of a size that this
 * library can read: from smallest_bytes (the first published version of the struct) to known_bytes,
 * or larger by at most 256 bytes that are all zero, that is, a newer caller that uses nothing new.
 * null-argument if 'given' is NULL.
 */
kvc_status kvc__check_struct(
        const void *given, size_t known_bytes, size_t smallest_bytes, const char *name);

/*
 * kvc__check_struct(), then copy what the caller's struct has over 'out', which the caller has set
 * from the initialiser: fields that an older caller does not know keep their defaults.
 */
kvc_status kvc__take_struct(
        void *out, const void *given, size_t known_bytes, size_t smallest_bytes, const char *name);

/* For structs that have had one version only. */
#define KVC__TAKE(out, given, name)                                                                \
	KVC__TRY(kvc__take_struct((out), (given), sizeof(*(out)), sizeof(*(out)), (name)))

#endif
