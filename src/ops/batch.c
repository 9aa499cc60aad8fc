/* Requests and plans as write and verify take them: batch.h says what each function promises. */
#include "ops/batch.h"

#include "cpu/ring.h"
#include "cuda/cuda.h"
#include "ops/arguments.h"
#include "ops/group.h"

kvc_status kvc__batch_take(
        struct kvc__batch *out, const kvc_requests *requests, const kvc_group *group)
{
	kvc_requests taken = KVC_REQUESTS_INIT;
	struct kvc__batch batch = { 0 };

	*out = batch;
	if (!requests)
		return KVC_OK;
	KVC__TAKE(&taken, requests, "requests");
	const struct {
		struct kvc__named named;
		const int64_t **values;
	} fields[] = {
		{ { taken.req_pool_indices, "requests.req_pool_indices" }, &batch.rows },
		{ { taken.prefix_lens, "requests.prefix_lens" }, &batch.prefix_lens },
		{ { taken.namespaces, "requests.namespaces" }, &batch.namespaces },
		{ { taken.verify_chain_in, "requests.verify_chain_in" }, &batch.verify_chain_in },
		{ { taken.write_chain_in, "requests.write_chain_in" }, &batch.write_chain_in },
		{ { taken.chain_end, "requests.chain_end" }, &batch.chain_end },
		{ { taken.owner_request, "requests.owner_request" }, &batch.owner_request },
	};

	KVC__TRY(kvc__check_present(taken.req_pool_indices, "requests.req_pool_indices"));
	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
		const struct kvc__named *named = &fields[i].named;
		if (!named->tensor)
			continue;
		KVC__TRY(kvc__check_vector(named->tensor, named->name, KVC_INT64,
		        i == 0 ? KVC__ANY_LENGTH : batch.count));
		KVC__TRY(kvc__group_check_same_device(group, named, 1));
		batch.count = named->tensor->shape[0];
		*fields[i].values = (const void *)kvc__tensor_data(named->tensor);
	}
	if (batch.chain_end && !batch.prefix_lens)
		return kvc__fail_null_argument(-1, "requests.prefix_lens");
	*out = batch;
	return KVC_OK;
}

kvc_status kvc__batch_take_plan(kvc_plan *out, const kvc_plan *plan, const kvc_group *group)
{
	KVC__TAKE(out, plan, "plan");
	return kvc__group_check_stated(group, out->device, "plan");
}

kvc_status kvc__batch_check_count(const int32_t *count, const char *name, int64_t capacity)
{
	if (capacity < 0)
		return kvc__fail_plan_count_range(-1, name, 0, capacity);
	if (!count)
		return kvc__fail_null_argument(-1, name);
	return KVC_OK;
}

kvc_status kvc__batch_count(
        int64_t *out, const int32_t *count, const char *name, int64_t capacity, int32_t rules)
{
	KVC__TRY(kvc__batch_check_count(count, name, capacity));
	*out = *count;
	if (rules == KVC_RULES_OWN && (*count < 0 || *count > capacity))
		return kvc__fail_plan_count_range(-1, name, *count, capacity);
	if (*out < 0)
		*out = 0;
	if (*out > capacity)
		*out = capacity;
	return KVC_OK;
}

kvc_status kvc__batch_check_pointers(const struct kvc__batch *batch)
{
	const int64_t *const arrays[] = { batch->rows, batch->prefix_lens, batch->namespaces,
		batch->verify_chain_in, batch->write_chain_in, batch->chain_end,
		batch->owner_request };

	for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++)
		KVC__TRY(kvc__cuda_check_pointer(arrays[i], "an array of requests"));
	return KVC_OK;
}

kvc_status kvc__batch_check_ring(const kvc_ring *ring, const kvc_group *group)
{
	int64_t none[1] = { 0 };
	kvc_tensor stand_in = kvc_tensor_make(NULL, KVC_INT64, 1, none);
	struct kvc__named list[] = { { &stand_in, "ring" } };

	if (!ring)
		return KVC_OK;
	KVC__TRY(kvc__ring_check(ring));
	stand_in.device = ring->device;
	return kvc__group_check_same_device(group, list, 1);
}

kvc_status kvc__batch_check_sources(const kvc_group *group, int32_t rules)
{
	if (rules == KVC_RULES_SGLANG && group->source_count > KVC_SGLANG_SOURCES_MAX)
		return kvc__fail_sglang_sources_max(-1, group->source_count);
	return KVC_OK;
}
