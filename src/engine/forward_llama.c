/* The forward pass of llama, qwen2 and qwen3, in data-flow order. The three differ in the biases on q, k, v (qwen2) and
 * in the norm over each head of q and k (qwen3); both lie in the layer's weights and the ops apply what is there.
 *
 * n rows, D hidden, H heads, K kv heads, d head dimension, F ffn. Called by forward.c with the device locked; never
 * allocates, never looks at which sequence a row belongs to.
 */
#include "engine/forward.h"

void dse_forward_llama(struct dse_forward *forward, const struct dse_kv_layout *layout, int layer_begin, int layer_end)
{
    struct dse_device *device = forward->model->device;
    const struct dse_device_ops *ops = device->ops;
    const struct dse_device_weights *weights = &forward->model->weights;
    const struct dse_config *config = weights->config;
    const struct dse_rows *rows = &forward->rows;
    const int n = rows->n_rows;
    float *x = forward->x; /* [n, D] */

    if (layer_begin == 0) ops->embed(device, weights->token_embd, rows, x);

    for (int l = layer_begin; l < layer_end; l++) {
        const struct dse_layer *layer = &weights->layers[l];
        const struct dse_adaption *adaption = dse_forward_adaption(forward, l);

        /* q [n, H*d]  k, v [n, K*d]  =  W · rms(x) + b */
        ops->qkv(device, config, layer, adaption, x, n, forward->q, forward->k, forward->v);
        /* per head: norm (qwen3), rope; k and v go to the blocks of the row's sequence */
        ops->rope_store(device, weights, l, layout, rows, forward->q, forward->k, forward->v);
        /* [n, H*d]: softmax(q·K / sqrt(d)) V over positions 0…position of the row */
        ops->attention(device, config, l, layout, rows, forward->q, forward->attention);
        /* x [n, D] += Wo · attention */
        ops->project_add(device, &layer->o, adaption, DSE_SITE_O, forward->attention, n, x);

        /* h [n, F] = silu(Wgate · rms(x)) * (Wup · rms(x)) */
        ops->ffn_up(device, config, layer, adaption, x, n, forward->h);
        /* x [n, D] += Wdown · h */
        ops->project_add(device, &layer->down, adaption, DSE_SITE_DOWN, forward->h, n, x);
    }
}
