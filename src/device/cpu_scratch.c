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

static void carve_thread(struct carver *carver, struct cpu_thread *thread, size_t widest, size_t width)
{
    struct cpu_thread t;
    t.normed = carve(carver, CPU_PRIVATE_ROWS * widest, sizeof(float));
    t.activation = carve(carver, dse_activation_bytes(CPU_PRIVATE_ROWS, widest), 1);
    t.up = carve(carver, (size_t)CPU_CHUNK_ROWS * CPU_CHUNK_PANELS * DSE_PANEL_ROWS, sizeof(float));
    t.q = carve(carver, DSE_ATTENTION_COLUMNS * width, sizeof(float));
    t.scores = carve(carver, (size_t)DSE_ATTENTION_COLUMNS * DSE_ATTENTION_SCORES, sizeof(float));
    t.block = carve(carver, DSE_KV_BLOCK_TOKENS * width, sizeof(float));
    t.m = carve(carver, DSE_ATTENTION_COLUMNS, sizeof(float));
    t.l = carve(carver, DSE_ATTENTION_COLUMNS, sizeof(float));
    t.o = carve(carver, DSE_ATTENTION_COLUMNS * width, sizeof(float));
    t.k_head = carve(carver, width, sizeof(float));
    if (thread != NULL) *thread = t;
}

/* Fills the pointers of state from base (or leaves them NULL with base NULL) and returns the bytes. */
static size_t plan(struct cpu_state *state, const struct dse_config *config, int max_rows, int n_threads, void *base)
{
    struct carver carver = {base, 0};
    size_t rows = (size_t)max_rows, width = dse_attention_width(config->head_dim);
    size_t attention = (size_t)config->n_heads * (size_t)config->head_dim;
    size_t widest = (size_t)config->n_embd, pairs = (size_t)config->rope.dimensions / 2;
    if (attention > widest) widest = attention;
    if ((size_t)config->n_ff > widest) widest = (size_t)config->n_ff;
    state->max_rows = max_rows;
    state->widest = widest;
    state->threads = carve(&carver, (size_t)n_threads, sizeof *state->threads);
    for (int i = 0; i < n_threads; i++)
        carve_thread(&carver, state->threads != NULL ? &state->threads[i] : NULL, widest, width);
    size_t normed;
    if (!dse_mul_size(rows, (size_t)config->n_embd, &normed)) return SIZE_MAX;
    state->normed = carve(&carver, normed, sizeof(float));
    state->activation = carve(&carver, dse_activation_bytes(rows, widest), 1);
    state->tiles = carve(&carver, rows, sizeof *state->tiles);
    state->slot_floats = DSE_ATTENTION_COLUMNS * (2 + width);
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
