/* Microbenchmark, not a test: MAC per cycle and GB/s of every matmul variant that this CPU can run, one thread.
 *
 *     bench_kernels [layout or isa to keep]
 *
 * Three measurements per variant: GEMV from L2, GEMV from memory (256 MB of weights), GEMM with 96 activation rows. The clock
 * is measured, not read.
 */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "kernel_data.h"
#include "kernels/dispatch.h"
#include "kernels/prototypes.h"

/* Clock from a chain of dependent multiplies, three cycles each on every x86-64 since 2008 and most ARM cores. */
static double measure_hz(void)
{
    double best = 0;
    for (int i = 0; i < 500; i++) { /* short, so that some run goes undisturbed */
        const uint64_t n = 20000;
        uint64_t t = dse_clock_ns(), x = 3;
        for (uint64_t j = 0; j < n; j += 8)
            for (int u = 0; u < 8; u++) {
                x *= x;
                __asm__ volatile("" : "+r"(x));
            }
        double hz = (double)n * 3 * 1e9 / (double)(dse_clock_ns() - t);
        if (hz > best) best = hz;
    }
    return best;
}

/* GB/s of reading alone, the roof of a GEMV from memory. */
static double measure_read(void)
{
    const size_t n = (256u << 20) / sizeof(uint64_t);
    uint64_t *data = dse_alloc_pages(DSE_MEM_MISC, n * sizeof(uint64_t));
    double best = 0;
    memset(data, 1, n * sizeof(uint64_t));
    for (int i = 0; i < 5; i++) {
        uint64_t t = dse_clock_ns(), sum[4] = {0};
        for (size_t j = 0; j < n; j += 4)
            for (int u = 0; u < 4; u++)
                sum[u] += data[j + (size_t)u];
        __asm__ volatile("" : : "r"(sum[0] + sum[1] + sum[2] + sum[3]));
        double rate = (double)(n * sizeof(uint64_t)) / (double)(dse_clock_ns() - t);
        if (rate > best) best = rate;
    }
    dse_free_pages(data);
    return best;
}

/* Best seconds of several runs. */
static double time_kernel(dse_matmul_fn *kernel, const struct dse_matrix *w, const struct dse_activation *act,
                          size_t n_rows, int runs)
{
    static _Alignas(64) float out[48 * 4 * DSE_PANEL_ROWS];
    size_t n_panels = w->rows / DSE_PANEL_ROWS, step = n_rows > 1 ? 1 : 4;
    double best = 1e9;
    for (int i = 0; i < runs; i++) {
        uint64_t t = dse_clock_ns();
        for (size_t m = 0; m < n_rows; m += 48)
            for (size_t p = 0; p + step <= n_panels; p += step) {
                const struct dse_matmul_job job = {
                    .panels = (const uint8_t *)w->data + p * w->panel_bytes,
                    .panel_bytes = w->panel_bytes,
                    .n_panels = step,
                    .cols = w->cols,
                    .act = act,
                    .first_row = m,
                    .n_rows = n_rows < 48 ? n_rows : 48,
                    .out = out,
                };
                kernel(&job);
            }
        double seconds = (double)(dse_clock_ns() - t) * 1e-9;
        if (seconds < best) best = seconds;
    }
    return best;
}

static void bench(const struct dse_kernel *k, enum dse_type type, size_t cols, double hz)
{
    enum dse_layout layout = dse_matrix_layout(type, cols, false);
    size_t panel = dse_matrix_panel_bytes(layout, cols);
    bool scalar = strcmp(k->isa, "scalar") == 0;
    size_t rows_l2 = 256 * 1024 / panel / 4 * 64, rows_memory = scalar ? rows_l2 : (256u << 20) / panel / 4 * 64;
    if (rows_l2 == 0) rows_l2 = 64;
    struct dse_matrix w = {
        .layout = layout, .source_type = type, .rows = rows_memory, .cols = cols, .panel_bytes = panel};
    uint8_t *source = make_source(type, rows_l2, cols, DATA_RANDOM, 1);
    size_t bytes = rows_memory / DSE_PANEL_ROWS * panel;
    uint8_t *data = dse_alloc_pages(DSE_MEM_MISC, bytes);
    struct test_activation t = make_activation(96, cols, DATA_RANDOM, 2);
    for (size_t r = 0; r < rows_memory; r += rows_l2)
        dse_matrix_pack(type, source, cols, 0, rows_memory - r < rows_l2 ? rows_memory - r : rows_l2, layout, data, r);
    w.data = data;

    dse_matmul_fn *kernel = (dse_matmul_fn *)k->function;
    double memory = time_kernel(kernel, &w, &t.act, 1, 3);
    w.rows = rows_l2;
    double l2 = time_kernel(kernel, &w, &t.act, 1, scalar ? 2 : 200);
    double gemm = time_kernel(kernel, &w, &t.act, scalar ? 4 : 96, scalar ? 1 : 20);
    double l2_bytes = (double)(rows_l2 / 16 * panel), mac = (double)(rows_l2 * cols);
    printf("%-5s %-7s %-7s %5zu  gemv L2 %6.1f MAC/cycle %6.1f GB/s   memory %6.1f GB/s   gemm %6.1f MAC/cycle\n",
           k->types, k->isa, dse_type_info((uint32_t)type)->name, cols, mac / (l2 * hz), l2_bytes / l2 * 1e-9,
           (double)bytes / memory * 1e-9, mac * (scalar ? 4 : 96) / (gemm * hz));
    fflush(stdout);
    free_activation(&t);
    dse_free_pages(data);
    dse_free(source);
}

int main(int argc, char **argv)
{
    const char *keep = argc > 1 ? argv[1] : NULL;
    double hz = measure_hz();
    printf("%s, %.2f GHz, one thread reads %.1f GB/s\n", dse_cpu_model(), hz * 1e-9, measure_read());
    for (size_t i = 0; i < dse_kernel_count(); i++) {
        const struct dse_kernel *k = dse_kernel_at(i);
        if (strcmp(k->op, "matmul") != 0 || !dse_kernel_usable(k)) continue;
        if (keep && strcmp(k->types, keep) != 0 && strcmp(k->isa, keep) != 0) continue;
        for (size_t j = 0; j < packed_type_count; j++)
            if (strcmp(dse_layout_name(dse_matrix_layout(packed_types[j], 1536, false)), k->types) == 0) {
                bench(k, packed_types[j], 1536, hz);
                break;
            }
    }
    return 0;
}
