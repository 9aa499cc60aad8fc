/*
 * scatter_req_token_ids on the device: every byte and the report against a model that goes through
 * the requests one by one, and, where the CPU takes the call, against the CPU. Sizes reach every
 * kernel that the host picks by rule.
 */
#include "cuda_tensor.h"
#include "seeded.h"
#include "sglang_vectors.h"

enum { FLAT, OFFSETS, ROWS, TABLE, TENSORS };

struct scene {
	struct cuda_tensor tensors[TENSORS];
	struct cuda_twin report;
	kvc_scatter_args args; /* options only */
	int64_t bs, tokens, table_rows, columns;
};

static int64_t *int64s_of(const struct scene *s, int which)
{
	return cuda_tensor_data(&s->tensors[which]);
}

/* ---- the model ---- */

static int model_claims(const struct scene *s, int64_t r)
{
	const int64_t *offsets = int64s_of(s, OFFSETS), *rows = int64s_of(s, ROWS);

	return offsets[r + 1] > offsets[r] && offsets[r] >= 0 && offsets[r + 1] <= s->tokens &&
	       rows[r] >= 0 && rows[r] < s->table_rows;
}

/* Reason of the report for which a request is left out; -1 none, -2 it has no tokens. */
static int model_verdict(const struct scene *s, int64_t r, const int64_t *claimed)
{
	const int64_t *offsets = int64s_of(s, OFFSETS), *flat = int64s_of(s, FLAT);
	int64_t first = offsets[r], past = offsets[r + 1], row = int64s_of(s, ROWS)[r];
	int own = s->args.rules == KVC_RULES_OWN, outside = first < 0 || past > s->tokens;

	if (own ? past < first || outside : past > first && outside)
		return KVC_REPORT_OFFSETS;
	if (past <= first)
		return -2;
	if (row < 0 || row >= s->table_rows)
		return KVC_REPORT_ROW_RANGE;
	if (!own)
		return -1;
	if (claimed[row] != r)
		return KVC_REPORT_ROW_DUPLICATE;
	for (int64_t t = first; t < past && !s->args.narrow; t++)
		if ((flat[t] < 0 || flat[t] > INT32_MAX) &&
		        !(s->args.allow_placeholder && flat[t] == -1))
			return KVC_REPORT_TOKEN_RANGE;
	return -1;
}

static void model(struct scene *s, kvc_report *report)
{
	const int64_t *offsets = int64s_of(s, OFFSETS), *rows = int64s_of(s, ROWS);
	int32_t *table = cuda_tensor_data(&s->tensors[TABLE]);
	int64_t *claimed = malloc((size_t)s->table_rows * sizeof(*claimed) + 1);

	for (int64_t row = 0; row < s->table_rows; row++)
		claimed[row] = -1;
	for (int64_t r = s->bs - 1; r >= 0; r--)
		if (model_claims(s, r))
			claimed[rows[r]] = r; /* the first of them stays */
	for (int64_t r = 0; r < s->bs && s->tokens > 0; r++) {
		int64_t length = offsets[r + 1] - offsets[r];
		int verdict = model_verdict(s, r, claimed);
		if (verdict >= 0)
			report_note(report, verdict, r);
		report->rows_skipped += verdict == -2;
		if (verdict != -1)
			continue;
		report->rows_written++;
		if (length > s->columns)
			report->tokens_truncated += length - s->columns;
		for (int64_t c = 0; c < length && c < s->columns; c++)
			table[rows[r] * s->tensors[TABLE].strides[0] + c] =
			        (int32_t)(uint64_t)int64s_of(s, FLAT)[offsets[r] + c];
	}
	free(claimed);
}

/* ---- scenes ---- */

struct shape {
	int64_t bs, columns, pad, spare_rows;
	int64_t longest;           /* lengths are 0 .. longest */
	int64_t one_longest;       /* and one request has this many tokens; 0: none has */
	int equal;                 /* all have 'longest' */
	int64_t shortest;          /* but some have none */
	int flat_skip, table_skip; /* elements by which the tensors miss alignment */
};

static int64_t random_token(const struct scene *s, struct seeded *random)
{
	if (s->args.narrow || s->args.rules == KVC_RULES_SGLANG)
		return (int64_t)seeded_next(random);
	if (s->args.allow_placeholder && seeded_one_in(random, 9))
		return -1;
	return seeded_one_in(random, 9) ? INT32_MAX : seeded_in(random, 0, 200000);
}

static void fill_scene(struct scene *s, struct seeded *random)
{
	int64_t *flat = int64s_of(s, FLAT), *rows = int64s_of(s, ROWS);
	int32_t *table = cuda_tensor_data(&s->tensors[TABLE]);
	int64_t *order = malloc((size_t)s->table_rows * sizeof(*order) + 1);

	for (int64_t i = 0; i < s->tokens; i++)
		flat[i] = random_token(s, random);
	for (int64_t i = 0; i < s->table_rows; i++) {
		int64_t j = seeded_in(random, 0, i);
		order[i] = order[j];
		order[j] = i;
	}
	for (int64_t r = 0; r < s->bs; r++)
		rows[r] = order[r];
	for (int64_t i = 0; i < s->table_rows * s->tensors[TABLE].strides[0]; i++)
		table[i] = (int32_t)(0x5A000000 + i);
	free(order);
}

static void upload(const struct scene *s)
{
	for (int i = 0; i < TENSORS; i++)
		cuda_twin_upload(&s->tensors[i].twin);
}

static void build(struct scene *s, struct seeded *random, const struct shape *shape,
        const kvc_scatter_args *options)
{
	int64_t *lengths = calloc((size_t)shape->bs + 1, sizeof(*lengths)), sum = 0;
	int64_t before = shape->equal ? 0 : seeded_in(random, 0, 5);

	memset(s, 0, sizeof(*s));
	s->args = *options;
	s->bs = shape->bs;
	s->columns = shape->columns;
	s->table_rows = shape->bs + shape->spare_rows;
	for (int64_t r = 0; r < shape->bs; r++) {
		lengths[r] = shape->equal ? shape->longest
		                          : seeded_in(random, shape->shortest, shape->longest);
		if (!shape->equal && seeded_one_in(random, 5))
			lengths[r] = 0;
	}
	if (shape->one_longest && shape->bs > 0)
		lengths[seeded_in(random, 0, shape->bs - 1)] = shape->one_longest;
	for (int64_t r = 0; r < shape->bs; r++)
		sum += lengths[r];
	s->tokens = before + sum + (shape->equal ? 0 : seeded_in(random, 0, 5));
	cuda_tensor_make(&s->tensors[FLAT], "flat_in", KVC_INT64, s->tokens, -1, 1,
	        (size_t)shape->flat_skip * 8);
	cuda_tensor_vector(&s->tensors[OFFSETS], "offsets", KVC_INT64, s->bs + 1);
	cuda_tensor_vector(&s->tensors[ROWS], "req_pool_indices", KVC_INT64, s->bs);
	cuda_tensor_make(&s->tensors[TABLE], "pool_out", KVC_INT32, s->table_rows, s->columns,
	        s->columns + shape->pad, (size_t)shape->table_skip * 4);
	int64_t *offsets = int64s_of(s, OFFSETS);
	offsets[0] = before;
	for (int64_t r = 0; r < s->bs; r++)
		offsets[r + 1] = offsets[r] + lengths[r];
	fill_scene(s, random);
	upload(s);
	s->report = cuda_report_make();
	free(lengths);
}

static kvc_status run(struct scene *s, int on_device, kvc_report *report, void *stream)
{
	kvc_scatter_args args = s->args;

	args.flat_in = cuda_tensor_of(&s->tensors[FLAT], on_device);
	args.offsets = cuda_tensor_of(&s->tensors[OFFSETS], on_device);
	args.req_pool_indices = cuda_tensor_of(&s->tensors[ROWS], on_device);
	args.pool_out = cuda_tensor_of(&s->tensors[TABLE], on_device);
	args.report = report;
	return kvc_scatter_req_token_ids(&args, stream);
}

static void compare(struct scene *s, const char *what)
{
	cuda_must(cuda.synchronize(), what);
	for (int i = 0; i < TENSORS; i++)
		cuda_twin_check(&s->tensors[i].twin, s->tensors[i].name, what);
}

static void destroy(struct scene *s)
{
	for (int i = 0; i < TENSORS; i++)
		cuda_twin_end(&s->tensors[i].twin);
	cuda_twin_end(&s->report);
}

/* The CPU takes a sound call, and agrees with the model. */
static void check_on_cpu(struct scene *s)
{
	struct cuda_twin *table = &s->tensors[TABLE].twin;
	char *before = malloc(table->bytes + 1), *after = malloc(table->bytes + 1);
	kvc_report by_cpu, by_model;

	expect_ok(kvc_report_init(&by_cpu, KVC_HOST, NULL));
	by_model = by_cpu;
	memcpy(before, table->host, table->bytes);
	expect_ok(run(s, 0, &by_cpu, NULL));
	memcpy(after, table->host, table->bytes);
	memcpy(table->host, before, table->bytes);
	model(s, &by_model);
	assert_memory_equal(table->host, after, table->bytes);
	assert_memory_equal(&by_cpu, &by_model, sizeof(by_cpu));
	memcpy(table->host, before, table->bytes);
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

static kvc_scatter_args options(int rules, int narrow, int allow_placeholder)
{
	kvc_scatter_args args = KVC_SCATTER_ARGS_INIT;

	args.rules = rules;
	args.narrow = narrow;
	args.allow_placeholder = allow_placeholder;
	return args;
}

static kvc_scatter_args random_options(struct seeded *random)
{
	return options(seeded_one_in(random, 3) ? KVC_RULES_SGLANG : KVC_RULES_OWN,
	        seeded_one_in(random, 3), seeded_one_in(random, 3));
}

static void describe(char *what, size_t bytes, const struct shape *shape, const struct scene *s)
{
	snprintf(what, bytes,
	        "bs=%d columns=%d pad=%d longest=%d one=%d equal=%d skips=%d,%d rules=%d narrow=%d "
	        "placeholder=%d tokens=%d",
	        (int)shape->bs, (int)shape->columns, (int)shape->pad, (int)shape->longest,
	        (int)shape->one_longest, shape->equal, shape->flat_skip, shape->table_skip,
	        s->args.rules, s->args.narrow, s->args.allow_placeholder, (int)s->tokens);
}

/* ---- sound calls ---- */

static void device_equals_cpu_for_random_batches(void **state)
{
	static const int64_t batches[] = { 0, 1, 2, 3, 17, 64, 255, 256, 257, 700, 3000 };
	static const int64_t lengths[] = { 0, 1, 7, 40, 300, 1024, 5000 };
	struct seeded random = seeded_start("cuda_scatter random");

	(void)state;
	if (!cuda_device_open())
		skip();
	for (int i = 0; i < cuda_rounds(250); i++) {
		struct shape shape = { .bs = batches[seeded_in(&random, 0, 10)],
			.longest = lengths[seeded_in(&random, 0, 6)],
			.pad = seeded_one_in(&random, 2) ? 0 : seeded_in(&random, 1, 9),
			.spare_rows = seeded_in(&random, 1, 4),
			.equal = seeded_one_in(&random, 4),
			.flat_skip = seeded_one_in(&random, 3),
			.table_skip = seeded_one_in(&random, 3) };
		kvc_scatter_args args = random_options(&random);
		struct scene s;
		char what[300];
		if (shape.bs * shape.longest > 400000)
			shape.longest = 400000 / shape.bs;
		shape.columns = seeded_one_in(&random, 3)
		                        ? seeded_in(&random, 0, 50)
		                        : shape.longest + seeded_in(&random, 0, 3);
		if (seeded_one_in(&random, 3))
			shape.one_longest = seeded_in(&random, 1, 20000);
		build(&s, &random, &shape, &args);
		describe(what, sizeof(what), &shape, &s);
		check_on_cpu(&s);
		check_scene(&s, what);
		destroy(&s);
	}
}

/* Shapes of engines, and sizes at which the host takes another kernel. */
static void device_equals_cpu_for_every_kernel(void **state)
{
	static const struct shape shapes[] = {
		{ .bs = 1, .longest = 128, .columns = 128, .equal = 1 },
		{ .bs = 64, .longest = 2048, .columns = 2048, .equal = 1 },
		{ .bs = 64, .longest = 2048, .columns = 40960, .equal = 1 },
		{ .bs = 256, .longest = 8192, .columns = 8192, .equal = 1 },
		{ .bs = 256, .longest = 8190, .columns = 8192 },
		{ .bs = 4000, .longest = 300, .columns = 1024, .one_longest = 131072 },
		{ .bs = 4000, .longest = 300, .columns = 140000, .one_longest = 131072 },
		{ .bs = 1, .longest = 1000000, .columns = 1000000, .equal = 1 },
		{ .bs = 40, .longest = 131072, .columns = 131072, .equal = 1 },
		{ .bs = 41, .longest = 200000, .columns = 150001 },
		{ .bs = 64, .longest = 131072, .columns = 131072, .equal = 1 },
		{ .bs = 66, .shortest = 131000, .longest = 131072, .columns = 131072 },
		{ .bs = 132, .shortest = 65500, .longest = 65536, .columns = 65536, .pad = 4 },
		{ .bs = 132, .shortest = 65500, .longest = 65540, .columns = 65534 },
		{ .bs = 700, .longest = 16384, .columns = 65536 },
		{ .bs = 2100, .longest = 4100, .columns = 4096 },
		{ .bs = 60000, .longest = 9, .columns = 16 },
	};
	struct seeded random = seeded_start("cuda_scatter kernels");

	(void)state;
	if (!cuda_device_open())
		skip();
	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
		for (int narrow = 0; narrow < 2; narrow++) {
			if (cuda_is_small() && shapes[i].bs * shapes[i].longest > 1300000)
				continue;
			const kvc_scatter_args args = options(KVC_RULES_OWN, narrow, 0);
			struct shape shape = shapes[i];
			struct scene s;
			char what[300];
			shape.spare_rows = 1;
			build(&s, &random, &shape, &args);
			describe(what, sizeof(what), &shape, &s);
			check_on_cpu(&s);
			check_scene(&s, what);
			destroy(&s);
		}
}

/* ---- requests that the CPU refuses ---- */

static void damage(struct scene *s, struct seeded *random)
{
	int64_t *offsets = int64s_of(s, OFFSETS), *rows = int64s_of(s, ROWS);
	int64_t r = seeded_in(random, 0, s->bs - 1), other = seeded_in(random, 0, s->bs - 1);

	switch (seeded_in(random, 0, 6)) {
	case 0:
		rows[r] = seeded_one_in(random, 2) ? -1 : s->table_rows + seeded_in(random, 0, 9);
		break;
	case 1:
		rows[r] = rows[other];
		break;
	case 2:
		if (s->tokens > 0)
			int64s_of(s, FLAT)[seeded_in(random, 0, s->tokens - 1)] =
			        seeded_one_in(random, 2) ? -1 - seeded_in(random, 0, 1)
			                                 : INT64_C(1) << seeded_in(random, 31, 62);
		break;
	case 3:
		offsets[0] = -seeded_in(random, 1, 9);
		break;
	case 4:
		offsets[s->bs] = s->tokens + seeded_in(random, 1, INT64_MAX / 2);
		break;
	case 5: /* more often in order than not: this one goes another way through the kernel */
		if (seeded_one_in(random, 3))
			offsets[r] = seeded_in(random, -5, s->tokens + 5);
		break;
	default:
		rows[r] = rows[other], rows[other] = rows[0];
		break;
	}
}

static void offending_requests_are_skipped_and_reported(void **state)
{
	static const int64_t batches[] = { 1, 2, 5, 60, 300, 1500 };
	static const int64_t lengths[] = { 3, 40, 1000, 9000 };
	struct seeded random = seeded_start("cuda_scatter offending");

	(void)state;
	if (!cuda_device_open())
		skip();
	for (int i = 0; i < cuda_rounds(400); i++) {
		struct shape shape = { .bs = batches[seeded_in(&random, 0, 5)],
			.longest = lengths[seeded_in(&random, 0, 3)],
			.spare_rows = seeded_in(&random, 0, 4),
			.flat_skip = seeded_one_in(&random, 4) };
		kvc_scatter_args args = random_options(&random);
		struct scene s;
		char what[300];
		if (shape.bs * shape.longest > 100000)
			shape.longest = 100000 / shape.bs;
		shape.columns = seeded_in(&random, shape.longest / 2, 2 * shape.longest);
		if (seeded_one_in(&random, 3))
			shape.one_longest = seeded_in(&random, 1, 60000);
		build(&s, &random, &shape, &args);
		for (int64_t n = seeded_in(&random, 1, 6); n > 0; n--)
			damage(&s, &random);
		upload(&s);
		describe(what, sizeof(what), &shape, &s);
		check_scene(&s, what);
		destroy(&s);
	}
}

/* One bad token anywhere in a request that many blocks share. */
static void a_bad_token_stops_its_whole_request(void **state)
{
	static const int64_t sizes[] = { 2000, 40000, 300000, 900000, 4500000 };
	struct seeded random = seeded_start("cuda_scatter bad token");

	(void)state;
	if (!cuda_device_open())
		skip();
	for (int i = 0; i < 15; i++) {
		struct shape shape = {
			.bs = 3, .longest = 500, .spare_rows = 1, .one_longest = sizes[i % 5]
		};
		const kvc_scatter_args args = options(KVC_RULES_OWN, 0, 0);
		struct scene s;
		char what[300];
		shape.columns = shape.one_longest;
		build(&s, &random, &shape, &args);
		int64s_of(&s, FLAT)[seeded_in(&random, 0, s.tokens - 1)] = INT64_C(1) << 31;
		upload(&s);
		describe(what, sizeof(what), &shape, &s);
		check_scene(&s, what);
		destroy(&s);
	}
}

/* ---- graphs ---- */

static void captured_graph_replays_with_new_contents(void **state)
{
	struct seeded random = seeded_start("cuda_scatter graph");

	(void)state;
	if (!cuda_device_open())
		skip();
	for (int round = 0; round < 4; round++) {
		struct shape shape = { .bs = 50,
			.longest = round % 2 ? 3000 : 40,
			.columns = round < 2 ? 3000 : 100000,
			.spare_rows = 3 };
		const kvc_scatter_args args = options(KVC_RULES_OWN, round / 2, 0);
		struct scene s;
		kvc_report want;
		build(&s, &random, &shape, &args);
		struct cuda_graph graph = cuda_graph_begin();
		expect_ok(run(&s, 1, cuda_twin_device(&s.report), graph.stream));
		cuda_graph_end(&graph);
		expect_ok(kvc_report_init(&want, KVC_HOST, NULL));
		for (int replay = 0; replay < 4; replay++) {
			int64_t *offsets = int64s_of(&s, OFFSETS);
			fill_scene(&s, &random);
			for (int64_t r = 1; r < s.bs; r++)
				offsets[r] = seeded_in(&random, offsets[r - 1], offsets[r + 1]);
			upload(&s);
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

static int run_case(struct vectors *v)
{
	const json_t *want = vectors_field(vectors_field(v->item, "want"), "pool");
	struct scene s = { .args = options(KVC_RULES_SGLANG, 0, 0) };
	int64_t bs, tokens, words;
	int64_t *flat = vectors_int64s(v, vectors_field(v->item, "flat_in"), &tokens);
	int64_t *rows = vectors_int64s(v, vectors_field(v->item, "req_pool_indices"), &bs);
	int64_t *offsets = vectors_int64s(v, vectors_field(v->item, "offsets"), NULL);
	int32_t *pool = vectors_int32s(v, vectors_field(v->item, "pool_before"), &words);
	int same;

	cuda_tensor_vector(&s.tensors[FLAT], "flat_in", KVC_INT64, tokens);
	cuda_tensor_vector(&s.tensors[OFFSETS], "offsets", KVC_INT64, bs + 1);
	cuda_tensor_vector(&s.tensors[ROWS], "req_pool_indices", KVC_INT64, bs);
	cuda_tensor_make(&s.tensors[TABLE], "pool_out", KVC_INT32,
	        vectors_int(v->item, "pool_rows"), vectors_int(v->item, "pool_cols"),
	        vectors_int(v->item, "pool_row_stride"), 0);
	memcpy(int64s_of(&s, FLAT), flat, (size_t)tokens * 8);
	memcpy(int64s_of(&s, OFFSETS), offsets, (size_t)(bs + 1) * 8);
	memcpy(int64s_of(&s, ROWS), rows, (size_t)bs * 8);
	assert_true((size_t)words * 4 <= s.tensors[TABLE].twin.bytes);
	memcpy(s.tensors[TABLE].twin.host, pool, (size_t)words * 4);
	upload(&s);
	expect_ok(run(&s, 1, NULL, NULL));
	cuda_must(cuda.synchronize(), "case");
	memcpy(s.tensors[TABLE].twin.host, vectors_int32s(v, want, NULL), (size_t)words * 4);
	same = cuda_twin_differs(&s.tensors[TABLE].twin) == -1 &&
	       cuda_twin_trespassed(&s.tensors[TABLE].twin) == 0;
	for (int i = 0; i < TENSORS; i++)
		cuda_twin_end(&s.tensors[i].twin);
	return same;
}

static void sglangs_normal_cases_give_its_bytes(void **state)
{
	struct vectors v;

	(void)state;
	if (!cuda_device_open())
		skip();
	vectors_open(&v, "scatter.jsonl");
	while (vectors_next(&v))
		vectors_passed(
		        &v, strcmp(vectors_text(v.item, "class"), "normal") != 0 || run_case(&v));
	assert_true(vectors_close(&v));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(device_equals_cpu_for_random_batches),
		cmocka_unit_test(device_equals_cpu_for_every_kernel),
		cmocka_unit_test(offending_requests_are_skipped_and_reported),
		cmocka_unit_test(a_bad_token_stops_its_whole_request),
		cmocka_unit_test(captured_graph_replays_with_new_contents),
		cmocka_unit_test(sglangs_normal_cases_give_its_bytes),
	};
	if (!cuda_device_open())
		printf("SKIP cuda: no GPU here\n");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
