/*
 * The checks of integer vectors and tables that plan, check_plan, write, verify and their like have
 * in common. One tensor at a time: presence, dimensions, type, bounds, strides, alignment, length.
 * Devices are compared over all tensors of a call by kvc__check_devices().
 */
#ifndef KVC__OPS_ARGUMENTS_H
#define KVC__OPS_ARGUMENTS_H

#include "base/tensor.h"

/* For 'length': as long as it likes. */
#define KVC__ANY_LENGTH (-1)

/*
 * A contiguous 1-D tensor of 'dtype' with 'length' entries. After it, kvc__tensor_data() is an
 * array of shape[0] aligned entries (any pointer if there is none).
 */
kvc_status kvc__check_vector(
        const kvc_tensor *tensor, const char *name, kvc_dtype dtype, int64_t length);

/* A 2-D tensor of 'dtype' whose rows are contiguous; the stride between rows is free. */
kvc_status kvc__check_table(const kvc_tensor *tensor, const char *name, kvc_dtype dtype);

/* kvc__check_bounds(), and every element lies at a multiple of its size. */
kvc_status kvc__check_placement(const kvc_tensor *tensor, const char *name);

/*
 * Copy a plan whose struct_bytes, capacities (0 .. 2^31-1), device and pointers are in order over
 * 'out'. left_out and verify_request may be NULL, and arrays of capacity 0. What the arrays hold is
 * not looked at.
 */
kvc_status kvc__take_plan(kvc_plan *out, const kvc_plan *given);

/* Is 'device' one that this build and machine work on? device-unknown, or what kvc__cuda_find() says. */
kvc_status kvc__check_usable_device(kvc_device device, const char *name);

/* Is the capacity one whose counts fit an int32? */
kvc_status kvc__check_capacity(const char *name, int64_t capacity);

/* Has a mark in scratch on the device room for the number of each token? cuda-tokens-max */
kvc_status kvc__check_marked(int64_t count);

/*
 * A tensor that the call writes shares no memory with those that it reads (output-overlap). NULL
 * tensors of the list are left out. For tensors that kvc__check_bounds() has passed.
 */
kvc_status kvc__check_apart(
        const kvc_tensor *written, const char *name, const struct kvc__named *list, size_t count);

/* Is 'rules' one of KVC_RULES_*? */
kvc_status kvc__check_rules(int32_t rules);

#endif
