/* Activations and weights far from 1: where 16-bit values in the path would overflow or a scale be applied twice.
 *
 * The rules of a model cancel each other (RMSNorm takes the scale of what it norms away, products are undone by the next
 * matrix), so Hugging Face's numbers of the unscaled model stay the reference. What differs is what lies between: the
 * residual and the normed rows are 64 times, the hidden rows and rotated keys 4096 times their size.
 */
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine_support.h"
#include "reference.h"
#include "scaled.h"

#define F32_BOUND     1e-3
#define DEFAULT_BOUND 0.05

/* Residual and normed rows, FFN and experts. A dense layer's gate_proj is ".gate_proj", the router ".gate.weight". */
#define COMMON_RULES                                                                                                   \
    {"embed_tokens", 6}, {"input_layernorm", 6}, {"post_attention_layernorm", 6}, {"model.norm.weight", 6},            \
        {"lm_head", -6}, {".gate.weight", -6}, {"gate_proj", -6}, {"up_proj", 6},                                      \
    {                                                                                                                  \
        "down_proj", -6                                                                                                \
    }
/* Latents are 64 times their size, rotated keys 4096 times. */
#define LATENT_RULES                                                                                                   \
    {"kv_a_layernorm", 6},                                                                                             \
    {                                                                                                                  \
        "kv_a_proj_with_mqa", 6                                                                                        \
    }

static const struct scaling v1_rules[] = {
    COMMON_RULES, {"k_proj", 6}, {"q_proj", -18}, {"v_proj", 6}, {"o_proj", -6},
};
/* q: heads of 32 + 16 rows */
static const struct scaling v2_rules[] = {
    COMMON_RULES,
    LATENT_RULES,
    {"q_proj", -12, 48, 0, 32},
    {"q_proj", -18, 48, 32, 48},
};
static const struct scaling v3_rules[] = {
    COMMON_RULES, LATENT_RULES, {"q_a_proj", 6}, {"q_b_proj", -6, 48, 0, 32}, {"q_b_proj", -12, 48, 32, 48},
};
/* The scores of the indexer are 64 times their size, which changes no order. */
static const struct scaling v32_rules[] = {
    COMMON_RULES,
    LATENT_RULES,
    {"q_a_proj", 6},
    {"q_b_proj", -6, 48, 0, 32},
    {"q_b_proj", -12, 48, 32, 48},
    {"indexer.k_norm", 6},
    {"indexer.wq_b", -6},
};

#define RULES(rules) rules, sizeof(rules) / sizeof *(rules)
static const struct {
    const char *model;
    const struct scaling *rules;
    size_t n_rules;
} models[] = {
    {"deepseek_v1_moe", RULES(v1_rules)},
    {"deepseek_v2", RULES(v2_rules)},
    {"deepseek_v3", RULES(v3_rules)},
    {"deepseek_v32", RULES(v32_rules)},
};

static struct dse_model *open_folder(const char *folder, enum dse_compute compute)
{
    struct dse_model_options options = {.n_threads = 2, .compute = compute};
    struct dse_model *model = NULL;
    struct dse_error error = {0};
    if (dse_model_open(folder, &options, &model, &error) != DSE_OK) fail_msg("%s", error.message);
    return model;
}

/* [n_ids][n_vocab], to be freed; every one is finite */
static float *finite_logits(struct dse_model *model, const char *name, const int32_t *ids, int n_ids, int n_vocab)
{
    struct dse_error error = {0};
    size_t count = (size_t)n_ids * (size_t)n_vocab;
    float *logits = calloc(count, sizeof *logits);
    assert_non_null(logits);
    if (dse_eval_logits(model, ids, n_ids, 64, logits, &error) != DSE_OK) fail_msg("%s", error.message);
    for (size_t i = 0; i < count; i++)
        if (!isfinite(logits[i]))
            fail_msg("%s: logit %zu of row %zu is %g", name, i % (size_t)n_vocab, i / (size_t)n_vocab,
                     (double)logits[i]);
    return logits;
}

static struct comparison compare(struct dse_model *model, const char *name, const struct reference *reference,
                                 int prompt)
{
    struct dse_model_info info;
    int n_ids;
    const int32_t *ids = reference_i32(reference, prompt, "ids", &n_ids);
    dse_model_get_info(model, &info);
    float *logits = finite_logits(model, name, ids, n_ids, info.n_vocab);
    struct comparison c = reference_compare(reference, prompt, logits, info.n_vocab);
    print_message("%s prompt %d: max %.2e median %.2e argmax %d/%d\n", name, prompt, c.max_error, c.median_error,
                  c.n_argmax_equal, c.n_positions);
    free(logits);
    return c;
}

static void scales_that_cancel_leave_the_logits_as_they_were(void **state)
{
    (void)state;
    char path[64];
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        const char *name = models[i].model;
        char *folder = scaled_model_write(name, models[i].rules, models[i].n_rules);
        struct dse_model *exact = open_folder(folder, DSE_COMPUTE_F32), *usual = open_folder(folder, DSE_COMPUTE_AUTO);
        (void)snprintf(path, sizeof path, "%s/reference.safetensors", name);
        struct reference *reference = reference_open(path);
        for (int prompt = 0; prompt < 3; prompt++) {
            struct comparison c = compare(exact, name, reference, prompt);
            if (!(c.max_error <= F32_BOUND)) fail_msg("%s prompt %d: error %g", name, prompt, c.max_error);
            assert_int_equal(c.n_argmax_equal, c.n_positions);
            c = compare(usual, name, reference, prompt);
            /* rounded keys and latents may choose an expert or a key otherwise, which moves later rows by more */
            if (!(c.median_error <= DEFAULT_BOUND && c.cosine >= 0.999))
                fail_msg("%s prompt %d: median %g cosine %g", name, prompt, c.median_error, c.cosine);
            if (!(c.n_argmax_equal >= 0.95 * c.n_positions))
                fail_msg("%s prompt %d: argmax equal at %d of %d", name, prompt, c.n_argmax_equal, c.n_positions);
        }
        reference_close(reference);
        dse_model_unref(exact);
        dse_model_unref(usual);
        scaled_model_remove(folder);
        free(folder);
    }
}

/* Every matrix and every norm 64 times what it was, nothing cancels: attention is all but one-hot and the router sees one
 * expert only, so rounding shows less, not more. */
static void weights_64_times_as_large_stay_finite_and_choose_the_same_token(void **state)
{
    (void)state;
    static const struct scaling rules[] = {
        {"proj", 6}, {"norm", 6}, {"lm_head", 6}, {"embed_tokens", 6}, {"gate.weight", 6}};
    char path[64];
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        const char *name = models[i].model;
        char *folder = scaled_model_write(name, RULES(rules));
        struct dse_model *exact = open_folder(folder, DSE_COMPUTE_F32), *usual = open_folder(folder, DSE_COMPUTE_AUTO);
        (void)snprintf(path, sizeof path, "%s/reference.safetensors", name);
        struct reference *reference = reference_open(path);
        struct dse_model_info info;
        dse_model_get_info(exact, &info);
        int n_ids, n_equal = 0;
        const int32_t *ids = reference_i32(reference, 2, "ids", &n_ids);
        float *a = finite_logits(exact, name, ids, n_ids, info.n_vocab);
        float *b = finite_logits(usual, name, ids, n_ids, info.n_vocab);
        for (int m = 0; m < n_ids; m++)
            n_equal += reference_argmax(a + (size_t)m * (size_t)info.n_vocab, info.n_vocab) ==
                       reference_argmax(b + (size_t)m * (size_t)info.n_vocab, info.n_vocab);
        print_message("%s: argmax %d/%d\n", name, n_equal, n_ids);
        if (!(n_equal >= 0.95 * n_ids)) fail_msg("%s: argmax equal at %d of %d", name, n_equal, n_ids);
        free(a);
        free(b);
        reference_close(reference);
        dse_model_unref(exact);
        dse_model_unref(usual);
        scaled_model_remove(folder);
        free(folder);
    }
}

/* Latents as large as f32 nearly allows, far beyond what a q8_0 block's scale reaches: cut off, not NaN. The small values
 * beside them round to nothing, so no more than finite numbers can be asked for. */
static void latents_beyond_a_q8_0_block_are_cut_off(void **state)
{
    (void)state;
    static const struct scaling rules[] = {{"kv_a_layernorm", 24}, {"kv_b_proj", -24}};
    const struct dse_model_options options = {.n_threads = 2, .kv_cache = DSE_KV_CACHE_Q8_0};
    char *folder = scaled_model_write("deepseek_v3", RULES(rules));
    struct dse_model *model = NULL;
    struct dse_error error = {0};
    if (dse_model_open(folder, &options, &model, &error) != DSE_OK) fail_msg("%s", error.message);
    struct reference *reference = reference_open("deepseek_v3/reference.safetensors");
    struct dse_model_info info;
    int n_ids;
    const int32_t *ids = reference_i32(reference, 2, "ids", &n_ids);
    dse_model_get_info(model, &info);
    free(finite_logits(model, "deepseek_v3 q8_0", ids, n_ids, info.n_vocab));
    reference_close(reference);
    dse_model_unref(model);
    scaled_model_remove(folder);
    free(folder);
}

/* One rotated key in twenty beyond what f16 holds. Cut off at 65504 they are wrong, but infinite ones made every logit NaN. */
static void keys_beyond_half_precision_are_cut_off(void **state)
{
    (void)state;
    static const struct scaling rules[] = {{"kv_a_proj_with_mqa", 15}, {"q_b_proj", -15, 48, 32, 48}};
    char *folder = scaled_model_write("deepseek_v3", RULES(rules));
    struct dse_model *model = open_folder(folder, DSE_COMPUTE_AUTO);
    struct reference *reference = reference_open("deepseek_v3/reference.safetensors");
    for (int prompt = 0; prompt < 3; prompt++) {
        struct comparison c = compare(model, "deepseek_v3", reference, prompt);
        if (!(c.n_argmax_equal >= 0.5 * c.n_positions))
            fail_msg("prompt %d: argmax equal at %d of %d", prompt, c.n_argmax_equal, c.n_positions);
    }
    reference_close(reference);
    dse_model_unref(model);
    scaled_model_remove(folder);
    free(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scales_that_cancel_leave_the_logits_as_they_were),
        cmocka_unit_test(weights_64_times_as_large_stay_finite_and_choose_the_same_token),
        cmocka_unit_test(keys_beyond_half_precision_are_cut_off),
        cmocka_unit_test(latents_beyond_a_q8_0_block_are_cut_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
