/*
 * What the CUDA back end launches, seen by a driver that runs nothing (fake_cuda.c): grids, blocks and
 * clusters that a chip can have, which kernel a call gets, nothing in a call that a capture forbids.
 * No address is followed, so these need no memory and sizes may be anything.
 */
#include "expect.h"
#include "fake_cuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "cuda/cuda.h"

#define ANY ((void *)0x7F0000000000) /* somewhere on the device, aligned */

static struct fake_cuda *fake;
static const struct kvc__cuda_ops *cuda;

static int open_fake(void **state)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);

	(void)state;
	fake = library ? (struct fake_cuda *)dlsym(library, "fake_cuda") : NULL;
	return fake ? 0 : -1;
}

/* The chip, before a call. */
static void begin(int capability, unsigned placeable)
{
	fake->capability = capability;
	fake->placeable = placeable;
	fake->refused = NULL;
	fake->count = fake->waits = fake->questions = 0;
	fake->zeroed = 0;
	expect_ok(kvc__cuda_find(&cuda, kvc_device_make(KVC_DEVICE_CUDA, capability / 10), "test"));
}

/* After a call: so many kernels, and nothing that a capture forbids. */
static void expect_launches(int count)
{
	assert_int_equal(fake->count, count);
	assert_int_equal(fake->waits, 0);
}

/* ---- scatter ---- */

struct choice {
	int64_t requests, columns, tokens; /* of the call */
	int check_tokens;
	const char *name; /* what it gets: */
	unsigned grid, cluster;
};

static void expect_choice(const struct choice *c, int capability, unsigned placeable)
{
	const struct kvc__scatter job = { .flat = ANY,
		.offsets = ANY,
		.rows = ANY,
		.table = ANY,
		.request_count = c->requests,
		.flat_count = c->tokens,
		.row_count = c->requests,
		.column_count = c->columns,
		.row_stride = c->columns };
	const struct kvc__cuda_scatter call = { .job = &job, .check_tokens = c->check_tokens };

	begin(capability, placeable);
	expect_ok(cuda->scatter(&call, NULL));
	expect_launches(1);
	assert_string_equal(fake->launches[0].name, c->name);
	assert_int_equal(fake->launches[0].grid, c->grid);
	assert_int_equal(fake->launches[0].cluster, c->cluster);
	assert_int_equal(fake->launches[0].early, capability >= 90);
}

#define M (INT64_C(1) << 20)

static void scatter_picks_its_kernel(void **state)
{
	static const struct choice choices[] = {
		{ 1, 512, M, 1, "kvc_scatter_128_1", 1, 0 },
		{ 256, 131072, 300, 1, "kvc_scatter_128_1", 256, 0 },
		{ 64, 2048, M, 1, "kvc_scatter_128_4", 64, 0 },
		{ 64, 4096, M, 1, "kvc_scatter_256_4", 64, 0 },
		{ 64, 8192, M, 1, "kvc_scatter_256_4", 128, 2 },
		{ 600, 8192, 8 * M, 1, "kvc_scatter_256_8", 600, 0 },
		{ 1, 131072, M, 1, "kvc_scatter_256_8", 16, 16 },
		{ 128, 131072, 8 * M, 1, "kvc_scatter_256_8", 2048, 16 },
		{ 256, 131072, 8 * M, 1, "kvc_scatter_256_8", 2048, 8 },
		{ 2048, 131072, 64 * M, 1, "kvc_scatter_256_8", 2048, 0 },
		{ 128, 131072, 8 * M, 0, "kvc_scatter_256_8", 2048, 0 },
		{ INT32_MAX, 2048, M, 1, "kvc_scatter_128_4", INT32_MAX, 0 },
	};

	/* What the newest code of the build may use. */
	int knows_hopper = strstr(kvc_cuda_architectures(), "compute_8") == NULL;

	(void)state;
	for (size_t i = 0; i < sizeof(choices) / sizeof(choices[0]); i++) {
		struct choice c = choices[i];
		if (knows_hopper)
			expect_choice(&c, 90, 16);
		/* No team of sixteen where the chip cannot place one, or does not say. */
		if (c.cluster == 16)
			c.cluster = 8, c.grid /= 2;
		if (knows_hopper) {
			expect_choice(&c, 100, 8);
			expect_choice(&c, 90, 0);
		}
		/* No teams at all that talk to each other on chips before Hopper. */
		c.grid /= c.cluster ? c.cluster : 1;
		c.cluster = 0;
		expect_choice(&c, 80, 0);
	}
}

/* Calls that fill every multiprocessor once get one large block each, where the chip has room for it. */
static void scatter_takes_a_call_of_one_wave_at_once(void **state)
{
	static const struct choice choices[] = {
		{ 64, 131072, 8 * M, 1, "kvc_scatter_1024_16", 128, 2 },
		{ 64, 131072, 8 * M, 0, "kvc_scatter_1024_16", 128, 0 },
		{ 132, 65536, 8 * M, 1, "kvc_scatter_1024_16", 132, 0 },
		{ 133, 65536, 8 * M, 1, "kvc_scatter_256_8", 133 * 8, 8 },
		{ 64, 131076, 8 * M, 1, "kvc_scatter_256_8", 1024, 16 },
		{ 64, 131072, 6 * M, 1, "kvc_scatter_256_8", 1024, 16 },
	};

	(void)state;
	if (strstr(kvc_cuda_architectures(), "compute_8"))
		skip();
	for (size_t i = 0; i < sizeof(choices) / sizeof(choices[0]); i++)
		expect_choice(&choices[i], 90, 16);
	const struct choice before_hopper = { 132, 65536, 8 * M, 1, "kvc_scatter_256_8", 132, 0 };
	expect_choice(&before_hopper, 80, 0);
}

static void more_requests_than_a_grid_has_are_refused(void **state)
{
	const struct kvc__scatter job = { .request_count = (INT64_C(1) << 32) + 1,
		.flat_count = 1,
		.column_count = 1,
		.row_stride = 1 };
	const struct kvc__cuda_scatter call = { .job = &job };

	(void)state;
	begin(90, 16);
	expect_error(cuda->scatter(&call, NULL), KVC_E_CUDA, "cuda-call-failed", NULL, -1);
	expect_launches(0);
}

/* ---- rope ---- */

static kvc_rope rope;
static kvc_stamp stamp;

static struct kvc__rows rows_of(int64_t heads, int64_t dim)
{
	return (struct kvc__rows){ ANY, heads * dim * 2, dim * 2 };
}

static struct kvc__rope_job job_of(int64_t tokens, int64_t q_heads, int64_t kv_heads, int64_t dim)
{
	struct kvc__rope_job job = { .token_count = tokens,
		.q_heads = q_heads,
		.kv_heads = kv_heads,
		.q_dim = dim,
		.kv_dim = dim,
		.element = KVC__ELEMENT_BF16,
		.pool_element = KVC__ELEMENT_BF16,
		.q = rows_of(q_heads, dim),
		.k = rows_of(kv_heads, dim),
		.v = rows_of(kv_heads, dim),
		.positions = { ANY, 8, 1 },
		.slots = { ANY, 8, 1 },
		.reserved_slot = -1,
		.position_count = 1 << 20,
		.k_scale = 1,
		.v_scale = 1,
		.rope = &rope };

	rope.rotary_dim = (int32_t)dim;
	rope.cos_sin_row_stride = dim;
	job.q_out = job.q;
	job.k_out = job.k_pool = job.k;
	job.v_pool = job.v;
	return job;
}

static void expect_rope(const struct kvc__rope_job *job, int64_t slots, const char *prefix)
{
	const struct kvc__cuda_rope call = { .job = job, .slot_count = slots };

	fake->count = 0;
	expect_ok(cuda->rope(&call, NULL));
	expect_launches(1);
	if (strncmp(fake->launches[0].name, prefix, strlen(prefix)) != 0)
		fail_msg("%s, expected %s", fake->launches[0].name, prefix);
}

/* In every form: stamped, with a table, with V, with outputs. */
static void expect_ropes(int64_t tokens, int64_t q_heads, int64_t kv_heads, int64_t dim)
{
	struct kvc__rope_job job = job_of(tokens, q_heads, kv_heads, dim);

	for (int variant = 0; variant < 16; variant++) {
		int stamps = variant & 1;
		rope.cos_sin = variant & 2 ? ANY : NULL;
		job.stamp = stamps ? &stamp : NULL;
		job.v.data = job.v_pool.data = variant & 4 ? ANY : NULL;
		job.q_out.data = job.k_out.data = variant & 8 ? ANY : NULL;
		/* XXH3 of short rows is another one. */
		expect_rope(&job, M,
		        !stamps                     ? "kvc_rope_bf16_"
		        : kv_heads * dim * 2 <= 240 ? "kvc_general_rope"
		                                    : "kvc_rope_stamp_bf16_");
	}
}

static void every_rope_fits_a_block_and_a_grid(void **state)
{
	static const int64_t tokens[] = { 1, 3, 1023, 1025, 16384, 200000 };

	(void)state;
	begin(90, 16);
	stamp.records = ANY;
	stamp.record_stride_bytes = 32;
	stamp.coverage = KVC_COVERAGE_ALL;
	for (int64_t dim = 64; dim <= 128; dim *= 2)
		for (int64_t kv_heads = 1; kv_heads < 60; kv_heads++)
			for (int64_t q_heads = 1; q_heads + 2 * kv_heads <= 120; q_heads++)
				for (size_t i = 0; i < sizeof(tokens) / sizeof(tokens[0]); i++)
					expect_ropes(tokens[i], q_heads, kv_heads, dim);
}

/* The fast kernels compare 32 bits: what does not fit must not reach them. */
static void what_32_bits_do_not_hold_is_for_the_general_kernel(void **state)
{
	struct kvc__rope_job job = job_of(100, 8, 2, 128);

	(void)state;
	begin(90, 16);
	rope.cos_sin = ANY;
	job.reserved_slot = INT64_MIN; /* any negative one is none */
	expect_rope(&job, INT32_MAX, "kvc_rope_bf16_128_t");
	job.reserved_slot = INT32_MAX;
	expect_rope(&job, INT32_MAX, "kvc_rope_bf16_128_t");
	job.reserved_slot = (INT64_C(1) << 32) + 5;
	expect_rope(&job, INT32_MAX, "kvc_general_rope");
	job.reserved_slot = -1;
	expect_rope(&job, INT64_C(1) << 31, "kvc_general_rope");
	job.position_count = INT64_C(1) << 31;
	expect_rope(&job, 100, "kvc_general_rope");
	job.position_count = INT32_MAX;
	job.token_count = INT32_MAX;
	expect_rope(&job, 100, "kvc_general_rope");
}

/* Marks of a call that does not get to its end would be taken for the next one's. */
static void a_failed_rope_leaves_the_scratch_zero(void **state)
{
	const struct kvc__rope_job job = job_of(100, 8, 2, 128);
	const struct kvc__cuda_rope call = {
		.job = &job, .slot_count = 100, .duplicate_scratch = ANY, .report = ANY
	};

	(void)state;
	rope.cos_sin = ANY;
	begin(90, 16);
	expect_ok(cuda->rope(&call, NULL));
	expect_launches(4);
	assert_int_equal(fake->zeroed, 0);
	for (int i = 0; i < 3; i++) {
		static const char *refused[] = { "kvc_rope_bf16_128_t", "kvc_general_report",
			"kvc_general_unclaim" };
		begin(90, 16);
		fake->refused = refused[i];
		expect_error(cuda->rope(&call, NULL), KVC_E_CUDA, "cuda-call-failed", NULL, -1);
		expect_launches(1 + i);
		assert_int_equal(fake->zeroed, 100 * sizeof(int32_t));
	}
}

/* ---- what marks have no room for ---- */

/* Tensors of different numbers lie far from each other. */
static kvc_tensor vector_of(int number, kvc_dtype dtype, int64_t *count)
{
	kvc_tensor tensor = kvc_tensor_make((char *)ANY + ((int64_t)number << 40), dtype, 1, count);

	tensor.device = kvc_device_make(KVC_DEVICE_CUDA, 9);
	return tensor;
}

static void ropes_of_too_many_tokens_for_their_marks_are_refused(void **state)
{
	int64_t count[3] = { INT64_C(1) << 31, 1, 64 }, pool_count[3] = { 100, 1, 64 };
	kvc_tensor rows[3], pools[2], indices = vector_of(5, KVC_INT64, count);
	kvc_tensor marks = vector_of(6, KVC_INT32, pool_count);
	kvc_rope_pool_args args = KVC_ROPE_POOL_ARGS_INIT;
	kvc_rope_options options = KVC_ROPE_OPTIONS_INIT;
	kvc_rope computed;

	(void)state;
	options.rotary_dim = 64;
	expect_ok(kvc_rope_init(&computed, &options));
	for (int i = 0; i < 3; i++) {
		rows[i] = vector_of(i, KVC_BFLOAT16, count);
		pools[i % 2] = vector_of(3 + i % 2, KVC_BFLOAT16, pool_count);
		rows[i].ndim = pools[i % 2].ndim = 3;
	}
	args.q = args.q_out = &rows[0];
	args.k = args.k_out = &rows[1];
	args.v = &rows[2];
	args.positions = args.slots = &indices;
	args.k_pool = &pools[0];
	args.v_pool = &pools[1];
	args.rope = &computed;
	args.scratch = &marks;
	args.check_duplicates = 1;
	begin(90, 16);
	expect_error(kvc_rope_pool_fused(&args, NULL), KVC_E_LENGTH, "cuda-tokens-max", NULL, -1);
	expect_launches(0);
	count[0]--;
	expect_ok(kvc_rope_pool_fused(&args, NULL));
}

static void chips_are_asked_once(void **state)
{
	const struct kvc__rope_job job = job_of(100, 8, 2, 128);
	const struct kvc__cuda_rope call = { .job = &job, .slot_count = 100 };

	(void)state;
	rope.cos_sin = ANY;
	for (int chip = 80; chip <= 100; chip += 10) {
		begin(chip, 16);
		expect_ok(cuda->rope(&call, NULL));
		begin(chip, 16);
		expect_ok(cuda->rope(&call, NULL));
		assert_int_equal(fake->questions, 0);
	}
}

/* ---- the canary ---- */

static void group_of(kvc_group *group, kvc_source *sources, int64_t count, int64_t bytes)
{
	*group = (kvc_group)KVC_GROUP_INIT;
	for (int64_t i = 0; i < count; i++)
		sources[i] = (kvc_source){ .base = ANY,
			.row_count = INT64_C(1) << 33,
			.row_stride_bytes = bytes,
			.page_size = 1,
			.head_count = 1,
			.head_bytes = bytes,
			.head_stride_bytes = bytes,
			.read_bytes = bytes,
			.id = (uint64_t)i,
			.dtype = KVC_BFLOAT16 };
	group->records = ANY;
	group->record_count = INT64_C(1) << 33;
	group->sources = sources;
	group->source_count = count;
}

/* Everything that takes a group, for so many slots and requests. */
static void expect_group_calls(const kvc_group *group, int64_t slots, int64_t requests)
{
	struct kvc__verify verify = { .group = *group, .slots = ANY, .check_bytes = 1 };
	struct kvc__write write = { .group = *group, .token_count = slots, .slots = ANY };
	kvc_plan out = { .verify_capacity = slots, .write_req_capacity = requests };
	struct kvc__check_plan check = { .group = *group, .mapping = ANY, .full_count = slots };
	struct kvc__plan plan = { .request_count = requests, .out = &out };
	const struct kvc__cuda_verify verify_call = { .job = &verify, .capacity = slots };
	const struct kvc__cuda_write write_call = { .job = &write, .request_capacity = requests };
	const struct kvc__cuda_plan plan_call = { .job = &plan, .rotation = ANY };
	const struct kvc__cuda_check_plan check_call = { .job = &check, .plan = &out };
	const struct kvc__cuda_records_call copy = {
		.group = group, .count = slots, .from = ANY, .to = ANY, .scratch = ANY
	};

	verify.batch.count = requests;
	verify.valid_prefix = ANY;
	expect_ok(cuda->verify(&verify_call, NULL));
	expect_ok(cuda->write(&write_call, NULL));
	write.scratch = ANY;
	expect_ok(cuda->write(&write_call, NULL));
	expect_ok(cuda->plan(&plan_call, NULL));
	expect_ok(cuda->check_plan(&check_call, NULL));
	expect_ok(cuda->fingerprint(ANY, group, ANY, slots, NULL));
	expect_ok(cuda->scan_finite(ANY, group, ANY, slots, NULL));
	if (slots > 0)
		expect_ok(cuda->records(&copy, NULL));
	assert_int_equal(fake->waits, 0);
}

static void canary_calls_of_every_size_launch(void **state)
{
	static const int64_t sizes[] = { 0, 1, 1024, 1025, 100000, INT32_MAX };
	static const int64_t counts[] = { 0, 1, 8, 9, 384 };
	static const int64_t bytes[] = { 8, 16, 200, 1000, 2048 };
	static const int chips[] = { 80, 90, 100 };
	static kvc_source sources[384];
	kvc_group group;

	(void)state;
	for (int i = 0; i < 6 * 6 * 5 * 5 * 3 * 2; i++) {
		int splitmix = i % 2, chip = chips[i / 2 % 3], size = i / 6 / 25;
		begin(chip, 16);
		group_of(&group, sources, counts[i / 6 % 5], bytes[i / 30 % 5]);
		group.fingerprint = splitmix ? KVC_FINGERPRINT_SPLITMIX : KVC_FINGERPRINT_XXH3;
		expect_group_calls(&group, sizes[size % 6], sizes[size / 6]);
	}
}

/* As for rope: each launch of a write or of a check of a plan fails in turn, as far as there is one. */
static void failed_canary_calls_leave_the_scratch_zero(void **state)
{
	static const char *of_write[] = { "kvc_write_mark", "kvc_write_chain", "kvc_write_settle",
		"kvc_fingerprint_plain" };
	static const char *of_check[] = { "kvc_check_plan_mark", "kvc_check_plan_judge",
		"kvc_check_plan_wipe" };
	static kvc_source sources[1];
	enum { RECORDS = 5000 };
	kvc_group group;

	(void)state;
	begin(90, 16);
	group_of(&group, sources, 1, 2048);
	group.record_count = RECORDS;
	struct kvc__write write = {
		.group = group, .token_count = 2000, .slots = ANY, .scratch = ANY
	};
	kvc_plan out = { .verify_capacity = 2000 };
	struct kvc__check_plan check = {
		.group = group, .full_count = 10, .scratch = { ANY, ANY }
	};
	const struct kvc__cuda_write write_call = { .job = &write, .request_capacity = 9 };
	const struct kvc__cuda_check_plan check_call = { .job = &check, .plan = &out };
	expect_ok(cuda->write(&write_call, NULL));
	expect_ok(cuda->check_plan(&check_call, NULL));
	expect_launches(7);
	assert_int_equal(fake->zeroed, 0);
	for (int i = 0; i < 4; i++) {
		begin(90, 16);
		fake->refused = of_write[i];
		expect_error(
		        cuda->write(&write_call, NULL), KVC_E_CUDA, "cuda-call-failed", NULL, -1);
		expect_launches(i);
		assert_int_equal(fake->zeroed, RECORDS * sizeof(int64_t));
	}
	for (int i = 0; i < 6; i++) {
		begin(90, 16);
		check.mapping = i < 3 ? NULL : ANY;
		fake->refused = of_check[i % 3];
		expect_error(cuda->check_plan(&check_call, NULL), KVC_E_CUDA, "cuda-call-failed",
		        NULL, -1);
		expect_launches(i % 3);
		assert_int_equal(fake->zeroed, 2 * RECORDS * sizeof(int64_t));
	}
}

static void writes_of_too_many_tokens_for_their_marks_are_refused(void **state)
{
	int64_t count[1] = { INT64_C(1) << 31 };
	static kvc_source sources[1];
	kvc_tensor tensor = vector_of(0, KVC_INT64, count);
	kvc_write_args args = KVC_WRITE_ARGS_INIT;
	kvc_plan plan = { .struct_bytes = sizeof(plan),
		.device = tensor.device,
		.write_req_capacity = 4,
		.write_offsets = ANY,
		.write_seed_slot_indices = ANY,
		.write_num_valid_reqs = ANY };
	kvc_group group;

	(void)state;
	group_of(&group, sources, 1, 2048);
	group.device = tensor.device;
	group.record_stride_bytes = sizeof(kvc_record);
	args.group = &group;
	args.plan = &plan;
	args.tokens = args.positions = args.slots = &tensor;
	begin(90, 16);
	expect_error(kvc_canary_write(&args, NULL), KVC_E_LENGTH, "cuda-tokens-max", NULL, -1);
	expect_launches(0);
	count[0]--;
	expect_ok(kvc_canary_write(&args, NULL));
}

static void plan_writes_large_pieces_where_blocks_have_several(void **state)
{
	static const struct {
		int64_t entries;
		const char *name;
		unsigned grid; /* of the half about entries */
	} choices[] = {
		{ 1024, "kvc_plan_entries", 1 },
		{ 64 * 2048, "kvc_plan_entries", 128 },
		{ 264 * 1024, "kvc_plan_entries", 264 },
		{ 264 * 1024 + 1, "kvc_plan_many", 133 },
		{ 256 * 2048, "kvc_plan_many", 256 },
		{ 1024 * 2048, "kvc_plan_many", 264 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(choices) / sizeof(choices[0]); i++) {
		kvc_plan out = { .verify_capacity = choices[i].entries };
		struct kvc__plan job = { .request_count = 64, .out = &out };
		const struct kvc__cuda_plan call = { .job = &job };
		begin(90, 16);
		expect_ok(cuda->plan(&call, NULL));
		expect_launches(1);
		assert_string_equal(fake->launches[0].name, choices[i].name);
		assert_int_equal(fake->launches[0].grid,
		        choices[i].grid + (choices[i].grid > 1)); /* one writes the other half */
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(scatter_picks_its_kernel),
		cmocka_unit_test(scatter_takes_a_call_of_one_wave_at_once),
		cmocka_unit_test(more_requests_than_a_grid_has_are_refused),
		cmocka_unit_test(every_rope_fits_a_block_and_a_grid),
		cmocka_unit_test(what_32_bits_do_not_hold_is_for_the_general_kernel),
		cmocka_unit_test(a_failed_rope_leaves_the_scratch_zero),
		cmocka_unit_test(ropes_of_too_many_tokens_for_their_marks_are_refused),
		cmocka_unit_test(chips_are_asked_once),
		cmocka_unit_test(canary_calls_of_every_size_launch),
		cmocka_unit_test(failed_canary_calls_leave_the_scratch_zero),
		cmocka_unit_test(plan_writes_large_pieces_where_blocks_have_several),
		cmocka_unit_test(writes_of_too_many_tokens_for_their_marks_are_refused),
	};
	return cmocka_run_group_tests(tests, open_fake, NULL);
}
