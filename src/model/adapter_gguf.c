/* Adapters in GGUF: general.type "adapter", adapter.type "lora", adapter.lora.alpha; tensors NAME.lora_a [rank, in] and
 * NAME.lora_b [out, rank], NAME being that of the base model's tensor. Called by adapter.c.
 *
 * Format: ggml-org/ggml, docs/gguf.md. An alpha of 0 means that there is none: the scale is 1, as llama.cpp has it.
 */
#include <stdio.h>
#include <string.h>

#include "model/adapter_internal.h"

static bool equals(struct dse_gguf_string text, const char *other)
{
    return text.bytes == strlen(other) && memcmp(text.data, other, text.bytes) == 0;
}

/* The key must be there and say what is expected. */
static enum dse_status expect_string(const struct dse_adapter_builder *builder, const char *key, const char *expected,
                                     struct dse_error *err)
{
    struct dse_gguf_string text = {0};
    enum dse_status status = dse_gguf_get_string(builder->file->gguf, key, &text, err);
    if (status != DSE_OK) return status;
    if (text.data == NULL)
        return dse_fail_at(err, DSE_ERR_CORRUPT, builder->path, -1,
                           "%s: key '%s' is missing, expected \"%s\": this is not a LoRA adapter", builder->path, key,
                           expected);
    if (equals(text, expected)) return DSE_OK;
    return dse_fail_at(err, DSE_ERR_UNSUPPORTED, builder->path, -1, "%s: key '%s' is \"%.*s\", expected \"%s\"",
                       builder->path, key, (int)(text.bytes < 64 ? text.bytes : 64), text.data, expected);
}

static enum dse_status check_keys(const struct dse_adapter_builder *builder, double *alpha, struct dse_error *err)
{
    static const char alpha_key[] = "adapter.lora.alpha", tokens_key[] = "adapter.alora.invocation_tokens";
    const struct dse_gguf *gguf = builder->file->gguf;
    enum dse_status status = expect_string(builder, "general.type", "adapter", err);
    if (status == DSE_OK) status = expect_string(builder, "adapter.type", "lora", err);
    if (status == DSE_OK)
        status = expect_string(builder, "general.architecture", dse_arch_gguf_name(builder->base->config.arch), err);
    if (status != DSE_OK) return status;
    if (dse_gguf_value(gguf, tokens_key) != NULL)
        return dse_fail_at(err, DSE_ERR_UNSUPPORTED, builder->path, -1,
                           "%s: key '%s': adapters that begin in the middle of a prompt are not supported",
                           builder->path, tokens_key);
    if (dse_gguf_value(gguf, alpha_key) == NULL)
        return dse_fail_at(err, DSE_ERR_CORRUPT, builder->path, -1, "%s: key '%s' is missing", builder->path,
                           alpha_key);
    return dse_gguf_get_f64(gguf, alpha_key, alpha, err);
}

/* blk.LAYER.MODULE.weight.lora_a */
static enum dse_status put_tensor(struct dse_adapter_builder *builder, const struct dse_tensor *tensor,
                                  struct dse_error *err)
{
    if (strncmp(tensor->name, "blk.", 4) != 0) return dse_adapter_refuse_name(builder, tensor->name, err);
    return dse_adapter_put(builder, tensor, tensor->name + 4, ".weight.lora_a", ".weight.lora_b", err);
}

enum dse_status dse_adapter_read_gguf(struct dse_adapter_builder *builder, size_t max_bytes, struct dse_error *err)
{
    double alpha = 0;
    enum dse_status status = dse_gguf_read(builder->path, max_bytes, &builder->file->gguf, err);
    if (status == DSE_OK) status = check_keys(builder, &alpha, err);
    const size_t count = status == DSE_OK ? dse_gguf_tensor_count(builder->file->gguf) : 0;
    for (size_t i = 0; i < count && status == DSE_OK; i++)
        status = put_tensor(builder, dse_gguf_tensor_at(builder->file->gguf, i), err);
    if (status == DSE_OK) status = dse_adapter_pair(builder, err);
    const size_t n_places = (size_t)builder->base->config.n_layers * DSE_SITE_COUNT;
    for (size_t i = 0; i < n_places && status == DSE_OK; i++) {
        struct dse_adapter_module *place = &builder->places[i];
        if (place->a == NULL) continue;
        status = alpha == 0 ? dse_adapter_set_scale(builder, place, 1, 1, err)
                            : dse_adapter_set_scale(builder, place, alpha, place->rank, err);
    }
    return status;
}
