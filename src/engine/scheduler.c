/* Admission, batch forming, growing and setting back. Called by engine.c and step.c on the engine thread only. */
#include "engine/scheduler.h"

#include "base/alloc.h"
#include "base/counters.h"

/* Tokens of output that an unbounded request is promised beyond what it has. */
#define HEADROOM_TOKENS 256
/* Least share of a step that a prompt gets when several are computed at once. */
#define MIN_SHARE_TOKENS 16

enum dse_status dse_scheduler_init(struct dse_scheduler *s, const struct dse_kv_layout *layout, int n_blocks,
                                   int max_concurrent, int max_sequences, struct dse_error *err)
{
    *s = (struct dse_scheduler){.max_concurrent = max_concurrent, .max_sequences = max_sequences};
    enum dse_status status = dse_kv_pool_init(&s->pool, layout, n_blocks, err);
    if (status != DSE_OK) return status;
    s->running = dse_calloc(DSE_MEM_SCRATCH, (size_t)max_sequences, sizeof(struct dse_task *));
    s->spans = dse_calloc(DSE_MEM_SCRATCH, (size_t)max_sequences, sizeof *s->spans);
    s->candidates = dse_calloc(DSE_MEM_SCRATCH, (size_t)max_sequences, sizeof(struct dse_sequence *));
    if (s->running == NULL || s->spans == NULL || s->candidates == NULL) {
        dse_scheduler_deinit(s);
        return dse_fail_memory(err, (size_t)max_sequences * sizeof *s->spans, "the scheduler");
    }
    return DSE_OK;
}

void dse_scheduler_deinit(struct dse_scheduler *s)
{
    dse_kv_pool_deinit(&s->pool);
    dse_free(s->running);
    dse_free(s->spans);
    dse_free(s->candidates);
    *s = (struct dse_scheduler){0};
}

void dse_scheduler_enqueue(struct dse_scheduler *s, struct dse_task *task)
{
    struct dse_task **link = &s->waiting;
    while (*link != NULL &&
           ((*link)->priority > task->priority || ((*link)->priority == task->priority && (*link)->id < task->id)))
        link = &(*link)->next;
    task->next = *link;
    *link = task;
    s->n_waiting++;
    atomic_store_explicit(&task->running, false, memory_order_relaxed);
}

static void remove_running(struct dse_scheduler *s, const struct dse_task *task)
{
    for (int i = 0; i < s->n_running; i++) {
        if (s->running[i] != task) continue;
        for (int j = i + 1; j < s->n_running; j++)
            s->running[j - 1] = s->running[j];
        s->n_running--;
        return;
    }
}

void dse_scheduler_remove(struct dse_scheduler *s, struct dse_task *task)
{
    for (struct dse_task **link = &s->waiting; *link != NULL; link = &(*link)->next) {
        if (*link != task) continue;
        *link = task->next;
        task->next = NULL;
        s->n_waiting--;
        return;
    }
    remove_running(s, task);
}

static struct dse_sequence *first_open(struct dse_task *task)
{
    for (int i = 0; i < task->n_choices; i++)
        if (!task->sequences[i].done) return &task->sequences[i];
    return NULL;
}

/* Blocks that a sequence is promised at admission, those of the shared prompt included. */
static int blocks_to_promise(const struct dse_sequence *sequence)
{
    int64_t stored = dse_task_stored_tokens(sequence->task);
    if (sequence->task->unbounded && stored > (int64_t)sequence->n_tokens + HEADROOM_TOKENS)
        stored = (int64_t)sequence->n_tokens + HEADROOM_TOKENS;
    return dse_kv_blocks_for(stored);
}

static bool promise_task(struct dse_scheduler *s, struct dse_task *task)
{
    const int shared = task->n_prompt / DSE_KV_BLOCK_TOKENS;
    const struct dse_sequence *lead = first_open(task);
    for (int i = 0; i < task->n_choices; i++) {
        struct dse_sequence *sequence = &task->sequences[i];
        if (sequence->done || (sequence != lead && task->max_new == 0)) continue;
        int blocks = blocks_to_promise(sequence) - (sequence == lead ? 0 : shared);
        if (dse_kv_promise(&s->pool, &sequence->kv, blocks)) continue;
        while (i-- > 0)
            dse_kv_release(&s->pool, &task->sequences[i].kv);
        return false;
    }
    return true;
}

void dse_scheduler_admit(struct dse_scheduler *s, uint64_t now_ns)
{
    while (s->waiting != NULL) {
        struct dse_task *task = s->waiting;
        /* A request with more choices than max_concurrent runs alone rather than never. */
        if (s->n_sequences > 0 && s->n_sequences + task->n_open > s->max_concurrent) return;
        if (!promise_task(s, task)) return;
        s->waiting = task->next;
        s->n_waiting--;
        task->next = NULL;
        s->running[s->n_running++] = task;
        s->n_sequences += task->n_open;
        atomic_store_explicit(&task->running, true, memory_order_relaxed);
        if (task->admitted_ns == 0) {
            task->admitted_ns = now_ns;
            dse_histogram_observe(DSE_HISTOGRAM_QUEUE, (double)(now_ns - task->submitted_ns) * 1e-9);
        }
    }
}

/* Back to the queue with everything it has said; prompt and output are computed again when there is room. */
static void set_back(struct dse_scheduler *s, struct dse_task *task)
{
    for (int i = 0; i < task->n_choices; i++)
        dse_kv_release(&s->pool, &task->sequences[i].kv);
    task->prefilled = false;
    dse_counter_add(DSE_COUNTER_PREEMPTIONS, 1);
    s->n_sequences -= task->n_open;
    remove_running(s, task);
    dse_scheduler_enqueue(s, task);
}

/* Who gives way when the pool is full: of the lowest priority the one admitted last. */
static struct dse_task *weakest_unbounded(const struct dse_scheduler *s)
{
    struct dse_task *weakest = NULL;
    for (int i = 0; i < s->n_running; i++) {
        struct dse_task *task = s->running[i];
        if (task->unbounded && (weakest == NULL || task->priority <= weakest->priority)) weakest = task;
    }
    return weakest;
}

static int pending(const struct dse_sequence *sequence)
{
    /* Until the choices part, their common sequence ends with the prompt. */
    int target = sequence->task->prefilled ? sequence->n_tokens : sequence->task->n_prompt;
    return target - sequence->kv.length;
}

static bool extend_decoding(struct dse_scheduler *s, struct dse_task *task)
{
    for (int i = 0; i < task->n_choices; i++) {
        struct dse_sequence *sequence = &task->sequences[i];
        if (!sequence->done && pending(sequence) == 1 &&
            !dse_kv_extend(&s->pool, &sequence->kv, (int64_t)sequence->kv.length + 1))
            return false;
    }
    return true;
}

static void push_span(struct dse_scheduler *s, struct dse_forward *forward, struct dse_sequence *sequence, int n_rows)
{
    struct dse_kv_view view = dse_kv_view(&s->pool, &sequence->kv);
    s->spans[s->n_spans++] = (struct dse_span){
        .sequence = sequence, .first_row = forward->rows.n_rows, .n_rows = n_rows};
    for (int i = 0; i < n_rows; i++) {
        int position = sequence->kv.length + i;
        dse_forward_push(forward, sequence->tokens[position], position, view);
    }
}

/* A block for the next token of every sequence, set-backs included: all before the first row is pushed, so that no row
 * loses its blocks. */
static void find_decode_memory(struct dse_scheduler *s)
{
    for (int t = 0; t < s->n_running;) {
        struct dse_task *task = s->running[t];
        if (!task->prefilled || extend_decoding(s, task)) {
            t++;
            continue;
        }
        struct dse_task *victim = weakest_unbounded(s);
        set_back(s, victim != NULL ? victim : task);
        t = 0; /* the others have moved up; who has its block keeps it */
    }
}

/* One row for every sequence that waits for its next token. */
static void form_decode(struct dse_scheduler *s, struct dse_forward *forward)
{
    find_decode_memory(s);
    for (int t = 0; t < s->n_running; t++) {
        struct dse_task *task = s->running[t];
        for (int i = 0; i < task->n_choices && task->prefilled; i++)
            if (!task->sequences[i].done && pending(&task->sequences[i]) == 1)
                push_span(s, forward, &task->sequences[i], 1);
    }
}

static int collect_candidates(struct dse_scheduler *s)
{
    int count = 0;
    for (int t = 0; t < s->n_running; t++) {
        struct dse_task *task = s->running[t];
        if (!task->prefilled) {
            s->candidates[count++] = first_open(task);
            continue;
        }
        for (int i = 0; i < task->n_choices; i++)
            if (!task->sequences[i].done && pending(&task->sequences[i]) > 1)
                s->candidates[count++] = &task->sequences[i];
    }
    return count;
}

/* Every prompt gets an equal share of the step, so that a short one is not held up by a long one; what short ones
 * leave over goes to the oldest. */
static void form_prefill(struct dse_scheduler *s, struct dse_forward *forward, int budget)
{
    int count = collect_candidates(s);
    if (count == 0) return;
    int share = budget / count < MIN_SHARE_TOKENS ? MIN_SHARE_TOKENS : budget / count;
    for (int i = 0; i < count; i++) {
        struct dse_sequence *sequence = s->candidates[i];
        int give = pending(sequence) < share ? pending(sequence) : share;
        sequence->allotted = give < budget ? give : budget;
        budget -= sequence->allotted;
    }
    for (int i = 0; i < count && budget > 0; i++) {
        struct dse_sequence *sequence = s->candidates[i];
        int more = pending(sequence) - sequence->allotted;
        if (more > budget) more = budget;
        sequence->allotted += more;
        budget -= more;
    }
    for (int i = 0; i < count; i++) {
        struct dse_sequence *sequence = s->candidates[i];
        if (sequence->allotted == 0) continue;
        /* Promised at admission, so this holds; were it ever not to, the step goes on without these rows. */
        if (!dse_kv_extend(&s->pool, &sequence->kv, (int64_t)sequence->kv.length + sequence->allotted)) {
            s->stuck = sequence->task;
            continue;
        }
        push_span(s, forward, sequence, sequence->allotted);
        s->n_prefill_rows += sequence->allotted;
    }
}

void dse_scheduler_form(struct dse_scheduler *s, struct dse_forward *forward, int prefill_tokens)
{
    dse_forward_clear(forward);
    s->n_spans = s->n_prefill_rows = 0;
    s->stuck = NULL;
    form_decode(s, forward);
    form_prefill(s, forward, prefill_tokens);
}

bool dse_scheduler_fork(struct dse_scheduler *s, struct dse_task *task)
{
    struct dse_sequence *lead = first_open(task);
    for (int i = 0; i < task->n_choices && task->max_new > 0; i++) {
        struct dse_sequence *sequence = &task->sequences[i];
        if (sequence == lead || sequence->done) continue;
        if (!dse_kv_fork(&s->pool, &lead->kv, &sequence->kv)) return false;
    }
    task->prefilled = true;
    return true;
}

void dse_scheduler_close_sequence(struct dse_scheduler *s, struct dse_sequence *sequence)
{
    if (atomic_load_explicit(&sequence->task->running, memory_order_relaxed)) s->n_sequences--;
    dse_kv_release(&s->pool, &sequence->kv);
}
