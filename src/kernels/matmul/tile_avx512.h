/* Helpers of the AVX-512 (VNNI) matmul kernels: loads, and the loop that cuts a job into register tiles. Include only
 * from *_avx512.c files. The counterpart of tile_avx2.h with all 16 rows of a panel in one register.
 */
#ifndef DSE_KERNELS_MATMUL_TILE_AVX512_H
#define DSE_KERNELS_MATMUL_TILE_AVX512_H

#include <immintrin.h>
#include <string.h>

#include "kernels/matmul/layout.h"
#include "kernels/matmul/matmul.h"
#include "kernels/prototypes.h"

#define DSE_INLINE static inline __attribute__((always_inline))

#define TILE_ROWS 8
/* Panels read side by side with one activation row: a core gets more out of the memory from several streams. */
#define TILE_STREAMS 4

/* The activation rows of a tile. */
struct tile_act {
    const int8_t *values[TILE_ROWS];
    const float *scales[TILE_ROWS], *sums[TILE_ROWS];
    const int16_t *half_sums[TILE_ROWS];
};

/* Adds block b of 32 columns of a panel times ny (1..8) rows to the accumulators, all 16 rows in acc[j]. */
typedef void tile_block_fn(const uint8_t *panel, size_t b, const struct tile_act *act, int ny, __m512 *acc);

DSE_INLINE __m512i load_512(const void *p)
{
    return _mm512_loadu_si512(p);
}

/* Four bytes to every dword. */
DSE_INLINE __m512i broadcast_4(const void *p)
{
    int v;
    memcpy(&v, p, 4);
    return _mm512_set1_epi32(v);
}

DSE_INLINE __m512 load_f16(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

DSE_INLINE __m512i load_u8(const uint8_t *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
}

DSE_INLINE __m512i load_s8(const uint8_t *p)
{
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p));
}

/* factor0 * half_sums[0] + factor1 * half_sums[1] in every dword; factors is a pair of s16 per dword. */
DSE_INLINE __m512i weigh_half_sums(__m512i factors, const int16_t *half_sums)
{
    return _mm512_dpwssd_epi32(_mm512_setzero_si512(), factors, broadcast_4(half_sums));
}

/* Rows first..first+n-1; pointers past n repeat the last row. */
DSE_INLINE void set_rows(const struct dse_matmul_job *job, size_t first, size_t n, struct tile_act *act)
{
    const size_t blocks = job->cols / DSE_ACT_BLOCK;
    for (size_t j = 0; j < TILE_ROWS; j++) {
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
    __m512 acc[TILE_ROWS];
    for (int j = 0; j < ny; j++)
        acc[j] = _mm512_setzero_ps();
    for (size_t b = 0; b < blocks; b++) {
        dse_matmul_fetch_some(fetch);
        add_block(panel, b, &act, ny, acc);
    }
    for (int j = 0; j < ny; j++)
        _mm512_storeu_ps(out + j * DSE_PANEL_ROWS, acc[j]);
}

DSE_INLINE void run_one_row(const struct dse_matmul_job *job, tile_block_fn *add_block)
{
    const size_t blocks = job->cols / DSE_ACT_BLOCK;
    struct tile_act act;
    set_rows(job, 0, 1, &act);
    for (size_t p = 0; p < job->n_panels; p += TILE_STREAMS) {
        size_t streams = job->n_panels - p < TILE_STREAMS ? job->n_panels - p : TILE_STREAMS;
        __m512 acc[TILE_STREAMS][1];
        for (int q = 0; q < TILE_STREAMS; q++)
            acc[q][0] = _mm512_setzero_ps();
        for (size_t b = 0; b < blocks; b++)
#pragma GCC unroll 1
            for (size_t q = 0; q < streams; q++)
                add_block(job->panels + (p + q) * job->panel_bytes, b, &act, 1, acc[q]);
        for (size_t q = 0; q < streams; q++)
            _mm512_storeu_ps(job->out + (p + q) * DSE_PANEL_ROWS, acc[q][0]);
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
        struct dse_matmul_fetch fetch = dse_matmul_fetch_after(job, panel, (job->n_rows + TILE_ROWS - 1) / TILE_ROWS);
        for (size_t i = 0; i < job->n_rows; i += TILE_ROWS) {
            float *out = job->out + (p * job->n_rows + i) * DSE_PANEL_ROWS;
#ifdef DSE_ONE_TILE_SIZE
            size_t left = job->n_rows - i;
            run_tile(job, panel, i, left < 8 ? (int)left : 8, out, &fetch, add_block);
#else
            switch (job->n_rows - i) {
            case 1: run_tile(job, panel, i, 1, out, &fetch, add_block); break;
            case 2: run_tile(job, panel, i, 2, out, &fetch, add_block); break;
            case 3: run_tile(job, panel, i, 3, out, &fetch, add_block); break;
            case 4: run_tile(job, panel, i, 4, out, &fetch, add_block); break;
            case 5: run_tile(job, panel, i, 5, out, &fetch, add_block); break;
            case 6: run_tile(job, panel, i, 6, out, &fetch, add_block); break;
            case 7: run_tile(job, panel, i, 7, out, &fetch, add_block); break;
            default: run_tile(job, panel, i, 8, out, &fetch, add_block); break;
            }
#endif
        }
    }
}

#endif
