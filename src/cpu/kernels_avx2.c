/* The kernels of cpu/kernels.h for AVX2. Same results as kernels_portable.c. */
#if defined(__x86_64__)
#include <immintrin.h>

#define KVC__LANES 4
#define KVC__TARGET __attribute__((target("avx2")))
#define KVC__NAME(base) kvc__##base##_avx2
#include "cpu/lanes.h"

/* Eight tokens of 64 bits to eight of 32: the even halves of both vectors, then their order. */
KVC__TARGET static inline __m256i narrow8_avx2(const int64_t *in)
{
	__m256 low = _mm256_loadu_ps((const float *)(const void *)in);
	__m256 high = _mm256_loadu_ps((const float *)(const void *)(in + 4));
	__m256i mixed = _mm256_castps_si256(_mm256_shuffle_ps(low, high, _MM_SHUFFLE(2, 0, 2, 0)));

	return _mm256_permute4x64_epi64(mixed, _MM_SHUFFLE(3, 1, 2, 0));
}

/* The next tokens are asked for this many ahead: a copy of a single stream does not keep enough
 * lines on their way by itself. */
#define AHEAD 256

KVC__TARGET void kvc__narrow_avx2(
        int32_t *restrict out, const int64_t *restrict in, int64_t count, int streams)
{
	int64_t i = 0;

	for (; streams && i < count && ((uintptr_t)(out + i) & 31) != 0; i++)
		out[i] = (int32_t)(uint32_t)(uint64_t)in[i];
	for (; streams && count - i >= 8; i += 8) {
		_mm_prefetch((const char *)(in + i + AHEAD), _MM_HINT_T0);
		_mm256_stream_si256((__m256i *)(void *)(out + i), narrow8_avx2(in + i));
	}
	for (; count - i >= 8; i += 8)
		_mm256_storeu_si256((__m256i *)(void *)(out + i), narrow8_avx2(in + i));
	for (; i < count; i++)
		out[i] = (int32_t)(uint32_t)(uint64_t)in[i];
	if (streams)
		_mm_sfence();
}
#else
typedef int kvc__nothing_for_avx2; /* an empty file is no C */
#endif
