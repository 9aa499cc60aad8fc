/*
 * The floating-point mode of a thread. Results are byte-identical only in round-to-nearest with
 * subnormals on, but engines (torch.set_flush_denormal, -ffast-math start-up code) run their
 * threads in other modes. Each call on the caller's thread therefore goes
 *
 *     struct kvc__fp_mode mode = kvc__fp_enter();
 *     ... work ...
 *     kvc__fp_leave(mode);
 *
 * and pool threads enter once. Exceptions are masked meanwhile: a NaN in a cache is data. The work
 * itself belongs in another function, which the compiler does not move across these.
 */
#ifndef KVC__BASE_FP_MODE_H
#define KVC__BASE_FP_MODE_H

#include <stdint.h>

#if defined(__x86_64__) || defined(__SSE2__)
#include <xmmintrin.h>
#elif !defined(__aarch64__)
#include <fenv.h>
#endif

struct kvc__fp_mode {
	uint64_t control; /* the caller's control register */
	int changed;      /* it had to be changed, so restore it */
#if !(defined(__x86_64__) || defined(__SSE2__) || defined(__aarch64__))
	fenv_t environment;
#endif
};

#if defined(__x86_64__) || defined(__SSE2__)

/* MXCSR: bits 0-5 sticky flags, 6 DAZ, 7-12 exception masks, 13-14 rounding, 15 FTZ. */
#define KVC__MXCSR_FLAGS 0x003Fu
#define KVC__MXCSR_PLAIN 0x1F80u

static inline struct kvc__fp_mode kvc__fp_enter(void)
{
	uint32_t control = _mm_getcsr();
	struct kvc__fp_mode mode = { control, (control & ~KVC__MXCSR_FLAGS) != KVC__MXCSR_PLAIN };
	if (mode.changed)
		_mm_setcsr(KVC__MXCSR_PLAIN);
	return mode;
}

static inline void kvc__fp_leave(struct kvc__fp_mode mode)
{
	if (mode.changed)
		_mm_setcsr((uint32_t)mode.control);
}

#elif defined(__aarch64__)

/* FPCR 0 = nearest, no flush to zero, no default NaN, no traps. Its flags live in FPSR. */
static inline struct kvc__fp_mode kvc__fp_enter(void)
{
	uint64_t control;
	__asm__ __volatile__("mrs %0, fpcr" : "=r"(control) : : "memory");
	struct kvc__fp_mode mode = { control, control != 0 };
	if (mode.changed)
		__asm__ __volatile__("msr fpcr, %0" : : "r"((uint64_t)0) : "memory");
	return mode;
}

static inline void kvc__fp_leave(struct kvc__fp_mode mode)
{
	if (mode.changed)
		__asm__ __volatile__("msr fpcr, %0" : : "r"(mode.control) : "memory");
}

#else

static inline struct kvc__fp_mode kvc__fp_enter(void)
{
	struct kvc__fp_mode mode;
	mode.control = 0;
	mode.changed = 1;
	feholdexcept(&mode.environment);
	fesetround(FE_TONEAREST);
	return mode;
}

static inline void kvc__fp_leave(struct kvc__fp_mode mode)
{
	fesetenv(&mode.environment);
}

#endif

#endif /* KVC__BASE_FP_MODE_H */
