/*
 * Fingerprints, the finite scan and rings on the device against the CPU: random layouts and gather
 * tables, both fingerprints, every coverage, few sources and many.
 */
#include "cuda_canary.h"
#include "vectors_canary.h"

static kvc_tensor slots_of(
        struct cuda_world *w, struct seeded *random, int64_t count, int low, kvc_tensor tensors[2])
{
	int64_t *slots = cuda_world_vector(w, "slots", count, tensors);

	for (int64_t i = 0; i < count; i++)
		slots[i] = seeded_in(random, low, w->slot_count - 1);
	return tensors[0];
}

static void check_fingerprints(struct seeded *random, int64_t count, int sources)
{
	struct cuda_world w;
	kvc_tensor slots[2];
	void *device;
	char what[120];

	cuda_world_start(&w, random, seeded_in(random, 20, 90), sources);
	slots_of(&w, random, count, -2, slots);
	uint64_t *out = cuda_world_add(&w, "fingerprints", (size_t)count * sizeof(*out), &device);
	snprintf(what, sizeof(what), "count=%d sources=%d splitmix=%d coverage=%d", (int)count,
	        sources, w.group[0].fingerprint, w.group[0].coverage);
	cuda_world_push(&w);
	expect_ok(kvc_fingerprint(out, &w.group[0], &slots[0], NULL));
	expect_ok(kvc_fingerprint(device, &w.group[1], &slots[1], NULL));
	cuda_world_compare(&w, what);
	cuda_world_free(&w);
}

static void fingerprints_equal_the_cpus(void **state)
{
	static const int64_t counts[] = { 1, 2, 31, 33, 64, 65, 200, 1500 };
	struct seeded random = seeded_start("cuda_fingerprint");
	(void)state;
	if (!cuda_device_open())
		skip();
	for (int i = 0; i < cuda_rounds(400); i++)
		check_fingerprints(&random, cuda_pick(&random, counts, 8),
		        (int)seeded_in(&random, 0, seeded_one_in(&random, 4) ? 14 : 3));
}

static void finite_scans_equal_the_cpus(void **state)
{
	struct seeded random = seeded_start("cuda_fingerprint finite");
	(void)state;
	if (!cuda_device_open())
		skip();
	for (int i = 0; i < cuda_rounds(200); i++) {
		struct cuda_world w;
		kvc_tensor slots[2];
		void *device;
		cuda_world_start(&w, &random, seeded_in(&random, 20, 90),
		        (int)seeded_in(&random, 0, seeded_one_in(&random, 4) ? 14 : 3));
		slots_of(&w, &random, seeded_in(&random, 0, 200), -2, slots);
		kvc_finite_scan *out = cuda_world_add(&w, "scan", sizeof(*out), &device);
		cuda_world_push(&w);
		expect_ok(kvc_canary_scan_finite(out, &w.group[0], &slots[0], NULL));
		expect_ok(kvc_canary_scan_finite(device, &w.group[1], &slots[1], NULL));
		cuda_world_compare(&w, "finite scan");
		cuda_world_free(&w);
	}
}

/* Slots and gather offsets that only the device sees: nothing outside is read, the rest is right. */
static void foreign_slots_and_offsets_are_left_out(void **state)
{
	struct seeded random = seeded_start("cuda_fingerprint foreign");
	(void)state;
	if (!cuda_device_open())
		skip();
	for (int i = 0; i < 60; i++) {
		struct cuda_world w;
		kvc_tensor slots[2];
		void *device;
		cuda_world_start(&w, &random, 40, (int)seeded_in(&random, 1, 4));
		int64_t *values = cuda_world_vector(&w, "slots", 100, slots);
		uint64_t *out = cuda_world_add(&w, "fingerprints", 800, &device);
		for (int k = 0; k < 100; k++)
			values[k] =
			        seeded_one_in(&random, 3) ? INT64_MIN : seeded_in(&random, 0, 39);
		expect_ok(kvc_fingerprint(out, &w.group[0], &slots[0], NULL));
		for (int k = 0; k < 100; k++)
			if (values[k] < 0)
				values[k] = seeded_one_in(&random, 2)
				                    ? INT64_MAX - seeded_in(&random, 0, 9)
				                    : seeded_in(&random, 200, 1 << 20);
		cuda_world_push(&w);
		cuda_must(cuda.fill((cuda_pointer)(uintptr_t)device, 0x55, 800), "fill");
		expect_ok(kvc_fingerprint(device, &w.group[1], &slots[1], NULL));
		cuda_world_compare(&w, "foreign slots");
		for (int t = 0; t < w.count; t++)
			if (strcmp(w.names[t], "gather") == 0)
				cuda_must(cuda.fill(w.twins[t].base + CUDA_RED_ZONE, 0x7F,
				                  w.twins[t].bytes),
				        "wild offsets");
		expect_ok(kvc_fingerprint(device, &w.group[1], &slots[1], NULL));
		cuda_must(cuda.synchronize(), "wild offsets");
		cuda_world_free(&w);
	}
}

static void sglangs_fingerprints(void **state)
{
	struct vectors v;

	(void)state;
	if (!cuda_device_open())
		skip();
	vectors_open(&v, "hash.jsonl");
	while (vectors_next(&v)) {
		if (strcmp(vectors_text(v.item, "op"), "fingerprint") != 0) {
			vectors_passed(&v, 1); /* host arithmetic: test_vectors_hash */
			continue;
		}
		struct cuda_world w;
		memset(&w, 0, sizeof(w));
		const json_t *want = vectors_field(v.item, "want");
		const json_t *list = vectors_field(v.item, "sources");
		kvc_group group = vectors_group(&v);
		kvc_source *sources = vectors_block(&v, CUDA_SOURCES_MAX, sizeof(*sources));
		int same = 1;
		for (size_t s = 0; s < json_array_size(list); s++) {
			int64_t bytes;
			void *device;
			const uint8_t *data = vectors_bytes(
			        &v, vectors_field(json_array_get(list, s), "data"), &bytes);
			memcpy(cuda_world_add(&w, "source", (size_t)bytes, &device), data,
			        (size_t)bytes);
			sources[s] = group.sources[s];
			sources[s].base = device;
		}
		group.sources = sources;
		group.device.device_type = KVC_DEVICE_CUDA;
		for (size_t m = 0; m < json_array_size(want); m++) {
			const json_t *slots = vectors_field(json_array_get(want, m), "slots");
			int64_t count = (int64_t)json_array_size(slots);
			kvc_tensor tensors[2];
			void *device;
			int64_t *values = cuda_world_vector(&w, "slots", count, tensors);
			uint64_t *got = cuda_world_add(&w, "out", (size_t)count * 8, &device);
			for (int64_t i = 0; i < count; i++)
				values[i] = json_integer_value(
				        json_array_get(json_array_get(slots, (size_t)i), 0));
			group.coverage = (int32_t)vectors_int(json_array_get(want, m), "mode");
			cuda_world_push(&w);
			expect_ok(kvc_fingerprint(device, &group, &tensors[1], NULL));
			cuda_must(cuda.synchronize(), "vectors");
			cuda_must(cuda.to_host(
			                  got, (cuda_pointer)(uintptr_t)device, (size_t)count * 8),
			        "out");
			for (int64_t i = 0; i < count; i++)
				same &= got[i] == vectors_h64(json_array_get(
				                          json_array_get(slots, (size_t)i), 1));
		}
		vectors_passed(&v, same);
		cuda_world_free(&w);
	}
	assert_true(vectors_close(&v));
}

/* A fingerprint captured once sees the bytes of each replay. */
static void captured_fingerprints_see_new_bytes(void **state)
{
	struct seeded random = seeded_start("cuda_fingerprint graph");
	(void)state;
	if (!cuda_device_open())
		skip();
	for (int round = 0; round < 4; round++) {
		struct cuda_world w;
		kvc_tensor slots[2];
		void *device;
		cuda_world_start(&w, &random, 50, 2);
		slots_of(&w, &random, 70, -1, slots);
		uint64_t *out = cuda_world_add(&w, "fingerprints", 70 * sizeof(*out), &device);
		struct cuda_graph graph = cuda_graph_begin();
		expect_ok(kvc_fingerprint(device, &w.group[1], &slots[1], graph.stream));
		cuda_graph_end(&graph);
		for (int replay = 0; replay < 3; replay++) {
			for (int t = 0; t < w.count; t++)
				if (strcmp(w.names[t], "source") == 0)
					cuda_fill_bytes(&random, (uint8_t *)w.twins[t].host,
					        (int64_t)w.twins[t].bytes);
			cuda_world_push(&w);
			expect_ok(kvc_fingerprint(out, &w.group[0], &slots[0], NULL));
			cuda_graph_replay(&graph);
			cuda_world_compare(&w, "graph replay");
		}
		cuda_graph_free(&graph);
		cuda_world_free(&w);
	}
}

/* More sources than the parameters of a launch hold: refused, and nothing is written. */
static void too_many_sources_are_refused(void **state)
{
	static kvc_source many[385];
	struct seeded random = seeded_start("cuda_fingerprint many");
	struct cuda_world w;
	kvc_tensor slots[2];
	void *device;
	(void)state;
	if (!cuda_device_open())
		skip();
	cuda_world_start(&w, &random, 30, 1);
	slots_of(&w, &random, 20, 0, slots);
	uint64_t *out = cuda_world_add(&w, "fingerprints", 20 * sizeof(*out), &device);
	cuda_world_push(&w);
	for (int side = 0; side < 2; side++) {
		for (int i = 0; i < 385; i++) {
			many[i] = w.sources[side][0];
			many[i].id = (uint64_t)i;
		}
		w.group[side].sources = many;
		w.group[side].source_count = 384;
		expect_ok(kvc_fingerprint(
		        side ? device : (void *)out, &w.group[side], &slots[side], NULL));
	}
	w.group[1].source_count = 385;
	expect_error(kvc_fingerprint(device, &w.group[1], &slots[1], NULL), KVC_E_CONFIG,
	        "cuda-sources-max",
	        "the group has 385 sources, and on CUDA a group takes at most 384", -1);
	cuda_world_compare(&w, "384 sources");
	cuda_world_free(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fingerprints_equal_the_cpus),
		cmocka_unit_test(finite_scans_equal_the_cpus),
		cmocka_unit_test(foreign_slots_and_offsets_are_left_out),
		cmocka_unit_test(sglangs_fingerprints),
		cmocka_unit_test(captured_fingerprints_see_new_bytes),
		cmocka_unit_test(too_many_sources_are_refused),
	};
	if (!cuda_device_open())
		printf("SKIP cuda: no GPU here\n");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
