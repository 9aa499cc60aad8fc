/* The header has no attribute of its own for a set of instructions, so the whole of it is compiled
 * for one here: gcc and clang spell that differently. */
#if defined(__x86_64__)
#include <immintrin.h>
#include <stdlib.h>
#include <string.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2")
#endif

#define XXH_INLINE_ALL
#define XXH_VECTOR XXH_AVX2
#include "cpu/xxh3.h"

#include <xxhash.h>

uint64_t kvc__xxh3_avx2(const void *bytes, size_t count)
{
	return XXH3_64bits(bytes, count);
}

#define KVC__NAME(base) kvc__##base##_avx2
#include "cpu/xxh3_ahead.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#else
typedef int kvc__nothing_here; /* an empty file is no C */
#endif
