/* NEON variant of the matmul with FP8 weights. */
#define DSE_V16_NEON
#define DSE_NAME(op) dse_##op##_neon
#define MAX_NY       6
#include "kernels/vector/v16.h"

/* 16 e4m3 as f16 but for its bias, which the scales make up for: moved up by seven bits, sign apart; subnormals too. */
DSE_INLINE v16 widen_e4m3(const uint8_t *p)
{
    int8x16_t bytes = vld1q_s8((const int8_t *)p);
    const int16x8_t sign_and_value = vdupq_n_s16((int16_t)0xBF80);
    int16x8_t lo = vandq_s16(vshll_n_s8(vget_low_s8(bytes), 7), sign_and_value);
    int16x8_t hi = vandq_s16(vshll_high_n_s8(bytes, 7), sign_and_value);
    return (v16){{vcvt_f32_f16(vreinterpret_f16_s16(vget_low_s16(lo))), vcvt_high_f32_f16(vreinterpretq_f16_s16(lo)),
                  vcvt_f32_f16(vreinterpret_f16_s16(vget_low_s16(hi))), vcvt_high_f32_f16(vreinterpretq_f16_s16(hi))}};
}

#include "kernels/matmul/fp8_body.h"
