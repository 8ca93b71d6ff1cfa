/* Opens a model for inference: configuration, and every tensor that the architecture needs under its field, with its
 * shape and type checked once. Used by the device, which relies on these checks.
 *
 * The tables below are the only place that knows tensor names. Nothing is copied; nothing of the weights is read but
 * the few rope divisors.
 */
#include "model/weights.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/file.h"
#include "model/config_internal.h"
#include "model/model_json.h"
#include "model/weights_internal.h"

#define MAX_CONFIG_BYTES ((size_t)16 << 20)

/* Extents of a shape, taken from the configuration. */
enum extent { NONE, EMBD, VOCAB, FF, HEAD, Q_ROWS, KV_ROWS };
enum need { ALWAYS, WITH_QKV_BIAS, WITH_QK_NORM };

struct layer_row {
    size_t field; /* offset in struct dse_layer_tensors */
    const char *gguf, *hugging_face;
    enum extent rows, columns; /* columns NONE: a vector */
    enum need need;
};

#define FIELD(name) offsetof(struct dse_layer_tensors, name)
static const struct layer_row layer_rows[] = {
    {FIELD(attn_norm), "attn_norm.weight", "input_layernorm.weight", EMBD, NONE, ALWAYS},
    {FIELD(q), "attn_q.weight", "self_attn.q_proj.weight", Q_ROWS, EMBD, ALWAYS},
    {FIELD(k), "attn_k.weight", "self_attn.k_proj.weight", KV_ROWS, EMBD, ALWAYS},
    {FIELD(v), "attn_v.weight", "self_attn.v_proj.weight", KV_ROWS, EMBD, ALWAYS},
    {FIELD(o), "attn_output.weight", "self_attn.o_proj.weight", EMBD, Q_ROWS, ALWAYS},
    {FIELD(q_bias), "attn_q.bias", "self_attn.q_proj.bias", Q_ROWS, NONE, WITH_QKV_BIAS},
    {FIELD(k_bias), "attn_k.bias", "self_attn.k_proj.bias", KV_ROWS, NONE, WITH_QKV_BIAS},
    {FIELD(v_bias), "attn_v.bias", "self_attn.v_proj.bias", KV_ROWS, NONE, WITH_QKV_BIAS},
    {FIELD(q_norm), "attn_q_norm.weight", "self_attn.q_norm.weight", HEAD, NONE, WITH_QK_NORM},
    {FIELD(k_norm), "attn_k_norm.weight", "self_attn.k_norm.weight", HEAD, NONE, WITH_QK_NORM},
    {FIELD(ffn_norm), "ffn_norm.weight", "post_attention_layernorm.weight", EMBD, NONE, ALWAYS},
    {FIELD(gate), "ffn_gate.weight", "mlp.gate_proj.weight", FF, EMBD, ALWAYS},
    {FIELD(up), "ffn_up.weight", "mlp.up_proj.weight", FF, EMBD, ALWAYS},
    {FIELD(down), "ffn_down.weight", "mlp.down_proj.weight", EMBD, FF, ALWAYS},
};
#define N_LAYER_ROWS (sizeof layer_rows / sizeof *layer_rows)

/* Tensors of a layer that would change the result if they were there and ignored. In GGUF that is every tensor which no
 * row names (weights_unknown.c). */
static const char *const refused_hugging_face[] = {"self_attn.o_proj.bias", "mlp.gate_proj.bias", "mlp.up_proj.bias",
                                                   "mlp.down_proj.bias"};

static size_t extent_of(const struct dse_config *c, enum extent extent)
{
    switch (extent) {
    case EMBD: return (size_t)c->n_embd;
    case VOCAB: return (size_t)c->n_vocab;
    case FF: return (size_t)c->n_ff;
    case HEAD: return (size_t)c->head_dim;
    case Q_ROWS: return (size_t)c->n_heads * (size_t)c->head_dim;
    case KV_ROWS: return (size_t)c->n_kv_heads * (size_t)c->head_dim;
    default: return 1;
    }
}

static const struct dse_tensor *find(const struct dse_model_file *file, const char *name)
{
    return file->gguf != NULL ? dse_gguf_tensor(file->gguf, name) : dse_safetensors_tensor(file->safetensors, name);
}

static enum dse_status check_type(const struct dse_model_file *file, const struct dse_tensor *tensor, bool vector,
                                  struct dse_error *err)
{
    const struct dse_type_info *info = dse_type_info(tensor->type);
    /* Vectors are read element by element. */
    if (info != NULL && info->decodable && (!vector || info->block_elements == 1)) return DSE_OK;
    const char *name = info != NULL ? info->name : dse_safetensors_dtype(file->safetensors, tensor);
    return dse_fail_at(err, DSE_ERR_UNSUPPORTED, file->path, -1,
                       "%s: tensor '%s' has the type %s, which cannot be used as a weight here", file->path,
                       tensor->name, name);
}

/* Finds a tensor and checks it against [rows, columns]; adds it to the totals. */
static enum dse_status take(struct dse_model_file *file, const char *name, enum extent rows, enum extent columns,
                            const struct dse_tensor **out, struct dse_error *err)
{
    const struct dse_tensor *tensor = find(file, name);
    if (tensor == NULL)
        return dse_fail_at(err, DSE_ERR_CORRUPT, file->path, -1, "%s: tensor '%s' is missing", file->path, name);
    bool vector = columns == NONE;
    size_t want[2] = {extent_of(&file->config, rows), extent_of(&file->config, columns)};
    int n_dims = vector ? 1 : 2;
    if (tensor->n_dims != n_dims || tensor->shape[0] != want[0] || (!vector && tensor->shape[1] != want[1])) {
        char found[96] = "", expected[48];
        for (int i = 0, at = 0; i < tensor->n_dims; i++)
            at += snprintf(found + at, sizeof found - (size_t)at, "%s%zu", i > 0 ? ", " : "", tensor->shape[i]);
        if (vector)
            snprintf(expected, sizeof expected, "%zu", want[0]);
        else
            snprintf(expected, sizeof expected, "%zu, %zu", want[0], want[1]);
        return dse_fail_at(err, DSE_ERR_CORRUPT, file->path, -1,
                           "%s: tensor '%s' has the shape [%s], the configuration asks for [%s]", file->path, name,
                           found, expected);
    }
    enum dse_status status = check_type(file, tensor, vector, err);
    if (status != DSE_OK) return status;
    if (!dse_add_size(file->weight_bytes, tensor->bytes, &file->weight_bytes))
        return dse_fail_at(err, DSE_ERR_LIMIT, file->path, -1, "%s: the sum of tensor sizes overflows at '%s'",
                           file->path, name);
    file->n_parameters += (int64_t)(want[0] * want[1]);
    dse_weights_mark(file, tensor);
    *out = tensor;
    return DSE_OK;
}

static void layer_name(const struct dse_model_file *file, int layer, const char *gguf, const char *hugging_face,
                       char name[96])
{
    if (file->gguf != NULL)
        snprintf(name, 96, "blk.%d.%s", layer, gguf);
    else
        snprintf(name, 96, "model.layers.%d.%s", layer, hugging_face);
}

static enum dse_status take_layer(struct dse_model_file *file, int layer, struct dse_error *err)
{
    char name[96];
    struct dse_layer_tensors *tensors = &file->layers[layer];
    for (size_t i = 0; i < N_LAYER_ROWS; i++) {
        const struct layer_row *row = &layer_rows[i];
        if (row->need == WITH_QKV_BIAS && !file->config.qkv_bias) continue;
        if (row->need == WITH_QK_NORM && !file->config.qk_norm) continue;
        layer_name(file, layer, row->gguf, row->hugging_face, name);
        const struct dse_tensor **field = (const struct dse_tensor **)(void *)((char *)tensors + row->field);
        enum dse_status status = take(file, name, row->rows, row->columns, field, err);
        if (status != DSE_OK) return status;
    }
    size_t n = file->gguf == NULL ? sizeof refused_hugging_face / sizeof *refused_hugging_face : 0;
    for (size_t i = 0; i < n; i++) {
        layer_name(file, layer, "", refused_hugging_face[i], name);
        if (find(file, name) != NULL)
            return dse_fail_at(err, DSE_ERR_UNSUPPORTED, file->path, -1,
                               "%s: tensor '%s' is not part of architecture %s as this version computes it", file->path,
                               name, file->config.arch_name);
    }
    return DSE_OK;
}

/* GGUF rope_freqs.weight: divisors of the inverse frequencies. A zero or a NaN here would poison every position. */
static enum dse_status take_divisors(struct dse_model_file *file, struct dse_error *err)
{
    static const char name[] = "rope_freqs.weight";
    const struct dse_tensor *tensor = file->gguf != NULL ? dse_gguf_tensor(file->gguf, name) : NULL;
    if (tensor == NULL) return DSE_OK;
    size_t expected = (size_t)file->config.rope.dimensions / 2;
    if (tensor->type != DSE_TYPE_F32 || tensor->n_dims != 1 || tensor->shape[0] != expected)
        return dse_fail_at(err, DSE_ERR_CORRUPT, file->path, -1, "%s: tensor '%s' is not a vector of %zu f32 values",
                           file->path, name, expected);
    for (size_t i = 0; i < expected; i++) {
        float divisor;
        memcpy(&divisor, (const char *)tensor->data + i * sizeof divisor, sizeof divisor);
        if (!(divisor > 0 && isfinite(divisor)))
            return dse_fail_at(err, DSE_ERR_CORRUPT, file->path, -1,
                               "%s: tensor '%s' holds %g at index %zu, expected a positive number", file->path, name,
                               (double)divisor, i);
    }
    file->rope_divisors = tensor;
    dse_weights_mark(file, tensor);
    return DSE_OK;
}

static enum dse_status take_tensors(struct dse_model_file *file, struct dse_error *err)
{
    bool gguf = file->gguf != NULL;
    const char *head = gguf ? "output.weight" : "lm_head.weight";
    enum dse_status status = take(file, gguf ? "token_embd.weight" : "model.embed_tokens.weight", VOCAB, EMBD,
                                  &file->token_embd, err);
    if (status == DSE_OK)
        status = take(file, gguf ? "output_norm.weight" : "model.norm.weight", EMBD, NONE, &file->output_norm, err);
    if (status != DSE_OK) return status;
    /* A tied model may carry a copy of the head, which Hugging Face ignores too. In GGUF a missing head says that it is
     * tied; a folder says so in its configuration, and a head that is missing there was lost. */
    if (gguf && find(file, head) == NULL) file->config.tied_embeddings = true;
    if (file->config.tied_embeddings)
        file->output = file->token_embd;
    else if ((status = take(file, head, VOCAB, EMBD, &file->output, err)) != DSE_OK)
        return status;
    if ((status = take_divisors(file, err)) != DSE_OK) return status;
    /* GGUF has no key for biases: llama conversions of models with attention_bias just carry them. */
    if (gguf && find(file, "blk.0.attn_q.bias") != NULL) file->config.qkv_bias = true;
    file->layers = dse_calloc(DSE_MEM_MODEL, (size_t)file->config.n_layers, sizeof *file->layers);
    if (file->layers == NULL)
        return dse_fail_memory(err, (size_t)file->config.n_layers * sizeof *file->layers, "layers");
    for (int i = 0; i < file->config.n_layers && status == DSE_OK; i++)
        status = take_layer(file, i, err);
    if (status != DSE_OK) return status;
    /* A folder may hold more than its config asks for; a GGUF is written for its own metadata. */
    return gguf ? dse_weights_refuse_unknown(file, err) : DSE_OK;
}

static enum dse_status open_gguf(struct dse_model_file *file, struct dse_error *err)
{
    enum dse_status status = dse_gguf_open(file->path, &file->gguf, err);
    if (status == DSE_OK) status = dse_weights_mark_none(file, err);
    if (status == DSE_OK) status = dse_config_from_gguf(file->gguf, &file->config, err);
    if (status == DSE_OK) status = dse_model_text_from_gguf(file, err);
    if (status == DSE_OK) status = take_tensors(file, err);
    return status;
}

static enum dse_status read_config(struct dse_model_file *file, struct dse_error *err)
{
    json_t *config = NULL, *generation = NULL;
    char *config_path = dse_path_join(file->path, "config.json");
    char *generation_path = dse_path_join(file->path, "generation_config.json");
    enum dse_status status;
    if (config_path == NULL || generation_path == NULL) {
        status = dse_fail_memory(err, strlen(file->path) + 32, "path");
        goto out;
    }
    status = dse_model_json_read(config_path, MAX_CONFIG_BYTES, &config, err);
    if (status == DSE_ERR_NOT_FOUND)
        dse_fail_at(err, status, file->path, -1, "%s: there is no config.json in this folder", file->path);
    if (status == DSE_OK && dse_file_exists(generation_path))
        status = dse_model_json_read(generation_path, MAX_CONFIG_BYTES, &generation, err);
    if (status == DSE_OK) {
        status = dse_config_from_json(config, generation, &file->config, err);
        if (status != DSE_OK && err != NULL) {
            bool second = strncmp(err->file, "generation", 10) == 0;
            snprintf(err->file, sizeof err->file, "%s", second ? generation_path : config_path);
        }
    }
    const char *slash = strrchr(file->path, '/');
    const char *name = slash != NULL ? slash + 1 : file->path;
    dse_config_copy_text(file->config.name, sizeof file->config.name, name, strlen(name));
out:
    json_decref(config);
    json_decref(generation);
    dse_free(config_path);
    dse_free(generation_path);
    return status;
}

static enum dse_status open_folder(struct dse_model_file *file, struct dse_error *err)
{
    enum dse_status status = read_config(file, err);
    if (status == DSE_OK) status = dse_safetensors_open(file->path, &file->safetensors, err);
    if (status == DSE_OK) status = dse_model_text_from_folder(file, file->path, err);
    if (status == DSE_OK) status = take_tensors(file, err);
    return status;
}

enum dse_status dse_model_file_open(const char *path, struct dse_model_file **out, struct dse_error *err)
{
    *out = NULL;
    struct dse_model_file *file = dse_calloc(DSE_MEM_MODEL, 1, sizeof *file);
    if (file == NULL) return dse_fail_memory(err, sizeof *file, "model file");
    enum dse_status status = dse_model_resolve_path(path, &file->path, err);
    if (status == DSE_OK) {
        size_t length = strlen(file->path);
        static const char other[] = ".safetensors";
        size_t tail = sizeof other - 1;
        if (dse_file_is_directory(file->path))
            status = dse_model_file_status(open_folder(file, err), err);
        else if (length > tail && strcmp(file->path + length - tail, other) == 0 && dse_file_exists(file->path))
            status = dse_fail_at(err, DSE_ERR_INVALID, file->path, -1,
                                 "%s: give the folder with config.json and this file, not the file itself", file->path);
        else
            status = dse_model_file_status(open_gguf(file, err), err);
    }
    if (status != DSE_OK) {
        dse_model_file_close(file);
        return status;
    }
    *out = file;
    return DSE_OK;
}

void dse_model_file_close(struct dse_model_file *file)
{
    if (file == NULL) return;
    dse_gguf_close(file->gguf);
    dse_safetensors_close(file->safetensors);
    json_decref(file->tokenizer_json);
    json_decref(file->tokenizer_config);
    dse_free(file->layers);
    dse_free(file->is_taken);
    dse_free(file->chat_template);
    dse_free(file->path);
    dse_free(file);
}

bool dse_model_file_intact(const struct dse_model_file *file)
{
    if (file->gguf != NULL && !dse_gguf_intact(file->gguf)) return false;
    return file->safetensors == NULL || dse_safetensors_intact(file->safetensors);
}

static void count_type(uint64_t *elements, const struct dse_tensor *tensor)
{
    if (tensor == NULL || (unsigned)tensor->type > DSE_TYPE_BF16) return;
    uint64_t n = 1;
    for (int i = 0; i < tensor->n_dims; i++)
        n *= tensor->shape[i];
    elements[tensor->type] += n;
}

const char *dse_model_file_quantization(const struct dse_model_file *file)
{
    uint64_t elements[DSE_TYPE_BF16 + 1] = {0};
    for (int l = 0; l < file->config.n_layers; l++) {
        const struct dse_layer_tensors *t = &file->layers[l];
        const struct dse_tensor *const matrices[] = {t->q, t->k, t->v, t->o, t->gate, t->up, t->down};
        for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++)
            count_type(elements, matrices[i]);
    }
    uint32_t best = 0;
    for (uint32_t type = 0; type <= DSE_TYPE_BF16; type++)
        if (elements[type] > elements[best]) best = type;
    const struct dse_type_info *info = dse_type_info(best);
    return info != NULL ? info->name : "unknown";
}
