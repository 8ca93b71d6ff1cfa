/* Frames of an answer: SSE chunks with one id, created and model, the usage chunk, [DONE]; and the whole document.
 *
 * Chunks are formatted into generation->chunk and written at once. Numbers never go inside a delta: SDKs add them up.
 * Runs on the engine thread, or on a worker once no event can come any more.
 */
#include <string.h>

#include "base/clock.h"

#include "server/generation.h"

static void put_head(struct dse_generation *g, struct dse_buffer *out, const char *object)
{
    dse_buffer_printf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", g->id, object,
                      (long long)g->created);
    dse_buffer_put_json_string(out, g->model, strlen(g->model));
    dse_buffer_puts(out, ",\"system_fingerprint\":\"" DSE_SERVER_FINGERPRINT "\",\"choices\":[");
}

void dse_generation_sums(const struct dse_generation *g, struct dse_usage *usage, struct dse_timing_sum *timings)
{
    *usage = (struct dse_usage){0};
    *timings = (struct dse_timing_sum){0};
    for (int i = 0; i < g->n_choices; i++) {
        const struct dse_choice *c = &g->choices[i];
        int n = c->finished ? c->timings.n_generated : c->n_tokens;
        usage->completion_tokens += n;
        if (c->output) usage->reasoning_tokens += dse_output_reasoning_tokens(c->output);
        timings->n_predicted += n;
        timings->n_drafted += c->timings.n_drafted;
        timings->n_draft_taken += c->timings.n_draft_taken;
        timings->n_intervals += n > 1 ? n - 1 : 0;
        if (c->timings.decode_ns > timings->decode_ns) timings->decode_ns = c->timings.decode_ns;
        if (i % g->params.n != 0) continue; /* choices of a prompt share its prefill */
        usage->prompt_tokens += (int64_t)c->prompt->tokens.count;
        usage->cached_tokens += c->timings.n_cached;
        timings->prefill_ns += c->timings.prefill_ns;
    }
    timings->n_prompt = usage->prompt_tokens;
    timings->n_cached = usage->cached_tokens;
}

static void begin_chunk(struct dse_generation *g)
{
    dse_buffer_clear(&g->chunk);
    dse_buffer_puts(&g->chunk, "data: ");
    put_head(g, &g->chunk, g->dialect->chunk_object);
}

/* Sends what was formatted; false: it is lost for want of memory. */
static bool write_chunk(struct dse_generation *g)
{
    return !g->chunk.failed && dse_http_write(g->exchange, g->chunk.data, g->chunk.length) != DSE_ERR_NO_MEMORY;
}

/* A stream with a hole must not pass for a whole one. false: it was not sent. */
static bool send_formatted(struct dse_generation *g)
{
    if (atomic_load(&g->failed)) return false;
    if (write_chunk(g)) return true;
    struct dse_error err;
    dse_fail_memory(&err, g->chunk.length, "a chunk of an answer");
    dse_generation_fail(g, NULL, &err);
    return false;
}

/* Closes "choices" and sends. */
static void send_chunk(struct dse_generation *g, bool with_usage, bool with_timings)
{
    struct dse_usage usage;
    struct dse_timing_sum timings;
    with_usage |= g->params.continuous_usage;
    if (with_usage || with_timings)
        dse_generation_sums(g, &usage, &timings); /* walks all choices: not for every token */
    dse_buffer_putc(&g->chunk, ']');
    if (with_usage) {
        dse_buffer_puts(&g->chunk, ",\"usage\":");
        dse_put_usage(&g->chunk, &usage);
    } else if (g->params.include_usage) {
        dse_buffer_puts(&g->chunk, ",\"usage\":null");
    }
    if (with_timings) {
        dse_buffer_puts(&g->chunk, ",\"timings\":");
        dse_put_timings(&g->chunk, &timings);
    }
    dse_buffer_puts(&g->chunk, "}\n\n");
    (void)send_formatted(g);
}

struct dse_buffer *dse_stream_event(struct dse_generation *g, const char *name)
{
    dse_buffer_clear(&g->chunk);
    dse_buffer_printf(&g->chunk, "event: %s\ndata: {\"type\":\"%s\"", name, name);
    return &g->chunk;
}

struct dse_buffer *dse_stream_object(struct dse_generation *g)
{
    dse_buffer_clear(&g->chunk);
    dse_buffer_puts(&g->chunk, "data: {");
    return &g->chunk;
}

void dse_stream_event_send(struct dse_generation *g)
{
    dse_buffer_puts(&g->chunk, "}\n\n");
    if (send_formatted(g)) g->n_events++;
}

void dse_stream_first(struct dse_choice *c)
{
    if (c->generation->dialect->events) {
        c->generation->dialect->events->begin(c);
        return;
    }
    if (!c->generation->dialect->put_first) return;
    begin_chunk(c->generation);
    c->generation->dialect->put_first(c, &c->generation->chunk);
    send_chunk(c->generation, false, false);
}

static void stream_calls(struct dse_choice *c)
{
    size_t position = 0;
    for (struct dse_slice delta; dse_tool_answer_next(&c->calls, &position, &delta);) {
        begin_chunk(c->generation);
        c->generation->dialect->put_call(c, delta, &c->generation->chunk);
        send_chunk(c->generation, false, false);
    }
    dse_buffer_clear(&c->calls.text);
}

void dse_stream_delta(struct dse_choice *c)
{
    static const enum dse_channel order[] = {DSE_CHANNEL_REASONING, DSE_CHANNEL_CONTENT};
    if (c->generation->dialect->events) {
        c->generation->dialect->events->tell(c, c->finish != DSE_FINISH_NONE);
        return;
    }
    for (int i = 0; i < 2; i++) {
        if (c->text[order[i]].length == 0) continue;
        begin_chunk(c->generation);
        c->generation->dialect->put_delta(c, order[i], &c->generation->chunk);
        send_chunk(c->generation, false, false);
        dse_buffer_clear(&c->text[order[i]]);
        if (order[i] == DSE_CHANNEL_CONTENT) dse_logprobs_clear(&c->logprobs);
    }
    stream_calls(c);
}

void dse_stream_finish(struct dse_choice *c)
{
    struct dse_generation *g = c->generation;
    if (g->dialect->events) {
        g->dialect->events->finish(c);
        return;
    }
    begin_chunk(g);
    g->dialect->put_finish(c, &g->chunk);
    send_chunk(g, false, g->n_finished == g->n_choices && !g->params.include_usage);
}

void dse_stream_progress(struct dse_choice *c, const struct dse_event *event)
{
    struct dse_generation *g = c->generation;
    begin_chunk(g);
    dse_buffer_printf(&g->chunk,
                      "],\"prompt_progress\":{\"total\":%d,\"cache\":%d,\"processed\":%d,\"time_ms\":%llu}}\n\n",
                      event->n_prompt, event->n_cached, event->n_processed,
                      (unsigned long long)((dse_clock_ns() - g->start_ns) / 1000000u));
    (void)send_formatted(g);
}

void dse_stream_usage(struct dse_generation *g)
{
    begin_chunk(g);
    send_chunk(g, true, true);
}

#define DONE "data: [DONE]\n\n"
/* When there is not even memory for an error. */
#define NO_MEMORY                                                                                                      \
    "data: {\"error\":{\"message\":\"out of memory\",\"type\":\"server_error\","                                       \
    "\"param\":null,\"code\":\"unavailable\"}}\n\n" DONE

void dse_stream_error(struct dse_generation *g, const struct dse_api_error *error)
{
    const struct dse_event_dialect *events = g->dialect->events;
    dse_buffer_clear(&g->chunk);
    dse_count_error(error->http);
    if (events) {
        events->put_failure(g, error, &g->chunk);
        dse_http_end_stream(g->exchange, write_chunk(g) ? "" : events->no_memory);
        return;
    }
    dse_buffer_puts(&g->chunk, "data: ");
    dse_put_error(&g->chunk, error);
    dse_buffer_puts(&g->chunk, "\n\n");
    dse_http_end_stream(g->exchange, write_chunk(g) ? DONE : NO_MEMORY);
}

void dse_stream_end(struct dse_generation *g)
{
    dse_http_end_stream(g->exchange, g->dialect->events ? g->dialect->events->last : DONE);
}

void dse_put_whole_answer(struct dse_generation *g, struct dse_buffer *out)
{
    struct dse_usage usage;
    struct dse_timing_sum timings;
    if (g->dialect->events) {
        g->dialect->events->put_whole(g, out);
        return;
    }
    dse_generation_sums(g, &usage, &timings);
    put_head(g, out, g->dialect->object);
    for (int i = 0; i < g->n_choices; i++) {
        if (i) dse_buffer_putc(out, ',');
        g->dialect->put_whole(&g->choices[i], out);
    }
    dse_buffer_puts(out, "],\"usage\":");
    dse_put_usage(out, &usage);
    dse_buffer_puts(out, ",\"timings\":");
    dse_put_timings(out, &timings);
    dse_buffer_putc(out, '}');
}
