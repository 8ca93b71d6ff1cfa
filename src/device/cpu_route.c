/* Routing of a mixture of experts: router logits in f32, selection, weights.
 *
 * Selection (DeepSeek-V2 report, 2.2; DeepSeek-V3 report, 2.1.2): scores by softmax or sigmoid; with a bias, experts
 * are ranked by score + bias but weighted by the score alone; with groups, only experts of the best groups may be
 * chosen. A tie goes to the lower expert. The result of a row depends on that row only.
 */
#include <math.h>

#include "device/cpu_product.h"

struct route_job {
    const struct dse_moe_config *moe;
    const float *bias; /* [E] or NULL */
    float *logits;     /* [n_rows][E] */
    size_t n_rows;
    struct dse_routes *routes;
};

/* Logits to scores, in place. */
static void score_experts(const struct dse_moe_config *moe, float *s)
{
    const int n = moe->n_experts;
    if (moe->score == DSE_SCORE_SIGMOID) {
        for (int e = 0; e < n; e++)
            s[e] = 1.0f / (1.0f + expf(-s[e]));
        return;
    }
    float largest = s[0], sum = 0;
    for (int e = 1; e < n; e++)
        largest = s[e] > largest ? s[e] : largest;
    for (int e = 0; e < n; e++)
        sum += s[e] = expf(s[e] - largest);
    for (int e = 0; e < n; e++)
        s[e] /= sum;
}

/* The n largest of count values, marked true; ties to the lower index. A NaN is chosen last. */
static void mark_largest(const float *values, int count, int n, bool *marked)
{
    for (int i = 0; i < count; i++)
        marked[i] = false;
    for (int k = 0; k < n; k++) {
        int best = -1;
        for (int i = 0; i < count; i++)
            if (!marked[i] && (best < 0 || values[i] > values[best] || (isnan(values[best]) && !isnan(values[i]))))
                best = i;
        marked[best] = true;
    }
}

static float group_value(const float *ranks, int n, enum dse_moe_groups grouping)
{
    float best = -INFINITY, second = -INFINITY;
    for (int i = 0; i < n; i++) {
        if (ranks[i] > best) {
            second = best;
            best = ranks[i];
        } else if (ranks[i] > second) {
            second = ranks[i];
        }
    }
    return grouping == DSE_GROUPS_BEST_TWO && n > 1 ? best + second : best;
}

/* Experts outside the best groups can no longer be chosen. */
static void bar_groups(const struct dse_moe_config *moe, float *ranks)
{
    float values[DSE_MAX_EXPERTS];
    bool kept[DSE_MAX_EXPERTS];
    const int size = moe->n_experts / moe->n_groups;
    for (int g = 0; g < moe->n_groups; g++)
        values[g] = group_value(ranks + g * size, size, moe->grouping);
    mark_largest(values, moe->n_groups, moe->n_groups_used, kept);
    for (int g = 0; g < moe->n_groups; g++)
        for (int i = 0; i < size && !kept[g]; i++)
            ranks[g * size + i] = -INFINITY;
}

static void choose(const struct dse_moe_config *moe, const float *bias, float *logits, int32_t *experts, float *weights)
{
    float ranks[DSE_MAX_EXPERTS] = {0};
    bool chosen[DSE_MAX_EXPERTS];
    score_experts(moe, logits);
    for (int e = 0; e < moe->n_experts; e++)
        ranks[e] = bias != NULL ? logits[e] + bias[e] : logits[e];
    if (moe->grouping != DSE_GROUPS_NONE) bar_groups(moe, ranks);
    mark_largest(ranks, moe->n_experts, moe->n_used, chosen);

    int n = 0;
    float sum = 0;
    for (int e = 0; e < moe->n_experts; e++) {
        if (!chosen[e]) continue;
        experts[n] = e;
        weights[n++] = logits[e];
        sum += logits[e];
    }
    for (int i = 0; i < n; i++) {
        if (moe->normalize) weights[i] /= sum + 1e-20f;
        weights[i] *= moe->scale;
    }
}

static void choose_rows(const struct route_job *job, size_t begin, size_t end)
{
    const size_t used = (size_t)job->moe->n_used;
    for (size_t m = begin; m < end; m++)
        choose(job->moe, job->bias, job->logits + m * (size_t)job->moe->n_experts, job->routes->experts + m * used,
               job->routes->weights + m * used);
}

static void run_choose(void *context, int thread, int n_threads)
{
    const struct route_job *job = context;
    size_t begin, end;
    dse_split(job->n_rows, 1, thread, n_threads, &begin, &end);
    choose_rows(job, begin, end);
}

void dse_cpu_route(struct dse_device *device, const struct dse_config *config, const struct dse_layer *layer,
                   const float *x, int n_rows, struct dse_routes *routes)
{
    struct cpu_state *state = device->state;
    struct cpu_product_job logits = {.x = x,
                                     .n_rows = (size_t)n_rows,
                                     .norm = layer->ffn_norm,
                                     .eps = config->rms_eps,
                                     .products = {{&layer->router, NULL, state->moe.logits}},
                                     .n_products = 1};
    dse_cpu_run_products(device, &logits);
    struct route_job job = {&config->moe, layer->router_bias, state->moe.logits, (size_t)n_rows, routes};
    if (n_rows <= CPU_PRIVATE_ROWS)
        run_choose(&job, 0, 1);
    else
        dse_pool_run(device->pool, run_choose, &job);
}
