/*
 * kvc_scatter_req_token_ids(): what it stores, compared with a loop that is written as the sentence
 * in kvcanary.h reads; and every refusal, each of which must leave the table as it was.
 */
#include <stdlib.h>
#include <string.h>

#include "expect.h"
#include "seeded.h"

#define ROWS 4
#define COLUMNS 8
#define FILL ((int32_t)0xA5A5A5A5)

/* A small call: request 0 has three tokens for row 1, request 1 two for row 2. */
struct call {
	int64_t flat[8], offsets[3], rows[2];
	int32_t table[ROWS * COLUMNS];
	int64_t flat_shape[1], offsets_shape[1], rows_shape[1], table_shape[2];
	kvc_tensor flat_in, offset_tensor, row_tensor, pool_out;
	kvc_report report;
	kvc_scatter_args args;
};

static void call_init(struct call *call)
{
	memset(call, 0, sizeof(*call));
	memcpy(call->flat, (int64_t[]){ 11, 22, 33, 44, 55 }, 5 * sizeof(int64_t));
	memcpy(call->offsets, (int64_t[]){ 0, 3, 5 }, sizeof(call->offsets));
	memcpy(call->rows, (int64_t[]){ 1, 2 }, sizeof(call->rows));
	for (int i = 0; i < ROWS * COLUMNS; i++)
		call->table[i] = FILL;
	call->flat_shape[0] = 5, call->offsets_shape[0] = 3, call->rows_shape[0] = 2;
	call->table_shape[0] = ROWS, call->table_shape[1] = COLUMNS;
	call->flat_in = kvc_tensor_make(call->flat, KVC_INT64, 1, call->flat_shape);
	call->offset_tensor = kvc_tensor_make(call->offsets, KVC_INT64, 1, call->offsets_shape);
	call->row_tensor = kvc_tensor_make(call->rows, KVC_INT64, 1, call->rows_shape);
	call->pool_out = kvc_tensor_make(call->table, KVC_INT32, 2, call->table_shape);
	call->args = (kvc_scatter_args)KVC_SCATTER_ARGS_INIT;
	call->args.flat_in = &call->flat_in;
	call->args.offsets = &call->offset_tensor;
	call->args.req_pool_indices = &call->row_tensor;
	call->args.pool_out = &call->pool_out;
	call->args.report = &call->report;
}

static void assert_untouched(const struct call *call)
{
	for (int i = 0; i < ROWS * COLUMNS; i++)
		assert_int_equal(call->table[i], FILL);
	assert_int_equal(call->report.rows_written, 0);
	assert_int_equal(call->report.rows_skipped, 0);
	assert_int_equal(call->report.tokens_truncated, 0);
}

static void refused(
        struct call *call, kvc_status status, const char *slug, const char *message, int64_t where)
{
	expect_error(kvc_scatter_req_token_ids(&call->args, NULL), status, slug, message, where);
	assert_untouched(call);
}

/* ---- what is stored ---- */

static void two_requests_land_in_their_rows(void **state)
{
	struct call call;

	(void)state;
	call_init(&call);
	expect_ok(kvc_scatter_req_token_ids(&call.args, NULL));
	for (int i = 0; i < ROWS * COLUMNS; i++) {
		int32_t want = FILL;
		if (i >= COLUMNS && i < COLUMNS + 3)
			want = 11 * (i - COLUMNS + 1);
		if (i >= 2 * COLUMNS && i < 2 * COLUMNS + 2)
			want = 44 + 11 * (i - 2 * COLUMNS);
		assert_int_equal(call.table[i], want);
	}
	assert_int_equal(call.report.rows_written, 2);
}

static void tokens_outside_all_offsets_belong_to_nobody(void **state)
{
	struct call call;

	(void)state;
	call_init(&call);
	call.offsets[0] = 1, call.offsets[1] = 2, call.offsets[2] = 3;
	call.flat[0] = -5, call.flat[3] = -6; /* not even looked at */
	expect_ok(kvc_scatter_req_token_ids(&call.args, NULL));
	assert_int_equal(call.table[COLUMNS], 22);
	assert_int_equal(call.table[2 * COLUMNS], 33);
	assert_int_equal(call.table[2 * COLUMNS + 1], FILL);
}

static void requests_without_tokens_are_ignored_wholly(void **state)
{
	struct call call;

	(void)state;
	call_init(&call);
	call.offsets[1] = 0; /* request 0 is empty: its row is not looked at */
	call.rows[0] = -1000;
	call.offsets[2] = 2;
	expect_ok(kvc_scatter_req_token_ids(&call.args, NULL));
	assert_int_equal(call.table[2 * COLUMNS], 11);
	assert_int_equal(call.report.rows_written, 1);
	assert_int_equal(call.report.rows_skipped, 1);

	call_init(&call);
	call.offsets[1] = 5, call.offsets[2] = 5;
	call.rows[1] = 1; /* the row of request 0, but nothing to write */
	expect_ok(kvc_scatter_req_token_ids(&call.args, NULL));
	assert_int_equal(call.table[COLUMNS + 4], 55);
}

static void row_zero_is_an_ordinary_row(void **state)
{
	struct call call;

	(void)state;
	call_init(&call);
	call.rows[0] = 0;
	expect_ok(kvc_scatter_req_token_ids(&call.args, NULL));
	assert_int_equal(call.table[2], 33);
}

static void columns_between_rows_stay_as_they_are(void **state)
{
	struct call call;
	int64_t strides[2] = { COLUMNS, 1 };

	(void)state;
	call_init(&call);
	call.table_shape[1] = 2;
	call.pool_out.strides = strides;
	expect_ok(kvc_scatter_req_token_ids(&call.args, NULL));
	assert_int_equal(call.table[COLUMNS + 1], 22);
	assert_int_equal(call.table[COLUMNS + 2], FILL);
	assert_int_equal(call.report.tokens_truncated, 1);
}

static void b92_nothing_to_do_reads_no_pointer(void **state)
{
	struct call call;

	(void)state;
	call_init(&call);
	call.rows_shape[0] = 0, call.offsets_shape[0] = 1;
	call.row_tensor.data = NULL;
	call.offsets[0] = -7; /* of no request */
	expect_ok(kvc_scatter_req_token_ids(&call.args, NULL));
	assert_untouched(&call);

	call_init(&call);
	call.flat_shape[0] = 0;
	call.flat_in.data = NULL;
	call.rows[0] = 99;
	expect_ok(kvc_scatter_req_token_ids(&call.args, NULL));
	assert_untouched(&call);

	call_init(&call); /* requests, each with start = end */
	call.offsets[0] = call.offsets[1] = call.offsets[2] = 5;
	expect_ok(kvc_scatter_req_token_ids(&call.args, NULL));
	assert_int_equal(call.report.rows_written, 0);
	assert_int_equal(call.report.rows_skipped, 2);
}

/* 'bs' requests, the r-th with r % 4 tokens on row bs - 1 - r, but one of exactly the width and one
 * longer by one. */
static void scatter_batch(int64_t bs)
{
	int64_t columns = 16, capacity = bs * columns + 2 * columns + 2;
	int64_t *flat = calloc((size_t)capacity, sizeof(*flat));
	int64_t *offsets = calloc((size_t)bs + 1, sizeof(*offsets));
	int64_t *rows = calloc((size_t)bs + 1, sizeof(*rows));
	int32_t *table = malloc((size_t)((bs + 1) * columns) * sizeof(*table));
	int64_t shapes[3] = { capacity, bs + 1, bs }, table_shape[2] = { bs + 1, columns };
	kvc_tensor tensors[4] = {
		kvc_tensor_make(flat, KVC_INT64, 1, &shapes[0]),
		kvc_tensor_make(offsets, KVC_INT64, 1, &shapes[1]),
		kvc_tensor_make(rows, KVC_INT64, 1, &shapes[2]),
		kvc_tensor_make(table, KVC_INT32, 2, table_shape),
	};
	kvc_scatter_args args = KVC_SCATTER_ARGS_INIT;
	kvc_report report = { .rows_written = 0 };

	for (int64_t i = 0; i < (bs + 1) * columns; i++)
		table[i] = FILL;
	for (int64_t i = 0; i < capacity; i++)
		flat[i] = INT32_MAX - i;
	for (int64_t r = 0; r < bs; r++) {
		int64_t length = r == bs / 2 ? columns : r == bs / 3 ? columns + 1 : r % 4;
		offsets[r + 1] = offsets[r] + length;
		rows[r] = bs - 1 - r;
	}
	args.flat_in = &tensors[0], args.offsets = &tensors[1];
	args.req_pool_indices = &tensors[2], args.pool_out = &tensors[3];
	args.report = &report;
	expect_ok(kvc_scatter_req_token_ids(&args, NULL));
	for (int64_t r = 0; r < bs; r++)
		for (int64_t c = 0; c < columns; c++) {
			int64_t at = offsets[r] + c;
			int32_t want = at < offsets[r + 1] ? (int32_t)flat[at] : FILL;
			assert_int_equal(table[rows[r] * columns + c], want);
		}
	for (int64_t c = 0; c < columns; c++)
		assert_int_equal(table[bs * columns + c], FILL);
	assert_int_equal(report.tokens_truncated, bs > 1 && bs / 2 != bs / 3);
	free(flat), free(offsets), free(rows), free(table);
}

static void b88_batch_sizes_beyond_511_scatter_right(void **state)
{
	const int64_t sizes[] = { 0, 1, 511, 512, 513, 4096 };

	(void)state;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		scatter_batch(sizes[i]);
}

static void b88_ids_beyond_int32_are_refused(void **state)
{
	struct call call;

	(void)state;
	call_init(&call);
	call.flat[4] = INT32_MAX;
	expect_ok(kvc_scatter_req_token_ids(&call.args, NULL));
	assert_int_equal(call.table[2 * COLUMNS + 1], INT32_MAX);
	call_init(&call);
	call.flat[4] = (int64_t)INT32_MAX + 1;
	refused(&call, KVC_E_TOKEN_RANGE, "scatter-token-out-of-range",
	        "kv-canary: scatter_req_token_ids token 2147483648 at flat_in[4] is not in 0 to "
	        "2147483647",
	        4);
}

static void b90_the_table_holds_what_it_was_given(void **state)
{
	struct call call;
	int64_t in_ring[3] = { 11, 99, 13 };

	/* Expected tokens from the request's own history differ from what a wrapped ring handed to
	 * the model; taken from the same ring they would agree with the fault. */
	(void)state;
	call_init(&call);
	memcpy(call.flat, (int64_t[]){ 11, 12, 13 }, 3 * sizeof(int64_t));
	expect_ok(kvc_scatter_req_token_ids(&call.args, NULL));
	assert_int_equal(call.table[COLUMNS], in_ring[0]);
	assert_int_not_equal(call.table[COLUMNS + 1], in_ring[1]);
	assert_int_equal(call.table[COLUMNS + 2], in_ring[2]);
	call_init(&call);
	memcpy(call.flat, in_ring, sizeof(in_ring));
	expect_ok(kvc_scatter_req_token_ids(&call.args, NULL));
	assert_int_equal(call.table[COLUMNS + 1], in_ring[1]);
}

static void b91_a_placeholder_must_be_declared(void **state)
{
	struct call call;

	(void)state;
	call_init(&call);
	memcpy(call.flat, (int64_t[]){ 101, -1, -1 }, 3 * sizeof(int64_t));
	refused(&call, KVC_E_TOKEN_RANGE, "scatter-token-placeholder",
	        "kv-canary: scatter_req_token_ids token at flat_in[1] is the placeholder -1", 1);
	call.args.allow_placeholder = 1;
	expect_ok(kvc_scatter_req_token_ids(&call.args, NULL));
	assert_int_equal(call.table[COLUMNS], 101);
	assert_int_equal(call.table[COLUMNS + 1], -1);
	assert_int_equal(call.table[COLUMNS + 2], -1);

	call_init(&call); /* only -1 is the placeholder, only up to 2^31-1 are tokens */
	call.args.allow_placeholder = 1;
	call.flat[3] = -2;
	refused(&call, KVC_E_TOKEN_RANGE, "scatter-token-out-of-range", NULL, 3);
	call.flat[3] = (int64_t)INT32_MAX + 1;
	refused(&call, KVC_E_TOKEN_RANGE, "scatter-token-out-of-range", NULL, 3);
	call.flat[3] = INT64_MIN;
	refused(&call, KVC_E_TOKEN_RANGE, "scatter-token-out-of-range", NULL, 3);
}

static void narrow_takes_the_low_32_bits(void **state)
{
	struct call call;

	(void)state;
	call_init(&call);
	call.args.narrow = 1;
	call.flat[0] = 0x123456789ABCDEF0;
	call.flat[1] = -1;
	expect_ok(kvc_scatter_req_token_ids(&call.args, NULL));
	assert_int_equal((uint32_t)call.table[COLUMNS], 0x9ABCDEF0u);
	assert_int_equal(call.table[COLUMNS + 1], -1);
}

static void sglangs_rules_skip_falls_and_let_the_later_request_win(void **state)
{
	struct call call;

	(void)state;
	call_init(&call);
	call.args.rules = KVC_RULES_SGLANG;
	call.rows[1] = 1;
	call.flat[3] = (int64_t)1 << 40; /* narrowed, not refused */
	expect_ok(kvc_scatter_req_token_ids(&call.args, NULL));
	assert_int_equal(call.table[COLUMNS], 0);
	assert_int_equal(call.table[COLUMNS + 1], 55);
	assert_int_equal(call.table[COLUMNS + 2], 33); /* of request 0, which is longer */

	call_init(&call);
	call.args.rules = KVC_RULES_SGLANG;
	memcpy(call.offsets, (int64_t[]){ 5, 2, 4 }, sizeof(call.offsets));
	call.rows[0] = -3;
	expect_ok(kvc_scatter_req_token_ids(&call.args, NULL));
	assert_int_equal(call.table[2 * COLUMNS], 33);
	assert_int_equal(call.table[2 * COLUMNS + 1], 44);
	assert_int_equal(call.report.rows_skipped, 1);

	memcpy(call.offsets, (int64_t[]){ INT64_MAX, INT64_MIN, INT64_MIN }, sizeof(call.offsets));
	expect_ok(kvc_scatter_req_token_ids(&call.args, NULL));
}

/* ---- refusals, in order ---- */

static void structs_and_pointers_are_checked_first(void **state)
{
	struct call call;

	(void)state;
	expect_error(kvc_scatter_req_token_ids(NULL, NULL), KVC_E_INVALID_ARGUMENT, "null-argument",
	        "args is NULL", -1);
	call_init(&call);
	call.args.struct_bytes = 3;
	refused(&call, KVC_E_INVALID_ARGUMENT, "struct-bytes-unknown", NULL, -1);
	const kvc_tensor **fields[] = { &call.args.flat_in, &call.args.offsets,
		&call.args.req_pool_indices, &call.args.pool_out };
	const char *messages[] = { "flat_in is NULL", "offsets is NULL", "req_pool_indices is NULL",
		"pool_out is NULL" };
	for (int i = 0; i < 4; i++) {
		call_init(&call);
		*fields[i] = NULL;
		refused(&call, KVC_E_INVALID_ARGUMENT, "null-argument", messages[i], -1);
	}
	call_init(&call);
	call.flat_in.data = NULL;
	refused(&call, KVC_E_INVALID_ARGUMENT, "tensor-data-null", NULL, -1);
}

#define PREFIX "kv-canary: scatter_req_token_ids "

/* Everything is wrong at first; each refusal is mended and gives way to the next one. */
static void fixed_messages_come_in_order(void **state)
{
	struct call call;
	int64_t two_dims[2] = { 5, 1 }, three_dims[3] = { 4, 8, 1 };

	(void)state;
	call_init(&call);
	kvc_tensor *inputs[] = { &call.flat_in, &call.offset_tensor, &call.row_tensor };
	const char *names[] = { "flat_in", "offsets", "req_pool_indices" };
	int64_t *shapes[] = { call.flat_shape, call.offsets_shape, call.rows_shape };
	char message[200];
	call.offsets_shape[0] = 4;
	for (int i = 0; i < 3; i++) {
		inputs[i]->ndim = 2, inputs[i]->shape = two_dims;
		inputs[i]->dtype = KVC_INT32;
	}
	call.pool_out.ndim = 3, call.pool_out.shape = three_dims;
	call.pool_out.dtype = KVC_INT64;
	for (int i = 0; i < 3; i++) {
		snprintf(message, sizeof(message), PREFIX "%s must be 1-D, got shape (5, 1)",
		        names[i]);
		refused(&call, KVC_E_SHAPE, "scatter-inputs-must-be-1-d", message, -1);
		inputs[i]->ndim = 1, inputs[i]->shape = shapes[i];
	}
	refused(&call, KVC_E_SHAPE, "scatter-pool-out-must-be-2-d",
	        PREFIX "pool_out must be 2-D, got shape (4, 8, 1)", -1);
	call.pool_out.ndim = 2, call.pool_out.shape = call.table_shape;
	for (int i = 0; i < 3; i++) {
		snprintf(message, sizeof(message), PREFIX "%s must be int64, got int32", names[i]);
		refused(&call, KVC_E_DTYPE, "scatter-inputs-must-be-int64", message, -1);
		inputs[i]->dtype = KVC_INT64;
	}
	refused(&call, KVC_E_DTYPE, "scatter-pool-out-must-be-int32",
	        PREFIX "pool_out must be int32, got int64", -1);
	call.pool_out.dtype = KVC_INT32;
	refused(&call, KVC_E_LENGTH, "scatter-offsets-length",
	        PREFIX "offsets length 4 != bs+1 (3)", -1);
	call.offsets_shape[0] = 3;
	expect_ok(kvc_scatter_req_token_ids(&call.args, NULL));
}

static void wild_shapes_are_refused_without_arithmetic_on_them(void **state)
{
	struct call call;

	(void)state;
	call_init(&call);
	call.rows_shape[0] = INT64_MAX;
	refused(&call, KVC_E_LENGTH, "scatter-offsets-length", NULL, -1);
	call.offsets_shape[0] = INT64_MIN;
	refused(&call, KVC_E_LENGTH, "scatter-offsets-length", NULL, -1);
	call_init(&call);
	call.flat_shape[0] = -1;
	refused(&call, KVC_E_SHAPE, "tensor-shape-impossible", NULL, -1);
	call_init(&call);
	call.table_shape[0] = INT64_MAX;
	refused(&call, KVC_E_SHAPE, "tensor-shape-impossible", NULL, -1);
	call.table_shape[1] = 0; /* that nothing would be stored does not make it possible */
	refused(&call, KVC_E_SHAPE, "tensor-shape-impossible", NULL, -1);
	call_init(&call); /* a table without columns has nowhere to write, and rows in plenty */
	call.table_shape[0] = INT64_C(1) << 60, call.table_shape[1] = 0;
	call.rows[1] = (INT64_C(1) << 60) - 1;
	expect_ok(kvc_scatter_req_token_ids(&call.args, NULL));
	assert_int_equal(call.report.tokens_truncated, 5);
}

static void options_devices_strides_and_overlap_are_refused(void **state)
{
	struct call call;
	int64_t strides[2] = { COLUMNS, 2 };

	(void)state;
	call_init(&call);
	call.args.rules = 7;
	refused(&call, KVC_E_CONFIG, "rules-unknown",
	        "rules must be KVC_RULES_OWN (0) or KVC_RULES_SGLANG (1), got 7", -1);
	call_init(&call);
	call.flat_in.device.device_type = KVC_DEVICE_CUDA;
	refused(&call, KVC_E_DEVICE, "device-mismatch", NULL, -1);
	call.offset_tensor.device = call.row_tensor.device = call.pool_out.device =
	        call.flat_in.device;
	refused(&call, KVC_E_NO_CUDA, "no-cuda", NULL, -1);
	call_init(&call);
	call.row_tensor.device.device_type = 99;
	refused(&call, KVC_E_DEVICE, "device-unknown", NULL, -1);

	call_init(&call);
	call.row_tensor.strides = &strides[1];
	call.rows_shape[0] = 2;
	refused(&call, KVC_E_STRIDE, "canary-tensor-must-be-contiguous",
	        "kv-canary: req_pool_indices must be contiguous, its last stride is 2", -1);
	call_init(&call);
	call.table_shape[1] = 4;
	call.pool_out.strides = strides;
	refused(&call, KVC_E_STRIDE, "canary-tensor-must-be-contiguous", NULL, -1);
	strides[0] = 7, strides[1] = 1;
	call_init(&call);
	call.pool_out.strides = strides;
	refused(&call, KVC_E_STRIDE, "scatter-pool-out-rows-overlap",
	        PREFIX "pool_out rows are 7 elements apart but 8 wide", -1);
	call_init(&call);
	call.flat_in.byte_offset = 4, call.flat_shape[0] = 4;
	refused(&call, KVC_E_STRIDE, "tensor-misaligned",
	        "flat_in starts at an address that is not a multiple of 8, the size of its int64 "
	        "elements",
	        -1);
	call_init(&call);
	call.offset_tensor.data = call.table;
	refused(&call, KVC_E_OVERLAP, "scatter-pool-out-overlaps",
	        PREFIX "pool_out shares memory with offsets", -1);
}

static void bad_values_are_refused_in_order(void **state)
{
	struct call call;

	(void)state;
	call_init(&call);
	memcpy(call.offsets, (int64_t[]){ 0, 4, 3 }, sizeof(call.offsets));
	call.rows[0] = 4;                /* next */
	call.flat[1] = (int64_t)1 << 31; /* last */
	refused(&call, KVC_E_LENGTH, "scatter-offsets-fall",
	        PREFIX "offsets fall from 4 to 3 at request 1", 1);
	call.offsets[2] = 6;
	refused(&call, KVC_E_LENGTH, "scatter-offset-past-end",
	        PREFIX "offsets[2] is 6, past the 5 tokens of flat_in", 2);
	call.offsets[2] = 5, call.offsets[0] = -1;
	refused(&call, KVC_E_LENGTH, "scatter-offset-negative", PREFIX "offsets[0] is -1, below 0",
	        0);
	call.offsets[0] = 0;
	refused(&call, KVC_E_ROW_RANGE, "scatter-row-out-of-range",
	        PREFIX "request 0 names row 4, pool_out has rows 0 to 4 - 1", 0);
	call.rows[0] = -1;
	refused(&call, KVC_E_ROW_RANGE, "scatter-row-out-of-range", NULL, 0);
	call.rows[0] = 2;
	refused(&call, KVC_E_ROW_DUPLICATE, "scatter-row-duplicate",
	        PREFIX "requests 0 and 1 both name row 2", 1);
	call.rows[0] = 3;
	refused(&call, KVC_E_TOKEN_RANGE, "scatter-token-out-of-range", NULL, 1);
	call.flat[1] = 22;
	expect_ok(kvc_scatter_req_token_ids(&call.args, NULL));

	call_init(&call); /* what SGLang's rules cannot let through either */
	call.args.rules = KVC_RULES_SGLANG;
	call.offsets[2] = 6;
	refused(&call, KVC_E_LENGTH, "scatter-offset-past-end", NULL, 2);
	call.offsets[2] = 5, call.offsets[0] = -1;
	refused(&call, KVC_E_LENGTH, "scatter-offset-negative", NULL, 0);
	call.offsets[0] = 0, call.rows[1] = 4;
	refused(&call, KVC_E_ROW_RANGE, "scatter-row-out-of-range", NULL, 1);
}

/* Rows of one column, so far apart that the search needs many windows. */
static void duplicates_are_found_however_large_the_table_is(void **state)
{
	const int64_t row_count = 3000000;
	int64_t bs = 12, one_more = bs + 1, table_shape[2] = { row_count, 1 };
	int64_t rows[12] = { 2999999, 0, 524288, 5, 524287, 1048576, 7, 2000000, 1600000, 524288,
		2999999, 0 };
	int64_t flat[12], offsets[13];
	int32_t *table = calloc((size_t)row_count, sizeof(*table));
	kvc_tensor tensors[4] = {
		kvc_tensor_make(flat, KVC_INT64, 1, &bs),
		kvc_tensor_make(offsets, KVC_INT64, 1, &one_more),
		kvc_tensor_make(rows, KVC_INT64, 1, &bs),
		kvc_tensor_make(table, KVC_INT32, 2, table_shape),
	};
	kvc_scatter_args args = KVC_SCATTER_ARGS_INIT;

	(void)state;
	for (int i = 0; i < 13; i++)
		offsets[i] = i;
	for (int i = 0; i < 12; i++)
		flat[i] = i;
	args.flat_in = &tensors[0], args.offsets = &tensors[1];
	args.req_pool_indices = &tensors[2], args.pool_out = &tensors[3];
	expect_error(kvc_scatter_req_token_ids(&args, NULL), KVC_E_ROW_DUPLICATE,
	        "scatter-row-duplicate", PREFIX "requests 2 and 9 both name row 524288", 9);
	rows[9] = 524289;
	expect_error(kvc_scatter_req_token_ids(&args, NULL), KVC_E_ROW_DUPLICATE,
	        "scatter-row-duplicate", PREFIX "requests 0 and 10 both name row 2999999", 10);
	rows[10] = 2999998;
	expect_error(kvc_scatter_req_token_ids(&args, NULL), KVC_E_ROW_DUPLICATE,
	        "scatter-row-duplicate", PREFIX "requests 1 and 11 both name row 0", 11);
	rows[11] = 1;
	expect_ok(kvc_scatter_req_token_ids(&args, NULL));
	free(table);
}

/* ---- random calls against a naive scatter ---- */

#define MAX_BS 40
#define MAX_TOKENS 400

struct random_call {
	int64_t flat[MAX_TOKENS], offsets[MAX_BS + 1], rows[MAX_BS];
	int64_t bs, token_count, row_count, columns, stride;
	int32_t rules, allow_placeholder, narrow;
};

static void random_call_make(struct random_call *c, struct seeded *random)
{
	c->bs = seeded_in(random, 0, MAX_BS);
	c->token_count = seeded_in(random, 0, MAX_TOKENS);
	c->row_count = seeded_in(random, 1, 60);
	c->columns = seeded_in(random, 0, 20);
	c->stride = c->columns + seeded_in(random, 0, 3);
	c->rules = seeded_one_in(random, 2) ? KVC_RULES_OWN : KVC_RULES_SGLANG;
	c->allow_placeholder = seeded_one_in(random, 2);
	c->narrow = seeded_one_in(random, 3);
	for (int64_t i = 0; i < c->token_count; i++)
		c->flat[i] = seeded_in(random, 0, INT32_MAX);
	if (c->token_count > 0 && seeded_one_in(random, 4))
		c->flat[seeded_in(random, 0, c->token_count - 1)] = seeded_in(random, -3, 0);
	if (c->token_count > 0 && seeded_one_in(random, 4))
		c->flat[seeded_in(random, 0, c->token_count - 1)] = (int64_t)seeded_next(random);
	int64_t at = seeded_one_in(random, 2) ? 0 : seeded_in(random, 0, c->token_count);
	for (int64_t r = 0; r <= c->bs; r++) {
		c->offsets[r] = at;
		at += seeded_in(random, 0, (c->token_count - at < 24 ? c->token_count - at : 24));
	}
	for (int64_t r = 0; r < c->bs; r++) /* mostly all different */
		c->rows[r] =
		        seeded_one_in(random, 60) ? seeded_in(random, -1, 60) : (r * 7 + 3) % 60;
	if (seeded_one_in(random, 8))
		c->offsets[seeded_in(random, 0, c->bs)] = seeded_in(random, -2, c->token_count + 2);
}

static int naive_bad_token(const struct random_call *c, int64_t token)
{
	if (c->narrow || c->rules == KVC_RULES_SGLANG || (token >= 0 && token <= INT32_MAX))
		return 0;
	return !(c->allow_placeholder && token == -1);
}

/* The family of the refusal that kvcanary.h promises, found the slow way. */
static kvc_status naive_status(const struct random_call *c)
{
	int own = c->rules == KVC_RULES_OWN;

	if (c->bs == 0 || c->token_count == 0)
		return KVC_OK;
	for (int64_t r = 0; r < c->bs; r++) {
		int64_t first = c->offsets[r], past = c->offsets[r + 1];
		if (own ? first < 0 || past < first || past > c->token_count || past < 0
		        : past > first && (first < 0 || past > c->token_count))
			return KVC_E_LENGTH;
	}
	for (int64_t r = 0; r < c->bs; r++)
		if (c->offsets[r + 1] > c->offsets[r] &&
		        (c->rows[r] < 0 || c->rows[r] >= c->row_count))
			return KVC_E_ROW_RANGE;
	for (int64_t r = 0; own && r < c->bs; r++)
		for (int64_t s = 0; s < r; s++)
			if (c->rows[r] == c->rows[s] && c->offsets[r + 1] > c->offsets[r] &&
			        c->offsets[s + 1] > c->offsets[s])
				return KVC_E_ROW_DUPLICATE;
	for (int64_t i = c->offsets[0]; own && i < c->offsets[c->bs]; i++)
		if (naive_bad_token(c, c->flat[i]))
			return KVC_E_TOKEN_RANGE;
	return KVC_OK;
}

static void naive_scatter(const struct random_call *c, int32_t *table)
{
	if (c->token_count == 0)
		return;
	for (int64_t r = 0; r < c->bs; r++)
		for (int64_t i = c->offsets[r]; i < c->offsets[r + 1]; i++)
			if (i - c->offsets[r] < c->columns)
				table[c->rows[r] * c->stride + i - c->offsets[r]] =
				        (int32_t)(uint32_t)c->flat[i];
}

static void check_random_call(struct random_call *c)
{
	static int32_t got[61 * 23], want[61 * 23];
	int64_t one_more = c->bs + 1, shape[2] = { c->row_count, c->columns };
	int64_t strides[2] = { c->stride, 1 };
	kvc_tensor tensors[4] = {
		kvc_tensor_make(c->flat, KVC_INT64, 1, &c->token_count),
		kvc_tensor_make(c->offsets, KVC_INT64, 1, &one_more),
		kvc_tensor_make(c->rows, KVC_INT64, 1, &c->bs),
		kvc_tensor_make(got, KVC_INT32, 2, shape),
	};
	kvc_scatter_args args = KVC_SCATTER_ARGS_INIT;
	kvc_status status = naive_status(c);

	tensors[3].strides = strides;
	memset(got, 0xA5, sizeof(got));
	memset(want, 0xA5, sizeof(want));
	args.flat_in = &tensors[0], args.offsets = &tensors[1];
	args.req_pool_indices = &tensors[2], args.pool_out = &tensors[3];
	args.rules = c->rules, args.narrow = c->narrow;
	args.allow_placeholder = c->allow_placeholder;
	assert_int_equal(kvc_scatter_req_token_ids(&args, NULL), status);
	if (status == KVC_OK)
		naive_scatter(c, want);
	assert_memory_equal(got, want, sizeof(got));
}

static void random_calls_agree_with_a_naive_scatter(void **state)
{
	struct seeded random = seeded_start("random_calls_agree_with_a_naive_scatter");
	static struct random_call call;

	(void)state;
	for (int i = 0; i < 20000; i++) {
		random_call_make(&call, &random);
		check_random_call(&call);
	}
}

/* Long histories next to short ones, on 1 and on 3 threads: same bytes, same first bad token. */
static void results_do_not_depend_on_the_thread_count(void **state)
{
	enum { BIG = 300000, WIDTH = 120000 };
	int64_t n = BIG, bs = 5, one_more = 6, shape[2] = { 6, WIDTH };
	int64_t offsets[6] = { 3, 17, 17, 150000, 150001, BIG - 5 };
	int64_t rows[5] = { 5, 0, 1, 2, 3 };
	int64_t *flat = malloc(BIG * sizeof(*flat));
	size_t table_bytes = 6 * WIDTH * sizeof(int32_t);
	int32_t *tables[2] = { malloc(table_bytes), malloc(table_bytes) };
	const int32_t threads[2] = { 1, 3 };

	(void)state;
	for (int64_t i = 0; i < BIG; i++)
		flat[i] = i * 7919 % INT32_MAX;
	for (int t = 0; t < 2; t++) {
		kvc_tensor tensors[4] = {
			kvc_tensor_make(flat, KVC_INT64, 1, &n),
			kvc_tensor_make(offsets, KVC_INT64, 1, &one_more),
			kvc_tensor_make(rows, KVC_INT64, 1, &bs),
			kvc_tensor_make(tables[t], KVC_INT32, 2, shape),
		};
		kvc_scatter_args args = KVC_SCATTER_ARGS_INIT;
		args.flat_in = &tensors[0], args.offsets = &tensors[1];
		args.req_pool_indices = &tensors[2], args.pool_out = &tensors[3];
		memset(tables[t], 0xA5, table_bytes);
		expect_ok(kvc_set_num_threads(threads[t]));
		flat[140000] = flat[290000] = -9;
		expect_error(kvc_scatter_req_token_ids(&args, NULL), KVC_E_TOKEN_RANGE,
		        "scatter-token-out-of-range", NULL, 140000);
		flat[140000] = 1, flat[290000] = 2;
		expect_ok(kvc_scatter_req_token_ids(&args, NULL));
	}
	assert_memory_equal(tables[0], tables[1], table_bytes);
	for (int64_t c = 0; c < WIDTH; c++)
		assert_int_equal(tables[0][WIDTH + c], flat[17 + c]);
	expect_ok(kvc_set_num_threads(0));
	free(flat), free(tables[0]), free(tables[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(two_requests_land_in_their_rows),
		cmocka_unit_test(tokens_outside_all_offsets_belong_to_nobody),
		cmocka_unit_test(requests_without_tokens_are_ignored_wholly),
		cmocka_unit_test(row_zero_is_an_ordinary_row),
		cmocka_unit_test(columns_between_rows_stay_as_they_are),
		cmocka_unit_test(b92_nothing_to_do_reads_no_pointer),
		cmocka_unit_test(b88_batch_sizes_beyond_511_scatter_right),
		cmocka_unit_test(b88_ids_beyond_int32_are_refused),
		cmocka_unit_test(b90_the_table_holds_what_it_was_given),
		cmocka_unit_test(b91_a_placeholder_must_be_declared),
		cmocka_unit_test(narrow_takes_the_low_32_bits),
		cmocka_unit_test(sglangs_rules_skip_falls_and_let_the_later_request_win),
		cmocka_unit_test(structs_and_pointers_are_checked_first),
		cmocka_unit_test(fixed_messages_come_in_order),
		cmocka_unit_test(wild_shapes_are_refused_without_arithmetic_on_them),
		cmocka_unit_test(options_devices_strides_and_overlap_are_refused),
		cmocka_unit_test(bad_values_are_refused_in_order),
		cmocka_unit_test(duplicates_are_found_however_large_the_table_is),
		cmocka_unit_test(random_calls_agree_with_a_naive_scatter),
		cmocka_unit_test(results_do_not_depend_on_the_thread_count),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
