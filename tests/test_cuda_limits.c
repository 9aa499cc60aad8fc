/*
 * Slots past 2^31 and 2^32 elements and bytes, and calls on two streams at once. The large pools live on
 * the device alone: the host has the rows in question, as slots of small ones.
 */
#include "cuda_tensor.h"
#include "seeded.h"

enum { HEADS = 8, DIM = 128, ROW = HEADS * DIM, TOKENS = 6 };

/* Elements of a row are 2^10: these slots lie on both sides of 2^31 and 2^32 elements and bytes. */
static const int64_t far_slots[TOKENS] = { 0, (1 << 20) - 1, 1 << 20, (1 << 21) - 1, 1 << 21,
	(1 << 22) + 3 };
#define FAR_ROWS ((INT64_C(1) << 22) + 4)
#define ROW_BYTES (ROW * INT64_C(2))

/* Device memory, or 0 where the card has not that much. */
static cuda_pointer far_pool(void)
{
	cuda_pointer pool = 0;

	return cuda.allocate(&pool, (size_t)(FAR_ROWS * ROW_BYTES)) == 0 ? pool : 0;
}

static kvc_tensor tensor3(void *data, int64_t *shape, int on_device)
{
	kvc_tensor t = kvc_tensor_make(data, KVC_BFLOAT16, 3, shape);

	if (on_device)
		t.device = kvc_device_make(KVC_DEVICE_CUDA, 0);
	return t;
}

/* q, k, v, positions, slots, and the rows of k and v that a call on the host stores. */
struct scene {
	struct cuda_tensor q, k, v, positions, slots;
	struct cuda_twin rope;
	char *rows[2];
};

static void build(struct scene *s, struct seeded *random)
{
	struct cuda_tensor *values[] = { &s->q, &s->k, &s->v };

	for (int i = 0; i < 3; i++) {
		cuda_tensor_vector(values[i], "values", KVC_BFLOAT16, TOKENS * ROW);
		uint16_t *at = cuda_tensor_data(values[i]);
		for (int j = 0; j < TOKENS * ROW; j++)
			at[j] = (uint16_t)(0x3F00 + seeded_in(random, 0, 255));
		cuda_twin_upload(&values[i]->twin);
	}
	cuda_tensor_vector(&s->positions, "positions", KVC_INT64, TOKENS);
	cuda_tensor_vector(&s->slots, "slots", KVC_INT64, TOKENS);
	for (int64_t i = 0; i < TOKENS; i++) {
		((int64_t *)cuda_tensor_data(&s->positions))[i] = seeded_in(random, 0, 1 << 20);
		((int64_t *)cuda_tensor_data(&s->slots))[i] = far_slots[i];
	}
	cuda_twin_upload(&s->positions.twin);
	cuda_twin_upload(&s->slots.twin);
	for (int i = 0; i < 2; i++)
		s->rows[i] = calloc(TOKENS, (size_t)ROW_BYTES);
}

static void destroy(struct scene *s)
{
	struct cuda_tensor *all[] = { &s->q, &s->k, &s->v, &s->positions, &s->slots };

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
		cuda_twin_end(&all[i]->twin);
	for (int i = 0; i < 2; i++)
		free(s->rows[i]);
}

/* On the host the slots are 0 .. TOKENS. */
static void run(struct scene *s, const kvc_rope *rope, void *k_pool, void *v_pool, int on_device)
{
	int64_t order[TOKENS] = { 0, 1, 2, 3, 4, 5 }, length[1] = { TOKENS };
	int64_t shape[3] = { TOKENS, HEADS, DIM };
	int64_t pool_shape[3] = { on_device ? FAR_ROWS : TOKENS, HEADS, DIM };
	struct cuda_tensor *from[] = { &s->q, &s->k, &s->v };
	kvc_rope_pool_args args = KVC_ROPE_POOL_ARGS_INIT;
	kvc_tensor values[3], pools[2], slots = *cuda_tensor_of(&s->slots, on_device);

	for (int i = 0; i < 3; i++)
		values[i] = tensor3(cuda_tensor_of(from[i], on_device)->data, shape, on_device);
	pools[0] = tensor3(k_pool, pool_shape, on_device);
	pools[1] = tensor3(v_pool, pool_shape, on_device);
	if (!on_device)
		slots = kvc_tensor_make(order, KVC_INT64, 1, length);
	args.q = args.q_out = &values[0];
	args.k = args.k_out = &values[1];
	args.v = &values[2];
	args.positions = cuda_tensor_of(&s->positions, on_device);
	args.slots = &slots;
	args.k_pool = &pools[0];
	args.v_pool = &pools[1];
	args.rope = rope;
	expect_ok(kvc_rope_pool_fused(&args, NULL));
}

static void expect_rows(const struct scene *s, const cuda_pointer *pools)
{
	char *row = malloc((size_t)ROW_BYTES);

	cuda_must(cuda.synchronize(), "run");
	for (int pool = 0; pool < 2; pool++)
		for (int64_t i = 0; i < TOKENS; i++) {
			cuda_must(cuda.to_host(row,
			                  pools[pool] + (cuda_pointer)(far_slots[i] * ROW_BYTES),
			                  (size_t)ROW_BYTES),
			        "row");
			assert_memory_equal(row, s->rows[pool] + i * ROW_BYTES, (size_t)ROW_BYTES);
		}
	free(row);
}

/* One source over a pool. */
static kvc_group group_over(kvc_source *source, void *base, int64_t rows, int on_device)
{
	kvc_group group = KVC_GROUP_INIT;

	*source = (kvc_source){ .base = base,
		.row_count = rows,
		.row_stride_bytes = ROW_BYTES,
		.page_size = 1,
		.slot_stride_bytes = ROW_BYTES,
		.head_count = HEADS,
		.head_bytes = DIM * 2,
		.head_stride_bytes = DIM * 2,
		.read_bytes = ROW_BYTES,
		.id = 3,
		.dtype = KVC_BFLOAT16 };
	group.sources = source;
	group.source_count = 1;
	group.coverage = KVC_COVERAGE_ALL;
	if (on_device)
		group.device = kvc_device_make(KVC_DEVICE_CUDA, 0);
	return group;
}

static void expect_fingerprints(const struct scene *s, cuda_pointer pool)
{
	int64_t order[TOKENS] = { 0, 1, 2, 3, 4, 5 }, length[1] = { TOKENS };
	struct cuda_tensor out;
	kvc_source source;
	kvc_tensor slots = kvc_tensor_make(order, KVC_INT64, 1, length);

	cuda_tensor_vector(&out, "fingerprints", KVC_INT64, TOKENS);
	kvc_group group = group_over(&source, s->rows[0], TOKENS, 0);
	expect_ok(kvc_fingerprint(cuda_tensor_data(&out), &group, &slots, NULL));
	group = group_over(&source, (void *)(uintptr_t)pool, FAR_ROWS, 1);
	expect_ok(kvc_fingerprint(out.device.data, &group, &s->slots.device, NULL));
	cuda_must(cuda.synchronize(), "fingerprints");
	cuda_twin_check(&out.twin, "fingerprints", "far slots");
	cuda_twin_end(&out.twin);
}

static void slots_past_2_to_the_32(void **state)
{
	struct seeded random = seeded_start("cuda_limits far");
	kvc_rope_options options = KVC_ROPE_OPTIONS_INIT;
	struct scene s;
	kvc_rope rope;

	(void)state;
	if (!cuda_device_open())
		skip();
	const cuda_pointer pools[2] = { far_pool(), far_pool() };
	if (!pools[0] || !pools[1]) {
		printf("SKIP cuda: less than 18 GB on this card\n");
		skip();
	}
	options.rotary_dim = DIM;
	expect_ok(kvc_rope_init(&rope, &options));
	build(&s, &random);
	run(&s, &rope, s.rows[0], s.rows[1], 0);
	run(&s, &rope, (void *)(uintptr_t)pools[0], (void *)(uintptr_t)pools[1], 1);
	expect_rows(&s, pools);
	cuda_twin_check(&s.q.twin, "q", "far slots");
	cuda_twin_check(&s.k.twin, "k", "far slots");
	expect_fingerprints(&s, pools[0]);
	destroy(&s);
	for (int i = 0; i < 2; i++)
		cuda_must(cuda.release(pools[i]), "release");
}

/* Nothing is shared between calls: what two streams do at once comes out as if alone. */
enum { ROUNDS = 40, SLOTS = 3000, COUNT = 2500 };

static void two_streams_at_once(void **state)
{
	struct seeded random = seeded_start("cuda_limits streams");
	struct cuda_tensor bytes[2], slots[2], out[2];
	kvc_source source[4];
	void *stream[2];

	(void)state;
	if (!cuda_device_open())
		skip();
	for (int i = 0; i < 2; i++) {
		cuda_must(cuda.stream_create(&stream[i], 1), "stream");
		cuda_tensor_vector(&bytes[i], "bytes", KVC_UINT8, SLOTS * ROW_BYTES);
		cuda_tensor_vector(&slots[i], "slots", KVC_INT64, COUNT);
		cuda_tensor_vector(&out[i], "fingerprints", KVC_INT64, COUNT);
		uint64_t *word = cuda_tensor_data(&bytes[i]);
		for (int64_t j = 0; j < SLOTS * ROW_BYTES / 8; j++)
			word[j] = seeded_next(&random);
		for (int64_t j = 0; j < COUNT; j++)
			((int64_t *)cuda_tensor_data(&slots[i]))[j] =
			        seeded_in(&random, -1, SLOTS - 1);
		cuda_twin_upload(&bytes[i].twin);
		cuda_twin_upload(&slots[i].twin);
		kvc_group host = group_over(&source[i], cuda_tensor_data(&bytes[i]), SLOTS, 0);
		host.fingerprint = i == 0 ? KVC_FINGERPRINT_XXH3 : KVC_FINGERPRINT_SPLITMIX;
		expect_ok(kvc_fingerprint(cuda_tensor_data(&out[i]), &host, &slots[i].host, NULL));
	}
	cuda_must(cuda.synchronize(), "contents");
	for (int round = 0; round < ROUNDS; round++)
		for (int i = 0; i < 2; i++) {
			kvc_group group =
			        group_over(&source[2 + i], bytes[i].device.data, SLOTS, 1);
			group.fingerprint =
			        i == 0 ? KVC_FINGERPRINT_XXH3 : KVC_FINGERPRINT_SPLITMIX;
			expect_ok(kvc_fingerprint(
			        out[i].device.data, &group, &slots[i].device, stream[i]));
		}
	for (int i = 0; i < 2; i++) {
		cuda_must(cuda.stream_synchronize(stream[i]), "stream");
		cuda_twin_check(&out[i].twin, "fingerprints", "two streams");
		cuda_twin_end(&bytes[i].twin);
		cuda_twin_end(&slots[i].twin);
		cuda_twin_end(&out[i].twin);
		cuda.stream_destroy(stream[i]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(slots_past_2_to_the_32),
		cmocka_unit_test(two_streams_at_once),
	};
	if (!cuda_device_open())
		printf("SKIP cuda: no GPU here\n");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
