/* Submitting prompts, taking events, answering (see generation.h).
 *
 * References: the running generation itself and the exchange's owner slot hold one each. complete() runs exactly once,
 * when everything that was submitted has finished and nothing more will be: on the engine thread as a rule, on a worker
 * when the last event came before submit() returned.
 */
#include "server/generation.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "text/grammar.h"

#define MAX_TEXT_BYTES (256u << 20)
#define KEEP_ALIVE     ": keep-alive\n\n"

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
    for (int i = 0; g->choices && i < g->n_choices; i++) {
        struct dse_choice *c = &g->choices[i];
        dse_output_free(c->output);
        dse_buffer_deinit(&c->text[0]);
        dse_buffer_deinit(&c->text[1]);
        dse_buffer_deinit(&c->raw);
        dse_tool_answer_deinit(&c->calls);
        dse_logprobs_deinit(&c->logprobs);
        dse_logprobs_deinit(&c->waiting);
    }
    dse_free(g->choices);
    dse_gen_prompts_free(g->prompts, g->n_prompts);
    dse_buffer_deinit(&g->chunk);
    dse_grammar_unref(g->grammar);
    dse_gen_params_deinit(&g->params);
    json_decref(g->stop);
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
    uint64_t ids[DSE_MAX_PROMPTS];
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

/* Takes the reference of the running generation. Last of all: the server may be gone as soon as nothing is in flight. */
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
        error.param = g->dialect->put_first ? "messages" : "prompt";
        error.has_lengths = true;
        error.n_ctx = context;
        error.n_prompt_tokens = prompt;
    } else if (p && err->status == DSE_ERR_NO_MEMORY && err->file[0]) { /* could never fit the pool */
        error.http = 400;
        error.type = "invalid_request_error";
        error.code = "request_too_large";
        error.param = err->file;
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
    dse_buffer_init(&out, DSE_MEM_REQUEST, MAX_TEXT_BYTES);
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

/* ---- events (engine thread) ----------------------------------------------------------------------------------- */

static void on_text(void *user, enum dse_channel channel, const char *text, size_t bytes)
{
    struct dse_choice *c = user;
    dse_buffer_append(&c->text[channel], text, bytes);
}

static void on_tool(void *user, const struct dse_tool_event *event)
{
    struct dse_choice *c = user;
    dse_tool_answer_add(&c->calls, event);
}

static uint32_t count_characters(const char *text, size_t bytes)
{
    uint32_t n = 0;
    for (size_t i = 0; i < bytes; i++)
        n += ((unsigned char)text[i] & 0xC0) != 0x80;
    return n;
}

/* The first thing that a client sees of a choice. */
static void start_choice(struct dse_choice *c)
{
    if (!c->started && c->generation->params.stream) dse_stream_first(c);
    c->started = true;
}

static void add_logprob(struct dse_choice *c, const struct dse_event *event, struct dse_slice text)
{
    struct dse_logprob_entry *entry = dse_logprobs_add(&c->waiting, event->token, event->logprob, event->top,
                                                       event->n_top);
    if (!entry) return;
    entry->raw_start = c->raw.length;
    entry->text_offset = c->characters;
    c->characters += count_characters(text.data, text.bytes);
    dse_buffer_append(&c->raw, text.data, text.bytes);
}

/* Where the stop string that has just ended begins in the raw text; tokens after that are not part of the answer. */
static void cut_logprobs(struct dse_choice *c, int stop_index, size_t last_token_bytes)
{
    const struct dse_gen_params *params = &c->generation->params;
    if (stop_index < 0 || stop_index >= params->n_stops || !c->raw.data) return;
    size_t bytes = params->stop_bytes[stop_index], length = c->raw.length;
    size_t from = length > bytes + last_token_bytes ? length - bytes - last_token_bytes : 0;
    const char *at = memmem(c->raw.data + from, length - from, params->stops[stop_index], bytes);
    if (at) dse_logprobs_cut(&c->waiting, (size_t)(at - c->raw.data));
}

/* Tokens that begin inside a call are not part of the content. */
static void drop_call_logprobs(struct dse_choice *c)
{
    struct dse_output_span spans[DSE_OUTPUT_CALL_SPANS];
    dse_output_call_spans(c->output, spans);
    for (int i = 0; i < DSE_OUTPUT_CALL_SPANS; i++) {
        size_t length = c->raw.length, kept = 0;
        size_t begin = length > spans[i].begin ? length - spans[i].begin : 0;
        size_t end = length > spans[i].end ? length - spans[i].end : 0;
        for (size_t k = 0; k < c->waiting.count; k++) {
            const struct dse_logprob_entry *entry = &c->waiting.entries[k];
            if (entry->raw_start < begin || entry->raw_start >= end) c->waiting.entries[kept++] = *entry;
        }
        c->waiting.count = kept;
    }
}

/* Sends what the output stage let go of, if the client streams. An answer with a hole must not pass for a whole one. */
static void pass_on(struct dse_choice *c)
{
    const struct dse_buffer *parts[] = {&c->text[0], &c->text[1], &c->calls.text, &c->raw};
    size_t bytes = 0;
    bool failed = c->logprobs.failed || c->waiting.failed || c->prompt->echo_logprobs.failed;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        failed |= parts[i]->failed;
        bytes += parts[i]->length;
    }
    if (failed) {
        struct dse_error err;
        dse_fail_memory(&err, bytes, "the text of an answer");
        dse_generation_fail(c->generation, NULL, &err);
    } else if (c->generation->params.stream) {
        dse_stream_delta(c);
    }
}

static bool on_token(struct dse_choice *c, const struct dse_event *event)
{
    struct dse_generation *g = c->generation;
    if (c->stopped || atomic_load(&g->failed)) return false;
    c->n_tokens++;
    start_choice(c);
    if (event->is_stop_token) return true;
    const struct dse_tokenizer *tokenizer = g->served->tokenizer;
    struct dse_slice text = dse_tokenizer_bytes(tokenizer, event->token);
    if (g->params.skip_special_tokens && dse_tokenizer_kind(tokenizer, event->token) == DSE_TOKEN_CONTROL &&
        !dse_tool_format_has(g->tools, text.data, text.bytes))
        return true;
    bool reasoned = dse_output_in_reasoning(c->output);
    int stop_index = -1;
    bool more = dse_output_feed(c->output, text.data ? text.data : "", text.bytes, &stop_index);
    if (g->params.logprobs) {
        /* Only what ends up in the content is listed, together with its text. */
        if (dse_output_in_reasoning(c->output))
            dse_logprobs_clear(&c->waiting);
        else if (!reasoned)
            add_logprob(c, event, text);
        if (!more) cut_logprobs(c, stop_index, text.bytes);
        drop_call_logprobs(c);
        size_t held = more ? dse_output_held_bytes(c->output) : 0;
        dse_logprobs_move(&c->waiting, &c->logprobs, c->raw.length > held ? c->raw.length - held : 0);
        if (!more) dse_logprobs_move(&c->waiting, &c->logprobs, SIZE_MAX);
    }
    c->stopped = !more;
    pass_on(c);
    return more && !atomic_load(&g->failed);
}

static void on_prompt_logprob(struct dse_gen_prompt *p, const struct dse_event *event)
{
    struct dse_logprob_entry *entry = dse_logprobs_add(&p->echo_logprobs, event->token, event->logprob, event->top,
                                                       event->n_top);
    if (!entry) return;
    struct dse_slice text = dse_tokenizer_bytes(p->generation->served->tokenizer, event->token);
    struct dse_choice *c = &p->generation->choices[p->index * p->generation->params.n];
    entry->text_offset = c->characters;
    c->characters += count_characters(text.data, text.bytes);
}

static void on_finish(struct dse_choice *c, const struct dse_event *event)
{
    struct dse_generation *g = c->generation;
    struct dse_gen_prompt *p = c->prompt;
    c->finish = event->finish;
    c->timings = event->timings;
    if (event->finish == DSE_FINISH_ERROR && event->error) {
        dse_generation_fail(g, NULL, event->error);
    } else if (event->finish == DSE_FINISH_ERROR || (event->finish == DSE_FINISH_CANCELLED && !g->gone)) {
        struct dse_error err;
        dse_fail(&err, event->finish == DSE_FINISH_ERROR ? DSE_ERR_INTERNAL : DSE_ERR_CANCELLED,
                 "generation ended early");
        dse_generation_fail(g, NULL, &err);
    } else if (event->finish != DSE_FINISH_CANCELLED && !atomic_load(&g->failed)) {
        dse_output_finish(c->output);
        drop_call_logprobs(c);
        dse_logprobs_move(&c->waiting, &c->logprobs, SIZE_MAX);
        start_choice(c);
        pass_on(c);
    }
    c->finished = true;
    g->n_finished++;
    if (g->params.stream) dse_stream_finish(c);

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

static bool on_event(void *user, const struct dse_event *event)
{
    struct dse_gen_prompt *p = user;
    struct dse_generation *g = p->generation;
    struct dse_choice *c = &g->choices[p->index * g->params.n + event->choice];
    switch (event->kind) {
    case DSE_EVENT_PROGRESS:
        if (g->params.stream && g->params.return_progress) dse_stream_progress(c, event->n_processed, event->n_prompt);
        return true;
    case DSE_EVENT_PROMPT_LOGPROB: on_prompt_logprob(p, event); return true;
    case DSE_EVENT_TOKEN: return on_token(c, event);
    case DSE_EVENT_FINISH: on_finish(c, event); return true;
    }
    return true;
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
    request.sampling = g->params.sampling;
    request.grammar = g->grammar;
    /* What is thought is free; the grammar is for the answer. */
    if (g->grammar && g->starts_in_reasoning)
        request.grammar_after_token = dse_tokenizer_find_added(g->served->tokenizer, "</think>");
    request.on_event = on_event;
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
                dse_http_begin_stream(g->exchange, "text/event-stream", KEEP_ALIVE);
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

static enum dse_status create_choice(struct dse_generation *g, int index, struct dse_error *err)
{
    struct dse_choice *c = &g->choices[index];
    c->generation = g;
    c->prompt = &g->prompts[index / g->params.n];
    c->index = index;
    dse_buffer_init(&c->text[0], DSE_MEM_REQUEST, MAX_TEXT_BYTES);
    dse_buffer_init(&c->text[1], DSE_MEM_REQUEST, MAX_TEXT_BYTES);
    dse_buffer_init(&c->raw, DSE_MEM_REQUEST, MAX_TEXT_BYTES);
    dse_tool_answer_init(&c->calls, g->params.stream, MAX_TEXT_BYTES);
    bool chat = g->dialect->put_first != NULL;
    struct dse_output_options options = {
        .stops = g->params.stops,
        .stop_bytes = g->params.stop_bytes,
        .n_stops = g->params.n_stops,
        .reasoning = g->server->reasoning,
        .starts_in_reasoning = g->starts_in_reasoning,
        .think_open = chat && g->served->thinks ? "<think>" : NULL,
        .think_close = chat && g->served->thinks ? "</think>" : NULL,
        .emit = on_text,
        .tools = g->tools,
        .emit_tool = on_tool,
        .user = c,
    };
    return dse_output_create(&options, &c->output, err);
}

/* The echoed prompt is the beginning of every choice's text. */
static void begin_with_echo(struct dse_generation *g, struct dse_gen_prompt *p)
{
    if (!p->echo) return;
    for (int i = 0; i < g->params.n; i++) {
        struct dse_choice *c = &g->choices[p->index * g->params.n + i];
        dse_buffer_append(&c->text[DSE_CHANNEL_CONTENT], p->echo, p->echo_bytes);
        if (i > 0) c->characters = count_characters(p->echo, p->echo_bytes);
    }
    if (!g->params.logprobs) return;
    struct dse_choice *c = &g->choices[p->index * g->params.n];
    struct dse_logprob_entry *entry = dse_logprobs_add(&p->echo_logprobs, p->tokens.ids[0], 0, NULL, 0);
    if (!entry) return;
    struct dse_slice text = dse_tokenizer_bytes(g->served->tokenizer, entry->token);
    bool shown = text.bytes <= p->echo_bytes && memcmp(text.data, p->echo, text.bytes) == 0;
    entry->has_logprob = false;
    c->characters = shown ? count_characters(text.data, text.bytes) : 0; /* a BOS put in front has no text */
}

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
    dse_buffer_init(&g->chunk, DSE_MEM_REQUEST, MAX_TEXT_BYTES);
    set_names(g);
    /* Of the request's JSON, which may be large, only the stop strings are still needed. */
    g->stop = json_incref(json_object_get(setup->root, "stop"));
    json_decref(setup->root);
    g->params.model = g->params.grammar = NULL;
    g->n_choices = g->n_prompts * g->params.n;
    g->choices = dse_calloc(DSE_MEM_REQUEST, (size_t)g->n_choices, sizeof *g->choices);
    if (!g->choices) return dse_fail_memory(err, (size_t)g->n_choices * sizeof *g->choices, "choices");
    for (int i = 0; i < g->n_choices; i++) {
        enum dse_status status = create_choice(g, i, err);
        if (status != DSE_OK) return status;
    }
    for (int i = 0; i < g->n_prompts; i++) {
        g->prompts[i].generation = g;
        g->prompts[i].index = i;
        g->prompts[i].choices_left = g->params.n;
        begin_with_echo(g, &g->prompts[i]);
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
