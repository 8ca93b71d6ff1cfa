/* The watcher thread of the HTTP layer: notices clients that leave while their connection is suspended (the library
 * does not look at suspended sockets), sends fillers on silent streams, closes connections that never finish a request.
 *
 * Must never block on anything but its epoll set, and never calls into the engine except through an owner's gone().
 */
#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "server/http_internal.h"

#define WAKE_ID              0 /* exchange ids start at 1 */
#define HALF_CLOSED_PROBE_NS 400000000u
#define CROWDED_IDLE_MS      5000u

static uint64_t ms_to_ns(unsigned ms)
{
    return (uint64_t)ms * 1000000u;
}

/* Another thread may have stamped a moment after our `now`. */
static bool older_than(uint64_t now, uint64_t since, uint64_t limit_ns)
{
    return now > since && now - since > limit_ns;
}

void dse_http_watch_add(struct dse_http_exchange *x)
{
    struct dse_http *http = x->http;
    pthread_mutex_lock(&http->lock);
    x->id = ++http->last_id; /* here and not at creation: keeps the list in order of ids */
    x->listed = true;
    x->previous = NULL;
    x->next = http->exchanges;
    if (x->next) x->next->previous = x;
    http->exchanges = x;
    pthread_mutex_unlock(&http->lock);
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLET, .data.u64 = x->id};
    if (epoll_ctl(http->epoll_fd, EPOLL_CTL_ADD, x->fd, &event) != 0)
        dse_log(DSE_LOG_WARN, "http", "cannot watch a connection for its end (errno %d)", errno);
}

void dse_http_watch_remove(struct dse_http_exchange *x)
{
    struct dse_http *http = x->http;
    if (!x->listed) return;
    x->listed = false;
    epoll_ctl(http->epoll_fd, EPOLL_CTL_DEL, x->fd, NULL);
    pthread_mutex_lock(&http->lock);
    if (x->previous)
        x->previous->next = x->next;
    else
        http->exchanges = x->next;
    if (x->next) x->next->previous = x->previous;
    pthread_mutex_unlock(&http->lock);
}

void dse_http_connection_phase(struct dse_http *http, struct http_connection *connection, enum http_phase phase)
{
    if (!connection) return;
    pthread_mutex_lock(&http->lock);
    connection->phase = phase;
    connection->since_ns = dse_clock_ns();
    connection->n_ends = 0;
    pthread_mutex_unlock(&http->lock);
}

/* Returns a reference, or NULL when the exchange has completed meanwhile. */
static struct dse_http_exchange *find(struct dse_http *http, uint64_t id)
{
    struct dse_http_exchange *x;
    pthread_mutex_lock(&http->lock);
    for (x = http->exchanges; x && x->id != id;)
        x = x->next;
    if (x) dse_http_ref(x);
    pthread_mutex_unlock(&http->lock);
    return x;
}

static void handle_event(struct dse_http *http, const struct epoll_event *event)
{
    struct dse_http_exchange *x = find(http, event->data.u64);
    if (!x) return;
    if (event->events & (EPOLLERR | EPOLLHUP)) {
        dse_http_exchange_lost(x);
    } else if (event->events & EPOLLRDHUP) {
        pthread_mutex_lock(&x->lock);
        x->half_closed = true;
        pthread_mutex_unlock(&x->lock);
        dse_http_exchange_probe(x);
    }
    dse_http_unref(x);
}

/* Streams that were silent too long, and half-closed peers, get filler. */
static void tick_exchanges(struct dse_http *http, uint64_t now)
{
    enum { BATCH = 64 };
    uint64_t after = UINT64_MAX;
    for (;;) { /* the list is ordered by falling id: newest first */
        struct dse_http_exchange *due[BATCH];
        int n = 0;
        pthread_mutex_lock(&http->lock);
        for (struct dse_http_exchange *x = http->exchanges; x && n < BATCH; x = x->next) {
            if (x->id >= after) continue;
            after = x->id;
            pthread_mutex_lock(&x->lock);
            uint64_t limit = x->half_closed ? HALF_CLOSED_PROBE_NS : ms_to_ns(http->options.ping_ms);
            bool candidate = x->half_closed || x->streaming;
            if (candidate && !x->ended && !x->aborted && older_than(now, x->last_write_ns, limit))
                due[n++] = dse_http_ref(x);
            pthread_mutex_unlock(&x->lock);
        }
        pthread_mutex_unlock(&http->lock);
        for (int i = 0; i < n; i++) {
            dse_http_exchange_probe(due[i]);
            dse_http_unref(due[i]);
        }
        if (n < BATCH) return;
    }
}

/* The peer has closed its side and all that it sent has been read. Asked several times before it counts: the library
 * may just be at the request that came last. */
static bool ended_without_request(struct http_connection *c)
{
    enum { TICKS = 5 };
    char byte;
    bool end = c->phase != HTTP_BUSY && recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
    c->n_ends = end ? c->n_ends + 1 : 0;
    return c->n_ends >= TICKS;
}

/* The library's own timeout restarts with every byte; these do not, so a header sent a byte at a time ends. */
static void tick_connections(struct dse_http *http, uint64_t now)
{
    pthread_mutex_lock(&http->lock);
    bool crowded = http->n_connections > http->options.max_connections / 4 * 3;
    unsigned idle_ms = http->options.idle_ms;
    if (crowded && idle_ms > CROWDED_IDLE_MS) idle_ms = CROWDED_IDLE_MS;
    for (struct http_connection *c = http->connections; c; c = c->next) {
        if ((c->phase == HTTP_IDLE && older_than(now, c->since_ns, ms_to_ns(idle_ms))) ||
            (c->phase == HTTP_BODY && older_than(now, c->since_ns, ms_to_ns(http->options.body_ms))) ||
            ended_without_request(c)) {
            shutdown(c->fd, SHUT_RDWR); /* the library sees the end and cleans up */
            c->since_ns = now;
            c->n_ends = 0;
        }
    }
    pthread_mutex_unlock(&http->lock);
}

static void *watcher_main(void *argument)
{
    struct dse_http *http = argument;
    unsigned shortest = http->options.ping_ms < http->options.idle_ms ? http->options.ping_ms : http->options.idle_ms;
    int tick_ms = shortest / 4 < 10 ? 10 : shortest / 4 > 200 ? 200 : (int)(shortest / 4);
    uint64_t next_tick = dse_clock_ns() + ms_to_ns(tick_ms);
    while (!atomic_load(&http->stopping)) {
        struct epoll_event events[64];
        uint64_t now = dse_clock_ns();
        int wait_ms = next_tick > now ? (int)((next_tick - now) / 1000000u) + 1 : 0;
        int n = epoll_wait(http->epoll_fd, events, 64, wait_ms);
        for (int i = 0; i < n; i++)
            if (events[i].data.u64 != WAKE_ID) handle_event(http, &events[i]);
        now = dse_clock_ns();
        if (now >= next_tick) {
            tick_exchanges(http, now);
            tick_connections(http, now);
            next_tick = now + ms_to_ns(tick_ms);
        }
    }
    return NULL;
}

enum dse_status dse_http_watch_start(struct dse_http *http, struct dse_error *err)
{
    http->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (http->epoll_fd < 0) return dse_fail_errno(err, errno, "", "create an epoll instance");
    http->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (http->wake_fd < 0) return dse_fail_errno(err, errno, "", "create an eventfd");
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u64 = WAKE_ID};
    if (epoll_ctl(http->epoll_fd, EPOLL_CTL_ADD, http->wake_fd, &event) != 0)
        return dse_fail_errno(err, errno, "", "watch the eventfd");
    int error = pthread_create(&http->watcher, NULL, watcher_main, http);
    if (error) return dse_fail_errno(err, error, "", "start the connection watcher");
    return DSE_OK;
}

void dse_http_watch_stop(struct dse_http *http)
{
    uint64_t one = 1;
    atomic_store(&http->stopping, true);
    if (write(http->wake_fd, &one, sizeof one) < 0) dse_log(DSE_LOG_WARN, "http", "cannot wake the watcher");
    pthread_join(http->watcher, NULL);
}
