/* Matmul of the s8 layouts (Q8, A8) with s8 activations, AVX2. Called through matmul.c; the result is that of
 * quant_scalar.c.
 *
 * vpmaddubsw wants one unsigned side: |w| times a with the sign of w. |w| <= 128 and |a| <= 127, so that a pair
 * (2 * 128 * 127 = 32512) still fits int16; more than one pair does not, hence a vpmaddwd after each.
 */
#include "kernels/matmul/tile_avx2.h"

/* s16 pairs of w * a. */
DSE_INLINE __m256i multiply_pairs(__m256i magnitude, __m256i w, __m256i a)
{
    return _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(a, w));
}

DSE_INLINE void add_q8(const uint8_t *panel, size_t b, const struct tile_act *act, int ny, __m256 (*acc)[2])
{
    const __m256i ones = _mm256_set1_epi16(1);
    panel += b * DSE_Q8_BYTES;
    __m256i sum[4][2];
    for (int j = 0; j < ny; j++)
        sum[j][0] = sum[j][1] = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int v = 0; v < 8; v++) {
        __m256i w0 = load_256(panel + DSE_Q8_QUANTS + 64 * v), w1 = load_256(panel + DSE_Q8_QUANTS + 64 * v + 32);
        __m256i magnitude0 = _mm256_abs_epi8(w0), magnitude1 = _mm256_abs_epi8(w1);
#pragma GCC unroll 4
        for (int j = 0; j < ny; j++) {
            __m256i a = broadcast_4(act->values[j] + 32 * b + 4 * v);
            sum[j][0] = _mm256_add_epi32(sum[j][0], _mm256_madd_epi16(multiply_pairs(magnitude0, w0, a), ones));
            sum[j][1] = _mm256_add_epi32(sum[j][1], _mm256_madd_epi16(multiply_pairs(magnitude1, w1, a), ones));
        }
    }
    for (int j = 0; j < ny; j++) {
        __m256 scale = _mm256_broadcast_ss(act->scales[j] + b);
        for (int h = 0; h < 2; h++)
            acc[j][h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[j][h]), _mm256_mul_ps(load_f16(panel, h), scale),
                                        acc[j][h]);
    }
}

DSE_INLINE void add_a8(const uint8_t *panel, size_t b, const struct tile_act *act, int ny, __m256 (*acc)[2])
{
    panel += b * DSE_A8_BYTES;
    const uint8_t *scales = panel + DSE_A8_SCALES, *mins = panel + DSE_A8_MINS;
    __m256i sum[4][2];
    for (int j = 0; j < ny; j++)
        sum[j][0] = sum[j][1] = _mm256_setzero_si256();
    for (int half = 0; half < 2; half++) {
        const uint8_t *s = scales + 16 * half;
        __m256i scale0 = pair_s8(s, s, 0), scale1 = pair_s8(s, s, 1);
#pragma GCC unroll 4
        for (int v = 4 * half; v < 4 * half + 4; v++) {
            const uint8_t *q = panel + DSE_A8_QUANTS + 64 * v;
            __m256i w0 = load_256(q), w1 = load_256(q + 32);
            __m256i magnitude0 = _mm256_abs_epi8(w0), magnitude1 = _mm256_abs_epi8(w1);
#pragma GCC unroll 4
            for (int j = 0; j < ny; j++) {
                __m256i a = broadcast_4(act->values[j] + 32 * b + 4 * v);
                __m256i p0 = _mm256_madd_epi16(multiply_pairs(magnitude0, w0, a), scale0);
                __m256i p1 = _mm256_madd_epi16(multiply_pairs(magnitude1, w1, a), scale1);
                sum[j][0] = _mm256_add_epi32(sum[j][0], p0);
                sum[j][1] = _mm256_add_epi32(sum[j][1], p1);
            }
        }
    }
    for (int h = 0; h < 2; h++) {
        __m256 d = load_f16(panel, h), dmin = load_f16(panel + DSE_A8_DMIN, h);
        __m256i min_pair = pair_u8(mins, mins + 16, h);
        for (int j = 0; j < ny; j++) {
            __m256 scale = _mm256_broadcast_ss(act->scales[j] + b);
            __m256i msum = _mm256_madd_epi16(min_pair, broadcast_4(act->half_sums[j] + 2 * b));
            acc[j][h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[j][h]), _mm256_mul_ps(d, scale), acc[j][h]);
            acc[j][h] = _mm256_fnmadd_ps(_mm256_cvtepi32_ps(msum), _mm256_mul_ps(dmin, scale), acc[j][h]);
        }
    }
}

void dse_matmul_q8_avx2(const struct dse_matmul_job *job)
{
    run_blocks(job, add_q8);
}

void dse_matmul_a8_avx2(const struct dse_matmul_job *job)
{
    run_blocks(job, add_a8);
}
