/* Routing and experts of the CPU device: against f64, and the same bits whatever the batch and the threads. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device_data.h"

enum { ROWS = 130, EMBD = 64 };

static const struct moe_shape {
    struct dse_moe_config moe;
    enum dse_type type; /* of the experts */
    double tolerance;
} shapes[] = {
    {{.n_experts = 16, .n_used = 4, .n_shared = 2, .n_ff = 32, .scale = 1}, DSE_TYPE_F32, 2e-5},
    {{.n_experts = 7, .n_used = 3, .n_shared = 0, .n_ff = 40, .scale = 1.7f}, DSE_TYPE_F16, 2e-5},
    {{.n_experts = 12,
      .n_used = 2,
      .n_shared = 1,
      .n_ff = 96,
      .scale = 16,
      .grouping = DSE_GROUPS_BEST,
      .n_groups = 4,
      .n_groups_used = 2},
     DSE_TYPE_Q8_0,
     0.03},
    {{.n_experts = 64,
      .n_used = 6,
      .n_shared = 1,
      .n_ff = 64,
      .scale = 2.5f,
      .score = DSE_SCORE_SIGMOID,
      .grouping = DSE_GROUPS_BEST_TWO,
      .n_groups = 8,
      .n_groups_used = 4,
      .has_bias = true,
      .normalize = true},
     DSE_TYPE_Q8_0,
     0.03},
    {{.n_experts = 8,
      .n_used = 8,
      .n_shared = 1,
      .n_ff = 32,
      .scale = 1,
      .score = DSE_SCORE_SIGMOID,
      .has_bias = true,
      .normalize = true},
     DSE_TYPE_F32,
     2e-5},
    {{.n_experts = 5,
      .n_used = 1,
      .n_shared = 1,
      .n_ff = 160,
      .scale = 1,
      .score = DSE_SCORE_SIGMOID,
      .grouping = DSE_GROUPS_BEST_TWO,
      .n_groups = 5,
      .n_groups_used = 1,
      .has_bias = true},
     DSE_TYPE_F32,
     2e-5},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

/* A matrix in the file's form, packed, and as f32 for the reference. */
struct matrix {
    struct dse_matrix packed;
    void *source, *panels;
    float *values;
};

struct layer {
    struct dse_config config;
    struct dse_layer layer;
    struct dse_expert experts[64];
    struct matrix matrices[64 * 3 + 4];
    int n_matrices;
    float norm[EMBD], bias[64];
    struct dse_device *device;
};

static struct dse_matrix make(struct layer *l, struct random *random, enum dse_type type, size_t rows, size_t cols,
                              float range)
{
    struct matrix *m = &l->matrices[l->n_matrices++];
    size_t row_bytes, bytes;
    assert_true(dse_type_row_bytes(type, cols, &row_bytes));
    uint8_t *source = calloc(rows, row_bytes);
    m->source = source;
    m->values = calloc(rows * cols, sizeof(float));
    for (size_t i = 0; i < rows * cols; i++) {
        const float value = random_float(random, -range, range);
        if (type == DSE_TYPE_F32) memcpy(source + 4 * i, &value, 4);
        const uint16_t half = dse_f32_to_f16(type == DSE_TYPE_Q8_0 ? range / 127 : value);
        if (type == DSE_TYPE_F16) memcpy(source + 2 * i, &half, 2);
        if (type != DSE_TYPE_Q8_0) continue;
        memcpy(source + i / 32 * 34, &half, 2);
        source[i / 32 * 34 + 2 + i % 32] = (uint8_t)(int8_t)(value / range * 127);
    }
    dse_type_decode(type, source, m->values, rows * cols);
    const enum dse_layout layout = dse_matrix_layout(type, cols, false);
    assert_true(dse_matrix_packed_bytes(layout, rows, cols, &bytes));
    m->panels = aligned_alloc(64, (bytes + 63) / 64 * 64);
    memset(m->panels, 0, bytes);
    dse_matrix_pack(type, source, cols, 0, rows, layout, m->panels, 0);
    m->packed = (struct dse_matrix){layout, type, rows, cols, m->panels, dse_matrix_panel_bytes(layout, cols)};
    return m->packed;
}

static const float *values_of(const struct layer *l, const struct dse_matrix *packed)
{
    for (int i = 0; i < l->n_matrices; i++)
        if (l->matrices[i].panels == packed->data) return l->matrices[i].values;
    fail_msg("no such matrix");
    return NULL;
}

static void layer_init(struct layer *l, const struct moe_shape *shape, int threads)
{
    struct random random = {77};
    struct dse_error err;
    *l = (struct layer){.config = {.n_layers = 1,
                                   .n_embd = EMBD,
                                   .n_heads = 2,
                                   .n_kv_heads = 2,
                                   .head_dim = 32,
                                   .n_ff = 64,
                                   .n_vocab = 10,
                                   .rms_eps = 1e-5f,
                                   .rope = {.dimensions = 32},
                                   .moe = shape->moe}};
    const size_t ff = (size_t)shape->moe.n_ff, shared = ff * (size_t)shape->moe.n_shared;
    random_fill(&random, l->norm, EMBD, 0.5f, 1.5f);
    random_fill(&random, l->bias, 64, -1.5f, 0.2f);
    l->layer.ffn_norm = l->norm;
    l->layer.router_bias = shape->moe.has_bias ? l->bias : NULL;
    l->layer.router = make(l, &random, DSE_TYPE_F32, (size_t)shape->moe.n_experts, EMBD, 0.5f);
    l->layer.experts = l->experts;
    for (int e = 0; e < shape->moe.n_experts; e++)
        l->experts[e] = (struct dse_expert){make(l, &random, shape->type, ff, EMBD, 0.3f),
                                            make(l, &random, shape->type, ff, EMBD, 0.3f),
                                            make(l, &random, shape->type, EMBD, ff, 0.3f)};
    if (shared > 0)
        l->layer.shared = (struct dse_expert){make(l, &random, shape->type, shared, EMBD, 0.3f),
                                              make(l, &random, shape->type, shared, EMBD, 0.3f),
                                              make(l, &random, shape->type, EMBD, shared, 0.3f)};
    assert_int_equal(dse_device_open("auto", threads, &l->device, &err), DSE_OK);
    assert_int_equal(l->device->ops->reserve(l->device, &l->config, ROWS, &err), DSE_OK);
}

static void layer_deinit(struct layer *l)
{
    dse_device_close(l->device);
    for (int i = 0; i < l->n_matrices; i++) {
        free(l->matrices[i].source);
        free(l->matrices[i].panels);
        free(l->matrices[i].values);
    }
}

static void multiply(const struct layer *l, const struct dse_matrix *w, const double *x, double *y)
{
    const float *values = values_of(l, w);
    for (size_t r = 0; r < w->rows; r++) {
        y[r] = 0;
        for (size_t k = 0; k < w->cols; k++)
            y[r] += (double)values[r * w->cols + k] * x[k];
    }
}

static void norm(const struct layer *l, const float *x, double *out)
{
    double sum = 0;
    for (int i = 0; i < EMBD; i++)
        sum += (double)x[i] * (double)x[i];
    for (int i = 0; i < EMBD; i++)
        out[i] = (double)x[i] / sqrt(sum / EMBD + 1e-5) * (double)l->norm[i];
}

/* The rules of models as their papers write them, by sorting: the weight of each expert, 0 if it is not chosen. */
static void reference_route(const struct layer *l, const double *normed, double *weights)
{
    const struct dse_moe_config *moe = &l->config.moe;
    const int n = moe->n_experts;
    double score[64], rank[64], sum = 0;
    multiply(l, &l->layer.router, normed, score);
    for (int e = 0; e < n; e++)
        sum += exp(score[e]);
    for (int e = 0; e < n; e++)
        score[e] = moe->score == DSE_SCORE_SIGMOID ? 1 / (1 + exp(-score[e])) : exp(score[e]) / sum;
    for (int e = 0; e < n; e++)
        rank[e] = score[e] + (moe->has_bias ? (double)l->bias[e] : 0);
    if (moe->grouping != DSE_GROUPS_NONE) {
        const int size = n / moe->n_groups;
        double value[64];
        for (int g = 0; g < moe->n_groups; g++) {
            double best = -INFINITY, second = -INFINITY;
            for (int i = g * size; i < (g + 1) * size; i++) {
                second = fmax(second, fmin(best, rank[i]));
                best = fmax(best, rank[i]);
            }
            value[g] = moe->grouping == DSE_GROUPS_BEST_TWO && size > 1 ? best + second : best;
        }
        for (int g = 0; g < moe->n_groups; g++) {
            int better = 0;
            for (int other = 0; other < moe->n_groups; other++)
                better += value[other] > value[g];
            if (better < moe->n_groups_used) continue;
            for (int i = g * size; i < (g + 1) * size; i++)
                rank[i] = -INFINITY;
        }
    }
    sum = 0;
    for (int e = 0; e < n; e++) {
        int better = 0;
        for (int other = 0; other < n; other++)
            better += rank[other] > rank[e];
        weights[e] = better < moe->n_used ? score[e] : 0;
        sum += weights[e];
    }
    for (int e = 0; e < n; e++)
        weights[e] = (moe->normalize ? weights[e] / sum : weights[e]) * (double)moe->scale;
}

static void add_expert(const struct layer *l, const struct dse_expert *expert, const double *normed, double weight,
                       double *y)
{
    double gate[320], up[320], out[EMBD];
    multiply(l, &expert->gate, normed, gate);
    multiply(l, &expert->up, normed, up);
    for (size_t i = 0; i < expert->gate.rows; i++)
        gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
    multiply(l, &expert->down, gate, out);
    for (int i = 0; i < EMBD; i++)
        y[i] += weight * out[i];
}

struct routed {
    int32_t experts[ROWS * 32];
    float weights[ROWS * 32];
    struct dse_routes routes;
};

static void run(struct layer *l, const float *x, int n, float *y, struct routed *routed)
{
    routed->routes = (struct dse_routes){l->config.moe.n_used, routed->experts, routed->weights};
    memcpy(y, x, sizeof(float) * (size_t)n * EMBD);
    l->device->ops->route(l->device, &l->config, &l->layer, x, n, &routed->routes);
    l->device->ops->moe(l->device, &l->config, &l->layer, NULL, &routed->routes, n, y);
}

static void experts_are_chosen_and_added_as_in_f64(void **state)
{
    static float x[ROWS * EMBD], y[ROWS * EMBD];
    static struct routed routed;
    static struct layer l;
    for (int s = 0; s < N_SHAPES; s++) {
        struct random random = {5};
        layer_init(&l, &shapes[s], 2);
        random_fill(&random, x, ROWS * EMBD, -2, 2);
        run(&l, x, ROWS, y, &routed);
        const int used = l.config.moe.n_used;
        for (int m = 0; m < ROWS; m++) {
            double normed[EMBD], weights[64], want[EMBD], largest = 0;
            norm(&l, x + m * EMBD, normed);
            reference_route(&l, normed, weights);
            int n_chosen = 0;
            for (int i = 0; i < EMBD; i++)
                want[i] = 0;
            for (int e = 0; e < l.config.moe.n_experts; e++) {
                if (weights[e] == 0) continue;
                assert_true(n_chosen < used);
                assert_int_equal(routed.experts[m * used + n_chosen], e);
                assert_true(fabs((double)routed.weights[m * used + n_chosen] - weights[e]) < 1e-5 * weights[e] + 1e-6);
                n_chosen++;
                add_expert(&l, &l.experts[e], normed, weights[e], want);
            }
            assert_int_equal(n_chosen, used);
            if (l.config.moe.n_shared > 0) add_expert(&l, &l.layer.shared, normed, 1, want);
            for (int i = 0; i < EMBD; i++)
                largest = fmax(largest, fabs(want[i]));
            for (int i = 0; i < EMBD; i++)
                if (!(fabs((double)(y[m * EMBD + i] - x[m * EMBD + i]) - want[i]) <= shapes[s].tolerance * largest))
                    fail_msg("shape %d row %d: element %d is %g instead of %g", s, m, i,
                             (double)(y[m * EMBD + i] - x[m * EMBD + i]), want[i]);
        }
        layer_deinit(&l);
    }
}

static void a_row_has_the_same_bits_in_any_batch_and_on_any_threads(void **state)
{
    static float x[ROWS * EMBD], y[ROWS * EMBD], other[ROWS * EMBD];
    static struct routed routed, again;
    static struct layer l;
    static const int batches[] = {1, 2, 3, 5, 17, 49, 129};
    for (int s = 0; s < N_SHAPES; s++) {
        for (int threads = 1; threads <= 3; threads++) {
            struct random random = {6};
            layer_init(&l, &shapes[s], threads);
            random_fill(&random, x, ROWS * EMBD, -2, 2);
            if (threads == 1) run(&l, x, ROWS, y, &routed);
            for (size_t b = 0; b < sizeof batches / sizeof *batches; b++) {
                for (int first = 0; first < ROWS; first += batches[b]) {
                    const int n = ROWS - first < batches[b] ? ROWS - first : batches[b];
                    run(&l, x + first * EMBD, n, other, &again);
                    assert_same_bits(other, y + first * EMBD, (size_t)n * EMBD, "x");
                    assert_memory_equal(again.experts, routed.experts + first * l.config.moe.n_used,
                                        sizeof(int32_t) * (size_t)(n * l.config.moe.n_used));
                }
            }
            layer_deinit(&l);
        }
    }
}

static void equal_scores_choose_the_lower_expert(void **state)
{
    static struct layer l;
    static struct routed routed;
    float x[EMBD], y[EMBD];
    layer_init(&l, &shapes[0], 1);
    memset((void *)(uintptr_t)l.layer.router.data, 0, l.layer.router.panel_bytes);
    for (int i = 0; i < EMBD; i++)
        x[i] = 1;
    run(&l, x, 1, y, &routed);
    for (int i = 0; i < 4; i++)
        assert_int_equal(routed.experts[i], i);
    layer_deinit(&l);
}

static void a_row_of_nan_still_gets_experts(void **state)
{
    static struct layer l;
    static struct routed routed;
    float x[2 * EMBD], y[2 * EMBD];
    for (int s = 0; s < N_SHAPES; s++) {
        layer_init(&l, &shapes[s], 1);
        for (int i = 0; i < 2 * EMBD; i++)
            x[i] = i < EMBD ? NAN : 1;
        run(&l, x, 2, y, &routed);
        for (int i = 0; i < l.config.moe.n_used; i++)
            assert_in_range(routed.experts[i], i > 0 ? routed.experts[i - 1] + 1 : 0, l.config.moe.n_experts - 1);
        for (int i = 0; i < EMBD; i++)
            assert_true(isnan(y[i]) && isfinite(y[EMBD + i]));
        layer_deinit(&l);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_are_chosen_and_added_as_in_f64),
        cmocka_unit_test(a_row_has_the_same_bits_in_any_batch_and_on_any_threads),
        cmocka_unit_test(equal_scores_choose_the_lower_expert),
        cmocka_unit_test(a_row_of_nan_still_gets_experts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
