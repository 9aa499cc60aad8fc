/* Any text as a manifest of raw pages. Its pages are files by number: 100 has 4096 bytes, 101 none. */
#include "saved_fuzz.h"

static void make_pages(void)
{
	uint8_t page[4096];
	char path[64];
	int full, empty;

	for (size_t i = 0; i < sizeof(page); i++)
		page[i] = (uint8_t)(i * 7);
	full = file_of_bytes(page, sizeof(page), path);
	empty = file_of_bytes(page, 0, path);
	if (dup2(full, 100) != 100 || dup2(empty, 101) != 101)
		abort();
	close(full);
	close(empty);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t data_bytes)
{
	static const struct saved_options options = { .format = "pages" };
	static int made;

	if (!made) {
		make_pages();
		made = 1;
	}
	open_bytes(data, data_bytes, &options);
	return 0;
}
