/* Opening a side file, and finding the stamp of a file in it. */
#include "snapshot/reader.h"
#include "snapshot/saved_options.h"
#include "snapshot/side_names.h"
#include "snapshot/side_parts.h"

#include <stdlib.h>
#include <string.h>

#define PIECE_BYTES ((size_t)1 << 20)

static int fail_side(
        struct saved_error *error, const struct side *side, const char *field, const char *reason)
{
	return saved_fail(
	        error, "snapshot-side-unfit", "side", side->path, field, -1, "%s", reason);
}

/* ---- opening ---- */

/* XXH3-64 of a tensor's bytes. */
static int tensor_print(uint64_t *out, const struct side *side,
        const struct safetensors_tensor *tensor, void *piece, struct side_stream *stream,
        struct saved_error *error)
{
	side_stream_restart(stream);
	for (uint64_t done = 0; done < tensor->bytes;) {
		uint64_t left = tensor->bytes - done;
		size_t bytes = left < PIECE_BYTES ? (size_t)left : PIECE_BYTES;
		if (saved_file_read(side->file, tensor->offset + done, bytes, piece, tensor->name,
		            error) != 0)
			return -1;
		side_stream_add(stream, piece, bytes);
		done += bytes;
	}
	*out = side_stream_print(stream);
	return 0;
}

static int sum_tensors(struct side_sum *sum, const struct side *side, void *piece,
        struct side_stream *stream, struct saved_error *error)
{
	for (size_t i = 0; i < side->container->tensor_count; i++) {
		const struct safetensors_tensor *tensor = &side->container->tensors[i];
		uint64_t print;
		if (strcmp(tensor->name, SIDE_SELF) == 0)
			continue;
		if (tensor->rank > 2)
			return fail_side(error, side, tensor->name, "no tensor of a stamp");
		if (tensor_print(&print, side, tensor, piece, stream, error) != 0)
			return -1;
		side_sum_tensor(
		        sum, tensor->name, tensor->dtype, tensor->rank, tensor->shape, print);
	}
	for (size_t i = 0; i < side->container->metadata_count; i++)
		side_sum_metadata(
		        sum, side->container->metadata[i].key, side->container->metadata[i].value);
	return 0;
}

static int compute_self(uint64_t *out, const struct side *side, struct saved_error *error)
{
	struct side_sum *sum = side_sum_new();
	struct side_stream *stream = side_stream_new();
	void *piece = malloc(PIECE_BYTES);
	int failed = sum && stream && piece ? sum_tensors(sum, side, piece, stream, error)
	                                    : saved_fail_memory(error, side->path);

	if (sum)
		*out = side_sum_end(sum);
	side_stream_free(stream);
	free(piece);
	return failed;
}

static int check_schema(const struct side *side, struct saved_error *error)
{
	const struct safetensors_tensor *self = safetensors_find(side->container, SIDE_SELF);
	const char *schema = safetensors_metadata(side->container, "kvc.schema");

	if (!schema || strcmp(schema, SIDE_SCHEMA) != 0 || !self ||
	        self->dtype != SAFETENSORS_U64 || self->bytes != sizeof(uint64_t))
		return fail_side(
		        error, side, "kvc.schema", "it is no stamp that this version can read");
	return 0;
}

static int check_self(const struct side *side, struct saved_error *error)
{
	const struct safetensors_tensor *self = safetensors_find(side->container, SIDE_SELF);
	uint64_t stored, computed = 0;

	if (saved_file_read(side->file, self->offset, sizeof(stored), &stored, SIDE_SELF, error) !=
	        0)
		return -1;
	if (compute_self(&computed, side, error) != 0)
		return -1;
	if (stored == computed)
		return 0;
	return saved_fail(error, "snapshot-side-damaged", "side_damaged", side->path, SIDE_SELF,
	        (int64_t)self->offset, "it says 0x%016" PRIx64 ", its contents give 0x%016" PRIx64,
	        stored, computed);
}

static int order_files(const void *a, const void *b)
{
	return strcmp(
	        ((const struct stamped_file *)a)->path, ((const struct stamped_file *)b)->path);
}

static int list_stamped_files(struct side *side, struct saved_error *error)
{
	char key[SIDE_NAME_BYTES];
	size_t most = side->container->metadata_count + 1;

	side->files = calloc(most, sizeof(*side->files));
	if (!side->files)
		return saved_fail_memory(error, side->path);
	for (; (size_t)side->file_count < most; side->file_count++) {
		struct stamped_file *file = &side->files[side->file_count];
		snprintf(key, sizeof(key), "f%" PRId64 ".path", side->file_count);
		file->path = safetensors_metadata(side->container, key);
		file->number = side->file_count;
		if (!file->path)
			break;
	}
	qsort(side->files, (size_t)side->file_count, sizeof(*side->files), order_files);
	return 0;
}

/* Its header alone. */
static int open_header(struct side **out, const char *path, struct saved_error *error)
{
	struct side *side = calloc(1, sizeof(*side));

	if (side)
		side->path = strdup(path);
	if (!side || !side->path) {
		side_close(side);
		return saved_fail_memory(error, path);
	}
	if (saved_file_open(&side->file, path, error) != 0 ||
	        safetensors_open(&side->container, side->file, error) != 0 ||
	        check_schema(side, error) != 0) {
		side_close(side);
		return -1;
	}
	*out = side;
	return 0;
}

int side_open(struct side **out, const char *path, struct saved_error *error)
{
	struct side *side;

	if (open_header(&side, path, error) != 0)
		return -1;
	if (check_self(side, error) != 0 || list_stamped_files(side, error) != 0) {
		side_close(side);
		return -1;
	}
	*out = side;
	return 0;
}

bool side_is(const char *path)
{
	struct saved_error error;
	struct side *side;

	if (open_header(&side, path, &error) != 0)
		return false;
	side_close(side);
	return true;
}

char *side_beside(const char *path)
{
	size_t bytes = strlen(path);
	char *name = malloc(bytes + sizeof(SIDE_SUFFIX));

	while (bytes > 1 && path[bytes - 1] == '/') /* a directory that is a cache */
		bytes--;
	if (name)
		snprintf(
		        name, bytes + sizeof(SIDE_SUFFIX), "%.*s%s", (int)bytes, path, SIDE_SUFFIX);
	return name;
}

bool side_has_name(const char *path)
{
	size_t bytes = strlen(path), suffix = strlen(SIDE_SUFFIX);

	return bytes > suffix && strcmp(path + bytes - suffix, SIDE_SUFFIX) == 0;
}

void side_close(struct side *side)
{
	if (!side)
		return;
	safetensors_close(side->container);
	saved_file_close(side->file);
	free(side->files);
	free(side->path);
	free(side);
}

/* ---- the stamp of a file ---- */

const char *side_base_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash && slash[1] ? slash + 1 : path;
}

/* Of a path as UTF-8. */
static int64_t find_mended(const struct side *side, const char *path)
{
	const struct stamped_file wanted = { path, 0 };
	const struct stamped_file *same = bsearch(
	        &wanted, side->files, (size_t)side->file_count, sizeof(wanted), order_files);
	int64_t found = -1;

	if (same)
		return same->number;
	if (side->file_count == 1)
		return side->files[0].number;
	for (int64_t i = 0; i < side->file_count; i++)
		if (strcmp(side_base_name(side->files[i].path), side_base_name(path)) == 0)
			found = found == -1 ? side->files[i].number : -2;
	return found;
}

int64_t side_find_file(const struct side *side, const char *path)
{
	char *mended = saved_utf8(path);
	int64_t number = mended ? find_mended(side, mended) : -1;

	free(mended);
	return number;
}

int64_t side_heads(const struct side *side, const char *path)
{
	int64_t number = side_find_file(side, path);
	char name[SIDE_NAME_BYTES];
	const struct safetensors_tensor *tensor;

	if (number < 0)
		return 0;
	side_layer_name(name, number, 0, 0, SAVED_K);
	tensor = safetensors_find(side->container, name);
	return tensor && tensor->rank == 2 && tensor->shape[1] <= INT32_MAX
	               ? (int64_t)tensor->shape[1]
	               : 0;
}
