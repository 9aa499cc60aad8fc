/*
 * kvcanary, section 12: SGLang's interface. Part of kvcanary.h, which includes it and says what the
 * words mean.
 */
#include "kvcanary.h" /* before the guard: it includes this file where its turn is */

#ifndef KVCANARY_SGLANG_H
#define KVCANARY_SGLANG_H

#ifdef __cplusplus
extern "C" {
#endif

/* ---- 12. SGLang's interface ---------------------------------------------------------------- */

/*
 * SGLang's kv-canary (0.5.23) from its own side: its launchers with the arguments that they have
 * there, field by field, the same order of checks, the same texts of refusals (a dtype prints as
 * torch prints it), the same bytes. It is for those who put this library in the place of SGLang's
 * kernels; in Python kvcanary.sglang is a thin layer over it. Everybody else takes sections 7 to 9.
 *
 * As there, a call on CUDA tensors is checked like SGLang's kernels, one on host tensors like its
 * torch reference, which asks for less. What is left of the arguments is checked here too, with
 * texts of our own, so that no index and no shape leads outside a tensor:
 *
 *   a slot or predecessor outside canary_buf or a source   skipped, no row; a verify counts it
 *   a request row, prefix or valid length past its table   on the host KVC_E_ROW_RANGE; on CUDA
 *                                                          the entry gets slot -1
 *   a source on the host whose rows are not packed         KVC_E_STRIDE, or KVC_E_CONFIG
 *
 * A call that is refused has written nothing, kernel_run_counter included. The *_args begin with
 * struct_bytes and have an initialiser; all tensors are borrowed for the call and lie on one device.
 */

/* Most sources that a context may have, and most requests of a plan and of a scatter. */
#define KVC_SGLANG_SOURCES_MAX 4
#define KVC_SGLANG_PLAN_REQUESTS_MAX 4096
#define KVC_SGLANG_SCATTER_REQUESTS_MAX 511

/*
 * RealKvSource: one strip of KV bytes. Slot x has the num_bytes_per_token bytes from byte
 * x % page_size * num_bytes_per_token of row x / page_size on; the first read_bytes are hashed.
 *
 *   tensor   two or more dimensions, any dtype, seen as bytes; rows may be wider than their slots,
 *            and lie apart
 */
typedef struct kvc_sglang_source {
	const kvc_tensor *tensor;
	int64_t page_size;
	int64_t num_bytes_per_token;
	int64_t read_bytes;
} kvc_sglang_source;

/*
 * What the constructor of RealKvSource checks. Looks at shape, strides and dtype only.
 * Returns KVC_OK; KVC_E_INVALID_ARGUMENT; KVC_E_CONFIG (a number), KVC_E_SHAPE (fewer than two
 * dimensions, rows too narrow), KVC_E_STRIDE (rows not a multiple of 16 bytes apart). Threads: any.
 */
KVC_API KVC_NODISCARD kvc_status kvc_sglang_source_check(const kvc_sglang_source *source);

/*
 * What a launch on CUDA asks of real_kv_sources[index] besides: packed rows, two dimensions.
 * Returns KVC_OK; KVC_E_INVALID_ARGUMENT; KVC_E_STRIDE; KVC_E_SHAPE. Threads: any.
 */
KVC_API KVC_NODISCARD kvc_status kvc_sglang_source_check_launch(
        const kvc_sglang_source *source, int64_t index);

/*
 * What VerifyPlan.allocate and WritePlan.allocate check: a capacity above 0.
 *
 *   name  as the text is to have it: "VerifyPlan verify_capacity"
 *
 * Returns KVC_OK; KVC_E_CONFIG. Threads: any.
 */
KVC_API KVC_NODISCARD kvc_status kvc_sglang_check_capacity(const char *name, int64_t capacity);

/* VerifyPlan, V entries: int64 [V] four times, then int32 [1] twice. */
typedef struct kvc_sglang_verify_plan {
	size_t struct_bytes;
	const kvc_tensor *verify_slot_indices;
	const kvc_tensor *verify_expected_tokens;
	const kvc_tensor *verify_expected_positions;
	const kvc_tensor *verify_prev_slot_indices;
	const kvc_tensor *verify_num_valid;
	const kvc_tensor *enable;
} kvc_sglang_verify_plan;

#define KVC_SGLANG_VERIFY_PLAN_INIT                                                                \
	{                                                                                          \
		sizeof(kvc_sglang_verify_plan), NULL, NULL, NULL, NULL, NULL, NULL                 \
	}

/* WritePlan, R requests: int64 [R+1], int64 [R], int32 [1]. */
typedef struct kvc_sglang_write_plan {
	size_t struct_bytes;
	const kvc_tensor *write_offsets;
	const kvc_tensor *write_seed_slot_indices;
	const kvc_tensor *write_num_valid_reqs;
} kvc_sglang_write_plan;

#define KVC_SGLANG_WRITE_PLAN_INIT                                                                 \
	{                                                                                          \
		sizeof(kvc_sglang_write_plan), NULL, NULL, NULL                                    \
	}

/*
 * VerifyOrWriteContext.
 *
 *   canary_buf             [slots, bytes of a record >= 32]
 *   kernel_kind            CanaryLaunchTag, 0 to 11
 *   violation_ring         int64 [capacity, 8], filled once
 *   violation_write_index  int32 [1]
 *   slot_run_counter, kernel_run_counter   int64 [1]
 *   real_kv_sources, real_kv_source_count  at most KVC_SGLANG_SOURCES_MAX; NULL and 0 = none
 *   real_kv_hash_mode      RealKvHashMode: the numbers of KVC_COVERAGE_*
 *   enable_chain_position_assert   int32 [1]; only a write reads it
 */
typedef struct kvc_sglang_context {
	size_t struct_bytes;
	const kvc_tensor *canary_buf;
	int64_t kernel_kind;
	const kvc_tensor *violation_ring;
	const kvc_tensor *violation_write_index;
	const kvc_tensor *slot_run_counter;
	const kvc_tensor *kernel_run_counter;
	const kvc_sglang_source *real_kv_sources;
	int64_t real_kv_source_count;
	int64_t real_kv_hash_mode;
	const kvc_tensor *enable_chain_position_assert;
} kvc_sglang_context;

#define KVC_SGLANG_CONTEXT_INIT                                                                    \
	{                                                                                          \
		sizeof(kvc_sglang_context), NULL, 0, NULL, NULL, NULL, NULL, NULL, 0, 0, NULL      \
	}

/* Arguments of launch_canary_plan_kernels; the last three tensors but one are optional. */
typedef struct kvc_sglang_plan_args {
	size_t struct_bytes;
	const kvc_sglang_verify_plan *verify_plan_out;
	const kvc_sglang_write_plan *write_plan_out;
	const kvc_tensor *req_pool_indices;          /* int64 [bs] */
	const kvc_tensor *prefix_lens;               /* int64 [bs] */
	const kvc_tensor *extend_seq_lens;           /* int64 [bs] */
	const kvc_tensor *req_to_token;              /* int32 [rows, columns] */
	int64_t swa_window_size;                     /* 0 or less: none */
	const kvc_tensor *full_to_swa_index_mapping; /* int64 [n], optional */
	int64_t verify_capacity;
	const kvc_tensor *req_to_verify_expected_tokens; /* int32 [rows, columns], optional */
	const kvc_tensor *req_to_verify_expected_tokens_valid_lens; /* int64 [bs], with it */
	int64_t kv_token_id_vs_position_offset;
} kvc_sglang_plan_args;

#define KVC_SGLANG_PLAN_ARGS_INIT                                                                  \
	{                                                                                          \
		sizeof(kvc_sglang_plan_args), NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, 0,      \
		        NULL, NULL, 0                                                              \
	}

/*
 * launch_canary_plan_kernels: which slots the step's requests read, and where their writes go. When
 * more entries come together than fit, enable becomes 0 and none is emitted. Entries and seeds that
 * nothing was to be stored in stay as they were.
 *
 * Returns KVC_OK, or, with nothing written, KVC_E_INVALID_ARGUMENT, KVC_E_CONFIG, KVC_E_SHAPE,
 * KVC_E_DTYPE, KVC_E_STRIDE, KVC_E_LENGTH, KVC_E_DEVICE, KVC_E_NO_CUDA, KVC_E_ROW_RANGE.
 * On CUDA the call only enqueues. Threads: any, on different plans.
 */
KVC_API KVC_NODISCARD kvc_status kvc_sglang_plan(const kvc_sglang_plan_args *args, void *stream);

/*
 * Only the checks that SGLang makes before it launches the first kernel of a plan, wherever the
 * tensors lie.
 *
 *   scratch  out_verify_offsets_scratch, int64 [KVC_SGLANG_PLAN_REQUESTS_MAX + 1], or NULL: this
 *            library needs none
 *
 * Returns as kvc_sglang_plan(). Threads: any.
 */
KVC_API KVC_NODISCARD kvc_status kvc_sglang_plan_check(
        const kvc_sglang_plan_args *args, const kvc_tensor *scratch);

/* Arguments of launch_canary_verify_kernel. */
typedef struct kvc_sglang_verify_args {
	size_t struct_bytes;
	const kvc_sglang_context *context;
	const kvc_sglang_verify_plan *plan;
	int64_t check_verify_expected_token;
} kvc_sglang_verify_args;

#define KVC_SGLANG_VERIFY_ARGS_INIT                                                                \
	{                                                                                          \
		sizeof(kvc_sglang_verify_args), NULL, NULL, 0                                      \
	}

/*
 * launch_canary_verify_kernel: compare each planned slot with its record, its predecessor and its
 * bytes. Rows of violation_ring stand in entry order on the host, in any order on CUDA.
 * Returns as kvc_sglang_plan(). On CUDA the call only enqueues. Threads: any.
 */
KVC_API KVC_NODISCARD kvc_status kvc_sglang_verify(
        const kvc_sglang_verify_args *args, void *stream);

/* Arguments of launch_canary_write_kernel; tokens, positions and slots int64 [T]. */
typedef struct kvc_sglang_write_args {
	size_t struct_bytes;
	const kvc_sglang_context *context;
	const kvc_sglang_write_plan *plan;
	const kvc_tensor *input_ids;
	const kvc_tensor *positions;
	const kvc_tensor *out_cache_loc;
	int64_t enable_write_input_assert;
	const kvc_tensor *expected_input_tokens; /* both or none, as the line above says */
	const kvc_tensor *expected_input_positions;
} kvc_sglang_write_args;

#define KVC_SGLANG_WRITE_ARGS_INIT                                                                 \
	{                                                                                          \
		sizeof(kvc_sglang_write_args), NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL         \
	}

/*
 * launch_canary_write_kernel: stamp the slots that the step writes. On the host in order of requests,
 * so that a seed sees what an earlier request of the call wrote; on CUDA, where SGLang's kernel leaves
 * that to chance, seeds are as before the call.
 * Returns as kvc_sglang_plan(). On CUDA the call only enqueues. Threads: any, on disjoint slots.
 */
KVC_API KVC_NODISCARD kvc_status kvc_sglang_write(const kvc_sglang_write_args *args, void *stream);

/*
 * launch_scatter_req_token_ids_kernel: kvc_scatter_req_token_ids() with SGLang's rules and its limit
 * of KVC_SGLANG_SCATTER_REQUESTS_MAX requests. On the host too, where SGLang has no scatter.
 * Returns as kvc_scatter_req_token_ids(), and KVC_E_LENGTH for too many requests. Threads: as there.
 */
KVC_API KVC_NODISCARD kvc_status kvc_sglang_scatter(const kvc_tensor *flat_in,
        const kvc_tensor *offsets, const kvc_tensor *req_pool_indices, const kvc_tensor *pool_out,
        void *stream);

#ifdef __cplusplus
}
#endif

#endif /* KVCANARY_SGLANG_H */
