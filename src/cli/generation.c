/* The bridge between the engine thread and a waiting caller. The callback runs the output stage and appends to a buffer
 * under a mutex; the caller takes what is there and prints it without the lock, so a slow terminal never holds the
 * engine. */
#include "cli/generation.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "base/buffer.h"
#include "text/tokenizer.h"

struct generation {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    const struct dse_tokenizer *tokenizer;
    struct dse_output *output;
    struct dse_buffer pending; /* records: channel byte, length, text */
    bool done;
    struct dse_generation_result result;
    struct dse_error error;
};

struct record {
    enum dse_channel channel;
    size_t bytes;
};

static void emit(void *user, enum dse_channel channel, const char *text, size_t bytes)
{
    struct generation *g = user;
    struct record record = {channel, bytes};
    dse_buffer_append(&g->pending, &record, sizeof record);
    dse_buffer_append(&g->pending, text, bytes);
}

static bool on_event(void *user, const struct dse_event *event)
{
    struct generation *g = user;
    bool go_on = true;
    pthread_mutex_lock(&g->mutex);
    if (event->kind == DSE_EVENT_TOKEN && !event->is_stop_token) {
        struct dse_slice bytes = dse_tokenizer_bytes(g->tokenizer, event->token);
        int stop_index;
        bool hidden = dse_tokenizer_kind(g->tokenizer, event->token) == DSE_TOKEN_CONTROL;
        if (!hidden) go_on = dse_output_feed(g->output, bytes.data, bytes.bytes, &stop_index);
    } else if (event->kind == DSE_EVENT_FINISH) {
        dse_output_finish(g->output);
        g->result.finish = event->finish;
        g->result.timings = event->timings;
        g->result.reasoning_tokens = dse_output_reasoning_tokens(g->output);
        if (event->error != NULL) g->error = *event->error;
        g->done = true;
    }
    pthread_cond_signal(&g->changed);
    pthread_mutex_unlock(&g->mutex);
    return go_on;
}

/* Hands over all complete records. */
static void deliver(const struct dse_buffer *taken, const struct dse_generation_options *options)
{
    for (size_t at = 0; at + sizeof(struct record) <= taken->length;) {
        struct record record;
        memcpy(&record, taken->data + at, sizeof record);
        at += sizeof record;
        options->on_text(options->user, record.channel, taken->data + at, record.bytes);
        at += record.bytes;
    }
}

enum dse_status dse_generate_text(struct dse_engine *engine, const struct dse_generation_options *options,
                                  const volatile bool *stop, struct dse_generation_result *result,
                                  struct dse_error *err)
{
    struct generation g = {.mutex = PTHREAD_MUTEX_INITIALIZER,
                           .tokenizer = dse_model_tokenizer(dse_engine_model(engine))};
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&g.changed, &attributes);
    pthread_condattr_destroy(&attributes);
    dse_buffer_init(&g.pending, DSE_MEM_REQUEST, 64u << 20);

    struct dse_output_options output = options->output;
    output.emit = emit;
    output.user = &g;
    struct dse_request request = options->request;
    request.on_event = on_event;
    request.user = &g;
    uint64_t id = 0;
    bool cancelled = false;
    enum dse_status status = dse_output_create(&output, &g.output, err);
    if (status == DSE_OK) status = dse_engine_submit(engine, &request, &id, err);

    struct dse_buffer taken;
    dse_buffer_init(&taken, DSE_MEM_REQUEST, 64u << 20);
    for (bool done = false; status == DSE_OK && !done;) {
        pthread_mutex_lock(&g.mutex);
        if (!g.done && g.pending.length == 0) {
            struct timespec until; /* signals only set a flag, so wake now and then to look at it */
            clock_gettime(CLOCK_MONOTONIC, &until);
            until.tv_nsec += 50 * 1000 * 1000;
            if (until.tv_nsec >= 1000000000) {
                until.tv_nsec -= 1000000000;
                until.tv_sec++;
            }
            pthread_cond_timedwait(&g.changed, &g.mutex, &until);
        }
        struct dse_buffer swap = taken;
        taken = g.pending;
        g.pending = swap;
        done = g.done;
        pthread_mutex_unlock(&g.mutex);
        deliver(&taken, options);
        dse_buffer_clear(&taken);
        if (stop != NULL && *stop && !cancelled) {
            dse_engine_cancel(engine, id);
            cancelled = true;
        }
    }
    *result = g.result;
    if (status == DSE_OK && g.result.finish == DSE_FINISH_ERROR) {
        if (err != NULL) *err = g.error;
        status = g.error.status != DSE_OK ? g.error.status : DSE_ERR_INTERNAL;
    }
    dse_buffer_deinit(&taken);
    dse_buffer_deinit(&g.pending);
    dse_output_free(g.output);
    pthread_cond_destroy(&g.changed);
    pthread_mutex_destroy(&g.mutex);
    return status;
}
