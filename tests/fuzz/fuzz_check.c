/* Any file that opens as a saved cache is checked to the end, contents included. */
#include "saved_fuzz.h"
#include "snapshot/check.h"
#include "snapshot/rope_given.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t data_bytes)
{
	static struct saved_error error;
	static struct rope_given given;
	const struct check_options options = { 1, &given, NULL };
	struct check_result result;
	struct saved_cache *cache;
	char path[64];
	int descriptor = file_of_bytes(data, data_bytes, path);

	if (!rope_given_parse(&given, "10000,auto"))
		abort();
	if (saved_open(&cache, path, NULL, &error) == 0) {
		if (check_cache(&result, cache, &options, &error) == 0)
			findings_free(result.findings);
		saved_close(cache);
	}
	close(descriptor);
	return 0;
}
