/* Rows of either side of a comparison, in the order of the pairs. */
#include "snapshot/diff/diff.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const struct saved_tensor *diff_tensor(const struct diff_source *source, int32_t part)
{
	if (source->other_layout)
		return &source->other_layout[part];
	return &source->cache->parts[part].layers[source->layer].tensor[source->tensor];
}

bool diff_buffers_make(struct diff_buffers *buffers)
{
	bool good = true;

	memset(buffers, 0, sizeof(*buffers));
	for (int side = 0; side < 2; side++) {
		buffers->values[side] = malloc(DIFF_BUFFER_FLOATS * sizeof(float));
		buffers->bytes[side] = malloc(DIFF_BUFFER_BYTES);
		good = good && buffers->values[side] && buffers->bytes[side];
	}
	buffers->span = malloc(DIFF_SPAN_BYTES);
	buffers->distances = malloc(DIFF_DISTANCES_MAX * diff_distance_bytes());
	buffers->differs = malloc(DIFF_DISTANCES_MAX * sizeof(*buffers->differs));
	return good && buffers->span && buffers->distances && buffers->differs;
}

void diff_buffers_free(struct diff_buffers *buffers)
{
	for (int side = 0; side < 2; side++) {
		free(buffers->values[side]);
		free(buffers->bytes[side]);
	}
	free(buffers->span);
	free(buffers->distances);
	free(buffers->differs);
}

int64_t diff_run_of_rows(const struct diff_pair *pairs, int side, int64_t first, int64_t count)
{
	int64_t end = first + 1;

	while (end < count && pairs[end].side[side].part == pairs[first].side[side].part &&
	        pairs[end].side[side].row == pairs[end - 1].side[side].row + 1)
		end++;
	return end - first;
}

/* Pairs from 'first' on in one part whose rows lie so close together that reading the whole span is
 * cheaper than reading run by run; 0 if there are no two runs to join. */
static int64_t span_of_rows(const struct diff_pair *pairs, int side, int64_t first, int64_t count,
        size_t row_bytes, int32_t *low_out, int32_t *high_out)
{
	int32_t low = pairs[first].side[side].row, high = low;
	int64_t end = first;

	for (; end < count; end++) {
		struct diff_place place = pairs[end].side[side];
		if (place.part != pairs[first].side[side].part)
			break;
		low = place.row < low ? place.row : low;
		high = place.row > high ? place.row : high;
	}
	*low_out = low;
	*high_out = high;
	if ((int64_t)high - low + 1 > 4 * (end - first) ||
	        ((size_t)(high - low) + 1) * row_bytes > DIFF_SPAN_BYTES)
		return 0;
	return end - first;
}

int diff_read_bytes(const struct diff_source *source, const struct diff_pair *pairs, int side,
        int64_t count, unsigned char *out, unsigned char *span, struct saved_error *error)
{
	for (int64_t at = 0; at < count;) {
		struct diff_place first = pairs[at].side[side];
		const struct saved_tensor *tensor = diff_tensor(source, first.part);
		size_t row_bytes = saved_row_bytes(tensor);
		int64_t run = diff_run_of_rows(pairs, side, at, count), joined;
		int32_t low = 0, high = 0;
		joined = run == count - at
		                 ? 0
		                 : span_of_rows(pairs, side, at, count, row_bytes, &low, &high);
		if (joined <= run) {
			if (saved_read_bytes(tensor, first.row, run, out, error) != 0)
				return -1;
			out += (size_t)run * row_bytes;
			at += run;
			continue;
		}
		if (saved_read_bytes(tensor, low, high - low + 1, span, error) != 0)
			return -1;
		for (int64_t i = 0; i < joined; i++, out += row_bytes)
			memcpy(out, span + (size_t)(pairs[at + i].side[side].row - low) * row_bytes,
			        row_bytes);
		at += joined;
	}
	return 0;
}

void diff_hadamard(float *values, int64_t count, int64_t block)
{
	float scale = 1.0f / sqrtf((float)block);

	for (int64_t first = 0; first + block <= count; first += block)
		for (int64_t half = 1; half < block; half *= 2)
			for (int64_t i = 0; i < block; i += 2 * half)
				for (int64_t j = first + i; j < first + i + half; j++) {
					float sum = values[j] + values[j + half];
					values[j + half] = values[j] - values[j + half];
					values[j] = sum;
				}
	for (int64_t i = 0; i < count; i++)
		values[i] *= scale;
}

void diff_values(const struct diff_source *source, int32_t part, const unsigned char *bytes,
        int64_t count, float *out)
{
	const struct saved_tensor *tensor = diff_tensor(source, part);

	saved_values(tensor, bytes, count, out);
	if (source->hadamard)
		diff_hadamard(out, count * tensor->heads * tensor->dim, source->hadamard);
}

int diff_read_values(const struct diff_source *source, const struct diff_pair *pairs, int side,
        int64_t count, struct diff_buffers *buffers, float *out, struct saved_error *error)
{
	for (int64_t i = 0; i < count; i++) {
		int32_t part = pairs[i].side[side].part;
		const struct saved_tensor *tensor = diff_tensor(source, part);
		if (diff_read_bytes(source, pairs + i, side, 1, buffers->bytes[side], buffers->span,
		            error) != 0)
			return -1;
		diff_values(source, part, buffers->bytes[side], 1, out);
		out += tensor->heads * tensor->dim;
	}
	return 0;
}
