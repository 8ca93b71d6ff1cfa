/* A request over a socket with a deadline for all of it. See http_client.h. */
#include "cli/http_client.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"

#define MAX_HEAD_BYTES 16384
#define MAX_PORT       65535

struct target {
    char host[256], port[8], path[108]; /* path: of a Unix socket, else "" */
};

struct patience {
    uint64_t deadline_ns;
    const struct dse_http_wait *wait; /* NULL: poll() */
};

static enum dse_status parse_url(const char *url, struct target *t, struct dse_error *err)
{
    *t = (struct target){.port = "80"};
    if (strncmp(url, "unix:", 5) == 0) {
        if (url[5] == '\0' || strlen(url + 5) >= sizeof t->path)
            return dse_fail_at(err, DSE_ERR_INVALID, "url", -1, "--url: \"%s\" names no socket of usable length", url);
        memcpy(t->path, url + 5, strlen(url + 5) + 1);
        snprintf(t->host, sizeof t->host, "localhost");
        return DSE_OK;
    }
    if (strncmp(url, "https:", 6) == 0)
        return dse_fail_at(err, DSE_ERR_INVALID, "url", -1, "--url: https is not spoken; use http:// or unix:/path");
    const char *host = strncmp(url, "http://", 7) == 0 ? url + 7 : url;
    const char *end = host + strcspn(host, "/"), *bracket = host[0] == '[' ? strchr(host, ']') : NULL;
    const char *colon = memchr(bracket ? bracket : host, ':', (size_t)(end - (bracket ? bracket : host)));
    const char *host_end = colon ? colon : end;
    if (bracket) host++, host_end = bracket;
    size_t host_bytes = (size_t)(host_end - host), port_bytes = colon ? (size_t)(end - colon - 1) : 0;
    bool ok = host_bytes > 0 && host_bytes < sizeof t->host && (*end == '\0' || end[1] == '\0');
    for (size_t i = 0; i < host_bytes; i++) /* it becomes part of a header line */
        ok = ok && (unsigned char)host[i] > ' ' && host[i] != 0x7F;
    if (colon) ok = ok && port_bytes > 0 && strspn(colon + 1, "0123456789") == port_bytes;
    if (!ok)
        return dse_fail_at(err, DSE_ERR_INVALID, "url", -1, "--url: \"%.200s\" is not like http://127.0.0.1:8080", url);
    memcpy(t->host, host, host_bytes);
    if (!colon) return DSE_OK;
    const long port = port_bytes < sizeof t->port ? strtol(colon + 1, NULL, 10) : 0;
    if (port < 1 || port > MAX_PORT)
        return dse_fail_at(err, DSE_ERR_INVALID, "url", -1, "--url: the port of \"%.200s\" is not from 1 to %d", url,
                           MAX_PORT);
    memcpy(t->port, colon + 1, port_bytes);
    t->port[port_bytes] = '\0';
    return DSE_OK;
}

/* Waits for the socket until the deadline. */
static bool wait_for(int fd, short events, const struct patience *patience)
{
    const struct dse_http_wait *wait = patience->wait;
    for (;;) {
        uint64_t now = dse_clock_ns();
        if (now >= patience->deadline_ns) return errno = ETIMEDOUT, false;
        struct pollfd waited = {.fd = fd, .events = events};
        int timeout_ms = (int)((patience->deadline_ns - now) / 1000000) + 1;
        int n = wait != NULL ? wait->poll(wait->context, &waited, timeout_ms) : poll(&waited, 1, timeout_ms);
        if (n > 0) return true;
        if (n < 0 && errno != EINTR) return false;
    }
}

/* A socket that is connected, or -1 with errno. */
static int connect_one(int family, const struct sockaddr *address, socklen_t bytes, const struct patience *patience)
{
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    int error = connect(fd, address, bytes) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
        socklen_t size = sizeof error;
        if (!wait_for(fd, POLLOUT, patience))
            error = errno;
        else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0)
            error = errno;
    }
    if (error == 0) return fd;
    close(fd);
    errno = error;
    return -1;
}

static enum dse_status connect_to(const struct target *t, const char *url, const struct patience *patience, int *fd,
                                  struct dse_error *err)
{
    *fd = -1;
    if (t->path[0] != '\0') {
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        memcpy(address.sun_path, t->path, strlen(t->path) + 1);
        *fd = connect_one(AF_UNIX, (struct sockaddr *)&address, sizeof address, patience);
    } else {
        struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
        int e = getaddrinfo(t->host, t->port, &hints, &list);
        if (e != 0) return dse_fail(err, DSE_ERR_ADDRESS, "%s: %s", url, gai_strerror(e));
        for (struct addrinfo *a = list; a != NULL && *fd < 0; a = a->ai_next)
            *fd = connect_one(a->ai_family, a->ai_addr, a->ai_addrlen, patience);
        freeaddrinfo(list);
    }
    if (*fd >= 0) return DSE_OK;
    return dse_fail(err, DSE_ERR_ADDRESS, "no server answers at %s: %s", url, strerror(errno));
}

static bool send_all(int fd, const char *data, size_t bytes, const struct patience *patience)
{
    while (bytes > 0) {
        ssize_t n = send(fd, data, bytes, MSG_NOSIGNAL);
        if (n > 0) {
            data += n;
            bytes -= (size_t)n;
        } else if ((errno != EAGAIN && errno != EINTR) || !wait_for(fd, POLLOUT, patience)) {
            return false;
        }
    }
    return true;
}

/* All that comes until the peer closes. */
static bool receive_all(int fd, struct dse_buffer *out, const struct patience *patience)
{
    char piece[16384];
    for (;;) {
        if (!wait_for(fd, POLLIN, patience)) return false;
        ssize_t n = recv(fd, piece, sizeof piece, 0);
        if (n == 0) return true;
        if (n < 0 && errno != EAGAIN && errno != EINTR) return false;
        if (n > 0 && !dse_buffer_append(out, piece, (size_t)n)) return errno = ENOMEM, false;
    }
}

/* Splits an answer into status and body: our servers send a length with every answer that is whole. */
static bool split_answer(struct dse_buffer *answer, int *http_status)
{
    const char *text = dse_buffer_text(answer), *end = strstr(text, "\r\n\r\n");
    if (strncmp(text, "HTTP/1.", 7) != 0 || end == NULL || end - text > MAX_HEAD_BYTES) return false;
    *http_status = (int)strtol(text + 8, NULL, 10);
    size_t head = (size_t)(end + 4 - text), length = answer->length - head;
    for (const char *line = strstr(text, "\r\n"); line != NULL && line < end; line = strstr(line + 2, "\r\n"))
        if (strncasecmp(line + 2, "Content-Length:", 15) == 0 && strtoull(line + 17, NULL, 10) != length) return false;
    memmove(answer->data, answer->data + head, length + 1);
    answer->length = length;
    return true;
}

static enum dse_status exchange(const char *url, const char *method, const char *path, const char *key,
                                const struct dse_buffer *json, const struct patience *patience, int *http_status,
                                struct dse_buffer *body, struct dse_error *err)
{
    struct target target;
    int fd;
    for (const char *c = key != NULL ? key : ""; *c != '\0'; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7F)
            return dse_fail_at(err, DSE_ERR_INVALID, "api-key", -1, "--api-key has a control character");
    enum dse_status status = parse_url(url, &target, err);
    if (status == DSE_OK) status = connect_to(&target, url, patience, &fd, err);
    if (status != DSE_OK) return status;
    bool v6 = strchr(target.host, ':') != NULL;
    struct dse_buffer request;
    dse_buffer_init(&request, DSE_MEM_MISC, 65536 + (json != NULL ? json->length : 0));
    dse_buffer_printf(&request, "%s %s HTTP/1.1\r\nHost: %s%s%s", method, path, v6 ? "[" : "", target.host,
                      v6 ? "]" : "");
    if (target.path[0] == '\0') dse_buffer_printf(&request, ":%s", target.port);
    dse_buffer_puts(&request, "\r\nConnection: close\r\nUser-Agent: deepseek-edge\r\n");
    if (key != NULL) dse_buffer_printf(&request, "Authorization: Bearer %s\r\n", key);
    if (json != NULL)
        dse_buffer_printf(&request, "Content-Type: application/json\r\nContent-Length: %zu\r\n", json->length);
    dse_buffer_puts(&request, "\r\n");
    if (json != NULL) dse_buffer_append(&request, dse_buffer_text(json), json->length);
    dse_buffer_clear(body);
    if (request.failed)
        status = dse_fail_memory(err, request.length, "a request");
    else if (!send_all(fd, dse_buffer_text(&request), request.length, patience) || !receive_all(fd, body, patience))
        status = dse_fail(err, DSE_ERR_ADDRESS, "no answer from %s: %s", url, strerror(errno));
    else if (!split_answer(body, http_status))
        status = dse_fail(err, DSE_ERR_ADDRESS, "%s answers, but not with whole HTTP", url);
    dse_buffer_deinit(&request);
    close(fd);
    return status;
}

enum dse_status dse_http_client_get(const char *url, const char *path, const char *key, unsigned timeout_ms,
                                    const struct dse_http_wait *wait, int *http_status, struct dse_buffer *body,
                                    struct dse_error *err)
{
    const struct patience patience = {dse_clock_ns() + (uint64_t)timeout_ms * 1000000, wait};
    return exchange(url, "GET", path, key, NULL, &patience, http_status, body, err);
}

enum dse_status dse_http_client_send(const char *url, const char *method, const char *path, const char *key,
                                     const struct dse_buffer *json, unsigned timeout_ms, int *http_status,
                                     struct dse_buffer *body, struct dse_error *err)
{
    const struct patience patience = {dse_clock_ns() + (uint64_t)timeout_ms * 1000000, NULL};
    return exchange(url, method, path, key, json, &patience, http_status, body, err);
}
