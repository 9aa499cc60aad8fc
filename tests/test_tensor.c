/*
 * Looking at arguments. Goal: hostile tensors and structs are refused with the right slug and
 * without overflow, good ones pass. Method: tables of cases; run under the sanitizers by make check.
 */
#include "base/tensor.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void assert_slug(kvc_status status, const char *slug)
{
	if (strcmp(slug, "ok") == 0) {
		assert_int_equal(status, KVC_OK);
	} else {
		assert_int_not_equal(status, KVC_OK);
		assert_int_equal(status, kvc_last_error()->status);
		assert_string_equal(kvc_last_error()->slug, slug);
	}
}

static void presence_is_checked_before_anything_is_read(void **state)
{
	int64_t shape[] = { 2 };
	kvc_tensor tensor = kvc_tensor_make(NULL, KVC_INT64, 1, shape);

	(void)state;
	assert_slug(kvc__check_present(NULL, "q"), "null-argument");
	assert_string_equal(kvc_last_error()->message, "q is NULL");
	assert_slug(kvc__check_present(&tensor, "q"), "ok");
	tensor.shape = NULL;
	assert_slug(kvc__check_present(&tensor, "q"), "null-argument");
	tensor.ndim = 0;
	assert_slug(kvc__check_present(&tensor, "q"), "ok");
}

static void impossible_shapes_are_refused(void **state)
{
	static char data[64];
	static const struct {
		int32_t ndim;
		int64_t shape[3];
		int64_t strides[3];
		int with_strides;
		const char *slug;
	} rows[] = {
		{ 3, { 2, 2, 2 }, { 0 }, 0, "ok" },
		{ 3, { 2, 2, 2 }, { -4, 2, 1 }, 1, "ok" },
		{ 3, { 0, 1 << 30, 1 << 29 }, { 0 }, 0, "ok" },
		{ 3, { 0, 1 << 30, 2 }, { INT64_MIN, INT64_MAX, 1 }, 1, "ok" },
		{ 3, { 0, INT64_MAX, INT64_MAX }, { 0 }, 0, "tensor-shape-impossible" },
		{ 3, { INT64_MAX, INT64_MAX, 0 }, { 0 }, 0, "tensor-shape-impossible" },
		{ 3, { 1 << 30, 0, INT64_MAX }, { 0, 0, 1 }, 1, "tensor-shape-impossible" },
		{ 3, { 0, -1, 2 }, { 0 }, 0, "tensor-shape-impossible" },
		{ 3, { 2, -1, 2 }, { 0 }, 0, "tensor-shape-impossible" },
		{ 3, { INT64_MIN, 1, 1 }, { 0 }, 0, "tensor-shape-impossible" },
		{ 3, { INT64_MAX, 2, 2 }, { 0 }, 0, "tensor-shape-impossible" },
		{ 3, { INT64_MAX, 1, 1 }, { 0 }, 0, "tensor-shape-impossible" },
		{ 3, { 1 << 30, 1 << 30, 4 }, { 0 }, 0, "tensor-shape-impossible" },
		{ 3, { 2, 2, 2 }, { INT64_MAX, 2, 1 }, 1, "tensor-shape-impossible" },
		{ 3, { 2, 2, 2 }, { INT64_MIN, 2, 1 }, 1, "tensor-shape-impossible" },
		{ 3, { 2, 2, 2 }, { INT64_MIN + 1, 2, 1 }, 1, "tensor-shape-impossible" },
		{ 3, { INT64_MAX, 2, 2 }, { 0, 0, 0 }, 1, "tensor-shape-impossible" },
		{ -1, { 1, 1, 1 }, { 0 }, 0, "tensor-shape-impossible" },
		{ INT32_MAX, { 1, 1, 1 }, { 0 }, 0, "tensor-shape-impossible" },
		{ INT32_MIN, { 1, 1, 1 }, { 0 }, 0, "tensor-shape-impossible" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		int64_t shape[16] = { 0 }, strides[16] = { 0 };
		kvc_tensor tensor = kvc_tensor_make(data, KVC_INT64, rows[i].ndim, shape);
		memcpy(shape, rows[i].shape, sizeof(rows[i].shape));
		memcpy(strides, rows[i].strides, sizeof(rows[i].strides));
		tensor.strides = rows[i].with_strides ? strides : NULL;
		assert_slug(kvc__check_bounds(&tensor, "k_pool"), rows[i].slug);
		tensor.dtype.bits = 0; /* no width: nothing must divide by it */
		(void)kvc__check_bounds(&tensor, "k_pool");
	}
}

static void elements_need_data(void **state)
{
	int64_t shape[] = { 2, 3 };
	kvc_tensor tensor = kvc_tensor_make(NULL, KVC_INT64, 2, shape);

	(void)state;
	assert_slug(kvc__check_bounds(&tensor, "slots"), "tensor-data-null");
	assert_string_equal(kvc_last_error()->message, "slots has shape (2, 3) and no data");
	shape[0] = 0;
	assert_slug(kvc__check_bounds(&tensor, "slots"), "ok");
}

static void extents_cover_exactly_the_elements(void **state)
{
	static char data[4096];
	int64_t shape[] = { 3, 4 }, strides[] = { -10, 2 };
	kvc_tensor tensor = kvc_tensor_make(data, KVC_INT32, 2, shape);
	struct kvc__extent extent = kvc__tensor_extent(&tensor);
	uintptr_t base = (uintptr_t)data;

	(void)state;
	assert_true(extent.first == base && extent.past == base + 48);
	tensor.strides = strides;
	tensor.byte_offset = 100;
	extent = kvc__tensor_extent(&tensor);
	assert_true(extent.first == base + 100 - 80 && extent.past == base + 100 + 28);
	assert_true(kvc__extents_meet(extent, (struct kvc__extent){ base + 127, base + 128 }));
	assert_false(kvc__extents_meet(extent, (struct kvc__extent){ base + 128, base + 200 }));
	shape[1] = 0;
	extent = kvc__tensor_extent(&tensor);
	assert_true(extent.first == extent.past);
	assert_false(kvc__extents_meet(extent, (struct kvc__extent){ 0, UINTPTR_MAX }));
}

static void indices_read_through_any_stride(void **state)
{
	int32_t narrow[] = { 1, -2, 3, -4 };
	int64_t wide[] = { INT64_MIN, 5, INT64_MAX };
	int64_t four[] = { 4 }, two[] = { 2 }, stride[] = { 2 };
	kvc_tensor a = kvc_tensor_make(narrow, KVC_INT32, 1, four);
	kvc_tensor b = kvc_tensor_make(wide, KVC_INT64, 1, two);

	(void)state;
	assert_int_equal(kvc__index_at(&a, 1), -2);
	b.strides = stride;
	assert_true(kvc__index_at(&b, 0) == INT64_MIN && kvc__index_at(&b, 1) == INT64_MAX);
	b.strides = NULL;
	b.byte_offset = 8;
	assert_int_equal(kvc__index_at(&b, 0), 5);
}

static void strides_of_contiguous_tensors_follow_from_the_shape(void **state)
{
	int64_t shape[] = { 4, 2, 8 }, strides[] = { 16, 8, 2 };
	kvc_tensor tensor = kvc_tensor_make(NULL, KVC_BFLOAT16, 3, shape);

	(void)state;
	assert_int_equal(kvc__tensor_stride(&tensor, 0), 16);
	assert_int_equal(kvc__tensor_stride(&tensor, 1), 8);
	assert_int_equal(kvc__tensor_stride(&tensor, 2), 1);
	assert_true(kvc__tensor_rows_contiguous(&tensor));
	tensor.strides = strides;
	assert_false(kvc__tensor_rows_contiguous(&tensor));
	shape[2] = 1;
	assert_true(kvc__tensor_rows_contiguous(&tensor));
	assert_int_equal(kvc__tensor_count(&tensor), 8);
}

static void devices_are_one_known_and_at_hand(void **state)
{
	static const struct {
		int32_t a_type, a_id, b_type, b_id;
		const char *slug;
	} rows[] = {
		{ KVC_DEVICE_CPU, 0, KVC_DEVICE_CPU, 0, "ok" },
		{ KVC_DEVICE_CPU, 0, KVC_DEVICE_CUDA_HOST, 1, "ok" },
		{ KVC_DEVICE_CPU, 0, 0, 0, "device-unknown" },
		{ 7, 0, KVC_DEVICE_CUDA, 0, "device-unknown" },
		{ KVC_DEVICE_CPU, 0, KVC_DEVICE_CUDA, 0, "device-mismatch" },
		{ KVC_DEVICE_CUDA, 0, KVC_DEVICE_CUDA, 1, "device-mismatch" },
		{ KVC_DEVICE_CUDA, 0, KVC_DEVICE_CUDA, 0, "no-cuda" },
		{ KVC_DEVICE_CUDA_MANAGED, 0, KVC_DEVICE_CUDA, 0, "no-cuda" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		kvc_tensor a = kvc_tensor_make(NULL, KVC_INT64, 0, NULL), b = a;
		struct kvc__named list[] = { { NULL, "left out" }, { &a, "a" }, { &b, "b" } };
		a.device = (kvc_device){ rows[i].a_type, rows[i].a_id };
		b.device = (kvc_device){ rows[i].b_type, rows[i].b_id };
		assert_slug(kvc__check_devices(list, 3), rows[i].slug);
	}
	assert_slug(kvc__check_devices(NULL, 0), "ok");
}

/* A struct as a caller of another version of the header has it. */
struct versioned {
	size_t struct_bytes;
	int64_t first;
	int64_t second;
	int64_t newer[40];
};

static void structs_of_other_versions_are_taken_or_refused(void **state)
{
	static const struct {
		size_t given_bytes;
		int64_t newest;
		const char *slug;
		int64_t second;
	} rows[] = {
		{ 24, 0, "ok", 2 },
		{ 16, 0, "ok", -1 }, /* the default stays */
		{ 32, 0, "ok", 2 },  /* a newer caller that uses nothing new */
		{ 32, 5, "struct-bytes-unknown", -1 },
		{ 8, 0, "struct-bytes-unknown", -1 },
		{ 0, 0, "struct-bytes-unknown", -1 },
		{ 24 + 257, 0, "struct-bytes-unknown", -1 },
		{ SIZE_MAX, 0, "struct-bytes-unknown", -1 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct versioned given = { rows[i].given_bytes, 1, 2, { rows[i].newest } };
		struct {
			size_t struct_bytes;
			int64_t first;
			int64_t second;
		} out = { 24, -1, -1 };
		assert_slug(kvc__take_struct(&out, &given, 24, 16, "args"), rows[i].slug);
		assert_int_equal(out.struct_bytes, 24);
		assert_int_equal(out.second, rows[i].second);
	}
	assert_slug(kvc__check_struct(NULL, 24, 16, "args"), "null-argument");
}

static void widths_are_whole_bytes(void **state)
{
	kvc_dtype odd = kvc_dtype_make(KVC_CODE_INT, 4), wide = KVC_FLOAT32;
	const kvc_dtype list[] = { KVC_FLOAT16, KVC_BFLOAT16 };

	(void)state;
	assert_int_equal(kvc__dtype_bytes(KVC_BFLOAT16), 2);
	assert_int_equal(kvc__dtype_bytes(odd), 0);
	wide.lanes = 4;
	assert_int_equal(kvc__dtype_bytes(wide), 0);
	assert_true(kvc__dtype_among(KVC_BFLOAT16, list, 2));
	assert_false(kvc__dtype_among(KVC_FLOAT32, list, 2));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(presence_is_checked_before_anything_is_read),
		cmocka_unit_test(impossible_shapes_are_refused),
		cmocka_unit_test(elements_need_data),
		cmocka_unit_test(extents_cover_exactly_the_elements),
		cmocka_unit_test(indices_read_through_any_stride),
		cmocka_unit_test(strides_of_contiguous_tensors_follow_from_the_shape),
		cmocka_unit_test(devices_are_one_known_and_at_hand),
		cmocka_unit_test(structs_of_other_versions_are_taken_or_refused),
		cmocka_unit_test(widths_are_whole_bytes),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
