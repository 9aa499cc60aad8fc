/*
 * Rows out of a described cache, packed. A tensor is a box of units (an element, or a block of a
 * quantised type) with a stride for each axis in the file; packed it lies as (row, head, unit).
 *
 * The axes are ordered by their stride in the file. As many of the inner ones as fit a buffer are
 * read in one piece, gaps included, and picked apart from there: so a transposed V costs one read
 * per channel, [heads, tokens, dim] one per head, and a row-major tensor one in all.
 */
#include "snapshot/reader.h"

#include <stdlib.h>
#include <string.h>

#define AXES 3
#define BUFFER_BYTES ((size_t)256 * 1024)
/* A piece may hold this many times the bytes that are wanted of it. */
#define WASTE_MAX 4

struct axis {
	uint64_t count;
	uint64_t stride; /* in the file */
	uint64_t packed; /* in the output */
};

/* Units of one plane: axes by rising stride in the file. */
struct box {
	const struct saved_file *file;
	uint64_t offset;
	size_t unit_bytes;
	struct axis axes[AXES];
};

/* ---- geometry ---- */

struct unit {
	int64_t elements;
	size_t bytes;
};

static struct unit unit_of(enum saved_type type, uint32_t element_bits)
{
	switch (type) {
	case SAVED_Q8_0:
		return (struct unit){ 32, 34 };
	case SAVED_Q4_0:
		return (struct unit){ 32, 18 };
	case SAVED_AFFINE:
		return (struct unit){ 32 / element_bits, 4 };
	default:
		return (struct unit){ 1, element_bits / 8 };
	}
}

static size_t type_bytes(enum saved_type type)
{
	switch (type) {
	case SAVED_F32:
		return 4;
	case SAVED_F64:
		return 8;
	case SAVED_F8_E4M3:
	case SAVED_F8_E5M2:
		return 1;
	default:
		return 2;
	}
}

/* Packed bytes of a head: units of the plane, then scales and biases of SAVED_AFFINE. */
static size_t plane_head_bytes(const struct saved_tensor *tensor)
{
	struct unit unit = unit_of(tensor->type, tensor->element_bits);

	return (size_t)(tensor->dim / unit.elements) * unit.bytes;
}

static size_t scale_head_bytes(const struct saved_tensor *tensor)
{
	if (tensor->type != SAVED_AFFINE)
		return 0;
	return (size_t)(tensor->dim / tensor->group_size) * type_bytes(tensor->scale_type);
}

static size_t head_bytes(const struct saved_tensor *tensor)
{
	return plane_head_bytes(tensor) + 2 * scale_head_bytes(tensor);
}

size_t saved_row_bytes(const struct saved_tensor *tensor)
{
	return (size_t)tensor->heads * head_bytes(tensor);
}

uint64_t saved_offset(const struct saved_tensor *tensor, int64_t row, int64_t head, int64_t element)
{
	const struct saved_plane *plane = &tensor->plane;
	struct unit unit = unit_of(tensor->type, tensor->element_bits);
	uint64_t offset = plane->offset;

	if (tensor->pages) {
		offset += tensor->pages[row / tensor->page_rows].offset;
		row %= tensor->page_rows;
	}
	return offset + (uint64_t)row * plane->row_stride + (uint64_t)head * plane->head_stride +
	       (uint64_t)(element / unit.elements) * plane->element_stride;
}

const char *saved_offset_file(const struct saved_tensor *tensor, int64_t row)
{
	const struct saved_file *file =
	        tensor->pages ? tensor->pages[row / tensor->page_rows].file : tensor->plane.file;

	return file && saved_file_is_one_of_many(file) ? saved_file_path(file) : NULL;
}

int64_t saved_position(const struct saved_part *part, int64_t row)
{
	return part->positions ? part->positions[row] : row;
}

int64_t saved_row_count(const struct saved_cache *cache)
{
	int64_t rows = 0;

	for (int64_t p = 0; p < cache->part_count; p++)
		rows += cache->parts[p].row_count;
	return rows;
}

int64_t saved_layer_count(const struct saved_cache *cache)
{
	const char *before = NULL; /* the name of the part before */
	int64_t layers = 0;

	for (int64_t p = 0; p < cache->part_count; p++) {
		const char *name = cache->parts[p].name ? cache->parts[p].name : "";
		if (!before || strcmp(name, before) != 0)
			layers += cache->parts[p].layer_count;
		before = name;
	}
	return layers;
}

/* ---- boxes ---- */

static void sort_axes(struct box *box)
{
	for (int i = 1; i < AXES; i++)
		for (int j = i; j > 0; j--) {
			struct axis *a = &box->axes[j - 1], *b = &box->axes[j], swapped = *a;
			/* An axis of one unit has no say; the innermost of the output wins a tie. */
			bool later = b->count == 1 ||
			             (a->count != 1 && (b->stride > a->stride ||
			                                       (b->stride == a->stride &&
			                                               b->packed >= a->packed)));
			if (later)
				break;
			*a = *b;
			*b = swapped;
		}
}

/* How many of the inner axes one read takes, and how many bytes of the file that are. */
static int axes_in_piece(const struct box *box, size_t *span_out)
{
	uint64_t wanted = box->unit_bytes, span = wanted;
	int taken = 0;

	for (; taken < AXES; taken++) {
		const struct axis *axis = &box->axes[taken];
		uint64_t longer;
		if (axis->count > 1 && axis->stride > BUFFER_BYTES)
			break;
		longer = span + (axis->count - 1) * axis->stride;
		if (axis->count > BUFFER_BYTES || longer > BUFFER_BYTES ||
		        longer > WASTE_MAX * wanted * axis->count)
			break;
		span = longer;
		wanted *= axis->count;
	}
	*span_out = (size_t)span;
	return taken;
}

static void move_unit(void *out, const unsigned char *from, size_t unit_bytes)
{
	switch (unit_bytes) { /* a fixed size is a plain move */
	case 1:
		memcpy(out, from, 1);
		break;
	case 2:
		memcpy(out, from, 2);
		break;
	case 4:
		memcpy(out, from, 4);
		break;
	default:
		memcpy(out, from, unit_bytes);
		break;
	}
}

/* Units of the inner 'taken' axes from a piece to their places. */
static void pick(const struct box *box, int taken, const unsigned char *piece, unsigned char *out)
{
	struct axis axes[AXES];

	for (int i = 0; i < AXES; i++)
		axes[i] = i < taken ? box->axes[i] : (struct axis){ 1, 0, 0 };
	for (uint64_t k = 0; k < axes[2].count; k++)
		for (uint64_t j = 0; j < axes[1].count; j++) {
			const unsigned char *from = piece + k * axes[2].stride + j * axes[1].stride;
			unsigned char *to = out + k * axes[2].packed + j * axes[1].packed;
			if (axes[0].stride == box->unit_bytes &&
			        axes[0].packed == box->unit_bytes) {
				memcpy(to, from, axes[0].count * box->unit_bytes);
				continue;
			}
			for (uint64_t i = 0; i < axes[0].count; i++)
				move_unit(to + i * axes[0].packed, from + i * axes[0].stride,
				        box->unit_bytes);
		}
}

/* The whole box lies in the file as it lies packed. */
static bool is_packed(const struct box *box)
{
	uint64_t bytes = box->unit_bytes;

	for (int i = 0; i < AXES; i++) {
		if (box->axes[i].count > 1 &&
		        (box->axes[i].stride != bytes || box->axes[i].packed != bytes))
			return false;
		bytes *= box->axes[i].count;
	}
	return true;
}

static int read_pieces(const struct box *box, unsigned char *out, struct saved_error *error)
{
	size_t span;
	int taken = axes_in_piece(box, &span);
	struct axis outer[AXES];
	unsigned char *piece = malloc(span);
	int failed = 0;

	if (!piece)
		return saved_fail_memory(error, saved_file_path(box->file));
	for (int i = 0; i < AXES; i++)
		outer[i] = i < taken ? (struct axis){ 1, 0, 0 } : box->axes[i];
	for (uint64_t k = 0; k < outer[2].count && !failed; k++)
		for (uint64_t j = 0; j < outer[1].count && !failed; j++)
			for (uint64_t i = 0; i < outer[0].count && !failed; i++) {
				uint64_t offset = box->offset + k * outer[2].stride +
				                  j * outer[1].stride + i * outer[0].stride;
				failed = saved_file_read(
				        box->file, offset, span, piece, "data", error);
				if (!failed)
					pick(box, taken, piece,
					        out + k * outer[2].packed + j * outer[1].packed +
					                i * outer[0].packed);
			}
	free(piece);
	return failed;
}

static int read_box(struct box *box, unsigned char *out, struct saved_error *error)
{
	uint64_t bytes = box->unit_bytes;

	for (int i = 0; i < AXES; i++)
		bytes *= box->axes[i].count;
	if (bytes == 0)
		return 0;
	sort_axes(box);
	if (is_packed(box))
		return saved_file_read(box->file, box->offset, (size_t)bytes, out, "data", error);
	/* An inner axis too long for the buffer is cut, so that it is not read unit by unit. */
	for (uint64_t most = BUFFER_BYTES / (box->axes[0].stride ? box->axes[0].stride : 1);
	        most > 0 && box->axes[0].count > most;) {
		struct box part = *box;
		part.axes[0].count = most;
		if (read_pieces(&part, out, error))
			return -1;
		box->axes[0].count -= most;
		box->offset += most * box->axes[0].stride;
		out += most * box->axes[0].packed;
	}
	return read_pieces(box, out, error);
}

/* ---- tensors ---- */

/* Rows of one plane that lie in one piece; packed heads are 'packed_head' bytes apart. */
static int read_plane(const struct saved_tensor *tensor, const struct saved_plane *plane,
        int64_t first, int64_t count, struct unit unit, int64_t units, unsigned char *out,
        struct saved_error *error)
{
	size_t packed_head = head_bytes(tensor);
	struct box box = { plane->file, plane->offset + (uint64_t)first * plane->row_stride,
		unit.bytes, { { 0 } } };

	box.axes[0] = (struct axis){ (uint64_t)units, plane->element_stride, unit.bytes };
	box.axes[1] = (struct axis){ (uint64_t)tensor->heads, plane->head_stride, packed_head };
	box.axes[2] = (struct axis){ (uint64_t)count, plane->row_stride,
		(uint64_t)tensor->heads * packed_head };
	return read_box(&box, out, error);
}

static int read_affine(const struct saved_tensor *tensor, int64_t first, int64_t count,
        unsigned char *out, struct saved_error *error)
{
	struct unit scale = { 1, type_bytes(tensor->scale_type) };
	int64_t groups = tensor->dim / tensor->group_size;

	out += plane_head_bytes(tensor);
	if (read_plane(tensor, &tensor->scales, first, count, scale, groups, out, error))
		return -1;
	out += scale_head_bytes(tensor);
	return read_plane(tensor, &tensor->biases, first, count, scale, groups, out, error);
}

int saved_read_bytes(const struct saved_tensor *tensor, int64_t first, int64_t count, void *out,
        struct saved_error *error)
{
	struct unit unit = unit_of(tensor->type, tensor->element_bits);
	size_t row_bytes = saved_row_bytes(tensor);
	int64_t units = tensor->dim / unit.elements;

	if (tensor->type == SAVED_AFFINE && read_affine(tensor, first, count, out, error))
		return -1;
	if (!tensor->pages)
		return read_plane(tensor, &tensor->plane, first, count, unit, units, out, error);
	while (count > 0) {
		struct saved_plane plane = tensor->plane;
		const struct saved_plane *page = &tensor->pages[first / tensor->page_rows];
		int64_t row = first % tensor->page_rows, rows = tensor->page_rows - row;
		rows = rows < count ? rows : count;
		plane.file = page->file;
		plane.offset += page->offset;
		if (read_plane(tensor, &plane, row, rows, unit, units, out, error))
			return -1;
		out = (unsigned char *)out + (size_t)rows * row_bytes;
		first += rows;
		count -= rows;
	}
	return 0;
}

/* ---- views ---- */

/* What a read costs besides its bytes, in bytes. */
#define READ_COST 4096

/* Heads lie as byte strings, apart from each other, in one piece of the file. */
static bool heads_lie_whole(const struct saved_tensor *tensor)
{
	const struct saved_plane *plane = &tensor->plane;
	struct unit unit = unit_of(tensor->type, tensor->element_bits);
	size_t bytes = head_bytes(tensor);

	return bytes > 0 && !tensor->pages && tensor->type != SAVED_AFFINE &&
	       (plane->element_stride == unit.bytes || tensor->dim == unit.elements) &&
	       plane->row_stride >= bytes && (plane->head_stride >= bytes || tensor->heads == 1);
}

/* From the first byte of the first head to the last of the last. */
static uint64_t span_of(const struct saved_tensor *tensor, struct saved_reach reach)
{
	return (uint64_t)(reach.rows - 1) * tensor->plane.row_stride +
	       (uint64_t)(reach.heads - 1) * tensor->plane.head_stride + head_bytes(tensor);
}

/* As many rows of so many heads as fit; none if not one does. */
static struct saved_reach reach_of(
        const struct saved_tensor *tensor, int64_t heads, size_t buffer_bytes)
{
	uint64_t row = span_of(tensor, (struct saved_reach){ 1, heads, false });

	if (row > buffer_bytes)
		return (struct saved_reach){ 0, heads, false };
	return (struct saved_reach){ 1 + (int64_t)((buffer_bytes - row) / tensor->plane.row_stride),
		heads, false };
}

/* Bytes that a read takes for each that is wanted. */
static double cost_of(const struct saved_tensor *tensor, struct saved_reach reach)
{
	return (double)(span_of(tensor, reach) + READ_COST) /
	       ((double)reach.rows * (double)reach.heads * (double)head_bytes(tensor));
}

static void take_cheaper(
        struct saved_reach *best, const struct saved_tensor *tensor, struct saved_reach other)
{
	if (other.rows > 0 && cost_of(tensor, other) < cost_of(tensor, *best))
		*best = other;
}

struct saved_reach saved_view_reach(const struct saved_tensor *tensor, size_t *buffer_bytes)
{
	bool whole = heads_lie_whole(tensor);
	size_t least = whole ? head_bytes(tensor) : saved_row_bytes(tensor);
	struct saved_reach best = { 1, 1, false }, all;

	if (*buffer_bytes < least)
		*buffer_bytes = least;
	if (!whole)
		return (struct saved_reach){ least ? (int64_t)(*buffer_bytes / least) : 1,
			tensor->heads, true };
	all = reach_of(tensor, tensor->heads, *buffer_bytes);
	take_cheaper(&best, tensor, reach_of(tensor, 1, *buffer_bytes));
	take_cheaper(&best, tensor, all);
	take_cheaper(&best, tensor, (struct saved_reach){ all.rows > 0, tensor->heads, false });
	best.together = best.heads == tensor->heads &&
	                (tensor->heads == 1 || tensor->plane.head_stride == head_bytes(tensor));
	return best;
}

int saved_view_read(struct saved_view *out, const struct saved_tensor *tensor, int64_t first,
        int64_t head, struct saved_reach reach, void *buffer, struct saved_error *error)
{
	const struct saved_plane *plane = &tensor->plane;

	if (!heads_lie_whole(tensor)) {
		*out = (struct saved_view){ buffer, saved_row_bytes(tensor), head_bytes(tensor) };
		return saved_read_bytes(tensor, first, reach.rows, buffer, error);
	}
	*out = (struct saved_view){ buffer, plane->row_stride, plane->head_stride };
	if (tensor->heads == 1)
		out->head_stride = head_bytes(tensor);
	return saved_file_read(plane->file,
	        plane->offset + (uint64_t)first * plane->row_stride +
	                (uint64_t)head * plane->head_stride,
	        (size_t)span_of(tensor, reach), buffer, "data", error);
}

int saved_read_values(const struct saved_tensor *tensor, int64_t first, int64_t count, float *out,
        struct saved_error *error)
{
	size_t row_bytes = saved_row_bytes(tensor);
	int64_t most =
	        row_bytes && row_bytes < BUFFER_BYTES ? (int64_t)(BUFFER_BYTES / row_bytes) : 1;
	unsigned char *bytes;
	int failed = 0;

	if (count <= 0 || row_bytes == 0)
		return 0;
	most = most < count ? most : count;
	bytes = malloc((size_t)most * row_bytes);
	if (!bytes)
		return saved_fail_memory(error, saved_file_path(tensor->plane.file));
	while (count > 0 && !failed) {
		int64_t rows = most < count ? most : count;
		failed = saved_read_bytes(tensor, first, rows, bytes, error);
		if (!failed)
			saved_values(tensor, bytes, rows, out);
		out += rows * tensor->heads * tensor->dim;
		first += rows;
		count -= rows;
	}
	free(bytes);
	return failed;
}
