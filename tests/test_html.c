/*
 * Goal: the page of a replay holds what the result says, whatever its strings are, stays small, and
 * reaches its file whole or not at all. Method: made-up results, among them the largest possible
 * one; the data block is cut out of the page and read back by jansson. With a folder as argument
 * the pages are left there, for tests/check_html.py to open in a browser.
 */
#include "cli.h"
#include "replay/html_data.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static uint64_t seed = 1;

/* 0 .. below - 1; xorshift64* */
static int64_t draw_below(int64_t below)
{
	seed ^= seed >> 12;
	seed ^= seed << 25;
	seed ^= seed >> 27;
	return (int64_t)((seed * UINT64_C(0x2545F4914F6CDD1D)) >> 33) % below;
}

static kvc_finding made_finding(int64_t step)
{
	kvc_finding finding;
	memset(&finding, 0, sizeof(finding));
	finding.violation.launch_tag = 32;
	finding.violation.slot = draw_below(8192);
	finding.violation.reasons = 1 << draw_below(3);
	finding.violation.owner_request = 9;
	finding.step = step;
	finding.victim_request = 12;
	finding.victim_position = 42;
	finding.culprit_request = 9;
	finding.culprit_step = step - 3;
	finding.cause = KVC_CAUSE_OVERWRITTEN;
	finding.slug = "violation-verify-chain-hash";
	return finding;
}

static void add_setting(struct replay_result *result, const char *name, const char *value)
{
	struct replay_setting *setting = &result->settings[result->setting_count++];
	setting->name = name;
	snprintf(setting->value, sizeof(setting->value), "%s", value);
}

static void make_timeline(struct replay_result *result, int32_t count)
{
	int64_t live = 0;
	result->stretch_count = count;
	result->stretches = calloc((size_t)count + 1, sizeof(*result->stretches));
	assert_non_null(result->stretches);
	for (int32_t i = 0; i < count; ++i) {
		struct replay_stretch *stretch = &result->stretches[i];
		live += draw_below(900) - 400;
		live = live < 0 ? 0 : live > 7000 ? 7000 : live;
		stretch->first_step = i * result->steps_per_stretch;
		stretch->step_count = result->steps_per_stretch;
		stretch->running = 3 + draw_below(20);
		stretch->slots_live = live;
		stretch->slots_cached = (result->pool_slots - live) / 2;
		stretch->slots_free = result->pool_slots - live - stretch->slots_cached;
		stretch->prefill_tokens = draw_below(3) ? 0 : 1500;
		stretch->decode_tokens = 40 + draw_below(30);
		stretch->slots_verified = 9000 + draw_below(8000);
		if (result->fault_count && !draw_below(14))
			stretch->injections = 1 + draw_below(3);
		if (result->fault_count && !draw_below(14))
			stretch->violations = 1 + draw_below(60);
		stretch->evictions = draw_below(9) / 8;
	}
}

static void make_maps(struct replay_result *result, int32_t count, int32_t cells)
{
	result->cell_count = cells;
	result->slots_per_cell = (result->pool_slots + cells - 1) / (cells ? cells : 1);
	result->snapshot_count = count;
	for (int32_t i = 0; i < count; ++i) {
		struct replay_snapshot *snapshot = &result->snapshots[i];
		snapshot->step = i * result->steps / count;
		snapshot->cells = calloc((size_t)cells, sizeof(*snapshot->cells));
		assert_non_null(snapshot->cells);
		for (int32_t j = 0; j < cells; ++j) {
			struct replay_cell *cell = &snapshot->cells[j];
			int32_t slots = (int32_t)result->slots_per_cell;
			cell->live = draw_below(5) ? j ? snapshot->cells[j - 1].live : 0
			                           : (int32_t)draw_below(slots + 1);
			cell->cached = draw_below(3) ? slots - cell->live : 0;
			cell->free = slots - cell->live - cell->cached;
			cell->owner = !cell->live          ? -1
			              : draw_below(4) && j ? snapshot->cells[j - 1].owner
			                                   : draw_below(200);
			if (result->fault_count && !draw_below(300))
				cell->tainted = cell->violations = 1;
		}
	}
}

static void make_faults(struct replay_result *result, int32_t count)
{
	static const char *const names[] = { "freed-while-live", "double-allocation",
		"stale-table-entry", "page-off-by-one", "stale-prefix-block", "bit-flip-k" };
	result->fault_count = count;
	for (int32_t i = 0; i < count; ++i) {
		struct replay_fault_row *fault = &result->faults[i];
		fault->name = names[i % 6];
		fault->summary =
		        "the page of a request is freed and handed out while it still runs";
		fault->declared = 1 << draw_below(7) | 1;
		fault->reasons = fault->declared;
		fault->check_on = true;
		fault->needs = "";
		fault->injected = 6;
		fault->detected = 6;
		fault->steps_to_detect = draw_below(40);
		fault->culprit_right = i % 3 ? 6 : -1;
		fault->tainted_slots = 17;
		fault->passed = true;
	}
	for (int32_t i = 0; i < 8 && count; ++i) {
		struct replay_detection *detection = &result->slowest[i];
		detection->fault = names[i % 6];
		detection->injected_step = 100 + draw_below(700);
		detection->detected_step = detection->injected_step + 200 - 21 * i;
		detection->finding = made_finding(detection->detected_step);
		snprintf(detection->layer_text, sizeof(detection->layer_text), "layer %d K", i);
		result->examples[i] = *detection;
		result->slowest_count = result->example_count = i + 1;
	}
}

static struct replay_result *made_result(int32_t faults)
{
	struct replay_result *result = calloc(1, sizeof(*result));
	assert_non_null(result);
	result->trace_path = "data/mooncake_conversation_trace.jsonl";
	result->requests = result->requests_finished = 200;
	result->requests_in_trace = 12031;
	result->steps = 1860;
	result->tokens_written = 1234567;
	result->bytes_written = 5056786432;
	result->prefill_tokens = 1200000;
	result->decode_tokens = 34567;
	result->evictions = 311;
	result->preemptions = 12;
	result->aborts = 9;
	result->prefill_chunks = 2210;
	result->multi_chunk_requests = 131;
	result->prefix_hit_tokens = 402344;
	result->seconds = 48.2;
	result->canary_seconds = 14.9;
	result->mode = "all";
	result->fingerprint = "xxh3";
	result->threads = 2;
	result->layers = 4;
	result->statistics.slots_verified = 41234567;
	result->statistics.slots_swept = 41000;
	result->statistics.bytes_verified = 159000000000;
	result->pool_slots = 8192;
	result->page_slots = 16;
	result->steps_per_stretch = 3;
	result->violations = faults ? 512 : 0;
	add_setting(result, "pool slots", "8,192");
	add_setting(result, "fingerprint", "xxh3");
	make_faults(result, faults);
	return result;
}

static void free_result(struct replay_result *result)
{
	for (int32_t i = 0; i < result->snapshot_count; ++i)
		free(result->snapshots[i].cells);
	free(result->stretches);
	free(result);
}

/* The whole page as text; free it. */
static char *page_of(const struct replay_result *result, size_t *bytes_out)
{
	char *page = NULL;
	FILE *file = open_memstream(&page, bytes_out);
	assert_non_null(file);
	assert_int_equal(replay_html_write(file, result), 0);
	fclose(file);
	return page;
}

#define DATA_BEGIN "type=\"application/json\">"

static json_t *data_of(const char *page)
{
	const char *begin = strstr(page, DATA_BEGIN);
	assert_non_null(begin);
	begin += strlen(DATA_BEGIN);
	const char *end = strstr(begin, "</script>");
	assert_non_null(end);
	json_t *data = json_loadb(begin, (size_t)(end - begin), JSON_REJECT_DUPLICATES, NULL);
	assert_non_null(data);
	return data;
}

static const char *verdict_of(const struct replay_result *result, const char *field)
{
	static char text[256];
	json_t *data = replay_page_data(result);
	assert_non_null(data);
	snprintf(text, sizeof(text), "%s",
	        json_string_value(json_object_get(json_object_get(data, "verdict"), field)));
	json_decref(data);
	return text;
}

/* ---- Tests --------------------------------------------------------------------------------- */

static void page_holds_the_result(void **state)
{
	(void)state;
	struct replay_result *result = made_result(6);
	size_t bytes;
	make_timeline(result, 620);
	make_maps(result, 12, 2048);
	char *page = page_of(result, &bytes);
	json_t *data = data_of(page);
	json_t *fault = json_array_get(json_object_get(data, "faults"), 0);
	assert_string_equal(json_string_value(json_object_get(fault, "name")), "freed-while-live");
	assert_int_equal(json_integer_value(json_object_get(fault, "injected")), 6);
	assert_true(json_is_null(json_object_get(fault, "culprit_right")));
	json_t *rows = json_object_get(json_object_get(data, "timeline"), "rows");
	assert_int_equal(json_array_size(rows), 620);
	assert_int_equal(json_array_size(json_object_get(data, "figures")), 12);
	assert_int_equal(
	        json_array_size(json_object_get(json_object_get(data, "pool"), "snapshots")), 12);
	json_decref(data);
	free(page);
	free_result(result);
}

static void page_loads_nothing_from_anywhere(void **state)
{
	(void)state;
	struct replay_result *result = made_result(0);
	size_t bytes;
	char *page = page_of(result, &bytes);
	assert_null(strstr(page, "https://"));
	assert_null(strstr(page, "src="));
	assert_null(strstr(page, "@import"));
	assert_null(strstr(page, "url("));
	assert_null(strstr(page, "innerHTML"));
	free(page);
	free_result(result);
}

static void hostile_strings_stay_strings(void **state)
{
	(void)state;
	static const char hostile[] = "a/</script><script>alert(1)</script><!--'\"&\\\x01\xff\n";
	struct replay_result *result = made_result(1);
	size_t bytes;
	result->trace_path = hostile;
	result->faults[0].summary = "</script><img src=x onerror=alert(1)>";
	add_setting(result, "trace", hostile);
	char *page = page_of(result, &bytes);
	const char *begin = strstr(page, DATA_BEGIN) + strlen(DATA_BEGIN);
	assert_null(memchr(begin, '<', (size_t)(strstr(begin, "</script>\n") - begin)));
	json_t *data = data_of(page);
	json_t *setting = json_array_get(json_object_get(data, "settings"), 2);
	assert_string_equal(json_string_value(json_array_get(setting, 1)),
	        "a/</script><script>alert(1)</script><!--'\"&\\\x01?\n");
	json_decref(data);
	free(page);
	free_result(result);
}

static void next_command_quotes_the_path_for_a_shell(void **state)
{
	(void)state;
	struct replay_result *result = made_result(0);
	result->trace_path = "it's $(here).jsonl";
	json_t *data = replay_page_data(result);
	assert_string_equal(
	        json_string_value(json_object_get(json_object_get(data, "next"), "command")),
	        "kvcanary replay 'it'\\''s $(here).jsonl' --fault all --html report.html");
	json_decref(data);
	free_result(result);
}

static void verdict_says_the_worst_first(void **state)
{
	(void)state;
	struct replay_result *result = made_result(2);
	assert_string_equal(verdict_of(result, "title"), "Every fault was found");
	assert_string_equal(verdict_of(result, "level"), "good");
	assert_string_equal(verdict_of(result, "text"),
	        "12 injected in 2 kinds: 12 detected, 0 missed, 0 expired unread.");
	result->faults[0].check_on = false;
	result->faults[0].missed = 2;
	assert_string_equal(
	        verdict_of(result, "title"), "Every fault was found that a check was on for");
	assert_string_equal(verdict_of(result, "level"), "warn");
	result->faults[1].check_on = false;
	assert_string_equal(verdict_of(result, "title"), "The checks were off: faults went unseen");
	result->faults[0].check_on = result->faults[1].check_on = true;
	assert_string_equal(verdict_of(result, "title"), "2 faults were missed");
	result->faults[0].missed = 0;
	result->false_alarms = 1;
	assert_string_equal(verdict_of(result, "title"), "1 alarm was false");
	assert_string_equal(verdict_of(result, "level"), "bad");
	result->false_alarms = 0;
	result->faults[0].passed = false;
	assert_string_equal(verdict_of(result, "title"), "Too few detections to judge");
	result->faults[0].passed = true;
	result->interrupted = true;
	assert_string_equal(verdict_of(result, "title"), "Interrupted");
	result->failed = true;
	assert_string_equal(verdict_of(result, "title"), "The replay could not go on");
	free_result(result);
}

static void nothing_checked_is_not_clean(void **state)
{
	(void)state;
	struct replay_result *result = made_result(0);
	assert_string_equal(verdict_of(result, "title"), "Clean: no violation");
	result->violations = 3000;
	assert_string_equal(
	        verdict_of(result, "title"), "3,000 violations in a run without faults");
	result->violations = 0;
	result->statistics.slots_verified = 0;
	assert_string_equal(verdict_of(result, "title"), "Nothing was checked");
	assert_string_equal(verdict_of(result, "level"), "warn");
	free_result(result);
}

static void largest_page_is_bounded(void **state)
{
	(void)state;
	struct replay_result *result = made_result(REPLAY_FAULTS_MAX);
	size_t bytes;
	result->pool_slots = INT64_C(1) << 31;
	make_timeline(result, REPLAY_STRETCHES_MAX);
	make_maps(result, REPLAY_SNAPSHOTS_MAX, REPLAY_CELLS_MAX);
	char *page = page_of(result, &bytes);
	print_message("largest page: %zu bytes\n", bytes);
	assert_true(bytes < 1200000); /* random seven-digit cells; real ones run together */
	free(page);
	free_result(result);
}

static char folder[] = "/tmp/kvc_html_XXXXXX";

static void file_is_replaced_as_a_whole(void **state)
{
	(void)state;
	struct replay_result *result = made_result(1);
	struct stat status;
	char path[64], link_path[64];
	snprintf(path, sizeof(path), "%s/page.html", folder);
	snprintf(link_path, sizeof(link_path), "%s/link.html", folder);
	assert_int_equal(symlink("page.html", link_path), 0);
	assert_int_equal(replay_html_check(path), CLI_GOOD);
	assert_int_equal(access(path, F_OK), -1); /* the check leaves nothing */
	assert_int_equal(replay_html_save(path, result), CLI_GOOD);
	assert_int_equal(replay_html_save(link_path, result), CLI_GOOD);
	assert_int_equal(lstat(link_path, &status), 0);
	assert_true(S_ISLNK(status.st_mode));
	assert_int_equal(stat(path, &status), 0);
	assert_true(status.st_size > 20000);
	unlink(path);
	unlink(link_path);
	free_result(result);
}

/* What 'call' prints to stderr, its first line. */
static void assert_refused(int (*call)(const char *, const struct replay_result *),
        const char *path, const char *reason)
{
	struct replay_result *result = made_result(1);
	FILE *caught = tmpfile();
	int before = dup(STDERR_FILENO);
	char text[1024], expected[1024];
	assert_non_null(caught);
	dup2(fileno(caught), STDERR_FILENO);
	int code = call(path, result);
	fflush(stderr);
	dup2(before, STDERR_FILENO);
	close(before);
	rewind(caught);
	text[fread(text, 1, sizeof(text) - 1, caught)] = '\0';
	text[strcspn(text, "\n")] = '\0';
	fclose(caught);
	snprintf(expected, sizeof(expected),
	        "kvcanary: %s: the report cannot be written: %s [report-not-written]", path,
	        reason);
	assert_string_equal(text, expected);
	assert_int_equal(code, CLI_CANNOT);
	free_result(result);
}

static int check_only(const char *path, const struct replay_result *result)
{
	(void)result;
	return replay_html_check(path);
}

static void unwritable_output_is_one_error(void **state)
{
	(void)state;
	char missing[64];
	snprintf(missing, sizeof(missing), "%s/none/page.html", folder);
	assert_refused(check_only, missing, "No such file or directory");
	assert_refused(replay_html_save, missing, "No such file or directory");
	assert_refused(check_only, folder, "Is a directory");
	assert_refused(check_only, "", "No such file or directory");
	assert_refused(replay_html_save, "/dev/full", "No space left on device");
	assert_int_equal(rmdir(folder), 0); /* no temporary file is left */
}

/* ---- Pages for the browser ----------------------------------------------------------------- */

static int save_pages(const char *where)
{
	struct replay_result *faulty = made_result(18), *clean = made_result(0);
	char path[1024];
	make_timeline(faulty, 620);
	make_maps(faulty, 12, 2048);
	faulty->faults[3].missed = faulty->faults[3].seen_otherwise = 2;
	faulty->faults[3].detected = 4;
	faulty->faults[5].check_on = false;
	faulty->faults[5].needs = "--expect-tokens";
	faulty->faults[5].missed = 6;
	faulty->faults[5].detected = 0;
	faulty->faults[7].expired = 1;
	faulty->faults[7].detected = 5;
	faulty->faults[2].summary = "</script><b>not bold</b>";
	make_timeline(clean, 4);
	make_maps(clean, 2, 96);
	snprintf(path, sizeof(path), "%s/faulty.html", where);
	int code = replay_html_save(path, faulty);
	snprintf(path, sizeof(path), "%s/clean.html", where);
	code |= replay_html_save(path, clean);
	struct replay_result *empty = made_result(0);
	empty->steps = 0;
	snprintf(path, sizeof(path), "%s/empty.html", where);
	code |= replay_html_save(path, empty);
	free_result(faulty);
	free_result(clean);
	free_result(empty);
	return code;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(page_holds_the_result),
		cmocka_unit_test(page_loads_nothing_from_anywhere),
		cmocka_unit_test(hostile_strings_stay_strings),
		cmocka_unit_test(next_command_quotes_the_path_for_a_shell),
		cmocka_unit_test(verdict_says_the_worst_first),
		cmocka_unit_test(nothing_checked_is_not_clean),
		cmocka_unit_test(largest_page_is_bounded),
		cmocka_unit_test(file_is_replaced_as_a_whole),
		cmocka_unit_test(unwritable_output_is_one_error),
	};
	if (argc > 1)
		return save_pages(argv[1]);
	if (!mkdtemp(folder))
		return 2;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
