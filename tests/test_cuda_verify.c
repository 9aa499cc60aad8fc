/*
 * Verify and the ring on the device against the CPU: random plans over records that are mostly sound
 * and damaged in places, every rule, window and namespace, both rings.
 */
#include "cuda_canary.h"
#include "vectors_canary.h"

#define REQUESTS 6

/* A call on both sides. */
struct scene {
	struct cuda_world w;
	kvc_plan plan[2];
	kvc_requests requests[2];
	kvc_tensor arrays[7][2];
	kvc_tensor prefix[2];
	kvc_verify_args args; /* options only */
	int with_requests, with_prefix;
};

static void *add(struct scene *s, const char *name, size_t bytes, void *host_field)
{
	void *device, *host = cuda_world_add(&s->w, name, bytes, &device);

	memcpy(host_field, &host, sizeof(host));
	memcpy((char *)host_field + sizeof(kvc_plan), &device, sizeof(device)); /* plan[1] */
	return host;
}

static void add_plan(struct scene *s, int64_t capacity)
{
	kvc_plan *plan = s->plan;

	memset(plan, 0, 2 * sizeof(*plan));
	plan[0].struct_bytes = plan[1].struct_bytes = sizeof(*plan);
	plan[0].device.device_type = KVC_DEVICE_CPU;
	plan[1].device.device_type = KVC_DEVICE_CUDA;
	plan[0].verify_capacity = plan[1].verify_capacity = capacity;
	add(s, "plan slots", (size_t)capacity * 8, &plan->verify_slot_indices);
	add(s, "plan tokens", (size_t)capacity * 8, &plan->verify_expected_tokens);
	add(s, "plan positions", (size_t)capacity * 8, &plan->verify_expected_positions);
	add(s, "plan prev", (size_t)capacity * 8, &plan->verify_prev_slot_indices);
	add(s, "plan request", (size_t)capacity * 4, &plan->verify_request);
	add(s, "plan num_valid", 4, &plan->verify_num_valid);
	add(s, "plan enable", 4, &plan->enable);
	add(s, "plan left_out", 8, &plan->left_out);
}

/* Chains of consecutive slots of a shuffled pool, a request each; then some damage. */
static void fill_records(struct scene *s, struct seeded *random, int64_t per_request)
{
	struct cuda_world *w = &s->w;
	int64_t *order = malloc((size_t)w->slot_count * sizeof(*order)), used = 0, filled = 0;
	int64_t *rows = (void *)s->arrays[0][0].data, *prefix = (void *)s->arrays[1][0].data;
	int64_t *namespaces = (void *)s->arrays[2][0].data, *ends = (void *)s->arrays[5][0].data;
	int64_t *chain_in = (void *)s->arrays[3][0].data;
	kvc_plan *plan = &s->plan[0];

	for (int64_t i = 0; i < w->slot_count; i++)
		order[i] = i;
	for (int64_t i = w->slot_count - 1; i > 0; i--) {
		int64_t j = seeded_in(random, 0, i), kept = order[i];
		order[i] = order[j], order[j] = kept;
	}
	for (int64_t r = 0; r < REQUESTS; r++) {
		int64_t start = seeded_one_in(random, 3) ? seeded_in(random, 1, 9) : 0;
		int64_t n = seeded_in(random, 0, per_request);
		rows[r] = seeded_one_in(random, 5) ? 0 : r + 1;
		namespaces[r] = s->with_requests && seeded_one_in(random, 2)
		                        ? (int64_t)seeded_next(random)
		                        : 0;
		uint64_t chain =
		        start ? seeded_next(random) : kvc_chain_start((uint64_t)namespaces[r]);
		chain_in[r] = seeded_one_in(random, 3) ? 0 : (int64_t)chain;
		prefix[r] = start + n;
		int64_t before = start ? (seeded_one_in(random, 2) ? -2 : -3) : -1;
		for (int64_t k = 0; k < n && used < w->slot_count; k++) {
			int64_t slot = order[used++], token = seeded_in(random, 0, 50000);
			kvc_record *record = cuda_world_record(w, slot);
			record->token = token;
			record->position = start + k;
			record->prev_hash = chain;
			record->fingerprint = cuda_world_fingerprint(w, slot);
			chain = kvc_chain_extend(chain, &token, start + k, 1);
			if (filled < plan->verify_capacity) {
				plan->verify_slot_indices[filled] = slot;
				plan->verify_expected_tokens[filled] =
				        seeded_one_in(random, 3) ? -1 : token;
				plan->verify_expected_positions[filled] = start + k;
				plan->verify_prev_slot_indices[filled] = before;
				plan->verify_request[filled] = (int32_t)r;
				filled++;
			}
			before = slot;
		}
		ends[r] = seeded_one_in(random, 3)   ? 0
		          : seeded_one_in(random, 3) ? (int64_t)seeded_next(random)
		                                     : (int64_t)chain;
	}
	*plan->verify_num_valid = (int32_t)filled;
	*plan->enable = !seeded_one_in(random, 15);
	*plan->left_out = seeded_in(random, 0, 3);
	free(order);
}

static void damage(struct scene *s, struct seeded *random)
{
	struct cuda_world *w = &s->w;
	kvc_plan *plan = &s->plan[0];
	int64_t n = *plan->verify_num_valid;

	for (int64_t i = 0; i < n; i++) {
		int64_t slot = plan->verify_slot_indices[i];
		kvc_record *record =
		        cuda_world_record(w, slot >= 0 && slot < w->slot_count ? slot : 0);
		switch (seeded_in(random, 0, 40)) {
		case 0:
			record->token ^= 5;
			break;
		case 1:
			record->position += 3;
			break;
		case 2:
			record->prev_hash ^= 1;
			break;
		case 3:
			record->fingerprint ^= 1;
			break;
		case 4:
			memset(record, 0, sizeof(*record));
			break;
		case 5:
			plan->verify_slot_indices[i] = -seeded_in(random, 1, 9);
			break;
		case 6:
			plan->verify_slot_indices[i] =
			        w->slot_count + seeded_in(random, 0, 1 << 20);
			break;
		case 7:
			plan->verify_slot_indices[i] = INT64_MAX - seeded_in(random, 0, 3);
			break;
		case 8:
			plan->verify_prev_slot_indices[i] =
			        seeded_in(random, -6, w->slot_count + 6);
			break;
		case 9:
			plan->verify_prev_slot_indices[i] = INT64_MAX;
			break;
		case 10:
			plan->verify_slot_indices[i] = 0;
			break;
		case 11:
			plan->verify_expected_positions[i] = -seeded_in(random, 0, 3);
			break;
		case 12:
			plan->verify_expected_tokens[i] ^= 9;
			break;
		case 13:
			plan->verify_request[i] = (int32_t)seeded_in(random, -3, REQUESTS + 3);
			break;
		default:
			break;
		}
	}
}

static void build(struct scene *s, struct seeded *random, int64_t slot_count, int sources,
        int64_t per_request, int columns)
{
	static const char *names[] = { "rows", "prefix_lens", "namespaces", "verify_chain_in",
		"write_chain_in", "chain_end", "owner_request" };
	const kvc_verify_args initial = KVC_VERIFY_ARGS_INIT;

	memset(s, 0, sizeof(*s));
	s->args = initial;
	cuda_world_start(&s->w, random, slot_count, sources);
	s->with_requests = !seeded_one_in(random, 4);
	s->with_prefix = s->with_requests && seeded_one_in(random, 2);
	for (int i = 0; i < 7; i++)
		cuda_world_vector(&s->w, names[i], REQUESTS, s->arrays[i]);
	cuda_world_vector(&s->w, "valid_prefix", REQUESTS, s->prefix);
	for (int side = 0; side < 2; side++) {
		s->requests[side] = (kvc_requests)KVC_REQUESTS_INIT;
		s->requests[side].req_pool_indices = &s->arrays[0][side];
		s->requests[side].prefix_lens = &s->arrays[1][side];
		s->requests[side].namespaces = &s->arrays[2][side];
		s->requests[side].verify_chain_in = &s->arrays[3][side];
		s->requests[side].chain_end = &s->arrays[5][side];
	}
	add_plan(s, REQUESTS * per_request + 3);
	fill_records(s, random, per_request);
	cuda_world_ring(&s->w, columns, 4 * REQUESTS * per_request + 8);
	s->args.check_bytes = !seeded_one_in(random, 5);
	s->args.check_tokens = !seeded_one_in(random, 5);
	s->args.check_finite = seeded_one_in(random, 3);
	s->args.launch_tag = seeded_in(random, 0, 34);
	s->args.rules = sources <= 4 && seeded_one_in(random, 3) ? KVC_RULES_SGLANG : KVC_RULES_OWN;
}

static kvc_status run(struct scene *s, int side, void *stream)
{
	kvc_verify_args args = s->args;

	args.group = &s->w.group[side];
	args.plan = &s->plan[side];
	args.requests = s->with_requests ? &s->requests[side] : NULL;
	args.valid_prefix = s->with_prefix ? &s->prefix[side] : NULL;
	args.ring = &s->w.ring[side];
	return kvc_canary_verify(&args, stream);
}

static void check(struct seeded *random, int64_t slot_count, int sources, int64_t per_request)
{
	struct scene s;
	char what[160];

	build(&s, random, slot_count, sources, per_request, seeded_one_in(random, 4) ? 8 : 16);
	damage(&s, random);
	snprintf(what, sizeof(what),
	        "slots=%d entries=%d sources=%d splitmix=%d coverage=%d rules=%d bytes=%d "
	        "finite=%d",
	        (int)slot_count, *s.plan[0].verify_num_valid, sources, s.w.group[0].fingerprint,
	        s.w.group[0].coverage, s.args.rules, s.args.check_bytes, s.args.check_finite);
	cuda_world_push(&s.w);
	expect_ok(run(&s, 0, NULL));
	expect_ok(run(&s, 1, NULL));
	cuda_world_compare(&s.w, what);
	cuda_world_free(&s.w);
}

static void verify_equals_the_cpus(void **state)
{
	struct seeded random = seeded_start("cuda_verify");
	(void)state;
	if (!cuda_device_open())
		skip();
	for (int i = 0; i < cuda_rounds(400); i++) {
		int64_t per_request = seeded_one_in(&random, 5) ? 200 : seeded_in(&random, 1, 30);
		check(&random, per_request * REQUESTS + seeded_in(&random, 1, 20),
		        (int)seeded_in(&random, 0, seeded_one_in(&random, 4) ? 14 : 3),
		        per_request);
	}
}

/* Counts that the CPU would refuse are clamped, and one row says so. */
static void counts_out_of_range_are_clamped(void **state)
{
	struct seeded random = seeded_start("cuda_verify counts");
	(void)state;
	if (!cuda_device_open())
		skip();
	for (int i = 0; i < 20; i++) {
		struct scene s;
		kvc_counters counters;
		int stated = i % 2 ? -5 : 1 << 30;
		build(&s, &random, 100, 1, 10, 16);
		s.args.rules = KVC_RULES_OWN;
		int64_t capacity = s.plan[0].verify_capacity;
		for (int64_t e = 0; e < capacity; e++)
			s.plan[0].verify_slot_indices[e] = -1;
		*s.plan[0].enable = 1;
		*s.plan[0].verify_num_valid = stated;
		cuda_world_push(&s.w);
		expect_ok(run(&s, 1, NULL));
		cuda_must(cuda.synchronize(), "counts");
		cuda_must(cuda.to_host(&counters, (cuda_pointer)(uintptr_t)s.w.ring[1].counters,
		                  sizeof(counters)),
		        "counters");
		assert_int_equal(counters.violations, 1);
		assert_int_equal(counters.reasons[8], 1);
		assert_int_equal(counters.slots_run, stated < 0 ? 0 : capacity);
		assert_int_equal(counters.slots_skipped, stated < 0 ? 0 : capacity);
		cuda_world_free(&s.w);
	}
}

/* More violations than the ring holds: counted alike; polled in order, then there is room again. */
static void a_full_ring_drops_and_polls(void **state)
{
	struct seeded random = seeded_start("cuda_verify ring");
	(void)state;
	if (!cuda_device_open())
		skip();
	for (int round = 0; round < 30; round++) {
		struct scene s;
		kvc_violation found[2][16];
		int64_t count[2];
		build(&s, &random, 200, 1, 20, 16);
		s.with_prefix = 0;
		*s.plan[0].enable = 1;
		s.w.ring[0].capacity = s.w.ring[1].capacity = seeded_in(&random, 1, 12);
		for (int64_t i = 0; i < *s.plan[0].verify_num_valid; i++)
			if (seeded_one_in(&random, 3))
				s.plan[0].verify_expected_positions[i] += 1000;
		cuda_world_push(&s.w);
		for (int step = 0; step < 4; step++) {
			int64_t room = seeded_in(&random, 1, 14);
			kvc_counters counters;
			for (int side = 0; side < 2; side++) {
				expect_ok(run(&s, side, NULL));
				expect_ok(kvc_ring_poll(
				        &s.w.ring[side], found[side], room, &count[side], NULL));
			}
			assert_int_equal(count[0], count[1]);
			for (int64_t i = 0; i < count[1]; i++)
				assert_int_equal(found[0][i].sequence, found[1][i].sequence);
			cuda_must(cuda.to_host(&counters,
			                  (cuda_pointer)(uintptr_t)s.w.ring[1].counters,
			                  sizeof(counters)),
			        "counters");
			assert_memory_equal(&counters, s.w.ring[0].counters, sizeof(counters));
		}
		s.w.ring[0].rows = NULL; /* which rows were dropped is open */
		cuda_world_compare(&s.w, "full ring");
		cuda_world_free(&s.w);
	}
}

static void captured_verify_sees_new_contents(void **state)
{
	struct seeded random = seeded_start("cuda_verify graph");
	(void)state;
	if (!cuda_device_open())
		skip();
	for (int round = 0; round < 6; round++) {
		struct scene s;
		build(&s, &random, 300, 2, 30, 16);
		struct cuda_graph graph = cuda_graph_begin();
		expect_ok(run(&s, 1, graph.stream));
		cuda_graph_end(&graph);
		for (int replay = 0; replay < 3; replay++) {
			fill_records(&s, &random, 30);
			damage(&s, &random);
			for (int t = 0; t < s.w.count; t++)
				if (s.w.is_ring[t])
					memset(s.w.twins[t].host, 0, s.w.twins[t].bytes);
			memset(s.w.ring[0].counters, 0, sizeof(kvc_counters));
			*s.w.ring[0].consumed = 0;
			cuda_world_push(&s.w);
			expect_ok(run(&s, 0, NULL));
			cuda_graph_replay(&graph);
			cuda_world_compare(&s.w, "graph replay");
		}
		cuda_graph_free(&graph);
		cuda_world_free(&s.w);
	}
}

/* ---- what SGLang's kv-canary gives ---- */

static void *on_device(struct cuda_world *w, const char *name, const void *data, size_t bytes)
{
	void *device, *host = cuda_world_add(w, name, bytes, &device);

	memcpy(host, data, bytes);
	return device;
}

static int vector_matches(struct vectors *v)
{
	const json_t *item = v->item, *plan_item = vectors_field(item, "plan");
	const json_t *list = vectors_field(item, "sources");
	kvc_verify_args args = KVC_VERIFY_ARGS_INIT;
	kvc_group group = vectors_group_with_records(v);
	kvc_source *sources = vectors_block(v, 8, sizeof(*sources));
	struct vectors_ring ring;
	struct cuda_world w;
	kvc_plan plan = { .struct_bytes = sizeof(plan), .device = { KVC_DEVICE_CUDA, 0 } };
	int32_t valid = (int32_t)vectors_int(plan_item, "verify_num_valid");
	int32_t enable = (int32_t)vectors_int(plan_item, "enable");
	int64_t bytes;

	memset(&w, 0, sizeof(w));
	for (size_t s = 0; s < json_array_size(list); s++) {
		const uint8_t *data =
		        vectors_bytes(v, vectors_field(json_array_get(list, s), "data"), &bytes);
		sources[s] = group.sources[s];
		sources[s].base = on_device(&w, "source", data, (size_t)bytes);
	}
	group.sources = sources;
	const void *canary = vectors_bytes(v, vectors_field(item, "canary"), &bytes);
	group.records = on_device(&w, "records", canary, (size_t)bytes);
	group.device.device_type = KVC_DEVICE_CUDA;
	const char *fields[] = { "verify_slot_indices", "verify_expected_tokens",
		"verify_expected_positions", "verify_prev_slot_indices" };
	int64_t *arrays[4];
	for (int i = 0; i < 4; i++) {
		int64_t *values = vectors_int64s(
		        v, vectors_field(plan_item, fields[i]), &plan.verify_capacity);
		arrays[i] = on_device(&w, fields[i], values, (size_t)plan.verify_capacity * 8);
	}
	plan.verify_slot_indices = arrays[0];
	plan.verify_expected_tokens = arrays[1];
	plan.verify_expected_positions = arrays[2];
	plan.verify_prev_slot_indices = arrays[3];
	plan.verify_num_valid = on_device(&w, "num_valid", &valid, 4);
	plan.enable = on_device(&w, "enable", &enable, 4);
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
	args.check_tokens = vectors_bool(item, "check_verify_expected_token");
	args.launch_tag = vectors_int(item, "kernel_kind");
	args.ring = &device_ring;
	args.rules = KVC_RULES_SGLANG;
	cuda_world_push(&w);
	expect_ok(kvc_canary_verify(&args, NULL));
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
	/* Rows stand in any order, and of more than the ring holds any may be there. */
	const json_t *want = vectors_field(item, "want");
	int64_t written = vectors_int(want, "write_index"), shown;
	int64_t *rows = vectors_block(v, (size_t)ring.ring.capacity * 8, 8);
	int same = ring.write_index == written &&
	           ring.slot_runs == vectors_int(want, "slot_run_counter") &&
	           ring.kernel_runs == vectors_int(want, "kernel_run_counter");
	if (ring_bytes)
		cuda_must(cuda.to_host(rows, (cuda_pointer)(uintptr_t)device_ring.rows, ring_bytes),
		        "rows");
	shown = (int64_t)json_array_size(vectors_field(want, "ring"));
	if (same && written <= ring.ring.capacity) {
		int64_t start = vectors_int(item, "write_index");
		int64_t *expected = vectors_block(v, (size_t)shown * 8, 8);
		for (int64_t i = 0; i < shown; i++)
			memcpy(expected + 8 * i,
			        vectors_int64s(v,
			                json_array_get(vectors_field(want, "ring"), (size_t)i),
			                NULL),
			        64);
		int64_t *a = cuda_sorted_rows(expected, shown, 8),
		        *b = cuda_sorted_rows(rows, shown, 8);
		same = start < 0 || memcmp(a, b, (size_t)shown * 128) == 0;
		free(a);
		free(b);
	}
	if (json_array_size(list))
		same &= cuda_twin_differs(&w.twins[json_array_size(list)]) == -1; /* records */
	for (int i = 0; i < w.count; i++)
		same &= cuda_twin_trespassed(&w.twins[i]) == 0;
	cuda_world_free(&w);
	return same;
}

static void sglangs_verifies(void **state)
{
	struct vectors v;

	(void)state;
	if (!cuda_device_open())
		skip();
	vectors_open(&v, "verify.jsonl");
	while (vectors_next(&v))
		vectors_passed(&v,
		        strcmp(vectors_text(v.item, "class"), "normal") != 0 || vector_matches(&v));
	assert_true(vectors_close(&v));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(verify_equals_the_cpus),
		cmocka_unit_test(counts_out_of_range_are_clamped),
		cmocka_unit_test(a_full_ring_drops_and_polls),
		cmocka_unit_test(captured_verify_sees_new_contents),
		cmocka_unit_test(sglangs_verifies),
	};
	if (!cuda_device_open())
		printf("SKIP cuda: no GPU here\n");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
