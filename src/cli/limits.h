/* What this machine can do at most, measured beside each benchmark: rates are a share of it. */
#ifndef DSE_CLI_LIMITS_H
#define DSE_CLI_LIMITS_H

#include "base/error.h"
#include "base/thread.h"

/* Bytes per second that all threads read together from memory far larger than the caches; best of a few passes, each
 * timed from the first thread's start to the last one's end. Takes about half a second and 512 MiB for that time. */
DSE_MUST_CHECK enum dse_status dse_measure_bandwidth(struct dse_pool *pool, double *bytes_per_second,
                                                     struct dse_error *err);
/* 8-bit multiply-adds per second of all threads together, as the matmul kernels make them. */
double dse_measure_macs(struct dse_pool *pool);

#endif
