/* Parsing of completion requests: text, token ids, or lists of either (see completion_request.h). */
#include "server/completion_request.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "server/generation.h"
#include "server/params.h"

static enum dse_status parse_ids(const json_t *array, const char *path, int n_vocab,
                                 struct dse_completion_prompt *prompt, struct dse_error *err)
{
    size_t n = json_array_size(array);
    if (n == 0) return dse_fail_at(err, DSE_ERR_INVALID, path, -1, "%s has no tokens", path);
    prompt->ids = dse_calloc(DSE_MEM_REQUEST, n, sizeof *prompt->ids);
    if (!prompt->ids) return dse_fail_memory(err, n * sizeof *prompt->ids, "prompt");
    prompt->n_ids = n;
    for (size_t i = 0; i < n; i++) {
        char at[64];
        int64_t id = 0;
        snprintf(at, sizeof at, "%s[%zu]", path, i);
        TRY(dse_param_int_value(json_array_get(array, i), at, 0, n_vocab - 1, &id, err));
        prompt->ids[i] = (int32_t)id;
    }
    return DSE_OK;
}

static enum dse_status parse_one(const json_t *value, const char *path, int n_vocab,
                                 struct dse_completion_prompt *prompt, struct dse_error *err)
{
    if (json_is_array(value)) return parse_ids(value, path, n_vocab, prompt, err);
    if (!json_is_string(value))
        return dse_fail_at(err, DSE_ERR_INVALID, path, -1, "%s must be a string or an array of token ids, not %s", path,
                           dse_json_type_name(value));
    prompt->text = json_string_value(value);
    prompt->text_bytes = json_string_length(value);
    return DSE_OK;
}

enum dse_status dse_completion_prompts_parse(const json_t *root, const char *field, int n_vocab, int max_prompts,
                                             struct dse_completion_prompt **prompts, int *n_prompts,
                                             struct dse_error *err)
{
    const json_t *given = dse_param_get(root, field);
    *prompts = NULL;
    *n_prompts = 0;
    if (!given) return dse_fail_at(err, DSE_ERR_INVALID, field, -1, "%s is missing", field);
    const json_t *first = json_array_get(given, 0);
    bool many = json_is_array(given) && (json_is_string(first) || json_is_array(first));
    size_t n = many ? json_array_size(given) : 1;
    if (n > (size_t)max_prompts)
        return dse_fail_at(err, DSE_ERR_INVALID, field, -1, "%s has %zu entries; at most %d are possible", field, n,
                           max_prompts);
    *prompts = dse_calloc(DSE_MEM_REQUEST, n, sizeof **prompts);
    if (!*prompts) return dse_fail_memory(err, n * sizeof **prompts, field);
    *n_prompts = (int)n;
    if (!many) return parse_one(given, field, n_vocab, *prompts, err);
    for (size_t i = 0; i < n; i++) {
        char path[40];
        snprintf(path, sizeof path, "%s[%zu]", field, i);
        TRY(parse_one(json_array_get(given, i), path, n_vocab, *prompts + i, err));
    }
    return DSE_OK;
}

void dse_completion_prompts_free(struct dse_completion_prompt *prompts, int n_prompts)
{
    for (int i = 0; prompts && i < n_prompts; i++)
        dse_free(prompts[i].ids);
    dse_free(prompts);
}

enum dse_status dse_completion_request_parse(const json_t *root, int n_vocab, struct dse_completion_request *request,
                                             struct dse_error *err)
{
    *request = (struct dse_completion_request){.add_special_tokens = true};
    struct dse_gen_params *params = &request->params;
    int64_t logprobs = 0;
    TRY(dse_gen_params_parse(root, n_vocab, params, err));
    TRY(dse_param_int(root, "logprobs", 0, DSE_MAX_TOP_LOGPROBS, &logprobs, &params->logprobs, err));
    params->sampling.top_logprobs = params->logprobs ? (int)logprobs : -1;
    TRY(dse_param_bool(root, "echo", &request->echo, NULL, err));
    TRY(dse_param_bool(root, "add_special_tokens", &request->add_special_tokens, NULL, err));
    TRY(dse_param_string(root, "suffix", &request->suffix, &request->suffix_bytes, err));
    if (request->suffix_bytes == 0) request->suffix = NULL; /* some clients send "" for none */
    if (request->suffix && request->echo)
        return dse_fail_at(err, DSE_ERR_INVALID, "echo", -1, "echo is not possible together with suffix");
    TRY(dse_completion_prompts_parse(root, "prompt", n_vocab, DSE_MAX_PROMPTS, &request->prompts, &request->n_prompts,
                                     err));
    if (params->id_slot < 0 || request->n_prompts == 1) return DSE_OK;
    return dse_fail_at(err, DSE_ERR_INVALID, "id_slot", -1, "id_slot goes with one prompt, there are %d",
                       request->n_prompts);
}

void dse_completion_request_deinit(struct dse_completion_request *request)
{
    dse_gen_params_deinit(&request->params);
    dse_completion_prompts_free(request->prompts, request->n_prompts);
    request->prompts = NULL;
}
