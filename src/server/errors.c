/* One table from failures to HTTP answers (see errors.h). */
#include "server/errors.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/counters.h"
#include "server/params.h"
#include "server/server_internal.h"

#define MAX_ANSWER_BYTES  (1u << 30)
#define MAX_RETRY_AFTER_S 119 /* SDKs give up on 120 and more */

/* What a status means, unless the place of the failure knows better. 500 stands for all that are not here. */
static const struct kind {
    int http;
    const char *type, *code;
    enum dse_counter counter;
} kinds[] = {
    {500, "server_error", NULL, DSE_COUNTER_ERRORS_500},
    {400, "invalid_request_error", NULL, DSE_COUNTER_ERRORS_400},
    {401, "authentication_error", "invalid_api_key", DSE_COUNTER_ERRORS_401},
    {403, "permission_error", NULL, DSE_COUNTER_ERRORS_403},
    {404, "not_found_error", NULL, DSE_COUNTER_ERRORS_404},
    {405, "invalid_request_error", "method_not_allowed", DSE_COUNTER_ERRORS_405},
    {413, "invalid_request_error", "request_too_large", DSE_COUNTER_ERRORS_413},
    {415, "invalid_request_error", "unsupported_media_type", DSE_COUNTER_ERRORS_415},
    {429, "rate_limit_exceeded", "rate_limit_exceeded", DSE_COUNTER_ERRORS_429},
    {431, "invalid_request_error", "headers_too_large", DSE_COUNTER_ERRORS_431},
    {501, "not_supported_error", NULL, DSE_COUNTER_ERRORS_501},
    {503, "server_error", "unavailable", DSE_COUNTER_ERRORS_503},
};

static const struct kind *kind_of(int http)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i].http == http) return &kinds[i];
    return &kinds[0];
}

struct dse_api_error dse_api_error_from(const struct dse_error *err)
{
    /* Nobody reads the answer to a request of a client that has left: whoever reads this did not cancel. */
    if (err->status == DSE_ERR_CANCELLED)
        return (struct dse_api_error){
            .http = 503, .type = kind_of(503)->type, .code = "draining", .message = "the server is shutting down"};
    const struct kind *kind = kind_of(dse_status_http(err->status));
    struct dse_api_error error = {.http = kind->http, .type = kind->type, .code = kind->code, .message = err->message};
    if (error.http == 400 && err->file[0]) error.param = err->file;
    if (err->status == DSE_ERR_TOO_LONG) {
        error.code = "context_length_exceeded";
        error.has_lengths = err->have > 0;
        error.n_ctx = (int64_t)err->have;
        error.n_prompt_tokens = (int64_t)err->need;
    }
    return error;
}

static void put_optional(struct dse_buffer *out, const char *name, const char *text)
{
    dse_buffer_printf(out, ",\"%s\":", name);
    if (text)
        dse_buffer_put_json_string(out, text, strlen(text));
    else
        dse_buffer_puts(out, "null");
}

void dse_count_error(int http)
{
    dse_counter_add(kind_of(http)->counter, 1);
}

bool dse_put_error(struct dse_buffer *out, const struct dse_api_error *error)
{
    dse_buffer_puts(out, "{\"error\":{\"message\":");
    dse_buffer_put_json_string(out, error->message, strlen(error->message));
    put_optional(out, "type", error->type);
    put_optional(out, "param", error->param);
    put_optional(out, "code", error->code);
    if (error->has_lengths)
        dse_buffer_printf(out, ",\"n_ctx\":%lld,\"n_prompt_tokens\":%lld", (long long)error->n_ctx,
                          (long long)error->n_prompt_tokens);
    return dse_buffer_puts(out, "}}");
}

bool dse_path_is_messages(const char *path)
{
    if (strncmp(path, "/anthropic/", 11) == 0) return true;
    if (strncmp(path, "/beta/", 6) == 0) path += 5;
    if (strncmp(path, "/v1/", 4) == 0) path += 3;
    return strcmp(path, "/messages") == 0 || strncmp(path, "/messages/", 10) == 0;
}

static const char *messages_error_type(int http)
{
    switch (http) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    default: return http < 500 ? "invalid_request_error" : "api_error";
    }
}

bool dse_put_messages_error(struct dse_buffer *out, const struct dse_api_error *error, struct dse_http_exchange *x)
{
    char message[768], id[160];
    /* What agents look for to know that they have to say less. */
    if (error->has_lengths)
        snprintf(message, sizeof message, "prompt is too long: %lld tokens > %lld maximum. %s",
                 (long long)error->n_prompt_tokens, (long long)error->n_ctx, error->message);
    else
        snprintf(message, sizeof message, "%s", error->message);
    dse_buffer_printf(out,
                      "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", messages_error_type(error->http));
    dse_buffer_put_json_string(out, message, strlen(message));
    dse_buffer_puts(out, "},\"request_id\":");
    dse_http_answer_header(x, "X-Request-Id", id, sizeof id);
    dse_buffer_put_json_string(out, id, strlen(id));
    return dse_buffer_putc(out, '}');
}

/* How long until a place in the queue is likely: requests before us times their usual length. */
static int busy_retry_after_s(const struct dse_server *server)
{
    struct dse_served *served = atomic_load(&server->served);
    struct dse_histogram_view view = dse_histogram_get(DSE_HISTOGRAM_E2E);
    double mean_s = view.count ? view.sum / (double)view.count : 1.0, slots = 1.0;
    if (served) {
        struct dse_memory_plan plan;
        dse_engine_get_plan(served->engine, &plan);
        if (plan.max_concurrent > 1) slots = plan.max_concurrent;
    }
    double wait_s = mean_s * (double)(dse_gauge_get(DSE_GAUGE_REQUESTS_WAITING) + 1) / slots;
    return wait_s < 1.0 ? 1 : wait_s > MAX_RETRY_AFTER_S ? MAX_RETRY_AFTER_S : (int)(wait_s + 0.5);
}

static void add_error_headers(struct dse_server *server, struct dse_http_exchange *x, int http)
{
    char text[32];
    if (http == 401) dse_http_set_header(x, "WWW-Authenticate", "Bearer");
    if (http == 503) dse_http_set_header(x, "Retry-After", "2");
    if (http == 429) {
        snprintf(text, sizeof text, "%d", busy_retry_after_s(server));
        dse_http_set_header(x, "Retry-After", text);
        dse_http_set_header(x, "x-ratelimit-remaining-requests", "0");
        struct dse_served *served = atomic_load(&server->served);
        if (served) {
            struct dse_memory_plan plan;
            dse_engine_get_plan(served->engine, &plan);
            snprintf(text, sizeof text, "%d", plan.max_concurrent);
            dse_http_set_header(x, "x-ratelimit-limit-requests", text);
        }
    }
}

void dse_answer_buffer(struct dse_server *server, struct dse_http_exchange *x, int http, const char *content_type,
                       struct dse_buffer *buffer)
{
    size_t bytes = buffer->length;
    char *body = dse_buffer_take(buffer);
    dse_buffer_deinit(buffer);
    if (body) {
        dse_http_respond(x, http, content_type, body, bytes);
    } else { /* no memory even for an error text */
        add_error_headers(server, x, 503);
        dse_http_respond(x, 503, NULL, NULL, 0);
    }
}

void dse_answer_error(struct dse_server *server, struct dse_http_exchange *x, const struct dse_api_error *error)
{
    struct dse_buffer out;
    dse_buffer_init(&out, DSE_MEM_REQUEST, MAX_ANSWER_BYTES);
    if (dse_path_is_messages(dse_http_path(x)))
        dse_put_messages_error(&out, error, x);
    else
        dse_put_error(&out, error);
    add_error_headers(server, x, error->http);
    dse_count_error(error->http);
    dse_answer_buffer(server, x, error->http, "application/json", &out);
}

void dse_answer_failure(struct dse_server *server, struct dse_http_exchange *x, const struct dse_error *err)
{
    struct dse_api_error error = dse_api_error_from(err);
    dse_answer_error(server, x, &error);
}

void dse_answer_problem(struct dse_server *server, struct dse_http_exchange *x, int http, const char *type,
                        const char *code, const char *message)
{
    const struct kind *kind = kind_of(http);
    struct dse_api_error error = {
        .http = http, .type = type ? type : kind->type, .code = code ? code : kind->code, .message = message};
    dse_answer_error(server, x, &error);
}

static int append_json(const char *text, size_t bytes, void *user)
{
    return dse_buffer_append(user, text, bytes) ? 0 : -1;
}

void dse_answer_json(struct dse_server *server, struct dse_http_exchange *x, int http, json_t *json)
{
    struct dse_buffer out;
    dse_buffer_init(&out, DSE_MEM_REQUEST, MAX_ANSWER_BYTES);
    if (!json || json_dump_callback(json, append_json, &out, JSON_COMPACT | JSON_ENCODE_ANY) != 0) out.failed = true;
    json_decref(json);
    dse_answer_buffer(server, x, http, "application/json", &out);
}
