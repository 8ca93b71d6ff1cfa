/* Prompts that fill holes (see fim.h): PREFIX before SUFFIX behind MIDDLE, in the tokens of the model. */
#include "server/fim.h"

void dse_fim_find(struct dse_served *served)
{
    static const char *const texts[][3] = {
        {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"}, /* Qwen */
        {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"}, /* DeepSeek */
        {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},       /* StarCoder */
    };
    const struct dse_model_info *info = &served->info;
    int32_t found[3] = {info->fim_prefix, info->fim_suffix, info->fim_middle};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (found[0] >= 0 && found[1] >= 0 && found[2] >= 0) break;
        for (int k = 0; k < 3; k++)
            found[k] = dse_tokenizer_find_added(served->tokenizer, texts[i][k]);
    }
    bool all = found[0] >= 0 && found[1] >= 0 && found[2] >= 0;
    served->fim = all ? (struct dse_fim_tokens){found[0], found[1], found[2]} : (struct dse_fim_tokens){-1, -1, -1};
    served->file_separator = dse_tokenizer_find_added(served->tokenizer, "<|file_sep|>");
}

enum dse_status dse_fim_encode(const struct dse_served *served, const struct dse_fim_hole *hole, struct dse_tokens *out,
                               struct dse_error *err)
{
    enum dse_status status = dse_tokens_push(out, served->fim.prefix, err);
    for (size_t i = 0; hole->ids && i < hole->ids->count && status == DSE_OK; i++)
        status = dse_tokens_push(out, hole->ids->ids[i], err);
    if (status == DSE_OK && !hole->ids)
        status = dse_tokenizer_encode(served->tokenizer, hole->before, hole->before_bytes, 0, out, err);
    if (status == DSE_OK) status = dse_tokens_push(out, served->fim.suffix, err);
    if (status == DSE_OK)
        status = dse_tokenizer_encode(served->tokenizer, hole->behind, hole->behind_bytes, 0, out, err);
    if (status == DSE_OK) status = dse_tokens_push(out, served->fim.middle, err);
    return status;
}

void dse_fim_add_stops(const struct dse_served *served, struct dse_gen_params *params)
{
    const int32_t stops[] = {
        served->fim.prefix,     served->fim.suffix,
        served->fim.middle,     dse_tokenizer_find_added(served->tokenizer, "<|fim_pad|>"),
        served->file_separator, dse_tokenizer_find_added(served->tokenizer, "<|repo_name|>"),
    };
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++)
        if (stops[i] >= 0 && params->n_stop_tokens < DSE_MAX_STOP_TOKENS)
            params->stop_tokens[params->n_stop_tokens++] = stops[i];
}
