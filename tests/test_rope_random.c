/*
 * Goal: random sound calls of kvc_rope_pool_fused store what the oracle says and nothing else, and
 * their stamps are those of an independent recomputation. Method: every dimension, type, layout and
 * option drawn at random from KVC_TEST_SEED; thousands of calls with KVC_TEST_LONG=1.
 */
#include "ops/rope_plain.h"
#include "rope_random.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

static int64_t rounds(void)
{
	return getenv("KVC_TEST_LONG") ? 20000 : 400;
}

static void random_calls_agree_with_the_oracle(void **state)
{
	(void)state;
	struct seeded r = seeded_start("random calls");
	for (int64_t i = 0; i < rounds(); i++) {
		struct world w;
		random_world(&w, &r);
		world_run(&w);
		world_free(&w);
	}
}

/* ---- the short way in ---- */

/* Something of a tensor that may be wrong; nothing that makes a sound call read further. */
static void spoil_tensor(struct seeded *r, struct view *v, struct view *other, int64_t dims)
{
	static const int64_t strides[] = { 0, 1, INT64_MIN };
	static const int64_t sizes[] = { 0, -1, INT64_MIN, INT64_MAX, INT64_C(1) << 29 };
	int64_t d = seeded_in(r, 0, dims - 1);
	switch (seeded_in(r, 0, 8)) {
	case 0:
		v->tensor.ndim = (int32_t)seeded_in(r, -1, dims - 1);
		break;
	case 1:
		v->shape[d] = sizes[seeded_in(r, 0, 4)];
		break;
	case 2:
		v->shape[d]--;
		break;
	case 3:
		v->strides[d] = strides[seeded_in(r, 0, 2)];
		break;
	case 4:
		v->tensor.dtype = dims == 1 || seeded_one_in(r, 2) ? KVC_INT32 : KVC_FLOAT8_E5M2;
		break;
	case 5:
		v->tensor.device.device_type = (int32_t)seeded_in(r, 0, 3);
		break;
	case 6:
		if (seeded_one_in(r, 2))
			v->tensor.data = NULL;
		else if (other->buffer->bytes >= v->buffer->bytes)
			v->tensor.data = other->tensor.data;
		break;
	case 7:
		v->tensor.shape = NULL;
		break;
	default:
		v->tensor.strides = NULL;
		break;
	}
}

static void spoil_options(struct seeded *r, struct world *w, kvc_stamp *stamp)
{
	static float table[600 * 512];
	static const float scales[] = { 0.0f, -1.0f, 2.0f, INFINITY, NAN };
	static const int64_t numbers[] = { INT64_MIN, -2, -1, 0, 1, 7, INT64_MAX };
	int64_t number = numbers[seeded_in(r, 0, 6)];
	int64_t *const options[] = { &w->args.head_dim, &w->args.num_qo_heads,
		&w->args.num_kv_heads, &w->args.n_valid, &w->args.rotary_offset,
		&w->args.q_rotary_offset, &stamp->head_bytes, &stamp->record_stride_bytes,
		&stamp->record_count };
	switch (seeded_in(r, 0, 7)) {
	case 0:
		*(seeded_one_in(r, 2) ? &w->args.k_scale : &w->args.v_scale) =
		        scales[seeded_in(r, 0, 4)];
		break;
	case 1:
		w->rope.rotary_dim = (int32_t)seeded_in(r, -2, 600);
		break;
	case 2:
		w->rope.style = (int32_t)seeded_in(r, -1, 2);
		break;
	case 3:
		w->rope.cos_sin = table;
		w->rope.cos_sin_rows = seeded_in(r, -1, 300);
		w->rope.cos_sin_row_stride = seeded_in(r, 0, 1) * w->rope.rotary_dim;
		w->rope.cos_sin_device.device_type = (int32_t)seeded_in(r, 1, 2);
		break;
	case 4:
		set_index(seeded_one_in(r, 2) ? &w->positions : &w->slots, 0,
		        seeded_one_in(r, 2) ? INT32_MAX : INT32_MIN);
		break;
	case 5:
		stamp->coverage = (int32_t)seeded_in(r, -1, 3);
		break;
	case 6:
		stamp->records = seeded_one_in(r, 2) ? NULL : (char *)stamp->records + 4;
		break;
	default:
		*options[seeded_in(r, 0, 8)] = number;
		break;
	}
}

static kvc_status call_by(struct world *w, int plain_allowed)
{
	for (int b = 0; b < w->buffer_count; b++)
		memcpy(w->buffers[b].data, w->buffers[b].before, w->buffers[b].bytes);
	kvc__rope_plain_allowed = plain_allowed;
	kvc_status status = kvc_rope_pool_fused(&w->args, NULL);
	kvc__rope_plain_allowed = 1;
	return status;
}

/* What the short way lets pass, the checks let pass, and the same bytes are stored. */
static void the_short_way_lets_nothing_pass_that_the_checks_refuse(void **state)
{
	(void)state;
	struct seeded r = seeded_start("short way");
	int64_t plain = 0, refused = 0;
	for (int64_t i = 0; i < 8 * rounds(); i++) {
		struct world w;
		struct kvc__rope_job job;
		random_world(&w, &r);
		struct buffer *b = world_buffer(&w, w.size.slots * 32 + 8);
		kvc_stamp stamp = KVC_STAMP_INIT;
		stamp.records = (char *)(((uintptr_t)b->data + 7) / 8 * 8);
		stamp.record_count = w.size.slots;
		stamp.head_bytes = w.size.kv_dim * width_of(w.k_pool.tensor.dtype);
		w.args.stamp = seeded_one_in(&r, 2) ? &stamp : NULL;
		struct view *views[] = { &w.q, &w.k, &w.v, &w.q_out, &w.k_out, &w.k_pool, &w.v_pool,
			&w.positions, &w.slots };
		int64_t at = seeded_in(&r, 0, 20);
		if (at < 9)
			spoil_tensor(&r, views[at], views[seeded_in(&r, 0, 8)], at < 7 ? 3 : 1);
		else if (at < 18)
			spoil_options(&r, &w, &stamp);
		world_snapshot(&w);
		kvc_status status = call_by(&w, 0);
		char slug[64] = "";
		if (status != KVC_OK)
			snprintf(slug, sizeof slug, "%s", kvc_last_error()->slug);
		struct buffer *pool = w.k_pool.buffer;
		char *stored = malloc(pool->bytes + 1);
		memcpy(stored, pool->data, pool->bytes);
		plain += kvc__rope_is_plain(&w.args, &job);
		refused += status != KVC_OK;
		assert_true(status == KVC_OK || w.args.check_duplicates ||
		            !kvc__rope_is_plain(&w.args, &job));
		assert_int_equal(call_by(&w, 1), status);
		if (status != KVC_OK)
			assert_string_equal(kvc_last_error()->slug, slug);
		assert_memory_equal(pool->data, stored, pool->bytes);
		free(stored);
		world_free(&w);
	}
	assert_true(plain > rounds() && refused > rounds());
}

/* ---- stamps ---- */

static uint64_t s(uint64_t x)
{
	x ^= x >> 30;
	x *= UINT64_C(0xBF58476D1CE4E5B9);
	x ^= x >> 27;
	x *= UINT64_C(0x94D049BB133111EB);
	return x ^ x >> 31;
}

/* The share of one row, from its bytes in (head, dim) order. */
static uint64_t share(const struct view *pool, int64_t slot, const kvc_stamp *stamp, uint64_t id)
{
	static char bytes[1 << 16];
	static char covered[1 << 16];
	size_t count = 0;
	size_t used = 0;
	size_t width = (size_t)width_of(pool->tensor.dtype);
	for (int64_t h = 0; h < pool->shape[1]; h++)
		for (int64_t d = 0; d < pool->shape[2]; d++) {
			memcpy(bytes + count, view_at(pool, slot, h, d), width);
			count += width;
		}
	size_t head = (size_t)stamp->head_bytes;
	for (size_t i = 0; i < count; i++)
		if (stamp->coverage == KVC_COVERAGE_ALL || i % head < 16)
			covered[used++] = bytes[i];
	return s(XXH3_64bits(covered, used) + (id + 1) * UINT64_C(0x9E3779B97F4A7C15));
}

static void random_stamps_agree_with_a_recomputation(void **state)
{
	(void)state;
	struct seeded r = seeded_start("random stamps");
	for (int64_t i = 0; i < rounds(); i++) {
		struct world w;
		random_world(&w, &r);
		int64_t stride = 32 + 8 * seeded_in(&r, 0, 3);
		struct buffer *b = world_buffer(&w, w.size.slots * stride + 8);
		int64_t row_bytes =
		        w.size.kv_heads * w.size.kv_dim * width_of(w.k_pool.tensor.dtype);
		int64_t divisor = seeded_in(&r, 1, 2);
		kvc_stamp stamp = KVC_STAMP_INIT;
		stamp.records = (char *)(((uintptr_t)b->data + 7) / 8 * 8);
		stamp.record_stride_bytes = stride;
		stamp.record_count = w.size.slots;
		stamp.k_id = seeded_next(&r);
		stamp.v_id = seeded_next(&r);
		stamp.coverage = (int32_t)seeded_in(&r, 0, 2);
		stamp.head_bytes = divisor == 1 ? row_bytes : row_bytes / w.size.kv_heads;
		w.args.stamp = &stamp;
		expect_ok(kvc_report_init(&w.report, KVC_HOST, NULL));
		expect_ok(world_call(&w));

		int64_t rows = w.args.n_valid >= 0 ? w.args.n_valid : w.size.tokens;
		for (int64_t t = 0; t < rows && stamp.coverage != KVC_COVERAGE_NONE; t++) {
			int64_t slot = index_at(&w.slots, t);
			int64_t at = (char *)stamp.records - b->data + slot * stride + 24;
			uint64_t sum;
			if (slot < 0 || slot == w.args.reserved_slot)
				continue;
			memcpy(&sum, b->before + at, 8);
			sum += share(&w.k_pool, slot, &stamp, stamp.k_id);
			if (w.args.v)
				sum += share(&w.v_pool, slot, &stamp, stamp.v_id);
			memcpy(b->before + at, &sum, 8); /* what world_check() then expects */
		}
		world_check(&w);
		world_free(&w);
	}
}

/* SPEC section 4.1's values for xxh3 over one source. */
static void stamps_have_the_golden_values(void **state)
{
	(void)state;
	struct world w;
	struct size size = { 1, 1, 8, 128, 128, 2 };
	world_make(&w, size, KVC_BFLOAT16, KVC_BFLOAT16, KVC_INT64);
	world_rope(&w, 0, KVC_ROPE_NEOX);
	world_k_only(&w);
	set_index(&w.slots, 0, 1);
	for (int i = 0; i < 2048; i++)
		((uint8_t *)w.k.tensor.data)[i] = (uint8_t)(i % 251);
	kvc_record records[2] = { { 0, 0, 0, 0 }, { 0, 0, 0, 0 } };
	kvc_stamp stamp = KVC_STAMP_INIT;
	stamp.records = records;
	stamp.record_count = 2;
	stamp.head_bytes = 256;
	w.args.stamp = &stamp;
	world_run(&w);
	assert_true(records[1].fingerprint == UINT64_C(0xF1FD2B38A4270EC3));
	stamp.coverage = KVC_COVERAGE_PARTIAL;
	records[1].fingerprint = 0;
	world_run(&w);
	assert_true(records[1].fingerprint == UINT64_C(0x97E314E69EEC73BD));
	memset(w.k.tensor.data, 0, 2048);
	stamp.coverage = KVC_COVERAGE_ALL;
	records[1].fingerprint = 0;
	world_run(&w);
	assert_true(records[1].fingerprint == UINT64_C(0xB2E82352B8AB932F));
	assert_true(records[0].fingerprint == 0 && records[1].token == 0);
	world_free(&w);
}

/* Layers written one after the other, or the same rows by several threads, add up alike. */
static void stamps_do_not_depend_on_threads(void **state)
{
	(void)state;
	struct world w;
	struct size size = { 512, 8, 4, 64, 64, 600 };
	world_make(&w, size, KVC_BFLOAT16, KVC_BFLOAT16, KVC_INT64);
	static kvc_record records[2][600];
	static const int32_t threads[] = { 1, 4 };
	memset(records, 0, sizeof records);
	for (int i = 0; i < 2; i++) {
		kvc_stamp stamp = KVC_STAMP_INIT;
		stamp.records = records[i];
		stamp.record_count = 600;
		stamp.k_id = 6, stamp.v_id = 7;
		stamp.head_bytes = 128;
		w.args.stamp = &stamp;
		expect_ok(kvc_set_num_threads(threads[i]));
		expect_ok(kvc_rope_pool_fused(&w.args, NULL));
	}
	expect_ok(kvc_set_num_threads(0));
	assert_memory_equal(records[0], records[1], sizeof records[0]);
	assert_true(records[0][4].fingerprint != 0);
	world_free(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_calls_agree_with_the_oracle),
		cmocka_unit_test(the_short_way_lets_nothing_pass_that_the_checks_refuse),
		cmocka_unit_test(random_stamps_agree_with_a_recomputation),
		cmocka_unit_test(stamps_have_the_golden_values),
		cmocka_unit_test(stamps_do_not_depend_on_threads),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
