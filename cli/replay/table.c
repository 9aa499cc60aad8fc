/* The summary for a person. */
#include "cli.h"
#include "replay/options.h"
#include "replay/result.h"

#include <stdlib.h>
#include <string.h>

#define EXAMPLES_SHOWN 3
#define TEXT_BYTES 2048

struct style {
	const char *bold;
	const char *bad;
	const char *plain;
};

static const struct style colored = { "\033[1m", "\033[31m", "\033[0m" };
static const struct style plain = { "", "", "" };

static void print_row(FILE *out, const char *name, const char *text)
{
	fprintf(out, "  %-12s %s\n", name, text);
}

static const char *scaled_bytes(char out[NUMBER_BYTES], int64_t bytes)
{
	if (bytes >= 1000000000)
		snprintf(out, NUMBER_BYTES, "%.1f GB", (double)bytes * 1e-9);
	else
		snprintf(out, NUMBER_BYTES, "%.1f MB", (double)bytes * 1e-6);
	return out;
}

static double per_second(double amount, double seconds)
{
	return seconds > 0 ? amount / seconds : 0;
}

/* ---- what ran ---- */

static void print_workload(FILE *out, const struct replay_result *r)
{
	char a[NUMBER_BYTES], b[NUMBER_BYTES], c[NUMBER_BYTES], d[NUMBER_BYTES], line[256];

	snprintf(line, sizeof(line), "%s finished, %s aborted, %s preempted, %s restarted",
	        options_number(a, r->requests_finished), options_number(b, r->aborts),
	        options_number(c, r->preemptions), options_number(d, r->restarts));
	print_row(out, "requests", line);
	snprintf(line, sizeof(line), "%s steps, %s prompt and %s answer tokens",
	        options_number(a, r->steps), options_number(b, r->prefill_tokens),
	        options_number(c, r->decode_tokens));
	print_row(out, "work", line);
	snprintf(line, sizeof(line), "%s chunks, %s requests took more than one",
	        options_number(a, r->prefill_chunks), options_number(b, r->multi_chunk_requests));
	print_row(out, "prompts", line);
	snprintf(line, sizeof(line),
	        "%s tokens of shared prefixes, %s blocks evicted, %s pages moved",
	        options_number(a, r->prefix_hit_tokens), options_number(b, r->evictions),
	        options_number(c, r->pages_moved));
	print_row(out, "cache", line);
	snprintf(line, sizeof(line), "%s tokens, %s in %.1f s: %s tokens/s, %s/s",
	        options_number(a, r->tokens_written), scaled_bytes(b, r->bytes_written), r->seconds,
	        options_number(c, (int64_t)per_second((double)r->tokens_written, r->seconds)),
	        scaled_bytes(d, (int64_t)per_second((double)r->bytes_written, r->seconds)));
	print_row(out, "written", line);
}

static void print_canary(FILE *out, const struct replay_result *r)
{
	const kvc_guard_statistics *s = &r->statistics;
	char a[NUMBER_BYTES], b[NUMBER_BYTES], c[NUMBER_BYTES], d[NUMBER_BYTES], line[256];

	snprintf(line, sizeof(line), "%s slots, %s of K and V (mode %s, %s); %s reads left out",
	        options_number(a, s->slots_verified), scaled_bytes(b, s->bytes_verified), r->mode,
	        r->fingerprint, options_number(c, s->slots_left_out));
	print_row(out, "verified", line);
	snprintf(line, sizeof(line), "%s first reads, %s again, %s in %s sweeps",
	        options_number(a, s->slots_first_read), options_number(b, s->slots_rotated),
	        options_number(c, s->slots_swept), options_number(d, r->sweeps));
	print_row(out, "", line);
	snprintf(line, sizeof(line),
	        "%.1f s of %.1f (%.0f %%) in calls of the guard; stamps are part of the write",
	        r->canary_seconds, r->seconds, 100 * per_second(r->canary_seconds, r->seconds));
	print_row(out, "cost", line);
	snprintf(line, sizeof(line), "%.1f s rope and pool writes, %.1f s making K, V and q",
	        r->rope_seconds, r->model_seconds);
	print_row(out, "", line);
}

/* ---- faults ---- */

static void print_fault(FILE *out, const struct replay_fault_row *row, const struct style *style)
{
	char reasons[REPLAY_REASONS_BYTES], steps[NUMBER_BYTES] = "-", culprit[NUMBER_BYTES] = "-";

	if (row->steps_to_detect >= 0)
		options_number(steps, row->steps_to_detect);
	if (row->culprit_right >= 0)
		snprintf(culprit, sizeof(culprit), "%lld/%lld", (long long)row->culprit_right,
		        (long long)row->detected);
	fprintf(out, "  %s%-21s%s %4lld %6lld %6lld %6lld %7lld %6s %8s  ",
	        row->passed && row->check_on ? "" : style->bad, row->name, style->plain,
	        (long long)row->injected, (long long)row->detected, (long long)row->missed,
	        (long long)row->seen_otherwise, (long long)row->expired, steps, culprit);
	if (row->check_on)
		fprintf(out, "%s\n",
		        row->reasons ? replay_reasons_text(reasons, row->reasons) : "-");
	else
		fprintf(out, "not checked: %s\n", row->needs);
	fprintf(out, "  %-21s must be seen as %s\n", "",
	        replay_reasons_text(reasons, row->declared));
}

static void print_faults(FILE *out, const struct replay_result *r, const struct style *style)
{
	if (r->fault_count == 0)
		return;
	fprintf(out, "\n%s  %-21s %4s %6s %6s %6s %7s %6s %8s  %s%s\n", style->bold, "fault", "in",
	        "found", "missed", "other", "expired", "steps", "culprit", "seen as", style->plain);
	for (int32_t i = 0; i < r->fault_count; i++)
		print_fault(out, &r->faults[i], style);
}

static void print_text(FILE *out, const kvc_finding *finding)
{
	char text[TEXT_BYTES];

	kvc_finding_text(text, sizeof(text), finding);
	cli_indented(out, 4, text);
	fputc('\n', out);
}

static void print_findings(FILE *out, const struct replay_result *r, const struct style *style)
{
	for (int32_t i = 0; i < r->example_count && i < EXAMPLES_SHOWN; i++) {
		const struct replay_detection *d = &r->examples[i];
		fprintf(out, "\n%s  %s%s, %s: injected in step %lld, found in step %lld\n",
		        style->bold, d->fault, style->plain, d->layer_text,
		        (long long)d->injected_step, (long long)d->detected_step);
		print_text(out, &d->finding);
	}
	for (int32_t i = 0; i < r->alarm_count && i < EXAMPLES_SHOWN; i++) {
		fprintf(out, "\n%s  %s%s\n", style->bad,
		        r->fault_count > 0 ? "false alarm" : "violation", style->plain);
		print_text(out, &r->alarms[i]);
	}
}

/* ---- the end ---- */

static void print_verdict(FILE *out, const struct replay_result *r, const struct style *style)
{
	char a[NUMBER_BYTES], b[NUMBER_BYTES];
	int64_t injected = 0, detected = 0, missed = 0, expired = 0;

	for (int32_t i = 0; i < r->fault_count; i++) {
		injected += r->faults[i].injected;
		detected += r->faults[i].detected;
		missed += r->faults[i].missed;
		expired += r->faults[i].expired;
	}
	fprintf(out, "\n%s", r->exit_code ? style->bad : style->bold);
	if (r->interrupted)
		fprintf(out, "interrupted: the numbers above are of the part that ran\n");
	else if (r->statistics.slots_verified == 0)
		fprintf(out, "0 slots checked: nothing can be said\n");
	else if (r->fault_count == 0 && r->violations == 0)
		fprintf(out, "clean: no violation in %s slots checked\n",
		        options_number(a, r->statistics.slots_verified));
	else if (r->fault_count == 0)
		fprintf(out, "%s violations in %s slots checked\n",
		        options_number(a, r->violations),
		        options_number(b, r->statistics.slots_verified));
	fputs(style->plain, out);
	if (r->fault_count > 0)
		fprintf(out,
		        "%s%lld faults: %lld found, %lld missed, %lld expired unread; %lld false "
		        "alarms%s\n",
		        r->exit_code ? style->bad : style->bold, (long long)injected,
		        (long long)detected, (long long)missed, (long long)expired,
		        (long long)r->false_alarms, style->plain);
}

static void print_next(FILE *out, const struct replay_result *r)
{
	if (r->html_path)
		fprintf(out, "report: %s\n", r->html_path);
	if (r->example_count > 0)
		fprintf(out, "next:   kvcanary explain %s\n", r->examples[0].finding.slug);
	else if (r->alarm_count > 0)
		fprintf(out, "next:   kvcanary explain %s\n", r->alarms[0].slug);
	else if (r->fault_count > 0)
		fprintf(out, "next:   kvcanary replay %s --fault all\n", r->trace_path);
	else
		fprintf(out, "next:   kvcanary replay %s --fault all --html report.html\n",
		        r->trace_path);
}

void replay_table_print(FILE *out, const struct replay_result *result, bool color)
{
	const struct style *style = color ? &colored : &plain;

	print_workload(out, result);
	print_canary(out, result);
	print_faults(out, result, style);
	print_findings(out, result, style);
	print_verdict(out, result, style);
	print_next(out, result);
}
