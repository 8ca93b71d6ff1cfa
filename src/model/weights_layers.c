/* The tensors of one layer: which ones an architecture needs, under which names, in which shapes. Called by weights.c
 * for every layer of a model; the tables here and in weights_experts.c hold the names of a layer's tensors. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "model/weights_internal.h"

/* Extents of a shape, taken from the configuration. */
enum extent {
    NONE,
    EMBD,
    EMBD_TWICE,
    FF,
    HEAD,
    HEADS,
    Q_ROWS,    /* H*d */
    KV_ROWS,   /* K*d */
    O_COLUMNS, /* H*v, else H*d */
    Q_RANK,
    KV_RANK,
    KV_A_ROWS, /* R + rope */
    KV_B_ROWS, /* H*(nope+v) */
    NOPE,
    V_HEAD,
    EXPERTS,
    SHARED_FF,
    INDEX_HEADS,
    INDEX_DIM,
    INDEX_Q_ROWS
};

enum need {
    ALWAYS,
    PLAIN_ATTENTION,
    QKV_BIAS,
    QK_NORM,
    DIRECT_Q, /* no latent, or none for the query */
    LATENT_Q,
    LATENT,
    SPLIT_KV_B,
    JOINED_KV_B,
    INDEXER,
    DENSE_FFN,
    MOE,
    ROUTER_BIAS,
    SHARED,
    MTP
};

struct layer_row {
    size_t field; /* offset in struct dse_layer_tensors */
    const char *gguf, *hugging_face;
    enum extent shape[3]; /* up to the first NONE */
    enum need need;
    bool exclusive; /* where it is not needed, a file that has it means another computation */
};

#define FIELD(name) offsetof(struct dse_layer_tensors, name)
static const struct layer_row layer_rows[] = {
    {FIELD(attn_norm), "attn_norm.weight", "input_layernorm.weight", {EMBD}, ALWAYS, false},
    {FIELD(q), "attn_q.weight", "self_attn.q_proj.weight", {Q_ROWS, EMBD}, DIRECT_Q, true},
    {FIELD(k), "attn_k.weight", "self_attn.k_proj.weight", {KV_ROWS, EMBD}, PLAIN_ATTENTION, true},
    {FIELD(v), "attn_v.weight", "self_attn.v_proj.weight", {KV_ROWS, EMBD}, PLAIN_ATTENTION, true},
    {FIELD(o), "attn_output.weight", "self_attn.o_proj.weight", {EMBD, O_COLUMNS}, ALWAYS, false},
    {FIELD(q_bias), "attn_q.bias", "self_attn.q_proj.bias", {Q_ROWS}, QKV_BIAS, false},
    {FIELD(k_bias), "attn_k.bias", "self_attn.k_proj.bias", {KV_ROWS}, QKV_BIAS, false},
    {FIELD(v_bias), "attn_v.bias", "self_attn.v_proj.bias", {KV_ROWS}, QKV_BIAS, false},
    {FIELD(q_norm), "attn_q_norm.weight", "self_attn.q_norm.weight", {HEAD}, QK_NORM, false},
    {FIELD(k_norm), "attn_k_norm.weight", "self_attn.k_norm.weight", {HEAD}, QK_NORM, false},
    {FIELD(ffn_norm), "ffn_norm.weight", "post_attention_layernorm.weight", {EMBD}, ALWAYS, false},
    {FIELD(gate), "ffn_gate.weight", "mlp.gate_proj.weight", {FF, EMBD}, DENSE_FFN, true},
    {FIELD(up), "ffn_up.weight", "mlp.up_proj.weight", {FF, EMBD}, DENSE_FFN, true},
    {FIELD(down), "ffn_down.weight", "mlp.down_proj.weight", {EMBD, FF}, DENSE_FFN, true},

    {FIELD(q_a), "attn_q_a.weight", "self_attn.q_a_proj.weight", {Q_RANK, EMBD}, LATENT_Q, true},
    {FIELD(q_a_norm), "attn_q_a_norm.weight", "self_attn.q_a_layernorm.weight", {Q_RANK}, LATENT_Q, true},
    {FIELD(q_b), "attn_q_b.weight", "self_attn.q_b_proj.weight", {Q_ROWS, Q_RANK}, LATENT_Q, true},
    {FIELD(kv_a), "attn_kv_a_mqa.weight", "self_attn.kv_a_proj_with_mqa.weight", {KV_A_ROWS, EMBD}, LATENT, true},
    {FIELD(kv_a_norm), "attn_kv_a_norm.weight", "self_attn.kv_a_layernorm.weight", {KV_RANK}, LATENT, true},
    {FIELD(kv_b.k_b), "attn_k_b.weight", NULL, {HEADS, KV_RANK, NOPE}, SPLIT_KV_B, false},
    {FIELD(kv_b.v_b), "attn_v_b.weight", NULL, {HEADS, V_HEAD, KV_RANK}, SPLIT_KV_B, false},
    /* Files of a transition carry both forms: the split one is used. */
    {FIELD(kv_b.joined), "attn_kv_b.weight", "self_attn.kv_b_proj.weight", {KV_B_ROWS, KV_RANK}, JOINED_KV_B, false},
    {FIELD(indexer.q_b),
     "indexer.attn_q_b.weight",
     "self_attn.indexer.wq_b.weight",
     {INDEX_Q_ROWS, Q_RANK},
     INDEXER,
     true},
    {FIELD(indexer.k), "indexer.attn_k.weight", "self_attn.indexer.wk.weight", {INDEX_DIM, EMBD}, INDEXER, true},
    {FIELD(indexer.k_norm), "indexer.k_norm.weight", "self_attn.indexer.k_norm.weight", {INDEX_DIM}, INDEXER, true},
    {FIELD(indexer.k_norm_bias), "indexer.k_norm.bias", "self_attn.indexer.k_norm.bias", {INDEX_DIM}, INDEXER, true},
    {FIELD(indexer.weights),
     "indexer.proj.weight",
     "self_attn.indexer.weights_proj.weight",
     {INDEX_HEADS, EMBD},
     INDEXER,
     true},

    {FIELD(router), "ffn_gate_inp.weight", "mlp.gate.weight", {EXPERTS, EMBD}, MOE, true},
    {FIELD(router_bias), "exp_probs_b.bias", "mlp.gate.e_score_correction_bias", {EXPERTS}, ROUTER_BIAS, true},
    {FIELD(shared_gate),
     "ffn_gate_shexp.weight",
     "mlp.shared_experts.gate_proj.weight",
     {SHARED_FF, EMBD},
     SHARED,
     true},
    {FIELD(shared_up), "ffn_up_shexp.weight", "mlp.shared_experts.up_proj.weight", {SHARED_FF, EMBD}, SHARED, true},
    {FIELD(shared_down),
     "ffn_down_shexp.weight",
     "mlp.shared_experts.down_proj.weight",
     {EMBD, SHARED_FF},
     SHARED,
     true},

    {FIELD(mtp.embd_norm), "nextn.enorm.weight", "enorm.weight", {EMBD}, MTP, true},
    {FIELD(mtp.hidden_norm), "nextn.hnorm.weight", "hnorm.weight", {EMBD}, MTP, true},
    {FIELD(mtp.project), "nextn.eh_proj.weight", "eh_proj.weight", {EMBD, EMBD_TWICE}, MTP, true},
    {FIELD(mtp.head_norm), "nextn.shared_head_norm.weight", "shared_head.norm.weight", {EMBD}, MTP, true},
};
#define N_LAYER_ROWS (sizeof layer_rows / sizeof *layer_rows)

static size_t extent_of(const struct dse_config *c, enum extent extent)
{
    const struct dse_latent_config *latent = &c->latent;
    const size_t heads = (size_t)c->n_heads;
    switch (extent) {
    case EMBD: return (size_t)c->n_embd;
    case EMBD_TWICE: return 2 * (size_t)c->n_embd;
    case FF: return (size_t)c->n_ff;
    case HEAD: return (size_t)c->head_dim;
    case HEADS: return heads;
    case Q_ROWS: return heads * (size_t)c->head_dim;
    case KV_ROWS: return (size_t)c->n_kv_heads * (size_t)c->head_dim;
    case O_COLUMNS: return heads * (size_t)(latent->kv_rank > 0 ? latent->v : c->head_dim);
    case Q_RANK: return (size_t)latent->q_rank;
    case KV_RANK: return (size_t)latent->kv_rank;
    case KV_A_ROWS: return (size_t)latent->kv_rank + (size_t)latent->rope;
    case KV_B_ROWS: return heads * ((size_t)latent->nope + (size_t)latent->v);
    case NOPE: return (size_t)latent->nope;
    case V_HEAD: return (size_t)latent->v;
    case EXPERTS: return (size_t)c->moe.n_experts;
    case SHARED_FF: return (size_t)c->moe.n_shared * (size_t)c->moe.n_ff;
    case INDEX_HEADS: return (size_t)c->indexer.n_heads;
    case INDEX_DIM: return (size_t)c->indexer.head_dim;
    case INDEX_Q_ROWS: return (size_t)c->indexer.n_heads * (size_t)c->indexer.head_dim;
    default: return 1;
    }
}

const struct dse_tensor *dse_weights_find(const struct dse_model_file *file, const char *name)
{
    return file->gguf != NULL ? dse_gguf_tensor(file->gguf, name) : dse_safetensors_tensor(file->safetensors, name);
}

static void layer_name(bool is_gguf, int layer, const char *gguf, const char *hugging_face, char name[96])
{
    if (is_gguf)
        snprintf(name, 96, "blk.%d.%s", layer, gguf);
    else
        snprintf(name, 96, "model.layers.%d.%s", layer, hugging_face);
}

void dse_weights_layer_name(const struct dse_model_file *file, int layer, const char *gguf, const char *hugging_face,
                            char name[96])
{
    layer_name(file->gguf != NULL, layer, gguf, hugging_face, name);
}

bool dse_weights_layer_field(bool is_gguf, const char *name, size_t bytes, size_t *field)
{
    static const char end[] = ".weight";
    for (size_t i = 0; i < N_LAYER_ROWS; i++) {
        const char *row = is_gguf ? layer_rows[i].gguf : layer_rows[i].hugging_face;
        if (row == NULL || strlen(row) != bytes + strlen(end) || memcmp(row, name, bytes) != 0 ||
            strcmp(row + bytes, end) != 0)
            continue;
        *field = layer_rows[i].field;
        return true;
    }
    return false;
}

static const struct dse_tensor *find_in_layer(const struct dse_model_file *file, int layer, const char *gguf,
                                              const char *hugging_face)
{
    char name[96];
    dse_weights_layer_name(file, layer, gguf, hugging_face, name);
    return dse_weights_find(file, name);
}

bool dse_weights_has_mtp(const struct dse_gguf *gguf, const struct dse_safetensors *safetensors, int layer)
{
    char name[96];
    for (size_t i = 0; i < N_LAYER_ROWS; i++) {
        const struct layer_row *row = &layer_rows[i];
        if (row->need != MTP) continue;
        layer_name(gguf != NULL, layer, row->gguf, row->hugging_face, name);
        if (gguf != NULL ? dse_gguf_tensor(gguf, name) != NULL : dse_safetensors_tensor(safetensors, name) != NULL)
            return true;
    }
    return false;
}

static bool is_needed(const struct dse_model_file *file, int layer, enum need need)
{
    const struct dse_config *c = &file->config;
    bool latent = c->latent.kv_rank > 0, moe = dse_layer_is_moe(c, layer);
    switch (need) {
    case PLAIN_ATTENTION: return !latent;
    case QKV_BIAS: return !latent && c->qkv_bias;
    case QK_NORM: return c->qk_norm;
    case DIRECT_Q: return c->latent.q_rank == 0;
    case LATENT_Q: return c->latent.q_rank > 0;
    case LATENT: return latent;
    case SPLIT_KV_B:
    case JOINED_KV_B: {
        bool split = file->gguf != NULL && (find_in_layer(file, layer, "attn_k_b.weight", "") != NULL ||
                                            find_in_layer(file, layer, "attn_v_b.weight", "") != NULL);
        return latent && split == (need == SPLIT_KV_B);
    }
    case INDEXER: return c->indexer.n_heads > 0;
    case DENSE_FFN: return !moe;
    case MOE: return moe;
    case ROUTER_BIAS: return moe && c->moe.has_bias;
    case SHARED: return moe && c->moe.n_shared > 0;
    case MTP: return layer >= c->n_layers;
    default: return true;
    }
}

static enum dse_status check_type(const struct dse_model_file *file, const struct dse_tensor *tensor,
                                  struct dse_error *err)
{
    const struct dse_type_info *info = dse_type_info(tensor->type);
    bool vector = tensor->n_dims == 1;
    if (tensor->type == DSE_TYPE_F8_E4M3 && !vector) {
        /* Attached, and its shape checked, when the folder was opened. */
        if (tensor->block_scales != NULL) return DSE_OK;
        return dse_fail_at(err, DSE_ERR_UNSUPPORTED, file->path, -1,
                           "%s: tensor '%s' has the type F8_E4M3, but no quantization_config says so", file->path,
                           tensor->name);
    }
    /* Vectors are read element by element. */
    if (info != NULL && info->decodable && (!vector || info->block_elements == 1) && tensor->type != DSE_TYPE_F8_E4M3)
        return DSE_OK;
    const char *name = info != NULL ? info->name : dse_safetensors_dtype(file->safetensors, tensor);
    return dse_fail_at(err, DSE_ERR_UNSUPPORTED, file->path, -1,
                       "%s: tensor '%s' has the type %s, which cannot be used as a weight here", file->path,
                       tensor->name, name);
}

static void list_shape(char *out, size_t capacity, int n_dims, const size_t *shape)
{
    size_t at = 0;
    out[0] = '\0';
    for (int i = 0; i < n_dims && at < capacity; i++)
        at += (size_t)snprintf(out + at, capacity - at, "%s%zu", i > 0 ? ", " : "", shape[i]);
}

enum dse_status dse_weights_take(struct dse_model_file *file, const char *name, int n_dims, const size_t *shape,
                                 const struct dse_tensor **out, struct dse_error *err)
{
    const struct dse_tensor *tensor = dse_weights_find(file, name);
    if (tensor == NULL)
        return dse_fail_at(err, DSE_ERR_CORRUPT, file->path, -1, "%s: tensor '%s' is missing", file->path, name);
    bool same = tensor->n_dims == n_dims;
    size_t elements = 1;
    for (int i = 0; i < n_dims; i++) {
        same = same && tensor->shape[i] == shape[i];
        elements *= shape[i];
    }
    if (!same) {
        char found[96], expected[72];
        list_shape(found, sizeof found, tensor->n_dims, tensor->shape);
        list_shape(expected, sizeof expected, n_dims, shape);
        return dse_fail_at(err, DSE_ERR_CORRUPT, file->path, -1,
                           "%s: tensor '%s' has the shape [%s], the configuration asks for [%s]", file->path, name,
                           found, expected);
    }
    enum dse_status status = check_type(file, tensor, err);
    if (status != DSE_OK) return status;
    size_t scales = 0;
    if (n_dims == 2 && tensor->block_scales != NULL)
        scales = (shape[0] + DSE_F8_BLOCK - 1) / DSE_F8_BLOCK * ((shape[1] + DSE_F8_BLOCK - 1) / DSE_F8_BLOCK) * 4;
    if (!dse_add_size(file->weight_bytes, tensor->bytes + scales, &file->weight_bytes))
        return dse_fail_at(err, DSE_ERR_LIMIT, file->path, -1, "%s: the sum of tensor sizes overflows at '%s'",
                           file->path, name);
    file->n_parameters += (int64_t)elements;
    file->n_active_parameters += (int64_t)elements;
    dse_weights_mark(file, tensor);
    *out = tensor;
    return DSE_OK;
}

static enum dse_status refuse_tensor(const struct dse_model_file *file, const struct dse_tensor *tensor,
                                     struct dse_error *err)
{
    return dse_fail_at(err, DSE_ERR_UNSUPPORTED, file->path, -1,
                       "%s: tensor '%s' is not part of architecture %s as this version computes it", file->path,
                       tensor->name, file->config.arch_name);
}

/* One of these that is not a number would decide every choice of experts. */
static enum dse_status check_router_bias(const struct dse_model_file *file, const struct dse_tensor *bias,
                                         struct dse_error *err)
{
    size_t step = bias->bytes / bias->shape[0];
    for (size_t e = 0; e < bias->shape[0]; e++) {
        float value;
        dse_type_decode(bias->type, (const char *)bias->data + e * step, &value, 1);
        if (!isfinite(value))
            return dse_fail_at(err, DSE_ERR_CORRUPT, file->path, -1,
                               "%s: tensor '%s' holds %g for expert %zu, expected a finite number", file->path,
                               bias->name, (double)value, e);
    }
    return DSE_OK;
}

enum dse_status dse_weights_take_layer(struct dse_model_file *file, int layer, struct dse_error *err)
{
    char name[96];
    struct dse_layer_tensors *tensors = &file->layers[layer];
    enum dse_status status = DSE_OK;
    for (size_t i = 0; i < N_LAYER_ROWS; i++) {
        const struct layer_row *row = &layer_rows[i];
        if (!is_needed(file, layer, row->need)) {
            const bool look = row->exclusive || row->need == JOINED_KV_B;
            const struct dse_tensor *extra = look ? find_in_layer(file, layer, row->gguf, row->hugging_face) : NULL;
            if (extra != NULL && row->exclusive) return refuse_tensor(file, extra, err);
            if (extra != NULL) dse_weights_mark(file, extra); /* the same weights in the form that is not read */
            continue;
        }
        size_t shape[3];
        int n_dims = 0;
        for (; n_dims < 3 && row->shape[n_dims] != NONE; n_dims++)
            shape[n_dims] = extent_of(&file->config, row->shape[n_dims]);
        dse_weights_layer_name(file, layer, row->gguf, row->hugging_face, name);
        const struct dse_tensor **field = (const struct dse_tensor **)(void *)((char *)tensors + row->field);
        if ((status = dse_weights_take(file, name, n_dims, shape, field, err)) != DSE_OK) return status;
    }
    if (tensors->router_bias != NULL) status = check_router_bias(file, tensors->router_bias, err);
    if (status == DSE_OK && dse_layer_is_moe(&file->config, layer)) status = dse_weights_take_experts(file, layer, err);
    return status;
}
