/*
 * kvc_canary_plan() and the memory of a plan. Everything that can be wrong with a call is found
 * here before the back end writes a word (SPEC section 4.2); what only the device can see, the kernel
 * looks at.
 */
#include "cpu/plan.h"

#include "cuda/cuda.h"
#include "ops/arguments.h"

#include <string.h>

/* Sums of entries and of tokens stay below this, so that nothing built from them overflows. */
#define TOTAL_MAX (INT64_C(1) << 62)

/* ---- the memory of a plan ---- */

/* All int64 arrays come before all int32 ones, so that 8-byte alignment of the start is enough. */
static int plan_bytes(int64_t verify_capacity, int64_t write_req_capacity, uint64_t *bytes_out)
{
	uint64_t v = (uint64_t)verify_capacity, w = (uint64_t)write_req_capacity;
	uint64_t wide, narrow;

	if (verify_capacity < 0 || write_req_capacity < 0)
		return 0;
	/* 4V + 2W + 2 words of 8 bytes, V + 3 of 4. */
	if (__builtin_mul_overflow(v, 36, &wide) || __builtin_mul_overflow(w, 16, &narrow) ||
	        __builtin_add_overflow(wide, narrow, &wide) ||
	        __builtin_add_overflow(wide, 2 * 8 + 3 * 4 + 7, &wide))
		return 0;
	*bytes_out = wide / 8 * 8;
	return *bytes_out <= SIZE_MAX;
}

size_t kvc_plan_bytes(int64_t verify_capacity, int64_t write_req_capacity)
{
	uint64_t bytes;

	return plan_bytes(verify_capacity, write_req_capacity, &bytes) ? (size_t)bytes : 0;
}

kvc_status kvc_plan_bind(kvc_plan *out, void *memory, kvc_device device, int64_t verify_capacity,
        int64_t write_req_capacity)
{
	size_t v = (size_t)verify_capacity, w = (size_t)write_req_capacity;

	if (!out)
		return kvc__fail_null_argument(-1, "out");
	if (!memory)
		return kvc__fail_null_argument(-1, "memory");
	KVC__TRY(kvc__check_capacity("verify_capacity", verify_capacity));
	KVC__TRY(kvc__check_capacity("write_req_capacity", write_req_capacity));
	if ((uintptr_t)memory % sizeof(int64_t) != 0)
		return kvc__fail_plan_memory_misaligned(-1, (int64_t)((uintptr_t)memory % 8));

	int64_t *wide = memory;
	*out = (kvc_plan){
		.struct_bytes = sizeof(*out),
		.device = device,
		.verify_capacity = verify_capacity,
		.verify_slot_indices = wide,
		.verify_expected_tokens = wide + v,
		.verify_expected_positions = wide + 2 * v,
		.verify_prev_slot_indices = wide + 3 * v,
		.left_out = wide + 4 * v,
		.write_req_capacity = write_req_capacity,
		.write_offsets = wide + 4 * v + 1,
		.write_seed_slot_indices = wide + 4 * v + 1 + w + 1,
	};
	int32_t *narrow = (int32_t *)(void *)(out->write_seed_slot_indices + w);
	out->verify_request = narrow;
	out->verify_num_valid = narrow + v;
	out->enable = narrow + v + 1;
	out->write_num_valid_reqs = narrow + v + 2;
	return KVC_OK;
}

/* ---- what the tensors look like ---- */

/* The arrays of the requests, in the order of the struct; the first three are required. */
#define REQUEST_ARRAYS 9

static void name_arrays(struct kvc__named arrays[REQUEST_ARRAYS], const kvc_requests *requests)
{
	const struct kvc__named named[REQUEST_ARRAYS] = {
		{ requests->req_pool_indices, "req_pool_indices" },
		{ requests->prefix_lens, "prefix_lens" },
		{ requests->extend_seq_lens, "extend_seq_lens" },
		{ requests->namespaces, "namespaces" },
		{ requests->verify_chain_in, "verify_chain_in" },
		{ requests->write_chain_in, "write_chain_in" },
		{ requests->chain_end, "chain_end" },
		{ requests->start, "start" },
		{ requests->owner_request, "owner_request" },
	};

	memcpy(arrays, named, sizeof(named));
}

/* Those that only write and verify read must fit too: found now, not after a step has run. */
static kvc_status check_request_arrays(const struct kvc__named arrays[REQUEST_ARRAYS])
{
	int64_t length = KVC__ANY_LENGTH;

	for (int i = 0; i < REQUEST_ARRAYS; i++) {
		if (i >= 3 && !arrays[i].tensor)
			continue;
		KVC__TRY(kvc__check_vector(arrays[i].tensor, arrays[i].name, KVC_INT64, length));
		length = arrays[0].tensor->shape[0];
	}
	return KVC_OK;
}

static kvc_status check_tables(const kvc_plan_args *args, int64_t request_count)
{
	KVC__TRY(kvc__check_table(args->req_to_token, "req_to_token", KVC_INT32));
	if (args->expected_tokens) {
		KVC__TRY(kvc__check_table(args->expected_tokens, "expected_tokens", KVC_INT32));
		if (!args->valid_lens)
			return kvc__fail_plan_expected_tokens_need_valid_lens(-1);
		KVC__TRY(kvc__check_vector(
		        args->valid_lens, "valid_lens", KVC_INT64, request_count));
	}
	if (args->full_to_swa_index_mapping)
		KVC__TRY(kvc__check_vector(args->full_to_swa_index_mapping,
		        "full_to_swa_index_mapping", KVC_INT64, KVC__ANY_LENGTH));
	if (args->exclude)
		KVC__TRY(kvc__check_vector(args->exclude, "exclude", KVC_UINT8, KVC__ANY_LENGTH));
	return KVC_OK;
}

static kvc_status check_devices(const kvc_plan_args *args,
        const struct kvc__named arrays[REQUEST_ARRAYS], const kvc_plan *out)
{
	const kvc_tensor plan = { .device = out->device };
	struct kvc__named all[REQUEST_ARRAYS + 6] = {
		{ &plan, "plan" },
		{ args->req_to_token, "req_to_token" },
		{ args->expected_tokens, "expected_tokens" },
		{ args->expected_tokens ? args->valid_lens : NULL, "valid_lens" },
		{ args->full_to_swa_index_mapping, "full_to_swa_index_mapping" },
		{ args->exclude, "exclude" },
	};
	kvc_device device;

	memcpy(all + 6, arrays, REQUEST_ARRAYS * sizeof(*arrays));
	return kvc__check_same_device(&device, all, REQUEST_ARRAYS + 6);
}

static kvc_status check_plan_options(const kvc_plan_args *args, const kvc_requests *requests)
{
	KVC__TRY(kvc__check_rules(args->rules));
	if (args->window < 0)
		return kvc__fail_plan_window_negative(-1, args->window);
	if (args->rules == KVC_RULES_OWN)
		return KVC_OK;
	if (args->window > 0 && !args->full_to_swa_index_mapping)
		return kvc__fail_plan_window_needs_mapping(-1, args->window);
	if (args->exclude)
		return kvc__fail_plan_option_needs_own_rules(-1, "exclude");
	if (requests->start)
		return kvc__fail_plan_option_needs_own_rules(-1, "start");
	return KVC_OK;
}

/* By SGLang's rules a batch may be larger: its offsets and seeds are cut, its count is not. */
static kvc_status check_batch(const kvc_plan_args *args, const kvc_plan *out, int64_t bs)
{
	int may_cut = args->rules == KVC_RULES_SGLANG && !kvc__is_cuda(out->device);

	if (bs > INT32_MAX || (!may_cut && bs > out->write_req_capacity))
		return kvc__fail_plan_batch_exceeds_capacity(-1, bs, out->write_req_capacity);
	return KVC_OK;
}

static kvc_status check_plan_tensors(
        const kvc_plan_args *args, const kvc_requests *requests, const kvc_plan *out)
{
	struct kvc__named arrays[REQUEST_ARRAYS];

	name_arrays(arrays, requests);
	KVC__TRY(check_plan_options(args, requests));
	KVC__TRY(check_request_arrays(arrays));
	KVC__TRY(check_tables(args, arrays[0].tensor->shape[0]));
	KVC__TRY(check_devices(args, arrays, out));
	return check_batch(args, out, arrays[0].tensor->shape[0]);
}

/* ---- the task of the back end ---- */

static const int64_t *int64s_of(const kvc_tensor *tensor)
{
	return tensor ? (const int64_t *)(void *)kvc__tensor_data(tensor) : NULL;
}

static struct kvc__plan_table table_of(const kvc_tensor *tensor)
{
	struct kvc__plan_table table = { 0 };

	if (tensor) {
		table.data = (const int32_t *)(void *)kvc__tensor_data(tensor);
		table.row_count = tensor->shape[0];
		table.column_count = tensor->shape[1];
		table.row_stride = kvc__tensor_stride(tensor, 0);
	}
	return table;
}

static struct kvc__plan plan_of(
        const kvc_plan_args *args, const kvc_requests *requests, const kvc_plan *out)
{
	const kvc_tensor *mapping = args->full_to_swa_index_mapping;
	const kvc_tensor *exclude = args->exclude;
	struct kvc__plan task = {
		.request_count = requests->req_pool_indices->shape[0],
		.rows = int64s_of(requests->req_pool_indices),
		.prefix_lens = int64s_of(requests->prefix_lens),
		.extend_lens = int64s_of(requests->extend_seq_lens),
		.start = int64s_of(requests->start),
		.slots = table_of(args->req_to_token),
		.tokens = table_of(args->expected_tokens),
		.valid_lens = args->expected_tokens ? int64s_of(args->valid_lens) : NULL,
		.token_offset = args->token_offset,
		.window = args->window,
		.mapping = int64s_of(mapping),
		.mapping_count = mapping ? mapping->shape[0] : 0,
		.exclude = exclude ? (const uint8_t *)kvc__tensor_data(exclude) : NULL,
		.exclude_bytes = exclude ? exclude->shape[0] : 0,
		.sglang = args->rules == KVC_RULES_SGLANG,
		.out = out,
	};
	return task;
}

/* ---- what the values say ---- */

static kvc_status check_expected_tokens(
        const struct kvc__plan *task, int64_t r, struct kvc__span positions)
{
	struct kvc__span read = kvc__plan_token_positions(task, r, positions);
	int64_t column;

	if (read.begin == read.end)
		return KVC_OK;
	if (task->rows[r] >= task->tokens.row_count)
		return kvc__fail_plan_row_out_of_range(
		        r, r, task->rows[r], "expected_tokens", task->tokens.row_count);
	column = read.end - 1 + task->token_offset;
	if (column >= task->tokens.column_count)
		return kvc__fail_plan_column_out_of_range(
		        r, r, column, task->rows[r], "expected_tokens", task->tokens.column_count);
	return KVC_OK;
}

static kvc_status check_request(const struct kvc__plan *task, int64_t r)
{
	int64_t row = task->rows[r], prefix = task->prefix_lens[r];
	struct kvc__span positions;

	if (row == 0)
		return KVC_OK;
	if (row < 0 || row >= task->slots.row_count)
		return kvc__fail_plan_row_out_of_range(
		        r, r, row, "req_to_token", task->slots.row_count);
	positions = kvc__plan_positions(task, r);
	if (positions.begin == positions.end && !kvc__plan_has_seed(task, r))
		return KVC_OK;
	if (prefix > task->slots.column_count)
		return kvc__fail_plan_column_out_of_range(
		        r, r, prefix - 1, row, "req_to_token", task->slots.column_count);
	return task->tokens.data ? check_expected_tokens(task, r, positions) : KVC_OK;
}

/* Check every request and add up what all of them read. */
static kvc_status check_requests(struct kvc__plan *task)
{
	int64_t written = 0;

	task->total = 0;
	for (int64_t r = 0; r < task->request_count; r++) {
		struct kvc__span positions = kvc__plan_positions(task, r);
		int64_t count = kvc__plan_write_count(task, r);
		KVC__TRY(check_request(task, r));
		if (count > TOTAL_MAX - written)
			return kvc__fail_plan_lengths_too_large(r, r, "extend_seq_lens", TOTAL_MAX);
		written += count;
		if (positions.end - positions.begin > TOTAL_MAX - task->total)
			return kvc__fail_plan_lengths_too_large(r, r, "prefix_lens", TOTAL_MAX);
		task->total += positions.end - positions.begin;
	}
	return KVC_OK;
}

static int64_t modulo(int64_t value, int64_t divisor)
{
	int64_t rest = value % divisor;

	return rest < 0 ? rest + divisor : rest;
}

/* Which part of the full list is emitted. *rotation may hold anything, for instance the place of a
 * step that had more entries. */
static void choose_entries(struct kvc__plan *task, const int64_t *rotation)
{
	int64_t capacity = task->out->verify_capacity;

	task->first = 0;
	task->emit_count = task->total;
	if (task->total <= capacity)
		return;
	task->emit_count = task->sglang ? 0 : capacity;
	if (rotation && !task->sglang)
		task->first = modulo(*rotation, task->total);
}

static void turn(const struct kvc__plan *task, int64_t *rotation)
{
	if (!rotation || task->sglang || task->total == 0)
		return;
	if (task->emit_count == task->total)
		*rotation = 0;
	else
		*rotation = modulo(task->first + task->emit_count, task->total);
}

static void store_counts(const struct kvc__plan *task)
{
	const kvc_plan *out = task->out;
	int64_t capacity = out->verify_capacity;

	*out->verify_num_valid = (int32_t)(task->total < capacity ? task->total : capacity);
	*out->enable = !task->sglang || task->total <= capacity;
	if (out->left_out)
		*out->left_out = task->total - task->emit_count;
	*out->write_num_valid_reqs = (int32_t)task->request_count;
}

static kvc_status check_plan_addresses(const kvc_plan_args *args, const kvc_plan *out)
{
	const struct {
		const void *pointer;
		const char *name;
	} outputs[] = {
		{ out->verify_slot_indices, "verify_slot_indices" },
		{ out->verify_expected_tokens, "verify_expected_tokens" },
		{ out->verify_expected_positions, "verify_expected_positions" },
		{ out->verify_prev_slot_indices, "verify_prev_slot_indices" },
		{ out->verify_request, "verify_request" },
		{ out->verify_num_valid, "verify_num_valid" },
		{ out->enable, "enable" },
		{ out->left_out, "left_out" },
		{ out->write_offsets, "write_offsets" },
		{ out->write_seed_slot_indices, "write_seed_slot_indices" },
		{ out->write_num_valid_reqs, "write_num_valid_reqs" },
		{ args->rotation, "rotation" },
		{ args->report, "report" },
	};
	int64_t capacities = out->verify_capacity + out->write_req_capacity;

	for (size_t i = 0; i < sizeof(outputs) / sizeof(outputs[0]); i++)
		if (capacities > 0 || i >= 5) /* arrays of no entries may lie anywhere */
			KVC__TRY(kvc__cuda_check_pointer(outputs[i].pointer, outputs[i].name));
	return KVC_OK;
}

static kvc_status plan_on_cuda(const kvc_plan_args *args, const kvc_requests *requests,
        const struct kvc__plan *task, void *stream)
{
	const struct kvc__cuda_ops *cuda;
	const struct kvc__cuda_plan call = { task, args->rotation, args->report };
	struct kvc__named arrays[REQUEST_ARRAYS];
	const struct kvc__named tables[] = {
		{ args->req_to_token, "req_to_token" },
		{ args->expected_tokens, "expected_tokens" },
		{ args->expected_tokens ? args->valid_lens : NULL, "valid_lens" },
		{ args->full_to_swa_index_mapping, "full_to_swa_index_mapping" },
		{ args->exclude, "exclude" },
	};

	KVC__TRY(kvc__cuda_find(&cuda, task->out->device, "plan"));
	name_arrays(arrays, requests);
	for (int i = 0; i < REQUEST_ARRAYS; i++)
		if (arrays[i].tensor)
			KVC__TRY(kvc__cuda_check_pointer(
			        kvc__tensor_data(arrays[i].tensor), arrays[i].name));
	for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++)
		if (tables[i].tensor)
			KVC__TRY(kvc__cuda_check_pointer(
			        kvc__tensor_data(tables[i].tensor), tables[i].name));
	KVC__TRY(check_plan_addresses(args, task->out));
	return cuda->plan(&call, stream);
}

static kvc_status fail_unmapped(const struct kvc__plan *task, const struct kvc__plan_fault *fault)
{
	if (task->sglang)
		return kvc__fail_sglang_slot_outside_mapping(
		        fault->request, fault->slot, task->mapping_count);
	return kvc__fail_plan_mapping_out_of_range(
	        fault->request, fault->request, fault->slot, fault->position, task->mapping_count);
}

kvc_status kvc_canary_plan(kvc_plan *given_out, const kvc_plan_args *given, void *stream)
{
	kvc_plan_args args = KVC_PLAN_ARGS_INIT;
	kvc_requests requests = KVC_REQUESTS_INIT;
	kvc_plan out = { 0 };
	struct kvc__plan task;
	struct kvc__plan_fault fault;

	KVC__TRY(kvc__take_plan(&out, given_out));
	KVC__TAKE(&args, given, "args");
	KVC__TAKE(&requests, args.requests, "requests");
	KVC__TRY(check_plan_tensors(&args, &requests, &out));
	task = plan_of(&args, &requests, &out);
	if (kvc__is_cuda(out.device))
		return plan_on_cuda(&args, &requests, &task, stream);
	KVC__TRY(check_requests(&task));
	choose_entries(&task, args.rotation);
	if (task.mapping && kvc__plan_find_unmapped(&task, &fault))
		return fail_unmapped(&task, &fault);

	kvc__plan_emit(&task);
	kvc__plan_writes(&task);
	store_counts(&task);
	turn(&task, args.rotation);
	if (args.report)
		args.report->rows_written += task.emit_count;
	return KVC_OK;
}
