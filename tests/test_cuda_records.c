/* Voiding and copying records on the device against the CPU; pairs outside the records are left out. */
#include "cuda_tensor.h"
#include "seeded.h"

enum { RECORDS, OWNERS, FROM, TO, SCRATCH, TENSORS };

struct scene {
	struct cuda_tensor tensors[TENSORS];
	kvc_group groups[2];
	int64_t slots, count, stride;
};

static void bind(struct scene *s, int on_device, int with_owners)
{
	const kvc_group initial = KVC_GROUP_INIT;
	kvc_group *group = &s->groups[on_device];
	const kvc_tensor *records = cuda_tensor_of(&s->tensors[RECORDS], on_device);

	*group = initial;
	group->records = records->data;
	group->record_count = s->slots;
	group->record_stride_bytes = s->stride;
	if (with_owners)
		group->owners = cuda_tensor_of(&s->tensors[OWNERS], on_device)->data;
	group->device = records->device;
}

static void fill_scene(struct scene *s, struct seeded *random)
{
	int64_t *from = cuda_tensor_data(&s->tensors[FROM]);
	int64_t *to = cuda_tensor_data(&s->tensors[TO]);
	int64_t *order = malloc((size_t)s->slots * sizeof(*order) + 1);

	for (int i = RECORDS; i <= OWNERS; i++)
		for (size_t at = 0; at < s->tensors[i].twin.bytes; at++)
			s->tensors[i].twin.host[at] = (char)seeded_next(random);
	for (int64_t i = 0; i < s->slots; i++) {
		int64_t j = seeded_in(random, 0, i);
		order[i] = order[j];
		order[j] = i;
	}
	for (int64_t i = 0; i < s->count; i++) {
		from[i] = seeded_one_in(random, 6) ? -1 - seeded_in(random, 0, 9)
		                                   : seeded_in(random, 0, s->slots - 1);
		to[i] = seeded_one_in(random, 6) ? INT64_MIN : order[i];
	}
	free(order);
}

static void upload(const struct scene *s)
{
	for (int i = 0; i < TENSORS; i++)
		cuda_twin_upload(&s->tensors[i].twin);
}

static void build(struct scene *s, struct seeded *random)
{
	memset(s, 0, sizeof(*s));
	s->slots = seeded_in(random, 1, 2000);
	s->count = seeded_in(random, 0, s->slots);
	s->stride = 32 + 8 * seeded_in(random, 0, 2);
	cuda_tensor_vector(&s->tensors[RECORDS], "records", KVC_UINT8, s->slots * s->stride);
	cuda_tensor_vector(&s->tensors[OWNERS], "owners", KVC_UINT8, s->slots * 16);
	cuda_tensor_vector(&s->tensors[FROM], "from", KVC_INT64, s->count);
	cuda_tensor_vector(&s->tensors[TO], "to", KVC_INT64, s->count);
	cuda_tensor_make(&s->tensors[SCRATCH], "scratch", KVC_INT64, s->count, 6,
	        6 + seeded_in(random, 0, 1), 0);
	int with_owners = !seeded_one_in(random, 3);
	bind(s, 0, with_owners);
	bind(s, 1, with_owners);
	fill_scene(s, random);
	upload(s);
}

static kvc_status run(struct scene *s, int on_device, int is_copy, void *stream)
{
	const kvc_tensor *t[TENSORS];

	for (int i = 0; i < TENSORS; i++)
		t[i] = cuda_tensor_of(&s->tensors[i], on_device);
	if (is_copy)
		return kvc_canary_copy(&s->groups[on_device], t[FROM], t[TO], t[SCRATCH], stream);
	return kvc_canary_void(&s->groups[on_device], t[FROM], stream);
}

/* The scratch may hold anything. */
static void compare(const struct scene *s)
{
	cuda_must(cuda.synchronize(), "run");
	for (int i = RECORDS; i <= TO; i++)
		cuda_twin_check(&s->tensors[i].twin, s->tensors[i].name, "records");
	assert_int_equal(cuda_twin_trespassed(&s->tensors[SCRATCH].twin), 0);
}

static void destroy(struct scene *s)
{
	for (int i = 0; i < TENSORS; i++)
		cuda_twin_end(&s->tensors[i].twin);
}

static void device_equals_cpu(void **state)
{
	struct seeded random = seeded_start("cuda_records");

	(void)state;
	if (!cuda_device_open())
		skip();
	for (int i = 0; i < cuda_rounds(200); i++) {
		struct scene s;
		build(&s, &random);
		expect_ok(run(&s, 0, i % 2, NULL));
		expect_ok(run(&s, 1, i % 2, NULL));
		compare(&s);
		destroy(&s);
	}
}

/* Some slots of a list, on the device alone, lie outside; the CPU is told to skip them. */
static char *damage(struct scene *s, struct seeded *random, int which)
{
	int64_t *slots = cuda_tensor_data(&s->tensors[which]);
	char *given = malloc(s->tensors[which].twin.bytes + 1);

	for (int64_t i = 0; i < s->count; i++)
		if (seeded_one_in(random, 8))
			slots[i] = seeded_one_in(random, 2) ? s->slots : INT64_MAX;
	cuda_twin_upload(&s->tensors[which].twin);
	memcpy(given, slots, s->tensors[which].twin.bytes);
	for (int64_t i = 0; i < s->count; i++)
		slots[i] = slots[i] >= s->slots ? -1 : slots[i];
	return given;
}

static void slots_outside_the_records_are_left_out(void **state)
{
	struct seeded random = seeded_start("cuda_records outside");

	(void)state;
	if (!cuda_device_open())
		skip();
	for (int i = 0; i < cuda_rounds(100); i++) {
		struct scene s;
		char *given[2];
		build(&s, &random);
		for (int list = 0; list < 2; list++)
			given[list] = damage(&s, &random, FROM + list);
		expect_ok(run(&s, 0, i % 2, NULL));
		expect_ok(run(&s, 1, i % 2, NULL));
		for (int list = 0; list < 2; list++) {
			struct cuda_twin *twin = &s.tensors[FROM + list].twin;
			memcpy(twin->host, given[list], twin->bytes);
			free(given[list]);
		}
		compare(&s);
		destroy(&s);
	}
}

static void captured_graph_replays_with_new_contents(void **state)
{
	struct seeded random = seeded_start("cuda_records graph");

	(void)state;
	if (!cuda_device_open())
		skip();
	for (int round = 0; round < 4; round++) {
		struct scene s;
		build(&s, &random);
		struct cuda_graph graph = cuda_graph_begin();
		expect_ok(run(&s, 1, round % 2, graph.stream));
		cuda_graph_end(&graph);
		for (int replay = 0; replay < 3; replay++) {
			fill_scene(&s, &random);
			upload(&s);
			expect_ok(run(&s, 0, round % 2, NULL));
			if (s.count > 0)
				cuda_graph_replay(&graph);
			compare(&s);
		}
		cuda_graph_free(&graph);
		destroy(&s);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(device_equals_cpu),
		cmocka_unit_test(slots_outside_the_records_are_left_out),
		cmocka_unit_test(captured_graph_replays_with_new_contents),
	};
	if (!cuda_device_open())
		printf("SKIP cuda: no GPU here\n");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
