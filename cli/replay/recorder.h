/* Keeps the timeline and the pool maps while a replay runs, in bounded memory. */
#ifndef KVCANARY_CLI_REPLAY_RECORDER_H
#define KVCANARY_CLI_REPLAY_RECORDER_H

#include "replay/engine.h"
#include "replay/result.h"
#include "replay/taint.h"

struct recorder {
	struct replay_result *result;
	const struct taint *taint;
	struct engine_counts counted; /* what earlier stretches hold already */
	int64_t verified;             /* the same for the guard's counts */
	int64_t asked_step;           /* when the guard was asked for them */
	int64_t injections;
	int64_t detections;
	int64_t alarms;
	int64_t violations; /* seen since the replay began */
	int64_t violations_counted;
	int64_t snapshot_interval;
	int32_t *cell_violations; /* since the last map */
	int64_t *owners;          /* [pages] scratch */
};

/* Returns false if memory is short; recorder_close() is due then too. */
bool recorder_open(struct recorder *out, const struct engine *engine, const struct taint *taint,
        struct replay_result *result);
void recorder_close(struct recorder *recorder);

/* The hook to give to engine_add_hook(), with the recorder as its context. */
void recorder_watch(
        void *context, struct engine *engine, enum engine_point point, struct engine_event *event);

/* A map of the end, if the last step has none. */
void recorder_finish(struct recorder *recorder, struct engine *engine);

/* Free what a result holds. */
void replay_result_close(struct replay_result *result);

#endif
