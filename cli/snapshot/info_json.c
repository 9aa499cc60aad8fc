/* kvcanary info --json: all that is known of a cache but its rows. */
#include "json_line.h"
#include "snapshot/info.h"

#include <string.h>

static json_t *json_offset(uint64_t offset)
{
	return json_integer((json_int_t)offset);
}

static json_t *json_ids(const int64_t *ids, int64_t count)
{
	json_t *array = json_array();

	for (int64_t i = 0; i < count; i++)
		json_array_append_new(array, json_integer(ids[i]));
	return array;
}

/* [[first, last], ...] in the order of the rows: each run rises by one from row to row. */
static json_t *json_positions(const struct saved_part *part)
{
	json_t *runs = json_array();
	int64_t first = 0;

	for (int64_t row = 1; row <= part->row_count; row++) {
		int64_t last = saved_position(part, row - 1);
		if (row < part->row_count && saved_position(part, row) == last + 1)
			continue;
		json_array_append_new(
		        runs, json_pack("[I, I]", (json_int_t)saved_position(part, first),
		                      (json_int_t)last));
		first = row;
	}
	return runs;
}

/* {"0": rows, "1": rows}; null where the file has no ids. */
static json_t *json_sequences(const struct saved_part *part)
{
	json_t *counts;
	uint64_t total = part->sequences ? part->sequence_begin[part->row_count] : 0;

	if (!part->sequences)
		return json_null();
	counts = json_object();
	for (uint64_t i = 0; i < total; i++) {
		char name[16];
		json_t *count;
		snprintf(name, sizeof(name), "%d", part->sequences[i]);
		count = json_object_get(counts, name);
		if (count)
			json_integer_set(count, json_integer_value(count) + 1);
		else
			json_object_set_new(counts, name, json_integer(1));
	}
	return counts;
}

static json_t *json_tensor(const struct saved_tensor *tensor)
{
	json_t *object;

	if (!tensor->present)
		return json_null();
	object = json_pack("{s:o, s:I, s:I, s:I, s:o, s:b}", "type",
	        saved_json_text(tensor->type_name ? tensor->type_name : "?"), "heads",
	        (json_int_t)tensor->heads, "dim", (json_int_t)tensor->dim, "row_bytes",
	        (json_int_t)saved_row_bytes(tensor), "offset",
	        json_offset(saved_offset(tensor, 0, 0, 0)), "opaque", tensor->type == SAVED_OPAQUE);
	if (tensor->plane.element_stride > tensor->plane.row_stride)
		json_object_set_new(object, "transposed", json_true());
	if (tensor->hadamard_doubt)
		json_object_set_new(object, "hadamard_doubt", json_true());
	if (tensor->pages)
		json_object_set_new(object, "page_rows", json_integer(tensor->page_rows));
	return object;
}

static json_t *json_layer(const struct saved_layer *layer)
{
	json_t *object = json_pack("{s:I, s:b}", "layer", (json_int_t)layer->number,
	        "number_is_known", layer->number_is_known);

	if (layer->name)
		json_object_set_new(object, "name", saved_json_text(layer->name));
	json_object_set_new(object, "k", json_tensor(&layer->tensor[SAVED_K]));
	json_object_set_new(object, "v", json_tensor(&layer->tensor[SAVED_V]));
	return object;
}

static json_t *json_part(const struct saved_part *part)
{
	json_t *layers = json_array();
	json_t *object = json_pack("{s:o, s:I, s:I, s:I, s:o, s:b, s:o, s:o}", "part",
	        saved_json_text(part->name), "stream", (json_int_t)part->stream, "rows",
	        (json_int_t)part->row_count, "bytes", (json_int_t)info_part_bytes(part),
	        "positions", json_positions(part), "positions_stored", part->positions != NULL,
	        "sequences", json_sequences(part), "tokens",
	        part->tokens ? json_ids(part->tokens, part->row_count) : json_null());

	if (part->cell_tokens)
		json_object_set_new(
		        object, "cell_tokens", json_ids(part->cell_tokens, part->row_count));
	for (int64_t i = 0; i < part->layer_count; i++)
		json_array_append_new(layers, json_layer(&part->layers[i]));
	json_object_set_new(object, "layers", layers);
	return object;
}

static json_t *json_note(const struct saved_note *note)
{
	return json_pack("{s:s, s:I, s:b, s:o}", "kind", note->kind, "offset",
	        (json_int_t)note->offset, "damage", note->damage, "text",
	        saved_json_text(note->text));
}

static json_t *json_rope(const struct saved_rope *rope)
{
	if (rope->base <= 0)
		return json_null();
	return json_pack("{s:f, s:b, s:I, s:I}", "base", rope->base, "interleaved",
	        rope->interleaved, "rotary_dim", (json_int_t)rope->rotary_dim, "rotary_offset",
	        (json_int_t)rope->rotary_offset);
}

static json_t *json_origin(const struct saved_cache *cache)
{
	json_t *object = json_object();

	for (int64_t i = 0; i < cache->identity_count; i++)
		json_object_set_new(object, cache->identity[i].field,
		        saved_json_text(cache->identity[i].value));
	return object;
}

bool info_print_json(const struct saved_cache *cache, const struct saved_options *options)
{
	struct missing missing[MISSING_MAX];
	size_t missing_count = info_missing(missing, cache, options);
	json_t *parts = json_array(), *notes = json_array(), *lacks = json_array();
	json_t *object;

	for (int64_t i = 0; i < cache->part_count; i++)
		json_array_append_new(parts, json_part(&cache->parts[i]));
	for (int64_t i = 0; i < cache->note_count; i++)
		json_array_append_new(notes, json_note(&cache->notes[i]));
	for (size_t i = 0; i < missing_count; i++)
		json_array_append_new(lacks, json_string(missing[i].what));
	object = json_pack("{s:o, s:s, s:o, s:s?, s:I, s:o, s:o, s:o, s:o, s:o}", "file",
	        saved_json_text(cache->path), "format", cache->format, "version",
	        saved_json_text(cache->version), "writer", cache->writer, "bytes",
	        (json_int_t)cache->file_bytes, "tokens",
	        json_ids(cache->tokens, cache->token_count), "rope", json_rope(&cache->rope),
	        "parts", parts, "notes", notes, "missing", lacks);
	if (object && cache->identity_count > 0)
		json_object_set_new(object, "origin", json_origin(cache));
	if (!object)
		return false;
	cli_write_json(stdout, object, JSON_COMPACT); /* main() says if that failed */
	return true;
}
