/*
 * Goal: every refusal of kvc_rope_pool_fused has its status, slug, message and place, comes in the
 * documented order, and leaves every byte as it was. Method: one sound call, one change, one refusal.
 */
#include "rope_world.h"

#include "ops/overlap.h"

/* The sound call X with one change is refused like this. 'w' is in scope of the change. */
#define REFUSED(change, status, slug, message, where)                                              \
	do {                                                                                       \
		struct world w;                                                                    \
		world_x(&w);                                                                       \
		change;                                                                            \
		world_refused(&w, status, slug, message, where);                                   \
		world_free(&w);                                                                    \
	} while (0)

#define RESHAPE(view, ...) memcpy((view).shape, (int64_t[3]){ __VA_ARGS__ }, sizeof(view).shape)

/* In k and v, or in both pools, or in all four. */
#define KV_DTYPE(type) (w.k.tensor.dtype = w.v.tensor.dtype = (type))
#define POOL_DTYPE(type) (w.k_pool.tensor.dtype = w.v_pool.tensor.dtype = (type))

static void missing_arguments(void **state)
{
	(void)state;
	struct world whole;
	world_x(&whole);
	expect_error(kvc_rope_pool_fused(NULL, NULL), KVC_E_INVALID_ARGUMENT, "null-argument",
	        "args is NULL", -1);
	world_free(&whole);
	REFUSED(w.args.q = NULL, KVC_E_INVALID_ARGUMENT, "null-argument", "q is NULL", -1);
	REFUSED(w.args.k = NULL, KVC_E_INVALID_ARGUMENT, "null-argument", "k is NULL", -1);
	REFUSED(w.args.v = NULL, KVC_E_INVALID_ARGUMENT, "null-argument", "v is NULL", -1);
	REFUSED(w.args.v_pool = NULL, KVC_E_INVALID_ARGUMENT, "null-argument", "v_pool is NULL",
	        -1);
	REFUSED(w.args.k_pool = NULL, KVC_E_INVALID_ARGUMENT, "null-argument", "k_pool is NULL",
	        -1);
	REFUSED(w.args.slots = NULL, KVC_E_INVALID_ARGUMENT, "null-argument", "slots is NULL", -1);
	REFUSED(w.args.positions = NULL, KVC_E_INVALID_ARGUMENT, "null-argument",
	        "positions is NULL", -1);
	REFUSED(w.args.rope = NULL, KVC_E_INVALID_ARGUMENT, "null-argument", "rope is NULL", -1);
	REFUSED(w.k_out.tensor.shape = NULL, KVC_E_INVALID_ARGUMENT, "null-argument",
	        "k_out is NULL", -1);
	REFUSED(w.args.struct_bytes = 3, KVC_E_INVALID_ARGUMENT, "struct-bytes-unknown", NULL, -1);
	REFUSED(w.rope.struct_bytes = 0, KVC_E_INVALID_ARGUMENT, "struct-bytes-unknown", NULL, -1);
	REFUSED(w.k_pool.tensor.data = NULL, KVC_E_INVALID_ARGUMENT, "tensor-data-null",
	        "k_pool has shape (32, 1, 8) and no data", -1);
}

static void shapes_with_the_texts_of_sglang(void **state)
{
	(void)state;
	const char *qkv = "rope_pool_fused expects q/k/v to be 3-D";
	const char *pools = "rope_pool_fused expects pool tensors to be 3-D";
	const char *one_d = "rope_pool_fused expects positions/slots to be 1-D";
	const char *entries = "positions/slots must have one entry per token";
	REFUSED(w.q.tensor.ndim = 2, KVC_E_SHAPE, "qkv-must-be-3-d", qkv, -1);
	REFUSED(w.k.tensor.ndim = 4, KVC_E_SHAPE, "qkv-must-be-3-d", qkv, -1);
	REFUSED(w.v.tensor.ndim = 0, KVC_E_SHAPE, "qkv-must-be-3-d", qkv, -1);
	REFUSED(w.slots.tensor.ndim = 2, KVC_E_SHAPE, "positions-slots-must-be-1-d", one_d, -1);
	REFUSED(w.positions.tensor.ndim = 0, KVC_E_SHAPE, "positions-slots-must-be-1-d", one_d, -1);
	REFUSED(w.k_pool.tensor.ndim = 2, KVC_E_SHAPE, "pools-must-be-3-d", pools, -1);
	REFUSED(w.v_pool.tensor.ndim = 1, KVC_E_SHAPE, "pools-must-be-3-d", pools, -1);
	REFUSED(w.args.num_qo_heads = 3, KVC_E_SHAPE, "q-shape-must-be",
	        "q shape must be [num_tokens, num_qo_heads, head_dim], got (4, 2, 8)", -1);
	REFUSED(w.args.head_dim = 16, KVC_E_SHAPE, "q-shape-must-be",
	        "q shape must be [num_tokens, num_qo_heads, head_dim], got (4, 2, 8)", -1);
	REFUSED(w.args.num_kv_heads = 2, KVC_E_SHAPE, "k-shape-must-be",
	        "k shape must be [num_tokens, num_kv_heads, head_dim], got (4, 1, 8)", -1);
	REFUSED(RESHAPE(w.k, 3, 1, 8), KVC_E_SHAPE, "k-shape-must-be",
	        "k shape must be [num_tokens, num_kv_heads, head_dim], got (3, 1, 8)", -1);
	REFUSED(RESHAPE(w.k, 4, 1, 6), KVC_E_SHAPE, "k-shape-must-be", NULL, -1);
	REFUSED(RESHAPE(w.v, 4, 2, 8), KVC_E_SHAPE, "v-shape-must-match-k-shape",
	        "v shape must match k shape, got (4, 2, 8) vs (4, 1, 8)", -1);
	REFUSED(w.slots.shape[0] = 3, KVC_E_LENGTH, "positions-slots-one-entry-per-token", entries,
	        -1);
	REFUSED(w.positions.shape[0] = 5, KVC_E_LENGTH, "positions-slots-one-entry-per-token",
	        entries, -1);
	REFUSED(RESHAPE(w.k_pool, 32, 1, 4), KVC_E_SHAPE, "k-pool-incompatible-shape",
	        "k_pool has incompatible shape (32, 1, 4)", -1);
	REFUSED(RESHAPE(w.v_pool, 31, 1, 8), KVC_E_SHAPE, "v-pool-shape-must-match-k-pool-shape",
	        "v_pool shape must match k_pool shape, got (31, 1, 8) vs (32, 1, 8)", -1);
}

static void b23_pools_of_another_layers_head_count(void **state)
{
	(void)state;
	struct world w;
	struct size size = { 4, 4, 4, 8, 8, 32 };
	world_make(&w, size, KVC_BFLOAT16, KVC_BFLOAT16, KVC_INT64);
	RESHAPE(w.k_pool, 32, 3, 8);
	RESHAPE(w.v_pool, 32, 3, 8);
	world_refused(&w, KVC_E_SHAPE, "k-pool-incompatible-shape",
	        "k_pool has incompatible shape (32, 3, 8)", -1);
	assert_non_null(strstr(kvc_last_error()->hint, "k has 4 heads of 8"));
	assert_non_null(strstr(kvc_last_error()->hint, "k_pool has 3 heads of 8"));
	world_free(&w);
}

static void element_types(void **state)
{
	(void)state;
	const char *qkv = "q/k/v dtypes must match";
	const char *pools = "pool dtypes must match q/k/v dtype";
	REFUSED(w.q.tensor.dtype = KVC_FLOAT16, KVC_E_DTYPE, "qkv-dtypes-must-match", qkv, -1);
	REFUSED(w.v.tensor.dtype = KVC_FLOAT16, KVC_E_DTYPE, "qkv-dtypes-must-match", qkv, -1);
	REFUSED(POOL_DTYPE(KVC_FLOAT16), KVC_E_DTYPE, "pool-dtypes-must-match", pools, -1);
	REFUSED(POOL_DTYPE(KVC_UINT8), KVC_E_DTYPE, "pool-dtypes-must-match", pools, -1);
	REFUSED(w.v_pool.tensor.dtype = KVC_FLOAT8_E5M2, KVC_E_DTYPE, "pool-dtypes-must-match",
	        pools, -1);
	REFUSED((KV_DTYPE(KVC_FLOAT64), POOL_DTYPE(KVC_FLOAT64), w.q.tensor.dtype = KVC_FLOAT64),
	        KVC_E_DTYPE, "rope-dtype-unsupported",
	        "q/k/v have dtype float64, which rope_pool_fused cannot rotate", -1);
	REFUSED((KV_DTYPE(KVC_FLOAT8_E5M2), POOL_DTYPE(KVC_FLOAT8_E5M2),
	                w.q.tensor.dtype = KVC_FLOAT8_E5M2),
	        KVC_E_DTYPE, "rope-dtype-unsupported", NULL, -1);
	REFUSED(w.slots.tensor.dtype = kvc_dtype_make(KVC_CODE_UINT, 32), KVC_E_DTYPE,
	        "index-dtype-unsupported", "slots must be int32 or int64, got uint32", -1);
	REFUSED(w.positions.tensor.dtype = KVC_FLOAT32, KVC_E_DTYPE, "index-dtype-unsupported",
	        "positions must be int32 or int64, got float32", -1);
	REFUSED(w.q_out.tensor.dtype = KVC_FLOAT16, KVC_E_DTYPE, "output-dtype-must-match-input",
	        "q_out must have the dtype of q, got float16 vs bfloat16", -1);
	REFUSED(RESHAPE(w.k_out, 4, 2, 8), KVC_E_SHAPE, "output-shape-must-match-input",
	        "k_out must have the shape of k, got (4, 2, 8) vs (4, 1, 8)", -1);
}

static void counts_devices_and_options(void **state)
{
	(void)state;
	REFUSED(w.args.n_valid = 5, KVC_E_LENGTH, "n-valid-out-of-range",
	        "n_valid is 5, the call has 4 tokens", -1);
	REFUSED(w.args.n_valid = -2, KVC_E_LENGTH, "n-valid-out-of-range", NULL, -1);
	REFUSED(w.k_pool.tensor.device.device_type = 9, KVC_E_DEVICE, "device-unknown", NULL, -1);
	REFUSED(w.k_pool.tensor.device.device_type = KVC_DEVICE_CUDA, KVC_E_DEVICE,
	        "device-mismatch", NULL, -1);
	REFUSED(w.rope.rotary_dim = 3, KVC_E_SHAPE, "rotary-dim-invalid",
	        "rotary_dim is 3, it must be even and in 0..512", -1);
	REFUSED(w.rope.rotary_dim = -2, KVC_E_SHAPE, "rotary-dim-invalid", NULL, -1);
	REFUSED(w.rope.rotary_dim = 10, KVC_E_SHAPE, "rotary-range-exceeds-head",
	        "rotary_dim 10 from rotary_offset 0 on does not fit a head of 8 elements", -1);
	REFUSED(w.args.rotary_offset = -1, KVC_E_SHAPE, "rotary-range-exceeds-head", NULL, -1);
	REFUSED(w.args.rotary_offset = INT64_MAX, KVC_E_SHAPE, "rotary-range-exceeds-head", NULL,
	        -1);
	REFUSED(w.args.q_rotary_offset = 1, KVC_E_SHAPE, "rotary-range-exceeds-head",
	        "rotary_dim 8 from q_rotary_offset 1 on does not fit a head of 8 elements", -1);
	REFUSED(w.rope.style = 2, KVC_E_CONFIG, "rope-style-unknown", "rope style 2 is unknown",
	        -1);
	REFUSED(w.args.k_scale = 0.5f, KVC_E_CONFIG, "scale-without-fp8",
	        "k_scale is 0.5, but the pools are bfloat16", -1);
	REFUSED(w.args.v_scale = NAN, KVC_E_CONFIG, "scale-without-fp8", NULL, -1);
	static const float scales[] = { 0.0f, -1.0f, INFINITY, NAN };
	for (int i = 0; i < 4; i++) {
		REFUSED((POOL_DTYPE(KVC_FLOAT8_E4M3FN), w.args.k_scale = scales[i]), KVC_E_CONFIG,
		        "scale-out-of-range", NULL, -1);
		REFUSED((POOL_DTYPE(KVC_FLOAT8_E5M2), w.args.v_scale = scales[i]), KVC_E_CONFIG,
		        "scale-out-of-range", NULL, -1);
	}
}

static void stamps_that_do_not_fit(void **state)
{
	(void)state;
	static kvc_record records[33];
	kvc_stamp sound = KVC_STAMP_INIT;
	sound.records = records;
	sound.record_count = 32;
	sound.head_bytes = 16;
	kvc_stamp stamp = sound;
#define STAMP(change) (stamp = sound, change, w.args.stamp = &stamp)
	REFUSED(STAMP(stamp.coverage = 3), KVC_E_CONFIG, "stamp-does-not-fit",
	        "stamp coverage is 3, it must be 0, 1 or 2", -1);
	REFUSED(STAMP(stamp.records = NULL), KVC_E_INVALID_ARGUMENT, "null-argument",
	        "stamp.records is NULL", -1);
	REFUSED(STAMP(stamp.records = (char *)records + 4), KVC_E_CONFIG, "stamp-does-not-fit",
	        NULL, -1);
	REFUSED(STAMP(stamp.record_stride_bytes = 36), KVC_E_CONFIG, "stamp-does-not-fit", NULL,
	        -1);
	REFUSED(STAMP(stamp.record_stride_bytes = 24), KVC_E_CONFIG, "stamp-does-not-fit", NULL,
	        -1);
	REFUSED(STAMP(stamp.record_count = 31), KVC_E_CONFIG, "stamp-does-not-fit",
	        "stamp record_count is 31, it must be at least the slot count of the pools", -1);
	REFUSED(STAMP(stamp.head_bytes = 0), KVC_E_CONFIG, "stamp-does-not-fit", NULL, -1);
	REFUSED(STAMP(stamp.head_bytes = 12), KVC_E_CONFIG, "stamp-does-not-fit", NULL, -1);
	REFUSED(STAMP(stamp.struct_bytes = 0), KVC_E_INVALID_ARGUMENT, "struct-bytes-unknown", NULL,
	        -1);
	/* Records over a pool. */
	REFUSED(STAMP(stamp.records = w.k_pool.tensor.data), KVC_E_OVERLAP, "output-overlap",
	        "stamp.records shares memory with k_pool", -1);
#undef STAMP
}

static void strides(void **state)
{
	(void)state;
	REFUSED(w.k.strides[2] = 2, KVC_E_STRIDE, "last-dimension-not-contiguous",
	        "k has stride 2 in its last dimension, it must be 1", -1);
	REFUSED(w.v_pool.strides[2] = 0, KVC_E_STRIDE, "last-dimension-not-contiguous", NULL, -1);
	REFUSED(w.k_pool.strides[0] = 0, KVC_E_STRIDE, "output-strides-fold-rows",
	        "k_pool of shape (32, 1, 8) has strides 0, 8, which lay rows over each other", -1);
	REFUSED(w.k_pool.strides[0] = 7, KVC_E_STRIDE, "output-strides-fold-rows", NULL, -1);
	REFUSED(w.k_pool.strides[0] = -8, KVC_E_STRIDE, "output-strides-fold-rows", NULL, -1);
	REFUSED(w.q_out.strides[1] = 4, KVC_E_STRIDE, "output-strides-fold-rows", NULL, -1);
	REFUSED(w.q_out.strides[0] = 12, KVC_E_STRIDE, "output-strides-fold-rows", NULL, -1);
	REFUSED(w.q.strides[0] = INT64_MAX, KVC_E_SHAPE, "tensor-shape-impossible", NULL, -1);
}

static void b92_negative_token_counts_are_impossible(void **state)
{
	(void)state;
	struct world w;
	world_x(&w);
	struct view *by_token[] = { &w.q, &w.k, &w.v, &w.q_out, &w.k_out, &w.positions, &w.slots };
	for (size_t i = 0; i < 7; i++)
		by_token[i]->shape[0] = -1;
	world_refused(&w, KVC_E_SHAPE, "tensor-shape-impossible", NULL, -1);
	world_free(&w);
}

/* Also where there is no row to process, dimensions are multiplied only if that can be done. */
static void dimensions_that_cannot_be_are_refused_before_any_arithmetic(void **state)
{
	(void)state;
	static const int64_t wild[][2] = { { INT64_C(1) << 40, INT64_C(1) << 40 }, { 1, INT64_MIN },
		{ -1, 8 }, { 1, INT64_MAX }, { INT64_MAX, 0 } };
	static kvc_record records[32];
	kvc_stamp stamp = KVC_STAMP_INIT;
	stamp.records = records;
	stamp.record_count = 32;
	stamp.head_bytes = 16;
	for (size_t i = 0; i < sizeof wild / sizeof *wild; i++) {
		for (int64_t tokens = 0; tokens <= 4; tokens += 4) {
			struct world w;
			world_x(&w);
			struct view *views[] = { &w.q, &w.q_out, &w.k, &w.v, &w.k_out, &w.k_pool,
				&w.v_pool };
			for (size_t v = 0; v < 7; v++) {
				views[v]->tensor.strides = NULL;
				RESHAPE(*views[v], v < 5 ? tokens : 32, wild[i][0], wild[i][1]);
			}
			w.positions.shape[0] = w.slots.shape[0] = tokens;
			w.args.stamp = &stamp;
			w.rope.rotary_dim = wild[i][1] == 0 ? 0 : 8;
			world_refused(&w, KVC_E_SHAPE, "tensor-shape-impossible", NULL, -1);
			world_free(&w);
		}
	}
}

/* Put one view's data at another's, 'bytes' further on. */
#define OVER(view, other, bytes) ((view).tensor.data = (char *)(other).tensor.data + (bytes))

static void outputs_over_other_tensors(void **state)
{
	(void)state;
	REFUSED(OVER(w.v_pool, w.k_pool, 0), KVC_E_OVERLAP, "output-overlap",
	        "v_pool shares memory with k_pool", -1);
	REFUSED(OVER(w.v_pool, w.k_pool, 32 * 8 * 2 - 2), KVC_E_OVERLAP, "output-overlap", NULL,
	        -1);
	REFUSED(OVER(w.q_out, w.q, 2), KVC_E_OVERLAP, "output-overlap",
	        "q_out shares memory with q", -1);
	REFUSED(OVER(w.k_out, w.q, 0), KVC_E_OVERLAP, "output-overlap",
	        "k_out shares memory with q", -1);
	REFUSED((OVER(w.k_out, w.k, 0), w.k_out.strides[0] = 16), KVC_E_OVERLAP, "output-overlap",
	        "k_out shares memory with k", -1);
	REFUSED(OVER(w.k_out, w.v, 0), KVC_E_OVERLAP, "output-overlap",
	        "k_out shares memory with v", -1);
	REFUSED(OVER(w.k_pool, w.k, -16), KVC_E_OVERLAP, "output-overlap",
	        "k_pool shares memory with k", -1);
	REFUSED(OVER(w.k_pool, w.slots, -100), KVC_E_OVERLAP, "output-overlap",
	        "k_pool shares memory with slots", -1);
	REFUSED(OVER(w.q_out, w.positions, -8), KVC_E_OVERLAP, "output-overlap",
	        "q_out shares memory with positions", -1);
}

/* Compare the proofs with the truth, element by element. */
static void disjointness_proofs_never_lie(void **state)
{
	(void)state;
	struct seeded_state {
		uint64_t x;
	} random = { 88172645463325252u };
	static char memory[4096];
	int proven = 0;
	for (int round = 0; round < 20000; round++) {
		struct view v[2];
		static char owner[4096];
		memset(owner, 0, sizeof owner);
		int share = 0;
		for (int i = 0; i < 2; i++) {
			int64_t n[6];
			for (int j = 0; j < 6; j++) {
				random.x ^= random.x << 13, random.x ^= random.x >> 7;
				random.x ^= random.x << 17;
				n[j] = (int64_t)(random.x >> 33);
			}
			struct buffer b = { .data = memory };
			int64_t s1 = n[3] % 12;
			int64_t s0 = n[4] % 2 ? 24 : n[4] % 40;
			view_set(&v[i], &b, n[5] % 2 ? KVC_FLOAT16 : KVC_UINT8, n[5] % 100,
			        1 + n[0] % 4, 1 + n[1] % 3, 1 + n[2] % 4, s0, s1);
			v[i].tensor.shape = v[i].shape, v[i].tensor.strides = v[i].strides;
		}
		for (int i = 0; i < 2; i++)
			for (int64_t e = 0; e < v[i].shape[0] * v[i].shape[1] * v[i].shape[2];
			        e++) {
				int64_t d = e % v[i].shape[2];
				int64_t j = e / v[i].shape[2] % v[i].shape[1];
				int64_t r = e / v[i].shape[2] / v[i].shape[1];
				char *at = view_at(&v[i], r, j, d);
				for (int64_t k = 0; k < width_of(v[i].tensor.dtype); k++) {
					share |= owner[at - memory + k] & (i == 1 ? 1 : 0);
					owner[at - memory + k] |= (char)(1 << i);
				}
			}
		if (kvc__tensors_disjoint(&v[0].tensor, &v[1].tensor)) {
			assert_false(share);
			proven++;
		}
		/* Folding likewise: as many addresses as elements, if rows are said to lie apart. */
		int64_t elements = v[0].shape[0] * v[0].shape[1] * v[0].shape[2];
		int64_t used = 0;
		for (size_t k = 0; k < sizeof owner; k++)
			used += owner[k] & 1;
		if (kvc__rows_lie_apart(&v[0].tensor))
			assert_int_equal(used, elements * width_of(v[0].tensor.dtype));
	}
	assert_true(proven > 1000);
}

static void positions_without_a_table(void **state)
{
	(void)state;
	REFUSED(set_index(&w.positions, 1, (1 << 24) + 1), KVC_E_POSITION_RANGE,
	        "position-out-of-range", "position 16777217 of token 1 is not in 0..16777216", 1);
	REFUSED(set_index(&w.positions, 3, INT64_MIN), KVC_E_POSITION_RANGE,
	        "position-out-of-range", NULL, 3);
}

static void duplicates_small_and_large(void **state)
{
	(void)state;
	struct world w;
	struct size size = { 3000, 1, 1, 2, 2, 1200000 };
	world_make(&w, size, KVC_BFLOAT16, KVC_BFLOAT16, KVC_INT64);
	static const int64_t counts[] = { 1000, 1024, 1025, 3000 };
	w.args.check_duplicates = 1;
	for (int64_t t = 0; t < 3000; t++) /* spread over three windows of the bitmap */
		set_index(&w.slots, t, t * 7919 % 1200000);
	for (int i = 0; i < 4; i++) {
		w.args.n_valid = counts[i];
		expect_ok(kvc_rope_pool_fused(&w.args, NULL));
		int64_t last = index_at(&w.slots, counts[i] - 1);
		set_index(&w.slots, counts[i] - 1, index_at(&w.slots, 17));
		expect_error(kvc_rope_pool_fused(&w.args, NULL), KVC_E_SLOT_DUPLICATE,
		        "pool-slot-duplicate", NULL, counts[i] - 1);
		/* The lowest offending token is named, in whichever window it is. */
		int64_t other = index_at(&w.slots, 900);
		set_index(&w.slots, 900, index_at(&w.slots, 899));
		expect_error(kvc_rope_pool_fused(&w.args, NULL), KVC_E_SLOT_DUPLICATE,
		        "pool-slot-duplicate", NULL, 900);
		set_index(&w.slots, 900, -1);
		set_index(&w.slots, 901, -1); /* two skipped rows are none */
		set_index(&w.slots, counts[i] - 1, last);
		expect_ok(kvc_rope_pool_fused(&w.args, NULL));
		set_index(&w.slots, 900, other);
		set_index(&w.slots, 901, 901 * 7919 % 1200000);
	}
	world_free(&w);
}

static void nonfinite_values(void **state)
{
	(void)state;
	REFUSED((w.args.check_finite = 1, set_bits(&w.k, 2, 0, 5, 0x7F80)), KVC_E_NONFINITE,
	        "nonfinite-value", "k has a NaN or infinity at token 2, head 0, dim 5", 2);
	REFUSED((w.args.check_finite = 1, set_bits(&w.v, 1, 0, 7, 0xFFC0)), KVC_E_NONFINITE,
	        "nonfinite-value", "v has a NaN or infinity at token 1, head 0, dim 7", 1);
	struct world w;
	struct size size = { 3, 2, 2, 6, 6, 8 };
	world_make(&w, size, KVC_FLOAT16, KVC_FLOAT16, KVC_INT64);
	w.args.check_finite = 1;
	set_bits(&w.q, 0, 0, 0, 0x7C00); /* q is not looked at */
	world_run(&w);
	set_bits(&w.v, 2, 1, 4, 0x7C01);
	world_refused(&w, KVC_E_NONFINITE, "nonfinite-value",
	        "v has a NaN or infinity at token 2, head 1, dim 4", 2);
	set_index(&w.slots, 2, -1);
	world_run(&w);
	world_free(&w);
	world_make(&w, size, KVC_FLOAT32, KVC_FLOAT32, KVC_INT64);
	w.args.check_finite = 1;
	set_bits(&w.k, 0, 1, 3, 0xFF800000);
	world_refused(&w, KVC_E_NONFINITE, "nonfinite-value",
	        "k has a NaN or infinity at token 0, head 1, dim 3", 0);
	world_free(&w);
}

/* Every fault below is in the call at once; mending them one by one brings out the next. */
static void faults_are_named_in_the_documented_order(void **state)
{
	(void)state;
	struct world w;
	world_x(&w);
	w.args.check_duplicates = w.args.check_finite = 1;
	set_bits(&w.k, 0, 0, 0, 0x7F80);
	set_index(&w.slots, 1, 4);
	set_index(&w.slots, 3, 99);
	set_index(&w.positions, 2, -5);
	void *v_pool_data = w.v_pool.tensor.data;
	w.v_pool.tensor.data = w.k_pool.tensor.data;
	w.k.strides[2] = 3;
	w.args.k_scale = 2.0f;
	w.rope.style = 7;
	w.rope.rotary_dim = 5;
	w.q.tensor.device.device_type = KVC_DEVICE_CUDA;
	w.slots.tensor.dtype = KVC_FLOAT32;
	w.args.n_valid = 77;
	POOL_DTYPE(KVC_FLOAT16);
	w.q.tensor.dtype = KVC_FLOAT32;
	w.v_pool.shape[0] = 9;
	w.k_pool.shape[1] = 2;
	w.slots.shape[0] = 1;
	w.v.shape[1] = 3;
	w.args.num_kv_heads = 5;
	w.args.num_qo_heads = 5;
	w.k_pool.tensor.ndim = 1;
	w.slots.tensor.ndim = 2;
	w.k.tensor.ndim = 2;
	const char *slug = NULL;
#define NEXT(expected, mend)                                                                       \
	do {                                                                                       \
		assert_int_not_equal(world_call(&w), KVC_OK);                                      \
		slug = kvc_last_error()->slug;                                                     \
		assert_string_equal(slug, expected);                                               \
		world_check_untouched(&w);                                                         \
		mend;                                                                              \
	} while (0)
	NEXT("qkv-must-be-3-d", w.k.tensor.ndim = 3);
	NEXT("positions-slots-must-be-1-d", w.slots.tensor.ndim = 1);
	NEXT("pools-must-be-3-d", w.k_pool.tensor.ndim = 3);
	NEXT("q-shape-must-be", w.args.num_qo_heads = 2);
	NEXT("k-shape-must-be", w.args.num_kv_heads = 1);
	NEXT("v-shape-must-match-k-shape", w.v.shape[1] = 1);
	NEXT("positions-slots-one-entry-per-token", w.slots.shape[0] = 4);
	NEXT("k-pool-incompatible-shape", w.k_pool.shape[1] = 1);
	NEXT("v-pool-shape-must-match-k-pool-shape", w.v_pool.shape[0] = 32);
	NEXT("qkv-dtypes-must-match", w.q.tensor.dtype = KVC_BFLOAT16);
	NEXT("pool-dtypes-must-match", POOL_DTYPE(KVC_BFLOAT16));
	NEXT("n-valid-out-of-range", w.args.n_valid = -1);
	NEXT("index-dtype-unsupported", w.slots.tensor.dtype = KVC_INT64);
	NEXT("device-mismatch", w.q.tensor.device.device_type = KVC_DEVICE_CPU);
	NEXT("rotary-dim-invalid", w.rope.rotary_dim = 8);
	NEXT("rope-style-unknown", w.rope.style = 0);
	NEXT("scale-without-fp8", w.args.k_scale = 1.0f);
	NEXT("last-dimension-not-contiguous", w.k.strides[2] = 1);
	NEXT("output-overlap", w.v_pool.tensor.data = v_pool_data);
	NEXT("position-out-of-range", set_index(&w.positions, 2, 5));
	NEXT("pool-slot-out-of-range", set_index(&w.slots, 3, 9));
	NEXT("pool-slot-duplicate", set_index(&w.slots, 1, 5));
	NEXT("nonfinite-value", set_bits(&w.k, 0, 0, 0, 0x3F80));
#undef NEXT
	world_run(&w);
	world_free(&w);
}

static void reports_are_started_and_added_to(void **state)
{
	(void)state;
	struct world w;
	expect_error(kvc_report_init(NULL, KVC_HOST, NULL), KVC_E_INVALID_ARGUMENT, "null-argument",
	        "out is NULL", -1);
	world_x(&w);
	set_index(&w.slots, 1, -1);
	expect_ok(kvc_rope_pool_fused(&w.args, NULL));
	expect_ok(kvc_rope_pool_fused(&w.args, NULL));
	assert_int_equal(w.report.rows_written, 6);
	assert_int_equal(w.report.rows_skipped, 2);
	for (int reason = 0; reason < KVC_REPORT_REASON_COUNT; reason++) {
		assert_int_equal(w.report.count[reason], 0);
		assert_int_equal(w.report.first[reason], -1);
	}
	set_index(&w.slots, 1, 77);
	assert_int_equal(kvc_rope_pool_fused(&w.args, NULL), KVC_E_SLOT_RANGE);
	assert_int_equal(w.report.rows_written, 6);
	world_free(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(missing_arguments),
		cmocka_unit_test(shapes_with_the_texts_of_sglang),
		cmocka_unit_test(b23_pools_of_another_layers_head_count),
		cmocka_unit_test(element_types),
		cmocka_unit_test(counts_devices_and_options),
		cmocka_unit_test(stamps_that_do_not_fit),
		cmocka_unit_test(strides),
		cmocka_unit_test(b92_negative_token_counts_are_impossible),
		cmocka_unit_test(dimensions_that_cannot_be_are_refused_before_any_arithmetic),
		cmocka_unit_test(outputs_over_other_tensors),
		cmocka_unit_test(disjointness_proofs_never_lie),
		cmocka_unit_test(positions_without_a_table),
		cmocka_unit_test(duplicates_small_and_large),
		cmocka_unit_test(nonfinite_values),
		cmocka_unit_test(faults_are_named_in_the_documented_order),
		cmocka_unit_test(reports_are_started_and_added_to),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
