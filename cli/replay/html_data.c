/*
 * Turns a replay's result into what the page shows: verdict, figures, timeline, pool maps, faults,
 * findings. What is decided here, in words, is the verdict and the next command; report.html only
 * draws. Where memory runs out a part is NULL, jansson and push() make the whole that holds it NULL,
 * and so the end is the one place that checks.
 */
#include "replay/html_data.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Text of unknown origin (a path, a setting): bytes that are no UTF-8 become '?'. */
static json_t *page_text(const char *text)
{
	json_t *string = json_string(text);
	if (string)
		return string;
	char *copy = strdup(text);
	if (!copy)
		return NULL;
	for (char *at = copy; *at; ++at)
		if ((unsigned char)*at > 0x7e)
			*at = '?';
	string = json_string(copy);
	free(copy);
	return string;
}

/* Append, and give the whole list up if that fails, so that no row is silently missing. */
static void push(json_t **list, json_t *value)
{
	if (json_array_append_new(*list, value) == 0)
		return;
	json_decref(*list);
	*list = NULL;
}

static json_t *page_reasons(int64_t reasons)
{
	char text[REPLAY_REASONS_BYTES];
	return json_string(replay_reasons_text(text, reasons));
}

/* A number with thousands separators; out has at least 28 bytes. */
static const char *page_number(char *out, int64_t value)
{
	char digits[24];
	int count = snprintf(digits, sizeof(digits), "%" PRId64, value), used = 0;
	for (int i = 0; i < count; ++i) {
		out[used++] = digits[i];
		if (i + 1 < count && (count - 1 - i) % 3 == 0 && digits[i] != '-')
			out[used++] = ',';
	}
	out[used] = '\0';
	return out;
}

static const char *page_trace_name(const struct replay_result *result)
{
	const char *slash = strrchr(result->trace_path, '/');
	return slash && slash[1] ? slash + 1 : result->trace_path;
}

/* ---- Verdict ------------------------------------------------------------------------------- */

struct page_totals {
	int64_t injected;
	int64_t detected;
	int64_t missed;     /* with the check on */
	int64_t missed_off; /* with the check off */
	int64_t expired;
	int32_t off;    /* kinds whose check is off */
	int32_t failed; /* kinds that did not pass */
};

static struct page_totals add_faults(const struct replay_result *result)
{
	struct page_totals totals = { 0 };
	for (int32_t i = 0; i < result->fault_count; ++i) {
		const struct replay_fault_row *fault = &result->faults[i];
		totals.injected += fault->injected;
		totals.detected += fault->detected;
		totals.expired += fault->expired;
		*(fault->check_on ? &totals.missed : &totals.missed_off) += fault->missed;
		totals.off += !fault->check_on;
		totals.failed += !fault->passed;
	}
	return totals;
}

static const char *verdict_with_faults(
        const struct replay_result *result, char *title, size_t title_bytes)
{
	struct page_totals totals = add_faults(result);
	char number[28];
	if (totals.missed)
		snprintf(title, title_bytes, "%s %s missed", page_number(number, totals.missed),
		        totals.missed == 1 ? "fault was" : "faults were");
	else if (result->false_alarms)
		snprintf(title, title_bytes, "%s %s false",
		        page_number(number, result->false_alarms),
		        result->false_alarms == 1 ? "alarm was" : "alarms were");
	else if (totals.off == result->fault_count)
		snprintf(title, title_bytes, "The checks were off: faults went unseen");
	else if (!totals.injected)
		snprintf(title, title_bytes, "No fault could be injected");
	else if (totals.failed || result->exit_code)
		snprintf(title, title_bytes, "Too few detections to judge");
	else if (totals.off)
		snprintf(title, title_bytes, "Every fault was found that a check was on for");
	else
		snprintf(title, title_bytes, "Every fault was found");
	if (totals.missed || result->false_alarms)
		return "bad";
	return totals.off || totals.failed || result->exit_code || !totals.injected ? "warn"
	                                                                            : "good";
}

static const char *verdict_without_faults(
        const struct replay_result *result, char *title, size_t title_bytes)
{
	char number[28];
	if (result->violations) {
		snprintf(title, title_bytes, "%s %s in a run without faults",
		        page_number(number, result->violations),
		        result->violations == 1 ? "violation" : "violations");
		return "bad";
	}
	if (!result->statistics.slots_verified) { /* never call that clean */
		snprintf(title, title_bytes, "Nothing was checked");
		return "warn";
	}
	snprintf(title, title_bytes, "Clean: no violation");
	return "good";
}

static void verdict_text(const struct replay_result *result, char *out, size_t out_bytes)
{
	struct page_totals totals = add_faults(result);
	char a[28], b[28], c[28], d[28], off[64] = "";
	int used = 0;
	if (totals.missed_off)
		snprintf(off, sizeof(off), " (%s with the check off)",
		        page_number(a, totals.missed_off));
	if (result->interrupted)
		used = snprintf(out, out_bytes, "Interrupted after %s steps, numbers are so far. ",
		        page_number(a, result->steps));
	if (used < 0 || (size_t)used >= out_bytes)
		return;
	if (result->fault_count)
		snprintf(out + used, out_bytes - (size_t)used,
		        "%s injected in %d %s: %s detected, %s missed%s, %s expired unread.",
		        page_number(a, totals.injected), (int)result->fault_count,
		        result->fault_count == 1 ? "kind" : "kinds",
		        page_number(b, totals.detected),
		        page_number(c, totals.missed + totals.missed_off), off,
		        page_number(d, totals.expired));
	else
		snprintf(out + used, out_bytes - (size_t)used,
		        "%s slots verified in %s steps, mode %s, %s reads left out.",
		        page_number(a, result->statistics.slots_verified),
		        page_number(b, result->steps), result->mode,
		        page_number(c, result->statistics.slots_left_out));
}

static json_t *page_verdict(const struct replay_result *result)
{
	char title[128], text[256] = "";
	const char *level = result->fault_count
	                            ? verdict_with_faults(result, title, sizeof(title))
	                            : verdict_without_faults(result, title, sizeof(title));
	verdict_text(result, text, sizeof(text));
	if (result->failed) {
		snprintf(title, sizeof(title), "The replay could not go on");
		level = "bad";
	} else if (result->interrupted && strcmp(level, "bad") != 0) {
		snprintf(title, sizeof(title), "Interrupted");
		level = "warn";
	}
	return json_pack("{s:s,s:s,s:s}", "level", level, "title", title, "text", text);
}

/* ---- Figures ------------------------------------------------------------------------------- */

static void add_figure(
        json_t **list, const char *name, json_t *value, const char *unit, const char *note)
{
	push(list, json_pack("[s,o,s,s]", name, value, unit, note));
}

static json_t *page_figures(const struct replay_result *result)
{
	const kvc_guard_statistics *statistics = &result->statistics;
	json_t *list = json_array();
	char note[160], a[28], b[28];
	snprintf(note, sizeof(note), "%s of %s requests ended",
	        page_number(a, result->requests_finished), page_number(b, result->requests));
	add_figure(&list, "steps", json_integer(result->steps), "", note);
	snprintf(note, sizeof(note), "%s prefill, %s decode",
	        page_number(a, result->prefill_tokens), page_number(b, result->decode_tokens));
	add_figure(&list, "tokens written", json_integer(result->tokens_written), "", note);
	snprintf(note, sizeof(note), "K and V of %d layers", (int)result->layers);
	add_figure(&list, "bytes written", json_integer(result->bytes_written), "bytes", note);
	snprintf(note, sizeof(note), "%s read, %s in sweeps",
	        page_number(a, statistics->slots_verified - statistics->slots_swept),
	        page_number(b, statistics->slots_swept));
	add_figure(&list, "slots verified", json_integer(statistics->slots_verified), "", note);
	snprintf(note, sizeof(note), "mode %s, %s", result->mode, result->fingerprint);
	add_figure(
	        &list, "bytes verified", json_integer(statistics->bytes_verified), "bytes", note);
	add_figure(&list, "reads left out", json_integer(statistics->slots_left_out), "",
	        "no budget was left for them");
	snprintf(note, sizeof(note), "%.0f %% in the canary, %d %s",
	        result->seconds > 0 ? 100 * result->canary_seconds / result->seconds : 0.0,
	        (int)result->threads, result->threads == 1 ? "thread" : "threads");
	add_figure(&list, "time", json_real(result->seconds), "s", note);
	add_figure(&list, "prefix hits", json_integer(result->prefix_hit_tokens), "",
	        "tokens found in the cache");
	snprintf(note, sizeof(note), "%s requests in several",
	        page_number(a, result->multi_chunk_requests));
	add_figure(&list, "prefill chunks", json_integer(result->prefill_chunks), "", note);
	add_figure(&list, "evictions", json_integer(result->evictions), "", "from the prefix tree");
	snprintf(note, sizeof(note), "%s restarts", page_number(a, result->restarts));
	add_figure(&list, "preemptions", json_integer(result->preemptions), "", note);
	add_figure(&list, "aborts", json_integer(result->aborts), "", "by the client");
	return list;
}

/* ---- Timeline ------------------------------------------------------------------------------ */

/* The columns of a row of the timeline: name, place in the struct, words for the hover. */
#define STRETCH(field, words)                                                                      \
	{                                                                                          \
#field, words, offsetof(struct replay_stretch, field)                              \
	}
static const struct stretch_column {
	const char *name;
	const char *words; /* "" = not shown on its own */
	size_t offset;
} stretch_columns[] = {
	STRETCH(first_step, ""),
	STRETCH(step_count, ""),
	STRETCH(prefill_tokens, "prefill tokens"),
	STRETCH(decode_tokens, "decode tokens"),
	STRETCH(prefix_hit_tokens, "prefix hit tokens"),
	STRETCH(slots_verified, "slots verified"),
	STRETCH(slots_live, "slots in use"),
	STRETCH(slots_cached, "slots cached"),
	STRETCH(slots_free, "slots free"),
	STRETCH(running, "requests running"),
	STRETCH(waiting, "requests waiting"),
	STRETCH(injections, "faults injected"),
	STRETCH(detections, "faults detected"),
	STRETCH(violations, "violations"),
	STRETCH(false_alarms, "false alarms"),
	STRETCH(evictions, "evictions"),
	STRETCH(preemptions, "preemptions"),
	STRETCH(aborts, "aborts"),
	STRETCH(restarts, "restarts"),
};
#define STRETCH_COLUMN_COUNT (sizeof(stretch_columns) / sizeof(stretch_columns[0]))

static json_t *page_timeline(const struct replay_result *result)
{
	json_t *fields = json_array(), *rows = json_array();
	for (size_t i = 0; i < STRETCH_COLUMN_COUNT; ++i)
		push(&fields,
		        json_pack("[s,s]", stretch_columns[i].name, stretch_columns[i].words));
	for (int32_t i = 0; i < result->stretch_count; ++i) {
		json_t *row = json_array();
		for (size_t j = 0; j < STRETCH_COLUMN_COUNT; ++j) {
			const char *base = (const char *)&result->stretches[i];
			int64_t value;
			memcpy(&value, base + stretch_columns[j].offset, sizeof(value));
			push(&row, json_integer(value));
		}
		push(&rows, row);
	}
	return json_pack("{s:I,s:o,s:o}", "per_row", (json_int_t)result->steps_per_stretch,
	        "fields", fields, "rows", rows);
}

/* ---- The pool ------------------------------------------------------------------------------ */

enum cell_field {
	CELL_LIVE,
	CELL_CACHED,
	CELL_RESERVED,
	CELL_TAINTED,
	CELL_VIOLATIONS,
	CELL_OWNER
};

static int64_t cell_value(const struct replay_cell *cell, enum cell_field field)
{
	switch (field) {
	case CELL_LIVE:
		return cell->live;
	case CELL_CACHED:
		return cell->cached;
	case CELL_RESERVED:
		return cell->reserved;
	case CELL_TAINTED:
		return cell->tainted;
	case CELL_VIOLATIONS:
		return cell->violations;
	case CELL_OWNER:
		return cell->owner;
	}
	return 0;
}

/* "96x40 3 0x12": runs of equal values, since neighbouring cells are mostly alike. */
static json_t *cell_runs(const struct replay_cell *cells, int32_t count, enum cell_field field)
{
	char *text = NULL;
	size_t bytes = 0;
	FILE *file = open_memstream(&text, &bytes);
	if (!file)
		return NULL;
	for (int32_t i = 0, next; i < count; i = next) {
		int64_t value = cell_value(&cells[i], field);
		for (next = i + 1; next < count && cell_value(&cells[next], field) == value;)
			++next;
		fprintf(file, i ? " %" PRId64 : "%" PRId64, value);
		if (next - i > 1)
			fprintf(file, "x%d", (int)(next - i));
	}
	json_t *string = fclose(file) == 0 ? json_string(text) : NULL;
	free(text);
	return string;
}

static json_t *page_pool(const struct replay_result *result)
{
	json_t *snapshots = json_array();
	for (int32_t i = 0; i < result->snapshot_count; ++i) {
		const struct replay_cell *cells = result->snapshots[i].cells;
		int32_t count = result->cell_count;
		push(&snapshots, json_pack("{s:I,s:o,s:o,s:o,s:o,s:o,s:o}", "step",
		                         (json_int_t)result->snapshots[i].step, "live",
		                         cell_runs(cells, count, CELL_LIVE), "cached",
		                         cell_runs(cells, count, CELL_CACHED), "reserved",
		                         cell_runs(cells, count, CELL_RESERVED), "tainted",
		                         cell_runs(cells, count, CELL_TAINTED), "violations",
		                         cell_runs(cells, count, CELL_VIOLATIONS), "owner",
		                         cell_runs(cells, count, CELL_OWNER)));
	}
	return json_pack("{s:I,s:I,s:I,s:i,s:o}", "slots", (json_int_t)result->pool_slots,
	        "page_slots", (json_int_t)result->page_slots, "slots_per_cell",
	        (json_int_t)result->slots_per_cell, "cells", (int)result->cell_count, "snapshots",
	        snapshots);
}

/* ---- Faults and findings ------------------------------------------------------------------- */

/* -1 stands for "there is none". */
static json_t *number_or_null(int64_t value)
{
	return value < 0 ? json_null() : json_integer(value);
}

static json_t *page_faults(const struct replay_result *result)
{
	json_t *list = json_array();
	for (int32_t i = 0; i < result->fault_count; ++i) {
		const struct replay_fault_row *fault = &result->faults[i];
		json_t *reason = fault->reasons ? page_reasons(fault->reasons) : json_null();
		json_t *row = json_pack("{s:s,s:s,s:o,s:o,s:b,s:s,s:b}", "name", fault->name,
		        "summary", fault->summary, "declared", page_reasons(fault->declared),
		        "reason", reason, "check_on", (int)fault->check_on, "needs", fault->needs,
		        "passed", (int)fault->passed);
		json_t *counts = json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:o,s:o}", "injected",
		        (json_int_t)fault->injected, "detected", (json_int_t)fault->detected,
		        "missed", (json_int_t)fault->missed, "seen_otherwise",
		        (json_int_t)fault->seen_otherwise, "expired", (json_int_t)fault->expired,
		        "tainted_slots", (json_int_t)fault->tainted_slots, "steps_to_detect",
		        number_or_null(fault->steps_to_detect), "culprit_right",
		        number_or_null(fault->culprit_right));
		if (json_object_update(row, counts) != 0) {
			json_decref(row);
			row = NULL;
		}
		json_decref(counts);
		push(&list, row);
	}
	return list;
}

static json_t *page_slowest(const struct replay_result *result)
{
	json_t *list = json_array();
	for (int32_t i = 0; i < result->slowest_count; ++i) {
		const struct replay_detection *detection = &result->slowest[i];
		const kvc_finding *finding = &detection->finding;
		push(&list,
		        json_pack("{s:s,s:I,s:I,s:I,s:s,s:o}", "fault", detection->fault,
		                "injected_step", (json_int_t)detection->injected_step,
		                "detected_step", (json_int_t)detection->detected_step, "slot",
		                (json_int_t)finding->violation.slot, "what", detection->layer_text,
		                "reason", page_reasons(finding->violation.reasons)));
	}
	return list;
}

static json_t *page_finding(const char *title, const char *what, const kvc_finding *finding)
{
	char text[4096];
	kvc_finding_text(text, sizeof(text), finding);
	return json_pack("{s:s,s:s,s:I,s:I,s:s,s:o}", "title", title, "what", what, "step",
	        (json_int_t)finding->step, "slot", (json_int_t)finding->violation.slot, "slug",
	        finding->slug ? finding->slug : "", "text", page_text(text));
}

static json_t *page_findings(const struct replay_result *result)
{
	json_t *list = json_array();
	const char *alarm = result->fault_count ? "false alarm" : "violation";
	for (int32_t i = 0; i < result->alarm_count; ++i)
		push(&list, page_finding(alarm, "", &result->alarms[i]));
	for (int32_t i = 0; i < result->example_count; ++i)
		push(&list, page_finding(result->examples[i].fault, result->examples[i].layer_text,
		                    &result->examples[i].finding));
	return list;
}

/* ---- Options and what to do next ----------------------------------------------------------- */

static json_t *page_settings(const struct replay_result *result)
{
	json_t *list = json_array();
	for (int32_t i = 0; i < result->setting_count; ++i)
		push(&list, json_pack("[s,o]", result->settings[i].name,
		                    page_text(result->settings[i].value)));
	return list;
}

/* A path as a shell takes it: in quotes, unless it has nothing that needs them. */
static void shell_quote(char *out, size_t out_bytes, const char *path)
{
	static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	                            "0123456789_./-+,:=@%";
	size_t used = 0;
	if (path[0] && path[0] != '-' && strspn(path, plain) == strlen(path)) {
		snprintf(out, out_bytes, "%s", path);
		return;
	}
	out[used++] = '\'';
	for (; *path && used + 6 < out_bytes; ++path) {
		if (*path == '\'') {
			memcpy(out + used, "'\\'", 3);
			used += 3;
		}
		out[used++] = *path;
	}
	out[used++] = '\'';
	out[used] = '\0';
}

static json_t *page_next(const struct replay_result *result)
{
	const kvc_finding *finding = result->alarm_count     ? &result->alarms[0]
	                             : result->example_count ? &result->examples[0].finding
	                                                     : NULL;
	char path[4096], command[4608];
	const char *text;
	shell_quote(path, sizeof(path), result->trace_path);
	if (finding && finding->slug) {
		text = "What the first finding means, where people meet it and what to do.";
		snprintf(command, sizeof(command), "kvcanary explain %s", finding->slug);
	} else if (!result->fault_count) {
		text = "The same run with every fault injected, to see what the checks find.";
		snprintf(command, sizeof(command),
		        "kvcanary replay %s --fault all --html report.html", path);
	} else {
		text = "The same run without faults; it must stay silent.";
		snprintf(command, sizeof(command), "kvcanary replay %s --html report.html", path);
	}
	return json_pack("{s:s,s:o}", "text", text, "command", page_text(command));
}

static json_t *page_run(const struct replay_result *result)
{
	return json_pack("{s:I,s:I,s:I,s:I,s:I,s:o}", "requests", (json_int_t)result->requests,
	        "requests_in_trace", (json_int_t)result->requests_in_trace, "steps",
	        (json_int_t)result->steps, "violations", (json_int_t)result->violations,
	        "false_alarms", (json_int_t)result->false_alarms, "trace",
	        page_text(page_trace_name(result)));
}

json_t *replay_page_data(const struct replay_result *result)
{
	return json_pack("{s:s,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "version", kvc_version(),
	        "run", page_run(result), "verdict", page_verdict(result), "figures",
	        page_figures(result), "timeline", page_timeline(result), "pool", page_pool(result),
	        "faults", page_faults(result), "slowest", page_slowest(result), "findings",
	        page_findings(result), "settings", page_settings(result), "next",
	        page_next(result));
}
