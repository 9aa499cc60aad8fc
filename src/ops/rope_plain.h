/*
 * The short way into rope_pool_fused on the CPU. A call for one token takes under a microsecond, of
 * which the checks one by one would be a third.
 */
#ifndef KVC__OPS_ROPE_PLAIN_H
#define KVC__OPS_ROPE_PLAIN_H

#include "cpu/rope.h"

/*
 * Is this a call on host memory in which nothing is to be refused, apart from what check_duplicates
 * and check_finite look for? Then *job is filled. A 'no' says nothing: the call may be an unusual one,
 * and the checks in their order (rope_pool.c) tell. A 'yes' is never wrong: it is said only to calls
 * that those checks let pass.
 */
int kvc__rope_is_plain(const kvc_rope_pool_args *args, struct kvc__rope_job *job);

/* For tests: 0 sends every call the long way. */
extern int kvc__rope_plain_allowed;

/* What the job takes over from the arguments as it is; the shapes are in the job already. */
void kvc__rope_take_options(const kvc_rope_pool_args *args, struct kvc__rope_job *job);

/* Bytes of q, k, v and the outputs that the call moves, more or less. */
double kvc__rope_bytes(const struct kvc__rope_job *job);

#endif
