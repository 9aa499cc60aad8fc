/*
 * Voiding and copying records: against a model that moves whole arrays, with rows that trade places;
 * every refusal leaves all as it was.
 */
#include "canary_world.h"
#include "seeded.h"

static void stamp_all(struct world *w)
{
	for (int64_t i = 0; i < w->slot_count; i++) {
		w->records[i] = (kvc_record){ i + 100, i, (uint64_t)i * 3, (uint64_t)i * 5 + 1 };
		w->owners[i] = (kvc_owner){ i * 10, (uint32_t)i, 33 };
	}
}

static void voiding_clears_records_and_keeps_owners(void **state)
{
	struct world w;
	int64_t list[] = { 3, -1, 5, INT64_MIN, 3 }, five[] = { 5 };
	kvc_tensor slots = kvc_tensor_make(list, KVC_INT64, 1, five);
	static const kvc_record zero;

	(void)state;
	world_start(&w, 8);
	stamp_all(&w);
	expect_ok(kvc_canary_void(&w.group, &slots, NULL));
	for (int64_t i = 0; i < 8; i++) {
		assert_int_equal(memcmp(&w.records[i], &zero, 32) == 0, i == 3 || i == 5);
		assert_int_equal(w.owners[i].request, i * 10);
	}
	list[4] = 8;
	stamp_all(&w);
	expect_error(kvc_canary_void(&w.group, &slots, NULL), KVC_E_SLOT_RANGE,
	        "canary-slot-out-of-range", "slots[4] is slot 8, must be below 8", 4);
	assert_int_equal(w.records[3].token, 103);
	expect_error(kvc_canary_void(NULL, &slots, NULL), KVC_E_INVALID_ARGUMENT, "null-argument",
	        "group is NULL", -1);
	world_end(&w);
}

static void copying_reads_all_before_it_writes_one(void **state)
{
	enum { SLOTS = 24 };
	struct seeded random = seeded_start(__func__);

	(void)state;
	for (int round = 0; round < 300; round++) {
		struct world w;
		int64_t n = seeded_in(&random, 0, SLOTS), from[SLOTS], to[SLOTS], order[SLOTS];
		int64_t room[SLOTS][6], shape[] = { n, 6 };
		kvc_record want[SLOTS];
		kvc_owner want_owners[SLOTS];
		world_start(&w, SLOTS);
		stamp_all(&w);
		memcpy(want, w.records, sizeof(want));
		memcpy(want_owners, w.owners, sizeof(want_owners));
		for (int64_t i = 0; i < SLOTS; i++) {
			int64_t j = seeded_in(&random, 0, i);
			order[i] = order[j];
			order[j] = i;
		}
		for (int64_t i = 0; i < n; i++) {
			from[i] = seeded_one_in(&random, 6) ? -1 : seeded_in(&random, 0, SLOTS - 1);
			to[i] = seeded_one_in(&random, 6) ? -2 : order[i];
			if (from[i] < 0 || to[i] < 0)
				continue;
			want[to[i]] = w.records[from[i]];
			want_owners[to[i]] = w.owners[from[i]];
		}
		kvc_tensor f = world_vector(from, &n), t = world_vector(to, &n);
		kvc_tensor scratch = kvc_tensor_make(room, KVC_INT64, 2, shape);
		expect_ok(kvc_canary_copy(&w.group, &f, &t, &scratch, NULL));
		assert_memory_equal(w.records, want, sizeof(want));
		assert_memory_equal(w.owners, want_owners, sizeof(want_owners));
		world_end(&w);
	}
}

static void copies_that_make_no_sense_are_refused(void **state)
{
	struct world w;
	int64_t from[] = { 1, 2, 3, -1 }, to[] = { 4, 5, 4, 4 }, four[] = { 4 }, three[] = { 3 };
	int64_t room[4][6], shape[] = { 4, 6 }, narrow[] = { 4, 4 }, strides[] = { 5, 1 };
	kvc_record before[8];
	kvc_tensor f = world_vector(from, four), t = world_vector(to, four);
	kvc_tensor scratch = kvc_tensor_make(room, KVC_INT64, 2, shape);

	(void)state;
	world_start(&w, 8);
	stamp_all(&w);
	memcpy(before, w.records, sizeof(before));
#define expect_copy(status, slug, message, where)                                                  \
	do {                                                                                       \
		expect_error(kvc_canary_copy(&w.group, &f, &t, &scratch, NULL), (status), (slug),  \
		        (message), (where));                                                       \
		assert_memory_equal(w.records, before, sizeof(before));                            \
	} while (0)
	expect_copy(
	        KVC_E_SLOT_DUPLICATE, "copy-slot-duplicate", "to[0] and to[2] are both slot 4", 2);
	to[2] = 8;
	expect_copy(KVC_E_SLOT_RANGE, "canary-slot-out-of-range",
	        "to[2] is slot 8, must be below 8", 2);
	to[2] = 6;
	from[1] = 9;
	expect_copy(KVC_E_SLOT_RANGE, "canary-slot-out-of-range",
	        "from[1] is slot 9, must be below 8", 1);
	from[1] = 2;
	t.shape = three;
	expect_copy(
	        KVC_E_LENGTH, "canary-tensor-length", "kv-canary: to length must be 4, got 3", -1);
	t.shape = four;
	shape[0] = 3;
	expect_copy(KVC_E_LENGTH, "canary-tensor-length",
	        "kv-canary: scratch length must be 4, got 3", -1);
	scratch.shape = narrow;
	expect_copy(KVC_E_SHAPE, "copy-scratch-columns",
	        "scratch must be [pairs, 6], got shape (4, 4)", -1);
	scratch.shape = shape, shape[0] = 4;
	scratch.strides = strides;
	expect_copy(KVC_E_STRIDE, "copy-scratch-rows-overlap",
	        "the rows of scratch are 5 elements apart but 6 wide", -1);
	scratch.strides = NULL;
	memcpy(room[3] + 2, to, sizeof(to)); /* the last words of the scratch */
	t.data = room[3] + 2;
	expect_copy(KVC_E_OVERLAP, "output-overlap", "scratch shares memory with to", -1);
	memcpy(room, from, sizeof(from));
	f.data = room;
	expect_copy(KVC_E_OVERLAP, "output-overlap", "scratch shares memory with from", -1);
	f.data = from, t.data = to;
	scratch.dtype = KVC_INT32;
	expect_copy(KVC_E_DTYPE, "canary-tensor-dtype", NULL, -1);
	scratch.dtype = KVC_INT64;
	scratch.device.device_type = KVC_DEVICE_CUDA;
	expect_copy(KVC_E_DEVICE, "device-mismatch", NULL, -1);
	scratch.device.device_type = KVC_DEVICE_CPU;
	expect_error(kvc_canary_copy(&w.group, &f, NULL, &scratch, NULL), KVC_E_INVALID_ARGUMENT,
	        "null-argument", "to is NULL", -1);
	expect_ok(kvc_canary_copy(&w.group, &f, &t, &scratch, NULL));
	assert_int_equal(w.records[6].token, 103);
	world_end(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(voiding_clears_records_and_keeps_owners),
		cmocka_unit_test(copying_reads_all_before_it_writes_one),
		cmocka_unit_test(copies_that_make_no_sense_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
