/* Any pasted text: the matcher stays inside it, and what it says it found lies there. */
#include "kvcanary.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t data_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t data_bytes)
{
	size_t start[4], length[4], count = 0;
	char *text = malloc(data_bytes + 1);

	if (!text)
		abort();
	memcpy(text, data, data_bytes);
	text[data_bytes] = '\0';
	const kvc_catalog_entry *entry = kvc_catalog_match(text, start, length, 4, &count);
	if (entry && kvc_catalog_find(entry->slug) != entry)
		abort();
	for (size_t i = 0; entry && i < count && i < 4; i++)
		if (length[i] == 0 || start[i] + length[i] > strlen(text))
			abort();
	free(text);
	return 0;
}
