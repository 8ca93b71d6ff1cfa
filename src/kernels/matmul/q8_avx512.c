/* Matmul of the s8 layouts (Q8, A8) with s8 activations, AVX-512 VNNI. Called through matmul.c; the result is that of
 * quant_scalar.c.
 *
 * vpdpbusd wants one unsigned side: weights get 128 added by flipping their top bit, and the integer sum starts from
 * -128 times the sum of the activations.
 */
#include "kernels/matmul/tile_avx512.h"

DSE_INLINE __m512i load_biased(const uint8_t *p)
{
    return _mm512_xor_si512(load_512(p), _mm512_set1_epi8(-128));
}

DSE_INLINE void add_q8(const uint8_t *panel, size_t b, const struct tile_act *act, int ny, __m512 *acc)
{
    const __m512i bias = _mm512_set1_epi16(-128);
    __m512i sum[TILE_ROWS];
    panel += b * DSE_Q8_BYTES;
    for (int j = 0; j < ny; j++)
        sum[j] = weigh_half_sums(bias, act->half_sums[j] + 2 * b);
#pragma GCC unroll 8
    for (int v = 0; v < 8; v++) {
        __m512i w = load_biased(panel + DSE_Q8_QUANTS + 64 * v);
#pragma GCC unroll 8
        for (int j = 0; j < ny; j++)
            sum[j] = _mm512_dpbusd_epi32(sum[j], w, broadcast_4(act->values[j] + 32 * b + 4 * v));
    }
    __m512 d = load_f16(panel);
    for (int j = 0; j < ny; j++) {
        __m512 scale = _mm512_mul_ps(d, _mm512_set1_ps(act->scales[j][b]));
        acc[j] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[j]), scale, acc[j]);
    }
}

DSE_INLINE void add_a8(const uint8_t *panel, size_t b, const struct tile_act *act, int ny, __m512 *acc)
{
    /* -128 for the half in question, 0 for the other */
    const __m512i bias[2] = {_mm512_set1_epi32(0x0000ff80), _mm512_set1_epi32((int)0xff800000)};
    __m512i sum[TILE_ROWS];
    panel += b * DSE_A8_BYTES;
    for (int j = 0; j < ny; j++)
        sum[j] = _mm512_setzero_si512();
    for (int half = 0; half < 2; half++) {
        __m512i scale = load_s8(panel + DSE_A8_SCALES + 16 * half), part[TILE_ROWS];
        for (int j = 0; j < ny; j++)
            part[j] = weigh_half_sums(bias[half], act->half_sums[j] + 2 * b);
#pragma GCC unroll 4
        for (int v = 4 * half; v < 4 * half + 4; v++) {
            __m512i w = load_biased(panel + DSE_A8_QUANTS + 64 * v);
#pragma GCC unroll 8
            for (int j = 0; j < ny; j++)
                part[j] = _mm512_dpbusd_epi32(part[j], w, broadcast_4(act->values[j] + 32 * b + 4 * v));
        }
        for (int j = 0; j < ny; j++)
            sum[j] = _mm512_add_epi32(sum[j], _mm512_mullo_epi32(part[j], scale));
    }
    __m512 d = load_f16(panel), dmin = load_f16(panel + DSE_A8_DMIN);
    const uint8_t *mins = panel + DSE_A8_MINS;
    __m512i min_pair = _mm512_or_si512(load_u8(mins), _mm512_slli_epi32(load_u8(mins + 16), 16));
    for (int j = 0; j < ny; j++) {
        __m512 scale = _mm512_set1_ps(act->scales[j][b]);
        __m512i msum = weigh_half_sums(min_pair, act->half_sums[j] + 2 * b);
        acc[j] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[j]), _mm512_mul_ps(d, scale), acc[j]);
        acc[j] = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(msum), _mm512_mul_ps(dmin, scale), acc[j]);
    }
}

void dse_matmul_q8_avx512(const struct dse_matmul_job *job)
{
    run_blocks(job, add_q8);
}

void dse_matmul_a8_avx512(const struct dse_matmul_job *job)
{
    run_blocks(job, add_a8);
}
