/*
 * The CUDA back end as the front doors (src/ops) see it: one table of functions, found once per
 * call. Each takes a job whose pointers lie on the device and only enqueues work on the stream: no
 * allocation, no synchronisation, no host read of device values, so every call is legal inside a
 * stream capture. What only the device can see is skipped there and reported, never trapped.
 *
 * Built without nvcc, absent.c takes the place of all other .c files here.
 */
#ifndef KVC__CUDA_H
#define KVC__CUDA_H

#include "base/error.h"
#include "cpu/canary.h"
#include "cpu/check_plan.h"
#include "cpu/plan.h"
#include "cpu/rope.h"
#include "cpu/scatter.h"

/* What rope_pool_fused needs besides the job: on the CPU the front door looks at these itself. */
struct kvc__cuda_rope {
	const struct kvc__rope_job *job;
	int64_t slot_count;
	int32_t *duplicate_scratch; /* NULL: no duplicate check */
	int check_finite;
	kvc_report *report; /* on the device, or NULL */
};

/* check_tokens: leave a request out wholly if one of its tokens is out of range. */
struct kvc__cuda_scatter {
	const struct kvc__scatter *job;
	int sglang;
	int check_tokens;
	int allow_placeholder;
	kvc_report *report;
};

/* job->total, first and emit_count are found on the device. */
struct kvc__cuda_plan {
	const struct kvc__plan *job;
	int64_t *rotation;
	kvc_report *report;
};

/* job->entry_count is found on the device, from 'plan'; there is a ring. */
struct kvc__cuda_check_plan {
	const struct kvc__check_plan *job;
	const kvc_plan *plan;
};

/* Pairs of slots to copy, or with 'to' NULL slots to void. */
struct kvc__cuda_records_call {
	const kvc_group *group;
	int64_t count;
	const int64_t *from;
	const int64_t *to;
	int64_t *scratch; /* six words a pair, rows scratch_stride words apart */
	int64_t scratch_stride;
};

/*
 * The plan's counts and switches, which the CPU's front doors read and the device reads by itself;
 * the fields of the job that they end up in are not looked at.
 */
struct kvc__cuda_write {
	const struct kvc__write *job;
	int64_t request_capacity;
	const int32_t *num_valid;
	const int32_t *check_steps; /* or NULL */
	const int64_t *step;        /* or NULL */
};

struct kvc__cuda_verify {
	const struct kvc__verify *job;
	int64_t capacity;
	const int32_t *num_valid;
	const int32_t *enable;
	const int64_t *left_out; /* or NULL */
};

struct kvc__cuda_ops {
	kvc_status (*rope)(const struct kvc__cuda_rope *call, void *stream);
	kvc_status (*report_init)(kvc_report *out, void *stream);
	kvc_status (*scatter)(const struct kvc__cuda_scatter *call, void *stream);
	kvc_status (*plan)(const struct kvc__cuda_plan *call, void *stream);
	kvc_status (*check_plan)(const struct kvc__cuda_check_plan *call, void *stream);
	kvc_status (*records)(const struct kvc__cuda_records_call *call, void *stream);
	kvc_status (*ring_poll)(const kvc_ring *ring, kvc_violation *out, int64_t capacity,
	        int64_t *count_out, void *stream);
	kvc_status (*fingerprint)(uint64_t *out, const kvc_group *group, const int64_t *slots,
	        int64_t count, void *stream);
	kvc_status (*scan_finite)(kvc_finite_scan *out, const kvc_group *group,
	        const int64_t *slots, int64_t count, void *stream);
	kvc_status (*write)(const struct kvc__cuda_write *call, void *stream);
	kvc_status (*verify)(const struct kvc__cuda_verify *call, void *stream);
};

/*
 * The back end for tensors on 'device'. Loads the driver and the kernels on first use.
 * no-cuda: built without CUDA, or no driver, or no GPU here. cuda-context: this thread has no
 * current context, or one of another device. 'name': a tensor of the call, for the message.
 */
kvc_status kvc__cuda_find(const struct kvc__cuda_ops **out, kvc_device device, const char *name);

/* Is this a pointer that kernels of the current context can use? cuda-host-pointer if not. */
kvc_status kvc__cuda_check_pointer(const void *pointer, const char *name);

#endif
