/*
 * Rotary embedding and the scatter into the pools, the specification: plain C, no intrinsics. Every
 * other CPU variant and the CUDA kernel store exactly the bytes that this file stores.
 *
 * Rotary embedding turns each pair (x1, x2) of a head by an angle that grows with the token's
 * position: angle_i = position * inv_freq_i, and
 *
 *     r1 = x1*cos - x2*sin          r2 = x1*sin + x2*cos
 *
 * Attention scores then depend on the distance of two tokens only. NeoX pairs element i with
 * i + rotary_dim/2, the interleaved style (GPT-J) pairs 2i with 2i + 1. Elements outside
 * [offset, offset + rotary_dim) are copied bit for bit.
 *
 * Where results could differ between machines, and what is done about it:
 *   - the angle is one double product; cos and sin come from base/sincos.h, not from libm; each is
 *     multiplied by the attention factor in double and rounded to float32 once;
 *   - products and sums are rounded to float32 one by one: this file must be compiled with
 *     -ffp-contract=off;
 *   - the result is rounded to the output type once, to nearest even, subnormals kept (the caller
 *     has set the mode: base/fp_mode.h); a rotated NaN becomes the positive quiet NaN;
 *   - an fp8 pool row is made from the rounded bits of k_out, not from the float32 before them.
 *
 * Work goes in blocks of at most BLOCK pairs through local arrays: raw elements, float32, raw
 * elements. Nothing aliases them, so each inner loop becomes vector code, and in-place calls need
 * no second thought: a block is read whole before it is written.
 */
#include "base/float_formats.h"
#include "base/sincos.h"
#include "cpu/rope.h"

#include <string.h>

#define BLOCK 64 /* pairs; 2 * BLOCK elements of every array below */

/* More than the caches of a core hold, and what follows reads little of it back soon. */
int64_t kvc__rope_stream_bytes = 4 << 20;

void kvc__rope_angles(const kvc_rope *rope, int64_t position, float *cos_out, float *sin_out)
{
	int64_t half = rope->rotary_dim / 2;
	if (rope->cos_sin) {
		const float *row = rope->cos_sin + position * rope->cos_sin_row_stride;
		memcpy(cos_out, row, (size_t)half * sizeof *row);
		memcpy(sin_out, row + half, (size_t)half * sizeof *row);
		return;
	}
	for (int64_t i = 0; i < half; i++) {
		double c;
		double s;
		kvc__sincos((double)position * rope->inv_freq[i], &c, &s);
		cos_out[i] = (float)(rope->attention_factor * c);
		sin_out[i] = (float)(rope->attention_factor * s);
	}
}

void kvc__sincos_portable(const double *angles, double *cos_out, double *sin_out, int64_t count)
{
	for (int64_t i = 0; i < count; i++)
		kvc__sincos(angles[i], &cos_out[i], &sin_out[i]);
}

/* ---- between raw elements and float32; count <= 2 * BLOCK ---- */

static void widen(enum kvc__element element, const void *raw, float *out, int64_t count)
{
	const uint16_t *half = raw;
	switch (element) {
	case KVC__ELEMENT_BF16:
		for (int64_t i = 0; i < count; i++)
			out[i] = kvc__f32_from_bf16(half[i]);
		return;
	case KVC__ELEMENT_F16:
		for (int64_t i = 0; i < count; i++)
			out[i] = kvc__f32_from_f16(half[i]);
		return;
	default:
		memcpy(out, raw, (size_t)count * sizeof *out);
		return;
	}
}

/* The one rounding of rotated values. */
static void narrow(enum kvc__element element, const float *in, void *raw, int64_t count)
{
	uint16_t *half = raw;
	uint32_t *single = raw;
	switch (element) {
	case KVC__ELEMENT_BF16:
		for (int64_t i = 0; i < count; i++)
			half[i] = kvc__bf16_from_f32(in[i]);
		return;
	case KVC__ELEMENT_F16:
		for (int64_t i = 0; i < count; i++)
			half[i] = kvc__f16_from_f32(in[i]);
		return;
	default:
		for (int64_t i = 0; i < count; i++)
			single[i] = kvc__f32_canonical(in[i]);
		return;
	}
}

static void quantise(
        enum kvc__element pool_element, const float *in, float scale, uint8_t *out, int64_t count)
{
	if (pool_element == KVC__ELEMENT_E4M3)
		for (int64_t i = 0; i < count; i++)
			out[i] = kvc__e4m3_scaled(in[i], scale);
	else
		for (int64_t i = 0; i < count; i++)
			out[i] = kvc__e5m2_scaled(in[i], scale);
}

/* ---- one head ---- */

/* Where the elements of a head go: to 'out' (k_out or q_out), to 'pool', to both or to none. */
struct target {
	char *out;
	char *pool;
	enum kvc__element element;
	enum kvc__element pool_element;
	float scale;
};

/* Store 'count' <= 2 * BLOCK raw elements at element 'at' of the head. */
static void store(const struct target *target, int64_t at, const void *raw, int64_t count)
{
	int64_t width = kvc__element_bytes(target->element);
	size_t bytes = (size_t)(count * width);
	if (target->out)
		memcpy(target->out + at * width, raw, bytes);
	if (!target->pool)
		return;
	if (target->pool_element == target->element) {
		memcpy(target->pool + at * width, raw, bytes);
		return;
	}
	float wide[2 * BLOCK];
	uint8_t bytes_out[2 * BLOCK];
	widen(target->element, raw, wide, count);
	quantise(target->pool_element, wide, target->scale, bytes_out, count);
	memcpy(target->pool + at, bytes_out, (size_t)count);
}

/* Elements [begin, end) of the head, bit for bit. */
static void copy_elements(const struct target *target, const char *in, int64_t begin, int64_t end)
{
	int64_t width = kvc__element_bytes(target->element);
	uint32_t raw[2 * BLOCK];
	for (int64_t at = begin; at < end; at += 2 * BLOCK) {
		int64_t count = end - at < 2 * BLOCK ? end - at : 2 * BLOCK;
		memcpy(raw, in + at * width, (size_t)(count * width));
		store(target, at, raw, count);
	}
}

/* x1[i], x2[i] become r1, r2. Four roundings of products, two of sums; never a fused operation. */
static void rotate(float *restrict x1, float *restrict x2, const float *restrict c,
        const float *restrict s, int64_t count)
{
	for (int64_t i = 0; i < count; i++) {
		float r1 = x1[i] * c[i] - x2[i] * s[i];
		float r2 = x1[i] * s[i] + x2[i] * c[i];
		x1[i] = r1;
		x2[i] = r2;
	}
}

/* Pairs [i, i + count) of NeoX style: two runs of elements, half a rotary_dim apart. */
static void rotate_neox(const struct target *target, const char *in, int64_t first, int64_t second,
        const float *c, const float *s, int64_t count)
{
	int64_t width = kvc__element_bytes(target->element);
	uint32_t raw[BLOCK];
	float x1[BLOCK];
	float x2[BLOCK];
	memcpy(raw, in + first * width, (size_t)(count * width));
	widen(target->element, raw, x1, count);
	memcpy(raw, in + second * width, (size_t)(count * width));
	widen(target->element, raw, x2, count);
	rotate(x1, x2, c, s, count);
	narrow(target->element, x1, raw, count);
	store(target, first, raw, count);
	narrow(target->element, x2, raw, count);
	store(target, second, raw, count);
}

/* Pairs of interleaved style: one run of 2 * count elements. */
static void rotate_interleaved(const struct target *target, const char *in, int64_t first,
        const float *c, const float *s, int64_t count)
{
	int64_t width = kvc__element_bytes(target->element);
	uint32_t raw[2 * BLOCK];
	float both[2 * BLOCK];
	float x1[BLOCK];
	float x2[BLOCK];
	memcpy(raw, in + first * width, (size_t)(2 * count * width));
	widen(target->element, raw, both, 2 * count);
	for (int64_t i = 0; i < count; i++) {
		x1[i] = both[2 * i];
		x2[i] = both[2 * i + 1];
	}
	rotate(x1, x2, c, s, count);
	for (int64_t i = 0; i < count; i++) {
		both[2 * i] = x1[i];
		both[2 * i + 1] = x2[i];
	}
	narrow(target->element, both, raw, 2 * count);
	store(target, first, raw, 2 * count);
}

/* All 'dim' elements of one head. c, s: the token's cosines and sines. */
static void rope_head(const kvc_rope *rope, const struct target *target, const char *in,
        int64_t dim, int64_t offset, const float *c, const float *s)
{
	int64_t half = rope->rotary_dim / 2;
	copy_elements(target, in, 0, offset);
	for (int64_t i = 0; i < half; i += BLOCK) {
		int64_t count = half - i < BLOCK ? half - i : BLOCK;
		if (rope->style == KVC_ROPE_INTERLEAVED)
			rotate_interleaved(target, in, offset + 2 * i, c + i, s + i, count);
		else
			rotate_neox(target, in, offset + i, offset + half + i, c + i, s + i, count);
	}
	copy_elements(target, in, offset + rope->rotary_dim, dim);
}

/* ---- one token ---- */

static char *row_at(const struct kvc__rows *rows, int64_t row)
{
	return rows->data ? rows->data + row * rows->row_stride : NULL;
}

/* V is not rotated: bytes as they are, or quantised. */
static void store_v_row(const struct kvc__rope_job *job, const char *in, char *pool)
{
	int64_t head_bytes = job->kv_dim * kvc__element_bytes(job->element);
	if (job->pool_element != job->element) {
		for (int64_t h = 0; h < job->kv_heads; h++) {
			struct target target = { NULL, pool + h * job->v_pool.head_stride,
				job->element, job->pool_element, job->v_scale };
			copy_elements(&target, in + h * job->v.head_stride, 0, job->kv_dim);
		}
		return;
	}
	if (job->v.head_stride == head_bytes && job->v_pool.head_stride == head_bytes) {
		memcpy(pool, in, (size_t)(job->kv_heads * head_bytes));
		return;
	}
	for (int64_t h = 0; h < job->kv_heads; h++)
		memcpy(pool + h * job->v_pool.head_stride, in + h * job->v.head_stride,
		        (size_t)head_bytes);
}

static void rope_token(const struct kvc__rope_job *job, struct kvc__shares *shares, int64_t token)
{
	int64_t slot = kvc__index_read(&job->slots, token);
	int64_t position = kvc__index_read(&job->positions, token);
	int skipped = kvc__slot_skipped(job, slot);
	/* The front door lets a bad position pass only on a skipped row, which then stays as it is. */
	if (position < 0 || position >= job->position_count)
		return;

	float c[KVC_ROTARY_DIM_MAX / 2];
	float s[KVC_ROTARY_DIM_MAX / 2];
	kvc__rope_angles(job->rope, position, c, s);

	if (job->q_out.data) {
		for (int64_t h = 0; h < job->q_heads; h++) {
			struct target target = { row_at(&job->q_out, token) +
				                         h * job->q_out.head_stride,
				NULL, job->element, job->element, 1.0f };
			rope_head(job->rope, &target,
			        row_at(&job->q, token) + h * job->q.head_stride, job->q_dim,
			        job->q_rotary_offset, c, s);
		}
	}
	char *k_out = row_at(&job->k_out, token);
	char *k_pool = skipped ? NULL : row_at(&job->k_pool, slot);
	for (int64_t h = 0; (k_out || k_pool) && h < job->kv_heads; h++) {
		struct target target = { k_out ? k_out + h * job->k_out.head_stride : NULL,
			k_pool ? k_pool + h * job->k_pool.head_stride : NULL, job->element,
			job->pool_element, job->k_scale };
		rope_head(job->rope, &target, row_at(&job->k, token) + h * job->k.head_stride,
		        job->kv_dim, job->rotary_offset, c, s);
	}
	if (skipped)
		return;
	if (job->v.data)
		store_v_row(job, row_at(&job->v, token), row_at(&job->v_pool, slot));
	/* Now, while the rows are in the nearest cache, hashing them costs no memory traffic. */
	if (job->stamp)
		kvc__stamp_later(job->stamp, shares, slot,
		        kvc__stamp_share(job, k_pool, job->k_pool.head_stride,
		                row_at(&job->v_pool, slot), job->v_pool.head_stride,
		                kvc__xxh3_portable));
}

void kvc__rope_rows_portable(void *task, int64_t begin, int64_t end)
{
	const struct kvc__rope_job *job = task;
	struct kvc__shares shares;
	shares.count = 0;
	for (int64_t token = begin; token < end; token++)
		rope_token(job, &shares, token);
	kvc__stamp_flush(job->stamp, &shares);
}
