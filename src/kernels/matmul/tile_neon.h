/* Helpers of the ARM matmul kernels with s8 activations: the integer product of each instruction set, and the sums
 * of a tile (tile_body.h). Include only from files compiled for 64-bit ARM, through quant_neon_body.h.
 */
#ifndef DSE_KERNELS_MATMUL_TILE_NEON_H
#define DSE_KERNELS_MATMUL_TILE_NEON_H

#ifndef DSE_V16_NEON
#define DSE_V16_NEON
#endif
#include "kernels/matmul/layout.h"
#include "kernels/matmul/matmul.h"
#include "kernels/prototypes.h"
#include "kernels/vector/v16.h"

#define TILE_ROWS 4

typedef v16 tile_sums;

DSE_INLINE void clear_sums_of(tile_sums *sums)
{
    *sums = v16_set1(0.0f);
}

DSE_INLINE void store_sums_of(float *out, tile_sums *sums)
{
    v16_store(out, *sums);
}

#include "kernels/matmul/tile_body.h"

/* A number for each of the 16 weight rows, and a dword row of quants. */
struct int_16 {
    int32x4_t q[4];
};
struct dwords {
    int8x16_t q[4];
};

DSE_INLINE struct dwords load_dwords(const uint8_t *p)
{
    const int8_t *s = (const int8_t *)p;
    return (struct dwords){{vld1q_s8(s), vld1q_s8(s + 16), vld1q_s8(s + 32), vld1q_s8(s + 48)}};
}

DSE_INLINE v16 load_f16(const uint8_t *p)
{
    return v16_load_f16((const uint16_t *)(const void *)p);
}

DSE_INLINE v16 load_u8(const uint8_t *p)
{
    uint8x16_t bytes = vld1q_u8(p);
    uint16x8_t lo = vmovl_u8(vget_low_u8(bytes)), hi = vmovl_high_u8(bytes);
    return (v16){{vcvtq_f32_u32(vmovl_u16(vget_low_u16(lo))), vcvtq_f32_u32(vmovl_high_u16(lo)),
                  vcvtq_f32_u32(vmovl_u16(vget_low_u16(hi))), vcvtq_f32_u32(vmovl_high_u16(hi))}};
}

DSE_INLINE struct int_16 load_s8(const uint8_t *p)
{
    int8x16_t bytes = vld1q_s8((const int8_t *)p);
    int16x8_t lo = vmovl_s8(vget_low_s8(bytes)), hi = vmovl_high_s8(bytes);
    return (struct int_16){
        {vmovl_s16(vget_low_s16(lo)), vmovl_high_s16(lo), vmovl_s16(vget_low_s16(hi)), vmovl_high_s16(hi)}};
}

DSE_INLINE void clear_sums(struct int_16 *sum, int ny)
{
    for (int j = 0; j < ny; j++)
        sum[j] = (struct int_16){{vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0)}};
}

/* Eight columns, two dword rows, of one activation row. */
DSE_INLINE void add_one_row(struct int_16 *sum, const struct dwords *w0, const struct dwords *w1, const int8_t *a)
{
#if defined(__ARM_FEATURE_DOTPROD)
    int8x8_t values = vld1_s8(a);
    for (int q = 0; q < 4; q++)
        sum->q[q] = vdotq_lane_s32(vdotq_lane_s32(sum->q[q], w0->q[q], values, 0), w1->q[q], values, 1);
#else
    /* A pair of products (2 * 128 * 127 = 32512) fits int16, more do not. */
    int32x2_t values = vreinterpret_s32_s8(vld1_s8(a));
    int8x16_t a0 = vreinterpretq_s8_s32(vdupq_lane_s32(values, 0)),
              a1 = vreinterpretq_s8_s32(vdupq_lane_s32(values, 1));
    for (int q = 0; q < 4; q++) {
        int16x8_t p0 = vmull_s8(vget_low_s8(w0->q[q]), vget_low_s8(a0)), p1 = vmull_high_s8(w0->q[q], a0);
        sum->q[q] = vpadalq_s16(sum->q[q], vpaddq_s16(p0, p1));
        p0 = vmull_s8(vget_low_s8(w1->q[q]), vget_low_s8(a1));
        p1 = vmull_high_s8(w1->q[q], a1);
        sum->q[q] = vpadalq_s16(sum->q[q], vpaddq_s16(p0, p1));
    }
#endif
}

/* Eight columns, which begin at column k of the activations. Until settle_sums they lie as the instruction set likes. */
DSE_INLINE void add_columns(struct int_16 *sum, const struct dwords *w0, const struct dwords *w1,
                            const struct tile_act *act, size_t k, int ny)
{
    int j = 0;
#if defined(__ARM_FEATURE_MATMUL_INT8)
    /* smmla: two weight rows of eight columns times two activation rows, a sum in each of the four lanes. */
    for (; j + 2 <= ny; j += 2) {
        int8x16_t a = vcombine_s8(vld1_s8(act->values[j] + k), vld1_s8(act->values[j + 1] + k));
        for (int q = 0; q < 4; q++) {
            int32x4_t d0 = vreinterpretq_s32_s8(w0->q[q]), d1 = vreinterpretq_s32_s8(w1->q[q]);
            sum[j].q[q] = vmmlaq_s32(sum[j].q[q], vreinterpretq_s8_s32(vzip1q_s32(d0, d1)), a);
            sum[j + 1].q[q] = vmmlaq_s32(sum[j + 1].q[q], vreinterpretq_s8_s32(vzip2q_s32(d0, d1)), a);
        }
    }
#endif
    for (; j < ny; j++)
        add_one_row(&sum[j], w0, w1, act->values[j] + k);
}

/* sum[j] becomes what belongs to activation row j. */
DSE_INLINE void settle_sums(struct int_16 *sum, int ny)
{
#if defined(__ARM_FEATURE_MATMUL_INT8)
    for (int j = 0; j + 2 <= ny; j += 2)
        for (int q = 0; q < 4; q++) {
            int32x4_t first = sum[j].q[q], second = sum[j + 1].q[q];
            sum[j].q[q] = vuzp1q_s32(first, second);
            sum[j + 1].q[q] = vuzp2q_s32(first, second);
        }
#endif
}

DSE_INLINE v16 to_float(const struct int_16 *a)
{
#define CONVERT(i) vcvtq_f32_s32(a->q[i])
    return V16_QUADS(CONVERT);
#undef CONVERT
}

DSE_INLINE v16 negate(v16 a)
{
#define NEGATE(i) vnegq_f32(a.q[i])
    return V16_QUADS(NEGATE);
#undef NEGATE
}

#endif
