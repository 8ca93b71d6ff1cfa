/* FP8 matrices as DeepSeek publishes them: one byte a weight and an f32 scale for each square of 128 x 128. */
#ifndef DSE_QUANT_FP8_H
#define DSE_QUANT_FP8_H

#include <stddef.h>
#include <stdint.h>

/* e4m3fn: 1-4-3 bits, bias 7, no infinities, 0x7F and 0xFF are NaN. Exact. */
float dse_f8_e4m3_to_f32(uint8_t bits);

/* Rows [first, first + count) of a matrix with rows of `columns` weights: out [count, columns] = weight times the scale
 * of its square. scales: f32 [ceil(rows/128), ceil(columns/128)] of the whole matrix, at any alignment; partial squares
 * at the edges have their own. */
void dse_fp8_decode_rows(const void *weights, const void *scales, size_t columns, size_t first, size_t count,
                         float *out);

#endif
