/*
 * What the rope kernels are told, by value. Filled by launch_rope.c, read by rope.cu; plain C for both.
 */
#ifndef KVC__CUDA_ROPE_PARAMS_H
#define KVC__CUDA_ROPE_PARAMS_H

#include "cpu/rope.h"

/* Frequencies that fit in the parameters of the fast kernels; wider rotations pay for more. */
#define KVC__ROPE_PAIRS_SMALL 64
#define KVC__ROPE_PAIRS_LARGE (KVC_ROTARY_DIM_MAX / 2)

/* Tensors by number: what goes in, where it goes (V: nowhere), its pool (Q: none). */
enum { KVC__Q, KVC__K, KVC__V, KVC__Q_OUT, KVC__K_OUT, KVC__K_POOL, KVC__V_POOL, KVC__TENSORS };

struct kvc__rope_params {
	struct kvc__rows rows[KVC__TENSORS];
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
	/* Fast kernels: ceil(2^32 / heads), of all heads or (stamping) of q. */
	uint32_t heads_magic;
	int32_t parts;        /* with angles to compute: warps a token */
	int32_t block_tokens; /* whole tokens a block (with angles to compute) or set (stamping) */
	/* Stamping: lanes of a row of K or V, padded, and log2 of that (31 if a set has one token); lanes of
	 * a set's rows of K, and again of V; threads that have both, and fill up the last warp. */
	uint32_t row_lanes, row_shift, kind_lanes, row_threads;
	/* Stamping with a table: as piece_of_set() says. */
	uint32_t chunk_tokens, chunk_row_blocks, chunk_blocks;
	int32_t stamp_rows;      /* of K and V of a set */
	uint64_t length_term;    /* what the length of a row adds to its hash, */
	uint64_t k_term, v_term; /* and what the ids add to it then */
	/* Both arrays are one: [256] frequencies, of which the fast kernels get the first 64. */
	double inv_freq[KVC__ROPE_PAIRS_SMALL];
	double inv_freq_rest[KVC__ROPE_PAIRS_LARGE -
	                     KVC__ROPE_PAIRS_SMALL]; /* of the general kernel only */
};

/* Threads of a block of the fast kernels with a table, and how many blocks are to be resident at once. */
#define KVC__ROPE_THREADS 128
#define KVC__ROPE_BLOCKS (1536 / KVC__ROPE_THREADS)
/* Most tokens of a block that computes angles. */
#define KVC__ROPE_TOKENS 8
/* Stamping: threads that have the rows of a set, unless one token's are more; and most rows. */
#define KVC__STAMP_THREADS 128
#define KVC__STAMP_ROWS (KVC__STAMP_THREADS / 8)

#endif
