/* --rope and config.json; the GGUF has rope_gguf.c. */
#include "snapshot/rope_given.h"
#include "snapshot/file.h"
#include "snapshot/reader.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CONFIG_BYTES_MAX ((uint64_t)16 << 20)

static const struct rope_given blank = { .options = KVC_ROPE_OPTIONS_INIT };

/* ---- --rope ---- */

static bool read_style(struct rope_given *out, const char *text, size_t bytes)
{
	static const struct {
		const char *name;
		int style;
	} styles[] = {
		{ "half", KVC_ROPE_NEOX },
		{ "neox", KVC_ROPE_NEOX },
		{ "mrope", KVC_ROPE_NEOX }, /* of text: x and y are the position */
		{ "interleaved", KVC_ROPE_INTERLEAVED },
		{ "norm", KVC_ROPE_INTERLEAVED },
		{ "auto", -1 },
	};

	for (size_t i = 0; i < sizeof(styles) / sizeof(styles[0]); i++) {
		if (strlen(styles[i].name) != bytes || strncmp(styles[i].name, text, bytes) != 0)
			continue;
		out->style_known = styles[i].style >= 0;
		out->options.style = out->style_known ? styles[i].style : KVC_ROPE_NEOX;
		return true;
	}
	return false;
}

/* ",N" or nothing. */
static bool read_next(int64_t *out, const char **text, int64_t most)
{
	char *end;
	long long number;

	if (**text == '\0')
		return true;
	errno = 0;
	number = strtoll(*text + 1, &end, 10);
	if (**text != ',' || end == *text + 1 || errno != 0 || number < 0 || number > most)
		return false;
	*out = number;
	*text = end;
	return true;
}

bool rope_given_parse(struct rope_given *out, const char *text)
{
	char *end;
	size_t bytes;

	*out = blank;
	out->options.rope_base = strtod(text, &end);
	if (end == text || *end != ',' || !isfinite(out->options.rope_base) ||
	        out->options.rope_base <= 0)
		return false;
	text = end + 1;
	bytes = strcspn(text, ",");
	if (!read_style(out, text, bytes))
		return false;
	text += bytes;
	return read_next(&out->rotary_dim, &text, KVC_ROTARY_DIM_MAX) &&
	       read_next(&out->rotary_offset, &text, INT32_MAX) && *text == '\0' &&
	       out->rotary_dim % 2 == 0;
}

/* ---- config.json ---- */

static double number_of(const json_t *object, const char *name, double otherwise)
{
	const json_t *value = json_object_get(object, name);

	return json_is_number(value) ? json_number_value(value) : otherwise;
}

static int64_t count_of(const json_t *object, const char *name)
{
	const json_t *value = json_object_get(object, name);
	json_int_t count = json_is_integer(value) ? json_integer_value(value) : 0;

	return count > 0 && count <= INT32_MAX ? count : 0;
}

static const char *text_of(const json_t *object, const char *name)
{
	const char *text = json_string_value(json_object_get(object, name));

	return text ? text : "";
}

/* "rope_scaling", or since transformers 5 "rope_parameters", which holds the base, too. */
static bool read_scaling(struct rope_given *out, const json_t *scaling)
{
	const char *type = text_of(scaling, "rope_type");
	kvc_rope_options *options = &out->options;

	if (!json_is_object(scaling))
		return true;
	if (!type[0])
		type = text_of(scaling, "type");
	if (strcmp(type, "linear") == 0)
		options->scaling = KVC_ROPE_SCALING_LINEAR;
	else if (strcmp(type, "llama3") == 0)
		options->scaling = KVC_ROPE_SCALING_LLAMA3;
	else if (strcmp(type, "yarn") == 0)
		options->scaling = KVC_ROPE_SCALING_YARN;
	else if (type[0] && strcmp(type, "default") != 0 && strcmp(type, "mrope") != 0)
		return false; /* dynamic, longrope: frequencies that change with the length */
	options->rope_base = number_of(scaling, "rope_theta", options->rope_base);
	options->factor = number_of(scaling, "factor", options->factor);
	options->low_freq_factor = number_of(scaling, "low_freq_factor", options->low_freq_factor);
	options->high_freq_factor =
	        number_of(scaling, "high_freq_factor", options->high_freq_factor);
	options->original_max_position = number_of(
	        scaling, "original_max_position_embeddings", options->original_max_position);
	options->beta_fast = number_of(scaling, "beta_fast", options->beta_fast);
	options->beta_slow = number_of(scaling, "beta_slow", options->beta_slow);
	return true;
}

static void read_heads(struct rope_given *out, const json_t *config)
{
	int64_t query_heads = count_of(config, "num_attention_heads");
	int64_t dim = count_of(config, "head_dim"), rank = count_of(config, "kv_lora_rank");
	double partial = number_of(config, "partial_rotary_factor", 1);

	out->heads = count_of(config, "num_key_value_heads");
	if (!out->heads)
		out->heads = query_heads;
	if (!dim && query_heads)
		dim = count_of(config, "hidden_size") / query_heads;
	if (partial > 0 && partial < 1)
		out->rotary_dim = (int64_t)((double)dim * partial);
	if (rank) { /* MLA: one row, compressed values and then the rotated ones */
		out->heads = 1;
		out->rotary_offset = rank;
		out->rotary_dim = count_of(config, "qk_rope_head_dim");
	}
}

int rope_from_config(struct rope_given *out, const char *text, size_t bytes, const char *path,
        struct saved_error *error)
{
	json_error_t place;
	json_t *root = json_loadb(text, bytes, 0, &place);
	const json_t *config = root, *scaling;
	bool good;

	*out = blank;
	if (!json_is_object(root)) {
		json_decref(root);
		return saved_fail(error, "snapshot-rope-unknown", "config", path, "config.json",
		        root ? 0 : place.position, "it is no JSON object");
	}
	if (json_is_object(json_object_get(root, "text_config")))
		config = json_object_get(root, "text_config");
	out->options.rope_base = number_of(config, "rope_theta", out->options.rope_base);
	scaling = json_object_get(config, "rope_parameters");
	if (!scaling)
		scaling = json_object_get(config, "rope_scaling");
	good = read_scaling(out, scaling);
	/* Layer 0, the only one that is looked at, slides where the layers differ (gemma 3). */
	out->options.rope_base = number_of(config, "rope_local_base_freq", out->options.rope_base);
	read_heads(out, config);
	json_decref(root);
	if (good)
		return 0;
	return saved_fail(error, "snapshot-rope-unknown", "config", path, "rope_scaling", -1,
	        "a scaling whose frequencies depend on the length of the text");
}

static int read_config(
        struct rope_given *out, const struct saved_file *file, struct saved_error *error)
{
	uint64_t bytes = saved_file_size(file);
	const char *path = saved_file_path(file);
	char *text;
	int failed;

	if (bytes > CONFIG_BYTES_MAX)
		return saved_fail(error, "snapshot-rope-unknown", "config", path, "", -1,
		        "it is neither a GGUF nor a config.json");
	text = malloc((size_t)bytes + 1);
	if (!text)
		return saved_fail_memory(error, path);
	failed = saved_file_read(file, 0, (size_t)bytes, text, "config.json", error);
	if (!failed)
		failed = rope_from_config(out, text, (size_t)bytes, path, error);
	free(text);
	return failed;
}

int rope_given_read(struct rope_given *out, const char *path, struct saved_error *error)
{
	struct saved_file *file;
	char magic[4] = "";
	int failed;

	*out = blank;
	if (saved_file_open(&file, path, error) != 0)
		return -1;
	failed = saved_file_size(file) < sizeof(magic)
	                 ? 0
	                 : saved_file_read(file, 0, sizeof(magic), magic, "magic", error);
	if (!failed)
		failed = memcmp(magic, "GGUF", 4) == 0 ? rope_from_gguf(out, file, error)
		                                       : read_config(out, file, error);
	saved_file_close(file);
	return failed;
}

/* ---- frequencies ---- */

bool rope_given_init(
        kvc_rope *out, const struct rope_given *given, int64_t dim, double base, int style)
{
	kvc_rope_options options = given->options;
	int64_t room = dim - given->rotary_offset;
	int64_t rotary = given->rotary_dim ? given->rotary_dim : room;

	if (room <= 0 || rotary > room || rotary > KVC_ROTARY_DIM_MAX || rotary % 2 != 0)
		return false;
	options.rotary_dim = (int32_t)rotary;
	options.style = style;
	if (base > 0)
		options.rope_base = base;
	if (kvc_rope_init(out, &options) != KVC_OK)
		return false;
	for (int64_t i = 0; i < given->factor_count && i < rotary / 2; i++)
		out->inv_freq[i] /= given->factors[i];
	return true;
}
