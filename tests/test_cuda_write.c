/*
 * Write on the device against the CPU: random requests with and without scratch, seeds that other
 * requests of the call write, cycles, skipped entries, checks, owners; small steps and large ones.
 */
#include "cuda_canary.h"
#include "vectors_canary.h"

enum { TOKENS, POSITIONS, SLOTS, WANT_TOKENS, WANT_POSITIONS, SCRATCH, TOKEN_ARRAYS };
enum { ROWS, PREFIX, NAMESPACES, CHAIN_IN, OWNER, REQUEST_ARRAYS };

struct scene {
	struct cuda_world w;
	kvc_plan plan[2];
	kvc_requests requests[2];
	kvc_tensor t[TOKEN_ARRAYS][2];
	kvc_tensor r[REQUEST_ARRAYS][2];
	int32_t *check_steps[2];
	int64_t *step[2];
	kvc_write_args args; /* options only */
	int64_t tokens, capacity;
	int with_requests, with_expected, with_steps, with_scratch;
};

static void *add(struct scene *s, const char *name, size_t bytes, void *host_field)
{
	void *device, *host = cuda_world_add(&s->w, name, bytes, &device);

	memcpy(host_field, &host, sizeof(host));
	memcpy((char *)host_field + sizeof(kvc_plan), &device, sizeof(device)); /* plan[1] */
	return host;
}

static int64_t *values(const kvc_tensor tensors[2])
{
	return tensors[0].data;
}

/* What a step may look like. */
struct shape {
	int64_t slot_count, requests, longest;
	int sources, columns;
	int with_scratch; /* slots may come twice, and seeds may be written in the step */
	int rules;
	int64_t tokens; /* 0: as it comes */
};

static int64_t random_seed(struct scene *s, struct seeded *random, int64_t first)
{
	switch (seeded_in(random, 0, 9)) {
	case 0:
		return -seeded_in(random, 1, 4);
	case 1:
		return s->w.slot_count + seeded_in(random, 0, 99);
	case 2:
		return 0;
	case 3:
	case 4:
	case 5:
		return first < s->tokens ? values(s->t[SLOTS])[seeded_in(random, 0, s->tokens - 1)]
		                         : -1;
	default:
		return seeded_in(random, 0, s->w.slot_count - 1);
	}
}

static void fill(struct scene *s, struct seeded *random, const struct shape *shape)
{
	struct cuda_world *w = &s->w;
	int64_t *order = malloc((size_t)w->slot_count * sizeof(*order));
	int64_t *offsets = s->plan[0].write_offsets;

	for (int64_t i = 0; i < w->slot_count; i++) {
		kvc_record *record = cuda_world_record(w, i);
		int64_t j = seeded_in(random, 0, i);
		order[i] = order[j];
		order[j] = i;
		record->token = seeded_in(random, 0, 9);
		record->position = seeded_in(random, 0, 50);
		record->prev_hash = seeded_next(random);
		record->fingerprint = seeded_next(random);
	}
	for (int64_t e = 0; e < s->tokens; e++) {
		values(s->t[TOKENS])[e] = seeded_in(random, 0, 60000);
		values(s->t[SLOTS])[e] = order[e % w->slot_count];
		if (seeded_one_in(random, 12))
			values(s->t[SLOTS])[e] = -seeded_in(random, 1, 5);
		if (shape->with_scratch && seeded_one_in(random, 8))
			values(s->t[SLOTS])[e] = seeded_in(random, 0, w->slot_count - 1);
		values(s->t[WANT_TOKENS])[e] = values(s->t[TOKENS])[e] + seeded_one_in(random, 20);
	}
	/* Offsets in [first, tokens]: entries before and after belong to nobody. */
	offsets[0] = seeded_in(random, 0, 2);
	for (int64_t r = 0; r < s->capacity; r++) {
		int64_t length =
		        seeded_one_in(random, 5) ? 0 : seeded_in(random, 1, shape->longest);
		int64_t past = offsets[r] + length;
		offsets[r + 1] = past < s->tokens ? past : s->tokens;
	}
	for (int64_t r = 0; r < s->capacity; r++) {
		int64_t seed = random_seed(s, random, offsets[r]);
		int64_t position = seeded_one_in(random, 3) ? 0 : seeded_in(random, 0, 900);
		if (seed >= 0 && seed < w->slot_count && seeded_one_in(random, 2))
			position = cuda_world_record(w, seed)->position + 1;
		s->plan[0].write_seed_slot_indices[r] = seed;
		values(s->r[ROWS])[r] = r;
		values(s->r[NAMESPACES])[r] = seeded_one_in(random, 2) ? 0 : r + 7;
		values(s->r[CHAIN_IN])[r] =
		        seeded_one_in(random, 4) ? (int64_t)seeded_next(random) : 0;
		values(s->r[OWNER])[r] = seeded_in(random, 0, 1 << 20);
		for (int64_t e = offsets[r]; e < offsets[r + 1]; e++) {
			values(s->t[POSITIONS])[e] = position;
			values(s->t[WANT_POSITIONS])[e] = position - seeded_one_in(random, 20);
			position += seeded_one_in(random, 15) ? 2 : values(s->t[SLOTS])[e] >= 0;
		}
	}
	*s->plan[0].write_num_valid_reqs =
	        (int32_t)(seeded_one_in(random, 3) ? seeded_in(random, 0, s->capacity)
	                                           : s->capacity);
	*s->check_steps[0] = !seeded_one_in(random, 4);
	*s->step[0] = seeded_in(random, 0, 1 << 20);
	free(order);
}

static void build(struct scene *s, struct seeded *random, const struct shape *shape)
{
	static const char *token_names[] = { "tokens", "positions", "slots", "expected_tokens",
		"expected_positions", "scratch" };
	static const char *request_names[] = { "rows", "prefix_lens", "namespaces",
		"write_chain_in", "owner_request" };
	const kvc_write_args initial = KVC_WRITE_ARGS_INIT;
	void *device;

	memset(s, 0, sizeof(*s));
	s->args = initial;
	s->capacity = shape->requests;
	s->tokens = shape->requests * shape->longest / (seeded_one_in(random, 2) ? 1 : 2) + 3;
	if (shape->tokens)
		s->tokens = shape->tokens;
	if (!shape->with_scratch && s->tokens > shape->slot_count)
		s->tokens = shape->slot_count; /* no slot twice */
	cuda_world_start(&s->w, random, shape->slot_count, shape->sources);
	if (shape->rules == KVC_RULES_OWN && seeded_one_in(random, 5)) {
		s->w.group[0].fingerprint = s->w.group[1].fingerprint = KVC_FINGERPRINT_XXH3;
		s->w.group[0].stamping = s->w.group[1].stamping = KVC_STAMP_CLEAR;
		for (int i = 0; i < shape->sources; i++)
			for (int side = 0; side < 2; side++)
				s->w.sources[side][i].read_bytes =
				        s->w.sources[side][i].head_count *
				        s->w.sources[side][i].head_bytes;
	}
	for (int i = 0; i < TOKEN_ARRAYS; i++)
		cuda_world_vector(&s->w, token_names[i],
		        i == SCRATCH ? shape->slot_count : s->tokens, s->t[i]);
	for (int i = 0; i < REQUEST_ARRAYS; i++)
		cuda_world_vector(&s->w, request_names[i], s->capacity, s->r[i]);
	s->check_steps[0] = cuda_world_add(&s->w, "check_steps", 4, &device);
	s->check_steps[1] = device;
	s->step[0] = cuda_world_add(&s->w, "step", 8, &device);
	s->step[1] = device;
	for (int side = 0; side < 2; side++) {
		s->requests[side] = (kvc_requests)KVC_REQUESTS_INIT;
		s->requests[side].req_pool_indices = &s->r[ROWS][side];
		s->requests[side].namespaces = &s->r[NAMESPACES][side];
		s->requests[side].write_chain_in = &s->r[CHAIN_IN][side];
		s->requests[side].owner_request = &s->r[OWNER][side];
		s->plan[side].struct_bytes = sizeof(kvc_plan);
		s->plan[side].device.device_type = side ? KVC_DEVICE_CUDA : KVC_DEVICE_CPU;
		s->plan[side].write_req_capacity = s->capacity;
	}
	add(s, "offsets", (size_t)(s->capacity + 1) * 8, &s->plan[0].write_offsets);
	add(s, "seeds", (size_t)s->capacity * 8, &s->plan[0].write_seed_slot_indices);
	add(s, "num_valid", 4, &s->plan[0].write_num_valid_reqs);
	s->with_requests = !seeded_one_in(random, 4);
	s->with_expected = seeded_one_in(random, 2);
	s->with_steps = seeded_one_in(random, 2);
	s->with_scratch = shape->with_scratch;
	s->args.launch_tag = seeded_in(random, 0, 34);
	s->args.rules = shape->rules;
	cuda_world_ring(&s->w, shape->columns, 3 * s->tokens + 3 * s->capacity + 8);
	fill(s, random, shape);
}

static kvc_status run(struct scene *s, int side, void *stream)
{
	kvc_write_args args = s->args;

	args.group = &s->w.group[side];
	args.plan = &s->plan[side];
	args.requests = s->with_requests ? &s->requests[side] : NULL;
	args.tokens = &s->t[TOKENS][side];
	args.positions = &s->t[POSITIONS][side];
	args.slots = &s->t[SLOTS][side];
	args.expected_tokens = s->with_expected ? &s->t[WANT_TOKENS][side] : NULL;
	args.expected_positions = s->with_expected ? &s->t[WANT_POSITIONS][side] : NULL;
	args.check_steps = s->with_steps ? s->check_steps[side] : NULL;
	args.step = s->with_steps ? s->step[side] : NULL;
	args.scratch = s->with_scratch ? &s->t[SCRATCH][side] : NULL;
	args.ring = &s->w.ring[side];
	return kvc_canary_write(&args, stream);
}

static struct shape random_shape(struct seeded *random, int with_scratch, int64_t longest)
{
	struct shape shape = { .requests = seeded_in(random, 1, 12),
		.longest = longest,
		.sources = (int)seeded_in(random, 0, seeded_one_in(random, 4) ? 14 : 3),
		.columns = seeded_one_in(random, 4) ? 8 : 16,
		.with_scratch = with_scratch };

	if (seeded_one_in(random, 6))
		shape.requests = seeded_in(random, 30, 90);
	if (shape.requests * longest > 4000)
		shape.requests = 4000 / longest;
	shape.slot_count = shape.requests * shape.longest + 10;
	if (with_scratch && seeded_one_in(random, 3))
		shape.slot_count = seeded_in(random, 5, 40);
	shape.rules = !with_scratch && shape.sources <= 4 && seeded_one_in(random, 3)
	                      ? KVC_RULES_SGLANG
	                      : KVC_RULES_OWN;
	return shape;
}

/* SGLang's rules see, on the CPU, what earlier requests wrote: on the device that is open. */
static void keep_seeds_apart(struct scene *s)
{
	for (int64_t r = 0; r < s->capacity; r++)
		for (int64_t e = 0; e < s->tokens; e++)
			if (values(s->t[SLOTS])[e] == s->plan[0].write_seed_slot_indices[r])
				s->plan[0].write_seed_slot_indices[r] = -1;
}

static void check(struct seeded *random, const struct shape *shape)
{
	struct scene s;
	char what[160];

	build(&s, random, shape);
	if (shape->rules == KVC_RULES_SGLANG)
		keep_seeds_apart(&s);
	snprintf(what, sizeof(what),
	        "tokens=%d requests=%d sources=%d splitmix=%d coverage=%d clear=%d scratch=%d "
	        "rules=%d",
	        (int)s.tokens, (int)s.capacity, shape->sources, s.w.group[0].fingerprint,
	        s.w.group[0].coverage, s.w.group[0].stamping, s.with_scratch, s.args.rules);
	cuda_world_push(&s.w);
	expect_ok(run(&s, 0, NULL));
	expect_ok(run(&s, 1, NULL));
	cuda_world_compare(&s.w, what);
	cuda_world_free(&s.w);
}

static void writes_equal_the_cpus(void **state)
{
	static const int64_t longest[] = { 1, 1, 2, 5, 30, 60, 270, 1000 };
	struct seeded random = seeded_start("cuda_write");
	(void)state;
	if (!cuda_device_open())
		skip();
	for (int i = 0; i < cuda_rounds(400); i++) {
		struct shape shape = random_shape(&random, 0, cuda_pick(&random, longest, 8));
		check(&random, &shape);
	}
}

/* Slots that come twice, seeds that the call itself writes, chains of requests, cycles. */
static void linked_writes_equal_the_cpus(void **state)
{
	static const int64_t longest[] = { 1, 1, 2, 5, 30, 60, 270, 1000 };
	struct seeded random = seeded_start("cuda_write linked");
	(void)state;
	if (!cuda_device_open())
		skip();
	for (int i = 0; i < cuda_rounds(400); i++) {
		struct shape shape = random_shape(&random, 1, cuda_pick(&random, longest, 8));
		check(&random, &shape);
	}
}

/* Every request starts from the one after it: longer paths than are kept at a time, and a ring. */
static void long_paths_of_requests(void **state)
{
	struct seeded random = seeded_start("cuda_write paths");
	(void)state;
	if (!cuda_device_open())
		skip();
	for (int i = 0; i < 12; i++) {
		struct shape shape = { .slot_count = 900,
			.requests = 60,
			.longest = i < 4   ? 1
			           : i < 8 ? 3
			                   : 12,
			.sources = 1,
			.columns = 16,
			.with_scratch = 1 };
		struct scene s;
		shape.tokens = shape.requests * shape.longest;
		build(&s, &random, &shape);
		int64_t *offsets = s.plan[0].write_offsets;
		*s.plan[0].write_num_valid_reqs = 60;
		for (int64_t r = 0; r <= 60; r++)
			offsets[r] = r * s.tokens / 60;
		for (int64_t e = 0; e < s.tokens; e++) {
			values(s.t[SLOTS])[e] = e + 1;
			values(s.t[POSITIONS])[e] = e % 7;
			values(s.t[WANT_POSITIONS])[e] = e % 7;
		}
		for (int64_t r = 0; r < 60; r++) {
			int64_t q = r < 59 ? r + 1 : i % 4 == 0 ? 0 : i % 4 == 1 ? 30 : -1;
			int64_t last =
			        q < 0 ? -1 : seeded_in(&random, offsets[q], offsets[q + 1] - 1);
			s.plan[0].write_seed_slot_indices[r] = q < 0 ? 0 : last + 1;
			values(s.r[CHAIN_IN])[r] = 0;
		}
		cuda_world_push(&s.w);
		expect_ok(run(&s, 0, NULL));
		expect_ok(run(&s, 1, NULL));
		cuda_world_compare(&s.w, "a long path");
		cuda_world_free(&s.w);
	}
}

/* Slots past the records: as on the CPU where they are negative, but for a row each. */
static void foreign_slots_are_skipped_and_reported(void **state)
{
	struct seeded random = seeded_start("cuda_write foreign");
	(void)state;
	if (!cuda_device_open())
		skip();
	for (int i = 0; i < 80; i++) {
		struct shape shape = random_shape(&random, i % 2, i % 4 < 2 ? 4 : 150);
		struct scene s;
		kvc_counters counters;
		int64_t foreign = 0;
		shape.rules = KVC_RULES_OWN;
		shape.columns = 16;
		build(&s, &random, &shape);
		cuda_world_push(&s.w);
		expect_ok(run(&s, 0, NULL));
		int64_t n = *s.plan[0].write_num_valid_reqs, *slots = values(s.t[SLOTS]);
		int64_t past = n > 0 ? s.plan[0].write_offsets[n] : 0;
		for (int64_t e = n > 0 ? s.plan[0].write_offsets[0] : 0; e < past; e++)
			if (slots[e] < 0 && seeded_one_in(&random, 2)) {
				slots[e] = seeded_one_in(&random, 2) ? INT64_MAX : s.w.slot_count;
				foreign++;
			}
		cuda_must(cuda.to_device((cuda_pointer)(uintptr_t)s.t[SLOTS][1].data, slots,
		                  (size_t)s.tokens * sizeof(*slots)),
		        "slots");
		expect_ok(run(&s, 1, NULL));
		cuda_must(cuda.synchronize(), "foreign slots");
		cuda_must(cuda.to_host(&counters, (cuda_pointer)(uintptr_t)s.w.ring[1].counters,
		                  sizeof(counters)),
		        "counters");
		s.w.ring[0].counters->violations += foreign;
		s.w.ring[0].counters->reasons[8] += foreign;
		assert_memory_equal(&counters, s.w.ring[0].counters, sizeof(counters));
		s.w.ring[0].rows = NULL; /* the device has rows more */
		cuda_world_compare(&s.w, "foreign slots");
		cuda_world_free(&s.w);
	}
}

/* Offsets and counts that the CPU refuses: nothing outside is touched, and rows say so. */
static void wild_offsets_touch_nothing_outside(void **state)
{
	struct seeded random = seeded_start("cuda_write wild");
	(void)state;
	if (!cuda_device_open())
		skip();
	for (int i = 0; i < 60; i++) {
		struct shape shape = random_shape(&random, i % 2, i % 4 < 2 ? 4 : 150);
		struct scene s;
		kvc_counters counters;
		shape.columns = 16;
		shape.rules = KVC_RULES_OWN;
		build(&s, &random, &shape);
		for (int64_t r = 0; r <= s.capacity; r++)
			if (seeded_one_in(&random, 3))
				s.plan[0].write_offsets[r] =
				        seeded_one_in(&random, 2)
				                ? INT64_MAX - seeded_in(&random, 0, 9)
				                : seeded_in(&random, -9, s.tokens + 9);
		*s.plan[0].write_num_valid_reqs = i % 3 ? 1 << 30 : (int32_t)s.capacity;
		if (s.with_scratch && i % 5 == 0) /* not zero, as it should be */
			for (int64_t k = 0; k < s.w.slot_count; k++)
				values(s.t[SCRATCH])[k] = (int64_t)seeded_next(&random);
		cuda_world_push(&s.w);
		expect_ok(run(&s, 1, NULL));
		cuda_must(cuda.synchronize(), "wild offsets");
		cuda_must(cuda.to_host(&counters, (cuda_pointer)(uintptr_t)s.w.ring[1].counters,
		                  sizeof(counters)),
		        "counters");
		assert_true(i % 3 == 0 || counters.reasons[8] > 0);
		for (int t = 0; t < s.w.count; t++)
			assert_int_equal(cuda_twin_trespassed(&s.w.twins[t]), 0);
		cuda_world_free(&s.w);
	}
}

/* Entries 2 and 3 are of the requests [0, 4) and [2, 6): they are the first one's, as if it came last. */
static void an_entry_of_two_requests_is_one_ones(void **state)
{
	struct seeded random = seeded_start("cuda_write overlap");
	static const int64_t wild[] = { 0, 4, 2, 6 }, second[] = { 0, 0, 2, 6 },
	                     first[] = { 0, 4, 4, 4 };
	(void)state;
	if (!cuda_device_open())
		skip();
	for (int i = 0; i < 20; i++) {
		const struct shape shape = { .slot_count = 9,
			.requests = 3,
			.longest = 2,
			.sources = 1,
			.columns = 16,
			.with_scratch = i % 2,
			.tokens = 6 };
		struct scene s;
		build(&s, &random, &shape);
		int64_t *offsets = s.plan[0].write_offsets;
		*s.plan[0].write_num_valid_reqs = 3;
		s.with_requests = 1;
		for (int64_t e = 0; e < 6; e++)
			values(s.t[SLOTS])[e] = e + 1;
		for (int r = 0; r < 3; r++)
			values(s.r[CHAIN_IN])[r] = 5 + r;
		memcpy(offsets, wild, sizeof(wild));
		cuda_world_push(&s.w);
		expect_ok(run(&s, 1, NULL));
		memcpy(offsets, second, sizeof(second));
		expect_ok(run(&s, 0, NULL));
		memcpy(offsets, first, sizeof(first));
		expect_ok(run(&s, 0, NULL));
		cuda_must(cuda.synchronize(), "overlap");
		for (int t = 0; t < s.w.count; t++)
			if (strcmp(s.w.names[t], "records") == 0 ||
			        strcmp(s.w.names[t], "owners") == 0)
				assert_int_equal(cuda_twin_differs(&s.w.twins[t]), -1);
		cuda_world_free(&s.w);
	}
}

static void captured_writes_see_new_contents(void **state)
{
	struct seeded random = seeded_start("cuda_write graph");
	(void)state;
	if (!cuda_device_open())
		skip();
	for (int round = 0; round < 8; round++) {
		struct shape shape = random_shape(&random, round % 2, round < 4 ? 3 : 120);
		struct scene s;
		shape.rules = KVC_RULES_OWN;
		build(&s, &random, &shape);
		struct cuda_graph graph = cuda_graph_begin();
		expect_ok(run(&s, 1, graph.stream));
		cuda_graph_end(&graph);
		for (int replay = 0; replay < 3; replay++) {
			fill(&s, &random, &shape);
			for (int t = 0; t < s.w.count; t++)
				if (s.w.is_ring[t])
					memset(s.w.twins[t].host, 0, s.w.twins[t].bytes);
			memset(s.w.ring[0].counters, 0, sizeof(kvc_counters));
			*s.w.ring[0].write_index = 0;
			cuda_world_push(&s.w);
			expect_ok(run(&s, 0, NULL));
			cuda_graph_replay(&graph);
			cuda_world_compare(&s.w, "graph replay");
		}
		cuda_graph_free(&graph);
		cuda_world_free(&s.w);
	}
}

/* ---- rows that the launch before has changed ---- */

/* The fingerprints of a large write begin while the launches before it still end: they must be of the rows as
 * those have left them, also where this GPU's caches hold what a launch before that had read. */
enum { FRESH_TOKENS = 2048, FRESH_REQUESTS = 64, FRESH_HEADS = 8, FRESH_DIM = 128 };
#define FRESH_ROW_BYTES (FRESH_HEADS * FRESH_DIM * 2)

struct fresh {
	struct cuda_world w;
	kvc_source source;
	kvc_group group;
	kvc_plan plan;
	kvc_rope rope;
	kvc_tensor tokens[2], positions[2], slots[2];
	kvc_tensor q, k[2], pool;
	int64_t shape[3];
	uint64_t *before, *after; /* on the device: fingerprints of the rows, by token */
};

static kvc_tensor fresh_rows(struct fresh *f, const char *name, struct seeded *random)
{
	size_t bytes = (size_t)FRESH_TOKENS * FRESH_ROW_BYTES;
	void *device, *host = cuda_world_add(&f->w, name, bytes, &device);

	if (random)
		cuda_fill_bytes(random, host, (int64_t)bytes);
	kvc_tensor tensor = kvc_tensor_make(device, KVC_BFLOAT16, 3, f->shape);
	tensor.device.device_type = KVC_DEVICE_CUDA;
	return tensor;
}

static void fresh_plan(struct fresh *f)
{
	void *device;
	int64_t *offsets =
	        cuda_world_add(&f->w, "offsets", (FRESH_REQUESTS + 1) * sizeof(*offsets), &device);
	int32_t *num_valid;

	f->plan.struct_bytes = sizeof(f->plan);
	f->plan.device.device_type = KVC_DEVICE_CUDA;
	f->plan.write_req_capacity = FRESH_REQUESTS;
	f->plan.write_offsets = device;
	for (int64_t r = 0; r <= FRESH_REQUESTS; r++)
		offsets[r] = r * (FRESH_TOKENS / FRESH_REQUESTS);
	int64_t *seeds = cuda_world_add(&f->w, "seeds", FRESH_REQUESTS * sizeof(*seeds), &device);
	f->plan.write_seed_slot_indices = device;
	memset(seeds, 0xFF, FRESH_REQUESTS * sizeof(*seeds));
	num_valid = cuda_world_add(&f->w, "num_valid", sizeof(*num_valid), &device);
	f->plan.write_num_valid_reqs = device;
	*num_valid = FRESH_REQUESTS;
}

static void fresh_make(struct fresh *f, struct seeded *random)
{
	kvc_rope_options options = KVC_ROPE_OPTIONS_INIT;
	void *device;

	memset(f, 0, sizeof(*f));
	f->shape[0] = FRESH_TOKENS, f->shape[1] = FRESH_HEADS, f->shape[2] = FRESH_DIM;
	options.rotary_dim = FRESH_DIM;
	expect_ok(kvc_rope_init(&f->rope, &options));
	f->q = fresh_rows(f, "q", random);
	f->k[0] = fresh_rows(f, "k", random);
	f->k[1] = fresh_rows(f, "k of the next round", random);
	f->pool = fresh_rows(f, "pool", NULL);
	cuda_world_vector(&f->w, "tokens", FRESH_TOKENS, f->tokens);
	cuda_world_vector(&f->w, "positions", FRESH_TOKENS, f->positions);
	cuda_world_vector(&f->w, "slots", FRESH_TOKENS, f->slots);
	for (int64_t i = 0; i < FRESH_TOKENS; i++) {
		values(f->positions)[i] = i % (FRESH_TOKENS / FRESH_REQUESTS);
		values(f->slots)[i] = FRESH_TOKENS - 1 - i;
	}
	f->source.base = f->pool.data;
	f->source.row_count = FRESH_TOKENS;
	f->source.row_stride_bytes = f->source.slot_stride_bytes = FRESH_ROW_BYTES;
	f->source.page_size = 1;
	f->source.head_count = FRESH_HEADS;
	f->source.head_bytes = f->source.head_stride_bytes = FRESH_DIM * 2;
	f->source.read_bytes = FRESH_ROW_BYTES;
	f->source.dtype = KVC_BFLOAT16;
	f->group = (kvc_group)KVC_GROUP_INIT;
	f->group.device.device_type = KVC_DEVICE_CUDA;
	cuda_world_add(&f->w, "records", FRESH_TOKENS * sizeof(kvc_record), &device);
	f->group.records = device;
	f->group.record_count = FRESH_TOKENS;
	f->group.sources = &f->source;
	f->group.source_count = 1;
	f->group.coverage = KVC_COVERAGE_ALL;
	fresh_plan(f);
	cuda_world_add(&f->w, "before", FRESH_TOKENS * sizeof(uint64_t), &device);
	f->before = device;
	cuda_world_add(&f->w, "after", FRESH_TOKENS * sizeof(uint64_t), &device);
	f->after = device;
	cuda_world_push(&f->w);
}

/* Rows are read, changed, stamped and read again, without a pause. */
static void fresh_round(struct fresh *f, int which, void *stream)
{
	kvc_rope_pool_args rope = KVC_ROPE_POOL_ARGS_INIT;
	kvc_write_args write = KVC_WRITE_ARGS_INIT;

	rope.q = &f->q;
	rope.k = &f->k[which];
	rope.positions = &f->positions[1];
	rope.slots = &f->slots[1];
	rope.k_pool = &f->pool;
	rope.rope = &f->rope;
	write.group = &f->group;
	write.plan = &f->plan;
	write.tokens = &f->tokens[1];
	write.positions = &f->positions[1];
	write.slots = &f->slots[1];
	expect_ok(kvc_fingerprint(f->before, &f->group, &f->slots[1], stream));
	expect_ok(kvc_rope_pool_fused(&rope, stream));
	expect_ok(kvc_canary_write(&write, stream));
	expect_ok(kvc_fingerprint(f->after, &f->group, &f->slots[1], stream));
}

static void fresh_check(struct fresh *f)
{
	static kvc_record records[FRESH_TOKENS];
	static uint64_t before[FRESH_TOKENS], after[FRESH_TOKENS];

	cuda_must(cuda.synchronize(), "fresh rows");
	cuda_must(cuda.to_host(records, (cuda_pointer)(uintptr_t)f->group.records, sizeof(records)),
	        "records");
	cuda_must(
	        cuda.to_host(before, (cuda_pointer)(uintptr_t)f->before, sizeof(before)), "before");
	cuda_must(cuda.to_host(after, (cuda_pointer)(uintptr_t)f->after, sizeof(after)), "after");
	for (int64_t i = 0; i < FRESH_TOKENS; i++) {
		assert_int_not_equal(before[i], after[i]);
		assert_int_equal(records[values(f->slots)[i]].fingerprint, after[i]);
	}
}

static void rows_just_changed_are_hashed_as_they_are(void **state)
{
	struct seeded random = seeded_start("cuda_write fresh");
	struct fresh f;
	(void)state;
	if (!cuda_device_open())
		skip();
	fresh_make(&f, &random);
	for (int i = 0; i < cuda_rounds(1000); i++) {
		fresh_round(&f, i % 2, NULL);
		fresh_check(&f);
	}
	struct cuda_graph graph = cuda_graph_begin();
	for (int which = 0; which < 2; which++)
		fresh_round(&f, which, graph.stream);
	cuda_graph_end(&graph);
	for (int i = 0; i < cuda_rounds(1000); i++) {
		cuda_graph_replay(&graph);
		fresh_check(&f);
	}
	cuda_graph_free(&graph);
	cuda_world_free(&f.w);
}

/* ---- what SGLang's kv-canary gives ---- */

static void *on_device(struct cuda_world *w, const char *name, const void *data, size_t bytes)
{
	void *device, *host = cuda_world_add(w, name, bytes, &device);

	memcpy(host, data, bytes);
	return device;
}

static kvc_tensor device_vector(struct cuda_world *w, struct vectors *v, const char *field)
{
	kvc_tensor tensors[2];
	int64_t count, *from = vectors_int64s(v, vectors_field(v->item, field), &count);
	int64_t *to = cuda_world_vector(w, field, count, tensors);

	memcpy(to, from, (size_t)count * sizeof(*to));
	return tensors[1];
}

static int vector_matches(struct vectors *v)
{
	const json_t *item = v->item, *plan_item = vectors_field(item, "plan");
	const json_t *list = vectors_field(item, "sources"), *want = vectors_field(item, "want");
	kvc_write_args args = KVC_WRITE_ARGS_INIT;
	kvc_group group = vectors_group_with_records(v);
	kvc_source *sources = vectors_block(v, 8, sizeof(*sources));
	struct vectors_ring ring;
	struct cuda_world w;
	kvc_plan plan = { .struct_bytes = sizeof(plan), .device = { KVC_DEVICE_CUDA, 0 } };
	int32_t requests = (int32_t)vectors_int(plan_item, "write_num_valid_reqs");
	int32_t check_steps = (int32_t)vectors_int(item, "enable_chain_position_assert");
	int64_t bytes, count;

	memset(&w, 0, sizeof(w));
	for (size_t s = 0; s < json_array_size(list); s++) {
		const uint8_t *data =
		        vectors_bytes(v, vectors_field(json_array_get(list, s), "data"), &bytes);
		sources[s] = group.sources[s];
		sources[s].base = on_device(&w, "source", data, (size_t)bytes);
	}
	group.sources = sources;
	const void *canary = vectors_bytes(v, vectors_field(item, "canary"), &bytes);
	int records = w.count;
	group.records = on_device(&w, "records", canary, (size_t)bytes);
	group.device.device_type = KVC_DEVICE_CUDA;
	const int64_t *offsets =
	        vectors_int64s(v, vectors_field(plan_item, "write_offsets"), &count);
	plan.write_offsets = on_device(&w, "offsets", offsets, (size_t)count * 8);
	const int64_t *seeds = vectors_int64s(
	        v, vectors_field(plan_item, "write_seed_slot_indices"), &plan.write_req_capacity);
	plan.write_seed_slot_indices =
	        on_device(&w, "seeds", seeds, (size_t)plan.write_req_capacity * 8);
	plan.write_num_valid_reqs = on_device(&w, "num_valid", &requests, 4);
	kvc_tensor tokens = device_vector(&w, v, "input_ids");
	kvc_tensor positions = device_vector(&w, v, "positions");
	kvc_tensor slots = device_vector(&w, v, "out_cache_loc");
	kvc_tensor expected_tokens, expected_positions;
	if (vectors_bool(item, "enable_write_input_assert")) {
		expected_tokens = device_vector(&w, v, "expected_input_tokens");
		expected_positions = device_vector(&w, v, "expected_input_positions");
		args.expected_tokens = &expected_tokens;
		args.expected_positions = &expected_positions;
	}
	vectors_ring_start(v, &ring);
	kvc_ring device_ring = ring.ring;
	size_t ring_bytes = (size_t)ring.ring.capacity * 64;
	device_ring.device.device_type = KVC_DEVICE_CUDA;
	device_ring.rows = on_device(&w, "ring", ring.ring.rows, ring_bytes);
	device_ring.write_index = on_device(&w, "write_index", &ring.write_index, 4);
	device_ring.slot_run_counter = on_device(&w, "slot_runs", &ring.slot_runs, 8);
	device_ring.kernel_run_counter = on_device(&w, "kernel_runs", &ring.kernel_runs, 8);
	args.group = &group;
	args.plan = &plan;
	args.tokens = &tokens;
	args.positions = &positions;
	args.slots = &slots;
	args.check_steps = on_device(&w, "check_steps", &check_steps, 4);
	args.launch_tag = vectors_int(item, "kernel_kind");
	args.ring = &device_ring;
	args.rules = KVC_RULES_SGLANG;
	int64_t start = ring.write_index;
	cuda_world_push(&w);
	expect_ok(kvc_canary_write(&args, NULL));
	cuda_must(cuda.synchronize(), vectors_id(v));
	cuda_must(cuda.to_host(
	                  &ring.write_index, (cuda_pointer)(uintptr_t)device_ring.write_index, 4),
	        "write_index");
	cuda_must(cuda.to_host(&ring.slot_runs,
	                  (cuda_pointer)(uintptr_t)device_ring.slot_run_counter, 8),
	        "slot_runs");
	cuda_must(cuda.to_host(&ring.kernel_runs,
	                  (cuda_pointer)(uintptr_t)device_ring.kernel_run_counter, 8),
	        "kernel_runs");
	int64_t written = vectors_int(want, "write_index");
	int64_t shown = (int64_t)json_array_size(vectors_field(want, "ring"));
	int64_t *rows = vectors_block(v, (size_t)ring.ring.capacity * 8, 8);
	int same = ring.write_index == written &&
	           ring.slot_runs == vectors_int(want, "slot_run_counter") &&
	           ring.kernel_runs == vectors_int(want, "kernel_run_counter");
	if (ring_bytes)
		cuda_must(cuda.to_host(rows, (cuda_pointer)(uintptr_t)device_ring.rows, ring_bytes),
		        "rows");
	/* Rows stand in any order, and of more than the ring holds any may be there. */
	if (start >= 0 && written <= ring.ring.capacity) {
		int64_t *expected = vectors_block(v, (size_t)shown * 8, 8);
		for (int64_t i = 0; i < shown; i++)
			memcpy(expected + 8 * i,
			        vectors_int64s(v,
			                json_array_get(vectors_field(want, "ring"), (size_t)i),
			                NULL),
			        64);
		int64_t *a = cuda_sorted_rows(expected, shown, 8),
		        *b = cuda_sorted_rows(rows, shown, 8);
		same &= memcmp(a, b, (size_t)shown * 128) == 0;
		free(a);
		free(b);
	}
	memcpy(w.twins[records].host, vectors_bytes(v, vectors_field(want, "canary"), &bytes),
	        (size_t)bytes);
	same &= cuda_twin_differs(&w.twins[records]) == -1;
	for (int i = 0; i < w.count; i++)
		same &= cuda_twin_trespassed(&w.twins[i]) == 0;
	cuda_world_free(&w);
	return same;
}

static void sglangs_writes(void **state)
{
	struct vectors v;

	(void)state;
	if (!cuda_device_open())
		skip();
	vectors_open(&v, "write.jsonl");
	while (vectors_next(&v))
		vectors_passed(&v,
		        strcmp(vectors_text(v.item, "class"), "normal") != 0 || vector_matches(&v));
	assert_true(vectors_close(&v));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(writes_equal_the_cpus),
		cmocka_unit_test(linked_writes_equal_the_cpus),
		cmocka_unit_test(long_paths_of_requests),
		cmocka_unit_test(foreign_slots_are_skipped_and_reported),
		cmocka_unit_test(an_entry_of_two_requests_is_one_ones),
		cmocka_unit_test(wild_offsets_touch_nothing_outside),
		cmocka_unit_test(captured_writes_see_new_contents),
		cmocka_unit_test(rows_just_changed_are_hashed_as_they_are),
		cmocka_unit_test(sglangs_writes),
	};
	if (!cuda_device_open())
		printf("SKIP cuda: no GPU here\n");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
