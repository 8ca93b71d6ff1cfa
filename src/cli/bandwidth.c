/* Measuring read bandwidth: each thread sums its share of a large buffer, in several streams at once, since a core gets
 * more out of the memory that way. */
#include "cli/bandwidth.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/thread.h"

#define BUFFER_BYTES ((size_t)512 << 20)
#define PASSES       5
#define STREAMS      4

struct read_job {
    const uint64_t *words;
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
        for (size_t s = 0; s < STREAMS; s++)
            for (size_t k = 0; k < 8; k++)
                lanes[s][k] ^= job->words[s * stream + i + k];
    uint64_t total = 0;
    for (size_t s = 0; s < STREAMS; s++)
        for (size_t k = 0; k < 8; k++)
            total ^= lanes[s][k];
    job->sink = total;
}

enum dse_status dse_measure_bandwidth(int n_threads, double *bytes_per_second, struct dse_error *err)
{
    struct dse_pool *pool;
    enum dse_status status = dse_pool_create(n_threads, &pool, err);
    if (status != DSE_OK) return status;
    struct read_job job = {.words = dse_alloc_pages(DSE_MEM_SCRATCH, BUFFER_BYTES)};
    if (job.words == NULL) {
        dse_pool_free(pool);
        return dse_fail_memory(err, BUFFER_BYTES, "the bandwidth measurement");
    }
    dse_pool_run(pool, fill, &job);
    *bytes_per_second = 0;
    for (int i = 0; i < PASSES; i++) {
        uint64_t start = dse_clock_ns();
        dse_pool_run(pool, sum, &job);
        double rate = (double)BUFFER_BYTES / ((double)(dse_clock_ns() - start) * 1e-9);
        if (rate > *bytes_per_second) *bytes_per_second = rate;
    }
    dse_free_pages((void *)job.words);
    dse_pool_free(pool);
    return DSE_OK;
}
