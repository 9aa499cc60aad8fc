/*
 * kvcanary, sections 8 to 10: the canary's records, sources and groups; plan, check_plan, write and
 * verify; how violations are read. Part of kvcanary.h, which includes it and says what the words mean.
 */
#include "kvcanary.h" /* before the guard: it includes this file where its turn is */

#ifndef KVCANARY_CANARY_H
#define KVCANARY_CANARY_H

#ifdef __cplusplus
extern "C" {
#endif

/* ---- 8. The canary: records, sources, groups ----------------------------------------------- */

/* Bytes of one record, and its four int64 fields. */
#define KVC_RECORD_BYTES 32
typedef struct kvc_record {
	int64_t token;
	int64_t position;
	uint64_t prev_hash;   /* chain over all that came before this slot */
	uint64_t fingerprint; /* of the KV bytes of the group's sources */
} kvc_record;

/* Who stamped a slot last. */
typedef struct kvc_owner {
	int64_t request; /* the caller's id of the request, -1 = nobody yet */
	uint32_t step;
	uint32_t tag; /* launch tag of the write */
} kvc_owner;

enum {
	KVC_FINGERPRINT_XXH3 = 0,    /* sum over sources; any length; the default */
	KVC_FINGERPRINT_SPLITMIX = 1 /* SGLang's fold; sources in order */
};

enum {
	KVC_STAMP_COMPUTE = 0, /* write hashes what lies in the pool, after the last layer */
	KVC_STAMP_CLEAR = 1    /* write stores 0; rope_pool_fused adds the shares as it writes */
};

/*
 * One strip of real KV bytes behind each slot. Slot x has, for each head h, head_bytes bytes at
 *
 *   base + x / page_size * row_stride_bytes + x % page_size * slot_stride_bytes
 *        + h * head_stride_bytes
 *
 * concatenated; the first read_bytes of that are fingerprinted. head_count 1 is a contiguous slot;
 * other strides describe NHD and HND pages and packed K|V. Layouts that no strides describe give a
 * gather table instead: byte offsets inside a row, int32 [page_size, units], on the sources'
 * device, units * unit_bytes = head_count * head_bytes; slot_stride_bytes and head_stride_bytes are
 * then not read. The bytes are always those of (head, dim) order, so the same K and V fingerprint
 * alike in every layout.
 *
 *   base            first byte of row 0; the live pool, never a copy
 *   row_count       rows (pages); row_count * page_size slots
 *   read_bytes      1 .. head_count * head_bytes
 *   id              2*layer for K, 2*layer+1 for V, 2*layer for an MLA row as a whole, from 2^32
 *                   on for other strips; no two alike in a group
 *   dtype           element type, for the finite check and its texts
 *   gather          NULL, or the table; then unit_bytes is 1, 2, 4, 8 or 16
 */
typedef struct kvc_source {
	const void *base;
	int64_t row_count;
	int64_t row_stride_bytes;
	int64_t page_size;
	int64_t slot_stride_bytes;
	int64_t head_count;
	int64_t head_bytes;
	int64_t head_stride_bytes;
	int64_t read_bytes;
	uint64_t id;
	kvc_dtype dtype;
	int32_t unit_bytes;
	const int32_t *gather;
} kvc_source;

/*
 * The source that a pool tensor [slot_count, heads, dim] is, with the given id.
 * Returns KVC_OK; KVC_E_INVALID_ARGUMENT (NULL), KVC_E_SHAPE (not 3-D), KVC_E_STRIDE (last
 * dimension not contiguous, negative strides), KVC_E_DTYPE (no byte-sized element). Threads: any.
 */
KVC_API KVC_NODISCARD kvc_status kvc_source_from_pool(
        kvc_source *out, const kvc_tensor *pool, uint64_t id);

/*
 * One slot numbering with its records and sources. Start from KVC_GROUP_INIT. All memory belongs to
 * the caller and lies on 'device'.
 *
 *   records              record_count records, record_stride_bytes apart (>= 32, a multiple of 8),
 *                        8-byte aligned; all zero = never stamped
 *   owners               record_count entries, request -1 at first, or NULL
 *   sources              source_count sources in order, or NULL and 0
 *   fingerprint          KVC_FINGERPRINT_*
 *   coverage             KVC_COVERAGE_*
 *   stamping             KVC_STAMP_*; CLEAR needs xxh3 and read_bytes = head_count * head_bytes.
 *                        CLEAR is for engines that write every layer through rope_pool_fused with a
 *                        stamp; whoever writes KV by other kernels, or pages that are no [P,Hkv,D]
 *                        tensor, takes COMPUTE
 *   reserved_slot        the dummy slot of padding tokens, -1 = none
 */
typedef struct kvc_group {
	size_t struct_bytes;
	void *records;
	int64_t record_count;
	int64_t record_stride_bytes;
	kvc_owner *owners;
	const kvc_source *sources;
	int64_t source_count;
	int32_t fingerprint;
	int32_t coverage;
	int32_t stamping;
	int64_t reserved_slot;
	kvc_device device;
} kvc_group;

#define KVC_GROUP_INIT                                                                             \
	{                                                                                          \
		sizeof(kvc_group), NULL, 0, KVC_RECORD_BYTES, NULL, NULL, 0, KVC_FINGERPRINT_XXH3, \
		        KVC_COVERAGE_ALL, KVC_STAMP_COMPUTE, -1,                                   \
		{                                                                                  \
			KVC_DEVICE_CPU, 0                                                          \
		}                                                                                  \
	}

/*
 * Check a group once, when it is registered: everything that the operations rely on. They repeat
 * it, except for the comparison of every source id with every other.
 *
 * Returns KVC_OK, or
 *   KVC_E_INVALID_ARGUMENT  group, records or sources is NULL where entries are promised
 *   KVC_E_CONFIG            a slot that leaves its row; row_count * page_size < record_count;
 *                           two equal ids; unknown fingerprint, coverage or stamping; CLEAR with
 *                           splitmix or with read_bytes short of the slot; a stride or alignment
 *                           that records cannot have
 *   KVC_E_DEVICE, KVC_E_NO_CUDA
 * where = index of the source, -1 if it is none. Threads: any.
 */
KVC_API KVC_NODISCARD kvc_status kvc_group_check(const kvc_group *group);

/*
 * The stamp for rope_pool_fused on one layer of a CLEAR group: 'k_id' and 'v_id' must be sources of
 * the group (v_id is not looked for if the layer has no V: pass k_id).
 * Returns KVC_OK; KVC_E_INVALID_ARGUMENT; KVC_E_CONFIG (not a CLEAR group, no such source).
 */
KVC_API KVC_NODISCARD kvc_status kvc_group_stamp(
        kvc_stamp *out, const kvc_group *group, uint64_t k_id, uint64_t v_id);

/*
 * The chain value before the first token: s(ANCHOR), or s(ANCHOR ^ s(name_space)) if name_space is
 * not 0. A namespace is the caller's identity of all besides the tokens that makes KV differ:
 * adapter, epoch of the weights, hash of an image. s is splitmix64's finaliser.
 * Host values; no errors. Threads: any.
 */
KVC_API uint64_t kvc_chain_start(uint64_t name_space);

/*
 * The chain value after 'count' more tokens at first_position, first_position + 1, ...:
 * chain = mix3(chain, token, position) for each. tokens: host memory, may be NULL if count is 0; a
 * count below 1 returns 'chain'. What a caller that knows the tokens expects of a slot's record,
 * computed without reading any. No errors. Threads: any.
 */
KVC_API uint64_t kvc_chain_extend(
        uint64_t chain, const int64_t *tokens, int64_t first_position, int64_t count);

/*
 * Fingerprints of the slots as their bytes are now.
 *
 *   out    one per slot; a negative slot gives 0
 *   group  sources, fingerprint, coverage; its records may be NULL with record_count 0
 *   slots  int64 [n]
 *
 * Returns KVC_OK; what kvc_group_check() returns; KVC_E_SHAPE, KVC_E_DTYPE, KVC_E_STRIDE for slots;
 * KVC_E_SLOT_RANGE (where = index: the slot lies outside a source), nothing written.
 * Threads: any.
 */
KVC_API KVC_NODISCARD kvc_status kvc_fingerprint(
        uint64_t *out, const kvc_group *group, const kvc_tensor *slots, void *stream);

/*
 * Make records never stamped: a page that is handed to a new owner. Owners stay, so that a later
 * violation can still name who was there before.
 *
 *   slots  int64 [n]; negative ones are skipped
 *
 * Returns KVC_OK, or, with nothing written, what kvc_group_check() returns, KVC_E_SHAPE,
 * KVC_E_DTYPE, KVC_E_STRIDE, KVC_E_SLOT_RANGE (where = index). On CUDA slots outside the records are
 * skipped. Threads: any, on disjoint slots.
 */
KVC_API KVC_NODISCARD kvc_status kvc_canary_void(
        const kvc_group *group, const kvc_tensor *slots, void *stream);

/*
 * Copy records and owners from slots to slots, beside their KV (copy on write, moved rows). All
 * reads come before all writes, so rows may trade places.
 *
 *   from, to  int64 [n]; a pair with a negative entry is skipped
 *   scratch   int64 [n, 6], contents irrelevant before and after; on the group's device
 *
 * Returns KVC_OK, or, with nothing written, what kvc_group_check() returns, KVC_E_SHAPE,
 * KVC_E_DTYPE, KVC_E_STRIDE, KVC_E_OVERLAP (scratch over from or to), KVC_E_LENGTH (from, to and
 * scratch differ), KVC_E_SLOT_RANGE and KVC_E_SLOT_DUPLICATE (two entries of 'to' are equal; where =
 * index). On CUDA pairs with a slot outside the records are skipped, and of two pairs with one
 * destination it holds one or a mix. Threads: any, on disjoint slots.
 */
KVC_API KVC_NODISCARD kvc_status kvc_canary_copy(const kvc_group *group, const kvc_tensor *from,
        const kvc_tensor *to, const kvc_tensor *scratch, void *stream);

/* What kvc_canary_scan_finite() found: -1 in the last four fields if nothing. */
typedef struct kvc_finite_scan {
	int64_t slots_scanned;
	int64_t nonfinite_count; /* elements, over all slots and sources */
	int64_t first_slot;      /* first in order of slots as given, then sources, heads, dims */
	int64_t first_source_id;
	int64_t first_head;
	int64_t first_dim;
} kvc_finite_scan;

/*
 * Look for NaN and infinity in all of read_bytes of the slots, whatever their records say. Sources
 * whose dtype has no such values (integers) are not looked at; float8_e4m3fn has NaN only.
 *
 *   out    overwritten; on the group's device
 *   slots  int64 [n]; negative ones are skipped
 *
 * Returns as kvc_fingerprint(). Threads: any.
 */
KVC_API KVC_NODISCARD kvc_status kvc_canary_scan_finite(
        kvc_finite_scan *out, const kvc_group *group, const kvc_tensor *slots, void *stream);

/* ---- 9. The canary: plan, write, verify ---------------------------------------------------- */

/*
 * The requests of one step. Start from KVC_REQUESTS_INIT. The first three are required, all are
 * int64 [bs]; the others are optional.
 *
 *   req_pool_indices  row of each request in the tables. Row 0 is padding: such a request is not
 *                     checked and writes nothing, whatever its lengths say, so it has no tokens
 *                     among those of a step either
 *   prefix_lens       tokens already in the cache: positions 0 .. prefix-1 are read
 *   extend_seq_lens   tokens written in this step; negative lengths count as 0
 *   namespaces        what kvc_chain_start() takes, the unsigned value in an int64; 0 = none
 *   verify_chain_in   chain before the first entry to verify, 0 = not given
 *   write_chain_in    chain before position 'prefix', 0 = not given: the seed slot is read
 *   chain_end         chain that must stand after position prefix-1, 0 = not given
 *   start             entries to verify begin at max(window start, start)
 *   owner_request     the caller's id of each request, for owners and violations
 */
typedef struct kvc_requests {
	size_t struct_bytes;
	const kvc_tensor *req_pool_indices;
	const kvc_tensor *prefix_lens;
	const kvc_tensor *extend_seq_lens;
	const kvc_tensor *namespaces;
	const kvc_tensor *verify_chain_in;
	const kvc_tensor *write_chain_in;
	const kvc_tensor *chain_end;
	const kvc_tensor *start;
	const kvc_tensor *owner_request;
} kvc_requests;

#define KVC_REQUESTS_INIT                                                                          \
	{                                                                                          \
		sizeof(kvc_requests), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL         \
	}

/*
 * What a step reads and writes, in order. The arrays belong to the caller and lie on 'device';
 * kvc_plan_bind() lays them out in one piece of memory.
 *
 *   verify_capacity             V, entries of the verify_* arrays
 *   verify_slot_indices         slot to look at, -1 = none
 *   verify_expected_tokens      token that must be there, -1 = do not compare
 *   verify_expected_positions   position that must be there
 *   verify_prev_slot_indices    slot before it; -1 chain start, -2 verify_chain_in of the request,
 *                               -3 unknown: the chain is not checked
 *   verify_request              index of the request in the batch; may be NULL
 *   verify_num_valid            [1] entries in use
 *   enable                      [1] 0 = verify does nothing
 *   left_out                    [1] entries that did not fit this time; may be NULL
 *   write_req_capacity          W, requests
 *   write_offsets               [W+1] tokens of request r: write_offsets[r] .. write_offsets[r+1]
 *   write_seed_slot_indices     [W] slot before the first token, -1 = none
 *   write_num_valid_reqs        [1]
 */
typedef struct kvc_plan {
	size_t struct_bytes;
	kvc_device device;
	int64_t verify_capacity;
	int64_t *verify_slot_indices;
	int64_t *verify_expected_tokens;
	int64_t *verify_expected_positions;
	int64_t *verify_prev_slot_indices;
	int32_t *verify_request;
	int32_t *verify_num_valid;
	int32_t *enable;
	int64_t *left_out;
	int64_t write_req_capacity;
	int64_t *write_offsets;
	int64_t *write_seed_slot_indices;
	int32_t *write_num_valid_reqs;
} kvc_plan;

/* Bytes that kvc_plan_bind() needs for these capacities; 0 if a capacity is negative or the
 * result does not fit size_t. */
KVC_API size_t kvc_plan_bytes(int64_t verify_capacity, int64_t write_req_capacity);

/*
 * Lay the arrays of a plan out in 'memory' (kvc_plan_bytes() bytes, 8-byte aligned, on 'device',
 * owned by the caller, contents irrelevant: kvc_canary_plan() fills it).
 * Returns KVC_OK; KVC_E_INVALID_ARGUMENT (NULL); KVC_E_CONFIG (negative capacity, misaligned).
 */
KVC_API KVC_NODISCARD kvc_status kvc_plan_bind(kvc_plan *out, void *memory, kvc_device device,
        int64_t verify_capacity, int64_t write_req_capacity);

/*
 * Arguments of kvc_canary_plan(). Start from KVC_PLAN_ARGS_INIT.
 *
 *   req_to_token      int32 [R, C]: the slot of each (row, position); row stride free
 *   expected_tokens   optional int32 [R, C2]: tokens that each row should hold, from a source
 *                     independent of the write path; needs valid_lens int64 [bs], how many columns
 *                     of its row are filled for each request
 *   token_offset      added to a position to find its expected token (1 for an EAGLE draft pool)
 *   window            sliding window W in tokens, 0 = none: positions max(0, prefix - W) to
 *                     prefix - 1 are read, and nothing before them
 *   full_to_swa_index_mapping   optional int64 [n]: slot of the window group for each full slot;
 *                     negative = none
 *   exclude           optional uint8 bitmap, bit x%8 of byte x/8 = slot x is written in this very
 *                     step and not to be verified
 *   rotation          optional, [1] on the plan's device: which entry comes first when not all fit
 *   rules             KVC_RULES_*
 *   report            optional; counts entries written, and on CUDA what was out of range
 */
typedef struct kvc_plan_args {
	size_t struct_bytes;
	const kvc_requests *requests;
	const kvc_tensor *req_to_token;
	const kvc_tensor *expected_tokens;
	const kvc_tensor *valid_lens;
	int64_t token_offset;
	int64_t window;
	const kvc_tensor *full_to_swa_index_mapping;
	const kvc_tensor *exclude;
	int64_t *rotation;
	int32_t rules;
	kvc_report *report;
} kvc_plan_args;

#define KVC_PLAN_ARGS_INIT                                                                         \
	{                                                                                          \
		sizeof(kvc_plan_args), NULL, NULL, NULL, NULL, 0, 0, NULL, NULL, NULL,             \
		        KVC_RULES_OWN, NULL                                                        \
	}

/*
 * List what the step's requests read (one entry per cached token, request by request, positions
 * ascending, those inside the window only) and where each request's writes go.
 *
 * When more entries than verify_capacity come together, capacity many are emitted, beginning with
 * entry *rotation of the full list and going round; *rotation then moves on by the capacity, so
 * that all are seen in turn, and *left_out says how many were not. enable stays 1. With
 * KVC_RULES_SGLANG instead enable becomes 0 and nothing is emitted.
 * Entries past verify_num_valid and seeds past bs stay as they were; write_offsets past bs are 0.
 *
 * Returns KVC_OK, or, with nothing written,
 *   KVC_E_INVALID_ARGUMENT  a required pointer is NULL, struct_bytes is unknown
 *   KVC_E_SHAPE, KVC_E_DTYPE, KVC_E_STRIDE, KVC_E_DEVICE, KVC_E_NO_CUDA   a tensor does not fit
 *   KVC_E_LENGTH            arrays of requests differ in length; bs > write_req_capacity
 *   KVC_E_CONFIG            window < 0; a window without a mapping with KVC_RULES_SGLANG;
 *                           expected_tokens without valid_lens; an unknown rule
 *   KVC_E_ROW_RANGE         where = request; its row, a column or a mapping index is out of range
 * On CUDA the call only enqueues, one launch and with 'rotation' at most two. An entry or seed whose
 * slot or expected token cannot be read keeps its place with slot -1, as a predecessor it counts as
 * -1. 'report' counts requests by row, column and length (cut so that no sum overflows), and each
 * read outside the mapping, all under the request's index.
 * Threads: any, on different plans.
 */
KVC_API KVC_NODISCARD kvc_status kvc_canary_plan(
        kvc_plan *out, const kvc_plan_args *args, void *stream);

/*
 * Why a slot was reported: bits of kvc_violation.reasons.
 */
enum {
	KVC_REASON_VERIFY_CHAIN_HASH = 1,
	KVC_REASON_VERIFY_POSITION = 2,
	KVC_REASON_VERIFY_REAL_KV_HASH = 4,
	KVC_REASON_WRITE_TOKEN = 8,
	KVC_REASON_WRITE_POSITION = 16,
	KVC_REASON_VERIFY_TOKEN = 32,
	KVC_REASON_NEVER_STAMPED = 64,
	KVC_REASON_NONFINITE = 128,
	KVC_REASON_SLOT_RANGE = 256,
	KVC_REASON_CHAIN_END = 512,
	KVC_REASON_SLOT_ALIASED = 1024
};
#define KVC_REASON_COUNT 11 /* known bits */

/* Who asked for a check or a write. 0 to 11 are SGLang's. */
enum {
	KVC_TAG_HEAD_K_FULL = 0,
	KVC_TAG_HEAD_V_FULL = 1,
	KVC_TAG_TAIL_K_FULL = 2,
	KVC_TAG_TAIL_V_FULL = 3,
	KVC_TAG_SWEEP_K_FULL = 4,
	KVC_TAG_SWEEP_V_FULL = 5,
	KVC_TAG_HEAD_K_SWA = 6,
	KVC_TAG_HEAD_V_SWA = 7,
	KVC_TAG_TAIL_K_SWA = 8,
	KVC_TAG_TAIL_V_SWA = 9,
	KVC_TAG_SWEEP_K_SWA = 10,
	KVC_TAG_SWEEP_V_SWA = 11,
	KVC_TAG_STEP_READ = 32,
	KVC_TAG_STEP_WRITE = 33,
	KVC_TAG_SWEEP = 34
};

/* One mismatch: the 16 columns of a ring row, in order. */
typedef struct kvc_violation {
	int64_t launch_tag;
	int64_t slot;
	int64_t position; /* as stored */
	int64_t stored_token;
	int64_t expected_token; /* -1 = not checked */
	uint64_t stored_chain;
	uint64_t expected_aux; /* expected chain; the expected position for a write reason */
	int64_t reasons;       /* KVC_REASON_* */
	int64_t expected_position;
	uint64_t stored_fingerprint;
	uint64_t expected_fingerprint;
	int64_t request_row;   /* the request's row in the table, -1 = not known */
	int64_t owner_request; /* who stamped the slot last, -1 = not known */
	int64_t owner_step;    /* and when, -1 = not known */
	int64_t source_id;     /* of the group's only source, else -1 */
	int64_t sequence;      /* 1, 2, 3, ... */
} kvc_violation;

/* What the checks did. Calls add to it. It lies on the ring's device. */
typedef struct kvc_counters {
	int64_t violations;  /* found, dropped ones included; the last sequence number */
	int64_t dropped;     /* found while the ring was full */
	int64_t reasons[16]; /* violations with bit i set */
	int64_t kernel_runs; /* calls, disabled ones included */
	int64_t slots_run;   /* verify: entries looked at or skipped; write: records stored */
	int64_t slots_skipped;
	int64_t chain_unchecked;
	int64_t bytes_hashed;
	int64_t left_out; /* entries that a plan did not emit */
} kvc_counters;

/*
 * Where violations go. Start from KVC_RING_INIT. All memory belongs to the caller and is zero before
 * the first call that uses it.
 *
 *   rows         int64 [capacity, columns]
 *   device       where the memory lies: that of the calls that use the ring
 *   columns      16: circular, row (sequence-1) % capacity, column 15 is written last; a violation
 *                is dropped while sequence-1 - *consumed >= capacity
 *                8: SGLang's, filled once, by the int32 counter write_index
 *   consumed     [1] sequence number up to which kvc_ring_poll() has read (16 columns)
 *   write_index  [1] (8 columns)
 *   counters     [1]; required with 16 columns
 *   slot_run_counter, kernel_run_counter   optional [1]: SGLang's own counters, added to as well
 */
typedef struct kvc_ring {
	size_t struct_bytes;
	int64_t *rows;
	int64_t capacity;
	int32_t columns;
	int64_t *consumed;
	int32_t *write_index;
	kvc_counters *counters;
	int64_t *slot_run_counter;
	int64_t *kernel_run_counter;
	kvc_device device;
} kvc_ring;

#define KVC_RING_INIT                                                                              \
	{                                                                                          \
		sizeof(kvc_ring), NULL, 0, 16, NULL, NULL, NULL, NULL, NULL,                       \
		{                                                                                  \
			KVC_DEVICE_CPU, 0                                                          \
		}                                                                                  \
	}

/*
 * Find slots that two requests claim with different contents, before a byte is written.
 *
 * A slot planned twice is sound if the positions are equal and either the predecessor slots are
 * equal (and the expected tokens, where both are given), or both expected tokens are given and
 * equal and the chains that the two predecessors' records imply are equal. Anything else is
 * reported as slot_aliased for the later entry in plan order. A predecessor that nobody knows (-2, -3,
 * the reserved slot) fits any other. With a mapping, two full slots above 0 on one window slot above 0
 * are slot_aliased for the higher full slot.
 *
 *   plan        from kvc_canary_plan()
 *   group       its records are read for the chains
 *   mapping     full_to_swa_index_mapping, int64 [full_count], or NULL
 *   scratch     int64 [2, record_count], all zero before and left zero
 *   ring        where violations go; NULL on the CPU: the first one is the call's error
 *
 * Returns KVC_OK (violations included, if there is a ring), or
 *   KVC_E_SLOT_DUPLICATE    without a ring; where = entry of the plan, or the full slot
 *   KVC_E_SLOT_RANGE        a planned slot or a mapped one lies outside the records
 *   and what kvc_group_check() returns, KVC_E_SHAPE, KVC_E_DTYPE, KVC_E_LENGTH (scratch, mapping),
 *   KVC_E_OVERLAP (scratch over mapping)
 * On CUDA the call only enqueues and needs a ring, whose rows come in any order; a planned or mapped
 * slot outside the records is a row with slot_range, and counts of the plan are clamped.
 * Threads: any, each with its own scratch.
 */
KVC_API KVC_NODISCARD kvc_status kvc_canary_check_plan(const kvc_plan *plan, const kvc_group *group,
        const kvc_tensor *mapping, const kvc_tensor *scratch, const kvc_ring *ring, void *stream);

/*
 * Arguments of kvc_canary_write(). Start from KVC_WRITE_ARGS_INIT.
 *
 *   group        whose records are written
 *   plan         write_offsets, seeds, write_num_valid_reqs
 *   requests     optional: namespaces, write_chain_in, owner_request, req_pool_indices
 *   tokens, positions, slots   int64 [T], in the plan's order
 *   expected_tokens, expected_positions   both or none, int64 [T]: the input check (bits 8, 16)
 *   check_steps  optional, [1]: not 0 = each position must be the previous one + 1 (bit 16)
 *   step         optional, [1]: step number for the owners
 *   launch_tag   KVC_TAG_* for owners and violations
 *   scratch      optional int64 [record_count], all zero before and left zero: a request may start
 *                from a slot that another request of this call writes
 *   ring         optional
 *   rules        KVC_RULES_*
 */
typedef struct kvc_write_args {
	size_t struct_bytes;
	const kvc_group *group;
	const kvc_plan *plan;
	const kvc_requests *requests;
	const kvc_tensor *tokens;
	const kvc_tensor *positions;
	const kvc_tensor *slots;
	const kvc_tensor *expected_tokens;
	const kvc_tensor *expected_positions;
	const int32_t *check_steps;
	const int64_t *step;
	int64_t launch_tag;
	const kvc_tensor *scratch;
	const kvc_ring *ring;
	int32_t rules;
} kvc_write_args;

#define KVC_WRITE_ARGS_INIT                                                                        \
	{                                                                                          \
		sizeof(kvc_write_args), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,      \
		        NULL, KVC_TAG_STEP_WRITE, NULL, NULL, KVC_RULES_OWN                        \
	}

/*
 * Stamp the slots that a step writes. Per request the chain starts from write_chain_in, or from the
 * seed slot's record, or from kvc_chain_start(); each entry with a slot stores (token, position,
 * chain, fingerprint) and moves the chain on. A negative or reserved slot is skipped and does not
 * move it. In a COMPUTE group the fingerprint is of what lies in the pool now: call after the last
 * layer; it cannot see a lost write. In a CLEAR group it is 0: call before the first layer.
 *
 * Returns KVC_OK (violations included), or, with nothing written,
 *   KVC_E_INVALID_ARGUMENT, KVC_E_SHAPE, KVC_E_DTYPE, KVC_E_STRIDE, KVC_E_DEVICE, KVC_E_NO_CUDA
 *   KVC_E_LENGTH      tokens, positions, slots differ in length or are shorter than the plan says;
 *                     counts of the plan out of range; offsets that fall
 *   KVC_E_OVERLAP     scratch shares memory with tokens, positions, slots or what is expected
 *   KVC_E_CONFIG      only one of the expected arrays; an unknown rule; what kvc_group_check() says
 *   KVC_E_SLOT_RANGE  where = token; its slot lies outside the records
 * With KVC_RULES_SGLANG counts are clamped and slots out of range are skipped and counted.
 * Threads: any, on disjoint slots. Result independent of the thread count.
 */
KVC_API KVC_NODISCARD kvc_status kvc_canary_write(const kvc_write_args *args, void *stream);

/*
 * Arguments of kvc_canary_verify(). Start from KVC_VERIFY_ARGS_INIT.
 *
 *   group          records, sources, owners: only read
 *   plan           the verify_* arrays, verify_num_valid, enable
 *   requests       optional: namespaces, verify_chain_in, chain_end (with prefix_lens),
 *                  req_pool_indices, through plan.verify_request
 *   check_bytes    compare fingerprints (1); 0 = chain, position and token only
 *   check_tokens   compare expected tokens (1)
 *   check_finite   look for NaN and infinity in all of read_bytes (0)
 *   valid_prefix   optional int64 [bs]: lowest position with a violation, else prefix_lens[r]
 *   launch_tag     KVC_TAG_* for violations
 *   ring           optional; without it violations only show in valid_prefix
 *   rules          KVC_RULES_*
 */
typedef struct kvc_verify_args {
	size_t struct_bytes;
	const kvc_group *group;
	const kvc_plan *plan;
	const kvc_requests *requests;
	int32_t check_bytes;
	int32_t check_tokens;
	int32_t check_finite;
	int32_t rules;
	const kvc_tensor *valid_prefix;
	int64_t launch_tag;
	const kvc_ring *ring;
} kvc_verify_args;

#define KVC_VERIFY_ARGS_INIT                                                                       \
	{                                                                                          \
		sizeof(kvc_verify_args), NULL, NULL, NULL, 1, 1, 0, KVC_RULES_OWN, NULL,           \
		        KVC_TAG_STEP_READ, NULL                                                    \
	}

/*
 * Compare every planned slot with its record, its predecessor and its bytes. Entry by entry; no
 * check cuts another short; nothing but the ring, its counters and valid_prefix is written. A slot
 * outside the records is a violation (slot_range), not an error.
 *
 * Returns KVC_OK (violations included: look at the ring), or, with nothing written,
 *   KVC_E_INVALID_ARGUMENT, KVC_E_SHAPE, KVC_E_DTYPE, KVC_E_STRIDE, KVC_E_DEVICE, KVC_E_NO_CUDA
 *   KVC_E_LENGTH      verify_num_valid out of range; valid_prefix or an array of 'requests' has
 *                     another length than the batch
 *   KVC_E_CONFIG      an unknown rule; what kvc_group_check() says
 * Threads: any. On the CPU rows stand in entry order whatever the thread count.
 */
KVC_API KVC_NODISCARD kvc_status kvc_canary_verify(const kvc_verify_args *args, void *stream);

/* ---- 10. Reading violations ---------------------------------------------------------------- */

/*
 * Take the next violations out of a 16-column ring, in order, and free their rows. Rows that were
 * dropped are passed over. The one call here that waits for the device.
 *
 *   out, capacity  room for the violations; *count_out says how many came
 *
 * Returns KVC_OK; KVC_E_INVALID_ARGUMENT (NULL); KVC_E_CONFIG (an 8-column ring); KVC_E_DEVICE,
 * KVC_E_NO_CUDA.
 * Threads: one at a time per ring.
 */
KVC_API KVC_NODISCARD kvc_status kvc_ring_poll(const kvc_ring *ring, kvc_violation *out,
        int64_t capacity, int64_t *count_out, void *stream);

/* The name of a reason bit, for instance "verify_chain_hash"; NULL if the bit is not known. */
KVC_API const char *kvc_reason_name(int64_t reason_bit);

/* The name of a launch tag, for instance "HEAD_K_FULL"; NULL if it has none. */
KVC_API const char *kvc_tag_name(int64_t launch_tag);

/* The catalogue slug that explains a set of reason bits best (the lowest-level cause first):
 * slot_range, never_stamped, nonfinite, slot_aliased, then token, position, chain, bytes. NULL if no
 * bit is known. */
KVC_API const char *kvc_reason_slug(int64_t reasons);

/*
 * A violation as text. The first line is stable and parseable; with KVC_RULES_OWN lines for a
 * person follow: which request, who stamped the slot last and when, the likely cause, the slug.
 * With KVC_RULES_SGLANG the text is SGLang's, 'totals' at its end.
 *
 *   out, out_bytes  room for the text, always terminated; may be NULL and 0
 *   rules           KVC_RULES_*
 *
 * Returns the length of the whole text without its terminator, as snprintf does. Threads: any.
 */
typedef struct kvc_violation_totals {
	int64_t violations;
	int32_t ring_overflow;
	int64_t step;
} kvc_violation_totals;
KVC_API size_t kvc_violation_text(char *out, size_t out_bytes, const kvc_violation *violation,
        int32_t rules, const kvc_violation_totals *totals);

/*
 * Read back the first line of kvc_violation_text(), anywhere in 'line'. Fields that the line does
 * not carry are -1 (hashes 0). Returns 1 if the line is one, else 0 and *out is untouched.
 * line: not NULL, untrusted. Threads: any.
 */
KVC_API int kvc_violation_parse(kvc_violation *out, const char *line);

#ifdef __cplusplus
}
#endif

#endif /* KVCANARY_CANARY_H */
