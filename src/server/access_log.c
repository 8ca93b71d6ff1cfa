/* The access line. Called on the I/O thread when an exchange is over; see access_log.h. */
#include "server/access_log.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "server/generation.h"
#include "server/trace_context.h"

#define STATUS_CLIENT_LEFT 499 /* as nginx says it */
#define MAX_FIELDS         24

void dse_access_note_generation(const struct dse_generation *g)
{
    struct dse_access_note note = {.given = true, .stream = g->params.stream};
    snprintf(note.model, sizeof note.model, "%s", g->model);
    const struct dse_choice *longest = NULL;
    for (int i = 0; i < g->n_prompts; i++)
        note.n_prompt += (int64_t)g->prompts[i].tokens.count;
    for (int i = 0; i < g->n_choices; i++) {
        const struct dse_choice *c = &g->choices[i];
        if (!c->finished) continue;
        if (i % g->params.n == 0) note.n_cached += c->timings.n_cached;
        note.n_generated += c->timings.n_generated;
        if (!longest || c->timings.decode_ns >= longest->timings.decode_ns) longest = c;
    }
    if (longest) {
        /* Choices run side by side: the one that took longest stands for how long it took. */
        note.queued_ns = longest->timings.queued_ns;
        note.prefill_ns = longest->timings.prefill_ns;
        note.decode_ns = longest->timings.decode_ns;
        if (atomic_load(&g->failed))
            note.finish = "error";
        else if (longest->finish == DSE_FINISH_CANCELLED)
            note.finish = "cancelled";
        else
            note.finish = dse_finish_name(longest->finish);
    }
    dse_http_set_note(g->exchange, &note);
}

static void add(struct dse_log_field *fields, int *n, struct dse_log_field field)
{
    if (*n < MAX_FIELDS) fields[(*n)++] = field;
}

#define TEXT(key, value)   add(fields, &n, (struct dse_log_field){.name = key, .kind = DSE_LOG_TEXT, .text = value})
#define NUMBER(key, value) add(fields, &n, (struct dse_log_field){.name = key, .kind = DSE_LOG_NUMBER, .number = value})
#define BOOL(key, value)   add(fields, &n, (struct dse_log_field){.name = key, .kind = DSE_LOG_BOOL, .number = value})
#define MS(key, ns)        add(fields, &n, (struct dse_log_field){.name = key, .kind = DSE_LOG_MS, .number = (int64_t)ns})

void dse_access_log(struct dse_http_exchange *x, const char *route, const struct dse_http_summary *s)
{
    if (!dse_log_enabled(DSE_LOG_INFO)) return;
    struct dse_log_field fields[MAX_FIELDS];
    int n = 0;
    const struct dse_access_note *note = s->note;
    const int status = s->status ? s->status : STATUS_CLIENT_LEFT;
    const char *path = route ? route : "(unknown)"; /* anything may be in one that is not ours */
    char message[160], method[17];
    struct dse_trace_context caller = {0};
    const char *theirs = dse_http_only_header(x, "traceparent");
    char ours[256], id[256];
    dse_http_answer_header(x, "traceparent", ours, sizeof ours);
    dse_http_answer_header(x, "X-Request-Id", id, sizeof id);
    struct dse_trace_context own = {0};
    if (ours[0]) dse_trace_context_parse(ours, &own);
    if (!theirs || !dse_trace_context_parse(theirs, &caller)) caller.parent_id[0] = '\0';
    snprintf(method, sizeof method, "%s", dse_http_method(x));
    snprintf(message, sizeof message, "%s %s %d", method, path, status);

    TEXT("request_id", id[0] ? id : NULL);
    TEXT("trace_id", ours[0] ? own.trace_id : NULL);
    TEXT("span_id", ours[0] ? own.parent_id : NULL); /* the answer's parent id is our span */
    TEXT("parent_id", caller.parent_id[0] ? caller.parent_id : NULL);
    TEXT("method", method);
    TEXT("path", path);
    NUMBER("status", status);
    MS("duration_ms", s->duration_ns);
    NUMBER("response_bytes", (int64_t)s->bytes);
    BOOL("complete", s->complete);
    if (note->given) {
        TEXT("model", note->model);
        BOOL("stream", note->stream);
        NUMBER("prompt_tokens", note->n_prompt);
        NUMBER("cached_tokens", note->n_cached);
        NUMBER("completion_tokens", note->n_generated);
        MS("queue_ms", note->queued_ns);
        MS("prefill_ms", note->prefill_ns);
        MS("decode_ms", note->decode_ns);
        TEXT("finish_reason", note->finish);
    }
    dse_log_fields(DSE_LOG_INFO, "access", message, fields, n);
}
