/* Several choices of one request share the prompt and are otherwise requests of their own. */
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

static struct dse_request sampled(int n_prompt, int n_choices, int max_tokens)
{
    struct dse_request request = dse_request_default;
    request.prompt = prompt;
    request.n_prompt = n_prompt;
    request.max_tokens = max_tokens;
    request.n_choices = n_choices;
    request.ignore_eos = true;
    request.sampling.seed = 20;
    request.sampling.top_logprobs = 0;
    return request;
}

/* Choice i of n equals choice i of any other n: it depends on the seed and its index only. */
static void choices_do_not_depend_on_how_many_there_are(void **state)
{
    struct dse_engine *engine = create_engine(*state,
                                              (struct dse_engine_options){.context_length = 256, .max_concurrent = 8});
    static const int lengths[] = {1, 31, 32, 33, 100};
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
        struct run *all = run_request(engine, sampled(lengths[l], 8, 40));
        for (int n = 1; n < 8; n += 2) {
            struct run *some = run_request(engine, sampled(lengths[l], n, 40));
            for (int i = 0; i < n; i++) {
                assert_int_equal(some->choice[i].n_tokens, 40);
                assert_memory_equal(some->choice[i].tokens, all->choice[i].tokens, 40 * sizeof(int32_t));
                assert_memory_equal(some->choice[i].logprobs, all->choice[i].logprobs, 40 * sizeof(float));
            }
            run_free(some);
        }
        assert_memory_not_equal(all->choice[0].tokens, all->choice[1].tokens, 40 * sizeof(int32_t));
        run_free(all);
    }
    wait_until_empty();
    dse_engine_free(engine);
}

static void choices_share_the_memory_and_the_work_of_the_prompt(void **state)
{
    struct dse_engine *engine = create_engine(*state,
                                              (struct dse_engine_options){.context_length = 256, .max_concurrent = 8});
    uint64_t computed = dse_counter_get(DSE_COUNTER_PROMPT_TOKENS);
    struct run *run = run_create();
    run->hold = true;
    run->hold_at = DSE_EVENT_TOKEN;
    run_submit(run, engine, sampled(100, 8, 20));
    run_wait_held(run); /* the forks exist: 3 shared blocks, one partial block each */
    run_release(run);
    run_wait(run);
    assert_int_equal(dse_counter_get(DSE_COUNTER_PROMPT_TOKENS) - computed, 100);
    run_free(run);
    wait_until_empty();

    /* 8 choices of 200 + 20 tokens: 6 shared blocks and 1 of their own each, far below 8 * 7 */
    dse_engine_free(engine);
    struct dse_model_info info;
    dse_model_get_info(*state, &info);
    engine = create_engine(*state, (struct dse_engine_options){.context_length = 256,
                                                               .max_concurrent = 8,
                                                               .kv_bytes = info.kv_bytes_per_token * 32 * 14});
    run = run_request(engine, sampled(200, 8, 24));
    for (int i = 0; i < 8; i++)
        assert_int_equal(run->choice[i].n_tokens, 24);
    run_free(run);
    wait_until_empty();
    dse_engine_free(engine);
}

static bool stop_choice_at_its_index(void *user, const struct dse_event *event)
{
    struct run *run = user;
    (void)run_on_event(run, event);
    return event->kind != DSE_EVENT_TOKEN || run->choice[event->choice].n_tokens <= event->choice * 5;
}

static void choices_end_on_their_own(void **state)
{
    struct dse_engine *engine = create_engine(*state,
                                              (struct dse_engine_options){.context_length = 256, .max_concurrent = 8});
    struct run *run = run_create();
    struct dse_request request = sampled(45, 6, 100);
    struct dse_error error;
    run->n_choices = 6;
    request.on_event = stop_choice_at_its_index;
    request.user = run;
    assert_int_equal(dse_engine_submit(engine, &request, NULL, &error), DSE_OK);
    run_wait(run);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(run->choice[i].n_tokens, i * 5 + 1);
        assert_int_equal(run->choice[i].finish, DSE_FINISH_STOP);
        assert_int_equal(run->choice[i].n_finish_events, 1);
    }
    run_free(run);
    wait_until_empty();
    dse_engine_free(engine);
}

static void more_choices_than_the_batch_allows_run_alone(void **state)
{
    struct dse_engine *engine = create_engine(
        *state, (struct dse_engine_options){.context_length = 256, .max_concurrent = 2, .max_queue = 4});
    struct run *expected = run_request(engine, sampled(20, 1, 30)), *one = run_create(), *many = run_create();
    run_submit(one, engine, sampled(20, 1, 30));
    run_submit(many, engine, sampled(20, 8, 30));
    run_wait(one);
    run_wait(many);
    assert_true(runs_equal(one, expected));
    for (int i = 0; i < 8; i++)
        assert_int_equal(many->choice[i].n_tokens, 30);
    assert_memory_equal(many->choice[0].tokens, expected->choice[0].tokens, 30 * sizeof(int32_t));
    run_free(expected);
    run_free(one);
    run_free(many);
    wait_until_empty();
    dse_engine_free(engine);
}

static void choices_of_a_prefill_only_request_all_finish(void **state)
{
    struct dse_engine *engine = create_engine(*state, (struct dse_engine_options){.context_length = 256});
    struct run *run = run_request(engine, sampled(50, 5, 0));
    for (int i = 0; i < 5; i++) {
        assert_int_equal(run->choice[i].finish, DSE_FINISH_LENGTH);
        assert_int_equal(run->choice[i].n_finish_events, 1);
        assert_int_equal(run->choice[i].n_tokens, 0);
    }
    run_free(run);
    wait_until_empty();
    dse_engine_free(engine);
}

static int open_model(void **state)
{
    *state = open_reference("llama_linear", DSE_COMPUTE_AUTO, 2);
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
        cmocka_unit_test(choices_do_not_depend_on_how_many_there_are),
        cmocka_unit_test(choices_share_the_memory_and_the_work_of_the_prompt),
        cmocka_unit_test(choices_end_on_their_own),
        cmocka_unit_test(more_choices_than_the_batch_allows_run_alone),
        cmocka_unit_test(choices_of_a_prefill_only_request_all_finish),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
