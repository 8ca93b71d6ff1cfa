/* Helpers of the AVX2 matmul kernels: loads, and the loop that cuts a job into register tiles. Include only from
 * *_avx2.c files.
 *
 * A tile is one panel times ny activation rows, ny a compile-time constant so that its sums live in registers.
 */
#ifndef DSE_KERNELS_MATMUL_TILE_AVX2_H
#define DSE_KERNELS_MATMUL_TILE_AVX2_H

#include <immintrin.h>
#include <string.h>

#include "kernels/matmul/layout.h"
#include "kernels/prototypes.h"

#define DSE_INLINE static inline __attribute__((always_inline))

/* The activation rows of a tile. */
struct tile_act {
    const int8_t *values[4];
    const float *scales[4], *sums[4];
    const int16_t *half_sums[4];
};

/* One panel times ny (1..4) rows, out [ny][16]. */
typedef void dse_tile_fn(const uint8_t *panel, size_t blocks, const struct tile_act *act, int ny, float *out);

DSE_INLINE __m256i load_256(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

/* Four bytes to every dword. */
DSE_INLINE __m256i broadcast_4(const void *p)
{
    int v;
    memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
}

/* Rows 8h..8h+7 of 16 f16. */
DSE_INLINE __m256 load_f16(const uint8_t *p, int h)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 16 * h)));
}

/* Rows 8h..8h+7 of 16 u8 as f32. */
DSE_INLINE __m256 load_u8_ps(const uint8_t *p, int h)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8 * h))));
}

/* Rows 8h..8h+7 of two arrays of 16 bytes, each pair as two s16 of a dword. */
DSE_INLINE __m256i pair_s8(const uint8_t *first, const uint8_t *second, int h)
{
    __m256i a = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(first + 8 * h)));
    __m256i b = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(second + 8 * h)));
    return _mm256_blend_epi16(a, _mm256_slli_epi32(b, 16), 0xAA);
}

DSE_INLINE __m256i pair_u8(const uint8_t *first, const uint8_t *second, int h)
{
    __m256i a = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(first + 8 * h)));
    __m256i b = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(second + 8 * h)));
    return _mm256_or_si256(a, _mm256_slli_epi32(b, 16));
}

DSE_INLINE void run_tiles(const struct dse_matmul_job *job, dse_tile_fn *tile)
{
    const size_t blocks = job->cols / DSE_ACT_BLOCK;
    for (size_t p = 0; p < job->n_panels; p++) {
        const uint8_t *panel = job->panels + p * job->panel_bytes;
        float *out = job->out + p * job->n_rows * DSE_PANEL_ROWS;
        for (size_t i = 0; i < job->n_rows; i += 4) {
            size_t left = job->n_rows - i;
            struct tile_act act;
            for (size_t j = 0; j < 4; j++) {
                size_t m = job->first_row + i + (j < left ? j : left - 1);
                act.values[j] = job->act->values + m * job->cols;
                act.scales[j] = job->act->scales + m * blocks;
                act.sums[j] = job->act->sums + m * blocks;
                act.half_sums[j] = job->act->half_sums + m * 2 * blocks;
            }
            switch (left) {
            case 1: tile(panel, blocks, &act, 1, out + i * DSE_PANEL_ROWS); break;
            case 2: tile(panel, blocks, &act, 2, out + i * DSE_PANEL_ROWS); break;
            case 3: tile(panel, blocks, &act, 3, out + i * DSE_PANEL_ROWS); break;
            default: tile(panel, blocks, &act, 4, out + i * DSE_PANEL_ROWS); break;
            }
        }
    }
}

#endif
