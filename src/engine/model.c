/* dse_model_*: a model file, its weights on a device, its tokenizer and template as one reference-counted thing.
 *
 * Opened by verbs and tests, shared by engines. What only text work needs (tokenizer, template) may be missing or
 * unreadable without taking the model down: ids in, logits out always works.
 */
#include "engine/model.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/counters.h"
#include "base/log.h"
#include "model/tokenizer_source.h"
#include "text/chat_builtin.h"

static enum dse_status open_tokenizer(struct dse_model *model, struct dse_error *err)
{
    const struct dse_model_file *file = model->file;
    if (file->gguf == NULL && file->tokenizer_json == NULL) return DSE_OK;
    if (file->gguf != NULL && dse_gguf_value(file->gguf, "tokenizer.ggml.tokens") == NULL) return DSE_OK;
    struct dse_error reason;
    enum dse_status status = dse_tokenizer_from_model(file, &model->tokenizer, &reason);
    if (status == DSE_OK) return DSE_OK;
    if (status == DSE_ERR_UNSUPPORTED || status == DSE_ERR_NOT_FOUND) {
        dse_log(DSE_LOG_WARN, "model", "no tokenizer, only token ids can be used: %s", reason.message);
        return DSE_OK;
    }
    if (err != NULL) *err = reason;
    return status;
}

static void open_template(struct dse_model *model)
{
    const char *source = model->file->chat_template;
    if (source == NULL) source = dse_chat_builtin_for(model->file->config.arch_name);
    if (source == NULL || model->tokenizer == NULL) return;
    struct dse_error reason;
    if (dse_template_parse(source, strlen(source), &dse_template_limits_default, &model->tmpl, &reason) != DSE_OK) {
        model->tmpl = NULL;
        dse_log(DSE_LOG_WARN, "model", "chat template not usable, plain completion still is: %s", reason.message);
    }
}

static bool config_stops(const struct dse_config *config, int32_t id)
{
    for (int i = 0; i < config->n_stop_tokens; i++)
        if (config->stop_tokens[i] == id) return true;
    return false;
}

/* Every id that ends a generation, once, so that asking costs nothing in the token loop. */
static enum dse_status collect_stop_tokens(struct dse_model *model, struct dse_error *err)
{
    const struct dse_config *config = &model->file->config;
    for (int pass = 0; pass < 2; pass++) {
        int count = 0;
        for (int32_t id = 0; id < config->n_vocab; id++) {
            if (!config_stops(config, id) && !(model->tokenizer != NULL && dse_tokenizer_is_stop(model->tokenizer, id)))
                continue;
            if (pass == 1) model->stop_tokens[count] = id;
            count++;
        }
        if (pass == 1) break;
        model->stop_tokens = dse_calloc(DSE_MEM_MODEL, (size_t)count + 1, sizeof(int32_t));
        if (model->stop_tokens == NULL) return dse_fail_memory(err, (size_t)count * sizeof(int32_t), "stop tokens");
        model->n_stop_tokens = count;
    }
    return DSE_OK;
}

/* f16 keeps its bound for every model; q8_0 only where one scale per 32 values of a latent is at hand. */
static enum dse_status choose_kv_type(const struct dse_config *config, const struct dse_model_options *options,
                                      struct dse_kv_layout *layout, struct dse_error *err)
{
    const bool f32 = options->compute == DSE_COMPUTE_F32, latent = config->latent.kv_rank > 0;
    enum dse_kv_type type = f32 && options->kv_cache == DSE_KV_CACHE_AUTO ? DSE_KV_F32 : DSE_KV_F16;
    if (options->kv_cache == DSE_KV_CACHE_Q8_0) {
        if (!latent)
            return dse_fail_at(err, DSE_ERR_UNSUPPORTED, "kv_cache", -1,
                               "a q8_0 KV cache (--kv-cache-dtype) is for models with latent attention; %s keeps keys "
                               "and values as f16",
                               config->arch_name);
        if (config->indexer.n_heads > 0)
            return dse_fail_at(
                err, DSE_ERR_UNSUPPORTED, "kv_cache", -1,
                "a q8_0 KV cache (--kv-cache-dtype) is not for %s: where rounded latents make its indexer "
                "choose other keys, logits keep no bound",
                config->arch_name);
        if (config->latent.kv_rank % 32 != 0)
            return dse_fail_at(
                err, DSE_ERR_UNSUPPORTED, "kv_cache", -1,
                "a q8_0 KV cache (--kv-cache-dtype) needs a latent rank in multiples of 32, this model has %d",
                config->latent.kv_rank);
        type = DSE_KV_Q8_0;
    }
    *layout = dse_kv_layout_of(config, type);
    return DSE_OK;
}

/* Decides which prediction layers the device loads; before it does. */
static enum dse_status choose_mtp(struct dse_model *model, const struct dse_model_options *options,
                                  struct dse_error *err)
{
    struct dse_config *config = &model->file->config;
    if (!options->mtp) return DSE_OK;
    if (config->n_mtp_layers == 0)
        return dse_fail_at(err, DSE_ERR_UNSUPPORTED, "mtp", -1,
                           "multi-token prediction was asked for, and %s has no prediction layer", model->file->path);
    if (config->n_mtp_layers > 1)
        return dse_fail_at(err, DSE_ERR_UNSUPPORTED, "mtp", -1,
                           "multi-token prediction works with one prediction layer, %s has %d", model->file->path,
                           config->n_mtp_layers);
    config->n_mtp_used = config->n_mtp_layers;
    return DSE_OK;
}

static void describe(struct dse_model *model)
{
    const struct dse_model_file *file = model->file;
    const struct dse_config *config = &file->config;
    struct dse_model_info *info = &model->info;
    (void)snprintf(info->name, sizeof info->name, "%s", config->name);
    (void)snprintf(info->arch, sizeof info->arch, "%s", config->arch_name);
    (void)snprintf(info->basename, sizeof info->basename, "%s", config->basename);
    (void)snprintf(info->path, sizeof info->path, "%s", file->path != NULL ? file->path : "");
    (void)snprintf(info->quantization, sizeof info->quantization, "%s", dse_model_file_quantization(file));
    info->n_parameters = file->n_parameters;
    info->n_active_parameters = file->n_active_parameters;
    info->context_length = config->context_length;
    info->n_layers = config->n_layers;
    info->n_vocab = config->n_vocab;
    info->n_embd = config->n_embd;
    info->n_threads = model->device->pool != NULL ? dse_pool_threads(model->device->pool) : 1;
    info->file_bytes = file->weight_bytes + (config->n_mtp_used > 0 ? file->mtp_bytes : 0);
    info->resident_bytes = model->weights.resident_bytes;
    info->kv_bytes_per_token = model->kv_layout.block_bytes / DSE_KV_BLOCK_TOKENS;
    info->numerics = config->latent.expand ? DSE_NUMERICS_FAST : DSE_NUMERICS_EXACT;
    info->device_name = model->device->ops->name;
    info->pooling = config->pooling;
    info->adds_eos = config->adds_eos;
    info->fim_prefix = config->fim[0];
    info->fim_suffix = config->fim[1];
    info->fim_middle = config->fim[2];
}

static void model_free(struct dse_model *model)
{
    if (model == NULL) return;
    if (model->loaded) model->device->ops->unload(model->device, &model->weights);
    if (model->device != NULL) dse_device_close(model->device);
    dse_token_trie_free(model->trie);
    dse_template_free(model->tmpl);
    dse_tokenizer_free(model->tokenizer);
    dse_free(model->stop_tokens);
    dse_model_file_close(model->file);
    pthread_mutex_destroy(&model->device_lock);
    pthread_mutex_destroy(&model->adapter_lock);
    pthread_mutex_destroy(&model->trie_lock);
    dse_free(model);
}

enum dse_status dse_model_open(const char *path, const struct dse_model_options *options, struct dse_model **out,
                               struct dse_error *err)
{
    static const struct dse_model_options defaults = {0};
    if (options == NULL) options = &defaults;
    *out = NULL;
    if (path == NULL || path[0] == '\0') return dse_fail_at(err, DSE_ERR_INVALID, "model", -1, "no model path given");
    struct dse_model *model = dse_calloc(DSE_MEM_MODEL, 1, sizeof *model);
    if (model == NULL) return dse_fail_memory(err, sizeof *model, "model");
    atomic_init(&model->references, 1);
    pthread_mutex_init(&model->device_lock, NULL);
    pthread_mutex_init(&model->adapter_lock, NULL);
    pthread_mutex_init(&model->trie_lock, NULL);
    model->adapter_limit = UINT64_MAX;
    model->f32 = options->compute == DSE_COMPUTE_F32;

    enum dse_status status = dse_device_open(options->device, options->n_threads, &model->device, err);
    if (status == DSE_OK) status = dse_model_file_open(path, &model->file, err);
    if (status == DSE_OK) status = choose_mtp(model, options, err);
    if (status == DSE_OK)
        model->file->config.latent.expand = options->numerics == DSE_NUMERICS_FAST &&
                                            model->file->config.latent.kv_rank > 0;
    if (status == DSE_OK) status = open_tokenizer(model, err);
    if (status == DSE_OK) {
        status = model->device->ops->load(model->device, model->file, model->f32, options->pack_cache, &model->weights,
                                          err);
        model->loaded = status == DSE_OK;
    }
    if (status != DSE_OK) goto fail;
    open_template(model);
    status = collect_stop_tokens(model, err);
    if (status != DSE_OK) goto fail;

    const struct dse_config *config = &model->file->config;
    model->n_samplable = config->n_vocab;
    if (model->tokenizer != NULL && dse_tokenizer_count(model->tokenizer) < (size_t)config->n_vocab)
        model->n_samplable = (int)dse_tokenizer_count(model->tokenizer);
    status = choose_kv_type(config, options, &model->kv_layout, err);
    if (status != DSE_OK) goto fail;
    describe(model);
    dse_gauge_set(DSE_GAUGE_WEIGHT_BYTES, (int64_t)model->info.file_bytes);
    *out = model;
    return DSE_OK;

fail:
    model_free(model);
    return status;
}

struct dse_model *dse_model_ref(struct dse_model *model)
{
    atomic_fetch_add_explicit(&model->references, 1, memory_order_relaxed);
    return model;
}

void dse_model_unref(struct dse_model *model)
{
    if (model != NULL && atomic_fetch_sub_explicit(&model->references, 1, memory_order_acq_rel) == 1) model_free(model);
}

void dse_model_get_info(const struct dse_model *model, struct dse_model_info *info)
{
    *info = model->info;
}

const struct dse_tokenizer *dse_model_tokenizer(const struct dse_model *model)
{
    return model->tokenizer;
}

const struct dse_template *dse_model_template(const struct dse_model *model)
{
    return model->tmpl;
}

bool dse_model_is_stop(const struct dse_model *model, int32_t token)
{
    for (int i = 0; i < model->n_stop_tokens; i++)
        if (model->stop_tokens[i] == token) return true;
    return false;
}

bool dse_model_intact(const struct dse_model *model)
{
    return dse_model_file_intact(model->file);
}

enum dse_status dse_model_reserve(struct dse_model *model, int max_rows, struct dse_error *err)
{
    enum dse_status status = DSE_OK;
    pthread_mutex_lock(&model->device_lock);
    if (max_rows > model->reserved_rows) {
        status = model->device->ops->reserve(model->device, &model->file->config, max_rows, err);
        if (status == DSE_OK) model->reserved_rows = max_rows;
    }
    pthread_mutex_unlock(&model->device_lock);
    return status;
}

void dse_model_limit_adapters(struct dse_model *model, uint64_t more_bytes)
{
    pthread_mutex_lock(&model->adapter_lock);
    const uint64_t room = UINT64_MAX - model->adapter_bytes;
    const uint64_t limit = model->adapter_bytes + (more_bytes < room ? more_bytes : room);
    if (model->adapter_limit == UINT64_MAX || limit > model->adapter_limit) model->adapter_limit = limit;
    pthread_mutex_unlock(&model->adapter_lock);
}

uint64_t dse_model_adapter_bytes(struct dse_model *model)
{
    pthread_mutex_lock(&model->adapter_lock);
    const uint64_t bytes = model->adapter_bytes;
    pthread_mutex_unlock(&model->adapter_lock);
    return bytes;
}

enum dse_status dse_model_trie(struct dse_model *model, const struct dse_token_trie **trie, struct dse_error *err)
{
    if (model->tokenizer == NULL)
        return dse_fail_at(err, DSE_ERR_UNSUPPORTED, "grammar", -1, "a grammar needs a tokenizer and model %s has none",
                           model->info.path);
    enum dse_status status = DSE_OK;
    pthread_mutex_lock(&model->trie_lock);
    if (model->trie == NULL)
        status = dse_token_trie_create(model->tokenizer, model->stop_tokens, model->n_stop_tokens, &model->trie, err);
    *trie = model->trie;
    pthread_mutex_unlock(&model->trie_lock);
    return status;
}
