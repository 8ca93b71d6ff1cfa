/* The vector operations, written once over 16 lanes; included by vector_<isa>.c, which defines DSE_NAME(op).
 *
 * Tails go through a padded copy of the last lanes, so that lane i % 16 always holds element i.
 */
#include "kernels/kv_layout.h"
#include "kernels/vector.h"
#include "kernels/vector/v16.h"

DSE_INLINE v16 load_tail(const float *p, size_t n, float fill)
{
    float lane[16];
    for (size_t i = 0; i < 16; i++)
        lane[i] = i < n ? p[i] : fill;
    return v16_load(lane);
}

DSE_INLINE void store_tail(float *p, size_t n, v16 a)
{
    float lane[16];
    v16_store(lane, a);
    memcpy(p, lane, n * sizeof *p);
}

dse_rmsnorm_fn DSE_NAME(rmsnorm_f32);
void DSE_NAME(rmsnorm_f32)(const float *x, const float *w, size_t n, float eps, float *out)
{
    v16 sum = v16_set1(0.0f);
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        v16 v = v16_load(x + i);
        sum = v16_fma(v, v, sum);
    }
    if (i < n) {
        v16 v = load_tail(x + i, n - i, 0.0f);
        sum = v16_fma(v, v, sum);
    }
    float scale = 1.0f / sqrtf(v16_sum(sum) / (float)n + eps);
    v16 s = v16_set1(scale);
    for (i = 0; i + 16 <= n; i += 16)
        v16_store(out + i, v16_mul(v16_mul(v16_load(x + i), s), v16_load(w + i)));
    if (i < n) {
        v16 v = v16_mul(v16_mul(load_tail(x + i, n - i, 0.0f), s), load_tail(w + i, n - i, 0.0f));
        store_tail(out + i, n - i, v);
    }
}

DSE_INLINE v16 silu_mul(v16 g, v16 u)
{
    v16 e = v16_exp(v16_sub(v16_set1(0.0f), g));
    return v16_mul(v16_div(g, v16_add(v16_set1(1.0f), e)), u);
}

dse_silu_mul_fn DSE_NAME(silu_mul_f32);
void DSE_NAME(silu_mul_f32)(const float *gate, const float *up, size_t n, float *out)
{
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        v16_store(out + i, silu_mul(v16_load(gate + i), v16_load(up + i)));
    if (i < n) store_tail(out + i, n - i, silu_mul(load_tail(gate + i, n - i, 0.0f), load_tail(up + i, n - i, 0.0f)));
}

dse_softmax_fn DSE_NAME(softmax_f32);
float DSE_NAME(softmax_f32)(float *scores, size_t n, float *largest)
{
    size_t padded = (n + 15) / 16 * 16;
    for (size_t i = n; i < padded; i++)
        scores[i] = -INFINITY;
    v16 most = v16_load(scores);
    for (size_t i = 16; i < padded; i += 16)
        most = v16_max(most, v16_load(scores + i));
    *largest = v16_largest(most);
    v16 m = v16_set1(*largest), sum = v16_set1(0.0f);
    for (size_t i = 0; i < padded; i += 16) {
        v16 e = v16_exp(v16_sub(v16_load(scores + i), m));
        v16_store(scores + i, e);
        sum = v16_add(sum, e);
    }
    return v16_sum(sum);
}

dse_softmax_merge_fn DSE_NAME(softmax_merge_f32);
void DSE_NAME(softmax_merge_f32)(float *m, float *l, float *o, float m2, float l2, const float *o2, size_t n)
{
    float most = *m > m2 ? *m : m2, factor[16];
    v16_store(factor, v16_exp(v16_set1(*m - most)));
    float a = factor[0];
    v16_store(factor, v16_exp(v16_set1(m2 - most)));
    float b = factor[0];
    *m = most;
    *l = fmaf(*l, a, l2 * b);
    v16 va = v16_set1(a), vb = v16_set1(b);
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        v16_store(o + i, v16_fma(v16_load(o + i), va, v16_mul(v16_load(o2 + i), vb)));
    if (i < n) {
        v16 v = v16_fma(load_tail(o + i, n - i, 0.0f), va, v16_mul(load_tail(o2 + i, n - i, 0.0f), vb));
        store_tail(o + i, n - i, v);
    }
}

/* The order of operands lets a NaN through. */
DSE_INLINE v16 within_f16(v16 x)
{
    return v16_max(v16_set1(-65504.0f), v16_min(v16_set1(65504.0f), x));
}

dse_narrow_fn DSE_NAME(narrow_f16);
void DSE_NAME(narrow_f16)(const float *in, size_t n, uint16_t *out)
{
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        v16_store_f16(out + i, within_f16(v16_load(in + i)));
    if (i < n) {
        uint16_t lane[16];
        v16_store_f16(lane, within_f16(load_tail(in + i, n - i, 0.0f)));
        memcpy(out + i, lane, (n - i) * sizeof *out);
    }
}

dse_widen_fn DSE_NAME(widen_f16);
void DSE_NAME(widen_f16)(const uint16_t *in, size_t n, float *out)
{
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        v16_store(out + i, v16_load_f16(in + i));
    if (i < n) {
        uint16_t lane[16] = {0};
        memcpy(lane, in + i, (n - i) * sizeof *in);
        store_tail(out + i, n - i, v16_load_f16(lane));
    }
}

/* Blocks of DSE_KV_Q8_0 whose scales are converted at once. */
#define SCALES_AT_ONCE 16

dse_expand_fn DSE_NAME(expand_q8);
void DSE_NAME(expand_q8)(const uint8_t *blocks, size_t n, float *out)
{
    for (size_t left = n / DSE_KV_Q8_BLOCK; left > 0;) {
        size_t count = left < SCALES_AT_ONCE ? left : SCALES_AT_ONCE;
        uint16_t half[SCALES_AT_ONCE] = {0};
        float scale[SCALES_AT_ONCE];
        for (size_t b = 0; b < count; b++)
            memcpy(&half[b], blocks + b * DSE_KV_Q8_BLOCK_BYTES, sizeof half[b]);
        v16_store(scale, v16_load_f16(half));
        for (size_t b = 0; b < count; b++, blocks += DSE_KV_Q8_BLOCK_BYTES, out += DSE_KV_Q8_BLOCK) {
            v16 s = v16_set1(scale[b]);
            v16_store(out, v16_mul(v16_load_s8((const int8_t *)blocks + 2), s));
            v16_store(out + 16, v16_mul(v16_load_s8((const int8_t *)blocks + 18), s));
        }
        left -= count;
    }
}

/* Infinity where one of the values is not finite. */
DSE_INLINE float largest_magnitude(const float *x)
{
    v16 most = v16_set1(0.0f);
    for (size_t i = 0; i < DSE_KV_Q8_BLOCK; i += 16) {
        v16 v = v16_load(x + i);
        /* the order of operands keeps a NaN and then makes it infinity */
        v = v16_max(v, v16_sub(v16_set1(0.0f), v));
        most = v16_max(most, v16_min(v, v16_set1(INFINITY)));
    }
    return v16_largest(most);
}

DSE_INLINE v16 round_to_s8(v16 x, v16 scale)
{
    v16 value = v16_max(v16_set1(-127.0f), v16_min(v16_set1(127.0f), v16_div(x, scale)));
    return v16_add(value, v16_set1(V16_MAGIC));
}

dse_shrink_fn DSE_NAME(shrink_q8);
void DSE_NAME(shrink_q8)(const float *x, size_t n, uint8_t *blocks)
{
    for (size_t left = n / DSE_KV_Q8_BLOCK; left > 0;) {
        size_t count = left < SCALES_AT_ONCE ? left : SCALES_AT_ONCE;
        uint16_t half[SCALES_AT_ONCE];
        float scale[SCALES_AT_ONCE] = {0};
        for (size_t b = 0; b < count; b++) {
            float most = largest_magnitude(x + b * DSE_KV_Q8_BLOCK);
            scale[b] = most < INFINITY ? most / 127.0f : NAN;
        }
        v16_store_f16(half, within_f16(v16_load(scale)));
        v16_store(scale, v16_load_f16(half)); /* what is divided by, so that its rounding adds nothing to the error */
        for (size_t b = 0; b < count; b++, blocks += DSE_KV_Q8_BLOCK_BYTES, x += DSE_KV_Q8_BLOCK) {
            memcpy(blocks, &half[b], sizeof half[b]);
            if (scale[b] > 0) {
                v16 s = v16_set1(scale[b]);
                v16_store_low8(blocks + 2, round_to_s8(v16_load(x), s));
                v16_store_low8(blocks + 18, round_to_s8(v16_load(x + 16), s));
            } else {
                memset(blocks + 2, 0, DSE_KV_Q8_BLOCK);
            }
        }
        left -= count;
    }
}
