/*
 * The low 32 bits of tokens, for one x86 set of instructions: a template. The file that includes it
 * defines KVC__TARGET, KVC__NAME(base) as for cpu/lanes.h, and KVC__NAME(narrow8), which gives the low
 * halves of eight tokens; it gets narrow as cpu/kernels.h declares it.
 */
#include "cpu/kernels.h"

#include <immintrin.h>

/* The next tokens are asked for this many ahead: a copy of a single stream does not keep enough
 * lines on their way by itself. */
#define KVC__NARROW_AHEAD 256

KVC__TARGET static inline int32_t KVC__NAME(narrow1)(int64_t token)
{
	return (int32_t)(uint32_t)(uint64_t)token;
}

/* With stores that pass the cache by; a function of its own, so that short rows do not pay for it. */
KVC__TARGET __attribute__((noinline)) static void KVC__NAME(narrow_streams)(
        int32_t *restrict out, const int64_t *restrict in, int64_t count)
{
	int64_t i = 0;

	for (; i < count && ((uintptr_t)(out + i) & 31) != 0; i++)
		out[i] = KVC__NAME(narrow1)(in[i]);
	for (; i <= count - 8; i += 8) {
		_mm_prefetch((const char *)(in + i + KVC__NARROW_AHEAD), _MM_HINT_T0);
		_mm256_stream_si256((__m256i *)(void *)(out + i), KVC__NAME(narrow8)(in + i));
	}
	for (; i < count; i++)
		out[i] = KVC__NAME(narrow1)(in[i]);
	_mm_sfence();
}

KVC__TARGET void KVC__NAME(narrow)(
        int32_t *restrict out, const int64_t *restrict in, int64_t count, int streams)
{
	int64_t i = 0;

	if (streams) {
		KVC__NAME(narrow_streams)(out, in, count);
		return;
	}
	for (; i <= count - 32; i += 32) /* four, or the loop costs as much as what it does */
		for (int64_t k = i; k < i + 32; k += 8)
			_mm256_storeu_si256(
			        (__m256i *)(void *)(out + k), KVC__NAME(narrow8)(in + k));
	for (; i <= count - 8; i += 8)
		_mm256_storeu_si256((__m256i *)(void *)(out + i), KVC__NAME(narrow8)(in + i));
	for (; i < count; i++)
		out[i] = KVC__NAME(narrow1)(in[i]);
}
