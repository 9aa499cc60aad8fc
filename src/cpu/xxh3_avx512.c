/* XXH3 for AVX-512. */
#if defined(__x86_64__)
#define KVC__NAME(base) kvc__##base##_avx512
#define KVC__XXH3_TARGET "avx512f,avx512bw,avx512dq,avx512vl"
#define XXH_VECTOR XXH_AVX512
#include "cpu/xxh3_template.h"
#else
typedef int kvc__nothing_here_either; /* an empty file is no C */
#endif
