/* Matmul of the 4-bit layouts with s8 activations, AVX-512 VNNI. Called through matmul.c; the result is that of
 * quant_scalar.c. vpdpbusd takes u8 times s8 and adds four products exactly in int32.
 */
#include "kernels/matmul/tile_avx512.h"

enum u4_kind { KIND_U4, KIND_U4S, KIND_U4K };

/* Quants of block b, and the factors of its integer sum and of the activation sum. */
struct u4_block {
    const uint8_t *quants;
    __m512 d, m;
};

DSE_INLINE void load_block(const uint8_t *panel, size_t b, enum u4_kind kind, struct u4_block *block)
{
    if (kind == KIND_U4) {
        const uint8_t *p = panel + b * DSE_U4_BYTES;
        block->quants = p + DSE_U4_QUANTS;
        block->d = load_f16(p);
        block->m = load_f16(p + DSE_U4_M);
    } else if (kind == KIND_U4S) {
        const uint8_t *p = panel + b * DSE_U4S_BYTES;
        block->quants = p + DSE_U4S_QUANTS;
        block->d = load_f16(p);
        block->m = _mm512_mul_ps(block->d, _mm512_set1_ps(-8.0f));
    } else {
        const uint8_t *p = panel + b / 8 * DSE_U4K_BYTES;
        const uint8_t *q = p + DSE_U4K_BLOCKS + b % 8 * DSE_U4K_BLOCK_BYTES;
        block->quants = q + DSE_U4K_BLOCK_QUANTS;
        block->d = _mm512_mul_ps(load_f16(p), _mm512_cvtepi32_ps(load_u8(q)));
        block->m = _mm512_xor_ps(
            _mm512_mul_ps(load_f16(p + DSE_U4K_DMIN), _mm512_cvtepi32_ps(load_u8(q + DSE_U4K_BLOCK_MIN))),
            _mm512_set1_ps(-0.0f));
    }
}

DSE_INLINE void add_block(const uint8_t *panel, size_t b, const struct tile_act *act, int ny, __m512 *acc,
                          enum u4_kind kind)
{
    const __m512i low_mask = _mm512_set1_epi8(15);
    struct u4_block block;
    __m512i sum[TILE_ROWS];
    load_block(panel, b, kind, &block);
    for (int j = 0; j < ny; j++)
        sum[j] = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) {
        __m512i w = load_512(block.quants + 64 * v);
        __m512i low = _mm512_and_si512(w, low_mask), high = _mm512_and_si512(_mm512_srli_epi16(w, 4), low_mask);
#pragma GCC unroll 8
        for (int j = 0; j < ny; j++) {
            const int8_t *a = act->values[j] + 32 * b + 4 * v;
            sum[j] = _mm512_dpbusd_epi32(sum[j], low, broadcast_4(a));
            sum[j] = _mm512_dpbusd_epi32(sum[j], high, broadcast_4(a + 16));
        }
    }
    for (int j = 0; j < ny; j++) {
        __m512 scale = _mm512_set1_ps(act->scales[j][b]), total = _mm512_set1_ps(act->sums[j][b]);
        acc[j] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[j]), _mm512_mul_ps(block.d, scale), acc[j]);
        acc[j] = _mm512_fmadd_ps(block.m, total, acc[j]);
    }
}

DSE_INLINE void add_u4(const uint8_t *panel, size_t b, const struct tile_act *act, int ny, __m512 *acc)
{
    add_block(panel, b, act, ny, acc, KIND_U4);
}

DSE_INLINE void add_u4s(const uint8_t *panel, size_t b, const struct tile_act *act, int ny, __m512 *acc)
{
    add_block(panel, b, act, ny, acc, KIND_U4S);
}

DSE_INLINE void add_u4k(const uint8_t *panel, size_t b, const struct tile_act *act, int ny, __m512 *acc)
{
    add_block(panel, b, act, ny, acc, KIND_U4K);
}

void dse_matmul_u4_avx512(const struct dse_matmul_job *job)
{
    run_blocks(job, add_u4);
}

void dse_matmul_u4s_avx512(const struct dse_matmul_job *job)
{
    run_blocks(job, add_u4s);
}

void dse_matmul_u4k_avx512(const struct dse_matmul_job *job)
{
    run_blocks(job, add_u4k);
}
