/* Sampling fields, usage and timings shared by the OpenAI dialects (see openai_common.h). */
#include "server/auth.h"
#include "server/openai_common.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/random.h"
#include "server/params.h"
#include "server/slots.h"

static enum dse_status add_stop(struct dse_gen_params *params, const json_t *value, const char *path,
                                struct dse_error *err)
{
    if (!json_is_string(value))
        return dse_fail_at(err, DSE_ERR_INVALID, path, -1, "%s must be a string, not %s", path,
                           dse_json_type_name(value));
    size_t bytes = json_string_length(value);
    if (bytes == 0) return DSE_OK; /* some clients send "" for none */
    if (bytes > DSE_OUTPUT_MAX_STOP_BYTES)
        return dse_fail_at(err, DSE_ERR_INVALID, path, -1, "%s has %zu bytes; at most %d are possible", path, bytes,
                           DSE_OUTPUT_MAX_STOP_BYTES);
    params->stops[params->n_stops] = json_string_value(value);
    params->stop_bytes[params->n_stops++] = bytes;
    return DSE_OK;
}

static enum dse_status parse_stop(const json_t *root, struct dse_gen_params *params, struct dse_error *err)
{
    const json_t *stop = dse_param_get(root, "stop");
    if (!stop) return DSE_OK;
    if (json_is_string(stop)) return add_stop(params, stop, "stop", err);
    if (!json_is_array(stop))
        return dse_fail_at(err, DSE_ERR_INVALID, "stop", -1, "stop must be a string or an array of strings, not %s",
                           dse_json_type_name(stop));
    if (json_array_size(stop) > DSE_OUTPUT_MAX_STOPS)
        return dse_fail_at(err, DSE_ERR_INVALID, "stop", -1, "stop has %zu strings; at most %d are possible",
                           json_array_size(stop), DSE_OUTPUT_MAX_STOPS);
    for (size_t i = 0; i < json_array_size(stop); i++) {
        char path[32];
        snprintf(path, sizeof path, "stop[%zu]", i);
        TRY(add_stop(params, json_array_get(stop, i), path, err));
    }
    return DSE_OK;
}

static enum dse_status parse_stop_tokens(const json_t *root, int n_vocab, struct dse_gen_params *params,
                                         struct dse_error *err)
{
    const json_t *list = dse_param_get(root, "stop_token_ids");
    if (!list) return DSE_OK;
    if (!json_is_array(list) || json_array_size(list) > DSE_MAX_STOP_TOKENS)
        return dse_fail_at(err, DSE_ERR_INVALID, "stop_token_ids", -1,
                           "stop_token_ids must be an array of at most %d token ids", DSE_MAX_STOP_TOKENS);
    for (size_t i = 0; i < json_array_size(list); i++) {
        char path[40];
        int64_t id = 0;
        snprintf(path, sizeof path, "stop_token_ids[%zu]", i);
        TRY(dse_param_int_value(json_array_get(list, i), path, 0, n_vocab - 1, &id, err));
        params->stop_tokens[params->n_stop_tokens++] = (int32_t)id;
    }
    return DSE_OK;
}

/* A key is a token id in decimal. Anything else with value 0 changes nothing and is let pass. */
static bool bias_key(const char *key, int n_vocab, int32_t *id)
{
    char *end;
    if (!isdigit((unsigned char)key[0]) || strlen(key) > 10) return false;
    long long n = strtoll(key, &end, 10);
    if (*end || n >= n_vocab) return false;
    *id = (int32_t)n;
    return true;
}

static enum dse_status parse_logit_bias(const json_t *root, int n_vocab, struct dse_gen_params *params,
                                        struct dse_error *err)
{
    const json_t *bias = dse_param_get(root, "logit_bias");
    if (!bias) return DSE_OK;
    if (!json_is_object(bias))
        return dse_fail_at(err, DSE_ERR_INVALID, "logit_bias", -1,
                           "logit_bias must be an object from token id to bias, not %s", dse_json_type_name(bias));
    size_t size = json_object_size(bias);
    if (size > DSE_MAX_LOGIT_BIAS)
        return dse_fail_at(err, DSE_ERR_INVALID, "logit_bias", -1,
                           "logit_bias has %zu entries; at most %d are possible", size, DSE_MAX_LOGIT_BIAS);
    params->logit_bias = dse_calloc(DSE_MEM_REQUEST, size + 1, sizeof *params->logit_bias);
    if (!params->logit_bias) return dse_fail_memory(err, size * sizeof *params->logit_bias, "logit_bias");
    int n = 0;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)bias, key, value)
    {
        double number = 0;
        struct dse_logit_bias entry;
        char path[64];
        snprintf(path, sizeof path, "logit_bias[\"%.40s\"]", key);
        TRY(dse_param_number_value(value, path, -100, 100, &number, err));
        if (number == 0) continue;
        if (!bias_key(key, n_vocab, &entry.token))
            return dse_fail_at(err, DSE_ERR_INVALID, "logit_bias", -1,
                               "logit_bias key \"%.40s\" is not a token id from 0 to %d", key, n_vocab - 1);
        entry.bias = (float)number;
        params->logit_bias[n++] = entry;
    }
    params->sampling.logit_bias = params->logit_bias;
    params->sampling.n_logit_bias = n;
    return DSE_OK;
}

static enum dse_status parse_sampling(const json_t *root, struct dse_gen_params *params, struct dse_error *err)
{
    struct dse_sampling *s = &params->sampling;
    double temperature = s->temperature, top_p = s->top_p, min_p = s->min_p, repetition = s->repetition_penalty;
    double presence = 0, frequency = 0;
    int64_t top_k = 0, seed = 0;
    bool given;
    TRY(dse_param_number(root, "temperature", 0, 2, &temperature, NULL, err));
    TRY(dse_param_number(root, "top_p", 0, 1, &top_p, NULL, err));
    TRY(dse_param_number(root, "min_p", 0, 1, &min_p, NULL, err));
    TRY(dse_param_number(root, "presence_penalty", -2, 2, &presence, NULL, err));
    TRY(dse_param_number(root, "frequency_penalty", -2, 2, &frequency, NULL, err));
    TRY(dse_param_number(root, "repeat_penalty", 1e-3, 100, &repetition, NULL, err));
    TRY(dse_param_number(root, "repetition_penalty", 1e-3, 100, &repetition, NULL, err));
    TRY(dse_param_int(root, "top_k", -1, INT_MAX, &top_k, NULL, err)); /* -1 is vLLM's way to say off */
    TRY(dse_param_int(root, "seed", INT64_MIN, INT64_MAX, &seed, &given, err));
    s->temperature = (float)temperature;
    s->top_p = top_p < 1e-6 ? 1e-6f : (float)top_p; /* 0 keeps the best token only */
    s->min_p = (float)min_p;
    s->presence_penalty = (float)presence;
    s->frequency_penalty = (float)frequency;
    s->repetition_penalty = (float)repetition;
    s->top_k = top_k < 0 ? 0 : (int)top_k;
    if (given)
        s->seed = (uint64_t)seed;
    else
        dse_random_bytes(&s->seed, sizeof s->seed);
    return DSE_OK;
}

/* Newer names win: max_completion_tokens, max_tokens, n_predict. -1 is llama.cpp's way to say no limit. */
static enum dse_status parse_lengths(const json_t *root, struct dse_gen_params *params, struct dse_error *err)
{
    static const char *const names[] = {"n_predict", "max_tokens", "max_completion_tokens"};
    int64_t min_tokens = 0, n = 1;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        TRY(dse_param_int(root, names[i], -1, INT64_MAX, &params->max_tokens, NULL, err));
    if (params->max_tokens > INT_MAX) params->max_tokens = INT_MAX;
    TRY(dse_param_int(root, "min_tokens", 0, INT_MAX, &min_tokens, NULL, err));
    if (params->max_tokens >= 0 && min_tokens > params->max_tokens)
        return dse_fail_at(err, DSE_ERR_INVALID, "min_tokens", -1, "min_tokens (%lld) is larger than max_tokens (%lld)",
                           (long long)min_tokens, (long long)params->max_tokens);
    TRY(dse_param_int(root, "n", 1, DSE_MAX_CHOICES, &n, NULL, err));
    params->min_tokens = (int)min_tokens;
    params->n = (int)n;
    return DSE_OK;
}

static enum dse_status parse_stream(const json_t *root, struct dse_gen_params *params, struct dse_error *err)
{
    TRY(dse_param_bool(root, "stream", &params->stream, NULL, err));
    TRY(dse_param_bool(root, "return_progress", &params->return_progress, NULL, err));
    const json_t *options = dse_param_get(root, "stream_options");
    if (!options) return DSE_OK;
    if (!json_is_object(options))
        return dse_fail_at(err, DSE_ERR_INVALID, "stream_options", -1, "stream_options must be an object, not %s",
                           dse_json_type_name(options));
    TRY(dse_param_bool(options, "stream_options.include_usage", &params->include_usage, NULL, err));
    return dse_param_bool(options, "stream_options.continuous_usage_stats", &params->continuous_usage, NULL, err);
}

enum dse_status dse_cache_salt_parse(const json_t *root, struct dse_gen_params *params, struct dse_error *err)
{
    TRY(dse_param_string(root, "cache_salt", &params->cache_salt, NULL, err));
    if (params->cache_salt && !*params->cache_salt)
        return dse_fail_at(err, DSE_ERR_INVALID, "cache_salt", -1, "cache_salt must not be empty");
    return DSE_OK;
}

enum dse_status dse_gen_params_parse(const json_t *root, int n_vocab, struct dse_gen_params *params,
                                     struct dse_error *err)
{
    *params = (struct dse_gen_params){
        .sampling = dse_sampling_default, .max_tokens = -1, .thought_budget = -1, .skip_special_tokens = true};
    TRY(dse_param_string(root, "model", &params->model, NULL, err));
    TRY(parse_lengths(root, params, err));
    TRY(parse_sampling(root, params, err));
    TRY(parse_logit_bias(root, n_vocab, params, err));
    TRY(parse_stop(root, params, err));
    TRY(parse_stop_tokens(root, n_vocab, params, err));
    TRY(parse_stream(root, params, err));
    TRY(dse_constraint_parse(root, &params->constraint, err));
    TRY(dse_param_bool(root, "ignore_eos", &params->ignore_eos, NULL, err));
    TRY(dse_param_bool(root, "skip_special_tokens", &params->skip_special_tokens, NULL, err));
    int64_t priority = 0;
    TRY(dse_param_int(root, "priority", -DSE_MAX_PRIORITY, DSE_MAX_PRIORITY, &priority, &params->has_priority, err));
    params->priority = (int)priority;
    params->lora = dse_param_get(root, "lora");
    int64_t slot = -1;
    TRY(dse_param_int(root, "id_slot", -1, DSE_MAX_SLOT_ID, &slot, NULL, err));
    params->id_slot = (int)slot;
    if (slot >= 0 && params->n > 1)
        return dse_fail_at(err, DSE_ERR_INVALID, "id_slot", -1, "id_slot goes with one answer, n is %d", params->n);
    return dse_cache_salt_parse(root, params, err);
}

void dse_gen_params_deinit(struct dse_gen_params *params)
{
    dse_free(params->logit_bias);
    params->logit_bias = NULL;
    params->sampling.logit_bias = NULL;
    params->sampling.n_logit_bias = 0;
}

bool dse_put_usage(struct dse_buffer *out, const struct dse_usage *usage)
{
    long long prompt = usage->prompt_tokens, cached = usage->cached_tokens, output = usage->completion_tokens;
    return dse_buffer_printf(out,
                             "{\"prompt_tokens\":%lld,\"completion_tokens\":%lld,\"total_tokens\":%lld,"
                             "\"prompt_tokens_details\":{\"cached_tokens\":%lld},"
                             "\"completion_tokens_details\":{\"reasoning_tokens\":%lld},"
                             "\"prompt_cache_hit_tokens\":%lld,\"prompt_cache_miss_tokens\":%lld}",
                             prompt, output, prompt + output, cached, (long long)usage->reasoning_tokens, cached,
                             prompt - cached);
}

static double per_second(int64_t n, double ms)
{
    return n > 0 && ms > 0 ? (double)n * 1000.0 / ms : 0.0;
}

bool dse_put_timings(struct dse_buffer *out, const struct dse_timing_sum *timings)
{
    int64_t computed = timings->n_prompt - timings->n_cached;
    double prompt_ms = (double)timings->prefill_ns / 1e6, predicted_ms = (double)timings->decode_ns / 1e6;
    return dse_buffer_printf(out,
                             "{\"cache_n\":%lld,\"prompt_n\":%lld,\"prompt_ms\":%.3f,\"prompt_per_second\":%.3f,"
                             "\"predicted_n\":%lld,\"predicted_ms\":%.3f,\"predicted_per_second\":%.3f,"
                             "\"draft_n\":%lld,\"draft_n_accepted\":%lld}",
                             (long long)timings->n_cached, (long long)computed, prompt_ms,
                             per_second(computed, prompt_ms), (long long)timings->n_predicted, predicted_ms,
                             per_second(timings->n_intervals, predicted_ms), (long long)timings->n_drafted,
                             (long long)timings->n_draft_taken);
}
