/* The kernels of cpu/kernels.h for AVX2. Same results as kernels_portable.c. */
#if defined(__x86_64__)
#include <immintrin.h>

#define KVC__LANES 4
#define KVC__TARGET __attribute__((target("avx2")))
#define KVC__NAME(base) kvc__##base##_avx2
#define KVC__OWN_LINES
#include "cpu/lanes.h"

/* Four words of four rows, transposed. */
KVC__TARGET static inline void square_avx2(
        kvc__vector_avx2 out[4], const uint8_t *const *rows, int64_t at)
{
	__m256i row[4];

	for (int i = 0; i < 4; i++)
		row[i] = _mm256_loadu_si256((const __m256i *)(const void *)(rows[i] + 8 * at));
	__m256i even01 = _mm256_unpacklo_epi64(row[0], row[1]);
	__m256i even23 = _mm256_unpacklo_epi64(row[2], row[3]);
	__m256i odd01 = _mm256_unpackhi_epi64(row[0], row[1]);
	__m256i odd23 = _mm256_unpackhi_epi64(row[2], row[3]);
	out[0] = (kvc__vector_avx2)_mm256_permute2x128_si256(even01, even23, 0x20);
	out[1] = (kvc__vector_avx2)_mm256_permute2x128_si256(odd01, odd23, 0x20);
	out[2] = (kvc__vector_avx2)_mm256_permute2x128_si256(even01, even23, 0x31);
	out[3] = (kvc__vector_avx2)_mm256_permute2x128_si256(odd01, odd23, 0x31);
}

/* Half the instructions of putting words in one by one. */
KVC__TARGET static inline void kvc__lines_avx2(
        kvc__vector_avx2 out[KVC__LINE_WORDS], const uint8_t *const *rows, int64_t at)
{
	square_avx2(out, rows, at);
	square_avx2(out + 4, rows, at + 4);
}

/* Eight tokens of 64 bits to eight of 32: the even halves of both vectors, then their order. */
KVC__TARGET static inline __m256i kvc__narrow8_avx2(const int64_t *in)
{
	__m256 low = _mm256_loadu_ps((const float *)(const void *)in);
	__m256 high = _mm256_loadu_ps((const float *)(const void *)(in + 4));
	__m256i mixed = _mm256_castps_si256(_mm256_shuffle_ps(low, high, _MM_SHUFFLE(2, 0, 2, 0)));

	return _mm256_permute4x64_epi64(mixed, _MM_SHUFFLE(3, 1, 2, 0));
}

#include "cpu/narrow_template.h"
#else
typedef int kvc__nothing_for_avx2; /* an empty file is no C */
#endif
