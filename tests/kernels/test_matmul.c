/* Every matmul variant of kernels.def that this CPU can run, against the bits of the scalar one; the scalar one against
 * f64; and dse_matmul's own promises. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "kernel_data.h"
#include "kernels/dispatch.h"
#include "kernels/prototypes.h"
#include "quant/fp8.h"

static const size_t row_counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 33};
#define MAX_ROWS 33

static bool cols_fit(enum dse_type type, size_t cols)
{
    size_t bytes;
    return dse_type_row_bytes(type, cols, &bytes);
}

static dse_matmul_fn *find_kernel(enum dse_layout layout, const char *isa)
{
    for (size_t i = 0; i < dse_kernel_count(); i++) {
        const struct dse_kernel *k = dse_kernel_at(i);
        if (strcmp(k->op, "matmul") == 0 && strcmp(k->types, dse_layout_name(layout)) == 0 && strcmp(k->isa, isa) == 0)
            return (dse_matmul_fn *)k->function;
    }
    return NULL;
}

/* All panels of w times n_rows rows. Returns owned (dse_free). */
static float *run_kernel(dse_matmul_fn *kernel, const struct dse_matrix *w, const struct dse_activation *act,
                         size_t first_row, size_t n_rows)
{
    size_t n_panels = (w->rows + DSE_PANEL_ROWS - 1) / DSE_PANEL_ROWS;
    float *out = dse_calloc(DSE_MEM_MISC, n_panels * n_rows * DSE_PANEL_ROWS, sizeof(float));
    const struct dse_matmul_job job = {
        .panels = w->data,
        .panel_bytes = w->panel_bytes,
        .n_panels = n_panels,
        .cols = w->cols,
        .act = act,
        .first_row = first_row,
        .n_rows = n_rows,
        .out = out,
    };
    assert_non_null(out);
    kernel(&job);
    return out;
}

static void compare_variants_of(const struct dse_matrix *w, enum data_kind kind)
{
    struct test_activation t = make_activation(MAX_ROWS, w->cols, kind, w->cols);
    dse_matmul_fn *scalar = find_kernel(w->layout, "scalar");
    size_t panels = (w->rows + DSE_PANEL_ROWS - 1) / DSE_PANEL_ROWS;
    assert_non_null(w->data);
    assert_non_null(scalar);
    float *expected = run_kernel(scalar, w, &t.act, 0, MAX_ROWS);

    for (size_t i = 0; i < dse_kernel_count(); i++) {
        const struct dse_kernel *k = dse_kernel_at(i);
        if (strcmp(k->op, "matmul") != 0 || strcmp(k->types, dse_layout_name(w->layout)) != 0 || !dse_kernel_usable(k))
            continue;
        for (size_t c = 0; c < sizeof row_counts / sizeof row_counts[0]; c++) {
            size_t n = row_counts[c], first = (MAX_ROWS - n) / 2;
            float *got = run_kernel((dse_matmul_fn *)k->function, w, &t.act, first, n);
            for (size_t p = 0; p < panels; p++)
                if (memcmp(got + p * n * DSE_PANEL_ROWS, expected + (p * MAX_ROWS + first) * DSE_PANEL_ROWS,
                           n * DSE_PANEL_ROWS * sizeof(float)) != 0)
                    fail_msg("%s %s of %s: %zux%zu, %zu rows, panel %zu, data %d", k->isa, k->types,
                             dse_type_info((uint32_t)w->source_type)->name, w->rows, w->cols, n, p, (int)kind);
            dse_free(got);
        }
    }
    dse_free(expected);
    free_activation(&t);
}

static void compare_variants(enum dse_type type, size_t rows, size_t cols, enum data_kind kind)
{
    uint8_t *source = make_source(type, rows, cols, kind, rows + cols);
    struct dse_matrix w = make_matrix(type, source, rows, cols);
    compare_variants_of(&w, kind);
    free_matrix(&w);
    dse_free(source);
}

/* Rows [skip, rows) with the scales of their blocks: panels may lie across two of them. */
static void compare_fp8_variants(size_t rows, size_t cols, size_t skip, enum data_kind kind)
{
    uint8_t *source = make_source(DSE_TYPE_F8_E4M3, rows, cols, kind, rows + cols);
    float *scales = make_fp8_scales(rows, cols, kind, rows + cols);
    struct dse_matrix w = make_matrix(DSE_TYPE_F8_E4M3, source, rows - skip, cols);
    assert_true(w.data && scales);
    dse_matrix_pack_fp8(source, scales, cols, skip, rows, (void *)(uintptr_t)w.data, 0);
    compare_variants_of(&w, kind);
    free_matrix(&w);
    dse_free(scales);
    dse_free(source);
}

static void compare_shapes(enum data_kind kind)
{
    static const size_t fp8[][3] = {{16, 128, 0}, {300, 1, 1}, {257, 129, 120}, {135, 700, 119}, {17, 127, 0}};
    for (size_t i = 0; i < sizeof fp8 / sizeof fp8[0]; i++)
        compare_fp8_variants(fp8[i][0], fp8[i][1], fp8[i][2], kind);
    static const size_t shapes[][2] = {{1, 32},    {15, 64},  {16, 576}, {17, 896}, {100, 32}, {16, 256}, {17, 512},
                                       {31, 1536}, {33, 768}, {5, 1},    {17, 333}, {48, 77},  {33, 96}};
    for (size_t i = 0; i < packed_type_count; i++)
        for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
            if (cols_fit(packed_types[i], shapes[s][1]))
                compare_variants(packed_types[i], shapes[s][0], shapes[s][1], kind);
}

static void every_variant_gives_the_bits_of_the_scalar_kernel(void **state)
{
    compare_shapes(DATA_RANDOM);
}

static void every_variant_survives_the_largest_quants_and_activations(void **state)
{
    compare_shapes(DATA_LARGEST);
}

static void every_variant_survives_zero_subnormal_and_negative_scales(void **state)
{
    compare_shapes(DATA_ODD);
}

/* |error| <= (operations per sum) * 2^-23 * (sum of the largest terms); the affine parts of a block may be up to four
 * times as large as its largest weight. */
static void check_against_f64(enum dse_type type, size_t rows, size_t cols)
{
    enum { N = 3 };
    uint8_t *source = make_source(type, rows, cols, DATA_RANDOM, 7);
    struct dse_matrix w = make_matrix(type, source, rows, cols);
    struct test_activation t = make_activation(N, cols, DATA_RANDOM, 11);
    float *weights = dse_calloc(DSE_MEM_MISC, rows * cols, sizeof(float));
    float *y = dse_calloc(DSE_MEM_MISC, rows * N, sizeof(float));
    bool s8 = dse_layout_uses_s8(w.layout);
    dse_type_decode(type, source, weights, rows * cols);
    dse_matmul(&w, &t.act, N, 0, rows, NULL, false, y, rows);

    for (size_t m = 0; m < N; m++)
        for (size_t r = 0; r < rows; r++) {
            const float *row = weights + r * cols;
            double sum = 0, terms = 0, largest = 0;
            for (size_t k = 0; k < cols; k++) {
                double x = s8 ? (double)t.act.values[m * cols + k] * (double)t.act.scales[m * (cols / 32) + k / 32]
                              : (double)t.x[m * t.act.stride + k];
                if (fabs((double)row[k]) > largest) largest = fabs((double)row[k]);
                sum += (double)row[k] * x;
                terms += fabs(x);
            }
            double operations = s8 ? (double)cols / 16 + 4 : (double)cols;
            double bound = operations * 0x1p-23 * terms * largest * (s8 ? 4 : 1);
            double error = fabs((double)y[m * rows + r] - sum);
            if (!(error <= bound))
                fail_msg("%s: row %zu of %zu is off by %g, bound %g", dse_type_info((uint32_t)type)->name, r, m, error,
                         bound);
        }
    dse_free(y);
    dse_free(weights);
    free_activation(&t);
    free_matrix(&w);
    dse_free(source);
}

static void products_are_those_of_the_decoded_weights(void **state)
{
    for (size_t i = 0; i < packed_type_count; i++) {
        check_against_f64(packed_types[i], 17, 256);
        check_against_f64(packed_types[i], 33, 1536);
        if (cols_fit(packed_types[i], 576)) check_against_f64(packed_types[i], 16, 576);
        if (cols_fit(packed_types[i], 91)) check_against_f64(packed_types[i], 16, 91);
    }
}

/* A row alone, a row in a batch, all rows at once or in ranges: the same bits. */
static void a_result_does_not_depend_on_batch_or_row_range(void **state)
{
    enum { ROWS = 100, COLS = 512, N = 61 };
    for (size_t i = 0; i < packed_type_count; i++) {
        enum dse_type type = packed_types[i];
        uint8_t *source = make_source(type, ROWS, COLS, DATA_RANDOM, 3);
        struct dse_matrix w = make_matrix(type, source, ROWS, COLS);
        struct test_activation t = make_activation(N, COLS, DATA_RANDOM, 5);
        float *all = dse_calloc(DSE_MEM_MISC, N * ROWS, sizeof(float));
        float *parts = dse_calloc(DSE_MEM_MISC, N * ROWS, sizeof(float));
        dse_matmul(&w, &t.act, N, 0, ROWS, NULL, false, all, ROWS);
        static const size_t edges[] = {0, 16, 96, 97};
        dse_matmul(&w, &t.act, N, edges[1], edges[2], NULL, false, parts, ROWS);
        dse_matmul(&w, &t.act, N, edges[0], edges[1], NULL, false, parts, ROWS);
        dse_matmul(&w, &t.act, N, edges[2], edges[3], NULL, false, parts, ROWS);
        for (size_t m = 0; m < N; m++) {
            assert_memory_equal(all + m * ROWS, parts + m * ROWS, 97 * sizeof(float));
            for (size_t r = 97; r < ROWS; r++)
                assert_true(parts[m * ROWS + r] == 0.0f); /* beyond row_end nothing is written */
        }
        for (size_t m = 0; m < N; m += 7) {
            struct test_activation one = {0};
            float y[ROWS];
            one.act = t.act;
            one.act.x += m * t.act.stride;
            one.act.values += m * COLS;
            one.act.scales += m * (COLS / 32);
            one.act.sums += m * (COLS / 32);
            one.act.half_sums += m * (COLS / 16);
            dse_matmul(&w, &one.act, 1, 0, ROWS, NULL, false, y, ROWS);
            assert_memory_equal(all + m * ROWS, y, sizeof y);
        }
        dse_free(parts);
        dse_free(all);
        free_activation(&t);
        free_matrix(&w);
        dse_free(source);
    }
}

/* All 256 bytes in both halves of a register, with scales that are small, odd and large: the one rounding of the weight. */
static void every_fp8_byte_times_its_scale_is_rounded_once(void **state)
{
    enum { ROWS = 32, COLS = 272 };
    static const float scales_of[] = {1.0f, 0x1.234566p-10f, 0x1p-149f, -0x1.fffffep-120f, 0x1.abcdeep118f, 0.0f};
    uint8_t source[ROWS * COLS];
    float scales[3], weights[ROWS * COLS];
    for (size_t r = 0; r < ROWS; r++)
        for (size_t k = 0; k < COLS; k++) {
            const uint8_t bits = (uint8_t)(k + 8 * r);
            source[r * COLS + k] = (bits & 0x7F) == 0x7F ? 0x80 : bits;
        }
    struct dse_matrix w = make_matrix(DSE_TYPE_F8_E4M3, source, ROWS, COLS);
    float *x = dse_calloc(DSE_MEM_MISC, COLS * COLS, sizeof(float));
    float *y = dse_calloc(DSE_MEM_MISC, COLS * ROWS, sizeof(float));
    assert_true(x && y && w.data);
    for (size_t k = 0; k < COLS; k++)
        x[k * COLS + k] = 1.0f;
    for (size_t i = 0; i < sizeof scales_of / sizeof scales_of[0]; i++) {
        for (size_t b = 0; b < 3; b++)
            scales[b] = scales_of[(i + b) % (sizeof scales_of / sizeof scales_of[0])];
        dse_matrix_pack_fp8(source, scales, COLS, 0, ROWS, (void *)(uintptr_t)w.data, 0);
        dse_fp8_decode_rows(source, scales, COLS, 0, ROWS, weights);
        const struct dse_activation act = {.x = x, .stride = COLS};
        dse_matmul(&w, &act, COLS, 0, ROWS, NULL, false, y, ROWS);
        for (size_t r = 0; r < ROWS; r++)
            for (size_t k = 0; k < COLS; k++)
                if (y[k * ROWS + r] != weights[r * COLS + k])
                    fail_msg("row %zu, column %zu: %a, not %a", r, k, (double)y[k * ROWS + r],
                             (double)weights[r * COLS + k]);
    }
    dse_free(x);
    dse_free(y);
    free_matrix(&w);
}

static void a_nan_among_fp8_weights_or_scales_reaches_its_rows_and_no_others(void **state)
{
    enum { ROWS = 140, COLS = 300, BAD = 21, WORSE = 22, BAD_BLOCK = 128 };
    static const size_t counts[] = {1, 2, 6, 9, 33};
    uint8_t *source = make_source(DSE_TYPE_F8_E4M3, ROWS, COLS, DATA_RANDOM, 3);
    float *scales = make_fp8_scales(ROWS, COLS, DATA_RANDOM, 4);
    struct dse_matrix w = make_matrix(DSE_TYPE_F8_E4M3, source, ROWS, COLS);
    struct test_activation t = make_activation(MAX_ROWS, COLS, DATA_RANDOM, 5);
    float y[MAX_ROWS * ROWS];
    source[BAD * COLS + 299] = 0x7F;
    source[WORSE * COLS] = 0xFF;
    scales[1 * 3 + 1] = NAN; /* of rows from 128 on */
    dse_matrix_pack_fp8(source, scales, COLS, 0, ROWS, (void *)(uintptr_t)w.data, 0);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        dse_matmul(&w, &t.act, counts[i], 0, ROWS, NULL, false, y, ROWS);
        for (size_t m = 0; m < counts[i]; m++)
            for (size_t r = 0; r < ROWS; r++)
                assert_int_equal(isnan(y[m * ROWS + r]) != 0, r == BAD || r == WORSE || r >= BAD_BLOCK);
    }
    free_activation(&t);
    free_matrix(&w);
    dse_free(scales);
    dse_free(source);
}

static void bias_and_add_come_after_the_sum(void **state)
{
    enum { ROWS = 37, COLS = 64, N = 5, STRIDE = 41 };
    uint8_t *source = make_source(DSE_TYPE_Q4_1, ROWS, COLS, DATA_RANDOM, 3);
    struct dse_matrix w = make_matrix(DSE_TYPE_Q4_1, source, ROWS, COLS);
    struct test_activation t = make_activation(N, COLS, DATA_RANDOM, 5);
    float bias[ROWS], plain[N * STRIDE], biased[N * STRIDE], added[N * STRIDE];
    for (int r = 0; r < ROWS; r++)
        bias[r] = (float)r * 0.37f - 4.0f;
    for (int i = 0; i < N * STRIDE; i++)
        plain[i] = biased[i] = added[i] = (float)i;
    dse_matmul(&w, &t.act, N, 0, ROWS, NULL, false, plain, STRIDE);
    dse_matmul(&w, &t.act, N, 0, ROWS, bias, false, biased, STRIDE);
    dse_matmul(&w, &t.act, N, 0, ROWS, bias, true, added, STRIDE);
    for (int m = 0; m < N; m++)
        for (int r = 0; r < STRIDE; r++) {
            int i = m * STRIDE + r;
            float b = r < ROWS ? plain[i] + bias[r] : (float)i;
            assert_true(biased[i] == b);
            assert_true(added[i] == (r < ROWS ? (float)i + b : b));
        }
    free_activation(&t);
    free_matrix(&w);
    dse_free(source);
}

static void a_nan_in_the_activations_reaches_every_output(void **state)
{
    enum { ROWS = 17, COLS = 256 };
    for (size_t i = 0; i < packed_type_count; i++) {
        uint8_t *source = make_source(packed_types[i], ROWS, COLS, DATA_RANDOM, 3);
        struct dse_matrix w = make_matrix(packed_types[i], source, ROWS, COLS);
        struct test_activation t = make_activation(1, COLS, DATA_RANDOM, 5);
        float y[ROWS] = {0};
        t.x[77] = NAN;
        dse_activation_quantize(&t.act, COLS, 0, 1);
        dse_matmul(&w, &t.act, 1, 0, ROWS, NULL, false, y, ROWS);
        for (int r = 0; r < ROWS; r++)
            assert_true(isnan(y[r]));
        free_activation(&t);
        free_matrix(&w);
        dse_free(source);
    }
}

static void every_kernel_has_a_scalar_definition_and_a_unique_row(void **state)
{
    for (size_t i = 0; i < dse_kernel_count(); i++) {
        const struct dse_kernel *k = dse_kernel_at(i);
        bool scalar = false;
        for (size_t j = 0; j < dse_kernel_count(); j++) {
            const struct dse_kernel *other = dse_kernel_at(j);
            if (strcmp(k->op, other->op) != 0 || strcmp(k->types, other->types) != 0) continue;
            scalar |= strcmp(other->isa, "scalar") == 0 && other->features == 0 && j >= i;
            if (i != j) assert_string_not_equal(k->isa, other->isa);
        }
        if (!scalar) fail_msg("%s %s has no scalar variant after %s", k->op, k->types, k->isa);
    }
    assert_null(dse_kernel_at(dse_kernel_count()));
    assert_null(dse_kernel_pick("matmul", "nonsense"));
    for (int layout = 0; layout < DSE_LAYOUT_COUNT; layout++)
        assert_non_null(dse_matmul_variant((enum dse_layout)layout));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_variant_gives_the_bits_of_the_scalar_kernel),
        cmocka_unit_test(every_variant_survives_the_largest_quants_and_activations),
        cmocka_unit_test(every_variant_survives_zero_subnormal_and_negative_scales),
        cmocka_unit_test(products_are_those_of_the_decoded_weights),
        cmocka_unit_test(a_result_does_not_depend_on_batch_or_row_range),
        cmocka_unit_test(every_fp8_byte_times_its_scale_is_rounded_once),
        cmocka_unit_test(a_nan_among_fp8_weights_or_scales_reaches_its_rows_and_no_others),
        cmocka_unit_test(bias_and_add_come_after_the_sum),
        cmocka_unit_test(a_nan_in_the_activations_reaches_every_output),
        cmocka_unit_test(every_kernel_has_a_scalar_definition_and_a_unique_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
