/* The AVX-512 and VNNI intrinsics that src/kernels uses, computed lane by lane as Intel's manual defines them, so that the
 * AVX-512 sources run, and are compared with the scalar code, on a CPU with AVX2 only.
 *
 * Included by the compiler in front of each of those sources (tests/kernels/meson.build). A new intrinsic in a kernel
 * that is missing here does not compile there. It shows that the sources are right, not that the real instructions are.
 */
#ifndef DSE_TESTS_AVX512_EMULATED_H
#define DSE_TESTS_AVX512_EMULATED_H

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

/* What the sources ask for; after immintrin.h, which must not believe it. */
#define __AVX512F__    1
#define __AVX512BW__   1
#define __AVX512VL__   1
#define __AVX512DQ__   1
#define __AVX512VNNI__ 1

#define EMULATED static inline __attribute__((always_inline, unused))

/* All lanes of one register, whatever their type. */
union emulated_512 {
    __m512 ps;
    __m512i si;
    float f[16];
    int32_t i32[16];
    uint32_t u32[16];
    int16_t i16[32];
    uint16_t u16[32];
    int8_t i8[64];
    uint8_t u8[64];
    uint64_t u64[8];
    __m256 half_ps[2];
};

#define EMULATED_EACH(lanes, expression)                                                                               \
    for (int i = 0; i < (lanes); i++)                                                                                  \
    expression

#define EMULATED_PS2(name, expression)                                                                                 \
    EMULATED __m512 emulated_##name(__m512 av, __m512 bv)                                                              \
    {                                                                                                                  \
        union emulated_512 a = {.ps = av}, b = {.ps = bv}, r;                                                          \
        EMULATED_EACH(16, r.f[i] = (expression));                                                                      \
        return r.ps;                                                                                                   \
    }
EMULATED_PS2(add_ps, a.f[i] + b.f[i])
EMULATED_PS2(sub_ps, a.f[i] - b.f[i])
EMULATED_PS2(mul_ps, a.f[i] * b.f[i])
EMULATED_PS2(div_ps, a.f[i] / b.f[i])
/* the second operand where either is NaN or both are zero */
EMULATED_PS2(max_ps, a.f[i] > b.f[i] ? a.f[i] : b.f[i])
EMULATED_PS2(min_ps, a.f[i] < b.f[i] ? a.f[i] : b.f[i])

EMULATED __m512 emulated_xor_ps(__m512 av, __m512 bv)
{
    union emulated_512 a = {.ps = av}, b = {.ps = bv}, r;
    EMULATED_EACH(16, r.u32[i] = a.u32[i] ^ b.u32[i]);
    return r.ps;
}
EMULATED __m512 emulated_fmadd_ps(__m512 av, __m512 bv, __m512 cv)
{
    union emulated_512 a = {.ps = av}, b = {.ps = bv}, c = {.ps = cv}, r;
    EMULATED_EACH(16, r.f[i] = fmaf(a.f[i], b.f[i], c.f[i]));
    return r.ps;
}
EMULATED __m512 emulated_fnmadd_ps(__m512 av, __m512 bv, __m512 cv)
{
    union emulated_512 a = {.ps = av}, b = {.ps = bv}, c = {.ps = cv}, r;
    EMULATED_EACH(16, r.f[i] = fmaf(-a.f[i], b.f[i], c.f[i]));
    return r.ps;
}

#define EMULATED_SI2(name, lanes, member, expression)                                                                  \
    EMULATED __m512i emulated_##name(__m512i av, __m512i bv)                                                           \
    {                                                                                                                  \
        union emulated_512 a = {.si = av}, b = {.si = bv}, r;                                                          \
        EMULATED_EACH(lanes, r.member[i] = (expression));                                                              \
        return r.si;                                                                                                   \
    }
EMULATED_SI2(and_si512, 8, u64, a.u64[i] & b.u64[i])
EMULATED_SI2(or_si512, 8, u64, a.u64[i] | b.u64[i])
EMULATED_SI2(xor_si512, 8, u64, a.u64[i] ^ b.u64[i])
EMULATED_SI2(add_epi32, 16, u32, a.u32[i] + b.u32[i])
EMULATED_SI2(mullo_epi32, 16, u32, a.u32[i] * b.u32[i])

#define EMULATED_SHIFT(name, lanes, member, expression)                                                                \
    EMULATED __m512i emulated_##name(__m512i av, unsigned count)                                                       \
    {                                                                                                                  \
        union emulated_512 a = {.si = av}, r;                                                                          \
        EMULATED_EACH(lanes, r.member[i] = (expression));                                                              \
        return r.si;                                                                                                   \
    }
EMULATED_SHIFT(slli_epi32, 16, u32, count > 31 ? 0 : a.u32[i] << count)
EMULATED_SHIFT(slli_epi16, 32, u16, (uint16_t)(count > 15 ? 0 : a.u16[i] << count))
EMULATED_SHIFT(srli_epi16, 32, u16, (uint16_t)(count > 15 ? 0 : a.u16[i] >> count))

/* sums of four products of an unsigned and a signed byte, not saturated */
EMULATED __m512i emulated_dpbusd_epi32(__m512i sv, __m512i av, __m512i bv)
{
    union emulated_512 s = {.si = sv}, a = {.si = av}, b = {.si = bv}, r;
    for (int i = 0; i < 16; i++) {
        uint32_t sum = s.u32[i];
        for (int j = 4 * i; j < 4 * i + 4; j++)
            sum += (uint32_t)((int32_t)a.u8[j] * b.i8[j]);
        r.u32[i] = sum;
    }
    return r.si;
}
EMULATED __m512i emulated_dpwssd_epi32(__m512i sv, __m512i av, __m512i bv)
{
    union emulated_512 s = {.si = sv}, a = {.si = av}, b = {.si = bv}, r;
    EMULATED_EACH(16, r.u32[i] = s.u32[i] + (uint32_t)((int32_t)a.i16[2 * i] * b.i16[2 * i]) +
                                 (uint32_t)((int32_t)a.i16[2 * i + 1] * b.i16[2 * i + 1]));
    return r.si;
}

EMULATED __m512 emulated_set1_ps(float x)
{
    union emulated_512 r;
    EMULATED_EACH(16, r.f[i] = x);
    return r.ps;
}
#define EMULATED_SET1(name, lanes, member, type)                                                                       \
    EMULATED __m512i emulated_##name(type x)                                                                           \
    {                                                                                                                  \
        union emulated_512 r;                                                                                          \
        EMULATED_EACH(lanes, r.member[i] = x);                                                                         \
        return r.si;                                                                                                   \
    }
EMULATED_SET1(set1_epi8, 64, i8, int8_t)
EMULATED_SET1(set1_epi16, 32, i16, int16_t)
EMULATED_SET1(set1_epi32, 16, i32, int32_t)

EMULATED __m512 emulated_loadu_ps(const void *p)
{
    union emulated_512 r;
    memcpy(&r, p, sizeof r);
    return r.ps;
}
EMULATED __m512i emulated_loadu_si512(const void *p)
{
    union emulated_512 r;
    memcpy(&r, p, sizeof r);
    return r.si;
}
EMULATED void emulated_storeu_ps(void *p, __m512 a)
{
    memcpy(p, &a, sizeof a);
}
/* These two fault on the real CPU when p is not a multiple of 64. */
EMULATED __m512 emulated_load_ps(const void *p)
{
    if ((uintptr_t)p % 64 != 0) __builtin_trap();
    return emulated_loadu_ps(p);
}
EMULATED void emulated_store_ps(void *p, __m512 a)
{
    if ((uintptr_t)p % 64 != 0) __builtin_trap();
    emulated_storeu_ps(p, a);
}

EMULATED __m512 emulated_cvtepi32_ps(__m512i av)
{
    union emulated_512 a = {.si = av}, r;
    EMULATED_EACH(16, r.f[i] = (float)a.i32[i]);
    return r.ps;
}
#define EMULATED_WIDEN(name, type, register_type)                                                                      \
    EMULATED __m512i emulated_##name(register_type av)                                                                 \
    {                                                                                                                  \
        type a[16];                                                                                                    \
        union emulated_512 r;                                                                                          \
        memcpy(a, &av, sizeof a);                                                                                      \
        EMULATED_EACH(16, r.i32[i] = a[i]);                                                                            \
        return r.si;                                                                                                   \
    }
EMULATED_WIDEN(cvtepi8_epi32, int8_t, __m128i)
EMULATED_WIDEN(cvtepu8_epi32, uint8_t, __m128i)
EMULATED_WIDEN(cvtepu16_epi32, uint16_t, __m256i)

EMULATED __m128i emulated_cvtepi32_epi8(__m512i av)
{
    union emulated_512 a = {.si = av};
    uint8_t r[16];
    __m128i out;
    EMULATED_EACH(16, r[i] = (uint8_t)a.u32[i]);
    memcpy(&out, r, sizeof out);
    return out;
}
EMULATED __m512 emulated_cvtph_ps(__m256i a)
{
    union emulated_512 r;
    r.half_ps[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(a));
    r.half_ps[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1));
    return r.ps;
}
/* Of the roundings only to nearest, ties to even. */
EMULATED __m256i emulated_cvtps_ph(__m512 av, int rounding)
{
    union emulated_512 a = {.ps = av};
    if (rounding != (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)) __builtin_trap();
    return _mm256_set_m128i(_mm256_cvtps_ph(a.half_ps[1], _MM_FROUND_TO_NEAREST_INT),
                            _mm256_cvtps_ph(a.half_ps[0], _MM_FROUND_TO_NEAREST_INT));
}

/* Of the predicates only "not less than", true for NaN. */
EMULATED uint16_t emulated_cmp_ps_mask(__m512 av, __m512 bv, int predicate)
{
    union emulated_512 a = {.ps = av}, b = {.ps = bv};
    uint16_t mask = 0;
    if (predicate != _CMP_NLT_UQ) __builtin_trap();
    EMULATED_EACH(16, mask |= (uint16_t)((unsigned)!(a.f[i] < b.f[i]) << i));
    return mask;
}
EMULATED __m512 emulated_maskz_mov_ps(uint16_t mask, __m512 av)
{
    union emulated_512 a = {.ps = av}, r;
    EMULATED_EACH(16, r.u32[i] = mask >> i & 1 ? a.u32[i] : 0);
    return r.ps;
}

#define _mm512_add_ps          emulated_add_ps
#define _mm512_sub_ps          emulated_sub_ps
#define _mm512_mul_ps          emulated_mul_ps
#define _mm512_div_ps          emulated_div_ps
#define _mm512_max_ps          emulated_max_ps
#define _mm512_min_ps          emulated_min_ps
#define _mm512_xor_ps          emulated_xor_ps
#define _mm512_fmadd_ps        emulated_fmadd_ps
#define _mm512_fnmadd_ps       emulated_fnmadd_ps
#define _mm512_and_si512       emulated_and_si512
#define _mm512_or_si512        emulated_or_si512
#define _mm512_xor_si512       emulated_xor_si512
#define _mm512_add_epi32       emulated_add_epi32
#define _mm512_mullo_epi32     emulated_mullo_epi32
#define _mm512_slli_epi32      emulated_slli_epi32
#define _mm512_slli_epi16      emulated_slli_epi16
#define _mm512_srli_epi16      emulated_srli_epi16
#define _mm512_dpbusd_epi32    emulated_dpbusd_epi32
#define _mm512_dpwssd_epi32    emulated_dpwssd_epi32
#define _mm512_setzero_ps()    emulated_set1_ps(0)
#define _mm512_setzero_si512() emulated_set1_epi32(0)
#define _mm512_set1_ps         emulated_set1_ps
#define _mm512_set1_epi8       emulated_set1_epi8
#define _mm512_set1_epi16      emulated_set1_epi16
#define _mm512_set1_epi32      emulated_set1_epi32
#define _mm512_loadu_ps        emulated_loadu_ps
#define _mm512_load_ps         emulated_load_ps
#define _mm512_loadu_si512     emulated_loadu_si512
#define _mm512_storeu_ps       emulated_storeu_ps
#define _mm512_store_ps        emulated_store_ps
#define _mm512_cvtepi32_ps     emulated_cvtepi32_ps
#define _mm512_cvtepi8_epi32   emulated_cvtepi8_epi32
#define _mm512_cvtepu8_epi32   emulated_cvtepu8_epi32
#define _mm512_cvtepu16_epi32  emulated_cvtepu16_epi32
#define _mm512_cvtepi32_epi8   emulated_cvtepi32_epi8
#define _mm512_cvtph_ps        emulated_cvtph_ps
#define _mm512_cvtps_ph        emulated_cvtps_ph
#define _mm512_cmp_ps_mask     emulated_cmp_ps_mask
#define _mm512_maskz_mov_ps    emulated_maskz_mov_ps
#define _mm512_castps_si512(a) ((__m512i)(a))
#define _mm512_castsi512_ps(a) ((__m512)(a))

#endif
