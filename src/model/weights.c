/* Opens a model for inference: configuration, and every tensor that the architecture needs under its field, with its
 * shape and type checked once. Used by the device, which relies on these checks.
 *
 * The tensors of the layers are taken by weights_layers.c and weights_experts.c. Nothing is copied; nothing of the
 * weights is read but what one bad number would poison: rope divisors, biases of routers, FP8 scales.
 */
#include "model/weights.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "model/config_internal.h"
#include "model/model_json.h"
#include "model/weights_internal.h"

#define MAX_CONFIG_BYTES ((size_t)16 << 20)

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

static enum dse_status take_ends(struct dse_model_file *file, struct dse_error *err)
{
    bool gguf = file->gguf != NULL;
    const size_t table[] = {(size_t)file->config.n_vocab, (size_t)file->config.n_embd}, *embd = &table[1];
    const char *head = gguf ? "output.weight" : "lm_head.weight";
    enum dse_status status = dse_weights_take(file, gguf ? "token_embd.weight" : "model.embed_tokens.weight", 2, table,
                                              &file->token_embd, err);
    if (status == DSE_OK)
        status = dse_weights_take(file, gguf ? "output_norm.weight" : "model.norm.weight", 1, embd, &file->output_norm,
                                  err);
    if (status != DSE_OK) return status;
    /* A tied model may carry a copy of the head, which Hugging Face ignores too. In GGUF a missing head says that it is
     * tied; a folder says so in its configuration, and a head that is missing there was lost. */
    if (gguf && dse_weights_find(file, head) == NULL) file->config.tied_embeddings = true;
    if (file->config.tied_embeddings)
        file->output = file->token_embd;
    else if ((status = dse_weights_take(file, head, 2, table, &file->output, err)) != DSE_OK)
        return status;
    else
        file->n_active_parameters -= (int64_t)(table[0] - 1) * (int64_t)table[1];
    /* Rows of these two are looked up one by one, without their scales. */
    const struct dse_tensor *const ends[] = {file->token_embd, file->output};
    for (int i = 0; i < 2; i++)
        if (ends[i]->type == DSE_TYPE_F8_E4M3)
            return dse_fail_at(err, DSE_ERR_UNSUPPORTED, file->path, -1,
                               "%s: tensor '%s' has the type f8_e4m3, which is supported inside layers only",
                               file->path, ends[i]->name);
    return take_divisors(file, err);
}

static enum dse_status take_tensors(struct dse_model_file *file, struct dse_error *err)
{
    struct dse_config *config = &file->config;
    enum dse_status status = take_ends(file, err);
    if (status != DSE_OK) return status;
    /* GGUF has no key for biases: llama conversions of models with attention_bias just carry them. */
    if (file->gguf != NULL && config->latent.kv_rank == 0 && dse_weights_find(file, "blk.0.attn_q.bias") != NULL)
        config->qkv_bias = true;
    if (!dse_weights_has_mtp(file->gguf, file->safetensors, config->n_layers)) config->n_mtp_layers = 0;
    int n = config->n_layers + config->n_mtp_layers;
    file->layers = dse_calloc(DSE_MEM_MODEL, (size_t)n, sizeof *file->layers);
    if (file->layers == NULL) return dse_fail_memory(err, (size_t)n * sizeof *file->layers, "layers");
    for (int i = 0; i < config->n_layers && status == DSE_OK; i++)
        status = dse_weights_take_layer(file, i, err);
    /* Prediction layers are no part of the model's own sums. */
    size_t bytes = file->weight_bytes;
    int64_t parameters = file->n_parameters, active = file->n_active_parameters;
    for (int i = config->n_layers; i < n && status == DSE_OK; i++)
        status = dse_weights_take_layer(file, i, err);
    if (status != DSE_OK) return status;
    file->mtp_bytes = file->weight_bytes - bytes;
    file->weight_bytes = bytes;
    file->n_parameters = parameters;
    file->n_active_parameters = active;
    return dse_weights_refuse_unknown(file, err);
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

/* What people call the model in a folder: the folder's own name, or org/name of a snapshot in the Hugging Face cache,
 * which is …/models--org--name/snapshots/REVISION. */
static void name_folder(const char *path, char *name, size_t bytes)
{
    static const char middle[] = "/snapshots/", prefix[] = "/models--";
    const char *slash = strrchr(path, '/'), *base = slash != NULL ? slash + 1 : path;
    char id[2 * sizeof((struct dse_config *)0)->name];
    dse_config_copy_text(name, bytes, base, strlen(base));
    if ((size_t)(base - path) < sizeof middle - 1) return;
    const char *end = base - (sizeof middle - 1);
    const char *repository = memrchr(path, '/', (size_t)(end - path));
    if (strncmp(end, middle, sizeof middle - 1) != 0 || repository == NULL ||
        strncmp(repository, prefix, sizeof prefix - 1) != 0)
        return;
    const char *owner = repository + sizeof prefix - 1;
    const char *dashes = memmem(owner, (size_t)(end - owner), "--", 2);
    if (dashes != NULL)
        (void)snprintf(id, sizeof id, "%.*s/%.*s", (int)(dashes - owner), owner, (int)(end - dashes) - 2, dashes + 2);
    else
        (void)snprintf(id, sizeof id, "%.*s", (int)(end - owner), owner);
    dse_config_copy_text(name, bytes, id, strlen(id));
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
    name_folder(file->path, file->config.name, sizeof file->config.name);
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
    if (status == DSE_OK) status = dse_weights_mark_none(file, err);
    if (status == DSE_OK) status = dse_model_text_from_folder(file, file->path, err);
    if (status == DSE_OK) status = dse_weights_attach_scales(file, err);
    if (status == DSE_OK) status = take_tensors(file, err);
    return status;
}

enum dse_status dse_model_file_open(const char *path, struct dse_model_file **out, struct dse_error *err)
{
    *out = NULL;
    struct dse_model_file *file = dse_calloc(DSE_MEM_MODEL, 1, sizeof *file);
    if (file == NULL) return dse_fail_memory(err, sizeof *file, "model file");
    enum dse_status status = dse_model_file_status(dse_model_resolve_path(path, &file->path, err), err);
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
    for (int i = 0; file->layers != NULL && i < file->config.n_layers + file->config.n_mtp_layers; i++)
        dse_free(file->layers[i].experts);
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

/* Numbers of GGUF types, and one place behind them for FP8. */
#define N_COUNTED (DSE_TYPE_BF16 + 2)

static void count_type(uint64_t *elements, const struct dse_tensor *tensor)
{
    if (tensor == NULL) return;
    unsigned type = tensor->type == DSE_TYPE_F8_E4M3 ? DSE_TYPE_BF16 + 1 : (unsigned)tensor->type;
    if (type >= N_COUNTED) return;
    uint64_t n = 1;
    for (int i = 0; i < tensor->n_dims; i++)
        n *= tensor->shape[i];
    elements[type] += n;
}

const char *dse_model_file_quantization(const struct dse_model_file *file)
{
    uint64_t elements[N_COUNTED] = {0};
    for (int l = 0; l < file->config.n_layers; l++) {
        const struct dse_layer_tensors *t = &file->layers[l];
        const struct dse_tensor *const matrices[] = {
            t->q,   t->k,    t->v,        t->o,        t->gate,        t->up,          t->down,      t->q_a,
            t->q_b, t->kv_a, t->kv_b.k_b, t->kv_b.v_b, t->kv_b.joined, t->shared_gate, t->shared_up, t->shared_down};
        for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++)
            count_type(elements, matrices[i]);
        for (int e = 0; t->experts != NULL && e < file->config.moe.n_experts; e++) {
            count_type(elements, &t->experts[e].gate);
            count_type(elements, &t->experts[e].up);
            count_type(elements, &t->experts[e].down);
        }
    }
    uint32_t best = 0;
    for (uint32_t type = 0; type < N_COUNTED; type++)
        if (elements[type] > elements[best]) best = type;
    const struct dse_type_info *info = dse_type_info(best > DSE_TYPE_BF16 ? DSE_TYPE_F8_E4M3 : best);
    return info != NULL ? info->name : "unknown";
}
