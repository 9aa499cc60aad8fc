/*
 * Loops that are compiled twice: for any processor, and for x86 with registers of 32 bytes. The
 * second one is an inline function in a function marked WIDE, to be called where has_wide() is true.
 * Both give the same bytes; KVC_CPU=portable takes the first, so that tests reach it anywhere.
 */
#ifndef KVCANARY_SNAPSHOT_WIDE_H
#define KVCANARY_SNAPSHOT_WIDE_H

#include "kvcanary.h"

#include <stdbool.h>

#if defined(__x86_64__)
#define WIDE __attribute__((target("avx2")))
#else
#define WIDE
#endif

/* The library's variants above the last, which is portable, need those registers. Only true on x86:
 * elsewhere the compiler has done what it can. */
static inline bool has_wide(void)
{
#if defined(__x86_64__)
	size_t chosen;

	return kvc_cpu_chosen(&chosen) == KVC_OK && chosen + 1 < kvc_cpu_variant_count();
#else
	return false;
#endif
}

#endif
