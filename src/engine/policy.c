/* Levels, ageing and fair shares: see policy.h. */
#include "engine/policy.h"

#include "base/alloc.h"

#define DEFAULT_QUANTUM 64

enum dse_status dse_policy_init(struct dse_policy *policy, const struct dse_engine_options *options, int max_tasks,
                                struct dse_error *err)
{
    *policy = (struct dse_policy){.quantum = DEFAULT_QUANTUM, .max_tenants = 2 * max_tasks};
    if (options != NULL) {
        policy->kind = options->priority_policy;
        policy->ageing_ns = options->priority_ageing_ns;
        if (options->priority_quantum > 0) policy->quantum = options->priority_quantum;
    }
    const size_t n = (size_t)policy->max_tenants;
    policy->tenants = dse_calloc(DSE_MEM_SCRATCH, n, sizeof *policy->tenants);
    if (policy->tenants == NULL) return dse_fail_memory(err, n * sizeof *policy->tenants, "the table of tenants");
    return DSE_OK;
}

void dse_policy_deinit(struct dse_policy *policy)
{
    dse_free(policy->tenants);
    *policy = (struct dse_policy){0};
}

static struct dse_tenant *find(const struct dse_policy *policy, uint64_t id)
{
    for (int i = 0; i < policy->n_tenants; i++)
        if (policy->tenants[i].id == id) return &policy->tenants[i];
    return NULL;
}

static void forget(struct dse_policy *policy, struct dse_tenant *tenant)
{
    *tenant = policy->tenants[--policy->n_tenants];
}

/* Makes room for one: of those without requests what the clock has passed says nothing any more; else the one that has
 * least beyond it. */
static void make_room(struct dse_policy *policy)
{
    struct dse_tenant *least = NULL;
    for (int i = policy->n_tenants - 1; i >= 0; i--) {
        struct dse_tenant *tenant = &policy->tenants[i];
        if (tenant->n_tasks == 0 && tenant->served <= policy->clock) forget(policy, tenant);
    }
    if (policy->n_tenants < policy->max_tenants) return;
    for (int i = 0; i < policy->n_tenants; i++) {
        struct dse_tenant *tenant = &policy->tenants[i];
        if (tenant->n_tasks == 0 && (least == NULL || tenant->served < least->served)) least = tenant;
    }
    if (least != NULL) forget(policy, least); /* there is one: max_tenants is twice what can have requests */
}

void dse_policy_enter(struct dse_policy *policy, struct dse_task *task, uint64_t now_ns)
{
    struct dse_tenant *tenant = find(policy, task->tenant);
    if (tenant == NULL) {
        make_room(policy);
        tenant = &policy->tenants[policy->n_tenants++];
        *tenant = (struct dse_tenant){.id = task->tenant};
    }
    if (tenant->n_tasks++ == 0 && tenant->served < policy->clock) tenant->served = policy->clock;
    task->active = false;
    task->waited_ns = 0;
    task->waits_since_ns = now_ns;
}

void dse_policy_leave(struct dse_policy *policy, struct dse_task *task)
{
    struct dse_tenant *tenant = find(policy, task->tenant);
    if (task->active) tenant->n_active--;
    tenant->n_tasks--;
}

void dse_policy_set_active(struct dse_policy *policy, struct dse_task *task, bool active, uint64_t now_ns)
{
    if (task->active == active) return;
    if (active)
        task->waited_ns += now_ns - task->waits_since_ns;
    else
        task->waits_since_ns = now_ns;
    task->active = active;
    find(policy, task->tenant)->n_active += active ? 1 : -1;
}

void dse_policy_charge(struct dse_policy *policy, const struct dse_task *task, int n_rows)
{
    uint64_t least = UINT64_MAX;
    find(policy, task->tenant)->served += (uint64_t)n_rows;
    for (int i = 0; i < policy->n_tenants; i++)
        if (policy->tenants[i].n_active > 0 && policy->tenants[i].served < least) least = policy->tenants[i].served;
    if (least != UINT64_MAX && least > policy->clock) policy->clock = least;
}

/* Of the choice that has most. */
static int produced(const struct dse_task *task)
{
    int most = 0;
    for (int i = 0; i < task->n_choices; i++)
        if (task->sequences[i].n_generated > most) most = task->sequences[i].n_generated;
    return most;
}

int64_t dse_policy_level(const struct dse_policy *policy, const struct dse_task *task, uint64_t now_ns)
{
    int64_t level = task->priority;
    if (policy->kind == DSE_POLICY_TOKEN) level -= produced(task) / policy->quantum;
    if (policy->ageing_ns > 0) {
        const uint64_t waited = task->waited_ns + (task->active ? 0 : now_ns - task->waits_since_ns);
        const int64_t highest = level > policy->top_priority ? level : policy->top_priority;
        level += (int64_t)(waited / policy->ageing_ns);
        if (level > highest) level = highest;
    }
    return level;
}

bool dse_policy_before(const struct dse_policy *policy, const struct dse_task *a, const struct dse_task *b,
                       uint64_t now_ns)
{
    const int64_t level_a = dse_policy_level(policy, a, now_ns), level_b = dse_policy_level(policy, b, now_ns);
    if (level_a != level_b) return level_a > level_b;
    if (a->active != b->active) return a->active;
    if (a->resident != b->resident) return a->resident;
    if (!a->resident && a->tenant != b->tenant) {
        const uint64_t served_a = find(policy, a->tenant)->served, served_b = find(policy, b->tenant)->served;
        if (served_a != served_b) return served_a < served_b;
    }
    return a->id < b->id;
}
