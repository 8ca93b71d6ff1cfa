/* One token from a row of logits. Called by the engine thread for each sequence of a step.
 *
 * Passes over the vocabulary: greedy 1 · temperature 2 (maximum, sum) and a block · top-k 2 · top-p and min-p 2 and a
 * few that only compare · log-probabilities 2 more. Never allocates after creation; never sorts the vocabulary.
 */
#include "engine/sampler.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checked.h"
#include "base/random.h"
#include "engine/sampler_math.h"
#include "engine/sampler_select.h"

#define GREEDY_BELOW 1e-5f /* temperatures that cannot be told from 0 */
#define MIN_CAPACITY 4096  /* candidates: with fewer, top-k and top-p would reduce them too often */

struct seen_token {
    int32_t id;
    uint32_t n_output;
    float raw;
}; /* raw: logit before bias and penalties */

struct dse_sampler {
    struct dse_sampling params;
    int n_vocab, n_tokens;
    bool has_penalties;
    struct dse_logit_bias *bias;
    float *bias_raw;
    /* Tokens of the sequence, each once: open addressing over places in seen. */
    struct seen_token *seen;
    uint32_t n_seen, max_seen, n_slots; /* n_slots: power of two, at most half full */
    uint32_t *slots;                    /* 1 + place */
    uint64_t *candidates;
    size_t capacity;
    float *weights; /* top-p or min-p without top-k */
    double *block_sums;
};

/* ---- creation ---------------------------------------------------------------------------------------------- */

static enum dse_status fail_field(struct dse_error *err, const char *field, double value, const char *expected)
{
    return dse_fail_at(err, DSE_ERR_INVALID, field, -1, "%s is %g, expected %s", field, value, expected);
}

static enum dse_status check_params(const struct dse_sampling *p, int n_tokens, struct dse_error *err)
{
    if (!(p->temperature >= 0 && isfinite(p->temperature)))
        return fail_field(err, "temperature", p->temperature, "a number of at least 0");
    if (p->top_k < 0) return fail_field(err, "top_k", p->top_k, "at least 0");
    if (!(p->top_p >= 0 && p->top_p <= 1)) return fail_field(err, "top_p", p->top_p, "a number from 0 to 1");
    if (!(p->min_p >= 0 && p->min_p <= 1)) return fail_field(err, "min_p", p->min_p, "a number from 0 to 1");
    if (!(p->repetition_penalty > 0 && isfinite(p->repetition_penalty)))
        return fail_field(err, "repetition_penalty", p->repetition_penalty, "a number above 0");
    if (!isfinite(p->presence_penalty)) return fail_field(err, "presence_penalty", p->presence_penalty, "a number");
    if (!isfinite(p->frequency_penalty)) return fail_field(err, "frequency_penalty", p->frequency_penalty, "a number");
    if (p->top_logprobs < -1 || p->top_logprobs > DSE_MAX_TOP_LOGPROBS)
        return fail_field(err, "top_logprobs", p->top_logprobs, "0 to 20");
    if (p->n_logit_bias < 0 || p->n_logit_bias > DSE_MAX_LOGIT_BIAS)
        return fail_field(err, "logit_bias", p->n_logit_bias, "at most 1024 entries");
    for (int i = 0; i < p->n_logit_bias; i++) {
        const struct dse_logit_bias *bias = &p->logit_bias[i];
        if (bias->token < 0 || bias->token >= n_tokens)
            return dse_fail_at(err, DSE_ERR_INVALID, "logit_bias", -1, "logit_bias: there is no token %d, only 0 to %d",
                               bias->token, n_tokens - 1);
        if (isnan(bias->bias) || bias->bias == INFINITY) return fail_field(err, "logit_bias", bias->bias, "a number");
    }
    return DSE_OK;
}

static bool is_greedy(const struct dse_sampling *p)
{
    return p->temperature < GREEDY_BELOW || p->top_k == 1 || p->top_p == 0;
}

static bool has_top_k(const struct dse_sampler *s)
{
    return s->params.top_k > 0 && s->params.top_k < s->n_tokens;
}

/* Zeroed; NULL and *failed on failure. */
static void *take(size_t count, size_t bytes, bool *failed)
{
    void *memory = dse_calloc(DSE_MEM_REQUEST, count, bytes);
    if (!memory) *failed = true;
    return memory;
}

static bool take_buffers(struct dse_sampler *s, int max_tokens)
{
    const struct dse_sampling *p = &s->params;
    bool failed = false;
    if (p->n_logit_bias > 0) {
        s->bias = take((size_t)p->n_logit_bias, sizeof *s->bias, &failed);
        s->bias_raw = take((size_t)p->n_logit_bias, sizeof *s->bias_raw, &failed);
        if (s->bias) memcpy(s->bias, p->logit_bias, (size_t)p->n_logit_bias * sizeof *s->bias);
    }
    s->params.logit_bias = s->bias;
    if (s->has_penalties) {
        s->max_seen = (uint32_t)(max_tokens < s->n_tokens ? max_tokens : s->n_tokens);
        s->n_slots = 16;
        while (s->n_slots < 2 * s->max_seen)
            s->n_slots *= 2;
        s->seen = take((size_t)s->max_seen + 1, sizeof *s->seen, &failed);
        s->slots = take(s->n_slots, sizeof *s->slots, &failed);
    }
    if (is_greedy(p)) return !failed;
    s->block_sums = take((size_t)s->n_tokens / DSE_ROW_BLOCK + 1, sizeof *s->block_sums, &failed);
    if (!has_top_k(s) && p->top_p >= 1 && p->min_p <= 0) return !failed;
    /* top-k works with room for 2 k, top-p narrows its range down to any capacity. */
    s->capacity = MIN_CAPACITY;
    if (has_top_k(s) && 2 * (size_t)p->top_k > s->capacity) s->capacity = 2 * (size_t)p->top_k;
    if (s->capacity > (size_t)s->n_tokens) s->capacity = (size_t)s->n_tokens;
    s->candidates = take(s->capacity, sizeof *s->candidates, &failed);
    if (!has_top_k(s)) s->weights = take((size_t)s->n_tokens, sizeof *s->weights, &failed);
    return !failed;
}

enum dse_status dse_sampler_create(const struct dse_sampling *params, int n_vocab, int n_tokens, int max_tokens,
                                   struct dse_sampler **out, struct dse_error *err)
{
    *out = NULL;
    if (n_tokens < 1 || n_tokens > n_vocab || max_tokens < 0)
        return dse_fail(err, DSE_ERR_INVALID, "sampler: %d tokens of %d logits, sequence of %d", n_tokens, n_vocab,
                        max_tokens);
    enum dse_status status = check_params(params, n_tokens, err);
    if (status != DSE_OK) return status;
    struct dse_sampler *s = dse_calloc(DSE_MEM_REQUEST, 1, sizeof *s);
    if (!s) return dse_fail_memory(err, sizeof *s, "a sampler");
    s->params = *params;
    s->n_vocab = n_vocab;
    s->n_tokens = n_tokens;
    s->has_penalties = params->repetition_penalty != 1 || params->presence_penalty != 0 ||
                       params->frequency_penalty != 0;
    if (!take_buffers(s, max_tokens)) {
        dse_sampler_free(s);
        return dse_fail_memory(err, (size_t)n_tokens * sizeof *s->candidates, "a sampler");
    }
    *out = s;
    return DSE_OK;
}

void dse_sampler_free(struct dse_sampler *s)
{
    if (!s) return;
    dse_free(s->bias);
    dse_free(s->bias_raw);
    dse_free(s->seen);
    dse_free(s->slots);
    dse_free(s->candidates);
    dse_free(s->weights);
    dse_free(s->block_sums);
    dse_free(s);
}

/* ---- penalties --------------------------------------------------------------------------------------------- */

/* The slot that holds id, or the empty one where it belongs. */
static uint32_t *find_slot(const struct dse_sampler *s, int32_t id)
{
    uint32_t slot = ((uint32_t)id * 2654435769u >> 7) & (s->n_slots - 1);
    while (s->slots[slot] && s->seen[s->slots[slot] - 1].id != id)
        slot = (slot + 1) & (s->n_slots - 1);
    return &s->slots[slot];
}

void dse_sampler_observe(struct dse_sampler *s, const int32_t *ids, int count, bool prompt)
{
    if (!s->has_penalties) return;
    for (int i = 0; i < count; i++) {
        if (ids[i] < 0 || ids[i] >= s->n_tokens) continue;
        uint32_t *slot = find_slot(s, ids[i]);
        if (!*slot) {
            if (s->n_seen == s->max_seen) continue; /* more than the sequence was said to have */
            s->seen[s->n_seen] = (struct seen_token){.id = ids[i]};
            *slot = ++s->n_seen;
        }
        if (!prompt) s->seen[*slot - 1].n_output++;
    }
}

/* Bias, then repetition penalty (Keskar et al., "CTRL", 2019), then OpenAI's frequency and presence penalties:
 * logit - count * frequency - (count > 0) * presence. */
static void change_logits(struct dse_sampler *s, float *logits)
{
    const struct dse_sampling *p = &s->params;
    for (uint32_t i = 0; i < s->n_seen; i++)
        s->seen[i].raw = logits[s->seen[i].id];
    for (int i = 0; i < p->n_logit_bias; i++) {
        s->bias_raw[i] = logits[s->bias[i].token];
        logits[s->bias[i].token] += s->bias[i].bias;
    }
    for (uint32_t i = 0; i < s->n_seen; i++) {
        float x = logits[s->seen[i].id];
        if (p->repetition_penalty != 1) x = x > 0 ? x / p->repetition_penalty : x * p->repetition_penalty;
        if (s->seen[i].n_output > 0) {
            x -= (float)s->seen[i].n_output * p->frequency_penalty;
            x -= p->presence_penalty;
        }
        logits[s->seen[i].id] = x;
    }
}

static float raw_logit(const struct dse_sampler *s, const float *logits, int32_t id)
{
    for (int i = 0; i < s->params.n_logit_bias; i++)
        if (s->bias[i].token == id) return s->bias_raw[i];
    if (s->has_penalties) {
        uint32_t place = *find_slot(s, id);
        if (place) return s->seen[place - 1].raw;
    }
    return logits[id];
}

static void apply_mask(float *logits, int n_tokens, const uint64_t *mask)
{
    for (int begin = 0; begin < n_tokens; begin += 64) {
        uint64_t allowed = mask[begin / 64];
        if (allowed == UINT64_MAX) continue;
        int end = n_tokens - begin < 64 ? n_tokens : begin + 64;
        for (int i = begin; i < end; i++) {
            float x = logits[i];
            logits[i] = allowed >> (i - begin) & 1 ? x : -INFINITY;
        }
    }
}

/* ---- log-probabilities ------------------------------------------------------------------------------------- */

struct raw_distribution {
    float max;
    double log_sum;
};

static float log_probability(const struct raw_distribution *raw, float logit)
{
    if (logit == raw->max) return (float)-raw->log_sum; /* also when both are infinite */
    return (float)((double)logit - raw->max - raw->log_sum);
}

static void sort_descending(uint64_t *candidates, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        uint64_t value = candidates[i];
        size_t at = i;
        for (; at > 0 && candidates[at - 1] < value; at--)
            candidates[at] = candidates[at - 1];
        candidates[at] = value;
    }
}

static void fill_top(const struct dse_sampler *s, const float *logits, const struct raw_distribution *raw,
                     struct dse_sample *out)
{
    uint64_t top[4 * DSE_MAX_TOP_LOGPROBS];
    if (s->params.top_logprobs <= 0) return;
    out->n_top = (int)dse_row_top_k(logits, (size_t)s->n_tokens, (size_t)s->params.top_logprobs, top,
                                    sizeof top / sizeof *top);
    sort_descending(top, (size_t)out->n_top);
    for (int i = 0; i < out->n_top; i++)
        out->top[i] = (struct dse_token_logprob){dse_candidate_id(top[i]),
                                                 log_probability(raw, dse_candidate_value(top[i]))};
}

static struct raw_distribution describe(const struct dse_sampler *s, const float *logits)
{
    int32_t best = dse_row_argmax(logits, (size_t)s->n_vocab);
    if (best < 0) return (struct raw_distribution){-INFINITY, 0};
    struct raw_distribution raw = {.max = logits[best]};
    if (isinf(raw.max)) return raw;
    raw.log_sum = log(dse_row_exp_sum(logits, (size_t)s->n_vocab, raw.max, 1, NULL));
    return raw;
}

void dse_sampler_score(const struct dse_sampler *s, const float *logits, int32_t token, struct dse_sample *out)
{
    struct raw_distribution raw = describe(s, logits);
    out->token = token;
    out->n_top = 0;
    fill_top(s, logits, &raw, out);
    out->logprob = log_probability(&raw, logits[token]);
}

/* ---- the draw ---------------------------------------------------------------------------------------------- */

/* No filter: walks the partial sums, then one block. */
static int32_t draw_from_row(const struct dse_sampler *s, const float *logits, float max, float scale, double u)
{
    size_t n = (size_t)s->n_tokens;
    double total = dse_row_exp_sum(logits, n, max, scale, s->block_sums);
    double left = u * total;
    size_t n_blocks = (n + DSE_ROW_BLOCK - 1) / DSE_ROW_BLOCK, block = 0;
    while (block + 1 < n_blocks && left >= s->block_sums[block])
        left -= s->block_sums[block++];
    for (; block < n_blocks; block++) { /* rounding may carry the walk into the next block */
        size_t begin = block * DSE_ROW_BLOCK, end = n - begin < DSE_ROW_BLOCK ? n : begin + DSE_ROW_BLOCK;
        for (size_t i = begin; i < end; i++) {
            float weight = exp_one((logits[i] - max) * scale);
            if (weight > 0 && left < weight) return (int32_t)i;
            left -= weight;
        }
    }
    return dse_row_argmax(logits, n);
}

static int32_t draw_from_candidates(const uint64_t *candidates, size_t n, double u)
{
    double total = 0;
    for (size_t i = 0; i < n; i++)
        total += dse_candidate_value(candidates[i]);
    double left = u * total;
    for (size_t i = 0; i < n; i++) {
        float weight = dse_candidate_value(candidates[i]);
        if (weight > 0 && left < weight) return dse_candidate_id(candidates[i]);
        left -= weight;
    }
    return dse_candidate_id(candidates[0]);
}

static size_t apply_min_p(uint64_t *candidates, size_t n, float min_p)
{
    size_t kept = 0; /* the largest weight is 1 and stays */
    for (size_t i = 0; i < n; i++)
        if (dse_candidate_value(candidates[i]) >= min_p) candidates[kept++] = candidates[i];
    return kept;
}

static int32_t draw_from_top_k(struct dse_sampler *s, const float *logits, float max, float scale, double u)
{
    const struct dse_sampling *p = &s->params;
    uint64_t *candidates = s->candidates;
    size_t n = dse_row_top_k(logits, (size_t)s->n_tokens, (size_t)p->top_k, candidates, s->capacity);
    double mass = 0;
    for (size_t i = 0; i < n; i++) {
        float weight = exp_one((dse_candidate_value(candidates[i]) - max) * scale);
        candidates[i] = dse_candidate(weight, dse_candidate_id(candidates[i]));
        mass += weight;
    }
    if (p->top_p < 1) n = dse_select_mass(candidates, n, p->top_p * mass);
    if (p->min_p > 0) n = apply_min_p(candidates, n, p->min_p);
    return draw_from_candidates(candidates, n, u);
}

/* Positive floats sort as their bits do. */
static uint32_t float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float bits_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The last token of the nucleus: the fewest largest weights that sum to target. Halves a range of weights, one cheap
 * pass each time, until few enough lie in it to select among them; s->candidates then holds the nucleus if *n is set
 * (the usual case: a peaked distribution needs no halving), else the boundary is returned. */
static uint64_t find_nucleus(struct dse_sampler *s, double total, double target, size_t *n)
{
    size_t n_tokens = (size_t)s->n_tokens, n_low, n_high = 0, n_middle;
    /* Weights below (total - target) / n_tokens are together less than what may be left out. */
    float least = (float)((total - target) / (double)n_tokens);
    uint32_t low = float_bits(least > FLT_MIN ? least : FLT_MIN), high = float_bits(1) + 1;
    double above = 0; /* sum of the weights of at least high, all of which are in */
    dse_row_mass(s->weights, n_tokens, bits_float(low), NULL, &n_low);
    while (n_low - n_high > s->capacity && high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        double mass = dse_row_mass(s->weights, n_tokens, bits_float(middle), NULL, &n_middle);
        if (mass >= target) {
            low = middle;
            n_low = n_middle;
        } else {
            high = middle;
            n_high = n_middle;
            above = mass;
        }
    }
    *n = 0;
    if (n_low - n_high > s->capacity) { /* more equal weights than there is room for: the lowest ids */
        double missing = ceil((target - above) / bits_float(low));
        for (size_t i = 0; i < n_tokens; i++)
            if (float_bits(s->weights[i]) == low && --missing <= 0) return dse_candidate(s->weights[i], (int32_t)i);
        return dse_candidate(bits_float(low), INT32_MAX);
    }
    size_t count = dse_row_between(s->weights, n_tokens, bits_float(low), bits_float(high), s->candidates);
    if (count == 0) return dse_candidate(bits_float(low), INT32_MAX);
    size_t kept = dse_select_mass(s->candidates, count, target - above);
    if (n_high == 0) *n = kept;
    uint64_t last = s->candidates[0];
    for (size_t i = 1; i < kept; i++)
        if (s->candidates[i] < last) last = s->candidates[i];
    return last;
}

/* Draws in the order of ids from all weights down to the boundary. */
static int32_t draw_from_weights(struct dse_sampler *s, uint64_t boundary, int32_t best, double u)
{
    float least = dse_candidate_value(boundary);
    size_t n = (size_t)s->n_tokens, count;
    dse_row_clear_equal(s->weights, (size_t)dse_candidate_id(boundary) + 1, n, least); /* higher ids are out */
    double left = u * dse_row_mass(s->weights, n, least, s->block_sums, &count);
    size_t n_blocks = (n + DSE_ROW_BLOCK - 1) / DSE_ROW_BLOCK, block = 0;
    while (block + 1 < n_blocks && left >= s->block_sums[block])
        left -= s->block_sums[block++];
    for (size_t i = block * DSE_ROW_BLOCK; i < n; i++) { /* rounding may carry the walk beyond the block */
        if (s->weights[i] < least) continue;
        if (left < s->weights[i]) return (int32_t)i;
        left -= s->weights[i];
    }
    return best;
}

static int32_t draw_filtered(struct dse_sampler *s, const float *logits, int32_t best, float scale, double u)
{
    const struct dse_sampling *p = &s->params;
    double total = dse_row_weights(logits, (size_t)s->n_tokens, logits[best], scale, s->weights);
    uint64_t boundary = p->min_p > 0 ? dse_candidate(p->min_p, INT32_MAX) : 0;
    if (p->top_p < 1) {
        size_t n;
        uint64_t last = find_nucleus(s, total, p->top_p * total, &n);
        if (n > 0 && p->min_p > 0) n = apply_min_p(s->candidates, n, p->min_p);
        if (n > 0) return draw_from_candidates(s->candidates, n, u);
        if (last > boundary) boundary = last;
    }
    return draw_from_weights(s, boundary, best, u);
}

static int32_t choose(struct dse_sampler *s, const float *logits, uint64_t sequence, uint64_t position)
{
    const struct dse_sampling *p = &s->params;
    int32_t best = dse_row_argmax(logits, (size_t)s->n_tokens);
    if (best < 0 || is_greedy(p) || isinf(logits[best])) return best;
    float max = logits[best], scale = 1 / p->temperature;
    double u = dse_philox_uniform(p->seed, sequence, position);
    if (has_top_k(s)) return draw_from_top_k(s, logits, max, scale, u);
    if (s->weights) return draw_filtered(s, logits, best, scale, u);
    return draw_from_row(s, logits, max, scale, u);
}

/* No logit is left to choose: NaN is the model's fault, anything else what the request forbids. */
static enum dse_status nothing_to_choose(const struct dse_sampler *s, const float *logits, bool masked,
                                         struct dse_error *err)
{
    for (int i = 0; i < s->n_tokens; i++)
        if (isnan(logits[i]))
            return dse_fail(err, DSE_ERR_INTERNAL, "no token can be chosen: the model's logits are not numbers");
    if (masked)
        return dse_fail_at(err, DSE_ERR_INVALID, "grammar", -1,
                           "grammar: no token that the request allows can continue the text here");
    return dse_fail_at(err, DSE_ERR_INVALID, "logit_bias", -1, "logit_bias: every token is forbidden");
}

enum dse_status dse_sampler_sample(struct dse_sampler *s, float *logits, const uint64_t *mask, const int32_t *banned,
                                   int n_banned, uint64_t sequence, uint64_t position, struct dse_sample *out,
                                   struct dse_error *err)
{
    struct raw_distribution raw = {0};
    bool logprobs = s->params.top_logprobs >= 0;
    out->token = -1;
    out->logprob = 0;
    out->n_top = 0;
    if (logprobs) {
        raw = describe(s, logits);
        fill_top(s, logits, &raw, out);
    }
    change_logits(s, logits);
    if (mask) apply_mask(logits, s->n_tokens, mask);
    for (int i = 0; i < n_banned; i++)
        if (banned[i] >= 0 && banned[i] < s->n_tokens) logits[banned[i]] = -INFINITY;
    out->token = choose(s, logits, sequence, position);
    if (out->token < 0) return nothing_to_choose(s, logits, mask != NULL, err);
    if (logprobs) out->logprob = log_probability(&raw, raw_logit(s, logits, out->token));
    return DSE_OK;
}
