/* A random sound call of kvc_rope_pool_fused: every dimension, type, layout and option. */
#ifndef ROPE_RANDOM_H
#define ROPE_RANDOM_H

#include "rope_world.h"
#include "seeded.h"

static const kvc_dtype element_types[] = { { KVC_CODE_FLOAT, 32, 1 }, { KVC_CODE_FLOAT, 16, 1 },
	{ KVC_CODE_BFLOAT, 16, 1 } };
static const kvc_dtype pool_types[] = { { KVC_CODE_FLOAT8_E4M3FN, 8, 1 },
	{ KVC_CODE_FLOAT8_E5M2, 8, 1 } };
static const kvc_dtype index_types[] = { { KVC_CODE_INT, 32, 1 }, { KVC_CODE_INT, 64, 1 } };

/* A view with gaps between heads and tokens, or with heads outermost. */
static inline void random_layout(struct world *w, struct seeded *r, struct view *v)
{
	int64_t n0 = v->shape[0];
	int64_t n1 = v->shape[1];
	int64_t n2 = v->shape[2];
	kvc_dtype dtype = v->tensor.dtype;
	if (seeded_one_in(r, 3))
		return;
	int64_t inner = n2 + seeded_in(r, 0, 5);
	int64_t offset = seeded_in(r, 0, 3);
	int heads_first = seeded_one_in(r, 4);
	int64_t outer = inner * (heads_first ? n0 : n1) + seeded_in(r, 0, 9);
	struct buffer *b =
	        world_buffer(w, (offset + outer * (heads_first ? n1 : n0) + 1) * width_of(dtype));
	view_set(v, b, dtype, offset, n0, n1, n2, heads_first ? inner : outer,
	        heads_first ? outer : inner);
}

static inline void random_values(struct seeded *r, const struct view *v)
{
	for (int64_t i = 0; i < v->shape[0]; i++)
		for (int64_t j = 0; j < v->shape[1]; j++)
			for (int64_t d = 0; d < v->shape[2]; d++) {
				uint32_t bits = (uint32_t)seeded_next(r);
				float value = (float)(int32_t)bits * 0x1p-30f;
				/* Now and then any bits at all: subnormals, infinities, NaN. */
				if (!seeded_one_in(r, 40))
					bits = bits_from(v->tensor.dtype, value);
				set_bits(v, i, j, d, bits);
			}
}

/* A permutation's first entries as slots, some of them negative. */
static inline void random_slots(struct world *w, struct seeded *r)
{
	int64_t slots[64];
	for (int64_t i = 0; i < w->size.slots; i++)
		slots[i] = i;
	for (int64_t i = w->size.slots - 1; i > 0; i--) {
		int64_t j = seeded_in(r, 0, i);
		int64_t kept = slots[i];
		slots[i] = slots[j], slots[j] = kept;
	}
	for (int64_t i = 0; i < w->size.tokens; i++) {
		int skipped = seeded_one_in(r, 5);
		set_index(&w->slots, i, skipped ? -seeded_in(r, 1, INT32_MAX) : slots[i]);
		int64_t position = seeded_in(r, 0, seeded_one_in(r, 2) ? 300 : KVC_POSITION_MAX);
		if (skipped && seeded_one_in(r, 3))
			position = seeded_one_in(r, 2) ? -position - 1 : INT32_MAX;
		set_index(&w->positions, i, position);
	}
}

static inline void random_rope(struct world *w, struct seeded *r, int64_t dim)
{
	kvc_rope_options o = KVC_ROPE_OPTIONS_INIT;
	int64_t most = dim < KVC_ROTARY_DIM_MAX ? dim : KVC_ROTARY_DIM_MAX;
	o.rotary_dim = (int32_t)(2 * seeded_in(r, seeded_one_in(r, 2) ? most / 2 : 0, most / 2));
	o.style = (int32_t)seeded_in(r, 0, 1);
	o.scaling = (int32_t)seeded_in(r, 0, 3);
	o.factor = (double)seeded_in(r, 1, 40);
	o.original_max_position = (double)seeded_in(r, 100, 40000);
	o.rope_base = (double)seeded_in(r, 2, 1000000);
	expect_ok(kvc_rope_init(&w->rope, &o));
	w->args.rotary_offset = seeded_in(r, 0, w->size.kv_dim - o.rotary_dim);
	w->args.q_rotary_offset = seeded_in(r, 0, w->size.q_dim - o.rotary_dim);
}

static inline void random_outputs(struct world *w, struct seeded *r)
{
	int64_t choice = seeded_in(r, 0, 5);
	if (choice <= 1)
		world_in_place(w);
	if (choice == 2)
		w->args.q_out = NULL;
	if (choice == 3)
		w->args.k_out = NULL;
}

static inline void random_world(struct world *w, struct seeded *r)
{
	int k_only = seeded_one_in(r, 4);
	struct size size = { seeded_in(r, 1, 9), seeded_in(r, 1, 4), seeded_in(r, 1, 4), 0,
		seeded_in(r, 1, seeded_one_in(r, 3) ? 300 : 40), seeded_in(r, 10, 60) };
	size.q_dim = k_only ? seeded_in(r, 1, 64) : size.kv_dim;
	kvc_dtype dtype = element_types[seeded_in(r, 0, 2)];
	kvc_dtype pool = seeded_one_in(r, 3) ? pool_types[seeded_in(r, 0, 1)] : dtype;
	world_make(w, size, dtype, pool, index_types[seeded_in(r, 0, 1)]);
	world_use_all(w);
	random_rope(w, r, size.q_dim < size.kv_dim ? size.q_dim : size.kv_dim);
	struct view *views[] = { &w->q, &w->k, &w->v, &w->k_pool, &w->v_pool };
	for (int i = 0; i < 5; i++) {
		random_layout(w, r, views[i]);
		if (i < 3)
			random_values(r, views[i]);
	}
	random_outputs(w, r);
	random_slots(w, r);
	if (k_only)
		world_k_only(w);
	if (is_fp8(pool)) {
		w->args.k_scale = (float)seeded_in(r, 1, 1000) * 0.013f;
		w->args.v_scale = (float)seeded_in(r, 1, 1000) * 0.0007f;
	}
	if (seeded_one_in(r, 3))
		w->args.n_valid = seeded_in(r, 0, size.tokens);
	if (seeded_one_in(r, 3))
		w->args.reserved_slot = index_at(&w->slots, 0);
	w->args.check_duplicates = (int32_t)seeded_in(r, 0, 1);
}

#endif
