/*
 * The faults: what each does to the engine, and which reason bits must see it. The table is fixed
 * before the run. A fault changes the engine's memory (pools, tables, allocator, input), or omits a
 * call or part of one; it knows nothing of the guard.
 */
#ifndef KVCANARY_CLI_REPLAY_FAULTS_H
#define KVCANARY_CLI_REPLAY_FAULTS_H

#include "replay/engine.h"
#include "replay/taint.h"

/* What has to be switched on for a fault to be seen at all, besides the guard itself. */
enum {
	NEED_BYTES = 1,     /* fingerprints over some bytes of each head */
	NEED_ALL_BYTES = 2, /* over every byte */
	NEED_STAMPING = 4,  /* made by the writer */
	NEED_TOKENS = 8,    /* expected tokens */
	NEED_FINITE = 16,
	NEED_REREADS = 32, /* reads that are not the first one, or the check at release */
	NEED_LAYERS = 64   /* at least two layers */
};

struct injector;

/* Returns true if the fault was injected; false: not here, ask again later. */
typedef bool (*fault_fn)(struct injector *injector, struct engine_event *event);

struct fault_kind {
	const char *name;
	const char *summary;
	int64_t declared; /* KVC_REASON_* */
	int32_t needs;    /* NEED_* */
	bool has_culprit;
	enum engine_point point; /* when it is tried */
	fault_fn inject;
};

extern const struct fault_kind fault_kinds[];
extern const int32_t fault_kind_count;
#define FAULT_KINDS_MAX 32

/* Index of a fault by name, -1 if there is none. */
int32_t fault_find(const char *name, size_t name_bytes);

/*
 * Injects the chosen faults, each a number of times, spread over the run by the share of requests
 * that have been admitted. The same seed injects the same faults at the same places.
 */
struct injector {
	struct engine *engine;
	struct taint *taint;
	uint64_t random;
	bool chosen[FAULT_KINDS_MAX];
	int32_t injected[FAULT_KINDS_MAX];
	int32_t per_fault;
	int64_t last_step; /* of the latest injection, -1 */
	int64_t *slots;    /* a batch's slots, changed */
	void *rows;        /* a page of one pool */
	/* Who held each page before its present owner, and from which position on; -1 = nobody. */
	int64_t *former_holder;
	int64_t *former_position;
	/* Set by inject() through injector_begin(). */
	int32_t kind;
};

bool injector_open(struct injector *out, struct engine *engine, struct taint *taint,
        const bool *chosen, int32_t per_fault, uint64_t seed);
void injector_close(struct injector *injector);

/* The hook to give to engine_add_hook(), with the injector as its context; after the taint's. */
void injector_watch(
        void *context, struct engine *engine, enum engine_point point, struct engine_event *event);

/* ---- for the faults themselves ---- */

/* A number in [0, count). */
int64_t injector_draw(struct injector *injector, int64_t count);

/* Begin the injection of the kind that is being tried; NULL if there is no room. */
struct injection *injector_begin(struct injector *injector);

/*
 * A running request that no fault has touched, has at least 'computed' tokens and 'left' more
 * answers to give; NULL if there is none. 'other' is left out.
 */
struct sequence *injector_pick(
        struct injector *injector, int64_t computed, int64_t left, const struct sequence *other);

/* Index of a full page that the sequence holds alone, -1 if it has none. */
int32_t injector_own_page(struct injector *injector, const struct sequence *sequence);

/* A slot with contents: of a running request, or of an idle block. -1 if there is none. */
int64_t injector_pick_slot(struct injector *injector);

#endif
