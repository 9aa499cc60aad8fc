/*
 * What the examples of the catalogue find in scope (src/catalog/README.md lists it): tensors of a
 * tiny layer, a request table, and the canary of one request. example_reset() makes all of it anew
 * before each example, so that one cannot spoil the next.
 */
#ifndef EXAMPLE_FIXTURE_H
#define EXAMPLE_FIXTURE_H

#include "kvcanary.h"

#include <assert.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define TOKENS 4
#define SLOTS 32
#define DIM 8
#define PLAN_BYTES 4096
#define RING_ROWS 64

/* ---- memory behind the tensors ---- */

static uint16_t q_data[TOKENS * 2 * DIM], k_data[TOKENS * DIM], v_data[TOKENS * DIM];
static uint16_t k_pool_data[SLOTS * DIM], v_pool_data[SLOTS * DIM];
static int64_t positions_data[TOKENS], slots_data[TOKENS], tokens_data[TOKENS];
static int64_t flat_in_data[5], offsets_data[3], rows_data[2];
static int32_t pool_out_data[4 * 8], req_to_token_data[4 * 8], expected_tokens_data[4 * 8];
static int64_t req_pool_indices_data[1], prefix_lens_data[1], extend_seq_lens_data[1];
static int64_t valid_lens_data[1], chain_end_value[1], scratch_data[2 * SLOTS];
static int64_t ring_rows_data[RING_ROWS * 16], ring_consumed;
static int64_t plan_memory[PLAN_BYTES / 8];
static kvc_record records_data[SLOTS];
static kvc_owner owners_data[SLOTS];
static kvc_source sources_data[2];
static kvc_counters counters;

static int64_t q_shape[3], kv_shape[3], pool_shape[3], token_shape[1];
static int64_t five_shape[1], three_shape[1], two_shape[1], one_shape[1];
static int64_t table_shape[2], scratch_shape[2];

/* ---- in scope: the write path ---- */

static kvc_tensor q, k, v, k_pool, v_pool, positions, slots;
static kvc_rope rope;
static kvc_rope_pool_args args;

/* ---- in scope: token history ---- */

static kvc_tensor flat_in, offsets, rows, pool_out;
static kvc_scatter_args scatter_args;

/* ---- in scope: the canary ---- */

static kvc_tensor req_to_token, expected_tokens, valid_lens, chain_end, tokens, scratch;
static kvc_tensor req_pool_indices, prefix_lens, extend_seq_lens;
static kvc_group group;
static kvc_ring ring;
static kvc_requests requests;
static kvc_plan_args plan_args;
static kvc_plan plan;
static kvc_write_args write_args;
static kvc_verify_args verify_args;

/* ---- in scope: the guard ---- */

static kvc_guard *guard;
static kvc_guard_options guard_options;
static kvc_guard_group guard_group;
static int32_t group_number;
static kvc_guard_step step;
static kvc_tensor owner_request;
static int64_t owner_request_data[1];

static inline void set_row(int64_t row, const int32_t *row_slots, int64_t count)
{
	memcpy(req_to_token_data + row * 8, row_slots, (size_t)count * sizeof(int32_t));
}

/* Finite bfloat16 values between 1 and 2 with a period that is prime. */
static inline void fill_values(uint16_t *values, size_t count)
{
	for (size_t i = 0; i < count; i++)
		values[i] = (uint16_t)(0x3F80 + i % 127);
}

static inline void reset_shapes(void)
{
	memcpy(q_shape, (int64_t[]){ TOKENS, 2, DIM }, sizeof(q_shape));
	memcpy(kv_shape, (int64_t[]){ TOKENS, 1, DIM }, sizeof(kv_shape));
	memcpy(pool_shape, (int64_t[]){ SLOTS, 1, DIM }, sizeof(pool_shape));
	memcpy(table_shape, (int64_t[]){ 4, 8 }, sizeof(table_shape));
	memcpy(scratch_shape, (int64_t[]){ 2, SLOTS }, sizeof(scratch_shape));
	token_shape[0] = TOKENS;
	five_shape[0] = 5, three_shape[0] = 3, two_shape[0] = 2, one_shape[0] = 1;
}

static inline void reset_write_path(void)
{
	kvc_rope_options options = KVC_ROPE_OPTIONS_INIT;

	fill_values(q_data, TOKENS * 2 * DIM);
	fill_values(k_data, TOKENS * DIM);
	fill_values(v_data, TOKENS * DIM);
	fill_values(k_pool_data, SLOTS * DIM);
	fill_values(v_pool_data, SLOTS * DIM);
	for (int64_t i = 0; i < TOKENS; i++) {
		positions_data[i] = i;
		slots_data[i] = 4 + i;
	}
	q = kvc_tensor_make(q_data, KVC_BFLOAT16, 3, q_shape);
	k = kvc_tensor_make(k_data, KVC_BFLOAT16, 3, kv_shape);
	v = kvc_tensor_make(v_data, KVC_BFLOAT16, 3, kv_shape);
	k_pool = kvc_tensor_make(k_pool_data, KVC_BFLOAT16, 3, pool_shape);
	v_pool = kvc_tensor_make(v_pool_data, KVC_BFLOAT16, 3, pool_shape);
	positions = kvc_tensor_make(positions_data, KVC_INT64, 1, token_shape);
	slots = kvc_tensor_make(slots_data, KVC_INT64, 1, token_shape);
	options.rotary_dim = DIM;
	if (kvc_rope_init(&rope, &options) != KVC_OK)
		memset(&rope, 0, sizeof(rope));
	args = (kvc_rope_pool_args)KVC_ROPE_POOL_ARGS_INIT;
	args.q = &q, args.k = &k, args.v = &v;
	args.positions = &positions, args.slots = &slots;
	args.k_pool = &k_pool, args.v_pool = &v_pool;
	args.rope = &rope;
}

static inline void reset_history(void)
{
	memcpy(flat_in_data, (int64_t[]){ 11, 22, 33, 44, 55 }, sizeof(flat_in_data));
	memcpy(offsets_data, (int64_t[]){ 0, 3, 5 }, sizeof(offsets_data));
	memcpy(rows_data, (int64_t[]){ 1, 2 }, sizeof(rows_data));
	memset(pool_out_data, 0, sizeof(pool_out_data));
	flat_in = kvc_tensor_make(flat_in_data, KVC_INT64, 1, five_shape);
	offsets = kvc_tensor_make(offsets_data, KVC_INT64, 1, three_shape);
	rows = kvc_tensor_make(rows_data, KVC_INT64, 1, two_shape);
	pool_out = kvc_tensor_make(pool_out_data, KVC_INT32, 2, table_shape);
	scatter_args = (kvc_scatter_args)KVC_SCATTER_ARGS_INIT;
	scatter_args.flat_in = &flat_in, scatter_args.offsets = &offsets;
	scatter_args.req_pool_indices = &rows, scatter_args.pool_out = &pool_out;
}

/* One source of the group: a pool [SLOTS, 1, DIM] of bfloat16. */
static inline kvc_source pool_source(const uint16_t *data, uint64_t id)
{
	kvc_source source;

	memset(&source, 0, sizeof(source));
	source.base = data;
	source.row_count = SLOTS;
	source.row_stride_bytes = DIM * 2;
	source.page_size = 1;
	source.head_count = 1;
	source.head_bytes = source.read_bytes = DIM * 2;
	source.id = id;
	source.dtype = KVC_BFLOAT16;
	return source;
}

static inline void reset_group(void)
{
	memset(records_data, 0, sizeof(records_data));
	memset(owners_data, 0xFF, sizeof(owners_data));
	memset(ring_rows_data, 0, sizeof(ring_rows_data));
	memset(&counters, 0, sizeof(counters));
	ring_consumed = 0;
	sources_data[0] = pool_source(k_pool_data, 0);
	sources_data[1] = pool_source(v_pool_data, 1);
	group = (kvc_group)KVC_GROUP_INIT;
	group.records = records_data, group.record_count = SLOTS, group.owners = owners_data;
	group.sources = sources_data, group.source_count = 2;
	ring = (kvc_ring)KVC_RING_INIT;
	ring.rows = ring_rows_data, ring.capacity = RING_ROWS;
	ring.consumed = &ring_consumed, ring.counters = &counters;
}

static inline void reset_request(void)
{
	memset(req_to_token_data, 0xFF, sizeof(req_to_token_data));
	memset(expected_tokens_data, 0xFF, sizeof(expected_tokens_data));
	memset(scratch_data, 0, sizeof(scratch_data));
	memcpy(tokens_data, (int64_t[]){ 11, 22, 33, 44 }, sizeof(tokens_data));
	set_row(1, (int32_t[]){ 4, 5, 6, 7 }, 4);
	memcpy(expected_tokens_data + 8, (int32_t[]){ 11, 22, 33, 44 }, 4 * sizeof(int32_t));
	req_pool_indices_data[0] = 1, prefix_lens_data[0] = 0, extend_seq_lens_data[0] = TOKENS;
	valid_lens_data[0] = TOKENS, chain_end_value[0] = 0;
	req_to_token = kvc_tensor_make(req_to_token_data, KVC_INT32, 2, table_shape);
	expected_tokens = kvc_tensor_make(expected_tokens_data, KVC_INT32, 2, table_shape);
	scratch = kvc_tensor_make(scratch_data, KVC_INT64, 2, scratch_shape);
	tokens = kvc_tensor_make(tokens_data, KVC_INT64, 1, token_shape);
	valid_lens = kvc_tensor_make(valid_lens_data, KVC_INT64, 1, one_shape);
	chain_end = kvc_tensor_make(chain_end_value, KVC_INT64, 1, one_shape);
	req_pool_indices = kvc_tensor_make(req_pool_indices_data, KVC_INT64, 1, one_shape);
	prefix_lens = kvc_tensor_make(prefix_lens_data, KVC_INT64, 1, one_shape);
	extend_seq_lens = kvc_tensor_make(extend_seq_lens_data, KVC_INT64, 1, one_shape);
}

static inline void reset_canary_args(void)
{
	requests = (kvc_requests)KVC_REQUESTS_INIT;
	requests.req_pool_indices = &req_pool_indices, requests.prefix_lens = &prefix_lens;
	requests.extend_seq_lens = &extend_seq_lens;
	plan_args = (kvc_plan_args)KVC_PLAN_ARGS_INIT;
	plan_args.requests = &requests, plan_args.req_to_token = &req_to_token;
	memset(plan_memory, 0, sizeof(plan_memory));
	memset(&plan, 0, sizeof(plan));
	if (kvc_plan_bind && kvc_plan_bytes(16, 4) <= PLAN_BYTES &&
	        kvc_plan_bind(&plan, plan_memory, group.device, 16, 4) != KVC_OK)
		memset(&plan, 0, sizeof(plan));
	write_args = (kvc_write_args)KVC_WRITE_ARGS_INIT;
	write_args.group = &group, write_args.plan = &plan, write_args.requests = &requests;
	write_args.tokens = &tokens, write_args.positions = &positions;
	write_args.slots = &slots, write_args.ring = &ring;
	verify_args = (kvc_verify_args)KVC_VERIFY_ARGS_INIT;
	verify_args.group = &group, verify_args.plan = &plan;
	verify_args.requests = &requests, verify_args.ring = &ring;
}

/* A guard for the request's four tokens, at its first step. It takes the group's sources; this
 * engine writes its KV by itself, so the guard computes fingerprints at the end of a step. */
static inline void reset_guard(void)
{
	kvc_guard_destroy(guard);
	guard = NULL;
	owner_request_data[0] = 1001;
	owner_request = kvc_tensor_make(owner_request_data, KVC_INT64, 1, one_shape);
	requests.owner_request = &owner_request;
	guard_options = (kvc_guard_options)KVC_GUARD_OPTIONS_INIT;
	guard_options.request_rows = 4;
	guard_group = (kvc_guard_group)KVC_GUARD_GROUP_INIT;
	guard_group.slot_count = SLOTS;
	guard_group.sources = sources_data, guard_group.source_count = 2;
	guard_group.stamping = KVC_STAMP_COMPUTE;
	step = (kvc_guard_step)KVC_GUARD_STEP_INIT;
	step.step = 1, step.requests = &requests, step.req_to_token = &req_to_token;
	step.tokens = &tokens, step.positions = &positions, step.slots = &slots;
	if (kvc_guard_create(&guard, &guard_options) != KVC_OK ||
	        kvc_guard_attach_group(guard, &guard_group, &group_number) != KVC_OK)
		assert(!"the guard of the examples");
}

#include "example_sglang.h"

static inline void example_reset(void)
{
	reset_shapes();
	reset_write_path();
	reset_history();
	reset_group();
	reset_request();
	reset_canary_args();
	reset_guard();
	reset_sglang();
}

/* ---- in scope: steps of the canary ---- */

/* The step that writes the request's four tokens. */
static inline kvc_status stamp(void)
{
	kvc_status status = kvc_canary_plan(&plan, &plan_args, NULL);

	return status != KVC_OK ? status : kvc_canary_write(&write_args, NULL);
}

/* The next step, which reads them: four tokens of prefix, nothing new. */
static inline kvc_status check(void)
{
	kvc_status status;

	prefix_lens_data[0] = TOKENS, extend_seq_lens_data[0] = 0;
	status = kvc_canary_plan(&plan, &plan_args, NULL);
	return status != KVC_OK ? status : kvc_canary_verify(&verify_args, NULL);
}

/* For a batch of the example's own: the ids of owners above are for one request. */
static inline kvc_status check_plan(void)
{
	kvc_status status;

	requests.owner_request = NULL;
	status = kvc_canary_plan(&plan, &plan_args, NULL);
	return status != KVC_OK ? status
	                        : kvc_canary_check_plan(&plan, &group, NULL, &scratch, &ring, NULL);
}

/* Two callbacks of kvc_guard_sweep(). */
static inline int64_t sweep_nothing(void *context, kvc_sweep_slot *out, int64_t capacity)
{
	(void)context, (void)out, (void)capacity;
	return 0;
}

static inline int64_t sweep_too_much(void *context, kvc_sweep_slot *out, int64_t capacity)
{
	(void)context, (void)out;
	return capacity + 1;
}

/* Another request, in row 3, stamps one slot. */
static inline kvc_status write_one(int64_t slot, int64_t token, int64_t position, uint64_t chain)
{
	static int64_t one = 1, extend_one = 1, row = 3, chain_bits;
	kvc_tensor row_of = kvc_tensor_make(&row, KVC_INT64, 1, &one);
	kvc_tensor prefix = kvc_tensor_make(&position, KVC_INT64, 1, &one);
	kvc_tensor extend = kvc_tensor_make(&extend_one, KVC_INT64, 1, &one);
	kvc_tensor chain_in = kvc_tensor_make(&chain_bits, KVC_INT64, 1, &one);
	kvc_tensor token_of = kvc_tensor_make(&token, KVC_INT64, 1, &one);
	kvc_tensor slot_of = kvc_tensor_make(&slot, KVC_INT64, 1, &one);
	kvc_requests others = KVC_REQUESTS_INIT;
	kvc_plan_args others_plan = plan_args;
	kvc_write_args others_write = write_args;
	kvc_status status;

	chain_bits = (int64_t)chain;
	others.req_pool_indices = &row_of, others.prefix_lens = &prefix;
	others.extend_seq_lens = &extend, others.write_chain_in = &chain_in;
	others_plan.requests = &others;
	others_write.requests = &others, others_write.tokens = &token_of;
	others_write.positions = &prefix, others_write.slots = &slot_of;
	status = kvc_canary_plan(&plan, &others_plan, NULL);
	return status != KVC_OK ? status : kvc_canary_write(&others_write, NULL);
}

#endif
