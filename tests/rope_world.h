/*
 * A call of kvc_rope_pool_fused with all its memory, and an oracle that looks at every byte of it
 * afterwards. Each buffer lies between pages that must not be touched, ends where the second one
 * begins, and is filled with 0xA5 first.
 *
 * The oracle works element by element, unlike the library: exact expected bits from the arithmetic
 * that SPEC section 2 defines, and for each rotated element the distance to the exact result in long
 * double. world_check() then wants every byte that is no output of a processed token unchanged.
 */
#ifndef ROPE_WORLD_H
#define ROPE_WORLD_H

#include "base/float_formats.h"
#include "base/sincos.h"
#include "expect.h"
#include "kvcanary.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define FILL 0xA5
#define BUFFER_MAX 16

/* ---- memory between two guard pages: it ends at the second one, or starts at the first ---- */

static int buffers_at_front;

struct buffer {
	char *mapped;
	size_t mapped_bytes;
	char *data;
	size_t bytes;
	char *before; /* contents at world_snapshot() */
};

static inline struct buffer buffer_new(size_t bytes)
{
	struct buffer b;
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	size_t whole = (bytes + page - 1) / page * page;
	b.mapped_bytes = whole + 2 * page;
	b.mapped = mmap(NULL, b.mapped_bytes, PROT_READ | PROT_WRITE,
	        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	assert_true(b.mapped != MAP_FAILED);
	assert_int_equal(mprotect(b.mapped, page, PROT_NONE), 0);
	assert_int_equal(mprotect(b.mapped + page + whole, page, PROT_NONE), 0);
	b.data = b.mapped + page + (buffers_at_front ? 0 : whole - bytes);
	b.bytes = bytes;
	b.before = malloc(bytes + 1);
	memset(b.data, FILL, bytes);
	return b;
}

static inline void buffer_free(struct buffer *b)
{
	munmap(b->mapped, b->mapped_bytes);
	free(b->before);
}

/* ---- a tensor in a buffer ---- */

struct view {
	kvc_tensor tensor;
	int64_t shape[3];
	int64_t strides[3];
	struct buffer *buffer;
};

static inline int64_t width_of(kvc_dtype dtype)
{
	return dtype.bits / 8;
}

static inline char *view_at(const struct view *v, int64_t i, int64_t j, int64_t d)
{
	int64_t element = i * v->strides[0] + j * v->strides[1] + d * v->strides[2];
	return (char *)v->tensor.data + v->tensor.byte_offset + element * width_of(v->tensor.dtype);
}

/* The bits of an element now, or at the snapshot. */
static inline uint32_t bits_at(const struct view *v, int64_t i, int64_t j, int64_t d, int before)
{
	const char *at = view_at(v, i, j, d);
	uint32_t bits = 0;
	if (before)
		at = v->buffer->before + (at - v->buffer->data);
	memcpy(&bits, at, (size_t)width_of(v->tensor.dtype)); /* little-endian */
	return bits;
}

static inline void set_bits(const struct view *v, int64_t i, int64_t j, int64_t d, uint32_t bits)
{
	memcpy(view_at(v, i, j, d), &bits, (size_t)width_of(v->tensor.dtype));
}

static inline float float_from(kvc_dtype dtype, uint32_t bits)
{
	if (dtype.code == KVC_CODE_BFLOAT)
		return kvc__f32_from_bf16((uint16_t)bits);
	if (dtype.code == KVC_CODE_FLOAT && dtype.bits == 16)
		return kvc__f32_from_f16((uint16_t)bits);
	return kvc__float_of(bits);
}

static inline uint32_t bits_from(kvc_dtype dtype, float value)
{
	if (dtype.code == KVC_CODE_BFLOAT)
		return kvc__bf16_from_f32(value);
	if (dtype.code == KVC_CODE_FLOAT && dtype.bits == 16)
		return kvc__f16_from_f32(value);
	return kvc__f32_canonical(value);
}

static inline int is_fp8(kvc_dtype dtype)
{
	return dtype.bits == 8;
}

/* ---- the world ---- */

struct size {
	int64_t tokens, q_heads, kv_heads, q_dim, kv_dim, slots;
};

struct world {
	struct size size;
	struct buffer buffers[BUFFER_MAX];
	int buffer_count;
	struct view q, k, v, q_out, k_out, k_pool, v_pool, positions, slots;
	kvc_rope rope;
	kvc_rope_pool_args args;
	kvc_report report;
};

static inline struct buffer *world_buffer(struct world *w, int64_t bytes)
{
	assert_true(w->buffer_count < BUFFER_MAX);
	w->buffers[w->buffer_count] = buffer_new((size_t)bytes);
	return &w->buffers[w->buffer_count++];
}

/* View [n0, n1, n2] at element 'offset' of a buffer. */
static inline void view_set(struct view *v, struct buffer *b, kvc_dtype dtype, int64_t offset,
        int64_t n0, int64_t n1, int64_t n2, int64_t s0, int64_t s1)
{
	memset(v, 0, sizeof *v);
	v->shape[0] = n0, v->shape[1] = n1, v->shape[2] = n2;
	v->strides[0] = s0, v->strides[1] = s1, v->strides[2] = 1;
	v->tensor = kvc_tensor_make(b->data, dtype, 3, v->shape);
	v->tensor.byte_offset = (uint64_t)(offset * width_of(dtype));
	v->tensor.strides = v->strides;
	v->buffer = b;
}

/* A contiguous view in a buffer of its own. */
static inline void world_plain(
        struct world *w, struct view *v, kvc_dtype dtype, int64_t n0, int64_t n1, int64_t n2)
{
	struct buffer *b = world_buffer(w, n0 * n1 * n2 * width_of(dtype));
	view_set(v, b, dtype, 0, n0, n1, n2, n1 * n2, n2);
}

/* n entries of int32 or int64. */
static inline void world_indices(struct world *w, struct view *v, kvc_dtype dtype, int64_t n)
{
	world_plain(w, v, dtype, n, 1, 1);
	v->tensor.ndim = 1;
	v->strides[0] = 1;
}

static inline void set_index(const struct view *v, int64_t i, int64_t value)
{
	memcpy(view_at(v, i, 0, 0), &value, (size_t)width_of(v->tensor.dtype));
}

static inline int64_t index_at(const struct view *v, int64_t i)
{
	int64_t wide;
	int32_t narrow;
	if (v->tensor.dtype.bits == 64) {
		memcpy(&wide, view_at(v, i, 0, 0), sizeof wide);
		return wide;
	}
	memcpy(&narrow, view_at(v, i, 0, 0), sizeof narrow);
	return narrow;
}

/* Finite values with a period that is prime, so that swapped blocks cannot look right. */
static inline void view_fill(const struct view *v, int64_t seed)
{
	int64_t count = 0;
	for (int64_t i = 0; i < v->shape[0]; i++)
		for (int64_t j = 0; j < v->shape[1]; j++)
			for (int64_t d = 0; d < v->shape[2]; d++, count++) {
				float value = (float)((count * 17 + seed) % 251 - 125) / 37.0f;
				set_bits(v, i, j, d, bits_from(v->tensor.dtype, value));
			}
}

static inline void world_use_all(struct world *w)
{
	w->args = (kvc_rope_pool_args)KVC_ROPE_POOL_ARGS_INIT;
	w->args.q = &w->q.tensor, w->args.k = &w->k.tensor, w->args.v = &w->v.tensor;
	w->args.positions = &w->positions.tensor, w->args.slots = &w->slots.tensor;
	w->args.k_pool = &w->k_pool.tensor, w->args.v_pool = &w->v_pool.tensor;
	w->args.q_out = &w->q_out.tensor, w->args.k_out = &w->k_out.tensor;
	w->args.rope = &w->rope;
	w->args.report = &w->report;
	expect_ok(kvc_report_init(&w->report, KVC_HOST, NULL));
}

static inline void world_rope(struct world *w, int32_t rotary_dim, int32_t style)
{
	kvc_rope_options options = KVC_ROPE_OPTIONS_INIT;
	options.rotary_dim = rotary_dim;
	options.style = style;
	expect_ok(kvc_rope_init(&w->rope, &options));
}

/* Positions 0, 1, ... and slots 4, 5, ... (mod P). */
static inline void world_count_up(struct world *w)
{
	for (int64_t i = 0; i < w->size.tokens; i++) {
		set_index(&w->positions, i, i);
		set_index(&w->slots, i, (i + 4) % w->size.slots);
	}
}

/* Contiguous tensors in buffers of their own, q_out and k_out apart from q and k. */
static inline void world_make(
        struct world *w, struct size size, kvc_dtype dtype, kvc_dtype pool, kvc_dtype index)
{
	memset(w, 0, sizeof *w);
	w->size = size;
	world_plain(w, &w->q, dtype, size.tokens, size.q_heads, size.q_dim);
	world_plain(w, &w->k, dtype, size.tokens, size.kv_heads, size.kv_dim);
	world_plain(w, &w->v, dtype, size.tokens, size.kv_heads, size.kv_dim);
	world_plain(w, &w->q_out, dtype, size.tokens, size.q_heads, size.q_dim);
	world_plain(w, &w->k_out, dtype, size.tokens, size.kv_heads, size.kv_dim);
	world_plain(w, &w->k_pool, pool, size.slots, size.kv_heads, size.kv_dim);
	world_plain(w, &w->v_pool, pool, size.slots, size.kv_heads, size.kv_dim);
	world_indices(w, &w->positions, index, size.tokens);
	world_indices(w, &w->slots, index, size.tokens);
	world_rope(w, (int32_t)(size.kv_dim < KVC_ROTARY_DIM_MAX ? size.kv_dim / 2 * 2 : 0),
	        KVC_ROPE_NEOX);
	view_fill(&w->q, 1);
	view_fill(&w->k, 2);
	view_fill(&w->v, 3);
	world_count_up(w);
	world_use_all(w);
}

/* X of the cases: T=4, Hq=2, Hkv=1, D=8, bfloat16, P=32. */
static inline void world_x(struct world *w)
{
	struct size size = { 4, 2, 1, 8, 8, 32 };
	world_make(w, size, KVC_BFLOAT16, KVC_BFLOAT16, KVC_INT64);
}

static inline void world_in_place(struct world *w)
{
	w->q_out = w->q;
	w->k_out = w->k;
	w->q_out.tensor.shape = w->q_out.shape, w->q_out.tensor.strides = w->q_out.strides;
	w->k_out.tensor.shape = w->k_out.shape, w->k_out.tensor.strides = w->k_out.strides;
}

static inline void world_k_only(struct world *w)
{
	w->args.v = NULL;
	w->args.v_pool = NULL;
}

static inline void world_free(struct world *w)
{
	for (int i = 0; i < w->buffer_count; i++)
		buffer_free(&w->buffers[i]);
}

static inline void world_snapshot(struct world *w)
{
	for (int i = 0; i < w->buffer_count; i++)
		memcpy(w->buffers[i].before, w->buffers[i].data, w->buffers[i].bytes);
}

/* No byte differs from the snapshot. */
static inline void world_check_untouched(const struct world *w)
{
	for (int i = 0; i < w->buffer_count; i++)
		assert_memory_equal(w->buffers[i].before, w->buffers[i].data, w->buffers[i].bytes);
}

static inline kvc_status world_call(struct world *w)
{
	world_snapshot(w);
	return kvc_rope_pool_fused(&w->args, NULL);
}

/* ---- the oracle ---- */

struct angles {
	float c[KVC_ROTARY_DIM_MAX / 2], s[KVC_ROTARY_DIM_MAX / 2];
	long double exact_c[KVC_ROTARY_DIM_MAX / 2], exact_s[KVC_ROTARY_DIM_MAX / 2];
};

static inline void angles_of(const kvc_rope *rope, int64_t position, struct angles *a)
{
	int64_t half = rope->rotary_dim / 2;
	for (int64_t i = 0; i < half; i++) {
		if (rope->cos_sin) {
			a->c[i] = rope->cos_sin[position * rope->cos_sin_row_stride + i];
			a->s[i] = rope->cos_sin[position * rope->cos_sin_row_stride + half + i];
			a->exact_c[i] = a->c[i], a->exact_s[i] = a->s[i];
			continue;
		}
		double c;
		double s;
		kvc__sincos((double)position * rope->inv_freq[i], &c, &s);
		a->c[i] = (float)(rope->attention_factor * c);
		a->s[i] = (float)(rope->attention_factor * s);
		long double angle = (long double)position * (long double)rope->inv_freq[i];
		a->exact_c[i] = cosl(angle) * (long double)rope->attention_factor;
		a->exact_s[i] = sinl(angle) * (long double)rope->attention_factor;
	}
}

/* One unit in the last place of a type, at this value. */
static inline long double ulp_at(kvc_dtype dtype, long double value)
{
	int digits = dtype.code == KVC_CODE_BFLOAT ? 8 : dtype.bits == 16 ? 11 : 24;
	int lowest = dtype.bits == 16 && dtype.code == KVC_CODE_FLOAT ? -24
	             : dtype.bits == 16                               ? -133
	                                                              : -149;
	int exponent = 0;
	if (value == 0)
		return ldexpl(1, lowest);
	frexpl(value, &exponent);
	int unit = exponent - digits;
	return ldexpl(1, unit > lowest ? unit : lowest);
}

static inline void check_accuracy(
        kvc_dtype dtype, uint32_t got, float x1, float x2, long double c, long double s, int first)
{
	if (!isfinite(x1) || !isfinite(x2))
		return;
	long double exact = first ? (long double)x1 * c - (long double)x2 * s
	                          : (long double)x1 * s + (long double)x2 * c;
	long double norm = hypotl(x1, x2) * hypotl(c, s);
	long double allowed = 4 * ulp_at(KVC_FLOAT32, norm);
	long double unit = ulp_at(dtype, exact);
	if (unit > allowed)
		allowed = unit;
	long double error = fabsl((long double)float_from(dtype, got) - exact);
	if (isfinite(float_from(dtype, got)) && !(error <= allowed))
		fail_msg("got %g, exact %Lg, error %Lg, allowed %Lg",
		        (double)float_from(dtype, got), exact, error, allowed);
}

/* The bits that element d of a head must have after the rotation. */
static inline uint32_t expected_bits(const kvc_rope *rope, const struct angles *a,
        const struct view *in, int64_t i, int64_t j, int64_t d, int64_t offset)
{
	kvc_dtype dtype = in->tensor.dtype;
	int64_t at = d - offset;
	int64_t half = rope->rotary_dim / 2;
	if (at < 0 || at >= rope->rotary_dim)
		return bits_at(in, i, j, d, 1);
	int interleaved = rope->style == KVC_ROPE_INTERLEAVED;
	int64_t pair = interleaved ? at / 2 : at % half;
	int first = interleaved ? at % 2 == 0 : at < half;
	int64_t distance = interleaved ? 1 : half;
	float x1 = float_from(dtype, bits_at(in, i, j, first ? d : d - distance, 1));
	float x2 = float_from(dtype, bits_at(in, i, j, first ? d + distance : d, 1));
	volatile float p1 = first ? x1 * a->c[pair] : x1 * a->s[pair];
	volatile float p2 = first ? x2 * a->s[pair] : x2 * a->c[pair];
	uint32_t bits = bits_from(dtype, first ? p1 - p2 : p1 + p2);
	check_accuracy(dtype, bits, x1, x2, a->exact_c[pair], a->exact_s[pair], first);
	return bits;
}

/* The bits of a pool element made from the bits of a rotated or given one. */
static inline uint32_t pool_bits(kvc_dtype pool, kvc_dtype from, uint32_t bits, float scale)
{
	if (!is_fp8(pool))
		return bits;
	float value = float_from(from, bits);
	uint32_t byte = pool.code == KVC_CODE_FLOAT8_E4M3FN ? kvc__e4m3_from_f32(value / scale)
	                                                    : kvc__e5m2_from_f32(value / scale);
	return isnan(value) ? 0x7Fu | (kvc__bits_of(value) >> 31 << 7) : byte;
}

/* Compare an output element, and take it over into the snapshot. */
static inline void check_element(const struct view *out, int64_t i, int64_t j, int64_t d,
        uint32_t want, const char *name, int64_t token)
{
	char *at = view_at(out, i, j, d);
	uint32_t got = bits_at(out, i, j, d, 0);
	if (got != want)
		fail_msg("%s of token %lld (row %lld) head %lld dim %lld: got %08X, want %08X",
		        name, (long long)token, (long long)i, (long long)j, (long long)d, got,
		        want);
	memcpy(out->buffer->before + (at - out->buffer->data), at,
	        (size_t)width_of(out->tensor.dtype));
}

/* Slots and positions as before the call: they are inputs, checked to be unchanged. */
static inline void check_token(
        struct world *w, int64_t i, char *pool_done, struct angles *a, uint32_t *row)
{
	int64_t slot = index_at(&w->slots, i);
	int64_t position = index_at(&w->positions, i);
	int64_t limit = w->rope.cos_sin ? w->rope.cos_sin_rows : (int64_t)KVC_POSITION_MAX + 1;
	int skipped = slot < 0 || (w->args.reserved_slot >= 0 && slot == w->args.reserved_slot);
	if (position < 0 || position >= limit)
		return;
	angles_of(&w->rope, position, a);
	for (int64_t h = 0; w->args.q_out && h < w->size.q_heads; h++) {
		for (int64_t d = 0; d < w->size.q_dim; d++)
			row[d] =
			        expected_bits(&w->rope, a, &w->q, i, h, d, w->args.q_rotary_offset);
		for (int64_t d = 0; d < w->size.q_dim; d++)
			check_element(&w->q_out, i, h, d, row[d], "q_out", i);
	}
	for (int64_t h = 0; h < w->size.kv_heads; h++) {
		for (int64_t d = 0; d < w->size.kv_dim; d++)
			row[d] = expected_bits(&w->rope, a, &w->k, i, h, d, w->args.rotary_offset);
		for (int64_t d = 0; d < w->size.kv_dim; d++) {
			if (w->args.k_out)
				check_element(&w->k_out, i, h, d, row[d], "k_out", i);
			if (skipped)
				continue;
			check_element(&w->k_pool, slot, h, d,
			        pool_bits(w->k_pool.tensor.dtype, w->k.tensor.dtype, row[d],
			                w->args.k_scale),
			        "k_pool", i);
			if (w->args.v)
				check_element(&w->v_pool, slot, h, d,
				        pool_bits(w->v_pool.tensor.dtype, w->v.tensor.dtype,
				                bits_at(&w->v, i, h, d, 1), w->args.v_scale),
				        "v_pool", i);
		}
	}
	if (!skipped)
		pool_done[slot] = 1;
}

/*
 * After a call that returned KVC_OK: outputs are right and all other bytes are as before. Slots of
 * stored tokens are distinct.
 */
static inline void world_check(struct world *w)
{
	int64_t rows = w->args.n_valid >= 0 ? w->args.n_valid : w->size.tokens;
	int64_t dim = w->size.q_dim > w->size.kv_dim ? w->size.q_dim : w->size.kv_dim;
	char *pool_done = calloc((size_t)w->size.slots + 1, 1);
	uint32_t *row = malloc(((size_t)dim + 1) * sizeof *row);
	struct angles *a = malloc(sizeof *a);
	for (int64_t i = 0; i < rows; i++)
		check_token(w, i, pool_done, a, row);
	int64_t written = 0;
	for (int64_t slot = 0; slot < w->size.slots; slot++)
		written += pool_done[slot];
	if (w->args.report) {
		assert_int_equal(w->report.rows_written, written);
		assert_int_equal(w->report.rows_skipped, rows - written);
	}
	world_check_untouched(w);
	free(a);
	free(row);
	free(pool_done);
}

/* The call succeeds, and the oracle agrees. */
static inline void world_run(struct world *w)
{
	expect_ok(kvc_report_init(&w->report, KVC_HOST, NULL));
	expect_ok(world_call(w));
	world_check(w);
}

/* The call is refused with this error, and no byte has changed. */
#define world_refused(w, status, slug, message, where)                                             \
	do {                                                                                       \
		expect_error(world_call(w), status, slug, message, where);                         \
		world_check_untouched(w);                                                          \
	} while (0)

#endif
