/* The ring of step records, alone and as an engine fills it. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/counters.h"
#include "engine/step_ring.h"
#include "engine_support.h"

static int32_t prompt[300];
static struct dse_step_record records[DSE_STEP_RING_LENGTH];

/* ---- the ring ------------------------------------------------------------------------------------------------- */

static void put_marked(struct dse_step_ring *ring, uint64_t mark)
{
    struct dse_step_record record;
    uint64_t *words = (uint64_t *)&record;
    for (size_t i = 0; i < DSE_STEP_RECORD_WORDS; i++)
        words[i] = mark;
    dse_step_ring_put(ring, &record);
}

static void ring_keeps_the_newest_in_order(void **state)
{
    struct dse_step_ring *ring = calloc(1, sizeof *ring);
    assert_int_equal(dse_step_ring_read(ring, 0, records, DSE_STEP_RING_LENGTH), 0);
    for (uint64_t i = 1; i <= 3; i++)
        put_marked(ring, 100 + i);
    assert_int_equal(dse_step_ring_read(ring, 0, records, DSE_STEP_RING_LENGTH), 3);
    assert_int_equal(records[0].number, 1);
    assert_int_equal(records[2].begin_ns, 103);
    assert_int_equal(dse_step_ring_read(ring, 2, records, DSE_STEP_RING_LENGTH), 1);
    assert_int_equal(dse_step_ring_read(ring, 3, records, DSE_STEP_RING_LENGTH), 0);
    assert_int_equal(dse_step_ring_read(ring, 0, records, 2), 2); /* the oldest of them */
    assert_int_equal(records[1].number, 2);
    for (uint64_t i = 4; i <= DSE_STEP_RING_LENGTH + 10; i++)
        put_marked(ring, 100 + i);
    assert_int_equal(dse_step_ring_read(ring, 0, records, DSE_STEP_RING_LENGTH), DSE_STEP_RING_LENGTH);
    assert_int_equal(records[0].number, 11);
    assert_int_equal(records[DSE_STEP_RING_LENGTH - 1].begin_ns, 110 + DSE_STEP_RING_LENGTH);
    free(ring);
}

static void *write_many(void *argument)
{
    for (uint64_t i = 0; i < 300000; i++)
        put_marked(argument, i);
    return NULL;
}

/* A record that was read is one that was written: all its words have the same mark. */
static void reader_never_sees_half_a_record(void **state)
{
    struct dse_step_ring *ring = calloc(1, sizeof *ring);
    pthread_t writer;
    pthread_create(&writer, NULL, write_many, ring);
    uint64_t last = 0, seen = 0;
    while (last < 300000) {
        int n = dse_step_ring_read(ring, last, records, DSE_STEP_RING_LENGTH);
        for (int i = 0; i < n; i++) {
            const uint64_t *words = (const uint64_t *)&records[i];
            assert_true(records[i].number > last);
            last = records[i].number;
            for (size_t k = 1; k < DSE_STEP_RECORD_WORDS; k++)
                assert_int_equal(words[k], records[i].number - 1);
        }
        seen += (uint64_t)n;
    }
    pthread_join(writer, NULL);
    assert_true(seen > 0);
    free(ring);
}

/* ---- an engine ------------------------------------------------------------------------------------------------ */

static struct dse_request simple(int n_prompt, int max_tokens)
{
    struct dse_request request = dse_request_default;
    request.prompt = prompt;
    request.n_prompt = n_prompt;
    request.max_tokens = max_tokens;
    request.sampling.temperature = 0;
    request.ignore_eos = true;
    return request;
}

struct totals {
    uint64_t prefill, decode, recompute, tokens, preempted, cause_ns[DSE_STEP_CAUSE_COUNT];
};

/* All records of an engine that was to generate so many tokens. Clients hear of a token before its step is over. */
static struct totals add_up(const struct dse_engine *engine, uint64_t tokens)
{
    struct totals sum = {0};
    int n = 0;
    for (int tries = 0; tries < 10000; tries++) {
        uint64_t seen = 0;
        n = dse_step_ring_read(dse_engine_steps(engine), 0, records, DSE_STEP_RING_LENGTH);
        for (int i = 0; i < n; i++)
            seen += records[i].n_tokens;
        if (seen >= tokens) break;
        usleep(1000);
    }
    assert_int_not_equal(n, 0);
    assert_int_equal(records[0].number, 1); /* nothing was lost */
    for (int i = 0; i < n; i++) {
        assert_int_equal(records[i].number, i + 1);
        sum.prefill += records[i].prefill_rows;
        sum.decode += records[i].decode_rows;
        sum.recompute += records[i].recompute_rows;
        sum.tokens += records[i].n_tokens;
        sum.preempted += records[i].n_preempted;
        for (int k = 0; k < DSE_STEP_CAUSE_COUNT; k++)
            sum.cause_ns[k] += records[i].cause_ns[k];
        assert_true(records[i].prefill_rows + records[i].recompute_rows <= records[i].chunk_tokens);
        uint64_t end = records[i].begin_ns;
        for (int k = DSE_STEP_WAIT + 1; k < DSE_STEP_CAUSE_COUNT; k++)
            end += records[i].cause_ns[k];
        if (i + 1 < n) assert_true(end <= records[i + 1].begin_ns); /* no time is counted twice */
    }
    return sum;
}

static void rows_and_tokens_of_a_request_are_counted_once(void **state)
{
    struct dse_engine *engine = create_engine(
        *state, (struct dse_engine_options){.context_length = 256, .max_concurrent = 2, .chunk_tokens = 16});
    uint64_t before = dse_clock_ns(), steps = dse_counter_get(DSE_COUNTER_STEPS);
    uint64_t decode_ns = dse_counter_get(DSE_COUNTER_STEP_DECODE);
    uint64_t length = dse_counter_get(DSE_COUNTER_CHOICES_LENGTH);
    struct dse_histogram_view tpot = dse_histogram_get(DSE_HISTOGRAM_TPOT);
    run_free(run_request(engine, simple(50, 8)));
    wait_until_empty();
    struct totals sum = add_up(engine, 8);
    assert_int_equal(sum.prefill, 50);
    assert_int_equal(sum.tokens, 8);
    assert_int_equal(sum.decode, 7); /* the first token comes from the last row of the prompt */
    assert_int_equal(sum.recompute, 0);
    assert_int_equal(sum.preempted, 0);
    assert_true(sum.cause_ns[DSE_STEP_PREFILL] > 0 && sum.cause_ns[DSE_STEP_DECODE] > 0);
    assert_int_equal(sum.cause_ns[DSE_STEP_RECOMPUTE], 0);
    uint64_t all = 0;
    for (int k = DSE_STEP_WAIT + 1; k < DSE_STEP_CAUSE_COUNT; k++)
        all += sum.cause_ns[k];
    assert_true(all < dse_clock_ns() - before);
    assert_true(dse_counter_get(DSE_COUNTER_STEPS) - steps >= 11); /* 50 rows in steps of at most 16, and 7 */
    assert_int_equal(dse_counter_get(DSE_COUNTER_STEP_DECODE) - decode_ns, sum.cause_ns[DSE_STEP_DECODE]);
    assert_int_equal(dse_counter_get(DSE_COUNTER_CHOICES_LENGTH) - length, 1);
    assert_int_equal(dse_histogram_get(DSE_HISTOGRAM_TPOT).count - tpot.count, 1);
    dse_engine_free(engine);
}

/* The pool holds 640 tokens and the two of them would grow to 370 and 410. */
static void rows_computed_again_after_a_preemption_are_told_apart(void **state)
{
    struct dse_model_info info;
    dse_model_get_info(*state, &info);
    struct dse_engine_options options = {.context_length = 512, .max_concurrent = 2, .max_queue = 2};
    options.kv_bytes = info.kv_bytes_per_token * 640;
    struct dse_engine *engine = create_engine(*state, options);
    uint64_t preemptions = dse_counter_get(DSE_COUNTER_PREEMPTIONS);
    uint64_t recomputed = dse_counter_get(DSE_COUNTER_RECOMPUTED_TOKENS);
    struct run *low = run_create(), *high = run_create();
    struct dse_request request = simple(10, -1);
    request.priority = -1;
    low->hold = true;
    low->hold_at = DSE_EVENT_TOKEN;
    low->stop_after = 360;
    high->stop_after = 400;
    run_submit(low, engine, request);
    run_wait_held(low);
    request.priority = 0;
    run_submit(high, engine, request);
    run_release(low);
    run_wait(high);
    run_wait(low);
    wait_until_empty();
    struct totals sum = add_up(engine, 760);
    preemptions = dse_counter_get(DSE_COUNTER_PREEMPTIONS) - preemptions;
    assert_true(preemptions >= 1);
    assert_int_equal(sum.preempted, preemptions);
    assert_int_equal(sum.tokens, 360 + 400);
    assert_int_equal(sum.prefill, 2 * 10);
    assert_int_equal(sum.decode, 359 + 399); /* each row that is new, once */
    assert_true(sum.recompute > 240 && sum.recompute <= preemptions * 369);
    assert_int_equal(dse_counter_get(DSE_COUNTER_RECOMPUTED_TOKENS) - recomputed, sum.recompute);
    assert_true(sum.cause_ns[DSE_STEP_RECOMPUTE] > 0);
    run_free(low);
    run_free(high);
    dse_engine_free(engine);
}

static void slots_tell_when_a_request_came_and_when_it_first_spoke(void **state)
{
    struct dse_engine *engine = create_engine(
        *state, (struct dse_engine_options){.context_length = 256, .max_concurrent = 1, .max_queue = 1});
    uint64_t before = dse_clock_ns();
    struct run *held = run_create(), *waiting = run_create();
    held->hold = true;
    held->hold_at = DSE_EVENT_TOKEN;
    run_submit(held, engine, simple(4, 10));
    run_wait_held(held);
    run_submit(waiting, engine, simple(4, 10));
    struct dse_slot slots[2];
    assert_int_equal(dse_engine_slots(engine, slots, 2), 2);
    assert_true(slots[0].submitted_ns >= before && slots[0].first_token_ns >= slots[0].submitted_ns);
    assert_true(slots[1].submitted_ns >= slots[0].submitted_ns);
    assert_int_equal(slots[1].first_token_ns, 0);
    run_release(held);
    run_wait(held);
    run_wait(waiting);
    run_free(held);
    run_free(waiting);
    dse_engine_free(engine);
}

static int open_model(void **state)
{
    struct dse_model_info info;
    struct dse_model *model = open_reference("llama_linear", DSE_COMPUTE_AUTO, 2);
    dse_model_get_info(model, &info);
    fill_prompt(prompt, 300, info.n_vocab, 1);
    *state = model;
    return 0;
}

static int close_model(void **state)
{
    dse_model_unref(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ring_keeps_the_newest_in_order),
        cmocka_unit_test(reader_never_sees_half_a_record),
        cmocka_unit_test(rows_and_tokens_of_a_request_are_counted_once),
        cmocka_unit_test(rows_computed_again_after_a_preemption_are_told_apart),
        cmocka_unit_test(slots_tell_when_a_request_came_and_when_it_first_spoke),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
