/* What the tests of the plan share: a small call with all its tensors, made anew for each case. */
#ifndef PLAN_CALL_H
#define PLAN_CALL_H

#include <string.h>

#include "expect.h"

#define ROWS 4
#define COLUMNS 8
#define BS_MAX 4
#define WORDS_MAX 512
#define FILL 0x5C

static const kvc_device cpu = { KVC_DEVICE_CPU, 0 };

/* Request 0 on row 1 has read 3 and writes 2, request 1 on row 2 has read 2 and writes 1. */
struct call {
	int64_t rows[BS_MAX], prefix[BS_MAX], extend[BS_MAX], start[BS_MAX], valid[BS_MAX];
	int32_t table[ROWS * COLUMNS], tokens[ROWS * COLUMNS];
	int64_t mapping[64];
	uint8_t exclude[8];
	int64_t bs[1], table_shape[2], tokens_shape[2], mapping_shape[1], exclude_shape[1];
	kvc_tensor row_tensor, prefix_tensor, extend_tensor, start_tensor, valid_tensor;
	kvc_tensor table_tensor, tokens_tensor, mapping_tensor, exclude_tensor;
	kvc_requests requests;
	kvc_plan_args args;
	kvc_plan plan;
	kvc_report report;
	int64_t rotation;
	int64_t memory[WORDS_MAX];
};

static inline void bind_plan(struct call *call, int64_t v, int64_t w)
{
	assert_true(kvc_plan_bytes(v, w) <= sizeof(call->memory));
	memset(call->memory, FILL, sizeof(call->memory));
	expect_ok(kvc_plan_bind(&call->plan, call->memory, cpu, v, w));
}

static inline void call_tensors(struct call *call)
{
	call->row_tensor = kvc_tensor_make(call->rows, KVC_INT64, 1, call->bs);
	call->prefix_tensor = kvc_tensor_make(call->prefix, KVC_INT64, 1, call->bs);
	call->extend_tensor = kvc_tensor_make(call->extend, KVC_INT64, 1, call->bs);
	call->start_tensor = kvc_tensor_make(call->start, KVC_INT64, 1, call->bs);
	call->valid_tensor = kvc_tensor_make(call->valid, KVC_INT64, 1, call->bs);
	call->table_tensor = kvc_tensor_make(call->table, KVC_INT32, 2, call->table_shape);
	call->tokens_tensor = kvc_tensor_make(call->tokens, KVC_INT32, 2, call->tokens_shape);
	call->mapping_tensor = kvc_tensor_make(call->mapping, KVC_INT64, 1, call->mapping_shape);
	call->exclude_tensor = kvc_tensor_make(call->exclude, KVC_UINT8, 1, call->exclude_shape);
	call->requests = (kvc_requests)KVC_REQUESTS_INIT;
	call->requests.req_pool_indices = &call->row_tensor;
	call->requests.prefix_lens = &call->prefix_tensor;
	call->requests.extend_seq_lens = &call->extend_tensor;
	call->args = (kvc_plan_args)KVC_PLAN_ARGS_INIT;
	call->args.requests = &call->requests;
	call->args.req_to_token = &call->table_tensor;
}

static inline void call_init(struct call *call)
{
	memset(call, 0, sizeof(*call));
	call->bs[0] = 2;
	call->table_shape[0] = call->tokens_shape[0] = ROWS;
	call->table_shape[1] = call->tokens_shape[1] = COLUMNS;
	call->mapping_shape[0] = 64, call->exclude_shape[0] = 8;
	memcpy(call->rows, (int64_t[]){ 1, 2 }, 2 * sizeof(int64_t));
	memcpy(call->prefix, (int64_t[]){ 3, 2 }, 2 * sizeof(int64_t));
	memcpy(call->extend, (int64_t[]){ 2, 1 }, 2 * sizeof(int64_t));
	for (int32_t i = 0; i < ROWS * COLUMNS; i++) {
		call->table[i] = 8 + i; /* row r, column c: slot 8 + 8r + c */
		call->tokens[i] = 1000 + i;
	}
	for (int i = 0; i < 64; i++)
		call->mapping[i] = 63 - i;
	call_tensors(call);
	bind_plan(call, 16, BS_MAX);
}

static inline void run(struct call *call)
{
	expect_ok(kvc_canary_plan(&call->plan, &call->args, NULL));
}

#define LIST(...) ((const int64_t[]){ __VA_ARGS__ })

static inline void assert_int64s(const int64_t *got, const int64_t *want, int64_t count)
{
	for (int64_t i = 0; i < count; i++)
		assert_int_equal(got[i], want[i]);
}

#endif
