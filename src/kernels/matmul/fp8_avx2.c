/* Matmul of FP8 weights with f32 activations, AVX2. Called through matmul.c; the result is that of float_scalar.c: one
 * fma per column, ascending, in every lane.
 *
 * With many activation rows a block of 128 columns is decoded once and serves them all; their sums wait in job->out.
 */
#include "kernels/matmul/tile_avx2.h"

#define MAX_NY 6
#define MAX_NP 4

/* Weights of column k of a block. Moved up by seven bits, sign apart, e4m3 is f16 but for its bias; subnormals too. */
DSE_INLINE void load_weights(const uint8_t *block, size_t k, __m256 w[2])
{
    const float *scales = (const float *)(const void *)block;
    const __m128i *bits = (const __m128i *)(block + DSE_FP8_QUANTS + 16 * k);
    __m256i f16 = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128(bits)), 7);
    f16 = _mm256_and_si256(f16, _mm256_set1_epi16((short)0xBF80));
    w[0] = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(f16)), _mm256_loadu_ps(scales));
    w[1] = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(f16, 1)), _mm256_loadu_ps(scales + 8));
}

/* np panels times all ny rows of the job. */
DSE_INLINE void few_rows(const struct dse_matmul_job *job, size_t p, int np, int ny)
{
    const float *x[MAX_NY];
    const uint8_t *block[MAX_NP];
    __m256 acc[MAX_NP][MAX_NY][2];
    for (int j = 0; j < ny; j++)
        x[j] = job->act->x + (job->first_row + (size_t)j) * job->act->stride;
    for (int q = 0; q < np; q++)
        block[q] = job->panels + (p + (size_t)q) * job->panel_bytes;
    for (int q = 0; q < np; q++)
        for (int j = 0; j < ny; j++)
            acc[q][j][0] = acc[q][j][1] = _mm256_setzero_ps();
    for (size_t begin = 0; begin < job->cols; begin += DSE_FP8_COLS) {
        const size_t n = dse_fp8_block_cols(job->cols, begin);
        for (size_t k = 0; k < n; k++)
            for (int q = 0; q < np; q++) {
                __m256 w[2];
                load_weights(block[q], k, w);
                for (int j = 0; j < ny; j++) {
                    __m256 v = _mm256_broadcast_ss(x[j] + begin + k);
                    acc[q][j][0] = _mm256_fmadd_ps(w[0], v, acc[q][j][0]);
                    acc[q][j][1] = _mm256_fmadd_ps(w[1], v, acc[q][j][1]);
                }
            }
        for (int q = 0; q < np; q++)
            block[q] += DSE_FP8_BYTES;
    }
    for (int q = 0; q < np; q++)
        for (int j = 0; j < ny; j++) {
            float *out = job->out + ((p + (size_t)q) * job->n_rows + (size_t)j) * DSE_PANEL_ROWS;
            _mm256_storeu_ps(out, acc[q][j][0]);
            _mm256_storeu_ps(out + 8, acc[q][j][1]);
        }
}

/* out [ny][16] += n columns of weights [n][16] times x [ny][stride]. */
DSE_INLINE void add_columns(const float *weights, size_t n, const float *x, size_t stride, int ny, float *out)
{
    __m256 acc[MAX_NY][2];
    for (int j = 0; j < ny; j++)
        for (int h = 0; h < 2; h++)
            acc[j][h] = _mm256_loadu_ps(out + j * DSE_PANEL_ROWS + 8 * h);
    for (size_t k = 0; k < n; k++) {
        __m256 w0 = _mm256_load_ps(weights + k * DSE_PANEL_ROWS), w1 = _mm256_load_ps(weights + k * DSE_PANEL_ROWS + 8);
        for (int j = 0; j < ny; j++) {
            __m256 v = _mm256_broadcast_ss(x + (size_t)j * stride + k);
            acc[j][0] = _mm256_fmadd_ps(w0, v, acc[j][0]);
            acc[j][1] = _mm256_fmadd_ps(w1, v, acc[j][1]);
        }
    }
    for (int j = 0; j < ny; j++)
        for (int h = 0; h < 2; h++)
            _mm256_storeu_ps(out + j * DSE_PANEL_ROWS + 8 * h, acc[j][h]);
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
        for (size_t k = 0; k < n; k++) {
            __m256 w[2];
            load_weights(block, k, w);
            _mm256_store_ps(weights + k * DSE_PANEL_ROWS, w[0]);
            _mm256_store_ps(weights + k * DSE_PANEL_ROWS + 8, w[1]);
        }
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
            default: add_columns(weights, n, x, stride, 6, sums); break;
            }
#endif
        }
    }
}

void dse_matmul_fp8_avx2(const struct dse_matmul_job *job)
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
        default: many_rows(job, p); break;
        }
#endif
    }
}
