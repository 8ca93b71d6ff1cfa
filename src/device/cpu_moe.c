/* The experts of a layer: x += sum over a row's experts of weight * down(silu(gate) * up), the shared expert last.
 *
 * A slot is one (expert, row) pair; slots are sorted by expert, so that an expert's weights are read once for all rows
 * that chose it. The shared expert is one more expert that every row chose, with weight 1. Four stages with all threads
 * meeting in between: rows normed and quantized once each; gate and up, by units of (expert, rows, panels); their
 * results quantized; down, by units of output columns. In the last stage one thread adds all experts into its columns
 * in ascending order, so that a row's sum does not depend on which rows shared the call or on the threads.
 */
#include <string.h>

#include "device/cpu_product.h"

struct moe_job {
    struct cpu_state *state;
    struct dse_pool *pool;
    const struct dse_config *config;
    const struct dse_layer *layer;
    const struct dse_routes *routes;
    const struct dse_adaption *adaption; /* of the shared expert's gate or up; NULL: none */
    float *x;
    size_t n_rows, n_slots;              /* slots without the shared expert's */
    bool s8_up, s8_slots, s8_shared;     /* some matrix reads the s8 form: of the rows, of the stage between */
    struct dse_activation rows;          /* [n_rows][D] */
    struct dse_activation slots, shared; /* [n_slots][F], [n_rows][S*F] */
    size_t down_panels;                  /* of one unit */
    atomic_size_t next_up, next_down;
};

static const enum dse_adapter_site shared_sites[] = {DSE_SITE_SHARED_GATE, DSE_SITE_SHARED_UP};

static size_t cut(size_t n, size_t piece)
{
    return (n + piece - 1) / piece;
}

/* One expert's part of the work: its matrices, its slots, its activations between the stages. */
struct part {
    const struct dse_expert *expert;
    const struct cpu_slot *slots; /* NULL: the shared expert, slot i is row i */
    size_t n;
    struct dse_activation hidden; /* of its first slot */
};

/* i in [0, n_active], the last being the shared expert; parts without rows or matrices have n = 0. */
static struct part part_at(const struct moe_job *job, int i)
{
    const struct cpu_moe *moe = &job->state->moe;
    if (i == moe->n_active) {
        bool exists = job->layer->shared.gate.rows > 0;
        return (struct part){&job->layer->shared, NULL, exists ? job->n_rows : 0, job->shared};
    }
    int32_t e = moe->active[i];
    size_t first = moe->first_slot[e], n = moe->first_slot[e + 1] - first;
    return (struct part){&job->layer->experts[e], moe->slots + first, n,
                         cpu_activation_from(&job->slots, (size_t)job->config->moe.n_ff, first)};
}

/* Counting sort of the slots by expert; within an expert rows ascend. */
static void sort_slots(struct moe_job *job)
{
    struct cpu_moe *moe = &job->state->moe;
    const size_t n_experts = (size_t)job->config->moe.n_experts, used = (size_t)job->routes->n_used;
    memset(moe->first_slot, 0, (n_experts + 2) * sizeof *moe->first_slot);
    for (size_t i = 0; i < job->n_slots; i++)
        moe->first_slot[job->routes->experts[i] + 2]++;
    for (size_t e = 2; e <= n_experts + 1; e++)
        moe->first_slot[e] += moe->first_slot[e - 1];
    /* first_slot[e + 1] now is where expert e begins; filling moves it to where e ends, which is where e + 1 begins */
    for (size_t i = 0; i < job->n_slots; i++) {
        size_t at = moe->first_slot[job->routes->experts[i] + 1]++;
        moe->slots[at] = (struct cpu_slot){(int32_t)(i / used), job->routes->weights[i]};
    }
    moe->n_active = 0;
    for (size_t e = 0; e < n_experts; e++)
        if (moe->first_slot[e + 1] > moe->first_slot[e]) moe->active[moe->n_active++] = (int32_t)e;
}

static bool reads_s8(const struct dse_expert *expert)
{
    return dse_layout_uses_s8(expert->gate.layout) || dse_layout_uses_s8(expert->up.layout);
}

static void note_layouts(struct moe_job *job)
{
    for (int i = 0; i <= job->state->moe.n_active; i++) {
        const struct part part = part_at(job, i);
        if (part.n == 0) continue;
        if (reads_s8(part.expert)) job->s8_up = true;
        if (dse_layout_uses_s8(part.expert->down.layout))
            *(part.slots != NULL ? &job->s8_slots : &job->s8_shared) = true;
    }
}

static void copy_row(const struct dse_activation *from, size_t row, const struct dse_activation *to, size_t at,
                     size_t cols, bool s8)
{
    const size_t blocks = cols / DSE_ACT_BLOCK;
    if (!s8) {
        memcpy((float *)to->x + at * to->stride, from->x + row * from->stride, cols * sizeof(float));
        return;
    }
    memcpy(to->values + at * cols, from->values + row * cols, cols);
    memcpy(to->scales + at * blocks, from->scales + row * blocks, blocks * sizeof(float));
    memcpy(to->sums + at * blocks, from->sums + row * blocks, blocks * sizeof(float));
    memcpy(to->half_sums + at * 2 * blocks, from->half_sums + row * 2 * blocks, 2 * blocks * sizeof(int16_t));
}

/* The normed rows of slots [first, first + n) side by side. */
static struct dse_activation gather(const struct moe_job *job, const struct part *part, size_t first, size_t n,
                                    struct cpu_thread *own)
{
    const size_t cols = part->expert->gate.cols;
    if (part->slots == NULL) return cpu_activation_from(&job->rows, cols, first);
    struct dse_activation act = {.x = own->gathered, .stride = cols};
    dse_activation_place(&act, own->gathered_s8, CPU_MOE_ROWS, cols);
    const bool f32 = !dse_layout_uses_s8(part->expert->gate.layout) || !dse_layout_uses_s8(part->expert->up.layout);
    for (size_t i = 0; i < n; i++) {
        size_t row = (size_t)part->slots[first + i].row;
        if (job->s8_up) copy_row(&job->rows, row, &act, i, cols, true);
        if (f32) copy_row(&job->rows, row, &act, i, cols, false);
    }
    return act;
}

static void run_up_unit(const struct moe_job *job, const struct part *part, size_t unit, struct cpu_thread *own)
{
    const struct dse_matrix *gate = &part->expert->gate, *up = &part->expert->up;
    const size_t across = cut(cpu_panels_of(gate), CPU_MOE_PANELS), width = gate->rows;
    size_t first = unit / across * CPU_MOE_ROWS, begin = unit % across * CPU_MOE_PANELS * DSE_PANEL_ROWS;
    size_t n = part->n - first < CPU_MOE_ROWS ? part->n - first : CPU_MOE_ROWS;
    size_t end = begin + CPU_MOE_PANELS * DSE_PANEL_ROWS < width ? begin + CPU_MOE_PANELS * DSE_PANEL_ROWS : width;
    const struct dse_activation act = gather(job, part, first, n, own);
    float *h = (float *)part->hidden.x + first * width;
    const struct dse_adaption *adaption = part->slots == NULL ? job->adaption : NULL;
    dse_matmul(gate, &act, n, begin, end, NULL, false, h, width);
    if (adaption != NULL) dse_cpu_low_add(adaption, shared_sites[0], 0, first, n, begin, end, h + begin, width);
    struct dse_matrix rest = *up;
    rest.data = (const uint8_t *)up->data + begin / DSE_PANEL_ROWS * up->panel_bytes;
    rest.rows = end - begin;
    dse_matmul(&rest, &act, n, 0, rest.rows, NULL, false, own->expert, rest.rows);
    if (adaption != NULL) dse_cpu_low_add(adaption, shared_sites[1], 1, first, n, begin, end, own->expert, rest.rows);
    for (size_t i = 0; i < n; i++)
        job->state->kernels.vector.silu_mul(h + i * width + begin, own->expert + i * rest.rows, rest.rows,
                                            h + i * width + begin);
}

static void run_up(struct moe_job *job, struct cpu_thread *own)
{
    const int n_parts = job->state->moe.n_active + 1;
    size_t passed = 0; /* units of the parts before; units ascend, so the search goes on where it was */
    int i = 0;
    struct part part = part_at(job, 0);
    for (;;) {
        size_t unit = atomic_fetch_add_explicit(&job->next_up, 1, memory_order_relaxed), units;
        while (units = cut(part.n, CPU_MOE_ROWS) * cut(cpu_panels_of(&part.expert->gate), CPU_MOE_PANELS),
               unit >= passed + units) {
            passed += units;
            if (++i == n_parts) return;
            part = part_at(job, i);
        }
        run_up_unit(job, &part, unit - passed, own);
    }
}

/* Output columns [begin, end) of all experts, into x. */
static void run_down_unit(const struct moe_job *job, size_t begin, size_t end, struct cpu_thread *own)
{
    const size_t width = (size_t)job->config->n_embd, columns = end - begin;
    for (int i = 0; i <= job->state->moe.n_active; i++) {
        const struct part part = part_at(job, i);
        struct dse_matrix down = part.expert->down;
        down.data = (const uint8_t *)down.data + begin / DSE_PANEL_ROWS * down.panel_bytes;
        down.rows = columns;
        for (size_t first = 0; first < part.n; first += CPU_MOE_ROWS) {
            size_t n = part.n - first < CPU_MOE_ROWS ? part.n - first : CPU_MOE_ROWS;
            const struct dse_activation act = cpu_activation_from(&part.hidden, down.cols, first);
            dse_matmul(&down, &act, n, 0, columns, NULL, false, own->expert, columns);
            for (size_t s = 0; s < n; s++) {
                const struct cpu_slot slot = part.slots != NULL ? part.slots[first + s]
                                                                : (struct cpu_slot){(int32_t)(first + s), 1.0f};
                float *out = job->x + (size_t)slot.row * width + begin;
                const float *y = own->expert + s * columns;
                for (size_t c = 0; c < columns; c++)
                    out[c] += slot.weight * y[c];
            }
        }
    }
}

static void quantize_hidden(struct moe_job *job, int thread, int n_threads)
{
    size_t begin, end;
    dse_split(job->n_slots, 1, thread, n_threads, &begin, &end);
    if (job->s8_slots) dse_activation_quantize(&job->slots, (size_t)job->config->moe.n_ff, begin, end);
    dse_split(job->n_rows, 1, thread, n_threads, &begin, &end);
    if (job->s8_shared) dse_activation_quantize(&job->shared, job->layer->shared.gate.rows, begin, end);
}

static void run_moe(void *context, int thread, int n_threads)
{
    struct moe_job *job = context;
    struct cpu_state *state = job->state;
    struct cpu_thread *own = &state->threads[thread];
    const size_t width = (size_t)job->config->n_embd;
    size_t begin, end;
    dse_split(job->n_rows, 1, thread, n_threads, &begin, &end);
    for (size_t m = begin; m < end; m++)
        state->kernels.vector.rmsnorm(job->x + m * width, job->layer->ffn_norm, width, job->config->rms_eps,
                                      state->normed + m * width);
    if (job->s8_up) dse_activation_quantize(&job->rows, width, begin, end);
    dse_pool_barrier(job->pool);
    if (job->adaption != NULL) {
        dse_cpu_low_project(job->adaption, shared_sites, 2, state->normed, width, thread, n_threads);
        dse_pool_barrier(job->pool);
    }
    run_up(job, own);
    dse_pool_barrier(job->pool);
    if (job->s8_slots || job->s8_shared) {
        quantize_hidden(job, thread, n_threads);
        dse_pool_barrier(job->pool);
    }
    const size_t n_panels = (width + DSE_PANEL_ROWS - 1) / DSE_PANEL_ROWS;
    for (;;) {
        size_t unit = atomic_fetch_add_explicit(&job->next_down, 1, memory_order_relaxed);
        size_t first = unit * job->down_panels;
        if (first >= n_panels) return;
        size_t last = first + job->down_panels < n_panels ? first + job->down_panels : n_panels;
        run_down_unit(job, first * DSE_PANEL_ROWS, last * DSE_PANEL_ROWS < width ? last * DSE_PANEL_ROWS : width, own);
    }
}

void dse_cpu_moe(struct dse_device *device, const struct dse_config *config, const struct dse_layer *layer,
                 const struct dse_adaption *adaption, const struct dse_routes *routes, int n_rows, float *x)
{
    struct cpu_state *state = device->state;
    const size_t rows = (size_t)n_rows, width = (size_t)config->n_embd, ff = (size_t)config->moe.n_ff;
    struct moe_job job = {.state = state,
                          .pool = device->pool,
                          .config = config,
                          .layer = layer,
                          .routes = routes,
                          .adaption = dse_cpu_low_needed(adaption, shared_sites, 2) ? adaption : NULL,
                          .x = x,
                          .n_rows = rows,
                          .n_slots = rows * (size_t)routes->n_used,
                          .rows = {.x = state->normed, .stride = width},
                          .slots = {.x = state->moe.hidden, .stride = ff},
                          .shared = {.x = state->moe.shared, .stride = layer->shared.gate.rows}};
    if (n_rows == 0) return;
    sort_slots(&job);
    note_layouts(&job);
    dse_activation_place(&job.rows, state->activation, rows, width);
    dse_activation_place(&job.slots, state->moe.hidden_s8, job.n_slots, ff);
    dse_activation_place(&job.shared, state->moe.shared_s8, rows, layer->shared.gate.rows);
    const size_t panels = (width + DSE_PANEL_ROWS - 1) / DSE_PANEL_ROWS;
    job.down_panels = panels / ((size_t)state->n_threads * 4);
    if (job.down_panels < 1) job.down_panels = 1;
    if (job.down_panels > CPU_MOE_PANELS) job.down_panels = CPU_MOE_PANELS;
    dse_pool_run(device->pool, run_moe, &job);
    /* what the shared expert's down takes in is still there */
    dse_cpu_low_product(device, adaption, DSE_SITE_SHARED_DOWN, job.shared.x, job.shared.stride, n_rows, x, width);
}
