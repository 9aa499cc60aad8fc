/* The container: header to checked tensors; safetensors.h says which rules hold. */
#include "snapshot/safetensors.h"

#include "snapshot/json_reader.h"
#include "snapshot/reader.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LENGTH_BYTES 8
#define CHUNK_BYTES ((size_t)1 << 16)
#define LONG_TEXT_BYTES ((size_t)1 << 12) /* kept as the JSON reader has it, not copied */

static const struct {
	const char *name;
	unsigned bits;
} dtypes[SAFETENSORS_DTYPE_COUNT] = {
	[SAFETENSORS_BOOL] = { "BOOL", 8 },
	[SAFETENSORS_F4] = { "F4", 4 },
	[SAFETENSORS_F6_E2M3] = { "F6_E2M3", 6 },
	[SAFETENSORS_F6_E3M2] = { "F6_E3M2", 6 },
	[SAFETENSORS_U8] = { "U8", 8 },
	[SAFETENSORS_I8] = { "I8", 8 },
	[SAFETENSORS_F8_E5M2] = { "F8_E5M2", 8 },
	[SAFETENSORS_F8_E4M3] = { "F8_E4M3", 8 },
	[SAFETENSORS_F8_E8M0] = { "F8_E8M0", 8 },
	[SAFETENSORS_F8_E4M3FNUZ] = { "F8_E4M3FNUZ", 8 },
	[SAFETENSORS_F8_E5M2FNUZ] = { "F8_E5M2FNUZ", 8 },
	[SAFETENSORS_I16] = { "I16", 16 },
	[SAFETENSORS_U16] = { "U16", 16 },
	[SAFETENSORS_F16] = { "F16", 16 },
	[SAFETENSORS_BF16] = { "BF16", 16 },
	[SAFETENSORS_I32] = { "I32", 32 },
	[SAFETENSORS_U32] = { "U32", 32 },
	[SAFETENSORS_F32] = { "F32", 32 },
	[SAFETENSORS_C64] = { "C64", 64 },
	[SAFETENSORS_F64] = { "F64", 64 },
	[SAFETENSORS_I64] = { "I64", 64 },
	[SAFETENSORS_U64] = { "U64", 64 },
};

const char *safetensors_dtype_name(enum safetensors_dtype dtype)
{
	return dtypes[dtype].name;
}

unsigned safetensors_dtype_bits(enum safetensors_dtype dtype)
{
	return dtypes[dtype].bits;
}

/* ---- what was opened ---- */

/* Memory of the names: short ones share a chunk, a long one has its own. */
struct name_chunk {
	struct name_chunk *next;
	char *text;
	size_t bytes;
	size_t used;
};

struct opened {
	struct safetensors public;
	struct safetensors_tensor *tensors;
	size_t tensor_capacity;
	struct safetensors_pair *pairs;
	size_t pair_capacity;
	struct name_chunk *chunks; /* the first one is filled */
};

void safetensors_close(struct safetensors *container)
{
	struct opened *opened = (struct opened *)container;

	if (!opened)
		return;
	while (opened->chunks) {
		struct name_chunk *chunk = opened->chunks;
		opened->chunks = chunk->next;
		free(chunk->text);
		free(chunk);
	}
	free(opened->tensors);
	free(opened->pairs);
	free(opened);
}

static bool add_chunk(struct opened *opened, char *text, size_t bytes, size_t used)
{
	struct name_chunk *chunk = malloc(sizeof(*chunk));

	if (!chunk || !text) {
		free(chunk);
		free(text);
		return false;
	}
	*chunk = (struct name_chunk){ opened->chunks, text, bytes, used };
	opened->chunks = chunk;
	return true;
}

/* The reader's text for as long as the container lives; NULL: no memory. */
static const char *keep_text(struct opened *opened, struct json_reader *reader)
{
	size_t bytes = reader->text_bytes + 1;
	struct name_chunk *chunk = opened->chunks;
	char *text;

	if (bytes > LONG_TEXT_BYTES) {
		text = json_take_text(reader);
		return add_chunk(opened, text, bytes, bytes) ? text : NULL;
	}
	if (!chunk || chunk->bytes - chunk->used < bytes) {
		if (!add_chunk(opened, malloc(CHUNK_BYTES), CHUNK_BYTES, 0))
			return NULL;
		chunk = opened->chunks;
	}
	text = chunk->text + chunk->used;
	memcpy(text, reader->text, bytes);
	chunk->used += bytes;
	return text;
}

/* ---- refusals ---- */

struct header {
	struct opened *opened;
	const char *path;
	uint64_t file_bytes;
	struct json_reader json;
	struct saved_error *error;
};

/* Cuts a character that is not complete off the end. */
static void trim_character(char *text)
{
	size_t end = strlen(text), begin = end;
	unsigned lead;

	while (begin > 0 && ((unsigned char)text[begin - 1] & 0xc0) == 0x80)
		begin--;
	if (begin == 0 || (lead = (unsigned char)text[begin - 1]) < 0xc0)
		return;
	if (end - begin < (lead < 0xe0 ? 1U : lead < 0xf0 ? 2U : 3U))
		text[begin - 1] = '\0';
}

/* "name.suffix", or "name"; a long name is cut. */
static void compose_field(char *out, size_t bytes, const char *name, const char *suffix)
{
	char short_name[128];

	snprintf(short_name, sizeof(short_name), "%s", name);
	trim_character(short_name);
	snprintf(out, bytes, "%s%s%s", short_name, suffix[0] ? "." : "", suffix);
	trim_character(out);
}

/* -1, always. */
static int refuse_field(const struct header *header, const char *kind, const char *name,
        const char *suffix, uint64_t offset, const char *reason)
{
	char field[sizeof(header->error->field)];

	compose_field(field, sizeof(field), name, suffix);
	return saved_fail(header->error, "snapshot-malformed", kind, header->path, field,
	        (int64_t)offset, "%s", reason);
}

static int refuse_header_memory(const struct header *header)
{
	return saved_fail_memory(header->error, header->path);
}

/* ---- growing lists ---- */

static void *grow_entries(void *list, size_t *capacity, size_t item_bytes)
{
	size_t wanted = *capacity ? *capacity * 2 : 64;
	void *longer = realloc(list, wanted * item_bytes);

	if (longer)
		*capacity = wanted;
	return longer;
}

static int keep_tensor(struct header *header, const struct safetensors_tensor *tensor)
{
	struct opened *opened = header->opened;
	size_t count = opened->public.tensor_count;

	if (count == SAFETENSORS_ENTRIES_MAX)
		return refuse_field(header, "count_too_large", tensor->name, "", header->json.at,
		        "more tensors than are read here (262,144)");
	if (count == opened->tensor_capacity) {
		struct safetensors_tensor *tensors =
		        grow_entries(opened->tensors, &opened->tensor_capacity, sizeof(*tensor));
		if (!tensors)
			return refuse_header_memory(header);
		opened->tensors = tensors;
	}
	opened->tensors[count] = *tensor;
	opened->public.tensor_count++;
	return 0;
}

static int add_pair(struct header *header, const char *key, const char *value)
{
	struct opened *opened = header->opened;
	size_t count = opened->public.metadata_count;

	if (count == SAFETENSORS_ENTRIES_MAX)
		return refuse_field(header, "count_too_large", "__metadata__", "", header->json.at,
		        "more strings than are read here (262,144)");
	if (count == opened->pair_capacity) {
		struct safetensors_pair *pairs =
		        grow_entries(opened->pairs, &opened->pair_capacity, sizeof(*pairs));
		if (!pairs)
			return refuse_header_memory(header);
		opened->pairs = pairs;
	}
	opened->pairs[count] = (struct safetensors_pair){ key, value };
	opened->public.metadata_count++;
	return 0;
}

/* ---- one entry ---- */

struct entry {
	struct safetensors_tensor tensor;
	uint64_t begin, end; /* data_offsets */
	uint64_t elements;
	uint64_t offset; /* of the entry in the header */
	bool overflows;
	bool has_dtype, has_shape, has_offsets;
};

static int read_dtype_name(struct header *header, struct entry *entry, enum json_token token)
{
	if (token == JSON_FAILED)
		return -1;
	if (token == JSON_STRING)
		for (int i = 0; i < SAFETENSORS_DTYPE_COUNT; i++)
			if (strcmp(header->json.text, dtypes[i].name) == 0) {
				entry->tensor.dtype = (enum safetensors_dtype)i;
				return 0;
			}
	return refuse_field(header, "dtype_unknown", entry->tensor.name, "dtype", header->json.at,
	        "no dtype of the format");
}

static int read_shape(struct header *header, struct entry *entry, enum json_token token)
{
	static const char reason[] = "no list of whole numbers from 0 to 2^64 - 1";
	struct safetensors_tensor *tensor = &entry->tensor;

	entry->elements = 1;
	if (token == JSON_ARRAY) {
		while ((token = json_next(&header->json)) == JSON_NUMBER &&
		        header->json.is_unsigned) {
			uint64_t size = header->json.number;
			if (tensor->rank < SAFETENSORS_RANK_MAX)
				tensor->shape[tensor->rank] = size;
			tensor->rank++;
			entry->overflows |=
			        __builtin_mul_overflow(entry->elements, size, &entry->elements);
		}
		if (token == JSON_ARRAY_END)
			return 0;
	}
	return token == JSON_FAILED ? -1
	                            : refuse_field(header, "shape", tensor->name, "shape",
	                                      header->json.at, reason);
}

static int read_offsets(struct header *header, struct entry *entry, enum json_token token)
{
	uint64_t values[2] = { 0, 0 };
	int count = 0;

	if (token == JSON_ARRAY) {
		while ((token = json_next(&header->json)) == JSON_NUMBER &&
		        header->json.is_unsigned && count < 2)
			values[count++] = header->json.number;
		if (token == JSON_ARRAY_END && count == 2 && values[0] <= values[1]) {
			entry->begin = values[0];
			entry->end = values[1];
			return 0;
		}
	}
	return token == JSON_FAILED
	               ? -1
	               : refuse_field(header, "offsets", entry->tensor.name, "data_offsets",
	                         header->json.at,
	                         "no pair of whole numbers, the second not below the first");
}

static int read_entry_field(struct header *header, struct entry *entry)
{
	static const struct {
		const char *name;
		size_t seen;
		int (*read)(struct header *, struct entry *, enum json_token);
	} fields[] = {
		{ "dtype", offsetof(struct entry, has_dtype), read_dtype_name },
		{ "shape", offsetof(struct entry, has_shape), read_shape },
		{ "data_offsets", offsetof(struct entry, has_offsets), read_offsets },
	};

	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
		bool *seen = (bool *)((char *)entry + fields[i].seen);
		if (strcmp(header->json.text, fields[i].name) != 0)
			continue;
		if (*seen)
			return refuse_field(header, "duplicate_key", entry->tensor.name,
			        fields[i].name, header->json.at, "given twice");
		*seen = true;
		return fields[i].read(header, entry, json_next(&header->json));
	}
	return json_skip(
	        &header->json, json_next(&header->json)); /* the reference ignores it too */
}

/* Fields against each other. */
static int check_tensor_entry(const struct header *header, const struct entry *entry)
{
	const char *name = entry->tensor.name;
	unsigned bits = dtypes[entry->tensor.dtype].bits;
	uint64_t total;

	if (!entry->has_dtype || !entry->has_shape || !entry->has_offsets)
		return refuse_field(header, "field_missing", name,
		        !entry->has_dtype   ? "dtype"
		        : !entry->has_shape ? "shape"
		                            : "data_offsets",
		        entry->offset, "missing");
	if (entry->overflows || __builtin_mul_overflow(entry->elements, (uint64_t)bits, &total))
		return refuse_field(header, "shape_overflow", name, "shape", entry->offset,
		        "its bits are more than 2^64");
	if (total % 8 != 0)
		return refuse_field(header, "sub_byte", name, "shape", entry->offset,
		        "its elements do not end on a byte");
	if (total / 8 != entry->end - entry->begin) {
		char reason[96];
		snprintf(reason, sizeof(reason),
		        "dtype and shape need %llu bytes, the offsets give %llu",
		        (unsigned long long)(total / 8),
		        (unsigned long long)(entry->end - entry->begin));
		return refuse_field(header, "size_mismatch", name, "", entry->offset, reason);
	}
	return 0;
}

static int read_entry(struct header *header, const char *name)
{
	struct entry entry = { .tensor = { .name = name } };
	enum json_token token = json_next(&header->json);

	entry.offset = header->json.at;
	if (token == JSON_FAILED)
		return -1;
	if (token != JSON_OBJECT) /* what is no JSON at all is told first */
		return json_skip(&header->json, token)
		               ? -1
		               : refuse_field(header, "json", name, "", entry.offset, "no object");
	while ((token = json_next(&header->json)) == JSON_KEY)
		if (read_entry_field(header, &entry))
			return -1;
	if (token != JSON_OBJECT_END || check_tensor_entry(header, &entry))
		return -1;
	/* Until all entries are known, relative to the end of the header. */
	entry.tensor.offset = entry.begin;
	entry.tensor.bytes = entry.end - entry.begin;
	return keep_tensor(header, &entry.tensor);
}

/* ---- metadata ---- */

static int read_metadata(struct header *header)
{
	enum json_token token = json_next(&header->json);

	if (token == JSON_FAILED)
		return -1;
	if (token != JSON_OBJECT)
		return refuse_field(header, "metadata", "__metadata__", "", header->json.at,
		        "no object of strings");
	while ((token = json_next(&header->json)) == JSON_KEY) {
		const char *key = keep_text(header->opened, &header->json), *value;
		if (!key)
			return refuse_header_memory(header);
		token = json_next(&header->json);
		if (token == JSON_FAILED)
			return -1;
		if (token != JSON_STRING)
			return refuse_field(header, "metadata", "__metadata__", key,
			        header->json.at, "no string");
		value = keep_text(header->opened, &header->json);
		if (!value)
			return refuse_header_memory(header);
		if (add_pair(header, key, value))
			return -1;
	}
	return token == JSON_OBJECT_END ? 0 : -1;
}

static int read_entries(struct header *header)
{
	enum json_token token = json_next(&header->json);
	bool has_metadata = false;

	if (token != JSON_OBJECT)
		return -1; /* the first byte is '{', so the reader has failed */
	while ((token = json_next(&header->json)) == JSON_KEY) {
		const char *name;
		if (strcmp(header->json.text, "__metadata__") == 0) {
			if (has_metadata)
				return refuse_field(header, "duplicate_key", "__metadata__", "",
				        header->json.at, "given twice");
			has_metadata = true;
			if (read_metadata(header))
				return -1;
			continue;
		}
		name = keep_text(header->opened, &header->json);
		if (!name)
			return refuse_header_memory(header);
		if (read_entry(header, name))
			return -1;
	}
	return token == JSON_OBJECT_END && json_next(&header->json) == JSON_END ? 0 : -1;
}

/* ---- all entries together ---- */

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct safetensors_tensor *)a)->name,
	        ((const struct safetensors_tensor *)b)->name);
}

static int by_key(const void *a, const void *b)
{
	return strcmp(((const struct safetensors_pair *)a)->key,
	        ((const struct safetensors_pair *)b)->key);
}

static int by_place(const void *a, const void *b)
{
	const struct safetensors_tensor *left = *(const struct safetensors_tensor *const *)a;
	const struct safetensors_tensor *right = *(const struct safetensors_tensor *const *)b;

	if (left->offset != right->offset)
		return left->offset < right->offset ? -1 : 1;
	if (left->bytes != right->bytes)
		return left->bytes < right->bytes ? -1 : 1;
	return left < right ? -1 : left > right;
}

static int sort_names(struct header *header)
{
	struct opened *opened = header->opened;
	struct safetensors *public = &opened->public;

	if (public->tensor_count)
		qsort(opened->tensors, public->tensor_count, sizeof(*opened->tensors), by_name);
	if (public->metadata_count)
		qsort(opened->pairs, public->metadata_count, sizeof(*opened->pairs), by_key);
	public->tensors = opened->tensors;
	public->metadata = opened->pairs;
	for (size_t i = 1; i < public->tensor_count; i++)
		if (by_name(&opened->tensors[i - 1], &opened->tensors[i]) == 0)
			return refuse_field(header, "duplicate_key", opened->tensors[i].name, "",
			        LENGTH_BYTES, "given twice");
	for (size_t i = 1; i < public->metadata_count; i++)
		if (by_key(&opened->pairs[i - 1], &opened->pairs[i]) == 0)
			return refuse_field(header, "duplicate_key", "__metadata__",
			        opened->pairs[i].key, LENGTH_BYTES, "given twice");
	return 0;
}

/* One tensor after the other in the file: where the last one ended, in 'at'. */
static int place_tensor(
        const struct header *header, struct safetensors_tensor *tensor, uint64_t *at)
{
	uint64_t data_bytes = header->file_bytes - header->opened->public.data_offset;
	char reason[128];

	if (tensor->offset != *at) {
		bool overlaps = tensor->offset < *at;
		snprintf(reason, sizeof(reason),
		        overlaps ? "it begins at %llu, before the tensor before it ends at %llu"
		                 : "it begins at %llu, and the bytes from %llu on are nobody's",
		        (unsigned long long)tensor->offset, (unsigned long long)*at);
		return refuse_field(header, overlaps ? "overlap" : "hole", tensor->name,
		        "data_offsets", LENGTH_BYTES, reason);
	}
	if (tensor->bytes > data_bytes || *at > data_bytes - tensor->bytes) {
		snprintf(reason, sizeof(reason),
		        "its %" PRIu64 " bytes from %" PRIu64 " on go past the end", tensor->bytes,
		        header->opened->public.data_offset + *at);
		return refuse_field(
		        header, "truncated", tensor->name, "", header->file_bytes, reason);
	}
	*at += tensor->bytes;
	tensor->offset += header->opened->public.data_offset;
	return 0;
}

/* Sorted by offset the tensors fill the bytes behind the header exactly. */
static int place_tensors(struct header *header)
{
	struct safetensors *public = &header->opened->public;
	struct safetensors_tensor **order = malloc((public->tensor_count + 1) * sizeof(*order));
	uint64_t at = 0, end;
	int failed = 0;

	if (!order)
		return refuse_header_memory(header);
	for (size_t i = 0; i < public->tensor_count; i++)
		order[i] = &header->opened->tensors[i];
	qsort(order, public->tensor_count, sizeof(*order), by_place);
	for (size_t i = 0; i < public->tensor_count && !failed; i++)
		failed = place_tensor(header, order[i], &at);
	free(order);
	end = public->data_offset + at;
	if (!failed && end != header->file_bytes)
		return saved_fail(header->error, "snapshot-malformed", "trailing", header->path,
		        "data", (int64_t)end, "%llu bytes behind the last tensor",
		        (unsigned long long)(header->file_bytes - end));
	return failed;
}

/* ---- opening ---- */

/* The length in front, and the first byte of the JSON text. */
static int read_length(struct header *header, const struct saved_file *file)
{
	unsigned char bytes[LENGTH_BYTES + 1];
	uint64_t length;

	if (header->file_bytes < LENGTH_BYTES)
		return saved_fail(header->error, "snapshot-malformed", "truncated", header->path,
		        "header length", 0, "8 bytes are needed, the file has %llu",
		        (unsigned long long)header->file_bytes);
	if (saved_file_read(file, 0, LENGTH_BYTES, bytes, "header length", header->error))
		return -1;
	length = saved_u64(bytes);
	if (length == 0 || length > SAFETENSORS_HEADER_MAX ||
	        length > header->file_bytes - LENGTH_BYTES)
		return saved_fail(header->error, "snapshot-malformed", "header_length",
		        header->path, "header length", 0,
		        "%llu; from 1 to %d, and the file has %llu bytes behind it",
		        (unsigned long long)length, SAFETENSORS_HEADER_MAX,
		        (unsigned long long)(header->file_bytes - LENGTH_BYTES));
	header->opened->public.data_offset = LENGTH_BYTES + length;
	if (saved_file_read(file, LENGTH_BYTES, 1, bytes, "header", header->error))
		return -1;
	if (bytes[0] != '{')
		return saved_fail(header->error, "snapshot-malformed", "header_start", header->path,
		        "header", LENGTH_BYTES, "it begins with byte 0x%02x, not {", bytes[0]);
	return 0;
}

static int read_header(struct header *header, const struct saved_file *file)
{
	int failed;

	if (read_length(header, file))
		return -1;
	if (json_start(&header->json, file, LENGTH_BYTES, header->opened->public.data_offset,
	            "header", header->error))
		return -1;
	failed = read_entries(header);
	json_stop(&header->json);
	return failed || sort_names(header) || place_tensors(header) ? -1 : 0;
}

int safetensors_open(
        struct safetensors **out, const struct saved_file *file, struct saved_error *error)
{
	struct header header = {
		.opened = calloc(1, sizeof(struct opened)),
		.path = saved_file_path(file),
		.file_bytes = saved_file_size(file),
		.error = error,
	};

	if (!header.opened)
		return refuse_header_memory(&header);
	header.opened->public.file = file;
	if (read_header(&header, file)) {
		safetensors_close(&header.opened->public);
		return -1;
	}
	*out = &header.opened->public;
	return 0;
}

/* ---- looking things up ---- */

const struct safetensors_tensor *safetensors_find(
        const struct safetensors *container, const char *name)
{
	struct safetensors_tensor key = { .name = name };

	return container->tensor_count == 0
	               ? NULL
	               : bsearch(&key, container->tensors, container->tensor_count, sizeof(key),
	                         by_name);
}

const char *safetensors_metadata(const struct safetensors *container, const char *key)
{
	struct safetensors_pair wanted = { key, NULL }, *found = NULL;

	if (container->metadata_count)
		found = bsearch(&wanted, container->metadata, container->metadata_count,
		        sizeof(wanted), by_key);
	return found ? found->value : NULL;
}

static int64_t integer_at(const unsigned char *bytes, enum safetensors_dtype dtype)
{
	switch (dtype) {
	case SAFETENSORS_I32:
		return (int32_t)saved_u32(bytes);
	case SAFETENSORS_U32:
		return saved_u32(bytes);
	default:
		return (int64_t)saved_u64(bytes);
	}
}

int safetensors_read_integers(const struct safetensors *container,
        const struct safetensors_tensor *tensor, uint64_t first, size_t count, int64_t *out,
        struct saved_error *error)
{
	size_t width = dtypes[tensor->dtype].bits / 8;
	unsigned char bytes[4096];
	size_t most = width ? sizeof(bytes) / width : 0;

	if (tensor->dtype != SAFETENSORS_I32 && tensor->dtype != SAFETENSORS_U32 &&
	        tensor->dtype != SAFETENSORS_I64 && tensor->dtype != SAFETENSORS_U64)
		return saved_fail(error, "snapshot-malformed", "cache_shape",
		        saved_file_path(container->file), tensor->name, (int64_t)tensor->offset,
		        "%s where whole numbers (I32, U32, I64) must be",
		        dtypes[tensor->dtype].name);
	while (count > 0) {
		size_t part = count < most ? count : most;
		if (saved_file_read(container->file, tensor->offset + first * width, part * width,
		            bytes, tensor->name, error))
			return -1;
		for (size_t i = 0; i < part; i++)
			*out++ = integer_at(bytes + i * width, tensor->dtype);
		first += part;
		count -= part;
	}
	return 0;
}
