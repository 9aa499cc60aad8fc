/* A tensor in host memory and its twin on the device, for tests that run one call on both. */
#ifndef KVC_TESTS_CUDA_TENSOR_H
#define KVC_TESTS_CUDA_TENSOR_H

#include "cuda_device.h"
#include "expect.h"

struct cuda_tensor {
	struct cuda_twin twin;
	int64_t shape[2], strides[2];
	kvc_tensor host, device;
	const char *name;
};

/*
 * [rows, columns] with rows 'stride' elements apart (columns -1: one dimension), whose first element
 * lies 'skip' bytes into memory of its own, zeroed. The struct must stay where it is.
 */
static inline void cuda_tensor_make(struct cuda_tensor *t, const char *name, kvc_dtype dtype,
        int64_t rows, int64_t columns, int64_t stride, size_t skip)
{
	size_t width = dtype.bits / 8u, bytes = skip;

	bytes += (size_t)(columns < 0 ? rows : rows * stride) * width;
	t->name = name;
	t->twin = cuda_twin_make(calloc(1, bytes + 1), bytes);
	t->shape[0] = rows, t->shape[1] = columns;
	t->strides[0] = columns < 0 ? 1 : stride, t->strides[1] = 1;
	t->host = kvc_tensor_make(t->twin.host, dtype, columns < 0 ? 1 : 2, t->shape);
	t->host.strides = t->strides;
	t->host.byte_offset = skip;
	t->device = t->host;
	t->device.data = cuda_twin_device(&t->twin);
	t->device.device = kvc_device_make(KVC_DEVICE_CUDA, 0);
}

static inline void cuda_tensor_vector(
        struct cuda_tensor *t, const char *name, kvc_dtype dtype, int64_t count)
{
	cuda_tensor_make(t, name, dtype, count, -1, 1, 0);
}

static inline void *cuda_tensor_data(const struct cuda_tensor *t)
{
	return t->twin.host + t->host.byte_offset;
}

/* The tensor of a call on the device, or of one on the CPU. */
static inline const kvc_tensor *cuda_tensor_of(const struct cuda_tensor *t, int on_device)
{
	return on_device ? &t->device : &t->host;
}

static inline void cuda_twin_upload(const struct cuda_twin *twin)
{
	if (twin->bytes)
		cuda_must(cuda.to_device(twin->base + CUDA_RED_ZONE, twin->host, twin->bytes),
		        "upload");
}

/* The device's bytes are those in host memory, and nobody left the buffer. */
static inline void cuda_twin_check(const struct cuda_twin *twin, const char *name, const char *what)
{
	int64_t at = cuda_twin_differs(twin);

	if (at >= 0)
		print_error("%s: %s differs from byte %lld of %zu\n", what, name, (long long)at,
		        twin->bytes);
	assert_int_equal(at, -1);
	assert_int_equal(cuda_twin_trespassed(twin), 0);
}

static inline void cuda_twin_end(struct cuda_twin *twin)
{
	free(twin->host);
	twin->host = NULL;
	cuda_twin_free(twin);
}

/* A report on the device, empty, and what it holds after the calls before. */
static inline struct cuda_twin cuda_report_make(void)
{
	struct cuda_twin twin = cuda_twin_make(calloc(1, sizeof(kvc_report)), sizeof(kvc_report));

	expect_ok(kvc_report_init(
	        cuda_twin_device(&twin), kvc_device_make(KVC_DEVICE_CUDA, 0), NULL));
	return twin;
}

static inline kvc_report cuda_report_fetch(const struct cuda_twin *twin)
{
	kvc_report report;

	cuda_must(cuda.synchronize(), "report");
	cuda_must(cuda.to_host(&report, twin->base + CUDA_RED_ZONE, sizeof(report)), "report");
	assert_int_equal(cuda_twin_trespassed(twin), 0);
	return report;
}

static inline void cuda_report_check(
        const struct cuda_twin *twin, const kvc_report *want, const char *what)
{
	kvc_report got = cuda_report_fetch(twin);

	for (int i = 0; i < KVC_REPORT_REASON_COUNT; i++)
		if (got.count[i] != want->count[i] || got.first[i] != want->first[i])
			print_error("%s: reason %d is counted %lld times from %lld on, expected "
			            "%lld from %lld on\n",
			        what, i, (long long)got.count[i], (long long)got.first[i],
			        (long long)want->count[i], (long long)want->first[i]);
	if (memcmp(&got, want, sizeof(got)) != 0)
		print_error("%s: written %lld of %lld, skipped %lld of %lld, truncated %lld of "
		            "%lld\n",
		        what, (long long)got.rows_written, (long long)want->rows_written,
		        (long long)got.rows_skipped, (long long)want->rows_skipped,
		        (long long)got.tokens_truncated, (long long)want->tokens_truncated);
	assert_memory_equal(&got, want, sizeof(got));
}

/* For models of a call: one more offending entry. */
static inline void report_note(kvc_report *report, int reason, int64_t at)
{
	if (report->count[reason]++ == 0 || at < report->first[reason])
		report->first[reason] = at;
}

#endif
