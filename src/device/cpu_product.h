/* Matrix products of the CPU device as its ops ask for them; run in cpu_ops.c. Shared by its source files only. */
#ifndef DSE_DEVICE_CPU_PRODUCT_H
#define DSE_DEVICE_CPU_PRODUCT_H

#include <stdatomic.h>

#include "device/cpu.h"

struct cpu_product {
    const struct dse_matrix *w;
    const float *bias;
    float *y;                   /* [n_rows][w->rows] */
    enum dse_adapter_site site; /* of a job with an adaption: which matrix w is */
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
    const struct dse_adaption *adaption; /* NULL: none */
    bool add;                            /* y += */
    bool gated;                          /* products are gate and up: y of gate = silu(gate) * up */

    /* filled by dse_cpu_run_products */
    struct cpu_state *state;
    struct dse_pool *pool;
    enum dse_adapter_site sites[DSE_ADAPTION_SITES]; /* of the products */
    size_t cols;
    bool uses_s8;
    size_t n_panels; /* over all products; gated: of one of the two */
    atomic_size_t next;
};

/* Runs in the scratch that reserve took: at most its rows, at most its widest input. */
void dse_cpu_run_products(struct dse_device *device, struct cpu_product_job *job);

/* cpu_low_rank.c: adapters in a product, in two steps with a meeting of all threads in between. */

/* Whether any row adds to one of these matrices; NULL adaption: none. */
bool dse_cpu_low_needed(const struct dse_adaption *adaption, const enum dse_adapter_site *sites, int n_sites);
/* A thread's share of scale * A x for all rows and sites; x [n_rows][stride]. */
void dse_cpu_low_project(const struct dse_adaption *adaption, const enum dse_adapter_site *sites, int n_sites,
                         const float *x, size_t stride, int thread, int n_threads);
/* y [n][y_stride] += B (A x) for rows [first, first + n) and output columns [begin, end) of site number `index`;
 * begin is a multiple of 16, y begins at that row and column. */
void dse_cpu_low_add(const struct dse_adaption *adaption, enum dse_adapter_site site, int index, size_t first, size_t n,
                     size_t begin, size_t end, float *y, size_t y_stride);
/* Both steps, as an op of its own: y [n_rows][columns] += B (A x). */
void dse_cpu_low_product(struct dse_device *device, const struct dse_adaption *adaption, enum dse_adapter_site site,
                         const float *x, size_t stride, int n_rows, float *y, size_t columns);

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
