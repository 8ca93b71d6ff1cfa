/* The experts of a layer as views: parts of stacked tensors (GGUF), or tensors of their own (folders). Called by
 * weights_layers.c; the order of experts is that of the router's rows. */
#include <stdio.h>

#include "base/alloc.h"
#include "model/weights_internal.h"

enum { GATE, UP, DOWN, N_PARTS };

static struct dse_tensor *part_of(struct dse_expert_tensors *expert, int part)
{
    return part == GATE ? &expert->gate : part == UP ? &expert->up : &expert->down;
}

/* [rows, columns] of expert e, from row `first` of its part of a stacked tensor [E, stacked rows, columns]. */
static struct dse_tensor view(const struct dse_tensor *stack, size_t e, size_t first, size_t rows)
{
    size_t row_bytes = stack->bytes / stack->shape[0] / stack->shape[1];
    struct dse_tensor one = *stack;
    one.n_dims = 2;
    one.shape[0] = rows;
    one.shape[1] = stack->shape[2];
    one.shape[2] = 1;
    one.data = (const char *)stack->data + (e * stack->shape[1] + first) * row_bytes;
    one.bytes = rows * row_bytes;
    return one;
}

static enum dse_status take_stacked(struct dse_model_file *file, int layer, struct dse_error *err)
{
    static const char *const names[N_PARTS] = {"ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_down_exps.weight"};
    struct dse_expert_tensors *experts = file->layers[layer].experts;
    const size_t n = (size_t)file->config.moe.n_experts, d = (size_t)file->config.n_embd,
                 f = (size_t)file->config.moe.n_ff;
    const struct dse_tensor *stack = NULL;
    enum dse_status status = DSE_OK;
    char name[96];
    /* Gate and up may be one tensor, the rows of gate first. */
    dse_weights_layer_name(file, layer, "ffn_gate_up_exps.weight", "", name);
    bool fused = dse_weights_find(file, name) != NULL;
    if (fused && (status = dse_weights_take(file, name, 3, (size_t[]){n, 2 * f, d}, &stack, err)) != DSE_OK)
        return status;
    for (size_t e = 0; fused && e < n; e++) {
        experts[e].gate = view(stack, e, 0, f);
        experts[e].up = view(stack, e, f, f);
    }
    for (int part = fused ? DOWN : GATE; part < N_PARTS; part++) {
        size_t rows = part == DOWN ? d : f, columns = part == DOWN ? f : d;
        dse_weights_layer_name(file, layer, names[part], "", name);
        status = dse_weights_take(file, name, 3, (size_t[]){n, rows, columns}, &stack, err);
        if (status != DSE_OK) return status;
        for (size_t e = 0; e < n; e++)
            *part_of(&experts[e], part) = view(stack, e, 0, rows);
    }
    return DSE_OK;
}

static enum dse_status take_single(struct dse_model_file *file, int layer, struct dse_error *err)
{
    static const char *const names[N_PARTS] = {"gate_proj", "up_proj", "down_proj"};
    const size_t d = (size_t)file->config.n_embd, f = (size_t)file->config.moe.n_ff;
    for (int e = 0; e < file->config.moe.n_experts; e++) {
        for (int part = GATE; part < N_PARTS; part++) {
            const struct dse_tensor *tensor = NULL;
            char tail[64], name[96];
            const size_t shape[] = {part == DOWN ? d : f, part == DOWN ? f : d};
            snprintf(tail, sizeof tail, "mlp.experts.%d.%s.weight", e, names[part]);
            dse_weights_layer_name(file, layer, "", tail, name);
            enum dse_status status = dse_weights_take(file, name, 2, shape, &tensor, err);
            if (status != DSE_OK) return status;
            *part_of(&file->layers[layer].experts[e], part) = *tensor;
        }
    }
    return DSE_OK;
}

enum dse_status dse_weights_take_experts(struct dse_model_file *file, int layer, struct dse_error *err)
{
    const struct dse_moe_config *moe = &file->config.moe;
    struct dse_layer_tensors *tensors = &file->layers[layer];
    tensors->experts = dse_calloc(DSE_MEM_MODEL, (size_t)moe->n_experts, sizeof *tensors->experts);
    if (tensors->experts == NULL)
        return dse_fail_memory(err, (size_t)moe->n_experts * sizeof *tensors->experts, "experts");
    int64_t before = file->n_active_parameters;
    enum dse_status status = file->gguf != NULL ? take_stacked(file, layer, err) : take_single(file, layer, err);
    /* A token uses its share of what was just added. */
    int64_t all = file->n_active_parameters - before;
    file->n_active_parameters = before + all / moe->n_experts * moe->n_used;
    return status;
}
