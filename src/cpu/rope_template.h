/*
 * rope_pool_fused for one set of vector instructions: everything but the arithmetic. Included by
 * rope_<set>.c, which first defines
 *
 *   ROPE_TARGET    attribute of every function here, so that the file's own functions inline
 *   ROPE_ROWS      name of the kernel, a kvc_range_fn
 *   ROPE_XXH3      hash for stamps, a kvc__xxh3_fn
 *   ROPE_ANGLES    (const double *freq, double position, double factor, float *c, float *s,
 *                  int64_t count): cosines and sines; may read and write up to the next multiple
 *                  of 8
 *   ROPE_ARRANGE   (element, style, float *c, float *s, int64_t pairs): reorder them as ROPE_BLOCK
 *                  wants them; 'pairs' is a multiple of ROPE_PAIRS
 *   ROPE_SPREAD    (element, style): floats of c (and of s) for each pair after that, 1 or 2
 *   ROPE_BLOCK     (element, style, stream, first, second, out_first, out_second, c, s): rotate
 *                  ROPE_PAIRS pairs. NeoX: first elements at 'first', second ones at 'second'.
 *                  Interleaved: all in one run from 'first' on. In and out may be the same. stream:
 *                  store past the caches; each vector's place is then aligned to its size
 *   ROPE_STREAM    (char *to, const char *from, size_t bytes): copy past the caches
 *   ROPE_FENCE     (): make streamed stores visible to other threads
 *
 * Plan for each token: angles once, for all heads. Q is rotated from q to q_out. K is rotated into
 * k_out, or into a staging row in the nearest cache, and from there copied to the pool; V is copied.
 * So a rotated element is computed once, and the copy to the pool may go past the caches.
 *
 * A large call is bound by memory: its inputs are asked for ROPE_AHEAD bytes early, and whole lines
 * of Q go out past the caches as they are computed, so that arithmetic and traffic overlap. Shares of
 * stamps are added in batches: an atomic addition waits until every streamed store before it is out.
 *
 * Must agree to the byte with rope_portable.c, which is the specification.
 */
#include "base/float_formats.h"
#include "cpu/rope.h"
#include "cpu/xxh3.h"

#include <string.h>

#define ROPE_PAIRS 16

/* Bytes of a staging row: as many heads as fit are done at a time. A head that does not fit is left
 * to the portable kernel. */
#define ROPE_STAGE 8192

/* Of q, k and v, in a large call. Rows lie one behind the other, so this runs into the next token. */
#define ROPE_AHEAD 2048

/* Widen and quantise this many elements at a time. */
#define ROPE_CHUNK 64

struct rope_run {
	const struct kvc__rope_job *job;
	int stream;    /* large call: stores go past the caches */
	int64_t width; /* bytes of one element of q, k, v */
	int stamp_from_pool;
	int64_t q_group; /* heads whose elements fit the staging row */
	int64_t kv_group;
	struct kvc__shares shares; /* of stamps, not yet added */
	float c[KVC_ROTARY_DIM_MAX + ROPE_PAIRS];
	float s[KVC_ROTARY_DIM_MAX + ROPE_PAIRS];
	char stage[ROPE_STAGE]; /* of q_out or k_out */
	char k8[ROPE_STAGE];    /* the K row as 8-bit elements */
	char v8[ROPE_STAGE];    /* the V row */
};

/* Some heads of one token. */
struct rope_heads {
	char *data;
	int64_t stride; /* bytes from one head to the next */
};

#define ROPE_INLINE static inline __attribute__((always_inline)) ROPE_TARGET

ROPE_INLINE struct rope_heads rope_heads_at(const struct kvc__rows *rows, int64_t row, int64_t head)
{
	struct rope_heads at = { rows->data + row * rows->row_stride + head * rows->head_stride,
		rows->head_stride };
	return at;
}

ROPE_INLINE void rope_copy(int stream, char *to, const char *from, int64_t bytes)
{
	if (stream)
		ROPE_STREAM(to, from, (size_t)bytes);
	else
		memcpy(to, from, (size_t)bytes);
}

ROPE_TARGET static void rope_copy_heads(
        int stream, struct rope_heads to, struct rope_heads from, int64_t count, int64_t head_bytes)
{
	if (to.stride == head_bytes && from.stride == head_bytes) {
		rope_copy(stream, to.data, from.data, count * head_bytes);
		return;
	}
	for (int64_t h = 0; h < count; h++)
		rope_copy(stream, to.data + h * to.stride, from.data + h * from.stride, head_bytes);
}

/* ---- rotation ---- */

/* The last pairs of a head, fewer than a block: through a block of their own. */
ROPE_INLINE void rope_tail(enum kvc__element element, int style, const char *first,
        const char *second, char *out_first, char *out_second, const float *c, const float *s,
        int64_t pairs)
{
	size_t bytes = (size_t)(pairs * kvc__element_bytes(element));
	char block[2][4 * ROPE_PAIRS]; /* one run of 32 elements if interleaved */
	memset(block, 0, sizeof block);
	if (style == KVC_ROPE_INTERLEAVED) {
		memcpy(block, first, 2 * bytes);
		ROPE_BLOCK(element, style, 0, block[0], NULL, block[0], NULL, c, s);
		memcpy(out_first, block, 2 * bytes);
		return;
	}
	memcpy(block[0], first, bytes);
	memcpy(block[1], second, bytes);
	ROPE_BLOCK(element, style, 0, block[0], block[1], block[0], block[1], c, s);
	memcpy(out_first, block[0], bytes);
	memcpy(out_second, block[1], bytes);
}

/* How a row is rotated: 'ahead' asks for what is ROPE_AHEAD bytes further on, 'stream' stores past the
 * caches. */
struct rope_way {
	int style;
	int ahead;
	int stream;
};

ROPE_INLINE void rope_ask_ahead(const char *from, int64_t bytes)
{
	for (int64_t i = 0; i < bytes; i += 64)
		__builtin_prefetch(from + ROPE_AHEAD + i);
}

/* 'element', 'style' and 'stream' are constants at each call, so each becomes a loop of its own. */
ROPE_INLINE void rope_rotate(enum kvc__element element, int style, int stream, int ahead,
        struct rope_heads in, struct rope_heads out, int64_t count, int64_t half, const float *c,
        const float *s)
{
	const int64_t width = kvc__element_bytes(element);
	const int64_t spread = ROPE_SPREAD(element, style);
	const int64_t whole = half / ROPE_PAIRS * ROPE_PAIRS;
	const int64_t second = half * width; /* NeoX: bytes to the other half */
	const int64_t step = style == KVC_ROPE_INTERLEAVED ? 2 * width : width;
	for (int64_t h = 0; h < count; h++) {
		const char *x = in.data + h * in.stride;
		char *r = out.data + h * out.stride;
		if (ahead)
			rope_ask_ahead(x, 2 * second);
		for (int64_t i = 0; i < whole; i += ROPE_PAIRS)
			ROPE_BLOCK(element, style, stream, x + i * step, x + i * step + second,
			        r + i * step, r + i * step + second, c + i * spread,
			        s + i * spread);
		if (whole < half)
			rope_tail(element, style, x + whole * step, x + whole * step + second,
			        r + whole * step, r + whole * step + second, c + whole * spread,
			        s + whole * spread, half - whole);
	}
}

ROPE_INLINE void rope_rotate_type(enum kvc__element element, struct rope_way way,
        struct rope_heads in, struct rope_heads out, int64_t count, int64_t half, const float *c,
        const float *s)
{
	if (way.style == KVC_ROPE_INTERLEAVED && way.stream)
		rope_rotate(
		        element, KVC_ROPE_INTERLEAVED, 1, way.ahead, in, out, count, half, c, s);
	else if (way.style == KVC_ROPE_INTERLEAVED)
		rope_rotate(
		        element, KVC_ROPE_INTERLEAVED, 0, way.ahead, in, out, count, half, c, s);
	else if (way.stream)
		rope_rotate(element, KVC_ROPE_NEOX, 1, way.ahead, in, out, count, half, c, s);
	else
		rope_rotate(element, KVC_ROPE_NEOX, 0, way.ahead, in, out, count, half, c, s);
}

ROPE_TARGET static void rope_rotate_f32(struct rope_way way, struct rope_heads in,
        struct rope_heads out, int64_t count, int64_t half, const float *c, const float *s)
{
	rope_rotate_type(KVC__ELEMENT_F32, way, in, out, count, half, c, s);
}

ROPE_TARGET static void rope_rotate_f16(struct rope_way way, struct rope_heads in,
        struct rope_heads out, int64_t count, int64_t half, const float *c, const float *s)
{
	rope_rotate_type(KVC__ELEMENT_F16, way, in, out, count, half, c, s);
}

ROPE_TARGET static void rope_rotate_bf16(struct rope_way way, struct rope_heads in,
        struct rope_heads out, int64_t count, int64_t half, const float *c, const float *s)
{
	rope_rotate_type(KVC__ELEMENT_BF16, way, in, out, count, half, c, s);
}

/* All elements of 'count' heads: the rotated ones, and the others as they are. */
ROPE_TARGET static void rope_rotate_heads(const struct rope_run *run, int stream,
        struct rope_heads in, struct rope_heads out, int64_t count, int64_t dim, int64_t offset)
{
	const kvc_rope *rope = run->job->rope;
	int64_t begin = offset * run->width;
	int64_t end = (offset + rope->rotary_dim) * run->width;
	int64_t past = dim * run->width;
	for (int64_t h = 0; (begin > 0 || end < past) && in.data != out.data && h < count; h++) {
		const char *x = in.data + h * in.stride;
		char *r = out.data + h * out.stride;
		memcpy(r, x, (size_t)begin);
		memcpy(r + end, x + end, (size_t)(past - end));
	}
	in.data += begin;
	out.data += begin;
	int64_t half = rope->rotary_dim / 2;
	struct rope_way way = { rope->style, run->stream, stream };
	if (run->job->element == KVC__ELEMENT_BF16)
		rope_rotate_bf16(way, in, out, count, half, run->c, run->s);
	else if (run->job->element == KVC__ELEMENT_F16)
		rope_rotate_f16(way, in, out, count, half, run->c, run->s);
	else
		rope_rotate_f32(way, in, out, count, half, run->c, run->s);
}

/* Do whole blocks of rotated pairs fill whole lines of these heads, and nothing else is in them? */
ROPE_INLINE int rope_fills_lines(const struct rope_run *run, struct rope_heads out, int64_t dim)
{
	int64_t rotary_dim = run->job->rope->rotary_dim;
	int64_t half_bytes = rotary_dim / 2 * run->width;
	return rotary_dim == dim && half_bytes % 64 == 0 && rotary_dim % (2 * ROPE_PAIRS) == 0 &&
	       (uintptr_t)out.data % 64 == 0 && out.stride % 64 == 0;
}

/* ---- 8-bit pools ---- */

/* The functions of float_formats.h in loops that the compiler turns into vector code. */
ROPE_TARGET static void rope_quantise(
        const struct rope_run *run, const char *in, float scale, uint8_t *out, int64_t count)
{
	float wide[ROPE_CHUNK];
	uint16_t half[ROPE_CHUNK];
	if (run->job->element == KVC__ELEMENT_F32) {
		memcpy(wide, in, (size_t)count * sizeof *wide);
	} else {
		memcpy(half, in, (size_t)count * sizeof *half);
		if (run->job->element == KVC__ELEMENT_BF16)
			for (int64_t i = 0; i < count; i++)
				wide[i] = kvc__f32_from_bf16(half[i]);
		else
			for (int64_t i = 0; i < count; i++)
				wide[i] = kvc__f32_from_f16(half[i]);
	}
	if (run->job->pool_element == KVC__ELEMENT_E4M3)
		for (int64_t i = 0; i < count; i++)
			out[i] = kvc__e4m3_scaled(wide[i], scale);
	else
		for (int64_t i = 0; i < count; i++)
			out[i] = kvc__e5m2_scaled(wide[i], scale);
}

ROPE_TARGET static void rope_quantise_heads(
        const struct rope_run *run, struct rope_heads in, float scale, char *out, int64_t count)
{
	int64_t dim = run->job->kv_dim;
	for (int64_t h = 0; h < count; h++)
		for (int64_t d = 0; d < dim; d += ROPE_CHUNK)
			rope_quantise(run, in.data + h * in.stride + d * run->width, scale,
			        (uint8_t *)out + h * dim + d,
			        dim - d < ROPE_CHUNK ? dim - d : ROPE_CHUNK);
}

/* Store heads [first, first + count) of the pool's row, from the bytes of k_out or v. 'bytes8' takes
 * them if they are quantised. Returns where the pool's bytes lie in cache. */
ROPE_TARGET static struct rope_heads rope_store(const struct rope_run *run,
        const struct kvc__rows *pool, int64_t slot, int64_t first, int64_t count,
        struct rope_heads from, float scale, char *bytes8)
{
	int64_t head_bytes = run->job->kv_dim * run->width;
	if (run->job->pool_element != run->job->element) {
		rope_quantise_heads(run, from, scale, bytes8, count);
		head_bytes = run->job->kv_dim;
		from.data = bytes8;
		from.stride = head_bytes;
	}
	rope_copy_heads(run->stream, rope_heads_at(pool, slot, first), from, count, head_bytes);
	return from;
}

/* ---- one token ---- */

ROPE_TARGET static void rope_take_angles(struct rope_run *run, int64_t position)
{
	const kvc_rope *rope = run->job->rope;
	int64_t half = rope->rotary_dim / 2;
	int64_t padded = (half + ROPE_PAIRS - 1) / ROPE_PAIRS * ROPE_PAIRS;
	if (rope->cos_sin)
		kvc__rope_angles(rope, position, run->c, run->s);
	else
		ROPE_ANGLES(rope->inv_freq, (double)position, rope->attention_factor, run->c,
		        run->s, half);
	for (int64_t i = half; i < padded; i++)
		run->c[i] = run->s[i] = 0.0f;
	ROPE_ARRANGE(run->job->element, rope->style, run->c, run->s, padded);
}

ROPE_TARGET static void rope_q_row(struct rope_run *run, int64_t token)
{
	const struct kvc__rope_job *job = run->job;
	int64_t head_bytes = job->q_dim * run->width;
	for (int64_t first = 0; first < job->q_heads; first += run->q_group) {
		int64_t rest = job->q_heads - first;
		int64_t count = rest < run->q_group ? rest : run->q_group;
		struct rope_heads in = rope_heads_at(&job->q, token, first);
		struct rope_heads out = rope_heads_at(&job->q_out, token, first);
		struct rope_heads staged = { run->stage, head_bytes };
		int past = run->stream && in.data != out.data;
		int direct = past && rope_fills_lines(run, out, job->q_dim);
		int through_stage = past && !direct;
		rope_rotate_heads(run, direct, in, through_stage ? staged : out, count, job->q_dim,
		        job->q_rotary_offset);
		if (through_stage)
			rope_copy_heads(1, out, staged, count, head_bytes);
	}
}

/* Rotates K; stores it unless slot is negative. Returns the pool's bytes, as rope_store(). */
ROPE_TARGET static struct rope_heads rope_k_row(struct rope_run *run, int64_t token, int64_t slot)
{
	const struct kvc__rope_job *job = run->job;
	int64_t head_bytes = job->kv_dim * run->width;
	struct rope_heads stored = { NULL, 0 };
	for (int64_t first = 0; first < job->kv_heads; first += run->kv_group) {
		int64_t rest = job->kv_heads - first;
		int64_t count = rest < run->kv_group ? rest : run->kv_group;
		struct rope_heads in = rope_heads_at(&job->k, token, first);
		struct rope_heads rotated = { run->stage, head_bytes };
		struct rope_heads out = { NULL, 0 };
		if (job->k_out.data)
			out = rope_heads_at(&job->k_out, token, first);
		int through_stage = !out.data || (run->stream && in.data != out.data);
		if (!through_stage)
			rotated = out;
		rope_rotate_heads(run, 0, in, rotated, count, job->kv_dim, job->rotary_offset);
		if (through_stage && out.data)
			rope_copy_heads(1, out, rotated, count, head_bytes);
		if (slot >= 0)
			stored = rope_store(run, &job->k_pool, slot, first, count, rotated,
			        job->k_scale, run->k8);
	}
	return stored;
}

ROPE_TARGET static struct rope_heads rope_v_row(struct rope_run *run, int64_t token, int64_t slot)
{
	const struct kvc__rope_job *job = run->job;
	struct rope_heads stored = { NULL, 0 };
	for (int64_t first = 0; first < job->kv_heads; first += run->kv_group) {
		int64_t rest = job->kv_heads - first;
		int64_t count = rest < run->kv_group ? rest : run->kv_group;
		struct rope_heads in = rope_heads_at(&job->v, token, first);
		for (int64_t h = 0; run->stream && h < count; h++)
			rope_ask_ahead(in.data + h * in.stride, job->kv_dim * run->width);
		stored = rope_store(
		        run, &job->v_pool, slot, first, count, in, job->v_scale, run->v8);
	}
	return stored;
}

ROPE_TARGET static void rope_one_token(struct rope_run *run, int64_t token)
{
	const struct kvc__rope_job *job = run->job;
	int64_t slot = kvc__index_read(&job->slots, token);
	int64_t position = kvc__index_read(&job->positions, token);
	int skipped = kvc__slot_skipped(job, slot);
	/* The front door lets a bad position pass only on a skipped row, which then stays as it is. */
	if (position < 0 || position >= job->position_count)
		return;
	rope_take_angles(run, position);
	if (job->q_out.data)
		rope_q_row(run, token);
	if (skipped) {
		if (job->k_out.data)
			rope_k_row(run, token, -1);
		return;
	}
	struct rope_heads k = rope_k_row(run, token, slot);
	struct rope_heads v = { NULL, 0 };
	if (job->v.data)
		v = rope_v_row(run, token, slot);
	if (!job->stamp)
		return;
	/* From where the bytes are in cache: streamed ones are in no line of the pool. */
	if (run->stamp_from_pool) {
		k = rope_heads_at(&job->k_pool, slot, 0);
		v = rope_heads_at(&job->v_pool, slot, 0);
	}
	uint64_t share = kvc__stamp_share(job, k.data, k.stride, v.data, v.stride, ROPE_XXH3);
	kvc__stamp_later(job->stamp, &run->shares, slot, share);
}

ROPE_TARGET void ROPE_ROWS(void *task, int64_t begin, int64_t end)
{
	const struct kvc__rope_job *job = task;
	struct rope_run run;
	run.job = job;
	run.width = kvc__element_bytes(job->element);
	int64_t longest = job->q_dim > job->kv_dim ? job->q_dim : job->kv_dim;
	if (job->q_dim == 0 || job->kv_dim == 0 || longest * run.width > ROPE_STAGE) {
		kvc__rope_rows_portable(task, begin, end);
		return;
	}
	run.q_group = ROPE_STAGE / (job->q_dim * run.width);
	run.kv_group = ROPE_STAGE / (job->kv_dim * run.width);
	/* The stamp of a row in several groups is made from the pool, which must be in cache then. */
	run.stamp_from_pool = job->kv_heads > run.kv_group;
	run.stream = job->streams && !(job->stamp && run.stamp_from_pool);
	run.shares.count = 0;
	for (int64_t token = begin; token < end; token++)
		rope_one_token(&run, token);
	kvc__stamp_flush(job->stamp, &run.shares);
	if (run.stream)
		ROPE_FENCE();
}
