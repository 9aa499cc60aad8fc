/*
 * The guard called wrongly, in every way that its header names: the exact status, slug and message,
 * nothing stamped, and a guard that goes on as if the call had never been.
 */
#include "base/alloc.h"
#include "guard_engine.h"

/* One request of 8 tokens at slots 20 .. 27 in row 1, stamped at step 0. */
static struct engine *one_request(struct engine_options options)
{
	struct engine *e = engine_open(options);

	engine_tokens(e, 1, 1);
	engine_place(e, 1, 0, 40, 20);
	engine_add(e, 1, 7, 0, 8);
	engine_step(e);
	engine_expect_clean(e);
	engine_add(e, 1, 7, 8, 4);
	return e;
}

/* A copy of the group's records, to see that a refused call wrote none. */
struct kept {
	kvc_record records[ENGINE_SLOTS];
	kvc_owner owners[ENGINE_SLOTS];
	kvc_guard_statistics statistics;
};

static void keep(struct kept *out, struct engine *e)
{
	kvc_group view;

	expect_ok(kvc_guard_group_view(&view, e->guard, e->full));
	memcpy(out->records, view.records, sizeof(out->records));
	memcpy(out->owners, view.owners, sizeof(out->owners));
	out->statistics = engine_stats(e);
}

/* The step that was just refused changed nothing and is possible once its fault is mended. */
static void expect_untouched(struct engine *e, const struct kept *before)
{
	struct kept now;

	keep(&now, e);
	assert_memory_equal(now.records, before->records, sizeof(now.records));
	assert_memory_equal(now.owners, before->owners, sizeof(now.owners));
	assert_int_equal(now.statistics.steps, before->statistics.steps);
	assert_int_equal(now.statistics.slots_stamped, before->statistics.slots_stamped);
	assert_int_equal(now.statistics.violations, before->statistics.violations);
}

#define refused(e, status, slug, message, where)                                                   \
	do {                                                                                       \
		struct kept before;                                                                \
		keep(&before, e);                                                                  \
		expect_error(engine_begin(e), status, slug, message, where);                       \
		expect_untouched(e, &before);                                                      \
	} while (0)

/* ---- create ---- */

static void create_refuses(void **state)
{
	kvc_guard_options options = KVC_GUARD_OPTIONS_INIT;
	kvc_guard *guard = NULL;

	(void)state;
	options.request_rows = 4;
	expect_error(kvc_guard_create(NULL, &options), KVC_E_INVALID_ARGUMENT, "null-argument",
	        "out is NULL", -1);
	expect_error(kvc_guard_create(&guard, NULL), KVC_E_INVALID_ARGUMENT, "null-argument",
	        "options is NULL", -1);
	options.struct_bytes = 3;
	expect_error(kvc_guard_create(&guard, &options), KVC_E_INVALID_ARGUMENT,
	        "struct-bytes-unknown", NULL, -1);
	options.struct_bytes = sizeof(options);
	options.request_rows = 0;
	expect_error(kvc_guard_create(&guard, &options), KVC_E_CONFIG, "guard-value-out-of-range",
	        "request_rows is 0, allowed is 1 to 2147483648", -1);
	options.request_rows = 4;
	options.verify_budget = -2;
	expect_error(kvc_guard_create(&guard, &options), KVC_E_CONFIG, "guard-value-out-of-range",
	        "verify_budget is -2, allowed is -1 to 2147483647", -1);
	options.verify_budget = 0;
	options.ring_capacity = 0;
	expect_error(kvc_guard_create(&guard, &options), KVC_E_CONFIG, "guard-value-out-of-range",
	        "ring_capacity is 0, allowed is 1 to 2147483648", -1);
	assert_null(guard);
	kvc_guard_destroy(NULL);
}

/* ---- groups ---- */

static void attach_refuses(void **state)
{
	struct engine *e = engine_open(engine_defaults());
	kvc_guard_group group = KVC_GUARD_GROUP_INIT;
	kvc_source sources[2 * ENGINE_LAYERS];
	int64_t before = (int64_t)engine_stats(e).memory_bytes;
	int32_t number = 99;

	(void)state;
	engine_sources(e, sources, 0, 1);
	group.slot_count = ENGINE_SLOTS;
	group.sources = sources;
	group.source_count = 2;
	expect_error(kvc_guard_attach_group(NULL, &group, &number), KVC_E_INVALID_ARGUMENT,
	        "null-argument", "guard is NULL", -1);
	expect_error(kvc_guard_attach_group(e->guard, NULL, &number), KVC_E_INVALID_ARGUMENT,
	        "null-argument", "group is NULL", -1);
	expect_error(kvc_guard_attach_group(e->guard, &group, NULL), KVC_E_INVALID_ARGUMENT,
	        "null-argument", "group_out is NULL", -1);
	group.name = NULL;
	expect_error(kvc_guard_attach_group(e->guard, &group, &number), KVC_E_INVALID_ARGUMENT,
	        "null-argument", "name is NULL", -1);
	group.name = "full";
	group.sources = NULL;
	expect_error(kvc_guard_attach_group(e->guard, &group, &number), KVC_E_INVALID_ARGUMENT,
	        "null-argument", "sources is NULL", -1);
	group.sources = sources;
	group.slot_count = 0;
	expect_error(kvc_guard_attach_group(e->guard, &group, &number), KVC_E_CONFIG,
	        "guard-value-out-of-range", "slot_count is 0, allowed is 1 to 2147483648", -1);
	group.slot_count = ENGINE_SLOTS;
	group.source_count = -1;
	expect_error(kvc_guard_attach_group(e->guard, &group, &number), KVC_E_CONFIG,
	        "guard-value-out-of-range", "source_count is -1, allowed is 0 to 2147483648", -1);
	group.source_count = 2;
	group.window = -3;
	expect_error(kvc_guard_attach_group(e->guard, &group, &number), KVC_E_CONFIG,
	        "guard-value-out-of-range", NULL, -1);
	group.window = 0;
	sources[1].id = sources[0].id;
	expect_error(kvc_guard_attach_group(e->guard, &group, &number), KVC_E_CONFIG,
	        "source-id-duplicate", NULL, 1);
	sources[1].id = 1;
	group.slot_count = ENGINE_SLOTS + 1;
	expect_error(kvc_guard_attach_group(e->guard, &group, &number), KVC_E_CONFIG,
	        "source-too-few-slots", NULL, 0);
	assert_int_equal(number, 99);
	/* Scratch grew by the one slot that was asked for, the list by one group; nothing else. */
	assert_int_equal(engine_stats(e).memory_bytes, before + 16 + 8);
	engine_close(e);
}

static void attach_after_the_first_step_is_refused(void **state)
{
	struct engine *e = one_request(engine_defaults());
	kvc_guard_group group = KVC_GUARD_GROUP_INIT;
	int32_t number = 99;

	(void)state;
	group.slot_count = 8;
	expect_error(kvc_guard_attach_group(e->guard, &group, &number), KVC_E_STATE,
	        "guard-attach-late", "a group is attached after step 0", -1);
	expect_ok(engine_begin(e));
	expect_error(kvc_guard_attach_group(e->guard, &group, &number), KVC_E_STATE,
	        "guard-attach-late", "a group is attached after step 1", -1);
	assert_int_equal(number, 99);
	engine_close(e);
}

static void unknown_groups_are_refused(void **state)
{
	struct engine *e = engine_open(engine_defaults());
	const char *message = "group 1 does not exist, the guard has 1";
	int64_t slot = 5, one = 1;
	kvc_tensor slots = engine_vector(&slot, &one);
	kvc_stamp stamp = KVC_STAMP_INIT;
	kvc_group view;

	(void)state;
	expect_error(kvc_guard_stamp(&stamp, e->guard, 1, 0, 1), KVC_E_CONFIG,
	        "guard-group-unknown", message, -1);
	expect_error(kvc_guard_group_view(&view, e->guard, 1), KVC_E_CONFIG, "guard-group-unknown",
	        message, -1);
	expect_error(kvc_guard_void(e->guard, 1, &slots, NULL), KVC_E_CONFIG, "guard-group-unknown",
	        message, -1);
	expect_error(kvc_guard_copy(e->guard, 1, &slots, &slots, NULL), KVC_E_CONFIG,
	        "guard-group-unknown", message, -1);
	expect_error(kvc_guard_sweep(e->guard, -1, NULL, NULL, NULL, NULL), KVC_E_CONFIG,
	        "guard-group-unknown", "group -1 does not exist, the guard has 1", -1);
	expect_error(kvc_guard_stamp(NULL, e->guard, 0, 0, 1), KVC_E_INVALID_ARGUMENT,
	        "null-argument", "out is NULL", -1);
	expect_error(kvc_guard_stamp(&stamp, NULL, 0, 0, 1), KVC_E_INVALID_ARGUMENT,
	        "null-argument", "guard is NULL", -1);
	expect_error(kvc_guard_stamp(&stamp, e->guard, 0, 0, 77), KVC_E_CONFIG,
	        "stamp-source-missing", NULL, -1);
	expect_error(kvc_guard_group_view(NULL, e->guard, 0), KVC_E_INVALID_ARGUMENT,
	        "null-argument", "out is NULL", -1);
	engine_close(e);
}

/* ---- the order of calls ---- */

static void order_of_calls_is_checked(void **state)
{
	struct engine *e = one_request(engine_defaults());
	kvc_guard_options options = KVC_GUARD_OPTIONS_INIT;
	kvc_guard *empty;

	(void)state;
	expect_error(kvc_guard_step_begin(NULL, &e->args, NULL), KVC_E_INVALID_ARGUMENT,
	        "null-argument", "guard is NULL", -1);
	expect_error(kvc_guard_step_begin(e->guard, NULL, NULL), KVC_E_INVALID_ARGUMENT,
	        "null-argument", "step is NULL", -1);
	expect_error(kvc_guard_step_end(NULL, NULL), KVC_E_INVALID_ARGUMENT, "null-argument",
	        "guard is NULL", -1);
	expect_error(kvc_guard_step_end(e->guard, NULL), KVC_E_STATE, "guard-step-not-open",
	        "no step has begun", -1);
	e->step = 0;
	refused(e, KVC_E_STATE, "guard-step-order", "step 0 follows step 0", -1);
	e->step = -1;
	refused(e, KVC_E_CONFIG, "guard-value-out-of-range",
	        "step is -1, allowed is 0 to 4294967294", -1);
	e->step = UINT32_MAX;
	refused(e, KVC_E_CONFIG, "guard-value-out-of-range",
	        "step is 4294967295, allowed is 0 to 4294967294", -1);
	e->step = 9;
	expect_ok(engine_begin(e));
	e->step = 10;
	refused(e, KVC_E_STATE, "guard-step-open", "step 9 has not ended", -1);
	expect_ok(kvc_guard_step_end(e->guard, NULL));
	expect_error(kvc_guard_step_end(e->guard, NULL), KVC_E_STATE, "guard-step-not-open",
	        "no step has begun", -1);

	options.request_rows = ENGINE_ROWS;
	expect_ok(kvc_guard_create(&empty, &options));
	expect_error(kvc_guard_step_begin(empty, &e->args, NULL), KVC_E_STATE,
	        "guard-without-group", "the guard has no group", -1);
	kvc_guard_destroy(empty);
	engine_close(e);
}

/* ---- a step's arguments ---- */

static void missing_arguments_are_refused(void **state)
{
	struct engine *e = one_request(engine_defaults());
	const struct {
		const kvc_tensor **field;
		const char *message;
	} fields[] = {
		{ &e->requests.req_pool_indices, "req_pool_indices is NULL" },
		{ &e->requests.prefix_lens, "prefix_lens is NULL" },
		{ &e->requests.extend_seq_lens, "extend_seq_lens is NULL" },
		{ &e->requests.owner_request, "owner_request is NULL" },
		{ &e->args.req_to_token, "req_to_token is NULL" },
		{ &e->args.tokens, "tokens is NULL" },
		{ &e->args.positions, "positions is NULL" },
		{ &e->args.slots, "slots is NULL" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
		const kvc_tensor *kept = *fields[i].field;
		*fields[i].field = NULL;
		refused(e, KVC_E_INVALID_ARGUMENT, "null-argument", fields[i].message, -1);
		*fields[i].field = kept;
	}
	e->args.requests = NULL;
	refused(e, KVC_E_INVALID_ARGUMENT, "null-argument", "requests is NULL", -1);
	e->args.requests = &e->requests;
	e->requests.struct_bytes = 1;
	refused(e, KVC_E_INVALID_ARGUMENT, "struct-bytes-unknown", NULL, -1);
	e->requests.struct_bytes = sizeof(e->requests);
	e->args.struct_bytes = 1;
	refused(e, KVC_E_INVALID_ARGUMENT, "struct-bytes-unknown", NULL, -1);
	e->args.struct_bytes = sizeof(e->args);
	engine_step(e);
	engine_expect_clean(e);
	engine_close(e);
}

static void fields_of_the_guard_are_refused(void **state)
{
	struct engine *e = one_request(engine_defaults());

	(void)state;
	e->requests.start = &e->t_prefix;
	refused(e, KVC_E_CONFIG, "guard-field-not-null",
	        "requests.start is given, the guard keeps it itself", -1);
	e->requests.start = NULL;
	e->requests.verify_chain_in = &e->t_prefix;
	refused(e, KVC_E_CONFIG, "guard-field-not-null",
	        "requests.verify_chain_in is given, the guard keeps it itself", -1);
	e->requests.verify_chain_in = NULL;
	e->requests.write_chain_in = &e->t_prefix;
	refused(e, KVC_E_CONFIG, "guard-field-not-null",
	        "requests.write_chain_in is given, the guard keeps it itself", -1);
	e->requests.write_chain_in = NULL;
	engine_step(e);
	engine_expect_clean(e);
	engine_close(e);
}

static void wrong_tensors_are_refused(void **state)
{
	struct engine *e = one_request(engine_defaults());
	int64_t three = 3, two_d[2] = { 1, 1 }, rows[2] = { ENGINE_ROWS - 1, ENGINE_COLUMNS };

	(void)state;
	e->t_ids.shape = &three;
	refused(e, KVC_E_LENGTH, "canary-tensor-length", NULL, -1);
	e->t_ids.shape = &e->request_count;
	e->t_positions.shape = &three;
	refused(e, KVC_E_LENGTH, "canary-tensor-length", NULL, -1);
	e->t_positions.shape = &e->token_count;
	e->t_slots.ndim = 2, e->t_slots.shape = two_d;
	refused(e, KVC_E_SHAPE, "canary-tensor-must-be-1-d", NULL, -1);
	e->t_slots.ndim = 1, e->t_slots.shape = &e->token_count;
	e->t_tokens.dtype = KVC_INT32;
	refused(e, KVC_E_DTYPE, "canary-tensor-dtype", NULL, -1);
	e->t_tokens.dtype = KVC_INT64;
	e->t_valid_prefix.shape = &three;
	refused(e, KVC_E_LENGTH, "canary-tensor-length", NULL, -1);
	e->t_valid_prefix.shape = &e->request_count;
	e->t_table.shape = rows;
	refused(e, KVC_E_SHAPE, "guard-table-rows",
	        "req_to_token must have 24 rows as the guard was made for, got (23, 64)", -1);
	e->t_table.shape = e->table_shape;
	e->t_slots.device.device_type = KVC_DEVICE_CUDA;
	refused(e, KVC_E_DEVICE, "device-mismatch", NULL, -1);
	e->t_slots.device.device_type = KVC_DEVICE_CPU;
	engine_step(e);
	engine_expect_clean(e);
	engine_close(e);
}

static void optional_tensors_come_together(void **state)
{
	struct engine *e = one_request(engine_defaults());

	(void)state;
	e->args.step = e->step;
	e->args.expected_tokens = &e->t_history;
	e->args.valid_lens = NULL;
	expect_error(kvc_guard_step_begin(e->guard, &e->args, NULL), KVC_E_CONFIG,
	        "plan-expected-tokens-need-valid-lens", NULL, -1);
	e->args.valid_lens = &e->t_valid;
	e->args.expected_input_tokens = &e->t_input_tokens;
	expect_error(kvc_guard_step_begin(e->guard, &e->args, NULL), KVC_E_CONFIG,
	        "write-expected-one-missing", NULL, -1);
	engine_step(e);
	engine_expect_clean(e);
	engine_close(e);
}

/* ---- what the numbers say ---- */

static void wrong_requests_are_refused(void **state)
{
	struct engine *e = one_request(engine_defaults());

	(void)state;
	e->ids[0] = -5;
	refused(e, KVC_E_CONFIG, "guard-owner-negative",
	        "owner_request of request 0 is -5, ids are 0 or more", 0);
	e->ids[0] = 7;
	engine_add(e, 1, 8, 0, 0);
	refused(e, KVC_E_ROW_DUPLICATE, "guard-row-duplicate", "requests 0 and 1 are both on row 1",
	        1);
	e->rows[1] = ENGINE_ROWS;
	refused(e, KVC_E_ROW_RANGE, "plan-row-out-of-range", NULL, 1);
	e->rows[1] = 2;
	e->prefix[1] = ENGINE_COLUMNS + 1;
	refused(e, KVC_E_ROW_RANGE, "plan-column-out-of-range", NULL, 1);
	e->prefix[1] = 0;
	e->extend[1] = 1;
	refused(e, KVC_E_LENGTH, "write-tokens-short", "the plan writes 5 tokens, tokens has 4",
	        -1);
	e->extend[1] = 0;
	engine_step(e);
	engine_expect_clean(e);
	engine_close(e);
}

static void slots_beyond_the_pool_are_refused(void **state)
{
	(void)state;
	for (int stamping = 0; stamping < 2; stamping++) {
		struct engine_options options = engine_defaults();
		options.stamping = stamping;
		struct engine *e = one_request(options);
		int64_t slot = e->slots[2];
		e->slots[2] = ENGINE_SLOTS;
		refused(e, KVC_E_SLOT_RANGE, "canary-slot-out-of-range", NULL, 2);
		e->slots[2] = slot;
		engine_step(e);
		engine_expect_clean(e);
		engine_add(e, 1, 7, 12, 1);
		engine_step(e);
		engine_expect_clean(e);
		engine_close(e);
	}
}

static void slots_beyond_the_mapping_are_refused(void **state)
{
	struct engine_options options = engine_defaults();

	(void)state;
	options.window = 6;
	struct engine *e = one_request(options);
	int64_t slot = e->slots[3];
	e->slots[3] = ENGINE_SLOTS;
	refused(e, KVC_E_SLOT_RANGE, "canary-slot-out-of-range", NULL, 3);
	e->slots[3] = slot;
	/* The second group's mapping leads outside its records: the first group is not stamped. */
	e->mapping[slot] = ENGINE_SLOTS;
	refused(e, KVC_E_SLOT_RANGE, "canary-slot-out-of-range", NULL, 3);
	e->mapping[slot] = engine_window_slot(slot);
	engine_step(e);
	engine_expect_clean(e);
	engine_close(e);
}

/* A mapping with fewer entries than the full pool has slots. */
static void short_mapping_is_refused(void **state)
{
	struct engine_options options = engine_defaults();

	(void)state;
	struct engine *e = engine_open(options);
	kvc_guard_group group = KVC_GUARD_GROUP_INIT;
	int64_t count = 30;
	kvc_tensor mapping = engine_vector(e->mapping, &count);
	group.slot_count = ENGINE_SLOTS;
	group.mapping = &mapping;
	group.stamping = KVC_STAMP_COMPUTE;
	expect_ok(kvc_guard_attach_group(e->guard, &group, &e->window));
	engine_tokens(e, 1, 1);
	engine_place(e, 1, 0, 40, 20);
	engine_add(e, 1, 7, 0, 12);
	refused(e, KVC_E_SLOT_RANGE, "guard-slot-unmapped",
	        "token 10 has slot 30, the group's mapping has 30 entries", 10);
	engine_close(e);
}

/* A refusal in the middle leaves rotation, first reads and chains as they were. */
static void refused_steps_leave_no_trace(void **state)
{
	struct engine_options options = engine_defaults();
	kvc_finding findings[2][ENGINE_FINDINGS];
	kvc_guard_statistics statistics[2];

	(void)state;
	options.budget = 3;
	options.window = 6;
	for (int disturbed = 0; disturbed < 2; disturbed++) {
		struct engine *e = one_request(options);
		engine_step(e);
		for (int64_t slot = 20; slot < 30; slot++)
			e->k[0][slot][0][0] += 1.0f;
		for (int64_t n = 0; n < 4; n++) {
			engine_add(e, 1, 7, 12 + n, 1);
			if (disturbed) {
				int64_t slot = e->slots[0];
				e->slots[0] = ENGINE_SLOTS + 5;
				refused(e, KVC_E_SLOT_RANGE, "canary-slot-out-of-range", NULL, 0);
				e->slots[0] = slot;
				e->t_slots.ndim = 2; /* refused before anything is planned */
				e->t_slots.shape = e->table_shape;
				refused(e, KVC_E_SHAPE, "canary-tensor-must-be-1-d", NULL, -1);
				e->t_slots.ndim = 1;
				e->t_slots.shape = &e->token_count;
				e->ids[0] = 1; /* another request, refused by its token */
				e->mapping[slot] = ENGINE_SLOTS;
				refused(e, KVC_E_SLOT_RANGE, "canary-slot-out-of-range", NULL, 0);
				e->mapping[slot] = engine_window_slot(slot);
				e->ids[0] = 7;
			}
			engine_step(e);
			assert_true(e->finding_count > 0);
		}
		memset(findings[disturbed], 0, sizeof(findings[disturbed]));
		for (int64_t i = 0; i < e->finding_count; i++) {
			findings[disturbed][i] = e->findings[i];
			findings[disturbed][i].slug = findings[disturbed][i].group_name = NULL;
		}
		statistics[disturbed] = engine_stats(e);
		engine_close(e);
	}
	assert_memory_equal(findings[0], findings[1], sizeof(findings[0]));
	assert_memory_equal(&statistics[0], &statistics[1], sizeof(statistics[0]));
}

/* ---- other calls ---- */

static void void_and_copy_refuse(void **state)
{
	struct engine *e = one_request(engine_defaults());
	int64_t data[] = { 20, ENGINE_SLOTS }, other[] = { 50, 50 }, two = 2, one = 1;
	kvc_tensor slots = engine_vector(data, &two), to = engine_vector(other, &two);
	struct kept before;

	(void)state;
	keep(&before, e);
	expect_error(kvc_guard_void(NULL, 0, &slots, NULL), KVC_E_INVALID_ARGUMENT, "null-argument",
	        "guard is NULL", -1);
	expect_error(kvc_guard_void(e->guard, 0, NULL, NULL), KVC_E_INVALID_ARGUMENT,
	        "null-argument", "slots is NULL", -1);
	expect_error(kvc_guard_void(e->guard, 0, &slots, NULL), KVC_E_SLOT_RANGE,
	        "canary-slot-out-of-range", NULL, 1);
	expect_error(kvc_guard_copy(e->guard, 0, NULL, &to, NULL), KVC_E_INVALID_ARGUMENT,
	        "null-argument", "from is NULL", -1);
	expect_error(kvc_guard_copy(e->guard, 0, &slots, &to, NULL), KVC_E_SLOT_RANGE,
	        "canary-slot-out-of-range", NULL, 1);
	data[1] = 21;
	expect_error(kvc_guard_copy(e->guard, 0, &slots, &to, NULL), KVC_E_SLOT_DUPLICATE,
	        "copy-slot-duplicate", NULL, 1);
	to.shape = &one;
	expect_error(kvc_guard_copy(e->guard, 0, &slots, &to, NULL), KVC_E_LENGTH,
	        "canary-tensor-length", NULL, -1);
	expect_untouched(e, &before);
	engine_close(e);
}

static int64_t too_many(void *context, kvc_sweep_slot *out, int64_t capacity)
{
	(void)context, (void)out;
	return capacity + 1;
}

static int64_t negative(void *context, kvc_sweep_slot *out, int64_t capacity)
{
	(void)context, (void)out, (void)capacity;
	return -1;
}

static void sweep_refuses(void **state)
{
	struct engine *e = one_request(engine_defaults());
	int64_t swept = 5;

	(void)state;
	expect_error(kvc_guard_sweep(NULL, 0, too_many, NULL, &swept, NULL), KVC_E_INVALID_ARGUMENT,
	        "null-argument", "guard is NULL", -1);
	expect_error(kvc_guard_sweep(e->guard, 0, NULL, NULL, &swept, NULL), KVC_E_INVALID_ARGUMENT,
	        "null-argument", "next is NULL", -1);
	assert_int_equal(swept, 5);
	expect_error(kvc_guard_sweep(e->guard, 0, too_many, NULL, &swept, NULL),
	        KVC_E_INVALID_ARGUMENT, "guard-sweep-count",
	        "the callback of a sweep returned 1025 slots, it has room for 1024", -1);
	assert_int_equal(swept, 0);
	expect_error(kvc_guard_sweep(e->guard, 0, negative, NULL, NULL, NULL),
	        KVC_E_INVALID_ARGUMENT, "guard-sweep-count",
	        "the callback of a sweep returned -1 slots, it has room for 1024", -1);
	expect_ok(engine_begin(e));
	expect_error(kvc_guard_sweep(e->guard, 0, too_many, NULL, NULL, NULL), KVC_E_STATE,
	        "guard-step-open", "step 1 has not ended", -1);
	engine_close(e);
}

static void poll_and_stats_refuse(void **state)
{
	struct engine *e = one_request(engine_defaults());
	kvc_guard_statistics statistics = { .struct_bytes = 8 };
	kvc_finding finding;
	int64_t count = 3;

	(void)state;
	expect_error(kvc_guard_poll(NULL, &finding, 1, &count, NULL), KVC_E_INVALID_ARGUMENT,
	        "null-argument", "guard is NULL", -1);
	expect_error(kvc_guard_poll(e->guard, &finding, 1, NULL, NULL), KVC_E_INVALID_ARGUMENT,
	        "null-argument", "count_out is NULL", -1);
	expect_error(kvc_guard_poll(e->guard, NULL, 1, &count, NULL), KVC_E_INVALID_ARGUMENT,
	        "null-argument", "out is NULL", -1);
	expect_error(kvc_guard_poll(e->guard, &finding, -1, &count, NULL), KVC_E_INVALID_ARGUMENT,
	        "guard-poll-capacity", "the capacity of a poll is -1", -1);
	assert_int_equal(count, 3);
	expect_error(kvc_guard_stats(NULL, &statistics), KVC_E_INVALID_ARGUMENT, "null-argument",
	        "guard is NULL", -1);
	expect_error(kvc_guard_stats(e->guard, NULL), KVC_E_INVALID_ARGUMENT, "null-argument",
	        "out is NULL", -1);
	expect_error(kvc_guard_stats(e->guard, &statistics), KVC_E_INVALID_ARGUMENT,
	        "struct-bytes-unknown", NULL, -1);
	engine_close(e);
}

/* ---- memory ---- */

/* Let the n-th allocation fail, for every n, while a guard is made and runs. */
static void every_failing_allocation_is_survived(void **state)
{
	struct engine_options options = engine_defaults();

	(void)state;
	options.window = 6;
	options.check_finite = 1;
	options.page_size = 4;
	struct engine *e = engine_open(options);
	kvc_guard *whole = e->guard;
	int failures = 0;
	for (int64_t allowed = 0;; allowed++) {
		kvc_guard_options guard_options = KVC_GUARD_OPTIONS_INIT;
		guard_options.request_rows = ENGINE_ROWS;
		guard_options.check_finite = 1;
		kvc_guard_group group = KVC_GUARD_GROUP_INIT;
		kvc_source sources[2 * ENGINE_LAYERS];
		int32_t number;
		e->guard = NULL;
		e->step = 0;
		e->request_count = e->token_count = 0;
		engine_sources(e, sources, 0, 1);
		group.slot_count = ENGINE_SLOTS, group.sources = sources, group.source_count = 2;
		group.window = 6;
		engine_tokens(e, 1, 1);
		engine_place(e, 1, 0, 40, 20);
		engine_add(e, 1, 7, 0, 13);
		kvc__alloc_refuse_after(allowed);
		kvc_status status = kvc_guard_create(&e->guard, &guard_options);
		if (status == KVC_OK)
			status = kvc_guard_attach_group(e->guard, &group, &number);
		if (status == KVC_OK)
			status = engine_begin(e);
		if (status == KVC_OK)
			status = kvc_guard_step_end(e->guard, NULL);
		kvc__alloc_refuse_after(-1);
		if (status != KVC_OK) {
			failures++;
			expect_error(status, KVC_E_NO_MEMORY, "no-memory", NULL, -1);
			/* What was made still works once there is memory. */
			if (e->guard && engine_stats(e).sources == 2) {
				expect_ok(engine_begin(e));
				expect_ok(kvc_guard_step_end(e->guard, NULL));
			}
		}
		kvc_guard_destroy(e->guard);
		if (status == KVC_OK)
			break;
	}
	assert_in_range(failures, 15, 60);
	e->guard = whole;
	engine_close(e);
}

static void views_and_stamps_show_the_records(void **state)
{
	struct engine *e = engine_open(engine_defaults());
	kvc_stamp stamp = KVC_STAMP_INIT;
	kvc_group view;

	(void)state;
	expect_ok(kvc_guard_group_view(&view, e->guard, e->full));
	assert_int_equal(view.record_count, ENGINE_SLOTS);
	assert_int_equal(view.source_count, 2 * (ENGINE_LAYERS - 1));
	expect_ok(kvc_guard_stamp(&stamp, e->guard, e->full, 2, 3));
	assert_ptr_equal(stamp.records, view.records);
	assert_int_equal(stamp.k_id, 2);
	engine_tokens(e, 1, 1);
	engine_place(e, 1, 0, 40, 20);
	engine_add(e, 1, 7, 0, 3);
	engine_step(e);
	const kvc_record *records = view.records;
	assert_int_equal(records[22].position, 2);
	assert_int_equal(records[22].token, e->history[1][2]);
	assert_int_equal(view.owners[22].request, 7);
	assert_int_equal(view.owners[22].step, 0);
	assert_int_equal(view.owners[22].tag, KVC_TAG_STEP_WRITE);
	assert_int_equal(view.owners[23].request, -1);
	engine_close(e);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(create_refuses),
		cmocka_unit_test(attach_refuses),
		cmocka_unit_test(attach_after_the_first_step_is_refused),
		cmocka_unit_test(unknown_groups_are_refused),
		cmocka_unit_test(order_of_calls_is_checked),
		cmocka_unit_test(missing_arguments_are_refused),
		cmocka_unit_test(fields_of_the_guard_are_refused),
		cmocka_unit_test(wrong_tensors_are_refused),
		cmocka_unit_test(optional_tensors_come_together),
		cmocka_unit_test(wrong_requests_are_refused),
		cmocka_unit_test(slots_beyond_the_pool_are_refused),
		cmocka_unit_test(slots_beyond_the_mapping_are_refused),
		cmocka_unit_test(short_mapping_is_refused),
		cmocka_unit_test(refused_steps_leave_no_trace),
		cmocka_unit_test(void_and_copy_refuse),
		cmocka_unit_test(sweep_refuses),
		cmocka_unit_test(poll_and_stats_refuse),
		cmocka_unit_test(every_failing_allocation_is_survived),
		cmocka_unit_test(views_and_stamps_show_the_records),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
