/*
 * kvc_canary_check_plan() on the device: the same violations and counters as on the CPU, rows as a
 * set; slots outside the records, which the CPU refuses, become rows; the scratch is left zero.
 */
#include "cuda_tensor.h"
#include "seeded.h"

#define RING_ROWS 4096

enum { RECORDS, OWNERS, MEMORY, SCRATCH, MAPPING, RING, CONSUMED, COUNTERS, TENSORS };

struct scene {
	struct cuda_tensor tensors[TENSORS];
	kvc_group groups[2]; /* on the CPU, on the device */
	kvc_plan plans[2];
	kvc_ring rings[2];
	int use_mapping;
	int64_t slots, entries;
};

static void *data_of(const struct scene *s, int which, int on_device)
{
	const struct cuda_tensor *t = &s->tensors[which];

	return on_device ? t->device.data : cuda_tensor_data(t);
}

static void bind(struct scene *s, int on_device)
{
	const kvc_group group = KVC_GROUP_INIT;
	const kvc_ring ring = KVC_RING_INIT;
	kvc_device device = s->tensors[RECORDS].host.device;

	if (on_device)
		device = s->tensors[RECORDS].device.device;
	s->groups[on_device] = group;
	s->groups[on_device].records = data_of(s, RECORDS, on_device);
	s->groups[on_device].record_count = s->slots;
	s->groups[on_device].record_stride_bytes = 40;
	s->groups[on_device].owners = data_of(s, OWNERS, on_device);
	s->groups[on_device].device = device;
	s->rings[on_device] = ring;
	s->rings[on_device].rows = data_of(s, RING, on_device);
	s->rings[on_device].capacity = RING_ROWS;
	s->rings[on_device].consumed = data_of(s, CONSUMED, on_device);
	s->rings[on_device].counters = data_of(s, COUNTERS, on_device);
	s->rings[on_device].device = device;
	expect_ok(kvc_plan_bind(
	        &s->plans[on_device], data_of(s, MEMORY, on_device), device, s->entries, 1));
}

/* Few slots, positions, tokens and predecessors, so that many entries meet. */
static void fill_scene(struct scene *s, struct seeded *random, int64_t count)
{
	const kvc_plan *plan = &s->plans[0];
	char *records = data_of(s, RECORDS, 0);
	kvc_owner *owners = data_of(s, OWNERS, 0);
	int64_t *mapping = data_of(s, MAPPING, 0);

	for (int64_t i = 0; i < s->slots; i++) {
		int64_t kind = seeded_in(random, 0, 2);
		kvc_record record = { 100 + kind, kind, 1000 + (uint64_t)kind, (uint64_t)i };
		memcpy(records + i * 40, &record, sizeof(record));
		owners[i] = (kvc_owner){ seeded_in(random, -1, 5), (uint32_t)i, 33 };
	}
	for (int64_t i = 0; i < s->entries; i++) {
		plan->verify_slot_indices[i] = seeded_in(random, -1, s->slots - 1);
		plan->verify_expected_positions[i] = seeded_in(random, 1, 2);
		plan->verify_expected_tokens[i] = seeded_in(random, -1, 1);
		plan->verify_prev_slot_indices[i] = seeded_in(random, -3, s->slots - 1);
		plan->verify_request[i] = (int32_t)i;
	}
	for (int64_t i = 0; i < s->tensors[MAPPING].shape[0]; i++)
		mapping[i] = seeded_in(random, -1, s->slots - 1);
	*plan->verify_num_valid = (int32_t)count;
	*plan->enable = !seeded_one_in(random, 20);
}

static void upload(const struct scene *s)
{
	for (int i = 0; i < TENSORS; i++)
		cuda_twin_upload(&s->tensors[i].twin);
}

static void build(struct scene *s, struct seeded *random)
{
	static const int64_t sizes[] = { 1, 7, 100, 900 };

	memset(s, 0, sizeof(*s));
	s->slots = seeded_in(random, 1, 60);
	s->entries = sizes[seeded_in(random, 0, 3)];
	s->use_mapping = seeded_one_in(random, 2);
	cuda_tensor_vector(&s->tensors[RECORDS], "records", KVC_UINT8, 40 * s->slots);
	cuda_tensor_vector(&s->tensors[OWNERS], "owners", KVC_UINT8, 16 * s->slots);
	cuda_tensor_vector(&s->tensors[MEMORY], "plan", KVC_INT64,
	        (int64_t)(kvc_plan_bytes(s->entries, 1) / sizeof(int64_t)));
	cuda_tensor_make(&s->tensors[SCRATCH], "scratch", KVC_INT64, 2, s->slots, s->slots + 1, 0);
	cuda_tensor_vector(&s->tensors[MAPPING], "mapping", KVC_INT64, seeded_in(random, 1, 1500));
	cuda_tensor_vector(&s->tensors[RING], "ring", KVC_INT64, 16 * RING_ROWS);
	cuda_tensor_vector(&s->tensors[CONSUMED], "consumed", KVC_INT64, 1);
	cuda_tensor_vector(&s->tensors[COUNTERS], "counters", KVC_UINT8, sizeof(kvc_counters));
	bind(s, 0);
	bind(s, 1);
	s->groups[0].reserved_slot = s->groups[1].reserved_slot = seeded_in(random, -1, 3);
	fill_scene(s, random, seeded_in(random, 0, s->entries));
	upload(s);
}

static kvc_status run(struct scene *s, int on_device, void *stream)
{
	return kvc_canary_check_plan(&s->plans[on_device], &s->groups[on_device],
	        s->use_mapping ? cuda_tensor_of(&s->tensors[MAPPING], on_device) : NULL,
	        cuda_tensor_of(&s->tensors[SCRATCH], on_device), &s->rings[on_device], stream);
}

/* Everything but ring and counters is as it was; those are compared by what they say. */
static void compare_inputs(const struct scene *s)
{
	cuda_must(cuda.synchronize(), "run");
	for (int i = RECORDS; i <= MAPPING; i++)
		cuda_twin_check(&s->tensors[i].twin, s->tensors[i].name, "check_plan");
	for (int i = RING; i <= COUNTERS; i++)
		assert_int_equal(cuda_twin_trespassed(&s->tensors[i].twin), 0);
}

static kvc_counters device_counters(const struct scene *s)
{
	kvc_counters counters;

	cuda_must(cuda.to_host(&counters, s->tensors[COUNTERS].twin.base + CUDA_RED_ZONE,
	                  sizeof(counters)),
	        "counters");
	return counters;
}

static int compare_rows(const void *a, const void *b)
{
	return memcmp(a, b, sizeof(kvc_violation));
}

/* Take all violations out of a ring, in an order of their own. */
static int64_t drain(const kvc_ring *ring, kvc_violation *out)
{
	int64_t count;

	expect_ok(kvc_ring_poll(ring, out, RING_ROWS, &count, NULL));
	for (int64_t i = 0; i < count; i++)
		out[i].sequence = 0;
	qsort(out, (size_t)count, sizeof(*out), compare_rows);
	return count;
}

static void compare_findings(struct scene *s)
{
	static kvc_violation cpu[RING_ROWS], device[RING_ROWS];
	kvc_counters counters = device_counters(s);

	assert_memory_equal(&counters, data_of(s, COUNTERS, 0), sizeof(counters));
	int64_t count = drain(&s->rings[0], cpu);
	assert_int_equal(drain(&s->rings[1], device), count);
	assert_memory_equal(cpu, device, (size_t)count * sizeof(*cpu));
}

static void destroy(struct scene *s)
{
	for (int i = 0; i < TENSORS; i++)
		cuda_twin_end(&s->tensors[i].twin);
}

static void device_finds_what_the_cpu_finds(void **state)
{
	struct seeded random = seeded_start("cuda_check_plan");
	int64_t total = 0;

	(void)state;
	if (!cuda_device_open())
		skip();
	for (int i = 0; i < cuda_rounds(300); i++) {
		struct scene s;
		build(&s, &random);
		expect_ok(run(&s, 0, NULL));
		expect_ok(run(&s, 1, NULL));
		compare_inputs(&s);
		total += device_counters(&s).violations;
		compare_findings(&s);
		destroy(&s);
	}
	assert_true(total > 1000);
}

/* What the CPU refuses: the rest is judged as if those claims were not there. */
static void slots_outside_the_records_are_rows(void **state)
{
	struct seeded random = seeded_start("cuda_check_plan outside");

	(void)state;
	if (!cuda_device_open())
		skip();
	for (int i = 0; i < cuda_rounds(100); i++) {
		static kvc_violation found[RING_ROWS];
		struct scene s;
		int64_t count, ranges = 0, others = 0, entry, full;
		build(&s, &random);
		s.use_mapping = 1;
		*s.plans[0].verify_num_valid = (int32_t)s.entries + 5; /* clamped */
		*s.plans[0].enable = 1;
		entry = seeded_in(&random, 0, s.entries - 1);
		full = seeded_in(&random, 0, s.tensors[MAPPING].shape[0] - 1);
		/* On the CPU first, without them. */
		int64_t *mapping = data_of(&s, MAPPING, 0);
		s.plans[0].verify_slot_indices[entry] = -1;
		mapping[full] = -1;
		*s.plans[0].verify_num_valid = (int32_t)s.entries;
		expect_ok(run(&s, 0, NULL));
		int64_t sound = ((const kvc_counters *)data_of(&s, COUNTERS, 0))->violations;
		s.plans[0].verify_slot_indices[entry] =
		        seeded_one_in(&random, 2) ? s.slots + 9 : INT64_MAX;
		mapping[full] = s.slots + seeded_in(&random, 9, INT64_MAX / 2);
		*s.plans[0].verify_num_valid = (int32_t)s.entries + 5;
		for (int t = RECORDS; t <= MAPPING; t++)
			cuda_twin_upload(&s.tensors[t].twin);
		expect_ok(run(&s, 1, NULL));
		compare_inputs(&s);
		expect_ok(kvc_ring_poll(&s.rings[1], found, RING_ROWS, &count, NULL));
		for (int64_t j = 0; j < count; j++) {
			if (found[j].reasons != KVC_REASON_SLOT_RANGE) {
				others++;
				continue;
			}
			ranges++;
			if (found[j].expected_position == -1) {
				assert_int_equal(found[j].slot, full);
				assert_int_equal(found[j].expected_aux, mapping[full]);
			} else {
				assert_int_equal(
				        found[j].slot, s.plans[0].verify_slot_indices[entry]);
			}
		}
		assert_int_equal(others, sound);
		assert_int_equal(ranges, 1 + (full > 0));
		destroy(&s);
	}
}

static void a_ring_is_required(void **state)
{
	struct seeded random = seeded_start("cuda_check_plan ring");
	struct scene s;

	(void)state;
	if (!cuda_device_open())
		skip();
	build(&s, &random);
	expect_error(kvc_canary_check_plan(&s.plans[1], &s.groups[1], NULL,
	                     &s.tensors[SCRATCH].device, NULL, NULL),
	        KVC_E_INVALID_ARGUMENT, "null-argument", "ring is NULL", -1);
	expect_error(kvc_canary_check_plan(&s.plans[1], &s.groups[1], NULL,
	                     &s.tensors[SCRATCH].device, &s.rings[0], NULL),
	        KVC_E_DEVICE, "device-mismatch", NULL, -1);
	compare_inputs(&s);
	destroy(&s);
}

static void captured_graph_replays_with_new_contents(void **state)
{
	struct seeded random = seeded_start("cuda_check_plan graph");

	(void)state;
	if (!cuda_device_open())
		skip();
	for (int round = 0; round < 5; round++) {
		struct scene s;
		build(&s, &random);
		struct cuda_graph graph = cuda_graph_begin();
		expect_ok(run(&s, 1, graph.stream));
		cuda_graph_end(&graph);
		for (int replay = 0; replay < 4; replay++) {
			fill_scene(&s, &random, seeded_in(&random, 0, s.entries));
			for (int t = RECORDS; t <= MAPPING; t++)
				cuda_twin_upload(&s.tensors[t].twin);
			expect_ok(run(&s, 0, NULL));
			cuda_graph_replay(&graph);
			compare_inputs(&s);
			compare_findings(&s);
		}
		cuda_graph_free(&graph);
		destroy(&s);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(device_finds_what_the_cpu_finds),
		cmocka_unit_test(slots_outside_the_records_are_rows),
		cmocka_unit_test(a_ring_is_required),
		cmocka_unit_test(captured_graph_replays_with_new_contents),
	};
	if (!cuda_device_open())
		printf("SKIP cuda: no GPU here\n");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
