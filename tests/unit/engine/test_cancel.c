/* H6: a client that leaves frees its memory within a step, wherever its request stands. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/counters.h"
#include "engine_support.h"

static int32_t prompt[1000];

static struct dse_request endless(int n_prompt)
{
    struct dse_request request = dse_request_default;
    request.prompt = prompt;
    request.n_prompt = n_prompt;
    request.ignore_eos = true;
    return request;
}

static struct dse_engine *one_at_a_time(void **state)
{
    return create_engine(*state, (struct dse_engine_options){
                                     .context_length = 1024, .max_concurrent = 1, .max_queue = 8, .chunk_tokens = 32});
}

static struct run *submit_held(struct dse_engine *engine, enum dse_event_kind at, int n_prompt)
{
    struct run *run = run_create();
    run->hold = true;
    run->hold_at = at;
    run_submit(run, engine, endless(n_prompt));
    run_wait_held(run);
    return run;
}

static void cancel_during_decode_ends_within_a_step(void **state)
{
    struct dse_engine *engine = one_at_a_time(state);
    uint64_t cancelled = dse_counter_get(DSE_COUNTER_REQUESTS_CANCELLED);
    struct run *run = submit_held(engine, DSE_EVENT_TOKEN, 40);
    dse_engine_cancel(engine, run->id);
    run_release(run);
    run_wait(run);
    assert_int_equal(run->choice[0].finish, DSE_FINISH_CANCELLED);
    assert_int_equal(run->choice[0].n_tokens, 1);
    assert_int_equal(run->choice[0].n_finish_events, 1);
    assert_int_equal(dse_counter_get(DSE_COUNTER_REQUESTS_CANCELLED), cancelled + 1);
    run_free(run);
    wait_until_empty();
    dse_engine_free(engine);
}

static void cancel_during_prefill_ends_within_a_step(void **state)
{
    struct dse_engine *engine = one_at_a_time(state);
    struct run *run = submit_held(engine, DSE_EVENT_PROGRESS, 900);
    assert_int_equal(run->n_processed, 32);
    dse_engine_cancel(engine, run->id);
    run_release(run);
    run_wait(run);
    assert_int_equal(run->choice[0].finish, DSE_FINISH_CANCELLED);
    assert_int_equal(run->choice[0].n_tokens, 0);
    assert_int_equal(run->n_processed, 32);
    run_free(run);
    wait_until_empty();
    dse_engine_free(engine);
}

static void cancel_in_the_queue_ends_without_computing(void **state)
{
    struct dse_engine *engine = one_at_a_time(state);
    struct run *running = submit_held(engine, DSE_EVENT_TOKEN, 10);
    uint64_t computed = dse_counter_get(DSE_COUNTER_PROMPT_TOKENS);
    struct run *waiting = run_create();
    run_submit(waiting, engine, endless(500));
    dse_engine_cancel(engine, waiting->id);
    run_release(running);
    run_wait(waiting);
    assert_int_equal(waiting->choice[0].finish, DSE_FINISH_CANCELLED);
    assert_int_equal(waiting->n_progress, 0);
    assert_int_equal(waiting->choice[0].timings.prefill_ns, 0);
    assert_int_equal(dse_counter_get(DSE_COUNTER_PROMPT_TOKENS), computed);
    dse_engine_cancel(engine, running->id);
    run_wait(running);
    run_free(running);
    run_free(waiting);
    wait_until_empty();
    dse_engine_free(engine);
}

struct self_cancel {
    struct dse_engine *engine;
    struct run *run;
};

static bool cancel_at_third_token(void *user, const struct dse_event *event)
{
    struct self_cancel *self = user;
    bool more = run_on_event(self->run, event);
    if (event->kind == DSE_EVENT_TOKEN && self->run->choice[event->choice].n_tokens == 3)
        dse_engine_cancel(self->engine, event->request);
    return more;
}

static void cancel_from_the_callback_ends_all_choices(void **state)
{
    struct dse_engine *engine = create_engine(*state, (struct dse_engine_options){.context_length = 256});
    struct self_cancel self = {.engine = engine, .run = run_create()};
    struct dse_request request = endless(50);
    struct dse_error error;
    request.n_choices = self.run->n_choices = 4;
    request.on_event = cancel_at_third_token;
    request.user = &self;
    assert_int_equal(dse_engine_submit(engine, &request, NULL, &error), DSE_OK);
    run_wait(self.run);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(self.run->choice[i].finish, DSE_FINISH_CANCELLED);
        assert_int_equal(self.run->choice[i].n_finish_events, 1);
        assert_in_range(self.run->choice[i].n_tokens, 2, 3);
    }
    run_free(self.run);
    wait_until_empty();
    dse_engine_free(engine);
}

static void cancel_of_unknown_or_finished_ids_is_ignored(void **state)
{
    struct dse_engine *engine = create_engine(*state, (struct dse_engine_options){.context_length = 256});
    dse_engine_cancel(engine, 0);
    dse_engine_cancel(engine, 999);
    struct dse_request request = endless(5);
    request.max_tokens = 3;
    struct run *run = run_request(engine, request);
    dse_engine_cancel(engine, run->id);
    dse_engine_cancel(engine, run->id);
    struct run *next = run_request(engine, request);
    assert_int_equal(next->choice[0].finish, DSE_FINISH_LENGTH);
    run_free(run);
    run_free(next);
    dse_engine_free(engine);
}

static void engine_free_cancels_what_runs_and_waits(void **state)
{
    struct dse_engine *engine = one_at_a_time(state);
    struct run *running = submit_held(engine, DSE_EVENT_TOKEN, 10), *waiting[3];
    for (int i = 0; i < 3; i++) {
        waiting[i] = run_create();
        run_submit(waiting[i], engine, endless(200));
    }
    run_release(running);
    dse_engine_free(engine);
    assert_int_equal(running->choice[0].n_finish_events, 1);
    assert_int_equal(running->choice[0].finish, DSE_FINISH_CANCELLED);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(waiting[i]->choice[0].n_finish_events, 1);
        assert_int_equal(waiting[i]->choice[0].finish, DSE_FINISH_CANCELLED);
        run_free(waiting[i]);
    }
    run_free(running);
    wait_until_empty();
}

static int open_model(void **state)
{
    *state = open_reference("llama_linear", DSE_COMPUTE_AUTO, 1);
    fill_prompt(prompt, 1000, 512, 2);
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
        cmocka_unit_test(cancel_during_decode_ends_within_a_step),
        cmocka_unit_test(cancel_during_prefill_ends_within_a_step),
        cmocka_unit_test(cancel_in_the_queue_ends_without_computing),
        cmocka_unit_test(cancel_from_the_callback_ends_all_choices),
        cmocka_unit_test(cancel_of_unknown_or_finished_ids_is_ignored),
        cmocka_unit_test(engine_free_cancels_what_runs_and_waits),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
