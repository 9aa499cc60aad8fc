/* The kernels of cpu/kernels.h for AVX-512. Same results as kernels_portable.c. */
#if defined(__x86_64__)
#include <immintrin.h>

#define KVC__LANES 8
#define KVC__TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define KVC__NAME(base) kvc__##base##_avx512
#include "cpu/lanes.h"

KVC__TARGET static inline __m256i kvc__narrow8_avx512(const int64_t *in)
{
	return _mm512_cvtepi64_epi32(_mm512_loadu_si512(in));
}

#include "cpu/narrow_template.h"
#else
typedef int kvc__nothing_for_avx512; /* an empty file is no C */
#endif
