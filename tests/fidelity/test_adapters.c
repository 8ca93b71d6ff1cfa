/* Our logits with LoRA adapters against those of transformers and PEFT (tools/make_adapter_cases.py), through
 * dse_eval_adapted_logits: both kinds of adapter files on both kinds of model files, alone, scaled and together.
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

#include "engine_support.h"
#include "model/safetensors.h"
#include "reference.h"

#define PROMPT        1
#define F32_BOUND     1e-3
#define DEFAULT_BOUND 0.05

struct use {
    const char *name; /* below the folder of the case */
    float scale;
};

struct case_ {
    const char *model, *folder, *logits;
    struct use uses[3];
};

static const struct case_ cases[] = {
    {"llama_linear", "llama_linear", "a", {{"a", 1}}},
    {"llama_linear", "llama_linear", "b", {{"b/adapter_model.safetensors", 1}}},
    {"llama_linear", "llama_linear", "a_half", {{"a", 0.5f}}},
    {"llama_linear", "llama_linear", "a_b", {{"a", 1}, {"b", 1}}},
    {"llama_linear", "llama_linear", "a_minus_b", {{"b", -1.5f}, {"a", 0.75f}}},
    {"llama_linear", "llama_linear", "a", {{"a", 0.25f}, {"b", 0}, {"a", 0.75f}}},
    {"llama_linear", "llama_linear", "a", {{"a.gguf", 1}}},
    {"gguf/llama_linear.gguf", "llama_linear", "a", {{"a", 1}}},
    {"gguf/llama_linear.gguf", "llama_linear", "a_b", {{"a.gguf", 1}, {"b", 1}}},
    {"qwen2_bias", "qwen2_bias", "a", {{"a", 1}}},
    {"qwen2_bias", "qwen2_bias", "b", {{"b", 1}}},
    {"qwen2_bias", "qwen2_bias", "a_minus_b", {{"a", 0.75f}, {"b", -1.5f}}},
    {"qwen3_yarn", "qwen3_yarn", "a", {{"a", 1}}},
    {"deepseek_v2", "deepseek_v2", "a", {{"a", 1}}},
    {"deepseek_v2", "deepseek_v2", "a_half", {{"a.gguf", 0.5f}}},
    {"gguf/deepseek_v2.gguf", "deepseek_v2", "a", {{"a", 1}}},
    {"gguf/deepseek_v2.gguf", "deepseek_v2", "a", {{"a.gguf", 1}}},
    {"deepseek_v3", "deepseek_v3", "a", {{"a", 1}}},
    {"gguf/deepseek_v3.gguf", "deepseek_v3", "a_half", {{"a", 0.5f}}},
    {"deepseek_v32", "deepseek_v32", "a", {{"a", 1}}},
};

static float *logits_of(struct dse_model *model, const struct case_ *test, const int32_t *ids, int n_ids, int chunk)
{
    struct dse_adapter_use uses[3];
    struct dse_error error = {0};
    struct dse_model_info info;
    char path[96];
    int n = 0;
    dse_model_get_info(model, &info);
    for (; n < 3 && test->uses[n].name != NULL; n++) {
        (void)snprintf(path, sizeof path, "%s/%s", test->folder, test->uses[n].name);
        uses[n] = (struct dse_adapter_use){open_adapter(model, path), test->uses[n].scale};
    }
    float *logits = calloc((size_t)n_ids * (size_t)info.n_vocab, sizeof *logits);
    assert_non_null(logits);
    if (dse_eval_adapted_logits(model, uses, n, ids, n_ids, chunk, logits, &error) != DSE_OK)
        fail_msg("%s", error.message);
    for (int i = 0; i < n; i++)
        dse_adapter_unref(uses[i].adapter);
    return logits;
}

static double error_of(const struct case_ *test, const float *logits, int n_vocab)
{
    struct dse_safetensors *file = NULL;
    struct dse_error error = {0};
    char name[64];
    double worst = 0;
    (void)snprintf(name, sizeof name, "%s/reference.safetensors", test->folder);
    if (dse_safetensors_open(adapter_path(name), &file, &error) != DSE_OK) fail_msg("%s", error.message);
    (void)snprintf(name, sizeof name, "prompt%d.%s.logits", PROMPT, test->logits);
    const struct dse_tensor *expected = dse_safetensors_tensor(file, name);
    const struct dse_tensor *positions = dse_safetensors_tensor(file, "positions");
    assert_non_null(expected);
    assert_non_null(positions);
    for (size_t i = 0; i < positions->shape[0]; i++) {
        int32_t position;
        memcpy(&position, (const int32_t *)positions->data + i, sizeof position);
        for (int v = 0; v < n_vocab; v++) {
            float value;
            memcpy(&value, (const float *)expected->data + i * (size_t)n_vocab + (size_t)v, sizeof value);
            double difference = fabs((double)logits[(size_t)position * (size_t)n_vocab + (size_t)v] - (double)value);
            if (!(difference <= worst)) worst = difference;
        }
    }
    dse_safetensors_close(file);
    return worst;
}

static void check_all(enum dse_compute compute, double bound)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[64];
        int n_ids;
        struct dse_model_info info;
        (void)snprintf(path, sizeof path, "%s/reference.safetensors", cases[i].folder);
        struct reference *reference = reference_open(path);
        const int32_t *ids = reference_i32(reference, PROMPT, "ids", &n_ids);
        struct dse_model *model = open_reference(cases[i].model, compute, 2);
        dse_model_get_info(model, &info);
        float *logits = logits_of(model, &cases[i], ids, n_ids, 7);
        const double error = error_of(&cases[i], logits, info.n_vocab);
        print_message("%s with %s: largest error %.2e\n", cases[i].model, cases[i].logits, error);
        if (!(error <= bound)) fail_msg("case %zu: %s with %s: error %g", i, cases[i].model, cases[i].logits, error);
        free(logits);
        dse_model_unref(model);
        reference_close(reference);
    }
}

static void logits_with_adapters_equal_peft_in_f32(void **state)
{
    (void)state;
    check_all(DSE_COMPUTE_F32, F32_BOUND);
}

static void logits_with_adapters_stay_close_in_default_compute(void **state)
{
    (void)state;
    check_all(DSE_COMPUTE_AUTO, DEFAULT_BOUND);
}

/* Factors of the GGUF twin are the same numbers, so what they compute is the same, bit for bit. */
static void a_gguf_adapter_equals_its_peft_twin(void **state)
{
    static const char *const models[][2] = {
        {"llama_linear", "llama_linear"}, {"gguf/llama_linear.gguf", "llama_linear"}, {"deepseek_v2", "deepseek_v2"}};
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        const struct case_ peft = {models[i][0], models[i][1], "a", {{"a", 1}}};
        const struct case_ gguf = {models[i][0], models[i][1], "a", {{"a.gguf", 1}}};
        struct dse_model *model = open_reference(models[i][0], DSE_COMPUTE_AUTO, 1);
        struct dse_model_info info;
        int32_t ids[40];
        dse_model_get_info(model, &info);
        fill_prompt(ids, 40, info.n_vocab, 5);
        float *a = logits_of(model, &peft, ids, 40, 16), *b = logits_of(model, &gguf, ids, 40, 16);
        assert_memory_equal(a, b, 40 * (size_t)info.n_vocab * sizeof(float));
        free(a);
        free(b);
        dse_model_unref(model);
    }
}

/* How a prompt is cut and how many threads work on it changes no bit; nor does a scale of 0: it is the base model. */
static void bits_do_not_depend_on_chunks_threads_or_zero_scales(void **state)
{
    static const char *const models[][2] = {
        {"llama_linear", "llama_linear"}, {"deepseek_v2", "deepseek_v2"}, {"deepseek_v3", "deepseek_v3"}};
    static const int chunks[] = {1, 3, 64};
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        const struct case_ one = {models[i][0], models[i][1], "a", {{"a", 1}}};
        const struct case_ zero = {models[i][0], models[i][1], "a", {{"a", 0}}};
        const struct case_ none = {models[i][0], models[i][1], "", {{NULL, 0}}};
        struct dse_model_info info;
        int32_t ids[70];
        float *first = NULL, *base = NULL;
        for (int threads = 1; threads <= 3; threads += 2) {
            struct dse_model *model = open_reference(models[i][0], DSE_COMPUTE_AUTO, threads);
            dse_model_get_info(model, &info);
            fill_prompt(ids, 70, info.n_vocab, 5);
            const size_t bytes = 70 * (size_t)info.n_vocab * sizeof(float);
            for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
                float *logits = logits_of(model, &one, ids, 70, chunks[c]);
                float *other = logits_of(model, c == 0 ? &none : &zero, ids, 70, chunks[c]);
                if (first == NULL) {
                    first = logits;
                    base = other;
                    assert_memory_not_equal(first, base, bytes);
                    continue;
                }
                assert_memory_equal(logits, first, bytes);
                assert_memory_equal(other, base, bytes);
                free(logits);
                free(other);
            }
            dse_model_unref(model);
        }
        free(first);
        free(base);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_with_adapters_equal_peft_in_f32),
        cmocka_unit_test(logits_with_adapters_stay_close_in_default_compute),
        cmocka_unit_test(a_gguf_adapter_equals_its_peft_twin),
        cmocka_unit_test(bits_do_not_depend_on_chunks_threads_or_zero_scales),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
