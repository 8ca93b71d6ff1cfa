/* POST /v1/responses and /v1/responses/input_tokens, OpenAI's Responses API without storage: handlers, events, whole
 * answers.
 *
 * Handlers run on a worker; the rest on the engine thread, it only formats.
 */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "server/body.h"
#include "server/generation.h"
#include "server/openai_chat.h"
#include "server/responses_request.h"

enum state { IN_PROGRESS, COMPLETED, INCOMPLETE, FAILED };
static const char *const state_names[] = {"in_progress", "completed", "incomplete", "failed"};

static void put_string(struct dse_buffer *out, const struct dse_buffer *text)
{
    dse_buffer_put_json_string(out, dse_buffer_text(text), text->length);
}

static const char *id_prefix(const struct dse_item *item)
{
    static const char *const prefixes[] = {[DSE_ITEM_THOUGHT] = "rs", [DSE_ITEM_TEXT] = "msg", [DSE_ITEM_CALL] = "fc"};
    return prefixes[item->kind];
}

/* The member of a text: entries of its list from `begin` on. Empty if the request wants none. */
static void put_logprobs(const struct dse_choice *c, const struct dse_item *item, size_t begin, struct dse_buffer *out)
{
    const struct dse_generation *g = c->generation;
    const size_t first = item->first_logprob;
    dse_buffer_puts(out, ",\"logprobs\":");
    dse_put_token_logprobs(out, g->served->tokenizer, &c->logprobs, first + begin, first + item->n_logprobs,
                           g->params.sampling.top_logprobs);
}

/* The content part of a thought or text; empty: as a stream opens it. */
static void put_part(const struct dse_choice *c, const struct dse_item *item, bool empty, struct dse_buffer *out)
{
    bool text = item->kind == DSE_ITEM_TEXT;
    dse_buffer_printf(out, "{\"type\":\"%s\",\"text\":", text ? "output_text" : "reasoning_text");
    dse_buffer_put_json_string(out, dse_buffer_text(&item->text), empty ? 0 : item->text.length);
    if (text) dse_buffer_puts(out, ",\"annotations\":[]");
    if (text) put_logprobs(c, item, empty ? item->n_logprobs : 0, out);
    dse_buffer_putc(out, '}');
}

static void put_item(const struct dse_choice *c, const struct dse_item *item, enum state state, struct dse_buffer *out)
{
    bool empty = state == IN_PROGRESS;
    dse_buffer_printf(out, "{\"id\":\"%s_%s\",\"status\":\"%s\",", id_prefix(item), item->id, state_names[state]);
    if (item->kind == DSE_ITEM_CALL) {
        dse_buffer_printf(out, "\"type\":\"function_call\",\"call_id\":\"call_%s\",\"name\":", item->id);
        put_string(out, &item->name);
        dse_buffer_puts(out, ",\"arguments\":");
        dse_buffer_put_json_string(out, dse_buffer_text(&item->text), empty ? 0 : item->text.length);
        dse_buffer_putc(out, '}');
        return;
    }
    dse_buffer_puts(out, item->kind == DSE_ITEM_TEXT ? "\"type\":\"message\",\"role\":\"assistant\",\"content\":["
                                                     : "\"type\":\"reasoning\",\"summary\":[],\"content\":[");
    if (!empty) put_part(c, item, false, out);
    dse_buffer_puts(out, "]}");
}

/* The item that the limit of tokens cut is the last. */
static enum state item_state(const struct dse_choice *c, size_t index)
{
    return c->finish == DSE_FINISH_LENGTH && index + 1 == c->items.count ? INCOMPLETE : COMPLETED;
}

static enum state final_state(const struct dse_choice *c)
{
    return c->finish == DSE_FINISH_LENGTH ? INCOMPLETE : COMPLETED;
}

static void put_usage(const struct dse_generation *g, struct dse_buffer *out)
{
    struct dse_usage usage;
    struct dse_timing_sum timings;
    dse_generation_sums(g, &usage, &timings);
    dse_buffer_printf(out,
                      "{\"input_tokens\":%lld,\"input_tokens_details\":{\"cached_tokens\":%lld,"
                      "\"cache_write_tokens\":0},\"output_tokens\":%lld,\"output_tokens_details\":"
                      "{\"reasoning_tokens\":%lld},\"total_tokens\":%lld}",
                      (long long)usage.prompt_tokens, (long long)usage.cached_tokens,
                      (long long)usage.completion_tokens, (long long)usage.reasoning_tokens,
                      (long long)(usage.prompt_tokens + usage.completion_tokens));
}

/* error: of a response that failed, else NULL. */
static void put_response(const struct dse_generation *g, enum state state, const struct dse_api_error *error,
                         struct dse_buffer *out)
{
    const struct dse_choice *c = &g->choices[0];
    dse_buffer_printf(out,
                      "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\",\"model\":", g->id,
                      (long long)g->created, state_names[state]);
    dse_buffer_put_json_string(out, g->model, strlen(g->model));
    dse_buffer_puts(out, ",\"output\":[");
    for (size_t i = 0; state != IN_PROGRESS && i < c->items.count; i++) {
        if (i) dse_buffer_putc(out, ',');
        put_item(c, &c->items.items[i], state == FAILED ? INCOMPLETE : item_state(c, i), out);
    }
    dse_buffer_puts(out, "],\"error\":");
    if (error) {
        dse_buffer_puts(out, "{\"code\":\"server_error\",\"message\":");
        dse_buffer_put_json_string(out, error->message, strlen(error->message));
        dse_buffer_putc(out, '}');
    } else {
        dse_buffer_puts(out, "null");
    }
    dse_buffer_puts(out, ",\"incomplete_details\":");
    dse_buffer_puts(out, state == INCOMPLETE ? "{\"reason\":\"max_output_tokens\"}" : "null");
    dse_buffer_putc(out, ',');
    dse_buffer_puts(out, g->echo);
    dse_buffer_puts(out, ",\"usage\":");
    if (state == COMPLETED || state == INCOMPLETE)
        put_usage(g, out);
    else
        dse_buffer_puts(out, "null");
    dse_buffer_putc(out, '}');
}

/* ---- events --------------------------------------------------------------------------------------------------- */

static struct dse_buffer *event(struct dse_generation *g, const char *name)
{
    struct dse_buffer *out = dse_stream_event(g, name);
    dse_buffer_printf(out, ",\"sequence_number\":%d", g->n_events);
    return out;
}

/* An event about an item, and about its only content part if it has one. */
static struct dse_buffer *item_event(struct dse_generation *g, const char *name, size_t index,
                                     const struct dse_item *item)
{
    struct dse_buffer *out = event(g, name);
    dse_buffer_printf(out, ",\"output_index\":%zu,\"item_id\":\"%s_%s\"", index, id_prefix(item), item->id);
    if (item->kind != DSE_ITEM_CALL) dse_buffer_puts(out, ",\"content_index\":0");
    return out;
}

static void response_event(struct dse_generation *g, const char *name, enum state state)
{
    struct dse_buffer *out = event(g, name);
    dse_buffer_puts(out, ",\"response\":");
    put_response(g, state, NULL, out);
    dse_stream_event_send(g);
}

static void begin(struct dse_choice *c)
{
    response_event(c->generation, "response.created", IN_PROGRESS);
    response_event(c->generation, "response.in_progress", IN_PROGRESS);
}

static void open_item(void *user, size_t index, const struct dse_item *item)
{
    struct dse_choice *c = user;
    struct dse_generation *g = c->generation;
    struct dse_buffer *out = event(g, "response.output_item.added");
    dse_buffer_printf(out, ",\"output_index\":%zu,\"item\":", index);
    put_item(c, item, IN_PROGRESS, out);
    dse_stream_event_send(g);
    if (item->kind == DSE_ITEM_CALL) return;
    out = item_event(g, "response.content_part.added", index, item);
    dse_buffer_puts(out, ",\"part\":");
    put_part(c, item, true, out);
    dse_stream_event_send(g);
}

static void more_of_item(void *user, size_t index, const struct dse_item *item, const char *text, size_t bytes)
{
    static const char *const names[] = {
        [DSE_ITEM_THOUGHT] = "response.reasoning_text.delta",
        [DSE_ITEM_TEXT] = "response.output_text.delta",
        [DSE_ITEM_CALL] = "response.function_call_arguments.delta",
    };
    struct dse_choice *c = user;
    struct dse_generation *g = c->generation;
    struct dse_buffer *out = item_event(g, names[item->kind], index, item);
    dse_buffer_puts(out, ",\"delta\":");
    dse_buffer_put_json_string(out, text, bytes);
    if (item->kind == DSE_ITEM_TEXT) put_logprobs(c, item, c->items.sent_logprobs, out);
    dse_stream_event_send(g);
}

static void close_item(void *user, size_t index, const struct dse_item *item)
{
    struct dse_choice *c = user;
    struct dse_generation *g = c->generation;
    struct dse_buffer *out;
    if (item->kind == DSE_ITEM_CALL) {
        out = item_event(g, "response.function_call_arguments.done", index, item);
        dse_buffer_puts(out, ",\"name\":");
        put_string(out, &item->name);
        dse_buffer_puts(out, ",\"arguments\":");
        put_string(out, &item->text);
        dse_stream_event_send(g);
    } else {
        bool text = item->kind == DSE_ITEM_TEXT;
        out = item_event(g, text ? "response.output_text.done" : "response.reasoning_text.done", index, item);
        dse_buffer_puts(out, ",\"text\":");
        put_string(out, &item->text);
        if (text) put_logprobs(c, item, 0, out);
        dse_stream_event_send(g);
        out = item_event(g, "response.content_part.done", index, item);
        dse_buffer_puts(out, ",\"part\":");
        put_part(c, item, false, out);
        dse_stream_event_send(g);
    }
    out = event(g, "response.output_item.done");
    dse_buffer_printf(out, ",\"output_index\":%zu,\"item\":", index);
    put_item(c, item, item_state(c, index), out);
    dse_stream_event_send(g);
}

static void tell(struct dse_choice *c, bool over)
{
    static const struct dse_item_teller teller = {open_item, more_of_item, close_item};
    dse_items_tell(&c->items, &teller, c, over);
}

static void finish(struct dse_choice *c)
{
    enum state state = final_state(c);
    response_event(c->generation, state == COMPLETED ? "response.completed" : "response.incomplete", state);
}

static void put_failure(struct dse_generation *g, const struct dse_api_error *error, struct dse_buffer *out)
{
    event(g, "response.failed"); /* into out, which is the generation's chunk */
    dse_buffer_puts(out, ",\"response\":");
    put_response(g, FAILED, error, out);
    dse_buffer_puts(out, "}\n\n");
}

static void put_whole(struct dse_generation *g, struct dse_buffer *out)
{
    put_response(g, final_state(&g->choices[0]), NULL, out);
}

static const struct dse_event_dialect responses_events = {
    .begin = begin,
    .tell = tell,
    .finish = finish,
    .put_failure = put_failure,
    .no_memory = "event: error\ndata: {\"type\":\"error\",\"code\":\"server_error\",\"message\":\"out of memory\","
                 "\"param\":null,\"sequence_number\":0}\n\n",
    .last = "",
    .filler = ": keep-alive\n\n",
    .put_whole = put_whole,
};

static const struct dse_dialect responses_dialect = {
    .id_prefix = "resp_",
    .too_long = "This model's maximum context length is %lld tokens. However, you requested %lld tokens (%lld in the "
                "input, %lld in the output). Please reduce the length of the input or output.",
    .prompt_field = "input",
    .chat = true,
    .fields = dse_responses_fields,
    .events = &responses_events,
};

/* ---- requests ------------------------------------------------------------------------------------------------- */

/* false after an error answer. */
static bool read_request(struct dse_server *server, struct dse_http_exchange *x, struct dse_responses_request *request)
{
    struct dse_error err;
    json_t *root = dse_request_object(server, x);
    if (!root) return false;
    enum dse_status status = dse_responses_request_parse(root, request, &err);
    if (status != DSE_OK) dse_answer_failure(server, x, &err);
    json_decref(root);
    return status == DSE_OK;
}

void dse_handle_responses(struct dse_server *server, struct dse_http_exchange *x)
{
    struct dse_responses_request request;
    if (!read_request(server, x, &request)) return;
    if (request.ignored[0]) {
        char note[160];
        snprintf(note, sizeof note, "tools ignored: %s", request.ignored);
        dse_http_set_header(x, "X-Deepseek-Edge-Note", note);
    }
    dse_chat_run(server, x, request.chat, &responses_dialect, request.echo);
}

void dse_handle_responses_count(struct dse_server *server, struct dse_http_exchange *x)
{
    struct dse_responses_request request;
    if (!read_request(server, x, &request)) return;
    dse_free(request.echo);
    dse_chat_count(server, x, request.chat, &responses_dialect,
                   "{\"object\":\"response.input_tokens\",\"input_tokens\":");
}
