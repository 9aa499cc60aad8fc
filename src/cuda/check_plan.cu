// kvc_canary_check_plan() on the device: the violations of src/cpu/check_plan_portable.c, rows in any
// order. Three launches: every claim marks its slot, the lowest one of its kind with the largest mark;
// every claim is compared with the lowest of each kind; the marks are wiped off. The same three for the
// mapping before. A slot outside the records cannot be marked and is reported instead.
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

// ---- marks ----

// As in cpu/check_plan_portable.c: the claims that later ones are compared with, the first of each kind.
enum { CLAIM_ANY, CLAIM_WITH_TOKEN, CLAIM_LINKED, CLAIM_LINKED_ALONE, CLAIM_KINDS };

static __device__ __forceinline__ bool is_of_kind(const kvc__check_plan_params &p, int64_t i, int kind)
{
	bool has_token = p.plan.verify_expected_tokens[i] != -1;
	bool is_linked = !prev_is_open(p, p.plan.verify_prev_slot_indices[i]);
	switch (kind) {
	case CLAIM_ANY:
		return true;
	case CLAIM_WITH_TOKEN:
		return has_token;
	case CLAIM_LINKED:
		return has_token && is_linked;
	default:
		return !has_token && is_linked;
	}
}

// Entries are numbered by int32, so half a word has room for a mark: UINT32_MAX minus the number.
static __device__ __forceinline__ uint32_t *mark_of(
        const kvc__check_plan_params &p, int64_t slot, int kind)
{
	return (uint32_t *)(p.scratch[kind / 2] + slot) + kind % 2;
}

static __device__ __forceinline__ void mark_entry(const kvc__check_plan_params &p, int64_t i)
{
	int64_t slot = p.plan.verify_slot_indices[i];
	for (int kind = 0; claim_of(p, slot) == CLAIMED && kind < CLAIM_KINDS; kind++)
		if (is_of_kind(p, i, kind))
			atomicMax(mark_of(p, slot, kind), UINT32_MAX - (uint32_t)i);
}

static __device__ __forceinline__ void mark_full(const kvc__check_plan_params &p, int64_t full)
{
	if (full_claim_of(p, full) == CLAIMED)
		atomicMax((unsigned long long *)&p.scratch[1][p.mapping[full]],
		        (unsigned long long)(INT64_MAX - full));
}

// ---- verdicts ----

// Does entry i contradict an earlier claim? Scratch that was not zero may name anything.
static __device__ __forceinline__ bool is_alias(const kvc__check_plan_params &p, int64_t i)
{
	int64_t slot = p.plan.verify_slot_indices[i];
	bool found = false;
	for (int kind = 0; kind < CLAIM_KINDS; kind++) {
		uint32_t mark = *mark_of(p, slot, kind);
		int64_t first = UINT32_MAX - mark;
		if (KVC__MOVES_ONLY)
			kvc__keep(mark);
		else if (mark != 0 && first < i && !is_sound(p, first, i))
			found = true;
	}
	return found;
}

static __device__ void judge_entry(const kvc__check_plan_params &p, int64_t i)
{
	int64_t slot = p.plan.verify_slot_indices[i];
	int claim = claim_of(p, slot);
	kvc_violation row;
	uint64_t chain;
	if (claim == NOBODYS || (claim == CLAIMED && !is_alias(p, i)))
		return;
	if (claim == OUTSIDE) {
		row = bare_row(p, slot);
		row.reasons = KVC_REASON_SLOT_RANGE;
	} else {
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
		int64_t rival = INT64_MAX - p.scratch[1][p.mapping[full]];
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

static __device__ __forceinline__ int64_t claim_count(const kvc__check_plan_params &p)
{
	return p.on_mapping ? p.full_count : entry_count(p);
}

KVC__KERNEL void kvc_check_plan_mark(const __grid_constant__ kvc__check_plan_params p)
{
	kvc__wait_for_previous();
	kvc__release_next();
	int64_t count = claim_count(p);
	for (int64_t i = first_of_thread(); i < count; i += threads_of_grid())
		if (p.on_mapping)
			mark_full(p, i);
		else
			mark_entry(p, i);
	if (first_of_thread() == 0 && !p.on_mapping) {
		kvc__cuda_tally tally = { 0, 0, 0, 0, 0 };
		kvc__ring_count(p.ring, tally, 1);
	}
}

KVC__KERNEL void kvc_check_plan_judge(const __grid_constant__ kvc__check_plan_params p)
{
	kvc__wait_for_previous();
	kvc__release_next();
	int64_t count = claim_count(p);
	for (int64_t i = first_of_thread(); i < count; i += threads_of_grid())
		if (p.on_mapping)
			judge_full(p, i);
		else
			judge_entry(p, i);
}

KVC__KERNEL void kvc_check_plan_wipe(const __grid_constant__ kvc__check_plan_params p)
{
	kvc__wait_for_previous();
	kvc__release_next();
	int64_t count = claim_count(p);
	for (int64_t i = first_of_thread(); i < count; i += threads_of_grid()) {
		int64_t slot = p.on_mapping ? p.mapping[i] : p.plan.verify_slot_indices[i];
		if ((p.on_mapping ? full_claim_of(p, i) : claim_of(p, slot)) != CLAIMED)
			continue;
		p.scratch[1][slot] = 0;
		if (!p.on_mapping)
			p.scratch[0][slot] = 0;
	}
}
