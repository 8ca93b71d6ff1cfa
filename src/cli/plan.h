/* Engine options from flags, and the printed memory plan. */
#ifndef DSE_CLI_PLAN_H
#define DSE_CLI_PLAN_H

#include <dse/dse.h>

#include "cli/options.h"

void dse_cli_engine_options(const struct dse_options *options, int max_concurrent, int max_queue,
                            struct dse_engine_options *out);
/* Model, threads and memory on standard error. */
void dse_cli_print_plan(const struct dse_model *model, const struct dse_memory_plan *plan);

#endif
