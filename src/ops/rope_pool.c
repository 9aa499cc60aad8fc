/*
 * kvc_rope_pool_fused(): the front door. Every check comes before the first write, in the order of
 * SPEC section 2, so that a refused call has changed nothing. Then a job without tensors goes to the
 * back end, which trusts it.
 *
 * Messages up to "pool dtypes must match q/k/v dtype" are word for word those of SGLang's
 * rope_pool_fused, and so is their order: callers that match on them can move here.
 */
#include "base/fp_mode.h"
#include "base/tensor.h"
#include "base/threads.h"
#include "cpu/dispatch.h"
#include "cpu/rope.h"
#include "cuda/cuda.h"
#include "ops/arguments.h"
#include "ops/overlap.h"
#include "ops/rope_plain.h"
#include "ops/rope_scan.h"

#include <math.h>

/* Work for one thread that is worth waking it: some 60 us at 8 GB/s. */
#define GRAIN_BYTES (512 << 10)

/* The call: its arguments, and what the checks found out. Both structs have had one version only, so
 * they are read where they lie: copying them would take a fifth of a call for one token. */
struct call {
	const kvc_rope_pool_args *args;
	const kvc_stamp *stamp; /* NULL if nothing is to be stamped */
	int64_t token_count;    /* T */
	int64_t row_count;      /* rows to process: n_valid, or T */
	int64_t q_dim;
	int64_t kv_dim;
	enum kvc__element element;
	enum kvc__element pool_element;
	kvc_tensor table;   /* rope's cos_sin_cache as a tensor, if it has one */
	kvc_tensor records; /* the stamp's records as bytes, if there is a stamp */
	int64_t table_shape[2], table_strides[2];
	int64_t records_shape[2], records_strides[2];
	kvc_device device;
};

/* ---- presence and shapes ---- */

static kvc_status check_presence(const kvc_rope_pool_args *args)
{
	KVC__TRY(kvc__check_present(args->q, "q"));
	KVC__TRY(kvc__check_present(args->k, "k"));
	KVC__TRY(kvc__check_present(args->positions, "positions"));
	KVC__TRY(kvc__check_present(args->slots, "slots"));
	KVC__TRY(kvc__check_present(args->k_pool, "k_pool"));
	if (args->v || args->v_pool) { /* both or neither */
		KVC__TRY(kvc__check_present(args->v, "v"));
		KVC__TRY(kvc__check_present(args->v_pool, "v_pool"));
	}
	if (args->q_out)
		KVC__TRY(kvc__check_present(args->q_out, "q_out"));
	if (args->k_out)
		KVC__TRY(kvc__check_present(args->k_out, "k_out"));
	return kvc__check_struct(args->rope, sizeof *args->rope, sizeof *args->rope, "rope");
}

/* One that covers nothing, or none at all, adds nothing. */
static kvc_status take_stamp(struct call *call)
{
	const kvc_stamp *stamp = call->args->stamp;
	if (stamp)
		KVC__TRY(kvc__check_struct(stamp, sizeof *stamp, sizeof *stamp, "stamp"));
	call->stamp = stamp && stamp->coverage != KVC_COVERAGE_NONE ? stamp : NULL;
	return KVC_OK;
}

static kvc_status check_ndim(const kvc_rope_pool_args *args)
{
	if (args->q->ndim != 3 || args->k->ndim != 3 || (args->v && args->v->ndim != 3))
		return kvc__fail_qkv_must_be_3_d(
		        -1, args->q->ndim, args->k->ndim, args->v ? args->v->ndim : 3);
	if (args->positions->ndim != 1 || args->slots->ndim != 1)
		return kvc__fail_positions_slots_must_be_1_d(
		        -1, args->positions->ndim, args->slots->ndim);
	if (args->k_pool->ndim != 3 || (args->v_pool && args->v_pool->ndim != 3))
		return kvc__fail_pools_must_be_3_d(
		        -1, args->k_pool->ndim, args->v_pool ? args->v_pool->ndim : 3);
	return KVC_OK;
}

static int shape_is(const kvc_tensor *tensor, int64_t d0, int64_t d1, int64_t d2)
{
	return tensor->shape[0] == d0 && tensor->shape[1] == d1 && tensor->shape[2] == d2;
}

static int shapes_equal(const kvc_tensor *a, const kvc_tensor *b)
{
	return shape_is(a, b->shape[0], b->shape[1], b->shape[2]);
}

/* Of q, k, v. head_dim 0 means q's, except that rows of K alone may be of another width than q. */
static kvc_status check_qkv_shapes(struct call *call)
{
	const kvc_rope_pool_args *args = call->args;
	const kvc_tensor *q = args->q;
	const kvc_tensor *k = args->k;
	int k_only = !args->v;
	int64_t q_heads = args->num_qo_heads ? args->num_qo_heads : q->shape[1];
	int64_t kv_heads = args->num_kv_heads ? args->num_kv_heads : k->shape[1];
	int64_t q_dim = args->head_dim && !k_only ? args->head_dim : q->shape[2];
	int64_t kv_dim = args->head_dim ? args->head_dim : k_only ? k->shape[2] : q_dim;

	call->token_count = q->shape[0];
	call->q_dim = q_dim;
	call->kv_dim = kv_dim;
	if (!shape_is(q, call->token_count, q_heads, q_dim))
		return kvc__fail_q_shape_must_be(-1, q, q_heads, q_dim);
	if (!shape_is(k, call->token_count, kv_heads, kv_dim))
		return kvc__fail_k_shape_must_be(-1, k, call->token_count, kv_heads, kv_dim);
	if (args->v && !shapes_equal(args->v, k))
		return kvc__fail_v_shape_must_match_k_shape(-1, args->v, k);
	return KVC_OK;
}

static kvc_status check_other_shapes(const struct call *call)
{
	const kvc_rope_pool_args *args = call->args;
	const kvc_tensor *k = args->k;
	const kvc_tensor *k_pool = args->k_pool;
	int64_t positions = args->positions->shape[0];
	int64_t slots = args->slots->shape[0];
	/* With n_valid, a prefix is enough; an n_valid that makes no sense has its own error below. */
	int prefix = args->n_valid >= 0 && args->n_valid <= call->token_count;
	if (prefix ? positions < args->n_valid || slots < args->n_valid
	           : positions != call->token_count || slots != call->token_count)
		return kvc__fail_positions_slots_one_entry_per_token(
		        -1, positions, slots, prefix ? args->n_valid : call->token_count);
	if (k_pool->shape[1] != k->shape[1] || k_pool->shape[2] != k->shape[2])
		return kvc__fail_k_pool_incompatible_shape(
		        -1, k_pool, k->shape[1], k->shape[2], k_pool->shape[1], k_pool->shape[2]);
	if (args->v_pool && !shapes_equal(args->v_pool, k_pool))
		return kvc__fail_v_pool_shape_must_match_k_pool_shape(-1, args->v_pool, k_pool);
	return KVC_OK;
}

/* ---- element types ---- */

static int element_of(kvc_dtype dtype, enum kvc__element *out)
{
	static const kvc_dtype known[] = { { KVC_CODE_FLOAT, 32, 1 }, { KVC_CODE_FLOAT, 16, 1 },
		{ KVC_CODE_BFLOAT, 16, 1 }, { KVC_CODE_FLOAT8_E4M3FN, 8, 1 },
		{ KVC_CODE_FLOAT8_E5M2, 8, 1 } }; /* in the order of enum kvc__element */
	for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
		if (kvc__dtype_equal(dtype, known[i])) {
			*out = (enum kvc__element)i;
			return 1;
		}
	}
	return 0;
}

static int is_fp8(kvc_dtype dtype)
{
	enum kvc__element element;
	return element_of(dtype, &element) && kvc__element_bytes(element) == 1;
}

/* The two fixed messages, then types that do match but that nobody can rotate. */
static kvc_status check_dtypes(struct call *call)
{
	const kvc_rope_pool_args *args = call->args;
	kvc_dtype q = args->q->dtype;
	kvc_dtype k = args->k->dtype;
	kvc_dtype v = args->v ? args->v->dtype : k;
	kvc_dtype k_pool = args->k_pool->dtype;
	kvc_dtype v_pool = args->v_pool ? args->v_pool->dtype : k_pool;
	if (!kvc__dtype_equal(q, k) || !kvc__dtype_equal(q, v))
		return kvc__fail_qkv_dtypes_must_match(-1, q, k, v);
	if (!kvc__dtype_equal(k_pool, v_pool) || (!kvc__dtype_equal(k_pool, q) && !is_fp8(k_pool)))
		return kvc__fail_pool_dtypes_must_match(-1, q, k_pool, v_pool);
	if (!element_of(q, &call->element) || is_fp8(q))
		return kvc__fail_rope_dtype_unsupported(-1, q);
	element_of(k_pool, &call->pool_element);
	return KVC_OK;
}

/* Before anything is added to a dimension or multiplied with it: also where there is no row to
 * process, and so no memory to look at. */
static kvc_status check_possible(const kvc_rope_pool_args *args)
{
	const struct kvc__named all[] = { { args->q, "q" }, { args->k, "k" }, { args->v, "v" },
		{ args->positions, "positions" }, { args->slots, "slots" },
		{ args->k_pool, "k_pool" }, { args->v_pool, "v_pool" }, { args->q_out, "q_out" },
		{ args->k_out, "k_out" } };
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (all[i].tensor)
			KVC__TRY(kvc__check_shape(all[i].tensor, all[i].name));
	return KVC_OK;
}

/* ---- our own checks, in SPEC's order ---- */

static kvc_status check_n_valid(struct call *call)
{
	int64_t n_valid = call->args->n_valid;
	if (n_valid < -1 || n_valid > call->token_count)
		return kvc__fail_n_valid_out_of_range(-1, n_valid, call->token_count);
	call->row_count = n_valid >= 0 ? n_valid : call->token_count;
	return KVC_OK;
}

static kvc_status check_index_dtype(const kvc_tensor *tensor, const char *name)
{
	if (!kvc__dtype_equal(tensor->dtype, KVC_INT32) &&
	        !kvc__dtype_equal(tensor->dtype, KVC_INT64))
		return kvc__fail_index_dtype_unsupported(-1, name, tensor->dtype);
	return KVC_OK;
}

static kvc_status check_output(
        const kvc_tensor *out, const char *name, const kvc_tensor *in, const char *in_name)
{
	if (!out)
		return KVC_OK;
	if (out->ndim != 3 || !shapes_equal(out, in))
		return kvc__fail_output_shape_must_match_input(-1, name, in_name, out, in);
	if (!kvc__dtype_equal(out->dtype, in->dtype))
		return kvc__fail_output_dtype_must_match_input(
		        -1, name, in_name, out->dtype, in->dtype);
	return KVC_OK;
}

static kvc_status check_where(struct call *call)
{
	const kvc_rope_pool_args *args = call->args;
	const struct kvc__named all[] = { { args->q, "q" }, { args->k, "k" }, { args->v, "v" },
		{ args->positions, "positions" }, { args->slots, "slots" },
		{ args->k_pool, "k_pool" }, { args->v_pool, "v_pool" }, { args->q_out, "q_out" },
		{ args->k_out, "k_out" },
		{ args->rope->cos_sin ? &call->table : NULL, "cos_sin_cache" } };
	return kvc__check_same_device(&call->device, all, sizeof all / sizeof *all);
}

static kvc_status check_rotary_range(
        const kvc_rope *rope, int64_t offset, int64_t dim, const char *offset_name)
{
	if (offset < 0 || offset > dim - rope->rotary_dim)
		return kvc__fail_rotary_range_exceeds_head(
		        -1, rope->rotary_dim, offset_name, offset, dim);
	return KVC_OK;
}

static kvc_status check_rope(const struct call *call)
{
	const kvc_rope_pool_args *args = call->args;
	const kvc_rope *rope = args->rope;
	if (rope->rotary_dim < 0 || rope->rotary_dim % 2 != 0 ||
	        rope->rotary_dim > KVC_ROTARY_DIM_MAX)
		return kvc__fail_rotary_dim_invalid(-1, rope->rotary_dim, KVC_ROTARY_DIM_MAX);
	KVC__TRY(check_rotary_range(rope, args->rotary_offset, call->kv_dim, "rotary_offset"));
	KVC__TRY(check_rotary_range(rope, args->q_rotary_offset, call->q_dim, "q_rotary_offset"));
	if (rope->style != KVC_ROPE_NEOX && rope->style != KVC_ROPE_INTERLEAVED)
		return kvc__fail_rope_style_unknown(-1, rope->style);
	return KVC_OK;
}

static kvc_status check_scale(const struct call *call, float scale, const char *name)
{
	if (call->pool_element == call->element) {
		if (scale != 1.0f)
			return kvc__fail_scale_without_fp8(
			        -1, name, (double)scale, call->args->k_pool->dtype);
	} else if (!(scale > 0.0f) || !isfinite(scale)) {
		return kvc__fail_scale_out_of_range(-1, name, (double)scale);
	}
	return KVC_OK;
}

static kvc_status check_stamp(const struct call *call)
{
	const kvc_stamp *stamp = call->stamp;
	const kvc_tensor *k_pool = call->args->k_pool;
	int64_t row_bytes =
	        k_pool->shape[1] * k_pool->shape[2] * kvc__element_bytes(call->pool_element);
	if (!stamp)
		return KVC_OK;
	if (stamp->coverage < KVC_COVERAGE_NONE || stamp->coverage > KVC_COVERAGE_ALL)
		return kvc__fail_stamp_does_not_fit(-1, "coverage", stamp->coverage, "0, 1 or 2");
	if (!stamp->records && stamp->record_count > 0)
		return kvc__fail_null_argument(-1, "stamp.records");
	if ((uintptr_t)stamp->records % sizeof(int64_t) != 0)
		return kvc__fail_stamp_does_not_fit(-1, "records",
		        (int64_t)((uintptr_t)stamp->records % sizeof(int64_t)),
		        "a multiple of 8 as an address, not with this remainder");
	if (stamp->record_stride_bytes < KVC_RECORD_BYTES ||
	        stamp->record_stride_bytes % (int64_t)sizeof(int64_t) != 0)
		return kvc__fail_stamp_does_not_fit(-1, "record_stride_bytes",
		        stamp->record_stride_bytes, "at least 32 and a multiple of 8");
	if (stamp->record_count < k_pool->shape[0])
		return kvc__fail_stamp_does_not_fit(-1, "record_count", stamp->record_count,
		        "at least the slot count of the pools");
	if (stamp->head_bytes <= 0 || row_bytes % stamp->head_bytes != 0)
		return kvc__fail_stamp_does_not_fit(-1, "head_bytes", stamp->head_bytes,
		        "a divisor of the bytes of a pool row");
	return KVC_OK;
}

/* ---- memory: bounds, strides, overlap ---- */

#define TENSOR_MAX 11

/* Every tensor of the call; outputs are those from 'first_output' on. */
struct tensors {
	struct kvc__named list[TENSOR_MAX];
	size_t first_output;
	size_t count;
};

static void add_tensor(struct tensors *all, const kvc_tensor *tensor, const char *name)
{
	if (tensor) {
		all->list[all->count].tensor = tensor;
		all->list[all->count].name = name;
		all->count++;
	}
}

static void list_tensors(const struct call *call, struct tensors *all)
{
	const kvc_rope_pool_args *args = call->args;
	all->count = 0;
	add_tensor(all, args->q, "q");
	add_tensor(all, args->k, "k");
	add_tensor(all, args->v, "v");
	add_tensor(all, args->positions, "positions");
	add_tensor(all, args->slots, "slots");
	add_tensor(all, args->rope->cos_sin ? &call->table : NULL, "cos_sin_cache");
	all->first_output = all->count;
	add_tensor(all, args->q_out, "q_out");
	add_tensor(all, args->k_out, "k_out");
	add_tensor(all, args->k_pool, "k_pool");
	add_tensor(all, args->v_pool, "v_pool");
	add_tensor(all, call->stamp ? &call->records : NULL, "stamp.records");
}

static kvc_status check_strides(const struct tensors *all)
{
	for (size_t i = 0; i < all->count; i++) {
		const struct kvc__named *it = &all->list[i];
		if (it->tensor->ndim > 1 && !kvc__tensor_rows_contiguous(it->tensor))
			return kvc__fail_last_dimension_not_contiguous(
			        -1, it->name, kvc__tensor_stride(it->tensor, it->tensor->ndim - 1));
		if (i >= all->first_output && !kvc__rows_lie_apart(it->tensor))
			return kvc__fail_output_strides_fold_rows(-1, it->name, it->tensor,
			        kvc__tensor_stride(it->tensor, 0),
			        kvc__tensor_stride(it->tensor, 1));
	}
	return KVC_OK;
}

/* The same tensor as input and output, exactly? */
static int is_in_place(
        const kvc_rope_pool_args *args, const kvc_tensor *out, const kvc_tensor *other)
{
	return ((out == args->q_out && other == args->q) ||
	               (out == args->k_out && other == args->k)) &&
	       kvc__tensors_same(out, other);
}

/* Extents once for each tensor; only those of a pair that meet call for a closer look. */
static kvc_status check_rope_overlap(const struct call *call, const struct tensors *all)
{
	struct kvc__extent extents[TENSOR_MAX];
	for (size_t i = 0; i < all->count; i++)
		extents[i] = kvc__tensor_extent(all->list[i].tensor);
	for (size_t i = all->first_output; i < all->count; i++) {
		for (size_t j = 0; j < i; j++) {
			const kvc_tensor *out = all->list[i].tensor;
			const kvc_tensor *other = all->list[j].tensor;
			if (kvc__extents_meet(extents[i], extents[j]) &&
			        !is_in_place(call->args, out, other) &&
			        !kvc__tensors_disjoint(out, other))
				return kvc__fail_output_overlap(
				        -1, all->list[i].name, all->list[j].name);
		}
	}
	return KVC_OK;
}

static kvc_status check_rope_memory(const struct call *call)
{
	struct tensors all;
	list_tensors(call, &all);
	for (size_t i = 0; i < all.count; i++) {
		const struct kvc__named *it = &all.list[i];
		/* check_possible() has looked at the shapes of all that came as tensors. */
		if (it->tensor == &call->table || it->tensor == &call->records)
			KVC__TRY(kvc__check_shape(it->tensor, it->name));
		KVC__TRY(kvc__check_data(it->tensor, it->name));
	}
	KVC__TRY(check_strides(&all));
	return check_rope_overlap(call, &all);
}

/* ---- putting it together ---- */

/* Memory that comes without a tensor, seen as one. */
static void describe_table_and_records(struct call *call)
{
	const kvc_rope *rope = call->args->rope;
	const kvc_stamp *stamp = call->stamp;
	if (rope->cos_sin) {
		call->table_shape[0] = rope->cos_sin_rows;
		call->table_shape[1] = rope->rotary_dim;
		call->table_strides[0] = rope->cos_sin_row_stride;
		call->table_strides[1] = 1;
		call->table = kvc_tensor_make(
		        (void *)(uintptr_t)rope->cos_sin, KVC_FLOAT32, 2, call->table_shape);
		call->table.strides = call->table_strides;
		call->table.device = rope->cos_sin_device;
	}
	if (stamp) {
		call->records_shape[0] = stamp->record_count;
		call->records_shape[1] = KVC_RECORD_BYTES;
		call->records_strides[0] = stamp->record_stride_bytes;
		call->records_strides[1] = 1;
		call->records = kvc_tensor_make(stamp->records, KVC_UINT8, 2, call->records_shape);
		call->records.strides = call->records_strides;
	}
}

/* All checks that need no element of a tensor. */
static kvc_status check_arguments(struct call *call)
{
	const kvc_rope_pool_args *args = call->args;
	KVC__TRY(check_presence(args));
	KVC__TRY(take_stamp(call));
	describe_table_and_records(call);
	KVC__TRY(check_ndim(args));
	KVC__TRY(check_qkv_shapes(call));
	KVC__TRY(check_other_shapes(call));
	KVC__TRY(check_dtypes(call));
	KVC__TRY(check_output(args->q_out, "q_out", args->q, "q"));
	KVC__TRY(check_output(args->k_out, "k_out", args->k, "k"));
	KVC__TRY(check_possible(args));
	KVC__TRY(check_n_valid(call));
	KVC__TRY(check_index_dtype(args->positions, "positions"));
	KVC__TRY(check_index_dtype(args->slots, "slots"));
	KVC__TRY(check_where(call));
	KVC__TRY(check_rope(call));
	KVC__TRY(check_scale(call, args->k_scale, "k_scale"));
	if (args->v)
		KVC__TRY(check_scale(call, args->v_scale, "v_scale"));
	KVC__TRY(check_stamp(call));
	/* Without rows nothing is touched, so nothing needs to have an address. */
	return call->row_count == 0 ? KVC_OK : check_rope_memory(call);
}

/* In bytes. Wraps only where a dimension has one entry and its stride is never used. */
static int64_t byte_stride(const kvc_tensor *tensor, int32_t d)
{
	uint64_t stride = (uint64_t)kvc__tensor_stride(tensor, d);
	return (int64_t)(stride * (uint64_t)kvc__dtype_bytes(tensor->dtype));
}

static struct kvc__rows rows_of(const kvc_tensor *tensor)
{
	struct kvc__rows rows = { NULL, 0, 0 };
	if (tensor) {
		rows.data = kvc__tensor_data(tensor);
		rows.row_stride = byte_stride(tensor, 0);
		rows.head_stride = byte_stride(tensor, 1);
	}
	return rows;
}

static struct kvc__indices indices_of(const kvc_tensor *tensor)
{
	struct kvc__indices indices = { kvc__tensor_data(tensor), byte_stride(tensor, 0),
		tensor->dtype.bits == 64 };
	return indices;
}

/* Field by field: an initialiser would clear the whole struct first. */
static void make_job(const struct call *call, struct kvc__rope_job *job)
{
	const kvc_rope_pool_args *args = call->args;
	job->token_count = call->row_count;
	job->q_heads = args->q->shape[1];
	job->kv_heads = args->k->shape[1];
	job->q_dim = call->q_dim;
	job->kv_dim = call->kv_dim;
	job->element = call->element;
	job->pool_element = call->pool_element;
	job->q = rows_of(args->q);
	job->k = rows_of(args->k);
	job->v = rows_of(args->v);
	job->q_out = rows_of(args->q_out);
	job->k_out = rows_of(args->k_out);
	job->k_pool = rows_of(args->k_pool);
	job->v_pool = rows_of(args->v_pool);
	job->positions = indices_of(args->positions);
	job->slots = indices_of(args->slots);
	job->stamp = call->stamp;
	kvc__rope_take_options(args, job);
}

/* On the device the kernel looks at positions and slots: it skips what the CPU would refuse. */
static kvc_status rope_on_cuda(
        const struct call *call, const struct kvc__rope_job *job, void *stream)
{
	const kvc_rope_pool_args *args = call->args;
	struct tensors all;
	const struct kvc__cuda_ops *cuda;
	struct kvc__cuda_rope on_device = {
		.job = job,
		.slot_count = args->k_pool->shape[0],
		.check_finite = args->check_finite,
		.report = args->report,
	};

	list_tensors(call, &all);
	KVC__TRY(kvc__cuda_find(&cuda, call->device, "q"));
	/* Kernels read indices as they are; the CPU takes them from any address. */
	KVC__TRY(kvc__check_placement(args->positions, "positions"));
	KVC__TRY(kvc__check_placement(args->slots, "slots"));
	if (args->check_duplicates) {
		if (!args->scratch)
			return kvc__fail_duplicate_scratch_needed(-1, on_device.slot_count);
		KVC__TRY(kvc__check_marked(job->token_count));
		KVC__TRY(kvc__check_vector(
		        args->scratch, "scratch", KVC_INT32, on_device.slot_count));
		on_device.duplicate_scratch = (int32_t *)(void *)kvc__tensor_data(args->scratch);
		KVC__TRY(kvc__cuda_check_pointer(on_device.duplicate_scratch, "scratch"));
	}
	for (size_t i = 0; i < all.count; i++)
		KVC__TRY(kvc__cuda_check_pointer(
		        kvc__tensor_data(all.list[i].tensor), all.list[i].name));
	KVC__TRY(kvc__cuda_check_pointer(args->report, "report"));
	return cuda->rope(&on_device, stream);
}

/* ---- the call ---- */

/* Tokens below which a second thread does not pay: the bytes moved decide. */
static void run_on_cpu(const struct kvc__cpu_variant *cpu, struct kvc__rope_job *job)
{
	double bytes = kvc__rope_bytes(job);
	struct kvc__fp_mode mode = kvc__fp_enter();
	if (bytes < 2 * GRAIN_BYTES)
		cpu->rope_rows(job, 0, job->token_count);
	else
		kvc__parallel_for(job->token_count,
		        (int64_t)(GRAIN_BYTES * (double)job->token_count / bytes) + 1,
		        cpu->rope_rows, job);
	kvc__fp_leave(mode);
}

/* Checks that are off unless asked for, then the work. */
static kvc_status rope_on_cpu(const struct kvc__cpu_variant *cpu, const kvc_rope_pool_args *args,
        struct kvc__rope_job *job)
{
	if (args->check_duplicates)
		KVC__TRY(kvc__rope_check_duplicates(job, args->k_pool->shape[0]));
	if (args->check_finite)
		KVC__TRY(kvc__rope_check_finite(job));
	run_on_cpu(cpu, job);
	if (args->report) {
		int64_t stored = kvc__rope_count_stored(job);
		args->report->rows_written += stored;
		args->report->rows_skipped += job->token_count - stored;
	}
	return KVC_OK;
}

kvc_status kvc_rope_pool_fused(const kvc_rope_pool_args *args, void *stream)
{
	const struct kvc__cpu_variant *cpu;
	struct call call;
	struct kvc__rope_job job;

	KVC__TRY(kvc__cpu_choose(&cpu));
	if (kvc__rope_is_plain(args, &job))
		return rope_on_cpu(cpu, args, &job);

	KVC__TRY(kvc__check_struct(args, sizeof *args, sizeof *args, "args"));
	call.args = args;
	KVC__TRY(check_arguments(&call));
	if (call.row_count == 0)
		return KVC_OK;
	make_job(&call, &job);
	if (kvc__is_cuda(call.device))
		return rope_on_cuda(&call, &job, stream);
	KVC__TRY(kvc__rope_check_positions(&job));
	KVC__TRY(kvc__rope_check_slots(&job, args->k_pool->shape[0]));
	return rope_on_cpu(cpu, args, &job);
}
