/* Our logits against Hugging Face's, for every text architecture, through dse_eval_logits.
 *
 * Bounds: f32 arithmetic 1e-3 (README.md of the references); quantized activations rms 0.08, cosine 0.999, argmax 95 %.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_support.h"
#include "reference.h"

#define F32_BOUND 1e-3

/* Default compute on f32 and bf16 weights: keys and values are stored as f16, everything else stays f32. */
#define DEFAULT_BOUND 0.02

struct case_ {
    const char *model, *reference;
};

static const struct case_ plain[] = {
    {"llama_linear", "llama_linear/reference.safetensors"},
    {"llama_llama3", "llama_llama3/reference.safetensors"},
    {"qwen2_bias", "qwen2_bias/reference.safetensors"},
    {"qwen3_yarn", "qwen3_yarn/reference.safetensors"},
    {"gguf/llama_linear.gguf", "llama_linear/reference.safetensors"},
    {"deepseek_v1_moe", "deepseek_v1_moe/reference.safetensors"},
    {"deepseek_v2", "deepseek_v2/reference.safetensors"},
    {"deepseek_v3", "deepseek_v3/reference.safetensors"},
    {"deepseek_v3_fp8", "deepseek_v3_fp8/reference.safetensors"},
    {"deepseek_v32", "deepseek_v32/reference.safetensors"},
    {"gguf/deepseek_v1_moe.gguf", "deepseek_v1_moe/reference.safetensors"},
    {"gguf/deepseek_v2.gguf", "deepseek_v2/reference.safetensors"},
    {"gguf/deepseek_v3.gguf", "deepseek_v3/reference.safetensors"},
};
static const struct case_ quantized = {"gguf/llama_llama3.q4_k_m.gguf",
                                       "gguf/llama_llama3.q4_k_m.reference.safetensors"};

static struct comparison compare_prompt(struct dse_model *model, const struct reference *reference, int prompt,
                                        int chunk)
{
    struct dse_model_info info;
    struct dse_error error = {0};
    int n_ids;
    const int32_t *ids = reference_i32(reference, prompt, "ids", &n_ids);
    dse_model_get_info(model, &info);
    float *logits = calloc((size_t)n_ids * (size_t)info.n_vocab, sizeof *logits);
    assert_non_null(logits);
    if (dse_eval_logits(model, ids, n_ids, chunk, logits, &error) != DSE_OK) fail_msg("%s", error.message);
    struct comparison c = reference_compare(reference, prompt, logits, info.n_vocab);
    print_message("%s prompt %d: max %.2e median %.2e rms %.2e cosine %.6f argmax %d/%d\n", info.path, prompt,
                  c.max_error, c.median_error, c.rms, c.cosine, c.n_argmax_equal, c.n_positions);
    free(logits);
    return c;
}

static void check_exact(const struct case_ *test, enum dse_compute compute, double bound)
{
    struct dse_model *model = open_reference(test->model, compute, 2);
    struct reference *reference = reference_open(test->reference);
    for (int prompt = 0; prompt < 3; prompt++) {
        struct comparison c = compare_prompt(model, reference, prompt, 64);
        if (!(c.max_error <= bound)) fail_msg("%s prompt %d: error %g", test->model, prompt, c.max_error);
        if (compute == DSE_COMPUTE_F32) assert_int_equal(c.n_argmax_equal, c.n_positions);
    }
    reference_close(reference);
    dse_model_unref(model);
}

static void logits_equal_hugging_face_in_f32(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        check_exact(&plain[i], DSE_COMPUTE_F32, F32_BOUND);
}

static void logits_equal_exact_arithmetic_on_a_quantized_file_in_f32(void **state)
{
    (void)state;
    check_exact(&quantized, DSE_COMPUTE_F32, F32_BOUND);
}

static void logits_of_default_compute_stay_close_on_unquantized_weights(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (strcmp(plain[i].model, "deepseek_v32") != 0) check_exact(&plain[i], DSE_COMPUTE_AUTO, DEFAULT_BOUND);
}

/* An expert or a key that is chosen otherwise moves single logits by several units, so where rounding may flip one, most
 * positions must be close and most answers equal (models with few, random weights flip far more often than trained ones). */
static void check_robust(const char *name, const struct dse_model_options *options, double median_bound,
                         double argmax_share)
{
    struct dse_model *model;
    struct dse_error error;
    char path[64];
    int equal = 0, positions = 0;
    if (dse_model_open(reference_path(name), options, &model, &error) != DSE_OK) fail_msg("%s", error.message);
    (void)snprintf(path, sizeof path, "%s/reference.safetensors", name);
    struct reference *reference = reference_open(path);
    for (int prompt = 0; prompt < 3; prompt++) {
        struct comparison c = compare_prompt(model, reference, prompt, 64);
        if (!(c.median_error <= median_bound && c.cosine >= 0.99))
            fail_msg("%s prompt %d: median %g cosine %g", name, prompt, c.median_error, c.cosine);
        equal += c.n_argmax_equal;
        positions += c.n_positions;
    }
    if (!(equal >= argmax_share * positions)) fail_msg("%s: argmax equal at %d of %d", name, equal, positions);
    reference_close(reference);
    dse_model_unref(model);
}

static void logits_stay_close_with_a_q8_0_cache(void **state)
{
    (void)state;
    const struct dse_model_options options = {.n_threads = 2, .kv_cache = DSE_KV_CACHE_Q8_0};
    check_robust("deepseek_v2", &options, 0.15, 0.95);
    /* half the softmax scale again, so half the error again: where bf16 activations flip experts too */
    check_robust("deepseek_v3", &options, 0.5, 0.85);
}

static void logits_stay_close_where_rounded_index_keys_choose(void **state)
{
    (void)state;
    const struct dse_model_options options = {.n_threads = 2};
    check_robust("deepseek_v32", &options, DEFAULT_BOUND, 0.95);
}

static void a_q8_0_cache_is_refused_where_no_bound_was_measured(void **state)
{
    (void)state;
    struct dse_model *model = NULL;
    struct dse_error error;
    const struct dse_model_options options = {.n_threads = 1, .kv_cache = DSE_KV_CACHE_Q8_0};
    static const char *const names[] = {"llama_linear", "deepseek_v1_moe", "deepseek_v32"};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(dse_model_open(reference_path(names[i]), &options, &model, &error), DSE_ERR_UNSUPPORTED);
        assert_null(model);
        assert_string_equal(error.file, "kv_cache");
    }
}

static void logits_of_default_compute_keep_the_budget_on_q4_k_m(void **state)
{
    (void)state;
    struct dse_model *model = open_reference(quantized.model, DSE_COMPUTE_AUTO, 2);
    struct reference *reference = reference_open(quantized.reference);
    struct dse_model_info info;
    dse_model_get_info(model, &info);
    assert_string_equal(info.quantization, "q4_k");
    int equal = 0, positions = 0;
    for (int prompt = 0; prompt < 3; prompt++) {
        struct comparison c = compare_prompt(model, reference, prompt, 0);
        if (!(c.rms <= 0.08)) fail_msg("prompt %d: rms %g", prompt, c.rms);
        if (!(c.cosine >= 0.999)) fail_msg("prompt %d: cosine %g", prompt, c.cosine);
        equal += c.n_argmax_equal;
        positions += c.n_positions;
    }
    if (!(equal >= 0.95 * positions)) fail_msg("argmax equal at %d of %d positions", equal, positions);
    reference_close(reference);
    dse_model_unref(model);
}

static void check_greedy(const struct case_ *test)
{
    struct dse_model *model = open_reference(test->model, DSE_COMPUTE_F32, 2);
    struct reference *reference = reference_open(test->reference);
    struct dse_engine *engine = create_engine(model, (struct dse_engine_options){.max_queue = 4});
    for (int prompt = 1; prompt < 3; prompt++) {
        int n_ids, n_greedy;
        struct dse_request request = dse_request_default;
        request.prompt = reference_i32(reference, prompt, "ids", &n_ids);
        request.n_prompt = n_ids;
        request.max_tokens = 32;
        request.sampling.temperature = 0;
        const int32_t *greedy = reference_i32(reference, prompt, "greedy", &n_greedy);
        struct dse_model_info info;
        dse_model_get_info(model, &info);
        if (n_greedy > info.context_length - n_ids) n_greedy = (int)(info.context_length - n_ids);
        for (int t = 0; t < n_greedy; t++)
            if (dse_model_is_stop(model, greedy[t])) n_greedy = t + 1; /* where we end and the reference went on */
        struct run *run = run_request(engine, request);
        if (run->choice[0].n_tokens != n_greedy ||
            memcmp(run->choice[0].tokens, greedy, (size_t)n_greedy * sizeof *greedy) != 0)
            fail_msg("%s prompt %d: another continuation than Hugging Face's", test->model, prompt);
        run_free(run);
    }
    dse_engine_free(engine);
    reference_close(reference);
    dse_model_unref(model);
}

static void greedy_continuations_equal_hugging_face_through_the_engine(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        check_greedy(&plain[i]);
}

static void unusual_shapes_equal_hugging_face_in_f32(void **state)
{
    (void)state;
    char path[64];
    for (int i = 0; i < reference_n_variants; i++) {
        (void)snprintf(path, sizeof path, "%s/reference.safetensors", reference_variants[i]);
        const struct case_ variant = {reference_variants[i], path};
        check_exact(&variant, DSE_COMPUTE_F32, F32_BOUND);
        check_greedy(&variant);
    }
}

/* FP8 weights stay FP8 here, and keys and latents are rounded. */
static void unusual_shapes_stay_close_in_default_compute(void **state)
{
    (void)state;
    const struct dse_model_options options = {.n_threads = 2};
    for (int i = 0; i < reference_n_variants; i++)
        check_robust(reference_variants[i], &options, DEFAULT_BOUND, 0.95);
}

static void model_without_tokenizer_opens(void **state)
{
    (void)state;
    struct dse_model *model = open_reference("qwen2_bias", DSE_COMPUTE_AUTO, 1);
    struct dse_model_info info;
    dse_model_get_info(model, &info);
    assert_null(dse_model_tokenizer(model));
    assert_null(dse_model_template(model));
    assert_string_equal(info.arch, "qwen2");
    assert_string_equal(info.quantization, "f32");
    assert_int_equal(info.n_vocab, 768);
    assert_true(info.kv_bytes_per_token >= 4u * 2 * 2 * 32 * 2);
    assert_true(dse_model_is_stop(model, 1));
    assert_false(dse_model_is_stop(model, 2));
    dse_model_unref(model);
}

static void eval_refuses_bad_ids_by_name(void **state)
{
    (void)state;
    struct dse_model *model = open_reference("llama_linear", DSE_COMPUTE_AUTO, 1);
    struct dse_error error;
    float out[512];
    int32_t ids[2] = {5, 512};
    assert_int_equal(dse_eval_logits(model, ids, 2, 0, out, &error), DSE_ERR_INVALID);
    assert_string_equal(error.file, "ids");
    ids[1] = -1;
    assert_int_equal(dse_eval_logits(model, ids, 2, 0, out, &error), DSE_ERR_INVALID);
    assert_int_equal(dse_eval_logits(model, ids, 0, 0, out, &error), DSE_ERR_INVALID);
    assert_int_equal(dse_eval_logits(model, ids, 5000, 0, out, &error), DSE_ERR_TOO_LONG);
    assert_int_equal(error.need, 5000);
    assert_int_equal(error.have, 1024);
    dse_model_unref(model);
}

static void model_open_names_what_is_missing(void **state)
{
    (void)state;
    struct dse_model *model = NULL;
    struct dse_error error;
    struct dse_model_options options = {.n_threads = 1};
    assert_int_equal(dse_model_open(reference_path("no_such_model"), &options, &model, &error), DSE_ERR_NOT_FOUND);
    assert_null(model);
    assert_non_null(strstr(error.message, "no_such_model"));
    options.device = "abacus";
    assert_int_equal(dse_model_open(reference_path("llama_linear"), &options, &model, &error), DSE_ERR_DEVICE);
    assert_int_equal(dse_model_open("", &options, &model, &error), DSE_ERR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_equal_hugging_face_in_f32),
        cmocka_unit_test(logits_equal_exact_arithmetic_on_a_quantized_file_in_f32),
        cmocka_unit_test(logits_of_default_compute_stay_close_on_unquantized_weights),
        cmocka_unit_test(logits_stay_close_with_a_q8_0_cache),
        cmocka_unit_test(logits_stay_close_where_rounded_index_keys_choose),
        cmocka_unit_test(a_q8_0_cache_is_refused_where_no_bound_was_measured),
        cmocka_unit_test(logits_of_default_compute_keep_the_budget_on_q4_k_m),
        cmocka_unit_test(greedy_continuations_equal_hugging_face_through_the_engine),
        cmocka_unit_test(unusual_shapes_equal_hugging_face_in_f32),
        cmocka_unit_test(unusual_shapes_stay_close_in_default_compute),
        cmocka_unit_test(model_without_tokenizer_opens),
        cmocka_unit_test(eval_refuses_bad_ids_by_name),
        cmocka_unit_test(model_open_names_what_is_missing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
