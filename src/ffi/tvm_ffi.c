/*
 * The operations over tensors as entry points of apache-tvm-ffi's C ABI, in the shared library alone.
 * torch tensors come in without a Python object being looked at, streams are those of the caller's
 * framework. python/kvcanary/_calls.py has the same functions with the same arguments in the same
 * order, over ctypes; python.c is how the package calls these.
 *
 * A tensor argument is a DLTensor, whose layout kvc_tensor has, or None; q_out and k_out may be True,
 * meaning in place. Structs come as their
 * addresses (an int or an opaque pointer; None = NULL). The last argument of each is the CUDA stream:
 * an address, or None for the current one. A failure raises the catalogue's class and message;
 * kvc_last_error() has the rest.
 *
 * libtvm_ffi is not linked: its two functions are weak, and whoever calls an entry point has loaded
 * it. Without the headers this file is empty.
 */
#include "kvcanary.h"

#if __has_include(<tvm/ffi/c_api.h>)
#include <stdio.h>
#include <string.h>
#include <tvm/ffi/c_api.h>
#include <tvm/ffi/extra/c_env_api.h>

#pragma weak TVMFFIErrorSetRaisedFromCStr
#pragma weak TVMFFIEnvGetStream

_Static_assert(sizeof(kvc_tensor) == sizeof(DLTensor), "a DLTensor is passed on as a kvc_tensor");

#define FFI_ENTRY(name)                                                                            \
	KVC_API int __tvm_ffi_##name(                                                              \
	        void *self, const TVMFFIAny *args, int32_t num_args, TVMFFIAny *result);           \
	int __tvm_ffi_##name(void *self, const TVMFFIAny *args, int32_t num_args, TVMFFIAny *result)

/* The arguments of one call, read from the first to the last. */
struct reader {
	const char *function;
	const TVMFFIAny *args;
	int32_t next;
	int failed; /* an error is raised; further reads give zeros */
	kvc_device device;
};

static int raise_error(const char *kind, const char *message)
{
	if (TVMFFIErrorSetRaisedFromCStr)
		TVMFFIErrorSetRaisedFromCStr(kind, message);
	return -1;
}

static struct reader reader_over(
        const char *function, const TVMFFIAny *args, int32_t count, int32_t expected)
{
	struct reader r = { function, args, 0, 0, KVC_HOST };
	char message[128];

	if (count != expected) {
		snprintf(message, sizeof(message), "%s takes %d arguments, got %d", function,
		        (int)expected, (int)count);
		raise_error("TypeError", message);
		r.failed = 1;
	}
	return r;
}

static void wrong_type(struct reader *r, const char *expected)
{
	char message[128];

	snprintf(message, sizeof(message), "%s: argument %d must be %s", r->function,
	        (int)r->next - 1, expected);
	raise_error("TypeError", message);
	r->failed = 1;
}

/* The next argument; NULL after a failure. */
static const TVMFFIAny *next_argument(struct reader *r)
{
	return r->failed ? NULL : &r->args[r->next++];
}

static const kvc_tensor *tensor_argument(struct reader *r)
{
	const TVMFFIAny *arg = next_argument(r);
	const kvc_tensor *tensor = NULL;

	if (!arg || arg->type_index == kTVMFFINone)
		return NULL;
	if (arg->type_index == kTVMFFIDLTensorPtr)
		tensor = (const kvc_tensor *)arg->v_ptr;
	else if (arg->type_index == kTVMFFITensor) /* the DLTensor follows the object's header */
		tensor = (const kvc_tensor *)(const void *)((const char *)arg->v_obj +
		                                            sizeof(TVMFFIObject));
	else
		wrong_type(r, "a tensor or None");
	if (tensor && tensor->device.device_type == KVC_DEVICE_CUDA)
		r->device = tensor->device;
	return tensor;
}

/* An output that may also be True: 'input' itself, in place. */
static const kvc_tensor *output_argument(struct reader *r, const kvc_tensor *input)
{
	if (!r->failed && r->args[r->next].type_index == kTVMFFIBool && r->args[r->next].v_int64) {
		r->next++;
		return input;
	}
	return tensor_argument(r);
}

static int64_t int_argument(struct reader *r)
{
	const TVMFFIAny *arg = next_argument(r);

	if (!arg)
		return 0;
	if (arg->type_index != kTVMFFIInt && arg->type_index != kTVMFFIBool)
		wrong_type(r, "an int");
	return arg->v_int64;
}

static int32_t int32_argument(struct reader *r)
{
	int64_t value = int_argument(r);

	if (value != (int32_t)value)
		wrong_type(r, "an int of 32 bits");
	return (int32_t)value;
}

static double float_argument(struct reader *r)
{
	const TVMFFIAny *arg = next_argument(r);

	if (!arg)
		return 0;
	if (arg->type_index == kTVMFFIInt)
		return (double)arg->v_int64;
	if (arg->type_index != kTVMFFIFloat)
		wrong_type(r, "a float");
	return arg->v_float64;
}

static void *pointer_argument(struct reader *r)
{
	const TVMFFIAny *arg = next_argument(r);

	if (!arg || arg->type_index == kTVMFFINone)
		return NULL;
	if (arg->type_index != kTVMFFIInt && arg->type_index != kTVMFFIOpaquePtr)
		wrong_type(r, "an address or None");
	return arg->v_ptr;
}

/* That of the caller's framework on the device of the tensors read so far. */
static void *current_stream(const struct reader *r)
{
	if (r->device.device_type != KVC_DEVICE_CUDA || !TVMFFIEnvGetStream)
		return NULL;
	return TVMFFIEnvGetStream(r->device.device_type, r->device.device_id);
}

static void *stream_argument(struct reader *r)
{
	if (!r->failed && r->args[r->next].type_index == kTVMFFINone) {
		r->next++;
		return current_stream(r);
	}
	return pointer_argument(r);
}

/* What an entry point returns. */
static int finish(kvc_status status)
{
	const kvc_error *error;
	const kvc_catalog_entry *entry;

	if (status == KVC_OK)
		return 0;
	error = kvc_last_error();
	entry = kvc_catalog_find(error->slug);
	return raise_error(entry ? entry->error_class : "RuntimeError", error->message);
}

/* Opens an entry point: READ's arguments follow in the order of the function's. */
#define FFI_READ(name, expected)                                                                   \
	struct reader r = reader_over(name, args, num_args, expected);                             \
	(void)self;                                                                                \
	result->type_index = kTVMFFINone;                                                          \
	result->v_int64 = 0

/* Each argument costs its caller some 25 ns, so those from n_valid to report may be left out together. */
enum { ROPE_POOL_ALL = 25, ROPE_POOL_FEW = 14 };

FFI_ENTRY(rope_pool_fused)
{
	kvc_rope_pool_args a = KVC_ROPE_POOL_ARGS_INIT;
	void *stream;
	FFI_READ("rope_pool_fused", num_args == ROPE_POOL_FEW ? ROPE_POOL_FEW : ROPE_POOL_ALL);

	a.q = tensor_argument(&r);
	a.k = tensor_argument(&r);
	a.v = tensor_argument(&r);
	a.positions = tensor_argument(&r);
	a.slots = tensor_argument(&r);
	a.k_pool = tensor_argument(&r);
	a.v_pool = tensor_argument(&r);
	a.q_out = output_argument(&r, a.q);
	a.k_out = output_argument(&r, a.k);
	a.rope = (const kvc_rope *)pointer_argument(&r);
	a.head_dim = int_argument(&r);
	a.num_qo_heads = int_argument(&r);
	a.num_kv_heads = int_argument(&r);
	if (num_args == ROPE_POOL_ALL) {
		a.n_valid = int_argument(&r);
		a.rotary_offset = int_argument(&r);
		a.q_rotary_offset = int_argument(&r);
		a.reserved_slot = int_argument(&r);
		a.check_duplicates = int32_argument(&r);
		a.check_finite = int32_argument(&r);
		a.k_scale = (float)float_argument(&r);
		a.v_scale = (float)float_argument(&r);
		a.scratch = tensor_argument(&r);
		a.stamp = (const kvc_stamp *)pointer_argument(&r);
		a.report = (kvc_report *)pointer_argument(&r);
	}
	stream = stream_argument(&r);
	return r.failed ? -1 : finish(kvc_rope_pool_fused(&a, stream));
}

FFI_ENTRY(scatter_req_token_ids)
{
	kvc_scatter_args a = KVC_SCATTER_ARGS_INIT;
	void *stream;
	FFI_READ("scatter_req_token_ids", 9);

	a.flat_in = tensor_argument(&r);
	a.offsets = tensor_argument(&r);
	a.req_pool_indices = tensor_argument(&r);
	a.pool_out = tensor_argument(&r);
	a.rules = int32_argument(&r);
	a.allow_placeholder = int32_argument(&r);
	a.narrow = int32_argument(&r);
	a.report = (kvc_report *)pointer_argument(&r);
	stream = stream_argument(&r);
	return r.failed ? -1 : finish(kvc_scatter_req_token_ids(&a, stream));
}

FFI_ENTRY(plan)
{
	kvc_plan_args a = KVC_PLAN_ARGS_INIT;
	kvc_plan *out;
	void *stream;
	FFI_READ("plan", 13);

	out = (kvc_plan *)pointer_argument(&r);
	a.requests = (const kvc_requests *)pointer_argument(&r);
	a.req_to_token = tensor_argument(&r);
	a.expected_tokens = tensor_argument(&r);
	a.valid_lens = tensor_argument(&r);
	a.token_offset = int_argument(&r);
	a.window = int_argument(&r);
	a.full_to_swa_index_mapping = tensor_argument(&r);
	a.exclude = tensor_argument(&r);
	a.rotation = (int64_t *)pointer_argument(&r);
	a.rules = int32_argument(&r);
	a.report = (kvc_report *)pointer_argument(&r);
	stream = stream_argument(&r);
	return r.failed ? -1 : finish(kvc_canary_plan(out, &a, stream));
}

FFI_ENTRY(check_plan)
{
	const kvc_plan *plan;
	const kvc_group *group;
	const kvc_tensor *mapping, *scratch;
	const kvc_ring *ring;
	void *stream;
	FFI_READ("check_plan", 6);

	plan = (const kvc_plan *)pointer_argument(&r);
	group = (const kvc_group *)pointer_argument(&r);
	mapping = tensor_argument(&r);
	scratch = tensor_argument(&r);
	ring = (const kvc_ring *)pointer_argument(&r);
	stream = stream_argument(&r);
	if (r.failed)
		return -1;
	return finish(kvc_canary_check_plan(plan, group, mapping, scratch, ring, stream));
}

FFI_ENTRY(write)
{
	kvc_write_args a = KVC_WRITE_ARGS_INIT;
	void *stream;
	FFI_READ("write", 15);

	a.group = (const kvc_group *)pointer_argument(&r);
	a.plan = (const kvc_plan *)pointer_argument(&r);
	a.requests = (const kvc_requests *)pointer_argument(&r);
	a.tokens = tensor_argument(&r);
	a.positions = tensor_argument(&r);
	a.slots = tensor_argument(&r);
	a.expected_tokens = tensor_argument(&r);
	a.expected_positions = tensor_argument(&r);
	a.check_steps = (const int32_t *)pointer_argument(&r);
	a.step = (const int64_t *)pointer_argument(&r);
	a.launch_tag = int_argument(&r);
	a.scratch = tensor_argument(&r);
	a.ring = (const kvc_ring *)pointer_argument(&r);
	a.rules = int32_argument(&r);
	stream = stream_argument(&r);
	return r.failed ? -1 : finish(kvc_canary_write(&a, stream));
}

FFI_ENTRY(verify)
{
	kvc_verify_args a = KVC_VERIFY_ARGS_INIT;
	void *stream;
	FFI_READ("verify", 11);

	a.group = (const kvc_group *)pointer_argument(&r);
	a.plan = (const kvc_plan *)pointer_argument(&r);
	a.requests = (const kvc_requests *)pointer_argument(&r);
	a.check_bytes = int32_argument(&r);
	a.check_tokens = int32_argument(&r);
	a.check_finite = int32_argument(&r);
	a.rules = int32_argument(&r);
	a.valid_prefix = tensor_argument(&r);
	a.launch_tag = int_argument(&r);
	a.ring = (const kvc_ring *)pointer_argument(&r);
	stream = stream_argument(&r);
	return r.failed ? -1 : finish(kvc_canary_verify(&a, stream));
}

FFI_ENTRY(void)
{
	const kvc_group *group;
	const kvc_tensor *slots;
	void *stream;
	FFI_READ("void", 3);

	group = (const kvc_group *)pointer_argument(&r);
	slots = tensor_argument(&r);
	stream = stream_argument(&r);
	return r.failed ? -1 : finish(kvc_canary_void(group, slots, stream));
}

FFI_ENTRY(copy)
{
	const kvc_group *group;
	const kvc_tensor *from, *to, *scratch;
	void *stream;
	FFI_READ("copy", 5);

	group = (const kvc_group *)pointer_argument(&r);
	from = tensor_argument(&r);
	to = tensor_argument(&r);
	scratch = tensor_argument(&r);
	stream = stream_argument(&r);
	return r.failed ? -1 : finish(kvc_canary_copy(group, from, to, scratch, stream));
}

FFI_ENTRY(fingerprint)
{
	uint64_t *out;
	const kvc_group *group;
	const kvc_tensor *slots;
	void *stream;
	FFI_READ("fingerprint", 4);

	out = (uint64_t *)pointer_argument(&r);
	group = (const kvc_group *)pointer_argument(&r);
	slots = tensor_argument(&r);
	stream = stream_argument(&r);
	return r.failed ? -1 : finish(kvc_fingerprint(out, group, slots, stream));
}

FFI_ENTRY(scan_finite)
{
	kvc_finite_scan *out;
	const kvc_group *group;
	const kvc_tensor *slots;
	void *stream;
	FFI_READ("scan_finite", 4);

	out = (kvc_finite_scan *)pointer_argument(&r);
	group = (const kvc_group *)pointer_argument(&r);
	slots = tensor_argument(&r);
	stream = stream_argument(&r);
	return r.failed ? -1 : finish(kvc_canary_scan_finite(out, group, slots, stream));
}

/* ---- SGLang's interface: its structures come field by field ---- */

static kvc_sglang_verify_plan verify_plan_argument(struct reader *r)
{
	kvc_sglang_verify_plan plan = KVC_SGLANG_VERIFY_PLAN_INIT;

	plan.verify_slot_indices = tensor_argument(r);
	plan.verify_expected_tokens = tensor_argument(r);
	plan.verify_expected_positions = tensor_argument(r);
	plan.verify_prev_slot_indices = tensor_argument(r);
	plan.verify_num_valid = tensor_argument(r);
	plan.enable = tensor_argument(r);
	return plan;
}

static kvc_sglang_write_plan write_plan_argument(struct reader *r)
{
	kvc_sglang_write_plan plan = KVC_SGLANG_WRITE_PLAN_INIT;

	plan.write_offsets = tensor_argument(r);
	plan.write_seed_slot_indices = tensor_argument(r);
	plan.write_num_valid_reqs = tensor_argument(r);
	return plan;
}

/* The context, then KVC_SGLANG_SOURCES_MAX sources of four fields each, the places not in use empty. */
static kvc_sglang_context context_argument(
        struct reader *r, kvc_sglang_source sources[KVC_SGLANG_SOURCES_MAX])
{
	kvc_sglang_context context = KVC_SGLANG_CONTEXT_INIT;

	context.canary_buf = tensor_argument(r);
	context.kernel_kind = int_argument(r);
	context.violation_ring = tensor_argument(r);
	context.violation_write_index = tensor_argument(r);
	context.slot_run_counter = tensor_argument(r);
	context.kernel_run_counter = tensor_argument(r);
	context.real_kv_source_count = int_argument(r);
	context.real_kv_hash_mode = int_argument(r);
	context.enable_chain_position_assert = tensor_argument(r);
	context.real_kv_sources = sources;
	for (int i = 0; i < KVC_SGLANG_SOURCES_MAX; i++) {
		sources[i].tensor = tensor_argument(r);
		sources[i].page_size = int_argument(r);
		sources[i].num_bytes_per_token = int_argument(r);
		sources[i].read_bytes = int_argument(r);
	}
	return context;
}

FFI_ENTRY(sglang_plan)
{
	kvc_sglang_plan_args a = KVC_SGLANG_PLAN_ARGS_INIT;
	kvc_sglang_verify_plan verify_plan;
	kvc_sglang_write_plan write_plan;
	void *stream;
	FFI_READ("sglang_plan", 20);

	verify_plan = verify_plan_argument(&r);
	write_plan = write_plan_argument(&r);
	a.verify_plan_out = &verify_plan;
	a.write_plan_out = &write_plan;
	a.req_pool_indices = tensor_argument(&r);
	a.prefix_lens = tensor_argument(&r);
	a.extend_seq_lens = tensor_argument(&r);
	a.req_to_token = tensor_argument(&r);
	a.swa_window_size = int_argument(&r);
	a.full_to_swa_index_mapping = tensor_argument(&r);
	a.verify_capacity = int_argument(&r);
	a.req_to_verify_expected_tokens = tensor_argument(&r);
	a.req_to_verify_expected_tokens_valid_lens = tensor_argument(&r);
	a.kv_token_id_vs_position_offset = int_argument(&r);
	stream = stream_argument(&r);
	return r.failed ? -1 : finish(kvc_sglang_plan(&a, stream));
}

FFI_ENTRY(sglang_verify)
{
	kvc_sglang_verify_args a = KVC_SGLANG_VERIFY_ARGS_INIT;
	kvc_sglang_source sources[KVC_SGLANG_SOURCES_MAX];
	kvc_sglang_context context;
	kvc_sglang_verify_plan plan;
	void *stream;
	FFI_READ("sglang_verify", 33);

	context = context_argument(&r, sources);
	plan = verify_plan_argument(&r);
	a.context = &context;
	a.plan = &plan;
	a.check_verify_expected_token = int_argument(&r);
	stream = stream_argument(&r);
	return r.failed ? -1 : finish(kvc_sglang_verify(&a, stream));
}

FFI_ENTRY(sglang_write)
{
	kvc_sglang_write_args a = KVC_SGLANG_WRITE_ARGS_INIT;
	kvc_sglang_source sources[KVC_SGLANG_SOURCES_MAX];
	kvc_sglang_context context;
	kvc_sglang_write_plan plan;
	void *stream;
	FFI_READ("sglang_write", 35);

	context = context_argument(&r, sources);
	plan = write_plan_argument(&r);
	a.context = &context;
	a.plan = &plan;
	a.input_ids = tensor_argument(&r);
	a.positions = tensor_argument(&r);
	a.out_cache_loc = tensor_argument(&r);
	a.enable_write_input_assert = int_argument(&r);
	a.expected_input_tokens = tensor_argument(&r);
	a.expected_input_positions = tensor_argument(&r);
	stream = stream_argument(&r);
	return r.failed ? -1 : finish(kvc_sglang_write(&a, stream));
}

FFI_ENTRY(sglang_scatter)
{
	const kvc_tensor *flat_in, *offsets, *rows, *pool_out;
	void *stream;
	FFI_READ("sglang_scatter", 5);

	flat_in = tensor_argument(&r);
	offsets = tensor_argument(&r);
	rows = tensor_argument(&r);
	pool_out = tensor_argument(&r);
	stream = stream_argument(&r);
	return r.failed ? -1 : finish(kvc_sglang_scatter(flat_in, offsets, rows, pool_out, stream));
}
#endif
