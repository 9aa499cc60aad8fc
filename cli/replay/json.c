/* The result as one JSON object, with the fields that scripts rely on. */
#include "replay/result.h"

#include "json_line.h"

static json_t *known_number(int64_t number)
{
	return number < 0 ? json_null() : json_integer(number);
}

static json_t *fault_object(const struct replay_fault_row *row)
{
	char declared[REPLAY_REASONS_BYTES], reason[REPLAY_REASONS_BYTES];

	return json_pack("{ss ss sI sI sI sI sI sI so so so}", "name", row->name, "declared",
	        replay_reasons_text(declared, row->declared), "injected", (json_int_t)row->injected,
	        "detected", (json_int_t)row->detected, "missed", (json_int_t)row->missed,
	        "seen_otherwise", (json_int_t)row->seen_otherwise, "expired",
	        (json_int_t)row->expired, "tainted_slots", (json_int_t)row->tainted_slots, "reason",
	        row->reasons ? json_string(replay_reasons_text(reason, row->reasons)) : json_null(),
	        "steps_to_detect", known_number(row->steps_to_detect), "culprit_right",
	        known_number(row->culprit_right));
}

static void set_number(json_t *object, const char *name, int64_t number)
{
	json_object_set_new(object, name, json_integer(number));
}

static json_t *result_object(const struct replay_result *result)
{
	json_t *object = json_object(), *faults = json_array();

	set_number(object, "requests", result->requests);
	set_number(object, "requests_in_trace", result->requests_in_trace);
	set_number(object, "steps", result->steps);
	set_number(object, "tokens_written", result->tokens_written);
	set_number(object, "bytes_written", result->bytes_written);
	set_number(object, "slots_verified", result->statistics.slots_verified);
	set_number(object, "bytes_verified", result->statistics.bytes_verified);
	set_number(object, "slots_left_out", result->statistics.slots_left_out);
	json_object_set_new(object, "seconds", json_real(result->seconds));
	json_object_set_new(object, "canary_seconds", json_real(result->canary_seconds));
	json_object_set_new(object, "mode", json_string(result->mode));
	json_object_set_new(object, "fingerprint", json_string(result->fingerprint));
	set_number(object, "seed", (int64_t)result->seed);
	set_number(object, "violations", result->violations);
	set_number(object, "false_alarms", result->false_alarms);
	for (int32_t i = 0; i < result->fault_count; i++)
		json_array_append_new(faults, fault_object(&result->faults[i]));
	json_object_set_new(object, "faults", faults);
	set_number(object, "evictions", result->evictions);
	set_number(object, "preemptions", result->preemptions);
	set_number(object, "aborts", result->aborts);
	set_number(object, "prefill_chunks", result->prefill_chunks);
	set_number(object, "prefix_hit_tokens", result->prefix_hit_tokens);
	return object;
}

int replay_json_write(FILE *out, const struct replay_result *result)
{
	return cli_write_json(out, result_object(result), JSON_INDENT(2) | JSON_REAL_PRECISION(6));
}
