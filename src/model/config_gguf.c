/* Hyper-parameters from GGUF metadata. Keys are "<architecture>.<name>"; integer widths are the writer's choice. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "model/config_internal.h"
#include "model/weights_internal.h"

struct reader {
    const struct dse_gguf *gguf;
    const char *arch;
    struct dse_error *err;
    enum dse_status status; /* first failure; later reads do nothing */
};

static const char *key_of(const struct reader *r, const char *name, char key[96])
{
    snprintf(key, 96, "%s.%s", r->arch, name);
    return key;
}

/* minimum…maximum, or `absent` if there is no such key. */
static int read_int(struct reader *r, const char *name, int64_t minimum, int64_t maximum, int64_t absent)
{
    char key[96];
    int64_t value = absent;
    if (r->status == DSE_OK)
        r->status = dse_gguf_get_i64(r->gguf, key_of(r, name, key), minimum, maximum, &value, r->err);
    return (int)value;
}

static enum dse_status missing(struct reader *r, const char *key)
{
    return dse_fail_at(r->err, DSE_ERR_CORRUPT, dse_gguf_path(r->gguf), -1, "%s: the key '%s' is missing",
                       dse_gguf_path(r->gguf), key);
}

static int require_int(struct reader *r, const char *name, int64_t maximum)
{
    char key[96];
    if (r->status == DSE_OK && dse_gguf_value(r->gguf, key_of(r, name, key)) == NULL) r->status = missing(r, key);
    return read_int(r, name, 1, maximum, 0);
}

static double read_number(struct reader *r, const char *name, double absent)
{
    char key[96];
    double value = absent;
    if (r->status == DSE_OK) r->status = dse_gguf_get_f64(r->gguf, key_of(r, name, key), &value, r->err);
    return value;
}

static bool has(const struct reader *r, const char *name)
{
    char key[96];
    return dse_gguf_value(r->gguf, key_of(r, name, key)) != NULL;
}

static bool text_is(struct dse_gguf_string text, const char *expected)
{
    return text.bytes == strlen(expected) && memcmp(text.data, expected, text.bytes) == 0;
}

static void read_scaling(struct reader *r, struct dse_rope_config *rope)
{
    char key[96];
    struct dse_gguf_string type = {0};
    bool finetuned = false;
    if (r->status == DSE_OK)
        r->status = dse_gguf_get_string(r->gguf, key_of(r, "rope.scaling.type", key), &type, r->err);
    if (r->status == DSE_OK)
        r->status = dse_gguf_get_bool(r->gguf, key_of(r, "rope.scaling.finetuned", key), &finetuned, r->err);
    /* The old name of the factor knows linear scaling only; 0 meant none. */
    double factor = read_number(r, "rope.scaling.factor", read_number(r, "rope.scale_linear", 0));
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
                                key_of(r, "rope.scaling.type", key), name);
        return;
    }
    if (rope->scaling == DSE_ROPE_NONE) return;
    if (type.data != NULL && !has(r, "rope.scaling.factor") && !has(r, "rope.scale_linear")) {
        r->status = missing(r, key_of(r, "rope.scaling.factor", key));
        return;
    }
    rope->factor = factor;
    if (rope->scaling != DSE_ROPE_YARN) return;
    rope->original_context = read_int(r, "rope.scaling.original_context_length", 1, DSE_MAX_CONTEXT, 0);
    rope->beta_fast = read_number(r, "rope.scaling.yarn_beta_fast", rope->beta_fast);
    rope->beta_slow = read_number(r, "rope.scaling.yarn_beta_slow", rope->beta_slow);
    /* yarn_attn_factor is deliberately not read: no published runtime honours it, and the one model that carries it
     * (R1-0528-Qwen3-8B) was evaluated without. */
}

/* Only 0.1 * mscale_all_dim is stored, and mscale is taken to be the same: cos and sin keep their magnitude and the whole
 * effect is in the scale of the scores. */
static void read_log_multiplier(struct reader *r, struct dse_rope_config *rope)
{
    if (rope->scaling != DSE_ROPE_YARN) return;
    rope->mscale = rope->mscale_all_dim = read_number(r, "rope.scaling.yarn_log_multiplier", 0) / 0.1;
    if (rope->mscale == 0) rope->attention_factor = 1;
}

/* New files name the sizes of a head with _mla and describe the cache in key_length; files from before the split of kv_b
 * have the sizes of a head there. */
static void read_latent(struct reader *r, struct dse_config *config)
{
    struct dse_latent_config *latent = &config->latent;
    char key[96];
    latent->kv_rank = require_int(r, "attention.kv_lora_rank", DSE_MAX_LATENT);
    latent->q_rank = read_int(r, "attention.q_lora_rank", 1, DSE_MAX_LATENT, 0);
    latent->rope = require_int(r, "rope.dimension_count", DSE_MAX_HEAD);
    bool new_keys = has(r, "attention.key_length_mla") || has(r, "attention.value_length_mla");
    if (new_keys) {
        latent->nope = require_int(r, "attention.key_length_mla", DSE_MAX_HEAD) - latent->rope;
        latent->v = require_int(r, "attention.value_length_mla", DSE_MAX_HEAD);
        /* Either is redundant; if given it must agree. */
        int row = latent->kv_rank + latent->rope;
        const struct {
            const char *name;
            int expected;
        } cache[] = {{"attention.key_length", row}, {"attention.value_length", latent->kv_rank}};
        for (size_t i = 0; i < 2 && r->status == DSE_OK; i++) {
            int found = read_int(r, cache[i].name, 1, INT32_MAX, cache[i].expected);
            if (r->status == DSE_OK && found != cache[i].expected)
                r->status = dse_fail_at(r->err, DSE_ERR_CORRUPT, dse_gguf_path(r->gguf), -1,
                                        "%s: %s is %d, expected %d from the latent rank and the rotated part",
                                        dse_gguf_path(r->gguf), key_of(r, cache[i].name, key), found,
                                        cache[i].expected);
        }
    } else {
        latent->nope = require_int(r, "attention.key_length", DSE_MAX_HEAD) - latent->rope;
        latent->v = require_int(r, "attention.value_length", DSE_MAX_HEAD);
    }
    int kv_heads = read_int(r, "attention.head_count_kv", 1, DSE_MAX_HEADS, 1);
    if (r->status == DSE_OK && kv_heads != 1 && kv_heads != config->n_heads)
        r->status = dse_fail_at(r->err, DSE_ERR_CORRUPT, dse_gguf_path(r->gguf), -1,
                                "%s: %s is %d, expected 1 or (old files) the number of heads, %d",
                                dse_gguf_path(r->gguf), key_of(r, "attention.head_count_kv", key), kv_heads,
                                config->n_heads);
    config->rope.pairs = DSE_ROPE_INTERLEAVED;
    read_log_multiplier(r, &config->rope);
    if (config->arch != DSE_ARCH_DEEPSEEK32) return;
    config->indexer.n_heads = require_int(r, "attention.indexer.head_count", DSE_MAX_HEADS);
    config->indexer.head_dim = require_int(r, "attention.indexer.key_length", DSE_MAX_HEAD);
    config->indexer.top_k = require_int(r, "attention.indexer.top_k", DSE_MAX_CONTEXT);
}

static void read_gating(struct reader *r, struct dse_config *config)
{
    enum { NOT_GIVEN, SOFTMAX, SIGMOID };
    struct dse_moe_config *moe = &config->moe;
    char key[96];
    int gating = read_int(r, "expert_gating_func", 0, INT32_MAX, NOT_GIVEN);
    if (r->status != DSE_OK) return;
    key_of(r, "expert_gating_func", key);
    bool sigmoid_only = config->arch == DSE_ARCH_DEEPSEEK32;
    /* Old files of V1 and V2 lack it; files of V3 always have it. */
    if (gating == NOT_GIVEN && !sigmoid_only) gating = SOFTMAX;
    if (gating == NOT_GIVEN) {
        r->status = missing(r, key);
    } else if (gating != (sigmoid_only ? SIGMOID : SOFTMAX) &&
               !(gating == SIGMOID && config->arch == DSE_ARCH_DEEPSEEK2)) {
        r->status = dse_fail_at(r->err, DSE_ERR_UNSUPPORTED, dse_gguf_path(r->gguf), -1,
                                "%s: %s is %d; %s is computed with %s only", dse_gguf_path(r->gguf), key, gating,
                                r->arch,
                                sigmoid_only                         ? "2 (sigmoid)"
                                : config->arch == DSE_ARCH_DEEPSEEK2 ? "1 (softmax) and 2 (sigmoid)"
                                                                     : "1 (softmax)");
    }
    moe->score = gating == SIGMOID ? DSE_SCORE_SIGMOID : DSE_SCORE_SOFTMAX;
    moe->has_bias = gating == SIGMOID;
}

/* Groups of experts: DeepSeek's rules, whatever the key says to other runtimes. */
static void read_groups(struct reader *r, struct dse_config *config)
{
    struct dse_moe_config *moe = &config->moe;
    if (config->arch == DSE_ARCH_DEEPSEEK) return;
    bool sigmoid = moe->score == DSE_SCORE_SIGMOID;
    moe->grouping = sigmoid ? DSE_GROUPS_BEST_TWO : DSE_GROUPS_BEST;
    if (has(r, "expert_group_count")) {
        moe->n_groups = read_int(r, "expert_group_count", 0, DSE_MAX_EXPERTS, 0);
        if (moe->n_groups > 0) moe->n_groups_used = require_int(r, "expert_group_used_count", DSE_MAX_EXPERTS);
    } else if (!sigmoid && moe->n_experts == 160 && moe->n_used == 6) {
        /* Conversions from before the keys existed: the numbers of V2 and of V3. */
        moe->n_groups = 8;
        moe->n_groups_used = 3;
    } else if (sigmoid && moe->n_experts == 256 && moe->n_used == 8) {
        moe->n_groups = 8;
        moe->n_groups_used = 4;
    }
}

static void read_experts(struct reader *r, struct dse_config *config)
{
    struct dse_moe_config *moe = &config->moe;
    char key[96];
    moe->n_experts = read_int(r, "expert_count", 0, DSE_MAX_EXPERTS, 0);
    if (r->status != DSE_OK || moe->n_experts == 0) return;
    moe->n_used = require_int(r, "expert_used_count", DSE_MAX_EXPERTS_USED);
    moe->n_ff = require_int(r, "expert_feed_forward_length", DSE_MAX_FF);
    moe->n_shared = read_int(r, "expert_shared_count", 0, DSE_MAX_EXPERTS, 0);
    moe->n_dense_layers = read_int(r, "leading_dense_block_count", 0, DSE_MAX_LAYERS, 0);
    moe->scale = (float)read_number(r, "expert_weights_scale", 1);
    if (r->status == DSE_OK)
        r->status = dse_gguf_get_bool(r->gguf, key_of(r, "expert_weights_norm", key), &moe->normalize, r->err);
    read_gating(r, config);
    if (r->status == DSE_OK && config->arch == DSE_ARCH_DEEPSEEK2 && moe->normalize && !moe->has_bias)
        r->status = dse_fail_at(r->err, DSE_ERR_UNSUPPORTED, dse_gguf_path(r->gguf), -1,
                                "%s: %s is true, only false is supported with softmax scores", dse_gguf_path(r->gguf),
                                key_of(r, "expert_weights_norm", key));
    read_groups(r, config);
}

/* block_count includes the prediction layers; only their tensors tell whether they were kept. */
static void read_mtp(struct reader *r, struct dse_config *config)
{
    char key[96];
    int n = read_int(r, "nextn_predict_layers", 0, DSE_MAX_MTP, 0), all = config->n_layers;
    if (r->status != DSE_OK || n == 0) return;
    if (n >= all) {
        r->status = dse_fail_at(r->err, DSE_ERR_CORRUPT, dse_gguf_path(r->gguf), -1,
                                "%s: %s is %d, but there are %d layers in all", dse_gguf_path(r->gguf),
                                key_of(r, "nextn_predict_layers", key), n, all);
        return;
    }
    /* A converter that did not count them is understood as well, whether it kept their tensors or not: an uncounted last
     * layer is an ordinary one. */
    char last[64];
    snprintf(last, sizeof last, "blk.%d.attn_norm.weight", all - 1);
    bool ordinary = dse_gguf_tensor(r->gguf, last) != NULL;
    for (int i = all - n; i < all; i++)
        if (dse_weights_has_mtp(r->gguf, NULL, i)) ordinary = false;
    if (!dse_weights_has_mtp(r->gguf, NULL, all) && !ordinary) config->n_layers = all - n;
    if (dse_weights_has_mtp(r->gguf, NULL, config->n_layers)) config->n_mtp_layers = n;
}

static void read_deepseek(struct reader *r, struct dse_config *config)
{
    if (dse_arch_is_latent(config->arch)) {
        read_latent(r, config);
        read_mtp(r, config);
    }
    read_experts(r, config);
}

/* V: the key, else the number of tokens. */
static void read_vocab(struct reader *r, struct dse_config *config)
{
    static const char tokens_key[] = "tokenizer.ggml.tokens";
    char key[96];
    const struct dse_gguf_value *tokens = dse_gguf_value(r->gguf, tokens_key);
    size_t n_tokens = tokens != NULL && tokens->type == DSE_GGUF_ARRAY ? tokens->count : 0;
    if (n_tokens > DSE_MAX_VOCAB) n_tokens = (size_t)DSE_MAX_VOCAB + 1;
    config->n_vocab = read_int(r, "vocab_size", 1, DSE_MAX_VOCAB, (int64_t)n_tokens);
    if (r->status != DSE_OK) return;
    key_of(r, "vocab_size", key);
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

static void read_names(struct reader *r, struct dse_config *config)
{
    struct dse_gguf_string name = {0}, base = {0};
    if (r->status == DSE_OK) r->status = dse_gguf_get_string(r->gguf, "general.name", &name, r->err);
    /* basename is the model's own name without its size, unless a fine-tune keeps its parent's */
    if (r->status == DSE_OK) r->status = dse_gguf_get_string(r->gguf, "general.basename", &base, r->err);
    if (r->status == DSE_OK) r->status = dse_gguf_get_string(r->gguf, "general.base_model.0.name", &base, r->err);
    dse_config_copy_text(config->name, sizeof config->name, name.data, name.bytes);
    dse_config_copy_text(config->basename, sizeof config->basename, base.data, base.bytes);
}

static void read_stops(struct reader *r, struct dse_config *config)
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

/* Keys by which other runtimes compute something else, with the values that ask for nothing. */
static void refuse_changed_results(struct reader *r, const struct dse_config *config)
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
        double value = read_number(r, keys[i].name, 0);
        if (r->status != DSE_OK) return;
        if (value != keys[i].neutral[0] && value != keys[i].neutral[1]) {
            r->status = dse_fail_at(r->err, DSE_ERR_UNSUPPORTED, dse_gguf_path(r->gguf), -1,
                                    "%s: %s is %g, which this version does not compute", dse_gguf_path(r->gguf),
                                    key_of(r, keys[i].name, key), value);
            return;
        }
    }
    int window = read_int(r, "attention.sliding_window", 0, DSE_MAX_CONTEXT, 0);
    if (r->status == DSE_OK && window > 0 && window < config->context_length)
        r->status = dse_fail_at(r->err, DSE_ERR_UNSUPPORTED, dse_gguf_path(r->gguf), -1,
                                "%s: %s is %d, less than the context of %lld: sliding windows are not supported",
                                dse_gguf_path(r->gguf), key_of(r, "attention.sliding_window", key), window,
                                (long long)config->context_length);
    if (r->status != DSE_OK) return;
    static const struct {
        const char *name;
        bool neutral;
    } flags[] = {{"attention.causal", true}, {"use_parallel_residual", false}};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        bool value = flags[i].neutral;
        r->status = dse_gguf_get_bool(r->gguf, key_of(r, flags[i].name, key), &value, r->err);
        if (r->status != DSE_OK) return;
        if (value != flags[i].neutral) {
            r->status = dse_fail_at(r->err, DSE_ERR_UNSUPPORTED, dse_gguf_path(r->gguf), -1,
                                    "%s: %s is %s, which this version does not compute", dse_gguf_path(r->gguf), key,
                                    value ? "true" : "false");
            return;
        }
    }
}

static void refuse_variants(struct reader *r, const struct dse_config *config)
{
    char key[96];
    if (dse_arch_is_latent(config->arch)) return; /* read_latent has looked at the lengths */
    if (!dse_arch_is_deepseek(config->arch) && read_int(r, "expert_count", 0, INT32_MAX, 0) > 0 && r->status == DSE_OK)
        r->status = dse_fail_at(r->err, DSE_ERR_UNSUPPORTED, dse_gguf_path(r->gguf), -1,
                                "%s: %s is not 0: experts in architecture '%s' are not supported",
                                dse_gguf_path(r->gguf), key_of(r, "expert_count", key), r->arch);
    int value_length = read_int(r, "attention.value_length", 1, DSE_MAX_HEAD, config->head_dim);
    if (r->status == DSE_OK && value_length != config->head_dim)
        r->status = dse_fail_at(r->err, DSE_ERR_UNSUPPORTED, dse_gguf_path(r->gguf), -1,
                                "%s: %s is %d, but the head dimension is %d; they must be equal",
                                dse_gguf_path(r->gguf), key_of(r, "attention.value_length", key), value_length,
                                config->head_dim);
}

enum dse_status dse_config_from_gguf(const struct dse_gguf *gguf, struct dse_config *config, struct dse_error *err)
{
    dse_config_init(config);
    struct reader r = {.gguf = gguf, .err = err, .status = DSE_OK};
    struct dse_gguf_string arch = {0};
    enum dse_status status = dse_gguf_get_string(gguf, "general.architecture", &arch, err);
    if (status != DSE_OK) return status;
    if (arch.data == NULL) return missing(&r, "general.architecture");
    status = dse_config_set_arch(config, true, arch.data, arch.bytes, dse_gguf_path(gguf), "general.architecture", err);
    if (status != DSE_OK) return status;
    r.arch = config->arch_name;
    bool latent = dse_arch_is_latent(config->arch);
    bool reordered = config->arch == DSE_ARCH_LLAMA || config->arch == DSE_ARCH_DEEPSEEK;
    config->rope.pairs = reordered ? DSE_ROPE_INTERLEAVED : DSE_ROPE_HALF;

    config->n_layers = require_int(&r, "block_count", DSE_MAX_LAYERS);
    config->context_length = require_int(&r, "context_length", DSE_MAX_CONTEXT);
    config->n_embd = require_int(&r, "embedding_length", DSE_MAX_EMBD);
    config->n_ff = require_int(&r, "feed_forward_length", DSE_MAX_FF);
    config->n_heads = require_int(&r, "attention.head_count", DSE_MAX_HEADS);
    if (!latent) {
        config->n_kv_heads = read_int(&r, "attention.head_count_kv", 1, DSE_MAX_HEADS, 0);
        config->head_dim = read_int(&r, "attention.key_length", 1, DSE_MAX_HEAD, 0);
    }
    if (r.status == DSE_OK && !has(&r, "attention.layer_norm_rms_epsilon")) {
        char key[96];
        r.status = missing(&r, key_of(&r, "attention.layer_norm_rms_epsilon", key));
    }
    config->rms_eps = (float)read_number(&r, "attention.layer_norm_rms_epsilon", 0);
    config->rope.theta = read_number(&r, "rope.freq_base", config->rope.theta);
    config->rope.dimensions = read_int(&r, "rope.dimension_count", 1, DSE_MAX_HEAD, 0);
    read_scaling(&r, &config->rope);
    if (dse_arch_is_deepseek(config->arch)) read_deepseek(&r, config);
    read_vocab(&r, config);
    read_names(&r, config);
    read_stops(&r, config);
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
                                           .latent_nope = latent && has(&r, "attention.key_length_mla")
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
