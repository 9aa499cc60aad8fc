/*
 * kvc_rope_init(): from a model's rope options to one frequency per pair, in double, once. All
 * devices and variants work from these doubles, so nothing here has to be repeated bit for bit
 * elsewhere.
 *
 * Formulas: Su et al., "RoFormer" (plain); Chen et al., "Extending context window ... via positional
 * interpolation" (linear); Llama 3.1's reference code apply_scaling (llama3); Peng et al., "YaRN"
 * (yarn). For llama3 and yarn, transformers' modeling_rope_utils is what models are published
 * against; names of fields are its names.
 */
#include "base/tensor.h"
#include "ops/arguments.h"

#include <math.h>
#include <string.h>

#define PI 0x1.921fb54442d18p+1

/* The largest frequency: with positions up to 2^24, angles stay in the domain of base/sincos.h. */
#define FREQUENCY_MAX 16.0

/* ---- formulas; d = rotary_dim, f = the plain frequency ---- */

static double scale_llama3(const kvc_rope_options *options, double f)
{
	double old = options->original_max_position;
	double low = options->low_freq_factor;
	double high = options->high_freq_factor;
	double wavelength = 2.0 * PI / f;
	/* Short waves turn many times within the old context and stay; long ones are stretched;
	 * between the two the frequency goes over smoothly. */
	if (wavelength < old / high)
		return f;
	if (wavelength > old / low)
		return f / options->factor;
	double t = (old / wavelength - low) / (high - low);
	return (1.0 - t) * f / options->factor + t * f;
}

/* YaRN's ramp over pair indices: 0 up to 'low' (frequency kept), 1 from 'high' on (stretched). */
struct ramp {
	double low;
	double high;
};

/* The (fractional) pair index that turns 'turns' times within the old context. */
static double yarn_pair_of(const kvc_rope_options *options, double turns)
{
	double old = options->original_max_position;
	return options->rotary_dim * log(old / (2.0 * PI * turns)) /
	       (2.0 * log(options->rope_base));
}

static struct ramp yarn_ramp(const kvc_rope_options *options)
{
	double low = yarn_pair_of(options, options->beta_fast);
	double high = yarn_pair_of(options, options->beta_slow);
	if (options->truncate) { /* gpt-oss does not */
		low = floor(low);
		high = ceil(high);
	}
	low = fmax(low, 0.0);
	high = fmin(high, options->rotary_dim - 1.0);
	if (low == high)
		high += 0.001; /* as the reference: no division by zero */
	struct ramp ramp = { low, high };
	return ramp;
}

static double scale_yarn(const kvc_rope_options *options, struct ramp ramp, int32_t i, double f)
{
	double r = (i - ramp.low) / (ramp.high - ramp.low);
	r = fmin(fmax(r, 0.0), 1.0);
	return f / options->factor * r + f * (1.0 - r);
}

static double yarn_magnitude(double factor, double mscale)
{
	return factor <= 1.0 ? 1.0 : 0.1 * mscale * log(factor) + 1.0;
}

/* What cos and sin are multiplied with. */
static double attention_factor_of(const kvc_rope_options *options)
{
	if (options->attention_factor != 0.0)
		return options->attention_factor;
	if (options->scaling != KVC_ROPE_SCALING_YARN)
		return 1.0;
	/* DeepSeek gives both; with both alike they cancel out. */
	if (options->mscale != 0.0 && options->mscale_all_dim != 0.0)
		return yarn_magnitude(options->factor, options->mscale) /
		       yarn_magnitude(options->factor, options->mscale_all_dim);
	return yarn_magnitude(options->factor, 1.0);
}

/* ---- checks ---- */

static kvc_status check_positive(double value, const char *name)
{
	if (!(value > 0.0) || !isfinite(value))
		return kvc__fail_rope_option_out_of_range(-1, name, value, "positive and finite");
	return KVC_OK;
}

static kvc_status check_rotary_dim(int32_t rotary_dim)
{
	if (rotary_dim < 0 || rotary_dim % 2 != 0 || rotary_dim > KVC_ROTARY_DIM_MAX)
		return kvc__fail_rotary_dim_invalid(-1, rotary_dim, KVC_ROTARY_DIM_MAX);
	return KVC_OK;
}

static kvc_status check_style(int32_t style)
{
	if (style != KVC_ROPE_NEOX && style != KVC_ROPE_INTERLEAVED)
		return kvc__fail_rope_style_unknown(-1, style);
	return KVC_OK;
}

static kvc_status check_scaling(const kvc_rope_options *options)
{
	int32_t scaling = options->scaling;
	if (scaling < KVC_ROPE_SCALING_NONE || scaling > KVC_ROPE_SCALING_YARN)
		return kvc__fail_rope_scaling_unknown(-1, scaling);
	if (scaling == KVC_ROPE_SCALING_NONE)
		return KVC_OK;
	KVC__TRY(check_positive(options->factor, "factor"));
	if (scaling == KVC_ROPE_SCALING_LINEAR)
		return KVC_OK;
	KVC__TRY(check_positive(options->original_max_position, "original_max_position"));
	if (scaling == KVC_ROPE_SCALING_LLAMA3) {
		KVC__TRY(check_positive(options->low_freq_factor, "low_freq_factor"));
		KVC__TRY(check_positive(options->high_freq_factor, "high_freq_factor"));
		if (options->high_freq_factor <= options->low_freq_factor)
			return kvc__fail_rope_option_out_of_range(-1, "high_freq_factor",
			        options->high_freq_factor, "above low_freq_factor");
		return KVC_OK;
	}
	KVC__TRY(check_positive(options->beta_fast, "beta_fast"));
	KVC__TRY(check_positive(options->beta_slow, "beta_slow"));
	if (options->rope_base == 1.0) /* the ramp divides by its logarithm */
		return kvc__fail_rope_option_out_of_range(
		        -1, "rope_base", options->rope_base, "other than 1 with yarn");
	return KVC_OK;
}

static kvc_status take_attention_factor(kvc_rope *rope, const kvc_rope_options *options)
{
	double given = options->attention_factor;
	if (!(given >= 0.0) || !isfinite(given))
		return kvc__fail_rope_option_out_of_range(
		        -1, "attention_factor", given, "0 (automatic), or positive and finite");
	rope->attention_factor = attention_factor_of(options);
	/* As a float32, since cosines become one: beyond that K would turn to 0, infinity and NaN. */
	float narrow = (float)rope->attention_factor;
	if (!(narrow > 0.0f) || !isfinite(narrow))
		return kvc__fail_rope_option_out_of_range(-1,
		        given > 0.0 ? "attention_factor" : "mscale",
		        given > 0.0 ? given : options->mscale,
		        "such that the attention factor is positive and finite as a float32");
	return KVC_OK;
}

/* ---- the three ways to frequencies ---- */

static kvc_status take_table(kvc_rope *rope, const kvc_tensor *table)
{
	KVC__TRY(kvc__check_present(table, "cos_sin_cache"));
	/* An empty table would look like none at all, and leave K as it is. */
	if (table->ndim != 2 || table->shape[1] != rope->rotary_dim || table->shape[0] == 0)
		return kvc__fail_cos_sin_cache_shape(-1, table, rope->rotary_dim);
	if (!kvc__dtype_equal(table->dtype, KVC_FLOAT32))
		return kvc__fail_cos_sin_cache_must_be_float32(-1, table->dtype);
	KVC__TRY(kvc__check_bounds(table, "cos_sin_cache"));
	/* A call then wants it where its other tensors are. */
	KVC__TRY(kvc__check_usable_device(table->device, "cos_sin_cache"));
	if (!kvc__tensor_rows_contiguous(table))
		return kvc__fail_last_dimension_not_contiguous(
		        -1, "cos_sin_cache", kvc__tensor_stride(table, 1));
	if ((uintptr_t)kvc__tensor_data(table) % sizeof(float) != 0)
		return kvc__fail_tensor_misaligned(
		        -1, "cos_sin_cache", (int64_t)sizeof(float), table->dtype);
	rope->attention_factor = 1.0; /* the table has it already */
	rope->cos_sin = (const float *)(const void *)kvc__tensor_data(table);
	rope->cos_sin_rows = table->shape[0];
	rope->cos_sin_row_stride = kvc__tensor_stride(table, 0);
	rope->cos_sin_device = table->device;
	return KVC_OK;
}

static kvc_status take_inv_freq(kvc_rope *rope, const kvc_tensor *given)
{
	KVC__TRY(kvc__check_present(given, "inv_freq"));
	if (given->ndim != 1 || given->shape[0] != rope->rotary_dim / 2)
		return kvc__fail_inv_freq_shape(-1, given, rope->rotary_dim / 2);
	int is_double = kvc__dtype_equal(given->dtype, KVC_FLOAT64);
	if (!is_double && !kvc__dtype_equal(given->dtype, KVC_FLOAT32))
		return kvc__fail_inv_freq_dtype(-1, given->dtype);
	if (given->device.device_type != KVC_DEVICE_CPU &&
	        given->device.device_type != KVC_DEVICE_CUDA_HOST)
		return kvc__fail_inv_freq_not_on_host(-1, given->device.device_type);
	KVC__TRY(kvc__check_bounds(given, "inv_freq"));

	int64_t stride = kvc__tensor_stride(given, 0); /* anything, if there is one entry */
	for (int64_t i = 0; i < rope->rotary_dim / 2; i++) {
		const char *at =
		        kvc__tensor_data(given) + i * stride * kvc__dtype_bytes(given->dtype);
		float single;
		if (is_double) {
			memcpy(&rope->inv_freq[i], at, sizeof(double));
		} else {
			memcpy(&single, at, sizeof single);
			rope->inv_freq[i] = single;
		}
	}
	return KVC_OK;
}

static void make_frequencies(kvc_rope *rope, const kvc_rope_options *options)
{
	struct ramp ramp = { 0.0, 1.0 };
	if (options->scaling == KVC_ROPE_SCALING_YARN)
		ramp = yarn_ramp(options);
	for (int32_t i = 0; i < rope->rotary_dim / 2; i++) {
		double f = pow(options->rope_base, -(2.0 * i) / rope->rotary_dim);
		switch (options->scaling) {
		case KVC_ROPE_SCALING_LINEAR:
			f = f / options->factor;
			break;
		case KVC_ROPE_SCALING_LLAMA3:
			f = scale_llama3(options, f);
			break;
		case KVC_ROPE_SCALING_YARN:
			f = scale_yarn(options, ramp, i, f);
			break;
		default:
			break;
		}
		rope->inv_freq[i] = f;
	}
}

static kvc_status check_frequencies(const kvc_rope *rope)
{
	for (int32_t i = 0; i < rope->rotary_dim / 2; i++)
		if (!(rope->inv_freq[i] >= 0.0 && rope->inv_freq[i] <= FREQUENCY_MAX))
			return kvc__fail_rope_frequency_out_of_range(i, i, rope->inv_freq[i]);
	return KVC_OK;
}

kvc_status kvc_rope_init(kvc_rope *out, const kvc_rope_options *options_given)
{
	kvc_rope_options options = KVC_ROPE_OPTIONS_INIT;
	kvc_rope rope;

	if (!out)
		return kvc__fail_null_argument(-1, "out");
	KVC__TAKE(&options, options_given, "options");
	memset(&rope, 0, sizeof rope);
	rope.struct_bytes = sizeof rope;
	rope.cos_sin_device.device_type = KVC_DEVICE_CPU;

	KVC__TRY(check_rotary_dim(options.rotary_dim));
	rope.rotary_dim = options.rotary_dim;
	KVC__TRY(check_style(options.style));
	rope.style = options.style;
	if (options.cos_sin_cache) {
		KVC__TRY(take_table(&rope, options.cos_sin_cache));
		*out = rope;
		return KVC_OK;
	}
	if (options.inv_freq) {
		if (options.scaling != KVC_ROPE_SCALING_NONE)
			return kvc__fail_inv_freq_with_scaling(-1, options.scaling);
		KVC__TRY(take_inv_freq(&rope, options.inv_freq));
	} else {
		KVC__TRY(check_positive(options.rope_base, "rope_base"));
		KVC__TRY(check_scaling(&options));
		make_frequencies(&rope, &options);
	}
	KVC__TRY(take_attention_factor(&rope, &options));
	KVC__TRY(check_frequencies(&rope));
	*out = rope;
	return KVC_OK;
}
