/*
 * rope_pool_fused for one set of vector instructions. Included by rope_<set>.c after
 * rope_vectors.h and these steps, all ROPE_INLINE, of that set:
 *
 *   upper_halves, lower_halves   upper (lower) 16 bits of each lane of 'even' and 'odd' in turn
 *   round_halves                 'high', what stays of a float32, rounded to nearest even by 'low', what
 *                                goes: 1 more if low > 8000h, or low = 8000h and high is odd
 *   lesser                       the lesser of two
 *   choose                       lanes of 'set' where the mask is all ones, of 'clear' where it is 0
 *   gather_nonfinite             a value that is not finite in lanes where 'so_far', a or b is not, and
 *                                finite where all are far from the largest float32
 *   any_set                      is a lane of the mask not 0?
 *   swap_neighbours              lanes 1 0 3 2 ...
 *   twice_each                   lanes 0 0 1 1 ..., the whole of which fills two vectors
 *   part_places                  lanes 0 2 4 ... and 1 3 5 ... of a and b in a row
 *   widen_f16, narrow_f16        two vectors of float32 in order; NaN stay NaN
 *   pack_words, pack_halves      to lanes of half the width; values fit
 *   store_past                   store past the caches, to a place aligned to ROPE_BYTES
 *
 * and ROPE_ROWS (name of the kernel, a kvc_range_fn), ROPE_SINCOS (of the kvc__sincos_fn),
 * ROPE_XXH3 (hash for stamps), ROPE_FENCE() (makes store_past() visible to other threads).
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
#include "base/sincos.h"
#include "cpu/rope.h"
#include "cpu/xxh3.h"

#include <string.h>

/* Pairs of a block: 16-bit elements of a vector. */
#define ROPE_PAIRS (2 * ROPE_LANES)

/* Bytes of a staging row: as many heads as fit are done at a time. A head that does not fit is left
 * to the portable kernel. */
#define ROPE_STAGE 8192

/* Of q, k and v, in a large call. Rows lie one behind the other, so this runs into the next token. */
#define ROPE_AHEAD 4096

struct rope_run {
	const struct kvc__rope_job *job;
	int stream;    /* large call: stores go past the caches */
	int64_t width; /* bytes of one element of q, k, v */
	int stamp_from_pool;
	int64_t q_group; /* heads whose elements fit the staging row */
	int64_t kv_group;
	struct kvc__shares shares; /* of stamps, not yet added */
	/* Aligned, because a vector that lies across two lines takes two loads. */
	_Alignas(64) float c[KVC_ROTARY_DIM_MAX + ROPE_PAIRS];
	_Alignas(64) float s[KVC_ROTARY_DIM_MAX + ROPE_PAIRS];
	_Alignas(64) char stage[ROPE_STAGE]; /* of q_out or k_out */
	_Alignas(64) char k8[ROPE_STAGE];    /* the K row as 8-bit elements */
	_Alignas(64) char v8[ROPE_STAGE];    /* the V row */
};

/* Some heads of one token. */
struct rope_heads {
	char *data;
	int64_t stride; /* bytes from one head to the next */
};

ROPE_INLINE struct rope_heads rope_heads_at(const struct kvc__rows *rows, int64_t row, int64_t head)
{
	struct rope_heads at = { rows->data + row * rows->row_stride + head * rows->head_stride,
		rows->head_stride };
	return at;
}

/* ---- loads and stores of any alignment ---- */

/* 'left' bytes are there; a vector that reaches further is filled up with 0. */
ROPE_INLINE words load(const char *at, int64_t left)
{
	words v = { 0 };
	if (left >= ROPE_BYTES)
		memcpy(&v, at, sizeof v);
	else if (left > 0)
		memcpy(&v, at, (size_t)left);
	return v;
}

ROPE_INLINE floats load_floats(const float *at)
{
	floats v;
	memcpy(&v, at, sizeof v);
	return v;
}

ROPE_INLINE void store_floats(float *at, floats v)
{
	memcpy(at, &v, sizeof v);
}

ROPE_INLINE void store(int stream, char *at, words v, int64_t left)
{
	if (left < ROPE_BYTES) {
		if (left > 0)
			memcpy(at, &v, (size_t)left);
	} else if (stream) {
		store_past(at, v);
	} else {
		memcpy(at, &v, sizeof v);
	}
}

/* Whole lines of 64 bytes go out in one piece; what is before and after them goes the usual way.
 * 'ahead': for each line one that far on is asked for. */
ROPE_INLINE void copy_past(char *to, const char *from, int64_t bytes, int64_t ahead)
{
	int64_t at = (int64_t)((64 - (uintptr_t)to % 64) % 64);
	if (bytes < at + 64) {
		memcpy(to, from, (size_t)bytes);
		return;
	}
	memcpy(to, from, (size_t)at);
	for (; at + 64 <= bytes; at += 64) {
		if (ahead)
			__builtin_prefetch(from + at + ahead);
		for (int64_t i = at; i < at + 64; i += ROPE_BYTES)
			store_past(to + i, load(from + i, ROPE_BYTES));
	}
	memcpy(to + at, from + at, (size_t)(bytes - at));
}

/* How rows are copied. */
enum rope_copy {
	COPY,            /* through the caches */
	COPY_PAST,       /* past them, from where it is in cache */
	COPY_PAST_AHEAD, /* from memory */
};

ROPE_INLINE void copy_bytes(enum rope_copy how, char *to, const char *from, int64_t bytes)
{
	if (how == COPY)
		memcpy(to, from, (size_t)bytes);
	else
		copy_past(to, from, bytes, how == COPY_PAST_AHEAD ? ROPE_AHEAD : 0);
}

ROPE_TARGET static void copy_heads(enum rope_copy how, struct rope_heads to, struct rope_heads from,
        int64_t count, int64_t head_bytes)
{
	if (to.stride == head_bytes && from.stride == head_bytes) {
		copy_bytes(how, to.data, from.data, count * head_bytes);
		return;
	}
	for (int64_t h = 0; h < count; h++)
		copy_bytes(how, to.data + h * to.stride, from.data + h * from.stride, head_bytes);
}

/* ---- cosines and sines ---- */

/*
 * kvc__sincos() lane by lane: the same operations in the same order. Each step for both vectors in turn,
 * because each is a chain whose every operation waits for the one before.
 */
ROPE_INLINE void sincos_lanes(const doubles angle[2], doubles cos_out[2], doubles sin_out[2])
{
	doubles r[2], sine[2], cosine[2];
	longs quadrant[2];
	for (int i = 0; i < 2; i++) {
		doubles shifted = angle[i] * KVC__TWO_OVER_PI + KVC__ROUND_MAGIC;
		doubles n = shifted - KVC__ROUND_MAGIC;
		quadrant[i] = (longs)shifted;
		r[i] = angle[i] - n * KVC__HALF_PI_1;
		r[i] = r[i] - n * KVC__HALF_PI_2;
		r[i] = r[i] - n * KVC__HALF_PI_3;
	}
	for (int i = 0; i < 2; i++) {
		doubles z = r[i] * r[i];
		doubles p = KVC__SIN_5 + z * KVC__SIN_6;
		p = KVC__SIN_4 + z * p;
		p = KVC__SIN_3 + z * p;
		p = KVC__SIN_2 + z * p;
		p = KVC__SIN_1 + z * p;
		sine[i] = r[i] + (r[i] * z) * p;
	}
	for (int i = 0; i < 2; i++) {
		doubles z = r[i] * r[i];
		doubles q = KVC__COS_5 + z * KVC__COS_6;
		q = KVC__COS_4 + z * q;
		q = KVC__COS_3 + z * q;
		q = KVC__COS_2 + z * q;
		q = KVC__COS_1 + z * q;
		cosine[i] = (1.0 - 0.5 * z) + (z * z) * q;
	}
	/* In odd quadrants the two change places; bit 1 of quadrant + 1, and of quadrant, negates. */
	for (int i = 0; i < 2; i++) {
		longs swapped = ((longs)cosine[i] ^ (longs)sine[i]) & -(quadrant[i] & 1);
		cos_out[i] = (doubles)((longs)cosine[i] ^ swapped ^ ((quadrant[i] + 1) >> 1 << 63));
		sin_out[i] = (doubles)((longs)sine[i] ^ swapped ^ (quadrant[i] >> 1 << 63));
	}
}

/* One by one: gcc 12 copies an array of vectors in pieces, through memory. */
ROPE_INLINE void load_doubles(const double *at, doubles v[2])
{
	for (int i = 0; i < 2; i++)
		memcpy(&v[i], at + i * ROPE_DOUBLES, sizeof v[i]);
}

ROPE_INLINE void store_doubles(double *at, const doubles v[2])
{
	for (int i = 0; i < 2; i++)
		memcpy(at + i * ROPE_DOUBLES, &v[i], sizeof v[i]);
}

ROPE_TARGET void ROPE_SINCOS(const double *angles, double *cos_out, double *sin_out, int64_t count)
{
	for (int64_t i = 0; i < count; i += ROPE_LANES) {
		doubles angle[2], c[2], s[2];
		load_doubles(angles + i, angle);
		sincos_lanes(angle, c, s);
		store_doubles(cos_out + i, c);
		store_doubles(sin_out + i, s);
	}
}

ROPE_INLINE void store_narrowed(float *at, const doubles v[2])
{
	for (int i = 0; i < 2; i++) {
		few_floats narrow = __builtin_convertvector(v[i], few_floats);
		memcpy(at + i * ROPE_DOUBLES, &narrow, sizeof narrow);
	}
}

/* Reads and writes on up to the next multiple of ROPE_LANES; the frequencies' array is that long. */
ROPE_INLINE void compute_angles(
        const kvc_rope *rope, int64_t position, float *c, float *s, int64_t count)
{
	for (int64_t i = 0; i < count; i += ROPE_LANES) {
		doubles angle[2], cosine[2], sine[2];
		load_doubles(rope->inv_freq + i, angle);
		for (int j = 0; j < 2; j++)
			angle[j] *= (double)position;
		sincos_lanes(angle, cosine, sine);
		if (rope->attention_factor != 1.0) {
			for (int j = 0; j < 2; j++) {
				cosine[j] *= rope->attention_factor;
				sine[j] *= rope->attention_factor;
			}
		}
		store_narrowed(c + i, cosine);
		store_narrowed(s + i, sine);
	}
}

/*
 * Cosines and sines as blocks of ROPE_PAIRS pairs read them:
 *
 *   bfloat16, NeoX           those of even places in the block, then those of odd ones
 *   bfloat16, interleaved    in order
 *   other types, NeoX        in order
 *   other types, interleaved each twice, and the first of each two sines negative
 */
ROPE_INLINE int64_t rope_spread(enum kvc__element element, int style)
{
	return element != KVC__ELEMENT_BF16 && style == KVC_ROPE_INTERLEAVED ? 2 : 1;
}

ROPE_INLINE void part_block(float *at)
{
	floats even, odd;
	part_places(load_floats(at), load_floats(at + ROPE_LANES), &even, &odd);
	store_floats(at, even);
	store_floats(at + ROPE_LANES, odd);
}

/* From the end, so that nothing is overwritten before it is read. */
ROPE_INLINE void double_all(float *at, int64_t count, words sign)
{
	for (int64_t i = count - ROPE_LANES; i >= 0; i -= ROPE_LANES) {
		floats low, high;
		twice_each(load_floats(at + i), &low, &high);
		store_floats(at + 2 * i, (floats)((words)low ^ sign));
		store_floats(at + 2 * i + ROPE_LANES, (floats)((words)high ^ sign));
	}
}

/* The sign bit of lanes 0, 2, 4, ... */
ROPE_INLINE words even_signs(void)
{
	typedef uint64_t lane_pairs __attribute__((vector_size(ROPE_BYTES)));
	return (words)((lane_pairs){ 0 } + KVC__F32_SIGN);
}

/* 'pairs' is a multiple of ROPE_PAIRS. */
ROPE_INLINE void arrange_angles(
        enum kvc__element element, int style, float *c, float *s, int64_t pairs)
{
	if (element == KVC__ELEMENT_BF16 && style == KVC_ROPE_NEOX) {
		for (int64_t i = 0; i < pairs; i += ROPE_PAIRS) {
			part_block(c + i);
			part_block(s + i);
		}
	} else if (rope_spread(element, style) == 2) {
		words plus = { 0 };
		double_all(c, pairs, plus);
		double_all(s, pairs, even_signs());
	}
}

/* A NaN in a caller's table could bring payload bits into results; see round_bf16(). */
ROPE_TARGET static void read_angles(const kvc_rope *rope, int64_t position, float *c, float *s)
{
	int64_t half = rope->rotary_dim / 2;
	const float *row = rope->cos_sin + position * rope->cos_sin_row_stride;
	for (int64_t i = 0; i < half; i++) {
		c[i] = kvc__float_of(kvc__f32_canonical(row[i]));
		s[i] = kvc__float_of(kvc__f32_canonical(row[half + i]));
	}
}

ROPE_TARGET static void take_angles(struct rope_run *run, int64_t position)
{
	const kvc_rope *rope = run->job->rope;
	int64_t half = rope->rotary_dim / 2;
	int64_t padded = (half + ROPE_PAIRS - 1) / ROPE_PAIRS * ROPE_PAIRS;
	if (rope->cos_sin)
		read_angles(rope, position, run->c, run->s);
	else
		compute_angles(rope, position, run->c, run->s, half);
	for (int64_t i = half; __builtin_expect(i < padded, 0); i++)
		run->c[i] = run->s[i] = 0.0f;
	arrange_angles(run->job->element, rope->style, run->c, run->s, padded);
}

/* ---- rotation of one block ---- */

/* Cosines and sines of a block, as many vectors as its 'spread' takes. */
struct rope_angles {
	floats c[4], s[4];
};

ROPE_INLINE struct rope_angles load_angles(const float *c, const float *s, int64_t spread)
{
	struct rope_angles a = { 0 };
	for (int i = 0; i < 2 * spread; i++) {
		a.c[i] = load_floats(c + i * ROPE_LANES);
		a.s[i] = load_floats(s + i * ROPE_LANES);
	}
	return a;
}

/* x1, x2 become r1, r2. */
ROPE_INLINE void turn(floats *x1, floats *x2, floats c, floats s)
{
	floats r1 = *x1 * c - *x2 * s;
	floats r2 = *x1 * s + *x2 * c;
	*x1 = r1;
	*x2 = r2;
}

/* Interleaved x1, x2, x1, x2, ... c and s are there twice, s negative in even lanes: x1*c + x2*-s is
 * x1*c - x2*s, and x2*c + x1*s the sum the other way round. */
ROPE_INLINE floats turn_interleaved(floats x, floats c, floats s)
{
	return x * c + swap_neighbours(x) * s;
}

/* Round and put even and odd places together again. The low half of a NaN is 0 here, since those of
 * all operands are: so it stays a NaN. */
ROPE_INLINE words round_bf16(words even, words odd)
{
	return (words)round_halves(upper_halves(even, odd), lower_halves(even, odd));
}

/* Two vectors of float32 from as many elements, and back. bfloat16: even and odd places, which needs
 * no shuffle; other types: in order. */
ROPE_INLINE void widen(enum kvc__element element, const char *at, int64_t left, floats x[2])
{
	words raw;
	if (element == KVC__ELEMENT_F32) {
		x[0] = (floats)load(at, left);
		x[1] = (floats)load(at + ROPE_BYTES, left - ROPE_BYTES);
	} else if (element == KVC__ELEMENT_BF16) {
		raw = load(at, left);
		x[0] = (floats)(raw << 16);
		x[1] = (floats)(raw & 0xFFFF0000u);
	} else if (left >= ROPE_BYTES) {
		widen_f16(at, &x[0], &x[1]);
	} else {
		raw = load(at, left);
		widen_f16((const char *)&raw, &x[0], &x[1]);
	}
}

/*
 * Where a block is read from and stored to: NeoX has two runs of ROPE_PAIRS elements, 'second' bytes
 * apart; interleaved one of twice as many. In and out may be the same. 'left' bytes of each run are
 * there. also: a second place to store to, or NULL. stream: past the caches.
 */
struct rope_block {
	const char *in;
	char *out;
	char *also;
	int64_t second;
	int64_t left;
	int stream;
};

ROPE_INLINE void put_vector(struct rope_block b, int64_t at, words v, int64_t left)
{
	store(b.stream, b.out + at, v, left);
	if (b.also)
		store(b.stream, b.also + at, v, left);
}

/* The way back from widen(). */
ROPE_INLINE void put(
        enum kvc__element element, struct rope_block b, int64_t at, const floats x[2], int64_t left)
{
	if (element == KVC__ELEMENT_F32) {
		put_vector(b, at, (words)x[0], left);
		put_vector(b, at + ROPE_BYTES, (words)x[1], left - ROPE_BYTES);
	} else {
		put_vector(b, at,
		        element == KVC__ELEMENT_BF16 ? round_bf16((words)x[0], (words)x[1])
		                                     : (words)narrow_f16(x[0], x[1]),
		        left);
	}
}

ROPE_INLINE void turn_neox(enum kvc__element element, struct rope_block b,
        const struct rope_angles *a, floats *nonfinite)
{
	floats x1[2], x2[2];
	widen(element, b.in, b.left, x1);
	widen(element, b.in + b.second, b.left, x2);
	turn(&x1[0], &x2[0], a->c[0], a->s[0]);
	turn(&x1[1], &x2[1], a->c[1], a->s[1]);
	*nonfinite = gather_nonfinite(*nonfinite, x1[0], x1[1]);
	put(element, b, 0, x1, b.left);
	put(element, b, b.second, x2, b.left);
}

ROPE_INLINE void turn_run(enum kvc__element element, struct rope_block b,
        const struct rope_angles *a, floats *nonfinite)
{
	const int64_t bytes = ROPE_PAIRS * kvc__element_bytes(element);
	const int twice = rope_spread(element, KVC_ROPE_INTERLEAVED) == 2;
	for (int i = 0; i < 2; i++) {
		int64_t at = i * bytes;
		floats x[2];
		widen(element, b.in + at, b.left - at, x);
		if (twice) {
			x[0] = turn_interleaved(x[0], a->c[2 * i], a->s[2 * i]);
			x[1] = turn_interleaved(x[1], a->c[2 * i + 1], a->s[2 * i + 1]);
		} else {
			turn(&x[0], &x[1], a->c[i], a->s[i]);
		}
		*nonfinite = gather_nonfinite(*nonfinite, x[0], x[1]);
		put(element, b, at, x, b.left - at);
	}
}

ROPE_INLINE void turn_block(enum kvc__element element, int style, struct rope_block b,
        const struct rope_angles *a, floats *nonfinite)
{
	if (style == KVC_ROPE_NEOX)
		turn_neox(element, b, a, nonfinite);
	else
		turn_run(element, b, a, nonfinite);
}

/* ---- rotation of heads ---- */

/* Of the rotated elements of some heads. */
struct rope_rotation {
	struct rope_heads in, out;
	struct rope_heads also; /* data NULL: stored in one place only */
	int64_t count;          /* heads */
	int64_t half;           /* pairs */
	const float *c, *s;
	int ahead;  /* ask for what is ROPE_AHEAD bytes further on */
	int stream; /* store past the caches */
};

ROPE_INLINE void ask_ahead(const char *from, int64_t bytes)
{
	for (int64_t i = 0; i < bytes; i += 64)
		__builtin_prefetch(from + ROPE_AHEAD + i);
}

/*
 * Does this sum of gather_nonfinite() tell that a NaN may have been stored? NeoX gathers r1 alone: where
 * r2 is NaN, r1 is not finite. If x1, x2, c or s is not finite, that is plain. If all are, both x1*s and
 * x2*c have overflowed; then so has x1*c or x2*s, whose product is the same.
 */
ROPE_INLINE int any_nonfinite(floats gathered)
{
	return any_set((words)(((words)gathered & ~KVC__F32_SIGN) >= KVC__F32_INFINITY));
}

/*
 * Pairs [first, first + ROPE_PAIRS) of all heads, or as many of them as there are. 'element', 'style',
 * 'stream', 'twice' and 'is_whole' are constants at each call, so each becomes a loop of its own: the
 * angles stay in registers, unless the block is not whole (then loads and stores are calls).
 */
ROPE_INLINE void rotate_block(enum kvc__element element, int style, int stream, int twice,
        int is_whole, const struct rope_rotation *r, int64_t first, floats *nonfinite)
{
	const int64_t width = kvc__element_bytes(element);
	const int64_t spread = rope_spread(element, style);
	const int64_t step = style == KVC_ROPE_INTERLEAVED ? 2 * width : width; /* of a pair */
	const struct rope_angles a =
	        load_angles(r->c + first * spread, r->s + first * spread, spread);
	struct rope_block b = { r->in.data + first * step, r->out.data + first * step,
		twice ? r->also.data + first * step : NULL, r->half * width,
		is_whole ? INT64_MAX : (r->half - first) * step, stream && is_whole };
	for (int64_t h = 0; h < r->count; h++) {
		turn_block(element, style, b, &a, nonfinite);
		b.in += r->in.stride;
		b.out += r->out.stride;
		if (twice)
			b.also += r->also.stride;
	}
}

/*
 * Returns whether a NaN may have been stored. Block by block, each for all heads; but in a large call head
 * by head, so that memory is read in order and the stores to one line, if there are several, are one after
 * the other.
 */
ROPE_INLINE int rotate_as(enum kvc__element element, int style, int stream, int twice,
        const struct rope_rotation *given)
{
	struct rope_rotation r = *given;
	floats nonfinite = { 0 };
	if (r.ahead)
		r.count = 1;
	for (int64_t h = 0; h < given->count; h += r.count) {
		int64_t first = 0;
		if (r.ahead)
			ask_ahead(r.in.data, 2 * r.half * kvc__element_bytes(element));
		for (; first + ROPE_PAIRS <= r.half; first += ROPE_PAIRS)
			rotate_block(element, style, stream, twice, 1, &r, first, &nonfinite);
		if (first < r.half)
			rotate_block(element, style, stream, twice, 0, &r, first, &nonfinite);
		r.in.data += r.in.stride;
		r.out.data += r.out.stride;
		if (twice)
			r.also.data += r.also.stride;
	}
	return any_nonfinite(nonfinite);
}

ROPE_INLINE int rotate_style(enum kvc__element element, int style, const struct rope_rotation *r)
{
	if (r->also.data) /* never streamed */
		return rotate_as(element, style, 0, 1, r);
	return r->stream ? rotate_as(element, style, 1, 0, r) : rotate_as(element, style, 0, 0, r);
}

ROPE_INLINE int rotate_element(enum kvc__element element, int style, const struct rope_rotation *r)
{
	return style == KVC_ROPE_INTERLEAVED ? rotate_style(element, KVC_ROPE_INTERLEAVED, r)
	                                     : rotate_style(element, KVC_ROPE_NEOX, r);
}

ROPE_TARGET static int rotate_f32(int style, const struct rope_rotation *r)
{
	return rotate_element(KVC__ELEMENT_F32, style, r);
}

ROPE_TARGET static int rotate_f16(int style, const struct rope_rotation *r)
{
	return rotate_element(KVC__ELEMENT_F16, style, r);
}

ROPE_TARGET static int rotate_bf16(int style, const struct rope_rotation *r)
{
	return rotate_element(KVC__ELEMENT_BF16, style, r);
}

/* Make each NaN the positive quiet one. Healthy data never has any. */
ROPE_TARGET static void mend_nan(
        enum kvc__element element, struct rope_heads out, int64_t count, int64_t dim)
{
	for (int64_t h = 0; h < count; h++) {
		for (int64_t d = 0; d < dim; d++) {
			char *at = out.data + h * out.stride + d * kvc__element_bytes(element);
			float single;
			uint16_t half;
			if (element == KVC__ELEMENT_F32) {
				memcpy(&single, at, sizeof single);
				uint32_t bits = kvc__f32_canonical(single);
				memcpy(at, &bits, sizeof bits);
				continue;
			}
			memcpy(&half, at, sizeof half);
			if (element == KVC__ELEMENT_BF16 && (half & 0x7FFFu) > 0x7F80u)
				half = 0x7FC0u;
			if (element == KVC__ELEMENT_F16 && (half & 0x7FFFu) > 0x7C00u)
				half = 0x7E00u;
			memcpy(at, &half, sizeof half);
		}
	}
}

/* What is not rotated, before and after. */
ROPE_TARGET static void copy_rest(struct rope_heads in, struct rope_heads out, int64_t count,
        int64_t begin, int64_t end, int64_t past)
{
	for (int64_t h = 0; h < count; h++) {
		const char *x = in.data + h * in.stride;
		char *r = out.data + h * out.stride;
		memcpy(r, x, (size_t)begin);
		memcpy(r + end, x + end, (size_t)(past - end));
	}
}

/* All elements of 'count' heads: the rotated ones, and the others as they are. 'also' (or data NULL):
 * a second place for the rotated ones. */
ROPE_TARGET static void rotate_heads(const struct rope_run *run, int stream, struct rope_heads in,
        struct rope_heads out, struct rope_heads also, int64_t count, int64_t dim, int64_t offset)
{
	const kvc_rope *rope = run->job->rope;
	enum kvc__element element = run->job->element;
	int64_t begin = offset * run->width;
	int64_t end = (offset + rope->rotary_dim) * run->width;
	if (rope->rotary_dim < dim && in.data != out.data)
		copy_rest(in, out, count, begin, end, dim * run->width);
	in.data += begin;
	out.data += begin;
	struct rope_rotation rotation = { in, out, also, count, rope->rotary_dim / 2, run->c,
		run->s, run->stream, stream };
	int nan = element == KVC__ELEMENT_BF16  ? rotate_bf16(rope->style, &rotation)
	          : element == KVC__ELEMENT_F16 ? rotate_f16(rope->style, &rotation)
	                                        : rotate_f32(rope->style, &rotation);
	if (__builtin_expect(nan, 0)) {
		mend_nan(element, out, count, rope->rotary_dim);
		if (also.data)
			mend_nan(element, also, count, rope->rotary_dim);
	}
}

/* Do whole blocks of rotated pairs fill whole lines of these heads, and nothing else is in them? */
ROPE_INLINE int fills_lines(const struct rope_run *run, struct rope_heads out, int64_t dim)
{
	int64_t rotary_dim = run->job->rope->rotary_dim;
	int64_t half_bytes = rotary_dim / 2 * run->width;
	return rotary_dim == dim && half_bytes % 64 == 0 && rotary_dim % (2 * ROPE_PAIRS) == 0 &&
	       (uintptr_t)out.data % 64 == 0 && out.stride % 64 == 0;
}

/* ---- 8-bit pools ---- */

/*
 * kvc__e4m3_from_f32() and kvc__e5m2_from_f32() of lanes whose values have the 'magnitude' and
 * 'sign' bits; what each step does stands there. A type is told by its number of fraction bits,
 * its bias, and the pattern of its largest value.
 */
ROPE_INLINE words quantise_lanes(enum kvc__element pool_element, words magnitude, words sign)
{
	const int is_e4m3 = pool_element == KVC__ELEMENT_E4M3;
	const int shift = is_e4m3 ? 20 : 21; /* fraction bits that go */
	const uint32_t rebias = (is_e4m3 ? 120u : 112u) << 23;
	const uint32_t largest = is_e4m3 ? 0x43E00000u : 0x47600000u;
	const uint32_t normal_from = is_e4m3 ? 0x3C800000u : 0x38800000u;
	const float unit_is_step = is_e4m3 ? 0x1p14f : 0x1p7f;
	const uint32_t half_unit = (1u << (shift - 1)) - 1u;

	words value = lesser(magnitude, (words){ 0 } + largest);
	words normal = (value + (half_unit - rebias) + (value >> shift & 1)) >> shift;
	words subnormal = (words)((floats)value + unit_is_step) - kvc__bits_of(unit_is_step);
	words is_small = (words)((integers)value < (int32_t)normal_from);
	words is_nan = (words)((integers)magnitude > (int32_t)KVC__F32_INFINITY);
	return choose(is_small, subnormal, normal) | (is_nan & 0x7F) | sign >> 24;
}

/* How values are scaled: value / scale, or value * inverse where that is the same. */
struct rope_scale {
	float by;
	int divide;
};

ROPE_INLINE struct rope_scale scale_of(float scale)
{
	uint32_t bits = kvc__bits_of(scale);
	uint32_t exponent = bits >> 23;
	struct rope_scale result = { scale, 1 };
	/* A power of two whose inverse is no subnormal. */
	if ((bits & 0x7FFFFFu) == 0 && exponent >= 1 && exponent <= 253) {
		result.by = kvc__float_of((254u - exponent) << 23);
		result.divide = 0;
	}
	return result;
}

ROPE_INLINE words quantise_floats(
        enum kvc__element pool_element, struct rope_scale scale, floats value)
{
	floats scaled = scale.divide ? value / scale.by : value * scale.by;
	/* The sign of a NaN is up to the processor after arithmetic: it is taken from before. */
	return quantise_lanes(
	        pool_element, (words)scaled & ~KVC__F32_SIGN, (words)value & KVC__F32_SIGN);
}

/* ROPE_BYTES elements; 'left' of them are there. */
ROPE_INLINE octets quantise_block(enum kvc__element element, enum kvc__element pool_element,
        struct rope_scale scale, const char *in, int64_t left)
{
	const int64_t bytes = ROPE_PAIRS * kvc__element_bytes(element);
	words wide[4];
	floats x[2];
	for (int i = 0; i < 2; i++) {
		widen(element, in + i * bytes, left * kvc__element_bytes(element) - i * bytes, x);
		wide[2 * i] = quantise_floats(pool_element, scale, x[0]);
		wide[2 * i + 1] = quantise_floats(pool_element, scale, x[1]);
	}
	if (element == KVC__ELEMENT_BF16) /* even and odd places */
		return (octets)pack_words(wide[0] | wide[1] << 8, wide[2] | wide[3] << 8);
	return pack_halves(pack_words(wide[0], wide[1]), pack_words(wide[2], wide[3]));
}

/* 'element' and 'pool_element' are constants at each call. */
ROPE_INLINE void quantise_all(enum kvc__element element, enum kvc__element pool_element,
        struct rope_scale scale, const char *in, char *out, int64_t count)
{
	int64_t width = kvc__element_bytes(element);
	int64_t i = 0;
	for (; i + ROPE_BYTES <= count; i += ROPE_BYTES) {
		octets bytes =
		        quantise_block(element, pool_element, scale, in + i * width, INT32_MAX);
		memcpy(out + i, &bytes, sizeof bytes);
	}
	if (i < count) {
		octets bytes =
		        quantise_block(element, pool_element, scale, in + i * width, count - i);
		memcpy(out + i, &bytes, (size_t)(count - i));
	}
}

ROPE_TARGET static void quantise(
        const struct rope_run *run, const char *in, float scale, char *out, int64_t count)
{
	enum kvc__element element = run->job->element;
	int is_e4m3 = run->job->pool_element == KVC__ELEMENT_E4M3;
	struct rope_scale by = scale_of(scale);
	if (element == KVC__ELEMENT_BF16 && is_e4m3)
		quantise_all(KVC__ELEMENT_BF16, KVC__ELEMENT_E4M3, by, in, out, count);
	else if (element == KVC__ELEMENT_BF16)
		quantise_all(KVC__ELEMENT_BF16, KVC__ELEMENT_E5M2, by, in, out, count);
	else if (element == KVC__ELEMENT_F16 && is_e4m3)
		quantise_all(KVC__ELEMENT_F16, KVC__ELEMENT_E4M3, by, in, out, count);
	else if (element == KVC__ELEMENT_F16)
		quantise_all(KVC__ELEMENT_F16, KVC__ELEMENT_E5M2, by, in, out, count);
	else if (is_e4m3)
		quantise_all(KVC__ELEMENT_F32, KVC__ELEMENT_E4M3, by, in, out, count);
	else
		quantise_all(KVC__ELEMENT_F32, KVC__ELEMENT_E5M2, by, in, out, count);
}

ROPE_TARGET static void quantise_heads(
        const struct rope_run *run, struct rope_heads in, float scale, char *out, int64_t count)
{
	int64_t dim = run->job->kv_dim;
	if (in.stride == dim * run->width) {
		quantise(run, in.data, scale, out, count * dim);
		return;
	}
	for (int64_t h = 0; h < count; h++)
		quantise(run, in.data + h * in.stride, scale, out + h * dim, dim);
}

/* Store heads [first, first + count) of the pool's row, from the bytes of k_out or v. 'bytes8' takes
 * them if they are quantised. Returns where the pool's bytes lie in cache. */
ROPE_TARGET static struct rope_heads store_heads(const struct rope_run *run, enum rope_copy how,
        const struct kvc__rows *pool, int64_t slot, int64_t first, int64_t count,
        struct rope_heads from, float scale, char *bytes8)
{
	int64_t head_bytes = run->job->kv_dim * run->width;
	if (run->job->pool_element != run->job->element) {
		quantise_heads(run, from, scale, bytes8, count);
		head_bytes = run->job->kv_dim;
		from.data = bytes8;
		from.stride = head_bytes;
		how = run->stream ? COPY_PAST : COPY;
	}
	copy_heads(how, rope_heads_at(pool, slot, first), from, count, head_bytes);
	return from;
}

/* ---- one token ---- */

static const struct rope_heads no_heads = { NULL, 0 };

ROPE_TARGET static void q_row(struct rope_run *run, int64_t token)
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
		int direct = past && fills_lines(run, out, job->q_dim);
		int through_stage = past && !direct;
		rotate_heads(run, direct, in, through_stage ? staged : out, no_heads, count,
		        job->q_dim, job->q_rotary_offset);
		if (through_stage)
			copy_heads(COPY_PAST, out, staged, count, head_bytes);
	}
}

/*
 * May a rotated block of K go to k_out and to the pool at once? Where the pool has elements of the same
 * type, and nothing but rotated ones. Measured on a Zen 3: streamed to both at once it took longer than
 * from the staging row, and so did a call in place.
 */
ROPE_INLINE int k_goes_to_both(const struct rope_run *run, struct rope_heads in,
        struct rope_heads out, struct rope_heads pool)
{
	const struct kvc__rope_job *job = run->job;
	return !run->stream && out.data && out.data != in.data && pool.data &&
	       job->pool_element == job->element && job->rope->rotary_dim == job->kv_dim;
}

/* Some heads of K, to k_out (unless 'out' has no data) and to the pool (unless slot is negative).
 * Returns where the pool's bytes lie in cache. */
ROPE_TARGET static struct rope_heads k_heads(
        struct rope_run *run, int64_t token, int64_t slot, int64_t first, int64_t count)
{
	const struct kvc__rope_job *job = run->job;
	int64_t head_bytes = job->kv_dim * run->width;
	struct rope_heads in = rope_heads_at(&job->k, token, first);
	struct rope_heads staged = { run->stage, head_bytes };
	struct rope_heads out = no_heads;
	struct rope_heads pool = no_heads;
	if (job->k_out.data)
		out = rope_heads_at(&job->k_out, token, first);
	if (slot >= 0)
		pool = rope_heads_at(&job->k_pool, slot, first);
	if (k_goes_to_both(run, in, out, pool)) {
		rotate_heads(
		        run, run->stream, in, out, pool, count, job->kv_dim, job->rotary_offset);
		return out;
	}
	int through_stage = !out.data || (run->stream && in.data != out.data);
	struct rope_heads rotated = through_stage ? staged : out;
	rotate_heads(run, 0, in, rotated, no_heads, count, job->kv_dim, job->rotary_offset);
	if (through_stage && out.data)
		copy_heads(COPY_PAST, out, rotated, count, head_bytes);
	if (slot < 0)
		return no_heads;
	return store_heads(run, run->stream ? COPY_PAST : COPY, &job->k_pool, slot, first, count,
	        rotated, job->k_scale, run->k8);
}

ROPE_TARGET static struct rope_heads k_row(struct rope_run *run, int64_t token, int64_t slot)
{
	const struct kvc__rope_job *job = run->job;
	struct rope_heads stored = no_heads;
	for (int64_t first = 0; first < job->kv_heads; first += run->kv_group) {
		int64_t rest = job->kv_heads - first;
		stored = k_heads(
		        run, token, slot, first, rest < run->kv_group ? rest : run->kv_group);
	}
	return stored;
}

ROPE_TARGET static struct rope_heads v_row(struct rope_run *run, int64_t token, int64_t slot)
{
	const struct kvc__rope_job *job = run->job;
	struct rope_heads stored = no_heads;
	for (int64_t first = 0; first < job->kv_heads; first += run->kv_group) {
		int64_t rest = job->kv_heads - first;
		int64_t count = rest < run->kv_group ? rest : run->kv_group;
		stored = store_heads(run, run->stream ? COPY_PAST_AHEAD : COPY, &job->v_pool, slot,
		        first, count, rope_heads_at(&job->v, token, first), job->v_scale, run->v8);
	}
	return stored;
}

ROPE_TARGET static void one_token(struct rope_run *run, int64_t token)
{
	const struct kvc__rope_job *job = run->job;
	int64_t slot = kvc__index_read(&job->slots, token);
	int64_t position = kvc__index_read(&job->positions, token);
	int skipped = kvc__slot_skipped(job, slot);
	/* The front door lets a bad position pass only on a skipped row, which then stays as it is. */
	if (position < 0 || position >= job->position_count)
		return;
	take_angles(run, position);
	if (job->q_out.data)
		q_row(run, token);
	if (skipped) {
		if (job->k_out.data)
			k_row(run, token, -1);
		return;
	}
	struct rope_heads k = k_row(run, token, slot);
	struct rope_heads v = no_heads;
	if (job->v.data)
		v = v_row(run, token, slot);
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

/* As many heads as fit the staging row. Mostly all do: a division takes as long as two heads. */
ROPE_INLINE int64_t heads_in_stage(int64_t heads, int64_t head_bytes)
{
	return heads * head_bytes <= ROPE_STAGE ? heads : ROPE_STAGE / head_bytes;
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
	run.q_group = heads_in_stage(job->q_heads, job->q_dim * run.width);
	run.kv_group = heads_in_stage(job->kv_heads, job->kv_dim * run.width);
	/* The stamp of a row in several groups is made from the pool, which must be in cache then. */
	run.stamp_from_pool = job->kv_heads > run.kv_group;
	run.stream = job->streams && !(job->stamp && run.stamp_from_pool);
	run.shares.count = 0;
	for (int64_t token = begin; token < end; token++)
		one_token(&run, token);
	kvc__stamp_flush(job->stamp, &run.shares);
	if (run.stream)
		ROPE_FENCE();
}
