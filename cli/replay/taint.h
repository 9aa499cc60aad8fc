/*
 * What injected faults have touched, and what became of them. The taint is kept by an observer of
 * the engine that sees everything and tells nobody but the verdict: neither the engine nor the
 * guard ever looks here.
 *
 * Tainted are the slots whose bytes, record or owner a fault changed; later slots of chains through
 * them; each request or block of the prefix tree that holds one. A slot stays so until nobody holds
 * its page any more.
 */
#ifndef KVCANARY_CLI_REPLAY_TAINT_H
#define KVCANARY_CLI_REPLAY_TAINT_H

#include "replay/engine.h"

#define INJECTION_CULPRITS_MAX 2

/*
 * One injected fault.
 *
 *   declared   reason bits that must see it, copied from the fault's row when it is injected
 *   marked     slots that carry its mark now
 *   damaging   something is wrong already; false while a freed page still holds its old bytes
 *   read       a step read what it damaged
 *   other      reasons that were reported on its slots, none of them declared
 */
struct injection {
	int32_t fault;
	int64_t declared;
	int64_t step;
	int64_t marked;
	int64_t tainted_slots;
	int64_t culprits[INJECTION_CULPRITS_MAX];
	int32_t culprit_count;
	bool damaging;
	bool retaken; /* a page that it freed wrongly has a new owner, who writes it rightly */
	int32_t stale_node; /* block of the prefix tree whose pages it freed, 0 = none */
	bool read;
	bool detected;
	bool culprit_right;
	int64_t other;
	int64_t detected_step;
	kvc_finding finding;
	char what[64];
};

/* A request that holds tainted slots: all its positions from 'from' on. by = injection + 1. */
struct sequence_taint {
	int32_t by;
	int64_t from;
	bool harmed; /* reads something wrong; else it only shares a page with one that does */
	bool holds;  /* a wrong table entry makes it hold one page more */
	int32_t held_page;
};

struct taint {
	struct engine *engine;
	int32_t *marks;      /* [slots] injection + 1 */
	bool *spreads;       /* [slots] the mark goes on along chains */
	int32_t *page_marks; /* [pages] marks that spread */
	int32_t *
	        holders; /* [pages] requests and blocks that hold it, as a sound allocator has it */
	int64_t *page_writer;             /* [pages] id of the request that wrote there last, -1 */
	struct sequence_taint *sequences; /* [requests] */
	int64_t marked;
	int32_t tainted_sequences;
	/* In a control run nothing is ever mended, so that soon all is tainted; nor is anything
	 * found that could be taken for another fault. There every victim will do. */
	bool lenient;
	bool spreading; /* marks are being spread: none may take another's place, or it never ends */
	bool dirty;     /* something changed since marks were spread */
	struct injection *injections;
	int32_t injection_count;
	int32_t injection_capacity;
	int64_t false_alarms;
	kvc_finding alarms[8];
	int32_t alarm_count;
	int64_t step_detections; /* since the step began, for the timeline */
	int64_t step_alarms;
};

/* Returns false if memory is short; taint_close() is due then too. */
bool taint_open(struct taint *out, struct engine *engine, int32_t injection_capacity);
void taint_close(struct taint *taint);

/* The hook to give to engine_add_hook(), with the taint as its context; before the injector's. */
void taint_watch(
        void *context, struct engine *engine, enum engine_point point, struct engine_event *event);

/* ---- for the injector ---- */

/* A new injection of this fault; NULL if there are too many. Valid until the next one. */
struct injection *taint_begin(struct taint *taint, int32_t fault, int64_t declared);

/* A slot was changed. Without 'spread' whoever holds it properly is not affected. */
void taint_slot(struct taint *taint, int64_t slot, bool spread);

/* A whole page. */
void taint_page(struct taint *taint, int32_t page);

/* From this position on, what the request holds is wrong. */
void taint_sequence(struct taint *taint, const struct sequence *sequence, int64_t from);

/* The request's table names a slot of this page, which is not among the request's own. */
void taint_hold(struct taint *taint, const struct sequence *sequence, int32_t page);

/* A request that the violation should name. */
void taint_culprit(struct injection *injection, int64_t id);

/* Nothing of it is tainted, so that a new fault cannot be taken for an old one. */
bool taint_sequence_clean(const struct taint *taint, const struct sequence *sequence);
bool taint_page_clean(const struct taint *taint, int32_t page);

#endif
