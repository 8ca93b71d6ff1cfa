/* Passes over a row of logits and selection among candidates, for the sampler. Nothing here allocates. */
#ifndef DSE_ENGINE_SAMPLER_SELECT_H
#define DSE_ENGINE_SAMPLER_SELECT_H

#include <stddef.h>
#include <stdint.h>

#define DSE_ROW_BLOCK 512 /* logits per partial sum */

/* Index of the largest logit, the lowest of equal ones; NaN is skipped. -1 if all are -inf or NaN. */
int32_t dse_row_argmax(const float *x, size_t n);

/* Sum of e^((x - max) * scale); block_sums [ceil(n / DSE_ROW_BLOCK)] gets the parts, or is NULL. */
double dse_row_exp_sum(const float *x, size_t n, float max, float scale, double *block_sums);

/* The same, and the terms themselves into weights [n]. */
double dse_row_weights(const float *x, size_t n, float max, float scale, float *weights);
/* Sum and number of the weights that are at least threshold. */
double dse_row_mass(const float *weights, size_t n, float threshold, double *block_sums, size_t *count);

/* Sets to 0 the weights [begin, n) that equal value. */
void dse_row_clear_equal(float *weights, size_t begin, size_t n, float value);

/* A candidate is one number that sorts as (value, lower id first): value is a logit or a weight. */
uint64_t dse_candidate(float value, int32_t id);
float dse_candidate_value(uint64_t candidate);
int32_t dse_candidate_id(uint64_t candidate);

/* All low <= x < high; out has room for them. Returns how many. */
size_t dse_row_between(const float *x, size_t n, float low, float high, uint64_t *out);
/* The k largest that are above -inf, in no order; room: capacity >= 2 * k or >= n. Returns how many. */
size_t dse_row_top_k(const float *x, size_t n, size_t k, uint64_t *out, size_t capacity);
/* Moves the k largest candidates to the front. */
void dse_select_count(uint64_t *candidates, size_t n, size_t k);
/* Moves to the front the fewest largest candidates whose values sum to at least mass; returns how many (1…n). */
size_t dse_select_mass(uint64_t *candidates, size_t n, double mass);

#endif
