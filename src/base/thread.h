/* The thread pool that runs ops: a fixed number of threads, the caller is thread 0.
 *
 * dse_pool_run calls fn(context, thread, n_threads) once on each thread and returns when all are done. Inside fn all
 * threads may meet in dse_pool_barrier. Workers spin briefly, then sleep on a futex: a virtual CPU may be taken away
 * at any time. One caller at a time.
 */
#ifndef DSE_BASE_THREAD_H
#define DSE_BASE_THREAD_H

#include "base/error.h"

struct dse_pool;
typedef void dse_pool_fn(void *context, int thread, int n_threads);

DSE_MUST_CHECK enum dse_status dse_pool_create(int n_threads, struct dse_pool **pool, struct dse_error *err);
void dse_pool_free(struct dse_pool *pool);
int dse_pool_threads(const struct dse_pool *pool);
void dse_pool_run(struct dse_pool *pool, dse_pool_fn *fn, void *context);
void dse_pool_barrier(struct dse_pool *pool);

/* [*begin, *end) of n items for a thread: contiguous, in whole multiples of `multiple` (the last may be shorter). */
void dse_split(size_t n, size_t multiple, int thread, int n_threads, size_t *begin, size_t *end);

#endif
