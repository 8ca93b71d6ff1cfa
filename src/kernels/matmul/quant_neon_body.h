/* Matmul of the quantized layouts with s8 activations, written once for all 64-bit ARM; included by quant_<isa>.c, which
 * defines DSE_NAME(op) and is compiled for its instruction set. Called through matmul.c; the result is that of
 * quant_scalar.c.
 *
 * All quants become s8, which u4 and q - 32 fit, so that one product of four (or eight) columns serves every layout.
 */
#include "kernels/matmul/tile_neon.h"

enum u4_kind { KIND_U4, KIND_U4S, KIND_U4K };

/* Quants of block b, and the factors of its integer sum and of the activation sum. */
struct u4_block {
    const uint8_t *quants;
    v16 d, m;
};

DSE_INLINE struct u4_block load_block(const uint8_t *panel, size_t b, enum u4_kind kind)
{
    struct u4_block block;
    if (kind == KIND_U4) {
        const uint8_t *p = panel + b * DSE_U4_BYTES;
        block.quants = p + DSE_U4_QUANTS;
        block.d = load_f16(p);
        block.m = load_f16(p + DSE_U4_M);
    } else if (kind == KIND_U4S) {
        const uint8_t *p = panel + b * DSE_U4S_BYTES;
        block.quants = p + DSE_U4S_QUANTS;
        block.d = load_f16(p);
        block.m = v16_mul(block.d, v16_set1(-8.0f));
    } else {
        const uint8_t *p = panel + b / 8 * DSE_U4K_BYTES;
        const uint8_t *q = p + DSE_U4K_BLOCKS + b % 8 * DSE_U4K_BLOCK_BYTES;
        block.quants = q + DSE_U4K_BLOCK_QUANTS;
        block.d = v16_mul(load_f16(p), load_u8(q));
        block.m = negate(v16_mul(load_f16(p + DSE_U4K_DMIN), load_u8(q + DSE_U4K_BLOCK_MIN)));
    }
    return block;
}

/* Low nibbles belong to the first half of the block, high ones to the second. */
DSE_INLINE struct dwords nibbles(const uint8_t *plane, int v, int half)
{
    struct dwords w = load_dwords(plane + 64 * v);
    for (int q = 0; q < 4; q++) {
        uint8x16_t bytes = vreinterpretq_u8_s8(w.q[q]);
        w.q[q] = vreinterpretq_s8_u8(half == 0 ? vandq_u8(bytes, vdupq_n_u8(15)) : vshrq_n_u8(bytes, 4));
    }
    return w;
}

DSE_INLINE void add_u4_block(const uint8_t *panel, size_t b, const struct tile_act *act, int ny, v16 *acc,
                             enum u4_kind kind)
{
    struct u4_block block = load_block(panel, b, kind);
    struct int_16 sum[TILE_ROWS];
    clear_sums(sum, ny);
    for (int v = 0; v < 4; v += 2)
        for (int half = 0; half < 2; half++) {
            struct dwords w0 = nibbles(block.quants, v, half), w1 = nibbles(block.quants, v + 1, half);
            add_columns(sum, &w0, &w1, act, 32 * b + 16 * (size_t)half + 4 * (size_t)v, ny);
        }
    settle_sums(sum, ny);
    for (int j = 0; j < ny; j++) {
        acc[j] = v16_fma(to_float(&sum[j]), v16_mul(block.d, v16_set1(act->scales[j][b])), acc[j]);
        acc[j] = v16_fma(block.m, v16_set1(act->sums[j][b]), acc[j]);
    }
}

DSE_INLINE void add_u4(const uint8_t *panel, size_t b, const struct tile_act *act, int ny, v16 *acc)
{
    add_u4_block(panel, b, act, ny, acc, KIND_U4);
}

DSE_INLINE void add_u4s(const uint8_t *panel, size_t b, const struct tile_act *act, int ny, v16 *acc)
{
    add_u4_block(panel, b, act, ny, acc, KIND_U4S);
}

DSE_INLINE void add_u4k(const uint8_t *panel, size_t b, const struct tile_act *act, int ny, v16 *acc)
{
    add_u4_block(panel, b, act, ny, acc, KIND_U4K);
}

DSE_INLINE void add_q8(const uint8_t *panel, size_t b, const struct tile_act *act, int ny, v16 *acc)
{
    const uint8_t *p = panel + b * DSE_Q8_BYTES;
    struct int_16 sum[TILE_ROWS];
    clear_sums(sum, ny);
    for (int v = 0; v < 8; v += 2) {
        struct dwords w0 = load_dwords(p + DSE_Q8_QUANTS + 64 * v), w1 = load_dwords(p + DSE_Q8_QUANTS + 64 * v + 64);
        add_columns(sum, &w0, &w1, act, 32 * b + 4 * (size_t)v, ny);
    }
    settle_sums(sum, ny);
    const v16 d = load_f16(p);
    for (int j = 0; j < ny; j++)
        acc[j] = v16_fma(to_float(&sum[j]), v16_mul(d, v16_set1(act->scales[j][b])), acc[j]);
}

/* isum += the sums of half a block, each times the scale of its weight row. */
DSE_INLINE void add_scaled(struct int_16 *isum, struct int_16 *half_sum, const uint8_t *scales, int ny)
{
    const struct int_16 scale = load_s8(scales);
    settle_sums(half_sum, ny);
    for (int j = 0; j < ny; j++)
        for (int q = 0; q < 4; q++)
            isum[j].q[q] = vmlaq_s32(isum[j].q[q], half_sum[j].q[q], scale.q[q]);
}

/* Columns 8g..8g+7 of half a Q6K block, two dword rows, as signed quants. */
DSE_INLINE void unpack_q6k(const uint8_t *block, int g, int half, struct dwords *w0, struct dwords *w1)
{
    const uint8x16_t top_mask = vdupq_n_u8(0x30);
    const int8x16_t middle = vdupq_n_s8(32);
    struct dwords top = load_dwords(block + DSE_Q6K_BLOCK_HIGH + 64 * g);
    *w0 = nibbles(block + DSE_Q6K_BLOCK_QUANTS, 2 * g, half);
    *w1 = nibbles(block + DSE_Q6K_BLOCK_QUANTS, 2 * g + 1, half);
    for (int q = 0; q < 4; q++) {
        uint8x16_t bits = vreinterpretq_u8_s8(top.q[q]);
        uint8x16_t top0 = vandq_u8(half == 0 ? vshlq_n_u8(bits, 4) : vshlq_n_u8(bits, 2), top_mask);
        uint8x16_t top1 = vandq_u8(half == 0 ? bits : vshrq_n_u8(bits, 2), top_mask);
        w0->q[q] = vsubq_s8(vorrq_s8(w0->q[q], vreinterpretq_s8_u8(top0)), middle);
        w1->q[q] = vsubq_s8(vorrq_s8(w1->q[q], vreinterpretq_s8_u8(top1)), middle);
    }
}

DSE_INLINE void add_q6k(const uint8_t *panel, size_t b, const struct tile_act *act, int ny, v16 *acc)
{
    const uint8_t *super = panel + b / 8 * DSE_Q6K_BYTES;
    const uint8_t *block = super + DSE_Q6K_BLOCKS + b % 8 * DSE_Q6K_BLOCK_BYTES;
    struct int_16 isum[TILE_ROWS], half_sum[TILE_ROWS];
    clear_sums(isum, ny);
    for (int half = 0; half < 2; half++) {
        clear_sums(half_sum, ny);
        for (int g = 0; g < 2; g++) {
            struct dwords w0, w1;
            unpack_q6k(block, g, half, &w0, &w1);
            add_columns(half_sum, &w0, &w1, act, 32 * b + 16 * (size_t)half + 8 * (size_t)g, ny);
        }
        add_scaled(isum, half_sum, block + 16 * half, ny);
    }
    const v16 d = load_f16(super);
    for (int j = 0; j < ny; j++)
        acc[j] = v16_fma(to_float(&isum[j]), v16_mul(d, v16_set1(act->scales[j][b])), acc[j]);
}

/* Minima of 16 rows times the sum of the activations of their half, both halves. */
DSE_INLINE v16 sum_of_mins(const uint8_t *mins, const int16_t *half_sums)
{
    struct int_16 sum;
    clear_sums(&sum, 1);
    for (int half = 0; half < 2; half++) {
        uint8x16_t bytes = vld1q_u8(mins + 16 * half);
        int16x8_t lo = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(bytes)));
        int16x8_t hi = vreinterpretq_s16_u16(vmovl_high_u8(bytes));
        sum.q[0] = vmlal_n_s16(sum.q[0], vget_low_s16(lo), half_sums[half]);
        sum.q[1] = vmlal_high_n_s16(sum.q[1], lo, half_sums[half]);
        sum.q[2] = vmlal_n_s16(sum.q[2], vget_low_s16(hi), half_sums[half]);
        sum.q[3] = vmlal_high_n_s16(sum.q[3], hi, half_sums[half]);
    }
    return to_float(&sum);
}

DSE_INLINE void add_a8(const uint8_t *panel, size_t b, const struct tile_act *act, int ny, v16 *acc)
{
    const uint8_t *p = panel + b * DSE_A8_BYTES;
    struct int_16 isum[TILE_ROWS], half_sum[TILE_ROWS];
    clear_sums(isum, ny);
    for (int half = 0; half < 2; half++) {
        clear_sums(half_sum, ny);
        for (int v = 4 * half; v < 4 * half + 4; v += 2) {
            const uint8_t *quants = p + DSE_A8_QUANTS + 64 * v;
            struct dwords w0 = load_dwords(quants), w1 = load_dwords(quants + 64);
            add_columns(half_sum, &w0, &w1, act, 32 * b + 4 * (size_t)v, ny);
        }
        add_scaled(isum, half_sum, p + DSE_A8_SCALES + 16 * half, ny);
    }
    const v16 d = load_f16(p), dmin = load_f16(p + DSE_A8_DMIN);
    for (int j = 0; j < ny; j++) {
        const v16 scale = v16_set1(act->scales[j][b]);
        const v16 msum = sum_of_mins(p + DSE_A8_MINS, act->half_sums[j] + 2 * b);
        acc[j] = v16_fma(to_float(&isum[j]), v16_mul(d, scale), acc[j]);
        acc[j] = v16_fma(msum, negate(v16_mul(dmin, scale)), acc[j]);
    }
}

void DSE_NAME(matmul_u4)(const struct dse_matmul_job *job)
{
    run_blocks(job, add_u4);
}

void DSE_NAME(matmul_u4s)(const struct dse_matmul_job *job)
{
    run_blocks(job, add_u4s);
}

void DSE_NAME(matmul_u4k)(const struct dse_matmul_job *job)
{
    run_blocks(job, add_u4k);
}

void DSE_NAME(matmul_q8)(const struct dse_matmul_job *job)
{
    run_blocks(job, add_q8);
}

void DSE_NAME(matmul_q6k)(const struct dse_matmul_job *job)
{
    run_blocks(job, add_q6k);
}

void DSE_NAME(matmul_a8)(const struct dse_matmul_job *job)
{
    run_blocks(job, add_a8);
}
