/* Bytes of a saved cache by pread; file.h says why. */
#include "snapshot/file.h"

#include "snapshot/file_zstd.h"
#include "snapshot/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct saved_file {
	int descriptor; /* -1: opened for each read */
	bool one_of_many;
	uint64_t bytes;
	char *path;
	dev_t device; /* which file the path named when it was opened first */
	ino_t inode;
};

static int fail_system(struct saved_error *error, const char *path, int number)
{
	return saved_fail(
	        error, "cli-input-unreadable", "unreadable", path, "", -1, "%s", strerror(number));
}

static int open_regular(struct saved_file *file, struct saved_error *error)
{
	struct stat status;

	/* Without O_NONBLOCK a FIFO without a writer would hang here. */
	file->descriptor = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (file->descriptor < 0 || fstat(file->descriptor, &status) != 0)
		return fail_system(error, file->path, errno);
	if (S_ISDIR(status.st_mode))
		return fail_system(error, file->path, EISDIR);
	if (!S_ISREG(status.st_mode))
		return saved_fail(error, "cli-input-unreadable", "unreadable", file->path, "", -1,
		        "it is no regular file");
	file->bytes = (uint64_t)status.st_size;
	file->device = status.st_dev;
	file->inode = status.st_ino;
	return 0;
}

/* A compressed file becomes its contents. *plain_out: it was none. */
static int unpack(struct saved_file *file, bool *plain_out, struct saved_error *error)
{
	int contents;

	*plain_out = !saved_zstd_detect(file->descriptor);
	if (*plain_out)
		return 0;
	if (saved_zstd_unpack(file->descriptor, file->path, &contents, &file->bytes, error))
		return -1;
	close(file->descriptor);
	file->descriptor = contents;
	return 0;
}

static int open_file(
        struct saved_file **out, const char *path, bool is_one_of_many, struct saved_error *error)
{
	struct saved_file *file = calloc(1, sizeof(*file));
	bool plain;

	if (!file)
		return saved_fail_memory(error, path);
	file->descriptor = -1;
	file->one_of_many = is_one_of_many;
	file->path = strdup(path);
	if (!file->path) {
		free(file);
		return saved_fail_memory(error, path);
	}
	if (open_regular(file, error) || unpack(file, &plain, error)) {
		saved_file_close(file);
		return -1;
	}
	if (is_one_of_many && plain) {
		close(file->descriptor);
		file->descriptor = -1;
	}
	*out = file;
	return 0;
}

int saved_file_open(struct saved_file **out, const char *path, struct saved_error *error)
{
	return open_file(out, path, false, error);
}

int saved_file_open_one_of_many(
        struct saved_file **out, const char *path, struct saved_error *error)
{
	return open_file(out, path, true, error);
}

bool saved_file_is_one_of_many(const struct saved_file *file)
{
	return file->one_of_many;
}

void saved_file_close(struct saved_file *file)
{
	if (!file)
		return;
	if (file->descriptor >= 0)
		close(file->descriptor);
	free(file->path);
	free(file);
}

uint64_t saved_file_size(const struct saved_file *file)
{
	return file->bytes;
}

const char *saved_file_path(const struct saved_file *file)
{
	return file->path;
}

static int fail_changed(const struct saved_file *file, const char *field, uint64_t offset,
        struct saved_error *error)
{
	return saved_fail(error, "cli-input-unreadable", "changed", file->path, field,
	        (int64_t)offset, "it is no longer the file of %llu bytes that was opened",
	        (unsigned long long)file->bytes);
}

/* The descriptor to read from, to be closed again if it is not the file's own; -1 and *error. */
static int descriptor_for(
        const struct saved_file *file, const char *field, struct saved_error *error)
{
	struct saved_file again = { .path = file->path };

	if (file->descriptor >= 0)
		return file->descriptor;
	if (open_regular(&again, error)) {
		if (again.descriptor >= 0)
			close(again.descriptor);
		return -1;
	}
	if (again.device == file->device && again.inode == file->inode)
		return again.descriptor;
	close(again.descriptor);
	fail_changed(file, field, 0, error);
	return -1;
}

static int read_from(int descriptor, const struct saved_file *file, uint64_t offset, size_t bytes,
        void *out, const char *field, struct saved_error *error)
{
	size_t done = 0;

	while (done < bytes) {
		ssize_t got =
		        pread(descriptor, (char *)out + done, bytes - done, (off_t)(offset + done));
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return fail_system(error, file->path, errno);
		if (got == 0)
			return fail_changed(file, field, offset + done, error);
		done += (size_t)got;
	}
	return 0;
}

int saved_file_read(const struct saved_file *file, uint64_t offset, size_t bytes, void *out,
        const char *field, struct saved_error *error)
{
	int descriptor, failed;

	if (offset > file->bytes || bytes > file->bytes - offset)
		return saved_fail(error, "snapshot-truncated", "truncated", file->path, field,
		        (int64_t)offset, "%zu bytes are needed, the file has %llu", bytes,
		        (unsigned long long)file->bytes);
	descriptor = descriptor_for(file, field, error);
	if (descriptor < 0)
		return -1;
	failed = read_from(descriptor, file, offset, bytes, out, field, error);
	if (descriptor != file->descriptor)
		close(descriptor);
	return failed;
}
