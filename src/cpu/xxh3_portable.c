/* XXH3 for the compiler's baseline, which has vectors of 128 bits on both machines. */
#define KVC__NAME(base) kvc__##base##_portable
#include "cpu/xxh3_template.h"
