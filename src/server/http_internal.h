/* What http.c (library side), http_head.c (heads) and http_watch.c (watcher thread) share. Nobody else includes
 * this. */
#ifndef DSE_SERVER_HTTP_INTERNAL_H
#define DSE_SERVER_HTTP_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/buffer.h"
#include "server/http.h"
#include "server/workers.h"

#define HTTP_MAX_ANSWER_HEADERS 24
#define HTTP_MAX_QUERY          128

struct MHD_Connection;
struct MHD_Daemon;

enum http_phase { HTTP_IDLE, HTTP_BODY, HTTP_BUSY };

/* One per TCP connection, from accept to close. */
struct http_connection {
    struct http_connection *previous, *next;
    int fd;
    enum http_phase phase;
    uint64_t since_ns; /* start of the phase */
    int n_ends;        /* ticks at which the peer had sent its last byte and no whole request */
};

struct http_header {
    char *name, *value;
};

/* Lock order: http->lock before exchange->lock before the library's own. */
struct dse_http_exchange {
    struct dse_http *http;
    atomic_int refs;
    uint64_t id;

    /* request: written by the I/O thread before dispatch, then constant */
    char *method, *path;
    char query[HTTP_MAX_QUERY + 1]; /* "": none, or a longer one, which no endpoint has */
    struct dse_buffer header_text;  /* name NUL value NUL … */
    int n_headers;
    struct dse_buffer body;
    size_t discarded_bytes;
    size_t body_charged; /* counted in http->body_bytes */
    size_t target_bytes; /* of the first line: path and query */
    bool begun, expects_body, expects_continue, settled, dispatched, listed;
    struct dse_job job; /* once dispatched */
    uint64_t begin_ns;

    pthread_mutex_t lock;              /* all below */
    struct MHD_Connection *connection; /* NULL once the library is done with it */
    int fd;
    bool suspended, answered, streaming, ended, aborted, gone, half_closed, probe_allowed;
    int status;
    const char *content_type, *filler, *last; /* last: unread part of what follows a stream that has ended */
    struct http_header headers[HTTP_MAX_ANSWER_HEADERS];
    int n_answer_headers;
    char *whole; /* body of a whole answer */
    size_t whole_bytes;
    struct dse_buffer out; /* unread part of a stream starts at out_sent */
    size_t out_sent;
    uint64_t last_write_ns;
    uint64_t sent_bytes; /* of the body, handed to the library */
    struct dse_access_note note;
    struct dse_http_owner owner;

    struct dse_http_exchange *previous, *next; /* in http->exchanges, under http->lock */
};

struct dse_http {
    struct dse_http_options options;
    struct MHD_Daemon *daemon;
    struct dse_workers *workers;
    atomic_size_t body_bytes; /* bodies held in memory, all connections */

    pthread_mutex_t lock;
    struct dse_http_exchange *exchanges; /* dispatched and not completed */
    uint64_t last_id;
    struct http_connection *connections;
    int n_connections;

    int epoll_fd, wake_fd;
    atomic_bool stopping;
    pthread_t watcher;
};

/* http_watch.c */
enum dse_status dse_http_watch_start(struct dse_http *http, struct dse_error *err);
void dse_http_watch_stop(struct dse_http *http);
void dse_http_watch_add(struct dse_http_exchange *x);    /* I/O thread, before dispatch */
void dse_http_watch_remove(struct dse_http_exchange *x); /* I/O thread, before the socket may close */
void dse_http_connection_phase(struct dse_http *http, struct http_connection *connection, enum http_phase phase);

/* http_head.c */
struct dse_http_head {
    int status; /* 0: fine; else what to refuse it with */
    const char *problem;
    bool ends_connection; /* nobody knows where the next request would begin */
    uint64_t content_length;
};
/* The library's hook for the request's target, before its headers are read; returns the exchange, NULL without
 * memory. */
void *dse_http_head_target(void *http, const char *target, struct MHD_Connection *connection);
/* Fills in the request's part of x. false: no memory. */
bool dse_http_head_check(struct dse_http_exchange *x, const char *url, const char *method, const char *version,
                         struct dse_http_head *head);

/* http.c */
struct dse_http_exchange *dse_http_exchange_create(struct dse_http *http, struct MHD_Connection *connection);
void dse_http_exchange_lost(struct dse_http_exchange *x);  /* the peer is gone: cut off, tell the owner */
void dse_http_exchange_probe(struct dse_http_exchange *x); /* sends filler if that is possible now */

#endif
