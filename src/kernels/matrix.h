/* A weight matrix in the layout of this CPU, and the products with it.
 *
 * y[m][r] = sum_k w[r][k] * x[m][k]. Quantized weights meet s8 activations (one scale and one sum per 32 values), other
 * weights meet f32. One f32 accumulator per output, blocks of K ascending, explicit fma: the result of an element never
 * depends on how many rows share the call, on the thread count or on the instruction set.
 *
 * Rows are interleaved in panels of 16 ("P16"): each SIMD lane is one output row. rows is padded up to a whole panel in
 * memory; padded rows are never written to y.
 */
#ifndef DSE_KERNELS_MATRIX_H
#define DSE_KERNELS_MATRIX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "quant/types.h"

#define DSE_PANEL_ROWS 16
#define DSE_ACT_BLOCK  32

/* How a packed matrix is laid out; the kernel family that reads it. Bytes of a block: kernels/matmul/layout.h. */
enum dse_layout {
    DSE_LAYOUT_F32,  /* panel: [cols][16] f32 (F32 and --compute f32) */
    DSE_LAYOUT_F16,  /* panel: [cols][16] f16 */
    DSE_LAYOUT_BF16, /* panel: [cols][16] bf16 */
    DSE_LAYOUT_U4,   /* affine u4, per 32: f16 d and m (Q4_1) */
    DSE_LAYOUT_U4S,  /* symmetric u4 (value - 8), per 32: f16 d (Q4_0) */
    DSE_LAYOUT_U4K,  /* affine u4, per 256: f16 d, dmin; per 32: u8 scale, min (Q4_K) */
    DSE_LAYOUT_Q8,   /* s8, per 32: f16 d (Q8_0) */
    DSE_LAYOUT_Q6K,  /* u6 in two planes, per 16: s8 scale, per 256: f16 d (Q6_K) */
    DSE_LAYOUT_A8,   /* affine s8, per 32: f16 d, dmin; per 16: s8 scale, u8 min (lossless home of Q5_0, Q5_1, Q2_K,
                          Q3_K, Q5_K, IQ4_NL, IQ4_XS; 10 bits a weight) */
    DSE_LAYOUT_FP8,  /* e4m3, per 128 columns: f32 scale (F8_E4M3) */
    DSE_LAYOUT_COUNT
};

struct dse_matrix {
    enum dse_layout layout;
    enum dse_type source_type;
    size_t rows, cols;
    const void *data;   /* packed panels, 64-byte aligned; borrowed */
    size_t panel_bytes; /* bytes of one panel of 16 rows */
};

/* Which layout a source type gets: one that holds its values exactly. f32: everything becomes DSE_LAYOUT_F32. */
enum dse_layout dse_matrix_layout(enum dse_type type, size_t cols, bool f32);
const char *dse_layout_name(enum dse_layout layout); /* "u4k"; never NULL */
/* Bytes of the packed matrix; false on overflow or when cols is not a whole number of blocks. */
bool dse_matrix_packed_bytes(enum dse_layout layout, size_t rows, size_t cols, size_t *bytes);
/* Bytes of one panel of 16 rows, for dse_matrix.panel_bytes; 0 where dse_matrix_packed_bytes fails. */
size_t dse_matrix_panel_bytes(enum dse_layout layout, size_t cols);
/* Packs rows [row_begin, row_end) of source (row-major in its file layout, whole matrix) into out, the start of the
 * whole packed matrix; row_begin lands at row out_row, any number, so that matrices can be stacked. Rows never share a
 * byte: threads may pack disjoint ranges. Lanes of rows that nobody packs stay as they were: hand in zeroed memory.
 * layout: dse_matrix_layout of the type, or DSE_LAYOUT_F32. F8_E4M3 is packed with scales of 1, as dse_type_decode. */
void dse_matrix_pack(enum dse_type type, const void *source, size_t cols, size_t row_begin, size_t row_end,
                     enum dse_layout layout, void *out, size_t out_row);
/* The same for F8_E4M3 with a scale per block (quant/fp8.h) into DSE_LAYOUT_FP8. Scales at or above DSE_FP8_SCALE_LIMIT
 * in magnitude do not fit. A NaN among 128 neighbouring weights makes all of them NaN: either way the row's products
 * are. */
#define DSE_FP8_SCALE_LIMIT 0x1p119f
void dse_matrix_pack_fp8(const void *weights, const void *scales, size_t cols, size_t row_begin, size_t row_end,
                         void *out, size_t out_row);

/* Activations prepared for a layout family. The s8 form: values [n_rows][cols] in -127..127, scales [n_rows][cols/32]
 * f32, sums [n_rows][cols/32] f32 (scale * sum of the 32 values), half_sums [n_rows][cols/16] s16 (sum of 16 values).
 * cols must be a multiple of 32 for quantized layouts; for f32 layouts x itself is used. */
struct dse_activation {
    const float *x; /* [n_rows][stride] f32 */
    size_t stride;
    int8_t *values;
    float *scales, *sums;
    int16_t *half_sums;
};
bool dse_layout_uses_s8(enum dse_layout layout);
/* Memory for the s8 form of n_rows; SIZE_MAX on overflow. */
size_t dse_activation_bytes(size_t n_rows, size_t cols);
/* Carves the arrays out of memory (64-byte aligned). */
void dse_activation_place(struct dse_activation *act, void *memory, size_t n_rows, size_t cols);
/* Quantizes rows [begin, end): absmax/127 per 32, round to nearest even. A block whose largest magnitude is below
 * 2^-100 gives scale 0; one with an infinity or a NaN gives scale NaN, which every product then shows. */
void dse_activation_quantize(struct dse_activation *act, size_t cols, size_t begin, size_t end);

/* y[m * y_stride + r] for m in [0, n_rows) and r in [row_begin, row_end); row_begin a multiple of 16.
 * bias: f32 [rows] or NULL, added after the sum. add: y += instead of y =. Threads may compute disjoint row ranges. */
void dse_matmul(const struct dse_matrix *w, const struct dse_activation *act, size_t n_rows, size_t row_begin,
                size_t row_end, const float *bias, bool add, float *y, size_t y_stride);

/* Name of the kernel variant in use for a layout ("avx2"). */
const char *dse_matmul_variant(enum dse_layout layout);

#endif
