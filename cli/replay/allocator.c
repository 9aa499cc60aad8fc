/* Pages of slots with reference counts; allocator.h says what each function promises. */
#include "replay/allocator.h"

#include <stdlib.h>

bool allocator_open(struct allocator *out, int32_t page_count)
{
	size_t count = (size_t)page_count;

	*out = (struct allocator){ .page_count = page_count };
	/* Twice the pages: what a faulty engine frees twice must not write past the stack. */
	out->free_capacity = 2 * page_count;
	out->refs = calloc(count, sizeof(*out->refs));
	out->free_pages = calloc(2 * count, sizeof(*out->free_pages));
	if (!out->refs || !out->free_pages) {
		allocator_close(out);
		return false;
	}
	for (int32_t page = page_count - 1; page > 0; page--)
		out->free_pages[out->free_count++] = page;
	return true;
}

void allocator_close(struct allocator *allocator)
{
	free(allocator->refs);
	free(allocator->free_pages);
	*allocator = (struct allocator){ 0 };
}

int32_t allocator_take(struct allocator *allocator)
{
	if (allocator->free_count == 0)
		return -1;
	int32_t page = allocator->free_pages[--allocator->free_count];
	allocator->refs[page]++;
	return page;
}

void allocator_hold(struct allocator *allocator, int32_t page)
{
	allocator->refs[page]++;
}

void allocator_release(struct allocator *allocator, int32_t page)
{
	if (allocator->refs[page] <= 0)
		return;
	if (--allocator->refs[page] > 0 || page == 0)
		return;
	if (allocator->free_count < allocator->free_capacity)
		allocator->free_pages[allocator->free_count++] = page;
}
