/* The order in which requests get the places of the batch: levels of urgency, and fairness between tenants.
 *
 * A request's level is its priority, under DSE_POLICY_TOKEN minus one for every `quantum` tokens that it has produced, plus
 * one for every ageing_ns that it has waited: as far as the most urgent priority among those present, so that nobody
 * waits for ever. Higher levels go first. Within a level nobody is interrupted: who is in the batch stays, who was set
 * aside comes before who has not begun, then the tenant that was served least, then the older request.
 *
 * Served is measured against a clock that stands at the least served tenant in the batch and never goes back. Who
 * arrives begins at the clock: it has no claim on what others got while it was away. But what it was served beyond the
 * clock is not forgotten when it leaves, or one that sends a request at a time would always be the least served, and
 * who has much behind it would wait for as long as there are such (start-time fair queueing; Goyal, Vin, Cheng 1996).
 *
 * Without ageing, DSE_POLICY_REQUEST is a total order that nothing but arrivals changes: an urgent request waits for the
 * step in progress at most, however long the others still run. DSE_POLICY_TOKEN bounds what an urgent request that does
 * not end takes from the others. Called by scheduler.c; time is an argument, so that a schedule can be tested.
 */
#ifndef DSE_ENGINE_POLICY_H
#define DSE_ENGINE_POLICY_H

#include <dse/dse.h>

#include "engine/task.h"

/* A client, or a key, that has requests in the engine, or had them and was served more than the clock says. */
struct dse_tenant {
    uint64_t id;
    int n_tasks, n_active;
    uint64_t served; /* rows computed for it, plus what it was given for not having been here */
};

struct dse_policy {
    enum dse_priority_policy kind;
    int quantum;                /* tokens per level, DSE_POLICY_TOKEN */
    uint64_t ageing_ns;         /* 0: no ageing */
    int top_priority;           /* of all that are present, dse_scheduler_admit sets it */
    struct dse_tenant *tenants; /* [max_tenants], n_tenants in use */
    int n_tenants, max_tenants; /* more than can have requests at once; those that have none make way */
    uint64_t clock;             /* rows: where a tenant that arrives begins */
};

/* max_tasks: requests in the engine at once. */
DSE_MUST_CHECK enum dse_status dse_policy_init(struct dse_policy *policy, const struct dse_engine_options *options,
                                               int max_tasks, struct dse_error *err);
void dse_policy_deinit(struct dse_policy *policy); /* safe on a zeroed struct */

/* A task comes and goes; in between it may be active or not. */
void dse_policy_enter(struct dse_policy *policy, struct dse_task *task, uint64_t now_ns);
void dse_policy_leave(struct dse_policy *policy, struct dse_task *task);
/* Whether a task has a place in the batch from now on. */
void dse_policy_set_active(struct dse_policy *policy, struct dse_task *task, bool active, uint64_t now_ns);
/* Rows that were computed for a task. */
void dse_policy_charge(struct dse_policy *policy, const struct dse_task *task, int n_rows);

/* The level that a task has now. */
int64_t dse_policy_level(const struct dse_policy *policy, const struct dse_task *task, uint64_t now_ns);
/* Whether a goes before b; a total order. */
bool dse_policy_before(const struct dse_policy *policy, const struct dse_task *a, const struct dse_task *b,
                       uint64_t now_ns);

#endif
