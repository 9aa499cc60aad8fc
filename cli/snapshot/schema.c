/* From layers of named tensors to the parts of a cache; schema.h says what is checked. */
#include "snapshot/schema.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Layers times elements of the batch: what is described in memory. */
#define DESCRIBED_LAYERS_MAX 65536

/* ---- refusals ---- */

static int refuse_schema(const struct schema_job *job, const char *kind, const char *path,
        const char *field, int64_t offset, const char *reason)
{
	return saved_fail(
	        job->error, "snapshot-malformed", kind, path, field, offset, "%s", reason);
}

int schema_refuse(const struct schema_job *job, const struct safetensors_tensor *tensor,
        const char *format, ...)
{
	char reason[256];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(reason, sizeof(reason), format, arguments);
	va_end(arguments);
	return refuse_schema(job, "cache_shape", job->path, tensor ? tensor->name : "layers",
	        tensor ? (int64_t)tensor->offset : -1, reason);
}

static int refuse_schema_memory(const struct schema_job *job)
{
	return saved_fail_memory(job->error, job->path);
}

/* ---- one tensor ---- */

static uint64_t axis_size(const struct safetensors_tensor *source, const char *axes, char axis)
{
	const char *found = strchr(axes, axis);

	return found ? source->shape[found - axes] : 1;
}

uint64_t schema_axis(const struct schema_tensor *tensor, char axis)
{
	return axis_size(tensor->source, tensor->axes, axis);
}

static enum saved_type type_of(enum safetensors_dtype dtype)
{
	switch (dtype) {
	case SAFETENSORS_F32:
		return SAVED_F32;
	case SAFETENSORS_F16:
		return SAVED_F16;
	case SAFETENSORS_BF16:
		return SAVED_BF16;
	case SAFETENSORS_F64:
		return SAVED_F64;
	case SAFETENSORS_F8_E4M3:
		return SAVED_F8_E4M3;
	case SAFETENSORS_F8_E5M2:
		return SAVED_F8_E5M2;
	default:
		return SAVED_OPAQUE;
	}
}

/* Bytes from one index of an axis to the next; 0 for an axis that the tensor lacks. */
static uint64_t axis_stride(const struct safetensors_tensor *source, const char *axes, char axis)
{
	const char *found = strchr(axes, axis);
	uint64_t stride = safetensors_dtype_bits(source->dtype) / 8;

	if (!found)
		return 0;
	for (uint32_t i = source->rank; i > (uint32_t)(found - axes) + 1; i--)
		stride *= source->shape[i - 1];
	return stride;
}

static struct saved_plane plane_of(const struct safetensors *container,
        const struct safetensors_tensor *source, const char *axes, uint64_t batch)
{
	return (struct saved_plane){
		.file = container->file,
		.offset = source->offset + batch * axis_stride(source, axes, 'b'),
		.row_stride = axis_stride(source, axes, 't'),
		.head_stride = axis_stride(source, axes, 'h'),
		.element_stride = axis_stride(source, axes, 'd'),
	};
}

static void fill_tensor(
        struct saved_tensor *out, const struct schema_tensor *tensor, uint64_t batch)
{
	const struct safetensors_tensor *source = tensor->source;

	if (!source)
		return;
	out->present = true;
	out->type = type_of(source->dtype);
	out->type_name = safetensors_dtype_name(source->dtype);
	out->element_bits = safetensors_dtype_bits(source->dtype);
	out->heads = (int64_t)schema_axis(tensor, 'h');
	out->dim = tensor->dim ? tensor->dim : (int64_t)schema_axis(tensor, 'd');
	out->plane = plane_of(tensor->container, source, tensor->axes, batch);
	out->plane.offset += tensor->skip;
	if (tensor->heads) {
		out->heads = tensor->heads;
		out->plane.head_stride = (uint64_t)out->dim * out->plane.element_stride;
	}
	if (!tensor->scales)
		return;
	out->type = SAVED_AFFINE;
	out->type_name = tensor->bits == 8 ? "affine8" : tensor->bits == 4 ? "affine4" : "affine2";
	out->element_bits = (uint32_t)tensor->bits;
	out->dim *= 32 / tensor->bits;
	out->group_size = tensor->group_size;
	out->scale_type = type_of(tensor->scales->dtype);
	out->scales = plane_of(tensor->container, tensor->scales, tensor->axes, batch);
	out->biases = plane_of(tensor->container, tensor->biases, tensor->axes, batch);
}

/* ---- checks ---- */

static int check_tensor(const struct schema_job *job, const struct schema_tensor *tensor)
{
	const struct safetensors_tensor *source = tensor->source;
	unsigned bits = safetensors_dtype_bits(source->dtype);

	if (source->rank != strlen(tensor->axes))
		return schema_refuse(job, source, "%u dimensions where %s has %zu", source->rank,
		        tensor->axes, strlen(tensor->axes));
	if (bits % 8 != 0)
		return schema_refuse(job, source, "rows of %s are not read",
		        safetensors_dtype_name(source->dtype));
	if (schema_axis(tensor, 't') > 0 && schema_axis(tensor, 'b') > 0 && source->bytes == 0)
		return schema_refuse(job, source, "rows without a byte");
	return 0;
}

/* Words, scales and biases of a quantised tensor fit each other. */
static int check_scales(const struct schema_job *job, const struct schema_tensor *tensor)
{
	const struct safetensors_tensor *words = tensor->source;
	const struct safetensors_tensor *planes[2] = { tensor->scales, tensor->biases };
	uint64_t dim, group = (uint64_t)tensor->group_size;

	if (!tensor->scales)
		return 0;
	if (words->dtype != SAFETENSORS_U32)
		return schema_refuse(job, words, "quantised words of %s, not U32",
		        safetensors_dtype_name(words->dtype));
	if (tensor->bits != 2 && tensor->bits != 4 && tensor->bits != 8)
		return schema_refuse(job, words,
		        "elements of %" PRId64 " bits; 2, 4 and 8 are read", tensor->bits);
	dim = schema_axis(tensor, 'd') * (uint64_t)(32 / tensor->bits);
	if (tensor->group_size < 1 || dim % group != 0 ||
	        group % (uint64_t)(32 / tensor->bits) != 0)
		return schema_refuse(job, words,
		        "groups of %" PRId64 " do not divide rows of %" PRIu64, tensor->group_size,
		        dim);
	for (int i = 0; i < 2; i++) {
		const struct safetensors_tensor *plane = planes[i];
		bool fits =
		        plane && plane->rank == words->rank &&
		        axis_size(plane, tensor->axes, 'd') == dim / group &&
		        (type_of(plane->dtype) == SAVED_F32 || type_of(plane->dtype) == SAVED_F16 ||
		                type_of(plane->dtype) == SAVED_BF16) &&
		        plane->dtype == planes[0]->dtype;
		for (const char *axis = "bht"; fits && *axis; axis++)
			fits = axis_size(plane, tensor->axes, *axis) == schema_axis(tensor, *axis);
		if (!fits)
			return schema_refuse(job, plane ? plane : words,
			        "scales or biases do not fit their words");
	}
	return 0;
}

static int check_layer(const struct schema_job *job, const struct schema_layer *layer)
{
	const struct schema_tensor *k = &layer->tensor[SAVED_K], *v = &layer->tensor[SAVED_V];

	for (int i = 0; i < 2; i++)
		if (layer->tensor[i].source && (check_tensor(job, &layer->tensor[i]) ||
		                                       check_scales(job, &layer->tensor[i])))
			return -1;
	if (!k->source)
		return schema_refuse(job, v->source, "V without K");
	if (v->source && schema_axis(k, 't') != schema_axis(v, 't'))
		return schema_refuse(job, v->source, "V has %" PRIu64 " rows, K has %" PRIu64,
		        schema_axis(v, 't'), schema_axis(k, 't'));
	if (v->source && schema_axis(k, 'b') != schema_axis(v, 'b'))
		return schema_refuse(job, v->source, "V is of %" PRIu64 " sequences, K of %" PRIu64,
		        schema_axis(v, 'b'), schema_axis(k, 'b'));
	return 0;
}

static int check_layers(
        const struct schema_job *job, const struct schema_layer *layers, int64_t count)
{
	int64_t with_v = 0;

	for (int64_t i = 0; i < count; i++)
		with_v += layers[i].tensor[SAVED_V].source != NULL;
	for (int64_t i = 0; i < count; i++) {
		if (check_layer(job, &layers[i]))
			return -1;
		if (with_v > 0 && !layers[i].tensor[SAVED_V].source)
			return schema_refuse(job, layers[i].tensor[SAVED_K].source,
			        "K without V, which other layers have");
	}
	return 0;
}

/* ---- layers that share their rows ---- */

struct row_group {
	uint64_t batch;
	struct schema_rows rows;
	int64_t layer_count;
	const int64_t *positions; /* NULL: row r is position r */
};

struct grouping {
	struct row_group *groups;
	int64_t group_count;
	int64_t *group_of; /* [layer_count]; -1: no rows, left out */
	int64_t total;     /* positions 0 .. total - 1 are spoken of */
	uint64_t batch;
	int64_t part_count;
	int64_t described; /* layers of all parts */
};

static struct schema_rows rows_of_layer(const struct schema_layer *layer)
{
	struct schema_rows rows = layer->rows;

	if (rows.valid < 0)
		rows.valid = (int64_t)schema_axis(&layer->tensor[SAVED_K], 't');
	return rows;
}

static bool same_rows(const struct schema_rows *a, const struct schema_rows *b)
{
	return a->valid == b->valid && a->start == b->start && a->keep == b->keep &&
	       a->oldest == b->oldest && a->end == b->end;
}

static int64_t group_for(struct grouping *grouping, uint64_t batch, const struct schema_rows *rows)
{
	int64_t end = rows->end ? rows->end : rows->start + rows->valid;

	for (int64_t i = 0; i < grouping->group_count; i++)
		if (grouping->groups[i].batch == batch &&
		        same_rows(&grouping->groups[i].rows, rows))
			return i;
	grouping->groups[grouping->group_count] =
	        (struct row_group){ .batch = batch, .rows = *rows };
	if (end > grouping->total)
		grouping->total = end;
	if (batch > grouping->batch)
		grouping->batch = batch;
	return grouping->group_count++;
}

static int group_layers(const struct schema_job *job, struct grouping *grouping,
        const struct schema_layer *layers, int64_t count)
{
	uint64_t described = 0;

	grouping->groups = saved_alloc(job->cache, (uint64_t)count, sizeof(*grouping->groups));
	grouping->group_of = saved_alloc(job->cache, (uint64_t)count, sizeof(*grouping->group_of));
	if (!grouping->groups || !grouping->group_of)
		return refuse_schema_memory(job);
	for (int64_t i = 0; i < count; i++) {
		const struct schema_tensor *k = &layers[i].tensor[SAVED_K];
		struct schema_rows rows = rows_of_layer(&layers[i]);
		uint64_t batch = schema_axis(k, 'b');
		grouping->group_of[i] = -1;
		if (batch == 0 || rows.valid == 0)
			continue;
		if (rows.valid > SAVED_CELLS_MAX)
			return refuse_schema(job, "count_too_large", job->path, k->source->name,
			        (int64_t)k->source->offset, "more than 4194304 rows are not read");
		if (batch > DESCRIBED_LAYERS_MAX || (described += batch) > DESCRIBED_LAYERS_MAX)
			return refuse_schema(job, "count_too_large", job->path, k->source->name,
			        (int64_t)k->source->offset,
			        "more than 65536 layers times sequences are not read");
		grouping->group_of[i] = group_for(grouping, batch, &rows);
		grouping->groups[grouping->group_of[i]].layer_count++;
	}
	for (int64_t i = 0; i < grouping->group_count; i++)
		grouping->part_count += (int64_t)grouping->groups[i].batch;
	grouping->described = (int64_t)described;
	return 0;
}

/* ---- positions ---- */

static int64_t row_position(const struct schema_rows *rows, int64_t row)
{
	int64_t ring, age;

	if (!rows->end)
		return rows->start + row;
	if (row < rows->keep)
		return row;
	ring = rows->valid - rows->keep;
	age = (row - rows->oldest + ring) % ring; /* 0: the oldest of the rows that rotate */
	return rows->end - ring + age;
}

static int64_t *list_of_rows(const struct schema_job *job, int64_t rows)
{
	int64_t *list = NULL;

	if (rows > SAVED_CELLS_MAX)
		refuse_schema(job, "count_too_large", job->path, "rows", -1,
		        "more than 4,194,304 rows with positions or tokens of their own");
	else if (!(list = saved_alloc(job->cache, (uint64_t)rows, sizeof(*list))))
		refuse_schema_memory(job);
	return list;
}

/* As the layers say where their rows lie. */
static int place_group(const struct schema_job *job, struct row_group *group)
{
	const struct schema_rows *rows = &group->rows;
	int64_t *positions;

	if (!rows->end && rows->start == 0)
		return 0;
	positions = list_of_rows(job, rows->valid);
	if (!positions)
		return -1;
	for (int64_t row = 0; row < rows->valid; row++)
		positions[row] = row_position(rows, row);
	group->positions = positions;
	return 0;
}

/* A whole tensor of integers; NULL with the error set. */
static int64_t *read_list(
        const struct schema_job *job, const struct safetensors_tensor *tensor, int64_t *count_out)
{
	unsigned width = safetensors_dtype_bits(tensor->dtype) / 8;
	uint64_t count = width ? tensor->bytes / width : 0;
	int64_t *list;

	list = list_of_rows(job, count < INT64_MAX ? (int64_t)count : INT64_MAX);
	if (!list || safetensors_read_integers(
	                     job->container, tensor, 0, (size_t)count, list, job->error))
		return NULL;
	*count_out = (int64_t)count;
	return list;
}

/* ---- tokens ---- */

int schema_read_token_text(const struct schema_job *job, const char *key, const char *text)
{
	char field[96];
	int64_t count = 0, capacity = (int64_t)strlen(text) / 2 + 1;
	int64_t *tokens;

	if (capacity > SAVED_CELLS_MAX)
		capacity = SAVED_CELLS_MAX;
	tokens = saved_alloc(job->cache, (uint64_t)capacity, sizeof(*tokens));
	if (!tokens)
		return refuse_schema_memory(job);
	snprintf(field, sizeof(field), "__metadata__.%s", key);
	while (*(text += strspn(text, " ,"))) {
		char *end;
		errno = 0;
		long long token = strtoll(text, &end, 10);
		if (end == text || errno || token < -1 || (*end && !strchr(" ,", *end)))
			return refuse_schema(job, "metadata", job->path, field, -1,
			        "no list of token ids with spaces between");
		if (count == capacity)
			return refuse_schema(job, "count_too_large", job->path, field, -1,
			        "more than 4,194,304 token ids");
		tokens[count++] = token;
		text = end;
	}
	job->cache->tokens = tokens;
	job->cache->token_count = count;
	return 0;
}

/* Tokens from the tensor of that name, unless the schema has found a list; else from --tokens. */
static int find_tokens(const struct schema_job *job, bool *given)
{
	const struct safetensors_tensor *tensor = safetensors_find(job->container, "tokens");
	struct saved_cache *cache = job->cache;

	*given = false;
	if (cache->tokens)
		return 0;
	if (tensor) {
		cache->tokens = read_list(job, tensor, &cache->token_count);
		return cache->tokens ? 0 : -1;
	}
	if (job->options->tokens) {
		int64_t *tokens = list_of_rows(job, job->options->token_count);
		if (!tokens)
			return -1;
		memcpy(tokens, job->options->tokens,
		        (size_t)job->options->token_count * sizeof(*tokens));
		cache->tokens = tokens;
		cache->token_count = job->options->token_count;
		*given = true;
	}
	return 0;
}

/* Tokens of the rows of a group, out of the list for positions 0 .. count - 1. */
static const int64_t *tokens_of_rows(const struct schema_job *job, const struct row_group *group,
        const int64_t *list, int64_t count)
{
	int64_t *tokens;

	if (!group->rows.end && group->rows.start == 0 && count >= group->rows.valid)
		return list;
	tokens = list_of_rows(job, group->rows.valid);
	for (int64_t row = 0; tokens && row < group->rows.valid; row++) {
		int64_t index = row_position(&group->rows, row);
		tokens[row] = index >= 0 && index < count ? list[index] : -1;
	}
	return tokens;
}

/* The list that an element of the batch goes by, NULL: none. */
static const int64_t *list_of_sequence(
        const struct schema_job *job, const struct grouping *grouping, uint64_t batch)
{
	const struct saved_cache *cache = job->cache;

	if (grouping->batch <= 1)
		return cache->tokens;
	if (!cache->tokens || cache->token_count % (int64_t)grouping->batch != 0 ||
	        cache->token_count / (int64_t)grouping->batch != grouping->total)
		return NULL;
	return cache->tokens + (int64_t)batch * grouping->total;
}

static void note_token_count(
        const struct schema_job *job, const struct grouping *grouping, bool given)
{
	struct saved_cache *cache = job->cache;
	int64_t wanted;

	if (__builtin_mul_overflow(grouping->total, (int64_t)grouping->batch, &wanted))
		return;
	if (!cache->tokens || grouping->part_count == 0 || cache->token_count == wanted)
		return;
	if (given && cache->token_count > wanted)
		return; /* engines save whole blocks of a prompt */
	saved_add_note(cache, "token_count", -1, !given,
	        "%" PRId64 " token ids for %" PRId64 " rows", cache->token_count, wanted);
}

/* ---- parts ---- */

static const char *part_name(const struct grouping *grouping, const struct row_group *group)
{
	if (grouping->group_count > 1)
		return group->rows.valid == grouping->total ? "full" : "window";
	return grouping->batch > 1 ? "batch" : "kv";
}

/* Layers of one part, from 'room'. */
static int fill_layers(const struct schema_job *job, struct saved_layer *room, int64_t group,
        const struct grouping *grouping, const struct schema_layer *layers, int64_t count,
        uint64_t batch)
{
	for (int64_t i = 0; i < count; i++) {
		if (grouping->group_of[i] != group)
			continue;
		room->number = layers[i].number >= 0 ? layers[i].number : i;
		room->number_is_known = layers[i].number >= 0;
		if (layers[i].name && !(room->name = saved_strdup(job->cache, layers[i].name)))
			return refuse_schema_memory(job);
		for (int t = 0; t < 2; t++)
			fill_tensor(&room->tensor[t], &layers[i].tensor[t], batch);
		room++;
	}
	return 0;
}

static int fill_parts(const struct schema_job *job, const struct grouping *grouping,
        const struct schema_layer *layers, int64_t count)
{
	struct saved_cache *cache = job->cache;
	struct saved_part *parts =
	        saved_alloc(cache, (uint64_t)grouping->part_count, sizeof(*parts));
	struct saved_layer *room = saved_alloc(cache, (uint64_t)grouping->described, sizeof(*room));
	struct saved_part *part = parts;

	if (!parts || !room)
		return refuse_schema_memory(job);
	for (int64_t g = 0; g < grouping->group_count; g++) {
		const struct row_group *group = &grouping->groups[g];
		for (uint64_t batch = 0; batch < group->batch; batch++, part++) {
			const int64_t *list = list_of_sequence(job, grouping, batch);
			part->name = part_name(grouping, group);
			part->stream = (int64_t)batch;
			part->row_count = group->rows.valid;
			part->positions = group->positions;
			if (list && !(part->tokens = tokens_of_rows(job, group, list,
			                      cache->token_count / (int64_t)grouping->batch)))
				return -1;
			part->layer_count = group->layer_count;
			part->layers = room;
			if (fill_layers(job, room, g, grouping, layers, count, batch))
				return -1;
			room += group->layer_count;
		}
	}
	cache->parts = parts;
	cache->part_count = grouping->part_count;
	return 0;
}

/* ---- positions that the file states ---- */

#define POSITION_MAX (INT64_C(1) << 48) /* so that sums and differences cannot overflow */

/* [total], or [batch, total]: over what the rows alone would say. */
static int state_positions(const struct schema_job *job, const struct grouping *grouping,
        const struct safetensors_tensor *tensor)
{
	struct saved_part *parts = (struct saved_part *)(uintptr_t)job->cache->parts;
	int64_t count, *list = read_list(job, tensor, &count);
	bool each = grouping->batch > 1 && list && count != grouping->total;

	if (!list)
		return -1;
	if (count != grouping->total * (each ? (int64_t)grouping->batch : 1))
		return schema_refuse(job, tensor, "%" PRId64 " positions for %" PRId64 " rows",
		        count, grouping->total);
	for (int64_t i = 0; i < count; i++)
		if (list[i] > POSITION_MAX || list[i] < -POSITION_MAX)
			return schema_refuse(
			        job, tensor, "position %" PRId64 " is beyond any cache", list[i]);
	for (int64_t i = 0; i < job->cache->part_count; i++) {
		if (parts[i].row_count > grouping->total)
			return schema_refuse(job, tensor, "fewer positions than rows");
		const int64_t *from = list + (each ? parts[i].stream * grouping->total : 0);
		/* Rows of a window are the last ones. */
		parts[i].positions = from + (grouping->total - parts[i].row_count);
	}
	return 0;
}

int schema_describe(const struct schema_job *job, const struct schema_layer *layers,
        int64_t layer_count, const struct safetensors_tensor *positions)
{
	struct grouping grouping = { 0 };
	bool given;

	if (check_layers(job, layers, layer_count) ||
	        group_layers(job, &grouping, layers, layer_count))
		return -1;
	for (int64_t i = 0; i < grouping.group_count; i++)
		if (place_group(job, &grouping.groups[i]))
			return -1;
	if (find_tokens(job, &given) || fill_parts(job, &grouping, layers, layer_count))
		return -1;
	note_token_count(job, &grouping, given);
	return positions && grouping.part_count ? state_positions(job, &grouping, positions) : 0;
}

/* ---- identity ---- */

#define IDENTITY_MAX 16

int schema_add_identity(const struct schema_job *job, const char *field, const char *value)
{
	struct saved_cache *cache = job->cache;
	struct saved_identity *list = (struct saved_identity *)(uintptr_t)cache->identity;

	if (!list)
		list = saved_alloc(cache, IDENTITY_MAX, sizeof(*list));
	if (!list || cache->identity_count == IDENTITY_MAX)
		return refuse_schema_memory(job);
	cache->identity = list;
	list[cache->identity_count].field = field;
	list[cache->identity_count].value = saved_strdup(cache, value);
	return list[cache->identity_count++].value ? 0 : refuse_schema_memory(job);
}
