/*
 * kvcanary, section 11: the guard, which an engine holds. Part of kvcanary.h, which includes it and
 * says what the words mean.
 */
#include "kvcanary.h" /* before the guard: it includes this file where its turn is */

#ifndef KVCANARY_GUARD_H
#define KVCANARY_GUARD_H

#ifdef __cplusplus
extern "C" {
#endif

/* ---- 11. The guard: what an engine holds --------------------------------------------------- */

/*
 * A guard owns the records, owners, plans and ring, and calls plan, check_plan, verify and write in
 * the right order. An engine does, once:
 *
 *   kvc_guard_create, kvc_guard_attach_group (one per slot numbering), kvc_guard_stamp (per layer)
 *
 * and every step:
 *
 *   kvc_guard_step_begin     before the forward pass: checks what the step reads, stamps what it
 *                            will write
 *   kvc_rope_pool_fused      per layer, with the layer's stamp
 *   kvc_guard_step_end       after the last layer
 *   kvc_guard_poll           whenever it wants the verdict
 *
 * besides kvc_guard_void when slots go to a new owner, kvc_guard_copy when rows move, and
 * kvc_guard_sweep now and then over what lies cached and idle.
 *
 * What a step checks: (a) every slot that a request reads for the first time, that is its reused
 * prefix at admission, what its previous step wrote, and positions whose table entry has changed;
 * (b) of all other slots that the step reads, verify_budget entries in each group, going round from
 * step to step; (c) that no two requests claim one slot with different contents, and that the step
 * writes no slot that another position reads; (d) that what is written has the position that comes
 * next and, where expected tokens say it, the right token. Slots that the step itself writes are
 * left out of (a) and (b) until the next step.
 *
 * A request is known by its row and its id. Requests of one id on two rows are two requests. A
 * prefix that got shorter (preemption, rejected drafts) is followed by itself: nothing to tell.
 * docs/guard.md tells more: what a guard can see and what it cannot, and what it costs;
 * examples/guard_step.c is a whole step of an engine around one.
 */
typedef struct kvc_guard kvc_guard;

/*
 * Start from KVC_GUARD_OPTIONS_INIT.
 *
 *   request_rows     rows of the request table, 1 to 2^31. Row 0 is padding and never checked: give
 *                    no request that row
 *   verify_budget    entries of (b) a step and group; -1 = every read, 0 = first reads only
 *   checks           0 = check nothing, only stamp (a control run)
 *   check_finite     look for NaN and infinity in what is verified, and in the rest of last pages
 *   ring_capacity    violations held until polled, 1 to 2^31; further ones are counted as dropped
 */
typedef struct kvc_guard_options {
	size_t struct_bytes;
	int64_t request_rows;
	int64_t verify_budget;
	int32_t checks;
	int32_t check_finite;
	int64_t ring_capacity;
} kvc_guard_options;

#define KVC_GUARD_OPTIONS_INIT                                                                     \
	{                                                                                          \
		sizeof(kvc_guard_options), 0, 4096, 1, 0, 1024                                     \
	}

/*
 * Make a guard. Allocates.
 *
 *   out  the guard, to be freed with kvc_guard_destroy(); untouched on failure
 *
 * Returns KVC_OK; KVC_E_INVALID_ARGUMENT; KVC_E_CONFIG (a number out of range); KVC_E_NO_MEMORY.
 * Threads: any; afterwards one at a time per guard. What a guard finds does not depend on the
 * number of threads that its operations use.
 */
KVC_API KVC_NODISCARD kvc_status kvc_guard_create(
        kvc_guard **out, const kvc_guard_options *options);

/* Free a guard and all it owns. guard: may be NULL. */
KVC_API void kvc_guard_destroy(kvc_guard *guard);

/*
 * One slot numbering of the engine. Start from KVC_GUARD_GROUP_INIT.
 *
 *   name           for reports, the first 31 bytes are copied; for instance "full"
 *   slot_count     P, 1 to 2^31
 *   sources        copied; their pools stay the caller's
 *   fingerprint, coverage, stamping, reserved_slot   as in kvc_group; stamping begins as CLEAR: an
 *                  engine that does not write through rope_pool_fused must set COMPUTE
 *   window         how many cached tokens a new token sees, itself not counted; 0 = all. A model's
 *                  sliding_window counts the token itself: give sliding_window - 1
 *   mapping        int64 [n] full slot -> slot of this group, for n full slots; its entries are
 *                  read at every step and stay the caller's; or NULL
 *   token_offset   added to a position to find its expected token. The tokens of a step are those
 *                  that are stored, so a draft pool that stores shifted tokens needs a guard of its
 *                  own
 */
typedef struct kvc_guard_group {
	size_t struct_bytes;
	const char *name;
	int64_t slot_count;
	const kvc_source *sources;
	int64_t source_count;
	int32_t fingerprint;
	int32_t coverage;
	int32_t stamping;
	int64_t reserved_slot;
	int64_t window;
	const kvc_tensor *mapping;
	int64_t token_offset;
} kvc_guard_group;

#define KVC_GUARD_GROUP_INIT                                                                       \
	{                                                                                          \
		sizeof(kvc_guard_group), "full", 0, NULL, 0, KVC_FINGERPRINT_XXH3,                 \
		        KVC_COVERAGE_ALL, KVC_STAMP_CLEAR, -1, 0, NULL, 0                          \
	}

/*
 * Register a group; *group_out is its number, 0, 1, ... Allocates 32 bytes a slot for records, 16
 * for owners, 4 for the age of its last check, and 16 a slot of the largest group.
 *
 * Returns KVC_OK; KVC_E_INVALID_ARGUMENT; KVC_E_NO_MEMORY; KVC_E_STATE (a step has begun before:
 * what lies cached would have no records); KVC_E_CONFIG (a number out of range); what
 * kvc_group_check() returns; for mapping KVC_E_SHAPE, KVC_E_DTYPE, KVC_E_STRIDE, KVC_E_DEVICE,
 * KVC_E_NO_CUDA. Nothing is registered on failure.
 */
KVC_API KVC_NODISCARD kvc_status kvc_guard_attach_group(
        kvc_guard *guard, const kvc_guard_group *group, int32_t *group_out);

/*
 * The stamp that rope_pool_fused needs to write one layer of a CLEAR group; stays valid as long as
 * the guard. Returns as kvc_group_stamp(), or KVC_E_CONFIG (no such group).
 */
KVC_API KVC_NODISCARD kvc_status kvc_guard_stamp(
        kvc_stamp *out, const kvc_guard *guard, int32_t group, uint64_t k_id, uint64_t v_id);

/*
 * The group as the operations of sections 8 and 9 take it, for whoever saves or compares records.
 * Its memory stays the guard's. Returns KVC_OK; KVC_E_INVALID_ARGUMENT; KVC_E_CONFIG (no such
 * group).
 */
KVC_API KVC_NODISCARD kvc_status kvc_guard_group_view(
        kvc_group *out, const kvc_guard *guard, int32_t group);

/*
 * One step of the engine. Start from KVC_GUARD_STEP_INIT. Tensors are borrowed until
 * kvc_guard_step_end(); the structs themselves only for the call.
 *
 *   step             the engine's own number, rising: 0 to 2^32 - 2
 *   requests         owner_request (ids >= 0, required) tells requests apart: another id on a row is
 *                    another request, and so is another namespace. verify_chain_in, write_chain_in
 *                    and start must be NULL: the guard keeps them itself. chain_end may be given
 *   req_to_token     int32 [request_rows, C], C the same in each step (another C makes all requests
 *                    new). It must already name the slots that are read
 *   expected_tokens  optional int32 [R, C2], with valid_lens int64 [bs]: what each row should hold,
 *                    from a source independent of the write path
 *   tokens, positions, slots   int64 [T]: what the step writes, request after request; slots in the
 *                    numbering of req_to_token. More than the requests write is padding
 *   expected_input_tokens, expected_input_positions   both or none, int64 [T]: the input check.
 *                    Without them positions must be prefix, prefix + 1, ... and tokens those of
 *                    expected_tokens where it has them. Give them for tree drafts, whose positions
 *                    repeat
 *   valid_prefix     optional output int64 [bs]: how much of each prefix can be trusted
 */
typedef struct kvc_guard_step {
	size_t struct_bytes;
	int64_t step;
	const kvc_requests *requests;
	const kvc_tensor *req_to_token;
	const kvc_tensor *expected_tokens;
	const kvc_tensor *valid_lens;
	const kvc_tensor *tokens;
	const kvc_tensor *positions;
	const kvc_tensor *slots;
	const kvc_tensor *expected_input_tokens;
	const kvc_tensor *expected_input_positions;
	const kvc_tensor *valid_prefix;
} kvc_guard_step;

#define KVC_GUARD_STEP_INIT                                                                        \
	{                                                                                          \
		sizeof(kvc_guard_step), 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,   \
		        NULL                                                                       \
	}

/*
 * Before the forward pass: plan every group, check the plan for double ownership, verify (a) and
 * (b), and in CLEAR groups write the records of what is about to be written. Allocates only when a
 * step is larger than every one before it, and at the first step a copy of req_to_token.
 *
 * Returns KVC_OK, violations included (kvc_guard_poll); else the step has not begun and nothing was
 * stamped:
 *   KVC_E_INVALID_ARGUMENT, KVC_E_NO_MEMORY
 *   KVC_E_STATE          the previous step was not ended, no group is attached, or the step number
 *                        did not rise
 *   KVC_E_CONFIG         a field that must be NULL is not; a negative owner_request; a step number
 *                        out of range; expected_tokens without valid_lens; one of the two input
 *                        arrays alone
 *   KVC_E_SHAPE          req_to_token has another number of rows than the guard
 *   KVC_E_ROW_DUPLICATE  where = the later request of two on one row
 *   KVC_E_SLOT_RANGE     where = token; its slot lies outside a group or a group's mapping. Or the
 *                        mapping itself leads outside the group's records
 *   KVC_E_LENGTH         arrays of the requests, or of the tokens, differ; fewer tokens than written
 *   and what else kvc_canary_plan() returns
 */
KVC_API KVC_NODISCARD kvc_status kvc_guard_step_begin(
        kvc_guard *guard, const kvc_guard_step *step, void *stream);

/*
 * After the last layer: in COMPUTE groups stamp what was written; the step's slots can be verified
 * from now on. Call it also when the forward pass failed half-way: in CLEAR groups slots whose
 * layers are missing then read as damaged, as they should; in COMPUTE groups void them.
 * Returns KVC_OK; KVC_E_STATE (no step has begun); what kvc_canary_write() returns.
 */
KVC_API KVC_NODISCARD kvc_status kvc_guard_step_end(kvc_guard *guard, void *stream);

/*
 * Slots go to a new owner: their records become never stamped, so that a write that gets lost
 * shows. As kvc_canary_void(), besides KVC_E_CONFIG (no such group). 'slots' are of the group's
 * numbering. Between steps.
 */
KVC_API KVC_NODISCARD kvc_status kvc_guard_void(
        kvc_guard *guard, int32_t group, const kvc_tensor *slots, void *stream);

/*
 * Rows moved or were copied: their records follow. As kvc_canary_copy(); the guard brings the
 * scratch and allocates only when the copy is larger than every one before it (KVC_E_NO_MEMORY).
 * Between steps.
 */
KVC_API KVC_NODISCARD kvc_status kvc_guard_copy(kvc_guard *guard, int32_t group,
        const kvc_tensor *from, const kvc_tensor *to, void *stream);

/* One cached slot to sweep: what the engine believes it holds. */
typedef struct kvc_sweep_slot {
	int64_t slot;
	int64_t position;
	int64_t expected_token; /* -1 = not known */
	int64_t prev_slot;      /* -1 at position 0, -3 = not known */
	int64_t name_space;     /* of the sequence, as in kvc_requests; 0 = none */
} kvc_sweep_slot;

/*
 * Writes up to 'capacity' slots into 'out', which comes zeroed, and returns how many; 0 ends the
 * sweep. Called again until then.
 */
typedef int64_t (*kvc_sweep_fn)(void *context, kvc_sweep_slot *out, int64_t capacity);

/* Slots that lie in memory already: kvc_sweep_listed is a kvc_sweep_fn whose context is one. */
typedef struct kvc_sweep_list {
	const kvc_sweep_slot *slots; /* the next one; moved on */
	int64_t count;               /* slots left */
} kvc_sweep_list;

KVC_API int64_t kvc_sweep_listed(void *list, kvc_sweep_slot *out, int64_t capacity);

/*
 * Verify cached, idle slots that the engine lists through 'next', all bytes of the group's
 * coverage. Not inside a step. With checks off it asks for none. *swept_out (may be NULL): slots
 * looked at, also when a later call of 'next' made the sweep fail.
 * Returns KVC_OK, violations included; KVC_E_STATE (a step is open); KVC_E_CONFIG (no such group);
 * KVC_E_INVALID_ARGUMENT (NULL; a callback that returns less than 0 or more than its capacity).
 */
KVC_API KVC_NODISCARD kvc_status kvc_guard_sweep(kvc_guard *guard, int32_t group, kvc_sweep_fn next,
        void *context, int64_t *swept_out, void *stream);

/* What most likely happened. */
enum {
	KVC_CAUSE_UNKNOWN = 0,
	KVC_CAUSE_BYTES_DAMAGED = 1, /* record sound, bytes not: bit flip, raw write, lost write */
	KVC_CAUSE_OVERWRITTEN = 2,   /* another request stamped the slot while the victim used it */
	KVC_CAUSE_WRONG_SLOT = 3,    /* table or prefix points at a row made for somebody else */
	KVC_CAUSE_NEVER_WRITTEN = 4, /* the slot has no record: lost write or a page too many */
	KVC_CAUSE_WRONG_POSITION = 5, /* written at a position that it does not have */
	KVC_CAUSE_WRONG_TOKEN = 6,    /* another token was computed than the request holds */
	KVC_CAUSE_NONFINITE = 7,      /* NaN or infinity */
	KVC_CAUSE_OUT_OF_RANGE = 8,   /* slot outside the pool, or the reserved one */
	KVC_CAUSE_ALIASED = 9         /* two live requests own one slot */
};

/*
 * A violation with what the guard knows around it.
 *
 *   step              when it was found; in a sweep the last step
 *   victim_request    who reads or writes the slot; -1 in a sweep
 *   victim_position   at which position, -1 if not known
 *   culprit_request   the other request that has to do with it, else -1: who stamped the slot last,
 *                     or of an aliased slot the other owner. -1 where the cause blames nobody
 *                     (bytes_damaged, never_written, nonfinite, out_of_range, wrong input); who
 *                     stamped the slot last is always in violation.owner_request
 *   culprit_step      when, else -1
 *   slug              catalogue entry that explains it; static
 *   group, group_name number and name of the group; the name lives as long as the guard
 *   nonfinite_source_id, nonfinite_head, nonfinite_dim   with the reason 'nonfinite' where the first
 *                     such value stands, else -1
 *
 * 'violation' names slots in the group's numbering; request_row is that of the victim. A violation
 * of the mapping (two full slots on one window slot) names the full slot and no victim.
 */
typedef struct kvc_finding {
	kvc_violation violation;
	int64_t step;
	int64_t victim_request;
	int64_t victim_position;
	int64_t culprit_request;
	int64_t culprit_step;
	int32_t group;
	int32_t cause; /* KVC_CAUSE_* */
	const char *slug;
	const char *group_name;
	int64_t nonfinite_source_id;
	int64_t nonfinite_head;
	int64_t nonfinite_dim;
} kvc_finding;

/*
 * Take the next findings, in order, also inside a step: those of step_begin are there before the
 * forward pass.
 *
 *   out, capacity  room for the findings; out may be NULL if capacity is 0
 *
 * Returns KVC_OK with *count_out of them (0 = nothing new); KVC_E_INVALID_ARGUMENT (NULL, a negative
 * capacity).
 */
KVC_API KVC_NODISCARD kvc_status kvc_guard_poll(
        kvc_guard *guard, kvc_finding *out, int64_t capacity, int64_t *count_out, void *stream);

/* The name of a cause, for instance "bytes_damaged"; "unknown" for any other number. */
KVC_API const char *kvc_cause_name(int32_t cause);

/*
 * A finding as text: the violation's stable first line, then where, who stamped it last, the likely
 * cause, what to do and the slug to explain, each on a line of its own that begins with two spaces.
 * As kvc_violation_text(): returns the whole length, out may be NULL and 0. finding NULL: "" and 0.
 * Threads: any.
 */
KVC_API size_t kvc_finding_text(char *out, size_t out_bytes, const kvc_finding *finding);

/* What a guard has done so far, over all groups. Set struct_bytes before the call. A slot counts as
 * often as it was looked at. */
typedef struct kvc_guard_statistics {
	size_t struct_bytes;
	int64_t steps;
	int64_t sources; /* strips of KV bytes covered; those of coverage NONE are not */
	int64_t slots_stamped;
	int64_t slots_verified; /* first_read, rotated and swept together */
	int64_t slots_first_read;
	int64_t slots_rotated; /* within verify_budget, or because it is -1 */
	int64_t slots_swept;
	int64_t slots_left_out; /* reads that no budget was left for */
	int64_t slots_excluded; /* reads of slots that the same step wrote */
	int64_t bytes_verified;
	int64_t chain_unchecked;
	int64_t violations;
	int64_t violations_dropped;     /* the ring was full */
	int64_t oldest_unchecked_steps; /* age of the stamped slot longest without a check */
	int64_t oldest_unchecked_slot;  /* -1 = all were stamped or checked in the last step */
	int32_t oldest_unchecked_group; /* -1 = as above */
	size_t memory_bytes;            /* what the guard allocated */
	/* With check_finite: NaN and infinities in the unwritten rest of the last pages of the last
	 * step's requests. No violation, but masked lanes of attention let them through. */
	int64_t stale_nonfinite;
	int64_t stale_nonfinite_slot; /* the first such slot, -1 = none */
} kvc_guard_statistics;

/*
 * Fill *out. Looks at every slot for the oldest unchecked one: call it now and then, not each step.
 * Returns KVC_OK; KVC_E_INVALID_ARGUMENT.
 */
KVC_API KVC_NODISCARD kvc_status kvc_guard_stats(const kvc_guard *guard, kvc_guard_statistics *out);

#ifdef __cplusplus
}
#endif

#endif /* KVCANARY_GUARD_H */
