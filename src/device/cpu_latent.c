/* Latent attention of the CPU device around its core: projections, norms, rope and the store of the latent rows, and
 * the per-head products with the two parts of kv_b. Called through the op table; the core itself is in cpu_attention.c.
 *
 * R kv_rank, Rq q_rank, H heads.
 */
#include <string.h>

#include "device/cpu_product.h"
#include "quant/types.h"

struct norm_job {
    const struct dse_vector_ops *vector;
    const float *weights;
    size_t n_rows, n;
    float *x; /* [n_rows][n], normed in place */
};

static void run_norm(void *context, int thread, int n_threads)
{
    const struct norm_job *job = context;
    size_t begin, end;
    dse_split(job->n_rows, 1, thread, n_threads, &begin, &end);
    for (size_t m = begin; m < end; m++)
        job->vector->rmsnorm(job->x + m * job->n, job->weights, job->n, DSE_LATENT_EPS, job->x + m * job->n);
}

void dse_cpu_latent_qkv(struct dse_device *device, const struct dse_config *config, const struct dse_layer *layer,
                        const struct dse_adaption *adaption, const float *x, int n_rows, float *q_latent, float *q,
                        float *ck)
{
    const struct cpu_state *state = device->state;
    const bool has_latent = config->latent.q_rank > 0;
    struct cpu_product_job first = {.x = x,
                                    .n_rows = (size_t)n_rows,
                                    .norm = layer->attn_norm,
                                    .eps = config->rms_eps,
                                    .products = {{has_latent ? &layer->q_a : &layer->q, NULL, has_latent ? q_latent : q,
                                                  has_latent ? DSE_SITE_Q_A : DSE_SITE_Q},
                                                 {&layer->kv_a, NULL, ck, DSE_SITE_KV_A}},
                                    .n_products = 2,
                                    .adaption = adaption};
    dse_cpu_run_products(device, &first);
    if (!has_latent) return;

    struct norm_job norm = {&state->kernels.vector, layer->q_a_norm, (size_t)n_rows, (size_t)config->latent.q_rank,
                            q_latent};
    if (n_rows <= CPU_PRIVATE_ROWS)
        run_norm(&norm, 0, 1);
    else
        dse_pool_run(device->pool, run_norm, &norm);
    struct cpu_product_job second = {.x = q_latent,
                                     .n_rows = (size_t)n_rows,
                                     .products = {{&layer->q_b, NULL, q, DSE_SITE_Q_B}},
                                     .n_products = 1,
                                     .adaption = adaption};
    dse_cpu_run_products(device, &second);
}

struct store_job {
    struct cpu_state *state;
    const struct dse_device_weights *weights;
    int layer;
    const struct dse_kv_layout *layout;
    const struct dse_rows *rows;
    float *q;
    const float *ck;
};

/* key: the normed latent, then the rotated part. */
static void store(const struct store_job *job, size_t m, const float *key)
{
    const struct dse_kv_layout *layout = job->layout;
    const struct dse_vector_ops *vector = &job->state->kernels.vector;
    const struct dse_kv_view *kv = &job->rows->kv[m];
    size_t position = (size_t)job->rows->positions[m], latent = (size_t)layout->latent, rope = (size_t)layout->rope;
    uint8_t *row = kv->pool + (size_t)kv->blocks[position / DSE_KV_BLOCK_TOKENS] * layout->block_bytes +
                   (size_t)job->layer * layout->layer_bytes + position % DSE_KV_BLOCK_TOKENS * layout->row_bytes;
    switch (layout->type) {
    case DSE_KV_F32: memcpy(row, key, (latent + rope) * sizeof *key); break;
    case DSE_KV_F16: vector->narrow(key, latent + rope, (uint16_t *)row); break;
    case DSE_KV_Q8_0:
        vector->shrink(key, latent, row);
        vector->narrow(key + latent, rope, (uint16_t *)(row + layout->row_bytes) - rope);
        break;
    }
}

static void run_store(void *context, int thread, int n_threads)
{
    const struct store_job *job = context;
    const struct dse_config *config = job->weights->config;
    const struct dse_layer *layer = &job->weights->layers[job->layer];
    size_t latent = (size_t)job->layout->latent, rope = (size_t)job->layout->rope, begin, end;
    size_t heads = (size_t)config->n_heads, d = (size_t)config->head_dim;
    float *key = job->state->threads[thread].k_head;
    dse_split((size_t)job->rows->n_rows, 1, thread, n_threads, &begin, &end);
    for (size_t m = begin; m < end; m++) {
        const struct cpu_angles angles = dse_cpu_angles(job->state, job->weights, job->rows, m);
        const float *ck = job->ck + m * (latent + rope);
        for (size_t h = 0; h < heads; h++)
            dse_cpu_rotate(job->q + (m * heads + h + 1) * d - rope, &angles, config->rope.pairs);
        job->state->kernels.vector.rmsnorm(ck, layer->kv_a_norm, latent, DSE_LATENT_EPS, key);
        memcpy(key + latent, ck + latent, rope * sizeof *key);
        dse_cpu_rotate(key + latent, &angles, config->rope.pairs);
        store(job, m, key);
    }
}

void dse_cpu_latent_store(struct dse_device *device, const struct dse_device_weights *weights, int layer,
                          const struct dse_kv_layout *layout, const struct dse_rows *rows, float *q, const float *ck)
{
    struct store_job job = {device->state, weights, layer, layout, rows, q, ck};
    dse_cpu_angles_begin(device->state, weights);
    /* waking the others costs more than a row takes */
    if (rows->n_rows <= CPU_PRIVATE_ROWS)
        run_store(&job, 0, 1);
    else
        dse_pool_run(device->pool, run_store, &job);
}

struct head_job {
    struct cpu_state *state;
    const struct dse_head_matrix *w;
    const float *x;
    size_t x_stride, n_rows;
    float *y;
    size_t n_chunks; /* of rows */
    atomic_size_t next;
};

/* Panels [begin, end) of head h for n rows from `first` on. */
static void run_head(const struct head_job *job, size_t h, size_t first, size_t n, size_t begin, size_t end,
                     void *memory)
{
    struct dse_matrix w = job->w->head;
    size_t heads = (size_t)job->w->n_heads, row_end = end * DSE_PANEL_ROWS;
    w.data = (const uint8_t *)w.data + h * job->w->head_bytes;
    struct dse_activation act = {.x = job->x + (first * heads + h) * job->x_stride, .stride = heads * job->x_stride};
    dse_activation_place(&act, memory, n, w.cols);
    if (dse_layout_uses_s8(w.layout)) dse_activation_quantize(&act, w.cols, 0, n);
    dse_matmul(&w, &act, n, begin * DSE_PANEL_ROWS, row_end < w.rows ? row_end : w.rows, NULL, false,
               job->y + (first * heads + h) * w.rows, heads * w.rows);
}

/* Each thread a fixed share of all heads' panels. */
static void run_heads_few_rows(void *context, int thread, int n_threads)
{
    const struct head_job *job = context;
    size_t panels = cpu_panels_of(&job->w->head), begin, end;
    dse_split((size_t)job->w->n_heads * panels, 1, thread, n_threads, &begin, &end);
    while (begin < end) {
        size_t h = begin / panels, stop = (h + 1) * panels < end ? (h + 1) * panels : end;
        run_head(job, h, 0, job->n_rows, begin - h * panels, stop - h * panels, job->state->threads[thread].activation);
        begin = stop;
    }
}

/* Units of (head, rows); the chunks of a head follow each other, its weights in the cache. */
static void run_heads_many_rows(void *context, int thread, int n_threads)
{
    struct head_job *job = context;
    size_t panels = cpu_panels_of(&job->w->head), n_units = (size_t)job->w->n_heads * job->n_chunks;
    for (;;) {
        size_t unit = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed);
        if (unit >= n_units) return;
        size_t first = unit % job->n_chunks * CPU_HEAD_ROWS, left = job->n_rows - first;
        run_head(job, unit / job->n_chunks, first, left < CPU_HEAD_ROWS ? left : CPU_HEAD_ROWS, 0, panels,
                 job->state->threads[thread].activation);
    }
}

void dse_cpu_head_project(struct dse_device *device, const struct dse_head_matrix *w, const float *x, size_t x_stride,
                          int n_rows, float *y)
{
    struct head_job job = {.state = device->state,
                           .w = w,
                           .x = x,
                           .x_stride = x_stride,
                           .n_rows = (size_t)n_rows,
                           .y = y,
                           .n_chunks = ((size_t)n_rows + CPU_HEAD_ROWS - 1) / CPU_HEAD_ROWS};
    if (n_rows == 0) return;
    dse_pool_run(device->pool, n_rows <= CPU_PRIVATE_ROWS ? run_heads_few_rows : run_heads_many_rows, &job);
}
