/*
 * rope_pool_fused on the device against the same call on the CPU: every output byte equal, red zones
 * intact, for random shapes, types, strides and options, and for each path that the host picks by
 * rule. Rows that only the device can find wrong equal a CPU call in which they are skipped.
 */
#include "cuda_device.h"
#include "expect.h"
#include "seeded.h"

#include <math.h>

#define KINDS 9
enum { Q, K, V, Q_OUT, K_OUT, K_POOL, V_POOL, POSITIONS, SLOTS };

/* One call, twice: tensors over host memory and over their device twins. */
struct scene {
	struct cuda_twin twins[KINDS + 1]; /* the last one: records */
	kvc_tensor host[KINDS], device[KINDS];
	int64_t shape[KINDS][3], strides[KINDS][3];
	kvc_rope rope, device_rope;
	struct cuda_twin table;
	kvc_stamp host_stamp, device_stamp;
	kvc_rope_pool_args args; /* options only */
	int64_t tokens, slot_count;
	int stamped, in_place, without_v;
};

static kvc_tensor over(struct scene *s, int kind, void *data, kvc_dtype dtype, int ndim)
{
	kvc_tensor tensor = kvc_tensor_make(data, dtype, ndim, s->shape[kind]);
	tensor.strides = s->strides[kind];
	return tensor;
}

static uint16_t random_half(struct seeded *random, kvc_dtype dtype)
{
	uint16_t bits = (uint16_t)seeded_next(random);
	/* Mostly ordinary values, now and then any pattern: NaN, infinity, subnormal. */
	if (seeded_one_in(random, 50))
		return bits;
	return dtype.code == KVC_CODE_BFLOAT ? (uint16_t)((bits & 0x8FFF) | 0x3000)
	                                     : (uint16_t)((bits & 0xBFFF) | 0x2000);
}

static void fill_rows(struct seeded *random, char *data, size_t bytes, kvc_dtype dtype)
{
	for (size_t i = 0; i + dtype.bits / 8 <= bytes; i += dtype.bits / 8) {
		if (dtype.bits == 32) {
			float value = (float)seeded_in(random, -1000000, 1000000) * 1e-5f;
			memcpy(data + i, &value, 4);
		} else if (dtype.bits == 16) {
			uint16_t value = random_half(random, dtype);
			memcpy(data + i, &value, 2);
		} else {
			data[i] = (char)seeded_next(random);
		}
	}
}

/* A [rows, heads, dim] tensor with gaps of 'pad' elements after each row. */
static void add_rows(struct scene *s, struct seeded *random, int kind, kvc_dtype dtype,
        int64_t rows, int64_t heads, int64_t dim, int64_t pad)
{
	size_t bytes = (size_t)(rows * (heads * dim + pad)) * dtype.bits / 8;
	char *data = malloc(bytes + 1);

	s->shape[kind][0] = rows, s->shape[kind][1] = heads, s->shape[kind][2] = dim;
	s->strides[kind][0] = heads * dim + pad, s->strides[kind][1] = dim, s->strides[kind][2] = 1;
	fill_rows(random, data, bytes, dtype);
	s->twins[kind] = cuda_twin_make(data, bytes);
	s->host[kind] = over(s, kind, data, dtype, 3);
	s->device[kind] = over(s, kind, cuda_twin_device(&s->twins[kind]), dtype, 3);
	s->device[kind].device.device_type = KVC_DEVICE_CUDA;
}

static void add_indices(struct scene *s, int kind, const int64_t *values, int wide)
{
	size_t width = wide ? 8 : 4;
	char *data = malloc((size_t)s->tokens * width + 1);

	s->shape[kind][0] = s->tokens, s->strides[kind][0] = 1;
	for (int64_t i = 0; i < s->tokens; i++) {
		int32_t narrow = (int32_t)values[i];
		memcpy(data + (size_t)i * width, wide ? (const void *)&values[i] : &narrow, width);
	}
	s->twins[kind] = cuda_twin_make(data, (size_t)s->tokens * width);
	s->host[kind] = over(s, kind, data, wide ? KVC_INT64 : KVC_INT32, 1);
	s->device[kind] =
	        over(s, kind, cuda_twin_device(&s->twins[kind]), wide ? KVC_INT64 : KVC_INT32, 1);
	s->device[kind].device.device_type = KVC_DEVICE_CUDA;
}

static void add_stamp(struct scene *s, struct seeded *random, int coverage, int64_t head_bytes)
{
	size_t bytes = (size_t)s->slot_count * 40;
	char *records = calloc(1, bytes);
	const kvc_stamp initial = KVC_STAMP_INIT;

	fill_rows(random, records, bytes, KVC_UINT8);
	s->twins[KINDS] = cuda_twin_make(records, bytes);
	s->host_stamp = initial;
	s->host_stamp.records = records;
	s->host_stamp.record_stride_bytes = 40;
	s->host_stamp.record_count = s->slot_count;
	s->host_stamp.k_id = 6;
	s->host_stamp.v_id = 7;
	s->host_stamp.coverage = coverage;
	s->host_stamp.head_bytes = head_bytes;
	s->device_stamp = s->host_stamp;
	s->device_stamp.records = cuda_twin_device(&s->twins[KINDS]);
	s->stamped = 1;
}

/* A permutation of slots, so that no two tokens meet. */
static void random_slots(struct seeded *random, int64_t *slots, int64_t tokens, int64_t slot_count)
{
	int64_t *all = malloc((size_t)slot_count * sizeof(*all));
	for (int64_t i = 0; i < slot_count; i++)
		all[i] = i;
	for (int64_t i = 0; i < tokens; i++) {
		int64_t j = seeded_in(random, i, slot_count - 1), swap = all[i];
		all[i] = all[j], all[j] = swap;
		slots[i] = seeded_one_in(random, 20) ? -1 - seeded_in(random, 0, 5) : all[i];
	}
	free(all);
}

/* Any numbers do for a table: both sides read the same ones. */
#define TABLE_ROWS 4096
static void add_table(struct scene *s, struct seeded *random, kvc_rope_options *options)
{
	int64_t shape[2] = { TABLE_ROWS, options->rotary_dim };
	size_t bytes = (size_t)(TABLE_ROWS * options->rotary_dim) * sizeof(float);
	float *values = malloc(bytes + 1);
	kvc_tensor table = kvc_tensor_make(values, KVC_FLOAT32, 2, shape);

	for (size_t i = 0; i < bytes / sizeof(float); i++)
		values[i] = (float)seeded_in(random, -1000000, 1000000) * 1e-6f;
	s->table = cuda_twin_make((char *)values, bytes);
	options->cos_sin_cache = &table;
	expect_ok(kvc_rope_init(&s->rope, options));
	table.data = cuda_twin_device(&s->table);
	table.device.device_type = KVC_DEVICE_CUDA;
	expect_ok(kvc_rope_init(&s->device_rope, options));
}

struct shape {
	int64_t tokens, q_heads, kv_heads, dim, rotary_dim;
	kvc_dtype dtype, pool;
	int style, coverage, pad, in_place, without_v, q_offset, table;
};

static void build(struct scene *s, struct seeded *random, const struct shape *shape)
{
	const kvc_rope_pool_args initial = KVC_ROPE_POOL_ARGS_INIT;
	kvc_rope_options options = KVC_ROPE_OPTIONS_INIT;
	int64_t n = shape->tokens, hq = shape->q_heads, hkv = shape->kv_heads, d = shape->dim;
	int64_t *values = malloc((size_t)n * sizeof(*values) + 1);

	memset(s, 0, sizeof(*s));
	s->tokens = n;
	s->slot_count = n + 7;
	s->in_place = shape->in_place;
	s->without_v = shape->without_v;
	s->args = initial;
	add_rows(s, random, Q, shape->dtype, n, hq, d, shape->pad);
	add_rows(s, random, K, shape->dtype, n, hkv, d, shape->pad);
	add_rows(s, random, V, shape->dtype, n, hkv, d, 2 * shape->pad);
	add_rows(s, random, Q_OUT, shape->dtype, n, hq, d, shape->pad);
	add_rows(s, random, K_OUT, shape->dtype, n, hkv, d, 0);
	add_rows(s, random, K_POOL, shape->pool, s->slot_count, hkv, d, shape->pad);
	add_rows(s, random, V_POOL, shape->pool, s->slot_count, hkv, d, 0);
	for (int64_t i = 0; i < n; i++)
		values[i] = seeded_in(random, 0,
		        shape->table               ? TABLE_ROWS - 1
		        : seeded_one_in(random, 4) ? KVC_POSITION_MAX
		                                   : 9000);
	add_indices(s, POSITIONS, values, seeded_one_in(random, 2));
	random_slots(random, values, n, s->slot_count);
	add_indices(s, SLOTS, values, seeded_one_in(random, 2));
	free(values);
	if (shape->coverage)
		add_stamp(s, random, shape->coverage, d * shape->pool.bits / 8);
	options.rotary_dim = (int32_t)shape->rotary_dim;
	options.style = shape->style;
	if (shape->table) {
		add_table(s, random, &options);
	} else {
		expect_ok(kvc_rope_init(&s->rope, &options));
		s->device_rope = s->rope;
	}
	s->args.q_rotary_offset = s->args.rotary_offset = shape->q_offset;
	if (shape->pool.bits == 8)
		s->args.k_scale = 0.37f, s->args.v_scale = 1.9f;
}

static kvc_status run(struct scene *s, const kvc_tensor *t, const kvc_stamp *stamp, void *stream)
{
	kvc_rope_pool_args args = s->args;

	args.rope = t == s->host ? &s->rope : &s->device_rope;
	args.q = &t[Q], args.k = &t[K];
	args.v = s->without_v ? NULL : &t[V];
	args.positions = &t[POSITIONS], args.slots = &t[SLOTS];
	args.k_pool = &t[K_POOL];
	args.v_pool = s->without_v ? NULL : &t[V_POOL];
	args.q_out = s->in_place ? &t[Q] : &t[Q_OUT];
	args.k_out = s->in_place == 1 ? &t[K] : s->in_place == 2 ? NULL : &t[K_OUT];
	args.stamp = s->stamped ? stamp : NULL;
	return kvc_rope_pool_fused(&args, stream);
}

static void compare(struct scene *s, const char *what)
{
	static const char *names[] = { "q", "k", "v", "q_out", "k_out", "k_pool", "v_pool",
		"positions", "slots", "records" };

	cuda_must(cuda.synchronize(), what);
	for (int kind = 0; kind <= KINDS; kind++) {
		if (!s->twins[kind].base)
			continue;
		int64_t at = cuda_twin_differs(&s->twins[kind]);
		if (at >= 0)
			print_error("%s: %s differs from byte %lld of %zu\n", what, names[kind],
			        (long long)at, s->twins[kind].bytes);
		assert_int_equal(at, -1);
		assert_int_equal(cuda_twin_trespassed(&s->twins[kind]), 0);
	}
}

static void destroy(struct scene *s)
{
	free(s->table.host);
	cuda_twin_free(&s->table);
	for (int kind = 0; kind <= KINDS; kind++) {
		free(s->twins[kind].host);
		cuda_twin_free(&s->twins[kind]);
	}
}

static void check_shape(struct seeded *random, const struct shape *shape)
{
	struct scene s;
	char what[200];

	snprintf(what, sizeof(what),
	        "T=%d heads=%d,%d dim=%d rotary=%d bits=%d pool=%d:%d style=%d cover=%d pad=%d "
	        "place=%d v=%d table=%d",
	        (int)shape->tokens, (int)shape->q_heads, (int)shape->kv_heads, (int)shape->dim,
	        (int)shape->rotary_dim, shape->dtype.bits, shape->pool.code, shape->pool.bits,
	        shape->style, shape->coverage, shape->pad, shape->in_place, !shape->without_v,
	        shape->table);
	build(&s, random, shape);
	expect_ok(run(&s, s.host, &s.host_stamp, NULL));
	expect_ok(run(&s, s.device, &s.device_stamp, NULL));
	compare(&s, what);
	destroy(&s);
}

static kvc_dtype pick(struct seeded *random, const kvc_dtype *list, int count)
{
	return list[seeded_in(random, 0, count - 1)];
}

/* The paths that the host picks by rule, at their edges. */
static void device_equals_cpu_for_every_common_shape(void **state)
{
	static const int64_t heads[][2] = { { 32, 8 }, { 8, 1 }, { 64, 8 }, { 1, 1 }, { 7, 7 },
		{ 40, 11 }, { 3, 20 }, { 16, 2 }, { 0, 1 }, { 1, 0 }, { 0, 0 } };
	static const int64_t tokens[] = { 1, 2, 33, 384, 385, 2048, 2100 };
	struct seeded random = seeded_start("cuda_rope common");
	const kvc_dtype types[] = { KVC_BFLOAT16, KVC_FLOAT16, KVC_FLOAT32 };
	(void)state;
	if (!cuda_device_open())
		skip();
	for (size_t h = 0; h < sizeof(heads) / sizeof(*heads); h++)
		for (size_t t = 0; t < 7; t++)
			for (int coverage = 0; coverage <= 2; coverage++) {
				const kvc_dtype fp8[] = { KVC_FLOAT8_E4M3FN, KVC_FLOAT8_E5M2 };
				struct shape shape = { .tokens = tokens[t],
					.q_heads = heads[h][0],
					.kv_heads = heads[h][1],
					.dim = seeded_one_in(&random, 2) ? 64 : 128,
					.dtype = pick(&random, types, 3),
					.coverage = coverage };
				shape.rotary_dim = shape.dim;
				shape.table = seeded_one_in(&random, 2);
				shape.pool = seeded_one_in(&random, 3) ? pick(&random, fp8, 2)
				                                       : shape.dtype;
				shape.in_place = (int)seeded_in(&random, 0, 2);
				shape.pad = seeded_one_in(&random, 2) ? 64 : 0;
				shape.without_v = seeded_one_in(&random, 4);
				check_shape(&random, &shape);
			}
}

/* So many tokens that bytes are streamed, though a token has few heads. */
static void device_equals_cpu_for_long_calls_of_few_heads(void **state)
{
	static const int64_t heads[][2] = { { 8, 1 }, { 5, 2 }, { 1, 9 }, { 7, 5 } };
	struct seeded random = seeded_start("cuda_rope long");
	(void)state;
	if (!cuda_device_open())
		skip();
	for (int i = 0; i < 16; i++) {
		struct shape shape = { .tokens = i % 2 ? 7001 : 9000,
			.q_heads = heads[i / 4][0],
			.kv_heads = heads[i / 4][1],
			.dim = i % 4 < 2 ? 64 : 128,
			.rotary_dim = i % 4 < 2 ? 64 : 128,
			.dtype = seeded_one_in(&random, 2) ? KVC_BFLOAT16 : KVC_FLOAT16,
			.coverage = KVC_COVERAGE_ALL,
			.table = seeded_one_in(&random, 2),
			.in_place = (int)seeded_in(&random, 0, 2),
			.without_v = i % 8 == 5 };
		shape.pool = shape.dtype;
		check_shape(&random, &shape);
	}
}

static void device_equals_cpu_for_random_shapes(void **state)
{
	static const int64_t dims[] = { 64, 128, 256, 96, 80, 112, 46, 2, 192 };
	struct seeded random = seeded_start("cuda_rope random");
	const kvc_dtype types[] = { KVC_BFLOAT16, KVC_FLOAT16, KVC_FLOAT32 };
	const kvc_dtype fp8[] = { KVC_FLOAT8_E4M3FN, KVC_FLOAT8_E5M2 };
	(void)state;
	if (!cuda_device_open())
		skip();
	for (int i = 0; i < cuda_rounds(300); i++) {
		struct shape shape = { .tokens = seeded_in(&random, 1, 70),
			.q_heads = seeded_in(&random, 1, 9),
			.kv_heads = seeded_in(&random, 1, 5),
			.dim = dims[seeded_in(&random, 0, 8)],
			.dtype = pick(&random, types, 3) };
		shape.rotary_dim = seeded_one_in(&random, 2)
		                           ? shape.dim
		                           : 2 * seeded_in(&random, 0, shape.dim / 2);
		shape.q_offset = (int)seeded_in(&random, 0, shape.dim - shape.rotary_dim);
		shape.pool = seeded_one_in(&random, 3) ? pick(&random, fp8, 2) : shape.dtype;
		shape.style = (int)seeded_in(&random, 0, 1);
		shape.coverage = (int)seeded_in(&random, 0, 2);
		shape.pad = (int)seeded_in(&random, 0, 9);
		shape.in_place = (int)seeded_in(&random, 0, 2);
		shape.without_v = seeded_one_in(&random, 4);
		shape.table = seeded_one_in(&random, 3);
		check_shape(&random, &shape);
	}
}

/* Slots and positions out of range, duplicates, NaN: skipped row by row, and counted. */
static void offending_rows_are_skipped_and_reported(void **state)
{
	struct seeded random = seeded_start("cuda_rope offending");
	(void)state;
	if (!cuda_device_open())
		skip();
	for (int round = 0; round < 40; round++) {
		struct shape shape = { .tokens = 40,
			.q_heads = 4,
			.kv_heads = 2,
			.dim = round % 2 ? 128 : 80,
			.dtype = KVC_BFLOAT16,
			.pool = KVC_BFLOAT16 };
		struct scene s;
		kvc_report report, *on_device;
		struct cuda_twin twin, scratch;
		int32_t *marks;
		shape.rotary_dim = shape.dim;
		build(&s, &random, &shape);
		marks = calloc((size_t)s.slot_count, sizeof(*marks));
		scratch = cuda_twin_make(marks, (size_t)s.slot_count * sizeof(*marks));
		expect_ok(kvc_report_init(&report, KVC_HOST, NULL));
		twin = cuda_twin_make(&report, sizeof(report));
		on_device = cuda_twin_device(&twin);

		int64_t slots[40], positions[40], bad_slots = 0, bad_positions = 0, twice = 0;
		int64_t first_slot = -1, first_position = -1, first_twice = -1, skipped = 0;
		for (int i = 0; i < 40; i++)
			slots[i] = i, positions[i] = 3 * i;
		int64_t device_slots[40], device_positions[40];
		memcpy(device_slots, slots, sizeof(slots));
		memcpy(device_positions, positions, sizeof(positions));
		for (int i = 1; i < 40; i++) {
			switch (seeded_in(&random, 0, 8)) {
			case 0:
				device_slots[i] = s.slot_count + seeded_in(&random, 0, 1000);
				slots[i] = -1;
				first_slot = bad_slots++ ? first_slot : i;
				break;
			case 1:
				device_positions[i] = positions[i] =
				        seeded_one_in(&random, 2) ? -1
				                                  : (int64_t)KVC_POSITION_MAX + 1;
				slots[i] = -1;
				first_position = bad_positions++ ? first_position : i;
				break;
			case 2:
				device_slots[i] = 0; /* token 0 has it */
				slots[i] = -1;
				first_twice = twice++ ? first_twice : i;
				break;
			case 3:
				device_slots[i] = slots[i] = -5;
				skipped++;
				break;
			default:
				break;
			}
		}
		memcpy(s.twins[SLOTS].host, slots, 0);
		for (int kind = POSITIONS; kind <= SLOTS; kind++) {
			free(s.twins[kind].host);
			cuda_twin_free(&s.twins[kind]);
		}
		add_indices(&s, POSITIONS, positions, 1);
		add_indices(&s, SLOTS, slots, 1);
		expect_ok(run(&s, s.host, NULL, NULL));
		cuda_must(cuda.to_device(s.twins[SLOTS].base + CUDA_RED_ZONE, device_slots,
		                  sizeof(device_slots)),
		        "slots");
		int64_t scratch_shape[1] = { s.slot_count };
		kvc_tensor scratch_tensor =
		        kvc_tensor_make(cuda_twin_device(&scratch), KVC_INT32, 1, scratch_shape);
		scratch_tensor.device.device_type = KVC_DEVICE_CUDA;
		s.args.check_duplicates = 1;
		s.args.scratch = &scratch_tensor;
		s.args.report = on_device;
		expect_ok(kvc_report_init(on_device, kvc_device_make(KVC_DEVICE_CUDA, 0), NULL));
		expect_ok(run(&s, s.device, NULL, NULL));
		cuda_must(cuda.synchronize(), "run");
		cuda_must(
		        cuda.to_host(&report, twin.base + CUDA_RED_ZONE, sizeof(report)), "report");
		assert_int_equal(report.count[KVC_REPORT_SLOT_RANGE], bad_slots);
		assert_int_equal(report.first[KVC_REPORT_SLOT_RANGE], first_slot);
		assert_int_equal(report.count[KVC_REPORT_POSITION_RANGE], bad_positions);
		assert_int_equal(report.first[KVC_REPORT_POSITION_RANGE], first_position);
		assert_int_equal(report.count[KVC_REPORT_SLOT_DUPLICATE], twice);
		assert_int_equal(report.first[KVC_REPORT_SLOT_DUPLICATE], first_twice);
		assert_int_equal(report.rows_skipped, skipped);
		assert_int_equal(
		        report.rows_written, 40 - bad_slots - bad_positions - twice - skipped);
		assert_int_equal(cuda_twin_differs(&scratch), -1); /* left zero */
		memcpy(s.twins[SLOTS].host, device_slots, sizeof(device_slots));
		compare(&s, "offending rows");
		free(marks);
		cuda_twin_free(&scratch);
		cuda_twin_free(&twin);
		destroy(&s);
	}
}

/* Captured once, replayed with other contents in the same buffers. */
static void captured_graph_replays_with_new_contents(void **state)
{
	struct seeded random = seeded_start("cuda_rope graph");
	(void)state;
	if (!cuda_device_open())
		skip();
	for (int round = 0; round < 4; round++) {
		struct shape shape = { .tokens = round < 2 ? 5 : 900,
			.q_heads = 8,
			.kv_heads = 2,
			.dim = 128,
			.rotary_dim = 128,
			.dtype = KVC_BFLOAT16,
			.pool = KVC_BFLOAT16,
			.coverage = round % 2 ? 2 : 0 };
		struct scene s;
		build(&s, &random, &shape);
		struct cuda_graph graph = cuda_graph_begin();
		expect_ok(run(&s, s.device, &s.device_stamp, graph.stream));
		cuda_graph_end(&graph);
		for (int replay = 0; replay < 3; replay++) {
			for (int kind = Q; kind <= V; kind++) {
				fill_rows(&random, s.twins[kind].host, s.twins[kind].bytes,
				        shape.dtype);
				cuda_must(cuda.to_device(s.twins[kind].base + CUDA_RED_ZONE,
				                  s.twins[kind].host, s.twins[kind].bytes),
				        "new contents");
			}
			expect_ok(run(&s, s.host, &s.host_stamp, NULL));
			cuda_graph_replay(&graph);
			compare(&s, "graph replay");
		}
		cuda_graph_free(&graph);
		destroy(&s);
	}
}

/* What the host can see on the device too: scratch, host pointers, another device, a bad stream. */
static void host_refuses_what_it_can_see(void **state)
{
	struct seeded random = seeded_start("cuda_rope refusals");
	struct shape shape = { .tokens = 4,
		.q_heads = 2,
		.kv_heads = 1,
		.dim = 64,
		.rotary_dim = 64,
		.dtype = KVC_BFLOAT16,
		.pool = KVC_BFLOAT16 };
	static const int kinds[] = { POSITIONS, SLOTS };
	struct scene s;
	char message[200];
	int64_t host_slots[4] = { 0, 1, 2, 3 };
	void *saved;
	(void)state;
	if (!cuda_device_open())
		skip();
	build(&s, &random, &shape);
	s.args.check_duplicates = 1;
	expect_error(run(&s, s.device, NULL, NULL), KVC_E_CONFIG, "duplicate-scratch-needed",
	        "check_duplicates on CUDA needs scratch, int32 [11], and there is none", -1);
	s.args.check_duplicates = 0;
	for (int i = 0; i < 2; i++) {
		kvc_tensor *indices = &s.device[kinds[i]];
		indices->byte_offset = 2;
		snprintf(message, sizeof(message),
		        "%s starts at an address that is not a multiple of %d, the size of its "
		        "int%d elements",
		        i ? "slots" : "positions", indices->dtype.bits / 8, indices->dtype.bits);
		expect_error(run(&s, s.device, NULL, NULL), KVC_E_STRIDE, "tensor-misaligned",
		        message, -1);
		indices->byte_offset = 0;
	}
	saved = s.device[SLOTS].data;
	s.device[SLOTS].data = host_slots;
	expect_error(run(&s, s.device, NULL, NULL), KVC_E_DEVICE, "cuda-host-pointer",
	        "slots says CUDA memory, but its address is of ordinary host memory", -1);
	s.device[SLOTS].data = saved;
	for (int kind = 0; kind < KINDS; kind++)
		s.device[kind].device.device_id = 63;
	expect_error(run(&s, s.device, NULL, NULL), KVC_E_DEVICE, "cuda-context",
	        "q is on CUDA device 63, and the current context of this thread is on device 0",
	        -1);
	for (int kind = 0; kind < KINDS; kind++)
		s.device[kind].device.device_id = 0;
	expect_ok(run(&s, s.host, NULL, NULL));
	if (run(&s, s.device, NULL, NULL) != KVC_OK) /* for instance with cuda-call-failed */
		fail_msg("%s: %s", kvc_last_error()->slug, kvc_last_error()->message);
	compare(&s, "after refusals nothing but the last call has written");
	destroy(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(device_equals_cpu_for_every_common_shape),
		cmocka_unit_test(device_equals_cpu_for_long_calls_of_few_heads),
		cmocka_unit_test(device_equals_cpu_for_random_shapes),
		cmocka_unit_test(offending_rows_are_skipped_and_reported),
		cmocka_unit_test(captured_graph_replays_with_new_contents),
		cmocka_unit_test(host_refuses_what_it_can_see),
	};
	if (!cuda_device_open())
		printf("SKIP cuda: no GPU here\n");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
