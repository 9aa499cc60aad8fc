/* The table of CPU variants, and the choice among its rows: dispatch.h. */
#include "cpu/dispatch.h"

#include "base/error.h"
#include "cpu/features.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

const struct kvc__cpu_variant kvc__cpu_variants[] = {
#if defined(__x86_64__)
	{ "avx512", KVC__CPU_AVX512 | KVC__CPU_AVX2, KVC__CPU_512_BIT_PAYS, kvc__rope_rows_avx512,
	        kvc__sincos_avx512, kvc__xxh3_rows_avx512, kvc__splitmix_fold_avx512,
	        kvc__nonfinite_avx512, kvc__token_excess_avx512, kvc__narrow_avx512 },
	{ "avx2", KVC__CPU_AVX2, 0, kvc__rope_rows_avx2, kvc__sincos_avx2, kvc__xxh3_rows_avx2,
	        kvc__splitmix_fold_avx2, kvc__nonfinite_avx2, kvc__token_excess_avx2,
	        kvc__narrow_avx2 },
#elif defined(__aarch64__)
	{ "neon", KVC__CPU_NEON, 0, kvc__rope_rows_neon, kvc__sincos_neon, kvc__xxh3_rows_portable,
	        kvc__splitmix_fold_neon, kvc__nonfinite_neon, kvc__token_excess_neon,
	        kvc__narrow_portable },
#endif
	{ "portable", 0, 0, kvc__rope_rows_portable, kvc__sincos_portable, kvc__xxh3_rows_portable,
	        kvc__splitmix_fold_portable, kvc__nonfinite_words_portable,
	        kvc__token_excess_portable, kvc__narrow_portable },
};
const size_t kvc__cpu_variant_count = sizeof kvc__cpu_variants / sizeof *kvc__cpu_variants;

/* NULL until the first operation. Threads that race for it agree. */
static _Atomic(const struct kvc__cpu_variant *) chosen_variant;

int kvc__cpu_supported(const struct kvc__cpu_variant *variant)
{
	return (kvc__cpu_features() & variant->needs) == variant->needs;
}

/* The first row with this name, or with NULL the first that pays; NULL if this machine has none. */
static const struct kvc__cpu_variant *find_variant(const char *name, uint32_t features)
{
	for (size_t i = 0; i < kvc__cpu_variant_count; i++) {
		const struct kvc__cpu_variant *row = &kvc__cpu_variants[i];
		uint32_t wanted = row->needs | (name ? 0 : row->pays_with);
		if ((features & wanted) == wanted && (!name || strcmp(name, row->name) == 0))
			return row;
	}
	return NULL;
}

/* "avx2 portable": what this machine can run. */
static void list_supported(char *out, size_t out_bytes)
{
	size_t used = 0;
	out[0] = '\0';
	for (size_t i = 0; i < kvc__cpu_variant_count; i++) {
		const struct kvc__cpu_variant *row = &kvc__cpu_variants[i];
		size_t bytes = strlen(row->name);
		if (!kvc__cpu_supported(row) || used + bytes + 2 > out_bytes)
			continue;
		if (used > 0)
			out[used++] = ' ';
		memcpy(out + used, row->name, bytes + 1);
		used += bytes;
	}
}

kvc_status kvc__cpu_choose(const struct kvc__cpu_variant **out)
{
	const struct kvc__cpu_variant *row =
	        atomic_load_explicit(&chosen_variant, memory_order_acquire);
	if (!row) {
		const char *name = getenv("KVC_CPU");
		name = name && name[0] ? name : NULL; /* empty: as if it were not set */
		row = find_variant(name, kvc__cpu_features());
		if (!row) {
			char supported[128];
			list_supported(supported, sizeof supported);
			return kvc__fail_cpu_variant_unavailable(-1, name, supported);
		}
		atomic_store_explicit(&chosen_variant, row, memory_order_release);
	}
	*out = row;
	return KVC_OK;
}

void kvc__cpu_force(const struct kvc__cpu_variant *variant)
{
	atomic_store_explicit(&chosen_variant, variant, memory_order_release);
}

/* ---- what the header offers ---- */

typedef void (*any_kernel)(void);

/* The kernels by operation, as people know the operations. */
static const char *const operation_names[] = { "rope_pool_fused", "xxh3", "splitmix", "scan_finite",
	"scatter" };
#define OPERATION_COUNT (sizeof operation_names / sizeof *operation_names)

static any_kernel kernel_of(const struct kvc__cpu_variant *row, size_t operation)
{
	switch (operation) {
	case 0:
		return (any_kernel)row->rope_rows;
	case 1:
		return (any_kernel)row->xxh3_rows;
	case 2:
		return (any_kernel)row->splitmix_fold;
	case 3:
		return (any_kernel)row->nonfinite;
	case 4:
		return (any_kernel)row->narrow;
	default:
		return NULL;
	}
}

size_t kvc_cpu_variant_count(void)
{
	return kvc__cpu_variant_count;
}

kvc_cpu_variant kvc_cpu_variant_at(size_t index)
{
	kvc_cpu_variant variant = { NULL, 0, 0 };
	const struct kvc__cpu_variant *chosen = NULL;
	if (index >= kvc__cpu_variant_count)
		return variant;
	variant.name = kvc__cpu_variants[index].name;
	variant.supported = kvc__cpu_supported(&kvc__cpu_variants[index]);
	variant.chosen = kvc__cpu_choose(&chosen) == KVC_OK && chosen == &kvc__cpu_variants[index];
	return variant;
}

kvc_status kvc_cpu_chosen(size_t *index_out)
{
	const struct kvc__cpu_variant *chosen = NULL;
	if (!index_out)
		return kvc__fail_null_argument(-1, "index_out");
	KVC__TRY(kvc__cpu_choose(&chosen));
	*index_out = (size_t)(chosen - kvc__cpu_variants);
	return KVC_OK;
}

const char *kvc_cpu_operation_at(size_t index)
{
	return index < OPERATION_COUNT ? operation_names[index] : NULL;
}

/* A kernel is called after the lowest row that has it. */
const char *kvc_cpu_kernel_at(size_t variant, size_t operation)
{
	const char *name = NULL;
	if (variant >= kvc__cpu_variant_count || operation >= OPERATION_COUNT)
		return NULL;
	any_kernel kernel = kernel_of(&kvc__cpu_variants[variant], operation);
	for (size_t i = variant; i < kvc__cpu_variant_count; i++)
		if (kernel_of(&kvc__cpu_variants[i], operation) == kernel)
			name = kvc__cpu_variants[i].name;
	return name;
}
