/* The kernels of cpu/kernels.h for 64-bit ARM. Same results as kernels_portable.c. */
#if defined(__aarch64__)

#define KVC__LANES 2
#define KVC__TARGET
#define KVC__NAME(base) kvc__##base##_neon
#include "cpu/lanes.h"

#else
typedef int kvc__nothing_for_neon; /* an empty file is no C */
#endif
