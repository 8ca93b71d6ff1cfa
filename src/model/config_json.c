/* Hyper-parameters from config.json and generation_config.json, in both styles that circulate: rope_theta with
 * rope_scaling, and the rope_parameters of transformers 5. auto_map and anything else that names code is ignored. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/config_internal.h"

static const char file_name[] = "config.json";

struct reader {
    const json_t *object;
    const char *parent; /* "" or "rope_scaling." for messages */
    struct dse_error *err;
    enum dse_status status; /* first failure; later reads do nothing */
};

/* NULL if absent or null. */
static const json_t *field(const struct reader *r, const char *name)
{
    const json_t *value = json_object_get(r->object, name);
    return json_is_null(value) ? NULL : value;
}

static void wrong_type(struct reader *r, const char *name, const char *expected)
{
    r->status = dse_fail_at(r->err, DSE_ERR_CORRUPT, file_name, -1, "%s: %s%s is not %s", file_name, r->parent, name,
                            expected);
}

static void missing(struct reader *r, const char *name)
{
    r->status = dse_fail_at(r->err, DSE_ERR_CORRUPT, file_name, -1, "%s: %s%s is missing", file_name, r->parent, name);
}

static void unsupported(struct reader *r, const char *name, const char *found, const char *expected)
{
    char text[64];
    dse_config_copy_text(text, sizeof text, found, strlen(found));
    r->status = dse_fail_at(r->err, DSE_ERR_UNSUPPORTED, file_name, -1, "%s: %s%s is '%s', only %s is supported",
                            file_name, r->parent, name, text, expected);
}

static int64_t read_range(struct reader *r, const char *name, int64_t minimum, int64_t maximum, int64_t absent)
{
    const json_t *value = field(r, name);
    if (r->status != DSE_OK || value == NULL) return absent;
    if (!json_is_integer(value)) {
        wrong_type(r, name, "an integer");
        return absent;
    }
    int64_t number = json_integer_value(value);
    if (number < minimum || number > maximum)
        r->status = dse_fail_at(r->err, DSE_ERR_CORRUPT, file_name, -1, "%s: %s%s is %lld, expected %lld to %lld",
                                file_name, r->parent, name, (long long)number, (long long)minimum, (long long)maximum);
    return r->status == DSE_OK ? number : absent;
}

static int64_t read_int(struct reader *r, const char *name, int64_t maximum, int64_t absent)
{
    return read_range(r, name, 1, maximum, absent);
}

static int64_t require_int(struct reader *r, const char *name, int64_t maximum)
{
    if (r->status == DSE_OK && field(r, name) == NULL) missing(r, name);
    return read_int(r, name, maximum, 0);
}

static double read_number(struct reader *r, const char *name, double absent)
{
    const json_t *value = field(r, name);
    if (r->status != DSE_OK || value == NULL) return absent;
    if (!json_is_number(value) || !isfinite(json_number_value(value))) {
        wrong_type(r, name, "a finite number");
        return absent;
    }
    return json_number_value(value);
}

static double require_number(struct reader *r, const char *name)
{
    if (r->status == DSE_OK && field(r, name) == NULL) missing(r, name);
    return read_number(r, name, 0);
}

static bool read_bool(struct reader *r, const char *name, bool absent)
{
    const json_t *value = field(r, name);
    if (r->status != DSE_OK || value == NULL) return absent;
    if (!json_is_boolean(value)) {
        wrong_type(r, name, "true or false");
        return absent;
    }
    return json_is_true(value);
}

static const char *read_text(struct reader *r, const char *name, const char *absent)
{
    const json_t *value = field(r, name);
    if (r->status != DSE_OK || value == NULL) return absent;
    if (!json_is_string(value)) {
        wrong_type(r, name, "a string");
        return absent;
    }
    return json_string_value(value);
}

static void read_scaling(struct reader *r, struct dse_rope_config *rope)
{
    const char *type = read_text(r, "rope_type", NULL);
    if (r->status == DSE_OK && type == NULL) type = read_text(r, "type", NULL);
    if (r->status != DSE_OK) return;
    if (type == NULL || strcmp(type, "default") == 0) {
        /* Per-layer-type parameters ({"full_attention": {…}}) have no type of their own. */
        const char *name;
        json_t *value;
        json_object_foreach((json_t *)r->object, name, value)
        {
            if (json_is_object(value)) {
                unsupported(r, name, "an object", "one set of rope parameters for all layers");
                return;
            }
        }
        if (type == NULL && field(r, "factor") != NULL) missing(r, "rope_type");
        return;
    }
    if (strcmp(type, "linear") == 0) {
        rope->scaling = DSE_ROPE_LINEAR;
    } else if (strcmp(type, "llama3") == 0) {
        rope->scaling = DSE_ROPE_LLAMA3;
        rope->low_freq_factor = require_number(r, "low_freq_factor");
        rope->high_freq_factor = require_number(r, "high_freq_factor");
        rope->original_context = require_int(r, "original_max_position_embeddings", DSE_MAX_CONTEXT);
    } else if (strcmp(type, "yarn") == 0) {
        rope->scaling = DSE_ROPE_YARN;
        rope->original_context = read_int(r, "original_max_position_embeddings", DSE_MAX_CONTEXT, 0);
        rope->beta_fast = read_number(r, "beta_fast", rope->beta_fast);
        rope->beta_slow = read_number(r, "beta_slow", rope->beta_slow);
        /* Not attn_factor: R1-0528-Qwen3-8B carries that key, and no published runtime reads it. */
        rope->attention_factor = read_number(r, "attention_factor", 0);
        if (r->status == DSE_OK && rope->attention_factor == 0 && field(r, "attention_factor") != NULL)
            wrong_type(r, "attention_factor", "a number above 0");
        rope->mscale = read_number(r, "mscale", 0);
        if (!read_bool(r, "truncate", true) && r->status == DSE_OK) unsupported(r, "truncate", "false", "true");
    } else {
        unsupported(r, "rope_type", type, "default, linear, llama3 or yarn");
        return;
    }
    rope->factor = require_number(r, "factor");
    rope->mscale_all_dim = read_number(r, "mscale_all_dim", 0);
}

/* Everything that the old object says stands in the new one, whatever that says besides. Which of two that differ is
 * meant is not known: runtimes disagree, and Hugging Face's choice loses the theta of the other. */
static bool agrees(const json_t *old, const json_t *new)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)old, key, value)
    {
        const json_t *other = json_object_get(new, key);
        if (json_is_null(value)) continue;
        if (other == NULL && strcmp(key, "type") == 0) other = json_object_get(new, "rope_type");
        bool same = json_is_number(value) && json_is_number(other)
                        ? json_number_value(value) == json_number_value(other)
                        : json_equal(value, other);
        if (!same) return false;
    }
    return true;
}

static void read_rope(struct reader *r, struct dse_rope_config *rope)
{
    rope->theta = read_number(r, "rope_theta", rope->theta);
    double rotated = read_number(r, "partial_rotary_factor", 1);
    if (r->status == DSE_OK && rotated != 1) unsupported(r, "partial_rotary_factor", "not 1", "1");
    static const char *const names[] = {"rope_parameters", "rope_scaling"};
    for (size_t i = 0; i < 2; i++)
        if (r->status == DSE_OK && field(r, names[i]) != NULL && !json_is_object(field(r, names[i])))
            wrong_type(r, names[i], "an object");
    const char *name = json_object_size(field(r, names[0])) > 0 ? names[0] : names[1];
    const json_t *object = field(r, name);
    if (r->status != DSE_OK || object == NULL) return;
    if (name == names[0] && !agrees(field(r, names[1]), object)) {
        unsupported(r, names[1], "another scaling than rope_parameters", "one of the two, or the same values in both");
        return;
    }
    char parent[32];
    snprintf(parent, sizeof parent, "%s.", name);
    struct reader inner = {object, parent, r->err, DSE_OK};
    rope->theta = read_number(&inner, "rope_theta", rope->theta);
    read_scaling(&inner, rope);
    r->status = inner.status;
}

/* FP8 with a scale per 128 x 128 weights; everything else that quantizes a folder is refused. */
static void read_quantization(struct reader *r, struct dse_config *config)
{
    static const char name[] = "quantization_config";
    const json_t *object = field(r, name);
    if (r->status != DSE_OK || object == NULL) return;
    const char *method = json_string_value(json_object_get(object, "quant_method"));
    if (!dse_arch_is_deepseek(config->arch) || method == NULL || strcmp(method, "fp8") != 0) {
        unsupported(r, name, method != NULL ? method : "set",
                    dse_arch_is_deepseek(config->arch) ? "fp8 in blocks" : "an unquantized folder (or a GGUF file)");
        return;
    }
    struct reader inner = {object, "quantization_config.", r->err, DSE_OK};
    const char *format = read_text(&inner, "fmt", "e4m3"), *scheme = read_text(&inner, "activation_scheme", "dynamic");
    if (inner.status == DSE_OK && strcmp(format, "e4m3") != 0) unsupported(&inner, "fmt", format, "e4m3");
    if (inner.status == DSE_OK && strcmp(scheme, "dynamic") != 0)
        unsupported(&inner, "activation_scheme", scheme, "dynamic");
    const json_t *block = field(&inner, "weight_block_size");
    if (inner.status == DSE_OK && block == NULL) missing(&inner, "weight_block_size");
    if (inner.status == DSE_OK &&
        (json_array_size(block) != 2 || json_integer_value(json_array_get(block, 0)) != DSE_F8_BLOCK ||
         json_integer_value(json_array_get(block, 1)) != DSE_F8_BLOCK))
        unsupported(&inner, "weight_block_size", "another size", "[128, 128]");
    config->fp8_blocks = true;
    r->status = inner.status;
}

static void read_latent(struct reader *r, struct dse_config *config)
{
    if (!read_bool(r, "use_mla", true) && r->status == DSE_OK) unsupported(r, "use_mla", "false", "true");
    if (!read_bool(r, "rope_interleave", true) && r->status == DSE_OK)
        unsupported(r, "rope_interleave", "false", "true");
    if (read_bool(r, "attention_bias", false)) unsupported(r, "attention_bias", "true", "false");
    config->latent.kv_rank = (int)require_int(r, "kv_lora_rank", DSE_MAX_LATENT);
    config->latent.q_rank = (int)read_int(r, "q_lora_rank", DSE_MAX_LATENT, 0);
    config->latent.nope = (int)require_int(r, "qk_nope_head_dim", DSE_MAX_HEAD);
    config->latent.rope = (int)require_int(r, "qk_rope_head_dim", DSE_MAX_HEAD);
    config->latent.v = (int)require_int(r, "v_head_dim", DSE_MAX_HEAD);
    /* Every head has keys of its own, made from the shared latent. */
    int64_t kv_heads = read_int(r, "num_key_value_heads", DSE_MAX_HEADS, config->n_heads);
    if (r->status == DSE_OK && kv_heads != config->n_heads)
        r->status = dse_fail_at(r->err, DSE_ERR_CORRUPT, file_name, -1,
                                "%s: num_key_value_heads is %lld, expected num_attention_heads (%d) with latent "
                                "attention",
                                file_name, (long long)kv_heads, config->n_heads);
    config->rope.pairs = DSE_ROPE_INTERLEAVED;
    if (config->arch != DSE_ARCH_DEEPSEEK32) return;
    config->indexer.n_heads = (int)require_int(r, "index_n_heads", DSE_MAX_HEADS);
    config->indexer.head_dim = (int)require_int(r, "index_head_dim", DSE_MAX_HEAD);
    config->indexer.top_k = (int)require_int(r, "index_topk", DSE_MAX_CONTEXT);
}

/* How experts are scored and chosen; the three generations differ in what their classes do and in their defaults. */
static void read_routing(struct reader *r, struct dse_config *config)
{
    struct dse_moe_config *moe = &config->moe;
    bool v1 = config->arch == DSE_ARCH_DEEPSEEK, v2 = strcmp(config->arch_name, "deepseek_v2") == 0, v3 = !v1 && !v2;
    const char *score = read_text(r, "scoring_func", v3 ? "sigmoid" : "softmax");
    const char *method = read_text(r, "topk_method", v3 ? "noaux_tc" : "greedy");
    if (r->status == DSE_OK && strcmp(score, v3 ? "sigmoid" : "softmax") != 0)
        unsupported(r, "scoring_func", score, v3 ? "sigmoid" : "softmax");
    bool grouped = v3 || (v2 && strcmp(method, "group_limited_greedy") == 0);
    if (r->status == DSE_OK && strcmp(method, v3 ? "noaux_tc" : "greedy") != 0 && !(v2 && grouped))
        unsupported(r, "topk_method", method, v3 ? "noaux_tc" : v2 ? "greedy or group_limited_greedy" : "greedy");
    moe->score = v3 ? DSE_SCORE_SIGMOID : DSE_SCORE_SOFTMAX;
    moe->grouping = v3 ? DSE_GROUPS_BEST_TWO : grouped ? DSE_GROUPS_BEST : DSE_GROUPS_NONE;
    if (grouped) {
        moe->n_groups = (int)require_int(r, "n_group", DSE_MAX_EXPERTS);
        moe->n_groups_used = (int)require_int(r, "topk_group", DSE_MAX_EXPERTS);
    }
    moe->has_bias = v3;
    moe->normalize = read_bool(r, "norm_topk_prob", v3);
    /* V2's own code then drops the scale, Hugging Face ignores the flag: no published model says which is meant. */
    if (v2 && moe->normalize && r->status == DSE_OK) unsupported(r, "norm_topk_prob", "true", "false");
    moe->scale = (float)read_number(r, "routed_scaling_factor", v3 ? 2.5 : 1.0);
    if (v1 && moe->scale != 1 && r->status == DSE_OK) unsupported(r, "routed_scaling_factor", "not 1", "1");
}

static void read_experts(struct reader *r, struct dse_config *config)
{
    struct dse_moe_config *moe = &config->moe;
    moe->n_experts = (int)read_int(r, "n_routed_experts", DSE_MAX_EXPERTS, 0);
    if (r->status != DSE_OK || moe->n_experts == 0) return;
    moe->n_used = (int)require_int(r, "num_experts_per_tok", DSE_MAX_EXPERTS_USED);
    moe->n_ff = (int)require_int(r, "moe_intermediate_size", DSE_MAX_FF);
    moe->n_shared = (int)read_range(r, "n_shared_experts", 0, DSE_MAX_EXPERTS, 0);
    bool v3 = dse_arch_is_latent(config->arch) && strcmp(config->arch_name, "deepseek_v2") != 0;
    moe->n_dense_layers = (int)read_range(r, "first_k_dense_replace", 0, DSE_MAX_LAYERS, v3 ? 3 : 0);
    int64_t frequency = read_int(r, "moe_layer_freq", DSE_MAX_LAYERS, 1);
    if (r->status == DSE_OK && frequency != 1) unsupported(r, "moe_layer_freq", "not 1", "1");
    read_routing(r, config);
}

static void read_deepseek(struct reader *r, struct dse_config *config)
{
    if (dse_arch_is_latent(config->arch))
        read_latent(r, config);
    else if (r->status == DSE_OK && field(r, "kv_lora_rank") != NULL)
        unsupported(r, "kv_lora_rank", "set", "a model without it");
    read_experts(r, config);
    if (dse_arch_is_latent(config->arch))
        config->n_mtp_layers = (int)read_range(r, "num_nextn_predict_layers", 0, DSE_MAX_MTP, 0);
}

static void refuse_variants(struct reader *r, struct dse_config *config)
{
    const json_t *layer_types = field(r, "layer_types"), *classes = field(r, "architectures");
    const char *act = read_text(r, "hidden_act", "silu");
    if (r->status == DSE_OK && strcmp(act, "silu") != 0) unsupported(r, "hidden_act", act, "silu");
    if (read_bool(r, "use_sliding_window", false)) unsupported(r, "use_sliding_window", "true", "false");
    if (read_bool(r, "mlp_bias", false)) unsupported(r, "mlp_bias", "true", "false");
    if (read_bool(r, "attention_bias", false)) config->qkv_bias = true;
    if (r->status == DSE_OK && layer_types != NULL) {
        if (!json_is_array(layer_types)) wrong_type(r, "layer_types", "an array");
        for (size_t i = 0; i < json_array_size(layer_types) && r->status == DSE_OK; i++) {
            const char *type = json_string_value(json_array_get(layer_types, i));
            if (type == NULL)
                wrong_type(r, "layer_types", "an array of strings");
            else if (strcmp(type, "full_attention") != 0)
                unsupported(r, "layer_types", type, "full_attention");
        }
    }
    if (!dse_arch_is_deepseek(config->arch)) {
        static const char *const experts[] = {"n_routed_experts", "num_experts", "num_local_experts",
                                              "moe_intermediate_size", "kv_lora_rank"};
        for (size_t i = 0; i < sizeof experts / sizeof *experts && r->status == DSE_OK; i++)
            if (field(r, experts[i]) != NULL) unsupported(r, experts[i], "set", "a model without it");
    }
    /* A classifier or an embedding model of the same model_type has no language model head. */
    const char *class_name = json_string_value(json_array_get(classes, 0));
    if (r->status == DSE_OK && class_name != NULL && strstr(class_name, "ForCausalLM") == NULL)
        unsupported(r, "architectures", class_name, "a …ForCausalLM class");
}

static enum dse_status read_stops(const json_t *object, const char *file, struct dse_config *config,
                                  struct dse_error *err)
{
    static const char name[] = "eos_token_id";
    const json_t *value = json_object_get(object, name);
    if (value == NULL || json_is_null(value)) return DSE_OK;
    bool is_list = json_is_array(value);
    size_t n = is_list ? json_array_size(value) : 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *id = is_list ? json_array_get(value, i) : value;
        if (!json_is_integer(id))
            return dse_fail_at(err, DSE_ERR_CORRUPT, file, -1, "%s: %s is neither an integer nor a list of integers",
                               file, name);
        enum dse_status status = dse_config_add_stop(config, json_integer_value(id), file, name, err);
        if (status != DSE_OK) return status;
    }
    return DSE_OK;
}

enum dse_status dse_config_from_json(const json_t *config, const json_t *generation, struct dse_config *out,
                                     struct dse_error *err)
{
    dse_config_init(out);
    if (!json_is_object(config))
        return dse_fail_at(err, DSE_ERR_CORRUPT, file_name, -1, "%s is not a JSON object", file_name);
    if (generation != NULL && !json_is_object(generation))
        return dse_fail_at(err, DSE_ERR_CORRUPT, "generation_config.json", -1,
                           "generation_config.json is not a JSON object");
    struct reader r = {config, "", err, DSE_OK};
    const char *type = read_text(&r, "model_type", NULL);
    if (r.status == DSE_OK && type == NULL) missing(&r, "model_type");
    if (r.status != DSE_OK) return r.status;
    enum dse_status status = dse_config_set_arch(out, false, type, strlen(type), file_name, "model_type", err);
    if (status != DSE_OK) return status;

    out->n_layers = (int)require_int(&r, "num_hidden_layers", DSE_MAX_LAYERS);
    out->context_length = require_int(&r, "max_position_embeddings", DSE_MAX_CONTEXT);
    out->n_embd = (int)require_int(&r, "hidden_size", DSE_MAX_EMBD);
    out->n_ff = (int)require_int(&r, "intermediate_size", DSE_MAX_FF);
    out->n_vocab = (int)require_int(&r, "vocab_size", DSE_MAX_VOCAB);
    out->n_heads = (int)require_int(&r, "num_attention_heads", DSE_MAX_HEADS);
    if (!dse_arch_is_latent(out->arch)) { /* there these follow from other fields */
        out->n_kv_heads = (int)read_int(&r, "num_key_value_heads", DSE_MAX_HEADS, 0);
        out->head_dim = (int)read_int(&r, "head_dim", DSE_MAX_HEAD, 0);
    }
    out->rms_eps = (float)read_number(&r, "rms_norm_eps", (double)out->rms_eps);
    out->tied_embeddings = read_bool(&r, "tie_word_embeddings", false);
    read_rope(&r, &out->rope);
    read_quantization(&r, out);
    if (dse_arch_is_deepseek(out->arch)) read_deepseek(&r, out);
    refuse_variants(&r, out);
    const char *base = read_text(&r, "_name_or_path", "");
    dse_config_copy_text(out->basename, sizeof out->basename, base, strlen(base));
    if (r.status != DSE_OK) return r.status;
    if ((status = read_stops(config, file_name, out, err)) != DSE_OK) return status;
    if ((status = read_stops(generation, "generation_config.json", out, err)) != DSE_OK) return status;

    const struct dse_config_names names = {.file = file_name,
                                           .prefix = "",
                                           .n_embd = "hidden_size",
                                           .n_heads = "num_attention_heads",
                                           .n_kv_heads = "num_key_value_heads",
                                           .head_dim = "head_dim",
                                           .rms_eps = "rms_norm_eps",
                                           .rope_theta = "rope_theta",
                                           .rope_dimensions = "head_dim",
                                           .rope_factor = "rope_scaling.factor",
                                           .rope_low = "rope_scaling.low_freq_factor",
                                           .rope_high = "rope_scaling.high_freq_factor",
                                           .rope_original = "rope_scaling.original_max_position_embeddings",
                                           .rope_beta_fast = "rope_scaling.beta_fast",
                                           .rope_beta_slow = "rope_scaling.beta_slow",
                                           .rope_attention_factor = "rope_scaling.attention_factor",
                                           .rope_mscale = "rope_scaling.mscale",
                                           .rope_mscale_all_dim = "rope_scaling.mscale_all_dim",
                                           .latent_q_rank = "q_lora_rank",
                                           .latent_nope = "qk_nope_head_dim",
                                           .latent_rope = "qk_rope_head_dim",
                                           .n_experts = "n_routed_experts",
                                           .n_used = "num_experts_per_tok",
                                           .n_shared = "n_shared_experts",
                                           .n_dense_layers = "first_k_dense_replace",
                                           .n_groups = "n_group",
                                           .n_groups_used = "topk_group",
                                           .expert_scale = "routed_scaling_factor",
                                           .index_dim = "index_head_dim"};
    return dse_config_check(out, &names, err);
}
