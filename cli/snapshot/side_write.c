/* Writing a side file: all tensors are declared in a first pass over the files, filled in a second. */
#include "snapshot/reader.h"
#include "snapshot/saved_options.h"
#include "snapshot/scan.h"
#include "snapshot/side.h"
#include "snapshot/side_names.h"
#include "snapshot/work.h"
#include "snapshot/write_safetensors.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define PIECE_BYTES ((size_t)128 << 10)
#define PACKED_ROWS 8 /* of 64-bit numbers: a line of cache */

/* One tensor of the side file. */
struct declared {
	char name[SIDE_NAME_BYTES];
	enum safetensors_dtype dtype;
	uint32_t rank;
	uint64_t shape[2];
	size_t number; /* the writer's */
	uint64_t print;
};

struct pair {
	char *key;
	char *value;
};

struct stamping {
	struct safetensors_writer *writer;
	struct declared *tensors;
	size_t tensor_count, tensor_capacity;
	struct pair *pairs;
	size_t pair_count, pair_capacity;
	size_t self; /* number of SIDE_SELF */
	bool no_memory;
	/* The file being stamped. */
	const struct saved_cache *cache;
	size_t first_item; /* its first row tensor among 'tensors' */
	struct item_place *items;
	int64_t item_count;
	struct scan_memory *memory; /* of each thread */
	pthread_mutex_t lock;
	struct saved_error *error;
	bool failed;
};

/* Which rows an item of work stamps. */
struct item_place {
	int64_t part;
	int64_t layer;
	int tensor;
};

/* ---- declaring ---- */

/* Room for one more; NULL and no_memory if there is none. */
static void *grow_declared(
        struct stamping *stamping, void **list, size_t count, size_t *capacity, size_t entry_bytes)
{
	if (count == *capacity) {
		size_t more = *capacity ? 2 * *capacity : 64;
		void *longer = realloc(*list, more * entry_bytes);
		if (!longer) {
			stamping->no_memory = true;
			return NULL;
		}
		*list = longer;
		*capacity = more;
	}
	return (char *)*list + count * entry_bytes;
}

static void declare_text(struct stamping *stamping, const char *key, const char *value)
{
	void *list = stamping->pairs;
	struct pair *pair = grow_declared(
	        stamping, &list, stamping->pair_count, &stamping->pair_capacity, sizeof(*pair));

	stamping->pairs = list;
	if (!pair)
		return;
	*pair = (struct pair){ strdup(key), strdup(value) };
	stamping->pair_count++;
	stamping->no_memory |= !pair->key || !pair->value;
	safetensors_writer_metadata(stamping->writer, key, value);
}

static void declare_tensor(struct stamping *stamping, const char *name,
        enum safetensors_dtype dtype, int64_t rows, int64_t heads)
{
	void *list = stamping->tensors;
	struct declared *tensor = grow_declared(stamping, &list, stamping->tensor_count,
	        &stamping->tensor_capacity, sizeof(*tensor));

	stamping->tensors = list;
	if (!tensor)
		return;
	*tensor = (struct declared){ .dtype = dtype,
		.rank = heads > 0 ? 2 : 1,
		.shape = { (uint64_t)rows, (uint64_t)heads } };
	snprintf(tensor->name, sizeof(tensor->name), "%s", name);
	tensor->number = safetensors_writer_tensor(
	        stamping->writer, name, dtype, tensor->rank, tensor->shape);
	stamping->tensor_count++;
}

static void declare_cells(
        struct stamping *stamping, int64_t file, int64_t number, const struct saved_part *part)
{
	char name[SIDE_NAME_BYTES], value[128];

	side_part_name(name, file, number, "");
	snprintf(value, sizeof(value), "%.64s %" PRId64 " %" PRId64, part->name ? part->name : "kv",
	        part->stream, part->layer_count);
	declare_text(stamping, name, value);
	side_part_name(name, file, number, "positions");
	declare_tensor(stamping, name, SAFETENSORS_I64, part->row_count, 0);
	if (part->tokens) {
		side_part_name(name, file, number, "tokens");
		declare_tensor(stamping, name, SAFETENSORS_I64, part->row_count, 0);
	}
	if (!part->sequences)
		return;
	side_part_name(name, file, number, "sequences");
	declare_tensor(
	        stamping, name, SAFETENSORS_I32, (int64_t)part->sequence_begin[part->row_count], 0);
	side_part_name(name, file, number, "sequence_begin");
	declare_tensor(stamping, name, SAFETENSORS_U64, part->row_count + 1, 0);
}

static void declare_rows(struct stamping *stamping, int64_t file, const struct saved_part *part,
        int64_t number, int64_t layer, int kv)
{
	const struct saved_tensor *tensor = &part->layers[layer].tensor[kv];
	char name[SIDE_NAME_BYTES], value[128];

	side_layer_name(name, file, number, layer, kv);
	snprintf(value, sizeof(value), "%" PRId64 " %.32s %" PRId64, part->layers[layer].number,
	        tensor->type_name, tensor->dim);
	declare_text(stamping, name, value);
	declare_tensor(stamping, name, SAFETENSORS_U64, part->row_count, tensor->heads);
}

static void declare_file(struct stamping *stamping, int64_t file, const struct saved_cache *cache)
{
	char key[SIDE_NAME_BYTES], value[32];
	char *path = saved_utf8(cache->path);

	snprintf(key, sizeof(key), "f%" PRId64 ".path", file);
	declare_text(stamping, key, path ? path : "");
	stamping->no_memory |= !path;
	free(path);
	snprintf(key, sizeof(key), "f%" PRId64 ".format", file);
	declare_text(stamping, key, cache->format);
	snprintf(key, sizeof(key), "f%" PRId64 ".bytes", file);
	snprintf(value, sizeof(value), "%" PRIu64, cache->file_bytes);
	declare_text(stamping, key, value);
	snprintf(key, sizeof(key), "f%" PRId64 ".parts", file);
	snprintf(value, sizeof(value), "%" PRId64, cache->part_count);
	declare_text(stamping, key, value);
	for (int64_t i = 0; i < cache->identity_count; i++) {
		side_identity_name(key, file, cache->identity[i].field);
		declare_text(stamping, key, cache->identity[i].value);
	}
	for (int64_t part = 0; part < cache->part_count; part++)
		declare_cells(stamping, file, part, &cache->parts[part]);
	for (int64_t part = 0; part < cache->part_count; part++)
		for (int64_t layer = 0; layer < cache->parts[part].layer_count; layer++)
			for (int kv = SAVED_K; kv <= SAVED_V; kv++)
				if (cache->parts[part].layers[layer].tensor[kv].present)
					declare_rows(stamping, file, &cache->parts[part], part,
					        layer, kv);
}

static int declare_all(struct stamping *stamping, const struct side_source *sources, int64_t count,
        struct saved_error *error)
{
	declare_text(stamping, "kvc.schema", SIDE_SCHEMA);
	declare_text(stamping, "hash", "kvc xxh3");
	for (int64_t i = 0; i < count; i++) {
		struct saved_cache *cache;
		if (saved_open(&cache, sources[i].path, &sources[i].options, error) != 0)
			return -1;
		declare_file(stamping, i, cache);
		saved_close(cache);
	}
	stamping->self = stamping->tensor_count;
	declare_tensor(stamping, SIDE_SELF, SAFETENSORS_U64, 1, 0);
	if (stamping->no_memory)
		return saved_fail_memory(error, sources[0].path);
	return safetensors_writer_begin(stamping->writer, error);
}

/* ---- filling ---- */

static int write_whole(struct stamping *stamping, struct declared *tensor, const void *data,
        struct saved_error *error)
{
	size_t bytes = (size_t)tensor->shape[0] * safetensors_dtype_bits(tensor->dtype) / 8;
	struct side_stream *stream = side_stream_new();

	if (!stream)
		return saved_fail_memory(error, tensor->name);
	side_stream_add(stream, data, bytes);
	tensor->print = side_stream_print(stream);
	side_stream_free(stream);
	return safetensors_writer_write(stamping->writer, tensor->number, 0, data, bytes, error);
}

static int write_positions(struct stamping *stamping, struct declared *tensor,
        const struct saved_part *part, struct saved_error *error)
{
	size_t rows = (size_t)part->row_count;
	int64_t *positions = malloc((rows + 1) * sizeof(*positions));
	int failed;

	if (!positions)
		return saved_fail_memory(error, tensor->name);
	for (int64_t row = 0; row < part->row_count; row++)
		positions[row] = saved_position(part, row);
	failed = write_whole(stamping, tensor, positions, error);
	free(positions);
	return failed;
}

/* In the order of declare_cells(). */
static int write_cells(struct stamping *stamping, struct declared **tensor,
        const struct saved_part *part, struct saved_error *error)
{
	if (write_positions(stamping, (*tensor)++, part, error) != 0)
		return -1;
	if (part->tokens && write_whole(stamping, (*tensor)++, part->tokens, error) != 0)
		return -1;
	if (!part->sequences)
		return 0;
	if (write_whole(stamping, (*tensor)++, part->sequences, error) != 0)
		return -1;
	return write_whole(stamping, (*tensor)++, part->sequence_begin, error);
}

/* Rows on their way into the side file. */
struct stamped_rows {
	struct stamping *stamping;
	const struct declared *tensor;
	uint64_t *packed; /* NULL, or [count][heads] of the first rows: the others are no more */
};

/* Rows by rows out of heads by heads: a few rows at a time, so that their lines stay in cache. */
static void pack_rows(uint64_t *out, const struct scan_rows *rows, int64_t heads)
{
	for (int64_t first = 0; first < rows->count; first += PACKED_ROWS) {
		int64_t end = rows->count - first < PACKED_ROWS ? rows->count : first + PACKED_ROWS;
		for (int64_t head = 0; head < heads; head++)
			for (int64_t i = first; i < end; i++)
				out[i * heads + head] = rows->fingerprints[scan_at(rows, i, head)];
	}
}

static int write_rows(void *context, const struct scan_rows *rows, struct saved_error *error)
{
	struct stamped_rows *to = context;
	uint64_t heads = to->tensor->shape[1];
	size_t bytes = (size_t)rows->count * (size_t)heads * sizeof(uint64_t);
	const uint64_t *packed = rows->fingerprints;

	if (rows->head_stride != 1) {
		to->packed = to->packed ? to->packed : malloc(bytes);
		if (!to->packed)
			return saved_fail_memory(error, to->tensor->name);
		pack_rows(to->packed, rows, (int64_t)heads);
		packed = to->packed;
	}
	return safetensors_writer_write(to->stamping->writer, to->tensor->number,
	        (uint64_t)rows->first * heads * sizeof(uint64_t), packed, bytes, error);
}

/* Only the first error is kept. */
static bool stamp_failed(struct stamping *stamping, const struct saved_error *error)
{
	pthread_mutex_lock(&stamping->lock);
	if (!stamping->failed)
		*stamping->error = *error;
	stamping->failed = true;
	pthread_mutex_unlock(&stamping->lock);
	return false;
}

static const struct saved_tensor *tensor_of(const struct stamping *stamping, int64_t number)
{
	const struct item_place *item = &stamping->items[number];

	return &stamping->cache->parts[item->part].layers[item->layer].tensor[item->tensor];
}

static int64_t stamped_row_count(const struct stamping *stamping, int64_t number)
{
	return stamping->cache->parts[stamping->items[number].part].row_count;
}

static int64_t count_stamp_blocks(void *context, int64_t number)
{
	const struct stamping *stamping = context;

	return scan_block_count(tensor_of(stamping, number), stamped_row_count(stamping, number));
}

static bool stamp_block(void *context, int64_t number, int slot, int64_t block, int thread)
{
	struct stamping *stamping = context;
	int64_t rows = stamped_row_count(stamping, number),
	        blocks = count_stamp_blocks(context, number);
	struct stamped_rows to = { stamping,
		&stamping->tensors[stamping->first_item + (size_t)number], NULL };
	struct saved_error error;
	int failed;

	(void)slot;
	failed = scan_tensor(tensor_of(stamping, number), scan_block_first(rows, blocks, block),
	        scan_block_first(rows, blocks, block + 1), &stamping->memory[thread], write_rows,
	        &to, &error);
	free(to.packed);
	return !failed || stamp_failed(stamping, &error);
}

/* The print of a tensor of the side file out of what was written: blocks come in any order. */
static int print_written(const struct stamping *stamping, struct declared *tensor, void *piece,
        struct side_stream *stream, struct saved_error *error)
{
	uint64_t bytes = tensor->shape[0] * tensor->shape[1] * sizeof(uint64_t);

	for (uint64_t done = 0; done < bytes;) {
		size_t some = bytes - done < PIECE_BYTES ? (size_t)(bytes - done) : PIECE_BYTES;
		if (safetensors_writer_read(
		            stamping->writer, tensor->number, done, piece, some, error) != 0)
			return -1;
		side_stream_add(stream, piece, some);
		done += some;
	}
	tensor->print = side_stream_print(stream);
	return 0;
}

static bool end_stamp(void *context, int64_t number, int slot, int thread)
{
	struct stamping *stamping = context;
	struct declared *tensor = &stamping->tensors[stamping->first_item + (size_t)number];
	struct side_stream *stream = side_stream_new();
	void *piece = malloc(PIECE_BYTES);
	struct saved_error error;
	int failed;

	(void)slot;
	(void)thread;
	failed = stream && piece ? print_written(stamping, tensor, piece, stream, &error)
	                         : saved_fail_memory(&error, stamping->cache->path);
	side_stream_free(stream);
	free(piece);
	return !failed || stamp_failed(stamping, &error);
}

static bool stamp_items(struct stamping *stamping, int threads)
{
	const struct work_in_parts work = { stamping->item_count, count_stamp_blocks,
		WORK_THREADS_MAX, NULL, stamp_block, end_stamp, stamping };

	return work_run_in_parts(&work, threads);
}

/* The items of the file, and whether it still is what was declared. */
static int list_file(struct stamping *stamping, size_t first, size_t end)
{
	const struct saved_cache *cache = stamping->cache;

	stamping->items = calloc(end - first + 1, sizeof(*stamping->items));
	stamping->item_count = 0;
	stamping->first_item = first;
	for (int64_t part = 0; stamping->items && part < cache->part_count; part++)
		for (int64_t layer = 0; layer < cache->parts[part].layer_count; layer++)
			for (int kv = SAVED_K; kv <= SAVED_V; kv++) {
				const struct saved_tensor *tensor =
				        &cache->parts[part].layers[layer].tensor[kv];
				const struct declared *declared =
				        &stamping->tensors[first + (size_t)stamping->item_count];
				if (!tensor->present)
					continue;
				if (declared == &stamping->tensors[end] ||
				        declared->shape[0] !=
				                (uint64_t)cache->parts[part].row_count ||
				        declared->shape[1] != (uint64_t)tensor->heads)
					return -1;
				stamping->items[stamping->item_count++] =
				        (struct item_place){ part, layer, kv };
			}
	return stamping->items && first + (size_t)stamping->item_count == end ? 0 : -1;
}

/* Tensors of cells of a file, which come before those of its rows. */
static size_t cell_tensors(const struct saved_cache *cache)
{
	size_t count = 0;

	for (int64_t part = 0; part < cache->part_count; part++)
		count += 1u + (cache->parts[part].tokens != NULL) +
		         (cache->parts[part].sequences ? 2u : 0u);
	return count;
}

static size_t row_tensors(const struct saved_cache *cache)
{
	size_t count = 0;

	for (int64_t part = 0; part < cache->part_count; part++)
		for (int64_t layer = 0; layer < cache->parts[part].layer_count; layer++)
			count += (size_t)cache->parts[part].layers[layer].tensor[SAVED_K].present +
			         (size_t)cache->parts[part].layers[layer].tensor[SAVED_V].present;
	return count;
}

static bool cells_as_declared(
        const struct declared *tensor, const struct saved_cache *cache, size_t *end)
{
	const struct declared *first = tensor;

	for (int64_t i = 0; i < cache->part_count; i++) {
		const struct saved_part *part = &cache->parts[i];
		if ((tensor++)->shape[0] != (uint64_t)part->row_count)
			return false;
		if (part->tokens && ((tensor++)->shape[0] != (uint64_t)part->row_count ||
		                            tensor[-1].dtype != SAFETENSORS_I64))
			return false;
		if (part->sequences &&
		        ((tensor++)->shape[0] != part->sequence_begin[part->row_count] ||
		                (tensor++)->shape[0] != (uint64_t)part->row_count + 1))
			return false;
	}
	*end += (size_t)(tensor - first);
	return true;
}

static int fail_changed_file(const struct saved_cache *cache, struct saved_error *error)
{
	return saved_fail(error, "cli-input-unreadable", "changed", cache->path, "", -1,
	        "it changed while it was being stamped");
}

static int stamp_file(
        struct stamping *stamping, size_t *next, int threads, struct saved_error *error)
{
	const struct saved_cache *cache = stamping->cache;
	size_t cells = cell_tensors(cache), rows = row_tensors(cache), end = *next;
	struct declared *tensor = &stamping->tensors[*next];
	int failed = 0;

	if (*next + cells + rows > stamping->self || !cells_as_declared(tensor, cache, &end) ||
	        list_file(stamping, end, end + rows) != 0)
		return fail_changed_file(cache, error);
	for (int64_t part = 0; part < cache->part_count && !failed; part++)
		failed = write_cells(stamping, &tensor, &cache->parts[part], error);
	if (!failed)
		failed = stamp_items(stamping, threads) ? 0 : -1;
	*next = end + rows;
	return failed;
}

static int stamp_all(struct stamping *stamping, const struct side_source *sources, int64_t count,
        int threads, struct saved_error *error)
{
	size_t next = 0;
	int failed = 0;

	for (int64_t i = 0; i < count && !failed; i++) {
		struct saved_cache *cache;
		if (saved_open(&cache, sources[i].path, &sources[i].options, error) != 0)
			return -1;
		stamping->cache = cache;
		failed = stamp_file(stamping, &next, threads, error);
		free(stamping->items);
		stamping->items = NULL;
		saved_close(cache);
	}
	return failed;
}

/* ---- the fingerprint of the whole ---- */

static int order_declared(const void *a, const void *b)
{
	return strcmp(((const struct declared *)a)->name, ((const struct declared *)b)->name);
}

static int order_pairs(const void *a, const void *b)
{
	return strcmp(((const struct pair *)a)->key, ((const struct pair *)b)->key);
}

static int write_self(struct stamping *stamping, struct saved_error *error)
{
	struct declared self = stamping->tensors[stamping->self];
	struct side_sum *sum = side_sum_new();
	uint64_t print;

	if (!sum)
		return saved_fail_memory(error, SIDE_SELF);
	qsort(stamping->tensors, stamping->self, sizeof(*stamping->tensors), order_declared);
	qsort(stamping->pairs, stamping->pair_count, sizeof(*stamping->pairs), order_pairs);
	for (size_t i = 0; i < stamping->self; i++) {
		const struct declared *tensor = &stamping->tensors[i];
		side_sum_tensor(sum, tensor->name, tensor->dtype, tensor->rank, tensor->shape,
		        tensor->print);
	}
	for (size_t i = 0; i < stamping->pair_count; i++)
		side_sum_metadata(sum, stamping->pairs[i].key, stamping->pairs[i].value);
	print = side_sum_end(sum);
	return safetensors_writer_write(
	        stamping->writer, self.number, 0, &print, sizeof(print), error);
}

static void stamping_free(struct stamping *stamping, int threads)
{
	for (int i = 0; stamping->memory && i < threads; i++)
		scan_memory_free(&stamping->memory[i]);
	for (size_t i = 0; i < stamping->pair_count; i++) {
		free(stamping->pairs[i].key);
		free(stamping->pairs[i].value);
	}
	free(stamping->memory);
	free(stamping->pairs);
	free(stamping->tensors);
	pthread_mutex_destroy(&stamping->lock);
}

/* Only a stamp is replaced, or an empty file: anything else may be a cache, or a page or the manifest of
 * one. */
static int refuse_to_replace(const char *path, struct saved_error *error)
{
	struct stat status;

	if (stat(path, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size == 0 ||
	        side_is(path))
		return 0;
	return saved_fail(error, "snapshot-not-written", "not_written", path, "", -1,
	        "it is there and is no stamp");
}

int side_write(const char *path, const struct side_source *sources, int64_t count, int threads,
        struct saved_error *error)
{
	struct stamping stamping = { .error = error };
	int failed;

	if (refuse_to_replace(path, error) != 0 ||
	        safetensors_writer_new(&stamping.writer, path, error) != 0)
		return -1;
	pthread_mutex_init(&stamping.lock, NULL);
	stamping.memory = calloc((size_t)threads, sizeof(*stamping.memory));
	failed = stamping.memory ? 0 : saved_fail_memory(error, path);
	if (!failed)
		failed = declare_all(&stamping, sources, count, error);
	if (!failed)
		failed = stamp_all(&stamping, sources, count, threads, error);
	if (!failed)
		failed = write_self(&stamping, error);
	if (failed)
		safetensors_writer_abandon(stamping.writer);
	else
		failed = safetensors_writer_finish(stamping.writer, error);
	stamping_free(&stamping, threads);
	return failed;
}
