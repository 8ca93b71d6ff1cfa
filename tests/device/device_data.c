/* The device tests' made-up models and KV pools (device_data.h). */
#include "device_data.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "quant/types.h"

uint32_t random_u32(struct random *random)
{
    random->state = random->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random->state >> 33) ^ (uint32_t)(random->state >> 60);
}

float random_float(struct random *random, float low, float high)
{
    return low + (high - low) * (float)(random_u32(random) >> 8 & 0x7fffff) / 8388608.0f;
}

void random_fill(struct random *random, float *out, size_t n, float low, float high)
{
    for (size_t i = 0; i < n; i++)
        out[i] = random_float(random, low, high);
}

uint64_t hash_floats(const float *values, size_t n)
{
    const uint8_t *bytes = (const uint8_t *)values;
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < n * sizeof *values; i++)
        hash = (hash ^ bytes[i]) * 1099511628211u;
    return hash;
}

void assert_same_bits(const float *a, const float *b, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t x, y;
        memcpy(&x, a + i, 4);
        memcpy(&y, b + i, 4);
        if (x != y && !(a[i] != a[i] && b[i] != b[i]))
            fail_msg("%s: element %zu is %a and %a", what, i, (double)a[i], (double)b[i]);
    }
}

const struct fake_shape small_shape = {.n_layers = 2,
                                       .n_embd = 64,
                                       .n_heads = 4,
                                       .n_kv_heads = 2,
                                       .head_dim = 16,
                                       .n_ff = 96,
                                       .n_vocab = 100,
                                       .rope_dimensions = 16,
                                       .type = DSE_TYPE_Q8_0,
                                       .pairs = DSE_ROPE_HALF,
                                       .seed = 1};

/* Random data of a type, all values small. */
static void *random_tensor(struct random *random, enum dse_type type, size_t elements, size_t *bytes)
{
    const struct dse_type_info *info = dse_type_info((uint32_t)type);
    *bytes = elements / (size_t)info->block_elements * (size_t)info->block_bytes;
    uint8_t *data = calloc(1, *bytes);
    assert_non_null(data);
    if (type == DSE_TYPE_F32) {
        random_fill(random, (float *)data, elements, -1.0f, 1.0f);
        return data;
    }
    for (size_t i = 0; i < *bytes; i++)
        data[i] = (uint8_t)random_u32(random);
    size_t n_scales = type == DSE_TYPE_Q4_1 ? 2 : 1;
    for (size_t at = 0; type != DSE_TYPE_F16 && at < *bytes; at += (size_t)info->block_bytes)
        for (size_t s = 0; s < n_scales; s++) {
            uint16_t scale = dse_f32_to_f16(random_float(random, -0.02f, 0.02f));
            memcpy(data + at + 2 * s, &scale, 2);
        }
    for (size_t at = 0; type == DSE_TYPE_F16 && at < *bytes; at += 2) {
        uint16_t value = dse_f32_to_f16(random_float(random, -1.0f, 1.0f));
        memcpy(data + at, &value, 2);
    }
    return data;
}

static const struct dse_tensor *add(struct fake_model *model, struct random *random, const char *name,
                                    enum dse_type type, int rows, int cols)
{
    struct dse_tensor *t = &model->tensors[model->n_tensors++];
    size_t r = (size_t)rows, c = cols > 0 ? (size_t)cols : 1;
    *t = (struct dse_tensor){.name = name, .type = type, .n_dims = cols > 0 ? 2 : 1, .shape = {r, c, 1, 1}};
    t->data = random_tensor(random, type, r * c, &t->bytes);
    return t;
}

void fake_model_init(struct fake_model *model, const struct fake_shape *shape, const char *path)
{
    struct random random = {shape->seed};
    memset(model, 0, sizeof *model);
    struct dse_config *c = &model->file.config;
    *c = (struct dse_config){.n_layers = shape->n_layers,
                             .n_embd = shape->n_embd,
                             .n_heads = shape->n_heads,
                             .n_kv_heads = shape->n_kv_heads,
                             .head_dim = shape->head_dim,
                             .n_ff = shape->n_ff,
                             .n_vocab = shape->n_vocab,
                             .context_length = 2048,
                             .rms_eps = 1e-5f,
                             .tied_embeddings = true,
                             .qkv_bias = shape->bias,
                             .qk_norm = shape->qk_norm,
                             .n_mtp_layers = shape->mtp,
                             .n_mtp_used = shape->mtp,
                             .rope = {.theta = 10000, .dimensions = shape->rope_dimensions, .pairs = shape->pairs}};
    model->file.path = strdup(path);
    model->file.layers = model->layers;
    int q = shape->n_heads * shape->head_dim, kv = shape->n_kv_heads * shape->head_dim, d = shape->n_embd;
    for (int i = 0; i < dse_layers_used(c); i++) {
        struct dse_layer_tensors *l = &model->layers[i];
        l->attn_norm = add(model, &random, "attn_norm", DSE_TYPE_F32, d, 0);
        l->ffn_norm = add(model, &random, "ffn_norm", DSE_TYPE_F32, d, 0);
        l->q = add(model, &random, "q", shape->type, q, d);
        l->k = add(model, &random, "k", shape->type, kv, d);
        l->v = add(model, &random, "v", shape->type, kv, d);
        l->o = add(model, &random, "o", shape->type, d, q);
        l->gate = add(model, &random, "gate", shape->type, shape->n_ff, d);
        l->up = add(model, &random, "up", shape->type, shape->n_ff, d);
        l->down = add(model, &random, "down", shape->type, d, shape->n_ff);
        if (shape->bias) {
            l->q_bias = add(model, &random, "q_bias", DSE_TYPE_F32, q, 0);
            l->k_bias = add(model, &random, "k_bias", DSE_TYPE_F32, kv, 0);
            l->v_bias = add(model, &random, "v_bias", DSE_TYPE_F32, kv, 0);
        }
        if (shape->qk_norm) {
            l->q_norm = add(model, &random, "q_norm", DSE_TYPE_F32, shape->head_dim, 0);
            l->k_norm = add(model, &random, "k_norm", DSE_TYPE_F32, shape->head_dim, 0);
        }
        if (i >= shape->n_layers) {
            l->mtp.embd_norm = add(model, &random, "enorm", DSE_TYPE_F32, d, 0);
            l->mtp.hidden_norm = add(model, &random, "hnorm", DSE_TYPE_F32, d, 0);
            l->mtp.project = add(model, &random, "eh_proj", shape->type, d, 2 * d);
            l->mtp.head_norm = add(model, &random, "head_norm", DSE_TYPE_F32, d, 0);
        }
    }
    model->file.output_norm = add(model, &random, "output_norm", DSE_TYPE_F32, d, 0);
    model->file.token_embd = add(model, &random, "token_embd", shape->type, shape->n_vocab, d);
    model->file.output = model->file.token_embd;
}

void fake_model_deinit(struct fake_model *model)
{
    for (int i = 0; i < model->n_tensors; i++)
        free((void *)model->tensors[i].data);
    free(model->file.path);
}

void fake_kv_init(struct fake_kv *kv, enum dse_kv_type type, int n_layers, int n_kv_heads, int head_dim,
                  int n_sequences, int max_tokens)
{
    struct dse_kv_layout layout = {.type = type, .n_layers = n_layers, .n_kv_heads = n_kv_heads, .head_dim = head_dim};
    dse_kv_layout_init(&layout);
    fake_kv_init_layout(kv, &layout, n_sequences, max_tokens);
}

void fake_kv_init_layout(struct fake_kv *kv, const struct dse_kv_layout *layout, int n_sequences, int max_tokens)
{
    *kv = (struct fake_kv){.layout = *layout, .n_sequences = n_sequences};
    kv->blocks_per_sequence = (max_tokens + DSE_KV_BLOCK_TOKENS - 1) / DSE_KV_BLOCK_TOKENS;
    int n_blocks = n_sequences * kv->blocks_per_sequence;
    size_t bytes = (size_t)n_blocks * kv->layout.block_bytes;
    kv->pool = aligned_alloc(512, bytes);
    kv->blocks = malloc((size_t)n_blocks * sizeof *kv->blocks);
    assert_non_null(kv->pool);
    assert_non_null(kv->blocks);
    memset(kv->pool, 0xff, bytes); /* NaN as f16 and as f32 */
    int stride = n_blocks - 1;     /* coprime to n_blocks */
    for (int i = 0; i < n_blocks; i++)
        kv->blocks[i] = (int32_t)((long)i * stride % n_blocks);
}

void fake_kv_deinit(struct fake_kv *kv)
{
    free(kv->pool);
    free(kv->blocks);
}

struct dse_kv_view fake_kv_view(const struct fake_kv *kv, int sequence)
{
    return (struct dse_kv_view){kv->pool, kv->blocks + sequence * kv->blocks_per_sequence};
}

/* Written from the comment in kv_layout.h, not from the kernels. */
static uint8_t *locate(const struct fake_kv *kv, int sequence, int layer, int head, bool value, int token, int i)
{
    size_t element = kv->layout.type == DSE_KV_F16 ? 2 : 4, d = (size_t)kv->layout.head_dim;
    size_t area = (d * 32 * element + 511) / 512 * 512, t = (size_t)token % 32;
    size_t block = (size_t)kv->blocks[sequence * kv->blocks_per_sequence + token / 32];
    size_t areas = (block * (size_t)kv->layout.n_layers + (size_t)layer) * (size_t)kv->layout.n_kv_heads + (size_t)head;
    size_t index = value ? t * d + (size_t)i : (size_t)i * 32 + t;
    return kv->pool + (2 * areas + (value ? 1 : 0)) * area + index * element;
}

float fake_kv_get(const struct fake_kv *kv, int sequence, int layer, int head, bool value, int token, int i)
{
    const uint8_t *at = locate(kv, sequence, layer, head, value, token, i);
    uint16_t half;
    float full;
    memcpy(&half, at, 2);
    if (kv->layout.type == DSE_KV_F16) return dse_f16_to_f32(half);
    memcpy(&full, at, 4);
    return full;
}

void fake_kv_set(struct fake_kv *kv, int sequence, int layer, int head, bool value, int token, int i, float x)
{
    uint16_t half = dse_f32_to_f16(x);
    if (kv->layout.type == DSE_KV_F16)
        memcpy(locate(kv, sequence, layer, head, value, token, i), &half, 2);
    else
        memcpy(locate(kv, sequence, layer, head, value, token, i), &x, 4);
}
