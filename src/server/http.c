/* Exchanges over libmicrohttpd; only this file and http_head.c include its header.
 *
 * The library calls handle_request several times per request: with the headers, with pieces of the body, at its end,
 * and again after every resume. Connections whose answer is not there yet are suspended. The watcher (http_watch.c)
 * looks after suspended connections. Runs on the library's thread; answers may come from any thread.
 */
#include "server/http.h"

#include <errno.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "server/http_internal.h"

#define CONNECTION_POOL_BYTES (64u << 10)
#define MAX_STREAM_BYTES      (1u << 30) /* hard end of an answer's buffer; the real limit is max_queue_bytes */
#define LIBRARY_TIMEOUT_S     60         /* no progress at all, e.g. a reader with a full window */
#define BODY_BUDGET_FACTOR    4          /* bodies in memory at once, in multiples of max_body_bytes */

/* ---- lifetime ------------------------------------------------------------------------------------------------- */

struct dse_http_exchange *dse_http_ref(struct dse_http_exchange *x)
{
    atomic_fetch_add_explicit(&x->refs, 1, memory_order_relaxed);
    return x;
}

void dse_http_unref(struct dse_http_exchange *x)
{
    if (!x || atomic_fetch_sub_explicit(&x->refs, 1, memory_order_acq_rel) != 1) return;
    dse_http_drop_body(x);
    for (int i = 0; i < x->n_answer_headers; i++) {
        dse_free(x->headers[i].name);
        dse_free(x->headers[i].value);
    }
    dse_buffer_deinit(&x->header_text);
    dse_buffer_deinit(&x->out);
    dse_free(x->whole);
    dse_free(x->method);
    dse_free(x->path);
    pthread_mutex_destroy(&x->lock);
    dse_free(x);
}

struct dse_http_exchange *dse_http_exchange_create(struct dse_http *http, struct MHD_Connection *connection)
{
    struct dse_http_exchange *x = dse_calloc(DSE_MEM_SERVER, 1, sizeof *x);
    if (!x) return NULL;
    x->http = http;
    atomic_init(&x->refs, 1);
    pthread_mutex_init(&x->lock, NULL);
    x->connection = connection;
    x->fd = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    dse_buffer_init(&x->header_text, DSE_MEM_SERVER, CONNECTION_POOL_BYTES * 2);
    dse_buffer_init(&x->body, DSE_MEM_REQUEST, http->options.max_body_bytes + 1);
    dse_buffer_init(&x->out, DSE_MEM_REQUEST, MAX_STREAM_BYTES);
    return x;
}

/* With x->lock held. */
static void wake(struct dse_http_exchange *x)
{
    if (!x->suspended || !x->connection) return;
    x->suspended = false;
    MHD_resume_connection(x->connection);
}

static void release_owner(struct dse_http_exchange *x, bool gone)
{
    pthread_mutex_lock(&x->lock);
    struct dse_http_owner owner = x->owner;
    x->owner = (struct dse_http_owner){0};
    if (gone) x->gone = true;
    pthread_mutex_unlock(&x->lock);
    if (gone && owner.gone) owner.gone(owner.user);
    if (owner.release) owner.release(owner.user);
}

bool dse_http_set_owner(struct dse_http_exchange *x, const struct dse_http_owner *owner)
{
    pthread_mutex_lock(&x->lock);
    bool ok = !x->gone && !x->aborted;
    if (ok) x->owner = *owner;
    pthread_mutex_unlock(&x->lock);
    return ok;
}

void dse_http_clear_owner(struct dse_http_exchange *x)
{
    release_owner(x, false);
}

void dse_http_exchange_lost(struct dse_http_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    x->aborted = true;
    wake(x);
    pthread_mutex_unlock(&x->lock);
    release_owner(x, true);
}

/* ---- request -------------------------------------------------------------------------------------------------- */

const char *dse_http_method(const struct dse_http_exchange *x)
{
    return x->method;
}

const char *dse_http_path(const struct dse_http_exchange *x)
{
    return x->path;
}

/* The first value of a name, and how many it has. */
static int find_header(const struct dse_http_exchange *x, const char *name, const char **first)
{
    const char *at = dse_buffer_text(&x->header_text);
    int n = 0;
    *first = NULL;
    for (int i = 0; i < x->n_headers; i++) {
        const char *value = at + strlen(at) + 1;
        if (strcasecmp(at, name) == 0 && n++ == 0) *first = value;
        at = value + strlen(value) + 1;
    }
    return n;
}

const char *dse_http_header(const struct dse_http_exchange *x, const char *name)
{
    const char *value;
    find_header(x, name, &value);
    return value;
}

const char *dse_http_only_header(const struct dse_http_exchange *x, const char *name)
{
    const char *value;
    return find_header(x, name, &value) == 1 ? value : NULL;
}

/* The next value of the name from `at` on; NULL: there is none. */
static const char *find_value(const char *at, const char *name, size_t *value_bytes)
{
    const size_t name_bytes = strlen(name);
    while (*at) {
        const size_t bytes = strcspn(at, "&");
        if (bytes > name_bytes && strncmp(at, name, name_bytes) == 0 && at[name_bytes] == '=') {
            *value_bytes = bytes - name_bytes - 1;
            return at + name_bytes + 1;
        }
        at += bytes + (at[bytes] == '&');
    }
    return NULL;
}

bool dse_http_query(const struct dse_http_exchange *x, const char *name, char *value, size_t size)
{
    size_t bytes;
    const char *found = find_value(x->query, name, &bytes);
    if (!found || bytes >= size) return false;
    memcpy(value, found, bytes);
    value[bytes] = '\0';
    return true;
}

bool dse_http_query_repeats(const struct dse_http_exchange *x, const char *name)
{
    size_t bytes;
    const char *found = find_value(x->query, name, &bytes);
    return found && find_value(found + bytes, name, &bytes);
}

const char *dse_http_body(const struct dse_http_exchange *x, size_t *bytes)
{
    *bytes = x->body.length;
    return dse_buffer_text(&x->body);
}

void dse_http_drop_body(struct dse_http_exchange *x)
{
    dse_buffer_deinit(&x->body);
    dse_buffer_init(&x->body, DSE_MEM_REQUEST, 1);
    atomic_fetch_sub(&x->http->body_bytes, x->body_charged);
    x->body_charged = 0;
}

bool dse_http_is_gone(struct dse_http_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    bool gone = x->gone || x->aborted;
    pthread_mutex_unlock(&x->lock);
    return gone;
}

/* ---- answer --------------------------------------------------------------------------------------------------- */

/* With x->lock held. */
static void set_header_locked(struct dse_http_exchange *x, const char *name, const char *value)
{
    int at = 0;
    while (at < x->n_answer_headers && strcasecmp(x->headers[at].name, name) != 0)
        at++;
    if (at == HTTP_MAX_ANSWER_HEADERS) return;
    struct http_header header = {dse_strdup(DSE_MEM_SERVER, name), dse_strdup(DSE_MEM_SERVER, value)};
    if (!header.name || !header.value) {
        dse_free(header.name);
        dse_free(header.value);
        return;
    }
    if (at == x->n_answer_headers) {
        x->n_answer_headers++;
    } else {
        dse_free(x->headers[at].name);
        dse_free(x->headers[at].value);
    }
    x->headers[at] = header;
}

void dse_http_set_header(struct dse_http_exchange *x, const char *name, const char *value)
{
    pthread_mutex_lock(&x->lock);
    if (!x->answered) set_header_locked(x, name, value); /* else it would tell of an answer that is not sent */
    pthread_mutex_unlock(&x->lock);
}

void dse_http_answer_header(struct dse_http_exchange *x, const char *name, char *value, size_t size)
{
    value[0] = '\0';
    pthread_mutex_lock(&x->lock);
    for (int i = 0; i < x->n_answer_headers; i++)
        if (strcasecmp(x->headers[i].name, name) == 0) snprintf(value, size, "%s", x->headers[i].value);
    pthread_mutex_unlock(&x->lock);
}

void dse_http_set_note(struct dse_http_exchange *x, const struct dse_access_note *note)
{
    pthread_mutex_lock(&x->lock);
    x->note = *note;
    pthread_mutex_unlock(&x->lock);
}

/* With x->lock held. false: no memory. */
static bool append_out(struct dse_http_exchange *x, const char *bytes, size_t count)
{
    if (x->out_sent > (64u << 10)) {
        memmove(x->out.data, x->out.data + x->out_sent, x->out.length - x->out_sent);
        x->out.length -= x->out_sent;
        x->out_sent = 0;
    }
    x->last_write_ns = dse_clock_ns();
    bool ok = dse_buffer_append(&x->out, bytes, count);
    x->out.failed = false; /* what comes next may find memory */
    return ok;
}

void dse_http_respond(struct dse_http_exchange *x, int status, const char *content_type, char *body, size_t bytes)
{
    pthread_mutex_lock(&x->lock);
    if (x->answered && x->streaming && !x->ended) { /* a probe has fixed status 200 already */
        x->last = "";
        x->ended = true;
        if (!append_out(x, body ? body : "", bytes)) {
            x->aborted = true;
            dse_log(DSE_LOG_WARN, "http", "out of memory for an answer of %zu bytes: disconnected", bytes);
        }
        wake(x);
    } else if (!x->answered) {
        x->answered = true;
        x->status = status;
        x->content_type = content_type;
        x->whole = body;
        x->whole_bytes = body ? bytes : 0;
        body = NULL;
        wake(x);
    }
    pthread_mutex_unlock(&x->lock);
    dse_free(body);
}

/* With x->lock held. */
static void begin_stream_locked(struct dse_http_exchange *x, const char *content_type, const char *filler)
{
    x->answered = true;
    x->streaming = true;
    x->status = 200;
    x->content_type = content_type;
    x->filler = filler;
    x->last_write_ns = dse_clock_ns();
    wake(x);
}

void dse_http_begin_stream(struct dse_http_exchange *x, const char *content_type, const char *filler)
{
    pthread_mutex_lock(&x->lock);
    bool probe = false;
    if (!x->answered) {
        begin_stream_locked(x, content_type, filler);
        probe = x->half_closed;
    }
    pthread_mutex_unlock(&x->lock);
    if (probe) dse_http_exchange_probe(x);
}

enum dse_status dse_http_write(struct dse_http_exchange *x, const char *bytes, size_t count)
{
    enum dse_status status = DSE_OK;
    pthread_mutex_lock(&x->lock);
    /* What waits already is what the reader is slow with; one large piece is not its fault. */
    bool overflow = x->out.length - x->out_sent > x->http->options.max_queue_bytes;
    bool open = !x->gone && !x->aborted && !x->ended;
    if (!open || overflow) {
        status = DSE_ERR_CANCELLED;
    } else {
        if (!append_out(x, bytes, count)) status = DSE_ERR_NO_MEMORY;
        wake(x);
    }
    pthread_mutex_unlock(&x->lock);
    if (status == DSE_ERR_NO_MEMORY)
        dse_log(DSE_LOG_WARN, "http", "out of memory: %zu bytes of an answer are lost", count);
    if (open && overflow) {
        dse_log(DSE_LOG_WARN, "http", "a client reads too slowly (%zu bytes unread): disconnected",
                x->http->options.max_queue_bytes);
        dse_http_exchange_lost(x);
    }
    return status;
}

void dse_http_end_stream(struct dse_http_exchange *x, const char *last)
{
    pthread_mutex_lock(&x->lock);
    x->last = last;
    x->ended = true;
    wake(x);
    pthread_mutex_unlock(&x->lock);
}

void dse_http_exchange_probe(struct dse_http_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    if (!x->ended && !x->gone && !x->aborted) {
        if (!x->answered && x->probe_allowed) begin_stream_locked(x, "application/json", "\n");
        if (x->streaming && x->filler && x->out.length == x->out_sent) {
            append_out(x, x->filler, strlen(x->filler));
            wake(x);
        }
    }
    pthread_mutex_unlock(&x->lock);
}

void dse_http_allow_probe(struct dse_http_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    x->probe_allowed = true;
    bool probe = x->half_closed;
    pthread_mutex_unlock(&x->lock);
    if (probe) dse_http_exchange_probe(x);
}

/* ---- library side --------------------------------------------------------------------------------------------- */

static ssize_t read_stream(void *user, uint64_t position, char *out, size_t max)
{
    struct dse_http_exchange *x = user;
    ssize_t result;
    pthread_mutex_lock(&x->lock);
    size_t waiting = x->out.length - x->out_sent;
    if (x->aborted) {
        result = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (waiting > 0) {
        size_t count = waiting < max ? waiting : max;
        memcpy(out, x->out.data + x->out_sent, count);
        x->out_sent += count;
        if (x->out_sent == x->out.length) {
            dse_buffer_clear(&x->out);
            x->out_sent = 0;
        }
        result = (ssize_t)count;
    } else if (x->ended && *x->last) {
        size_t count = strlen(x->last) < max ? strlen(x->last) : max;
        memcpy(out, x->last, count);
        x->last += count;
        result = (ssize_t)count;
    } else if (x->ended) {
        result = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        x->suspended = true;
        MHD_suspend_connection(x->connection);
        result = 0;
    }
    if (result > 0) x->sent_bytes += (uint64_t)result;
    pthread_mutex_unlock(&x->lock);
    return result;
}

static void free_whole(void *body)
{
    dse_free(body);
}

static struct http_connection *connection_record(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

/* Once answered is set, the answer's head is constant. Without the lock: the library has one of its own for a response,
 * which it holds when it calls read_stream. */
static enum MHD_Result queue_answer(struct dse_http_exchange *x)
{
    struct MHD_Response *response;
    dse_http_connection_phase(x->http, connection_record(x->connection), HTTP_BUSY);
    pthread_mutex_lock(&x->lock);
    bool streaming = x->streaming;
    char *whole = x->whole;
    x->whole = NULL;
    pthread_mutex_unlock(&x->lock);
    if (streaming)
        response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16u << 10, read_stream, x, NULL);
    else if (x->whole_bytes > 0)
        response = MHD_create_response_from_buffer_with_free_callback(x->whole_bytes, whole, free_whole);
    else
        response = MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
    if (!response || x->whole_bytes == 0) dse_free(whole); /* else the response has taken it */
    if (!response) return MHD_NO;
    if (x->content_type) MHD_add_response_header(response, "Content-Type", x->content_type);
    for (int i = 0; i < x->n_answer_headers; i++)
        MHD_add_response_header(response, x->headers[i].name, x->headers[i].value);
    enum MHD_Result result = MHD_queue_response(x->connection, (unsigned)x->status, response);
    MHD_destroy_response(response);
    return result;
}

static void refuse(struct dse_http_exchange *x, int status, const char *message)
{
    x->http->options.on_refused(x->http->options.user, x, status, message);
}

/* First call: the headers are complete. */
static enum MHD_Result start_request(struct dse_http_exchange *x, const char *url, const char *method,
                                     const char *version)
{
    struct dse_http *http = x->http;
    const struct dse_http_options *options = &http->options;
    struct dse_http_head head = {0};
    x->begun = true;
    x->begin_ns = dse_clock_ns();
    if (!dse_http_head_check(x, url, method, version, &head)) return MHD_NO;
    dse_http_connection_phase(http, connection_record(x->connection), HTTP_BODY);
    options->on_begin(options->user, x);
    if (head.ends_connection) dse_http_set_header(x, "Connection", "close");
    if (head.status)
        refuse(x, head.status, head.problem);
    else
        options->on_headers(options->user, x);
    /* A body that is only announced, absurdly large, or without an end that we can trust, is not waited for; others are
     * read to their end, so that the client sees our answer and not a reset. */
    bool skip_body = x->expects_continue || head.ends_connection || head.content_length / 2 > options->max_body_bytes;
    if (x->answered && x->expects_body && skip_body) return queue_answer(x);
    return MHD_YES;
}

static enum MHD_Result take_body(struct dse_http_exchange *x, const char *data, size_t *bytes)
{
    struct dse_http *http = x->http;
    size_t limit = http->options.max_body_bytes;
    if (x->answered) {
        x->discarded_bytes += *bytes;
        if (x->discarded_bytes / 2 > limit) return MHD_NO;
    } else if (x->body.length + *bytes > limit || !dse_buffer_append(&x->body, data, *bytes)) {
        bool memory = x->body.length + *bytes <= limit;
        dse_http_drop_body(x);
        refuse(x, memory ? 503 : 413, memory ? "out of memory" : "the request body is larger than the limit");
    } else {
        x->body_charged += *bytes;
        if (atomic_fetch_add(&http->body_bytes, *bytes) / BODY_BUDGET_FACTOR > limit) {
            dse_http_drop_body(x);
            refuse(x, 503, "too many large requests at once");
        }
    }
    *bytes = 0;
    return MHD_YES;
}

static void run_request(void *argument)
{
    struct dse_http_exchange *x = argument;
    x->http->options.on_request(x->http->options.user, x);
    dse_http_unref(x);
}

static enum MHD_Result dispatch(struct dse_http_exchange *x)
{
    struct dse_http *http = x->http;
    x->dispatched = true;
    dse_http_connection_phase(http, connection_record(x->connection), HTTP_BUSY);
    dse_http_watch_add(x);
    pthread_mutex_lock(&x->lock);
    /* The watcher may have seen the end already; it does not look twice, so nobody would ever resume the connection. */
    bool lost = x->aborted;
    if (!lost) {
        x->suspended = true;
        MHD_suspend_connection(x->connection);
    }
    pthread_mutex_unlock(&x->lock);
    if (lost) return MHD_NO;
    if (!dse_workers_post(http->workers, &x->job, run_request, dse_http_ref(x))) {
        refuse(x, 503, "the server is shutting down");
        dse_http_unref(x);
    }
    return MHD_YES;
}

static enum MHD_Result handle_request(void *user, struct MHD_Connection *connection, const char *url,
                                      const char *method, const char *version, const char *data, size_t *bytes,
                                      void **context)
{
    struct dse_http_exchange *x = *context;
    if (!x) return MHD_NO; /* no memory */
    if (!x->begun) return start_request(x, url, method, version);
    if (*bytes > 0) return take_body(x, data, bytes);

    if (!x->settled) {
        /* Not suspended in the very call that ends the request: the library would remember that it was reading, read on
         * after the resume, and take the end of a half-closed peer's stream for the end of the connection. After one
         * more round of its loop it knows that it waits for us. */
        x->settled = true;
        if (!x->answered) return MHD_YES;
    }
    enum { SUSPEND, ANSWER, CLOSE } next = SUSPEND;
    pthread_mutex_lock(&x->lock);
    if (x->aborted)
        next = CLOSE;
    else if (x->answered)
        next = ANSWER;
    else if (x->dispatched) { /* woken for nothing */
        x->suspended = true;
        MHD_suspend_connection(connection);
    }
    bool first = next == SUSPEND && !x->dispatched;
    pthread_mutex_unlock(&x->lock);
    if (first) return dispatch(x);
    return next == ANSWER ? queue_answer(x) : next == CLOSE ? MHD_NO : MHD_YES;
}

static void tell_done(struct dse_http_exchange *x, bool completed)
{
    const struct dse_http_options *options = &x->http->options;
    if (!options->on_done || !x->method || !x->path) return;
    pthread_mutex_lock(&x->lock);
    struct dse_access_note note = x->note;
    struct dse_http_summary summary = {
        .status = x->answered ? x->status : 0,
        .bytes = strcmp(x->method, "HEAD") == 0 ? 0
                 : x->streaming                 ? x->sent_bytes
                                                : x->whole_bytes,
        .duration_ns = dse_clock_ns() - x->begin_ns,
        .complete = completed && x->answered && !x->aborted,
        .note = &note,
    };
    pthread_mutex_unlock(&x->lock);
    options->on_done(options->user, x, &summary);
}

/* A connection that ends in the middle of an answer is cleaned up when the library looks at it once more. With the
 * timeout of all others it stands in their list, which is looked through only up to the oldest that is still open; with
 * one of its own it is looked at in every round, and the next one is due within that second. */
static void hurry_cleanup(struct MHD_Connection *connection)
{
    MHD_set_connection_option(connection, MHD_CONNECTION_OPTION_TIMEOUT, 1u);
}

static void on_completed(void *user, struct MHD_Connection *connection, void **context,
                         enum MHD_RequestTerminationCode how)
{
    struct dse_http_exchange *x = *context;
    dse_http_connection_phase(user, connection_record(connection), HTTP_IDLE);
    if (how != MHD_REQUEST_TERMINATED_COMPLETED_OK) hurry_cleanup(connection);
    if (!x) return;
    *context = NULL;
    dse_http_watch_remove(x);
    pthread_mutex_lock(&x->lock);
    x->connection = NULL;
    x->suspended = false;
    pthread_mutex_unlock(&x->lock);
    if (x->begun) tell_done(x, how == MHD_REQUEST_TERMINATED_COMPLETED_OK);
    release_owner(x, true); /* none is left after a whole answer */
    dse_http_unref(x);
}

static void on_connection(void *user, struct MHD_Connection *connection, void **context,
                          enum MHD_ConnectionNotificationCode what)
{
    struct dse_http *http = user;
    struct http_connection *record = *context;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        record = dse_calloc(DSE_MEM_SERVER, 1, sizeof *record);
        *context = record;
        if (!record) return;
        int on = 1, idle_s = 10, interval_s = 5, count = 3, unacknowledged_ms = 30000;
        record->fd = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
        record->since_ns = dse_clock_ns();
        /* A peer that vanished without a word is found by these; fails harmlessly on Unix sockets. */
        setsockopt(record->fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
        setsockopt(record->fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
        setsockopt(record->fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
        setsockopt(record->fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
        setsockopt(record->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unacknowledged_ms, sizeof unacknowledged_ms);
        pthread_mutex_lock(&http->lock);
        record->next = http->connections;
        if (record->next) record->next->previous = record;
        http->connections = record;
        http->n_connections++;
        pthread_mutex_unlock(&http->lock);
    } else if (record) {
        pthread_mutex_lock(&http->lock);
        if (record->previous)
            record->previous->next = record->next;
        else
            http->connections = record->next;
        if (record->next) record->next->previous = record->previous;
        http->n_connections--;
        pthread_mutex_unlock(&http->lock);
        *context = NULL;
        dse_free(record);
    }
}

/* Paths are decoded by http_head.c, which sees %00. */
static size_t keep_escapes(void *user, struct MHD_Connection *connection, char *text)
{
    return strlen(text);
}

/* ---- start and stop ------------------------------------------------------------------------------------------- */

static int connection_limit(int wanted)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        limit.rlim_cur < (rlim_t)wanted + 64)
        wanted = limit.rlim_cur > 80 ? (int)limit.rlim_cur - 64 : 16;
    return wanted;
}

static void http_free(struct dse_http *http)
{
    if (http->epoll_fd >= 0) close(http->epoll_fd);
    if (http->wake_fd >= 0) close(http->wake_fd);
    pthread_mutex_destroy(&http->lock);
    dse_free(http);
}

enum dse_status dse_http_start(int listen_fd, const struct dse_http_options *options, struct dse_http **out,
                               struct dse_error *err)
{
    struct dse_http *http = dse_calloc(DSE_MEM_SERVER, 1, sizeof *http);
    if (!http) {
        close(listen_fd);
        return dse_fail_memory(err, sizeof *http, "HTTP server");
    }
    http->options = *options;
    http->options.max_connections = connection_limit(options->max_connections);
    http->epoll_fd = http->wake_fd = -1;
    pthread_mutex_init(&http->lock, NULL);
    bool watching = false;
    enum dse_status status = dse_workers_create(options->n_workers, &http->workers, err);
    if (status == DSE_OK) {
        status = dse_http_watch_start(http, err);
        watching = status == DSE_OK;
    }
    if (status == DSE_OK) {
        http->daemon = MHD_start_daemon(
            MHD_USE_EPOLL_INTERNALLY | MHD_USE_SUSPEND_RESUME | MHD_USE_ITC, 0, NULL, NULL, handle_request, http,
            MHD_OPTION_LISTEN_SOCKET, listen_fd, MHD_OPTION_NOTIFY_COMPLETED, on_completed, http,
            MHD_OPTION_NOTIFY_CONNECTION, on_connection, http, MHD_OPTION_UNESCAPE_CALLBACK, keep_escapes, NULL,
            MHD_OPTION_URI_LOG_CALLBACK, dse_http_head_target, http, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
            (size_t)CONNECTION_POOL_BYTES, MHD_OPTION_CONNECTION_LIMIT, (unsigned)http->options.max_connections,
            MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)LIBRARY_TIMEOUT_S, MHD_OPTION_STRICT_FOR_CLIENT, 0,
            MHD_OPTION_END);
        if (!http->daemon) status = dse_fail(err, DSE_ERR_ADDRESS, "cannot start the HTTP server (errno %d)", errno);
    }
    if (status != DSE_OK) {
        close(listen_fd);
        if (watching) dse_http_watch_stop(http);
        dse_workers_free(http->workers);
        http_free(http);
        return status;
    }
    *out = http;
    return DSE_OK;
}

static bool has_work_left(struct dse_http *http)
{
    bool found = false;
    if (dse_workers_busy(http->workers)) return true;
    pthread_mutex_lock(&http->lock);
    for (struct dse_http_exchange *x = http->exchanges; x && !found; x = x->next) {
        pthread_mutex_lock(&x->lock);
        found = x->answered && !x->aborted && (!x->streaming || x->ended);
        pthread_mutex_unlock(&x->lock);
    }
    pthread_mutex_unlock(&http->lock);
    return found;
}

void dse_http_flush(struct dse_http *http, unsigned timeout_ms)
{
    for (unsigned waited = 0; waited < timeout_ms && has_work_left(http); waited += 5)
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
}

void dse_http_abandon_all(struct dse_http *http)
{
    for (;;) {
        struct dse_http_exchange *victim = NULL;
        pthread_mutex_lock(&http->lock);
        for (struct dse_http_exchange *x = http->exchanges; x && !victim; x = x->next) {
            pthread_mutex_lock(&x->lock);
            if (!x->aborted) victim = dse_http_ref(x);
            pthread_mutex_unlock(&x->lock);
        }
        pthread_mutex_unlock(&http->lock);
        if (!victim) return;
        dse_http_exchange_lost(victim);
        dse_http_unref(victim);
    }
}

void dse_http_stop(struct dse_http *http)
{
    if (!http) return;
    int fd = MHD_quiesce_daemon(http->daemon); /* no new connections */
    dse_workers_stop(http->workers);           /* requests that still come on old connections are refused */
    dse_http_watch_stop(http);
    dse_http_abandon_all(http); /* suspended connections must be resumed before the daemon may stop */
    MHD_stop_daemon(http->daemon);
    dse_workers_free(http->workers);
    if (fd >= 0) close(fd);
    http_free(http);
}
