/* Who has a place in the batch: admission, pausing and setting back. Called by engine.c and scheduler.c on the engine
 * thread only.
 *
 * Every turn walks the requests in the order of policy.h. A request that finds no place among those before it is paused:
 * it keeps its blocks, gets no rows, and goes on where it was. Blocks are taken from requests that come later, first the
 * last one, and only if that is enough: it is set back, and what the prefix cache does not keep of it is computed again.
 */
#include <limits.h>

#include "base/counters.h"
#include "engine/prefix_tier.h"
#include "engine/scheduler.h"

/* Tokens of output that an unbounded request is promised beyond what it has. */
#define HEADROOM_TOKENS 256

/* In the order of arrival, so that who was set back stands where it stood. */
static void insert(struct dse_scheduler *s, struct dse_task *task)
{
    struct dse_task **link = &s->waiting;
    while (*link != NULL && (*link)->id < task->id)
        link = &(*link)->next;
    task->next = *link;
    *link = task;
    s->n_waiting++;
}

static bool take_waiting(struct dse_scheduler *s, const struct dse_task *task)
{
    for (struct dse_task **link = &s->waiting; *link != NULL; link = &(*link)->next) {
        if (*link != task) continue;
        *link = task->next;
        s->n_waiting--;
        return true;
    }
    return false;
}

static void take_resident(struct dse_scheduler *s, const struct dse_task *task)
{
    for (int i = 0; i < s->n_residents; i++) {
        if (s->residents[i] != task) continue;
        for (int j = i + 1; j < s->n_residents; j++)
            s->residents[j - 1] = s->residents[j];
        s->n_residents--;
        return;
    }
}

void dse_scheduler_enqueue(struct dse_scheduler *s, struct dse_task *task, uint64_t now_ns)
{
    dse_policy_enter(&s->policy, task, now_ns);
    insert(s, task);
}

void dse_scheduler_remove(struct dse_scheduler *s, struct dse_task *task)
{
    if (!take_waiting(s, task)) take_resident(s, task);
    dse_policy_leave(&s->policy, task);
}

static void set_active(struct dse_scheduler *s, struct dse_task *task, bool active)
{
    if (task->active == active) return;
    if (!active) dse_counter_add(DSE_COUNTER_PAUSES, 1);
    dse_policy_set_active(&s->policy, task, active, s->now_ns);
    atomic_store_explicit(&task->running, active, memory_order_relaxed);
}

/* Blocks that a sequence is promised at admission, those of the shared prompt included. */
static int blocks_to_promise(const struct dse_sequence *sequence)
{
    int64_t stored = dse_task_stored_tokens(sequence->task);
    if (sequence->task->unbounded && stored > (int64_t)sequence->n_tokens + HEADROOM_TOKENS)
        stored = (int64_t)sequence->n_tokens + HEADROOM_TOKENS;
    return dse_kv_blocks_for(stored);
}

/* Tokens of the lead that need not be computed if they are in the cache: not the last, whose logits are wanted, and not
 * those whose logits or hidden states are promised to the client. Choices that have parted begin with what they have in
 * common. */
static int reusable_tokens(const struct dse_sequence *lead)
{
    const struct dse_task *task = lead->task;
    int tokens = (task->n_open == 1 ? lead->n_tokens : task->n_prompt) - 1;
    if (task->prompt_logprobs && task->n_announced < task->n_prompt && tokens > task->n_announced - 1)
        tokens = task->n_announced - 1;
    if (task->hidden_states && tokens > task->n_hidden) tokens = task->n_hidden;
    return tokens;
}

static void release_task(struct dse_scheduler *s, struct dse_task *task)
{
    for (int i = 0; i < task->n_choices; i++)
        dse_kv_release(&s->pool, &task->sequences[i].kv);
}

/* Blocks that a choice is to be promised beyond what it has; those of the prompt are the lead's. */
static int blocks_wanted(const struct dse_task *task, const struct dse_sequence *sequence,
                         const struct dse_sequence *lead)
{
    if (sequence->done || (sequence != lead && task->max_new == 0)) return 0;
    return blocks_to_promise(sequence) - (sequence == lead ? lead->kv.n_blocks : task->n_prompt / DSE_KV_BLOCK_TOKENS);
}

static bool promise_task(struct dse_scheduler *s, struct dse_task *task)
{
    const struct dse_sequence *lead = dse_task_lead(task);
    for (int i = 0; i < task->n_choices; i++) {
        int blocks = blocks_wanted(task, &task->sequences[i], lead);
        if (blocks <= 0 || dse_kv_promise(&s->pool, &task->sequences[i].kv, blocks)) continue;
        for (int j = 0; j < i; j++)
            dse_kv_unpromise(&s->pool, &task->sequences[j].kv);
        return false;
    }
    return true;
}

/* What of the task is known already, before anything is promised for the rest, so that it is not taken away for that.
 * true: more is being read from files, and the task keeps what it has. */
static bool look_up(struct dse_scheduler *s, struct dse_task *task)
{
    struct dse_sequence *lead = dse_task_lead(task);
    int tokens = reusable_tokens(lead);
    dse_kv_attach(&s->pool, &lead->kv, lead->tokens, tokens);
    task->loading = s->disk != NULL && !task->load_failed &&
                    dse_prefix_tier_fetch(&s->pool, s->disk, &lead->kv, lead->tokens, tokens, task->id);
    s->n_loads += task->loading;
    return task->loading;
}

void dse_scheduler_collect(struct dse_scheduler *s)
{
    struct dse_prefix_load load;
    while (s->disk != NULL && dse_prefix_disk_loaded(s->disk, &load)) {
        s->n_loads--;
        struct dse_task *task = s->waiting;
        while (task != NULL && !(task->loading && task->id == load.task))
            task = task->next;
        struct dse_sequence *lead = task != NULL ? dse_task_lead(task) : NULL;
        int adopted = dse_prefix_tier_adopt(&s->pool, &load, lead != NULL ? &lead->kv : NULL,
                                            lead != NULL ? lead->tokens : NULL);
        if (task == NULL) continue;
        task->loading = false;
        task->load_failed = adopted < load.n; /* never asks for it again and again */
    }
}

/* Tasks that wait with what was read for them give it up for one in front of them. */
static bool release_waiting(struct dse_scheduler *s, const struct dse_task *but)
{
    bool any = false;
    for (struct dse_task *task = s->waiting; task != NULL; task = task->next) {
        if (task == but || task->loading || dse_task_lead(task)->kv.n_blocks == 0) continue;
        release_task(s, task);
        any = true;
    }
    return any;
}

/* What was found for a task that is admitted. */
static void note_reuse(struct dse_scheduler *s, struct dse_task *task)
{
    const int found = dse_task_lead(task)->kv.length;
    /* One that was set back may find all of its prompt, and more. */
    if (found >= task->n_prompt) task->prefilled = true;
    if (found > atomic_load_explicit(&task->shown_processed, memory_order_relaxed))
        atomic_store_explicit(&task->shown_processed, found < task->n_prompt ? found : task->n_prompt,
                              memory_order_relaxed);
    if (task->admitted_ns != 0 || s->pool.cache.n_blocks == 0) return;
    task->n_cached = found;
    dse_counter_add(DSE_COUNTER_PREFIX_QUERY_TOKENS, (uint64_t)task->n_prompt);
    dse_counter_add(DSE_COUNTER_PREFIX_HIT_TOKENS, (uint64_t)found);
}

/* Back to the queue with everything it has said. */
static void set_back(struct dse_scheduler *s, struct dse_task *task)
{
    release_task(s, task);
    if (task->active) s->n_sequences -= task->n_open;
    set_active(s, task, false);
    task->prefilled = task->resident = false;
    take_resident(s, task);
    insert(s, task);
    dse_counter_add(DSE_COUNTER_PREEMPTIONS, 1);
}

/* The last of those that this turn has given no place yet, or NULL. */
static struct dse_task *last_unplaced(const struct dse_scheduler *s)
{
    struct dse_task *last = NULL;
    for (int i = 0; i < s->n_residents; i++) {
        struct dse_task *task = s->residents[i];
        if (!task->considered && (last == NULL || dse_policy_before(&s->policy, last, task, s->now_ns))) last = task;
    }
    return last;
}

static int blocks_held(const struct dse_task *task)
{
    int blocks = 0;
    for (int i = 0; i < task->n_choices; i++)
        blocks += task->sequences[i].kv.n_blocks + task->sequences[i].kv.promised;
    return blocks;
}

/* Whether taking from all that come later could be enough. */
static bool could_be_promised(const struct dse_scheduler *s, const struct dse_task *task)
{
    const struct dse_sequence *lead = dse_task_lead((struct dse_task *)task);
    int need = 0, there = dse_kv_pool_available(&s->pool);
    for (int i = 0; i < task->n_choices; i++)
        need += blocks_wanted(task, &task->sequences[i], lead);
    for (int i = 0; i < s->n_residents; i++)
        if (!s->residents[i]->considered) there += blocks_held(s->residents[i]);
    return need <= there;
}

static bool find_memory(struct dse_scheduler *s, struct dse_task *task)
{
    while (!promise_task(s, task)) {
        if (release_waiting(s, task)) continue;
        struct dse_task *victim = last_unplaced(s);
        if (victim == NULL || !could_be_promised(s, task)) return false;
        set_back(s, victim);
    }
    return true;
}

/* A waiting task becomes resident; false: not now. */
static bool admit(struct dse_scheduler *s, struct dse_task *task)
{
    if (look_up(s, task)) return false;
    if (!find_memory(s, task)) {
        release_task(s, task); /* also what was found */
        return false;
    }
    take_waiting(s, task);
    task->next = NULL;
    task->resident = true;
    s->residents[s->n_residents++] = task;
    note_reuse(s, task);
    if (task->admitted_ns == 0) {
        task->admitted_ns = s->now_ns;
        dse_histogram_observe(DSE_HISTOGRAM_QUEUE, (double)(s->now_ns - task->submitted_ns) * 1e-9);
    }
    return true;
}

/* The first in order that was not considered yet; only those that are active, if asked so. */
static struct dse_task *first_unconsidered(const struct dse_scheduler *s, bool active_only)
{
    struct dse_task *first = NULL;
    for (int i = 0; i < s->n_residents; i++) {
        struct dse_task *task = s->residents[i];
        if (task->considered || (active_only && !task->active)) continue;
        if (first == NULL || dse_policy_before(&s->policy, task, first, s->now_ns)) first = task;
    }
    for (struct dse_task *task = active_only ? NULL : s->waiting; task != NULL; task = task->next) {
        if (task->considered || task->loading) continue;
        if (first == NULL || dse_policy_before(&s->policy, task, first, s->now_ns)) first = task;
    }
    return first;
}

static void begin_turn(struct dse_scheduler *s, struct dse_task *task)
{
    task->considered = task->placed = false;
    if (task->priority > s->policy.top_priority) s->policy.top_priority = task->priority;
}

void dse_scheduler_admit(struct dse_scheduler *s, uint64_t now_ns)
{
    bool active_only = false;
    struct dse_task *task;
    s->now_ns = now_ns;
    s->n_sequences = 0;
    s->policy.top_priority = INT_MIN;
    for (int i = 0; i < s->n_residents; i++)
        begin_turn(s, s->residents[i]);
    for (task = s->waiting; task != NULL; task = task->next)
        begin_turn(s, task);
    /* Once one finds no place, nobody who has none yet may pass it; who has one may keep it. */
    while ((task = first_unconsidered(s, active_only)) != NULL) {
        task->considered = true;
        /* A request with more choices than max_concurrent runs alone rather than never. */
        if (s->n_sequences > 0 && s->n_sequences + task->n_open > s->max_concurrent) {
            active_only = true;
            continue;
        }
        if (!task->resident && !admit(s, task)) {
            active_only |= !task->loading;
            continue;
        }
        task->placed = true;
        s->n_sequences += task->n_open;
    }
    for (int i = 0; i < s->n_residents; i++)
        set_active(s, s->residents[i], s->residents[i]->placed);
}

void dse_scheduler_make_room(struct dse_scheduler *s, struct dse_task *task)
{
    struct dse_task *victim = NULL;
    if (release_waiting(s, NULL)) return;
    for (int i = 0; i < s->n_residents; i++) {
        struct dse_task *other = s->residents[i];
        if (other->active && !other->unbounded) continue;
        if (victim == NULL || dse_policy_before(&s->policy, victim, other, s->now_ns)) victim = other;
    }
    set_back(s, victim != NULL ? victim : task);
}
