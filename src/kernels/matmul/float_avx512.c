/* Matmul of F32, F16 and BF16 weights with f32 activations, AVX-512. Called through matmul.c; the result is that of
 * float_scalar.c: one fma per column, ascending, in every lane.
 */
#include "kernels/matmul/tile_avx512.h"

enum float_kind { KIND_F32, KIND_F16, KIND_BF16 };

#define MAX_NY 8
#define MAX_NP 4

/* Weights of column k. */
DSE_INLINE __m512 load_weights(const uint8_t *panel, size_t k, enum float_kind kind)
{
    if (kind == KIND_F32) return _mm512_loadu_ps(panel + 64 * k);
    if (kind == KIND_F16) return load_f16(panel + 32 * k);
    __m256i bits = _mm256_loadu_si256((const __m256i *)(panel + 32 * k));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

/* np panels times ny rows; with one row several panels give the independent sums that hide the latency of fma. */
DSE_INLINE void float_tile(const struct dse_matmul_job *job, size_t p, size_t i, int np, int ny, enum float_kind kind)
{
    const float *x[MAX_NY];
    __m512 acc[MAX_NP][MAX_NY];
    for (int j = 0; j < ny; j++)
        x[j] = job->act->x + (job->first_row + i + (size_t)j) * job->act->stride;
    for (int q = 0; q < np; q++)
        for (int j = 0; j < ny; j++)
            acc[q][j] = _mm512_setzero_ps();
    for (size_t k = 0; k < job->cols; k++) {
        for (int q = 0; q < np; q++) {
            __m512 w = load_weights(job->panels + (p + (size_t)q) * job->panel_bytes, k, kind);
            for (int j = 0; j < ny; j++)
                acc[q][j] = _mm512_fmadd_ps(w, _mm512_set1_ps(x[j][k]), acc[q][j]);
        }
    }
    for (int q = 0; q < np; q++)
        for (int j = 0; j < ny; j++)
            _mm512_storeu_ps(job->out + ((p + (size_t)q) * job->n_rows + i + (size_t)j) * DSE_PANEL_ROWS, acc[q][j]);
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
            case 6: float_tile(job, p, i, 1, 6, kind); break;
            case 7: float_tile(job, p, i, 1, 7, kind); break;
            default: float_tile(job, p, i, 1, 8, kind); break;
            }
#endif
        }
    }
}

void dse_matmul_f32_avx512(const struct dse_matmul_job *job)
{
    run(job, KIND_F32);
}

void dse_matmul_f16_avx512(const struct dse_matmul_job *job)
{
    run(job, KIND_F16);
}

void dse_matmul_bf16_avx512(const struct dse_matmul_job *job)
{
    run(job, KIND_BF16);
}
