/* Attention over a batch: cuts it into tiles of rows, kv heads and 256-key splits, and merges the splits in order.
 *
 * Many tiles: a thread takes a (tile, kv head) and walks its splits itself. Few tiles (decode): the splits are spread over
 * the threads as well; partial results wait in slots and are merged afterwards. Both merge the same partial results in
 * ascending order, so the bits are the same; nothing depends on which thread did what.
 */
#include <stdatomic.h>
#include <math.h>
#include <string.h>

#include "device/cpu.h"

struct attention_job {
    struct cpu_state *state;
    struct dse_pool *pool;
    const struct dse_config *config;
    int layer;
    const struct dse_kv_layout *layout;
    const struct dse_rows *rows;
    const float *q;
    float *out;
    int n_tiles, heads_per_unit, units_per_tile;
    int wave_first, wave_splits, max_splits; /* splits over the threads: [wave_first, + wave_splits) */
    atomic_int next, next_merge;
};

/* A (tile, some query heads of one kv head). */
struct unit {
    const struct cpu_tile *rows;
    int kv_head, first_head, n_heads, n_splits;
};

static struct unit unit_at(const struct attention_job *job, int index)
{
    int group = job->config->n_heads / job->config->n_kv_heads;
    int parts = (group + job->heads_per_unit - 1) / job->heads_per_unit;
    int within = index % job->units_per_tile, part = within % parts;
    struct unit u = {.rows = &job->state->tiles[index / job->units_per_tile], .kv_head = within / parts};
    u.first_head = u.kv_head * group + part * job->heads_per_unit;
    int left = group - part * job->heads_per_unit;
    u.n_heads = left < job->heads_per_unit ? left : job->heads_per_unit;
    int last = job->rows->positions[u.rows->first_row + u.rows->n_rows - 1];
    u.n_splits = last / DSE_KV_SPLIT_TOKENS + 1;
    return u;
}

/* Rows of one sequence, ascending and adjacent in the batch, at most `limit` of them to a tile. */
static int cut_tiles(struct cpu_state *state, const struct dse_rows *rows, int limit)
{
    int n = 0;
    for (int m = 0; m < rows->n_rows; m++) {
        struct cpu_tile *last = n > 0 ? &state->tiles[n - 1] : NULL;
        if (last != NULL && last->n_rows < limit && rows->kv[m].blocks == rows->kv[m - 1].blocks &&
            rows->kv[m].pool == rows->kv[m - 1].pool && rows->positions[m] > rows->positions[m - 1])
            last->n_rows++;
        else
            state->tiles[n++] = (struct cpu_tile){m, 1};
    }
    return n;
}

static struct dse_attention_tile tile_of(const struct attention_job *job, const struct unit *u,
                                         const struct cpu_thread *own)
{
    return (struct dse_attention_tile){.layout = job->layout,
                                       .kv = &job->rows->kv[u->rows->first_row],
                                       .layer = job->layer,
                                       .kv_head = u->kv_head,
                                       .n_rows = u->rows->n_rows,
                                       .group = u->n_heads,
                                       .positions = job->rows->positions + u->rows->first_row,
                                       .q = own->q,
                                       .scores = own->scores,
                                       .block = own->block};
}

static void load_queries(const struct attention_job *job, const struct unit *u, float *out)
{
    size_t d = (size_t)job->config->head_dim, width = dse_attention_width(job->config->head_dim);
    float scale = 1.0f / sqrtf((float)d);
    for (int r = 0; r < u->rows->n_rows; r++) {
        for (int h = 0; h < u->n_heads; h++, out += width) {
            size_t row = (size_t)(u->rows->first_row + r);
            const float *q = job->q + (row * (size_t)job->config->n_heads + (size_t)(u->first_head + h)) * d;
            for (size_t i = 0; i < d; i++)
                out[i] = q[i] * scale;
        }
    }
}

static void store_result(const struct attention_job *job, const struct unit *u, const float *l, const float *o)
{
    size_t d = (size_t)job->config->head_dim, width = dse_attention_width(job->config->head_dim);
    for (int r = 0; r < u->rows->n_rows; r++) {
        for (int h = 0; h < u->n_heads; h++, l++, o += width) {
            size_t row = (size_t)(u->rows->first_row + r);
            float *out = job->out + (row * (size_t)job->config->n_heads + (size_t)(u->first_head + h)) * d;
            float inverse = 1.0f / *l;
            for (size_t i = 0; i < d; i++)
                out[i] = o[i] * inverse;
        }
    }
}

/* m, l, o of all columns of a unit. */
struct partial {
    float *m, *l, *o;
};

static struct partial slot_at(const struct cpu_state *state, float *slots, size_t index)
{
    float *at = slots + index * state->slot_floats;
    return (struct partial){at, at + DSE_ATTENTION_COLUMNS, at + 2 * DSE_ATTENTION_COLUMNS};
}

/* Merges the partial result of a split into the running one, for the rows that see keys of it. */
static void merge(const struct attention_job *job, const struct unit *u, int split, struct partial sum,
                  struct partial part)
{
    size_t width = dse_attention_width(job->config->head_dim);
    for (int r = 0; r < u->rows->n_rows; r++) {
        if (job->rows->positions[u->rows->first_row + r] / DSE_KV_SPLIT_TOKENS < split) continue;
        for (size_t c = (size_t)r * (size_t)u->n_heads; c < (size_t)(r + 1) * (size_t)u->n_heads; c++)
            job->state->kernels.vector.softmax_merge(&sum.m[c], &sum.l[c], sum.o + c * width, part.m[c], part.l[c],
                                                     part.o + c * width, width);
    }
}

static void run_whole(void *context, int thread, int n_threads)
{
    struct attention_job *job = context;
    struct cpu_state *state = job->state;
    struct cpu_thread *own = &state->threads[thread];
    struct partial part = {own->m, own->l, own->o}, sum = slot_at(state, state->running, (size_t)thread);
    int n_units = job->n_tiles * job->units_per_tile;
    for (;;) {
        int index = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed);
        if (index >= n_units) return;
        /* the last rows of a prompt have the most keys: longest first, so that nobody waits for one at the end */
        struct unit u = unit_at(job, n_units - 1 - index);
        struct dse_attention_tile tile = tile_of(job, &u, own);
        load_queries(job, &u, own->q);
        dse_attention_split(&state->kernels, &tile, 0, sum.m, sum.l, sum.o);
        for (int split = 1; split < u.n_splits; split++) {
            dse_attention_split(&state->kernels, &tile, split, part.m, part.l, part.o);
            merge(job, &u, split, sum, part);
        }
        store_result(job, &u, sum.l, sum.o);
    }
}

/* Partial results of this wave's splits. Neighbouring indices are splits of one unit. */
static void compute_wave(struct attention_job *job, struct cpu_thread *own, int n_units)
{
    struct cpu_state *state = job->state;
    int loaded = -1;
    for (;;) {
        int index = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed);
        if (index >= n_units * job->wave_splits) return;
        struct unit u = unit_at(job, index / job->wave_splits);
        int split = job->wave_first + index % job->wave_splits;
        if (split >= u.n_splits) continue;
        struct dse_attention_tile tile = tile_of(job, &u, own);
        if (loaded != index / job->wave_splits) load_queries(job, &u, own->q);
        loaded = index / job->wave_splits;
        struct partial part = slot_at(state, state->slots, (size_t)index);
        dse_attention_split(&state->kernels, &tile, split, part.m, part.l, part.o);
    }
}

static void merge_wave(struct attention_job *job, int n_units)
{
    struct cpu_state *state = job->state;
    for (;;) {
        int index = atomic_fetch_add_explicit(&job->next_merge, 1, memory_order_relaxed);
        if (index >= n_units) return;
        struct unit u = unit_at(job, index);
        size_t columns = (size_t)(u.rows->n_rows * u.n_heads), width = dse_attention_width(job->config->head_dim);
        struct partial sum = slot_at(state, state->running, (size_t)index);
        for (int i = 0; i < job->wave_splits && job->wave_first + i < u.n_splits; i++) {
            struct partial part = slot_at(state, state->slots, (size_t)index * (size_t)job->wave_splits + (size_t)i);
            if (job->wave_first + i > 0) {
                merge(job, &u, job->wave_first + i, sum, part);
                continue;
            }
            memcpy(sum.m, part.m, columns * sizeof(float));
            memcpy(sum.l, part.l, columns * sizeof(float));
            memcpy(sum.o, part.o, columns * width * sizeof(float));
        }
        if (u.n_splits > job->wave_first && u.n_splits <= job->wave_first + job->wave_splits)
            store_result(job, &u, sum.l, sum.o);
    }
}

static void run_wave(void *context, int thread, int n_threads)
{
    struct attention_job *job = context;
    int n_units = job->n_tiles * job->units_per_tile;
    compute_wave(job, &job->state->threads[thread], n_units);
    dse_pool_barrier(job->pool);
    merge_wave(job, n_units);
}

/* Query heads per unit: a whole group, unless that leaves threads without work or exceeds the columns of a tile. */
static int heads_per_unit(const struct cpu_state *state, const struct dse_config *config, int n_rows, int n_splits)
{
    int group = config->n_heads / config->n_kv_heads, heads = group;
    while (heads > DSE_ATTENTION_COLUMNS ||
           (heads > 1 && n_rows * n_splits * config->n_kv_heads * ((group + heads - 1) / heads) < state->n_threads))
        heads = (heads + 1) / 2;
    return heads;
}

void dse_cpu_attention(struct dse_device *device, const struct dse_config *config, int layer,
                       const struct dse_kv_layout *layout, const struct dse_rows *rows, const float *q, float *out)
{
    struct cpu_state *state = device->state;
    struct attention_job job = {.state = state,
                                .pool = device->pool,
                                .config = config,
                                .layer = layer,
                                .layout = layout,
                                .rows = rows,
                                .q = q,
                                .out = out,
                                .max_splits = 1};
    if (rows->n_rows == 0) return;
    for (int m = 0; m < rows->n_rows; m++) {
        int splits = rows->positions[m] / DSE_KV_SPLIT_TOKENS + 1;
        if (splits > job.max_splits) job.max_splits = splits;
    }
    int group = config->n_heads / config->n_kv_heads;
    job.heads_per_unit = heads_per_unit(state, config, rows->n_rows, job.max_splits);
    job.units_per_tile = config->n_kv_heads * ((group + job.heads_per_unit - 1) / job.heads_per_unit);
    job.n_tiles = cut_tiles(state, rows, DSE_ATTENTION_COLUMNS / job.heads_per_unit);
    int n_units = job.n_tiles * job.units_per_tile;
    if (job.max_splits == 1 || n_units >= 4 * state->n_threads) {
        dse_pool_run(device->pool, run_whole, &job);
        return;
    }
    job.wave_splits = (int)state->n_slots / n_units;
    if (job.wave_splits > job.max_splits) job.wave_splits = job.max_splits;
    for (; job.wave_first < job.max_splits; job.wave_first += job.wave_splits) {
        atomic_store(&job.next, 0);
        atomic_store(&job.next_merge, 0);
        dse_pool_run(device->pool, run_wave, &job);
    }
}
