/* A few threads that run jobs in order of arrival: parsing, rendering and tokenizing of requests, away from the I/O
 * thread. Jobs may take seconds (a hostile template), so nothing that must answer at once is put here. */
#ifndef DSE_SERVER_WORKERS_H
#define DSE_SERVER_WORKERS_H

#include <stdbool.h>

#include "base/error.h"

struct dse_workers;
typedef void dse_job_fn(void *argument);

/* Part of what its argument points to, so that posting needs no memory. The workers' from post until fn is called. */
struct dse_job {
    struct dse_job *next;
    dse_job_fn *fn;
    void *argument;
};

DSE_MUST_CHECK enum dse_status dse_workers_create(int n_threads, struct dse_workers **out, struct dse_error *err);
/* false: stopped, nothing is taken. */
bool dse_workers_post(struct dse_workers *workers, struct dse_job *job, dse_job_fn *fn, void *argument);
/* Something is queued or running. */
bool dse_workers_busy(struct dse_workers *workers);
/* Runs what is queued, then joins. */
void dse_workers_stop(struct dse_workers *workers);
/* Stops them first. Nobody may post any more. */
void dse_workers_free(struct dse_workers *workers);

#endif
