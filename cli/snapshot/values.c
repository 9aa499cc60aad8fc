/*
 * Packed bytes of rows to float32. Every conversion here is exact but for F64 and for the
 * multiplications of the quantised types, which round once or twice as their writers' do.
 */
#include "snapshot/reader.h"
#include "snapshot/wide.h"

#include <string.h>

typedef void (*convert_function)(const unsigned char *bytes, size_t count, float *out);

/* Two loads of a byte keep the compiler from using vectors, so one where the order allows it. */
static uint32_t half_at(const unsigned char *bytes)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	uint16_t half;

	memcpy(&half, bytes, sizeof(half));
	return half;
#else
	return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8;
#endif
}

static float float_from_bits(uint32_t bits)
{
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

/* 5 bits of exponent (bias 15), 10 of fraction. Without branches, so that loops are vectorised: the
 * multiplication corrects the bias, of subnormals too; from 0x7c00 on it is infinity or NaN. */
static float float_from_f16(uint32_t half)
{
	uint32_t magnitude = half & 0x7fffu;
	uint32_t special = 0u - (uint32_t)(magnitude >= 0x7c00u);
	float scaled = float_from_bits(magnitude << 13) * 0x1p112f;
	uint32_t bits;

	memcpy(&bits, &scaled, sizeof(bits));
	return float_from_bits(bits | (special & 0x7f800000u) | (half & 0x8000u) << 16);
}

/* 4 bits of exponent (bias 7), 3 of fraction; 7f is NaN, there is no infinity. */
static float float_from_e4m3(uint32_t byte)
{
	uint32_t magnitude = byte & 0x7fu;
	float subnormal = (float)(int32_t)magnitude * 0x1p-9f;
	uint32_t bits;

	memcpy(&bits, &subnormal, sizeof(bits));
	bits = magnitude < 8u ? bits : (magnitude << 20) + (120u << 23);
	bits = magnitude == 0x7fu ? 0x7fc00000u : bits;
	return float_from_bits((byte & 0x80u) << 24 | bits);
}

static void convert_f32(const unsigned char *bytes, size_t count, float *out)
{
	for (size_t i = 0; i < count; i++)
		out[i] = float_from_bits(saved_u32(bytes + 4 * i));
}

static inline __attribute__((always_inline)) void each_f16(
        const unsigned char *bytes, size_t count, float *out)
{
	for (size_t i = 0; i < count; i++)
		out[i] = float_from_f16(half_at(bytes + 2 * i));
}

static inline __attribute__((always_inline)) void each_bf16(
        const unsigned char *bytes, size_t count, float *out)
{
	for (size_t i = 0; i < count; i++)
		out[i] = float_from_bits(half_at(bytes + 2 * i) << 16);
}

static WIDE void each_f16_wide(const unsigned char *bytes, size_t count, float *out)
{
	each_f16(bytes, count, out);
}

static WIDE void each_bf16_wide(const unsigned char *bytes, size_t count, float *out)
{
	each_bf16(bytes, count, out);
}

static void convert_f16(const unsigned char *bytes, size_t count, float *out)
{
	if (has_wide())
		each_f16_wide(bytes, count, out);
	else
		each_f16(bytes, count, out);
}

static void convert_bf16(const unsigned char *bytes, size_t count, float *out)
{
	if (has_wide())
		each_bf16_wide(bytes, count, out);
	else
		each_bf16(bytes, count, out);
}

static void convert_f64(const unsigned char *bytes, size_t count, float *out)
{
	for (size_t i = 0; i < count; i++) {
		uint64_t bits = saved_u64(bytes + 8 * i);
		double value;
		memcpy(&value, &bits, sizeof(value));
		out[i] = (float)value;
	}
}

static void convert_e4m3(const unsigned char *bytes, size_t count, float *out)
{
	for (size_t i = 0; i < count; i++)
		out[i] = float_from_e4m3(bytes[i]);
}

/* The upper byte of an F16. */
static void convert_e5m2(const unsigned char *bytes, size_t count, float *out)
{
	for (size_t i = 0; i < count; i++)
		out[i] = float_from_f16((uint32_t)bytes[i] << 8);
}

/* Blocks of 32: an F16 scale, 32 signed bytes. */
static void convert_q8_0(const unsigned char *bytes, size_t count, float *out)
{
	for (size_t i = 0; i < count; i += 32, bytes += 34) {
		float scale = float_from_f16(half_at(bytes));
		for (size_t j = 0; j < 32; j++)
			out[i + j] = scale * (float)(int8_t)bytes[2 + j];
	}
}

/* Blocks of 32: an F16 scale, 16 bytes. Low halves are elements 0..15, high ones 16..31; 8 is 0. */
static void convert_q4_0(const unsigned char *bytes, size_t count, float *out)
{
	for (size_t i = 0; i < count; i += 32, bytes += 18) {
		float scale = float_from_f16(half_at(bytes));
		for (size_t j = 0; j < 16; j++) {
			out[i + j] = scale * (float)((int)(bytes[2 + j] & 15u) - 8);
			out[i + 16 + j] = scale * (float)((int)(bytes[2 + j] >> 4) - 8);
		}
	}
}

/* By enum saved_type; NULL: not an element by element conversion. */
static const convert_function converters[] = {
	[SAVED_F32] = convert_f32,
	[SAVED_F16] = convert_f16,
	[SAVED_BF16] = convert_bf16,
	[SAVED_F64] = convert_f64,
	[SAVED_F8_E4M3] = convert_e4m3,
	[SAVED_F8_E5M2] = convert_e5m2,
	[SAVED_Q8_0] = convert_q8_0,
	[SAVED_Q4_0] = convert_q4_0,
	[SAVED_AFFINE] = NULL,
	[SAVED_OPAQUE] = NULL,
};

/* One head: words whose low bits come first, then a scale and a bias for each group. */
static const unsigned char *convert_affine(
        const struct saved_tensor *tensor, const unsigned char *bytes, float *out)
{
	uint32_t bits = tensor->element_bits, mask = (1u << bits) - 1u;
	int64_t per_word = 32 / bits, groups = tensor->dim / tensor->group_size;
	size_t scale_bytes = tensor->scale_type == SAVED_F32 ? 4 : 2;
	const unsigned char *scales = bytes + 4 * (tensor->dim / per_word);
	const unsigned char *biases = scales + (size_t)groups * scale_bytes;

	for (int64_t group = 0; group < groups; group++) {
		float scale, bias;
		converters[tensor->scale_type](scales + (size_t)group * scale_bytes, 1, &scale);
		converters[tensor->scale_type](biases + (size_t)group * scale_bytes, 1, &bias);
		for (int64_t i = 0; i < tensor->group_size; i++) {
			int64_t element = group * tensor->group_size + i;
			uint32_t word = saved_u32(bytes + 4 * (element / per_word));
			uint32_t level = word >> bits * (uint32_t)(element % per_word) & mask;
			out[element] = (float)level * scale + bias;
		}
	}
	return biases + (size_t)groups * scale_bytes;
}

void saved_values(const struct saved_tensor *tensor, const void *bytes, int64_t count, float *out)
{
	if (converters[tensor->type]) {
		converters[tensor->type](bytes, (size_t)(count * tensor->heads * tensor->dim), out);
		return;
	}
	if (tensor->type == SAVED_AFFINE)
		for (int64_t i = 0; i < count * tensor->heads; i++)
			bytes = convert_affine(tensor, bytes, out + i * tensor->dim);
}
