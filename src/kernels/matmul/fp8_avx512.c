/* Matmul of FP8 weights with f32 activations, AVX-512. Called through matmul.c; the result is that of float_scalar.c:
 * one fma per column, ascending, in every lane.
 *
 * The counterpart of fp8_avx2.c with all 16 rows of a panel in one register.
 */
#include "kernels/matmul/tile_avx512.h"

#define MAX_NY 8
#define MAX_NP 4

/* Weights of column k of a block. Moved up by seven bits, sign apart, e4m3 is f16 but for its bias; subnormals too. */
DSE_INLINE __m512 load_weights(const uint8_t *block, size_t k)
{
    __m128i bits = _mm_loadu_si128((const __m128i *)(block + DSE_FP8_QUANTS + 16 * k));
    __m256i f16 = _mm256_slli_epi16(_mm256_cvtepi8_epi16(bits), 7);
    f16 = _mm256_and_si256(f16, _mm256_set1_epi16((short)0xBF80));
    return _mm512_mul_ps(_mm512_cvtph_ps(f16), _mm512_loadu_ps(block));
}

/* np panels times all ny rows of the job. */
DSE_INLINE void few_rows(const struct dse_matmul_job *job, size_t p, int np, int ny)
{
    const float *x[MAX_NY];
    const uint8_t *block[MAX_NP];
    __m512 acc[MAX_NP][MAX_NY];
    for (int j = 0; j < ny; j++)
        x[j] = job->act->x + (job->first_row + (size_t)j) * job->act->stride;
    for (int q = 0; q < np; q++)
        block[q] = job->panels + (p + (size_t)q) * job->panel_bytes;
    for (int q = 0; q < np; q++)
        for (int j = 0; j < ny; j++)
            acc[q][j] = _mm512_setzero_ps();
    for (size_t begin = 0; begin < job->cols; begin += DSE_FP8_COLS) {
        const size_t n = dse_fp8_block_cols(job->cols, begin);
        for (size_t k = 0; k < n; k++)
            for (int q = 0; q < np; q++) {
                __m512 w = load_weights(block[q], k);
                for (int j = 0; j < ny; j++)
                    acc[q][j] = _mm512_fmadd_ps(w, _mm512_set1_ps(x[j][begin + k]), acc[q][j]);
            }
        for (int q = 0; q < np; q++)
            block[q] += DSE_FP8_BYTES;
    }
    for (int q = 0; q < np; q++)
        for (int j = 0; j < ny; j++)
            _mm512_storeu_ps(job->out + ((p + (size_t)q) * job->n_rows + (size_t)j) * DSE_PANEL_ROWS, acc[q][j]);
}

/* out [ny][16] += n columns of weights [n][16] times x [ny][stride]. */
DSE_INLINE void add_columns(const float *weights, size_t n, const float *x, size_t stride, int ny, float *out)
{
    __m512 acc[MAX_NY];
    for (int j = 0; j < ny; j++)
        acc[j] = _mm512_loadu_ps(out + j * DSE_PANEL_ROWS);
    for (size_t k = 0; k < n; k++) {
        __m512 w = _mm512_load_ps(weights + k * DSE_PANEL_ROWS);
        for (int j = 0; j < ny; j++)
            acc[j] = _mm512_fmadd_ps(w, _mm512_set1_ps(x[(size_t)j * stride + k]), acc[j]);
    }
    for (int j = 0; j < ny; j++)
        _mm512_storeu_ps(out + j * DSE_PANEL_ROWS, acc[j]);
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
            _mm512_store_ps(weights + k * DSE_PANEL_ROWS, load_weights(block, k));
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
            case 6: add_columns(weights, n, x, stride, 6, sums); break;
            case 7: add_columns(weights, n, x, stride, 7, sums); break;
            default: add_columns(weights, n, x, stride, 8, sums); break;
            }
#endif
        }
    }
}

void dse_matmul_fp8_avx512(const struct dse_matmul_job *job)
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
        case 7: few_rows(job, p, 1, 7); break;
        case 8: few_rows(job, p, 1, 8); break;
        default: many_rows(job, p); break;
        }
#endif
    }
}
