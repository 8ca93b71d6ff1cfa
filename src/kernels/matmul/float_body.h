/* Matmul of F32, F16 and BF16 weights with f32 activations, written once over 16 lanes; included by float_<isa>.c, which
 * defines DSE_NAME(op) and MAX_NY, the activation rows whose sums fit in registers (6 or 8). Called through matmul.c; the
 * result is that of float_scalar.c: one fma per column, ascending, in every lane.
 */
#include "kernels/matmul/layout.h"
#include "kernels/prototypes.h"
#include "kernels/vector/v16.h"

enum float_kind { KIND_F32, KIND_F16, KIND_BF16 };

#define MAX_NP 4

/* Weights of column k. */
DSE_INLINE v16 load_weights(const uint8_t *panel, size_t k, enum float_kind kind)
{
    if (kind == KIND_F32) return v16_load((const float *)(const void *)(panel + 64 * k));
    const uint16_t *bits = (const uint16_t *)(const void *)(panel + 32 * k);
    return kind == KIND_F16 ? v16_load_f16(bits) : v16_load_bf16(bits);
}

/* np panels times ny rows; with one row several panels give the independent sums that hide the latency of fma. */
DSE_INLINE void float_tile(const struct dse_matmul_job *job, size_t p, size_t i, int np, int ny, enum float_kind kind)
{
    const size_t stride = job->act->stride;
    const float *x = job->act->x + (job->first_row + i) * stride;
    v16 acc[MAX_NP][MAX_NY];
    for (int q = 0; q < np; q++)
        for (int j = 0; j < ny; j++)
            acc[q][j] = v16_set1(0.0f);
    for (size_t k = 0; k < job->cols; k++) {
        for (int q = 0; q < np; q++) {
            v16 w = load_weights(job->panels + (p + (size_t)q) * job->panel_bytes, k, kind);
            for (int j = 0; j < ny; j++)
                acc[q][j] = v16_fma(w, v16_set1(x[(size_t)j * stride + k]), acc[q][j]);
        }
    }
    for (int q = 0; q < np; q++)
        for (int j = 0; j < ny; j++)
            v16_store(job->out + ((p + (size_t)q) * job->n_rows + i + (size_t)j) * DSE_PANEL_ROWS, acc[q][j]);
}

DSE_INLINE void run(const struct dse_matmul_job *job, enum float_kind kind)
{
    size_t p = 0;
    if (job->n_rows == 1)
        for (; p + MAX_NP <= job->n_panels; p += MAX_NP)
            float_tile(job, p, 0, MAX_NP, 1, kind);
    for (; p < job->n_panels; p++) {
        for (size_t i = 0; i < job->n_rows; i += MAX_NY) {
#ifdef DSE_ONE_TILE_SIZE
            size_t left = job->n_rows - i;
            float_tile(job, p, i, 1, left < MAX_NY ? (int)left : MAX_NY, kind);
#else
            switch (job->n_rows - i) {
            case 1: float_tile(job, p, i, 1, 1, kind); break;
            case 2: float_tile(job, p, i, 1, 2, kind); break;
            case 3: float_tile(job, p, i, 1, 3, kind); break;
            case 4: float_tile(job, p, i, 1, 4, kind); break;
            case 5: float_tile(job, p, i, 1, 5, kind); break;
#if MAX_NY > 6
            case 6: float_tile(job, p, i, 1, 6, kind); break;
            case 7: float_tile(job, p, i, 1, 7, kind); break;
#endif
            default: float_tile(job, p, i, 1, MAX_NY, kind); break;
            }
#endif
        }
    }
}

dse_matmul_fn DSE_NAME(matmul_f32), DSE_NAME(matmul_f16), DSE_NAME(matmul_bf16);

void DSE_NAME(matmul_f32)(const struct dse_matmul_job *job)
{
    run(job, KIND_F32);
}

void DSE_NAME(matmul_f16)(const struct dse_matmul_job *job)
{
    run(job, KIND_F16);
}

void DSE_NAME(matmul_bf16)(const struct dse_matmul_job *job)
{
    run(job, KIND_BF16);
}
