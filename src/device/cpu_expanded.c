/* Latent attention in expanded form on the CPU: some rows of a sequence, one head at a time on each thread.
 *
 * A thread takes a (head, rows), walks the 256-key splits of the sequence, has keys and values of each computed once
 * and lets all its rows attend to them, tile by tile. Results of the splits are merged in ascending order, so a row's
 * bits depend neither on the threads nor on the rows beside it. Called through the op table.
 */
#include <stdatomic.h>
#include <string.h>

#include "device/cpu.h"

struct expanded_job {
    struct cpu_state *state;
    const struct dse_config *config;
    const struct dse_layer *layer;
    int layer_index;
    const struct dse_kv_layout *layout;
    const struct dse_rows *rows;
    const float *q; /* [n_rows][heads][nope + rope] */
    float *out;     /* [n_rows][heads][v] */
    float scale;
    int unit_rows, n_parts;
    atomic_int next;
};

static struct dse_matrix matrix_of(const struct dse_head_matrix *heads, size_t head)
{
    struct dse_matrix matrix = heads->head;
    matrix.data = (const uint8_t *)matrix.data + head * heads->head_bytes;
    return matrix;
}

/* Queries of a tile, multiplied by the softmax scale. */
static void load(const struct expanded_job *job, size_t head, int row, int n, float *out)
{
    const size_t heads = (size_t)job->config->n_heads, d = (size_t)job->config->head_dim;
    const size_t stride = dse_expanded_key_stride(job->config->head_dim);
    for (int r = 0; r < n; r++) {
        const float *q = job->q + ((size_t)(row + r) * heads + head) * d;
        for (size_t i = 0; i < d; i++)
            out[(size_t)r * stride + i] = q[i] * job->scale;
    }
}

/* Rows [row, row + n) of the batch with the keys of a split; running results from m, l, o on. */
static void run_tile(const struct expanded_job *job, const struct dse_expanded_split *split, size_t head, int row,
                     int n, const struct cpu_thread *own, float *m, float *l, float *o)
{
    const struct cpu_state *state = job->state;
    const struct dse_attention_tile tile = {
        .n_rows = n, .group = 1, .last = job->rows->positions + row, .q = own->expanded.q, .scores = own->scores};
    const size_t width = dse_attention_width(job->config->latent.v);
    load(job, head, row, n, own->expanded.q);
    if (split->first_key == 0) { /* which every row sees */
        dse_expanded_attend(&state->kernels, split, &tile, m, l, o);
        return;
    }
    dse_expanded_attend(&state->kernels, split, &tile, own->m, own->l, own->expanded.part);
    for (int r = 0; r < n; r++)
        if ((size_t)tile.last[r] >= split->first_key)
            state->kernels.vector.softmax_merge(&m[r], &l[r], o + (size_t)r * width, own->m[r], own->l[r],
                                                own->expanded.part + (size_t)r * width, width);
}

static void store(const struct expanded_job *job, size_t head, int row, const struct cpu_expanded *own, int n)
{
    const size_t heads = (size_t)job->config->n_heads, v = (size_t)job->config->latent.v;
    for (int r = 0; r < n; r++) {
        const float *o = own->o + (size_t)r * dse_attention_width(job->config->latent.v);
        float *out = job->out + ((size_t)(row + r) * heads + head) * v;
        const float inverse = 1.0f / own->l[r];
        for (size_t i = 0; i < v; i++)
            out[i] = o[i] * inverse;
    }
}

static void run_unit(const struct expanded_job *job, size_t head, int first, int n, const struct cpu_thread *own)
{
    const struct cpu_expanded *e = &own->expanded;
    const struct dse_matrix k = matrix_of(&job->layer->k_up, head), v = matrix_of(&job->layer->v_b, head);
    const int32_t *last = job->rows->positions + first;
    const size_t width = dse_attention_width(job->config->latent.v), n_keys = (size_t)last[n - 1] + 1;
    struct dse_expanded_split split = {.layout = job->layout,
                                       .kv = &job->rows->kv[first],
                                       .layer = job->layer_index,
                                       .k = &k,
                                       .v = &v,
                                       .latents = e->latents,
                                       .latents_s8 = e->latents_s8,
                                       .plain = e->plain,
                                       .keys = e->keys,
                                       .values = e->values};
    for (; split.first_key < n_keys; split.first_key += DSE_KV_SPLIT_TOKENS) {
        const size_t left = n_keys - split.first_key;
        split.n_keys = left < DSE_KV_SPLIT_TOKENS ? left : DSE_KV_SPLIT_TOKENS;
        dse_expanded_fill(&job->state->kernels, &split);
        for (int at = 0; at < n; at += DSE_ATTENTION_COLUMNS) {
            const int rows = n - at < DSE_ATTENTION_COLUMNS ? n - at : DSE_ATTENTION_COLUMNS;
            if ((size_t)last[at + rows - 1] < split.first_key) continue;
            run_tile(job, &split, head, first + at, rows, own, e->m + at, e->l + at, e->o + (size_t)at * width);
        }
    }
    store(job, head, first, e, n);
}

static void run_expanded(void *context, int thread, int n_threads)
{
    (void)n_threads;
    struct expanded_job *job = context;
    const int n_units = job->config->n_heads * job->n_parts;
    for (;;) {
        const int index = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed);
        if (index >= n_units) return;
        /* the last rows have the most keys: longest first */
        const int part = job->n_parts - 1 - index / job->config->n_heads, first = part * job->unit_rows;
        const int left = job->rows->n_rows - first;
        run_unit(job, (size_t)(index % job->config->n_heads), first, left < job->unit_rows ? left : job->unit_rows,
                 &job->state->threads[thread]);
    }
}

void dse_cpu_expanded_attention(struct dse_device *device, const struct dse_device_weights *weights, int layer,
                                const struct dse_kv_layout *layout, const struct dse_rows *rows, const float *q,
                                float *out)
{
    struct cpu_state *state = device->state;
    struct expanded_job job = {.state = state,
                               .config = weights->config,
                               .layer = &weights->layers[layer],
                               .layer_index = layer,
                               .layout = layout,
                               .rows = rows,
                               .q = q,
                               .out = out,
                               .scale = dse_attention_scale(weights->config)};
    if (rows->n_rows == 0) return;
    /* Fewer heads than threads: the rows are shared out as well, although each share computes its keys anew. */
    const int heads = weights->config->n_heads, shares = (state->n_threads + heads - 1) / heads;
    const int share = (rows->n_rows + shares - 1) / shares;
    job.unit_rows = (share + DSE_ATTENTION_COLUMNS - 1) / DSE_ATTENTION_COLUMNS * DSE_ATTENTION_COLUMNS;
    if (job.unit_rows > CPU_EXPANDED_ROWS) job.unit_rows = CPU_EXPANDED_ROWS;
    job.n_parts = (rows->n_rows + job.unit_rows - 1) / job.unit_rows;
    dse_pool_run(device->pool, run_expanded, &job);
}
