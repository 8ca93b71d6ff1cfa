/* The tokenizer.* keys of a GGUF file: checked once when a model is opened, so that whoever reads them later finds the
 * types, counts and ids they expect. Reads nothing into memory. */
#include <string.h>

#include "model/weights_internal.h"

static enum dse_status wrong(const struct dse_gguf *gguf, const char *key, const char *expected, struct dse_error *err)
{
    return dse_fail_at(err, DSE_ERR_CORRUPT, dse_gguf_path(gguf), -1, "%s: key '%s' is not %s", dse_gguf_path(gguf),
                       key, expected);
}

static enum dse_status check_array(const struct dse_gguf *gguf, const char *key, enum dse_gguf_value_type type,
                                   const char *expected, const struct dse_gguf_value *tokens, struct dse_error *err)
{
    const struct dse_gguf_value *value = dse_gguf_value(gguf, key);
    if (value == NULL) return DSE_OK;
    if (value->type != DSE_GGUF_ARRAY || value->element_type != type) return wrong(gguf, key, expected, err);
    if (tokens != NULL && value->count != tokens->count)
        return dse_fail_at(err, DSE_ERR_CORRUPT, dse_gguf_path(gguf), -1,
                           "%s: key '%s' has %zu entries, tokenizer.ggml.tokens has %zu", dse_gguf_path(gguf), key,
                           value->count, tokens->count);
    return DSE_OK;
}

static enum dse_status check_token_types(const struct dse_gguf *gguf, const struct dse_gguf_value *tokens,
                                         struct dse_error *err)
{
    static const char key[] = "tokenizer.ggml.token_type";
    const struct dse_gguf_value *value = dse_gguf_value(gguf, key);
    if (value == NULL) return DSE_OK;
    if (value->type != DSE_GGUF_ARRAY) return wrong(gguf, key, "an array of integers", err);
    if (tokens != NULL && value->count != tokens->count)
        return dse_fail_at(err, DSE_ERR_CORRUPT, dse_gguf_path(gguf), -1,
                           "%s: key '%s' has %zu entries, tokenizer.ggml.tokens has %zu", dse_gguf_path(gguf), key,
                           value->count, tokens->count);
    for (size_t i = 0; i < value->count; i++) {
        int64_t type;
        if (!dse_gguf_array_i64(value, i, &type)) return wrong(gguf, key, "an array of integers", err);
        if (type < 0 || type > 6)
            return dse_fail_at(err, DSE_ERR_CORRUPT, dse_gguf_path(gguf), -1,
                               "%s: key '%s' gives token %zu the type %lld, expected 0 to 6", dse_gguf_path(gguf), key,
                               i, (long long)type);
    }
    return DSE_OK;
}

enum dse_status dse_gguf_check_tokenizer(const struct dse_gguf *gguf, struct dse_error *err)
{
    static const char *const texts[] = {"tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.chat_template"};
    static const char *const flags[] = {"tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token",
                                        "tokenizer.ggml.add_space_prefix"};
    static const char *const used_ids[] = {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
                                           "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
    /* Never used to index anything; conversions are known to write ids behind the end here. */
    static const char *const loose_ids[] = {"tokenizer.ggml.padding_token_id", "tokenizer.ggml.unknown_token_id",
                                            "tokenizer.ggml.seperator_token_id"};
    enum dse_status status;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct dse_gguf_string text;
        if ((status = dse_gguf_get_string(gguf, texts[i], &text, err)) != DSE_OK) return status;
    }
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        bool flag;
        if ((status = dse_gguf_get_bool(gguf, flags[i], &flag, err)) != DSE_OK) return status;
    }
    static const char tokens_key[] = "tokenizer.ggml.tokens";
    status = check_array(gguf, tokens_key, DSE_GGUF_STRING, "an array of strings", NULL, err);
    if (status != DSE_OK) return status;
    const struct dse_gguf_value *tokens = dse_gguf_value(gguf, tokens_key);
    if (tokens != NULL && tokens->count == 0) return wrong(gguf, tokens_key, "a list of at least one token", err);
    status = check_array(gguf, "tokenizer.ggml.scores", DSE_GGUF_F32, "an array of f32", tokens, err);
    if (status != DSE_OK) return status;
    if ((status = check_token_types(gguf, tokens, err)) != DSE_OK) return status;
    status = check_array(gguf, "tokenizer.ggml.merges", DSE_GGUF_STRING, "an array of strings", NULL, err);
    if (status != DSE_OK) return status;
    int64_t last = tokens != NULL ? (int64_t)tokens->count - 1 : INT32_MAX, id;
    for (size_t i = 0; i < sizeof used_ids / sizeof *used_ids; i++) {
        if ((status = dse_gguf_get_i64(gguf, used_ids[i], 0, last, &id, err)) != DSE_OK) return status;
    }
    for (size_t i = 0; i < sizeof loose_ids / sizeof *loose_ids; i++) {
        status = dse_gguf_get_i64(gguf, loose_ids[i], INT64_MIN, INT64_MAX, &id, err);
        if (status != DSE_OK) return status;
    }
    return DSE_OK;
}
