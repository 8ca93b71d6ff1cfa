/* The forward pass of the DeepSeek family, in data-flow order: V1 (ordinary heads), V2, V3 (latent attention) and V3.2
 * (an indexer chooses the keys); an FFN or a mixture of experts follows.
 *
 * n rows, D hidden, H heads, R latent rank, Rq query rank, F ffn, E experts. Latent attention runs in its absorbed form
 * for every row, prompt or not, so that a token gets the same bits whichever way it came; only fast numerics let longer
 * stretches of a prompt attend in expanded form (expansion.c says which). Called by forward.c with the device locked;
 * never allocates.
 *
 * Formulas: DeepSeek-V2 report, 2024, section 2.1 and appendix C; DeepSeek-V3 report, 2024; DeepSeek-V3.2 report, 2025.
 */
#include "base/counters.h"
#include "engine/expansion.h"
#include "engine/forward.h"

static struct dse_rows slice(const struct dse_rows *rows, int first, int n)
{
    return (struct dse_rows){n, rows->tokens + first, rows->positions + first, rows->kv + first, first};
}

/* x [n, D] += attention with one key and value per kv head in the cache */
static void attend_heads(struct dse_forward *forward, const struct dse_kv_layout *layout, int l)
{
    struct dse_device *device = forward->model->device;
    const struct dse_device_ops *ops = device->ops;
    const struct dse_device_weights *weights = &forward->model->weights;
    const struct dse_layer *layer = &weights->layers[l];
    const struct dse_rows *rows = &forward->rows;
    const struct dse_adaption *adaption = dse_forward_adaption(forward, l);

    ops->qkv(device, weights->config, layer, adaption, forward->x, rows->n_rows, forward->q, forward->k, forward->v);
    ops->rope_store(device, weights, l, layout, rows, forward->q, forward->k, forward->v);
    ops->attention(device, weights->config, l, layout, rows, forward->q, forward->attention);
    ops->project_add(device, &layer->o, adaption, DSE_SITE_O, forward->attention, rows->n_rows, forward->x);
}

/* The index keys of some rows into the cache, and which keys each of them attends to. */
static const struct dse_key_choice *choose_keys(struct dse_forward *forward, const struct dse_kv_layout *layout, int l,
                                                const struct dse_rows *rows)
{
    struct dse_device *device = forward->model->device;
    const struct dse_device_weights *weights = &forward->model->weights;
    const struct dse_config *config = weights->config;
    const size_t first = (size_t)rows->first;
    if (config->indexer.n_heads == 0) return NULL;
    device->ops->index_keys(device, weights, l, layout, rows, forward->x + first * (size_t)config->n_embd,
                            forward->q_latent + first * (size_t)config->latent.q_rank, &forward->choice);
    return &forward->choice;
}

/* attention [m, H*v] of at most DSE_LATENT_ROWS rows, from their q */
static void attend_absorbed(struct dse_forward *forward, const struct dse_kv_layout *layout, int l,
                            const struct dse_rows *rows)
{
    struct dse_device *device = forward->model->device;
    const struct dse_device_ops *ops = device->ops;
    const struct dse_config *config = forward->model->weights.config;
    const struct dse_layer *layer = &forward->model->weights.layers[l];
    const size_t heads = (size_t)config->n_heads, d = (size_t)config->head_dim, v = (size_t)config->latent.v;
    const size_t first = (size_t)rows->first;
    const float *q = forward->q + first * heads * d;
    const struct dse_key_choice *choice = choose_keys(forward, layout, l, rows);

    /* [m, H, R] = the K part of kv_b, transposed, times the nope part of q */
    ops->head_project(device, &layer->k_b, q, d, rows->n_rows, forward->absorbed);
    /* [m, H, R]: softmax(scale * q·k) over the latents */
    ops->latent_attention(device, config, l, layout, rows, q, forward->absorbed, choice, forward->latents);
    /* [m, H*v] = the V part of kv_b times that */
    ops->head_project(device, &layer->v_b, forward->latents, (size_t)config->latent.kv_rank, rows->n_rows,
                      forward->attention + first * heads * v);
}

/* attention [m, H*v] of rows that dse_expansion_run found */
static void attend_expanded(struct dse_forward *forward, const struct dse_kv_layout *layout, int l,
                            const struct dse_rows *rows)
{
    struct dse_device *device = forward->model->device;
    const struct dse_device_weights *weights = &forward->model->weights;
    const size_t heads = (size_t)weights->config->n_heads, first = (size_t)rows->first;

    /* these rows see all keys, but later ones will look for theirs */
    for (int at = 0; weights->config->indexer.n_heads > 0 && at < rows->n_rows; at += DSE_LATENT_ROWS) {
        const int left = rows->n_rows - at;
        const struct dse_rows part = slice(&forward->rows, rows->first + at,
                                           left < DSE_LATENT_ROWS ? left : DSE_LATENT_ROWS);
        (void)choose_keys(forward, layout, l, &part);
    }
    device->ops->expanded_attention(device, weights, l, layout, rows,
                                    forward->q + first * heads * (size_t)weights->config->head_dim,
                                    forward->attention + first * heads * (size_t)weights->config->latent.v);
    if (l == 0) dse_counter_add(DSE_COUNTER_EXPANDED_TOKENS, (uint64_t)rows->n_rows);
}

/* x [n, D] += latent attention; the cache holds R + rope values a token */
static void attend_latent(struct dse_forward *forward, const struct dse_kv_layout *layout, int l)
{
    struct dse_device *device = forward->model->device;
    const struct dse_device_ops *ops = device->ops;
    const struct dse_device_weights *weights = &forward->model->weights;
    const struct dse_layer *layer = &weights->layers[l];
    const int n = forward->rows.n_rows;
    const struct dse_adaption *adaption = dse_forward_adaption(forward, l);

    /* q [n, H*(nope+rope)], k = [latent | shared rotated key] [n, R+rope] */
    ops->latent_qkv(device, weights->config, layer, adaption, forward->x, n, forward->q_latent, forward->q, forward->k);
    /* norm of the latent, rope; both parts go to the blocks of the row's sequence */
    ops->latent_store(device, weights, l, layout, &forward->rows, forward->q, forward->k);

    for (int first = 0; first < n;) {
        struct dse_row_run run = {n - first, false};
        if (forward->expand) run = dse_expansion_run(weights->config, &forward->rows, first);
        /* H*R values an absorbed row are many times the rest: a part of the rows at a time */
        if (!run.expanded && run.n_rows > DSE_LATENT_ROWS) run.n_rows = DSE_LATENT_ROWS;
        const struct dse_rows rows = slice(&forward->rows, first, run.n_rows);
        if (run.expanded)
            attend_expanded(forward, layout, l, &rows);
        else
            attend_absorbed(forward, layout, l, &rows);
        first += run.n_rows;
    }
    ops->project_add(device, &layer->o, adaption, DSE_SITE_O, forward->attention, n, forward->x);
}

/* x [n, D] += the chosen experts and the shared ones, or the dense FFN of the first layers */
static void feed_forward(struct dse_forward *forward, int l)
{
    struct dse_device *device = forward->model->device;
    const struct dse_device_ops *ops = device->ops;
    const struct dse_config *config = forward->model->weights.config;
    const struct dse_layer *layer = &forward->model->weights.layers[l];
    const int n = forward->rows.n_rows;
    const struct dse_adaption *adaption = dse_forward_adaption(forward, l);

    if (dse_layer_is_moe(config, l)) {
        ops->route(device, config, layer, forward->x, n, &forward->routes);
        ops->moe(device, config, layer, adaption, &forward->routes, n, forward->x);
    } else {
        ops->ffn_up(device, config, layer, adaption, forward->x, n, forward->h);
        ops->project_add(device, &layer->down, adaption, DSE_SITE_DOWN, forward->h, n, forward->x);
    }
}

void dse_forward_deepseek(struct dse_forward *forward, const struct dse_kv_layout *layout, int layer_begin,
                          int layer_end)
{
    struct dse_device *device = forward->model->device;
    const struct dse_device_weights *weights = &forward->model->weights;

    if (layer_begin == 0) device->ops->embed(device, weights->token_embd, &forward->rows, forward->x);
    for (int l = layer_begin; l < layer_end; l++) {
        if (weights->config->latent.kv_rank > 0)
            attend_latent(forward, layout, l);
        else
            attend_heads(forward, layout, l);
        feed_forward(forward, l);
    }
}

/* The prediction layer is one more decoder layer with a cache of its own. Keys and queries of a row use the row's
 * position, not the next one: all shift alike, so scores are the same. */
void dse_forward_deepseek_mtp(struct dse_forward *forward, const struct dse_kv_layout *layout,
                              const int32_t *next_tokens)
{
    struct dse_device *device = forward->model->device;
    const struct dse_device_weights *weights = &forward->model->weights;
    const int l = weights->config->n_layers;
    struct dse_rows rows = forward->rows;

    rows.tokens = next_tokens;
    /* x [n, D] = eh_proj · [normed embedding of the next token ; normed final state of this one] */
    device->ops->mtp_input(device, weights, &weights->layers[l], &rows, forward->joined, forward->x);
    attend_latent(forward, layout, l);
    feed_forward(forward, l);
}
