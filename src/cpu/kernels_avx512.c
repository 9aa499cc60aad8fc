/* The kernels of cpu/kernels.h for AVX-512. Same results as kernels_portable.c. */
#if defined(__x86_64__)
#include <immintrin.h>

#define KVC__LANES 8
#define KVC__TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define KVC__NAME(base) kvc__##base##_avx512
#include "cpu/lanes.h"

#define AHEAD 256 /* tokens, as in kernels_avx2.c */

KVC__TARGET void kvc__narrow_avx512(
        int32_t *restrict out, const int64_t *restrict in, int64_t count, int streams)
{
	int64_t i = 0;

	for (; streams && i < count && ((uintptr_t)(out + i) & 31) != 0; i++)
		out[i] = (int32_t)(uint32_t)(uint64_t)in[i];
	for (; streams && count - i >= 8; i += 8) {
		_mm_prefetch((const char *)(in + i + AHEAD), _MM_HINT_T0);
		_mm256_stream_si256((__m256i *)(void *)(out + i),
		        _mm512_cvtepi64_epi32(_mm512_loadu_si512(in + i)));
	}
	for (; count - i >= 8; i += 8)
		_mm256_storeu_si256((__m256i *)(void *)(out + i),
		        _mm512_cvtepi64_epi32(_mm512_loadu_si512(in + i)));
	for (; i < count; i++)
		out[i] = (int32_t)(uint32_t)(uint64_t)in[i];
	if (streams)
		_mm_sfence();
}
#else
typedef int kvc__nothing_for_avx512; /* an empty file is no C */
#endif
