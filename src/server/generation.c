/* Submitting prompts, answering (see generation.h); what events do to a choice is in choice.c.
 *
 * References: the running generation itself and the exchange's owner slot hold one each. complete() runs exactly once,
 * when everything that was submitted has finished and nothing more will be: on the engine thread as a rule, on a worker
 * when the last event came before submit() returned.
 */
#include "server/generation.h"
#include "server/params.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/sha256.h"
#include "server/access_log.h"
#include "text/grammar.h"

#define KEEP_ALIVE ": keep-alive\n\n"

static void submit_more(void *argument);

const char *dse_finish_name(enum dse_finish finish)
{
    return finish == DSE_FINISH_LENGTH ? "length" : "stop";
}

/* ---- lifetime ------------------------------------------------------------------------------------------------- */

void dse_gen_prompts_free(struct dse_gen_prompt *prompts, int n_prompts)
{
    for (int i = 0; prompts && i < n_prompts; i++) {
        dse_tokens_deinit(&prompts[i].tokens);
        dse_logprobs_deinit(&prompts[i].echo_logprobs);
        dse_free(prompts[i].echo);
    }
    dse_free(prompts);
}

static void generation_unref(struct dse_generation *g)
{
    if (atomic_fetch_sub_explicit(&g->refs, 1, memory_order_acq_rel) != 1) return;
    for (int i = 0; g->choices && i < g->n_choices; i++)
        dse_choice_deinit(&g->choices[i]);
    dse_free(g->choices);
    dse_gen_prompts_free(g->prompts, g->n_prompts);
    dse_buffer_deinit(&g->chunk);
    for (int i = 0; i < g->n_adapters; i++)
        dse_adapter_unref(g->adapters[i].adapter);
    dse_grammar_unref(g->grammar);
    dse_gen_params_deinit(&g->params);
    json_decref(g->stop);
    dse_free(g->echo);
    dse_http_unref(g->exchange);
    pthread_mutex_destroy(&g->lock);
    dse_free(g);
}

static void on_release(void *user)
{
    generation_unref(user);
}

/* From any thread. */
static void cancel_prompts(struct dse_generation *g)
{
    uint64_t ids[DSE_MAX_INPUTS];
    int n = 0;
    pthread_mutex_lock(&g->lock);
    for (int i = 0; i < g->n_prompts; i++)
        if (g->prompts[i].id && g->prompts[i].choices_left > 0) ids[n++] = g->prompts[i].id;
    pthread_mutex_unlock(&g->lock);
    for (int i = 0; i < n; i++)
        dse_engine_cancel(g->served->engine, ids[i]);
}

/* The client left: from any thread. */
static void on_gone(void *user)
{
    struct dse_generation *g = user;
    atomic_store(&g->gone, true);
    cancel_prompts(g);
}

static void enlist(struct dse_generation *g)
{
    struct dse_server *server = g->server;
    pthread_mutex_lock(&server->lock);
    g->next = server->generations;
    if (g->next) g->next->previous = g;
    server->generations = g;
    server->in_flight++;
    pthread_mutex_unlock(&server->lock);
}

/* Takes the reference of the running generation. Last of all: the server may be gone as soon as nothing is in
 * flight. */
static void delist(struct dse_generation *g)
{
    struct dse_server *server = g->server;
    pthread_mutex_lock(&server->lock);
    if (g->previous)
        g->previous->next = g->next;
    else
        server->generations = g->next;
    if (g->next) g->next->previous = g->previous;
    pthread_mutex_unlock(&server->lock);
    generation_unref(g);
    pthread_mutex_lock(&server->lock);
    if (--server->in_flight == 0) pthread_cond_broadcast(&server->idle);
    pthread_mutex_unlock(&server->lock);
}

/* ---- answer --------------------------------------------------------------------------------------------------- */

void dse_generation_fail(struct dse_generation *g, const struct dse_gen_prompt *p, const struct dse_error *err)
{
    pthread_mutex_lock(&g->lock);
    bool first = !atomic_load(&g->failed);
    if (first) {
        g->failure = *err;
        g->refused = p;
        atomic_store(&g->failed, true); /* last: whoever sees it may read the others */
    }
    pthread_mutex_unlock(&g->lock);
    if (first) cancel_prompts(g);
}

void dse_generations_end(struct dse_server *server)
{
    struct dse_error err;
    dse_fail(&err, DSE_ERR_CANCELLED, "the server is shutting down");
    for (;;) {
        pthread_mutex_lock(&server->lock);
        struct dse_generation *g = server->generations;
        while (g && g->ended)
            g = g->next;
        if (g) {
            g->ended = true;
            atomic_fetch_add(&g->refs, 1);
        }
        pthread_mutex_unlock(&server->lock);
        if (!g) return;
        dse_generation_fail(g, NULL, &err);
        generation_unref(g);
    }
}

#define REFUSAL_BYTES 512

/* The failure as clients of this dialect know it; message is room for its text. */
static struct dse_api_error describe_failure(const struct dse_generation *g, char message[REFUSAL_BYTES])
{
    const struct dse_gen_prompt *p = g->refused;
    const struct dse_error *err = &g->failure;
    struct dse_api_error error = dse_api_error_from(err);
    if (p && err->status == DSE_ERR_TOO_LONG) {
        long long context = g->served->context_length, prompt = (long long)p->tokens.count;
        long long output = g->params.max_tokens < 0 ? 1 : g->params.max_tokens;
        snprintf(message, REFUSAL_BYTES, g->dialect->too_long, context, prompt + output, prompt, output);
        error.message = message;
        error.code = "context_length_exceeded";
        error.param = g->dialect->prompt_field;
        error.has_lengths = true;
        error.n_ctx = context;
        error.n_prompt_tokens = prompt;
    } else if (p && err->status == DSE_ERR_NO_MEMORY && err->file[0]) { /* could never fit the pool */
        error.http = 400;
        error.type = "invalid_request_error";
        error.code = "request_too_large";
        error.param = err->file;
    } else if (p && strcmp(err->file, "adapters") == 0) { /* the engine's name for it */
        error.param = "lora";
    }
    return error;
}

static void leave(struct dse_generation *g)
{
    dse_http_clear_owner(g->exchange);
    delist(g);
}

static void answer_whole(void *argument)
{
    struct dse_generation *g = argument;
    struct dse_buffer out;
    dse_buffer_init(&out, DSE_MEM_REQUEST, DSE_MAX_ANSWER_BYTES);
    dse_put_whole_answer(g, &out);
    dse_answer_buffer(g->server, g->exchange, 200, "application/json", &out);
    leave(g);
}

/* Never refused: the workers run until no generation is in flight. One job at a time: submission, then the answer. */
static void post(struct dse_generation *g, dse_job_fn *fn)
{
    (void)dse_workers_post(g->server->workers, &g->job, fn, g);
}

static void complete(struct dse_generation *g)
{
    dse_access_note_generation(g);
    if (!g->params.stream && !atomic_load(&g->failed)) {
        post(g, answer_whole); /* may be long, and the engine has others to serve */
        return;
    }
    if (g->params.stream && g->params.include_usage) dse_stream_usage(g);
    if (atomic_load(&g->failed)) {
        char message[REFUSAL_BYTES];
        struct dse_api_error error = describe_failure(g, message);
        if (g->params.stream && g->prompts[0].id) /* a stream has begun */
            dse_stream_error(g, &error);
        else
            dse_answer_error(g->server, g->exchange, &error);
    } else {
        dse_stream_end(g);
    }
    leave(g);
}

void dse_generation_choice_finished(struct dse_gen_prompt *p)
{
    struct dse_generation *g = p->generation;
    pthread_mutex_lock(&g->lock);
    bool resume = false;
    if (--p->choices_left == 0) {
        g->n_running--;
        resume = g->waiting;
        g->waiting = false;
        if (resume) g->submitting = true;
    }
    bool done = g->n_running == 0 && g->n_submitted == g->n_prompts && !g->submitting;
    pthread_mutex_unlock(&g->lock);
    if (resume) post(g, submit_more);
    if (done) complete(g);
}

/* ---- submission (worker thread) ------------------------------------------------------------------------------- */

static enum dse_status submit_one(struct dse_generation *g, struct dse_gen_prompt *p, uint64_t *id,
                                  struct dse_error *err)
{
    struct dse_request request = dse_request_default;
    int64_t rest = g->served->context_length - (int64_t)p->tokens.count;
    request.prompt = p->tokens.ids;
    request.n_prompt = (int)p->tokens.count;
    request.max_tokens = (int)g->params.max_tokens;
    if (rest > 0 && g->params.max_tokens > rest) request.max_tokens = (int)rest;
    request.min_tokens = g->params.min_tokens;
    if (request.max_tokens >= 0 && request.min_tokens > request.max_tokens) request.min_tokens = request.max_tokens;
    request.n_choices = g->params.n;
    request.ignore_eos = g->params.ignore_eos;
    request.stop_tokens = g->params.stop_tokens;
    request.n_stop_tokens = g->params.n_stop_tokens;
    request.prompt_logprobs = p->echo && g->params.logprobs;
    request.hidden_states = g->dialect->embeds;
    request.sampling = g->params.sampling;
    request.grammar = g->grammar;
    request.cache_salt = g->caller.cache_salt;
    request.cache_salt_bytes = sizeof g->caller.cache_salt;
    request.adapters = g->adapters;
    request.n_adapters = g->n_adapters;
    request.priority = g->caller.priority;
    request.tenant = g->caller.tenant;
    /* What is thought is free; the grammar is for the answer. */
    if (g->grammar && g->starts_in_reasoning)
        request.grammar_after_token = dse_tokenizer_find_added(g->served->tokenizer, "</think>");
    if (g->params.thought_budget == 0 && g->starts_in_reasoning) request.forced = dse_thought_end(g->served);
    request.on_event = dse_choice_on_event;
    request.user = p;
    return dse_engine_submit(g->served->engine, &request, id, err);
}

/* Submits prompts while the engine takes them. Called with g->submitting set. */
static void submit_more(void *argument)
{
    struct dse_generation *g = argument;
    for (;;) {
        pthread_mutex_lock(&g->lock);
        bool stop = g->gone || atomic_load(&g->failed) || g->n_submitted == g->n_prompts;
        struct dse_gen_prompt *p = stop ? NULL : &g->prompts[g->n_submitted];
        if (p) {
            g->n_submitted++;
            g->n_running++;
        } else {
            g->n_submitted = g->n_prompts; /* the rest is given up, if there is any */
        }
        pthread_mutex_unlock(&g->lock);
        if (!p) break;

        struct dse_error err;
        uint64_t id = 0;
        enum dse_status status = submit_one(g, p, &id, &err);
        if (status == DSE_OK) {
            pthread_mutex_lock(&g->lock);
            p->id = id;
            bool cancel = g->gone || atomic_load(&g->failed);
            pthread_mutex_unlock(&g->lock);
            if (cancel) dse_engine_cancel(g->served->engine, id);
            if (p->index == 0 && g->params.stream)
                dse_http_begin_stream(g->exchange, "text/event-stream",
                                      g->dialect->events ? g->dialect->events->filler : KEEP_ALIVE);
            else if (p->index == 0)
                dse_http_allow_probe(g->exchange);
            continue;
        }
        pthread_mutex_lock(&g->lock);
        g->n_running--;
        g->n_submitted--;
        bool wait = status == DSE_ERR_BUSY && p->index > 0 && g->n_running > 0;
        if (wait) { /* the next of ours that finishes makes room */
            g->waiting = true;
            g->submitting = false;
        }
        pthread_mutex_unlock(&g->lock);
        if (wait) return;
        if (status == DSE_ERR_BUSY && p->index > 0) { /* others have taken the queue */
            nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
            post(g, submit_more); /* others' turn meanwhile */
            return;
        }
        dse_generation_fail(g, p, &err);
    }
    pthread_mutex_lock(&g->lock);
    g->submitting = false;
    bool done = g->n_running == 0;
    pthread_mutex_unlock(&g->lock);
    if (done) complete(g);
}

/* ---- start ---------------------------------------------------------------------------------------------------- */

static void set_names(struct dse_generation *g)
{
    unsigned char random[12];
    dse_random_bytes(random, sizeof random);
    int n = snprintf(g->id, sizeof g->id, "%s", g->dialect->id_prefix);
    for (size_t i = 0; i < sizeof random; i++)
        n += snprintf(g->id + n, sizeof g->id - (size_t)n, "%02x", random[i]);
    const char *name = dse_server_resolve_model(g->server, g->params.model);
    snprintf(g->model, sizeof g->model, "%s", name ? name : dse_server_model_name(g->server));
    g->created = dse_clock_unix_s();
    g->start_ns = dse_clock_ns();
}

/* Held from here on: what is unloaded or replaced meanwhile, this request keeps. */
static enum dse_status choose_adapters(struct dse_generation *g, struct dse_error *err)
{
    const char *model = g->params.model;
    const char *adapter = model && !dse_server_is_base_model(g->server, model) ? model : NULL;
    bool named = false;
    TRY(dse_adapter_list_choose(g->server->adapters, adapter, g->params.lora, g->adapters, &g->n_adapters, &named,
                                err));
    if (named) snprintf(g->model, sizeof g->model, "%s", adapter);
    if (named || dse_server_resolve_model(g->server, model)) return DSE_OK;
    /* it was there when the request came */
    return dse_fail_at(err, DSE_ERR_NOT_FOUND, "model", -1, "The model `%.128s` does not exist", model);
}

static enum dse_status create(struct dse_server *server, const struct dse_generation_setup *setup,
                              struct dse_generation **out, struct dse_error *err)
{
    struct dse_generation *g = dse_calloc(DSE_MEM_REQUEST, 1, sizeof *g);
    if (!g) {
        struct dse_gen_params params = *setup->params;
        dse_gen_params_deinit(&params);
        dse_gen_prompts_free(setup->prompts, setup->n_prompts);
        dse_grammar_unref(setup->grammar);
        json_decref(setup->root);
        dse_free(setup->echo);
        return dse_fail_memory(err, sizeof *g, "request");
    }
    *out = g;
    atomic_init(&g->refs, 1);
    pthread_mutex_init(&g->lock, NULL);
    g->server = server;
    g->served = atomic_load(&server->served);
    g->exchange = dse_http_ref(setup->exchange);
    g->dialect = setup->dialect;
    g->params = *setup->params;
    g->grammar = setup->grammar;
    g->prompts = setup->prompts;
    g->n_prompts = setup->n_prompts;
    g->starts_in_reasoning = setup->starts_in_reasoning;
    g->tools = setup->tools;
    g->echo = setup->echo;
    dse_buffer_init(&g->chunk, DSE_MEM_REQUEST, DSE_MAX_ANSWER_BYTES);
    set_names(g);
    /* Of the request's JSON, which may be large, only the stop strings are still needed. */
    g->stop = json_incref(json_object_get(setup->root, "stop"));
    if (!g->params.has_thought_budget) g->params.thought_budget = server->thought_budget;
    enum dse_status status = dse_caller_identify(&server->auth, g->exchange, &g->params, &g->caller, err);
    if (status == DSE_OK) status = choose_adapters(g, err);
    json_decref(setup->root);
    g->params.model = g->params.cache_salt = NULL;
    g->params.lora = NULL;
    g->params.constraint = (struct dse_constraint){.kind = DSE_CONSTRAINT_NONE};
    if (status != DSE_OK) return status;
    g->n_choices = g->n_prompts * g->params.n;
    g->choices = dse_calloc(DSE_MEM_REQUEST, (size_t)g->n_choices, sizeof *g->choices);
    if (!g->choices) return dse_fail_memory(err, (size_t)g->n_choices * sizeof *g->choices, "choices");
    for (int i = 0; i < g->n_choices; i++) {
        status = dse_choice_init(g, i, err);
        if (status != DSE_OK) return status;
    }
    for (int i = 0; i < g->n_prompts; i++) {
        g->prompts[i].generation = g;
        g->prompts[i].index = i;
        g->prompts[i].choices_left = g->params.n;
        dse_choices_begin_with_echo(g, &g->prompts[i]);
    }
    return DSE_OK;
}

void dse_generation_run(struct dse_server *server, const struct dse_generation_setup *setup)
{
    struct dse_error err;
    struct dse_generation *g = NULL;
    enum dse_status status = create(server, setup, &g, &err);
    if (status != DSE_OK) {
        dse_answer_failure(server, setup->exchange, &err);
        if (g) generation_unref(g);
        return;
    }
    if (g->params.stream) {
        dse_http_set_header(g->exchange, "Cache-Control", "no-cache");
        dse_http_set_header(g->exchange, "X-Accel-Buffering", "no");
    }
    /* In flight before the check: stop() sets `draining` first and then waits for what is in flight. */
    enlist(g);
    atomic_fetch_add(&g->refs, 1);
    struct dse_http_owner owner = {on_gone, on_release, g};
    bool present = dse_http_set_owner(g->exchange, &owner);
    if (!present) atomic_fetch_sub(&g->refs, 1);
    if (!present || atomic_load(&server->draining)) {
        if (present) dse_answer_problem(server, g->exchange, 503, NULL, "draining", "the server is shutting down");
        leave(g);
        return;
    }
    g->submitting = true;
    submit_more(g);
}
