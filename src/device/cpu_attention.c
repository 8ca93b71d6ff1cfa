/* Attention over a batch, with ordinary heads or latent: cuts it into tiles of rows, groups of heads and 256-key
 * splits, and merges the splits in order.
 *
 * Many tiles: a thread takes a (tile, heads) and walks its splits itself. Few tiles (decode): the splits are spread
 * over the threads as well; partial results wait in slots and are merged afterwards. Both merge the same partial
 * results in ascending order, so the bits are the same; nothing depends on which thread did what.
 */
#include <stdatomic.h>
#include <string.h>

#include "device/cpu.h"

struct attention_job;

/* A (tile, some query heads of one kv head). */
struct unit {
    const struct cpu_tile *rows;
    int kv_head, first_head, n_heads, n_splits;
};

struct attention_job {
    struct cpu_state *state;
    struct dse_pool *pool;
    int layer;
    const struct dse_kv_layout *layout;
    const struct dse_rows *rows;
    const struct dse_key_choice *choice; /* NULL: every row sees all keys up to its position */
    const int32_t *last; /* [n_rows] last key that a row sees: a position, or an index into its choice */
    /* What the two forms of attention differ in. */
    int n_kv_heads, group; /* query heads per kv head */
    float scale;
    const float *q, *absorbed;
    size_t q_values;              /* of a head of q */
    float *out;                   /* [n_rows][heads][out_values] */
    size_t out_values, out_width; /* of a result, and from one column's partial result to the next */
    void (*load)(const struct attention_job *job, const struct unit *unit, float *out);
    dse_attention_split_fn *split;

    int n_tiles, heads_per_unit, units_per_tile;
    int wave_first, wave_splits, max_splits; /* splits over the threads: [wave_first, + wave_splits) */
    atomic_int next, next_merge;
};

static struct unit unit_at(const struct attention_job *job, int index)
{
    int parts = (job->group + job->heads_per_unit - 1) / job->heads_per_unit;
    int within = index % job->units_per_tile, part = within % parts;
    struct unit u = {.rows = &job->state->tiles[index / job->units_per_tile], .kv_head = within / parts};
    u.first_head = u.kv_head * job->group + part * job->heads_per_unit;
    int left = job->group - part * job->heads_per_unit;
    u.n_heads = left < job->heads_per_unit ? left : job->heads_per_unit;
    u.n_splits = job->last[u.rows->first_row + u.rows->n_rows - 1] / DSE_KV_SPLIT_TOKENS + 1;
    return u;
}

/* Which rows attend to a list of their own, and not simply to all keys up to their position. */
static bool has_list(const struct attention_job *job, int row)
{
    return job->choice != NULL && job->rows->positions[row] >= job->choice->top_k;
}

/* Rows of one sequence, ascending and adjacent in the batch, at most `limit` of them to a tile. */
static int cut_tiles(const struct attention_job *job, int limit)
{
    struct cpu_state *state = job->state;
    const struct dse_rows *rows = job->rows;
    int n = 0;
    for (int m = 0; m < rows->n_rows; m++) {
        struct cpu_tile *tile = n > 0 ? &state->tiles[n - 1] : NULL;
        if (tile != NULL && tile->n_rows < limit && rows->kv[m].blocks == rows->kv[m - 1].blocks &&
            rows->kv[m].pool == rows->kv[m - 1].pool && rows->positions[m] > rows->positions[m - 1] &&
            !has_list(job, m))
            tile->n_rows++;
        else
            state->tiles[n++] = (struct cpu_tile){m, 1};
    }
    return n;
}

static struct dse_attention_tile tile_of(const struct attention_job *job, const struct unit *u,
                                         const struct cpu_thread *own)
{
    int row = u->rows->first_row;
    struct dse_attention_tile tile = {.layout = job->layout,
                                      .kv = &job->rows->kv[row],
                                      .layer = job->layer,
                                      .kv_head = u->kv_head,
                                      .n_rows = u->rows->n_rows,
                                      .group = u->n_heads,
                                      .last = job->last + row,
                                      .q = own->q,
                                      .scores = own->scores,
                                      .block = own->block,
                                      .dots = own->dots};
    if (has_list(job, row)) tile.keys = job->choice->keys + (size_t)row * (size_t)job->choice->top_k;
    return tile;
}

/* Index of a (row, head) among all of the batch. */
static size_t head_index(const struct attention_job *job, const struct unit *u, int row, int head)
{
    size_t heads = (size_t)job->n_kv_heads * (size_t)job->group;
    return (size_t)(u->rows->first_row + row) * heads + (size_t)(u->first_head + head);
}

/* One column after the other. */
static void load_heads(const struct attention_job *job, const struct unit *u, float *out)
{
    for (int r = 0; r < u->rows->n_rows; r++) {
        for (int h = 0; h < u->n_heads; h++, out += job->out_width) {
            const float *q = job->q + head_index(job, u, r, h) * job->q_values;
            for (size_t i = 0; i < job->q_values; i++)
                out[i] = q[i] * job->scale;
        }
    }
}

/* Columns are lanes; those that fill up the last vector are zero. */
static void load_latent(const struct attention_job *job, const struct unit *u, float *out)
{
    size_t latent = (size_t)job->layout->latent, rope = (size_t)job->layout->rope, columns = 0;
    for (int r = 0; r < u->rows->n_rows; r++) {
        for (int h = 0; h < u->n_heads; h++, columns++) {
            size_t at = head_index(job, u, r, h);
            const float *absorbed = job->absorbed + at * latent, *rotated = job->q + (at + 1) * job->q_values - rope;
            for (size_t i = 0; i < latent; i++)
                out[i * DSE_ATTENTION_COLUMNS + columns] = absorbed[i] * job->scale;
            for (size_t i = 0; i < rope; i++)
                out[(latent + i) * DSE_ATTENTION_COLUMNS + columns] = rotated[i] * job->scale;
        }
    }
    for (; columns % 16 != 0; columns++)
        for (size_t i = 0; i < latent + rope; i++)
            out[i * DSE_ATTENTION_COLUMNS + columns] = 0;
}

static void store_result(const struct attention_job *job, const struct unit *u, const float *l, const float *o)
{
    for (int r = 0; r < u->rows->n_rows; r++) {
        for (int h = 0; h < u->n_heads; h++, l++, o += job->out_width) {
            float *out = job->out + head_index(job, u, r, h) * job->out_values;
            float inverse = 1.0f / *l;
            for (size_t i = 0; i < job->out_values; i++)
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
    size_t width = job->out_width;
    for (int r = 0; r < u->rows->n_rows; r++) {
        if (job->last[u->rows->first_row + r] / DSE_KV_SPLIT_TOKENS < split) continue;
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
        job->load(job, &u, own->q);
        job->split(&state->kernels, &tile, 0, sum.m, sum.l, sum.o);
        for (int split = 1; split < u.n_splits; split++) {
            job->split(&state->kernels, &tile, split, part.m, part.l, part.o);
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
        if (loaded != index / job->wave_splits) job->load(job, &u, own->q);
        loaded = index / job->wave_splits;
        struct partial part = slot_at(state, state->slots, (size_t)index);
        job->split(&state->kernels, &tile, split, part.m, part.l, part.o);
    }
}

static void merge_wave(struct attention_job *job, int n_units)
{
    struct cpu_state *state = job->state;
    for (;;) {
        int index = atomic_fetch_add_explicit(&job->next_merge, 1, memory_order_relaxed);
        if (index >= n_units) return;
        struct unit u = unit_at(job, index);
        size_t columns = (size_t)(u.rows->n_rows * u.n_heads), width = job->out_width;
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
static int heads_per_unit(const struct attention_job *job)
{
    int heads = job->group;
    while (heads > DSE_ATTENTION_COLUMNS ||
           (heads > 1 && job->rows->n_rows * job->max_splits * job->n_kv_heads * ((job->group + heads - 1) / heads) <
                             job->state->n_threads))
        heads = (heads + 1) / 2;
    return heads;
}

static void attend(struct attention_job *job)
{
    struct cpu_state *state = job->state;
    const struct dse_rows *rows = job->rows;
    if (rows->n_rows == 0) return;
    job->max_splits = 1;
    for (int m = 0; m < rows->n_rows; m++) {
        state->last_keys[m] = has_list(job, m) ? job->choice->top_k - 1 : rows->positions[m];
        int splits = state->last_keys[m] / DSE_KV_SPLIT_TOKENS + 1;
        if (splits > job->max_splits) job->max_splits = splits;
    }
    job->last = state->last_keys;
    job->heads_per_unit = heads_per_unit(job);
    job->units_per_tile = job->n_kv_heads * ((job->group + job->heads_per_unit - 1) / job->heads_per_unit);
    job->n_tiles = cut_tiles(job, DSE_ATTENTION_COLUMNS / job->heads_per_unit);
    int n_units = job->n_tiles * job->units_per_tile;
    if (job->max_splits == 1 || n_units >= 4 * state->n_threads) {
        dse_pool_run(job->pool, run_whole, job);
        return;
    }
    job->wave_splits = (int)state->n_slots / n_units;
    if (job->wave_splits > job->max_splits) job->wave_splits = job->max_splits;
    for (; job->wave_first < job->max_splits; job->wave_first += job->wave_splits) {
        atomic_store(&job->next, 0);
        atomic_store(&job->next_merge, 0);
        dse_pool_run(job->pool, run_wave, job);
    }
}

void dse_cpu_attention(struct dse_device *device, const struct dse_config *config, int layer,
                       const struct dse_kv_layout *layout, const struct dse_rows *rows, const float *q, float *out)
{
    struct attention_job job = {.state = device->state,
                                .pool = device->pool,
                                .layer = layer,
                                .layout = layout,
                                .rows = rows,
                                .n_kv_heads = config->n_kv_heads,
                                .group = config->n_heads / config->n_kv_heads,
                                .scale = dse_attention_scale(config),
                                .q = q,
                                .q_values = (size_t)config->head_dim,
                                .out = out,
                                .out_values = (size_t)config->head_dim,
                                .out_width = dse_attention_width(config->head_dim),
                                .load = load_heads,
                                .split = dse_attention_split};
    attend(&job);
}

void dse_cpu_latent_attention(struct dse_device *device, const struct dse_config *config, int layer,
                              const struct dse_kv_layout *layout, const struct dse_rows *rows, const float *q,
                              const float *absorbed, const struct dse_key_choice *choice, float *out)
{
    /* one row of the cache for all heads */
    struct attention_job job = {.state = device->state,
                                .pool = device->pool,
                                .layer = layer,
                                .layout = layout,
                                .rows = rows,
                                .choice = choice != NULL && choice->keys != NULL ? choice : NULL,
                                .n_kv_heads = 1,
                                .group = config->n_heads,
                                .scale = dse_attention_scale(config),
                                .q = q,
                                .absorbed = absorbed,
                                .q_values = (size_t)config->head_dim,
                                .out = out,
                                .out_values = (size_t)layout->latent,
                                .out_width = dse_latent_width(layout),
                                .load = load_latent,
                                .split = dse_latent_attention_split};
    attend(&job);
}
