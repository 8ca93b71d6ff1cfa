/* One turn of the engine: form the batch, compute it, sample, tell the clients.
 *
 * Runs on the engine thread. Computing and sampling never allocate: a guard forbids it, lifted only while a callback
 * runs. Callbacks do what is quick, and of the engine they call dse_engine_cancel at most, so no lock is held around them.
 */
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/counters.h"
#include "engine/engine_internal.h"

static void guard(struct dse_engine *engine, bool on)
{
    if (engine->guarded == on) return;
    engine->guarded = on;
    if (on)
        dse_alloc_forbid_begin();
    else
        dse_alloc_forbid_end();
}

static bool emit(struct dse_engine *engine, const struct dse_task *task, struct dse_event *event)
{
    bool guarded = engine->guarded;
    event->request = task->id;
    guard(engine, false);
    const uint64_t begin = dse_clock_ns();
    bool more = task->on_event(task->user, event);
    dse_step_meter_delivered(&engine->meter, begin);
    guard(engine, guarded);
    return more;
}

static struct dse_timings timings_of(const struct dse_sequence *sequence, uint64_t now)
{
    const struct dse_task *task = sequence->task;
    struct dse_timings t = {.n_prompt = task->n_prompt,
                            .n_cached = task->n_cached,
                            .n_generated = sequence->n_generated,
                            .n_drafted = sequence->all_drafted,
                            .n_draft_taken = sequence->all_taken};
    if (task->admitted_ns == 0) {
        t.queued_ns = now - task->submitted_ns;
        return t;
    }
    t.queued_ns = task->admitted_ns - task->submitted_ns;
    t.prefill_ns = (sequence->first_token_ns != 0 ? sequence->first_token_ns : now) - task->admitted_ns;
    t.decode_ns = sequence->last_token_ns - sequence->first_token_ns;
    return t;
}

static void count_finished(const struct dse_task *task, uint64_t now)
{
    dse_counter_add(task->any_error       ? DSE_COUNTER_REQUESTS_FAILED
                    : task->any_cancelled ? DSE_COUNTER_REQUESTS_CANCELLED
                                          : DSE_COUNTER_REQUESTS_FINISHED,
                    1);
    dse_histogram_observe(DSE_HISTOGRAM_E2E, (double)(now - task->submitted_ns) * 1e-9);
}

/* Choices that have said something. */
static void observe_choice(const struct dse_task *task, const struct dse_timings *t)
{
    if (t->n_generated == 0) return;
    const double decode = (double)t->decode_ns * 1e-9;
    dse_histogram_observe(DSE_HISTOGRAM_PREFILL, (double)t->prefill_ns * 1e-9);
    dse_histogram_observe(DSE_HISTOGRAM_DECODE, decode);
    dse_histogram_observe(DSE_HISTOGRAM_REQUEST_PROMPT, (double)task->n_prompt);
    dse_histogram_observe(DSE_HISTOGRAM_REQUEST_GENERATED, (double)t->n_generated);
    if (t->n_generated > 1) dse_histogram_observe(DSE_HISTOGRAM_TPOT, decode / (double)(t->n_generated - 1));
}

void dse_engine_finish(struct dse_engine *engine, struct dse_sequence *sequence, enum dse_finish finish,
                       const struct dse_error *error)
{
    struct dse_task *task = sequence->task;
    uint64_t now = dse_clock_ns();
    sequence->done = true;
    task->any_error |= finish == DSE_FINISH_ERROR;
    task->any_cancelled |= finish == DSE_FINISH_CANCELLED;
    dse_scheduler_close_sequence(&engine->scheduler, sequence);
    dse_counter_add((enum dse_counter)(DSE_COUNTER_CHOICES_STOP + (finish - DSE_FINISH_STOP)), 1);
    const struct dse_timings timings = timings_of(sequence, now);
    observe_choice(task, &timings);
    bool last = --task->n_open == 0;
    if (last) {
        /* Before the client hears of it: who waits for FINISH must find a free place and free memory. */
        dse_scheduler_remove(&engine->scheduler, task);
        count_finished(task, now);
        dse_engine_unregister(engine, task);
    }
    struct dse_event event = {.kind = DSE_EVENT_FINISH,
                              .choice = sequence->choice,
                              .finish = finish,
                              .adapter_identity = sequence->kv.chain.scope.adapter,
                              .n_prompt = task->n_prompt,
                              .timings = timings,
                              .error = finish == DSE_FINISH_ERROR ? error : NULL};
    (void)emit(engine, task, &event);
    if (last) {
        task->next = engine->dead;
        engine->dead = task;
    }
}

/* Ids that must not come now: min_tokens holds every end back, ignore_eos those of the model. */
static int banned_count(const struct dse_task *task, const struct dse_sequence *sequence)
{
    if (sequence->n_generated < task->min_tokens) return task->n_stops;
    return task->ignore_eos ? task->n_model_stops : 0;
}

static void note_token_time(struct dse_sequence *sequence, uint64_t now)
{
    struct dse_task *task = sequence->task;
    if (sequence->first_token_ns == 0) {
        sequence->first_token_ns = now;
        if (atomic_load_explicit(&task->shown_generated, memory_order_relaxed) == 0) {
            dse_histogram_observe(DSE_HISTOGRAM_TTFT, (double)(now - task->submitted_ns) * 1e-9);
            atomic_store_explicit(&task->shown_first_ns, now, memory_order_relaxed);
        }
    } else {
        dse_histogram_observe(DSE_HISTOGRAM_ITL, (double)(now - sequence->last_token_ns) * 1e-9);
    }
    sequence->last_token_ns = now;
    dse_counter_add(DSE_COUNTER_GENERATED_TOKENS, 1);
    atomic_fetch_add_explicit(&task->shown_generated, 1, memory_order_relaxed);
}

/* The grammar moves on; true when nothing can follow. */
static bool advance_grammar(struct dse_sequence *sequence, int32_t token, bool is_stop)
{
    if (sequence->grammar == NULL || is_stop) return false;
    if (!sequence->grammar_on) {
        sequence->grammar_on = token == sequence->task->grammar_after_token;
        return false;
    }
    return !dse_grammar_accept(sequence->grammar, token) || dse_grammar_must_end(sequence->grammar);
}

/* The next of the tokens that are to come, with the logprob that the model gives it. */
static bool take_forced(const struct dse_engine *engine, struct dse_sequence *sequence, const float *logits,
                        const uint64_t *mask, struct dse_sample *sample)
{
    struct dse_forced *forced = &sequence->forced;
    if (forced->n_tokens == 0) return false;
    const int32_t token = *forced->tokens;
    if (token < 0 || token >= engine->model->file->config.n_vocab ||
        (mask != NULL && (mask[token / 64] >> token % 64 & 1) == 0)) {
        *forced = (struct dse_forced){0};
        return false;
    }
    forced->tokens++;
    forced->n_tokens--;
    *sample = (struct dse_sample){.token = token};
    if (sequence->task->top_logprobs >= 0) dse_sampler_score(sequence->sampler, logits, token, sample);
    return true;
}

static void sample_one(struct dse_engine *engine, struct dse_sequence *sequence, float *logits)
{
    struct dse_task *task = sequence->task;
    struct dse_sample sample;
    struct dse_error error;
    const uint64_t *mask = NULL;
    if (sequence->grammar_on) {
        dse_grammar_mask(sequence->grammar, engine->mask);
        mask = engine->mask;
    }
    enum dse_status status = DSE_OK;
    if (!take_forced(engine, sequence, logits, mask, &sample))
        status = dse_sampler_sample(sequence->sampler, logits, mask, task->stops, banned_count(task, sequence),
                                    (uint64_t)sequence->choice, (uint64_t)sequence->n_tokens, &sample, &error);
    if (status != DSE_OK) {
        /* A text that is complete and that nothing can follow ends, whatever holds its end back (min_tokens,
         * ignore_eos). */
        bool complete = status == DSE_ERR_INVALID && mask != NULL && dse_grammar_may_end(sequence->grammar);
        dse_engine_finish(engine, sequence, complete ? DSE_FINISH_STOP : DSE_FINISH_ERROR, &error);
        return;
    }
    sequence->tokens[sequence->n_tokens++] = sample.token;
    sequence->n_generated++;
    dse_sampler_observe(sequence->sampler, &sample.token, 1, false);
    bool is_stop = dse_task_is_stop(task, sample.token);
    bool complete = advance_grammar(sequence, sample.token, is_stop);
    note_token_time(sequence, dse_clock_ns());

    struct dse_event event = {.kind = DSE_EVENT_TOKEN,
                              .choice = sequence->choice,
                              .token = sample.token,
                              .is_stop_token = is_stop,
                              .logprob = sample.logprob,
                              .n_top = sample.n_top,
                              .top = sample.top,
                              .forced = &sequence->forced,
                              .n_prompt = task->n_prompt};
    bool more = emit(engine, task, &event);
    if (is_stop || complete || !more)
        dse_engine_finish(engine, sequence, DSE_FINISH_STOP, NULL);
    else if (sequence->n_generated == task->max_new)
        dse_engine_finish(engine, sequence, DSE_FINISH_LENGTH, NULL);
}

/* Logits of the last token of a sequence. After the prompt all choices draw their first token from the same row. */
static void sample_row(struct dse_engine *engine, struct dse_sequence *sequence, float *logits)
{
    struct dse_task *task = sequence->task;
    if (sequence->n_generated > 0 || task->n_choices == 1) {
        sample_one(engine, sequence, logits);
        return;
    }
    const size_t bytes = (size_t)engine->model->file->config.n_vocab * sizeof(float);
    for (int i = 0; i < task->n_choices; i++) {
        struct dse_sequence *choice = &task->sequences[i];
        if (choice->done || choice->n_generated > 0) continue;
        memcpy(engine->choice_logits, logits, bytes); /* sampling may overwrite */
        sample_one(engine, choice, engine->choice_logits);
    }
}

/* What the model made of the prompt itself. */
static void emit_prompt_logprob(struct dse_engine *engine, const struct dse_sequence *sequence, const float *logits,
                                int32_t token)
{
    struct dse_sample score;
    dse_sampler_score(sequence->sampler, logits, token, &score);
    struct dse_event event = {.kind = DSE_EVENT_PROMPT_LOGPROB,
                              .token = token,
                              .logprob = score.logprob,
                              .n_top = score.n_top,
                              .top = score.top,
                              .n_prompt = sequence->task->n_prompt};
    (void)emit(engine, sequence->task, &event);
}

static bool wants_prompt_logprob(const struct dse_task *task, int position)
{
    return task->prompt_logprobs && position + 1 < task->n_prompt && position + 1 >= task->n_announced;
}

/* The row of the last token, and those of drafted ones behind it. */
static bool wants_sample(const struct dse_sequence *sequence, int position)
{
    return position >= sequence->n_tokens - 1 && sequence->task->max_new > 0;
}

/* Whether a row belongs to its sequence. One of a drafted token does once that token has come; its keys and values stand
 * then. Others are overwritten later. */
static bool belongs(struct dse_engine *engine, struct dse_sequence *sequence, int row)
{
    const int position = engine->forward.rows.positions[row];
    if (position < sequence->kv.length) return true;
    if (position != sequence->n_tokens - 1 || sequence->tokens[position] != engine->forward.tokens[row]) return false;
    sequence->n_taken++;
    sequence->all_taken++;
    dse_counter_add(DSE_COUNTER_DRAFT_TAKEN, 1);
    sequence->kv.length++;
    dse_kv_record(&engine->scheduler.pool, &sequence->kv, sequence->tokens);
    dse_policy_charge(&engine->scheduler.policy, sequence->task, 1);
    return true;
}

static int collect_out_rows(struct dse_engine *engine)
{
    const struct dse_scheduler *s = &engine->scheduler;
    int count = 0;
    for (int i = 0; i < s->n_spans; i++) {
        struct dse_sequence *sequence = s->spans[i].sequence;
        if (sequence->done) continue;
        for (int r = s->spans[i].first_row; r < s->spans[i].first_row + s->spans[i].n_rows; r++) {
            int position = engine->forward.rows.positions[r];
            if (wants_sample(sequence, position) || wants_prompt_logprob(sequence->task, position))
                engine->out_rows[count++] = (struct dse_out_row){.sequence = sequence, .row = r};
        }
    }
    return count;
}

static void deliver_row(struct dse_engine *engine, const struct dse_out_row *out, float *logits)
{
    struct dse_sequence *sequence = out->sequence;
    struct dse_task *task = sequence->task;
    int position = engine->forward.rows.positions[out->row];
    if (sequence->done || atomic_load_explicit(&task->cancelled, memory_order_relaxed)) return;
    if (!belongs(engine, sequence, out->row)) return;
    if (wants_prompt_logprob(task, position)) {
        emit_prompt_logprob(engine, sequence, logits, sequence->tokens[position + 1]);
        task->n_announced = position + 2;
    } else if (wants_sample(sequence, position)) {
        sample_row(engine, sequence, logits);
    }
}

static void deliver_logits(struct dse_engine *engine)
{
    const size_t n_vocab = (size_t)engine->model->file->config.n_vocab;
    int count = collect_out_rows(engine);
    for (int begin = 0; begin < count; begin += engine->sizes.max_out) {
        int n = count - begin < engine->sizes.max_out ? count - begin : engine->sizes.max_out, n_first = 0;
        for (int i = 0; i < n; i++) {
            engine->out_index[i] = engine->out_rows[begin + i].row;
            n_first += engine->out_rows[begin + i].sequence->n_generated == 0;
        }
        const uint64_t begin_ns = dse_clock_ns();
        dse_forward_logits(&engine->forward, engine->out_index, n, engine->forward.logits);
        dse_step_meter_logits(&engine->meter, begin_ns, n, n_first);
        for (int i = 0; i < n; i++)
            deliver_row(engine, &engine->out_rows[begin + i], engine->forward.logits + (size_t)i * n_vocab);
    }
}

/* What became of the drafts, and what they cost. */
static void note_drafts(struct dse_engine *engine, uint64_t elapsed_ns)
{
    struct dse_scheduler *s = &engine->scheduler;
    for (int i = 0; i < s->n_spans; i++) {
        struct dse_sequence *sequence = s->spans[i].sequence;
        if (sequence->n_drafted == 0) continue;
        dse_speculate_note_draft(&sequence->drafts, sequence->n_drafted, sequence->n_taken);
        sequence->n_drafted = 0;
    }
    if (s->n_prefill_rows == 0) dse_speculate_note_step(&s->speculation, s->n_decode_rows, s->n_draft_rows, elapsed_ns);
}

/* Hidden states of prompt tokens, in order; those told before a request was set back are not told again. */
static void deliver_hidden(struct dse_engine *engine)
{
    const struct dse_scheduler *s = &engine->scheduler;
    for (int i = 0; i < s->n_spans; i++) {
        struct dse_task *task = s->spans[i].sequence->task;
        if (!task->hidden_states) continue;
        for (int r = s->spans[i].first_row; r < s->spans[i].first_row + s->spans[i].n_rows; r++) {
            int position = engine->forward.rows.positions[r];
            if (position >= task->n_prompt || position < task->n_hidden) continue;
            if (atomic_load_explicit(&task->cancelled, memory_order_relaxed)) break;
            dse_forward_hidden(&engine->forward, r, engine->hidden);
            task->n_hidden = position + 1;
            struct dse_event event = {.kind = DSE_EVENT_HIDDEN_STATE,
                                      .hidden = engine->hidden,
                                      .n_processed = position,
                                      .n_prompt = task->n_prompt};
            (void)emit(engine, task, &event);
        }
    }
}

/* A bug of ours, but one that must not take the other requests with it, or keep the engine turning for nothing. */
static void fail_broken_promise(struct dse_engine *engine, struct dse_task *task)
{
    struct dse_error error;
    (void)dse_fail(&error, DSE_ERR_INTERNAL, "the KV blocks promised to request %llu are gone",
                   (unsigned long long)task->id);
    for (int c = 0; c < task->n_choices; c++)
        if (!task->sequences[c].done) dse_engine_finish(engine, &task->sequences[c], DSE_FINISH_ERROR, &error);
}

/* The rows are in the KV cache now. Prompts that are complete part into their choices. */
static void advance_spans(struct dse_engine *engine)
{
    struct dse_scheduler *s = &engine->scheduler;
    for (int i = 0; i < s->n_spans; i++) {
        struct dse_sequence *sequence = s->spans[i].sequence;
        struct dse_task *task = sequence->task;
        const int n_rows = s->spans[i].n_rows - sequence->n_drafted;
        sequence->kv.length += n_rows;
        dse_kv_record(&s->pool, &sequence->kv, sequence->tokens);
        dse_policy_charge(&s->policy, task, n_rows);
        if (task->prefilled) continue;
        dse_counter_add(DSE_COUNTER_PROMPT_TOKENS, (uint64_t)s->spans[i].n_rows);
        if (sequence->kv.length > atomic_load_explicit(&task->shown_processed, memory_order_relaxed)) {
            atomic_store_explicit(&task->shown_processed, sequence->kv.length, memory_order_relaxed);
            struct dse_event event = {.kind = DSE_EVENT_PROGRESS,
                                      .n_processed = sequence->kv.length,
                                      .n_prompt = task->n_prompt,
                                      .n_cached = task->n_cached};
            (void)emit(engine, task, &event);
        }
        if (sequence->kv.length >= task->n_prompt && !dse_scheduler_fork(s, task)) fail_broken_promise(engine, task);
    }
}

static void finish_prefill_only(struct dse_engine *engine)
{
    const struct dse_scheduler *s = &engine->scheduler;
    for (int i = 0; i < s->n_spans; i++) {
        struct dse_task *task = s->spans[i].sequence->task;
        if (!task->prefilled || task->max_new > 0) continue;
        for (int c = 0; c < task->n_choices; c++)
            if (!task->sequences[c].done) dse_engine_finish(engine, &task->sequences[c], DSE_FINISH_LENGTH, NULL);
    }
}

static void compute(struct dse_engine *engine)
{
    uint64_t begin = dse_clock_ns();
    dse_step_meter_formed(&engine->meter, &engine->scheduler,
                          dse_chunk_tokens(&engine->chunk, engine->scheduler.n_decode_rows));
    dse_forward_run(&engine->forward, &engine->scheduler.pool.layout);
    dse_step_meter_computed(&engine->meter);
    deliver_hidden(engine);
    advance_spans(engine);
    deliver_logits(engine);
    finish_prefill_only(engine);

    const uint64_t elapsed_ns = dse_clock_ns() - begin;
    if (engine->scheduler.n_draft_rows == 0)
        dse_chunk_note(&engine->chunk, engine->scheduler.n_prefill_rows, engine->scheduler.n_decode_rows, elapsed_ns);
    note_drafts(engine, elapsed_ns);
    dse_step_meter_end(&engine->meter, &engine->scheduler, &engine->steps);
}

bool dse_engine_step(struct dse_engine *engine)
{
    struct dse_scheduler *s = &engine->scheduler;
    guard(engine, true);
    dse_scheduler_form(s, &engine->forward, &engine->chunk);
    if (s->n_spans > 0) compute(engine);
    /* Only now: other choices of the same request may have had rows in the step. */
    if (s->stuck != NULL) fail_broken_promise(engine, s->stuck);
    guard(engine, false);
    return s->n_spans > 0 || s->stuck != NULL;
}
