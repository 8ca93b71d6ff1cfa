/* The multi-token prediction layer: its logits against Hugging Face's layer, the same bits whatever the chunks, and nothing of
 * it in memory unless it was asked for.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/model.h"
#include "engine_support.h"
#include "reference.h"

#define F32_BOUND     1e-3
#define PROMPT_TOKENS 150

static struct dse_model *open_model(const char *path, struct dse_model_options options)
{
    struct dse_model *model = NULL;
    struct dse_error error = {0};
    if (dse_model_open(reference_path(path), &options, &model, &error) != DSE_OK)
        fail_msg("%s: %s", path, error.message);
    return model;
}

static int n_vocab_of(const struct dse_model *model)
{
    struct dse_model_info info;
    dse_model_get_info(model, &info);
    return info.n_vocab;
}

/* [n_ids - 1, V], freed by the caller */
static float *mtp_logits(struct dse_model *model, const int32_t *ids, int n_ids, int chunk)
{
    struct dse_error error = {0};
    float *logits = calloc((size_t)(n_ids - 1) * (size_t)n_vocab_of(model), sizeof *logits);
    assert_non_null(logits);
    if (dse_eval_mtp_logits(model, ids, n_ids, chunk, NULL, logits, &error) != DSE_OK) fail_msg("%s", error.message);
    return logits;
}

static void mtp_logits_equal_hugging_face_in_f32(void **state)
{
    (void)state;
    struct dse_model *model = open_model(
        "deepseek_v3", (struct dse_model_options){.n_threads = 2, .compute = DSE_COMPUTE_F32, .mtp = true});
    struct reference *reference = reference_open("deepseek_v3/reference.safetensors");
    int n_ids, count;
    const int32_t *ids = reference_i32(reference, 1, "ids", &n_ids);
    const float *expected = reference_f32(reference, 1, "mtp_logits", &count);
    assert_int_equal(count, (n_ids - 1) * n_vocab_of(model));
    float *logits = mtp_logits(model, ids, n_ids, 0);
    double largest = 0;
    for (int i = 0; i < count; i++) {
        double d = fabs((double)logits[i] - (double)expected[i]);
        if (!(d <= largest)) largest = d; /* NaN becomes the maximum and stays */
    }
    print_message("mtp logits: max %.2e\n", largest);
    if (!(largest <= F32_BOUND)) fail_msg("an MTP logit is off by %g", largest);
    free(logits);
    reference_close(reference);
    dse_model_unref(model);
}

static void mtp_logits_do_not_depend_on_chunk_size_or_threads(void **state)
{
    (void)state;
    static const struct dse_model_options kinds[] = {
        {.mtp = true, .compute = DSE_COMPUTE_F32}, {.mtp = true}, {.mtp = true, .kv_cache = DSE_KV_CACHE_Q8_0}};
    static const int chunks[] = {1, 7, 149, 512}; /* 149: the last row comes alone and has no next token */
    int32_t ids[PROMPT_TOKENS];
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        float *expected = NULL;
        for (int threads = 1; threads <= 3; threads++) {
            struct dse_model_options options = kinds[k];
            options.n_threads = threads;
            struct dse_model *model = open_model("deepseek_v3", options);
            fill_prompt(ids, PROMPT_TOKENS, n_vocab_of(model), 3);
            const size_t bytes = (PROMPT_TOKENS - 1) * (size_t)n_vocab_of(model) * sizeof(float);
            for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
                float *logits = mtp_logits(model, ids, PROMPT_TOKENS, chunks[c]);
                if (expected == NULL)
                    expected = logits;
                else {
                    if (memcmp(logits, expected, bytes) != 0)
                        fail_msg("kind %zu: other logits with %d threads and chunks of %d", k, threads, chunks[c]);
                    free(logits);
                }
            }
            dse_model_unref(model);
        }
        free(expected);
    }
}

/* The last chunk of 150 ids is of the last id alone, of two, or all: the prediction layer has one row less. */
static void one_pass_gives_the_logits_of_the_model_and_of_its_prediction_layer(void **state)
{
    (void)state;
    struct dse_model *model = open_model("deepseek_v3", (struct dse_model_options){.n_threads = 2, .mtp = true});
    const size_t n_vocab = (size_t)n_vocab_of(model), n = (size_t)PROMPT_TOKENS * n_vocab;
    float *alone = calloc(n, sizeof *alone), *both = calloc(n, sizeof *both), *mtp_both = calloc(n, sizeof *mtp_both);
    int32_t ids[PROMPT_TOKENS];
    assert_true(alone != NULL && both != NULL && mtp_both != NULL);
    for (int i = 0; i < PROMPT_TOKENS; i++)
        ids[i] = (i * 37 + 11) % (int)n_vocab;
    const int chunks[] = {149, 37, 0};
    for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
        struct dse_error error;
        if (dse_eval_logits(model, ids, PROMPT_TOKENS, chunks[c], alone, &error) != DSE_OK ||
            dse_eval_mtp_logits(model, ids, PROMPT_TOKENS, chunks[c], both, mtp_both, &error) != DSE_OK)
            fail_msg("%s", error.message);
        float *mtp_alone = mtp_logits(model, ids, PROMPT_TOKENS, chunks[c]);
        assert_memory_equal(both, alone, n * sizeof *both);
        assert_memory_equal(mtp_both, mtp_alone, (n - n_vocab) * sizeof *mtp_both);
        free(mtp_alone);
    }
    free(alone);
    free(both);
    free(mtp_both);
    dse_model_unref(model);
}

/* Row i sees nothing after token i + 1: the logits of a shorter list are a prefix. */
static void mtp_logits_of_a_shorter_list_are_a_prefix(void **state)
{
    (void)state;
    struct dse_model *model = open_model("deepseek_v3", (struct dse_model_options){.n_threads = 2, .mtp = true});
    const size_t n_vocab = (size_t)n_vocab_of(model);
    int32_t ids[PROMPT_TOKENS];
    fill_prompt(ids, PROMPT_TOKENS, (int)n_vocab, 5);
    float *all = mtp_logits(model, ids, PROMPT_TOKENS, 64);
    static const int lengths[] = {2, 3, 33, 65};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        float *part = mtp_logits(model, ids, lengths[i], 64);
        assert_memory_equal(part, all, (size_t)(lengths[i] - 1) * n_vocab * sizeof(float));
        free(part);
    }
    free(all);
    dse_model_unref(model);
}

static void the_model_itself_computes_the_same_with_mtp_loaded(void **state)
{
    (void)state;
    struct dse_model *models[] = {open_model("deepseek_v3", (struct dse_model_options){.n_threads = 2}),
                                  open_model("deepseek_v3", (struct dse_model_options){.n_threads = 2, .mtp = true})};
    const size_t n_vocab = (size_t)n_vocab_of(models[0]);
    int32_t ids[PROMPT_TOKENS];
    float *logits[2];
    struct dse_error error = {0};
    fill_prompt(ids, PROMPT_TOKENS, (int)n_vocab, 7);
    for (int i = 0; i < 2; i++) {
        logits[i] = calloc(PROMPT_TOKENS * n_vocab, sizeof(float));
        assert_non_null(logits[i]);
        if (dse_eval_logits(models[i], ids, PROMPT_TOKENS, 64, logits[i], &error) != DSE_OK)
            fail_msg("%s", error.message);
    }
    assert_memory_equal(logits[0], logits[1], PROMPT_TOKENS * n_vocab * sizeof(float));
    for (int i = 0; i < 2; i++) {
        free(logits[i]);
        dse_model_unref(models[i]);
    }
}

struct memory {
    struct dse_model_info info;
    struct dse_memory_plan plan;
    size_t live; /* bytes of the heap that belong to models */
    int n_layers;
};

static struct memory measure(const char *path, bool mtp)
{
    struct memory memory;
    struct dse_error error = {0};
    const size_t before = dse_mem_live_bytes(DSE_MEM_MODEL);
    struct dse_model *model = open_model(path, (struct dse_model_options){.n_threads = 1, .mtp = mtp});
    const struct dse_engine_options options = {.context_length = 256};
    if (dse_engine_plan(model, &options, &memory.plan, &error) != DSE_OK) fail_msg("%s", error.message);
    dse_model_get_info(model, &memory.info);
    memory.live = dse_mem_live_bytes(DSE_MEM_MODEL) - before;
    memory.n_layers = model->kv_layout.n_layers;
    dse_model_unref(model);
    assert_int_equal(dse_mem_live_bytes(DSE_MEM_MODEL), before);
    return memory;
}

static void a_default_load_keeps_nothing_of_the_prediction_layer_in_memory(void **state)
{
    (void)state;
    const struct memory without = measure("deepseek_v3", false), with = measure("deepseek_v3", true);
    /* the twin is a file without the layer, packed alike */
    const struct memory twin = measure("gguf/deepseek_v3.gguf", false);
    assert_int_equal(without.info.resident_bytes, twin.info.resident_bytes);
    assert_int_equal(without.n_layers, 4);
    assert_int_equal(with.n_layers, 5);
    assert_int_equal(with.info.kv_bytes_per_token * 4, without.info.kv_bytes_per_token * 5);
    assert_int_equal(with.plan.kv_bytes * 4, without.plan.kv_bytes * 5);

    /* bf16 stays two bytes a weight; rows of matrices are padded, so at least the layer's own weights */
    const uint64_t weights = with.info.file_bytes - without.info.file_bytes;
    assert_true(weights > 2 * 2 * 128 * 128);
    assert_true(with.info.resident_bytes >= without.info.resident_bytes + weights / 2);
    assert_true(with.live >= without.live + (with.info.resident_bytes - without.info.resident_bytes));
    assert_int_equal(with.plan.resident_weight_bytes, with.info.resident_bytes);
    assert_int_equal(with.plan.weight_bytes, with.info.file_bytes);
    assert_true(with.plan.total_bytes - without.plan.total_bytes >=
                (with.info.resident_bytes - without.info.resident_bytes) +
                    (with.plan.kv_bytes - without.plan.kv_bytes));
}

static void mtp_is_refused_for_a_model_without_a_prediction_layer(void **state)
{
    (void)state;
    static const char *const paths[] = {"deepseek_v2", "llama_linear", "gguf/deepseek_v3.gguf"};
    const struct dse_model_options options = {.n_threads = 1, .mtp = true};
    const size_t before = dse_mem_live_bytes(DSE_MEM_MODEL);
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        struct dse_model *model = NULL;
        struct dse_error error = {0};
        assert_int_equal(dse_model_open(reference_path(paths[i]), &options, &model, &error), DSE_ERR_UNSUPPORTED);
        assert_null(model);
        assert_string_equal(error.file, "mtp");
        assert_non_null(strstr(error.message, "no prediction layer"));
        assert_int_equal(dse_mem_live_bytes(DSE_MEM_MODEL), before);
    }
}

static void mtp_logits_of_what_cannot_have_them_are_refused(void **state)
{
    (void)state;
    struct dse_model *model = open_reference("deepseek_v3", DSE_COMPUTE_AUTO, 1);
    const int32_t ids[] = {5, 6};
    float unused[1];
    struct dse_error error = {0};
    assert_int_equal(dse_eval_mtp_logits(model, ids, 2, 0, unused, unused, &error), DSE_ERR_INVALID);
    assert_string_equal(error.file, "mtp");
    dse_model_unref(model);
    model = open_model("deepseek_v3", (struct dse_model_options){.n_threads = 1, .mtp = true});
    for (int n = 0; n < 2; n++) {
        assert_int_equal(dse_eval_mtp_logits(model, ids, n, 0, unused, unused, &error), DSE_ERR_INVALID);
        assert_string_equal(error.file, "ids");
    }
    const int32_t wild[] = {5, n_vocab_of(model)};
    assert_int_equal(dse_eval_mtp_logits(model, wild, 2, 0, unused, unused, &error), DSE_ERR_INVALID);
    dse_model_unref(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mtp_logits_equal_hugging_face_in_f32),
        cmocka_unit_test(mtp_logits_do_not_depend_on_chunk_size_or_threads),
        cmocka_unit_test(one_pass_gives_the_logits_of_the_model_and_of_its_prediction_layer),
        cmocka_unit_test(mtp_logits_of_a_shorter_list_are_a_prefix),
        cmocka_unit_test(the_model_itself_computes_the_same_with_mtp_loaded),
        cmocka_unit_test(a_default_load_keeps_nothing_of_the_prediction_layer_in_memory),
        cmocka_unit_test(mtp_is_refused_for_a_model_without_a_prediction_layer),
        cmocka_unit_test(mtp_logits_of_what_cannot_have_them_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
