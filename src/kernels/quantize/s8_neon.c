/* Activation quantizer, NEON. Called through activation.c; the result is that of s8_scalar.c. */
#include <arm_neon.h>
#include <string.h>

#include "kernels/prototypes.h"

/* Sixteen values times inverse, rounded to nearest even. They fit s8, so that narrowing loses nothing. */
static inline int8x16_t quantize_16(const float32x4_t v[4], float inverse)
{
    int32x4_t q[4];
    for (int i = 0; i < 4; i++)
        q[i] = vcvtnq_s32_f32(vmulq_n_f32(v[i], inverse));
    int16x8_t lo = vcombine_s16(vmovn_s32(q[0]), vmovn_s32(q[1])), hi = vcombine_s16(vmovn_s32(q[2]), vmovn_s32(q[3]));
    return vcombine_s8(vmovn_s16(lo), vmovn_s16(hi));
}

void dse_quantize_s8_neon(const float *x, size_t cols, int8_t *values, float *scales, float *sums, int16_t *half_sums)
{
    for (size_t b = 0; b < cols / 32; b++, x += 32, values += 32) {
        float32x4_t v[8];
        uint32x4_t bits = vdupq_n_u32(0);
        for (int i = 0; i < 8; i++) {
            v[i] = vld1q_f32(x + 4 * i);
            bits = vmaxq_u32(bits, vandq_u32(vreinterpretq_u32_f32(v[i]), vdupq_n_u32(0x7fffffff)));
        }
        uint32_t largest_bits = vmaxvq_u32(bits);
        float largest;
        memcpy(&largest, &largest_bits, 4);
        if (dse_quantize_unusual(largest_bits, b, values, scales, sums, half_sums)) continue;
        float scale = largest / 127.0f, inverse = 127.0f / largest;
        int8x16_t q0 = quantize_16(v, inverse), q1 = quantize_16(v + 4, inverse);
        vst1q_s8(values, q0);
        vst1q_s8(values + 16, q1);
        int sum0 = vaddlvq_s8(q0), sum1 = vaddlvq_s8(q1);
        dse_quantize_finish(b, scale, sum0, sum1, scales, sums, half_sums);
    }
}
