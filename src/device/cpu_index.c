/* The indexer of sparse attention (DeepSeek-V3.2 report, 2025): stores an index key per token and chooses, per row, the
 * top_k keys that its attention may see. Called through the op table, before latent_attention of the same rows.
 *
 * I[s] = sum over heads h of w[h] * relu(q[h] . k[s]), in ascending order of h, one fma each. The chosen are the
 * largest by (score, lower position first): a total order, so the choice does not depend on how the keys are dealt to
 * threads.
 *
 * Hi index heads of di values, R rope values.
 */
#include <math.h>
#include <string.h>

#include "device/cpu_product.h"

/* Variance floor of the LayerNorm over an index key. */
#define INDEX_EPS 1e-6

struct index_job {
    struct cpu_state *state;
    struct dse_pool *pool;
    const struct dse_device_weights *weights;
    int layer;
    const struct dse_kv_layout *layout;
    const struct dse_rows *rows;
    struct dse_key_choice *choice;
    size_t first, n; /* rows of this pass */
    /* of the pass, the rows whose keys are chosen now: each row's keys are cut into parts */
    size_t first_chosen, n_chosen, n_parts;
    atomic_size_t next, next_merge;
};

static void layer_norm(float *x, const float *weight, const float *bias, size_t n)
{
    double mean = 0, variance = 0;
    for (size_t i = 0; i < n; i++)
        mean += (double)x[i];
    mean /= (double)n;
    for (size_t i = 0; i < n; i++)
        variance += ((double)x[i] - mean) * ((double)x[i] - mean);
    double scale = 1 / sqrt(variance / (double)n + INDEX_EPS);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(((double)x[i] - mean) * scale) * weight[i] + bias[i];
}

static uint8_t *index_block(const struct index_job *job, size_t row, size_t block)
{
    const struct dse_kv_view *kv = &job->rows->kv[row];
    return kv->pool + (size_t)kv->blocks[block] * job->layout->block_bytes +
           (size_t)job->layer * job->layout->layer_bytes + job->layout->index_offset;
}

static void store_key(const struct index_job *job, size_t row, const float *key)
{
    size_t position = (size_t)job->rows->positions[row];
    dse_cpu_store_column(job->state, job->layout->type, key, (size_t)job->layout->index_dim,
                         index_block(job, row, position / DSE_KV_BLOCK_TOKENS), position % DSE_KV_BLOCK_TOKENS);
}

/* Norm, rope and store of the keys; rope of the queries; the constant factors of the score go into the weights. */
static void run_prepare(void *context, int thread, int n_threads)
{
    const struct index_job *job = context;
    const struct dse_layer *layer = &job->weights->layers[job->layer];
    struct cpu_index *index = &job->state->index;
    size_t heads = (size_t)job->weights->config->indexer.n_heads, dim = (size_t)job->layout->index_dim, begin, end;
    const float scale = (float)(1 / sqrt((double)dim * (double)heads));
    dse_split(job->n, DSE_KV_BLOCK_TOKENS, thread, n_threads, &begin, &end);
    for (size_t m = begin; m < end; m++) {
        size_t row = job->first + m;
        const struct cpu_angles angles = dse_cpu_angles(job->state, job->weights, job->rows, row);
        float *key = index->keys + m * dim;
        layer_norm(key, layer->index_k_norm, layer->index_k_norm_bias, dim);
        dse_cpu_rotate(key, &angles, DSE_ROPE_HALF);
        store_key(job, row, key);
        for (size_t h = 0; h < heads; h++) {
            dse_cpu_rotate(index->queries + (m * heads + h) * dim, &angles, DSE_ROPE_HALF);
            index->weights[m * heads + h] *= scale;
        }
    }
}

/* A score and its position as one number: larger is better. NaN is worst; -0 equals 0. */
static uint64_t rank_of(float score, size_t position)
{
    uint32_t bits;
    float canonical = score + 0.0f;
    memcpy(&bits, &canonical, sizeof bits);
    bits = isnan(score) ? 0 : bits >> 31 != 0 ? ~bits : bits | UINT32_C(0x80000000);
    return (uint64_t)bits << 32 | (UINT32_MAX - (uint32_t)position);
}

static int32_t position_of(uint64_t rank)
{
    return (int32_t)(UINT32_MAX - (uint32_t)rank);
}

/* The k-th largest, k <= n: digit by digit from the top. */
static uint64_t kth_largest(const uint64_t *ranks, size_t n, size_t k)
{
    uint64_t prefix = 0, mask = 0;
    for (int shift = 56; shift >= 0; shift -= 8) {
        size_t counts[256] = {0}, digit = 255;
        for (size_t i = 0; i < n; i++)
            if ((ranks[i] & mask) == prefix) counts[ranks[i] >> shift & 255]++;
        while (counts[digit] < k)
            k -= counts[digit--];
        prefix |= (uint64_t)digit << shift;
        mask |= UINT64_C(255) << shift;
    }
    return prefix;
}

/* Room for 2 * k ranks, in ascending order of position; whenever it is full the k best stay. */
struct candidates {
    uint64_t *at, least;
    size_t n, k;
};

static void keep_best(struct candidates *c)
{
    if (c->n <= c->k) return;
    size_t kept = 0;
    c->least = kth_largest(c->at, c->n, c->k);
    for (size_t i = 0; i < c->n; i++)
        if (c->at[i] >= c->least) c->at[kept++] = c->at[i];
    c->n = kept;
}

static void offer(struct candidates *c, uint64_t rank)
{
    if (rank < c->least) return;
    c->at[c->n++] = rank;
    if (c->n == 2 * c->k) keep_best(c);
}

static uint64_t *candidates_at(const struct index_job *job, size_t slot)
{
    return job->state->index.candidates + slot * 2 * (size_t)job->choice->top_k;
}

/* Scores of one row with the 32 keys of a block; those beyond the row's position are meaningless. */
static void score_block(const struct index_job *job, size_t row, size_t block, float *dots, float *scores)
{
    const struct dse_attention_ops *kernels = &job->state->kernels;
    const struct cpu_index *index = &job->state->index;
    size_t heads = (size_t)job->weights->config->indexer.n_heads, dim = (size_t)job->layout->index_dim;
    size_t m = row - job->first;
    dse_attention_fn *product = job->layout->type == DSE_KV_F32 ? kernels->product_f32 : kernels->product_f16;
    product(index->queries + m * heads * dim, dim, heads, index_block(job, row, block), DSE_KV_BLOCK_TOKENS, dim,
            DSE_KV_BLOCK_TOKENS, dots, DSE_KV_BLOCK_TOKENS, false);
    for (size_t i = 0; i < heads * DSE_KV_BLOCK_TOKENS; i++)
        dots[i] = dots[i] < 0 ? 0 : dots[i];
    kernels->product_f32(index->weights + m * heads, heads, 1, dots, DSE_KV_BLOCK_TOKENS, heads, DSE_KV_BLOCK_TOKENS,
                         scores, DSE_KV_BLOCK_TOKENS, false);
}

/* The best of one part of a row's keys. */
static void scan(struct index_job *job, size_t slot, float *dots)
{
    size_t row = job->first_chosen + slot / job->n_parts, n_keys = (size_t)job->rows->positions[row] + 1, begin, end;
    struct candidates best = {.at = candidates_at(job, slot), .k = (size_t)job->choice->top_k};
    dse_split(n_keys, DSE_KV_BLOCK_TOKENS, (int)(slot % job->n_parts), (int)job->n_parts, &begin, &end);
    for (size_t key = begin; key < end; key += DSE_KV_BLOCK_TOKENS) {
        float scores[DSE_KV_BLOCK_TOKENS];
        size_t n = end - key < DSE_KV_BLOCK_TOKENS ? end - key : DSE_KV_BLOCK_TOKENS;
        score_block(job, row, key / DSE_KV_BLOCK_TOKENS, dots, scores);
        for (size_t i = 0; i < n; i++)
            offer(&best, rank_of(scores[i], key + i));
    }
    keep_best(&best);
    job->state->index.n_candidates[slot] = best.n;
}

/* The best of all parts of a row, into its list. */
static void merge(struct index_job *job, size_t chosen)
{
    size_t row = job->first_chosen + chosen, slot = chosen * job->n_parts, k = (size_t)job->choice->top_k;
    const size_t *n_candidates = job->state->index.n_candidates;
    struct candidates best = {.at = candidates_at(job, slot), .n = n_candidates[slot], .k = k};
    for (size_t part = 1; part < job->n_parts; part++) {
        memcpy(best.at + best.n, candidates_at(job, slot + part), n_candidates[slot + part] * sizeof *best.at);
        best.n += n_candidates[slot + part];
        keep_best(&best);
    }
    int32_t *keys = job->choice->keys + row * k;
    for (size_t i = 0; i < best.n; i++)
        keys[i] = position_of(best.at[i]);
}

static void run_choose(void *context, int thread, int n_threads)
{
    struct index_job *job = context;
    for (;;) {
        size_t slot = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed);
        if (slot >= job->n_chosen * job->n_parts) break;
        scan(job, slot, job->state->threads[thread].index_dots);
    }
    dse_pool_barrier(job->pool);
    for (;;) {
        size_t chosen = atomic_fetch_add_explicit(&job->next_merge, 1, memory_order_relaxed);
        if (chosen >= job->n_chosen) return;
        merge(job, chosen);
    }
}

/* Lists of the rows of a pass. Rows that may see all their keys are not scored. */
static void choose(struct index_job *job)
{
    const int32_t *positions = job->rows->positions;
    size_t row = job->first, end = job->first + job->n, k = (size_t)job->choice->top_k;
    while (row < end) {
        if ((size_t)positions[row] < k) {
            for (int32_t i = 0; i <= positions[row]; i++)
                job->choice->keys[row * k + (size_t)i] = i;
            row++;
            continue;
        }
        job->first_chosen = row;
        do
            row++;
        while (row < end && row - job->first_chosen < job->state->index.n_slots && (size_t)positions[row] >= k);
        job->n_chosen = row - job->first_chosen;
        job->n_parts = job->state->index.n_slots / job->n_chosen;
        atomic_store(&job->next, 0);
        atomic_store(&job->next_merge, 0);
        dse_pool_run(job->pool, run_choose, job);
    }
}

void dse_cpu_index_keys(struct dse_device *device, const struct dse_device_weights *weights, int layer,
                        const struct dse_kv_layout *layout, const struct dse_rows *rows, const float *x,
                        const float *q_latent, struct dse_key_choice *choice)
{
    struct cpu_state *state = device->state;
    const struct dse_config *config = weights->config;
    const struct dse_layer *l = &weights->layers[layer];
    struct index_job job = {.state = state,
                            .pool = device->pool,
                            .weights = weights,
                            .layer = layer,
                            .layout = layout,
                            .rows = rows,
                            .choice = choice};
    dse_cpu_angles_begin(state, weights);
    for (; job.first < (size_t)rows->n_rows; job.first += job.n) {
        size_t left = (size_t)rows->n_rows - job.first;
        job.n = left < state->index.max_rows ? left : state->index.max_rows;
        struct cpu_product_job keys = {
            .x = x + job.first * (size_t)config->n_embd,
            .n_rows = job.n,
            .norm = l->attn_norm,
            .eps = config->rms_eps,
            .products = {{&l->index_k, NULL, state->index.keys}, {&l->index_weights, NULL, state->index.weights}},
            .n_products = 2};
        struct cpu_product_job queries = {.x = q_latent + job.first * (size_t)config->latent.q_rank,
                                          .n_rows = job.n,
                                          .products = {{&l->index_q, NULL, state->index.queries}},
                                          .n_products = 1};
        dse_cpu_run_products(device, &keys);
        dse_cpu_run_products(device, &queries);
        if (job.n <= CPU_PRIVATE_ROWS)
            run_prepare(&job, 0, 1);
        else
            dse_pool_run(device->pool, run_prepare, &job);
        choose(&job);
    }
}
