/* Memory, random data, and the end of the program when something cannot go on. */
#include "bench.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

void *bench_alloc(size_t bytes)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
	        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory == MAP_FAILED) {
		fprintf(stderr, "kvcanary-bench: no memory (%zu bytes)\n", bytes);
		exit(2);
	}
	/* Huge pages where there are any: a page walk per random row is not what is measured. */
	(void)madvise(memory, bytes, MADV_HUGEPAGE);
	memset(memory, 1, bytes);
	return memory;
}

void bench_free(void *memory, size_t bytes)
{
	if (memory)
		munmap(memory, bytes);
}

int64_t bench_slice(int64_t turn, int64_t count)
{
	int64_t step = 7;
	while (count % step == 0)
		step += step == 7 ? 4 : 2; /* 7, 11, 13, ...: until it has no factor in common */
	return turn % count * step % count;
}

uint64_t bench_random(uint64_t *state)
{
	uint64_t x = *state += 0x9E3779B97F4A7C15u;
	x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
	x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
	return x ^ (x >> 31);
}

/* Bits to keep of random ones, and bits to set, in each element of 8 bytes. */
static void masks_of(kvc_dtype dtype, uint64_t *keep, uint64_t *set)
{
	*keep = UINT64_MAX;
	*set = 0;
	if (dtype.code == KVC_CODE_BFLOAT) {
		*keep = 0x80FF80FF80FF80FFu;
		*set = 0x3F003F003F003F00u;
	} else if (dtype.code == KVC_CODE_FLOAT && dtype.bits == 16) {
		*keep = 0x87FF87FF87FF87FFu;
		*set = 0x3800380038003800u;
	} else if (dtype.code == KVC_CODE_FLOAT && dtype.bits == 32) {
		*keep = 0x80FFFFFF80FFFFFFu;
		*set = 0x3F0000003F000000u;
	} else if (dtype.code == KVC_CODE_FLOAT8_E4M3FN || dtype.code == KVC_CODE_FLOAT8_E5M2) {
		*keep = 0x8787878787878787u;
		*set = 0x3030303030303030u;
	}
}

void bench_fill(void *memory, size_t bytes, kvc_dtype dtype, uint64_t seed)
{
	unsigned char *at = memory;
	uint64_t keep, set;

	masks_of(dtype, &keep, &set);
	for (size_t i = 0; i + 8 <= bytes; i += 8) {
		uint64_t word = (bench_random(&seed) & keep) | set;
		memcpy(at + i, &word, 8);
	}
}

void bench_permutation(int64_t *out, int64_t count, uint64_t seed)
{
	for (int64_t i = 0; i < count; i++)
		out[i] = i;
	for (int64_t i = count - 1; i > 0; i--) {
		int64_t j = (int64_t)(bench_random(&seed) % (uint64_t)(i + 1));
		int64_t kept = out[i];
		out[i] = out[j];
		out[j] = kept;
	}
}

void bench_check(kvc_status status)
{
	if (status == KVC_OK)
		return;
	fprintf(stderr, "kvcanary-bench: %s [%s]\n", kvc_last_error()->message,
	        kvc_last_error()->slug);
	exit(2);
}

int64_t bench_dtype_bytes(kvc_dtype dtype)
{
	return dtype.bits / 8;
}
