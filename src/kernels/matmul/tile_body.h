/* The loop that cuts a matmul job with s8 activations into register tiles, the same for every instruction set.
 *
 * A tile is one panel times ny activation rows, ny a compile-time constant so that its sums live in registers. Included
 * by tile_<isa>.h, which defines before:
 *   TILE_ROWS                      4 or 8, the largest ny
 *   tile_sums                      one accumulator for each of the 16 weight rows
 *   clear_sums_of, store_sums_of   +0 into a tile_sums, a tile_sums to 16 floats
 *   TILE_STREAMS                   panels read side by side with one activation row, where a core gets more out of the
 *                                  memory from several streams; else not defined
 */
#ifndef DSE_KERNELS_MATMUL_TILE_BODY_H
#define DSE_KERNELS_MATMUL_TILE_BODY_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/matmul/layout.h"
#include "kernels/matmul/matmul.h"

/* The activation rows of a tile. */
struct tile_act {
    const int8_t *values[TILE_ROWS];
    const float *scales[TILE_ROWS], *sums[TILE_ROWS];
    const int16_t *half_sums[TILE_ROWS];
};

/* Adds block b of 32 columns of a panel times ny (1..TILE_ROWS) rows to the accumulators. */
typedef void tile_block_fn(const uint8_t *panel, size_t b, const struct tile_act *act, int ny, tile_sums *acc);

/* Rows first..first+n-1 of the job; pointers past n repeat the last row. */
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
    tile_sums acc[TILE_ROWS];
    for (int j = 0; j < ny; j++)
        clear_sums_of(&acc[j]);
    for (size_t b = 0; b < blocks; b++) {
        dse_matmul_fetch_some(fetch);
        add_block(panel, b, &act, ny, acc);
    }
    for (int j = 0; j < ny; j++)
        store_sums_of(out + j * DSE_PANEL_ROWS, &acc[j]);
}

#ifdef TILE_STREAMS
/* Bytes that a stream is asked for ahead of its block: the arithmetic of a block keeps the core from seeing far enough by
 * itself. */
#define STREAM_AHEAD 768

DSE_INLINE void run_one_row(const struct dse_matmul_job *job, tile_block_fn *add_block)
{
    const size_t blocks = job->cols / DSE_ACT_BLOCK, block_bytes = (job->panel_bytes + blocks - 1) / blocks;
    struct tile_act act;
    set_rows(job, 0, 1, &act);
    for (size_t p = 0; p < job->n_panels; p += TILE_STREAMS) {
        size_t streams = job->n_panels - p < TILE_STREAMS ? job->n_panels - p : TILE_STREAMS;
        tile_sums acc[TILE_STREAMS];
        for (int q = 0; q < TILE_STREAMS; q++)
            clear_sums_of(&acc[q]);
        for (size_t b = 0; b < blocks; b++) {
            /* Behind a panel its stream goes on with the panel that many streams later, which may belong to the next job. */
            size_t ahead = b * block_bytes + STREAM_AHEAD;
            if (ahead >= job->panel_bytes) ahead += (TILE_STREAMS - 1) * job->panel_bytes;
#pragma GCC unroll 1
            for (size_t q = 0; q < streams; q++) {
                const uint8_t *panel = job->panels + (p + q) * job->panel_bytes;
                for (size_t i = 0; i < block_bytes; i += 64)
                    __builtin_prefetch(panel + ahead + i);
                add_block(panel, b, &act, 1, &acc[q]);
            }
        }
        for (size_t q = 0; q < streams; q++)
            store_sums_of(job->out + (p + q) * DSE_PANEL_ROWS, &acc[q]);
    }
}
#endif

DSE_INLINE void run_blocks(const struct dse_matmul_job *job, tile_block_fn *add_block)
{
#ifdef TILE_STREAMS
    if (job->n_rows == 1) {
        run_one_row(job, add_block);
        return;
    }
#endif
    for (size_t p = 0; p < job->n_panels; p++) {
        const uint8_t *panel = job->panels + p * job->panel_bytes;
        struct dse_matmul_fetch fetch = dse_matmul_fetch_after(job, panel, (job->n_rows + TILE_ROWS - 1) / TILE_ROWS);
        for (size_t i = 0; i < job->n_rows; i += TILE_ROWS) {
            float *out = job->out + (p * job->n_rows + i) * DSE_PANEL_ROWS;
#ifdef DSE_ONE_TILE_SIZE
            size_t left = job->n_rows - i;
            run_tile(job, panel, i, left < TILE_ROWS ? (int)left : TILE_ROWS, out, &fetch, add_block);
#else
            switch (job->n_rows - i) {
            case 1: run_tile(job, panel, i, 1, out, &fetch, add_block); break;
            case 2: run_tile(job, panel, i, 2, out, &fetch, add_block); break;
            case 3: run_tile(job, panel, i, 3, out, &fetch, add_block); break;
#if TILE_ROWS > 4
            case 4: run_tile(job, panel, i, 4, out, &fetch, add_block); break;
            case 5: run_tile(job, panel, i, 5, out, &fetch, add_block); break;
            case 6: run_tile(job, panel, i, 6, out, &fetch, add_block); break;
            case 7: run_tile(job, panel, i, 7, out, &fetch, add_block); break;
#endif
            default: run_tile(job, panel, i, TILE_ROWS, out, &fetch, add_block); break;
            }
#endif
        }
    }
}

#endif
