/* POST /v1/chat/completions: parse, render, run; and how its chunks and answers are written.
 *
 * The handler runs on a worker; the put_ functions on the engine thread, they only format.
 */
#include <stdio.h>
#include <string.h>

#include "server/body.h"
#include "server/chat_request.h"
#include "server/generation.h"
#include "server/openai_chat.h"
#include "text/grammar.h"

static void put_text(struct dse_buffer *out, const struct dse_buffer *text)
{
    dse_buffer_put_json_string(out, dse_buffer_text(text), text->length);
}

static void put_logprobs(struct dse_choice *c, struct dse_buffer *out)
{
    dse_buffer_puts(out, ",\"logprobs\":");
    if (c->generation->params.logprobs && c->logprobs.count > 0)
        dse_put_chat_logprobs(out, c->generation->served->tokenizer, &c->logprobs,
                              c->generation->params.sampling.top_logprobs);
    else
        dse_buffer_puts(out, "null");
}

static void put_first(struct dse_choice *c, struct dse_buffer *out)
{
    dse_buffer_printf(out,
                      "{\"index\":%d,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
                      "\"finish_reason\":null}",
                      c->index);
}

static void put_delta(struct dse_choice *c, enum dse_channel channel, struct dse_buffer *out)
{
    dse_buffer_printf(out, "{\"index\":%d,\"delta\":{", c->index);
    if (channel == DSE_CHANNEL_REASONING) {
        dse_buffer_puts(out, "\"content\":null,\"reasoning_content\":");
        put_text(out, &c->text[channel]);
        dse_buffer_puts(out, ",\"reasoning\":"); /* the name that some clients look for */
        put_text(out, &c->text[channel]);
        dse_buffer_puts(out, "},\"logprobs\":null");
    } else {
        dse_buffer_puts(out, "\"content\":");
        put_text(out, &c->text[channel]);
        dse_buffer_putc(out, '}');
        put_logprobs(c, out);
    }
    dse_buffer_puts(out, ",\"finish_reason\":null}");
}

/* SDKs join the elements of a chunk by position, so there is one in each. */
static void put_call(struct dse_choice *c, struct dse_slice delta, struct dse_buffer *out)
{
    dse_buffer_printf(out, "{\"index\":%d,\"delta\":{\"tool_calls\":[", c->index);
    dse_buffer_append(out, delta.data, delta.bytes);
    dse_buffer_puts(out, "]},\"logprobs\":null,\"finish_reason\":null}");
}

static const char *finish_name(const struct dse_choice *c)
{
    bool called = dse_output_tool_calls(c->output) > 0 && c->finish != DSE_FINISH_LENGTH;
    return called ? "tool_calls" : dse_finish_name(c->finish);
}

static void put_finish(struct dse_choice *c, struct dse_buffer *out)
{
    dse_buffer_printf(out, "{\"index\":%d,\"delta\":{}", c->index);
    put_logprobs(c, out);
    dse_buffer_printf(out, ",\"finish_reason\":\"%s\"}", finish_name(c));
}

static void put_whole(struct dse_choice *c, struct dse_buffer *out)
{
    dse_buffer_printf(out, "{\"index\":%d,\"message\":{\"role\":\"assistant\",\"content\":", c->index);
    bool called = dse_output_tool_calls(c->output) > 0;
    if (called && c->text[DSE_CHANNEL_CONTENT].length == 0)
        dse_buffer_puts(out, "null");
    else
        put_text(out, &c->text[DSE_CHANNEL_CONTENT]);
    if (called) {
        dse_buffer_puts(out, ",\"tool_calls\":[");
        dse_buffer_append(out, dse_buffer_text(&c->calls.text), c->calls.text.length);
        dse_buffer_putc(out, ']');
    }
    if (c->text[DSE_CHANNEL_REASONING].length > 0) {
        dse_buffer_puts(out, ",\"reasoning_content\":");
        put_text(out, &c->text[DSE_CHANNEL_REASONING]);
        dse_buffer_puts(out, ",\"reasoning\":");
        put_text(out, &c->text[DSE_CHANNEL_REASONING]);
    }
    dse_buffer_puts(out, ",\"refusal\":null}");
    if (c->generation->params.logprobs) {
        dse_buffer_puts(out, ",\"logprobs\":");
        dse_put_chat_logprobs(out, c->generation->served->tokenizer, &c->logprobs,
                              c->generation->params.sampling.top_logprobs);
    } else {
        dse_buffer_puts(out, ",\"logprobs\":null");
    }
    dse_buffer_printf(out, ",\"finish_reason\":\"%s\"}", finish_name(c));
}

static const struct dse_dialect chat_dialect = {
    .id_prefix = "chatcmpl-",
    .object = "chat.completion",
    .chunk_object = "chat.completion.chunk",
    .too_long = "This model's maximum context length is %lld tokens. However, you requested %lld tokens (%lld in the "
                "messages, %lld in the completion). Please reduce the length of the messages or completion.",
    .prompt_field = "messages",
    .chat = true,
    .put_first = put_first,
    .put_delta = put_delta,
    .put_call = put_call,
    .put_finish = put_finish,
    .put_whole = put_whole,
};

static void add_notes(struct dse_http_exchange *x, const struct dse_served *served,
                      const struct dse_chat_request *request)
{
    if (request->asks_thinking && !served->thinks)
        dse_http_set_header(x, "X-Deepseek-Edge-Note", "thinking ignored: this model does not think");
}

/* Everything up to the point where the engine takes over. */
static enum dse_status prepare(struct dse_served *served, const json_t *root, struct dse_http_exchange *x,
                               struct dse_chat_request *request, struct dse_generation_setup *setup,
                               struct dse_error *err)
{
    enum dse_status status = dse_chat_request_parse(root, served->n_vocab, request, err);
    if (status != DSE_OK) return status;
    struct dse_chat_prompt prompt = {0};
    status = dse_chat_request_prompt(request, served, DSE_CHAT_GENERATE, &prompt, err);
    if (status == DSE_OK && prompt.tokens.count == 0)
        status = dse_fail_at(err, DSE_ERR_INVALID, "messages", -1,
                             "the chat template renders these messages to nothing");
    bool thinks = served->thinks && prompt.opens_thinking;
    if (status == DSE_OK) status = dse_chat_request_grammar(request, served, thinks, &setup->grammar, err);
    if (status == DSE_OK) {
        setup->prompts = dse_calloc(DSE_MEM_REQUEST, 1, sizeof *setup->prompts);
        if (!setup->prompts) status = dse_fail_memory(err, sizeof *setup->prompts, "prompt");
    }
    if (status == DSE_OK) {
        add_notes(x, served, request);
        setup->n_prompts = 1;
        setup->prompts[0].tokens = prompt.tokens;
        prompt.tokens = (struct dse_tokens){0};
        setup->starts_in_reasoning = thinks;
        /* A template that opens its thinking whatever it is told. */
        if (thinks && request->refuses_thinking && !request->params.has_thought_budget) {
            request->params.thought_budget = 0;
            request->params.has_thought_budget = true;
        }
        setup->tools = dse_chat_request_tools(request, served);
    }
    dse_chat_prompt_deinit(&prompt);
    return status;
}

/* An error of the chat request under the names of the dialect. */
static void rename_field(struct dse_error *err, const char *const *fields)
{
    for (; fields && fields[0]; fields += 2) {
        char *texts[] = {err->file, err->message};
        size_t sizes[] = {sizeof err->file, sizeof err->message}, bytes = strlen(fields[0]);
        if (!strstr(err->file, fields[0])) continue;
        for (int i = 0; i < 2; i++) {
            char copy[sizeof err->message];
            char *at = strstr(texts[i], fields[0]);
            if (!at) continue;
            snprintf(copy, sizeof copy, "%.*s%s%s", (int)(at - texts[i]), texts[i], fields[1], at + bytes);
            snprintf(texts[i], sizes[i], "%s", copy);
        }
        return;
    }
}

void dse_chat_run(struct dse_server *server, struct dse_http_exchange *x, json_t *root,
                  const struct dse_dialect *dialect, char *echo)
{
    struct dse_error err;
    struct dse_chat_request request;
    struct dse_generation_setup setup = {.exchange = x, .dialect = dialect, .echo = echo};
    if (!dse_request_model_known(server, x, root)) {
        json_decref(root);
        dse_free(echo);
        return;
    }
    enum dse_status status = prepare(atomic_load(&server->served), root, x, &request, &setup, &err);
    if (status != DSE_OK) {
        rename_field(&err, dialect->fields);
        dse_answer_failure(server, x, &err);
        dse_chat_request_deinit(&request);
        dse_grammar_unref(setup.grammar);
        json_decref(root);
        dse_free(echo);
        return;
    }
    json_decref(request.variables);
    dse_tool_choice_deinit(&request.choice);
    setup.params = &request.params;
    setup.root = root;
    dse_generation_run(server, &setup);
}

void dse_chat_count(struct dse_server *server, struct dse_http_exchange *x, json_t *root,
                    const struct dse_dialect *dialect, const char *object)
{
    struct dse_served *served = atomic_load(&server->served);
    struct dse_error err;
    struct dse_chat_request request;
    if (!dse_request_model_known(server, x, root)) {
        json_decref(root);
        return;
    }
    enum dse_status status = dse_chat_request_parse(root, served->n_vocab, &request, &err);
    if (status == DSE_OK) {
        struct dse_chat_prompt prompt = {0};
        status = dse_chat_request_prompt(&request, served, DSE_CHAT_COUNT, &prompt, &err);
        if (status == DSE_OK) {
            struct dse_buffer out;
            dse_buffer_init(&out, DSE_MEM_REQUEST, 256);
            dse_buffer_printf(&out, "%s%zu}", object, prompt.tokens.count);
            dse_answer_buffer(server, x, 200, "application/json", &out);
        }
        dse_chat_prompt_deinit(&prompt);
    }
    if (status != DSE_OK) {
        rename_field(&err, dialect->fields);
        dse_answer_failure(server, x, &err);
    }
    dse_chat_request_deinit(&request);
    json_decref(root);
}

void dse_handle_chat(struct dse_server *server, struct dse_http_exchange *x)
{
    json_t *root = dse_request_object(server, x);
    if (root) dse_chat_run(server, x, root, &chat_dialect, NULL);
}
