/* Fingerprints over streams of bytes; side_names.h says what each function promises. */
#include "snapshot/side_names.h"

#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

/* XXH3_state_t wants more alignment than malloc() gives. */
struct side_stream {
	XXH3_state_t *state;
};

struct side_sum {
	struct side_stream *stream;
};

struct side_stream *side_stream_new(void)
{
	struct side_stream *stream = calloc(1, sizeof(*stream));

	if (stream)
		stream->state = XXH3_createState();
	if (!stream || !stream->state) {
		free(stream);
		return NULL;
	}
	side_stream_restart(stream);
	return stream;
}

void side_stream_restart(struct side_stream *stream)
{
	XXH3_64bits_reset(stream->state);
}

void side_stream_add(struct side_stream *stream, const void *bytes, size_t count)
{
	XXH3_64bits_update(stream->state, bytes, count);
}

uint64_t side_stream_print(const struct side_stream *stream)
{
	return XXH3_64bits_digest(stream->state);
}

void side_stream_free(struct side_stream *stream)
{
	if (stream)
		XXH3_freeState(stream->state);
	free(stream);
}

/* ---- the side file as a whole ---- */

struct side_sum *side_sum_new(void)
{
	struct side_sum *sum = calloc(1, sizeof(*sum));

	if (sum)
		sum->stream = side_stream_new();
	if (!sum || !sum->stream) {
		free(sum);
		return NULL;
	}
	return sum;
}

/* Little-endian whatever the machine. */
static void add_number(struct side_sum *sum, uint64_t number)
{
	unsigned char bytes[8];

	for (int i = 0; i < 8; i++)
		bytes[i] = (unsigned char)(number >> 8 * i);
	side_stream_add(sum->stream, bytes, sizeof(bytes));
}

static void add_text(struct side_sum *sum, const char *text)
{
	side_stream_add(sum->stream, text, strlen(text) + 1);
}

void side_sum_tensor(struct side_sum *sum, const char *name, enum safetensors_dtype dtype,
        uint32_t rank, const uint64_t *shape, uint64_t print)
{
	add_text(sum, name);
	add_text(sum, safetensors_dtype_name(dtype));
	for (uint32_t i = 0; i < rank; i++)
		add_number(sum, shape[i]);
	add_number(sum, print);
}

void side_sum_metadata(struct side_sum *sum, const char *key, const char *value)
{
	add_text(sum, key);
	add_text(sum, value);
}

uint64_t side_sum_end(struct side_sum *sum)
{
	uint64_t print = side_stream_print(sum->stream);

	side_stream_free(sum->stream);
	free(sum);
	return print;
}
