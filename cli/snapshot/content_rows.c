/* Reading rows of equal tokens and undoing their rotation; content_rows.h says what for. */
#include "snapshot/content_rows.h"
#include "snapshot/content.h"
#include "snapshot/reader.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GROUP_MAX 256     /* rows of one token that are compared */
#define NEIGHBOURS_MAX 64 /* rows read in one piece, if one in four of them is wanted */
#define HADAMARD_BLOCK 64 /* the smallest; larger ones are doublings of it */

struct token_row {
	int64_t token;
	int64_t row;
};

static int order_token_rows(const void *left, const void *right)
{
	const struct token_row *a = left, *b = right;

	if (a->token != b->token)
		return a->token < b->token ? -1 : 1;
	return (a->row > b->row) - (a->row < b->row);
}

/* ---- which rows ---- */

static struct token_row *sort_tokens(const struct saved_part *part, int64_t *count)
{
	struct token_row *list = malloc(((size_t)part->row_count + 1) * sizeof(*list));

	*count = 0;
	for (int64_t row = 0; list && row < part->row_count; row++)
		if (part->tokens[row] >= 0 && saved_position(part, row) >= 0)
			list[(*count)++] = (struct token_row){ part->tokens[row], row };
	if (list)
		qsort(list, (size_t)*count, sizeof(*list), order_token_rows);
	return list;
}

static void choose_groups(
        struct content_rows *out, const struct token_row *list, int64_t count, int64_t most)
{
	for (int64_t i = 0, end; i < count; i = end) {
		int64_t taken;
		for (end = i + 1; end < count && list[end].token == list[i].token;)
			end++;
		taken = end - i < GROUP_MAX ? end - i : GROUP_MAX;
		if (taken < 2)
			continue;
		out->some_left_out |= taken < end - i || out->row_count + taken > most;
		if (out->row_count + taken > most)
			continue;
		out->groups[out->group_count++] =
		        (struct token_group){ list[i].token, out->row_count, taken };
		for (int64_t k = 0; k < taken; k++)
			out->rows[out->row_count++] = list[i + k].row;
	}
}

static int choose_rows(struct content_rows *out)
{
	size_t row_floats = (size_t)out->tensor->heads * (size_t)out->tensor->dim;
	int64_t most = (int64_t)(CONTENT_BYTES_MAX / sizeof(float) / row_floats), count;
	struct token_row *list = sort_tokens(out->part, &count);

	if (most > CONTENT_ROWS_MAX)
		most = CONTENT_ROWS_MAX;
	if (most > count)
		most = count;
	out->rows = malloc(((size_t)most + 1) * sizeof(*out->rows));
	out->groups = malloc(((size_t)most + 1) * sizeof(*out->groups));
	if (list && out->rows && out->groups)
		choose_groups(out, list, count, most);
	free(list);
	if (!list || !out->rows || !out->groups)
		return -1;
	out->values = malloc(((size_t)out->row_count + 1) * row_floats * sizeof(float));
	return out->values ? 0 : -1;
}

/* ---- their values ---- */

/* Members in the order of rows, so that neighbours in the file are read together. */
static struct token_row *members_by_row(const struct content_rows *rows)
{
	struct token_row *list = malloc(((size_t)rows->row_count + 1) * sizeof(*list));

	for (int64_t i = 0; list && i < rows->row_count; i++)
		list[i] = (struct token_row){ rows->rows[i], i };
	if (list)
		qsort(list, (size_t)rows->row_count, sizeof(*list), order_token_rows);
	return list;
}

static int read_values(struct content_rows *out, const struct token_row *list, float *piece,
        struct saved_error *error)
{
	size_t row_floats = (size_t)out->tensor->heads * (size_t)out->tensor->dim;

	for (int64_t i = 0, end; i < out->row_count; i = end) {
		int64_t first = list[i].token, last = first;
		for (end = i + 1; end < out->row_count; end++) {
			int64_t row = list[end].token;
			if (row - first >= NEIGHBOURS_MAX || row - last > 4)
				break;
			last = row;
		}
		if (saved_read_values(out->tensor, first, last - first + 1, piece, error) != 0)
			return -1;
		for (int64_t k = i; k < end; k++)
			memcpy(out->values + (size_t)list[k].row * row_floats,
			        piece + (size_t)(list[k].token - first) * row_floats,
			        row_floats * sizeof(float));
	}
	return 0;
}

int content_rows_read(struct content_rows *out, const struct saved_part *part,
        const struct saved_tensor *tensor, struct saved_error *error)
{
	size_t row_floats = (size_t)tensor->heads * (size_t)tensor->dim;
	struct token_row *list;
	float *piece;
	int failed;

	*out = (struct content_rows){ .part = part, .tensor = tensor };
	if (row_floats == 0 || row_floats > CONTENT_BYTES_MAX / sizeof(float) / NEIGHBOURS_MAX)
		return saved_fail(error, "snapshot-row-too-large", "row_too_large",
		        saved_file_path(tensor->plane.file), "row", -1,
		        "a row of %zu elements is too long to compare", row_floats);
	if (choose_rows(out) != 0)
		return saved_fail_memory(error, saved_file_path(tensor->plane.file));
	list = members_by_row(out);
	piece = malloc(NEIGHBOURS_MAX * row_floats * sizeof(float));
	failed = list && piece ? read_values(out, list, piece, error)
	                       : saved_fail_memory(error, saved_file_path(tensor->plane.file));
	free(list);
	free(piece);
	return failed;
}

void content_rows_free(struct content_rows *rows)
{
	free(rows->rows);
	free(rows->groups);
	free(rows->values);
	*rows = (struct content_rows){ 0 };
}

int64_t content_position(const struct content_rows *rows, int64_t member)
{
	return saved_position(rows->part, rows->rows[member]);
}

/* ---- undoing ---- */

/* The largest 64 * 2^n that divides the head. */
static int64_t hadamard_block(int64_t dim)
{
	int64_t block = HADAMARD_BLOCK;

	while (dim % (2 * block) == 0)
		block *= 2;
	return block;
}

/* Times the orthonormal Walsh-Hadamard matrix, which is its own inverse. */
static void undo_hadamard(float *head, int64_t dim)
{
	int64_t block = hadamard_block(dim);
	float scale = 1.0f / sqrtf((float)block);

	for (int64_t at = 0; at + block <= dim; at += block)
		for (int64_t half = 1; half < block; half *= 2)
			for (int64_t i = 0; i < block; i += 2 * half)
				for (int64_t k = at + i; k < at + i + half; k++) {
					float a = head[k], b = head[k + half];
					head[k] = a + b;
					head[k + half] = a - b;
				}
	for (int64_t i = 0; i < dim; i++)
		head[i] *= scale;
}

static void undo_rotation(float *head, const struct undoing *undoing, int64_t position)
{
	const kvc_rope *rope = &undoing->rope;
	int32_t pairs = rope->rotary_dim / 2;
	bool interleaved = rope->style == KVC_ROPE_INTERLEAVED;
	float *base = head + undoing->rotary_offset;

	for (int32_t i = 0; i < pairs; i++) {
		double angle = (double)position * rope->inv_freq[i];
		float c = (float)cos(angle), s = (float)sin(angle);
		float *x = base + (interleaved ? 2 * i : i);
		float *y = base + (interleaved ? 2 * i + 1 : i + pairs);
		float a = *x, b = *y;
		*x = a * c + b * s;
		*y = b * c - a * s;
	}
}

void content_head(float *out, const struct content_rows *rows, int64_t member, int64_t head,
        const struct undoing *undoing, int64_t position)
{
	int64_t dim = rows->tensor->dim;

	memcpy(out, rows->values + (member * rows->tensor->heads + head) * dim,
	        (size_t)dim * sizeof(*out));
	if (undoing->hadamard)
		undo_hadamard(out, dim);
	if (undoing->rotated)
		undo_rotation(out, undoing, position);
}

/* ---- comparing ---- */

/*
 * What may differ, in parts of the largest value of a head. Not only storage rounds: engines
 * compute rows of a prompt and of single tokens by different kernels, and rotate in low precision.
 */
static float tolerance_of(enum saved_type type)
{
	switch (type) {
	case SAVED_F64:
	case SAVED_F32:
		return 0.01f;
	case SAVED_F16:
		return 0.02f;
	case SAVED_BF16:
		return 0.04f;
	case SAVED_Q8_0:
		return 0.06f;
	case SAVED_F8_E4M3:
		return 0.2f;
	default:
		return 0.35f; /* 4 bits, e5m2 */
	}
}

bool content_agrees(
        const struct content_rows *rows, const float *a, const float *b, int64_t last_position)
{
	float largest = 0, difference = 0;
	/* Angles are computed in float32, so they are off by the position's own rounding. */
	float allowed = tolerance_of(rows->tensor->type) + (float)last_position * 3e-7f;

	for (int64_t i = 0; i < rows->tensor->dim; i++) {
		float size = fmaxf(fabsf(a[i]), fabsf(b[i]));
		float apart = fabsf(a[i] - b[i]);
		if (!isfinite(size) || !isfinite(apart))
			return false;
		largest = fmaxf(largest, size);
		difference = fmaxf(difference, apart);
	}
	return difference <= allowed * largest;
}
