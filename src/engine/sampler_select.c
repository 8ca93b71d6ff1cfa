/* Passes over a row of logits and selection among candidates. Called by sampler.c only; never sorts a whole vocabulary.
 * Every result is a function of the values alone: pivots come from a fixed sequence.
 */
#include "engine/sampler_select.h"

#include <math.h>

#include "engine/sampler_math.h"

#define SCAN 16 /* logits per threshold test */

static float block_max(const float *x, size_t n)
{
    float best = -INFINITY;
    size_t i = 0;
    if (n >= SCAN) {
        v4f m0 = v4_splat(-INFINITY), m1 = m0, m2 = m0, m3 = m0;
        for (; i + SCAN <= n; i += SCAN) {
            m0 = v4_max(v4_load(x + i), m0);
            m1 = v4_max(v4_load(x + i + 4), m1);
            m2 = v4_max(v4_load(x + i + 8), m2);
            m3 = v4_max(v4_load(x + i + 12), m3);
        }
        m0 = v4_max(v4_max(m0, m1), v4_max(m2, m3));
        for (int j = 0; j < 4; j++)
            if (m0[j] > best) best = m0[j];
    }
    for (; i < n; i++)
        if (x[i] > best) best = x[i];
    return best;
}

int32_t dse_row_argmax(const float *x, size_t n)
{
    float best = -INFINITY;
    size_t best_block = n;
    for (size_t begin = 0; begin < n; begin += DSE_ROW_BLOCK) {
        size_t count = n - begin < DSE_ROW_BLOCK ? n - begin : DSE_ROW_BLOCK;
        float max = block_max(x + begin, count);
        if (max > best) best = max, best_block = begin;
    }
    for (size_t i = best_block; i < n; i++)
        if (x[i] == best) return (int32_t)i;
    return -1;
}

double dse_row_exp_sum(const float *x, size_t n, float max, float scale, double *block_sums)
{
    double total = 0;
    v4f m = v4_splat(max), s = v4_splat(scale);
    for (size_t begin = 0; begin < n; begin += DSE_ROW_BLOCK) {
        size_t end = n - begin < DSE_ROW_BLOCK ? n : begin + DSE_ROW_BLOCK, i = begin;
        v4f sum0 = v4_splat(0), sum1 = sum0;
        for (; i + 8 <= end; i += 8) {
            sum0 += v4_exp((v4_load(x + i) - m) * s);
            sum1 += v4_exp((v4_load(x + i + 4) - m) * s);
        }
        sum0 += sum1;
        double sum = ((double)sum0[0] + sum0[1]) + ((double)sum0[2] + sum0[3]);
        for (; i < end; i++)
            sum += exp_one((x[i] - max) * scale);
        if (block_sums) block_sums[begin / DSE_ROW_BLOCK] = sum;
        total += sum;
    }
    return total;
}

double dse_row_weights(const float *x, size_t n, float max, float scale, float *weights)
{
    double total = 0;
    v4f m = v4_splat(max), s = v4_splat(scale);
    for (size_t begin = 0; begin < n; begin += DSE_ROW_BLOCK) {
        size_t end = n - begin < DSE_ROW_BLOCK ? n : begin + DSE_ROW_BLOCK, i = begin;
        v4f sum0 = v4_splat(0), sum1 = sum0;
        for (; i + 8 <= end; i += 8) {
            v4f w0 = v4_exp((v4_load(x + i) - m) * s), w1 = v4_exp((v4_load(x + i + 4) - m) * s);
            memcpy(weights + i, &w0, sizeof w0);
            memcpy(weights + i + 4, &w1, sizeof w1);
            sum0 += w0;
            sum1 += w1;
        }
        sum0 += sum1;
        total += ((double)sum0[0] + sum0[1]) + ((double)sum0[2] + sum0[3]);
        for (; i < end; i++)
            total += weights[i] = exp_one((x[i] - max) * scale);
    }
    return total;
}

double dse_row_mass(const float *weights, size_t n, float threshold, double *block_sums, size_t *count)
{
    double total = 0;
    *count = 0;
    v4f t = v4_splat(threshold);
    for (size_t begin = 0; begin < n; begin += DSE_ROW_BLOCK) {
        size_t end = n - begin < DSE_ROW_BLOCK ? n : begin + DSE_ROW_BLOCK, i = begin;
        v4f sum0 = v4_splat(0), sum1 = sum0;
        v4u count0 = {0}, count1 = {0};
        for (; i + 8 <= end; i += 8) {
            v4f w0 = v4_load(weights + i), w1 = v4_load(weights + i + 4);
            v4u in0 = (v4u)(w0 >= t), in1 = (v4u)(w1 >= t);
            sum0 += (v4f)(in0 & (v4u)w0);
            sum1 += (v4f)(in1 & (v4u)w1);
            count0 -= in0;
            count1 -= in1;
        }
        sum0 += sum1;
        count0 += count1;
        double sum = ((double)sum0[0] + sum0[1]) + ((double)sum0[2] + sum0[3]);
        size_t n_in = (size_t)count0[0] + count0[1] + count0[2] + count0[3];
        for (; i < end; i++)
            if (weights[i] >= threshold) sum += weights[i], n_in++;
        if (block_sums) block_sums[begin / DSE_ROW_BLOCK] = sum;
        total += sum;
        *count += n_in;
    }
    return total;
}

/* ---- candidates -------------------------------------------------------------------------------------------- */

/* Float bits in an order that unsigned integers share: negative numbers are inverted, positive ones get the top bit. */
uint64_t dse_candidate(float value, int32_t id)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits = bits >> 31 ? ~bits : bits | 0x80000000u;
    return (uint64_t)bits << 32 | (uint32_t)~id;
}

float dse_candidate_value(uint64_t candidate)
{
    uint32_t bits = (uint32_t)(candidate >> 32);
    bits = bits >> 31 ? bits & 0x7FFFFFFFu : ~bits;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

int32_t dse_candidate_id(uint64_t candidate)
{
    return (int32_t) ~(uint32_t)candidate;
}

static bool any_above(const float *x, v4f threshold)
{
    return v4_any((v4u)(v4_load(x) > threshold) | (v4u)(v4_load(x + 4) > threshold) |
                  (v4u)(v4_load(x + 8) > threshold) | (v4u)(v4_load(x + 12) > threshold));
}

static v4u inside(const float *x, v4f low, v4f high)
{
    return (v4u)(v4_load(x) >= low) & (v4u)(v4_load(x) < high);
}

size_t dse_row_between(const float *x, size_t n, float low, float high, uint64_t *out)
{
    size_t count = 0;
    v4f lo = v4_splat(low), hi = v4_splat(high);
    for (size_t begin = 0; begin < n; begin += SCAN) {
        size_t end = begin + SCAN <= n ? begin + SCAN : n;
        if (end - begin == SCAN && !v4_any(inside(x + begin, lo, hi) | inside(x + begin + 4, lo, hi) |
                                           inside(x + begin + 8, lo, hi) | inside(x + begin + 12, lo, hi)))
            continue;
        for (size_t i = begin; i < end; i++)
            if (x[i] >= low && x[i] < high) out[count++] = dse_candidate(x[i], (int32_t)i);
    }
    return count;
}

void dse_row_clear_equal(float *weights, size_t begin, size_t n, float value)
{
    v4f v = v4_splat(value);
    for (; begin < n && begin % 4; begin++)
        if (weights[begin] == value) weights[begin] = 0;
    for (; begin + 4 <= n; begin += 4) {
        v4f w = v4_load(weights + begin);
        w = (v4f)((v4u)w & ~(v4u)(w == v));
        memcpy(weights + begin, &w, sizeof w);
    }
    for (; begin < n; begin++)
        if (weights[begin] == value) weights[begin] = 0;
}

size_t dse_row_top_k(const float *x, size_t n, size_t k, uint64_t *out, size_t capacity)
{
    size_t count = 0;
    float threshold = -INFINITY; /* the k-th largest so far, once there are k: later equal ones have higher ids */
    for (size_t begin = 0; begin < n; begin += SCAN) {
        size_t end = begin + SCAN <= n ? begin + SCAN : n;
        if (end - begin == SCAN && !any_above(x + begin, v4_splat(threshold))) continue;
        for (size_t i = begin; i < end; i++) {
            if (!(x[i] > threshold)) continue;
            out[count++] = dse_candidate(x[i], (int32_t)i);
            if (count < capacity || count <= k) continue;
            dse_select_count(out, count, k);
            count = k;
            uint64_t smallest = out[0];
            for (size_t j = 1; j < k; j++)
                if (out[j] < smallest) smallest = out[j];
            threshold = dse_candidate_value(smallest);
        }
    }
    if (count > k) {
        dse_select_count(out, count, k);
        count = k;
    }
    return count;
}

static void swap(uint64_t *a, uint64_t *b)
{
    uint64_t t = *a;
    *a = *b;
    *b = t;
}

static uint32_t next_random(uint32_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

/* Puts the larger ones than some pivot of [lo, hi) before it, the smaller ones after; returns its place. Candidates
 * are distinct. The pivot is the middle of three places taken at random: no order of logits is a bad one. */
static size_t partition(uint64_t *c, size_t lo, size_t hi, uint32_t *random)
{
    size_t n = hi - lo;
    uint64_t *a = c + lo + next_random(random) % n, *b = c + lo + next_random(random) % n;
    uint64_t *m = c + lo + next_random(random) % n;
    if (*a < *b) {
        uint64_t *t = a;
        a = b;
        b = t;
    }
    if (*m > *a)
        m = a;
    else if (*m < *b)
        m = b;
    uint64_t pivot = *m;
    swap(m, c + hi - 1);
    size_t at = lo;
    for (size_t i = lo; i + 1 < hi; i++) { /* without a branch that depends on the data */
        uint64_t value = c[i];
        c[i] = c[at];
        c[at] = value;
        at += value > pivot;
    }
    swap(c + at, c + hi - 1);
    return at;
}

void dse_select_count(uint64_t *c, size_t n, size_t k)
{
    uint32_t random = 2463534242u;
    for (size_t lo = 0, hi = n; hi - lo > 1 && k > lo && k < hi;) {
        size_t at = partition(c, lo, hi, &random);
        if (at >= k)
            hi = at;
        else
            lo = at + 1;
    }
}

size_t dse_select_mass(uint64_t *c, size_t n, double mass)
{
    uint32_t random = 2463534242u;
    size_t lo = 0, hi = n;
    double before = 0; /* of [0, lo), all of which are in */
    while (lo < hi) {
        size_t at = partition(c, lo, hi, &random);
        double larger = 0;
        for (size_t i = lo; i < at; i++)
            larger += dse_candidate_value(c[i]);
        if (before + larger >= mass) {
            hi = at;
            continue;
        }
        before += larger + dse_candidate_value(c[at]);
        lo = at + 1;
        if (before >= mass) break;
    }
    return lo > 0 ? lo : 1;
}
