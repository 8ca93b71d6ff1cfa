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

static int64_t read_int(struct reader *r, const char *name, int64_t maximum, int64_t absent)
{
    const json_t *value = field(r, name);
    if (r->status != DSE_OK || value == NULL) return absent;
    if (!json_is_integer(value)) {
        wrong_type(r, name, "an integer");
        return absent;
    }
    int64_t number = json_integer_value(value);
    if (number < 1 || number > maximum)
        r->status = dse_fail_at(r->err, DSE_ERR_CORRUPT, file_name, -1, "%s: %s%s is %lld, expected 1 to %lld",
                                file_name, r->parent, name, (long long)number, (long long)maximum);
    return r->status == DSE_OK ? number : absent;
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
        rope->mscale = read_number(r, "mscale", 0);
        rope->mscale_all_dim = read_number(r, "mscale_all_dim", 0);
        if (!read_bool(r, "truncate", true) && r->status == DSE_OK) unsupported(r, "truncate", "false", "true");
    } else {
        unsupported(r, "rope_type", type, "default, linear, llama3 or yarn");
        return;
    }
    rope->factor = require_number(r, "factor");
}

static void read_rope(struct reader *r, struct dse_rope_config *rope)
{
    rope->theta = read_number(r, "rope_theta", rope->theta);
    double rotated = read_number(r, "partial_rotary_factor", 1);
    if (r->status == DSE_OK && rotated != 1) unsupported(r, "partial_rotary_factor", "not 1", "1");
    const char *name = field(r, "rope_parameters") != NULL ? "rope_parameters" : "rope_scaling";
    const json_t *object = field(r, name);
    if (r->status != DSE_OK || object == NULL) return;
    if (!json_is_object(object)) {
        wrong_type(r, name, "an object");
        return;
    }
    char parent[32];
    snprintf(parent, sizeof parent, "%s.", name);
    struct reader inner = {object, parent, r->err, DSE_OK};
    rope->theta = read_number(&inner, "rope_theta", rope->theta);
    read_scaling(&inner, rope);
    r->status = inner.status;
}

static void refuse_variants(struct reader *r, struct dse_config *config)
{
    const json_t *quantization = field(r, "quantization_config"), *layer_types = field(r, "layer_types");
    const json_t *classes = field(r, "architectures");
    if (r->status == DSE_OK && quantization != NULL) {
        const char *method = json_string_value(json_object_get(quantization, "quant_method"));
        unsupported(r, "quantization_config", method != NULL ? method : "set",
                    "an unquantized folder (or a GGUF file)");
    }
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
    enum dse_status status = dse_config_set_arch(out, type, strlen(type), file_name, "model_type", err);
    if (status != DSE_OK) return status;

    out->n_layers = (int)require_int(&r, "num_hidden_layers", DSE_MAX_LAYERS);
    out->context_length = require_int(&r, "max_position_embeddings", DSE_MAX_CONTEXT);
    out->n_embd = (int)require_int(&r, "hidden_size", DSE_MAX_EMBD);
    out->n_ff = (int)require_int(&r, "intermediate_size", DSE_MAX_FF);
    out->n_vocab = (int)require_int(&r, "vocab_size", DSE_MAX_VOCAB);
    out->n_heads = (int)require_int(&r, "num_attention_heads", DSE_MAX_HEADS);
    out->n_kv_heads = (int)read_int(&r, "num_key_value_heads", DSE_MAX_HEADS, 0);
    out->head_dim = (int)read_int(&r, "head_dim", DSE_MAX_HEAD, 0);
    out->rms_eps = (float)read_number(&r, "rms_norm_eps", (double)out->rms_eps);
    out->tied_embeddings = read_bool(&r, "tie_word_embeddings", false);
    read_rope(&r, &out->rope);
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
                                           .rope_mscale_all_dim = "rope_scaling.mscale_all_dim"};
    return dse_config_check(out, &names, err);
}
