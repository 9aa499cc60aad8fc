/* What this processor, and the operating system on it, can run. */
#ifndef KVC__CPU_FEATURES_H
#define KVC__CPU_FEATURES_H

#include <stdint.h>

/*
 * One bit for each set of instructions that a variant is written for, as features.c finds them.
 *
 *   KVC__CPU_AVX2           AVX2 and F16C
 *   KVC__CPU_AVX512         AVX-512 F, BW, DQ and VL
 *   KVC__CPU_512_BIT_PAYS   512-bit instructions do not slow the processor's clock down
 *   KVC__CPU_NEON           Advanced SIMD, which every 64-bit ARM has
 */
enum {
	KVC__CPU_AVX2 = 1 << 0,
	KVC__CPU_AVX512 = 1 << 1,
	KVC__CPU_512_BIT_PAYS = 1 << 2,
	KVC__CPU_NEON = 1 << 3
};

/* Asks anew each time; dispatch.c remembers what came of it. */
uint32_t kvc__cpu_features(void);

#endif
