/* Rotary embedding of q and k, the q/k norm before it, and the store of k and v into the KV blocks. The angles serve
 * latent attention (cpu_latent.c) and the indexer (cpu_index.c) too.
 *
 * Angles are those of Hugging Face: f32 position times f32 inverse frequency. Their cosines are computed once per row
 * of the batch and kept for all layers.
 */
#include <math.h>
#include <string.h>

#include "device/cpu.h"

struct rope_job {
    struct cpu_state *state;
    const struct dse_device_weights *weights;
    int layer;
    const struct dse_kv_layout *layout;
    const struct dse_rows *rows;
    float *q;
    const float *k, *v;
};

void dse_cpu_angles_begin(struct cpu_state *state, const struct dse_device_weights *weights)
{
    if (state->angle_frequencies == weights->rope_frequencies) return;
    for (int m = 0; m < state->max_rows; m++)
        state->angle_positions[m] = -1;
    state->angle_frequencies = weights->rope_frequencies;
}

struct cpu_angles dse_cpu_angles(struct cpu_state *state, const struct dse_device_weights *weights,
                                 const struct dse_rows *rows, size_t m)
{
    size_t pairs = (size_t)weights->config->rope.dimensions / 2, at = (size_t)rows->first + m;
    float *cosine = state->cosines + at * pairs, *sine = state->sines + at * pairs;
    const int32_t position = rows->positions[m];
    if (state->angle_positions[at] != position) {
        for (size_t i = 0; i < pairs; i++) {
            float angle = (float)position * weights->rope_frequencies[i];
            cosine[i] = (float)cos((double)angle) * weights->rope_factor;
            sine[i] = (float)sin((double)angle) * weights->rope_factor;
        }
        state->angle_positions[at] = position;
    }
    return (struct cpu_angles){cosine, sine, pairs};
}

void dse_cpu_rotate(float *head, const struct cpu_angles *angles, enum dse_rope_pairs kind)
{
    const float *cosine = angles->cosine, *sine = angles->sine;
    size_t pairs = angles->pairs;
    if (kind == DSE_ROPE_HALF) {
        for (size_t i = 0; i < pairs; i++) {
            float a = head[i], b = head[i + pairs];
            head[i] = a * cosine[i] - b * sine[i];
            head[i + pairs] = b * cosine[i] + a * sine[i];
        }
    } else {
        for (size_t i = 0; i < pairs; i++) {
            float a = head[2 * i], b = head[2 * i + 1];
            head[2 * i] = a * cosine[i] - b * sine[i];
            head[2 * i + 1] = b * cosine[i] + a * sine[i];
        }
    }
}

void dse_cpu_store_column(const struct cpu_state *state, enum dse_kv_type type, const float *key, size_t n,
                          uint8_t *area, size_t slot)
{
    if (type == DSE_KV_F32) {
        for (size_t i = 0; i < n; i++)
            ((float *)area)[i * DSE_KV_BLOCK_TOKENS + slot] = key[i];
        return;
    }
    uint16_t half[64];
    for (size_t i = 0; i < n; i += 64) {
        size_t part = n - i < 64 ? n - i : 64;
        state->kernels.vector.narrow(key + i, part, half);
        for (size_t j = 0; j < part; j++)
            ((uint16_t *)area)[(i + j) * DSE_KV_BLOCK_TOKENS + slot] = half[j];
    }
}

/* K goes in as a column of [d][32 tokens], V as a row of [32 tokens][d]. */
static void store(const struct rope_job *job, int m, int head, const float *k, const float *v)
{
    const struct dse_kv_layout *layout = job->layout;
    const struct dse_kv_view *kv = &job->rows->kv[m];
    size_t position = (size_t)job->rows->positions[m], d = (size_t)layout->head_dim;
    size_t slot = position % DSE_KV_BLOCK_TOKENS;
    uint8_t *area = kv->pool + (size_t)kv->blocks[position / DSE_KV_BLOCK_TOKENS] * layout->block_bytes +
                    (size_t)job->layer * layout->layer_bytes + (size_t)head * layout->head_bytes;
    dse_cpu_store_column(job->state, layout->type, k, d, area, slot);
    if (layout->type == DSE_KV_F32)
        memcpy((float *)(area + layout->k_bytes) + slot * d, v, d * sizeof *v);
    else
        job->state->kernels.vector.narrow(v, d, (uint16_t *)(area + layout->k_bytes) + slot * d);
}

static void run_rope(void *context, int thread, int n_threads)
{
    const struct rope_job *job = context;
    const struct dse_config *config = job->weights->config;
    const struct dse_layer *layer = &job->weights->layers[job->layer];
    const struct dse_vector_ops *vector = &job->state->kernels.vector;
    size_t d = (size_t)config->head_dim, begin, end;
    float *key = job->state->threads[thread].k_head;
    dse_split((size_t)job->rows->n_rows, DSE_KV_BLOCK_TOKENS, thread, n_threads, &begin, &end);
    for (size_t m = begin; m < end; m++) {
        const struct cpu_angles angles = dse_cpu_angles(job->state, job->weights, job->rows, m);
        for (int h = 0; h < config->n_heads; h++) {
            float *q = job->q + (m * (size_t)config->n_heads + (size_t)h) * d;
            if (layer->q_norm != NULL) vector->rmsnorm(q, layer->q_norm, d, config->rms_eps, q);
            dse_cpu_rotate(q, &angles, config->rope.pairs);
        }
        for (int h = 0; h < config->n_kv_heads; h++) {
            size_t at = (m * (size_t)config->n_kv_heads + (size_t)h) * d;
            if (layer->k_norm != NULL)
                vector->rmsnorm(job->k + at, layer->k_norm, d, config->rms_eps, key);
            else
                memcpy(key, job->k + at, d * sizeof *key);
            dse_cpu_rotate(key, &angles, config->rope.pairs);
            store(job, (int)m, h, key, job->v + at);
        }
    }
}

void dse_cpu_rope_store(struct dse_device *device, const struct dse_device_weights *weights, int layer,
                        const struct dse_kv_layout *layout, const struct dse_rows *rows, float *q, const float *k,
                        const float *v)
{
    struct cpu_state *state = device->state;
    struct rope_job job = {state, weights, layer, layout, rows, q, k, v};
    dse_cpu_angles_begin(state, weights);
    /* waking the others costs more than a row takes */
    if (rows->n_rows < 2 * DSE_KV_BLOCK_TOKENS)
        run_rope(&job, 0, 1);
    else
        dse_pool_run(device->pool, run_rope, &job);
}
