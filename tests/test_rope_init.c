/*
 * Goal: kvc_rope_init turns a model's options into the frequencies that the model's own code uses, and
 * refuses what makes none. Method: the formulas of transformers' modeling_rope_utils, written over
 * wavelengths and dimensions in long double as there, for published configurations; then one change
 * at a time.
 */
#include "expect.h"
#include "kvcanary.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define PI_L 3.14159265358979323846264338327950288L

static kvc_rope_options options_for(int32_t rotary_dim, double base)
{
	kvc_rope_options options = KVC_ROPE_OPTIONS_INIT;
	options.rotary_dim = rotary_dim;
	options.rope_base = base;
	return options;
}

static void expect_close(double got, long double want)
{
	/* The exponent is rounded to double; the base's logarithm, at most 14 here, magnifies that. */
	if (!(fabsl(got - want) <= 2e-15L * fabsl(want)))
		fail_msg("got %.17g, want %.17Lg", got, want);
}

static long double plain(const kvc_rope_options *o, int i)
{
	return 1.0L / powl((long double)o->rope_base, 2.0L * i / o->rotary_dim);
}

static void plain_and_linear_frequencies(void **state)
{
	(void)state;
	static const double bases[] = { 10000.0, 500000.0, 1000000.0, 2.5 };
	static const int32_t dims[] = { 2, 64, 128, 80, 512 };
	for (int b = 0; b < 4; b++) {
		for (int d = 0; d < 5; d++) {
			kvc_rope rope;
			kvc_rope_options o = options_for(dims[d], bases[b]);
			expect_ok(kvc_rope_init(&rope, &o));
			for (int i = 0; i < dims[d] / 2; i++)
				expect_close(rope.inv_freq[i], plain(&o, i));
			assert_true(rope.attention_factor == 1.0);
			o.scaling = KVC_ROPE_SCALING_LINEAR;
			o.factor = 2.5;
			expect_ok(kvc_rope_init(&rope, &o));
			for (int i = 0; i < dims[d] / 2; i++)
				expect_close(rope.inv_freq[i], plain(&o, i) / 2.5L);
		}
	}
}

/* _compute_llama3_parameters */
static long double llama3(const kvc_rope_options *o, int i)
{
	long double f = plain(o, i);
	long double wavelength = 2 * PI_L / f;
	long double low_wavelength = o->original_max_position / (long double)o->low_freq_factor;
	long double high_wavelength = o->original_max_position / (long double)o->high_freq_factor;
	if (wavelength > low_wavelength)
		return f / o->factor;
	if (wavelength < high_wavelength)
		return f;
	long double smooth = (o->original_max_position / wavelength - o->low_freq_factor) /
	                     ((long double)o->high_freq_factor - o->low_freq_factor);
	return (1 - smooth) * f / o->factor + smooth * f;
}

static void llama3_frequencies(void **state)
{
	(void)state;
	static const double factors[] = { 8, 32 }; /* Llama 3.1, Llama 3.2 */
	for (int m = 0; m < 2; m++) {
		kvc_rope rope;
		kvc_rope_options o = options_for(m == 0 ? 128 : 64, 500000);
		o.scaling = KVC_ROPE_SCALING_LLAMA3;
		o.factor = factors[m];
		o.original_max_position = 8192;
		expect_ok(kvc_rope_init(&rope, &o));
		int stretched = 0;
		for (int i = 0; i < o.rotary_dim / 2; i++) {
			long double want = llama3(&o, i);
			/* The ramp subtracts nearly equal numbers at its ends. */
			assert_true(fabsl(rope.inv_freq[i] - want) <= 4e-15L * want);
			stretched += rope.inv_freq[i] < 0.99 * (double)plain(&o, i);
		}
		assert_true(rope.inv_freq[0] == 1.0);
		assert_true(stretched > 5 && stretched < o.rotary_dim / 2 - 5);
		assert_true(rope.attention_factor == 1.0);
	}
}

/* _compute_yarn_parameters */
static long double yarn(const kvc_rope_options *o, int i)
{
	long double dim = o->rotary_dim;
	long double log_base = logl((long double)o->rope_base);
	long double old = o->original_max_position;
	long double low = dim * logl(old / (o->beta_fast * 2 * PI_L)) / (2 * log_base);
	long double high = dim * logl(old / (o->beta_slow * 2 * PI_L)) / (2 * log_base);
	if (o->truncate) {
		low = floorl(low);
		high = ceill(high);
	}
	low = low > 0 ? low : 0;
	high = high < dim - 1 ? high : dim - 1;
	if (low == high)
		high += 0.001L;
	long double ramp = (i - low) / (high - low);
	ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
	long double extrapolation = 1 - ramp;
	long double f = plain(o, i);
	return f / o->factor * (1 - extrapolation) + f * extrapolation;
}

static void yarn_frequencies_and_factors(void **state)
{
	(void)state;
	static const struct {
		int32_t dim, truncate;
		double base, factor, old, beta_fast, beta_slow, mscale, mscale_all_dim, attention;
	} models[] = {
		{ 128, 1, 1e6, 4, 32768, 32, 1, 0, 0, 1.1386294361119891 },   /* Qwen2.5 */
		{ 64, 1, 1e4, 40, 4096, 32, 1, 0.707, 0.707, 1.0 },           /* DeepSeek-V2 */
		{ 64, 1, 1e4, 40, 4096, 32, 1, 1, 1, 1.0 },                   /* DeepSeek-V3 */
		{ 64, 0, 150000, 32, 4096, 32, 1, 0, 0, 1.3465735902799727 }, /* gpt-oss */
		{ 64, 1, 50000, 32, 4096, 1, 1, 1, 1, 1.0 },                  /* Kimi-K2 */
		{ 64, 1, 1e4, 0.5, 4096, 32, 1, 0, 0, 1.0 },                  /* factor below 1 */
	};
	for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
		kvc_rope rope;
		kvc_rope_options o = options_for(models[m].dim, models[m].base);
		o.scaling = KVC_ROPE_SCALING_YARN;
		o.truncate = models[m].truncate;
		o.factor = models[m].factor;
		o.original_max_position = models[m].old;
		o.beta_fast = models[m].beta_fast;
		o.beta_slow = models[m].beta_slow;
		o.mscale = models[m].mscale;
		o.mscale_all_dim = models[m].mscale_all_dim;
		expect_ok(kvc_rope_init(&rope, &o));
		for (int i = 0; i < o.rotary_dim / 2; i++) {
			long double want = yarn(&o, i);
			assert_true(fabsl(rope.inv_freq[i] - want) <= 4e-15L * want);
		}
		expect_close(rope.attention_factor, (long double)models[m].attention);
		o.attention_factor = 0.75;
		expect_ok(kvc_rope_init(&rope, &o));
		assert_true(rope.attention_factor == 0.75);
	}
}

static void the_callers_frequencies_are_copied(void **state)
{
	(void)state;
	kvc_rope rope;
	kvc_rope_options o = options_for(8, NAN); /* the base is not read */
	double doubles[] = { 1.0, 0.3, 0, 16.0, 7, 7, 7, 7 };
	float singles[] = { 1.0f, 7, 0.3f, 7, 0.01f, 7, 0.001f, 7 };
	int64_t shape[] = { 4 };
	int64_t stride[] = { 2 };
	kvc_tensor tensor = kvc_tensor_make(doubles, KVC_FLOAT64, 1, shape);
	o.inv_freq = &tensor;
	o.attention_factor = 1.25;
	expect_ok(kvc_rope_init(&rope, &o));
	assert_memory_equal(rope.inv_freq, doubles, 4 * sizeof(double));
	assert_true(rope.attention_factor == 1.25);
	doubles[0] = 5;
	assert_true(rope.inv_freq[0] == 1.0);
	tensor = kvc_tensor_make(singles, KVC_FLOAT32, 1, shape);
	tensor.strides = stride;
	expect_ok(kvc_rope_init(&rope, &o));
	for (int i = 0; i < 4; i++)
		assert_true(rope.inv_freq[i] == (double)singles[2 * i]);
}

static void the_callers_table_is_borrowed(void **state)
{
	(void)state;
	kvc_rope rope;
	static float values[16 * 8];
	int64_t shape[] = { 16, 8 };
	kvc_tensor table = kvc_tensor_make(values, KVC_FLOAT32, 2, shape);
	kvc_rope_options o = options_for(8, NAN);
	o.scaling = 99; /* neither is read */
	o.attention_factor = 3;
	o.cos_sin_cache = &table;
	expect_ok(kvc_rope_init(&rope, &o));
	assert_ptr_equal(rope.cos_sin, values);
	assert_int_equal(rope.cos_sin_rows, 16);
	assert_int_equal(rope.cos_sin_row_stride, 8);
	assert_true(rope.attention_factor == 1.0);
}

/* ---- refusals ---- */

/* These options with one change are refused, and 'out' keeps its bytes. */
#define REFUSED(change, status, slug, message, where)                                              \
	do {                                                                                       \
		kvc_rope_options o = options_for(8, 10000);                                        \
		double four[4] = { 1.0, 0.1, 0.01, 0.001 };                                        \
		int64_t pairs[1] = { 4 };                                                          \
		kvc_tensor inv_freq = kvc_tensor_make(four, KVC_FLOAT64, 1, pairs);                \
		static float values[4 * 8];                                                        \
		int64_t rows[2] = { 4, 8 };                                                        \
		int64_t strides[2] = { 8, 1 };                                                     \
		kvc_tensor table = kvc_tensor_make(values, KVC_FLOAT32, 2, rows);                  \
		table.strides = strides;                                                           \
		kvc_rope rope;                                                                     \
		kvc_rope before;                                                                   \
		memset(&rope, 0xA5, sizeof rope);                                                  \
		memset(&before, 0xA5, sizeof before);                                              \
		(void)inv_freq, (void)table;                                                       \
		change;                                                                            \
		expect_error(kvc_rope_init(&rope, &o), status, slug, message, where);              \
		assert_memory_equal(&rope, &before, sizeof rope);                                  \
	} while (0)

#define CONFIG(change, message)                                                                    \
	REFUSED(change, KVC_E_CONFIG, "rope-option-out-of-range", message, -1)
#define YARN (o.scaling = KVC_ROPE_SCALING_YARN, o.original_max_position = 4096)
#define LLAMA3 (o.scaling = KVC_ROPE_SCALING_LLAMA3, o.original_max_position = 8192)

static void bad_arguments_and_dims(void **state)
{
	(void)state;
	kvc_rope_options sound = options_for(8, 10000);
	kvc_rope out;
	expect_error(kvc_rope_init(NULL, &sound), KVC_E_INVALID_ARGUMENT, "null-argument",
	        "out is NULL", -1);
	expect_error(kvc_rope_init(&out, NULL), KVC_E_INVALID_ARGUMENT, "null-argument",
	        "options is NULL", -1);
	REFUSED(o.struct_bytes = 1, KVC_E_INVALID_ARGUMENT, "struct-bytes-unknown", NULL, -1);
	REFUSED(o.rotary_dim = -1, KVC_E_SHAPE, "rotary-dim-invalid",
	        "rotary_dim is -1, it must be even and in 0..512", -1);
	REFUSED(o.rotary_dim = 7, KVC_E_SHAPE, "rotary-dim-invalid", NULL, -1);
	REFUSED(o.rotary_dim = 514, KVC_E_SHAPE, "rotary-dim-invalid", NULL, -1);
	REFUSED(o.rotary_dim = INT32_MIN, KVC_E_SHAPE, "rotary-dim-invalid", NULL, -1);
	REFUSED(o.style = -1, KVC_E_CONFIG, "rope-style-unknown", "rope style -1 is unknown", -1);
	REFUSED(o.scaling = 4, KVC_E_CONFIG, "rope-scaling-unknown", "rope scaling 4 is unknown",
	        -1);
	REFUSED(o.scaling = -1, KVC_E_CONFIG, "rope-scaling-unknown", NULL, -1);
	sound.rotary_dim = 0;
	expect_ok(kvc_rope_init(&out, &sound));
}

static void bad_numbers(void **state)
{
	(void)state;
	CONFIG(o.rope_base = 0, "rope option rope_base is 0, it must be positive and finite");
	CONFIG(o.rope_base = -1e4, NULL);
	CONFIG(o.rope_base = NAN, NULL);
	CONFIG(o.rope_base = INFINITY, NULL);
	CONFIG((o.scaling = KVC_ROPE_SCALING_LINEAR, o.factor = 0),
	        "rope option factor is 0, it must be positive and finite");
	CONFIG((YARN, o.factor = -4), NULL);
	CONFIG((YARN, o.original_max_position = 0), NULL);
	CONFIG((YARN, o.beta_fast = 0), NULL);
	CONFIG((YARN, o.beta_slow = NAN), NULL);
	CONFIG((YARN, o.rope_base = 1), NULL);
	CONFIG((YARN, o.factor = 4, o.mscale = -100, o.mscale_all_dim = 1), NULL);
	CONFIG((LLAMA3, o.factor = INFINITY), NULL);
	CONFIG((LLAMA3, o.original_max_position = -1), NULL);
	CONFIG((LLAMA3, o.low_freq_factor = 0), NULL);
	CONFIG((LLAMA3, o.high_freq_factor = 1),
	        "rope option high_freq_factor is 1, it must be above low_freq_factor");
	CONFIG(o.attention_factor = -1, NULL);
	CONFIG(o.attention_factor = NAN, NULL);
	CONFIG(o.attention_factor = 1e39,
	        NULL); /* infinite and zero as the float32 that it becomes */
	CONFIG(o.attention_factor = 1e-46, NULL);
	REFUSED((o.scaling = KVC_ROPE_SCALING_LINEAR, o.factor = 0.01), KVC_E_CONFIG,
	        "rope-frequency-out-of-range", "frequency 0 is 100, it must be in 0..16", 0);
	REFUSED(o.rope_base = 0.01, KVC_E_CONFIG, "rope-frequency-out-of-range", NULL, 3);
}

static void the_stride_of_a_single_frequency_is_not_used(void **state)
{
	static const int64_t strides[] = { INT64_MAX / 8, INT64_MIN / 2, 0, -1 };

	(void)state;
	for (size_t i = 0; i < sizeof strides / sizeof *strides; i++) {
		kvc_rope_options o = KVC_ROPE_OPTIONS_INIT;
		double frequency = 0.25;
		int64_t one[] = { 1 }, stride[] = { INT64_MAX - (int64_t)i };
		kvc_tensor inv_freq = kvc_tensor_make(&frequency, KVC_FLOAT64, 1, one);
		kvc_rope rope;
		inv_freq.strides = stride;
		o.rotary_dim = 2;
		o.inv_freq = &inv_freq;
		expect_ok(kvc_rope_init(&rope, &o));
		assert_true(rope.inv_freq[0] == 0.25);
		stride[0] = strides[i];
		expect_ok(kvc_rope_init(&rope, &o));
		assert_true(rope.inv_freq[0] == 0.25);
	}
}

static void bad_inv_freq(void **state)
{
	(void)state;
	REFUSED((o.inv_freq = &inv_freq, o.scaling = KVC_ROPE_SCALING_LINEAR), KVC_E_CONFIG,
	        "inv-freq-with-scaling", "inv_freq was given together with rope scaling 1", -1);
	REFUSED((o.inv_freq = &inv_freq, pairs[0] = 8), KVC_E_SHAPE, "inv-freq-shape",
	        "inv_freq has shape (8,), it must be (4,)", -1);
	REFUSED((o.inv_freq = &inv_freq, inv_freq.ndim = 0), KVC_E_SHAPE, "inv-freq-shape", NULL,
	        -1);
	REFUSED((o.inv_freq = &inv_freq, inv_freq.dtype = KVC_BFLOAT16), KVC_E_DTYPE,
	        "inv-freq-dtype", "inv_freq must be float32 or float64, got bfloat16", -1);
	REFUSED((o.inv_freq = &inv_freq, inv_freq.device.device_type = KVC_DEVICE_CUDA),
	        KVC_E_DEVICE, "inv-freq-not-on-host",
	        "inv_freq is on device type 2, it must be in host memory", -1);
	REFUSED((o.inv_freq = &inv_freq, inv_freq.data = NULL), KVC_E_INVALID_ARGUMENT,
	        "tensor-data-null", NULL, -1);
	REFUSED((o.inv_freq = &inv_freq, four[2] = NAN), KVC_E_CONFIG,
	        "rope-frequency-out-of-range", NULL, 2);
	REFUSED((o.inv_freq = &inv_freq, four[3] = 16.1), KVC_E_CONFIG,
	        "rope-frequency-out-of-range", NULL, 3);
	REFUSED((o.inv_freq = &inv_freq, four[1] = -0.1), KVC_E_CONFIG,
	        "rope-frequency-out-of-range", NULL, 1);
}

static void bad_tables(void **state)
{
	(void)state;
	REFUSED((o.cos_sin_cache = &table, rows[1] = 4), KVC_E_SHAPE, "cos-sin-cache-shape",
	        "cos_sin_cache has shape (4, 4), it must be [max_position, 8]", -1);
	/* With no address either it would look like no table at all, and K would stay unrotated. */
	REFUSED((o.cos_sin_cache = &table, rows[0] = 0), KVC_E_SHAPE, "cos-sin-cache-shape",
	        "cos_sin_cache has shape (0, 8), it must be [max_position, 8]", -1);
	REFUSED((o.cos_sin_cache = &table, rows[0] = 0, table.data = NULL), KVC_E_SHAPE,
	        "cos-sin-cache-shape", NULL, -1);
	REFUSED((o.cos_sin_cache = &table, table.ndim = 1), KVC_E_SHAPE, "cos-sin-cache-shape",
	        NULL, -1);
	REFUSED((o.cos_sin_cache = &table, table.dtype = KVC_BFLOAT16), KVC_E_DTYPE,
	        "cos-sin-cache-must-be-float32", "cos_sin_cache must be float32, got bfloat16", -1);
	REFUSED((o.cos_sin_cache = &table, strides[1] = 2), KVC_E_STRIDE,
	        "last-dimension-not-contiguous",
	        "cos_sin_cache has stride 2 in its last dimension, it must be 1", -1);
	REFUSED((o.cos_sin_cache = &table, table.device.device_type = KVC_DEVICE_CUDA),
	        KVC_E_NO_CUDA, "no-cuda", NULL, -1);
	REFUSED((o.cos_sin_cache = &table, rows[0] = -1), KVC_E_SHAPE, "tensor-shape-impossible",
	        NULL, -1);
	REFUSED((o.cos_sin_cache = &table, table.byte_offset = 2, rows[0] = 3), KVC_E_STRIDE,
	        "tensor-misaligned", NULL, -1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(plain_and_linear_frequencies),
		cmocka_unit_test(llama3_frequencies),
		cmocka_unit_test(yarn_frequencies_and_factors),
		cmocka_unit_test(the_callers_frequencies_are_copied),
		cmocka_unit_test(the_callers_table_is_borrowed),
		cmocka_unit_test(bad_arguments_and_dims),
		cmocka_unit_test(bad_numbers),
		cmocka_unit_test(the_stride_of_a_single_frequency_is_not_used),
		cmocka_unit_test(bad_inv_freq),
		cmocka_unit_test(bad_tables),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
