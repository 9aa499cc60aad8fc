/* XXH3 for AVX2. */
#if defined(__x86_64__)
#define KVC__NAME(base) kvc__##base##_avx2
#define KVC__XXH3_TARGET "avx2"
#define XXH_VECTOR XXH_AVX2
#include "cpu/xxh3_template.h"
#else
typedef int kvc__nothing_here; /* an empty file is no C */
#endif
