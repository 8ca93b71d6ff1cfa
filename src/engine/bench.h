/* What tests see of bench.c. */
#ifndef DSE_ENGINE_BENCH_H
#define DSE_ENGINE_BENCH_H

struct dse_kv_pool;

/* Writes every page of the pool with small numbers of its type, so that nothing reads the system's shared zero page and
 * no sum meets an infinity. */
void dse_bench_fill_pool(struct dse_kv_pool *pool);

#endif
