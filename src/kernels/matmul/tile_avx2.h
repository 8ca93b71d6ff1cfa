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
#include "kernels/matmul/matmul.h"
#include "kernels/prototypes.h"

#define DSE_INLINE static inline __attribute__((always_inline))

/* The activation rows of a tile. */
struct tile_act {
    const int8_t *values[4];
    const float *scales[4], *sums[4];
    const int16_t *half_sums[4];
};

/* Adds block b of 32 columns of a panel times ny (1..4) rows to the accumulators, rows 8h..8h+7 in acc[j][h]. */
typedef void tile_block_fn(const uint8_t *panel, size_t b, const struct tile_act *act, int ny, __m256 (*acc)[2]);

/* Panels read side by side with one activation row: a core gets more out of the memory from several streams. */
#define TILE_STREAMS 4

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

/* Rows first..first+n-1; pointers past n repeat the last row. */
DSE_INLINE void set_rows(const struct dse_matmul_job *job, size_t first, size_t n, struct tile_act *act)
{
    const size_t blocks = job->cols / DSE_ACT_BLOCK;
    for (size_t j = 0; j < 4; j++) {
        size_t m = job->first_row + first + (j < n ? j : n - 1);
        act->values[j] = job->act->values + m * job->cols;
        act->scales[j] = job->act->scales + m * blocks;
        act->sums[j] = job->act->sums + m * blocks;
        act->half_sums[j] = job->act->half_sums + m * 2 * blocks;
    }
}

/* first: row of the job that the tile begins with. */
DSE_INLINE void run_tile(const struct dse_matmul_job *job, const uint8_t *panel, size_t first, int ny, float *out,
                         struct dse_matmul_fetch *fetch, tile_block_fn *add_block)
{
    const size_t blocks = job->cols / DSE_ACT_BLOCK;
    struct tile_act act;
    set_rows(job, first, (size_t)ny, &act);
    __m256 acc[4][2];
    for (int j = 0; j < ny; j++)
        acc[j][0] = acc[j][1] = _mm256_setzero_ps();
    for (size_t b = 0; b < blocks; b++) {
        dse_matmul_fetch_some(fetch);
        add_block(panel, b, &act, ny, acc);
    }
    for (int j = 0; j < ny; j++)
        for (int h = 0; h < 2; h++)
            _mm256_storeu_ps(out + j * DSE_PANEL_ROWS + 8 * h, acc[j][h]);
}

DSE_INLINE void run_one_row(const struct dse_matmul_job *job, tile_block_fn *add_block)
{
    const size_t blocks = job->cols / DSE_ACT_BLOCK;
    struct tile_act act;
    set_rows(job, 0, 1, &act);
    for (size_t p = 0; p < job->n_panels; p += TILE_STREAMS) {
        size_t streams = job->n_panels - p < TILE_STREAMS ? job->n_panels - p : TILE_STREAMS;
        __m256 acc[TILE_STREAMS][1][2];
        for (int q = 0; q < TILE_STREAMS; q++)
            acc[q][0][0] = acc[q][0][1] = _mm256_setzero_ps();
        for (size_t b = 0; b < blocks; b++)
#pragma GCC unroll 1
            for (size_t q = 0; q < streams; q++)
                add_block(job->panels + (p + q) * job->panel_bytes, b, &act, 1, acc[q]);
        for (size_t q = 0; q < streams; q++)
            for (int h = 0; h < 2; h++)
                _mm256_storeu_ps(job->out + (p + q) * DSE_PANEL_ROWS + 8 * h, acc[q][0][h]);
    }
}

DSE_INLINE void run_blocks(const struct dse_matmul_job *job, tile_block_fn *add_block)
{
    if (job->n_rows == 1) {
        run_one_row(job, add_block);
        return;
    }
    for (size_t p = 0; p < job->n_panels; p++) {
        const uint8_t *panel = job->panels + p * job->panel_bytes;
        struct dse_matmul_fetch fetch = dse_matmul_fetch_after(job, panel, (job->n_rows + 4 - 1) / 4);
        for (size_t i = 0; i < job->n_rows; i += 4) {
            float *out = job->out + (p * job->n_rows + i) * DSE_PANEL_ROWS;
#ifdef DSE_ONE_TILE_SIZE
            size_t left = job->n_rows - i;
            run_tile(job, panel, i, left < 4 ? (int)left : 4, out, &fetch, add_block);
#else
            switch (job->n_rows - i) {
            case 1: run_tile(job, panel, i, 1, out, &fetch, add_block); break;
            case 2: run_tile(job, panel, i, 2, out, &fetch, add_block); break;
            case 3: run_tile(job, panel, i, 3, out, &fetch, add_block); break;
            default: run_tile(job, panel, i, 4, out, &fetch, add_block); break;
            }
#endif
        }
    }
}

#endif
