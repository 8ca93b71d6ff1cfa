/* Hyper-parameters from GGUF metadata, and typed reads of its keys. What only DeepSeek has is in
 * config_gguf_deepseek.c. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "model/config_gguf.h"

const char *dse_gguf_keys_name(const struct dse_gguf_keys *r, const char *name, char key[96])
{
    snprintf(key, 96, "%s.%s", r->arch, name);
    return key;
}

int dse_gguf_keys_int(struct dse_gguf_keys *r, const char *name, int64_t minimum, int64_t maximum, int64_t absent)
{
    char key[96];
    int64_t value = absent;
    if (r->status == DSE_OK)
        r->status = dse_gguf_get_i64(r->gguf, dse_gguf_keys_name(r, name, key), minimum, maximum, &value, r->err);
    return (int)value;
}

enum dse_status dse_gguf_keys_missing(struct dse_gguf_keys *r, const char *key)
{
    return dse_fail_at(r->err, DSE_ERR_CORRUPT, dse_gguf_path(r->gguf), -1, "%s: the key '%s' is missing",
                       dse_gguf_path(r->gguf), key);
}

int dse_gguf_keys_require(struct dse_gguf_keys *r, const char *name, int64_t maximum)
{
    char key[96];
    if (r->status == DSE_OK && dse_gguf_value(r->gguf, dse_gguf_keys_name(r, name, key)) == NULL)
        r->status = dse_gguf_keys_missing(r, key);
    return dse_gguf_keys_int(r, name, 1, maximum, 0);
}

double dse_gguf_keys_number(struct dse_gguf_keys *r, const char *name, double absent)
{
    char key[96];
    double value = absent;
    if (r->status == DSE_OK) r->status = dse_gguf_get_f64(r->gguf, dse_gguf_keys_name(r, name, key), &value, r->err);
    return value;
}

bool dse_gguf_keys_have(const struct dse_gguf_keys *r, const char *name)
{
    char key[96];
    return dse_gguf_value(r->gguf, dse_gguf_keys_name(r, name, key)) != NULL;
}

static bool text_is(struct dse_gguf_string text, const char *expected)
{
    return text.bytes == strlen(expected) && memcmp(text.data, expected, text.bytes) == 0;
}

static void read_scaling(struct dse_gguf_keys *r, struct dse_rope_config *rope)
{
    char key[96];
    struct dse_gguf_string type = {0};
    bool finetuned = false;
    if (r->status == DSE_OK)
        r->status = dse_gguf_get_string(r->gguf, dse_gguf_keys_name(r, "rope.scaling.type", key), &type, r->err);
    if (r->status == DSE_OK)
        r->status = dse_gguf_get_bool(r->gguf, dse_gguf_keys_name(r, "rope.scaling.finetuned", key), &finetuned,
                                      r->err);
    /* The old name of the factor knows linear scaling only; 0 meant none. */
    double factor = dse_gguf_keys_number(r, "rope.scaling.factor", dse_gguf_keys_number(r, "rope.scale_linear", 0));
    if (r->status != DSE_OK) return;
    if (type.data == NULL) {
        rope->scaling = factor != 0 ? DSE_ROPE_LINEAR : DSE_ROPE_NONE;
    } else if (text_is(type, "none")) {
        return;
    } else if (text_is(type, "linear")) {
        rope->scaling = DSE_ROPE_LINEAR;
    } else if (text_is(type, "yarn")) {
        rope->scaling = DSE_ROPE_YARN;
    } else {
        char name[32];
        dse_config_copy_text(name, sizeof name, type.data, type.bytes);
        r->status = dse_fail_at(r->err, DSE_ERR_UNSUPPORTED, dse_gguf_path(r->gguf), -1,
                                "%s: %s is '%s', only none, linear and yarn are supported", dse_gguf_path(r->gguf),
                                dse_gguf_keys_name(r, "rope.scaling.type", key), name);
        return;
    }
    if (rope->scaling == DSE_ROPE_NONE) return;
    if (type.data != NULL && !dse_gguf_keys_have(r, "rope.scaling.factor") &&
        !dse_gguf_keys_have(r, "rope.scale_linear")) {
        r->status = dse_gguf_keys_missing(r, dse_gguf_keys_name(r, "rope.scaling.factor", key));
        return;
    }
    rope->factor = factor;
    if (rope->scaling != DSE_ROPE_YARN) return;
    rope->original_context = dse_gguf_keys_int(r, "rope.scaling.original_context_length", 1, DSE_MAX_CONTEXT, 0);
    rope->beta_fast = dse_gguf_keys_number(r, "rope.scaling.yarn_beta_fast", rope->beta_fast);
    rope->beta_slow = dse_gguf_keys_number(r, "rope.scaling.yarn_beta_slow", rope->beta_slow);
    /* yarn_attn_factor is deliberately not read: no published runtime honours it, and the one model that carries it
     * (R1-0528-Qwen3-8B) was evaluated without. */
}

/* V: the key, else the number of tokens. */
static void read_vocab(struct dse_gguf_keys *r, struct dse_config *config)
{
    static const char tokens_key[] = "tokenizer.ggml.tokens";
    char key[96];
    const struct dse_gguf_value *tokens = dse_gguf_value(r->gguf, tokens_key);
    size_t n_tokens = tokens != NULL && tokens->type == DSE_GGUF_ARRAY ? tokens->count : 0;
    if (n_tokens > DSE_MAX_VOCAB) n_tokens = (size_t)DSE_MAX_VOCAB + 1;
    config->n_vocab = dse_gguf_keys_int(r, "vocab_size", 1, DSE_MAX_VOCAB, (int64_t)n_tokens);
    if (r->status != DSE_OK) return;
    dse_gguf_keys_name(r, "vocab_size", key);
    if (config->n_vocab == 0) {
        r->status = dse_fail_at(r->err, DSE_ERR_CORRUPT, dse_gguf_path(r->gguf), -1,
                                "%s: neither %s nor %s says how large the vocabulary is", dse_gguf_path(r->gguf), key,
                                tokens_key);
    } else if (n_tokens > (size_t)config->n_vocab || n_tokens > DSE_MAX_VOCAB) {
        r->status = dse_fail_at(r->err, DSE_ERR_CORRUPT, dse_gguf_path(r->gguf), -1,
                                "%s: %s holds %zu tokens, but %s allows %d", dse_gguf_path(r->gguf), tokens_key,
                                n_tokens, key, n_tokens > DSE_MAX_VOCAB ? DSE_MAX_VOCAB : config->n_vocab);
    }
}

static void read_names(struct dse_gguf_keys *r, struct dse_config *config)
{
    struct dse_gguf_string name = {0}, base = {0};
    if (r->status == DSE_OK) r->status = dse_gguf_get_string(r->gguf, "general.name", &name, r->err);
    /* basename is the model's own name without its size, unless a fine-tune keeps its parent's */
    if (r->status == DSE_OK) r->status = dse_gguf_get_string(r->gguf, "general.basename", &base, r->err);
    if (r->status == DSE_OK) r->status = dse_gguf_get_string(r->gguf, "general.base_model.0.name", &base, r->err);
    dse_config_copy_text(config->name, sizeof config->name, name.data, name.bytes);
    dse_config_copy_text(config->basename, sizeof config->basename, base.data, base.bytes);
}

static void read_stops(struct dse_gguf_keys *r, struct dse_config *config)
{
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys && r->status == DSE_OK; i++) {
        int64_t id = -1;
        if (dse_gguf_value(r->gguf, keys[i]) == NULL) continue;
        r->status = dse_gguf_get_i64(r->gguf, keys[i], 0, config->n_vocab - 1, &id, r->err);
        if (r->status == DSE_OK) r->status = dse_config_add_stop(config, id, dse_gguf_path(r->gguf), keys[i], r->err);
    }
}

/* What embedding models and models that fill holes say of themselves. */
static void read_uses(struct dse_gguf_keys *r, struct dse_config *config)
{
    static const enum dse_pooling poolings[] = {DSE_POOLING_NONE, DSE_POOLING_MEAN, DSE_POOLING_FIRST, DSE_POOLING_LAST,
                                                DSE_POOLING_RANK};
    static const char *const fim_keys[3][2] = {{"tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id"},
                                               {"tokenizer.ggml.fim_suf_token_id", "tokenizer.ggml.suffix_token_id"},
                                               {"tokenizer.ggml.fim_mid_token_id", "tokenizer.ggml.middle_token_id"}};
    config->pooling = poolings[dse_gguf_keys_int(r, "pooling_type", 0, 4, 0)];
    if (r->status == DSE_OK)
        r->status = dse_gguf_get_bool(r->gguf, "tokenizer.ggml.add_eos_token", &config->adds_eos, r->err);
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 2; k++) {
            int64_t id = -1;
            if (r->status != DSE_OK || config->fim[i] >= 0) continue;
            r->status = dse_gguf_get_i64(r->gguf, fim_keys[i][k], 0, config->n_vocab - 1, &id, r->err);
            config->fim[i] = (int32_t)id;
        }
}

/* Keys by which other runtimes compute something else, with the values that ask for nothing. */
static void refuse_changed_results(struct dse_gguf_keys *r, const struct dse_config *config)
{
    static const struct {
        const char *name;
        double neutral[2];
    } keys[] = {{"logit_scale", {0, 1}},
                {"residual_scale", {0, 1}},
                {"embedding_scale", {0, 1}},
                {"attention.scale", {0, 0}},
                {"attention.output_scale", {0, 1}},
                {"attention.value_scale", {0, 1}},
                {"attention.temperature_length", {0, 0}},
                {"attention.temperature_scale", {0, 0}},
                {"attention.clamp_kqv", {0, 0}},
                {"attention.max_alibi_bias", {0, 0}},
                {"attn_logit_softcapping", {0, 0}},
                {"final_logit_softcapping", {0, 0}},
                {"router_logit_softcapping", {0, 0}},
                {"rope.scaling.attn_factor", {0, 1}}};
    char key[96];
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        double value = dse_gguf_keys_number(r, keys[i].name, 0);
        if (r->status != DSE_OK) return;
        if (value != keys[i].neutral[0] && value != keys[i].neutral[1]) {
            r->status = dse_fail_at(r->err, DSE_ERR_UNSUPPORTED, dse_gguf_path(r->gguf), -1,
                                    "%s: %s is %g, which this version does not compute", dse_gguf_path(r->gguf),
                                    dse_gguf_keys_name(r, keys[i].name, key), value);
            return;
        }
    }
    int window = dse_gguf_keys_int(r, "attention.sliding_window", 0, DSE_MAX_CONTEXT, 0);
    if (r->status == DSE_OK && window > 0 && window < config->context_length)
        r->status = dse_fail_at(r->err, DSE_ERR_UNSUPPORTED, dse_gguf_path(r->gguf), -1,
                                "%s: %s is %d, less than the context of %lld: sliding windows are not supported",
                                dse_gguf_path(r->gguf), dse_gguf_keys_name(r, "attention.sliding_window", key), window,
                                (long long)config->context_length);
    if (r->status != DSE_OK) return;
    static const struct {
        const char *name;
        bool neutral;
    } flags[] = {{"attention.causal", true}, {"use_parallel_residual", false}};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        bool value = flags[i].neutral;
        r->status = dse_gguf_get_bool(r->gguf, dse_gguf_keys_name(r, flags[i].name, key), &value, r->err);
        if (r->status != DSE_OK) return;
        if (value != flags[i].neutral) {
            r->status = dse_fail_at(r->err, DSE_ERR_UNSUPPORTED, dse_gguf_path(r->gguf), -1,
                                    "%s: %s is %s, which this version does not compute", dse_gguf_path(r->gguf), key,
                                    value ? "true" : "false");
            return;
        }
    }
}

static void refuse_variants(struct dse_gguf_keys *r, const struct dse_config *config)
{
    char key[96];
    if (dse_arch_is_latent(config->arch)) return; /* read_latent has looked at the lengths */
    if (!dse_arch_is_deepseek(config->arch) && dse_gguf_keys_int(r, "expert_count", 0, INT32_MAX, 0) > 0 &&
        r->status == DSE_OK)
        r->status = dse_fail_at(r->err, DSE_ERR_UNSUPPORTED, dse_gguf_path(r->gguf), -1,
                                "%s: %s is not 0: experts in architecture '%s' are not supported",
                                dse_gguf_path(r->gguf), dse_gguf_keys_name(r, "expert_count", key), r->arch);
    int value_length = dse_gguf_keys_int(r, "attention.value_length", 1, DSE_MAX_HEAD, config->head_dim);
    if (r->status == DSE_OK && value_length != config->head_dim)
        r->status = dse_fail_at(r->err, DSE_ERR_UNSUPPORTED, dse_gguf_path(r->gguf), -1,
                                "%s: %s is %d, but the head dimension is %d; they must be equal",
                                dse_gguf_path(r->gguf), dse_gguf_keys_name(r, "attention.value_length", key),
                                value_length, config->head_dim);
}

enum dse_status dse_config_from_gguf(const struct dse_gguf *gguf, struct dse_config *config, struct dse_error *err)
{
    dse_config_init(config);
    struct dse_gguf_keys r = {.gguf = gguf, .err = err, .status = DSE_OK};
    struct dse_gguf_string arch = {0};
    enum dse_status status = dse_gguf_get_string(gguf, "general.architecture", &arch, err);
    if (status != DSE_OK) return status;
    if (arch.data == NULL) return dse_gguf_keys_missing(&r, "general.architecture");
    status = dse_config_set_arch(config, true, arch.data, arch.bytes, dse_gguf_path(gguf), "general.architecture", err);
    if (status != DSE_OK) return status;
    r.arch = config->arch_name;
    bool latent = dse_arch_is_latent(config->arch);
    bool reordered = config->arch == DSE_ARCH_LLAMA || config->arch == DSE_ARCH_DEEPSEEK;
    config->rope.pairs = reordered ? DSE_ROPE_INTERLEAVED : DSE_ROPE_HALF;

    config->n_layers = dse_gguf_keys_require(&r, "block_count", DSE_MAX_LAYERS);
    config->context_length = dse_gguf_keys_require(&r, "context_length", DSE_MAX_CONTEXT);
    config->n_embd = dse_gguf_keys_require(&r, "embedding_length", DSE_MAX_EMBD);
    config->n_ff = dse_gguf_keys_require(&r, "feed_forward_length", DSE_MAX_FF);
    config->n_heads = dse_gguf_keys_require(&r, "attention.head_count", DSE_MAX_HEADS);
    if (!latent) {
        config->n_kv_heads = dse_gguf_keys_int(&r, "attention.head_count_kv", 1, DSE_MAX_HEADS, 0);
        config->head_dim = dse_gguf_keys_int(&r, "attention.key_length", 1, DSE_MAX_HEAD, 0);
    }
    if (r.status == DSE_OK && !dse_gguf_keys_have(&r, "attention.layer_norm_rms_epsilon")) {
        char key[96];
        r.status = dse_gguf_keys_missing(&r, dse_gguf_keys_name(&r, "attention.layer_norm_rms_epsilon", key));
    }
    config->rms_eps = (float)dse_gguf_keys_number(&r, "attention.layer_norm_rms_epsilon", 0);
    config->rope.theta = dse_gguf_keys_number(&r, "rope.freq_base", config->rope.theta);
    config->rope.dimensions = dse_gguf_keys_int(&r, "rope.dimension_count", 1, DSE_MAX_HEAD, 0);
    read_scaling(&r, &config->rope);
    if (dse_arch_is_deepseek(config->arch)) dse_config_gguf_deepseek(&r, config);
    read_vocab(&r, config);
    read_names(&r, config);
    read_stops(&r, config);
    read_uses(&r, config);
    if (r.status != DSE_OK) return r.status;
    config->tied_embeddings = dse_gguf_tensor(gguf, "output.weight") == NULL;

    char prefix[40];
    snprintf(prefix, sizeof prefix, "%s.", config->arch_name);
    const struct dse_config_names names = {.file = dse_gguf_path(gguf),
                                           .prefix = prefix,
                                           .n_embd = "embedding_length",
                                           .n_heads = "attention.head_count",
                                           .n_kv_heads = "attention.head_count_kv",
                                           .head_dim = "attention.key_length",
                                           .rms_eps = "attention.layer_norm_rms_epsilon",
                                           .rope_theta = "rope.freq_base",
                                           .rope_dimensions = "rope.dimension_count",
                                           .rope_factor = "rope.scaling.factor",
                                           .rope_original = "rope.scaling.original_context_length",
                                           .rope_low = "",
                                           .rope_high = "",
                                           .rope_beta_fast = "rope.scaling.yarn_beta_fast",
                                           .rope_beta_slow = "rope.scaling.yarn_beta_slow",
                                           .rope_attention_factor = "rope.scaling.yarn_attn_factor",
                                           .rope_mscale = "rope.scaling.yarn_log_multiplier",
                                           .rope_mscale_all_dim = "rope.scaling.yarn_log_multiplier",
                                           .latent_q_rank = "attention.q_lora_rank",
                                           .latent_nope = latent && dse_gguf_keys_have(&r, "attention.key_length_mla")
                                                              ? "attention.key_length_mla"
                                                              : "attention.key_length",
                                           .latent_rope = "rope.dimension_count",
                                           .n_experts = "expert_count",
                                           .n_used = "expert_used_count",
                                           .n_shared = "expert_shared_count",
                                           .n_dense_layers = "leading_dense_block_count",
                                           .n_groups = "expert_group_count",
                                           .n_groups_used = "expert_group_used_count",
                                           .expert_scale = "expert_weights_scale",
                                           .index_dim = "attention.indexer.key_length"};
    if ((status = dse_config_check(config, &names, err)) != DSE_OK) return status;
    refuse_variants(&r, config);
    refuse_changed_results(&r, config);
    if (r.status != DSE_OK) return r.status;
    if (config->arch == DSE_ARCH_LLAMA && config->rope.theta == 100000 && config->context_length == 16384 &&
        config->rope.scaling == DSE_ROPE_NONE)
        dse_log(DSE_LOG_WARN, "model",
                "%s: looks like a very old DeepSeek-Coder conversion without its rope scaling (linear, factor 4); the "
                "output will be wrong: convert the model again",
                dse_gguf_path(gguf));
    return DSE_OK;
}
