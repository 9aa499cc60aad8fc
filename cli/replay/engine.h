/*
 * The embedded engine: continuous batching over a trace, K/V through kvc_rope_pool_fused, a guard
 * around every step. It is a user of the public API like any other. Its own memory lies open in
 * struct engine, for the fault injector to damage and for the observer to look at; the guard is
 * told nothing of either.
 *
 * One step: scheduler.c picks what to run and hands out slots, engine.c calls the guard and the
 * layers, recover.c drops what a violation named.
 */
#ifndef KVCANARY_CLI_REPLAY_ENGINE_H
#define KVCANARY_CLI_REPLAY_ENGINE_H

#include "kvcanary.h"
#include "replay/allocator.h"
#include "replay/prefix_tree.h"
#include "replay/trace.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#define ENGINE_LAYERS_MAX 128
#define ENGINE_RESERVED_SLOT 0

struct engine_config {
	int64_t request_count; /* taken from the trace */
	double speed;          /* trace seconds per virtual second; 0 = all have arrived */
	int64_t block_tokens;  /* tokens that a block of the trace becomes */
	int64_t abort_every;   /* one request in so many is aborted by its client; 0 = none */

	int32_t layers;
	int64_t query_heads;
	int64_t kv_heads;
	int64_t head_dim;
	kvc_dtype dtype;      /* of q, k, v */
	kvc_dtype pool_dtype; /* the same, or fp8 */

	int64_t pool_slots;
	int32_t page_slots;
	int64_t chunk_tokens; /* tokens of one step */
	int32_t batch_rows;
	int64_t move_interval; /* steps between two moves of a page; 0 = never */

	bool checks; /* false: the control run, stamping only */
	int32_t coverage;
	int64_t verify_budget;
	int64_t sweep_interval; /* 0 = never */
	int32_t fingerprint;
	bool stamping; /* rope_pool_fused stamps; else the guard hashes after the step */
	bool expected_tokens;
	bool input_check;
	bool finite;
	bool release_check; /* sweep a request's slots before they are given up */

	uint64_t seed;
};

enum sequence_state { SEQUENCE_WAITING = 0, SEQUENCE_RUNNING, SEQUENCE_FINISHED, SEQUENCE_ABORTED };

/*
 * One request of the trace on its way through the engine.
 *
 *   id         for owners: index + life * ENGINE_LIFE, so that each start is its own request
 *   computed   positions 0 .. computed-1 have their K/V in the pool
 *   generated  tokens sampled so far
 *   pages      page i holds positions i*page_slots and on
 */
struct sequence {
	int64_t index;
	int64_t id;
	int32_t life;
	int32_t row;
	enum sequence_state state;
	int64_t input_tokens;
	int64_t output_tokens;
	int64_t generated;
	int64_t computed;
	int64_t abort_at;  /* computed tokens at which the client hangs up, -1 = never */
	int64_t admission; /* rising, for preemption */
	int32_t chunks;
	int32_t restarts;
	int32_t *pages;
	int32_t page_count;
	bool tree_open;    /* its blocks so far are the tree's, the next one may join */
	int32_t tree_node; /* where they end */
	bool named;        /* a violation named it */
};
#define ENGINE_LIFE 1000000

/* What one step runs, request after request. All int64, as the operations take them. */
struct batch {
	int64_t count;
	int64_t token_count;
	struct sequence **sequences;
	int64_t *rows;
	int64_t *prefix_lens;
	int64_t *extend_lens;
	int64_t *owners;
	int64_t *valid_lens;
	int64_t *first; /* index of the request's first token */
	int64_t *tokens;
	int64_t *positions;
	int64_t *slots;
	int64_t *true_tokens; /* for the input check, from the trace */
	int64_t *true_positions;
};

/* What the guard borrows from the beginning of a step to its end. */
struct step_tensors {
	int64_t table_shape[2];
	kvc_tensor rows, prefix_lens, extend_lens, owners, valid_lens;
	kvc_tensor tokens, positions, slots, true_tokens, true_positions;
	kvc_tensor req_to_token, token_table;
	kvc_requests requests;
	kvc_guard_step step;
};

/* One layer's write, as it is about to be made. */
struct layer_call {
	int32_t layer;
	int64_t *slots;
	int64_t n_valid;
	int32_t check_finite;
	void *k;
	void *v;
};

/* One page about to move, layer by layer. */
struct page_move {
	struct sequence *sequence;
	int32_t page_index;
	int32_t from;
	int32_t to;
	int32_t full_layers; /* layers that are copied whole */
	int64_t last_slots;  /* slots that are copied of the layer after them */
};

/* Where an observer may look in, and an injector reach in. */
enum engine_point {
	POINT_ADMITTED,     /* sequence: row filled, prefix found, nothing written */
	POINT_BEFORE_ALLOC, /* sequence: about to take pages */
	POINT_PAGE_TAKEN,   /* sequence, page: handed out by the allocator */
	POINT_PAGE_SHARED,  /* page: one more holder */
	POINT_PAGE_DROPPED, /* page: one holder less */
	POINT_RELEASING,    /* sequence: about to give up its pages and its row */
	POINT_RELEASED,     /* sequence: has given up its row and pages */
	POINT_BATCH,        /* the batch is built, the guard has not seen it */
	POINT_LAYER,        /* call: k and v are made, the pool is not written */
	POINT_MOVE,         /* move: about to copy */
	POINT_STEP_END,     /* all layers are written, the guard's step has ended */
	POINT_FINDING,      /* finding: as the guard handed it out */
	POINT_STEP_DONE     /* the engine has answered the findings */
};

struct engine_event {
	struct sequence *sequence;
	int32_t page;
	struct layer_call *call;
	struct page_move *move;
	const kvc_finding *finding;
};

struct engine;
typedef void (*engine_hook_fn)(
        void *context, struct engine *engine, enum engine_point point, struct engine_event *event);

struct engine_hook {
	engine_hook_fn call;
	void *context;
};
#define ENGINE_HOOKS_MAX 4

struct engine_counts {
	int64_t tokens_written;
	int64_t prefill_tokens;
	int64_t decode_tokens;
	int64_t prefix_hit_tokens;
	int64_t prefill_chunks;
	int64_t multi_chunk_requests;
	int64_t evictions;
	int64_t preemptions;
	int64_t aborts;
	int64_t finished;
	int64_t restarts;
	int64_t pages_moved;
	int64_t sweeps;
};

struct engine {
	struct engine_config config;
	const struct trace *trace;

	struct allocator allocator;
	struct prefix_tree tree;
	void *k_pools[ENGINE_LAYERS_MAX];
	void *v_pools[ENGINE_LAYERS_MAX];
	int64_t row_bytes; /* of one slot in one pool */
	int64_t columns;   /* of the tables */
	int32_t *req_to_token;
	int32_t *token_table;

	struct sequence *sequences; /* [request_count] */
	struct sequence **running;  /* in order of admission */
	int32_t running_count;
	int32_t *waiting; /* indices that go back to the front of the queue, last one first */
	int32_t waiting_count;
	int64_t next_arrival; /* first request that has not been admitted yet */
	bool *row_used;
	int64_t admissions;
	int64_t done; /* finished or aborted */

	struct batch batch;
	struct step_tensors borrowed;
	int64_t *history;   /* one request's tokens, for the scatter */
	int64_t *new_slots; /* slots of pages that are handed out in one go */
	void *q;
	void *k;
	void *v;

	kvc_rope rope;
	kvc_guard *guard;
	int32_t group;
	kvc_stamp stamps[ENGINE_LAYERS_MAX];
	uint8_t *named_pages; /* one byte a page */
	uint8_t *used_nodes;  /* one byte a node of the tree: a running request's path */
	bool any_named;

	int64_t step;
	double clock_ms; /* of the trace */
	struct engine_counts counts;
	double canary_seconds;
	double rope_seconds;
	double model_seconds;
	struct engine_hook hooks[ENGINE_HOOKS_MAX];
	int32_t hook_count;
	bool failed; /* a call of the library did; the error has been printed */
};

/* ---- engine.c ---- */

/* 0; else an error has been printed and the result is the exit code. engine_close() is due then
 * too. */
int engine_open(struct engine *out, const struct engine_config *config, const struct trace *trace);
void engine_close(struct engine *engine);
void engine_add_hook(struct engine *engine, engine_hook_fn call, void *context);
void engine_point(struct engine *engine, enum engine_point point, struct engine_event *event);

/* All requests are finished or aborted. */
bool engine_done(const struct engine *engine);

/* Run one step. Returns false if the engine cannot go on. */
bool engine_step(struct engine *engine);

/* A library call failed: remember it and print its error. Returns false. */
bool engine_fail(struct engine *engine);

/* Memory is short: prints how much the pools need, returns the exit code. */
int engine_fail_memory(const struct engine_config *config);

/* Seconds since some fixed moment. */
double engine_now(void);

/* What the trace says about a request, in the replay's scale. */
int64_t engine_input_tokens(const struct engine_config *config, int64_t trace_tokens);
int64_t engine_output_tokens(const struct engine_config *config, int64_t trace_tokens);
int64_t engine_hash_id(const struct engine *engine, const struct sequence *sequence, int64_t block);

/* The token that a request holds at a position: the prompt's, then the sampler's. */
int64_t engine_token(
        const struct engine *engine, const struct sequence *sequence, int64_t position);

/* The slot of a request's position, by its pages. */
int64_t engine_slot(const struct engine *engine, const struct sequence *sequence, int64_t position);

/* First byte of a slot's row in a pool. */
void *engine_row(const struct engine *engine, void *pool, int64_t slot);

/* ---- scheduler.c ---- */

/* Admit, allocate, preempt and build the batch of this step. */
bool scheduler_plan(struct engine *engine);

/* After the layers: sample, join finished blocks to the tree, finish requests. */
bool scheduler_commit(struct engine *engine);

/*
 * Give up a running sequence's pages and row. With config.release_check all that it holds is looked
 * at before, so that nothing leaves the pool unchecked.
 */
bool scheduler_release(struct engine *engine, struct sequence *sequence);

/* Put a released sequence back to the front of the queue, to start anew. */
void scheduler_requeue(struct engine *engine, struct sequence *sequence);

/* ---- canary.c: every call of the guard, and the clock around it ---- */

bool canary_open(struct engine *engine);

/* Write a request's whole history, as the trace has it, into its row of the token table. */
bool canary_scatter(struct engine *engine, const struct sequence *sequence);
bool canary_void(struct engine *engine, int64_t *slots, int64_t count);
bool canary_copy_page(struct engine *engine, int32_t from, int32_t to);
bool canary_step_begin(struct engine *engine);
bool canary_step_end(struct engine *engine);

/* Take all findings; each goes to the hooks and marks what it names. */
bool canary_poll(struct engine *engine);

/* Look at every cached block that lies on no running request's path. */
bool canary_sweep_idle(struct engine *engine);

/* Look at all that a request holds, by its row of the request table. */
bool canary_sweep_sequence(struct engine *engine, const struct sequence *sequence);

/* ---- recover.c ---- */

/* Remember what a finding names. */
void recover_note(struct engine *engine, const kvc_finding *finding);

/* Set 'named' of each running sequence that holds a named page. */
void recover_mark(struct engine *engine);

/* Drop what was named: blocks leave the tree, requests start anew. */
bool recover_run(struct engine *engine);

#endif
