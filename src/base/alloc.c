/* Allocating: alloc.h says what each function promises. */
#include "base/alloc.h"

#include <stdatomic.h>
#include <stdlib.h>

/* No machine has more address space than this; asking for it would only try the allocator. */
#define BYTES_MAX (UINT64_C(1) << 47)

static _Atomic int64_t alloc_calls;
static _Atomic int64_t alloc_allowed = -1;

int64_t kvc__alloc_calls(void)
{
	return atomic_load_explicit(&alloc_calls, memory_order_relaxed);
}

void kvc__alloc_refuse_after(int64_t count)
{
	atomic_store(&alloc_allowed, count);
}

/* Takes one of the allowed allocations, if they are counted. */
static int alloc_is_allowed(void)
{
	int64_t allowed = atomic_load(&alloc_allowed);

	while (allowed > 0)
		if (atomic_compare_exchange_weak(&alloc_allowed, &allowed, allowed - 1))
			return 1;
	return allowed < 0;
}

void *kvc__alloc(int64_t count, size_t item_bytes)
{
	atomic_fetch_add_explicit(&alloc_calls, 1, memory_order_relaxed);
	if (count < 0 || (uint64_t)count > BYTES_MAX / (item_bytes ? item_bytes : 1))
		return NULL;
	if (!alloc_is_allowed())
		return NULL;
	return calloc(count > 0 ? (size_t)count : 1, item_bytes ? item_bytes : 1);
}

void kvc__free(void *memory)
{
	free(memory);
}
