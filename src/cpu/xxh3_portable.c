#define XXH_INLINE_ALL
#include "cpu/xxh3.h"

#include <xxhash.h>

uint64_t kvc__xxh3_portable(const void *bytes, size_t count)
{
	return XXH3_64bits(bytes, count);
}

#define KVC__NAME(base) kvc__##base##_portable
#include "cpu/xxh3_ahead.h"
