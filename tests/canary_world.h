/*
 * A small cache with its canary, for the tests of write, verify and their like: two pools of 32-byte
 * rows, records, owners, a ring, a request table and a plan. Every array is an allocation of its own
 * and exactly as long as it says, so that a sanitizer sees one step too far.
 */
#ifndef CANARY_WORLD_H
#define CANARY_WORLD_H

#include "expect.h"

#include <stdlib.h>
#include <string.h>

#include "kvcanary.h"

#define WORLD_ROW_BYTES 32
#define WORLD_ROWS 8
#define WORLD_COLUMNS 64
#define WORLD_REQUESTS 8
#define WORLD_FOUND_MAX 256

struct world {
	int64_t slot_count;
	uint8_t *k;
	uint8_t *v;
	kvc_source sources[2];
	kvc_record *records;
	kvc_owner *owners;
	kvc_group group;
	kvc_ring ring;
	int64_t consumed;
	kvc_counters counters;
	int32_t *table; /* req_to_token, WORLD_ROWS x WORLD_COLUMNS */
	int32_t *expected;
	int64_t step;
	void *plan_memory;
	kvc_plan plan;
	kvc_violation found[WORLD_FOUND_MAX]; /* by the last world_verify() or world_write() */
	int64_t found_count;
	int64_t valid_prefix[WORLD_REQUESTS];
};

/* KV bytes of a slot that nobody else has: 'content' picks them. */
static inline void world_fill(struct world *w, int64_t slot, int content)
{
	for (int i = 0; i < WORLD_ROW_BYTES; i++) {
		w->k[slot * WORLD_ROW_BYTES + i] = (uint8_t)((content * 7 + i * 3) % 251);
		w->v[slot * WORLD_ROW_BYTES + i] = (uint8_t)((content * 11 + i * 5 + 1) % 251);
	}
}

static inline kvc_source world_source(const uint8_t *base, int64_t slot_count, uint64_t id)
{
	kvc_source source = { 0 };

	source.base = base;
	source.row_count = slot_count;
	source.row_stride_bytes = WORLD_ROW_BYTES;
	source.page_size = 1;
	source.head_count = 2;
	source.head_bytes = source.head_stride_bytes = WORLD_ROW_BYTES / 2;
	source.read_bytes = WORLD_ROW_BYTES;
	source.id = id;
	source.dtype = KVC_BFLOAT16;
	return source;
}

static inline void world_start(struct world *w, int64_t slot_count)
{
	memset(w, 0, sizeof(*w));
	w->slot_count = slot_count;
	w->k = calloc((size_t)slot_count, WORLD_ROW_BYTES);
	w->v = calloc((size_t)slot_count, WORLD_ROW_BYTES);
	w->records = calloc((size_t)slot_count, sizeof(kvc_record));
	w->owners = malloc((size_t)slot_count * sizeof(kvc_owner));
	memset(w->owners, 0xFF, (size_t)slot_count * sizeof(kvc_owner));
	w->sources[0] = world_source(w->k, slot_count, 0);
	w->sources[1] = world_source(w->v, slot_count, 1);
	w->group = (kvc_group)KVC_GROUP_INIT;
	w->group.records = w->records;
	w->group.record_count = slot_count;
	w->group.owners = w->owners;
	w->group.sources = w->sources;
	w->group.source_count = 2;
	w->ring = (kvc_ring)KVC_RING_INIT;
	w->ring.rows = calloc(WORLD_FOUND_MAX * 16, sizeof(int64_t));
	w->ring.capacity = WORLD_FOUND_MAX;
	w->ring.consumed = &w->consumed;
	w->ring.counters = &w->counters;
	w->table = malloc(WORLD_ROWS * WORLD_COLUMNS * sizeof(int32_t));
	memset(w->table, 0xFF, WORLD_ROWS * WORLD_COLUMNS * sizeof(int32_t));
	w->expected = malloc(WORLD_ROWS * WORLD_COLUMNS * sizeof(int32_t));
	memset(w->expected, 0xFF, WORLD_ROWS * WORLD_COLUMNS * sizeof(int32_t));
	w->plan_memory = malloc(kvc_plan_bytes(256, WORLD_REQUESTS));
	expect_ok(kvc_plan_bind(&w->plan, w->plan_memory, w->group.device, 256, WORLD_REQUESTS));
	for (int64_t slot = 0; slot < slot_count; slot++)
		world_fill(w, slot, (int)slot);
}

static inline void world_end(struct world *w)
{
	free(w->k);
	free(w->v);
	free(w->records);
	free(w->owners);
	free(w->ring.rows);
	free(w->table);
	free(w->expected);
	free(w->plan_memory);
}

static inline kvc_tensor world_vector(const int64_t *values, int64_t *count)
{
	return kvc_tensor_make((void *)(uintptr_t)values, KVC_INT64, 1, count);
}

/* Put 'count' slots of a request into its row of the table, from column 'first' on. */
static inline void world_row(
        struct world *w, int64_t row, int64_t first, const int64_t *slots, int64_t count)
{
	for (int64_t i = 0; i < count; i++)
		w->table[row * WORLD_COLUMNS + first + i] = (int32_t)slots[i];
}

static inline void world_expect(
        struct world *w, int64_t row, int64_t first, const int64_t *tokens, int64_t count)
{
	for (int64_t i = 0; i < count; i++)
		w->expected[row * WORLD_COLUMNS + first + i] = (int32_t)tokens[i];
}

static inline void world_poll(struct world *w)
{
	expect_ok(kvc_ring_poll(&w->ring, w->found, WORLD_FOUND_MAX, &w->found_count, NULL));
}

/*
 * What a test may vary of a step of one request. Zero is the plain step; slots, tokens and
 * positions are those written (positions NULL: prefix, prefix + 1, ...).
 */
struct world_step {
	int64_t row;
	int64_t prefix;
	int64_t count;
	const int64_t *slots;
	const int64_t *tokens;
	const int64_t *positions;
	int64_t name_space;
	int64_t chain_in;
	int64_t chain_end;
	int64_t start;
	int64_t window;
	int64_t owner;
	int use_expected; /* compare with the table of expected tokens */
	int check_finite;
};

struct world_requests {
	int64_t one[1];
	int64_t values[8];
	int64_t valid[1];
	kvc_tensor tensors[8];
	kvc_tensor valid_lens;
	kvc_requests requests;
};

static inline void world_requests(
        struct world_requests *out, const struct world_step *step, int64_t extend, int write)
{
	int64_t values[8] = { step->row, step->prefix, extend, step->name_space, step->chain_in,
		step->chain_end, step->start, step->owner };

	memset(out, 0, sizeof(*out));
	out->one[0] = 1;
	memcpy(out->values, values, sizeof(values));
	for (int i = 0; i < 8; i++)
		out->tensors[i] = kvc_tensor_make(&out->values[i], KVC_INT64, 1, out->one);
	out->valid[0] = WORLD_COLUMNS;
	out->valid_lens = kvc_tensor_make(out->valid, KVC_INT64, 1, out->one);
	out->requests = (kvc_requests)KVC_REQUESTS_INIT;
	out->requests.req_pool_indices = &out->tensors[0];
	out->requests.prefix_lens = &out->tensors[1];
	out->requests.extend_seq_lens = &out->tensors[2];
	out->requests.namespaces = &out->tensors[3];
	if (write)
		out->requests.write_chain_in = &out->tensors[4];
	else
		out->requests.verify_chain_in = &out->tensors[4];
	out->requests.chain_end = &out->tensors[5];
	out->requests.start = &out->tensors[6];
	out->requests.owner_request = &out->tensors[7];
}

static inline void world_plan(
        struct world *w, struct world_requests *requests, const struct world_step *step)
{
	int64_t shape[] = { WORLD_ROWS, WORLD_COLUMNS };
	kvc_tensor table = kvc_tensor_make(w->table, KVC_INT32, 2, shape);
	kvc_tensor expected = kvc_tensor_make(w->expected, KVC_INT32, 2, shape);
	/* A window needs no translation here, and SPEC lets a plan have one without a mapping. */
	kvc_plan_args args = KVC_PLAN_ARGS_INIT;

	args.requests = &requests->requests;
	args.req_to_token = &table;
	args.window = step->window;
	if (step->use_expected) {
		args.expected_tokens = &expected;
		args.valid_lens = &requests->valid_lens;
	}
	expect_ok(kvc_canary_plan(&w->plan, &args, NULL));
}

/* Plan and write one request's tokens; its row of the table is filled from step->slots. */
static inline void world_write(struct world *w, struct world_step step)
{
	struct world_requests requests;
	kvc_write_args args = KVC_WRITE_ARGS_INIT;
	int64_t counted[WORLD_COLUMNS];

	for (int64_t i = 0; i < step.count; i++)
		counted[i] = step.positions ? step.positions[i] : step.prefix + i;
	kvc_tensor tokens = world_vector(step.tokens, &step.count);
	kvc_tensor positions = world_vector(counted, &step.count);
	kvc_tensor slots = world_vector(step.slots, &step.count);
	world_row(w, step.row, step.prefix, step.slots, step.count);
	world_requests(&requests, &step, step.count, 1);
	world_plan(w, &requests, &step);
	w->step++;
	args.group = &w->group;
	args.plan = &w->plan;
	args.requests = &requests.requests;
	args.tokens = &tokens;
	args.positions = &positions;
	args.slots = &slots;
	args.step = &w->step;
	args.ring = &w->ring;
	expect_ok(kvc_canary_write(&args, NULL));
	world_poll(w);
}

/* Plan and verify the first step.prefix tokens of a request. */
static inline void world_verify(struct world *w, struct world_step step)
{
	struct world_requests requests;
	kvc_verify_args args = KVC_VERIFY_ARGS_INIT;
	kvc_tensor valid_prefix = kvc_tensor_make(w->valid_prefix, KVC_INT64, 1, requests.one);

	world_requests(&requests, &step, 0, 0);
	world_plan(w, &requests, &step);
	args.group = &w->group;
	args.plan = &w->plan;
	args.requests = &requests.requests;
	args.valid_prefix = &valid_prefix;
	args.check_finite = step.check_finite;
	args.ring = &w->ring;
	expect_ok(kvc_canary_verify(&args, NULL));
	world_poll(w);
}

/* The reasons found at a position (as planned), all rows together. */
static inline int64_t world_reasons_at(const struct world *w, int64_t position)
{
	int64_t reasons = 0;

	for (int64_t i = 0; i < w->found_count; i++)
		if (w->found[i].expected_position == position)
			reasons |= w->found[i].reasons;
	return reasons;
}

#endif
