/*
 * Writes the page of 'kvcanary replay --html': report.html, which the build embeds, with the run's
 * data in it as JSON. Everything about how it looks is in report.html.
 */
#include "cli.h"
#include "replay/html_data.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* report.html, by cmake/embed.cmake. */
extern const unsigned char replay_page[];
extern const size_t replay_page_bytes;

/* The place for the data: a JSON string of its own, so that report.html is whole without it. */
#define PAGE_MARK "\"KVCANARY_DATA\""

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

int replay_html_write(FILE *out, const struct replay_result *result)
{
	const unsigned char *mark =
	        memmem(replay_page, replay_page_bytes, PAGE_MARK, strlen(PAGE_MARK));
	json_t *data = replay_page_data(result);
	char *json = data ? json_dumps(data, JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;
	json_decref(data);
	if (!json) {
		errno = ENOMEM;
		return -1;
	}
	const unsigned char *rest = mark + strlen(PAGE_MARK);
	errno = 0;
	fwrite(replay_page, 1, (size_t)(mark - replay_page), out);
	write_json(out, json);
	fwrite(rest, 1, replay_page_bytes - (size_t)(rest - replay_page), out);
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

static bool find_place(struct page_place *place, const char *path)
{
	struct stat status;
	bool there = stat(path, &status) == 0;
	memset(place, 0, sizeof(*place));
	if (!path[0]) { /* its temporary name would be a good one */
		errno = ENOENT;
		return false;
	}
	place->path = there ? realpath(path, NULL) : strdup(path);
	if (!place->path)
		return false;
	/* /dev/stdout must be written to, not replaced. */
	if (there && !S_ISREG(status.st_mode))
		return true;
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

int replay_html_save(const char *path, const struct replay_result *result)
{
	struct page_place place;
	int error = 0;
	FILE *out = NULL;
	if (!find_place(&place, path) || !(out = open_place(&place))) {
		error = errno;
		free_place(&place);
		return cannot_save(path, error);
	}
	if (replay_html_write(out, result) != 0)
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

int replay_html_check(const char *path)
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
