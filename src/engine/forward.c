/* Buffers of a forward pass and its entry points: which family runs, who holds the device. */
#include "engine/forward.h"

#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"

#define ALIGNMENT 64

/* The parts of the one block of memory, in order. */
enum part {
    TOKENS,
    POSITIONS,
    VIEWS,
    X,
    Q,
    K,
    V,
    ATTENTION,
    H,
    Q_LATENT,
    ABSORBED,
    LATENTS,
    KEYS,
    EXPERTS,
    EXPERT_WEIGHTS,
    JOINED,
    LOGITS,
    PART_COUNT
};

static bool part_offsets(const struct dse_config *c, int max_rows, int max_out, size_t offsets[PART_COUNT + 1])
{
    const size_t rows = (size_t)max_rows, heads = (size_t)c->n_heads, f32 = sizeof(float), i32 = sizeof(int32_t);
    const bool latent = c->latent.kv_rank > 0;
    const size_t kv = latent ? (size_t)c->latent.kv_rank + (size_t)c->latent.rope
                             : (size_t)c->n_kv_heads * (size_t)c->head_dim;
    const size_t parts = rows < DSE_LATENT_ROWS ? rows : DSE_LATENT_ROWS;
    const size_t absorbed = heads * (size_t)c->latent.kv_rank;
    const struct {
        size_t count, bytes;
    } part[PART_COUNT] = {
        [TOKENS] = {rows, i32},
        [POSITIONS] = {rows, i32},
        [VIEWS] = {rows, sizeof(struct dse_kv_view)},
        [X] = {rows, f32 * (size_t)c->n_embd},
        [Q] = {rows, f32 * heads * (size_t)c->head_dim},
        [K] = {rows, f32 * kv},
        [V] = {rows, latent ? 0 : f32 * kv},
        [ATTENTION] = {rows, f32 * heads * (size_t)(latent ? c->latent.v : c->head_dim)},
        [H] = {rows, f32 * (size_t)c->n_ff},
        [Q_LATENT] = {rows, f32 * (size_t)c->latent.q_rank},
        [ABSORBED] = {parts, f32 * absorbed},
        [LATENTS] = {parts, f32 * absorbed},
        [KEYS] = {parts, i32 * (size_t)c->indexer.top_k},
        [EXPERTS] = {rows, i32 * (size_t)c->moe.n_used},
        [EXPERT_WEIGHTS] = {rows, f32 * (size_t)c->moe.n_used},
        [JOINED] = {c->n_mtp_used > 0 ? rows : 0, 2 * f32 * (size_t)c->n_embd},
        [LOGITS] = {(size_t)max_out, f32 * (size_t)c->n_vocab},
    };
    offsets[0] = 0;
    for (int i = 0; i < PART_COUNT; i++) {
        size_t bytes, end;
        if (!dse_mul_size(part[i].count, part[i].bytes, &bytes) || !dse_add_size(offsets[i], bytes, &end) ||
            !dse_align_size(end, ALIGNMENT, &offsets[i + 1]))
            return false;
    }
    return true;
}

enum dse_status dse_forward_plan(const struct dse_model *model, int max_rows, int max_out, uint64_t *bytes,
                                 struct dse_error *err)
{
    const struct dse_config *config = &model->file->config;
    size_t offsets[PART_COUNT + 1], total;
    if (!part_offsets(config, max_rows, max_out, offsets) ||
        !dse_add_size(offsets[PART_COUNT], model->device->ops->scratch_bytes(model->device, config, max_rows), &total))
        return dse_fail(err, DSE_ERR_NO_MEMORY, "scratch for %d rows overflows the address space", max_rows);
    *bytes = total;
    return DSE_OK;
}

enum dse_status dse_forward_init(struct dse_forward *forward, struct dse_model *model, int max_rows, int max_out,
                                 struct dse_error *err)
{
    size_t offsets[PART_COUNT + 1];
    struct dse_vector_ops ops;
    dse_vector_ops_pick(&ops);
    *forward = (struct dse_forward){.model = model, .max_rows = max_rows, .max_out = max_out, .rmsnorm = ops.rmsnorm};
    forward->expand = model->file->config.latent.expand;
    if (!part_offsets(&model->file->config, max_rows, max_out, offsets))
        return dse_fail(err, DSE_ERR_NO_MEMORY, "scratch for %d rows overflows the address space", max_rows);
    enum dse_status status = dse_model_reserve(model, max_rows, err);
    if (status != DSE_OK) return status;

    forward->memory_bytes = offsets[PART_COUNT];
    forward->memory = dse_alloc_pages(DSE_MEM_SCRATCH, forward->memory_bytes);
    if (forward->memory == NULL) return dse_fail_memory(err, forward->memory_bytes, "step scratch");
    char *base = forward->memory;
    forward->tokens = (int32_t *)(base + offsets[TOKENS]);
    forward->positions = (int32_t *)(base + offsets[POSITIONS]);
    forward->views = (struct dse_kv_view *)(base + offsets[VIEWS]);
    forward->x = (float *)(base + offsets[X]);
    forward->q = (float *)(base + offsets[Q]);
    forward->k = (float *)(base + offsets[K]);
    forward->v = (float *)(base + offsets[V]);
    forward->attention = (float *)(base + offsets[ATTENTION]);
    forward->h = (float *)(base + offsets[H]);
    forward->q_latent = (float *)(base + offsets[Q_LATENT]);
    forward->absorbed = (float *)(base + offsets[ABSORBED]);
    forward->latents = (float *)(base + offsets[LATENTS]);
    const struct dse_config *config = &model->file->config;
    forward->choice = (struct dse_key_choice){config->indexer.top_k, (int32_t *)(base + offsets[KEYS])};
    forward->routes = (struct dse_routes){config->moe.n_used, (int32_t *)(base + offsets[EXPERTS]),
                                          (float *)(base + offsets[EXPERT_WEIGHTS])};
    forward->joined = (float *)(base + offsets[JOINED]);
    forward->logits = (float *)(base + offsets[LOGITS]);
    forward->rows = (struct dse_rows){.tokens = forward->tokens, .positions = forward->positions, .kv = forward->views};
    return DSE_OK;
}

static size_t run_bytes(int max_rows)
{
    size_t bytes = (size_t)max_rows * sizeof(struct dse_adapter_run);
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

uint64_t dse_forward_adapter_bytes(int max_rows, int adapter_rank)
{
    if (adapter_rank == 0) return 0;
    return run_bytes(max_rows) +
           (uint64_t)DSE_ADAPTION_SITES * (uint64_t)max_rows * (uint64_t)adapter_rank * sizeof(float);
}

enum dse_status dse_forward_take_adapters(struct dse_forward *forward, int adapter_rank, struct dse_error *err)
{
    const uint64_t bytes = dse_forward_adapter_bytes(forward->max_rows, adapter_rank);
    if (adapter_rank == 0) return DSE_OK;
    forward->adapter_memory = bytes <= SIZE_MAX ? dse_alloc_pages(DSE_MEM_SCRATCH, (size_t)bytes) : NULL;
    if (forward->adapter_memory == NULL) return dse_fail_memory(err, bytes, "scratch of adapters");
    forward->runs = forward->adapter_memory;
    forward->adapter_rank = adapter_rank;
    forward->adaption = (struct dse_adaption){
        .runs = forward->runs,
        .low = (float *)(void *)((char *)forward->adapter_memory + run_bytes(forward->max_rows)),
        .low_rows = (size_t)forward->max_rows,
        .low_width = (size_t)adapter_rank,
    };
    return DSE_OK;
}

void dse_forward_deinit(struct dse_forward *forward)
{
    if (forward->adapter_memory != NULL) dse_free_pages(forward->adapter_memory);
    if (forward->memory != NULL) dse_free_pages(forward->memory);
    *forward = (struct dse_forward){0};
}

void dse_forward_clear(struct dse_forward *forward)
{
    forward->rows.n_rows = 0;
    forward->adaption.n_runs = 0;
}

void dse_forward_push(struct dse_forward *forward, int32_t token, int32_t position, struct dse_kv_view view)
{
    int row = forward->rows.n_rows++;
    forward->tokens[row] = token;
    forward->positions[row] = position;
    forward->views[row] = view;
}

void dse_forward_adapt(struct dse_forward *forward, int first_row, const struct dse_adapter_part *parts, int n_parts)
{
    if (n_parts == 0 || forward->rows.n_rows == first_row) return;
    forward->runs[forward->adaption.n_runs++] = (struct dse_adapter_run){first_row, forward->rows.n_rows - first_row,
                                                                         n_parts, parts};
}

const struct dse_adaption *dse_forward_adaption(struct dse_forward *forward, int layer)
{
    if (forward->adaption.n_runs == 0 || layer >= forward->model->file->config.n_layers) return NULL;
    forward->adaption.layer = layer;
    return &forward->adaption;
}

void dse_forward_run(struct dse_forward *forward, const struct dse_kv_layout *layout)
{
    const struct dse_config *config = &forward->model->file->config;
    pthread_mutex_lock(&forward->model->device_lock);
    switch (config->arch) {
    case DSE_ARCH_LLAMA:
    case DSE_ARCH_QWEN2:
    case DSE_ARCH_QWEN3: dse_forward_llama(forward, layout, 0, config->n_layers); break;
    case DSE_ARCH_DEEPSEEK:
    case DSE_ARCH_DEEPSEEK2:
    case DSE_ARCH_DEEPSEEK32: dse_forward_deepseek(forward, layout, 0, config->n_layers); break;
    }
    pthread_mutex_unlock(&forward->model->device_lock);
}

static void run_head(struct dse_forward *forward, const float *norm, const int32_t *row_index, int n_out, float *out)
{
    struct dse_device *device = forward->model->device;
    pthread_mutex_lock(&forward->model->device_lock);
    device->ops->logits(device, &forward->model->weights, norm, forward->x, row_index, n_out, out);
    pthread_mutex_unlock(&forward->model->device_lock);
}

void dse_forward_logits(struct dse_forward *forward, const int32_t *row_index, int n_out, float *out)
{
    run_head(forward, forward->model->weights.output_norm, row_index, n_out, out);
}

void dse_forward_hidden(const struct dse_forward *forward, int row, float *out)
{
    const struct dse_config *config = &forward->model->file->config;
    const size_t width = (size_t)config->n_embd;
    forward->rmsnorm(forward->x + (size_t)row * width, forward->model->weights.output_norm, width, config->rms_eps,
                     out);
}

void dse_forward_mtp(struct dse_forward *forward, const struct dse_kv_layout *layout, const int32_t *next_tokens)
{
    pthread_mutex_lock(&forward->model->device_lock);
    dse_forward_deepseek_mtp(forward, layout, next_tokens);
    pthread_mutex_unlock(&forward->model->device_lock);
}

void dse_forward_mtp_logits(struct dse_forward *forward, const int32_t *row_index, int n_out, float *out)
{
    const struct dse_device_weights *weights = &forward->model->weights;
    run_head(forward, weights->layers[weights->config->n_layers].mtp_head_norm, row_index, n_out, out);
}
