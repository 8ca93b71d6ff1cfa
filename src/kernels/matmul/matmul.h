/* What a matmul kernel is: one panel of 16 weight rows, or several, times some activation rows. Private to this room.
 *
 * The order of float operations is part of the contract, so that all instruction sets give the same bits. Every output
 * has one f32 accumulator, starting at +0, and takes the blocks of 32 columns in ascending order:
 *   U4, U4S, U4K  acc = fma((float)isum, D * scale, acc);  acc = fma(M, sum, acc)
 *                 with D = d or d*s and M = m, -8*d or -(dmin*min), each rounded once
 *   Q8, Q6K       acc = fma((float)isum, d * scale, acc)
 *   A8            as Q6K, then acc = fma((float)msum, -(dmin * scale), acc)
 *   F32, F16, BF16, FP8  per column: acc = fma(w, x, acc)
 *                 with FP8's w = e4m3 * scale, rounded once
 * isum and msum are exact int32: isum = sum w*a (times the s8 scale of each half), msum = sum over halves of min *
 * half_sum.
 */
#ifndef DSE_KERNELS_MATMUL_MATMUL_H
#define DSE_KERNELS_MATMUL_MATMUL_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/matrix.h"

struct dse_matmul_job {
    const uint8_t *panels; /* the first panel */
    size_t panel_bytes, n_panels;
    size_t cols;
    const struct dse_activation *act;
    size_t first_row, n_rows; /* activation rows; n_panels and n_rows are at least 1 */
    float *out;               /* [n_panels][n_rows][16] */
};

typedef void dse_matmul_fn(const struct dse_matmul_job *job);

/* The panel after the one in work, asked for evenly over the tiles that the one in work takes: otherwise memory rests
 * while tiles after the first compute from the caches. Behind the last panel this asks for what nobody needs, which
 * does no harm. */
struct dse_matmul_fetch {
    const uint8_t *next, *due; /* asked for up to next, to be asked for up to due */
    size_t step;               /* bytes per block of a tile */
};

static inline struct dse_matmul_fetch dse_matmul_fetch_after(const struct dse_matmul_job *job, const uint8_t *panel,
                                                             size_t n_tiles)
{
    const uint8_t *next = panel + job->panel_bytes;
    return (struct dse_matmul_fetch){next, next, job->panel_bytes / (job->cols / DSE_ACT_BLOCK * n_tiles) + 1};
}

static inline void dse_matmul_fetch_some(struct dse_matmul_fetch *fetch)
{
    fetch->due += fetch->step;
    for (; fetch->next < fetch->due; fetch->next += 64)
        __builtin_prefetch(fetch->next);
}

#endif
