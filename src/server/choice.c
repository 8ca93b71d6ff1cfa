/* One choice of a generation: from the engine's events to text, log probabilities and tool calls.
 *
 * Events come on the engine thread: they format and append, and never wait. What becomes of the generation, and the
 * submission of its prompts, is none of this file's business (see generation.c).
 */
#include "server/generation.h"

#include <string.h>

#include "base/alloc.h"
#include "server/slots.h"

static void on_text(void *user, enum dse_channel channel, const char *text, size_t bytes)
{
    struct dse_choice *c = user;
    if (c->generation->dialect->events)
        dse_items_add_text(&c->items, channel, text, bytes);
    else
        dse_buffer_append(&c->text[channel], text, bytes);
}

static void ignore_text(void *user, enum dse_channel channel, const char *text, size_t bytes)
{
    (void)user, (void)channel, (void)text, (void)bytes;
}

static void on_tool(void *user, const struct dse_tool_event *event)
{
    struct dse_choice *c = user;
    if (c->generation->dialect->events)
        dse_items_add_call(&c->items, event);
    else
        dse_tool_answer_add(&c->calls, event);
}

static uint32_t count_characters(const char *text, size_t bytes)
{
    uint32_t n = 0;
    for (size_t i = 0; text != NULL && i < bytes; i++) /* NULL: a token without text */
        n += ((unsigned char)text[i] & 0xC0) != 0x80;
    return n;
}

enum dse_status dse_choice_init(struct dse_generation *g, int index, struct dse_error *err)
{
    struct dse_choice *c = &g->choices[index];
    c->generation = g;
    c->prompt = &g->prompts[index / g->params.n];
    c->index = index;
    c->stop_index = -1;
    dse_buffer_init(&c->text[0], DSE_MEM_REQUEST, DSE_MAX_ANSWER_BYTES);
    dse_buffer_init(&c->text[1], DSE_MEM_REQUEST, DSE_MAX_ANSWER_BYTES);
    dse_buffer_init(&c->raw, DSE_MEM_REQUEST, DSE_MAX_ANSWER_BYTES);
    dse_tool_answer_init(&c->calls, g->params.stream, DSE_MAX_ANSWER_BYTES);
    if (g->dialect->embeds) return dse_embedding_init(c, err);
    bool chat = g->dialect->chat;
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
    enum dse_status status = dse_output_create(&options, &c->output, err);
    if (status != DSE_OK || !options.think_open || g->params.thought_budget < 0) return status;
    /* Whatever the client sees of thoughts. */
    options.n_stops = 0;
    options.reasoning = DSE_REASONING_DEEPSEEK;
    options.tools = DSE_TOOLS_NONE;
    options.emit = ignore_text;
    return dse_output_create(&options, &c->thoughts, err);
}

void dse_choice_deinit(struct dse_choice *c)
{
    dse_output_free(c->output);
    dse_output_free(c->thoughts);
    dse_buffer_deinit(&c->text[0]);
    dse_buffer_deinit(&c->text[1]);
    dse_buffer_deinit(&c->raw);
    dse_tool_answer_deinit(&c->calls);
    dse_items_deinit(&c->items);
    dse_free(c->vector);
    dse_logprobs_deinit(&c->logprobs);
    dse_logprobs_deinit(&c->waiting);
    dse_tokens_deinit(&c->tokens);
}

void dse_choices_begin_with_echo(struct dse_generation *g, struct dse_gen_prompt *p)
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

/* Nor are newlines between a thought and the content. */
static void drop_gap_logprobs(struct dse_choice *c)
{
    const size_t length = c->raw.length, content = dse_output_content_bytes(c->output);
    const size_t begin = length > content ? length - content : 0;
    size_t kept = 0;
    for (size_t k = 0; k < c->waiting.count; k++) {
        const struct dse_logprob_entry *entry = &c->waiting.entries[k];
        const size_t end = k + 1 < c->waiting.count ? c->waiting.entries[k + 1].raw_start : length;
        if (entry->raw_start >= begin || end > begin) c->waiting.entries[kept++] = *entry;
    }
    c->waiting.count = kept;
}

/* Sends what the output stage let go of, if the client streams. An answer with a hole must not pass for a whole one. */
static void pass_on(struct dse_choice *c)
{
    const struct dse_buffer *parts[] = {&c->text[0], &c->text[1], &c->calls.text, &c->raw};
    size_t bytes = 0;
    bool failed = c->logprobs.failed || c->waiting.failed || c->prompt->echo_logprobs.failed || c->items.failed;
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

/* Counts tokens inside <think>; when there are as many as the request allows, </think> comes next. A grammar that is on
 * may not let it come at once: then as soon as it does. */
static void limit_thought(struct dse_choice *c, struct dse_slice text, struct dse_forced *forced)
{
    const bool thought = dse_output_in_reasoning(c->thoughts);
    int ignored;
    (void)dse_output_feed(c->thoughts, text.data ? text.data : "", text.bytes, &ignored);
    if (!dse_output_in_reasoning(c->thoughts)) return;
    c->n_thought += thought;
    if (c->n_thought >= c->generation->params.thought_budget && forced->n_tokens == 0)
        *forced = dse_thought_end(c->generation->served);
}

static bool on_token(struct dse_choice *c, const struct dse_event *event)
{
    struct dse_generation *g = c->generation;
    if (c->stopped || atomic_load(&g->failed)) return false;
    c->n_tokens++;
    start_choice(c);
    /* Without memory for it the slot ends here: what is saved of it is right, and less. */
    if (g->params.id_slot >= 0 && c->tokens.count + 1 == (size_t)c->n_tokens)
        (void)(dse_tokens_push(&c->tokens, event->token, NULL) == DSE_OK);
    if (event->is_stop_token) return true;
    const struct dse_tokenizer *tokenizer = g->served->tokenizer;
    struct dse_slice text = dse_tokenizer_bytes(tokenizer, event->token);
    if (c->thoughts) limit_thought(c, text, event->forced);
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
        drop_gap_logprobs(c);
        drop_call_logprobs(c);
        size_t held = more ? dse_output_held_bytes(c->output) : 0;
        dse_logprobs_move(&c->waiting, &c->logprobs, c->raw.length > held ? c->raw.length - held : 0);
        if (!more) dse_logprobs_move(&c->waiting, &c->logprobs, SIZE_MAX);
        dse_items_add_logprobs(&c->items, c->logprobs.count);
    }
    c->stopped = !more;
    if (!more) c->stop_index = stop_index;
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

/* The prompt and as much of the answer as there is: all of it that was computed is in the prefix cache. */
static void fill_slot(const struct dse_choice *c, const struct dse_event *event)
{
    const struct dse_generation *g = c->generation;
    const struct dse_tokens *prompt = &c->prompt->tokens;
    struct dse_slot_tokens held = {.n_tokens = prompt->count + c->tokens.count,
                                   .adapter_identity = event->adapter_identity};
    held.tokens = dse_calloc(DSE_MEM_SERVER, held.n_tokens, sizeof *held.tokens);
    if (!held.tokens) return; /* it holds what it held before */
    memcpy(held.tokens, prompt->ids, prompt->count * sizeof *held.tokens);
    if (c->tokens.count > 0) memcpy(held.tokens + prompt->count, c->tokens.ids, c->tokens.count * sizeof *held.tokens);
    memcpy(held.cache_salt, g->caller.cache_salt, sizeof held.cache_salt);
    dse_slots_put(g->server->slots, g->caller.tenant, g->params.id_slot, &held);
}

static void on_finish(struct dse_choice *c, const struct dse_event *event)
{
    struct dse_generation *g = c->generation;
    c->finish = event->finish;
    c->timings = event->timings;
    if (event->finish == DSE_FINISH_ERROR && event->error) {
        dse_generation_fail(g, NULL, event->error);
    } else if (event->finish == DSE_FINISH_ERROR || (event->finish == DSE_FINISH_CANCELLED && !g->gone)) {
        struct dse_error err;
        dse_fail(&err, event->finish == DSE_FINISH_ERROR ? DSE_ERR_INTERNAL : DSE_ERR_CANCELLED,
                 "generation ended early");
        dse_generation_fail(g, NULL, &err);
    } else if (g->dialect->embeds) {
        if (event->finish != DSE_FINISH_CANCELLED) dse_embedding_finish(c);
    } else if (event->finish != DSE_FINISH_CANCELLED && !atomic_load(&g->failed)) {
        dse_output_finish(c->output);
        drop_gap_logprobs(c);
        drop_call_logprobs(c);
        dse_logprobs_move(&c->waiting, &c->logprobs, SIZE_MAX);
        dse_items_add_logprobs(&c->items, c->logprobs.count);
        start_choice(c);
        pass_on(c);
    }
    if (g->params.id_slot >= 0 && event->finish != DSE_FINISH_ERROR) fill_slot(c, event);
    c->finished = true;
    g->n_finished++;
    if (g->params.stream) dse_stream_finish(c);
    dse_generation_choice_finished(c->prompt);
}

bool dse_choice_on_event(void *user, const struct dse_event *event)
{
    struct dse_gen_prompt *p = user;
    struct dse_generation *g = p->generation;
    struct dse_choice *c = &g->choices[p->index * g->params.n + event->choice];
    switch (event->kind) {
    case DSE_EVENT_PROGRESS:
        c->timings.n_cached = event->n_cached; /* usage before the end */
        /* Clients of events learn at once that work on their prompt has begun. */
        if (g->dialect->events && !atomic_load(&g->failed)) start_choice(c);
        if (g->params.stream && g->params.return_progress) dse_stream_progress(c, event);
        return true;
    case DSE_EVENT_PROMPT_LOGPROB: on_prompt_logprob(p, event); return true;
    case DSE_EVENT_HIDDEN_STATE: dse_embedding_add(c, event); return true;
    case DSE_EVENT_TOKEN: return on_token(c, event);
    case DSE_EVENT_FINISH: on_finish(c, event); return true;
    }
    return true;
}
