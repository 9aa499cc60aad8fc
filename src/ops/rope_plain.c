/* The short way into rope_pool_fused; rope_plain.h says what it promises. */
#include "ops/rope_plain.h"

#include "base/tensor.h"
#include "ops/overlap.h"

#include <float.h>
#include <string.h>

int kvc__rope_plain_allowed = 1;

/* Bounds of a plain call, so that no product below overflows: rows times a stride in bytes is at most
 * 2^28 * 2^30. */
#define ROWS_MAX ((int64_t)1 << 28)
#define STRIDE_MAX ((int64_t)1 << 28) /* elements */
#define DIM_MAX ((int64_t)1 << 14)    /* of heads, and of elements of one */

/* Everything of the call that has an address; from FIRST_OUTPUT on it is written. */
enum {
	Q,
	K,
	V,
	POSITIONS,
	SLOTS,
	TABLE,
	FIRST_OUTPUT,
	Q_OUT = FIRST_OUTPUT,
	K_OUT,
	K_POOL,
	V_POOL,
	RECORDS,
	PLACES
};

/* Those left out have the extent [0, 0), which meets none. */
struct places {
	const kvc_tensor *tensor[PLACES]; /* NULL for what is no tensor */
	struct kvc__extent extent[PLACES];
};

static int within(int64_t value, int64_t least, int64_t most)
{
	return value >= least && value <= most;
}

static int is_on_host(const kvc_tensor *tensor)
{
	return tensor->device.device_type == KVC_DEVICE_CPU && tensor->data;
}

/* ---- tensors ---- */

/* The shape and type that a tensor must have. */
struct form {
	int64_t rows, heads, dim;
	kvc_dtype dtype;
	int64_t width;
};

/* Is it a tensor of that form whose heads lie apart, or (inputs) anywhere? */
static int take_plain_rows(struct places *places, int place, const kvc_tensor *tensor,
        const struct form *form, struct kvc__rows *rows)
{
	int64_t row = form->heads * form->dim;
	int64_t head = form->dim;
	if (!tensor || tensor->ndim != 3 || !tensor->shape || !is_on_host(tensor) ||
	        !kvc__dtype_equal(tensor->dtype, form->dtype) || tensor->shape[0] != form->rows ||
	        tensor->shape[1] != form->heads || tensor->shape[2] != form->dim)
		return 0;
	if (tensor->strides) {
		int is_output = place >= FIRST_OUTPUT;
		int64_t run = is_output ? form->dim : 0;
		row = tensor->strides[0];
		head = tensor->strides[1];
		if (tensor->strides[2] != 1 || !within(head, run, STRIDE_MAX) ||
		        !within(row, is_output ? (form->heads - 1) * head + run : 0, STRIDE_MAX))
			return 0;
	}
	rows->data = kvc__tensor_data(tensor);
	rows->row_stride = row * form->width;
	rows->head_stride = head * form->width;
	struct kvc__extent *extent = &places->extent[place];
	extent->first = (uintptr_t)rows->data;
	extent->past = extent->first +
	               (uintptr_t)((form->rows - 1) * rows->row_stride +
	                           (form->heads - 1) * rows->head_stride + form->dim * form->width);
	places->tensor[place] = tensor;
	return extent->past > extent->first; /* it does not wrap */
}

static void leave_out(struct places *places, int place, struct kvc__rows *rows)
{
	memset(rows, 0, sizeof *rows);
	memset(&places->extent[place], 0, sizeof places->extent[place]);
}

static int take_indices(struct places *places, int place, const kvc_tensor *tensor, int64_t count,
        int exactly, struct kvc__indices *indices)
{
	if (!tensor || tensor->ndim != 1 || !tensor->shape || !is_on_host(tensor))
		return 0;
	int is_64 = kvc__dtype_equal(tensor->dtype, KVC_INT64);
	int64_t length = tensor->shape[0];
	int64_t stride = tensor->strides ? tensor->strides[0] : 1;
	if ((!is_64 && !kvc__dtype_equal(tensor->dtype, KVC_INT32)) ||
	        !within(length, count, ROWS_MAX) || (exactly && length != count) ||
	        !within(stride, 0, STRIDE_MAX))
		return 0;
	int64_t width = is_64 ? 8 : 4;
	indices->data = kvc__tensor_data(tensor);
	indices->stride = stride * width;
	indices->is_64 = is_64;
	struct kvc__extent *extent = &places->extent[place];
	extent->first = (uintptr_t)indices->data;
	extent->past = extent->first + (uintptr_t)((length - 1) * indices->stride + width);
	places->tensor[place] = tensor;
	return extent->past > extent->first;
}

/* ---- the parts of a call ---- */

static int take_element(kvc_dtype dtype, enum kvc__element *out)
{
	*out = dtype.code == KVC_CODE_BFLOAT ? KVC__ELEMENT_BF16
	       : dtype.bits == 16            ? KVC__ELEMENT_F16
	                                     : KVC__ELEMENT_F32;
	return kvc__dtype_equal(dtype, KVC_BFLOAT16) || kvc__dtype_equal(dtype, KVC_FLOAT16) ||
	       kvc__dtype_equal(dtype, KVC_FLOAT32);
}

static int take_pool_element(
        const kvc_rope_pool_args *args, kvc_dtype dtype, struct kvc__rope_job *job)
{
	kvc_dtype pool = args->k_pool->dtype;
	job->pool_element = job->element;
	if (kvc__dtype_equal(pool, dtype))
		return args->k_scale == 1.0f && (!args->v || args->v_scale == 1.0f);
	job->pool_element =
	        kvc__dtype_equal(pool, KVC_FLOAT8_E4M3FN) ? KVC__ELEMENT_E4M3 : KVC__ELEMENT_E5M2;
	return (kvc__dtype_equal(pool, KVC_FLOAT8_E4M3FN) ||
	               kvc__dtype_equal(pool, KVC_FLOAT8_E5M2)) &&
	       args->k_scale > 0.0f && args->k_scale <= FLT_MAX &&
	       (!args->v || (args->v_scale > 0.0f && args->v_scale <= FLT_MAX));
}

/* q, k and v, their outputs and the pools. */
static int take_plain_tensors(
        const kvc_rope_pool_args *args, struct kvc__rope_job *job, struct places *places)
{
	const kvc_tensor *q = args->q;
	const kvc_tensor *k = args->k;
	const kvc_tensor *k_pool = args->k_pool;
	if (!q || !k || !k_pool || q->ndim != 3 || k->ndim != 3 || k_pool->ndim != 3 || !q->shape ||
	        !k->shape || !k_pool->shape || !take_element(q->dtype, &job->element) ||
	        !take_pool_element(args, q->dtype, job))
		return 0;
	struct form q_form = { q->shape[0], q->shape[1], q->shape[2], q->dtype,
		kvc__element_bytes(job->element) };
	struct form kv_form = { q_form.rows, k->shape[1], k->shape[2], q->dtype, q_form.width };
	struct form pool_form = { k_pool->shape[0], kv_form.heads, kv_form.dim, k_pool->dtype,
		kvc__element_bytes(job->pool_element) };
	if (!within(q_form.rows, 1, ROWS_MAX) || !within(pool_form.rows, 1, ROWS_MAX) ||
	        !within(q_form.heads, 1, DIM_MAX) || !within(q_form.dim, 1, DIM_MAX) ||
	        !within(kv_form.heads, 1, DIM_MAX) || !within(kv_form.dim, 1, DIM_MAX))
		return 0;
	job->q_heads = q_form.heads;
	job->q_dim = q_form.dim;
	job->kv_heads = kv_form.heads;
	job->kv_dim = kv_form.dim;
	if (!take_plain_rows(places, Q, q, &q_form, &job->q) ||
	        !take_plain_rows(places, K, k, &kv_form, &job->k) ||
	        !take_plain_rows(places, K_POOL, k_pool, &pool_form, &job->k_pool))
		return 0;
	leave_out(places, V, &job->v);
	leave_out(places, V_POOL, &job->v_pool);
	leave_out(places, Q_OUT, &job->q_out);
	leave_out(places, K_OUT, &job->k_out);
	if ((args->v || args->v_pool) &&
	        (q_form.dim != kv_form.dim ||
	                !take_plain_rows(places, V, args->v, &kv_form, &job->v) ||
	                !take_plain_rows(places, V_POOL, args->v_pool, &pool_form, &job->v_pool)))
		return 0;
	return (!args->q_out ||
	               take_plain_rows(places, Q_OUT, args->q_out, &q_form, &job->q_out)) &&
	       (!args->k_out || take_plain_rows(places, K_OUT, args->k_out, &kv_form, &job->k_out));
}

/* Do the numbers among the arguments fit, and the lengths of positions and slots? */
static int take_counts(
        const kvc_rope_pool_args *args, struct kvc__rope_job *job, struct places *places)
{
	int64_t rows = args->q->shape[0];
	int exactly = args->n_valid == -1;
	job->token_count = exactly ? rows : args->n_valid;
	return within(job->token_count, 1, rows) &&
	       (!args->head_dim || args->head_dim == job->kv_dim) &&
	       (!args->num_qo_heads || args->num_qo_heads == job->q_heads) &&
	       (!args->num_kv_heads || args->num_kv_heads == job->kv_heads) &&
	       take_indices(places, POSITIONS, args->positions, job->token_count, exactly,
	               &job->positions) &&
	       take_indices(places, SLOTS, args->slots, job->token_count, exactly, &job->slots);
}

static int take_rope(
        const kvc_rope_pool_args *args, const struct kvc__rope_job *job, struct places *places)
{
	const kvc_rope *rope = args->rope;
	struct kvc__extent *table = &places->extent[TABLE];
	memset(table, 0, sizeof *table);
	places->tensor[TABLE] = NULL;
	if (!rope || rope->struct_bytes != sizeof *rope ||
	        !within(rope->rotary_dim, 2, KVC_ROTARY_DIM_MAX) || rope->rotary_dim % 2 != 0 ||
	        !within(args->rotary_offset, 0, job->kv_dim - rope->rotary_dim) ||
	        !within(args->q_rotary_offset, 0, job->q_dim - rope->rotary_dim) ||
	        (rope->style != KVC_ROPE_NEOX && rope->style != KVC_ROPE_INTERLEAVED))
		return 0;
	if (!rope->cos_sin)
		return 1;
	if (!within(rope->cos_sin_rows, 1, ROWS_MAX) ||
	        !within(rope->cos_sin_row_stride, 0, STRIDE_MAX) ||
	        rope->cos_sin_device.device_type != KVC_DEVICE_CPU)
		return 0;
	table->first = (uintptr_t)rope->cos_sin;
	table->past =
	        table->first + (uintptr_t)((rope->cos_sin_rows - 1) * rope->cos_sin_row_stride +
	                                   rope->rotary_dim) *
	                               sizeof(float);
	return table->past > table->first;
}

static int take_plain_stamp(
        const kvc_rope_pool_args *args, struct kvc__rope_job *job, struct places *places)
{
	const kvc_stamp *stamp = args->stamp;
	struct kvc__extent *records = &places->extent[RECORDS];
	int64_t row_bytes = job->kv_heads * job->kv_dim * kvc__element_bytes(job->pool_element);
	memset(records, 0, sizeof *records);
	places->tensor[RECORDS] = NULL;
	job->stamp = NULL;
	if (!stamp)
		return 1;
	if (stamp->struct_bytes != sizeof *stamp ||
	        !within(stamp->coverage, KVC_COVERAGE_NONE + 1, KVC_COVERAGE_ALL) ||
	        !stamp->records || (uintptr_t)stamp->records % sizeof(int64_t) != 0 ||
	        !within(stamp->record_stride_bytes, KVC_RECORD_BYTES, STRIDE_MAX) ||
	        stamp->record_stride_bytes % (int64_t)sizeof(int64_t) != 0 ||
	        !within(stamp->record_count, args->k_pool->shape[0], ROWS_MAX) ||
	        stamp->head_bytes <= 0 || row_bytes % stamp->head_bytes != 0)
		return 0;
	records->first = (uintptr_t)stamp->records;
	records->past = records->first +
	                (uintptr_t)((stamp->record_count - 1) * stamp->record_stride_bytes +
	                            KVC_RECORD_BYTES);
	job->stamp = stamp;
	return records->past > records->first;
}

/* ---- overlap ---- */

static int rows_coincide(const struct kvc__rows *a, const struct kvc__rows *b)
{
	return a->data == b->data && a->row_stride == b->row_stride &&
	       a->head_stride == b->head_stride;
}

/* Two extents meet: may they? In place, and where the rows themselves can be shown to lie apart. */
static int may_meet(
        const struct kvc__rope_job *job, const struct places *places, int output, int other)
{
	const kvc_tensor *a = places->tensor[output];
	const kvc_tensor *b = places->tensor[other];
	if (output == Q_OUT && other == Q && rows_coincide(&job->q, &job->q_out))
		return 1;
	if (output == K_OUT && other == K && rows_coincide(&job->k, &job->k_out))
		return 1;
	return a && b && kvc__tensors_disjoint(a, b);
}

static int outputs_lie_apart(const struct kvc__rope_job *job, const struct places *places)
{
	for (int output = FIRST_OUTPUT; output < PLACES; output++)
		for (int other = 0; places->extent[output].past && other < output; other++)
			if (kvc__extents_meet(places->extent[output], places->extent[other]) &&
			        !may_meet(job, places, output, other))
				return 0;
	return 1;
}

/* ---- values ---- */

/* Has every token that is to be stored a position and a slot in range? */
static int indices_in_range(const struct kvc__rope_job *job, int64_t slot_count)
{
	uint64_t positions = (uint64_t)job->position_count;
	uint64_t slots = (uint64_t)slot_count;
	int bad = 0;
	for (int64_t i = 0; i < job->token_count; i++) {
		int64_t slot = kvc__index_read(&job->slots, i);
		int64_t position = kvc__index_read(&job->positions, i);
		int outside = ((uint64_t)position >= positions) | ((uint64_t)slot >= slots);
		bad |= outside && !kvc__slot_skipped(job, slot);
	}
	return !bad;
}

/* ---- all of it ---- */

double kvc__rope_bytes(const struct kvc__rope_job *job)
{
	/* In doubles: inputs with strides of 0 may have as many heads as they like. */
	double elements = 2.0 * (double)job->q_heads * (double)job->q_dim +
	                  4.0 * (double)job->kv_heads * (double)job->kv_dim;
	return (double)job->token_count * elements * (double)kvc__element_bytes(job->element);
}

void kvc__rope_take_options(const kvc_rope_pool_args *args, struct kvc__rope_job *job)
{
	job->reserved_slot = args->reserved_slot;
	job->rotary_offset = args->rotary_offset;
	job->q_rotary_offset = args->q_rotary_offset;
	job->position_count =
	        args->rope->cos_sin ? args->rope->cos_sin_rows : (int64_t)KVC_POSITION_MAX + 1;
	job->k_scale = args->k_scale;
	job->v_scale = args->v_scale;
	job->rope = args->rope;
	job->streams = kvc__rope_bytes(job) >= (double)kvc__rope_stream_bytes;
}

int kvc__rope_is_plain(const kvc_rope_pool_args *args, struct kvc__rope_job *job)
{
	struct places places;
	if (!kvc__rope_plain_allowed || !args || args->struct_bytes != sizeof *args ||
	        !take_plain_tensors(args, job, &places) || !take_counts(args, job, &places) ||
	        !take_rope(args, job, &places) || !take_plain_stamp(args, job, &places) ||
	        !outputs_lie_apart(job, &places))
		return 0;
	kvc__rope_take_options(args, job);
	return indices_in_range(job, args->k_pool->shape[0]);
}
