/* Rotary frequencies against numbers computed from the formulas by rope_expected.py: the four fixtures, published
 * models, and corners of yarn. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "model/weights.h"
#include "rope_expected.h"
#include "temp_dir.h"

/* libm may differ from Python's in the last place of the double, and so once in a while in the last place here. */
static void expect(const struct dse_rope_config *rope, const float *divisors, const float *wanted, size_t n,
                   float wanted_factor)
{
    float got[512], factor = 0;
    size_t exact = 0;
    assert_int_equal(rope->dimensions, 2 * n);
    dse_rope_frequencies(rope, divisors, got, &factor);
    for (size_t i = 0; i < n; i++) {
        if (fabsf(got[i] - wanted[i]) > 1.2e-7f * wanted[i])
            fail_msg("frequency %zu is %.9g, expected %.9g", i, (double)got[i], (double)wanted[i]);
        exact += got[i] == wanted[i];
    }
    assert_true(exact + 1 >= n);
    assert_true(fabsf(factor - wanted_factor) <= 1.2e-7f);
}
#define EXPECT(rope, divisors, name, factor) expect(rope, divisors, name, sizeof name / sizeof *name, factor)

static void expect_fixture(const char *path, const float *wanted, size_t n, float factor)
{
    struct dse_model_file *file;
    struct dse_error err;
    if (dse_model_file_open(data_path(path), &file, &err) != DSE_OK) fail_msg("%s", err.message);
    const float *divisors = file->rope_divisors != NULL ? file->rope_divisors->data : NULL;
    expect(&file->config.rope, divisors, wanted, n, factor);
    dse_model_file_close(file);
}
#define EXPECT_FIXTURE(path, name, factor) expect_fixture(path, name, sizeof name / sizeof *name, factor)

static void frequencies_of_the_fixtures_follow_the_formulas(void **state)
{
    EXPECT_FIXTURE("reference/llama_linear", rope_llama_linear, ROPE_LLAMA_LINEAR_FACTOR);
    EXPECT_FIXTURE("reference/gguf/llama_linear.gguf", rope_llama_linear, ROPE_LLAMA_LINEAR_FACTOR);
    EXPECT_FIXTURE("reference/llama_llama3", rope_llama_llama3, ROPE_LLAMA_LLAMA3_FACTOR);
    EXPECT_FIXTURE("reference/qwen2_bias", rope_qwen2_bias, ROPE_QWEN2_BIAS_FACTOR);
    EXPECT_FIXTURE("reference/qwen3_yarn", rope_qwen3_yarn, ROPE_QWEN3_YARN_FACTOR);
}

/* The converter's divisors were rounded to f32, hence the wider tolerance. */
static void divisors_of_a_gguf_give_llama3_scaling(void **state)
{
    struct dse_model_file *file;
    struct dse_error err;
    if (dse_model_file_open(data_path("reference/gguf/llama_llama3.q4_k_m.gguf"), &file, &err) != DSE_OK)
        fail_msg("%s", err.message);
    assert_non_null(file->rope_divisors);
    assert_int_equal(file->config.rope.scaling, DSE_ROPE_NONE);
    float got[32], factor;
    dse_rope_frequencies(&file->config.rope, file->rope_divisors->data, got, &factor);
    bool changed = false;
    for (int i = 0; i < 32; i++) {
        assert_true(fabsf(got[i] - rope_llama_llama3[i]) <= 1e-6f * rope_llama_llama3[i]);
        changed |= ((const float *)file->rope_divisors->data)[i] != 1;
    }
    assert_true(changed);
    assert_true(factor == 1);
    dse_model_file_close(file);
}

static void frequencies_of_published_models_follow_the_formulas(void **state)
{
    struct dse_rope_config llama = {.theta = 500000,
                                    .dimensions = 128,
                                    .scaling = DSE_ROPE_LLAMA3,
                                    .factor = 8,
                                    .low_freq_factor = 1,
                                    .high_freq_factor = 4,
                                    .original_context = 8192};
    EXPECT(&llama, NULL, rope_r1_distill_llama, ROPE_R1_DISTILL_LLAMA_FACTOR);
    struct dse_rope_config qwen = {.theta = 1e6,
                                   .dimensions = 128,
                                   .scaling = DSE_ROPE_YARN,
                                   .factor = 4,
                                   .original_context = 32768,
                                   .beta_fast = 32,
                                   .beta_slow = 1};
    EXPECT(&qwen, NULL, rope_r1_0528_qwen3, ROPE_R1_0528_QWEN3_FACTOR);
    struct dse_rope_config v2 = {.theta = 10000,
                                 .dimensions = 64,
                                 .scaling = DSE_ROPE_YARN,
                                 .factor = 40,
                                 .original_context = 4096,
                                 .beta_fast = 32,
                                 .beta_slow = 1,
                                 .mscale = 0.707,
                                 .mscale_all_dim = 0.707};
    EXPECT(&v2, NULL, rope_v2_lite, ROPE_V2_LITE_FACTOR);
    v2.mscale = 1;
    v2.mscale_all_dim = 0.5;
    EXPECT(&v2, NULL, rope_unequal_mscales, ROPE_UNEQUAL_MSCALES_FACTOR);
}

static void explicit_factor_and_betas_are_honoured(void **state)
{
    struct dse_rope_config rope = {.theta = 10000,
                                   .dimensions = 64,
                                   .scaling = DSE_ROPE_YARN,
                                   .factor = 16,
                                   .original_context = 2048,
                                   .beta_fast = 64,
                                   .beta_slow = 2,
                                   .attention_factor = 1.25};
    EXPECT(&rope, NULL, rope_other_betas, ROPE_OTHER_BETAS_FACTOR);
    struct dse_rope_config same = {.theta = 10000,
                                   .dimensions = 4,
                                   .scaling = DSE_ROPE_YARN,
                                   .factor = 2,
                                   .original_context = 8,
                                   .beta_fast = 1,
                                   .beta_slow = 1};
    EXPECT(&same, NULL, rope_same_bounds, ROPE_SAME_BOUNDS_FACTOR);
}

/* Numbers by hand: m(a) = 0.1 a ln(40) + 1 with ln(40) = 3.6888794541139363. */
static void attention_scale_carries_the_square_of_yarns_magnitude_for_scaled_latent_attention_only(void **state)
{
    struct dse_config v2 = {.head_dim = 192, .latent = {.kv_rank = 512}};
    assert_true(fabs((double)dse_attention_scale(&v2) - 0.07216878364870322) < 1e-8);
    v2.rope = (struct dse_rope_config){
        .scaling = DSE_ROPE_YARN, .factor = 40, .mscale = 0.707, .mscale_all_dim = 0.707};
    assert_true(fabs((double)dse_attention_scale(&v2) - 0.11472138679292609) < 1e-8); /* times 1.2608037774... ^ 2 */
    v2.rope.mscale_all_dim = 1;
    assert_true(fabs((double)dse_attention_scale(&v2) - 0.1352337788608801) < 1e-8);
    static const enum dse_rope_scaling others[] = {DSE_ROPE_LINEAR, DSE_ROPE_LLAMA3};
    for (size_t i = 0; i < 2; i++) {
        v2.rope.scaling = others[i];
        assert_true(fabs((double)dse_attention_scale(&v2) - 0.1352337788608801) < 1e-8);
    }
    v2.rope.scaling = DSE_ROPE_NONE;
    assert_true(fabs((double)dse_attention_scale(&v2) - 0.07216878364870322) < 1e-8);
    v2.rope.scaling = DSE_ROPE_YARN;
    v2.rope.mscale_all_dim = 0;
    assert_true(fabs((double)dse_attention_scale(&v2) - 0.07216878364870322) < 1e-8);
    v2.rope.mscale_all_dim = 1;
    v2.rope.factor = 1;
    assert_true(fabs((double)dse_attention_scale(&v2) - 0.07216878364870322) < 1e-8);
    struct dse_config qwen = {.head_dim = 64};
    qwen.rope = (struct dse_rope_config){.scaling = DSE_ROPE_YARN, .factor = 4, .mscale_all_dim = 1};
    assert_true(dse_attention_scale(&qwen) == 0.125f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frequencies_of_the_fixtures_follow_the_formulas),
        cmocka_unit_test(divisors_of_a_gguf_give_llama3_scaling),
        cmocka_unit_test(frequencies_of_published_models_follow_the_formulas),
        cmocka_unit_test(explicit_factor_and_betas_are_honoured),
        cmocka_unit_test(attention_scale_carries_the_square_of_yarns_magnitude_for_scaled_latent_attention_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
