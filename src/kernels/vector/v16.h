/* Sixteen f32 lanes, whatever the instruction set this file is compiled for: one zmm, two ymm, four q registers, or an
 * array. Every 64-bit ARM has NEON, the scalar files there too: those that mean it define DSE_V16_NEON.
 *
 * Included by the kernel bodies of vector/, attention/ and matmul/, each compiled once per instruction set. Every operation
 * here is a single correctly rounded IEEE operation per lane (or a bit operation), so that a body written in these terms
 * gives the same bits everywhere. Nothing may be added here that an instruction set would round differently
 * (reciprocal estimates, horizontal sums, unfused multiply-add).
 */
#ifndef DSE_KERNELS_VECTOR_V16_H
#define DSE_KERNELS_VECTOR_V16_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "quant/types.h"

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(DSE_V16_NEON)
#include <arm_neon.h>
#endif

#define DSE_INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)

typedef __m512 v16;

DSE_INLINE v16 v16_set1(float x)
{
    return _mm512_set1_ps(x);
}
DSE_INLINE v16 v16_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
DSE_INLINE void v16_store(float *p, v16 a)
{
    _mm512_storeu_ps(p, a);
}
DSE_INLINE v16 v16_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
DSE_INLINE v16 v16_load_bf16(const uint16_t *p)
{
    __m512i bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}
DSE_INLINE v16 v16_load_s8(const int8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
DSE_INLINE void v16_store_f16(uint16_t *p, v16 a)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
/* The low 8 bits of every lane. */
DSE_INLINE void v16_store_low8(uint8_t *p, v16 a)
{
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(_mm512_castps_si512(a)));
}
DSE_INLINE v16 v16_add(v16 a, v16 b)
{
    return _mm512_add_ps(a, b);
}
DSE_INLINE v16 v16_sub(v16 a, v16 b)
{
    return _mm512_sub_ps(a, b);
}
DSE_INLINE v16 v16_mul(v16 a, v16 b)
{
    return _mm512_mul_ps(a, b);
}
DSE_INLINE v16 v16_div(v16 a, v16 b)
{
    return _mm512_div_ps(a, b);
}
DSE_INLINE v16 v16_fma(v16 a, v16 b, v16 c)
{
    return _mm512_fmadd_ps(a, b, c);
}
DSE_INLINE v16 v16_max(v16 a, v16 b)
{
    return _mm512_max_ps(a, b);
}
DSE_INLINE v16 v16_min(v16 a, v16 b)
{
    return _mm512_min_ps(a, b);
}
/* Lanes of a where x >= limit or x is NaN, +0 elsewhere. */
DSE_INLINE v16 v16_keep_not_below(v16 a, v16 x, v16 limit)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_NLT_UQ), a);
}
/* 2^n, where the low mantissa bits of t hold n (see vector_exp). */
DSE_INLINE v16 v16_exp2_bits(v16 t)
{
    __m512i bits = _mm512_slli_epi32(_mm512_castps_si512(t), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(bits, _mm512_set1_epi32(0x3f800000)));
}

#elif defined(__AVX2__)

typedef struct {
    __m256 lo, hi;
} v16;

#define V16_EACH(expression_lo, expression_hi) ((v16){(expression_lo), (expression_hi)})

DSE_INLINE v16 v16_set1(float x)
{
    __m256 v = _mm256_set1_ps(x);
    return V16_EACH(v, v);
}
DSE_INLINE v16 v16_load(const float *p)
{
    return V16_EACH(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8));
}
DSE_INLINE void v16_store(float *p, v16 a)
{
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
DSE_INLINE v16 v16_load_f16(const uint16_t *p)
{
    return V16_EACH(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                    _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8))));
}
DSE_INLINE __m256 v8_load_bf16(const uint16_t *p)
{
    __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
}
DSE_INLINE v16 v16_load_bf16(const uint16_t *p)
{
    return V16_EACH(v8_load_bf16(p), v8_load_bf16(p + 8));
}
DSE_INLINE v16 v16_load_s8(const int8_t *p)
{
    __m128i bytes = _mm_loadu_si128((const __m128i *)p);
    return V16_EACH(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
                    _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))));
}
DSE_INLINE void v16_store_f16(uint16_t *p, v16 a)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
}
DSE_INLINE void v16_store_low8(uint8_t *p, v16 a)
{
    const __m256i low = _mm256_set1_epi32(0xff);
    __m256i lo = _mm256_and_si256(_mm256_castps_si256(a.lo), low),
            hi = _mm256_and_si256(_mm256_castps_si256(a.hi), low);
    __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(lo, hi), 0xd8); /* undoes the halves of the pack */
    _mm_storeu_si128((__m128i *)p, _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}
DSE_INLINE v16 v16_add(v16 a, v16 b)
{
    return V16_EACH(_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi));
}
DSE_INLINE v16 v16_sub(v16 a, v16 b)
{
    return V16_EACH(_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi));
}
DSE_INLINE v16 v16_mul(v16 a, v16 b)
{
    return V16_EACH(_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi));
}
DSE_INLINE v16 v16_div(v16 a, v16 b)
{
    return V16_EACH(_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi));
}
DSE_INLINE v16 v16_fma(v16 a, v16 b, v16 c)
{
    return V16_EACH(_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi));
}
DSE_INLINE v16 v16_max(v16 a, v16 b)
{
    return V16_EACH(_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi));
}
DSE_INLINE v16 v16_min(v16 a, v16 b)
{
    return V16_EACH(_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi));
}
DSE_INLINE v16 v16_keep_not_below(v16 a, v16 x, v16 limit)
{
    return V16_EACH(_mm256_and_ps(a.lo, _mm256_cmp_ps(x.lo, limit.lo, _CMP_NLT_UQ)),
                    _mm256_and_ps(a.hi, _mm256_cmp_ps(x.hi, limit.hi, _CMP_NLT_UQ)));
}
DSE_INLINE __m256 v8_exp2_bits(__m256 t)
{
    __m256i bits = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(bits, _mm256_set1_epi32(0x3f800000)));
}
DSE_INLINE v16 v16_exp2_bits(v16 t)
{
    return V16_EACH(v8_exp2_bits(t.lo), v8_exp2_bits(t.hi));
}

#elif defined(DSE_V16_NEON)

typedef struct {
    float32x4_t q[4];
} v16;

/* expression(i) for each of the four registers. */
#define V16_QUADS(expression) ((v16){{expression(0), expression(1), expression(2), expression(3)}})

DSE_INLINE v16 v16_set1(float x)
{
    float32x4_t v = vdupq_n_f32(x);
    return (v16){{v, v, v, v}};
}
DSE_INLINE v16 v16_load(const float *p)
{
#define LOAD(i)               vld1q_f32(p + 4 * (i))
    return V16_QUADS(LOAD);
#undef LOAD
}
DSE_INLINE void v16_store(float *p, v16 a)
{
    vst1q_f32(p, a.q[0]);
    vst1q_f32(p + 4, a.q[1]);
    vst1q_f32(p + 8, a.q[2]);
    vst1q_f32(p + 12, a.q[3]);
}
DSE_INLINE v16 v16_load_f16(const uint16_t *p)
{
#define WIDEN(i) vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * (i))))
    return V16_QUADS(WIDEN);
#undef WIDEN
}
DSE_INLINE v16 v16_load_bf16(const uint16_t *p)
{
#define WIDEN(i) vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * (i)), 16))
    return V16_QUADS(WIDEN);
#undef WIDEN
}
DSE_INLINE v16 v16_load_s8(const int8_t *p)
{
    int8x16_t bytes = vld1q_s8(p);
    int16x8_t lo = vmovl_s8(vget_low_s8(bytes)), hi = vmovl_high_s8(bytes);
    return (v16){{vcvtq_f32_s32(vmovl_s16(vget_low_s16(lo))), vcvtq_f32_s32(vmovl_high_s16(lo)),
                  vcvtq_f32_s32(vmovl_s16(vget_low_s16(hi))), vcvtq_f32_s32(vmovl_high_s16(hi))}};
}
DSE_INLINE void v16_store_f16(uint16_t *p, v16 a)
{
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a.q[0])));
    vst1_u16(p + 4, vreinterpret_u16_f16(vcvt_f16_f32(a.q[1])));
    vst1_u16(p + 8, vreinterpret_u16_f16(vcvt_f16_f32(a.q[2])));
    vst1_u16(p + 12, vreinterpret_u16_f16(vcvt_f16_f32(a.q[3])));
}
DSE_INLINE void v16_store_low8(uint8_t *p, v16 a)
{
#define NARROW(i) vmovn_u32(vreinterpretq_u32_f32(a.q[i]))
    uint16x8_t lo = vcombine_u16(NARROW(0), NARROW(1)), hi = vcombine_u16(NARROW(2), NARROW(3));
#undef NARROW
    vst1q_u8(p, vcombine_u8(vmovn_u16(lo), vmovn_u16(hi)));
}
DSE_INLINE v16 v16_add(v16 a, v16 b)
{
#define ADD(i) vaddq_f32(a.q[i], b.q[i])
    return V16_QUADS(ADD);
#undef ADD
}
DSE_INLINE v16 v16_sub(v16 a, v16 b)
{
#define SUB(i) vsubq_f32(a.q[i], b.q[i])
    return V16_QUADS(SUB);
#undef SUB
}
DSE_INLINE v16 v16_mul(v16 a, v16 b)
{
#define MUL(i) vmulq_f32(a.q[i], b.q[i])
    return V16_QUADS(MUL);
#undef MUL
}
DSE_INLINE v16 v16_div(v16 a, v16 b)
{
#define DIV(i) vdivq_f32(a.q[i], b.q[i])
    return V16_QUADS(DIV);
#undef DIV
}
DSE_INLINE v16 v16_fma(v16 a, v16 b, v16 c)
{
#define FMA(i) vfmaq_f32(c.q[i], a.q[i], b.q[i])
    return V16_QUADS(FMA);
#undef FMA
}
/* Not fmax and fmin, which give NaN when either operand is one: the second operand then, as everywhere here. */
DSE_INLINE v16 v16_max(v16 a, v16 b)
{
#define MAX(i) vbslq_f32(vcgtq_f32(a.q[i], b.q[i]), a.q[i], b.q[i])
    return V16_QUADS(MAX);
#undef MAX
}
DSE_INLINE v16 v16_min(v16 a, v16 b)
{
#define MIN(i) vbslq_f32(vcltq_f32(a.q[i], b.q[i]), a.q[i], b.q[i])
    return V16_QUADS(MIN);
#undef MIN
}
DSE_INLINE v16 v16_keep_not_below(v16 a, v16 x, v16 limit)
{
#define KEEP(i) vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(a.q[i]), vcltq_f32(x.q[i], limit.q[i])))
    return V16_QUADS(KEEP);
#undef KEEP
}
DSE_INLINE v16 v16_exp2_bits(v16 t)
{
#define EXP2(i)                                                                                                        \
    vreinterpretq_f32_u32(vaddq_u32(vshlq_n_u32(vreinterpretq_u32_f32(t.q[i]), 23), vdupq_n_u32(0x3f800000)))
    return V16_QUADS(EXP2);
#undef EXP2
}

#else

typedef struct {
    float f[16];
} v16;

/* Each operation is a loop over the lanes. */
#define V16_LANES(expression)                                                                                          \
    v16 r;                                                                                                             \
    for (int i = 0; i < 16; i++)                                                                                       \
        r.f[i] = (expression);                                                                                         \
    return r

DSE_INLINE v16 v16_set1(float x)
{
    V16_LANES(x);
}
DSE_INLINE v16 v16_load(const float *p)
{
    V16_LANES(p[i]);
}
DSE_INLINE void v16_store(float *p, v16 a)
{
    memcpy(p, a.f, sizeof a.f);
}
DSE_INLINE v16 v16_load_f16(const uint16_t *p)
{
    V16_LANES(dse_f16_to_f32(p[i]));
}
DSE_INLINE v16 v16_load_bf16(const uint16_t *p)
{
    V16_LANES(dse_bf16_to_f32(p[i]));
}
DSE_INLINE v16 v16_load_s8(const int8_t *p)
{
    V16_LANES((float)p[i]);
}
DSE_INLINE void v16_store_f16(uint16_t *p, v16 a)
{
    for (int i = 0; i < 16; i++)
        p[i] = dse_f32_to_f16(a.f[i]);
}
DSE_INLINE void v16_store_low8(uint8_t *p, v16 a)
{
    uint32_t bits[16];
    memcpy(bits, a.f, sizeof bits);
    for (int i = 0; i < 16; i++)
        p[i] = (uint8_t)bits[i];
}
DSE_INLINE v16 v16_add(v16 a, v16 b)
{
    V16_LANES(a.f[i] + b.f[i]);
}
DSE_INLINE v16 v16_sub(v16 a, v16 b)
{
    V16_LANES(a.f[i] - b.f[i]);
}
DSE_INLINE v16 v16_mul(v16 a, v16 b)
{
    V16_LANES(a.f[i] * b.f[i]);
}
DSE_INLINE v16 v16_div(v16 a, v16 b)
{
    V16_LANES(a.f[i] / b.f[i]);
}
DSE_INLINE v16 v16_fma(v16 a, v16 b, v16 c)
{
    V16_LANES(fmaf(a.f[i], b.f[i], c.f[i]));
}
/* As x86 defines them: the second operand when either is NaN. */
DSE_INLINE v16 v16_max(v16 a, v16 b)
{
    V16_LANES(a.f[i] > b.f[i] ? a.f[i] : b.f[i]);
}
DSE_INLINE v16 v16_min(v16 a, v16 b)
{
    V16_LANES(a.f[i] < b.f[i] ? a.f[i] : b.f[i]);
}
DSE_INLINE v16 v16_keep_not_below(v16 a, v16 x, v16 limit)
{
    V16_LANES(x.f[i] < limit.f[i] ? 0.0f : a.f[i]);
}
DSE_INLINE v16 v16_exp2_bits(v16 t)
{
    uint32_t bits[16];
    memcpy(bits, t.f, sizeof bits);
    for (int i = 0; i < 16; i++)
        bits[i] = (bits[i] << 23) + 0x3f800000u;
    v16 r;
    memcpy(r.f, bits, sizeof bits);
    return r;
}

#endif

/* The one order in which lanes are summed: 16-8-4-2-1. */
DSE_INLINE float v16_sum(v16 a)
{
    float lane[16];
    v16_store(lane, a);
    for (int width = 8; width > 0; width /= 2)
        for (int i = 0; i < width; i++)
            lane[i] += lane[i + width];
    return lane[0];
}

DSE_INLINE float v16_largest(v16 a)
{
    float lane[16];
    v16_store(lane, a);
    for (int width = 8; width > 0; width /= 2)
        for (int i = 0; i < width; i++)
            lane[i] = lane[i] > lane[i + width] ? lane[i] : lane[i + width];
    return lane[0];
}

/* Adding it to |x| < 2^22 rounds x to the nearest integer, ties to even, and leaves the integer in the low mantissa
 * bits: no conversion instruction is involved. */
#define V16_MAGIC 12582912.0f /* 1.5 * 2^23 */

/* e^x. Below -87 the result is exactly 0, above 88 it stays at e^88; NaN stays NaN. Relative error below 2e-7.
 * x = n ln 2 + r, |r| <= ln 2 / 2; e^r by a polynomial that is exact at 0. */
DSE_INLINE v16 v16_exp(v16 x)
{
    const v16 magic = v16_set1(V16_MAGIC);
    v16 c = v16_min(v16_set1(88.0f), v16_max(v16_set1(-87.0f), x));
    v16 t = v16_fma(c, v16_set1(0x1.715476p+0f), magic);
    v16 n = v16_sub(t, magic);
    v16 r = v16_fma(n, v16_set1(-0x1.62e4p-1f), c);
    r = v16_fma(n, v16_set1(-0x1.7f7d1cp-20f), r);
    v16 p = v16_set1(0x1.6d1380p-10f);
    p = v16_fma(p, r, v16_set1(0x1.120de4p-7f));
    p = v16_fma(p, r, v16_set1(0x1.555518p-5f));
    p = v16_fma(p, r, v16_set1(0x1.5554dap-3f));
    p = v16_fma(p, r, v16_set1(0.5f));
    p = v16_fma(p, r, v16_set1(1.0f));
    p = v16_fma(p, r, v16_set1(1.0f));
    return v16_keep_not_below(v16_mul(p, v16_exp2_bits(t)), x, v16_set1(-87.0f));
}

#endif
