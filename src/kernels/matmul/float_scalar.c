/* Matmul of F32, F16, BF16 and FP8 weights with f32 activations, scalar: the definition of the result (matmul.h). */
#include <math.h>
#include <string.h>

#include "kernels/matmul/layout.h"
#include "kernels/prototypes.h"
#include "quant/fp8.h"

/* Weight of lane r at column k. */
typedef float weight_fn(const uint8_t *panel, size_t k, int r);

static float weight_f32(const uint8_t *panel, size_t k, int r)
{
    float w;
    memcpy(&w, panel + (k * DSE_PANEL_ROWS + (size_t)r) * 4, 4);
    return w;
}

static float weight_f16(const uint8_t *panel, size_t k, int r)
{
    uint16_t w;
    memcpy(&w, panel + (k * DSE_PANEL_ROWS + (size_t)r) * 2, 2);
    return dse_f16_to_f32(w);
}

static float weight_bf16(const uint8_t *panel, size_t k, int r)
{
    uint16_t w;
    memcpy(&w, panel + (k * DSE_PANEL_ROWS + (size_t)r) * 2, 2);
    return dse_bf16_to_f32(w);
}

static float weight_fp8(const uint8_t *panel, size_t k, int r)
{
    const uint8_t *block = panel + k / DSE_FP8_COLS * DSE_FP8_BYTES;
    float scale;
    memcpy(&scale, block + 4 * r, 4);
    return dse_f8_e4m3_to_f32(block[DSE_FP8_QUANTS + k % DSE_FP8_COLS * DSE_PANEL_ROWS + (size_t)r]) * 0x1p-8f * scale;
}

static inline __attribute__((always_inline)) void run(const struct dse_matmul_job *job, weight_fn *weight)
{
    for (size_t p = 0; p < job->n_panels; p++) {
        const uint8_t *panel = job->panels + p * job->panel_bytes;
        for (size_t i = 0; i < job->n_rows; i++) {
            const float *x = job->act->x + (job->first_row + i) * job->act->stride;
            float acc[DSE_PANEL_ROWS] = {0};
            for (size_t k = 0; k < job->cols; k++)
                for (int r = 0; r < DSE_PANEL_ROWS; r++)
                    acc[r] = fmaf(weight(panel, k, r), x[k], acc[r]);
            memcpy(job->out + (p * job->n_rows + i) * DSE_PANEL_ROWS, acc, sizeof acc);
        }
    }
}

void dse_matmul_f32_scalar(const struct dse_matmul_job *job)
{
    run(job, weight_f32);
}

void dse_matmul_f16_scalar(const struct dse_matmul_job *job)
{
    run(job, weight_f16);
}

void dse_matmul_bf16_scalar(const struct dse_matmul_job *job)
{
    run(job, weight_bf16);
}

void dse_matmul_fp8_scalar(const struct dse_matmul_job *job)
{
    run(job, weight_fp8);
}
