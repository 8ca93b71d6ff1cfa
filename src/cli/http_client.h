/* One request to a server of ours: plain HTTP/1.1 over TCP or a Unix socket, a connection each. No TLS, no redirects:
 * for `top` and `adapters`, which talk to a server on this machine or in this network. */
#ifndef DSE_CLI_HTTP_CLIENT_H
#define DSE_CLI_HTTP_CLIENT_H

#include <poll.h>

#include "base/buffer.h"
#include "base/error.h"

/* How a request waits for its socket, for callers with something else to wait for: as poll() does for one descriptor.
 * 0 may be returned early; -1 with an errno other than EINTR ends the request. */
struct dse_http_wait {
    int (*poll)(void *context, struct pollfd *waited, int timeout_ms);
    void *context;
};

/* url: "http://host[:port]", "http://[::1]:8080" or "unix:/path". key: NULL for none. body: initialised by the caller,
 * whose maximum bounds the answer. wait: NULL for poll() itself; looking a name up does not use it. Cannot connect, or
 * no answer in time: DSE_ERR_ADDRESS. */
DSE_MUST_CHECK enum dse_status dse_http_client_get(const char *url, const char *path, const char *key,
                                                   unsigned timeout_ms, const struct dse_http_wait *wait,
                                                   int *http_status, struct dse_buffer *body, struct dse_error *err);

/* The same with any method; json: body of the request, or NULL. */
DSE_MUST_CHECK enum dse_status dse_http_client_send(const char *url, const char *method, const char *path,
                                                    const char *key, const struct dse_buffer *json, unsigned timeout_ms,
                                                    int *http_status, struct dse_buffer *body, struct dse_error *err);

#endif
