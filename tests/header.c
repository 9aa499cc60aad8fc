/*
 * Includes kvcanary.h alone and uses its macros and inline functions, so that it must be
 * self-contained. tests/check_header.sh compiles it as C99 and as C++17, every warning an error,
 * and where dlpack/dlpack.h is found also asserts that kvc_tensor has the layout of DLTensor.
 */
#include "kvcanary.h"

#ifdef KVC_TEST_DLPACK
#include <dlpack/dlpack.h>
#define SAME_OFFSET(ours, theirs)                                                                  \
	typedef char same_offset_##ours[offsetof(kvc_tensor, ours) == offsetof(DLTensor, theirs)   \
	                                        ? 1                                                \
	                                        : -1]
SAME_OFFSET(data, data);
SAME_OFFSET(device, device);
SAME_OFFSET(ndim, ndim);
SAME_OFFSET(dtype, dtype);
SAME_OFFSET(shape, shape);
SAME_OFFSET(strides, strides);
SAME_OFFSET(byte_offset, byte_offset);
typedef char same_tensor_bytes[sizeof(kvc_tensor) == sizeof(DLTensor) ? 1 : -1];
typedef char same_dtype_bytes[sizeof(kvc_dtype) == sizeof(DLDataType) ? 1 : -1];
typedef char same_device_bytes[sizeof(kvc_device) == sizeof(DLDevice) ? 1 : -1];
typedef char same_codes[(int)KVC_CODE_INT == (int)kDLInt && (int)KVC_CODE_UINT == (int)kDLUInt &&
                                        (int)KVC_CODE_FLOAT == (int)kDLFloat &&
                                        (int)KVC_CODE_BFLOAT == (int)kDLBfloat &&
                                        (int)KVC_DEVICE_CPU == (int)kDLCPU
                                ? 1
                                : -1];
#endif

int main(void)
{
	int64_t shape[1] = { 3 };
	float numbers[3] = { 1.0f, 2.0f, 3.0f };
	kvc_tensor tensor = kvc_tensor_make(numbers, KVC_FLOAT32, 1, shape);
	kvc_rope_options rope = KVC_ROPE_OPTIONS_INIT;
	kvc_rope_pool_args write = KVC_ROPE_POOL_ARGS_INIT;
	kvc_group group = KVC_GROUP_INIT;
	kvc_requests requests = KVC_REQUESTS_INIT;
	kvc_ring ring = KVC_RING_INIT;
	if (tensor.dtype.bits != 32 || rope.struct_bytes != sizeof(rope))
		return 1;
	if (write.struct_bytes != sizeof(write) || group.struct_bytes != sizeof(group))
		return 1;
	if (requests.struct_bytes != sizeof(requests) || ring.columns != 16)
		return 1;
	return kvc_version()[0] == '\0';
}
