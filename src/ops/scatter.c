/*
 * kvc_scatter_req_token_ids(): on the CPU everything that can be wrong with a call is found here, in
 * the order of SPEC section 3, before the back end writes a word. On the device the kernel looks at
 * the values.
 */
#include "cpu/scatter.h"
#include "cpu/dispatch.h"
#include "cuda/cuda.h"
#include "ops/arguments.h"

#include <string.h>

/* ---- what the tensors look like ---- */

static kvc_status check_dimensions(const struct kvc__named *inputs, const kvc_tensor *pool_out)
{
	for (int i = 0; i < 3; i++)
		if (inputs[i].tensor->ndim != 1)
			return kvc__fail_scatter_inputs_must_be_1_d(
			        -1, inputs[i].name, inputs[i].tensor);
	if (pool_out->ndim != 2)
		return kvc__fail_scatter_pool_out_must_be_2_d(-1, pool_out);
	return KVC_OK;
}

static kvc_status check_types(const struct kvc__named *inputs, const kvc_tensor *pool_out)
{
	for (int i = 0; i < 3; i++)
		if (!kvc__dtype_equal(inputs[i].tensor->dtype, KVC_INT64))
			return kvc__fail_scatter_inputs_must_be_int64(
			        -1, inputs[i].name, inputs[i].tensor->dtype);
	if (!kvc__dtype_equal(pool_out->dtype, KVC_INT32))
		return kvc__fail_scatter_pool_out_must_be_int32(-1, pool_out->dtype);
	return KVC_OK;
}

/* Shapes are not checked yet: they may be anything, so nothing is added to them blindly. */
static kvc_status check_offsets_length(const kvc_tensor *offsets, const kvc_tensor *rows)
{
	int64_t length = offsets->shape[0], bs = rows->shape[0];

	if (length < 1 || length - 1 != bs)
		return kvc__fail_scatter_offsets_length(
		        -1, length, bs < INT64_MAX ? bs + 1 : INT64_MAX);
	return KVC_OK;
}

/* Rows that share memory, or run backwards, would make two requests write one word. */
static kvc_status check_table_rows(const kvc_tensor *pool_out)
{
	int64_t stride = kvc__tensor_stride(pool_out, 0);

	if (pool_out->shape[0] > 1 && pool_out->shape[1] > 0 && stride < pool_out->shape[1])
		return kvc__fail_scatter_pool_out_rows_overlap(-1, stride, pool_out->shape[1]);
	return KVC_OK;
}

static kvc_status check_overlap(const struct kvc__named *inputs, const kvc_tensor *pool_out)
{
	struct kvc__extent table = kvc__tensor_extent(pool_out);

	for (int i = 0; i < 3; i++)
		if (kvc__extents_meet(table, kvc__tensor_extent(inputs[i].tensor)))
			return kvc__fail_scatter_pool_out_overlaps(-1, inputs[i].name);
	return KVC_OK;
}

static kvc_status check_memory(const struct kvc__named tensors[4])
{
	kvc_device device;

	for (int i = 0; i < 4; i++)
		KVC__TRY(kvc__check_bounds(tensors[i].tensor, tensors[i].name));
	KVC__TRY(kvc__check_same_device(&device, tensors, 4));
	for (int i = 0; i < 4; i++) {
		const kvc_tensor *tensor = tensors[i].tensor;
		KVC__TRY(kvc__check_placement(tensor, tensors[i].name));
		if (!kvc__tensor_rows_contiguous(tensor))
			return kvc__fail_canary_tensor_must_be_contiguous(
			        -1, tensors[i].name, kvc__tensor_stride(tensor, tensor->ndim - 1));
	}
	KVC__TRY(check_table_rows(tensors[3].tensor));
	return check_overlap(tensors, tensors[3].tensor);
}

static kvc_status check_scatter_tensors(const kvc_scatter_args *args)
{
	const struct kvc__named tensors[4] = {
		{ args->flat_in, "flat_in" },
		{ args->offsets, "offsets" },
		{ args->req_pool_indices, "req_pool_indices" },
		{ args->pool_out, "pool_out" },
	};

	for (int i = 0; i < 4; i++)
		KVC__TRY(kvc__check_present(tensors[i].tensor, tensors[i].name));
	KVC__TRY(check_dimensions(tensors, args->pool_out));
	KVC__TRY(check_types(tensors, args->pool_out));
	KVC__TRY(check_offsets_length(args->offsets, args->req_pool_indices));
	KVC__TRY(kvc__check_rules(args->rules));
	return check_memory(tensors);
}

/* ---- what the values say ---- */

static struct kvc__scatter scatter_of(const kvc_scatter_args *args)
{
	struct kvc__scatter task = {
		.flat = (const int64_t *)(void *)kvc__tensor_data(args->flat_in),
		.offsets = (const int64_t *)(void *)kvc__tensor_data(args->offsets),
		.rows = (const int64_t *)(void *)kvc__tensor_data(args->req_pool_indices),
		.request_count = args->req_pool_indices->shape[0],
		.flat_count = args->flat_in->shape[0],
		.table = (int32_t *)(void *)kvc__tensor_data(args->pool_out),
		.row_count = args->pool_out->shape[0],
		.column_count = args->pool_out->shape[1],
		.row_stride = kvc__tensor_stride(args->pool_out, 0),
	};
	return task;
}

static int has_tokens(const struct kvc__scatter *task, int64_t r)
{
	return task->offsets[r + 1] > task->offsets[r];
}

/* Our rules: every offset counts, and they never fall. */
static kvc_status check_offsets_own(const struct kvc__scatter *task)
{
	for (int64_t i = 0; i <= task->request_count; i++) {
		int64_t offset = task->offsets[i];
		if (offset < 0)
			return kvc__fail_scatter_offset_negative(i, i, offset);
		if (offset > task->flat_count)
			return kvc__fail_scatter_offset_past_end(i, i, offset, task->flat_count);
		if (i > 0 && offset < task->offsets[i - 1])
			return kvc__fail_scatter_offsets_fall(
			        i - 1, task->offsets[i - 1], offset, i - 1);
	}
	return KVC_OK;
}

/* SGLang's: a request whose offsets fall has no tokens. Only segments that are read must fit. */
static kvc_status check_offsets_sglang(struct kvc__scatter *task)
{
	for (int64_t r = 0; r < task->request_count; r++) {
		int64_t first = task->offsets[r], past = task->offsets[r + 1];
		if (past < first)
			task->in_order = 1;
		if (past <= first)
			continue;
		if (first < 0)
			return kvc__fail_scatter_offset_negative(r, r, first);
		if (past > task->flat_count)
			return kvc__fail_scatter_offset_past_end(
			        r + 1, r + 1, past, task->flat_count);
	}
	return KVC_OK;
}

static kvc_status check_rows(const struct kvc__scatter *task)
{
	for (int64_t r = 0; r < task->request_count; r++)
		if (has_tokens(task, r) && (uint64_t)task->rows[r] >= (uint64_t)task->row_count)
			return kvc__fail_scatter_row_out_of_range(
			        r, r, task->rows[r], task->row_count);
	return KVC_OK;
}

/*
 * Finding two requests on one row without memory of our own: a bitmap on the stack covers one
 * window of rows at a time. A table of requests has some thousand rows, so that one window does; a
 * batch spread over more costs one pass of the batch for each window that it has a row in.
 */
#define WINDOW_WORDS 8192
#define WINDOW_ROWS (WINDOW_WORDS * 64)

struct row_window {
	uint64_t seen[WINDOW_WORDS];
	int64_t base;
};

/* Lowest row >= base of a request below 'count', or INT64_MAX; *highest_out is the highest one. */
static int64_t lowest_row(
        const struct kvc__scatter *task, int64_t count, int64_t base, int64_t *highest_out)
{
	int64_t lowest = INT64_MAX, highest = -1;

	for (int64_t r = 0; r < count; r++) {
		int64_t row = task->rows[r];
		if (row < base || !has_tokens(task, r))
			continue;
		lowest = row < lowest ? row : lowest;
		highest = row > highest ? row : highest;
	}
	*highest_out = highest;
	return lowest;
}

/* First request below 'count' on a row of the window that an earlier one is on, or 'count'. */
static int64_t search_window(
        const struct kvc__scatter *task, int64_t count, struct row_window *window)
{
	for (int64_t r = 0; r < count; r++) {
		uint64_t at = (uint64_t)task->rows[r] - (uint64_t)window->base;
		if (at >= WINDOW_ROWS || !has_tokens(task, r))
			continue;
		if (window->seen[at / 64] >> at % 64 & 1)
			return r;
		window->seen[at / 64] |= UINT64_C(1) << at % 64;
	}
	return count;
}

/* The lowest request that shares its row with an earlier one, or -1. Rows are in range. */
static int64_t first_duplicate(const struct kvc__scatter *task)
{
	struct row_window window;
	int64_t count = task->request_count, base = 0, highest;

	for (;;) {
		window.base = lowest_row(task, count, base, &highest);
		if (window.base == INT64_MAX)
			break;
		int64_t span = highest - window.base < WINDOW_ROWS ? highest - window.base
		                                                   : WINDOW_ROWS - 1;
		memset(window.seen, 0, ((size_t)span / 64 + 1) * sizeof(window.seen[0]));
		count = search_window(task, count, &window);
		if (highest - window.base < WINDOW_ROWS)
			break;
		base = window.base + WINDOW_ROWS;
	}
	return count < task->request_count ? count : -1;
}

static kvc_status check_duplicates(const struct kvc__scatter *task)
{
	int64_t later = first_duplicate(task), earlier = 0;

	if (later < 0)
		return KVC_OK;
	while (task->rows[earlier] != task->rows[later] || !has_tokens(task, earlier))
		earlier++;
	return kvc__fail_scatter_row_duplicate(later, earlier, later, task->rows[later]);
}

static kvc_status check_tokens(const struct kvc__scatter *task, int allow_placeholder)
{
	int64_t bad = kvc__scatter_first_bad_token(task->cpu, task->flat, task->offsets[0],
	        task->offsets[task->request_count], allow_placeholder);

	if (bad < 0)
		return KVC_OK;
	if (task->flat[bad] == -1)
		return kvc__fail_scatter_token_placeholder(bad, bad);
	return kvc__fail_scatter_token_out_of_range(bad, task->flat[bad], bad);
}

/* Rows that looks_sound() has a bitmap for: the tables of most engines. */
#define SMALL_ROWS 4096

/*
 * One look at all requests, under either rules: offsets that ascend inside flat_in, rows inside a small
 * table and no two the same. A no says nothing: the checks above find out what is wrong, if anything.
 */
static int looks_sound(const struct kvc__scatter *task)
{
	uint64_t seen[SMALL_ROWS / 64] = { 0 };
	int64_t past = task->offsets[0];

	if (past < 0 || task->row_count > SMALL_ROWS)
		return 0;
	for (int64_t r = 0; r < task->request_count; r++) {
		int64_t first = past;
		past = task->offsets[r + 1];
		if (past == first)
			continue;
		uint64_t row = (uint64_t)task->rows[r], bit;
		if (past < first || row >= (uint64_t)task->row_count)
			return 0;
		bit = UINT64_C(1) << row % 64;
		if (seen[row / 64] & bit)
			return 0;
		seen[row / 64] |= bit;
	}
	return past <= task->flat_count;
}

static kvc_status check_segments(struct kvc__scatter *task, const kvc_scatter_args *args)
{
	if (looks_sound(task))
		return KVC_OK;
	if (args->rules == KVC_RULES_SGLANG) {
		KVC__TRY(check_offsets_sglang(task));
		KVC__TRY(check_rows(task));
		if (first_duplicate(task) >= 0)
			task->in_order = 1;
		return KVC_OK;
	}
	KVC__TRY(check_offsets_own(task));
	KVC__TRY(check_rows(task));
	return check_duplicates(task);
}

static kvc_status check_values(struct kvc__scatter *task, const kvc_scatter_args *args)
{
	KVC__TRY(check_segments(task, args));
	if (args->rules == KVC_RULES_SGLANG || args->narrow)
		return KVC_OK;
	return check_tokens(task, args->allow_placeholder);
}

static void count_rows(kvc_report *report, const struct kvc__scatter *task)
{
	if (!report)
		return;
	for (int64_t r = 0; r < task->request_count; r++) {
		if (!has_tokens(task, r)) {
			report->rows_skipped++;
			continue;
		}
		report->rows_written++;
		int64_t length = task->offsets[r + 1] - task->offsets[r];
		if (length > task->column_count)
			report->tokens_truncated += length - task->column_count;
	}
}

static kvc_status scatter_on_cuda(
        const kvc_scatter_args *args, const struct kvc__scatter *task, void *stream)
{
	const struct kvc__cuda_ops *cuda;
	const struct kvc__cuda_scatter call = {
		.job = task,
		.sglang = args->rules == KVC_RULES_SGLANG,
		.check_tokens = args->rules == KVC_RULES_OWN && !args->narrow,
		.allow_placeholder = args->allow_placeholder,
		.report = args->report,
	};

	KVC__TRY(kvc__cuda_find(&cuda, args->flat_in->device, "flat_in"));
	KVC__TRY(kvc__cuda_check_pointer(task->flat, "flat_in"));
	KVC__TRY(kvc__cuda_check_pointer(task->offsets, "offsets"));
	KVC__TRY(kvc__cuda_check_pointer(task->rows, "req_pool_indices"));
	KVC__TRY(kvc__cuda_check_pointer(task->table, "pool_out"));
	KVC__TRY(kvc__cuda_check_pointer(args->report, "report"));
	return cuda->scatter(&call, stream);
}

kvc_status kvc_scatter_req_token_ids(const kvc_scatter_args *given, void *stream)
{
	kvc_scatter_args args = KVC_SCATTER_ARGS_INIT;
	struct kvc__scatter task;

	KVC__TAKE(&args, given, "args");
	KVC__TRY(check_scatter_tensors(&args));
	if (args.req_pool_indices->shape[0] == 0 || args.flat_in->shape[0] == 0)
		return KVC_OK;
	task = scatter_of(&args);
	if (kvc__is_cuda(args.flat_in->device))
		return scatter_on_cuda(&args, &task, stream);
	KVC__TRY(kvc__cpu_choose(&task.cpu));
	KVC__TRY(check_values(&task, &args));
	kvc__scatter_store(&task);
	count_rows(args.report, &task);
	return KVC_OK;
}
