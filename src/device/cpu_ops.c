/* Matrix products of the CPU device with what is fused around them: norm and quantization before, SiLU after.
 *
 * Few rows (decode): each thread prepares the activations in memory of its own, which is cheaper than meeting the
 * others, and computes a fixed share of the panels, the same in every token, so that its weights stay in its caches and
 * TLB.
 * Many rows (prefill): threads prepare shares of the rows, meet once, then take units of rows x panels from a counter.
 * Either way an output element is one dse_matmul sum over one prepared row: the same bits.
 */
#include <string.h>

#include "device/cpu_product.h"

/* Where the prepared rows of a job go: x, stride and the s8 arrays. */
static struct dse_activation place(const struct cpu_product_job *job, float *normed, void *memory, size_t n_rows)
{
    struct dse_activation act = {.x = job->norm != NULL ? normed : job->x, .stride = job->cols};
    dse_activation_place(&act, memory, n_rows, job->cols);
    return act;
}

static void prepare(const struct cpu_product_job *job, struct dse_activation *act, float *normed, size_t begin,
                    size_t end)
{
    for (size_t m = begin; m < end; m++) {
        size_t row = job->row_index != NULL ? (size_t)job->row_index[m] : m;
        if (job->norm != NULL)
            job->state->kernels.vector.rmsnorm(job->x + row * job->cols, job->norm, job->cols, job->eps,
                                               normed + m * job->cols);
        if (job->uses_s8) dse_activation_quantize(act, job->cols, m, m + 1);
    }
}

/* The first step of adapters: x are the rows that the products meet. */
static void project_low(const struct cpu_product_job *job, const float *x, int thread, int n_threads)
{
    dse_cpu_low_project(job->adaption, job->sites, job->n_products, x, job->cols, thread, n_threads);
    dse_pool_barrier(job->pool);
}

/* The second step: y begins at row `first` and column `begin`. */
static void add_low(const struct cpu_product_job *job, int product, size_t first, size_t n, size_t begin, size_t end,
                    float *y, size_t stride)
{
    if (job->adaption != NULL)
        dse_cpu_low_add(job->adaption, job->products[product].site, product, first, n, begin, end, y, stride);
}

/* silu(gate) * up for panels [begin, end) of n rows starting at row first; act starts at that row. */
static void run_gated(const struct cpu_product_job *job, const struct dse_activation *act, size_t first, size_t n,
                      size_t begin, size_t end, float *up)
{
    const struct dse_matrix *gate = job->products[0].w;
    for (size_t panel = begin; panel < end; panel += CPU_CHUNK_PANELS) {
        size_t row = panel * DSE_PANEL_ROWS;
        size_t row_end = (end - panel < CPU_CHUNK_PANELS ? end : panel + CPU_CHUNK_PANELS) * DSE_PANEL_ROWS;
        if (row_end > gate->rows) row_end = gate->rows;
        const size_t stride = (size_t)CPU_CHUNK_PANELS * DSE_PANEL_ROWS;
        float *h = job->products[0].y + first * gate->rows;
        dse_matmul(gate, act, n, row, row_end, NULL, false, h, gate->rows);
        add_low(job, 0, first, n, row, row_end, h + row, gate->rows);
        struct dse_matrix part = *job->products[1].w;
        part.data = (const uint8_t *)part.data + panel * part.panel_bytes;
        part.rows = row_end - row;
        dse_matmul(&part, act, n, 0, part.rows, NULL, false, up, stride);
        add_low(job, 1, first, n, row, row_end, up, stride);
        for (size_t m = 0; m < n; m++)
            job->state->kernels.vector.silu_mul(h + m * gate->rows + row, up + m * stride, row_end - row,
                                                h + m * gate->rows + row);
    }
}

/* Panels [begin, end), counted over all products. */
static void run_panels(const struct cpu_product_job *job, const struct dse_activation *act, size_t first, size_t n,
                       size_t begin, size_t end, float *up)
{
    struct dse_activation rows = cpu_activation_from(act, job->cols, first);
    if (job->gated) {
        run_gated(job, &rows, first, n, begin, end, up);
        return;
    }
    size_t offset = 0;
    for (int i = 0; i < job->n_products; i++) {
        const struct cpu_product *p = &job->products[i];
        size_t panels = cpu_panels_of(p->w);
        size_t b = begin > offset ? begin - offset : 0, e = end > offset ? end - offset : 0;
        if (e > panels) e = panels;
        if (b < e) {
            size_t row_end = e * DSE_PANEL_ROWS < p->w->rows ? e * DSE_PANEL_ROWS : p->w->rows;
            float *y = p->y + first * p->w->rows;
            dse_matmul(p->w, &rows, n, b * DSE_PANEL_ROWS, row_end, p->bias, job->add, y, p->w->rows);
            add_low(job, i, first, n, b * DSE_PANEL_ROWS, row_end, y + b * DSE_PANEL_ROWS, p->w->rows);
        }
        offset += panels;
    }
}

static void run_few_rows(void *context, int thread, int n_threads)
{
    struct cpu_product_job *job = context;
    struct cpu_thread *own = &job->state->threads[thread];
    size_t begin, end;
    dse_split(job->n_panels, 1, thread, n_threads, &begin, &end);
    if (begin == end && job->adaption == NULL) return;
    struct dse_activation act = place(job, own->normed, own->activation, job->n_rows);
    prepare(job, &act, own->normed, 0, job->n_rows);
    if (job->adaption != NULL) project_low(job, act.x, thread, n_threads);
    run_panels(job, &act, 0, job->n_rows, begin, end, own->up);
}

static void run_many_rows(void *context, int thread, int n_threads)
{
    struct cpu_product_job *job = context;
    struct cpu_state *state = job->state;
    struct dse_activation act = place(job, state->normed, state->activation, job->n_rows);
    if (job->norm != NULL || job->uses_s8) {
        size_t begin, end;
        dse_split(job->n_rows, 1, thread, n_threads, &begin, &end);
        prepare(job, &act, state->normed, begin, end);
        dse_pool_barrier(job->pool);
    }
    if (job->adaption != NULL) project_low(job, act.x, thread, n_threads);
    size_t across = (job->n_panels + CPU_CHUNK_PANELS - 1) / CPU_CHUNK_PANELS;
    size_t down = (job->n_rows + CPU_CHUNK_ROWS - 1) / CPU_CHUNK_ROWS;
    for (;;) {
        size_t unit = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed);
        if (unit >= across * down) return;
        size_t first = unit / across * CPU_CHUNK_ROWS, begin = unit % across * CPU_CHUNK_PANELS;
        size_t n = job->n_rows - first < CPU_CHUNK_ROWS ? job->n_rows - first : CPU_CHUNK_ROWS;
        size_t end = job->n_panels - begin < CPU_CHUNK_PANELS ? job->n_panels : begin + CPU_CHUNK_PANELS;
        run_panels(job, &act, first, n, begin, end, state->threads[thread].up);
    }
}

void dse_cpu_run_products(struct dse_device *device, struct cpu_product_job *job)
{
    if (job->n_rows == 0) return;
    job->state = device->state;
    job->pool = device->pool;
    job->cols = job->products[0].w->cols;
    for (int i = 0; i < job->n_products; i++) {
        if (dse_layout_uses_s8(job->products[i].w->layout)) job->uses_s8 = true;
        job->sites[i] = job->products[i].site;
        if (i == 0 || !job->gated) job->n_panels += cpu_panels_of(job->products[i].w);
    }
    if (!dse_cpu_low_needed(job->adaption, job->sites, job->n_products)) job->adaption = NULL;
    dse_pool_run(device->pool, job->n_rows <= CPU_PRIVATE_ROWS ? run_few_rows : run_many_rows, job);
}

void dse_cpu_qkv(struct dse_device *device, const struct dse_config *config, const struct dse_layer *layer,
                 const struct dse_adaption *adaption, const float *x, int n_rows, float *q, float *k, float *v)
{
    struct cpu_product_job job = {.x = x,
                                  .n_rows = (size_t)n_rows,
                                  .norm = layer->attn_norm,
                                  .eps = config->rms_eps,
                                  .products = {{&layer->q, layer->q_bias, q, DSE_SITE_Q},
                                               {&layer->k, layer->k_bias, k, DSE_SITE_K},
                                               {&layer->v, layer->v_bias, v, DSE_SITE_V}},
                                  .n_products = 3,
                                  .adaption = adaption};
    dse_cpu_run_products(device, &job);
}

void dse_cpu_project_add(struct dse_device *device, const struct dse_matrix *w, const struct dse_adaption *adaption,
                         enum dse_adapter_site site, const float *in, int n_rows, float *x)
{
    struct cpu_product_job job = {.x = in,
                                  .n_rows = (size_t)n_rows,
                                  .products = {{w, NULL, x, site}},
                                  .n_products = 1,
                                  .adaption = adaption,
                                  .add = true};
    dse_cpu_run_products(device, &job);
}

void dse_cpu_ffn_up(struct dse_device *device, const struct dse_config *config, const struct dse_layer *layer,
                    const struct dse_adaption *adaption, const float *x, int n_rows, float *h)
{
    struct cpu_product_job job = {
        .x = x,
        .n_rows = (size_t)n_rows,
        .norm = layer->ffn_norm,
        .eps = config->rms_eps,
        .products = {{&layer->gate, NULL, h, DSE_SITE_GATE}, {&layer->up, NULL, NULL, DSE_SITE_UP}},
        .n_products = 2,
        .adaption = adaption,
        .gated = true};
    dse_cpu_run_products(device, &job);
}

void dse_cpu_logits(struct dse_device *device, const struct dse_device_weights *weights, const float *norm,
                    const float *x, const int32_t *row_index, int n_out, float *logits)
{
    struct cpu_state *state = device->state;
    for (int done = 0; done < n_out; done += state->max_rows) {
        int n = n_out - done < state->max_rows ? n_out - done : state->max_rows;
        struct cpu_product_job job = {
            .x = x,
            .row_index = row_index + done,
            .n_rows = (size_t)n,
            .norm = norm,
            .eps = weights->config->rms_eps,
            .products = {{&weights->output, NULL, logits + (size_t)done * weights->output.rows}},
            .n_products = 1};
        dse_cpu_run_products(device, &job);
    }
}

struct embed_job {
    const struct dse_tensor *table;
    const struct dse_rows *rows;
    float *x;
};

static void embed_row(const struct dse_tensor *table, int32_t token, float *out)
{
    size_t cols = table->shape[1], row_bytes = table->bytes / table->shape[0];
    /* the engine checks tokens; an id beyond the table must still not become a wild read */
    if (token < 0 || (size_t)token >= table->shape[0])
        memset(out, 0, cols * sizeof *out);
    else
        dse_type_decode(table->type, (const uint8_t *)table->data + (size_t)token * row_bytes, out, cols);
}

static void run_embed(void *context, int thread, int n_threads)
{
    const struct embed_job *job = context;
    size_t begin, end;
    dse_split((size_t)job->rows->n_rows, 1, thread, n_threads, &begin, &end);
    for (size_t m = begin; m < end; m++)
        embed_row(job->table, job->rows->tokens[m], job->x + m * job->table->shape[1]);
}

void dse_cpu_embed(struct dse_device *device, const struct dse_tensor *table, const struct dse_rows *rows, float *x)
{
    struct embed_job job = {table, rows, x};
    if (rows->n_rows <= CPU_PRIVATE_ROWS)
        run_embed(&job, 0, 1);
    else
        dse_pool_run(device->pool, run_embed, &job);
}

struct join_job {
    const struct cpu_state *state;
    const struct dse_device_weights *weights;
    const struct dse_layer *layer;
    const struct dse_rows *rows;
    const float *x;
    float *joined;
};

/* Both halves are normed where they will be read: rmsnorm may write over its input. */
static void run_join(void *context, int thread, int n_threads)
{
    const struct join_job *job = context;
    dse_rmsnorm_fn *rmsnorm = job->state->kernels.vector.rmsnorm;
    const size_t width = (size_t)job->weights->config->n_embd;
    const float eps = job->weights->config->rms_eps;
    size_t begin, end;
    dse_split((size_t)job->rows->n_rows, 1, thread, n_threads, &begin, &end);
    for (size_t m = begin; m < end; m++) {
        float *embedding = job->joined + m * 2 * width, *hidden = embedding + width;
        embed_row(job->weights->token_embd, job->rows->tokens[m], embedding);
        rmsnorm(embedding, job->layer->mtp_embd_norm, width, eps, embedding);
        rmsnorm(job->x + m * width, job->weights->output_norm, width, eps, hidden);
        rmsnorm(hidden, job->layer->mtp_hidden_norm, width, eps, hidden);
    }
}

void dse_cpu_mtp_input(struct dse_device *device, const struct dse_device_weights *weights,
                       const struct dse_layer *layer, const struct dse_rows *rows, float *joined, float *x)
{
    struct join_job join = {device->state, weights, layer, rows, x, joined};
    if (rows->n_rows <= CPU_PRIVATE_ROWS)
        run_join(&join, 0, 1);
    else
        dse_pool_run(device->pool, run_join, &join);
    struct cpu_product_job job = {
        .x = joined, .n_rows = (size_t)rows->n_rows, .products = {{&layer->mtp_project, NULL, x}}, .n_products = 1};
    dse_cpu_run_products(device, &job);
}
