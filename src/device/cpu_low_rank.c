/* What adapters add to the products of the CPU device: y += B (scale * A x), in f32, for the rows that have some.
 *
 * Called by cpu_ops.c, cpu_latent.c and cpu_moe.c within their own ops, between the product and what follows it, so
 * that gate and up are whole before SiLU. Each row is computed from its own values alone, one dse_matmul sum per
 * output, the adapters of a row in their order: no bit depends on other rows, on how they are cut or on the threads.
 */
#include <string.h>

#include "device/cpu_product.h"

/* Rows of a unit of work of the first step. */
#define LOW_ROWS 32

static const struct dse_low_rank *low_rank_of(const struct dse_adaption *adaption, const struct dse_adapter_part *part,
                                              enum dse_adapter_site site)
{
    return &part->adapter->sites[(size_t)adaption->layer * DSE_SITE_COUNT + (size_t)site];
}

bool dse_cpu_low_needed(const struct dse_adaption *adaption, const enum dse_adapter_site *sites, int n_sites)
{
    if (adaption == NULL) return false;
    for (int r = 0; r < adaption->n_runs; r++)
        for (int p = 0; p < adaption->runs[r].n_parts; p++)
            for (int s = 0; s < n_sites; s++)
                if (low_rank_of(adaption, &adaption->runs[r].parts[p], sites[s])->a.rows > 0) return true;
    return false;
}

/* A x of a row for site number `index`; the parts of its run lie side by side. */
static float *low_at(const struct dse_adaption *adaption, int index, size_t row)
{
    return adaption->low + ((size_t)index * adaption->low_rows + row) * adaption->low_width;
}

/* Rows [panel * 16, …) of A for n rows of the batch from `row` on. */
static void project_unit(const struct dse_low_rank *low, float scale, const float *x, size_t stride, size_t n,
                         size_t panel, float *out, size_t out_stride)
{
    const struct dse_activation act = {.x = x, .stride = stride};
    const size_t begin = panel * DSE_PANEL_ROWS;
    const size_t end = begin + DSE_PANEL_ROWS < low->a.rows ? begin + DSE_PANEL_ROWS : low->a.rows;
    dse_matmul(&low->a, &act, n, begin, end, NULL, false, out, out_stride);
    for (size_t m = 0; m < n; m++)
        for (size_t r = begin; r < end; r++)
            out[m * out_stride + r] *= scale;
}

void dse_cpu_low_project(const struct dse_adaption *adaption, const enum dse_adapter_site *sites, int n_sites,
                         const float *x, size_t stride, int thread, int n_threads)
{
    int unit = 0; /* dealt out in turn */
    for (int r = 0; r < adaption->n_runs; r++) {
        const struct dse_adapter_run *run = &adaption->runs[r];
        for (int s = 0; s < n_sites; s++) {
            size_t offset = 0;
            for (int p = 0; p < run->n_parts; p++) {
                const struct dse_low_rank *low = low_rank_of(adaption, &run->parts[p], sites[s]);
                const float scale = run->parts[p].scale * low->scale;
                for (size_t panel = 0; panel < cpu_panels_of(&low->a); panel++)
                    for (size_t m = 0; m < (size_t)run->n_rows; m += LOW_ROWS) {
                        if (unit++ % n_threads != thread) continue;
                        const size_t row = (size_t)run->first + m, left = (size_t)run->n_rows - m;
                        project_unit(low, scale, x + row * stride, stride, left < LOW_ROWS ? left : LOW_ROWS, panel,
                                     low_at(adaption, s, row) + offset, adaption->low_width);
                    }
                offset += low->a.rows;
            }
        }
    }
}

void dse_cpu_low_add(const struct dse_adaption *adaption, enum dse_adapter_site site, int index, size_t first, size_t n,
                     size_t begin, size_t end, float *y, size_t y_stride)
{
    for (int r = 0; r < adaption->n_runs; r++) {
        const struct dse_adapter_run *run = &adaption->runs[r];
        size_t from = (size_t)run->first, to = from + (size_t)run->n_rows, offset = 0;
        if (from < first) from = first;
        if (to > first + n) to = first + n;
        if (from >= to) continue;
        for (int p = 0; p < run->n_parts; p++) {
            const struct dse_low_rank *low = low_rank_of(adaption, &run->parts[p], site);
            if (low->a.rows == 0) continue;
            const struct dse_activation act = {.x = low_at(adaption, index, from) + offset,
                                               .stride = adaption->low_width};
            struct dse_matrix b = low->b;
            b.data = (const uint8_t *)b.data + begin / DSE_PANEL_ROWS * b.panel_bytes;
            b.rows = end - begin;
            dse_matmul(&b, &act, to - from, 0, b.rows, NULL, true, y + (from - first) * y_stride, y_stride);
            offset += low->a.rows;
        }
    }
}

struct low_job {
    struct dse_pool *pool;
    const struct dse_adaption *adaption;
    enum dse_adapter_site site;
    const float *x;
    size_t stride, n_rows, columns;
    float *y;
};

static void run_low(void *context, int thread, int n_threads)
{
    const struct low_job *job = context;
    size_t begin, end;
    dse_cpu_low_project(job->adaption, &job->site, 1, job->x, job->stride, thread, n_threads);
    dse_pool_barrier(job->pool);
    dse_split(job->columns, DSE_PANEL_ROWS, thread, n_threads, &begin, &end);
    if (begin < end)
        dse_cpu_low_add(job->adaption, job->site, 0, 0, job->n_rows, begin, end, job->y + begin, job->columns);
}

void dse_cpu_low_product(struct dse_device *device, const struct dse_adaption *adaption, enum dse_adapter_site site,
                         const float *x, size_t stride, int n_rows, float *y, size_t columns)
{
    struct low_job job = {device->pool, adaption, site, x, stride, (size_t)n_rows, columns, y};
    if (dse_cpu_low_needed(adaption, &site, 1)) dse_pool_run(device->pool, run_low, &job);
}
