/*
 * What the files of the guard share.
 *
 *   lifecycle.c its life: create, groups, stamps, void, copy, destroy
 *   step.c      step_begin and step_end: the order of things
 *   history.c   the requests of a step: what each has read before, on which slots
 *   expect.c    chains and tokens that each request should find, from its expected tokens
 *   reads.c     plan, check_plan and verify for what a step reads
 *   alias.c     slots that a step writes while somebody else reads or writes them
 *   sweep.c     cached slots that nobody reads, and the unwritten rest of pages
 *   findings.c  who, why, what to do
 *   stats.c     what was done, and what longest was not
 *
 * The guard looks at tables and records in host memory. A guard of tables on a device keeps the
 * same state, but there the passes of history.c, expect.c and alias.c are kernels.
 */
#ifndef KVC__GUARD_H
#define KVC__GUARD_H

#include "base/error.h"

#define KVC__GUARD_NAME_BYTES 32

/* Slots in one call of a sweep's callback. */
#define KVC__SWEEP_CAPACITY 1024

/* kvc__guard_group.seen of a slot without a record. */
#define KVC__NEVER_SEEN UINT32_MAX

/* Memory that grows and never shrinks; contents are lost when it grows. */
struct kvc__growing {
	void *data;
	int64_t bytes;
};

/*
 * The chain over the first 'length' expected tokens of a request, kept from step to step so that
 * each step pays for its new tokens only. It names its request, so that it cannot be taken for
 * another's.
 */
struct kvc__chain {
	int64_t request; /* -1 = nobody's */
	uint64_t name_space;
	int64_t length;
	uint64_t value;
};

/* What the guard knows of the request on one row of the request table. */
struct kvc__guard_row {
	int64_t request; /* -1 = nobody yet */
	int64_t name_space;
	int64_t verified; /* positions below were checked when this request first read them */
	int64_t prefix;   /* of its last step, and how much it wrote then */
	int64_t extend;
	int64_t known; /* columns of the row that guard.snapshot has */
	int64_t since; /* the step that brought the request here */
	int64_t batch; /* number of the last batch that named the row, and where in it */
	int64_t entry;
};

/* One request of the step that is open or being opened. */
struct kvc__entry {
	int live; /* 0 = padding, nothing else is set then */
	int is_new;
	int64_t prefix; /* >= 0 */
	int64_t extend; /* >= 0 */
	int64_t start;  /* positions from here on it reads for the first time */
	int64_t known;  /* columns of the snapshot that are this request's */
	int64_t change; /* the first of them that the table no longer agrees with */
	int64_t since;
	int64_t read_to; /* what 'verified' will be after the step */
};

/* The step that is open or being opened. */
struct kvc__step {
	kvc_guard_step given; /* the caller's; its tensors stay the caller's */
	kvc_requests requests;
	int64_t number;
	int64_t request_count;
	int64_t token_count;
	const int64_t *rows; /* [request_count], as all of these */
	const int64_t *prefix_lens;
	const int64_t *extend_lens;
	const int64_t *owner_request;
	const int64_t *namespaces; /* or NULL */
	const int64_t *chain_end;  /* or NULL */
	const int32_t *table;
	int64_t table_stride;
	int64_t column_count;
	const int32_t *expected; /* or NULL */
	int64_t expected_stride;
	int64_t expected_rows;
	int64_t expected_columns;
	const int64_t *valid_lens;
	const int64_t *tokens; /* [token_count], as these */
	const int64_t *positions;
	const int64_t *slots;
	int64_t *offsets;           /* [request_count + 1]; NULL until the step is planned */
	struct kvc__entry *entries; /* [request_count], as these */
	int64_t *start_first;       /* of plan (a) */
	int64_t *prefix_again;      /* of plan (b): what was read before */
	int64_t *valid;             /* how much of each prefix can be trusted */
	int64_t *valid_part;
	int64_t *offsets_memory;     /* [request_count + 1], for 'offsets' */
	int64_t *expected_positions; /* [token_count] */
};

/* One slot numbering. */
struct kvc__guard_group {
	kvc_group group;
	kvc_source *sources;
	char name[KVC__GUARD_NAME_BYTES];
	int32_t number;
	int64_t window;
	int64_t token_offset;
	kvc_tensor mapping; /* shape NULL: none */
	int64_t mapping_count;
	uint32_t *seen;   /* by slot: the step that last stamped or checked it */
	uint8_t *exclude; /* bitmap: slots that the step writes */
	int64_t exclude_bytes;
	int is_marked; /* 'exclude' has bits set */
	int64_t rotation;
	struct kvc__chain *at_prefix; /* by row */
	struct kvc__chain *at_window; /* by row, or NULL without a window */

	/* Of the step. */
	struct kvc__growing plan_memory;
	struct kvc__growing numbers_memory;
	int64_t rotation_before;
	int64_t first_count; /* entries of plan (a) */
	int64_t again_count; /* entries of plan (b) */
	kvc_plan plan;       /* (a), and the writes */
	kvc_plan plan_again; /* (b); its writes mean nothing */
	int32_t again_valid;
	int32_t again_enable;
	int64_t again_left_out;
	const int64_t *slots;  /* [token_count] that the step writes, in this group's numbering */
	int64_t *start_again;  /* [request_count], as these: begin of the window */
	int64_t *chain_first;  /* chain before the first entry of (a), 0 = not known */
	int64_t *chain_again;  /* and of (b) */
	int64_t *chain_last;   /* after position prefix - 1, as a read must find it */
	int64_t *chain_write;  /* the same, for the writes */
	int64_t *write_tokens; /* [token_count] expected */
	int64_t *slots_memory; /* for 'slots' if there is a mapping */
};

/* What the guard adds to a violation; stands beside the violation's row of the ring. */
struct kvc__context {
	int64_t step;
	int64_t victim_request;
	int64_t victim_position;
	int64_t culprit_request;
	int64_t culprit_step;
	int64_t nonfinite_source_id;
	int64_t nonfinite_head;
	int64_t nonfinite_dim;
	int32_t group;
	int32_t cause;
};

struct kvc_guard {
	kvc_guard_options options;
	kvc_ring ring;
	kvc_counters counters;
	int64_t consumed;
	struct kvc__context *contexts; /* [ring.capacity] */
	int64_t noted;                 /* sequence number up to which contexts are filled */
	struct kvc__guard_group **groups;
	int32_t group_count;
	int32_t group_capacity;
	struct kvc__guard_row *rows; /* [options.request_rows] */
	int32_t *snapshot;           /* [request_rows, snapshot_columns]: the table as last seen */
	int64_t snapshot_columns;
	int64_t *scratch; /* [2, scratch_slots], zero between uses */
	int64_t scratch_slots;
	int64_t last_step; /* -1 = none yet */
	int64_t batch_number;
	int step_open;
	struct kvc__step step;
	struct kvc__growing step_memory;
	struct kvc__growing view_memory; /* reads.c: what check_plan is shown */
	struct kvc__growing copy_memory;
	struct kvc__growing sweep_memory;
	struct kvc__growing tail_memory;
	kvc_guard_statistics statistics;
	int64_t memory_bytes;
};

/* ---- memory ---- */

/* Zeroed memory that the guard frees at its end; no-memory if there is none. */
kvc_status kvc__guard_alloc(kvc_guard *guard, void **out, int64_t count, size_t item_bytes);

void kvc__guard_free(kvc_guard *guard, void *memory, int64_t count, size_t item_bytes);

/* Make 'memory' at least 'bytes' large. At least doubles, so that slow growth is seldom felt. */
kvc_status kvc__guard_grow(kvc_guard *guard, struct kvc__growing *memory, int64_t bytes);

/* ---- small things ---- */

/* A vector over 'data'; *count must live as long as the tensor. */
kvc_tensor kvc__vector_of(const int64_t *data, int64_t *count);

/* guard-group-unknown unless the guard has such a group. */
kvc_status kvc__guard_find_group(const kvc_guard *guard, int32_t number);

/* The slot of the group for a slot of the table; -1 if it has none. */
static inline int64_t kvc__guard_translate(const struct kvc__guard_group *group, int64_t slot)
{
	if (!group->mapping.shape || slot < 0)
		return slot;
	if (slot >= group->mapping_count)
		return -1;
	return ((const int64_t *)((const char *)group->mapping.data +
	                          group->mapping.byte_offset))[slot];
}

/* The table's slot of request r at a position within its row, in the group's numbering. */
static inline int64_t kvc__guard_slot_at(const struct kvc__step *step,
        const struct kvc__guard_group *group, int64_t r, int64_t position)
{
	return kvc__guard_translate(
	        group, step->table[step->rows[r] * step->table_stride + position]);
}

/* The first position of a prefix that the group's window still covers. */
static inline int64_t kvc__guard_window_start(const struct kvc__guard_group *group, int64_t prefix)
{
	return group->window > 0 && prefix > group->window ? prefix - group->window : 0;
}

static inline int kvc__guard_is_written(const struct kvc__guard_group *group, int64_t slot)
{
	return slot >= 0 && slot < group->group.record_count &&
	       (group->exclude[slot / 8] >> slot % 8 & 1);
}

/* ---- history.c ---- */

/* Check the caller's step and lay out step.* for it. */
kvc_status kvc__step_take(kvc_guard *guard, const kvc_guard_step *given);

/* Fill the entries, after the writes of group 0 have been planned. Rows and columns have been checked by a plan. */
kvc_status kvc__step_look(kvc_guard *guard);

/* The step has begun: remember what it read and writes. */
void kvc__step_remember(kvc_guard *guard);

/* The request of the step on this row of the table, -1 if none. */
int64_t kvc__step_entry_of_row(const kvc_guard *guard, int64_t row);

/* The request of the step that writes token 'token'. */
int64_t kvc__step_entry_of_token(const struct kvc__step *step, int64_t token);

/* ---- expect.c ---- */

/* The token that request r should hold at a position; 0 if that is not known. */
int kvc__step_token(const struct kvc__step *step, const struct kvc__guard_group *group, int64_t r,
        int64_t position, int64_t *token_out);

/* The chains and tokens that the step's requests should have, for one group. */
void kvc__step_expect(kvc_guard *guard, struct kvc__guard_group *group);

/* ---- reads.c ---- */

/* Plan the writes of a group alone: refuses whatever the plan does not like. */
kvc_status kvc__reads_plan_writes(kvc_guard *guard, struct kvc__guard_group *group, void *stream);

/* Plan (a) and (b). The group's exclude bitmap is set. */
kvc_status kvc__reads_plan(kvc_guard *guard, struct kvc__guard_group *group, void *stream);

/* Check and verify what was planned. */
kvc_status kvc__reads_check(kvc_guard *guard, struct kvc__guard_group *group, void *stream);

/* kvc_canary_verify() with the guard's options; its counts and violations are noted. valid: one
 * entry for each request of the step, or NULL. */
kvc_status kvc__guard_verify(kvc_guard *guard, struct kvc__guard_group *group, const kvc_plan *plan,
        const kvc_requests *requests, int64_t *valid, int64_t launch_tag, void *stream);

/* ---- alias.c ---- */

/* Set and clear the bits of the slots that the step writes. */
void kvc__alias_mark(const kvc_guard *guard, struct kvc__guard_group *group);
void kvc__alias_unmark(const kvc_guard *guard, struct kvc__guard_group *group);

/* Report slots that the step writes twice, or writes while another request reads them. */
void kvc__alias_check(kvc_guard *guard, struct kvc__guard_group *group);

/* ---- sweep.c ---- */

/* What kvc_guard_sweep() needs for one call of its callback. */
int64_t kvc__sweep_bytes(void);

/* Count non-finite values in the unwritten rest of the last page of each request. */
kvc_status kvc__sweep_tails(kvc_guard *guard, struct kvc__guard_group *group, void *stream);

/* ---- findings.c ---- */

/*
 * Write down what is known around the violations that came since the last call, all of 'group'.
 * culprit: the request that is to blame, -1 = judge by the owner columns.
 */
void kvc__guard_note(kvc_guard *guard, struct kvc__guard_group *group, int64_t culprit);

/* The same for what check_plan found: it does not know whose the entries of 'plan' are. */
void kvc__guard_note_claims(kvc_guard *guard, struct kvc__guard_group *group, const kvc_plan *plan);

#endif
