/*
 * The two halves together: write clears, rope_pool_fused stamps as it stores, verify hashes the pool.
 * Both sides must agree on every byte for every coverage, pool type and order of layers; and a write
 * that was lost must show, which a fingerprint made afterwards cannot.
 */
#include "canary_world.h"

enum { LAYERS = 2, HEADS = 2, DIM = 24, TOKENS = 5, SLOTS = 16 };

struct step {
	struct world w;
	uint16_t q[TOKENS][HEADS][DIM], k[TOKENS][HEADS][DIM], v[TOKENS][HEADS][DIM];
	uint8_t pools[2 * LAYERS][SLOTS * HEADS * DIM * 2];
	kvc_source sources[2 * LAYERS];
	kvc_rope rope;
	kvc_dtype pool_dtype;
};

static const int64_t slots_list[] = { 3, 9, 4, 12, 7 }, tokens_list[] = { 1, 2, 3, 4, 5 };

static void step_start(struct step *s, kvc_dtype pool_dtype, int coverage)
{
	int64_t shape[] = { SLOTS, HEADS, DIM };
	kvc_rope_options options = KVC_ROPE_OPTIONS_INIT;

	world_start(&s->w, SLOTS);
	memset(s->pools, 0xA5, sizeof(s->pools));
	s->pool_dtype = pool_dtype;
	for (int i = 0; i < TOKENS * HEADS * DIM; i++) {
		(&s->q[0][0][0])[i] = (uint16_t)(0x3F80 + i % 251);
		(&s->k[0][0][0])[i] = (uint16_t)(0x3F00 + i % 241);
		(&s->v[0][0][0])[i] = (uint16_t)(0xBF00 + i % 239);
	}
	for (int i = 0; i < 2 * LAYERS; i++) {
		kvc_tensor pool = kvc_tensor_make(s->pools[i], pool_dtype, 3, shape);
		expect_ok(kvc_source_from_pool(&s->sources[i], &pool, (uint64_t)i));
	}
	s->w.group.sources = s->sources;
	s->w.group.source_count = 2 * LAYERS;
	s->w.group.stamping = KVC_STAMP_CLEAR;
	s->w.group.coverage = coverage;
	options.rotary_dim = DIM;
	expect_ok(kvc_rope_init(&s->rope, &options));
}

/* One layer; tokens from 'count' on are lost. */
static void run_layer(struct step *s, int layer, int64_t count)
{
	int64_t kv[] = { TOKENS, HEADS, DIM }, pool_shape[] = { SLOTS, HEADS, DIM };
	int64_t five[] = { TOKENS }, positions_list[] = { 0, 1, 2, 3, 4 };
	kvc_tensor q = kvc_tensor_make(s->q, KVC_BFLOAT16, 3, kv);
	kvc_tensor k = kvc_tensor_make(s->k, KVC_BFLOAT16, 3, kv);
	kvc_tensor v = kvc_tensor_make(s->v, KVC_BFLOAT16, 3, kv);
	kvc_tensor positions = world_vector(positions_list, five);
	kvc_tensor slots = world_vector(slots_list, five);
	kvc_tensor k_pool = kvc_tensor_make(s->pools[2 * layer], s->pool_dtype, 3, pool_shape);
	kvc_tensor v_pool = kvc_tensor_make(s->pools[2 * layer + 1], s->pool_dtype, 3, pool_shape);
	kvc_rope_pool_args args = KVC_ROPE_POOL_ARGS_INIT;
	kvc_stamp stamp;

	expect_ok(kvc_group_stamp(
	        &stamp, &s->w.group, (uint64_t)(2 * layer), (uint64_t)(2 * layer + 1)));
	args.q = &q, args.k = &k, args.v = &v;
	args.positions = &positions, args.slots = &slots;
	args.k_pool = &k_pool, args.v_pool = &v_pool;
	args.rope = &s->rope;
	args.n_valid = count;
	args.stamp = &stamp;
	expect_ok(kvc_rope_pool_fused(&args, NULL));
}

static void write_step(struct step *s)
{
	world_write(&s->w,
	        (struct world_step){
	                .row = 1, .count = TOKENS, .slots = slots_list, .tokens = tokens_list });
}

static void verify_step(struct step *s)
{
	world_verify(&s->w, (struct world_step){ .row = 1, .prefix = TOKENS });
}

static void what_the_writer_stamps_is_what_verify_hashes(void **state)
{
	static struct step s;

	(void)state;
	for (int type = 0; type < 3; type++) {
		kvc_dtype dtypes[] = { KVC_BFLOAT16, KVC_FLOAT8_E4M3FN, KVC_FLOAT8_E5M2 };
		for (int coverage = 0; coverage <= 2; coverage++) {
			step_start(&s, dtypes[type], coverage);
			for (int again = 0; again < 2; again++) { /* slots are used twice */
				write_step(&s);
				run_layer(&s, 1, TOKENS); /* in any order */
				run_layer(&s, 0, TOKENS);
				verify_step(&s);
				assert_int_equal(s.w.found_count, 0);
			}
			assert_int_equal(s.w.records[9].fingerprint != 0, coverage != 0);
			s.pools[3][4 * s.sources[3].row_stride_bytes] ^= 1; /* V of layer 1 */
			verify_step(&s);
			assert_int_equal(s.w.found_count, coverage != 0);
			if (coverage)
				assert_int_equal(
				        world_reasons_at(&s.w, 2), KVC_REASON_VERIFY_REAL_KV_HASH);
			world_end(&s.w);
		}
	}
}

static void a_lost_write_shows_only_if_the_writer_stamps(void **state)
{
	static struct step s;

	(void)state;
	step_start(&s, KVC_BFLOAT16, KVC_COVERAGE_ALL);
	write_step(&s);
	run_layer(&s, 0, TOKENS);
	run_layer(&s, 1, 3); /* tokens 3 and 4 never reach layer 1's pools */
	verify_step(&s);
	assert_int_equal(s.w.found_count, 2);
	assert_int_equal(world_reasons_at(&s.w, 3), KVC_REASON_VERIFY_REAL_KV_HASH);
	assert_int_equal(world_reasons_at(&s.w, 4), KVC_REASON_VERIFY_REAL_KV_HASH);
	/* A COMPUTE group hashes what lies there, lost or not. */
	s.w.group.stamping = KVC_STAMP_COMPUTE;
	write_step(&s);
	verify_step(&s);
	assert_int_equal(s.w.found_count, 0);
	world_end(&s.w);
}

static void a_layer_run_twice_needs_a_new_clear(void **state)
{
	static struct step s;

	(void)state;
	step_start(&s, KVC_BFLOAT16, KVC_COVERAGE_ALL);
	write_step(&s);
	run_layer(&s, 0, TOKENS);
	run_layer(&s, 1, TOKENS);
	run_layer(&s, 1, TOKENS);
	verify_step(&s);
	assert_int_equal(s.w.found_count, TOKENS);
	write_step(&s);
	run_layer(&s, 0, TOKENS);
	run_layer(&s, 1, TOKENS);
	verify_step(&s);
	assert_int_equal(s.w.found_count, 0);
	world_end(&s.w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_the_writer_stamps_is_what_verify_hashes),
		cmocka_unit_test(a_lost_write_shows_only_if_the_writer_stamps),
		cmocka_unit_test(a_layer_run_twice_needs_a_new_clear),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
