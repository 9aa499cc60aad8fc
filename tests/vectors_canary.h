/*
 * A case of hash.jsonl, write.jsonl or verify.jsonl as a group and a ring over our own interface.
 */
#ifndef VECTORS_CANARY_H
#define VECTORS_CANARY_H

#include "kvcanary.h"
#include "sglang_vectors.h"

/* The case's "sources" with a fingerprint of SGLang's; records and mode are the caller's. */
static inline kvc_group vectors_group(struct vectors *v)
{
	const json_t *list = vectors_field(v->item, "sources");
	size_t count = json_array_size(list);
	kvc_source *sources = vectors_block(v, count, sizeof(*sources));
	kvc_group group = KVC_GROUP_INIT;

	for (size_t i = 0; i < count; i++) {
		const json_t *item = json_array_get(list, i);
		sources[i].base = vectors_bytes(v, vectors_field(item, "data"), NULL);
		sources[i].row_count = vectors_int(item, "rows");
		sources[i].row_stride_bytes = vectors_int(item, "row_stride");
		sources[i].page_size = vectors_int(item, "page_size");
		sources[i].slot_stride_bytes = vectors_int(item, "num_bytes_per_token");
		sources[i].head_count = 1;
		sources[i].head_bytes = sources[i].slot_stride_bytes;
		sources[i].head_stride_bytes = sources[i].slot_stride_bytes;
		sources[i].read_bytes = vectors_int(item, "read_bytes");
		sources[i].id = i;
		sources[i].dtype = KVC_UINT8;
	}
	group.sources = sources;
	group.source_count = (int64_t)count;
	group.fingerprint = KVC_FINGERPRINT_SPLITMIX;
	return group;
}

/* The same with the case's records, of which a copy is made. */
static inline kvc_group vectors_group_with_records(struct vectors *v)
{
	kvc_group group = vectors_group(v);

	group.records = vectors_bytes(v, vectors_field(v->item, "canary"), NULL);
	group.record_count = vectors_int(v->item, "num_slots");
	group.record_stride_bytes = vectors_int(v->item, "slot_stride");
	group.coverage = (int32_t)vectors_int(v->item, "mode");
	return group;
}

struct vectors_ring {
	kvc_ring ring;
	int32_t write_index;
	int64_t slot_runs;
	int64_t kernel_runs;
};

/* SGLang's ring with the case's counters, all zero, pointing into 'out'. */
static inline void vectors_ring_start(struct vectors *v, struct vectors_ring *out)
{
	kvc_ring ring = KVC_RING_INIT;

	out->write_index = (int32_t)vectors_int(v->item, "write_index");
	out->slot_runs = vectors_int(v->item, "slot_run_counter");
	out->kernel_runs = vectors_int(v->item, "kernel_run_counter");
	ring.capacity = vectors_int(v->item, "ring_capacity");
	ring.columns = 8;
	ring.rows = vectors_block(v, (size_t)ring.capacity * 8, sizeof(int64_t));
	ring.write_index = &out->write_index;
	ring.slot_run_counter = &out->slot_runs;
	ring.kernel_run_counter = &out->kernel_runs;
	out->ring = ring;
}

/* Rows and counters as the case wants them; rows that it does not show are zero. */
static inline int vectors_ring_matches(struct vectors *v, const struct vectors_ring *got)
{
	const json_t *want = vectors_field(v->item, "want");
	const json_t *rows = vectors_field(want, "ring");
	int64_t shown = (int64_t)json_array_size(rows);
	int same = got->write_index == (int32_t)vectors_int(want, "write_index") &&
	           got->slot_runs == vectors_int(want, "slot_run_counter") &&
	           got->kernel_runs == vectors_int(want, "kernel_run_counter") &&
	           shown <= got->ring.capacity;

	for (int64_t row = 0; same && row < got->ring.capacity; row++) {
		const int64_t *expected = vectors_block(v, 8, sizeof(int64_t));
		if (row < shown)
			expected = vectors_int64s(v, json_array_get(rows, (size_t)row), NULL);
		same = memcmp(got->ring.rows + row * 8, expected, 8 * sizeof(int64_t)) == 0;
	}
	return same;
}

/* A vector of int64 over an array of the case; 'shape' is the caller's. */
static inline kvc_tensor vectors_tensor(struct vectors *v, const json_t *array, int64_t *shape)
{
	int64_t *values = vectors_int64s(v, array, shape);

	return kvc_tensor_make(values, KVC_INT64, 1, shape);
}

#endif
