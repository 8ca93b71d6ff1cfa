/* Vector operations between the matrix products: norm, activation, softmax pieces, half precision.
 *
 * Called by the CPU device and the attention driver. Every variant of an operation gives the same bits (16 virtual
 * lanes, folded 16-8-4-2-1, one exp polynomial, explicit fma); the variant is picked from kernels.def at start.
 */
#ifndef DSE_KERNELS_VECTOR_H
#define DSE_KERNELS_VECTOR_H

#include <stddef.h>
#include <stdint.h>

/* out = x / sqrt(mean(x^2) + eps) * w; out may be x. */
typedef void dse_rmsnorm_fn(const float *x, const float *w, size_t n, float eps, float *out);
/* out = gate / (1 + exp(-gate)) * up; out may be gate. */
typedef void dse_silu_mul_fn(const float *gate, const float *up, size_t n, float *out);
/* Turns n >= 1 scores into exp(score - largest) and returns their sum. scores has room for n rounded up to 16; what
 * lies beyond n comes out as 0. */
typedef float dse_softmax_fn(float *scores, size_t n, float *largest);
/* Adds a partial softmax result (m2, l2, o2) to (m, l, o): the running maximum, sum and weighted values. */
typedef void dse_softmax_merge_fn(float *m, float *l, float *o, float m2, float l2, const float *o2, size_t n);
/* f32 to half, round to nearest even, and back. What half cannot hold becomes its largest value: an infinity in a key
 * would make all that attends to it NaN. NaN stays NaN. */
typedef void dse_narrow_fn(const float *in, size_t n, uint16_t *out);
typedef void dse_widen_fn(const uint16_t *in, size_t n, float *out);
/* Blocks of 32 values (f16 scale, 32 s8) to f32: DSE_KV_Q8_0. n is a multiple of 32. */
typedef void dse_expand_fn(const uint8_t *blocks, size_t n, float *out);
/* The way back: value = round(x / scale) to nearest even, scale = the block's largest magnitude / 127 as half holds it.
 * What the largest such scale does not reach (127 * 65504) becomes the largest value, as in dse_narrow_fn. A NaN or an
 * infinity makes its whole block NaN. */
typedef void dse_shrink_fn(const float *x, size_t n, uint8_t *blocks);

struct dse_vector_ops {
    dse_rmsnorm_fn *rmsnorm;
    dse_silu_mul_fn *silu_mul;
    dse_softmax_fn *softmax;
    dse_softmax_merge_fn *softmax_merge;
    dse_narrow_fn *narrow;
    dse_widen_fn *widen;
    dse_expand_fn *expand;
    dse_shrink_fn *shrink;
};

/* The variants for this CPU, as DSE_CPU_MASK limits it. */
void dse_vector_ops_pick(struct dse_vector_ops *ops);

#endif
