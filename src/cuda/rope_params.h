/*
 * What the rope kernels are told, by value. Filled by launch_rope.c, read by rope.cu; plain C for both.
 */
#ifndef KVC__CUDA_ROPE_PARAMS_H
#define KVC__CUDA_ROPE_PARAMS_H

#include "cpu/rope.h"

/* Frequencies that fit in the parameters of the common kernels; wider rotations pay for more. */
#define KVC__ROPE_PAIRS_SMALL 64
#define KVC__ROPE_PAIRS_LARGE (KVC_ROTARY_DIM_MAX / 2)

struct kvc__rope_params {
	struct kvc__rows q, k, v, q_out, k_out, k_pool, v_pool;
	struct kvc__indices positions, slots;
	int64_t token_count;
	int64_t position_count;
	int64_t slot_count;
	int64_t reserved_slot;
	const float *cos_sin; /* the caller's table, or NULL */
	int64_t cos_sin_row_stride;
	double attention_factor;
	void *records; /* NULL: no stamping */
	int64_t record_stride;
	int64_t stamp_head_bytes;
	uint64_t k_id, v_id;
	kvc_report *report;         /* or NULL */
	int32_t *duplicate_scratch; /* or NULL: row + 1 of the lowest token on each slot */
	int32_t check_finite;
	int32_t coverage;
	int32_t q_heads, kv_heads;
	int32_t q_dim, kv_dim;
	int32_t rotary_dim, interleaved;
	int32_t q_rotary_offset, rotary_offset;
	int32_t element, pool_element; /* enum kvc__element */
	float k_scale, v_scale;
	int32_t parts;        /* fast kernels: warps a token; stamping: groups a set */
	int32_t block_tokens; /* whole tokens a block (without a table) or set (stamping) */
	int32_t row_lanes;    /* stamping: lanes that have a row, */
	int32_t row_units;    /* and how often each gets a part of it; */
	int32_t row_apart;    /* other lanes have the row of V; else the same, or there is none */
	int32_t q_parts;      /* heads of q a token, by how many of them a lane takes */
	uint32_t parts_magic; /* ceil(2^32 / parts) */
	uint32_t heads_magic; /* the same for heads a token */
	int32_t programmatic; /* launched so that it may start early: it waits by itself */
	uint64_t secret[40];  /* stamping: that of XXH3, as struct Secret in rope.cu */
	/* Both arrays are one: [256] frequencies, of which the common kernels get the first 64. */
	double inv_freq[KVC__ROPE_PAIRS_SMALL];
	double inv_freq_rest[KVC__ROPE_PAIRS_LARGE -
	                     KVC__ROPE_PAIRS_SMALL]; /* large kernels only */
};

/* Threads of a group of the stamping kernels: with a table, and computing angles; blocks of the first
 * that are resident at once. */
#define KVC__STAMP_GROUP 128
#define KVC__STAMP_GROUP_COMPUTED 64
#define KVC__STAMP_Q_HEADS 2 /* of a lane, where bytes are streamed */
#define KVC__STAMP_BLOCKS 8

#endif
