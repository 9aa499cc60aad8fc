/*
 * Scatter of token histories on the CPU (SPEC section 3), for ops/scatter.c. Everything here trusts
 * its task: offsets, rows and strides have been checked.
 */
#ifndef KVC__CPU_SCATTER_H
#define KVC__CPU_SCATTER_H

#include "kvcanary.h"

struct kvc__cpu_variant;

struct kvc__scatter {
	const struct kvc__cpu_variant *cpu;
	const int64_t *flat;    /* [N] */
	const int64_t *offsets; /* [request_count + 1] */
	const int64_t *rows;    /* [request_count] */
	int64_t request_count;
	int64_t flat_count;
	int32_t *table; /* [row_count][column_count], row_stride elements apart */
	int64_t row_count;
	int64_t column_count;
	int64_t row_stride;
	int in_order; /* requests one after the other: offsets fall, or two share a row */
};

/*
 * Index in 'flat' of the lowest token in [begin, end) that is not in 0 .. 2^31-1 (and not -1, if
 * allow_placeholder), or -1.
 */
int64_t kvc__scatter_first_bad_token(const struct kvc__cpu_variant *cpu, const int64_t *flat,
        int64_t begin, int64_t end, int allow_placeholder);

/* Store the low 32 bits of every token that fits its row. */
void kvc__scatter_store(const struct kvc__scatter *scatter);

#endif
