/* Hyper-parameters: what is common to GGUF metadata and config.json. The two readers (config_gguf.c, config_json.c)
 * fill the struct field by field, then everything passes dse_config_check once. */
#include "model/config_internal.h"

#include <math.h>
#include <string.h>

#include "base/utf8.h"

void dse_config_init(struct dse_config *config)
{
    *config = (struct dse_config){.rms_eps = 1e-6f, .fim = {-1, -1, -1}};
    config->rope = (struct dse_rope_config){
        .theta = 10000, .pairs = DSE_ROPE_HALF, .scaling = DSE_ROPE_NONE, .factor = 1, .beta_fast = 32, .beta_slow = 1};
}

void dse_config_copy_text(char *out, size_t capacity, const char *text, size_t bytes)
{
    size_t length = 0;
    for (size_t at = 0, used = 0; at < bytes; at += used) {
        uint32_t code = dse_utf8_decode(text + at, bytes - at, &used);
        if (code == DSE_UTF8_INVALID || code < 0x20 || code == 0x7F) continue;
        if (length + used >= capacity) break;
        memcpy(out + length, text + at, used);
        length += used;
    }
    out[length] = '\0';
}

static const struct {
    const char *gguf, *hugging_face;
    enum dse_arch arch;
} known[] = {{"llama", "llama", DSE_ARCH_LLAMA},
             {"qwen2", "qwen2", DSE_ARCH_QWEN2},
             {"qwen3", "qwen3", DSE_ARCH_QWEN3},
             {"deepseek", "deepseek", DSE_ARCH_DEEPSEEK},
             {"deepseek2", "deepseek_v2", DSE_ARCH_DEEPSEEK2},
             {"deepseek2", "deepseek_v3", DSE_ARCH_DEEPSEEK2},
             {"deepseek32", "deepseek_v32", DSE_ARCH_DEEPSEEK32}};

const char *dse_arch_gguf_name(enum dse_arch arch)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].arch == arch) return known[i].gguf;
    return "";
}

enum dse_status dse_config_set_arch(struct dse_config *config, bool gguf, const char *name, size_t bytes,
                                    const char *file, const char *field, struct dse_error *err)
{
    dse_config_copy_text(config->arch_name, sizeof config->arch_name, name, bytes);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const char *wanted = gguf ? known[i].gguf : known[i].hugging_face;
        if (bytes == strlen(wanted) && memcmp(name, wanted, bytes) == 0) {
            config->arch = known[i].arch;
            config->qkv_bias = config->arch == DSE_ARCH_QWEN2;
            config->qk_norm = config->arch == DSE_ARCH_QWEN3;
            return DSE_OK;
        }
    }
    return dse_fail_at(
        err, DSE_ERR_UNSUPPORTED, file, -1,
        "%s: %s is '%s'; this version runs llama, qwen2, qwen3 and DeepSeek V1 to V3.2 (%s) and does not "
        "run '%s' yet",
        file, field, config->arch_name,
        gguf ? "deepseek, deepseek2, deepseek32" : "deepseek, deepseek_v2, deepseek_v3, deepseek_v32",
        config->arch_name);
}

enum dse_status dse_config_add_stop(struct dse_config *config, int64_t id, const char *file, const char *field,
                                    struct dse_error *err)
{
    if (id < 0 || id >= config->n_vocab)
        return dse_fail_at(err, DSE_ERR_CORRUPT, file, -1, "%s: %s %lld is not a token id of this vocabulary (0 to %d)",
                           file, field, (long long)id, config->n_vocab - 1);
    for (int i = 0; i < config->n_stop_tokens; i++) {
        if (config->stop_tokens[i] == (int32_t)id) return DSE_OK;
    }
    if (config->n_stop_tokens == DSE_MAX_STOP_TOKENS)
        return dse_fail_at(err, DSE_ERR_LIMIT, file, -1, "%s: %s lists more than %d tokens that end a generation", file,
                           field, DSE_MAX_STOP_TOKENS);
    config->stop_tokens[config->n_stop_tokens++] = (int32_t)id;
    return DSE_OK;
}

enum dse_status dse_config_wrong(const struct dse_config_names *names, const char *field, double value,
                                 const char *expected, struct dse_error *err)
{
    return dse_fail_at(err, DSE_ERR_CORRUPT, names->file, -1, "%s: %s%s is %.10g, expected %s", names->file,
                       names->prefix, field, value, expected);
}

static enum dse_status check_heads(struct dse_config *config, const struct dse_config_names *names,
                                   struct dse_error *err)
{
    if (config->n_kv_heads == 0) config->n_kv_heads = config->n_heads;
    if (config->n_kv_heads > config->n_heads || config->n_heads % config->n_kv_heads != 0)
        return dse_fail_at(err, DSE_ERR_CORRUPT, names->file, -1, "%s: %s%s is %d, expected a divisor of %s%s (%d)",
                           names->file, names->prefix, names->n_kv_heads, config->n_kv_heads, names->prefix,
                           names->n_heads, config->n_heads);
    if (config->head_dim == 0) {
        if (config->n_embd % config->n_heads != 0)
            return dse_fail_at(err, DSE_ERR_CORRUPT, names->file, -1,
                               "%s: %s%s (%d) is not a multiple of %s%s (%d) and %s%s is not given", names->file,
                               names->prefix, names->n_embd, config->n_embd, names->prefix, names->n_heads,
                               config->n_heads, names->prefix, names->head_dim);
        config->head_dim = config->n_embd / config->n_heads;
    }
    if (config->head_dim % 2 != 0 || config->head_dim > DSE_MAX_HEAD)
        return dse_config_wrong(names, names->head_dim, config->head_dim, "an even number of at most 1024", err);
    return DSE_OK;
}

static enum dse_status check_scaling(struct dse_config *config, const struct dse_config_names *names,
                                     struct dse_error *err)
{
    struct dse_rope_config *rope = &config->rope;
    if (!(rope->factor >= 1 && rope->factor <= 1e6))
        return dse_config_wrong(names, names->rope_factor, rope->factor, "1 to 1e6", err);
    if (rope->scaling == DSE_ROPE_LINEAR && rope->factor == 1) rope->scaling = DSE_ROPE_NONE;
    if (rope->scaling == DSE_ROPE_LLAMA3) {
        if (!(rope->low_freq_factor > 0))
            return dse_config_wrong(names, names->rope_low, rope->low_freq_factor, "above 0", err);
        if (!(rope->high_freq_factor > rope->low_freq_factor))
            return dse_config_wrong(names, names->rope_high, rope->high_freq_factor, "more than the low one", err);
    }
    if (!(rope->mscale_all_dim >= 0 && rope->mscale_all_dim <= 100))
        return dse_config_wrong(names, names->rope_mscale_all_dim, rope->mscale_all_dim, "0 to 100", err);
    if (rope->scaling != DSE_ROPE_YARN) return DSE_OK;
    if (rope->original_context == 0) rope->original_context = config->context_length;
    if (!(rope->beta_slow > 0)) return dse_config_wrong(names, names->rope_beta_slow, rope->beta_slow, "above 0", err);
    if (!(rope->beta_fast >= rope->beta_slow))
        return dse_config_wrong(names, names->rope_beta_fast, rope->beta_fast, "at least the slow one", err);
    if (!(rope->attention_factor >= 0 && rope->attention_factor <= 1e3))
        return dse_config_wrong(names, names->rope_attention_factor, rope->attention_factor, "above 0", err);
    if (!(rope->mscale >= 0 && rope->mscale <= 100))
        return dse_config_wrong(names, names->rope_mscale, rope->mscale, "0 to 100", err);
    /* Some files state the context before the scaling that they ask for. */
    if (rope->original_context == config->context_length) {
        double scaled = (double)config->context_length * rope->factor;
        config->context_length = scaled < DSE_MAX_CONTEXT ? (int64_t)scaled : DSE_MAX_CONTEXT;
    }
    return DSE_OK;
}

enum dse_status dse_config_check(struct dse_config *config, const struct dse_config_names *names, struct dse_error *err)
{
    enum dse_status status = dse_arch_is_latent(config->arch) ? dse_config_check_latent(config, names, err)
                                                              : check_heads(config, names, err);
    if (status == DSE_OK) status = dse_config_check_experts(config, names, err);
    if (status != DSE_OK) return status;
    if (!(config->rms_eps > 0 && config->rms_eps < 1))
        return dse_config_wrong(names, names->rms_eps, (double)config->rms_eps, "above 0 and below 1", err);
    struct dse_rope_config *rope = &config->rope;
    /* Above 1: yarn divides by its logarithm. */
    if (!(rope->theta > 1 && rope->theta <= 1e15))
        return dse_config_wrong(names, names->rope_theta, rope->theta, "above 1, at most 1e15", err);
    if (rope->dimensions == 0) rope->dimensions = config->head_dim;
    if (rope->dimensions % 2 != 0 || rope->dimensions > config->head_dim)
        return dse_fail_at(err, DSE_ERR_CORRUPT, names->file, -1,
                           "%s: %s%s is %d, expected an even number of at most the head dimension %d", names->file,
                           names->prefix, names->rope_dimensions, rope->dimensions, config->head_dim);
    return check_scaling(config, names, err);
}
