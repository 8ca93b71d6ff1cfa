/* The CPU device's scratch: one plan that both measures it (scratch_bytes) and lays it out (reserve). */
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "device/cpu.h"

/* Hands out 64-byte aligned pieces of base; with base NULL it only counts. bytes becomes SIZE_MAX on overflow. */
struct carver {
    uint8_t *base;
    size_t bytes;
};

static void *carve(struct carver *carver, size_t count, size_t size)
{
    size_t piece, end;
    if (carver->bytes == SIZE_MAX) return NULL;
    if (!dse_mul_size(count, size, &piece) || !dse_align_size(piece, 64, &piece) ||
        !dse_add_size(carver->bytes, piece, &end)) {
        carver->bytes = SIZE_MAX;
        return NULL;
    }
    void *at = carver->base != NULL ? carver->base + carver->bytes : NULL;
    carver->bytes = end;
    return at;
}

/* Values of an attention query and of a result, in whole vectors. */
struct widths {
    size_t key, value;
};

static struct widths widths_of(const struct dse_config *config)
{
    const struct dse_latent_config *latent = &config->latent;
    size_t d = dse_attention_width(config->head_dim);
    if (latent->kv_rank == 0) return (struct widths){d, d};
    return (struct widths){dse_latent_key_width(latent->kv_rank, latent->rope), dse_attention_width(latent->kv_rank)};
}

static size_t widest_input(const struct dse_config *config)
{
    const struct dse_latent_config *latent = &config->latent;
    int head = latent->kv_rank > 0 && latent->v > config->head_dim ? latent->v : config->head_dim;
    size_t widest = (size_t)config->n_heads * (size_t)head;
    const int others[] = {config->n_embd, config->n_ff, latent->q_rank,
                          config->n_mtp_used > 0 ? 2 * config->n_embd : 0};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if ((size_t)others[i] > widest) widest = (size_t)others[i];
    return widest;
}

static struct cpu_expanded carve_expanded(struct carver *carver, const struct dse_latent_config *latent,
                                          size_t max_rows)
{
    struct cpu_expanded e = {0};
    if (!latent->expand) return e;
    const size_t rows = max_rows < CPU_EXPANDED_ROWS ? max_rows : CPU_EXPANDED_ROWS;
    const size_t key = (size_t)latent->nope + (size_t)latent->rope, value = dse_attention_width(latent->v);
    e.latents = carve(carver, DSE_EXPANDED_KEYS * dse_latent_key_width(latent->kv_rank, latent->rope), sizeof(float));
    e.latents_s8 = carve(carver, dse_activation_bytes(DSE_EXPANDED_KEYS, (size_t)latent->kv_rank), 1);
    e.plain = carve(carver, DSE_EXPANDED_KEYS * dse_expanded_key_stride(latent->nope), sizeof(float));
    e.keys = carve(carver, key * DSE_ATTENTION_SCORES, sizeof(float));
    e.values = carve(carver, DSE_KV_SPLIT_TOKENS * dse_expanded_value_stride(latent->v), sizeof(float));
    e.q = carve(carver, DSE_ATTENTION_COLUMNS * dse_expanded_key_stride((int)key), sizeof(float));
    e.part = carve(carver, DSE_ATTENTION_COLUMNS * value, sizeof(float));
    e.m = carve(carver, rows, sizeof(float));
    e.l = carve(carver, rows, sizeof(float));
    e.o = carve(carver, rows * value, sizeof(float));
    return e;
}

static void carve_thread(struct carver *carver, struct cpu_thread *thread, const struct dse_config *config,
                         size_t widest, struct widths widths, size_t max_rows)
{
    const size_t moe_rows = config->moe.n_experts > 0 ? CPU_MOE_ROWS : 0, embd = (size_t)config->n_embd;
    const struct dse_latent_config *latent = &config->latent;
    const size_t head = (size_t)(latent->nope > latent->kv_rank ? latent->nope : latent->kv_rank);
    const size_t private_bytes = dse_activation_bytes(CPU_PRIVATE_ROWS, widest);
    const size_t head_bytes = dse_activation_bytes(CPU_HEAD_ROWS, head);
    struct cpu_thread t;
    t.normed = carve(carver, CPU_PRIVATE_ROWS * widest, sizeof(float));
    t.activation = carve(carver, private_bytes > head_bytes ? private_bytes : head_bytes, 1);
    t.up = carve(carver, (size_t)CPU_CHUNK_ROWS * CPU_CHUNK_PANELS * DSE_PANEL_ROWS, sizeof(float));
    t.q = carve(carver, DSE_ATTENTION_COLUMNS * widths.key, sizeof(float));
    t.scores = carve(carver, (size_t)DSE_ATTENTION_COLUMNS * DSE_ATTENTION_SCORES, sizeof(float));
    t.block = carve(carver, DSE_KV_BLOCK_TOKENS * widths.key, sizeof(float));
    t.dots = carve(carver, (size_t)DSE_KV_BLOCK_TOKENS * DSE_ATTENTION_COLUMNS, sizeof(float));
    t.m = carve(carver, DSE_ATTENTION_COLUMNS, sizeof(float));
    t.l = carve(carver, DSE_ATTENTION_COLUMNS, sizeof(float));
    t.o = carve(carver, DSE_ATTENTION_COLUMNS * widths.value, sizeof(float));
    t.k_head = carve(carver, widths.key, sizeof(float));
    t.expanded = carve_expanded(carver, latent, max_rows);
    t.index_dots = carve(carver, (size_t)config->indexer.n_heads * DSE_KV_BLOCK_TOKENS, sizeof(float));
    t.gathered = carve(carver, moe_rows * embd, sizeof(float));
    t.gathered_s8 = carve(carver, dse_activation_bytes(moe_rows, embd), 1);
    t.expert = carve(carver, moe_rows * CPU_MOE_PANELS * DSE_PANEL_ROWS, sizeof(float));
    if (thread != NULL) *thread = t;
}

static void carve_moe(struct carver *carver, struct cpu_moe *moe, const struct dse_moe_config *config, size_t rows)
{
    const size_t experts = (size_t)config->n_experts, slots = rows * (size_t)config->n_used;
    const size_t ff = (size_t)config->n_ff, shared = ff * (size_t)config->n_shared;
    if (experts == 0) return;
    moe->logits = carve(carver, rows, experts * sizeof(float));
    moe->first_slot = carve(carver, experts + 2, sizeof *moe->first_slot);
    moe->active = carve(carver, experts, sizeof *moe->active);
    moe->slots = carve(carver, slots, sizeof *moe->slots);
    moe->hidden = carve(carver, slots, ff * sizeof(float));
    moe->hidden_s8 = carve(carver, dse_activation_bytes(slots, ff), 1);
    moe->shared = carve(carver, rows, shared * sizeof(float));
    moe->shared_s8 = carve(carver, dse_activation_bytes(rows, shared), 1);
}

static void carve_index(struct carver *carver, struct cpu_index *index, const struct dse_indexer_config *config,
                        size_t rows, int n_threads)
{
    const size_t heads = (size_t)config->n_heads, dim = (size_t)config->head_dim;
    if (heads == 0) return;
    index->max_rows = rows < DSE_LATENT_ROWS ? rows : DSE_LATENT_ROWS;
    /* at least 16, so that rows share the two meetings of all threads */
    index->n_slots = n_threads < 8 ? 16 : 2 * (size_t)n_threads;
    index->keys = carve(carver, index->max_rows, dim * sizeof(float));
    index->weights = carve(carver, index->max_rows, heads * sizeof(float));
    index->queries = carve(carver, index->max_rows * heads, dim * sizeof(float));
    index->n_candidates = carve(carver, index->n_slots, sizeof *index->n_candidates);
    index->candidates = carve(carver, index->n_slots, 2 * (size_t)config->top_k * sizeof *index->candidates);
}

/* Fills the pointers of state from base (or leaves them NULL with base NULL) and returns the bytes. */
static size_t plan(struct cpu_state *state, const struct dse_config *config, int max_rows, int n_threads, void *base)
{
    struct carver carver = {base, 0};
    const struct widths widths = widths_of(config);
    size_t rows = (size_t)max_rows, widest = widest_input(config), pairs = (size_t)config->rope.dimensions / 2;
    state->max_rows = max_rows;
    state->widest = widest;
    state->threads = carve(&carver, (size_t)n_threads, sizeof *state->threads);
    for (int i = 0; i < n_threads; i++)
        carve_thread(&carver, state->threads != NULL ? &state->threads[i] : NULL, config, widest, widths, rows);
    size_t normed;
    if (!dse_mul_size(rows, (size_t)config->n_embd, &normed)) return SIZE_MAX;
    state->normed = carve(&carver, normed, sizeof(float));
    state->activation = carve(&carver, dse_activation_bytes(rows, widest), 1);
    carve_moe(&carver, &state->moe, &config->moe, rows);
    carve_index(&carver, &state->index, &config->indexer, rows, n_threads);
    state->tiles = carve(&carver, rows, sizeof *state->tiles);
    state->last_keys = carve(&carver, rows, sizeof *state->last_keys);
    state->slot_floats = DSE_ATTENTION_COLUMNS * (2 + widths.value);
    state->n_slots = (size_t)n_threads * CPU_ATTENTION_SLOTS;
    state->slots = carve(&carver, state->n_slots * state->slot_floats, sizeof(float));
    state->running = carve(&carver, state->n_slots * state->slot_floats, sizeof(float));
    if (!dse_mul_size(rows, pairs, &pairs)) return SIZE_MAX;
    state->cosines = carve(&carver, pairs, sizeof(float));
    state->sines = carve(&carver, pairs, sizeof(float));
    state->angle_positions = carve(&carver, rows, sizeof *state->angle_positions);
    return carver.bytes;
}

size_t dse_cpu_scratch_bytes(const struct dse_device *device, const struct dse_config *config, int max_rows)
{
    const struct cpu_state *own = device->state;
    struct cpu_state unused = {0};
    return plan(&unused, config, max_rows, own->n_threads, NULL);
}

enum dse_status dse_cpu_reserve(struct dse_device *device, const struct dse_config *config, int max_rows,
                                struct dse_error *err)
{
    struct cpu_state *state = device->state;
    if (max_rows < 1) return dse_fail(err, DSE_ERR_INVALID, "scratch for %d rows was asked for", max_rows);
    size_t bytes = dse_cpu_scratch_bytes(device, config, max_rows);
    void *memory = bytes == SIZE_MAX ? NULL : dse_alloc_pages(DSE_MEM_SCRATCH, bytes);
    if (memory == NULL) return dse_fail_memory(err, bytes, "scratch of the cpu device");
    dse_free_pages(state->scratch);
    state->scratch = memory;
    state->scratch_bytes = bytes;
    plan(state, config, max_rows, state->n_threads, memory);
    for (int m = 0; m < max_rows; m++)
        state->angle_positions[m] = -1;
    return DSE_OK;
}
