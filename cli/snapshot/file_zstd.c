/* Unpacking of zstd; file_zstd.h says what it promises. */
#include "snapshot/file_zstd.h"

#include "snapshot/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <zstd.h>

#define BUFFER_BYTES ((size_t)1 << 18)

bool saved_zstd_detect(int descriptor)
{
	unsigned char head[4];
	uint32_t magic;

	if (pread(descriptor, head, sizeof(head), 0) != sizeof(head))
		return false;
	magic = saved_u32(head);
	return magic == ZSTD_MAGICNUMBER ||
	       (magic & ZSTD_MAGIC_SKIPPABLE_MASK) == ZSTD_MAGIC_SKIPPABLE_START;
}

struct unpacking {
	const char *path;
	const char *folder; /* TMPDIR */
	int from, to;
	uint64_t read_bytes, written_bytes, most_bytes;
	ZSTD_DStream *stream;
	unsigned char *in, *out; /* BUFFER_BYTES each */
	struct saved_error *error;
};

/* ---- refusals ---- */

static int refuse_frame(const struct unpacking *unpacking, const char *kind, const char *reason)
{
	return saved_fail(unpacking->error, "snapshot-bad-compression", kind, unpacking->path,
	        "zstd", (int64_t)unpacking->read_bytes, "%s", reason);
}

static int refuse_folder(const struct unpacking *unpacking, int number)
{
	return saved_fail(unpacking->error, "snapshot-no-space", "no_space", unpacking->path, "",
	        -1, "writing to %s: %s", unpacking->folder, strerror(number));
}

static int refuse_size(const struct unpacking *unpacking, unsigned long long bytes)
{
	return saved_fail(unpacking->error, "snapshot-no-space", "no_space", unpacking->path, "",
	        -1, "%s has room for %llu bytes, at least %llu are needed", unpacking->folder,
	        (unsigned long long)unpacking->most_bytes, bytes);
}

/* ---- the temporary file ---- */

static int open_contents(struct unpacking *unpacking)
{
	const char *folder = getenv("TMPDIR");
	struct statvfs space;
	char *path;

	unpacking->folder = folder && folder[0] ? folder : "/tmp";
	if (asprintf(&path, "%s/kvcanary-XXXXXX", unpacking->folder) < 0)
		return saved_fail_memory(unpacking->error, unpacking->path);
	unpacking->to = mkostemp(path, O_CLOEXEC);
	if (unpacking->to >= 0)
		unlink(path);
	free(path);
	if (unpacking->to < 0 || fstatvfs(unpacking->to, &space))
		return refuse_folder(unpacking, errno);
	unpacking->most_bytes = (uint64_t)space.f_bavail * space.f_frsize / 10 * 9;
	return 0;
}

static bool is_zero(const unsigned char *bytes, size_t count)
{
	return count == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, count - 1) == 0);
}

/* Zeros become a hole. */
static int write_contents(struct unpacking *unpacking, size_t bytes)
{
	size_t done = is_zero(unpacking->out, bytes) ? bytes : 0;

	if (bytes > unpacking->most_bytes - unpacking->written_bytes)
		return refuse_size(unpacking, unpacking->written_bytes + bytes);
	while (done < bytes) {
		ssize_t put = pwrite(unpacking->to, unpacking->out + done, bytes - done,
		        (off_t)(unpacking->written_bytes + done));
		if (put < 0 && errno == EINTR)
			continue;
		if (put < 0)
			return refuse_folder(unpacking, errno);
		done += (size_t)put;
	}
	unpacking->written_bytes += bytes;
	return 0;
}

/* ---- frames ---- */

/* Before work that cannot succeed: the first frame may say how long it is. */
static int check_stated_size(const struct unpacking *unpacking, size_t bytes)
{
	unsigned long long stated = ZSTD_getFrameContentSize(unpacking->in, bytes);

	if (stated == ZSTD_CONTENTSIZE_UNKNOWN || stated == ZSTD_CONTENTSIZE_ERROR ||
	        stated <= unpacking->most_bytes)
		return 0;
	return refuse_size(unpacking, stated);
}

/* What was read; *left_out becomes 0 where a frame is complete. */
static int unpack_buffer(struct unpacking *unpacking, size_t bytes, size_t *left_out)
{
	ZSTD_inBuffer in = { unpacking->in, bytes, 0 };
	bool full;

	do {
		ZSTD_outBuffer out = { unpacking->out, BUFFER_BYTES, 0 };
		size_t before = in.pos;
		*left_out = ZSTD_decompressStream(unpacking->stream, &out, &in);
		unpacking->read_bytes += in.pos - before;
		if (ZSTD_isError(*left_out))
			return refuse_frame(unpacking, "zstd", ZSTD_getErrorName(*left_out));
		if (write_contents(unpacking, out.pos))
			return -1;
		full = out.pos == out.size;
	} while (in.pos < in.size || (full && *left_out != 0));
	return 0;
}

static int unpack_all(struct unpacking *unpacking)
{
	size_t left = 0;

	for (bool first = true;; first = false) {
		ssize_t got = read(unpacking->from, unpacking->in, BUFFER_BYTES);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return saved_fail(unpacking->error, "cli-input-unreadable", "unreadable",
			        unpacking->path, "", -1, "%s", strerror(errno));
		if (got == 0)
			break;
		if ((first && check_stated_size(unpacking, (size_t)got)) ||
		        unpack_buffer(unpacking, (size_t)got, &left))
			return -1;
	}
	if (left != 0)
		return refuse_frame(unpacking, "truncated", "the file ends inside a frame");
	if (ftruncate(unpacking->to, (off_t)unpacking->written_bytes))
		return refuse_folder(unpacking, errno);
	return 0;
}

int saved_zstd_unpack(int descriptor, const char *path, int *contents_out, uint64_t *bytes_out,
        struct saved_error *error)
{
	struct unpacking unpacking = { .path = path,
		.from = descriptor,
		.to = -1,
		.stream = ZSTD_createDStream(),
		.in = malloc(BUFFER_BYTES),
		.out = malloc(BUFFER_BYTES),
		.error = error };
	int failed;

	if (!unpacking.stream || !unpacking.in || !unpacking.out)
		failed = saved_fail_memory(error, path);
	else
		failed = open_contents(&unpacking) || unpack_all(&unpacking) ? -1 : 0;
	ZSTD_freeDStream(unpacking.stream);
	free(unpacking.in);
	free(unpacking.out);
	if (failed && unpacking.to >= 0)
		close(unpacking.to);
	*contents_out = unpacking.to;
	*bytes_out = unpacking.written_bytes;
	return failed;
}
