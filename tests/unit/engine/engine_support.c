/* The collector and the reference models of the engine tests. */
#include "engine_support.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/counters.h"
#include "base/random.h"

const char *reference_path(const char *path)
{
    static char full[1024];
    const char *data = getenv("DSE_TEST_DATA");
    (void)snprintf(full, sizeof full, "%s/reference/%s", data != NULL ? data : "tests/data", path);
    return full;
}

const char *const reference_architectures[REFERENCE_ARCHITECTURES] = {
    "llama_linear", "qwen2_bias", "qwen3_yarn", "deepseek_v1_moe", "deepseek_v2", "deepseek_v3", "deepseek_v32"};

struct dse_model *open_reference(const char *path, enum dse_compute compute, int n_threads)
{
    return open_reference_as(path, (struct dse_model_options){.n_threads = n_threads, .compute = compute});
}

struct dse_model *open_reference_as(const char *path, struct dse_model_options options)
{
    struct dse_model *model = NULL;
    struct dse_error error = {0};
    if (dse_model_open(reference_path(path), &options, &model, &error) != DSE_OK)
        fail_msg("%s: %s", path, error.message);
    return model;
}

const char *adapter_path(const char *path)
{
    static char full[1024];
    const char *data = getenv("DSE_TEST_DATA");
    (void)snprintf(full, sizeof full, "%s/adapters/%s", data != NULL ? data : "tests/data", path);
    return full;
}

struct dse_adapter *open_adapter(struct dse_model *model, const char *path)
{
    struct dse_adapter *adapter = NULL;
    struct dse_error error = {0};
    if (dse_adapter_open(model, adapter_path(path), &adapter, &error) != DSE_OK)
        fail_msg("%s: %s", path, error.message);
    return adapter;
}

struct dse_engine *create_engine(struct dse_model *model, struct dse_engine_options options)
{
    struct dse_engine *engine = NULL;
    struct dse_error error = {0};
    if (dse_engine_create(model, &options, &engine, &error) != DSE_OK) fail_msg("engine: %s", error.message);
    return engine;
}

void close_pair_of_engines(struct dse_engine *a, struct dse_engine *b, struct dse_model *model)
{
    wait_until_empty();
    dse_engine_free(a);
    dse_engine_free(b);
    dse_model_unref(model);
}

struct run *run_create(void)
{
    struct run *run = calloc(1, sizeof *run);
    assert_non_null(run);
    pthread_mutex_init(&run->lock, NULL);
    pthread_cond_init(&run->changed, NULL);
    run->n_choices = 1;
    return run;
}

void run_free(struct run *run)
{
    pthread_mutex_destroy(&run->lock);
    pthread_cond_destroy(&run->changed);
    free(run);
}

static bool record(struct run *run, const struct dse_event *e)
{
    run->n_events++;
    int n = run->choice[e->choice].n_tokens;
    switch (e->kind) {
    case DSE_EVENT_PROGRESS:
        run->n_progress++;
        run->n_processed = e->n_processed;
        break;
    case DSE_EVENT_PROMPT_LOGPROB:
        run->prompt_tokens[run->n_prompt_logprobs] = e->token;
        run->prompt_logprobs[run->n_prompt_logprobs++] = e->logprob;
        break;
    case DSE_EVENT_HIDDEN_STATE: run->n_hidden++; break;
    case DSE_EVENT_TOKEN:
        if (n == RUN_MAX_TOKENS) return false;
        run->choice[e->choice].tokens[n] = e->token;
        run->choice[e->choice].logprobs[n] = e->logprob;
        if (e->n_top > 0) memcpy(run->choice[e->choice].top[n], e->top, (size_t)e->n_top * sizeof *e->top);
        run->choice[e->choice].n_top = e->n_top;
        run->choice[e->choice].n_tokens++;
        run->choice[e->choice].saw_stop_token |= e->is_stop_token;
        return run->stop_after == 0 || n + 1 < run->stop_after;
    case DSE_EVENT_FINISH:
        run->choice[e->choice].finish = e->finish;
        run->choice[e->choice].timings = e->timings;
        run->adapter_identity = e->adapter_identity;
        run->choice[e->choice].n_finish_events++;
        if (e->error != NULL) run->error = *e->error;
        run->n_finished++;
        break;
    }
    return true;
}

bool run_on_event(void *user, const struct dse_event *event)
{
    struct run *run = user;
    pthread_mutex_lock(&run->lock);
    bool more = record(run, event);
    if (run->hold && !run->held && event->kind == run->hold_at) {
        run->held = true;
        pthread_cond_broadcast(&run->changed);
        while (!run->released)
            pthread_cond_wait(&run->changed, &run->lock);
    }
    pthread_cond_broadcast(&run->changed);
    pthread_mutex_unlock(&run->lock);
    return more;
}

void run_submit(struct run *run, struct dse_engine *engine, struct dse_request request)
{
    struct dse_error error = {0};
    run->n_choices = request.n_choices;
    request.on_event = run_on_event;
    request.user = run;
    if (dse_engine_submit(engine, &request, &run->id, &error) != DSE_OK) fail_msg("submit: %s", error.message);
}

static void wait_for(struct run *run, bool (*ready)(const struct run *), const char *what)
{
    struct timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += 60;
    int result = 0;
    pthread_mutex_lock(&run->lock);
    while (!ready(run) && result != ETIMEDOUT)
        result = pthread_cond_timedwait(&run->changed, &run->lock, &deadline);
    bool ok = ready(run);
    pthread_mutex_unlock(&run->lock);
    if (!ok) fail_msg("a request was not %s within a minute", what);
}

static bool all_finished(const struct run *run)
{
    return run->n_finished >= run->n_choices;
}

static bool is_held(const struct run *run)
{
    return run->held;
}

void run_wait(struct run *run)
{
    wait_for(run, all_finished, "finished");
}

void run_wait_held(struct run *run)
{
    wait_for(run, is_held, "held");
}

void run_release(struct run *run)
{
    pthread_mutex_lock(&run->lock);
    run->released = true;
    pthread_cond_broadcast(&run->changed);
    pthread_mutex_unlock(&run->lock);
}

struct run *run_request(struct dse_engine *engine, struct dse_request request)
{
    struct run *run = run_create();
    run_submit(run, engine, request);
    run_wait(run);
    return run;
}

bool runs_equal(const struct run *a, const struct run *b)
{
    for (int c = 0; c < DSE_MAX_CHOICES; c++) {
        if (a->choice[c].n_tokens != b->choice[c].n_tokens || a->choice[c].finish != b->choice[c].finish) return false;
        size_t n = (size_t)a->choice[c].n_tokens;
        if (memcmp(a->choice[c].tokens, b->choice[c].tokens, n * sizeof(int32_t)) != 0 ||
            memcmp(a->choice[c].logprobs, b->choice[c].logprobs, n * sizeof(float)) != 0)
            return false;
    }
    return true;
}

void wait_until_empty(void)
{
    for (int i = 0; i < 3000; i++) {
        if (dse_gauge_get(DSE_GAUGE_KV_BLOCKS_USED) == 0 && dse_gauge_get(DSE_GAUGE_REQUESTS_RUNNING) == 0 &&
            dse_gauge_get(DSE_GAUGE_REQUESTS_WAITING) == 0)
            return;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    fail_msg("%lld KV blocks used, %lld running, %lld waiting after everything finished",
             (long long)dse_gauge_get(DSE_GAUGE_KV_BLOCKS_USED), (long long)dse_gauge_get(DSE_GAUGE_REQUESTS_RUNNING),
             (long long)dse_gauge_get(DSE_GAUGE_REQUESTS_WAITING));
}

void fill_prompt(int32_t *ids, int count, int n_vocab, uint64_t seed)
{
    for (int i = 0; i < count; i++)
        ids[i] = 2 + (int32_t)(dse_philox_uniform(seed, 7, (uint64_t)i) * (n_vocab - 2));
}
