/*
 * The few keys of a GGUF header that tell how K is rotated. The header is read once from front to
 * back through a small buffer; nothing is allocated from its numbers.
 */
#include "snapshot/file.h"
#include "snapshot/reader.h"
#include "snapshot/rope_given.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define KEYS_MAX 65536
#define TENSORS_MAX 1048576
#define STRINGS_MAX ((uint64_t)1 << 26) /* entries of an array */
#define TEXT_BYTES 128                  /* longer keys and texts are none of ours */
#define DEPTH_MAX 4
#define BUFFER_BYTES 65536

enum gguf_type {
	GGUF_U8,
	GGUF_I8,
	GGUF_U16,
	GGUF_I16,
	GGUF_U32,
	GGUF_I32,
	GGUF_F32,
	GGUF_BOOL,
	GGUF_STRING,
	GGUF_ARRAY,
	GGUF_U64,
	GGUF_I64,
	GGUF_F64
};

/* What the keys say; numbers are 0 where a key is missing. */
struct gguf_model {
	char architecture[TEXT_BYTES];
	char scaling[TEXT_BYTES];
	double freq_base, scaling_factor, original_context;
	double dimension_count, key_length, heads, kv_heads, embedding, kv_rank, alignment;
};

struct gguf {
	const struct saved_file *file;
	struct saved_error *error;
	uint64_t at; /* next byte */
	uint64_t size;
	unsigned char buffer[BUFFER_BYTES];
	uint64_t buffer_at;
	size_t buffer_bytes;
	uint64_t tensor_count, key_count;
	struct gguf_model model;
};

static int fail_gguf(struct gguf *gguf, const char *field, const char *reason)
{
	return saved_fail(gguf->error, "snapshot-rope-unknown", "gguf", saved_file_path(gguf->file),
	        field, (int64_t)gguf->at, "%s", reason);
}

/* ---- bytes ---- */

static int fill_buffer(struct gguf *gguf)
{
	uint64_t left = gguf->size - gguf->at;

	gguf->buffer_at = gguf->at;
	gguf->buffer_bytes = left < BUFFER_BYTES ? (size_t)left : BUFFER_BYTES;
	return saved_file_read(
	        gguf->file, gguf->at, gguf->buffer_bytes, gguf->buffer, "header", gguf->error);
}

static int gguf_take_bytes(struct gguf *gguf, void *out, size_t bytes)
{
	if (bytes > gguf->size - gguf->at)
		return fail_gguf(gguf, "header", "it ends within the header");
	if (gguf->at < gguf->buffer_at || gguf->at + bytes > gguf->buffer_at + gguf->buffer_bytes) {
		if (fill_buffer(gguf) != 0)
			return -1;
	}
	memcpy(out, gguf->buffer + (gguf->at - gguf->buffer_at), bytes);
	gguf->at += bytes;
	return 0;
}

static int gguf_take_u32(struct gguf *gguf, uint32_t *out)
{
	unsigned char bytes[4];

	if (gguf_take_bytes(gguf, bytes, sizeof(bytes)) != 0)
		return -1;
	*out = saved_u32(bytes);
	return 0;
}

static int gguf_take_u64(struct gguf *gguf, uint64_t *out)
{
	unsigned char bytes[8];

	if (gguf_take_bytes(gguf, bytes, sizeof(bytes)) != 0)
		return -1;
	*out = saved_u64(bytes);
	return 0;
}

static int gguf_skip_bytes(struct gguf *gguf, uint64_t bytes)
{
	if (bytes > gguf->size - gguf->at)
		return fail_gguf(gguf, "header", "it ends within the header");
	gguf->at += bytes;
	return 0;
}

/* Text longer than out is left out: "". */
static int gguf_take_text(struct gguf *gguf, char out[TEXT_BYTES])
{
	uint64_t bytes;

	out[0] = '\0';
	if (gguf_take_u64(gguf, &bytes) != 0)
		return -1;
	if (bytes >= TEXT_BYTES)
		return gguf_skip_bytes(gguf, bytes);
	if (gguf_take_bytes(gguf, out, (size_t)bytes) != 0)
		return -1;
	out[bytes] = '\0';
	return 0;
}

/* ---- values ---- */

static size_t scalar_bytes(uint32_t type)
{
	static const unsigned char bytes[] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };

	return type < sizeof(bytes) ? bytes[type] : 0;
}

static double scalar_value(uint32_t type, const unsigned char *bytes)
{
	uint32_t word = saved_u32(bytes);
	float single;
	double wide;

	switch (type) {
	case GGUF_F32:
		memcpy(&single, &word, sizeof(single));
		return (double)single;
	case GGUF_F64:
		memcpy(&wide, bytes, sizeof(wide));
		return wide;
	case GGUF_U64:
	case GGUF_I64:
		return (double)saved_u64(bytes);
	default:
		return (double)word;
	}
}

static int gguf_take_number(struct gguf *gguf, uint32_t type, double *out)
{
	unsigned char bytes[8] = { 0 };

	if (scalar_bytes(type) == 0)
		return fail_gguf(gguf, "value", "a value has an unknown type");
	if (gguf_take_bytes(gguf, bytes, scalar_bytes(type)) != 0)
		return -1;
	*out = scalar_value(type, bytes);
	return 0;
}

static int skip_value(struct gguf *gguf, uint32_t type, int depth);

/* The entries; *first becomes the first number above 0 (heads of each layer, 0 where it has none). */
static int gguf_take_array(struct gguf *gguf, double *first, int depth)
{
	uint32_t type;
	uint64_t count;

	if (gguf_take_u32(gguf, &type) != 0 || gguf_take_u64(gguf, &count) != 0)
		return -1;
	if (count > STRINGS_MAX || depth > DEPTH_MAX)
		return fail_gguf(gguf, "array", "an array is too long or too deep");
	for (uint64_t i = 0; i < count; i++) {
		double number = 0;
		int failed = scalar_bytes(type) ? gguf_take_number(gguf, type, &number)
		                                : skip_value(gguf, type, depth + 1);
		if (failed)
			return -1;
		if (*first <= 0 && number > 0)
			*first = number;
	}
	return 0;
}

static int skip_value(struct gguf *gguf, uint32_t type, int depth)
{
	double number = 0;
	uint64_t bytes;

	if (type == GGUF_ARRAY)
		return gguf_take_array(gguf, &number, depth);
	if (type != GGUF_STRING)
		return gguf_take_number(gguf, type, &number);
	return gguf_take_u64(gguf, &bytes) != 0 ? -1 : gguf_skip_bytes(gguf, bytes);
}

/* ---- keys ---- */

static double *number_for(struct gguf_model *model, const char *key)
{
	const struct {
		const char *suffix;
		double *number;
	} known[] = {
		{ ".rope.freq_base", &model->freq_base },
		{ ".rope.dimension_count", &model->dimension_count },
		{ ".rope.scaling.factor", &model->scaling_factor },
		{ ".rope.scaling.original_context_length", &model->original_context },
		{ ".attention.head_count", &model->heads },
		{ ".attention.head_count_kv", &model->kv_heads },
		{ ".attention.key_length", &model->key_length },
		{ ".attention.kv_lora_rank", &model->kv_rank },
		{ ".embedding_length", &model->embedding },
		{ "general.alignment", &model->alignment },
	};
	size_t prefix = strlen(model->architecture);

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		bool general = known[i].suffix[0] != '.';
		if (!general && (prefix == 0 || strncmp(key, model->architecture, prefix) != 0))
			continue;
		if (strcmp(general ? key : key + prefix, known[i].suffix) == 0)
			return known[i].number;
	}
	return NULL;
}

static char *text_for(struct gguf_model *model, const char *key)
{
	size_t prefix = strlen(model->architecture);

	if (strcmp(key, "general.architecture") == 0)
		return model->architecture;
	if (prefix && strncmp(key, model->architecture, prefix) == 0 &&
	        strcmp(key + prefix, ".rope.scaling.type") == 0)
		return model->scaling;
	return NULL;
}

/* The architecture is the first key in every file, so the others are known when they come. */
static int take_pair(struct gguf *gguf)
{
	char key[TEXT_BYTES], *text;
	double *number;
	uint32_t type;

	if (gguf_take_text(gguf, key) != 0 || gguf_take_u32(gguf, &type) != 0)
		return -1;
	text = text_for(&gguf->model, key);
	if (text && type == GGUF_STRING)
		return gguf_take_text(gguf, text);
	number = number_for(&gguf->model, key);
	if (number && type == GGUF_ARRAY)
		return gguf_take_array(gguf, number, 1);
	if (number && type != GGUF_STRING)
		return gguf_take_number(gguf, type, number);
	return skip_value(gguf, type, 1);
}

static int take_header(struct gguf *gguf)
{
	uint32_t version;

	gguf->at = 4;
	if (gguf_take_u32(gguf, &version) != 0)
		return -1;
	if (version < 2 || version > 3)
		return fail_gguf(gguf, "version", "it is not of version 2 or 3");
	if (gguf_take_u64(gguf, &gguf->tensor_count) != 0 ||
	        gguf_take_u64(gguf, &gguf->key_count) != 0)
		return -1;
	if (gguf->tensor_count > TENSORS_MAX || gguf->key_count > KEYS_MAX)
		return fail_gguf(gguf, "count", "it claims too many tensors or keys");
	for (uint64_t i = 0; i < gguf->key_count; i++)
		if (take_pair(gguf) != 0)
			return -1;
	return 0;
}

/* ---- "rope_freqs.weight": the divisors of llama 3.1 and others ---- */

struct gguf_tensor {
	uint64_t elements; /* of its first dimension; 0: not there */
	uint64_t offset;
};

static int take_tensors(struct gguf *gguf, struct gguf_tensor *factors)
{
	for (uint64_t i = 0; i < gguf->tensor_count; i++) {
		char name[TEXT_BYTES];
		uint32_t rank, type;
		uint64_t shape[4] = { 0 }, offset;
		if (gguf_take_text(gguf, name) != 0 || gguf_take_u32(gguf, &rank) != 0)
			return -1;
		if (rank > 4)
			return fail_gguf(gguf, "rank", "a tensor has too many dimensions");
		for (uint32_t d = 0; d < rank; d++)
			if (gguf_take_u64(gguf, &shape[d]) != 0)
				return -1;
		if (gguf_take_u32(gguf, &type) != 0 || gguf_take_u64(gguf, &offset) != 0)
			return -1;
		if (strcmp(name, "rope_freqs.weight") == 0 && type == 0)
			*factors = (struct gguf_tensor){ shape[0], offset };
	}
	return 0;
}

static int take_factors(struct gguf *gguf, struct rope_given *out)
{
	struct gguf_tensor tensor = { 0, 0 };
	uint64_t alignment = 32, data;

	if (take_tensors(gguf, &tensor) != 0)
		return -1;
	if (tensor.elements == 0 || tensor.elements > KVC_ROTARY_DIM_MAX / 2)
		return 0;
	if (gguf->model.alignment >= 1 && gguf->model.alignment <= 1048576)
		alignment = (uint64_t)gguf->model.alignment;
	data = (gguf->at + alignment - 1) / alignment * alignment;
	if (data > gguf->size || tensor.offset > gguf->size - data)
		return fail_gguf(gguf, "rope_freqs.weight", "it lies past the end");
	gguf->at = data + tensor.offset;
	for (uint64_t i = 0; i < tensor.elements; i++) {
		if (gguf_take_number(gguf, GGUF_F32, &out->factors[i]) != 0)
			return -1;
		if (!isfinite(out->factors[i]) || out->factors[i] <= 0)
			return fail_gguf(gguf, "rope_freqs.weight", "a factor is not above 0");
	}
	out->factor_count = (int64_t)tensor.elements;
	return 0;
}

/* ---- putting it together ---- */

static int64_t whole(double number)
{
	return number >= 1 && number <= 65536 ? (int64_t)number : 0;
}

static int use_model(struct gguf *gguf, struct rope_given *out)
{
	const struct gguf_model *model = &gguf->model;
	int64_t dim = whole(model->key_length);

	if (!model->architecture[0])
		return fail_gguf(gguf, "general.architecture", "the key is missing");
	if (isfinite(model->freq_base) && model->freq_base > 0)
		out->options.rope_base = model->freq_base;
	out->heads = whole(model->kv_heads) ? whole(model->kv_heads) : whole(model->heads);
	if (!dim && whole(model->heads))
		dim = whole(model->embedding) / whole(model->heads);
	out->rotary_dim = whole(model->dimension_count) / 2 * 2;
	if (out->rotary_dim == dim || out->rotary_dim > KVC_ROTARY_DIM_MAX)
		out->rotary_dim = 0;
	if (whole(model->kv_rank)) { /* MLA */
		out->heads = 1;
		out->rotary_offset = whole(model->kv_rank);
		out->rotary_dim = whole(model->dimension_count);
	}
	if (strcmp(model->scaling, "linear") == 0)
		out->options.scaling = KVC_ROPE_SCALING_LINEAR;
	else if (strcmp(model->scaling, "yarn") == 0)
		out->options.scaling = KVC_ROPE_SCALING_YARN;
	if (model->scaling_factor > 0)
		out->options.factor = model->scaling_factor;
	out->options.original_max_position = model->original_context;
	return 0;
}

int rope_from_gguf(struct rope_given *out, const struct saved_file *file, struct saved_error *error)
{
	struct gguf *gguf = calloc(1, sizeof(*gguf));
	int failed;

	*out = (struct rope_given){ .options = KVC_ROPE_OPTIONS_INIT };
	if (!gguf)
		return saved_fail_memory(error, saved_file_path(file));
	gguf->file = file;
	gguf->error = error;
	gguf->size = saved_file_size(file);
	failed = gguf->size < 24 ? fail_gguf(gguf, "header", "it is too short") : 0;
	if (!failed)
		failed = take_header(gguf);
	if (!failed)
		failed = take_factors(gguf, out);
	if (!failed)
		failed = use_model(gguf, out);
	free(gguf);
	return failed;
}
