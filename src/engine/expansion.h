/* Which rows of a step attend in expanded form (--numerics fast). Called by forward_deepseek.c. */
#ifndef DSE_ENGINE_EXPANSION_H
#define DSE_ENGINE_EXPANSION_H

#include "device/device.h"

/* Whether n rows of one sequence, the first at this position, take fewer multiplications in expanded form. */
bool dse_expansion_pays(const struct dse_latent_config *latent, int64_t position, int64_t n);

/* The rows from `first` on that attend in the same form: how many, and whether that is the expanded one, whose rows are
 * of one sequence, at consecutive positions. */
struct dse_row_run {
    int n_rows;
    bool expanded;
};
struct dse_row_run dse_expansion_run(const struct dse_config *config, const struct dse_rows *rows, int first);

#endif
