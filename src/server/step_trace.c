/* Steps as "complete" events of the Trace Event Format: one for the step, nested in it one for each cause, laid end to
 * end in the order of enum dse_step_cause (sampling and delivery alternate in truth). See step_trace.h. */
#include "server/step_trace.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/file.h"
#include "base/log.h"
#include "engine/step_ring.h"

#define INTERVAL_NS 100000000
#define BEGIN                                                                                                          \
    "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"                                                                  \
    "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":1,\"args\":{\"name\":\"deepseek-edge\"}},\n"                      \
    "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":1,\"tid\":1,\"args\":{\"name\":\"engine\"}}"
#define END "\n]}\n"

struct dse_step_trace {
    int fd;
    bool started, full; /* full: nothing more is written */
    off_t at;           /* where the next event goes; the end mark stands there now */
    uint64_t last;      /* number of the last step written */
    struct dse_engine *engine;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t stop;
    bool stopping;
    struct dse_buffer out;
    struct dse_step_record records[DSE_STEP_RING_LENGTH];
};

static void put_event(struct dse_buffer *out, const char *name, uint64_t begin_ns, uint64_t duration_ns)
{
    dse_buffer_printf(out,
                      ",\n{\"name\":\"%s\",\"cat\":\"step\",\"ph\":\"X\",\"pid\":1,\"tid\":1,\"ts\":%.3f,\"dur\":%.3f",
                      name, (double)begin_ns * 1e-3, (double)duration_ns * 1e-3);
}

static void put_step(struct dse_buffer *out, const struct dse_step_record *r)
{
    const uint64_t *cause = r->cause_ns;
    uint64_t duration = 0, at = r->begin_ns;
    for (int i = DSE_STEP_WAIT + 1; i < DSE_STEP_CAUSE_COUNT; i++)
        duration += cause[i];
    uint64_t before = at - cause[DSE_STEP_SWAP] - cause[DSE_STEP_WAIT];
    for (int i = 0; i <= DSE_STEP_WAIT; before += cause[i++]) {
        if (cause[i] == 0) continue;
        put_event(out, dse_step_cause_names[i], before, cause[i]);
        dse_buffer_puts(out, "}");
    }
    put_event(out, "step", at, duration);
    dse_buffer_printf(out,
                      ",\"args\":{\"step\":%llu,\"prefill_rows\":%llu,\"decode_rows\":%llu,\"recompute_rows\":%llu,"
                      "\"chunk_tokens\":%llu,\"tokens\":%llu,\"preempted\":%llu,\"major_faults\":%llu}}",
                      (unsigned long long)r->number, (unsigned long long)r->prefill_rows,
                      (unsigned long long)r->decode_rows, (unsigned long long)r->recompute_rows,
                      (unsigned long long)r->chunk_tokens, (unsigned long long)r->n_tokens,
                      (unsigned long long)r->n_preempted, (unsigned long long)r->major_faults);
    for (int i = DSE_STEP_WAIT + 1; i < DSE_STEP_CAUSE_COUNT; i++) {
        if (cause[i] == 0) continue;
        put_event(out, dse_step_cause_names[i], at, cause[i]);
        dse_buffer_puts(out, "}");
        at += cause[i];
    }
    dse_buffer_printf(out,
                      ",\n{\"name\":\"requests\",\"ph\":\"C\",\"pid\":1,\"ts\":%.3f,\"args\":{\"running\":%llu,"
                      "\"waiting\":%llu}},\n{\"name\":\"kv blocks\",\"ph\":\"C\",\"pid\":1,\"ts\":%.3f,\"args\":{"
                      "\"used\":%llu}}",
                      (double)r->begin_ns * 1e-3, (unsigned long long)r->n_running, (unsigned long long)r->n_waiting,
                      (double)r->begin_ns * 1e-3, (unsigned long long)r->kv_blocks_used);
}

/* The text and the end mark behind it. What could not be written whole is taken back. */
static bool append(struct dse_step_trace *trace, struct dse_buffer *out)
{
    size_t bytes = out->length;
    bool fits = (uint64_t)trace->at + bytes + sizeof END <= DSE_STEP_TRACE_MAX_BYTES;
    bool written = fits && dse_buffer_puts(out, END) &&
                   dse_write_at(trace->fd, dse_buffer_text(out), out->length, trace->at);
    if (written) {
        trace->at += (off_t)bytes;
        return true;
    }
    trace->full = true;
    if (fits && (ftruncate(trace->fd, trace->at) != 0 || !dse_write_at(trace->fd, END, sizeof END - 1, trace->at)))
        dse_log(DSE_LOG_WARN, "trace", "the trace of steps is cut off in its last event");
    if (fits)
        dse_log(DSE_LOG_WARN, "trace", "the trace of steps cannot be written any more (errno %d)", errno);
    else
        dse_log(DSE_LOG_WARN, "trace", "the trace of steps has reached its %u MiB: it ends here",
                DSE_STEP_TRACE_MAX_BYTES >> 20);
    return false;
}

static void write_new(struct dse_step_trace *trace)
{
    const struct dse_step_ring *ring = dse_engine_steps(trace->engine);
    int n = trace->full ? 0 : dse_step_ring_read(ring, trace->last, trace->records, DSE_STEP_RING_LENGTH);
    if (n == 0) return;
    dse_buffer_clear(&trace->out);
    for (int i = 0; i < n; i++) {
        const struct dse_step_record *r = &trace->records[i];
        if (r->number != trace->last + 1)
            dse_buffer_printf(&trace->out,
                              ",\n{\"name\":\"%llu steps missed\",\"ph\":\"i\",\"s\":\"p\",\"pid\":1,\"tid\":1,"
                              "\"ts\":%.3f}",
                              (unsigned long long)(r->number - trace->last - 1), (double)r->begin_ns * 1e-3);
        put_step(&trace->out, r);
        trace->last = r->number;
    }
    if (trace->out.failed) return; /* no memory for these; the next ones tell that they are missing */
    append(trace, &trace->out);
}

static void *trace_main(void *argument)
{
    struct dse_step_trace *trace = argument;
    bool stopping = false;
    while (!stopping) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += INTERVAL_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_mutex_lock(&trace->lock);
        while (!trace->stopping && pthread_cond_timedwait(&trace->stop, &trace->lock, &until) == 0) {
        }
        stopping = trace->stopping;
        pthread_mutex_unlock(&trace->lock);
        write_new(trace);
    }
    return NULL;
}

/* An empty file, or a trace of ours. A model that was named by mistake is not lost. */
static bool may_replace(int fd)
{
    char begin[sizeof BEGIN - 1];
    struct stat st;
    if (fstat(fd, &st) != 0) return false;
    return st.st_size == 0 || (st.st_size >= (off_t)sizeof begin && dse_read_at(fd, begin, sizeof begin, 0) &&
                               memcmp(begin, BEGIN, sizeof begin) == 0);
}

enum dse_status dse_step_trace_open(const char *path, struct dse_step_trace **out, struct dse_error *err)
{
    enum dse_status status = dse_file_check_target(path, err);
    if (status != DSE_OK) return status;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) return dse_fail_errno(err, errno, path, "write");
    if (!may_replace(fd)) {
        close(fd);
        return dse_fail_at(err, DSE_ERR_INVALID, path, -1, "%s exists and is no trace of steps: it is not written over",
                           path);
    }
    if (ftruncate(fd, 0) != 0 || !dse_write_at(fd, BEGIN END, sizeof BEGIN END - 1, 0)) {
        status = dse_fail_errno(err, errno, path, "write");
        close(fd);
        return status;
    }
    struct dse_step_trace *trace = dse_calloc(DSE_MEM_SERVER, 1, sizeof *trace);
    if (!trace) {
        close(fd);
        return dse_fail_memory(err, sizeof *trace, "the trace of steps");
    }
    trace->fd = fd;
    trace->at = sizeof BEGIN - 1;
    dse_buffer_init(&trace->out, DSE_MEM_SERVER, 4u << 20);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&trace->lock, NULL);
    pthread_cond_init(&trace->stop, &attributes);
    pthread_condattr_destroy(&attributes);
    *out = trace;
    return DSE_OK;
}

enum dse_status dse_step_trace_start(struct dse_step_trace *trace, struct dse_engine *engine, struct dse_error *err)
{
    trace->engine = engine;
    int error = pthread_create(&trace->thread, NULL, trace_main, trace);
    if (error != 0) return dse_fail_errno(err, error, "", "start the thread of the trace");
    trace->started = true;
    return DSE_OK;
}

void dse_step_trace_close(struct dse_step_trace *trace)
{
    if (!trace) return;
    pthread_mutex_lock(&trace->lock);
    trace->stopping = true;
    pthread_cond_signal(&trace->stop);
    pthread_mutex_unlock(&trace->lock);
    if (trace->started) pthread_join(trace->thread, NULL);
    close(trace->fd);
    dse_buffer_deinit(&trace->out);
    pthread_cond_destroy(&trace->stop);
    pthread_mutex_destroy(&trace->lock);
    dse_free(trace);
}
