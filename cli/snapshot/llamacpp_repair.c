/*
 * Which field of a broken state file is to blame. A wrong count shows far from where it stands: with
 * one cell too many the headers of the layers are read as a cell. So when no shape fits, fields are
 * read one at a time as if they held another value; if the rest of the file then fits to its last
 * byte, that field is the one. Where no single field explains it, the shape that got furthest says
 * what it stumbled over.
 */
#include "snapshot/llamacpp_scan.h"

#include <stdio.h>
#include <string.h>

/* Fields read in all; about a hundredth of a second. */
#define WORK_MAX ((uint64_t)1000000)
#define SHAPES_MAX 64
/* Counts are tried from 0 to this. */
#define SMALL_COUNTS 256

struct attempt {
	struct llama_shape shape;
	struct llama_fault fault;
};

static bool fits(struct llama_scan *scan, const struct llama_shape *shape, uint64_t value)
{
	scan->override_value = value;
	return llama_scan_shape(scan, shape);
}

/* Some value near that of the field, or in fields of the same kind, or one bit away; of a count that
 * its own check has refused, any small one. */
static bool mends(struct llama_scan *scan, const struct llama_shape *shape,
        const struct llama_field *field, bool is_count)
{
	const char *dot = strchr(field->name, '.');

	for (uint32_t bit = 0; bit < 8 * field->width; bit++)
		if (fits(scan, shape, field->value ^ (uint64_t)1 << bit))
			return true;
	for (uint64_t step = 1; step <= 8; step++)
		if (fits(scan, shape, field->value + step) ||
		        fits(scan, shape, field->value - step))
			return true;
	for (size_t i = 0; dot && i < scan->field_count; i++) {
		const struct llama_field *other = &scan->fields[i];
		const char *other_dot = strchr(other->name, '.');
		if (other_dot && strcmp(dot, other_dot) == 0 && other->value != field->value &&
		        fits(scan, shape, other->value))
			return true;
	}
	for (uint64_t value = 0; is_count && value < SMALL_COUNTS && !scan->unreadable &&
	                         scan->fields_read < WORK_MAX;
	        value++)
		if (fits(scan, shape, value))
			return true;
	return false;
}

/* The row size of the last block: nothing behind it could contradict another one, so that bytes
 * which are missing or too many at the end would always be blamed on it. */
static bool only_moves_the_end(const struct llama_scan *scan, size_t index)
{
	const char *name = scan->fields[index].name;
	bool is_size = strstr(name, ".row_bytes") || strstr(name, ".n_embd");

	for (size_t i = index + 1; is_size && i < scan->field_count; i++)
		is_size = !strstr(scan->fields[i].name, ".type");
	return is_size;
}

/* Positions and sequence ids take part in nothing. */
static bool is_structure(const char *name)
{
	return strcmp(name, "pos") != 0 && strcmp(name, "seq_id") != 0;
}

static bool try_field(struct llama_scan *scan, const struct attempt *attempt, size_t index)
{
	const struct llama_field *field = &scan->fields[index];
	struct llama_fault *fault = &scan->fault;
	bool failed = field->offset == attempt->fault.offset;
	bool is_count = failed && strncmp(attempt->fault.kind, "count", 5) == 0;

	scan->override_offset = field->offset;
	if (!failed && (!is_structure(field->name) || only_moves_the_end(scan, index)))
		return false;
	if (scan->fields_read > WORK_MAX || !mends(scan, &attempt->shape, field, is_count))
		return false;
	if (failed) {
		*fault = attempt->fault; /* its own check had found it */
		return true;
	}
	fault->kind = "structure";
	fault->slug = "snapshot-structure";
	fault->offset = field->offset;
	snprintf(fault->field, sizeof(fault->field), "%s", field->name);
	snprintf(fault->reason, sizeof(fault->reason), "it is %llu; with %llu all would fit",
	        (unsigned long long)field->value, (unsigned long long)scan->override_value);
	return true;
}

/* Tries the fields of one shape: the last one, where the scan stopped, then in the file's order. */
static bool blame_field(struct llama_scan *scan, const struct attempt *attempt)
{
	bool found;

	scan->has_override = false;
	llama_scan_shape(scan, &attempt->shape); /* lists its fields */
	scan->has_override = true;
	found = scan->field_count > 0 && try_field(scan, attempt, scan->field_count - 1);
	for (size_t i = 0; i + 1 < scan->field_count && !found && !scan->unreadable; i++)
		found = try_field(scan, attempt, i);
	scan->has_override = false;
	return found;
}

/* The furthest first; among equals those of the usual shapes. */
static size_t collect_attempts(struct llama_scan *scan, struct attempt *out)
{
	size_t count = 0;
	struct llama_shape shape;

	for (size_t i = 0;
	        count < SHAPES_MAX && llama_shape_at(&shape, scan->container, scan->version, i);
	        i++) {
		size_t place = count++;
		llama_scan_shape(scan, &shape);
		if (scan->unreadable)
			return 0;
		for (; place > 0 && out[place - 1].fault.progress < scan->fault.progress; place--)
			out[place] = out[place - 1];
		out[place] = (struct attempt){ shape, scan->fault };
	}
	return count;
}

/* Shapes that differ only in what follows stumble alike; where the file is cut before that, one of
 * them tells as much as all. */
static bool is_repeated(const struct attempt *attempts, size_t index)
{
	const struct llama_fault *fault = &attempts[index].fault;

	for (size_t i = 0; i < index && strcmp(fault->kind, "truncated") == 0; i++)
		if (attempts[i].fault.offset == fault->offset &&
		        attempts[i].fault.progress == fault->progress &&
		        strcmp(attempts[i].fault.field, fault->field) == 0)
			return true;
	return false;
}

void llama_find_fault(struct llama_scan *scan)
{
	struct attempt attempts[SHAPES_MAX];
	size_t count;

	scan->has_override = false;
	count = collect_attempts(scan, attempts);
	for (size_t i = 0; i < count && scan->fields_read < WORK_MAX && !scan->unreadable; i++)
		if (!attempts[0].fault.is_sure && !is_repeated(attempts, i) &&
		        blame_field(scan, &attempts[i]))
			return;
	if (count > 0)
		scan->fault = attempts[0].fault;
}
