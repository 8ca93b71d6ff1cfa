/* Start, stop and drain; routes; what every request passes before its handler: ids, CORS, Host, keys, readiness.
 *
 * on_begin and on_headers run on the I/O thread for every request, so nothing here may block; handlers of routes that
 * need a body run on workers.
 */
#include "server/server.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "engine/saved_file.h"
#include "server/access_log.h"
#include "server/errors.h"
#include "server/fim.h"
#include "server/generation.h"
#include "server/listen.h"
#include "server/metrics.h"
#include "server/server_internal.h"
#include "server/slots.h"
#include "server/step_trace.h"
#include "server/trace_context.h"

#define FLUSH_MS 2000

const struct dse_server_options dse_server_options_default = {
    .port = 8080,
    .reasoning = DSE_REASONING_DEEPSEEK,
    .thought_budget = -1,
    .max_body_bytes = 8u << 20,
    .max_header_bytes = 32u << 10,
    .max_headers = 100,
    .max_connections = 1024,
    .max_queue_bytes = 1u << 20,
    .ping_ms = 10000,
    .idle_ms = 75000,
    .body_ms = 300000,
    .n_workers = 2,
    .debug_steps = true,
};

/* ---- routes --------------------------------------------------------------------------------------------------- */

enum {
    ROUTE_PUBLIC = 1, /* no key needed */
    ROUTE_GET = 2,    /* GET and HEAD, answered on the I/O thread; otherwise POST, on a worker */
    ROUTE_ENGINE = 4, /* 503 until the model is loaded */
    ROUTE_WORK = 8,   /* 503 while draining */
    ROUTE_PREFIX = 16,
    ROUTE_DEBUG = 32,  /* --no-debug-steps takes it away */
    ROUTE_STREAM = 64, /* GET all the same, but on a worker: its client is watched for leaving */
};

static const struct route {
    const char *path;
    unsigned flags;
    dse_route_fn *handler;
} routes[] = {
    {"/chat/completions", ROUTE_ENGINE | ROUTE_WORK, dse_handle_chat},
    {"/completions", ROUTE_ENGINE | ROUTE_WORK, dse_handle_completions},
    {"/infill", ROUTE_ENGINE | ROUTE_WORK, dse_handle_infill},
    {"/embeddings", ROUTE_ENGINE | ROUTE_WORK, dse_handle_embeddings},
    {"/responses", ROUTE_ENGINE | ROUTE_WORK, dse_handle_responses},
    {"/responses/input_tokens", ROUTE_ENGINE, dse_handle_responses_count},
    {"/messages", ROUTE_ENGINE | ROUTE_WORK, dse_handle_messages},
    {"/messages/count_tokens", ROUTE_ENGINE, dse_handle_messages_count},
    {"/models", ROUTE_GET, dse_handle_models},
    {"/models/", ROUTE_GET | ROUTE_PREFIX, dse_handle_model},
    {"/load_lora_adapter", ROUTE_ENGINE | ROUTE_WORK, dse_handle_load_adapter},
    {"/unload_lora_adapter", ROUTE_ENGINE | ROUTE_WORK, dse_handle_unload_adapter},
    {"/lora-adapters", ROUTE_GET | ROUTE_ENGINE, dse_handle_adapters},
    {"/lora-adapters", ROUTE_ENGINE, dse_handle_adapter_scales},
    {"/tokenize", ROUTE_ENGINE, dse_handle_tokenize},
    {"/detokenize", ROUTE_ENGINE, dse_handle_detokenize},
    {"/apply-template", ROUTE_ENGINE, dse_handle_apply_template},
    {"/health", ROUTE_GET | ROUTE_PUBLIC, dse_handle_health},
    {"/ready", ROUTE_GET | ROUTE_PUBLIC, dse_handle_ready},
    {"/version", ROUTE_GET | ROUTE_PUBLIC, dse_handle_version},
    {"/metrics", ROUTE_GET | ROUTE_PUBLIC, dse_handle_metrics},
    {"/openapi.json", ROUTE_GET | ROUTE_PUBLIC, dse_handle_openapi},
    {"/slots", ROUTE_GET | ROUTE_ENGINE, dse_handle_slots},
    {"/slots/", ROUTE_ENGINE | ROUTE_WORK | ROUTE_PREFIX, dse_handle_slot_action},
    {"/debug/steps", ROUTE_GET | ROUTE_ENGINE | ROUTE_DEBUG, dse_handle_steps},
    {"/api/edge/state", ROUTE_GET, dse_handle_state},
    {"/api/edge/events", ROUTE_GET | ROUTE_STREAM, dse_handle_events},
    {"/", ROUTE_GET | ROUTE_PUBLIC, dse_handle_ui},
    {"/ui/", ROUTE_GET | ROUTE_PUBLIC | ROUTE_PREFIX, dse_handle_ui},
};

static bool is_get(const char *method)
{
    return strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
}

/* Every path also under /v1, /beta and /anthropic: base URLs of clients end in one of them. Of two routes with one
 * path that of the method counts. */
static const struct route *find_route(const char *path, const char *method)
{
    const struct route *found = NULL;
    if (strncmp(path, "/beta/", 6) == 0) path += 5;
    if (strncmp(path, "/anthropic/", 11) == 0) path += 10;
    if (strncmp(path, "/v1/", 4) == 0) path += 3;
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        size_t n = strlen(routes[i].path);
        bool match = routes[i].flags & ROUTE_PREFIX ? strncmp(path, routes[i].path, n) == 0 && path[n]
                                                    : strcmp(path, routes[i].path) == 0;
        if (!match) continue;
        found = &routes[i];
        if (is_get(method) == ((found->flags & ROUTE_GET) != 0)) break;
    }
    return found;
}

/* ---- what every request passes -------------------------------------------------------------------------------- */

static void add_request_id(struct dse_http_exchange *x)
{
    const char *given = dse_http_header(x, "X-Request-Id");
    bool usable = given && given[0] && strlen(given) <= 128;
    for (const char *p = given; usable && *p; p++)
        usable = (*p >= '0' && *p <= '9') || (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || strchr("-_.:", *p);
    char id[32] = "req-";
    if (!usable) {
        unsigned char random[12];
        dse_random_bytes(random, sizeof random);
        for (size_t i = 0; i < sizeof random; i++)
            snprintf(id + 4 + 2 * i, 3, "%02x", random[i]);
        given = id;
    }
    dse_http_set_header(x, "X-Request-Id", given);
    if (dse_path_is_messages(dse_http_path(x))) dse_http_set_header(x, "Request-Id", given); /* their name for it */
}

static void add_trace(struct dse_http_exchange *x)
{
    struct dse_trace_context context;
    char text[DSE_TRACEPARENT_BYTES];
    dse_trace_context_begin(dse_http_only_header(x, "traceparent"), &context);
    dse_trace_context_put(&context, text);
    dse_http_set_header(x, "traceparent", text);
}

/* On every answer, whoever gives it. */
static void on_begin(void *user, struct dse_http_exchange *x)
{
    struct dse_server *server = user;
    const char *origin = dse_http_header(x, "Origin");
    add_request_id(x);
    add_trace(x);
    dse_http_set_header(x, "X-Content-Type-Options", "nosniff");
    if (!origin || !dse_auth_origin_ok(&server->auth, origin)) return;
    dse_http_set_header(x, "Access-Control-Allow-Origin", origin);
    dse_http_set_header(x, "Vary", "Origin");
    dse_http_set_header(x, "Access-Control-Expose-Headers", "X-Request-Id, Retry-After, traceparent");
}

static void answer_preflight(struct dse_http_exchange *x)
{
    const char *wanted = dse_http_header(x, "Access-Control-Request-Headers");
    dse_http_set_header(x, "Access-Control-Allow-Methods", "GET, HEAD, POST, OPTIONS");
    dse_http_set_header(x, "Access-Control-Allow-Headers",
                        wanted && strlen(wanted) < 1024 ? wanted : "Authorization, Content-Type, X-Api-Key");
    dse_http_set_header(x, "Access-Control-Max-Age", "86400");
    dse_http_set_header(x, "Allow", "GET, HEAD, POST, OPTIONS");
    dse_http_respond(x, 204, NULL, NULL, 0);
}

/* For the header Allow of a path that has a route. */
static const char *allowed_methods(const char *path)
{
    const bool get = (find_route(path, "GET")->flags & ROUTE_GET) != 0;
    const bool post = (find_route(path, "POST")->flags & ROUTE_GET) == 0;
    return get && post ? "GET, HEAD, POST, OPTIONS" : get ? "GET, HEAD, OPTIONS" : "POST, OPTIONS";
}

/* Everything that can be said from the headers alone; returns the route when its handler is to go on. */
static const struct route *admit(struct dse_server *server, struct dse_http_exchange *x)
{
    const char *method = dse_http_method(x), *origin = dse_http_header(x, "Origin");
    const struct route *route = find_route(dse_http_path(x), dse_http_method(x));
    if (route && route->flags & ROUTE_DEBUG && !server->debug_steps) route = NULL;
    bool get = is_get(method);

    if (server->auth.guard_host && !dse_auth_host_is_local(dse_http_header(x, "Host"))) {
        dse_answer_problem(server, x, 403, NULL, "host_not_allowed",
                           "this server listens on loopback only; the Host header names another machine");
    } else if (server->auth.guard_host && origin && dse_auth_origin_is_foreign_page(&server->auth, origin)) {
        dse_answer_problem(server, x, 403, NULL, "origin_not_allowed",
                           "pages of this origin may not use this server; see --cors-origins");
    } else if (strcmp(method, "OPTIONS") == 0) {
        answer_preflight(x);
    } else if (!(route && route->flags & ROUTE_PUBLIC) &&
               !dse_auth_key_ok(&server->auth, dse_http_header(x, "Authorization"), dse_http_header(x, "x-api-key"))) {
        dse_answer_problem(server, x, 401, NULL, NULL, "the API key is missing or wrong");
    } else if (!route) {
        dse_answer_problem(server, x, 404, NULL, "not_found", "there is nothing at this path");
    } else if (get != (route->flags & ROUTE_GET ? true : false) || (!get && strcmp(method, "POST") != 0)) {
        dse_http_set_header(x, "Allow", allowed_methods(dse_http_path(x)));
        dse_answer_problem(server, x, 405, NULL, NULL, "this method is not allowed here");
    } else if (route->flags & ROUTE_WORK && atomic_load(&server->draining)) {
        dse_answer_problem(server, x, 503, NULL, "draining", "the server is shutting down");
    } else if (route->flags & ROUTE_ENGINE && !atomic_load(&server->served)) {
        dse_answer_problem(server, x, 503, NULL, "loading", "the model is still loading");
    } else {
        return route;
    }
    return NULL;
}

static void on_headers(void *user, struct dse_http_exchange *x)
{
    struct dse_server *server = user;
    const struct route *route = admit(server, x);
    dse_log(DSE_LOG_DEBUG, "http", "%.16s %.200s", dse_http_method(x), route ? route->path : "(refused)");
    if (route && (route->flags & (ROUTE_GET | ROUTE_STREAM)) == ROUTE_GET) route->handler(server, x);
}

static void on_request(void *user, struct dse_http_exchange *x)
{
    struct dse_server *server = user;
    const struct route *route = find_route(dse_http_path(x), dse_http_method(x));
    if (dse_http_is_gone(x)) return; /* left while it waited for a worker */
    if (route->flags & ROUTE_WORK && atomic_load(&server->draining))
        dse_answer_problem(server, x, 503, NULL, "draining", "the server is shutting down");
    else
        route->handler(server, x);
}

static void on_refused(void *user, struct dse_http_exchange *x, int http_status, const char *message)
{
    struct dse_server *server = user;
    bool draining = http_status == 503 && atomic_load(&server->draining);
    dse_answer_problem(server, x, http_status, NULL, draining ? "draining" : NULL, message);
}

static void on_done(void *user, struct dse_http_exchange *x, const struct dse_http_summary *summary)
{
    const struct route *route = find_route(dse_http_path(x), dse_http_method(x));
    dse_access_log(x, route ? route->path : NULL, summary);
}

/* ---- model ---------------------------------------------------------------------------------------------------- */

const char *dse_server_model_name(const struct dse_server *server)
{
    struct dse_served *served = atomic_load(&((struct dse_server *)server)->served);
    if (server->n_model_names) return server->model_names[0];
    return served && served->info.name[0] ? served->info.name : "default";
}

bool dse_server_is_base_model(const struct dse_server *server, const char *name)
{
    bool known = strcmp(name, dse_server_model_name(server)) == 0;
    for (int i = 1; i < server->n_model_names; i++)
        known |= strcmp(name, server->model_names[i]) == 0;
    return known;
}

const char *dse_server_resolve_model(const struct dse_server *server, const char *requested)
{
    const char *first = dse_server_model_name(server);
    if (!requested || strcmp(requested, first) == 0) return first;
    for (int i = 1; i < server->n_model_names; i++)
        if (strcmp(requested, server->model_names[i]) == 0) return server->model_names[i];
    return server->strict_model ? NULL : first;
}

static void served_free(struct dse_served *served)
{
    if (!served) return;
    dse_chat_marks_free(served->marks);
    dse_grammar_cache_free(served->grammars);
    dse_tokens_deinit(&served->thought_end);
    dse_model_unref(served->model);
    dse_free(served);
}

static char *token_text(const struct dse_tokenizer *tokenizer, int32_t id)
{
    struct dse_slice bytes = dse_tokenizer_bytes(tokenizer, id);
    return dse_strndup(DSE_MEM_SERVER, bytes.data ? bytes.data : "", bytes.bytes);
}

/* A character that the tokenizer composes (NFC) is up to three times as long before. */
static size_t longest_token(const struct dse_served *served)
{
    size_t longest = 1;
    for (int id = 0; id < served->n_vocab; id++) {
        size_t bytes = dse_tokenizer_bytes(served->tokenizer, id).bytes;
        if (bytes > longest) longest = bytes;
    }
    return 3 * longest;
}

size_t dse_served_max_prompt(const struct dse_served *served)
{
    size_t context = (size_t)served->context_length;
    if (context >= DSE_SERVER_MAX_TEXT_BYTES / served->longest_token) return DSE_SERVER_MAX_TEXT_BYTES;
    return (context + 1) * served->longest_token - 1;
}

enum dse_status dse_served_check_prompt(const struct dse_served *served, size_t bytes, const char *param,
                                        struct dse_error *err)
{
    uint64_t least = bytes / served->longest_token, context = (uint64_t)served->context_length;
    if (least > context) {
        dse_fail_at(
            err, DSE_ERR_TOO_LONG, param, -1,
            "This model's maximum context length is %llu tokens. However, a prompt of %zu bytes has at least %llu "
            "tokens. Please reduce the length of the %s.",
            (unsigned long long)context, bytes, (unsigned long long)least, param);
        if (err) err->need = least, err->have = context;
        return DSE_ERR_TOO_LONG;
    }
    if (bytes <= DSE_SERVER_MAX_TEXT_BYTES) return DSE_OK;
    return dse_fail_at(err, DSE_ERR_INVALID, param, -1, "the prompt has %zu bytes; at most %u are possible", bytes,
                       DSE_SERVER_MAX_TEXT_BYTES);
}

static enum dse_status served_fill(struct dse_served *served, struct dse_engine *engine,
                                   const struct dse_template *own_template, struct dse_error *err)
{
    struct dse_memory_plan plan;
    served->engine = engine;
    served->model = dse_model_ref(dse_engine_model(engine));
    dse_model_get_info(served->model, &served->info);
    dse_engine_get_plan(engine, &plan);
    served->context_length = plan.context_length;
    served->adapter_rank = plan.adapter_rank;
    served->tokenizer = dse_model_tokenizer(served->model);
    if (!served->tokenizer)
        return dse_fail(err, DSE_ERR_UNSUPPORTED,
                        "this model has no tokenizer, so it cannot be served; put its tokenizer.json beside it, or use "
                        "a GGUF file that has one");
    served->n_vocab = (int)dse_tokenizer_count(served->tokenizer);
    served->longest_token = longest_token(served);
    served->tmpl = own_template ? own_template : dse_model_template(served->model);
    char *bos = token_text(served->tokenizer, dse_tokenizer_bos(served->tokenizer));
    char *eos = token_text(served->tokenizer, dse_tokenizer_eos(served->tokenizer));
    if (served->tmpl && bos && eos) dse_template_probe(served->tmpl, bos, eos, &served->traits);
    bool have_texts = bos && eos;
    dse_free(bos);
    dse_free(eos);
    if (!have_texts) return dse_fail_memory(err, 64, "served model");
    served->thinks = served->traits.has_thinking || dse_tokenizer_find_added(served->tokenizer, "</think>") >= 0;
    dse_fim_find(served);
    enum dse_status status = dse_tokenizer_encode(served->tokenizer, "</think>", 8, DSE_ENCODE_PARSE_SPECIAL,
                                                  &served->thought_end, err);
    if (status == DSE_OK) status = dse_grammar_cache_create(&served->grammars, err);
    return status == DSE_OK ? dse_chat_marks_create(served->tokenizer, &served->marks, err) : status;
}

static enum dse_status name_is_taken(const char *name, struct dse_error *err)
{
    return dse_fail_at(err, DSE_ERR_INVALID, "lora_name", -1,
                       "an adapter is called '%.128s', which is the name of the model itself: give the model another "
                       "(--served-model-name)",
                       name);
}

enum dse_status dse_server_set_engine(struct dse_server *server, struct dse_engine *engine, struct dse_error *err)
{
    if (atomic_load(&server->served)) return dse_fail(err, DSE_ERR_INVALID, "the server has a model already");
    struct dse_served *served = dse_calloc(DSE_MEM_SERVER, 1, sizeof *served);
    if (!served) return dse_fail_memory(err, sizeof *served, "served model");
    enum dse_status status = served_fill(served, engine, server->own_template, err);
    if (status == DSE_OK) status = dse_adapter_list_set_max_rank(server->adapters, served->adapter_rank, err);
    if (status != DSE_OK) {
        served_free(served);
        return status;
    }
    /* Without names of its own the model has that of its file, which was not known when adapters were added. */
    if (server->n_model_names == 0 && dse_adapter_list_has(server->adapters, served->info.name))
        status = name_is_taken(served->info.name, err);
    if (status == DSE_OK && server->trace) status = dse_step_trace_start(server->trace, engine, err);
    if (status != DSE_OK) {
        served_free(served);
        return status;
    }
    atomic_store(&server->served, served);
    return DSE_OK;
}

enum dse_status dse_server_add_adapter(struct dse_server *server, const char *name, const char *path,
                                       struct dse_adapter *adapter, float scale, struct dse_error *err)
{
    enum dse_status status = dse_adapter_check_name(name, err);
    if (status == DSE_OK && server->n_model_names && dse_server_is_base_model(server, name))
        status = name_is_taken(name, err);
    return status == DSE_OK ? dse_adapter_list_put(server->adapters, name, path, adapter, scale, false, err) : status;
}

/* ---- start and stop ------------------------------------------------------------------------------------------- */

static enum dse_status copy_options(struct dse_server *server, const struct dse_server_options *options,
                                    struct dse_error *err)
{
    server->strict_model = options->strict_model;
    server->metrics_vllm = options->metrics_vllm;
    snprintf(server->node_id, sizeof server->node_id, "%s", options->node_id ? options->node_id : "");
    server->debug_steps = options->debug_steps;
    server->reasoning = options->reasoning;
    server->thought_budget = options->thought_budget;
    enum dse_status status = dse_adapter_list_create(options->lora_dir, &server->adapters, err);
    if (status != DSE_OK) return status;
    if (options->chat_template) {
        status = dse_template_parse(options->chat_template, strlen(options->chat_template),
                                    &dse_template_limits_default, &server->own_template, err);
        if (status != DSE_OK) return status;
    }
    server->model_names = dse_calloc(DSE_MEM_SERVER, (size_t)options->n_model_names + 1, sizeof *server->model_names);
    if (!server->model_names) return dse_fail_memory(err, 64, "model names");
    for (int i = 0; i < options->n_model_names; i++, server->n_model_names++) {
        server->model_names[i] = dse_strdup(DSE_MEM_SERVER, options->model_names[i]);
        if (!server->model_names[i]) return dse_fail_memory(err, 64, "model names");
    }
    return dse_auth_init(&server->auth, options->api_keys, options->n_api_keys, options->cors_origins,
                         options->n_cors_origins, err);
}

/* Clients name the files of saved slots, so those of the prefix cache must not be among them. A folder that is not
 * there yet will be another one. */
static enum dse_status open_slot_folder(struct dse_server *server, const struct dse_server_options *options,
                                        struct dse_error *err)
{
    struct stat slots, cache;
    enum dse_status status = dse_saved_folder_open(options->slot_save_path, &server->slot_folder, err);
    if (status != DSE_OK || !options->prefix_cache_disk) return status;
    if (fstat(server->slot_folder, &slots) != 0) return dse_fail_errno(err, errno, options->slot_save_path, "look at");
    if (stat(options->prefix_cache_disk, &cache) != 0 || cache.st_dev != slots.st_dev || cache.st_ino != slots.st_ino)
        return DSE_OK;
    return dse_fail(err, DSE_ERR_INVALID,
                    "--slot-save-path and --prefix-cache-disk are the same folder, %s: choose one for each",
                    options->slot_save_path);
}

static void server_free(struct dse_server *server)
{
    dse_events_free(server->events);
    dse_workers_free(server->workers);
    dse_workers_free(server->slot_worker);
    dse_slots_free(server->slots);
    if (server->slot_folder >= 0) (void)close(server->slot_folder);
    dse_machine_watch_stop(server->machine);
    dse_step_trace_close(server->trace);
    served_free(atomic_load(&server->served));
    dse_auth_deinit(&server->auth);
    for (int i = 0; i < server->n_model_names; i++)
        dse_free(server->model_names[i]);
    dse_free(server->model_names);
    dse_adapter_list_free(server->adapters);
    dse_template_free(server->own_template);
    dse_listener_deinit(&server->listener);
    pthread_cond_destroy(&server->idle);
    pthread_mutex_destroy(&server->lock);
    dse_free(server);
}

enum dse_status dse_server_start(const struct dse_server_options *options, struct dse_server **out,
                                 struct dse_error *err)
{
    struct dse_server *server = dse_calloc(DSE_MEM_SERVER, 1, sizeof *server);
    if (!server) return dse_fail_memory(err, sizeof *server, "server");
    server->slot_folder = -1;
    pthread_mutex_init(&server->lock, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&server->idle, &attributes);
    pthread_condattr_destroy(&attributes);
    server->start_ns = dse_clock_ns();
    server->start_unix_s = dse_clock_unix_s();
    enum dse_status status = copy_options(server, options, err);
    if (status == DSE_OK && options->trace_steps)
        status = dse_step_trace_open(options->trace_steps, &server->trace, err);
    if (status == DSE_OK) status = dse_machine_watch_start(&server->machine, err);
    if (status == DSE_OK) status = dse_workers_create(1, &server->workers, err);
    if (status == DSE_OK && options->slot_save_path) status = open_slot_folder(server, options, err);
    if (status == DSE_OK) status = dse_slots_create(&server->slots, err);
    if (status == DSE_OK) status = dse_workers_create(1, &server->slot_worker, err);
    if (status == DSE_OK) status = dse_listen(options, &server->listener, err);
    if (status == DSE_OK) status = dse_events_start(server, &server->events, err);
    if (status == DSE_OK) {
        server->ui = options->ui == DSE_SERVER_UI_ON ||
                     (options->ui == DSE_SERVER_UI_LOOPBACK && server->listener.loopback);
        server->auth.guard_host = server->listener.loopback && options->n_api_keys == 0;
        struct dse_http_options http = {
            .max_body_bytes = options->max_body_bytes,
            .max_header_bytes = options->max_header_bytes,
            .max_headers = options->max_headers,
            .max_connections = options->max_connections,
            .max_queue_bytes = options->max_queue_bytes,
            .idle_ms = options->idle_ms,
            .body_ms = options->body_ms,
            .ping_ms = options->ping_ms,
            .n_workers = options->n_workers,
            .on_begin = on_begin,
            .on_headers = on_headers,
            .on_request = on_request,
            .on_refused = on_refused,
            .on_done = on_done,
            .user = server,
        };
        status = dse_http_start(server->listener.fd, &http, &server->http, err);
    }
    if (status != DSE_OK) {
        server_free(server);
        return status;
    }
    *out = server;
    return DSE_OK;
}

int dse_server_port(const struct dse_server *server)
{
    return server->listener.port;
}

const char *dse_server_url(const struct dse_server *server)
{
    return server->listener.url;
}

bool dse_server_shows_ui(const struct dse_server *server)
{
    return server->ui;
}

int dse_server_in_flight(const struct dse_server *server)
{
    struct dse_server *writable = (struct dse_server *)server;
    pthread_mutex_lock(&writable->lock);
    int n = server->in_flight;
    pthread_mutex_unlock(&writable->lock);
    return n;
}

bool dse_server_drain(struct dse_server *server, unsigned timeout_ms)
{
    struct timespec until;
    atomic_store(&server->draining, true);
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += timeout_ms / 1000;
    until.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&server->lock);
    int error = 0;
    while (server->in_flight > 0 && error == 0)
        error = pthread_cond_timedwait(&server->idle, &server->lock, &until);
    bool idle = server->in_flight == 0;
    pthread_mutex_unlock(&server->lock);
    return idle;
}

void dse_server_stop(struct dse_server *server)
{
    if (!server) return;
    atomic_store(&server->draining, true);
    atomic_store(&server->stopping, true);
    dse_generations_end(server);
    pthread_mutex_lock(&server->lock);
    while (server->in_flight > 0)
        pthread_cond_wait(&server->idle, &server->lock);
    pthread_mutex_unlock(&server->lock);
    dse_events_end(server->events);
    dse_http_flush(server->http, FLUSH_MS); /* to those who read what they have been answered */
    dse_http_abandon_all(server->http);
    dse_http_stop(server->http);
    server_free(server);
}
