/* XXH3 (64 bits, seed 0) from libxxhash's header, compiled once for each set of instructions. */
#ifndef KVC__CPU_XXH3_H
#define KVC__CPU_XXH3_H

#include <stddef.h>
#include <stdint.h>

typedef uint64_t (*kvc__xxh3_fn)(const void *bytes, size_t count);

/* out[i] = the same of the row_bytes bytes at rows[i], for rows that come from memory. */
typedef void (*kvc__xxh3_rows_fn)(
        uint64_t *out, const uint8_t *const *rows, int64_t count, int64_t row_bytes);

/* What the compiler's baseline has: SSE2 on x86-64, NEON on 64-bit ARM. */
uint64_t kvc__xxh3_portable(const void *bytes, size_t count);
void kvc__xxh3_rows_portable(
        uint64_t *out, const uint8_t *const *rows, int64_t count, int64_t row_bytes);

#if defined(__x86_64__)
uint64_t kvc__xxh3_avx2(const void *bytes, size_t count);
void kvc__xxh3_rows_avx2(
        uint64_t *out, const uint8_t *const *rows, int64_t count, int64_t row_bytes);
uint64_t kvc__xxh3_avx512(const void *bytes, size_t count);
void kvc__xxh3_rows_avx512(
        uint64_t *out, const uint8_t *const *rows, int64_t count, int64_t row_bytes);
#endif

#endif
