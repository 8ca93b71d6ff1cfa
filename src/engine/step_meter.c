/* From points in time to the causes of a step; see step_meter.h. Called by engine.c and step.c. */
#include "engine/step_meter.h"

#include <sys/resource.h>

#include "base/clock.h"
#include "base/counters.h"
#include "engine/scheduler.h"

static uint64_t major_faults(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (uint64_t)usage.ru_majflt : 0;
}

void dse_step_meter_waited(struct dse_step_meter *meter, uint64_t since_ns)
{
    meter->now.begin_ns = dse_clock_ns();
    meter->now.cause_ns[DSE_STEP_WAIT] += meter->now.begin_ns - since_ns;
    meter->preemptions = dse_counter_get(DSE_COUNTER_PREEMPTIONS);
    meter->tokens = dse_counter_get(DSE_COUNTER_GENERATED_TOKENS);
    meter->faults = major_faults();
}

void dse_step_meter_swapped(struct dse_step_meter *meter, uint64_t since_ns)
{
    meter->now.cause_ns[DSE_STEP_SWAP] += dse_clock_ns() - since_ns;
}

static void count_span(struct dse_step_record *now, const struct dse_span *span)
{
    const struct dse_sequence *sequence = span->sequence;
    const struct dse_task *task = sequence->task;
    const int begin = sequence->kv.length, end = begin + span->n_rows;
    /* What was computed before the request was set back: its prompt up to where it had come, and all of its output but
     * the last token. */
    const int known = task->prefilled ? sequence->n_tokens - 1
                                      : atomic_load_explicit(&task->shown_processed, memory_order_relaxed);
    const int again = known > end ? span->n_rows : known > begin ? known - begin : 0;
    now->recompute_rows += (uint64_t)again;
    *(task->prefilled ? &now->decode_rows : &now->prefill_rows) += (uint64_t)(span->n_rows - again);
}

void dse_step_meter_formed(struct dse_step_meter *meter, const struct dse_scheduler *s, int chunk_tokens)
{
    struct dse_step_record *now = &meter->now;
    now->prefill_rows = now->decode_rows = now->recompute_rows = 0;
    for (int i = 0; i < s->n_spans; i++)
        count_span(now, &s->spans[i]);
    now->chunk_tokens = (uint64_t)chunk_tokens;
    now->n_running = (uint64_t)dse_scheduler_active(s);
    now->n_waiting = (uint64_t)s->n_waiting;
    meter->logits_ns = meter->logits_rows = meter->logits_decode_rows = 0;
    now->cause_ns[DSE_STEP_DELIVERY] = 0;
    meter->forward_begin_ns = dse_clock_ns();
    now->cause_ns[DSE_STEP_SCHEDULE] = meter->forward_begin_ns - now->begin_ns;
}

void dse_step_meter_computed(struct dse_step_meter *meter)
{
    meter->forward_ns = dse_clock_ns() - meter->forward_begin_ns;
}

void dse_step_meter_logits(struct dse_step_meter *meter, uint64_t since_ns, int n_rows, int n_first)
{
    meter->logits_ns += dse_clock_ns() - since_ns;
    meter->logits_rows += (uint64_t)n_rows;
    meter->logits_decode_rows += (uint64_t)(n_rows - n_first);
}

void dse_step_meter_delivered(struct dse_step_meter *meter, uint64_t since_ns)
{
    meter->now.cause_ns[DSE_STEP_DELIVERY] += dse_clock_ns() - since_ns;
}

static uint64_t share(uint64_t ns, uint64_t part, uint64_t whole)
{
    return whole == 0 ? 0 : (uint64_t)((double)ns * (double)part / (double)whole);
}

void dse_step_meter_end(struct dse_step_meter *meter, const struct dse_scheduler *s, struct dse_step_ring *ring)
{
    struct dse_step_record *now = &meter->now;
    const uint64_t end_ns = dse_clock_ns();
    const uint64_t rows = now->prefill_rows + now->decode_rows + now->recompute_rows;
    const uint64_t decode_logits_ns = share(meter->logits_ns, meter->logits_decode_rows, meter->logits_rows);
    const uint64_t other_logits_ns = meter->logits_ns - decode_logits_ns;
    const uint64_t forward_end_ns = meter->forward_begin_ns + meter->forward_ns;
    uint64_t *cause = now->cause_ns;
    cause[DSE_STEP_DECODE] = share(meter->forward_ns, now->decode_rows, rows) + decode_logits_ns;
    cause[DSE_STEP_RECOMPUTE] = share(meter->forward_ns, now->recompute_rows, rows);
    cause[DSE_STEP_PREFILL] = share(meter->forward_ns, now->prefill_rows, rows);
    cause[now->prefill_rows == 0 && now->recompute_rows > 0 ? DSE_STEP_RECOMPUTE : DSE_STEP_PREFILL] += other_logits_ns;
    const uint64_t after_ns = end_ns - forward_end_ns, known_ns = meter->logits_ns + cause[DSE_STEP_DELIVERY];
    cause[DSE_STEP_SAMPLING] = after_ns > known_ns ? after_ns - known_ns : 0;

    now->n_tokens = dse_counter_get(DSE_COUNTER_GENERATED_TOKENS) - meter->tokens;
    now->n_preempted = dse_counter_get(DSE_COUNTER_PREEMPTIONS) - meter->preemptions;
    now->major_faults = major_faults() - meter->faults;
    now->kv_blocks_used = (uint64_t)dse_kv_pool_used(&s->pool);
    dse_step_ring_put(ring, now);

    dse_counter_add(DSE_COUNTER_STEPS, 1);
    dse_counter_add(DSE_COUNTER_RECOMPUTED_TOKENS, now->recompute_rows);
    for (int i = 0; i < DSE_STEP_CAUSE_COUNT; i++)
        dse_counter_add((enum dse_counter)(DSE_COUNTER_STEP_SWAP + i), cause[i]);
    *now = (struct dse_step_record){.begin_ns = end_ns};
}

_Static_assert(DSE_COUNTER_STEP_DELIVERY - DSE_COUNTER_STEP_SWAP + 1 == DSE_STEP_CAUSE_COUNT,
               "one series of step_seconds_total for each cause");
