/* What the fake driver (fake_cuda.c) is told, and what it has seen: its symbol fake_cuda. */
#ifndef KVC_TESTS_FAKE_CUDA_H
#define KVC_TESTS_FAKE_CUDA_H

#include <stddef.h>

struct fake_launch {
	char name[64];
	unsigned grid, block, shared;
	unsigned cluster; /* 0: none was asked for */
	int early;        /* it may start before its turn */
};

struct fake_cuda {
	int capability; /* of the chip, times ten; its device number is a tenth of it */
	unsigned
	        placeable; /* blocks of the largest cluster that it says it can place; 0: no answer */
	const char *refused; /* the kernel whose launch fails */

	int count;
	struct fake_launch launches[16];
	int waits;     /* calls that no capture allows: copies and waits */
	size_t zeroed; /* bytes, all of them together */
	int questions; /* about devices */
};

#endif
