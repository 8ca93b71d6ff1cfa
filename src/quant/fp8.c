/* Decodes FP8 matrices with scales per square. Called by whatever packs or copies weights; shapes and scales were
 * checked when the model was opened. */
#include "quant/fp8.h"

#include <string.h>

#include "quant/types.h"

float dse_f8_e4m3_to_f32(uint8_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x80) << 24, exponent = bits >> 3 & 15, mantissa = bits & 7;
    uint32_t word = sign | (exponent + 120) << 23 | mantissa << 20;
    if ((bits & 0x7F) == 0x7F) {
        word = sign | 0x7FC00000;
    } else if (exponent == 0) {
        /* Zero and subnormals: mantissa * 2^-9 is exact in f32. */
        float magnitude = (float)mantissa * 0x1p-9f;
        return sign ? -magnitude : magnitude;
    }
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}

void dse_fp8_decode_rows(const void *weights, const void *scales, size_t columns, size_t first, size_t count,
                         float *out)
{
    size_t squares = (columns + DSE_F8_BLOCK - 1) / DSE_F8_BLOCK;
    const uint8_t *row = (const uint8_t *)weights + first * columns;
    for (size_t r = first; r < first + count; r++, row += columns, out += columns) {
        const uint8_t *scale_at = (const uint8_t *)scales + r / DSE_F8_BLOCK * squares * sizeof(float);
        for (size_t begin = 0; begin < columns; begin += DSE_F8_BLOCK, scale_at += sizeof(float)) {
            size_t end = columns - begin < DSE_F8_BLOCK ? columns : begin + DSE_F8_BLOCK;
            float scale;
            memcpy(&scale, scale_at, sizeof scale);
            for (size_t c = begin; c < end; c++)
                out[c] = dse_f8_e4m3_to_f32(row[c]) * scale;
        }
    }
}
