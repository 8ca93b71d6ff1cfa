/* Matmul of quantized weights with s8 activations, scalar: the definition of the result that every instruction set
 * repeats bit for bit (matmul.h). Called through matmul.c; written to be read, not to be fast.
 */
#include <math.h>
#include <string.h>

#include "kernels/matmul/layout.h"
#include "kernels/prototypes.h"

/* One block of 32 columns of one activation row. */
struct block_act {
    const int8_t *a;
    const int16_t *half_sums;
    float scale, sum;
};

/* Adds one block of a panel to the 16 accumulators. */
typedef void block_fn(const uint8_t *panel, size_t block, const struct block_act *act, float *acc);

static void run(const struct dse_matmul_job *job, block_fn *add_block)
{
    size_t blocks = job->cols / DSE_ACT_BLOCK;
    for (size_t p = 0; p < job->n_panels; p++) {
        for (size_t i = 0; i < job->n_rows; i++) {
            size_t m = job->first_row + i;
            float acc[DSE_PANEL_ROWS] = {0};
            for (size_t b = 0; b < blocks; b++) {
                const struct block_act act = {
                    .a = job->act->values + m * job->cols + b * DSE_ACT_BLOCK,
                    .half_sums = job->act->half_sums + (m * blocks + b) * 2,
                    .scale = job->act->scales[m * blocks + b],
                    .sum = job->act->sums[m * blocks + b],
                };
                add_block(job->panels + p * job->panel_bytes, b, &act, acc);
            }
            memcpy(job->out + (p * job->n_rows + i) * DSE_PANEL_ROWS, acc, sizeof acc);
        }
    }
}

static float f16_at(const uint8_t *bytes, int row)
{
    uint16_t h;
    memcpy(&h, bytes + 2 * row, 2);
    return dse_f16_to_f32(h);
}

/* Sum of u * a over the low (first half) and high nibbles of a row in a nibble plane. */
static int dot_nibbles(const uint8_t *plane, int row, const int8_t *a)
{
    int sum = 0;
    for (int v = 0; v < 4; v++)
        for (int c = 0; c < 4; c++) {
            int byte = plane[64 * v + 4 * row + c];
            sum += (byte & 15) * a[4 * v + c] + (byte >> 4) * a[16 + 4 * v + c];
        }
    return sum;
}

static int dot_s8(const uint8_t *dwords, int row, const int8_t *a, int first, int count)
{
    int sum = 0;
    for (int k = first; k < first + count; k++)
        sum += (int8_t)dwords[64 * (k / 4) + 4 * row + k % 4] * a[k];
    return sum;
}

static void add_u4(const uint8_t *panel, size_t block, const struct block_act *act, float *acc)
{
    const uint8_t *p = panel + block * DSE_U4_BYTES;
    for (int r = 0; r < DSE_PANEL_ROWS; r++) {
        int isum = dot_nibbles(p + DSE_U4_QUANTS, r, act->a);
        acc[r] = fmaf((float)isum, f16_at(p, r) * act->scale, acc[r]);
        acc[r] = fmaf(f16_at(p + DSE_U4_M, r), act->sum, acc[r]);
    }
}

static void add_u4s(const uint8_t *panel, size_t block, const struct block_act *act, float *acc)
{
    const uint8_t *p = panel + block * DSE_U4S_BYTES;
    for (int r = 0; r < DSE_PANEL_ROWS; r++) {
        int isum = dot_nibbles(p + DSE_U4S_QUANTS, r, act->a);
        float d = f16_at(p, r);
        acc[r] = fmaf((float)isum, d * act->scale, acc[r]);
        acc[r] = fmaf(d * -8.0f, act->sum, acc[r]);
    }
}

static void add_u4k(const uint8_t *panel, size_t block, const struct block_act *act, float *acc)
{
    const uint8_t *p = panel + block / 8 * DSE_U4K_BYTES;
    const uint8_t *b = p + DSE_U4K_BLOCKS + block % 8 * DSE_U4K_BLOCK_BYTES;
    for (int r = 0; r < DSE_PANEL_ROWS; r++) {
        int isum = dot_nibbles(b + DSE_U4K_BLOCK_QUANTS, r, act->a);
        float d = f16_at(p, r) * (float)b[r];
        float m = -(f16_at(p + DSE_U4K_DMIN, r) * (float)b[DSE_U4K_BLOCK_MIN + r]);
        acc[r] = fmaf((float)isum, d * act->scale, acc[r]);
        acc[r] = fmaf(m, act->sum, acc[r]);
    }
}

static void add_q8(const uint8_t *panel, size_t block, const struct block_act *act, float *acc)
{
    const uint8_t *p = panel + block * DSE_Q8_BYTES;
    for (int r = 0; r < DSE_PANEL_ROWS; r++) {
        int isum = dot_s8(p + DSE_Q8_QUANTS, r, act->a, 0, 32);
        acc[r] = fmaf((float)isum, f16_at(p, r) * act->scale, acc[r]);
    }
}

static void add_q6k(const uint8_t *panel, size_t block, const struct block_act *act, float *acc)
{
    const uint8_t *p = panel + block / 8 * DSE_Q6K_BYTES;
    const uint8_t *b = p + DSE_Q6K_BLOCKS + block % 8 * DSE_Q6K_BLOCK_BYTES;
    for (int r = 0; r < DSE_PANEL_ROWS; r++) {
        int half[2] = {0, 0};
        for (int i = 0; i < 16; i++) {
            int low = b[DSE_Q6K_BLOCK_QUANTS + 64 * (i / 4) + 4 * r + i % 4];
            int high = b[DSE_Q6K_BLOCK_HIGH + 64 * (i / 8) + 4 * r + i % 4] >> (i / 4 % 2 * 4);
            half[0] += (((low & 15) | (high & 3) << 4) - 32) * act->a[i];
            half[1] += ((low >> 4 | (high >> 2 & 3) << 4) - 32) * act->a[16 + i];
        }
        int isum = half[0] * (int8_t)b[r] + half[1] * (int8_t)b[16 + r];
        acc[r] = fmaf((float)isum, f16_at(p, r) * act->scale, acc[r]);
    }
}

static void add_a8(const uint8_t *panel, size_t block, const struct block_act *act, float *acc)
{
    const uint8_t *p = panel + block * DSE_A8_BYTES;
    for (int r = 0; r < DSE_PANEL_ROWS; r++) {
        int isum = 0, msum = 0;
        for (int h = 0; h < 2; h++) {
            isum += dot_s8(p + DSE_A8_QUANTS, r, act->a, 16 * h, 16) * (int8_t)p[DSE_A8_SCALES + 16 * h + r];
            msum += p[DSE_A8_MINS + 16 * h + r] * act->half_sums[h];
        }
        acc[r] = fmaf((float)isum, f16_at(p, r) * act->scale, acc[r]);
        acc[r] = fmaf((float)msum, -(f16_at(p + DSE_A8_DMIN, r) * act->scale), acc[r]);
    }
}

void dse_matmul_u4_scalar(const struct dse_matmul_job *job)
{
    run(job, add_u4);
}

void dse_matmul_u4s_scalar(const struct dse_matmul_job *job)
{
    run(job, add_u4s);
}

void dse_matmul_u4k_scalar(const struct dse_matmul_job *job)
{
    run(job, add_u4k);
}

void dse_matmul_q8_scalar(const struct dse_matmul_job *job)
{
    run(job, add_q8);
}

void dse_matmul_q6k_scalar(const struct dse_matmul_job *job)
{
    run(job, add_q6k);
}

void dse_matmul_a8_scalar(const struct dse_matmul_job *job)
{
    run(job, add_a8);
}
