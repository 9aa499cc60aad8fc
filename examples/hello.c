/* Write the K rows of two tokens into a pool, then see how a wrong slot is refused. */
#include <kvcanary.h>
#include <stdio.h>

int main(void)
{
	static float q[2][4][64], k[2][1][64], k_pool[16][1][64]; /* 2 tokens, 16 slots */
	int64_t q_shape[] = { 2, 4, 64 }, k_shape[] = { 2, 1, 64 }, pool_shape[] = { 16, 1, 64 };
	int64_t positions[] = { 0, 1 }, slots[] = { 5, 6 }, two[] = { 2 };
	kvc_tensor q_tensor = kvc_tensor_make(q, KVC_FLOAT32, 3, q_shape);
	kvc_tensor k_tensor = kvc_tensor_make(k, KVC_FLOAT32, 3, k_shape);
	kvc_tensor pool_tensor = kvc_tensor_make(k_pool, KVC_FLOAT32, 3, pool_shape);
	kvc_tensor position_tensor = kvc_tensor_make(positions, KVC_INT64, 1, two);
	kvc_tensor slot_tensor = kvc_tensor_make(slots, KVC_INT64, 1, two);
	kvc_rope_options options = KVC_ROPE_OPTIONS_INIT;
	kvc_rope rope;
	kvc_rope_pool_args args = KVC_ROPE_POOL_ARGS_INIT;
	options.rotary_dim = 64;
	args.q = &q_tensor, args.k = &k_tensor, args.k_pool = &pool_tensor, args.rope = &rope;
	args.positions = &position_tensor, args.slots = &slot_tensor;
	if (kvc_rope_init(&rope, &options) != KVC_OK || kvc_rope_pool_fused(&args, NULL) != KVC_OK)
		return 2;
	slots[1] = 16;
	if (kvc_rope_pool_fused(&args, NULL) == KVC_E_SLOT_RANGE)
		printf("%s\n%s\n", kvc_last_error()->message, kvc_last_error()->hint);
	return 0;
}
