/* Matmul of the Q6K layout with s8 activations, AVX2. Called through matmul.c; the result is that of quant_scalar.c.
 *
 * Quants stay unsigned (u = q + 32): two products fit int16 (2 * 2 * 63 * 127 = 32004), the s8 scale of the half is
 * applied by vpmaddwd. The 32 * scale * (sum of a) that this adds is what the integer sum starts from, negated.
 */
#include "kernels/matmul/tile_avx2.h"

/* Two neighbouring dword rows of 8 weight rows: quants of both halves of the block. */
struct q6_quants {
    __m256i low[2], high[2];
};

DSE_INLINE void unpack(const uint8_t *block, int g, int h, struct q6_quants *u)
{
    const __m256i low_mask = _mm256_set1_epi8(15), top_mask = _mm256_set1_epi8(0x30);
    __m256i w0 = load_256(block + DSE_Q6K_BLOCK_QUANTS + 128 * g + 32 * h);
    __m256i w1 = load_256(block + DSE_Q6K_BLOCK_QUANTS + 128 * g + 64 + 32 * h);
    __m256i top = load_256(block + DSE_Q6K_BLOCK_HIGH + 64 * g + 32 * h);
    u->low[0] = _mm256_or_si256(_mm256_and_si256(w0, low_mask), _mm256_and_si256(_mm256_slli_epi16(top, 4), top_mask));
    u->high[0] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(w0, 4), low_mask),
                                 _mm256_and_si256(_mm256_slli_epi16(top, 2), top_mask));
    u->low[1] = _mm256_or_si256(_mm256_and_si256(w1, low_mask), _mm256_and_si256(top, top_mask));
    u->high[1] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(w1, 4), low_mask),
                                 _mm256_and_si256(_mm256_srli_epi16(top, 2), top_mask));
}

DSE_INLINE __m256i multiply_two(const __m256i u[2], const int8_t *a)
{
    return _mm256_add_epi16(_mm256_maddubs_epi16(u[0], broadcast_4(a)), _mm256_maddubs_epi16(u[1], broadcast_4(a + 4)));
}

DSE_INLINE void add_q6k(const uint8_t *panel, size_t b, const struct tile_act *act, int ny, __m256 (*acc)[2])
{
    const uint8_t *super = panel + b / 8 * DSE_Q6K_BYTES;
    const uint8_t *block = super + DSE_Q6K_BLOCKS + b % 8 * DSE_Q6K_BLOCK_BYTES;
    for (int h = 0; h < 2; h++) {
        __m256i scale_low = pair_s8(block, block, h), scale_high = pair_s8(block + 16, block + 16, h);
        __m256i offset = _mm256_mullo_epi16(pair_s8(block, block + 16, h), _mm256_set1_epi16(-32));
        __m256i sum[4];
        for (int j = 0; j < ny; j++)
            sum[j] = _mm256_madd_epi16(offset, broadcast_4(act->half_sums[j] + 2 * b));
#pragma GCC unroll 2
        for (int g = 0; g < 2; g++) {
            struct q6_quants u;
            unpack(block, g, h, &u);
#pragma GCC unroll 4
            for (int j = 0; j < ny; j++) {
                const int8_t *a = act->values[j] + 32 * b + 8 * g;
                __m256i low = _mm256_madd_epi16(multiply_two(u.low, a), scale_low);
                __m256i high = _mm256_madd_epi16(multiply_two(u.high, a + 16), scale_high);
                sum[j] = _mm256_add_epi32(sum[j], _mm256_add_epi32(low, high));
            }
        }
        __m256 d = load_f16(super, h);
        for (int j = 0; j < ny; j++) {
            __m256 scale = _mm256_mul_ps(d, _mm256_broadcast_ss(act->scales[j] + b));
            acc[j][h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[j]), scale, acc[j][h]);
        }
    }
}

void dse_matmul_q6k_avx2(const struct dse_matmul_job *job)
{
    run_blocks(job, add_q6k);
}
