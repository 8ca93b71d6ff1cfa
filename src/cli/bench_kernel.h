/* `bench kernel`: every matmul variant that this CPU can run, against the roof of its instruction set and of memory. */
#ifndef DSE_CLI_BENCH_KERNEL_H
#define DSE_CLI_BENCH_KERNEL_H

#include "cli/options.h"

DSE_MUST_CHECK enum dse_status dse_bench_kernel(const struct dse_options *options, struct dse_error *err);

#endif
