/* Matmul of the Q6K layout with s8 activations, AVX-512 VNNI. Called through matmul.c; the result is that of
 * quant_scalar.c. Quants stay unsigned (u = q + 32); the sum of a half starts from -32 times its activations.
 */
#include "kernels/matmul/tile_avx512.h"

/* Two neighbouring dword rows: quants of both halves of the block. */
struct q6_quants {
    __m512i low[2], high[2];
};

DSE_INLINE void unpack(const uint8_t *block, int g, struct q6_quants *u)
{
    const __m512i low_mask = _mm512_set1_epi8(15), top_mask = _mm512_set1_epi8(0x30);
    __m512i w0 = load_512(block + DSE_Q6K_BLOCK_QUANTS + 128 * g);
    __m512i w1 = load_512(block + DSE_Q6K_BLOCK_QUANTS + 128 * g + 64);
    __m512i top = load_512(block + DSE_Q6K_BLOCK_HIGH + 64 * g);
    u->low[0] = _mm512_or_si512(_mm512_and_si512(w0, low_mask), _mm512_and_si512(_mm512_slli_epi16(top, 4), top_mask));
    u->high[0] = _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi16(w0, 4), low_mask),
                                 _mm512_and_si512(_mm512_slli_epi16(top, 2), top_mask));
    u->low[1] = _mm512_or_si512(_mm512_and_si512(w1, low_mask), _mm512_and_si512(top, top_mask));
    u->high[1] = _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi16(w1, 4), low_mask),
                                 _mm512_and_si512(_mm512_srli_epi16(top, 2), top_mask));
}

DSE_INLINE void add_q6k(const uint8_t *panel, size_t b, const struct tile_act *act, int ny, __m512 *acc)
{
    /* -32 for the half in question, 0 for the other */
    const __m512i bias_low = _mm512_set1_epi32(0x0000ffe0), bias_high = _mm512_set1_epi32((int)0xffe00000);
    const uint8_t *super = panel + b / 8 * DSE_Q6K_BYTES;
    const uint8_t *block = super + DSE_Q6K_BLOCKS + b % 8 * DSE_Q6K_BLOCK_BYTES;
    __m512i low[TILE_ROWS], high[TILE_ROWS];
    for (int j = 0; j < ny; j++) {
        low[j] = weigh_half_sums(bias_low, act->half_sums[j] + 2 * b);
        high[j] = weigh_half_sums(bias_high, act->half_sums[j] + 2 * b);
    }
#pragma GCC unroll 2
    for (int g = 0; g < 2; g++) {
        struct q6_quants u;
        unpack(block, g, &u);
#pragma GCC unroll 8
        for (int j = 0; j < ny; j++) {
            const int8_t *a = act->values[j] + 32 * b + 8 * g;
            low[j] = _mm512_dpbusd_epi32(low[j], u.low[0], broadcast_4(a));
            low[j] = _mm512_dpbusd_epi32(low[j], u.low[1], broadcast_4(a + 4));
            high[j] = _mm512_dpbusd_epi32(high[j], u.high[0], broadcast_4(a + 16));
            high[j] = _mm512_dpbusd_epi32(high[j], u.high[1], broadcast_4(a + 20));
        }
    }
    __m512i scale_low = load_s8(block), scale_high = load_s8(block + 16);
    __m512 d = load_f16(super);
    for (int j = 0; j < ny; j++) {
        __m512i sum = _mm512_add_epi32(_mm512_mullo_epi32(low[j], scale_low), _mm512_mullo_epi32(high[j], scale_high));
        __m512 scale = _mm512_mul_ps(d, _mm512_set1_ps(act->scales[j][b]));
        acc[j] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, acc[j]);
    }
}

void dse_matmul_q6k_avx512(const struct dse_matmul_job *job)
{
    run_blocks(job, add_q6k);
}
