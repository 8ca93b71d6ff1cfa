/* Activation quantizer, scalar: the definition of the result. Called through activation.c. */
#include <math.h>
#include <string.h>

#include "kernels/prototypes.h"

void dse_quantize_s8_scalar(const float *x, size_t cols, int8_t *values, float *scales, float *sums, int16_t *half_sums)
{
    for (size_t b = 0; b < cols / 32; b++, x += 32, values += 32) {
        /* Magnitudes compared as integers: a NaN is larger than everything and cannot get lost. */
        uint32_t bits = 0;
        for (int i = 0; i < 32; i++) {
            uint32_t v;
            memcpy(&v, &x[i], 4);
            v &= 0x7fffffff;
            if (v > bits) bits = v;
        }
        float largest;
        memcpy(&largest, &bits, 4);
        float scale = largest / 127.0f, inverse = 127.0f / largest;
        if (bits >= 0x7f800000) {
            scale = NAN;
            inverse = 0.0f;
        } else if (largest < DSE_QUANTIZE_TINY) {
            scale = 0.0f;
            inverse = 0.0f;
        }
        int sum[2] = {0, 0};
        for (int i = 0; i < 32; i++) {
            int q = inverse == 0.0f ? 0 : (int)lrintf(x[i] * inverse);
            values[i] = (int8_t)q;
            sum[i / 16] += q;
        }
        scales[b] = scale;
        sums[b] = scale * (float)(sum[0] + sum[1]);
        half_sums[2 * b] = (int16_t)sum[0];
        half_sums[2 * b + 1] = (int16_t)sum[1];
    }
}
