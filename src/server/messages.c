/* POST /v1/messages and /v1/messages/count_tokens, Anthropic's Messages API: handlers, events and whole answers. Errors
 * of all kinds have their shape from errors.c.
 *
 * Handlers run on a worker; the rest on the engine thread, it only formats.
 */
#include <string.h>

#include "base/json.h"
#include "server/body.h"
#include "server/generation.h"
#include "server/messages_request.h"
#include "server/openai_chat.h"

static const char *stop_reason(const struct dse_choice *c)
{
    if (c->finish == DSE_FINISH_LENGTH) return "max_tokens";
    if (dse_output_tool_calls(c->output) > 0) return "tool_use";
    return c->stop_index >= 0 ? "stop_sequence" : "end_turn";
}

/* Members of a message or of a message_delta. */
static void put_stop(const struct dse_choice *c, struct dse_buffer *out)
{
    const char *reason = stop_reason(c);
    dse_buffer_printf(out, "\"stop_reason\":\"%s\",\"stop_sequence\":", reason);
    if (strcmp(reason, "stop_sequence") == 0)
        dse_buffer_put_json_string(out, c->generation->params.stops[c->stop_index],
                                   c->generation->params.stop_bytes[c->stop_index]);
    else
        dse_buffer_puts(out, "null");
}

/* Cached tokens are not part of input_tokens here. */
static void put_usage(const struct dse_generation *g, struct dse_buffer *out)
{
    struct dse_usage usage;
    struct dse_timing_sum timings;
    dse_generation_sums(g, &usage, &timings);
    dse_buffer_printf(out,
                      ",\"usage\":{\"input_tokens\":%lld,\"cache_creation_input_tokens\":0,"
                      "\"cache_read_input_tokens\":%lld,\"output_tokens\":%lld,"
                      "\"output_tokens_details\":{\"thinking_tokens\":%lld}}",
                      (long long)(usage.prompt_tokens - usage.cached_tokens), (long long)usage.cached_tokens,
                      (long long)usage.completion_tokens, (long long)usage.reasoning_tokens);
}

static void put_head(const struct dse_generation *g, struct dse_buffer *out)
{
    dse_buffer_printf(out, "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", g->id);
    dse_buffer_put_json_string(out, g->model, strlen(g->model));
    dse_buffer_puts(out, ",\"content\":[");
}

/* What a call has as input must be an object, whatever the model wrote. */
static void put_input(const struct dse_item *item, struct dse_buffer *out)
{
    struct dse_error ignored;
    json_t *parsed = NULL;
    const char *text = dse_buffer_text(&item->text);
    if (item->text.length == 0) {
        dse_buffer_puts(out, "{}");
        return;
    }
    if (dse_json_parse(text, item->text.length, "arguments", &parsed, &ignored) == DSE_OK && json_is_object(parsed)) {
        dse_buffer_append(out, text, item->text.length);
    } else {
        dse_buffer_puts(out, "{\"INVALID_JSON\":");
        dse_buffer_put_json_string(out, text, item->text.length);
        dse_buffer_putc(out, '}');
    }
    json_decref(parsed);
}

/* A block; empty: as a stream opens it. */
static void put_block(const struct dse_item *item, bool empty, struct dse_buffer *out)
{
    static const char *const names[] = {[DSE_ITEM_THOUGHT] = "thinking", [DSE_ITEM_TEXT] = "text"};
    if (item->kind == DSE_ITEM_CALL) {
        dse_buffer_printf(out, "{\"type\":\"tool_use\",\"id\":\"toolu_%s\",\"name\":", item->id);
        dse_buffer_put_json_string(out, dse_buffer_text(&item->name), item->name.length);
        dse_buffer_puts(out, ",\"input\":");
        if (empty)
            dse_buffer_puts(out, "{}");
        else
            put_input(item, out);
    } else {
        dse_buffer_printf(out, "{\"type\":\"%s\",\"%s\":", names[item->kind], names[item->kind]);
        dse_buffer_put_json_string(out, dse_buffer_text(&item->text), empty ? 0 : item->text.length);
        if (item->kind == DSE_ITEM_THOUGHT) dse_buffer_puts(out, ",\"signature\":\"\""); /* nothing to sign */
    }
    dse_buffer_putc(out, '}');
}

/* ---- events --------------------------------------------------------------------------------------------------- */

static void begin(struct dse_choice *c)
{
    struct dse_generation *g = c->generation;
    struct dse_buffer *out = dse_stream_event(g, "message_start");
    dse_buffer_puts(out, ",\"message\":");
    put_head(g, out);
    dse_buffer_puts(out, "],\"stop_reason\":null,\"stop_sequence\":null");
    put_usage(g, out);
    dse_buffer_putc(out, '}');
    dse_stream_event_send(g);
    dse_stream_event(g, "ping");
    dse_stream_event_send(g);
}

static void open_block(void *user, size_t index, const struct dse_item *item)
{
    struct dse_choice *c = user;
    struct dse_buffer *out = dse_stream_event(c->generation, "content_block_start");
    dse_buffer_printf(out, ",\"index\":%zu,\"content_block\":", index);
    put_block(item, true, out);
    dse_stream_event_send(c->generation);
}

static void more_of_block(void *user, size_t index, const struct dse_item *item, const char *text, size_t bytes)
{
    static const char *const deltas[] = {
        [DSE_ITEM_THOUGHT] = "\"thinking_delta\",\"thinking\"",
        [DSE_ITEM_TEXT] = "\"text_delta\",\"text\"",
        [DSE_ITEM_CALL] = "\"input_json_delta\",\"partial_json\"",
    };
    struct dse_choice *c = user;
    struct dse_buffer *out = dse_stream_event(c->generation, "content_block_delta");
    dse_buffer_printf(out, ",\"index\":%zu,\"delta\":{\"type\":%s:", index, deltas[item->kind]);
    dse_buffer_put_json_string(out, text, bytes);
    dse_buffer_putc(out, '}');
    dse_stream_event_send(c->generation);
}

static void close_block(void *user, size_t index, const struct dse_item *item)
{
    struct dse_choice *c = user;
    dse_buffer_printf(dse_stream_event(c->generation, "content_block_stop"), ",\"index\":%zu", index);
    dse_stream_event_send(c->generation);
}

static void tell(struct dse_choice *c, bool over)
{
    static const struct dse_item_teller teller = {open_block, more_of_block, close_block};
    dse_items_tell(&c->items, &teller, c, over);
}

static void finish(struct dse_choice *c)
{
    struct dse_buffer *out = dse_stream_event(c->generation, "message_delta");
    dse_buffer_puts(out, ",\"delta\":{");
    put_stop(c, out);
    dse_buffer_putc(out, '}');
    put_usage(c->generation, out);
    dse_stream_event_send(c->generation);
    dse_stream_event(c->generation, "message_stop");
    dse_stream_event_send(c->generation);
}

static void put_failure(struct dse_generation *g, const struct dse_api_error *error, struct dse_buffer *out)
{
    dse_buffer_puts(out, "event: error\ndata: ");
    dse_put_messages_error(out, error, g->exchange);
    dse_buffer_puts(out, "\n\n");
}

static void put_whole(struct dse_generation *g, struct dse_buffer *out)
{
    const struct dse_choice *c = &g->choices[0];
    put_head(g, out);
    for (size_t i = 0; i < c->items.count; i++) {
        if (i) dse_buffer_putc(out, ',');
        put_block(&c->items.items[i], false, out);
    }
    dse_buffer_puts(out, "],");
    put_stop(c, out);
    put_usage(g, out);
    dse_buffer_putc(out, '}');
}

static const struct dse_event_dialect messages_events = {
    .begin = begin,
    .tell = tell,
    .finish = finish,
    .put_failure = put_failure,
    .no_memory = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\","
                 "\"message\":\"out of memory\"}}\n\n",
    .last = "",
    .filler = "event: ping\ndata: {\"type\":\"ping\"}\n\n",
    .put_whole = put_whole,
};

static const struct dse_dialect messages_dialect = {
    .id_prefix = "msg_",
    .too_long =
        "this model's maximum context length is %lld tokens; %lld were requested (%lld in the messages, %lld in "
        "the answer)",
    .prompt_field = "messages",
    .chat = true,
    .fields = dse_messages_fields,
    .events = &messages_events,
};

/* ---- requests ------------------------------------------------------------------------------------------------- */

/* The chat request that the body stands for, or NULL after an error answer. */
static json_t *read_request(struct dse_server *server, struct dse_http_exchange *x, bool counting)
{
    struct dse_error err;
    json_t *root = dse_request_object(server, x), *chat = NULL;
    if (root && dse_messages_to_chat(root, counting, &chat, &err) != DSE_OK) dse_answer_failure(server, x, &err);
    json_decref(root);
    return chat;
}

void dse_handle_messages(struct dse_server *server, struct dse_http_exchange *x)
{
    json_t *chat = read_request(server, x, false);
    if (chat) dse_chat_run(server, x, chat, &messages_dialect, NULL);
}

void dse_handle_messages_count(struct dse_server *server, struct dse_http_exchange *x)
{
    json_t *chat = read_request(server, x, true);
    if (chat) dse_chat_count(server, x, chat, &messages_dialect, "{\"input_tokens\":");
}
