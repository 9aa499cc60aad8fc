/*
 * Which CPU variant runs. A variant is one row of kernels, all of which store exactly the same
 * bytes; they differ in speed only.
 *
 * A front door asks once per call, before it looks at anything else:
 *
 *     const struct kvc__cpu_variant *cpu;
 *     KVC__TRY(kvc__cpu_choose(&cpu));
 *
 * A new kernel: a member of the struct, its function in every row of the table (a row without a
 * kernel of its own names the lower one), and a case of kernel_of() in dispatch.c. A test that
 * compares with the portable row then covers it in tests/test_variants.c.
 */
#ifndef KVC__CPU_DISPATCH_H
#define KVC__CPU_DISPATCH_H

#include "cpu/kernels.h"
#include "cpu/rope.h"

/*
 *   name       as KVC_CPU and 'kvcanary cpu' say it
 *   needs      KVC__CPU_* bits without which it cannot run
 *   pays_with  bits without which it can run but is not chosen on its own
 *   others     one kernel each; never NULL
 */
struct kvc__cpu_variant {
	const char *name;
	uint32_t needs;
	uint32_t pays_with;
	kvc_range_fn rope_rows; /* task: const struct kvc__rope_job */
	kvc__sincos_fn sincos;  /* as rope_rows computes them; for tests */
	kvc__xxh3_rows_fn xxh3_rows;
	kvc__splitmix_fold_fn splitmix_fold;
	kvc__nonfinite_fn nonfinite;
	kvc__token_excess_fn token_excess;
	kvc__narrow_fn narrow;
};

/* Best first; the last row is "portable" and needs nothing. */
extern const struct kvc__cpu_variant kvc__cpu_variants[];
extern const size_t kvc__cpu_variant_count;

/* Can this machine run the row? */
int kvc__cpu_supported(const struct kvc__cpu_variant *variant);

/* The row that operations use: the one that KVC_CPU names, else the best supported one. Fails with
 * cpu-variant-unavailable. The choice is made once per process. */
kvc_status kvc__cpu_choose(const struct kvc__cpu_variant **out);

/* For tests: from now on use this row, which is supported; NULL: choose again. */
void kvc__cpu_force(const struct kvc__cpu_variant *variant);

#endif
