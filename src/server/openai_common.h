/* What chat completions and completions have in common: sampling fields with their exact ranges, and the objects
 * `usage` and `timings` of an answer. Parsing needs no engine. */
#ifndef DSE_SERVER_OPENAI_COMMON_H
#define DSE_SERVER_OPENAI_COMMON_H

#include <dse/dse.h>
#include <jansson.h>

#include "base/buffer.h"
#include "server/constraint.h"
#include "text/output.h"

#define DSE_MAX_STOP_TOKENS 64

struct dse_gen_params {
    const char *model;            /* borrowed from the request's JSON, as all strings here; NULL: not given */
    struct dse_sampling sampling; /* logit_bias is owned */
    struct dse_logit_bias *logit_bias;
    int64_t max_tokens; /* -1: not given */
    int min_tokens;
    int n;
    bool ignore_eos, skip_special_tokens;
    bool stream, include_usage, continuous_usage, return_progress;
    bool logprobs;
    int n_stops;
    const char *stops[DSE_OUTPUT_MAX_STOPS];
    size_t stop_bytes[DSE_OUTPUT_MAX_STOPS];
    int n_stop_tokens;
    int32_t stop_tokens[DSE_MAX_STOP_TOKENS];
    struct dse_constraint constraint;
    const char *cache_salt; /* NULL: that of the key */
    const json_t *lora;     /* borrowed; scales of adapters, adapters.h reads it; NULL: not given */
    bool has_priority;
    int priority;
    int id_slot;            /* -1: none (slots.h) */
    int64_t thought_budget; /* tokens between <think> and </think>, -1: not given, or any number; chat only */
    bool has_thought_budget;
};

/* root: the request object, which must outlive *params. n_vocab bounds token ids. */
DSE_MUST_CHECK enum dse_status dse_gen_params_parse(const json_t *root, int n_vocab, struct dse_gen_params *params,
                                                    struct dse_error *err);
/* `cache_salt` alone. */
DSE_MUST_CHECK enum dse_status dse_cache_salt_parse(const json_t *root, struct dse_gen_params *params,
                                                    struct dse_error *err);
void dse_gen_params_deinit(struct dse_gen_params *params);

struct dse_usage {
    int64_t prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens;
};
bool dse_put_usage(struct dse_buffer *out, const struct dse_usage *usage);

/* Sums over the choices of a request. */
struct dse_timing_sum {
    int64_t n_prompt, n_cached, n_predicted, n_intervals; /* intervals: gaps between predicted tokens */
    int64_t n_drafted, n_draft_taken;
    uint64_t prefill_ns, decode_ns;
};
bool dse_put_timings(struct dse_buffer *out, const struct dse_timing_sum *timings);

#endif
