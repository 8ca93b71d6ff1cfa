/* Matrix products of the CPU device as its ops ask for them; run in cpu_ops.c. Shared by its source files only. */
#ifndef DSE_DEVICE_CPU_PRODUCT_H
#define DSE_DEVICE_CPU_PRODUCT_H

#include <stdatomic.h>

#include "device/cpu.h"

struct cpu_product {
    const struct dse_matrix *w;
    const float *bias;
    float *y; /* [n_rows][w->rows] */
};

/* One op: up to three matrices that share their input. */
struct cpu_product_job {
    const float *x;           /* [.][cols] */
    const int32_t *row_index; /* which rows of x, NULL: 0, 1, 2 … */
    size_t n_rows;
    const float *norm; /* RMS norm weights, or NULL: x is used as it is */
    float eps;
    struct cpu_product products[3];
    int n_products;
    bool add;   /* y += */
    bool gated; /* products are gate and up: y of gate = silu(gate) * up */

    /* filled by dse_cpu_run_products */
    struct cpu_state *state;
    struct dse_pool *pool;
    size_t cols;
    bool uses_s8;
    size_t n_panels; /* over all products; gated: of one of the two */
    atomic_size_t next;
};

/* Runs in the scratch that reserve took: at most its rows, at most its widest input. */
void dse_cpu_run_products(struct dse_device *device, struct cpu_product_job *job);

static inline size_t cpu_panels_of(const struct dse_matrix *w)
{
    return (w->rows + DSE_PANEL_ROWS - 1) / DSE_PANEL_ROWS;
}

/* The prepared activations from a row on. */
static inline struct dse_activation cpu_activation_from(const struct dse_activation *act, size_t cols, size_t row)
{
    size_t blocks = cols / DSE_ACT_BLOCK;
    return (struct dse_activation){.x = act->x + row * act->stride,
                                   .stride = act->stride,
                                   .values = act->values + row * cols,
                                   .scales = act->scales + row * blocks,
                                   .sums = act->sums + row * blocks,
                                   .half_sums = act->half_sums + row * 2 * blocks};
}

#endif
