// kvc_canary_check_plan() on the device: the violations of src/cpu/check_plan_portable.c, rows in any
// order. Three launches: every claim marks its slot, the lowest one with the largest mark; every
// claim is compared with the lowest; the marks are wiped off. A slot outside the records cannot be
// marked and is reported instead.
#include "cpu/hash.h"
#include "cuda/check_plan_params.h"
#include "cuda/ring.cuh"

// What the CPU's sections call check: entry i of the plan, or full slot i of the mapping.
enum { NOBODYS, CLAIMED, OUTSIDE };

static __device__ __forceinline__ int claim_of(const kvc__check_plan_params &p, int64_t slot)
{
	if (KVC__MOVES_ONLY)
		return CLAIMED;
	if (slot < 0 || slot == p.reserved_slot)
		return NOBODYS;
	return slot < p.record_count ? CLAIMED : OUTSIDE;
}

static __device__ __forceinline__ int64_t entry_count(const kvc__check_plan_params &p)
{
	int64_t count = *p.plan.enable ? *p.plan.verify_num_valid : 0;
	return count < 0 ? 0 : count > p.plan.verify_capacity ? p.plan.verify_capacity : count;
}

// Full slot 0 and window slot 0 are dummies.
static __device__ __forceinline__ int full_claim_of(const kvc__check_plan_params &p, int64_t full)
{
	return full > 0 && p.mapping[full] > 0 ? claim_of(p, p.mapping[full]) : NOBODYS;
}

static __device__ __forceinline__ kvc_record record_of(
        const kvc__check_plan_params &p, int64_t slot)
{
	return *(const kvc_record *)(p.records + slot * p.record_stride);
}

// ---- what is sound ----

static __device__ __forceinline__ bool implied_chain(
        const kvc__check_plan_params &p, int64_t prev, uint64_t *chain)
{
	if (prev == -1) {
		*chain = kvc__chain_start(0);
		return true;
	}
	if (claim_of(p, prev) != CLAIMED)
		return false;
	kvc_record record = record_of(p, prev);
	*chain = kvc__chain_next(record.prev_hash, record.token, record.position);
	return true;
}

static __device__ __forceinline__ bool prev_is_open(const kvc__check_plan_params &p, int64_t prev)
{
	return prev < -1 || (prev >= 0 && prev == p.reserved_slot);
}

// May entries a and b, on one slot, both be right?
static __device__ bool is_sound(const kvc__check_plan_params &p, int64_t a, int64_t b)
{
	int64_t prev_a = p.plan.verify_prev_slot_indices[a];
	int64_t prev_b = p.plan.verify_prev_slot_indices[b];
	int64_t token_a = p.plan.verify_expected_tokens[a];
	int64_t token_b = p.plan.verify_expected_tokens[b];
	bool tokens_known = token_a != -1 && token_b != -1;
	uint64_t chain_a, chain_b;
	if (p.plan.verify_expected_positions[a] != p.plan.verify_expected_positions[b])
		return false;
	if (tokens_known && token_a != token_b)
		return false;
	if (prev_a == prev_b || prev_is_open(p, prev_a) || prev_is_open(p, prev_b))
		return true;
	return tokens_known && implied_chain(p, prev_a, &chain_a) &&
	       implied_chain(p, prev_b, &chain_b) && chain_a == chain_b;
}

// ---- rows ----

static __device__ kvc_violation bare_row(const kvc__check_plan_params &p, int64_t slot)
{
	kvc_violation row = {};
	row.launch_tag = KVC_TAG_STEP_READ;
	row.slot = slot;
	row.expected_token = row.expected_position = -1;
	row.request_row = row.owner_request = row.owner_step = -1;
	row.source_id = p.source_id;
	return row;
}

// With what the record of 'slot' holds, and who stamped it.
static __device__ kvc_violation alias_row(const kvc__check_plan_params &p, int64_t slot)
{
	kvc_violation row = bare_row(p, slot);
	kvc_record record = record_of(p, slot);
	row.position = record.position;
	row.stored_token = record.token;
	row.stored_chain = row.expected_aux = record.prev_hash;
	row.stored_fingerprint = row.expected_fingerprint = record.fingerprint;
	row.reasons = KVC_REASON_SLOT_ALIASED;
	if (p.owners && p.owners[slot].request != -1) {
		row.owner_request = p.owners[slot].request;
		row.owner_step = p.owners[slot].step;
	}
	return row;
}

static __device__ void judge_entry(const kvc__check_plan_params &p, int64_t i)
{
	int64_t slot = p.plan.verify_slot_indices[i];
	int claim = claim_of(p, slot);
	kvc_violation row;
	if (claim == NOBODYS)
		return;
	if (claim == OUTSIDE) {
		row = bare_row(p, slot);
		row.reasons = KVC_REASON_SLOT_RANGE;
	} else {
		int64_t first = INT64_MAX - p.first_entry[slot];
		uint64_t chain;
		if (KVC__MOVES_ONLY) {
			kvc__keep((uint64_t)first);
			return;
		}
		// Scratch that was not zero may name anything.
		if (first < 0 || first >= i || is_sound(p, first, i))
			return;
		row = alias_row(p, slot);
		if (implied_chain(p, p.plan.verify_prev_slot_indices[i], &chain))
			row.expected_aux = chain;
	}
	row.expected_token = p.plan.verify_expected_tokens[i];
	row.expected_position = p.plan.verify_expected_positions[i];
	kvc__ring_put(p.ring, row);
}

// The record is the window slot's; the slot named is the full one, expected_aux its rival, or the
// window slot that does not exist.
static __device__ void judge_full(const kvc__check_plan_params &p, int64_t full)
{
	int claim = full_claim_of(p, full);
	kvc_violation row;
	if (claim == NOBODYS)
		return;
	if (claim == OUTSIDE) {
		row = bare_row(p, full);
		row.reasons = KVC_REASON_SLOT_RANGE;
		row.expected_aux = (uint64_t)p.mapping[full];
	} else {
		int64_t rival = INT64_MAX - p.first_full[p.mapping[full]];
		if (rival < 0 || rival >= full)
			return;
		row = alias_row(p, p.mapping[full]);
		row.slot = full;
		row.expected_aux = (uint64_t)rival;
	}
	kvc__ring_put(p.ring, row);
}

// ---- the launches ----

static __device__ __forceinline__ int64_t first_of_thread()
{
	return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

static __device__ __forceinline__ int64_t threads_of_grid()
{
	return (int64_t)gridDim.x * blockDim.x;
}

static __device__ __forceinline__ void mark(int64_t *word, int64_t number)
{
	atomicMax((unsigned long long *)word, (unsigned long long)(INT64_MAX - number));
}

KVC__KERNEL void kvc_check_plan_mark(const __grid_constant__ kvc__check_plan_params p)
{
	kvc__wait_for_previous();
	kvc__release_next();
	int64_t count = entry_count(p);
	for (int64_t i = first_of_thread(); i < count; i += threads_of_grid())
		if (claim_of(p, p.plan.verify_slot_indices[i]) == CLAIMED)
			mark(&p.first_entry[p.plan.verify_slot_indices[i]], i);
	for (int64_t full = first_of_thread(); p.mapping && full < p.full_count;
	        full += threads_of_grid())
		if (full_claim_of(p, full) == CLAIMED)
			mark(&p.first_full[p.mapping[full]], full);
	if (first_of_thread() == 0) {
		kvc__cuda_tally tally = { 0, 0, 0, 0, 0 };
		kvc__ring_count(p.ring, tally, 1);
	}
}

KVC__KERNEL void kvc_check_plan_judge(const __grid_constant__ kvc__check_plan_params p)
{
	kvc__wait_for_previous();
	kvc__release_next();
	int64_t count = entry_count(p);
	for (int64_t i = first_of_thread(); i < count; i += threads_of_grid())
		judge_entry(p, i);
	for (int64_t full = first_of_thread(); p.mapping && full < p.full_count;
	        full += threads_of_grid())
		judge_full(p, full);
}

KVC__KERNEL void kvc_check_plan_wipe(const __grid_constant__ kvc__check_plan_params p)
{
	kvc__wait_for_previous();
	kvc__release_next();
	int64_t count = entry_count(p);
	for (int64_t i = first_of_thread(); i < count; i += threads_of_grid())
		if (claim_of(p, p.plan.verify_slot_indices[i]) == CLAIMED)
			p.first_entry[p.plan.verify_slot_indices[i]] = 0;
	for (int64_t full = first_of_thread(); p.mapping && full < p.full_count;
	        full += threads_of_grid())
		if (full_claim_of(p, full) == CLAIMED)
			p.first_full[p.mapping[full]] = 0;
}
