/*
 * The library's memory. The only place in src/ that calls malloc, so that a test can count calls
 * ("a step that is no larger than the last allocates nothing") and make any one of them fail.
 */
#ifndef KVC__ALLOC_H
#define KVC__ALLOC_H

#include <stddef.h>
#include <stdint.h>

#include "kvcanary.h"

/* Zeroed memory for 'count' items of 'item_bytes', or NULL. A count of 0 gives one byte. */
void *kvc__alloc(int64_t count, size_t item_bytes);

void kvc__free(void *memory);

/* Allocations asked for so far in this process. */
int64_t kvc__alloc_calls(void);

/* For tests: let 'count' more allocations succeed, then refuse all; below 0 = never refuse. */
void kvc__alloc_refuse_after(int64_t count);

#endif
