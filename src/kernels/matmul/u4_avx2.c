/* Matmul of the 4-bit layouts with s8 activations, AVX2. Called through matmul.c; the result is that of quant_scalar.c.
 *
 * Weights stay unsigned: u4 times s8 in vpmaddubsw, and all eight products of a block fit one int16 sum
 * (8 * 2 * 15 * 127 = 30480). This halves the work of widening to signed bytes first.
 */
#include "kernels/matmul/tile_avx2.h"

enum u4_kind { KIND_U4, KIND_U4S, KIND_U4K };

/* Quants of block b, and the factors of its integer sum and of the activation sum, rows 8h..8h+7. */
struct u4_block {
    const uint8_t *quants;
    __m256 d[2], m[2];
};

DSE_INLINE void load_block(const uint8_t *panel, size_t b, enum u4_kind kind, struct u4_block *block)
{
    for (int h = 0; h < 2; h++) {
        if (kind == KIND_U4) {
            const uint8_t *p = panel + b * DSE_U4_BYTES;
            block->quants = p + DSE_U4_QUANTS;
            block->d[h] = load_f16(p, h);
            block->m[h] = load_f16(p + DSE_U4_M, h);
        } else if (kind == KIND_U4S) {
            const uint8_t *p = panel + b * DSE_U4S_BYTES;
            block->quants = p + DSE_U4S_QUANTS;
            block->d[h] = load_f16(p, h);
            block->m[h] = _mm256_mul_ps(block->d[h], _mm256_set1_ps(-8.0f));
        } else {
            const uint8_t *p = panel + b / 8 * DSE_U4K_BYTES;
            const uint8_t *q = p + DSE_U4K_BLOCKS + b % 8 * DSE_U4K_BLOCK_BYTES;
            block->quants = q + DSE_U4K_BLOCK_QUANTS;
            block->d[h] = _mm256_mul_ps(load_f16(p, h), load_u8_ps(q, h));
            block->m[h] = _mm256_xor_ps(
                _mm256_mul_ps(load_f16(p + DSE_U4K_DMIN, h), load_u8_ps(q + DSE_U4K_BLOCK_MIN, h)),
                _mm256_set1_ps(-0.0f));
        }
    }
}

DSE_INLINE void add_block(const uint8_t *panel, size_t b, const struct tile_act *act, int ny, __m256 (*acc)[2],
                          enum u4_kind kind)
{
    const __m256i low_mask = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    struct u4_block block;
    __m256i sum[4][2];
    load_block(panel, b, kind, &block);
    for (int j = 0; j < ny; j++)
        sum[j][0] = sum[j][1] = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) {
        __m256i w0 = load_256(block.quants + 64 * v), w1 = load_256(block.quants + 64 * v + 32);
        __m256i low0 = _mm256_and_si256(w0, low_mask), low1 = _mm256_and_si256(w1, low_mask);
        __m256i high0 = _mm256_and_si256(_mm256_srli_epi16(w0, 4), low_mask);
        __m256i high1 = _mm256_and_si256(_mm256_srli_epi16(w1, 4), low_mask);
#pragma GCC unroll 4
        for (int j = 0; j < ny; j++) {
            const int8_t *a = act->values[j] + 32 * b + 4 * v;
            __m256i a_low = broadcast_4(a), a_high = broadcast_4(a + 16);
            sum[j][0] = _mm256_add_epi16(sum[j][0], _mm256_maddubs_epi16(low0, a_low));
            sum[j][1] = _mm256_add_epi16(sum[j][1], _mm256_maddubs_epi16(low1, a_low));
            sum[j][0] = _mm256_add_epi16(sum[j][0], _mm256_maddubs_epi16(high0, a_high));
            sum[j][1] = _mm256_add_epi16(sum[j][1], _mm256_maddubs_epi16(high1, a_high));
        }
    }
    for (int j = 0; j < ny; j++) {
        __m256 scale = _mm256_broadcast_ss(act->scales[j] + b), total = _mm256_broadcast_ss(act->sums[j] + b);
        for (int h = 0; h < 2; h++) {
            __m256 isum = _mm256_cvtepi32_ps(_mm256_madd_epi16(sum[j][h], ones));
            acc[j][h] = _mm256_fmadd_ps(isum, _mm256_mul_ps(block.d[h], scale), acc[j][h]);
            acc[j][h] = _mm256_fmadd_ps(block.m[h], total, acc[j][h]);
        }
    }
}

DSE_INLINE void add_u4(const uint8_t *panel, size_t b, const struct tile_act *act, int ny, __m256 (*acc)[2])
{
    add_block(panel, b, act, ny, acc, KIND_U4);
}

DSE_INLINE void add_u4s(const uint8_t *panel, size_t b, const struct tile_act *act, int ny, __m256 (*acc)[2])
{
    add_block(panel, b, act, ny, acc, KIND_U4S);
}

DSE_INLINE void add_u4k(const uint8_t *panel, size_t b, const struct tile_act *act, int ny, __m256 (*acc)[2])
{
    add_block(panel, b, act, ny, acc, KIND_U4K);
}

void dse_matmul_u4_avx2(const struct dse_matmul_job *job)
{
    run_blocks(job, add_u4);
}

void dse_matmul_u4s_avx2(const struct dse_matmul_job *job)
{
    run_blocks(job, add_u4s);
}

void dse_matmul_u4k_avx2(const struct dse_matmul_job *job)
{
    run_blocks(job, add_u4k);
}
