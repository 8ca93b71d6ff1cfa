/* Packing of weight rows from their file formats into the panels of kernels/matmul/layout.h, and the sizes of those.
 *
 * Called once per model, by the threads that load it. One row is written at a time into its lane of a panel; rows share
 * no byte. Formats that need the affine s8 layout are unpacked in pack_a8.c. Never looks beyond the rows it is told.
 */
#include "kernels/pack.h"

#include <string.h>

#include "base/checked.h"
#include "kernels/matmul/layout.h"
#include "kernels/matrix.h"
#include "quant/fp8.h"

/* Columns and bytes (of all 16 rows) of one block of each layout. */
static const struct {
    const char *name;
    size_t cols, bytes;
} layouts[DSE_LAYOUT_COUNT] = {
    [DSE_LAYOUT_F32] = {"f32", 1, 64},
    [DSE_LAYOUT_F16] = {"f16", 1, 32},
    [DSE_LAYOUT_BF16] = {"bf16", 1, 32},
    [DSE_LAYOUT_U4] = {"u4", 32, DSE_U4_BYTES},
    [DSE_LAYOUT_U4S] = {"u4s", 32, DSE_U4S_BYTES},
    [DSE_LAYOUT_U4K] = {"u4k", 256, DSE_U4K_BYTES},
    [DSE_LAYOUT_Q8] = {"q8", 32, DSE_Q8_BYTES},
    [DSE_LAYOUT_Q6K] = {"q6k", 256, DSE_Q6K_BYTES},
    [DSE_LAYOUT_A8] = {"a8", 32, DSE_A8_BYTES},
    [DSE_LAYOUT_FP8] = {"fp8", 1, DSE_PANEL_ROWS}, /* and the scales */
};

const char *dse_layout_name(enum dse_layout layout)
{
    return (unsigned)layout < DSE_LAYOUT_COUNT ? layouts[layout].name : "?";
}

enum dse_layout dse_matrix_layout(enum dse_type type, size_t cols, bool f32)
{
    if (f32) return DSE_LAYOUT_F32;
    switch (type) {
    case DSE_TYPE_F16: return DSE_LAYOUT_F16;
    case DSE_TYPE_BF16: return DSE_LAYOUT_BF16;
    case DSE_TYPE_Q4_0: return DSE_LAYOUT_U4S;
    case DSE_TYPE_Q4_1: return DSE_LAYOUT_U4;
    case DSE_TYPE_Q4_K: return DSE_LAYOUT_U4K;
    case DSE_TYPE_Q8_0: return DSE_LAYOUT_Q8;
    case DSE_TYPE_Q6_K: return DSE_LAYOUT_Q6K;
    case DSE_TYPE_F8_E4M3: return DSE_LAYOUT_FP8;
    case DSE_TYPE_Q5_0:
    case DSE_TYPE_Q5_1:
    case DSE_TYPE_Q2_K:
    case DSE_TYPE_Q3_K:
    case DSE_TYPE_Q5_K:
    case DSE_TYPE_IQ4_NL:
    case DSE_TYPE_IQ4_XS: return DSE_LAYOUT_A8;
    default: return DSE_LAYOUT_F32;
    }
}

static bool panel_bytes(enum dse_layout layout, size_t cols, size_t *bytes)
{
    if ((unsigned)layout >= DSE_LAYOUT_COUNT || cols % layouts[layout].cols != 0) return false;
    if (!dse_mul_size(cols / layouts[layout].cols, layouts[layout].bytes, bytes)) return false;
    if (layout != DSE_LAYOUT_FP8) return true;
    const size_t blocks = cols / DSE_FP8_COLS + (cols % DSE_FP8_COLS != 0);
    return dse_add_size(*bytes, blocks * DSE_FP8_QUANTS, bytes); /* blocks * 64 < cols * 16 + 64 */
}

size_t dse_matrix_panel_bytes(enum dse_layout layout, size_t cols)
{
    size_t bytes;
    return panel_bytes(layout, cols, &bytes) ? bytes : 0;
}

bool dse_matrix_packed_bytes(enum dse_layout layout, size_t rows, size_t cols, size_t *bytes)
{
    size_t panel, padded;
    return panel_bytes(layout, cols, &panel) && dse_align_size(rows, DSE_PANEL_ROWS, &padded) &&
           dse_mul_size(padded / DSE_PANEL_ROWS, panel, bytes);
}

static void put16(uint8_t *out, int lane, const uint8_t *f16)
{
    memcpy(out + 2 * lane, f16, 2);
}

/* Four bytes of a lane into each of n dword rows. */
static void put_dwords(uint8_t *rows, int lane, const void *bytes, int n)
{
    for (int i = 0; i < n; i++)
        memcpy(rows + 64 * i + 4 * lane, (const uint8_t *)bytes + 4 * i, 4);
}

/* The nibble order of 32-blocks in files is that of the plane: byte i holds columns i and 16 + i. */
static void pack_q4_0(const uint8_t *source, size_t cols, uint8_t *panel, int lane)
{
    for (size_t b = 0; b < cols / 32; b++, source += 18, panel += DSE_U4S_BYTES) {
        put16(panel, lane, source);
        put_dwords(panel + DSE_U4S_QUANTS, lane, source + 2, 4);
    }
}

static void pack_q4_1(const uint8_t *source, size_t cols, uint8_t *panel, int lane)
{
    for (size_t b = 0; b < cols / 32; b++, source += 20, panel += DSE_U4_BYTES) {
        put16(panel, lane, source);
        put16(panel + DSE_U4_M, lane, source + 2);
        put_dwords(panel + DSE_U4_QUANTS, lane, source + 4, 4);
    }
}

static void pack_q8_0(const uint8_t *source, size_t cols, uint8_t *panel, int lane)
{
    for (size_t b = 0; b < cols / 32; b++, source += 34, panel += DSE_Q8_BYTES) {
        put16(panel, lane, source);
        put_dwords(panel + DSE_Q8_QUANTS, lane, source + 2, 8);
    }
}

void dse_k_scales_unpack(const uint8_t c[12], uint8_t scale[8], uint8_t min[8])
{
    for (int j = 0; j < 4; j++) {
        scale[j] = c[j] & 63;
        min[j] = c[j + 4] & 63;
        scale[j + 4] = (uint8_t)((c[j + 8] & 15) | (c[j] >> 6) << 4);
        min[j + 4] = (uint8_t)((c[j + 8] >> 4) | (c[j + 4] >> 6) << 4);
    }
}

static void pack_q4_k(const uint8_t *source, size_t cols, uint8_t *panel, int lane)
{
    for (size_t b = 0; b < cols / 256; b++, source += 144, panel += DSE_U4K_BYTES) {
        uint8_t scale[8], min[8];
        dse_k_scales_unpack(source + 4, scale, min);
        put16(panel, lane, source);
        put16(panel + DSE_U4K_DMIN, lane, source + 2);
        for (int j = 0; j < 8; j++) {
            uint8_t *block = panel + DSE_U4K_BLOCKS + j * DSE_U4K_BLOCK_BYTES, plane[16];
            const uint8_t *q = source + 16 + 32 * (j / 2);
            int shift = j % 2 * 4;
            for (int i = 0; i < 16; i++)
                plane[i] = (uint8_t)((q[i] >> shift & 15) | (q[16 + i] >> shift & 15) << 4);
            block[lane] = scale[j];
            block[DSE_U4K_BLOCK_MIN + lane] = min[j];
            put_dwords(block + DSE_U4K_BLOCK_QUANTS, lane, plane, 4);
        }
    }
}

static void pack_q6_k(const uint8_t *source, size_t cols, uint8_t *panel, int lane)
{
    for (size_t b = 0; b < cols / 256; b++, source += 210, panel += DSE_Q6K_BYTES) {
        put16(panel, lane, source + 208);
        for (int j = 0; j < 8; j++) {
            uint8_t *block = panel + DSE_Q6K_BLOCKS + j * DSE_Q6K_BLOCK_BYTES, plane[16], high[8];
            int half = j / 4, quarter = j % 4;
            const uint8_t *ql = source + 64 * half + 32 * (quarter % 2), *qh = source + 128 + 32 * half;
            int shift = quarter / 2 * 4;
            for (int i = 0; i < 16; i++)
                plane[i] = (uint8_t)((ql[i] >> shift & 15) | (ql[16 + i] >> shift & 15) << 4);
            for (int i = 0; i < 8; i++) {
                int k = i / 4 * 8 + i % 4; /* columns k, 16+k, k+4, 16+k+4 */
                high[i] = (uint8_t)((qh[k] >> 2 * quarter & 3) | (qh[16 + k] >> 2 * quarter & 3) << 2 |
                                    (qh[k + 4] >> 2 * quarter & 3) << 4 | (qh[20 + k] >> 2 * quarter & 3) << 6);
            }
            block[lane] = source[192 + 2 * j];
            block[16 + lane] = source[192 + 2 * j + 1];
            put_dwords(block + DSE_Q6K_BLOCK_QUANTS, lane, plane, 4);
            put_dwords(block + DSE_Q6K_BLOCK_HIGH, lane, high, 2);
        }
    }
}

static void pack_a8(enum dse_type type, const uint8_t *source, size_t cols, uint8_t *panel, int lane)
{
    const struct dse_type_info *info = dse_type_info((uint32_t)type);
    size_t n = (size_t)info->block_elements;
    for (size_t k = 0; k < cols; k += n, source += info->block_bytes) {
        struct dse_a8_block blocks[8];
        dse_a8_unpack(type, source, blocks);
        for (size_t j = 0; j < n / 32; j++, panel += DSE_A8_BYTES) {
            const struct dse_a8_block *b = &blocks[j];
            memcpy(panel + 2 * lane, &b->d, 2);
            memcpy(panel + DSE_A8_DMIN + 2 * lane, &b->dmin, 2);
            for (int h = 0; h < 2; h++) {
                panel[DSE_A8_SCALES + 16 * h + lane] = (uint8_t)b->scale[h];
                panel[DSE_A8_MINS + 16 * h + lane] = b->min[h];
            }
            put_dwords(panel + DSE_A8_QUANTS, lane, b->q, 8);
        }
    }
}

/* F16 and BF16 as they are. */
static void pack_16bit(const uint8_t *source, size_t cols, uint8_t *panel, int lane)
{
    for (size_t k = 0; k < cols; k++)
        memcpy(panel + 32 * k + 2 * lane, source + 2 * k, 2);
}

/* scales: of this row's blocks, unaligned, or NULL for 1. NaN lies with the scale, so that kernels need not look for
 * it. */
static void pack_fp8(const uint8_t *source, const uint8_t *scales, size_t cols, uint8_t *panel, int lane)
{
    for (size_t begin = 0; begin < cols; begin += DSE_FP8_COLS, panel += DSE_FP8_BYTES) {
        const size_t n = dse_fp8_block_cols(cols, begin);
        float scale = 1.0f;
        if (scales != NULL) memcpy(&scale, scales + begin / DSE_FP8_COLS * sizeof scale, sizeof scale);
        for (size_t k = 0; k < n; k++) {
            const uint8_t weight = source[begin + k];
            if ((weight & 0x7F) == 0x7F) scale = dse_f8_e4m3_to_f32(weight);
            panel[DSE_FP8_QUANTS + k * DSE_PANEL_ROWS + (size_t)lane] = weight;
        }
        scale *= 0x1p8f;
        memcpy(panel + 4 * lane, &scale, sizeof scale);
    }
}

static void pack_f32(enum dse_type type, const uint8_t *source, size_t cols, uint8_t *panel, int lane)
{
    const struct dse_type_info *info = dse_type_info((uint32_t)type);
    float values[256];
    for (size_t k = 0; k < cols; k += 256) {
        size_t n = cols - k < 256 ? cols - k : 256;
        dse_type_decode(type, source, values, n);
        source += n / (size_t)info->block_elements * (size_t)info->block_bytes;
        for (size_t i = 0; i < n; i++)
            memcpy(panel + 64 * (k + i) + 4 * lane, &values[i], 4);
    }
}

static void pack_row(enum dse_type type, const uint8_t *source, size_t cols, enum dse_layout layout, uint8_t *panel,
                     int lane)
{
    switch (layout) {
    case DSE_LAYOUT_F16:
    case DSE_LAYOUT_BF16: pack_16bit(source, cols, panel, lane); return;
    case DSE_LAYOUT_U4: pack_q4_1(source, cols, panel, lane); return;
    case DSE_LAYOUT_U4S: pack_q4_0(source, cols, panel, lane); return;
    case DSE_LAYOUT_U4K: pack_q4_k(source, cols, panel, lane); return;
    case DSE_LAYOUT_Q8: pack_q8_0(source, cols, panel, lane); return;
    case DSE_LAYOUT_Q6K: pack_q6_k(source, cols, panel, lane); return;
    case DSE_LAYOUT_A8: pack_a8(type, source, cols, panel, lane); return;
    case DSE_LAYOUT_FP8: pack_fp8(source, NULL, cols, panel, lane); return;
    case DSE_LAYOUT_F32:
    case DSE_LAYOUT_COUNT: pack_f32(type, source, cols, panel, lane); return;
    }
}

void dse_matrix_pack(enum dse_type type, const void *source, size_t cols, size_t row_begin, size_t row_end,
                     enum dse_layout layout, void *out, size_t out_row)
{
    size_t row_bytes, panel;
    if (!dse_type_row_bytes(type, cols, &row_bytes) || !panel_bytes(layout, cols, &panel)) return;
    for (size_t row = row_begin; row < row_end; row++, out_row++)
        pack_row(type, (const uint8_t *)source + row * row_bytes, cols, layout,
                 (uint8_t *)out + out_row / DSE_PANEL_ROWS * panel, (int)(out_row % DSE_PANEL_ROWS));
}

void dse_matrix_pack_fp8(const void *weights, const void *scales, size_t cols, size_t row_begin, size_t row_end,
                         void *out, size_t out_row)
{
    size_t panel;
    if (!panel_bytes(DSE_LAYOUT_FP8, cols, &panel)) return;
    const size_t scale_row_bytes = (cols + DSE_F8_BLOCK - 1) / DSE_F8_BLOCK * sizeof(float);
    for (size_t row = row_begin; row < row_end; row++, out_row++)
        pack_fp8((const uint8_t *)weights + row * cols, (const uint8_t *)scales + row / DSE_F8_BLOCK * scale_row_bytes,
                 cols, (uint8_t *)out + out_row / DSE_PANEL_ROWS * panel, (int)(out_row % DSE_PANEL_ROWS));
}
