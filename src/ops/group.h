/*
 * What the operations on records share: taking a group with its checks, and checking lists of slots
 * against it.
 */
#ifndef KVC__OPS_GROUP_H
#define KVC__OPS_GROUP_H

#include "base/tensor.h"

/*
 * Copy the caller's group to 'out', then check all that the back ends rely on: everything that
 * kvc_group_check() does, except for comparing every source id with every other, which is
 * quadratic. 'out' starts from KVC_GROUP_INIT.
 */
kvc_status kvc__group_take(kvc_group *out, const kvc_group *given);

/* The first slot that no longer lies in every source and, with 'in_records', in the records. */
int64_t kvc__group_slot_limit(const kvc_group *group, int in_records);

/* Are the tensors on the group's device, whatever that is? At most KVC__GROUP_TENSORS_MAX. */
#define KVC__GROUP_TENSORS_MAX 16
kvc_status kvc__group_check_same_device(
        const kvc_group *group, const struct kvc__named *list, size_t count);

/* The same for a device that a struct states. */
kvc_status kvc__group_check_stated(const kvc_group *group, kvc_device device, const char *name);

/* cuda-host-pointer if a group on a CUDA device has memory that kernels cannot use. */
kvc_status kvc__group_check_pointers(const kvc_group *group);

/* kvc__group_check_same_device() for what works on host memory only. */
kvc_status kvc__group_check_devices(
        const kvc_group *group, const struct kvc__named *list, size_t count);

/* A vector of int64 slots on the group's device, whatever its values. */
kvc_status kvc__group_check_slot_vector(
        const kvc_group *group, const kvc_tensor *slots, const char *name);

/* A vector of int64 slots, each below 'limit'; negative ones are fine. Host memory only. */
kvc_status kvc__group_check_slots(
        const kvc_group *group, const kvc_tensor *slots, const char *name, int64_t limit);

/* canary-slot-out-of-range for the first of 'count' slots that is >= limit. */
kvc_status kvc__group_check_slot_values(
        const int64_t *slots, int64_t count, const char *name, int64_t limit);

#endif
