/* The verdict of a run; outcome.h says what each function promises. */
#include "replay/outcome.h"

#include <stdlib.h>
#include <string.h>

/* Fewer detections than this say little. */
#define DETECTED_LEAST 3
#define INJECTIONS_MAX 1000

static int compare_steps(const void *a, const void *b)
{
	const int64_t *left = a, *right = b;

	return (*left > *right) - (*left < *right);
}

static int64_t steps_to_detect(const struct injection *injection)
{
	return injection->detected_step - injection->step;
}

static int64_t median_steps(const struct taint *taint, int32_t fault)
{
	int64_t steps[INJECTIONS_MAX], count = 0;

	for (int32_t i = 0; i < taint->injection_count && count < INJECTIONS_MAX; i++)
		if (taint->injections[i].fault == fault && taint->injections[i].detected)
			steps[count++] = steps_to_detect(&taint->injections[i]);
	if (count == 0)
		return -1;
	qsort(steps, (size_t)count, sizeof(steps[0]), compare_steps);
	return steps[(count - 1) / 2];
}

/* The set of reasons that most detections of a fault came with; the earliest of equals. */
static int64_t frequent_reasons(const struct taint *taint, int32_t fault)
{
	int64_t best = 0;
	int32_t most = 0;

	for (int32_t i = 0; i < taint->injection_count; i++) {
		const struct injection *one = &taint->injections[i];
		int32_t same = 0;
		if (one->fault != fault || !one->detected)
			continue;
		for (int32_t j = 0; j < taint->injection_count; j++) {
			const struct injection *other = &taint->injections[j];
			same += other->fault == fault && other->detected &&
			        other->finding.violation.reasons == one->finding.violation.reasons;
		}
		if (same > most) {
			most = same;
			best = one->finding.violation.reasons;
		}
	}
	return best;
}

/*
 * Read by a step and never reported rightly: missed. Gone, or still there at the end, without
 * anybody having read it: expired. Where no check could see it, it counts as missed in any case.
 */
static void count_injection(struct replay_fault_row *row, const struct injection *injection)
{
	row->injected++;
	row->tainted_slots += injection->tainted_slots;
	if (injection->detected) {
		row->detected++;
		row->culprit_right += row->culprit_right >= 0 && injection->culprit_right;
	} else if (injection->read || injection->other || !row->check_on) {
		row->missed++;
		row->seen_otherwise += injection->other != 0;
	} else {
		row->expired++;
	}
}

static void fill_fault_row(struct replay_fault_row *row, const struct replay_options *options,
        const struct taint *taint, int32_t fault)
{
	const struct fault_kind *kind = &fault_kinds[fault];

	*row = (struct replay_fault_row){ .name = kind->name,
		.summary = kind->summary,
		.declared = kind->declared,
		.needs = options_missing(&options->engine, kind->needs),
		.culprit_right = kind->has_culprit ? 0 : -1 };
	row->check_on = row->needs[0] == '\0';
	for (int32_t i = 0; i < taint->injection_count; i++)
		if (taint->injections[i].fault == fault)
			count_injection(row, &taint->injections[i]);
	row->reasons = frequent_reasons(taint, fault);
	row->steps_to_detect = median_steps(taint, fault);
	row->passed = !row->check_on || (row->detected >= DETECTED_LEAST && row->missed == 0 &&
	                                        4 * row->expired <= row->injected);
}

/* ---- lists of detections ---- */

static struct replay_detection detection_of(const struct injection *injection)
{
	struct replay_detection out = { .fault = fault_kinds[injection->fault].name,
		.injected_step = injection->step,
		.detected_step = injection->detected_step,
		.culprit_request =
		        injection->culprit_count > 0 && fault_kinds[injection->fault].has_culprit
		                ? injection->culprits[injection->culprit_count - 1]
		                : -1,
		.finding = injection->finding };

	memcpy(out.layer_text, injection->what, sizeof(out.layer_text));
	return out;
}

/* Keep the slowest, slowest first; of equals the earlier one stands first. */
static void add_slowest(struct replay_result *out, const struct injection *injection)
{
	int32_t at = out->slowest_count;

	while (at > 0 && out->slowest[at - 1].detected_step - out->slowest[at - 1].injected_step <
	                         steps_to_detect(injection))
		at--;
	if (at == REPLAY_SLOWEST_MAX)
		return;
	if (out->slowest_count < REPLAY_SLOWEST_MAX)
		out->slowest_count++;
	memmove(&out->slowest[at + 1], &out->slowest[at],
	        (size_t)(out->slowest_count - at - 1) * sizeof(out->slowest[0]));
	out->slowest[at] = detection_of(injection);
}

static void fill_detections(struct replay_result *out, const struct taint *taint)
{
	bool shown[FAULT_KINDS_MAX] = { false };

	for (int32_t i = 0; i < taint->injection_count; i++) {
		const struct injection *injection = &taint->injections[i];
		if (!injection->detected)
			continue;
		add_slowest(out, injection);
		if (shown[injection->fault] || out->example_count == REPLAY_EXAMPLES_MAX)
			continue;
		shown[injection->fault] = true;
		out->examples[out->example_count++] = detection_of(injection);
	}
	out->alarm_count = taint->alarm_count;
	memcpy(out->alarms, taint->alarms, sizeof(taint->alarms));
}

void outcome_fill(
        struct replay_result *out, const struct replay_options *options, const struct taint *taint)
{
	bool passed = true;

	for (int32_t i = 0; i < fault_kind_count; i++) {
		if (!options->faults[i])
			continue;
		struct replay_fault_row *row = &out->faults[out->fault_count++];
		fill_fault_row(row, options, taint, i);
		passed = passed && row->passed;
	}
	out->false_alarms = taint->false_alarms;
	fill_detections(out, taint);
	if (options->fault_count > 0)
		out->exit_code = passed && out->false_alarms == 0 ? 0 : 1;
	else
		out->exit_code = out->violations == 0 ? 0 : 1;
}

void outcome_list_faults(FILE *out)
{
	char reasons[REPLAY_REASONS_BYTES];

	for (int32_t i = 0; i < fault_kind_count; i++)
		fprintf(out, "%-21s %s\n%-21s seen as %s\n", fault_kinds[i].name,
		        fault_kinds[i].summary, "",
		        replay_reasons_text(reasons, fault_kinds[i].declared));
}
