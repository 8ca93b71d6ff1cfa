/* What a row computes depends on nothing but its sequence: not on chunk size, threads, batch mates or set-backs. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/counters.h"
#include "engine_support.h"
#include "quantized.h"
#include "reference.h"

#define PROMPT_TOKENS 150

struct model_case {
    const char *path;            /* NULL: a written one, */
    enum dse_type gate_up, down; /* with experts of these types */
    struct dse_model_options options;
};
static const struct model_case models[] = {
    {.path = "llama_linear"},
    {.path = "gguf/llama_llama3.q4_k_m.gguf"},
    {.path = "gguf/llama_llama3.q4_k_m.gguf", .options = {.compute = DSE_COMPUTE_F32}},
    {.path = "qwen3_yarn"},
    {.path = "qwen2_bias"},
    {.path = "deepseek_v1_moe"},
    {.path = "deepseek_v2"},
    {.path = "deepseek_v2", .options = {.kv_cache = DSE_KV_CACHE_Q8_0}},
    {.path = "gguf/deepseek_v3.gguf"},
    {.path = "deepseek_v3_fp8"},
    {.path = "deepseek_v32"},
    {.path = "variants/v3_fp8_edges"},
    {.path = "variants/v32_odd"},
    {.gate_up = DSE_TYPE_Q4_K, .down = DSE_TYPE_Q6_K},
    {.gate_up = DSE_TYPE_Q8_0, .down = DSE_TYPE_Q8_0},
    {.gate_up = DSE_TYPE_Q4_0, .down = DSE_TYPE_Q4_K, .options = {.kv_cache = DSE_KV_CACHE_Q8_0}},
};
enum { N_MODELS = sizeof models / sizeof *models };

static char folder[] = "/tmp/dse-invariance-XXXXXX";
static char *written[N_MODELS]; /* paths */

static int write_models(void **state)
{
    (void)state;
    if (mkdtemp(folder) == NULL) return -1;
    for (int m = 0; m < N_MODELS; m++)
        if (models[m].path == NULL) written[m] = quantized_model_write(folder, models[m].gate_up, models[m].down);
    return 0;
}

static int remove_models(void **state)
{
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        if (written[m] != NULL) (void)unlink(written[m]);
        free(written[m]);
    }
    return rmdir(folder);
}

static const char *name_of(int m)
{
    return written[m] != NULL ? written[m] : models[m].path;
}

static struct dse_model *open_case(int m, struct dse_model_options options)
{
    struct dse_model *model = NULL;
    struct dse_error error = {0};
    const char *path = written[m] != NULL ? written[m] : reference_path(models[m].path);
    if (dse_model_open(path, &options, &model, &error) != DSE_OK) fail_msg("%s: %s", path, error.message);
    return model;
}

static struct dse_model *open_with_threads(int m, int n_threads)
{
    struct dse_model_options options = models[m].options;
    options.n_threads = n_threads;
    return open_case(m, options);
}

static uint64_t hash_bytes(const void *data, size_t bytes)
{
    const uint8_t *p = data;
    uint64_t hash = 0xCBF29CE484222325u; /* FNV-1a */
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ p[i]) * 0x100000001B3u;
    return hash;
}

static float *logits_of(struct dse_model *model, int chunk, size_t *count)
{
    struct dse_model_info info;
    struct dse_error error = {0};
    int32_t ids[PROMPT_TOKENS];
    dse_model_get_info(model, &info);
    fill_prompt(ids, PROMPT_TOKENS, info.n_vocab, 3);
    *count = PROMPT_TOKENS * (size_t)info.n_vocab;
    float *logits = calloc(*count, sizeof *logits);
    assert_non_null(logits);
    if (dse_eval_logits(model, ids, PROMPT_TOKENS, chunk, logits, &error) != DSE_OK) fail_msg("%s", error.message);
    return logits;
}

static uint64_t logits_hash(struct dse_model *model, int chunk)
{
    size_t count;
    float *logits = logits_of(model, chunk, &count);
    uint64_t hash = hash_bytes(logits, count * sizeof *logits);
    free(logits);
    return hash;
}

static void logits_do_not_depend_on_chunk_size_or_threads(void **state)
{
    (void)state;
    static const int chunks[] = {1, 7, 32, 512};
    for (int m = 0; m < N_MODELS; m++) {
        uint64_t expected = 0;
        for (int threads = 1; threads <= 3; threads++) {
            struct dse_model *model = open_with_threads(m, threads);
            for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
                uint64_t hash = logits_hash(model, chunks[c]);
                if (expected == 0) expected = hash;
                if (hash != expected)
                    fail_msg("%s: other logits with %d threads and chunks of %d", name_of(m), threads, chunks[c]);
            }
            dse_model_unref(model);
        }
    }
}

/* The same wrong number in every batch would be no invariance worth having. */
static void logits_of_quantized_experts_are_close_to_those_of_their_decoded_weights(void **state)
{
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        if (written[m] == NULL) continue;
        struct dse_model *usual = open_with_threads(m, 2);
        struct dse_model *exact = open_case(m, (struct dse_model_options){.n_threads = 2, .compute = DSE_COMPUTE_F32});
        size_t count;
        float *a = logits_of(usual, 32, &count), *b = logits_of(exact, 32, &count);
        double dot = 0, aa = 0, bb = 0;
        for (size_t i = 0; i < count; i++) {
            dot += (double)a[i] * (double)b[i];
            aa += (double)a[i] * (double)a[i];
            bb += (double)b[i] * (double)b[i];
        }
        print_message("%s: cosine %.5f, deviation %.2f\n", name_of(m), dot / sqrt(aa * bb), sqrt(bb / (double)count));
        if (!(dot / sqrt(aa * bb) >= 0.98)) fail_msg("%s: cosine %g", name_of(m), dot / sqrt(aa * bb));
        free(a);
        free(b);
        dse_model_unref(usual);
        dse_model_unref(exact);
    }
}

static struct dse_request sampled_request(const int32_t *prompt, int n_prompt, int max_tokens, uint64_t seed)
{
    struct dse_request request = dse_request_default;
    request.prompt = prompt;
    request.n_prompt = n_prompt;
    request.max_tokens = max_tokens;
    request.ignore_eos = true;
    request.sampling.seed = seed;
    request.sampling.top_logprobs = 0;
    return request;
}

/* The request alone, then among five others of random lengths, on engines with different step sizes. */
static void generated_tokens_do_not_depend_on_load(void **state)
{
    (void)state;
    static const int chunks[] = {512, 1, 37};
    for (int m = 0; m < N_MODELS; m++) {
        struct dse_model *model = open_with_threads(m, 2);
        struct dse_model_info info;
        int32_t prompt[PROMPT_TOKENS], others[5][PROMPT_TOKENS];
        struct run *alone = NULL;
        dse_model_get_info(model, &info);
        fill_prompt(prompt, PROMPT_TOKENS, info.n_vocab, 9);
        for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
            struct dse_engine *engine = create_engine(
                model, (struct dse_engine_options){
                           .context_length = 256, .max_concurrent = 6, .max_queue = 8, .chunk_tokens = chunks[c]});
            struct dse_request request = sampled_request(prompt, 61, 40, 4711);
            if (alone == NULL) alone = run_request(engine, request);
            assert_int_equal(alone->choice[0].n_tokens, 40);
            struct run *crowd[5], *run = run_create();
            for (int i = 0; i < 5; i++) {
                fill_prompt(others[i], PROMPT_TOKENS, info.n_vocab, 100 + (uint64_t)i);
                crowd[i] = run_create();
                if (i == 3) run_submit(run, engine, request);
                run_submit(crowd[i], engine, sampled_request(others[i], 1 + i * 29, 20 + i * 11, (uint64_t)i));
            }
            run_wait(run);
            if (!runs_equal(run, alone)) fail_msg("%s: other tokens under load, chunk %d", name_of(m), chunks[c]);
            for (int i = 0; i < 5; i++) {
                run_wait(crowd[i]);
                run_free(crowd[i]);
            }
            run_free(run);
            dse_engine_free(engine);
        }
        run_free(alone);
        dse_model_unref(model);
    }
}

/* Several unbounded requests in a pool that cannot hold them all: some are set back and computed again. */
static void tokens_survive_being_set_back_for_lack_of_memory(void **state)
{
    (void)state;
    struct dse_model *model = open_reference("llama_linear", DSE_COMPUTE_AUTO, 2);
    struct dse_model_info info;
    dse_model_get_info(model, &info);
    int32_t prompts[4][PROMPT_TOKENS];
    struct run *alone[4], *crowd[4];
    struct dse_engine_options options = {.context_length = 1024, .max_concurrent = 4, .max_queue = 8};
    options.kv_bytes = info.kv_bytes_per_token * 32 * 33; /* little more than one context */
    struct dse_engine *engine = create_engine(model, options);
    for (int i = 0; i < 4; i++) {
        fill_prompt(prompts[i], PROMPT_TOKENS, info.n_vocab, 40 + (uint64_t)i);
        struct dse_request request = sampled_request(prompts[i], 5 + 20 * i, -1, 77);
        request.n_choices = i == 2 ? 2 : 1;
        alone[i] = run_request(engine, request);
        assert_int_equal(alone[i]->choice[0].finish, DSE_FINISH_LENGTH);
    }
    assert_int_equal(alone[0]->choice[0].n_tokens, 1024 - 5);
    uint64_t computed = dse_counter_get(DSE_COUNTER_PROMPT_TOKENS);
    for (int i = 0; i < 4; i++) {
        struct dse_request request = sampled_request(prompts[i], 5 + 20 * i, -1, 77);
        request.n_choices = i == 2 ? 2 : 1;
        crowd[i] = run_create();
        run_submit(crowd[i], engine, request);
    }
    for (int i = 0; i < 4; i++) {
        run_wait(crowd[i]);
        if (!runs_equal(crowd[i], alone[i])) fail_msg("request %d: other tokens", i);
        run_free(crowd[i]);
        run_free(alone[i]);
    }
    /* the prompts are 5 + 25 + 45 + 65 tokens: more were computed, so some were computed again */
    assert_true(dse_counter_get(DSE_COUNTER_PROMPT_TOKENS) - computed > 140);
    wait_until_empty();
    dse_engine_free(engine);
    dse_model_unref(model);
}

/* Log-probabilities that decoding reported equal those of the same tokens as a prompt. */
static void prompt_logprobs_equal_those_of_decoding(void **state)
{
    (void)state;
    struct dse_model *model = open_reference("gguf/llama_llama3.q4_k_m.gguf", DSE_COMPUTE_AUTO, 2);
    struct dse_engine *engine = create_engine(model,
                                              (struct dse_engine_options){.context_length = 512, .chunk_tokens = 48});
    int32_t ids[PROMPT_TOKENS];
    fill_prompt(ids, 30, 256, 1);
    struct run *decoded = run_request(engine, sampled_request(ids, 30, 80, 5));
    memcpy(ids + 30, decoded->choice[0].tokens, 80 * sizeof *ids);
    struct dse_request echo = sampled_request(ids, 110, 0, 5);
    echo.prompt_logprobs = true;
    struct run *prompt = run_request(engine, echo);
    assert_int_equal(prompt->n_prompt_logprobs, 109);
    for (int i = 0; i < 109; i++)
        assert_int_equal(prompt->prompt_tokens[i], ids[i + 1]);
    for (int i = 0; i < 80; i++)
        assert_float_equal(prompt->prompt_logprobs[29 + i], decoded->choice[0].logprobs[i], 2e-5);
    run_free(prompt);
    run_free(decoded);
    dse_engine_free(engine);
    dse_model_unref(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_do_not_depend_on_chunk_size_or_threads),
        cmocka_unit_test(logits_of_quantized_experts_are_close_to_those_of_their_decoded_weights),
        cmocka_unit_test(generated_tokens_do_not_depend_on_load),
        cmocka_unit_test(tokens_survive_being_set_back_for_lack_of_memory),
        cmocka_unit_test(prompt_logprobs_equal_those_of_decoding),
    };
    return cmocka_run_group_tests(tests, write_models, remove_models);
}
