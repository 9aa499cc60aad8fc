/* An atomic writer; write_safetensors.h says what it promises. */
#include "snapshot/write_safetensors.h"

#include "snapshot/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DATA_ALIGNMENT 64
#define DESCRIPTORS "/proc/self/fd"
#define SYNC_BYTES ((uint64_t)1 << 20) /* worth a wait for the disk */

struct declared {
	uint64_t bytes;
	uint64_t offset; /* in the file, from begin() on */
	enum safetensors_dtype dtype;
	json_t *entry;
	char *name;
};

/* A thread that brings to the disk what has been written, while more is written: so that finishing has
 * little to wait for. Small files need none. */
struct syncer {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool runs;
	bool ends;
	uint64_t unsynced;
	int error; /* errno: a disk that failed says so only once */
};

struct safetensors_writer {
	char *path;
	char *temporary; /* NULL while the file has no name */
	int descriptor;
	json_t *metadata;
	struct declared *tensors;
	size_t count, capacity;
	const char *problem; /* what a declaration could not say; NULL: none */
	uint64_t data_bytes;
	uint64_t written_bytes;
	struct syncer syncer;
};

/* ---- the disk ---- */

static void *sync_written(void *context)
{
	struct safetensors_writer *writer = context;
	struct syncer *syncer = &writer->syncer;

	pthread_mutex_lock(&syncer->lock);
	while (!syncer->ends) {
		if (syncer->unsynced < SYNC_BYTES) {
			pthread_cond_wait(&syncer->changed, &syncer->lock);
			continue;
		}
		syncer->unsynced = 0;
		pthread_mutex_unlock(&syncer->lock);
		int error = fdatasync(writer->descriptor) ? errno : 0;
		pthread_mutex_lock(&syncer->lock);
		if (error) {
			syncer->error = error;
			break;
		}
	}
	pthread_mutex_unlock(&syncer->lock);
	return NULL;
}

static void count_written(struct safetensors_writer *writer, size_t bytes)
{
	struct syncer *syncer = &writer->syncer;

	pthread_mutex_lock(&syncer->lock);
	writer->written_bytes += bytes;
	syncer->unsynced += bytes;
	if (syncer->unsynced >= SYNC_BYTES && !syncer->runs)
		syncer->runs = pthread_create(&syncer->thread, NULL, sync_written, writer) == 0;
	if (syncer->unsynced >= SYNC_BYTES)
		pthread_cond_signal(&syncer->changed);
	pthread_mutex_unlock(&syncer->lock);
}

/* Its error, if it had one. */
static int end_syncer(struct syncer *syncer)
{
	pthread_mutex_lock(&syncer->lock);
	syncer->ends = true;
	pthread_cond_signal(&syncer->changed);
	pthread_mutex_unlock(&syncer->lock);
	if (syncer->runs)
		pthread_join(syncer->thread, NULL);
	syncer->runs = false;
	return syncer->error;
}

/* ---- failing ---- */

static int fail_written(
        const struct safetensors_writer *writer, struct saved_error *error, const char *reason)
{
	return saved_fail(
	        error, "snapshot-not-written", "not_written", writer->path, "", -1, "%s", reason);
}

static void free_writer(struct safetensors_writer *writer)
{
	for (size_t i = 0; i < writer->count; i++) {
		json_decref(writer->tensors[i].entry);
		free(writer->tensors[i].name);
	}
	json_decref(writer->metadata);
	pthread_cond_destroy(&writer->syncer.changed);
	pthread_mutex_destroy(&writer->syncer.lock);
	free(writer->tensors);
	free(writer->temporary);
	free(writer->path);
	free(writer);
}

void safetensors_writer_abandon(struct safetensors_writer *writer)
{
	if (!writer)
		return;
	end_syncer(&writer->syncer);
	if (writer->descriptor >= 0)
		close(writer->descriptor);
	if (writer->temporary)
		unlink(writer->temporary);
	free_writer(writer);
}

/* ---- the temporary file ---- */

/* Where the file will be: what a link leads to, so that the link stays one. */
static char *resolve(const char *path, const char **reason)
{
	struct stat status;
	char *resolved = realpath(path, NULL);

	if (!path[0]) /* a temporary name beside it would be a good one */
		*reason = strerror(ENOENT);
	if (!resolved && lstat(path, &status) == 0 && S_ISLNK(status.st_mode))
		*reason = "it is a link that leads nowhere";
	if (!resolved)
		return strdup(path);
	if (stat(resolved, &status) == 0 && !S_ISREG(status.st_mode))
		*reason = "it is there and no regular file";
	return resolved;
}

/* Gives the file a name of its own beside the path: by creating it, or once it is written. */
static int name_temporary(struct safetensors_writer *writer)
{
	size_t bytes = strlen(writer->path) + 48;
	char open_file[48];

	writer->temporary = malloc(bytes);
	if (!writer->temporary)
		return -1;
	snprintf(open_file, sizeof(open_file), DESCRIPTORS "/%d", writer->descriptor);
	for (int try = 0; try < 100; try++) {
		int failed = 0;
		snprintf(writer->temporary, bytes, "%s.tmp.%ld.%d", writer->path, (long)getpid(),
		        try);
		if (writer->descriptor >= 0)
			failed = linkat(AT_FDCWD, open_file, AT_FDCWD, writer->temporary,
			        AT_SYMLINK_FOLLOW);
		else
			writer->descriptor = open(
			        writer->temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
		if (!failed && writer->descriptor >= 0)
			return 0;
		if (errno != EEXIST)
			break;
	}
	free(writer->temporary);
	writer->temporary = NULL;
	return -1;
}

/* Without a name, where the file system can do that: whatever ends the process, nothing is left behind.
 * Else beside the path. The mode follows the umask, as that of any new file. */
static int open_temporary(struct safetensors_writer *writer)
{
	char *folder = strdup(writer->path), *slash = folder ? strrchr(folder, '/') : NULL;

	if (slash)
		slash[slash == folder] = '\0';
	if (folder && access(DESCRIPTORS, X_OK) == 0)
		writer->descriptor =
		        open(slash ? folder : ".", O_RDWR | O_TMPFILE | O_CLOEXEC, 0666);
	free(folder);
	return writer->descriptor < 0 ? name_temporary(writer) : 0;
}

int safetensors_writer_new(
        struct safetensors_writer **out, const char *path, struct saved_error *error)
{
	struct safetensors_writer *writer = calloc(1, sizeof(*writer));
	const char *reason = NULL;

	if (!writer)
		return saved_fail_memory(error, path);
	writer->descriptor = -1;
	pthread_mutex_init(&writer->syncer.lock, NULL);
	pthread_cond_init(&writer->syncer.changed, NULL);
	writer->metadata = json_object();
	writer->path = resolve(path, &reason);
	if (!writer->path || !writer->metadata) {
		safetensors_writer_abandon(writer);
		return saved_fail_memory(error, path);
	}
	if (!reason && open_temporary(writer))
		reason = strerror(errno);
	if (reason) {
		fail_written(writer, error, reason);
		safetensors_writer_abandon(writer);
		return -1;
	}
	*out = writer;
	return 0;
}

/* ---- declarations ---- */

void safetensors_writer_metadata(
        struct safetensors_writer *writer, const char *key, const char *value)
{
	if (json_object_set_new(writer->metadata, key, json_string(value)))
		writer->problem = "a metadata string is no UTF-8 text";
}

/* Of a shape; false if its bits are beyond 2^64. */
static bool count_bytes(
        uint64_t *out, enum safetensors_dtype dtype, uint32_t rank, const uint64_t *shape)
{
	uint64_t bits = safetensors_dtype_bits(dtype);

	for (uint32_t i = 0; i < rank; i++)
		if (__builtin_mul_overflow(bits, shape[i], &bits))
			return false;
	*out = bits / 8;
	return true;
}

static struct declared *add_declared(struct safetensors_writer *writer)
{
	if (writer->count == writer->capacity) {
		size_t capacity = writer->capacity ? writer->capacity * 2 : 64;
		struct declared *tensors =
		        realloc(writer->tensors, capacity * sizeof(*writer->tensors));
		if (!tensors)
			return NULL;
		writer->tensors = tensors;
		writer->capacity = capacity;
	}
	writer->tensors[writer->count] = (struct declared){ 0 };
	return &writer->tensors[writer->count++];
}

size_t safetensors_writer_tensor(struct safetensors_writer *writer, const char *name,
        enum safetensors_dtype dtype, uint32_t rank, const uint64_t *shape)
{
	struct declared *declared = add_declared(writer);
	json_t *sizes = json_array();

	if (!declared) {
		writer->problem = "memory is short";
		json_decref(sizes);
		return 0;
	}
	declared->dtype = dtype;
	declared->name = strdup(name);
	if (!count_bytes(&declared->bytes, dtype, rank, shape))
		writer->problem = "a tensor is larger than any file";
	for (uint32_t i = 0; i < rank; i++)
		json_array_append_new(sizes, json_integer((json_int_t)shape[i]));
	declared->entry = json_pack("{s:s, s:o}", "dtype", safetensors_dtype_name(dtype), "shape",
	        sizes); /* takes 'sizes' over */
	if (!declared->name || !declared->entry)
		writer->problem = "memory is short";
	return writer->count - 1;
}

/* ---- the header ---- */

static int write_at(int descriptor, uint64_t offset, const void *data, size_t bytes)
{
	while (bytes > 0) {
		ssize_t done = pwrite(descriptor, data, bytes, (off_t)offset);
		if (done < 0 && errno == EINTR)
			continue;
		if (done < 0)
			return -1;
		data = (const char *)data + done;
		offset += (uint64_t)done;
		bytes -= (size_t)done;
	}
	return 0;
}

/* Places relative to the end of the header: wide elements first, so that each lies aligned. */
static bool place_declared(struct safetensors_writer *writer)
{
	uint64_t at = 0;

	for (unsigned bits = 64; bits > 0; bits /= 2)
		for (size_t i = 0; i < writer->count; i++) {
			struct declared *declared = &writer->tensors[i];
			unsigned own = safetensors_dtype_bits(declared->dtype);
			if (own > bits || own <= bits / 2)
				continue;
			declared->offset = at;
			if (__builtin_add_overflow(at, declared->bytes, &at) || at > INT64_MAX / 2)
				return false;
		}
	writer->data_bytes = at;
	return true;
}

/* The header, or NULL with the reason. */
static json_t *compose_header(struct safetensors_writer *writer, const char **reason)
{
	json_t *root = json_object();

	*reason = "memory is short";
	if (json_object_size(writer->metadata))
		json_object_set(root, "__metadata__", writer->metadata);
	for (size_t i = 0; i < writer->count; i++) {
		struct declared *declared = &writer->tensors[i];
		json_int_t begin = (json_int_t)declared->offset;
		json_int_t bytes = (json_int_t)declared->bytes;
		json_t *offsets = json_pack("[I, I]", begin, begin + bytes);
		if (json_object_set_new(declared->entry, "data_offsets", offsets))
			break;
		*reason = "a tensor's name is given twice or no UTF-8 text";
		if (json_object_get(root, declared->name) ||
		        json_object_set(root, declared->name, declared->entry))
			break;
		*reason = "memory is short";
	}
	if (root &&
	        json_object_size(root) == writer->count + (json_object_size(writer->metadata) > 0))
		return root;
	json_decref(root);
	return NULL;
}

/* Padded with spaces; *reason where it fails. */
static int write_header(struct safetensors_writer *writer, const json_t *root, const char **reason)
{
	size_t bytes = json_dumpb(root, NULL, 0, JSON_COMPACT);
	size_t padded = (8 + bytes + DATA_ALIGNMENT - 1) / DATA_ALIGNMENT * DATA_ALIGNMENT - 8;
	char *header = bytes ? malloc(8 + padded) : NULL;
	int failed;

	*reason = "memory is short";
	if (!header)
		return -1;
	*reason = "its header has more than 100,000,000 bytes";
	if (padded > SAFETENSORS_HEADER_MAX) {
		free(header);
		return -1;
	}
	for (int i = 0; i < 8; i++)
		header[i] = (char)((uint64_t)padded >> 8 * i);
	memset(header + 8, ' ', padded);
	json_dumpb(root, header + 8, bytes, JSON_COMPACT);
	for (size_t i = 0; i < writer->count; i++)
		writer->tensors[i].offset += 8 + padded;
	failed = write_at(writer->descriptor, 0, header, 8 + padded) ||
	         ftruncate(writer->descriptor, (off_t)(8 + padded + writer->data_bytes));
	*reason = strerror(errno);
	free(header);
	return failed ? -1 : 0;
}

int safetensors_writer_begin(struct safetensors_writer *writer, struct saved_error *error)
{
	const char *reason;
	json_t *root;
	int failed;

	if (!writer->problem && !place_declared(writer))
		writer->problem = "its tensors are larger than any file";
	if (writer->problem)
		return fail_written(writer, error, writer->problem);
	root = compose_header(writer, &reason);
	failed = root ? write_header(writer, root, &reason) : -1;
	json_decref(root);
	return failed ? fail_written(writer, error, reason) : 0;
}

/* ---- data ---- */

int safetensors_writer_write(struct safetensors_writer *writer, size_t tensor, uint64_t offset,
        const void *data, size_t bytes, struct saved_error *error)
{
	const struct declared *declared = &writer->tensors[tensor];

	if (offset > declared->bytes || bytes > declared->bytes - offset)
		return fail_written(writer, error, "data past the end of a tensor");
	if (write_at(writer->descriptor, declared->offset + offset, data, bytes))
		return fail_written(writer, error, strerror(errno));
	count_written(writer, bytes);
	return 0;
}

int safetensors_writer_read(struct safetensors_writer *writer, size_t tensor, uint64_t offset,
        void *out, size_t bytes, struct saved_error *error)
{
	uint64_t at = writer->tensors[tensor].offset + offset;

	for (size_t done = 0; done < bytes;) {
		ssize_t got = pread(
		        writer->descriptor, (char *)out + done, bytes - done, (off_t)(at + done));
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return fail_written(
			        writer, error, got < 0 ? strerror(errno) : "it became shorter");
		done += (size_t)got;
	}
	return 0;
}

/* So that the new name outlives a power cut. Not every file system can; that is no failure. */
static void sync_directory(const char *path)
{
	char *folder = strdup(path), *slash = folder ? strrchr(folder, '/') : NULL;
	int descriptor;

	if (slash)
		slash[slash == folder] = '\0';
	descriptor = open(slash ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (descriptor >= 0) {
		fsync(descriptor);
		close(descriptor);
	}
	free(folder);
}

int safetensors_writer_finish(struct safetensors_writer *writer, struct saved_error *error)
{
	int descriptor = writer->descriptor, disk_error = end_syncer(&writer->syncer);
	const char *reason = NULL;

	if (writer->written_bytes != writer->data_bytes)
		reason = "not all of its data was given";
	else if (disk_error)
		reason = strerror(disk_error);
	else if (fsync(descriptor))
		reason = strerror(errno);
	if (!reason && !writer->temporary && name_temporary(writer))
		reason = strerror(errno);
	writer->descriptor = -1;
	if (close(descriptor) && !reason)
		reason = strerror(errno);
	if (!reason && rename(writer->temporary, writer->path))
		reason = strerror(errno);
	if (reason) {
		fail_written(writer, error, reason);
		if (writer->temporary)
			unlink(writer->temporary);
	} else
		sync_directory(writer->path);
	free_writer(writer);
	return reason ? -1 : 0;
}
