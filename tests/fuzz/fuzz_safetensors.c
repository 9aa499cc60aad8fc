/* Any file as safetensors of each schema. */
#include "saved_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t data_bytes)
{
	static const struct saved_options options[] = {
		{ .format = "safetensors", .heads = 2 },
		{ .format = "safetensors-vllm", .layout = "packed" },
		{ .format = "safetensors-kvc", .layout = "thd" },
	};

	for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
		open_bytes(data, data_bytes, &options[i]);
	return 0;
}
