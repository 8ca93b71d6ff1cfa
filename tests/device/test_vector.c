/* Vector and attention kernels: every variant against the scalar one bit for bit, the scalar one against f64. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device_data.h"
#include "kernels/attention.h"
#include "kernels/dispatch.h"
#include "kernels/vector.h"

enum { N = 700 };
static const size_t sizes[] = {1, 2, 7, 15, 16, 17, 31, 32, 33, 64, 72, 80, 96, 100, 255, 256, 576, 700};
enum { N_SIZES = sizeof sizes / sizeof sizes[0] };

/* Calls fn for every usable variant of an op but the scalar one; asserts nothing when there is none. */
static const struct dse_kernel *scalar_of(const char *op, const char *types)
{
    for (size_t i = 0; i < dse_kernel_count(); i++) {
        const struct dse_kernel *k = dse_kernel_at(i);
        if (strcmp(k->op, op) == 0 && strcmp(k->types, types) == 0 && strcmp(k->isa, "scalar") == 0) return k;
    }
    fail_msg("no scalar %s %s", op, types);
    return NULL;
}

static const struct dse_kernel *next_variant(const char *op, const char *types, size_t *cursor)
{
    while (*cursor < dse_kernel_count()) {
        const struct dse_kernel *k = dse_kernel_at((*cursor)++);
        if (strcmp(k->op, op) == 0 && strcmp(k->types, types) == 0 && strcmp(k->isa, "scalar") != 0 &&
            dse_kernel_usable(k))
            return k;
    }
    return NULL;
}

static void fill_hard(struct random *random, float *out, size_t n)
{
    static const float hard[] = {0.0f,  -0.0f,  1e-40f, -1e-40f,  3e38f,     -3e38f, 88.0f,    -88.0f,
                                 87.0f, -87.0f, 1e-20f, 65504.0f, -65520.0f, 6e-8f,  2.98e-8f, 1.0f};
    for (size_t i = 0; i < n; i++)
        out[i] = random_u32(random) % 3 == 0 ? hard[random_u32(random) % 16] : random_float(random, -30.0f, 30.0f);
}

static void rmsnorm_variants_equal_scalar(void **state)
{
    struct random random = {3};
    float x[N], w[N], a[N], b[N];
    dse_rmsnorm_fn *reference = (dse_rmsnorm_fn *)scalar_of("rmsnorm", "f32")->function;
    const struct dse_kernel *k;
    for (size_t c = 0; (k = next_variant("rmsnorm", "f32", &c)) != NULL;) {
        for (size_t s = 0; s < 2 * N_SIZES; s++) {
            size_t n = sizes[s % N_SIZES];
            random_fill(&random, w, n, -2.0f, 2.0f);
            if (s < N_SIZES)
                random_fill(&random, x, n, -9.0f, 9.0f);
            else
                fill_hard(&random, x, n);
            reference(x, w, n, 1e-5f, a);
            ((dse_rmsnorm_fn *)k->function)(x, w, n, 1e-5f, b);
            assert_same_bits(a, b, n, k->isa);
        }
    }
}

static void rmsnorm_is_close_to_f64(void **state)
{
    struct random random = {4};
    float x[N], w[N], out[N];
    struct dse_vector_ops ops;
    dse_vector_ops_pick(&ops);
    for (size_t s = 0; s < N_SIZES; s++) {
        size_t n = sizes[s];
        double square = 0;
        random_fill(&random, x, n, -9.0f, 9.0f);
        random_fill(&random, w, n, -2.0f, 2.0f);
        for (size_t i = 0; i < n; i++)
            square += (double)x[i] * x[i];
        ops.rmsnorm(x, w, n, 1e-6f, out);
        for (size_t i = 0; i < n; i++) {
            double want = x[i] / sqrt(square / (double)n + 1e-6) * w[i];
            assert_true(fabs(out[i] - want) <= 1e-6 * fabs(want) + 1e-12);
        }
        ops.rmsnorm(x, w, n, 1e-6f, x);
        assert_same_bits(x, out, n, "in place");
    }
}

static void silu_mul_variants_equal_scalar(void **state)
{
    struct random random = {5};
    float g[N], u[N], a[N], b[N];
    dse_silu_mul_fn *reference = (dse_silu_mul_fn *)scalar_of("silu_mul", "f32")->function;
    const struct dse_kernel *k;
    for (size_t c = 0; (k = next_variant("silu_mul", "f32", &c)) != NULL;) {
        for (size_t s = 0; s < N_SIZES; s++) {
            fill_hard(&random, g, sizes[s]);
            fill_hard(&random, u, sizes[s]);
            g[0] = s % 2 == 0 ? NAN : INFINITY;
            reference(g, u, sizes[s], a);
            ((dse_silu_mul_fn *)k->function)(g, u, sizes[s], b);
            assert_same_bits(a, b, sizes[s], k->isa);
        }
    }
}

static void silu_mul_is_close_to_f64(void **state)
{
    struct dse_vector_ops ops;
    dse_vector_ops_pick(&ops);
    for (int i = -12000; i <= 12000; i++) {
        float g = (float)i / 100.0f, u = 1.5f, out;
        double want = g / (1.0 + exp(-(double)g)) * 1.5;
        ops.silu_mul(&g, &u, 1, &out);
        assert_true(fabs(out - want) <= 5e-7 * fabs(want) + 1e-35);
    }
    float nan = NAN, one = 1.0f, out;
    ops.silu_mul(&nan, &one, 1, &out);
    assert_true(isnan(out));
}

static void softmax_variants_equal_scalar(void **state)
{
    struct random random = {6};
    float a[N + 16], b[N + 16], oa[N], ob[N];
    dse_softmax_fn *reference = (dse_softmax_fn *)scalar_of("softmax", "f32")->function;
    const struct dse_kernel *k;
    for (size_t c = 0; (k = next_variant("softmax", "f32", &c)) != NULL;) {
        for (size_t s = 0; s < N_SIZES; s++) {
            float ma, mb;
            random_fill(&random, a, sizes[s], -120.0f, 10.0f);
            memcpy(b, a, sizes[s] * sizeof *a);
            float la = reference(a, sizes[s], &ma), lb = ((dse_softmax_fn *)k->function)(b, sizes[s], &mb);
            assert_same_bits(&la, &lb, 1, "sum");
            assert_same_bits(&ma, &mb, 1, "largest");
            assert_same_bits(a, b, (sizes[s] + 15) / 16 * 16, k->isa);
        }
    }
    dse_softmax_merge_fn *merge = (dse_softmax_merge_fn *)scalar_of("softmax_merge", "f32")->function;
    for (size_t c = 0; (k = next_variant("softmax_merge", "f32", &c)) != NULL;) {
        for (size_t s = 0; s < N_SIZES; s++) {
            float ma = random_float(&random, -9, 9), la = random_float(&random, 1, 99), mb = ma, lb = la, other[N];
            float m2 = random_float(&random, -9, 9), l2 = random_float(&random, 1, 99);
            random_fill(&random, oa, sizes[s], -3, 3);
            memcpy(ob, oa, sizeof oa);
            random_fill(&random, other, sizes[s], -3, 3);
            merge(&ma, &la, oa, m2, l2, other, sizes[s]);
            ((dse_softmax_merge_fn *)k->function)(&mb, &lb, ob, m2, l2, other, sizes[s]);
            assert_same_bits(&la, &lb, 1, "merged sum");
            assert_same_bits(&ma, &mb, 1, "merged largest");
            assert_same_bits(oa, ob, sizes[s], k->isa);
        }
    }
}

/* What becomes of a NaN depends on which operand of a maximum it is; all instruction sets take the same one. */
static void softmax_variants_treat_nan_and_zeros_of_both_signs_alike(void **state)
{
    enum { WIDTH = 48 };
    dse_softmax_fn *reference = (dse_softmax_fn *)scalar_of("softmax", "f32")->function;
    const struct dse_kernel *k;
    for (size_t c = 0; (k = next_variant("softmax", "f32", &c)) != NULL;) {
        for (size_t at = 0; at < WIDTH; at++) {
            float a[WIDTH], b[WIDTH], ma, mb;
            for (size_t i = 0; i < WIDTH; i++)
                a[i] = i == at ? NAN : (i + at) % 3 == 0 ? 0.0f : -0.0f;
            memcpy(b, a, sizeof a);
            float la = reference(a, WIDTH, &ma), lb = ((dse_softmax_fn *)k->function)(b, WIDTH, &mb);
            assert_true(isnan(la));
            assert_same_bits(&la, &lb, 1, "sum");
            assert_same_bits(&ma, &mb, 1, "largest");
            assert_same_bits(a, b, WIDTH, k->isa);
        }
    }
}

static void softmax_is_close_to_f64_and_zero_beyond_n(void **state)
{
    struct random random = {7};
    struct dse_vector_ops ops;
    dse_vector_ops_pick(&ops);
    for (size_t s = 0; s < N_SIZES; s++) {
        float x[N + 16], e[N + 16], largest;
        size_t n = sizes[s];
        double sum = 0;
        random_fill(&random, x, n, -40.0f, 10.0f);
        for (size_t i = n; i < n + 16; i++)
            e[i] = NAN;
        memcpy(e, x, n * sizeof *x);
        float got = ops.softmax(e, n, &largest);
        for (size_t i = 0; i < n; i++) {
            double want = exp((double)(x[i] - largest)); /* the difference is an f32 one */
            sum += want;
            assert_true(x[i] <= largest);
            assert_true(fabs(e[i] - want) <= 4e-7 * want + 1e-30);
        }
        assert_true(fabs(got - sum) <= 2e-6 * sum);
        for (size_t i = n; i < (n + 15) / 16 * 16; i++)
            assert_true(e[i] == 0.0f);
    }
}

static void half_precision_equals_the_reference_conversion(void **state)
{
    struct random random = {8};
    struct dse_vector_ops ops;
    dse_vector_ops_pick(&ops);
    static uint16_t all[65536], back[65536];
    static float wide[65536];
    for (int i = 0; i < 65536; i++)
        all[i] = (uint16_t)i;
    ops.widen(all, 65536, wide);
    for (int i = 0; i < 65536; i++) {
        float want = dse_f16_to_f32((uint16_t)i);
        assert_same_bits(&wide[i], &want, 1, "widen");
    }
    ops.narrow(wide, 65536, back);
    for (int i = 0; i < 65536; i++) {
        if (isnan(wide[i]))
            assert_true(isnan(dse_f16_to_f32(back[i])));
        else
            assert_int_equal(back[i], isinf(wide[i]) ? i - 1 : i); /* the largest value is next to infinity */
    }
    for (size_t s = 0; s < N_SIZES; s++) {
        float x[N];
        uint16_t half[N];
        fill_hard(&random, x, sizes[s]);
        ops.narrow(x, sizes[s], half);
        for (size_t i = 0; i < sizes[s]; i++)
            assert_int_equal(half[i], dse_f32_to_f16(fmaxf(-65504, fminf(x[i], 65504))));
    }
}

static void attention_product_variants_equal_scalar(void **state)
{
    enum { COLUMNS = 32, K = 80, WIDTH = 96 };
    static float a[COLUMNS * K], b[K * WIDTH], out_a[COLUMNS * WIDTH], out_b[COLUMNS * WIDTH];
    static uint16_t half[K * WIDTH];
    static const char *const types[] = {"f16", "f32"};
    struct random random = {9};
    random_fill(&random, a, COLUMNS * K, -2, 2);
    random_fill(&random, b, K * WIDTH, -2, 2);
    for (size_t i = 0; i < K * WIDTH; i++)
        half[i] = dse_f32_to_f16(b[i]);
    for (int t = 0; t < 2; t++) {
        dse_attention_fn *reference = (dse_attention_fn *)scalar_of("attention", types[t])->function;
        const void *operand = t == 0 ? (const void *)half : b;
        const struct dse_kernel *kernel;
        for (size_t c = 0; (kernel = next_variant("attention", types[t], &c)) != NULL;) {
            for (size_t columns = 1; columns <= COLUMNS; columns++) {
                size_t k = 1 + (columns * 7) % K, n = 16 * (1 + columns % 6);
                bool add = columns % 2 == 0;
                random_fill(&random, out_a, COLUMNS * WIDTH, -1, 1);
                memcpy(out_b, out_a, sizeof out_a);
                reference(a, K, columns, operand, WIDTH, k, n, out_a, WIDTH, add);
                ((dse_attention_fn *)kernel->function)(a, K, columns, operand, WIDTH, k, n, out_b, WIDTH, add);
                assert_same_bits(out_a, out_b, COLUMNS * WIDTH, kernel->isa);
            }
        }
    }
}

static void blocks_of_32_expand_as_the_type_decodes(void **state)
{
    enum { BLOCKS = 37 };
    struct random random = {9};
    struct dse_vector_ops ops;
    dse_vector_ops_pick(&ops);
    static uint8_t blocks[BLOCKS * 34];
    static float got[BLOCKS * 32 + 1], want[BLOCKS * 32];
    for (size_t i = 0; i < sizeof blocks; i++)
        blocks[i] = (uint8_t)random_u32(&random);
    memcpy(blocks, (const uint16_t[]){0x7e00}, 2); /* a NaN scale: the whole block */
    dse_type_decode(DSE_TYPE_Q8_0, blocks, want, BLOCKS * 32);
    for (size_t n = 1; n <= BLOCKS; n++) {
        got[n * 32] = 7;
        ops.expand(blocks, n * 32, got);
        assert_same_bits(got, want, n * 32, "expand");
        assert_true(got[n * 32] == 7.0f);
    }
}

/* One kind of trouble per block, random otherwise. */
static void fill_blocks(struct random *random, float *x, size_t n_blocks)
{
    for (size_t b = 0; b < n_blocks; b++)
        for (int i = 0; i < 32; i++) {
            float v = random_float(random, -3.0f, 3.0f);
            switch (b % 16) {
            case 1: v = i % 2 != 0 ? -0.0f : 0.0f; break;
            case 2: v *= 0x1p-140f; break;
            case 3: v *= 0x1p-18f; break; /* the scale is a subnormal half, */
            case 4: v *= 0x1p-24f; break; /* or none at all */
            case 5: v = i == 9 ? INFINITY : v; break;
            case 6: v = i == 31 ? NAN : v; break;
            case 7: v = i == 0 ? -NAN : i == 1 ? -INFINITY : v; break;
            case 8: v *= 1e7f; break; /* beyond the largest scale */
            case 9: v = i == 20 ? -3e38f : v; break;
            case 10: v = i == 3 ? 127.0f : (float)(i % 7) + 0.5f; break; /* exact ties */
            case 11: v = i == 5 ? 127.0f * 65504.0f : v * 1e6f; break;
            case 12: v = i == 5 ? -127.0f * 65530.0f : v * 1e6f; break; /* its half would be infinity */
            default: break;
            }
            x[32 * b + (size_t)i] = v;
        }
}

/* Written from the comment in vector.h. */
static void shrink_by_definition(const float *x, uint8_t *block)
{
    float most = 0;
    bool finite = true;
    for (int i = 0; i < 32; i++) {
        finite = finite && isfinite(x[i]);
        most = fmaxf(most, fabsf(x[i]));
    }
    uint16_t half = dse_f32_to_f16(fminf(most / 127.0f, 65504.0f));
    float scale = dse_f16_to_f32(half);
    if (!finite) half = 0x7e00;
    memcpy(block, &half, 2);
    for (int i = 0; i < 32; i++) {
        float value = finite && scale > 0 ? rintf(x[i] / scale) : 0;
        block[2 + i] = (uint8_t)(int8_t)fmaxf(-127, fminf(value, 127));
    }
}

static void every_variant_shrinks_blocks_of_32_as_defined(void **state)
{
    enum { BLOCKS = 37 };
    struct random random = {10};
    static float x[BLOCKS * 32];
    static uint8_t want[BLOCKS * 34], got[BLOCKS * 34 + 1];
    int variants = 0;
    for (int round = 0; round < 50; round++) {
        fill_blocks(&random, x, BLOCKS);
        for (size_t b = 0; b < BLOCKS; b++)
            shrink_by_definition(x + 32 * b, want + 34 * b);
        for (size_t k = 0; k < dse_kernel_count(); k++) {
            const struct dse_kernel *kernel = dse_kernel_at(k);
            if (strcmp(kernel->op, "shrink") != 0 || !dse_kernel_usable(kernel)) continue;
            variants++;
            for (size_t n = 1; n <= BLOCKS; n++) {
                memset(got, 0x55, sizeof got);
                ((dse_shrink_fn *)kernel->function)(x, n * 32, got);
                for (size_t i = 0; i < 34 * n; i++)
                    if (got[i] != want[i])
                        fail_msg("%s: byte %zu of block %zu is %02x, not %02x", kernel->isa, i % 34, i / 34, got[i],
                                 want[i]);
                assert_int_equal(got[34 * n], 0x55);
            }
        }
    }
    assert_true(variants >= 50);
}

static void what_a_block_cannot_hold_becomes_its_largest_value(void **state)
{
    struct dse_vector_ops ops;
    dse_vector_ops_pick(&ops);
    float x[32] = {3e38f, -3e38f, 127.0f * 65504.0f, 65504.0f, -131008.0f, 1e7f}, back[32];
    const float want[32] = {8319008.0f, -8319008.0f, 8319008.0f, 65504.0f, -131008.0f, 8319008.0f};
    uint8_t block[34];
    ops.shrink(x, 32, block);
    ops.expand(block, 32, back);
    assert_same_bits(back, want, 32, "beyond the largest scale");
    x[31] = INFINITY;
    ops.shrink(x, 32, block);
    ops.expand(block, 32, back);
    for (int i = 0; i < 32; i++)
        assert_true(isnan(back[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rmsnorm_variants_equal_scalar),
        cmocka_unit_test(rmsnorm_is_close_to_f64),
        cmocka_unit_test(silu_mul_variants_equal_scalar),
        cmocka_unit_test(silu_mul_is_close_to_f64),
        cmocka_unit_test(softmax_variants_equal_scalar),
        cmocka_unit_test(softmax_variants_treat_nan_and_zeros_of_both_signs_alike),
        cmocka_unit_test(softmax_is_close_to_f64_and_zero_beyond_n),
        cmocka_unit_test(half_precision_equals_the_reference_conversion),
        cmocka_unit_test(blocks_of_32_expand_as_the_type_decodes),
        cmocka_unit_test(every_variant_shrinks_blocks_of_32_as_defined),
        cmocka_unit_test(what_a_block_cannot_hold_becomes_its_largest_value),
        cmocka_unit_test(attention_product_variants_equal_scalar),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
