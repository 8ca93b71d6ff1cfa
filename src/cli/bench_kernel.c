/* What each matmul kernel makes of this CPU: multiply-adds per cycle with many activation rows, beside the roof that its
 * instructions have, and bytes of weights per second with one row from memory, beside the bandwidth of reading alone.
 *
 * One thread for the former, all for the latter, as prompts and answers meet them. The clock is measured, not read.
 */
#include "cli/bench_kernel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/cgroup.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "base/thread.h"
#include "cli/json_out.h"
#include "cli/limits.h"
#include "kernels/dispatch.h"
#include "kernels/matmul/matmul.h"
#include "kernels/roof/roof.h"

#define COLS         1536
#define GEMM_ROWS    48
#define CACHED_BYTES ((size_t)192 << 10) /* of weights: stay in the L2 */
#define MEMORY_BYTES ((size_t)256 << 20) /* beyond every cache */
#define PANELS       4                   /* that dse_matmul hands to a kernel at once */

struct kernel_bench {
    const struct dse_options *options;
    const char *format;
    struct dse_pool *pool;
    double hz, bandwidth; /* of all threads */
    uint8_t *weights;     /* [MEMORY_BYTES], more than any number of whole panels in it */
    struct dse_activation act;
    void *act_memory;
    float *x;
    json_t *rows;
};

struct figures {
    double gemm, roof; /* multiply-adds per cycle of one thread */
    double gemv;       /* bytes per second of all threads */
};

/* A chain of dependent multiplies, three cycles each on every x86-64 since 2008 and most ARM cores; best of many short
 * runs, so that one goes undisturbed. */
static double measure_hz(void)
{
    const uint64_t n = 20000;
    double best = 0;
    for (int i = 0; i < 500; i++) {
        uint64_t start = dse_clock_ns(), x = 3;
        for (uint64_t j = 0; j < n; j += 8)
            for (int u = 0; u < 8; u++) {
                x *= x;
                __asm__ volatile("" : "+r"(x));
            }
        double hz = (double)n * 3e9 / (double)(dse_clock_ns() - start);
        if (hz > best) best = hz;
    }
    return best;
}

static void run_kernel(const struct kernel_bench *b, dse_matmul_fn *kernel, size_t panel_bytes, size_t begin,
                       size_t end, size_t n_rows)
{
    _Alignas(64) float out[GEMM_ROWS * PANELS * DSE_PANEL_ROWS];
    for (size_t p = begin; p < end; p += PANELS) {
        const struct dse_matmul_job job = {.panels = b->weights + p * panel_bytes,
                                           .panel_bytes = panel_bytes,
                                           .n_panels = end - p < PANELS ? end - p : PANELS,
                                           .cols = COLS,
                                           .act = &b->act,
                                           .n_rows = n_rows,
                                           .out = out};
        kernel(&job);
    }
}

struct gemv_job {
    const struct kernel_bench *bench;
    dse_matmul_fn *kernel;
    size_t panel_bytes, n_panels;
};

static void run_gemv(void *context, int thread, int n_threads)
{
    const struct gemv_job *job = context;
    size_t begin, end;
    dse_split(job->n_panels, PANELS, thread, n_threads, &begin, &end);
    run_kernel(job->bench, job->kernel, job->panel_bytes, begin, end, 1);
}

static double seconds_since(uint64_t start)
{
    return (double)(dse_clock_ns() - start) * 1e-9;
}

static struct figures measure(const struct kernel_bench *b, const struct dse_kernel *k, enum dse_layout layout,
                              const struct dse_kernel *roof)
{
    const size_t panel_bytes = dse_matrix_panel_bytes(layout, COLS);
    const size_t cached = CACHED_BYTES / panel_bytes, all = MEMORY_BYTES / panel_bytes;
    const int repeats = (int)dse_opt_int(b->options, DSE_OPT_REPEAT);
    dse_matmul_fn *kernel = (dse_matmul_fn *)k->function;
    double gemm = 1e9, gemv = 1e9, rounds = 1e9;
    uint64_t macs = 0;
    for (int i = 0; i < 10 * repeats; i++) {
        uint64_t start = dse_clock_ns();
        run_kernel(b, kernel, panel_bytes, 0, cached, GEMM_ROWS);
        double s = seconds_since(start);
        if (s < gemm) gemm = s;
        start = dse_clock_ns();
        macs = ((dse_roof_fn *)roof->function)(20000);
        s = seconds_since(start) / 20000;
        if (s < rounds) rounds = s;
    }
    struct gemv_job job = {b, kernel, panel_bytes, all};
    for (int i = 0; i < repeats; i++) {
        uint64_t start = dse_clock_ns();
        dse_pool_run(b->pool, run_gemv, &job);
        double s = seconds_since(start);
        if (s < gemv) gemv = s;
    }
    return (struct figures){.gemm = (double)cached * DSE_PANEL_ROWS * COLS * GEMM_ROWS / (gemm * b->hz),
                            .roof = (double)macs / (rounds * b->hz),
                            .gemv = (double)all * (double)panel_bytes / gemv};
}

static enum dse_status print_row(struct kernel_bench *b, const struct dse_kernel *k, const struct figures *f,
                                 struct dse_error *err)
{
    const double of_roof = f->gemm / f->roof, of_bandwidth = f->gemv / b->bandwidth;
    if (strcmp(b->format, "md") == 0) {
        printf("| %s | %s | %.1f | %.1f | %.0f %% | %.1f | %.0f %% |\n", k->types, k->isa, f->gemm, f->roof,
               100 * of_roof, f->gemv * 1e-9, 100 * of_bandwidth);
    } else if (strcmp(b->format, "csv") == 0) {
        printf("%s,%s,%.2f,%.2f,%.3f,%.0f,%.3f,\"%s\",%.0f,%.0f\n", k->types, k->isa, f->gemm, f->roof, of_roof,
               f->gemv, of_bandwidth, dse_cpu_model(), b->hz, b->bandwidth);
    } else {
        json_t *row = json_pack("{s:s, s:s, s:f, s:f, s:f, s:f, s:s, s:f, s:f, s:i}", "layout", k->types, "isa", k->isa,
                                "macs_per_cycle", f->gemm, "roof_macs_per_cycle", f->roof, "bytes_per_second", f->gemv,
                                "share_of_bandwidth", of_bandwidth, "cpu", dse_cpu_model(), "hertz", b->hz,
                                "bandwidth_bytes_per_second", b->bandwidth, "threads", dse_pool_threads(b->pool));
        if (strcmp(b->format, "jsonl") == 0) {
            enum dse_status status = dse_print_json_line(row, err);
            fflush(stdout);
            return status;
        }
        return json_array_append_new(b->rows, row) == 0 ? DSE_OK : dse_fail_memory(err, 64, "a row");
    }
    fflush(stdout);
    return DSE_OK;
}

static void print_head(const struct kernel_bench *b)
{
    if (strcmp(b->format, "md") == 0)
        printf("cpu: %s, %.2f GHz, %d threads, %.1f GB/s read\n\n"
               "| layout | isa | MAC/cycle | roof | of roof | GB/s | of reading |\n|---|---|---|---|---|---|---|\n",
               dse_cpu_model(), b->hz * 1e-9, dse_pool_threads(b->pool), b->bandwidth * 1e-9);
    else if (strcmp(b->format, "csv") == 0)
        printf("layout,isa,macs_per_cycle,roof_macs_per_cycle,of_roof,bytes_per_second,of_bandwidth,cpu,hertz,"
               "bandwidth_bytes_per_second\n");
}

/* The roof of what the kernel multiplies in its instruction set, or else of the best one there is. */
static const struct dse_kernel *roof_of(const struct dse_kernel *kernel, enum dse_layout layout)
{
    const char *types = dse_layout_uses_s8(layout) ? "s8" : "f32";
    for (size_t i = 0; i < dse_kernel_count(); i++) {
        const struct dse_kernel *k = dse_kernel_at(i);
        if (strcmp(k->op, "roof") == 0 && strcmp(k->types, types) == 0 && strcmp(k->isa, kernel->isa) == 0) return k;
    }
    return dse_kernel_pick("roof", types);
}

static enum dse_status each_kernel(struct kernel_bench *b, struct dse_error *err)
{
    enum dse_status status = DSE_OK;
    for (int layout = 0; layout < DSE_LAYOUT_COUNT; layout++) {
        for (size_t i = 0; i < dse_kernel_count() && status == DSE_OK; i++) {
            const struct dse_kernel *k = dse_kernel_at(i);
            if (strcmp(k->op, "matmul") != 0 || strcmp(k->types, dse_layout_name((enum dse_layout)layout)) != 0 ||
                strcmp(k->isa, "scalar") == 0 || !dse_kernel_usable(k))
                continue;
            struct figures f = measure(b, k, (enum dse_layout)layout, roof_of(k, (enum dse_layout)layout));
            status = print_row(b, k, &f, err);
        }
    }
    return status;
}

static enum dse_status open_bench(struct kernel_bench *b, struct dse_error *err)
{
    int n_threads = (int)dse_opt_int(b->options, DSE_OPT_THREADS);
    if (n_threads == 0) n_threads = dse_cgroup_cpu_limit("").threads;
    enum dse_status status = dse_pool_create(n_threads, &b->pool, err);
    if (status == DSE_OK) status = dse_measure_bandwidth(b->pool, &b->bandwidth, err);
    if (status != DSE_OK) return status;
    const size_t act_bytes = dse_activation_bytes(GEMM_ROWS, COLS);
    b->weights = dse_alloc_pages(DSE_MEM_SCRATCH, MEMORY_BYTES + CACHED_BYTES);
    b->act_memory = dse_alloc_pages(DSE_MEM_SCRATCH, act_bytes);
    b->x = dse_calloc(DSE_MEM_SCRATCH, (size_t)GEMM_ROWS * COLS, sizeof *b->x);
    b->rows = json_array();
    if (b->weights == NULL || b->act_memory == NULL || b->x == NULL || b->rows == NULL)
        return dse_fail_memory(err, MEMORY_BYTES, "the weights of the benchmark");
    memset(b->weights, 0x22, MEMORY_BYTES + CACHED_BYTES); /* small numbers in every format */
    for (size_t i = 0; i < (size_t)GEMM_ROWS * COLS; i++)
        b->x[i] = (float)(i % 255) - 127;
    b->act.x = b->x;
    b->act.stride = COLS;
    dse_activation_place(&b->act, b->act_memory, GEMM_ROWS, COLS);
    dse_activation_quantize(&b->act, COLS, 0, GEMM_ROWS);
    b->hz = measure_hz();
    return DSE_OK;
}

enum dse_status dse_bench_kernel(const struct dse_options *options, struct dse_error *err)
{
    struct kernel_bench b = {.options = options, .format = dse_opt_text(options, DSE_OPT_OUTPUT_FORMAT)};
    enum dse_status status = open_bench(&b, err);
    if (status == DSE_OK) {
        print_head(&b);
        status = each_kernel(&b, err);
    }
    if (status == DSE_OK && strcmp(b.format, "json") == 0) status = dse_print_json(json_incref(b.rows), err);
    json_decref(b.rows);
    dse_free(b.x);
    dse_free_pages(b.act_memory);
    dse_free_pages(b.weights);
    dse_pool_free(b.pool);
    return status;
}
