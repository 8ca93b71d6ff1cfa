/* dse_matmul: picks the kernel of a layout, cuts the work into pieces that stay in the caches, and writes y.
 *
 * Called on every thread of a pool, each with its own row range. Allocates nothing.
 */
#include <pthread.h>
#include <string.h>

#include "kernels/dispatch.h"
#include "kernels/matmul/matmul.h"

/* Activation rows per pass over a panel: a multiple of every kernel's column tile (4, 6, 8), few enough that the pass's
 * activations stay in L2 while all panels go by. */
#define PASS_ROWS 48
/* Panels per kernel call with few activation rows, for kernels that gain from several independent sums. */
#define PASS_PANELS 4

static const struct dse_kernel *chosen[DSE_LAYOUT_COUNT];
static pthread_once_t chosen_once = PTHREAD_ONCE_INIT;

static void choose(void)
{
    for (int i = 0; i < DSE_LAYOUT_COUNT; i++)
        chosen[i] = dse_kernel_pick("matmul", dse_layout_name((enum dse_layout)i));
}

static const struct dse_kernel *chosen_kernel(enum dse_layout layout)
{
    pthread_once(&chosen_once, choose);
    return chosen[layout];
}

const char *dse_matmul_variant(enum dse_layout layout)
{
    return chosen_kernel(layout)->isa;
}

/* y[r] (+)= sums[r] + bias[r] for n rows of one panel; bias is added to the sum first, whether add or not. The rows of a
 * whole panel are a constant, so that each case becomes a few vector instructions. */
static void store_rows(const float *restrict sums, const float *restrict bias, bool add, size_t n, float *restrict y)
{
    if (n == DSE_PANEL_ROWS && bias == NULL && add)
        for (size_t r = 0; r < DSE_PANEL_ROWS; r++)
            y[r] += sums[r];
    else if (n == DSE_PANEL_ROWS && bias == NULL)
        memcpy(y, sums, DSE_PANEL_ROWS * sizeof *y);
    else
        for (size_t r = 0; r < n; r++) {
            float v = bias ? sums[r] + bias[r] : sums[r];
            y[r] = add ? y[r] + v : v;
        }
}

void dse_matmul(const struct dse_matrix *w, const struct dse_activation *act, size_t n_rows, size_t row_begin,
                size_t row_end, const float *bias, bool add, float *y, size_t y_stride)
{
    dse_matmul_fn *kernel = (dse_matmul_fn *)chosen_kernel(w->layout)->function;
    _Alignas(64) float out[PASS_ROWS * PASS_PANELS * DSE_PANEL_ROWS];
    size_t first_panel = row_begin / DSE_PANEL_ROWS;
    size_t end_panel = (row_end + DSE_PANEL_ROWS - 1) / DSE_PANEL_ROWS;

    for (size_t m = 0; m < n_rows; m += PASS_ROWS) {
        size_t pass_rows = n_rows - m < PASS_ROWS ? n_rows - m : PASS_ROWS;
        for (size_t panel = first_panel; panel < end_panel; panel += PASS_PANELS) {
            size_t pass_panels = end_panel - panel < PASS_PANELS ? end_panel - panel : PASS_PANELS;
            const struct dse_matmul_job job = {
                .panels = (const uint8_t *)w->data + panel * w->panel_bytes,
                .panel_bytes = w->panel_bytes,
                .n_panels = pass_panels,
                .cols = w->cols,
                .act = act,
                .first_row = m,
                .n_rows = pass_rows,
                .out = out,
            };
            kernel(&job);
            for (size_t p = 0; p < pass_panels; p++) {
                size_t row = (panel + p) * DSE_PANEL_ROWS;
                size_t n = row_end - row < DSE_PANEL_ROWS ? row_end - row : DSE_PANEL_ROWS;
                for (size_t i = 0; i < pass_rows; i++)
                    store_rows(out + (p * pass_rows + i) * DSE_PANEL_ROWS, bias ? bias + row : NULL, add, n,
                               y + (m + i) * y_stride + row);
            }
        }
    }
}
