/* The quantizer kernel: one row of f32 to the s8 form described at struct dse_activation. Private to this room.
 *
 * Per 32 values, in this order, each step rounded once: largest magnitude a; scale = a / 127; inverse = 127 / a;
 * value = round-to-nearest-even(x * inverse); sum = scale * (float)(integer sum). a below DSE_QUANTIZE_TINY: all zero;
 * a infinite or NaN: values zero, scale and sum NaN.
 */
#ifndef DSE_KERNELS_QUANTIZE_QUANTIZE_H
#define DSE_KERNELS_QUANTIZE_QUANTIZE_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* 127 / a stays finite above it. */
#define DSE_QUANTIZE_TINY 0x1p-100f

/* cols is a multiple of 32. */
typedef void dse_quantize_fn(const float *x, size_t cols, int8_t *values, float *scales, float *sums,
                             int16_t *half_sums);

/* For the variants of an instruction set. largest: bits of the largest magnitude of block b. True: there is nothing to
 * round in it, or no number, and all of its results are written. */
static inline bool dse_quantize_unusual(uint32_t largest, size_t b, int8_t *values, float *scales, float *sums,
                                        int16_t *half_sums)
{
    const bool finite = largest < 0x7f800000;
    float magnitude;
    memcpy(&magnitude, &largest, sizeof magnitude);
    if (finite && magnitude >= DSE_QUANTIZE_TINY) return false;
    memset(values, 0, 32);
    scales[b] = sums[b] = finite ? 0.0f : NAN;
    half_sums[2 * b] = half_sums[2 * b + 1] = 0;
    return true;
}

/* Scale of block b and the sums of its two halves. */
static inline void dse_quantize_finish(size_t b, float scale, int sum0, int sum1, float *scales, float *sums,
                                       int16_t *half_sums)
{
    scales[b] = scale;
    sums[b] = scale * (float)(sum0 + sum1);
    half_sums[2 * b] = (int16_t)sum0;
    half_sums[2 * b + 1] = (int16_t)sum1;
}

#endif
