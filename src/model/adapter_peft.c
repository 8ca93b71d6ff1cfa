/* Adapters as PEFT saves them: adapter_config.json says alpha and rank, adapter_model.safetensors holds
 * base_model.model.MODULE.lora_A.weight [rank, in] and .lora_B.weight [out, rank]. Called by adapter.c.
 *
 * What would make the result another one than W + scale * B A is refused by the name of its key; keys about training,
 * and where PEFT got the model from, are not looked at.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <math.h>
#include <pcre2.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "model/adapter_internal.h"
#include "model/model_json.h"

#define MAX_CONFIG_BYTES (4u << 20)
/* A pattern against a module's name: published ones are the name itself. */
#define MAX_PATTERN_BYTES 512
#define MAX_PATTERNS      65536
#define MATCH_LIMIT       10000

static const char prefix[] = "base_model.model.";
static const char end_a[] = ".lora_A.weight", end_b[] = ".lora_B.weight";

struct pattern {
    pcre2_code *code;
    double value;
};

struct patterns {
    struct pattern *list;
    size_t count;
};

struct peft_config {
    const char *path;
    json_t *json;
    bool rslora;
    double rank, alpha;
    struct patterns ranks, alphas;
    pcre2_compile_context *compile_context;
    pcre2_match_data *match_data;
    pcre2_match_context *match_context;
};

static void *pcre_alloc(size_t bytes, void *unused)
{
    (void)unused;
    return dse_alloc(DSE_MEM_MODEL, bytes);
}

static void pcre_free(void *pointer, void *unused)
{
    (void)unused;
    dse_free(pointer);
}

static enum dse_status refuse_key(const struct peft_config *config, const char *key, const char *why,
                                  struct dse_error *err)
{
    return dse_fail_at(err, DSE_ERR_UNSUPPORTED, config->path, -1, "%s: %s %s", config->path, key, why);
}

static enum dse_status wrong_key(const struct peft_config *config, const char *key, const char *expected,
                                 struct dse_error *err)
{
    return dse_fail_at(err, DSE_ERR_CORRUPT, config->path, -1, "%s: %s is missing or not %s", config->path, key,
                       expected);
}

/* null, false, an empty list or object, or not there */
static bool is_off(const json_t *value)
{
    return value == NULL || json_is_null(value) || json_is_false(value) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

/* Keys that change what an adapter computes, or the base model under it. */
static enum dse_status refuse_variants(const struct peft_config *config, struct dse_error *err)
{
    static const struct {
        const char *key, *why;
    } off[] = {
        {"use_dora", "is on: DoRA's magnitudes are not supported"},
        {"fan_in_fan_out", "is on: transposed weights are of another kind of model"},
        {"lora_bias", "is on: biases of B are not supported"},
        {"modules_to_save", "is not empty: whole modules in an adapter are not supported"},
        {"trainable_token_indices", "is not empty: embeddings in an adapter are not supported"},
        {"target_parameters", "is not empty: experts in an adapter are not supported"},
        {"layer_replication", "is not empty: repeated layers are not supported"},
        {"alora_invocation_tokens", "is not empty: adapters that begin in the middle of a prompt are not supported"},
        {"use_qalora", "is on: QALoRA is not supported"},
        {"use_bdlora", "is on: BD-LoRA is not supported"},
        {"arrow_config", "is not empty: routing between adapters is not supported"},
        {"kasa_config", "is not empty: KaSA is not supported"},
        {"monteclora_config", "is not empty: MonteCLoRA is not supported"},
        {"megatron_config", "is not empty: split layers of Megatron are not supported"},
    };
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        if (!is_off(json_object_get(config->json, off[i].key))) return refuse_key(config, off[i].key, off[i].why, err);
    const json_t *bias = json_object_get(config->json, "bias");
    if (bias != NULL && (!json_is_string(bias) || strcmp(json_string_value(bias), "none") != 0))
        return refuse_key(config, "bias", "is not \"none\": biases in an adapter are not supported", err);
    /* Others begin by taking something out of the base weights, which the adapter then needs. */
    static const char *const harmless[] = {"gaussian", "eva", "orthogonal"};
    const json_t *init = json_object_get(config->json, "init_lora_weights");
    bool known = init == NULL || json_is_boolean(init) || json_is_null(init);
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless && !known; i++)
        known = json_is_string(init) && strcmp(json_string_value(init), harmless[i]) == 0;
    if (!known)
        return refuse_key(config, "init_lora_weights",
                          "names a beginning that changes the base weights: convert the adapter to plain LoRA first",
                          err);
    return DSE_OK;
}

static enum dse_status read_number(const struct peft_config *config, const char *key, double *out,
                                   struct dse_error *err)
{
    const json_t *value = json_object_get(config->json, key);
    if (!json_is_number(value) || !isfinite(json_number_value(value))) return wrong_key(config, key, "a number", err);
    *out = json_number_value(value);
    return DSE_OK;
}

/* PEFT matches with Python's re.match: (.*\.)?(PATTERN)$ */
static enum dse_status compile_pattern(const struct peft_config *config, const char *key, const char *text,
                                       struct pattern *pattern, struct dse_error *err)
{
    char whole[MAX_PATTERN_BYTES + 16];
    int number;
    PCRE2_SIZE offset;
    if (strlen(text) > MAX_PATTERN_BYTES)
        return dse_fail_at(err, DSE_ERR_LIMIT, config->path, -1, "%s: %s has a pattern of %zu bytes, at most %d",
                           config->path, key, strlen(text), MAX_PATTERN_BYTES);
    (void)snprintf(whole, sizeof whole, "(.*\\.)?(%s)$", text);
    pattern->code = pcre2_compile((PCRE2_SPTR)whole, strlen(whole), PCRE2_ANCHORED | PCRE2_DOLLAR_ENDONLY, &number,
                                  &offset, config->compile_context);
    if (pattern->code != NULL) return DSE_OK;
    if (number == PCRE2_ERROR_HEAP_FAILED) return dse_fail_memory(err, sizeof whole, "a pattern of an adapter");
    PCRE2_UCHAR why[96] = "";
    pcre2_get_error_message(number, why, sizeof why);
    return dse_fail_at(err, DSE_ERR_CORRUPT, config->path, -1, "%s: %s has the pattern '%.100s': %s", config->path, key,
                       text, (const char *)why);
}

static enum dse_status read_patterns(const struct peft_config *config, const char *key, struct patterns *patterns,
                                     struct dse_error *err)
{
    const json_t *object = json_object_get(config->json, key);
    const char *text;
    json_t *value;
    if (is_off(object)) return DSE_OK;
    if (!json_is_object(object)) return wrong_key(config, key, "an object", err);
    if (json_object_size(object) > MAX_PATTERNS)
        return dse_fail_at(err, DSE_ERR_LIMIT, config->path, -1, "%s: %s has %zu patterns, at most %d", config->path,
                           key, json_object_size(object), MAX_PATTERNS);
    patterns->list = dse_calloc(DSE_MEM_MODEL, json_object_size(object), sizeof *patterns->list);
    if (patterns->list == NULL)
        return dse_fail_memory(err, json_object_size(object) * sizeof *patterns->list, "patterns of an adapter");
    json_object_foreach((json_t *)object, text, value)
    {
        struct pattern *pattern = &patterns->list[patterns->count++];
        if (!json_is_number(value) || !isfinite(json_number_value(value)))
            return wrong_key(config, key, "an object of numbers", err);
        pattern->value = json_number_value(value);
        enum dse_status status = compile_pattern(config, key, text, pattern, err);
        if (status != DSE_OK) return status;
    }
    return DSE_OK;
}

/* The first pattern that matches decides; *value stays as it is if none does. */
static enum dse_status look_up(const struct peft_config *config, const struct patterns *patterns, const char *key,
                               const char *module, size_t bytes, double *value, struct dse_error *err)
{
    for (size_t i = 0; i < patterns->count; i++) {
        int found = pcre2_match(patterns->list[i].code, (PCRE2_SPTR)module, bytes, 0, 0, config->match_data,
                                config->match_context);
        if (found == PCRE2_ERROR_NOMATCH) continue;
        if (found == PCRE2_ERROR_NOMEMORY) return dse_fail_memory(err, bytes, "a pattern of an adapter");
        if (found < 0)
            return dse_fail_at(err, DSE_ERR_LIMIT, config->path, -1,
                               "%s: %s has a pattern that takes too long to match", config->path, key);
        *value = patterns->list[i].value;
        return DSE_OK;
    }
    return DSE_OK;
}

static enum dse_status create_matcher(struct peft_config *config, struct dse_error *err)
{
    pcre2_general_context *general = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
    if (general != NULL) {
        config->compile_context = pcre2_compile_context_create(general);
        config->match_data = pcre2_match_data_create(4, general);
        config->match_context = pcre2_match_context_create(general);
    }
    pcre2_general_context_free(general);
    if (config->compile_context == NULL || config->match_data == NULL || config->match_context == NULL)
        return dse_fail_memory(err, 256, "patterns of an adapter");
    pcre2_set_match_limit(config->match_context, MATCH_LIMIT);
    pcre2_set_depth_limit(config->match_context, MATCH_LIMIT);
    return DSE_OK;
}

static enum dse_status read_config(struct peft_config *config, struct dse_error *err)
{
    enum dse_status status = dse_model_json_read(config->path, MAX_CONFIG_BYTES, &config->json, err);
    if (status != DSE_OK) return status;
    if (!json_is_object(config->json))
        return dse_fail_at(err, DSE_ERR_CORRUPT, config->path, -1, "%s: not a JSON object", config->path);
    const json_t *type = json_object_get(config->json, "peft_type");
    if (!json_is_string(type) || strcmp(json_string_value(type), "LORA") != 0)
        return refuse_key(config, "peft_type", "is not \"LORA\"", err);
    status = refuse_variants(config, err);
    if (status == DSE_OK) status = read_number(config, "r", &config->rank, err);
    if (status == DSE_OK) status = read_number(config, "lora_alpha", &config->alpha, err);
    const json_t *rslora = json_object_get(config->json, "use_rslora");
    if (status == DSE_OK && rslora != NULL && !json_is_boolean(rslora) && !json_is_null(rslora))
        status = wrong_key(config, "use_rslora", "true or false", err);
    config->rslora = json_is_true(rslora);
    if (status == DSE_OK) status = create_matcher(config, err);
    if (status == DSE_OK) status = read_patterns(config, "rank_pattern", &config->ranks, err);
    if (status == DSE_OK) status = read_patterns(config, "alpha_pattern", &config->alphas, err);
    return status;
}

static void free_patterns(struct patterns *patterns)
{
    for (size_t i = 0; i < patterns->count; i++)
        pcre2_code_free(patterns->list[i].code);
    dse_free(patterns->list);
}

static void free_config(struct peft_config *config)
{
    free_patterns(&config->ranks);
    free_patterns(&config->alphas);
    pcre2_compile_context_free(config->compile_context);
    pcre2_match_data_free(config->match_data);
    pcre2_match_context_free(config->match_context);
    json_decref(config->json);
}

/* base_model.model.[model.]layers.LAYER.MODULE.lora_A.weight; without "model." it was trained on the part below the
 * head. */
static enum dse_status put_tensor(struct dse_adapter_builder *builder, const struct dse_tensor *tensor,
                                  struct dse_error *err)
{
    const char *text = tensor->name;
    if (strncmp(text, prefix, sizeof prefix - 1) != 0) return dse_adapter_refuse_name(builder, tensor->name, err);
    text += sizeof prefix - 1;
    if (strncmp(text, "model.", 6) == 0) text += 6;
    if (strncmp(text, "layers.", 7) != 0) return dse_adapter_refuse_name(builder, tensor->name, err);
    return dse_adapter_put(builder, tensor, text + 7, end_a, end_b, err);
}

/* What the configuration says of a module: the rank, which must be that of its tensors, and the scale. */
static enum dse_status set_scale(const struct dse_adapter_builder *builder, const struct peft_config *config,
                                 struct dse_adapter_module *place, struct dse_error *err)
{
    const char *module = place->a->name + sizeof prefix - 1;
    const size_t bytes = strlen(module) - (sizeof end_a - 1);
    double rank = config->rank, alpha = config->alpha;
    enum dse_status status = look_up(config, &config->ranks, "rank_pattern", module, bytes, &rank, err);
    if (status == DSE_OK) status = look_up(config, &config->alphas, "alpha_pattern", module, bytes, &alpha, err);
    if (status != DSE_OK) return status;
    if (rank != place->rank)
        return dse_fail_at(err, DSE_ERR_CORRUPT, builder->path, -1,
                           "%s: tensor '%.200s' has the rank %d, %s says %g (r, rank_pattern)", builder->path,
                           place->a->name, place->rank, config->path, rank);
    return dse_adapter_set_scale(builder, place, alpha, config->rslora ? sqrt(rank) : rank, err);
}

enum dse_status dse_adapter_read_peft(struct dse_adapter_builder *builder, const char *config_path, size_t max_bytes,
                                      struct dse_error *err)
{
    struct peft_config config = {.path = config_path};
    struct dse_adapter_file *file = builder->file;
    enum dse_status status = read_config(&config, err);
    if (status == DSE_OK) status = dse_safetensors_read(builder->path, max_bytes, &file->safetensors, err);
    const size_t count = status == DSE_OK ? dse_safetensors_count(file->safetensors) : 0;
    for (size_t i = 0; i < count && status == DSE_OK; i++)
        status = put_tensor(builder, dse_safetensors_at(file->safetensors, i), err);
    if (status == DSE_OK) status = dse_adapter_pair(builder, err);
    const size_t n_places = (size_t)builder->base->config.n_layers * DSE_SITE_COUNT;
    for (size_t i = 0; i < n_places && status == DSE_OK; i++)
        if (builder->places[i].a != NULL) status = set_scale(builder, &config, &builder->places[i], err);
    free_config(&config);
    return status;
}
