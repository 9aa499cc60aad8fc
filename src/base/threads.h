/*
 * Splitting work over threads: the library's own small pool, or the engine's parallel-for
 * (kvc_set_parallel_for). What is computed never depends on how it was split.
 */
#ifndef KVC__BASE_THREADS_H
#define KVC__BASE_THREADS_H

#include "base/fp_mode.h"
#include "kvcanary.h"

/*
 * Call 'run' on disjoint pieces that cover [0, count), each at least 'grain' long except the last
 * one, and return when all are done. grain >= 1: the number of items below which handing work to
 * another thread (some microseconds) is not worth it. With fewer than 2 * grain items, with one
 * thread, from inside another parallel_for, or while another thread uses the pool, it is one plain
 * call run(task, 0, count) on this thread. Never allocates; may start the pool's threads.
 *
 * The caller is in the plain floating-point mode (kvc__fp_enter); pieces on other threads are too.
 */
void kvc__parallel_for(int64_t count, int64_t grain, kvc_range_fn run, void *task);

#endif /* KVC__BASE_THREADS_H */
