/* The stream of samples (see events.h). The handler runs on a worker: only exchanges that were dispatched are watched
 * for clients that leave.
 *
 * A listener's place is given back by the release of its exchange's owner and by nothing else. Writing happens without
 * the lock: a write to a reader that is too slow releases that owner, which takes the lock.
 */
#include "server/events.h"

#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/clock.h"
#include "base/counters.h"
#include "server/errors.h"
#include "server/server_internal.h"

#define INTERVAL_MS     1000
#define N_SAMPLES       600
#define MAX_REQUESTS    256 /* counted one by one; beyond, the engine's own gauges are told */
#define MAX_ROWS        32  /* of requests in an event */
#define MAX_EVENT_BYTES (256u << 10)

struct sample {
    uint64_t uptime_ms, prompt_tokens, generated_tokens, ttft_count;
    double ttft_seconds;
    int64_t running, waiting, kv_blocks_used;
};

struct listener {
    struct dse_events *events;
    struct dse_http_exchange *exchange; /* owned reference; NULL: free place */
    bool live;                          /* has got what a stream begins with */
};

struct dse_events {
    struct dse_server *server;
    pthread_t thread;
    pthread_mutex_t lock; /* all below */
    pthread_cond_t wake;
    bool stopping, joined;
    struct listener listeners[DSE_EVENTS_MAX_LISTENERS];
    struct sample samples[N_SAMPLES]; /* a ring; the oldest is at `first` once it is full */
    int first, n_samples;
};

/* ---- what is told --------------------------------------------------------------------------------------------- */

struct requests {
    struct dse_slot slots[MAX_REQUESTS];
    int n;
    int64_t running, waiting;
};

static void look_at_requests(const struct dse_server *server, struct requests *requests)
{
    struct dse_served *served = atomic_load(&((struct dse_server *)server)->served);
    requests->running = requests->waiting = 0;
    requests->n = served ? dse_engine_slots(served->engine, requests->slots, MAX_REQUESTS) : 0;
    for (int i = 0; i < requests->n; i++)
        ++*(requests->slots[i].running ? &requests->running : &requests->waiting);
    if (requests->n < MAX_REQUESTS) return;
    requests->running = dse_gauge_get(DSE_GAUGE_REQUESTS_RUNNING);
    requests->waiting = dse_gauge_get(DSE_GAUGE_REQUESTS_WAITING);
}

static uint64_t uptime_ms(const struct dse_server *server)
{
    return (dse_clock_ns() - server->start_ns) / 1000000u;
}

static void put_requests(struct dse_buffer *out, const struct requests *requests)
{
    dse_buffer_puts(out, ",\"requests\":[");
    for (int i = 0; i < requests->n && i < MAX_ROWS; i++) {
        const struct dse_slot *slot = &requests->slots[i];
        dse_buffer_printf(out, "%s{\"id\":%llu,\"running\":%s,\"n_prompt\":%d,\"n_processed\":%d,\"n_generated\":%d}",
                          i ? "," : "", (unsigned long long)slot->id, slot->running ? "true" : "false", slot->n_prompt,
                          slot->n_processed, slot->n_generated);
    }
    dse_buffer_putc(out, ']');
}

static void put_model(struct dse_buffer *out, const struct dse_server *server)
{
    struct dse_served *served = atomic_load(&((struct dse_server *)server)->served);
    const char *name = dse_server_model_name(server);
    dse_buffer_puts(out, ",\"model\":");
    if (!served) {
        dse_buffer_puts(out, "null");
        return;
    }
    const struct dse_model_info *info = &served->info;
    const char *texts[][2] = {{"{\"name\":", name},
                              {",\"arch\":", info->arch},
                              {",\"quantization\":", info->quantization},
                              {",\"device\":", info->device_name ? info->device_name : ""}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        dse_buffer_puts(out, texts[i][0]);
        dse_buffer_put_json_string(out, texts[i][1], strlen(texts[i][1]));
    }
    dse_buffer_printf(out, ",\"context_length\":%lld,\"n_parameters\":%lld,\"n_layers\":%d,\"n_threads\":%d}",
                      (long long)served->context_length, (long long)info->n_parameters, info->n_layers,
                      info->n_threads);
}

struct metric {
    const char *name, *labels;
    enum dse_unit unit;
};
#define METRIC(id, metric, unit, labels, help) {metric, labels, DSE_UNIT_##unit},

/* ,"name":value; metrics that have labels are left to /metrics. */
static void put_metric(struct dse_buffer *out, const struct metric *metric, int64_t value, bool *first)
{
    if (metric->labels[0]) return;
    dse_buffer_printf(out, "%s\"%s\":", *first ? "" : ",", metric->name);
    *first = false;
    if (metric->unit == DSE_UNIT_SECONDS)
        dse_buffer_printf(out, "%.9f", (double)value * 1e-9);
    else
        dse_buffer_printf(out, "%lld", (long long)value);
}

/* Names are those of /metrics without their prefix. */
static void put_status(struct dse_buffer *out, const struct dse_server *server, const struct requests *requests)
{
    static const struct metric counters[] = {DSE_COUNTERS(METRIC)}, gauges[] = {DSE_GAUGES(METRIC)},
                               histograms[] = {DSE_HISTOGRAMS(METRIC)};
    bool first = true;
    dse_buffer_printf(out, "event: status\ndata: {\"uptime_ms\":%llu,\"state\":\"%s\",\"version\":\"" DSE_VERSION "\"",
                      (unsigned long long)uptime_ms(server), dse_server_state(server));
    dse_buffer_puts(out, ",\"counters\":{");
    for (int i = 0; i < DSE_COUNTER_COUNT; i++)
        put_metric(out, &counters[i], (int64_t)dse_counter_get((enum dse_counter)i), &first);
    dse_buffer_puts(out, "},\"gauges\":{");
    first = true;
    for (int i = 0; i < DSE_GAUGE_COUNT; i++)
        put_metric(out, &gauges[i],
                   i == DSE_GAUGE_REQUESTS_RUNNING   ? requests->running
                   : i == DSE_GAUGE_REQUESTS_WAITING ? requests->waiting
                                                     : dse_gauge_get((enum dse_gauge)i),
                   &first);
    dse_buffer_puts(out, "},\"histograms\":{");
    for (int i = 0; i < DSE_HISTOGRAM_COUNT; i++) {
        struct dse_histogram_view view = dse_histogram_get((enum dse_histogram)i);
        dse_buffer_printf(out, "%s\"%s\":{\"count\":%llu,\"sum\":%.6f}", i ? "," : "", histograms[i].name,
                          (unsigned long long)view.count, view.sum);
    }
    dse_buffer_putc(out, '}');
    put_requests(out, requests);
    put_model(out, server);
    dse_buffer_puts(out, "}\n\n");
}

static void put_sample(struct dse_buffer *out, const struct sample *s)
{
    dse_buffer_printf(out, "[%llu,%llu,%llu,%llu,%.6f,%lld,%lld,%lld]", (unsigned long long)s->uptime_ms,
                      (unsigned long long)s->prompt_tokens, (unsigned long long)s->generated_tokens,
                      (unsigned long long)s->ttft_count, s->ttft_seconds, (long long)s->running, (long long)s->waiting,
                      (long long)s->kv_blocks_used);
}

static void put_history(struct dse_buffer *out, struct dse_events *events)
{
    dse_buffer_printf(out,
                      "event: history\ndata: {\"interval_ms\":%d,\"fields\":[\"uptime_ms\",\"prompt_tokens_total\","
                      "\"generated_tokens_total\",\"time_to_first_token_count\",\"time_to_first_token_sum\","
                      "\"requests_running\",\"requests_waiting\",\"kv_blocks_used\"],\"samples\":[",
                      INTERVAL_MS);
    pthread_mutex_lock(&events->lock);
    for (int i = 0; i < events->n_samples; i++) {
        if (i) dse_buffer_putc(out, ',');
        put_sample(out, &events->samples[(events->first + i) % N_SAMPLES]);
    }
    pthread_mutex_unlock(&events->lock);
    dse_buffer_puts(out, "]}\n\n");
}

/* ---- once a second -------------------------------------------------------------------------------------------- */

static void keep_sample(struct dse_events *events, const struct requests *requests)
{
    struct dse_histogram_view ttft = dse_histogram_get(DSE_HISTOGRAM_TTFT);
    struct sample sample = {
        .uptime_ms = uptime_ms(events->server),
        .prompt_tokens = dse_counter_get(DSE_COUNTER_PROMPT_TOKENS),
        .generated_tokens = dse_counter_get(DSE_COUNTER_GENERATED_TOKENS),
        .ttft_count = ttft.count,
        .ttft_seconds = ttft.sum,
        .running = requests->running,
        .waiting = requests->waiting,
        .kv_blocks_used = dse_gauge_get(DSE_GAUGE_KV_BLOCKS_USED),
    };
    pthread_mutex_lock(&events->lock);
    events->samples[(events->first + events->n_samples) % N_SAMPLES] = sample;
    if (events->n_samples < N_SAMPLES)
        events->n_samples++;
    else
        events->first = (events->first + 1) % N_SAMPLES;
    pthread_mutex_unlock(&events->lock);
}

/* References to all whose streams have begun; returns how many. */
static int take_listeners(struct dse_events *events, struct dse_http_exchange *out[DSE_EVENTS_MAX_LISTENERS])
{
    int n = 0;
    pthread_mutex_lock(&events->lock);
    for (int i = 0; i < DSE_EVENTS_MAX_LISTENERS; i++)
        if (events->listeners[i].live) out[n++] = dse_http_ref(events->listeners[i].exchange);
    pthread_mutex_unlock(&events->lock);
    return n;
}

/* Without listeners nothing is allocated here. */
static void tick(struct dse_events *events)
{
    struct requests requests;
    look_at_requests(events->server, &requests);
    keep_sample(events, &requests);
    struct dse_http_exchange *listening[DSE_EVENTS_MAX_LISTENERS];
    int n = take_listeners(events, listening);
    if (n == 0) return;
    struct dse_buffer out;
    dse_buffer_init(&out, DSE_MEM_SERVER, MAX_EVENT_BYTES);
    put_status(&out, events->server, &requests);
    for (int i = 0; i < n; i++) {
        /* Whoever misses this one gets the next: all numbers are totals. */
        if (!out.failed) (void)dse_http_write(listening[i], out.data, out.length);
        dse_http_unref(listening[i]);
    }
    dse_buffer_deinit(&out);
}

static void *events_main(void *argument)
{
    struct dse_events *events = argument;
    struct timespec next;
    clock_gettime(CLOCK_MONOTONIC, &next);
    pthread_mutex_lock(&events->lock);
    while (!events->stopping) {
        if (pthread_cond_timedwait(&events->wake, &events->lock, &next) == 0) continue; /* woken: look at stopping */
        pthread_mutex_unlock(&events->lock);
        tick(events);
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        next.tv_sec += INTERVAL_MS / 1000;
        if (now.tv_sec > next.tv_sec) next = now; /* the machine slept: what was missed is not made up for */
        pthread_mutex_lock(&events->lock);
    }
    pthread_mutex_unlock(&events->lock);
    return NULL;
}

/* ---- listeners ------------------------------------------------------------------------------------------------ */

static void on_release(void *user)
{
    struct listener *listener = user;
    pthread_mutex_lock(&listener->events->lock);
    struct dse_http_exchange *x = listener->exchange;
    listener->exchange = NULL;
    listener->live = false;
    pthread_mutex_unlock(&listener->events->lock);
    dse_http_unref(x);
}

/* NULL when there is none left, or because of stopping. */
static struct listener *take_place(struct dse_events *events, struct dse_http_exchange *x, bool *stopping)
{
    struct listener *place = NULL;
    pthread_mutex_lock(&events->lock);
    *stopping = events->stopping;
    for (int i = 0; i < DSE_EVENTS_MAX_LISTENERS && !place && !*stopping; i++)
        if (!events->listeners[i].exchange) place = &events->listeners[i];
    if (place) *place = (struct listener){.events = events, .exchange = dse_http_ref(x)};
    pthread_mutex_unlock(&events->lock);
    return place;
}

/* The client may have left already, and its place be somebody else's. false: the server is stopping. */
static bool go_live(struct listener *place, struct dse_http_exchange *x)
{
    pthread_mutex_lock(&place->events->lock);
    bool stopping = place->events->stopping;
    if (place->exchange == x && !stopping) place->live = true;
    pthread_mutex_unlock(&place->events->lock);
    return !stopping;
}

void dse_handle_events(struct dse_server *server, struct dse_http_exchange *x)
{
    struct dse_events *events = server->events;
    dse_http_set_header(x, "Cache-Control", "no-store");
    dse_http_set_header(x, "X-Accel-Buffering", "no");
    if (strcmp(dse_http_method(x), "HEAD") == 0) {
        dse_http_respond(x, 200, "text/event-stream", NULL, 0);
        return;
    }
    struct dse_buffer out;
    struct requests requests;
    dse_buffer_init(&out, DSE_MEM_SERVER, MAX_EVENT_BYTES);
    look_at_requests(server, &requests);
    put_history(&out, events);
    put_status(&out, server, &requests);
    bool stopping = false;
    struct listener *place = out.failed ? NULL : take_place(events, x, &stopping);
    if (!place) {
        if (stopping || out.failed)
            dse_answer_problem(server, x, 503, NULL, stopping ? "draining" : NULL,
                               stopping ? "the server is shutting down" : "out of memory");
        else
            dse_answer_problem(server, x, 429, NULL, NULL, "too many clients listen to the events already");
        dse_buffer_deinit(&out);
        return;
    }
    (void)dse_http_write(x, out.data, out.length);
    dse_buffer_deinit(&out);
    dse_http_begin_stream(x, "text/event-stream", ": keep-alive\n\n");
    struct dse_http_owner owner = {.release = on_release, .user = place};
    if (!dse_http_set_owner(x, &owner)) {
        on_release(place); /* has left meanwhile */
    } else if (!go_live(place, x)) {
        dse_http_end_stream(x, "");
        dse_http_clear_owner(x);
    }
}

/* ---- start and end -------------------------------------------------------------------------------------------- */

enum dse_status dse_events_start(struct dse_server *server, struct dse_events **out, struct dse_error *err)
{
    struct dse_events *events = dse_calloc(DSE_MEM_SERVER, 1, sizeof *events);
    if (!events) return dse_fail_memory(err, sizeof *events, "event stream");
    events->server = server;
    pthread_mutex_init(&events->lock, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&events->wake, &attributes);
    pthread_condattr_destroy(&attributes);
    int error = pthread_create(&events->thread, NULL, events_main, events);
    if (error) {
        events->joined = true;
        dse_events_free(events);
        return dse_fail_errno(err, error, "", "start the thread of the event stream");
    }
    *out = events;
    return DSE_OK;
}

void dse_events_end(struct dse_events *events)
{
    if (!events) return;
    pthread_mutex_lock(&events->lock);
    events->stopping = true;
    pthread_cond_signal(&events->wake);
    bool join = !events->joined;
    events->joined = true;
    pthread_mutex_unlock(&events->lock);
    if (join) pthread_join(events->thread, NULL);
    struct dse_http_exchange *listening[DSE_EVENTS_MAX_LISTENERS];
    int n = take_listeners(events, listening);
    for (int i = 0; i < n; i++) {
        dse_http_end_stream(listening[i], "");
        dse_http_clear_owner(listening[i]);
        dse_http_unref(listening[i]);
    }
}

void dse_events_free(struct dse_events *events)
{
    if (!events) return;
    dse_events_end(events);
    pthread_cond_destroy(&events->wake);
    pthread_mutex_destroy(&events->lock);
    dse_free(events);
}
