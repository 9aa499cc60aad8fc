/*
 * The requests of a step: what each of them has read before, and on which slots.
 *
 * A request is known by its row and its id. For each row the guard keeps how far its request has
 * read, and the row of the table as it was then. A position counts as read only as long as the
 * table names the same slot for it: an entry that changed under a live request is a first read
 * again, whatever the engine had in mind. The same goes for a request that comes back with no more
 * cached than it had (preempted, rolled back): in between its slots were anybody's.
 */
#include <string.h>

#include "guard/guard.h"
#include "ops/arguments.h"

/* ---- the caller's struct ---- */

static kvc_status check_kept_fields(const kvc_requests *requests)
{
	if (requests->verify_chain_in)
		return kvc__fail_guard_field_not_null(-1, "verify_chain_in");
	if (requests->write_chain_in)
		return kvc__fail_guard_field_not_null(-1, "write_chain_in");
	if (requests->start)
		return kvc__fail_guard_field_not_null(-1, "start");
	return KVC_OK;
}

/* An int64 vector as an array; optional ones give NULL. */
static kvc_status take_vector(
        const int64_t **out, const kvc_tensor *tensor, const char *name, int64_t length)
{
	*out = NULL;
	if (!tensor)
		return KVC_OK;
	KVC__TRY(kvc__check_vector(tensor, name, KVC_INT64, length));
	*out = (const int64_t *)(void *)kvc__tensor_data(tensor);
	return KVC_OK;
}

static kvc_status take_requests(struct kvc__step *step)
{
	const kvc_requests *from = &step->requests;
	int64_t count;

	KVC__TRY(check_kept_fields(from));
	KVC__TRY(kvc__check_vector(
	        from->req_pool_indices, "req_pool_indices", KVC_INT64, KVC__ANY_LENGTH));
	count = from->req_pool_indices->shape[0];
	step->request_count = count;
	KVC__TRY(kvc__check_present(from->prefix_lens, "prefix_lens"));
	KVC__TRY(kvc__check_present(from->extend_seq_lens, "extend_seq_lens"));
	KVC__TRY(kvc__check_present(from->owner_request, "owner_request"));
	KVC__TRY(take_vector(&step->rows, from->req_pool_indices, "req_pool_indices", count));
	KVC__TRY(take_vector(&step->prefix_lens, from->prefix_lens, "prefix_lens", count));
	KVC__TRY(take_vector(&step->extend_lens, from->extend_seq_lens, "extend_seq_lens", count));
	KVC__TRY(take_vector(&step->owner_request, from->owner_request, "owner_request", count));
	KVC__TRY(take_vector(&step->namespaces, from->namespaces, "namespaces", count));
	return take_vector(&step->chain_end, from->chain_end, "chain_end", count);
}

static kvc_status take_tables(kvc_guard *guard, struct kvc__step *step)
{
	const kvc_guard_step *from = &step->given;
	const kvc_tensor *table = from->req_to_token;

	KVC__TRY(kvc__check_table(table, "req_to_token", KVC_INT32));
	if (table->shape[0] != guard->options.request_rows)
		return kvc__fail_guard_table_rows(-1, guard->options.request_rows, table);
	step->table = (const int32_t *)(void *)kvc__tensor_data(table);
	step->table_stride = kvc__tensor_stride(table, 0);
	step->column_count = table->shape[1];
	step->expected = NULL;
	step->valid_lens = NULL;
	if (!from->expected_tokens)
		return KVC_OK;
	KVC__TRY(kvc__check_table(from->expected_tokens, "expected_tokens", KVC_INT32));
	if (!from->valid_lens)
		return kvc__fail_plan_expected_tokens_need_valid_lens(-1);
	KVC__TRY(take_vector(
	        &step->valid_lens, from->valid_lens, "valid_lens", step->request_count));
	step->expected = (const int32_t *)(void *)kvc__tensor_data(from->expected_tokens);
	step->expected_stride = kvc__tensor_stride(from->expected_tokens, 0);
	step->expected_rows = from->expected_tokens->shape[0];
	step->expected_columns = from->expected_tokens->shape[1];
	return KVC_OK;
}

static kvc_status take_writes(struct kvc__step *step)
{
	const kvc_guard_step *from = &step->given;
	const int64_t *unused;

	KVC__TRY(kvc__check_vector(from->tokens, "tokens", KVC_INT64, KVC__ANY_LENGTH));
	int64_t count = from->tokens->shape[0];
	step->token_count = count;
	KVC__TRY(kvc__check_present(from->positions, "positions"));
	KVC__TRY(kvc__check_present(from->slots, "slots"));
	KVC__TRY(take_vector(&step->tokens, from->tokens, "tokens", count));
	KVC__TRY(take_vector(&step->positions, from->positions, "positions", count));
	KVC__TRY(take_vector(&step->slots, from->slots, "slots", count));
	if (!from->expected_input_tokens != !from->expected_input_positions)
		return kvc__fail_write_expected_one_missing(-1,
		        from->expected_input_tokens ? "expected_input_tokens"
		                                    : "expected_input_positions",
		        from->expected_input_tokens ? "expected_input_positions"
		                                    : "expected_input_tokens");
	KVC__TRY(take_vector(&unused, from->expected_input_tokens, "expected_input_tokens", count));
	return take_vector(
	        &unused, from->expected_input_positions, "expected_input_positions", count);
}

static kvc_status check_step_devices(const struct kvc__step *step)
{
	const kvc_guard_step *from = &step->given;
	const kvc_requests *requests = &step->requests;
	const struct kvc__named list[] = {
		{ requests->req_pool_indices, "req_pool_indices" },
		{ requests->prefix_lens, "prefix_lens" },
		{ requests->extend_seq_lens, "extend_seq_lens" },
		{ requests->owner_request, "owner_request" },
		{ requests->namespaces, "namespaces" },
		{ requests->chain_end, "chain_end" },
		{ from->req_to_token, "req_to_token" },
		{ from->expected_tokens, "expected_tokens" },
		{ from->valid_lens, "valid_lens" },
		{ from->tokens, "tokens" },
		{ from->positions, "positions" },
		{ from->slots, "slots" },
		{ from->expected_input_tokens, "expected_input_tokens" },
		{ from->expected_input_positions, "expected_input_positions" },
		{ from->valid_prefix, "valid_prefix" },
	};

	return kvc__check_devices(list, sizeof(list) / sizeof(list[0]));
}

/* A new width of the table makes every request new: the old columns mean nothing any more. */
static kvc_status size_snapshot(kvc_guard *guard)
{
	int64_t row_count = guard->options.request_rows, columns = guard->step.column_count;
	void *memory;

	if (guard->snapshot && guard->snapshot_columns == columns)
		return KVC_OK;
	if (columns > INT64_MAX / row_count)
		return kvc__fail_no_memory(-1, columns, (int64_t)sizeof(int32_t));
	KVC__TRY(kvc__guard_alloc(guard, &memory, row_count * columns, sizeof(int32_t)));
	kvc__guard_free(
	        guard, guard->snapshot, row_count * guard->snapshot_columns, sizeof(int32_t));
	guard->snapshot = memory;
	guard->snapshot_columns = columns;
	for (int64_t i = 0; i < row_count; i++)
		guard->rows[i].request = -1;
	return KVC_OK;
}

static int64_t *next_array(char **at, int64_t count)
{
	int64_t *array = (int64_t *)(void *)*at;

	*at += count * (int64_t)sizeof(int64_t);
	return array;
}

static kvc_status size_arrays(kvc_guard *guard)
{
	struct kvc__step *step = &guard->step;
	int64_t count = step->request_count, token_count = step->token_count;
	int64_t bytes = count * (int64_t)sizeof(*step->entries);

	bytes += (5 * count + 1 + token_count) * (int64_t)sizeof(int64_t);
	KVC__TRY(kvc__guard_grow(guard, &guard->step_memory, bytes));
	char *at = guard->step_memory.data;
	step->entries = (struct kvc__entry *)(void *)at;
	at += count * (int64_t)sizeof(*step->entries);
	step->start_first = next_array(&at, count);
	step->prefix_again = next_array(&at, count);
	step->valid = next_array(&at, count);
	step->valid_part = next_array(&at, count);
	step->offsets_memory = next_array(&at, count + 1);
	step->expected_positions = next_array(&at, token_count);
	for (int32_t g = 0; g < guard->group_count; g++) {
		struct kvc__guard_group *group = guard->groups[g];
		bytes = (5 * count + 2 * token_count) * (int64_t)sizeof(int64_t);
		KVC__TRY(kvc__guard_grow(guard, &group->numbers_memory, bytes));
		at = group->numbers_memory.data;
		group->start_again = next_array(&at, count);
		group->chain_first = next_array(&at, count);
		group->chain_again = next_array(&at, count);
		group->chain_last = next_array(&at, count);
		group->chain_write = next_array(&at, count);
		group->write_tokens = next_array(&at, token_count);
		group->slots_memory = next_array(&at, token_count);
	}
	return KVC_OK;
}

kvc_status kvc__step_take(kvc_guard *guard, const kvc_guard_step *given)
{
	kvc_guard_step known = KVC_GUARD_STEP_INIT;
	kvc_requests requests = KVC_REQUESTS_INIT;
	struct kvc__step *step = &guard->step;
	const int64_t *unused;

	KVC__TAKE(&known, given, "step");
	if (known.step < 0 || known.step >= UINT32_MAX)
		return kvc__fail_guard_value_out_of_range(
		        -1, "step", known.step, 0, UINT32_MAX - 1);
	if (known.step <= guard->last_step)
		return kvc__fail_guard_step_order(-1, known.step, guard->last_step);
	KVC__TAKE(&requests, known.requests, "requests");
	memset(step, 0, sizeof(*step));
	step->given = known;
	step->requests = requests;
	step->given.requests = &step->requests;
	step->number = known.step;
	KVC__TRY(take_requests(step));
	KVC__TRY(take_tables(guard, step));
	KVC__TRY(take_writes(step));
	KVC__TRY(take_vector(&unused, known.valid_prefix, "valid_prefix", step->request_count));
	KVC__TRY(check_step_devices(step));
	KVC__TRY(size_snapshot(guard));
	return size_arrays(guard);
}

/* ---- entries ---- */

/* The first of 'count' columns in which the two rows differ, or count. */
static int64_t first_difference(const int32_t *a, const int32_t *b, int64_t count)
{
	int64_t i = 0;

	/* Rows nearly always agree, and memcmp runs at the speed of memory. */
	if (count == 0 || memcmp(a, b, (size_t)count * sizeof(*a)) == 0)
		return count;
	while (a[i] == b[i])
		i++;
	return i;
}

static int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static void look_at_entry(kvc_guard *guard, int64_t r)
{
	struct kvc__step *step = &guard->step;
	struct kvc__entry *entry = &step->entries[r];
	int64_t number = step->rows[r];
	const struct kvc__guard_row *row = &guard->rows[number];
	const int32_t *table = step->table + number * step->table_stride;
	const int32_t *snapshot = guard->snapshot + number * guard->snapshot_columns;
	int64_t name_space = step->namespaces ? step->namespaces[r] : 0;

	memset(entry, 0, sizeof(*entry));
	entry->live = number != 0;
	if (!entry->live)
		return;
	entry->prefix = step->prefix_lens[r] > 0 ? step->prefix_lens[r] : 0;
	entry->extend = step->extend_lens[r] > 0 ? step->extend_lens[r] : 0;
	entry->read_to = entry->prefix;
	entry->since = step->number;
	entry->is_new = row->request != step->owner_request[r] || row->name_space != name_space ||
	                entry->prefix < row->prefix ||
	                (entry->prefix == row->prefix && row->extend > 0);
	if (entry->is_new)
		return;
	entry->since = row->since;
	entry->known = row->known;
	entry->change = first_difference(table, snapshot, least(row->known, entry->prefix));
	entry->start = least(least(row->verified, entry->prefix), entry->change);
}

/* No two requests on one row: what one of them has read would count for the other. */
static kvc_status claim_row(kvc_guard *guard, int64_t r)
{
	struct kvc__step *step = &guard->step;
	struct kvc__guard_row *row = &guard->rows[step->rows[r]];

	if (step->rows[r] == 0)
		return KVC_OK;
	if (step->owner_request[r] < 0)
		return kvc__fail_guard_owner_negative(r, r, step->owner_request[r]);
	if (row->batch == guard->batch_number)
		return kvc__fail_guard_row_duplicate(r, row->entry, r, step->rows[r]);
	row->batch = guard->batch_number;
	row->entry = r;
	return KVC_OK;
}

kvc_status kvc__step_look(kvc_guard *guard)
{
	struct kvc__step *step = &guard->step;
	int64_t total;

	memcpy(step->offsets_memory, guard->groups[0]->plan.write_offsets,
	        (size_t)(step->request_count + 1) * sizeof(*step->offsets_memory));
	total = step->offsets_memory[step->request_count];
	if (total > step->token_count)
		return kvc__fail_write_tokens_short(-1, total, step->token_count);
	guard->batch_number++;
	for (int64_t r = 0; r < step->request_count; r++)
		KVC__TRY(claim_row(guard, r));
	for (int64_t r = 0; r < step->request_count; r++) {
		look_at_entry(guard, r);
		struct kvc__entry *entry = &step->entries[r];
		step->start_first[r] = guard->options.verify_budget < 0 ? 0 : entry->start;
		step->prefix_again[r] = entry->start;
		step->valid[r] = step->prefix_lens[r] > 0 ? step->prefix_lens[r] : 0;
	}
	step->offsets = step->offsets_memory;
	for (int64_t r = 0; r < step->request_count; r++)
		for (int64_t i = step->offsets[r]; i < step->offsets[r + 1]; i++)
			step->expected_positions[i] =
			        step->entries[r].prefix + (i - step->offsets[r]);
	for (int64_t i = total; i < step->token_count; i++)
		step->expected_positions[i] = step->positions[i];
	return KVC_OK;
}

int64_t kvc__step_entry_of_row(const kvc_guard *guard, int64_t row)
{
	if (row <= 0 || row >= guard->options.request_rows ||
	        guard->rows[row].batch != guard->batch_number)
		return -1;
	return guard->rows[row].entry;
}

int64_t kvc__step_entry_of_token(const struct kvc__step *step, int64_t token)
{
	int64_t low = 0, past = step->request_count;

	while (past - low > 1) {
		int64_t middle = low + (past - low) / 2;
		if (step->offsets[middle] <= token)
			low = middle;
		else
			past = middle;
	}
	return low;
}

/* ---- after a step has begun ---- */

/* The row as this request knows it now: what it reads, then the slots that it writes. */
static void remember_slots(kvc_guard *guard, int64_t r)
{
	struct kvc__step *step = &guard->step;
	const struct kvc__entry *entry = &step->entries[r];
	int64_t number = step->rows[r];
	const int32_t *table = step->table + number * step->table_stride;
	int32_t *snapshot = guard->snapshot + number * guard->snapshot_columns;
	int64_t room = step->column_count - entry->prefix;

	for (int64_t p = entry->change; p < entry->prefix; p++)
		snapshot[p] = table[p];
	for (int64_t i = 0; i < entry->extend && i < room; i++) {
		int64_t slot = step->slots[step->offsets[r] + i];
		snapshot[entry->prefix + i] = slot > INT32_MAX || slot < 0 ? -1 : (int32_t)slot;
	}
}

void kvc__step_remember(kvc_guard *guard)
{
	struct kvc__step *step = &guard->step;

	for (int64_t r = 0; r < step->request_count; r++) {
		const struct kvc__entry *entry = &step->entries[r];
		struct kvc__guard_row *row = &guard->rows[step->rows[r]];
		if (!entry->live)
			continue;
		remember_slots(guard, r);
		row->request = step->owner_request[r];
		row->name_space = step->namespaces ? step->namespaces[r] : 0;
		row->verified = entry->read_to;
		row->prefix = entry->prefix;
		row->extend = entry->extend;
		row->known = least(entry->prefix + entry->extend, step->column_count);
		row->since = entry->since;
	}
}
