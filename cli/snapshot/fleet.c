/* Lists of files and logs of runs; fleet.h says what each function promises. */
#include "snapshot/fleet.h"
#include "cli.h"
#include "snapshot/side.h"
#include "snapshot/work.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEPTH_MAX 64
#define STATE_DEPTH_MAX 3 /* directories of a cache: vLLM's fs tier */

static int fail_path(const char *path, int reason)
{
	return cli_fail("cli-input-unreadable", "path", path, "reason", strerror(reason), NULL);
}

/* ---- files ---- */

static int append_path(struct fleet *fleet, const char *path)
{
	if (fleet->count == fleet->capacity) {
		int64_t capacity = fleet->capacity ? 2 * fleet->capacity : 64;
		char **paths = realloc(fleet->paths, (size_t)capacity * sizeof(*paths));
		if (!paths)
			return fail_path(path, ENOMEM);
		fleet->paths = paths;
		fleet->capacity = capacity;
	}
	fleet->paths[fleet->count] = strdup(path);
	if (!fleet->paths[fleet->count])
		return fail_path(path, ENOMEM);
	fleet->count++;
	return 0;
}

static bool is_directory(const char *path)
{
	struct stat status;

	return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

static bool is_cache(const char *path, const struct saved_options *options)
{
	struct saved_cache *cache;
	struct saved_error error;

	if (saved_open(&cache, path, options, &error) != 0)
		return strcmp(error.slug, "snapshot-format-unknown") != 0;
	saved_close(cache);
	return true;
}

static int not_hidden(const struct dirent *entry)
{
	return entry->d_name[0] != '.';
}

static int walk(
        struct fleet *fleet, const char *path, const struct saved_options *options, int depth);

static int walk_entry(struct fleet *fleet, const char *folder, const char *name,
        const struct saved_options *options, int depth)
{
	size_t bytes = strlen(folder) + strlen(name) + 2;
	char *path = malloc(bytes);
	struct stat status;
	int code = 0;

	if (!path)
		return fail_path(folder, ENOMEM);
	snprintf(path, bytes, "%s%s%s", folder, folder[strlen(folder) - 1] == '/' ? "" : "/", name);
	if (stat(path, &status) != 0) /* a broken link: whoever opens it says so */
		code = append_path(fleet, path);
	else if (S_ISREG(status.st_mode))
		code = side_has_name(path) && side_is(path) ? 0 : append_path(fleet, path);
	/* A link to a directory is not followed: it may lead back here. */
	else if (lstat(path, &status) == 0 && S_ISDIR(status.st_mode))
		code = depth < DEPTH_MAX ? walk(fleet, path, options, depth + 1)
		                         : append_path(fleet, path);
	free(path);
	return code;
}

static int walk(
        struct fleet *fleet, const char *path, const struct saved_options *options, int depth)
{
	struct dirent **entries;
	int count, code = 0;

	if (is_cache(path, options))
		return append_path(fleet, path);
	count = scandir(path, &entries, not_hidden, alphasort);
	if (count < 0)
		return fail_path(path, errno);
	for (int i = 0; i < count; i++) {
		if (code == 0)
			code = walk_entry(fleet, path, entries[i]->d_name, options, depth);
		free(entries[i]);
	}
	free(entries);
	fleet->expanded = true;
	return code;
}

int fleet_add(struct fleet *fleet, const char *path, const struct saved_options *options)
{
	return path[0] && is_directory(path) ? walk(fleet, path, options, 0)
	                                     : append_path(fleet, path);
}

/* ---- lines ---- */

/* Nobody has longer ones or more of them; a device or a pipe without an end has. */
#define LINE_BYTES_MAX ((size_t)1 << 20)
#define LINES_MAX ((int64_t)1 << 22)

struct lines {
	FILE *file;
	const char *path;
	char *text; /* the line, without its end */
	size_t bytes;
	bool torn; /* the line has no end */
	int64_t count;
};

static int fail_lines(const struct lines *lines, const char *reason)
{
	return cli_fail("cli-input-unreadable", "path", lines->path, "reason", reason, NULL);
}

/* The next line; *ended: there is none. 0, or CLI_CANNOT with the error printed. */
static int next_list_line(struct lines *lines, bool *ended)
{
	int next = EOF;

	if (!lines->text)
		lines->text = malloc(LINE_BYTES_MAX + 1);
	if (!lines->text)
		return fail_path(lines->path, ENOMEM);
	lines->bytes = 0;
	while (lines->bytes < LINE_BYTES_MAX && (next = getc(lines->file)) != EOF && next != '\n')
		lines->text[lines->bytes++] = (char)next;
	lines->text[lines->bytes] = '\0';
	lines->torn = next == EOF;
	*ended = lines->torn && lines->bytes == 0;
	if (ferror(lines->file))
		return fail_path(lines->path, errno);
	if (lines->bytes == LINE_BYTES_MAX)
		return fail_lines(lines, "a line has 1048576 bytes or more");
	if (!*ended && lines->count++ == LINES_MAX)
		return fail_lines(lines, "it has more than 4194304 lines");
	return 0;
}

int fleet_add_list(struct fleet *fleet, const char *path, const struct saved_options *options)
{
	bool standard = strcmp(path, "-") == 0;
	struct lines lines = { .file = standard ? stdin : fopen(path, "re"), .path = path };
	bool ended = false;
	int code = 0;

	if (!lines.file)
		return fail_path(path, errno);
	fleet->expanded = true;
	while (code == 0 && (code = next_list_line(&lines, &ended)) == 0 && !ended) {
		if (strlen(lines.text) != lines.bytes)
			code = fail_lines(
			        &lines, "a zero byte in it; paths stand in lines of their own");
		else if (lines.bytes > 0)
			code = fleet_add(fleet, lines.text, options);
	}
	free(lines.text);
	if (!standard)
		fclose(lines.file);
	return code;
}

int fleet_gather(struct fleet *fleet, int count, char **paths, const char *list_path,
        const struct saved_options *options)
{
	int code = 0;

	for (int i = 0; i < count && code == 0; i++)
		code = fleet_add(fleet, paths[i], options);
	return code == 0 && list_path ? fleet_add_list(fleet, list_path, options) : code;
}

int fleet_refuse_empty(const struct fleet *fleet, const char *command)
{
	if (fleet->count > 0)
		return CLI_GOOD;
	return cli_fail(fleet->expanded ? "snapshot-nothing-found" : "snapshot-no-file", "command",
	        command, NULL);
}

void fleet_leave_out(struct fleet *fleet, const char *path)
{
	int64_t kept = 0;

	for (int64_t i = 0; i < fleet->count; i++) {
		if (cli_same_file(fleet->paths[i], path))
			free(fleet->paths[i]);
		else
			fleet->paths[kept++] = fleet->paths[i];
	}
	fleet->count = kept;
}

void fleet_free(struct fleet *fleet)
{
	for (int64_t i = 0; i < fleet->count; i++)
		free(fleet->paths[i]);
	free(fleet->paths);
	*fleet = (struct fleet){ 0 };
}

/* Adds one file; of a directory, which may be one cache, all files below. */
static void add_state(struct fleet_state *state, const char *path, int depth)
{
	struct stat status;
	DIR *folder;
	double modified;
	long microseconds;

	if (stat(path, &status) != 0)
		return;
	microseconds = status.st_mtim.tv_nsec / 1000; /* as logs have it */
	modified = (double)status.st_mtim.tv_sec + (double)microseconds / 1e6;
	if (modified > state->modified)
		state->modified = modified;
	if (!S_ISDIR(status.st_mode)) {
		state->bytes += status.st_size;
		return;
	}
	folder = depth < STATE_DEPTH_MAX ? opendir(path) : NULL;
	for (struct dirent *entry; folder && (entry = readdir(folder));) {
		char below[4096];
		int count = snprintf(below, sizeof(below), "%s/%s", path, entry->d_name);
		if (entry->d_name[0] != '.' && count > 0 && (size_t)count < sizeof(below))
			add_state(state, below, depth + 1);
	}
	if (folder)
		closedir(folder);
}

struct fleet_state fleet_state_of(const char *path)
{
	struct fleet_state state = { 0, -1 };

	add_state(&state, path, 0);
	return state;
}

/* ---- running ---- */

struct running {
	struct fleet_run *run;
	int threads; /* for each file */
	pthread_mutex_t lock;
	char **texts; /* of files that are done and not printed */
	int64_t printed, done;
};

static void print_fleet_progress(const struct running *running)
{
	const struct fleet_run *run = running->run;

	if (isatty(STDERR_FILENO) && !isatty(STDOUT_FILENO))
		fprintf(stderr, "\r%lld of %lld files, %lld damaged, %lld %s%s",
		        (long long)running->done, (long long)run->fleet->count,
		        (long long)run->damaged, (long long)run->failed, run->failed_word,
		        running->done == run->fleet->count ? "\n" : "");
}

/* Prints what is done, as far as all before it is done, too. False if it cannot be written: then the
 * rest need not be looked at. */
static bool hand_in(struct running *running, int64_t number, char *text, int exit_code)
{
	struct fleet_run *run = running->run;
	bool written;

	pthread_mutex_lock(&running->lock);
	running->texts[number] = text;
	running->done++;
	run->damaged += exit_code == CLI_DAMAGE;
	run->failed += exit_code == CLI_CANNOT;
	while (running->printed < run->fleet->count && running->texts[running->printed]) {
		fputs(running->texts[running->printed], stdout);
		free(running->texts[running->printed]);
		running->texts[running->printed++] = NULL;
	}
	written = cli_flush(); /* a log must have what was done when the machine goes down */
	print_fleet_progress(running);
	pthread_mutex_unlock(&running->lock);
	return written;
}

static bool run_file(void *context, int64_t number, int thread)
{
	struct running *running = context;
	const struct fleet_run *run = running->run;
	char *text = NULL;
	size_t bytes;
	FILE *out = open_memstream(&text, &bytes);
	int exit_code;

	(void)thread;
	if (!out)
		return false;
	exit_code = run->job(run->context, run->fleet->paths[number], running->threads, out);
	if (fclose(out) != 0 || !text) {
		free(text);
		return false;
	}
	return hand_in(running, number, text, exit_code);
}

int fleet_run(struct fleet_run *run)
{
	int64_t count = run->fleet->count;
	int jobs = run->jobs > 0 ? run->jobs : work_default_threads();
	struct running running = { .run = run,
		.threads = count > 0 && jobs > count ? (int)(jobs / count) : 1,
		.texts = calloc((size_t)count + 1, sizeof(*running.texts)) };
	bool good;

	if (!running.texts)
		return fail_path("list of files", ENOMEM);
	pthread_mutex_init(&running.lock, NULL);
	if (run->torn)
		putchar('\n');
	good = work_run(count, jobs, run_file, &running);
	for (int64_t i = 0; i < count; i++)
		free(running.texts[i]);
	free(running.texts);
	pthread_mutex_destroy(&running.lock);
	if (cli_output_error()) /* main() says so */
		return CLI_CANNOT;
	if (!good)
		return fail_path("list of files", ENOMEM);
	return run->damaged ? CLI_DAMAGE : run->failed ? CLI_CANNOT : CLI_GOOD;
}

/* ---- logs ---- */

struct fleet_log {
	json_t *lines; /* by path what is needed of a line */
	bool torn;
};

static void take_line(struct fleet_log *log, const char *line)
{
	static const char *const kept[] = { "exit", "bytes", "modified" };
	json_t *object = json_loads(line, 0, NULL), *small = json_object();
	const char *path = json_string_value(json_object_get(object, "file"));

	for (size_t i = 0; path && i < sizeof(kept) / sizeof(kept[0]); i++)
		json_object_set(small, kept[i], json_object_get(object, kept[i]));
	if (path)
		json_object_set(log->lines, path, small);
	json_decref(small);
	json_decref(object);
}

static int read_log(struct fleet_log *log, struct lines *lines)
{
	bool ended = false;

	for (;;) {
		int code = next_list_line(lines, &ended);
		if (code || ended)
			return code;
		log->torn = lines->torn;
		take_line(log, lines->text);
	}
}

int fleet_log_open(struct fleet_log **out, const char *path)
{
	struct lines lines = { .file = fopen(path, "re"), .path = path };
	struct fleet_log *log;
	int code = 0;

	if (!lines.file && errno != ENOENT)
		return fail_path(path, errno);
	log = calloc(1, sizeof(*log));
	if (log)
		log->lines = json_object();
	if (!log || !log->lines) {
		if (lines.file)
			fclose(lines.file);
		free(log);
		return fail_path(path, ENOMEM);
	}
	if (lines.file) {
		code = read_log(log, &lines);
		free(lines.text);
		fclose(lines.file);
	}
	if (code)
		fleet_log_close(log);
	else
		*out = log;
	return code;
}

void fleet_log_close(struct fleet_log *log)
{
	if (log)
		json_decref(log->lines);
	free(log);
}

int fleet_log_find(const struct fleet_log *log, const char *path)
{
	const json_t *line = log ? json_object_get(log->lines, path) : NULL;
	struct fleet_state state = fleet_state_of(path);
	const json_t *exit_code = json_object_get(line, "exit");

	if (!line || !json_is_integer(exit_code) ||
	        json_integer_value(json_object_get(line, "bytes")) != state.bytes)
		return -1;
	/* Times pass through text, so they may be off in the last digit. */
	if (json_number_value(json_object_get(line, "modified")) - state.modified > 1e-5 ||
	        state.modified - json_number_value(json_object_get(line, "modified")) > 1e-5)
		return -1;
	/* What could not be checked is tried again. */
	if (json_integer_value(exit_code) != CLI_GOOD &&
	        json_integer_value(exit_code) != CLI_DAMAGE)
		return -1;
	return (int)json_integer_value(exit_code);
}

bool fleet_log_is_torn(const struct fleet_log *log)
{
	return log && log->torn;
}
