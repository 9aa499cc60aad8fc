/*
 * llama.cpp's state files: of a whole context ("ggsn"), of one sequence ("ggsq"), and the bytes of
 * llama_state_seq_get_data(). llamacpp_scan.c finds where everything lies; here it becomes a
 * described cache: cells, which token each holds, and layers.
 */
#include "snapshot/llamacpp_scan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC_CTX 0x6767736eu
#define MAGIC_SEQ 0x67677371u
#define MAGIC_BLOB 0xaf143cd8u
#define CELL_BUFFER_BYTES ((size_t)64 * 1024)

/* ---- detection ---- */

static bool begins_with(const struct saved_probe *probe, uint32_t magic)
{
	return probe->head_bytes >= 4 && saved_u32(probe->head) == magic;
}

bool llamacpp_seq_detect(const struct saved_probe *probe)
{
	return begins_with(probe, MAGIC_SEQ);
}

bool llamacpp_ctx_detect(const struct saved_probe *probe)
{
	return begins_with(probe, MAGIC_CTX);
}

bool llamacpp_blob_detect(const struct saved_probe *probe)
{
	return begins_with(probe, MAGIC_BLOB);
}

/* ---- cells ---- */

/* The part under construction; const only for those who use it. */
struct cell_lists {
	int64_t *positions, *tokens, *cell_tokens;
	int32_t *sequences;
	uint64_t *sequence_begin, *offsets;
};

/* Reads the bytes of cells in pieces. */
struct cell_reader {
	const struct saved_file *file;
	uint64_t at; /* next byte to hand out */
	uint64_t window_at;
	size_t window_bytes;
	unsigned char *window;
};

static const unsigned char *next_bytes(
        struct cell_reader *reader, size_t bytes, struct saved_error *error)
{
	const unsigned char *found;

	if (reader->at + bytes > reader->window_at + reader->window_bytes) {
		uint64_t rest = saved_file_size(reader->file) - reader->at;
		reader->window_at = reader->at;
		reader->window_bytes = rest < CELL_BUFFER_BYTES ? (size_t)rest : CELL_BUFFER_BYTES;
		if (bytes > reader->window_bytes ||
		        saved_file_read(reader->file, reader->at, reader->window_bytes,
		                reader->window, "cells", error)) {
			saved_fail(error, "cli-input-unreadable", "changed",
			        saved_file_path(reader->file), "cells", (int64_t)reader->at,
			        "it changed while it was read");
			return NULL;
		}
	}
	found = reader->window + (reader->at - reader->window_at);
	reader->at += bytes;
	return found;
}

/* The file may have changed since the scan, so ids are counted against what was allocated. */
static int read_cell_records(struct cell_reader *reader, const struct llama_part *part,
        uint32_t ext_bytes, struct cell_lists *lists, struct saved_error *error)
{
	uint32_t ids = 0;

	for (uint32_t i = 0; i < part->cell_count; i++) {
		const unsigned char *record;
		uint32_t count;
		lists->offsets[i] = reader->at;
		record = next_bytes(reader, 8, error);
		if (!record)
			return -1;
		lists->positions[i] = (int32_t)saved_u32(record);
		count = saved_u32(record + 4);
		if (count > part->sequence_count - ids)
			return saved_fail(error, "cli-input-unreadable", "changed",
			        saved_file_path(reader->file), "n_seq_id",
			        (int64_t)lists->offsets[i] + 4, "it changed while it was read");
		if (ext_bytes > 0) {
			record = next_bytes(reader, ext_bytes, error);
			if (!record)
				return -1;
			if (lists->cell_tokens)
				lists->cell_tokens[i] = (int32_t)saved_u32(record + 8);
		}
		lists->sequence_begin[i] = ids;
		for (uint32_t j = 0; j < count; j++) {
			record = next_bytes(reader, 4, error);
			if (!record)
				return -1;
			lists->sequences[ids++] = (int32_t)saved_u32(record);
		}
	}
	lists->sequence_begin[part->cell_count] = ids;
	return 0;
}

static int read_cells(struct saved_cache *cache, const struct llama_scan *scan,
        const struct llama_part *found, uint32_t ext_bytes, struct saved_part *part,
        struct cell_lists *lists, struct saved_error *error)
{
	struct cell_reader reader = { .file = scan->file, .at = found->cells };
	uint32_t count = found->cell_count;
	int code;

	lists->positions = saved_alloc(cache, count, sizeof(*lists->positions));
	lists->tokens = saved_alloc(cache, count, sizeof(*lists->tokens));
	lists->offsets = saved_alloc(cache, count, sizeof(*lists->offsets));
	lists->sequence_begin =
	        saved_alloc(cache, (uint64_t)count + 1, sizeof(*lists->sequence_begin));
	lists->sequences = saved_alloc(cache, found->sequence_count, sizeof(*lists->sequences));
	lists->cell_tokens =
	        ext_bytes == 12 ? saved_alloc(cache, count, sizeof(*lists->tokens)) : NULL;
	reader.window = malloc(CELL_BUFFER_BYTES);
	if (!lists->positions || !lists->tokens || !lists->offsets || !lists->sequence_begin ||
	        !lists->sequences || (ext_bytes == 12 && !lists->cell_tokens) || !reader.window) {
		free(reader.window);
		return saved_fail_memory(error, cache->path);
	}
	code = read_cell_records(&reader, found, ext_bytes, lists, error);
	free(reader.window);
	part->row_count = count;
	part->positions = lists->positions;
	part->cell_offsets = lists->offsets;
	part->cell_tokens = lists->cell_tokens;
	/* Old builds wrote no ids into a sequence's own file. */
	part->sequences = found->sequence_count > 0 ? lists->sequences : NULL;
	part->sequence_begin = found->sequence_count > 0 ? lists->sequence_begin : NULL;
	return code;
}

/* ---- which token a cell holds ---- */

static int compare_positions(const void *a, const void *b)
{
	int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;

	return (left > right) - (left < right);
}

static bool row_is_of(const struct saved_part *part, int64_t row, int32_t sequence)
{
	if (!part->sequences)
		return true;
	for (uint64_t i = part->sequence_begin[row]; i < part->sequence_begin[row + 1]; i++)
		if (part->sequences[i] == sequence)
			return true;
	return false;
}

/* The list is the caller's, of one sequence: in a context of several that with the lowest id. */
static int32_t listed_sequence(const struct saved_cache *cache)
{
	int32_t lowest = INT32_MAX;

	for (int64_t p = 0; p < cache->part_count; p++) {
		const struct saved_part *part = &cache->parts[p];
		for (int64_t row = 0; part->sequences && row < part->row_count; row++)
			for (uint64_t i = part->sequence_begin[row];
			        i < part->sequence_begin[row + 1]; i++)
				lowest = part->sequences[i] < lowest ? part->sequences[i] : lowest;
	}
	return lowest;
}

/* The distinct positions of that sequence, sorted; NULL if there are none or memory is short. */
static int64_t *distinct_positions(
        const struct saved_cache *cache, int32_t sequence, size_t *count_out)
{
	size_t count = 0, distinct = 0;
	int64_t *positions;

	for (int64_t p = 0; p < cache->part_count; p++)
		count += (size_t)cache->parts[p].row_count;
	positions = count ? malloc(count * sizeof(*positions)) : NULL;
	if (!positions)
		return NULL;
	count = 0;
	for (int64_t p = 0; p < cache->part_count; p++)
		for (int64_t row = 0; row < cache->parts[p].row_count; row++)
			if (row_is_of(&cache->parts[p], row, sequence))
				positions[count++] = cache->parts[p].positions[row];
	qsort(positions, count, sizeof(*positions), compare_positions);
	for (size_t i = 0; i < count; i++)
		if (i == 0 || positions[i] != positions[i - 1])
			positions[distinct++] = positions[i];
	*count_out = distinct;
	return positions;
}

/* A position is an index of the list, unless the list ends before it: after positions were removed
 * it is the rank among them, if there are as many as tokens, or one less (the last token is then
 * not decoded yet). Returns -1 where neither holds. */
static int64_t token_at(
        const struct saved_cache *cache, const int64_t *distinct, size_t count, int64_t position)
{
	const int64_t *found;
	bool is_index = distinct[0] >= 0 && distinct[count - 1] < cache->token_count;
	bool is_rank =
	        (int64_t)count == cache->token_count || (int64_t)count == cache->token_count - 1;

	if (is_index)
		return cache->tokens[position];
	if (!is_rank)
		return -1;
	found = bsearch(&position, distinct, count, sizeof(position), compare_positions);
	return found ? cache->tokens[found - distinct] : -1;
}

/* lists[p] are those of part p. */
static void assign_tokens(
        struct saved_cache *cache, struct saved_part *parts, const struct cell_lists *lists)
{
	int32_t sequence = listed_sequence(cache);
	size_t count = 0;
	int64_t *distinct =
	        cache->token_count > 0 ? distinct_positions(cache, sequence, &count) : NULL;

	for (int64_t p = 0; p < cache->part_count; p++) {
		bool known = false;
		for (int64_t row = 0; row < parts[p].row_count; row++) {
			int64_t token = -1;
			if (count > 0 && row_is_of(&parts[p], row, sequence))
				token = token_at(cache, distinct, count, parts[p].positions[row]);
			if (token < 0 && parts[p].cell_tokens)
				token = parts[p].cell_tokens[row];
			lists[p].tokens[row] = token;
			known = known || token >= 0;
		}
		parts[p].tokens = known ? lists[p].tokens : NULL;
	}
	free(distinct);
}

/* ---- layers ---- */

static int fail_heads(struct saved_error *error, const struct saved_cache *cache, int64_t heads,
        int64_t dim, const char *type)
{
	return saved_fail(error, "snapshot-value", "value_out_of_range", cache->path, "--heads", -1,
	        "%lld heads do not divide a row of %lld elements of %s", (long long)heads,
	        (long long)dim, type);
}

/* K, or V as it was computed: row after row. */
static int describe_tensor(const struct saved_cache *cache, const struct saved_file *file,
        const struct llama_block *block, uint32_t cell_count, int64_t heads,
        struct saved_tensor *out, struct saved_error *error)
{
	const struct ggml_type_row *type = ggml_type_find(block->type);
	bool is_opaque = type->type == SAVED_OPAQUE, transposed = block->width > 0;
	int64_t dim = is_opaque ? (int64_t)block->row_bytes
	                        : (int64_t)(block->row_bytes / type->bytes * type->elements);
	uint64_t unit = is_opaque ? 1 : type->bytes, head_units;

	*out = (struct saved_tensor){
		.type = type->type, .type_name = type->name, .present = true
	};
	heads = is_opaque ? 1 : heads;
	if (dim % (heads * type->elements) != 0 && !is_opaque)
		return fail_heads(error, cache, heads, dim, type->name);
	out->heads = heads;
	out->dim = dim / heads;
	out->element_bits = is_opaque ? 8 : type->elements == 1 ? 8 * type->bytes : type->bytes / 4;
	head_units = block->row_bytes / unit / (uint64_t)heads;
	out->plane.file = file;
	out->plane.offset = block->data;
	out->plane.row_stride = transposed ? unit : block->row_bytes;
	out->plane.element_stride = transposed ? unit * cell_count : unit;
	out->plane.head_stride = head_units * out->plane.element_stride;
	return 0;
}

/* Quantised rows of builds since 2026 may be rotated where 64 divides the head. */
static bool may_be_hadamard(const struct saved_tensor *tensor, const struct llama_shape *shape)
{
	bool quantised = tensor->type == SAVED_Q8_0 || tensor->type == SAVED_Q4_0;

	return quantised && tensor->dim % 64 == 0 && shape->stream_count && !shape->outputs;
}

static int describe_layers(struct saved_cache *cache, const struct llama_scan *scan,
        const struct llama_shape *shape, const struct llama_part *found, int64_t heads,
        struct saved_part *part, struct saved_error *error)
{
	struct saved_layer *layers = saved_alloc(cache, found->layer_count, sizeof(*layers));
	const struct llama_block *blocks = scan->layout.blocks + found->first_block;

	if (!layers)
		return saved_fail_memory(error, cache->path);
	for (uint32_t i = 0; i < found->layer_count; i++) {
		layers[i].number = i;
		layers[i].number_is_known = shape->cache_count == 1 && !shape->recurrent;
		for (int t = SAVED_K; t <= (shape->has_v ? SAVED_V : SAVED_K); t++) {
			struct saved_tensor *tensor = &layers[i].tensor[t];
			if (describe_tensor(cache, scan->file,
			            &blocks[(uint32_t)t * found->layer_count + i],
			            found->cell_count, shape->has_v && heads ? heads : 1, tensor,
			            error))
				return -1;
			tensor->hadamard_doubt = may_be_hadamard(tensor, shape);
		}
	}
	part->layer_count = found->layer_count;
	part->layers = layers;
	return 0;
}

/* ---- types agree: llama.cpp has one type of K and one of V in a cache ---- */

/* Votes for the type of block i: of its own kind, and of the other one. */
static uint32_t votes_for(const struct llama_block *blocks, uint32_t count, uint32_t type)
{
	uint32_t votes = 0;

	for (uint32_t i = 0; i < count; i++)
		votes += blocks[i].type == type;
	return votes;
}

static int check_one_type(const struct saved_cache *cache, const struct llama_scan *scan,
        const struct llama_shape *shape, const struct llama_part *part, struct saved_error *error)
{
	uint32_t count = part->layer_count;

	for (uint32_t t = 0; t < (shape->has_v ? 2u : 1u); t++) {
		const struct llama_block *all = scan->layout.blocks + part->first_block;
		const struct llama_block *blocks = all + t * count;
		uint32_t best_votes = 0, best = 0, best_tie = 0;
		for (uint32_t i = 0; i < count; i++) {
			uint32_t votes = votes_for(blocks, count, blocks[i].type);
			uint32_t tie =
			        votes_for(all, shape->has_v ? 2 * count : count, blocks[i].type);
			if (votes < best_votes || (votes == best_votes && tie <= best_tie))
				continue;
			best_votes = votes;
			best_tie = tie;
			best = blocks[i].type;
		}
		for (uint32_t i = 0; i < count; i++) {
			char field[32];
			if (blocks[i].type == best)
				continue;
			snprintf(field, sizeof(field), "%s[%u].type", t == 0 ? "K" : "V", i);
			return saved_fail(error, "snapshot-type", "type_size_mismatch", cache->path,
			        field, (int64_t)blocks[i].header,
			        "it is %s, and %u of %u layers have %s",
			        ggml_type_find(blocks[i].type)->name, best_votes, count,
			        ggml_type_find(best)->name);
		}
	}
	return 0;
}

/* ---- numbers of layers of models with sliding windows ---- */

/* Full attention in every 'period'th layer, the last of each; architecture as the file has it. */
static const struct {
	const char *arch;
	int64_t period;
} window_patterns[] = { { "gemma2", 2 } };

static void number_window_layers(
        struct saved_cache *cache, struct saved_part *parts, const char *arch)
{
	int64_t counts[2] = { 0, 0 }, period = 0;

	for (size_t i = 0; i < sizeof(window_patterns) / sizeof(window_patterns[0]); i++)
		if (strcmp(window_patterns[i].arch, arch) == 0)
			period = window_patterns[i].period;
	for (int64_t p = 0; p < cache->part_count; p++)
		counts[strcmp(parts[p].name, "window") == 0] = parts[p].layer_count;
	if (period == 0 || counts[0] != (counts[0] + counts[1]) / period)
		return;
	for (int64_t p = 0; p < cache->part_count; p++) {
		bool is_window = strcmp(parts[p].name, "window") == 0;
		/* Allocated above and not handed out yet. */
		struct saved_layer *layers = (struct saved_layer *)parts[p].layers;
		for (int64_t i = 0; i < parts[p].layer_count; i++) {
			layers[i].number =
			        is_window ? i + i / (period - 1) : period * i + period - 1;
			layers[i].number_is_known = true;
		}
	}
}

/* ---- the cache ---- */

static int read_token_list(struct saved_cache *cache, const struct llama_scan *scan,
        const struct saved_options *options, struct saved_error *error)
{
	const struct llama_layout *layout = &scan->layout;
	unsigned char buffer[4096];
	int64_t *tokens;

	cache->tokens = options->tokens;
	cache->token_count = options->token_count;
	if (layout->token_count == 0)
		return 0;
	tokens = saved_alloc(cache, layout->token_count, sizeof(*tokens));
	if (!tokens)
		return saved_fail_memory(error, cache->path);
	for (uint32_t i = 0; i < layout->token_count; i += sizeof(buffer) / 4) {
		uint32_t rest = layout->token_count - i;
		uint32_t count = rest < sizeof(buffer) / 4 ? rest : (uint32_t)(sizeof(buffer) / 4);
		if (saved_file_read(scan->file, layout->tokens + 4 * (uint64_t)i, 4 * count, buffer,
		            "tokens", error))
			return -1;
		for (uint32_t j = 0; j < count; j++)
			tokens[i + j] = (int32_t)saved_u32(buffer + 4 * j);
	}
	cache->tokens = tokens;
	cache->token_count = layout->token_count;
	return 0;
}

static int read_arch(struct saved_cache *cache, const struct llama_scan *scan, char *out,
        size_t out_bytes, struct saved_error *error)
{
	uint32_t bytes = scan->layout.arch_bytes;

	bytes = bytes < out_bytes ? bytes : (uint32_t)out_bytes - 1;
	out[bytes] = '\0';
	(void)cache;
	return saved_file_read(scan->file, scan->layout.arch, bytes, out, "arch", error);
}

static bool has_hadamard_doubt(const struct saved_cache *cache)
{
	for (int64_t p = 0; p < cache->part_count; p++)
		for (int64_t i = 0; i < cache->parts[p].layer_count; i++)
			if (cache->parts[p].layers[i].tensor[SAVED_K].hadamard_doubt ||
			        cache->parts[p].layers[i].tensor[SAVED_V].hadamard_doubt)
				return true;
	return false;
}

static void add_notes(struct saved_cache *cache, const struct llama_scan *scan,
        const struct llama_shape *shape, const char *arch)
{
	const struct llama_layout *layout = &scan->layout;

	if (arch[0])
		saved_add_note(cache, "arch", (int64_t)layout->arch, false, "%s", arch);
	if (shape->recurrent)
		saved_add_note(cache, "recurrent_state", (int64_t)layout->recurrent, false,
		        "recurrent state: %zu records of a model with %u layers; not looked into",
		        layout->recurrent_count, layout->recurrent_layers);
	if (has_hadamard_doubt(cache))
		saved_add_note(cache, "hadamard_doubt", -1, false,
		        "quantised rows may be stored multiplied by a Hadamard matrix; the file "
		        "cannot tell");
	if (cache->token_count == 0)
		saved_add_note(cache, "no_tokens", -1, false, "no token ids");
	if (shape->cache_count > 0 && !shape->has_v)
		saved_add_note(cache, "no_v", -1, false,
		        "no V: MLA, whose K rows hold both, or a file cut after K");
	if (shape->cache_count > 0 && scan->container == LLAMA_SEQ && !shape->stream_count)
		saved_add_note(
		        cache, "no_sequences", -1, false, "an old build wrote no sequence ids");
}

static int describe_cache(struct saved_cache *cache, const struct llama_scan *scan,
        const struct llama_shape *shape, const struct saved_options *options,
        struct saved_error *error)
{
	const struct llama_layout *layout = &scan->layout;
	struct saved_part *parts = saved_alloc(cache, layout->part_count, sizeof(*parts));
	struct cell_lists *lists = saved_alloc(cache, layout->part_count, sizeof(*lists));
	char arch[64] = "";

	if (!parts || !lists)
		return saved_fail_memory(error, cache->path);
	if (read_token_list(cache, scan, options, error) ||
	        read_arch(cache, scan, arch, sizeof(arch), error))
		return -1;
	for (size_t p = 0; p < layout->part_count; p++) {
		const struct llama_part *found = &layout->parts[p];
		parts[p].name = shape->cache_count == 1 ? "kv" : found->cache ? "window" : "base";
		parts[p].stream = found->stream;
		if (found->layer_count == 0) /* a stream without cells */
			continue;
		if (check_one_type(cache, scan, shape, found, error) ||
		        read_cells(cache, scan, found, shape->ext_bytes, &parts[p], &lists[p],
		                error) ||
		        describe_layers(
		                cache, scan, shape, found, options->heads, &parts[p], error))
			return -1;
	}
	cache->parts = parts;
	cache->part_count = (int64_t)layout->part_count;
	cache->writer = "llama.cpp";
	if (shape->cache_count == 2)
		number_window_layers(cache, parts, arch);
	assign_tokens(cache, parts, lists);
	add_notes(cache, scan, shape, arch);
	return 0;
}

/* ---- which shape ---- */

/* Of new versions the first shape that fits; of the others all are tried, to know whether more than
 * one does. */
static bool choose_shape(
        struct llama_scan *scan, struct saved_cache *cache, struct llama_shape *out)
{
	struct llama_shape shape;
	int found = 0;

	for (size_t i = 0; llama_shape_at(&shape, scan->container, scan->version, i); i++) {
		bool fits = llama_scan_shape(scan, &shape);
		if (scan->unreadable)
			return false;
		if (!fits)
			continue;
		if (found++ == 0)
			*out = shape;
		if (llama_version_is_sure(scan->container, scan->version))
			break;
	}
	if (found > 1)
		saved_add_note(cache, "ambiguous", -1, false,
		        "it can be read in %d ways; the most usual was taken", found);
	return found > 0 && llama_scan_shape(scan, out);
}

static void name_version(
        struct saved_cache *cache, const struct llama_scan *scan, const struct llama_shape *shape)
{
	const char *era = "";

	if (scan->container == LLAMA_BLOB) {
		snprintf(cache->version, sizeof(cache->version), "sequence %d",
		        scan->layout.sequence_id);
		return;
	}
	if (!shape->stream_count && shape->cache_count > 0)
		era = ", as written until mid-2025";
	else if (shape->outputs)
		era = ", as written until early 2026";
	snprintf(cache->version, sizeof(cache->version), "%s %u%s",
	        scan->container == LLAMA_CTX ? "ggsn" : "ggsq", scan->version, era);
}

static int read_version(
        struct saved_cache *cache, struct llama_scan *scan, struct saved_error *error)
{
	unsigned char head[8];
	uint32_t magic;

	if (saved_file_read(scan->file, 0, 4, head, "magic", error))
		return -1;
	magic = saved_u32(head);
	if ((magic == MAGIC_CTX && strcmp(cache->format, "llamacpp-ctx") != 0) ||
	        (magic == MAGIC_SEQ && strcmp(cache->format, "llamacpp-seq") != 0) ||
	        (magic == MAGIC_BLOB && strcmp(cache->format, "llamacpp-blob") != 0))
		return saved_fail(error, "snapshot-format-unknown", "magic", cache->path, "magic",
		        0, "0x%08x is not the magic of %s", magic, cache->format);
	scan->container = magic == MAGIC_CTX   ? LLAMA_CTX
	                  : magic == MAGIC_SEQ ? LLAMA_SEQ
	                                       : LLAMA_BLOB;
	if (scan->container == LLAMA_BLOB && magic != MAGIC_BLOB)
		return saved_fail(error, "snapshot-format-unknown", "magic", cache->path, "magic",
		        0, "0x%08x is no magic of llama.cpp", magic);
	if (scan->container == LLAMA_BLOB)
		return 0;
	if (saved_file_read(scan->file, 4, 4, head, "version", error))
		return -1;
	scan->version = saved_u32(head);
	if (scan->container == LLAMA_CTX ? scan->version == 9 || scan->version == 10
	                                 : scan->version == 2 || scan->version == 3)
		return 0;
	return saved_fail(error, "snapshot-format-unknown", "version", cache->path, "version", 4,
	        "version %u of %s is not known; %s are", scan->version,
	        scan->container == LLAMA_CTX ? "ggsn" : "ggsq",
	        scan->container == LLAMA_CTX ? "9 and 10" : "2 and 3");
}

static int open_scanned(struct saved_cache *cache, struct llama_scan *scan,
        const struct saved_options *options, struct saved_error *error)
{
	struct llama_shape shape;

	if (read_version(cache, scan, error))
		return -1;
	if (choose_shape(scan, cache, &shape)) {
		name_version(cache, scan, &shape);
		return describe_cache(cache, scan, &shape, options, error);
	}
	if (!scan->unreadable)
		llama_find_fault(scan);
	if (scan->unreadable) {
		*error = scan->error;
		return -1;
	}
	return saved_fail(error, scan->fault.slug, scan->fault.kind, cache->path, scan->fault.field,
	        (int64_t)scan->fault.offset, "%s", scan->fault.reason);
}

int llamacpp_open(struct saved_cache *cache, struct saved_file *file,
        const struct saved_options *options, struct saved_error *error)
{
	struct llama_scan *scan;
	int code;

	if (!file)
		return saved_fail(error, "snapshot-format-unknown", "directory", cache->path, "",
		        -1, "a directory is no state file of llama.cpp");
	scan = calloc(1, sizeof(*scan));
	if (!scan)
		return saved_fail_memory(error, cache->path);
	scan->file = file;
	code = open_scanned(cache, scan, options, error);
	llama_layout_free(&scan->layout);
	free(scan);
	return code;
}
