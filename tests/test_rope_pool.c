/*
 * Goal: what kvc_rope_pool_fused stores, and what it leaves alone. Method: cases from the field and a
 * table of shapes, types and layouts, each judged byte by byte by the oracle of rope_world.h.
 * Refusals are in test_rope_refusals.c, random calls in test_rope_random.c.
 */
#include "rope_world.h"

#include <limits.h>

/* ---- padding rows ---- */

static void b01_negative_slots_write_nothing(void **state)
{
	(void)state;
	const kvc_dtype widths[] = { KVC_INT32, KVC_INT64 };
	for (int i = 0; i < 2; i++) {
		struct world w;
		struct size size = { 8, 2, 1, 8, 8, 32 };
		world_make(&w, size, KVC_BFLOAT16, KVC_BFLOAT16, widths[i]);
		for (int64_t t = 4; t < 8; t++)
			set_index(&w.slots, t, -1);
		world_run(&w);
		assert_int_equal(w.report.rows_written, 4);
		assert_int_equal(bits_at(&w.k_pool, 31, 0, 7, 0), 0xA5A5);
		set_index(&w.slots, 3, -2);
		set_index(&w.slots, 4, INT32_MIN);
		set_index(&w.slots, 5, widths[i].bits == 64 ? INT64_MIN : -7);
		world_run(&w);
		assert_int_equal(w.report.rows_written, 3);
		world_free(&w);
	}
}

static void b03_reserved_slot_takes_any_number_of_padding_rows(void **state)
{
	(void)state;
	const kvc_dtype widths[] = { KVC_INT32, KVC_INT64 };
	static const int64_t slots[] = { 4, 0, 5, 0 };
	for (int i = 0; i < 2; i++) {
		struct world w;
		struct size size = { 4, 2, 1, 8, 8, 32 };
		world_make(&w, size, KVC_BFLOAT16, KVC_BFLOAT16, widths[i]);
		for (int64_t t = 0; t < 4; t++)
			set_index(&w.slots, t, slots[t]);
		for (int64_t d = 0; d < 8; d++) {
			set_bits(&w.k, 1, 0, d, 0xFFC1); /* NaN */
			set_bits(&w.k, 3, 0, d, 0x7F80 + (uint32_t)d);
		}
		w.args.reserved_slot = 0;
		w.args.check_duplicates = 1;
		w.args.check_finite = 1;
		world_run(&w);
		assert_int_equal(w.report.rows_written, 2);
		assert_int_equal(w.report.rows_skipped, 2);
		w.args.reserved_slot = -1;
		w.args.check_finite = 0;
		world_refused(&w, KVC_E_SLOT_DUPLICATE, "pool-slot-duplicate",
		        "tokens 1 and 3 both write slot 0", 3);
		world_free(&w);
	}
}

static void b05_n_valid_reads_no_slot_past_it(void **state)
{
	(void)state;
	struct world w;
	struct size size = { 8, 2, 1, 8, 8, 32 };
	world_make(&w, size, KVC_BFLOAT16, KVC_BFLOAT16, KVC_INT64);
	world_indices(&w, &w.slots, KVC_INT64, 5); /* ends at the guard page */
	for (int64_t t = 0; t < 5; t++)
		set_index(&w.slots, t, t + 4);
	world_refused(&w, KVC_E_LENGTH, "positions-slots-one-entry-per-token",
	        "positions/slots must have one entry per token", -1);
	w.args.n_valid = 5;
	world_run(&w);
	assert_int_equal(w.report.rows_written, 5);
	world_free(&w);
}

static void b92_no_tokens_is_a_no_op_that_touches_no_pointer(void **state)
{
	(void)state;
	struct world w;
	world_x(&w);
	w.args.n_valid = 0;
	world_run(&w);
	assert_int_equal(w.report.rows_written, 0);

	struct view *all[] = { &w.q, &w.k, &w.v, &w.positions, &w.slots, &w.q_out, &w.k_out,
		&w.k_pool, &w.v_pool };
	w.args.n_valid = -1;
	w.size.tokens = 0;
	for (size_t i = 0; i < 7; i++)
		all[i]->shape[0] = 0;
	world_run(&w);
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		all[i]->tensor.data = NULL;
		all[i]->tensor.byte_offset = 0;
	}
	expect_ok(kvc_rope_pool_fused(&w.args, NULL));
	w.args.check_duplicates = w.args.check_finite = 1;
	expect_ok(kvc_rope_pool_fused(&w.args, NULL));
	world_check_untouched(&w);
	world_free(&w);
}

/* ---- integer width ---- */

/* A pool of 2 GiB, of which a few pages exist. */
static void b09_rows_past_2_gib_land_where_they_belong(void **state)
{
	(void)state;
	enum { DIM = 576 };
	const int64_t slot_count = 3728275;
	const int64_t bytes = slot_count * DIM;
	struct world w;
	struct size size = { 2, 1, 1, DIM, DIM, 1 };
	world_make(&w, size, KVC_BFLOAT16, KVC_FLOAT8_E4M3FN, KVC_INT64);
	char *pool = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE,
	        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	assert_true(pool != MAP_FAILED);
	int64_t shape[] = { slot_count, 1, DIM };
	kvc_tensor k_pool = kvc_tensor_make(pool, KVC_FLOAT8_E4M3FN, 3, shape);
	w.args.k_pool = &k_pool;
	world_k_only(&w);
	world_rope(&w, 64, KVC_ROPE_INTERLEAVED);
	w.args.rotary_offset = w.args.q_rotary_offset = 512;
	set_index(&w.slots, 0, 3728270);
	set_index(&w.slots, 1, 3728271);
	expect_ok(kvc_rope_pool_fused(&w.args, NULL));
	for (int64_t t = 0; t < 2; t++) {
		const uint8_t *row = (const uint8_t *)pool + (3728270 + t) * DIM;
		for (int64_t d = 0; d < DIM; d++)
			assert_int_equal(row[d], pool_bits(KVC_FLOAT8_E4M3FN, KVC_BFLOAT16,
			                                 bits_at(&w.k_out, t, 0, d, 0), 1.0f));
	}
	assert_int_equal(pool[3728270 * (int64_t)DIM - 1], 0);
	assert_int_equal(pool[3728272 * (int64_t)DIM], 0);
	shape[0] = 3728271;
	expect_error(kvc_rope_pool_fused(&w.args, NULL), KVC_E_SLOT_RANGE, "pool-slot-out-of-range",
	        "slot 3728271 of token 1 is not below the pool's 3728271 slots", 1);
	munmap(pool, (size_t)bytes);
	world_free(&w);
}

static void b13_b14_widths_of_positions_and_slots_are_independent(void **state)
{
	(void)state;
	static const int64_t slots[] = { 5, 9, 13, 17 };
	for (int combination = 0; combination < 4; combination++) {
		struct world w;
		world_x(&w);
		world_indices(&w, &w.positions, combination & 1 ? KVC_INT64 : KVC_INT32, 4);
		world_indices(&w, &w.slots, combination & 2 ? KVC_INT64 : KVC_INT32, 4);
		for (int64_t t = 0; t < 4; t++) {
			set_index(&w.positions, t, t + 3);
			set_index(&w.slots, t, slots[t]);
		}
		world_run(&w);
		world_free(&w);
	}
}

/* ---- shape, stride, layout ---- */

static void b18_k_and_v_interleaved_in_one_buffer(void **state)
{
	(void)state;
	for (int adjacent_heads = 0; adjacent_heads < 2; adjacent_heads++) {
		struct world w;
		struct size size = { 4, 2, 3, 8, 8, 32 };
		world_make(&w, size, KVC_BFLOAT16, KVC_BFLOAT16, KVC_INT64);
		struct buffer *b = world_buffer(&w, 32 * 2 * 3 * 8 * 2);
		if (adjacent_heads) { /* [slots, heads, 2, dim] */
			view_set(&w.k_pool, b, KVC_BFLOAT16, 0, 32, 3, 8, 48, 16);
			view_set(&w.v_pool, b, KVC_BFLOAT16, 8, 32, 3, 8, 48, 16);
		} else { /* [slots, 2, heads, dim] */
			view_set(&w.k_pool, b, KVC_BFLOAT16, 0, 32, 3, 8, 48, 8);
			view_set(&w.v_pool, b, KVC_BFLOAT16, 24, 32, 3, 8, 48, 8);
		}
		world_run(&w);
		world_free(&w);
	}
}

static void pools_of_all_heads_first_are_written(void **state)
{
	(void)state;
	struct world w;
	struct size size = { 4, 2, 3, 8, 8, 32 };
	world_make(&w, size, KVC_FLOAT16, KVC_FLOAT16, KVC_INT64);
	struct buffer *b = world_buffer(&w, 3 * 32 * 8 * 2);
	view_set(&w.k_pool, b, KVC_FLOAT16, 0, 32, 3, 8, 8, 32 * 8); /* [heads, slots, dim] */
	world_run(&w);
	world_free(&w);
}

static void q_k_v_are_views_of_one_packed_projection(void **state)
{
	(void)state;
	struct world w;
	struct size size = { 5, 4, 2, 16, 16, 32 };
	world_make(&w, size, KVC_BFLOAT16, KVC_BFLOAT16, KVC_INT32);
	struct buffer *b = world_buffer(&w, 5 * 8 * 16 * 2);
	view_set(&w.q, b, KVC_BFLOAT16, 0, 5, 4, 16, 128, 16);
	view_set(&w.k, b, KVC_BFLOAT16, 64, 5, 2, 16, 128, 16);
	view_set(&w.v, b, KVC_BFLOAT16, 96, 5, 2, 16, 128, 16);
	view_fill(&w.q, 1), view_fill(&w.k, 2), view_fill(&w.v, 3);
	world_run(&w);
	world_in_place(&w);
	world_run(&w);
	world_free(&w);
}

/* Elements at odd addresses, rows of 23 elements, negative and zero input strides. */
static void odd_addresses_and_input_strides_of_any_sign(void **state)
{
	(void)state;
	struct world w;
	struct size size = { 3, 2, 2, 23, 23, 16 };
	world_make(&w, size, KVC_BFLOAT16, KVC_BFLOAT16, KVC_INT32);
	world_rope(&w, 22, KVC_ROPE_NEOX);
	struct buffer *b = world_buffer(&w, 3 * 2 * 23 * 2 + 1);
	view_set(&w.k, b, KVC_BFLOAT16, 0, 3, 2, 23, 46, 23);
	w.k.tensor.byte_offset += 1;
	view_fill(&w.k, 5);
	struct buffer *odd_pool = world_buffer(&w, 16 * 2 * 23 * 2 + 1);
	view_set(&w.k_pool, odd_pool, KVC_BFLOAT16, 0, 16, 2, 23, 46, 23);
	w.k_pool.tensor.byte_offset += 1;
	world_run(&w);

	w.v.tensor.byte_offset += 2 * 46 * 2; /* last token first */
	w.v.strides[0] = -46;
	w.q.strides[0] = 0; /* one row for all tokens */
	world_run(&w);
	world_free(&w);
}

/* Frameworks put anything into the stride of a dimension with one entry. */
static void strides_of_single_entries_are_not_used(void **state)
{
	(void)state;
	static const int64_t strides[] = { INT64_MAX, INT64_MIN + 1, -1, 0, INT64_MAX / 2 };
	for (size_t i = 0; i < sizeof strides / sizeof *strides; i++) {
		struct world w;
		struct size size = { 1, 1, 1, 16, 16, 1 };
		world_make(&w, size, KVC_BFLOAT16, KVC_BFLOAT16, KVC_INT64);
		struct view *all[] = { &w.q, &w.k, &w.v, &w.q_out, &w.k_out, &w.k_pool, &w.v_pool };
		for (size_t v = 0; v < 7; v++)
			all[v]->strides[0] = all[v]->strides[1] = strides[i];
		w.positions.strides[0] = w.slots.strides[0] = strides[i];
		for (int pass = 0; pass < 2; pass++) {
			world_snapshot(&w);
			expect_ok(kvc_rope_pool_fused(&w.args, NULL));
			world_in_place(&w);
		}
		for (size_t v = 0; v < 7; v++)
			all[v]->strides[0] = all[v]->strides[1] = 16;
		w.positions.strides[0] = w.slots.strides[0] = 1;
		assert_memory_equal(w.k.buffer->data, w.k_pool.buffer->data, 32);
		world_free(&w);
	}
}

static void b22_head_sizes_that_are_no_power_of_two(void **state)
{
	(void)state;
	static const int64_t dims[] = { 80, 96, 112, 2, 6, 130, 256, 576 };
	for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
		for (int style = 0; style < 2; style++) {
			struct world w;
			struct size size = { 3, 2, 1, dims[i], dims[i], 32 };
			world_make(&w, size, KVC_BFLOAT16, KVC_BFLOAT16, KVC_INT64);
			world_rope(&w, (int32_t)(dims[i] < 512 ? dims[i] : 512), style);
			for (int64_t t = 0; t < 3; t++)
				set_index(&w.slots, t, 31 - t); /* the last row of the pool */
			world_run(&w);
			world_free(&w);
		}
	}
}

static void b24_a_single_head_of_k_is_rotated(void **state)
{
	(void)state;
	for (int64_t q_heads = 2; q_heads >= 1; q_heads--) {
		struct world w;
		struct size size = { 2, q_heads, 1, 128, 128, 8 };
		world_make(&w, size, KVC_FLOAT32, KVC_FLOAT32, KVC_INT64);
		float table[2 * 128];
		for (int i = 0; i < 256; i++)
			table[i] = (float)((i * 37) % 101 - 50) / 50.0f;
		int64_t shape[] = { 2, 128 };
		kvc_tensor tensor = kvc_tensor_make(table, KVC_FLOAT32, 2, shape);
		kvc_rope_options options = KVC_ROPE_OPTIONS_INIT;
		options.rotary_dim = 128;
		options.cos_sin_cache = &tensor;
		expect_ok(kvc_rope_init(&w.rope, &options));
		world_run(&w);
		assert_memory_not_equal(w.k_out.buffer->data, w.k.buffer->data, 256 * 4);
		world_free(&w);
	}
}

/* ---- quantised pools ---- */

static void b30_fp8_rows_saturate_and_keep_nan(void **state)
{
	(void)state;
	static const float values[] = { NAN, INFINITY, -INFINITY, 448, 464, 465, -0.0f, 0x1p-10f,
		0x1p-9f, 0x1.8p-9f, -448, 1e30f, 57344, 61440, 65536, 0x1p-17f };
	const kvc_dtype pools[] = { KVC_FLOAT8_E4M3FN, KVC_FLOAT8_E5M2 };
	for (int p = 0; p < 2; p++) {
		struct world w;
		struct size size = { 1, 1, 1, 16, 16, 4 };
		world_make(&w, size, KVC_FLOAT32, pools[p], KVC_INT64);
		world_rope(&w, 0, KVC_ROPE_NEOX); /* a plain copy, so that k keeps its bits */
		set_index(&w.slots, 0, 2);
		for (int64_t d = 0; d < 16; d++)
			set_bits(&w.k, 0, 0, d, kvc__bits_of(values[d]));
		world_run(&w);
		assert_int_equal(bits_at(&w.k_pool, 2, 0, 0, 0), 0x7F);
		assert_int_equal(bits_at(&w.k_pool, 2, 0, 6, 0), 0x80);
		assert_int_equal(bits_at(&w.k_pool, 2, 0, 1, 0), p == 0 ? 0x7E : 0x7B);
		w.args.k_scale = 3.0f;
		w.args.v_scale = 0.037f;
		world_run(&w);
		world_free(&w);
	}
}

static void a_rotated_nan_is_positive_and_a_copied_one_keeps_its_bits(void **state)
{
	(void)state;
	const kvc_dtype types[] = { KVC_FLOAT32, KVC_FLOAT16, KVC_BFLOAT16 };
	static const uint32_t nans[] = { 0xFFC12345, 0xFE03, 0xFFC3 };
	static const uint32_t quiet[] = { 0x7FC00000, 0x7E00, 0x7FC0 };
	for (int i = 0; i < 3; i++) {
		struct world w;
		struct size size = { 4, 2, 1, 8, 8, 32 };
		world_make(&w, size, types[i], types[i], KVC_INT64);
		world_rope(&w, 4, KVC_ROPE_NEOX);
		set_bits(&w.k, 2, 0, 1, nans[i]);
		set_bits(&w.k, 2, 0, 5, nans[i]);
		set_bits(&w.v, 2, 0, 5, nans[i]);
		world_run(&w);
		assert_int_equal(bits_at(&w.k_out, 2, 0, 1, 0), quiet[i]);
		assert_int_equal(bits_at(&w.k_pool, 6, 0, 3, 0), quiet[i]);
		assert_int_equal(bits_at(&w.k_pool, 6, 0, 5, 0), nans[i]);
		assert_int_equal(bits_at(&w.v_pool, 6, 0, 5, 0), nans[i]);
		world_free(&w);
	}
}

/* Where products overflow, x1*s + x2*c can be infinity - infinity, x1*c - x2*s infinite: a variant that
 * looks for NaN in one of them only must still mend the other. */
static void a_nan_from_overflow_is_positive_too(void **state)
{
	(void)state;
	const kvc_dtype types[] = { KVC_FLOAT32, KVC_BFLOAT16 };
	static const uint32_t largest[] = { 0x7F7FFFFF, 0x7F7F };
	static const uint32_t minus[] = { 0x80000000, 0x8000 };
	static const uint32_t quiet[] = { 0x7FC00000, 0x7FC0 };
	for (int i = 0; i < 2; i++) {
		struct world w;
		struct size size = { 40, 2, 1, 128, 128, 64 };
		int64_t found = 0;
		world_make(&w, size, types[i], types[i], KVC_INT64);
		w.rope.attention_factor = 2;
		for (int64_t t = 0; t < 40; t++)
			for (int64_t d = 0; d < 128; d++)
				set_bits(&w.k, t, 0, d, largest[i] | (d < 64 ? 0 : minus[i]));
		world_run(&w);
		for (int64_t t = 0; t < 40; t++)
			for (int64_t d = 64; d < 128; d++)
				found += bits_at(&w.k_out, t, 0, d, 0) == quiet[i];
		assert_true(found > 40);
		world_free(&w);
	}
}

/* ---- positions ---- */

static void b33_chunked_k_equals_single_shot_k(void **state)
{
	(void)state;
	struct world w;
	struct size size = { 8, 2, 2, 64, 64, 32 };
	world_make(&w, size, KVC_BFLOAT16, KVC_BFLOAT16, KVC_INT64);
	world_run(&w);
	size_t bytes = w.k_pool.buffer->bytes;
	char *single = malloc(bytes);
	memcpy(single, w.k_pool.buffer->data, bytes);
	memset(w.k_pool.buffer->data, FILL, bytes);
	struct view *by_token[] = { &w.q, &w.k, &w.v, &w.q_out, &w.k_out, &w.positions, &w.slots };
	for (int chunk = 0; chunk < 2; chunk++) {
		for (size_t i = 0; i < 7; i++) {
			by_token[i]->shape[0] = 4;
			by_token[i]->tensor.byte_offset =
			        (uint64_t)(chunk * 4 * by_token[i]->strides[0] *
			                   width_of(by_token[i]->tensor.dtype));
		}
		w.size.tokens = 4;
		world_run(&w);
	}
	assert_memory_equal(single, w.k_pool.buffer->data, bytes);
	free(single);
	world_free(&w);
}

static void b35_positions_past_the_table_are_refused_or_skipped(void **state)
{
	(void)state;
	struct world w;
	world_x(&w);
	struct buffer *b = world_buffer(&w, 4096 * 8 * 4);
	for (int64_t i = 0; i < 4096 * 8; i++) {
		float value = (float)(i % 251 - 125) / 125.0f;
		memcpy(b->data + 4 * i, &value, 4);
	}
	int64_t shape[] = { 4096, 8 };
	kvc_tensor table = kvc_tensor_make(b->data, KVC_FLOAT32, 2, shape);
	kvc_rope_options options = KVC_ROPE_OPTIONS_INIT;
	options.rotary_dim = 8;
	options.cos_sin_cache = &table;
	expect_ok(kvc_rope_init(&w.rope, &options));
	static const int64_t positions[] = { 4094, 4095, 4096, -1 };
	for (int64_t t = 0; t < 4; t++)
		set_index(&w.positions, t, positions[t]);
	world_refused(&w, KVC_E_POSITION_RANGE, "position-out-of-range",
	        "position 4096 of token 2 is not in 0..4095", 2);
	set_index(&w.positions, 2, 0);
	world_refused(&w, KVC_E_POSITION_RANGE, "position-out-of-range",
	        "position -1 of token 3 is not in 0..4095", 3);
	set_index(&w.slots, 3, -1);
	world_run(&w);
	set_index(&w.positions, 3, 1000000000);
	world_run(&w);
	world_in_place(&w);
	world_run(&w); /* the skipped row of q and k stays as it was */
	set_index(&w.slots, 3, 7);
	w.args.reserved_slot = 7;
	world_run(&w);
	assert_int_equal(w.report.rows_written, 3);
	world_free(&w);
}

/* ---- variants of rope ---- */

static void b37_styles_pair_the_elements_they_say(void **state)
{
	(void)state;
	for (int style = 0; style < 2; style++) {
		struct world w;
		struct size size = { 1, 1, 1, 8, 8, 2 };
		world_make(&w, size, KVC_FLOAT32, KVC_FLOAT32, KVC_INT64);
		world_rope(&w, 8, style);
		set_index(&w.positions, 0, 1);
		set_index(&w.slots, 0, 1);
		for (int64_t d = 0; d < 8; d++)
			set_bits(&w.k, 0, 0, d, kvc__bits_of(d == 0 ? 1.0f : 0.0f));
		world_run(&w);
		for (int64_t d = 0; d < 8; d++) {
			int expected = d == 0 || d == (style == KVC_ROPE_NEOX ? 4 : 1);
			assert_int_equal(bits_at(&w.k_pool, 1, 0, d, 0) << 1 != 0, expected);
		}
		world_free(&w);
	}
}

static void b38_elements_outside_rotary_dim_are_copied(void **state)
{
	(void)state;
	static const struct {
		int32_t rotary_dim;
		int64_t offset;
	} cases[] = { { 4, 0 }, { 0, 0 }, { 16, 0 }, { 4, 12 }, { 6, 5 }, { 0, 16 }, { 2, 14 } };
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		for (int style = 0; style < 2; style++) {
			struct world w;
			struct size size = { 4, 2, 2, 16, 16, 32 };
			world_make(&w, size, KVC_BFLOAT16, KVC_BFLOAT16, KVC_INT64);
			world_rope(&w, cases[i].rotary_dim, style);
			w.args.rotary_offset = cases[i].offset;
			w.args.q_rotary_offset = 16 - cases[i].rotary_dim - cases[i].offset;
			world_run(&w);
			world_free(&w);
		}
	}
}

static void b39_live_k_equals_the_pool_row_in_place(void **state)
{
	(void)state;
	struct world w;
	world_x(&w);
	world_in_place(&w);
	set_index(&w.slots, 2, -1); /* rotated all the same */
	world_run(&w);
	for (int64_t t = 0; t < 4; t++)
		for (int64_t d = 0; d < 8 && t != 2; d++)
			assert_int_equal(
			        bits_at(&w.k, t, 0, d, 0), bits_at(&w.k_pool, 4 + t, 0, d, 0));
	world_free(&w);
}

static void b40_phases_are_exact_at_any_position(void **state)
{
	(void)state;
	static const int64_t positions[] = { 0, 255, 257, 4095, 15962, 131071, 1048575, 16777215,
		16777216 };
	static const double bases[] = { 1e4, 5e5, 1e6, 2.0 };
	const kvc_dtype types[] = { KVC_FLOAT32, KVC_FLOAT16, KVC_BFLOAT16 };
	for (int type = 0; type < 3; type++) {
		for (int b = 0; b < 4; b++) {
			struct world w;
			struct size size = { 9, 2, 1, 128, 128, 32 };
			world_make(&w, size, types[type], types[type], KVC_INT64);
			kvc_rope_options options = KVC_ROPE_OPTIONS_INIT;
			options.rotary_dim = 128;
			options.rope_base = bases[b];
			options.style = b % 2;
			expect_ok(kvc_rope_init(&w.rope, &options));
			for (int64_t t = 0; t < 9; t++)
				set_index(&w.positions, t, positions[t]);
			world_run(&w);
			world_free(&w);
		}
	}
}

/* e_0 rotated by 1 radian a position is the cosine itself: known values, no oracle involved. */
static void b40_known_cosines(void **state)
{
	(void)state;
	struct world w;
	struct size size = { 1, 1, 1, 128, 128, 2 };
	world_make(&w, size, KVC_FLOAT32, KVC_FLOAT32, KVC_INT64);
	for (int64_t d = 0; d < 128; d++)
		set_bits(&w.k, 0, 0, d, d == 0 ? 0x3F800000 : 0);
	set_index(&w.positions, 0, 15962);
	set_index(&w.slots, 0, 1);
	world_run(&w);
	float got = kvc__float_of(bits_at(&w.k_pool, 1, 0, 0, 0));
	assert_true(fabsf(got - (float)cosl(15962.0L)) < 1e-7f);
	assert_true(got < -0.9f);
	world_free(&w);
}

static void b41_the_callers_table_is_not_changed(void **state)
{
	(void)state;
	struct world w;
	world_x(&w);
	struct buffer *b = world_buffer(&w, 16 * 10 * 4); /* row stride 10 */
	int64_t shape[] = { 16, 8 };
	int64_t strides[] = { 10, 1 };
	for (int64_t i = 0; i < 16; i++)
		for (int64_t d = 0; d < 8; d++) {
			double angle = (double)i * pow(1e4, -2.0 * (double)(d % 4) / 8);
			float value = (float)(d < 4 ? cos(angle) : sin(angle));
			memcpy(b->data + 4 * (10 * i + d), &value, 4);
		}
	kvc_tensor table = kvc_tensor_make(b->data, KVC_FLOAT32, 2, shape);
	table.strides = strides;
	kvc_rope_options options = KVC_ROPE_OPTIONS_INIT;
	options.rotary_dim = 8;
	options.cos_sin_cache = &table;
	expect_ok(kvc_rope_init(&w.rope, &options));
	world_run(&w);
	world_run(&w);
	world_free(&w);
}

static void every_scaling_is_accurate(void **state)
{
	(void)state;
	for (int scaling = 0; scaling <= KVC_ROPE_SCALING_YARN; scaling++) {
		struct world w;
		struct size size = { 4, 2, 1, 64, 64, 32 };
		world_make(&w, size, KVC_FLOAT32, KVC_FLOAT32, KVC_INT64);
		kvc_rope_options options = KVC_ROPE_OPTIONS_INIT;
		options.rotary_dim = 64;
		options.scaling = scaling;
		options.factor = 40;
		options.original_max_position = 4096;
		expect_ok(kvc_rope_init(&w.rope, &options));
		for (int64_t t = 0; t < 4; t++)
			set_index(&w.positions, t, 1 + t * 5592405);
		world_run(&w);
		world_free(&w);
	}
}

/* ---- outputs left out, MLA rows ---- */

static void outputs_may_be_left_out(void **state)
{
	(void)state;
	for (int which = 0; which < 4; which++) {
		struct world w;
		world_x(&w);
		if (which & 1)
			w.args.q_out = NULL;
		if (which & 2)
			w.args.k_out = NULL;
		world_run(&w);
		w.args.report = NULL;
		world_run(&w);
		world_free(&w);
	}
}

static void mla_rows_are_k_only_and_may_be_wider_than_q(void **state)
{
	(void)state;
	struct world w;
	struct size size = { 3, 16, 1, 192, 576, 8 };
	world_make(&w, size, KVC_BFLOAT16, KVC_BFLOAT16, KVC_INT32);
	world_rope(&w, 64, KVC_ROPE_INTERLEAVED);
	world_k_only(&w);
	w.args.rotary_offset = 512;
	w.args.q_rotary_offset = 128;
	w.args.head_dim = 576;
	w.args.num_qo_heads = 16;
	w.args.num_kv_heads = 1;
	world_run(&w);
	world_free(&w);
}

/* ---- splits ---- */

struct expectation {
	char *k_pool;
	char *v_pool;
	char *q_out;
	char *k_out;
};

static char *copy_of(const struct view *v)
{
	char *copy = malloc(v->buffer->bytes + 1);
	memcpy(copy, v->buffer->data, v->buffer->bytes);
	return copy;
}

static void expect_same_outputs(const struct world *w, const struct expectation *e)
{
	assert_memory_equal(w->k_pool.buffer->data, e->k_pool, w->k_pool.buffer->bytes);
	assert_memory_equal(w->v_pool.buffer->data, e->v_pool, w->v_pool.buffer->bytes);
	assert_memory_equal(w->q_out.buffer->data, e->q_out, w->q_out.buffer->bytes);
	assert_memory_equal(w->k_out.buffer->data, e->k_out, w->k_out.buffer->bytes);
}

static void clear_outputs(const struct world *w)
{
	const struct view *outputs[] = { &w->k_pool, &w->v_pool, &w->q_out, &w->k_out };
	for (int i = 0; i < 4; i++)
		memset(outputs[i]->buffer->data, FILL, outputs[i]->buffer->bytes);
}

static int64_t engine_pieces;

/* The smallest pieces that the contract allows, last one first. */
static void engine(void *context, int64_t count, int64_t grain, kvc_range_fn run, void *task)
{
	(void)context;
	int64_t pieces = count / grain;
	for (int64_t i = pieces - 1; i >= 0; i--) {
		run(task, i * grain, i == pieces - 1 ? count : (i + 1) * grain);
		engine_pieces++;
	}
}

static void b42_shapes_styles_threads_and_splits_agree(void **state)
{
	(void)state;
	static const int64_t tokens[] = { 1, 2, 33, 1024 };
	static const int64_t heads[][2] = { { 1, 1 }, { 8, 1 }, { 32, 8 }, { 7, 7 } };
	static const int64_t dims[] = { 64, 128, 256 };
	static const int32_t threads[] = { 2, 3, 8 };
	int large = getenv("KVC_TEST_LONG") != NULL;
	for (int cell = 0; cell < 4 * 4 * 3 * 2; cell++) {
		int t = cell % 4;
		int h = cell / 4 % 4;
		int d = cell / 16 % 3;
		/* The largest cells take seconds under a sanitizer. */
		if (t == 3 && (h >= 2 || d >= 1) && !large)
			continue;
		struct world w;
		struct size size = { tokens[t], heads[h][0], heads[h][1], dims[d], dims[d], 1031 };
		world_make(&w, size, KVC_BFLOAT16, KVC_BFLOAT16, KVC_INT64);
		world_rope(&w, (int32_t)dims[d], cell / 48);
		for (int64_t i = 0; i < tokens[t]; i++)
			set_index(&w.slots, i, i * 17 % 1031);
		expect_ok(kvc_set_num_threads(1));
		world_run(&w);
		struct expectation e = { copy_of(&w.k_pool), copy_of(&w.v_pool), copy_of(&w.q_out),
			copy_of(&w.k_out) };
		for (int i = 0; i < 4; i++) {
			clear_outputs(&w);
			if (i < 3)
				expect_ok(kvc_set_num_threads(threads[i]));
			else
				kvc_set_parallel_for(engine, NULL);
			expect_ok(kvc_rope_pool_fused(&w.args, NULL));
			kvc_set_parallel_for(NULL, NULL);
			expect_same_outputs(&w, &e);
		}
		free(e.k_pool), free(e.v_pool), free(e.q_out), free(e.k_out);
		world_free(&w);
	}
	assert_true(engine_pieces > 2);
	expect_ok(kvc_set_num_threads(0));
}

/* ---- the rest ---- */

static void b44_slots_without_a_token_stay_untouched(void **state)
{
	(void)state;
	struct world w;
	struct size size = { 13, 2, 1, 8, 8, 16 };
	world_make(&w, size, KVC_BFLOAT16, KVC_BFLOAT16, KVC_INT64);
	memset(w.k_pool.buffer->data, 0xFF, w.k_pool.buffer->bytes); /* NaN */
	memset(w.v_pool.buffer->data, 0xFF, w.v_pool.buffer->bytes);
	for (int64_t t = 0; t < 13; t++)
		set_index(&w.slots, t, t);
	w.args.check_finite = 1; /* of what is written, not of what lies there */
	world_run(&w);
	for (int64_t slot = 13; slot < 16; slot++)
		assert_int_equal(bits_at(&w.k_pool, slot, 0, 3, 0), 0xFFFF);
	world_free(&w);
}

static void b82_the_last_slot_is_fine_and_the_next_is_refused(void **state)
{
	(void)state;
	struct world w;
	world_x(&w);
	static const int64_t slots[] = { 4, 31, 32, INT32_MAX };
	for (int64_t t = 0; t < 4; t++)
		set_index(&w.slots, t, slots[t]);
	world_refused(&w, KVC_E_SLOT_RANGE, "pool-slot-out-of-range",
	        "slot 32 of token 2 is not below the pool's 32 slots", 2);
	set_index(&w.slots, 2, INT64_C(1) << 40);
	world_refused(&w, KVC_E_SLOT_RANGE, "pool-slot-out-of-range",
	        "slot 1099511627776 of token 2 is not below the pool's 32 slots", 2);
	w.args.n_valid = 2;
	world_run(&w);
	world_free(&w);
}

static void the_callers_floating_point_mode_changes_nothing(void **state)
{
	(void)state;
	struct world w;
	world_x(&w);
	for (int64_t d = 0; d < 8; d++) /* subnormal in and out */
		set_bits(&w.k, 1, 0, d, (uint32_t)(d * 11 + 1));
#if defined(__x86_64__)
	__builtin_ia32_ldmxcsr(0x1F80u | 0x8040u | 0x6000u); /* flush, denormals zero, towards 0 */
#endif
	kvc_status status = world_call(&w);
#if defined(__x86_64__)
	unsigned restored = __builtin_ia32_stmxcsr() & ~0x3Fu;
	__builtin_ia32_ldmxcsr(0x1F80u);
	assert_int_equal(restored, 0x1F80u | 0x8040u | 0x6000u);
#endif
	expect_ok(status);
	world_check(&w);
	world_free(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(b01_negative_slots_write_nothing),
		cmocka_unit_test(b03_reserved_slot_takes_any_number_of_padding_rows),
		cmocka_unit_test(b05_n_valid_reads_no_slot_past_it),
		cmocka_unit_test(b92_no_tokens_is_a_no_op_that_touches_no_pointer),
		cmocka_unit_test(b09_rows_past_2_gib_land_where_they_belong),
		cmocka_unit_test(b13_b14_widths_of_positions_and_slots_are_independent),
		cmocka_unit_test(b18_k_and_v_interleaved_in_one_buffer),
		cmocka_unit_test(pools_of_all_heads_first_are_written),
		cmocka_unit_test(q_k_v_are_views_of_one_packed_projection),
		cmocka_unit_test(odd_addresses_and_input_strides_of_any_sign),
		cmocka_unit_test(strides_of_single_entries_are_not_used),
		cmocka_unit_test(b22_head_sizes_that_are_no_power_of_two),
		cmocka_unit_test(b24_a_single_head_of_k_is_rotated),
		cmocka_unit_test(b30_fp8_rows_saturate_and_keep_nan),
		cmocka_unit_test(a_rotated_nan_is_positive_and_a_copied_one_keeps_its_bits),
		cmocka_unit_test(a_nan_from_overflow_is_positive_too),
		cmocka_unit_test(b33_chunked_k_equals_single_shot_k),
		cmocka_unit_test(b35_positions_past_the_table_are_refused_or_skipped),
		cmocka_unit_test(b37_styles_pair_the_elements_they_say),
		cmocka_unit_test(b38_elements_outside_rotary_dim_are_copied),
		cmocka_unit_test(b39_live_k_equals_the_pool_row_in_place),
		cmocka_unit_test(b40_phases_are_exact_at_any_position),
		cmocka_unit_test(b40_known_cosines),
		cmocka_unit_test(b41_the_callers_table_is_not_changed),
		cmocka_unit_test(every_scaling_is_accurate),
		cmocka_unit_test(outputs_may_be_left_out),
		cmocka_unit_test(mla_rows_are_k_only_and_may_be_wider_than_q),
		cmocka_unit_test(b42_shapes_styles_threads_and_splits_agree),
		cmocka_unit_test(b44_slots_without_a_token_stay_untouched),
		cmocka_unit_test(b82_the_last_slot_is_fine_and_the_next_is_refused),
		cmocka_unit_test(the_callers_floating_point_mode_changes_nothing),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
