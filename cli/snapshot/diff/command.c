/* kvcanary diff A B */
#include "cli.h"
#include "page.h"
#include "snapshot/diff/print.h"
#include "snapshot/saved_options.h"
#include "snapshot/work.h"

#include <errno.h>
#include <getopt.h>
#include <string.h>

enum { OPTION_HTML = SAVED_OPTION_OWN };

static const struct cli_option own_options[] = {
	{ SAVED_OPTION_ROPE, "rope", "BASE,STYLE[,DIM[,OFFSET]]",
	        "the rotation of K, to name the position that a row was\n"
	        "rotated for; without it the usual bases are tried.\n"
	        "STYLE: interleaved (norm), half (neox), or auto" },
	{ SAVED_OPTION_ROPE_FROM, "rope-from", "FILE",
	        "the same, with base, scaling and heads out of\na model's GGUF or config.json" },
	{ OPTION_HTML, "html", "FILE",
	        "write a page with a map of all rows by layer; needs nothing\n"
	        "from the network. Of what is there only an HTML page or an\n"
	        "empty file is replaced" },
	CLI_OPTIONS_END,
};

static const struct cli_manual manual = {
	"diff",
	"A B [OPTION]...",
	"Compares two saved KV caches by sequence and position, whatever their formats and types, "
	"and\n"
	"says in what they differ: not at all, as arithmetic does (drift), or as damage does. "
	"Drift is\n"
	"judged by the other rows of the same layer, not by a fixed number of bits.",
	own_options,
	saved_option_rows,
	"0 same, or only numeric drift\n1 they differ\n2 could not tell",
	"kvcanary diff before.bin after.bin\n"
	"kvcanary diff f16.bin q8_0.bin --html report.html\n"
	"kvcanary diff cache.safetensors restored.safetensors --json | jq .verdict",
};

struct diff_request {
	struct saved_settings settings;
	const char *html;
	const char *path[2];
};

static int read_diff_request(struct diff_request *request, int argc, char **argv)
{
	const char *value;
	int option;

	while ((option = cli_next_option(&manual, argc, argv, &value)) >= 0) {
		if (option == OPTION_HTML)
			request->html = value;
		else if (saved_option(&request->settings, option, value) != 0)
			return CLI_CANNOT;
	}
	if (request->settings.has_rope && request->settings.saved.heads == 0)
		request->settings.saved.heads = request->settings.rope.heads;
	if (option == CLI_BAD_OPTION)
		return CLI_CANNOT;
	if (request->settings.help)
		return 0;
	if (argc - optind != 2) {
		char count[16];
		snprintf(count, sizeof(count), "%d", argc - optind);
		return cli_fail("diff-two-files", "count", count, NULL);
	}
	request->path[0] = argv[optind];
	request->path[1] = argv[optind + 1];
	return 0;
}

/* 0, or -1 with the error printed. */
static int print_comparison(const struct diff_request *request, const struct diff_result *result)
{
	if (request->html && diff_save_html(request->html, result) != CLI_GOOD)
		return -1;
	if (!request->settings.json)
		diff_print_text(stdout, result, request->html);
	else if (diff_print_json(stdout, result) != 0)
		return cli_fail("cli-output-failed", "reason", strerror(errno), NULL), -1;
	return 0;
}

static int compare_caches(const struct diff_request *request, struct saved_cache *const *cache)
{
	struct diff_options options = { (int)request->settings.jobs, cache[0]->rope,
		request->settings.has_rope ? &request->settings.rope : NULL };
	struct saved_error error;
	struct diff_result result;
	int code = CLI_CANNOT;

	if (options.threads == 0)
		options.threads = work_default_threads();
	if (options.threads > DIFF_THREADS_MAX)
		options.threads = DIFF_THREADS_MAX;
	if (!(options.rope.base > 0))
		options.rope = cache[1]->rope;
	if (diff_compare(&result, cache[0], cache[1], &options, &error) != 0)
		saved_print_error(&error, error.path, request->settings.json);
	else if (print_comparison(request, &result) == 0)
		code = result.exit_code;
	diff_result_free(&result);
	return code;
}

static int run_request(const struct diff_request *request)
{
	struct saved_cache *cache[2] = { NULL, NULL };
	struct saved_error error;
	int code = 0;

	if (request->html && page_check(request->html) != CLI_GOOD)
		return CLI_CANNOT;
	for (int side = 0; side < 2; side++)
		if (request->html && cli_refuse_overwrite(request->html, request->path[side]) != 0)
			return CLI_CANNOT;
	for (int side = 0; side < 2 && code == 0; side++)
		if (saved_open(&cache[side], request->path[side], &request->settings.saved,
		            &error) != 0)
			code = saved_print_error(
			        &error, request->path[side], request->settings.json);
	if (code == 0)
		code = compare_caches(request, cache);
	saved_close(cache[0]);
	saved_close(cache[1]);
	return code;
}

int cli_diff(int argc, char **argv)
{
	struct diff_request request = { .settings = SAVED_SETTINGS };
	int code = read_diff_request(&request, argc, argv);

	if (code == 0 && request.settings.help)
		cli_print_manual(&manual);
	else if (code == 0)
		code = run_request(&request);
	saved_settings_free(&request.settings);
	return code;
}
