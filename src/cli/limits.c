/* Measuring read bandwidth: each thread sums its share of a large buffer, in several streams at once, since a core gets
 * more out of the memory that way, and asks ahead for each in every second pass, which is better on some. And
 * multiply-adds: each thread runs the roof of the best instruction set. */
#include "cli/limits.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "kernels/dispatch.h"
#include "kernels/roof/roof.h"

#define BUFFER_BYTES ((size_t)512 << 20)
#define PASSES       6
#define STREAMS      4
#define AHEAD_WORDS  96
#define ROOF_ROUNDS  50000

struct read_job {
    const uint64_t *words;
    size_t ahead;           /* words that a stream is asked for ahead */
    volatile uint64_t sink; /* keeps the sums alive */
};

static void fill(void *context, int thread, int n_threads)
{
    size_t begin, end;
    dse_split(BUFFER_BYTES, 4096, thread, n_threads, &begin, &end);
    memset((char *)((struct read_job *)context)->words + begin, thread + 1, end - begin);
}

static void sum(void *context, int thread, int n_threads)
{
    struct read_job *job = context;
    size_t begin, end;
    dse_split(BUFFER_BYTES / sizeof(uint64_t), 512, thread, n_threads, &begin, &end);
    const size_t stream = (end - begin) / STREAMS;
    uint64_t lanes[STREAMS][8] = {0}; /* independent sums that a compiler turns into vectors, a cache line each */
    for (size_t i = begin; i + 8 <= begin + stream; i += 8)
        for (size_t s = 0; s < STREAMS; s++) {
            const uint64_t *at = job->words + s * stream + i;
            __builtin_prefetch(at + job->ahead);
            for (size_t k = 0; k < 8; k++)
                lanes[s][k] ^= at[k];
        }
    uint64_t total = 0;
    for (size_t s = 0; s < STREAMS; s++)
        for (size_t k = 0; k < 8; k++)
            total ^= lanes[s][k];
    job->sink = total;
}

enum dse_status dse_measure_bandwidth(struct dse_pool *pool, double *bytes_per_second, struct dse_error *err)
{
    struct read_job job = {.words = dse_alloc_pages(DSE_MEM_SCRATCH, BUFFER_BYTES)};
    if (job.words == NULL) return dse_fail_memory(err, BUFFER_BYTES, "the bandwidth measurement");
    dse_pool_run(pool, fill, &job);
    *bytes_per_second = 0;
    for (int i = 0; i < PASSES; i++) {
        job.ahead = i % 2 != 0 ? AHEAD_WORDS : 0;
        uint64_t start = dse_clock_ns();
        dse_pool_run(pool, sum, &job);
        double rate = (double)BUFFER_BYTES / ((double)(dse_clock_ns() - start) * 1e-9);
        if (rate > *bytes_per_second) *bytes_per_second = rate;
    }
    dse_free_pages((void *)job.words);
    return DSE_OK;
}

struct multiply_job {
    dse_roof_fn *roof;
    atomic_uint_least64_t macs;
};

static void multiply(void *context, int thread, int n_threads)
{
    (void)thread, (void)n_threads;
    struct multiply_job *job = context;
    atomic_fetch_add(&job->macs, job->roof(ROOF_ROUNDS) * ROOF_ROUNDS);
}

double dse_measure_macs(struct dse_pool *pool)
{
    struct multiply_job job = {.roof = (dse_roof_fn *)dse_kernel_pick("roof", "s8")->function};
    double best = 0;
    for (int i = 0; i < 10 * PASSES; i++) {
        atomic_store(&job.macs, 0);
        uint64_t start = dse_clock_ns();
        dse_pool_run(pool, multiply, &job);
        double rate = (double)atomic_load(&job.macs) / ((double)(dse_clock_ns() - start) * 1e-9);
        if (rate > best) best = rate;
    }
    return best;
}
