/* The activation quantizer: every variant against the scalar one, the scalar one against its definition. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernel_data.h"
#include "kernels/dispatch.h"
#include "kernels/prototypes.h"

enum { COLS = 64 * 32, BLOCKS = COLS / 32 };

struct row {
    int8_t values[COLS];
    float scales[BLOCKS], sums[BLOCKS];
    int16_t half_sums[2 * BLOCKS];
};

static void quantize(dse_quantize_fn *fn, const float *x, struct row *out)
{
    memset(out, 0x55, sizeof *out);
    fn(x, COLS, out->values, out->scales, out->sums, out->half_sums);
}

/* One kind of trouble per block, random otherwise. */
static void fill(float *x, uint64_t seed)
{
    uint64_t state = seed;
    for (int b = 0; b < BLOCKS; b++)
        for (int i = 0; i < 32; i++) {
            float v = random_unit(&state);
            switch (b) {
            case 1: v = 0.0f; break;
            case 2: v = i % 2 ? -0.0f : 0.0f; break;
            case 3: v *= 0x1p-140f; break;
            case 4: v *= 0x1p-99f; break;
            case 5: v *= 0x1p126f; break;
            case 6: v = i == 9 ? INFINITY : v; break;
            case 7: v = i == 31 ? NAN : v; break;
            case 8: v = i == 0 ? -NAN : i == 1 ? INFINITY : v; break;
            case 9: v = (float)(i - 16) + 0.5f; break;                   /* ties after scaling */
            case 10: v = i == 3 ? 127.0f : (float)(i % 7) + 0.5f; break; /* exact ties */
            case 11: v = i % 2 ? 1.0f : -1.0f; break;
            case 12: v = i == 5 ? -50.0f : v * 0.01f; break;
            case 13: v = 0x1p-100f; break;
            case 14: v = 0x1.fffffep-101f; break;
            default: break;
            }
            x[32 * b + i] = v;
        }
}

static void every_variant_gives_the_bits_of_the_scalar_quantizer(void **state)
{
    static float x[COLS];
    static struct row expected, got;
    for (uint64_t seed = 0; seed < 50; seed++) {
        fill(x, seed);
        quantize(dse_quantize_s8_scalar, x, &expected);
        for (size_t i = 0; i < dse_kernel_count(); i++) {
            const struct dse_kernel *k = dse_kernel_at(i);
            if (strcmp(k->op, "quantize") != 0 || !dse_kernel_usable(k)) continue;
            quantize((dse_quantize_fn *)k->function, x, &got);
            for (int b = 0; b < BLOCKS; b++) {
                if (memcmp(got.values + 32 * b, expected.values + 32 * b, 32) != 0 ||
                    memcmp(got.half_sums + 2 * b, expected.half_sums + 2 * b, 4) != 0)
                    fail_msg("%s: values of block %d", k->isa, b);
                if (isnan(expected.scales[b]))
                    assert_true(isnan(got.scales[b]) && isnan(got.sums[b]));
                else if (memcmp(&got.scales[b], &expected.scales[b], 4) != 0 ||
                         memcmp(&got.sums[b], &expected.sums[b], 4) != 0)
                    fail_msg("%s: scale of block %d is %a, not %a", k->isa, b, (double)got.scales[b],
                             (double)expected.scales[b]);
            }
        }
    }
}

static void values_are_within_half_a_step_and_sums_agree(void **state)
{
    static float x[COLS];
    static struct row q;
    fill(x, 99);
    quantize(dse_quantize_s8_scalar, x, &q);
    for (int b = 0; b < BLOCKS; b++) {
        int sum[2] = {0, 0};
        for (int i = 0; i < 32; i++)
            sum[i / 16] += q.values[32 * b + i];
        assert_int_equal(q.half_sums[2 * b], sum[0]);
        assert_int_equal(q.half_sums[2 * b + 1], sum[1]);
        if (b >= 6 && b <= 8) {
            assert_true(isnan(q.scales[b]));
            continue;
        }
        assert_true(q.sums[b] == q.scales[b] * (float)(sum[0] + sum[1]));
        for (int i = 0; i < 32; i++) {
            int v = q.values[32 * b + i];
            double error = fabs((double)x[32 * b + i] - v * (double)q.scales[b]);
            assert_in_range(v + 127, 0, 254);
            assert_true(error <= 0.5 * (double)q.scales[b] * (1 + 1e-4) || (double)fabsf(x[32 * b + i]) < 0x1p-100);
        }
    }
    assert_true(q.scales[1] == 0.0f && q.scales[3] == 0.0f && q.scales[14] == 0.0f && q.scales[13] > 0.0f);
    /* 0.5, 1.5, 2.5 … at scale 1 round to even */
    static const int8_t even[7] = {0, 2, 2, 4, 4, 6, 6};
    for (int i = 0; i < 32; i++)
        assert_int_equal(q.values[320 + i], i == 3 ? 127 : even[i % 7]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_variant_gives_the_bits_of_the_scalar_quantizer),
        cmocka_unit_test(values_are_within_half_a_step_and_sums_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
