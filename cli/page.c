/* Writes pages: page.h. Everything about how one looks is in its HTML file. */
#include "page.h"

#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The place for the data: a JSON string of its own, so that the page is whole without it. */
#define PAGE_MARK "\"KVCANARY_DATA\""

#define PAGE_BEGINNING "<!doctype html>"

/* JSON inside <script>: a '<' occurs in strings alone, where \u003c says the same and ends nothing. */
static void write_json(FILE *out, const char *json)
{
	for (;;) {
		size_t plain = strcspn(json, "<");
		fwrite(json, 1, plain, out);
		json += plain;
		if (!*json)
			return;
		fputs("\\u003c", out);
		++json;
	}
}

int page_write(FILE *out, struct page page, const json_t *data)
{
	const unsigned char *mark = memmem(page.bytes, page.count, PAGE_MARK, strlen(PAGE_MARK));
	char *json = data ? json_dumps(data, JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;
	if (!json) {
		errno = ENOMEM;
		return -1;
	}
	const unsigned char *rest = mark + strlen(PAGE_MARK);
	errno = 0;
	fwrite(page.bytes, 1, (size_t)(mark - page.bytes), out);
	write_json(out, json);
	fwrite(rest, 1, page.count - (size_t)(rest - page.bytes), out);
	free(json);
	return fflush(out) == 0 && !ferror(out) ? 0 : -1;
}

/* ---- The file ------------------------------------------------------------------------------ */

static int cannot_save(const char *path, int error)
{
	return cli_fail("report-not-written", "path", path, "reason", strerror(error), NULL);
}

/* What to open: the file that a link leads to, and a name beside it until the page is whole. */
struct page_place {
	char *path;      /* to free */
	char *temporary; /* to free; NULL = write in place, 'path' is a device or a pipe */
};

/* Whether a file that is there is a page, or empty: anything else may be what somebody wants to keep, as a
 * page of a saved cache. If not, errno says why. */
static bool may_be_replaced(const char *path)
{
	char beginning[sizeof(PAGE_BEGINNING) - 1];
	FILE *file = fopen(path, "re");
	size_t bytes = file ? fread(beginning, 1, sizeof(beginning), file) : 0;
	bool is_page = bytes == sizeof(beginning) && memcmp(beginning, PAGE_BEGINNING, bytes) == 0;
	bool is_empty = file && bytes == 0 && !ferror(file);

	if (!file)
		return false;
	fclose(file);
	errno = EEXIST;
	return is_page || is_empty;
}

static bool find_place(struct page_place *place, const char *path)
{
	struct stat status;
	bool there = stat(path, &status) == 0;
	memset(place, 0, sizeof(*place));
	if (!path[0]) { /* its temporary name would be a good one */
		errno = ENOENT;
		return false;
	}
	if (!there &&
	        lstat(path, &status) == 0) { /* a link that leads nowhere, which must stay one */
		errno = ENOENT;
		return false;
	}
	place->path = there ? realpath(path, NULL) : strdup(path);
	if (!place->path)
		return false;
	/* /dev/stdout must be written to, not replaced. */
	if (there && !S_ISREG(status.st_mode))
		return true;
	if (there && !may_be_replaced(place->path))
		return false;
	return asprintf(&place->temporary, "%s.%ld.tmp", place->path, (long)getpid()) > 0;
}

static void free_place(struct page_place *place)
{
	free(place->path);
	free(place->temporary);
}

/* Opens for writing; the error is errno's. */
static FILE *open_place(const struct page_place *place)
{
	if (!place->temporary)
		return fopen(place->path, "w");
	int file = open(place->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	FILE *out = file < 0 ? NULL : fdopen(file, "w");
	if (file >= 0 && !out)
		close(file);
	return out;
}

int page_save(const char *path, struct page page, const json_t *data)
{
	struct page_place place;
	int error = 0;
	FILE *out = NULL;
	if (!find_place(&place, path) || !(out = open_place(&place))) {
		error = errno;
		free_place(&place);
		return cannot_save(path, error);
	}
	if (page_write(out, page, data) != 0)
		error = errno ? errno : EIO;
	if (fclose(out) != 0 && !error)
		error = errno;
	if (!error && place.temporary && rename(place.temporary, place.path) != 0)
		error = errno;
	if (error && place.temporary)
		unlink(place.temporary);
	free_place(&place);
	return error ? cannot_save(path, error) : CLI_GOOD;
}

int page_check(const char *path)
{
	struct page_place place;
	struct stat status;
	int error = 0;
	if (stat(path, &status) == 0 && S_ISDIR(status.st_mode))
		return cannot_save(path, EISDIR);
	if (!find_place(&place, path)) {
		error = errno;
	} else if (!place.temporary) {
		error = access(place.path, W_OK) ? errno : 0;
	} else {
		FILE *out = open_place(&place);
		error = out ? 0 : errno;
		if (out && (fclose(out) != 0 || unlink(place.temporary) != 0))
			error = errno;
	}
	free_place(&place);
	return error ? cannot_save(path, error) : CLI_GOOD;
}
