/* Block decoders against values that the public `gguf` package decoded, bit for bit, and half precision against its
 * definition. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/safetensors.h"
#include "quant/fp8.h"
#include "quant/types.h"
#include "temp_dir.h"

static void every_block_format_decodes_to_the_reference_bits(void **state)
{
    static const struct {
        const char *name;
        enum dse_type type;
    } types[] = {{"Q4_0", DSE_TYPE_Q4_0}, {"Q4_1", DSE_TYPE_Q4_1},     {"Q5_0", DSE_TYPE_Q5_0},
                 {"Q5_1", DSE_TYPE_Q5_1}, {"Q8_0", DSE_TYPE_Q8_0},     {"Q2_K", DSE_TYPE_Q2_K},
                 {"Q3_K", DSE_TYPE_Q3_K}, {"Q4_K", DSE_TYPE_Q4_K},     {"Q5_K", DSE_TYPE_Q5_K},
                 {"Q6_K", DSE_TYPE_Q6_K}, {"IQ4_NL", DSE_TYPE_IQ4_NL}, {"IQ4_XS", DSE_TYPE_IQ4_XS},
                 {"F16", DSE_TYPE_F16},   {"BF16", DSE_TYPE_BF16}};
    struct dse_safetensors *file;
    struct dse_error err;
    if (dse_safetensors_open(data_path("reference/quant_blocks.safetensors"), &file, &err) != DSE_OK)
        fail_msg("%s", err.message);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s.bytes", types[i].name);
        const struct dse_tensor *source = dse_safetensors_tensor(file, name);
        snprintf(name, sizeof name, "%s.values", types[i].name);
        const struct dse_tensor *wanted = dse_safetensors_tensor(file, name);
        assert_non_null(source);
        assert_non_null(wanted);
        const struct dse_type_info *info = dse_type_info(types[i].type);
        size_t elements = wanted->bytes / sizeof(float), row_bytes;
        assert_true(dse_type_row_bytes(types[i].type, elements, &row_bytes));
        assert_int_equal(row_bytes, source->bytes);
        assert_int_equal(info->block_bytes, source->shape[1]);
        assert_int_equal(info->block_elements, wanted->shape[1]);
        float *got = malloc(wanted->bytes);
        dse_type_decode(types[i].type, source->data, got, elements);
        if (memcmp(got, wanted->data, wanted->bytes) != 0) {
            /* Only the sign of a zero may differ from the package. */
            for (size_t k = 0; k < elements; k++) {
                float want;
                memcpy(&want, (const char *)wanted->data + 4 * k, 4);
                if (memcmp(&got[k], &want, 4) != 0 && !(got[k] == 0 && want == 0))
                    fail_msg("%s: value %zu is %.9g, expected %.9g", types[i].name, k, (double)got[k], (double)want);
            }
        }
        free(got);
    }
    dse_safetensors_close(file);
}

static void decoding_reads_blocks_at_any_alignment(void **state)
{
    uint8_t raw[1 + 2 * 34];
    float got[64];
    memset(raw, 0, sizeof raw);
    raw[1 + 1] = 0x3C; /* d = 1 */
    raw[1 + 2] = 0xFF; /* q = -1 */
    raw[1 + 34 + 1] = 0x40;
    raw[1 + 34 + 33] = 5;
    dse_type_decode(DSE_TYPE_Q8_0, raw + 1, got, 64);
    assert_true(got[0] == -1 && got[63] == 10);
    double doubles[2] = {1.5, -1e300};
    dse_type_decode(DSE_TYPE_F64, doubles, got, 2);
    assert_true(got[0] == 1.5f && isinf(got[1]) && got[1] < 0);
}

/* Random blocks come near to the bound of every type that has one, and none passes it. */
static void no_block_decodes_to_more_than_its_scales_allow(void **state)
{
    static const struct {
        enum dse_type type;
        int scale, minimum; /* where they lie; minimum < 0: none */
    } types[] = {{DSE_TYPE_Q4_0, 0, -1}, {DSE_TYPE_Q4_1, 0, 2},    {DSE_TYPE_Q5_0, 0, -1},   {DSE_TYPE_Q5_1, 0, 2},
                 {DSE_TYPE_Q8_0, 0, -1}, {DSE_TYPE_Q2_K, 80, 82},  {DSE_TYPE_Q3_K, 108, -1}, {DSE_TYPE_Q4_K, 0, 2},
                 {DSE_TYPE_Q5_K, 0, 2},  {DSE_TYPE_Q6_K, 208, -1}, {DSE_TYPE_IQ4_NL, 0, -1}, {DSE_TYPE_IQ4_XS, 0, -1}};
    (void)state;
    uint32_t random = 1;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        const struct dse_type_info *info = dse_type_info(types[t].type);
        float nearest = 0;
        for (int n = 0; n < 4000; n++) {
            uint8_t block[256];
            float values[256], largest = 0;
            for (int i = 0; i < info->block_bytes; i++) {
                random = random * 1664525u + 1013904223u;
                block[i] = (uint8_t)(random >> 24);
            }
            /* any sign, an exponent such that neither the scale nor the minimum alone decides */
            block[types[t].scale + 1] = (uint8_t)((block[types[t].scale + 1] & 0x83) | 0x50);
            if (types[t].minimum >= 0)
                block[types[t].minimum + 1] = (uint8_t)((block[types[t].minimum + 1] & 0x83) | 0x50);
            dse_type_decode(types[t].type, block, values, (size_t)info->block_elements);
            for (int i = 0; i < info->block_elements; i++)
                largest = fabsf(values[i]) > largest ? fabsf(values[i]) : largest;
            const float bound = dse_type_block_bound(types[t].type, block);
            if (!(largest <= bound))
                fail_msg("%s: %g is above the bound %g", info->name, (double)largest, (double)bound);
            nearest = largest / bound > nearest ? largest / bound : nearest;
        }
        if (!(nearest > 0.9f)) fail_msg("%s: no block comes near to its bound: %g", info->name, (double)nearest);
    }
    const uint8_t infinite[34] = {0x00, 0xFC};
    assert_true(isinf(dse_type_block_bound(DSE_TYPE_Q8_0, infinite)));
    assert_true(isinf(dse_type_block_bound(DSE_TYPE_F32, infinite)));
}

/* The value by the definition of binary16, without any of the code under test. */
static double half_value(unsigned h)
{
    int exponent = h >> 10 & 31;
    double mantissa = (h & 1023) / 1024.0;
    double magnitude = exponent == 0 ? ldexp(mantissa, -14) : ldexp(1 + mantissa, exponent - 15);
    return h & 0x8000 ? -magnitude : magnitude;
}

static void all_halves_convert_exactly_and_back(void **state)
{
    for (unsigned h = 0; h <= 0xFFFF; h++) {
        float f = dse_f16_to_f32((uint16_t)h);
        bool special = (h & 0x7C00) == 0x7C00;
        if (special && (h & 0x3FF) != 0) {
            assert_true(isnan(f));
            uint16_t back = dse_f32_to_f16(f);
            assert_true((back & 0x7C00) == 0x7C00 && (back & 0x3FF) != 0);
            continue;
        }
        if (special)
            assert_true(isinf(f) && (signbit(f) != 0) == (h >> 15 != 0));
        else
            assert_true((double)f == half_value(h) && (signbit(f) != 0) == (h >> 15 != 0));
        assert_int_equal(dse_f32_to_f16(f), h);
    }
}

static void floats_round_to_the_nearest_half_and_ties_to_even(void **state)
{
    for (unsigned h = 0; h < 0x7BFF; h++) {
        double low = half_value(h), high = half_value(h + 1), middle = (low + high) / 2;
        float m = (float)middle; /* exact: one more bit than a half */
        assert_int_equal(dse_f32_to_f16(m), h & 1 ? h + 1 : h);
        assert_int_equal(dse_f32_to_f16(nextafterf(m, 0)), h);
        assert_int_equal(dse_f32_to_f16(nextafterf(m, INFINITY)), h + 1);
        assert_int_equal(dse_f32_to_f16(-m), 0x8000 | (h & 1 ? h + 1 : h));
    }
    assert_int_equal(dse_f32_to_f16(65519.996f), 0x7BFF);
    assert_int_equal(dse_f32_to_f16(65520.0f), 0x7C00);
    assert_int_equal(dse_f32_to_f16(3e38f), 0x7C00);
    assert_int_equal(dse_f32_to_f16(-1e-30f), 0x8000);
}

static void row_bytes_refuses_partial_blocks_overflow_and_unknown_types(void **state)
{
    size_t bytes = 7;
    assert_true(dse_type_row_bytes(DSE_TYPE_Q4_K, 512, &bytes));
    assert_int_equal(bytes, 288);
    assert_false(dse_type_row_bytes(DSE_TYPE_Q4_K, 288, &bytes));
    assert_false(dse_type_row_bytes(DSE_TYPE_Q8_0, 33, &bytes));
    assert_false(dse_type_row_bytes(DSE_TYPE_F32, SIZE_MAX / 2, &bytes));
    assert_false(dse_type_row_bytes(DSE_TYPE_Q8_0, SIZE_MAX - 31, &bytes));
    for (uint32_t type = 0; type < 4096; type++) {
        const struct dse_type_info *info = dse_type_info(type);
        if (info == NULL)
            assert_false(dse_type_row_bytes((enum dse_type)type, 256, &bytes));
        else
            assert_true(info->block_bytes > 0 && info->block_elements > 0);
    }
    assert_null(dse_type_info(4));
    assert_null(dse_type_info(UINT32_MAX));
    assert_null(dse_type_info(DSE_TYPE_UNREADABLE));
}

static void every_e4m3_byte_decodes_to_the_reference_bits(void **state)
{
    struct dse_safetensors *file;
    struct dse_error err;
    if (dse_safetensors_open(data_path("reference/quant_blocks.safetensors"), &file, &err) != DSE_OK)
        fail_msg("%s", err.message);
    const struct dse_tensor *wanted = dse_safetensors_tensor(file, "e4m3.values");
    assert_non_null(wanted);
    for (int b = 0; b < 256; b++) {
        uint8_t byte = (uint8_t)b;
        float want, got = dse_f8_e4m3_to_f32(byte), table;
        memcpy(&want, (const char *)wanted->data + 4 * b, 4);
        dse_type_decode(DSE_TYPE_F8_E4M3, &byte, &table, 1);
        assert_memory_equal(&got, &table, 4);
        assert_int_equal(isnan(want), (b & 0x7F) == 0x7F);
        assert_true(isnan(want) ? isnan(got) : memcmp(&got, &want, 4) == 0);
    }
    dse_safetensors_close(file);
}

/* 144 x 200 weights: partial blocks on both edges. */
static void fp8_matrices_decode_to_the_reference_bits_from_any_row(void **state)
{
    struct dse_safetensors *file;
    struct dse_error err;
    if (dse_safetensors_open(data_path("reference/quant_blocks.safetensors"), &file, &err) != DSE_OK)
        fail_msg("%s", err.message);
    const struct dse_tensor *weight = dse_safetensors_tensor(file, "fp8block.weight");
    const struct dse_tensor *scales = dse_safetensors_tensor(file, "fp8block.weight_scale_inv");
    const struct dse_tensor *wanted = dse_safetensors_tensor(file, "fp8block.values");
    assert_true(weight != NULL && scales != NULL && wanted != NULL);
    size_t rows = wanted->shape[0], columns = wanted->shape[1];
    assert_true(rows == 144 && columns == 200);
    float *got = malloc(wanted->bytes);
    char *unaligned = malloc(scales->bytes + 1);
    memcpy(unaligned + 1, scales->data, scales->bytes);
    static const size_t steps[] = {144, 1, 37};
    for (size_t s = 0; s < sizeof steps / sizeof *steps; s++) {
        memset(got, 0xFF, wanted->bytes);
        for (size_t r = 0; r < rows; r += steps[s]) {
            size_t count = rows - r < steps[s] ? rows - r : steps[s];
            dse_fp8_decode_rows(weight->data, unaligned + 1, columns, r, count, got + r * columns);
        }
        assert_memory_equal(got, wanted->data, wanted->bytes);
    }
    free(unaligned);
    free(got);
    dse_safetensors_close(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_block_format_decodes_to_the_reference_bits),
        cmocka_unit_test(no_block_decodes_to_more_than_its_scales_allow),
        cmocka_unit_test(decoding_reads_blocks_at_any_alignment),
        cmocka_unit_test(all_halves_convert_exactly_and_back),
        cmocka_unit_test(floats_round_to_the_nearest_half_and_ties_to_even),
        cmocka_unit_test(every_e4m3_byte_decodes_to_the_reference_bits),
        cmocka_unit_test(fp8_matrices_decode_to_the_reference_bits_from_any_row),
        cmocka_unit_test(row_bytes_refuses_partial_blocks_overflow_and_unknown_types),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
