/* Sampling one token from logits: penalties, bias, grammar mask, temperature, top-k, top-p, min-p.
 *
 * Order: bias and penalties on the raw logits -> mask -> (greedy | temperature, top-k, top-p, min-p -> draw). The draw
 * is Philox(seed, sequence, position), so a replay gives the same token. Buffers are taken at creation; sampling never
 * allocates. Touches the full vocabulary as few times as possible. The same bits come out on every instruction set.
 *
 * Greedy means temperature below 1e-5, top_k 1 or top_p 0: the largest logit, of equal ones the lowest id. top-k keeps
 * exactly k (lower ids first), top-p the fewest tokens whose probabilities after top-k reach p, min-p what has at least
 * min_p times the largest probability. NaN logits are never chosen; values out of range are DSE_ERR_INVALID at
 * creation.
 */
#ifndef DSE_ENGINE_SAMPLER_H
#define DSE_ENGINE_SAMPLER_H

#include <dse/dse.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct dse_sampler;

/* n_vocab: logits per row; n_tokens <= n_vocab: ids the tokenizer knows, the only ones ever sampled.
 * max_tokens: prompt + output tokens of the sequence, for the penalty history. params are copied. */
DSE_MUST_CHECK enum dse_status dse_sampler_create(const struct dse_sampling *params, int n_vocab, int n_tokens,
                                                  int max_tokens, struct dse_sampler **out, struct dse_error *err);
void dse_sampler_free(struct dse_sampler *sampler);

/* Tells the sampler of tokens in the sequence: prompt tokens count for repetition_penalty only, output tokens for all
 * penalties. */
void dse_sampler_observe(struct dse_sampler *sampler, const int32_t *ids, int count, bool prompt);

struct dse_sample {
    int32_t token;
    float logprob; /* log-softmax over all n_vocab raw logits (before penalties, as OpenAI reports);
                                    * 0 when params ask for no logprobs */
    int n_top;     /* filled when params asked for top_logprobs */
    struct dse_token_logprob top[DSE_MAX_TOP_LOGPROBS]; /* descending */
};

/* What the model makes of a token: its log-probability in a row of logits and the top_logprobs best ones, as a sampled
 * token gets them. logits are not changed. */
void dse_sampler_score(const struct dse_sampler *sampler, const float *logits, int32_t token, struct dse_sample *out);

/* logits: f32 [n_vocab], may be overwritten. mask: grammar mask or NULL. banned: ids never to choose (min_tokens,
 * ignore_eos) or NULL. When nothing can be chosen: DSE_ERR_INVALID naming what of the request forbids everything, or
 * DSE_ERR_INTERNAL when the model gave nothing but NaN. */
DSE_MUST_CHECK enum dse_status dse_sampler_sample(struct dse_sampler *sampler, float *logits, const uint64_t *mask,
                                                  const int32_t *banned, int n_banned, uint64_t sequence,
                                                  uint64_t position, struct dse_sample *out, struct dse_error *err);

#endif
