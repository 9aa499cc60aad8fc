/*
 * kvc_canary_plan() on the device: every byte of the plan, the rotation and the report against a
 * model that is written entry by entry, and, where the CPU takes the call, against the CPU.
 */
#include "cuda_tensor.h"
#include "seeded.h"
#include "sglang_vectors.h"

enum {
	ROWS,
	PREFIX,
	EXTEND,
	START,
	VALID,
	SLOTS,
	TOKENS,
	MAPPING,
	EXCLUDE,
	MEMORY,
	ROTATION,
	TENSORS
};

struct scene {
	struct cuda_tensor tensors[TENSORS];
	struct cuda_twin report;
	kvc_plan host_plan, device_plan;
	kvc_plan_args args; /* options only */
	int use_start, use_tokens, use_mapping, use_exclude, use_rotation;
	int64_t bs, v, w;
};

static int64_t *int64s_of(const struct scene *s, int which)
{
	return cuda_tensor_data(&s->tensors[which]);
}

/* ---- the model ---- */

struct entry {
	int64_t r, position, begin;
};

static void span_of(const struct scene *s, int64_t r, int64_t *begin, int64_t *end)
{
	int64_t prefix = int64s_of(s, PREFIX)[r];

	*end = int64s_of(s, ROWS)[r] == 0 || prefix < 0 ? 0 : prefix;
	*begin = s->args.window > 0 && *end > s->args.window ? *end - s->args.window : 0;
	if (s->use_start && int64s_of(s, START)[r] > *begin)
		*begin = int64s_of(s, START)[r];
	if (*begin > *end)
		*begin = *end;
}

static int64_t write_count(const struct scene *s, int64_t r)
{
	int64_t count = int64s_of(s, EXTEND)[r];

	return int64s_of(s, ROWS)[r] == 0 || count < 0 ? 0 : count;
}

static int has_cell(const struct cuda_tensor *table, int64_t row, int64_t column)
{
	return row >= 0 && row < table->shape[0] && column >= 0 && column < table->shape[1];
}

static int64_t cell(const struct cuda_tensor *table, int64_t row, int64_t column)
{
	const int32_t *data = cuda_tensor_data(table);

	return data[row * table->strides[0] + column];
}

/* The slot at a position, in the plan's numbering; -1 where it cannot be had. */
static int64_t model_slot(const struct scene *s, int64_t r, int64_t position, int *unmapped)
{
	int64_t row = int64s_of(s, ROWS)[r], slot = -1;

	*unmapped = 0;
	if (has_cell(&s->tensors[SLOTS], row, position))
		slot = cell(&s->tensors[SLOTS], row, position);
	if (slot < 0 || !s->use_mapping)
		return slot;
	*unmapped = slot >= s->tensors[MAPPING].shape[0];
	return *unmapped ? -1 : int64s_of(s, MAPPING)[slot];
}

static int model_excluded(const struct scene *s, int64_t slot)
{
	const uint8_t *bits = cuda_tensor_data(&s->tensors[EXCLUDE]);

	return s->use_exclude && slot >= 0 && slot < 8 * s->tensors[EXCLUDE].shape[0] &&
	       (bits[slot / 8] >> slot % 8 & 1);
}

static int64_t model_prev(const struct scene *s, const struct entry *e, int *unmapped)
{
	int own = s->args.rules == KVC_RULES_OWN;
	int64_t prev;

	*unmapped = 0;
	if (e->position == 0)
		return -1;
	if (own && e->position == e->begin)
		return -2;
	prev = model_slot(s, e->r, e->position - 1, unmapped);
	if (own && prev < -1)
		prev = -1;
	return model_excluded(s, prev) ? -3 : prev;
}

static void model_entry(
        const struct scene *s, const struct entry *e, int64_t at, kvc_report *report)
{
	const kvc_plan *plan = &s->host_plan;
	int unmapped, prev_unmapped;
	int64_t slot = model_slot(s, e->r, e->position, &unmapped);
	int64_t prev = model_prev(s, e, &prev_unmapped), token = -1;
	int64_t column = e->position + s->args.token_offset, row = int64s_of(s, ROWS)[e->r];

	if (unmapped)
		report_note(report, KVC_REPORT_MAPPING_RANGE, e->r);
	if (prev_unmapped && (e->position == e->begin || at == 0))
		report_note(report, KVC_REPORT_MAPPING_RANGE, e->r);
	if (model_excluded(s, slot))
		slot = -1;
	if (s->use_tokens && column >= 0 && column < int64s_of(s, VALID)[e->r]) {
		if (has_cell(&s->tensors[TOKENS], row, column))
			token = cell(&s->tensors[TOKENS], row, column);
		else
			slot = -1;
	}
	plan->verify_slot_indices[at] = slot;
	plan->verify_prev_slot_indices[at] = prev;
	plan->verify_expected_positions[at] = e->position;
	plan->verify_expected_tokens[at] = token;
	plan->verify_request[at] = (int32_t)e->r;
}

static void model_request(const struct scene *s, int64_t r, kvc_report *report)
{
	int64_t row = int64s_of(s, ROWS)[r], prefix = int64s_of(s, PREFIX)[r], begin, end;
	int has_seed = prefix > 0 && write_count(s, r) > 0, unmapped = 0;
	int wide = 0, deep = 0;

	s->host_plan.write_offsets[r + 1] = s->host_plan.write_offsets[r] + write_count(s, r);
	s->host_plan.write_seed_slot_indices[r] =
	        has_seed ? model_slot(s, r, prefix - 1, &unmapped) : -1;
	if (unmapped)
		report_note(report, KVC_REPORT_MAPPING_RANGE, r);
	span_of(s, r, &begin, &end);
	for (int64_t p = begin; p < end && s->use_tokens; p++) {
		int64_t column = p + s->args.token_offset;
		if (column < 0 || column >= int64s_of(s, VALID)[r])
			continue;
		deep |= row >= s->tensors[TOKENS].shape[0];
		wide |= column >= s->tensors[TOKENS].shape[1];
	}
	if (row == 0)
		return;
	if (row < 0 || row >= s->tensors[SLOTS].shape[0])
		report_note(report, KVC_REPORT_ROW_RANGE, r);
	else if ((begin < end || has_seed) && prefix > s->tensors[SLOTS].shape[1])
		report_note(report, KVC_REPORT_COLUMN_RANGE, r);
	else if (deep)
		report_note(report, KVC_REPORT_ROW_RANGE, r);
	else if (wide)
		report_note(report, KVC_REPORT_COLUMN_RANGE, r);
}

/* Fills the plan in host memory, and turns the rotation there. */
static void model(const struct scene *s, kvc_report *report)
{
	const kvc_plan *plan = &s->host_plan;
	int64_t total = 0, count = 0, first = 0, emitted, begin, end;
	int64_t *rotation = int64s_of(s, ROTATION);
	int own = s->args.rules == KVC_RULES_OWN;

	for (int64_t r = 0; r < s->bs; r++) {
		span_of(s, r, &begin, &end);
		total += end - begin;
	}
	struct entry *all = malloc((size_t)total * sizeof(*all) + 1);
	memset(plan->write_offsets, 0, (size_t)(s->w + 1) * sizeof(int64_t));
	for (int64_t r = 0; r < s->bs; r++) {
		span_of(s, r, &begin, &end);
		for (int64_t p = begin; p < end; p++)
			all[count++] = (struct entry){ r, p, begin };
		model_request(s, r, report);
	}
	emitted = total <= s->v ? total : own ? s->v : 0;
	if (total > s->v && own && s->use_rotation)
		first = (*rotation % total + total) % total;
	for (int64_t j = 0; j < emitted; j++)
		model_entry(s, &all[(first + j) % total], j, report);
	*plan->verify_num_valid = (int32_t)(total < s->v ? total : s->v);
	*plan->enable = own || total <= s->v;
	*plan->left_out = total - emitted;
	*plan->write_num_valid_reqs = (int32_t)s->bs;
	if (own && s->use_rotation && total > 0)
		*rotation = total <= s->v ? 0 : (first + s->v) % total;
	report->rows_written += emitted;
	free(all);
}

/* ---- scenes ---- */

struct shape {
	int64_t bs, rows, columns, v, w;
	int64_t longest; /* prefix */
};

static void fill_scene(struct scene *s, struct seeded *random, int64_t longest)
{
	int64_t slot_count = s->tensors[MAPPING].shape[0];
	int32_t *slots = cuda_tensor_data(&s->tensors[SLOTS]);
	int32_t *tokens = cuda_tensor_data(&s->tensors[TOKENS]);
	uint8_t *exclude = cuda_tensor_data(&s->tensors[EXCLUDE]);

	for (int64_t r = 0; r < s->bs; r++) {
		int64s_of(s, ROWS)[r] = seeded_in(random, 0, s->tensors[SLOTS].shape[0] - 1);
		int64s_of(s, PREFIX)[r] = seeded_in(random, -1, longest);
		int64s_of(s, EXTEND)[r] = seeded_in(random, -1, 3);
		int64s_of(s, START)[r] = seeded_in(random, -1, longest);
		int64s_of(s, VALID)[r] = seeded_in(random, -1, s->tensors[TOKENS].shape[1]);
	}
	for (int64_t i = 0; i < s->tensors[SLOTS].shape[0] * s->tensors[SLOTS].strides[0]; i++)
		slots[i] = (int32_t)seeded_in(
		        random, seeded_one_in(random, 9) ? -4 : 0, slot_count - 1);
	for (int64_t i = 0; i < s->tensors[TOKENS].shape[0] * s->tensors[TOKENS].strides[0]; i++)
		tokens[i] = (int32_t)seeded_in(random, -1, 200000);
	for (int64_t i = 0; i < slot_count; i++)
		int64s_of(s, MAPPING)[i] = seeded_in(random, -4, slot_count);
	for (int64_t i = 0; i < s->tensors[EXCLUDE].shape[0]; i++)
		exclude[i] = (uint8_t)(seeded_next(random) & seeded_next(random));
	*int64s_of(s, ROTATION) = seeded_one_in(random, 5) ? (int64_t)seeded_next(random)
	                                                   : seeded_in(random, -300, 20000);
	memset(s->tensors[MEMORY].twin.host, 0x5C, s->tensors[MEMORY].twin.bytes);
}

static void upload(const struct scene *s)
{
	for (int i = 0; i < TENSORS; i++)
		cuda_twin_upload(&s->tensors[i].twin);
}

static void make_tensors(struct scene *s, int64_t bs, int64_t v, int64_t w)
{
	static const char *names[] = { "req_pool_indices", "prefix_lens", "extend_seq_lens",
		"start", "valid_lens" };

	s->bs = bs, s->v = v, s->w = w;
	for (int i = ROWS; i <= VALID; i++)
		cuda_tensor_vector(&s->tensors[i], names[i], KVC_INT64, bs);
	cuda_tensor_vector(&s->tensors[MEMORY], "plan", KVC_INT64,
	        (int64_t)(kvc_plan_bytes(v, w) / sizeof(int64_t)));
	cuda_tensor_vector(&s->tensors[ROTATION], "rotation", KVC_INT64, 1);
	expect_ok(kvc_plan_bind(
	        &s->host_plan, cuda_tensor_data(&s->tensors[MEMORY]), KVC_HOST, v, w));
	expect_ok(kvc_plan_bind(&s->device_plan, s->tensors[MEMORY].device.data,
	        kvc_device_make(KVC_DEVICE_CUDA, 0), v, w));
	s->report = cuda_report_make();
}

static void build(struct scene *s, struct seeded *random, const struct shape *shape, int rules)
{
	const kvc_plan_args initial = KVC_PLAN_ARGS_INIT;
	int own = rules == KVC_RULES_OWN;

	memset(s, 0, sizeof(*s));
	s->args = initial;
	s->args.rules = rules;
	make_tensors(s, shape->bs, shape->v, shape->w);
	cuda_tensor_make(&s->tensors[SLOTS], "req_to_token", KVC_INT32, shape->rows, shape->columns,
	        shape->columns + seeded_in(random, 0, 3), 0);
	cuda_tensor_make(&s->tensors[TOKENS], "expected_tokens", KVC_INT32, shape->rows,
	        shape->columns + 2, shape->columns + seeded_in(random, 2, 5), 4);
	cuda_tensor_vector(&s->tensors[MAPPING], "mapping", KVC_INT64, seeded_in(random, 50, 5000));
	cuda_tensor_vector(&s->tensors[EXCLUDE], "exclude", KVC_UINT8, seeded_in(random, 0, 700));
	s->use_tokens = seeded_one_in(random, 2);
	s->use_mapping = seeded_one_in(random, 2);
	s->use_rotation = !seeded_one_in(random, 4);
	s->use_start = own && seeded_one_in(random, 3);
	s->use_exclude = own && seeded_one_in(random, 2);
	if ((own || s->use_mapping) && seeded_one_in(random, 2))
		s->args.window = seeded_in(random, 0, shape->longest);
	s->args.token_offset = seeded_in(random, -2, 2);
	fill_scene(s, random, shape->longest);
	upload(s);
}

static kvc_status run(struct scene *s, int on_device, kvc_report *report, void *stream)
{
	kvc_requests requests = KVC_REQUESTS_INIT;
	kvc_plan_args args = s->args;
	const kvc_tensor *t[TENSORS];

	for (int i = 0; i < TENSORS; i++)
		t[i] = cuda_tensor_of(&s->tensors[i], on_device);
	requests.req_pool_indices = t[ROWS];
	requests.prefix_lens = t[PREFIX];
	requests.extend_seq_lens = t[EXTEND];
	requests.start = s->use_start ? t[START] : NULL;
	args.requests = &requests;
	args.req_to_token = t[SLOTS];
	args.expected_tokens = s->use_tokens ? t[TOKENS] : NULL;
	args.valid_lens = s->use_tokens ? t[VALID] : NULL;
	args.full_to_swa_index_mapping = s->use_mapping ? t[MAPPING] : NULL;
	args.exclude = s->use_exclude ? t[EXCLUDE] : NULL;
	args.rotation = s->use_rotation ? t[ROTATION]->data : NULL;
	args.report = report;
	return kvc_canary_plan(on_device ? &s->device_plan : &s->host_plan, &args, stream);
}

static void compare(struct scene *s, const char *what)
{
	cuda_must(cuda.synchronize(), what);
	for (int i = 0; i < TENSORS; i++)
		if (s->tensors[i].name)
			cuda_twin_check(&s->tensors[i].twin, s->tensors[i].name, what);
}

static void destroy(struct scene *s)
{
	for (int i = 0; i < TENSORS; i++)
		if (s->tensors[i].name)
			cuda_twin_end(&s->tensors[i].twin);
	cuda_twin_end(&s->report);
}

/* The CPU takes a sound call, and agrees with the model. */
static void check_on_cpu(struct scene *s)
{
	size_t bytes = s->tensors[MEMORY].twin.bytes;
	char *memory = s->tensors[MEMORY].twin.host, *before = malloc(bytes + 1);
	char *after = malloc(bytes + 1);
	int64_t rotation = *int64s_of(s, ROTATION), turned;
	kvc_report by_cpu, by_model;

	expect_ok(kvc_report_init(&by_cpu, KVC_HOST, NULL));
	by_model = by_cpu;
	memcpy(before, memory, bytes);
	expect_ok(run(s, 0, &by_cpu, NULL));
	memcpy(after, memory, bytes);
	turned = *int64s_of(s, ROTATION);
	memcpy(memory, before, bytes);
	*int64s_of(s, ROTATION) = rotation;
	model(s, &by_model);
	assert_memory_equal(memory, after, bytes);
	assert_int_equal(turned, *int64s_of(s, ROTATION));
	assert_memory_equal(&by_cpu, &by_model, sizeof(by_cpu));
	memcpy(memory, before, bytes);
	*int64s_of(s, ROTATION) = rotation;
	free(before);
	free(after);
}

static void check_scene(struct scene *s, const char *what)
{
	kvc_report want;

	expect_ok(kvc_report_init(&want, KVC_HOST, NULL));
	model(s, &want);
	expect_ok(run(s, 1, cuda_twin_device(&s->report), NULL));
	compare(s, what);
	cuda_report_check(&s->report, &want, what);
}

static void describe(char *what, size_t bytes, const struct shape *shape, const struct scene *s)
{
	snprintf(what, bytes,
	        "bs=%d rows=%d columns=%d v=%d w=%d longest=%d rules=%d window=%d offset=%d "
	        "start=%d "
	        "tokens=%d mapping=%d exclude=%d rotation=%d",
	        (int)shape->bs, (int)shape->rows, (int)shape->columns, (int)shape->v, (int)shape->w,
	        (int)shape->longest, s->args.rules, (int)s->args.window, (int)s->args.token_offset,
	        s->use_start, s->use_tokens, s->use_mapping, s->use_exclude, s->use_rotation);
}

static struct shape random_shape(struct seeded *random)
{
	static const int64_t batches[] = { 0, 1, 2, 5, 31, 64, 256, 1023, 1024, 1025, 2600 };
	static const int64_t lengths[] = { 0, 1, 5, 40, 300, 3000 };
	struct shape shape = { .bs = batches[seeded_in(random, 0, 10)],
		.longest = lengths[seeded_in(random, 0, 5)],
		.rows = seeded_in(random, 1, 40) };

	if (shape.bs * shape.longest > 60000)
		shape.longest = 60000 / shape.bs;
	shape.columns = shape.longest + seeded_in(random, 0, 5);
	shape.w = shape.bs + (seeded_one_in(random, 2) ? 0 : seeded_in(random, 1, 2000));
	/* All fit, or some, or one block has them all. */
	shape.v = seeded_in(random, 0, 2) == 0 ? seeded_in(random, 0, 600)
	                                       : seeded_in(random, 0, shape.bs * shape.longest + 3);
	return shape;
}

/* ---- sound calls ---- */

static void device_equals_cpu_for_random_plans(void **state)
{
	struct seeded random = seeded_start("cuda_plan random");

	(void)state;
	if (!cuda_device_open())
		skip();
	for (int i = 0; i < cuda_rounds(500); i++) {
		struct shape shape = random_shape(&random);
		struct scene s;
		char what[300];
		build(&s, &random, &shape,
		        seeded_one_in(&random, 3) ? KVC_RULES_SGLANG : KVC_RULES_OWN);
		describe(what, sizeof(what), &shape, &s);
		check_on_cpu(&s);
		check_scene(&s, what);
		destroy(&s);
	}
}

/* Prefixes of engines, whole and in a capacity that is too small. */
static void device_equals_cpu_for_large_plans(void **state)
{
	static const struct shape shapes[] = {
		{ .bs = 64, .rows = 65, .columns = 2048, .longest = 2048, .v = 131072, .w = 64 },
		{ .bs = 256, .rows = 257, .columns = 2048, .longest = 2048, .v = 524288, .w = 256 },
		{ .bs = 256, .rows = 300, .columns = 4096, .longest = 4000, .v = 100000, .w = 512 },
		{ .bs = 1, .rows = 2, .columns = 300000, .longest = 300000, .v = 400000, .w = 8 },
		{ .bs = 1500,
		        .rows = 1600,
		        .columns = 600,
		        .longest = 600,
		        .v = 500000,
		        .w = 1500 },
		{ .bs = 20000, .rows = 900, .columns = 40, .longest = 40, .v = 70000, .w = 20001 },
	};
	struct seeded random = seeded_start("cuda_plan large");

	(void)state;
	if (!cuda_device_open())
		skip();
	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
		struct shape shape = shapes[i];
		struct scene s;
		char what[300];
		if (cuda_is_small()) { /* as many blocks, with less to do */
			shape.bs = shape.bs > 4000 ? 4000 : shape.bs;
			shape.longest /= 16;
		}
		build(&s, &random, &shape, KVC_RULES_OWN);
		describe(what, sizeof(what), &shape, &s);
		check_on_cpu(&s);
		check_scene(&s, what);
		destroy(&s);
	}
}

/* ---- what the CPU refuses ---- */

static void damage(struct scene *s, struct seeded *random)
{
	int64_t r = seeded_in(random, 0, s->bs - 1);
	struct cuda_tensor *slots = &s->tensors[SLOTS];
	int32_t *data = cuda_tensor_data(slots);

	switch (seeded_in(random, 0, 4)) {
	case 0:
		int64s_of(s, ROWS)[r] = seeded_one_in(random, 2)
		                                ? -seeded_in(random, 1, INT64_MAX)
		                                : slots->shape[0] + seeded_in(random, 0, 3);
		break;
	case 1:
		int64s_of(s, PREFIX)[r] = slots->shape[1] + seeded_in(random, 1, 70);
		break;
	case 2:
		if (slots->shape[1] > 0)
			data[seeded_in(random, 0, slots->shape[0] - 1) * slots->strides[0] +
			        seeded_in(random, 0, slots->shape[1] - 1)] =
			        (int32_t)(s->tensors[MAPPING].shape[0] +
			                  seeded_in(random, 0, 100000));
		break;
	case 3:
		int64s_of(s, VALID)[r] = seeded_in(random, 0, INT64_MAX);
		s->args.token_offset = seeded_in(random, -30, 30);
		break;
	default: /* a table of tokens with fewer rows or columns than the one of slots */
		s->tensors[TOKENS].shape[seeded_in(random, 0, 1)] /= 2;
		break;
	}
}

static void what_is_out_of_range_keeps_its_place_and_is_reported(void **state)
{
	struct seeded random = seeded_start("cuda_plan offending");

	(void)state;
	if (!cuda_device_open())
		skip();
	for (int i = 0; i < cuda_rounds(500); i++) {
		struct shape shape = random_shape(&random);
		struct scene s;
		char what[300];
		if (shape.bs == 0)
			continue;
		build(&s, &random, &shape,
		        seeded_one_in(&random, 3) ? KVC_RULES_SGLANG : KVC_RULES_OWN);
		for (int64_t n = seeded_in(&random, 1, 5); n > 0; n--)
			damage(&s, &random);
		upload(&s);
		describe(what, sizeof(what), &shape, &s);
		check_scene(&s, what);
		destroy(&s);
	}
}

/* Lengths whose sums overflow are cut; all slots but those of the table are -1. */
static void absurd_lengths_are_cut_and_reported(void **state)
{
	struct seeded random = seeded_start("cuda_plan absurd");

	(void)state;
	if (!cuda_device_open())
		skip();
	for (int i = 0; i < 20; i++) {
		struct shape shape = { .bs = 30,
			.rows = 5,
			.columns = 10,
			.longest = 10,
			.v = i % 2 ? 100 : 5000,
			.w = 30 };
		struct scene s;
		build(&s, &random, &shape, KVC_RULES_OWN);
		s.args.window = 0;
		s.use_start = 0;
		s.args.token_offset = seeded_one_in(&random, 2) ? INT64_MAX : INT64_MIN;
		for (int r = 0; r < 30; r++) {
			int64s_of(&s, ROWS)[r] = 1;
			int64s_of(&s, PREFIX)[r] = INT64_MAX - r;
			int64s_of(&s, EXTEND)[r] = INT64_MAX - r;
			int64s_of(&s, VALID)[r] = INT64_MAX - r;
		}
		upload(&s);
		expect_ok(run(&s, 1, cuda_twin_device(&s.report), NULL));
		kvc_report report = cuda_report_fetch(&s.report);
		assert_int_equal(report.count[KVC_REPORT_LENGTH], 60);
		assert_int_equal(report.first[KVC_REPORT_LENGTH], 0);
		assert_int_equal(report.rows_written, shape.v);
		assert_int_equal(cuda_twin_trespassed(&s.tensors[MEMORY].twin), 0);
		destroy(&s);
	}
}

static void a_batch_beyond_the_capacity_is_refused_by_both_rules(void **state)
{
	struct seeded random = seeded_start("cuda_plan refused");

	(void)state;
	if (!cuda_device_open())
		skip();
	for (int rules = KVC_RULES_OWN; rules <= KVC_RULES_SGLANG; rules++) {
		struct shape shape = {
			.bs = 5, .rows = 5, .columns = 10, .longest = 5, .v = 30, .w = 4
		};
		struct scene s;
		build(&s, &random, &shape, rules);
		expect_error(run(&s, 1, NULL, NULL), KVC_E_LENGTH, "plan-batch-exceeds-capacity",
		        "kv-canary: bs=5 exceeds write_req_capacity=4", -1);
		compare(&s, "refused");
		s.use_rotation = 0;
		s.args.report = NULL;
		s.w = s.host_plan.write_req_capacity = s.device_plan.write_req_capacity = 5;
		kvc_plan on_host = s.device_plan;
		on_host.verify_num_valid = s.host_plan.verify_num_valid;
		s.device_plan = on_host;
		expect_error(run(&s, 1, NULL, NULL), KVC_E_DEVICE, "cuda-host-pointer", NULL, -1);
		destroy(&s);
	}
}

/* ---- graphs ---- */

/* The rotation moves on in device memory from replay to replay. */
static void captured_graph_replays_with_new_contents(void **state)
{
	struct seeded random = seeded_start("cuda_plan graph");

	(void)state;
	if (!cuda_device_open())
		skip();
	for (int round = 0; round < 6; round++) {
		struct shape shape = { .bs = 20,
			.rows = 30,
			.columns = 400,
			.longest = 300,
			.v = round % 2 ? 70 : 1500,
			.w = 25 };
		struct scene s;
		kvc_report want;
		build(&s, &random, &shape, KVC_RULES_OWN);
		s.use_rotation = 1;
		struct cuda_graph graph = cuda_graph_begin();
		expect_ok(run(&s, 1, cuda_twin_device(&s.report), graph.stream));
		cuda_graph_end(&graph);
		expect_ok(kvc_report_init(&want, KVC_HOST, NULL));
		for (int replay = 0; replay < 8; replay++) {
			if (replay % 4 == 0) {
				fill_scene(&s, &random, shape.longest);
				upload(&s);
			}
			model(&s, &want);
			cuda_graph_replay(&graph);
			compare(&s, "graph replay");
		}
		cuda_report_check(&s.report, &want, "graph replay");
		cuda_graph_free(&graph);
		destroy(&s);
	}
}

/* ---- SGLang's cases ---- */

#define UNTOUCHED (-777)

static void copy_array(struct vectors *v, const char *key, const struct scene *s, int which)
{
	int64_t count;
	int64_t *data = vectors_int64s(v, vectors_field(v->item, key), &count);

	assert_int_equal(count, s->tensors[which].shape[0]);
	memcpy(int64s_of(s, which), data, (size_t)count * sizeof(*data));
}

static void copy_table(struct vectors *v, const char *key, struct scene *s, int which)
{
	int64_t shape[2];
	int32_t *data = vectors_table(v, vectors_field(v->item, key), shape);

	cuda_tensor_make(&s->tensors[which], key, KVC_INT32, shape[0], shape[1], shape[1], 0);
	memcpy(cuda_tensor_data(&s->tensors[which]), data,
	        (size_t)(shape[0] * shape[1]) * sizeof(*data));
}

static int same_array(struct vectors *v, const char *key, const int64_t *got, int64_t count)
{
	int64_t want_count;
	int64_t *want =
	        vectors_int64s(v, vectors_field(vectors_field(v->item, "want"), key), &want_count);

	return want_count == count && memcmp(got, want, (size_t)count * sizeof(*got)) == 0;
}

static int same_plan(struct vectors *v, const struct scene *s)
{
	const json_t *want = vectors_field(v->item, "want");
	const kvc_plan *plan = &s->host_plan;

	return same_array(v, "verify_slot_indices", plan->verify_slot_indices, s->v) &&
	       same_array(v, "verify_expected_tokens", plan->verify_expected_tokens, s->v) &&
	       same_array(v, "verify_expected_positions", plan->verify_expected_positions, s->v) &&
	       same_array(v, "verify_prev_slot_indices", plan->verify_prev_slot_indices, s->v) &&
	       same_array(v, "write_offsets", plan->write_offsets, s->w + 1) &&
	       same_array(v, "write_seed_slot_indices", plan->write_seed_slot_indices, s->w) &&
	       *plan->verify_num_valid == vectors_int(want, "verify_num_valid") &&
	       *plan->enable == vectors_int(want, "enable") &&
	       *plan->write_num_valid_reqs == vectors_int(want, "write_num_valid_reqs");
}

static int run_case(struct vectors *v)
{
	const kvc_plan_args initial = KVC_PLAN_ARGS_INIT;
	struct scene s = { .args = initial };
	struct cuda_twin *memory = &s.tensors[MEMORY].twin;
	int64_t bs, mapping_count, same;

	vectors_int64s(v, vectors_field(v->item, "req_pool_indices"), &bs);
	make_tensors(&s, bs, vectors_int(v->item, "verify_capacity"),
	        vectors_int(v->item, "write_req_capacity"));
	copy_array(v, "req_pool_indices", &s, ROWS);
	copy_array(v, "prefix_lens", &s, PREFIX);
	copy_array(v, "extend_seq_lens", &s, EXTEND);
	copy_table(v, "req_to_token", &s, SLOTS);
	s.args.rules = KVC_RULES_SGLANG;
	s.args.window = vectors_int(v->item, "swa_window_size");
	s.args.token_offset = vectors_int(v->item, "kv_token_id_vs_position_offset");
	s.use_mapping = !vectors_is_null(v->item, "full_to_swa_index_mapping");
	if (s.use_mapping) {
		vectors_int64s(
		        v, vectors_field(v->item, "full_to_swa_index_mapping"), &mapping_count);
		cuda_tensor_vector(&s.tensors[MAPPING], "mapping", KVC_INT64, mapping_count);
		copy_array(v, "full_to_swa_index_mapping", &s, MAPPING);
	}
	s.use_tokens = !vectors_is_null(v->item, "req_to_verify_expected_tokens");
	if (s.use_tokens) {
		copy_table(v, "req_to_verify_expected_tokens", &s, TOKENS);
		copy_array(v, "req_to_verify_expected_tokens_valid_lens", &s, VALID);
	}
	for (size_t i = 0; i < memory->bytes / sizeof(int64_t); i++)
		((int64_t *)(void *)memory->host)[i] = UNTOUCHED;
	upload(&s);
	expect_ok(run(&s, 1, NULL, NULL));
	cuda_must(cuda.synchronize(), "case");
	cuda_must(cuda.to_host(memory->host, memory->base + CUDA_RED_ZONE, memory->bytes), "plan");
	same = same_plan(v, &s) && cuda_twin_trespassed(memory) == 0;
	destroy(&s);
	return (int)same;
}

static void sglangs_normal_cases_give_its_plan(void **state)
{
	struct vectors v;

	(void)state;
	if (!cuda_device_open())
		skip();
	vectors_open(&v, "plan.jsonl");
	while (vectors_next(&v))
		vectors_passed(
		        &v, strcmp(vectors_text(v.item, "class"), "normal") != 0 || run_case(&v));
	assert_true(vectors_close(&v));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(device_equals_cpu_for_random_plans),
		cmocka_unit_test(device_equals_cpu_for_large_plans),
		cmocka_unit_test(what_is_out_of_range_keeps_its_place_and_is_reported),
		cmocka_unit_test(absurd_lengths_are_cut_and_reported),
		cmocka_unit_test(a_batch_beyond_the_capacity_is_refused_by_both_rules),
		cmocka_unit_test(captured_graph_replays_with_new_contents),
		cmocka_unit_test(sglangs_normal_cases_give_its_plan),
	};
	if (!cuda_device_open())
		printf("SKIP cuda: no GPU here\n");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
