/* Matmul of FP8 weights with f32 activations, written once over 16 lanes; included by fp8_<isa>.c, which defines
 * DSE_NAME(op), MAX_NY, the activation rows whose sums fit in registers (6 or 8), and widen_e4m3. Called through
 * matmul.c; the result is that of float_scalar.c: one fma per column, ascending, in every lane.
 *
 * With many activation rows a block of 128 columns is decoded once and serves them all; their sums wait in job->out.
 */
#include "kernels/matmul/layout.h"
#include "kernels/prototypes.h"
#include "kernels/vector/v16.h"

#define MAX_NP 4

/* Weights of column k of a block. */
DSE_INLINE v16 load_weights(const uint8_t *block, size_t k)
{
    const float *scales = (const float *)(const void *)block;
    return v16_mul(widen_e4m3(block + DSE_FP8_QUANTS + DSE_PANEL_ROWS * k), v16_load(scales));
}

/* np panels times all ny rows of the job. */
DSE_INLINE void few_rows(const struct dse_matmul_job *job, size_t p, int np, int ny)
{
    const float *x[MAX_NY];
    const uint8_t *block[MAX_NP];
    v16 acc[MAX_NP][MAX_NY];
    for (int j = 0; j < ny; j++)
        x[j] = job->act->x + (job->first_row + (size_t)j) * job->act->stride;
    for (int q = 0; q < np; q++)
        block[q] = job->panels + (p + (size_t)q) * job->panel_bytes;
    for (int q = 0; q < np; q++)
        for (int j = 0; j < ny; j++)
            acc[q][j] = v16_set1(0.0f);
    for (size_t begin = 0; begin < job->cols; begin += DSE_FP8_COLS) {
        const size_t n = dse_fp8_block_cols(job->cols, begin);
        for (size_t k = 0; k < n; k++)
            for (int q = 0; q < np; q++) {
                v16 w = load_weights(block[q], k);
                for (int j = 0; j < ny; j++)
                    acc[q][j] = v16_fma(w, v16_set1(x[j][begin + k]), acc[q][j]);
            }
        for (int q = 0; q < np; q++)
            block[q] += DSE_FP8_BYTES;
    }
    for (int q = 0; q < np; q++)
        for (int j = 0; j < ny; j++)
            v16_store(job->out + ((p + (size_t)q) * job->n_rows + (size_t)j) * DSE_PANEL_ROWS, acc[q][j]);
}

/* out [ny][16] += n columns of weights [n][16] times x [ny][stride]. */
DSE_INLINE void add_columns(const float *weights, size_t n, const float *x, size_t stride, int ny, float *out)
{
    v16 acc[MAX_NY];
    for (int j = 0; j < ny; j++)
        acc[j] = v16_load(out + j * DSE_PANEL_ROWS);
    for (size_t k = 0; k < n; k++) {
        v16 w = v16_load(weights + k * DSE_PANEL_ROWS);
        for (int j = 0; j < ny; j++)
            acc[j] = v16_fma(w, v16_set1(x[(size_t)j * stride + k]), acc[j]);
    }
    for (int j = 0; j < ny; j++)
        v16_store(out + j * DSE_PANEL_ROWS, acc[j]);
}

static void many_rows(const struct dse_matmul_job *job, size_t p)
{
    const size_t stride = job->act->stride;
    _Alignas(64) float weights[DSE_FP8_COLS * DSE_PANEL_ROWS];
    float *out = job->out + p * job->n_rows * DSE_PANEL_ROWS;
    memset(out, 0, job->n_rows * DSE_PANEL_ROWS * sizeof *out);
    for (size_t begin = 0; begin < job->cols; begin += DSE_FP8_COLS) {
        const uint8_t *block = job->panels + p * job->panel_bytes + begin / DSE_FP8_COLS * DSE_FP8_BYTES;
        const size_t n = dse_fp8_block_cols(job->cols, begin);
        for (size_t k = 0; k < n; k++)
            v16_store(weights + k * DSE_PANEL_ROWS, load_weights(block, k));
        for (size_t i = 0; i < job->n_rows; i += MAX_NY) {
            const float *x = job->act->x + (job->first_row + i) * stride + begin;
            float *sums = out + i * DSE_PANEL_ROWS;
#ifdef DSE_ONE_TILE_SIZE
            const size_t left = job->n_rows - i;
            add_columns(weights, n, x, stride, left < MAX_NY ? (int)left : MAX_NY, sums);
#else
            switch (job->n_rows - i) {
            case 1: add_columns(weights, n, x, stride, 1, sums); break;
            case 2: add_columns(weights, n, x, stride, 2, sums); break;
            case 3: add_columns(weights, n, x, stride, 3, sums); break;
            case 4: add_columns(weights, n, x, stride, 4, sums); break;
            case 5: add_columns(weights, n, x, stride, 5, sums); break;
#if MAX_NY > 6
            case 6: add_columns(weights, n, x, stride, 6, sums); break;
            case 7: add_columns(weights, n, x, stride, 7, sums); break;
#endif
            default: add_columns(weights, n, x, stride, MAX_NY, sums); break;
            }
#endif
        }
    }
}

dse_matmul_fn DSE_NAME(matmul_fp8);
void DSE_NAME(matmul_fp8)(const struct dse_matmul_job *job)
{
    size_t p = 0;
    if (job->n_rows == 1)
        for (; p + MAX_NP <= job->n_panels; p += MAX_NP)
            few_rows(job, p, MAX_NP, 1);
    for (; p < job->n_panels; p++) {
#ifdef DSE_ONE_TILE_SIZE
        if (job->n_rows <= MAX_NY)
            few_rows(job, p, 1, (int)job->n_rows);
        else
            many_rows(job, p);
#else
        switch (job->n_rows) {
        case 1: few_rows(job, p, 1, 1); break;
        case 2: few_rows(job, p, 1, 2); break;
        case 3: few_rows(job, p, 1, 3); break;
        case 4: few_rows(job, p, 1, 4); break;
        case 5: few_rows(job, p, 1, 5); break;
        case 6: few_rows(job, p, 1, 6); break;
#if MAX_NY > 6
        case 7: few_rows(job, p, 1, 7); break;
        case 8: few_rows(job, p, 1, 8); break;
#endif
        default: many_rows(job, p); break;
        }
#endif
    }
}
