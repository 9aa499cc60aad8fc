/* Bytes of a saved cache by pread; file.h says why. */
#include "snapshot/file.h"

#include "snapshot/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct saved_file {
	int descriptor;
	uint64_t bytes;
	char *path;
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
	return 0;
}

int saved_file_open(struct saved_file **out, const char *path, struct saved_error *error)
{
	struct saved_file *file = calloc(1, sizeof(*file));

	if (!file)
		return saved_fail_memory(error, path);
	file->descriptor = -1;
	file->path = strdup(path);
	if (!file->path) {
		free(file);
		return saved_fail_memory(error, path);
	}
	if (open_regular(file, error)) {
		saved_file_close(file);
		return -1;
	}
	*out = file;
	return 0;
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

int saved_file_read(const struct saved_file *file, uint64_t offset, size_t bytes, void *out,
        const char *field, struct saved_error *error)
{
	size_t done = 0;

	if (offset > file->bytes || bytes > file->bytes - offset)
		return saved_fail(error, "snapshot-truncated", "truncated", file->path, field,
		        (int64_t)offset, "%zu bytes are needed, the file has %llu", bytes,
		        (unsigned long long)file->bytes);
	while (done < bytes) {
		ssize_t got = pread(
		        file->descriptor, (char *)out + done, bytes - done, (off_t)(offset + done));
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return fail_system(error, file->path, errno);
		if (got == 0)
			return saved_fail(error, "cli-input-unreadable", "changed", file->path,
			        field, (int64_t)(offset + done),
			        "it became shorter than the %llu bytes it had when it was opened",
			        (unsigned long long)file->bytes);
		done += (size_t)got;
	}
	return 0;
}
