/* Which rows make the next step. Called by engine.c and step.c on the engine thread only; who takes part is decided in
 * admission.c. */
#include "engine/scheduler.h"

#include "base/alloc.h"
#include "base/counters.h"

/* Least share of a step that a prompt gets when several are computed at once. */
#define MIN_SHARE_TOKENS 16

enum dse_status dse_scheduler_init(struct dse_scheduler *s, const struct dse_kv_layout *layout, int n_blocks,
                                   int max_concurrent, int max_sequences, int max_tasks,
                                   const struct dse_engine_options *options, struct dse_error *err)
{
    *s = (struct dse_scheduler){.max_concurrent = max_concurrent, .max_sequences = max_sequences};
    if (options != NULL) s->speculation.max_draft = options->max_draft;
    enum dse_status status = dse_kv_pool_init(&s->pool, layout, n_blocks, err);
    if (status == DSE_OK) status = dse_policy_init(&s->policy, options, max_tasks, err);
    if (status != DSE_OK) {
        dse_scheduler_deinit(s);
        return status;
    }
    s->residents = dse_calloc(DSE_MEM_SCRATCH, (size_t)max_tasks, sizeof(struct dse_task *));
    s->spans = dse_calloc(DSE_MEM_SCRATCH, (size_t)max_sequences, sizeof *s->spans);
    s->candidates = dse_calloc(DSE_MEM_SCRATCH, (size_t)max_sequences, sizeof(struct dse_sequence *));
    if (s->residents == NULL || s->spans == NULL || s->candidates == NULL) {
        dse_scheduler_deinit(s);
        return dse_fail_memory(err, (size_t)max_tasks * sizeof *s->spans, "the scheduler");
    }
    return DSE_OK;
}

void dse_scheduler_deinit(struct dse_scheduler *s)
{
    dse_kv_pool_deinit(&s->pool);
    dse_policy_deinit(&s->policy);
    dse_free(s->residents);
    dse_free(s->spans);
    dse_free(s->candidates);
    *s = (struct dse_scheduler){0};
}

int dse_scheduler_active(const struct dse_scheduler *s)
{
    int n = 0;
    for (int i = 0; i < s->n_residents; i++)
        n += s->residents[i]->active;
    return n;
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
    const struct dse_adapter_set *adapters = &sequence->task->adapters;
    dse_forward_adapt(forward, forward->rows.n_rows - n_rows, adapters->parts, adapters->count);
}

/* A block for the next token of every sequence, set-backs included: all before the first row is pushed, so that no row
 * loses its blocks. */
static void find_decode_memory(struct dse_scheduler *s)
{
    for (int t = 0; t < s->n_residents;) {
        struct dse_task *task = s->residents[t];
        if (!task->active || !task->prefilled || extend_decoding(s, task)) {
            t++;
            continue;
        }
        dse_scheduler_make_room(s, task);
        t = 0; /* the others have moved up; who has its block keeps it */
    }
}

static int collect_candidates(struct dse_scheduler *s)
{
    int count = 0;
    for (int t = 0; t < s->n_residents; t++) {
        struct dse_task *task = s->residents[t];
        if (!task->active) continue;
        if (!task->prefilled) {
            s->candidates[count++] = dse_task_lead(task);
            continue;
        }
        for (int i = 0; i < task->n_choices; i++)
            if (!task->sequences[i].done && pending(&task->sequences[i]) > 1)
                s->candidates[count++] = &task->sequences[i];
    }
    return count;
}

static bool decodes(const struct dse_sequence *sequence)
{
    return sequence->task->active && sequence->task->prefilled && !sequence->done && pending(sequence) == 1;
}

static int count_decoding(const struct dse_scheduler *s)
{
    int count = 0;
    for (int t = 0; t < s->n_residents; t++)
        for (int i = 0; i < s->residents[t]->n_choices; i++)
            count += decodes(&s->residents[t]->sequences[i]);
    return count;
}

/* Tokens behind the last one of a sequence that are worth computing with it; nobody loses a block for them. */
static int draft(struct dse_scheduler *s, struct dse_sequence *sequence, int room)
{
    const int left = sequence->task->max_new - sequence->n_generated - 1;
    int n = dse_speculate_length(&s->speculation, &sequence->drafts, s->n_decode_rows, room < left ? room : left);
    if (n > 0) n = dse_speculate_find(sequence->tokens, sequence->n_tokens, n);
    while (n > 0 && !dse_kv_extend(&s->pool, &sequence->kv, (int64_t)sequence->n_tokens + n))
        n--;
    sequence->all_drafted += n;
    dse_counter_add(DSE_COUNTER_DRAFT_TOKENS, (uint64_t)n);
    return n;
}

/* One row for every sequence that waits for its next token, and rows for tokens that may come after it unless prompts
 * have a better use for them. */
static void form_decode(struct dse_scheduler *s, struct dse_forward *forward, bool alone)
{
    s->n_decode_rows = count_decoding(s);
    for (int t = 0; t < s->n_residents; t++) {
        struct dse_task *task = s->residents[t];
        for (int i = 0; i < task->n_choices; i++) {
            struct dse_sequence *sequence = &task->sequences[i];
            if (!decodes(sequence)) continue;
            const int room = forward->max_rows - s->n_decode_rows - s->n_draft_rows;
            sequence->n_taken = 0;
            sequence->n_drafted = alone ? draft(s, sequence, room) : 0;
            s->n_draft_rows += sequence->n_drafted;
            push_span(s, forward, sequence, 1 + sequence->n_drafted);
        }
    }
}

/* By level, highest first; within one as they were admitted. */
static void sort_candidates(struct dse_scheduler *s, int count)
{
    for (int i = 1; i < count; i++) {
        struct dse_sequence *sequence = s->candidates[i];
        const int64_t level = dse_policy_level(&s->policy, sequence->task, s->now_ns);
        int at = i;
        for (; at > 0 && dse_policy_level(&s->policy, s->candidates[at - 1]->task, s->now_ns) < level; at--)
            s->candidates[at] = s->candidates[at - 1];
        s->candidates[at] = sequence;
    }
}

/* Every prompt of a level gets an equal share of the budget, so that a short one is not held up by a long one; what
 * short ones leave over goes to the oldest. Returns what is left. */
static int allot(struct dse_sequence **candidates, int count, int budget)
{
    int share = budget / count < MIN_SHARE_TOKENS ? MIN_SHARE_TOKENS : budget / count;
    for (int i = 0; i < count; i++) {
        int give = pending(candidates[i]) < share ? pending(candidates[i]) : share;
        candidates[i]->allotted = give < budget ? give : budget;
        budget -= candidates[i]->allotted;
    }
    for (int i = 0; i < count && budget > 0; i++) {
        int more = pending(candidates[i]) - candidates[i]->allotted;
        if (more > budget) more = budget;
        candidates[i]->allotted += more;
        budget -= more;
    }
    return budget;
}

/* count: of candidates. */
static void form_prefill(struct dse_scheduler *s, struct dse_forward *forward, int count, int budget)
{
    int next;
    sort_candidates(s, count);
    for (int first = 0; first < count; first = next) {
        const int64_t level = dse_policy_level(&s->policy, s->candidates[first]->task, s->now_ns);
        for (next = first + 1; next < count; next++)
            if (dse_policy_level(&s->policy, s->candidates[next]->task, s->now_ns) != level) break;
        budget = allot(s->candidates + first, next - first, budget);
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

void dse_scheduler_form(struct dse_scheduler *s, struct dse_forward *forward, const struct dse_chunk *chunk)
{
    dse_forward_clear(forward);
    s->n_spans = s->n_prefill_rows = s->n_decode_rows = s->n_draft_rows = 0;
    s->stuck = NULL;
    find_decode_memory(s);
    const int count = collect_candidates(s);
    form_decode(s, forward, count == 0);
    form_prefill(s, forward, count, dse_chunk_tokens(chunk, s->n_decode_rows));
}

bool dse_scheduler_fork(struct dse_scheduler *s, struct dse_task *task)
{
    struct dse_sequence *lead = dse_task_lead(task);
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
    if (sequence->task->active) s->n_sequences--;
    dse_kv_release(&s->pool, &sequence->kv);
}
