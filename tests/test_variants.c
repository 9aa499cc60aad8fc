/*
 * Goal: every CPU variant that this machine can run stores the bytes of the portable one, and the
 * choice among them is what the header says. Method: the table row by row; a row that cannot run
 * here prints SKIP and its name.
 *
 * test_variants --runs NAME: exit 0 if this machine runs that variant, else 77.
 * test_variants --list: the names of those that this machine runs; the others as SKIP on stderr.
 * test_variants PATTERN: only the tests whose name fits, for instance '*alignments*'.
 */
#include "cpu/dispatch.h"
#include "ops/rope_plain.h"
#include "rope_random.h"

static const struct kvc__cpu_variant *portable(void)
{
	return &kvc__cpu_variants[kvc__cpu_variant_count - 1];
}

/* ---- the choice ---- */

static void the_last_row_is_portable_and_runs_anywhere(void **state)
{
	(void)state;
	kvc_cpu_variant last = kvc_cpu_variant_at(kvc_cpu_variant_count() - 1);
	assert_string_equal(last.name, "portable");
	assert_true(last.supported);
	assert_null(kvc_cpu_variant_at(kvc_cpu_variant_count()).name);
}

static void exactly_one_supported_row_is_chosen(void **state)
{
	(void)state;
	size_t chosen;
	int count = 0;
	kvc__cpu_force(NULL);
	expect_ok(kvc_cpu_chosen(&chosen));
	for (size_t i = 0; i < kvc_cpu_variant_count(); i++) {
		kvc_cpu_variant variant = kvc_cpu_variant_at(i);
		count += variant.chosen;
		assert_true(variant.supported || !variant.chosen);
		if (!variant.supported)
			printf("SKIP %s\n", variant.name);
	}
	assert_int_equal(count, 1);
	assert_true(kvc_cpu_variant_at(chosen).chosen);
	expect_error(kvc_cpu_chosen(NULL), KVC_E_INVALID_ARGUMENT, "null-argument", NULL, -1);
}

/* A row that is not run must be one that cannot run: the compiler's own look at the processor is asked
 * as well, so that a fault in ours does not turn tests off. */
static void rows_are_left_out_only_where_the_processor_lacks_them(void **state)
{
	(void)state;
#if defined(__x86_64__)
	__builtin_cpu_init();
	int avx2 = __builtin_cpu_supports("avx2") != 0;
	int avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
	             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
	for (size_t i = 0; i < kvc_cpu_variant_count(); i++) {
		kvc_cpu_variant row = kvc_cpu_variant_at(i);
		if (strcmp(row.name, "avx2") == 0)
			assert_int_equal(row.supported, avx2);
		if (strcmp(row.name, "avx512") == 0)
			assert_int_equal(row.supported, avx512);
	}
#elif defined(__aarch64__)
	assert_string_equal(kvc_cpu_variant_at(0).name, "neon");
	assert_true(kvc_cpu_variant_at(0).supported);
#endif
}

static void every_operation_has_a_kernel_in_every_row(void **state)
{
	(void)state;
	size_t operation = 0;
	for (; kvc_cpu_operation_at(operation); operation++)
		for (size_t i = 0; i < kvc_cpu_variant_count(); i++)
			assert_non_null(kvc_cpu_kernel_at(i, operation));
	assert_true(operation > 0);
	assert_string_equal(kvc_cpu_operation_at(0), "rope_pool_fused");
	assert_string_equal(kvc_cpu_kernel_at(kvc_cpu_variant_count() - 1, 0), "portable");
	assert_null(kvc_cpu_kernel_at(0, operation));
	assert_null(kvc_cpu_kernel_at(kvc_cpu_variant_count(), 0));
}

static void the_environment_forces_a_variant_or_fails(void **state)
{
	(void)state;
	size_t chosen;
	const char *before = getenv("KVC_CPU");
	char kept[32] = "";
	if (before)
		snprintf(kept, sizeof kept, "%s", before);
	for (size_t i = 0; i < kvc_cpu_variant_count(); i++) {
		kvc_cpu_variant variant = kvc_cpu_variant_at(i);
		setenv("KVC_CPU", variant.name, 1);
		kvc__cpu_force(NULL);
		chosen = 99;
		if (variant.supported) {
			expect_ok(kvc_cpu_chosen(&chosen));
			assert_int_equal(chosen, i);
		} else {
			expect_error(kvc_cpu_chosen(&chosen), KVC_E_CONFIG,
			        "cpu-variant-unavailable", NULL, -1);
			assert_int_equal(chosen, 99);
		}
	}
	setenv("KVC_CPU", "abacus", 1);
	kvc__cpu_force(NULL);
	expect_error(kvc_cpu_chosen(&chosen), KVC_E_CONFIG, "cpu-variant-unavailable",
	        "KVC_CPU asks for the CPU variant 'abacus', which this machine cannot run", -1);
	assert_int_equal(kvc_cpu_variant_at(kvc_cpu_variant_count() - 1).chosen, 0);
	kvc_rope_pool_args args = KVC_ROPE_POOL_ARGS_INIT;
	expect_error(kvc_rope_pool_fused(&args, NULL), KVC_E_CONFIG, "cpu-variant-unavailable",
	        NULL, -1);
	setenv("KVC_CPU", "", 1); /* as if not set */
	expect_ok(kvc_cpu_chosen(&chosen));
	setenv("KVC_CPU", kept, 1);
	kvc__cpu_force(NULL);
}

/* ---- rope_pool_fused ---- */

/* What is in all buffers of a world. */
struct contents {
	char *bytes[BUFFER_MAX];
};

static struct contents contents_of(const struct world *w)
{
	struct contents c;
	memset(&c, 0, sizeof c);
	for (int i = 0; i < w->buffer_count; i++) {
		c.bytes[i] = malloc(w->buffers[i].bytes + 1);
		memcpy(c.bytes[i], w->buffers[i].data, w->buffers[i].bytes);
	}
	return c;
}

static void contents_free(struct contents *c)
{
	for (int i = 0; i < BUFFER_MAX; i++)
		free(c->bytes[i]);
}

static void first_difference(const struct world *w, const struct contents *want, const char *name)
{
	for (int b = 0; b < w->buffer_count; b++) {
		if (memcmp(w->buffers[b].data, want->bytes[b], w->buffers[b].bytes) == 0)
			continue;
		for (size_t i = 0; i < w->buffers[b].bytes; i++)
			if (w->buffers[b].data[i] != want->bytes[b][i])
				fail_msg("%s: buffer %d byte %zu: %02X, portable %02X", name, b, i,
				        (uint8_t)w->buffers[b].data[i], (uint8_t)want->bytes[b][i]);
	}
}

/* The same call by every variant, from the same memory, must leave the same memory behind: with
 * plain stores, and with stores past the caches. */
static void compare_variants(struct world *w)
{
	const int64_t usual = kvc__rope_stream_bytes;
	kvc__cpu_force(portable());
	kvc__rope_plain_allowed = 0; /* the others come in by the short way */
	expect_ok(world_call(w));
	kvc__rope_plain_allowed = 1;
	struct contents want = contents_of(w);
	for (size_t i = 0; i + 1 < 2 * kvc__cpu_variant_count; i++) {
		const struct kvc__cpu_variant *row = &kvc__cpu_variants[i / 2];
		if (row == portable() || !kvc__cpu_supported(row))
			continue;
		for (int b = 0; b < w->buffer_count; b++)
			memcpy(w->buffers[b].data, w->buffers[b].before, w->buffers[b].bytes);
		kvc__rope_stream_bytes = i % 2 ? 0 : INT64_MAX;
		kvc__cpu_force(row);
		expect_ok(kvc_rope_pool_fused(&w->args, NULL));
		first_difference(w, &want, row->name);
	}
	kvc__rope_stream_bytes = usual;
	kvc__cpu_force(NULL);
	contents_free(&want);
}

static const kvc_dtype all_types[] = { { KVC_CODE_FLOAT, 32, 1 }, { KVC_CODE_FLOAT, 16, 1 },
	{ KVC_CODE_BFLOAT, 16, 1 } };
static const kvc_dtype all_pools[] = { { 0, 0, 0 }, { KVC_CODE_FLOAT8_E4M3FN, 8, 1 },
	{ KVC_CODE_FLOAT8_E5M2, 8, 1 } }; /* first: as q */

/* Every view of the world in a buffer with room to shift it. */
static void shifted_views(struct world *w)
{
	struct view *views[] = { &w->q, &w->k, &w->v, &w->q_out, &w->k_out, &w->k_pool,
		&w->v_pool };
	for (int i = 0; i < 7; i++) {
		struct view old = *views[i];
		struct buffer *b = world_buffer(
		        w, old.shape[0] * old.shape[1] * old.shape[2] * width_of(old.tensor.dtype) +
		                   64);
		view_set(views[i], b, old.tensor.dtype, 0, old.shape[0], old.shape[1], old.shape[2],
		        old.strides[0], old.strides[1]);
		if (i < 3)
			view_fill(views[i], i);
	}
}

static void all_alignments_give_the_same_bytes(void **state)
{
	(void)state;
	for (int cell = 0; cell < 3 * 3 * 2; cell++) {
		struct world w;
		struct size size = { 3, 2, 2, 46, 46, 8 };
		kvc_dtype dtype = all_types[cell % 3];
		kvc_dtype pool = cell / 3 % 3 ? all_pools[cell / 3 % 3] : dtype;
		world_make(&w, size, dtype, pool, KVC_INT64);
		shifted_views(&w);
		world_rope(&w, cell % 2 ? 46 : 40, cell / 9);
		for (uint64_t at = 0; at < 64; at++) {
			w.q.tensor.byte_offset = w.k_out.tensor.byte_offset = at;
			w.k.tensor.byte_offset = w.v_pool.tensor.byte_offset = at * 7 % 64;
			w.v.tensor.byte_offset = w.q_out.tensor.byte_offset = at * 13 % 64;
			w.k_pool.tensor.byte_offset = at * 29 % 64;
			compare_variants(&w);
		}
		world_free(&w);
	}
}

/* Head dims with and without whole blocks, between guard pages on the one and the other side. */
static void all_head_dims_give_the_same_bytes(void **state)
{
	(void)state;
	static const int64_t dims[] = { 1, 2, 6, 30, 32, 34, 46, 64, 80, 96, 112, 128, 130, 192,
		256, 258, 512, 576, 4100 };
	for (int cell = 0; cell < 3 * 3 * 2 * 2; cell++) {
		for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
			struct world w;
			struct size size = { 3, 3, 2, dims[i], dims[i], 5 };
			kvc_dtype dtype = all_types[cell % 3];
			kvc_dtype pool = cell / 3 % 3 ? all_pools[cell / 3 % 3] : dtype;
			int64_t most = dims[i] < 512 ? dims[i] : 512;
			buffers_at_front = cell / 9 % 2;
			world_make(&w, size, dtype, pool, KVC_INT32);
			world_rope(&w, (int32_t)(most / 2 * 2), cell / 18);
			compare_variants(&w);
			int64_t part = most / 4 * 2;
			world_rope(&w, (int32_t)part, cell / 18);
			w.args.rotary_offset = dims[i] - part;
			w.args.q_rotary_offset = (dims[i] - part) / 2;
			w.args.k_out = NULL;
			compare_variants(&w);
			world_free(&w);
		}
	}
	buffers_at_front = 0;
}

/* Each of the 65536 values as first and as second element of a pair, with partners from all over. */
static void all_16_bit_values_give_the_same_bytes(void **state)
{
	(void)state;
	static const int64_t positions[] = { 0, 1, 2, 1000003 };
	for (int cell = 0; cell < 2 * 3 * 2; cell++) {
		struct world w;
		struct size size = { 4, 1, 512, 128, 128, 4 };
		kvc_dtype dtype = all_types[1 + cell % 2];
		kvc_dtype pool = cell / 2 % 3 ? all_pools[cell / 2 % 3] : dtype;
		world_make(&w, size, dtype, pool, KVC_INT64);
		world_rope(&w, 128, cell / 6);
		w.args.k_scale = w.args.v_scale = is_fp8(pool) ? 0.37f : 1.0f;
		for (int64_t t = 0; t < 4; t++) {
			set_index(&w.positions, t, positions[t]);
			for (int64_t i = 0; i < 65536; i++) {
				uint32_t bits = (uint32_t)(t % 2 ? (i * 40503 + t) % 65536 : i);
				set_bits(&w.k, t, i / 128, i % 128, bits);
				set_bits(&w.v, t, i / 128, i % 128, bits);
			}
		}
		compare_variants(&w);
		world_free(&w);
	}
}

/*
 * Float32 values to the narrow types. A table whose cosines are the values and whose sines are 0
 * turns (1, 0) into (value, ...), whatever the value. All 2^32 in the long tier, else one in 4099.
 */
static void all_float32_values_are_narrowed_alike(void **state)
{
	(void)state;
	enum { ROWS = 1024, HALF = 256 };
	const uint64_t step = getenv("KVC_TEST_LONG") ? 1 : 4099;
	float *table = calloc(ROWS * 2 * HALF, sizeof *table);
	int64_t shape[] = { ROWS, 2 * HALF };
	kvc_tensor tensor = kvc_tensor_make(table, KVC_FLOAT32, 2, shape);
	kvc_rope_options options = KVC_ROPE_OPTIONS_INIT;
	options.rotary_dim = 2 * HALF;
	options.cos_sin_cache = &tensor;
	for (int cell = 0; cell < 2 + 2; cell++) {
		struct world w;
		struct size size = { ROWS, 1, 1, 2 * HALF, 2 * HALF, ROWS };
		int quantised = cell >= 2; /* f32 to 8 bits: k as it is */
		kvc_dtype dtype = quantised ? KVC_FLOAT32 : all_types[1 + cell];
		world_make(&w, size, dtype, quantised ? all_pools[cell - 1] : dtype, KVC_INT64);
		w.args.q_out = NULL;
		for (int64_t i = 0; i < ROWS * 2 * HALF; i++)
			set_bits(&w.k, i / (2 * HALF), 0, i % (2 * HALF),
			        bits_from(dtype, i % (2 * HALF) < HALF ? 1.0f : 0.0f));
		if (quantised)
			world_rope(&w, 0, KVC_ROPE_NEOX);
		else
			expect_ok(kvc_rope_init(&w.rope, &options));
		for (uint64_t next = 0; next >> 32 == 0;) {
			for (int64_t i = 0; i < ROWS * HALF; i++, next += step) {
				uint32_t bits = (uint32_t)next;
				if (quantised) {
					set_bits(&w.k, i / HALF, 0, i % HALF, bits);
					set_bits(&w.k, i / HALF, 0, HALF + i % HALF, bits ^ 1);
				} else {
					memcpy(&table[i / HALF * 2 * HALF + i % HALF], &bits, 4);
				}
			}
			compare_variants(&w);
		}
		world_free(&w);
	}
	free(table);
}

static void random_calls_give_the_same_bytes(void **state)
{
	(void)state;
	struct seeded r = seeded_start("variants");
	int64_t rounds = getenv("KVC_TEST_LONG") ? 20000 : 500;
	for (int64_t i = 0; i < rounds; i++) {
		struct world w;
		random_world(&w, &r);
		kvc_stamp stamp = KVC_STAMP_INIT;
		stamp.record_count = w.size.slots;
		struct buffer *b = world_buffer(&w, w.size.slots * 32 + 8);
		stamp.records = (char *)(((uintptr_t)b->data + 7) / 8 * 8);
		stamp.coverage = (int32_t)seeded_in(&r, 0, 2);
		stamp.head_bytes = w.size.kv_dim * width_of(w.k_pool.tensor.dtype);
		w.args.stamp = seeded_one_in(&r, 2) ? &stamp : NULL;
		compare_variants(&w);
		world_free(&w);
	}
}

/* The float32 results could hide a fused operation; the doubles cannot. */
static void sines_are_equal_to_the_last_bit_of_the_double(void **state)
{
	(void)state;
	enum { COUNT = 4096 };
	static double angles[COUNT], c[COUNT], s[COUNT], want_c[COUNT], want_s[COUNT];
	struct seeded r = seeded_start("sines");
	int64_t rounds = getenv("KVC_TEST_LONG") ? 10000 : 200;
	for (int64_t round = 0; round < rounds; round++) {
		for (int i = 0; i < COUNT; i++) {
			double unit = (double)(seeded_next(&r) >> 11) * 0x1p-53;
			int64_t choice = seeded_in(&r, 0, 3);
			angles[i] = choice == 0   ? ldexp(unit, (int)seeded_in(&r, -30, 28))
			            : choice == 1 ? (double)seeded_in(&r, 0, 1 << 24) * unit
			            : choice == 2
			                    ? (double)seeded_in(&r, 0, 1 << 27) * 1.5707963267948966
			                    : (double)seeded_in(&r, 0, 1 << 24);
		}
		angles[0] = 0, angles[1] = 0x1p28;
		portable()->sincos(angles, want_c, want_s, COUNT);
		for (size_t v = 0; v + 1 < kvc__cpu_variant_count; v++) {
			if (!kvc__cpu_supported(&kvc__cpu_variants[v]))
				continue;
			kvc__cpu_variants[v].sincos(angles, c, s, COUNT);
			assert_memory_equal(c, want_c, sizeof c);
			assert_memory_equal(s, want_s, sizeof s);
		}
	}
}

/* For CTest: may the whole suite run under this variant here? */
static int runs(const char *name)
{
	for (size_t i = 0; i < kvc_cpu_variant_count(); i++)
		if (strcmp(kvc_cpu_variant_at(i).name, name) == 0 &&
		        kvc_cpu_variant_at(i).supported)
			return 0;
	printf("SKIP %s: this processor lacks it\n", name);
	return 77;
}

/* The last line of the output: how many of the rows were compared. */
static void print_count(void)
{
	size_t count = 0;
	for (size_t i = 0; i < kvc_cpu_variant_count(); i++)
		count += kvc_cpu_variant_at(i).supported != 0;
	printf("variants: %zu of %zu ran, %zu skipped\n", count, kvc_cpu_variant_count(),
	        kvc_cpu_variant_count() - count);
}

static int list(void)
{
	for (size_t i = 0; i < kvc_cpu_variant_count(); i++) {
		kvc_cpu_variant variant = kvc_cpu_variant_at(i);
		fprintf(variant.supported ? stdout : stderr, "%s%s\n",
		        variant.supported ? "" : "SKIP ", variant.name);
	}
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 2 && strcmp(argv[1], "--list") == 0)
		return list();
	if (argc == 3 && strcmp(argv[1], "--runs") == 0)
		return runs(argv[2]);
	if (argc == 2)
		cmocka_set_test_filter(argv[1]);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_last_row_is_portable_and_runs_anywhere),
		cmocka_unit_test(exactly_one_supported_row_is_chosen),
		cmocka_unit_test(rows_are_left_out_only_where_the_processor_lacks_them),
		cmocka_unit_test(every_operation_has_a_kernel_in_every_row),
		cmocka_unit_test(the_environment_forces_a_variant_or_fails),
		cmocka_unit_test(sines_are_equal_to_the_last_bit_of_the_double),
		cmocka_unit_test(all_alignments_give_the_same_bytes),
		cmocka_unit_test(all_head_dims_give_the_same_bytes),
		cmocka_unit_test(all_16_bit_values_give_the_same_bytes),
		cmocka_unit_test(all_float32_values_are_narrowed_alike),
		cmocka_unit_test(random_calls_give_the_same_bytes),
	};
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	print_count();
	return failed;
}
