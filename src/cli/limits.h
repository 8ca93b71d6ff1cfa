/* What this machine can do at most, measured beside each benchmark: rates are a share of it. */
#ifndef DSE_CLI_LIMITS_H
#define DSE_CLI_LIMITS_H

#include "base/error.h"
#include "base/thread.h"

struct dse_limits {
    double bandwidth; /* bytes per second that all threads read together from memory far larger than the caches; best of
                       * a few passes, each timed from the first thread's start to the last one's end */
    double macs;      /* 8-bit multiply-adds per second of all threads together, as the matmul kernels make them */
};

/* Takes about half a second and 512 MiB for that time. */
DSE_MUST_CHECK enum dse_status dse_measure_limits(struct dse_pool *pool, struct dse_limits *limits,
                                                  struct dse_error *err);

#endif
