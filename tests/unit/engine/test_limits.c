/* Admission: queue limits, priorities, memory promises, many threads at once, and the view from outside. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/counters.h"
#include "base/file.h"
#include "engine/engine_internal.h"
#include "engine_support.h"

static int32_t prompt[1000];

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

/* A request whose callback holds the engine thread at its first token: the batch stands still. */
static struct run *hold_engine(struct dse_engine *engine)
{
    struct run *run = run_create();
    run->hold = true;
    run->hold_at = DSE_EVENT_TOKEN;
    run_submit(run, engine, simple(4, 10));
    run_wait_held(run);
    return run;
}

static void submit_beyond_the_queue_is_busy_and_room_returns(void **state)
{
    struct dse_engine *engine = create_engine(
        *state, (struct dse_engine_options){.context_length = 256, .max_concurrent = 1, .max_queue = 2});
    struct run *held = hold_engine(engine), *waiting[2];
    struct dse_error error;
    for (int i = 0; i < 2; i++) {
        waiting[i] = run_create();
        run_submit(waiting[i], engine, simple(10, 3));
    }
    uint64_t rejected = dse_counter_get(DSE_COUNTER_REQUESTS_REJECTED);
    struct dse_request request = simple(10, 3);
    request.on_event = run_on_event;
    assert_int_equal(dse_engine_submit(engine, &request, NULL, &error), DSE_ERR_BUSY);
    assert_int_equal(dse_counter_get(DSE_COUNTER_REQUESTS_REJECTED), rejected + 1);

    struct dse_slot slots[8];
    assert_int_equal(dse_engine_slots(engine, slots, 8), 3);
    assert_int_equal(slots[0].id, held->id);
    assert_true(slots[0].running);
    assert_int_equal(slots[0].n_prompt, 4);
    assert_int_equal(slots[0].n_processed, 4);
    assert_int_equal(slots[0].n_generated, 1);
    assert_false(slots[1].running);
    assert_int_equal(slots[1].id, waiting[0]->id);
    assert_int_equal(dse_engine_slots(engine, slots, 1), 1);

    run_release(held);
    run_wait(held);
    for (int i = 0; i < 2; i++) {
        run_wait(waiting[i]);
        assert_int_equal(waiting[i]->choice[0].n_tokens, 3);
        run_free(waiting[i]);
    }
    run_free(held);
    run_free(run_request(engine, simple(10, 3))); /* there is room again */
    assert_int_equal(dse_engine_slots(engine, slots, 8), 0);
    wait_until_empty();
    dse_engine_free(engine);
}

/* A finished request has left its place before its FINISH event comes. */
static bool submit_from_the_last_event(void *user, const struct dse_event *event)
{
    struct run *run = user;
    if (event->kind == DSE_EVENT_FINISH) run->n_processed = (int)dse_gauge_get(DSE_GAUGE_KV_BLOCKS_USED) + 1;
    return run_on_event(&run[1], event);
}

static void memory_is_free_when_the_finish_event_comes(void **state)
{
    struct dse_engine *engine = create_engine(*state, (struct dse_engine_options){.context_length = 256});
    struct run *runs = calloc(2, sizeof *runs);
    struct dse_request request = simple(40, 5);
    pthread_mutex_init(&runs[1].lock, NULL);
    pthread_cond_init(&runs[1].changed, NULL);
    runs[1].n_choices = 1;
    request.on_event = submit_from_the_last_event;
    request.user = runs;
    struct dse_error error;
    assert_int_equal(dse_engine_submit(engine, &request, NULL, &error), DSE_OK);
    run_wait(&runs[1]);
    assert_int_equal(runs[0].n_processed, 1);
    dse_engine_free(engine);
    free(runs);
}

struct order {
    pthread_mutex_t lock;
    int names[8], count;
};

struct named {
    struct order *order;
    int name;
};

static bool note_order(void *user, const struct dse_event *event)
{
    struct named *named = user;
    if (event->kind != DSE_EVENT_FINISH) return true;
    pthread_mutex_lock(&named->order->lock);
    named->order->names[named->order->count++] = named->name;
    pthread_mutex_unlock(&named->order->lock);
    return true;
}

static void waiting_requests_run_by_priority_then_in_order(void **state)
{
    struct dse_engine *engine = create_engine(
        *state, (struct dse_engine_options){.context_length = 256, .max_concurrent = 1, .max_queue = 8});
    struct order order = {.lock = PTHREAD_MUTEX_INITIALIZER};
    static const int priorities[6] = {0, 1, 0, 5, 1, -3};
    struct named named[6];
    struct run *held = hold_engine(engine);
    for (int i = 0; i < 6; i++) {
        struct dse_request request = simple(5, 2);
        struct dse_error error;
        named[i] = (struct named){&order, i};
        request.priority = priorities[i];
        request.on_event = note_order;
        request.user = &named[i];
        assert_int_equal(dse_engine_submit(engine, &request, NULL, &error), DSE_OK);
    }
    run_release(held);
    run_wait(held);
    for (int i = 0; i < 5000 && dse_engine_slots(engine, &(struct dse_slot){0}, 1) > 0; i++)
        usleep(1000);
    dse_engine_free(engine);
    static const int expected[6] = {3, 1, 4, 0, 2, 5};
    assert_int_equal(order.count, 6);
    assert_memory_equal(order.names, expected, sizeof expected);
    run_free(held);
}

/* Two requests that together exceed the pool: the second waits, neither fails. */
static void requests_wait_for_the_memory_they_were_promised(void **state)
{
    struct dse_model_info info;
    dse_model_get_info(*state, &info);
    struct dse_engine_options options = {.context_length = 512, .max_concurrent = 8, .max_queue = 8};
    options.kv_bytes = info.kv_bytes_per_token * 512;
    struct dse_engine *engine = create_engine(*state, options);
    struct run *runs[6];
    for (int i = 0; i < 6; i++) {
        runs[i] = run_create();
        run_submit(runs[i], engine, simple(100 + 30 * i, 150));
    }
    for (int i = 0; i < 6; i++) {
        run_wait(runs[i]);
        assert_int_equal(runs[i]->choice[0].n_tokens, 150);
        assert_int_equal(runs[i]->choice[0].finish, DSE_FINISH_LENGTH);
        run_free(runs[i]);
    }
    wait_until_empty();
    dse_engine_free(engine);
}

/* Two requests without a limit fill the pool. The one of lower priority gives way, although it was there first. */
static void full_pool_sets_the_lowest_priority_back(void **state)
{
    struct dse_model_info info;
    dse_model_get_info(*state, &info);
    struct dse_engine_options options = {.context_length = 512, .max_concurrent = 2, .max_queue = 2};
    options.kv_bytes = info.kv_bytes_per_token * 640;
    struct dse_engine *engine = create_engine(*state, options);
    struct run *low = run_create(), *high = run_create();
    struct dse_request request = simple(10, -1);
    request.priority = -1;
    low->hold = true;
    low->hold_at = DSE_EVENT_TOKEN;
    run_submit(low, engine, request);
    run_wait_held(low);
    request.priority = 0;
    high->hold = true;
    high->hold_at = DSE_EVENT_FINISH;
    run_submit(high, engine, request);
    run_release(low);
    run_wait_held(high);
    struct dse_slot slots[2];
    assert_int_equal(dse_engine_slots(engine, slots, 2), 1);
    assert_int_equal(slots[0].id, low->id);
    run_release(high);
    run_wait(high);
    run_wait(low);
    assert_int_equal(high->choice[0].n_tokens, 502);
    assert_int_equal(low->choice[0].n_tokens, 502);
    assert_memory_equal(low->choice[0].tokens, high->choice[0].tokens, 502 * sizeof(int32_t)); /* set back or not */
    run_free(low);
    run_free(high);
    wait_until_empty();
    dse_engine_free(engine);
}

/* As if admission had promised too little: the request ends, the engine goes on. */
static void prompt_whose_promise_breaks_ends_with_an_error(void **state)
{
    struct dse_engine *engine = create_engine(*state,
                                              (struct dse_engine_options){.context_length = 256, .chunk_tokens = 16});
    struct run *run = run_create();
    run->hold = true;
    run->hold_at = DSE_EVENT_PROGRESS;
    run_submit(run, engine, simple(100, 5));
    run_wait_held(run);
    engine->scheduler.residents[0]->sequences[0].kv.max_blocks = 1; /* the engine thread stands in the callback */
    run_release(run);
    run_wait(run);
    assert_int_equal(run->choice[0].finish, DSE_FINISH_ERROR);
    assert_int_equal(run->error.status, DSE_ERR_INTERNAL);
    run_free(run);
    run = run_request(engine, simple(100, 5));
    assert_int_equal(run->choice[0].n_tokens, 5);
    run_free(run);
    wait_until_empty();
    dse_engine_free(engine);
}

static void time_to_first_token_includes_the_queue(void **state)
{
    struct dse_engine *engine = create_engine(
        *state, (struct dse_engine_options){.context_length = 256, .max_concurrent = 1, .max_queue = 1});
    struct run *held = hold_engine(engine), *waiting = run_create();
    double first = dse_histogram_get(DSE_HISTOGRAM_TTFT).sum, whole = dse_histogram_get(DSE_HISTOGRAM_E2E).sum;
    run_submit(waiting, engine, simple(10, 3));
    usleep(300000);
    run_release(held);
    run_wait(held);
    run_wait(waiting);
    /* of the two, only the waiting one had its first token since */
    assert_true(dse_histogram_get(DSE_HISTOGRAM_TTFT).sum - first >= 0.3);
    assert_true(dse_histogram_get(DSE_HISTOGRAM_E2E).sum - whole >= 0.6);
    run_free(held);
    run_free(waiting);
    dse_engine_free(engine);
}

struct late_submit {
    struct dse_engine *engine;
    struct dse_request request;
    enum dse_status status;
};

static void *submit_late(void *argument)
{
    struct late_submit *late = argument;
    struct dse_error error;
    late->status = dse_engine_submit(late->engine, &late->request, NULL, &error);
    return NULL;
}

static void *free_engine(void *engine)
{
    dse_engine_free(engine);
    return NULL;
}

static void wait_for_place_taken(struct dse_engine *engine, bool stopping)
{
    for (int i = 0; i < 60000; i++) {
        pthread_mutex_lock(&engine->lock);
        bool ready = engine->n_in_flight == 1 && engine->stopping == stopping;
        pthread_mutex_unlock(&engine->lock);
        if (ready) return;
        usleep(1000);
    }
    fail_msg("the submit never took its place");
}

/* The lock of the trie holds a submit in the middle of its work. */
static void submit_under_way_when_the_engine_is_freed_is_refused(void **state)
{
    (void)state;
    struct dse_model *model = open_reference("gguf/llama_linear.gguf", DSE_COMPUTE_AUTO, 1);
    struct dse_engine *engine = create_engine(model, (struct dse_engine_options){.context_length = 256});
    struct late_submit late = {.engine = engine, .request = simple(10, 3)};
    struct dse_error error;
    pthread_t submitter, freer;
    late.request.on_event = run_on_event;
    assert_int_equal(dse_grammar_compile("root ::= [a-z]+", 15, &late.request.grammar, &error), DSE_OK);
    pthread_mutex_lock(&model->trie_lock);
    assert_int_equal(pthread_create(&submitter, NULL, submit_late, &late), 0);
    wait_for_place_taken(engine, false);
    assert_int_equal(pthread_create(&freer, NULL, free_engine, engine), 0);
    wait_for_place_taken(engine, true);
    pthread_mutex_unlock(&model->trie_lock);
    pthread_join(submitter, NULL);
    pthread_join(freer, NULL);
    assert_int_equal(late.status, DSE_ERR_UNAVAILABLE);
    dse_grammar_unref(late.request.grammar);
    dse_model_unref(model);
}

static void request_that_could_never_fit_is_refused_with_both_numbers(void **state)
{
    struct dse_model_info info;
    dse_model_get_info(*state, &info);
    struct dse_engine_options options = {.context_length = 512};
    options.kv_bytes = info.kv_bytes_per_token * 512;
    struct dse_engine *engine = create_engine(*state, options);
    struct dse_request request = simple(100, 400);
    struct dse_error error;
    request.on_event = run_on_event;
    request.n_choices = 2;
    assert_int_equal(dse_engine_submit(engine, &request, NULL, &error), DSE_ERR_NO_MEMORY);
    assert_true(error.need > error.have);
    assert_int_equal(error.have, 512);
    /* without a number of tokens it gets what there is */
    request.max_tokens = -1;
    struct run *run = run_request(engine, request);
    assert_int_equal(run->choice[0].finish, DSE_FINISH_LENGTH);
    assert_int_equal(run->choice[1].n_tokens, run->choice[0].n_tokens);
    assert_true(run->choice[0].n_tokens > 180 && run->choice[0].n_tokens < 412);
    run_free(run);
    wait_until_empty();
    dse_engine_free(engine);
}

struct submitter {
    struct dse_engine *engine;
    int n_ok;
    pthread_t thread;
    int seed;
};

static void *submit_many(void *argument)
{
    struct submitter *submitter = argument;
    for (int i = 0; i < 25; i++) {
        struct run *run = run_create();
        struct dse_request request = simple(1 + (submitter->seed * 37 + i * 11) % 90, i % 7);
        run_submit(run, submitter->engine, request);
        if (i % 5 == 4) dse_engine_cancel(submitter->engine, run->id);
        run_wait(run);
        if (run->choice[0].n_finish_events == 1 &&
            (run->choice[0].finish == DSE_FINISH_CANCELLED || run->choice[0].n_tokens == request.max_tokens))
            submitter->n_ok++;
        run_free(run);
    }
    return NULL;
}

static void four_threads_submit_at_once(void **state)
{
    struct dse_engine *engine = create_engine(
        *state, (struct dse_engine_options){.context_length = 128, .max_concurrent = 3, .max_queue = 4});
    struct submitter submitters[4];
    for (int i = 0; i < 4; i++) {
        submitters[i] = (struct submitter){.engine = engine, .seed = i};
        assert_int_equal(pthread_create(&submitters[i].thread, NULL, submit_many, &submitters[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(submitters[i].thread, NULL);
        assert_int_equal(submitters[i].n_ok, 25);
    }
    wait_until_empty();
    dse_engine_free(engine);
}

static void counters_and_gauges_follow_the_requests(void **state)
{
    struct dse_engine *engine = create_engine(*state, (struct dse_engine_options){.context_length = 256});
    uint64_t prompt_tokens = dse_counter_get(DSE_COUNTER_PROMPT_TOKENS);
    uint64_t generated = dse_counter_get(DSE_COUNTER_GENERATED_TOKENS);
    uint64_t finished = dse_counter_get(DSE_COUNTER_REQUESTS_FINISHED);
    uint64_t first = dse_histogram_get(DSE_HISTOGRAM_TTFT).count, gaps = dse_histogram_get(DSE_HISTOGRAM_ITL).count;
    uint64_t whole = dse_histogram_get(DSE_HISTOGRAM_E2E).count, queue = dse_histogram_get(DSE_HISTOGRAM_QUEUE).count;
    run_free(run_request(engine, simple(70, 12)));
    assert_int_equal(dse_counter_get(DSE_COUNTER_PROMPT_TOKENS) - prompt_tokens, 70);
    assert_int_equal(dse_counter_get(DSE_COUNTER_GENERATED_TOKENS) - generated, 12);
    assert_int_equal(dse_counter_get(DSE_COUNTER_REQUESTS_FINISHED) - finished, 1);
    assert_int_equal(dse_histogram_get(DSE_HISTOGRAM_TTFT).count - first, 1);
    assert_int_equal(dse_histogram_get(DSE_HISTOGRAM_ITL).count - gaps, 11);
    assert_int_equal(dse_histogram_get(DSE_HISTOGRAM_E2E).count - whole, 1);
    assert_int_equal(dse_histogram_get(DSE_HISTOGRAM_QUEUE).count - queue, 1);
    assert_true(dse_gauge_get(DSE_GAUGE_KV_BLOCKS_TOTAL) >= 8);
    dse_engine_free(engine);
}

static void copy_file(const char *from, const char *to)
{
    struct dse_error error;
    char *data = NULL;
    size_t bytes = 0;
    assert_int_equal(dse_file_read(from, 1u << 26, &data, &bytes, &error), DSE_OK);
    assert_int_equal(dse_file_write_atomic(to, data, bytes, 0644, &error), DSE_OK);
    dse_free(data);
}

/* H9: the file shrinks while requests run. They end with an error, new ones are refused, the process lives. */
static void truncated_model_file_ends_requests_with_an_error(void **state)
{
    (void)state;
    char path[] = "/tmp/dse_truncated_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    copy_file(reference_path("gguf/llama_linear.gguf"), path);
    struct dse_model *model = NULL;
    struct dse_error error;
    struct dse_model_options options = {.n_threads = 1};
    assert_int_equal(dse_model_open(path, &options, &model, &error), DSE_OK);
    struct dse_engine *engine = create_engine(
        model, (struct dse_engine_options){.context_length = 256, .max_concurrent = 1, .max_queue = 3});
    struct run *held = hold_engine(engine), *waiting = run_create();
    run_submit(waiting, engine, simple(10, 3));
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(truncate(path, info.st_size - 1), 0); /* the last byte: no page is lost, so nothing may fault */
    assert_false(dse_model_intact(model));
    run_release(held);
    run_wait(held);
    run_wait(waiting);
    assert_int_equal(held->choice[0].finish, DSE_FINISH_ERROR);
    assert_int_equal(waiting->choice[0].finish, DSE_FINISH_ERROR);
    assert_int_equal(waiting->error.status, DSE_ERR_UNAVAILABLE);
    assert_non_null(strstr(waiting->error.message, "truncated"));
    struct dse_request request = simple(10, 3);
    request.on_event = run_on_event;
    assert_int_equal(dse_engine_submit(engine, &request, NULL, &error), DSE_ERR_UNAVAILABLE);
    run_free(held);
    run_free(waiting);
    dse_engine_free(engine);
    dse_model_unref(model);
    unlink(path);
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
        cmocka_unit_test(submit_beyond_the_queue_is_busy_and_room_returns),
        cmocka_unit_test(memory_is_free_when_the_finish_event_comes),
        cmocka_unit_test(waiting_requests_run_by_priority_then_in_order),
        cmocka_unit_test(requests_wait_for_the_memory_they_were_promised),
        cmocka_unit_test(full_pool_sets_the_lowest_priority_back),
        cmocka_unit_test(prompt_whose_promise_breaks_ends_with_an_error),
        cmocka_unit_test(time_to_first_token_includes_the_queue),
        cmocka_unit_test(submit_under_way_when_the_engine_is_freed_is_refused),
        cmocka_unit_test(request_that_could_never_fit_is_refused_with_both_numbers),
        cmocka_unit_test(four_threads_submit_at_once),
        cmocka_unit_test(counters_and_gauges_follow_the_requests),
        cmocka_unit_test(truncated_model_file_ends_requests_with_an_error),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
