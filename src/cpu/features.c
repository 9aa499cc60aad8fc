/*
 * The only file that asks the processor what it is.
 *
 * On x86 the question has two halves. CPUID says what the processor can do. Whether the operating
 * system saves the wide registers when it switches threads stands in XCR0: a kernel or hypervisor
 * that does not, makes the first wide instruction fault, whatever CPUID says. So a set of
 * instructions counts only if both agree.
 */
#include "cpu/features.h"

#if defined(__x86_64__)
#include <cpuid.h>

/* CPUID leaf 1, ECX */
#define OSXSAVE (1u << 27) /* XGETBV exists, and the system uses it */
#define AVX (1u << 28)
#define F16C (1u << 29)

/* CPUID leaf 7, EBX */
#define AVX2 (1u << 5)
#define AVX512F (1u << 16)
#define AVX512DQ (1u << 17) /* 64-bit lanes: and, xor of doubles */
#define AVX512BW (1u << 30) /* 16-bit lanes: bfloat16 */
#define AVX512VL (1u << 31) /* the same on 256 and 128 bits */

/* XCR0: register state that the system saves. */
#define XCR0_YMM 0x06u /* 1 XMM, 2 upper halves of YMM */
#define XCR0_ZMM 0xE0u /* 5 mask registers, 6 upper halves of ZMM, 7 ZMM16 to ZMM31 */

static uint32_t saved_registers(void)
{
	uint32_t low;
	uint32_t high;
	/* Plain assembly: the intrinsic would need a build flag. */
	__asm__ __volatile__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
	return low;
}

/*
 * Intel's first server parts with AVX-512 (Skylake, Cascade Lake and Cooper Lake, all model 55h)
 * lower the clock of the whole core for milliseconds after a burst of 512-bit instructions, which
 * the engine's own code then pays for. They run AVX2 unless they are told otherwise. Later Intel
 * parts and all of AMD's do not have that cost.
 */
static int clock_falls_under_512_bits(uint32_t leaf1_eax, uint32_t vendor_ebx)
{
	const uint32_t genu = 0x756E6547u; /* "Genu"ineIntel */
	uint32_t family = (leaf1_eax >> 8) & 0xFu;
	uint32_t model = ((leaf1_eax >> 4) & 0xFu) | ((leaf1_eax >> 12) & 0xF0u);
	return vendor_ebx == genu && family == 6 && model == 0x55;
}

uint32_t kvc__cpu_features(void)
{
	const uint32_t wide_bits = AVX512F | AVX512DQ | AVX512BW | AVX512VL;
	uint32_t top, vendor, signature, leaf1, leaf7, saved, unused;
	uint32_t found = 0;
	__cpuid(0, top, vendor, unused, unused);
	if (top < 7)
		return 0;
	__cpuid(1, signature, unused, leaf1, unused);
	__cpuid_count(7, 0, unused, leaf7, unused, unused);
	if (!(leaf1 & OSXSAVE))
		return 0;
	saved = saved_registers();
	/* F16C came one generation before AVX2; some hypervisors hide it all the same. */
	if ((leaf1 & AVX) && (leaf1 & F16C) && (leaf7 & AVX2) && (saved & XCR0_YMM) == XCR0_YMM)
		found |= KVC__CPU_AVX2;
	if ((found & KVC__CPU_AVX2) && (leaf7 & wide_bits) == wide_bits &&
	        (saved & XCR0_ZMM) == XCR0_ZMM) {
		found |= KVC__CPU_AVX512;
		if (!clock_falls_under_512_bits(signature, vendor))
			found |= KVC__CPU_512_BIT_PAYS;
	}
	return found;
}

#elif defined(__aarch64__)

uint32_t kvc__cpu_features(void)
{
	return KVC__CPU_NEON;
}

#else

uint32_t kvc__cpu_features(void)
{
	return 0;
}

#endif
