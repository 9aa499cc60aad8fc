/*
 * A random group, its ring and any arrays, twice: in host memory and as device twins with red zones.
 * A test fills the host side, calls cuda_world_push(), runs the same call on both, and compares every
 * byte; rows of a ring are compared as sets.
 */
#ifndef KVC_TESTS_CUDA_CANARY_H
#define KVC_TESTS_CUDA_CANARY_H

#include "cuda_device.h"
#include "expect.h"
#include "seeded.h"

#define CUDA_TWINS_MAX 96
#define CUDA_SOURCES_MAX 14

struct cuda_world {
	struct cuda_twin twins[CUDA_TWINS_MAX];
	const char *names[CUDA_TWINS_MAX];
	int is_ring[CUDA_TWINS_MAX]; /* rows: not compared byte by byte */
	int count;
	int64_t slot_count;
	kvc_source sources[2][CUDA_SOURCES_MAX]; /* [0] host, [1] device */
	kvc_group group[2];
	kvc_ring ring[2];
	int64_t shapes[CUDA_TWINS_MAX][1];
};

/* Zeroed host memory with a twin to come; cuda_world_push() fills that. */
static inline void *cuda_world_add(
        struct cuda_world *w, const char *name, size_t bytes, void **device_out)
{
	int i = w->count++;

	assert_true(w->count <= CUDA_TWINS_MAX);
	w->names[i] = name;
	w->twins[i] = cuda_twin_make(calloc(bytes + 16, 1), bytes);
	*device_out = cuda_twin_device(&w->twins[i]);
	return w->twins[i].host;
}

/* A vector of int64 on both sides. */
static inline int64_t *cuda_world_vector(
        struct cuda_world *w, const char *name, int64_t count, kvc_tensor tensors[2])
{
	void *device;
	int64_t *host = cuda_world_add(w, name, (size_t)count * sizeof(*host), &device);

	w->shapes[w->count - 1][0] = count;
	tensors[0] = kvc_tensor_make(host, KVC_INT64, 1, w->shapes[w->count - 1]);
	tensors[1] = kvc_tensor_make(device, KVC_INT64, 1, w->shapes[w->count - 1]);
	tensors[1].device.device_type = KVC_DEVICE_CUDA;
	return host;
}

/* The host side goes to the device. */
static inline void cuda_world_push(struct cuda_world *w)
{
	for (int i = 0; i < w->count; i++)
		if (w->twins[i].bytes)
			cuda_must(cuda.to_device(w->twins[i].base + CUDA_RED_ZONE, w->twins[i].host,
			                  w->twins[i].bytes),
			        w->names[i]);
}

static inline void cuda_world_free(struct cuda_world *w)
{
	for (int i = 0; i < w->count; i++) {
		free(w->twins[i].host);
		cuda_twin_free(&w->twins[i]);
	}
	w->count = 0;
}

/* ---- random sources ---- */

static inline int64_t cuda_pick(struct seeded *random, const int64_t *list, int count)
{
	return list[seeded_in(random, 0, count - 1)];
}

/* Bytes that are finite as any float, but for a few. */
static inline void cuda_fill_bytes(struct seeded *random, uint8_t *data, int64_t bytes)
{
	int64_t wild = seeded_one_in(random, 3) ? 200 : 20000;

	for (int64_t i = 0; i < bytes; i++)
		data[i] = (uint8_t)(seeded_next(random) & 0x3B);
	for (int64_t i = 0; i < bytes / wild; i++)
		data[seeded_in(random, 0, bytes - 1)] = 0xFF;
	for (int64_t i = 0; i + 8 <= bytes && i < bytes / wild; i++)
		memset(data + seeded_in(random, 0, bytes - 8), 0xFF, 8);
}

static inline void cuda_random_gather(
        struct cuda_world *w, struct seeded *random, int which, int64_t slack)
{
	kvc_source *source = &w->sources[0][which];
	int64_t slot_bytes = source->head_count * source->head_bytes, unit = 16;
	void *device;

	while (slot_bytes % unit != 0 || (unit > 1 && seeded_one_in(random, 3)))
		unit /= 2;
	int64_t units = slot_bytes / unit, entries = source->page_size * units;
	int32_t *table = cuda_world_add(w, "gather", (size_t)entries * sizeof(*table), &device);
	for (int64_t i = 0; i < entries; i++)
		table[i] = (int32_t)(i * unit + (seeded_one_in(random, 9) ? slack : 0));
	for (int64_t i = entries - 1; i > 0; i--) {
		int64_t j = seeded_in(random, 0, i);
		int32_t kept = table[i];
		table[i] = table[j], table[j] = kept;
	}
	source->unit_bytes = (int32_t)unit;
	source->gather = table;
	w->sources[1][which].gather = device;
}

static inline void cuda_random_source(struct cuda_world *w, struct seeded *random, int which)
{
	static const int64_t widths[] = { 1, 2, 6, 8, 12, 16, 16, 24, 32, 64, 64, 92, 128, 128, 256,
		512, 1024 };
	static const int64_t pages[] = { 1, 1, 1, 4, 5, 16 };
	const kvc_dtype types[] = { KVC_BFLOAT16, KVC_BFLOAT16, KVC_FLOAT16, KVC_FLOAT32,
		KVC_FLOAT64, KVC_FLOAT8_E4M3FN, KVC_FLOAT8_E5M2, KVC_UINT8 };
	kvc_source *source = &w->sources[0][which];
	int64_t step = seeded_one_in(random, 3) ? 1 : 16; /* most layouts are aligned */
	int64_t pad = step * seeded_in(random, 0, 2);
	void *device;

	memset(source, 0, sizeof(*source));
	source->page_size = cuda_pick(random, pages, 6);
	source->row_count = (w->slot_count + source->page_size - 1) / source->page_size;
	source->head_count = seeded_in(random, 1, seeded_one_in(random, 2) ? 1 : 9);
	source->head_bytes = cuda_pick(random, widths, 17);
	if (seeded_one_in(random, 6))
		source->head_bytes = seeded_in(random, 1, 3000);
	int64_t slot_bytes = source->head_count * source->head_bytes;
	source->read_bytes =
	        seeded_one_in(random, 3) ? seeded_in(random, 1, slot_bytes) : slot_bytes;
	source->id = (uint64_t)which + (seeded_one_in(random, 4) ? UINT64_C(1) << 33 : 0);
	source->dtype = types[seeded_in(random, 0, 7)];
	if (seeded_one_in(random, 2)) { /* [page, slot, head] */
		source->head_stride_bytes =
		        source->head_bytes + (seeded_one_in(random, 2) ? 0 : pad);
		source->slot_stride_bytes = source->head_count * source->head_stride_bytes + pad;
		source->row_stride_bytes = source->page_size * source->slot_stride_bytes + pad;
	} else { /* [page, head, slot] */
		source->slot_stride_bytes = source->head_bytes + pad;
		source->head_stride_bytes = source->page_size * source->slot_stride_bytes;
		source->row_stride_bytes = source->head_count * source->head_stride_bytes + pad;
	}
	int64_t shift = seeded_one_in(random, 4) ? seeded_in(random, 0, 16) : 0;
	int64_t bytes = source->row_count * source->row_stride_bytes + shift;
	int64_t slack = source->row_stride_bytes - source->page_size * slot_bytes;
	uint8_t *data = cuda_world_add(w, "source", (size_t)bytes, &device);
	cuda_fill_bytes(random, data, bytes);
	source->base = data + shift;
	w->sources[1][which] = *source;
	w->sources[1][which].base = (uint8_t *)device + shift;
	if (seeded_one_in(random, 5)) {
		cuda_random_gather(w, random, which, slack > 0 ? slack : 0);
		const int32_t *table = w->sources[1][which].gather;
		w->sources[1][which].unit_bytes = source->unit_bytes;
		w->sources[1][which].gather = table;
	}
}

/* ---- a random group ---- */

static inline void cuda_world_start(
        struct cuda_world *w, struct seeded *random, int64_t slot_count, int source_count)
{
	static const int64_t strides[] = { 32, 32, 40, 48 };
	void *device;

	memset(w, 0, sizeof(*w));
	w->slot_count = slot_count;
	for (int i = 0; i < source_count; i++)
		cuda_random_source(w, random, i);
	kvc_group group = KVC_GROUP_INIT;
	group.record_count = slot_count;
	group.record_stride_bytes = cuda_pick(random, strides, 4);
	group.records = cuda_world_add(
	        w, "records", (size_t)(slot_count * group.record_stride_bytes), &device);
	group.sources = w->sources[0];
	group.source_count = source_count;
	group.fingerprint = (int32_t)seeded_in(random, 0, 1);
	group.coverage =
	        seeded_one_in(random, 8) ? KVC_COVERAGE_NONE : (int32_t)seeded_in(random, 1, 2);
	group.reserved_slot = seeded_one_in(random, 2) ? 0 : -1;
	w->group[0] = w->group[1] = group;
	w->group[1].records = device;
	w->group[1].sources = w->sources[1];
	w->group[1].device.device_type = KVC_DEVICE_CUDA;
	if (seeded_one_in(random, 2)) {
		w->group[0].owners = cuda_world_add(
		        w, "owners", (size_t)slot_count * sizeof(kvc_owner), &device);
		w->group[1].owners = device;
		for (int64_t i = 0; i < slot_count; i++) {
			w->group[0].owners[i].request = seeded_in(random, -1, 5);
			w->group[0].owners[i].step = (uint32_t)seeded_in(random, 0, 99);
		}
	}
}

static inline kvc_record *cuda_world_record(struct cuda_world *w, int64_t slot)
{
	return (kvc_record *)(void *)((char *)w->group[0].records +
	                              slot * w->group[0].record_stride_bytes);
}

/* The fingerprint of a slot as it is on the host. */
static inline uint64_t cuda_world_fingerprint(struct cuda_world *w, int64_t slot)
{
	uint64_t out = 0;
	int64_t one[1] = { 1 };
	kvc_tensor tensor = kvc_tensor_make(&slot, KVC_INT64, 1, one);

	expect_ok(kvc_fingerprint(&out, &w->group[0], &tensor, NULL));
	return out;
}

/* ---- rings ---- */

static inline void cuda_world_ring(struct cuda_world *w, int columns, int64_t capacity)
{
	kvc_ring ring[2] = { KVC_RING_INIT, KVC_RING_INIT };
	void *device;

	ring[0].columns = ring[1].columns = columns;
	ring[0].capacity = ring[1].capacity = capacity;
	ring[1].device.device_type = KVC_DEVICE_CUDA;
	ring[0].rows =
	        cuda_world_add(w, "ring", (size_t)(capacity * columns) * sizeof(int64_t), &device);
	ring[1].rows = device;
	w->is_ring[w->count - 1] = 1;
	ring[0].counters = cuda_world_add(w, "counters", sizeof(kvc_counters), &device);
	ring[1].counters = device;
	ring[0].slot_run_counter = cuda_world_add(w, "slot runs", 8, &device);
	ring[1].slot_run_counter = device;
	ring[0].kernel_run_counter = cuda_world_add(w, "kernel runs", 8, &device);
	ring[1].kernel_run_counter = device;
	ring[0].consumed = cuda_world_add(w, "consumed", 8, &device);
	ring[1].consumed = device;
	ring[0].write_index = cuda_world_add(w, "write index", 4, &device);
	ring[1].write_index = device;
	w->ring[0] = ring[0];
	w->ring[1] = ring[1];
}

static int cuda_compare_rows(const void *a, const void *b)
{
	const int64_t *x = a, *y = b;

	for (int i = 0; i < 16; i++)
		if (x[i] != y[i])
			return x[i] < y[i] ? -1 : 1;
	return 0;
}

/* The rows of a ring, sorted, sequence numbers aside; 16 columns each, zero where there are 8. */
static inline int64_t *cuda_sorted_rows(const int64_t *rows, int64_t count, int columns)
{
	int64_t *out = calloc((size_t)count * 16 + 1, sizeof(*out));

	for (int64_t i = 0; i < count; i++)
		memcpy(out + i * 16, rows + i * columns,
		        sizeof(*out) * (size_t)(columns == 16 ? 15 : 8));
	qsort(out, (size_t)count, 16 * sizeof(*out), cuda_compare_rows);
	return out;
}

/* Do both rings hold the same rows? Valid while nothing was dropped. */
static inline void cuda_world_compare_rings(struct cuda_world *w, const char *what)
{
	int columns = w->ring[0].columns;
	int64_t capacity = w->ring[0].capacity;
	size_t bytes = (size_t)(capacity * columns) * sizeof(int64_t);
	int64_t *copy = malloc(bytes + 1), *host, *device;

	cuda_must(cuda.to_host(copy, (cuda_pointer)(uintptr_t)w->ring[1].rows, bytes), "rows");
	host = cuda_sorted_rows(w->ring[0].rows, capacity, columns);
	device = cuda_sorted_rows(copy, capacity, columns);
	for (int64_t i = 0; i < capacity; i++) {
		if (cuda_compare_rows(host + 16 * i, device + 16 * i) == 0)
			continue;
		print_error("%s: row %lld of the sorted ring differs (host, device):\n", what,
		        (long long)i);
		for (int c = 0; c < 15; c++)
			print_error("  %2d %20lld %20lld\n", c, (long long)host[16 * i + c],
			        (long long)device[16 * i + c]);
		fail();
	}
	free(copy);
	free(host);
	free(device);
}

/* Every byte, red zones too; rings by their rows. */
static inline void cuda_world_compare(struct cuda_world *w, const char *what)
{
	cuda_must(cuda.synchronize(), what);
	for (int i = 0; i < w->count; i++) {
		int64_t at = w->is_ring[i] ? -1 : cuda_twin_differs(&w->twins[i]);
		if (at >= 0)
			print_error("%s: %s differs from byte %lld of %zu\n", what, w->names[i],
			        (long long)at, w->twins[i].bytes);
		assert_int_equal(at, -1);
		assert_int_equal(cuda_twin_trespassed(&w->twins[i]), 0);
	}
	if (w->ring[0].rows)
		cuda_world_compare_rings(w, what);
}

#endif
