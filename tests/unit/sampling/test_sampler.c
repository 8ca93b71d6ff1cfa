/* Sampler: distributions against tests/data/sampling/cases.json (tools/make_sampler_cases.py, float64, full sorts), and
 * against a plain sort on whole vocabularies; replays; values out of range. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "base/alloc.h"
#include "base/json.h"
#include "base/random.h"
#include "engine/sampler.h"
#include "engine/sampler_math.h"
#include "engine/sampler_select.h"

#define N_DRAWS    40000
#define VOCABULARY 152000

static const struct dse_sampling NEUTRAL = {
    .temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 42, .top_logprobs = -1};

static struct dse_sampler *open_sampler(const struct dse_sampling *params, int n_vocab, int n_tokens)
{
    struct dse_sampler *s = NULL;
    struct dse_error err;
    if (dse_sampler_create(params, n_vocab, n_tokens, 4096, &s, &err) != DSE_OK) fail_msg("%s", err.message);
    return s;
}

static struct dse_sample sample(struct dse_sampler *s, float *logits, uint64_t position)
{
    struct dse_sample out;
    struct dse_error err;
    dse_alloc_forbid_begin();
    enum dse_status status = dse_sampler_sample(s, logits, NULL, NULL, 0, 0, position, &out, &err);
    dse_alloc_forbid_end();
    if (status != DSE_OK) fail_msg("%s", err.message);
    return out;
}

/* Normal numbers, the same on every machine. */
static void fill_logits(float *x, int n, uint64_t seed, float spread)
{
    for (int i = 0; i < n; i++) {
        double sum = 0;
        for (int j = 0; j < 6; j++)
            sum += dse_philox_uniform(seed, (uint64_t)j, (uint64_t)i);
        x[i] = (float)((sum - 3) * 1.41421356 * spread);
    }
}

/* ---- cases from outside -------------------------------------------------------------------------------------- */

struct test_case {
    const char *name;
    int n_vocab, n_tokens, n_banned, n_prompt, n_output;
    float logits[1500];
    double probs[1500], logprobs[1500];
    uint64_t mask[24];
    bool has_mask;
    int32_t banned[8], prompt[32], output[32];
    struct dse_logit_bias bias[16];
    struct dse_sampling params;
    int greedy;
};

static double number(json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

static int read_ids(json_t *array, int32_t *out, int max)
{
    int n = (int)json_array_size(array);
    assert_true(n <= max);
    for (int i = 0; i < n; i++)
        out[i] = (int32_t)json_integer_value(json_array_get(array, (size_t)i));
    return n;
}

static void read_case(json_t *json, struct test_case *c)
{
    memset(c, 0, sizeof *c);
    c->name = json_string_value(json_object_get(json, "name"));
    json_t *logits = json_object_get(json, "logits"), *logprobs = json_object_get(json, "logprobs");
    c->n_vocab = (int)json_array_size(logits);
    assert_true(c->n_vocab > 0 && c->n_vocab <= 1500);
    for (int i = 0; i < c->n_vocab; i++) {
        c->logits[i] = (float)json_number_value(json_array_get(logits, (size_t)i));
        c->logprobs[i] = json_number_value(json_array_get(logprobs, (size_t)i));
    }
    size_t i;
    json_t *item;
    json_array_foreach(json_object_get(json, "probs"), i, item)
        c->probs[json_integer_value(json_array_get(item, 0))] = json_number_value(json_array_get(item, 1));
    c->n_tokens = (int)number(json, "n_tokens");
    c->greedy = (int)number(json, "greedy");
    c->n_banned = read_ids(json_object_get(json, "banned"), c->banned, 8);
    c->n_prompt = read_ids(json_object_get(json, "prompt"), c->prompt, 32);
    c->n_output = read_ids(json_object_get(json, "output"), c->output, 32);
    json_t *allowed = json_object_get(json, "allowed");
    c->has_mask = json_is_array(allowed);
    json_array_foreach(allowed, i, item) c->mask[json_integer_value(item) / 64] |= 1ull
                                                                                   << (json_integer_value(item) % 64);
    json_t *p = json_object_get(json, "params");
    c->params = (struct dse_sampling){.temperature = (float)number(p, "temperature"),
                                      .top_k = (int)number(p, "top_k"),
                                      .top_p = (float)number(p, "top_p"),
                                      .min_p = (float)number(p, "min_p"),
                                      .repetition_penalty = (float)number(p, "repetition_penalty"),
                                      .presence_penalty = (float)number(p, "presence_penalty"),
                                      .frequency_penalty = (float)number(p, "frequency_penalty"),
                                      .seed = 7,
                                      .logit_bias = c->bias,
                                      .top_logprobs = -1};
    json_array_foreach(json_object_get(json, "logit_bias"), i, item)
        c->bias[c->params.n_logit_bias++] = (struct dse_logit_bias){
        (int32_t)json_integer_value(json_array_get(item, 0)), (float)json_number_value(json_array_get(item, 1))};
}

static struct dse_sample draw(struct dse_sampler *s, const struct test_case *c, uint64_t position)
{
    float logits[1500];
    struct dse_sample out;
    struct dse_error err;
    memcpy(logits, c->logits, sizeof logits);
    if (dse_sampler_sample(s, logits, c->has_mask ? c->mask : NULL, c->banned, c->n_banned, 3, position, &out, &err) !=
        DSE_OK)
        fail_msg("%s: %s", c->name, err.message);
    return out;
}

static struct dse_sampler *open_case(const struct test_case *c, const struct dse_sampling *params)
{
    struct dse_sampler *s = open_sampler(params, c->n_vocab, c->n_tokens);
    dse_sampler_observe(s, c->prompt, c->n_prompt, true);
    dse_sampler_observe(s, c->output, c->n_output, false);
    return s;
}

/* Only kept tokens are drawn, all kept tokens are drawn, and as often as they should be (chi-square, rare ones
 * together). Seeds are fixed: this passes or fails for ever. */
static void check_draws(const struct test_case *c)
{
    static int counts[1500];
    memset(counts, 0, sizeof counts);
    int n_draws = c->n_vocab > 200 ? N_DRAWS / 4 : N_DRAWS;
    struct dse_sampler *s = open_case(c, &c->params);
    for (int i = 0; i < n_draws; i++)
        counts[draw(s, c, (uint64_t)i).token]++;
    dse_sampler_free(s);
    double chi_square = 0, rare_expected = 0;
    int cells = 0, rare_count = 0;
    for (int id = 0; id < c->n_vocab; id++) {
        double expected = c->probs[id] * n_draws;
        if (expected == 0 && counts[id] > 0) fail_msg("%s: token %d was filtered, but drawn", c->name, id);
        if (expected > 30 && counts[id] == 0) fail_msg("%s: token %d is never drawn", c->name, id);
        if (expected < 8) {
            rare_expected += expected;
            rare_count += counts[id];
            continue;
        }
        chi_square += (counts[id] - expected) * (counts[id] - expected) / expected;
        cells++;
    }
    if (rare_expected > 8)
        chi_square += (rare_count - rare_expected) * (rare_count - rare_expected) / rare_expected, cells++;
    if (cells < 2) return;
    double freedom = cells - 1, limit = freedom + 3.1 * sqrt(2 * freedom) + 6; /* about 1 in 1000 */
    if (chi_square > limit) fail_msg("%s: chi-square %g with %g degrees of freedom", c->name, chi_square, freedom);
}

static void check_greedy_and_logprobs(const struct test_case *c)
{
    struct dse_sampling params = c->params;
    params.temperature = 0;
    params.top_logprobs = 5;
    struct dse_sampler *s = open_case(c, &params);
    struct dse_sample out = draw(s, c, 0);
    assert_int_equal(out.token, c->greedy);
    assert_true(fabs(out.logprob - c->logprobs[out.token]) < 2e-5);
    assert_int_equal(out.n_top, 5);
    for (int i = 0; i < 5; i++) {
        int n_larger = 0;
        assert_true(out.top[i].token < c->n_tokens);
        assert_true(fabs(out.top[i].logprob - c->logprobs[out.top[i].token]) < 2e-5);
        for (int id = 0; id < c->n_tokens; id++)
            n_larger += c->logits[id] > c->logits[out.top[i].token];
        assert_int_equal(n_larger, i);
    }
    dse_sampler_free(s);
}

static void distributions_match_the_published_definitions(void **state)
{
    char path[1024];
    json_t *json = NULL;
    struct dse_error err;
    static struct test_case c;
    assert_non_null(getenv("DSE_TEST_DATA"));
    snprintf(path, sizeof path, "%s/sampling/cases.json", getenv("DSE_TEST_DATA"));
    if (dse_json_read(path, 8u << 20, &json, &err) != DSE_OK) fail_msg("%s", err.message);
    size_t i;
    json_t *item;
    json_array_foreach(json_object_get(json, "cases"), i, item)
    {
        read_case(item, &c);
        check_draws(&c);
        check_greedy_and_logprobs(&c);
    }
    assert_true(i >= 30);
    json_decref(json);
}

/* ---- selection on a whole vocabulary against a sort ----------------------------------------------------------- */

static int descending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

static void selection_equals_a_sort(void **state)
{
    static float x[VOCABULARY];
    static uint64_t sorted[VOCABULARY], out[VOCABULARY];
    for (int kind = 0; kind < 5; kind++) {
        fill_logits(x, VOCABULARY, (uint64_t)kind, 3);
        for (int i = 0; i < VOCABULARY; i++) {
            if (kind == 1) x[i] = (float)i;       /* every element is a new maximum */
            if (kind == 2) x[i] = (float)(i % 7); /* ties */
            if (kind == 3) x[i] = 1;
            if (kind == 4 && i % 3 == 0) x[i] = i % 2 ? NAN : -INFINITY;
        }
        int n = 0;
        for (int i = 0; i < VOCABULARY; i++)
            if (x[i] > -INFINITY) sorted[n++] = dse_candidate(x[i], i);
        qsort(sorted, (size_t)n, sizeof *sorted, descending);
        assert_int_equal(dse_row_argmax(x, VOCABULARY), dse_candidate_id(sorted[0]));
        static const int KS[] = {1, 2, 20, 40, 1000, 60000, 100000};
        for (size_t k = 0; k < sizeof KS / sizeof *KS; k++) {
            size_t capacity = 2 * KS[k] < VOCABULARY ? 2 * (size_t)KS[k] : VOCABULARY;
            size_t count = dse_row_top_k(x, VOCABULARY, (size_t)KS[k], out, capacity);
            assert_int_equal(count, KS[k] < n ? KS[k] : n);
            qsort(out, count, sizeof *out, descending);
            assert_memory_equal(out, sorted, count * sizeof *out);
        }
        size_t count = dse_row_between(x, VOCABULARY, 2.5f, INFINITY, out);
        qsort(out, count, sizeof *out, descending);
        assert_memory_equal(out, sorted, count * sizeof *out);
        assert_true(count == (size_t)n || dse_candidate_value(sorted[count]) < 2.5f);
    }
}

static void mass_selection_keeps_the_fewest(void **state)
{
    static uint64_t candidates[5000], sorted[5000];
    for (int round = 0; round < 40; round++) {
        int n = round < 20 ? 1 + round : 5000;
        double total = 0;
        for (int i = 0; i < n; i++) {
            float w = round % 3 == 0 ? 0.5f : (float)exp(-12 * dse_philox_uniform(9, (uint64_t)round, (uint64_t)i));
            candidates[i] = dse_candidate(w, i);
            total += w;
        }
        memcpy(sorted, candidates, sizeof sorted);
        qsort(sorted, (size_t)n, sizeof *sorted, descending);
        for (int step = 1; step < 20; step++) {
            double mass = total * (step * 0.05 - 0.013), sum = 0;
            size_t expected = 0;
            while (sum < mass)
                sum += dse_candidate_value(sorted[expected++]);
            assert_int_equal(dse_select_mass(candidates, (size_t)n, mass), expected);
            qsort(candidates, expected, sizeof *candidates, descending);
            assert_memory_equal(candidates, sorted, expected * sizeof *sorted);
        }
        assert_int_equal(dse_select_mass(candidates, (size_t)n, 2 * total), n);
        assert_int_equal(dse_select_mass(candidates, (size_t)n, 0), 1);
    }
}

static void exp_is_accurate(void **state)
{
    for (int i = 0; i <= 870000; i++) {
        float x = -i * 1e-4f;
        double expected = exp((double)x), got = exp_one(x);
        if (x > -87 && fabs(got - expected) > 3e-7 * expected) fail_msg("exp(%.9g) = %.9g", x, got);
    }
    assert_true(exp_one(0) == 1);
    assert_true(exp_one(-87.5f) == 0 && exp_one(-1e30f) == 0 && exp_one(-INFINITY) == 0 && exp_one(NAN) == 0);
}

/* top-p on a large vocabulary: the nucleus by a sort in double, then membership of many draws. */
static void top_p_on_a_large_vocabulary_draws_only_the_nucleus(void **state)
{
    static float x[VOCABULARY], work[VOCABULARY];
    static uint64_t sorted[VOCABULARY];
    static char in_nucleus[VOCABULARY];
    static const struct {
        float top_p, temperature, spread, min_p;
    } CASES[] = {{0.9f, 1, 3, 0}, {0.5f, 0.7f, 3, 0}, {0.95f, 1.5f, 1, 0}, {0.99f, 1, 5, 0.01f}, {0.999f, 0.3f, 4, 0}};
    for (size_t c = 0; c < sizeof CASES / sizeof *CASES; c++) {
        fill_logits(x, VOCABULARY, 100 + c, CASES[c].spread);
        double total = 0, sum = 0;
        for (int i = 0; i < VOCABULARY; i++)
            sorted[i] = dse_candidate(x[i], i);
        qsort(sorted, VOCABULARY, sizeof *sorted, descending);
        double max = dse_candidate_value(sorted[0]), t = CASES[c].temperature;
        for (int i = 0; i < VOCABULARY; i++)
            total += exp((x[i] - max) / t);
        memset(in_nucleus, 0, sizeof in_nucleus);
        int size = 0;
        for (; sum < (CASES[c].top_p + 1e-5) * total && size < VOCABULARY; size++) {
            double weight = exp((dse_candidate_value(sorted[size]) - max) / t);
            if (weight < CASES[c].min_p - 1e-6) break;
            in_nucleus[dse_candidate_id(sorted[size])] = 1;
            sum += weight;
        }
        struct dse_sampling params = NEUTRAL;
        params.top_p = CASES[c].top_p;
        params.temperature = CASES[c].temperature;
        params.min_p = CASES[c].min_p;
        struct dse_sampler *s = open_sampler(&params, VOCABULARY, VOCABULARY);
        double hits = 0, expected = 0; /* of the ten largest */
        for (int i = 0; i < 10; i++)
            expected += exp((dse_candidate_value(sorted[i]) - max) / t) / sum;
        for (int i = 0; i < 400; i++) {
            memcpy(work, x, sizeof x);
            int32_t token = sample(s, work, (uint64_t)i).token;
            if (!in_nucleus[token]) fail_msg("case %zu: token %d is outside the nucleus of %d", c, token, size);
            hits += x[token] >= dse_candidate_value(sorted[9]);
        }
        double deviation = sqrt(400 * expected * (1 - expected));
        assert_true(fabs(hits - 400 * expected) < 4 * deviation + 1);
        dse_sampler_free(s);
    }
}

/* ---- properties ---------------------------------------------------------------------------------------------- */

static void ties_go_to_the_lowest_id(void **state)
{
    float x[700];
    struct dse_sampling params = NEUTRAL;
    params.temperature = 0;
    struct dse_sampler *s = open_sampler(&params, 700, 700);
    for (int first = 0; first < 700; first += 13) {
        for (int i = 0; i < 700; i++)
            x[i] = i == first || i == 699 || i == (first + 600) % 700 ? 2.5f : -1;
        int32_t lowest = (first + 600) % 700 < first ? (first + 600) % 700 : first;
        assert_int_equal(sample(s, x, 0).token, lowest);
    }
    dse_sampler_free(s);
    /* top-k of equal logits: exactly k, the lowest ids. */
    params = NEUTRAL;
    params.top_k = 3;
    s = open_sampler(&params, 700, 700);
    bool seen[3] = {false};
    for (int i = 0; i < 200; i++) {
        for (int j = 0; j < 700; j++)
            x[j] = 1;
        int32_t token = sample(s, x, (uint64_t)i).token;
        assert_in_range(token, 0, 2);
        seen[token] = true;
    }
    assert_true(seen[0] && seen[1] && seen[2]);
    dse_sampler_free(s);
}

static void draws_depend_on_seed_sequence_and_position_alone(void **state)
{
    static float x[5000], work[5000];
    fill_logits(x, 5000, 1, 2);
    struct dse_sampling params = NEUTRAL;
    for (int kind = 0; kind < 3; kind++) {
        params.top_p = kind == 1 ? 0.9f : 1;
        params.top_k = kind == 2 ? 50 : 0;
        int32_t tokens[2][64];
        for (int round = 0; round < 2; round++) {
            struct dse_sampler *s = open_sampler(&params, 5000, 5000);
            for (int j = 0; j < 64; j++) {
                int at = round ? 63 - j : j; /* in another order, with other draws in between */
                memcpy(work, x, sizeof x);
                tokens[round][at] = sample(s, work, (uint64_t)at).token;
                memcpy(work, x, sizeof x);
                if (round) sample(s, work, 1000 + (uint64_t)at);
            }
            dse_sampler_free(s);
        }
        assert_memory_equal(tokens[0], tokens[1], sizeof tokens[0]);
        int n_same = 0;
        struct dse_sampling other = params;
        other.seed++;
        struct dse_sampler *s = open_sampler(&other, 5000, 5000);
        for (int j = 0; j < 64; j++) {
            memcpy(work, x, sizeof x);
            n_same += sample(s, work, (uint64_t)j).token == tokens[0][j];
        }
        assert_true(n_same < 32);
        dse_sampler_free(s);
        n_same = 0;
        s = open_sampler(&params, 5000, 5000);
        for (int j = 0; j < 64; j++) {
            struct dse_sample out;
            memcpy(work, x, sizeof x);
            assert_int_equal(dse_sampler_sample(s, work, NULL, NULL, 0, 1, (uint64_t)j, &out, NULL), DSE_OK);
            n_same += out.token == tokens[0][j];
        }
        assert_true(n_same < 32);
        dse_sampler_free(s);
    }
}

static void not_a_number_is_never_chosen(void **state)
{
    static const struct {
        float temperature, top_p, min_p;
        int top_k;
    } CASES[] = {{0, 1, 0, 0},        {1, 1, 0, 0},      {1, 0.9f, 0, 0},     {1, 1, 0.1f, 0},
                 {1, 1, 0, 5},        {1e-30f, 1, 0, 0}, {3e38f, 1, 0, 0},    {3e38f, 0.5f, 0.5f, 0},
                 {1e-4f, 0.5f, 0, 0}, {1e-4f, 1, 1, 7},  {3e38f, 1, 1e-6f, 3}};
    float x[100];
    for (size_t c = 0; c < sizeof CASES / sizeof *CASES; c++) {
        struct dse_sampling params = NEUTRAL;
        params.temperature = CASES[c].temperature;
        params.top_p = CASES[c].top_p;
        params.min_p = CASES[c].min_p;
        params.top_k = CASES[c].top_k;
        params.top_logprobs = 20;
        struct dse_sampler *s = open_sampler(&params, 100, 99);
        for (uint64_t position = 0; position < 200; position++) {
            for (int i = 0; i < 100; i++)
                x[i] = i % 5 == 0 ? NAN : i % 5 == 1 ? -INFINITY : (i % 7) * 1e3f - 3e3f;
            struct dse_sample out = sample(s, x, position);
            assert_true(out.token >= 0 && out.token < 99 && out.token % 5 > 1);
            assert_true(isfinite(out.logprob) && out.logprob <= 0);
            for (int i = 0; i < out.n_top; i++)
                assert_true(isfinite(out.top[i].logprob));
        }
        for (int i = 0; i < 100; i++)
            x[i] = i == 50 ? INFINITY : 3e38f;
        struct dse_sample out = sample(s, x, 0);
        assert_int_equal(out.token, 50);
        assert_true(out.logprob == 0);
        dse_sampler_free(s);
    }
}

static void nothing_left_names_what_forbids_everything(void **state)
{
    for (int temperature = 0; temperature < 2; temperature++) {
        struct dse_sampling params = NEUTRAL;
        params.temperature = (float)temperature;
        params.top_p = temperature ? 0.5f : 1;
        params.top_logprobs = 3;
        struct dse_sampler *s = open_sampler(&params, 80, 70);
        struct dse_sample out;
        struct dse_error err;
        float x[80];
        uint64_t mask[2] = {0, ~0ull << 6}; /* only ids beyond the vocabulary */
        for (int i = 0; i < 80; i++)
            x[i] = 1;
        assert_int_equal(dse_sampler_sample(s, x, mask, NULL, 0, 0, 0, &out, &err), DSE_ERR_INVALID);
        assert_string_equal(err.file, "grammar");
        for (int i = 0; i < 80; i++)
            x[i] = NAN;
        assert_int_equal(dse_sampler_sample(s, x, NULL, NULL, 0, 0, 0, &out, &err), DSE_ERR_INTERNAL);
        assert_non_null(strstr(err.message, "not numbers"));
        mask[1] = 1; /* id 64, which is banned */
        for (int i = 0; i < 80; i++)
            x[i] = 1;
        static const int32_t BANNED[] = {-1, 64, 80, INT32_MAX};
        assert_int_equal(dse_sampler_sample(s, x, mask, BANNED, 4, 0, 0, &out, &err), DSE_ERR_INVALID);
        mask[1] = 3;
        for (int i = 0; i < 80; i++)
            x[i] = 1;
        assert_int_equal(dse_sampler_sample(s, x, mask, BANNED, 4, 0, 0, &out, &err), DSE_OK);
        assert_int_equal(out.token, 65);
        dse_sampler_free(s);
    }
}

static void observing_ignores_foreign_ids_and_overlong_histories(void **state)
{
    struct dse_sampling params = NEUTRAL;
    params.temperature = 0;
    params.frequency_penalty = 1;
    struct dse_sampler *s = NULL;
    struct dse_error err;
    assert_int_equal(dse_sampler_create(&params, 50, 40, 3, &s, &err), DSE_OK);
    static const int32_t IDS[] = {-5, 40, 49, INT32_MAX, 1, 1, 2, 3, 4, 5, 1};
    dse_sampler_observe(s, IDS, 11, false);
    float x[50] = {0};
    x[1] = 2.9f;
    x[0] = 0.5f;
    assert_int_equal(sample(s, x, 0).token, 0); /* token 1: 2.9 - 3 */
    dse_sampler_free(s);
}

static void values_out_of_range_are_refused_by_name(void **state)
{
    struct dse_logit_bias bias[2] = {{3, 1}, {100, 1}}, nan_bias[1] = {{3, NAN}};
    struct {
        const char *field;
        struct dse_sampling params;
    } cases[40];
    int n = 0;
#define BAD(name, value)                                                                                               \
    do {                                                                                                               \
        cases[n].field = #name;                                                                                        \
        cases[n].params = NEUTRAL;                                                                                     \
        cases[n++].params.name = value;                                                                                \
    } while (0)
    BAD(temperature, -0.1f);
    BAD(temperature, NAN);
    BAD(temperature, INFINITY);
    BAD(top_k, -1);
    BAD(top_p, -0.1f);
    BAD(top_p, 1.1f);
    BAD(top_p, NAN);
    BAD(min_p, -0.1f);
    BAD(min_p, 1.5f);
    BAD(min_p, NAN);
    BAD(repetition_penalty, 0);
    BAD(repetition_penalty, -1);
    BAD(repetition_penalty, NAN);
    BAD(presence_penalty, NAN);
    BAD(presence_penalty, INFINITY);
    BAD(frequency_penalty, -INFINITY);
    BAD(top_logprobs, -2);
    BAD(top_logprobs, 21);
    BAD(logit_bias, bias);
    cases[n - 1].params.n_logit_bias = 2;
    BAD(logit_bias, nan_bias);
    cases[n - 1].params.n_logit_bias = 1;
    BAD(logit_bias, bias);
    cases[n - 1].params.n_logit_bias = 1025;
    BAD(logit_bias, bias);
    cases[n - 1].params.n_logit_bias = -1;
    for (int i = 0; i < n; i++) {
        struct dse_sampler *s = (void *)1;
        struct dse_error err;
        assert_int_equal(dse_sampler_create(&cases[i].params, 100, 100, 10, &s, &err), DSE_ERR_INVALID);
        assert_null(s);
        assert_string_equal(err.file, cases[i].field);
    }
}

static void lack_of_memory_is_reported(void **state)
{
    struct dse_logit_bias bias[1] = {{3, 1}};
    struct dse_sampling params = NEUTRAL;
    params.logit_bias = bias;
    params.n_logit_bias = 1;
    params.top_p = 0.5f;
    params.presence_penalty = 1;
    size_t live = dse_mem_live_bytes(DSE_MEM_REQUEST);
    bool succeeded = false;
    for (long n = 1; n < 20 && !succeeded; n++) {
        struct dse_sampler *s = NULL;
        struct dse_error err;
        dse_alloc_fail_after(n);
        enum dse_status status = dse_sampler_create(&params, 100, 100, 10, &s, &err);
        dse_alloc_fail_after(0);
        succeeded = status == DSE_OK;
        if (!succeeded) assert_int_equal(status, DSE_ERR_NO_MEMORY);
        dse_sampler_free(s);
        assert_int_equal(dse_mem_live_bytes(DSE_MEM_REQUEST), live);
    }
    assert_true(succeeded);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(distributions_match_the_published_definitions),
        cmocka_unit_test(selection_equals_a_sort),
        cmocka_unit_test(mass_selection_keeps_the_fewest),
        cmocka_unit_test(exp_is_accurate),
        cmocka_unit_test(top_p_on_a_large_vocabulary_draws_only_the_nucleus),
        cmocka_unit_test(ties_go_to_the_lowest_id),
        cmocka_unit_test(draws_depend_on_seed_sequence_and_position_alone),
        cmocka_unit_test(not_a_number_is_never_chosen),
        cmocka_unit_test(nothing_left_names_what_forbids_everything),
        cmocka_unit_test(observing_ignores_foreign_ids_and_overlong_histories),
        cmocka_unit_test(values_out_of_range_are_refused_by_name),
        cmocka_unit_test(lack_of_memory_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
