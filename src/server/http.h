/* The HTTP layer of the server: exchanges (one request, one answer) over libmicrohttpd.
 *
 * Threads: one I/O thread (the library's), one watcher thread, a few workers. `on_begin` and `on_headers` run on the
 * I/O thread and must not block: the first sets what every answer carries, before anything can be refused; the second
 * answers what needs no body (health, errors). `on_request` runs on a worker with the whole body.
 * An answer may be given at once or later, from any thread: writing never blocks; a reader who is too slow is
 * disconnected instead. http.c and http_head.c are the only files that know the library.
 *
 * When the client leaves, the exchange's owner is told within milliseconds. A peer that only closed its sending side
 * (half-close) looks the same at first, so it is probed: bytes that mean nothing to a reader (an SSE comment, white
 * space before a JSON document) are sent; a closed peer answers them with a reset, a half-closed one reads on.
 */
#ifndef DSE_SERVER_HTTP_H
#define DSE_SERVER_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "server/access_log.h"

struct dse_http;
struct dse_http_exchange;

typedef void dse_http_fn(void *user, struct dse_http_exchange *exchange);

struct dse_http_options {
    size_t max_body_bytes;   /* beyond: 413 */
    size_t max_header_bytes; /* names and values; beyond: 431 */
    int max_headers;         /* beyond: 431 */
    int max_connections;
    size_t max_queue_bytes; /* unread answer of one exchange; when more is to come: disconnected */
    unsigned idle_ms;       /* a connection without a whole request header for this long is closed */
    unsigned body_ms;       /* a body must arrive within this */
    unsigned ping_ms;       /* silence on a stream after which its filler is sent */
    int n_workers;
    dse_http_fn *on_begin, *on_headers, *on_request;
    /* Answer for what this layer refuses by itself (400, 413, 431, 503), after on_begin and at most once. */
    void (*on_refused)(void *user, struct dse_http_exchange *exchange, int http_status, const char *message);
    /* The exchange is over, on the I/O thread; every request that had a method and a path comes here once. */
    void (*on_done)(void *user, struct dse_http_exchange *exchange, const struct dse_http_summary *summary);
    void *user;
};

/* Takes a listening socket (closed on failure too). */
DSE_MUST_CHECK enum dse_status dse_http_start(int listen_fd, const struct dse_http_options *options,
                                              struct dse_http **http, struct dse_error *err);
/* All exchanges must have been answered or are cut off. Joins the threads. */
void dse_http_stop(struct dse_http *http);
/* Waits until the workers are idle and answers that are complete have been handed to the system, or for the time
 * given. */
void dse_http_flush(struct dse_http *http, unsigned timeout_ms);
/* Tells the owners of all exchanges in progress that they are gone, as if the clients had left. */
void dse_http_abandon_all(struct dse_http *http);

/* ---- request ---- */

const char *dse_http_method(const struct dse_http_exchange *x);
const char *dse_http_path(const struct dse_http_exchange *x); /* percent-decoded, without the query */
/* The value of a name in the query, as it was written; false if there is none or it does not fit. */
bool dse_http_query(const struct dse_http_exchange *x, const char *name, char *value, size_t size);
/* The query has more than one value for the name. */
bool dse_http_query_repeats(const struct dse_http_exchange *x, const char *name);
const char *dse_http_header(const struct dse_http_exchange *x, const char *name); /* NULL if absent; else the first */
const char *dse_http_only_header(const struct dse_http_exchange *x, const char *name); /* NULL unless there is one */
/* Valid until the request is answered. "" if none. */
const char *dse_http_body(const struct dse_http_exchange *x, size_t *bytes);
void dse_http_drop_body(struct dse_http_exchange *x); /* frees it early */
/* The client is known to have left: nobody will read an answer. */
bool dse_http_is_gone(struct dse_http_exchange *x);

/* ---- answer ---- */

/* Before the answer; after it nothing happens. Copies; at most 24 headers. A header set again gets the new value. */
void dse_http_set_header(struct dse_http_exchange *x, const char *name, const char *value);
/* What it was set to, cut to the size; "" if it was not. */
void dse_http_answer_header(struct dse_http_exchange *x, const char *name, char *value, size_t size);
/* For the log, until the answer has ended. Copies; the last one counts. */
void dse_http_set_note(struct dse_http_exchange *x, const struct dse_access_note *note);
/* Whole answer; body is taken (dse_free), NULL for none. Only the first answer counts. */
void dse_http_respond(struct dse_http_exchange *x, int status, const char *content_type, char *body, size_t bytes);
/* Answer 200 whose body is written piece by piece. What was written before counts. filler: see above. */
void dse_http_begin_stream(struct dse_http_exchange *x, const char *content_type, const char *filler);
/* DSE_ERR_CANCELLED: the client is gone or too slow, nothing more can be sent; DSE_ERR_NO_MEMORY: these bytes are lost. */
enum dse_status dse_http_write(struct dse_http_exchange *x, const char *bytes, size_t count);
/* last: constant text after all that was written, which needs no memory. */
void dse_http_end_stream(struct dse_http_exchange *x, const char *last);
/* The request is under way and its answer, when it comes, is expected to be a 200 JSON document: from now on a peer
 * that looks half-closed may be probed with white space, which fixes that status. */
void dse_http_allow_probe(struct dse_http_exchange *x);

/* ---- lifetime ---- */

struct dse_http_exchange *dse_http_ref(struct dse_http_exchange *x);
void dse_http_unref(struct dse_http_exchange *x);

/* Who works on the answer. gone is called at most once, without locks held, from any thread; release is called once
 * when the exchange lets go of user. */
struct dse_http_owner {
    void (*gone)(void *user);
    void (*release)(void *user);
    void *user;
};
/* false (and nothing taken): the client has left already. */
bool dse_http_set_owner(struct dse_http_exchange *x, const struct dse_http_owner *owner);
void dse_http_clear_owner(struct dse_http_exchange *x);

#endif
