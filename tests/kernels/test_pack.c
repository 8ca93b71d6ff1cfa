/* Packing: every weight comes back exactly, parts equal the whole, sizes are checked. */
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

/* y[k][r] = weight (r, k): one activation row per column with a single 1 in it. */
static float *read_back(const struct dse_matrix *w)
{
    size_t cols = w->cols, blocks = cols / 32;
    struct dse_activation act = {.stride = cols};
    float *x = dse_calloc(DSE_MEM_MISC, cols * cols, sizeof(float));
    float *y = dse_calloc(DSE_MEM_MISC, cols * w->rows, sizeof(float));
    size_t bytes = dse_activation_bytes(cols, cols);
    void *memory = dse_alloc_aligned(DSE_MEM_MISC, 64, bytes);
    assert_true(x && y && memory);
    memset(memory, 0, bytes);
    dse_activation_place(&act, memory, cols, cols);
    act.x = x;
    for (size_t k = 0; k < cols; k++) {
        x[k * cols + k] = 1.0f;
        act.values[k * cols + k] = 1;
        act.half_sums[k * 2 * blocks + k / 16] = 1;
        for (size_t b = 0; b < blocks; b++)
            act.scales[k * blocks + b] = 1.0f;
        act.sums[k * blocks + k / 32] = 1.0f;
    }
    dse_matmul(w, &act, cols, 0, w->rows, NULL, false, y, w->rows);
    dse_free(x);
    dse_free(memory);
    return y;
}

static void every_packed_weight_reads_back_exactly(void **state)
{
    enum { ROWS = 35, COLS = 512 };
    for (size_t i = 0; i < packed_type_count; i++)
        for (int f32 = 0; f32 < 2; f32++)
            for (int kind = DATA_RANDOM; kind <= DATA_ODD; kind++) {
                enum dse_type type = packed_types[i];
                uint8_t *source = make_source(type, ROWS, COLS, (enum data_kind)kind, 1);
                float *expected = dse_calloc(DSE_MEM_MISC, ROWS * COLS, sizeof(float));
                struct dse_matrix w = {.layout = dse_matrix_layout(type, COLS, f32 != 0), .rows = ROWS, .cols = COLS};
                size_t bytes;
                assert_true(dse_matrix_packed_bytes(w.layout, ROWS, COLS, &bytes));
                uint8_t *data = dse_alloc_aligned(DSE_MEM_MISC, 64, bytes);
                memset(data, 0, bytes);
                dse_matrix_pack(type, source, COLS, 0, ROWS, w.layout, data, 0);
                w.data = data;
                w.panel_bytes = dse_matrix_panel_bytes(w.layout, COLS);
                assert_int_equal(w.panel_bytes * 3, bytes);
                dse_type_decode(type, source, expected, ROWS * COLS);
                float *got = read_back(&w);
                for (size_t r = 0; r < ROWS; r++)
                    for (size_t k = 0; k < COLS; k++)
                        if (got[k * ROWS + r] != expected[r * COLS + k])
                            fail_msg("%s as %s: weight %zu, %zu is %g, not %g", dse_type_info((uint32_t)type)->name,
                                     dse_layout_name(w.layout), r, k, (double)got[k * ROWS + r],
                                     (double)expected[r * COLS + k]);
                dse_free(got);
                dse_free(data);
                dse_free(expected);
                dse_free(source);
            }
}

static void packing_by_parts_equals_packing_at_once(void **state)
{
    enum { ROWS = 77, COLS = 256 };
    static const size_t edges[] = {0, 5, 16, 17, 48, 77};
    for (size_t i = 0; i < packed_type_count; i++) {
        enum dse_type type = packed_types[i];
        uint8_t *source = make_source(type, ROWS, COLS, DATA_RANDOM, 1);
        struct dse_matrix w = make_matrix(type, source, ROWS, COLS);
        size_t bytes;
        assert_true(dse_matrix_packed_bytes(w.layout, ROWS, COLS, &bytes));
        uint8_t *parts = dse_calloc(DSE_MEM_MISC, 1, bytes);
        for (int e = 4; e >= 0; e--)
            dse_matrix_pack(type, source, COLS, edges[e], edges[e + 1], w.layout, parts, edges[e]);
        assert_memory_equal(parts, w.data, bytes);
        dse_free(parts);
        free_matrix(&w);
        dse_free(source);
    }
}

static void stacked_matrices_keep_their_rows(void **state)
{
    enum { FIRST = 9, SECOND = 26, COLS = 64, N = 4 };
    uint8_t *a = make_source(DSE_TYPE_Q8_0, FIRST, COLS, DATA_RANDOM, 1);
    uint8_t *b = make_source(DSE_TYPE_Q8_0, SECOND, COLS, DATA_RANDOM, 2);
    struct dse_matrix wa = make_matrix(DSE_TYPE_Q8_0, a, FIRST, COLS), wb = make_matrix(DSE_TYPE_Q8_0, b, SECOND, COLS);
    struct dse_matrix both = {
        .layout = DSE_LAYOUT_Q8, .rows = FIRST + SECOND, .cols = COLS, .panel_bytes = wa.panel_bytes};
    size_t bytes;
    assert_true(dse_matrix_packed_bytes(both.layout, both.rows, COLS, &bytes));
    uint8_t *data = dse_calloc(DSE_MEM_MISC, 1, bytes);
    dse_matrix_pack(DSE_TYPE_Q8_0, b, COLS, 0, SECOND, both.layout, data, FIRST);
    dse_matrix_pack(DSE_TYPE_Q8_0, a, COLS, 0, FIRST, both.layout, data, 0);
    both.data = data;
    struct test_activation t = make_activation(N, COLS, DATA_RANDOM, 3);
    float ya[N * FIRST], yb[N * SECOND], y[N * (FIRST + SECOND)];
    dse_matmul(&wa, &t.act, N, 0, FIRST, NULL, false, ya, FIRST);
    dse_matmul(&wb, &t.act, N, 0, SECOND, NULL, false, yb, SECOND);
    dse_matmul(&both, &t.act, N, 0, both.rows, NULL, false, y, both.rows);
    for (size_t m = 0; m < N; m++) {
        assert_memory_equal(y + m * both.rows, ya + m * FIRST, FIRST * sizeof(float));
        assert_memory_equal(y + m * both.rows + FIRST, yb + m * SECOND, SECOND * sizeof(float));
    }
    free_activation(&t);
    free_matrix(&wa);
    free_matrix(&wb);
    dse_free(data);
    dse_free(a);
    dse_free(b);
}

static void fp8_rows_keep_the_scale_of_their_block_wherever_they_land(void **state)
{
    enum { ROWS = 300, COLS = 261, FIRST = 119, COUNT = 150, AT = 5 };
    uint8_t *source = make_source(DSE_TYPE_F8_E4M3, ROWS, COLS, DATA_RANDOM, 1);
    float *scales = make_fp8_scales(ROWS, COLS, DATA_RANDOM, 2);
    float *expected = dse_calloc(DSE_MEM_MISC, COUNT * COLS, sizeof(float));
    uint8_t *unaligned = dse_alloc(DSE_MEM_MISC, 9 * sizeof(float) + 1);
    struct dse_matrix w = {.layout = DSE_LAYOUT_FP8, .rows = AT + COUNT, .cols = COLS};
    size_t bytes;
    assert_true(dse_matrix_packed_bytes(w.layout, w.rows, COLS, &bytes));
    uint8_t *data = dse_alloc_aligned(DSE_MEM_MISC, 64, bytes);
    assert_true(source && scales && expected && unaligned && data);
    memset(data, 0, bytes);
    memcpy(unaligned + 1, scales, 9 * sizeof(float));
    dse_matrix_pack_fp8(source, unaligned + 1, COLS, FIRST + 70, FIRST + COUNT, data, AT + 70);
    dse_matrix_pack_fp8(source, unaligned + 1, COLS, FIRST, FIRST + 70, data, AT);
    w.data = data;
    w.panel_bytes = dse_matrix_panel_bytes(w.layout, COLS);
    dse_fp8_decode_rows(source, scales, COLS, FIRST, COUNT, expected);
    float *got = read_back(&w);
    for (size_t r = 0; r < w.rows; r++)
        for (size_t k = 0; k < COLS; k++)
            assert_true(got[k * w.rows + r] == (r < AT ? 0.0f : expected[(r - AT) * COLS + k]));
    dse_free(got);
    dse_free(data);
    dse_free(unaligned);
    dse_free(expected);
    dse_free(scales);
    dse_free(source);
}

static void sizes_that_overflow_or_cut_a_block_are_refused(void **state)
{
    size_t bytes = 1;
    assert_false(dse_matrix_packed_bytes(DSE_LAYOUT_U4, 16, 33, &bytes));
    assert_false(dse_matrix_packed_bytes(DSE_LAYOUT_U4K, 16, 128, &bytes));
    assert_false(dse_matrix_packed_bytes(DSE_LAYOUT_F32, SIZE_MAX / 8, SIZE_MAX / 8, &bytes));
    assert_false(dse_matrix_packed_bytes(DSE_LAYOUT_F32, SIZE_MAX, 1, &bytes));
    assert_false(dse_matrix_packed_bytes(DSE_LAYOUT_FP8, 16, SIZE_MAX / 16, &bytes));
    assert_false(dse_matrix_packed_bytes(DSE_LAYOUT_FP8, 16, SIZE_MAX, &bytes));
    assert_false(dse_matrix_packed_bytes(DSE_LAYOUT_COUNT, 16, 256, &bytes));
    assert_int_equal(bytes, 1);
    assert_int_equal(dse_matrix_panel_bytes(DSE_LAYOUT_Q6K, 32), 0);
    assert_true(dse_activation_bytes(SIZE_MAX / 2, 64) == SIZE_MAX);
    assert_true(dse_matrix_packed_bytes(DSE_LAYOUT_F32, 17, 7, &bytes));
    assert_int_equal(bytes, 32 * 7 * 4);
    assert_true(dse_matrix_packed_bytes(DSE_LAYOUT_FP8, 17, 129, &bytes));
    assert_int_equal(bytes, 2 * (2 * 64 + 129 * 16));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_packed_weight_reads_back_exactly),
        cmocka_unit_test(packing_by_parts_equals_packing_at_once),
        cmocka_unit_test(stacked_matrices_keep_their_rows),
        cmocka_unit_test(fp8_rows_keep_the_scale_of_their_block_wherever_they_land),
        cmocka_unit_test(sizes_that_overflow_or_cut_a_block_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
