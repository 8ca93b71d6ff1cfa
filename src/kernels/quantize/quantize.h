/* The quantizer kernel: one row of f32 to the s8 form described at struct dse_activation. Private to this room.
 *
 * Per 32 values, in this order, each step rounded once: largest magnitude a; scale = a / 127; inverse = 127 / a;
 * value = round-to-nearest-even(x * inverse); sum = scale * (float)(integer sum). a below DSE_QUANTIZE_TINY: all zero;
 * a infinite or NaN: values zero, scale and sum NaN.
 */
#ifndef DSE_KERNELS_QUANTIZE_QUANTIZE_H
#define DSE_KERNELS_QUANTIZE_QUANTIZE_H

#include <stddef.h>
#include <stdint.h>

/* 127 / a stays finite above it. */
#define DSE_QUANTIZE_TINY 0x1p-100f

/* cols is a multiple of 32. */
typedef void dse_quantize_fn(const float *x, size_t cols, int8_t *values, float *scales, float *sums,
                             int16_t *half_sums);

#endif
