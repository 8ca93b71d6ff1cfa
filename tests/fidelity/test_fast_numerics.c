/* Fast numerics (prompts in expanded form) against Hugging Face's logits, and what their results depend on.
 *
 * Both forms of latent attention are the same sums in another order, and where weights are quantized, s8 rounding of
 * other vectors (the latents, not the queries). So the bounds of the absorbed form hold: f32 arithmetic 1e-3, keys and
 * values stored as f16 0.02, quantized activations no farther from exact arithmetic than half as much again as the
 * absorbed form, whose rounding is of the same kind but not the same. A counter and the bits tell that the form in
 * question was used at all.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/counters.h"
#include "engine/model.h"
#include "engine_support.h"
#include "quantized.h"
#include "reference.h"

#define F32_BOUND     1e-3
#define DEFAULT_BOUND 0.02

/* expanded: rows of prompt 2, computed at once, that attend in expanded form. The indexer of deepseek_v32 chooses among
 * more than 24 keys, too few to begin with; that of v32_all_keys never does. */
static const struct {
    const char *model, *reference;
    int expanded;
} cases[] = {
    {"deepseek_v2", "deepseek_v2", 230},
    {"deepseek_v3", "deepseek_v3", 230},
    {"deepseek_v3_fp8", "deepseek_v3_fp8", 230},
    {"deepseek_v32", "deepseek_v32", 0},
    {"gguf/deepseek_v2.gguf", "deepseek_v2", 230},
    {"gguf/deepseek_v3.gguf", "deepseek_v3", 230},
    {"variants/v2_odd", "variants/v2_odd", 230},
    {"variants/v2_groups_of_one", "variants/v2_groups_of_one", 230},
    {"variants/v2_all_groups", "variants/v2_all_groups", 230},
    {"variants/v3_odd", "variants/v3_odd", 230},
    {"variants/v3_no_q_lora", "variants/v3_no_q_lora", 230},
    {"variants/v3_fp8_edges", "variants/v3_fp8_edges", 230},
    {"variants/v32_all_keys", "variants/v32_all_keys", 101},
    {"llama_linear", "llama_linear", 0},
};
enum { N_CASES = sizeof cases / sizeof *cases };

static struct dse_model *open_path(const char *path, struct dse_model_options options)
{
    struct dse_model *model = NULL;
    struct dse_error error = {0};
    if (options.n_threads == 0) options.n_threads = 2;
    if (dse_model_open(path, &options, &model, &error) != DSE_OK) fail_msg("%s: %s", path, error.message);
    return model;
}

static struct dse_model *open_fast(const char *name, struct dse_model_options options)
{
    options.numerics = DSE_NUMERICS_FAST;
    return open_path(reference_path(name), options);
}

static struct reference *open_reference_of(const char *folder)
{
    char path[96];
    (void)snprintf(path, sizeof path, "%s/reference.safetensors", folder);
    return reference_open(path);
}

static float *logits_of(struct dse_model *model, const int32_t *ids, int n_ids, int chunk)
{
    struct dse_model_info info;
    struct dse_error error = {0};
    dse_model_get_info(model, &info);
    float *logits = calloc((size_t)n_ids * (size_t)info.n_vocab, sizeof *logits);
    assert_non_null(logits);
    if (dse_eval_logits(model, ids, n_ids, chunk, logits, &error) != DSE_OK) fail_msg("%s", error.message);
    return logits;
}

/* Prompt 2 in one step. *expanded: rows that took the form. */
static struct comparison compare(struct dse_model *model, const struct reference *reference, uint64_t *expanded)
{
    struct dse_model_info info;
    int n_ids;
    const int32_t *ids = reference_i32(reference, 2, "ids", &n_ids);
    const uint64_t before = dse_counter_get(DSE_COUNTER_EXPANDED_TOKENS);
    dse_model_get_info(model, &info);
    float *logits = logits_of(model, ids, n_ids, 0);
    *expanded = dse_counter_get(DSE_COUNTER_EXPANDED_TOKENS) - before;
    struct comparison c = reference_compare(reference, 2, logits, info.n_vocab);
    print_message("%s: %d rows expanded, max %.2e median %.2e cosine %.6f argmax %d/%d\n", info.path, (int)*expanded,
                  c.max_error, c.median_error, c.cosine, c.n_argmax_equal, c.n_positions);
    free(logits);
    return c;
}

static void logits_equal_hugging_face_in_f32(void **state)
{
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        struct dse_model *model = open_fast(cases[i].model, (struct dse_model_options){.compute = DSE_COMPUTE_F32});
        struct reference *reference = open_reference_of(cases[i].reference);
        uint64_t expanded;
        struct comparison c = compare(model, reference, &expanded);
        if (!(c.max_error <= F32_BOUND)) fail_msg("%s: error %g", cases[i].model, c.max_error);
        assert_int_equal(c.n_argmax_equal, c.n_positions);
        assert_int_equal(expanded, cases[i].expanded);
        reference_close(reference);
        dse_model_unref(model);
    }
}

static void logits_stay_close_in_default_compute_with_either_cache(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        enum dse_kv_cache cache;
        double median, argmax_share; /* the absorbed form's bounds: test_reference_logits.c */
    } kinds[] = {
        {"deepseek_v2", DSE_KV_CACHE_F16, DEFAULT_BOUND, 0.99},
        {"deepseek_v3", DSE_KV_CACHE_F16, DEFAULT_BOUND, 0.99},
        {"deepseek_v3_fp8", DSE_KV_CACHE_F16, DEFAULT_BOUND, 0.99},
        {"deepseek_v2", DSE_KV_CACHE_Q8_0, 0.15, 0.95},
        {"deepseek_v3", DSE_KV_CACHE_Q8_0, 0.5, 0.85},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct dse_model *model = open_fast(kinds[i].model, (struct dse_model_options){.kv_cache = kinds[i].cache});
        struct reference *reference = open_reference_of(kinds[i].model);
        uint64_t expanded;
        struct comparison c = compare(model, reference, &expanded);
        if (kinds[i].cache == DSE_KV_CACHE_F16 && !(c.max_error <= DEFAULT_BOUND))
            fail_msg("%s: error %g", kinds[i].model, c.max_error);
        if (!(c.median_error <= kinds[i].median && c.cosine >= 0.99))
            fail_msg("%s: median %g cosine %g", kinds[i].model, c.median_error, c.cosine);
        assert_true(c.n_argmax_equal >= kinds[i].argmax_share * c.n_positions);
        assert_int_equal(expanded, 230);
        reference_close(reference);
        dse_model_unref(model);
    }
}

/* ---- quantized weights, and what results depend on --------------------------------------------------------------- */

enum { PROMPT = 300 };

struct quantized {
    char folder[64], *path;
    int32_t ids[PROMPT];
};

static int write_quantized(void **state)
{
    struct quantized *q = calloc(1, sizeof *q);
    if (q == NULL) return -1;
    memcpy(q->folder, "/tmp/dse-fast-XXXXXX", sizeof "/tmp/dse-fast-XXXXXX");
    if (mkdtemp(q->folder) == NULL) return -1;
    q->path = quantized_model_write(q->folder, DSE_TYPE_Q8_0, DSE_TYPE_Q8_0);
    fill_prompt(q->ids, PROMPT, 320, 5);
    *state = q;
    return 0;
}

static int remove_quantized(void **state)
{
    struct quantized *q = *state;
    (void)unlink(q->path);
    free(q->path);
    int rc = rmdir(q->folder);
    free(q);
    return rc;
}

static double deviation(const float *a, const float *b, size_t n)
{
    double squares = 0;
    for (size_t i = 0; i < n; i++)
        squares += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sqrt(squares / (double)n);
}

static void rounding_of_latents_costs_about_what_rounding_of_queries_does(void **state)
{
    const struct quantized *q = *state;
    const size_t n = PROMPT * (size_t)320;
    static const enum dse_kv_cache caches[] = {DSE_KV_CACHE_F16, DSE_KV_CACHE_Q8_0};
    struct dse_model *reference = open_path(q->path, (struct dse_model_options){.compute = DSE_COMPUTE_F32});
    float *expected = logits_of(reference, q->ids, PROMPT, 0);
    for (int i = 0; i < 2; i++) {
        struct dse_model *exact = open_path(q->path, (struct dse_model_options){.kv_cache = caches[i]});
        struct dse_model *fast = open_path(
            q->path, (struct dse_model_options){.numerics = DSE_NUMERICS_FAST, .kv_cache = caches[i]});
        float *a = logits_of(exact, q->ids, PROMPT, 0), *b = logits_of(fast, q->ids, PROMPT, 0);
        const double absorbed = deviation(a, expected, n), expanded = deviation(b, expected, n);
        print_message("quantized weights: rms error %.4f absorbed, %.4f expanded\n", absorbed, expanded);
        if (!(expanded <= 1.5 * absorbed)) fail_msg("rms error %g, absorbed %g", expanded, absorbed);
        assert_memory_not_equal(a, b, n * sizeof *a);
        /* a model opened for fast numerics that is cut too short for them computes the same as any other */
        float *c = logits_of(fast, q->ids, PROMPT, 31);
        assert_memory_equal(a, c, n * sizeof *a);
        free(a);
        free(b);
        free(c);
        dse_model_unref(exact);
        dse_model_unref(fast);
    }
    free(expected);
    dse_model_unref(reference);
}

static void fast_logits_depend_on_the_chunks_but_not_on_threads(void **state)
{
    const struct quantized *q = *state;
    const size_t bytes = PROMPT * (size_t)320 * sizeof(float);
    static const int chunks[] = {300, 100};
    float *by_chunk[2];
    for (int c = 0; c < 2; c++)
        for (int threads = 1; threads <= 6; threads++) { /* beyond 4 there are more than heads */
            struct dse_model *model = open_path(
                q->path, (struct dse_model_options){.numerics = DSE_NUMERICS_FAST, .n_threads = threads});
            float *logits = logits_of(model, q->ids, PROMPT, chunks[c]);
            if (threads > 1) assert_memory_equal(by_chunk[c], logits, bytes);
            if (threads > 1)
                free(logits);
            else
                by_chunk[c] = logits;
            dse_model_unref(model);
        }
    free(by_chunk[0]);
    free(by_chunk[1]);
}

static struct dse_request greedy(const int32_t *prompt, int n_prompt, int max_tokens)
{
    struct dse_request request = dse_request_default;
    request.prompt = prompt;
    request.n_prompt = n_prompt;
    request.max_tokens = max_tokens;
    request.ignore_eos = true;
    request.sampling.temperature = 0;
    request.sampling.top_logprobs = 5;
    return request;
}

/* Latents, not expanded keys, are what the cache holds: an answer goes on from them in absorbed form. */
static void greedy_answers_after_an_expanded_prompt_equal_hugging_face(void **state)
{
    (void)state;
    static const char *const names[] = {"deepseek_v2", "deepseek_v3", "deepseek_v3_fp8", "variants/v3_odd"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct dse_model *model = open_fast(names[i], (struct dse_model_options){.compute = DSE_COMPUTE_F32});
        struct reference *reference = open_reference_of(names[i]);
        struct dse_engine *engine = create_engine(model, (struct dse_engine_options){.max_queue = 4});
        struct dse_model_info info;
        int n_ids, n_greedy;
        const int32_t *ids = reference_i32(reference, 2, "ids", &n_ids);
        const int32_t *expected = reference_i32(reference, 2, "greedy", &n_greedy);
        const uint64_t before = dse_counter_get(DSE_COUNTER_EXPANDED_TOKENS);
        dse_model_get_info(model, &info);
        if (n_greedy > info.context_length - n_ids) n_greedy = (int)(info.context_length - n_ids);
        struct run *run = run_request(engine, greedy(ids, n_ids, n_greedy));
        int same = 0;
        while (same < n_greedy && run->choice[0].tokens[same] == expected[same])
            same++;
        /* where the reference goes on after a stop token, ours chose another */
        if (same < n_greedy && !dse_model_is_stop(model, expected[same]))
            fail_msg("%s: another continuation after %d tokens", names[i], same);
        assert_true(dse_counter_get(DSE_COUNTER_EXPANDED_TOKENS) - before >= 32);
        run_free(run);
        dse_engine_free(engine);
        reference_close(reference);
        dse_model_unref(model);
    }
}

static void models_without_latent_attention_say_that_nothing_changes(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        enum dse_numerics asked, found;
    } kinds[] = {{"llama_linear", DSE_NUMERICS_FAST, DSE_NUMERICS_EXACT},
                 {"deepseek_v1_moe", DSE_NUMERICS_FAST, DSE_NUMERICS_EXACT},
                 {"deepseek_v2", DSE_NUMERICS_EXACT, DSE_NUMERICS_EXACT},
                 {"deepseek_v2", DSE_NUMERICS_FAST, DSE_NUMERICS_FAST}};
    const struct dse_bench_spec spec = {.n_prompt = 40, .n_seqs = 1, .numerics = DSE_NUMERICS_FAST};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct dse_model_info info;
        struct dse_error error;
        double seconds;
        struct dse_model *model = open_path(reference_path(kinds[i].model),
                                            (struct dse_model_options){.numerics = kinds[i].asked});
        dse_model_get_info(model, &info);
        assert_int_equal(info.numerics, kinds[i].found);
        const enum dse_status status = dse_bench_run(model, &spec, 0, &seconds, &error);
        assert_int_equal(status, kinds[i].found == DSE_NUMERICS_FAST ? DSE_OK : DSE_ERR_INVALID);
        if (status != DSE_OK) assert_string_equal(error.file, "numerics");
        dse_model_unref(model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_equal_hugging_face_in_f32),
        cmocka_unit_test(logits_stay_close_in_default_compute_with_either_cache),
        cmocka_unit_test(rounding_of_latents_costs_about_what_rounding_of_queries_does),
        cmocka_unit_test(fast_logits_depend_on_the_chunks_but_not_on_threads),
        cmocka_unit_test(greedy_answers_after_an_expanded_prompt_equal_hugging_face),
        cmocka_unit_test(models_without_latent_attention_say_that_nothing_changes),
    };
    return cmocka_run_group_tests(tests, write_quantized, remove_quantized);
}
