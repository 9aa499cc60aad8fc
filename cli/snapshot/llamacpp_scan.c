/* One pass over the headers of a llama.cpp state file; llamacpp_scan.h says why in several shapes. */
#include "snapshot/llamacpp_scan.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* LLAMA_MAX_SEQ is 256 at most so far; streams and sequence ids are below it. */
#define SEQUENCES_MAX 4096
#define BLOCKS_MAX ((uint64_t)1 << 18)
#define ROW_BYTES_MAX ((uint64_t)1 << 30)
#define ARCH_BYTES_MAX 256
#define OUTPUTS_MAX ((uint64_t)1 << 22)
#define OUTPUT_VALUES_MAX ((uint64_t)1 << 40)
#define IDS_MAX (2u << 22) /* of all cells together */
#define NO_INDEX UINT32_MAX
#define BLOCK_HEADER_BYTES 12

/* ---- types ---- */

static const struct ggml_type_row ggml_types[] = {
	{ 0, "f32", 1, 4, SAVED_F32 },
	{ 1, "f16", 1, 2, SAVED_F16 },
	{ 2, "q4_0", 32, 18, SAVED_Q4_0 },
	{ 3, "q4_1", 32, 20, SAVED_OPAQUE },
	{ 6, "q5_0", 32, 22, SAVED_OPAQUE },
	{ 7, "q5_1", 32, 24, SAVED_OPAQUE },
	{ 8, "q8_0", 32, 34, SAVED_Q8_0 },
	{ 20, "iq4_nl", 32, 18, SAVED_OPAQUE },
	{ 30, "bf16", 1, 2, SAVED_BF16 },
};

const struct ggml_type_row *ggml_type_find(uint32_t id)
{
	for (size_t i = 0; i < sizeof(ggml_types) / sizeof(ggml_types[0]); i++)
		if (ggml_types[i].id == id)
			return &ggml_types[i];
	return NULL;
}

/* ---- shapes ---- */

/* What follows the tokens, the usual first. */
static const struct {
	bool has_v;
	int cache_count;
	bool recurrent;
} tails[] = {
	{ true, 1, false },
	{ true, 2, false },
	{ false, 1, false },
	{ true, 1, true },
	{ false, 2, false },
	{ false, 1, true },
	{ true, 2, true },
};
#define TAIL_COUNT (sizeof(tails) / sizeof(tails[0]))

/* How the builds of a version write what comes before; newest first. */
struct era {
	bool outputs, stream_count;
	uint32_t ext_bytes;
};
#define ERAS_MAX 6

static const struct era_list {
	size_t count;
	struct era eras[ERAS_MAX];
} new_eras = { 2, { { false, true, 0 }, { false, true, 12 } } },
  old_context_eras = { 6, { { false, true, 0 }, { false, true, 8 }, { true, true, 0 },
	                          { true, false, 0 }, { true, true, 8 }, { false, false, 0 } } },
  old_sequence_eras = { 3, { { false, true, 0 }, { false, true, 8 }, { false, false, 0 } } },
  blob_eras = { 4,
	  { { false, true, 0 }, { false, true, 12 }, { false, true, 8 }, { false, false, 0 } } };

static const struct era_list *eras_of(enum llama_container container, uint32_t version)
{
	if (container == LLAMA_BLOB)
		return &blob_eras;
	if (container == LLAMA_CTX)
		return version < 10 ? &old_context_eras : &new_eras;
	return version < 3 ? &old_sequence_eras : &new_eras;
}

/* Recurrent state alone comes last: it looks like a cache without n_stream, and is rarer. */
bool llama_shape_at(
        struct llama_shape *out, enum llama_container container, uint32_t version, size_t index)
{
	const struct era_list *list = eras_of(container, version);
	size_t cached = TAIL_COUNT * list->count;

	if (index >= cached) {
		bool outputs = index > cached;
		*out = (struct llama_shape){ .outputs = outputs, .recurrent = true };
		return index == cached || (index == cached + 1 && list == &old_context_eras);
	}
	*out = (struct llama_shape){
		.outputs = list->eras[index / TAIL_COUNT].outputs,
		.stream_count = list->eras[index / TAIL_COUNT].stream_count,
		.ext_bytes = list->eras[index / TAIL_COUNT].ext_bytes,
		.has_v = tails[index % TAIL_COUNT].has_v,
		.cache_count = tails[index % TAIL_COUNT].cache_count,
		.recurrent = tails[index % TAIL_COUNT].recurrent,
	};
	return true;
}

bool llama_version_is_sure(enum llama_container container, uint32_t version)
{
	return eras_of(container, version) == &new_eras;
}

/* ---- faults ---- */

static const struct {
	const char *kind, *slug;
} fault_kinds_of_slugs[] = {
	{ "truncated", "snapshot-truncated" },
	{ "trailing", "snapshot-trailing-bytes" },
	{ "count_too_large", "snapshot-count" },
	{ "count_out_of_range", "snapshot-count" },
	{ "value_out_of_range", "snapshot-value" },
	{ "type_unknown", "snapshot-type" },
	{ "type_size_mismatch", "snapshot-type" },
};

static void name_field(char *out, size_t out_bytes, const char *name, uint32_t index)
{
	const char *rest = strchr(name, '#');

	if (rest)
		snprintf(out, out_bytes, "%.*s[%u]%s", (int)(rest - name), name, index, rest + 1);
	else
		snprintf(out, out_bytes, "%s", name);
}

/* 'name' may have a # where "[index]" belongs. Returns false. */
static bool fail_field(struct llama_scan *scan, const char *kind, const char *name, uint32_t index,
        uint64_t offset, const char *reason, ...) __attribute__((format(printf, 6, 7)));

static bool fail_field(struct llama_scan *scan, const char *kind, const char *name, uint32_t index,
        uint64_t offset, const char *reason, ...)
{
	struct llama_fault *fault = &scan->fault;
	va_list arguments;

	fault->kind = kind;
	fault->is_sure = false;
	for (size_t i = 0; i < sizeof(fault_kinds_of_slugs) / sizeof(fault_kinds_of_slugs[0]); i++)
		if (strcmp(fault_kinds_of_slugs[i].kind, kind) == 0)
			fault->slug = fault_kinds_of_slugs[i].slug;
	name_field(fault->field, sizeof(fault->field), name, index);
	fault->offset = offset;
	va_start(arguments, reason);
	vsnprintf(fault->reason, sizeof(fault->reason), reason, arguments);
	va_end(arguments);
	return false;
}

static uint64_t rest_of(const struct llama_scan *scan)
{
	return saved_file_size(scan->file) - scan->at;
}

/* ---- fields ---- */

static bool fill_header_window(struct llama_scan *scan, size_t wanted)
{
	uint64_t rest = rest_of(scan);

	if (scan->at >= scan->window_at &&
	        scan->at + wanted <= scan->window_at + scan->window_bytes)
		return true;
	scan->window_bytes = rest < sizeof(scan->window) ? (size_t)rest : sizeof(scan->window);
	scan->window_at = scan->at;
	if (saved_file_read(scan->file, scan->at, scan->window_bytes, scan->window, "header",
	            &scan->error) == 0)
		return true;
	scan->window_bytes = 0;
	scan->unreadable = true;
	return false;
}

static bool take_field(
        struct llama_scan *scan, uint32_t width, const char *name, uint32_t index, uint64_t *out)
{
	const unsigned char *bytes;

	if (rest_of(scan) < width)
		return fail_field(scan, "truncated", name, index, scan->at,
		        "%u bytes are needed, %llu are left", width,
		        (unsigned long long)rest_of(scan));
	if (!fill_header_window(scan, width))
		return false;
	bytes = scan->window + (scan->at - scan->window_at);
	*out = width == 8 ? saved_u64(bytes) : saved_u32(bytes);
	if (scan->has_override && scan->override_offset == scan->at)
		*out = scan->override_value;
	if (scan->field_count < LLAMA_FIELDS_MAX && !scan->has_override) {
		struct llama_field *field = &scan->fields[scan->field_count++];
		field->offset = scan->at;
		field->value = *out;
		field->width = width;
		name_field(field->name, sizeof(field->name), name, index);
	}
	scan->fields_read++;
	scan->at += width;
	return true;
}

static bool take_u32(struct llama_scan *scan, const char *name, uint32_t index, uint32_t *out)
{
	uint64_t value = 0;
	bool good = take_field(scan, 4, name, index, &value);

	*out = (uint32_t)value;
	return good;
}

/* A count is impossible above its limit; below it a file that has no room for it was cut. */
static bool check_llama_count(struct llama_scan *scan, const char *name, uint32_t index,
        uint32_t width, uint64_t count, uint64_t most)
{
	if (count <= most)
		return true;
	return fail_field(scan, "count_too_large", name, index, scan->at - width,
	        "it is %llu, at most %llu are possible, and %llu bytes are left",
	        (unsigned long long)count, (unsigned long long)most,
	        (unsigned long long)rest_of(scan));
}

static bool skip_bytes(struct llama_scan *scan, const char *name, uint64_t bytes)
{
	if (bytes > rest_of(scan))
		return fail_field(scan, "truncated", name, NO_INDEX, scan->at,
		        "%llu bytes are needed, %llu are left", (unsigned long long)bytes,
		        (unsigned long long)rest_of(scan));
	scan->at += bytes;
	scan->fault.progress = scan->at;
	return true;
}

/* ---- growing lists: bounded by what the file has room for ---- */

static void *grown(void *list, size_t count, size_t *capacity, size_t bytes)
{
	size_t more = *capacity ? 2 * *capacity : 64;
	void *longer;

	if (count < *capacity)
		return list;
	longer = realloc(list, more * bytes);
	if (longer)
		*capacity = more;
	return longer;
}

static bool fail_scan_memory(struct llama_scan *scan)
{
	scan->unreadable = true;
	saved_fail_memory(&scan->error, saved_file_path(scan->file));
	return false;
}

static struct llama_part *add_part(struct llama_scan *scan)
{
	struct llama_layout *layout = &scan->layout;
	struct llama_part *parts =
	        grown(layout->parts, layout->part_count, &layout->part_capacity, sizeof(*parts));

	if (!parts) {
		fail_scan_memory(scan);
		return NULL;
	}
	layout->parts = parts;
	parts[layout->part_count] = (struct llama_part){ 0 };
	return &parts[layout->part_count++];
}

static bool add_block(struct llama_scan *scan, const struct llama_block *block)
{
	struct llama_layout *layout = &scan->layout;
	struct llama_block *blocks = grown(
	        layout->blocks, layout->block_count, &layout->block_capacity, sizeof(*blocks));

	if (!blocks)
		return fail_scan_memory(scan);
	layout->blocks = blocks;
	blocks[layout->block_count++] = *block;
	return true;
}

void llama_layout_free(struct llama_layout *layout)
{
	free(layout->parts);
	free(layout->blocks);
	*layout = (struct llama_layout){ 0 };
}

/* ---- cells ---- */

static bool take_cell(struct llama_scan *scan, uint32_t cell, uint32_t ext_bytes, uint32_t *ids)
{
	uint32_t position, count, id;

	if (!take_u32(scan, "pos", NO_INDEX, &position) ||
	        !take_u32(scan, "n_seq_id", NO_INDEX, &count))
		return false;
	if (count > SEQUENCES_MAX)
		return fail_field(scan, "count_too_large", "n_seq_id", NO_INDEX, scan->at - 4,
		        "cell %u is said to belong to %u sequences", cell, count);
	/* A cell of a context belongs to at least one; in the file of one sequence builds either wrote
	 * its id into every cell or into none. */
	if (scan->container == LLAMA_CTX ? count == 0 : count != scan->ids_of_cell)
		return fail_field(scan, "count_out_of_range", "n_seq_id", NO_INDEX, scan->at - 4,
		        "cell %u is said to belong to %u sequences", cell, count);
	if (rest_of(scan) < ext_bytes)
		return fail_field(scan, "truncated", "ext", NO_INDEX, scan->at,
		        "%u bytes of cell %u are needed, %llu are left", ext_bytes, cell,
		        (unsigned long long)rest_of(scan));
	scan->at += ext_bytes;
	for (uint32_t i = 0; i < count; i++) {
		if (!take_u32(scan, "seq_id", NO_INDEX, &id))
			return false;
		if (id >= SEQUENCES_MAX)
			return fail_field(scan, "value_out_of_range", "seq_id", NO_INDEX,
			        scan->at - 4, "cell %u is said to belong to sequence %d", cell,
			        (int32_t)id);
		scan->id_repeats = scan->id_repeats || (cell > 0 && id == scan->previous_id);
		scan->previous_id = id;
	}
	*ids += count;
	scan->fault.progress = scan->at;
	return true;
}

static bool take_cells(
        struct llama_scan *scan, uint32_t ext_bytes, uint32_t *count_out, uint32_t *ids_out)
{
	uint32_t count;

	*ids_out = 0;
	scan->id_repeats = false;
	if (!take_u32(scan, "cell_count", NO_INDEX, &count) ||
	        !check_llama_count(scan, "cell_count", NO_INDEX, 4, count, SAVED_CELLS_MAX))
		return false;
	if (count > rest_of(scan) / (8 + ext_bytes))
		return fail_field(scan, "truncated", "cells", NO_INDEX, scan->at,
		        "%u cells are announced, %llu bytes are left", count,
		        (unsigned long long)rest_of(scan));
	for (uint32_t i = 0; i < count; i++) {
		if (!take_cell(scan, i, ext_bytes, ids_out))
			return false;
		if (*ids_out > IDS_MAX)
			return fail_field(scan, "count_too_large", "n_seq_id", NO_INDEX, scan->at,
			        "cells belong to more than %u sequences together", IDS_MAX);
	}
	*count_out = count;
	return true;
}

/* ---- blocks ---- */

struct block_names {
	const char *type, *row_bytes, *el_bytes, *width, *data;
};
static const struct block_names k_names = { "K#.type", "K#.row_bytes", "", "", "K#" };
/* Whether there is a V at all shows only by where the file ends, hence no layer in its name. */
static const struct block_names v_names = { "V#.type", "V#.row_bytes", "V#.el_bytes", "V#.n_embd",
	"V" };
static const struct block_names r_names = { "R#.type", "R#.row_bytes", "", "", "R#" };

static bool take_type(
        struct llama_scan *scan, const char *name, uint32_t index, const struct ggml_type_row **out)
{
	uint64_t at = scan->at;
	uint32_t id;

	if (!take_u32(scan, name, index, &id))
		return false;
	*out = ggml_type_find(id);
	if (!*out)
		return fail_field(scan, "type_unknown", name, index, at,
		        "%d is no ggml type of a cache", (int32_t)id);
	scan->fault.progress = scan->at;
	return true;
}

/* A block like the one before: whoever got here was not led astray. */
static bool is_like_the_last(const struct llama_scan *scan, const struct llama_block *block)
{
	const struct llama_layout *layout = &scan->layout;
	const struct llama_block *last;

	if (layout->block_count == 0)
		return false;
	last = &layout->blocks[layout->block_count - 1];
	return last->type == block->type && last->row_bytes == block->row_bytes;
}

/* The bytes of a block, 'unit' of them for each of 'count' cells or channels. */
static bool take_data(struct llama_scan *scan, const struct block_names *names, uint32_t layer,
        struct llama_block *block, uint64_t unit, uint64_t count)
{
	bool is_v = names == &v_names;
	unsigned long long bytes = unit * count;

	block->data = scan->at;
	scan->fault.progress = scan->at;
	if (bytes > rest_of(scan)) {
		fail_field(scan, "truncated", names->data, layer,
		        is_v ? saved_file_size(scan->file) : scan->at,
		        "%llu bytes of layer %u are needed at %llu, %llu are left", bytes, layer,
		        (unsigned long long)scan->at, (unsigned long long)rest_of(scan));
		scan->fault.is_sure = rest_of(scan) > 0 && is_like_the_last(scan, block);
		return false;
	}
	scan->at += bytes;
	scan->fault.progress = scan->at;
	return add_block(scan, block);
}

static bool take_rows(struct llama_scan *scan, const struct block_names *names, uint32_t layer,
        uint32_t cell_count)
{
	struct llama_block block = { .header = scan->at };
	const struct ggml_type_row *type;
	uint64_t at;

	if (names == &v_names && rest_of(scan) < BLOCK_HEADER_BYTES)
		return fail_field(scan, "truncated", "V", layer, saved_file_size(scan->file),
		        "the header of layer %u is needed at %llu, %llu bytes are left", layer,
		        (unsigned long long)scan->at, (unsigned long long)rest_of(scan));
	if (!take_type(scan, names->type, layer, &type))
		return false;
	at = scan->at;
	if (!take_field(scan, 8, names->row_bytes, layer, &block.row_bytes))
		return false;
	block.type = type->id;
	if (block.row_bytes == 0)
		return fail_field(
		        scan, "value_out_of_range", names->row_bytes, layer, at, "it is 0");
	if (!check_llama_count(scan, names->row_bytes, layer, 8, block.row_bytes, ROW_BYTES_MAX))
		return false;
	if (block.row_bytes % type->bytes != 0)
		return fail_field(scan, "type_size_mismatch", names->row_bytes, layer, at,
		        "it is %llu, no multiple of the %u bytes of %s",
		        (unsigned long long)block.row_bytes, type->bytes, type->name);
	return take_data(scan, names, layer, &block, block.row_bytes, cell_count);
}

static bool take_channels(struct llama_scan *scan, uint32_t layer, uint32_t cell_count)
{
	struct llama_block block = { .header = scan->at };
	const struct block_names *names = &v_names;
	const struct ggml_type_row *type;
	uint32_t el_bytes;

	if (rest_of(scan) < BLOCK_HEADER_BYTES)
		return fail_field(scan, "truncated", "V", layer, saved_file_size(scan->file),
		        "the header of layer %u is needed at %llu, %llu bytes are left", layer,
		        (unsigned long long)scan->at, (unsigned long long)rest_of(scan));
	if (!take_type(scan, names->type, layer, &type) ||
	        !take_u32(scan, names->el_bytes, layer, &el_bytes))
		return false;
	if (type->elements != 1 || el_bytes != type->bytes)
		return fail_field(scan, "type_size_mismatch", names->el_bytes, layer, scan->at - 4,
		        "it is %u, and an element of %s has %u bytes%s", el_bytes, type->name,
		        type->bytes, type->elements == 1 ? "" : " in a block");
	if (!take_u32(scan, names->width, layer, &block.width))
		return false;
	block.type = type->id;
	block.row_bytes = (uint64_t)block.width * el_bytes;
	if (block.width == 0)
		return fail_field(
		        scan, "value_out_of_range", names->width, layer, scan->at - 4, "it is 0");
	if (!check_llama_count(scan, names->width, layer, 4, block.width, ROW_BYTES_MAX / el_bytes))
		return false;
	return take_data(scan, names, layer, &block, block.row_bytes, cell_count);
}

/* ---- caches ---- */

static bool take_layer_count(struct llama_scan *scan, uint32_t *out)
{
	if (!take_u32(scan, "n_layer", NO_INDEX, out))
		return false;
	if (*out == 0)
		return fail_field(
		        scan, "count_out_of_range", "n_layer", NO_INDEX, scan->at - 4, "it is 0");
	if (!check_llama_count(scan, "n_layer", NO_INDEX, 4, *out, SAVED_LAYERS_MAX))
		return false;
	return check_llama_count(scan, "n_layer", NO_INDEX, 4,
	        scan->layout.block_count + 2 * (size_t)*out, BLOCKS_MAX);
}

static bool take_layers(
        struct llama_scan *scan, const struct llama_shape *shape, struct llama_part *part)
{
	uint32_t cell_count = part->cell_count, layer_count, v_trans;

	if (!take_u32(scan, "v_trans", NO_INDEX, &v_trans))
		return false;
	if (v_trans > 1)
		return fail_field(scan, "value_out_of_range", "v_trans", NO_INDEX, scan->at - 4,
		        "it is %u, and can be 0 or 1", v_trans);
	if (!take_layer_count(scan, &layer_count))
		return false;
	part->v_trans = v_trans;
	part->layer_count = layer_count;
	part->first_block = scan->layout.block_count;
	for (uint32_t i = 0; i < layer_count; i++)
		if (!take_rows(scan, &k_names, i, cell_count))
			return false;
	for (uint32_t i = 0; shape->has_v && i < layer_count; i++)
		if (v_trans ? !take_channels(scan, i, cell_count)
		            : !take_rows(scan, &v_names, i, cell_count))
			return false;
	return true;
}

static bool take_stream(
        struct llama_scan *scan, const struct llama_shape *shape, int cache, uint32_t stream)
{
	struct llama_part *part = add_part(scan);

	if (!part)
		return false;
	part->cache = cache;
	part->stream = stream;
	part->cells = scan->at + 4;
	scan->ids_of_cell = shape->stream_count ? 1 : 0;
	if (!take_cells(scan, shape->ext_bytes, &part->cell_count, &part->sequence_count))
		return false;
	if (part->cell_count == 0 && shape->stream_count)
		return true; /* nothing follows */
	return take_layers(scan, shape, part);
}

static bool take_cache(struct llama_scan *scan, const struct llama_shape *shape, int cache)
{
	uint32_t stream_count = 1;

	if (shape->stream_count) {
		if (!take_u32(scan, "n_stream", NO_INDEX, &stream_count))
			return false;
		if (stream_count == 0)
			return fail_field(scan, "count_out_of_range", "n_stream", NO_INDEX,
			        scan->at - 4, "it is 0");
		if (!check_llama_count(scan, "n_stream", NO_INDEX, 4, stream_count, SEQUENCES_MAX))
			return false;
	}
	for (uint32_t i = 0; i < stream_count; i++)
		if (!take_stream(scan, shape, cache, i))
			return false;
	return true;
}

/* Records up to the end of the file: the number of layers that have any is not stored. */
static bool take_recurrent(struct llama_scan *scan)
{
	struct llama_layout *layout = &scan->layout;
	uint32_t ids, s_trans;

	layout->recurrent = scan->at;
	scan->ids_of_cell = 0;
	if (!take_cells(scan, 0, &layout->recurrent_cells, &ids))
		return false;
	if (layout->recurrent_cells == 0)
		return fail_field(scan, "count_out_of_range", "cell_count", NO_INDEX,
		        layout->recurrent, "it is 0");
	/* One state of a sequence: so a cache of several cells is not taken for recurrent state. */
	if (scan->container == LLAMA_CTX ? scan->id_repeats : layout->recurrent_cells > 1)
		return fail_field(scan, "count_out_of_range", "cell_count", NO_INDEX,
		        layout->recurrent, "%u states of one sequence", layout->recurrent_cells);
	if (!take_u32(scan, "s_trans", NO_INDEX, &s_trans))
		return false;
	if (s_trans != 0)
		return fail_field(scan, "value_out_of_range", "s_trans", NO_INDEX, scan->at - 4,
		        "it is %u, and can only be 0", s_trans);
	if (!take_layer_count(scan, &layout->recurrent_layers))
		return false;
	layout->recurrent_block = layout->block_count;
	for (uint32_t i = 0; rest_of(scan) > 0 || i == 0; i++) {
		if (i == 2 * layout->recurrent_layers)
			return true;
		if (!take_rows(scan, &r_names, i, layout->recurrent_cells))
			return false;
		layout->recurrent_count++;
	}
	return true;
}

/* ---- the whole file ---- */

static bool take_outputs(struct llama_scan *scan)
{
	uint32_t output_count;
	uint64_t count;

	if (!take_u32(scan, "n_outputs", NO_INDEX, &output_count) ||
	        !check_llama_count(scan, "n_outputs", NO_INDEX, 4, output_count, OUTPUTS_MAX) ||
	        !skip_bytes(scan, "outputs", 4 * (uint64_t)output_count) ||
	        !take_field(scan, 8, "n_logits", NO_INDEX, &count) ||
	        !check_llama_count(scan, "n_logits", NO_INDEX, 8, count, OUTPUT_VALUES_MAX) ||
	        !skip_bytes(scan, "logits", 4 * count) ||
	        !take_field(scan, 8, "n_embd", NO_INDEX, &count) ||
	        !check_llama_count(scan, "n_embd", NO_INDEX, 8, count, OUTPUT_VALUES_MAX))
		return false;
	return skip_bytes(scan, "embeddings", 4 * count);
}

static bool take_head(struct llama_scan *scan, const struct llama_shape *shape)
{
	struct llama_layout *layout = &scan->layout;
	uint32_t id;

	scan->at = scan->container == LLAMA_BLOB ? 4 : 8;
	if (scan->container == LLAMA_BLOB) {
		bool good = take_u32(scan, "seq_id", NO_INDEX, &id);
		layout->sequence_id = (int32_t)id;
		return good;
	}
	if (!take_u32(scan, "n_tok", NO_INDEX, &layout->token_count) ||
	        !check_llama_count(
	                scan, "n_tok", NO_INDEX, 4, layout->token_count, SAVED_CELLS_MAX))
		return false;
	layout->tokens = scan->at;
	if (!skip_bytes(scan, "tokens", 4 * (uint64_t)layout->token_count))
		return false;
	if (scan->container == LLAMA_SEQ)
		return true;
	if (!take_u32(scan, "arch length", NO_INDEX, &layout->arch_bytes) ||
	        !check_llama_count(
	                scan, "arch length", NO_INDEX, 4, layout->arch_bytes, ARCH_BYTES_MAX))
		return false;
	layout->arch = scan->at;
	return skip_bytes(scan, "arch", layout->arch_bytes) &&
	       (!shape->outputs || take_outputs(scan));
}

bool llama_scan_shape(struct llama_scan *scan, const struct llama_shape *shape)
{
	struct llama_layout *layout = &scan->layout;
	size_t part_capacity = layout->part_capacity, block_capacity = layout->block_capacity;

	*layout = (struct llama_layout){ .parts = layout->parts,
		.blocks = layout->blocks,
		.part_capacity = part_capacity,
		.block_capacity = block_capacity };
	scan->fault.progress = 0;
	if (!scan->has_override)
		scan->field_count = 0;
	if (!take_head(scan, shape))
		return false;
	for (int i = 0; i < shape->cache_count; i++)
		if (!take_cache(scan, shape, i))
			return false;
	if (shape->recurrent && !take_recurrent(scan))
		return false;
	if (rest_of(scan) > 0)
		return fail_field(scan, "trailing", "end", NO_INDEX, scan->at, "%llu more follow",
		        (unsigned long long)rest_of(scan));
	return true;
}
