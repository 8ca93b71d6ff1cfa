/* The memory plan of an engine: what the pool and the scratch may take, decided before any of it is taken. */
#ifndef DSE_ENGINE_BUDGET_H
#define DSE_ENGINE_BUDGET_H

#include <dse/dse.h>

#include "base/cgroup.h"

#define DSE_DEFAULT_CHUNK_TOKENS 512
#define DSE_DEFAULT_CONCURRENT   4
#define DSE_MAX_CHUNK_TOKENS     16384
#define DSE_MAX_CONCURRENT       1024
#define DSE_MAX_QUEUE            65536
/* Rows of logits computed at once: more rows would only take memory, results are the same. */
#define DSE_LOGIT_ROWS 32

struct dse_engine_sizes {
    struct dse_memory_plan plan;
    int chunk_tokens;
    int max_sequences; /* rows of decode in one step */
    int max_queue;
    int max_rows, max_out;
    int n_blocks; /* of the KV pool */
};

/* limit: what the machine has; given by the caller so that tests can plan for other machines. */
DSE_MUST_CHECK enum dse_status dse_budget_plan(const struct dse_model *model, const struct dse_engine_options *options,
                                               struct dse_memory_limit limit, struct dse_engine_sizes *sizes,
                                               struct dse_error *err);

/* The same question for eval and bench, which take sizes as they are asked for: whether n_blocks of KV cache and the
 * scratch of a pass fit. what: "the evaluation", for the message. */
DSE_MUST_CHECK enum dse_status dse_budget_check(const struct dse_model *model, int max_rows, int max_out,
                                                size_t n_blocks, struct dse_memory_limit limit, const char *what,
                                                struct dse_error *err);

/* What one row of `bench` takes. The refusal names the nearest setting that fits. */
struct dse_bench_sizes {
    int per_sequence; /* blocks */
    size_t n_blocks;
    int max_rows;
};
DSE_MUST_CHECK enum dse_status dse_budget_bench(const struct dse_model *model, const struct dse_bench_spec *spec,
                                                int chunk_tokens, struct dse_memory_limit limit,
                                                struct dse_bench_sizes *sizes, struct dse_error *err);

#endif
