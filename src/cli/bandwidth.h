/* The read bandwidth of this machine, measured beside each benchmark: decode rates are a share of it. */
#ifndef DSE_CLI_BANDWIDTH_H
#define DSE_CLI_BANDWIDTH_H

#include "base/error.h"

/* Bytes per second that n_threads read together from memory far larger than the caches; best of a few passes, each
 * timed from the first thread's start to the last one's end. Takes about half a second and 512 MiB for that time. */
DSE_MUST_CHECK enum dse_status dse_measure_bandwidth(int n_threads, double *bytes_per_second, struct dse_error *err);

#endif
