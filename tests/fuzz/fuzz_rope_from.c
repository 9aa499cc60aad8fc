/* Any file as a GGUF and as a config.json: refused, or parameters that can be used. */
#include "saved_fuzz.h"
#include "snapshot/rope_given.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t data_bytes)
{
	static struct saved_error error;
	struct rope_given given;
	kvc_rope rope;
	char path[64];
	int descriptor = file_of_bytes(data, data_bytes, path);

	if (rope_given_read(&given, path, &error)) {
		check_refusal(&error);
	} else {
		for (int64_t dim = 16; dim <= 512; dim *= 2)
			rope_given_init(&rope, &given, dim, 0, KVC_ROPE_NEOX);
		if (given.heads < 0 || given.rotary_offset < 0 || given.factor_count < 0)
			abort();
	}
	close(descriptor);
	return 0;
}
