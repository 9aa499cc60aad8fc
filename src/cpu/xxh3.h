/* XXH3 (64 bits, seed 0) from libxxhash's header, compiled once for each set of instructions. */
#ifndef KVC__CPU_XXH3_H
#define KVC__CPU_XXH3_H

#include <stddef.h>
#include <stdint.h>

typedef uint64_t (*kvc__xxh3_fn)(const void *bytes, size_t count);

/* The same for a row of many: 'next' is the row that will be hashed after this one, of equal length;
 * it is asked for (and not read). */
typedef uint64_t (*kvc__xxh3_ahead_fn)(const void *bytes, size_t count, const void *next);

uint64_t kvc__xxh3_ahead_portable(const void *bytes, size_t count, const void *next);

/* What the compiler's baseline has: SSE2 on x86-64, NEON on 64-bit ARM. */
uint64_t kvc__xxh3_portable(const void *bytes, size_t count);

#if defined(__x86_64__)
uint64_t kvc__xxh3_avx2(const void *bytes, size_t count);
uint64_t kvc__xxh3_ahead_avx2(const void *bytes, size_t count, const void *next);
uint64_t kvc__xxh3_ahead_avx512(const void *bytes, size_t count, const void *next);
uint64_t kvc__xxh3_avx512(const void *bytes, size_t count);
#endif

#endif
