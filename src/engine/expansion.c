/* See expansion.h. The decision looks at the shape of the model and at the rows that a sequence has in the step: not at
 * threads, other sequences or the machine. */
#include "engine/expansion.h"

/* Fewer stay absorbed whatever the count says: a head's keys and values are computed for at least a tile of rows. */
#define LEAST_ROWS DSE_KV_BLOCK_TOKENS

/* Per head, R the latent rank. Absorbed: a row is projected into the latent space and back, R * (nope + v), and meets
 * each key with R + rope and its value with R. Expanded: each key is projected, R * (nope + v), and meets each row with
 * nope + rope and v. */
bool dse_expansion_pays(const struct dse_latent_config *latent, int64_t position, int64_t n)
{
    const int64_t rank = latent->kv_rank, rope = latent->rope, heads_own = latent->nope + latent->v;
    const int64_t keys = position + n, pairs = n * position + n * (n + 1) / 2;
    if (n < LEAST_ROWS) return false;
    return keys * rank * heads_own + pairs * (heads_own + rope) < n * rank * heads_own + pairs * (2 * rank + rope);
}

/* Rows from first on that are one sequence at consecutive positions, below `limit`. */
static int sequence_rows(const struct dse_rows *rows, int first, int64_t limit)
{
    int n = 0;
    while (first + n < rows->n_rows && rows->kv[first + n].blocks == rows->kv[first].blocks &&
           rows->kv[first + n].pool == rows->kv[first].pool &&
           rows->positions[first + n] == rows->positions[first] + n && rows->positions[first + n] < limit)
        n++;
    return n;
}

struct dse_row_run dse_expansion_run(const struct dse_config *config, const struct dse_rows *rows, int first)
{
    /* rows beyond attend to a list of keys of their own */
    const int64_t limit = config->indexer.n_heads > 0 ? config->indexer.top_k : INT64_MAX;
    struct dse_row_run run = {0};
    while (first + run.n_rows < rows->n_rows) {
        const int at = first + run.n_rows, n = sequence_rows(rows, at, limit);
        if (dse_expansion_pays(&config->latent, rows->positions[at], n))
            return run.n_rows > 0 ? run : (struct dse_row_run){n, true};
        run.n_rows += n > 0 ? n : 1;
    }
    return run;
}
